"""The scenarios of the protocol's conformance suite, for clients and servers; docs/mcp-conformance.md has those left out, and why."""
import os
import re
import subprocess
import sys
import tempfile

import pytest

import support

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(HERE, "..", "..", "..", "build", "conformance", "node_modules")
SUITE = [os.path.join(PACKAGES, "node", "bin", "node"), os.path.join(PACKAGES, "@modelcontextprotocol", "conformance", "dist", "index.js")]

CLIENT = """initialize tools_call elicitation-sep1034-client-defaults sse-retry auth/metadata-default auth/metadata-var1 auth/metadata-var2
auth/metadata-var3 auth/basic-cimd auth/scope-from-www-authenticate auth/scope-from-scopes-supported auth/scope-omitted-when-undefined
auth/scope-step-up auth/scope-retry-limit auth/token-endpoint-auth-basic auth/token-endpoint-auth-post auth/token-endpoint-auth-none
auth/pre-registration auth/resource-mismatch auth/offline-access-scope auth/offline-access-not-supported auth/iss-supported
auth/iss-not-advertised auth/iss-supported-missing auth/iss-wrong-issuer auth/iss-unexpected auth/iss-normalized
auth/metadata-issuer-mismatch auth/authorization-server-migration auth/2025-03-26-oauth-metadata-backcompat
sep-2322-client-request-state http-standard-headers http-custom-headers http-invalid-tool-headers json-schema-ref-no-deref request-metadata
json-schema-2020-12-preservation""".split()


@pytest.mark.parametrize("scenario", CLIENT)
def test_client(scenario):
    done = subprocess.run([*SUITE, "client", "--command", "%s %s" % (sys.executable, os.path.join(HERE, "driver.py")), "--scenario", scenario,
                           "--timeout", "80000"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


# The program is built on cell_mcp_server, with the suite's tools, resources and prompts (tests/mcp/offering.c).
SERVER = {
    "2025-11-25": """server-initialize server-session-lifecycle logging-set-level ping completion-complete tools-list tools-call-simple-text
tools-call-image tools-call-audio tools-call-embedded-resource tools-call-mixed-content tools-call-with-logging tools-call-error
tools-call-with-progress tools-call-elicitation json-schema-2020-12 elicitation-sep1034-defaults server-sse-polling
server-sse-multiple-streams elicitation-sep1330-enums resources-list resources-read-text resources-read-binary resources-templates-read
resources-subscribe resources-unsubscribe prompts-list prompts-get-simple prompts-get-with-args prompts-get-embedded-resource
prompts-get-with-image dns-rebinding-protection""".split(),
    "2026-07-28": """completion-complete tools-list tools-call-simple-text tools-call-image tools-call-audio tools-call-embedded-resource
tools-call-mixed-content tools-call-error tools-call-with-progress json-schema-2020-12 server-sse-multiple-streams resources-list
resources-read-text resources-read-binary resources-templates-read sep-2164-resource-not-found prompts-list prompts-get-simple
prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image dns-rebinding-protection caching http-header-validation
input-required-result-basic-elicitation input-required-result-request-state input-required-result-multi-round
input-required-result-missing-input-response input-required-result-result-type input-required-result-unsupported-methods
input-required-result-tampered-state input-required-result-ignore-extra-params input-required-result-validate-input input-required-result-non-tool-request
http-custom-header-server-validation server-stateless tasks-capability-negotiation tasks-dispatch-and-envelope tasks-lifecycle
tasks-mrtr-composition tasks-mrtr-input tasks-request-headers tasks-request-state-removal tasks-required-task-error tasks-wire-fields""".split(),
}


@pytest.fixture
def offering():
    program = os.path.join(os.path.dirname(os.path.abspath(support.BIN)), "tests", "mcp-offering")
    with tempfile.TemporaryFile() as log:
        def text():
            log.seek(0)
            return log.read().decode()
        process = subprocess.Popen([program, "--listen", "127.0.0.1:0", "--auth-disabled", "1", "--python", support.bare_python()], stderr=log)
        support.wait_until(lambda: "listening on" in text() or process.poll() is not None, text)
        yield re.search(r"listening on (\S+)", text())[1]
        process.terminate()
        # Also when a scenario has left a question open.
        assert process.wait(support.DEADLINE) == 0, text()


@pytest.mark.parametrize("revision, scenario", [(revision, scenario) for revision in SERVER for scenario in SERVER[revision]])
def test_server(offering, revision, scenario):
    done = subprocess.run([*SUITE, "server", "--url", offering, "--scenario", scenario, "--spec-version", revision, "--timeout", "60000"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
