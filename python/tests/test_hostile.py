"""Results of code that is not trusted, read by a program of the host: what the SDK makes of them must stay harmless."""
import html
import os

import pytest

from workcell import FileStorage, SandboxConfig, SandboxExecutor
from workcell.sync import Session
from workcell.types import read_literal

PICTURE = "class P:\n  def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + b'x'\ndisplay(P())"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    top = tmp_path_factory.mktemp("hostile")
    (top / "work").mkdir()
    (top / "secret").write_text("of the host")
    config = SandboxConfig(cwd=top / "work", images_dir=top / "work" / "images")
    with Session(FileStorage(top / "data"), SandboxExecutor(config)) as session:
        session.top = top
        yield session


@pytest.mark.parametrize("way", ["os.symlink(secret, p)", "__import__('socket').socket(1).bind(p)", "os.mkdir(p)", "open(p, 'w').truncate(100 << 20)"])
def test_a_picture_that_was_replaced_is_not_read(place, way):
    """The file lies in the workspace: a link there must not make the program read another file, or wait, or fill its memory."""
    image, = place.run(PICTURE).images
    code = "import os\np, secret = %r, %r\nos.unlink(p)\n%s" % (str(image.path), str(place.top / "secret"), way)
    assert place.run(code).error is None and os.path.lexists(image.path)
    with pytest.raises(OSError):
        image.data


def test_a_notebook_says_that_a_picture_is_not_there(place):
    result = place.run(PICTURE)
    result.images[0].path.unlink()
    assert "No such file" in result._repr_mimebundle_()["text/html"]


def test_html_of_the_code_runs_nothing_in_a_notebook(place):
    """A script in the notebook's page can run code in the notebook's kernel; a picture of another host tells it what the code knows."""
    code = "class H:\n  def _repr_html_(self): return %r\nH()"
    for text in ("<script>fetch('/api')</script>", "\"></iframe><script>x</script>", "<img src=//example.org/?secret>", "'\">&quot;>"):
        shown = place.run(code % text)._repr_mimebundle_()["text/html"]
        assert shown.startswith('<iframe sandbox srcdoc="&lt;meta http-equiv=&quot;Content-Security-Policy&quot;'), shown
        assert shown.count("<") == 2 and shown.count('"') == 4 and text in html.unescape(shown)


@pytest.mark.parametrize("mime, data", [
    ("npy", b""), ("npy", b"PK\x03\x04"), ("npy", b"PK\x05\x06" + bytes(18)), ("npy", b"\x80\x04N."),
    ("npy", b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }".ljust(118)),
    ("npy", b"\x93NUMPY\x01\x00\x76\x00" + b"((((".ljust(118)), ("literal", b"UUID(1)"), ("literal", b"\xff"), ("literal", b"(" * 9000),
    ("pandas.parquet", b"PAR1"), ("dataframe.json", b"[]"), ("dataframe.json", b'{"schema": 5}'), ("../../x", b""),
], ids=lambda part: part if isinstance(part, str) else "")
def test_portable_values_that_are_none_are_texts(place, mime, data):
    """The code names the form of its value, and its bytes."""
    result = place.run("class V:\n  def __repr__(self): return 'shown'\n  def _repr_mimebundle_(self, **k):\n    return {'text/plain': 'shown', "
                       "'application/vnd.workcell.value.%s': %r}\nV()" % (mime, data))
    assert result.value == "shown" and "shown" in repr(result)


def test_numbers_of_too_many_digits_are_texts(place):
    """Reading digits takes quadratic time; Python's own limit must not be an error of the program."""
    assert place.run("[2 ** 20000]").value.startswith("[398")
    place.run("artifacts.save('big', {'a': 2 ** 20000})")
    with pytest.raises(ValueError, match="digits"):
        FileStorage(place.top / "data").get_artifact_store().load("big")


@pytest.mark.parametrize("text", ["{%s}", "{%s: 1}", "set([%s])", "frozenset((%s,))"])
def test_numbers_with_the_same_hash_are_not_put_together(text):
    """A set of them takes quadratic time: a megabyte would keep the program busy for minutes."""
    numbers = [str(n * (2 ** 61 - 1)) for n in range(1, 30000)]
    with pytest.raises(ValueError, match="hash"):
        read_literal(text % (": 1, " if ":" in text else ",").join(numbers))
    assert read_literal("{%s}" % ",".join(map(str, range(5000)))) == set(range(5000))
