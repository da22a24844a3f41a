/* Plans of zygotes: exactly the files that an interpreter needs to start. */
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hole.h"
#include "sandbox/builder.h"
#include "sandbox/places.h"
#include "sandbox/seccomp.h"

#define TMP_BYTES (64ull << 20)
#define LINE_MAX_BYTES 4096

/* ---- where its files are ---- */

struct paths {
	char **items; /* NULL-terminated */
	size_t count;
};

static int add(struct paths *paths, const char *path)
{
	char **more = cell__realloc(paths->items, (paths->count + 2) * sizeof *more);
	if (!more)
		return -1;
	paths->items = more;
	more[paths->count] = cell__strdup(path);
	more[paths->count + 1] = NULL;
	return more[paths->count++] ? 0 : -1;
}

static void free_paths(struct paths *paths)
{
	for (size_t i = 0; i < paths->count; i++)
		free(paths->items[i]);
	free(paths->items);
}

/* A folder that holds more than one interpreter: a home, or a folder of folders. */
static bool is_shared(const char *folder, const char *home)
{
	static const char *const folders[] = { "/",    "/home", "/root", "/tmp",   "/var", "/var/tmp",
					       "/run", "/srv",  "/mnt",  "/media", "/opt", "/etc" };
	char real[PATH_MAX];
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		if (strcmp(folder, folders[i]) == 0)
			return true;
	return cell__path_is_under(home, folder) || (realpath(home, real) && cell__path_is_under(real, folder));
}

/* prefix: the folder with bin/python. Of a home folder, only the parts that Python itself uses. */
static int add_prefix(struct paths *paths, const char *prefix, const char *home)
{
	static const char *const parts[] = { "bin", "lib", "lib64", "pyvenv.cfg", "pip.conf" };
	char path[PATH_MAX];
	int rc = 0;
	if (!is_shared(prefix, home))
		return add(paths, prefix);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", prefix, parts[i]) < sizeof path && access(path, F_OK) == 0)
			rc |= add(paths, path);
	return rc;
}

/* Up by so many names. */
static void go_up(char *path, int names)
{
	while (names-- > 0) {
		char *slash = strrchr(path, '/');
		if (slash)
			*slash = '\0';
	}
}

/* Calls for each line of a small text file. */
static int each_line(const char *path, int (*fn)(struct paths *paths, char *line, const char *home), struct paths *paths, const char *home)
{
	char line[LINE_MAX_BYTES];
	int rc = 0;
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) {
		line[strcspn(line, "\r\n")] = '\0';
		rc |= fn(paths, line, home);
	}
	if (file)
		fclose(file);
	return rc;
}

/* pyvenv.cfg: home = /where/the/program/behind/it/is */
static int take_base(struct paths *paths, char *line, const char *home)
{
	char *value = strchr(line, '=');
	if (strncmp(line, "home", 4) != 0 || !value)
		return 0;
	value += 1 + strspn(value + 1, " \t");
	if (value[0] != '/')
		return 0;
	go_up(value, 1);
	return value[0] ? add_prefix(paths, value, home) : 0;
}

/* A line of a .pth file: a folder of an editable install.  Code there is not a path. */
static int take_folder(struct paths *paths, char *line, const char *home)
{
	struct stat st;
	if (line[0] != '/' || stat(line, &st) < 0 || !S_ISDIR(st.st_mode) || is_shared(line, home))
		return 0;
	return add(paths, line);
}

static int add_installs(struct paths *paths, const char *prefix, const char *home)
{
	char pattern[PATH_MAX];
	glob_t found = { 0 };
	int rc = 0;
	if ((size_t)snprintf(pattern, sizeof pattern, "%s/lib*/python3*/*-packages/*.pth", prefix) >= sizeof pattern)
		return 0;
	if (glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; i++)
			rc |= each_line(found.gl_pathv[i], take_folder, paths, home);
	globfree(&found);
	return rc;
}

static int add_python(struct paths *paths, const char *python, const char *home)
{
	char prefix[2][PATH_MAX], path[PATH_MAX];
	int rc = 0;
	snprintf(prefix[0], PATH_MAX, "%s", python);
	if (!realpath(python, prefix[1]))
		prefix[1][0] = '\0';
	for (int i = 0; i < 2; i++) {
		go_up(prefix[i], 2);
		if (!prefix[i][0])
			continue;
		rc |= add_prefix(paths, prefix[i], home) | add_installs(paths, prefix[i], home);
		if ((size_t)snprintf(path, sizeof path, "%s/pyvenv.cfg", prefix[i]) < sizeof path)
			rc |= each_line(path, take_base, paths, home);
	}
	return rc | add_installs(paths, "/usr/local", home);
}

/* Links on the way to the program, in folders that are not shown otherwise. */
static int add_links(struct cell__plan_env *env, const char *python, struct cell_error *err)
{
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	size_t n = 0;
	int rc = cell__place_add(&list, "the interpreter", false, python, err);
	while (env->links && env->links[n])
		n++;
	for (char **point = rc == 0 ? list.items[0].points : NULL; point && *point; point++) {
		char target[PATH_MAX];
		ssize_t size = readlink(*point, target, sizeof target - 1);
		if (size < 0)
			continue;
		target[size] = '\0';
		char **more = cell__realloc(env->links, (n + 3) * sizeof *more);
		if (more) {
			env->links = more;
			more[n] = cell__strdup(*point);
			more[n + 1] = more[n] ? cell__strdup(target) : NULL;
			more[n + 2] = NULL;
		}
		if (!more || !more[n + 1]) {
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a zygote");
			break;
		}
		n += 2;
	}
	cell__place_list_finish(&list);
	return rc;
}

int cell__plan_env_of(struct cell__plan_env *ret_env, const char *python, const char *kernel_dir, const char *home, struct cell_error *err)
{
	/* In a build folder these are links. */
	static const char *const parts[] = { "workcell_kernel", "_workcell.abi3.so" };
	static const char *const settings[] = { ".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml" };
	struct paths paths = { NULL, 0 };
	char path[PATH_MAX];
	int rc = add(&paths, kernel_dir) | add_python(&paths, python, home);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", kernel_dir, parts[i]) < sizeof path)
			rc |= add(&paths, path);
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", home, settings[i]) < sizeof path && access(path, R_OK) == 0)
			rc |= add(&paths, path);
	*ret_env = (struct cell__plan_env){ 0 };
	if (rc == 0)
		rc = cell__plan_env_init(ret_env, (const char *const *)paths.items);
	free_paths(&paths);
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a zygote");
	else
		rc = add_links(ret_env, python, err);
	if (rc < 0)
		cell__plan_env_finish(ret_env);
	return rc;
}

/* ---- the plan ---- */

#define STEP(stage, ...) cell__builder_step(b, CELL_STAGE_##stage, __VA_ARGS__)

/*
 * Folders beside /usr in which systems keep programs and their libraries; the description of the processors, by which libraries choose the
 * fast code; the index.
 */
static void more_of_the_system(struct cell__builder *b)
{
	static const char *const paths[] = {
		"/opt",
		"/nix/store",
		"/gnu/store",
		"/snap",
		"/home/linuxbrew/.linuxbrew",
		"/sys/devices/system/cpu",
		"/sys/devices/system/node",
		"/etc/pip.conf",
		"/etc/xdg/pip/pip.conf",
		"/etc/uv/uv.toml",
	};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		if (access(paths[i], F_OK) == 0)
			STEP(JAIL, CELL_OP_BIND, CELL_BIND_READ_ONLY | CELL_STEP_OPTIONAL, 0, 0, paths[i], paths[i]);
}

/* /proc last: the steps before need nothing in it. */
static void own_files(struct cell__builder *b, const struct cell__machine *machine, const struct cell__plan_env *env)
{
	struct cell__sandbox_policy policy = { .network = CELL_NET_NONE, .tmp_bytes = TMP_BYTES };
	struct cell__plan_env none = { 0 };
	cell__builder_root(b, &policy, machine, &none);
	more_of_the_system(b);
	for (size_t i = 0; env->folders && env->folders[i]; i++)
		cell__builder_bind_own(b, CELL_STAGE_JAIL, env->folders[i], CELL_BIND_READ_ONLY);
	for (size_t i = 0; env->links && env->links[i]; i += 2)
		STEP(JAIL, CELL_OP_LINK, CELL_STEP_OPTIONAL, 0, 0, env->links[i + 1], env->links[i]);
	STEP(JAIL, CELL_OP_DIR, 0, 0755, 0, "/proc", "");
	STEP(JAIL, CELL_OP_PROC, CELL_STEP_OPTIONAL, CELL_PROC_READ_ONLY, 0, "/proc", "");
	STEP(JAIL, CELL_OP_DETACH, 0, 0, 0, "", "");
	STEP(JAIL, CELL_OP_SEAL, 0, 0, 0, "", "");
}

int cell__plan_build_zygote(const struct cell__machine *machine, const struct cell__plan_env *env, bool online, struct cell__buf *out,
			    struct cell_error *err)
{
	struct cell__builder builder, *b = &builder;
	CELL_AUTO_BUF struct cell__buf filter = CELL_BUF_INIT;
	/* A kernel without its own namespace uses its zygote's: a planted hole must be in both. */
	unsigned flags = CLONE_NEWNS | CLONE_NEWUTS | (is_hole("ipc") ? 0 : CLONE_NEWIPC) | (online || is_hole("net") ? 0 : CLONE_NEWNET);
	if (cell__filter_zygote(&filter, err) < 0)
		return -1;
	cell__builder_begin(b, out);
	b->mapped = machine->trees && machine->own_uid;
	if (is_hole("zygote")) {
		b->mapped = false;
		flags = 0;
	} else {
		STEP(JAIL, CELL_OP_NAMESPACES, 0, flags, 0, "", "");
		STEP(JAIL, CELL_OP_HOSTNAME, 0, 0, 0, "sandbox", "");
		own_files(b, machine, env);
	}
	STEP(EARLY, CELL_OP_SESSION_KEYS, CELL_STEP_OPTIONAL, 0, 0, "", "");
	STEP(EARLY, CELL_OP_BOUNDS, 0, 0, 0, "", "");
	STEP(KERNEL, CELL_OP_NO_NEW_PRIVS, 0, 0, 0, "", "");
	STEP(KERNEL, CELL_OP_CAPS, 0, 0, 0, "", "");
	cell__builder_step_bytes(b, CELL_STAGE_KERNEL, CELL_OP_SECCOMP, 0, 0, 0, filter.data, filter.size, "refused calls");
	if (!b->failed) {
		struct cell_plan *head = cell__builder_head(b);
		head->level = CELL_LEVEL_FULL;
		head->clone_flags = flags;
		head->uid = geteuid();
		head->gid = getegid();
		head->mapped = flags ? cell__machine_mapped(machine) : CELL_MAPPED_NOT;
		snprintf(head->not_mapped, sizeof head->not_mapped, "%.*s", (int)sizeof head->not_mapped - 1, machine->no_trees);
	}
	return cell__builder_finish(b, err);
}
