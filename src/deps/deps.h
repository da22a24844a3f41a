/*
 * The `deps` namespace: a project's packages, listed in its requirements.txt and installed into its own venv. Belongs to the loop's thread;
 * installers run as programs of the spawner, and file work runs on libuv's pool.
 *
 * One venv per project: venv_dir, or <cache_dir>/venvs/<key> with a key made of the interpreter's real path, its version and the store's
 * root. The first operation that needs the venv creates it (`uv venv` if uv is in path, else `python -m venv`), and every process reuses
 * it. A process that works on it holds <its parent>/.<its name>.lock.
 *
 * The operations of one object run one after another, in the order of their calls.
 *
 * Requests of untrusted principals are served by a separate object (`confined`). Its venv is <cache_dir>/sandbox/<key>/env. It holds the
 * packages that those principals added and the ones that the host configured, and is filled from wheels only, each locked by its hash.
 * Every program that touches this venv runs confined, no matter which caller asked, and the venv's content counts as hostile data: no
 * trusted session, zygote or unconfined installer ever uses it.
 */
#ifndef CELL_DEPS_H
#define CELL_DEPS_H

#include "calls/call.h"
#include "spawn/supervisor.h"
#include "storage/store.h"

#define CELL__DEPS_TIMEOUT_MS 300000     /* the installers of one operation, unless the options say otherwise */
#define CELL__DEPS_FOREVER_MS (INT64_C(1) << 40) /* some 35 years */
#define CELL__DEPS_MESSAGE_BYTES 4000u   /* bytes of an installer's output that are kept for an error message */
#define CELL__DEPS_LINE_BYTES 4096u      /* a longer line of an installer is handed on in pieces */
#define CELL__DEPS_PROGRESS_BYTES (1024u * 1024u) /* bytes of one operation's installer output that are forwarded */
#define CELL__DEPS_QUEUE 1000u           /* operations that wait */

struct cell__deps;

/* Where packages are, for kernels.  All NULL: there are none yet. */
struct cell__deps_place {
	bool confined; /* the packages of untrusted principals */
	char *site;    /* the site-packages folder of the venv, when it exists already */
	char *bin;     /* its bin folder */
	char *folder;  /* the folder that contains the venv (confined: or will contain it, and no file of another project) */
};

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
	const char *index_url;       /* NULL: the user's own configuration of the installer */
	const char *wheel_dir;       /* may be NULL; without index_url, packages come from this folder only */
	const char *path;            /* PATH in which python and uv are searched, and which installers get */
	bool allow_runtime;          /* false: add and remove are refused */
	/* The rest may be left zero. */
	bool confined;               /* for untrusted principals; venv_dir is the host's and left alone */
	const char *kernel_dir;      /* confined: where index_hosts.py is */
	bool private_venv;           /* a venv of this object alone (cache_venv=false); not with venv_dir */
	enum cell__deps_cleanup cleanup; /* cleanup_venv_on_close; removes only a venv that we made */
	int64_t timeout_ms;          /* 0: CELL__DEPS_TIMEOUT_MS; -1: no limit; also the longest wait for the venv's lock */
	/*
	 * "K=V", NULL-terminated, for installers: SSL_CERT_FILE, proxies, PIP_..., UV_... Variables that would install outside the venv are
	 * left out.
	 */
	const char *const *extra_env;
	/* Packages were installed or removed, and are here now (site, bin: may be NULL); NULL: no callback. */
	void (*changed)(void *arg, const struct cell__deps_place *place);
	void *changed_arg;
};

/*
 * Searches for the interpreter, but runs no program and creates no file: any thread but the loop's. The options' strings are copied.
 * Without an interpreter, list still works.
 */
int cell__deps_create(const struct cell__deps_options *opts, struct cell__deps **ret_deps, struct cell_error *err);
/* The loop's thread, before anything else.  NULL is allowed. */
void cell__deps_start(struct cell__deps *deps);
/*
 * Ends pending calls with CELL_E_CLOSED, kills running programs, and removes the venv if `cleanup` asks for it; closed() is called from a
 * later iteration of the loop.
 */
void cell__deps_close(struct cell__deps *deps, void (*closed)(void *arg), void *arg);
/*
 * deps.list -> ["six>=1", ...]
 * deps.add {package: one or an array}, deps.sync -> {"installed": [...], "already_present": [...], "failed": [...],
 *     "site": ["<venv>/lib/python3.x/site-packages"], "bin": "<venv>/bin"}; a sync that could not install a package
 *     adds "errors": {spec: the installer's output}, and "problems" if requirements.txt has some
 * deps.remove {package} -> true when it was configured or installed
 *
 * With {"pyodide": true}, add and sync give {"installed", "already_present", "failed", "wheels": [[name, size, hash], ...]} and
 * the bytes of the wheels instead, and touch no venv (wheels.c).
 *
 * A sync with {"quick": true} trusts the results of this object's earlier operations on the venv.  Installers' output goes to
 * the call's progress().  May answer before it returns.  An add that fails records none of its packages.
 */
void cell__deps_handle(struct cell__deps *deps, struct cell__call *call);
/*
 * Looks it up: any thread but the loop's.  wants_folder: `folder` is filled too, and created where it does not exist.  Without memory
 * members are missing.
 */
void cell__deps_find(struct cell__deps *deps, bool wants_folder, struct cell__deps_place *ret_place);
void cell__deps_place_finish(struct cell__deps_place *place);
/* -1: out of memory. */
int cell__deps_place_copy(const struct cell__deps_place *place, struct cell__deps_place *ret_copy);
/*
 * A folder with wheels for Pyodide (executors/deno/deno.h), if packages have been fetched for it, else NULL; free() it.  Any thread but
 * the loop's.
 */
char *cell__deps_wheels(struct cell__deps *deps);

/*
 * For `python_version`: "3.11" gives the python3.11 in path, as an absolute name to be freed; scripts that only lead to
 * an interpreter (pyenv's) come last.  Any thread.
 */
int cell__deps_find_python(const char *version, const char *path, char **ret_python, struct cell_error *err);

#endif
