"""Attacks by packages: what a sandboxed session has installed must not run, write or decide anything on the host.

Each test has a session in a sandbox install a hostile wheel (or name one), then does what people and their programs do next:
another deps call, a sync, `workcell deps`, a session that is trusted. A mark outside of the sandbox tells whether code got out.
"""
import base64
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import socket
import stat
import tarfile
import threading
import zipfile

import pytest

import spaces
import support
from support import INSTALL_SECONDS, find_uv, slow, slow_error

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # everybody may read it


def wheel(folder, name, files, version="1.0", metadata="", record=None, links=()):
    """A wheel with exactly these files; `record` replaces what RECORD says of them."""
    module = name.replace("-", "_")
    info = "%s-%s.dist-info" % (module, version)
    files = {**{path.replace("INFO", info).replace("DATA", info[:-9] + "data"): text for path, text in files.items()},
             info + "/METADATA": "Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s" % (name, version, metadata),
             info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    if record is None:
        record = "".join("%s,sha256=%s,%d\n" % (path, base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(
            b"=").decode(), len(text.encode())) for path, text in files.items())
    files[info + "/RECORD"] = record + info + "/RECORD,,\n"
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, "%s-%s-py3-none-any.whl" % (module, version)), "w", zipfile.ZIP_DEFLATED) as made:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = ((stat.S_IFLNK | 0o777) if path in links or path.replace(info, "INFO") in links else 0o755) << 16
            made.writestr(entry, text)


class Project:
    """A storage, a workspace, wheels, and a mark that only code outside of the sandbox can make."""

    def __init__(self, folder, installer, uid=None):
        self.folder, self.installer, self.uid = str(folder), installer, uid
        self.base, self.work, self.wheels, self.cache, self.victim = (
            os.path.join(self.folder, name) for name in ("base", "work", "wheels", "cache", "victim"))
        for each in (self.base, self.work, self.wheels, self.cache, self.victim):
            os.makedirs(each)
            if uid is not None:
                os.chown(each, uid, uid)
        self.mark = os.path.join(self.victim, "mark")
        self.precious = os.path.join(self.victim, "precious")
        with open(self.precious, "w") as file:
            file.write("precious")
        if uid is not None:
            os.chown(self.precious, uid, uid)
        path = os.pathsep.join(each for each in ("/usr/local/bin", "/usr/bin", "/bin") if not os.path.exists(os.path.join(each, "uv")))
        if installer == "uv":
            programs = os.path.join(self.folder, "bin")
            os.mkdir(programs)
            shutil.copy(find_uv(), programs)
            path = programs + os.pathsep + path
        self.env = dict(support.host_environment(XDG_CACHE_HOME=self.cache, PATH=path, HOME=self.folder, WORKCELL_SECRET="hunter2",
                                                 UV_PUBLISH_TOKEN="hunter2"))
        self.drivers = []
        wheel(self.wheels, "wc-good", {"wc_good.py": "who = 'good'\n"})
        wheel(self.wheels, "wc-other", {"wc_other.py": ""})

    def become(self):
        if self.uid is not None:
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)

    def session(self, *flags, executor="sandbox", base=None):
        driver = support.Driver("--base", base or self.base, "--wheel-dir", self.wheels, "--timeout", "200", *flags, executor=executor,
                                python=PYTHON, cwd=self.work, env=self.env, preexec_fn=self.become)
        self.drivers.append(driver)
        return driver

    def person(self, *words):
        """The host's own person at the command line."""
        return support.workcell(*words, "--base", self.base, "--wheel-dir", self.wheels, "--python", PYTHON, env=self.env, cwd=self.work,
                                preexec_fn=self.become, deadline=INSTALL_SECONDS)

    def payload(self):
        return "import os\ntry:\n    open(%r, 'w').close()\nexcept OSError:\n    pass\n" % self.mark

    def book(self):
        with open(os.path.join(self.base, "requirements-sandbox.json"), encoding="utf-8") as file:
            return json.load(file)

    def environments(self):
        folder = os.path.join(self.cache, "workcell", "sandbox")
        return [os.path.join(folder, each, "env") for each in os.listdir(folder)]

    def venv(self):
        env, = self.environments()
        found, = (os.path.join(env, name) for name in os.listdir(env) if not name.startswith("."))
        return found

    def close(self):
        for driver in self.drivers:
            if driver.process.poll() is None:
                driver.close()


@pytest.fixture
def make_project(tmp_path):
    made = []

    def make(installer="uv", uid=None):
        folder = support.temporary_folder("workcell-deps-")
        os.chmod(folder, 0o755)
        made.append(Project(folder, installer, uid))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def project(make_project):
    return make_project()


def what_people_do_next(project, driver=None, broken=False):
    """Everything that touches packages after the attack; then nothing of it has run outside. broken: the sandbox's own packages may be."""
    driver = driver or project.session()
    for call in ("list()", "add('wc-other')", "sync()", "remove('wc-other')"):
        result = driver.run("deps.%s; None" % call, deadline=INSTALL_SECONDS)
        assert broken or result["error"] is None, result
    driver.close()
    done = project.person("deps", "list")
    assert done.status == 0 and done.out == "", done
    for words in (("deps", "add", "wc-good"), ("deps", "sync"), ("deps", "rm", "wc-good")):
        done = project.person(*words)
        assert done.status == 0, done
    trusted = project.session(executor="subprocess")
    slow(trusted, "deps.sync(); import sys; None")
    trusted.close()
    project.session("--sync-deps").close()
    assert not os.path.exists(project.mark), "code of a package ran on the host"
    assert open(project.precious).read() == "precious"


# ---- C2: code that comes with a package ------------------------------------------------------------------------


def one_line(source):
    return "import os; exec(%r)\n" % source


HOSTILE = {
    "pth": lambda p: {"wc_evil.py": "", "zz_evil.pth": one_line(p)},
    "sitecustomize": lambda p: {"wc_evil.py": "", "sitecustomize.py": p},
    "usercustomize": lambda p: {"wc_evil.py": "", "usercustomize.py": p},
    "module-pip": lambda p: {"wc_evil.py": "", "pip/__init__.py": p, "pip/__main__.py": p + "raise SystemExit(0)\n"},
    "module-keyring": lambda p: {"wc_evil.py": "", "keyring/__init__.py": p, "keyring/errors.py": p},
    "module-setuptools": lambda p: {"wc_evil.py": "", "setuptools/__init__.py": p, "pkg_resources/__init__.py": p},
    "distutils-hack": lambda p: {"wc_evil.py": "", "_distutils_hack/__init__.py": p,
                                 "distutils-precedence.pth": "import _distutils_hack\n"},
    "pyvenv.cfg": lambda p: {"wc_evil.py": "", "DATA/data/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n",
                             "zz_evil.pth": one_line(p)},
    "bin-python": lambda p: {"wc_evil.py": "", "DATA/data/bin/python": "#!%s\n%s" % (PYTHON, p)},
    "script-python3": lambda p: {"wc_evil.py": "", "DATA/scripts/python3": "#!%s\n%s" % (PYTHON, p)},
    "stdlib": lambda p: {"wc_evil.py": "", "DATA/data/lib/python3.11/os.py": p, "encodings/__init__.py": p},
    "importlib-metadata": lambda p: {"wc_evil.py": "", "importlib_metadata.py": p, "csv.py": p, "json/__init__.py": p},
}


@pytest.mark.parametrize("attack", sorted(HOSTILE))
def test_nothing_of_a_wheel_runs_on_the_host_with_uv(project, attack):
    """A wheel brings files that interpreters load by themselves, or stands in for the interpreter."""
    wheel(project.wheels, "wc-evil", HOSTILE[attack](project.payload()))
    driver = project.session()
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)  # uv itself refuses some
    what_people_do_next(project, driver)


@pytest.mark.parametrize("attack", ["pth", "module-pip", "bin-python"])
def test_nothing_of_a_wheel_runs_on_the_host_with_pip(make_project, attack):
    """The same with pip, which runs in the environment itself."""
    project = make_project("pip")
    wheel(project.wheels, "wc-evil", HOSTILE[attack](project.payload()))
    driver = project.session()
    slow(driver, "deps.add('wc-evil'); None")
    driver.run("deps.add('wc-good')", deadline=INSTALL_SECONDS)  # hostile code may have broken its own environment
    assert project.person("deps", "add", "wc-good").status == 0
    assert not os.path.exists(project.mark), "code of a package ran on the host"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("attack", ["pth", "bin-python"])
def test_nothing_of_a_wheel_runs_as_an_ordinary_user_either(make_project, attack):
    """The same where the host is an ordinary user."""
    project = make_project(uid=NOBODY)
    wheel(project.wheels, "wc-evil", HOSTILE[attack](project.payload()))
    driver = project.session()
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)
    what_people_do_next(project, driver)


def test_the_attacks_do_run_where_they_may(project):
    """Else the tests above would prove nothing: in the sandbox itself the package's code is run."""
    wheel(project.wheels, "wc-evil", HOSTILE["pth"]("import sys; sys.evil = True"))
    driver = project.session()
    slow(driver, "deps.add('wc-evil'); None")
    assert driver.value("import sys\nsys.evil") is True


def test_over_the_network_a_client_gets_no_further(make_project):
    """One token with the scope `run`: a package of its choice, then whatever it wants run on the host."""
    import serving

    project = make_project()
    wheel(project.wheels, "wc-evil", HOSTILE["pth"](project.payload()))
    server = serving.Server("--executor", "sandbox", "--storage", project.base, "--wheel-dir", project.wheels, pool=0,
                            env={"XDG_CACHE_HOME": project.cache, "PATH": project.env["PATH"]}.items())
    try:
        for package in ("wc-evil", "wc-good"):
            answer = server.ask("POST", "/api/deps/add", {"package": package})
            assert answer.status == 200, answer
        assert server.ask("POST", "/api/deps/sync", {}).status == 200
        assert sorted(server.ask("GET", "/api/deps").json) == ["wc-evil", "wc-good"]
    finally:
        server.close()
    assert not os.path.exists(project.mark)
    assert project.person("deps", "list").out == "", "the host's own list is left alone"


# ---- what a package's code does in its own environment ---------------------------------------------------------

# Runs whenever pip does, in its sandbox: each line tries one thing and tells in the environment itself what came of it.
SPY = """
import json, os, socket, sys
venv = sys.prefix
project = os.path.dirname(os.path.dirname(venv))
said = {"env": dict(os.environ), "wrote": [], "reached": []}
for at in [project + "/notes/.workcell-seal", project + "/notes/x"] + %(files)r:
    try:
        open(at, "a").close()
        said["wrote"].append(at)
    except OSError:
        pass
for at in [project + "/lock", project + "/x"]:  # folders above its own are there in name only
    try:
        open(at, "w").write("evil")
    except OSError:
        pass
for port in %(ports)r:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        said["reached"].append(port)
    except OSError:
        pass
said["home"] = os.path.exists(%(victim)r)
open(venv + "/said", "w").write(json.dumps(said))
"""


@pytest.fixture(scope="module")
def spied():
    """What a package's code found out while an installer ran it; None: it was never run."""
    folder = support.temporary_folder("workcell-deps-")
    os.chmod(folder, 0o755)
    project = Project(folder, "pip")
    with socket.create_server(("127.0.0.1", 0)) as service:
        spy = SPY % {"files": [project.mark, project.precious, os.path.join(project.base, "requirements.txt"),
                               os.path.join(project.wheels, "evil.whl"), os.path.join(project.cache, "workcell", "venvs", "x")],
                     "ports": [service.getsockname()[1]], "victim": project.precious}
        wheel(project.wheels, "wc-evil", {"wc_evil.py": "", "zz_evil.pth": one_line(spy)})
        driver = project.session()
        slow(driver, "deps.add('wc-evil'); deps.add('wc-good'); None")
        said = driver.value("import os, wc_good\n"
                            "said = os.path.dirname(wc_good.__file__) + '/../../../said'\n"
                            "open(said).read() if os.path.exists(said) else None")
    project.close()
    yield project, json.loads(said) if said else None


def test_an_installer_writes_to_its_environment_alone(spied):
    """Code in an installer: the host's notes and lock beside it, requirements.txt, the wheel folder, other environments."""
    project, said = spied
    assert said is not None, "the attack was not run"
    assert said["wrote"] == [] and not said["home"], said
    assert not os.path.exists(project.mark)
    for env in project.environments():
        assert sorted(os.listdir(os.path.dirname(env))) == ["cache", "env", "lock", "notes"]
        assert "x" not in os.listdir(os.path.join(os.path.dirname(env), "notes"))
        assert os.path.getsize(os.path.join(os.path.dirname(env), "lock")) == 0


def test_secrets_of_the_host_do_not_reach_the_installers(spied):
    """A package copies the installer's environment to where the session's code reads it."""
    assert "PATH" in spied[1]["env"] and "hunter2" not in json.dumps(spied[1]["env"]), spied[1]


def test_an_installer_reaches_no_other_service(spied):
    """A package's code, run by an installer, connects to a service of the host."""
    assert spied[1]["reached"] == []


@pytest.mark.parametrize("attack", ["lib", "bin", "site-packages", "venv", "dist-info", "pyvenv.cfg", "lock", "cache"])
def test_links_in_the_environment_lead_nowhere(project, attack):
    """What code in an installer can leave there: links to the host's folders and files, for the host to follow."""
    os.makedirs(os.path.join(project.victim, "python3.11", "site-packages", "wc_stolen-6.6.dist-info"))
    spaces.write_files(project.victim, {"pyvenv.cfg": "home = /usr/bin\n", "bin/precious": "precious"})
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    venv = project.venv()
    place = {"lib": venv + "/lib", "bin": venv + "/bin", "site-packages": venv + "/lib/python3.11/site-packages", "venv": venv,
             "dist-info": venv + "/lib/python3.11/site-packages/wc_good-1.0.dist-info", "pyvenv.cfg": venv + "/pyvenv.cfg",
             "lock": venv + "/.lock", "cache": venv + "/../../cache/venv.lock"}[attack]
    if os.path.lexists(place):
        os.rename(place, place + ".away")
    os.symlink(project.precious if attack in ("pyvenv.cfg", "lock", "cache") else project.victim, place)
    before = sorted(path for path, _, names in os.walk(project.victim) for path in [path] + [os.path.join(path, n) for n in names])
    result = driver.run("[deps.list(), str(deps.sync()), deps.remove('wc-good')]", deadline=INSTALL_SECONDS)
    assert "stolen" not in json.dumps(result), result
    what_people_do_next(project)
    after = sorted(path for path, _, names in os.walk(project.victim) for path in [path] + [os.path.join(path, n) for n in names])
    assert after == before, "the host wrote or removed through a link"


@pytest.mark.parametrize("name", ["x-1.0.dist-info\nwc-other==9", "\x1b[31mx-1.0.dist-info", "wc_other-9.dist-info"])
def test_names_in_the_environment_speak_for_nobody_else(project, name):
    """A folder of packages holds names with line ends and escape sequences, or claims that a package is installed."""
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    venv = project.venv()
    os.mkdir(os.path.join(venv, "lib/python3.11/site-packages", name))
    result = driver.run("str(deps.sync())", deadline=INSTALL_SECONDS)
    assert "\\u001b" not in json.dumps(result), result
    what_people_do_next(project, broken=True)


def test_a_record_that_names_files_of_the_host_removes_none(project):
    """RECORD lists ../../../…: an uninstaller on the host would delete them."""
    up = "../" * 20 + project.precious.lstrip("/")
    wheel(project.wheels, "wc-evil", {"wc_evil.py": ""}, record="wc_evil.py,,\n%s,,\n%s,,\n" % (up, project.precious))
    driver = project.session()
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)
    driver.run("deps.remove('wc-evil')", deadline=INSTALL_SECONDS)
    what_people_do_next(project, driver)


@pytest.mark.parametrize("path", ["../../../../../../../../../../..%s", "..%s", "%s"])
def test_a_wheel_cannot_place_files_outside(project, path):
    """Names in the archive lead out of the environment."""
    wheel(project.wheels, "wc-evil", {"wc_evil.py": "", path % project.mark: "evil"})
    driver = project.session()
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)
    what_people_do_next(project, driver)


def test_links_in_a_wheel_lead_nowhere(project):
    """Entries of the archive are symbolic links to a folder and a file of the host."""
    wheel(project.wheels, "wc-evil", {"wc_evil.py": "", "wc_link": project.victim, "INFO/licenses": project.precious},
          links=("wc_link", "INFO/licenses"))
    driver = project.session()
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)
    what_people_do_next(project, driver)


def test_metadata_of_many_megabytes_is_not_read_into_the_host(make_project):
    """pip's report holds the metadata of packages: the host reads it within limits, and says so."""
    project = make_project("pip")
    wheel(project.wheels, "wc-evil", {"wc_evil.py": ""}, metadata="\n" + "x" * 79 + "\n" + ("y" * 79 + "\n") * 250000)
    problem = slow_error(project.session(), "deps.add('wc-evil')")
    assert problem["type"] == "LimitError" or "read the packages that pip installed" in problem["message"], problem
    assert not os.path.exists(os.path.join(project.base, "requirements-sandbox.json"))


# ---- C3: lists -------------------------------------------------------------------------------------------------


def test_what_code_adds_is_recorded_apart(project):
    """The host's own sync installs what its people configured, not what sandboxed code asked for."""
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    assert driver.value("deps.list()") == ["wc-good"] and not os.path.exists(os.path.join(project.base, "requirements.txt"))
    assert project.book()["packages"] == ["wc-good"]
    assert project.person("deps", "list").out == ""
    done = project.person("deps", "sync")
    assert done.status == 0 and "wc-good" not in done.out, done
    trusted = project.session("--sync-deps", executor="subprocess")
    assert trusted.run("import wc_good")["error"]["type"] == "ModuleNotFoundError", "a trusted session has none of it"
    assert trusted.value("import sys\n[p for p in sys.path if '/sandbox/' in p]") == []


def test_no_runtime_deps_holds_whatever_was_added_before(project):
    """Packages that code added at another time do not come back where it may add none."""
    first = project.session()
    slow(first, "deps.add('wc-good'); None")
    first.close()
    fixed = project.session("--no-runtime-deps", "--sync-deps")
    assert fixed.run("import wc_good")["error"]["type"] == "ModuleNotFoundError"
    assert fixed.value("deps.list()") == []
    assert slow_error(fixed, "deps.add('wc-good')")["type"] == "RuntimeDepsDisabledError"
    assert slow_error(fixed, "deps.remove('wc-good')")["type"] == "RuntimeDepsDisabledError"


def make_sdist(folder, name, mark):
    backend = "open(%r, 'w').close()\ndef build_wheel(*_, **__): raise SystemExit(1)\n" % mark
    with tarfile.open(os.path.join(folder, "%s-1.0.tar.gz" % name), "w:gz") as archive:
        for path, text in (("PKG-INFO", "Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n" % name), ("odd.py", backend),
                           ("setup.py", backend),
                           ("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "odd"\nbackend-path = ["."]\n')):
            member = tarfile.TarInfo("%s-1.0/%s" % (name, path))
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.parametrize("flags", [("--sync-deps",), ("--sync-deps", "--no-runtime-deps")], ids=["runtime", "fixed"])
def test_a_sync_at_the_start_builds_nothing_for_a_sandbox(project, flags):
    """requirements.txt names a source distribution, whose build runs its code: not for a session that is confined."""
    make_sdist(project.wheels, "wc-odd", project.mark)
    spaces.write_files(project.base, {"requirements.txt": "wc-odd\n"})
    done = support.workcell("run", "--executor", "sandbox", "--base", project.base, "--wheel-dir", project.wheels, "--python", PYTHON,
                            *flags, "-e", "1", env=project.env, cwd=project.work, deadline=INSTALL_SECONDS)
    assert done.status == support.EXIT["install_failed"] and done.error_code == "install_failed", done
    assert not os.path.exists(project.mark)


def test_code_cannot_remove_what_the_host_configured(project):
    """deps.remove() of a package in requirements.txt, which other sessions need."""
    assert project.person("deps", "add", "wc-good").status == 0
    driver = project.session("--sync-deps")
    assert driver.value("import wc_good\ndeps.list()") == ["wc-good"]
    problem = slow_error(driver, "deps.remove('wc-good')")
    assert problem["type"] == "RuntimeDepsDisabledError" and "requirements.txt" in problem["message"], problem
    assert project.person("deps", "list").out == "wc-good\n"


@pytest.mark.parametrize("book", [
    {"packages": ["-r /etc/passwd"], "resolved": [], "locked": {}},
    {"packages": [], "resolved": ["x @ file:///etc"], "locked": {}},
    {"packages": ["wc-good"], "resolved": ["wc-good"], "locked": {"wc-good": ["1.0\n--index-url http://evil", "0" * 64]}},
    {"packages": ["wc-good"], "resolved": ["wc-good"], "locked": {"wc-good": ["1.0", "0" * 63 + "\n"]}},
    {"packages": ["wc-good"], "resolved": ["wc-good"], "locked": {"--editable": ["1.0", "0" * 64]}},
    {"packages": {}, "resolved": [], "locked": []}, [], "x",
], ids=range(8))
def test_a_forged_book_is_refused(project, book):
    """requirements-sandbox.json, written by somebody else, with options where names are expected."""
    spaces.write_files(project.base, {"requirements-sandbox.json": json.dumps(book)})
    problem = slow_error(project.session(), "deps.sync()")
    assert "requirements-sandbox.json" in problem["message"] and "damaged" in problem["message"], problem


# ---- other projects --------------------------------------------------------------------------------------------


def test_a_session_sees_and_locks_no_other_project_s_environment(project):
    """Before, all environments of a person could be read, and their locks held for ever."""
    other = project.session(base=os.path.join(project.folder, "base2"))
    slow(other, "deps.add('wc-other'); None")
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    seen = driver.value("""
import os
def below(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return None
cache = %r
import wc_good
mine = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(wc_good.__file__)))))
[below(cache + '/workcell/venvs'), [below(cache + '/workcell/sandbox/' + p) for p in below(cache + '/workcell/sandbox') or []],
 os.path.basename(mine)]""" % project.cache)
    assert seen == [None, [["env"]], "env"], seen
    # What it can open it can lock: nothing that anybody waits for.
    driver.value("""
import fcntl
held = []
for folder, folders, files in os.walk(mine):
    for name in [''] + [n for n in files if not n.endswith('.py')][:20]:
        try:
            held.append(open(os.path.join(folder, name)) if name else os.open(folder, os.O_RDONLY))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
len(held) > 2""")
    fresh = project.session("--install-timeout", "40")
    slow(fresh, "deps.add('wc-other'); None")
    assert driver.run("open(wc_good.__file__, 'a')")["error"]["type"] in ("OSError", "PermissionError")


def test_workspaces_of_a_storage_have_their_own(project):
    """A tenant's package must not be loaded by the code of another tenant."""
    one, two = project.session("--workspace", "one"), project.session("--workspace", "two")
    slow(one, "deps.add('wc-good'); None")
    assert two.run("import wc_good")["error"]["type"] == "ModuleNotFoundError" and two.value("deps.list()") == []


# ---- names -----------------------------------------------------------------------------------------------------

NAMES = ["-r /etc/passwd", "--index-url=http://evil", "-e .", "--", "-", "wc-good -r x", "wc-good --pre", "wc-good\n-r x", "wc-good\0x",
         "wc-good @ file:///etc/passwd", "git+https://x/y", "file:///etc", "/etc", "./x", "../x", "x.whl/..", "wc-good;import os",
         "wc-good; python_version>'3'", "$(touch x)", "`x`", "a|b", "a&&b", "a>b", "wc-good[x]@y", "wc-good[--pre]", "wc-good[]", "[x]", "",
         " ", "\u0430lpha", "wc\u2010good", "wc-good\u00a0==1", "wc\u200bgood", "\uff57\uff43", "wc-good==1.0#x", "wc-good==1 2",
         "wc-good==${HOME}", "%2e%2e/x", "wc-good\\x", "'x'", "\"x\"", "x" * 300, "wc--good", ".x", "x.", "_x", "wc-good==", "==1"]


def test_names_that_are_more_than_names_are_refused(project):
    """Command injection through package names: options, addresses, paths, control characters, lookalikes."""
    driver = project.session()
    answers = driver.value("""
found = []
for name in %r:
    try:
        deps.add(name)
        found.append(name)
    except ValueError:
        pass
    except Exception as e:
        found.append((name, type(e).__name__))
found""" % (NAMES,))
    assert answers == [], answers
    assert not os.path.exists(os.path.join(project.base, "requirements-sandbox.json"))


@pytest.mark.parametrize("name", ["-r x", "wc-good\n--index-url=http://evil", "--config-settings=x"])
def test_names_are_refused_over_http_too(project, name):
    """The same at the server's own calls."""
    import serving

    server = serving.Server("--executor", "sandbox", "--storage", project.base, "--wheel-dir", project.wheels, pool=0,
                            env={"XDG_CACHE_HOME": project.cache, "PATH": project.env["PATH"]}.items())
    try:
        answer = server.ask("POST", "/api/deps/add", {"package": name})
        assert answer.status == 400 and answer.code == "invalid", answer
    finally:
        server.close()


# ---- locked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_other_bytes_of_the_same_version_are_refused(make_project, installer):
    """The index, or who writes to the wheel folder, changes a file after it was first installed."""
    project = make_project(installer)
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    version, digest = project.book()["locked"]["wc-good"]
    with open(os.path.join(project.wheels, "wc_good-1.0-py3-none-any.whl"), "rb") as file:
        good = file.read()
    assert version == "1.0" and digest == hashlib.sha256(good).hexdigest()
    driver.close()
    shutil.rmtree(project.cache)
    wheel(project.wheels, "wc-good", {"wc_good.py": "who = 'evil'\n"})
    problem = slow_error(project.session(), "deps.sync()")
    assert problem["type"] == "DepsError" and "exactly the files" in problem["message"], problem
    shutil.rmtree(project.cache)
    with open(os.path.join(project.wheels, "wc_good-1.0-py3-none-any.whl"), "wb") as file:
        file.write(good)
    again = project.session("--sync-deps")
    assert again.value("import wc_good\nwc_good.who") == "good"


def test_an_add_does_not_change_what_is_locked(project):
    """The file of a dependency is exchanged, and another package that needs it is added."""
    wheel(project.wheels, "wc-needs", {"wc_needs.py": ""}, metadata="Requires-Dist: wc-good\n")
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    locked = project.book()["locked"]["wc-good"]
    wheel(project.wheels, "wc-good", {"wc_good.py": "who = 'evil'\n"})
    wheel(project.wheels, "wc-good", {"wc_good.py": "who = 'evil'\n"}, version="2.0")
    driver.run("deps.add('wc-needs')", deadline=INSTALL_SECONDS)
    assert project.book()["locked"]["wc-good"] == locked and driver.value("import wc_good\nwc_good.who") == "good"


def test_a_newer_version_does_not_come_by_itself(project):
    """A hostile release after the first install: a fresh environment has what was locked."""
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    driver.close()
    shutil.rmtree(project.cache)
    wheel(project.wheels, "wc-good", {"wc_good.py": "who = 'evil'\n"}, version="2.0")
    assert project.session("--sync-deps").value("import wc_good\nwc_good.who") == "good"


# ---- the index -------------------------------------------------------------------------------------------------


class Index:
    """An index on the loopback. `pages` and `files` are what it serves, and may change while it runs; `asked` is what was asked for."""

    def __init__(self, project, hashes=True):
        self.hashes, self.pages, self.files, self.asked, self.lie = hashes, {}, {}, [], None
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.command == "GET":
                    index.asked.append(self.path)
                data = index.answer(re.sub("^http://[^/]*", "", self.path))
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Type", "text/html" if "/simple/" in self.path else "application/octet-stream")
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data or b"")

            do_HEAD = do_GET

            def log_message(self, *args):
                pass

        for name in os.listdir(project.wheels):
            self.put(os.path.join(project.wheels, name))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        self.url = "http://127.0.0.1:%d/simple" % self.server.server_address[1]

    def put(self, path):
        name, package = os.path.basename(path), os.path.basename(path).split("-")[0].replace("_", "-")
        with open(path, "rb") as file:
            self.files[name] = file.read()
        self.pages.setdefault(package, {})[name] = hashlib.sha256(self.files[name]).hexdigest()

    def answer(self, path):
        """lie(name, times): the bytes of a file, the times-th time it is asked for."""
        name = path.strip("/").split("/")[-1]
        if name.endswith(".whl"):
            return self.lie(name, sum(each.endswith(name) for each in self.asked)) if self.lie else self.files.get(name)
        page = self.pages.get(name)
        return None if page is None else "".join('<a href="/files/%s%s">%s</a>' % (
            file, "#sha256=" + digest if self.hashes else "", file) for file, digest in page.items()).encode()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def make_index():
    made = []

    def make(project, **options):
        made.append(Index(project, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def open_on(project, index, *flags):
    driver = support.Driver("--base", project.base, "--index-url", index.url, "--timeout", "200", *flags, executor="sandbox", python=PYTHON,
                            cwd=project.work, env=project.env, preexec_fn=project.become)
    project.drivers.append(driver)
    return driver


def digest_of(project, file="wc_good-1.0-py3-none-any.whl"):
    with open(os.path.join(project.wheels, file), "rb") as wheel_file:
        return hashlib.sha256(wheel_file.read()).hexdigest()


@pytest.mark.parametrize("installer", ["uv", "pip"])
@pytest.mark.parametrize("hashes", [True, False], ids=["hashes", "no-hashes"])
def test_packages_come_from_an_index_through_the_proxy(make_project, make_index, installer, hashes):
    """Confined installers reach the index that is configured, and what is locked is its file, whether it says its hash or not."""
    project = make_project(installer)
    wheel(project.wheels, "wc-needs", {"wc_needs.py": ""}, metadata="Requires-Dist: wc-good>=1\n")
    index = make_index(project, hashes=hashes)
    driver = open_on(project, index)
    slow(driver, "deps.add('wc-needs'); None")
    slow(driver, "deps.add('wc-other'); None")
    assert driver.value("import wc_good, wc_other, wc_needs\nwc_good.who") == "good" and index.asked
    assert project.book()["locked"] == {name: ["1.0", digest_of(project, file)] for name, file in (
        ("wc-good", "wc_good-1.0-py3-none-any.whl"), ("wc-needs", "wc_needs-1.0-py3-none-any.whl"),
        ("wc-other", "wc_other-1.0-py3-none-any.whl"))}
    assert project.book()["resolved"] == project.book()["packages"] == ["wc-needs", "wc-other"]


def evil_bytes(folder):
    wheel(folder, "wc-good", {"wc_good.py": "who = 'evil'\n"})
    with open(os.path.join(folder, "wc_good-1.0-py3-none-any.whl"), "rb") as file:
        return file.read()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_an_index_that_serves_other_bytes_than_it_says_is_refused(make_project, make_index, tmp_path, installer):
    """The page names the hash of one file, and another is sent: at once, or from the second request on."""
    project = make_project(installer)
    index, evil = make_index(project), evil_bytes(str(tmp_path))
    index.lie = lambda name, times: evil
    driver = open_on(project, index)
    problem = slow_error(driver, "deps.add('wc-good')")
    assert problem["type"] == "DepsError", problem
    assert not os.path.exists(os.path.join(project.base, "requirements-sandbox.json"))
    assert driver.run("import wc_good")["error"]["type"] == "ModuleNotFoundError"


@pytest.mark.parametrize("hashes", [True, False], ids=["hashes", "no-hashes"])
def test_an_index_that_changes_its_mind_between_two_requests_installs_what_is_locked(project, make_index, tmp_path, hashes):
    """One file is sent to whoever chooses versions, another to whoever installs: what is installed is what was locked, or nothing."""
    index, evil = make_index(project, hashes=hashes), evil_bytes(str(tmp_path))
    for honest in range(1, 4):
        index.asked.clear()
        index.lie = lambda name, times: index.files[name] if times <= honest else evil
        driver = open_on(project, index)
        result = driver.run("deps.add('wc-good'); import wc_good; wc_good.who", deadline=INSTALL_SECONDS)
        if result["error"] is None:
            there = evil if result["value"] == "evil" else index.files["wc_good-1.0-py3-none-any.whl"]
            assert project.book()["locked"]["wc-good"] == ["1.0", hashlib.sha256(there).hexdigest()]
            assert not hashes or result["value"] == "good"
            slow(driver, "deps.remove('wc-good')")
        driver.close()
        shutil.rmtree(project.cache)


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_an_index_that_exchanges_a_file_and_its_hash_is_refused(make_project, make_index, tmp_path, installer):
    """Page and file agree, but are no longer what was locked: for a fresh environment, and for a package that needs it."""
    project = make_project(installer)
    wheel(project.wheels, "wc-needs", {"wc_needs.py": ""}, metadata="Requires-Dist: wc-good\n")
    index = make_index(project)
    driver = open_on(project, index)
    slow(driver, "deps.add('wc-good'); None")
    locked = project.book()["locked"]
    evil_bytes(str(tmp_path))
    index.put(str(tmp_path / "wc_good-1.0-py3-none-any.whl"))
    driver.run("deps.add('wc-needs')", deadline=INSTALL_SECONDS)
    assert project.book()["locked"]["wc-good"] == locked["wc-good"] and driver.value("import wc_good\nwc_good.who") == "good"
    driver.close()
    shutil.rmtree(project.cache)
    problem = slow_error(open_on(project, index), "deps.sync()")
    assert problem["type"] == "DepsError" and "exactly the files" in problem["message"], problem


def test_a_file_that_is_exchanged_while_uv_works_is_not_taken_for_the_installed_one(project):
    """The host hashes wheels of the folder itself: only those that nobody has touched since uv began."""
    path = os.path.join(project.wheels, "wc_good-1.0-py3-none-any.whl")
    stop = threading.Event()

    def touch():
        while not stop.is_set():
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        driver = project.session()
        result = driver.run("deps.add('wc-good'); None", deadline=INSTALL_SECONDS)
    finally:
        stop.set()
        thread.join()
    assert result["error"] is None and project.book()["locked"]["wc-good"][1:] == [digest_of(project)], result
    # uv pip compile, and an install of what is there already.
    assert "~ wc-good==1.0" in result["stderr"], result


# ---- what installers leave for the host to read ----------------------------------------------------------------

ENTRY = '[[package]]\nname = "%s"\nversion = "1.0"\nsource = { registry = "x" }\nwheels = [{ hash = "sha256:%s" }]\n'
FORGED = {
    "uv.lock": "version = 1\n" + ENTRY % ("--index-url", "0" * 64) + ENTRY % ("wc-other", "--pre"),
    "report.json": json.dumps({"install": [{"metadata": {"name": "wc-other --pre", "version": "1.0 --hash"}, "download_info": {
        "archive_info": {"hashes": {"sha256": "0" * 64}}}}]}),
}
FORGED["lie"] = FORGED["uv.lock"].replace("--index-url", "wc-good").replace("0" * 64, "0" * 63 + "\u00e9")


def check_book(project):
    """Nothing but names, versions and hashes has got into it, and each package is locked by what it is."""
    book = os.path.join(project.base, "requirements-sandbox.json")
    if not os.path.exists(book):
        return
    assert set(project.book()["locked"]) <= {"wc-evil", "wc-good"}
    for name, (version, *hashes) in project.book()["locked"].items():
        assert version == "1.0" and hashes == [digest_of(project, name.replace("-", "_") + "-1.0-py3-none-any.whl")]


# What is put in the place of the record, by a shell that stands beside it; and what becomes of the call then.
LEFT = {
    "link": ("ln -s {precious} uv.lock", "read the packages that uv installed"),
    "link-to-forged": ("ln -s {forged} uv.lock", "read the packages that uv installed"),
    "pipe": ("mkfifo uv.lock", None),  # no pipes with names in a sandbox; uv is asked again
    "folder": ("mkdir uv.lock", "read the packages that uv installed"),
    "none": (":", "read the packages that uv installed"),
    "huge": ("truncate -s 1G uv.lock", "read the packages that uv installed"),
    "empty": (": >uv.lock", None),  # then uv is asked again, in another way
    "noise": ("head -c 100000 /dev/urandom >uv.lock", None),
    "options": ("cp {forged} uv.lock", "is not in the list of locked packages"),
    "lie": ("cp {lie} uv.lock", "cannot be locked"),
}


@pytest.mark.parametrize("left", sorted(LEFT))
def test_what_stands_in_the_place_of_uv_s_record_is_not_believed(project, left):
    """Code that runs beside uv replaces what the host will read: links, pipes, gigabytes, options in the place of names."""
    action, message = LEFT[left]
    uv = os.path.join(project.folder, "bin", "uv")
    real, forged, lie = (os.path.join(project.wheels, name) for name in ("real-uv", "forged", "lie"))  # a folder that installers see
    os.rename(uv, real)
    script = '#!/bin/sh\n%s "$@" || exit $?\nif [ "$1" = sync ]; then cd "$TMPDIR" && rm uv.lock && %s; fi\n' % (
        real, action.format(precious=project.precious, forged=forged, lie=lie))
    for path, text in ((forged, FORGED["uv.lock"]), (lie, FORGED["lie"]), (uv, script)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    os.chmod(uv, 0o755)
    result = project.session().run("deps.add('wc-good')", deadline=INSTALL_SECONDS)
    assert (result["error"] is None) == (message is None), result
    assert message is None or message in result["error"]["message"], result
    assert "precious" not in json.dumps(result["error"]) and open(project.precious).read() == "precious"
    check_book(project)
    os.rename(real, uv)
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    assert driver.value("import wc_good\nwc_good.who") == "good" and "wc-good" in project.book()["locked"]
    check_book(project)


# Runs in pip once its package is there: a process of its own puts something in the place of what pip writes.
RACER = """
import os, sys
place = os.environ.get("TMPDIR")
if place and not os.fork():
    open(sys.prefix + "/ran", "w").close()
    while True:
        try:
            temp = place + "/evil"
            %s
            os.rename(temp, place + "/report.json")
        except OSError:
            pass
"""


@pytest.mark.parametrize("left", ["os.symlink(%(precious)r, temp)", "open(temp, 'wb').truncate(1 << 30)",
                                  "open(temp, 'w').write(%(forged)r)"], ids=["link", "huge", "options"])
def test_what_a_package_puts_in_the_place_of_pip_s_report_is_not_believed(make_project, left):
    """The same with pip, in which a package's code does run."""
    project = make_project("pip")
    wheel(project.wheels, "wc-evil", {"wc_evil.py": "", "zz_evil.pth": one_line(
        RACER % (left % {"precious": project.precious, "forged": FORGED["report.json"]}))})
    driver = project.session()
    slow(driver, "deps.add('wc-evil'); None")
    result = driver.run("deps.add('wc-good')", deadline=INSTALL_SECONDS)
    assert os.path.exists(os.path.join(project.venv(), "ran")), "the attack was not run"
    assert "precious" not in json.dumps(result["error"]) and open(project.precious).read() == "precious"
    check_book(project)
    assert project.person("deps", "list").out == ""


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_an_environment_of_one_session_is_locked_alike(make_project, installer):
    """--no-cache-venv: one call after another, and nothing of it is left."""
    project = make_project(installer)
    driver = project.session("--no-cache-venv")
    slow(driver, "deps.add('wc-good'); deps.add('wc-other'); None")
    assert driver.value("import wc_good, wc_other\nwc_good.who") == "good"
    assert project.book()["locked"] == {name: ["1.0", digest_of(project, name.replace("-", "_") + "-1.0-py3-none-any.whl")]
                                        for name in ("wc-good", "wc-other")}
    driver.close()
    assert project.environments() == []


def test_a_cache_that_a_package_poisoned_does_not_change_what_is_locked(project):
    """A package's code, in an installer, rewrites what uv keeps of another package: what comes of it is not what was locked."""
    poison = """
import os
for folder, _, names in os.walk(os.environ.get("UV_CACHE_DIR", "/nonexistent")):
    for name in names:
        if name == "wc_good.py":
            open(os.path.join(folder, name), "w").write("who = 'evil'\\n")
"""
    driver = project.session()
    slow(driver, "deps.add('wc-good'); None")
    locked = project.book()["locked"]["wc-good"]
    wheel(project.wheels, "wc-evil", {"wc_evil.py": "", "zz_evil.pth": one_line(poison)})
    driver.run("deps.add('wc-evil')", deadline=INSTALL_SECONDS)
    driver.run("deps.add('wc-other')", deadline=INSTALL_SECONDS)
    assert project.book()["locked"]["wc-good"] == locked
    # Another project, and the host, have caches of their own.
    other = project.session(base=os.path.join(project.folder, "base2"))
    assert slow(other, "deps.add('wc-good'); import wc_good; wc_good.who") == "good"
    assert project.person("deps", "add", "wc-good").status == 0
    trusted = project.session(executor="subprocess")
    assert trusted.value("import wc_good\nwc_good.who") == "good"


def test_what_installers_lock_is_not_shown_to_kernels(project):
    """uv locks files where it keeps what is temporary; whoever can open a file can hold its lock for ever."""
    driver, other = project.session(), project.session()
    slow(driver, "deps.add('wc-good'); None")
    wheel(project.wheels, "wc-slow", {"wc_slow.py": ""})
    other.value("""
import os, threading
env, seen, stop = %r, set(), False
def watch():
    while not stop:
        seen.update(os.listdir(env))
thread = threading.Thread(target=watch)
thread.start()""" % project.environments()[0])
    slow(driver, "deps.add('wc-slow'); deps.add('wc-other'); None")
    seen = other.value("stop = True\nthread.join()\nsorted(seen)")
    assert len(seen) == 1 and not seen[0].startswith("."), seen
