/*
 * The pieces of one file of a saved session: between a memory (a memfd) and a file on a disk.
 *
 * Pieces are independent of each other, so several threads work on them: read, compress where it is asked for and helps, encrypt or checksum, write.  Any
 * thread but the loop's; the calls end when all is done.
 */
#ifndef CELL_DURABLE_PIECES_H
#define CELL_DURABLE_PIECES_H

#include <stdatomic.h>

#include "spawn/process_memory.h"
#include "wire/saved.h"

struct cell__pieces_sum {
	uint64_t bytes, stored; /* before and after compression */
};

/* What is written. */
struct cell__pieces_from {
	int fd; /* a sparse file */
	struct cell__process_memory *process; /* has all but its beginning; or NULL */
	const struct cell__saved_file *early; /* its pieces are in the file to write already (cell__pieces_follow()); or NULL */
};
/*
 * Writes what a sparse file has.  Fills file->pieces and file->key: a new one, for this file alone.  Neither sealed nor packed (compressed), the
 * file on the disk has the bytes where the memory has them, and can be mapped.  The file to read is the code's and may change meanwhile; that
 * damages this session and nothing else.  So may a process that is read; CELL_E_KERNEL: it ended meanwhile.
 */
int cell__pieces_write(const struct cell__pieces_from *from, int to_fd, bool sealed, bool packs, struct cell__saved_file *file,
		       struct cell__pieces_sum *sum, struct cell_error *err);
/*
 * Writes pieces of a memory while a kernel still writes it, from its beginning to its end; neither sealed nor packed.  Ends when the stage is
 * no longer CELL_PIECES_GROWS, or when nothing has come for a while.  Fills early->key and early->pieces, to be freed also after a failure;
 * the first piece is not one of them.
 */
enum { CELL_PIECES_GROWS, CELL_PIECES_COMPLETE };
int cell__pieces_follow(int from_fd, int to_fd, const atomic_int *stage, struct cell__saved_file *early, struct cell_error *err);
/* Its bytes lie where the memory has them, as they are. */
bool cell__pieces_flat(const struct cell__saved_file *file);
/* Of a flat file that is not sealed.  CELL_E_DAMAGED: a piece is not the one that was written. */
int cell__pieces_check(int from_fd, const struct cell__saved_file *file, struct cell_error *err);
/* The way back, into a new file.  CELL_E_DAMAGED as above. */
int cell__pieces_read(int from_fd, const struct cell__saved_file *file, bool sealed, int to_fd, struct cell_error *err);

/*
 * Pieces that are kept elsewhere than in a file, by the name of their file and their number.  Several threads at once.  -1 with the error set.
 */
struct cell__pieces_io {
	int (*put)(void *arg, const char *name, size_t i, const void *bytes, size_t size, struct cell_error *err);
	int (*get)(void *arg, const char *name, size_t i, void *bytes, size_t size, struct cell_error *err);
	void *arg;
};
/* As cell__pieces_write() and cell__pieces_read().  file->name is set. */
int cell__pieces_send(const struct cell__pieces_from *from, const struct cell__pieces_io *io, bool sealed, bool packs,
		      struct cell__saved_file *file, struct cell__pieces_sum *sum, struct cell_error *err);
int cell__pieces_receive(const struct cell__pieces_io *io, const struct cell__saved_file *file, bool sealed, int to_fd,
			 struct cell_error *err);

/* The same for few bytes: sealed with the key and bound to `about`, or with a checksum alone. */
#define CELL_PIECES_SEAL 64
int cell__seal(const unsigned char *key, const char *about, const struct cell__buf *body, struct cell__buf *out, struct cell_error *err);
/* key NULL: it was not sealed.  CELL_E_DAMAGED, CELL_E_DIFFERS: a key is needed, or none was. */
int cell__unseal(const unsigned char *key, const char *about, const char *bytes, size_t size, struct cell__buf *out,
		 struct cell_error *err);

#endif
