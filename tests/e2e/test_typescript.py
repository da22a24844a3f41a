"""The TypeScript client: it compiles, its types are those of the server, and it works against one (typescript/test)."""
import json
import os
import shutil
import subprocess
import tarfile

import pytest

import serving
import support
from support import DEADLINE

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "typescript")
PACKAGES = os.path.join(ROOT, "build", "typescript")  # made by scripts/setup.sh


def run(*argv, cwd=SOURCE, **env):
    node = os.path.join(ROOT, "build", "node", "bin")
    done = subprocess.run(argv, cwd=cwd, env={**support.host_environment(**env), "PATH": node + ":" + os.environ["PATH"]},
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
    server = serving.Server("--executor", "sandbox", "--workspace-mode", "cow", "--approve", "ask", "--cwd", work, "--saved", tmp_path / "saved", cwd=work)
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


CONSUMER = """
import { Client, CodeError, WorkcellError, type CellResult, type RunEvent, type api } from "@workcell/client";

export async function main(url: string): Promise<string> {
  const client = new Client({ url, token: "t" });
  const seen: RunEvent[] = [];
  try {
    await using session = await client.open({ workspace_id: "mine" });
    const result: CellResult = await session.run("1", { timeout: 5, onEvent: (event) => { seen.push(event); } });
    const hibernated: api.Hibernated = await session.hibernate();
    return `${String(result.value)} ${hibernated.session_id} ${seen.length}`;
  } catch (error) {
    if (error instanceof CodeError) return error.traceback;
    if (error instanceof WorkcellError) return error.code;
    return "no server";
  }
}
// @ts-expect-error: a number is not code
export const wrong = () => new Client("http://localhost").session("x").run(5);
console.log(await main("http://127.0.0.1:1"));
"""


def test_the_package_in_a_project_of_its_own(dist, tmp_path):
    """Packed, installed into an empty project, compiled there with every check of the compiler, and run."""
    package, project = tmp_path / "package", tmp_path / "project"
    package.mkdir(), project.mkdir()
    for name in ("package.json", "README.md"):
        shutil.copy(os.path.join(SOURCE, name), package)
    shutil.copytree(dist, package / "dist", ignore=shutil.ignore_patterns("package.json"))
    run("npm", "pack", "--ignore-scripts", "--pack-destination", str(tmp_path), cwd=package)
    packed, = tmp_path.glob("*.tgz")
    with tarfile.open(packed) as tar:
        files = {each.partition("/")[2] for each in tar.getnames()}
    modules = {each[:-3] for each in os.listdir(os.path.join(SOURCE, "src"))}
    assert files == {"package.json", "README.md"} | {"dist/%s%s" % (each, end) for each in modules for end in (".js", ".d.ts")}
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", str(packed), cwd=project)
    (project / "main.ts").write_text(CONSUMER)
    options = {"strict": True, "exactOptionalPropertyTypes": True, "noUncheckedIndexedAccess": True, "skipLibCheck": False, "types": [], "lib": ["ES2022", "DOM"],
               "target": "ES2022", "module": "NodeNext", "moduleResolution": "NodeNext"}
    (project / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["main.ts"]}))
    run("node", os.path.join(PACKAGES, "node_modules", "typescript", "bin", "tsc"), "-p", ".", cwd=project)
    assert run("node", "main.js", cwd=project) == "no server\n"
