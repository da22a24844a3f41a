/*
 * Pods as the API server describes them: which one may be claimed, what it has to be like, and when it has ended.  Pure: takes JSON that is not
 * trusted to have any shape.
 */
#ifndef CELL_EXECUTORS_KUBERNETES_POD_H
#define CELL_EXECUTORS_KUBERNETES_POD_H

#include <jansson.h>

#include "base/base.h"

/* Labels of pods, and of the leases of the programs that have claimed them. */
#define CELL_KUBE_POOL "workcell.pool"
#define CELL_KUBE_STATE "workcell.state" /* idle or claimed */
#define CELL_KUBE_OWNER "workcell.owner" /* the name of a lease; on the lease itself: "lease" */

#define CELL_KUBE_NAME_SIZE 254
#define CELL_KUBE_UID_SIZE 65
#define CELL_KUBE_TOKEN_SIZE 65

/* A DNS subdomain, as the names of objects are: nothing in it is special in a path or a query. */
bool cell__kube_is_name(const char *text);
/* A value of a label, not empty. */
bool cell__kube_is_label(const char *text);
/* Copies metadata.name and metadata.uid.  false: they are missing or not valid. */
bool cell__kube_identity(const json_t *object, char ret_name[CELL_KUBE_NAME_SIZE], char ret_uid[CELL_KUBE_UID_SIZE]);

/* Whether the pod is ready to be claimed. */
bool cell__kube_pod_is_idle(const json_t *pod);
/* Whether it is ready, and not being deleted. */
bool cell__kube_pod_is_ready(const json_t *pod);
/* Whether it has ended, or its server has; then why. */
bool cell__kube_pod_has_ended(const json_t *pod, struct cell_error *ret_why);
/* Refuses a pod that confines the code less than a pod of a pool must, or less than the options (config) ask for. */
int cell__kube_pod_check(const json_t *config, const json_t *pod, struct cell_error *err);
/* The URL of its server.  is_local: addresses of this machine are allowed. */
int cell__kube_pod_url(const json_t *config, const json_t *pod, bool is_local, char **ret_url, struct cell_error *err);
/* The token that the server in the pod expects: HMAC-SHA256 of the pod's uid under the pool's key, which no pod has. */
int cell__kube_pod_token(const char *pool_key, const char *uid, char ret_token[CELL_KUBE_TOKEN_SIZE], struct cell_error *err);

/* The patch that claims it for the owner of a lease; free() it.  NULL: out of memory, or the pod has no resource version. */
char *cell__kube_claim_patch(const json_t *pod, const char *lease, const char *lease_uid);
/* Members of the receipt; free() it.  NULL: out of memory. */
char *cell__kube_receipt(const json_t *config, const json_t *pod);

/* A quantity like 512Mi, 1.5 or 500m in thousandths; -1: not one, or too large. */
int64_t cell__kube_quantity(const char *text);

#endif
