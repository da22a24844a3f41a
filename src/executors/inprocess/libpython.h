/*
 * The one Python interpreter of this process: the host's own where the host is a Python program, else a libpython that
 * is loaded when the first `inprocess` session opens.  It is initialised once and stays, as CPython requires.
 *
 * Any thread.  Nothing here is linked against Python: functions of the stable ABI are looked up when they are needed.
 */
#ifndef CELL_EXECUTORS_INPROCESS_LIBPYTHON_H
#define CELL_EXECUTORS_INPROCESS_LIBPYTHON_H

#include "base/base.h"

struct cell__libpython {
	bool hosted;     /* the host's own */
	char *python;    /* the interpreter that was asked for; NULL when hosted */
	int (*gil_ensure)(void);
	void (*gil_release)(int state);
	void *(*import)(const char *name);
	void *(*call_method)(void *object, const char *name, const char *format, ...);
	void *(*compile)(const char *text, const char *name, int start);
	void *(*eval)(void *code, void *globals, void *locals);
	void *(*dict_new)(void);
	int (*dict_set)(void *dict, const char *key, void *value);
	void *(*dict_get)(void *dict, const char *key);
	void *(*text_new)(const char *text);
	const char *(*text_utf8)(void *text, ptrdiff_t *ret_size);
	void (*decref)(void *object);
	void (*err_clear)(void);
	int (*set_async_exc)(unsigned long thread, void *exception);
	void **keyboard_interrupt;
};

/* Filled by the interpreter itself, see cell__libpython_question. */
struct cell__libpython_info {
	char version[32];
	char library[4096];
};

/* A program for `python -I -c`; answers with a line of JSON for cell__libpython_parse(). */
extern const char cell__libpython_question[];
int cell__libpython_parse(const char *python, const char *text, size_t size, struct cell__libpython_info *ret_info, struct cell_error *err);

/* The interpreter, if there is one; NULL: one can be loaded. */
const struct cell__libpython *cell__libpython_find(void);
/* Loads it, and waits for that; the interpreter must be the same each time.  Not on the loop's thread. */
int cell__libpython_load(const char *python, const struct cell__libpython_info *info, struct cell_error *err);

/* A job to run with the GIL held.  Must stay valid until fn has run. */
struct cell__libpython_job {
	void (*fn)(struct cell__libpython_job *job);
	struct cell__libpython_job *next;
};
/* Never blocks: a separate thread runs the job as soon as it gets the GIL. */
int cell__libpython_post(struct cell__libpython_job *job, struct cell_error *err);

/* Whether the default interpreter has a libpython. */
void cell__libpython_probe(struct cell_executor_info *info);

#endif
