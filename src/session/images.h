/*
 * Writes PNGs that a run shows, and images that tools return, as files to the folder of the session's option images_dir.
 *
 * A name sorts after the names of earlier images and is unique: time, session, number.  A file appears under its
 * name when it is complete, and never replaces another.  The folder is created with the first image.
 *
 * Everything belongs to the loop's thread but cell__image_write(), which runs on libuv's pool.
 */
#ifndef CELL_SESSION_IMAGES_H
#define CELL_SESSION_IMAGES_H

#include "base/base.h"
#include "loop/loop.h"

struct cell__image_folder {
	char *path; /* absolute, as the caller named it: results list paths in it.  NULL: no images are written */
	char *real; /* without symbolic links: a link that the code puts there later is not followed */
	char tag[9]; /* of the session */
	int64_t last_ms;
	unsigned count;
};

/* path may be NULL: none.  A relative one is relative to the caller's working directory. */
int cell__image_folder_init(struct cell__image_folder *folder, const char *path, const char *session_id, struct cell_error *err);
/* The same folder for another session.  Looks nothing up: any thread. */
int cell__image_folder_copy(const struct cell__image_folder *folder, const char *session_id, struct cell__image_folder *ret_copy,
			    struct cell_error *err);
void cell__image_folder_finish(struct cell__image_folder *folder);

#define CELL__IMAGE_NAME_BYTES 64
/* "20261115T093015123Z-1f3a9c02-0001.png"; a clock that was set back does not bring an earlier name. */
void cell__image_name(struct cell__image_folder *folder, int64_t wall_ms, const char *type, char out[static CELL__IMAGE_NAME_BYTES]);
/* By the first bytes: "png", "jpg", "gif" or "webp", which is also the end of a file's name; NULL: none of them. */
const char *cell__image_type(const void *bytes, size_t size);
/* Any thread.  real: see above.  0, or -1 with errno; EEXIST: the name is taken. */
int cell__image_write(const char *real, const char *name, const void *bytes, size_t size);

/* Writes one image after the other, in order. */
struct cell__image_job;
struct cell__image_queue {
	struct cell__loop *loop;
	struct cell__image_folder *folder;
	struct cell__image_job *first, *last; /* the first is being written */
	size_t bytes;    /* of all of them */
	int error; /* the pool's; looked at when it is done */
	int tries;
	uv_work_t work;
	/* path is NULL and error an errno when it failed, else path is the receiver's.  Ends the job; may add others. */
	void (*written)(void *arg, size_t number, char *path, int error);
	void *arg;
};

void cell__image_queue_init(struct cell__image_queue *queue, struct cell__loop *loop, struct cell__image_folder *folder,
			    void (*written)(void *arg, size_t number, char *path, int error), void *arg);
/* The bytes must stay valid until written() has been called with this number.  -1: out of memory. */
int cell__image_queue_add(struct cell__image_queue *queue, size_t number, const void *bytes, size_t size);

#endif
