/*
 * A venv on disk: its names, its lock, its packages.  Synchronous file work, any thread, no state; runs no program.
 *
 *     <parent>/<name>/                    the venv; complete from the moment it exists
 *     <parent>/<name>/.workcell           we made it
 *     <parent>/<name>/.workcell-busy      an installer is working, or was killed while working
 *     <parent>/<name>/.workcell-synced    hash of the configured and installed packages when both agreed
 *     <parent>/<name>/.workcell-configured  the packages configured and installed last
 *     <parent>/<name>/.workcell-project   the storage that lists them
 *     <parent>/.<name>.lock               flock()ed by the process that works on the venv
 *     <parent>/.<name>.new-<hex>/         being made
 *     <parent>/.<name>.old-<hex>/         being removed
 *     <cache>/venvs/.python-<hash>        cached version of an interpreter
 *     <cache>/venvs/.files-<hash>         the same with the paths of its files, for confined programs
 *
 * A venv that untrusted principals fill is inside a folder of its project, beside the files that the host trusts:
 *
 *     <cache>/sandbox/<key>/lock          as above
 *     <cache>/sandbox/<key>/notes/        the files above that begin with ".workcell", and the installers' input
 *     <cache>/sandbox/<key>/cache/        the installers' cache; confined installers write to this and the next folder
 *     <cache>/sandbox/<key>/env/          visible to confined kernels
 *     <cache>/sandbox/<key>/env/<version>/  the venv
 *
 * `hostile` below: confined code filled it, so no link in it is followed.
 */
#ifndef CELL_DEPS_VENV_H
#define CELL_DEPS_VENV_H

#include <jansson.h>

#include "base/base.h"

#define CELL__VENV_KEY_SIZE 17      /* 16 hex digits */
#define CELL__VENV_HASH_SIZE 65
#define CELL__VENV_VERSION_SIZE 48  /* "cpython-3.11.2" */
#define CELL__VENV_DISTS 20000u     /* packages in one site-packages */
#define CELL__VENV_ENTRIES 200000u  /* files and folders in a hostile one */
#define CELL__VENV_SETTINGS_BYTES 65536u /* pyvenv.cfg */
#define CELL__VENV_SCRIPT_BYTES (1024u * 1024u) /* a file in bin/ that may name its venv */
#define CELL__VENV_CONFIGURED_BYTES (4u * 1024u * 1024u) /* the configured packages, as we wrote them */
#define CELL__VENV_ANSWER_BYTES 65536u /* an interpreter's description of itself */
#define CELL__VENV_PRIVATE "private-"
#define CELL__VENV_PROJECT ".workcell-project" /* the storage whose packages it holds, for `workcell cache` */
#define CELL__VENV_LOCK "lock"      /* of a project's folder of the sandbox */

/* ---- interpreters ---- */

/* The absolute name of a program, looked up in path when it has no slash; NULL with errno. */
char *cell__venv_find_program(const char *name, const char *path);
/* Whether it begins with "#!". */
bool cell__venv_is_script(const char *file);
/* The interpreter's file, and a key that changes when that file does.  0, or -1 with errno. */
int cell__venv_identify(const char *python, char **ret_real, char ret_stamp[static CELL__VENV_KEY_SIZE]);
/* "<implementation>-<major>.<minor>.<micro>" and nothing else. */
bool cell__venv_version_ok(const char *version);
bool cell__venv_version_load(const char *dir, const char *stamp, char out[static CELL__VENV_VERSION_SIZE]);
void cell__venv_version_save(const char *dir, const char *stamp, const char *version);
/*
 * An interpreter's last description of itself and its files, for the program of this name, which may be a venv's. load: 0, or -1 when
 * nothing is known or a described file has changed since.
 */
int cell__venv_answer_load(const char *dir, const char *python, const char *stamp, struct cell__buf *out);
void cell__venv_answer_save(const char *dir, const char *python, const char *stamp, const struct cell__buf *answer);
void cell__venv_key(const char *real, const char *version, const char *root, char out[static CELL__VENV_KEY_SIZE]);

/* ---- folders ---- */

/* Makes path with all above it, for this user alone.  0, or -1 with errno. */
int cell__venv_mkdir_all(const char *path);
/* Removes a folder and all in it, following no symbolic link.  0, or -1 with errno. */
int cell__venv_remove_tree(const char *path);
/* "<parent>/.<name>.<kind>-<hex>" or, without hex, "<parent>/.<name>.<kind>"; NULL: out of memory. */
char *cell__venv_sibling(const char *dir, const char *kind, bool unique);
/* 0: *ret_fd holds the lock in this file until it is closed.  1: another process holds it.  -1: error. */
int cell__venv_lock(const char *file, int *ret_fd, struct cell_error *err);
/* With the lock: removes temporary folders that killed processes left beside it. */
void cell__venv_sweep(const char *dir);
/* Removes private venvs below parent whose owners have ended; of the sandbox: each is in a folder with its lock. */
void cell__venv_sweep_private(const char *parent, bool sandbox);

enum cell__venv_state {
	CELL__VENV_ABSENT,
	CELL__VENV_FOREIGN, /* the folder is not a venv */
	CELL__VENV_PRESENT,
};
enum cell__venv_state cell__venv_inspect(const char *dir, bool hostile);
bool cell__venv_is_ours(const char *dir);
/* These, and cell__venv_set_synced() and its like below, are about a folder of notes, which may be the venv itself. */
bool cell__venv_is_busy(const char *notes);
/* 0, or -1 with errno. */
int cell__venv_set_busy(const char *notes, bool busy);
/* Whether the path to its interpreter is unchanged since its creation.  Packages can bring a bin/python or pyvenv.cfg. */
int cell__venv_set_seal(const char *notes, const char *dir);
bool cell__venv_is_sealed(const char *notes, const char *dir);
/*
 * uv locks a file in the venv, and every process that can read a file can hold its lock. Replaces that file by a link to `file`, which
 * kernels cannot see. 0, or -1 with errno.
 */
int cell__venv_move_lock(const char *dir, const char *file);
/* Small files of ours. */
int cell__venv_write(const char *dir, const char *name, const void *bytes, size_t size);

/* The same in a folder whose name confined code may have given to a link. */
int cell__venv_write_hostile(const char *dir, const char *name, const void *bytes, size_t size);

/*
 * With the lock: moves the complete venv in made to dir, rewrites its scripts to name dir, and notes that we made it; removes the previous
 * venv. Leaves nothing behind when it fails.
 */
int cell__venv_adopt(const char *made, const char *dir, const char *notes, struct cell_error *err);
/* With the lock. */
int cell__venv_remove(const char *dir);

/* ---- venv_make.c ---- */

/* Whether a venv of this version can be created without running a program.  base: the interpreter's program, not that of a venv. */
bool cell__venv_can_make(const char *version, const char *base);
/* Creates it, in a folder that does not exist yet.  0, or -1 with errno and a partial result. */
int cell__venv_make(const char *made, const char *version, const char *base, const char *prompt);

/* ---- packages in it ---- */

/* <dir>/lib/python<major.minor>/site-packages; NULL with errno if the folder does not exist. */
char *cell__venv_site(const char *dir, const char *version, bool hostile);
/* "name==version" for every package installed in dir, site being within; names as in PEP 503, sorted, each with a newline. */
int cell__venv_listing(const char *dir, const char *site, bool hostile, struct cell__buf *out, struct cell_error *err);
/* A regular file of at most max bytes in a folder, which and whose parents are ours; no link is followed.  0, or -1 with errno. */
int cell__venv_read(const char *dir, const char *name, size_t max, struct cell__buf *out);
/* The version in a listing, not terminated; NULL: it is not installed. */
const char *cell__venv_listed(const struct cell__buf *listing, const char *name, size_t name_size, size_t *ret_size);
/* Records that everything configured (an array of specifiers) was installed. The other function reads that. */
int cell__venv_set_synced(const char *notes, const struct cell__buf *listing, json_t *configured);
bool cell__venv_is_synced(const char *notes, const struct cell__buf *listing, json_t *configured);
/* Records the configured specifiers. The other function returns them as an array, empty if nothing is known. */
int cell__venv_set_configured(const char *dir, json_t *configured);
int cell__venv_configured(const char *dir, json_t **ret_configured);

#endif
