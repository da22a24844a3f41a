/* Memory of another process, see process_memory.h. */
#define _GNU_SOURCE
#include "spawn/process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/base.h"
#include "base/random.h"
#include "wire/image_part.h"

#define PARTS_AT_ONCE 256u
#define TABLES_MAX ((uint64_t)256 << 20)
#define BYTES_MAX ((uint64_t)1 << 42)

struct cell__process_memory {
	atomic_int refs;
	pid_t pid;
	int pidfd, go_fd;
	char token[CELL_PROCESS_TOKEN + 1];
	struct cell__process_said said;
	uint64_t max_bytes;            /* of its pages */
	struct cell_image_part *parts; /* checked */
};

static ssize_t read_remote(pid_t pid, void *to, size_t size, const struct iovec *from, size_t n)
{
	struct iovec here = { to, size };
	return process_vm_readv(pid, &here, 1, from, n, 0);
}

/* Rights are looked at first: an address where nothing is tells them apart. */
static bool may_read(pid_t pid)
{
	char byte;
	struct iovec nowhere = { NULL, 1 };
	return read_remote(pid, &byte, 1, &nowhere, 1) < 0 && errno == EFAULT;
}

struct cell__process_memory *cell__process_memory_create(pid_t pid, int *ret_wait_fd)
{
	int ends[2];
	if (pid <= 0)
		return NULL;
	CELL_AUTO_FD int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct cell__process_memory *memory = pidfd >= 0 && may_read(pid) ? cell__alloc(1, sizeof *memory) : NULL;
	if (!memory || pipe2(ends, O_CLOEXEC) < 0) {
		free(memory);
		return NULL;
	}
	*memory = (struct cell__process_memory){ .pid = pid, .pidfd = cell__take_fd(&pidfd), .go_fd = ends[1], .max_bytes = BYTES_MAX };
	atomic_init(&memory->refs, 1);
	cell__random_hex(memory->token, CELL_PROCESS_TOKEN);
	*ret_wait_fd = ends[0];
	return memory;
}

struct cell__process_memory *cell__process_memory_ref(struct cell__process_memory *memory)
{
	atomic_fetch_add(&memory->refs, 1);
	return memory;
}

void cell__process_memory_unref(struct cell__process_memory *memory)
{
	if (!memory || atomic_fetch_sub(&memory->refs, 1) > 1)
		return;
	cell__close_fd(&memory->pidfd);
	cell__close_fd(&memory->go_fd);
	free(memory->parts);
	free(memory);
}

const char *cell__process_memory_token(const struct cell__process_memory *memory)
{
	return memory->token;
}

void cell__process_memory_said(struct cell__process_memory *memory, const struct cell__process_said *said)
{
	memory->said = *said;
}

void cell__process_memory_limit(struct cell__process_memory *memory, uint64_t bytes)
{
	memory->max_bytes = bytes;
}

static bool read_file(int fd, void *to, size_t size, uint64_t offset)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = pread(fd, (char *)to + done, size - done, (off_t)(offset + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n < 0 ? errno : EBADMSG;
			return false;
		}
		done += (size_t)n;
	}
	return true;
}

/* In the file one lies behind the other, without holes.  0: they do not. */
static uint64_t check_parts(const struct cell__process_said *said, const struct cell_image_part *parts)
{
	uint64_t end = said->first_at;
	for (uint64_t i = 0; i < said->n_parts; i++) {
		if (parts[i].offset != end || parts[i].bytes == 0 || parts[i].bytes % CELL_IMAGE_PAGE || parts[i].bytes > BYTES_MAX - end)
			return 0;
		end += parts[i].bytes;
	}
	return end;
}

int cell__process_memory_open(struct cell__process_memory *memory, int fd, uint64_t *ret_bytes, struct cell_error *err)
{
	const struct cell__process_said *said = &memory->said;
	char token[CELL_PROCESS_TOKEN];
	struct iovec from = { (void *)(uintptr_t)said->token_at, sizeof token };
	if (said->n_parts == 0 || said->n_parts > CELL_IMAGE_PARTS || said->first_at == 0 || said->first_at > TABLES_MAX ||
	    said->first_at % CELL_IMAGE_PAGE || said->table_at > said->first_at ||
	    said->n_parts * sizeof *memory->parts > said->first_at - said->table_at)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the kernel describes its memory as no kernel does");
	if (read_remote(memory->pid, token, sizeof token, &from, 1) != sizeof token || memcmp(token, memory->token, sizeof token) != 0)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel ended while it was saved");
	free(memory->parts);
	memory->parts = cell__alloc(said->n_parts, sizeof *memory->parts);
	if (!memory->parts)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	if (!read_file(fd, memory->parts, said->n_parts * sizeof *memory->parts, said->table_at))
		return cell_fail(err, CELL_E_IO, errno, "the memory of a kernel");
	*ret_bytes = check_parts(said, memory->parts);
	if (!*ret_bytes)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the kernel describes its memory as no kernel does");
	if (*ret_bytes - said->first_at > memory->max_bytes)
		return cell_fail(err, CELL_E_LIMIT, 0, "the kernel describes more memory than it may have: %llu bytes of %llu",
				 (unsigned long long)(*ret_bytes - said->first_at), (unsigned long long)memory->max_bytes);
	return 0;
}

static size_t find_part(const struct cell__process_memory *memory, uint64_t offset)
{
	size_t from = 0, to = (size_t)memory->said.n_parts;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (memory->parts[middle].offset + memory->parts[middle].bytes <= offset)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

bool cell__process_memory_read(const struct cell__process_memory *memory, int fd, void *to, size_t size, uint64_t offset)
{
	struct iovec from[PARTS_AT_ONCE];
	if (offset < memory->said.first_at) {
		size_t n = memory->said.first_at - offset < size ? (size_t)(memory->said.first_at - offset) : size;
		if (!read_file(fd, to, n, offset))
			return false;
		to = (char *)to + n;
		size -= n;
		offset += n;
	}
	for (size_t i = size ? find_part(memory, offset) : 0; size > 0;) {
		size_t n = 0, bytes = 0;
		for (; n < PARTS_AT_ONCE && bytes < size && i < memory->said.n_parts; n++, i++) {
			uint64_t skip = offset + bytes - memory->parts[i].offset, left = memory->parts[i].bytes - skip;
			size_t part = left < size - bytes ? (size_t)left : size - bytes;
			from[n] = (struct iovec){ (void *)(uintptr_t)(memory->parts[i].at + skip), part };
			bytes += part;
		}
		/* A part that is not read as a whole is one that cannot be. */
		ssize_t done = bytes ? read_remote(memory->pid, to, bytes, from, n) : 0;
		if (done < 0 || (size_t)done != bytes || bytes == 0) {
			errno = done < 0 ? errno : EFAULT;
			return false;
		}
		to = (char *)to + bytes;
		size -= bytes;
		offset += bytes;
	}
	return true;
}

bool cell__process_memory_is_same(const struct cell__process_memory *memory)
{
	struct pollfd p = { .fd = memory->pidfd, .events = POLLIN };
	return poll(&p, 1, 0) == 0;
}
