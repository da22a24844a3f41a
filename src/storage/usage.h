/*
 * How much a storage holds, for those who may not fill it: code that is not trusted.  Measured once by listing the artifacts,
 * then counted along; deleting is not counted, so before anything is refused it is measured again.  Artifacts that are
 * being written are in no list and are counted apart.  Any thread.
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
	/* Of artifacts that are being written: let go of without the lock, which the pool holds while it lists. */
	_Atomic int64_t open_bytes, open_index_bytes, open_artifacts;
	pthread_mutex_t workflows; /* held while one is counted and made */
};

/* What one artifact that is being written takes. */
struct cell__taken {
	int64_t bytes, index_bytes, artifacts;
};

void cell__usage_init(struct cell__usage *usage);
void cell__usage_finish(struct cell__usage *usage);
/* The artifact takes so much more (index_bytes: description and metadata); CELL_E_LIMIT: there is no room. */
int cell__usage_take(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
		     const struct cell__taken *more, struct cell__taken *taken, struct cell_error *err);
/* It is in the storage now.  Waits for whoever measures. */
void cell__usage_keep(struct cell__usage *usage, struct cell__taken *taken);
/* It was given up.  Never waits. */
void cell__usage_drop(struct cell__usage *usage, struct cell__taken *taken);
/* May there be one workflow more?  0: yes, and nobody else makes one before cell__usage_workflow_made(). */
int cell__usage_begin_workflow(struct cell__usage *usage, struct cell__store *store, const struct cell__host_limits *max,
			       struct cell_error *err);
void cell__usage_workflow_made(struct cell__usage *usage);

#endif
