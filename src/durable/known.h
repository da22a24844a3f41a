/*
 * Files of saved sessions that this process has written or checked, and that nobody has changed since.
 *
 * A session that sleeps and wakes at the same server again and again would otherwise have all its memory checked each time.  A file is known by
 * its inode, size and times of change; Linux sets the latter, and a program cannot.  A bounded table: what it forgets is checked again.
 * Any thread.
 */
#ifndef CELL_DURABLE_KNOWN_H
#define CELL_DURABLE_KNOWN_H

#include <stdbool.h>

/* It has the content that its description tells of. */
void cell__known_add(int fd, const unsigned char sum[32]);
/* sum: of the description that is to be trusted, as given to cell__known_add(). */
bool cell__known_has(int fd, const unsigned char sum[32]);

#endif
