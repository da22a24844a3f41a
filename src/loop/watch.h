/*
 * Tells whether anything changed in some folders.  The question is asked often and the answer is mostly no: inotify makes
 * it one system call, instead of one per file.
 *
 * The answer is exact: it includes everything that happened before the question.  So nothing here waits for the loop; the owner of a
 * watch asks when needed.  A watch belongs to one thread at a time.
 *
 * inotify does not report: changes made on another machine (such file systems are refused), writes through a shared
 * mapping, writes through another hard link (callers refuse files that have one), something mounted over a folder, the
 * removal of a folder that somebody holds open (but that of its files before it).
 */
#ifndef CELL_LOOP_WATCH_H
#define CELL_LOOP_WATCH_H

#include <stdbool.h>

struct cell__watch {
	int fd; /* -1: nothing is watched */
};
#define CELL__WATCH_INIT { .fd = -1 }

/*
 * Starts over with nothing watched.  Add folders before reading them.  All three functions return 0, or -1 if it
 * cannot be done, and then nothing is watched.
 */
int cell__watch_begin(struct cell__watch *watch);
/* Watches the entries of a folder and the folder itself. */
int cell__watch_folder(struct cell__watch *watch, int dir_fd);
/* The same by path, and that the path keeps leading to this folder.  Must be absolute and without symbolic links. */
int cell__watch_path(struct cell__watch *watch, const char *path);
/* True: nothing has changed since the start, except names in a folder for which matters() returns false. */
bool cell__watch_quiet(const struct cell__watch *watch, bool (*matters)(const char *name));
/* Has no effect if nothing is watched. */
void cell__watch_end(struct cell__watch *watch);

#endif
