"""jupyter-mcp-server, the real one: an agent's cells run in Workcell's sandboxed kernel, in a notebook of a JupyterLab with collaboration."""
import asyncio
import sys

import nbformat
from lab import TOKEN, running

import support

# It starts kernels of this name, whatever the notebook says. In a venv, ipykernel's own kernelspec of that name would come first.
NAME = "python3"
VARIABLES = {"JUPYTER_PREFER_ENV_PATH": "0"}
WHERE = "import os\nprint('in the', 'sandbox' if not os.path.exists('/root') else 'open')\nnumber = 6 * 7\nnumber"


def texts(result):
    """What a tool answered, in one text."""
    return "\n".join(each.text for each in result.content if each.type == "text")


async def talk(url, folder):
    """Uses a notebook, runs a cell in it and code beside it; the answers of the three tools."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    server = StdioServerParameters(command=sys.executable, args=["-m", "jupyter_mcp_server", "--transport", "stdio", "--jupyter-url", url,
                                                                 "--jupyter-token", TOKEN], env=support.host_environment(HOME=str(folder)))
    async with Client(server, read_timeout_seconds=support.DEADLINE) as client:
        tools = {each.name for each in (await client.list_tools()).tools}
        assert {"use_notebook", "insert_execute_code_cell", "execute_code"} <= tools
        answers = []
        for tool, arguments in (("use_notebook", {"notebook_name": "it", "notebook_path": "it.ipynb", "use_mode": "connect"}),
                                ("insert_execute_code_cell", {"cell_index": 0, "cell_source": WHERE}),
                                ("execute_code", {"code": "print('and number is %d' % number)"})):
            answers.append(texts(await client.call_tool(tool, arguments)))
        return answers


def test_an_agent_with_a_notebook(tmp_path):
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "it.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), path)
    with running(tmp_path, "--name", NAME, **VARIABLES) as url:
        used, cell, code = asyncio.run(talk(url, tmp_path))
        assert "in the sandbox" in cell and "42" in cell, (used, cell)
        assert "and number is 42" in code, (used, code)
        # The people who share the notebook see what the agent ran.
        support.wait_until(lambda: '"42"' in path.read_text(), "the cell's result in the notebook")
