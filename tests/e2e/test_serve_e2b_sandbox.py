"""What clients of E2B get in the executor sandbox: the folder /home/user, charts and tables as data, networks, watchers, snapshots."""
import asyncio
import base64
import http.client
import json
import os
import re
import signal
import struct
import threading
import time

import pytest

import serving
import support

e2b = pytest.importorskip("e2b", reason="scripts/test-requirements.txt has it")
from e2b import FileNotFoundException, FilesystemEventType, TimeoutException  # noqa: E402
from e2b.exceptions import RateLimitException, SandboxException  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

# fresh and options are fixtures, of this module's server.
from test_serve_e2b import ALICE, ALL, BOB, READER, TOKENS, ask, fresh, options, options_for  # noqa: E402, F401

WRITE, CREATE = FilesystemEventType.WRITE, FilesystemEventType.CREATE


@pytest.fixture(scope="module")
def server():
    # With layers: snapshots need them.
    with serving.shared("--executor", "sandbox", "--e2b", "--workspace-mode", "cow", "--network", "full", "--preload", "matplotlib",
                        python=support.PYTHON, tokens=TOKENS) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(options):
    made = Sandbox.create(timeout=600, **options)
    yield made
    made.kill()


# ---- the folder ----

def test_code_commands_and_files_agree_on_the_folder(sandbox):
    assert sandbox.run_code("import os; os.getcwd(), os.environ['HOME'], os.path.expanduser('~')").text == repr(("/home/user",) * 3)
    assert sandbox.commands.run("pwd; echo $HOME").stdout == "/home/user\n/home/user\n"
    sandbox.run_code("open('/home/user/one.txt', 'w').write('1')")
    assert sandbox.files.read("/home/user/one.txt") == "1" == sandbox.commands.run("cat ~/one.txt").stdout
    sandbox.files.write("/home/user/sub/two.txt", "2")
    assert sandbox.commands.run("cat two.txt", cwd="/home/user/sub").stdout == "2"
    other = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; os.getcwd()", context=other).text == "/tmp"
    sandbox.remove_code_context(other)
    assert sandbox.run_code("__import__('os').listdir('/home')").text == "['user']"


def test_a_fork_has_the_folder_too(fresh):
    fresh.run_code("open('f', 'w').write('before')")
    fork, = fresh.fork(count=1)
    fork.run_code("open('f', 'w').write('changed')")
    assert fork.run_code("import os; (os.getcwd(), open('/home/user/f').read())").text == repr(("/home/user", "changed"))
    assert fresh.files.read("f") == "before"
    fork.kill()


def test_protected_names_are_protected_under_both_names():
    """Without a layer the files are the host's: neither name of the folder lets code write what a later program would run."""
    made = serving.Server("--executor", "sandbox", "--e2b", "--workspace-mode", "rw", tokens=TOKENS)
    with Sandbox.create(**options_for(made)) as confined:
        real, = confined.run_code("[line.split()[4] for line in open('/proc/self/mountinfo') if line.split()[4].startswith('/tmp/')]").results
        for folder in ("/home/user", eval(real.text)[-1]):
            done = confined.run_code("open(%r, 'w')" % (folder + "/.envrc"))
            assert done.error and done.error.name == "PermissionError", (folder, done)
            assert confined.run_code("open(%r, 'w').write('x')" % (folder + "/fine")).text == "1"
        with pytest.raises(SandboxException, match="--workspace-mode cow"):
            confined.create_snapshot()
        confined.files.write("/home/user/sub/two.txt", "2")
        context = confined.create_code_context(cwd="/home/user/sub")
        assert confined.run_code("import os; (open('two.txt').read(), os.getcwd())", context=context).text == repr(("2", "/home/user/sub"))
    made.close()


# ---- /tmp ----

def test_the_sandboxs_own_tmp_is_reached_too(sandbox, fresh, server, tmp_path):
    written = sandbox.files.write("/tmp/own/script.py", "print(6 * 7)")
    assert (written.name, written.path) == ("script.py", "/tmp/own/script.py")
    assert sandbox.commands.run("sh -c 'cat /tmp/own/script.py; ls -ld /tmp/own | cut -c1'").stdout == "print(6 * 7)d\n"
    assert sandbox.run_code("exec(open('/tmp/own/script.py').read())").logs.stdout == ["42\n"]
    # It is the code's, as if the code had written it.
    assert sandbox.run_code("import os\nos.rename('/tmp/own/script.py', '/tmp/own/moved'); open('/tmp/own/moved', 'a').write('  # more')\n"
                            "os.chmod('/tmp/own', 0o700); os.stat('/tmp/own').st_uid == os.getuid()").text == "True"
    assert sandbox.files.read("/tmp/own/moved") == "print(6 * 7)  # more"
    info = sandbox.files.get_info("/tmp/own/moved")
    assert (info.path, info.size, info.permissions) == ("/tmp/own/moved", 20, "-rw-r--r--")
    assert [one.path for one in sandbox.files.list("/tmp/own", depth=2)] == ["/tmp/own/moved"]
    assert "own" in [one.name for one in sandbox.files.list("/tmp")] and sandbox.files.get_info("/tmp").name == "tmp"
    # Several files at once, in both places.
    paths = ["/tmp/own/a", "b", "/tmp/own/c", "/home/user/d"]
    assert [one.path for one in sandbox.files.write_files([{"path": path, "data": path} for path in paths])] == [
        "/tmp/own/a", "/home/user/b", "/tmp/own/c", "/home/user/d"]
    assert [sandbox.files.read(path) for path in paths] == paths
    handle = sandbox.files.watch_dir("/tmp/own", include_entry=True)
    assert sandbox.files.make_dir("/tmp/own/sub") is True and sandbox.files.make_dir("/tmp/own/sub") is False
    sandbox.files.rename("/tmp/own/a", "/tmp/own/sub/a")
    events = handle.get_new_events()
    assert names(events) == [("sub", "create"), ("a", "rename")] and events[0].entry.path == "/tmp/own/sub"
    handle.stop()
    for one, other in (("/tmp/own/c", "c"), ("b", "/tmp/b")):
        with pytest.raises(e2b.InvalidArgumentException, match="another file system"):
            sandbox.files.rename(one, other)
    url = sandbox.download_url("/tmp/own/c")
    assert server.ask("GET", url[url.index("/files"):], token=None).body == b"/tmp/own/c"
    # Each has its own, and it is not this machine's.
    assert not fresh.files.exists("/tmp/own") and not os.path.exists("/tmp/own")
    (tmp_path / "secret").write_text("secret")
    assert not sandbox.files.exists(str(tmp_path / "secret"))
    sandbox.files.remove("/tmp/own")
    assert not sandbox.files.exists("/tmp/own/c") and sandbox.run_code("os.path.exists('/tmp/own')").text == "False"


def test_tmp_leads_nowhere_else(fresh):
    made = fresh.run_code("import os, socket\nos.makedirs('race'); os.symlink('/', '/tmp/root'); os.symlink('/home/user', '/tmp/home')\n"
                   "os.symlink('/etc/passwd', '/tmp/file'); open('inside', 'w').write('i')\n"
                   "bound = socket.socket(socket.AF_UNIX); bound.bind('/tmp/socket')")
    assert not made.error, made
    for path in ("/tmp/root/etc/passwd", "/tmp/home/inside", "/tmp/file", "/tmp/socket", "/tmp/../etc/passwd", "/tmp/root", "/tmpx/y"):
        for reach in (fresh.files.read, lambda p: fresh.files.write(p + "/new", "x"), lambda p: fresh.files.watch_dir(p)):
            with pytest.raises((SandboxException, FileNotFoundException)):
                reach(path)
    # Its workspace is mounted below it here: that is another way to the same files, and is not followed either.
    mounted = fresh.run_code("[l.split()[4] for l in open('/proc/self/mountinfo') if l.split()[4].startswith('/tmp/')]").results[0].text
    for path in eval(mounted):
        assert fresh.files.list(path) is not None  # by its name it is the sandbox's folder
    # What a link may be swapped for while it is looked up.
    fresh.run_code("os.chdir('/tmp')\ntarget = '/home/user'" + serving.RACE)
    for n in range(20):
        for ask_for in (lambda: fresh.files.read("/tmp/race/inside"), lambda: fresh.files.write("/tmp/race/written", "x"),
                        lambda: fresh.files.make_dir("/tmp/race/made%d" % n), lambda: fresh.files.remove("/tmp/race/inside")):
            try:
                assert ask_for() != "i"
            except (SandboxException, FileNotFoundException):
                pass
    fresh.run_code("stop = True")
    assert sorted(one.name for one in fresh.files.list("/home/user")) == ["inside", "race"]


def open_files(server, device):
    """How many files of a file system the server has open."""
    found = 0
    for name in os.listdir("/proc/%d/fd" % server.process.pid):
        try:
            found += os.stat("/proc/%d/fd/%s" % (server.process.pid, name)).st_dev == device
        except OSError:
            pass
    return found


def test_tmp_has_a_size_and_goes_where_its_sandbox_goes(fresh, server):
    fresh.files.write("/tmp/kept", "k")
    with pytest.raises(Exception, match="full"):
        fresh.files.write("/tmp/bomb", bytes(300_000_000), gzip=True)
    assert [one.name for one in fresh.files.list("/tmp") if one.type.value == "file"] == ["kept"]
    assert fresh.run_code("open('/tmp/more', 'wb').write(bytes(1 << 20))").text == str(1 << 20)
    fork, = fresh.fork(count=1)
    fresh.files.write("/tmp/kept", "changed")
    assert fork.files.read("/tmp/kept") == "k" == fork.run_code("open('/tmp/kept').read()").text
    fork.kill()
    # A kernel that ends takes it along, also where a client looks at it, and the next one has its own.
    fresh.run_code("open('/tmp/large', 'wb').write(bytes(100 << 20))")
    handle = fresh.files.watch_dir("/tmp")
    slow = server.open("GET", "/files?path=/tmp/large", token=None,
                       headers={"E2b-Sandbox-Id": fresh.sandbox_id, "X-Access-Token": fresh._envd_access_token})
    assert slow[1].read(1000) == bytes(1000)
    uploads = [server.connect() for _ in range(8)]
    for n, one in enumerate(uploads):
        one.putrequest("POST", "/files?path=/tmp/half%d" % n)
        for name, value in (("E2b-Sandbox-Id", fresh.sandbox_id), ("X-Access-Token", fresh._envd_access_token), ("Content-Length", "3000000"),
                            ("Content-Type", "application/octet-stream")):
            one.putheader(name, value)
        one.endheaders(bytes(2_000_000))
    device = int(fresh.run_code("__import__('os').stat('/tmp').st_dev").text)
    # At least the watcher, the file, each upload and its folder.
    support.wait_until(lambda: open_files(server, device) >= 18, lambda: open_files(server, device))
    fresh.run_code("import os; os._exit(1)")
    # The clients go on sending while the server frees what the /tmp took; one goes away.
    rest, end = 1_000_000, time.monotonic() + support.DEADLINE
    while open_files(server, device) and time.monotonic() < end:
        for one in uploads:
            one.send(b"0")
        rest -= 1
        if len(uploads) == 8 and open_files(server, device) < 18:
            uploads.pop().close()
    assert open_files(server, device) == 0
    with pytest.raises(http.client.IncompleteRead):
        slow[1].read()
    with pytest.raises(e2b.NotFoundException, match="ended with its process"):
        handle.get_new_events()
    for one in uploads:
        one.send(bytes(rest))
        answer = one.getresponse()
        assert (answer.status, b"ended with its process" in answer.read()) == (502, True)
    for connection in (slow[0], *uploads):
        connection.close()
    assert not fresh.files.exists("/tmp/kept")
    fresh.files.write("/tmp/kept", "again")
    assert fresh.run_code("open('/tmp/kept').read()").text == "again"


# ---- charts and tables ----

CHARTS = [
    ("ax.plot([1, 2], [3, 4], label='l'); ax.set_title('T'); ax.set_xlabel('t (s)')", "line", [("l", [(1.0, 3.0), (2.0, 4.0)])]),
    ("ax.scatter([1, 2], [3, 4])", "scatter", [("Series 0", [(1.0, 3.0), (2.0, 4.0)])]),
    ("ax.bar(['a', 'b'], [3, 4], label='g')", "bar", [("a", 3.0, "g"), ("b", 4.0, "g")]),
    ("ax.barh(['a', 'b'], [3, 3])", "bar", [("a", 3.0, "Group 0"), ("b", 3.0, "Group 0")]),
    ("ax.pie([90, 10], labels=['a', 'b'])", "pie", [("a", 324.0, 1.0), ("b", 36.0, 1.0)]),
    ("ax.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]])", "box_and_whisker",
     [("1", 78.0, 85.0, 88.0, 90.0, 92.0, []), ("2", 84.0, 84.75, 88.0, 90.5, 95.0, [76.0])]),
    ("ax.boxplot([[85, 90, 78, 92, 88]], orientation='horizontal', patch_artist=True)", "box_and_whisker",
     [("1", 78.0, 85.0, 88.0, 90.0, 92.0, [])]),
    ("ax.imshow([[1, 2]])", "unknown", []),
]


@pytest.mark.parametrize("draw, kind, elements", CHARTS, ids=[one[0].split("(")[0] + str(i) for i, one in enumerate(CHARTS)])
def test_figures_are_data_too(sandbox, draw, kind, elements):
    done = sandbox.run_code("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n%s\nplt.show()" % draw)
    result, = done.results
    assert result.png and result.chart.type.value == kind
    assert [tuple(vars(one).values()) if not isinstance(one, dict) else one for one in result.chart.elements] == elements
    if kind == "line":
        assert (result.chart.title, result.chart.x_label, result.chart.x_unit, result.chart.x_scale.value) == ("T", "t (s)", "s", "linear")


def test_scales_and_several_axes(sandbox):
    done = sandbox.run_code("import matplotlib.pyplot as plt, datetime\nfig, (a, b) = plt.subplots(1, 2)\nfig.suptitle('S')\n"
                            "a.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, float('nan')])\nb.plot(['x', 'y'], [1, 10])\n"
                            "b.set_yscale('log')\nplt.show()")
    chart = done.results[0].chart
    assert (chart.type.value, chart.title) == ("superchart", "S")
    first, second = chart.elements
    assert (first.x_scale.value, second.x_scale.value, second.y_scale.value) == ("datetime", "categorical", "log")
    assert first.elements[0].points == [("2024-01-01", 1.0), ("2024-01-02", None)]
    assert second.elements[0].points == [("x", 1.0), ("y", 10.0)]


def test_a_figure_without_data_or_with_too_much_has_no_chart(sandbox):
    for draw in ("", "ax.plot(range(20001))"):
        result, = sandbox.run_code("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n%s\nplt.show()" % draw).results
        assert result.png and not result.chart, draw
    result, = sandbox.run_code("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot(range(20000))\nplt.show()").results
    assert len(result.chart.elements[0].points) == 20000


def test_a_lying_figure_costs_its_chart_alone(sandbox):
    result, = sandbox.run_code("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nline, = ax.plot([1, 2])\n"
                               "line.get_label = lambda: 1 / 0\nax.get_title = lambda: 1 / 0\nplt.show()").results
    assert result.png and not result.chart


def test_frames_are_data_too(sandbox):
    done = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [1.5, float('nan')], 'c': ['x', None],"
                            " 'd': pd.to_datetime(['2024-01-01', None]), 5: [True, False]})")
    assert done.results[0].data == {"a": [1, 2], "b": [1.5, None], "c": ["x", None], "d": ["2024-01-01T00:00:00", None], "5": [True, False]}
    assert done.results[0].html
    made = "import pandas as pd, numpy as np\npd.DataFrame(np.zeros((%d, 10), dtype=int))"
    assert len(sandbox.run_code(made % 10000).results[0].data["0"]) == 10000
    assert sandbox.run_code(made % 10001).results[0].data is None


SAVED = """
import io, os, pathlib
from PIL import Image
picture = Image.new("RGB", (3, 2), "red")
"""


def sizes(done):
    """Of the pictures among its results."""
    return [struct.unpack(">II", base64.b64decode(one.png)[16:24]) for one in done.results if one.png]


@pytest.mark.parametrize("executor, preload", [("sandbox", "json"), ("subprocess", "PIL.Image")])
def test_pictures_that_are_saved_are_shown(executor, preload):
    """As E2B's own interpreter does it: those that are saved to a path that is a text.  Other sessions of the server do as Pillow does."""
    with serving.shared("--executor", executor, "--e2b", "--preload", preload, python=support.PYTHON, tokens=TOKENS) as own:
        with Sandbox.create(**options_for(own)) as made:
            if preload == "json":
                assert made.run_code("import sys; 'PIL' in sys.modules").text == "False"  # nothing is imported for it
            done = made.run_code(SAVED + "picture.save('one.png')\nprint('saved')")
            assert sizes(done) == [(3, 2)] and done.logs.stdout == ["saved\n"] and not done.error, done
            assert made.files.read("one.png", format="bytes")[:4] == b"\x89PNG"
            done = made.run_code("picture.save(fp='a.jpg', quality=90); picture.resize((5, 4)).convert('1').save('b', 'PNG')")
            assert sizes(done) == [(3, 2), (5, 4)] and not done.error
            assert made.files.read("a.jpg", format="bytes")[:2] == b"\xff\xd8"
            done = made.run_code("picture.save(io.BytesIO(), 'PNG'); picture.save(pathlib.Path('c.png')); picture.save(b'd.png')\n"
                                 "with open('e.png', 'wb') as file: picture.save(file)\nsorted(name for name in os.listdir() if name[1:] == '.png')")
            assert sizes(done) == [] and done.text == "['c.png', 'd.png', 'e.png']", done
            for wrong, name in (("picture.save('x.unknown')", "ValueError"), ("picture.save('no/such/folder.png')", "FileNotFoundError"),
                                ("picture.save()", "TypeError")):
                assert made.run_code(wrong).error.name == name
            other = made.create_code_context()
            assert sizes(made.run_code(SAVED + "picture.save('two.png')", context=other)) == [(3, 2)]
            made.restart_code_context(other)
            assert sizes(made.run_code(SAVED + "picture.save('two.png')", context=other)) == [(3, 2)]
            done = made.run_code("import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.figure(figsize=(2, 1), dpi=100); "
                                 "plt.savefig('figure.png'); plt.close()", context=other)
            assert sizes(done) == [(200, 100)] and not done.error, done
            fork, = made.fork()
            assert sizes(fork.run_code("picture.save('three.png')")) == [(3, 2)]
            fork.kill()
        plain = own.execute(SAVED + "picture.save('/tmp/four-%s.png' % os.getpid()); os.remove('/tmp/four-%s.png' % os.getpid())\n"
                                    "hasattr(Image.Image.save, '__wrapped__')")
        assert plain["value"] is False and "image/png" not in json.dumps(plain), plain


# ---- the network ----

REACH = "import socket\nsocket.create_connection(('127.0.0.1', %d), 3).close()"


def test_a_sandbox_can_have_less_network_than_the_server(sandbox, options, server):
    assert not sandbox.run_code(REACH % server.port).error
    with Sandbox.create(allow_internet_access=False, **options) as cut:
        assert cut.run_code(REACH % server.port).error.name in ("OSError", "ConnectionRefusedError")
        context = cut.create_code_context()
        assert cut.run_code(REACH % server.port, context=context).error
        fork, = cut.fork()
        assert fork.run_code(REACH % server.port).error
        fork.kill()
    with Sandbox.create(network={"deny_out": ["0.0.0.0/0"], "allow_out": ["example.org", "192.0.2.1/32"]}, **options) as some:
        assert "http" in some.run_code("__import__('os').environ['HTTPS_PROXY']").text
        assert some.run_code(REACH % server.port).error
    with Sandbox.create(network={"allow_out": ["0.0.0.0/0"], "deny_out": ["0.0.0.0/0"], "allow_public_traffic": False}, **options) as whole:
        assert not whole.run_code(REACH % server.port).error


@pytest.mark.parametrize("network, words", [
    ({"deny_out": ["8.8.8.8"]}, "can only deny everything"), ({"mask_request_host": "x"}, "is not supported"),
    ({"deny_out": ["0.0.0.0/0"], "allow_out": ["10.0.0.0/8"]}, "not a host name"),
    ({"deny_out": ["0.0.0.0/0"], "allow_out": ["a,b"]}, "not a host name"), ({"deny_out": ["0.0.0.0/0"], "allow_out": ["x"] * 65}, "at most 64"),
])
def test_networks_that_cannot_be_had_are_refused(options, network, words):
    with pytest.raises(SandboxException, match=words):
        Sandbox.create(network=network, **options)


# ---- watching ----

def names(events):
    return [(one.name, one.type.value) for one in events]


def collect(handle, until):
    seen = []
    support.wait_until(lambda: seen.extend(handle.get_new_events()) or until(names(seen)), lambda: "events, not %s" % names(seen))
    return seen


def test_a_watcher_sees_code_commands_and_uploads(sandbox):
    sandbox.files.make_dir("w/sub")
    handle = sandbox.files.watch_dir("w")
    sandbox.run_code("import os\nopen('w/a', 'w').write('x'); os.rename('w/a', 'w/b'); os.remove('w/b'); open('w/sub/deep', 'w').close()")
    seen = collect(handle, lambda seen: ("b", "remove") in seen)
    assert [one for one in names(seen) if one[1] != "chmod"] == [("a", "create"), ("a", "write"), ("a", "rename"), ("b", "create"), ("b", "remove")]
    sandbox.commands.run("echo > w/c")
    sandbox.files.write("w/up", "data")
    # All that has happened is in the first answer.
    assert names(handle.get_new_events())[-3:] == [("up", "create"), ("up", "write"), ("up", "chmod")]
    handle.stop()
    with pytest.raises(SandboxException):
        handle.get_new_events()


def test_a_recursive_watcher_follows_new_folders_and_names_entries(sandbox):
    sandbox.files.make_dir("r/old")
    handle = sandbox.files.watch_dir("r", recursive=True, include_entry=True)
    sandbox.run_code("import os\nos.makedirs('r/new/inner')")
    collect(handle, lambda seen: ("new", "create") in seen)
    sandbox.run_code("open('r/new/inner/late', 'w').write('123'); open('r/old/x', 'w').close()")
    seen = collect(handle, lambda seen: ("new/inner/late", "write") in seen and ("old/x", "create") in seen)
    entry, = [one.entry for one in seen if one.name == "new/inner/late" and one.type == WRITE]
    assert (entry.path, entry.size) == ("/home/user/r/new/inner/late", 3)
    handle.stop()


def test_a_watcher_as_a_stream(options):
    async def watch():
        made = await AsyncSandbox.create(**options)
        seen, changed, ended = [], asyncio.Event(), asyncio.Event()

        def take(event):
            seen.append((event.name, event.type))
            changed.set()

        await made.files.watch_dir(".", on_event=take, on_exit=lambda _: ended.set())
        await made.files.write("file", "x")
        await asyncio.wait_for(changed.wait(), 10)
        await made.kill()
        await asyncio.wait_for(ended.wait(), 10)
        return seen

    assert asyncio.run(watch())[0] == ("file", CREATE)


def test_watchers_stay_in_the_sandbox(sandbox, fresh, server):
    for path in ("/etc", "../..", "/home/user/..", "missing"):
        with pytest.raises(Exception) as refused:
            sandbox.files.watch_dir(path)
        assert type(refused.value) in (FileNotFoundException, e2b.NotFoundException, e2b.InvalidArgumentException), path
    sandbox.run_code("import os\nos.makedirs('l'); os.symlink('/tmp', 'l/out'); os.symlink('/tmp', 'link')")
    with pytest.raises(SandboxException):
        sandbox.files.watch_dir("link")
    handle = sandbox.files.watch_dir("l", recursive=True)
    sandbox.run_code("open('/tmp/elsewhere', 'w').close(); open('l/here', 'w').close()")
    assert names(collect(handle, lambda seen: ("here", "create") in seen))[0][0] == "here"
    # Of another sandbox.
    body = {"watcherId": handle._watcher_id}
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        answer = ask(server, "POST", "/filesystem.Filesystem/" + method, body, sandbox=fresh.sandbox_id, X_Access_Token=fresh._envd_access_token)
        assert answer.status == 404 and answer.json["code"] == "not_found"
    handle.stop()


def test_watchers_are_bounded(fresh):
    handles = [fresh.files.watch_dir(".") for _ in range(16)]
    with pytest.raises(RateLimitException):
        fresh.files.watch_dir(".")
    for handle in handles:
        handle.stop()
    fresh.run_code("import os\nfor i in range(1023): os.makedirs('many/%d' % i)")
    fresh.files.watch_dir("many", recursive=True).stop()
    fresh.run_code("os.makedirs('many/more')")
    with pytest.raises(Exception, match="at most 1024 folders"):
        fresh.files.watch_dir("many", recursive=True)


def test_lost_events_are_told(fresh):
    handle = fresh.files.watch_dir(".")
    fresh.run_code("for i in range(3000): open('f%d' % i, 'w').close(); __import__('os').chmod('f%d' % i, 0o600)")
    seen = []

    def fetch():
        seen.extend(handle.get_new_events())

    with pytest.raises(Exception, match="events were lost"):
        support.wait_until(fetch, "an error")
    assert len(seen) >= 4096


# ---- snapshots ----

def test_sandboxes_continue_from_a_snapshot(fresh, options, server):
    fresh.run_code("x = 1; open('f', 'w').write('one')")
    snapshot = fresh.create_snapshot(name="mine")
    fresh.run_code("x = 2; open('f', 'w').write('two')")
    assert [one.snapshot_id for one in Sandbox.list_snapshots(**options).next_items()] == [snapshot.snapshot_id]
    for template in (snapshot.snapshot_id, "mine"):
        with Sandbox.create(template, metadata={"k": "v"}, **options) as made:
            assert made.run_code("x, open('f').read()").text == "(1, 'one')" and made.get_info().metadata == {"k": "v"}
            assert made.run_code("x = 3; open('f', 'w').write('three')").error is None
    with pytest.raises(SandboxException, match="leave out envs"):
        Sandbox.create("mine", envs={"A": "b"}, **options)
    with pytest.raises(SandboxException, match="leave out network"):
        Sandbox.create("mine", allow_internet_access=False, **options)
    with pytest.raises(SandboxException, match="filesystem"):
        fresh.create_snapshot(mode="filesystem")
    # It is not a sandbox, and nobody else's.
    assert snapshot.snapshot_id not in [one.sandbox_id for one in Sandbox.list(**options).next_items()]
    assert ask(server, "GET", "/sandboxes/" + snapshot.snapshot_id, token=ALICE).status == 404
    # A worker that does not have it checks the token first.
    answer = ask(server, "POST", "/execute", {"code": "x"}, sandbox=snapshot.snapshot_id, X_Access_Token="0" * 64)
    assert answer.status in ((502,) if server.workers == 1 else (401, 502)), answer
    assert ask(server, "GET", "/snapshots", token=BOB).json == []
    assert ask(server, "DELETE", "/templates/" + snapshot.snapshot_id, token=BOB).status == 404
    assert ask(server, "POST", "/v2/sandboxes", {"templateID": snapshot.snapshot_id}, token=BOB).status == 404
    assert ask(server, "DELETE", "/templates/" + snapshot.snapshot_id, token=READER).status == 403
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options) is True and Sandbox.delete_snapshot(snapshot.snapshot_id, **options) is False


# ---- the end ----

def test_a_kill_breaks_the_connection_of_a_running_cell(options):
    made = Sandbox.create(**options)
    started = threading.Event()

    def kill():
        started.wait(10)
        made.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TimeoutException, match="killed"):
        made.run_code("print('on', flush=True)\nimport time\ntime.sleep(60)", on_stdout=lambda _: started.set())
    killer.join()


def test_a_kill_breaks_the_connection_of_a_running_command(options):
    made = Sandbox.create(**options)
    command = made.commands.run("echo on; sleep 60", background=True)
    made.kill()
    with pytest.raises(TimeoutException, match="was killed or reached its end of life"):
        command.wait()


# ---- several workers ----

@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    with serving.shared("--executor", "subprocess", "--e2b", "--workers", 2, "--env", "HOME=%s" % tmp_path_factory.mktemp("home"),
                        tokens=TOKENS) as made:
        yield made


def test_any_worker_serves_any_sandbox(crew):
    connections = crew.connect_to_each()
    made = []
    for connection in connections:
        answer = crew.ask("POST", "/v2/sandboxes", {"metadata": {"n": "1"}}, token=None, headers={"X-API-KEY": ALICE}, connection=connection)
        made.append(answer.json)
    assert made[0]["sandboxID"][:2] != made[1]["sandboxID"][:2]  # of different workers
    for connection in connections:
        for one in made:
            inside = {"E2b-Sandbox-Id": one["sandboxID"], "X-Access-Token": one["envdAccessToken"]}
            answer = crew.ask("POST", "/execute", {"code": "x = globals().get('x', 0) + 1; x"}, token=None, headers=inside, connection=connection)
            assert answer.status == 200 and b'"is_main_result":true' in answer.body
            answer = crew.ask("POST", "/files?path=f", b"data", token=None, headers=dict(inside, **{"Content-Type": "application/octet-stream"}),
                              connection=connection)
            assert answer.status == 200, answer
            for wrong in ({"X-Access-Token": made[1 - made.index(one)]["envdAccessToken"]}, {"X-Access-Token": "0" * 64}):
                assert crew.ask("GET", "/files?path=f", token=None, headers=dict(inside, **wrong), connection=connection).status == 401
        listed = crew.ask("GET", "/v2/sandboxes?limit=1", token=None, headers={"X-API-KEY": ALICE}, connection=connection)
        following = crew.ask("GET", "/v2/sandboxes?nextToken=" + listed.headers["X-Next-Token"], token=None, headers={"X-API-KEY": ALICE},
                             connection=connection)
        assert {listed.json[0]["sandboxID"], following.json[0]["sandboxID"]} == {one["sandboxID"] for one in made}
        for one in made:
            assert crew.ask("GET", "/sandboxes/" + one["sandboxID"], token=None, headers={"X-API-KEY": BOB}, connection=connection).status == 404
    for one in made:
        for connection, status in zip(connections, (204, 404)):
            assert crew.ask("DELETE", "/sandboxes/" + one["sandboxID"], token=None, headers={"X-API-KEY": ALICE}, connection=connection).status == status


def test_the_client_works_with_workers(crew):
    options = options_for(crew)
    made = [Sandbox.create(metadata={"crew": "1"}, **options) for _ in range(4)]
    for one in made:
        again = Sandbox.connect(one.sandbox_id, **options)
        again.files.write("f", "x")
        assert again.run_code("open('f').read()").text == "x" and again.commands.run("cat f").stdout == "x"
        context = again.create_code_context()
        assert again.run_code("2", context=context).text == "2"
    assert {one.sandbox_id for one in Sandbox.list(query=e2b.SandboxQuery(metadata={"crew": "1"}), **options).next_items()} == {
        one.sandbox_id for one in made}
    for one in made:
        assert one.kill() is True


def test_snapshots_of_all_workers():
    with serving.shared("--executor", "subprocess", "--e2b", "--workers", 2, "--workspace-mode", "cow", tokens=TOKENS) as crew:
        connections = crew.connect_to_each()

        def ask_through(connection, method, path, body=None, token=ALICE, **headers):
            return crew.ask(method, path, body, token=None, connection=connection,
                            headers={"X-API-KEY": token, **{name.replace("_", "-"): value for name, value in headers.items()}})

        def run(connection, one, code):
            answer = ask_through(connection, "POST", "/execute", {"code": code}, E2b_Sandbox_Id=one["sandboxID"], X_Access_Token=one["envdAccessToken"])
            return re.search(rb'"is_main_result":true,"text":"([^"]*)"', answer.body)[1].decode()

        taken = []
        for connection in connections:
            one = ask_through(connection, "POST", "/sandboxes", {}).json
            run(connection, one, "x = %s; open('f', 'w').write('%s'); x" % ((len(taken) + 1,) * 2))
            answer = ask_through(connection, "POST", "/sandboxes/%s/snapshots" % one["sandboxID"], {})
            assert answer.status == 201, answer
            taken.append(answer.json["snapshotID"])
        assert taken[0][:2] != taken[1][:2]
        for connection in connections:
            assert {each["snapshotID"] for each in ask_through(connection, "GET", "/snapshots").json} == set(taken)
            assert ask_through(connection, "GET", "/snapshots", token=BOB).json == []
            for n, snapshot in enumerate(taken, 1):
                answer = ask_through(connection, "POST", "/v2/sandboxes", {"templateID": snapshot, "metadata": {"long": "x" * 60000}})
                assert answer.status == 201 and answer.json["sandboxID"][:2] == snapshot[:2], answer
                assert run(connection, answer.json, "x, open('f').read()") == "(%d, '%d')" % (n, n)
                assert ask_through(connection, "POST", "/v2/sandboxes", {"templateID": snapshot}, token=BOB).status == 404
                assert ask_through(connection, "DELETE", "/templates/" + snapshot, token=BOB).status == 404
        for snapshot in taken:
            assert ask_through(connections[0], "DELETE", "/templates/" + snapshot).status == 204
            assert ask_through(connections[1], "DELETE", "/templates/" + snapshot).status == 404
        for connection in connections:
            connection.close()


def test_names_of_snapshots_are_those_of_all_workers():
    crew = serving.Server("--executor", "subprocess", "--e2b", "--workers", 2, "--workspace-mode", "cow", tokens=TOKENS)
    connections = crew.connect_to_each()

    def ask_through(connection, method, path, body=None, token=ALICE, **inside):
        return crew.ask(method, path, body, token=None, connection=connection, headers=inside or {"X-API-KEY": token})

    def create(connection, name, status=201, token=ALICE):
        answer = ask_through(connection, "POST", "/v2/sandboxes", {"templateID": name}, token=token)
        assert answer.status == status, answer
        return answer.json.get("sandboxID", "")

    def take(connection, name, token=ALICE):
        one = ask_through(connection, "POST", "/sandboxes", {}, token=token).json
        answer = ask_through(connection, "POST", "/sandboxes/%s/snapshots" % one["sandboxID"], {"name": name}, token=token)
        assert answer.status == 201 and answer.json["names"] == [name], answer
        return answer.json["snapshotID"]

    # The newest of a name, whoever is asked; those of another token have their own names.
    first, second = take(connections[0], "n"), take(connections[1], "n")
    assert first[:2] != second[:2]
    assert [create(each, "n")[:2] for each in connections] == [second[:2]] * 2
    third, other = take(connections[0], "n"), take(connections[1], "n", token=BOB)
    for each in connections:
        assert (create(each, "n")[:2], create(each, "n", token=BOB)[:2]) == (third[:2], other[:2])
        create(each, "N", 404)
        create(each, "n", 404, token=ALL)
        assert {one["snapshotID"] for one in ask_through(each, "GET", "/snapshots?name=n").json} == {first, second, third}
    # A name goes with its snapshot, and the one before it is found again.
    assert ask_through(connections[1], "DELETE", "/templates/" + third).status == 204
    support.wait_until(lambda: {create(each, "n")[:2] for each in connections} == {second[:2]}, "the snapshot before")
    assert ask_through(connections[0], "DELETE", "/templates/n").status == 204
    support.wait_until(lambda: {create(each, "n")[:2] for each in connections} == {first[:2]}, "the first")
    # The names of a worker that died are gone.
    os.kill(crew.worker_pids()[int(first[:2], 16)], signal.SIGKILL)
    for connection in connections:
        connection.close()
    support.wait_until(lambda: len(crew.worker_pids()) == 2 and crew.text().count("reloaded: ") == 1, crew.text)
    left = crew.connect_to_each()
    for each in left:
        create(each, "n", 404)
        assert create(each, "n", token=BOB)[:2] == other[:2]
        each.close()
    crew.close()


# ---- every route ----

def routes():
    """The table of routes, as the source has it."""
    with open(os.path.join(support.ROOT, "src", "server", "e2b", "table.c")) as source:
        table = source.read().split("cell__e2b_routes[] = {")[1].split("{ 0 },")[0]
    return re.findall(r'{ (GET|POST|PUT|DELETE), "([^"]+)", (READ|RUN), (\w+)', table)


INSIDE = ("/health", "/execute", "/contexts", "/files", "/filesystem.", "/process.")


def test_no_route_is_open_to_another_token(server, fresh):
    found = routes()
    assert len(found) > 30
    for method, path, scope, handler in found:
        filled = re.sub(r"{rest\.\.\.}", "/x", re.sub(r"{(sandbox|snapshot|context)}", fresh.sandbox_id, path.replace("{method}", "Stat")))
        body = {} if method in ("POST", "PUT") else None
        if path.startswith(INSIDE):
            for sent in ({}, {"X_Access_Token": "0" * 64}, {"X_API_KEY": BOB}):
                answer = ask(server, method, filled, body, sandbox=fresh.sandbox_id, **sent)
                assert answer.status in (401, 429), (method, path, sent, answer)
            continue
        assert ask(server, method, filled, body).status in (401, 429), (method, path)
        if scope == "RUN":
            assert ask(server, method, filled, body, token=READER).status == 403, (method, path)
        if "{sandbox}" in path and "refused" not in handler:
            assert ask(server, method, filled, body, token=BOB).status == 404, (method, path)
    assert fresh.is_running()
