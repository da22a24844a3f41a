/*
 * Programs in fresh processes (workcell_kernel/script.py): the kernel that forks them, and the children that run them, share one jail, and
 * a child must not reach the kernel's connection to the host, its memory, or the next child.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <errno.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

/* script_kernel(): from now on no other process of the jail can open this one's memory and descriptors in /proc */
PyObject *wc_script_kernel(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return wc_fail_step("protect the kernel's memory");
	Py_RETURN_NONE;
}

/* script_child(): in a fork, which goes without the connection and the memory shared with the host, and leaves no message queues */
PyObject *wc_script_child(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct wc_ends ends = wc_ends();
	const struct rlimit none = { 0, 0 };
	void *ring;
	size_t size = wc_ring(&ring);
	/* Nothing is unmapped: the extension's variables still point there. */
	if (size == 0 ||
	    mmap(ring, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		return wc_fail_step("leave the memory shared with the host");
	close(ends.sock);
	close(ends.out);
	close(ends.err);
	if (setrlimit(RLIMIT_MSGQUEUE, &none) < 0 || prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
		return wc_fail_step("limit a program");
	Py_RETURN_NONE;
}

/* ipc_is_empty() -> whether the jail's System V shared memory, semaphores and queues are all gone */
PyObject *wc_ipc_is_empty(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct shm_info memory;
	struct seminfo semaphores;
	struct msginfo queues;
	union {
		int val;
		struct seminfo *info;
	} arg = { .info = &semaphores };
	/* A system without them has none. */
	bool shm = shmctl(0, SHM_INFO, (struct shmid_ds *)&memory) < 0 ? errno == ENOSYS || errno == EPERM : memory.used_ids == 0;
	bool sem = semctl(0, 0, SEM_INFO, arg) < 0 ? errno == ENOSYS || errno == EPERM : semaphores.semusz == 0;
	bool msg = msgctl(0, MSG_INFO, (struct msqid_ds *)&queues) < 0 ? errno == ENOSYS || errno == EPERM : queues.msgpool == 0;
	return PyBool_FromLong(shm && sem && msg);
}
