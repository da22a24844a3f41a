/*
 * The size of a storage, to limit code that is not trusted. Measured once by listing the artifacts, then counted along. Deletions are not
 * counted, so it is measured again before a request is refused. Artifacts that are being written are in no list and are counted separately.
 * Any thread.
 */
#ifndef CELL_STORAGE_USAGE_H
#define CELL_STORAGE_USAGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "calls/principal.h"
#include "storage/store.h"

struct cell__usage {
	pthread_mutex_t lock; /* guards the next four */
	bool known;
	int64_t bytes, index_bytes, artifacts;
	/* Of artifacts that are being written: decreased without the lock, which the pool holds while it lists. */
	_Atomic int64_t open_bytes, open_index_bytes, open_artifacts;
	pthread_mutex_t workflows; /* held while one is counted and made */
};

/* The space that an artifact being written takes. */
struct cell__taken {
	int64_t bytes, index_bytes, artifacts;
};

void cell__usage_init(struct cell__usage *usage);
void cell__usage_finish(struct cell__usage *usage);
/* Reserves this many more bytes for the artifact (index_bytes: description and metadata); CELL_E_LIMIT: no room. */
int cell__usage_take(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
		     const struct cell__taken *more, struct cell__taken *taken, struct cell_error *err);
/* The artifact is in the storage now.  Waits for a running measurement. */
void cell__usage_keep(struct cell__usage *usage, struct cell__taken *taken);
/* It was given up.  Never waits. */
void cell__usage_drop(struct cell__usage *usage, struct cell__taken *taken);
/* Whether one more workflow is allowed.  0: yes, and no other can be created before cell__usage_workflow_made(). */
int cell__usage_begin_workflow(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
			       struct cell_error *err);
void cell__usage_workflow_made(struct cell__usage *usage);

#endif
