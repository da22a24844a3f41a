/*
 * Workcell: runs the code that AI agents write.
 *
 * One engine owns a background thread, a spawner process and the warm Python
 * processes ("zygotes") that sessions are forked from.  A session keeps one
 * kernel: a CPython process whose variables live from cell to cell.
 *
 *     engine ──┬── session ── run ── run ── ... ── close
 *              └── session ...
 *
 * Threads: every function here may be called from any thread unless it says
 * otherwise.  Callbacks of cell_session_run() run on the thread that called it;
 * callbacks of cell_session_start() and of the session itself run on the
 * engine's thread and must not block or call a blocking function of this header.
 *
 * Errors: functions return 0 or a negative value and describe the failure in
 * *err, which may be NULL.  `ret_` parameters are untouched on failure.  Code
 * that raises, hangs or kills its kernel is not an error of ours: it is an
 * outcome, and stands in the result.
 *
 * The library never prints, exits, reads the environment, installs a signal
 * handler or changes the working directory.
 */
#ifndef WORKCELL_H
#define WORKCELL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CELL_API __attribute__((visibility("default")))
#else
#define CELL_API
#endif

/* ---- errors ----------------------------------------------------------- */

/*
 * The one table of codes: enum name, word, HTTP status, JSON-RPC code, exit
 * status, Python exception.  The second part are outcomes of the agent's code;
 * they appear in results, never in a struct cell_error.
 */
#define CELL_CODE_TABLE(X)                                                        \
	X(OK, "ok", 200, 0, 0, "")                                                \
	X(E_INVALID, "invalid", 400, -32602, 2, "ValueError")                     \
	X(E_NOMEM, "no_memory", 500, -32000, 125, "MemoryError")                  \
	X(E_IO, "io", 500, -32001, 125, "OSError")                                \
	X(E_NOT_FOUND, "not_found", 404, -32002, 125, "LookupError")              \
	X(E_LIMIT, "limit", 413, -32003, 125, "LimitError")                       \
	X(E_PYTHON, "python_unusable", 500, -32004, 125, "EnvironmentError")      \
	X(E_PRELOAD, "preload_failed", 500, -32005, 125, "EnvironmentError")      \
	X(E_KERNEL, "kernel_failed", 500, -32006, 125, "KernelError")             \
	X(E_SPAWNER, "spawner_failed", 503, -32007, 125, "KernelError")           \
	X(E_PROTOCOL, "protocol", 502, -32008, 125, "ProtocolError")              \
	X(E_VERSION, "version_mismatch", 502, -32009, 125, "ProtocolError")       \
	X(E_CLOSED, "closed", 410, -32010, 125, "SessionClosedError")             \
	X(E_CANCELLED, "cancelled", 499, -32011, 125, "CancelledError")           \
	X(E_UNAVAILABLE, "executor_unavailable", 501, -32012, 125, "ExecutorError") \
	X(E_TIMEOUT, "start_timeout", 504, -32013, 125, "TimeoutError")           \
	X(OUT_EXCEPTION, "exception", 200, -32100, 1, "CodeExecutionError")       \
	X(OUT_TIMEOUT, "timeout", 200, -32101, 124, "TimeoutError")               \
	X(OUT_INTERRUPTED, "interrupted", 200, -32102, 1, "InterruptedError")     \
	X(OUT_KERNEL_DIED, "kernel_died", 200, -32103, 137, "KernelDiedError")    \
	X(OUT_REJECTED, "rejected", 200, -32104, 1, "ApprovalRejectedError")

enum cell_code {
#define CELL_CODE_ENUM(name, word, http, rpc, exit_status, py) CELL_##name,
	CELL_CODE_TABLE(CELL_CODE_ENUM)
#undef CELL_CODE_ENUM
	CELL_CODE_COUNT
};

/* By value, on the caller's stack: works after fork and when memory is gone. */
struct cell_error {
	int code;      /* enum cell_code */
	int sys;       /* errno, or 0 */
	char msg[240]; /* one sentence, and what to do where we know it */
};

CELL_API const char *cell_code_word(int code);
CELL_API int cell_code_exit_status(int code);
CELL_API int cell_code_http_status(int code);
CELL_API const char *cell_version(void);

/* ---- engine ------------------------------------------------------------ */

struct cell_engine;

enum cell_log_level { CELL_LOG_DEBUG, CELL_LOG_INFO, CELL_LOG_WARN, CELL_LOG_ERROR };

struct cell_engine_options {
	size_t size;            /* sizeof(struct cell_engine_options) */
	const char *lib_dir;    /* holds workcell-spawner and kernel/; NULL: found from where the library lies */
	const char *spill_dir;  /* for output past max_output_bytes; NULL: /tmp */
	int pool_size;          /* idle kernels kept ready per environment; 0: none; default 2 */
	int64_t start_timeout_ms; /* a zygote that is not ready by then has failed; default 60000 */
	void (*log)(void *arg, enum cell_log_level level, const char *line); /* NULL: no log; engine's thread */
	void *log_arg;
};
#define CELL_ENGINE_OPTIONS_INIT                                                  \
	{ .size = sizeof(struct cell_engine_options), .pool_size = 2, .start_timeout_ms = 60000 }

/* opts may be NULL.  Starts the engine's thread; processes start on first use. */
CELL_API int cell_engine_create(const struct cell_engine_options *opts, struct cell_engine **ret_engine,
				struct cell_error *err);
/*
 * Ends all sessions and processes and waits for them.  NULL is fine.  Sessions of this engine must not
 * be in use by other threads; their handles are closed by this call and must not be used again.
 */
CELL_API void cell_engine_destroy(struct cell_engine *engine);

/* ---- environments ------------------------------------------------------- */

/* An environment is what a zygote is made for: interpreter (and thereby its venv) and preloaded modules. */
struct cell_env_info {
	size_t size;
	char python[4096];    /* the interpreter as started */
	char version[32];     /* "3.11.2" */
	char ipython[32];     /* IPython's version, "" where the environment has none and our own shell serves */
	int64_t zygote_pid;
	double start_ms;      /* from request to ready */
};

/*
 * Starts the zygote of an environment, waits until it is fully warm and its pool is full.  python NULL:
 * the default interpreter; preload NULL: none, else "numpy,pandas".  ret_info may be NULL, else set .size.
 */
CELL_API int cell_engine_prewarm(struct cell_engine *engine, const char *python, const char *preload,
				 struct cell_env_info *ret_info, struct cell_error *err);

/* ---- executors ---------------------------------------------------------- */

struct cell_executor_info {
	size_t size;
	const char *name;
	const char *isolation;    /* "process", "none", ... */
	int available;            /* 1: works here */
	char reason[240];         /* why not */
	char advice[240];         /* what the person should do */
};

/* The i-th executor this build knows, 0-based; -1 past the end.  Set ret_info->size. */
CELL_API int cell_executor_probe(struct cell_engine *engine, size_t i, struct cell_executor_info *ret_info);

/* ---- sessions ----------------------------------------------------------- */

struct cell_session;
struct cell_result;

enum cell_event_type {
	CELL_EVENT_CHUNK = 1,   /* output bytes, in order */
	CELL_EVENT_DISPLAY,     /* display(): MIME parts */
	CELL_EVENT_RESULT,      /* exactly one, the last of a run */
	CELL_EVENT_KERNEL_DIED, /* the kernel died between runs (session events only) */
};

enum cell_stream { CELL_STDOUT = 1, CELL_STDERR = 2 };

struct cell_mime_part {
	const char *type;  /* "image/png" */
	const void *data;  /* raw bytes, NUL-terminated for convenience */
	size_t size;
};

struct cell_event {
	enum cell_event_type type;
	uint64_t run_id;                   /* 0: between runs (background threads, left-over children) */
	enum cell_stream stream;           /* CHUNK */
	const char *data;                  /* CHUNK: not NUL-terminated, may split a UTF-8 character */
	size_t size;
	const struct cell_mime_part *parts; /* DISPLAY */
	size_t n_parts;
	struct cell_result *result;        /* RESULT: owned by the receiver for cell_session_start(), else borrowed */
	const char *message;               /* KERNEL_DIED: the cause */
};
typedef void (*cell_event_fn)(void *arg, const struct cell_event *event);

struct cell_session_options {
	size_t size;              /* sizeof(struct cell_session_options) */
	const char *executor;     /* NULL: "subprocess" */
	const char *python;       /* path of the interpreter; NULL: /usr/bin/python3 */
	const char *preload;      /* "numpy,pandas"; NULL: none */
	const char *cwd;          /* NULL: the caller's */
	const char *const *env;   /* "K=V", NULL-terminated; added to PATH, HOME, LANG; nothing is inherited */
	int64_t timeout_ms;       /* of a run; -1: none; default 120000 */
	int64_t grace_ms;         /* between interrupt and kill; default 2000 */
	int64_t max_output_bytes; /* a result keeps at most this of each of stdout, stderr, text; default 1 MiB */
	cell_event_fn on_event;   /* events between runs; engine's thread; may be NULL */
	void *event_arg;
};
#define CELL_SESSION_OPTIONS_INIT                                                 \
	{ .size = sizeof(struct cell_session_options), .timeout_ms = 120000, .grace_ms = 2000, \
	  .max_output_bytes = 1 << 20 }

/* opts may be NULL. */
CELL_API int cell_session_open(struct cell_engine *engine, const struct cell_session_options *opts,
			       struct cell_session **ret_session, struct cell_error *err);
CELL_API const char *cell_session_id(const struct cell_session *session);
/* Pid of the current kernel, 0 when there is none. */
CELL_API int64_t cell_session_kernel_pid(struct cell_session *session);

struct cell_run_options {
	size_t size;           /* sizeof(struct cell_run_options) */
	int64_t timeout_ms;    /* 0: the session's; -1: none */
	cell_event_fn on_event; /* may be NULL */
	void *event_arg;
};
#define CELL_RUN_OPTIONS_INIT { .size = sizeof(struct cell_run_options) }

/*
 * Runs one cell and waits.  Events come on this thread while it waits; a slow callback slows the kernel
 * and nobody else.  Cells of one session run one at a time, in the order of the calls.  opts may be NULL.
 */
CELL_API int cell_session_run(struct cell_session *session, const char *code, size_t size,
			      const struct cell_run_options *opts, struct cell_result **ret_result,
			      struct cell_error *err);
/*
 * Queues one cell and returns.  If this fails the callback never runs; otherwise it gets exactly one
 * CELL_EVENT_RESULT, on the engine's thread, and owns the result in it.
 */
CELL_API int cell_session_start(struct cell_session *session, const char *code, size_t size,
				const struct cell_run_options *opts, uint64_t *ret_run_id,
				struct cell_error *err);
/* Interrupts the running cell (KeyboardInterrupt in the code).  Nothing running: 0, no effect. */
CELL_API int cell_session_interrupt(struct cell_session *session, struct cell_error *err);
/*
 * A fresh kernel.  A running cell ends with `interrupted` and state lost, queued ones follow on the new
 * kernel.  On return the old kernel and every process it left behind are gone.
 */
CELL_API int cell_session_reset(struct cell_session *session, struct cell_error *err);
/* Ends the session in any state and waits until its processes are gone.  NULL is fine. */
CELL_API void cell_session_close(struct cell_session *session);

/* ---- results ------------------------------------------------------------ */

struct cell_outcome {
	int code;               /* CELL_OUT_*, or the CELL_E_* that ended the session under it */
	const char *type;       /* "ZeroDivisionError"; "" when no exception */
	const char *message;
	const char *traceback;  /* plain text; "" when none */
};

struct cell_text {
	const char *data;       /* valid UTF-8, NUL-terminated; invalid bytes became U+FFFD */
	size_t size;
	const char *raw;        /* the bytes as written */
	size_t raw_size;
	uint64_t total;         /* bytes written, also those past the cap */
};

CELL_API void cell_result_destroy(struct cell_result *result);

/* The value as JSON text where that is exact, else NULL. */
CELL_API const char *cell_result_value_json(const struct cell_result *result);
/* repr() of the value; NULL when the cell had none. */
CELL_API const char *cell_result_repr(const struct cell_result *result);
/* MIME parts of the value; text/plain first. */
CELL_API size_t cell_result_mime(const struct cell_result *result, const struct cell_mime_part **ret_parts);
CELL_API void cell_result_stdout(const struct cell_result *result, struct cell_text *ret_text);
CELL_API void cell_result_stderr(const struct cell_result *result, struct cell_text *ret_text);
/* stdout and stderr in the order written. */
CELL_API void cell_result_text(const struct cell_result *result, struct cell_text *ret_text);
/* NULL when the cell ended well. */
CELL_API const struct cell_outcome *cell_result_error(const struct cell_result *result);
CELL_API double cell_result_duration_ms(const struct cell_result *result);
/* 1: variables are kept; 0: lost, the next run starts on a fresh kernel. */
CELL_API int cell_result_state_kept(const struct cell_result *result);
/* The isolation receipt, a JSON object. */
CELL_API const char *cell_result_isolation_json(const struct cell_result *result);
/* All output, when it was more than the cap; else NULL.  Removed with the result unless kept. */
CELL_API const char *cell_result_spill_path(const struct cell_result *result);
CELL_API void cell_result_keep_spill(struct cell_result *result);
/* Displayed objects, in order. */
CELL_API size_t cell_result_display_count(const struct cell_result *result);
CELL_API size_t cell_result_display(const struct cell_result *result, size_t i,
				    const struct cell_mime_part **ret_parts);
/* The whole result as one line of JSON (the shape of `workcell run --json`); free() it.  NULL: no memory. */
CELL_API char *cell_result_json(const struct cell_result *result);

#ifdef __cplusplus
}
#endif
#endif
