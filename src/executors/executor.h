/*
 * Executors: where a kernel lives and what confines it.
 *
 * An executor is a const vtable.  It opens kernels; a kernel runs one cell at a time and tells its owner (the
 * session) what happens.  Everything here belongs to the loop's thread.
 *
 *     opening ──ready──▶ idle ──run──▶ running ──result──▶ idle ... ──▶ exited (the kernel's memory is gone)
 *
 * Contract: open() returning an error means no callback ever comes.  Otherwise ready() comes at most once and
 * exited() exactly once, last, never from inside open(), run(), interrupt() or close().  A kernel that never became
 * ready ends with exited() alone; its `error` says why.
 */
#ifndef CELL_EXECUTORS_EXECUTOR_H
#define CELL_EXECUTORS_EXECUTOR_H

#include "base/base.h"
#include "calls/call.h"
#include "loop/loop.h"

struct cell__kernel {
	const struct cell__executor *executor;
};

/* Parts of a MIME bundle; data points into memory of the caller. */
struct cell__bundle {
	struct cell_mime_part parts[CELL_LIMIT_MIME_PARTS];
	size_t n_parts;
};

/* What a cell came to, as the kernel tells it.  Pointers are valid during the call only. */
struct cell__kernel_answer {
	const char *value_json; /* checked JSON, not NUL-terminated; NULL: none or not exact */
	size_t value_size;
	const char *repr; /* NULL: no value */
	size_t repr_size;
	struct cell__bundle mime;
	bool failed;
	bool interrupted;
	const char *error_type, *error_message, *error_traceback; /* NUL-terminated, valid UTF-8 */
	const char *limit; /* the limit that the error comes of, by its own account; NULL: none */
	uint64_t limit_max, limit_used;
	/* remote: what only the server knows */
	int code;               /* CELL_OUT_*: the outcome; 0: as the session finds */
	bool lost;              /* the variables are */
	const char *isolation;  /* the receipt; NULL: the executor's */
};

/* A namespace call as it came.  Pointers are valid during the call only. */
struct cell__asked {
	uint32_t id;
	const char *json;
	size_t json_size;
	const void *raw;
	size_t raw_size;
	size_t weight;    /* what its tree takes (cell__json_weigh()); 0: not known */
	json_t *document; /* of one that was read on the pool; NULL: it was not, or it is not JSON, or too heavy */
	bool is_read;     /* it was, and document says what came of it */
};

struct cell__exit {
	bool known;       /* status is there */
	int status;       /* as waitpid() gives it */
	bool oom;
	bool asked;       /* we closed it */
	bool suspect;     /* remote: the server says that it is broken itself, or did not say that its session is gone */
	bool abandoned;   /* inprocess: its thread would not end, and still runs */
	uint64_t memory_max, memory_used; /* the group's limit and its highest use; 0: not known */
	struct cell_error error; /* code != 0: why it ended or never began, in words */
};

struct cell__egress_event;

struct cell__kernel_events {
	void (*ready)(void *owner);
	void (*output)(void *owner, enum cell_stream stream, const char *bytes, size_t size);
	void (*display)(void *owner, const struct cell__bundle *bundle);
	void (*result)(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer);
	/* A namespace call.  NULL, or what is wrong with it: then the kernel is ended. */
	const char *(*call)(void *owner, const struct cell__asked *asked);
	/* sandbox: a connection through its proxy (egress.h).  -1: it must not be made.  NULL: nobody wants to know. */
	int (*connection)(void *owner, const struct cell__egress_event *event, struct cell_error *err);
	void (*exited)(void *owner, const struct cell__exit *how);
};

/* What a session asks of its kernel, whichever executor has it. */
struct cell__kernel_wants {
	bool gate_shell;   /* ask before shell commands */
	bool shell_escape; /* only `!cmd` and its like may start processes */
	bool restore_cwd;  /* go back to cwd after each cell */
	bool portable;     /* values also in a form that another Python can read */
};

struct cell__kernel_spec {
	const char *session_id;
	const char *python;
	const char *preload; /* "" for none */
	const char *zygote_owner; /* "": nobody's; only sessions of one owner share a zygote */
	const char *cwd;
	const char *const *env; /* complete, "K=V", NULL-terminated */
	bool namespaces;        /* put tools, workflows, artifacts and deps into it */
	struct cell__kernel_wants wants;
	const char *site;       /* a folder of packages to put on the path, or NULL */
	const char *host_site;  /* sandbox: another one that is looked at after it, or NULL */
	const struct cell__sandbox_policy *policy; /* sandbox; NULL for the others */
	const char *const *read;    /* sandbox: folders that the code must see, read-only; NULL-terminated or NULL */
	const char *limits_json;    /* sandbox: an object, for the kernel to tell which limit an error comes of; or NULL */
	const char *wheels;         /* deno: a folder of packages (executors/deno/deno.h), or NULL */
	const void *own;            /* what the executor's read_options() made; NULL: it has none */
};

/* The options of a session as kernels read them, a JSON object; free() it.  NULL: no memory, or a text is not UTF-8. */
char *cell__kernel_spec_json(const struct cell__kernel_spec *spec);

/* Once: info, or NULL and why not. */
typedef void (*cell__prewarmed_fn)(void *arg, const struct cell_env_info *info, const struct cell_error *err);

struct cell__places;
struct cell__confinement;
struct cell__sandbox_policy;
struct cell__supervisor;

/* What executors need of the engine. */
struct cell__executor_host {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor; /* for programs */
	const char *lib_dir;         /* holds our other parts: workcell-spawner, kernel/, deno/ */
	const char *kernel_dir;      /* holds the kernel's package and extension */
	const char *spill_dir;       /* for files and folders of their own */
	struct cell__places *places; /* what is trusted, and where open sessions write */
	void **states; /* one an executor; see cell__executor_state() */
	void (*log)(void *arg, enum cell_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
	void *log_arg;
};

/* Options of a session that only some executors know. */
enum cell__takes {
	CELL_TAKES_KERNEL = 1 << 0,    /* kernel */
	CELL_TAKES_POLICY = 1 << 1,    /* sandbox_policy, workspace_mode; it gets a policy in any case */
	CELL_TAKES_NETWORK = 1 << 2,   /* network_profile */
	CELL_TAKES_SERVER = 1 << 3,    /* remote_url, remote_token, remote_ca */
	CELL_TAKES_WORKSPACE = 1 << 4, /* remote_workspace */
	CELL_TAKES_CONTAINER = 1 << 5, /* container */
	CELL_TAKES_LIMITS = 1 << 6,    /* memory_limit, cpu_quota, pids_limit */
	CELL_TAKES_OFFLINE = 1 << 7,   /* network_disabled */
};

struct cell__executor {
	const char *name;
	const char *isolation; /* one word */
	unsigned takes;        /* CELL_TAKES_* */
	bool untrusted;        /* what its code asks the host for must not run the code's own programs there */
	bool calls_there;      /* what its code asks for is done by a server there: none of it comes to us */
	bool wants_wheels;     /* its Python is not of this machine: packages go to it as wheels */
	/* Its kernels take the loop themselves when they have something to say: who waits for a run must not keep it. */
	bool takes_loop;
	/*
	 * What it keeps for an engine, made with the engine and gone with it, after all sessions.  destroy(): done(arg) when all is
	 * gone, perhaps from inside; only for a state that is not NULL.  Both NULL: it keeps nothing.
	 */
	int (*create)(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state, struct cell_error *err);
	void (*destroy)(void *state, void (*done)(void *arg), void *arg);
	/* Its own options of a session: checked and copied, for the spec of its kernels.  Any thread.  Both NULL: it has none. */
	int (*read_options)(const struct cell_session_options *opts, void **ret_own, struct cell_error *err);
	void (*free_options)(void *own);
	/* Can code with these options connect to what listens on this machine?  NULL: it can, unless a policy keeps it from that. */
	bool (*reaches_host)(const void *own);
	/* Can this work here?  Fills available, reason, advice. */
	void (*probe)(struct cell__executor_host *host, struct cell_executor_info *info);
	/* Can it give a session all that is asked for?  Any thread, by cell__executor_check().  NULL: it can. */
	int (*check)(const struct cell_session_options *opts, struct cell_error *err);
	/* Makes kernels like this one in advance; see cell__subprocess_prewarm().  NULL: it makes none. */
	int (*prewarm)(struct cell__executor_host *host, const struct cell__kernel_spec *spec, cell__prewarmed_fn done, void *arg,
		       struct cell_error *err);
	int (*open)(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		    void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
	/* Hands on all output written so far: what comes later belongs to the run that follows. */
	void (*drain)(struct cell__kernel *kernel);
	int (*run)(struct cell__kernel *kernel, uint32_t run_id, const char *code, size_t size, struct cell_error *err);
	/* Answers a namespace call; bytes are copied. */
	int (*reply)(struct cell__kernel *kernel, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		     struct cell_error *err);
	/* Bytes of answers that the kernel has not taken yet; NULL: they are not queued here. */
	size_t (*unread)(const struct cell__kernel *kernel);
	/* Memory that calls of this kernel may place data in; borrowed.  NULL, also for the function: there is none. */
	struct cell__bulk *(*bulk)(struct cell__kernel *kernel);
	/*
	 * What confines its code, for programs that are run on the code's behalf; a new reference, or NULL while that is not settled.
	 * NULL for the function: its code is not confined, or by other means than programs can be.
	 */
	int (*confine)(struct cell__kernel *kernel, struct cell__confinement **ret_confinement, struct cell_error *err);
	/* Asks the code of this run to stop (KeyboardInterrupt). */
	void (*interrupt)(struct cell__kernel *kernel, uint32_t run_id);
	/* true: deliver nothing until told false; the code blocks when its buffers are full. */
	void (*pause)(struct cell__kernel *kernel, bool paused);
	/* grace_ms > 0: exit handlers may run that long.  Ends in exited(). */
	void (*close)(struct cell__kernel *kernel, int64_t grace_ms);
	int64_t (*pid)(const struct cell__kernel *kernel);
	/* A file with which others can attach; NULL, also for the function: none. */
	const char *(*connection_file)(const struct cell__kernel *kernel);
	/* The isolation receipt, a JSON object. */
	const char *receipt;
	/* The receipt of a kernel that is ready, where they differ; NULL: `receipt` holds for all. */
	const char *(*receipt_of)(const struct cell__kernel *kernel);
};

/* NULL past the end. */
const struct cell__executor *cell__executor_at(size_t i);
const struct cell__executor *cell__executor_find(const char *name);
/* Where an executor's state of this engine is kept; it may fill it in later than create(). */
void **cell__executor_state(const struct cell__executor_host *host, const struct cell__executor *executor);
/* False: what its code, or who lets it run code, asks for must not run programs of their choice on this machine. */
bool cell__executor_is_trusted(const struct cell__executor *executor);
/* Refuses what this executor cannot give, and what is for another.  Any thread. */
int cell__executor_check(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err);

#define CELL__EXECUTOR(name) extern const struct cell__executor cell__##name##_executor;
#include "executors/registry.def"
#undef CELL__EXECUTOR

#endif
