"""The `deno` executor beside what the conformance suite, the faults and the escapes look at: packages, settings, doctor."""
import http.server
import json
import os
import re
import shutil
import threading

import pytest

import spaces
import support

INSTALL_SECONDS = 120


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    spaces.make_wheel(folder, "wc-alpha", "1.0", "def who():\n    return 'alpha'\n")
    spaces.make_wheel(folder, "wc-beta", "1.0", "import wc_alpha\n", requires=["wc-alpha>=1"])
    plain = spaces.make_wheel(folder, "wc-native", "1.0")
    os.rename(folder / plain, folder / plain.replace("py3-none-any", "cp314-cp314-manylinux_2_28_x86_64"))
    return str(folder)


@pytest.fixture(scope="module")
def project(wheels, tmp_path_factory):
    """A session with a project of its own, and what it was opened with."""
    base = tmp_path_factory.mktemp("base")
    env = support.host_environment(XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")))
    driver = support.Driver("--base", base, "--wheel-dir", wheels, "--timeout", "100", executor="deno", env=env)
    support.shared_drivers.append(driver)
    driver.locate()
    yield driver, base, env
    driver.close()
    support.shared_drivers.remove(driver)


def test_packages_are_installed_and_stay(project):
    driver, base, env = project
    result = driver.run("deps.add('wc-beta')", deadline=INSTALL_SECONDS)
    assert result["error"] is None and "installed=('wc-beta',)" in result["repr"], result
    assert driver.value("import wc_beta\n[wc_beta.wc_alpha.who(), deps.list()]") == ["alpha", ["wc-beta"]]
    assert driver.value("import importlib.metadata\nimportlib.metadata.version('wc-alpha')") == "1.0"
    assert json.loads((base / "requirements-sandbox.json").read_text())["packages"] == ["wc-beta"]
    assert not (base / "requirements.txt").exists(), "the host's own list is left alone"
    # A fresh kernel has them from its start.
    driver.reset()
    assert driver.value("import wc_beta\nwc_beta.wc_alpha.who()") == "alpha"
    # Nothing was installed for a Python of the host's.
    cache = os.path.join(env["XDG_CACHE_HOME"], "workcell")
    assert sorted(os.listdir(cache)) == ["sandbox", "wheels"]
    assert [os.listdir(os.path.join(cache, "sandbox", each, "env")) for each in os.listdir(os.path.join(cache, "sandbox"))] == [[]]
    # What is kept is checked before it is used.
    found = [os.path.join(folder, name) for folder, _, names in os.walk(cache) for name in names if "alpha" in name]
    good = open(found[0], "rb").read()
    with open(found[0], "ab") as file:
        file.write(b"x")
    driver.send({"op": "reset"})
    answer = driver.answer()
    assert "error" in answer and "was changed after its installation" in json.dumps(answer), answer
    with open(found[0], "wb") as file:
        file.write(good)
    driver.reset()
    assert driver.value("deps.remove('wc-beta')") is True
    driver.reset()
    assert driver.run("import wc_beta")["error"]["type"] == "ModuleNotFoundError"


def test_what_cannot_be_installed_says_why(project):
    driver = project[0]
    result = driver.run("deps.add('wc-native')", deadline=INSTALL_SECONDS)
    assert result["error"]["type"] == "DepsError", result
    assert "wc-native" in result["error"]["message"] and "pure Python" in result["error"]["message"]
    assert driver.run("deps.add('./x')")["error"]["type"] == "ValueError"
    assert driver.value("deps.list()") == []


def test_the_receipt_says_what_is_in_force():
    done = support.run_cells("1", flags=["--executor", "deno"])
    isolation = done.result["isolation"]
    assert (isolation["executor"], isolation["level"], isolation["network"], isolation["filesystem"]) == \
        ("deno", "wasm", "none", "memory")


def test_network_profiles_are_checked():
    done = support.run_cells("1", flags=["--executor", "deno", "--network", "some"])
    assert done.error_code == "invalid" and "deps-only" in done.error_message
    done = support.run_cells("1", flags=["--network", "none"])
    assert done.error_code == "invalid" and "deno" in done.error_message


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"index " + self.path.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


def fetch(port, profile):
    code = "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:%d/x', timeout=20).read().decode()" % port
    return support.run_cells(code, flags=["--executor", "deno", "--network", profile]).result


def test_the_network_is_what_the_profile_says(server, bare_python):
    """deps-only: the package index that pip is configured with, and nothing else."""
    config = os.path.join(os.path.dirname(os.path.dirname(bare_python)), "pip.conf")
    assert fetch(server, "full")["value"] == "index /x"
    refused = fetch(server, "deps-only")
    assert refused["error"]["type"] == "URLError" and "network profile" in refused["error"]["message"], refused
    with open(config, "w", encoding="utf-8") as file:
        file.write("[global]\nindex-url = http://127.0.0.1:%d/simple\n" % server)
    try:
        allowed = fetch(server, "deps-only")
    finally:
        os.unlink(config)
    assert allowed["value"] == "index /x" and allowed["isolation"]["network"] == "deps-only", allowed


def test_a_preload_that_is_not_there():
    done = support.run_cells("1", flags=["--executor", "deno", "--preload", "nosuch"])
    assert done.error_code == "preload_failed" and "nosuch" in done.error_message


def test_doctor_knows_it():
    (report,) = support.workcell("doctor", "--json").objects
    deno, = [e for e in report["executors"] if e["name"] == "deno"]
    assert deno["available"] is True and deno["isolation"] == "wasm"
    done = support.workcell("doctor", "--fix", "deno")
    assert done.status == 0 and "deno works" in done.out
    assert support.workcell("doctor", "--fix", "nosuch").error_code == "invalid"


def test_versions_are_the_same_everywhere():
    with open(os.path.join(support.ROOT, "deno", "package.json"), encoding="utf-8") as file:
        wanted = json.load(file)["dependencies"]
    with open(os.path.join(support.ROOT, "src", "executors", "deno", "deno.h"), encoding="utf-8") as file:
        known = dict(re.findall(r'#define CELL_(DENO|PYODIDE)_VERSION "([^"]+)"', file.read()))
    assert known == {"DENO": wanted["@deno/linux-x64-glibc"], "PYODIDE": wanted["pyodide"]}


def test_installing_without_npm_says_so(tmp_path):
    script = os.path.join(support.ROOT, "deno", "install.sh")
    for name in ("dirname", "sh"):
        os.symlink(shutil.which(name), tmp_path / name)
    done = support.subprocess.run([str(tmp_path / "sh"), script, str(tmp_path / "x")], env={"PATH": str(tmp_path)},
                                  stderr=support.subprocess.PIPE)
    assert done.returncode == 1 and b"npm" in done.stderr and not os.path.exists(tmp_path / "x")
