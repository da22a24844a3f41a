#define _GNU_SOURCE
#include "sandbox/overlay.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "base/base.h"
#include "base/tree.h"

#define STACK_BYTES 65536u
#define MAX_DEVICES 16u

struct trial {
	char options[1024], target[256];
	char uid_map[48], gid_map[48];
};

/* Raw system calls alone: the memory is the caller's, which is suspended. */
static long write_to(const char *path, const char *text)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
	long n = fd < 0 ? -1 : syscall(SYS_write, fd, text, strlen(text));
	if (fd >= 0)
		syscall(SYS_close, fd);
	return n;
}

/* Its end is the end of its namespaces, and of the mount. */
static int try_mount(void *arg)
{
	const struct trial *trial = arg;
	if (write_to("/proc/self/setgroups", "deny") < 0 || write_to("/proc/self/uid_map", trial->uid_map) < 0 ||
	    write_to("/proc/self/gid_map", trial->gid_map) < 0)
		return 1;
	return syscall(SYS_mount, "overlay", trial->target, "overlay", MS_NOSUID | MS_NODEV, trial->options) < 0 ? 1 : 0;
}

static bool run_trial(struct trial *trial)
{
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	int status = -1;
	if (stack == MAP_FAILED)
		return false;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the host's runs in it */
	pid_t pid = clone(try_mount, (char *)stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | CLONE_NEWNS, trial);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	while (pid > 0 && waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR) {
	}
	munmap(stack, STACK_BYTES);
	return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool try_in(const char *folder)
{
	static const char *const parts[] = { "lower", "upper", "work", "merged" };
	struct trial trial;
	char top[200], marked[256];
	/* The trial names its folders in options, where these would have to be quoted. */
	if (strpbrk(folder, ",:\\") || (size_t)snprintf(top, sizeof top, "%s/workcell-overlay-XXXXXX", folder) >= sizeof top ||
	    !mkdtemp(top))
		return false;
	bool works = true;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		snprintf(trial.target, sizeof trial.target, "%s/%s", top, parts[i]);
		works = works && mkdir(trial.target, 0700) == 0;
	}
	snprintf(trial.options, sizeof trial.options, "userxattr,lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", top, top, top);
	snprintf(trial.uid_map, sizeof trial.uid_map, "%u %u 1", geteuid(), geteuid());
	snprintf(trial.gid_map, sizeof trial.gid_map, "%u %u 1", getegid(), getegid());
	/* The layer marks its folder so (layer/layer.h). */
	snprintf(marked, sizeof marked, "%s/upper", top);
	works = works && setxattr(marked, "user.workcell.layer", "x", 1, 0) == 0 && run_trial(&trial);
	(void)cell__tree_remove(AT_FDCWD, top);
	return works;
}

bool cell__overlay_works(const char *folder)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		dev_t device;
		bool works;
	} known[MAX_DEVICES];
	static size_t n_known;
	struct stat st;
	bool works = false, found = false;
	if (stat(folder, &st) < 0)
		return false;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n_known && !found; i++)
		if (known[i].device == st.st_dev) {
			works = known[i].works;
			found = true;
		}
	if (!found) {
		works = try_in(folder);
		if (n_known < MAX_DEVICES) {
			known[n_known].device = st.st_dev;
			known[n_known++].works = works;
		}
	}
	pthread_mutex_unlock(&lock);
	return works;
}
