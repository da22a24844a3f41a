// The isolate that runs Pyodide.  See runner.mjs for how the two work together.
import { files, hide, post, writeSync } from "./hide.mjs";
import * as shared from "./channel.mjs";
// Found by the import map of the command line.  Only imports that stand here are checked against the main isolate's
// permissions, and so are the only ones that there are.
import { loadPyodide } from "pyodide/pyodide.mjs";
import createPyodideModule from "pyodide/pyodide.asm.mjs";

const folder = globalThis.name;
const OUTPUT_CAP = 16 << 20; // bytes a cell may write; the rest is counted and left out
const PRELOAD_FAILED = 71; // exit status
const OUTPUT_HELD = 8192; // a line that has not ended waits up to this size

let message = new Promise((resolve) => {
	globalThis.onmessage = ({ data }) => resolve(data);
});
post({ loaded: true });
let { wasm, stdlib, info, kernel, snapshot, head, preload, control, ring, interrupt, netData } = await message;
globalThis.onmessage = null;
const restored = snapshot !== undefined;
files.set("pyodide.asm.wasm", wasm);
files.set("python_stdlib.zip", stdlib);

// ---- frames out

function writeAll(bytes) {
	while (bytes.length > 0)
		bytes = bytes.subarray(writeSync(bytes));
}

const EMPTY = new Uint8Array(0);
const SMALL = 65536;
const scratch = new Uint8Array(SMALL);

function frame(kind, flags, ident, text, raw) {
	const size = shared.HEADER_BYTES + text.length + raw.length;
	const out = size <= SMALL ? scratch : new Uint8Array(shared.HEADER_BYTES);
	const view = new DataView(out.buffer);
	out[0] = shared.MAGIC;
	out[1] = shared.VERSION;
	out[2] = kind;
	out[3] = flags;
	view.setUint32(4, ident, true);
	view.setUint32(8, text.length, true);
	view.setUint32(12, raw.length, true);
	view.setUint32(16, 0, true);
	view.setUint32(20, 0, true);
	if (size <= SMALL) {
		out.set(text, shared.HEADER_BYTES);
		out.set(raw, shared.HEADER_BYTES + text.length);
		writeAll(out.subarray(0, size));
	} else {
		writeAll(out);
		writeAll(text);
		writeAll(raw);
	}
}

// Output waits for the end of its line.
const held = new Uint8Array(OUTPUT_HELD);
let heldSize = 0, heldStream = 1, written = 0, leftOut = 0;

function flush() {
	if (heldSize > 0) {
		const size = heldSize;
		heldSize = 0;
		frame(shared.FRAME_OUTPUT, heldStream, 0, EMPTY, held.subarray(0, size));
	}
}

function output(stream, bytes) {
	if (written + bytes.length > OUTPUT_CAP) {
		leftOut += bytes.length;
		return;
	}
	written += bytes.length;
	if (stream !== heldStream || heldSize + bytes.length > OUTPUT_HELD)
		flush();
	heldStream = stream;
	if (bytes.length > OUTPUT_HELD) {
		frame(shared.FRAME_OUTPUT, stream, 0, EMPTY, bytes);
		return;
	}
	held.set(bytes, heldSize);
	heldSize += bytes.length;
	if (held[heldSize - 1] === 10)
		flush();
}

const encoder = new TextEncoder();

const bridge = {
	/** ASCII. */
	text(stream, text) {
		output(stream, encoder.encode(text));
	},
	bytes(stream, bytes) {
		output(stream, bytes);
	},
	flush,
	/** A cell begins: it may write as much as any. */
	begin() {
		written = leftOut = 0;
	},
	/** A cell ends; how much of its output was left out. */
	end() {
		flush();
		return leftOut;
	},
	cap: OUTPUT_CAP,
	send(kind, ident, text, raw) {
		flush();
		frame(kind, 0, ident, text ?? EMPTY, raw ?? EMPTY);
	},
	/** Whether the session has a network. */
	network: netData !== undefined,
	/** Asks the main isolate; the number of the question, for asked(). */
	ask(op, id, host, port, size, bytes) {
		const call = Atomics.add(control, shared.NET_CALL, 1) + 1;
		post({ net: { call, op, id, host, port, size, bytes } });
		return call;
	},
	/** Is it answered? */
	asked(call) {
		return Atomics.load(control, shared.NET_DONE) === call;
	},
	/** Its result; bytes that came with it are in the other. */
	result() {
		return Atomics.load(control, shared.NET_RESULT);
	},
	received() {
		return netData.slice(0, Atomics.load(control, shared.NET_SIZE));
	},
	/** Bytes in the ring. */
	available() {
		return (Atomics.load(control, shared.HEAD) - Atomics.load(control, shared.TAIL)) >>> 0;
	},
	/** Fills a buffer of Python's from its position on; how much of it. */
	take(target, at) {
		const buffer = target.getBuffer("u8");
		try {
			const tail = Atomics.load(control, shared.TAIL);
			const start = (tail >>> 0) % ring.length;
			const size = Math.min(bridge.available(), buffer.data.length - at, ring.length - start);
			buffer.data.set(ring.subarray(start, start + size), at);
			Atomics.store(control, shared.TAIL, (tail + size) | 0);
			if (Atomics.load(control, shared.WAITING))
				post({ room: true });
			return size;
		} finally {
			buffer.release();
		}
	},
	ended() {
		return Atomics.load(control, shared.ENDED);
	},
	/** What wait() wants to be told, so that nothing gets lost between a look and a sleep. */
	beat() {
		return Atomics.load(control, shared.WAKE);
	},
	/** Sleeps until something changes after `beat`, or for so many milliseconds. */
	wait(beat, ms) {
		flush();
		Atomics.wait(control, shared.WAKE, beat, ms < 0 ? Infinity : ms);
	},
	/** The run that is to stop. */
	interrupted() {
		return Atomics.load(control, shared.INTERRUPT) >>> 0;
	},
	calm() {
		Atomics.store(interrupt, 0, 0);
	},
};

// ---- Python

function fail(error) {
	flush();
	const exit = /terminated with exit\((\d+)\)/.exec(String(error?.message)); // os._exit()
	const words = String(error?.message ?? error).trim().split("\n").slice(-1)[0].slice(0, 200);
	post(exit ? { exit: Number(exit[1]) } : { died: `Python ended: ${words}` });
}

const python = await loadPyodide({
	indexURL: `file://${folder}/`,
	createPyodideModule,
	lockFileContents: JSON.stringify({ info, packages: {} }),
	jsglobals: Object.create(null),
	stdout: () => {},
	stderr: () => {},
	env: { HOME: "/", LANG: "C.UTF-8" },
	checkAPIVersion: false,
	...(snapshot ? { _loadSnapshot: snapshot } : head ? { _makeSnapshot: true } : {}),
});
python._api.on_fatal = fail;
message = wasm = stdlib = snapshot = undefined; // some 45 MB that nobody needs any more

const HOME = "/lib/workcell";
python.FS.mkdirTree(`${HOME}/workcell_kernel`);
for (const [name, bytes] of Object.entries(kernel))
	python.FS.writeFile(`${HOME}/${name}`, bytes);
kernel = undefined;
if (!restored) {
	const problem = python.runPython(`import sys; sys.path.append(${JSON.stringify(HOME)}); import workcell_pyodide
workcell_pyodide.warm(${JSON.stringify(preload)})`);
	if (problem) {
		post({ died: problem, status: PRELOAD_FAILED });
		await new Promise(() => {});
	}
	if (head) {
		const body = python.makeMemorySnapshot();
		const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
		frame(shared.FRAME_SNAPSHOT, 0, 0, new Uint8Array([...head, ...hash]), body);
	}
}
python.registerJsModule("_workcell_bridge", bridge);
python.setInterruptBuffer(interrupt);
const write = (stream) => ({ write: (bytes) => (output(stream, bytes), bytes.length), isatty: false });
python.setStdout(write(1));
python.setStderr(write(2));
python.setStdin({ stdin: () => null });
hide();
try {
	python.runPython("import workcell_pyodide; workcell_pyodide.main()");
	post({ exit: 0 });
} catch (error) {
	fail(error);
}
