"""Requests made from /openapi.json by schemathesis: nothing that fits the document, or does not, is answered against it."""
import os
import subprocess
import sys

import serving
import support

SCHEMATHESIS = os.path.join(os.path.dirname(sys.executable), "schemathesis")
# Refused tokens have their own tests, and answers by what a name means are not the document's to tell.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


def test_requests_of_the_document(tmp_path):
    server = serving.Server("--executor", "subprocess", "--base", tmp_path / "base", "--no-runtime-deps", "--log-level", "warning",
                            "--max-timeout", "5")
    done = subprocess.run([SCHEMATHESIS, "run", "http://127.0.0.1:%d/openapi.json" % server.port, "-H", "Authorization: Bearer " + serving.TOKEN,
                           "--checks", CHECKS, "--max-examples", "3", "--phases", "examples,coverage,fuzzing", "--seed", "1"],
                          capture_output=True, text=True, cwd=tmp_path, timeout=support.DEADLINE * 5, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "Tested: %d" % (len(operations(server)) - 1) in done.stdout, done.stdout[-2000:]
    server.close()


def operations(server):
    """One of them is the document itself, which is not asked for again."""
    paths = server.ask("GET", "/openapi.json").json["paths"]
    return [one for methods in paths.values() for one in methods]
