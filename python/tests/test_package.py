"""The wheel, the command, the types."""
import os
import subprocess
import sys
import zipfile

import pytest
from conftest import BUILD, HERE, ROOT, SITE

PACKAGE = os.path.dirname(HERE)


def test_pip_install_in_a_clean_venv(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "WORKCELL_BUILD_DIR": BUILD}
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", PACKAGE], check=True,
                   env=environment, cwd=str(tmp_path))
    code = ("import workcell, workcell.sync\nwith workcell.sync.Session.scratch() as s: print(s.run('6 * 7').value)\n"
            "print(workcell.__file__)")
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True, cwd=str(tmp_path), env={})
    value, where = done.stdout.decode().split()
    assert value == "42" and where.startswith(str(tmp_path))
    program = str(tmp_path / "venv" / "bin" / "workcell")
    done = subprocess.run([program, "run", "-e", "6 * 7"], stdout=subprocess.PIPE, check=True, cwd=str(tmp_path))
    assert done.stdout == b"42\n"
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "workcell"], check=True, env=environment)
    assert not os.path.exists(where)


def test_the_wheel_has_everything_and_one_tag():
    wheel, = [name for name in os.listdir(SITE) if name.endswith(".whl")]
    assert wheel.startswith("workcell-") and "-cp39-abi3-linux_" in wheel
    with zipfile.ZipFile(os.path.join(SITE, wheel)) as archive:
        names = set(archive.namelist())
    assert {"workcell/py.typed", "workcell/_native.abi3.so", "workcell/_native.pyi", "workcell/_lib/workcell",
            "workcell/_lib/workcell-spawner", "workcell/_lib/libworkcell.so.0",
            "workcell/_lib/kernel/_workcell.abi3.so", "workcell/_lib/kernel/workcell_kernel/kernel.py"} <= names


def test_types():
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.path.join(BUILD, "mypy-sdk"), "workcell"],
                          cwd=PACKAGE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()


def test_types_of_a_users_program(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(
        "import workcell, workcell.sync\n"
        "async def main() -> None:\n"
        "    async with workcell.Session(workcell.FileStorage('x')) as session:\n"
        "        @session.tool\n"
        "        def add(a: int) -> int:\n"
        "            return a\n"
        "        reveal_type(add)\n"
        "        result = await session.run('1')\n"
        "        reveal_type(result.error)\n"
        "        async for event in session.stream('1'):\n"
        "            reveal_type(event)\n"
        "def twin() -> None:\n"
        "    with workcell.sync.Session.from_base('x') as session:\n"
        "        reveal_type(session.run('1'))\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.path.join(BUILD, "mypy-user"), "user.py"],
                          cwd=str(tmp_path), env=dict(os.environ, MYPYPATH=PACKAGE), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    text = done.stdout.decode()
    assert done.returncode == 0, text
    for shown in ("def (a: int) -> int", "str | None", "workcell.events.Event", "workcell.types.ExecutionResult"):
        assert shown in text or shown.replace("str | None", "Union[str, None]") in text, text


def test_every_public_name_has_a_docstring():
    import inspect

    import workcell
    import workcell.sync

    for name in workcell.__all__:
        value = getattr(workcell, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
    assert os.path.exists(os.path.join(ROOT, "python", "workcell", "py.typed"))
