/* Which server has what, in Redis, see owners.h. */
#define _GNU_SOURCE
#include "durable/owners.h"

#include <string.h>

#include "base/base.h"
#include "storage/redis.h"

/* KEYS: the id's.  ARGV: our URL, seconds. */
static const char script_keep[] = "local at = redis.call('GET', KEYS[1]) "
				  "if not at or at == ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end "
				  "return 1";
static const char script_remove[] = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end "
				    "return 1";

int cell__redis_owners_open(const char *url, struct cell__redis **ret_redis, struct cell_error *err)
{
	return cell__redis_create(url, ret_redis, err);
}

void cell__redis_owners_close(struct cell__redis *redis)
{
	cell__redis_destroy(redis);
}

static void add_step(const struct cell__redis *redis, struct cell__redis_batch *batch, const char *own, const struct cell__owner_step *step)
{
	const char *prefix = redis->url.prefix;
	switch (step->verb) {
	case CELL_OWNER_FIND:
		cell__redis_add(batch, "EXISTS %s:saved:%s:lease", prefix, step->id);
		cell__redis_add(batch, "HGET %s:saved:%s url", prefix, step->id);
		cell__redis_add(batch, "GET %s:owner:%s", prefix, step->id);
		break;
	case CELL_OWNER_ADD:
		cell__redis_add(batch, "SET %s:owner:%s %s EX %d", prefix, step->id, own, CELL_OWNER_EXPIRES_S);
		break;
	case CELL_OWNER_KEEP:
		cell__redis_add(batch, "EVAL %s 1 %s:owner:%s %s %d", script_keep, prefix, step->id, own, CELL_OWNER_EXPIRES_S);
		break;
	case CELL_OWNER_REMOVE:
		cell__redis_add(batch, "EVAL %s 1 %s:owner:%s %s", script_remove, prefix, step->id, own);
		break;
	case CELL_OWNER_KEY:
		cell__redis_add(batch, "SETNX %s:owner:__server__:key %s", prefix, step->url);
		cell__redis_add(batch, "GET %s:owner:__server__:key", prefix);
		break;
	case CELL_OWNER_CHECK:
		cell__redis_add(batch, "GETSET %s:owner:__server__:%s %s", prefix, step->id, own);
		cell__redis_add(batch, "EXPIRE %s:owner:__server__:%s %d", prefix, step->id, CELL_OWNER_EXPIRES_S);
		break;
	}
}

/* "" where it is not a text that can be a URL. */
static void take_url(const redisReply *reply, char url[static CELL_OWNER_URL_BYTES + 1])
{
	*url = '\0';
	if (cell__redis_is_text(reply) && reply->len <= CELL_OWNER_URL_BYTES)
		strcpy(url, reply->str);
}

/* Returns the number of replies that belong to the step. */
static size_t take_replies(struct cell__owner_step *step, redisReply *const *replies)
{
	switch (step->verb) {
	case CELL_OWNER_FIND:
		*step->url = '\0';
		if (replies[0]->type == REDIS_REPLY_INTEGER && replies[0]->integer > 0)
			take_url(replies[1], step->url);
		if (!*step->url)
			take_url(replies[2], step->url);
		return 3;
	case CELL_OWNER_KEY:
		take_url(replies[1], step->url);
		return 2;
	case CELL_OWNER_CHECK:
		take_url(replies[0], step->url);
		return 2;
	case CELL_OWNER_ADD:
	case CELL_OWNER_KEEP:
	case CELL_OWNER_REMOVE:
		break;
	}
	return 1;
}

int cell__redis_owners_run(struct cell__redis *redis, const char *own, struct cell__owner_step *const *steps, size_t n,
			   struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	for (size_t i = 0; i < n; i++)
		add_step(redis, &batch, own, steps[i]);
	if (cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	for (size_t i = 0, at = 0; i < n; i++)
		at += take_replies(steps[i], &replies.list[at]);
	return 0;
}
