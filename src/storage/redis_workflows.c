/*
 * Workflows in Redis: one hash, a JSON value for each, as in the reference.
 *
 * The search index is a cache on this machine. It is updated before it is used, exactly, no matter which client changed the hashes: a
 * separate connection keeps them under WATCH and checks before each use whether they were touched since (flag "d" of CLIENT INFO), which is
 * one short request. The hashes are read only if they were touched, and only values whose SHA-256 differs from the index are indexed again.
 * If the server does not support that request they are read each time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "storage/redis.h"

#define BATCH 64
#define BATCH_BYTES (8u * 1024u * 1024u)

/* Sent again after a lost answer it finds its own value, which has the time in it, and is done. */
static const char save[] = "if ARGV[3] == '1' then "
			   "  local old = redis.call('HGET', KEYS[1], ARGV[1]) "
			   "  if old and old ~= ARGV[2] then return 0 end "
			   "  if not old and redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 0 end "
			   "end "
			   "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) "
			   "return 1";
/* Else the one it hid would come back. */
static const char delete_both[] = "return redis.call('HDEL', KEYS[1], ARGV[1]) + redis.call('HDEL', KEYS[2], ARGV[1])";

/* ---- one workflow ---- */

static int fail_broken(struct cell_error *err, const char *what)
{
	cell_fail(err, CELL_E_IO, 0, "its value in Redis %s", what);
	if (err)
		err->sys = EUCLEAN;
	return -1;
}

int cell__redis_workflow_parse(const char *text, size_t size, struct cell__workflow_kept *ret_kept, struct cell_error *err)
{
	json_t *value = json_loadb(text, size, JSON_ALLOW_NUL, NULL);
	json_t *source = json_object_get(value, "source");
	json_t *description = json_object_get(value, "description"), *created = json_object_get(value, "created_at");
	int rc = 0;
	if (!json_is_object(value))
		rc = fail_broken(err, "is not a JSON object");
	else if (!json_is_string(source))
		rc = fail_broken(err, "has no source");
	else if (json_string_length(source) > CELL__STORE_SOURCE_BYTES)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "it is larger than %u bytes", CELL__STORE_SOURCE_BYTES);
	else if (cell__buf_add(&ret_kept->source, json_string_value(source), json_string_length(source)) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0) {
		/* A description with a NUL in it is treated as missing. */
		bool plain = json_is_string(description) && json_string_length(description) <= CELL__STORE_DESCRIPTION_BYTES &&
			     strlen(json_string_value(description)) == json_string_length(description);
		ret_kept->entry = json_pack("{s:O*, s:O*}", "description", plain ? description : NULL, "created_at",
					    json_is_string(created) ? created : NULL);
	}
	json_decref(value);
	return rc;
}

static int read_one(struct cell__store *store, const char *name, struct cell__workflow_kept *ret_kept, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "MULTI");
	cell__redis_add(&batch, "HGET %s %s", redis->workflows_key, name);
	cell__redis_add(&batch, "HGET %s %s", redis->skills_key, name);
	cell__redis_add(&batch, "EXEC");
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, true, &replies, err) < 0)
		return cell_fail_wrap(err, "Cannot read workflow '%s'", name);
	const redisReply *both = cell__redis_exec(redis, &replies, 2, err);
	if (!both)
		return cell_fail_wrap(err, "Cannot read workflow '%s'", name);
	for (size_t i = 0; i < 2; i++) {
		const redisReply *value = both->element[i];
		if (value->type == REDIS_REPLY_NIL)
			continue;
		ret_kept->old = i == 1;
		if (!cell__redis_is_text(value))
			cell__redis_fail(err, redis->url.shown, value);
		else if (cell__redis_workflow_parse(value->str, value->len, ret_kept, err) == 0)
			return 0;
		return cell_fail_wrap(err, "Cannot read workflow '%s'", name);
	}
	return cell__workflow_fail_read(err, name, ENOENT);
}

static int write_one(struct cell__store *store, const char *name, const char *source, size_t size, json_t *entry, json_t *info,
		     bool overwrite, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long done = 0;
	json_t *value = json_pack("{s:s, s:O, s:o, s:O, s:O}", "name", name, "description", json_object_get(info, "description"), "source",
				  json_stringn(source, size), "parameters", json_object_get(info, "parameters"), "created_at",
				  json_object_get(entry, "created_at"));
	CELL_AUTO_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	json_decref(value);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "Cannot write workflow '%s'", name);
	cell__redis_add(&batch, "EVAL %s 2 %s %s %s %s %s", save, redis->workflows_key, redis->skills_key, name, text,
			overwrite ? "0" : "1");
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0 ||
	    cell__redis_integer(redis, replies.list[0], &done, err) < 0)
		return cell_fail_wrap(err, "Cannot write workflow '%s'", name);
	return done ? 0 : cell__workflow_fail_exists(err, name);
}

static int delete_one(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long n = 0;
	cell__redis_add(&batch, "EVAL %s 2 %s %s %s", delete_both, redis->workflows_key, redis->skills_key, name);
	if (cell__redis_run(redis, &batch, CELL__REDIS_ONCE, false, &replies, err) < 0 ||
	    cell__redis_integer(redis, replies.list[0], &n, err) < 0)
		return cell_fail_wrap(err, "Cannot delete workflow '%s'", name);
	*ret_deleted = n > 0;
	return 0;
}

static int tell_path(struct cell__store *store, const char *name, bool old, struct cell__buf *out)
{
	return cell__buf_printf(out, "%s[%s]", old ? store->redis->skills_key : store->redis->workflows_key, name);
}

/* ---- has anything changed? ---- */

/* Sends one command on the watching connection; false: the connection is unusable. */
static bool ask_watcher(struct cell__redis *redis, struct cell__redis_batch *batch, struct cell__redis_replies *ret_replies)
{
	bool sent;
	if (redis->watcher && cell__redis_conn_run(redis->watcher, batch, ret_replies, &sent, NULL) == 0)
		return true;
	cell__redis_conn_close(cell__take_ptr(redis->watcher));
	return false;
}

/* True: the hashes are untouched since watch() was called. */
static bool is_quiet(struct cell__redis *redis)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "CLIENT INFO");
	if (!ask_watcher(redis, &batch, &replies))
		return false;
	const redisReply *info = replies.list[0];
	const char *flags = cell__redis_is_text(info) ? strstr(info->str, " flags=") : NULL;
	return flags && !memchr(flags + 7, 'd', strcspn(flags + 7, " "));
}

/* Call before the hashes are read. A failure here is harmless: they are read again next time. */
static void watch(struct cell__redis *redis)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	if (!redis->watcher && cell__redis_connect(redis, &redis->watcher, NULL) < 0)
		return;
	cell__redis_add(&batch, "UNWATCH");
	cell__redis_add(&batch, "WATCH %s %s", redis->workflows_key, redis->skills_key);
	if (ask_watcher(redis, &batch, &replies) && replies.list[1]->type == REDIS_REPLY_ERROR)
		cell__redis_conn_close(cell__take_ptr(redis->watcher));
}

/* ---- bringing the search index up to date ---- */

struct refresh {
	struct cell__store *store;
	bool old;          /* the hash of older versions is being read */
	bool *seen;        /* of store->stamps */
	json_t *names;     /* of the first hash, which hide the others */
	struct cell__workflow_doc *made;
	struct cell__search_doc docs[BATCH];
	char names_made[BATCH][CELL__STORE_WORKFLOW_NAME_BYTES + 1];
	size_t n, bytes;
	bool changed;
	bool cache_failed; /* the index is at fault, not Redis */
};

static int flush(struct refresh *r, const char *const *removed, size_t n_removed, struct cell_error *err)
{
	for (size_t i = 0; i < r->n; i++)
		r->docs[i] = r->made[i].doc;
	int rc = r->n > 0 || n_removed > 0 ? cell__search_update(r->store->search, r->docs, r->n, removed, n_removed, err) : 0;
	r->changed |= r->n > 0 || n_removed > 0;
	r->cache_failed |= rc < 0;
	for (size_t i = 0; i < r->n; i++) {
		cell__workflow_doc_finish(&r->made[i]);
		memset(&r->made[i], 0, sizeof r->made[i]);
	}
	r->n = r->bytes = 0;
	return rc;
}

static struct cell__search_stamp *find_stamp(const struct cell__store *store, const char *name)
{
	size_t low = 0, high = store->n_stamps;
	while (low < high) {
		size_t middle = (low + high) / 2;
		int order = strcmp(store->stamps[middle].id, name);
		if (order == 0)
			return &store->stamps[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static int stamp_value(const char *value, size_t size, bool old, int64_t stamp[static 3])
{
	unsigned char digest[EVP_MAX_MD_SIZE] = { 0 };
	/* A value that is too large is identified by its size. */
	if (!value)
		memcpy(digest, &size, sizeof size);
	else if (EVP_Digest(value, size, digest, NULL, EVP_sha256(), NULL) != 1)
		return -1;
	digest[0] ^= old;
	memcpy(stamp, digest, 3 * sizeof *stamp);
	return 0;
}

static int index_one(void *arg, const char *name, const char *value, size_t size, struct cell_error *err)
{
	struct refresh *r = arg;
	int64_t stamp[3];
	const struct timespec unknown = { 0 };
	if (cell__workflow_check_name(name, NULL) < 0 || (r->old && json_object_get(r->names, name)))
		return 0;
	if ((!r->old && json_object_set_new(r->names, name, json_true()) < 0) || stamp_value(value, size, r->old, stamp) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	struct cell__search_stamp *known = find_stamp(r->store, name);
	if (known)
		r->seen[known - r->store->stamps] = true;
	if (known && memcmp(known->stamp, stamp, sizeof stamp) == 0)
		return 0;
	struct cell__workflow_kept kept = { 0 };
	struct cell_error why = { 0 };
	if (value)
		cell__redis_workflow_parse(value, size, &kept, &why);
	else
		cell_fail(&why, CELL_E_LIMIT, 0, "its value in Redis has %zu bytes, more than %u", size, CELL__REDIS_VALUE_BYTES);
	struct cell__workflow_doc *made = &r->made[r->n];
	strcpy(r->names_made[r->n], name);
	made->source = kept.source;
	made->doc = (struct cell__search_doc){ .id = r->names_made[r->n], .name = "" };
	memcpy(made->doc.stamp, stamp, sizeof stamp);
	r->n++;
	r->bytes += size;
	int rc = cell__workflow_doc_make(made, made->doc.id, kept.entry, &unknown, r->old, why.code ? &why : NULL);
	json_decref(kept.entry);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	return r->n == BATCH || r->bytes > BATCH_BYTES ? flush(r, NULL, 0, err) : 0;
}

static int index_all(struct refresh *r, struct cell_error *err)
{
	struct cell__redis *redis = r->store->redis;
	if (cell__redis_each_field(redis, redis->workflows_key, CELL__STORE_WORKFLOW_NAME_BYTES, index_one, r, err) < 0)
		return -1;
	r->old = true;
	if (cell__redis_each_field(redis, redis->skills_key, CELL__STORE_WORKFLOW_NAME_BYTES, index_one, r, err) < 0)
		return -1;
	CELL_AUTO_FREE const char **removed = cell__alloc(r->store->n_stamps, sizeof *removed);
	size_t n = 0;
	if (!removed)
		return cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	for (size_t i = 0; i < r->store->n_stamps; i++)
		if (!r->seen[i])
			removed[n++] = r->store->stamps[i].id;
	return flush(r, removed, n, err);
}

static int refresh(struct cell__store *store, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	store->unreadable = false;
	bool changed = cell__search_changed(store->search);
	if (!changed && is_quiet(redis))
		return 0;
	if (changed && cell__workflow_load_stamps(store, err) < 0)
		return -1;
	watch(redis);
	struct refresh *r = cell__alloc(1, sizeof *r);
	int rc = 0;
	if (r) {
		r->store = store;
		r->seen = cell__alloc(store->n_stamps, sizeof *r->seen);
		r->names = json_object();
		r->made = cell__alloc(BATCH, sizeof *r->made);
	}
	if (!r || !r->seen || !r->names || !r->made)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	else
		rc = index_all(r, err);
	store->unreadable = rc < 0 && r && !r->cache_failed;
	if (rc == 0 && r->changed)
		rc = cell__workflow_load_stamps(store, err);
	if (rc < 0) /* so that it is read again */
		cell__redis_conn_close(cell__take_ptr(redis->watcher));
	for (size_t i = 0; r && r->made && i < r->n; i++)
		cell__workflow_doc_finish(&r->made[i]);
	if (r) {
		free(r->seen);
		json_decref(r->names);
		free(r->made);
	}
	free(r);
	return rc;
}

const struct cell__workflow_ops cell__redis_workflows = {
	.read = read_one,
	.write = write_one,
	.delete = delete_one,
	.refresh = refresh,
	.path = tell_path,
};
