"""Attacks on the host through where things lie: code that can write to what the host trusts later runs outside.

Each as root and as an ordinary user. What is planted here is what sandboxed code could have left in a folder that it can write to.
"""
import ctypes
import json
import os
import subprocess
import sys
import threading

import pytest

import support

NOBODY = 65534
PYTHON = "/usr/bin/python3"
USERS = [NOBODY, 0] if os.getuid() == 0 else [os.getuid()]
TOOL = "name: evil\ncommand: touch\nrecipes: {run: {preset: {}}}\n"


class Place:
    """Folders of one user: a workspace, a base folder beside it, a home that is not a real one."""

    def __init__(self, uid):
        self.uid = uid
        self.top = support.temporary_folder("workcell-places-")
        os.chmod(self.top, 0o755)
        for name in ("work", "base", "base/tools", "home", "victim", "settings"):
            os.mkdir(self.at(name))
        self.env = support.host_environment(HOME=self.at("home"))
        self.own()

    def at(self, *names):
        return os.path.join(self.top, *names)

    def own(self):
        """All of it belongs to the user."""
        if self.uid == os.getuid():
            return
        for folder, _, files in os.walk(self.top):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                os.lchown(path, self.uid, self.uid)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        with open(self.at(name), "w") as file:
            file.write(text)
        self.own()
        return self.at(name)

    def become(self):
        if self.uid != os.getuid():
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)

    def workcell(self, *argv, cwd="work", env=None, stdin=None):
        return subprocess.run([support.BIN, *map(str, argv)], cwd=self.at(cwd), env=env or self.env, input=stdin or "", text=True,
                              capture_output=True, preexec_fn=self.become, timeout=support.DEADLINE)

    def run(self, *flags, code="1 + 1", cwd="work", env=None, python=PYTHON):
        return self.workcell("run", "--executor", "sandbox", "--json", "--python", python, *flags, "-e", code, cwd=cwd, env=env)

    def refused(self, *flags, words=(), **more):
        done = self.run(*flags, **more)
        assert done.returncode == support.EXIT["invalid"] and '"invalid"' in done.stdout + done.stderr, done
        for word in words:
            assert word in done.stdout + done.stderr, done

    def value(self, *flags, **more):
        done = self.run(*flags, **more)
        assert done.returncode == 0, done
        return json.loads(done.stdout.splitlines()[-1])["value"]

    def driver(self, *flags, cwd="work"):
        return support.Driver(*flags, python=PYTHON, executor="sandbox", cwd=self.at(cwd), env=self.env, preexec_fn=self.become)


@pytest.fixture(params=USERS, ids=lambda uid: "root" if uid == 0 else "user")
def place(request):
    return Place(request.param)


# ---- the storage (C1) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [".", "base", "deep/er/base", "none-yet"])
def test_storage_in_the_workspace_is_refused(place, base):
    """`--base .`: the code replaces artifacts/ by a link to tools/, saves a tool's definition as an artifact, and calls it."""
    if base != "none-yet":
        os.makedirs(place.at("work", base, "tools"), exist_ok=True)
    place.own()
    place.refused("--base", base, words=["is inside the writable workspace", "--workspace-mode ro"])


def test_storage_alone_in_the_workspace_is_refused(place):
    """The same with --storage, where no tools folder gives it away."""
    place.refused("--storage", "st", words=["the storage folder", "writable workspace"])


def test_storage_that_a_link_of_the_workspace_leads_to_is_refused(place):
    """The storage is outside, but the code can make the link that leads to it lead elsewhere."""
    os.symlink(place.at("base"), place.at("work", "link"))
    place.refused("--base", place.at("work", "link"))


def test_storage_behind_a_link_to_a_link_in_the_workspace_is_refused(place):
    """Outside at both ends, with a link of the workspace in the middle."""
    os.symlink(place.at("base"), place.at("work", "inner"))
    os.symlink(place.at("work", "inner"), place.at("outer"))
    place.refused("--base", place.at("outer"))


def test_storage_in_a_workspace_that_is_known_by_a_link_is_refused(place):
    """--cwd is a link to the folder that holds the storage: names differ, the folder is the same."""
    os.symlink(place.at("base"), place.at("link"))
    place.refused("--cwd", place.at("link"), "--base", place.at("base"))


@pytest.mark.parametrize("part", ["artifacts", "workflows", "skills", "deps", "workspaces", ".cache", "tools"])
def test_a_workspace_in_a_part_of_the_storage_is_refused(place, part):
    """What the code writes there is a tool, a workflow, or another workspace's artifact."""
    os.makedirs(place.at("base", part, "mine"), exist_ok=True)
    place.own()
    place.refused("--cwd", place.at("base", part, "mine"), "--base", place.at("base"), words=["host trusts"])


def test_a_workspace_beside_the_parts_of_the_storage_is_fine(place):
    """The other way round nothing is lost: the code cannot touch what lies beside its folder."""
    os.mkdir(place.at("base", "work"))
    place.own()
    assert place.value("--cwd", place.at("base", "work"), "--base", place.at("base"), code="artifacts.save('a', [1]); artifacts.load('a')") == [1]


def test_a_writable_folder_of_the_policy_with_the_storage_in_it_is_refused(place):
    """write: is as good as a workspace."""
    policy = place.write("settings/p.yaml", "filesystem:\n  write: [%s]\n" % place.at("base"))
    place.refused("--sandbox-policy", policy, "--base", place.at("base"), words=["line 2"])


@pytest.mark.parametrize("part,method", [
    ("artifacts", ["artifacts", "list"]), ("workflows", ["workflows", "list"]), ("skills", ["workflows", "list"]),
    ("deps", ["deps", "list"]), ("workspaces", ["artifacts", "list", "--workspace", "w"]),
])
def test_a_link_in_place_of_a_folder_of_the_storage_is_not_followed(place, part, method):
    """Left by code that could write to the storage once (a container's, an older version's): host commands must not follow it."""
    place.write("victim/secret.py", "def run(): pass\n")
    place.write("victim/requirements.txt", "evil\n")
    os.symlink(place.at("victim"), place.at("base", part))
    done = place.workcell(*method, "--base", place.at("base"))
    assert done.returncode == support.EXIT["invalid"] and "symbolic link" in done.stderr and "secret" not in done.stdout, done
    assert sorted(os.listdir(place.at("victim"))) == ["requirements.txt", "secret.py"]


def test_an_artifact_behind_a_link_is_neither_read_nor_written(place):
    """A link inside of artifacts/, to a folder and to a file."""
    place.write("victim/file", "secret")
    place.write("base/artifacts/x", "x")
    os.symlink(place.at("victim"), place.at("base", "artifacts", "sub"))
    os.symlink(place.at("victim", "file"), place.at("base", "artifacts", "one"))
    code = ("found = []\nfor name in ('sub/file', 'one', '../victim/file'):\n    for do in (lambda: artifacts.load(name), "
            "lambda: artifacts.save(name, 'evil')):\n        try:\n            found.append(str(do()))\n        except Exception as e:\n"
            "            found.append(type(e).__name__)\nfound")
    found = place.value("--base", place.at("base"), code=code)
    assert "secret" not in str(found) and open(place.at("victim", "file")).read() == "secret", found
    assert sorted(os.listdir(place.at("victim"))) == ["file"]


def test_a_race_for_a_link_in_the_storage_is_not_won(place):
    """A thread exchanges artifacts/ and a link to another folder all the time, while artifacts are saved."""
    os.makedirs(place.at("base", "artifacts"))
    os.symlink(place.at("victim"), place.at("base", "swap"))
    place.own()
    libc, stop = ctypes.CDLL(None), threading.Event()
    a, b = place.at("base", "artifacts").encode(), place.at("base", "swap").encode()

    def exchange():
        while not stop.is_set():
            libc.syscall(316, -100, a, -100, b, 2)  # renameat2(RENAME_EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        code = ("done = [0, 0]\nfor i in range(300):\n    try:\n        artifacts.save('n%d' % i, 'evil')\n        done[0] += 1\n"
                "    except Exception:\n        done[1] += 1\ndone")
        done = place.value("--base", place.at("base"), code=code)
    finally:
        stop.set()
        thread.join()
    assert os.listdir(place.at("victim")) == [] and sum(done) == 300, done


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
def test_another_mount_in_the_storage_is_not_entered_as_a_link(place):
    """A mount in place of artifacts/ leads elsewhere as a link does: in a mount namespace of the test's own."""
    os.mkdir(place.at("base", "artifacts"))
    place.write("victim/secret", "secret")
    done = subprocess.run(["unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" && exec "$3" artifacts list --base "$4"', "sh",
                           place.at("victim"), place.at("base", "artifacts"), support.BIN, place.at("base")],
                          env=place.env, capture_output=True, text=True, timeout=support.DEADLINE)
    assert done.returncode == support.EXIT["invalid"] and "another mount" in done.stderr, done


# ---- packages and interpreters (C3, C5b) -------------------------------------------------------------------------------


def test_a_requirements_file_of_the_code_is_refused_before_anything_is_installed(place):
    """The code wrote requirements.txt, and the next start installs what it names: the installer must not even be started."""
    place.write("work/requirements.txt", "evil-package-of-the-code\n")
    env = dict(place.env, XDG_CACHE_HOME=place.at("cache"))
    place.refused("--base", ".", "--sync-deps", env=env)
    assert not os.path.exists(place.at("cache", "workcell", "venvs"))


@pytest.mark.parametrize("flag", ["--venv-dir", "--wheel-dir", "--tools"])
def test_folders_that_the_host_installs_from_or_runs_are_refused_in_the_workspace(place, flag):
    """A folder between the workspace and the venv is renamed, and another venv/bin/python takes its place."""
    os.makedirs(place.at("work", "a", "b"))
    place.own()
    place.refused("--base", place.at("base"), flag, place.at("work", "a", "b"), words=["writable workspace"])


def test_a_cache_in_the_workspace_is_refused(place):
    """Venvs lie under $XDG_CACHE_HOME; who can write there is the interpreter."""
    place.refused("--base", place.at("base"), env=dict(place.env, XDG_CACHE_HOME=place.at("work", "cache")), words=["cache"])


@pytest.mark.parametrize("where", ["work/venv", "work/a/b/venv"])
def test_an_interpreter_in_the_workspace_is_refused(place, where):
    """bin/python, pyvenv.cfg and site-packages are the code's there: the next zygote runs them unconfined (CVE-2026-48124)."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place.at(where)], check=True)
    place.own()
    place.refused(python=place.at(where, "bin", "python"), words=["interpreter", "writable workspace"])


def test_a_link_to_an_interpreter_in_the_workspace_is_refused(place):
    """The code makes it a link to a program of its own."""
    os.symlink(PYTHON, place.at("work", "python"))
    place.refused(python=place.at("work", "python"), words=["interpreter"])


def test_a_workspace_in_an_interpreter_s_folder_is_refused(place):
    """A .pth file there is loaded by every start of that Python."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place.at("venv")], check=True)
    place.own()
    site = [folder for folder, _, _ in os.walk(place.at("venv")) if folder.endswith("site-packages")][0]
    place.refused("--cwd", site, python=place.at("venv", "bin", "python"), words=["interpreter"])


@pytest.mark.parametrize("lines", ["{work}/src\n", "{work}/src\nimport evil_module\n", "import evil_finder\n"])
def test_a_pth_that_leads_into_the_workspace_is_refused_before_it_is_loaded(place, lines):
    """A project in the workspace that is installed for editing: its modules are the code's, and a zygote would load them."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place.at("venv")], check=True)
    site = [folder for folder, _, _ in os.walk(place.at("venv")) if folder.endswith("site-packages")][0]
    mark = "open(%r, 'w').close()\n" % place.at("victim", "mark")
    place.write("work/src/evil_module.py", mark)
    place.write("work/src/sitecustomize.py", mark)
    with open(os.path.join(site, "x.pth"), "w") as file:
        file.write(lines.format(work=place.at("work")))
    with open(os.path.join(site, "evil_finder.py"), "w") as file:
        file.write("import sys\nMAPPING = {'evil_module': %r}\nsys.path.append(%r)\nimport evil_module\n"
                   % (place.at("work", "src"), place.at("work", "src")))
    place.own()
    place.refused(python=place.at("venv", "bin", "python"), words=["interpreter"])
    assert os.listdir(place.at("victim")) == []


def test_a_zygote_is_isolated_from_home_environment_and_folder(place):
    """sitecustomize and usercustomize on PYTHONPATH, in the current folder and in the home; PYTHONSTARTUP; a .pth of the user's."""
    mark = "open(%r, 'a').write(__file__)\n" % place.at("victim", "mark")
    version = "python%d.%d" % sys.version_info[:2]
    for folder in ("work", "settings", "home/.local/lib/%s/site-packages" % version):
        for name in ("sitecustomize.py", "usercustomize.py"):
            place.write(folder + "/" + name, mark)
    place.write("home/.local/lib/%s/site-packages/x.pth" % version, "import usercustomize\n")
    env = dict(place.env, PYTHONPATH=place.at("settings"), PYTHONSTARTUP=place.at("settings", "sitecustomize.py"),
               PYTHONHOME="", PYTHONUSERBASE=place.at("home", ".local"))
    flags = place.value(code="import sys, site\n[sys.flags.isolated, sys.flags.no_user_site, bool(site.ENABLE_USER_SITE)]", env=env)
    assert flags == [1, 1, False] and os.listdir(place.at("victim")) == [], flags


def test_an_interpreter_in_a_writable_folder_of_the_policy_is_refused(place):
    """The workspace is read-only, but write: has the venv."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", place.at("work", "venv")], check=True)
    place.own()
    policy = place.write("settings/p.yaml", "workspace: ro\nfilesystem:\n  write: [%s]\n" % place.at("work", "venv"))
    place.refused("--sandbox-policy", policy, "--cwd", place.at("base"), python=place.at("work", "venv", "bin", "python"),
                  words=["interpreter"])


# ---- settings of the host (C4) ------------------------------------------------------------------------------------------

STOLEN = ["PATH", "HOME", "XDG_CACHE_HOME", "PIP_INDEX_URL", "UV_INDEX_URL", "HTTPS_PROXY", "DOCKER_HOST", "LD_PRELOAD",
          "PYTHONPATH", "WORKCELL_MCP_TOKEN"]


def serve_mcp(place, *flags, calls=(), env=None):
    """Asks `workcell mcp` for these calls; answers (texts, stderr)."""
    lines = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {},
              "clientInfo": {"name": "t", "version": "1"}}}, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    process = subprocess.Popen([support.BIN, "mcp", "--python", PYTHON, *map(str, flags)], cwd=place.top, env=env or place.env,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=place.become)
    texts = []
    try:
        for line in lines:
            process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        for number, code in enumerate(calls, 1):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                                            "params": {"name": "run_code", "arguments": {"code": code}}}) + "\n")
            process.stdin.flush()
            while True:
                answer = json.loads(process.stdout.readline() or '{"id": %d, "result": "ended"}' % number)
                if answer.get("id") == number:
                    texts.append(json.dumps(answer))
                    break
    finally:
        process.stdin.close()
        err = process.stderr.read()
        process.wait(support.DEADLINE)
        process.stdout.close()
        process.stderr.close()
    return texts, err


@pytest.mark.parametrize("executor", ["sandbox", "subprocess"])
def test_an_env_file_of_the_workspace_is_not_read(place, executor):
    """The code wrote .env; at the next `workcell mcp --root` it would be the host's environment."""
    place.write("work/.env", "".join("%s=/stolen\n" % name for name in STOLEN) + "KERNEL_ENV_STOLEN=stolen\n")
    texts, err = serve_mcp(place, "--root", place.at("work"), "--executor", executor,
                           calls=["import os\n[v for v in os.environ.values() if 'stolen' in v]"])
    assert "stolen" not in texts[0] and "is not read" in err and "--env-file" in err, (texts, err)


@pytest.mark.parametrize("name", ["work/settings.env", "work/.env"])
def test_a_named_env_file_in_the_workspace_is_refused(place, name):
    """Named, but where the code can write it."""
    path = place.write(name, "A=1\n")
    place.refused("--env-file", path, words=["writable workspace"])


def test_an_env_file_feeds_tools_and_the_code_and_nothing_else(place):
    """Named and outside: even then PATH, proxies, tokens and the like are not the host's."""
    tool = ("name: show\ncommand: env\nenv: {FROM_FILE: \"${SECRET}\"}\nrecipes: {all: {preset: {}}}\n")
    place.write("base/tools/show.yaml", tool)
    path = place.write("settings/env", "".join("%s=/stolen\n" % name for name in STOLEN) + "SECRET=told\nKERNEL_ENV_WORD=said\n")
    texts, err = serve_mcp(place, "--cwd", place.at("work"), "--base", place.at("base"), "--env-file", path, "--no-sync-deps",
                           calls=["import os\nos.environ['WORD']", "tools.show.all()"])
    assert "said" in texts[0], (texts, err)
    assert "stolen" not in texts[1], texts[1]
    done = place.workcell("mcp", "--listen", "127.0.0.1:0", "--env-file", path)
    assert done.returncode == support.EXIT["invalid"] and "needs a token" in done.stderr, done


def test_the_first_start_with_a_root_works_and_keeps_its_storage_outside(place):
    """`workcell mcp --root DIR --executor sandbox`: nothing that the host trusts lies in DIR, and no folder has to be made by hand."""
    root = place.at("fresh", "root")
    texts, err = serve_mcp(place, "--root", root, "--executor", "sandbox",
                           calls=["artifacts.save('a', 'x'); import os; sorted(os.listdir('.'))", "open('made', 'w').write('x')"])
    assert ".workcell" not in texts[0] and '"isError": true' not in texts[0] and os.path.exists(os.path.join(root, "made")), (texts, err)
    kept = place.at("home", ".local", "state", "workcell", "roots") + root + "/.workcell"
    assert os.path.exists(kept + "/artifacts/a") and os.path.isdir(kept + "/tools") and not os.path.exists(root + "/.workcell")


# ---- homes and programs (C5) --------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="needs a home of its own in /etc/passwd")
@pytest.mark.parametrize("folder", ["/root", "/home", "/", "/root/.config", "/root/.ssh", "/root/.local", "/root/.local/lib", "/root/bin"])
def test_a_home_is_refused_as_workspace_and_as_writable_folder(tmp_path, folder):
    """.bashrc, .ssh, ~/.local/lib/.../x.pth: the person's next shell or Python runs them."""
    place = Place(0)
    policy = place.write("settings/p.yaml", "filesystem:\n  write: [%s]\n" % folder)
    made = not os.path.exists(folder)
    if made:
        os.makedirs(folder)
    try:
        place.refused("--cwd", folder)
        if folder != "/":
            place.refused("--sandbox-policy", policy)
    finally:
        if made:
            os.removedirs(folder) if not os.listdir(folder) else None


@pytest.mark.parametrize("folder", ["home", "."])
def test_the_home_of_the_environment_is_refused(place, folder):
    """$HOME is not that of /etc/passwd: what is started next reads its settings there all the same."""
    place.refused("--cwd", place.at(folder), env=dict(place.env, PATH="/usr/bin:/bin"))


@pytest.mark.parametrize("folder", ["base/bin", "base"])
def test_a_folder_on_path_is_refused(place, folder):
    """A program of the code with the name of one that the host looks for."""
    os.mkdir(place.at("base", "bin"))
    place.own()
    place.refused("--cwd", place.at(folder), env=dict(place.env, PATH=place.at("base", "bin") + ":/usr/bin:/bin"))


@pytest.mark.skipif(os.getuid() != 0, reason="root's folders")
@pytest.mark.parametrize("folder", [each for each in ("/etc", "/etc/cron.d", "/var/spool/cron", "/usr/local/bin", "/usr/local/lib", "/boot",
                                                      "/var/lib", "/opt", "/var") if os.path.isdir(each)])
def test_folders_of_the_system_are_refused(folder):
    """cron, boot, package scripts: written now, run later as root."""
    place = Place(0)
    place.refused("--cwd", folder)
    place.refused("--sandbox-policy", place.write("settings/p.yaml", "filesystem:\n  write: [%s]\n" % folder))


def test_the_program_itself_is_refused_as_workspace(place):
    """The workspace holds the very program that is running, its spawner and the kernel's files."""
    place.refused("--cwd", os.path.dirname(support.BIN))


def test_settings_that_judge_the_code_are_refused_in_the_workspace(place):
    """The policies and the audit log: the code would be its own judge at the next start."""
    sandbox, calls = place.write("work/p.yaml", "limits: {}\n"), place.write("work/calls.yaml", "default: allow\n")
    place.refused("--sandbox-policy", sandbox, words=["policy file"])
    place.refused("--policy", calls, words=["writable workspace"])
    place.refused("--audit", place.at("work", "a.jsonl"), words=["audit log"])


# ---- what is hidden (H1) -----------------------------------------------------------------------------------------------

READ = "try:\n    r = open(%r).read()\nexcept OSError as e:\n    r = type(e).__name__\nr"


@pytest.mark.parametrize("what", ["hide", "read"])
def test_hidden_and_read_only_files_in_a_writable_workspace_are_refused(place, what):
    """A mount over them vanishes when the host renames a file to that name: an editor that saves .env, a git checkout."""
    path = place.write("work/.env", "secret")
    policy = place.write("settings/p.yaml", "filesystem:\n  %s: [%s]\n" % (what, path))
    place.refused("--sandbox-policy", policy, words=["workspace: ro", "line 2"])


@pytest.mark.parametrize("name", [".env", "deep/er/.env", "not/there/yet"])
def test_a_hidden_file_stays_hidden_when_the_host_renames_over_it(place, name):
    """Before, over and after: the session lives while the host's editor saves."""
    path = place.at("work", name)
    if "yet" not in name:
        place.write("work/" + name, "secret")
    place.write("work/beside", "seen")
    os.symlink("beside", place.at("work", "link"))
    policy = place.write("settings/p.yaml", "workspace: ro\nfilesystem:\n  hide: [%s]\n" % path)
    with place.driver("--sandbox-policy", policy) as driver:
        assert driver.value(READ % path) == "FileNotFoundError"
        place.write("work/" + name + ".new", "secret2")
        os.replace(path + ".new", path)
        assert driver.value(READ % path) == "FileNotFoundError"
        os.unlink(path)
        place.write("work/" + name, "secret3")
        assert driver.value(READ % path) == "FileNotFoundError"
        assert driver.value(READ % place.at("work", "beside")) == "seen" and driver.value(READ % place.at("work", "link")) == "seen"
        assert driver.value("try:\n    open('new', 'w')\n    r = 'written'\nexcept OSError as e:\n    r = 'refused'\nr") == "refused"


def test_a_hidden_folder_stays_hidden_when_the_host_replaces_it(place):
    """git checkout of another branch: the folder is a new one."""
    place.write("work/secrets/key", "secret")
    policy = place.write("settings/p.yaml", "workspace: ro\nfilesystem:\n  hide: [%s]\n" % place.at("work", "secrets"))
    with place.driver("--sandbox-policy", policy) as driver:
        assert driver.value(READ % place.at("work", "secrets", "key")) == "FileNotFoundError"
        os.rename(place.at("work", "secrets"), place.at("old"))
        place.write("work/secrets/key", "secret2")
        assert driver.value(READ % place.at("work", "secrets", "key")) == "FileNotFoundError"


def test_a_hidden_link_hides_what_it_leads_to(place):
    """Two names of one secret, both in the workspace."""
    place.write("work/real", "secret")
    os.symlink("real", place.at("work", ".env"))
    policy = place.write("settings/p.yaml", "workspace: ro\nfilesystem:\n  hide: [%s]\n" % place.at("work", ".env"))
    with place.driver("--sandbox-policy", policy) as driver:
        assert driver.value(READ % place.at("work", ".env")) == "FileNotFoundError"
        assert driver.value(READ % place.at("work", "real")) == "FileNotFoundError"


def test_a_hidden_file_among_too_many_is_refused(place):
    """What cannot be hidden for good is not hidden by half."""
    for number in range(600):
        with open(place.at("work", "f%d" % number), "w"):
            pass
    path = place.write("work/.env", "secret")
    policy = place.write("settings/p.yaml", "workspace: ro\nfilesystem:\n  hide: [%s]\n" % path)
    done = place.run("--sandbox-policy", policy)
    assert done.returncode == support.EXIT["limit"] and "hidden" in done.stderr, done


# ---- the host writes for the code (CVE-2026-39861) -------------------------------------------------------------------------


def test_an_images_folder_that_is_a_link_of_the_code_is_refused(place):
    """The code made images/ a link; the host would write files of the code's to where it leads."""
    os.symlink(place.at("victim"), place.at("work", "images"))
    place.refused("--images-dir", "images", words=["link"])
    assert os.listdir(place.at("victim")) == []


def test_an_images_folder_that_becomes_a_link_is_not_followed(place):
    """The same while the session lives."""
    png = "b'\\x89PNG\\r\\n\\x1a\\n' + b'x' * 100"
    code = ("import os\nos.rmdir('images') if os.path.isdir('images') else None\nos.symlink(%r, 'images')\n"
            "class P:\n    def _repr_png_(self): return %s\nP()" % (place.at("victim"), png))
    place.run("--images-dir", "images", code=code)
    assert os.listdir(place.at("victim")) == []


def test_generated_modules_are_not_written_through_a_link(place):
    """mcptools/ made a link by the code: `workcell gen mcp` and register_mcp_server would write elsewhere."""
    os.symlink(place.at("victim"), place.at("work", "mcptools"))
    schema = json.dumps({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    done = place.workcell("gen", "mcp", "--name", "demo", "--schema", "-", stdin=schema)
    assert done.returncode == support.EXIT["invalid"] and "symbolic link" in done.stderr, done
    assert os.listdir(place.at("victim")) == []
