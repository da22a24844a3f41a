/*
 * Has anything changed in some folders?  A question that is asked often and whose answer is mostly no: inotify makes
 * it one system call, where looking at each file costs one a file.
 *
 * The answer is exact: what happened before the question is in it.  So nothing here waits for the loop; whoever owns a
 * watch asks when it needs to know.  A watch belongs to one thread at a time.
 *
 * What inotify does not tell: changes made on another machine (such file systems are refused), writes through a shared
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
 * Begins anew with nothing watched.  Folders are added before they are looked at.  All three return 0, or -1 when it
 * cannot be done, and then nothing is watched.
 */
int cell__watch_begin(struct cell__watch *watch);
/* What is in a folder, and the folder itself. */
int cell__watch_folder(struct cell__watch *watch, int dir_fd);
/* The same by its path, and that the path goes on leading there.  Must be absolute and without symbolic links. */
int cell__watch_path(struct cell__watch *watch, const char *path);
/* True: nothing has changed since it began, but names in a folder for which matters() says false. */
bool cell__watch_quiet(const struct cell__watch *watch, bool (*matters)(const char *name));
/* Fine on one that is not watching. */
void cell__watch_end(struct cell__watch *watch);

#endif
