#define _GNU_SOURCE
#include "executors/link_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

void cell__link_fds_close(struct cell__link_fds *fds)
{
	for (int i = 0; i < 4; i++)
		cell__close_fd(&fds->fd[i]);
}

int cell__link_make_fds(int pair[2], int out[2], int err_pipe[2], int *ring_fd, struct cell_error *err)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(err_pipe, O_CLOEXEC) < 0)
		return cell_fail(err, errno == EMFILE ? CELL_E_BUSY : CELL_E_IO, errno, "make a kernel's sockets%s",
				 errno == EMFILE ? " (raise the limit on open files, ulimit -n: a session needs 3)" : "");
	*ring_fd = memfd_create("workcell-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* Sealed: a kernel that shrinks the memory under us would kill the host with SIGBUS. */
	if (*ring_fd < 0 || ftruncate(*ring_fd, CELL_RING_MAP_BYTES) < 0 ||
	    fcntl(*ring_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return cell_fail(err, errno == EMFILE ? CELL_E_BUSY : CELL_E_IO, errno, "make a kernel's output ring");
	/* Only the reading ends are ours alone; the writing ends must block for their writers. */
	if (fcntl(out[0], F_SETFL, O_NONBLOCK) < 0 || fcntl(err_pipe[0], F_SETFL, O_NONBLOCK) < 0)
		return cell_fail(err, CELL_E_IO, errno, "set up a kernel's pipes");
	return 0;
}

static void unmap_shared(struct cell__bulk *bulk)
{
	struct cell__link_shared *shared = (struct cell__link_shared *)bulk;
	munmap(shared->map, CELL_RING_MAP_BYTES);
	free(shared);
}

int cell__link_map(int ring_fd, struct cell__link_shared **ret_shared, struct cell_error *err)
{
	struct cell__link_shared *shared = cell__alloc(1, sizeof *shared);
	if (!shared)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	void *map = mmap(NULL, CELL_RING_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, 0);
	if (map == MAP_FAILED) {
		free(shared);
		return cell_fail(err, CELL_E_NOMEM, errno, "map a kernel's output ring");
	}
	*shared = (struct cell__link_shared){
		.bulk = { .data = (char *)map + CELL_BULK_OFFSET, .size = CELL_BULK_BYTES, .refs = 1, .release = unmap_shared },
		.map = map,
	};
	*ret_shared = shared;
	return 0;
}
