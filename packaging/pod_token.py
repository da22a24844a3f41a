"""For the init container of a pod of a pool: writes the token of this pod's server (docs/kubernetes.md#pods-of-their-own).

    pod_token.py KEY_FILE TOKEN_FILE     the pod's uid in the environment: POD_UID

The token is the HMAC-SHA256 of the uid under the pool's key. The program that claims the pod computes it too; the pod's other containers never have the key.
"""

import hashlib
import hmac
import os
import re
import sys

MIN_KEY_CHARS = 32


def token_of(key, uid):
    return hmac.new(key, b"workcell-pod:" + uid.encode("ascii"), hashlib.sha256).hexdigest()


def main():
    if len(sys.argv) != 3:
        return "usage: pod_token.py KEY_FILE TOKEN_FILE"
    uid = os.environ.get("POD_UID", "")
    if not re.fullmatch("[0-9a-fA-F-]{1,64}", uid):
        return "POD_UID is %r, expected the uid of a pod" % uid
    with open(sys.argv[1], "rb") as file:
        key = file.read().rstrip(b" \t\r\n")
    if len(key) < MIN_KEY_CHARS:
        return "the key has %d characters, expected at least %d" % (len(key), MIN_KEY_CHARS)
    # A pod's volume outlives its containers: a server that is started once more finds no token, and does not start.
    with open(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="ascii") as file:
        file.write(token_of(key, uid))
    return 0


if __name__ == "__main__":
    sys.exit(main())
