/*
 * The progress of one operation that takes over a second, on stderr: a line that is redrawn on a terminal, a line every few seconds
 * elsewhere. All on the main thread; another one draws. Not begun for --json and --quiet.
 */
#ifndef CELL_CLI_PROGRESS_H
#define CELL_CLI_PROGRESS_H

#include <stdint.h>

/* what: "installing packages" */
void cell__progress_begin(const char *what);
/* Bytes; total 0: not known. */
void cell__progress_set(uint64_t done, uint64_t total);
/* A line of its own, also while no progress is shown. */
void cell__progress_note(const char *line);
/* Before something else is written to the terminal. */
void cell__progress_hide(void);
/* Takes it off the screen. Does nothing if none was begun. */
void cell__progress_end(void);

#endif
