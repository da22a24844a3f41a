/*
 * A storage folder that code in a container can write to, except for two folders that are mounted read-only there.
 *
 *     <base>/tools/                    the operator's, as in every storage
 *     <base>/.host/                    content that the host trusts; while it exists, other content is not trusted
 *     <base>/.host/workflows.json      {"NAME" or "workspaces/ID/NAME": SHA-256 of the source that a person kept or trusted}
 *     <base>/.host/requirements.txt    the packages that the host's people configured
 *     <base>/.host/cache/, cache-ID/   instead of .cache/: SQLite would replay a journal that code put beside a database
 *
 * A workflow whose source is not in workflows.json is returned with the mark of confined code (store.h), whatever its first line.
 * Inside a container (cell__store_set_confined()) the other folders count: .host is only read, for its packages.  Any thread.
 */
#ifndef CELL_STORAGE_SHARED_H
#define CELL_STORAGE_SHARED_H

#include "storage/file.h"

#define CELL__SHARED_FOLDER ".host"

/* *ret_fd: the folder .host, if this storage has one and we are outside; else -1. CELL_E_INVALID: a file or link has its name. */
int cell__shared_open(struct cell__store *store, int *ret_fd, struct cell_error *err);
/* Puts the mark before an untrusted source. */
int cell__shared_mark(struct cell__store *store, const char *name, struct cell__buf *source, struct cell_error *err);
/* A person stores this source; NULL: the workflow was deleted.  Call before the file itself changes. */
int cell__shared_vouch(struct cell__store *store, const char *name, const char *source, size_t size, struct cell_error *err);
/* The folder for caches, made if it is missing; -1: not possible. */
int cell__shared_open_cache(struct cell__store *store, bool *ret_shared);

#endif
