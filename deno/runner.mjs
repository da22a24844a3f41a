// The main isolate of the `deno` executor.
//
//     deno run FLAGS runner.mjs PYODIDE_DIR KERNEL_DIR SNAPSHOT PRELOAD NETWORK
//
// Theory of operation.  Two isolates, each with a thread:
//
//   main    reads frames from stdin and puts them into a ring of shared memory; sees to interrupts at once, also while Python
//           runs.  It has read permission for the named files until it has read them, then none.
//   worker  runs Pyodide, with no permission at all.  It takes frames out of the ring, sleeping on a word of shared memory where
//           there are none (so a call of the host is a plain blocking call, and no event loop of JavaScript has to turn while
//           Python runs), and writes frames to stdout itself.
//
// A memory snapshot of a started Python, with the kernel imported, is what a start takes a fraction of a second with.  The file
// begins with the key of what it was made from and the hash of what follows; where one of them does not fit, Python is started
// plainly and a new snapshot goes to the host, which keeps it: nothing here may write.
//
// Words on stderr, and the exit status, say why a runner ended.
import * as shared from "./channel.mjs";
import { Network } from "./network.mjs";

const STOP = 70;
const MAGIC = "WCSNAP01";
const SNAPSHOT_HEAD = MAGIC.length + 64;

function die(message, status = STOP) {
	try {
		Deno.stderr.writeSync(new TextEncoder().encode(`${message}\n`));
	} finally {
		Deno.exit(status);
	}
}

function join(parts) {
	const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
	let at = 0;
	for (const part of parts) {
		all.set(part, at);
		at += part.length;
	}
	return all;
}

const same = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);
const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

/** The files of the kernel: {path: bytes}, in a fixed order. */
async function readKernel(folder, own) {
	const found = {};
	const names = [];
	for await (const entry of Deno.readDir(folder))
		if (entry.name.endsWith(".py"))
			names.push(entry.name);
	await Promise.all(names.sort().map(async (name) => {
		found[`workcell_kernel/${name}`] = await Deno.readFile(`${folder}/${name}`);
	}));
	for (const name of ["_workcell.py", "workcell_network.py", "workcell_pyodide.py"])
		found[name] = await Deno.readFile(`${own}/${name}`);
	return Object.fromEntries(Object.entries(found).sort(([a], [b]) => (a < b ? -1 : 1)));
}

async function keyOf(kernel, others) {
	const parts = [new TextEncoder().encode(others.join("\0"))];
	for (const [name, bytes] of Object.entries(kernel))
		parts.push(new TextEncoder().encode(`\0${name}\0${bytes.length}\0`), bytes);
	return await sha256(join(parts));
}

/** A snapshot that is whole, {key, body}; else undefined. */
async function readSnapshot(path) {
	let file;
	try {
		file = await Deno.readFile(path);
	} catch {
		return undefined;
	}
	const text = new TextDecoder().decode(file.subarray(0, MAGIC.length));
	if (file.length <= SNAPSHOT_HEAD || text !== MAGIC)
		return undefined;
	const body = file.subarray(SNAPSHOT_HEAD);
	return same(await sha256(body), file.subarray(40, SNAPSHOT_HEAD)) ? { key: file.slice(8, 40), body } : undefined;
}

const [pyodideDir, kernelDir, snapshotPath, preload, network] = Deno.args;
const own = new URL(".", import.meta.url).pathname.replace(/\/$/, "");
const control = new Int32Array(new SharedArrayBuffer(shared.CONTROL_BYTES));
const ring = new Uint8Array(new SharedArrayBuffer(shared.RING_BYTES));
const interrupt = new Uint8Array(new SharedArrayBuffer(1));
// The worker has no permission in either case: what it may reach it asks of this isolate, which has what --allow-net says.
const net = network === "none" ? undefined : new Network(control, wake);

const worker = new Worker(new URL("./worker.mjs", import.meta.url), {
	type: "module", name: pyodideDir, deno: { permissions: "none" },
});
worker.onerror = (event) => {
	event.preventDefault();
	die(`the worker failed: ${event.message}`);
};

let roomWanted;
const loaded = Promise.withResolvers();
worker.onmessage = ({ data }) => {
	if (data.room) {
		roomWanted?.();
	} else if (data.loaded) {
		loaded.resolve();
	} else if (data.net) {
		net?.handle(data.net);
	} else if (data.exit !== undefined) {
		Deno.exit(data.exit);
	} else {
		die(data.died ?? "the worker ended", data.status);
	}
};

async function begin() {
	const [wasm, stdlib, lock, kernel, whole] = await Promise.all([
		Deno.readFile(`${pyodideDir}/pyodide.asm.wasm`), Deno.readFile(`${pyodideDir}/python_stdlib.zip`),
		Deno.readTextFile(`${pyodideDir}/pyodide-lock.json`), readKernel(kernelDir, own),
		snapshotPath ? readSnapshot(snapshotPath) : undefined,
	]);
	const { info } = JSON.parse(lock);
	const key = await keyOf(kernel, [Deno.version.v8, info.version, info.abi_version, String(wasm.length), preload]);
	const snapshot = whole && same(whole.key, key) ? whole.body : undefined;
	await loaded.promise; // its imports are read with our permission, and on a busy machine later than all that is read here
	Deno.permissions.revokeSync({ name: "read" });
	const head = snapshot || !snapshotPath ? undefined : join([new TextEncoder().encode(MAGIC), key]);
	worker.postMessage({ wasm, stdlib, info, kernel, snapshot, head, preload, control, ring, interrupt, netData: net?.data }, [
		wasm.buffer, stdlib.buffer, ...(snapshot ? [snapshot.buffer] : []),
	]);
}

function wake() {
	Atomics.add(control, shared.WAKE, 1);
	Atomics.notify(control, shared.WAKE);
}

async function put(bytes) {
	while (bytes.length > 0) {
		const head = Atomics.load(control, shared.HEAD);
		const room = ring.length - ((head - Atomics.load(control, shared.TAIL)) >>> 0);
		if (room === 0) {
			const { promise, resolve } = Promise.withResolvers();
			roomWanted = resolve;
			Atomics.store(control, shared.WAITING, 1);
			if (((head - Atomics.load(control, shared.TAIL)) >>> 0) === ring.length)
				await promise;
			Atomics.store(control, shared.WAITING, 0);
			continue;
		}
		const at = (head >>> 0) % ring.length;
		const size = Math.min(bytes.length, room, ring.length - at);
		ring.set(bytes.subarray(0, size), at);
		Atomics.store(control, shared.HEAD, (head + size) | 0);
		wake();
		bytes = bytes.subarray(size);
	}
}

/** Knows where frames begin, so that an interrupt is found at once, whatever is still on its way to Python. */
class Sorter {
	left = 0; // bytes of the current frame that are still to come
	header = new Uint8Array(shared.HEADER_BYTES);
	held = 0;

	/** The pieces of these bytes that are for Python. */
	take(bytes) {
		const pieces = [];
		while (bytes.length > 0) {
			if (this.left > 0) {
				const part = bytes.subarray(0, this.left);
				pieces.push(part);
				this.left -= part.length;
				bytes = bytes.subarray(part.length);
				continue;
			}
			const part = bytes.subarray(0, shared.HEADER_BYTES - this.held);
			this.header.set(part, this.held);
			this.held += part.length;
			bytes = bytes.subarray(part.length);
			if (this.held < shared.HEADER_BYTES)
				break;
			this.held = 0;
			const view = new DataView(this.header.buffer);
			if (this.header[0] !== shared.MAGIC || this.header[1] !== shared.VERSION)
				die("the host speaks another protocol");
			if (this.header[2] === shared.FRAME_INTERRUPT) {
				Atomics.store(control, shared.INTERRUPT, view.getInt32(4, true));
				Atomics.store(interrupt, 0, 2);
				wake();
				continue;
			}
			this.left = view.getUint32(8, true) + view.getUint32(12, true);
			pieces.push(this.header.slice());
		}
		return pieces;
	}
}

async function serve() {
	const sorter = new Sorter();
	const buffer = new Uint8Array(1 << 16);
	let last = Promise.resolve();
	for (;;) {
		const size = await Deno.stdin.read(buffer);
		if (size === null) {
			Atomics.store(control, shared.ENDED, 1);
			wake();
			// Nobody is left who would wait for exit handlers.
			Deno.exit(0);
		}
		const pieces = sorter.take(buffer.slice(0, size));
		if (pieces.length > 0) {
			const before = last;
			last = (async () => {
				await before;
				for (const piece of pieces)
					await put(piece);
			})();
		}
	}
}

begin().catch((error) => die(`the runner failed: ${error?.message ?? error}`));
await serve();
