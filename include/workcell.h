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
 * outcome, and is reported in the result.
 *
 * Structs that begin with `size` are initialised with their cell_..._init() function, which sets the size and the defaults, or in C
 * with their CELL_..._INIT macro.  The functions are inline: they fill the struct as large as the program was compiled with.
 *
 * The library never prints, exits, reads the environment, installs a signal
 * handler or changes the working directory.
 */
#ifndef WORKCELL_H
#define WORKCELL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CELL_API __attribute__((visibility("default")))
#else
#define CELL_API
#endif

/* ---- version ---------------------------------------------------------- */

/* Of this header; cell_version() is the library's.  scripts/check-version.py compares it with the file VERSION. */
#define CELL_VERSION_MAJOR 0
#define CELL_VERSION_MINOR 1
#define CELL_VERSION_PATCH 0
#define CELL_VERSION "0.1.0"

/* ---- errors ----------------------------------------------------------- */

/*
 * The one table of codes: number, enum name, word, HTTP status, JSON-RPC code,
 * exit status, Python exception.  OUT_... (JSON-RPC codes -32100 to -32199) are
 * outcomes of the agent's code; they appear in results, never in a struct
 * cell_error.  Numbers never change: a new code stands at the end.
 */
#define CELL_CODE_TABLE(X)                                                              \
	X(0, OK, "ok", 200, 0, 0, "")                                                   \
	X(1, E_INVALID, "invalid", 400, -32602, 2, "ValueError")                        \
	X(2, E_NOMEM, "no_memory", 500, -32000, 125, "MemoryError")                     \
	X(3, E_IO, "io", 500, -32001, 125, "OSError")                                   \
	X(4, E_NOT_FOUND, "not_found", 404, -32002, 1, "LookupError")                   \
	X(5, E_LIMIT, "limit", 413, -32003, 1, "LimitError")                            \
	X(6, E_PYTHON, "python_unusable", 500, -32004, 1, "EnvironmentError")           \
	X(7, E_PRELOAD, "preload_failed", 500, -32005, 1, "EnvironmentError")           \
	X(8, E_KERNEL, "kernel_failed", 500, -32006, 125, "KernelError")                \
	X(9, E_SPAWNER, "spawner_failed", 503, -32007, 125, "KernelError")              \
	X(10, E_PROTOCOL, "protocol", 502, -32008, 125, "ProtocolError")                \
	X(11, E_VERSION, "version_mismatch", 502, -32009, 125, "ProtocolError")         \
	X(12, E_CLOSED, "closed", 410, -32010, 125, "SessionClosedError")               \
	X(13, E_CANCELLED, "cancelled", 499, -32011, 1, "CancelledError")               \
	X(14, E_UNAVAILABLE, "executor_unavailable", 501, -32012, 125, "ExecutorError") \
	X(15, E_TIMEOUT, "start_timeout", 504, -32013, 125, "TimeoutError")             \
	X(16, OUT_EXCEPTION, "exception", 200, -32100, 1, "CodeExecutionError")         \
	X(17, OUT_TIMEOUT, "timeout", 200, -32101, 124, "TimeoutError")                 \
	X(18, OUT_INTERRUPTED, "interrupted", 200, -32102, 1, "InterruptedError")       \
	X(19, OUT_KERNEL_DIED, "kernel_died", 200, -32103, 137, "KernelDiedError")      \
	X(20, OUT_REJECTED, "rejected", 200, -32104, 1, "ApprovalRejectedError")        \
	X(21, E_TOOL, "tool_failed", 502, -32014, 1, "ToolCallError")                   \
	X(22, E_TOOL_TIMEOUT, "tool_timeout", 504, -32015, 124, "ToolTimeoutError")     \
	X(23, E_EXISTS, "exists", 409, -32016, 1, "FileExistsError")                    \
	X(24, E_DISABLED, "disabled", 403, -32017, 1, "RuntimeDepsDisabledError")       \
	X(25, E_INSTALL, "install_failed", 502, -32018, 1, "DepsError")                 \
	X(26, E_SANDBOX, "sandbox_failed", 500, -32019, 125, "SandboxError")            \
	X(27, E_AUTH, "unauthorized", 401, -32030, 1, "PermissionError")                \
	X(28, E_FORBIDDEN, "forbidden", 403, -32031, 1, "PermissionError")              \
	X(29, E_BUSY, "busy", 429, -32032, 1, "BusyError")                              \
	X(30, E_EXPIRED, "session_expired", 410, -32033, 1, "SessionClosedError")       \
	X(31, E_STORAGE, "storage_unavailable", 503, -32034, 125, "OSError")            \
	X(32, OUT_LIMIT, "limit_exceeded", 200, -32105, 137, "LimitExceededError")      \
	X(33, E_FORK, "cannot_fork", 409, -32035, 1, "ForkError")                       \
	X(34, E_UNSUPPORTED, "unsupported", 501, -32036, 1, "UnsupportedError")         \
	X(35, E_CONFLICT, "conflict", 409, -32037, 1, "ConflictError")                  \
	X(36, E_DIFFERS, "differs", 409, -32038, 1, "WakeError")                        \
	X(37, E_DAMAGED, "damaged", 409, -32039, 1, "WakeError")

enum cell_code {
#define CELL_CODE_ENUM(number, name, word, http, rpc, exit_status, py) CELL_##name = number,
	CELL_CODE_TABLE(CELL_CODE_ENUM)
#undef CELL_CODE_ENUM
		CELL_CODE_COUNT
};

/* Passed by value, on the caller's stack: works after fork and when memory has run out. */
struct cell_error {
	int code;      /* enum cell_code */
	int sys;       /* errno, or 0 */
	char msg[240]; /* one sentence, with advice where we have some */
};

CELL_API const char *cell_code_word(int code);
CELL_API int cell_code_exit_status(int code);
CELL_API int cell_code_http_status(int code);
CELL_API const char *cell_version(void);
/*
 * Removes a folder with all its contents, of any depth: no link is followed, no mount is entered, and folders that we own get
 * missing permissions first.  Entries that cannot be removed stay and are reported as the error.  Any thread; blocks.
 */
CELL_API int cell_remove_tree(const char *path, struct cell_error *err);

/* ---- engine ------------------------------------------------------------ */

struct cell_engine;

enum cell_log_level { CELL_LOG_DEBUG, CELL_LOG_INFO, CELL_LOG_WARN, CELL_LOG_ERROR };

struct cell_engine_options {
	size_t size;            /* sizeof(struct cell_engine_options) */
	const char *lib_dir;    /* contains workcell-spawner and kernel/; NULL: found from the library's location */
	const char *spill_dir;  /* for output beyond max_output_bytes, up to 1 GiB per run; NULL: /tmp */
	int pool_size;          /* idle kernels kept ready per environment; 0: none; default 2 */
	int64_t start_timeout_ms; /* time limit for a zygote to become ready; default 60000 */
	void (*log)(void *arg, enum cell_log_level level, const char *line); /* NULL: no log; engine's thread */
	void *log_arg;
	const char *cache_dir;  /* contains Deno, Pyodide and their snapshots; NULL: ~/.cache/workcell */
	int64_t zygote_forks;   /* replace a zygote after this many kernels; 0: never */
	int64_t points_bytes;   /* memory of the points of all sessions; beyond it the oldest are dropped; 0: no limit */
};
#define CELL_ENGINE_OPTIONS_INIT { .size = sizeof(struct cell_engine_options), .pool_size = 2, .start_timeout_ms = 60000 }
static inline void cell_engine_options_init(struct cell_engine_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->pool_size = 2;
	opts->start_timeout_ms = 60000;
}

/* opts may be NULL.  Starts the engine's thread; processes start on first use. */
CELL_API int cell_engine_create(const struct cell_engine_options *opts, struct cell_engine **ret_engine, struct cell_error *err);
/*
 * Ends all sessions and processes and waits for them.  NULL is allowed.  Sessions of this engine must not
 * be in use by other threads; their handles are closed by this call and must not be used again.
 *
 * A callback of the engine must not call a blocking function: the engine would wait for itself.  Functions that
 * can fail return CELL_E_INVALID; those that cannot fail (this one and every close) write their name to the
 * log and abort.
 */
CELL_API void cell_engine_destroy(struct cell_engine *engine);

/* ---- environments ------------------------------------------------------- */

/* A zygote serves one environment: an interpreter (and thereby its venv) and preloaded modules. */
struct cell_env_info {
	size_t size;
	char python[4096];    /* the interpreter as started */
	char version[32];     /* "3.11.2" */
	char ipython[32];     /* IPython's version; "": IPython is not installed and the kernel's own interactive layer is used */
	int64_t zygote_pid;
	double start_ms;      /* from request to ready */
};
static inline void cell_env_info_init(struct cell_env_info *info)
{
	if (!info)
		return;
	memset(info, 0, sizeof *info);
	info->size = sizeof *info;
}

/*
 * Starts the zygote of an environment and waits until it is fully warm and its pool is full.  python NULL:
 * the default interpreter; preload NULL: none, else "numpy,pandas".  ret_info may be NULL, else set .size.
 */
CELL_API int cell_engine_prewarm(struct cell_engine *engine, const char *python, const char *preload, struct cell_env_info *ret_info,
				 struct cell_error *err);

/* ---- executors ---------------------------------------------------------- */

struct cell_executor_info {
	size_t size;
	const char *name;
	const char *isolation;    /* "process", "none", ... */
	int available;            /* 1: works on this machine */
	char reason[240];         /* why it does not work; if it works, what its confinement lacks on this machine, or "" */
	char advice[240];         /* what the user should do */
	char fix[8192];           /* a shell command that does it, or "" */
	char level[16];           /* sandbox: the best level of confinement here, "full" or "no-userns"; "": none, or not a sandbox */
};
static inline void cell_executor_info_init(struct cell_executor_info *info)
{
	if (!info)
		return;
	memset(info, 0, sizeof *info);
	info->size = sizeof *info;
}

/* The i-th executor of this build, 0-based; returns -1 past the end.  Set ret_info->size. */
CELL_API int cell_executor_probe(struct cell_engine *engine, size_t i, struct cell_executor_info *ret_info);

/* ---- containers --------------------------------------------------------- */

struct cell_container_options;
/*
 * Builds the image of the executor `container` from the context of the options and waits.  progress gets the engine's output line by
 * line, on this thread or on the engine's; it may be NULL.
 */
CELL_API int cell_container_build(struct cell_engine *engine, const struct cell_container_options *options,
				  void (*progress)(void *arg, const char *line), void *arg, struct cell_error *err);

/* ---- sandbox ------------------------------------------------------------ */

struct cell_sandbox_options {
	size_t size;                /* sizeof(struct cell_sandbox_options) */
	const char *policy;         /* a preset's name or the path of a YAML file; NULL: "untrusted" */
	const char *workspace_mode; /* "rw", "cow", "ro", "none"; NULL: as the policy says */
	const char *cwd;            /* the workspace; NULL: the caller's */
	const char *const *env;     /* "K=V", NULL-terminated; added to PATH, HOME, LANG; nothing is inherited */
	const char *python;         /* the interpreter whose files are visible and whose package index `deps-only` allows; NULL: the
				       default interpreter, which is visible to a command only if it is the system's */
	const char *audit;          /* path of an audit log of the connections of a filtered network; NULL: no log */
	const char *const *trusted; /* as in struct cell_session_options */
	int summary;                /* cell_sandbox_explain(): 1: about ten lines for a person instead of every step */
};
#define CELL_SANDBOX_OPTIONS_INIT { .size = sizeof(struct cell_sandbox_options) }
static inline void cell_sandbox_options_init(struct cell_sandbox_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}

/* Describes as text, step by step or in a summary, how a policy is applied on this machine, without applying it.  free() *ret_text. */
CELL_API int cell_sandbox_explain(const struct cell_sandbox_options *opts, char **ret_text, struct cell_error *err);
/*
 * Runs a command in a sandbox, with the caller's stdin, stdout and stderr, and waits.  *ret_status is as waitpid() gives
 * it.  Forks, so the caller must have one thread only.
 */
CELL_API int cell_sandbox_run(const struct cell_sandbox_options *opts, char *const argv[], int *ret_status, struct cell_error *err);

/* ---- spaces: tools and storage for the code in sessions ------------------ */

/*
 * A space consists of a storage (workflows, artifacts, deps) and tools.  Code in sessions opened with it has the namespaces `tools`,
 * `workflows` (also `skills`), `artifacts` and `deps`; the host has the same operations through the functions below.
 */
struct cell_space;

struct cell_space_options {
	size_t size;               /* sizeof(struct cell_space_options) */
	/* A folder (created if missing) or the URL of Redis (docs/storage.md); NULL: no workflows, artifacts and deps. */
	const char *storage;
	const char *workspace_id;  /* NULL: none */
	const char *tools_dir;     /* folder of *.yaml; NULL: only functions added by cell_space_add_tool() */
	const char *cwd;           /* where command-line tools run; NULL: the caller's */
	/*
	 * For ${VAR} in tool definitions, at the moment of a call, and HOME of programs that only trusted callers use; NULL: every
	 * variable is missing, and HOME is that of /etc/passwd.  Loop's thread.
	 */
	const char *(*getenv_fn)(void *arg, const char *name);
	void *getenv_arg;
	int allow_runtime_deps;    /* 0: deps.add and deps.remove are refused; default 1 */
	/* The interpreter that deps are installed for, and the default for sessions; NULL: the default interpreter. */
	const char *python;
	const char *venv_dir;      /* use a venv there, created if missing; NULL: one per project under cache_dir */
	const char *cache_dir;     /* NULL: ~/.cache/workcell */
	const char *index_url;     /* URL of the package index; NULL: as pip or uv is configured */
	const char *wheel_dir;     /* install from these files only, no index; NULL: use the index */
	/* "3.11": use the python3.11 in `path`, instead of `python`. */
	const char *python_version;
	/* 1: keep and reuse the project's venv; 0: use a private venv for this space; default 1; not with venv_dir */
	int cache_venv;
	/* Whether closing the space removes the venv that it created: 1 yes, 0 no, -1 if cache_venv is 0; default -1. */
	int cleanup_venv_on_close;
	/*
	 * 1: cell_session_open() first installs the configured packages that are missing, so that the first cell can import them, and
	 * fails if that fails; default 0.
	 */
	int sync_deps_on_start;
	/*
	 * Environment variables for pip and uv, "K=V", NULL-terminated: PIP_*, UV_*, SSL_CERT_FILE, proxies.  PATH, HOME and
	 * LANG are set unless given here; nothing is inherited.  NULL: no others.
	 */
	const char *const *installer_env;
	/*
	 * The host's PATH, absolute folders only: where commands of tools, uv and interpreters are looked up, and the PATH of tools;
	 * NULL: the usual folders of a system.  List its folders in the `trusted` of confined sessions.
	 */
	const char *path;
	int64_t install_timeout_ms; /* time limit for the installers of one operation; -1: no limit; default 300000 */
	/*
	 * Gets the output of pip and uv line by line while cell_space_call() or cell_session_open() waits for them: on the thread that
	 * called, NUL-terminated.  Output of an install that code in a session started goes to the stderr of its cell instead.
	 */
	void (*on_progress)(void *arg, const char *line);
	void *progress_arg;
	/*
	 * Also search tools and workflows by meaning, with an OpenAI-compatible embeddings endpoint (its whole URL,
	 * ".../v1/embeddings"); NULL: by words only.  Names, descriptions and the beginning of sources are sent to it.
	 * "builtin:FOLDER": with the model in this folder (cell_model_install()), computed in this process; nothing is sent.
	 */
	const char *embeddings_url;
	const char *embeddings_model;
	const char *embeddings_key; /* NULL: none; "${NAME}": looked up with getenv_fn at each request; else the key itself */
	/*
	 * 1: also load tools whose definitions are in the storage, which must be Redis; they are read when the space and each session is
	 * opened.  Anyone who can write there can run commands here.  Default 0.
	 */
	int tools_from_storage;
	/*
	 * 1: this process is itself confined, as the server in a container is.  All stored workflows are marked as made by confined code,
	 * marked workflows may be used, and added packages do not count as the host's.  Default 0.
	 */
	int confined;
	/*
	 * Where the tokens of logins at remote MCP servers are kept (created if missing, mode 0700): a folder that no session's code can
	 * read or write.  NULL: servers with `auth: oauth` cannot be used.
	 */
	const char *oauth_dir;
};
#define CELL_SPACE_OPTIONS_INIT                      \
	{ .size = sizeof(struct cell_space_options), \
	  .allow_runtime_deps = 1,                   \
	  .cache_venv = 1,                           \
	  .cleanup_venv_on_close = -1,               \
	  .install_timeout_ms = 300000 }
static inline void cell_space_options_init(struct cell_space_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->allow_runtime_deps = 1;
	opts->cache_venv = 1;
	opts->cleanup_venv_on_close = -1;
	opts->install_timeout_ms = 300000;
}

CELL_API int cell_space_open(struct cell_engine *engine, const struct cell_space_options *opts, struct cell_space **ret_space,
			     struct cell_error *err);
/* The sessions of the space must have been closed.  NULL is allowed. */
CELL_API void cell_space_close(struct cell_space *space);

/*
 * One operation: "tools.list", "workflows.create", "artifacts.save", "deps.add", ... with a JSON object of
 * arguments, as docs/namespaces.md lists them.  Waits for the answer: *ret_json is JSON text, *ret_raw the bytes
 * that came with it (NULL if there were none); free() both.
 */
CELL_API int cell_space_call(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size,
			     char **ret_json, void **ret_raw, size_t *ret_raw_size, struct cell_error *err);

/*
 * The outcome of an operation.  The message of a failure (output of a tool or of pip) may be longer than a struct
 * cell_error can hold: `message` is the whole text.
 */
struct cell_answer {
	size_t size;     /* sizeof(struct cell_answer) */
	char *json;      /* success: JSON text */
	void *raw;       /* success: bytes that came with it, or NULL */
	size_t raw_size;
	char *message;   /* failure: the whole message; NULL if out of memory */
};
#define CELL_ANSWER_INIT { .size = sizeof(struct cell_answer) }
static inline void cell_answer_init(struct cell_answer *answer)
{
	if (!answer)
		return;
	memset(answer, 0, sizeof *answer);
	answer->size = sizeof *answer;
}

/* As cell_space_call(), but fills *ret_answer on success and on failure; cell_answer_finish() frees its contents. */
CELL_API int cell_space_call_ex(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size,
				struct cell_answer *ret_answer, struct cell_error *err);
CELL_API void cell_answer_finish(struct cell_answer *answer);

/*
 * Transfers an artifact of any size: a small one in one operation (artifacts.save, artifacts.load), a larger one in chunks, of which
 * only one is held in memory.  Both functions block, like cell_space_call_ex(), and fill *ret_answer in the same way, with the
 * artifact's description.
 *
 * Saving: args_json as for artifacts.save; `bytes` are its first bytes, and more(arg) returns the next ones, size 0 at the end; more
 * NULL: there are no more. Loading: args_json as for artifacts.load; take(arg) gets the bytes in order and their total number
 * (`whole`); it is not called for an empty artifact.  A single piece stays in ret_answer->raw.  Either callback fails by returning -1
 * with *err (never NULL) set, which ends the transfer; nothing of an artifact that was being saved is kept then.
 */
typedef int (*cell_more_fn)(void *arg, const void **ret_bytes, size_t *ret_size, struct cell_error *err);
typedef int (*cell_take_fn)(void *arg, const void *bytes, size_t size, int64_t whole, struct cell_error *err);
CELL_API int cell_artifact_save(struct cell_space *space, const char *args_json, const void *bytes, size_t size, cell_more_fn more,
				void *arg, struct cell_answer *ret_answer, struct cell_error *err);
CELL_API int cell_artifact_load(struct cell_space *space, const char *args_json, cell_take_fn take, void *arg,
				struct cell_answer *ret_answer, struct cell_error *err);
/*
 * Applies the policy, gate and audit log of these options to operations without a session.  A rule can deny operations of the
 * program itself if it names the principal "host"; no approval is requested, because the program itself would answer it.  Both
 * policy and audit log must outlive the space.
 */
struct cell_session_options;
CELL_API int cell_space_guard(struct cell_space *space, const struct cell_session_options *session, struct cell_error *err);

/*
 * Stops operations from another thread.  Cancelling ends the operation that is running with the canceller
 * (an installer is killed, a server is told, a search is dropped): it fails with CELL_E_CANCELLED, and so do all later ones.
 */
struct cell_canceller;
CELL_API struct cell_canceller *cell_canceller_create(void); /* NULL: out of memory */
CELL_API void cell_canceller_cancel(struct cell_canceller *canceller); /* any thread */
CELL_API void cell_canceller_destroy(struct cell_canceller *canceller); /* must not be in use; NULL is allowed */
/* As cell_space_call_ex().  One operation at a time with one canceller, which may be NULL. */
CELL_API int cell_space_call_with(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size,
				  struct cell_canceller *canceller, struct cell_answer *ret_answer, struct cell_error *err);

/*
 * Copies the contents of one storage to another, or reports how they differ.  Accesses files and the network on the calling thread: it
 * blocks and must not be called from a callback.  No engine is needed.
 */
struct cell_transfer_options {
	size_t size;              /* sizeof(struct cell_transfer_options) */
	const char *kind;         /* "workflows", "tools", "deps" or "artifacts" */
	const char *from;         /* as cell_space_options.storage */
	const char *to;           /* NULL: list the contents of `from` */
	const char *workspace_id; /* of both; NULL: none */
	const char *tools_dir;    /* of the side that is a folder; NULL: its folder tools */
	int clear;                /* 1: after copying, remove items that are only in `to` */
	int dry_run;              /* 1: report everything, change nothing */
	/*
	 * For each item, on the calling thread: "added", "changed", "same", "removed", "extra" (in `to` only, and left
	 * there), "listed", or "skipped" with the reason in `note`.  Otherwise `note` is the item's description, or a dep's specifier.
	 */
	void (*on_item)(void *arg, const char *what, const char *name, const char *note);
	void *arg;
	/* At first and after each step, on the calling thread: bytes of artifacts, otherwise items. */
	void (*on_progress)(void *arg, uint64_t done, uint64_t total);
};
#define CELL_TRANSFER_OPTIONS_INIT { .size = sizeof(struct cell_transfer_options) }
static inline void cell_transfer_options_init(struct cell_transfer_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}
CELL_API int cell_transfer(const struct cell_transfer_options *opts, struct cell_error *err);
/*
 * The environments in a cache folder, as a JSON array of {"id", "kind": "venvs", "sandbox" or "wheels", "project": the storage that it
 * was made for, missing if it was not noted, "orphan": whether that folder is gone, "packages", "bytes", "changed": seconds since 1970};
 * free() it.
 */
CELL_API int cell_cache_list(const char *cache_dir, char **ret_json, struct cell_error *err);
/* Removes one, by its id.  CELL_E_BUSY: an installer is working in it. */
CELL_API int cell_cache_remove(const char *cache_dir, const char *id, struct cell_error *err);
/*
 * Models for searches by meaning without a server (embeddings_url "builtin:FOLDER").  They read and write files on the calling thread; no
 * engine is needed.  A model has the folder models_dir/name, outside of everything that code can write: the library in it runs in this process.
 *
 * Installs or replaces a model from files and folders (NULL-terminated): *.onnx, *tokenizer.json, libonnxruntime.so* (left out: the system's).
 * sha256: that of the .onnx file, else it is refused; NULL: any.  *ret_json: an array of {"file", "bytes", "sha256"}; free() it.
 */
CELL_API int cell_model_install(const char *models_dir, const char *name, const char *const *sources, const char *sha256, char **ret_json,
				struct cell_error *err);
/* An array of {"name", "bytes"}; free() it. */
CELL_API int cell_model_list(const char *models_dir, char **ret_json, struct cell_error *err);
CELL_API int cell_model_remove(const char *models_dir, const char *name, struct cell_error *err);

/* The name of a storage for display: the URL of Redis without user, password and options, any other text unchanged; free() it. */
CELL_API char *cell_storage_shown(const char *storage);

/* The absolute name of the python3.11 in path ("/usr/bin:..."), for version "3.11"; free() it. */
CELL_API int cell_find_python(const char *version, const char *path, char **ret_python, struct cell_error *err);

/* A function of the host as a tool. */
struct cell_tool_call;
typedef void (*cell_tool_fn)(void *arg, struct cell_tool_call *call);

struct cell_tool {
	size_t size;              /* sizeof(struct cell_tool) */
	const char *name;         /* "add", or "math.add" for a function of a tool with several */
	const char *description;  /* NULL: none */
	const char *parameters;   /* JSON Schema of an object; NULL: no parameters */
	int64_t timeout_ms;       /* -1: none */
	cell_tool_fn fn;          /* engine's thread; must not block, may answer later */
	void *arg;
	const char *supposed;     /* the result that it usually has, JSON, for sessions that speculate; NULL: none */
};
#define CELL_TOOL_INIT { .size = sizeof(struct cell_tool), .timeout_ms = 60000 }
static inline void cell_tool_init(struct cell_tool *tool)
{
	if (!tool)
		return;
	memset(tool, 0, sizeof *tool);
	tool->size = sizeof *tool;
	tool->timeout_ms = 60000;
}

CELL_API int cell_space_add_tool(struct cell_space *space, const struct cell_tool *tool, struct cell_error *err);
/* Answer each call exactly once, with one of the last three functions; after that the call and its data are invalid. */
CELL_API const char *cell_tool_call_args(const struct cell_tool_call *call); /* a JSON object, checked and complete */
CELL_API const char *cell_tool_call_session_id(const struct cell_tool_call *call);
/* 1: the caller no longer waits (timeout, interrupt, the session has ended); the call must still be answered. */
CELL_API int cell_tool_call_cancelled(const struct cell_tool_call *call);
CELL_API void cell_tool_call_answer_json(struct cell_tool_call *call, const char *json, size_t size);
CELL_API void cell_tool_call_answer_text(struct cell_tool_call *call, const char *text, size_t size);
CELL_API void cell_tool_call_fail(struct cell_tool_call *call, const char *message);

/*
 * A model for the code: `llm.query(prompt, context=...)` and `llm.batch([...])` (docs/llm.md).  All sessions of the space share the budget,
 * also those that are forked.  fn gets a call whose arguments are {"prompt": text, "context": JSON or missing, "options": object or missing,
 * "left": {"calls", "tokens", "cost"}, null: no limit}; it is answered with JSON, {"text", "usage": {"tokens", "cost"}} or {"error", "usage"},
 * or with a text, or fails.  An answer without usage has used call_tokens and call_cost.
 */
struct cell_llm {
	size_t size;         /* sizeof(struct cell_llm) */
	cell_tool_fn fn;     /* engine's thread; must not block, may answer later */
	void *arg;
	int concurrency;     /* queries that fn works on at a time; more wait */
	int64_t max_calls;   /* -1: no limit */
	int64_t max_tokens;  /* as fn counts them; -1: no limit */
	double max_cost;     /* in units of the host; -1: no limit */
	int64_t call_tokens; /* at most used by one query, reserved while it runs; 0: unknown, so running queries can exceed the limit */
	double call_cost;    /* the same */
};
#define CELL_LLM_INIT { .size = sizeof(struct cell_llm), .concurrency = 8, .max_calls = -1, .max_tokens = -1, .max_cost = -1 }
static inline void cell_llm_init(struct cell_llm *llm)
{
	if (!llm)
		return;
	memset(llm, 0, sizeof *llm);
	llm->size = sizeof *llm;
	llm->concurrency = 8;
	llm->max_calls = -1;
	llm->max_tokens = -1;
	llm->max_cost = -1;
}
/* Once for a space.  What was used: cell_space_call(space, "llm.usage", ...). */
CELL_API int cell_space_set_llm(struct cell_space *space, const struct cell_llm *llm, struct cell_error *err);

/*
 * MCP servers as tools: `tools.<name>.<tool>(...)` in the code.  params_json is {"command", "args", "env", "cwd"} or
 * {"url", "headers"} (docs/mcp.md has the rest); ${VAR} in its strings is looked up with getenv_fn when the server is started,
 * which is when it is first used.  An earlier server of this name is replaced at
 * once.
 */
CELL_API int cell_space_add_mcp(struct cell_space *space, const char *name, const char *params_json, struct cell_error *err);
/* CELL_E_NOT_FOUND unless cell_space_add_mcp() added it. */
CELL_API int cell_space_remove_mcp(struct cell_space *space, const char *name, struct cell_error *err);
/*
 * Ends the MCP servers of the space and of all its sessions and waits until their processes have ended.  Pending calls
 * fail; the next use starts a server again.
 */
CELL_API int cell_space_stop_servers(struct cell_space *space, struct cell_error *err);

/*
 * Logs in at a remote MCP server whose definition has `auth: oauth`: calls show with the link that a person has to open in a browser on this
 * computer, and waits until it is done or timeout_ms (0: five minutes) is over.  Any thread but the engine's.  show returns 0, or -1 to give
 * up.  scope: further scopes, separated by spaces; NULL: none.
 */
CELL_API int cell_space_login(struct cell_space *space, const char *name, const char *scope, int (*show)(void *arg, const char *link),
			      void *arg, int64_t timeout_ms, struct cell_error *err);
/* Removes the tokens.  CELL_E_NOT_FOUND: there were none. */
CELL_API int cell_space_logout(struct cell_space *space, const char *name, struct cell_error *err);

enum cell_tool_event_type {
	CELL_TOOL_PROGRESS = 1, /* progress of a running call */
	CELL_TOOL_LOG,          /* a line for a log */
	CELL_TOOL_QUESTION,     /* a server asks a person (elicitation) */
};

struct cell_question; /* answered exactly once */

struct cell_tool_event {
	enum cell_tool_event_type type;
	const char *tool;
	const char *callable;   /* "" if unknown, like session_id */
	const char *session_id;
	const char *json;       /* the params of the server's message, as the protocol defines them */
	struct cell_question *question; /* QUESTION */
};
typedef void (*cell_tool_event_fn)(void *arg, const struct cell_tool_event *event);

/*
 * Sets the receiver of these events, on the engine's thread; it must not block.  Set it before tools are used.  Sessions get their own
 * events, and sessions that take questions (CELL_GATE_QUESTIONS) are asked instead of this function; if neither is
 * set, every question is declined.  While a question is open, the timeouts of the server's calls are paused.
 */
CELL_API int cell_space_on_tool_event(struct cell_space *space, cell_tool_event_fn fn, void *arg, struct cell_error *err);
/*
 * Any thread, now or later, before the engine is destroyed.  action: "accept", "decline" or "cancel"; content_json: for
 * "accept" the JSON object that was asked for, else NULL.  When it fails the question is still open.
 */
CELL_API int cell_question_answer(struct cell_question *question, const char *action, const char *content_json, struct cell_error *err);

/* ---- policies: which calls are allowed, need approval, or are denied ------ */

/* Ordered rules from a YAML file (docs/policy.md); the first that matches decides.  Immutable; any thread. */
struct cell_policy;

enum cell_decision { CELL_DENY, CELL_ASK, CELL_ALLOW };

/* A call to decide on.  A NULL member means that the call has no such property. */
struct cell_policy_subject {
	size_t size;              /* sizeof(struct cell_policy_subject) */
	const char *kind;         /* "tool", "shell", "install", "remove", "workflow", "artifact", "server", "llm"; NULL: "tool" */
	const char *tool;
	const char *callable;
	const char *adapter;      /* "cli", "http", ... */
	const char *args_json;    /* a JSON object; NULL: no arguments */
	const char *principal;    /* the caller: "code", "mcp", "http", "host"; NULL: "code" */
};
#define CELL_POLICY_SUBJECT_INIT { .size = sizeof(struct cell_policy_subject) }
static inline void cell_policy_subject_init(struct cell_policy_subject *subject)
{
	if (!subject)
		return;
	memset(subject, 0, sizeof *subject);
	subject->size = sizeof *subject;
}

struct cell_policy_verdict {
	size_t size;              /* sizeof(struct cell_policy_verdict) */
	enum cell_decision decision;
	int rule;                 /* 1-based; 0: the default */
	int line;                 /* of the rule; 0: the default */
	const char *name;         /* of the rule, or NULL; these texts live as long as the policy */
	const char *reason;       /* for the person who approves, or for the refused code; or NULL */
	const char *doubt;        /* ask, deny: the rule matched because this argument could not be judged; or NULL */
	const char *doubt_why;    /* "is missing", ... */
};
#define CELL_POLICY_VERDICT_INIT { .size = sizeof(struct cell_policy_verdict) }
static inline void cell_policy_verdict_init(struct cell_policy_verdict *verdict)
{
	if (!verdict)
		return;
	memset(verdict, 0, sizeof *verdict);
	verdict->size = sizeof *verdict;
}

/* The error names file, line and the first problem.  file_name is for such messages. */
CELL_API int cell_policy_parse(const char *text, size_t size, const char *file_name, struct cell_policy **ret_policy,
			       struct cell_error *err);
CELL_API int cell_policy_load(const char *path, struct cell_policy **ret_policy, struct cell_error *err);
/* All problems of a file, as a JSON array of {"file", "line", "message"}; free() it.  Fails when it cannot be read. */
CELL_API int cell_policy_check(const char *path, char **ret_json, struct cell_error *err);
/* A policy with the same decision for every call; NULL: out of memory. */
CELL_API struct cell_policy *cell_policy_of(enum cell_decision decision);
CELL_API int cell_policy_decide(const struct cell_policy *policy, const struct cell_policy_subject *subject,
				struct cell_policy_verdict *ret_verdict, struct cell_error *err);
CELL_API void cell_policy_destroy(struct cell_policy *policy); /* NULL is allowed */
CELL_API const char *cell_decision_word(enum cell_decision decision); /* "allow", "ask", "deny" */

/*
 * Middlewares: functions of the host around every tool call, the first added outermost.  Order of a call: the
 * `before` functions, policy, approval, the tool itself, then the `after` functions inside out, with the outcome of
 * it, including a refusal.  Both run on the engine's thread and must not block; each ends with exactly one of the last four
 * functions below, at once or later and from any thread, even when the caller no longer waits.
 */
struct cell_middleware_call;
typedef void (*cell_middleware_fn)(void *arg, struct cell_middleware_call *call);

struct cell_middleware {
	size_t size;               /* sizeof(struct cell_middleware) */
	const char *name;          /* for the audit log; NULL: none */
	cell_middleware_fn before; /* NULL: continue */
	cell_middleware_fn after;  /* NULL: continue */
	void *arg;
};
#define CELL_MIDDLEWARE_INIT { .size = sizeof(struct cell_middleware) }
static inline void cell_middleware_init(struct cell_middleware *middleware)
{
	if (!middleware)
		return;
	memset(middleware, 0, sizeof *middleware);
	middleware->size = sizeof *middleware;
}

CELL_API int cell_space_add_middleware(struct cell_space *space, const struct cell_middleware *middleware, struct cell_error *err);
CELL_API const char *cell_middleware_tool(const struct cell_middleware_call *call);
CELL_API const char *cell_middleware_callable(const struct cell_middleware_call *call); /* "" when none was named */
CELL_API const char *cell_middleware_session_id(const struct cell_middleware_call *call); /* "": the host's own call */
CELL_API const char *cell_middleware_executor(const struct cell_middleware_call *call);
CELL_API const char *cell_middleware_request_id(const struct cell_middleware_call *call);
/* The arguments as the code gave them, a JSON object; valid until the arguments are set or the call continues. */
CELL_API const char *cell_middleware_args(struct cell_middleware_call *call);
/* In `before`: continue the call with these arguments. */
CELL_API int cell_middleware_set_args(struct cell_middleware_call *call, const char *json, size_t size, struct cell_error *err);
/* In `after`: the message of a failed call, or NULL. */
CELL_API const char *cell_middleware_error(struct cell_middleware_call *call);
/* In `after`: the tool's answer, JSON text or (*ret_is_text) plain text; NULL if the call failed. */
CELL_API const char *cell_middleware_result(struct cell_middleware_call *call, size_t *ret_size, int *ret_is_text);
CELL_API void cell_middleware_next(struct cell_middleware_call *call);
/* Answers the call: in `before`, the tool is not called; in `after`, this replaces its result. */
CELL_API void cell_middleware_answer_json(struct cell_middleware_call *call, const char *json, size_t size);
CELL_API void cell_middleware_answer_text(struct cell_middleware_call *call, const char *text, size_t size);
/* Fails the call with this message (ToolCallError); in `before`, the call is denied. */
CELL_API void cell_middleware_fail(struct cell_middleware_call *call, const char *message);

/* ---- the audit log -------------------------------------------------------- */

/* Records every call through the gate of a session that was opened with it: docs/audit.md. */
struct cell_audit;

enum cell_audit_sync {
	CELL_AUDIT_SYNC_NEVER,    /* a power failure loses seconds */
	CELL_AUDIT_SYNC_INTERVAL, /* ... at most sync_ms */
	CELL_AUDIT_SYNC_ALWAYS,   /* code gets its answer only after the record is on disk */
};

struct cell_audit_options {
	size_t size;               /* sizeof(struct cell_audit_options) */
	const char *path;          /* created with mode 0600 if missing; several processes may write to it */
	int64_t max_bytes;         /* the file is rotated before it gets larger; 0: never; default 64 MiB */
	int keep;    /* number of rotated files to keep, path.1 is the newest; default 5 */
	enum cell_audit_sync sync; /* default: interval */
	int64_t sync_ms;           /* default 1000 */
	const char *const *redact; /* names and paths of arguments whose values are not written, besides the usual ones */
	int fail_closed;           /* 1: calls are refused while the log cannot be written; default 1 */
};
#define CELL_AUDIT_OPTIONS_INIT                      \
	{ .size = sizeof(struct cell_audit_options), \
	  .max_bytes = 64 << 20,                     \
	  .keep = 5,                                 \
	  .sync = CELL_AUDIT_SYNC_INTERVAL,          \
	  .sync_ms = 1000,                           \
	  .fail_closed = 1 }
static inline void cell_audit_options_init(struct cell_audit_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->max_bytes = 64 << 20;
	opts->keep = 5;
	opts->sync = CELL_AUDIT_SYNC_INTERVAL;
	opts->sync_ms = 1000;
	opts->fail_closed = 1;
}

CELL_API int cell_audit_open(struct cell_engine *engine, const struct cell_audit_options *opts, struct cell_audit **ret_audit,
			     struct cell_error *err);
/* Writes the queued records.  Sessions that use the log must have been closed.  NULL is allowed. */
CELL_API void cell_audit_close(struct cell_audit *audit);

/* ---- the audit log, read -------------------------------------------------- */

/* Reads one JSON object per line, from rotated files too (path.N is older than path.1, which is older than path); docs/audit.md. */
struct cell_audit_reader;

/* Which records to return; NULL or 0: all. */
struct cell_audit_filter {
	size_t size;           /* sizeof(struct cell_audit_filter) */
	const char *session;   /* an id, or a prefix of one */
	const char *tool;      /* a pattern, TOOL or TOOL.CALLABLE */
	const char *decision;  /* "allow", "accepted", ... */
	const char *since;     /* "2026-11-15T05:06:40Z", "2026-11-15", or "15m": so long ago */
	int64_t last;          /* only this many of the existing lines, the last ones (-1: none); all later lines are returned */
};
#define CELL_AUDIT_FILTER_INIT { .size = sizeof(struct cell_audit_filter) }
static inline void cell_audit_filter_init(struct cell_audit_filter *filter)
{
	if (!filter)
		return;
	memset(filter, 0, sizeof *filter);
	filter->size = sizeof *filter;
}

struct cell_audit_entry {
	size_t size;           /* sizeof(struct cell_audit_entry) */
	const char *json;      /* the line; NULL: it is not valid */
	const char *problem;   /* what is wrong with it; else NULL */
	const char *file;
	int64_t line;          /* 1-based; 0: none */
};
#define CELL_AUDIT_ENTRY_INIT { .size = sizeof(struct cell_audit_entry) }
static inline void cell_audit_entry_init(struct cell_audit_entry *entry)
{
	if (!entry)
		return;
	memset(entry, 0, sizeof *entry);
	entry->size = sizeof *entry;
}

/* filter may be NULL. */
CELL_API int cell_audit_reader_open(const char *path, const struct cell_audit_filter *filter, struct cell_audit_reader **ret_reader,
				    struct cell_error *err);
/*
 * 1: *ret_entry is the next record or invalid line, valid until the next call; 0: the end for now, and a later call
 * returns lines that were written since; -1: failure.  Does not wait for writers.  One thread at a time.
 */
CELL_API int cell_audit_reader_next(struct cell_audit_reader *reader, struct cell_audit_entry *ret_entry, struct cell_error *err);
CELL_API void cell_audit_reader_close(struct cell_audit_reader *reader); /* NULL is allowed */

/* ---- typed Python modules for the tools of an MCP server ------------------- */

struct cell_gen_options {
	size_t size;            /* sizeof(struct cell_gen_options) */
	const char *server;     /* name of the server among the tools of a session: letters, digits, _ and - */
	const char *tools_json; /* the server's answer to tools/list */
	const char *out_dir;    /* the package is created as a folder in it; created if missing; NULL: "mcptools" */
	int async_api;          /* 1: run() is a coroutine function, run_sync() blocks; 0: run() blocks, run_async() is the coroutine */
};
#define CELL_GEN_OPTIONS_INIT { .size = sizeof(struct cell_gen_options) }
static inline void cell_gen_options_init(struct cell_gen_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}

/*
 * Creates or replaces the package that docs/mcp-api.md describes; only files that this function created are replaced or removed.  Does
 * its work on the caller's thread.  *ret_json is {"package", "path", "tools": [{"name", "module"}], "problems": [{"tool",
 * "message"}]}; free() it; ret_json may be NULL.  A tool with a problem is skipped, which is not an error.
 */
CELL_API int cell_gen_mcp(const struct cell_gen_options *opts, char **ret_json, struct cell_error *err);

/* ---- sessions ----------------------------------------------------------- */

struct cell_session;
struct cell_result;

enum cell_event_type {
	CELL_EVENT_CHUNK = 1,   /* output bytes, in order */
	CELL_EVENT_DISPLAY,     /* display(): MIME parts */
	CELL_EVENT_RESULT,      /* exactly one, the last of a run */
	CELL_EVENT_KERNEL_DIED, /* the kernel died between runs (session events only) */
	CELL_EVENT_CALL_STARTED, /* the code requested a tool call, shell command, install or workflow creation */
	CELL_EVENT_CALL_ENDED,
	CELL_EVENT_APPROVAL,    /* the call waits for cell_session_answer() */
	CELL_EVENT_APPROVAL_ENDED, /* the call no longer waits: `decision` says why */
	CELL_EVENT_IMAGE,       /* an image was written to images_dir, or could not be */
	CELL_EVENT_TOOL_PROGRESS, /* an MCP server reports the progress of a call: `data` is JSON, as the protocol defines it */
	CELL_EVENT_TOOL_LOG,    /* an MCP server logs; likewise */
	CELL_EVENT_POINT_LOST,  /* the process that keeps a point has ended: `message` (session events only) */
	/*
	 * Session events only; `data` is JSON: {"kind": "fork", "session_id"}, {"kind": "point", "name", "cell"}, {"kind": "rewind", "name" or
	 * null, "cell"}, {"kind": "restored", "cell"}, {"kind": "race", "n", "winner" or null}, {"kind": "dropped", "name", "bytes", "budget":
	 * "session" or "engine"}, {"kind": "child" or "child_ended", "session_id", "parent"}: code has forked its session,
	 * {"kind": "saved" or "hibernated" or "woken", "session_id", "cells", ...}, {"kind": "not_saved", "message", "code"} (`durable`).  Points of `undo` are told of only when one is dropped or restored.
	 */
	CELL_EVENT_BRANCH,
};

enum cell_stream { CELL_STDOUT = 1, CELL_STDERR = 2 };

struct cell_mime_part {
	const char *type;  /* "image/png" */
	const void *data;  /* raw bytes, NUL-terminated for convenience */
	size_t size;
};

/* A call that the code requests. */
struct cell_call_info {
	uint64_t id;             /* of the session's requests; never used twice */
	const char *request_id;  /* the same, unique among all sessions */
	const char
		*kind; /* "tool", "shell", "install", "remove", "workflow", "artifact", "server"; "question": an MCP server asks a person */
	const char *tool; /* "curl"; "shell" or "shell_magic"; "deps"; "workflows"; "artifacts"; "tools" */
	const char *callable; /* "get"; "" when the tool itself is called */
	const char *adapter; /* "cli", "http", "host", "mcp"; "kernel" for shell commands; "space" */
	const char *session_id;
	const char *args; /* a JSON object, complete: exactly what runs; question: {"message", "requestedSchema", ...} */
	size_t args_size;
	const char *principal; /* the caller: "code", "mcp" or "http" (a client), "host" (the program itself) */
	void *client; /* the `client` given to cell_session_call(); else NULL */
	const char
		*span_id; /* by which the called server knows the call, 16 hexadecimal digits; "": none (call_spans of cell_run_options) */
};

struct cell_event {
	enum cell_event_type type;
	uint64_t run_id; /* 0: between runs (background threads, left-over children) */
	enum cell_stream stream; /* CHUNK */
	const char *data; /* CHUNK: not NUL-terminated, may split a UTF-8 character; TOOL_*: JSON text; CALL_ENDED: the result as JSON
					      text, at most 64 KiB of it, if the session was opened with call_results; else NULL */
	size_t size;
	const struct cell_mime_part *parts; /* DISPLAY */
	size_t n_parts;
	struct cell_result *result; /* RESULT: owned by the receiver for cell_session_start(), else borrowed */
	const char *message; /* KERNEL_DIED: the cause; CALL_ENDED: the error; APPROVAL: the policy's reason;
					      APPROVAL_ENDED: the reason given; IMAGE without path: why it was not written */
	const struct cell_call_info *call; /* CALL_*, APPROVAL*; TOOL_*: id 0 if the call is unknown */
	const char *decision; /* APPROVAL_ENDED: "accepted", "edited", "rejected", "expired", "cancelled";
					      CALL_ENDED: "ok", "error", "denied", "rejected", "expired", "cancelled" */
	double duration_ms; /* CALL_ENDED */
	const char *path; /* IMAGE: absolute; the file is complete */
	size_t index; /* IMAGE: of the path among those of the result */
};
typedef void (*cell_event_fn)(void *arg, const struct cell_event *event);

/* The executor `container`: a session server in a container of Docker or Podman (docs/executors.md). */
#define CELL_CONTAINER_UID 10001 /* uid and gid of the user that packaging/Dockerfile creates */
struct cell_container_options {
	size_t size; /* sizeof(struct cell_container_options) */
	const char
		*engine; /* address of the engine, like DOCKER_HOST: "unix:///PATH", "tcp://HOST:PORT"; NULL: unix:///var/run/docker.sock */
	const char *image; /* NULL: "workcell:" and cell_version() */
	const char *context; /* folder with packaging/Dockerfile, to build a missing image; NULL: a missing image is an error */
	const char *base_image; /* base image of the build; NULL: as the Dockerfile says */
	const char *name; /* name of the container; NULL: a generated one */
	const char *user; /* "UID:GID" inside; NULL: the caller's; where that is root the storage's owner, else CELL_CONTAINER_UID */
	const char *tools; /* a folder of tool definitions, read-only inside; NULL: none */
	/*
	 * Storage of workflows, artifacts and deps: a folder (created if missing; read-write inside except for its `tools` and
	 * `.host`) or the URL of Redis; NULL: a storage inside the container, removed with it.
	 */
	const char *storage;
	const char *auth_token; /* token of its server; NULL: a generated one */
	int auth_disabled; /* 1: the server requires no token */
	int session_isolation; /* 1: a container for each session; 0: one for all sessions with the same options */
	int network_disabled; /* 1: no network */
	int no_runtime_deps; /* 1: deps.add and deps.remove are refused */
	int64_t memory_limit; /* bytes, at least 64 MiB; -1: no limit */
	int64_t cpu_quota; /* microseconds of CPU per 100 ms, at least 1000; 0: no limit */
	int64_t pids_limit; /* processes and threads, at least 16; -1: no limit */
	int64_t startup_timeout_ms; /* time limit until its server answers, not counting package installation */
	/* Packages, installed by the image's own Python before the first session; NULL-terminated; NULL: none. */
	const char *const *deps;
	int sync_deps; /* 1: also install the packages that the storage lists */
	const char *index_url; /* package index; NULL: as pip in the image is configured */
	const char *wheel_dir; /* folder to install from instead of the index, read-only inside; NULL: none */
	int64_t install_timeout_ms;
};
#define CELL_CONTAINER_OPTIONS_INIT                      \
	{ .size = sizeof(struct cell_container_options), \
	  .memory_limit = 512ll << 20,                   \
	  .pids_limit = 512,                             \
	  .startup_timeout_ms = 60000,                   \
	  .install_timeout_ms = 300000 }
static inline void cell_container_options_init(struct cell_container_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->memory_limit = 512ll << 20;
	opts->pids_limit = 512;
	opts->startup_timeout_ms = 60000;
	opts->install_timeout_ms = 300000;
}

/* The executor `kubernetes`: a session server in a pod of a cluster, for each session or workspace (docs/kubernetes.md). Paths are absolute. */
struct cell_kubernetes_options {
	size_t size; /* sizeof(struct cell_kubernetes_options) */
	const char *api; /* URL of the API server; NULL: that of the cluster whose pod this process is */
	const char *token_file; /* the token for it, read anew for each pod; NULL: that of the pod's service account */
	const char *ca_file; /* PEM: the certificates that it must have; NULL: those of the pod's service account */
	const char *kubeconfig; /* instead of these three; NULL: none */
	const char *context; /* of the kubeconfig; NULL: its current one */
	const char *in_namespace; /* NULL: that of the service account or the context, else "default" */
	const char *pool; /* the label `workcell.pool` of the pods to claim; NULL: "workcell" */
	const char *warm_pool; /* instead: the name of a SandboxWarmPool of kubernetes-sigs/agent-sandbox; NULL: none */
	const char *pool_key_file; /* the key that the tokens of pods are made with; required */
	const char *runtime_class; /* the pods must have it ("gvisor", "kata"); NULL: any */
	int port; /* of the servers in the pods; 0: 8080 */
	int session_isolation; /* 1: a pod for each session; 0: sessions of one workspace (remote_workspace) share one */
	int64_t startup_timeout_ms; /* how long to wait for an idle pod */
};
#define CELL_KUBERNETES_OPTIONS_INIT { .size = sizeof(struct cell_kubernetes_options), .startup_timeout_ms = 60000 }
static inline void cell_kubernetes_options_init(struct cell_kubernetes_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->startup_timeout_ms = 60000;
}

struct cell_session_options {
	size_t size; /* sizeof(struct cell_session_options) */
	const char *executor; /* NULL: "subprocess" */
	const char *python; /* path of the interpreter; NULL: the space's, else /usr/bin/python3 */
	const char *preload; /* "numpy,pandas"; NULL: none */
	const char *cwd; /* NULL: the caller's */
	const char *const *env; /* "K=V", NULL-terminated; added to PATH, HOME, LANG; nothing is inherited */
	int64_t timeout_ms; /* time limit of a run; -1: no limit; default 120000 */
	int64_t grace_ms; /* time between interrupt and kill; default 2000 */
	int64_t max_output_bytes; /* a result keeps at most this of each of stdout, stderr, text; default 1 MiB */
	cell_event_fn on_event; /* events between runs; engine's thread; may be NULL */
	void *event_arg;
	struct cell_space *space; /* tools and storage for the code; NULL: none; must outlive the session */
	const struct cell_policy
		*policy; /* which calls are allowed, need approval, are denied; NULL: all are allowed; must outlive the session */
	unsigned
		gate; /* CELL_GATE_*: calls that the policy decides on; 0: all for a policy that was read, all but artifacts for cell_policy_of() */
	int64_t approval_timeout_ms; /* time after which an unanswered request is rejected; -1: never; default 60000 */
	int approval_stops_clock; /* 1: the run's timeout is paused while the run waits for an approval; default 0 */
	int require_shell_escape; /* 1: code can start processes only with `!cmd` and similar syntax; a guard rail, not a security boundary */
	int restore_cwd; /* 1: restore the working directory to `cwd` after each cell */
	struct cell_audit *audit; /* log that records calls; NULL: none; must outlive the session */
	/*
	 * PNGs that cells show are written to this folder, which is created with the first one, and results list their paths instead of
	 * their bytes; an image that cannot be written stays in its display.  The same holds for images that tools of MCP servers return.
	 * NULL: no images are written.
	 */
	const char *images_dir;
	const char *sandbox_policy; /* sandbox: a preset's name or the path of a YAML file; NULL: "untrusted" */
	/*
	 * sandbox: "rw", "ro", "none", or "cow": the code works in a layer over the working directory (cell_session_diff()); NULL: as the
	 * policy says
	 */
	const char *workspace_mode;
	const char *kernel; /* jupyter: the name of a kernelspec; NULL: ipykernel of `python` */
	const char *jupyter_path; /* jupyter: folders to look for kernelspecs in first, with ":" between; NULL: none */
	const char *network_profile; /* an older name of `network` */
	/* remote: a session server (docs/server.md), which determines python, preload, cwd, env and space */
	const char *remote_url; /* "http://HOST:PORT", "https://..." or "unix:PATH" */
	const char *remote_token; /* NULL: none is sent */
	const char *remote_workspace; /* NULL: none */
	int remote_reopen; /* 1: run a cell in a new session when its session has expired; 0: fail it with CELL_E_EXPIRED */
	/*
	 * 1: values that JSON cannot represent get a further MIME part, "application/vnd.workcell.value.KIND", that another Python can
	 * read: KIND is literal (tuples, sets, ...), npy (numpy), dataframe.parquet, series.json, ...  For hosts in Python.
	 */
	int portable_values;
	const struct cell_container_options *container; /* container: its options; NULL: CELL_CONTAINER_OPTIONS_INIT */
	const char *remote_ca; /* remote, https://: a PEM file of the certificates that are trusted; NULL: the system's */
	int no_spill; /* 1: output beyond max_output_bytes is not written to a file; for hosts that read it from the events or do not need it */
	/*
	 * Limits, here and in `network` and `disk_limit` below, mean the same with every executor: it enforces them, or the session is
	 * refused (CELL_E_INVALID) with a message that names the executors that can.  They override a sandbox policy and the options
	 * of a container; 0: as those say; -1: no limit.
	 */
	int network_disabled; /* 1: the same as `network` "none" */
	int64_t memory_limit; /* sandbox, container: bytes, at least 16 MiB (container: 64 MiB); kubernetes: what the pods must not exceed */
	int64_t cpu_quota; /* sandbox, container: microseconds of CPU per 100 ms, at least 1000 */
	int64_t pids_limit; /* sandbox, container: processes and threads, at least 1 (container: 16) */
	/*
	 * subprocess, sandbox: sessions with different owners are forked from different zygotes, and share neither address layout, stack
	 * canary nor hash seed.  NULL or "": the engine's common zygote.
	 */
	const char *zygote_owner;
	/*
	 * Further files and folders that the host trusts (folders on its PATH, files with its settings or secrets); NULL-terminated or
	 * NULL.  A sandbox that could write to one of them, or rename a folder on the way to it, is not opened.
	 */
	const char *const *trusted;
	/*
	 * sandbox, container, deno: "none"; "full"; sandbox, deno: also "deps-only" (the hosts of the package index) and
	 * "allow=HOST[:PORT],..." ("*.example.org" for its subdomains in a sandbox; without a port: all of them).  NULL: as the policy
	 * says; in a container "full"; with deno "none".
	 */
	const char *network;
	int64_t disk_limit; /* sandbox: bytes that the code may write: into its workspace, its /tmp, and into one file */
	/*
	 * subprocess: keep a point before each of the last `undo` cells that change something, for cell_session_rewind() by a number of cells.
	 * A cell that ends its kernel (a crash, the OOM killer, a timeout that it ignores) then sets the session back to the state before that
	 * cell, and its result says "restored".  0: no points; at most 1000.
	 */
	int undo;
	int64_t points_bytes; /* memory of the session's points; beyond it the oldest are dropped; 0: no limit */
	/*
	 * subprocess, sandbox, container, remote: the code may fork its own session (`sessions.fork()`) and have so many children open at
	 * a time, with the children of its children; at most 1000.  0: it may not, but of a session of `remote` its server decides.  A child
	 * has the options of its parent and ends with the kernel that forked it.
	 */
	int allow_fork;
	int64_t fork_memory; /* bytes that all children may take together; beyond it the largest is ended; 0: no limit */
	int64_t fork_time_ms; /* how long a child may live; 0: no limit */
	/*
	 * subprocess, sandbox, with a workspace that the code cannot write to, or a layer over it: while a call of a tool waits for an approval and
	 * its result can be supposed (`supposed` of the tool, or the last result of the same call), a copy of the kernel goes on with that result.
	 * If the call ends with it, the copy takes the kernel's place, and what it has written and asked for meanwhile follows; else it is dropped.
	 */
	int speculate;
	/*
	 * subprocess, sandbox: a folder for cell_session_hibernate() and `resume`, which code must not be able to write to; NULL: none.  It is
	 * created if it is missing.  Or the URL of Redis or Valkey, as of a storage (docs/storage.md).
	 */
	const char *saved_dir;
	const char *saved_owner; /* a saved session is woken only for the same owner (a user, a token); NULL: "" */
	const char *saved_key; /* 64 hexadecimal digits: saved sessions are encrypted (AES-256-GCM); NULL: they are not */
	const char *saved_notes; /* a JSON object of the caller's, kept with the saved session; NULL: {} */
	/*
	 * With `saved_dir`: the session is saved after each cell and reset, and after the end of its kernel, its host or its machine it wakes as it
	 * was then.  "cells": behind the result, which says that it is not saved yet; the next cell waits until the memory is taken, and not until it
	 * is written.  "results": before the result, which then says that it is saved.  NULL: only by cell_session_hibernate().
	 */
	const char *durable;
	int saved_compress; /* 1: saved sessions are compressed, which takes longer than writing them does */
	int saved_unsynced; /* 1: a save ends when Linux has it, not when the disk has it: it may be lost if the machine loses power */
	/*
	 * The id of a saved session, which this one continues and whose id it has.  CELL_E_NOT_FOUND: there is none, or it is another owner's;
	 * CELL_E_CONFLICT: it is awake elsewhere; CELL_E_DIFFERS: interpreter, files, executor or working directory are not those that it
	 * was saved with; CELL_E_DAMAGED: its files were changed.
	 */
	const char *resume;
	int call_results; /* 1: CELL_EVENT_CALL_ENDED of a call that succeeded has its result in `data` */
	/*
	 * sandbox, at level full: an absolute path at which the code sees its working directory too, and that is its cwd, "/home/user" for
	 * example.  NULL: none.  Refused where the sandbox shows something else there.
	 */
	const char *workspace_path;
	int tables; /* 1: a DataFrame gets a further MIME part, "application/vnd.workcell.table+json", if it has at most 100,000 cells */
	/*
	 * subprocess, sandbox: for front ends of Jupyter (docs/jupyter.md).  Displays have a further part that says what kind of message they
	 * are, comms work, and `input()` is a question to the receiver of events (CELL_GATE_QUESTIONS): tool "input()", content {"value"}.
	 */
	int notebook;
	/*
	 * subprocess, sandbox: a file, which must not exist, for a recording of the session (docs/replay.md): cells, answers to calls of the code,
	 * times, the seed of its random numbers, results; or a folder, for a file ID.jsonl in it.  The code must not be able to write to it.
	 * NULL: none.  Such a session is not rewound.
	 */
	const char *record;
	/*
	 * subprocess, sandbox: a recording that answers the calls of the code, and gives it its times and random numbers; tools, storage and
	 * policy are not asked.  For cell_replay(), which also runs the cells; alone: to try other code.  NULL: none.
	 */
	const char *replay;
	/*
	 * How cell_session_hibernate() writes the session (docs/durable.md): "image", its memory; "portable", its variables as objects, for another
	 * interpreter, machine type or executor; "auto": an image, and portable where there can be none.  NULL: "image".
	 */
	const char *saved_form;
	/*
	 * 1: results name the variables that their cell added, changed and removed (cell_result_changes_json()).  Costs about 0.15 ms a cell (docs/durable.md), and
	 * a value that the cell replaces lives until its end.  subprocess, sandbox.
	 */
	int changes;
	/*
	 * With `saved_dir`: how this program is named to others that want a session that it has awake (CELL_E_CONFLICT), a name and a URL of at most
	 * 256 printable ASCII characters without spaces.  NULL: the name of the host with the pid, and none.
	 */
	const char *saved_host;
	const char *saved_url;
	/*
	 * In Redis: how long a session stays with a program that does not answer any more, 1000 to 3600000; 0: 15000.  A program that could not renew
	 * its lease for two thirds of that ends its kernel, and the session answers CELL_E_CONFLICT from then on.
	 */
	int64_t saved_lease_ms;
	const struct cell_kubernetes_options *kubernetes; /* kubernetes: its options; it needs at least pool_key_file */
	/* 1: cell_session_hibernate() does as cell_session_hibernate_with_points(), and so does whatever hibernates the session by itself. */
	int saved_points;
	/*
	 * remote: 1: a cell whose server died before its result came is run again, once, where the session woke as it was before that cell.  What the
	 * cell did outside of the session, it may then do twice.  0: it ends with CELL_OUT_KERNEL_DIED.
	 */
	int remote_repeat;
	/* subprocess, sandbox: 1: a picture that code saves with Pillow to a path (a text) is displayed, too, as clients of E2B expect (docs/e2b.md). */
	int saved_images;
};
#define CELL_SESSION_OPTIONS_INIT                      \
	{ .size = sizeof(struct cell_session_options), \
	  .timeout_ms = 120000,                        \
	  .grace_ms = 2000,                            \
	  .max_output_bytes = 1 << 20,                 \
	  .approval_timeout_ms = 60000 }
static inline void cell_session_options_init(struct cell_session_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->timeout_ms = 120000;
	opts->grace_ms = 2000;
	opts->max_output_bytes = 1 << 20;
	opts->approval_timeout_ms = 60000;
}

/* Kinds of calls that pass through the gate. */
#define CELL_GATE_TOOLS 1u
#define CELL_GATE_SHELL 2u /* !cmd, %%bash and similar syntax */
#define CELL_GATE_INSTALLS 4u /* deps.add, deps.sync */
#define CELL_GATE_WORKFLOWS 8u /* workflows.create, workflows.delete */
/*
 * Questions of MCP servers to a person (elicitation) wait for cell_session_answer() too: kind "question".  Needs no policy; a
 * policy that can ask includes it.  Without it, questions go to cell_space_on_tool_event(), or are declined.
 */
#define CELL_GATE_QUESTIONS 16u
#define CELL_GATE_REMOVES 32u /* deps.remove */
#define CELL_GATE_ARTIFACTS 64u /* artifacts.save, artifacts.delete */
#define CELL_GATE_SERVERS 128u /* registration of an MCP server */
#define CELL_GATE_LLM 256u /* llm.query */

/*
 * Checks these options without starting anything.  is_open: a listener on this machine requires no token; refused if calls may
 * need an approval and the code can reach the listener, because the code could then approve its own calls.  opts may be NULL.
 */
CELL_API int cell_session_check(const struct cell_session_options *opts, int is_open, struct cell_error *err);
/* opts may be NULL. */
CELL_API int cell_session_open(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_session **ret_session,
			       struct cell_error *err);
/*
 * Starts kernels for sessions with these options in advance and waits until the pool is full, as cell_engine_prewarm() does
 * for `subprocess`.  Kernels of a sandbox are already confined for its policy and workspace.  opts may be NULL.
 */
CELL_API int cell_session_prewarm(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err);
CELL_API const char *cell_session_id(const struct cell_session *session);
/* Pid of the current kernel, or 0. */
CELL_API int64_t cell_session_kernel_pid(struct cell_session *session);
/* jupyter: the current kernel's connection file, for `jupyter console --existing`, or NULL; free() it. */
CELL_API char *cell_session_connection_file(struct cell_session *session);

struct cell_run_options {
	size_t size; /* sizeof(struct cell_run_options) */
	int64_t timeout_ms; /* 0: the session's timeout; -1: no limit */
	cell_event_fn on_event; /* may be NULL */
	void *event_arg;
	/*
	 * cell_session_start(): maximum number of microseconds that the call runs the engine on this thread, so that a short cell
	 * costs no thread switch.  Callbacks may then run inside the call.  The call returns as soon as *spin_end is not 0:
	 * a callback sets it when it has received the event that the caller waits for.  0: return at once; at most 10000.
	 */
	int spin_us;
	const int *spin_end;
	/*
	 * W3C's traceparent of the span of this cell; NULL: none.  Its calls pass it on to MCP servers (`_meta`) and to servers of HTTP tools, and
	 * the executors `remote` and `container` to their session server (docs/traces.md).
	 */
	const char *traceparent;
	int call_spans; /* 1: with a span id for each call instead of the cell's, `span_id` of cell_call_info */
};
#define CELL_RUN_OPTIONS_INIT { .size = sizeof(struct cell_run_options) }
static inline void cell_run_options_init(struct cell_run_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}

/*
 * Runs one cell and waits.  Events come on this thread while it waits; a slow callback slows the kernel
 * only.  Cells of one session run one at a time, in the order of the calls.  opts may be NULL.
 */
CELL_API int cell_session_run(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
			      struct cell_result **ret_result, struct cell_error *err);
/*
 * The variables of the session: {"variables": [{"name", "type", "size" (bytes of the value itself), "preview"}], "more"}; free() it.  At most 1000,
 * and no code of the session runs for it.  The kernel answers, so treat it as output of the code.  CELL_E_BUSY while a cell runs;
 * CELL_E_UNAVAILABLE for the executor `jupyter`.
 */
CELL_API int cell_session_variables(struct cell_session *session, char **ret_json, struct cell_error *err);
/*
 * Completions for a person who types: `before` is the code before the cursor.  *ret_json is {"prefix", "matches", "more"}: the end of that
 * code, names that begin with it, and how many others were left out; free() it.  The kernel answers, so treat it as output of the code.  It
 * evaluates nothing but __dir__() of the session's objects, within 2 seconds.  CELL_E_BUSY while a cell runs; CELL_E_UNAVAILABLE for the
 * executor `jupyter`.
 */
CELL_API int cell_session_complete(struct cell_session *session, const char *before, size_t size, char **ret_json, struct cell_error *err);
/*
 * Queues one cell and returns.  If this fails the callback never runs; otherwise it gets exactly one
 * CELL_EVENT_RESULT, on the engine's thread, and owns the result in it.
 */
CELL_API int cell_session_start(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
				uint64_t *ret_run_id, struct cell_error *err);
/* Interrupts the running cell (KeyboardInterrupt in the code).  Returns 0 without effect if no cell runs. */
CELL_API int cell_session_interrupt(struct cell_session *session, struct cell_error *err);
/*
 * Ends one cell of cell_session_start(): a queued cell does not run; a running cell is interrupted and, if it has not ended
 * within grace_ms, its kernel is killed.  Its result says `interrupted`.  Returns 0 without effect if the run has ended or is unknown.
 */
CELL_API int cell_session_cancel(struct cell_session *session, uint64_t run_id, struct cell_error *err);
/*
 * Starts a fresh kernel.  A running cell ends with `interrupted` and its state lost; queued cells run on the new
 * kernel.  On return the old kernel and every process it left behind are gone.
 */
CELL_API int cell_session_reset(struct cell_session *session, struct cell_error *err);
/* Ends the session in any state and waits until its processes are gone.  NULL is allowed. */
CELL_API void cell_session_close(struct cell_session *session);

/* ---- branches ------------------------------------------------------------ */

struct cell_fork_options {
	size_t size; /* sizeof(struct cell_fork_options) */
	cell_event_fn on_event; /* session events of the forks; NULL: none */
	void *event_arg;
	void *const *event_args; /* one for each fork; NULL: event_arg for all */
	const char *images_dir; /* NULL: the source's */
	/*
	 * A fork has memory, imports and files, but no threads, child processes, connections and file locks.  0: if the session has some, the
	 * fork fails with CELL_E_FORK and a message that names them, and nothing has happened; 1: the forks continue without them.
	 */
	int drop;
	const char *point; /* cell_session_fork(): the kept state that the forks continue from; NULL: the session's */
};
#define CELL_FORK_OPTIONS_INIT { .size = sizeof(struct cell_fork_options) }
static inline void cell_fork_options_init(struct cell_fork_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}

/*
 * Opens n sessions that continue from this session's state: variables, imports, open files with positions of their own, the same options.
 * Random numbers differ from the source's and from each other's.  Waits for the cell that runs; cells that are queued run afterwards.  All
 * of them or none; each must be closed.  The source may be closed before them.  opts may be NULL; with a `point` they continue from that,
 * which stays.  CELL_E_NOT_FOUND: there is no such point.  CELL_E_UNSUPPORTED: the executor cannot fork (`subprocess` can).
 */
CELL_API int cell_session_fork(struct cell_session *session, const struct cell_fork_options *opts, size_t n,
			       struct cell_session **ret_sessions, struct cell_error *err);
/*
 * Keeps the current state under a name, in place of an earlier point of that name.  It costs the memory that the session changes later.
 * opts: only `drop` is used; NULL is allowed.
 */
CELL_API int cell_session_checkpoint(struct cell_session *session, const char *name, const struct cell_fork_options *opts,
				     struct cell_error *err);
/*
 * Continues from a point, which stays; name NULL: from the point that was taken so many cells ago.  Files are not included.  A running cell
 * ends with `interrupted` and its state lost; queued cells run on the state of the point.  CELL_E_NOT_FOUND: there is no such point.
 */
CELL_API int cell_session_rewind(struct cell_session *session, const char *name, uint64_t cells, struct cell_error *err);
/*
 * Continues from the state of another session of the same engine and executor, as if that were a point; the other stays open.  Waits for
 * the cell that runs in the other.  After a race among forks, this makes the winner's state the source's.
 */
CELL_API int cell_session_become(struct cell_session *session, struct cell_session *other, struct cell_error *err);

struct cell_race_options {
	size_t size; /* sizeof(struct cell_race_options) */
	const char *const *codes; /* a cell for each fork; NULL: `code` in all of them */
	const char *code;
	size_t n; /* the number of forks */
	/*
	 * How a fork whose cell succeeded is judged; the largest number wins, the first of equal ones.  judge: an expression that the fork
	 * evaluates after its cell.  score: the host's function, called on the caller's thread once all cells have ended; -1: the fork
	 * cannot win.  Both NULL: the first cell of the list that succeeds wins.
	 */
	const char *judge;
	int (*score)(void *arg, size_t i, const struct cell_result *result, double *ret_score);
	void *score_arg;
	int keep_none; /* 1: the session stays as it is */
	size_t concurrency; /* cells that run at once; 0: all */
	int64_t timeout_ms; /* of each cell and each judgement; 0: the session's timeout; -1: no limit */
	int drop; /* as in cell_fork_options */
	cell_event_fn on_event; /* events of the forks and their cells but the results; may be NULL */
	void *event_arg;
};
#define CELL_RACE_OPTIONS_INIT { .size = sizeof(struct cell_race_options) }
static inline void cell_race_options_init(struct cell_race_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}
struct cell_race {
	size_t n;
	struct cell_result **results; /* of all cells, in the order of the list */
	double *scores; /* NAN: the cell or its judgement failed */
	int64_t winner; /* -1: none */
};

/*
 * Runs cells side by side in forks of the session's state.  The winner's state becomes the session's, and nothing of the others is left.
 * opts says which cells.  Also CELL_E_FORK, as cell_session_fork().
 */
CELL_API int cell_session_race(struct cell_session *session, const struct cell_race_options *opts, struct cell_race **ret_race,
			       struct cell_error *err);
/* Frees a race and its results.  NULL is allowed. */
CELL_API void cell_race_destroy(struct cell_race *race);
/* ---- batches ---- */

struct cell_batch_options {
	size_t size; /* sizeof(struct cell_batch_options) */
	const char *const *codes; /* a cell for each run; copied */
	size_t n; /* at most 100000 */
	size_t concurrency; /* runs at once; default 8; at most 1000 */
	int64_t timeout_ms; /* of each run; 0: the session's timeout; -1: no limit */
	const int64_t *timeouts_ms; /* one for each run; NULL: timeout_ms for all */
	int drop; /* as in cell_fork_options */
	/* Limits of each run below the session's, as in cell_session_limit(), and one for each run; 0, NULL: those. */
	int64_t memory_bytes, max_output_bytes;
	const int64_t *memories_bytes, *max_outputs_bytes;
};
#define CELL_BATCH_OPTIONS_INIT { .size = sizeof(struct cell_batch_options), .concurrency = 8 }
static inline void cell_batch_options_init(struct cell_batch_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->concurrency = 8;
}

struct cell_batch;

/*
 * Starts a batch: each cell runs in its own fork of the session's present state, with the session's limits, and leaves nothing.  The session
 * itself may be used or closed meanwhile.  CELL_E_UNSUPPORTED: the executor cannot fork (`subprocess` and `sandbox` can).
 */
CELL_API int cell_session_map(struct cell_session *session, const struct cell_batch_options *opts, struct cell_batch **ret_batch,
			      struct cell_error *err);
/* The same from the state of a new session with these options, which ends with the batch. */
CELL_API int cell_engine_batch(struct cell_engine *engine, const struct cell_session_options *session,
			       const struct cell_batch_options *opts, struct cell_batch **ret_batch, struct cell_error *err);
/*
 * Waits for a run to end, in any order: 1, with its number and its result, which is the caller's; 0: all have been returned.  -1: our
 * failure; where it is that of one run, whose number *ret_i then is, the others go on.  No more than `concurrency` results are kept: runs
 * start as results are taken.
 */
CELL_API int cell_batch_next(struct cell_batch *batch, size_t *ret_i, struct cell_result **ret_result, struct cell_error *err);
/* Cancels the runs that have not ended, and waits for their end.  NULL is allowed; no other call may be under way. */
CELL_API void cell_batch_destroy(struct cell_batch *batch);

/*
 * Writes the session to `saved_dir` and ends its kernel; the session stays open, and its next use wakes it.  Waits for the cell that runs.
 * A JSON object (docs/durable.md): "session_id", "bytes" of its memory that were written now, "stored_bytes", "cells", "not_carried":
 * [{"kind", "name", "variables"}].  free() it.  NULL: err has the reason, and the session goes on as it was.  After cell_session_close()
 * any engine that shares the folder can wake it with `resume`.
 */
CELL_API char *cell_session_hibernate(struct cell_session *session, struct cell_error *err);
/*
 * The same with its points (cell_session_checkpoint(), `undo`), at most 32, the latest: they wake with it.  The answer's "points" has the names of
 * those that were saved, "not_carried" the others.  In the form "image".
 */
CELL_API char *cell_session_hibernate_with_points(struct cell_session *session, struct cell_error *err);
/*
 * The sessions of this owner in `saved_dir`, the latest first: a JSON array of {"session_id", "owner", "saved_ms" (since 1970), "cells", "executor",
 * "form", "workspace", "bytes", "awake", "notes"}; of one that is awake "holder".  free() it.  owner, key: as `saved_owner` and `saved_key`.
 * Blocks for the disk.
 */
CELL_API char *cell_saved_list(const char *dir, const char *owner, const char *key, struct cell_error *err);
/*
 * The same in pages: a JSON object {"sessions", "next"}.  after: "next" of the page before; NULL: the first page.  limit: sessions of a page, at most
 * 1000; 0: 100.  "next" is null on the last page; another one can have fewer sessions than its limit, or none, because what is looked at for a page
 * is bounded.  A session that is saved between two pages is the first from then on, and on none of the pages that follow.
 */
CELL_API char *cell_saved_page(const char *dir, const char *owner, const char *key, const char *after, size_t limit,
			       struct cell_error *err);
/* Removes one.  CELL_E_NOT_FOUND: there is none, or it is another owner's; CELL_E_CONFLICT: it is awake. */
CELL_API int cell_saved_remove(const char *dir, const char *owner, const char *key, const char *id, struct cell_error *err);

/*
 * Runs the cells of a recording (`replay` of the options) again in a new session and compares results and calls; stops at the first difference.
 * executor NULL: as it was recorded, `subprocess` or `sandbox`.  A JSON object (docs/replay.md): "same", "cells", "same_cells", "whole" (false:
 * the recording ends in the middle of a cell), "difference": null or {"cell", "what", "line", "expected", "actual"}.  free() it.  NULL: err has
 * the reason; CELL_E_DAMAGED, CELL_E_DIFFERS (format) or CELL_E_LIMIT: the file is not a recording that can be read.
 */
CELL_API char *cell_replay(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err);

/*
 * The same for a recording of a workflow's call, with another source of the workflow `name`: the recording is its test.  Other workflows have the
 * source that was recorded.
 */
CELL_API char *cell_replay_workflow(struct cell_engine *engine, const struct cell_session_options *opts, const char *name,
				    const char *source, struct cell_error *err);

/*
 * The code cells of a Jupyter notebook (docs/notebooks.md): a JSON array of strings.  free() it.  CELL_E_INVALID: it is not a notebook;
 * CELL_E_UNSUPPORTED: another format than 4, or another language than Python.
 */
CELL_API char *cell_notebook_cells(const char *notebook, size_t size, struct cell_error *err);
/*
 * A Jupyter notebook (nbformat 4.5) of a recording: cells, output, values, plots, errors.  free() it.  Errors of the file as those of
 * cell_replay().
 */
CELL_API char *cell_recording_notebook(const char *path, struct cell_error *err);

/*
 * Lowers limits of a session whose kernel was forked or is ready; a reset or the kernel's death ends that of memory.  memory_bytes: what each
 * of its processes may allocate beyond what it has now, then the code gets a MemoryError; CELL_E_UNSUPPORTED: the executor cannot (`subprocess`
 * and `sandbox` can).  max_output_bytes: as the session's option.  0: as it is.
 */
CELL_API int cell_session_limit(struct cell_session *session, int64_t memory_bytes, int64_t max_output_bytes, struct cell_error *err);
CELL_API int cell_session_drop_point(struct cell_session *session, const char *name, struct cell_error *err);
/*
 * The points, the latest first: a JSON array of {"name", "cell" (number of cells run before it),
 * "automatic" (kept because of `undo`), "age_ms", "bytes" (memory of its own)}.
 * free() it.  NULL: out of memory.
 */
CELL_API char *cell_session_points(struct cell_session *session);
/*
 * The open sessions that its code has forked (`allow_fork`), and those that their code has: a JSON array of {"session_id", "parent",
 * "state" ("idle" or "busy"), "cells", "age_ms", "pid"}.  free() it.  NULL: out of memory.
 */
CELL_API char *cell_session_children(struct cell_session *session);

/* ---- files -------------------------------------------------------------- */

/*
 * What the code changed in its layer, for a session with the workspace_mode "cow": a JSON object {"form": "overlay" or "copy", "files":
 * [{"path", "change", "type", ...}], "added", "changed", "deleted", "truncated"} (docs/branches.md).  with_text: text files have a unified
 * diff.  free() it.  NULL: err has the reason; CELL_E_UNSUPPORTED: the session has no layer.
 */
CELL_API char *cell_session_diff(struct cell_session *session, int with_text, struct cell_error *err);
/*
 * Writes changes to the real workspace, each file at once or not at all: those at and below these paths (as the diff shows them;
 * NULL-terminated), or all with NULL.  Names that make other programs run code (docs/branches.md) are left out unless they are named exactly.
 * CELL_E_CONFLICT: files were changed in the real workspace since, and nothing was written; with force they are replaced.  A JSON object
 * {"committed": [path], "protected": [path], "skipped": [{"path", "reason"}]}; free() it.  NULL: err has the reason.
 */
CELL_API char *cell_session_commit(struct cell_session *session, const char *const *paths, int force, struct cell_error *err);
/* Drops the changes: the code sees the real workspace again.  CELL_E_BUSY: a cell runs. */
CELL_API int cell_session_discard(struct cell_session *session, struct cell_error *err);

/*
 * Files of the workspace, as the session's code sees it, also while a cell runs: with a layer they are read from it and written to it.  These
 * functions have the rights of the code and no more: CELL_E_FORBIDDEN in a read-only workspace, CELL_E_UNSUPPORTED for an executor whose
 * files are not on this machine.  A path is relative to the workspace, "" is the workspace itself; links are never followed
 * (CELL_E_FORBIDDEN), and only regular files are opened (docs/files.md).
 */
struct cell_file_options {
	size_t size; /* sizeof(struct cell_file_options) */
	int tar; /* 1: a folder as a tar archive; default 0: one file */
	int64_t offset; /* get: the first byte; default 0 */
	int64_t max_bytes; /* get: at most this many; put: CELL_E_LIMIT beyond; -1: no limit; default -1 */
	int mode; /* put: permissions, as 0644; 0: those of the file it replaces, else 0644 */
};
#define CELL_FILE_OPTIONS_INIT { .size = sizeof(struct cell_file_options), .max_bytes = -1 }
static inline void cell_file_options_init(struct cell_file_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->max_bytes = -1;
}
/*
 * A JSON object {"path", "type": "file", "folder", "link", ..., "size", "mode", "mtime"}; a folder has "entries", with "name" instead of
 * "path", and "truncated".  free() it.  NULL: err has the reason.
 */
CELL_API char *cell_session_file_describe(struct cell_session *session, const char *path, struct cell_error *err);
/* Writes a file's bytes, or a folder as an archive, to a descriptor of the caller.  opts and ret_bytes may be NULL. */
CELL_API int cell_session_file_get(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd,
				   int64_t *ret_bytes, struct cell_error *err);
/*
 * Makes or replaces a file with everything that can be read from a descriptor, at once when all is there; or unpacks an archive into a
 * folder.  Folders that lead to it are made.  opts and ret_bytes may be NULL.
 */
CELL_API int cell_session_file_put(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd,
				   int64_t *ret_bytes, struct cell_error *err);
/* Makes a folder and those that lead to it; one that exists is fine. */
CELL_API int cell_session_file_make_folder(struct cell_session *session, const char *path, struct cell_error *err);
/* Removes a file, a link, or a folder; one that is not empty only if recursive, else CELL_E_EXISTS. */
CELL_API int cell_session_file_remove(struct cell_session *session, const char *path, int recursive, struct cell_error *err);
/* Writes a folder of the caller as a tar archive to a descriptor.  ret_bytes may be NULL. */
CELL_API int cell_folder_pack(const char *folder, int fd, int64_t *ret_bytes, struct cell_error *err);
/*
 * Unpacks an archive that is not trusted into an existing folder of the caller: no entry leads out of it, through links either, and links
 * that point out of it are left out.  ret_left_out, which may be NULL: how many.
 */
CELL_API int cell_folder_unpack(const char *folder, int fd, size_t *ret_left_out, struct cell_error *err);

/* ---- commands ----------------------------------------------------------- */

/*
 * Programs that run where the session's code runs, and as confined as that: the same executor, files, network, limits (which apply to code
 * and commands together) and variables (docs/commands.md).  The executors subprocess and sandbox have them, remote and
 * container pass them on to their server; CELL_E_UNSUPPORTED for the others.
 * A command does not wait for a cell.  It ends with the kernel that the session had when it was started: with a reset, a rewind, the
 * kernel's death and the end of the session.  It is described for some minutes after its end.  Not from callbacks.
 */
struct cell_command_options {
	size_t size; /* sizeof(struct cell_command_options) */
	const char *const *argv; /* the program, looked up in the session's PATH, and its arguments; NULL-terminated */
	const char *line; /* instead: a line for /bin/sh -c */
	const char *const *env; /* "K=V", beside the session's own variables; NULL-terminated, or NULL */
	const char *cwd; /* as the code sees it, or relative to the workspace; NULL: the workspace */
	const char *tag; /* the caller's own name for it; or NULL */
	int64_t timeout_ms; /* then it is killed with all that it has started; 0: never */
	int want_stdin; /* 1: it gets input by cell_session_command_write(); 0: its stdin is at its end */
	int drops; /* 1: without a reader the oldest output is dropped; 0: the command waits when too much is not read */
	int tty; /* 1: a terminal for all three streams, with input; all its output is CELL_STDOUT */
	int rows, cols; /* of it; 0: 24 and 80 */
};
#define CELL_COMMAND_OPTIONS_INIT { .size = sizeof(struct cell_command_options) }
static inline void cell_command_options_init(struct cell_command_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}
#define CELL_COMMAND_ID_SIZE 17
/* Returns when it runs.  CELL_E_NOT_FOUND: there is no such program; CELL_E_LIMIT: the session's limits leave no room for it. */
CELL_API int cell_session_command_start(struct cell_session *session, const struct cell_command_options *opts,
					char ret_id[CELL_COMMAND_ID_SIZE], struct cell_error *err);

struct cell_command_output {
	size_t size; /* sizeof(struct cell_command_output) */
	enum cell_stream stream;
	int64_t bytes; /* that were read; 0: there are none yet, or no more (ended) */
	int64_t position; /* of the next byte, for the next call */
	int64_t dropped; /* bytes before these that are no longer kept */
	int ended; /* 1: the command has ended and all its output was read */
	int exit_code; /* then: its status, or 128 and the signal that ended it */
};
#define CELL_COMMAND_OUTPUT_INIT { .size = sizeof(struct cell_command_output) }
static inline void cell_command_output_init(struct cell_command_output *output)
{
	if (!output)
		return;
	memset(output, 0, sizeof *output);
	output->size = sizeof *output;
}
/*
 * Reads its output from a position on (0: the beginning), counted over both streams, up to `room` bytes of one stream.  Waits up to wait_ms
 * for some (-1: as long as it takes).
 */
CELL_API int cell_session_command_read(struct cell_session *session, const char *id, int64_t position, int64_t wait_ms, void *buffer,
				       size_t room, struct cell_command_output *ret_output, struct cell_error *err);
/* CELL_E_LIMIT: it does not read, and a megabyte waits for it already; nothing was taken.  CELL_E_CLOSED: it has ended. */
CELL_API int cell_session_command_write(struct cell_session *session, const char *id, const void *bytes, size_t size,
					struct cell_error *err);
/* The end of its input; at a terminal ^D. */
CELL_API int cell_session_command_close_stdin(struct cell_session *session, const char *id, struct cell_error *err);
/* To its process group.  SIGKILL ends all that it has started. */
CELL_API int cell_session_command_signal(struct cell_session *session, const char *id, int signal_number, struct cell_error *err);
CELL_API int cell_session_command_resize(struct cell_session *session, const char *id, int rows, int cols, struct cell_error *err);
/*
 * A JSON object {"command_id", "pid", "argv", "cwd", "tag", "tty", "state": "running" or "ended", "started_at", "output", "dropped",
 * "exit_code", "signal", "reason": null, "timeout", "killed" or "session"}; id NULL: a list of all.  free() it.
 */
CELL_API char *cell_session_command_describe(struct cell_session *session, const char *id, struct cell_error *err);
/* Kills it if it runs, and forgets it. */
CELL_API int cell_session_command_drop(struct cell_session *session, const char *id, struct cell_error *err);

/* ---- approvals ---------------------------------------------------------- */

struct cell_approval_answer {
	size_t size; /* sizeof(struct cell_approval_answer) */
	int accept; /* 1: it runs; 0: it fails with ApprovalRejectedError */
	const char *reason; /* rejected: the reason to report to the code; NULL: none */
	const char *args; /* accepted: a JSON object with arguments to use instead; NULL: unchanged; question: the content, NULL: {} */
	int always; /* accepted: also accept every later call of this tool and callable in this session */
	int from_terminal; /* for the audit log: a person at the command line, not a program through this function */
	int dismiss; /* rejected question: tell the server that nobody decided ("cancel"), not that the person declined */
	int spin_us; /* as in cell_run_options: this thread may run the engine until the consequences of the answer arrive */
	const int *spin_end;
};
#define CELL_APPROVAL_ANSWER_INIT { .size = sizeof(struct cell_approval_answer) }
static inline void cell_approval_answer_init(struct cell_approval_answer *answer)
{
	if (!answer)
		return;
	memset(answer, 0, sizeof *answer);
	answer->size = sizeof *answer;
}

/*
 * Performs an operation for a client of the session other than its code, such as an agent that uses MCP: it is subject to the same
 * policy, approval and audit as a call of the code and has no more trust than the executor gives to code.  Otherwise as
 * cell_space_call_with().  name: the client's name for the audit log, or NULL; client: passed on in the events about the call.  The
 * session must have a space.
 */
CELL_API int cell_session_call(struct cell_session *session, const char *name, void *client, const char *method, const char *args_json,
			       const void *raw, size_t raw_size, struct cell_canceller *canceller, struct cell_answer *ret_answer,
			       struct cell_error *err);

/*
 * Answers one request, or with id 0 all pending requests.  A request that was answered, has expired or was cancelled:
 * CELL_E_NOT_FOUND.  Invalid arguments: CELL_E_INVALID, and the request stays pending.  May be called from callbacks.
 */
CELL_API int cell_session_answer(struct cell_session *session, uint64_t id, const struct cell_approval_answer *answer,
				 struct cell_error *err);
/* The pending requests as a JSON array of {"id", "request_id", "kind", "tool", "callable", "adapter", "args"}; free() it. */
CELL_API int cell_session_approvals(struct cell_session *session, char **ret_json, struct cell_error *err);

/* ---- showing -------------------------------------------------------------- */

/*
 * Makes output and requests of the code safe to display to the person who decides on them.  Control characters, escape
 * sequences, bidirectional and zero-width characters, and bytes that are not UTF-8 are written as \xNN, \uNNNN and \UNNNNNNNN.
 * Any thread.
 */
enum cell_shown {
	CELL_SHOWN_LINES, /* keep line breaks and tabs */
	CELL_SHOWN_LINE, /* escape line breaks and tabs too */
	CELL_SHOWN_ASCII, /* also escape every non-ASCII character and double backslashes: for names */
	CELL_SHOWN_MARKDOWN, /* a line without Markdown or HTML syntax; arguments in ASCII */
	CELL_SHOWN_ALL, /* cell_shown_args(): as ASCII, without truncation */
};
/* free() the text; NULL: out of memory. */
CELL_API char *cell_shown_text(const char *bytes, size_t size, enum cell_shown how);
/*
 * Formats the arguments of a call as lines of text, each beginning with a line break: how is ASCII, MARKDOWN or ALL.  Long values are
 * cut in the middle and annotated with their size and SHA-256.  CELL_E_LIMIT: the arguments are too long to display, so nobody should
 * be asked.  free() *ret_text.
 */
CELL_API int cell_shown_args(const char *json, size_t size, enum cell_shown how, char **ret_text, struct cell_error *err);
/* The start of an incomplete character or escape sequence. */
struct cell_shown_carry {
	char bytes[64];
	size_t size;
	int redraws; /* set it if no question is asked: keeps carriage returns and backspaces, which progress bars need */
};
/*
 * Makes a chunk of output safe for a terminal and keeps its colours; bytes NULL: the end of the stream, returns the carried-over bytes.
 * free() the text; NULL: out of memory.
 */
CELL_API char *cell_shown_output(struct cell_shown_carry *carry, const char *bytes, size_t size, size_t *ret_size);

/* ---- results ------------------------------------------------------------ */

/* What to do about a cell whose answer was lost. */
enum cell_retry {
	CELL_RETRY_UNKNOWN = 0, /* the code failed, or it is not known whether the cell took place */
	CELL_RETRY_YES =
		1, /* the session is as it was before the cell: run it again, if what it did outside of the session may happen twice */
	CELL_RETRY_NO = 2, /* the session has the state after the cell: only its answer is lost */
};

struct cell_outcome {
	int code; /* CELL_OUT_*, or the CELL_E_* that ended the session during the run */
	const char *type; /* "ZeroDivisionError"; "" when no exception */
	const char *message;
	const char *traceback; /* plain text; "" when none */
	const char *limit; /* CELL_OUT_LIMIT: "memory", "pids", ...; else NULL */
	uint64_t limit_max, limit_used;
	int retry; /* CELL_RETRY_*; with CELL_OUT_KERNEL_DIED of the executors `remote` and those that build on it */
};

struct cell_text {
	const char *data; /* valid UTF-8, NUL-terminated; invalid bytes became U+FFFD */
	size_t size;
	const char *raw; /* the bytes as written */
	size_t raw_size;
	uint64_t total; /* bytes written, including those beyond the cap */
};

CELL_API void cell_result_destroy(struct cell_result *result);

/* The value as JSON text if that is exact, else NULL. */
CELL_API const char *cell_result_value_json(const struct cell_result *result);
/* repr() of the value; NULL if the cell had no value. */
CELL_API const char *cell_result_repr(const struct cell_result *result);
/* MIME parts of the value; text/plain first. */
CELL_API size_t cell_result_mime(const struct cell_result *result, const struct cell_mime_part **ret_parts);
CELL_API void cell_result_stdout(const struct cell_result *result, struct cell_text *ret_text);
CELL_API void cell_result_stderr(const struct cell_result *result, struct cell_text *ret_text);
/* stdout and stderr in the order written. */
CELL_API void cell_result_text(const struct cell_result *result, struct cell_text *ret_text);
/* NULL if the cell succeeded. */
CELL_API const struct cell_outcome *cell_result_error(const struct cell_result *result);
CELL_API double cell_result_duration_ms(const struct cell_result *result);
/* 1: variables are kept; 2: restored, they are those from before the cell; 0: lost, the next run starts on a fresh kernel. */
CELL_API int cell_result_state_kept(const struct cell_result *result);
/* The same as a word: "kept", "restored" or "lost". */
CELL_API const char *cell_result_state(const struct cell_result *result);
/* `durable` of the session: 1: its state after the cell is saved; 0: not yet, or that failed; -1: the session is not saved by itself. */
CELL_API int cell_result_durable(const struct cell_result *result);
/* The isolation receipt, a JSON object. */
CELL_API const char *cell_result_isolation_json(const struct cell_result *result);
/* A file with the whole output if it exceeded the cap, else NULL.  Removed with the result unless kept. */
CELL_API const char *cell_result_spill_path(const struct cell_result *result);
CELL_API void cell_result_keep_spill(struct cell_result *result);
/* Displayed objects, in order. */
CELL_API size_t cell_result_display_count(const struct cell_result *result);
CELL_API size_t cell_result_display(const struct cell_result *result, size_t i, const struct cell_mime_part **ret_parts);
/* Files written to images_dir, in the order shown; the value's own is the last.  The i-th path; NULL past the end. */
CELL_API size_t cell_result_image_count(const struct cell_result *result);
CELL_API const char *cell_result_image(const struct cell_result *result, size_t i);
/* Deviations that are not errors: an image that could not be written, displays that were left out. */
CELL_API size_t cell_result_notice_count(const struct cell_result *result);
CELL_API const char *cell_result_notice(const struct cell_result *result, size_t i);
/*
 * With `changes`: {"added": [...], "changed": [...], "removed": [...], "more": 0}, names of variables, at most 100 of each; as the kernel says, so treat it
 * as output of the code.  A variable counts as changed if it has another value, or a list, dict, set or bytearray another length.  NULL: not known.
 */
CELL_API const char *cell_result_changes_json(const struct cell_result *result);
/* The whole result as one line of JSON (the shape of `workcell run --json`); free() it.  NULL: out of memory. */
CELL_API char *cell_result_json(const struct cell_result *result);

/* ---- JSON in, JSON out: for other languages --------------------------------- */

/*
 * The functions above as one, for languages that call C with strings (docs/ffi.md has the requests).  It owns an engine and the sessions
 * that requests open.  Requests are those of the host program itself.
 */
struct cell_json;
CELL_API struct cell_json *cell_json_create(void); /* NULL: out of memory */
/*
 * Does what the request (a JSON object with "op") says and waits for it.  The answer is always a JSON object, {"ok": ...} or {"error":
 * {"code", "message"}}; cell_free() it; NULL: out of memory.  Any number of threads at once: a cell that runs in one thread is interrupted
 * from another.
 */
CELL_API char *cell_json_call(struct cell_json *json, const char *request);
/* Ends its sessions and waits.  No thread may be in cell_json_call().  NULL is allowed. */
CELL_API void cell_json_destroy(struct cell_json *json);
/* free() of the library, for memory that its functions returned; NULL is allowed. */
CELL_API void cell_free(void *memory);

/* ---- the MCP server -------------------------------------------------------- */

/*
 * Sessions for clients of the Model Context Protocol (docs/mcp-server.md).  It uses its own threads and the functions
 * above.  Each client has a session; all clients share the space.
 */
struct cell_mcp_server;

struct cell_mcp_server_options {
	size_t size; /* sizeof(struct cell_mcp_server_options) */
	struct cell_space *space; /* must outlive the server, like everything in this struct */
	const struct cell_session_options *session; /* options of each client's session; the server sets its space and events */
	int storage; /* 1: the space has a storage; offer the tools for it; default 1 */
	int runtime_deps; /* 1: add_dep, remove_dep and install_package are offered; default 1 */
	const char *temp_dir; /* for output that is longer than an answer; NULL: /tmp */
	int64_t grace_ms; /* how long pending calls may take when the server ends; default 2000 */
	int zygote_per_session; /* 1: no two clients share a zygote, see zygote_owner of cell_session_options */
	int allow_register; /* 1: offer register_mcp_server, with which the agent can start programs on this machine; default 0 */
	/*
	 * Sessions that clients name in their calls, at once; default 64.  Past it the principal with the most of them loses the one that was
	 * idle for longest.  Sessions of connections (revisions before 2026-07-28) do not count here.
	 */
	int64_t max_sessions;
	/*
	 * 1: tools/list also has the tools of the second family (execute_ipython_cell, install_package, ...) and output schemas, and tools are
	 * described as JSON instead of signatures; default 0.  Tools that are not listed can be called all the same.
	 */
	int compat;
	/*
	 * With `saved_dir` of the session: one that its client has not used for so long is saved and ends; the next call that names it continues it,
	 * here or at another server of the same place.  -1: never; default 3600000.
	 */
	int64_t saved_idle_ms;
};
#define CELL_MCP_SERVER_OPTIONS_INIT                      \
	{ .size = sizeof(struct cell_mcp_server_options), \
	  .storage = 1,                                   \
	  .runtime_deps = 1,                              \
	  .grace_ms = 2000,                               \
	  .max_sessions = 64,                             \
	  .saved_idle_ms = 3600000 }
static inline void cell_mcp_server_options_init(struct cell_mcp_server_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->storage = 1;
	opts->runtime_deps = 1;
	opts->grace_ms = 2000;
	opts->max_sessions = 64;
	opts->saved_idle_ms = 3600000;
}

CELL_API int cell_mcp_server_create(struct cell_engine *engine, const struct cell_mcp_server_options *opts,
				    struct cell_mcp_server **ret_server, struct cell_error *err);
/*
 * Serves one client with lines of JSON on two descriptors, which the caller keeps, until the input ends, the output is closed,
 * or cell_mcp_server_stop() is called.  CELL_E_TIMEOUT: an operation on the space is still running after grace_ms; nothing may be
 * destroyed then, and the program should exit.
 */
CELL_API int cell_mcp_server_run(struct cell_mcp_server *server, int in_fd, int out_fd, struct cell_error *err);

/* Any thread, and signal handlers. */
CELL_API void cell_mcp_server_stop(struct cell_mcp_server *server);
CELL_API void cell_mcp_server_destroy(struct cell_mcp_server *server); /* NULL is allowed */
/* cell_mcp_server_listen() is with the session server, below: it takes the same options. */

/*
 * Tools, resources and prompts of the program itself, besides those of the server (docs/mcp-server.md#in-c).  They can be offered and
 * withdrawn at any time, from any thread; clients that listen are told.
 *
 * A function is called on a thread of the server's, several at once, and may block.  It answers the call and returns 0, or returns -1 with
 * the error set: for a tool a result that says so (CELL_E_PROTOCOL: a protocol error), else a protocol error.  After cell_mcp_server_withdraw() a function may still be at work for
 * a call that came before.
 */
struct cell_mcp_call;
typedef int (*cell_mcp_fn)(void *arg, struct cell_mcp_call *call, struct cell_error *err);

struct cell_offered_tool {
	size_t size; /* sizeof(struct cell_offered_tool) */
	const char *name; /* letters, digits, '_', '-', '.'; at most 128; not one of the server's own tools */
	const char *title, *description; /* NULL: none */
	const char *
		input_schema; /* JSON Schema of an object; NULL: any arguments.  Outermost names and types are checked before the call, and by HTTP the headers of parameters with "x-mcp-header" */
	const char *output_schema; /* JSON Schema; NULL: none */
	const char *annotations; /* a JSON object: "readOnlyHint", ...; NULL: none */
	const char
		*scope; /* only for tokens with this scope ("read", "run", "approve", "admin", "metrics"); NULL: for all.  Pipes have all */
	const char *principal; /* only for this one: the name of a token, or "stdio"; NULL: for all.  To others it does not exist */
	cell_mcp_fn fn; /* policy, approvals, middlewares and audit log see each call as a tool of this name, adapter "host" */
	void *arg;
	const char *needs; /* client capabilities without which it is not called, a JSON object: {"elicitation": {}}; NULL: none */
};
#define CELL_OFFERED_TOOL_INIT { .size = sizeof(struct cell_offered_tool) }
static inline void cell_offered_tool_init(struct cell_offered_tool *tool)
{
	if (!tool)
		return;
	memset(tool, 0, sizeof *tool);
	tool->size = sizeof *tool;
}
CELL_API int cell_mcp_server_offer_tool(struct cell_mcp_server *server, const struct cell_offered_tool *tool, struct cell_error *err);

struct cell_offered_resource {
	size_t size; /* sizeof(struct cell_offered_resource) */
	const char *uri; /* "app://settings", or a template with variables: "app://users/{id}"; {+path} also matches '/' */
	const char *name; /* NULL: the URI */
	const char *title, *description, *mime_type; /* NULL: none */
	const char *annotations; /* a JSON object: "audience", "priority", "lastModified"; NULL: none */
	const char
		*scope; /* only for tokens with this scope ("read", "run", "approve", "admin", "metrics"); NULL: for all.  Pipes have all */
	const char *principal; /* only for this one: the name of a token, or "stdio"; NULL: for all.  To others it does not exist */
	cell_mcp_fn fn; /* reads it; the arguments are the values of the template's variables */
	cell_mcp_fn
		complete; /* suggests values: arguments {"argument": name, "value": text so far}; answers {"values": [...]}; NULL: none */
	void *arg;
	const char *needs; /* as of a tool */
};
#define CELL_OFFERED_RESOURCE_INIT { .size = sizeof(struct cell_offered_resource) }
static inline void cell_offered_resource_init(struct cell_offered_resource *resource)
{
	if (!resource)
		return;
	memset(resource, 0, sizeof *resource);
	resource->size = sizeof *resource;
}
CELL_API int cell_mcp_server_offer_resource(struct cell_mcp_server *server, const struct cell_offered_resource *resource,
					    struct cell_error *err);
/* Tells the clients that subscribed to this URI. */
CELL_API int cell_mcp_server_resource_changed(struct cell_mcp_server *server, const char *uri, struct cell_error *err);

struct cell_offered_prompt {
	size_t size; /* sizeof(struct cell_offered_prompt) */
	const char *name; /* as of a tool; before a workflow of the same name */
	const char *title, *description; /* NULL: none */
	const char *arguments; /* a JSON array of {"name", "description", "required"}; NULL: none */
	const char
		*scope; /* only for tokens with this scope ("read", "run", "approve", "admin", "metrics"); NULL: for all.  Pipes have all */
	const char *principal; /* only for this one: the name of a token, or "stdio"; NULL: for all.  To others it does not exist */
	cell_mcp_fn fn; /* the arguments are strings; required ones are there */
	cell_mcp_fn complete; /* as of a resource */
	void *arg;
	const char *needs; /* as of a tool */
};
#define CELL_OFFERED_PROMPT_INIT { .size = sizeof(struct cell_offered_prompt) }
static inline void cell_offered_prompt_init(struct cell_offered_prompt *prompt)
{
	if (!prompt)
		return;
	memset(prompt, 0, sizeof *prompt);
	prompt->size = sizeof *prompt;
}
CELL_API int cell_mcp_server_offer_prompt(struct cell_mcp_server *server, const struct cell_offered_prompt *prompt, struct cell_error *err);
/* kind: "tool", "resource" (name is its URI or template) or "prompt".  CELL_E_NOT_FOUND: it is not offered. */
CELL_API int cell_mcp_server_withdraw(struct cell_mcp_server *server, const char *kind, const char *name, struct cell_error *err);

/* All of these are for the thread of the function, and until it returns. */
CELL_API const char *cell_mcp_call_name(const struct cell_mcp_call *call); /* of the tool or prompt; of a resource its URI */
CELL_API const char *cell_mcp_call_args(const struct cell_mcp_call *call); /* a JSON object, as the gate let it through */
CELL_API const char *cell_mcp_call_principal(const struct cell_mcp_call *call); /* the name of the token, or "stdio" */
CELL_API const char *cell_mcp_call_client(const struct cell_mcp_call *call); /* the client's name, as it says; "": unknown */
/* 1: the client no longer waits; the function should return soon.  Any thread while the function runs. */
CELL_API int cell_mcp_call_cancelled(const struct cell_mcp_call *call);
/*
 * Of a tool: a client that knows tasks (an extension of revision 2026-07-28) gets one now, and no longer waits; the function goes on, and its
 * answer and questions are the task's.  Without this a call becomes one after five seconds.  1: it is a task; 0: its client waits for the answer.
 */
CELL_API int cell_mcp_call_become_task(struct cell_mcp_call *call);
/* For a client that wants it; progress has to grow.  total < 0: unknown; message may be NULL. */
CELL_API void cell_mcp_call_progress(struct cell_mcp_call *call, double progress, double total, const char *message);
/* level: "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"; logger may be NULL. */
CELL_API int cell_mcp_call_log(struct cell_mcp_call *call, const char *level, const char *logger, const char *data_json,
			       struct cell_error *err);
/*
 * Asks the client's user, and waits.  params_json: {"message", "requestedSchema"} as in the protocol's elicitation (a form), and
 * optionally "name", the key of the question in inputRequests (revision 2026-07-28; at most 64 bytes).  *ret_json:
 * {"action": "accept", "content": {...}}, or "decline", or "cancel" (also when nobody answered in timeout_ms); free() it.
 * CELL_E_DISABLED: the client cannot show forms; a function of revision 2026-07-28 that fails then is answered with the error -32021.
 */
CELL_API int cell_mcp_call_ask(struct cell_mcp_call *call, const char *params_json, int64_t timeout_ms, char **ret_json,
			       struct cell_error *err);
/*
 * The answer; the last one counts.  JSON is the result as in the protocol: {"content": [...], "structuredContent", "isError"} of a tool,
 * {"contents": [...]} of a resource, {"description", "messages": [...]} of a prompt, {"values": [...]} of a completion.  Text is a tool's
 * text, a resource's text, or a prompt's one message of the user.  Bytes are an image, audio or a file of a tool, or a resource's bytes.
 */
CELL_API int cell_mcp_call_answer(struct cell_mcp_call *call, const char *result_json, struct cell_error *err);
CELL_API int cell_mcp_call_answer_text(struct cell_mcp_call *call, const char *text, size_t size, struct cell_error *err);
CELL_API int cell_mcp_call_answer_bytes(struct cell_mcp_call *call, const void *bytes, size_t size, const char *mime_type,
					struct cell_error *err);

/* ---- the session server ----------------------------------------------------- */

/* Sessions for HTTP clients (docs/server.md).  It runs on the engine's loop; one thread serves all clients. */
struct cell_server;

/* `reload` can change each of these while the server runs, unless its comment says otherwise. */
struct cell_server_limits {
	size_t size; /* sizeof(struct cell_server_limits) */
	int64_t max_sessions; /* default 1024 */
	int64_t idle_ms; /* idle time after which a session ends; -1: never; default 3600000 */
	int64_t max_runs; /* maximum number of running cells; default 64 */
	int64_t max_queue; /* maximum number of waiting cells; more are refused with 429; default 1024 */
	int64_t max_timeout_ms; /* longest timeout of a cell that a client may set; -1: any; default 3600000 */
	int64_t max_body_bytes; /* of a request; default 64 MiB */
	int64_t max_artifact_bytes; /* largest artifact that a client can load; default 256 MiB */
	int64_t stream_bytes; /* sent events of a run to keep for readers that reconnect; default 4 MiB */
	int64_t kept_bytes; /* events of ended runs to keep, in total; default 64 MiB */
	int64_t resume_ms; /* how long a run waits for a reader whose connection broke; default 30000 */
	int64_t head_ms; /* time limit for a client to send its request's header; default 15000 */
	int64_t silent_ms; /* idle time after which a connection is closed; not changed by reload; default 75000 */
	int64_t drain_ms; /* how long cells may take to end when the server stops; default 30000 */
	int64_t max_connections; /* not changed by reload; default 4096 */
	int64_t max_header_bytes; /* not changed by reload; default 32 KiB */
	int64_t execute_idle_ms; /* the same as idle_ms for sessions that POST /execute made, until a request names them; default 60000 */
	int64_t max_file_bytes; /* of a file or archive that a client writes to a workspace; default 4 GiB */
	/*
	 * How long the server goes on serving after cell_server_drain(), while GET /ready says "draining", so that a load balancer
	 * sends its clients elsewhere first; default 0
	 */
	int64_t drain_delay_ms;
};
#define CELL_SERVER_LIMITS_INIT                      \
	{ .size = sizeof(struct cell_server_limits), \
	  .max_sessions = 1024,                      \
	  .idle_ms = 3600000,                        \
	  .max_runs = 64,                            \
	  .max_queue = 1024,                         \
	  .max_timeout_ms = 3600000,                 \
	  .max_body_bytes = 64 << 20,                \
	  .max_artifact_bytes = 256 << 20,           \
	  .stream_bytes = 4 << 20,                   \
	  .kept_bytes = 64 << 20,                    \
	  .resume_ms = 30000,                        \
	  .head_ms = 15000,                          \
	  .silent_ms = 75000,                        \
	  .drain_ms = 30000,                         \
	  .max_connections = 4096,                   \
	  .max_header_bytes = 32 << 10,              \
	  .execute_idle_ms = 60000,                  \
	  .max_file_bytes = 4ll << 30 }
static inline void cell_server_limits_init(struct cell_server_limits *limits)
{
	if (!limits)
		return;
	memset(limits, 0, sizeof *limits);
	limits->size = sizeof *limits;
	limits->max_sessions = 1024;
	limits->idle_ms = 3600000;
	limits->max_runs = 64;
	limits->max_queue = 1024;
	limits->max_timeout_ms = 3600000;
	limits->max_body_bytes = 64 << 20;
	limits->max_artifact_bytes = 256 << 20;
	limits->stream_bytes = 4 << 20;
	limits->kept_bytes = 64 << 20;
	limits->resume_ms = 30000;
	limits->head_ms = 15000;
	limits->silent_ms = 75000;
	limits->drain_ms = 30000;
	limits->max_connections = 4096;
	limits->max_header_bytes = 32 << 10;
	limits->execute_idle_ms = 60000;
	limits->max_file_bytes = 4ll << 30;
}

/* Which sessions share a zygote: see zygote_owner of cell_session_options. */
enum cell_zygote_per {
	CELL_ZYGOTE_PER_ENGINE,
	CELL_ZYGOTE_PER_WORKSPACE, /* sessions without a workspace are grouped by token */
	CELL_ZYGOTE_PER_SESSION,
};

struct cell_server_options {
	size_t size; /* sizeof(struct cell_server_options); everything in this struct must outlive the server */
	const char *listen; /* "HOST:PORT" (port 0: any), "unix:PATH", or "fd:N": a socket of this process that listens already */
	struct cell_space *space; /* of sessions without a workspace id */
	/*
	 * Opens the space of a workspace id, on a thread that may block.  NULL: workspaces are refused.  The server closes the space.
	 */
	int (*open_space)(void *arg, const char *workspace_id, struct cell_space **ret_space, struct cell_error *err);
	void *space_arg;
	const struct cell_session_options *session; /* options of each session; the server sets its space and events */
	const char *work_dir; /* each session works in its own subfolder, removed when it ends; NULL: session->cwd */
	const char *artifacts_path; /* reported by GET /info; NULL: the location in the storage, without secrets */
	/*
	 * Authentication: a token, a file of tokens that is reloaded when it changes (docs/server.md), or (auth_disabled)
	 * none, on a loopback address or Unix socket only.  Without one of them the server is not created.
	 */
	const char *token, *token_file;
	int auth_disabled;
	const char *const *origins; /* further allowed values of Origin, NULL-terminated; NULL: none */
	const char *const *hosts; /* further allowed values of Host if authentication is disabled; NULL: none */
	const char *tls_cert, *tls_key; /* PEM; NULL: no TLS */
	const struct cell_server_limits *limits; /* NULL: the defaults */
	/* cell_server_reload() asks for new limits, on a thread that may block; NULL: only the tokens are reloaded */
	int (*reload)(void *arg, struct cell_server_limits *limits, struct cell_error *err); /* as INIT and size say; up to 1024 bytes */
	void *reload_arg;
	/* Gets log lines, each with its line break; NULL: no log.  Engine's thread. */
	void (*log)(void *arg, const char *lines, size_t size);
	void *log_arg;
	enum cell_log_level log_level; /* default: info, one line per request */
	int log_json; /* 1: each line is a JSON object */
	void (*listening)(void *arg, const char *url); /* once, before the first request; may be NULL */
	void *listening_arg;
	/* cell_server_reload() asks for the certificate and its key too, which the server frees; like reload; NULL: they stay in use */
	int (*reload_tls)(void *arg, char **ret_cert, char **ret_key, struct cell_error *err);
	enum cell_zygote_per zygote_per; /* which sessions share a zygote; default: all of the engine */
	int sandbox_fusion; /* 1: POST /run_code runs programs in fresh processes of the executor sandbox (docs/sandbox-fusion.md) */
	int e2b; /* 1: clients of E2B are served too, on the same address (docs/e2b.md); not with a pool */
	struct cell_server_pool *pool; /* this is one of several servers behind one address; NULL: it is alone */
	int worker; /* its number in the pool, from 0 */
	/*
	 * 1: the console for browsers is served at /console/, and the events of sessions are kept for it (docs/console.md).
	 * CELL_E_UNAVAILABLE: this build has no console.
	 */
	int console;
	const char *console_code; /* opens the console once, with the rights of the first token; NULL: none; not with a pool */
	/* Spans and metrics are sent to this receiver of OpenTelemetry, by OTLP/HTTP: "http://127.0.0.1:4318" (docs/traces.md); NULL: none. */
	const char *otlp;
	const char *otlp_headers; /* "name=value,...", sent to it; NULL: none */
	int otlp_code; /* 1: spans of cells have the code, not only its hash */
	/*
	 * A file with the authorization server whose access tokens are accepted, beside token and token_file or instead of them
	 * (docs/oauth.md); reloaded when it changes; NULL: none.
	 */
	const char *oauth_file;
	/*
	 * With e2b: "DOMAIN" or "DOMAIN:PORT" that clients reach sandboxes at, as https://49999-ID.DOMAIN, when they are not told another address;
	 * NULL: the server names none.
	 */
	const char *e2b_domain;
	/*
	 * 1: answer E2B's clients in their debug mode, which sends no tokens, on the ports 3000, 49983 and 49999 of the loopback too (docs/e2b.md).
	 * Needs e2b and auth_disabled; not with a pool or TLS.
	 */
	int e2b_debug;
	/*
	 * "http://HOST:PORT" at which other servers that save their sessions in the same place reach this one: a request for a session that
	 * another of them has awake is passed on to it (docs/server.md); NULL: such a request is answered with CELL_E_CONFLICT.
	 */
	const char *advertise;
	/*
	 * The URL that browsers reach this server at: "https://cell.example.org". Persons log in at MCP servers there (docs/mcp.md). NULL: its own
	 * address if that is a loopback one, else there are no such logins.
	 */
	const char *public_url;
};
#define CELL_SERVER_OPTIONS_INIT { .size = sizeof(struct cell_server_options), .log_level = CELL_LOG_INFO }
static inline void cell_server_options_init(struct cell_server_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
	opts->log_level = CELL_LOG_INFO;
}

/* Binds the address.  CELL_E_UNAVAILABLE: this build has no server. */
CELL_API int cell_server_create(struct cell_engine *engine, const struct cell_server_options *opts, struct cell_server **ret_server,
				struct cell_error *err);
/* Serves until cell_server_drain(), and returns when all sessions are closed. */
CELL_API int cell_server_run(struct cell_server *server, struct cell_error *err);
/* Starts nothing new and lets running cells end; a second call stops them.  Any thread, and signal handlers. */
CELL_API void cell_server_drain(struct cell_server *server);
/* Reloads tokens and limits; a failure is logged and the old ones stay in use.  Any thread, and signal handlers. */
CELL_API void cell_server_reload(struct cell_server *server);
/* After cell_server_run(), or instead of it.  NULL is allowed. */
CELL_API void cell_server_destroy(struct cell_server *server);
/* Checks the options and reads the tokens, as cell_server_create() would, without listening. */
CELL_API int cell_server_check(const struct cell_server_options *opts, struct cell_error *err);

/*
 * Several servers behind one address, each in a process of its own (docs/server.md).  A program with one thread makes the pool, forks the
 * processes and hands the clients to them; each process creates its engine, and a server with `pool` and `worker` in its options.  Limits
 * and quotas hold for all of them together.
 */
struct cell_server_pool;
/* Binds the address and makes the memory that the workers, at most 64, share. */
CELL_API int cell_server_pool_create(const struct cell_server_options *opts, int workers, struct cell_server_pool **ret_pool,
				     struct cell_error *err);
/* Where it listens: "http://127.0.0.1:8080", "unix:/run/workcell.sock". */
CELL_API const char *cell_server_pool_url(const struct cell_server_pool *pool);
/* Readable while clients wait for cell_server_pool_accept(); -1: closed. */
CELL_API int cell_server_pool_fd(const struct cell_server_pool *pool);
/*
 * Hands waiting clients to the workers.  -1: no worker is up, as many clients as may be are connected, or
 * descriptors or memory have run out: call it again later.
 */
CELL_API int cell_server_pool_accept(struct cell_server_pool *pool);
/*
 * Worker N is held on the core number N modulo their count of those that this process may use, which is up to the caller: clients whose packets arrive
 * on a core go to its worker, unless that has many more than others.
 */
CELL_API void cell_server_pool_hold(struct cell_server_pool *pool);
/*
 * All workers are about to be told to end: none is started in place of another any more, and none of them ends before the sessions of all of them
 * sleep.  Call before they are told, and now and then afterwards.  1: a worker still takes clients; 0: cell_server_pool_close() is due.
 */
CELL_API int cell_server_pool_leave(struct cell_server_pool *pool);
/* The process of a worker has ended: what it used is given back, and its sessions have ended.  Before another one is forked. */
CELL_API void cell_server_pool_clear(struct cell_server_pool *pool, int worker);
/* Clients can no longer connect; those that wait are handed to workers that have not ended. */
CELL_API void cell_server_pool_close(struct cell_server_pool *pool);
/* Not in the workers.  NULL is allowed. */
CELL_API void cell_server_pool_destroy(struct cell_server_pool *pool);

/*
 * Serves MCP by Streamable HTTP at /mcp of its own address until cell_mcp_server_stop().  Its space, sessions and
 * folders are those that it was created with; max_sessions limits its clients, and a client that was idle for idle_ms may be closed to
 * make room for another.  CELL_E_TIMEOUT: as cell_mcp_server_run().  CELL_E_UNAVAILABLE: this build has no server.
 */
CELL_API int cell_mcp_server_listen(struct cell_mcp_server *server, const struct cell_server_options *opts, struct cell_error *err);
/*
 * Before cell_mcp_server_run(), once: the cells of its client become spans of OpenTelemetry, sent as `otlp`, `otlp_headers` and `otlp_code` of the
 * options say; the others have no effect.  The last spans are sent by cell_mcp_server_destroy(), for at most two seconds.
 */
CELL_API int cell_mcp_server_trace(struct cell_mcp_server *server, const struct cell_server_options *opts, struct cell_error *err);
/* As cell_server_reload(); does nothing for a server that does not listen.  Any thread, and signal handlers. */
CELL_API void cell_mcp_server_reload(struct cell_mcp_server *server);

/* ---- a session server, for its operators ------------------------------------ */

/*
 * Requests to a session server (docs/server.md), without an engine: `workcell ps` and the like.  A client belongs to one thread at a
 * time, which waits for each answer.
 */
struct cell_client;

struct cell_client_options {
	size_t size; /* sizeof(struct cell_client_options); copied */
	const char *url; /* http://, https:// or unix:PATH */
	const char *token; /* NULL: none */
	const char *ca; /* path of certificates to trust instead of the system's (PEM); NULL: the system's */
};
#define CELL_CLIENT_OPTIONS_INIT { .size = sizeof(struct cell_client_options) }
static inline void cell_client_options_init(struct cell_client_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof *opts);
	opts->size = sizeof *opts;
}

CELL_API int cell_client_create(const struct cell_client_options *opts, struct cell_client **ret_client, struct cell_error *err);
CELL_API void cell_client_destroy(struct cell_client *client); /* NULL is allowed */
/*
 * body: JSON, or NULL.  free() *ret_body, which is NULL for an answer without a body; ret_body may be NULL.  An answer that is not a
 * success fails with its code and its words.
 */
CELL_API int cell_client_ask(struct cell_client *client, const char *method, const char *path, const char *body, char **ret_body,
			     struct cell_error *err);
/*
 * A request whose body is read from a descriptor (-1: no body) and whose answer is written to another (-1: it is dropped), of any size.  An
 * answer that is not a success fails as above, and nothing is written.  moved (may be NULL) is told how many bytes went either way so far;
 * it returns 0, or -1 with the reason to end the transfer.
 */
CELL_API int cell_client_transfer(struct cell_client *client, const char *method, const char *path, int in_fd, int out_fd,
				  int (*moved)(void *arg, int64_t bytes, struct cell_error *err), void *arg, struct cell_error *err);
/* One event of a stream; data is JSON text and ends with a NUL. */
typedef void (*cell_client_event_fn)(void *arg, const char *type, const char *data, size_t size);
/*
 * Reads a stream of events until its end, or until tick() says so, which is called several times a second and when watched_fd (-1: none) can
 * be read.  It returns 0 to go on, 1 to end, 2 to go on without watched_fd until its next call, -1 with an error; NULL: not called.
 */
CELL_API int cell_client_stream(struct cell_client *client, const char *path, cell_client_event_fn on_event, int watched_fd,
				int (*tick)(void *arg, int readable, struct cell_error *err), void *arg, struct cell_error *err);

#ifdef __cplusplus
}
#endif
#endif
