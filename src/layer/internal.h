/* What the files of src/layer share. */
#ifndef CELL_LAYER_INTERNAL_H
#define CELL_LAYER_INTERNAL_H

#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>

#include "layer/layer.h"

#define CELL_LAYER_MAX_NAMES 1000000u       /* in one folder */
#define CELL_LAYER_MAX_ENTRIES 100000u      /* in one diff */
#define CELL_LAYER_MAX_DEPTH CELL_LIMIT_WORKSPACE_DEPTH
#define CELL_LAYER_COMPARE_BYTES (64u << 20) /* larger files with a new content of the same size count as changed without a look */
#define CELL_LAYER_TEXT_BYTES (256u << 10)  /* of a file whose text is shown */
#define CELL_LAYER_DIFF_BYTES (1u << 20)    /* of all texts of a diff */

struct cell__layer {
	enum cell__layer_form form;
	char *base, *home, *folder, *upper, *work, *points;
	char *tmp; /* NULL: none */
	int base_fd, folder_fd, upper_fd, tmp_fd;
	int view_fd; /* -1: none */
	struct timespec made;   /* base files with a later ctime were changed since */
	struct timespec copied; /* copy: upper files with an earlier ctime are as they were copied */
	void *committed;        /* tsearch(): struct cell__committed */
	char mark[33]; /* an attribute of the upper folder, and of the merged one */
	unsigned next_point;
	uint64_t max_bytes, max_files;
	pthread_mutex_t lock;
};

struct cell__frozen {
	struct cell__layer *layer;
	char name[32];
	struct timespec at; /* files with an earlier ctime are as they were then */
	struct timespec made; /* the layer's, then */
};

/* A new state that has nothing yet; its parts are "upper", and "tmp" where the layer has that.  NULL: err has the reason. */
struct cell__frozen *cell__frozen_begin(struct cell__layer *layer, struct cell_error *err);
/* A part of a state: a new descriptor, or -1 with errno. */
int cell__open_frozen(const struct cell__frozen *frozen, const char *part);

/* A file of base that a commit wrote: it is not a change underneath. */
struct cell__committed {
	ino_t base_ino, upper_ino;
	struct timespec base_ctime, upper_ctime;
	char path[];
};

static inline bool cell__time_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* ---- files.c: one name at a time ---- */

struct cell__names {
	char **items;
	size_t count, room;
};

void cell__names_finish(struct cell__names *names);
/* Adds the names of a folder, sorted and each once together with those that are there.  -1 with errno. */
int cell__names_add(struct cell__names *names, int dir_fd);

/* A folder in dir_fd that is neither a link nor a mount; -1 with errno. */
int cell__open_folder(int dir_fd, const char *name);
/* A regular file, for reading; -1 with errno. */
int cell__open_regular(int dir_fd, const char *name);
/* 1: *ret_stat is filled, 0: there is no such name.  dir_fd -1: there is no such folder. */
int cell__stat_at(int dir_fd, const char *name, struct stat *ret_stat);
static inline bool cell__is_whiteout(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == 0;
}
/* Whether overlayfs shows nothing of the folder below this one. */
bool cell__is_opaque(int dir_fd);
/* Makes a folder of upper one. */
int cell__set_opaque(int dir_fd, const char *name);
/* Whether overlayfs copied this file up from base; also when the code renamed it since. */
bool cell__has_origin(int dir_fd, const char *name);
/* 1: the same bytes. 0: others, or too many to compare.  -1: one cannot be read. */
int cell__same_content(int a_dir, int b_dir, const char *name, const struct stat *a, const struct stat *b);
/* The rest of one file to the other: shared blocks, where the file system can.  -1 with errno. */
int cell__copy_content(int from_fd, int to_fd);

struct cell__copying {
	uint64_t bytes, files, max_bytes, max_files; /* max 0: no limit */
	bool overlay; /* with whiteouts and opaque folders */
	unsigned depth;
};
/* Copies all of a folder into another, which is empty.  Sockets and devices are left out.  No link is followed. */
int cell__copy_folder(struct cell__copying *copying, int from_fd, int to_fd, struct cell_error *err);
/* One name that is not a folder, as `to_name`, with its mode and mtime. */
int cell__copy_name(int from_dir, const char *name, const struct stat *st, int to_dir, const char *to_name, bool overlay);

/* ---- walk.c: the changes, in an order in which they can be written ---- */

enum cell__change { CELL_CHANGE_ADDED, CELL_CHANGE_CHANGED, CELL_CHANGE_DELETED, CELL_CHANGE_TYPE, CELL_CHANGE_MODE };

struct cell__changed {
	const char *path; /* relative, raw bytes */
	const char *name; /* its last part */
	enum cell__change change;
	int upper_dir, base_dir; /* -1: there is none */
	struct stat upper, base;
	bool has_upper, has_base;
	bool conflict;   /* base was changed underneath */
	bool too_deep, unreadable; /* folders that are listed without their contents */
};

typedef int (*cell__changed_fn)(void *arg, const struct cell__changed *changed, struct cell_error *err);
/* Ends early with what `each` returned, unless that is 0. */
int cell__layer_walk(struct cell__layer *layer, cell__changed_fn each, void *arg, struct cell_error *err);
/* Remembers a file as committed. */
int cell__layer_remember(struct cell__layer *layer, const char *path, const struct stat *base, const struct stat *upper);
/* The path as it is shown: UTF-8; other bytes, control characters and backslashes as \xNN. */
int cell__path_shown(const char *path, struct cell__buf *out);

/* ---- unified.c ---- */

/* Appends a unified diff of two texts. */
int cell__unified(const char *path, const char *a, size_t a_size, const char *b, size_t b_size, struct cell__buf *out);

#endif
