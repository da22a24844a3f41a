/*
 * Internals of deps, shared by deps.c (calls and their queue), steps.c and python.c (up to a working venv), install.c, lock.c and project.c
 * (changes to it) and program.c (running programs). Loop's thread, except functions marked "pool".
 */
#ifndef CELL_DEPS_OPERATION_H
#define CELL_DEPS_OPERATION_H

#include <pthread.h>
#include <time.h>

#include "deps/deps.h"
#include "deps/venv.h"

enum cell__dep_kind { CELL__DEP_LIST, CELL__DEP_ADD, CELL__DEP_REMOVE, CELL__DEP_SYNC };

struct cell__dep_op;
typedef void (*cell__dep_step)(struct cell__dep_op *op);

struct cell__deps {
	/* never changed after create: the pool reads them too */
	struct cell__loop *loop;
	struct cell__supervisor *supervisor;
	struct cell__store *store;
	char *python, *python_real; /* as found in path; the file behind it */
	char stamp[CELL__VENV_KEY_SIZE];
	struct cell_error no_python; /* why no interpreter was found, if code is not 0 */
	char *venvs;    /* <cache_dir>/venvs */
	char *venv_dir; /* as asked for, absolute, or NULL */
	char *private_name; /* or NULL */
	bool confined;
	enum cell__book book; /* confined */
	char *sandboxes; /* <cache_dir>/sandbox */
	char *project;  /* confined: the folder of its venv, lock and notes; NULL without an interpreter */
	char *kernel_dir;
	char *wheel_dir, *path;
	bool has_index, allow_runtime, cleanup;
	bool script;    /* python is a script, and its interpreter may change without it */
	int64_t timeout_ms;
	char **env; /* of the programs, NULL-terminated */
	void (*changed)(void *arg, const struct cell__deps_place *place);
	void *changed_arg;

	pthread_mutex_t lock; /* guards the version, which other threads read too */
	char version[CELL__VENV_VERSION_SIZE]; /* "": not asked yet; set once, before dir */
	/* of the current operation: of its step on the loop's thread, or of its work on the pool, which come one after the other */
	char *dir;      /* NULL while not known */
	char *notes;    /* the folder for our notes about it: the venv itself, unless confined */
	char *lock_file;
	char *executable; /* confined: the interpreter as it calls itself; NULL: not asked yet */
	char *base;     /* confined: the program that a venv of it links to; NULL: not asked yet */
	json_t *paths;  /* confined: folders that the interpreter needs; NULL: not asked yet */
	bool unhashed;  /* confined: uv's index is known not to give hashes */
	json_t *hosts;  /* confined: "host:port" of the index, as the interpreter's pip has it; NULL: not asked yet */
	bool asked;     /* the interpreter told this object its version */
	bool proved;    /* the venv's python ran */
	char *site, *bin; /* as the pool found them last */
	int lock_fd;    /* the venv's lock */

	struct cell__dep_op *current, *first, *last; /* the current one is not in the queue */
	size_t queued;
	uv_timer_t timer; /* the current operation waits for the lock */
	uv_work_t work;   /* of close */
	struct cell__process *process;
	bool waiting;     /* the timer runs */

	bool closing;
	void (*closed)(void *arg);
	void *closed_arg;
};

/*
 * One call.  At any moment exactly one of these holds for the current operation: the pool works for it, a program
 * runs for it, the timer runs for it, or one of its steps is on the stack.
 */
struct cell__dep_op {
	struct cell__deps *deps;
	struct cell__call *call; /* NULL once it is answered or its caller is gone */
	enum cell__dep_kind kind;
	bool wheels_only;        /* asked by sandboxed code: no source distribution is built on the host */
	bool stopped;            /* ends as soon as the pool or the program lets it */
	bool quick;
	bool pyodide;            /* wheels are wanted, no venv */
	struct cell__dep_op *next;

	json_t *specs;           /* add: its requirements, each of another package; remove: its one package */
	char *uv;                /* NULL: pip */
	char *python;            /* the venv's */
	json_t *configured, *problems;
	json_t *others;          /* configured, without the packages themselves */
	json_t *book;            /* confined: as it was when the lock was taken */
	json_t *unresolved;      /* confined: configured specifiers that the lock was not made for */
	json_t *locked;          /* confined: versions that the resolver or the installer chose */
	bool hosts;              /* confined: the package that is to be removed is one that only the host configured */
	bool missing;            /* confined: the venv lacks something that is locked */
	bool locking;            /* confined: the locked packages are being installed */
	bool relocked;           /* it has been */
	struct timespec began;   /* confined: when uv's one run did */
	bool unhashed;           /* confined: not all that it installed has a hash that can be relied upon */
	bool bare;               /* because its index gives no hashes */
	bool again;              /* confined: it has been tried, and may have installed something */
	int64_t until_us;        /* for its installers together */
	int64_t lock_until_us;
	int64_t lock_pause_ms;

	/* the pool's result */
	int rc;
	struct cell_error err;
	bool asked;              /* the version is new */
	bool busy_lock;
	int lock_fd;
	enum cell__venv_state state;
	bool ours, dirty, synced, removed;
	char *site;
	struct cell__buf before, after; /* listings */
	struct cell__buf first;  /* confined: the one before anything was done */
	bool has_first;

	char *made;              /* being made; removed again unless it is adopted */
	char *temp;              /* temporary folder for programs: removed with the operation, also when they are killed */
	bool fresh;              /* the venv is new or was repaired: configured packages may be missing */
	bool remade;             /* by this operation */
	json_t *wanted;          /* specifiers of the installer that runs */
	bool limited;            /* by the other configured packages */
	json_t *stale;           /* names of packages that are to leave the venv */
	json_t *leaving;         /* the same, before packages that others need are taken out */
	bool gone;               /* the package that is removed was uninstalled */
	bool pruned;             /* they have been dealt with */
	bool one_by_one;
	size_t at;               /* which of pending then */
	bool installed_ok;
	json_t *done;            /* specifiers that are installed now */
	json_t *failed, *errors;

	cell__dep_step known;    /* next step once the interpreter is known */
	/* next step, with the program's output */
	cell__dep_step exited;
	struct cell__process_exit how;
	int64_t limit_ms;        /* it may run so long */
	bool quiet;              /* its output is for us, not for progress() */
	bool online;             /* the next one may have to reach the index */
	char **argv;             /* confined: of the next one */
	struct cell__confinement *confinement; /* confined: of the next one */
	struct cell__buf captured;
	struct cell__buf line[2], words[2]; /* stdout, stderr */
	const char *program;     /* "pip", "uv", ... */
	size_t told;             /* bytes handed on */
};

/* A text of a list of them. */
static inline const char *cell__dep_text(json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

/* The one package of a remove. */
static inline const char *cell__dep_spec(const struct cell__dep_op *op)
{
	return cell__dep_text(op->specs, 0);
}

/* ---- deps.c ---- */

/* Whether the operation is about the package of this specifier. */
bool cell__dep_concerns(const struct cell__dep_op *op, const char *spec);
/* "install A, B and 3 more" of an add, for messages. */
void cell__dep_tell_install(const struct cell__dep_op *op, struct cell__buf *out);

/*
 * Runs work on the pool, and finds out there where the venv is now (dir, notes, lock_file, site, bin); then step on the loop. When work
 * sets rc below 0 the operation fails with op->err instead.
 */
void cell__dep_pool(struct cell__dep_op *op, void (*work)(struct cell__dep_op *op), cell__dep_step step);
/* Both answer the call if it still waits, end the operation and start the next. Takes over result. */
void cell__dep_answer(struct cell__dep_op *op, json_t *result);
void cell__dep_fail(struct cell__dep_op *op, int code, const char *message);
/* As cell__dep_fail(), with op->err. */
void cell__dep_fail_err(struct cell__dep_op *op);
void cell__deps_forget_place(struct cell__deps *deps);
void cell__deps_set_version(struct cell__deps *deps, const char *version);
/* Confined: makes the project's folders.  0, or -1 with errno.  Any thread. */
int cell__deps_make_project(const struct cell__deps *deps);

/* ---- program.c ---- */

/*
 * Runs argv (NULL-terminated) with the time that is left, or limit_ms if that is less; exited is the next step, with op->how and the
 * program's output.
 */
void cell__dep_run(struct cell__dep_op *op, const char *const *argv, int64_t limit_ms, bool quiet, cell__dep_step exited);
/* The same for the host's own interpreter, with input that only the host wrote: it runs unconfined, and its output is for us. */
void cell__dep_run_trusted(struct cell__dep_op *op, const char *const *argv, int64_t limit_ms, cell__dep_step exited);
/* Adds a line of our own to the programs' output. */
void cell__dep_say(struct cell__dep_op *op, const char *line);
/* The end of the last program's output: stderr, else stdout. Never NULL; *buf owns it. */
const char *cell__dep_words(struct cell__dep_op *op, struct cell__buf *buf);
/* If it did not end with status 0: how it ended, and its output. */
void cell__dep_fail_program(struct cell__dep_op *op, int code, const char *doing, const char *advice);
/* Whether packages may come from a source other than the wheel folder. */
bool cell__deps_has_network(const struct cell__deps *deps);
/* "host:port" of the indexes that the environment names; NULL: out of memory. */
json_t *cell__deps_env_hosts(const struct cell__deps *deps);
/* The environment of all programs; NULL: out of memory. */
char **cell__deps_make_env(const struct cell__deps_options *opts);

/* ---- python.c ---- */

#define CELL__DEP_ASK_MS 30000 /* for an interpreter to print its version */
extern const char cell__dep_ask_script[];
/* Asks the interpreter for its version and, confined, for its folders and index, where that is not known yet. */
void cell__dep_know_python(struct cell__dep_op *op, cell__dep_step known);
/* Parses a leading "cpython-3.11.2\n" as printed; false if the text does not have this form. */
bool cell__dep_take_version(struct cell__dep_op *op, char out[static CELL__VENV_VERSION_SIZE]);

/* ---- steps.c ---- */

void cell__dep_begin(struct cell__dep_op *op);
/* Reads the state of the venv and continues from there. */
void cell__dep_inspect(struct cell__dep_op *op);
/* The answer of an add or a sync. */
void cell__dep_done(struct cell__dep_op *op);

/* The resolver is done, successful or not: continues as after an installer. */
void cell__dep_installed(struct cell__dep_op *op);
void cell__dep_run_installer(struct cell__dep_op *op);

/* ---- lock.c: the locked packages of untrusted principals ---- */

#define CELL__DEP_WANTED ".workcell-wanted.txt"
#define CELL__DEP_LIMITS ".workcell-limits.txt"

/* Pool. Once the listing is known: finds locked packages that the venv lacks, and specifiers that the lock was not made for. */
int cell__dep_compare_lock(struct cell__dep_op *op);
/* Pool.  Requirements of all that is locked, or of the named ones (an object's keys), with their hashes. */
int cell__dep_write_lock(json_t *book, json_t *names, const char *folder, const char *file);
/* One release may be written in several ways ("1.0.0", "1", "2024.01"). */
bool cell__dep_same_version(const char *a, size_t a_size, const char *b, size_t b_size);
/* Pool.  Puts a package into op->locked; *ret_entry, which that owns, is then to be given its hashes. */
int cell__dep_lock_entry(struct cell__dep_op *op, const char *what, const char *name, const char *version, json_t **ret_entry);
/* Pool. Whether everything in op->locked can be recorded. what: name of the program that chose the versions. */
int cell__dep_check_entries(struct cell__dep_op *op, const char *what);
/* Has uv choose versions for op->wanted, then continues with the installer. */
void cell__dep_resolve(struct cell__dep_op *op);
/* Pool. After an installer that chose versions itself: reads its choices. */
int cell__dep_read_report(struct cell__dep_op *op);
#define CELL__DEP_REPORT "report.json"

/* ---- project.c ---- */

/* Has uv choose versions for op->wanted and install them, in one run where that will do. */
void cell__dep_project(struct cell__dep_op *op);

/* ---- wheels.c ---- */

void cell__dep_begin_wheels(struct cell__dep_op *op);

/* ---- install.c ---- */

/* Installs op->wanted. */
void cell__dep_install(struct cell__dep_op *op);
/* Confined, and every package is installed: notes that, records an add, and answers. */
void cell__dep_settle(struct cell__dep_op *op);
/* Uninstalls the packages of op->stale that no other configured package needs. */
void cell__dep_uninstall(struct cell__dep_op *op);
/* Removes the package from the configuration, and answers. */
void cell__dep_forget(struct cell__dep_op *op);

#endif
