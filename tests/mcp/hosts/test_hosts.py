"""What docs/mcp-hosts.md says, word for word, and the plugin folder, tried with the hosts' own command lines. Stage mcp_hosts; scripts/setup.sh
hosts makes build/hosts."""
import os
import re
import subprocess

import pytest

import support

BUILT = os.environ.get("WORKCELL_HOSTS_DIR", os.path.join(support.ROOT, "build", "hosts"))
PAGE = os.path.join(support.ROOT, "docs", "mcp-hosts.md")
PLUGIN = os.path.join(support.ROOT, "packaging", "claude-plugin")


def section(title):
    """The lines of the page below this heading."""
    with open(PAGE, encoding="utf-8") as file:
        return re.search(r"^## %s\n(.*?)(?=^## |\Z)" % re.escape(title), file.read(), re.S | re.M).group(1)


def command(title):
    """The first command line of a section."""
    return re.search(r"^    (\S.*)$", section(title), re.M).group(1)


def settings(title):
    return re.search(r"```\w+\n(.*?)```", section(title), re.S).group(1)


@pytest.fixture
def host(tmp_path):
    """Runs a line in a project's folder, with a home of its own and `workcell` on the PATH."""
    for name in ("home", "project", "bin"):
        (tmp_path / name).mkdir()
    os.symlink(os.path.abspath(support.BIN), tmp_path / "bin" / "workcell")
    path = os.pathsep.join([str(tmp_path / "bin"), os.path.join(BUILT, "node_modules", ".bin"), os.path.join(BUILT, "node_modules", "node", "bin"),
                            os.environ["PATH"]])

    def run(line, **env):
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path / "project", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=support.DEADLINE, check=False, env={"PATH": path, "HOME": str(tmp_path / "home"), "TERM": "dumb", **env})
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stdout.decode("utf-8", "replace"))
        assert done.returncode == 0, (line, text)
        return text
    run.project, run.home = tmp_path / "project", tmp_path / "home"
    return run


def test_claude_code(host):
    assert "workcell" in host(command("Claude Code"))
    assert re.search(r"^workcell: .* Connected$", host("claude mcp list"), re.M)


def test_the_plugin_of_claude_code(host):
    text = host("claude plugin validate '%s'" % PLUGIN)
    assert "Validation passed" in text and "mcpServers: workcell" in text and "skills: workcell:workcell" in text


def test_codex(host):
    host(command("Codex"))
    written = (host.home / ".codex" / "config.toml").read_text()
    assert settings("Codex").strip() in written, written
    assert re.search(r"^workcell +workcell +mcp --root \. --executor sandbox .*enabled", host("codex mcp list"), re.M)


def test_gemini(host):
    (host.project / ".gemini").mkdir()
    (host.project / ".gemini" / "settings.json").write_text(settings("Gemini CLI"))
    assert re.search(r"workcell: .* Connected", host("gemini mcp list", GEMINI_CLI_TRUST_WORKSPACE="true"))


def test_opencode(host):
    (host.project / "opencode.json").write_text(settings("opencode"))
    assert re.search(r"workcell +connected", host("opencode mcp list"))
