/*
 * Artifacts in Redis.
 *
 * An artifact of at most CELL__REDIS_WHOLE_BYTES is a string, as the reference's clients write and read them, and is held in memory while
 * it is open. A larger one is a hash of chunks: it is written under a temporary key, chunk by chunk, and gets its name when it is complete.
 * Each request for chunks also reads the hash's version, so that a reader never mixes two. A client that knows only strings gets WRONGTYPE
 * for it, not a part of it. Larger strings of other clients are read in pieces as long as their entry in the index stays the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "storage/file.h"
#include "storage/redis.h"

#define VERSION_CHARS 32
#define OPEN_TRIES 5
#define TEMP "__tmp__:"
#define PIECE_BYTES (CELL__REDIS_CHUNKS * CELL__REDIS_CHUNK_BYTES)

/* The entry first: if the index is not a hash, nothing is written. */
static const char save_whole[] = "redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) "
				 "redis.call('SET', KEYS[1], ARGV[3]) "
				 "return 1";
/* If some chunks are missing, they have their name already (the answer was lost), or have expired. */
static const char save_chunks[] =
	"if redis.call('HGET', KEYS[3], 'version') ~= ARGV[3] or redis.call('HLEN', KEYS[3]) ~= tonumber(ARGV[6]) then "
	"  if redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], 'version') == ARGV[3] then return 1 end "
	"  return 0 "
	"end "
	"redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) "
	"redis.call('HSET', KEYS[3], 'size', ARGV[4], 'chunk_bytes', ARGV[5]) "
	"redis.call('PERSIST', KEYS[3]) "
	"redis.call('RENAME', KEYS[3], KEYS[1]) "
	"return 1";
static const char delete_both[] = "local known = redis.call('HDEL', KEYS[2], ARGV[1]) "
				  "return known + redis.call('UNLINK', KEYS[1])";

/* ---- keys ---- */

static int key_of(struct cell__store *store, const char *name, struct cell__buf *out, struct cell_error *err)
{
	/* Keys of ours have these names. */
	if (strcmp(name, "__index__") == 0 || strncmp(name, TEMP, strlen(TEMP)) == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid artifact name: '%.120s' is reserved", name);
	if (cell__buf_printf(out, "%s:%s", store->artifacts_path, name) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "artifact '%.120s'", name);
	return 0;
}

static int fail_missing(struct cell_error *err, const char *name)
{
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "Artifact '%.180s' not found", name);
}

static int fail_broken(struct cell_error *err, const char *name)
{
	cell_fail(err, CELL_E_IO, 0, "Artifact '%.120s' cannot be read: the value of its key in Redis is not an artifact", name);
	if (err)
		err->sys = EUCLEAN;
	return -1;
}

static int fail_changed(struct cell_error *err, const char *name)
{
	cell_fail(err, CELL_E_IO, 0, "Artifact '%.120s' was changed or deleted while it was read; open it again", name);
	if (err)
		err->sys = ESTALE;
	return -1;
}

/* ---- descriptions ---- */

json_t *cell__redis_entry_parse(const char *text, size_t size)
{
	json_t *entry = json_loadb(text, size, 0, NULL);
	if (json_is_object(entry))
		return entry;
	json_decref(entry);
	return NULL;
}

/* The value of an artifact's key. */
struct payload {
	enum { NOTHING, WHOLE, CHUNKS } kind;
	int64_t size;
	int64_t chunk_bytes;
	char version[VERSION_CHARS + 1];
};

static bool read_number(const redisReply *reply, int64_t max, int64_t *ret)
{
	char *end;
	if (!cell__redis_is_text(reply) || reply->len == 0 || reply->len > 18 || reply->str[0] < '0' || reply->str[0] > '9')
		return false;
	*ret = strtoll(reply->str, &end, 10);
	return *end == '\0' && *ret <= max;
}

/* The three replies to ask_payload(). */
static int read_payload(const redisReply *const replies[3], const char *name, struct payload *ret, struct cell_error *err)
{
	const redisReply *type = replies[0], *fields = replies[2];
	*ret = (struct payload){ .kind = NOTHING };
	if (type->type != REDIS_REPLY_STATUS)
		return fail_broken(err, name);
	if (strcmp(type->str, "none") == 0)
		return 0;
	if (strcmp(type->str, "string") == 0 && replies[1]->type == REDIS_REPLY_INTEGER) {
		ret->kind = WHOLE;
		ret->size = replies[1]->integer;
		return 0;
	}
	if (strcmp(type->str, "hash") != 0 || fields->type != REDIS_REPLY_ARRAY || fields->elements != 3 ||
	    !read_number(fields->element[0], CELL__REDIS_SIZE_MAX, &ret->size) ||
	    !read_number(fields->element[1], CELL__REDIS_WHOLE_BYTES, &ret->chunk_bytes) || ret->chunk_bytes == 0 ||
	    !cell__redis_is_text(fields->element[2]) || fields->element[2]->len != VERSION_CHARS)
		return fail_broken(err, name);
	memcpy(ret->version, fields->element[2]->str, VERSION_CHARS + 1);
	ret->kind = CHUNKS;
	return 0;
}

/* Of one key; if it exists, two of the three answers are WRONGTYPE. */
static void ask_payload(struct cell__redis_batch *batch, const char *key)
{
	cell__redis_add(batch, "TYPE %s", key);
	cell__redis_add(batch, "STRLEN %s", key);
	cell__redis_add(batch, "HMGET %s size chunk_bytes version", key);
}

/* The beginning of the payload, for an artifact whose entry has no type; shorter if the payload is. */
static const char *guess_type(struct cell__store *store, const char *key, const char *name, const struct payload *payload)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	if (payload->kind == WHOLE)
		cell__redis_add(&batch, "GETRANGE %s 0 %d", key, (int)CELL__STORE_SNIFF_BYTES - 1);
	else
		cell__redis_add(&batch, "HGET %s 0", key);
	if (cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, true, &replies, NULL) < 0 || !cell__redis_is_text(replies.list[0]))
		return "bytes";
	size_t size = replies.list[0]->len;
	return cell__artifact_guess(name, replies.list[0]->str, size < CELL__STORE_SNIFF_BYTES ? size : CELL__STORE_SNIFF_BYTES);
}

static json_t *make_info(struct cell__store *store, const char *key, const char *name, json_t *entry, const struct payload *payload)
{
	const char *type = cell__artifact_typed(entry) ? NULL : guess_type(store, key, name, payload);
	return cell__artifact_info(name, key, entry, "", type, payload->size);
}

/* A consistent pair of payload and entry. The caller frees *ret_text, the entry as stored. */
static int read_entry(struct cell__store *store, const char *key, const char *name, struct payload *ret_payload, json_t **ret_entry,
		      char **ret_text, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "MULTI");
	cell__redis_add(&batch, "HGET %s %s", store->redis->index_key, name);
	ask_payload(&batch, key);
	cell__redis_add(&batch, "EXEC");
	if (cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return -1;
	const redisReply *all = cell__redis_exec(store->redis, &replies, 4, err);
	if (!all)
		return -1;
	const redisReply *entry = all->element[0];
	if (entry->type == REDIS_REPLY_ERROR)
		return cell__redis_fail(err, store->redis->url.shown, entry);
	if (!cell__redis_is_text(entry))
		return fail_missing(err, name);
	if (read_payload((const redisReply *const *)&all->element[1], name, ret_payload, err) < 0)
		return -1;
	if (ret_payload->kind == NOTHING)
		return fail_missing(err, name);
	char *text = cell__strndup(entry->str, entry->len);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "artifact '%.120s'", name);
	*ret_entry = cell__redis_entry_parse(entry->str, entry->len);
	*ret_text = text;
	return 0;
}

static int get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	CELL_AUTO_FREE char *text = NULL;
	struct payload payload;
	json_t *entry = NULL;
	if (key_of(store, name, &key, err) < 0 || read_entry(store, key.data, name, &payload, &entry, &text, err) < 0)
		return -1;
	json_t *info = make_info(store, key.data, name, entry, &payload);
	json_decref(entry);
	if (!info)
		return cell_fail(err, CELL_E_NOMEM, 0, "get artifact '%.120s'", name);
	*ret_info = info;
	return 0;
}

static int exists(struct cell__store *store, const char *name, bool *ret_exists, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long entry, payload;
	if (key_of(store, name, &key, err) < 0)
		return -1;
	cell__redis_add(&batch, "HEXISTS %s %s", store->redis->index_key, name);
	cell__redis_add(&batch, "EXISTS %s", key.data);
	if (cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0 ||
	    cell__redis_integer(store->redis, replies.list[0], &entry, err) < 0 ||
	    cell__redis_integer(store->redis, replies.list[1], &payload, err) < 0)
		return -1;
	*ret_exists = entry && payload;
	return 0;
}

static int delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long n;
	if (key_of(store, name, &key, err) < 0)
		return -1;
	cell__redis_add(&batch, "EVAL %s 2 %s %s %s", delete_both, key.data, store->redis->index_key, name);
	if (cell__redis_run(store->redis, &batch, CELL__REDIS_ONCE, false, &replies, err) < 0 ||
	    cell__redis_integer(store->redis, replies.list[0], &n, err) < 0)
		return cell_fail_wrap(err, "Cannot delete artifact '%.80s'", name);
	*ret_deleted = n > 0;
	return 0;
}

/* ---- listing ---- */

struct listing {
	struct cell__store *store;
	json_t *entries; /* name -> entry, or null if it cannot be parsed */
	json_t *found;   /* name -> info */
};

static int add_entry(void *arg, const char *name, const char *value, size_t size, struct cell_error *err)
{
	struct listing *list = arg;
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	if (cell__path_check(name, "artifact", NULL) < 0 || key_of(list->store, name, &key, NULL) < 0)
		return 0; /* not loadable */
	json_t *entry = value ? cell__redis_entry_parse(value, size) : NULL;
	if (json_object_set_new(list->entries, name, entry ? entry : json_null()) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "list artifacts");
	return 0;
}

/* Of at most CELL__REDIS_FIELDS names. */
static int add_infos(struct listing *list, const char **names, size_t n, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	for (size_t i = 0; i < n; i++) {
		CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
		if (key_of(list->store, names[i], &key, err) < 0)
			return -1;
		ask_payload(&batch, key.data);
	}
	if (cell__redis_run(list->store->redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return -1;
	for (size_t i = 0; i < n; i++) {
		struct payload payload;
		CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
		/* A missing payload, or one of another type, cannot be loaded. */
		if (read_payload((const redisReply *const *)&replies.list[3 * i], names[i], &payload, NULL) < 0 || payload.kind == NOTHING)
			continue;
		if (key_of(list->store, names[i], &key, err) < 0)
			return -1;
		json_t *info = make_info(list->store, key.data, names[i], json_object_get(list->entries, names[i]), &payload);
		if (!info || json_object_set_new(list->found, names[i], info) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "list artifacts");
	}
	return 0;
}

static int list_found(struct listing *list, struct cell_error *err)
{
	const char *names[CELL__REDIS_FIELDS];
	size_t n = 0;
	const char *name;
	json_t *entry;
	json_object_foreach(list->entries, name, entry) {
		names[n++] = name;
		if (n < CELL__REDIS_FIELDS)
			continue;
		if (add_infos(list, names, n, err) < 0)
			return -1;
		n = 0;
	}
	return n > 0 ? add_infos(list, names, n, err) : 0;
}

static int list_artifacts(struct cell__store *store, json_t **ret_list, struct cell_error *err)
{
	struct listing list = { .store = store, .entries = json_object(), .found = json_object() };
	int rc = cell__redis_each_field(store->redis, store->redis->index_key, CELL__STORE_NAME_BYTES, add_entry, &list, err);
	if (rc == 0)
		rc = list_found(&list, err);
	json_t *values = rc == 0 ? cell__sorted_values(list.found) : NULL;
	json_decref(list.entries);
	json_decref(list.found);
	if (rc == 0 && !values)
		return cell_fail(err, CELL_E_NOMEM, 0, "list artifacts");
	if (rc == 0)
		*ret_list = values;
	return rc;
}

/* ---- saving ---- */

struct redis_writer {
	struct cell__artifact_writer base;
	struct cell__buf data;   /* not sent yet */
	int64_t size;            /* of all */
	int64_t n_chunks;        /* sent */
	char version[VERSION_CHARS + 1]; /* "": it may still become a string */
	bool committed;
	struct cell_error failed; /* the error of the first failed write */
	char *key, *temp;
	char name[];
};

static void abort_write(struct cell__artifact_writer *base)
{
	struct redis_writer *writer = (struct redis_writer *)base;
	struct cell__redis *redis = base->store->redis;
	/* Not removed from here, which may be the loop's thread; if it is never removed, it expires. */
	struct cell__redis_trash *trash = NULL;
	if (writer->n_chunks > 0 && !writer->committed)
		trash = cell__alloc(1, sizeof *trash + strlen(writer->temp) + 1);
	if (trash) {
		strcpy(trash->key, writer->temp);
		pthread_mutex_lock(&redis->lock);
		trash->next = redis->trash;
		redis->trash = trash;
		pthread_mutex_unlock(&redis->lock);
	}
	cell__buf_finish(&writer->data);
	free(writer->key);
	free(writer->temp);
	free(writer);
}

static void sweep(struct cell__redis *redis)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	pthread_mutex_lock(&redis->lock);
	struct cell__redis_trash *trash = cell__take_ptr(redis->trash);
	pthread_mutex_unlock(&redis->lock);
	while (trash) {
		struct cell__redis_trash *next = trash->next;
		cell__redis_add(&batch, "UNLINK %s", trash->key);
		free(trash);
		trash = next;
	}
	if (batch.n > 0) /* best effort: the rest expires */
		(void)cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, true, &replies, NULL);
}

static int begin(struct cell__store *store, const char *name, struct cell__artifact_writer **ret_writer, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	struct cell__buf temp = CELL_BUF_INIT;
	char random[VERSION_CHARS + 1];
	size_t size = strlen(name) + 1;
	if (key_of(store, name, &key, err) < 0)
		return -1;
	sweep(store->redis);
	struct redis_writer *writer = cell__alloc(1, sizeof *writer + size);
	if (!writer)
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", name);
	cell__random_hex(random, VERSION_CHARS);
	*writer = (struct redis_writer){ .base.store = store, .key = cell__buf_take(&key) };
	memcpy(writer->name, name, size);
	if (cell__buf_printf(&temp, "%s:" TEMP "%s", store->artifacts_path, random) == 0)
		writer->temp = cell__buf_take(&temp);
	if (!writer->key || !writer->temp) {
		abort_write(&writer->base);
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", name);
	}
	*ret_writer = &writer->base;
	return 0;
}

/* Sends whole chunks, and at the end the rest. */
static int send_chunks(struct redis_writer *writer, bool end, struct cell_error *err)
{
	struct cell__redis *redis = writer->base.store->redis;
	size_t done = 0, size = writer->data.size;
	while (size - done >= CELL__REDIS_CHUNK_BYTES || (end && done < size)) {
		CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
		CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
		int64_t n = writer->n_chunks;
		for (unsigned i = 0; i < CELL__REDIS_CHUNKS && (size - done >= CELL__REDIS_CHUNK_BYTES || (end && done < size)); i++) {
			size_t one = size - done < CELL__REDIS_CHUNK_BYTES ? size - done : CELL__REDIS_CHUNK_BYTES;
			cell__redis_add(&batch, "HSET %s %lld %b version %s", writer->temp, (long long)n++, writer->data.data + done, one,
					writer->version);
			done += one;
		}
		cell__redis_add(&batch, "EXPIRE %s %d", writer->temp, CELL__REDIS_TEMP_S);
		writer->n_chunks = n;
		if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
			return -1;
	}
	cell__buf_shift(&writer->data, done);
	return 0;
}

static int write_chunk(struct cell__artifact_writer *base, const void *bytes, size_t size, struct cell_error *err)
{
	struct redis_writer *writer = (struct redis_writer *)base;
	struct cell_error why = { 0 };
	int rc = 0;
	/* The lost bytes would be missing in the middle: nothing may be written after them. */
	if (writer->failed.code) {
		why = writer->failed;
		rc = -1;
	} else if (cell__buf_add(&writer->data, bytes, size) < 0) {
		rc = cell_fail(&why, CELL_E_NOMEM, 0, "Cannot write artifact '%.80s'", writer->name);
	} else {
		writer->size += (int64_t)size;
		if (!writer->version[0] && writer->size > (int64_t)CELL__REDIS_WHOLE_BYTES)
			cell__random_hex(writer->version, VERSION_CHARS);
		if (writer->version[0] && (rc = send_chunks(writer, false, &why)) < 0)
			cell_fail_wrap(&why, "Cannot write artifact '%.80s'", writer->name);
	}
	if (rc < 0) {
		writer->failed = why;
		if (err)
			*err = why;
	}
	return rc;
}

static void add_commit(struct redis_writer *writer, const char *text, struct cell__redis_batch *batch)
{
	const char *index = writer->base.store->redis->index_key;
	if (!writer->version[0]) {
		cell__redis_add(batch, "EVAL %s 2 %s %s %s %s %b", save_whole, writer->key, index, writer->name, text,
				writer->data.data ? writer->data.data : "", writer->data.size);
		return;
	}
	cell__redis_add(batch, "EVAL %s 3 %s %s %s %s %s %s %lld %d %lld", save_chunks, writer->key, index, writer->temp, writer->name,
			text, writer->version, (long long)writer->size, (int)CELL__REDIS_CHUNK_BYTES, (long long)writer->n_chunks + 1);
}

static int commit(struct cell__artifact_writer *base, json_t *entry, json_t **ret_info, struct cell_error *err)
{
	struct redis_writer *writer = (struct redis_writer *)base;
	struct cell__store *store = base->store;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long done = 0;
	if (writer->failed.code) {
		if (err)
			*err = writer->failed;
		return -1;
	}
	CELL_AUTO_FREE char *text = json_dumps(entry, JSON_COMPACT);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", writer->name);
	if (writer->version[0] && send_chunks(writer, true, err) < 0)
		return cell_fail_wrap(err, "Cannot write artifact '%.80s'", writer->name);
	add_commit(writer, text, &batch);
	if (cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0 ||
	    cell__redis_integer(store->redis, replies.list[0], &done, err) < 0)
		return cell_fail_wrap(err, "Cannot write artifact '%.80s'", writer->name);
	if (!done)
		return cell_fail(err, CELL_E_IO, 0, "Cannot write artifact '%.80s': its chunks were removed from Redis; save it again",
				 writer->name);
	writer->committed = true;
	if (!ret_info)
		return 0;
	json_t *info = cell__artifact_info(writer->name, writer->key, entry, "", NULL, writer->size);
	if (!info)
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", writer->name);
	*ret_info = info;
	return 0;
}

/* ---- loading ---- */

struct redis_reader {
	struct cell__artifact_reader base;
	struct cell__store *store;
	struct payload payload;
	redisReply *whole; /* NULL: it is read in pieces */
	char *text;        /* the entry that belongs to it */
	char *key;
	char name[];
};

static void close_artifact(struct cell__artifact_reader *base)
{
	struct redis_reader *reader = (struct redis_reader *)base;
	if (reader->whole)
		freeReplyObject(reader->whole);
	free(reader->text);
	free(reader->key);
	free(reader);
}

/* Payload and entry at one moment.  *ret_whole stays NULL when the payload is not that small any more. */
static int take_whole(struct redis_reader *reader, json_t **entry, struct cell_error *err)
{
	struct cell__redis *redis = reader->store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "MULTI");
	cell__redis_add(&batch, "GETRANGE %s 0 %d", reader->key, (int)CELL__REDIS_WHOLE_BYTES);
	cell__redis_add(&batch, "HGET %s %s", redis->index_key, reader->name);
	cell__redis_add(&batch, "EXEC");
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return -1;
	const redisReply *all = cell__redis_exec(redis, &replies, 2, err);
	if (!all)
		return -1;
	redisReply *data = all->element[0];
	const redisReply *now = all->element[1];
	if (!cell__redis_is_text(data) || data->len > CELL__REDIS_WHOLE_BYTES || !cell__redis_is_text(now) ||
	    (data->len == 0 && reader->payload.size != 0))
		return 0; /* it was replaced meanwhile */
	json_decref(*entry);
	*entry = cell__redis_entry_parse(now->str, now->len);
	reader->whole = data;
	((redisReply *)all)->element[0] = NULL; /* we own it now; hiredis skips it */
	reader->payload.size = (int64_t)data->len;
	return 0;
}

static int open_artifact(struct cell__store *store, const char *name, struct cell__artifact_reader **ret_reader, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	json_t *entry = NULL;
	size_t size = strlen(name) + 1;
	if (key_of(store, name, &key, err) < 0)
		return -1;
	struct redis_reader *reader = cell__alloc(1, sizeof *reader + size);
	if (!reader || !(reader->key = cell__buf_take(&key))) {
		free(reader);
		return cell_fail(err, CELL_E_NOMEM, 0, "load artifact '%.120s'", name);
	}
	reader->base.backend = store->backend;
	reader->store = store;
	memcpy(reader->name, name, size);
	int rc = 0;
	for (int try = 0; try < OPEN_TRIES; try++) {
		free(cell__take_ptr(reader->text));
		json_decref(cell__take_ptr(entry));
		rc = read_entry(store, reader->key, name, &reader->payload, &entry, &reader->text, err);
		if (rc < 0 || reader->payload.kind == CHUNKS || reader->payload.size > (int64_t)CELL__REDIS_WHOLE_BYTES)
			break;
		rc = take_whole(reader, &entry, err);
		if (rc < 0 || reader->whole)
			break;
		rc = fail_changed(err, name);
	}
	if (rc == 0) {
		reader->base.size = reader->payload.size;
		reader->base.info = make_info(store, reader->key, name, entry, &reader->payload);
		rc = reader->base.info ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "load artifact '%.120s'", name);
	}
	json_decref(entry);
	if (rc < 0)
		close_artifact(&reader->base);
	else
		*ret_reader = &reader->base;
	return rc;
}

/* [offset, offset + size) of a string, at most PIECE_BYTES, while it is unchanged. */
static int read_piece(struct redis_reader *reader, char *buf, size_t size, int64_t offset, struct cell_error *err)
{
	struct cell__redis *redis = reader->store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "MULTI");
	cell__redis_add(&batch, "GETRANGE %s %lld %lld", reader->key, (long long)offset, (long long)offset + (long long)size - 1);
	cell__redis_add(&batch, "STRLEN %s", reader->key);
	cell__redis_add(&batch, "HGET %s %s", redis->index_key, reader->name);
	cell__redis_add(&batch, "EXEC");
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return -1;
	const redisReply *all = cell__redis_exec(redis, &replies, 3, err);
	if (!all)
		return -1;
	const redisReply *data = all->element[0], *length = all->element[1], *entry = all->element[2];
	if (!cell__redis_is_text(data) || data->len != size || length->type != REDIS_REPLY_INTEGER ||
	    length->integer != reader->payload.size || !cell__redis_is_text(entry) || strcmp(entry->str, reader->text) != 0)
		return fail_changed(err, reader->name);
	memcpy(buf, data->str, size);
	return 0;
}

/* As much of [offset, offset + size) as is in the chunks of one request; returns the size, or -1. */
static ssize_t read_chunks(struct redis_reader *reader, char *buf, size_t size, int64_t offset, struct cell_error *err)
{
	struct cell__redis *redis = reader->store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	int64_t chunk = reader->payload.chunk_bytes, first = offset / chunk, last = (offset + (int64_t)size - 1) / chunk;
	int64_t most = chunk >= (int64_t)PIECE_BYTES ? 1 : (int64_t)PIECE_BYTES / chunk;
	if (most > (int64_t)CELL__REDIS_FIELDS)
		most = CELL__REDIS_FIELDS;
	if (last - first >= most)
		last = first + most - 1;
	cell__redis_add(&batch, "MULTI");
	cell__redis_add(&batch, "HGET %s version", reader->key);
	for (int64_t i = first; i <= last; i++)
		cell__redis_add(&batch, "HGET %s %lld", reader->key, (long long)i);
	cell__redis_add(&batch, "EXEC");
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return -1;
	const redisReply *all = cell__redis_exec(redis, &replies, (size_t)(last - first) + 2, err);
	if (!all)
		return -1;
	if (!cell__redis_is_text(all->element[0]) || strcmp(all->element[0]->str, reader->payload.version) != 0)
		return fail_changed(err, reader->name);
	size_t done = 0;
	for (int64_t i = first; i <= last; i++) {
		const redisReply *data = all->element[1 + (i - first)];
		int64_t begins = i * chunk, expected = reader->payload.size - begins < chunk ? reader->payload.size - begins : chunk;
		if (!cell__redis_is_text(data) || (int64_t)data->len != expected)
			return fail_broken(err, reader->name);
		size_t skip = (size_t)(offset + (int64_t)done - begins);
		size_t some = data->len - skip < size - done ? data->len - skip : size - done;
		memcpy(buf + done, data->str + skip, some);
		done += some;
	}
	return (ssize_t)done;
}

static ssize_t read_cached(struct cell__artifact_reader *base, void *buf, size_t size, int64_t offset)
{
	struct redis_reader *reader = (struct redis_reader *)base;
	if (!reader->whole)
		return -1;
	memcpy(buf, reader->whole->str + offset, size);
	return (ssize_t)size;
}

static ssize_t read_chunk(struct cell__artifact_reader *base, void *buf, size_t size, int64_t offset, struct cell_error *err)
{
	struct redis_reader *reader = (struct redis_reader *)base;
	if (offset < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "read artifact: a negative offset");
	if (offset >= base->size)
		return 0;
	if ((int64_t)size > base->size - offset)
		size = (size_t)(base->size - offset);
	if (reader->whole)
		return read_cached(base, buf, size, offset);
	for (size_t done = 0; done < size;) {
		size_t some = size - done < PIECE_BYTES ? size - done : PIECE_BYTES;
		ssize_t n = (ssize_t)some;
		if (reader->payload.kind == CHUNKS)
			n = read_chunks(reader, (char *)buf + done, some, offset + (int64_t)done, err);
		else if (read_piece(reader, (char *)buf + done, some, offset + (int64_t)done, err) < 0)
			n = -1;
		if (n < 0)
			return -1;
		done += (size_t)n;
	}
	return (ssize_t)size;
}

const struct cell__artifact_ops cell__redis_artifacts = {
	.begin = begin,
	.write = write_chunk,
	.commit = commit,
	.abort = abort_write,
	.open = open_artifact,
	.pread = read_chunk,
	.pread_cached = read_cached,
	.close = close_artifact,
	.get = get,
	.list = list_artifacts,
	.exists = exists,
	.delete = delete,
};
