/* In place of redis_place.c, where Redis is not built in. */
#include "durable/owners.h"
#include "durable/redis_place.h"

static int unavailable(struct cell_error *err)
{
	return cell_fail(err, CELL_E_UNAVAILABLE, 0,
			 "saving sessions in Redis is not built into this version; build it with hiredis (-Dredis=enabled)");
}

int cell__redis_place_open(const char *url, const char *id, const struct cell__lease_host *host, struct cell__redis_place **ret_remote,
			   struct cell_error *err)
{
	(void)url, (void)id, (void)host, (void)ret_remote;
	return unavailable(err);
}

int cell__redis_place_each(const char *url, uint64_t until_ms, size_t max, cell__redis_place_fn fn, void *arg, struct cell_error *err)
{
	(void)url, (void)until_ms, (void)max, (void)fn, (void)arg;
	return unavailable(err);
}

int cell__redis_place_find(const char *url, const char *id, cell__redis_place_fn fn, void *arg, struct cell_error *err)
{
	(void)url, (void)id, (void)fn, (void)arg;
	return unavailable(err);
}

int cell__redis_owners_open(const char *url, struct cell__redis **ret_redis, struct cell_error *err)
{
	(void)url, (void)ret_redis;
	return unavailable(err);
}

/* Nobody has one. */

void cell__redis_owners_close(struct cell__redis *redis)
{
	(void)redis;
}

int cell__redis_owners_run(struct cell__redis *redis, const char *own, struct cell__owner_step *const *steps, size_t n,
			   struct cell_error *err)
{
	(void)redis, (void)own, (void)steps, (void)n;
	return unavailable(err);
}

void cell__redis_place_close(struct cell__redis_place *remote)
{
	(void)remote;
}

int cell__redis_place_take(struct cell__redis_place *remote, bool creates, struct cell_error *err)
{
	(void)remote, (void)creates;
	return unavailable(err);
}

bool cell__redis_place_holds(const struct cell__redis_place *remote)
{
	(void)remote;
	return false;
}

uint64_t cell__redis_place_number(const struct cell__redis_place *remote)
{
	(void)remote;
	return 0;
}

void cell__redis_place_release(struct cell__redis_place *remote)
{
	(void)remote;
}

int cell__redis_place_read(struct cell__redis_place *remote, struct cell__buf *out, struct cell_error *err)
{
	(void)remote, (void)out;
	return unavailable(err);
}

int cell__redis_place_commit(struct cell__redis_place *remote, const struct cell__buf *state, const struct cell__saved *saved,
			     const struct cell__saved *before, struct cell_error *err)
{
	(void)remote, (void)state, (void)saved, (void)before;
	return unavailable(err);
}

int cell__redis_place_remove(struct cell__redis_place *remote, const struct cell__saved *saved, struct cell_error *err)
{
	(void)remote, (void)saved;
	return unavailable(err);
}

struct cell__pieces_io cell__redis_place_io(struct cell__redis_place *remote)
{
	(void)remote;
	return (struct cell__pieces_io){ 0 };
}
