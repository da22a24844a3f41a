/*
 * A layer: what a session's code changed in its workspace, kept apart from the real files until somebody commits it.
 *
 *     base    the real workspace, which the layer never writes to but in cell__layer_commit()
 *     upper   overlay: the changes, as overlayfs keeps them (a file is a new content, a device 0/0 a deletion); the code works in the
 *             merged folder that the session's namespaces mount from base and upper
 *             copy: a whole copy of base, in which the code works
 *     tmp     where asked for: a folder for temporary files, beside upper.  States of the layer have it too; it is neither in diffs nor committed,
 *             and stays when changes are discarded
 *     frozen  a copy of upper, kept for a point
 *
 * Everything in upper was made by the code and is hostile: names are looked up one by one in open descriptors, with openat2 (beneath, no
 * links, no mounts).  The same holds for base.  A layer has a lock; any thread may call any function but create, adopt and destroy, which
 * are its owner's.  Functions read and write files and may take long: never on the loop's thread.
 *
 * When did base change underneath?  A file that was changed since the layer was made has a later ctime, which no program can set.  So
 * making a layer takes no walk over base.  A commit remembers the files that it wrote.
 */
#ifndef CELL_LAYER_H
#define CELL_LAYER_H

#include <jansson.h>

#include "base/base.h"

struct cell__layer;

enum cell__layer_form { CELL_LAYER_OVERLAY, CELL_LAYER_COPY };

/*
 * A layer over `base`, a real path, in a new folder of `home`, which code must not reach otherwise.  max_bytes, max_files: of a copy,
 * CELL_E_LIMIT beyond; 0: no limit.
 */
int cell__layer_create(const char *base, const char *home, enum cell__layer_form form, uint64_t max_bytes, uint64_t max_files,
		       struct cell__layer **ret_layer, struct cell_error *err);
/* Gives a new layer a folder for temporary files.  On failure it has none. */
int cell__layer_add_tmp(struct cell__layer *layer, struct cell_error *err);
/* Removes folders of layers in `home` whose process was killed: those of this user that no process has locked. */
void cell__layer_reclaim(const char *home);
/* With all its files.  Its frozen states must be gone.  NULL is allowed. */
void cell__layer_destroy(struct cell__layer *layer);

enum cell__layer_form cell__layer_form(const struct cell__layer *layer);
/* "overlay" or "copy". */
const char *cell__layer_word(const struct cell__layer *layer);
/* Its own folder: {upper, work} and the frozen states.  Valid as long as the layer. */
const char *cell__layer_folder(const struct cell__layer *layer);
/* Where the changes are; with CELL_LAYER_COPY the folder in which the code works. */
const char *cell__layer_upper(const struct cell__layer *layer);
/* The folder for temporary files, named "tmp" beside upper; NULL: none. */
const char *cell__layer_tmp(const struct cell__layer *layer);
/* For overlayfs. */
const char *cell__layer_work(const struct cell__layer *layer);
/* Where frozen states are: counted in a limit together with upper. */
const char *cell__layer_points(const struct cell__layer *layer);

/*
 * The merged folder that now shows an overlay; taken over, -1: none.  While an overlay has one, the layer changes files through it alone,
 * because overlayfs does not expect changes of its parts.
 */
void cell__layer_attach(struct cell__layer *layer, int view_fd);

/*
 * The merged folder of an overlay, as this process sees it: a new descriptor.  The process must have the layer's mark, so that no other can be
 * taken for it.
 */
int cell__layer_open_view(const struct cell__layer *layer, int64_t pid, int *ret_fd, struct cell_error *err);
/* The same in the root of a process, open. */
int cell__layer_find_view(const struct cell__layer *layer, int root_fd, int *ret_fd, struct cell_error *err);

/* ---- points ---- */

struct cell__frozen;

/* Whether a state of one can be restored in the other. */
bool cell__layer_fits(const struct cell__layer *layer, const struct cell__layer *other);
/* Keeps the state of now. */
int cell__layer_freeze(struct cell__layer *layer, struct cell__frozen **ret_frozen, struct cell_error *err);
/* NULL is allowed. */
void cell__frozen_destroy(struct cell__frozen *frozen);
/*
 * Makes the files what they were, also of a layer that fits; NULL: what base has, so that the layer is empty.  pid: a process that sees an overlay now, whose merged
 * folder is used; it must have the layer's mark, so that no other process can be taken for it.  0: the one that is attached, or none does.
 */
/* Fails where a kernel could not mount the layer again, because no more files can be made.  Before one is ended for another. */
int cell__layer_check_room(const struct cell__layer *layer, struct cell_error *err);
int cell__layer_restore(struct cell__layer *layer, int64_t pid, const struct cell__frozen *frozen, struct cell_error *err);
/* Another layer over the same base with the state of `frozen` (of this layer), or of now with NULL. */
int cell__layer_fork(struct cell__layer *layer, const struct cell__frozen *frozen, struct cell__layer **ret_layer, struct cell_error *err);

/*
 * pack.c: a state as a file, from its beginning, for a saved session; ret_fd: without a name, of the caller's.  Unpacked, in a layer of the same form
 * without an attached folder: its files become those of the state.  CELL_E_DIFFERS: another form.  CELL_E_DAMAGED: not such a file.
 */
int cell__frozen_pack(const struct cell__frozen *frozen, int *ret_fd, struct cell_error *err);
int cell__layer_unpack(struct cell__layer *layer, int fd, struct cell_error *err);
/* The same, kept as a state of the layer, whose files stay as they are. */
int cell__frozen_unpack(struct cell__layer *layer, int fd, struct cell__frozen **ret_frozen, struct cell_error *err);

/* ---- changes ---- */

/*
 * {"form", "files": [{"path", "change", "type", ...}], "added", "changed", "deleted", "truncated"}; docs/branches.md lists the members.
 * NULL: err has the reason.
 */
json_t *cell__layer_diff(struct cell__layer *layer, bool with_text, struct cell_error *err);
/*
 * Writes changes to base, each file at once or not at all: all of them, or those at and below these paths (as diff shows them;
 * NULL-terminated).  Before anything is written, CELL_E_CONFLICT: files changed underneath, unless force.  Protected names (base/protected.h) are
 * left out, unless they are named exactly.  {"committed": [path], "protected": [path], "skipped": [{"path", "reason"}]}.
 */
json_t *cell__layer_commit(struct cell__layer *layer, const char *const *paths, bool force, struct cell_error *err);

/* ---- owners ---- */

/*
 * New files of this thread belong to the owner of the folder until cell__act_as_caller(), and the thread keeps its rights to other files.
 * Only root can, and only if the owner is another user; else, and with fd -1, nothing changes.
 */
struct cell__acting {
	bool on;
	struct {
		uint32_t effective, permitted, inheritable;
	} caps[2]; /* as capget() fills them */
};
struct cell__acting cell__act_as_owner(int fd);
void cell__act_as_caller(const struct cell__acting *acting);

#endif
