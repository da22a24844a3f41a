/*
 * The executor "kubernetes": session servers in pods of a cluster, see kubernetes.c.
 *
 * An owner is this program at one cluster: its access, its lease, and the pods that it has claimed.  Everything is the loop's thread's.
 */
#ifndef CELL_EXECUTORS_KUBERNETES_H
#define CELL_EXECUTORS_KUBERNETES_H

#include "executors/executor.h"
#include "executors/kubernetes/api.h"
#include "executors/kubernetes/pod.h"

/* ---- options.c ---- */

/* Options of a session that are this executor's own. */
struct cell__kubernetes_own {
	char *config;    /* a JSON object; the members of the cluster alone are also `cluster` */
	char *cluster;   /* sessions with the same one have the same owner */
	char *workspace; /* sessions with the same one share a pod; NULL: each has its own */
	struct cell__remote_options *remote;
};

/* For the vtable. */
int cell__kubernetes_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err);
void cell__kubernetes_free_options(void *state);
int cell__kubernetes_check(const struct cell_session_options *opts, struct cell_error *err);

/* ---- owners and their pods ---- */

#define CELL_KUBE_LEASE_SECONDS 30 /* how long a program that does not renew its lease keeps its pods */

struct cell__kube_all {
	struct cell__executor_host *host; /* first */
	struct cell__kube_owner *first;
	void (*done)(void *arg); /* not NULL: all are being ended */
	void *done_arg;
};

enum cell__kube_pod_state {
	CELL_KUBE_WAITING,  /* for its owner's access and lease */
	CELL_KUBE_FINDING,  /* an idle pod */
	CELL_KUBE_CLAIMING, /* it */
	CELL_KUBE_READY,
	CELL_KUBE_FAILED,   /* kernels that use it end; no others come */
	CELL_KUBE_REMOVING,
};

struct cell__kube_slot {
	struct cell__kube_pod *pod;
	struct cell__kernel *kernel;
	struct cell__kube_slot *next;
};

struct cell__kube_pod {
	struct cell__kube_owner *owner;
	struct cell__kube_pod *next;
	enum cell__kube_pod_state state;
	char *key; /* the session or workspace it is for, with its options */
	json_t *config;
	struct cell__kube_slot *slots;
	struct cell__kube_request *request;
	uv_timer_t timer;
	void (*step)(struct cell__kube_pod *pod); /* after the pause */
	int64_t began_us, pause_ms;
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE]; /* "": none is claimed */
	char claim[CELL_KUBE_NAME_SIZE];                         /* the SandboxClaim; "": none */
	char claimed_token[CELL_KUBE_TOKEN_SIZE];
	char *url, *receipt;
	json_t *found;    /* a list of idle pods, or the pod that is being claimed */
	bool is_patching; /* the request is the claim: its outcome must be known */
	bool has_listed;  /* in the list of the owner's pods that is being read */
	struct cell_error err; /* FAILED: why */
};

struct cell__kube_owner {
	struct cell__kube_all *all;
	struct cell__kube_owner *next;
	char *key;
	json_t *config;
	struct cell__http *http; /* borrowed */
	struct cell__kube_access access; /* url NULL: not read yet */
	struct cell__kube_pod *pods;
	/* One job on the pool or one request about the lease at a time. */
	bool busy, is_due, is_closing;
	struct cell__kube_request *request;
	uv_work_t work;
	struct cell__kube_access read;
	struct cell_error read_err;
	void (*then)(struct cell__kube_owner *owner);
	uv_timer_t timer;      /* renews the lease, and looks for those that others left */
	bool has_timer;
	unsigned ticks;
	char lease[64], lease_uid[CELL_KUBE_UID_SIZE]; /* lease_uid "": there is none */
	json_t *others;        /* leases of others: name -> {version, since_us} */
	json_t *stale;         /* of these, those to be removed */
	size_t removing;
	bool has_warned;
	/* watch.c */
	struct cell__kube_request *watching;
	uv_timer_t watch_timer;
	struct cell__buf line;
	char version[64];      /* of the list that the watch goes on from */
	int open_handles;
};

#define CELL_KUBE_LOG(owner, level, ...) (owner)->all->host->log((owner)->all->host->log_arg, level, __VA_ARGS__)

/* owner.c: the owner of these options; NULL: err has the reason. */
struct cell__kube_owner *cell__kube_owner_of(struct cell__kube_all *all, const char *cluster, struct cell_error *err);
/* Some pods are WAITING: reads the access anew, makes a lease if there is none, then starts them. */
void cell__kube_owner_turn(struct cell__kube_owner *owner);
/* Ends it, when all its pods have gone. */
void cell__kube_owner_close(struct cell__kube_owner *owner);
/* A pod has gone. */
void cell__kube_owner_check(struct cell__kube_owner *owner);

/* claim.c */
struct cell__kube_pod *cell__kube_pod_create(struct cell__kube_owner *owner, const char *key, const char *config, struct cell_error *err);
void cell__kube_pod_find(struct cell__kube_pod *pod);
/* Has claimed it: checks it and connects the kernels. description: of the API server. */
void cell__kube_pod_take(struct cell__kube_pod *pod, const json_t *description);
void cell__kube_pod_fail(struct cell__kube_pod *pod, const struct cell_error *err);
void cell__kube_pod_out_of_memory(struct cell__kube_pod *pod);
void cell__kube_pod_remove(struct cell__kube_pod *pod);
/* Once more after a while, or never again because it has taken too long; what: "no idle pod ...", for the error. */
void cell__kube_pod_again(struct cell__kube_pod *pod, void (*step)(struct cell__kube_pod *pod), const char *what);
/* A request of the pod; body is taken over. Without memory the pod has failed. */
void cell__kube_pod_ask(struct cell__kube_pod *pod, const char *method, const char *type, char *body,
			void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err), const char *path, ...)
	__attribute__((format(printf, 6, 7)));

/* sandbox_claim.c: the same by a SandboxClaim of agent-sandbox, where config names a SandboxWarmPool. */
void cell__kube_sandbox_claim(struct cell__kube_pod *pod);

/* watch.c: whether pods still live.  Starts when there is one, and goes on until the owner ends. */
void cell__kube_watch_start(struct cell__kube_owner *owner);
void cell__kube_watch_stop(struct cell__kube_owner *owner);

/* kubernetes.c: the kernels of a pod get its address, or the reason why there is none. */
void cell__kubernetes_connect(struct cell__kube_pod *pod);
void cell__kubernetes_refuse(struct cell__kube_pod *pod);

#endif
