/*
 * Prepares the start of a Jupyter kernel: finds its program (the kernelspec) and makes its
 * connection file.  Blocks on files: for libuv's pool, not for the loop's thread.
 */
#ifndef CELL_EXECUTORS_JUPYTER_SPEC_H
#define CELL_EXECUTORS_JUPYTER_SPEC_H

#include "base/base.h"

#define CELL_JUPYTER_SPEC_BYTES (1u << 20) /* a kernel.json */
#define CELL_JUPYTER_SPEC_ARGS 256u
#define CELL_JUPYTER_KEY_CHARS 64
#define CELL_JUPYTER_CHANNELS 5            /* shell, iopub, stdin, control, hb */

struct cell__jupyter_question {
	const char *name;         /* of the kernelspec; NULL: ipykernel of `python` */
	const char *python;
	const char *jupyter_path; /* folders to look in first, with ":" between; NULL: none */
	const char *const *env;   /* the session's, "K=V", NULL-terminated */
	const char *folder;       /* where connection folders are made */
};

struct cell__jupyter_spec {
	char **argv; /* NULL-terminated; with the connection file in it */
	char **env;  /* the session's with the kernelspec's: complete */
	bool interrupt_by_message;
	bool is_python; /* according to the kernelspec */
	char *folder;          /* private to this user; holds the connection file and the sockets */
	char *connection_file;
	char *endpoint[CELL_JUPYTER_CHANNELS];
	char key[CELL_JUPYTER_KEY_CHARS + 1];
};

enum { CELL_JUPYTER_SHELL, CELL_JUPYTER_IOPUB, CELL_JUPYTER_STDIN, CELL_JUPYTER_CONTROL, CELL_JUPYTER_HB };

/* Finds the kernelspec and makes folder and connection file. */
int cell__jupyter_spec_init(struct cell__jupyter_spec *spec, const struct cell__jupyter_question *question, struct cell_error *err);
/* Removes folder and connection file too. */
void cell__jupyter_spec_finish(struct cell__jupyter_spec *spec);

#endif
