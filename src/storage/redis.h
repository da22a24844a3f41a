/*
 * A storage in Redis, for the files that make up its backend: keys, connections, and commands that are tried again.
 *
 *     {prefix}:workflows:__workflows__   hash: name -> JSON {name, description, source, parameters, created_at}
 *     {prefix}:skills:__skills__         the same of older versions; read, and deleted from
 *     {prefix}:artifacts:{name}          string: the payload; or, past CELL__REDIS_WHOLE_BYTES, a hash of its chunks:
 *                                        "0", "1", ... and size, chunk_bytes, version
 *     {prefix}:artifacts:__index__       hash: name -> JSON {description, created_at, metadata}
 *     {prefix}:artifacts:__tmp__:{hex}   chunks of an artifact that is being saved; expires
 *     {prefix}:deps                      set of specifiers; {prefix}:deps:deps of older versions is read too
 *     {prefix}:deps:container            set of specifiers that code in containers added
 *     {prefix}:deps:sandbox, :locked     string: the books of untrusted principals (store.h); of a workspace, its own
 *     {prefix}:tools:results             string: learned types of tools' results (store.h); of a workspace, its own
 *     {prefix}:saved:...                 saved sessions (durable/redis_place.h)
 *     {prefix}:tools:__tools__           hash: name -> JSON of a tool's definition; {tools_prefix}:__tools__ if the URL has one
 *
 * A workspace has {prefix}:ws:{id} instead of {prefix}, except for deps and tools.  Any thread but the loop's.
 */
#ifndef CELL_STORAGE_REDIS_H
#define CELL_STORAGE_REDIS_H

#include "storage/backend.h"
#include "storage/redis_conn.h"

#define CELL__REDIS_IDLE 4u                          /* connections kept */
#define CELL__REDIS_RETRY_MS 3000                    /* an operation is tried again for so long */
#define CELL__REDIS_PAUSE_MS 20                      /* before the second try; doubled each time */
#define CELL__REDIS_DOWN_MS 100                      /* left alone for so long after that; doubled each time */
#define CELL__REDIS_DOWN_MAX_MS 5000
#define CELL__REDIS_WHOLE_BYTES (16u * 1024u * 1024u) /* artifacts up to this are one string, as the reference has them */
#define CELL__REDIS_CHUNK_BYTES (1024u * 1024u)
#define CELL__REDIS_CHUNKS 4u                        /* sent or requested at once */
#define CELL__REDIS_TEMP_S 3600                      /* of an artifact being saved, after its last chunk */
#define CELL__REDIS_SIZE_MAX (INT64_C(1) << 40)      /* of an artifact, as another program wrote it */
#define CELL__REDIS_VALUE_BYTES (8u * 1024u * 1024u) /* one workflow, index entry or tool as JSON */
#define CELL__REDIS_FIELDS 256u                      /* requested at once */
#define CELL__REDIS_FIELDS_BYTES (16u * 1024u * 1024u) /* their values together */
#define CELL__REDIS_TOOLS_BYTES (32u * 1024u * 1024u) /* definitions of tools together */
#define CELL__REDIS_CAS_TRIES 50

struct cell__redis_trash {
	struct cell__redis_trash *next;
	char key[];
};

struct cell__redis {
	struct cell__redis_url url;
	char *scope;      /* prefix, or prefix:ws:id */
	char *workflows_key, *skills_key, *index_key, *deps_key, *old_deps_key, *inner_deps_key, *book_keys[CELL__BOOKS], *tools_key;
	pthread_mutex_t lock; /* guards all below but watcher */
	SSL_CTX *tls;
	struct cell__redis_conn *idle;
	size_t n_idle;
	int64_t down_until_us; /* 0: it is up, as far as we know */
	int down_ms;
	struct cell_error down;
	struct cell__redis_trash *trash; /* keys to be removed when there is a chance */
	struct cell__redis_conn *watcher; /* see redis_workflows.c; guarded by the store's search_lock */
};

enum cell__redis_retry {
	CELL__REDIS_ONCE,  /* not again when it may have been carried out */
	CELL__REDIS_AGAIN, /* carried out twice it comes to the same */
	CELL__REDIS_PROBE, /* tried once, also while the server is left alone because it was down: whoever asks again soon notices its return */
};

/* Connections and the URL alone, for other users than a storage; no connection is made yet. */
int cell__redis_create(const char *url, struct cell__redis **ret_redis, struct cell_error *err);
void cell__redis_destroy(struct cell__redis *redis); /* NULL is allowed */

/* Sends a batch and returns its replies; an error reply fails the call unless `lenient`. Connects, and tries again if that is safe. */
int cell__redis_run(struct cell__redis *redis, const struct cell__redis_batch *batch, enum cell__redis_retry retry, bool lenient,
		    struct cell__redis_replies *ret_replies, struct cell_error *err);
/* A connection of one's own, for cell__redis_conn_run(); close it. */
int cell__redis_connect(struct cell__redis *redis, struct cell__redis_conn **ret_conn, struct cell_error *err);
/* An integer reply; anything else is CELL_E_PROTOCOL. */
int cell__redis_integer(struct cell__redis *redis, const redisReply *reply, long long *ret, struct cell_error *err);
/* The replies of the commands between MULTI and EXEC; NULL with the error set. */
const redisReply *cell__redis_exec(struct cell__redis *redis, const struct cell__redis_replies *replies, size_t n, struct cell_error *err);
bool cell__redis_is_text(const redisReply *reply);

/*
 * Calls fn for every field of a hash; value NULL: it has size bytes, more than CELL__REDIS_VALUE_BYTES. Skips fields that are not valid
 * names (with a NUL, longer than max_name). fn returns 0, or -1 with the error set.
 */
typedef int (*cell__redis_field_fn)(void *arg, const char *name, const char *value, size_t size, struct cell_error *err);
int cell__redis_each_field(struct cell__redis *redis, const char *key, size_t max_name, cell__redis_field_fn fn, void *arg,
			   struct cell_error *err);

/* Pure: parses the value of a workflow's field.  CELL_E_IO with EUCLEAN: not valid. */
int cell__redis_workflow_parse(const char *text, size_t size, struct cell__workflow_kept *ret_kept, struct cell_error *err);
/* Pure: parses an entry of the index of artifacts; NULL if it is not valid. */
json_t *cell__redis_entry_parse(const char *text, size_t size);

#endif
