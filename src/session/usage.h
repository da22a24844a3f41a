/*
 * How much a storage holds, for those who may not fill it: code that is not trusted.  Measured once by listing the artifacts,
 * then counted along; deleting is not counted, so before anything is refused it is measured again.  Any thread.
 */
#ifndef CELL_SESSION_USAGE_H
#define CELL_SESSION_USAGE_H

#include <pthread.h>

#include "store/store.h"

struct cell__usage {
	pthread_mutex_t lock; /* guards all below */
	bool known;
	int64_t bytes, index_bytes;
	size_t artifacts;
};

void cell__usage_init(struct cell__usage *usage);
void cell__usage_finish(struct cell__usage *usage);
/* So much more is going to be kept; CELL_E_LIMIT: the storage is full.  index_bytes: descriptions and metadata. */
int cell__usage_take(struct cell__usage *usage, struct cell__store *store, size_t artifacts, int64_t bytes, int64_t index_bytes,
		     struct cell_error *err);
/* May there be one workflow more? */
int cell__usage_check_workflows(struct cell__store *store, struct cell_error *err);

#endif
