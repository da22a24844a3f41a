"""A notebook in JupyterLab, in Chromium, with a sandboxed kernel of Workcell's: cells, input() and a widget's slider."""
import base64
import os
import sys

import nbformat
import pytest
from lab import TOKEN, running

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "browser"))
from chromium import PROGRAM, Browser  # noqa: E402

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs chromium-headless-shell from Debian")

CELLS = ["import os\nprint('in the', 'sandbox' if not os.path.exists('/root') else 'open')\n6 * 7", "name = input('Who? ')\n'hello ' + name",
         "import ipywidgets\nslider = ipywidgets.IntSlider(value=3, description='slide')\nslider"]


@pytest.fixture
def lab(tmp_path):
    """JupyterLab with a notebook, as one person has it; its URL."""
    (tmp_path / "work").mkdir()
    made = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "workcell", "display_name": "Workcell", "language": "python"}})
    made.cells = [nbformat.v4.new_code_cell(each) for each in CELLS]
    nbformat.write(made, tmp_path / "work" / "it.ipynb")
    with running(tmp_path) as url:
        yield url


def press(browser, key, code, modifiers=0, text=""):
    for kind in ("keyDown", "keyUp"):
        browser.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers, text=text if kind == "keyDown" else "")


def test_a_notebook(lab, tmp_path):
    browser = Browser(tmp_path / "profile")
    outputs = "[...document.querySelectorAll('.jp-OutputArea-output')].map(each => each.innerText).join('|')"
    try:
        browser.tell("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
        browser.tell("Page.navigate", url=lab + "/lab/tree/it.ipynb?token=" + TOKEN)
        browser.wait("document.querySelectorAll('.jp-Notebook .jp-CodeCell .cm-content').length >= 3")
        # Not the notebook's own indicator, which says idle before there is a kernel: a cell that is run then opens a dialog for choosing one.
        browser.wait("document.documentElement.innerText.includes('Python (Workcell sandbox) | Idle')")
        browser.click("document.querySelector('.jp-CodeCell .cm-content')")
        press(browser, "Enter", 13, 8)
        browser.wait("%s.includes('in the sandbox') && %s.includes('42')" % (outputs, outputs))
        press(browser, "Enter", 13, 8)
        browser.wait("document.querySelector('input.jp-Stdin-input')")
        browser.value("document.querySelector('input.jp-Stdin-input').focus()")
        browser.tell("Input.insertText", text="Ada")
        press(browser, "Enter", 13, text="\r")
        browser.wait("%s.includes('hello Ada')" % outputs)
        browser.click("document.querySelectorAll('.jp-CodeCell .cm-content')[2]")
        press(browser, "Enter", 13, 8)
        browser.wait("document.querySelector('.jupyter-widgets.widget-slider .widget-readout')")
        picture = base64.b64decode(browser.tell("Page.captureScreenshot", format="png")["data"])
        with open(os.environ.get("WORKCELL_SCREENSHOT", str(tmp_path / "lab.png")), "wb") as file:
            file.write(picture)
        # The person moves the slider; the code sees it.
        browser.value("(() => { const at = document.querySelector('.widget-readout'); at.focus(); getSelection().selectAllChildren(at); })()")
        browser.tell("Input.insertText", text="9")
        press(browser, "Enter", 13, text="\r")
        browser.wait("document.querySelector('.widget-readout').innerText == '9'")
        browser.click("document.querySelectorAll('.jp-CodeCell .cm-content')[3]")
        browser.tell("Input.insertText", text="'slider is %d' % slider.value")
        press(browser, "Enter", 13, 8)
        browser.wait("%s.includes('slider is 9')" % outputs)
    finally:
        browser.close()
