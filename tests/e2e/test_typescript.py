"""The TypeScript client: it compiles, its types are those of the server, and it works against one (typescript/test)."""
import os
import subprocess

import pytest

import serving
import support
from support import DEADLINE

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "typescript")
PACKAGES = os.path.join(ROOT, "build", "typescript")  # made by scripts/setup.sh


def run(*argv, **env):
    node = os.path.join(ROOT, "build", "node", "bin")
    done = subprocess.run(argv, cwd=SOURCE, env={**support.host_environment(**env), "PATH": node + ":" + os.environ["PATH"]},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * DEADLINE, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Strictly compiled."""
    folder = tmp_path_factory.mktemp("typescript")
    run("node", os.path.join(PACKAGES, "node_modules", "typescript", "bin", "tsc"), "-p", "tsconfig.json", "--outDir", str(folder))
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def test_client(dist, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    server = serving.Server("--executor", "sandbox", "--workspace-mode", "cow", "--approve", "ask", cwd=work)
    try:
        document = tmp_path / "openapi.json"
        document.write_text(server.ask("GET", "/openapi.json").body.decode())
        with open(os.path.join(SOURCE, "src", "types.ts")) as file:
            assert run("node", "scripts/types.mjs", str(document)) == file.read(), \
                "typescript/src/types.ts: node scripts/types.mjs OPENAPI.json > src/types.ts, with the server's /openapi.json"
        run("node", "--test", "test/client.test.mjs", WORKCELL_DIST=str(dist), WORKCELL_URL="http://127.0.0.1:%d" % server.port, WORKCELL_TOKEN=serving.TOKEN)
    finally:
        server.close()
    assert (work / "a folder" / "ä.txt").read_text() == "text\n"  # committed, and only that
