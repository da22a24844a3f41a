"""Real libraries: numpy, pandas, matplotlib, IPython's display classes."""
import base64

import pytest

import support

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def rich(full_python):
    driver = support.Driver("--preload", "numpy", python=full_python, cwd="/")
    support.shared_drivers.append(driver)
    driver.locate()
    yield driver
    driver.close()
    support.shared_drivers.remove(driver)


def pngs(result):
    """PNG parts of displays and value."""
    bundles = result["displays"] + [result["mime"]]
    return [base64.b64decode(b["image/png"], validate=True) for b in bundles if "image/png" in b]


def test_data_frame(rich):
    result = rich.run("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})\ndf")
    assert result["error"] is None
    assert "<table" in result["mime"]["text/html"]
    assert result["mime"]["text/plain"] == "   a  b\n0  1  x\n1  2  y"
    assert result["repr"] == result["mime"]["text/plain"] and result["value"] is None


def test_series_and_describe(rich):
    result = rich.run("import pandas as pd\npd.Series([1, 2, 3]).describe()")
    assert "mean" in result["mime"]["text/plain"] and result["error"] is None


def test_numpy_values_are_not_exact(rich):
    for code, text in (("numpy.float64(1.5)", "np.float64(1.5)"), ("numpy.int64(3)", "np.int64(3)"),
                       ("numpy.array([1, 2])", "array([1, 2])"),
                       ("[numpy.float64(0.5)]", "[np.float64(0.5)]"),
                       ("numpy.bool_(True)", "np.True_")):
        result = rich.run("import numpy\n" + code)
        assert result["value"] is None and result["repr"] == text, result


def test_error_inside_a_library(rich):
    error = rich.run("import pandas as pd\nframe = pd.DataFrame({'a': [1]})\nframe['nosuch']  # mine")["error"]
    assert error["type"] == "KeyError" and "frame['nosuch']  # mine" in error["traceback"]
    assert "\x1b[" not in error["traceback"]


@pytest.mark.parametrize("code", [
    "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);",
    "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);",
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\nplt.close(fig)\nfig",
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nplt.close(fig)\ndisplay(fig)",
    "import pandas as pd\npd.Series([1, 3, 2]).plot();",
], ids=["show", "open at the end", "inline", "value", "display", "pandas"])
def test_figures_become_png(rich, code):
    rich.reset()
    result = rich.run(code)
    assert result["error"] is None and result["stderr"] == "", result
    pictures = pngs(result)
    assert len(pictures) == 1 and pictures[0].startswith(PNG)
    # Shown once: the next cell does not show it again.
    after = rich.run("1")
    assert pngs(after) == []


def test_two_figures(rich):
    rich.reset()
    result = rich.run("import matplotlib.pyplot as plt\nfor i in range(2):\n    plt.figure(); plt.plot([i, 2])")
    assert len(pngs(result)) == 2


def test_savefig_still_works(rich, tmp_path):
    rich.reset()
    result = rich.run("import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig(%r)\nplt.close()" % str(tmp_path / "f.png"))
    assert result["error"] is None and pngs(result) == []
    assert (tmp_path / "f.png").read_bytes().startswith(PNG)


def test_display_classes(rich):
    result = rich.run("from IPython.display import *\ndisplay(Markdown('*m*'), Latex('$x$'), JSON({'a': 1}), SVG('<svg></svg>'))\n"
                      "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n123', format='png'))")
    assert result["error"] is None, result
    kinds = [set(d) - {"text/plain"} for d in result["displays"]]
    assert kinds == [{"text/markdown"}, {"text/latex"}, {"application/json"}, {"image/svg+xml"},
                     {"image/png"}]


def test_display_ids_and_updates(rich):
    result = rich.run("h = display('a', display_id=True)\nh.update('b')")
    assert result["error"] is None, result


def test_clear_output_and_widgets_of_the_terminal(rich):
    assert rich.run("from IPython.display import clear_output\nclear_output()\nclear_output(wait=True)")["error"] is None


def test_threads_of_a_library_do_not_stop_forks(rich):
    rich.reset()
    assert rich.value("import numpy as np\nfloat((np.ones((300, 300)) @ np.ones((300, 300)))[0, 0])") == 300.0
    rich.reset()
    assert rich.value("import numpy as np\nfloat((np.ones((300, 300)) @ np.ones((300, 300))).sum())") == 300.0 ** 3
