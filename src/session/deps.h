/*
 * The `deps` namespace: packages of a project, kept in its requirements.txt and installed into a venv of its own.
 * Belongs to the loop's thread; installers run as programs of the spawner.
 */
#ifndef CELL_SESSION_DEPS_H
#define CELL_SESSION_DEPS_H

#include "loop/call.h"
#include "spawn/hub.h"
#include "store/store.h"

struct cell__deps;

struct cell__deps_options {
	struct cell__loop *loop;
	struct cell__spawn_hub *hub;
	struct cell__store *store;   /* outlives this */
	const char *python;
	const char *venv_dir;        /* NULL: one per project under cache_dir */
	const char *cache_dir;
	const char *index_url;
	const char *wheel_dir;
	const char *path;            /* PATH in which uv is looked for */
	bool allow_runtime;
};

int cell__deps_create(const struct cell__deps_options *opts, struct cell__deps **ret_deps, struct cell_error *err);
/* Ends calls under way with CELL_E_CLOSED; closed() comes from a later turn of the loop. */
void cell__deps_close(struct cell__deps *deps, void (*closed)(void *arg), void *arg);
/* deps.list, deps.add {package}, deps.remove {package}, deps.sync; may answer before it returns. */
void cell__deps_handle(struct cell__deps *deps, struct cell__call *call);
/* The site-packages folder of the venv when it exists already, else NULL: for sessions that open. */
const char *cell__deps_site(struct cell__deps *deps);
/* The venv's bin folder when it exists already, else NULL. */
const char *cell__deps_bin(struct cell__deps *deps);

#endif
