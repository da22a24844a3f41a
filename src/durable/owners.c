/* Which server has what, see owners.h.  Here: in a folder. */
#define _GNU_SOURCE
#include "durable/owners.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "wire/redis_url.h"

#define KEY ".key" /* a link as the others, which is made and read by one call; the folder is the servers' alone */

struct cell__owners {
	char *url;
	int fd; /* DIR/owners; -1: in Redis */
	struct cell__redis *redis;
};

static int open_folder(const char *dir, int *ret_fd, struct cell_error *err)
{
	char path[4096];
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
	if ((size_t)snprintf(path, sizeof path, "%s/owners", dir) >= sizeof path || (mkdir(path, 0700) < 0 && errno != EEXIST))
		return cell_fail(err, CELL_E_IO, errno, "make a folder in %.150s", dir);
	*ret_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return *ret_fd >= 0 ? 0 : cell_fail(err, CELL_E_IO, errno, "open %.150s", path);
}

int cell__owners_open(const char *place, const char *url, struct cell__owners **ret_owners, struct cell_error *err)
{
	if (strlen(url) > CELL_OWNER_URL_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0, "the URL of a server has at most %u bytes", CELL_OWNER_URL_BYTES);
	struct cell__owners *owners = cell__alloc(1, sizeof *owners);
	if (!owners)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the owners of sessions");
	owners->fd = -1;
	owners->url = cell__strdup(url);
	int rc = !owners->url                ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the owners of sessions")
		 : cell__redis_url_is(place) ? cell__redis_owners_open(place, &owners->redis, err)
					     : open_folder(place, &owners->fd, err);
	if (rc < 0) {
		cell__owners_close(owners);
		return -1;
	}
	*ret_owners = owners;
	return 0;
}

void cell__owners_close(struct cell__owners *owners)
{
	if (!owners)
		return;
	cell__close_fd(&owners->fd);
	cell__redis_owners_close(owners->redis);
	free(owners->url);
	free(owners);
}

/* "": nobody's; a file that is not a link is not ours, and is ignored. */
static int find(const struct cell__owners *owners, struct cell__owner_step *step, struct cell_error *err)
{
	ssize_t n = readlinkat(owners->fd, step->id, step->url, CELL_OWNER_URL_BYTES);
	step->url[n > 0 ? n : 0] = '\0';
	if (n < 0 && errno != ENOENT && errno != EINVAL)
		return cell_fail(err, CELL_E_IO, errno, "find out who has the session %s", step->id);
	return 0;
}

static int add(const struct cell__owners *owners, const char *id, struct cell_error *err)
{
	char name[40];
	if (symlinkat(owners->url, owners->fd, id) == 0)
		return 0;
	bool is_there = errno == EEXIST;
	/* Of a server that was killed: it is replaced at once. */
	snprintf(name, sizeof name, ".%s", id);
	if (is_there)
		(void)unlinkat(owners->fd, name, 0);
	if (!is_there || symlinkat(owners->url, owners->fd, name) < 0 || renameat(owners->fd, name, owners->fd, id) < 0)
		return cell_fail(err, CELL_E_IO, errno, "note who has the session %s", id);
	return 0;
}

static int find_key(const struct cell__owners *owners, struct cell__owner_step *step, struct cell_error *err)
{
	if (symlinkat(step->url, owners->fd, KEY) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "note the key of the servers");
	ssize_t n = readlinkat(owners->fd, KEY, step->url, CELL_OWNER_URL_BYTES);
	step->url[n > 0 ? n : 0] = '\0';
	return n > 0 ? 0 : cell_fail(err, CELL_E_IO, errno, "read the key of the servers");
}

static int run_step(const struct cell__owners *owners, struct cell__owner_step *step, struct cell_error *err)
{
	switch (step->verb) {
	case CELL_OWNER_FIND:
		return find(owners, step, err);
	case CELL_OWNER_ADD:
		return add(owners, step->id, err);
	case CELL_OWNER_REMOVE:
		if (find(owners, step, NULL) == 0 && strcmp(step->url, owners->url) == 0)
			(void)unlinkat(owners->fd, step->id, 0); /* one that stays is a wrong hint */
		return 0;
	case CELL_OWNER_KEEP: /* a folder forgets nothing */
		return 0;
	case CELL_OWNER_CHECK:
		strcpy(step->url, owners->url);
		return 0;
	case CELL_OWNER_KEY:
		return find_key(owners, step, err);
	}
	return 0;
}

int cell__owners_run(struct cell__owners *owners, struct cell__owner_step *const *steps, size_t n, struct cell_error *err)
{
	int rc = 0;
	if (owners->redis)
		return cell__redis_owners_run(owners->redis, owners->url, steps, n, err);
	for (size_t i = 0; i < n; i++)
		rc |= run_step(owners, steps[i], err);
	return rc;
}
