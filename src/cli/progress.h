/*
 * The progress of one operation that takes over a second, on stderr: a line that is redrawn on a terminal, with a bar if the end is known;
 * a line every few seconds elsewhere. All on the main thread; another one draws. Not begun for --json and --quiet.
 */
#ifndef CELL_CLI_PROGRESS_H
#define CELL_CLI_PROGRESS_H

#include <stdint.h>

/* what: "installing packages" */
void cell__progress_begin(const char *what);
/* Bytes; total 0: not known. A first call with done 0 tells when the work begins, for its rate. */
void cell__progress_set(uint64_t done, uint64_t total);
/* The same for other things than bytes: unit "steps". */
void cell__progress_count(uint64_t done, uint64_t total, const char *unit);
/* A line of uv, pip or the build of an image: prints it, also while no progress is shown, and learns from it how far the work is. */
void cell__progress_note(const char *line);
/* Instead of begin() for a measurement, which the thread that draws would disturb: draws once. end() takes it off the screen. */
void cell__progress_step(const char *what, uint64_t done, uint64_t total, const char *unit);
/* Before something else is written to the terminal. */
void cell__progress_hide(void);
/* Takes it off the screen. Does nothing if none was begun. */
void cell__progress_end(void);

#endif
