/*
 * Requests to the API server of a Kubernetes cluster, and how this program reaches it.  Loop's thread, except where it says otherwise.
 *
 * The connection is https:// with the certificates of the cluster's authority; http:// is for a proxy on this machine alone.
 */
#ifndef CELL_EXECUTORS_KUBERNETES_API_H
#define CELL_EXECUTORS_KUBERNETES_API_H

#include <jansson.h>

#include "loop/http.h"

/* Read from files that rotate: tokens of service accounts live an hour. */
struct cell__kube_access {
	char *url;
	char *token, *ca, *cert, *key; /* NULL: none; for ca: the system's */
	char *space;    /* the namespace */
	char *pool_key; /* of the tokens of pods (cell__kube_pod_token()) */
	bool is_local;  /* the API server is on this machine, so pods may be there as well */
};

/* Of the options (config, of cell__kube_describe()).  Reads files: for the pool. */
int cell__kube_access_read(const json_t *config, struct cell__kube_access *ret_access, struct cell_error *err);
void cell__kube_access_finish(struct cell__kube_access *access);

struct cell__kube_call {
	const char *method, *path;
	const char *type; /* of the body; NULL: JSON */
	char *body;       /* NULL: none; taken over */
	bool streams;     /* no limit of time while something arrives */
	/* Receives the answer in pieces, if its status is 2xx; then done() gets no answer.  May be NULL.  Return false to abort. */
	bool (*piece)(void *arg, const char *bytes, size_t size);
	/*
	 * Called once, unless cancelled.  status 0: no answer, and err has the reason; 400 and more: err has the API server's message.  answer may
	 * be NULL.  May make further calls.
	 */
	void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err);
	void *arg;
};

#define CELL_KUBE_MERGE_PATCH "application/merge-patch+json"

struct cell__kube_request;
/* NULL: out of memory, and done() is never called. */
struct cell__kube_request *cell__kube_start(struct cell__http *http, const struct cell__kube_access *access,
					    const struct cell__kube_call *call);
/* NULL: nothing. */
void cell__kube_cancel(struct cell__kube_request *request);

#endif
