// E2B's JavaScript clients, unmodified, against `workcell serve --e2b`: tests/e2e/test_serve_e2b_javascript.py starts the server and sets the
// variables that its user would set, E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY; STRANGER_KEY is the token of somebody else.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

// The packages are in build/e2b, which scripts/setup.sh makes.
const require = createRequire(process.env.PACKAGES + "/package.json");
const { Sandbox } = require("@e2b/code-interpreter");
const { AuthenticationError, CommandExitError, FileNotFoundError, NotFoundError, SandboxNotFoundError, TimeoutError, Sandbox: PlainSandbox } = require("e2b");

const DEADLINE_MS = 60000;
let sandbox;

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600000, envs: { OWN: "v" }, metadata: { who: "shared", x: "1 & ü" } });
});

after(async () => {
  await sandbox.kill();
});

async function until(condition, what) {
  const end = Date.now() + DEADLINE_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < end, what);
    await new Promise((done) => setTimeout(done, 20));
  }
}

async function all(pages) {
  const found = [];
  while (pages.hasNext) found.push(...(await pages.nextItems()));
  return found;
}

test("a sandbox is listed, described, connected to and killed", async () => {
  const made = await Sandbox.create({ timeoutMs: 77000, metadata: { k: "ü=&" } });
  const info = await made.getInfo();
  assert.deepEqual([info.sandboxId, info.metadata, info.state], [made.sandboxId, { k: "ü=&" }, "running"]);
  const seconds = (info.endAt - info.startedAt) / 1000;
  assert.ok(seconds > 70 && seconds <= 78, String(seconds));
  const found = await all(Sandbox.list({ query: { metadata: { k: "ü=&" } } }));
  assert.deepEqual(found.map((one) => one.sandboxId), [made.sandboxId]);
  assert.deepEqual(await all(Sandbox.list({ query: { metadata: { k: "other" } } })), []);
  await made.runCode("x = 41");
  const again = await Sandbox.connect(made.sandboxId);
  assert.equal((await again.runCode("x + 1")).text, "42");
  assert.equal(await made.isRunning(), true);
  assert.equal(await made.kill(), true);
  assert.equal(await made.isRunning(), false);
  await assert.rejects(Sandbox.connect(made.sandboxId), SandboxNotFoundError);
});

test("lists have pages", async () => {
  const made = [];
  for (let i = 0; i < 3; i++) made.push(await Sandbox.create({ metadata: { pages: "js" } }));
  const pages = Sandbox.list({ query: { metadata: { pages: "js" } }, limit: 2 });
  assert.equal((await pages.nextItems()).length, 2);
  assert.equal(pages.hasNext, true);
  assert.equal((await pages.nextItems()).length, 1);
  assert.equal(pages.hasNext, false);
  await Promise.all(made.map((one) => one.kill()));
});

test("a timeout ends a sandbox or pauses it", async () => {
  const ends = await Sandbox.create(), pauses = await Sandbox.create({ lifecycle: { onTimeout: "pause" } });
  await pauses.runCode("kept = 5");
  await ends.setTimeout(0);
  await pauses.setTimeout(0);
  await until(async () => !(await ends.isRunning()) && !(await pauses.isRunning()), "they still run");
  await assert.rejects(ends.connect(), SandboxNotFoundError);
  assert.equal((await pauses.getInfo()).state, "paused");
  await pauses.connect();
  assert.equal((await pauses.runCode("kept")).text, "5");
  await pauses.kill();
});

test("a paused sandbox keeps its state", async () => {
  const made = await Sandbox.create();
  await made.runCode("x = 41");
  await made.files.write("kept.txt", "k");
  assert.equal(await made.pause(), true);
  assert.equal(await made.pause(), false);
  assert.equal(await made.isRunning(), false);
  const again = await Sandbox.connect(made.sandboxId);
  assert.equal((await again.runCode("x + 1")).text, "42");
  assert.equal(await again.files.read("kept.txt"), "k");
  await again.kill();
});

test("forks go on from the same state", async () => {
  const made = await Sandbox.create();
  await made.runCode("x = 1");
  const [first, second] = await made.fork({ count: 2 });
  await first.runCode("x = 2");
  const values = [];
  for (const one of [made, first, second]) values.push((await one.runCode("x")).text);
  assert.deepEqual(values, ["1", "2", "1"]);
  for (const one of [made, first, second]) await one.kill();
});

test("another token finds nothing, and a wrong one is refused", async () => {
  const stranger = { apiKey: process.env.STRANGER_KEY };
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, stranger), SandboxNotFoundError);
  assert.equal(await Sandbox.kill(sandbox.sandboxId, stranger), false);
  assert.deepEqual(await all(Sandbox.list(stranger)), []);
  await assert.rejects(Sandbox.create({ apiKey: "e2b_" + "0".repeat(40) }), AuthenticationError);
  assert.equal(await sandbox.isRunning(), true);
});

test("what has no meaning here is refused", async () => {
  await assert.rejects(Sandbox.create("somebodys-template"), /template/);
});

test("results, output and errors of code", async () => {
  const done = await sandbox.runCode("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'text'");
  assert.deepEqual([done.text, done.logs.stdout, done.logs.stderr, done.error], ["text", ["out\n"], ["err\n"], undefined]);
  const { error } = await sandbox.runCode("1/0");
  assert.deepEqual([error.name, error.value], ["ZeroDivisionError", "division by zero"]);
  assert.match(error.traceback, /1\/0/);
  assert.deepEqual((await sandbox.runCode("pass")).results, []);
});

test("all forms of a result", async () => {
  const code = `
class Rich:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "t", "text/html": "<b>", "text/markdown": "*m*", "image/svg+xml": "<svg/>", "image/png": b"\\x89PNG",
                "image/jpeg": b"\\xff\\xd8", "application/pdf": b"%PDF", "text/latex": "$x$", "application/json": {"a": [1, None]},
                "application/javascript": "1;", "application/x-own": "own"}
display(Rich())
Rich()`;
  const [shown, value] = (await sandbox.runCode(code)).results;
  assert.deepEqual([shown.isMainResult, value.isMainResult], [false, true]);
  for (const one of [shown, value]) {
    assert.deepEqual([one.text, one.html, one.markdown, one.svg, one.latex, one.javascript], ["t", "<b>", "*m*", "<svg/>", "$x$", "1;"]);
    assert.deepEqual([one.png, one.jpeg, one.pdf, one.json], ["iVBORw==", "/9g=", "JVBERg==", { a: [1, null] }]);
    assert.deepEqual(one.raw.extra, { "application/x-own": "own" }); // the client does not read it
  }
});

test("output comes while the cell runs", async () => {
  // The cell ends only because its first line arrived: the file that it waits for is written by the callback.
  const lines = [], written = [];
  const done = await sandbox.runCode(
    "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('seen'): time.sleep(0.01)\nprint('two')\nos.remove('seen')",
    {
      timeoutMs: DEADLINE_MS,
      onStdout: ({ line }) => {
        lines.push(line);
        if (lines.length === 1) written.push(sandbox.files.write("seen", ""));
      },
    });
  await Promise.all(written);
  assert.equal(done.error, undefined);
  assert.deepEqual(lines, ["one\n", "two\n"]);
  const results = [];
  await sandbox.runCode("display(1)\n2", { onResult: (result) => { results.push(result.text); } });
  assert.deepEqual(results, ["1", "2"]);
  let error;
  await sandbox.runCode("raise KeyError('k')", { onError: (found) => { error = found.name; } });
  assert.equal(error, "KeyError");
});

test("variables of the sandbox and of one cell", async () => {
  const get = "import os; ' '.join(os.environ.get(name, '-') for name in ('OWN', 'ONE', 'E2B_SANDBOX'))";
  assert.equal((await sandbox.runCode(get, { envs: { ONE: "ü", OWN: "w" } })).text, "w ü true");
  assert.equal((await sandbox.runCode(get)).text, "v - true");
});

test("contexts share files and not variables", async () => {
  const context = await sandbox.createCodeContext();
  await sandbox.runCode("mine = 1; open('shared.txt', 'w').write('s')", { context });
  assert.equal((await sandbox.runCode("mine, open('shared.txt').read()", { context })).text, "(1, 's')");
  assert.equal((await sandbox.runCode("mine")).error.name, "NameError");
  assert.ok((await sandbox.listCodeContexts()).some((one) => one.id === context.id));
  await sandbox.restartCodeContext(context);
  assert.equal((await sandbox.runCode("mine", { context })).error.name, "NameError");
  await sandbox.removeCodeContext(context);
  await assert.rejects(sandbox.runCode("1", { context }), NotFoundError);
  assert.deepEqual((await sandbox.runCode("echo $((1+1)) $OWN", { language: "bash" })).logs.stdout, ["2 v\n"]);
  await assert.rejects(sandbox.runCode("1", { language: "r" }), /400/);
});

test("a client that leaves interrupts its cell", async () => {
  const made = await Sandbox.create();
  await assert.rejects(made.runCode("import time\ntime.sleep(600)", { timeoutMs: 500 }), TimeoutError);
  assert.equal((await made.runCode("1", { timeoutMs: 15000 })).text, "1"); // much earlier than the server's next keep-alive
  await made.kill();
});

test("files go both ways", async () => {
  const written = await sandbox.files.write("a/b.txt", "hellö");
  assert.deepEqual([written.name, written.path], ["b.txt", "/home/user/a/b.txt"]);
  assert.equal(await sandbox.files.read("/home/user/a/b.txt"), "hellö");
  assert.equal((await sandbox.runCode("open('a/b.txt').read()")).text, "hellö");
  const data = new Uint8Array(3000000).map((_, i) => i * 7);
  await sandbox.files.write("big", new Blob([data]));
  assert.deepEqual(Buffer.from(await sandbox.files.read("big", { format: "bytes" })), Buffer.from(data));
  const parts = [];
  for await (const part of await sandbox.files.read("big", { format: "stream" })) parts.push(Buffer.from(part));
  assert.deepEqual(Buffer.concat(parts), Buffer.from(data));
  await sandbox.files.write([{ path: "m/1", data: "one" }, { path: "m/2", data: "two" }]);
  assert.deepEqual([await sandbox.files.read("m/1"), await sandbox.files.read("m/2")], ["one", "two"]);
});

test("folders", async () => {
  assert.equal(await sandbox.files.makeDir("f/g"), true);
  assert.equal(await sandbox.files.makeDir("f/g"), false);
  await sandbox.files.write("f/g/x", "123");
  const listed = (await sandbox.files.list("f", { depth: 2 })).map((one) => [one.path, one.type]);
  assert.deepEqual(listed.sort(), [["/home/user/f/g", "dir"], ["/home/user/f/g/x", "file"]]);
  assert.equal((await sandbox.files.rename("f/g/x", "f/y")).path, "/home/user/f/y");
  const info = await sandbox.files.getInfo("f/y");
  assert.deepEqual([info.name, info.size], ["y", 3]);
  assert.equal(await sandbox.files.exists("f/g/x"), false);
  await sandbox.files.remove("f");
  await assert.rejects(sandbox.files.read("f/y"), FileNotFoundError);
  for (const path of ["/etc/passwd", "../../etc/passwd", "/home/user/../x"]) await assert.rejects(sandbox.files.read(path), path);
});

test("watchers", async () => {
  await sandbox.files.makeDir("w");
  const events = [];
  const watcher = await sandbox.files.watchDir("w", (event) => { events.push([event.type, event.name]); }, { recursive: true });
  await sandbox.files.write("w/new.txt", "1");
  await sandbox.files.makeDir("w/sub");
  await until(() => events.some(([type, name]) => type === "create" && name === "sub"), () => JSON.stringify(events));
  await sandbox.files.write("w/sub/inner.txt", "1");
  await until(() => events.some(([, name]) => name === "sub/inner.txt"), JSON.stringify(events));
  assert.ok(events.some(([, name]) => name === "new.txt"), JSON.stringify(events));
  await watcher.stop();
});

test("signed addresses are for one file and one operation", async () => {
  await sandbox.files.write("signed.txt", "s");
  const get = await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 });
  // A server with several workers knows by it which one has the sandbox; in production the host name says it.
  const headers = process.env.WORKERS === "1" ? {} : { "E2b-Sandbox-Id": sandbox.sandboxId };
  assert.equal(await (await fetch(get, { headers })).text(), "s");
  const put = await sandbox.uploadUrl("other.txt");
  const form = new FormData();
  form.append("file", new Blob(["new"]), "other.txt");
  assert.equal((await fetch(put, { method: "POST", body: form, headers })).status, 200);
  assert.equal(await sandbox.files.read("other.txt"), "new");
  const expired = await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: -5 });
  for (const wrong of [get.replace("signed.txt", "other.txt"), get.slice(0, -1), expired, put]) assert.equal((await fetch(wrong, { headers })).status, 401, wrong);
});

test("commands have output, input and a status", async () => {
  const done = await sandbox.commands.run("echo out; echo err >&2; echo $OWN $ONE; pwd", { envs: { ONE: "1" } });
  assert.deepEqual([done.exitCode, done.stdout, done.stderr], [0, "out\nv 1\n/home/user\n", "err\n"]);
  await assert.rejects(sandbox.commands.run("echo x; exit 3"), (error) => error instanceof CommandExitError && error.exitCode === 3 && error.stdout === "x\n");
  const handle = await sandbox.commands.run("while read line; do echo got $line; done; exit 4", { background: true, stdin: true });
  assert.ok((await sandbox.commands.list()).some((one) => one.pid === handle.pid));
  await sandbox.commands.sendStdin(handle.pid, "a\n");
  await sandbox.commands.sendStdin(handle.pid, "b\n");
  await sandbox.commands.closeStdin(handle.pid);
  await assert.rejects(handle.wait(), (error) => error.exitCode === 4 && error.stdout === "got a\ngot b\n");
  const chunks = [];
  const waiting = await sandbox.commands.run("echo before; read x; echo after", { background: true, stdin: true, onStdout: (text) => { chunks.push(text); } });
  await until(() => chunks.join("") === "before\n", "the first line");
  await waiting.disconnect();
  const again = await sandbox.commands.connect(waiting.pid);
  await sandbox.commands.sendStdin(waiting.pid, "\n");
  assert.equal((await again.wait()).stdout, "after\n");
  const killed = await sandbox.commands.run("sleep 600", { background: true });
  assert.equal(await killed.kill(), true);
  await assert.rejects(killed.wait(), CommandExitError);
  assert.equal(await sandbox.commands.kill(killed.pid), false);
  await assert.rejects(sandbox.commands.connect(999999), NotFoundError);
  await assert.rejects(sandbox.commands.run("sleep 600", { timeoutMs: 300 }), TimeoutError);
});

test("a terminal", async () => {
  const seen = [];
  const handle = await sandbox.pty.create({ rows: 11, cols: 33, envs: { PS1: "$ " }, onData: (data) => { seen.push(Buffer.from(data)); } });
  await sandbox.pty.sendInput(handle.pid, Buffer.from("stty size\n"));
  await until(() => Buffer.concat(seen).includes("11 33"), () => Buffer.concat(seen).toString());
  await sandbox.pty.resize(handle.pid, { rows: 22, cols: 44 });
  await sandbox.pty.sendInput(handle.pid, Buffer.from("stty size; exit 5\n"));
  await assert.rejects(handle.wait(), (error) => error.exitCode === 5);
  assert.ok(Buffer.concat(seen).includes("22 44"), Buffer.concat(seen).toString());
});

test("the plain client works with the same sandbox", async () => {
  const plain = await PlainSandbox.connect(sandbox.sandboxId);
  await plain.files.write("plain.txt", "p");
  assert.equal(await sandbox.files.read("plain.txt"), "p");
  assert.equal((await plain.commands.run("cat plain.txt")).stdout, "p");
});
