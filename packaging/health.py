"""The image's health check: does the session server that is process 1 answer, and has it started?

Its address is the one of --listen, on this machine; a process 1 without --listen is another command, and healthy as long as it runs.
"""

import http.client
import json
import socket
import ssl
import sys

SECONDS = 4


def address_of(argv):
    """The value of --listen: the last one counts."""
    found = None
    for at, each in enumerate(argv):
        if each == "--listen" and at + 1 < len(argv):
            found = argv[at + 1]
        elif each.startswith("--listen="):
            found = each[len("--listen="):]
    return found


def connect(address, tls):
    if address.startswith("unix:"):
        connection = http.client.HTTPConnection("localhost", timeout=SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(SECONDS)
        connection.sock.connect(address[len("unix:"):])
        return connection
    host, _, port = address.rpartition(":")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    if tls:
        # It is our own server at our own address; what its certificate says is its clients' business.
        return http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=ssl._create_unverified_context())
    return http.client.HTTPConnection(host, int(port), timeout=SECONDS)


def main():
    with open("/proc/1/cmdline", "rb") as file:
        argv = file.read().decode(errors="surrogateescape").split("\0")
    address = address_of(argv)
    if address is None:
        return 0
    connection = connect(address, any(each.split("=")[0] == "--tls-cert" for each in argv))
    connection.request("GET", "/health")
    answer = connection.getresponse()
    text = answer.read(1000).decode(errors="replace")
    print(answer.status, text)
    return 0 if answer.status == 200 and json.loads(text).get("status") != "starting" else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.exit("the server does not answer: %s" % error)
