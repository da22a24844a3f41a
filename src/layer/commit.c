/*
 * Writing changes to the real workspace.
 *
 * Two walks: the first looks for reasons to refuse, the second writes.  A file is written beside its name and renamed over it; between the
 * last look at the old one and the rename another program may still change it.
 */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/protected.h"

struct committing {
	struct cell__layer *layer;
	const char *const *paths; /* NULL: all */
	bool *met;                /* a change was found for the path */
	bool force;
	size_t n_conflicts;
	struct cell__buf conflicts; /* the first of them */
	json_t *committed, *protected, *skipped;
};

enum choice { NOT, PARENT, BELOW, EXACTLY };

static enum choice choose(struct committing *committing, const char *shown)
{
	enum choice choice = NOT;
	if (!committing->paths)
		return BELOW;
	for (size_t i = 0; committing->paths[i]; i++) {
		const char *path = committing->paths[i];
		while (strncmp(path, "./", 2) == 0)
			path += 2;
		size_t n = strlen(path), m = strlen(shown);
		while (n > 0 && path[n - 1] == '/')
			n--;
		enum choice found = n == m && memcmp(path, shown, n) == 0                     ? EXACTLY
				    : n == 0 || (n == 1 && path[0] == '.')                    ? BELOW
				    : n < m && shown[n] == '/' && memcmp(path, shown, n) == 0 ? BELOW
				    : m < n && path[m] == '/' && memcmp(path, shown, m) == 0  ? PARENT
											      : NOT;
		if (found > PARENT)
			committing->met[i] = true;
		choice = found > choice ? found : choice;
	}
	return choice;
}

/* Whether a link leads out of the workspace, by its text alone. */
static bool leads_out(const char *path, const char *target)
{
	int depth = 0;
	if (target[0] == '/')
		return true;
	for (const char *at = path; (at = strchr(at, '/')); at++)
		depth++;
	while (*target) {
		size_t n = strcspn(target, "/");
		if (n == 2 && memcmp(target, "..", 2) == 0)
			depth--;
		else if (n > 0 && !(n == 1 && target[0] == '.'))
			depth++;
		if (depth < 0)
			return true;
		target += n + strspn(target + n, "/");
	}
	return false;
}

/* Why a change is never written, or only if it is named; NULL: it is. */
static const char *obstacle(const struct cell__changed *changed, enum choice choice)
{
	char target[PATH_MAX];
	if (changed->unreadable)
		return "it cannot be read";
	if (changed->too_deep)
		return "it has too many folders in folders";
	if (!changed->has_upper || S_ISREG(changed->upper.st_mode) || S_ISDIR(changed->upper.st_mode))
		return NULL;
	if (!S_ISLNK(changed->upper.st_mode))
		return "it is neither a file, a folder nor a link";
	ssize_t n = readlinkat(changed->upper_dir, changed->name, target, sizeof target - 1);
	target[n > 0 ? n : 0] = '\0';
	return choice != EXACTLY && leads_out(changed->path, target) ? "the link leads out of the workspace; name it to commit it" : NULL;
}

struct judged {
	struct cell__buf shown;
	bool writes;
	bool protected;
	const char *obstacle;
};

static int judge(struct committing *committing, const struct cell__changed *changed, struct judged *ret_judged, struct cell_error *err)
{
	*ret_judged = (struct judged){ .shown = CELL_BUF_INIT };
	if (cell__path_shown(changed->path, &ret_judged->shown) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a commit");
	enum choice choice = choose(committing, ret_judged->shown.data);
	bool is_parent = choice == PARENT && changed->has_upper && S_ISDIR(changed->upper.st_mode) && !changed->has_base;
	if (choice <= PARENT && !is_parent)
		return 0;
	ret_judged->obstacle = obstacle(changed, choice);
	/* What is in a protected folder may be named by itself, and its folders are made. */
	ret_judged->protected = choice == BELOW && cell__protected_path(changed->path);
	ret_judged->writes = !ret_judged->obstacle && !ret_judged->protected;
	return 0;
}

static int check_one(void *arg, const struct cell__changed *changed, struct cell_error *err)
{
	struct committing *committing = arg;
	struct judged judged;
	int rc = judge(committing, changed, &judged, err);
	if (rc == 0 && judged.writes && changed->conflict && !committing->force && ++committing->n_conflicts <= 3)
		if (cell__buf_printf(&committing->conflicts, "%s%.50s", committing->n_conflicts > 1 ? ", " : "", judged.shown.data) < 0)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a commit");
	cell__buf_finish(&judged.shown);
	return rc;
}

/* ---- writing ---- */

static int remember_folder(struct committing *committing, const struct cell__changed *changed)
{
	struct stat st;
	size_t size = strlen(changed->path) - strlen(changed->name);
	CELL_AUTO_FREE char *folder = cell__strndup(changed->path, size);
	if (!folder || fstat(changed->base_dir, &st) < 0)
		return -1;
	return cell__layer_remember(committing->layer, size ? folder : "/", &st, NULL);
}

static int write_regular(struct committing *committing, const struct cell__changed *changed, const char *temporary)
{
	struct stat before, after;
	CELL_AUTO_FD int from = cell__open_regular(changed->upper_dir, changed->name);
	CELL_AUTO_FD int to = from < 0 ? -1
				       : openat(changed->base_dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0 || fstat(from, &before) < 0 || cell__copy_content(from, to) < 0 || fstat(from, &after) < 0)
		return -1;
	if (!cell__file_same(&before, &after)) {
		errno = EBUSY;
		return -1;
	}
	if (changed->has_base && fchown(to, changed->base.st_uid, changed->base.st_gid) < 0 && errno != EPERM)
		return -1;
	/* Nobody's setuid bit is of the code's making. */
	if (fchmod(to, before.st_mode & 0777) < 0 || fsync(to) < 0)
		return -1;
	(void)committing;
	return 0;
}

static int write_link(const struct cell__changed *changed, const char *temporary)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(changed->upper_dir, changed->name, target, sizeof target - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return symlinkat(target, changed->base_dir, temporary);
}

/* Is the old one still as it was seen? */
static bool is_still(const struct cell__changed *changed)
{
	struct stat now;
	int found = cell__stat_at(changed->base_dir, changed->name, &now);
	return found == (changed->has_base ? 1 : 0) &&
	       (!changed->has_base || (now.st_ino == changed->base.st_ino && now.st_ctim.tv_sec == changed->base.st_ctim.tv_sec &&
				       now.st_ctim.tv_nsec == changed->base.st_ctim.tv_nsec));
}

static int write_file(struct committing *committing, const struct cell__changed *changed)
{
	char temporary[48] = ".workcell-commit-";
	struct stat st;
	cell__random_hex(temporary + strlen(temporary), 16);
	int rc = S_ISLNK(changed->upper.st_mode) ? write_link(changed, temporary) : write_regular(committing, changed, temporary);
	if (rc == 0 && changed->has_base && S_ISDIR(changed->base.st_mode))
		rc = unlinkat(changed->base_dir, changed->name, AT_REMOVEDIR);
	else if (rc == 0 && !committing->force && !is_still(changed)) {
		errno = ESTALE;
		rc = -1;
	}
	if (rc == 0)
		rc = changed->has_base || committing->force
			     ? renameat(changed->base_dir, temporary, changed->base_dir, changed->name)
			     : renameat2(changed->base_dir, temporary, changed->base_dir, changed->name, RENAME_NOREPLACE);
	if (rc < 0) {
		int error = errno == EEXIST ? ESTALE : errno;
		(void)unlinkat(changed->base_dir, temporary, 0);
		errno = error;
		return -1;
	}
	if (cell__stat_at(changed->base_dir, changed->name, &st) != 1 ||
	    cell__layer_remember(committing->layer, changed->path, &st, &changed->upper) < 0)
		return -1;
	return 0;
}

static int write_folder(struct committing *committing, const struct cell__changed *changed)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	struct stat st;
	/*
	 * A mounted overlay shows of a new folder the upper one alone, also when base has one as well: files that the code deletes there leave
	 * no mark.  The folder stays so for the next mount, and for the next walk.
	 */
	bool is_new = !changed->has_base || !S_ISDIR(changed->base.st_mode);
	if (is_new && committing->layer->form == CELL_LAYER_OVERLAY && cell__set_opaque(changed->upper_dir, changed->name) < 0)
		return -1;
	if (changed->has_base && !S_ISDIR(changed->base.st_mode) && unlinkat(changed->base_dir, changed->name, 0) < 0)
		return -1;
	if (is_new && mkdirat(changed->base_dir, changed->name, 0700) < 0)
		return -1;
	CELL_AUTO_FD int fd = cell__open_folder(changed->base_dir, changed->name);
	if (fd < 0 || fchmod(fd, changed->upper.st_mode & 0777) < 0 || fstat(fd, &st) < 0 ||
	    cell__buf_printf(&key, "%s/", changed->path) < 0)
		return -1;
	return cell__layer_remember(committing->layer, key.data, &st, NULL);
}

static int write_change(struct committing *committing, const struct cell__changed *changed)
{
	if (changed->base_dir < 0) {
		errno = ENOENT; /* its folder could not be made, or was not named */
		return -1;
	}
	int rc;
	if (!changed->has_upper && !committing->force && !S_ISDIR(changed->base.st_mode) && !is_still(changed)) {
		errno = ESTALE;
		return -1;
	}
	if (!changed->has_upper)
		rc = unlinkat(changed->base_dir, changed->name, S_ISDIR(changed->base.st_mode) ? AT_REMOVEDIR : 0);
	else if (S_ISDIR(changed->upper.st_mode))
		rc = write_folder(committing, changed);
	else
		rc = write_file(committing, changed);
	return rc < 0 ? -1 : remember_folder(committing, changed);
}

static const char *reason_of(int sys)
{
	switch (sys) {
	case ESTALE:
		return "it was changed underneath meanwhile";
	case EBUSY:
		return "it changed while it was read";
	case ENOTEMPTY:
		return "the folder has other files in the real workspace";
	case EXDEV:
	case ELOOP:
	case ENOTDIR:
		return "a part of its path is a link or a mount in the real workspace";
	default:
		return strerrordesc_np(sys) ? strerrordesc_np(sys) : "it could not be written";
	}
}

static int skip(json_t *list, const char *shown, const char *reason)
{
	return json_array_append_new(list, json_pack("{s:s, s:s}", "path", shown, "reason", reason));
}

static int write_one(void *arg, const struct cell__changed *changed, struct cell_error *err)
{
	struct committing *committing = arg;
	struct judged judged;
	int rc = judge(committing, changed, &judged, err);
	if (rc == 0 && judged.protected)
		rc = json_array_append_new(committing->protected, json_string(judged.shown.data));
	else if (rc == 0 && judged.obstacle)
		rc = skip(committing->skipped, judged.shown.data, judged.obstacle);
	else if (rc == 0 && judged.writes && write_change(committing, changed) < 0)
		rc = skip(committing->skipped, judged.shown.data, reason_of(errno));
	else if (rc == 0 && judged.writes)
		rc = json_array_append_new(committing->committed, json_string(judged.shown.data));
	cell__buf_finish(&judged.shown);
	return rc < 0 && err && !err->code ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a commit") : rc;
}

static int check(struct committing *committing, struct cell_error *err)
{
	if (cell__layer_walk(committing->layer, check_one, committing, err) < 0)
		return -1;
	for (size_t i = 0; committing->paths && committing->paths[i]; i++)
		if (!committing->met[i])
			return cell_fail(err, CELL_E_NOT_FOUND, 0, "nothing was changed at \"%.160s\"", committing->paths[i]);
	if (committing->n_conflicts == 0)
		return 0;
	return cell_fail(err, CELL_E_CONFLICT, 0,
			 "%zu %s changed in the real workspace since the layer was made: %s%s; nothing was committed",
			 committing->n_conflicts, committing->n_conflicts == 1 ? "file was" : "files were", committing->conflicts.data,
			 committing->n_conflicts > 3 ? ", ..." : "");
}

json_t *cell__layer_commit(struct cell__layer *layer, const char *const *paths, bool force, struct cell_error *err)
{
	struct cell_error failure = { 0 };
	size_t n = 0;
	while (paths && paths[n])
		n++;
	struct committing committing = { .layer = layer,
					 .paths = paths && n ? paths : NULL,
					 .force = force,
					 .met = cell__alloc(n + 1, sizeof *committing.met),
					 .conflicts = CELL_BUF_INIT,
					 .committed = json_array(),
					 .protected = json_array(),
					 .skipped = json_array() };
	int rc = committing.met && committing.committed && committing.protected && committing.skipped
			 ? 0
			 : cell_fail(&failure, CELL_E_NOMEM, 0, "out of memory for a commit");
	pthread_mutex_lock(&layer->lock);
	if (rc == 0)
		rc = check(&committing, &failure);
	if (rc == 0)
		rc = cell__layer_walk(layer, write_one, &committing, &failure);
	pthread_mutex_unlock(&layer->lock);
	json_t *outcome = rc < 0 ? NULL
				 : json_pack("{s:O, s:O, s:O}", "committed", committing.committed, "protected", committing.protected,
					     "skipped", committing.skipped);
	if (rc == 0 && !outcome)
		cell_fail(&failure, CELL_E_NOMEM, 0, "out of memory for a commit");
	json_decref(committing.committed);
	json_decref(committing.protected);
	json_decref(committing.skipped);
	cell__buf_finish(&committing.conflicts);
	free(committing.met);
	if (err)
		*err = failure;
	return outcome;
}
