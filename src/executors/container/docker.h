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
	long timeout_ms;   /* 0: the default of a request; -1: no limit while data keeps arriving */
	/* Receives the answer in pieces; then done() gets no answer.  May be NULL.  Return false to abort. */
	bool (*piece)(void *arg, const char *bytes, size_t size);
	/*
	 * Called once, unless cancelled.  status 0: no answer, and err has the reason; 400 and more: err has the engine's message.  answer
	 * may be NULL.  May make further calls.
	 */
	void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err);
	void *arg;
};

struct cell__docker_request;

/* address as DOCKER_HOST has it: unix://PATH, tcp://HOST:PORT or http://HOST:PORT; NULL: CELL_DOCKER_SOCKET. */
int cell__docker_init(struct cell__docker *docker, struct cell__http *http, const char *address, struct cell_error *err);
void cell__docker_finish(struct cell__docker *docker);
/* NULL: out of memory, and done() is never called. */
struct cell__docker_request *cell__docker_start(struct cell__docker *docker, const struct cell__docker_call *call);
void cell__docker_cancel(struct cell__docker_request *request);

#endif
