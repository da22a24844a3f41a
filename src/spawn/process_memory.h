/*
 * The memory of a kernel that is saved: read from the process, which waits meanwhile, instead of from a file that it would have to write first.
 *
 *     host: create() ── FORK + token ──▶ kernel: a table of its pages into the file, FORKED, waits for go_fd
 *     host: said(), open(), read() ... read(), is_same() ── unref() closes the pipe, or the kernel is killed
 *
 * Nothing that the kernel says is trusted.  Whatever it writes into the table, only its own memory can be read: the token, which only it was given, stands in
 * the memory of the process that pidfd refers to, and while that process lives nobody else has its pid.
 */
#ifndef CELL_SPAWN_PROCESS_MEMORY_H
#define CELL_SPAWN_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define CELL_PROCESS_TOKEN 32 /* hexadecimal digits */

struct cell__process_memory;

/* What a kernel says of the file: where its token is, where the table lies and how many entries it has, where the first page lies. */
struct cell__process_said {
	uint64_t token_at, table_at, n_parts, first_at;
};

/* NULL: this process may not be read, and has to write a file.  *ret_wait_fd: for the kernel, which goes on when its other end is closed. */
struct cell__process_memory *cell__process_memory_create(pid_t pid, int *ret_wait_fd);
struct cell__process_memory *cell__process_memory_ref(struct cell__process_memory *memory);
void cell__process_memory_unref(struct cell__process_memory *memory); /* NULL is allowed; any thread */
const char *cell__process_memory_token(const struct cell__process_memory *memory);
void cell__process_memory_said(struct cell__process_memory *memory, const struct cell__process_said *said);
/*
 * More pages than that are refused by open().  Reading a page that was never touched takes no memory of the process, so that its limit on memory
 * alone would not bound what is written to the disk.
 */
void cell__process_memory_limit(struct cell__process_memory *memory, uint64_t bytes);

/* Reads the table from the file; before all below.  Any thread but the loop's.  *ret_bytes: of the file, if it had all pages. */
int cell__process_memory_open(struct cell__process_memory *memory, int fd, uint64_t *ret_bytes, struct cell_error *err);
/* Bytes of that file; several threads at once.  False: errno is set. */
bool cell__process_memory_read(const struct cell__process_memory *memory, int fd, void *to, size_t size, uint64_t offset);
/* After all was read: it was of this process and no other. */
bool cell__process_memory_is_same(const struct cell__process_memory *memory);

#endif
