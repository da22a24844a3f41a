"""The client scenarios of the protocol's conformance suite; docs/mcp-conformance.md has those that are left out, and why."""
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(HERE, "..", "..", "..", "build", "conformance", "node_modules")
SUITE = [os.path.join(PACKAGES, "node", "bin", "node"), os.path.join(PACKAGES, "@modelcontextprotocol", "conformance", "dist", "index.js")]

CLIENT = """initialize tools_call elicitation-sep1034-client-defaults sse-retry auth/metadata-default auth/metadata-var1 auth/metadata-var2
auth/metadata-var3 auth/basic-cimd auth/scope-from-www-authenticate auth/scope-from-scopes-supported auth/scope-omitted-when-undefined
auth/scope-step-up auth/scope-retry-limit auth/token-endpoint-auth-basic auth/token-endpoint-auth-post auth/token-endpoint-auth-none
auth/pre-registration auth/resource-mismatch auth/offline-access-scope auth/offline-access-not-supported auth/iss-supported
auth/iss-not-advertised auth/iss-supported-missing auth/iss-wrong-issuer auth/iss-unexpected auth/iss-normalized
auth/metadata-issuer-mismatch sep-2322-client-request-state http-standard-headers http-custom-headers http-invalid-tool-headers
json-schema-ref-no-deref""".split()


@pytest.mark.parametrize("scenario", CLIENT)
def test_client(scenario):
    done = subprocess.run([*SUITE, "client", "--command", "%s %s" % (sys.executable, os.path.join(HERE, "driver.py")), "--scenario", scenario,
                           "--timeout", "80000"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
