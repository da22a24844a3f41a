// Generated from the OpenAPI document of the session server by scripts/types.mjs. Do not edit.

export type ToolsList = Array<{
	name: string;
	description: string;
	tags: Array<string>;
	callables: Array<{
		name: string;
		description: string;
		parameters: Array<{
			name: string;
			type?: string;
			required?: boolean;
			default?: unknown;
			description?: string;
		}>;
		result?: string;
		drift?: string;
	}>;
}>;

export type ToolsSearch = Array<{
	name: string;
	description: string;
	tags: Array<string>;
	callables: Array<{
		name: string;
		description: string;
		parameters: Array<{
			name: string;
			type?: string;
			required?: boolean;
			default?: unknown;
			description?: string;
		}>;
		result?: string;
		drift?: string;
	}>;
}>;

export type ArtifactsList = Array<{
	name: string;
	path?: string;
	description: string;
	created_at: string;
	metadata: Record<string, unknown>;
	size: number;
	derived: boolean;
}>;

export type ArtifactsSave = {
	name: string;
	path?: string;
	description: string;
	created_at: string;
	metadata: Record<string, unknown>;
	size: number;
	derived: boolean;
};

export type ArtifactsDelete = null;

export type DepsList = Array<string>;

export type DepsAdd = {
	installed: Array<string>;
	already_present: Array<string>;
	failed: Array<string>;
};

export type DepsSync = {
	installed: Array<string>;
	already_present: Array<string>;
	failed: Array<string>;
};

export type Error = {
	detail: string | Array<unknown>;
	code?: string;
};

export type Health = {
	status: string;
	uptime_seconds: number;
};

export type Started = {
	status: "started" | "starting";
};

export type Ready = {
	status: "ready" | "not ready" | "draining" | "starting";
	executor: boolean;
	storage: boolean;
};

export type Execute = {
	value: unknown;
	stdout: string;
	stderr?: string;
	error: string | null;
	error_code?: string | null;
	durable?: boolean;
	state?: "kept" | "restored" | "lost";
	execution_time_ms: number;
	session_id: string;
};

export type CommandRun = {
	status: "Finished" | "TimeLimitExceeded" | "Error";
	execution_time: number;
	return_code: number | null;
	stdout: string;
	stderr: string;
};

export type RunCode = {
	status: "Success" | "Failed" | "SandboxError";
	message: string;
	compile_result: null;
	run_result: CommandRun | null;
	executor_pod_name: null;
	files: Record<string, unknown>;
};

export type SessionId = {
	session_id: string;
};

export type Reset = {
	status: string;
	session_id: string;
};

export type Name = {
	name: string;
	description: string;
};

export type Info = {
	tools: Array<Name>;
	workflows: Array<Name>;
	artifacts_path: string;
};

export type Packages = {
	installed: Array<string>;
	already_present: Array<string>;
	removed: Array<string>;
	not_found: Array<string>;
	failed: Array<string>;
};

export type Called = {
	value: unknown;
	parts?: Array<Record<string, unknown>>;
};

export type Workflow = {
	name: string;
	description: string;
	params: Record<string, unknown>;
	source?: string;
};

export type Workflows = Array<Workflow>;

export type Removed = {
	removed: Array<string>;
	not_found: Array<string>;
	failed: Array<string>;
	removed_from_config: boolean;
};

export type True = true;

export type Object = Record<string, unknown>;

export type Session = {
	session_id: string;
	workspace_id: string | null;
	owner: string;
	client: string;
	created_at: string;
	idle_seconds: number;
	state: "idle" | "busy";
	runs: number;
	cells: number;
	state_id: string | null;
	awake_id: string | null;
	pending: number;
	executor: string;
	running: Record<string, unknown> | null;
	pid: number | null;
	memory_bytes: number | null;
	cpu_seconds: number | null;
	parent: string | null;
	points: number;
	point_bytes: number;
	isolation?: string | null;
};

export type Sessions = {
	sessions: Array<Session>;
};

export type Fork = Session | Sessions;

export type Race = {
	winner: number | null;
	scores: Array<number | null>;
	results: Array<Record<string, unknown>>;
};

export type Batch = {
	batch_id: string;
	state: "running" | "ended";
	runs: number;
	running: number;
	ended: number;
	failed: number;
	last_event: number;
};

export type Task = {
	task_id: string;
	request: string;
	state: "running" | "ended";
	created_at: string;
	status: number | null;
	last_event: number;
	answer: unknown;
};

export type Tasks = {
	tasks: Array<{
		task_id: string;
		request: string;
		state: "running" | "ended";
		created_at: string;
		status: number | null;
		last_event: number;
	}>;
};

export type Variables = {
	variables: Array<{
		name: string;
		type: string;
		size: number | null;
		preview: string;
	}>;
	more: number;
};

export type Hibernated = {
	session_id: string;
	bytes: number;
	stored_bytes: number;
	cells: number;
	points: Array<string>;
	not_carried: Array<{
		kind: string;
		name: string;
		variables: Array<string>;
	}>;
};

export type NotebookRun = {
	session_id: string;
	cells: number;
	results: Array<Execute>;
};

export type Saved = {
	sessions: Array<{
		session_id: string;
		owner: string;
		workspace_id: string | null;
		saved_at: string;
		cells: number;
		executor: string;
		form: "image" | "portable";
		bytes: number;
		awake: boolean;
	}>;
	next: string | null;
};

export type Points = {
	points: Array<{
		name: string;
		cell: number;
		automatic: boolean;
		age_ms: number;
		memory_bytes?: number | null;
	}>;
};

export type Diff = {
	form: "overlay" | "copy";
	files: Array<{
		path: string;
		change: "added" | "changed" | "deleted" | "type" | "mode";
		type: string;
		size?: number;
		old_size?: number;
		diff?: string;
		protected?: boolean;
		conflict?: boolean;
	}>;
	added: number;
	changed: number;
	deleted: number;
	truncated: boolean;
};

export type Committed = {
	committed: Array<string>;
	protected: Array<string>;
	skipped: Array<{
		path: string;
		reason: string;
	}>;
};

export type Written = {
	path: string;
	bytes?: number;
};

export type Run = {
	run_id: number;
	session_id: string;
	state: "waiting" | "running" | "ended";
	last_event: number;
	result: Record<string, unknown> | null;
};

export type Runs = {
	runs: Array<{
		run_id: number;
		state: string;
		last_event: number;
	}>;
};

export type Command = {
	command_id: string;
	pid: number;
	argv: Array<string>;
	cwd: string | null;
	tag: string | null;
	tty: boolean;
	state: "running" | "ended";
	started_at: string;
	output: number;
	dropped: number;
	exit_code: number | null;
	signal: number | null;
	reason: string | null;
};

export type Commands = {
	commands: Array<Command>;
};

export type Whoami = {
	name: string;
	scopes: Array<string>;
	workspace: string | null;
	version: string;
	executor: string;
	layers: boolean;
	audit: boolean;
};

export type Login = {
	name: string;
	scopes: Array<string>;
	csrf: string;
};

export type Policy = {
	source: string | null;
	default: "allow" | "ask" | "deny";
	rules: number;
};

export type Verdict = {
	decision: "allow" | "ask" | "deny";
	rule: number;
	line: number;
	name: string | null;
	reason: string | null;
	doubt: string | null;
};

export type Audit = {
	records: Array<Record<string, unknown>>;
	unreadable: number;
};

export type Doctor = {
	version: string;
	executors: Array<Record<string, unknown>>;
};

export type Completions = {
	prefix: string;
	matches: Array<string>;
	more: number;
};

export type Logins = {
	logins: Array<{
		server: string;
		needed: boolean;
		link?: string;
	}>;
};

export type Approvals = {
	approvals: Array<Record<string, unknown>>;
};

/** The body of POST /v1/sessions */
export type PostV1SessionsBody = {
	/** 1-128 letters, digits, underscores or hyphens */
	workspace_id?: string | null;
	/** children that the code may fork from its session; at most, and by default, as many as the server allows */
	allow_fork?: number;
	/** goes on in a copy while a call waits for its approval; by default as the server does, which must allow it */
	speculate?: boolean;
	/** the id of a saved session of the same client and workspace, to continue it */
	resume?: string;
};

/** The body of POST /v1/sessions/{session}/hibernate */
export type PostV1SessionsSessionHibernateBody = {
	/** save the kept states, too; the latest 32 */
	points?: boolean;
};

/** The body of POST /v1/sessions/{session}/fork */
export type PostV1SessionsSessionForkBody = {
	/** so many, all of them or none; without it one, which is the answer itself */
	n?: number;
	/** go without threads, child processes, connections and file locks */
	drop?: boolean;
	/** the kept state to continue from */
	point?: string;
};

/** The body of POST /v1/sessions/{session}/checkpoints */
export type PostV1SessionsSessionCheckpointsBody = {
	name: string;
	/** go without threads, child processes, connections and file locks */
	drop?: boolean;
};

/** The body of POST /v1/sessions/{session}/rewind */
export type PostV1SessionsSessionRewindBody = {
	/** of a point */
	name?: string;
	/** instead of a name: the number of cells to go back */
	cells?: number;
};

/** The body of POST /v1/sessions/{session}/files/commit */
export type PostV1SessionsSessionFilesCommitBody = {
	/** commit these files and folders; without it, all */
	paths?: Array<string>;
	/** also files that were changed in the real workspace since */
	force?: boolean;
};

/** The body of POST /v1/sessions/{session}/race */
export type PostV1SessionsSessionRaceBody = {
	/** a cell for each fork */
	codes?: Array<string>;
	/** instead: a cell for all of them */
	code?: string;
	/** with code: the number of forks */
	n?: number;
	/** an expression that each fork evaluates after its cell: the largest number wins; null: the first cell that succeeds */
	judge?: string | null;
	/** winner: its state becomes the session's */
	keep?: "winner" | "none";
	/** cells that run at once; default: all */
	concurrency?: number;
	/** time limit of each cell in seconds */
	timeout?: number | null;
	/** go without threads, child processes, connections and file locks */
	drop?: boolean;
};

/** The body of POST /v1/sessions/{session}/batch */
export type PostV1SessionsSessionBatchBody = {
	/** cells: code, or an object with code, timeout, memory and max_output */
	runs: Array<string | Record<string, unknown>>;
	/** runs at once; default 8 */
	concurrency?: number;
	/** time limit of each run in seconds */
	timeout?: number | null;
	/** bytes that each process of a run may allocate; 0: the session's limit */
	memory?: number;
	/** bytes of output that a result has; 0: the session's limit */
	max_output?: number;
	/** go without threads, child processes, connections and file locks */
	drop?: boolean;
};

/** The body of POST /v1/batch */
export type PostV1BatchBody = {
	/** cells: code, or an object with code, timeout, memory and max_output */
	runs: Array<string | Record<string, unknown>>;
	/** runs at once; default 8 */
	concurrency?: number;
	/** time limit of each run in seconds */
	timeout?: number | null;
	/** bytes that each process of a run may allocate; 0: the session's limit */
	memory?: number;
	/** bytes of output that a result has; 0: the session's limit */
	max_output?: number;
	/** go without threads, child processes, connections and file locks */
	drop?: boolean;
	/** of the new session */
	workspace_id?: string | null;
};

/** The body of POST /v1/sessions/{session}/runs */
export type PostV1SessionsSessionRunsBody = {
	/** Python code of one cell */
	code: string;
	/** time limit in seconds; 0 or null: the server's default */
	timeout?: number | null;
	/** name of the session's state after the cell, random: whoever loses the answer finds out by it whether the cell took place */
	state_id?: string;
};

/** The body of POST /v1/sessions/{session}/commands */
export type PostV1SessionsSessionCommandsBody = {
	/** the program and its arguments */
	argv?: Array<string>;
	/** instead: a line for /bin/sh -c */
	line?: string;
	/** as the code sees it, or relative to the workspace; default: the workspace */
	cwd?: string | null;
	/** variables beside the session's */
	env?: Record<string, string>;
	/** whether it gets input; else its stdin is at its end */
	stdin?: boolean;
	/** it waits while output is not read, instead of losing the oldest */
	blocks?: boolean;
	/** a terminal for all three streams */
	tty?: {
		rows?: number;
		cols?: number;
	} | null;
	/** seconds, then it is killed; 0 or null: none */
	timeout?: number | null;
	/** the client's own name for it */
	tag?: string | null;
};

/** The body of POST /v1/sessions/{session}/commands/{command}/stdin */
export type PostV1SessionsSessionCommandsCommandStdinBody = {
	text?: string;
	base64?: string;
	/** no more comes */
	close?: boolean;
};

/** The body of POST /v1/sessions/{session}/commands/{command}/signal */
export type PostV1SessionsSessionCommandsCommandSignalBody = {
	/** as TERM, KILL, INT; to its process group */
	signal: string;
};

/** The body of POST /v1/sessions/{session}/commands/{command}/resize */
export type PostV1SessionsSessionCommandsCommandResizeBody = {
	rows: number;
	cols: number;
};

/** The body of POST /v1/sessions/{session}/complete */
export type PostV1SessionsSessionCompleteBody = {
	/** the code before the cursor */
	code: string;
};

/** The body of POST /v1/sessions/{session}/approvals/{id} */
export type PostV1SessionsSessionApprovalsIdBody = {
	accept: boolean;
	/** when rejecting: the reason to report to the code */
	reason?: string | null;
	/** when accepting: run the call with these arguments instead */
	args?: Record<string, unknown> | null;
	/** when accepting: also accept every later call of this tool in this session */
	always?: boolean;
};

/** The body of POST /v1/policy/try */
export type PostV1PolicyTryBody = {
	kind?: "tool" | "shell" | "install" | "remove" | "workflow" | "artifact" | "server";
	tool: string;
	/** of the tool */
	callable?: string;
	/** of the tool: cli, http, mcp */
	adapter?: string;
	/** the arguments */
	args?: Record<string, unknown>;
	principal?: "code" | "mcp" | "http" | "host";
};
