"""Ways out of the `deno` executor that must not exist.

JS: expressions of JavaScript, each tried by code that has the global object, Deno and eval in its hands (the boundary is then
Deno's permissions and flags alone), and through every route that code in a session has to eval (which must be none).
PYTHON: cells, tried in a session as it is.  Each must raise; `MARK` in the output or value means that it got through.
"""

# ---- with everything reachable: what Deno itself must refuse ----------------------------------------------------

SECRET = "/etc/hostname"

JS = {
    # reading
    "read a file": "Deno.readTextFileSync('/etc/passwd')",
    "read a file, async": "await Deno.readTextFile('/etc/passwd')",
    "read through ..": "Deno.readTextFileSync('/tmp/../etc/passwd')",
    "read a folder": "[...Deno.readDirSync('/')]",
    "stat": "Deno.statSync('/etc/passwd')",
    "lstat": "Deno.lstatSync('/etc/passwd')",
    "realPath": "Deno.realPathSync('/proc/self/exe')",
    "readLink": "Deno.readLinkSync('/proc/self/cwd')",
    "/proc/self/environ": "Deno.readTextFileSync('/proc/self/environ')",
    "/proc/self/mem": "Deno.openSync('/proc/self/mem', {read: true})",
    "/dev/stdin": "Deno.openSync('/dev/stdin')",
    "node:fs": "(await import('node:fs')).readFileSync('/etc/passwd', 'utf8')",
    "node:fs open": "(await import('node:fs')).openSync('/etc/passwd')",
    "node:fs readdir": "(await import('node:fs')).readdirSync('/')",
    "node:fs promises": "await (await import('node:fs/promises')).readFile('/etc/passwd')",
    "fetch file:": "await (await fetch('file:///etc/passwd')).text()",
    "import a local file": "await import('file:///etc/passwd')",
    "import local json": "await import('file:///etc/passwd', {with: {type: 'json'}})",
    "import through data:": "await import('data:text/javascript,import \"file:///etc/passwd\"')",
    "import through blob:":
        "await import(URL.createObjectURL(new Blob(['import \"file:///etc/passwd\"'], {type: 'text/javascript'})))",
    "createRequire": "(await import('node:module')).createRequire('file:///tmp/x.js')('/etc/passwd')",
    "what the main isolate may read": "Deno.readFileSync(PARENT_FILE)",
    "sqlite of a file": "new (await import('node:sqlite')).DatabaseSync('/tmp/workcell-escape.db')",
    "sqlite attach":
        "new (await import('node:sqlite')).DatabaseSync(':memory:').exec(\"attach '/tmp/workcell-escape.db' as x\")",
    "watchFs": "Deno.watchFs('/')",
    # writing
    "write a file": "Deno.writeTextFileSync('/tmp/workcell-escape', 'x')",
    "write a file, async": "await Deno.writeTextFile('/tmp/workcell-escape', 'x')",
    "makeTempFile": "Deno.makeTempFileSync()",
    "makeTempDir": "Deno.makeTempDirSync()",
    "mkdir": "Deno.mkdirSync('/tmp/workcell-escape')",
    "remove": "Deno.removeSync('/tmp/workcell-escape-none')",
    "rename": "Deno.renameSync('/tmp/a', '/tmp/workcell-escape')",
    "symlink": "Deno.symlinkSync('/etc/passwd', '/tmp/workcell-escape')",
    "link": "Deno.linkSync('/etc/passwd', '/tmp/workcell-escape')",
    "chmod": "Deno.chmodSync('/tmp', 0o777)",
    "chown": "Deno.chownSync('/tmp', 0, 0)",
    "truncate": "Deno.truncateSync('/tmp/workcell-escape', 1)",
    "utime": "Deno.utimeSync('/tmp', 0, 0)",
    "node:fs write": "(await import('node:fs')).writeFileSync('/tmp/workcell-escape', 'x')",
    "node:fs mkdtemp": "(await import('node:fs')).mkdtempSync('/tmp/workcell-escape')",
    "heap snapshot": "(await import('node:v8')).writeHeapSnapshot('/tmp/workcell-escape')",
    "Cache API": "await (await caches.open('x')).put('https://x.invalid/', new Response('x'))",
    "localStorage": "localStorage.setItem('a', 'b')",
    "chdir": "Deno.chdir('/tmp')",
    # the environment and the system
    "Deno.env": "Deno.env.get('DENO_DIR')",
    "Deno.env, all": "Deno.env.toObject()",
    "set the environment": "Deno.env.set('A', 'b')",
    "process.env": "(await import('node:process')).env.DENO_DIR.length",
    "hostname": "Deno.hostname()",
    "loadavg": "Deno.loadavg()",
    "interfaces": "Deno.networkInterfaces()",
    "uid": "Deno.uid()",
    "gid": "Deno.gid()",
    "memory of the system": "Deno.systemMemoryInfo()",
    "os release": "Deno.osRelease()",
    "node:os userInfo": "(await import('node:os')).userInfo()",
    "node:os hostname": "(await import('node:os')).hostname()",
    "inspector": "(await import('node:inspector')).open()",
    # the network
    "fetch": "await fetch('http://127.0.0.1:PORT/')",
    "fetch https": "await fetch('https://127.0.0.1:PORT/')",
    "connect": "await Deno.connect({hostname: '127.0.0.1', port: PORT})",
    "connectTls": "await Deno.connectTls({hostname: '127.0.0.1', port: PORT})",
    "unix socket": "await Deno.connect({transport: 'unix', path: '/run/x.sock'})",
    "listen": "Deno.listen({port: 0})",
    "listen on a unix socket": "Deno.listen({transport: 'unix', path: '/tmp/workcell-escape.sock'})",
    "serve": "Deno.serve({port: 0}, () => new Response('x'))",
    "DNS": "await Deno.resolveDns('localhost', 'A')",
    "WebSocket": "new WebSocket('ws://127.0.0.1:PORT/')",
    "EventSource": "await new Promise((ok, no) => { const e = new EventSource('http://127.0.0.1:PORT/'); e.onopen = ok; "
                   "e.onerror = () => no(Error('denied')) })",
    "node:net": "await new Promise((ok, no) => import('node:net').then(n => n.connect(PORT, '127.0.0.1', ok).on('error', no)))",
    "node:http": "await new Promise((ok, no) => import('node:http').then(h => h.get('http://127.0.0.1:PORT/', ok).on('error', no)))",
    "node:dns": "await (await import('node:dns/promises')).lookup('localhost')",
    "node:dgram": "await new Promise((ok, no) => import('node:dgram').then(d => { const s = d.createSocket('udp4'); "
                  "s.on('error', no); s.bind(0, ok) }))",
    "import npm:": "await import('npm:left-pad')",
    "import jsr:": "await import('jsr:@std/path')",
    "import https:": "await import('https://esm.sh/left-pad')",
    "import http:": "await import('http://127.0.0.1:PORT/x.js')",
    # processes and native code
    "Deno.Command": "new Deno.Command('/bin/true').outputSync()",
    "Deno.kill": "Deno.kill(1, 'SIGCONT')",
    "process.kill": "(await import('node:process')).kill(1, 0)",
    "child_process": "(await import('node:child_process')).execSync('true')",
    "child_process spawn": "(await import('node:child_process')).spawnSync('/bin/true').status.length",
    "dlopen": "Deno.dlopen('/lib/x86_64-linux-gnu/libc.so.6', {getpid: {parameters: [], result: 'i32'}})",
    "process.dlopen": "(await import('node:process')).dlopen({exports: {}}, '/tmp/x.node')",
    "pointer": "Deno.UnsafePointer.create(4096n)",
    "WebGPU": "await (async () => { const a = await navigator.gpu.requestAdapter(); if (!a) throw Error('no adapter') })()",
    # more permissions
    "ask for read": "(() => { const s = Deno.permissions.requestSync({name: 'read'}); if (s.state !== 'granted') throw Error(s.state) })()",
    "ask for net": "(() => { const s = Deno.permissions.requestSync({name: 'net'}); if (s.state !== 'granted') throw Error(s.state) })()",
    "ask for run": "(() => { const s = Deno.permissions.requestSync({name: 'run'}); if (s.state !== 'granted') throw Error(s.state) })()",
    "a worker with more":
        "new Worker('data:text/javascript,0', {type: 'module', deno: {permissions: {read: true}}})",
    "a worker that inherits": "await new Promise((ok, no) => { const w = new Worker(\"data:text/javascript,try { "
                              "Deno.readTextFileSync('/etc/passwd'); postMessage('read') } catch (e) { postMessage(String(e)) }\", "
                              "{type: 'module'}); w.onmessage = m => m.data === 'read' ? ok(1) : no(Error(m.data)) })",
}

# What a refusal looks like.  A missing function is none: it would hide that the attempt was never made.
REFUSED = (r"NotCapable|Requires \w+ access|Can't escalate|denied|--no-npm|no adapter|max 0|getaddrinfo EPERM"
           r"|Failed to create cache storage directory /dev/null|localStorage is not defined")

# ---- in a session as it is ---------------------------------------------------------------------------------------

PYTHON = {
    "js.Deno": "import js\njs.Deno",
    "js.process": "import js\njs.process",
    "js.globalThis": "import js\njs.globalThis.Deno",
    "js.self": "import js\njs.self.Deno",
    "js.eval": "import js\njs.eval('1')",
    "js.Function": "import js\njs.Function('return 1')()",
    "js.fetch": "import js\njs.fetch('http://127.0.0.1/')",
    "js.Worker": "import js\njs.Worker.new('data:text/javascript,0')",
    "js.WebAssembly": "import js\njs.WebAssembly.Module",
    "js.navigator": "import js\njs.navigator.gpu",
    "js.caches": "import js\njs.caches.open('x')",
    "js.postMessage": "import js\njs.postMessage(1)",
    "run_js": "from pyodide.code import run_js\nrun_js('1 + 1')",
    "run_js of Deno": "from pyodide.code import run_js\nrun_js(\"Deno.readTextFileSync('/etc/passwd')\")",
    "a constructor's constructor": "import pyodide_js\npyodide_js.constructor.constructor('return globalThis')()",
    "the constructor of a bridge function": "import _workcell_bridge as b\nb.send.constructor('return globalThis')()",
    "the constructor of an async function": "import pyodide_js\npyodide_js.loadPackage.constructor('return 1')()",
    # CVE-2026-5752 and its kind: from any object along its prototypes to Function.
    "the prototype of a map": "from pyodide.ffi import to_js\nto_js({}).__proto__.constructor.constructor('return globalThis')().Deno",
    "the constructor of an array": "from pyodide.ffi import to_js\nto_js([]).constructor.constructor('return globalThis')().Deno",
    "the prototype's prototype": "from pyodide.ffi import to_js\n"
                                 "to_js([]).__proto__.__proto__.constructor.constructor('return globalThis')().Deno",
    "the constructor of bytes": "from pyodide.ffi import to_js\nto_js(b'x').constructor.constructor('return globalThis')().Deno",
    "the constructor of a proxy": "from pyodide.ffi import create_proxy, to_js\n"
                                  "to_js([create_proxy(print)])[0].constructor.constructor('return globalThis')().Deno",
    "the constructor of an error": "import pyodide_js\ntry:\n    pyodide_js.FS.open('/none', 'r')\nexcept Exception as e:\n"
                                   "    e.js_error.constructor.constructor('return globalThis')().Deno",
    "the constructor of a promise": "import pyodide_js\npyodide_js.loadPackage([]).constructor.constructor('return globalThis')().Deno",
    "getPrototypeOf": "import js\njs.Object.getPrototypeOf(js.Object).constructor('return globalThis')().Deno",
    "Reflect": "import js\njs.Reflect.construct(js.Function, ['return globalThis'])().Deno",
    "a getter on every object": "import js\njs.Object.prototype.__defineGetter__('x', print)\njs.Object.x",
    "__lookupGetter__": "from pyodide.ffi import to_js\nto_js({}).__lookupGetter__('__proto__').constructor('return globalThis')().Deno",
    "the constructor of a generator": "import pyodide_js\n"
                                      "pyodide_js.FS.constructor.constructor('return globalThis')().Deno",
    "Deno through the module":
        "import pyodide_js\n[getattr(pyodide_js._module, name) for name in ('Deno', 'process', 'require')]",
    "a package of Pyodide's": "import pyodide_js\npyodide_js.loadPackage('micropip')\nimport micropip",
    "loadPackage of a file": "import pyodide_js\npyodide_js.loadPackage('file:///etc/passwd')\nopen('/etc/passwd')",
    "pyfetch": "from pyodide.http import pyfetch\nawait pyfetch('http://127.0.0.1:1/')",
    "open_url": "from pyodide.http import open_url\nopen_url('http://127.0.0.1:1/')",
    "the host's file": "open(%r).read()" % SECRET,
    "the host's /etc/passwd": "open('/etc/passwd').read()",
    "/proc/self/environ": "open('/proc/self/environ').read()",
    "the host's folders": "import os\nos.listdir('/etc')",
    "mountNodeFS": "import pyodide_js\npyodide_js.mountNodeFS('/mnt', '/')\nopen('/mnt/etc/passwd').read()",
    "urllib": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT/', timeout=5).read()",
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 5)",
    "socket.socket": "import socket\ns = socket.socket()\ns.settimeout(3)\ns.connect(('127.0.0.1', PORT))\n"
                     "s.send(b'GET / HTTP/1.0\\r\\n\\r\\n')\nassert s.recv(10)",
    "subprocess": "import subprocess\nsubprocess.run(['/bin/true'])",
    "os.system": "import os\nif os.system('true') != 0:\n    raise OSError('refused')",
    "os.fork": "import os\nos.fork()",
    "os.execv": "import os\nos.execv('/bin/true', ['true'])",
    "os.posix_spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})",
    "os.kill": "import os\nos.kill(1, 0)",
    "!cmd": "!id",
    "%%bash": "%%bash\nid",
    "ctypes": "import ctypes\nctypes.CDLL('libc.so.6').system(b'id')",
    "threads": "import threading\nthreading.Thread(target=print).start()",
    "the environment of the host": "import os\nos.environ['DENO_DIR']",
}
