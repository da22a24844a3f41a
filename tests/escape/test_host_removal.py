"""What code leaves behind so that the host cannot remove it, or removes something else."""
import ctypes
import os
import threading

import pytest

import serving
import support

NOBODY = 65534
LIBRARY = os.path.join(os.path.dirname(support.BIN), "libworkcell.so")

# The guard of a sandbox writes nothing in a folder with a path of more than 4,095 bytes: there the code goes as deep as it can.
MAKE = """
import errno, os
here = os.getcwd()
def deep(n):
    for i in range(n):
        try:
            open("file", "w").close(); os.mkdir("d" * 200); os.chdir("d" * 200)
        except OSError as e:
            if e.errno != errno.ENAMETOOLONG or "guarded" not in globals() or i < 15:
                raise
            break
    os.chdir(here)
"""
TREES = {
    "deep": MAKE + "deep(100)",
    "no rights": MAKE + "os.makedirs('a/b/c'); open('a/b/c/file', 'w').close()\nfor each in ('a/b/c', 'a/b', 'a'): os.chmod(each, 0)",
    "read-only": MAKE + "os.makedirs('a/b'); open('a/b/file', 'w').close(); os.chmod('a/b', 0o555); os.chmod('a', 0o555); os.chmod('.', 0o555)",
    "many": MAKE + "for i in range(300): os.mkdir('d%d' % i); open('d%d/f' % i, 'w').close()",
    "our names": MAKE + "for i in range(20): os.makedirs('.workcell-removed-%d/x/y' % i)",
    "odd names": MAKE + "for n in (b'\\xff', b'a\\nb', b'-rf', b'x' * 255): os.makedirs(os.path.join(n, n))",
    "a socket": MAKE + "import socket; s = socket.socket(socket.AF_UNIX); s.bind('s')",
    "deep without rights": MAKE + "deep(70)\nfor root, dirs, files in os.walk('.', topdown=False):\n    os.chmod(root, 0)",
}


def folders_of(server):
    """Of its sessions: the server holds the folder that they are in. `probe` is its own, for trying whether a session can be opened."""
    for fd in os.listdir("/proc/%d/fd" % server.pid):
        try:
            place = os.readlink("/proc/%d/fd/%s" % (server.pid, fd))
        except OSError:
            continue  # closed meanwhile
        if os.path.basename(place).startswith("workcell-serve-"):
            return [os.path.join(place, each) for each in os.listdir(place) if each != "probe"]
    raise AssertionError("the server holds no folder")


@pytest.fixture(params=["subprocess", "sandbox"])
def server(request):
    made = serving.Server("--executor", request.param, "--python", "/usr/bin/python3", pool=0)
    made.first = "guarded = True\n" if request.param == "sandbox" else ""
    yield made
    made.close()


@pytest.mark.parametrize("what", sorted(TREES))
def test_a_sessions_folder_goes_with_it(server, what):
    """Deeper than any path may be, without rights, with names of ours: the disk would fill with sessions that have ended."""
    session = server.session()
    before = set(folders_of(server))
    assert before
    assert server.execute(server.first + TREES[what], session=session)["error"] is None
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 204
    support.wait_until(lambda: not folders_of(server), lambda: "left: %s" % folders_of(server))


def test_a_servers_folder_goes_with_it():
    """The same when the server ends first."""
    made = serving.Server("--executor", "subprocess", "--python", "/usr/bin/python3", pool=0)
    session = made.session()
    assert made.execute(TREES["deep"] + "\n" + TREES["no rights"], session=session)["error"] is None
    place = os.path.dirname(folders_of(made)[0])
    made.close()
    assert not os.path.lexists(place)


# ---- the function itself ----


def as_user(uid, function):
    """In a process of its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.getuid() == 0 and uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            function()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def remove(path):
    return ctypes.CDLL(LIBRARY, use_errno=True).cell_remove_tree(os.fsencode(path), None)


@pytest.fixture(params=[0, NOBODY])
def place(request):
    if request.param and os.getuid():
        pytest.skip("this test makes files of another user")
    if not os.path.exists(LIBRARY):
        pytest.fail("there is no %s" % LIBRARY)
    folder = support.temporary_folder("workcell-removal-")
    os.chmod(folder, 0o755)
    ctypes.CDLL(LIBRARY)  # before another user may not read it
    os.mkdir(folder + "/tree")
    os.mkdir(folder + "/other")
    for path in (folder, folder + "/tree"):
        os.chown(path, request.param, request.param)
    with open(folder + "/other/precious", "w", encoding="utf-8") as file:
        file.write("precious")
    os.chmod(folder + "/other", 0o777)
    return folder, request.param


@pytest.mark.parametrize("what", sorted(TREES))
def test_any_tree_of_ones_own_is_removed(place, what):
    """As root, and as a user whom rights bind."""
    folder, uid = place

    def attack():
        os.chdir(folder + "/tree")
        exec(TREES[what], {})
        os.chdir("/")
        assert remove(folder + "/tree") == 0
        assert not os.path.lexists(folder + "/tree")

    as_user(uid, attack)


def test_links_are_removed_and_not_followed(place):
    """To a folder, to a file, to nothing, to itself, and by /proc."""
    folder, uid = place

    def attack():
        for name, target in (("folder", folder + "/other"), ("file", folder + "/other/precious"), ("nothing", "/nonexistent"), ("self", "self"),
                             ("proc", "/proc/self/root"), ("up", "..")):
            os.symlink(target, folder + "/tree/" + name)
        os.makedirs(folder + "/tree/a/b")
        os.symlink(folder + "/other", folder + "/tree/a/b/link")
        assert remove(folder + "/tree") == 0

    as_user(uid, attack)
    assert os.listdir(folder + "/other") == ["precious"]


def test_a_folder_that_becomes_a_link_is_not_followed(place):
    """The code still runs, and swaps folders for links to somebody else's while they are removed."""
    folder, uid = place

    def attack():
        over = threading.Event()

        def swap():
            for n in range(2000):
                if over.is_set():
                    return
                try:
                    os.makedirs(folder + "/tree/a%d/b" % n)
                    os.rename(folder + "/tree/a%d/b" % n, folder + "/tree/a%d/c" % n)
                    os.symlink(folder + "/other", folder + "/tree/a%d/b" % n)
                    os.rename(folder + "/tree/a%d" % n, folder + "/tree/z%d" % n)
                    os.symlink(folder + "/other", folder + "/tree/a%d" % n)
                except OSError:
                    pass

        thread = threading.Thread(target=swap)
        thread.start()
        for _ in range(100):
            remove(folder + "/tree")
            try:
                os.mkdir(folder + "/tree")
            except FileExistsError:
                pass
        over.set()
        thread.join()
        assert remove(folder + "/tree") == 0

    as_user(uid, attack)
    assert os.listdir(folder + "/other") == ["precious"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("place", [0], indirect=True)
def test_a_mount_is_not_entered(place):
    """Somebody else's folder is mounted in the tree; it is of the same file system."""
    folder, uid = place

    def attack():
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
        assert libc.mount(None, b"/", None, 0x44000, None) == 0  # private
        os.makedirs(folder + "/tree/a/mount/point")
        os.makedirs(folder + "/tree/top")
        for target in ("a/mount/point", "top"):
            assert libc.mount(os.fsencode(folder + "/other"), os.fsencode(folder + "/tree/" + target), None, 4096, None) == 0  # MS_BIND
        assert remove(folder + "/tree") == -1
        assert os.path.exists(folder + "/other/precious")

    as_user(uid, attack)
    assert os.listdir(folder + "/other") == ["precious"]


@pytest.mark.parametrize("place", [NOBODY], indirect=True)
def test_what_is_anothers_stays_and_is_told(place):
    """An ordinary user does not remove what root left in a folder of root's."""
    folder, uid = place
    os.mkdir(folder + "/tree/roots")
    with open(folder + "/tree/roots/file", "w", encoding="utf-8"):
        pass

    def attack():
        os.makedirs(folder + "/tree/own/below")
        assert remove(folder + "/tree") == -1
        assert os.listdir(folder + "/tree") == ["roots"]

    as_user(uid, attack)


def test_what_is_not_there_is_gone(place):
    """And a file is removed as such."""
    folder, _ = place
    assert remove(folder + "/nothing") == 0
    with open(folder + "/file", "w", encoding="utf-8"):
        pass
    assert remove(folder + "/file") == 0 and not os.path.exists(folder + "/file")
