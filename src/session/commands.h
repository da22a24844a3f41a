/*
 * Commands: programs that a client starts where the code of a session runs, as confined as that.  Loop's thread.
 *
 *     asked ──a kernel is ready, the program runs──▶ running ──exit and the end of its streams──▶ ended ──a while──▶ forgotten
 *        └── it cannot be started: done() gets the error, and there is no command
 *
 * A command belongs to the kernel that the session had when it was started, and ends with that: with a reset, a rewind, a kernel that dies or
 * is killed, and with the session.  It does not wait for a cell, and no cell waits for it.
 *
 * Its output is hostile, and kept in a bounded log, in the order in which it was read.  A byte has a position, counted over both streams.
 * An attached reader misses nothing: while it is far behind, the program's pipes are not read, and the program waits.  Without readers the
 * oldest output is dropped; a reader that comes later is told how much it missed.
 *
 * A command is counted: `ref` keeps its memory after the session has forgotten it, when its session may be gone.
 */
#ifndef CELL_SESSION_COMMANDS_H
#define CELL_SESSION_COMMANDS_H

#include <jansson.h>

#include "base/base.h"
#include "calls/principal.h"

struct cell_session;
struct cell__command;

#define CELL_COMMAND_OUTPUT_BYTES (1024u * 1024u)        /* of one command that are kept ... */
#define CELL_COMMANDS_OUTPUT_BYTES (16u * 1024u * 1024u) /* ... and of all of a session */
#define CELL_COMMAND_STDIN_BYTES (1024u * 1024u)         /* that it has not read yet */
#define CELL_COMMANDS_RUNNING 128u                       /* of one session */
#define CELL_COMMANDS_ENDED 128u                         /* that are kept, the latest */
#define CELL_COMMAND_KEPT_MS 300000                      /* so long after their end */
#define CELL_COMMAND_TAG_BYTES 200u
#define CELL_COMMAND_UNKNOWN "the command was not found: it never started, was removed, or ended more than 5 minutes ago"
#define CELL_COMMAND_STRINGS 4096u                       /* arguments and variables */

struct cell__command_spec {
	const char *const *argv; /* argv[0] is looked up in the session's PATH; NULL-terminated */
	const char *const *env;  /* "K=V" beside the session's own, NULL-terminated; or NULL */
	const char *cwd;         /* as the code sees it, or relative to the workspace; NULL: the workspace */
	const char *tag;         /* the client's own name for it; or NULL */
	int64_t timeout_ms;      /* then it is killed; 0: never */
	bool want_stdin;         /* else it is at its end */
	bool blocks;             /* also without readers it waits while output is not read, by cell__command_peek() */
	bool tty;                /* a terminal for all its streams; with want_stdin */
	unsigned short rows, cols; /* of it */
	const struct cell__principal *principal;
};

/* Checks a spec without starting anything.  Any thread. */
int cell__command_check(const struct cell__command_spec *spec, struct cell_error *err);
/*
 * done() is called once, possibly inside the call, with the command when it runs, else with NULL and the error.  -1: never.  The spec is
 * copied.
 */
typedef void (*cell__command_done)(void *arg, struct cell__command *command, const struct cell_error *err);
int cell__command_start(struct cell_session *session, const struct cell__command_spec *spec, cell__command_done done, void *arg,
			struct cell_error *err);
/* NULL: the session has no such command, or it is no longer kept. */
struct cell__command *cell__command_find(const struct cell_session *session, const char *id);
/* The same by the pid that the session sees, of one that runs. */
struct cell__command *cell__command_find_pid(const struct cell_session *session, int64_t pid);
struct cell__command *cell__command_ref(struct cell__command *command);
void cell__command_unref(struct cell__command *command);
/* {"command_id", "pid", "argv", "cwd", "tag", "tty", "state", "started_at", "output", "dropped", "exit_code", "signal", "reason"} */
json_t *cell__command_describe(const struct cell__command *command);
/* The same of all, the oldest first. */
json_t *cell__commands_describe(const struct cell_session *session);
const char *cell__command_id(const struct cell__command *command);
int64_t cell__command_pid(const struct cell__command *command);
bool cell__command_has_tty(const struct cell__command *command);
bool cell__command_has_ended(const struct cell__command *command);
/* Of one that has ended: its status, or 128 and the signal; *ret_signal: the signal, or 0. */
int cell__command_status(const struct cell__command *command, int *ret_signal);
/* Of one that has ended: NULL, or why its end is not its own: "timeout", "killed", "session". */
const char *cell__command_reason(const struct cell__command *command);

/* CELL_E_CLOSED: it has ended, or its stdin is closed.  CELL_E_LIMIT: it does not read, and too much waits; nothing was taken. */
int cell__command_write(struct cell__command *command, const void *bytes, size_t size, struct cell_error *err);
int cell__command_close_stdin(struct cell__command *command, struct cell_error *err);
/* To its process group.  SIGKILL ends all that it has started.  CELL_E_CLOSED: it has ended. */
int cell__command_signal(struct cell__command *command, int signal_number, struct cell_error *err);
#define CELL_COMMAND_SIGNALS "HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP, TSTP, WINCH"
/* The number of a name as "TERM", "SIGTERM" or "15" that may be sent; 0: unknown. */
int cell__command_signal_number(const char *name);
int cell__command_resize(struct cell__command *command, unsigned short rows, unsigned short cols, struct cell_error *err);
/* Kills it if it runs; the session forgets it. */
void cell__command_drop(struct cell__command *command);
size_t cell__commands_running(const struct cell_session *session);

/* ---- output ---- */

struct cell__command_piece {
	enum cell_stream stream;
	const char *data; /* valid until the loop goes on */
	size_t size;      /* 0: nothing more now */
	uint64_t position; /* of the first byte */
	uint64_t dropped;  /* bytes that are lost before it */
};
/* The output from this position on, as far as it is of one stream and in one piece. */
void cell__command_peek(struct cell__command *command, uint64_t position, struct cell__command_piece *ret_piece);

/* Embedded by its owner. */
struct cell__command_reader {
	struct cell__command *command; /* a reference; NULL: not attached */
	uint64_t position;             /* the next byte that it reads */
	/* There is output after `position`, or the command has ended.  It may detach this reader, and no other. */
	void (*wake)(struct cell__command_reader *reader);
	struct cell__command_reader *next;
};
/* From this position on. */
void cell__command_attach(struct cell__command *command, struct cell__command_reader *reader, uint64_t position,
			  void (*wake)(struct cell__command_reader *reader));
/* It has read up to this position. */
void cell__command_took(struct cell__command_reader *reader, uint64_t position);
void cell__command_detach(struct cell__command_reader *reader);

/* ---- for the session ---- */

/* The kernel ends: so do its commands. */
void cell__commands_end(struct cell_session *session);
/* The session is about to be freed. */
void cell__commands_forget(struct cell_session *session);

#endif
