/*
 * Enforces the limit on the total size of a writable workspace and the other writable folders of a policy: they are measured on
 * libuv's pool while cells run, and at long intervals between them.  Belongs to the loop's thread.
 *
 *     quiet ──a cell begins──▶ due ──▶ measuring ──▶ due again, later the longer it took ...
 *                                         └── over the limit: over(), and cells wait for a new measurement
 *
 * It is not a hard quota: between two measurements code writes as fast as the disk allows (docs/limits.md).  Folders
 * are held by descriptors, and no links in them are followed.  File systems mounted below them count, unless they are mounted
 * read-only.  A folder that cannot be read, or that is deeper than CELL_LIMIT_WORKSPACE_DEPTH, counts as over the limit,
 * because it may contain anything.
 */
#ifndef CELL_SESSION_QUOTA_H
#define CELL_SESSION_QUOTA_H

#include "loop/loop.h"

struct cell__quota;

struct cell__quota_config {
	struct cell__loop *loop;
	const char *const *folders; /* or files; missing ones count as soon as they exist.  Copied */
	size_t n_folders;
	uint64_t max_bytes, max_files; /* 0: none */
	/* A measurement found it over the limit. */
	void (*over)(void *owner);
	/* The measurement that cell__quota_admit() waits for is done. */
	void (*measured)(void *owner);
	void *owner;
};

struct cell__excess {
	const char *limit; /* "workspace", "workspace_files" */
	uint64_t max, used;
	const char *reason; /* NULL, or why it could not be measured */
};

/* Any thread but the loop's: opens the folders. */
int cell__quota_create(const struct cell__quota_config *config, struct cell__quota **ret_quota, struct cell_error *err);
/* Before anything else but destroy; NULL is allowed. */
void cell__quota_start(struct cell__quota *quota);
/* No callbacks come any more; NULL is allowed. */
void cell__quota_destroy(struct cell__quota *quota);
/* Another owner gets its callbacks.  NULL is allowed. */
void cell__quota_hand_over(struct cell__quota *quota, void *owner);
/* A cell begins, or ends. */
void cell__quota_touch(struct cell__quota *quota, bool running);
/* 0: a cell may start; 1: not before measured(); -1: a current measurement is over the limit. */
int cell__quota_admit(struct cell__quota *quota, struct cell__excess *ret_excess);
/* Somebody else wrote to the folders: measured soon.  NULL is allowed. */
void cell__quota_changed(struct cell__quota *quota);
/* Bytes that may still be written according to the last measurement; UINT64_MAX: no limit, also for NULL. */
uint64_t cell__quota_left(const struct cell__quota *quota);
/* The result of the last measurement. */
const struct cell__excess *cell__quota_excess(const struct cell__quota *quota);

#endif
