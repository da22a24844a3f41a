/* The differences between a layer and its base. */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <errno.h>
#include <search.h>
#include <string.h>

struct walk {
	struct cell__layer *layer;
	cell__changed_fn each;
	void *arg;
	struct cell__buf path;
	unsigned depth;
};

/* ---- files that a commit wrote ---- */

static int compare_committed(const void *a, const void *b)
{
	return strcmp(((const struct cell__committed *)a)->path, ((const struct cell__committed *)b)->path);
}

static struct cell__committed *make_record(const char *path)
{
	size_t size = strlen(path) + 1;
	struct cell__committed *record = cell__alloc(1, sizeof *record + size);
	if (record)
		memcpy(record->path, path, size);
	return record;
}

int cell__layer_remember(struct cell__layer *layer, const char *path, const struct stat *base, const struct stat *upper)
{
	struct cell__committed *record = make_record(path);
	struct cell__committed **found = record ? tsearch(record, &layer->committed, compare_committed) : NULL;
	if (!found) {
		free(record);
		return -1;
	}
	if (*found != record)
		free(record);
	(*found)->base_ino = base->st_ino;
	(*found)->base_ctime = base->st_ctim;
	if (upper) {
		(*found)->upper_ino = upper->st_ino;
		(*found)->upper_ctime = upper->st_ctim;
	}
	return 0;
}

static const struct cell__committed *find_record(const struct cell__layer *layer, const char *path)
{
	CELL_AUTO_FREE struct cell__committed *key = layer->committed ? make_record(path) : NULL;
	struct cell__committed **found = key ? tfind(key, &layer->committed, compare_committed) : NULL;
	return found ? *found : NULL;
}

static bool is_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Was it changed since the layer was made, other than by a commit? */
static bool changed_underneath(const struct walk *walk, const struct stat *base)
{
	const struct cell__committed *record = find_record(walk->layer, walk->path.data);
	/* A record from before a discard says nothing: the layer has seen base as it was then. */
	if (record && !cell__time_before(&record->base_ctime, &walk->layer->made))
		return record->base_ino != base->st_ino || !is_time(&record->base_ctime, &base->st_ctim);
	return cell__time_before(&walk->layer->made, &base->st_ctim);
}

/* A folder's record has a slash at the end: its ctime after the last commit that changed names in it. */
static bool is_folder_newer(const struct walk *walk, const struct stat *base)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	const struct cell__committed *record = cell__buf_printf(&key, "%s/", walk->path.data) < 0 ? NULL
												  : find_record(walk->layer, key.data);
	return !record || !is_time(&record->base_ctime, &base->st_ctim);
}

/* Copy: is it there or changed since, so that it is not known whether the code deleted it? */
static bool is_newer(const struct walk *walk, const struct stat *base)
{
	if (!cell__time_before(&walk->layer->made, &base->st_ctim))
		return false;
	return S_ISDIR(base->st_mode) ? is_folder_newer(walk, base) : !find_record(walk->layer, walk->path.data);
}

/* ---- walking ---- */

static int push(struct walk *walk, const char *name, size_t *ret_before)
{
	*ret_before = walk->path.size;
	return (walk->path.size > 0 && cell__buf_add(&walk->path, "/", 1) < 0) || cell__buf_add_str(&walk->path, name) < 0 ? -1 : 0;
}

static void pop(struct walk *walk, size_t before)
{
	walk->path.size = before;
	walk->path.data[before] = '\0';
}

static int emit(struct walk *walk, struct cell__changed *changed, struct cell_error *err)
{
	const char *slash = strrchr(walk->path.data, '/');
	changed->path = walk->path.data;
	changed->name = slash ? slash + 1 : walk->path.data;
	return walk->each(walk->arg, changed, err);
}

static int walk_folder(struct walk *walk, int upper_fd, int base_fd, bool whole, struct cell_error *err);

/* All of a folder of base is gone: its contents first. */
static int walk_deleted(struct walk *walk, struct cell__changed *changed, struct cell_error *err)
{
	if (S_ISDIR(changed->base.st_mode)) {
		CELL_AUTO_FD int base = cell__open_folder(changed->base_dir, changed->name);
		changed->unreadable = base < 0;
		changed->too_deep = base >= 0 && walk->depth >= CELL_LAYER_MAX_DEPTH;
		/* Asked before a commit changes it. */
		bool stays = walk->layer->form == CELL_LAYER_COPY && is_newer(walk, &changed->base);
		int rc = base >= 0 && !changed->too_deep ? walk_folder(walk, -1, base, true, err) : 0;
		if (rc != 0)
			return rc;
		/* Base goes on in this folder, so it stays. */
		if (stays)
			return 0;
	} else {
		changed->conflict = changed_underneath(walk, &changed->base);
	}
	return emit(walk, changed, err);
}

/* whole: overlayfs shows nothing of base in it; says: it is a change itself. */
static int walk_into(struct walk *walk, struct cell__changed *changed, bool whole, bool says, struct cell_error *err)
{
	CELL_AUTO_FD int upper = cell__open_folder(changed->upper_dir, changed->name);
	changed->unreadable = upper < 0;
	changed->too_deep = upper >= 0 && walk->depth >= CELL_LAYER_MAX_DEPTH;
	int rc = says || upper < 0 || changed->too_deep ? emit(walk, changed, err) : 0;
	if (rc != 0 || upper < 0 || changed->too_deep)
		return rc;
	/* A commit has made it meanwhile. */
	CELL_AUTO_FD int base = changed->base_dir < 0 ? -1 : cell__open_folder(changed->base_dir, changed->name);
	return walk_folder(walk, upper, base, whole || cell__is_opaque(upper), err);
}

static bool is_untouched(const struct walk *walk, const struct cell__changed *changed)
{
	const struct cell__layer *layer = walk->layer;
	const struct cell__committed *record = find_record(layer, walk->path.data);
	const struct stat *upper = &changed->upper, *base = &changed->base;
	if (record && record->upper_ino == upper->st_ino && is_time(&record->upper_ctime, &upper->st_ctim) &&
	    record->base_ino == base->st_ino && is_time(&record->base_ctime, &base->st_ctim))
		return true;
	if (layer->form != CELL_LAYER_COPY || !cell__time_before(&upper->st_ctim, &layer->copied))
		return false;
	/* Base may have gone on.  If not, a folder that was renamed over another shows by the times of its files. */
	return changed->conflict || (upper->st_size == base->st_size && is_time(&upper->st_mtim, &base->st_mtim));
}

static int walk_both(struct walk *walk, struct cell__changed *changed, bool whole, struct cell_error *err)
{
	bool other_mode = ((changed->upper.st_mode ^ changed->base.st_mode) & 0777) != 0;
	if (S_ISDIR(changed->upper.st_mode) && S_ISDIR(changed->base.st_mode)) {
		changed->change = CELL_CHANGE_MODE;
		return walk_into(walk, changed, whole, other_mode, err);
	}
	if (S_ISDIR(changed->base.st_mode) || S_ISDIR(changed->upper.st_mode)) {
		changed->change = CELL_CHANGE_TYPE;
		if (S_ISDIR(changed->upper.st_mode)) {
			changed->conflict = changed_underneath(walk, &changed->base);
			return walk_into(walk, changed, false, true, err);
		}
		CELL_AUTO_FD int base = cell__open_folder(changed->base_dir, changed->name);
		int rc = base >= 0 && walk->depth < CELL_LAYER_MAX_DEPTH ? walk_folder(walk, -1, base, true, err) : 0;
		return rc != 0 ? rc : emit(walk, changed, err);
	}
	changed->conflict = changed_underneath(walk, &changed->base);
	if (is_untouched(walk, changed))
		return 0;
	bool other_type = ((changed->upper.st_mode ^ changed->base.st_mode) & S_IFMT) != 0;
	int same = other_type ? 0
			      : cell__same_content(changed->upper_dir, changed->base_dir, changed->name, &changed->upper, &changed->base);
	if (same == 1 && (!other_mode || S_ISLNK(changed->upper.st_mode)))
		return 0;
	changed->unreadable = same < 0;
	changed->change = other_type ? CELL_CHANGE_TYPE : same == 1 ? CELL_CHANGE_MODE : CELL_CHANGE_CHANGED;
	return emit(walk, changed, err);
}

/* It is in the layer alone.  A file that overlayfs copied from base has been deleted there since, or the code has renamed it. */
static int walk_added(struct walk *walk, struct cell__changed *changed, struct cell_error *err)
{
	struct stat st;
	if (S_ISDIR(changed->upper.st_mode))
		return walk_into(walk, changed, false, true, err);
	if (walk->layer->form == CELL_LAYER_OVERLAY && S_ISREG(changed->upper.st_mode) && changed->base_dir >= 0 &&
	    fstat(changed->base_dir, &st) == 0 && cell__time_before(&walk->layer->made, &st.st_ctim)) {
		size_t size = walk->path.size - strlen(changed->name);
		CELL_AUTO_FREE char *folder = cell__strndup(walk->path.data, size);
		const struct cell__committed *record = folder ? find_record(walk->layer, size ? folder : "/") : NULL;
		changed->conflict = !(record && is_time(&record->base_ctime, &st.st_ctim)) &&
				    cell__has_origin(changed->upper_dir, changed->name);
	}
	return emit(walk, changed, err);
}

static int walk_name(struct walk *walk, int upper_fd, int base_fd, const char *name, bool whole, struct cell_error *err)
{
	struct cell__changed changed = { .name = name, .upper_dir = upper_fd, .base_dir = base_fd };
	int has_upper = cell__stat_at(upper_fd, name, &changed.upper), has_base = cell__stat_at(base_fd, name, &changed.base);
	bool whiteout = has_upper == 1 && walk->layer->form == CELL_LAYER_OVERLAY && cell__is_whiteout(&changed.upper);
	if (has_upper < 0 || has_base < 0)
		return cell_fail(err, CELL_E_IO, errno, "read the changes of the workspace");
	changed.has_upper = has_upper == 1 && !whiteout;
	changed.has_base = has_base == 1;
	if (!changed.has_upper && !changed.has_base)
		return 0;
	if (!changed.has_upper && !whiteout && !whole)
		return 0;
	if (!changed.has_upper) {
		changed.change = CELL_CHANGE_DELETED;
		/* Not deleted in the copy, but made in base after it. */
		if (walk->layer->form == CELL_LAYER_COPY && !S_ISDIR(changed.base.st_mode) && is_newer(walk, &changed.base))
			return 0;
		return walk_deleted(walk, &changed, err);
	}
	changed.change = CELL_CHANGE_ADDED;
	return changed.has_base ? walk_both(walk, &changed, whole, err) : walk_added(walk, &changed, err);
}

/* whole: what only base has is deleted. */
static int walk_folder(struct walk *walk, int upper_fd, int base_fd, bool whole, struct cell_error *err)
{
	struct cell__names names = { 0 };
	int rc = 0;
	if ((upper_fd >= 0 && cell__names_add(&names, upper_fd) < 0) || (whole && base_fd >= 0 && cell__names_add(&names, base_fd) < 0))
		rc = cell_fail(err, errno == ENOMEM ? CELL_E_NOMEM : CELL_E_IO, errno, "list a folder of the workspace");
	walk->depth++;
	for (size_t i = 0; rc == 0 && i < names.count; i++) {
		size_t before;
		if (push(walk, names.items[i], &before) < 0) {
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
			break;
		}
		rc = walk_name(walk, upper_fd, base_fd, names.items[i], whole, err);
		pop(walk, before);
	}
	walk->depth--;
	cell__names_finish(&names);
	return rc;
}

int cell__layer_walk(struct cell__layer *layer, cell__changed_fn each, void *arg, struct cell_error *err)
{
	struct walk walk = { .layer = layer, .each = each, .arg = arg, .path = CELL_BUF_INIT };
	int rc = walk_folder(&walk, layer->upper_fd, layer->base_fd, layer->form == CELL_LAYER_COPY, err);
	cell__buf_finish(&walk.path);
	return rc;
}

int cell__path_shown(const char *path, struct cell__buf *out)
{
	size_t size = strlen(path);
	bool utf8 = cell__utf8_ok(path, size);
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)path[i];
		int rc = c < 0x20 || c == 0x7f || c == '\\' || (c >= 0x80 && !utf8) ? cell__buf_printf(out, "\\x%02x", c)
										    : cell__buf_add(out, path + i, 1);
		if (rc < 0)
			return -1;
	}
	return cell__buf_add(out, "", 0);
}
