/* Shared by the files of `workcell serve`: its arguments from all sources. */
#ifndef CELL_CLI_SERVE_H
#define CELL_CLI_SERVE_H

#include "cli.h"

#define CELL_SERVE_MAX_ARGUMENTS 1024

struct cell_serve_arguments {
	char *list[CELL_SERVE_MAX_ARGUMENTS + 1]; /* list[0] is the command's name */
	int count;
	json_t *servers; /* of MCP, parameters by name; NULL: none */
	bool quiet; /* unusual settings were reported before */
};

/* Gathers the arguments of the environment, of --config FILE and of the command line, in this order; finish them in any case. */
int cell__serve_gather(int argc, char **argv, struct cell_serve_arguments *arguments, struct cell_error *err);
void cell__serve_arguments_finish(struct cell_serve_arguments *arguments);
/* A variable of the environment; NULL if it is unset or empty. */
const char *cell__serve_variable(const char *name);

/* `workcell console`: prints the link, and opens it where there is a desktop (cmd_console.c). */
void cell__console_show(const char *url, const char *code);
/* The server has ended. */
void cell__console_hide(void);

#define CELL_SERVE_MAX_WORKERS 64

struct cell_serve_crew {
	int count;
	int64_t leave_ms; /* after the signal to stop, until clients are no longer accepted */
	bool is_confined; /* code cannot see other processes of ours */
	bool holds;       /* each worker, with all that it starts, on a CPU of its own */
	void (*serving)(const char *url); /* all workers are ready */
	void (*stopping)(void); /* also from the second signal on */
};

/*
 * Starts and watches the workers until a signal ends them all, and returns their exit status, or -1.  In each worker it returns at once, 0,
 * or 1 if another one had its number before: *ret_worker is its number, and it writes that as a byte to *ret_ready_fd once it serves; -1: this is the process that started them.
 */
int cell__serve_supervise(struct cell_server_pool *pool, const struct cell_serve_crew *crew, int *ret_worker, int *ret_ready_fd,
			  struct cell_error *err);

#endif
