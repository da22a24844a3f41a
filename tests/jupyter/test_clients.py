"""Workcell's kernel with Jupyter's own programs, the newest ones: jupyter_kernel_test, nbclient, papermill, ipywidgets."""
import os
import sys

import jupyter_kernel_test
import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager

import support
from support import workcell

NAMES = ("subprocess", "sandbox")


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory):
    """Kernelspecs of both executors, where every program of Jupyter's finds them."""
    data = tmp_path_factory.mktemp("jupyter")
    environment = support.host_environment(JUPYTER_DATA_DIR=str(data))
    for name in NAMES:
        done = workcell("jupyter", "install", "--name", "workcell-" + name, "--executor", name, "--python", sys.executable, "--keep-ready", "1",
                        *(["--workspace-mode", "rw"] if name == "sandbox" else []), env=environment)
        assert done.status == 0, done
    before, here = dict(os.environ), os.getcwd()
    os.chdir(tmp_path_factory.mktemp("notebooks"))  # a sandbox does not take the source's folder, with its programs, for a workspace
    os.environ.update(JUPYTER_DATA_DIR=str(data), JUPYTER_RUNTIME_DIR=str(data / "runtime"), JUPYTER_CONFIG_DIR=str(data / "config"),
                      IPYTHONDIR=str(data / "ipython"))
    assert "workcell-sandbox" in KernelSpecManager().find_kernel_specs()
    yield
    os.chdir(here)
    os.environ.clear()
    os.environ.update(before)


class Suite(jupyter_kernel_test.KernelTests):
    """All that the suite can test; the samples are those that ipykernel tests itself with."""

    __test__ = False
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [{"code": "1+2+3", "result": "6"}, {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"}]
    code_display_data = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "1?2*"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestSubprocess(Suite):
    __test__ = True
    kernel_name = "workcell-subprocess"


class TestSandbox(Suite):
    __test__ = True
    kernel_name = "workcell-sandbox"


def notebook(name, *cells):
    made = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "workcell-" + name, "display_name": name, "language": "python"}})
    made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    return made


@pytest.mark.parametrize("name", NAMES)
def test_nbclient(name, tmp_path):
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    made = notebook(name, "x = 20\nopen('made', 'w').write('1')", "print('working')\nx * 2.1", "display(x, display_id='d')",
                    "_ = display('new', display_id='d', update=True)")
    NotebookClient(made, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "made").exists()
    assert [each.output_type for each in made.cells[1].outputs] == ["stream", "execute_result"]
    assert made.cells[1].outputs[1].data["text/plain"] == "42.0"
    assert made.cells[2].outputs[0].data["text/plain"] == "'new'"  # nbclient replaces what is updated
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        NotebookClient(notebook(name, "1 / 0", "2"), timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("name", NAMES)
def test_papermill(name, tmp_path):
    import papermill

    made = notebook(name, "n = 1", "print(n * 2)")
    made.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(made, tmp_path / "in.ipynb")
    papermill.execute_notebook(str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), {"n": 21}, cwd=str(tmp_path), progress_bar=False)
    out = nbformat.read(tmp_path / "out.ipynb", 4)
    assert out.cells[-1].outputs[0].text == "42\n"


def test_ipywidgets(tmp_path):
    """A slider of ipywidgets: its model is in the notebook, and its comm answers the front end."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="workcell-sandbox", startup_timeout=60, cwd=str(tmp_path))
    try:
        seen = []
        code = ("import ipywidgets\nslider = ipywidgets.IntSlider(value=3)\n"
                "slider.observe(lambda change: print('now', change['new']), 'value')\ndisplay(slider)")
        reply = client.execute_interactive(code, output_hook=seen.append, timeout=60)
        assert reply["content"]["status"] == "ok", reply
        opened = [each for each in seen if each["msg_type"] == "comm_open"]
        assert {"IntSliderModel", "SliderStyleModel", "LayoutModel"} == {each["content"]["data"]["state"]["_model_name"] for each in opened}
        shown = next(each for each in seen if each["msg_type"] == "display_data")
        model = shown["content"]["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
        client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": model, "data": {"method": "update", "state": {"value": 7}, "buffer_paths": []}}))
        texts = []
        while "now 7\n" not in texts:
            message = client.get_iopub_msg(timeout=30)
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])
        seen.clear()
        client.execute_interactive("print(slider.value)", output_hook=seen.append, timeout=60)
        assert [each["content"]["text"] for each in seen if each["msg_type"] == "stream"] == ["7\n"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
