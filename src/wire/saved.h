/*
 * The description of a saved session: which files hold its memory, in which pieces, with which checksums.
 *
 * Pure: bytes to structs and back.  The bytes come from a disk or a network and are hostile.  What they say is bounded here, and checked
 * against the pieces by their checksums when these are read (durable/pieces.h).
 *
 *     {"version": 2 or 3, "id", "owner", "workspace", "executor", "python", "preload", "build", "machine", "cells", "generation", "saved_ms",
 *      "state_id" (may be missing), "notes": {...}, "left": [[kind, name, [variable]]],
 *      "files": [{"name", "inode", "key", "layer", "pieces": [[offset, size, at, stored, codec, checksum]]}],
 *      "own": number of files, "points": [{"name", "cells", "upto", "automatic", "taken_ms", "files": [number, ...], "inodes": [text, ...]}]}
 *
 * The first files are the session's own: its memory, those that it refers to, and its layer.  Those of its points follow, and a description with
 * points has the version 3.
 */
#ifndef CELL_WIRE_SAVED_H
#define CELL_WIRE_SAVED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/limits.h"

#define CELL_SAVED_VERSION 2
#define CELL_SAVED_VERSION_POINTS 3
#define CELL_SAVED_MEMORIES 7                    /* a memory, and those it refers to */
#define CELL_SAVED_FILES 96                      /* those, the layer, and all of the points */
#define CELL_SAVED_POINTS 32
#define CELL_SAVED_PIECE_BYTES (1u << 20)        /* a piece has at most this many, before compression */
#define CELL_SAVED_STORED_BYTES (CELL_SAVED_PIECE_BYTES + (1u << 16)) /* and after it */
#define CELL_SAVED_PIECES (1u << 18)             /* of all files */
#define CELL_SAVED_STATE_BYTES (64u << 20)       /* of the description */
#define CELL_SAVED_OFFSET_MAX ((uint64_t)1 << 42)
#define CELL_SAVED_CHECKSUM 32                   /* the tag of AES-GCM or GMAC, then zeros */
#define CELL_SAVED_NAME 18                       /* "p-", 16 hexadecimal digits */

enum cell__saved_codec { CELL_SAVED_PLAIN, CELL_SAVED_ZSTD };

struct cell__saved_piece {
	uint64_t offset; /* in the memory */
	uint64_t at;     /* in the file */
	uint32_t size, stored;
	uint32_t codec;
	unsigned char checksum[CELL_SAVED_CHECKSUM];
};

struct cell__saved_file {
	char name[CELL_SAVED_NAME + 1];
	uint64_t inode; /* by which the memory refers to it */
	uint64_t live;  /* that of the open file with the same content, in this process; 0: there is none; not saved */
	bool is_layer;  /* an archive of the layer's files, not a memory */
	unsigned char key[32]; /* of this file alone: encrypts pieces, or computes their checksums */
	struct cell__saved_piece *pieces; /* by their offsets */
	size_t n_pieces;
};

/* A kept state of the session; its files are those of the session's list by their positions. */
struct cell__saved_point {
	char *name;
	uint64_t cells, upto, taken_ms;
	bool automatic;
	unsigned files[CELL_SAVED_MEMORIES];    /* its memory, and those it refers to */
	uint64_t inodes[CELL_SAVED_MEMORIES];   /* by which it refers to them */
	size_t n_files;
	int layer; /* -1: none */
};

/*
 * Names the state of a session: another one after each cell, reset and rewind; it is saved with the state and wakes with it.  Who asks whether a
 * cell took place compares it with the one before the cell and with the one that was chosen for after it.  All zeros: not known.
 */
struct cell__state_id {
	uint64_t high, low;
};

struct cell__saved {
	char id[33];
	struct cell__state_id state_id;
	char *owner, *workspace, *executor, *python, *preload, *build, *machine;
	uint64_t cells, generation, saved_ms;
	json_t *notes, *left;
	struct cell__saved_file files[CELL_SAVED_FILES]; /* its own first: the memory, the earlier ones that it refers to, the layer */
	size_t n_files, n_own;
	struct cell__saved_point points[CELL_SAVED_POINTS]; /* the latest first */
	size_t n_points;
};

/* In the place of the version: the session was saved as objects, and nothing of the builds is compared. */
#define CELL_SAVED_PORTABLE "portable/1"
bool cell__saved_is_portable(const struct cell__saved *saved);
/* How many of its own files are memory; the layer is the one behind them, if it has one. */
size_t cell__saved_memories(const struct cell__saved *saved);
void cell__saved_finish(struct cell__saved *saved);
/* CELL_E_DAMAGED, CELL_E_DIFFERS (another version) or CELL_E_NOMEM.  *ret_saved must be finished in any case. */
int cell__saved_read(const char *bytes, size_t size, struct cell__saved *ret_saved, struct cell_error *err);
int cell__saved_write(const struct cell__saved *saved, struct cell__buf *out, struct cell_error *err);
/* 32 hexadecimal digits, as session ids are. */
bool cell__saved_is_id(const char *text);
/* The same form, and not all zeros. */
bool cell__state_id_read(const char *text, struct cell__state_id *ret_id);
void cell__state_id_write(struct cell__state_id id, char out[33]);
bool cell__state_id_is(struct cell__state_id a, struct cell__state_id b);
bool cell__state_id_known(struct cell__state_id id);
/* size hexadecimal digits in lower case. */
bool cell__saved_from_hex(const char *text, unsigned char *out, size_t bytes);
void cell__saved_to_hex(const unsigned char *bytes, size_t n, char *out);

#endif
