/*
 * Dependencies in Redis: a set of specifiers, and the set of older versions, which is read and removed from. A container has its own set,
 * and only reads the host's, because the host installs the packages in that one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "storage/redis.h"

/*
 * Replaces both sets if they are unchanged since they were read: ARGV is both old sets, sorted, then the count and members to remove from
 * the first, the count and members to remove from the second, and the members to add to the first.
 */
static const char replace[] = "for i = 1, 2 do "
			      "  local now = redis.call('SMEMBERS', KEYS[i]) table.sort(now) "
			      "  if table.concat(now, '\\n') ~= ARGV[i] then return 0 end "
			      "end "
			      "local at = 3 "
			      "for i = 1, 2 do "
			      "  for k = 1, tonumber(ARGV[at]) do redis.call('SREM', KEYS[i], ARGV[at + k]) end "
			      "  at = at + 1 + tonumber(ARGV[at]) "
			      "end "
			      "for k = at, #ARGV do redis.call('SADD', KEYS[1], ARGV[k]) end "
			      "return 1";

struct sets {
	struct cell__redis_replies replies;
	const redisReply *of[2]; /* ours; the older one, or in a container the host's */
};

static const char *set_key(const struct cell__store *store, size_t which)
{
	const struct cell__redis *redis = store->redis;
	if (store->confined)
		return which ? redis->deps_key : redis->inner_deps_key;
	return which ? redis->old_deps_key : redis->deps_key;
}

#define AUTO_SETS __attribute__((cleanup(sets_finish)))

static void sets_finish(struct sets *sets)
{
	cell__redis_replies_finish(&sets->replies);
}

static int compare_members(const void *a, const void *b)
{
	const redisReply *x = *(redisReply *const *)a, *y = *(redisReply *const *)b;
	int order = memcmp(x->str, y->str, x->len < y->len ? x->len : y->len);
	return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int read_sets(struct cell__store *store, struct sets *ret_sets, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch count = CELL__REDIS_BATCH_INIT, batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies counted = CELL__REDIS_REPLIES_INIT;
	long long n[2] = { 0 };
	cell__redis_add(&count, "SCARD %s", set_key(store, 0));
	cell__redis_add(&count, "SCARD %s", set_key(store, 1));
	cell__redis_add(&batch, "SMEMBERS %s", set_key(store, 0));
	cell__redis_add(&batch, "SMEMBERS %s", set_key(store, 1));
	if (cell__redis_run(redis, &count, CELL__REDIS_AGAIN, false, &counted, err) < 0 ||
	    cell__redis_integer(redis, counted.list[0], &n[0], err) < 0 || cell__redis_integer(redis, counted.list[1], &n[1], err) < 0)
		return -1;
	if (n[0] + n[1] > CELL__STORE_DEPS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u dependencies", CELL__STORE_DEPS);
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &ret_sets->replies, err) < 0)
		return -1;
	for (size_t i = 0; i < 2; i++) {
		const redisReply *set = ret_sets->of[i] = ret_sets->replies.list[i];
		if (set->type != REDIS_REPLY_ARRAY)
			return cell__redis_fail(err, redis->url.shown, set);
		if (set->elements > CELL__STORE_DEPS) /* it has grown since it was counted */
			return cell_fail(err, CELL_E_LIMIT, 0, "more than %u dependencies", CELL__STORE_DEPS);
		for (size_t k = 0; k < set->elements; k++)
			if (!cell__redis_is_text(set->element[k]))
				return cell__redis_fail(err, redis->url.shown, set->element[k]);
		if (set->elements > 0)
			qsort(set->element, set->elements, sizeof *set->element, compare_members);
	}
	return 0;
}

/* A member in the form used in files; false with the problem. */
static bool normalise(const redisReply *member, char out[static CELL__STORE_DEP_BYTES + 1], struct cell_error *err)
{
	if (strlen(member->str) != member->len)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: contains control characters"), false;
	return cell__dep_normalise(member->str, out, err) == 0;
}

static int tell(const struct cell__store *store, const struct sets *sets, json_t *list, json_t *problems)
{
	int rc = 0;
	for (size_t i = 0; i < 2; i++)
		for (size_t k = 0; rc == 0 && k < sets->of[i]->elements; k++) {
			const redisReply *member = sets->of[i]->element[k];
			char spec[CELL__STORE_DEP_BYTES + 1];
			struct cell_error problem = { 0 };
			if (normalise(member, spec, &problem))
				rc = cell__deps_tell(list, spec);
			else
				rc = cell__deps_tell_problem(problems, set_key(store, i), k + 1, member->str,
							     member->len < CELL__STORE_DEP_BYTES ? member->len : CELL__STORE_DEP_BYTES,
							     &problem);
		}
	return rc;
}

static int list_deps(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err)
{
	AUTO_SETS struct sets sets = { 0 };
	if (read_sets(store, &sets, err) < 0)
		return cell_fail_wrap(err, "Cannot read dependencies");
	json_t *list = json_array(), *problems = json_array();
	bool ok = list && problems && tell(store, &sets, list, problems) == 0;
	return cell__deps_listed(ok, list, problems, ret_list, ret_problems, err);
}

/* An argument of a command that is written by hand, because their number is not known before. */
static void put_arg(struct cell__redis_batch *batch, const void *bytes, size_t size)
{
	if (cell__buf_printf(&batch->text, "$%zu\r\n", size) < 0 || cell__buf_add(&batch->text, bytes, size) < 0 ||
	    cell__buf_add(&batch->text, "\r\n", 2) < 0)
		batch->failed = true;
}

static void put_text(struct cell__redis_batch *batch, const char *text)
{
	put_arg(batch, text, strlen(text));
}

static bool is_of(const json_t *specs, const char *one)
{
	for (size_t i = 0; i < json_array_size(specs); i++)
		if (cell__dep_same_package(one, json_string_value(json_array_get(specs, i))))
			return true;
	return false;
}

/* Which members of a set are of these packages. */
static size_t choose(const redisReply *set, const json_t *specs, const redisReply **out)
{
	size_t n = 0;
	for (size_t k = 0; k < set->elements; k++) {
		char one[CELL__STORE_DEP_BYTES + 1];
		if (normalise(set->element[k], one, NULL) && is_of(specs, one))
			out[n++] = set->element[k];
	}
	return n;
}

/* Removes packages from both sets and, if `adds`, adds their specifiers to ours. *ret_done false: another writer was faster. */
static int change(struct cell__store *store, const struct sets *sets, const json_t *specs, bool adds, enum cell__redis_retry retry,
		  bool *ret_done, size_t *ret_dropped, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	const redisReply *gone[2][CELL__STORE_DEPS];
	size_t n[2], added = adds ? json_array_size(specs) : 0;
	for (size_t i = 0; i < 2; i++)
		n[i] = i && store->confined ? 0 : choose(sets->of[i], specs, gone[i]);
	*ret_dropped = n[0] + n[1];
	if (sets->of[0]->elements + sets->of[1]->elements - *ret_dropped + added > CELL__STORE_DEPS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u dependencies", CELL__STORE_DEPS);
	if (cell__buf_printf(&batch.text, "*%zu\r\n", 5 + 2 + 2 + n[0] + n[1] + added) < 0)
		batch.failed = true;
	put_text(&batch, "EVAL");
	put_text(&batch, replace);
	put_text(&batch, "2");
	put_text(&batch, set_key(store, 0));
	put_text(&batch, set_key(store, 1));
	for (size_t i = 0; i < 2; i++) {
		CELL_AUTO_BUF struct cell__buf was = CELL_BUF_INIT;
		for (size_t k = 0; k < sets->of[i]->elements; k++)
			if (cell__buf_add(&was, "\n", k > 0) < 0 ||
			    cell__buf_add(&was, sets->of[i]->element[k]->str, sets->of[i]->element[k]->len) < 0)
				batch.failed = true;
		put_arg(&batch, was.data ? was.data : "", was.size);
	}
	for (size_t i = 0; i < 2; i++) {
		char count[24];
		snprintf(count, sizeof count, "%zu", n[i]);
		put_text(&batch, count);
		for (size_t k = 0; k < n[i]; k++)
			put_arg(&batch, gone[i][k]->str, gone[i][k]->len);
	}
	for (size_t i = 0; i < added; i++)
		put_text(&batch, json_string_value(json_array_get(specs, i)));
	batch.n = 1;
	long long done = 0;
	if (cell__redis_run(store->redis, &batch, retry, false, &replies, err) < 0 ||
	    cell__redis_integer(store->redis, replies.list[0], &done, err) < 0)
		return -1;
	*ret_done = done != 0;
	return 0;
}

static int change_until(struct cell__store *store, const json_t *specs, bool adds, size_t *ret_dropped, struct cell_error *err)
{
	for (int i = 0; i < CELL__REDIS_CAS_TRIES; i++) {
		AUTO_SETS struct sets sets = { 0 };
		bool done;
		if (read_sets(store, &sets, err) < 0)
			return cell_fail_wrap(err, "Cannot change dependencies");
		/* Adding twice has the same effect; whether a package was removed can be answered only once. */
		if (change(store, &sets, specs, adds, adds ? CELL__REDIS_AGAIN : CELL__REDIS_ONCE, &done, ret_dropped, err) < 0)
			return cell_fail_wrap(err, "Cannot change dependencies");
		if (done)
			return 0;
	}
	return cell_fail(err, CELL_E_IO, EBUSY, "Cannot change dependencies: other clients keep changing them; try again");
}

static int add_deps(struct cell__store *store, const json_t *specs, struct cell_error *err)
{
	size_t dropped;
	return change_until(store, specs, true, &dropped, err);
}

static int drop_dep(struct cell__store *store, const char *spec, bool *ret_dropped, struct cell_error *err)
{
	size_t dropped = 0;
	json_t *specs = json_pack("[s]", spec);
	int rc = specs ? change_until(store, specs, false, &dropped, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(specs);
	if (rc == 0)
		*ret_dropped = dropped > 0;
	return rc;
}

/* ---- the books of untrusted principals ---- */

static int read_book(struct cell__store *store, enum cell__book which, struct cell__buf *out, struct cell_error *err)
{
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch count = CELL__REDIS_BATCH_INIT, batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies counted = CELL__REDIS_REPLIES_INIT, replies = CELL__REDIS_REPLIES_INIT;
	long long size = 0;
	cell__redis_add(&count, "STRLEN %s", redis->book_keys[which]);
	cell__redis_add(&batch, "GETRANGE %s 0 %d", redis->book_keys[which], (int)CELL__DEPBOOK_BYTES);
	if (cell__redis_run(redis, &count, CELL__REDIS_AGAIN, false, &counted, err) < 0 ||
	    cell__redis_integer(redis, counted.list[0], &size, err) < 0)
		return cell_fail_wrap(err, "Cannot read %s", cell__book_name(which));
	if (size == 0)
		return 0;
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return cell_fail_wrap(err, "Cannot read %s", cell__book_name(which));
	const redisReply *text = replies.list[0];
	if (!cell__redis_is_text(text))
		return cell__redis_fail(err, redis->url.shown, text);
	if (text->len > CELL__DEPBOOK_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "%s is larger than %u bytes", redis->book_keys[which], CELL__DEPBOOK_BYTES);
	return cell__buf_add(out, text->str, text->len) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static int write_book(struct cell__store *store, enum cell__book which, const struct cell__buf *old, const struct cell__buf *text,
		      bool *ret_done, struct cell_error *err)
{
	static const char swap[] = "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end "
				   "redis.call('SET', KEYS[1], ARGV[2]) return 1";
	struct cell__redis *redis = store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	long long done = 0;
	cell__redis_add(&batch, "EVAL %s 1 %s %b %b", swap, redis->book_keys[which], old->data ? old->data : "", old->size, text->data,
			text->size);
	if (cell__redis_run(redis, &batch, CELL__REDIS_ONCE, false, &replies, err) < 0 ||
	    cell__redis_integer(redis, replies.list[0], &done, err) < 0)
		return cell_fail_wrap(err, "Cannot change %s", cell__book_name(which));
	*ret_done = done != 0;
	return 0;
}

const struct cell__deps_ops cell__redis_deps = {
	.list = list_deps,
	.add = add_deps,
	.drop = drop_dep,
	.read_book = read_book,
	.write_book = write_book,
};
