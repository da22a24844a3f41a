"""Deps: packages that the code of a project can import; installed for real, from wheels made here, by pip and by uv."""
import base64
import http.server
import os
import re
import subprocess
import sys
import threading

import pytest

import spaces
import support
from support import INSTALL_SECONDS, find_uv, slow, slow_error


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        spaces.make_wheel(folder, "wc-alpha", version, "def who():\n    return 'alpha'\n")
    spaces.make_wheel(folder, "wc-beta", "1.0", "import wc_alpha\n", requires=["wc-alpha>=1"])
    spaces.make_wheel(folder, "wc-needy", "1.0", requires=["wc-does-not-exist"])
    spaces.make_wheel(folder, "wc-gadget", "1.0", "def main():\n    print('gadget')\n",
                      files={"entry_points.txt": "[console_scripts]\nwc-gadget = wc_gadget:main\n"})
    return str(folder)


def path_without_uv():
    return os.pathsep.join(folder for folder in os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep)
                           if not os.path.exists(os.path.join(folder, "uv")))


@pytest.fixture(scope="module", params=["pip", "uv"])
def installer(request):
    return request.param


# For what does not depend on it; uv makes a venv in a fraction of the time.
with_uv_alone = pytest.mark.parametrize("installer", ["uv"], indirect=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory, installer):
    """One cache for each installer: making a venv takes seconds."""
    return str(tmp_path_factory.mktemp("cache-" + installer))


@pytest.fixture
def environment(cache, installer, tmp_path_factory):
    path = path_without_uv()
    if installer == "uv":
        folder = tmp_path_factory.mktemp("bin")
        os.symlink(find_uv(), str(folder / "uv"))
        path = "%s%s%s" % (folder, os.pathsep, path)
    return support.host_environment(XDG_CACHE_HOME=cache, PATH=path)


@pytest.fixture
def open_driver(drive, wheels, environment):
    def make(base, *flags, **options):
        return drive("--base", base, "--wheel-dir", wheels, "--timeout", "100", *flags, env=environment, **options)
    return make


def venvs(cache):
    folder = os.path.join(cache, "workcell", "venvs")
    return [name for name in os.listdir(folder) if not name.startswith(".")] if os.path.isdir(folder) else []


def requirements(base):
    path = os.path.join(str(base), "requirements.txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


# ---- adding and removing -----------------------------------------------------------------------------------


def test_a_package_can_be_imported_right_after_add(open_driver, tmp_path, cache, bare_python):
    driver = open_driver(tmp_path)
    assert driver.run("import wc_alpha")["error"]["type"] == "ModuleNotFoundError"
    assert slow(driver, "list(map(list, deps.add('wc-alpha==1.0')))") == [["wc-alpha==1.0"], [], []]
    assert driver.value("import wc_alpha\n[wc_alpha.who(), wc_alpha.__version__]") == ["alpha", "1.0"]
    assert driver.value("deps.list()") == ["wc-alpha==1.0"] and requirements(tmp_path) == ["wc-alpha==1.0"]
    assert slow(driver, "list(map(list, deps.add('wc-alpha==1.0')))") == [[], ["wc-alpha==1.0"], []]
    driver.reset()
    assert driver.value("import wc_alpha\nwc_alpha.who()") == "alpha", "a fresh kernel has it too"
    where = driver.value("wc_alpha.__file__")
    assert where.startswith(cache + "/workcell/"), where
    driver.close()
    again = open_driver(tmp_path)
    assert again.value("import wc_alpha\nwc_alpha.who()") == "alpha", "and so has the next session"
    assert slow(again, "list(map(list, deps.add('wc-beta')))")[0] == ["wc-beta"]
    assert again.value("import wc_beta\nwc_beta.__file__").startswith(os.path.dirname(where)), "in the same environment"
    assert support.module_version(bare_python, "wc_alpha") is None, "the interpreter's own packages are left alone"


def test_the_installer_is_the_one_that_is_there(open_driver, tmp_path, installer):
    driver = open_driver(tmp_path)
    result = driver.run("deps.add('wc-alpha==1.0')", deadline=INSTALL_SECONDS)
    assert "creating an environment with %s" % {"pip": "python -m venv", "uv": "uv"}[installer] in result["stderr"]
    made_by_uv = driver.value("import os, wc_alpha\n"
                              "'uv = ' in open(os.path.dirname(wc_alpha.__file__) + '/../../../pyvenv.cfg').read()")
    assert made_by_uv is (installer == "uv")
    assert slow(driver, "deps.remove('wc-alpha')") is True


@with_uv_alone
def test_a_new_session_has_the_project_s_packages_before_the_interpreter_s(drive, tmp_path, environment, wheels):
    """A package that both have is the project's, in the session that installed it and in every later one."""
    own = tmp_path / "own"
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--without-pip", str(own)], check=True)
    site = [str(path) for path in own.glob("lib/python3*/site-packages")][0]
    spaces.write_files(site, {"wc_alpha.py": "__version__ = 'the interpreter\'s'\n"})
    for code in ("deps.add('wc-alpha==1.0');", "None"):
        driver = drive("--base", tmp_path / "base", "--wheel-dir", wheels, env=environment, python=str(own / "bin/python"))
        slow(driver, code)
        assert driver.value("import wc_alpha\nwc_alpha.__version__") == "1.0", code
        driver.close()


@with_uv_alone
def test_programs_of_packages_can_be_run_at_once(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    slow(driver, "deps.add('wc-gadget');")
    assert driver.value("import subprocess\nsubprocess.check_output(['wc-gadget']).decode()") == "gadget\n"
    assert driver.value("x = !wc-gadget\nlist(x)") == ["gadget"]


@with_uv_alone
def test_removing_what_another_package_needs(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    slow(driver, "deps.add('wc-alpha'); deps.add('wc-beta');")
    assert slow(driver, "deps.remove('wc-alpha')") is True
    assert driver.value("deps.list()") == ["wc-beta"]
    driver.reset()
    assert driver.value("import wc_beta\nwc_beta.wc_alpha.who()") == "alpha", "wc-beta still works"
    assert slow(driver, "deps.remove('wc-beta')") is True


def test_defect_15_and_23_remove_uninstalls_and_adding_again_installs(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    slow(driver, "deps.add('wc-alpha')\nNone")
    assert slow(driver, "deps.remove('wc-alpha')") is True
    assert driver.value("deps.list()") == [] and requirements(tmp_path) == []
    driver.reset()
    assert driver.run("import wc_alpha")["error"]["type"] == "ModuleNotFoundError"
    assert slow(driver, "deps.remove('wc-alpha')") is False
    assert slow(driver, "list(map(list, deps.add('WC_Alpha')))")[0] == ["wc-alpha"]
    assert driver.value("import wc_alpha\nwc_alpha.who()") == "alpha"
    slow(driver, "deps.add('wc-alpha==1.0')\nNone")
    assert requirements(tmp_path) == ["wc-alpha==1.0"], "another version takes the place"
    driver.reset()
    assert driver.value("import wc_alpha\nwc_alpha.__version__") == "1.0"


def test_defect_14_a_failed_install_is_told_and_not_recorded(open_driver, tmp_path, installer):
    driver = open_driver(tmp_path)
    for package in ("wc-does-not-exist", "wc-alpha==9.9", "wc-needy"):
        problem = slow_error(driver, "deps.add(%r)" % package)
        assert problem["type"] == "DepsError", problem
        assert package.split("=")[0] in problem["message"] or "wc-does-not-exist" in problem["message"], problem
        words = {"pip": "No matching distribution found for", "uv": "No solution found"}[installer]
        assert words in problem["message"], "the installer's own words: %r" % problem
    assert driver.value("deps.list()") == [] and requirements(tmp_path) == []
    assert driver.run("import wc_needy")["error"]["type"] == "ModuleNotFoundError"


@with_uv_alone
def test_defect_25_projects_do_not_share_what_they_install(open_driver, tmp_path):
    one, two = open_driver(tmp_path / "one"), open_driver(tmp_path / "two")
    slow(one, "deps.add('wc-alpha==1.0')\nNone")
    assert two.run("import wc_alpha")["error"]["type"] == "ModuleNotFoundError"
    slow(two, "deps.add('wc-alpha==2.0')\nNone")
    assert [d.value("import wc_alpha\nwc_alpha.__version__") for d in (one, two)] == ["1.0", "2.0"]
    one.reset()
    assert one.value("import wc_alpha\nwc_alpha.__version__") == "1.0"


# ---- several at once ---------------------------------------------------------------------------------------


@pytest.fixture
def counted(tmp_path_factory, cache):
    """An environment in which uv notes every start of itself, and the notes."""
    folder = tmp_path_factory.mktemp("counting")
    notes = folder / "notes"
    notes.write_text("")
    wrapper = folder / "uv"
    wrapper.write_text("#!/bin/sh\necho \"$*\" >>'%s'\nexec '%s' \"$@\"\n" % (notes, find_uv()))
    wrapper.chmod(0o755)
    path = "%s%s%s" % (folder, os.pathsep, path_without_uv())
    return support.host_environment(XDG_CACHE_HOME=cache, PATH=path), notes


def installs(notes):
    return [line for line in notes.read_text().splitlines() if line.startswith("pip install")]


@with_uv_alone
def test_several_packages_are_resolved_once(tmp_path, wheels, counted, bare_python):
    environment, notes = counted

    def deps(*args):
        return support.workcell("deps", *args, "--base", tmp_path, "--wheel-dir", wheels, "--python", bare_python, env=environment,
                                deadline=INSTALL_SECONDS)

    done = deps("add", "wc-gadget", "wc-alpha==1.0", "wc-beta", "--json")
    assert done.status == 0 and len(done.objects) == 1, done
    assert sorted(done.objects[0]["installed"]) == ["wc-alpha==1.0", "wc-beta", "wc-gadget"], done
    assert len(installs(notes)) == 1, notes.read_text()
    assert requirements(tmp_path) == ["wc-alpha==1.0", "wc-beta", "wc-gadget"]
    done = deps("add", "wc-alpha==2.0", "wc-does-not-exist")
    assert done.error_code == "install_failed" and "install wc-alpha==2.0 and wc-does-not-exist" in done.error_message, done
    assert len(installs(notes)) == 2 and requirements(tmp_path) == ["wc-alpha==1.0", "wc-beta", "wc-gadget"], "nothing is recorded"
    done = deps("add", "wc-alpha==1.0", "wc-alpha==2.0")
    assert done.status == 2 and done.error_code == "invalid" and "of one package" in done.error_message, done
    assert len(installs(notes)) == 2


@with_uv_alone
@pytest.mark.parametrize("flags", [[], ["--executor", "sandbox"]], ids=["subprocess", "sandbox"])
def test_code_adds_several_packages(open_driver, tmp_path, flags):
    (tmp_path / "work").mkdir()
    driver = open_driver(tmp_path / "base", "--cwd", tmp_path / "work", *flags)
    assert slow(driver, "list(map(sorted, deps.add('wc-alpha==1.0', 'wc-gadget')))") == [["wc-alpha==1.0", "wc-gadget"], [], []]
    assert driver.value("import wc_alpha, wc_gadget\ndeps.list()") == ["wc-alpha==1.0", "wc-gadget"]
    problem = slow_error(driver, "deps.add(['wc-beta', 'wc-does-not-exist'])")
    assert problem["type"] == "DepsError" and "wc-does-not-exist" in problem["message"], problem
    assert driver.value("deps.list()") == ["wc-alpha==1.0", "wc-gadget"], "none of them is recorded"
    assert slow(driver, "list(map(sorted, deps.add(['wc-beta', 'wc-gadget'])))") == [["wc-beta"], ["wc-gadget"], []]
    assert driver.value("import wc_beta\ndeps.list()") == ["wc-alpha==1.0", "wc-beta", "wc-gadget"]
    for code, words in (("deps.add([])", "list is empty"), ("deps.add('wc-beta', 'wc-beta>1')", "of one package"),
                        ("deps.add(['wc-beta', 'x\\0y'])", "control characters")):
        assert words in driver.run(code)["error"]["message"], code
    driver.reset()
    assert driver.value("import wc_alpha, wc_beta, wc_gadget\nwc_alpha.__version__") == "1.0"


# ---- requirements.txt --------------------------------------------------------------------------------------


def test_sync_installs_what_a_person_wrote(open_driver, tmp_path):
    spaces.write_files(tmp_path, {"requirements.txt": "# ours\nWC_Beta == 1.0\n\n"})
    driver = open_driver(tmp_path)
    assert driver.value("deps.list()") == ["wc-beta==1.0"]
    installed, present, failed = slow(driver, "list(map(list, deps.sync()))")
    assert installed + present == ["wc-beta==1.0"] and failed == []
    assert driver.value("import wc_beta\nwc_beta.wc_alpha.who()") == "alpha", "what a package needs comes along"
    assert slow(driver, "list(map(list, deps.sync()))") == [[], ["wc-beta==1.0"], []]
    slow(driver, "deps.add('wc-alpha')\nNone")
    with open(os.path.join(str(tmp_path), "requirements.txt"), encoding="utf-8") as file:
        assert "# ours" in file.read(), "comments stay"


@with_uv_alone
def test_lines_that_are_refused_are_not_installed(open_driver, tmp_path, wheels, environment, bare_python):
    spaces.write_files(tmp_path, {"requirements.txt": "-e .\nwc-alpha\nhttps://example.org/x.whl\n"
                                                      "wc-beta; python_version>'3'\n"})
    driver = open_driver(tmp_path)
    assert driver.value("deps.list()") == ["wc-alpha"]
    done = support.workcell("deps", "sync", "--base", tmp_path, "--wheel-dir", wheels, "--python", bare_python,
                            env=environment, deadline=INSTALL_SECONDS)
    assert done.status == 0 and done.out == "installed  wc-alpha\n", done
    for line, words in ((1, "starts with -"), (3, "URLs"), (4, "blocked character ';'")):
        assert any("requirements.txt:%d: " % line in told and words in told for told in done.err.splitlines()), done


@with_uv_alone
def test_what_a_person_took_off_the_list_goes_with_the_next_sync(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    slow(driver, "deps.add('wc-alpha'); deps.add('wc-gadget');")
    spaces.write_files(tmp_path, {"requirements.txt": "wc-alpha\n"})
    assert slow(driver, "list(map(list, deps.sync()))") == [[], ["wc-alpha"], []]
    driver.reset()
    assert driver.run("import wc_gadget")["error"]["type"] == "ModuleNotFoundError"
    assert driver.value("import wc_alpha\nwc_alpha.who()") == "alpha"


REFUSED = [
    "", "  ", "a\nb", "a\0b", "x" * 257, "a @ https://example.org/a.whl", "a; python_version > '3'", "-e foo",
    "--index-url=x", "-r file", "git+https://example.org/a", "https://example.org/a.whl", "./local", "/abs/path",
    "a(b)", "a|b", "a&b", "a`b`", "$(id)", "requests>", "requests>=", "a==", "\u00e9", "a b"]


@with_uv_alone
def test_specifiers_that_are_refused(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    for package in REFUSED:
        problem = slow_error(driver, "deps.add(%r)" % package)
        assert ("must not contain NUL" if "\0" in package else "Invalid package") in problem["message"], (package, problem)
        assert driver.value("try:\n    deps.add(%r)\nexcept ValueError as error:\n"
                            "    caught = isinstance(error, DepsError)\ncaught" % package) is True, package
    assert requirements(tmp_path) == []


@with_uv_alone
def test_specifiers_that_are_accepted_can_be_installed(open_driver, tmp_path):
    """The reference had two validators: what the first accepted, and recorded, the second refused."""
    driver = open_driver(tmp_path)
    for package, kept in [
            ("wc-alpha", "wc-alpha"), (" WC_Alpha ", "wc-alpha"), ("wc.alpha >= 1.0 , < 3", "wc-alpha>=1.0,<3"),
            ("wc-alpha[x]>=1", "wc-alpha[x]>=1"), ("wc-alpha==1.*", "wc-alpha==1.*"),
            ("wc-alpha~=1.0", "wc-alpha~=1.0")]:
        result = slow(driver, "list(map(list, deps.add(%r)))" % package)
        assert result[0] + result[1] == [kept] and requirements(tmp_path) == [kept], (package, result)


# ---- settings ----------------------------------------------------------------------------------------------


@with_uv_alone
def test_runtime_deps_can_be_disabled(open_driver, tmp_path):
    spaces.write_files(tmp_path, {"requirements.txt": "wc-alpha\n"})
    driver = open_driver(tmp_path, "--no-runtime-deps")
    for code in ("deps.add('wc-beta')", "deps.remove('wc-alpha')"):
        problem = spaces.error(driver, code)
        assert problem["type"] == "RuntimeDepsDisabledError" and "disabled" in problem["message"], problem
    assert driver.value("deps.list()") == ["wc-alpha"]
    assert slow(driver, "list(map(len, deps.sync()))")[2] == 0
    assert driver.value("import wc_alpha\nwc_alpha.who()") == "alpha"
    done = support.workcell("deps", "add", "wc-beta", "--base", tmp_path, "--no-runtime-deps")
    assert done.status == support.EXIT["disabled"] and done.error_code == "disabled", done


class Index:
    """A package index with one package, for those who know the password."""

    def __init__(self, folder, wheels):
        name = "wc_alpha-2.0-py3-none-any.whl"
        spaces.write_files(folder, {"simple/wc-alpha/index.html": '<a href="../../%s">%s</a>' % (name, name)})
        os.link(os.path.join(wheels, name), os.path.join(str(folder), name))
        self.commands = []
        index, wanted = self, "Basic " + base64.b64encode(b"me:hunter2").decode()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args, **options):
                super().__init__(*args, directory=str(folder), **options)

            def log_message(self, *args):
                pass

            def do_GET(self):
                index.commands += [process.cmdline for process in support.processes().values()]
                if self.headers.get("Authorization") == wanted:
                    super().do_GET()
                    return
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://me:hunter2@127.0.0.1:%d/simple" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def index(tmp_path, wheels):
    made = Index(tmp_path / "index", wheels)
    yield made
    made.close()


def test_an_index_of_ones_own(tmp_path, environment, bare_python, index):
    """Its password is seen by nobody: not in a command line, not by code, not in what is printed."""
    done = support.run_cells("deps.add('wc-alpha')\nimport wc_alpha\nwc_alpha.__version__",
                             "try:\n    deps.add('wc-nowhere')\nexcept DepsError as e:\n    words = str(e)\nwords",
                             flags=["--base", str(tmp_path / "base"), "--timeout", "100", "--index-url", index.url],
                             env=environment, deadline=INSTALL_SECONDS)
    assert [result["error"] for result in done.results] == [None, None], done
    assert done.results[0]["value"] == "2.0" and "wc-nowhere" in done.results[1]["value"], done
    assert "hunter2" not in done.out + done.err, done
    shown = [line for line in index.commands if "hunter2" in line and "--index-url" not in line]
    assert index.commands and not shown, shown
    done = support.workcell("deps", "add", "wc-nowhere", "--base", tmp_path / "base", "--python", bare_python,
                            "--index-url", index.url, env=environment, deadline=INSTALL_SECONDS)
    assert done.error_code == "install_failed" and "hunter2" not in done.out + done.err, done


def test_the_installers_have_what_the_person_s_environment_says(tmp_path, wheels, environment, bare_python):
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "UV_OFFLINE": "1", "UV_FIND_LINKS": wheels}

    def add(package, *flags, **extra):
        return support.workcell("deps", "add", package, "--base", tmp_path / "base", "--python", bare_python, *flags,
                                env=dict(environment, **extra), deadline=INSTALL_SECONDS)

    # Those that would have it installed elsewhere do not count, and neither does another folder beside --wheel-dir.
    done = add("wc-alpha==1.0", PIP_USER="1", PIP_TARGET=str(tmp_path / "target"), UV_SYSTEM_PYTHON="1", **settings)
    assert done.status == 0 and done.out == "installed  wc-alpha==1.0\n" and not (tmp_path / "target").exists(), done
    os.mkdir(str(tmp_path / "empty"))
    done = add("wc-beta", "--wheel-dir", tmp_path / "empty", **settings)
    assert done.status == support.EXIT["install_failed"] and done.error_code == "install_failed", done


# ---- the environment ---------------------------------------------------------------------------------------


@with_uv_alone
def test_packages_are_there_before_the_first_cell(tmp_path, wheels, environment):
    spaces.write_files(tmp_path, {"requirements.txt": "wc-beta\n"})

    def run(*flags):
        return support.run_cells("import wc_beta\nwc_beta.wc_alpha.who()",
                                 flags=["--base", str(tmp_path), "--wheel-dir", wheels, *flags], env=environment,
                                 deadline=INSTALL_SECONDS)

    assert run().result["error"]["type"] == "ModuleNotFoundError"
    done = run("--sync-deps")
    assert done.result["value"] == "alpha" and "creating an environment" in done.err, done
    done = run("--sync-deps")
    assert done.result["value"] == "alpha" and done.err == "", "nothing is to be done: %r" % done
    spaces.write_files(tmp_path, {"requirements.txt": "wc-beta\nwc-does-not-exist\n"})
    done = run("--sync-deps")
    assert done.status == support.EXIT["install_failed"] and done.error_code == "install_failed", done
    assert "cannot install wc-does-not-exist" in done.error_message and done.results == [], done
    assert run().result["value"] == "alpha", "who does not ask for it can work with what is there"


@with_uv_alone
def test_an_environment_of_one_session_alone(tmp_path, wheels, environment, cache, bare_python):
    def run(code, *flags):
        return support.run_cells(code, flags=["--base", str(tmp_path), "--wheel-dir", wheels, "--timeout", "100", *flags],
                                 env=environment, deadline=INSTALL_SECONDS).result

    before = venvs(cache)
    for flags in (["--no-cache-venv"], ["--cleanup-venv"], ["--no-cache-venv", "--cleanup-venv", "--sync-deps"]):
        result = run("deps.add('wc-alpha')\nimport wc_alpha\nwc_alpha.__file__", *flags)
        assert result["error"] is None and result["value"].startswith(cache), result
        assert not os.path.exists(result["value"]) and venvs(cache) == before, flags
        assert requirements(tmp_path) == ["wc-alpha"]
    assert run("import wc_alpha")["error"]["type"] == "ModuleNotFoundError"


@with_uv_alone
def test_a_venv_in_a_folder_of_ones_choice(tmp_path, wheels, environment, cache, bare_python):
    before, flags = venvs(cache), ["--base", str(tmp_path), "--venv-dir", "my/venv"]
    done = support.workcell("deps", "add", "wc-alpha==1.0", "--wheel-dir", wheels, "--python", bare_python, *flags,
                            env=environment, deadline=INSTALL_SECONDS, cwd=str(tmp_path))
    assert done.status == 0 and venvs(cache) == before, done
    done = support.run_cells("import wc_alpha\nwc_alpha.__file__", flags=flags, env=environment, cwd=str(tmp_path))
    assert done.result["value"].startswith(str(tmp_path / "my/venv/lib/")), done
    assert (tmp_path / "my/venv/bin/python").exists()
    done = support.run_cells("1", flags=flags + ["--no-cache-venv"], env=environment, cwd=str(tmp_path))
    assert done.status == 2 and done.error_code == "invalid", done


@with_uv_alone
def test_an_interpreter_by_its_version(tmp_path, wheels, environment):
    version = "%d.%d" % sys.version_info[:2]
    folder = os.path.dirname(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    environment["PATH"] = environment["PATH"] + os.pathsep + folder
    code = "import sys\n'%d.%d' % sys.version_info[:2]"
    flags = ["--base", str(tmp_path), "--wheel-dir", wheels]

    def run(code, *more):
        return support.run_cells(code, python="", flags=[*flags, "--timeout", "100", *more], env=environment,
                                 deadline=INSTALL_SECONDS)

    assert support.run_cells(code, python="", flags=["--python-version", version], env=environment).result["value"] == version
    assert run(code, "--python-version", version).result["value"] == version
    done = support.workcell("deps", "add", "wc-alpha", *flags, "--python-version", version, env=environment,
                            deadline=INSTALL_SECONDS)
    assert done.status == 0, done
    done = run("import wc_alpha\nwc_alpha.__file__", "--python-version", version)
    assert "/lib/python%s/site-packages/" % version in done.result["value"], done
    for given, word, message in (("3.97", "python_unusable", "python3.97"), ("3", "invalid", "major.minor"),
                                 (" ", "invalid", "empty")):
        done = run("1", "--python-version", given)
        assert done.status == support.EXIT[word] and done.error_code == word and message in done.error_message, done
    done = support.run_cells("1", flags=["--python-version", version], env=environment)
    assert done.status == 2 and "--python-version" in done.error_message, done


# ---- what installers say -----------------------------------------------------------------------------------


@pytest.fixture
def patient(tmp_path):
    """A uv that says a word and goes on when the file `go` is there; its last line is the end of an install."""
    go = tmp_path / "go"
    spaces.make_script(tmp_path / "bin" / "uv", """\
        import os, subprocess, sys, time
        if sys.argv[1] == "venv":
            sys.exit(subprocess.call([%r, "-m", "venv", "--without-pip", sys.argv[-1]]))
        print("working on it", flush=True)
        while not os.path.exists(%r):
            time.sleep(0.01)
        print("done with \\x1b[31mit\\x07", file=sys.stderr)
        sys.exit(3)
        """ % (getattr(sys, "_base_executable", sys.executable), str(go)))
    environment = support.host_environment(XDG_CACHE_HOME=str(tmp_path / "cache"),
                                           PATH="%s%s%s" % (tmp_path / "bin", os.pathsep, path_without_uv()))
    return go, environment


def test_progress_is_seen_in_the_cell_while_it_waits(drive, tmp_path, patient):
    go, environment = patient
    driver = drive("--base", tmp_path / "base", env=environment)
    driver.start("print('one')\ntry:\n    deps.add('x')\nexcept DepsError:\n    print('two')")
    driver.next_event(lambda event: event.get("stream") == "stderr" and "working on it\n" in event["data"])
    go.write_text("")
    result = driver.answer()
    assert result["error"] is None and result["stdout"] == "one\ntwo\n", result
    assert "working on it\ndone with" in result["stderr"], result
    assert result["text"].index("one\n") < result["text"].index("working") < result["text"].index("two\n"), result


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_progress_is_seen_on_the_command_line_while_it_waits(tmp_path, patient, bare_python, flags):
    go, environment = patient
    process = support.popen([support.BIN, "deps", "add", "x", "--base", str(tmp_path / "base"), "--python", bare_python]
                            + flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    with process:
        assert process.stderr.readline() == b"creating an environment with uv\n"
        assert process.stderr.readline() == b"working on it\n"
        assert process.poll() is None
        go.write_text("")
        out, err = process.communicate(timeout=support.DEADLINE)
    assert b"done with \\x1b[31mit\\x07\n" in err and b"\x1b" not in err, "nothing steers the terminal: %r" % err
    assert err.endswith(b"workcell: install_failed: cannot install x: uv ended with status 3:\ndone with \\x1b[31mit\\x07\n")
    assert (len(out.splitlines()) == 1 and b'"install_failed"' in out) if flags else out == b"", out


def test_a_terminal_shows_that_the_installer_works(tmp_path, patient, bare_python):
    go, environment = patient
    with support.Terminal("deps", "add", "x", "--base", tmp_path / "base", "--python", bare_python, env=environment) as shown:
        shown.expect("^working on it$")
        shown.expect(r"installing packages: \d\.\d s")
        go.write_text("")
        shown.wait_end()
        assert re.search(r"workcell: \S*install_failed", shown.plain.split("\r")[-1].replace("\n", " ")), repr(shown.seen)


def test_progress_can_be_left_out(tmp_path, patient, bare_python):
    go, environment = patient
    go.write_text("")
    done = support.workcell("deps", "add", "x", "--quiet", "--base", tmp_path / "base", "--python", bare_python,
                            env=environment)
    assert done.err.startswith("workcell: install_failed: "), done


def test_an_installer_that_takes_too_long(tmp_path, patient, bare_python):
    environment = patient[1]
    done = support.workcell("deps", "add", "x", "--install-timeout", "5", "--base", tmp_path / "base", "--python",
                            bare_python, env=environment)
    assert done.error_code == "install_failed" and "and was stopped" in done.error_message, done


# ---- several at once ---------------------------------------------------------------------------------------


@with_uv_alone
def test_several_sessions_add_at_once(open_driver, tmp_path):
    drivers = [open_driver(tmp_path) for _ in range(3)]
    for driver, package in zip(drivers, ("wc-alpha==1.0", "wc-beta", "wc-alpha==1.0")):
        driver.start("list(map(list, deps.add(%r)))" % package)
    for driver in drivers:
        result = driver.answer(INSTALL_SECONDS)
        assert result["error"] is None and result["value"][2] == [], result
    assert requirements(tmp_path) == ["wc-alpha==1.0", "wc-beta"]
    drivers[0].reset()
    assert drivers[0].value("import wc_alpha, wc_beta\nwc_alpha.__version__") == "1.0"


# ---- the command line --------------------------------------------------------------------------------------


@with_uv_alone
def test_the_command_line(tmp_path, wheels, environment, bare_python):
    flags = ["--base", tmp_path, "--wheel-dir", wheels, "--python", bare_python]

    def deps(*args):
        return support.workcell("deps", *args, *flags, env=environment, deadline=INSTALL_SECONDS)

    assert (deps("list").out, deps("list", "--json").out) == ("", "[]\n")
    done = deps("add", "wc-alpha==1.0", "wc-beta")
    assert done.status == 0 and "installed  wc-alpha==1.0\n" in done.out and "wc-beta" in done.out, done
    assert deps("list").out == "wc-alpha==1.0\nwc-beta\n"
    assert deps("list", "--json").objects == [["wc-alpha==1.0", "wc-beta"]]
    done = support.run_cells("import wc_beta\nwc_beta.wc_alpha.__version__", flags=["--base", str(tmp_path)],
                             env=environment)
    assert done.result["value"] == "1.0", done
    done = deps("add", "wc-does-not-exist")
    assert done.status == support.EXIT["install_failed"] and done.error_code == "install_failed", done
    assert "wc-does-not-exist" in done.error_message
    done = deps("add", "--", "-e foo")
    assert done.status == 2 and done.error_code == "invalid", done
    assert deps("rm", "wc-beta").status == 0 and deps("list").out == "wc-alpha==1.0\n"
    done = deps("rm", "wc-beta")
    assert done.status == support.EXIT["not_found"] and done.error_code == "not_found", done
    done = deps("sync", "--json")
    assert done.status == 0 and done.objects[0]["already_present"] == ["wc-alpha==1.0"], done
