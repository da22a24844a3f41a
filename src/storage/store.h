/*
 * Storage: a folder, as below, or Redis (redis.h has its layout), behind one set of functions (backend.h).
 *
 * People can read, edit and commit the folder.
 *
 *     <base>/workflows/<name>.py        source as it was written; skills/ is read too
 *     <base>/workflows/.workflows.json  descriptions and times that the source does not carry
 *     <base>/artifacts/<name...>        payloads, sub-folders allowed
 *     <base>/artifacts/.artifacts.json  {"<name>": {"description", "created_at", "metadata": {..., "_data_type"}}}
 *     <base>/requirements.txt           deps; deps/requirements.txt is read too
 *     <root>/requirements-sandbox.json  packages that untrusted principals added, and the lock of all they get (depbook.c)
 *     <root>/requirements-locked.json   the lock if they may not add packages
 *     <base>/.cache/                    search indexes and tool-results.json; rebuilt if they are deleted
 *     <base>/.host/                     content that the host trusts, if containers can write to the rest (shared.h)
 *     <base>/workspaces/<id>/           workflows, artifacts and cache of a workspace; deps are the base's
 *
 * Everything is synchronous and may be called from any thread and from several processes on one folder at once.
 * Writers take a lock per folder and re-read under it; a file and its entry change together, also when the writer is
 * killed.  Opening a store reads nothing; the first write makes the folders.
 *
 * Errors: CELL_E_INVALID for names and sources that are refused, CELL_E_NOT_FOUND, CELL_E_LIMIT for exceeded bounds,
 * CELL_E_IO with errno in `sys` for the rest (ENOSPC, EROFS, EEXIST: the name is taken, EUCLEAN: an index cannot be
 * parsed, ETIMEDOUT: another process holds the lock).  The previous content is then unchanged.
 */
#ifndef CELL_STORAGE_STORE_H
#define CELL_STORAGE_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "storage/search.h"

/* ---- limits ---- */

#define CELL__STORE_NAME_BYTES 1024u                    /* an artifact's name with its folders */
#define CELL__STORE_NAME_DEPTH 32u                      /* folders in it */
#define CELL__STORE_DESCRIPTION_BYTES (64u * 1024u)
#define CELL__STORE_METADATA_BYTES (1024u * 1024u)      /* as JSON */
#define CELL__STORE_DATA_TYPE_BYTES 64u
#define CELL__STORE_INDEX_BYTES (64u * 1024u * 1024u)
#define CELL__STORE_INDEX_KEPT (8u * 1024u * 1024u)     /* parsed, in memory, between two operations */
#define CELL__STORE_LIST 100000u                        /* artifacts, workflows in one listing */
#define CELL__STORE_SOURCE_BYTES (1024u * 1024u)        /* one workflow */
#define CELL__STORE_WORKFLOW_NAME_BYTES 128u
#define CELL__STORE_DEPS_BYTES (1024u * 1024u)          /* requirements.txt */
#define CELL__STORE_DEPS 1000u                          /* packages in it */
#define CELL__STORE_DEP_BYTES 256u                      /* one of them */
#define CELL__DEPBOOK_BYTES (4u * 1024u * 1024u)        /* requirements-sandbox.json */
#define CELL__DEPBOOK_LOCKED 5000u                      /* packages that it locks */
#define CELL__DEPBOOK_HASHES 500u                       /* files of one version */
#define CELL__STORE_TOOL_NAME 128u                      /* bytes of a tool's name */
#define CELL__LEARNED_TOOLS 1000u                       /* whose results have learned types */
#define CELL__LEARNED_NAME 256u                         /* bytes of TOOL.CALLABLE */
#define CELL__STORE_LOCK_MS 10000                       /* waiting for a folder's lock */
#define CELL__STORE_TEMP_AGE_S 600                      /* a temporary file without writer is left over after that */

/* ---- store ---- */

struct cell__store;

/*
 * Makes base if it is missing. workspace_id NULL: no workspace; else 1-128 of A-Z a-z 0-9 _ -. The path of base may contain links; below
 * base, links are not followed and other mounts are not entered.
 */
int cell__store_open(const char *base, const char *workspace_id, struct cell__store **ret_store, struct cell_error *err);
/*
 * The code of a container will be able to write to this folder: its present content is recorded as trusted, and from now on only content
 * that a person keeps is trusted (shared.h). This cannot be undone.
 */
int cell__store_share(const char *base, struct cell_error *err);
/* This process is in such a container itself: everything it keeps counts as made by confined code. Call before the store is used. */
void cell__store_set_confined(struct cell__store *store);
bool cell__store_is_confined(const struct cell__store *store);
/* NULL is allowed.  No call on it may be running; its readers and writers must have been closed. */
void cell__store_close(struct cell__store *store);
/* Whether the store can be used now: the folder is there and can be written to, or Redis answers. */
int cell__store_check(struct cell__store *store, struct cell_error *err);
/* The identity of this store: its folder (base, or the workspace's), or a URL without secrets, with prefix and workspace. */
const char *cell__store_root(const struct cell__store *store);
/* The folder, if the store is one; else NULL. */
const char *cell__store_folder(const struct cell__store *store);
/* The folder with everything, also that of the other workspaces; NULL: the store is not a folder. */
const char *cell__store_base(const struct cell__store *store);
/* The location of its artifacts: a folder, or the prefix of their keys. */
const char *cell__store_artifacts_path(const struct cell__store *store);
/* Before the first search: sets the folder for the search index of a store that is not a folder. */
int cell__store_use_cache(struct cell__store *store, const char *cache_dir, struct cell_error *err);
/*
 * True, once, when something was repaired on the way of a call that succeeded (an index set aside while saving):
 * worth a line in a log.
 */
bool cell__store_take_notice(struct cell__store *store, struct cell_error *ret_notice);

/* ---- tools ---- */

/*
 * Definitions of tools in the storage, {name: JSON text, or null if it is not an object}; they are untrusted and must still be checked.
 * CELL_E_INVALID: this storage is a folder, whose tools are files that another module reads.
 */
int cell__store_tools(struct cell__store *store, json_t **ret_tools, struct cell_error *err);

/*
 * Learned types of results (wire/shape.h), {"TOOL.CALLABLE": entry}, of this workspace.  Code can write to none of their places: a folder
 * keeps them in .cache, or in .host/cache where containers can write to the rest, and Redis in a string.
 */
/* All of them; entries that are damaged are left out.  A confined process has none. */
int cell__learned_load(struct cell__store *store, json_t **ret_book, struct cell_error *err);
/* Adds an observation.  *ret_entry: the tool's entry afterwards, new.  CELL_E_LIMIT: there are too many tools. */
int cell__learned_note(struct cell__store *store, const char *name, const json_t *shape, json_t **ret_entry, struct cell_error *err);

/* ---- artifacts ---- */

/*
 * The description of an artifact, a JSON object: name, path, description, created_at, metadata (with _data_type), size, and derived: true
 * if the file is in no index, so that type and time are taken from the file itself (its type is then a guess from the name and the first
 * bytes).
 */

struct cell__artifact_writer;

/* Begins a file beside the final one; sub-folders are made. */
int cell__artifact_begin(struct cell__store *store, const char *name, struct cell__artifact_writer **ret_writer, struct cell_error *err);
/* After an error only cell__artifact_abort() makes sense. */
int cell__artifact_write(struct cell__artifact_writer *writer, const void *bytes, size_t size, struct cell_error *err);
/*
 * Makes it the artifact, durably.  data_type is "text", "json", "bytes", "dataframe", ...; description and metadata
 * (an object, borrowed) may be NULL; ret_info may be NULL.  The writer is gone afterwards, also after an error.
 */
int cell__artifact_commit(struct cell__artifact_writer *writer, const char *data_type, const char *description, json_t *metadata,
			  json_t **ret_info, struct cell_error *err);
void cell__artifact_abort(struct cell__artifact_writer *writer); /* NULL is allowed */

struct cell__artifact_reader;

/* The reader keeps the version it opened, even if it is replaced or deleted in between. */
int cell__artifact_open(struct cell__store *store, const char *name, struct cell__artifact_reader **ret_reader, struct cell_error *err);
json_t *cell__artifact_reader_info(struct cell__artifact_reader *reader); /* borrowed */
int64_t cell__artifact_reader_size(const struct cell__artifact_reader *reader);
/* The number of bytes read: fewer than size only at the end.  -1 on error. */
ssize_t cell__artifact_pread(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset, struct cell_error *err);
/* The same for cached data only, without waiting: -1 when some of it is not cached. For threads that must not block. */
ssize_t cell__artifact_pread_cached(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset);
void cell__artifact_reader_close(struct cell__artifact_reader *reader); /* NULL is allowed */

/* Begin, write and commit in one. */
int cell__artifact_save_whole(struct cell__store *store, const char *name, const void *bytes, size_t size, const char *data_type,
			      const char *description, json_t *metadata, json_t **ret_info, struct cell_error *err);
/* All of it; free() the bytes, which are NULL for an empty artifact. CELL_E_LIMIT: it has more than max_bytes. */
int cell__artifact_load_whole(struct cell__store *store, const char *name, int64_t max_bytes, json_t **ret_info, void **ret_bytes,
			      size_t *ret_size, struct cell_error *err);

/* CELL_E_NOT_FOUND if it does not exist. */
int cell__artifact_get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err);
/* An array, sorted by name; includes files that a person put there, except those whose name begins with a dot. */
int cell__artifact_list(struct cell__store *store, json_t **ret_list, struct cell_error *err);
int cell__artifact_exists(struct cell__store *store, const char *name, bool *ret_exists, struct cell_error *err);
/* Succeeds if it does not exist; ret_deleted may be NULL. */
int cell__artifact_delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err);

/* ---- workflows ---- */

/*
 * The description of a workflow, a JSON object: name, description, params {name: type}, parameters [{name, type, description, required,
 * default}], async, created_at, path; get and create add source.
 */

/*
 * A workflow is code that others run. The source of a workflow that confined code made begins with this line, which moves with the source
 * between storages. Unconfined code does not run such workflows.
 */
#define CELL__WORKFLOW_MARK "# workcell: untrusted, made by confined code\n"
bool cell__workflow_is_marked(const char *source, size_t size);

int cell__workflow_check_name(const char *name, struct cell_error *err);
/* description NULL or "": the first line of the docstring.  ret_info may be NULL. */
int cell__workflow_create(struct cell__store *store, const char *name, const char *source, size_t source_size, const char *description,
			  bool overwrite, json_t **ret_info, struct cell_error *err);
int cell__workflow_get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err);
/*
 * An array, sorted by name. Files that are not workflows are left out and reported in *ret_problems (may be NULL): an array of {name, path,
 * message}.
 */
int cell__workflow_list(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err);
/* Best first, each with its score. */
int cell__workflow_search(struct cell__store *store, const char *query, size_t limit, json_t **ret_list, struct cell_error *err);

/* Searching by meaning: the index has vectors of this model from now on.  Once, before the first search. */
int cell__store_use_vectors(struct cell__store *store, const char *model, struct cell_error *err);
struct cell__meaning {
	const float *vector; /* of the query; NULL: by words alone */
	size_t dimensions;
	/* results */
	size_t missing; /* workflows that have no vector yet */
	bool fused; /* the vector has taken part in the ranking */
	struct cell__vector_counts counts;
};
/* As cell__workflow_search(), by words and by meaning. Reads cached vectors first. */
int cell__workflow_search_by(struct cell__store *store, const char *query, size_t limit, struct cell__meaning *meaning, json_t **ret_list,
			     struct cell_error *err);
/* Calls fn with the workflows' search index, opened if necessary, without a refresh. fn must not keep it. */
int cell__workflow_with_search(struct cell__store *store, int (*fn)(void *arg, struct cell__search *search, struct cell_error *err),
			       void *arg, struct cell_error *err);
/* The path of a cache file, at least PATH_MAX long; makes the folder. -1: not possible. */
int cell__store_cache_path(struct cell__store *store, const char *name, char *out);

/* ret_deleted may be NULL. */
int cell__workflow_delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err);

/* ---- deps ---- */

/* Checks one specifier and normalises it: "My.Pkg [x] >= 2.0, <3" becomes "my-pkg[x]>=2.0,<3". */
int cell__dep_normalise(const char *spec, char out[static CELL__STORE_DEP_BYTES + 1], struct cell_error *err);
/* The name part of a normalised specifier: how many bytes of it. */
size_t cell__dep_base_size(const char *spec);
/* Normalised specifiers of the same package. */
bool cell__dep_same_package(const char *a, const char *b);
/*
 * An array of normalised specifiers, sorted. Refused lines (options, URLs, markers, ...) are reported in *ret_problems (may be NULL): an
 * array of {file, line, text, message}.
 */
int cell__deps_list(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err);
/* Takes the place of any specifier of the same package. */
int cell__deps_add(struct cell__store *store, const char *spec, struct cell_error *err);
/* The same for an array of normalised specifiers, each of another package: all of them or none. */
int cell__deps_add_all(struct cell__store *store, const json_t *specs, struct cell_error *err);
/* By package; version and extras are ignored.  ret_removed may be NULL. */
int cell__deps_remove(struct cell__store *store, const char *spec, bool *ret_removed, struct cell_error *err);

/*
 * The book of untrusted principals: the packages that they added, apart from those that the host's people configured, and the
 * exact versions and hashes of everything that was installed for them.
 *
 *     {"packages": ["six>=1"],                       added by them
 *      "resolved": ["six>=1", "attrs"],              specifiers that `locked` was made for, the host's among them
 *      "locked": {"six": ["1.16.0", SHA-256, ...]}}  by name: the version, and the hashes of its wheels
 *
 * Every workspace has its own book.
 */
enum cell__book {
	CELL__BOOK_SANDBOX, /* they may add packages */
	CELL__BOOK_FIXED, /* they may not: packages that they added at other times do not count, and do not influence versions */
	CELL__BOOK_RESULTS, /* not of packages: the learned types of tools' results, below */
	CELL__BOOKS,
};
/* Its location, for display. */
const char *cell__book_name(enum cell__book which);
/* The packages of an untrusted principal's environment: its own, then the host's, sorted.  As cell__deps_list(), and the book. */
int cell__depbook_list(struct cell__store *store, enum cell__book which, json_t **ret_list, json_t **ret_problems, json_t **ret_book,
		       struct cell_error *err);
/* Every member is present and checked; the caller owns it. */
int cell__depbook_load(struct cell__store *store, enum cell__book which, json_t **ret_book, struct cell_error *err);
/*
 * Adds specs (an array; may be NULL) to the packages, `resolved` (an array) to the specifiers that are locked, and `locked`. A package that is locked
 * already in the same version keeps its hashes; CELL_E_INSTALL if the new hashes have none in common with them.
 */
int cell__depbook_add(struct cell__store *store, enum cell__book which, json_t *specs, json_t *resolved, json_t *locked,
		      struct cell_error *err);
/* The same on a book in memory, which is changed. */
int cell__depbook_merge(json_t *book, json_t *specs, json_t *resolved, json_t *locked, struct cell_error *err);
/*
 * Removes the named packages (an array of names): from `resolved`, from `packages` if they added them, from the lock if they were
 * uninstalled. ret_removed (may be NULL): one of them was among the packages.
 */
int cell__depbook_drop(struct cell__store *store, enum cell__book which, json_t *names, bool theirs, bool uninstalled, bool *ret_removed,
		       struct cell_error *err);
/* An entry of the lock: version and hashes are well-formed. */
bool cell__depbook_entry_ok(const char *name, json_t *entry);

#endif
