"""The bridge to IPython.  Every test is a fresh interpreter with an empty HOME that must stay empty.

Without IPython in this interpreter only the last tests have something to say.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile

KERNEL = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel"))
HAVE_IPYTHON = importlib.util.find_spec("IPython") is not None
HAVE_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

PRELUDE = """
import contextlib, io, os, sys, threading, types
sys.path.insert(0, %r)
from workcell_kernel import display, interactive
module = types.ModuleType('__main__')
ns = module.__dict__
ns.update(In=[''], Out={}, display=display.display)
published = []
display.publish = lambda *a: published.append(a)
interactive.setup(ns, module)
out = err = ''

def run(source):
    global out, err
    ns['In'].append(source)
    o, e = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(o), contextlib.redirect_stderr(e):
            return interactive.get_interactive()._run_plain(source)
    finally:
        out, err = o.getvalue(), e.getvalue()

def raises(kind, source):
    try:
        run(source)
    except BaseException as e:
        assert type(e).__name__ == kind, (kind, e)
        return e
    raise AssertionError('expected ' + kind)
""" % KERNEL


def python(code, prelude=PRELUDE):
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        cwd = os.path.join(home, "cwd")
        os.mkdir(cwd)
        script.write(prelude + code)
        script.flush()
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": home,
            "LANG": "C.UTF-8",
            "MPLCONFIGDIR": cwd,
        }
        done = subprocess.run(
            [sys.executable, script.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=120,
            cwd=cwd,
            env=env,
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        assert os.listdir(home) == ["cwd"], os.listdir(home)
        return done


def bridge(code):
    if HAVE_IPYTHON:
        python(code + "\nassert threading.active_count() == 1, threading.enumerate()\n")


def test_create():
    bridge("""
import atexit, builtins
assert interactive.current is None and 'IPython' not in sys.modules
version = interactive.have_ipython()
assert 'IPython' not in sys.modules
import IPython
assert version == IPython.__version__
hooks = sys.displayhook, sys.excepthook, sys.stdout, sys.stderr, sys.modules['__main__'], sorted(sys.path)
before = dict(ns)
ip = interactive.get_interactive()
assert interactive.bridge_error == '', interactive.bridge_error
assert hooks == (sys.displayhook, sys.excepthook, sys.stdout, sys.stderr, sys.modules['__main__'], sorted(sys.path))
ns['mine'] = 1
pid = os.fork()
if not pid:
    atexit._run_exitfuncs()  # IPython's own would empty the namespace
    os._exit('mine' not in ns)
del ns['mine']
assert os.waitpid(pid, 0)[1] == 0
assert not hasattr(sys, 'ps1') and builtins.display is display.display
from IPython.core.interactiveshell import InteractiveShell
assert isinstance(ip, InteractiveShell) and InteractiveShell.instance() is ip and IPython.get_ipython() is ip
assert ip.user_ns is ns and ip.user_module is module and ip.user_global_ns is ns
assert all(ns[name] is value for name, value in before.items())
assert ns['get_ipython']() is ip and builtins.get_ipython() is ip and 'exit' not in ns
assert ip.history_manager.input_hist_parsed is ns['In'] and not ip.history_manager.enabled
assert os.listdir('.') == []
""")


def test_commands():
    bridge(r"""
assert run('!echo out; echo err >&2; exit 3') is None and (out, err) == ('out\n', 'err\n') and ns['_exit_code'] == 3
x = run('x = !echo a; echo b >&2\nx')
assert x == ['a', 'b'] and type(x).__module__ == 'IPython.utils.text' and x.n == 'a\nb'
run('def f(v):\n    !echo {v} $v\n    y = !echo $v\n    return y\nr = f("local")')
assert out == 'local local\n' and ns['r'] == ['local']
run('v = 5\nfor i in range(2):\n    !echo {v + i}')
assert out == '5\n6\n'
run('%ls -a')
assert out.split() == ['./', '../'] and '\x1b' not in out
assert run('%sx echo z') == ['z']
run('mkdir new.dir')
assert os.listdir('.') == ['new.dir']
run('%alias shout echo LOUD\n%shout x')
assert out == 'LOUD x\n'
""")


def test_magics():
    bridge(r"""
assert run('%time 1 + 1') == 2 and 'Wall time' in out
assert run('%%time\nx = 3\nx + 2') == 5
run('%timeit -n 1 -r 1 1')
assert 'per loop' in out
assert run('%pwd') == os.getcwd()
assert run('get_ipython().execution_count') == len(ns['In']) - 1 > 1
run('%cd /')
assert os.getcwd() == '/' and out == '/\n'
run('def f(x, y=3):\n    "doc"\nf?')
assert 'Signature:' in out and 'f(x, y=3)' in out and '\x1b' not in out
run('shell_tools = 1')
interactive.protected.add('shell_tools')
run('%who')
assert out.split() == ['f', 'x']
assert run('%who_ls') == ['f', 'x']
run('%reset -f')
assert 'x' not in ns and ns['shell_tools'] == 1 and ns['display'] is display.display and ns['get_ipython']
assert ns['In'][-1] == '%reset -f' and interactive.get_interactive().history_manager.input_hist_parsed is ns['In']
run('y = 1')
run('%reset')
assert 'y' not in ns
run('%history')
assert 'y = 1\n' in out
run('def g():\n    z = 4\n    %time q = z\n    return get_ipython().run_line_magic("time", "z + 1")\nr = g()')
assert ns['r'] == 5
run('%precision 2')
assert display.mime_bundle(1 / 3)[0] == {'text/plain': '0.33'} and display.mime_bundle([1 / 3])[0] == {'text/plain': '[0.33]'}
run('%precision')
run('%env WC_X=1')
assert os.environ['WC_X'] == '1'
run('%xmode Plain\n%colors nocolor')
run('%bookmark here\n%bookmark -l')
assert 'here' in out
run('%load_ext autoreload\n%autoreload 2')
for event in ('pre_execute', 'pre_run_cell', 'post_execute', 'post_run_cell'):
    interactive.get_interactive().fire(event, source='x')
""")


def test_scripts():
    bridge(r"""
run('%%bash\necho $((1 + 1)); echo e >&2')
assert (out, err) == ('2\n', 'e\n')
run('%%bash --out o\necho captured')
assert ns['o'] == 'captured\n' and out == ''
run('%%python3\nimport sys; print(sys.executable)')
assert out == sys.executable + '\n'
run('v = "-n"')
run('%%script cat {v}\nx')
assert out.split() == ['1', 'x']
assert raises('CalledProcessError', '%%sh\nexit 3').returncode == 3
raises('UsageError', '%%script nosuchprogram\nx')
""")


def test_errors_surface():
    bridge(r"""
raises('UsageError', '%nosuch')
raises('UsageError', '%%nosuch\nx')
raises('UsageError', '%env NO_SUCH_VARIABLE_HERE')
raises('ZeroDivisionError', '%time 1/0')
raises('ZeroDivisionError', '%%time\n1/0')
raises('ZeroDivisionError', '%%timeit -n1 -r1\n1/0')
raises('ZeroDivisionError', '%%capture c\nprint("before")\n1/0')
assert ns['c'].stdout == 'before\n' and sys.stdout is sys.__stdout__
with open('bad.py', 'w') as f:
    f.write('x = 1\nraise ValueError("in file")\n')
assert raises('ValueError', '%run bad.py').args == ('in file',)
with open('syntax.py', 'w') as f:
    f.write('x = = 1\n')
raises('SyntaxError', '%run syntax.py')
raises('ModuleNotFoundError', '%load_ext nosuch_extension')
with open('good.py', 'w') as f:
    f.write('import sys\nargv = sys.argv[1:]\n')
run('%run good.py 1 2')
assert ns['argv'] == ['1', '2']
result = run('get_ipython().run_cell("1/0")')
assert not result.success and 'ZeroDivisionError' in err and '\x1b' not in err
run('get_ipython().run_cell("y = 5")')
assert ns['y'] == 5
class Bad:
    def __repr__(self): return 'Bad'
    def _repr_html_(self): raise KeyError('html')
ns['Bad'] = Bad
run('%%capture c\ndisplay(Bad())\nprint("went on")')
assert ns['c'].stdout == 'went on\n' and 'KeyError' in ns['c'].stderr
""")


def test_display():
    bridge(r"""
import base64
ip = interactive.get_interactive()
PNG = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
ns['PNG'] = PNG
run('from IPython.display import HTML, Image, JSON, display as theirs, update_display, clear_output\n'
    'theirs(HTML("<b>"))\ndisplay(HTML("<i>"))\ntheirs(Image(data=PNG))\nh = theirs(1, display_id="me")\nh.update(2)')
assert [p[0].get('text/html') for p in published[:2]] == ['<b>', '<i>']
assert published[2][0]['image/png'] == PNG
assert published[3][2:] == ({'display_id': 'me'}, False) and published[4][2:] == ({'display_id': 'me'}, True)
cleared = []
display.clear = cleared.append
run('clear_output(wait=True)')
assert cleared == [True]
published.clear()
run('%%capture c\ntheirs(1)\ndisplay(2)\nprint("text")\n!echo sub\n[3]')
assert published == [] and ns['c'].stdout == 'text\nsub\n'
assert [o.data['text/plain'] for o in ns['c'].outputs] == ['1', '2', '[3]']
run('c.show()')
assert [p[0]['text/plain'] for p in published] == ['1', '2', '[3]'] and out == 'text\nsub\n'
published.clear()
run('%%html\n<p>')
assert published[0][0]['text/html'].strip() == '<p>'
class Own: pass
assert display.mime_bundle(Own())[0].keys() == {'text/plain'}
html = ip.display_formatter.formatters['text/html']
html.for_type(Own, lambda o: '<own>')
assert display.mime_bundle(Own())[0]['text/html'] == '<own>'
html.pop(Own)
ip.display_formatter.formatters['text/plain'].for_type(Own, lambda o, p, cycle: p.text('plain own'))
assert display.mime_bundle([Own()])[0] == {'text/plain': '[plain own]'}
class Rich:
    def _repr_png_(self): return PNG, {'width': 1}
assert display.mime_bundle(Rich())[0]['image/png'] == PNG and display.mime_bundle(Rich())[1] == {'image/png': {'width': 1}}
""")


def test_matplotlib():
    if HAVE_MATPLOTLIB:
        bridge(r"""
run('import matplotlib\nmatplotlib.use("agg")\nfrom matplotlib.figure import Figure\nfrom IPython.display import display as theirs\n'
    'fig = Figure()\nfig.add_subplot()\ntheirs(fig)')
assert published[0][0]['image/png'].startswith(b'\x89PNG')
assert display.mime_bundle(ns['fig'])[0]['image/png'].startswith(b'\x89PNG')
import importlib.util
if importlib.util.find_spec('matplotlib_inline') is not None:
    published.clear()
    run('%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])')
    interactive.get_interactive().fire('post_execute')
    assert published[0][0]['image/png'].startswith(b'\x89PNG'), published
    run('plt.plot([1])\nplt.show()')
    assert len(published) == 2
""")


def test_warm_and_fork():
    bridge(r"""
for step in interactive.warm_steps():
    step()
    assert threading.active_count() == 1, step
assert interactive.current is not None and interactive.bridge_error == ''
def child(check):
    pid = os.fork()
    if not pid:
        try:
            check()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def works():
    assert run('x = !echo child\nx') == ['child']
    assert run('%time 2') == 2
    run('%%bash\necho in bash')
    assert out == 'in bash\n' and threading.active_count() == 1
def other_namespace():
    other = {'In': [''], 'Out': {}, 'y': 7}
    ip = interactive.get_interactive(other)
    assert ip is interactive.current and ip.user_ns is other and ip.history_manager.input_hist_parsed is other['In']
    assert ip.run_line_magic('who_ls', '') == ['y'] and ip.getoutput('echo {y}') == ['7']
child(works)
child(other_namespace)
works()
""")


def test_import_hook():
    bridge(r"""
interactive.install_import_hook()
interactive.install_import_hook()
assert sys.meta_path.count(interactive._import_hook) == 1
import importlib.util, json.tool
assert interactive.have_ipython() and importlib.util.find_spec('IPython').origin
assert interactive.current is None and 'IPython' not in sys.modules
exec('from IPython.display import HTML, display', ns)
assert interactive.current is not None and interactive.bridge_error == ''
import IPython
assert IPython.get_ipython() is interactive.current and interactive.get_interactive() is interactive.current
assert interactive._import_hook not in sys.meta_path
assert type(IPython.__loader__).__name__ == type(IPython.__spec__.loader).__name__ == 'SourceFileLoader'
exec('display(HTML("<b>"))', ns)
assert published[0][0]['text/html'] == '<b>'
""")


def test_plain_syntax_errors_make_no_interactive_layer():
    bridge(r'''
for source in ('x =', 'a b c', 'print("a"', 'for', '"""', 'x = 5 5'):
    assert interactive.transform(source) == source
assert interactive.current is None and 'IPython' not in sys.modules
assert interactive.transform('!ls').startswith('get_ipython().system')
assert interactive.current is not None
assert 'run_line_magic' in interactive.transform('pip install x')
''')
    python(r"""
assert 'run_line_magic' in interactive.transform('pip install x')
""")


def test_ipython_that_comes_later():
    bridge(r"""
import importlib, IPython
where = os.path.dirname(os.path.dirname(IPython.__file__))
for name in list(sys.modules):
    if name.partition('.')[0] == 'IPython':
        del sys.modules[name]
full = list(sys.path)
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == 'IPython':
            raise ModuleNotFoundError(name, name=name)
hide = Hide()
sys.meta_path.insert(0, hide)
first = interactive.get_interactive()
assert type(first) is interactive.Interactive and interactive.have_ipython() == ''
sys.meta_path.remove(hide)
interactive.install_import_hook()
import IPython
assert interactive.get_interactive() is not first and IPython.get_ipython() is interactive.get_interactive()
""")


def test_broken_ipython():
    python(r"""
with open('IPython.py', 'w') as f:
    f.write('__version__ = "0.1"\n')
sys.path.insert(0, os.getcwd())
assert run('x = !echo works\nx') == ['works']
assert type(interactive.current) is interactive.Interactive and 'IPython' in interactive.bridge_error, interactive.bridge_error
""")


def test_hook_without_ipython():
    python(r"""
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == 'IPython':
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hide())
interactive.install_import_hook()
for attempt in range(2):
    try:
        import IPython
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError
assert type(interactive.get_interactive()) is interactive.Interactive
""")


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    main()
