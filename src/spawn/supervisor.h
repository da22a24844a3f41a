/*
 * The supervisor: the engine's object that starts the spawner on first use, routes its messages to the kernels of the
 * `subprocess` executor and to the programs of process.h, and ends it.  Belongs to the loop's thread.
 */
#ifndef CELL_SPAWN_SUPERVISOR_H
#define CELL_SPAWN_SUPERVISOR_H

#include "sandbox/plans.h"
#include "spawn/client.h"
#include "spawn/process.h"

/* Receives messages about zygotes and kernels. */
struct cell__spawn_listener {
	void (*message)(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size);
	void (*ended)(void *arg); /* the spawner died; kernels live until this returns */
	void *arg;
};

struct cell__supervisor {
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

int cell__supervisor_init(struct cell__supervisor *supervisor, struct cell__loop *loop, const char *program, struct cell_error *err);
/* Starts the spawner unless it runs. */
int cell__supervisor_start(struct cell__supervisor *supervisor, struct cell_error *err);
/* Ends the spawner and all its processes; done(arg) is called when it has ended.  No cell__process may be left. */
void cell__supervisor_finish(struct cell__supervisor *supervisor, void (*done)(void *arg), void *arg);

/* process.c's part of the supervisor */
void cell__process_message(struct cell__supervisor *supervisor, const struct cell_spawn_msg *head, const void *payload, size_t size);
void cell__process_spawner_ended(struct cell__supervisor *supervisor);

#endif
