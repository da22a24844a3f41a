/*
 * The `deps` namespace: packages of a project, kept in its requirements.txt and installed into a venv of its own.
 * Belongs to the loop's thread; installers run as programs of the spawner, files are touched on libuv's pool.
 *
 * One venv per project: venv_dir, or <cache_dir>/venvs/<key> with a key made of the interpreter's real path, its
 * version and the store's root.  It is made by the first operation that needs it (`uv venv` where uv is in path, else
 * `python -m venv`) and reused by every process; whoever works on it holds <its parent>/.<its name>.lock.
 *
 * Operations of one object run one after another, in the order in which they came.
 *
 * What untrusted principals ask for is done by an object of its own (`confined`): its venv lies in
 * <cache_dir>/sandbox/<key>/env, holds what they added and what the host configured, and is filled with wheels alone, each of
 * them locked by its hash.  Every program that touches it runs confined, whoever asks, and what is in it counts as hostile
 * data: no trusted session, zygote or unconfined installer ever uses it.
 */
#ifndef CELL_DEPS_H
#define CELL_DEPS_H

#include "calls/call.h"
#include "spawn/supervisor.h"
#include "storage/store.h"

#define CELL__DEPS_TIMEOUT_MS 300000     /* the installers of one operation, unless the options say otherwise */
#define CELL__DEPS_FOREVER_MS (INT64_C(1) << 40) /* some 35 years */
#define CELL__DEPS_MESSAGE_BYTES 4000u   /* what is kept of an installer's words for an error */
#define CELL__DEPS_LINE_BYTES 4096u      /* a longer line of an installer is handed on in pieces */
#define CELL__DEPS_PROGRESS_BYTES (1024u * 1024u) /* what is handed on of one operation's installers */
#define CELL__DEPS_QUEUE 1000u           /* operations that wait */

struct cell__deps;

enum cell__deps_cleanup {
	CELL__DEPS_CLEANUP_DEFAULT, /* only a private venv is removed */
	CELL__DEPS_CLEANUP_ALWAYS,
	CELL__DEPS_CLEANUP_NEVER,
};

struct cell__deps_options {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor;
	struct cell__store *store;   /* outlives this */
	const char *python;          /* looked up in path when it has no slash */
	const char *venv_dir;        /* NULL: one per project under cache_dir */
	const char *cache_dir;
	const char *index_url;       /* NULL: what the user's own configuration of the installer says */
	const char *wheel_dir;       /* NULL: none; without index_url nothing but its files is looked at */
	const char *path;            /* PATH in which python and uv are looked for, and which installers get */
	bool allow_runtime;          /* false: add and remove are refused */
	/* The rest may be left zero. */
	bool confined;               /* for untrusted principals; venv_dir is the host's and left alone */
	const char *kernel_dir;      /* confined: where index_hosts.py is */
	bool private_venv;           /* a venv of this object alone (cache_venv=false); not with venv_dir */
	enum cell__deps_cleanup cleanup; /* cleanup_venv_on_close; removes only what we made */
	int64_t timeout_ms;          /* 0: CELL__DEPS_TIMEOUT_MS; -1: none; also how long the venv's lock is waited for */
	/*
	 * "K=V", NULL-terminated, for installers: SSL_CERT_FILE, proxies, PIP_..., UV_...  Those that would install to another
	 * place than the venv are left out.
	 */
	const char *const *extra_env;
	void (*changed)(void *arg);  /* packages were installed or removed; NULL: no callback */
	void *changed_arg;
};

/*
 * Runs nothing and makes nothing, but looks for the interpreter: any thread but the loop's.  The options' strings are copied.
 * Without an interpreter, list still works.
 */
int cell__deps_create(const struct cell__deps_options *opts, struct cell__deps **ret_deps, struct cell_error *err);
/* The loop's thread, before anything else.  NULL is allowed. */
void cell__deps_start(struct cell__deps *deps);
/*
 * Ends calls under way with CELL_E_CLOSED, kills what runs, removes the venv where `cleanup` says so; closed() comes
 * from a later iteration of the loop.
 */
void cell__deps_close(struct cell__deps *deps, void (*closed)(void *arg), void *arg);
/*
 * deps.list -> ["six>=1", ...]
 * deps.add {package}, deps.sync -> {"installed": [...], "already_present": [...], "failed": [...],
 *     "site": ["<venv>/lib/python3.x/site-packages"], "bin": "<venv>/bin"}; where a sync could not install something
 *     also "errors": {spec: the installer's words}, and "problems" of requirements.txt where there are some
 * deps.remove {package} -> true when it was configured or installed
 *
 * With {"pyodide": true}, add and sync give {"installed", "already_present", "failed", "wheels": [[name, size, hash], ...]} and
 * the bytes of the wheels instead, and no venv is touched (wheels.c).
 *
 * A sync with {"quick": true} believes what earlier operations of this object found out about the venv.  What installers
 * say goes to the call's progress().  May answer before it returns.  An add that fails has recorded nothing.
 */
void cell__deps_handle(struct cell__deps *deps, struct cell__call *call);
/*
 * A folder in which the venv is; confined: or will be, with nothing of other projects.  NULL where there is none.  Valid until
 * the next call on deps.
 */
const char *cell__deps_folder(struct cell__deps *deps);
/* The site-packages folder of the venv when it exists already, else NULL; valid until the next call on deps. */
const char *cell__deps_site(struct cell__deps *deps);
/* A folder with wheels for Pyodide (executors/deno/deno.h), where packages have been fetched for it; to be freed.  NULL: none. */
char *cell__deps_wheels(struct cell__deps *deps);
/* The venv's bin folder when it exists already, else NULL; valid until the next call on deps. */
const char *cell__deps_bin(struct cell__deps *deps);

/*
 * For `python_version`: "3.11" gives the python3.11 in path, as an absolute name to be freed; scripts that only lead to
 * an interpreter (pyenv's) come last.  Any thread.
 */
int cell__deps_find_python(const char *version, const char *path, char **ret_python, struct cell_error *err);

#endif
