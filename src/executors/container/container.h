/* The executor "container": session servers in containers of Docker or Podman, see container.c. */
#ifndef CELL_EXECUTORS_CONTAINER_H
#define CELL_EXECUTORS_CONTAINER_H

#include "executors/container/docker.h"
#include "executors/executor.h"

/* Any thread: checks options (NULL: the defaults) and writes them as a JSON object, the same for the same options; free() it. */
int cell__container_describe(const struct cell_container_options *options, const char *const *env, char **ret_json, struct cell_error *err);

/* ---- config.c ---- */

/* The folder that engine and host share: socket and, until the server is up, its token and configuration. */
#define CELL_CONTAINER_FOLDER "/tmp/workcell-container-"
#define CELL_CONTAINER_DIALER "storage.sock" /* in it, with Redis: dialer.h */
#define CELL_CONTAINER_LABEL "workcell.owner"
#define CELL_CONTAINER_FOLDER_LABEL "workcell.folder"

struct cell__container_place {
	char folder[sizeof(CELL_CONTAINER_FOLDER) + 6]; /* "" : none */
	char token[4097];          /* "": none is asked for */
};
/* Those that look up paths run on the pool. */
int cell__container_make_place(const json_t *config, struct cell__container_place *ret_place, struct cell_error *err);
/* The server is up: removes the token, so that code inside can neither read nor replace it. */
void cell__container_close_place(const char *folder);
void cell__container_remove_place(const char *folder);
/*
 * Holds the current socket (O_PATH), even if code inside replaces it later, and checks that it belongs to the server, which is the
 * container's first process (pid; 0: unknown): an installed package may have run code that listens there.
 */
int cell__container_keep_socket(const char *path, pid_t pid, int *ret_fd, struct cell_error *err);
/* Why the container ended, from the end of its log, which has room for a NUL; else `otherwise`. */
void cell__container_read_log(char *log, size_t size, const char *otherwise, struct cell_error *ret_why);
/* How long its server may take to answer. */
int64_t cell__container_startup_ms(const json_t *config);
/* Adds to config what the answer to GET /info says of the engine.  -1: out of memory. */
int cell__container_take_info(json_t *config, const json_t *info);
/* Checks that the container is as requested.  found: the answer to GET /containers/ID/json. */
int cell__container_check(const json_t *config, const json_t *found, struct cell_error *err);
/* The body of POST /containers/create; free() it. */
char *cell__container_body(const json_t *config, const struct cell__container_place *place);
/* Members of the receipt; free() it. */
char *cell__container_receipt(const json_t *config, const char *id);
/* Whether this entry of GET /containers/json belongs to a process of this machine that has ended. */
bool cell__container_is_orphan(const json_t *entry);

/* ---- image.c ---- */

struct cell__image_build;
/*
 * Builds the image that config names.  line gets progress.  done(arg, err) is called once, err NULL: success.  NULL: out of memory, done()
 * is never called.
 */
struct cell__image_build *cell__image_build(struct cell__loop *loop, struct cell__docker *docker, const json_t *config,
					    void (*line)(void *arg, const char *line),
					    void (*done)(void *arg, const struct cell_error *err), void *arg);
void cell__image_cancel(struct cell__image_build *build);

/* ---- options.c ---- */

/* Options of a session that are this executor's own. */
struct cell__container_own {
	char *config; /* as cell__container_describe() writes it, with more for the server inside: sessions with the same one may share a container */
	struct cell__remote_options *remote;
};

/* For the vtable. */
int cell__container_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err);
void cell__container_free_options(void *state);

#endif
