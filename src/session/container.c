/* The storage of a container: a folder that its code writes to, so only the content that the host recorded as trusted is trusted. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executors/container/container.h"
#include "sandbox/places.h"
#include "session/options.h"
#include "storage/store.h"
#include "wire/redis_url.h"

static bool is_under(const char *path, const char *folder)
{
	size_t size = strlen(folder);
	return strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

/*
 * Refuses paths that the host trusts and the code could change, directly or through a link on the way. The folder `tools` of the storage
 * itself is mounted read-only; deeper folders move with their parents.
 */
static int check_trusted(const char *what, const char *path, const char *storage, bool is_tools, struct cell_error *err)
{
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	CELL_AUTO_BUF struct cell__buf allowed = CELL_BUF_INIT;
	int status = path ? cell__place_add(&list, what, true, path, err) : 0;
	if (!status && cell__buf_printf(&allowed, "%s/tools", storage) < 0)
		status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (char **at = list.count ? list.items[0].points : NULL; !status && at && *at; at++) {
		if (is_tools && !at[1] && !strcmp(*at, allowed.data))
			continue;
		if (is_under(*at, storage) || (is_tools && !at[1] && is_under(storage, *at)))
			status = cell_fail(
				err, CELL_E_INVALID, 0,
				"code in the container can write to the storage, which contains %s %.70s or lies inside it: move one of them",
				what, path);
	}
	cell__place_list_finish(&list);
	return status;
}

/* The path that it will have when it is made; NULL: its parent folder does not exist either. */
static char *real_storage(const char *path)
{
	char *real = realpath(path, NULL);
	struct cell__buf made = CELL_BUF_INIT;
	size_t size = strlen(path);
	if (real || errno != ENOENT)
		return real;
	while (size > 1 && path[size - 1] == '/')
		size--;
	CELL_AUTO_FREE char *above = cell__strndup(path, size);
	char *name = above ? strrchr(above, '/') : NULL;
	if (!name)
		return NULL;
	*name = '\0';
	CELL_AUTO_FREE char *parent = realpath(name > above ? above : "/", NULL);
	if (!parent || cell__buf_printf(&made, "%s/%s", strcmp(parent, "/") ? parent : "", name + 1) < 0)
		return NULL;
	return cell__buf_take(&made);
}

/*
 * Makes the storage if it is missing, as all executors do. If root owns it, it is given to the container's user (who is never root),
 * provided that it holds no file another user may want to keep: it is empty, or has only tools, which are read-only inside.
 */
static int make_storage(const char *path, const char *user, struct cell_error *err)
{
	unsigned uid = CELL_CONTAINER_UID, gid = CELL_CONTAINER_UID, others = 0;
	struct dirent *entry;
	struct stat st;
	int status = 0;
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "make %.150s", path);
	DIR *dir = opendir(path);
	if (!dir)
		return cell_fail(err, CELL_E_IO, errno, "open %.150s", path);
	while ((entry = readdir(dir)))
		others += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "tools");
	if (user)
		(void)sscanf(user, "%9u:%9u", &uid, &gid); /* an invalid user is refused below */
	if (geteuid() || fstat(dirfd(dir), &st) < 0 || st.st_uid || (st.st_mode & 07) == 07)
		; /* the container's user owns it, or everybody may write */
	else if (others)
		status = cell_fail(
			err, CELL_E_FORBIDDEN, 0,
			"the storage %.100s belongs to root, but the container's user is not root; change its owner: chown -R %u:%u %.60s",
			path, uid, gid, path);
	else if (fchown(dirfd(dir), uid, gid) < 0)
		status = cell_fail(err, CELL_E_IO, errno, "change the owner of %.150s to the container's user", path);
	closedir(dir);
	return status;
}

/* NULL: not a folder of the host. A shorter struct of another version still has `storage`. */
static const char *folder_of(const struct cell_container_options *options)
{
	if (!options || options->size < offsetof(struct cell_container_options, auth_token) || !options->storage)
		return NULL;
	/* A path that is not absolute is refused by the executor. */
	return options->storage[0] != '/' || cell__redis_url_is(options->storage) ? NULL : options->storage;
}

int cell__options_make_storage(const struct cell_container_options *options, char **ret_storage, struct cell_error *err)
{
	const char *given = folder_of(options);
	bool has_wheels = given && options->size >= offsetof(struct cell_container_options, install_timeout_ms);
	CELL_AUTO_FREE char *storage = given ? real_storage(given) : NULL;
	*ret_storage = NULL;
	if (!given)
		return 0;
	if (!storage)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "the storage %.150s", given);
	const char *why = cell__place_refusal(storage);
	if (why)
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"%.100s cannot be the storage of a container, because the container writes to it: %s; use a separate folder",
			storage, why);
	if (check_trusted("the tools folder", options->tools, storage, true, err) < 0 ||
	    check_trusted("the build context", options->context, storage, false, err) < 0 ||
	    check_trusted("the wheel folder", has_wheels ? options->wheel_dir : NULL, storage, false, err) < 0 ||
	    make_storage(storage, options->user, err) < 0)
		return -1;
	*ret_storage = cell__take_ptr(storage);
	return 0;
}
