/*
 * The engine's way to its spawner: started on first use, shared by the kernels of the `subprocess` executor and by the
 * programs of process.h.  Belongs to the loop's thread.
 */
#ifndef CELL_SPAWN_HUB_H
#define CELL_SPAWN_HUB_H

#include "sandbox/plans.h"
#include "spawn/client.h"
#include "spawn/process.h"

/* Who hears of zygotes and kernels. */
struct cell__spawn_listener {
	void (*message)(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size);
	void (*ended)(void *arg); /* the spawner died; kernels live until this returns */
	void *arg;
};

struct cell__spawn_hub {
	struct cell__spawn_client client;
	struct cell__loop *loop;
	char *program;
	uint64_t next_id; /* ids 0 and 1 are the spawner's own */
	struct cell__spawn_listener listener;
	struct cell__process *processes;
	struct cell__plans plans; /* of sandboxed kernels and confined programs */
	bool destroying;
	void (*destroyed)(void *arg);
	void *destroyed_arg;
};

int cell__spawn_hub_init(struct cell__spawn_hub *hub, struct cell__loop *loop, const char *program, struct cell_error *err);
/* Starts the spawner unless it runs. */
int cell__spawn_hub_start(struct cell__spawn_hub *hub, struct cell_error *err);
/* Ends the spawner and with it everything it started; done(arg) when it is gone.  No process may be left. */
void cell__spawn_hub_finish(struct cell__spawn_hub *hub, void (*done)(void *arg), void *arg);

/* process.c's part of the hub */
void cell__process_message(struct cell__spawn_hub *hub, const struct cell_spawn_msg *head, const void *payload, size_t size);
void cell__process_spawner_ended(struct cell__spawn_hub *hub);

#endif
