/*
 * E2B's protocol on the server's sessions (docs/e2b.md), for the unmodified clients of E2B.
 *
 *     control plane   X-API-KEY, a token of the server     /sandboxes, /v2/sandboxes, ...     sandboxes.c, network.c
 *                                                          /snapshots                         snapshots.c
 *     a sandbox       E2b-Sandbox-Id and X-Access-Token,   /execute, /contexts                code.c
 *                     which is the sandbox's own           /files                             files.c
 *                                                          /filesystem.Filesystem/METHOD      filesystem.c, watch.c
 *                                                          /process.Process/METHOD            processes.c
 *
 * A sandbox is a session with its folder; each further context is a session in the same folder.  The id of the first session is the
 * sandbox's.  Sessions belong to the token that made the sandbox: quotas, limits, gate and audit are the same as with other clients.  A
 * request to a sandbox has the rights of that token, and reaches that sandbox only.
 *
 *     running ──pause, or its time is over and it pauses──▶ paused ──connect, resume──▶ running
 *        └── kill, or its time is over ──▶ gone ◀── kill ──────┘
 *
 * All of it belongs to the loop's thread.
 */
#ifndef CELL_SERVER_E2B_H
#define CELL_SERVER_E2B_H

#include <limits.h>

#include "server/server.h"

#define CELL_E2B_ENVD_VERSION "0.6.4" /* of the daemon whose protocol is spoken */
#define CELL_E2B_HOME "/home/user"
#define CELL_E2B_TMP "/tmp"
#define CELL_E2B_MARKS "user.e2b." /* extended attributes that are metadata of files */
#define CELL_E2B_MAX_MARKS 64u     /* of an upload */
#define CELL_E2B_MARKS_BYTES (1u << 20) /* in one answer */
#define CELL_E2B_TIMEOUT_S 300
#define CELL_E2B_MAX_TIMEOUT_S 86400
#define CELL_E2B_MAX_CONTEXTS 64u
#define CELL_E2B_TOKEN 64u /* characters */
#define CELL_E2B_MAX_DOMAIN 200u
#define CELL_E2B_WATCHER_ID 32u
#define CELL_E2B_MAX_WATCHERS 16u  /* of a sandbox */
#define CELL_E2B_MAX_WATCHED 1024u /* folders of one */
#define CELL_E2B_MAX_EVENTS 4096u  /* that nobody has fetched */

struct cell__e2b_context {
	struct cell__e2b_sandbox *sandbox;
	struct cell__served *served;
	char *cwd;                /* as the client gave it */
	bool is_bash;
	bool has_env;             /* its last cell had variables of its own */
	uint64_t executions;
	struct { /* of stdout and stderr: the beginning of a character */
		char bytes[4];
		size_t size;
	} carry[2];
	struct cell__e2b_context *next;
};

struct cell__e2b_sandbox {
	struct cell_server *server;
	struct cell__e2b_context *contexts; /* the first is the sandbox's own session; the others follow, the newest first */
	char *template;
	json_t *metadata, *envs;            /* objects of strings */
	char *network;                      /* of its sessions; NULL: the server's */
	int64_t end_us;                     /* when its time is over; paused: when it ends */
	bool paused, pauses;                /* now; instead of ending when its time is over */
	bool ending;
	bool is_snapshot;                   /* a fork that only serves to be forked */
	int listed;    /* its place in the list that other workers see (pool.h) */
	char *name;    /* of a snapshot, or NULL */
	char source[33];                    /* the sandbox that it was taken from */
	struct cell__e2b_watcher *watchers;
};

/* ---- requests (table.c) ---- */

/* The body, an object (borrowed); NULL: it was answered.  An empty body is an empty object. */
json_t *cell__e2b_body(struct cell__request *request);
/* A parameter of the query, decoded; free() it.  NULL: there is none. */
char *cell__e2b_query(const struct cell__request *request, const char *name);
/* The body of a request for a stream is one message: takes it out.  False: it was answered. */
bool cell__e2b_unwrap(struct cell__request *request);
/* The sandbox of a request to it, its first session held as request->served; NULL: it was answered. */
struct cell__e2b_sandbox *cell__e2b_enter(struct cell__request *request);
/*
 * The token of the sandbox of this id: derived from the id and a secret of the server, so that every worker can check it.  False: OpenSSL
 * failed.
 */
bool cell__e2b_token(const struct cell_server *server, const char *id, char ret_token[static CELL_E2B_TOKEN + 1]);
/* The sandbox of this id, if it is a sandbox and not about to end. */
struct cell__e2b_sandbox *cell__e2b_by_id(const struct cell_server *server, const char *id);
/* The same, or a snapshot (snapshots.c). */
struct cell__e2b_sandbox *cell__e2b_snapshot_by_id(const struct cell_server *server, const char *id);
const char *cell__e2b_id(const struct cell__e2b_sandbox *sandbox);
/* Files that clients reach: below the folder of the sandbox, and in its own /tmp. */
enum cell__e2b_area { CELL_E2B_IN_HOME, CELL_E2B_IN_TMP };
struct cell__e2b_place {
	enum cell__e2b_area area;
	char path[PATH_MAX]; /* below it */
};
/* A path as a client gives it. */
int cell__e2b_path(const struct cell__e2b_sandbox *sandbox, const char *given, struct cell__e2b_place *ret_place, struct cell_error *err);
/* "/home/user" or "/tmp": how clients name the area. */
const char *cell__e2b_area_name(enum cell__e2b_area area);
/* Opens the area for a request to a session, as cell__session_root_on_loop(). */
int cell__e2b_open_area(struct cell_session *session, enum cell__e2b_area area, bool writes, cell__root_done done, void *arg,
			struct cell_error *err);

/* The same of a folder to work in: an absolute path outside of it is as the code sees it. */
int cell__e2b_cwd(const struct cell__e2b_sandbox *sandbox, const char *given, char ret_path[static PATH_MAX], struct cell_error *err);

/* ---- the debug mode of the clients (debug.c) ---- */

/* The id that this one means: their name for the one sandbox is not its id. */
const char *cell__e2b_debug_id(const struct cell_server *server, const char *id);
/*
 * Finds the sandbox that a request without another one means.  True: it is answered, or is CELL_REQUEST_ASKING while the sandbox is made.
 */
bool cell__e2b_debug_waits(struct cell__request *request);

/* ---- handlers ---- */

void cell__e2b_handle_create(struct cell__request *request);
void cell__e2b_handle_list(struct cell__request *request);
/* Sorts, cuts and answers; takes the list over. */
void cell__e2b_answer_list(struct cell__request *request, json_t *list);
void cell__e2b_handle_get(struct cell__request *request);
void cell__e2b_handle_kill(struct cell__request *request);
void cell__e2b_handle_timeout(struct cell__request *request);
void cell__e2b_handle_refresh(struct cell__request *request);
void cell__e2b_handle_pause(struct cell__request *request);
void cell__e2b_handle_connect(struct cell__request *request);
void cell__e2b_handle_fork(struct cell__request *request);
void cell__e2b_handle_metrics(struct cell__request *request);
void cell__e2b_handle_refused(struct cell__request *request);
void cell__e2b_handle_snapshot(struct cell__request *request);
void cell__e2b_handle_snapshots(struct cell__request *request);
/* Takes the list over. */
void cell__e2b_answer_snapshots(struct cell__request *request, json_t *list);
void cell__e2b_handle_snapshot_remove(struct cell__request *request);

void cell__e2b_handle_health(struct cell__request *request);
void cell__e2b_handle_execute(struct cell__request *request);
void cell__e2b_handle_contexts(struct cell__request *request);
void cell__e2b_handle_context_create(struct cell__request *request);
void cell__e2b_handle_context_remove(struct cell__request *request);
void cell__e2b_handle_context_restart(struct cell__request *request);

void cell__e2b_handle_file_get(struct cell__request *request);
void cell__e2b_handle_file_post(struct cell__request *request);
void cell__e2b_handle_file_form(struct cell__request *request);
void cell__e2b_handle_filesystem(struct cell__request *request);
void cell__e2b_handle_process(struct cell__request *request);

/* ---- work on files (files.c) ---- */

/* A request's work on the sandbox's files, on the pool. */
struct cell__e2b_work {
	uv_work_t work;
	struct cell__request *request;
	struct cell__root root;
	bool writes;
	enum cell__e2b_area area;
	char path[PATH_MAX], other[PATH_MAX];
	json_int_t depth;
	json_t *answer;
	struct cell_error err; /* code 0: it succeeded */
	/* On the pool: sets answer or err. */
	void (*step)(struct cell__e2b_work *work);
	/* On the loop's thread, of one that writes: records what was changed, also if it failed.  NULL: `verb` of `path`. */
	void (*changed)(struct cell__e2b_work *work);
	/* On the loop's thread, where it succeeded: true: once more, with the root of `area`, which it has set.  NULL: never. */
	bool (*again)(struct cell__e2b_work *work);
	const char *verb; /* in the audit log */
	/* On the loop's thread: answers the request where it succeeded.  NULL: with `answer`. */
	void (*then)(struct cell__e2b_work *work);
	void *data; /* the handler's, freed by drop(), which may be NULL */
	void (*drop)(void *data);
};
/* NULL: it was answered. */
struct cell__e2b_work *cell__e2b_work_create(struct cell__request *request);
/* Takes it over; request->served is the session. */
void cell__e2b_work_start(struct cell__e2b_work *work);
void cell__e2b_work_free(struct cell__e2b_work *work);
/* A change of a file for the audit log.  bytes: -1: not known; err: NULL: it was made. */
void cell__e2b_record(const struct cell__e2b_work *work, const char *verb, const char *path, int64_t bytes, const struct cell_error *err);
/*
 * {"name", "type", "path", ...} as E2B describes a file; root_fd: of the area; item: of cell__files_describe(); *room: bytes of metadata that the
 * answer may have yet.
 */
json_t *cell__e2b_entry(int root_fd, enum cell__e2b_area area, const char *path, const json_t *item, size_t *room);

/* ---- watching folders (watch.c) ---- */

void cell__e2b_watch(struct cell__request *request, struct cell__e2b_sandbox *sandbox, const struct cell__e2b_place *place, bool streams);
void cell__e2b_watcher_events(struct cell__request *request, struct cell__e2b_sandbox *sandbox);
void cell__e2b_watcher_remove(struct cell__request *request, struct cell__e2b_sandbox *sandbox);
void cell__e2b_watchers_sweep(struct cell__e2b_sandbox *sandbox, int64_t now_us);
void cell__e2b_watchers_end(struct cell__e2b_sandbox *sandbox);

/* ---- the network (network.c) ---- */

/* What the body of a request wants; free() it.  *ret_network NULL: the server's. */
int cell__e2b_network(const struct cell_server *server, const json_t *body, char **ret_network, struct cell_error *err);

/* ---- sessions of a sandbox (sandboxes.c) ---- */

/* Where the code of sandboxes finds its folder; NULL: at its real path, because the executor or the machine cannot show it elsewhere. */
const char *cell__e2b_home(const struct cell_server *server);
/* The options of a session that the request opens for a sandbox; network may be NULL, and stays until the answer. -1: out of memory. */
int cell__e2b_prepare(struct cell__request *request, const json_t *envs, const char *network);

/* The sandbox that the path names, held for the request; NULL: it was answered. */
struct cell__e2b_sandbox *cell__e2b_find(struct cell__request *request);
/* A sandbox whose first session this is; NULL: out of memory. */
struct cell__e2b_sandbox *cell__e2b_sandbox_create(struct cell__served *served, const json_t *metadata, const json_t *envs,
						   const char *network, int64_t seconds, bool pauses);
/* Seconds of "2026-08-21T20:00:22.5+02:00", or of a number; negative: it is neither.  Pure. */
int64_t cell__e2b_read_time(const char *text);
/* What a client gets to know of a sandbox of its own, with its token; NULL: out of memory. */
json_t *cell__e2b_admission(const struct cell__e2b_sandbox *sandbox);
/* The snapshot of this id or name that the request may use; NULL: there is none. */
struct cell__e2b_sandbox *cell__e2b_snapshot_find(const struct cell__request *request, const char *name);
/* Creates a sandbox from a snapshot: request->kept has metadata and timeout. */
void cell__e2b_restore(struct cell__request *request, struct cell__e2b_sandbox *snapshot);
/* Adds a session to a sandbox; NULL: out of memory. */
struct cell__e2b_context *cell__e2b_context_add(struct cell__e2b_sandbox *sandbox, struct cell__served *served, const char *cwd);

#endif
