/*
 * The engine as its spaces and sessions see it: loop, executors, and the lists of both.  src/engine/ makes and ends it.
 */
#ifndef CELL_SPACE_ENGINE_H
#define CELL_SPACE_ENGINE_H

#include <stdatomic.h>

#include "executors/executor.h"
#include "calls/call.h"
#include "loop/loop.h"
#include "sandbox/places.h"
#include "spawn/supervisor.h"

/*
 * Functions of sessions that a space calls; spaces must not depend on sessions. The loop's thread.
 *
 * find: the session with this id; id NULL (unknown): the only session of the space; NULL: not found.
 */
struct cell__session_ops {
	struct cell_session *(*find)(struct cell_engine *engine, const struct cell_space *space, const char *id);
	/* The kernels of this space's sessions learn of packages that were installed. */
	void (*packages_changed)(struct cell_engine *engine, struct cell_space *space);
	/* Whether the kernels of this space's sessions get wheels instead of the host's environment. */
	bool (*any_wants_wheels)(struct cell_engine *engine, const struct cell_space *space);
	/* Whether its questions are answered. */
	bool (*takes_questions)(const struct cell_session *session);
	bool (*any_takes_questions)(struct cell_engine *engine, const struct cell_space *space);
	/* Only where takes_questions(): see cell__gate_ask(). */
	void (*ask)(struct cell_session *session, struct cell__call *question);
	/* See cell__gate_tell(). */
	void (*tell)(struct cell_session *session, enum cell_event_type type, const struct cell__call *call, const char *tool,
		     const char *json);
	/* See cell__session_call_on_loop(). */
	void (*call)(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call);
	/* For a call in a space (arg) by an untrusted principal: the confinement of its session. */
	const struct cell__confine_ops *confine;
};

struct cell_engine {
	struct cell__loop *loop;
	struct cell__supervisor supervisor;
	struct cell__executor_host host;
	char *spill_dir;
	atomic_bool layers_reclaimed; /* folders of killed processes in it were looked for */
	int64_t points_bytes; /* 0: no limit */
	struct {
		uint64_t started, kept, dropped, declined; /* dropped: also copies that were not ready in time */
	} speculations;
	char id_tag[5]; /* the first digits of its sessions' ids */
	char *lib_dir, *kernel_dir;
	struct cell__place_list parts; /* our own files, trusted */
	void (*log)(void *arg, enum cell_log_level level, const char *line);
	void *log_arg;
	const struct cell__session_ops *session_ops;
	struct cell_session *sessions; /* loop's thread */
	struct cell_space *spaces;     /* loop's thread */
	struct cell__budget *budgets;  /* loop's thread: of all kernels */
};

/* A new session's id; with the engine's tag it is still random enough that nobody guesses it. */
static inline void cell__engine_name_session(const struct cell_engine *engine, char id[static 33])
{
	cell__random_hex(id, 32);
	memcpy(id, engine->id_tag, strlen(engine->id_tag));
}

/* For functions that wait, before they do: a wait in a callback of the engine would never end. */
int cell__engine_may_wait(struct cell_engine *engine, const char *name, struct cell_error *err);
/* The same for functions without an error: logs the misuse and aborts. */
void cell__engine_must_wait(struct cell_engine *engine, const char *name);
/* Any other thread: runs start(object, done, arg) on the loop's thread and waits until it has called done(arg). */
typedef void (*cell__engine_start)(void *object, void (*done)(void *arg), void *arg);
void cell__engine_wait(struct cell_engine *engine, cell__engine_start start, void *object);

#endif
