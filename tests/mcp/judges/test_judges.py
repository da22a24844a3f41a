"""The newest SDKs and the Inspector as clients, on both transports: a value, a silent cell of 90 seconds, a cancelled one, an image of 3 MiB, an
approval, a job that goes on without its client, a task. Stage mcp_judges; scripts/setup.sh judges makes build/judges."""
import json
import os
import subprocess

import pytest

import spaces
import support
from listening import Listening

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.environ.get("WORKCELL_JUDGES_DIR", os.path.join(support.ROOT, "build", "judges"))
PACKAGES = os.path.join(BUILT, "node_modules")
NODE = os.path.join(PACKAGES, "node", "bin", "node")
SECONDS = os.environ.get("WORKCELL_SILENT_SECONDS", "90")
JUDGES = {
    "python-1": [os.path.join(BUILT, "python1", "bin", "python"), os.path.join(HERE, "python1.py")],
    "python-2": [os.path.join(BUILT, "python2", "bin", "python"), os.path.join(HERE, "python2.py")],
    "fastmcp": [os.path.join(BUILT, "python2", "bin", "python"), os.path.join(HERE, "fast.py")],
    "typescript-1": [NODE, os.path.join(HERE, "judge.mjs"), "sdk1"],
    "typescript-2-legacy": [NODE, os.path.join(HERE, "judge.mjs"), "legacy"],
    "typescript-2": [NODE, os.path.join(HERE, "judge.mjs"), "auto"],
    "go": [os.path.join(BUILT, "go", "judge")],
}
EXPECTED = {"value": 42, "silent": "slept", "cancelled": True, "image": [(3 << 20) + 8], "approved": "x", "job": "went on"}


def run(argv, seconds=SECONDS, **env):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          timeout=support.DEADLINE + float(seconds), env={**os.environ, "PACKAGES": PACKAGES, **env})
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return json.loads(done.stdout)


@pytest.fixture(params=["stdio", "http"])
def where(request, tmp_path):
    """How to reach a server whose code has a tool that is asked about."""
    flags = ["--base", spaces.probe_base(tmp_path), "--approve", "ask"]
    if request.param == "stdio":
        yield ["stdio", support.BIN, "mcp", "--python", support.bare_python(), "--pool", "0", *flags]
        return
    server = Listening(*flags)
    yield ["http", "http://127.0.0.1:%d/mcp" % server.port, server.token]
    server.close()


@pytest.mark.parametrize("name", JUDGES)
def test_an_sdk(where, name):
    assert run([*JUDGES[name], SECONDS, *where]) == EXPECTED


INSPECTOR = [NODE, os.path.join(PACKAGES, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"), "--cli"]


def inspect(where, *words, era, home):
    target = ["--transport", "http", "--server-url", where[1], "--header", "Authorization: Bearer " + where[2]] if where[0] == "http" else ["--transport", "stdio"]
    command = [] if where[0] == "http" else ["--", *where[1:]]
    return run([*INSPECTOR, *target, "--protocol-era", era, "--format", "json", "--quiet", *words, *command], HOME=str(home))


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector(where, era, tmp_path):
    listed = inspect(where, "--method", "tools/list", "--strict", era=era, home=tmp_path)
    assert "run_code" in [tool["name"] for tool in listed.get("result", listed)["tools"]]

    def code(text):
        answer = inspect(where, "--method", "tools/call", "--tool-name", "run_code", "--tool-args-json", json.dumps({"code": text}), era=era,
                         home=tmp_path)
        return answer.get("result", answer)
    assert code("6 * 7")["structuredContent"]["value"] == 42
    # By the earlier revisions it gives up after 60 s and asks for no progress; by the newest one it waits.
    seconds = float(SECONDS) if era == "modern" else min(float(SECONDS), 50)
    assert code("import time; time.sleep(%g); 'slept'" % seconds)["structuredContent"]["value"] == "slept"
