"""--images-dir: pictures become files, listed in the order shown, never written over, never lost."""
import base64
import os
import subprocess

import pytest

import spaces
import support
from support import run_cells

PNG = b"\x89PNG\r\n\x1a\n"
PLOT = "import matplotlib.pyplot as plt\n"
# A picture that needs no library.
P = ("class P:\n    def __init__(self, tail=b''): self.tail = tail\n"
     "    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + self.tail\n    def __repr__(self): return 'P'\n")


def check(result, folder, count):
    """The images of a result are files of the folder, in order; returns their content."""
    paths = result["images"]
    assert len(paths) == count, result
    assert paths == sorted(paths) and len(set(paths)) == count
    found = []
    for path in paths:
        assert os.path.dirname(path) == str(folder) and path.endswith(".png")
        with open(path, "rb") as file:
            found.append(file.read())
        assert found[-1].startswith(PNG)
    return found


def bundles(result):
    return result["displays"] + [result["mime"]]


@pytest.fixture(scope="module", params=["ipython", "plain"])
def plots(request, full_python, plain_python, tmp_path_factory):
    """A program with matplotlib and a folder for its images."""
    folder = tmp_path_factory.mktemp("plots") / "images"
    driver = support.Driver("--images-dir", folder, "--preload", "numpy",
                            python=full_python if request.param == "ipython" else plain_python, cwd="/")
    driver.folder = folder
    support.shared_drivers.append(driver)
    driver.locate()
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


# ---- what is captured --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code, count", [
    ("plt.plot([1, 2, 3], [1, 4, 9])\nplt.show()", 1),
    ("plt.plot([1, 2, 3]);", 1),
    ("for i in range(3):\n    plt.figure()\n    plt.plot([i, 1])", 3),
    ("plt.plot([1])\nplt.show()\nplt.plot([2])\nplt.show()\nplt.plot([3]);", 3),
    ("fig, ax = plt.subplots()\nax.plot([1])\nfig", 1),
    ("fig, ax = plt.subplots()\nplt.show()\nfig2, ax = plt.subplots()\nfig2", 2),
    ("plt.plot([1])\nplt.close('all')", 0),
    ("plt.plot([1])\nraise ValueError('after the plot')", 1),
    ("import matplotlib\nmatplotlib.use('Agg')\nplt.plot([1])\nplt.show()", 1),
    ("import pandas as pd\npd.Series([1, 3, 2]).plot()", 1),
    ("from PIL import Image\nImage.new('RGB', (4, 4))", 1),
    ("from PIL import Image\nImage.new('RGB', (4, 4)).show()", 1),
    ("from PIL import Image\ndisplay(Image.new('L', (4, 4)), Image.new('RGBA', (4, 4)))", 2),
], ids=lambda value: str(value)[-40:])
def test_images_of_a_cell(plots, code, count):
    result = plots.run(PLOT + code)
    assert (result["error"] or {}).get("type") in (None, "ValueError"), result
    check(result, plots.folder, count)
    assert result["notices"] == [] and result["stderr"] == ""
    assert not any("image/png" in bundle for bundle in bundles(result))
    # Shown once: nothing is left for the next cell.
    after = plots.run("1")
    assert after["images"] == [] and after["displays"] == []


def test_sizes_are_those_of_the_figure(plots):
    """What is in the file is what was drawn."""
    result = plots.run(PLOT + "plt.figure(figsize=(4, 2), dpi=50)\nplt.axes([0, 0, 1, 1]); plt.axis('off')\n"
                       "plt.imshow([[0, 1]], aspect='auto');")
    data, = check(result, plots.folder, 1)
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert abs(width - 200) < 20 and abs(height - 100) < 20, (width, height)


def test_display_classes(full_python, tmp_path):
    code = (P + "from IPython.display import Image, display as theirs\n"
            "theirs(Image(data=b'\\x89PNG\\r\\n\\x1a\\n123', format='png'))\n"
            "theirs(Image(data=b'\\xff\\xd8\\xff', format='jpeg'))\nImage(data=b'\\x89PNG\\r\\n\\x1a\\n456')")
    result = run_cells(code, flags=["--images-dir", tmp_path], python=full_python).result
    assert check(result, tmp_path, 2) == [PNG + b"123", PNG + b"456"]
    # Other kinds of pictures stay what they are.
    assert base64.b64decode(result["displays"][1]["image/jpeg"]) == b"\xff\xd8\xff"


def test_other_parts_stay(tmp_path):
    code = (P + "display({'image/png': P()._repr_png_(), 'text/html': '<b>', 'image/svg+xml': '<svg/>',\n"
            "         'application/json': [1]}, raw=True)\ndisplay({'image/png': P(b'2')._repr_png_()}, raw=True)")
    result = run_cells(code, flags=["--images-dir", tmp_path]).result
    assert check(result, tmp_path, 2) == [PNG, PNG + b"2"]
    assert result["displays"] == [{"text/html": "<b>", "image/svg+xml": "<svg/>", "application/json": [1]}, {}]


def test_preloaded(full_python, tmp_path):
    results = run_cells("import matplotlib.pyplot as plt\nplt.plot([1]);", "plt.plot([2])\nplt.show()", python=full_python,
                        flags=["--images-dir", tmp_path, "--preload", "matplotlib.pyplot"]).results
    assert [len(check(result, tmp_path, 1)) for result in results] == [1, 1]


def test_nothing_is_imported_for_cells_without_plots(plots):
    plots.reset()
    names = "sorted(m for m in sys.modules if m.split('.')[0] in ('matplotlib', 'PIL', 'matplotlib_inline'))"
    assert plots.value("import sys\nprint('x')\ndisplay(1)\n" + names) == []


def test_without_matplotlib(tmp_path):
    results = run_cells("import matplotlib.pyplot", P + "P()", flags=["--images-dir", tmp_path, "--keep-going"]).results
    assert results[0]["error"]["type"] == "ModuleNotFoundError"
    check(results[1], tmp_path, 1)


# ---- ends of cells that are not ordinary -------------------------------------------------------------------

ENDLESS = PLOT + "plt.plot([1, 2])\nprint('drawn')\nwhile True: pass"


def check_clean(driver):
    assert driver.value("plt.get_fignums()") == []
    after = driver.run("plt.plot([1]);")
    check(after, driver.folder, 1)


def test_interrupted(plots):
    plots.start(ENDLESS)
    plots.next_event(lambda e: "drawn" in e.get("data", ""))
    plots.interrupt()
    result = plots.answer()
    assert (result["error"]["code"], result["state"]) == ("interrupted", "kept")
    check(result, plots.folder, 1)
    check_clean(plots)


def test_timed_out(plots):
    plots.run(PLOT + "plt.plot([1]);")  # slow the first time
    result = plots.run(ENDLESS, timeout=0.3)
    assert (result["error"]["code"], result["state"]) == ("timeout", "kept")
    check(result, plots.folder, 1)
    check_clean(plots)


def test_interrupted_while_drawing(plots):
    """The figure draws for ever; neither it nor the one behind it is there in the next cell."""
    plots.start(PLOT + "from matplotlib.lines import Line2D\nclass Slow(Line2D):\n    def draw(self, renderer):\n"
                "        print('drawing', flush=True)\n        while True: pass\n"
                "plt.figure(); plt.gca().add_line(Slow([0], [0]))\nplt.figure(); plt.plot([1]);")
    plots.next_event(lambda e: "drawing" in e.get("data", ""))
    plots.interrupt()
    result = plots.answer()
    assert (result["error"]["code"], result["state"]) == ("interrupted", "kept"), result
    check_clean(plots)


def test_dead_kernel_keeps_what_was_shown(plots):
    result = plots.run(PLOT + "plt.plot([1])\nplt.show()\nimport os\nos._exit(1)")
    assert result["error"]["code"] == "kernel_died"
    check(result, plots.folder, 1)


# ---- where, and how it is told -----------------------------------------------------------------------------


def test_without_the_flag_nothing_is_written(tmp_path):
    result = run_cells(P + "display(P())\nP()", cwd=tmp_path, flags=["--cwd", tmp_path]).result
    assert result["images"] == [] and os.listdir(tmp_path) == []
    assert [base64.b64decode(bundle["image/png"]) for bundle in bundles(result)] == [PNG, PNG]


def test_the_folder_is_made_with_the_first_image(drive, tmp_path):
    folder = tmp_path / "a" / "b"
    driver = drive("--images-dir", folder)
    driver.run(P + "print('no picture')")
    assert os.listdir(tmp_path) == []
    check(driver.run("P()"), folder, 1)


def test_relative_folder_is_the_callers(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    result = run_cells(P + "P()", flags=["--images-dir", "images", "--cwd", there], cwd=here).result
    check(result, here / "images", 1)
    assert os.listdir(there) == []


def test_text_mode_says_where(tmp_path):
    done = support.workcell("run", "--python", support.bare_python(), "--images-dir", tmp_path, "-e",
                            P + "print('half a line', end='')\ndisplay(P())\nP()")
    paths = sorted(str(path) for path in tmp_path.iterdir())
    assert len(paths) == 2 and done.err == ""
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("image: ")] == ["image: " + path for path in paths]


def test_events(drive, tmp_path):
    driver = drive("--images-dir", tmp_path)
    result = driver.run(P + "display(P(b'1'))\nprint('between')\ndisplay(P(b'2'))")
    kinds = [event["event"] for event in driver.events]
    assert kinds.count("display") == kinds.count("image") == 2
    images = [event for event in driver.events if event["event"] == "image"]
    assert [event["path"] for event in images] == result["images"]
    assert [event["index"] for event in images] == [0, 1]
    # Each after its display, which has the bytes.
    for n in range(2):
        shown = [i for i, kind in enumerate(kinds) if kind == "display"][n]
        assert [i for i, kind in enumerate(kinds) if kind == "image"][n] > shown
        assert base64.b64decode(driver.events[shown]["mime"]["image/png"]) == PNG + b"%d" % (n + 1)


def test_an_image_is_there_while_the_cell_runs(drive, tmp_path):
    driver = drive("--images-dir", tmp_path / "images")
    go = tmp_path / "go"
    driver.start(P + "import os\ndisplay(P(b'now'))\nwhile not os.path.exists(%r): pass\n5" % str(go))
    event = driver.next_event(lambda e: e["event"] == "image")
    with open(event["path"], "rb") as file:
        assert file.read() == PNG + b"now"
    go.write_text("")
    result = driver.answer()
    assert result["value"] == 5 and result["images"] == [event["path"]]


def test_names_are_ordered_over_cells_and_resets(drive, tmp_path):
    driver = drive("--images-dir", tmp_path)
    paths = []
    for _ in range(3):
        driver.reset()
        for n in range(3):
            paths += driver.run(P + "display(P())\nP()")["images"]
    assert len(paths) == 18 and paths == sorted(set(paths))


def test_several_programs_share_a_folder(tmp_path):
    argv = [support.BIN, "run", "--json", "--pool", "0", "--python", support.bare_python(), "--images-dir",
            str(tmp_path / "images"), "-e", P + "import os\nfor i in range(50): display(P(b'%d' % os.getpid()))"]
    running = [support.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             env=support.host_environment()) for _ in range(4)]
    found = []
    for process in running:
        out = process.communicate(timeout=support.DEADLINE)[0]
        assert process.returncode == 0
        done = support.Completed(argv, 0, out, b"")
        contents = check(done.result, tmp_path / "images", 50)
        assert len(set(contents)) == 1, "nobody wrote over another's"
        found.append(contents[0])
    assert len(set(found)) == 4 and len(os.listdir(tmp_path / "images")) == 200


def test_large_images(drive, tmp_path):
    driver = drive("--images-dir", tmp_path, events=False)
    result = driver.run(P + "import os\nbig = os.urandom(1 << 20) * 40\ndisplay(P(big))\nP(big[::-1])")
    assert [len(data) for data in check(result, tmp_path, 2)] == [8 + (40 << 20)] * 2
    too_large = driver.run("display(P(big * 2))")
    assert too_large["error"] is None and "left out: too large" in too_large["stderr"]
    assert too_large["images"] == [] and too_large["displays"] == [{"text/plain": "P"}]
    assert driver.value("6") == 6


def test_a_slow_reader_of_images_does_not_grow_the_host(drive, tmp_path):
    """200 times 5 MB: the kernel waits for the disk, the memory of what is written is given back."""
    driver = drive("--images-dir", tmp_path, events=False)
    driver.run(P + "1")
    before = support.peak_rss_bytes(driver.pid)
    result = driver.run("big = P(bytes(5 << 20))\nfor i in range(200): display(big)")
    assert len(result["images"]) == 200 and result["notices"] == []
    for path in result["images"]:
        assert os.path.getsize(path) == 8 + (5 << 20)
        os.unlink(path)
    assert support.peak_rss_bytes(driver.pid) < before + support.memory(128)


# ---- failures ----------------------------------------------------------------------------------------------


def check_kept(result, words):
    assert result["error"] is None and result["images"] == []
    assert [base64.b64decode(bundle["image/png"]) for bundle in bundles(result)] == [PNG + b"1", PNG + b"2"]
    assert len(result["notices"]) == 2 and all(words in notice for notice in result["notices"]), result["notices"]


@pytest.mark.parametrize("what", ["file", "file above"])
def test_not_a_folder_is_refused_at_once(tmp_path, what):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" if what == "file" else tmp_path / "file" / "below"
    done = run_cells("1", flags=["--images-dir", path])
    assert (done.status, done.error_code) == (2, "invalid") and "images_dir" in done.error_message


def test_a_folder_that_becomes_a_file(drive, tmp_path):
    driver = drive("--images-dir", tmp_path / "images")
    driver.run("1")
    (tmp_path / "images").write_text("")
    check_kept(driver.run(P + "display(P(b'1'))\nP(b'2')"), "Not a directory")
    failed = [event for event in driver.events if event["event"] == "image"]
    assert [event["path"] for event in failed] == [None, None] and "Not a directory" in failed[0]["message"]
    (tmp_path / "images").unlink()
    check(driver.run("P()"), tmp_path / "images", 1)


def test_a_link_that_the_code_plants_is_not_followed(drive, tmp_path):
    driver = drive("--images-dir", tmp_path / "images")
    (tmp_path / "elsewhere").mkdir()
    code = P + "import os\nos.symlink(%r, %r)\ndisplay(P(b'1'))\nP(b'2')"
    check_kept(driver.run(code % (str(tmp_path / "elsewhere"), str(tmp_path / "images"))), "Not a directory")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_full_disk(drive, tmp_path):
    with spaces.small_disk(tmp_path / "disk", "64k"):
        driver = drive("--images-dir", tmp_path / "disk")
        result = driver.run(P + "display(P(bytes(1 << 20)))\ndisplay(P(b'fits'))")
        assert result["error"] is None and result["state"] == "kept"
        assert check(result, tmp_path / "disk", 1) == [PNG + b"fits"]
        assert len(base64.b64decode(result["displays"][0]["image/png"])) == 8 + (1 << 20)
        assert len(result["notices"]) == 1 and "No space left on device" in result["notices"][0]
        assert len(os.listdir(tmp_path / "disk")) == 1, "no half file is left"
        driver.close()


def test_failures_in_text_mode(tmp_path):
    (tmp_path / "images").mkdir()
    code = P + "import os\nos.rmdir(%r); open(%r, 'w').close()\nP()" % ((str(tmp_path / "images"),) * 2)
    done = support.workcell("run", "--python", support.bare_python(), "--images-dir", tmp_path / "images", "-e", code)
    assert done.status == 0 and done.out == "P\n"
    assert "workcell: cannot write an image" in done.err and "Not a directory" in done.err


def test_what_is_no_png_is_not_written(tmp_path):
    code = "display({'image/png': b'<script>alert(1)</script>', 'text/plain': 'lie'}, raw=True)"
    result = run_cells(code, flags=["--images-dir", tmp_path]).result
    assert result["images"] == [] and os.listdir(tmp_path) == [] and "not a PNG" in result["notices"][0]
    assert base64.b64decode(result["displays"][0]["image/png"]) == b"<script>alert(1)</script>"


def test_limits_are_told(drive, tmp_path):
    driver = drive("--images-dir", tmp_path, events=False)
    result = driver.run(P + "for i in range(1010): display(P())")
    assert len(result["images"]) == 1000 == len(os.listdir(tmp_path)) and len(result["displays"]) == 1000
    assert len(result["notices"]) == 1 and "1000 displays" in result["notices"][0]
