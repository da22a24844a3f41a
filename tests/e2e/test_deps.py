"""Deps: packages that the code of a project can import; installed for real, from wheels made here."""
import http.server
import os
import threading

import pytest

import spaces
import support

INSTALL_SECONDS = 120


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        spaces.make_wheel(folder, "wc-alpha", version, "def who():\n    return 'alpha'\n")
    spaces.make_wheel(folder, "wc-beta", "1.0", "import wc_alpha\n", requires=["wc-alpha>=1"])
    spaces.make_wheel(folder, "wc-needy", "1.0", requires=["wc-does-not-exist"])
    return str(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for the module: making a venv takes seconds."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def environment(cache):
    return support.host_environment(XDG_CACHE_HOME=cache)


@pytest.fixture
def open_driver(drive, wheels, environment):
    def make(base, *flags, **options):
        return drive("--base", base, "--wheel-dir", wheels, "--timeout", "100", *flags, env=environment, **options)
    return make


def slow(driver, code):
    result = driver.run(code, deadline=INSTALL_SECONDS)
    assert result["error"] is None, result
    return result["value"]


def slow_error(driver, code):
    result = driver.run(code, deadline=INSTALL_SECONDS)
    assert result["error"] is not None, result
    return result["error"]


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


def test_defect_14_a_failed_install_is_told_and_not_recorded(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    for package in ("wc-does-not-exist", "wc-alpha==9.9", "wc-needy"):
        problem = slow_error(driver, "deps.add(%r)" % package)
        assert problem["type"] == "DepsError", problem
        assert package.split("=")[0] in problem["message"] or "wc-does-not-exist" in problem["message"], problem
    assert driver.value("deps.list()") == [] and requirements(tmp_path) == []
    assert driver.run("import wc_needy")["error"]["type"] == "ModuleNotFoundError"


def test_defect_25_projects_do_not_share_what_they_install(open_driver, tmp_path):
    one, two = open_driver(tmp_path / "one"), open_driver(tmp_path / "two")
    slow(one, "deps.add('wc-alpha==1.0')\nNone")
    assert two.run("import wc_alpha")["error"]["type"] == "ModuleNotFoundError"
    slow(two, "deps.add('wc-alpha==2.0')\nNone")
    assert [d.value("import wc_alpha\nwc_alpha.__version__") for d in (one, two)] == ["1.0", "2.0"]
    one.reset()
    assert one.value("import wc_alpha\nwc_alpha.__version__") == "1.0"


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


def test_lines_that_are_refused_are_not_installed(open_driver, tmp_path):
    spaces.write_files(tmp_path, {"requirements.txt": "-e .\nwc-alpha\nhttps://example.org/x.whl\n"
                                                      "wc-beta; python_version>'3'\n"})
    driver = open_driver(tmp_path)
    assert driver.value("deps.list()") == ["wc-alpha"]


REFUSED = [
    "", "  ", "a\nb", "a\0b", "x" * 257, "a @ https://example.org/a.whl", "a; python_version > '3'", "-e foo",
    "--index-url=x", "-r file", "git+https://example.org/a", "https://example.org/a.whl", "./local", "/abs/path",
    "a(b)", "a|b", "a&b", "a`b`", "$(id)", "requests>", "requests>=", "a==", "\u00e9", "a b"]


def test_specifiers_that_are_refused(open_driver, tmp_path):
    driver = open_driver(tmp_path)
    for package in REFUSED:
        problem = slow_error(driver, "deps.add(%r)" % package)
        assert "Invalid package" in problem["message"], (package, problem)
        assert driver.value("try:\n    deps.add(%r)\nexcept ValueError as error:\n"
                            "    caught = isinstance(error, DepsError)\ncaught" % package) is True, package
    assert requirements(tmp_path) == []


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


def test_an_index_of_ones_own(drive, tmp_path, wheels, environment):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **options):
            super().__init__(*args, directory=str(tmp_path / "index"), **options)

        def log_message(self, *args):
            pass

    name = "wc_alpha-2.0-py3-none-any.whl"
    spaces.write_files(tmp_path, {"index/simple/wc-alpha/index.html": '<a href="../../%s">%s</a>' % (name, name)})
    os.link(os.path.join(wheels, name), str(tmp_path / "index" / name))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        driver = drive("--base", tmp_path / "base", "--timeout", "100", "--index-url",
                       "http://127.0.0.1:%d/simple" % server.server_address[1], env=environment)
        slow(driver, "deps.add('wc-alpha')\nNone")
        assert driver.value("import wc_alpha\nwc_alpha.__version__") == "2.0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
