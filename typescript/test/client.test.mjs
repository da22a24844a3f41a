// Against a server that tests/e2e/test_typescript.py has started. WORKCELL_DIST: the compiled client.
import assert from "node:assert/strict";
import { test } from "node:test";

const { Client, CodeError, EventParser, WorkcellError } = await import(process.env.WORKCELL_DIST + "/index.js");
const client = new Client({ url: process.env.WORKCELL_URL, token: process.env.WORKCELL_TOKEN });

async function withSession(body, options) {
	const session = await client.open(options);
	try {
		return await body(session);
	} finally {
		await session.close();
	}
}

test("cells keep their variables; a failure is an exception", () => withSession(async (session) => {
	await session.run("x = 20");
	const result = await session.run("print('hé'); x * 2.1");
	assert.equal(result.value, 42);
	assert.equal(result.stdout, "hé\n");
	await assert.rejects(session.run("1 / 0"), (error) => error instanceof CodeError && error.type === "ZeroDivisionError" && error.code === "exception");
	assert.equal((await session.run("1 / 0", { raise: false })).error.type, "ZeroDivisionError");
	assert.equal((await session.info()).session_id, session.id);
	assert.ok((await client.sessions()).some((each) => each.session_id === session.id));
	await session.reset();
	assert.equal((await session.run("'x' in globals()")).value, false);
}));

test("events come in order, and again after their ids", () => withSession(async (session) => {
	const types = [], texts = [];
	for await (const event of session.stream("import sys\nprint('one')\ndisplay(3)\nprint('two', file=sys.stderr)\n7")) {
		types.push(event.type);
		if (event.type === "chunk")
			texts.push([event.stream, event.text]);
	}
	assert.deepEqual(texts, [["stdout", "one\n"], ["stderr", "two\n"]]);
	assert.equal(types.at(-1), "result");
	assert.ok(types.includes("display"));
	const run = await session.start("for i in range(3): print(i, flush=True)\n'end'");
	const all = [];
	for await (const event of session.events(run.run_id))
		all.push(event);
	assert.equal(all.at(-1).result.value, "end");
	const again = [];
	for await (const event of session.events(run.run_id, all.at(-2).id))
		again.push(event.type);
	assert.deepEqual(again, ["result"]);
	assert.equal((await session.runInfo(run.run_id)).state, "ended");
}));

test("a cell that is sent twice with one name takes place once", () => withSession(async (session) => {
	const before = await session.info();
	const stateId = "0123456789abcdef0123456789abcdef";
	const first = await session.run("n = globals().get('n', 0) + 1\nn", { stateId });
	const again = await session.run("n = globals().get('n', 0) + 1\nn", { stateId, timeout: 30 });
	assert.deepEqual([first.value, again.value, first.state_id, first.cells], [1, 1, stateId, 1]);
	const after = await session.info();
	assert.equal(after.state_id, stateId);
	assert.notEqual(before.state_id, stateId);
	assert.equal(after.awake_id, before.awake_id);
	await assert.rejects(session.run("1", { stateId: "x" }), (error) => error instanceof WorkcellError && error.code === "invalid");
}));

test("a run can be given up, interrupted, timed out", () => withSession(async (session) => {
	const controller = new AbortController();
	const started = session.run("print('on', flush=True)\nwhile True: pass", {
		signal: controller.signal, onEvent: () => controller.abort() });
	await assert.rejects(started, (error) => error.name === "AbortError");
	assert.equal((await session.run("1 + 1")).value, 2); // the endless cell was cancelled
	await assert.rejects(session.run("while True: pass", { timeout: 0.2 }), (error) => error.code === "timeout");
	const endless = session.run("print('on', flush=True)\nwhile True: pass", { onEvent: () => session.interrupt() });
	await assert.rejects(endless, (error) => error.code === "interrupted");
}));

test("a run that is given up before its answer comes is cancelled", async () => {
	const controller = new AbortController();
	const slow = new Client({ url: process.env.WORKCELL_URL, token: process.env.WORKCELL_TOKEN, fetch: async (url, init) => {
		const { signal, ...rest } = init;
		const response = await fetch(url, rest);
		if (rest.body?.includes("while True"))
			controller.abort(); // the server has it, and its answer is on the way
		signal?.throwIfAborted();
		return response;
	} });
	await withSession(async (session) => {
		const same = slow.session(session.id);
		await assert.rejects(same.run("while True: pass", { signal: controller.signal }), (error) => error.name === "AbortError");
		assert.equal((await session.run("1 + 1", { timeout: 90 })).value, 2);
		await assert.rejects(same.run("x = 1", { signal: controller.signal }), (error) => error.name === "AbortError");
		assert.equal((await session.run("'x' in globals()")).value, false); // it was not even sent
	});
});

test("sessions end with their scope, wait in a folder, and tell their variables", async () => {
	const session = await client.open();
	await session.run("x = [1, 2]");
	assert.deepEqual((await session.variables()).map((each) => [each.name, each.preview]), [["x", "[1, 2]"]]);
	assert.equal((await session.hibernate()).session_id, session.id);
	assert.equal((await session.run("x[1]")).value, 2);
	await session.hibernate();
	assert.ok((await client.saved({ limit: 10 })).sessions.some((each) => each.session_id === session.id));
	assert.equal((await client.open({ resume: session.id })).id, session.id);
	await session[Symbol.asyncDispose]();
	let code = "conflict"; // what was saved of it is removed behind the answer
	for (const end = Date.now() + 30_000; code === "conflict" && Date.now() < end;)
		code = await session.info().then(() => "open", (error) => error.code);
	assert.equal(code, "session_expired");
	assert.equal((await client.started()).status, "started");
	assert.deepEqual(await client.logins(), []);
});

test("approvals", () => withSession(async (session) => {
	const asked = [];
	const result = await session.run("!echo ran", {
		onEvent: (event) => {
			if (event.type === "approval") {
				asked.push(event);
				session.approvals().then(([call]) => session.answer(call.id, { accept: true }));
			}
		} });
	assert.equal(asked[0].kind, "shell");
	assert.match(result.stdout, /ran/);
	const refused = session.run("!echo ran", { onEvent: (event) => event.type === "approval" && session.answer(event.id, { accept: false, reason: "no" }) });
	await assert.rejects(refused, (error) => error.type === "ApprovalRejectedError" && error.message.includes("no"));
	assert.deepEqual(await client.approvals(), []);
}));

test("branches", () => withSession(async (session) => {
	await session.run("x = 1");
	await session.checkpoint("first");
	const fork = await session.fork();
	await fork.run("x = 2");
	assert.equal((await session.run("x")).value, 1);
	assert.equal((await fork.run("x")).value, 2);
	await fork.close();
	await session.run("x = 3");
	await session.rewind("first");
	assert.equal((await session.run("x")).value, 1);
	assert.deepEqual((await session.checkpoints()).points.map((each) => each.name), ["first"]);
	await session.dropCheckpoint("first");
	const race = await session.race({ codes: ["x = 10", "x = 30", "x = 20"], judge: "x" });
	assert.equal(race.winner, 1);
	assert.equal((await session.run("x")).value, 30);
	for (const each of await session.forks(2))
		await each.close();
}));

test("files, and a layer over them", () => withSession(async (session) => {
	await session.files.write("a folder/ä.txt", "text\n");
	assert.equal(await session.files.readText("a folder/ä.txt"), "text\n");
	assert.deepEqual(await session.files.read("a folder/ä.txt"), new TextEncoder().encode("text\n"));
	assert.equal((await session.run("open('a folder/ä.txt').read()")).value, "text\n");
	const names = (await session.files.list("a folder")).map((each) => each.name ?? each.path);
	assert.ok(names.some((name) => name.endsWith("ä.txt")), JSON.stringify(names));
	let bytes = 0;
	for await (const chunk of await session.files.stream("a folder/ä.txt"))
		bytes += chunk.length;
	assert.equal(bytes, 5);
	const diff = await session.diff();
	assert.ok(diff.files.some((each) => each.path === "a folder/ä.txt" && each.change === "added"));
	assert.ok((await session.commit({ paths: ["a folder"] })).committed.length > 0);
	await session.files.remove("a folder", { recursive: true });
	await session.discard();
	await assert.rejects(session.files.read("nothing"), (error) => error instanceof WorkcellError && error.code === "not_found" && error.status === 404);
}));

test("commands", () => withSession(async (session) => {
	assert.deepEqual(await session.commands.run("echo out; echo err >&2; exit 3"), { stdout: "out\n", stderr: "err\n", exitCode: 3 });
	const cat = await session.commands.start(["cat"], { stdin: true });
	await cat.write("typed\n");
	await cat.closeStdin();
	const texts = [];
	for await (const event of cat.output())
		if (event.type === "chunk")
			texts.push(event.text);
	assert.equal(texts.join(""), "typed\n");
	const sleep = await session.commands.start(["sleep", "60"]);
	assert.ok((await session.commands.list()).some((each) => each.command_id === sleep.id));
	await sleep.signal("SIGKILL");
	for await (const event of sleep.output())
		if (event.type === "ended")
			assert.equal(event.command.exit_code, 137);
	await sleep.drop();
	const screen = await session.commands.start("read go; stty size", { tty: { rows: 24, cols: 80 } });
	await screen.resize(40, 100);
	await screen.write("go\n");
	let shown = "";
	for await (const event of screen.output())
		shown += event.type === "chunk" ? event.text : "";
	assert.match(shown, /40 100/);
}));

test("a long line that comes in many pieces is looked through once", () => {
	const parser = new EventParser(), piece = "x".repeat(8192);
	assert.deepEqual(parser.push("data: "), []);
	for (let i = 0; i < 8192; i++)
		assert.equal(parser.push(piece).length, 0);
	assert.equal(parser.push("\n\n")[0].data.length, 8192 * 8192);
});

test("wrong tokens and sessions", async () => {
	const stranger = new Client({ url: process.env.WORKCELL_URL + "/", token: "wrong" });
	await assert.rejects(stranger.open(), (error) => error.code === "unauthorized" && error.status === 401);
	await assert.rejects(client.session("../../health").info(), (error) => error instanceof WorkcellError && error.status === 404);
	assert.equal((await client.health()).status, "healthy");
});

test("no name leads to another place", () => withSession(async (session) => {
	const refused = (error) => error instanceof WorkcellError && error.code === "invalid";
	// Of a URL these would be the session itself, or another one.
	for (const path of ["..", "a/../../..", "../../" + session.id, "../.."]) {
		assert.throws(() => session.files.place(path), refused);
		await assert.rejects(session.files.remove(path, { recursive: true }), refused);
	}
	await assert.rejects(session.dropCheckpoint(".."), refused);
	await assert.rejects(session.cancel(".."), refused);
	assert.throws(() => client.session(".."), refused);
	await session.files.write("./%2e%2e", "a name");
	assert.equal(await session.files.readText("./%2e%2e"), "a name");
	assert.equal((await session.run("1 + 1")).value, 2);
}));

const answers = (body, { status = 200, headers = {} } = {}) => new Client({ url: "http://127.0.0.1:1", fetch: async () => new Response(body, { status, headers }) });
/** A body without an end, and how much of it was taken. */
function endless(piece) {
	const bytes = new TextEncoder().encode(piece);
	const body = new ReadableStream({ pull(controller) { body.taken += bytes.length; controller.enqueue(bytes); }, cancel() { body.ended = true; } });
	body.taken = 0;
	return body;
}

test("answers of a server that is none", async () => {
	const protocol = (error) => error instanceof WorkcellError && error.code === "protocol";
	for (const body of ["<html>", "null", "7", '"text"', "{", "\u0000", "[".repeat(100_000)]) {
		await assert.rejects(answers(body).open(), protocol, body);
		await assert.rejects(answers(body).sessions(), protocol, body);
		await assert.rejects(answers(`event: result\ndata: ${body}\n\n`).session("s").run("1"), protocol, body);
		await assert.rejects(answers(`event: chunk\ndata: ${body}\n\n`).session("s").run("1"), protocol, body);
	}
	for (const body of ["", ": nothing\n\n", "event: chunk\ndata: {}\n\n", "event: result\ndata: {}"])
		await assert.rejects(answers(body).session("s").run("1"), protocol, body);
	const polluted = await answers('event: result\ndata: {"__proto__": {"error": {"type": "X"}}, "error": null}\n\n').session("s").run("1");
	assert.equal(polluted.error, null);
	assert.equal({}.error, undefined);
});

test("refusals of any kind are errors of a bounded size", async () => {
	for (const [body, detail, code] of [["null", "null", ""], ['{"detail": {"a": 1}, "code": {"b": 2}}', '{"a":1}', ""], ["[1]", "[1]", ""], ["<html>", "<html>", ""],
		['{"detail": "no", "code": "busy"}', "no", "busy"], ["", "", ""]])
		await assert.rejects(answers(body, { status: 503 }).open(), (error) => error instanceof WorkcellError && error.status === 503 && error.code === code && error.message === `HTTP 503: ${detail}`);
	const body = endless("x".repeat(4096));
	await assert.rejects(answers(body, { status: 500 }).open(), (error) => error.status === 500 && error.message.length < 70_000);
	assert.ok(body.ended && body.taken < 1 << 20);
});

test("lines without content are not kept for ever", () => {
	const parser = new EventParser(), lines = "data:\n".repeat(1 << 16);
	assert.throws(() => {
		for (let i = 0; i < 8; i++)
			parser.push(lines);
	}, RangeError);
});

test("the parser of events, cut anywhere", () => {
	const text = "\ufeff: comment\r\nid: 1\r\nevent: chunk\r\ndata: a\r\ndata:  b\r\n\r\ndata\n\nevent: x\n\nid: 2\rdata: é\r\r";
	const expected = [{ type: "chunk", data: "a\n b", id: "1" }, { type: "message", data: "", id: "1" }, { type: "message", data: "é", id: "2" }];
	for (let size = 1; size <= text.length; size++) {
		const parser = new EventParser(), events = [];
		for (let at = 0; at < text.length; at += size)
			events.push(...parser.push(text.slice(at, at + size)));
		events.push(...parser.push("\n")); // what a held carriage return waits for
		assert.deepEqual(events, expected, `in pieces of ${size}`);
	}
});
