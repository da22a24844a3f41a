/*
 * The body of an upload that is compressed (gzip, RFC 1952, of one or more members), decompressed piece by piece: a body of any size takes the
 * memory of one piece.  A small body may become a very large file, so the caller bounds what it takes.
 *
 * It belongs to one thread at a time.
 */
#ifndef CELL_SERVER_GUNZIP_H
#define CELL_SERVER_GUNZIP_H

#include "base/base.h"

struct cell__gunzip;

/* NULL: err has the reason. */
struct cell__gunzip *cell__gunzip_create(struct cell_error *err);
/* NULL is allowed. */
void cell__gunzip_destroy(struct cell__gunzip *gunzip);
/*
 * Uses up some of the bytes and fills `out` as far as they go; 0 bytes of output: all were used.  -1: they are not gzip (CELL_E_INVALID), or
 * memory has run out.
 */
ssize_t cell__gunzip_next(struct cell__gunzip *gunzip, const char **bytes, size_t *size, char *out, size_t max, struct cell_error *err);
/* Whether the bytes so far were whole members: other bodies were cut off. */
bool cell__gunzip_is_whole(const struct cell__gunzip *gunzip);

#endif
