// Connections for a worker that may not make any: TCP and TLS, one question at a time.
import * as shared from "./channel.mjs";

const MOST = 64; // connections of one session

export class Network {
	data = new Uint8Array(new SharedArrayBuffer(shared.NET_BYTES));
	#connections = new Map();
	#next = 1;

	constructor(control, wake) {
		this.control = control;
		this.wake = wake;
	}

	#answer(call, result, bytes) {
		if (Atomics.load(this.control, shared.NET_CALL) !== call)
			return; // nobody waits for it any more
		if (bytes)
			this.data.set(bytes);
		Atomics.store(this.control, shared.NET_SIZE, bytes?.length ?? 0);
		Atomics.store(this.control, shared.NET_RESULT, result);
		Atomics.store(this.control, shared.NET_DONE, call);
		this.wake();
	}

	#get(id) {
		const connection = this.#connections.get(id);
		if (!connection)
			throw new Deno.errors.BadResource("the connection is closed");
		return connection;
	}

	async #do({ op, id, host, port, bytes, size }) {
		switch (op) {
		case "connect": {
			if (this.#connections.size >= MOST)
				throw new Error(`more than ${MOST} connections`);
			const connection = await Deno.connect({ hostname: host, port });
			this.#connections.set(this.#next, connection);
			return [this.#next++];
		}
		case "tls":
			this.#connections.set(id, await Deno.startTls(this.#get(id), { hostname: host }));
			await this.#get(id).handshake();
			return [0];
		case "send": {
			let left = bytes;
			while (left.length > 0)
				left = left.subarray(await this.#get(id).write(left));
			return [bytes.length];
		}
		case "recv": {
			const buffer = new Uint8Array(Math.min(size, shared.NET_BYTES));
			const n = await this.#get(id).read(buffer);
			return [n ?? 0, buffer.subarray(0, n ?? 0)];
		}
		case "close":
			this.#connections.get(id)?.close();
			this.#connections.delete(id);
			return [0];
		}
		throw new Error("no such operation");
	}

	async handle(question) {
		try {
			this.#answer(question.call, ...(await this.#do(question)));
		} catch (error) {
			const words = new TextEncoder().encode(`${error?.name}: ${error?.message ?? error}`).subarray(0, 1000);
			this.#answer(question.call, -1, words);
		}
	}
}
