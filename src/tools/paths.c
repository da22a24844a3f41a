/*
 * Parameters of type path: files that the host opens itself and hands to a program by descriptor.
 *
 * Code that can write to a folder controls the meaning of names in it at the moment of a lookup: a name can become a link to another file,
 * a pipe that blocks, or a replaced folder. So a name is looked up once, here, without links, ".." and other mounts, and must be of the
 * defined kind. The program gets /proc/self/fd/N, which no other process can replace.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/hole.h"
#include "sandbox/policy.h"
#include "spawn/confinement.h"
#include "tools/internal.h"

#define BENEATH (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV)

static int open_below(int folder, const char *name, int flags, mode_t mode)
{
	struct open_how how = { .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
				.mode = mode,
				.resolve = is_hole("path-links") ? 0 : BENEATH };
	return (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
}

static bool has_dots(const char *path)
{
	for (const char *at = path; at; at = strchr(at, '/')) {
		at += *at == '/';
		if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == '\0'))
			return true;
	}
	return false;
}

/* The name below the folder; NULL: it is not below it. */
static const char *name_below(const char *folder, const char *value)
{
	if (value[0] != '/')
		return value;
	if (!cell__path_is_under(value, folder))
		return NULL;
	value += strlen(folder);
	return value + strspn(value, "/");
}

static int refuse(const struct cell__param *param, const char *value, const char *what, struct cell__buf *why)
{
	cell__buf_printf(why, "Argument '%s': '%s' %s", param->name, value, what);
	return -1;
}

static int explain(const struct cell__param *param, const char *value, int error, struct cell__buf *why)
{
	if (error == ELOOP || error == EXDEV)
		return refuse(param, value, "leads through a link or to another file system; it must be a plain path below its folder",
			      why);
	cell__buf_printf(why, "Argument '%s': '%s' cannot be opened: %s", param->name, value,
			 strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error");
	return -1;
}

/* Checks its kind first, without opening it: opening could block, or have side effects. */
static int open_value(const struct cell__param *param, int folder, const char *name, const char *value, struct cell__buf *why)
{
	struct stat st;
	char self[40];
	CELL_AUTO_FD int found = open_below(folder, name, O_PATH, 0);
	if (found < 0 && errno == ENOENT && param->writes && !param->directory) {
		int made = open_below(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
		return made < 0 ? explain(param, value, errno, why) : made;
	}
	if (found < 0 || fstat(found, &st) < 0)
		return explain(param, value, errno, why);
	if (!is_hole("path-kind") && !(param->directory ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode)))
		return refuse(param, value, param->directory ? "is not a directory" : "is not a regular file", why);
	snprintf(self, sizeof self, "/proc/self/fd/%d", found);
	int flags = param->directory ? O_RDONLY | O_DIRECTORY : param->writes ? O_RDWR : O_RDONLY;
	int fd = open(self, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	return fd < 0 ? explain(param, value, errno, why) : fd;
}

/* The folder on the host, for this caller; NULL: not available. */
static const char *folder_of(const struct cell__program_caller *caller, const struct cell__param *param, struct cell__buf *why)
{
	bool own = strcmp(param->under, "workspace") == 0;
	if (!caller->code)
		return own ? caller->cwd : param->under;
	if (own && cell__confinement_has_workspace(caller->code))
		return caller->cwd;
	if (own)
		refuse(param, "workspace", "is not visible to this session's code, so no file in it can be named", why);
	else if (cell__program_is_codes(caller->code, param->under))
		refuse(param, param->under, "is a folder that the code can write to: set under: workspace in the tool's definition", why);
	else if (caller->host || cell__confinement_shows(caller->code, param->under))
		return param->under;
	else
		refuse(param, param->under,
		       "is not visible in the code's sandbox; list it under read: in the sandbox policy, or set host: true "
		       "in the tool's definition",
		       why);
	return NULL;
}

/*
 * Inside a sandbox, in places where the code cannot write, a name is reliable, and a descriptor would belong to a writable mount. The same
 * applies to a directory: its ".." must be the sandbox's.
 */
static bool goes_by_name(const struct cell__program_caller *caller, const struct cell__param *param, const char *real)
{
	return caller->code && !caller->host && (param->directory || !cell__confinement_can_write(caller->code, real));
}

int cell__path_arg_open(const struct cell__program_caller *caller, const struct cell__param *param, const char *value, int *ret_fd,
			char **ret_name, struct cell__buf *why)
{
	char real[PATH_MAX];
	const char *folder = folder_of(caller, param, why);
	if (!folder)
		return -1;
	CELL_AUTO_FD int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !realpath(folder, real))
		return explain(param, folder, errno, why);
	const char *name = name_below(folder, value);
	if (!name)
		name = name_below(real, value);
	if (!name || has_dots(value) || !*value)
		return refuse(param, value, "is not a path below its folder", why);
	/* The guard of the sandbox sees what the program opens, not what it is given. */
	if (param->writes && caller->code && cell__confinement_protects(caller->code, name))
		return refuse(param, value, "is a protected name; list it under unprotect: in the sandbox policy if the code may write it",
			      why);
	int opened = open_value(param, fd, *name ? name : ".", value, why);
	if (opened < 0)
		return -1;
	if (!goes_by_name(caller, param, real)) {
		*ret_fd = opened;
		return 0;
	}
	close(opened);
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/%s", real, name) < 0)
		return -1;
	*ret_name = path.data;
	return 0;
}
