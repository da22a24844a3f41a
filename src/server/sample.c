/*
 * What sessions consume: memory and CPU time of their processes, and the size of their folders where a quota needs it.
 *
 *     loop: lists pids and folders ──▶ pool: reads /proc, walks folders ──▶ loop: cell__consumed of each session, waiting requests
 *
 * One measurement at a time, shared by all requests that wait for it: clients that ask often cost no more than one that asks.  A
 * kernel's children are followed; processes that left it (double forks inside a sandbox) are not seen.
 */
#define _GNU_SOURCE
#include "server/server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "executors/executor.h"

#define MAX_PROCESSES 256      /* of one session */
#define MAX_STAT_BYTES 4096
#define MAX_CHILDREN_BYTES 65536
#define MAX_FILES 200000       /* of one folder; more count as too much */
#define MAX_DEPTH 64
#define QUOTA_US 2000000       /* between two measurements for quotas */

struct item {
	char id[33];
	char *folder; /* to be measured; or NULL */
	struct cell__consumed consumed;
};

struct cell__sample_job {
	uv_work_t work; /* its data is the job */
	struct cell_server *server;
	struct cell__own_use own;
	size_t count;
	struct item items[];
};

struct cell__sample_waiter {
	struct cell__request *request;
	void (*then)(struct cell__request *request);
	struct cell__sample_waiter *next;
};

/* ---- processes (pool) ---- */

struct process {
	double cpu_s;
	int64_t memory_bytes;
	long threads;
};

static bool read_process(int64_t pid, struct process *ret)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	unsigned long long user, kernel;
	long long children_user, children_kernel, pages;
	const char *after;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	if (cell__file_read(AT_FDCWD, path, 0, MAX_STAT_BYTES, &text, NULL) < 0)
		return false;
	/* The name in parentheses may contain anything, also parentheses. */
	after = strrchr(text.data, ')');
	if (!after || sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld %*d %*d %ld %*d %*u %*u %lld", &user,
			     &kernel, &children_user, &children_kernel, &ret->threads, &pages) != 6)
		return false;
	ret->cpu_s = (double)(user + kernel + (unsigned long long)(children_user + children_kernel)) / (double)sysconf(_SC_CLK_TCK);
	ret->memory_bytes = (int64_t)pages * sysconf(_SC_PAGESIZE);
	return true;
}

static size_t add_children(int64_t pid, const char *thread, int64_t *pids, size_t count)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char path[128], *at, *end;

	snprintf(path, sizeof(path), "/proc/%lld/task/%.20s/children", (long long)pid, thread);
	if (cell__file_read(AT_FDCWD, path, 0, MAX_CHILDREN_BYTES, &text, NULL) < 0 || !text.data)
		return count;
	for (at = text.data; count < MAX_PROCESSES; at = end) {
		long long child = strtoll(at, &end, 10);

		if (end == at)
			break;
		pids[count++] = child;
	}
	return count;
}

static void measure_processes(struct cell__consumed *consumed)
{
	int64_t pids[MAX_PROCESSES];
	size_t count = 1;

	pids[0] = consumed->pid;
	for (size_t i = 0; i < count; i++) {
		struct process process;
		struct dirent *entry;
		char path[64];
		DIR *dir;

		if (!read_process(pids[i], &process))
			continue; /* it has ended */
		consumed->known = true;
		consumed->cpu_s += process.cpu_s;
		consumed->memory_bytes += process.memory_bytes;
		snprintf(path, sizeof(path), "/proc/%lld/task", (long long)pids[i]);
		dir = opendir(path);
		while (dir && (entry = readdir(dir)) && count < MAX_PROCESSES) {
			if (*entry->d_name != '.')
				count = add_children(pids[i], entry->d_name, pids, count);
		}
		if (dir)
			closedir(dir);
	}
}

static void measure_self(struct cell__own_use *own)
{
	struct process process;
	struct rlimit limit;
	DIR *dir = opendir("/proc/self/fd");

	while (dir && readdir(dir))
		own->open_fds++;
	if (dir) {
		own->open_fds -= 3; /* ".", "..", and this one */
		closedir(dir);
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		own->max_fds = (int64_t)limit.rlim_cur;
	if (read_process(getpid(), &process)) {
		own->memory_bytes = process.memory_bytes;
		own->cpu_s = process.cpu_s;
	}
}

/* ---- folders (pool) ---- */

/* The bytes below a folder that code can write to: no link is followed, no mount is entered. -1: it cannot be measured. */
static int64_t walk(int dir_fd, const char *name, dev_t device, int depth, int64_t *files)
{
	int fd = depth < MAX_DEPTH ? openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	int64_t bytes = 0;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return errno == ENOENT ? 0 : -1;
	}
	while (bytes >= 0 && (entry = readdir(dir))) {
		struct stat st;
		int64_t below;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (++*files > MAX_FILES) {
			bytes = -1;
			break;
		}
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != device)
			continue;
		bytes += (int64_t)st.st_blocks * 512;
		if (!S_ISDIR(st.st_mode))
			continue;
		below = walk(fd, entry->d_name, device, depth + 1, files);
		bytes = below < 0 ? -1 : bytes + below;
	}
	closedir(dir);
	return bytes;
}

static int64_t measure_folder(const char *path)
{
	struct stat st;
	int64_t files = 0, bytes;

	if (lstat(path, &st) < 0)
		return 0;
	bytes = walk(AT_FDCWD, path, st.st_dev, 0, &files);
	return bytes < 0 ? INT64_MAX : bytes; /* more than can be counted is too much */
}

static void do_sample(uv_work_t *work)
{
	struct cell__sample_job *job = work->data;

	measure_self(&job->own);
	for (size_t i = 0; i < job->count; i++) {
		struct item *item = &job->items[i];

		if (item->consumed.pid)
			measure_processes(&item->consumed);
		if (item->folder)
			item->consumed.disk_bytes = measure_folder(item->folder);
	}
}

/* ---- loop ---- */

static void job_free(struct cell__sample_job *job)
{
	for (size_t i = 0; i < job->count; i++)
		free(job->items[i].folder);
	free(job);
}

static void handle_sampled(uv_work_t *work, int status)
{
	struct cell__sample_job *job = work->data;
	struct cell_server *server = job->server;
	struct cell__sample_waiter *waiting = cell__take_ptr(server->sampling.waiting), *next;

	(void)status;
	server->sampling.job = NULL;
	server->sampling.own = job->own;
	server->sampling.at_us = cell__now_us();
	for (size_t i = 0; i < job->count; i++) {
		struct cell__served *served = cell__served_by_id(server, job->items[i].id);

		if (served)
			served->measured = job->items[i].consumed;
	}
	job_free(job);
	cell__accounts_measured(server);
	for (; waiting; waiting = next) {
		next = waiting->next;
		waiting->then(waiting->request);
		free(waiting);
	}
	cell__server_advance(server);
}

/* Processes of another machine, or of a container, cannot be read here. */
static bool is_local(const struct cell_server *server)
{
	const struct cell__executor *executor = cell__executor_find(server->session.executor ? server->session.executor : "subprocess");

	return executor && !executor->calls_there;
}

static bool begin(struct cell_server *server)
{
	size_t count = 0;
	struct cell__sample_job *job;
	bool local = is_local(server);

	if (server->sampling.job)
		return true;
	for (struct cell__served *served = server->sessions; served; served = served->next)
		count++;
	job = cell__alloc(1, sizeof(*job) + count * sizeof(job->items[0]));
	if (!job)
		return false;
	*job = (struct cell__sample_job){ .work.data = job, .server = server };
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		struct item *item = &job->items[job->count++];

		*item = (struct item){ .consumed.disk_bytes = -1 };
		memcpy(item->id, served->id, sizeof(item->id));
		item->consumed.pid = local && served->session ? cell__session_pid_on_loop(served->session) : 0;
		if (served->folder && served->account->quotas.disk_bytes >= 0)
			item->folder = cell__strdup(served->folder->path);
	}
	server->sampling.job = job;
	uv_queue_work(cell__loop_uv(server->engine->loop), &job->work, do_sample, handle_sampled);
	return true;
}

void cell__sample(struct cell_server *server, struct cell__request *request, void (*then)(struct cell__request *request))
{
	struct cell__sample_waiter *waiter = request ? cell__alloc(1, sizeof(*waiter)) : NULL;

	if (request && !waiter) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
		return;
	}
	if (!begin(server)) {
		free(waiter);
		if (request)
			then(request); /* with what is known */
		return;
	}
	if (!request)
		return;
	*waiter = (struct cell__sample_waiter){ .request = request, .then = then, .next = server->sampling.waiting };
	server->sampling.waiting = waiter;
}

static bool has_quotas(const struct cell_server *server)
{
	for (const struct cell__account *account = server->accounts; account; account = account->next) {
		/* Other workers see the bytes of our last sessions until they are measured once more. */
		bool is_used = account->use->sessions || (server->pool && account->use->disk_bytes);

		if (is_used && (account->quotas.cpu_s >= 0 || account->quotas.disk_bytes >= 0))
			return true;
	}
	return false;
}

void cell__sample_sweep(struct cell_server *server, int64_t now_us)
{
	if (!server->draining && now_us - server->sampling.at_us >= QUOTA_US && has_quotas(server))
		(void)begin(server);
}
