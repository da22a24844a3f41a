/** An answer of the server that is not a success. */
export class WorkcellError extends Error {
	override readonly name: string = "WorkcellError";
	constructor(
		message: string,
		/** The word of the server's table of codes: "not_found", "busy", "session_expired", ... */
		readonly code: string,
		readonly status: number,
	) {
		super(message);
	}
}

/** The code of a cell failed; Workcell did not. */
export class CodeError extends Error {
	override readonly name: string = "CodeError";
	constructor(
		readonly type: string,
		message: string,
		readonly traceback: string,
		/** "exception", "timeout", "kernel_died", "rejected", ... */
		readonly code: string,
	) {
		super(message);
	}
}
