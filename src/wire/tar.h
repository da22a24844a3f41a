/*
 * Tar archives, read piece by piece and written head by head.  Pure.
 *
 * Read are the POSIX (pax), GNU and old forms with files, folders and symbolic links.  Everything else that an archive can have (hard
 * links, devices, pipes, sparse files) is refused.  Paths are as the archive has them: the caller must check them.
 */
#ifndef CELL_WIRE_TAR_H
#define CELL_WIRE_TAR_H

#include "base/base.h"

#define CELL_TAR_BLOCK 512u
#define CELL_TAR_MAX_PATH 4096u            /* with its NUL */
#define CELL_TAR_MAX_EXTENDED (64u * 1024u) /* bytes of an extended head */

enum cell__tar_type { CELL_TAR_FILE, CELL_TAR_FOLDER, CELL_TAR_LINK };

struct cell__tar_entry {
	enum cell__tar_type type;
	char path[CELL_TAR_MAX_PATH];
	char target[CELL_TAR_MAX_PATH]; /* of a link */
	uint64_t size;                  /* of a file */
	unsigned mode;                  /* 0 to 0777 */
	int64_t mtime;
};

enum cell__tar_event {
	CELL_TAR_MORE,  /* all bytes were used */
	CELL_TAR_ENTRY, /* `entry` is the next one */
	CELL_TAR_DATA,  /* bytes of its file */
	CELL_TAR_DONE,  /* its file is complete */
};

struct cell__tar {
	struct cell__tar_entry entry;
	char block[CELL_TAR_BLOCK];
	size_t have;           /* bytes of the block */
	struct cell__buf more; /* an extended head, as far as it is here */
	char more_type;        /* '\0': none is being read */
	size_t more_left;
	uint64_t left;         /* bytes of the file to come */
	size_t padding;        /* bytes up to the next block */
	bool in_file, ended;
	bool has_path, has_target, has_size; /* an extended head gave them for the next entry */
	uint64_t size;
};

void cell__tar_init(struct cell__tar *tar);
void cell__tar_finish(struct cell__tar *tar);
/* Uses up some of the bytes.  -1: the archive is damaged (CELL_E_INVALID), too large (CELL_E_LIMIT), or memory has run out. */
int cell__tar_next(struct cell__tar *tar, const char **bytes, size_t *size, const char **ret_data, size_t *ret_size,
		   struct cell_error *err);
/* Whether the archive has its end: one without was cut off. */
bool cell__tar_is_whole(const struct cell__tar *tar);

/* Appends the head of an entry; a file's bytes must follow, with zeros up to a multiple of CELL_TAR_BLOCK. */
int cell__tar_add_head(struct cell__buf *out, const struct cell__tar_entry *entry);
/* Appends the end of an archive. */
int cell__tar_add_end(struct cell__buf *out);

#endif
