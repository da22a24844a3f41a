/*
 * Theory of operation
 *
 * Operations run on libuv's pool.  Each takes an idle connection, or opens one, sends its commands together and reads
 * their answers.  A change of more than one key is one script, so that it happens completely or not at all, and so that
 * its checks still hold when it writes.
 *
 *     up ──an operation failed for RETRY_MS──▶ down ──DOWN_MS later, one try──▶ up, or down for twice as long
 *
 * While it is down, operations fail at once with the last error: they would only fill the pool, which others need.
 *
 * A command without an answer may have been carried out.  It is sent again only if that has the same effect
 * (CELL__REDIS_AGAIN); else the error says that the outcome is unknown.  Success is reported only after the server's answer.
 */
#define _GNU_SOURCE
#include "storage/redis.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- connections ---- */

static struct cell__redis_conn *take_idle(struct cell__redis *redis)
{
	struct cell__redis_conn *conn;
	pthread_mutex_lock(&redis->lock);
	while ((conn = redis->idle)) {
		redis->idle = conn->next;
		redis->n_idle--;
		if (cell__redis_conn_quiet(conn))
			break;
		cell__redis_conn_close(conn); /* the server has closed it */
	}
	pthread_mutex_unlock(&redis->lock);
	return conn;
}

static void give_back(struct cell__redis *redis, struct cell__redis_conn *conn)
{
	pthread_mutex_lock(&redis->lock);
	bool keep = redis->n_idle < CELL__REDIS_IDLE;
	if (keep) {
		conn->next = redis->idle;
		redis->idle = conn;
		redis->n_idle++;
	}
	redis->down_until_us = 0;
	redis->down_ms = 0;
	pthread_mutex_unlock(&redis->lock);
	if (!keep)
		cell__redis_conn_close(conn);
}

static void drop_idle(struct cell__redis *redis)
{
	pthread_mutex_lock(&redis->lock);
	struct cell__redis_conn *conn = redis->idle;
	redis->idle = NULL;
	redis->n_idle = 0;
	pthread_mutex_unlock(&redis->lock);
	while (conn) {
		struct cell__redis_conn *next = conn->next;
		cell__redis_conn_close(conn);
		conn = next;
	}
}

int cell__redis_connect(struct cell__redis *redis, struct cell__redis_conn **ret_conn, struct cell_error *err)
{
	if (redis->url.tls) {
		pthread_mutex_lock(&redis->lock);
		int rc = redis->tls ? 0 : cell__redis_tls_create(&redis->url, &redis->tls, err);
		pthread_mutex_unlock(&redis->lock);
		if (rc < 0)
			return -1;
	}
	return cell__redis_conn_open(&redis->url, redis->tls, ret_conn, err);
}

/* True: it is not used now, and err has the reason. *ret_was_down: it was down when last used. */
static bool is_down(struct cell__redis *redis, bool *ret_was_down, struct cell_error *err)
{
	pthread_mutex_lock(&redis->lock);
	*ret_was_down = redis->down_until_us != 0;
	bool down = *ret_was_down && cell__now_us() < redis->down_until_us;
	if (down && err)
		*err = redis->down;
	pthread_mutex_unlock(&redis->lock);
	return down;
}

static void set_down(struct cell__redis *redis, const struct cell_error *why)
{
	pthread_mutex_lock(&redis->lock);
	redis->down_ms = redis->down_ms ? redis->down_ms * 2 : CELL__REDIS_DOWN_MS;
	if (redis->down_ms > CELL__REDIS_DOWN_MAX_MS)
		redis->down_ms = CELL__REDIS_DOWN_MAX_MS;
	redis->down_until_us = cell__now_us() + (int64_t)redis->down_ms * 1000;
	redis->down = *why;
	pthread_mutex_unlock(&redis->lock);
}

/* ---- commands ---- */

/* The server refuses every command for a while and has carried out none. */
static const redisReply *find_busy(const struct cell__redis_replies *replies)
{
	static const char *const words[] = { "LOADING ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "BUSY " };
	for (size_t i = 0; i < replies->n; i++)
		for (size_t k = 0; replies->list[i]->type == REDIS_REPLY_ERROR && k < sizeof words / sizeof *words; k++)
			if (strncmp(replies->list[i]->str, words[k], strlen(words[k])) == 0)
				return replies->list[i];
	return NULL;
}

enum tried { DONE, FAILED, AGAIN_SAFE, AGAIN_UNKNOWN };

static enum tried try_once(struct cell__redis *redis, const struct cell__redis_batch *batch, struct cell__redis_replies *ret_replies,
			   struct cell_error *err)
{
	bool sent;
	struct cell__redis_conn *conn = take_idle(redis);
	if (!conn && cell__redis_connect(redis, &conn, err) < 0)
		return err->code == CELL_E_IO && err->sys != EACCES ? AGAIN_SAFE : FAILED;
	if (cell__redis_conn_run(conn, batch, ret_replies, &sent, err) < 0) {
		cell__redis_conn_close(conn);
		drop_idle(redis);
		cell_fail_wrap(err, "Redis at %.120s", redis->url.shown);
		if (err->code != CELL_E_IO)
			return FAILED;
		return sent ? AGAIN_UNKNOWN : AGAIN_SAFE;
	}
	give_back(redis, conn);
	const redisReply *busy = find_busy(ret_replies);
	if (!busy)
		return DONE;
	cell__redis_fail(err, redis->url.shown, busy);
	cell__redis_replies_finish(ret_replies);
	return AGAIN_SAFE;
}

static void pause_ms(int ms)
{
	const struct timespec time = { ms / 1000, (ms % 1000) * 1000000L };
	nanosleep(&time, NULL);
}

static int check_replies(struct cell__redis *redis, struct cell__redis_replies *replies, bool lenient, struct cell_error *err)
{
	for (size_t i = 0; !lenient && i < replies->n; i++)
		if (replies->list[i]->type == REDIS_REPLY_ERROR) {
			cell__redis_fail(err, redis->url.shown, replies->list[i]);
			cell__redis_replies_finish(replies);
			return -1;
		}
	return 0;
}

int cell__redis_run(struct cell__redis *redis, const struct cell__redis_batch *batch, enum cell__redis_retry retry, bool lenient,
		    struct cell__redis_replies *ret_replies, struct cell_error *err)
{
	struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	struct cell_error why = { 0 };
	int64_t end = cell__now_us() + CELL__REDIS_RETRY_MS * INT64_C(1000);
	bool was_down = false, once = retry == CELL__REDIS_PROBE;
	if (!once && is_down(redis, &was_down, err))
		return -1;
	for (int pause = CELL__REDIS_PAUSE_MS;; pause *= 2) {
		enum tried tried = try_once(redis, batch, &replies, &why);
		if (tried == DONE)
			break;
		bool unknown = tried == AGAIN_UNKNOWN && retry == CELL__REDIS_ONCE;
		bool over = was_down || once || cell__now_us() + pause * INT64_C(1000) > end;
		if (tried != FAILED && !unknown && !over) {
			pause_ms(pause);
			continue;
		}
		if (tried != FAILED)
			why.code = CELL_E_STORAGE;
		if (tried != FAILED && over && !once)
			set_down(redis, &why);
		if (unknown)
			cell_fail_wrap(&why, "it is unknown whether this was done");
		if (err)
			*err = why;
		return -1;
	}
	if (check_replies(redis, &replies, lenient, err) < 0)
		return -1;
	*ret_replies = replies;
	return 0;
}

int cell__redis_integer(struct cell__redis *redis, const redisReply *reply, long long *ret, struct cell_error *err)
{
	if (reply->type != REDIS_REPLY_INTEGER)
		return cell__redis_fail(err, redis->url.shown, reply);
	*ret = reply->integer;
	return 0;
}

const redisReply *cell__redis_exec(struct cell__redis *redis, const struct cell__redis_replies *replies, size_t n, struct cell_error *err)
{
	const redisReply *last = replies->list[replies->n - 1];
	/* A command refused when it was queued has the reason; EXEC only reports that one was refused. */
	for (size_t i = 0; i < replies->n; i++)
		if (replies->list[i]->type == REDIS_REPLY_ERROR) {
			cell__redis_fail(err, redis->url.shown, replies->list[i]);
			return NULL;
		}
	if (last->type != REDIS_REPLY_ARRAY || last->elements != n) {
		cell__redis_fail(err, redis->url.shown, last);
		return NULL;
	}
	return last;
}

bool cell__redis_is_text(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_STRING;
}

/* ---- all fields of a hash ---- */

struct fields {
	struct cell__redis *redis;
	const char *key;
	const redisReply **names;
	long long *sizes;
	size_t n;
	cell__redis_field_fn fn;
	void *arg;
};

static int ask_sizes(struct fields *fields, size_t from, size_t n, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	for (size_t i = from; i < from + n; i++)
		cell__redis_add(&batch, "HSTRLEN %s %b", fields->key, fields->names[i]->str, fields->names[i]->len);
	if (cell__redis_run(fields->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	for (size_t i = 0; i < n; i++)
		if (cell__redis_integer(fields->redis, replies.list[i], &fields->sizes[from + i], err) < 0)
			return -1;
	return 0;
}

/* Requests the values of [from, from + n) that are small enough. */
static int ask_values(struct fields *fields, size_t from, size_t n, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	for (size_t i = from; i < from + n; i++)
		if (fields->sizes[i] <= (long long)CELL__REDIS_VALUE_BYTES)
			cell__redis_add(&batch, "HGET %s %b", fields->key, fields->names[i]->str, fields->names[i]->len);
	if (batch.n > 0 && cell__redis_run(fields->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	for (size_t i = from, k = 0; i < from + n; i++) {
		const char *name = fields->names[i]->str;
		if (fields->sizes[i] > (long long)CELL__REDIS_VALUE_BYTES) {
			if (fields->fn(fields->arg, name, NULL, (size_t)fields->sizes[i], err) < 0)
				return -1;
			continue;
		}
		assert(k < replies.n);
		const redisReply *value = replies.list[k++]; /* not a string: deleted in the meantime */
		if (cell__redis_is_text(value) && fields->fn(fields->arg, name, value->str, value->len, err) < 0)
			return -1;
	}
	return 0;
}

static int ask_all(struct fields *fields, struct cell_error *err)
{
	for (size_t from = 0; from < fields->n;) {
		size_t n = fields->n - from < CELL__REDIS_FIELDS ? fields->n - from : CELL__REDIS_FIELDS;
		if (ask_sizes(fields, from, n, err) < 0)
			return -1;
		for (size_t done = 0; done < n;) {
			size_t some = 0;
			long long bytes = 0;
			while (done + some < n &&
			       (some == 0 || bytes + fields->sizes[from + done + some] <= (long long)CELL__REDIS_FIELDS_BYTES))
				bytes += fields->sizes[from + done + some++];
			if (ask_values(fields, from + done, some, err) < 0)
				return -1;
			done += some;
		}
		from += n;
	}
	return 0;
}

int cell__redis_each_field(struct cell__redis *redis, const char *key, size_t max_name, cell__redis_field_fn fn, void *arg,
			   struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch count = CELL__REDIS_BATCH_INIT, ask = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies counted = CELL__REDIS_REPLIES_INIT, replies = CELL__REDIS_REPLIES_INIT;
	long long total = 0;
	cell__redis_add(&count, "HLEN %s", key);
	cell__redis_add(&ask, "HKEYS %s", key);
	if (cell__redis_run(redis, &count, CELL__REDIS_AGAIN, false, &counted, err) < 0 ||
	    cell__redis_integer(redis, counted.list[0], &total, err) < 0)
		return -1;
	if (total > CELL__STORE_LIST)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u fields in %.100s", CELL__STORE_LIST, key);
	if (cell__redis_run(redis, &ask, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	const redisReply *names = replies.list[0];
	if (names->type != REDIS_REPLY_ARRAY)
		return cell__redis_fail(err, redis->url.shown, names);
	struct fields fields = { .redis = redis,
				 .key = key,
				 .fn = fn,
				 .arg = arg,
				 .names = cell__alloc(names->elements, sizeof *fields.names),
				 .sizes = cell__alloc(names->elements, sizeof *fields.sizes) };
	int rc = fields.names && fields.sizes ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "read %.100s", key);
	for (size_t i = 0; rc == 0 && i < names->elements; i++) {
		const redisReply *name = names->element[i];
		if (cell__redis_is_text(name) && name->len <= max_name && strlen(name->str) == name->len &&
		    cell__utf8_ok(name->str, name->len))
			fields.names[fields.n++] = name;
	}
	if (rc == 0)
		rc = ask_all(&fields, err);
	free(fields.names);
	free(fields.sizes);
	return rc;
}

/* ---- opening ---- */

static char *key_of(const char *start, const char *rest)
{
	struct cell__buf key = CELL_BUF_INIT;
	return cell__buf_printf(&key, "%s:%s", start, rest) < 0 ? NULL : cell__buf_take(&key);
}

int cell__redis_create(const char *url, struct cell__redis **ret_redis, struct cell_error *err)
{
	struct cell__redis *redis = cell__alloc(1, sizeof *redis);
	if (!redis)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	pthread_mutex_init(&redis->lock, NULL);
	if (cell__redis_url_parse(url, &redis->url, err) < 0) {
		cell__redis_destroy(redis);
		return -1;
	}
	*ret_redis = redis;
	return 0;
}

void cell__redis_destroy(struct cell__redis *redis)
{
	if (!redis)
		return;
	drop_idle(redis);
	SSL_CTX_free(redis->tls);
	cell__redis_url_finish(&redis->url);
	pthread_mutex_destroy(&redis->lock);
	free(redis);
}

static int open_redis(struct cell__store *store, const char *base, const char *workspace_id, struct cell_error *err)
{
	struct cell__buf scope = CELL_BUF_INIT, root = CELL_BUF_INIT;
	if (cell__redis_create(base, &store->redis, err) < 0)
		return -1;
	struct cell__redis *redis = store->redis;
	const char *prefix = redis->url.prefix;
	if (cell__buf_printf(&scope, "%s%s%s", prefix, workspace_id ? ":ws:" : "", workspace_id ? workspace_id : "") == 0)
		redis->scope = cell__buf_take(&scope);
	if (!redis->scope)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	redis->workflows_key = key_of(redis->scope, "workflows:__workflows__");
	redis->skills_key = key_of(redis->scope, "skills:__skills__");
	redis->index_key = key_of(redis->scope, "artifacts:__index__");
	redis->deps_key = key_of(prefix, "deps");
	redis->old_deps_key = key_of(prefix, "deps:deps");
	redis->inner_deps_key = key_of(prefix, "deps:container");
	redis->book_keys[CELL__BOOK_SANDBOX] = key_of(redis->scope, "deps:sandbox");
	redis->book_keys[CELL__BOOK_FIXED] = key_of(redis->scope, "deps:locked");
	redis->book_keys[CELL__BOOK_RESULTS] = key_of(redis->scope, "tools:results");
	redis->tools_key = redis->url.tools_prefix ? key_of(redis->url.tools_prefix, "__tools__") : key_of(prefix, "tools:__tools__");
	store->artifacts_path = key_of(redis->scope, "artifacts");
	if (cell__buf_printf(&root, "redis%s://%s/%d/%s", redis->url.host ? redis->url.tls ? "s" : "" : "+unix", redis->url.shown,
			     redis->url.db, redis->scope) == 0)
		store->root = cell__buf_take(&root);
	if (!redis->workflows_key || !redis->skills_key || !redis->index_key || !redis->deps_key || !redis->old_deps_key ||
	    !redis->inner_deps_key || !redis->book_keys[0] || !redis->book_keys[1] || !redis->book_keys[2] || !redis->tools_key ||
	    !store->artifacts_path || !store->root)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	return 0;
}

static void close_redis(struct cell__store *store)
{
	struct cell__redis *redis = store->redis;
	if (!redis)
		return;
	cell__redis_conn_close(redis->watcher);
	while (redis->trash) {
		/* It expires. */
		struct cell__redis_trash *next = redis->trash->next;
		free(redis->trash);
		redis->trash = next;
	}
	free(redis->scope);
	free(redis->workflows_key);
	free(redis->skills_key);
	free(redis->index_key);
	free(redis->deps_key);
	free(redis->old_deps_key);
	free(redis->inner_deps_key);
	for (size_t i = 0; i < CELL__BOOKS; i++)
		free(redis->book_keys[i]);
	free(redis->tools_key);
	cell__redis_destroy(redis);
}

static int check_redis(struct cell__store *store, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "PING");
	return cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err);
}

/* ---- tools ---- */

struct tools_read {
	json_t *tools;
	size_t bytes;
};

/* Any client may have written it: a value that is not an object is kept as null, so that the reader of definitions reports it. */
static int take_tool(void *arg, const char *name, const char *value, size_t size, struct cell_error *err)
{
	struct tools_read *read = arg;
	json_t *definition = value ? json_loadb(value, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
	/* Written again: JSON's escapes of characters beyond U+FFFF are not valid in YAML. */
	CELL_AUTO_FREE char *text = json_is_object(definition) ? json_dumps(definition, JSON_COMPACT) : NULL;
	bool is_object = json_is_object(definition);
	json_decref(definition);
	read->bytes += text ? strlen(text) : 0;
	if (read->bytes > CELL__REDIS_TOOLS_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the tools in Redis have more than %u bytes", CELL__REDIS_TOOLS_BYTES);
	if ((is_object && !text) || json_object_set_new(read->tools, name, text ? json_string(text) : json_null()) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "read the tools in Redis");
	return 0;
}

static int read_tools(struct cell__store *store, json_t **ret_tools, struct cell_error *err)
{
	struct tools_read read = { .tools = json_object() };
	if (!read.tools)
		return cell_fail(err, CELL_E_NOMEM, 0, "read the tools in Redis");
	if (cell__redis_each_field(store->redis, store->redis->tools_key, CELL__STORE_TOOL_NAME, take_tool, &read, err) < 0) {
		json_decref(read.tools);
		return -1;
	}
	*ret_tools = read.tools;
	return 0;
}

const struct cell__backend cell__redis_backend = {
	.name = "redis",
	.open = open_redis,
	.close = close_redis,
	.check = check_redis,
	.artifacts = &cell__redis_artifacts,
	.workflows = &cell__redis_workflows,
	.deps = &cell__redis_deps,
	.tools = read_tools,
};
