/*
 * Saved sessions in a folder (in Redis: redis_place.h):
 *
 *     DIR/ID/lock   locked by the process that has the session awake, or saves or removes it; it has the fencing number (lease.h) and that
 *                   process's name
 *     DIR/ID/state  the description (wire/saved.h), sealed (pieces.h); replaced by a rename
 *     DIR/ID/p-...  the files that it names: the memory, and earlier memories that it refers to
 *
 * A save writes new files first, then the description, then removes files that it does not name.  Whenever it is killed, the old or the new
 * session is there.  The lock is a lock of the open file: a process that is killed has none.  Only its holder writes, and before it replaces the
 * description it looks whether the number is still its own, so nobody can write to a session that has been woken elsewhere meanwhile.
 *
 * Nothing here is trusted but the folder: files are opened below it by name, without following links, and read with limits.  Any thread but
 * the loop's; an object has one user at a time.
 */
#ifndef CELL_DURABLE_H
#define CELL_DURABLE_H

#include <jansson.h>

#include "durable/lease.h"
#include "durable/pieces.h"
#include "spawn/process_memory.h"

/* One session's place.  Locked, until the session sleeps (cell__durable_release()) and from its next load on. */
struct cell__durable;

/* Set in the number of a memory that is a file on a disk; a memfd has its inode's number, which is smaller. */
#define CELL_MEMORY_ON_DISK ((uint64_t)1 << 52)

/* A memory and those it refers to. */
struct cell__memory {
	int fds[CELL_SAVED_MEMORIES];
	uint64_t inodes[CELL_SAVED_MEMORIES]; /* by which the first refers to the others */
	uint64_t live[CELL_SAVED_MEMORIES];   /* by which this process knows them, and the next one will refer to them */
	size_t n;
};

/* A kept state of the session, as struct cell__saved_point. */
struct cell__memory_point {
	char *name;
	uint64_t cells, upto, taken_ms;
	bool automatic;
	struct cell__memory memory; /* descriptors of its own */
	int layer_fd;               /* -1: none */
};

/* Memories to save, or that were read. */
struct cell__memories {
	struct cell__memory own;
	int layer_fd; /* an archive of the layer's files; -1: none */
	struct cell__memory_point *points; /* the latest first */
	size_t n_points;
	struct cell__early *early; /* of the first, which is saved with it; NULL: none */
	struct cell__process_memory *process; /* has the pages of the first, and waits; a reference; NULL: the file has them */
};

/* A memory that is copied while the kernel still writes it. */
struct cell__early {
	atomic_int stage; /* of the memory: CELL_PIECES_GROWS or CELL_PIECES_COMPLETE; any thread sets it */
	int from_fd, to_fd;
	struct cell__saved_file file;
};
#define CELL_MEMORIES_INIT { .layer_fd = -1 }
void cell__memory_point_close(struct cell__memory_point *point);
/* Closes descriptors that are its own; the first: only those, the rest can still be read. */
void cell__memories_let_go(struct cell__memories *memories);
void cell__memories_close(struct cell__memories *memories);

/* 64 hexadecimal digits.  NULL or "": *ret_has is false. */
int cell__durable_key(const char *text, unsigned char ret_key[32], bool *ret_has, struct cell_error *err);

/*
 * Locks a session's place.  dir: a folder, or the URL of Redis.  creates: it is made if there is none; else CELL_E_NOT_FOUND.  CELL_E_CONFLICT: it
 * is locked, and the message says by whom.  key: as in cell__durable_key().  host: may be NULL; its texts are copied.
 */
int cell__durable_open_as(const char *dir, const char *id, const char *key, bool creates, const struct cell__lease_host *host,
			  struct cell__durable **ret_durable, struct cell_error *err);
int cell__durable_open(const char *dir, const char *id, const char *key, bool creates, struct cell__durable **ret_durable,
		       struct cell_error *err);
/* Whether nobody else can have it now.  Any thread, also the loop's. */
bool cell__durable_holds(const struct cell__durable *durable);
/* The fencing number of its lock or lease. */
uint64_t cell__durable_number(const struct cell__durable *durable);
/* packs: compresses.  syncs: a save ends when the disk has it, which is the default; else when Linux has it. */
void cell__durable_settings(struct cell__durable *durable, bool packs, bool syncs);
/* The session sleeps, and its kernel has ended.  Files that a fork of it still has stay as they are. */
void cell__durable_rest(struct cell__durable *durable);
/* It sleeps and its kernel has ended: others may have it from now on. */
void cell__durable_release(struct cell__durable *durable);
bool cell__durable_is_released(const struct cell__durable *durable);
/* The way back, which cell__durable_load() goes by itself. */
int cell__durable_take(struct cell__durable *durable, struct cell_error *err);
/* NULL is allowed.  A place without a saved session is removed. */
void cell__durable_close(struct cell__durable *durable);
/* The description; owned by the place, until the next save. */
int cell__durable_state(struct cell__durable *durable, const struct cell__saved **ret_saved, struct cell_error *err);
/*
 * Its memories, as files that a kernel can continue from: those on the disk where they can be mapped, else copies.  A place that was released is locked
 * again, and its description read again.
 */
int cell__durable_load(struct cell__durable *durable, struct cell__memories *ret_memories, struct cell_error *err);
/*
 * Saves.  saved: without files; taken over, also by a failure.  Memories that are in the last save already are not written again: they are
 * recognised by their inodes, which is safe as long as the caller keeps them open.  CELL_E_CONFLICT: another one has the session; nothing was
 * replaced.
 */
int cell__durable_save(struct cell__durable *durable, struct cell__saved *saved, const struct cell__memories *memories,
		       struct cell__pieces_sum *ret_sum, struct cell_error *err);
/*
 * Begins a save before its memory is complete: copies pieces of it until its stage changes.  A failure does not fail the save, which
 * copies what is not copied yet.  No other call meanwhile.  Files that are not used are removed with the next save.
 */
void cell__durable_follow(struct cell__durable *durable, struct cell__early *early);
/* from_fd: taken over.  NULL: out of memory. */
struct cell__early *cell__early_create(int from_fd);
void cell__early_destroy(struct cell__early *early); /* NULL is allowed */
/* Removes the session with its place; the place is used up. */
int cell__durable_remove(struct cell__durable *durable, struct cell_error *err);
/* The owner of a saved session, whoever has it awake; to be freed.  NULL: CELL_E_NOT_FOUND, or it cannot be read.  No lock is taken. */
char *cell__durable_owner(const char *dir, const char *id, const char *key, struct cell_error *err);
/* {"awake", "name", "url"} of a saved session, whoever owns it: which program has it.  NULL: as above.  No lock is taken. */
json_t *cell__durable_holder(const char *dir, const char *id, const char *key, struct cell_error *err);
/* Which saved sessions are listed, and where the list begins. */
struct cell__saved_search {
	const char *owner; /* NULL: of all owners */
	bool is_client;    /* owner is that of a server's client, in all of its workspaces: "CLIENT/WORKSPACE" */
	size_t limit;      /* of a page, at most CELL_LIMIT_SAVED_PAGE; 0: all at once */
	const char *after; /* "next" of the page before; NULL: the first page */
};
/* As cell_saved_page().  It blocks for the storage. */
json_t *cell__durable_page(const char *dir, const struct cell__saved_search *wanted, const char *key, struct cell_error *err);

#endif
