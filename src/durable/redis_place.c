/* Saved sessions in Redis, see redis_place.h. */
#define _GNU_SOURCE
#include "durable/redis_place.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/random.h"
#include "storage/redis.h"

#define AT_ONCE 128u    /* leases that are renewed, sessions that are listed, by one batch */
#define STATES 8u       /* descriptions that are asked for at once */
#define UNSAVED_S 86400 /* a place without a saved session */

/* KEYS: the session, its lease.  ARGV: holder, name, url, ms, creates, seconds.  Asked twice by the same holder it is the same lease. */
static const char script_take[] = "local at = redis.call('GET', KEYS[2]) "
				  "local is = redis.call('HMGET', KEYS[1], 'fence', 'name', 'url') "
				  "if at and at ~= ARGV[1] then return {0, is[2] or '', is[3] or ''} end "
				  "local saved = redis.call('HEXISTS', KEYS[1], 'state') == 1 "
				  "if not saved and ARGV[5] == '0' then return {-1} end "
				  "if at then return {1, tonumber(is[1])} end "
				  "local number = redis.call('HINCRBY', KEYS[1], 'fence', 1) "
				  "redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'name', ARGV[2], 'url', ARGV[3], 'save', '0') "
				  "if not saved then redis.call('EXPIRE', KEYS[1], ARGV[6]) end "
				  "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[4]) "
				  "return {1, number}";

/* The first lines of the scripts of a holder.  ARGV: holder, number. */
#define IS_MINE                                                                      \
	"local is = redis.call('HMGET', KEYS[1], 'holder', 'fence', 'name', 'url') " \
	"if is[1] ~= ARGV[1] or is[2] ~= ARGV[2] then return {0, is[3] or '', is[4] or ''} end "

/* ARGV[3]: ms. */
static const char script_renew[] = IS_MINE "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3]) "
					   "return {1}";

/* It has no holder then: a renewal that is still on its way must not take the lease again, for nobody. */
static const char script_release[] = IS_MINE "redis.call('DEL', KEYS[2]) "
					     "redis.call('HDEL', KEYS[1], 'holder') "
					     "if redis.call('HEXISTS', KEYS[1], 'state') == 0 then redis.call('DEL', KEYS[1]) end "
					     "return {1}";

/*
 * KEYS: the session, its lease, the index, its files, files of before.  ARGV: holder, number, ms, state, id, time, number of the save, number of
 * files, pieces of each.  A save whose answer did not come may still be on its way, in a network that was cut or a Redis that was paused, when a
 * later one of the same holder has been answered: it must not replace that.
 */
static const char script_commit[] = IS_MINE
	"if tonumber(ARGV[7]) < tonumber(redis.call('HGET', KEYS[1], 'save') or '0') then return {-2} end "
	"local n = tonumber(ARGV[8]) "
	"for i = 1, n do "
	"  if redis.call('HLEN', KEYS[3 + i]) ~= tonumber(ARGV[8 + i]) then return {-1, i} end "
	"end "
	"redis.call('HSET', KEYS[1], 'state', ARGV[4], 'save', ARGV[7]) "
	"redis.call('PERSIST', KEYS[1]) "
	"redis.call('ZADD', KEYS[3], ARGV[6], ARGV[5]) "
	"for i = 1, n do redis.call('PERSIST', KEYS[3 + i]) end "
	"for i = 4 + n, #KEYS do redis.call('UNLINK', KEYS[i]) end "
	"redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3]) "
	"return {1}";

/*
 * KEYS: a file.  ARGV: number of a piece, seconds.  Before each piece: a file that no save names ends by itself.  One that is named has no expiry,
 * and gets none by a piece that arrives twice.
 */
static const char script_piece[] = "local left = redis.call('TTL', KEYS[1]) "
				   "if left == -2 then redis.call('HSET', KEYS[1], ARGV[1], '') end "
				   "if left ~= -1 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end "
				   "return 1";

/* KEYS: the session, its lease, the index, its files.  ARGV[3]: id. */
static const char script_remove[] = IS_MINE "redis.call('ZREM', KEYS[3], ARGV[3]) "
					    "for i = 4, #KEYS do redis.call('UNLINK', KEYS[i]) end "
					    "redis.call('DEL', KEYS[1], KEYS[2]) "
					    "return {1}";

/* ---- keepers: one for each URL ---- */

struct keeper {
	struct keeper *next;
	char *url;
	struct cell__redis *redis;
	unsigned users; /* places and threads; guarded by keepers_lock */
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	bool renews, watches; /* the threads are there */
	struct cell__redis_place *held;
};

struct cell__redis_place {
	struct keeper *keeper;
	char id[33], holder[33];
	char *name, *url;
	char *key, *lease_key, *index_key;
	int64_t ms;
	void (*lost)(void *arg);
	void *arg;
	uint64_t number, save; /* of its lease; of its last save under that */
	/* guarded by keeper->lock */
	bool holds, is_lost;
	int64_t renew_us, deadline_us;
	struct cell__redis_place *next;
};

static pthread_mutex_t keepers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct keeper *keepers;

/* Time goes on while the machine sleeps, as it does for the server. */
static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void keeper_put(struct keeper *keeper)
{
	pthread_mutex_lock(&keepers_lock);
	bool last = --keeper->users == 0;
	if (last) {
		struct keeper **at = &keepers;
		while (*at != keeper)
			at = &(*at)->next;
		*at = keeper->next;
	}
	pthread_mutex_unlock(&keepers_lock);
	if (!last)
		return;
	cell__redis_destroy(keeper->redis);
	pthread_cond_destroy(&keeper->changed);
	pthread_mutex_destroy(&keeper->lock);
	explicit_bzero(keeper->url, strlen(keeper->url)); /* it may have a password */
	free(keeper->url);
	free(keeper);
}

static struct keeper *keeper_make(const char *url, struct cell_error *err)
{
	pthread_condattr_t attr;
	struct keeper *keeper = cell__alloc(1, sizeof *keeper);
	char *copy = keeper ? cell__strdup(url) : NULL;
	if (!copy) {
		free(keeper);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
		return NULL;
	}
	if (cell__redis_create(url, &keeper->redis, err) < 0) {
		free(copy);
		free(keeper);
		return NULL;
	}
	keeper->url = copy;
	pthread_mutex_init(&keeper->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&keeper->changed, &attr);
	pthread_condattr_destroy(&attr);
	return keeper;
}

static struct keeper *keeper_get(const char *url, struct cell_error *err)
{
	pthread_mutex_lock(&keepers_lock);
	struct keeper *keeper = keepers;
	while (keeper && strcmp(keeper->url, url) != 0)
		keeper = keeper->next;
	if (!keeper && (keeper = keeper_make(url, err))) {
		keeper->next = keepers;
		keepers = keeper;
	}
	if (keeper)
		keeper->users++;
	pthread_mutex_unlock(&keepers_lock);
	return keeper;
}

static void wait_us(struct keeper *keeper, int64_t us)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	us += until.tv_nsec / 1000;
	until.tv_sec += us / 1000000;
	until.tv_nsec = us % 1000000 * 1000;
	pthread_cond_timedwait(&keeper->changed, &keeper->lock, &until);
}

/* ---- scripts ---- */

/* argv: the command as strings, the last NULL; one of them has another size than its text. */
static int run_words(struct keeper *keeper, const char *const *argv, const char *bytes, size_t size,
		     struct cell__redis_replies *ret_replies, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	cell__redis_add_words(&batch, argv, bytes, size);
	return cell__redis_run(keeper->redis, &batch, CELL__REDIS_AGAIN, false, ret_replies, err);
}

/* The first number of a script's answer; anything else is CELL_E_PROTOCOL. */
static int read_answer(const struct keeper *keeper, const redisReply *reply, size_t more, long long *ret, struct cell_error *err)
{
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 1 || reply->element[0]->type != REDIS_REPLY_INTEGER ||
	    (reply->element[0]->integer == 1 && reply->elements < 1 + more))
		return cell__redis_fail(err, keeper->redis->url.shown, reply);
	*ret = reply->element[0]->integer;
	return 0;
}

static const char *text_at(const redisReply *reply, size_t i)
{
	return reply->elements > i && cell__redis_is_text(reply->element[i]) ? reply->element[i]->str : "";
}

/* ---- leases ---- */

static void *renew_all(void *arg);
static void *watch_all(void *arg);

static bool start_thread(struct keeper *keeper, void *(*fn)(void *))
{
	pthread_t thread;
	pthread_attr_t attr;
	pthread_mutex_lock(&keepers_lock);
	keeper->users++;
	pthread_mutex_unlock(&keepers_lock);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	bool ok = pthread_create(&thread, &attr, fn, keeper) == 0;
	pthread_attr_destroy(&attr);
	if (!ok)
		keeper_put(keeper); /* the caller is a user too */
	return ok;
}

/*
 * Two thirds of its time, from the moment before it was asked for: a third is left to end what runs.  It is renewed after a quarter, so that an outage
 * of more than a third of its time loses nothing.
 */
static void set_times(struct cell__redis_place *remote, int64_t asked_us)
{
	remote->renew_us = asked_us + remote->ms * 1000 / 4;
	remote->deadline_us = asked_us + remote->ms * 1000 * 2 / 3;
}

/* With the keeper's lock. */
static void lose(struct cell__redis_place *remote)
{
	if (remote->is_lost)
		return;
	remote->is_lost = true;
	if (remote->lost)
		remote->lost(remote->arg);
}

static void unlist(struct cell__redis_place *remote)
{
	struct cell__redis_place **at = &remote->keeper->held;
	while (*at && *at != remote)
		at = &(*at)->next;
	if (*at)
		*at = remote->next;
	remote->holds = false;
}

static int hold(struct cell__redis_place *remote, uint64_t number, int64_t asked_us, struct cell_error *err)
{
	struct keeper *keeper = remote->keeper;
	pthread_mutex_lock(&keeper->lock);
	remote->number = number;
	remote->save = 0;
	remote->is_lost = false;
	remote->holds = true;
	set_times(remote, asked_us);
	remote->next = keeper->held;
	keeper->held = remote;
	keeper->renews = keeper->renews || start_thread(keeper, renew_all);
	keeper->watches = keeper->watches || start_thread(keeper, watch_all);
	bool ok = keeper->renews && keeper->watches;
	if (!ok)
		unlist(remote);
	pthread_cond_broadcast(&keeper->changed);
	pthread_mutex_unlock(&keeper->lock);
	return ok ? 0 : cell_fail(err, CELL_E_NOMEM, EAGAIN, "start a thread that renews leases");
}

/* Its place may be gone when the answer comes. */
struct renewal {
	char holder[33];
};

/* With the keeper's lock: those that are due, at most AT_ONCE.  *ret_wait_us: until the next one is. */
static size_t list_due(struct keeper *keeper, struct cell__redis_batch *batch, struct renewal due[AT_ONCE], int64_t *ret_wait_us)
{
	int64_t now = now_us();
	size_t n = 0;
	*ret_wait_us = INT64_C(1000000) * 3600;
	for (struct cell__redis_place *remote = keeper->held; remote; remote = remote->next) {
		char number[24], ms[24];
		if (remote->renew_us > now || n == AT_ONCE) {
			int64_t left = remote->renew_us > now ? remote->renew_us - now : 0;
			*ret_wait_us = left < *ret_wait_us ? left : *ret_wait_us;
			continue;
		}
		strcpy(due[n++].holder, remote->holder);
		snprintf(number, sizeof number, "%llu", (unsigned long long)remote->number);
		snprintf(ms, sizeof ms, "%lld", (long long)remote->ms);
		cell__redis_add(batch, "EVAL %s 2 %s %s %s %s %s", script_renew, remote->key, remote->lease_key, remote->holder, number,
				ms);
		/* If it fails: often until two thirds are over, so that a short outage loses nothing. */
		remote->renew_us = now + remote->ms * 1000 / 30;
	}
	return n;
}

static struct cell__redis_place *find_held(struct keeper *keeper, const char *holder)
{
	struct cell__redis_place *remote = keeper->held;
	while (remote && strcmp(remote->holder, holder) != 0)
		remote = remote->next;
	return remote;
}

static void *renew_all(void *arg)
{
	struct keeper *keeper = arg;
	struct renewal due[AT_ONCE];
	pthread_mutex_lock(&keeper->lock);
	while (keeper->held) {
		CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
		CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
		int64_t wait;
		size_t n = list_due(keeper, &batch, due, &wait);
		if (n == 0) {
			wait_us(keeper, wait);
			continue;
		}
		int64_t asked = now_us();
		pthread_mutex_unlock(&keeper->lock);
		int rc = cell__redis_run(keeper->redis, &batch, CELL__REDIS_PROBE, true, &replies, NULL);
		pthread_mutex_lock(&keeper->lock);
		for (size_t i = 0; rc == 0 && i < n; i++) {
			struct cell__redis_place *remote = find_held(keeper, due[i].holder);
			long long is_mine;
			if (!remote || read_answer(keeper, replies.list[i], 0, &is_mine, NULL) < 0)
				continue; /* closed meanwhile, or not renewed: watch_all() sees it */
			if (is_mine)
				set_times(remote, asked);
			else
				lose(remote);
		}
		pthread_cond_broadcast(&keeper->changed);
	}
	keeper->renews = false;
	pthread_mutex_unlock(&keeper->lock);
	keeper_put(keeper);
	return NULL;
}

static void *watch_all(void *arg)
{
	struct keeper *keeper = arg;
	pthread_mutex_lock(&keeper->lock);
	while (keeper->held) {
		int64_t now = now_us(), wait = INT64_C(1000000); /* Linux does not wake us when the machine wakes */
		for (struct cell__redis_place *remote = keeper->held; remote; remote = remote->next) {
			if (remote->deadline_us <= now)
				lose(remote);
			else if (remote->deadline_us - now < wait)
				wait = remote->deadline_us - now;
		}
		wait_us(keeper, wait);
	}
	keeper->watches = false;
	pthread_mutex_unlock(&keeper->lock);
	keeper_put(keeper);
	return NULL;
}

bool cell__redis_place_holds(const struct cell__redis_place *remote)
{
	pthread_mutex_lock(&remote->keeper->lock);
	bool holds = remote->holds && !remote->is_lost && now_us() < remote->deadline_us;
	pthread_mutex_unlock(&remote->keeper->lock);
	return holds;
}

uint64_t cell__redis_place_number(const struct cell__redis_place *remote)
{
	return remote->number;
}

int cell__redis_place_take(struct cell__redis_place *remote, bool creates, struct cell_error *err)
{
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	char ms[24], unsaved[16];
	long long found;
	snprintf(ms, sizeof ms, "%lld", (long long)remote->ms);
	snprintf(unsaved, sizeof unsaved, "%d", UNSAVED_S);
	int64_t asked = now_us();
	const char *const words[] = { "EVAL",       script_take, "2", remote->key,         remote->lease_key, remote->holder,
				      remote->name, remote->url, ms,  creates ? "1" : "0", unsaved,           NULL };
	cell__random_hex(remote->holder, 32); /* words has its address */
	if (run_words(remote->keeper, words, NULL, 0, &replies, err) < 0 ||
	    read_answer(remote->keeper, replies.list[0], 1, &found, err) < 0)
		return -1;
	if (found == 0)
		return cell__lease_conflict(err, remote->id, text_at(replies.list[0], 1), text_at(replies.list[0], 2));
	if (found != 1)
		return cell__lease_fail_missing(err, remote->id);
	long long number;
	if (cell__redis_integer(remote->keeper->redis, replies.list[0]->element[1], &number, err) < 0)
		return -1;
	return hold(remote, (uint64_t)number, asked, err);
}

/* No longer renewed.  True: it was. */
static bool let_go(struct cell__redis_place *remote)
{
	pthread_mutex_lock(&remote->keeper->lock);
	bool held = remote->holds;
	if (held)
		unlist(remote);
	pthread_cond_broadcast(&remote->keeper->changed);
	pthread_mutex_unlock(&remote->keeper->lock);
	return held;
}

void cell__redis_place_release(struct cell__redis_place *remote)
{
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	char number[24];
	if (!let_go(remote))
		return;
	snprintf(number, sizeof number, "%llu", (unsigned long long)remote->number);
	const char *const words[] = { "EVAL", script_release, "2", remote->key, remote->lease_key, remote->holder, number, NULL };
	(void)run_words(remote->keeper, words, NULL, 0, &replies, NULL); /* else it expires */
}

/* ---- places ---- */

static char *key_of(const struct keeper *keeper, const char *id, const char *rest)
{
	struct cell__buf key = CELL_BUF_INIT;
	return cell__buf_printf(&key, "%s:saved:%s%s", keeper->redis->url.prefix, id, rest) < 0 ? NULL : cell__buf_take(&key);
}

static void free_remote(struct cell__redis_place *remote)
{
	if (remote->keeper)
		keeper_put(remote->keeper);
	free(remote->name);
	free(remote->url);
	free(remote->key);
	free(remote->lease_key);
	free(remote->index_key);
	free(remote);
}

int cell__redis_place_open(const char *url, const char *id, const struct cell__lease_host *host, struct cell__redis_place **ret_remote,
			   struct cell_error *err)
{
	char name[96];
	if (host && cell__lease_check(host, err) < 0)
		return -1;
	struct cell__redis_place *remote = cell__alloc(1, sizeof *remote);
	if (!remote)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	remote->keeper = keeper_get(url, err);
	if (!remote->keeper) {
		free_remote(remote);
		return -1;
	}
	strcpy(remote->id, id);
	remote->ms = cell__lease_ms(host);
	remote->lost = host ? host->lost : NULL;
	remote->arg = host ? host->arg : NULL;
	remote->name = cell__strdup(cell__lease_name(host, name, sizeof name));
	remote->url = cell__strdup(host && host->url ? host->url : "");
	remote->key = key_of(remote->keeper, id, "");
	remote->lease_key = key_of(remote->keeper, id, ":lease");
	remote->index_key = key_of(remote->keeper, "__index__", "");
	if (!remote->name || !remote->url || !remote->key || !remote->lease_key || !remote->index_key) {
		free_remote(remote);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	}
	*ret_remote = remote;
	return 0;
}

void cell__redis_place_close(struct cell__redis_place *remote)
{
	if (!remote)
		return;
	cell__redis_place_release(remote);
	free_remote(remote);
}

int cell__redis_place_read(struct cell__redis_place *remote, struct cell__buf *out, struct cell_error *err)
{
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	const char *const words[] = { "HGET", remote->key, "state", NULL };
	if (run_words(remote->keeper, words, NULL, 0, &replies, err) < 0)
		return -1;
	const redisReply *state = replies.list[0];
	if (state->type == REDIS_REPLY_NIL)
		return cell__lease_fail_missing(err, remote->id);
	if (!cell__redis_is_text(state))
		return cell__redis_fail(err, remote->keeper->redis->url.shown, state);
	if (state->len > CELL_SAVED_STATE_BYTES)
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session %s is damaged: its description is too long", remote->id);
	return cell__buf_add(out, state->str, state->len) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session") : 0;
}

static bool is_named(const struct cell__saved *saved, const char *name)
{
	for (size_t i = 0; i < saved->n_files; i++)
		if (strcmp(saved->files[i].name, name) == 0)
			return true;
	return false;
}

/* The words of a script that names files: strings of its own, and borrowed ones. */
struct words {
	const char *list[16 + 4 * CELL_SAVED_FILES];
	char own[8 + CELL_SAVED_FILES][24];
	char *keys[2 * CELL_SAVED_FILES];
	size_t n, n_own, n_keys;
	bool failed;
};

static void add_key(struct words *words, const struct cell__redis_place *remote, const char *name)
{
	struct cell__buf key = CELL_BUF_INIT;
	char *text = cell__buf_printf(&key, "%s:%s", remote->key, name) < 0 ? NULL : cell__buf_take(&key);
	words->failed = words->failed || !text;
	words->keys[words->n_keys++] = text;
	words->list[words->n++] = text;
}

static void add_number(struct words *words, unsigned long long number)
{
	char *own = words->own[words->n_own++];
	snprintf(own, sizeof words->own[0], "%llu", number);
	words->list[words->n++] = own;
}

static int run_script(struct cell__redis_place *remote, struct words *words, const char *bytes, size_t size, long long *ret_found,
		      struct cell_error *err)
{
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	words->list[words->n] = NULL;
	int rc = words->failed ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session")
			       : run_words(remote->keeper, words->list, bytes, size, &replies, err);
	while (words->n_keys > 0)
		free(words->keys[--words->n_keys]);
	if (rc < 0 || read_answer(remote->keeper, replies.list[0], 0, ret_found, err) < 0)
		return -1;
	if (*ret_found != 0)
		return 0;
	/* Another one has it, or had it since. */
	pthread_mutex_lock(&remote->keeper->lock);
	remote->is_lost = true;
	pthread_mutex_unlock(&remote->keeper->lock);
	return cell__lease_fail_lost(err, remote->id, text_at(replies.list[0], 1), text_at(replies.list[0], 2));
}

int cell__redis_place_commit(struct cell__redis_place *remote, const struct cell__buf *state, const struct cell__saved *saved,
			     const struct cell__saved *before, struct cell_error *err)
{
	struct words words = { .n = 0 };
	long long found;
	size_t n_old = 0;
	for (size_t i = 0; before && i < before->n_files; i++)
		n_old += !is_named(saved, before->files[i].name);
	words.list[words.n++] = "EVAL";
	words.list[words.n++] = script_commit;
	add_number(&words, 3 + saved->n_files + n_old);
	words.list[words.n++] = remote->key;
	words.list[words.n++] = remote->lease_key;
	words.list[words.n++] = remote->index_key;
	for (size_t i = 0; i < saved->n_files; i++)
		add_key(&words, remote, saved->files[i].name);
	for (size_t i = 0; before && i < before->n_files; i++)
		if (!is_named(saved, before->files[i].name))
			add_key(&words, remote, before->files[i].name);
	words.list[words.n++] = remote->holder;
	add_number(&words, remote->number);
	add_number(&words, (unsigned long long)remote->ms);
	words.list[words.n++] = state->data;
	words.list[words.n++] = remote->id;
	add_number(&words, saved->saved_ms);
	add_number(&words, ++remote->save);
	add_number(&words, saved->n_files);
	for (size_t i = 0; i < saved->n_files; i++)
		add_number(&words, saved->files[i].n_pieces);
	int64_t asked = now_us();
	if (run_script(remote, &words, state->data, state->size, &found, err) < 0)
		return -1;
	if (found != 1)
		return cell_fail(err, CELL_E_IO, 0, "pieces of the saved session %s are missing in Redis; does it evict keys?", remote->id);
	pthread_mutex_lock(&remote->keeper->lock);
	if (remote->holds && !remote->is_lost)
		set_times(remote, asked);
	pthread_mutex_unlock(&remote->keeper->lock);
	return 0;
}

int cell__redis_place_remove(struct cell__redis_place *remote, const struct cell__saved *saved, struct cell_error *err)
{
	struct words words = { .n = 0 };
	long long found;
	words.list[words.n++] = "EVAL";
	words.list[words.n++] = script_remove;
	add_number(&words, 3 + (saved ? saved->n_files : 0));
	words.list[words.n++] = remote->key;
	words.list[words.n++] = remote->lease_key;
	words.list[words.n++] = remote->index_key;
	for (size_t i = 0; saved && i < saved->n_files; i++)
		add_key(&words, remote, saved->files[i].name);
	words.list[words.n++] = remote->holder;
	add_number(&words, remote->number);
	words.list[words.n++] = remote->id;
	if (run_script(remote, &words, NULL, 0, &found, err) < 0)
		return -1;
	(void)let_go(remote);
	return 0;
}

/* ---- pieces ---- */

static int put_piece(void *arg, const char *name, size_t i, const void *bytes, size_t size, struct cell_error *err)
{
	const struct cell__redis_place *remote = arg;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "EVAL %s 1 %s:%s %lld %d", script_piece, remote->key, name, (long long)i, CELL__REDIS_TEMP_S);
	cell__redis_add(&batch, "HSET %s:%s %lld %b", remote->key, name, (long long)i, bytes, size);
	return cell__redis_run(remote->keeper->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err);
}

static int get_piece(void *arg, const char *name, size_t i, void *bytes, size_t size, struct cell_error *err)
{
	const struct cell__redis_place *remote = arg;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "HGET %s:%s %lld", remote->key, name, (long long)i);
	if (cell__redis_run(remote->keeper->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	const redisReply *piece = replies.list[0];
	if (!cell__redis_is_text(piece) || piece->len != size)
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session %s is damaged: a piece of %s is missing or has another size",
				 remote->id, name);
	memcpy(bytes, piece->str, size);
	return 0;
}

struct cell__pieces_io cell__redis_place_io(struct cell__redis_place *remote)
{
	return (struct cell__pieces_io){ .put = put_piece, .get = get_piece, .arg = remote };
}

/* ---- lists ---- */

static void ask_about(const struct keeper *keeper, struct cell__redis_batch *batch, const char *id)
{
	cell__redis_add(batch, "HMGET %s:saved:%s state name url", keeper->redis->url.prefix, id);
	cell__redis_add(batch, "EXISTS %s:saved:%s:lease", keeper->redis->url.prefix, id);
}

/* 1: it goes on.  0: enough.  -1: it is not there. */
static int tell_about(const char *id, redisReply *const *replies, cell__redis_place_fn fn, void *arg)
{
	const redisReply *is = replies[0];
	if (is->type != REDIS_REPLY_ARRAY || is->elements != 3 || !cell__redis_is_text(is->element[0]))
		return -1;
	bool awake = replies[1]->type == REDIS_REPLY_INTEGER && replies[1]->integer > 0;
	return fn(arg, id, is->element[0]->str, is->element[0]->len, awake ? text_at(is, 1) : NULL, awake ? text_at(is, 2) : NULL);
}

int cell__redis_place_find(const char *url, const char *id, cell__redis_place_fn fn, void *arg, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	struct keeper *keeper = keeper_get(url, err);
	if (!keeper)
		return -1;
	ask_about(keeper, &batch, id);
	int rc = cell__redis_run(keeper->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err);
	if (rc == 0 && tell_about(id, replies.list, fn, arg) < 0)
		rc = cell__lease_fail_missing(err, id);
	keeper_put(keeper);
	return rc;
}

/* Some of the ids of one answer.  1: it goes on.  0: enough. */
static int tell_some(struct keeper *keeper, redisReply *const *ids, size_t n, cell__redis_place_fn fn, void *arg, struct cell_error *err)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	const char *asked[STATES];
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (cell__redis_is_text(ids[i]) && cell__saved_is_id(ids[i]->str)) {
			asked[k++] = ids[i]->str;
			ask_about(keeper, &batch, ids[i]->str);
		}
	if (k > 0 && cell__redis_run(keeper->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err) < 0)
		return -1;
	for (size_t i = 0; i < k; i++)
		if (tell_about(asked[i], &replies.list[2 * i], fn, arg) == 0)
			return 0;
	return 1;
}

int cell__redis_place_each(const char *url, uint64_t until_ms, size_t max, cell__redis_place_fn fn, void *arg, struct cell_error *err)
{
	char until[24] = "+inf";
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	struct keeper *keeper = keeper_get(url, err);
	if (!keeper)
		return -1;
	if (until_ms != UINT64_MAX)
		snprintf(until, sizeof until, "%llu", (unsigned long long)until_ms);
	cell__redis_add(&batch, "ZREVRANGEBYSCORE %s:saved:__index__ %s -inf LIMIT 0 %lld", keeper->redis->url.prefix, until,
			(long long)max);
	int rc = cell__redis_run(keeper->redis, &batch, CELL__REDIS_AGAIN, false, &replies, err);
	const redisReply *ids = rc == 0 ? replies.list[0] : NULL;
	if (ids && ids->type != REDIS_REPLY_ARRAY)
		rc = cell__redis_fail(err, keeper->redis->url.shown, ids);
	int more = 1;
	for (size_t i = 0, n; rc == 0 && ids && more > 0 && i < ids->elements; i += n) {
		n = ids->elements - i < STATES ? ids->elements - i : STATES;
		more = tell_some(keeper, &ids->element[i], n, fn, arg, err);
		rc = more < 0 ? -1 : 0;
	}
	keeper_put(keeper);
	return rc;
}
