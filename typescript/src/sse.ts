/** Events of a stream (text/event-stream), as they come. Works on any chunking of the bytes. */
export interface ServerEvent {
	/** The name of the event; "message" without one. */
	type: string;
	data: string;
	/** The last id that was seen; "" before the first. */
	id: string;
}

/** At most so many characters of one event: a server that never ends a line must not fill the memory. */
export const MAX_EVENT_CHARS = 256 * 1024 * 1024;

/** What a line counts besides its characters: one without any must not be free. The server's events have one each. */
const LINE_CHARS = 1024;

export class EventParser {
	private rest = "";
	private type = "";
	private data: string[] = [];
	private size = 0;
	private id = "";
	private first = true;
	/** The text before ended with a carriage return, which may be the first half of a line break. */
	private held = "";

	/** The events that this text completes. */
	push(text: string): ServerEvent[] {
		if (this.first && text.length > 0) {
			this.first = false;
			if (text.charCodeAt(0) === 0xfeff)
				text = text.slice(1);
		}
		const events: ServerEvent[] = [];
		let all = this.held + text;
		this.held = all.endsWith("\r") ? "\r" : "";
		if (this.held)
			all = all.slice(0, -1);
		// Only what is new is looked through: a long line comes in thousands of pieces.
		const lines = all.split(/\r\n|\r|\n/);
		lines[0] = this.rest + (lines[0] ?? "");
		this.rest = lines.pop() ?? "";
		if (this.rest.length + this.size > MAX_EVENT_CHARS)
			throw new RangeError(`an event is longer than ${MAX_EVENT_CHARS} characters`);
		for (const line of lines) {
			const event = this.take(line);
			if (event)
				events.push(event);
		}
		return events;
	}

	private take(line: string): ServerEvent | undefined {
		if (line === "") {
			const event = { type: this.type || "message", data: this.data.join("\n"), id: this.id };
			const complete = this.data.length > 0;
			this.type = "";
			this.data = [];
			this.size = 0;
			return complete ? event : undefined;
		}
		const colon = line.indexOf(":");
		if (colon === 0)
			return undefined; // a comment
		const name = colon < 0 ? line : line.slice(0, colon);
		const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
		if (name === "event")
			this.type = value;
		else if (name === "id" && !value.includes("\0"))
			this.id = value;
		else if (name === "data") {
			this.size += value.length + LINE_CHARS;
			if (this.size > MAX_EVENT_CHARS)
				throw new RangeError(`an event is longer than ${MAX_EVENT_CHARS} characters`);
			this.data.push(value);
		}
		return undefined;
	}
}

/** The bytes of a body, to its end. Leaving the loop cancels the request. */
async function* pieces(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
	const reader = body.getReader();
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done)
				return;
			yield value;
		}
	} finally {
		await reader.cancel().catch(() => undefined);
	}
}

/** The text of a body, of which no more is read once it is longer than so many characters. */
export async function readText(body: ReadableStream<Uint8Array> | null, limit: number): Promise<string> {
	const decoder = new TextDecoder();
	const parts: string[] = [];
	let size = 0;
	for await (const piece of body ? pieces(body) : []) {
		const part = decoder.decode(piece, { stream: true });
		parts.push(part);
		size += part.length;
		if (size > limit)
			break;
	}
	return parts.join("") + decoder.decode();
}

/** The events of a body, to its end. Leaving the loop cancels the request. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent, void, undefined> {
	const parser = new EventParser();
	const decoder = new TextDecoder();
	for await (const piece of pieces(body))
		yield* parser.push(decoder.decode(piece, { stream: true }));
}
