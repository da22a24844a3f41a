/* The configuration of a container: the options as JSON, the folder it shares with us, and the request to the engine. */
#define _GNU_SOURCE
#include "base/limits.h"
#include "base/tree.h"
#include "wire/redis_url.h"
#include "executors/container/container.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/sized.h"
#include "executors/remote/remote.h"

#define MIN_CPU_QUOTA 1000
#define CPU_PERIOD 100000
#define MIN_PIDS 16
#define DEFAULT_TMP "512m"
#define MAX_NAME 200
#define RANDOM_TOKEN 64u
#define MAX_DEPS 200
#define INSIDE_FOLDER "/run/workcell"
#define INSIDE_STORAGE "/workspace"
#define INSIDE_TOOLS "/app/tools"
#define INSIDE_WHEELS "/app/wheels"
#define INSIDE_HOME "/home/workcell"
#define PROGRAM "workcell: " /* as its errors begin */
#define HOST_FOLDER ".host" /* in the storage: content that the host trusts (storage/shared.h) */

/* ---- options ---- */

/* Names of images and containers: without characters that are special in a URL. */
static int check_name(const char *what, const char *text, const char *more, struct cell_error *err)
{
	for (const char *at = text; text && *at; at++) {
		if (!isalnum((unsigned char)*at) && !strchr(more, *at))
			return cell_fail(err, CELL_E_INVALID, 0, "the container's %s is '%.100s', expected only letters, digits and %s",
					 what, text, more);
	}
	if (text && (!*text || strlen(text) > MAX_NAME))
		return cell_fail(err, CELL_E_INVALID, 0, "the container's %s is empty or longer than %d characters", what, MAX_NAME);
	return 0;
}

/* Whether the server inside parses this as one token when it reads it from a file. */
static bool is_token(const char *token)
{
	size_t size = strlen(token), i = 0;

	while (token[i] > ' ' && token[i] <= '~')
		i++;
	return size && i == size && size < sizeof(((struct cell__container_place *)0)->token) && strncmp(token, "tokens:", 7);
}

static int check_numbers(const struct cell_container_options *opts, struct cell_error *err)
{
	if (opts->memory_limit != -1 && opts->memory_limit < CELL_LIMIT_MIN_CONTAINER_MEMORY)
		return cell_fail(err, CELL_E_INVALID, 0, "memory_limit is %lld, expected at least %d, or -1 for no limit",
				 (long long)opts->memory_limit, CELL_LIMIT_MIN_CONTAINER_MEMORY);
	if (opts->cpu_quota && opts->cpu_quota < MIN_CPU_QUOTA)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "cpu_quota is %lld, expected at least %d microseconds per 100 ms, or 0 for no limit",
				 (long long)opts->cpu_quota, MIN_CPU_QUOTA);
	if (opts->pids_limit != -1 && opts->pids_limit < MIN_PIDS)
		return cell_fail(err, CELL_E_INVALID, 0, "pids_limit is %lld, expected at least %d, or -1 for no limit",
				 (long long)opts->pids_limit, MIN_PIDS);
	if (opts->startup_timeout_ms <= 0)
		return cell_fail(err, CELL_E_INVALID, 0, "startup_timeout_ms is %lld, expected more than 0",
				 (long long)opts->startup_timeout_ms);
	if (opts->install_timeout_ms <= 0)
		return cell_fail(err, CELL_E_INVALID, 0, "install_timeout_ms is %lld, expected more than 0",
				 (long long)opts->install_timeout_ms);
	if (opts->auth_token && opts->auth_disabled)
		return cell_fail(err, CELL_E_INVALID, 0, "auth_token and auth_disabled cannot be used together");
	if (opts->auth_token && !is_token(opts->auth_token))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "auth_token must have 1 to 4096 visible ASCII characters and must not begin with \"tokens:\"");
	return 0;
}

/* Running as root: use the storage owner's uid, so that host and container can both write. */
static int parse_user(const char *text, const char *storage, unsigned *ret_uid, unsigned *ret_gid, struct cell_error *err)
{
	struct stat st;
	char end;

	*ret_uid = getuid() ? (unsigned)getuid() : CELL_CONTAINER_UID;
	*ret_gid = getuid() ? (unsigned)getgid() : CELL_CONTAINER_UID;
	if (!getuid() && storage && !stat(storage, &st) && st.st_uid && st.st_gid) {
		*ret_uid = st.st_uid;
		*ret_gid = st.st_gid;
	}
	if (text && (sscanf(text, "%9u:%9u%c", ret_uid, ret_gid, &end) != 2 || !*ret_uid))
		return cell_fail(err, CELL_E_INVALID, 0, "the container's user is '%.60s', expected UID:GID other than root", text);
	return 0;
}

/* Can that user read it, and write to it?  By its mode alone. */
static int check_folder(const char *what, const char *path, unsigned uid, unsigned gid, bool writes, struct cell_error *err)
{
	struct stat st;
	unsigned want = writes ? 7 : 5, have;

	if (!path)
		return 0;
	if (*path != '/')
		return cell_fail(err, CELL_E_INVALID, 0, "%s of a container must be an absolute path, not '%.100s'", what, path);
	if (stat(path, &st) < 0)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "%s %.150s", what, path);
	if (!S_ISDIR(st.st_mode))
		return cell_fail(err, CELL_E_INVALID, 0, "%s %.150s is not a folder", what, path);
	have = st.st_uid == uid ? st.st_mode >> 6 : st.st_gid == gid ? st.st_mode >> 3 : st.st_mode;
	if ((have & want) != want)
		return cell_fail(err, CELL_E_FORBIDDEN, 0,
				 "%s %.100s is not accessible to the container's user %u:%u; change its owner, or the user", what, path,
				 uid, gid);
	return 0;
}

/* With the folders in it that are written to: root may have made some, long ago. */
static int check_storage(const char *path, unsigned uid, unsigned gid, struct cell_error *err)
{
	static const char *const inner[] = { "artifacts", "workflows", "deps", "workspaces", NULL };
	char folder[PATH_MAX];

	if (check_folder("the storage", path, uid, gid, true, err) < 0)
		return -1;
	for (size_t i = 0; path && inner[i]; i++) {
		if (snprintf(folder, sizeof(folder), "%s/%s", path, inner[i]) < PATH_MAX && access(folder, F_OK) == 0 &&
		    check_folder("the storage's", folder, uid, gid, true, err) < 0)
			return -1;
	}
	return 0;
}

static json_t *text_list(const char *const *texts)
{
	json_t *list = json_array();

	for (; list && texts && *texts; texts++)
		json_array_append_new(list, json_string(*texts));
	return list;
}

static char *real_path(const char *path)
{
	return path ? realpath(path, NULL) : NULL;
}

/* The installer of packages, and its sources. */
static int add_deps(json_t *root, const struct cell_container_options *opts, unsigned uid, unsigned gid, struct cell_error *err)
{
	CELL_AUTO_FREE char *wheels = NULL;
	size_t n = 0;

	while (opts->deps && opts->deps[n])
		n++;
	if (n > MAX_DEPS)
		return cell_fail(err, CELL_E_LIMIT, 0, "a container takes at most %d packages, %zu were given", MAX_DEPS, n);
	if (check_folder("the wheel folder", opts->wheel_dir, uid, gid, false, err) < 0)
		return -1;
	wheels = real_path(opts->wheel_dir);
	if (json_object_set_new(root, "deps", text_list(opts->deps)) < 0 ||
	    json_object_set_new(root, "sync", json_boolean(opts->sync_deps)) < 0 ||
	    json_object_set_new(root, "install_ms", json_integer(opts->install_timeout_ms)) < 0 ||
	    (wheels && json_object_set_new(root, "wheels", json_string(wheels)) < 0) ||
	    (opts->index_url && json_object_set_new(root, "index", json_string(opts->index_url)) < 0))
		return cell_fail(err, CELL_E_INVALID, 0, "the container's packages are not UTF-8, or out of memory");
	return 0;
}

static int add_redis(json_t *root, const char *url, const struct cell__redis_url *redis, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf inside = CELL_BUF_INIT;

	/* The server inside opens no connections: the host hands them to it. */
	if (cell__buf_printf(&inside, "%s%cvia=" INSIDE_FOLDER "/" CELL_CONTAINER_DIALER, url, strchr(url, '?') ? '&' : '?') < 0 ||
	    json_object_set_new(root, "redis",
				json_pack("{s:s,s:s*,s:s*,s:s*,s:i}", "url", inside.data, "host", redis->host, "path", redis->path, "ca",
					  redis->ca_file, "port", redis->port)) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the container's storage is not UTF-8, or out of memory");
	return 0;
}

static int describe(const struct cell_container_options *options, const struct cell__redis_url *redis, const char *const *env,
		    char **ret_json, struct cell_error *err)
{
	struct cell_container_options all = CELL_CONTAINER_OPTIONS_INIT;
	CELL_AUTO_FREE char *tools = NULL, *storage = NULL, *context = NULL;
	char image[64];
	unsigned uid, gid;
	json_t *root;

	if (options && cell__sized_read(&all, sizeof(all), options, "cell_container_options", err) < 0)
		return -1;
	snprintf(image, sizeof(image), "workcell:%s", cell_version());
	if (check_name("image", all.image, "._-/:@", err) < 0 || check_name("base image", all.base_image, "._-/:@", err) < 0 ||
	    check_name("name", all.name, "._-", err) < 0 || check_numbers(&all, err) < 0 ||
	    parse_user(all.user, redis ? NULL : all.storage, &uid, &gid, err) < 0 ||
	    check_folder("the tools folder", all.tools, uid, gid, false, err) < 0 ||
	    check_storage(redis ? NULL : all.storage, uid, gid, err) < 0)
		return -1;
	tools = real_path(all.tools);
	storage = real_path(redis ? NULL : all.storage);
	context = real_path(all.context);
	if (all.context && !context)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "the build context %.150s", all.context);
	root = json_pack("{s:s*,s:s,s:s*,s:s*,s:s*,s:i,s:i,s:s*,s:s*,s:s*,s:b,s:b,s:b,s:b,s:I,s:I,s:I,s:I,s:o*}", "engine", all.engine,
			 "image", all.image ? all.image : image, "context", context, "base", all.base_image, "name", all.name, "uid",
			 (int)uid, "gid", (int)gid, "tools", tools, "storage", storage, "token", all.auth_token, "auth_disabled",
			 all.auth_disabled, "each", all.session_isolation, "no_network", all.network_disabled, "no_runtime_deps",
			 all.no_runtime_deps, "memory", (json_int_t)all.memory_limit, "cpu", (json_int_t)all.cpu_quota, "pids",
			 (json_int_t)all.pids_limit, "startup_ms", (json_int_t)all.startup_timeout_ms, "env", text_list(env));
	if (root && (add_deps(root, &all, uid, gid, err) < 0 || (redis && add_redis(root, all.storage, redis, err) < 0))) {
		json_decref(root);
		return -1;
	}
	*ret_json = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
	json_decref(root);
	return *ret_json ? 0 : cell_fail(err, CELL_E_INVALID, 0, "the container's options are not UTF-8, or out of memory");
}

int cell__container_describe(const struct cell_container_options *options, const char *const *env, char **ret_json, struct cell_error *err)
{
	struct cell__redis_url url;
	int status;

	/* Of a shorter struct of another version `storage` is still there. */
	if (!options || options->size < offsetof(struct cell_container_options, auth_token) || !options->storage ||
	    !cell__redis_url_is(options->storage))
		return describe(options, NULL, env, ret_json, err);
	if (cell__redis_url_parse(options->storage, &url, err) < 0)
		return -1;
	if (url.via)
		status = cell_fail(err, CELL_E_INVALID, 0,
				   "the Redis URL of a container's storage must not contain via=: the host makes that connection");
	else
		status = describe(options, &url, env, ret_json, err);
	cell__redis_url_finish(&url);
	return status;
}

static const char *text_of(const json_t *config, const char *key)
{
	return json_string_value(json_object_get(config, key));
}

static bool is_set(const json_t *config, const char *key)
{
	return json_is_true(json_object_get(config, key));
}

static json_int_t number_of(const json_t *config, const char *key)
{
	return json_integer_value(json_object_get(config, key));
}

int64_t cell__container_startup_ms(const json_t *config)
{
	bool installs = is_set(config, "sync") || json_array_size(json_object_get(config, "deps"));

	return number_of(config, "startup_ms") + (installs ? number_of(config, "install_ms") : 0);
}

/* ---- the folder ---- */

static int write_file(const char *folder, const char *name, const char *text, uid_t uid, gid_t gid)
{
	char path[PATH_MAX];
	CELL_AUTO_FD int fd = -1;
	size_t size = strlen(text);

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || write(fd, text, size) != (ssize_t)size)
		return -1;
	return geteuid() == uid ? 0 : fchown(fd, uid, gid);
}

/* In the storage, which has this folder read-only in any case? */
static bool are_tools_stored(const json_t *config)
{
	const char *tools = text_of(config, "tools"), *storage = text_of(config, "storage");
	size_t n = storage ? strlen(storage) : 0;

	return storage && tools && !strncmp(tools, storage, n) && !strcmp(tools + n, "/tools");
}

static const char *tools_inside(const json_t *config)
{
	return are_tools_stored(config) ? INSIDE_STORAGE "/tools" : INSIDE_TOOLS;
}

/* Layers, and children of its sessions. */
static void add_branches(json_t *root, const json_t *config)
{
	const json_t *forks = json_object_get(config, "forks");
	char text[32];

	if (is_set(config, "layer"))
		json_object_set_new(root, "workspace-mode", json_string("cow"));
	if (!forks)
		return;
	snprintf(text, sizeof(text), "%lld", (long long)number_of(forks, "allow"));
	json_object_set_new(root, "allow-fork", json_string(text));
	if (number_of(forks, "memory")) {
		snprintf(text, sizeof(text), "%lld", (long long)number_of(forks, "memory"));
		json_object_set_new(root, "fork-memory", json_string(text));
	}
	if (number_of(forks, "ms")) {
		snprintf(text, sizeof(text), "%.3f", (double)number_of(forks, "ms") / 1000);
		json_object_set_new(root, "fork-time", json_string(text));
	}
}

/* A configuration for `workcell serve`: JSON is YAML. */
static char *server_config(const json_t *config)
{
	char seconds[32];
	const char *redis = text_of(json_object_get(config, "redis"), "url");
	json_t *root = json_pack("{s:b,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:O*,s:s*}", "in-container", 1, "listen",
				 "unix:" INSIDE_FOLDER "/server.sock", "executor", "subprocess", "python", "/usr/bin/python3",
				 "max-timeout", "0", "session-idle", "0", "log-level", "warning", "pool", "2", "storage",
				 redis ? redis : INSIDE_STORAGE, "dep", json_object_get(config, "deps"), "index-url",
				 text_of(config, "index"));
	json_t *env;
	char *text;

	/* The image may not know this user. */
	env = json_array();
	json_array_append_new(env, json_string("HOME=" INSIDE_HOME));
	json_array_extend(env, json_object_get(config, "env"));
	json_object_set_new(root, "env", env);
	snprintf(seconds, sizeof(seconds), "%.3f", (double)number_of(config, "install_ms") / 1000);
	json_object_set_new(root, "install-timeout", json_string(seconds));
	if (is_set(config, "sync"))
		json_object_set_new(root, "sync-deps", json_true());
	if (text_of(config, "wheels"))
		json_object_set_new(root, "wheel-dir", json_string(INSIDE_WHEELS));

	add_branches(root, config);
	if (is_set(config, "auth_disabled"))
		json_object_set_new(root, "auth-disabled", json_true());
	else
		json_object_set_new(root, "auth-token-file", json_string(INSIDE_FOLDER "/token"));
	if (is_set(config, "no_runtime_deps"))
		json_object_set_new(root, "no-runtime-deps", json_true());
	if (text_of(config, "tools"))
		json_object_set_new(root, "tools", json_string(tools_inside(config)));
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

int cell__container_make_place(const json_t *config, struct cell__container_place *ret_place, struct cell_error *err)
{
	uid_t uid = (uid_t)number_of(config, "uid");
	gid_t gid = (gid_t)number_of(config, "gid");
	CELL_AUTO_FREE char *serve = server_config(config);
	const char *token = text_of(config, "token");
	int saved;

	*ret_place = (struct cell__container_place){ .folder = CELL_CONTAINER_FOLDER "XXXXXX" };
	if (!is_set(config, "auth_disabled") && token)
		snprintf(ret_place->token, sizeof(ret_place->token), "%s", token);
	else if (!is_set(config, "auth_disabled"))
		cell__random_hex(ret_place->token, RANDOM_TOKEN);
	if (!serve)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a container");
	if (!mkdtemp(ret_place->folder)) {
		saved = errno;
		ret_place->folder[0] = '\0';
		return cell_fail(err, CELL_E_IO, saved, "make a folder " CELL_CONTAINER_FOLDER "XXXXXX");
	}
	if ((*ret_place->token && write_file(ret_place->folder, "token", ret_place->token, uid, gid) < 0) ||
	    write_file(ret_place->folder, "serve.yaml", serve, uid, gid) < 0 ||
	    (geteuid() != uid && chown(ret_place->folder, uid, gid) < 0)) {
		saved = errno;
		cell__container_remove_place(ret_place->folder);
		cell_fail(err, CELL_E_IO, saved, "change the owner of %s to the container's user %u", ret_place->folder, (unsigned)uid);
		ret_place->folder[0] = '\0';
		return -1;
	}
	return 0;
}

/* The token and the rest are read. */
void cell__container_close_place(const char *folder)
{
	CELL_AUTO_FD int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return;
	(void)unlinkat(fd, "token", 0);
	(void)unlinkat(fd, "serve.yaml", 0);
	/* Root can take the folder back: then the code inside cannot put files there. */
	if (geteuid() == 0 && fchown(fd, 0, 0) == 0)
		(void)fchmod(fd, 0711);
}

void cell__container_remove_place(const char *folder)
{
	(void)cell__tree_remove(AT_FDCWD, folder); /* if it fails, the rest stays */
}

/* A listener in another pid namespace has no visible pid; then it is 0. */
int cell__container_keep_socket(const char *path, pid_t pid, int *ret_fd, struct cell_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	CELL_AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	CELL_AUTO_FD int kept = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (kept < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %s", path);
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d", kept);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		return cell_fail(err, CELL_E_IO, errno, "connect to %s", path);
	if (peer.pid && pid && peer.pid != pid)
		return cell_fail(err, CELL_E_PROTOCOL, 0,
				 "process %d listens on the address of the container's server, which is process %d: an installed "
				 "package has taken it over",
				 (int)peer.pid, (int)pid);
	*ret_fd = cell__take_fd(&kept);
	return 0;
}

/* ---- why it ended ---- */

/* "WORD: message", the last line of our programs when they fail: the code of that word; 0: unknown. */
static int code_of(const char *words, size_t *ret_skip)
{
	const char *colon = strstr(words, ": ");
	size_t size = colon ? (size_t)(colon - words) : 0;

	for (int code = CELL_E_INVALID; size && code < CELL_CODE_COUNT; code++) {
		if (!cell__code_is_outcome(code) && strlen(cell_code_word(code)) == size && !strncmp(cell_code_word(code), words, size)) {
			*ret_skip = size + 2;
			return code;
		}
	}
	return 0;
}

/*
 * A log consists of frames of 8 bytes and text. The last message of our program is the cause of its end; of another program it is the last
 * line.
 */
void cell__container_read_log(char *log, size_t size, const char *otherwise, struct cell_error *ret_why)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char *line, *said = NULL;
	size_t skip = 0;
	int code = 0;

	while (size && strchr("\r\n", log[size - 1]))
		size--;
	log[size] = '\0';
	for (char *at = log; (at = memmem(at, size - (size_t)(at - log), PROGRAM, strlen(PROGRAM)));) {
		at += strlen(PROGRAM);
		if (code_of(at, &skip))
			said = at;
	}
	line = memrchr(log, '\n', size);
	line = line ? line + 1 : log;
	if (size - (size_t)(line - log) > 8 && (unsigned char)*line < 3)
		line += 8;
	if (said) {
		code = code_of(said, &skip);
		line = said + skip;
	}
	if (cell__buf_add_utf8(&text, line, size - (size_t)(line - log)) < 0 || !text.data)
		cell_fail(ret_why, CELL_E_KERNEL, 0, "%s", otherwise);
	else if (code)
		cell_fail(ret_why, code, 0, "in the container: %.200s", text.data);
	else
		cell_fail(ret_why, CELL_E_KERNEL, 0, "%.80s: %.150s", otherwise, text.data);
}

/* ---- owner labels ---- */

static bool read_line(const char *path, char *to, size_t size)
{
	CELL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);

	if (n <= 0)
		return false;
	to[n] = '\0';
	to[strcspn(to, "\n")] = '\0';
	return true;
}

/* The start of a process, in ticks since boot; 0: no such process. */
static unsigned long long started(long pid)
{
	char path[64], stat[1024], *at;
	unsigned long long ticks = 0;

	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	if (!read_line(path, stat, sizeof(stat)) || !(at = strrchr(stat, ')')))
		return 0;
	/* State is field 3, the time field 22. */
	for (int field = 2; field < 22 && at; field++)
		at = strchr(at + 1, ' ');
	if (at)
		sscanf(at, "%llu", &ticks);
	return ticks;
}

/* The boot id and the pid namespace, within which a pid is meaningful. */
static void world(char *to, size_t size)
{
	char boot[64] = "", space[64] = "";

	(void)read_line("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
	if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0)
		space[0] = '\0';
	snprintf(to, size, "%s/%s", boot, space);
}

bool cell__container_is_orphan(const json_t *entry)
{
	const char *label = text_of(json_object_get(entry, "Labels"), CELL_CONTAINER_LABEL);
	const char *state = text_of(entry, "State"), *slash = label ? strrchr(label, '/') : NULL;
	unsigned long long ticks;
	char here[160];
	long pid;

	world(here, sizeof(here));
	if (!slash || sscanf(slash, "/%ld-%llu", &pid, &ticks) != 2)
		return false;
	/* A container of another machine, or of this one before a reboot, is known to be abandoned only if it no longer runs. */
	if (strlen(here) != (size_t)(slash - label) || strncmp(here, label, strlen(here)))
		return state && (!strcmp(state, "exited") || !strcmp(state, "dead"));
	return started(pid) != ticks;
}

/* ---- the request to the engine ---- */

static json_t *bind_mount(const char *from, const char *to, bool read_only)
{
	return json_pack("{s:s,s:s,s:s,s:b}", "Type", "bind", "Source", from, "Target", to, "ReadOnly", read_only);
}

/*
 * Folders of the storage that the code must not write to. Mounted, they cannot be renamed or removed inside; both are directly in the
 * storage, so that no parent folder can be either.
 */
static const char *const kept_back[] = { "tools", HOST_FOLDER };
#define N_KEPT_BACK (sizeof(kept_back) / sizeof(kept_back[0]))

static json_t *mounts(const json_t *config, const char *folder)
{
	const char *ca = text_of(json_object_get(config, "redis"), "ca"), *storage = text_of(config, "storage");
	json_t *list = json_array();

	json_array_append_new(list, bind_mount(folder, INSIDE_FOLDER, false));
	if (storage)
		json_array_append_new(list, bind_mount(storage, INSIDE_STORAGE, false));
	for (size_t i = 0; storage && i < N_KEPT_BACK; i++) {
		char from[PATH_MAX + 16], to[64];

		snprintf(from, sizeof(from), "%s/%s", storage, kept_back[i]);
		snprintf(to, sizeof(to), INSIDE_STORAGE "/%s", kept_back[i]);
		json_array_append_new(list, bind_mount(from, to, true));
	}
	if (text_of(config, "tools") && !are_tools_stored(config))
		json_array_append_new(list, bind_mount(text_of(config, "tools"), INSIDE_TOOLS, true));
	if (text_of(config, "wheels"))
		json_array_append_new(list, bind_mount(text_of(config, "wheels"), INSIDE_WHEELS, true));
	if (ca)
		json_array_append_new(list, bind_mount(ca, ca, true));
	return list;
}

/* Memory of its own to write to: all of it counts as the container's. Podman accepts no owner for it. */
static json_t *tmpfs(const json_t *config)
{
	char options[128], size[32] = DEFAULT_TMP;
	json_t *found;

	if (number_of(config, "memory") > 0)
		snprintf(size, sizeof(size), "%lld", (long long)number_of(config, "memory"));
	snprintf(options, sizeof(options), "rw,nosuid,nodev,exec,mode=1777,size=%s", size);
	found = json_pack("{s:s,s:s}", "/tmp", options, INSIDE_HOME, options);
	if (!text_of(config, "storage"))
		json_object_set_new(found, INSIDE_STORAGE, json_string(options));
	return found;
}

/* Not more than our own limits and Podman's defaults: an engine without CAP_SYS_RESOURCE cannot exceed its own. */
static json_t *ulimits(void)
{
	static const struct {
		const char *name;
		int resource;
		rlim_t most;
	} kinds[] = {
		{ "nofile", RLIMIT_NOFILE, 1 << 20 },
		{ "nproc", RLIMIT_NPROC, 1 << 15 },
	};
	json_t *list = json_array();
	struct rlimit limit;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		json_int_t most = (json_int_t)kinds[i].most;

		if (getrlimit((__rlimit_resource_t)kinds[i].resource, &limit) == 0 && limit.rlim_max < kinds[i].most)
			most = (json_int_t)limit.rlim_max;
		json_array_append_new(list, json_pack("{s:s,s:I,s:I}", "Name", kinds[i].name, "Soft", most, "Hard", most));
	}
	return list;
}

static json_t *host_config(const json_t *config, const char *folder)
{
	json_int_t memory = number_of(config, "memory");
	json_t *found = json_pack("{s:b,s:[s],s:[s],s:o,s:o,s:{s:s},s:b,s:o,s:s*}", "ReadonlyRootfs", 1, "CapDrop", "ALL", "SecurityOpt",
				  "no-new-privileges", "Mounts", mounts(config, folder), "Tmpfs", tmpfs(config), "RestartPolicy", "Name",
				  "no", "Privileged", 0, "Ulimits", ulimits(), "UsernsMode", text_of(config, "userns"));

	if (number_of(config, "pids") > 0)
		json_object_set_new(found, "PidsLimit", json_integer(number_of(config, "pids")));
	if (memory > 0) {
		json_object_set_new(found, "Memory", json_integer(memory));
		json_object_set_new(found, "MemorySwap", json_integer(memory)); /* together: no swap */
	}
	if (number_of(config, "cpu")) {
		json_object_set_new(found, "CpuPeriod", json_integer(CPU_PERIOD));
		json_object_set_new(found, "CpuQuota", json_integer(number_of(config, "cpu")));
	}
	if (is_set(config, "no_network"))
		json_object_set_new(found, "NetworkMode", json_string("none"));
	return found;
}

char *cell__container_body(const json_t *config, const struct cell__container_place *place)
{
	/* Packages are kept with the storage if that is a folder: they are installed once, and take no memory. */
	const char *cache = text_of(config, "storage") ? INSIDE_STORAGE : INSIDE_HOME;
	char user[32], here[160], owner[224], cache_home[64];
	json_t *root;
	char *text;

	world(here, sizeof(here));
	snprintf(owner, sizeof(owner), "%s/%ld-%llu", here, (long)getpid(), started(getpid()));
	snprintf(cache_home, sizeof(cache_home), "XDG_CACHE_HOME=%s/.cache", cache);
	snprintf(user, sizeof(user), "%d:%d", is_set(config, "as_root") ? 0 : (int)number_of(config, "uid"),
		 is_set(config, "as_root") ? 0 : (int)number_of(config, "gid"));
	root = json_pack("{s:s,s:s,s:[s],s:[sssss],s:[s,s,s],s:s,s:{s:s,s:s},s:b,s:{s:[s]},s:o}", "Image", text_of(config, "image"), "User",
			 user, "Entrypoint", "workcell", "Cmd", "serve", "--config", INSIDE_FOLDER "/serve.yaml", "--log", "text", "Env",
			 "HOME=" INSIDE_HOME, "LANG=C.UTF-8", cache_home, "WorkingDir", "/tmp", "Labels", CELL_CONTAINER_LABEL, owner,
			 CELL_CONTAINER_FOLDER_LABEL, place->folder, "NetworkDisabled", is_set(config, "no_network"), "Healthcheck", "Test",
			 "NONE" /* the image's: we watch the server ourselves */, "HostConfig", host_config(config, place->folder));
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

/* A limit: its option, its name in config, in the engine's description of a container, and in its own. */
static const struct {
	const char *what, *ours, *theirs, *can;
} limits[] = {
	{ "memory_limit", "memory", "Memory", "MemoryLimit" },
	{ "cpu_quota", "cpu", "CpuQuota", "CpuCfsQuota" },
	{ "pids_limit", "pids", "PidsLimit", "PidsLimit" },
};
#define N_LIMITS (sizeof(limits) / sizeof(limits[0]))

/*
 * Our user inside. For a rootless engine our user is another one: Podman can be told to keep it, Docker maps it to root, which then has
 * only our rights and no capabilities.
 */
int cell__container_take_info(json_t *config, const json_t *info)
{
	const json_t *options = json_object_get(info, "SecurityOptions"), *option;
	json_int_t lacks = 0;
	size_t i;

	if (is_set(info, "Rootless"))
		return json_object_set_new(config, "userns", json_string("keep-id"));
	json_array_foreach(options, i, option) {
		if (json_string_value(option) && !strcmp(json_string_value(option), "name=rootless"))
			break;
	}
	if (i == json_array_size(options))
		return 0;
	/* Without cgroups it shows the limits of its containers all the same. */
	for (i = 0; i < N_LIMITS; i++) {
		if (!is_set(info, limits[i].can))
			lacks |= 1 << i;
	}
	return json_object_set_new(config, "as_root", json_true()) < 0 ? -1 : json_object_set_new(config, "lacks", json_integer(lacks));
}

static bool is_kept_back(const json_t *found, const char *name)
{
	const json_t *mount;
	char to[64];
	size_t i;

	snprintf(to, sizeof(to), INSIDE_STORAGE "/%s", name);
	json_array_foreach(json_object_get(found, "Mounts"), i, mount) {
		const char *at = text_of(mount, "Destination");

		if (at && !strcmp(at, to))
			return json_is_false(json_object_get(mount, "RW"));
	}
	return false;
}

/*
 * Engines that cannot apply a limit say so in a warning, or not at all; their description of a container is correct, except for the limit
 * above.
 */
int cell__container_check(const json_t *config, const json_t *found, struct cell_error *err)
{
	const json_t *host = json_object_get(found, "HostConfig");
	const char *network = text_of(host, "NetworkMode");

	for (size_t i = 0; i < N_LIMITS; i++) {
		json_int_t asked = number_of(config, limits[i].ours), applied = number_of(host, limits[i].theirs);

		if (asked > 0 && (applied <= 0 || applied > asked || (number_of(config, "lacks") & (1 << i))))
			return cell_fail(err, CELL_E_UNAVAILABLE, 0,
					 "the container engine does not enforce %s (a rootless engine needs a delegated cgroup v2); leave "
					 "that limit out to use it",
					 limits[i].what);
	}
	if (is_set(config, "no_network") && (!network || strcmp(network, "none")))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the container engine does not switch the network off");
	if (!is_set(host, "ReadonlyRootfs"))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the container engine does not make the container's files read-only");
	for (size_t i = 0; text_of(config, "storage") && i < N_KEPT_BACK; i++) {
		if (!is_kept_back(found, kept_back[i]))
			return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the container engine does not make the storage's folder %s read-only",
					 kept_back[i]);
	}
	return 0;
}

char *cell__container_receipt(const json_t *config, const char *id)
{
	/* The server inside confines nothing: the container does.  Only a storage in a folder is the host's. */
	json_t *root = json_pack("{s:s,s:s,s:s,s:s,s:b,s:b,s:I,s:I,s:I}", "executor", "container", "protected",
				 text_of(config, "storage") ? "not enforced" : "enforced", "container", id, "image",
				 text_of(config, "image"), "network", !is_set(config, "no_network"), "own", is_set(config, "each"),
				 "memory_limit", number_of(config, "memory"), "cpu_quota", number_of(config, "cpu"), "pids_limit",
				 number_of(config, "pids"));

	return cell__remote_receipt(root);
}
