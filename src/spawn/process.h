/*
 * Programs that the host runs: command-line tools, installers, servers that use their standard streams.  They are
 * started by the spawner, each in a process group of its own, with stdin from /dev/null (or a stream when asked for), and die
 * with the host.  With a confinement (confinement.h) they run in a sandbox.  Belongs to the loop's thread.
 *
 *     starting ──started──▶ running ──exit and both streams at their end──▶ exited() and gone
 *
 * Contract: if cell__process_start() returns an error, no callback is ever called.  Otherwise output() is called any number of
 * times and exited() exactly once, last, never from inside start() or kill().
 */
#ifndef CELL_SPAWN_PROCESS_H
#define CELL_SPAWN_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"
#include "loop/loop.h"

struct cell__confinement;
struct cell__process;
struct cell__supervisor; /* the engine's way to the spawner */

struct cell__process_exit {
	int error;        /* errno when it never started, else 0 */
	bool bad_cwd;     /* error: its working directory does not exist or is not accessible */
	struct cell_error failure; /* error: code != 0 if its confinement failed, with a description of the step */
	bool signalled;
	int status;       /* exit status, or the signal */
	bool timed_out;   /* we killed it because of timeout_ms */
	bool killed;      /* we killed it because of cell__process_kill() */
};

#define CELL_PROCESS_FDS 16 /* beside the three streams */

struct cell__process_spec {
	const char *const *argv;  /* argv[0] is looked up in `path` when it has no slash; NULL-terminated */
	const char *const *env;   /* complete, "K=V", NULL-terminated */
	const char *path;         /* PATH to look argv[0] up in */
	const char *cwd;
	int64_t timeout_ms;       /* -1: none; then the whole group is killed */
	int64_t linger_ms;        /* after its end, how long its streams may stay open in other processes; 0: as long as they like */
	uint64_t kernel; /* of the spawner: it runs where that one does, as confined as that (`confine`), and ends with it; 0: none */
	bool want_tty; /* a terminal for all three streams, with want_stdin; its output is stdout */
	unsigned short rows, cols;
	bool want_stdin; /* a stream to write to with cell__process_write(); else /dev/null */
	const int *fds; /* it gets these as 3, 4, ...; they stay the caller's */
	size_t n_fds; /* at most CELL_PROCESS_FDS */
	struct cell__confinement *confine; /* NULL: it runs as the host itself does; see confinement.h */
	void (*started)(void *owner, int64_t pid); /* or NULL */
	void (*output)(void *owner, enum cell_stream stream, const char *bytes, size_t size);
	void (*lost)(void *owner, uint64_t bytes); /* of a program at a server: so much of its output did not arrive; or NULL */
	void (*exited)(void *owner, const struct cell__process_exit *how);
	void *owner;
};

int cell__process_start(struct cell__supervisor *supervisor, const struct cell__process_spec *spec, struct cell__process **ret_process,
			struct cell_error *err);
/* 0 until it is known. */
int64_t cell__process_pid(const struct cell__process *process);
/* Queues bytes for its stdin; closing ends it. */
int cell__process_write(struct cell__process *process, const void *bytes, size_t size, struct cell_error *err);
/* Queued bytes that the program has not read yet. */
size_t cell__process_unread(const struct cell__process *process);
/* Of a terminal: as if its end was typed (^D). */
void cell__process_close_stdin(struct cell__process *process);
/* Of one with a terminal. */
int cell__process_resize(struct cell__process *process, unsigned short rows, unsigned short cols, struct cell_error *err);
/* true: stop reading its output until called with false; the program blocks when its pipes are full. */
void cell__process_pause(struct cell__process *process, bool paused);
/*
 * Calls output() for the bytes that are in its pipes now, without waiting: for an owner that learned by another channel that the program
 * is done with something.  False: paused before all was read.  Not from inside output().
 */
bool cell__process_drain(struct cell__process *process);
/* To the process, or to its whole group. */
void cell__process_signal(struct cell__process *process, int signal_number, bool group);
/* Ends the whole group at once (SIGKILL).  exited() still comes. */
void cell__process_kill(struct cell__process *process);
/* The owner is being destroyed: no more callbacks; the program is killed. */
void cell__process_abandon(struct cell__process *process);

#endif
