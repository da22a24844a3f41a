"""Large libraries are loaded when they are first needed (src/base/libraries.c)."""
import os
import re
import subprocess

import pytest

import support

LAZY = {"libcurl.so": ["ps", "--remote-url", "http://127.0.0.1:9"],
        "libmicrohttpd.so": ["serve", "--listen", "unix:{}/socket", "--auth-disabled"],
        "libzmq.so": ["run", "--executor", "jupyter", "--python", support.PYTHON, "-e", "1"]}


def names_in(path):
    with open(path, "rb") as file:
        return {name.decode() for name in re.findall(rb"\0(lib(?:curl|microhttpd|gnutls|z|zmq|edit)\.so[.0-9]*)(?=\0)", file.read())}


@pytest.fixture(scope="module")
def library():
    path = os.path.join(os.path.dirname(support.BIN), "libworkcell.so.0")
    if not names_in(path):
        pytest.skip("the libraries are linked statically")
    return path


def test_a_program_does_not_load_what_it_does_not_need(library):
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert not [name for name in names_in(library) if "[%s]" % name in needed], needed


@pytest.mark.parametrize("prefix", sorted(LAZY))
def test_a_library_that_cannot_be_loaded_is_named(library, tmp_path, prefix):
    names = [name for name in names_in(library) if name.startswith(prefix)]
    if not names:
        pytest.skip("%s is not in this build" % prefix)
    (tmp_path / names[0]).write_bytes(b"")
    result = support.workcell(*(word.format(tmp_path) for word in LAZY[prefix]), env=support.host_environment(LD_LIBRARY_PATH=str(tmp_path)))
    assert (result.status, "load %s: " % names[0] in result.err) == (125, True), result
    assert os.listdir(tmp_path) == [names[0]], "the socket's file is left"
