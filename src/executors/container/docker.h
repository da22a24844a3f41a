/*
 * Requests to an engine that speaks Docker's API (Docker, Podman): over its Unix socket, or TCP.  Loop's thread.
 *
 * Paths have no version in them: the engine answers with its own newest, and what we ask for is in all of them.
 */
#ifndef CELL_EXECUTORS_CONTAINER_DOCKER_H
#define CELL_EXECUTORS_CONTAINER_DOCKER_H

#include <jansson.h>

#include "loop/http.h"

#define CELL_DOCKER_SOCKET_PATH "/var/run/docker.sock"
#define CELL_DOCKER_SOCKET "unix://" CELL_DOCKER_SOCKET_PATH

struct cell__docker {
	struct cell__http *http; /* borrowed */
	char *url, *socket;      /* socket NULL: TCP */
};

struct cell__docker_call {
	const char *method, *path;
	const char *type;  /* of the body; NULL: JSON */
	char *body;        /* NULL: none; taken over, free()d at the end */
	size_t size;
	long timeout_ms;   /* 0: that of an ordinary request; -1: as long as something comes every now and then */
	/* What comes, piece by piece; then done() gets no answer.  May be NULL.  false: break off. */
	bool (*piece)(void *arg, const char *bytes, size_t size);
	/*
	 * Once, unless cancelled.  status 0: it came to none, and err says why; 400 and more: err has the engine's words.  answer
	 * may be NULL.  May make further calls.
	 */
	void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err);
	void *arg;
};

struct cell__docker_request;

/* address as DOCKER_HOST has it: unix://PATH, tcp://HOST:PORT or http://HOST:PORT; NULL: CELL_DOCKER_SOCKET. */
int cell__docker_init(struct cell__docker *docker, struct cell__http *http, const char *address, struct cell_error *err);
void cell__docker_finish(struct cell__docker *docker);
/* NULL: out of memory, and done() never comes. */
struct cell__docker_request *cell__docker_start(struct cell__docker *docker, const struct cell__docker_call *call);
void cell__docker_cancel(struct cell__docker_request *request);

#endif
