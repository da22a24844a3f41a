/* What a layer changes, as JSON. */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/protected.h"

struct diffing {
	struct cell__layer *layer;
	json_t *files;
	bool with_text;
	size_t text_bytes; /* so far */
	size_t counts[3];  /* added, changed, deleted */
	bool truncated;
};

static const char *type_word(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "folder";
	case S_IFLNK:
		return "link";
	case S_IFIFO:
		return "fifo";
	case S_IFSOCK:
		return "socket";
	default:
		return "device";
	}
}

static int set(json_t *object, const char *key, json_t *value)
{
	return json_object_set_new(object, key, value);
}

static int set_mode(json_t *object, const char *key, mode_t mode)
{
	char text[8];
	snprintf(text, sizeof text, "%04o", (unsigned)mode & 0777);
	return set(object, key, json_string(text));
}

static int set_shown(json_t *object, const char *key, const char *raw)
{
	CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
	return cell__path_shown(raw, &shown) < 0 ? -1 : set(object, key, json_stringn(shown.data ? shown.data : "", shown.size));
}

/* 1: it is a text, and short enough. */
static int read_text(int dir_fd, const char *name, bool exists, struct cell__buf *out)
{
	if (!exists)
		return 1;
	CELL_AUTO_FD int fd = cell__open_regular(dir_fd, name);
	if (fd < 0 || cell__fd_read_all(fd, CELL_LAYER_TEXT_BYTES, out) < 0)
		return 0;
	return out->size == 0 || (!memchr(out->data, '\0', out->size) && cell__utf8_ok(out->data, out->size));
}

static int add_text(struct diffing *diffing, const struct cell__changed *changed, json_t *file)
{
	CELL_AUTO_BUF struct cell__buf old = CELL_BUF_INIT, new = CELL_BUF_INIT, out = CELL_BUF_INIT, shown = CELL_BUF_INIT;
	bool in_upper = changed->has_upper && S_ISREG(changed->upper.st_mode),
	     in_base = changed->has_base && S_ISREG(changed->base.st_mode);
	if (!diffing->with_text || changed->change == CELL_CHANGE_MODE || (!in_upper && !in_base))
		return 0;
	if (diffing->text_bytes >= CELL_LAYER_DIFF_BYTES) {
		diffing->truncated = true;
		return 0;
	}
	if (!read_text(changed->base_dir, changed->name, in_base, &old) || !read_text(changed->upper_dir, changed->name, in_upper, &new))
		return set(file, "binary", json_true());
	if (cell__path_shown(changed->path, &shown) < 0 ||
	    cell__unified(shown.data, old.data ? old.data : "", old.size, new.data ? new.data : "", new.size, &out) < 0)
		return -1;
	diffing->text_bytes += out.size;
	return set(file, "diff", json_stringn(out.data, out.size));
}

static int add_file(void *arg, const struct cell__changed *changed, struct cell_error *err)
{
	static const char *const words[] = { "added", "changed", "deleted", "type", "mode" };
	struct diffing *diffing = arg;
	char target[PATH_MAX];
	if (json_array_size(diffing->files) >= CELL_LAYER_MAX_ENTRIES) {
		diffing->truncated = true;
		return 1;
	}
	diffing->counts[changed->change == CELL_CHANGE_ADDED ? 0 : changed->change == CELL_CHANGE_DELETED ? 2 : 1]++;
	const struct stat *st = changed->has_upper ? &changed->upper : &changed->base;
	json_t *file = json_object();
	int rc = !file || set_shown(file, "path", changed->path) < 0 || set(file, "change", json_string(words[changed->change])) < 0 ||
				 set(file, "type", json_string(type_word(st->st_mode))) < 0
			 ? -1
			 : 0;
	if (changed->has_upper && S_ISREG(changed->upper.st_mode))
		rc |= set(file, "size", json_integer(changed->upper.st_size));
	if (changed->has_base && S_ISREG(changed->base.st_mode))
		rc |= set(file, "old_size", json_integer(changed->base.st_size));
	if (changed->change == CELL_CHANGE_TYPE)
		rc |= set(file, "old_type", json_string(type_word(changed->base.st_mode)));
	if (changed->has_upper && changed->has_base && ((changed->upper.st_mode ^ changed->base.st_mode) & 0777) &&
	    !S_ISLNK(changed->upper.st_mode))
		rc |= set_mode(file, "mode", changed->upper.st_mode) | set_mode(file, "old_mode", changed->base.st_mode);
	if (changed->has_upper && S_ISLNK(changed->upper.st_mode)) {
		ssize_t n = readlinkat(changed->upper_dir, changed->name, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		rc |= set_shown(file, "target", target);
	}
	if (cell__protected_path(changed->path))
		rc |= set(file, "protected", json_true());
	if (changed->conflict)
		rc |= set(file, "conflict", json_true());
	if (changed->unreadable)
		rc |= set(file, "unreadable", json_true());
	if (changed->too_deep)
		rc |= set(file, "too_deep", json_true());
	rc |= add_text(diffing, changed, file);
	if (rc < 0 || json_array_append(diffing->files, file) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a diff");
	json_decref(file);
	return rc;
}

json_t *cell__layer_diff(struct cell__layer *layer, bool with_text, struct cell_error *err)
{
	struct diffing diffing = { .layer = layer, .files = json_array(), .with_text = with_text };
	pthread_mutex_lock(&layer->lock);
	int rc = diffing.files ? cell__layer_walk(layer, add_file, &diffing, err)
			       : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a diff");
	pthread_mutex_unlock(&layer->lock);
	if (rc < 0) {
		json_decref(diffing.files);
		return NULL;
	}
	json_t *diff = json_pack("{s:s, s:o, s:I, s:I, s:I, s:b}", "form", cell__layer_word(layer), "files", diffing.files, "added",
				 (json_int_t)diffing.counts[0], "changed", (json_int_t)diffing.counts[1], "deleted",
				 (json_int_t)diffing.counts[2], "truncated", diffing.truncated);
	if (!diff)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a diff");
	return diff;
}
