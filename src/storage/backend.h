/*
 * The parts of a storage, for the files of src/storage: the part that both backends share, and the functions in which
 * they differ.  store.c is the front: it checks names, picks the backend and dispatches.
 *
 *     store.h ──▶ store.c ──┬── file:  artifacts.c, workflows.c, workflow_index.c, depstore.c on file.c and index.c
 *                           └── redis: redis_artifacts.c, redis_workflows.c, redis_deps.c on redis.c and redis_conn.c
 *
 * Every function may be called from any thread, and may take long unless its comment says otherwise.
 */
#ifndef CELL_STORAGE_BACKEND_H
#define CELL_STORAGE_BACKEND_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/base.h"
#include "loop/watch.h"
#include "storage/pysource.h"
#include "storage/search.h"
#include "storage/store.h"

#define CELL__STORE_SNIFF_BYTES 4096u /* to guess an artifact's type from */

/* The head of a backend's own struct. */
struct cell__artifact_writer {
	struct cell__store *store;
};

struct cell__artifact_reader {
	const struct cell__backend *backend;
	int64_t size;
	json_t *info;
};

/* As the functions of store.h; names are checked, no ret_ is NULL but commit's. */
struct cell__artifact_ops {
	int (*begin)(struct cell__store *store, const char *name, struct cell__artifact_writer **ret_writer, struct cell_error *err);
	int (*write)(struct cell__artifact_writer *writer, const void *bytes, size_t size, struct cell_error *err);
	/* Does not free the writer. */
	int (*commit)(struct cell__artifact_writer *writer, json_t *entry, json_t **ret_info, struct cell_error *err);
	void (*abort)(struct cell__artifact_writer *writer); /* must not take long */
	int (*open)(struct cell__store *store, const char *name, struct cell__artifact_reader **ret_reader, struct cell_error *err);
	ssize_t (*pread)(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset, struct cell_error *err);
	/* offset and size are within the artifact; must not take long */
	ssize_t (*pread_cached)(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset);
	void (*close)(struct cell__artifact_reader *reader); /* must not take long; info is not its business */
	int (*get)(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err);
	int (*list)(struct cell__store *store, json_t **ret_list, struct cell_error *err);
	int (*exists)(struct cell__store *store, const char *name, bool *ret_exists, struct cell_error *err);
	int (*delete)(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err);
};

/* A workflow as stored.  If old is true, it is stored where older versions kept them (skills). */
struct cell__workflow_kept {
	struct cell__buf source;
	json_t *entry;       /* {description, created_at}; may be NULL */
	struct timespec when; /* if the entry has none; 0: unknown */
	bool old;
};

struct cell__workflow_ops {
	int (*read)(struct cell__store *store, const char *name, struct cell__workflow_kept *ret_kept, struct cell_error *err);
	/* info is its description. */
	int (*write)(struct cell__store *store, const char *name, const char *source, size_t size, json_t *entry, json_t *info,
		     bool overwrite, struct cell_error *err);
	int (*delete)(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err);
	/* Brings the search index up to date, with search_lock held and an index open. */
	int (*refresh)(struct cell__store *store, struct cell_error *err);
	/* A description of its location. */
	int (*path)(struct cell__store *store, const char *name, bool old, struct cell__buf *out);
};

struct cell__deps_ops {
	int (*list)(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err);
	/* Specifiers are normalised, here and below.  All of them (an array, each of another package) or none are added. */
	int (*add)(struct cell__store *store, const json_t *specs, struct cell_error *err);
	int (*drop)(struct cell__store *store, const char *spec, bool *ret_dropped, struct cell_error *err);
	/* A book (depbook.c) as text; a missing one is empty. */
	int (*read_book)(struct cell__store *store, enum cell__book which, struct cell__buf *out, struct cell_error *err);
	/* Replaces old by text. *ret_done false: the content was no longer old. */
	int (*write_book)(struct cell__store *store, enum cell__book which, const struct cell__buf *old, const struct cell__buf *text,
			  bool *ret_done, struct cell_error *err);
};

struct cell__backend {
	const char *name;
	/* Opens a store that is zero except for backend and locks; after an error `close` is called. Must not wait for a network. */
	int (*open)(struct cell__store *store, const char *base, const char *workspace_id, struct cell_error *err);
	void (*close)(struct cell__store *store);
	int (*check)(struct cell__store *store, struct cell_error *err);
	const struct cell__artifact_ops *artifacts;
	const struct cell__workflow_ops *workflows;
	const struct cell__deps_ops *deps;
	/* NULL: it keeps no tools. */
	int (*tools)(struct cell__store *store, json_t **ret_tools, struct cell_error *err);
};

extern const struct cell__backend cell__file_backend;
extern const struct cell__artifact_ops cell__file_artifacts;
extern const struct cell__workflow_ops cell__file_workflows;
extern const struct cell__deps_ops cell__file_deps;
extern const struct cell__backend cell__redis_backend;
extern const struct cell__artifact_ops cell__redis_artifacts;
extern const struct cell__workflow_ops cell__redis_workflows;
extern const struct cell__deps_ops cell__redis_deps;

/* An index as it was last read or written, valid while its file is the same one. Callers must not change it. Any thread. */
struct cell__index_cache {
	pthread_mutex_t lock; /* guards the two below */
	json_t *index;        /* NULL: none */
	struct stat seen;
};

struct cell__store {
	const struct cell__backend *backend;
	char *root;     /* file: base, or base/workspaces/<id>; redis: the URL without secrets and with prefix and workspace */
	char *artifacts_path; /* location of the artifacts, for display */
	int root_fd;    /* its caches are beneath this folder; redis: -1 until it is set */
	bool confined;  /* cell__store_set_confined() */
	/* file */
	char *base;     /* as given, absolute */
	int base_fd;
	atomic_bool swept;      /* left-over temporary files were searched */
	struct cell__index_cache artifacts, workflows; /* their indexes */
	/* redis */
	struct cell__redis *redis;
	/* both */
	pthread_mutex_t search_lock; /* guards the seven below */
	bool search_shared;     /* the index is in a folder that no container can write to (shared.h) */
	bool unreadable;        /* the last refresh could not read its sources: rebuilding the index would not help */
	char *model;            /* that made the index's vectors; NULL: no vectors */
	struct cell__search *search;
	struct cell__watch watch; /* on the folders of workflows; without it they are listed each time */
	struct cell__search_stamp *stamps; /* the documents in the index, sorted by id */
	size_t n_stamps;
	pthread_mutex_t notice_lock;
	bool has_notice;
	struct cell_error notice;
};

/* Records that an index was set aside, for cell__store_take_notice(). */
void cell__store_put_notice(struct cell__store *store, const struct cell_error *notice);
/* Closes the search index; workflow_index.c. */
void cell__store_close_search(struct cell__store *store);

/* ---- artifacts (artifacts.c) ---- */

/* For an artifact whose type no index knows: by name, else by its first CELL__STORE_SNIFF_BYTES or fewer. */
const char *cell__artifact_guess(const char *name, const char *head, size_t size);
bool cell__artifact_typed(json_t *entry);
/* when: where the entry has no time; type: NULL where the entry has one.  NULL: out of memory. */
json_t *cell__artifact_info(const char *name, const char *path, json_t *entry, const char *when, const char *type, int64_t size);
/* The entry of an index; CELL_E_INVALID and CELL_E_LIMIT for invalid values. */
int cell__artifact_entry(const char *data_type, const char *description, json_t *metadata, json_t **ret_entry, struct cell_error *err);
/* The values of an object, sorted by key; NULL: out of memory. */
json_t *cell__sorted_values(json_t *object);

/* ---- workflows (workflows.c, workflow_index.c) ---- */

/* Its description without path and source; entry may be NULL.  NULL: out of memory. */
json_t *cell__workflow_info(const char *name, const struct cell__py_source *parsed, json_t *entry, const struct timespec *when);
int cell__workflow_fail_exists(struct cell_error *err, const char *name);
/* Sets the message for an errno. */
int cell__workflow_fail_read(struct cell_error *err, const char *name, int sys);

/* One document of the search index with the data that it points to. */
struct cell__workflow_doc {
	struct cell__search_doc doc;
	struct cell__buf source, params;
	struct cell__py_source parsed;
	char *description, *docs, *payload;
};
void cell__workflow_doc_finish(struct cell__workflow_doc *made);
/*
 * Fills in everything except id and stamp from made->source. why: the reason if the source could not be read, else NULL. A file that is not
 * a workflow gets a payload that says so, and no searchable text. -1: out of memory.
 */
int cell__workflow_doc_make(struct cell__workflow_doc *made, const char *name, json_t *entry, const struct timespec *when, bool old,
			    const struct cell_error *why);
/* store->stamps as the index has them. */
int cell__workflow_load_stamps(struct cell__store *store, struct cell_error *err);

/* ---- deps (depstore.c) ---- */

/* Adds a specifier to a list unless its package is in it. */
int cell__deps_tell(json_t *list, const char *spec);
int cell__deps_tell_problem(json_t *problems, const char *file, size_t line, const char *text, size_t size,
			    const struct cell_error *problem);
json_t *cell__deps_sorted(json_t *list);
/* The end of listing: takes list and problems, and hands over the list sorted.  ok false, or either NULL: out of memory. */
int cell__deps_listed(bool ok, json_t *list, json_t *problems, json_t **ret_list, json_t **ret_problems, struct cell_error *err);

#endif
