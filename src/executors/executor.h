/*
 * Executors: where a kernel runs and how it is confined.
 *
 * An executor is a const vtable.  It opens kernels; a kernel runs one cell at a time and reports events to its owner (the
 * session).  Everything here belongs to the loop's thread, except where it says otherwise.
 *
 *     opening ──ready──▶ idle ──run──▶ running ──result──▶ idle ... ──▶ exited (the kernel's memory is gone)
 *
 * Contract: if open() returns an error, no callback is ever called.  Otherwise ready() is called at most once and
 * exited() exactly once, last, never from inside open(), run(), interrupt() or close().  A kernel that never became
 * ready ends with exited() only; its `error` has the reason.
 */
#ifndef CELL_EXECUTORS_EXECUTOR_H
#define CELL_EXECUTORS_EXECUTOR_H

#include <jansson.h>

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

/* The result of a cell as the kernel reports it.  Pointers are valid during the call only. */
struct cell__kernel_answer {
	const char *value_json; /* checked JSON, not NUL-terminated; NULL: none or not exact */
	size_t value_size;
	const char *repr; /* NULL: no value */
	size_t repr_size;
	struct cell__bundle mime;
	bool failed;
	bool interrupted;
	bool same; /* the cell changed nothing, according to the kernel */
	const char *error_type, *error_message, *error_traceback; /* NUL-terminated, valid UTF-8 */
	const char *limit; /* the limit that caused the error, according to the kernel; NULL: none */
	uint64_t limit_max, limit_used;
	/* remote: known only to the server */
	int code;               /* CELL_OUT_*: the outcome; 0: the session decides */
	bool lost;              /* the variables are lost */
	int retry;              /* CELL_RETRY_* */
	bool restored;          /* the variables are those from before the cell */
	const char *notices[CELL_LIMIT_NOTICES]; /* deviations that are not errors, as the server says */
	size_t n_notices;
	int durable;            /* as in struct cell_result; 0: the server saves no sessions after their cells */
	const char *isolation;  /* the receipt; NULL: the executor's */
	const json_t *changes;  /* of variables, not checked yet; or NULL */
};

/* A namespace call as received.  Pointers are valid during the call only. */
struct cell__asked {
	uint32_t id;
	const char *json;
	size_t json_size;
	const void *raw;
	size_t raw_size;
	size_t weight;    /* what its tree takes (cell__json_weigh()); 0: not known */
	json_t *document; /* of a call that was parsed on the pool; NULL: it was not, or it is not JSON, or too large */
	bool is_read;     /* it was parsed, and document is the outcome */
};

struct cell__exit {
	bool known;       /* status is valid */
	int status;       /* as waitpid() gives it */
	bool oom;
	bool asked;       /* we closed it */
	bool suspect;     /* remote: the server reports that it is broken, or did not confirm the end of its session */
	bool abandoned;   /* inprocess: its thread did not end and still runs */
	uint64_t memory_max, memory_used; /* the group's limit and its highest use; 0: not known */
	struct cell_error error; /* code != 0: why it ended or did not start */
};

struct cell__process_spec;

/* A command that runs at a server, in place of a process of this machine (spawn/process.h); each function as that of a process. */
struct cell__far_command {
	const struct cell__far_ops *ops;
	struct cell__loop *loop;
};
struct cell__far_ops {
	int (*write)(struct cell__far_command *command, const void *bytes, size_t size, struct cell_error *err);
	size_t (*unread)(const struct cell__far_command *command);
	void (*close_stdin)(struct cell__far_command *command);
	void (*signal)(struct cell__far_command *command, int number); /* to its group; SIGKILL ends all that it has started */
	void (*resize)(struct cell__far_command *command, unsigned short rows, unsigned short cols);
	void (*pause)(struct cell__far_command *command, bool paused);
	void (*abandon)(struct cell__far_command *command);
};

struct cell__egress_event;

struct cell__kernel_events {
	void (*ready)(void *owner);
	void (*output)(void *owner, enum cell_stream stream, const char *bytes, size_t size);
	void (*display)(void *owner, const struct cell__bundle *bundle);
	void (*result)(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer);
	/* A namespace call.  Returns NULL, or its problem: then the kernel is killed. */
	const char *(*call)(void *owner, const struct cell__asked *asked);
	/* sandbox: a connection through its proxy (egress.h).  Returns -1 to refuse it.  NULL: no reports. */
	int (*connection)(void *owner, const struct cell__egress_event *event, struct cell_error *err);
	void (*exited)(void *owner, const struct cell__exit *how);
};

/* The session's requirements for its kernel, for every executor. */
struct cell__kernel_wants {
	bool gate_shell;   /* ask before shell commands */
	bool shell_escape; /* only `!cmd` and similar syntax may start processes */
	bool restore_cwd;  /* go back to cwd after each cell */
	bool portable;     /* values also in a form that another Python can read */
	bool undo;         /* report cells that change nothing */
	bool notebook;     /* a front end of Jupyter: comms, input(), displays that can be updated */
	bool sessions;     /* the namespace `sessions`, also without the others */
	bool tables;       /* DataFrames as data, too */
	bool changes;      /* names of variables that a cell changed */
	bool saved_images; /* pictures that Pillow saves are displayed, too */
};

/* The memory of a kernel: a file, and the earlier ones that it refers to. */
#define CELL__IMAGE_FILES 8
struct cell__image_files {
	int fds[CELL__IMAGE_FILES]; /* sealed memfds, or files on a disk */
	uint64_t inodes[CELL__IMAGE_FILES]; /* by which the first refers to the others */
	uint64_t live[CELL__IMAGE_FILES]; /* by which they are known here, and its next image will refer to them */
	size_t n;
	struct cell__process_memory *process; /* pages of the first are read there; borrowed; NULL: it has them */
};

struct cell__kernel_spec {
	const char *session_id;
	const char *python;
	const char *preload; /* "" for none */
	const char *zygote_owner; /* "": none; only sessions of the same owner share a zygote; may end with ... */
#define CELL__ZYGOTE_RECORDED "\x1frecorded" /* hashes of texts are the same in every process */
#define CELL__ZYGOTE_PROGRAMS "\x1fprograms" /* for kernels that run programs in forks: without all that only cells need */
	const char *cwd;
	const char *workspace_path; /* sandbox: the code sees cwd there too; NULL: only at its own path */
	const char *const *env; /* complete, "K=V", NULL-terminated */
	bool namespaces;        /* put tools, workflows, artifacts and deps into it */
	struct cell__kernel_wants wants;
	const char *recording;  /* it is recorded, or replayed: the seed of its random numbers; NULL: it is not */
	bool is_replay;
	const char *site;       /* a folder of packages to put on the path, or NULL */
	const char *host_site;  /* sandbox: a second folder, searched after it, or NULL */
	const struct cell__sandbox_policy *policy; /* sandbox; NULL for the others */
	const char *const *read;    /* sandbox: folders that must be visible to the code, read-only; NULL-terminated or NULL */
	const char *limits_json;    /* sandbox: an object from which the kernel tells which limit caused an error; or NULL */
	const char *wheels;         /* deno: a folder of packages (executors/deno/deno.h), or NULL */
	const struct cell__layer *layer; /* over the working directory; NULL: none */
	const void *own;            /* the result of the executor's read_options(); NULL: none */
	void *found;                /* the result of the executor's resolve(), taken over by open() and prewarm(); NULL: none */
	const struct cell__image_files
		*woken; /* the kernel continues from this memory; its descriptors are duplicated; NULL: it is a new one */
};

struct cell__confinement;

/* For a process of spawn/process.h. */
struct cell__kernel_place {
	uint64_t kernel;  /* the spawner's */
	struct cell__confinement *confine; /* a reference; NULL: not confined */
	const char *cwd;  /* of the session, inside; borrowed; NULL: as outside */
	const char **env; /* as the kernel gets them; NULL: as they are */
};

/* The options of a session as kernels read them, a JSON object; free() it.  NULL: out of memory, or a string is not UTF-8. */
char *cell__kernel_spec_json(const struct cell__kernel_spec *spec);

/* Of one engine. */
struct cell__executor_counts {
	int ready;   /* idle kernels that wait for a session */
	int zygotes;
};

/* Called once, with info, or with NULL and the error. */
typedef void (*cell__prewarmed_fn)(void *arg, const struct cell_env_info *info, const struct cell_error *err);

struct cell__layer;
struct cell__elsewhere;
struct cell__places;
struct cell__confinement;
struct cell__sandbox_policy;
struct cell__supervisor;

/* The engine's services for executors. */
struct cell__executor_host {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor; /* for programs */
	const char *lib_dir;         /* contains our other parts: workcell-spawner, kernel/, deno/ */
	const char *kernel_dir;      /* contains the kernel's package and extension */
	const char *spill_dir;       /* for files and folders of their own */
	struct cell__places *places; /* trusted paths, and the places that open sessions write to */
	void **states; /* one an executor; see cell__executor_state() */
	void (*log)(void *arg, enum cell_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
	void *log_arg;
};

/* Options of a session that only some executors know. */
enum cell__takes {
	CELL_TAKES_KERNEL = 1 << 0,    /* kernel */
	CELL_TAKES_POLICY = 1 << 1,    /* sandbox_policy, workspace_mode; it always gets a policy */
	CELL_TAKES_NETWORK = 1 << 2,   /* network: "none" and "full" */
	CELL_TAKES_SERVER = 1 << 3,    /* remote_url, remote_token, remote_ca */
	CELL_TAKES_WORKSPACE = 1 << 4, /* remote_workspace */
	CELL_TAKES_CONTAINER = 1 << 5, /* container */
	CELL_TAKES_LIMITS = 1 << 6,    /* memory_limit, cpu_quota, pids_limit */
	CELL_TAKES_HOSTS = 1 << 7,     /* network: "deps-only" and "allow=..." */
	CELL_TAKES_DISK = 1 << 8,      /* disk_limit */
	CELL_TAKES_KUBERNETES = 1 << 10, /* kubernetes */
	CELL_TAKES_LAYER = 1 << 9,     /* workspace_mode "cow", by a copy of the working directory */
};

enum cell__fork_flags {
	CELL__FORK_DROP = 1 << 0, /* it goes without threads, child processes and connections, which otherwise prevent it (CELL_E_FORK) */
	/* It takes the place of its source: when it ends it also runs the exit handlers and finalizers that the source had. */
	CELL__FORK_HEIR = 1 << 1,
	CELL__FORK_POINT = 1 << 2, /* it runs nothing, and is only forked again */
	CELL__FORK_SAVE = 1 << 4, /* with FORK_POINT: the point is a file in every case, for image() */
	CELL__FORK_ENDS = 1 << 5, /* with FORK_SAVE: the source ends if that works; it need not prepare for a next one */
	CELL__FORK_PORTABLE = 1 << 6, /* with FORK_SAVE: objects instead of memory (kernel/workcell_kernel/objects.py) */
	CELL__FORK_READS =
		1 << 7, /* with FORK_ENDS: its pages need not be in the file, if its process can be read (spawn/process_memory.h) */
	CELL__FORK_SPECULATE = 1 << 3, /* in the middle of a call: the fork waits for the same answer and goes on with the cell */
};

/* What the host does with the changes of a layer. */
enum cell__files_verb { CELL__FILES_DIFF, CELL__FILES_COMMIT, CELL__FILES_DISCARD };
/* answer: borrowed; NULL: err has the reason. */
typedef void (*cell__files_done)(void *arg, json_t *answer, const struct cell_error *err);

struct cell__executor {
	const char *name;
	const char *isolation; /* one word */
	unsigned takes;        /* CELL_TAKES_* */
	bool untrusted;        /* calls of its code must not make the host run programs of the code's choice */
	bool calls_there;      /* calls of its code are handled by a server elsewhere and do not reach us */
	bool works_here;       /* its code works in the session's cwd on this machine */
	bool wants_wheels;     /* its Python is not on this machine: packages are sent to it as wheels */
	/* Its kernels take the loop themselves to report: a caller that waits for a run must not keep it. */
	bool takes_loop;
	/*
	 * Its state of an engine, created with the engine and destroyed after all sessions.  destroy(): done(arg) is called when
	 * everything is freed, possibly inside the call; only for a state that is not NULL.  Both NULL: no state.
	 */
	int (*create)(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state, struct cell_error *err);
	void (*destroy)(void *state, void (*done)(void *arg), void *arg);
	/* Its own options of a session: checked and copied, for the spec of its kernels.  Any thread.  Both NULL: no options. */
	int (*read_options)(const struct cell_session_options *opts, void **ret_own, struct cell_error *err);
	void (*free_options)(void *own);
	/* Whether code with these options can connect to listeners on this machine.  NULL: yes, unless a policy prevents it. */
	bool (*reaches_host)(const void *own);
	/* Whether the executor works on this machine.  Fills available, reason, advice. */
	void (*probe)(struct cell__executor_host *host, struct cell_executor_info *info);
	/* Whether it supports all options of a session.  Any thread, by cell__executor_check().  NULL: it does. */
	int (*check)(const struct cell_session_options *opts, struct cell_error *err);
	/*
	 * Looks up the paths of one kernel, for open() or prewarm(): on another thread than the loop's, because that may block.  They
	 * take the result over, also when they fail; discard() frees one that was not used.  Both NULL: there is nothing to look up.
	 */
	int (*resolve)(struct cell__executor_host *host, const struct cell__kernel_spec *spec, void **ret_found, struct cell_error *err);
	void (*discard)(void *found);
	/* Starts kernels like this one in advance; see cell__subprocess_prewarm().  NULL: not supported. */
	int (*prewarm)(struct cell__executor_host *host, const struct cell__kernel_spec *spec, cell__prewarmed_fn done, void *arg,
		       struct cell_error *err);
	/* Its processes now.  NULL: it makes no kernels ahead. */
	void (*count)(struct cell__executor_host *host, struct cell__executor_counts *ret_counts);
	/* NULL, as all below: it is not in this build, and check() refuses every session. */
	int (*open)(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		    void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
	/*
	 * Forks a kernel that runs no cell: a new one that continues from its memory, in every other way as if open() had made it, with
	 * this session's id and its layer, or NULL.  A cell may be run at once after the call, in both.  NULL: not supported.
	 */
	int (*fork)(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
		    const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err);
	/*
	 * A point of a ready kernel's session that was saved: a kernel that runs nothing and continues from these files, whose descriptors are
	 * duplicated.  It is ready.  session_id, layer: as of fork().  NULL: not supported.
	 */
	int (*keep)(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer,
		    const struct cell__image_files *files, const struct cell__kernel_events *events, void *owner,
		    struct cell__kernel **ret_kernel, struct cell_error *err);
	/* From now on another owner gets its events.  NULL: not supported. */
	void (*hand_over)(struct cell__kernel *kernel, const struct cell__kernel_events *events, void *owner);
	/*
	 * The files of a point that CELL__FORK_SAVE made and that is ready; borrowed.  *ret_left: what it goes without, a JSON array of
	 * [kind, name, [variable]]; borrowed, hostile, NULL: nothing.  NULL for the function: not supported.
	 */
	void (*image)(const struct cell__kernel *kernel, struct cell__image_files *ret_files, const json_t **ret_left);
	/* Bytes that a point takes, where it has no process (then pid() is 0); NULL, or -1: it has one. */
	int64_t (*kept)(const struct cell__kernel *kernel);
	/*
	 * The layer of its code is at a server, which is asked.  flag: with texts, or force; paths: NULL-terminated.  done() is called once,
	 * never inside the call, also if the kernel ends first.  NULL: the session has the layer itself.
	 */
	int (*files)(struct cell__kernel *kernel, enum cell__files_verb verb, const char *const *paths, bool flag, cell__files_done done,
		     void *arg, struct cell_error *err);
	/* Delivers all output written so far: later output belongs to the next run. */
	void (*drain)(struct cell__kernel *kernel);
	/* Before run(): the traceparent that belongs to it, "" for none.  NULL: nobody else needs to know it. */
	void (*trace)(struct cell__kernel *kernel, const char *traceparent);
	int (*run)(struct cell__kernel *kernel, uint32_t run_id, const char *code, size_t size, struct cell_error *err);
	/* Answers a namespace call; bytes are copied. */
	int (*reply)(struct cell__kernel *kernel, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		     struct cell_error *err);
	/* Bytes of answers that the kernel has not read yet; NULL: they are not queued here. */
	size_t (*unread)(const struct cell__kernel *kernel);
	/* Memory that calls of this kernel may refer to; borrowed.  NULL, also for the function: none. */
	struct cell__bulk *(*bulk)(struct cell__kernel *kernel);
	/*
	 * The confinement of its code, for programs that run on the code's behalf; a new reference, or NULL while it is not known yet.
	 * NULL for the function: its code is not confined, or in a way that does not apply to programs.
	 */
	int (*confine)(struct cell__kernel *kernel, struct cell__confinement **ret_confinement, struct cell_error *err);
	/*
	 * Where its code runs, for a program that is to run there too, as confined as the code.  env: the session's own variables.  The
	 * caller frees place->env, not its strings, and unrefs place->confine.  NULL for the function: it runs none.
	 */
	int (*place)(struct cell__kernel *kernel, const char *const *env, struct cell__kernel_place *ret_place, struct cell_error *err);
	/*
	 * Starts such a program at the server that has its code: cwd and env of the spec are only what was given for it.  The contract is that of
	 * cell__process_start().  NULL for the function: its code does not run at a server.
	 */
	int (*command)(struct cell__kernel *kernel, const struct cell__process_spec *spec, struct cell__far_command **ret_command,
		       struct cell_error *err);
	/* Asks the code of this run to stop (KeyboardInterrupt). */
	void (*interrupt)(struct cell__kernel *kernel, uint32_t run_id);
	/* true: deliver nothing until called with false; the code blocks when its buffers are full. */
	void (*pause)(struct cell__kernel *kernel, bool paused);
	/* grace_ms > 0: exit handlers may run that long.  Ends in exited(). */
	void (*close)(struct cell__kernel *kernel, int64_t grace_ms);
	int64_t (*pid)(const struct cell__kernel *kernel);
	/*
	 * The session of another server that has a ready kernel's files; NULL: it has ended, or out of memory.  NULL for the function: they are on this
	 * machine, or cannot be reached.
	 */
	struct cell__elsewhere *(*elsewhere)(const struct cell__kernel *kernel);
	/* A connection file for other clients; NULL, also for the function: none. */
	const char *(*connection_file)(const struct cell__kernel *kernel);
	/* The isolation receipt, a JSON object. */
	const char *receipt;
	/* The receipt of a ready kernel, if kernels differ; NULL: `receipt` applies to all. */
	const char *(*receipt_of)(const struct cell__kernel *kernel);
};

/* The receipt of executors that confine nothing. */
#define CELL__RECEIPT_UNCONFINED(name, level)                                                     \
	"{\"executor\":\"" name "\",\"level\":\"" level "\",\"namespaces\":[],\"seccomp\":false," \
	"\"landlock\":0,\"limits\":{},\"network\":\"host\",\"filesystem\":\"host\",\"skipped\":[]}"

/* NULL past the end. */
const struct cell__executor *cell__executor_at(size_t i);
const struct cell__executor *cell__executor_find(const char *name);
/* Fails with the name that was probably meant. */
int cell__executor_unknown(const char *name, struct cell_error *err);
/*
 * Makes `network` the one option about the network: afterwards network_disabled and network_profile are unset. Then checks that the
 * executor enforces every limit that is given.
 */
int cell__executor_settle_limits(const struct cell__executor *executor, struct cell_session_options *opts, struct cell_error *err);
/* If `network` is "allow=...", its list of hosts; else NULL. */
const char *cell__network_hosts(const char *network);
/* Where an executor's state of this engine is kept; it may fill it in later than create(). */
void **cell__executor_state(const struct cell__executor_host *host, const struct cell__executor *executor);
/* For create(): a state of this size that begins with a pointer to the host; the rest is zero. */
int cell__executor_create_state(struct cell__executor_host *host, size_t size, void **ret_state, struct cell_error *err);
/* False: calls of its code, or of its clients, must not make this machine run programs of their choice. */
bool cell__executor_is_trusted(const struct cell__executor *executor);
/* Refuses options that this executor does not support.  Any thread. */
int cell__executor_check(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err);

#endif
