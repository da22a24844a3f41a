/* cell_container_build(): an image for the executor "container". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/container.h"
#include "sandbox/places.h"
#include "session/engine.h"
#include "store/redis_url.h"
#include "store/store.h"

static bool is_under(const char *path, const char *folder)
{
	size_t size = strlen(folder);
	return strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

/*
 * What the host trusts and the code could change: it, or a link on the way to it.  The folder `tools` of the storage itself is mounted
 * read-only; deeper ones move with the folders that they are in.
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
			status = cell_fail(err, CELL_E_INVALID, 0,
					   "code in the container can write to the storage, and %s %.70s lies in it, or it in that: move one of them", what,
					   path);
	}
	cell__place_list_finish(&list);
	return status;
}

/* As it will be when it is made; NULL: the folder that it is to be in is not there either. */
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
 * A storage is made when it is missing, as everywhere.  Root's own is given to the container's user, who is never root, where there
 * is nothing in it that somebody else may want to keep: nothing, or tools, which are read-only inside.
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
		(void)sscanf(user, "%9u:%9u", &uid, &gid); /* who that cannot be is refused below */
	if (geteuid() || fstat(dirfd(dir), &st) < 0 || st.st_uid || (st.st_mode & 07) == 07)
		; /* it is theirs, or open to all */
	else if (others)
		status = cell_fail(err, CELL_E_FORBIDDEN, 0,
				   "the storage %.100s is root's, and the container's user is not root; give it to them: chown -R %u:%u %.60s", path, uid,
				   gid, path);
	else if (fchown(dirfd(dir), uid, gid) < 0)
		status = cell_fail(err, CELL_E_IO, errno, "give %.150s to the container's user", path);
	closedir(dir);
	return status;
}

/* From now on nothing in the folder is trusted but what the host vouches for. */
static int describe_shared(const struct cell_container_options *options, const char *const *env, char **ret_json, struct cell_error *err)
{
	bool has_wheels = options->size >= offsetof(struct cell_container_options, install_timeout_ms);
	CELL_AUTO_FREE char *storage = NULL, *text = NULL;
	if (options->storage[0] != '/') /* which is refused there */
		return cell__container_describe(options, NULL, env, ret_json, err);
	storage = real_storage(options->storage);
	if (!storage)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "the storage %.150s", options->storage);
	const char *why = cell__place_refusal(storage);
	if (why)
		return cell_fail(err, CELL_E_INVALID, 0, "%.100s cannot be the storage of a container, which writes to it: %s; give it a folder of its own",
				 storage, why);
	if (check_trusted("the tools folder", options->tools, storage, true, err) < 0 ||
	    check_trusted("the build context", options->context, storage, false, err) < 0 ||
	    check_trusted("the wheel folder", has_wheels ? options->wheel_dir : NULL, storage, false, err) < 0 ||
	    make_storage(storage, options->user, err) < 0 ||
	    cell__container_describe(options, NULL, env, &text, err) < 0 || cell__store_share(storage, err) < 0)
		return -1;
	*ret_json = cell__take_ptr(text);
	return 0;
}

int cell__session_describe_container(const struct cell_container_options *options, const char *const *env, char **ret_json,
				     struct cell_error *err)
{
	struct cell__container_redis redis = { 0 };
	struct cell__redis_url url;
	int status;
	/* Of a shorter struct of another version `storage` is still there. */
	if (!options || options->size < offsetof(struct cell_container_options, auth_token) || !options->storage)
		return cell__container_describe(options, NULL, env, ret_json, err);
	if (!cell__store_is_redis(options->storage))
		return describe_shared(options, env, ret_json, err);
	if (cell__redis_url_parse(options->storage, &url, err) < 0)
		return -1;
	if (url.via) {
		status = cell_fail(err, CELL_E_INVALID, 0, "the storage of a container is reached by the host, not via another socket");
	} else {
		redis = (struct cell__container_redis){ url.host, url.path, url.ca_file, url.port };
		status = cell__container_describe(options, &redis, env, ret_json, err);
	}
	cell__redis_url_finish(&url);
	return status;
}

struct building {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_engine *engine;
	struct cell__http *http;
	struct cell__docker docker;
	json_t *config;
	void (*progress)(void *arg, const char *line);
	void *arg;
	struct cell_error err;
};

static void handle_http_gone(void *arg)
{
	struct building *building = arg;
	cell__docker_finish(&building->docker);
	cell__waiter_signal(&building->waiter);
}

static void handle_built(void *arg, const struct cell_error *err)
{
	struct building *building = arg;
	if (err)
		building->err = *err;
	cell__http_close(building->http, handle_http_gone, building);
}

static void handle_line(void *arg, const char *line)
{
	struct building *building = arg;
	if (building->progress)
		building->progress(building->arg, line);
}

static void start(struct cell__task *task)
{
	struct building *building = (struct building *)task;
	if (cell__http_create(&building->engine->loop, 2, &building->http, &building->err) < 0) {
		cell__waiter_signal(&building->waiter);
		return;
	}
	if (cell__docker_init(&building->docker, building->http, json_string_value(json_object_get(building->config, "engine")),
			      &building->err) < 0) {
		cell__http_close(building->http, handle_http_gone, building);
		return;
	}
	if (!cell__image_build(&building->engine->loop, &building->docker, building->config, handle_line, handle_built, building)) {
		cell_fail(&building->err, CELL_E_NOMEM, 0, "out of memory to build an image");
		cell__http_close(building->http, handle_http_gone, building);
	}
}

int cell_container_build(struct cell_engine *engine, const struct cell_container_options *options,
			 void (*progress)(void *arg, const char *line), void *arg, struct cell_error *err)
{
	CELL_AUTO_FREE char *text = NULL;
	struct building building = { .task.fn = start, .engine = engine, .progress = progress, .arg = arg };
	if (cell__engine_may_wait(engine, "cell_container_build", err) < 0)
		return -1;
	if (!options || !options->context)
		return cell_fail(err, CELL_E_INVALID, 0, "building an image needs a context: a folder with packaging/Dockerfile");
	if (cell__container_describe(options, NULL, NULL, &text, err) < 0)
		return -1;
	building.config = json_loads(text, 0, NULL);
	if (!building.config)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__waiter_init(&building.waiter);
	cell__loop_do(&engine->loop, &building.task, &building.waiter);
	cell__waiter_finish(&building.waiter);
	json_decref(building.config);
	if (building.err.code && err)
		*err = building.err;
	return building.err.code ? -1 : 0;
}
