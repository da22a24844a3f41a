/// <reference lib="esnext.disposable" preserve="true" />
import { CodeError, WorkcellError } from "./errors.js";
import { MAX_EVENT_CHARS, readEvents, readText } from "./sse.js";
import type {
	Command as CommandInfo, Committed, Diff, Health, Hibernated, Logins, Points, PostV1SessionsBody, PostV1SessionsSessionApprovalsIdBody,
	PostV1SessionsSessionCommandsBody, PostV1SessionsSessionFilesCommitBody, PostV1SessionsSessionForkBody, PostV1SessionsSessionRaceBody, Race, Run, Session as SessionInfo,
	Saved, Sessions, Started, Variables, Written,
} from "./types.js";

export interface ClientOptions {
	/** "http://127.0.0.1:8080" */
	url: string;
	/** A token of the server; without one none is sent. */
	token?: string;
	/** Instead of the global fetch(). */
	fetch?: typeof fetch;
}

/** A part of something that was shown: text, or bytes in base64. */
export interface MimePart {
	type: string;
	text?: string;
	base64?: string;
}

export interface CellFailure {
	type: string;
	message: string;
	traceback: string;
	code: string;
	/** Of a server that itself runs cells at another one: whether to run the cell again; missing: not known. */
	retry?: boolean;
}

/** What a cell did, as `workcell run --json` prints it. */
export interface CellResult {
	value: unknown;
	repr: string | null;
	mime: Record<string, string>;
	stdout: string;
	stderr: string;
	text: string;
	error: CellFailure | null;
	images: string[];
	duration_ms: number;
	/** "kept", "restored" or "lost": what became of the variables. */
	state: string;
	/** How many cells the session's state has seen, its name, and the name of the time since the session was opened or woken. */
	cells?: number;
	state_id?: string;
	awake_id?: string;
	[more: string]: unknown;
}

export interface CallInfo {
	id: number;
	kind: string;
	tool: string;
	callable: string;
	args: Record<string, unknown>;
	[more: string]: unknown;
}

/** An event of a run, in the order of what happened; the last one is the result. */
export type RunEvent =
	| { type: "chunk"; stream: "stdout" | "stderr"; text?: string; base64?: string; id: string }
	| { type: "display" | "image"; parts: MimePart[]; id: string }
	| ({ type: "call_started" | "call_ended" | "approval" | "approval_ended"; event: string } & CallInfo)
	| { type: "gap"; missed: number; id: string }
	| { type: "result"; result: CellResult; id: string };

export type CommandEvent =
	| { type: "chunk"; stream: "stdout" | "stderr"; text?: string; base64?: string; id: string }
	| ({ type: "started"; id: string } & Partial<CommandInfo>)
	| { type: "gap"; dropped: number; id: string }
	| { type: "ended"; command: CommandInfo; id: string };

export interface StartOptions {
	/** Seconds; 0 or nothing: the server's default. */
	timeout?: number;
	/**
	 * The name that the session's state gets by this cell: 32 random hexadecimal digits. Who loses the answer compares it with `state_id` of info(); the same
	 * cell sent again with it is not run twice while the server keeps its run.
	 */
	stateId?: string;
}

export interface RunOptions extends StartOptions {
	/** Ends the wait; the cell is cancelled on the server. */
	signal?: AbortSignal;
	/** Gets every event but the result. */
	onEvent?: (event: RunEvent) => void;
	/** false: a failed cell is a result with `error`, not an exception. */
	raise?: boolean;
}

export interface FileInfo {
	name?: string;
	path?: string;
	type: string;
	size?: number;
	[more: string]: unknown;
}

type Body = Record<string, unknown> | undefined;

/** One connection's settings and the requests below everything else. */
export class Client {
	readonly url: string;
	private readonly token: string | undefined;
	private readonly fetcher: typeof fetch;

	constructor(options: ClientOptions | string) {
		const given = typeof options === "string" ? { url: options } : options;
		this.url = given.url.replace(/\/+$/, "");
		this.token = given.token;
		this.fetcher = given.fetch ?? fetch.bind(globalThis);
	}

	/** One request; an answer that is not a success is a WorkcellError. */
	async send(method: string, path: string, init: { json?: Body; body?: BodyInit; accept?: string; headers?: Record<string, string>; signal?: AbortSignal | undefined } = {}): Promise<Response> {
		const headers: Record<string, string> = { ...init.headers };
		if (this.token !== undefined)
			headers["Authorization"] = `Bearer ${this.token}`;
		if (init.json !== undefined)
			headers["Content-Type"] = "application/json";
		if (init.accept !== undefined)
			headers["Accept"] = init.accept;
		const request: RequestInit = { method, headers, redirect: "error" };
		if (init.signal)
			request.signal = init.signal;
		if (init.json !== undefined)
			request.body = JSON.stringify(init.json);
		else if (init.body !== undefined)
			request.body = init.body;
		const response = await this.fetcher(this.url + path, request);
		if (!response.ok)
			throw await failure(response);
		return response;
	}

	async json<T>(method: string, path: string, json?: Body, signal?: AbortSignal): Promise<T> {
		const response = await this.send(method, path, { ...(json === undefined ? {} : { json }), signal });
		const text = await readText(response.body, MAX_EVENT_CHARS);
		return (text === "" ? undefined : parse(text, response.status)) as T;
	}

	health(): Promise<Health> {
		return this.json<Health>("GET", "/health");
	}

	/** Whether the server and its workers have started; needs no token. */
	started(): Promise<Started> {
		return this.json<Started>("GET", "/started");
	}

	/** The logins at MCP servers that this token's user has or lacks. */
	async logins(): Promise<Logins["logins"]> {
		return (await this.json<Logins>("GET", "/v1/logins")).logins;
	}

	/** Opens a session; close() it, or let `await using` do that. `resume`: the id of a saved one, to continue it. */
	async open(options: PostV1SessionsBody = {}): Promise<Session> {
		return new Session(this, (await this.json<SessionInfo>("POST", "/v1/sessions", options)).session_id);
	}

	/** A session that exists already. */
	session(id: string): Session {
		return new Session(this, id);
	}

	async sessions(): Promise<SessionInfo[]> {
		return (await this.json<Sessions>("GET", "/v1/sessions")).sessions;
	}

	/** A page of the saved sessions of this token; after: `next` of the page before. */
	saved(options: { limit?: number; after?: string } = {}): Promise<Saved> {
		const query = new URLSearchParams(Object.entries(options).map(([name, value]) => [name, String(value)])).toString();
		return this.json<Saved>("GET", "/v1/saved" + (query && `?${query}`));
	}

	/** The calls of all sessions that wait for a person. */
	async approvals(): Promise<CallInfo[]> {
		return (await this.json<{ approvals: CallInfo[] }>("GET", "/v1/approvals")).approvals;
	}
}

/** What a server says: an object or a list, or it is not this server. */
function parse(text: string, status: number): Record<string, unknown> {
	let value: unknown;
	try {
		value = text.length > MAX_EVENT_CHARS ? undefined : JSON.parse(text);
	} catch {
		// below
	}
	if (typeof value !== "object" || value === null)
		throw new WorkcellError("the server's answer is not a JSON object", "protocol", status);
	return value as Record<string, unknown>;
}

/** Of an answer that is not a success, which may be any proxy's page. */
const MAX_DETAIL_CHARS = 64 * 1024;

async function failure(response: Response): Promise<WorkcellError> {
	const text = (await readText(response.body, MAX_DETAIL_CHARS).catch(() => "")).slice(0, MAX_DETAIL_CHARS);
	let detail = text || response.statusText, code = "";
	try {
		const body = parse(text, response.status);
		if (body["detail"] !== undefined)
			detail = typeof body["detail"] === "string" ? body["detail"] : JSON.stringify(body["detail"]);
		code = typeof body["code"] === "string" ? body["code"] : "";
	} catch {
		// not from the server itself: a proxy's page
	}
	return new WorkcellError(`HTTP ${response.status}: ${detail}`, code, response.status);
}

/** A part of a URL's path. `.` and `..` would lead to another place, and a URL cannot have them in any other spelling. */
function segment(text: string | number): string {
	const name = String(text);
	if (name === "." || name === "..")
		throw new WorkcellError(`"${name}" cannot be a name`, "invalid", 0);
	return encodeURIComponent(name);
}

/** An answer, unless the signal comes first: then `late` gets the answer that still comes. */
function unlessAborted<T>(answer: Promise<T>, signal: AbortSignal | undefined, late: (answer: T) => void): Promise<T> {
	if (!signal)
		return answer;
	return new Promise((resolve, reject) => {
		const abort = () => {
			answer.then(late, () => undefined);
			reject(signal.reason);
		};
		signal.addEventListener("abort", abort, { once: true });
		answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
	});
}

function cellOf(code: string, options: StartOptions): Record<string, unknown> {
	return {
		code, ...(options.timeout === undefined ? {} : { timeout: options.timeout }), ...(options.stateId === undefined ? {} : { state_id: options.stateId }),
	};
}

export class Session {
	private readonly path: string;
	readonly files: Files;
	readonly commands: Commands;

	constructor(readonly client: Client, readonly id: string) {
		this.path = `/v1/sessions/${segment(id)}`;
		this.files = new Files(client, this.path);
		this.commands = new Commands(client, this.path);
	}

	info(): Promise<SessionInfo> {
		return this.client.json<SessionInfo>("GET", this.path);
	}

	/** Begins a cell and yields its events, the result last. Leaving the loop early leaves the cell running. */
	async *stream(code: string, options: StartOptions & { signal?: AbortSignal } = {}): AsyncGenerator<RunEvent, void, undefined> {
		const response = await this.client.send("POST", `${this.path}/runs`, {
			json: cellOf(code, options),
			accept: "text/event-stream", signal: options.signal,
		});
		yield* runEvents(response);
	}

	/** Runs a cell and waits for its result. */
	async run(code: string, options: RunOptions = {}): Promise<CellResult> {
		const { signal } = options;
		signal?.throwIfAborted();
		// The request is not aborted before its answer has named the run: the server could have it, and nobody could cancel it.
		const stop = new AbortController();
		const cancel = async (response: Response): Promise<void> => {
			const run = response.headers.get("X-Run-ID");
			stop.abort();
			if (run !== null)
				await this.cancel(Number(run)).catch(() => undefined);
		};
		const response = await unlessAborted(this.client.send("POST", `${this.path}/runs`, {
			json: cellOf(code, options),
			accept: "text/event-stream", signal: stop.signal,
		}), signal, cancel);
		const abort = () => stop.abort(signal?.reason);
		signal?.addEventListener("abort", abort, { once: true });
		let result: CellResult | undefined;
		try {
			for await (const event of runEvents(response)) {
				if (event.type === "result")
					result = event.result;
				else
					options.onEvent?.(event);
			}
		} catch (error) {
			if (signal?.aborted)
				await cancel(response);
			throw error;
		} finally {
			signal?.removeEventListener("abort", abort);
		}
		if (!result)
			throw new WorkcellError("the stream ended without a result", "protocol", response.status);
		if (result.error && options.raise !== false)
			throw new CodeError(result.error.type, result.error.message, result.error.traceback, result.error.code);
		return result;
	}

	/** Queues a cell and returns; events() and result() follow it. */
	start(code: string, options: StartOptions = {}): Promise<Run> {
		return this.client.json<Run>("POST", `${this.path}/runs`, cellOf(code, options));
	}

	async runInfo(run: number): Promise<Run> {
		return this.client.json<Run>("GET", `${this.path}/runs/${segment(run)}`);
	}

	/** The events of a run, also of one that has ended a while ago; after: the id of the last event that was seen. */
	async *events(run: number, after?: string, signal?: AbortSignal): AsyncGenerator<RunEvent, void, undefined> {
		yield* runEvents(await this.client.send("GET", `${this.path}/runs/${segment(run)}/events`, {
			headers: after === undefined ? {} : { "Last-Event-ID": after }, accept: "text/event-stream", signal,
		}));
	}

	async cancel(run: number): Promise<Run> {
		return this.client.json<Run>("DELETE", `${this.path}/runs/${segment(run)}`);
	}

	async interrupt(): Promise<void> {
		await this.client.send("POST", `${this.path}/interrupt`);
	}

	async reset(): Promise<void> {
		await this.client.send("POST", `${this.path}/reset`);
	}

	async close(): Promise<void> {
		await this.client.send("DELETE", this.path);
	}

	[Symbol.asyncDispose](): Promise<void> {
		return this.close();
	}

	/** Saves it and ends its process; the next use wakes it. points: also the states that it keeps. A server with `--saved`. */
	hibernate(options: { points?: boolean } = {}): Promise<Hibernated> {
		return this.client.json<Hibernated>("POST", `${this.path}/hibernate`, options);
	}

	/** Its variables, without running code. */
	async variables(): Promise<Variables["variables"]> {
		return (await this.client.json<Variables>("GET", `${this.path}/variables`)).variables;
	}

	// approvals

	async approvals(): Promise<CallInfo[]> {
		return (await this.client.json<{ approvals: CallInfo[] }>("GET", `${this.path}/approvals`)).approvals;
	}

	async answer(id: number, answer: PostV1SessionsSessionApprovalsIdBody): Promise<void> {
		await this.client.send("POST", `${this.path}/approvals/${segment(id)}`, { json: answer });
	}

	// branches

	/** A session that continues from this one's state. */
	async fork(options: Omit<PostV1SessionsSessionForkBody, "n"> = {}): Promise<Session> {
		return new Session(this.client, (await this.client.json<SessionInfo>("POST", `${this.path}/fork`, options)).session_id);
	}

	/** So many of them, or none. */
	async forks(n: number, options: Omit<PostV1SessionsSessionForkBody, "n"> = {}): Promise<Session[]> {
		const made = await this.client.json<Sessions>("POST", `${this.path}/fork`, { ...options, n });
		return made.sessions.map((each) => new Session(this.client, each.session_id));
	}

	checkpoint(name: string, options: { drop?: boolean } = {}): Promise<Points> {
		return this.client.json<Points>("POST", `${this.path}/checkpoints`, { name, ...options });
	}

	checkpoints(): Promise<Points> {
		return this.client.json<Points>("GET", `${this.path}/checkpoints`);
	}

	async dropCheckpoint(name: string): Promise<void> {
		await this.client.send("DELETE", `${this.path}/checkpoints/${segment(name)}`);
	}

	/** Goes back to a checkpoint, or by a number of cells. */
	rewind(to: string | number): Promise<SessionInfo> {
		return this.client.json<SessionInfo>("POST", `${this.path}/rewind`, typeof to === "string" ? { name: to } : { cells: to });
	}

	race(options: PostV1SessionsSessionRaceBody): Promise<Race> {
		return this.client.json<Race>("POST", `${this.path}/race`, options);
	}

	/** Changes in the layer over the workspace. */
	diff(): Promise<Diff> {
		return this.client.json<Diff>("GET", `${this.path}/files/diff`);
	}

	commit(options: PostV1SessionsSessionFilesCommitBody = {}): Promise<Committed> {
		return this.client.json<Committed>("POST", `${this.path}/files/commit`, options);
	}

	async discard(): Promise<void> {
		await this.client.send("POST", `${this.path}/files/discard`);
	}
}

async function* runEvents(response: Response): AsyncGenerator<RunEvent, void, undefined> {
	if (!response.body)
		throw new WorkcellError("the answer has no stream", "protocol", response.status);
	for await (const event of readEvents(response.body)) {
		const data = parse(event.data, response.status);
		if (event.type === "result") {
			yield { type: "result", result: data as unknown as CellResult, id: event.id };
			return;
		}
		if (event.type === "approval" || event.type === "approval_ended" || event.type === "call_started" || event.type === "call_ended")
			yield { ...data, type: event.type, event: event.id } as unknown as RunEvent;
		else
			yield { ...data, type: event.type, id: event.id } as unknown as RunEvent;
	}
}

/** Files of the session's workspace. */
export class Files {
	constructor(private readonly client: Client, private readonly path: string) {}

	private place(path: string): string {
		return `${this.path}/files/${path.split("/").filter((name) => name !== ".").map(segment).join("/")}`;
	}

	async read(path: string): Promise<Uint8Array> {
		return new Uint8Array(await (await this.client.send("GET", this.place(path))).arrayBuffer());
	}

	async readText(path: string): Promise<string> {
		return (await this.client.send("GET", this.place(path))).text();
	}

	/** The bytes as they come, for large files. */
	async stream(path: string): Promise<ReadableStream<Uint8Array>> {
		const response = await this.client.send("GET", this.place(path));
		if (!response.body)
			throw new WorkcellError("the answer has no stream", "protocol", response.status);
		return response.body;
	}

	async write(path: string, content: string | Uint8Array | Blob): Promise<Written> {
		const response = await this.client.send("PUT", this.place(path), {
			body: content as BodyInit, headers: { "Content-Type": "application/octet-stream" },
		});
		return parse(await readText(response.body, MAX_EVENT_CHARS), response.status) as unknown as Written;
	}

	/** What is in a folder. */
	async list(path = ""): Promise<FileInfo[]> {
		const answer = await this.client.json<{ entries: FileInfo[] }>("GET", `${this.path}/files?format=json&path=${encodeURIComponent(path)}`);
		return answer.entries;
	}

	async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
		await this.client.send("DELETE", this.place(path) + (options.recursive ? "?recursive=true" : ""));
	}
}

/** Programs that run where the session's code does. */
export class Commands {
	constructor(private readonly client: Client, private readonly path: string) {}

	async start(command: string | string[], options: Omit<PostV1SessionsSessionCommandsBody, "argv" | "line"> = {}): Promise<Command> {
		const what = typeof command === "string" ? { line: command } : { argv: command };
		const info = await this.client.json<CommandInfo>("POST", `${this.path}/commands`, { ...options, ...what });
		return new Command(this.client, `${this.path}/commands/${segment(info.command_id)}`, info);
	}

	/** Runs it to its end; the output as text. */
	async run(command: string | string[], options: Omit<PostV1SessionsSessionCommandsBody, "argv" | "line"> = {}): Promise<{ stdout: string; stderr: string; exitCode: number | null }> {
		const started = await this.start(command, { blocks: true, ...options });
		const text = { stdout: "", stderr: "" };
		let exitCode: number | null = null;
		for await (const event of started.output()) {
			if (event.type === "chunk")
				text[event.stream] += event.text ?? new TextDecoder().decode(Uint8Array.from(atob(event.base64 ?? ""), (c) => c.charCodeAt(0)));
			else if (event.type === "ended")
				exitCode = event.command.exit_code;
		}
		return { ...text, exitCode };
	}

	async list(): Promise<CommandInfo[]> {
		return (await this.client.json<{ commands: CommandInfo[] }>("GET", `${this.path}/commands`)).commands;
	}
}

export class Command {
	constructor(private readonly client: Client, private readonly path: string, readonly started: CommandInfo) {}

	get id(): string {
		return this.started.command_id;
	}

	info(): Promise<CommandInfo> {
		return this.client.json<CommandInfo>("GET", this.path);
	}

	/** Its output from a position on, to its end. */
	async *output(after?: string, signal?: AbortSignal): AsyncGenerator<CommandEvent, void, undefined> {
		const response = await this.client.send("GET", `${this.path}/output`, {
			headers: after === undefined ? {} : { "Last-Event-ID": after }, accept: "text/event-stream", signal,
		});
		if (!response.body)
			throw new WorkcellError("the answer has no stream", "protocol", response.status);
		for await (const event of readEvents(response.body)) {
			const data = parse(event.data, response.status);
			if (event.type === "ended") {
				yield { type: "ended", command: data as unknown as CommandInfo, id: event.id };
				return;
			}
			yield { ...data, type: event.type, id: event.id } as unknown as CommandEvent;
		}
	}

	async write(text: string): Promise<void> {
		await this.client.send("POST", `${this.path}/stdin`, { json: { text } });
	}

	async closeStdin(): Promise<void> {
		await this.client.send("POST", `${this.path}/stdin`, { json: { close: true } });
	}

	/** Of a command with a terminal. */
	async resize(rows: number, cols: number): Promise<void> {
		await this.client.send("POST", `${this.path}/resize`, { json: { rows, cols } });
	}

	/** "TERM", "KILL", "INT", ... to its process group. */
	async signal(signal: string): Promise<void> {
		await this.client.send("POST", `${this.path}/signal`, { json: { signal: signal.replace(/^SIG/, "") } });
	}

	async drop(): Promise<void> {
		await this.client.send("DELETE", this.path);
	}
}
