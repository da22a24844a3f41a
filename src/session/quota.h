/*
 * The limit on what a writable workspace holds, watched: the folder is measured on libuv's pool while cells run, and at long
 * intervals between them.  Belongs to the loop's thread.
 *
 *     quiet ──a cell begins──▶ due ──▶ measuring ──▶ due again, later the longer it took ...
 *                                         └── over the limit: over(), and cells wait for a new measurement
 *
 * It is no hard quota: between two measurements code writes as fast as the disk takes it (docs/limits.md).  The folder is
 * held by a descriptor, and nothing in it is followed: no links, no mounts.  A folder that cannot be read, or that lies deeper
 * than CELL_LIMIT_WORKSPACE_DEPTH, counts as over the limit, because anything may be in it.
 */
#ifndef CELL_SESSION_QUOTA_H
#define CELL_SESSION_QUOTA_H

#include "loop/loop.h"

struct cell__quota;

struct cell__quota_config {
	struct cell__loop *loop;
	const char *folder;
	uint64_t max_bytes, max_files; /* 0: none */
	/* A measurement found it over the limit. */
	void (*over)(void *owner);
	/* A measurement that cell__quota_admit() waits for has come. */
	void (*measured)(void *owner);
	void *owner;
};

struct cell__excess {
	const char *limit; /* "workspace", "workspace_files" */
	uint64_t max, used;
	const char *reason; /* NULL, or why it could not be measured */
};

int cell__quota_create(const struct cell__quota_config *config, struct cell__quota **ret_quota, struct cell_error *err);
/* No callbacks come any more; NULL is fine. */
void cell__quota_destroy(struct cell__quota *quota);
/* A cell begins, or ends. */
void cell__quota_touch(struct cell__quota *quota, bool running);
/* 0: a cell may begin; 1: not before measured(); -1: a measurement of just now says no. */
int cell__quota_admit(struct cell__quota *quota, struct cell__excess *ret_excess);
/* What the last measurement found. */
const struct cell__excess *cell__quota_excess(const struct cell__quota *quota);
/* Any thread: measures until a limit is passed.  True: one is, and ret_excess says which; else it says how much there is. */
bool cell__quota_measure(int folder_fd, uint64_t max_bytes, uint64_t max_files, struct cell__excess *ret_excess);

#endif
