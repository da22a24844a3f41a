/*
 * The memory of a live kernel as a file, and its way back into another process.
 *
 * Theory of operation
 *
 *   A sandboxed kernel cannot simply be forked: its copy would share the namespaces of the jail, and a process without capabilities cannot
 *   leave them.  So its memory is carried instead, into a fresh kernel with a jail of its own that has been confined by the usual steps:
 *
 *       source ── image_save(fd) ──▶ memfd ──▶ host ──▶ fresh kernel ── image_load(fd) ──▶ continues where the source saved
 *
 *   Both are forks of one zygote, so the interpreter, its libraries and the stack lie at the same addresses in both.  The host reads
 *   nothing of the file; whatever is in it can only do what the confinement of the fresh kernel lets any code do.
 *
 *   Save: a list of the mappings, and the pages that are this process's own (neither untouched nor those of a file).
 *   Load: a list of system calls is prepared, which turn the present mappings into the saved ones; then a loop executes it.  The loop
 *   runs on a stack outside of both address spaces and calls no function: libraries, their data and this thread's own block are replaced
 *   under it.  Large pieces are mapped from the file and copied when they are written to, so several loads of one file share memory.
 *
 *   The source maps large pieces from the file as well, once they are written.  So its next image has only pages that were changed since,
 *   and names the earlier files that the others are in.  The host keeps those files; when they become too many, one image has all pages.
 *
 *   Memory of a file differs from other memory in two ways.  It must not grow beyond the file (realloc() does that to large blocks), so the
 *   host makes the file larger than any memory.  And MADV_DONTNEED brings back the file's content, where some allocators (jemalloc) rely on
 *   zeros: a filter refuses that call, which they allow for.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its longjmp() ends a program that jumps from one stack to another */
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC 0x31676d6963777777ull
#define PAGE ((size_t)4096)
#define SCRATCH_BYTES ((size_t)64 << 20) /* address space; pages are used as needed */
#define STACK_BYTES ((size_t)64 << 10)
#define MAPPED_PAGES 16u                 /* pieces of at least this size are mapped, smaller ones are read */
#define KEPT_PAGES 4u                    /* the source maps pieces of at least this size from the image */
#define MANY_AREAS 8000                  /* then only large ones: Linux allows 65530 */
#define MANY_PAGES 64u
#define READS_AT_ONCE 1024u              /* IOV_MAX */
#define N_SIGNALS 64
#define SIGACTION_BYTES 32
#define GIVEN_MAX 4096
#define SCRATCH_FROM ((uint64_t)1 << 36) /* far from where Linux puts anything by itself */
#define SCRATCH_TO ((uint64_t)1 << 38)

enum area_kind { AREA_ANON, AREA_FILE, AREA_HEAP, AREA_STACK, AREA_IMAGE /* of an earlier image */ };

struct area {
	uint64_t start, end, offset; /* offset: of a file */
	uint64_t device, inode;
	uint32_t kind, prot, shared, path; /* path: position among the texts */
	uint64_t unused; /* sizes of both are multiples of 16: see take() */
};

/* Pages that lie together in memory and in the file. */
struct piece {
	uint64_t at, bytes, offset, unused;
};

struct image {
	uint64_t magic, bytes; /* of this and the tables */
	unsigned char zygote[16];
	uint64_t n_areas, n_pieces, text_bytes;
	uint64_t heap_end, ring, ring_bytes, tid;
	int32_t link[3], stack_flags;
	uint64_t stack_at, stack_bytes; /* of signal handlers */
	unsigned char actions[N_SIGNALS][SIGACTION_BYTES];
};

static unsigned char zygote_name[16]; /* random: two kernels have the same if they are forks of one zygote */
static jmp_buf resume;
static char given[GIVEN_MAX]; /* by the loader to the code that continues */
static size_t given_size;
static struct {
	void *at;
	size_t bytes;
} left; /* by the loader, to be unmapped */

int wc_image_begin(void)
{
	return getrandom(zygote_name, sizeof zygote_name, 0) == (ssize_t)sizeof zygote_name ? 0 : -1;
}

/* ---- no zeros on demand ---- */

static struct sock_filter no_zeros[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_FREE, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static bool has_no_zeros; /* in an image it is true if it was so in the source, or else the loader makes it so */

/* ---- memory of our own, in neither image ---- */

struct scratch {
	char *base, *next, *end;
};

/* n_areas: of an image that it must not be in the way of. */
static int place_scratch(struct scratch *scratch, const struct area *areas, uint64_t n_areas, size_t bytes)
{
	for (uint64_t at = SCRATCH_FROM; at < SCRATCH_TO; at += bytes + PAGE) {
		uint64_t i = 0;
		while (i < n_areas && !(areas[i].start < at + bytes && at < areas[i].end))
			i++;
		if (i < n_areas)
			continue;
		char *base = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (base == MAP_FAILED && errno == EEXIST)
			continue;
		if (base == MAP_FAILED)
			return -1;
		*scratch = (struct scratch){ base, base, base + bytes };
		return 0;
	}
	errno = ENOMEM;
	return -1;
}

static void *take(struct scratch *scratch, size_t bytes)
{
	bytes = (bytes + 15) & ~(size_t)15;
	if ((size_t)(scratch->end - scratch->next) < bytes)
		return NULL;
	void *at = scratch->next;
	scratch->next += bytes;
	return at;
}

/* ---- the mappings ---- */

struct mappings {
	struct area *areas;
	size_t n_areas;
	const char *texts; /* NUL-terminated paths */
	size_t text_bytes;
};

static uint64_t read_number(const char **at, unsigned base)
{
	uint64_t value = 0;
	for (;; ++*at) {
		char c = **at;
		unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 99;
		if (digit >= base)
			return value;
		value = value * base + digit;
	}
}

static bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* One line of /proc/self/maps, without its end.  False: not a mapping to carry. */
static bool read_area(const char *line, struct area *area, const char **ret_path)
{
	const char *at = line;
	*area = (struct area){ 0 };
	area->start = read_number(&at, 16);
	at++;
	area->end = read_number(&at, 16);
	at++;
	area->prot = (at[0] == 'r' ? PROT_READ : 0u) | (at[1] == 'w' ? PROT_WRITE : 0u) | (at[2] == 'x' ? PROT_EXEC : 0u);
	area->shared = at[3] == 's';
	at += 5;
	area->offset = read_number(&at, 16);
	at++;
	uint64_t major = read_number(&at, 16);
	at++;
	uint64_t minor = read_number(&at, 16);
	at++;
	area->device = makedev((unsigned)major, (unsigned)minor);
	area->inode = read_number(&at, 10);
	while (*at == ' ')
		at++;
	*ret_path = at;
	if (strcmp(at, "[heap]") == 0)
		area->kind = AREA_HEAP;
	else if (strcmp(at, "[stack]") == 0)
		area->kind = AREA_STACK;
	else if (has_prefix(at, "/memfd:workcell-image") && !area->shared)
		area->kind = AREA_IMAGE;
	else if (*at == '/' && strlen(at) > 10 && strcmp(at + strlen(at) - 10, " (deleted)") == 0)
		area->kind = AREA_ANON; /* whatever it was a part of, its content is carried */
	else if (*at == '/')
		area->kind = AREA_FILE;
	else
		return !has_prefix(at, "[v"); /* [vdso], [vvar], [vsyscall]: every process has its own */
	return true;
}

static int read_mappings(struct scratch *scratch, struct mappings *out)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), error = 0;
	if (fd < 0)
		return -1;
	char *text = scratch->next;
	size_t room = (size_t)(scratch->end - scratch->next) / 4, size = 0;
	for (ssize_t n = 1; n > 0 && !error;) {
		n = read(fd, text + size, room - size);
		if (n < 0 || size + (size_t)n + 1 >= room)
			error = n < 0 ? errno : E2BIG;
		else
			size += (size_t)n;
	}
	close(fd);
	if (error) {
		errno = error;
		return -1;
	}
	text[size] = '\0';
	scratch->next += (size + 16) & ~(size_t)15;
	out->areas = (struct area *)scratch->next;
	out->n_areas = 0;
	out->texts = text;
	out->text_bytes = size + 1;
	for (char *line = text; *line;) {
		char *end = strchr(line, '\n');
		const char *path;
		if (end)
			*end = '\0';
		struct area *area = take(scratch, sizeof *area);
		if (!area) {
			errno = E2BIG;
			return -1;
		}
		if (read_area(line, area, &path) && area->start != (uintptr_t)scratch->base) {
			area->path = (uint32_t)(path - text);
			out->n_areas++;
		} else {
			scratch->next = (char *)area;
		}
		line = end ? end + 1 : line + strlen(line);
	}
	return 0;
}

/* ---- saving ---- */

#define PAGE_PRESENT (1ull << 63)
#define PAGE_SWAPPED (1ull << 62)
#define PAGE_FILE (1ull << 61)

/* Our own file of it; a process that is not dumpable must be so for a moment to open it. */
static int open_pages(void)
{
	int was = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
	if (was != 1)
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), error = errno;
	if (was != 1)
		prctl(PR_SET_DUMPABLE, was, 0, 0, 0);
	errno = error;
	return fd;
}

struct saving {
	struct scratch scratch;
	struct mappings maps;
	struct piece *pieces; /* at scratch.next: grows */
	size_t n_pieces;
	uint64_t used[WC_IMAGES_USED]; /* inodes of earlier images */
	size_t n_used;
	int pages_fd;
};

/* first: of the same area; pieces of two areas have different rights. */
static int add_piece(struct saving *saving, size_t first, uint64_t at)
{
	struct piece *last = saving->n_pieces > first ? &saving->pieces[saving->n_pieces - 1] : NULL;
	if (last && last->at + last->bytes == at) {
		last->bytes += PAGE;
		return 0;
	}
	struct piece *piece = take(&saving->scratch, sizeof *piece);
	if (!piece)
		return -1;
	saving->pieces[saving->n_pieces++] = (struct piece){ .at = at, .bytes = PAGE };
	return 0;
}

/* Which pages of an area are carried: a shared one's content has no other place, of a private file only what was written to. */
static int find_pieces(struct saving *saving, const struct area *area)
{
	static uint64_t entries[4096];
	bool whole = area->kind == AREA_ANON && area->inode != 0; /* of a file that is gone */
	size_t first = saving->n_pieces;
	for (uint64_t at = area->start; at < area->end;) {
		size_t n = (area->end - at) / PAGE < 4096 ? (size_t)((area->end - at) / PAGE) : 4096;
		ssize_t got = pread(saving->pages_fd, entries, n * 8, (off_t)(at / PAGE * 8));
		if (got <= 0 || got % 8 != 0) {
			errno = got < 0 ? errno : EIO;
			return -1;
		}
		for (size_t i = 0; i < (size_t)got / 8; i++) {
			bool there = entries[i] & (PAGE_PRESENT | PAGE_SWAPPED), of_file = entries[i] & PAGE_FILE;
			if ((whole || (there && (!of_file || area->shared))) && add_piece(saving, first, at + i * PAGE) < 0)
				return -1;
		}
		at += (size_t)got / 8 * PAGE;
	}
	return 0;
}

static int write_pieces(int fd, struct saving *saving, uint64_t from)
{
	static struct iovec iov[READS_AT_ONCE];
	for (size_t i = 0; i < saving->n_pieces;) {
		size_t n = 0, bytes = 0;
		for (; n < READS_AT_ONCE && i + n < saving->n_pieces; n++) {
			iov[n] = (struct iovec){ (void *)(uintptr_t)saving->pieces[i + n].at, (size_t)saving->pieces[i + n].bytes };
			bytes += iov[n].iov_len;
		}
		for (size_t at = 0; bytes > 0;) {
			ssize_t done = pwritev(fd, iov + at, (int)(n - at), (off_t)from);
			if (done <= 0) {
				errno = done < 0 ? errno : EIO;
				return -1;
			}
			from += (uint64_t)done;
			bytes -= (size_t)done;
			for (; done > 0 && (size_t)done >= iov[at].iov_len; at++)
				done -= (ssize_t)iov[at].iov_len;
			if (done > 0) {
				iov[at].iov_base = (char *)iov[at].iov_base + done;
				iov[at].iov_len -= (size_t)done;
			}
		}
		i += n;
	}
	return 0;
}

static int write_all(int fd, const void *data, size_t size, uint64_t at)
{
	while (size > 0) {
		ssize_t n = pwrite(fd, data, size, (off_t)at);
		if (n <= 0) {
			errno = n < 0 ? errno : EIO;
			return -1;
		}
		data = (const char *)data + n;
		size -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

static void fill_in(struct image *image)
{
	void *ring;
	stack_t stack;
	int *tid = NULL;
	struct wc_ends ends = wc_ends();
	image->magic = MAGIC;
	memcpy(image->zygote, zygote_name, sizeof zygote_name);
	image->heap_end = (uintptr_t)syscall(SYS_brk, 0);
	image->ring_bytes = wc_ring(&ring);
	image->link[0] = ends.sock;
	image->link[1] = ends.out;
	image->link[2] = ends.err;
	image->ring = (uintptr_t)ring;
	if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0)
		image->tid = (uintptr_t)tid;
	if (sigaltstack(NULL, &stack) == 0) {
		image->stack_flags = stack.ss_flags;
		image->stack_at = (uintptr_t)stack.ss_sp;
		image->stack_bytes = stack.ss_size;
	}
	for (int i = 1; i <= N_SIGNALS; i++)
		syscall(SYS_rt_sigaction, i, NULL, image->actions[i - 1], sizeof(uint64_t));
}

/* How much of the memory is in this image. */
static uint64_t bytes_in(const struct saving *saving, uint64_t inode)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < saving->maps.n_areas; i++)
		if (saving->maps.areas[i].kind == AREA_IMAGE && saving->maps.areas[i].inode == inode)
			bytes += saving->maps.areas[i].end - saving->maps.areas[i].start;
	return bytes;
}

/* All pages that are in this image are written anew. */
static void stop_using(struct saving *saving, uint64_t inode)
{
	for (size_t i = 0; i < saving->maps.n_areas; i++)
		if (saving->maps.areas[i].kind == AREA_IMAGE && saving->maps.areas[i].inode == inode)
			saving->maps.areas[i].kind = AREA_ANON;
}

/* Earlier images that pages are still in.  If there are too many of them, those with the fewest pages go. */
static void find_used(struct saving *saving)
{
	uint64_t bytes[WC_IMAGES_USED + 1], inodes[WC_IMAGES_USED + 1];
	size_t n = 0;
	for (size_t i = 0; i < saving->maps.n_areas; i++) {
		const struct area *area = &saving->maps.areas[i];
		size_t k = 0;
		if (area->kind != AREA_IMAGE)
			continue;
		while (k < n && inodes[k] != area->inode)
			k++;
		if (k == WC_IMAGES_USED + 1)
			continue; /* the host passed no more than that */
		if (k == n) {
			inodes[n] = area->inode;
			bytes[n++] = bytes_in(saving, area->inode);
		}
	}
	for (bool too_many = n > WC_IMAGES_USED; too_many && n > WC_IMAGES_KEPT; n--) {
		size_t least = 0;
		for (size_t k = 1; k < n; k++)
			if (bytes[k] < bytes[least])
				least = k;
		stop_using(saving, inodes[least]);
		inodes[least] = inodes[n - 1];
		bytes[least] = bytes[n - 1];
	}
	memcpy(saving->used, inodes, n * sizeof *inodes);
	saving->n_used = n;
}

/*
 * Pages that are in the file now need not be ours any longer.  Not those that have changed since they were written: our own variables, the
 * stack.  What else may have changed there in the meantime is errno.
 */
static int keep_in_file(int fd, const struct saving *saving)
{
	struct sock_fprog program = { sizeof no_zeros / sizeof *no_zeros, no_zeros };
	if (!has_no_zeros && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		return 0; /* then not */
	has_no_zeros = true;
	uint64_t least = (saving->maps.n_areas < MANY_AREAS ? KEPT_PAGES : MANY_PAGES) * PAGE;
	size_t k = 0;
	for (size_t i = 0; i < saving->n_pieces; i++) {
		const struct piece *piece = &saving->pieces[i];
		while (saving->maps.areas[k].end <= piece->at)
			k++;
		const struct area *area = &saving->maps.areas[k];
		bool ours = area->start <= (uintptr_t)saving && (uintptr_t)saving < area->end;
		bool anew = area->kind == AREA_ANON && area->inode != 0; /* no page may stay in an earlier image */
		if ((piece->bytes < least && !anew) || area->shared || ours ||
		    (area->kind != AREA_ANON && area->kind != AREA_IMAGE && area->kind != AREA_HEAP))
			continue;
		if (mmap((void *)(uintptr_t)piece->at, piece->bytes, (int)area->prot, MAP_PRIVATE | MAP_FIXED, fd, (off_t)piece->offset) ==
		    MAP_FAILED)
			return -1;
	}
	return 0;
}

/* Pages that cannot be read are made readable for the moment. */
static int save_areas(struct saving *saving, uint64_t ring, bool readable)
{
	for (size_t i = 0; i < saving->maps.n_areas; i++) {
		const struct area *area = &saving->maps.areas[i];
		if (area->start == ring || (area->kind == AREA_FILE && area->shared))
			continue;
		if (area->prot & PROT_READ) {
			if (!readable && find_pieces(saving, area) < 0)
				return -1;
			continue;
		}
		size_t before = saving->n_pieces;
		if (!readable && find_pieces(saving, area) < 0)
			return -1;
		if ((readable || saving->n_pieces > before) &&
		    mprotect((void *)(uintptr_t)area->start, area->end - area->start, readable ? (int)area->prot : PROT_READ) < 0)
			return -1;
	}
	return 0;
}

static int save(int fd, struct saving *saving)
{
	struct image image = { 0 };
	fill_in(&image);
	if (read_mappings(&saving->scratch, &saving->maps) < 0 || (saving->pages_fd = open_pages()) < 0)
		return -1;
	find_used(saving);
	saving->pieces = (struct piece *)saving->scratch.next;
	int rc = save_areas(saving, image.ring, false);
	image.n_areas = saving->maps.n_areas;
	image.n_pieces = saving->n_pieces;
	image.text_bytes = saving->maps.text_bytes;
	image.bytes = sizeof image + image.n_areas * sizeof(struct area) + image.n_pieces * sizeof(struct piece) + image.text_bytes;
	uint64_t data = (image.bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1), at = data;
	for (size_t i = 0; i < saving->n_pieces; i++) {
		saving->pieces[i].offset = at;
		at += saving->pieces[i].bytes;
	}
	uint64_t areas_at = sizeof image, pieces_at = areas_at + image.n_areas * sizeof(struct area),
		 texts_at = pieces_at + image.n_pieces * sizeof(struct piece);
	if (rc == 0)
		rc = write_all(fd, &image, sizeof image, 0) < 0 ||
				     write_all(fd, saving->maps.areas, texts_at - pieces_at ? pieces_at - areas_at : 0, areas_at) < 0 ||
				     write_all(fd, saving->pieces, texts_at - pieces_at, pieces_at) < 0 ||
				     write_all(fd, saving->maps.texts, image.text_bytes, texts_at) < 0 || write_pieces(fd, saving, data) < 0
			     ? -1
			     : 0;
	int error = errno;
	if (save_areas(saving, image.ring, true) < 0 && rc == 0) {
		error = errno;
		rc = -1;
	}
	close(saving->pages_fd);
	if (rc == 0 && (rc = keep_in_file(fd, saving)) < 0)
		error = errno;
	errno = error;
	return rc;
}

/* image_save(fd) -> inodes of earlier images that it needs; None in the process that continues from the image, which has image_given() */
PyObject *wc_image_save(PyObject *self, PyObject *arg)
{
	(void)self;
	static struct saving saving; /* not on the stack: that is saved too, and read by the process that continues */
	static int fd, rc, error;
	fd = (int)PyLong_AsLong(arg);
	if (PyErr_Occurred())
		return NULL;
	saving = (struct saving){ .pages_fd = -1 };
	if (place_scratch(&saving.scratch, NULL, 0, SCRATCH_BYTES) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	PyOS_BeforeFork();
	if (_setjmp(resume) != 0) {
		munmap(left.at, left.bytes);
		PyOS_AfterFork_Child();
		Py_RETURN_NONE;
	}
	rc = save(fd, &saving);
	error = errno;
	PyOS_AfterFork_Parent();
	munmap(saving.scratch.base, SCRATCH_BYTES);
	errno = error;
	if (rc < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	PyObject *used = PyList_New(0);
	for (size_t i = 0; used && i < saving.n_used; i++) {
		PyObject *inode = PyLong_FromUnsignedLongLong(saving.used[i]);
		if (!inode || PyList_Append(used, inode) < 0)
			Py_CLEAR(used);
		Py_XDECREF(inode);
	}
	return used;
}

/* image_given() -> the bytes that image_load() was given */
PyObject *wc_image_given(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBytes_FromStringAndSize(given, (Py_ssize_t)given_size);
}

/* ---- loading ---- */

enum op_kind { OP_UNMAP, OP_MAP, OP_EMPTY, OP_PROTECT, OP_READ, OP_BREAK, OP_MOVE, OP_DUP, OP_CLOSE };

struct op {
	uint32_t kind;
	int32_t fd;
	uint64_t at, bytes, prot, flags, offset;
};

struct loading {
	struct scratch scratch;
	struct mappings now;
	struct image *image;
	struct area *areas;
	struct piece *pieces;
	const char *texts;
	struct op *ops;
	size_t n_ops, max_ops;
	struct iovec *iov;
	size_t n_iov;
	int fd;
	int fds[1 + WC_IMAGES_USED]; /* of this and earlier images */
	size_t n_fds;
	char *stack;
	char *given;
	size_t given_size;
	struct sock_filter no_zeros[sizeof no_zeros / sizeof *no_zeros];
	struct sock_fprog filter;
};

#if defined(__x86_64__)
#define RAW_CALL(n, a, b, c, d, e, f)                                                                                                 \
	({                                                                                                                            \
		long raw_result;                                                                                                      \
		register long raw_d __asm__("r10") = (long)(d);                                                                       \
		register long raw_e __asm__("r8") = (long)(e);                                                                        \
		register long raw_f __asm__("r9") = (long)(f);                                                                        \
		__asm__ volatile("syscall"                                                                                            \
				 : "=a"(raw_result)                                                                                   \
				 : "0"((long)(n)), "D"((long)(a)), "S"((long)(b)), "d"((long)(c)), "r"(raw_d), "r"(raw_e), "r"(raw_f) \
				 : "rcx", "r11", "memory");                                                                           \
		raw_result;                                                                                                           \
	})
#define JUMP_TO(fn, arg, sp) \
	__asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tcall *%1\n\tud2" : : "r"(sp), "r"(fn), "D"(arg) : "memory")
#elif defined(__aarch64__)
#define RAW_CALL(n, a, b, c, d, e, f)                                                                     \
	({                                                                                                \
		register long raw_n __asm__("x8") = (long)(n);                                            \
		register long raw_a __asm__("x0") = (long)(a);                                            \
		register long raw_b __asm__("x1") = (long)(b);                                            \
		register long raw_c __asm__("x2") = (long)(c);                                            \
		register long raw_d __asm__("x3") = (long)(d);                                            \
		register long raw_e __asm__("x4") = (long)(e);                                            \
		register long raw_f __asm__("x5") = (long)(f);                                            \
		__asm__ volatile("svc 0"                                                                  \
				 : "+r"(raw_a)                                                            \
				 : "r"(raw_n), "r"(raw_b), "r"(raw_c), "r"(raw_d), "r"(raw_e), "r"(raw_f) \
				 : "memory");                                                             \
		raw_a;                                                                                    \
	})
#define JUMP_TO(fn, arg, sp)                                                                                       \
	do {                                                                                                       \
		register long jump_arg __asm__("x0") = (long)(arg);                                                \
		__asm__ volatile("mov sp, %0\n\tblr %1\n\tbrk #1" : : "r"(sp), "r"(fn), "r"(jump_arg) : "memory"); \
	} while (0)
#else
#error "no way to load an image on this machine"
#endif

#define LOAD_FAILED 72

/* From here on nothing but system calls and the scratch memory: whatever else there was is being replaced. */
static void __attribute__((noreturn, noinline, no_stack_protector)) run_ops(struct loading *loading)
{
	for (size_t i = 0; i < loading->n_ops; i++) {
		const struct op *op = &loading->ops[i];
		long rc = 0, want = 0;
		switch (op->kind) {
		case OP_UNMAP:
			rc = RAW_CALL(SYS_munmap, op->at, op->bytes, 0, 0, 0, 0);
			break;
		case OP_MAP:
			rc = RAW_CALL(SYS_mmap, op->at, op->bytes, op->prot, op->flags | MAP_FIXED, op->fd, op->offset);
			want = (long)op->at;
			break;
		case OP_EMPTY:
			rc = RAW_CALL(SYS_madvise, op->at, op->bytes, MADV_DONTNEED, 0, 0, 0);
			break;
		case OP_PROTECT:
			rc = RAW_CALL(SYS_mprotect, op->at, op->bytes, op->prot, 0, 0, 0);
			break;
		case OP_READ: /* at: the vectors, bytes: their number, prot: the bytes in all */
			rc = RAW_CALL(SYS_preadv, op->fd, op->at, op->bytes, op->offset, 0, 0);
			want = (long)op->prot;
			break;
		case OP_BREAK:
			rc = RAW_CALL(SYS_brk, op->at, 0, 0, 0, 0, 0);
			want = (long)op->at;
			break;
		case OP_MOVE:
			rc = RAW_CALL(SYS_mremap, op->at, op->bytes, op->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, op->offset, 0);
			want = (long)op->offset;
			break;
		case OP_DUP:
			rc = RAW_CALL(SYS_dup3, op->fd, op->at, O_CLOEXEC, 0, 0, 0);
			want = (long)op->at;
			break;
		case OP_CLOSE:
			rc = RAW_CALL(SYS_close, op->fd, 0, 0, 0, 0, 0);
			break;
		}
		if (rc != want)
			RAW_CALL(SYS_exit_group, LOAD_FAILED, 0, 0, 0, 0, 0);
	}
	const struct image *image = loading->image;
	if (RAW_CALL(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &loading->filter, 0, 0, 0) < 0)
		RAW_CALL(SYS_exit_group, LOAD_FAILED, 0, 0, 0, 0, 0);
	*(volatile bool *)&has_no_zeros = true;
	for (int i = 1; i <= N_SIGNALS; i++)
		RAW_CALL(SYS_rt_sigaction, i, image->actions[i - 1], 0, sizeof(uint64_t), 0, 0);
	stack_t stack = { .ss_sp = (void *)(uintptr_t)image->stack_at, .ss_flags = image->stack_flags, .ss_size = image->stack_bytes };
	RAW_CALL(SYS_sigaltstack, &stack, 0, 0, 0, 0, 0);
	if (image->tid)
		*(volatile int *)(uintptr_t)image->tid = (int)RAW_CALL(SYS_gettid, 0, 0, 0, 0, 0, 0);
	for (size_t i = 0; i < loading->given_size; i++)
		((volatile char *)given)[i] = loading->given[i];
	*(volatile size_t *)&given_size = loading->given_size;
	*(void *volatile *)&left.at = loading->scratch.base;
	*(volatile size_t *)&left.bytes = (size_t)(loading->scratch.end - loading->scratch.base);
	_longjmp(resume, 1);
}

static int add_op(struct loading *loading, struct op op)
{
	if (loading->n_ops == loading->max_ops) {
		errno = E2BIG;
		return -1;
	}
	loading->ops[loading->n_ops++] = op;
	return 0;
}

/* The areas are sorted, as the system lists them. */
static int unmap_others(struct loading *loading)
{
	uint64_t n = loading->image->n_areas, k = 0;
	for (size_t i = 0; i < loading->now.n_areas; i++) {
		const struct area *now = &loading->now.areas[i];
		uint64_t at = now->start;
		if (now->kind == AREA_HEAP || now->kind == AREA_STACK)
			continue;
		while (at < now->end) {
			while (k > 0 && loading->areas[k - 1].end > at)
				k--;
			while (k < n && loading->areas[k].end <= at)
				k++;
			uint64_t until = k < n && loading->areas[k].start < now->end ? loading->areas[k].start : now->end;
			if (until > at && add_op(loading, (struct op){ .kind = OP_UNMAP, .at = at, .bytes = until - at }) < 0)
				return -1;
			at = k < n && until == loading->areas[k].start ? loading->areas[k].end : until;
		}
	}
	return 0;
}

static bool same_file(const struct area *a, const struct area *b)
{
	return a->start == b->start && a->end == b->end && a->offset == b->offset && a->device == b->device && a->inode == b->inode &&
	       a->kind == b->kind && a->prot == b->prot && a->shared == b->shared;
}

static const struct area *find_same(const struct loading *loading, const struct area *area)
{
	for (size_t i = 0; i < loading->now.n_areas; i++)
		if (same_file(&loading->now.areas[i], area))
			return &loading->now.areas[i];
	return NULL;
}

static int image_with(const struct loading *loading, uint64_t inode)
{
	struct stat st;
	for (size_t i = 0; i < loading->n_fds; i++)
		if (fstat(loading->fds[i], &st) == 0 && st.st_ino == inode)
			return loading->fds[i];
	errno = EBADMSG;
	return -1;
}

/* It grows by itself where the saved one is larger. */
static int empty_stack(struct loading *loading, const struct area *area)
{
	for (size_t i = 0; i < loading->now.n_areas; i++) {
		const struct area *now = &loading->now.areas[i];
		if (now->kind == AREA_STACK && now->end == area->end)
			return add_op(loading, (struct op){ .kind = OP_EMPTY, .at = now->start, .bytes = now->end - now->start });
	}
	errno = EXDEV;
	return -1;
}

/* Writable until all pages are read into it: protect_areas() ends that. */
static int map_area(struct loading *loading, const struct area *area)
{
	uint64_t bytes = area->end - area->start;
	struct op op = { .kind = OP_MAP, .fd = -1, .at = area->start, .bytes = bytes, .prot = PROT_READ | PROT_WRITE };
	struct stat st;
	if (area->kind == AREA_HEAP) /* where its end has been moved to */
		return add_op(loading, (struct op){ .kind = OP_EMPTY, .at = area->start, .bytes = bytes });
	if (area->kind == AREA_STACK)
		return empty_stack(loading, area);
	if (area->kind == AREA_ANON) {
		op.flags = (area->shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE;
		return add_op(loading, op);
	}
	if (area->kind == AREA_IMAGE) {
		op.offset = area->offset;
		op.flags = MAP_PRIVATE;
		op.fd = image_with(loading, area->inode);
		return op.fd < 0 ? -1 : add_op(loading, op);
	}
	/* Where code cannot write, pages that differ from the file's were made by the loader of libraries, and are carried. */
	if (!area->shared && find_same(loading, area))
		return area->prot & PROT_WRITE ? add_op(loading, (struct op){ .kind = OP_EMPTY, .at = area->start, .bytes = bytes }) : 0;
	if (area->path >= loading->image->text_bytes) {
		errno = EBADMSG;
		return -1;
	}
	bool writes = area->shared && (area->prot & PROT_WRITE);
	op.fd = open(loading->texts + area->path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (op.fd < 0 || fstat(op.fd, &st) < 0)
		return -1;
	if (st.st_ino != area->inode) {
		errno = ESTALE;
		return -1;
	}
	op.offset = area->offset;
	op.flags = area->shared ? MAP_SHARED : MAP_PRIVATE;
	if (area->shared)
		op.prot = area->prot;
	return add_op(loading, op) < 0 || add_op(loading, (struct op){ .kind = OP_CLOSE, .fd = op.fd }) < 0 ? -1 : 0;
}

static const struct area *area_of(const struct loading *loading, uint64_t at)
{
	size_t from = 0, to = loading->image->n_areas;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (loading->areas[middle].end <= at)
			from = middle + 1;
		else
			to = middle;
	}
	return from < loading->image->n_areas && loading->areas[from].start <= at ? &loading->areas[from] : NULL;
}

static int flush_reads(struct loading *loading, size_t first, uint64_t offset, uint64_t bytes)
{
	return bytes == 0 ? 0
			  : add_op(loading, (struct op){ .kind = OP_READ,
							 .fd = loading->fd,
							 .at = (uintptr_t)(loading->iov + first),
							 .bytes = loading->n_iov - first,
							 .prot = bytes,
							 .offset = offset });
}

static int put_pieces(struct loading *loading)
{
	size_t first = 0;
	uint64_t from = 0, bytes = 0;
	for (uint64_t i = 0; i < loading->image->n_pieces; i++) {
		const struct piece *piece = &loading->pieces[i];
		const struct area *area = area_of(loading, piece->at);
		if (!area || piece->at + piece->bytes > area->end || piece->bytes == 0) {
			errno = EBADMSG;
			return -1;
		}
		bool mapped = piece->bytes >= MAPPED_PAGES * PAGE && !area->shared && area->kind != AREA_STACK;
		if (bytes > 0 && (mapped || loading->n_iov - first == READS_AT_ONCE || from + bytes != piece->offset)) {
			if (flush_reads(loading, first, from, bytes) < 0)
				return -1;
			bytes = 0;
		}
		if (mapped) {
			struct op op = { .kind = OP_MAP,
					 .fd = loading->fd,
					 .at = piece->at,
					 .bytes = piece->bytes,
					 .prot = PROT_READ | PROT_WRITE,
					 .flags = MAP_PRIVATE,
					 .offset = piece->offset };
			if (add_op(loading, op) < 0)
				return -1;
			continue;
		}
		if (bytes == 0) {
			first = loading->n_iov;
			from = piece->offset;
		}
		loading->iov[loading->n_iov++] = (struct iovec){ (void *)(uintptr_t)piece->at, (size_t)piece->bytes };
		bytes += piece->bytes;
	}
	return flush_reads(loading, first, from, bytes);
}

static bool has_pieces(const struct loading *loading, const struct area *area)
{
	size_t from = 0, to = loading->image->n_pieces; /* they are sorted, as the areas are */
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (loading->pieces[middle].at < area->start)
			from = middle + 1;
		else
			to = middle;
	}
	return from < loading->image->n_pieces && loading->pieces[from].at < area->end;
}

static int protect_areas(struct loading *loading)
{
	for (uint64_t i = 0; i < loading->image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->kind == AREA_FILE && !area->shared && find_same(loading, area) && !has_pieces(loading, area))
			continue; /* as it was */
		if ((area->prot == (PROT_READ | PROT_WRITE) && area->kind != AREA_FILE) || area->start == loading->image->ring ||
		    (area->kind == AREA_FILE && area->shared) || area->kind == AREA_STACK)
			continue;
		if (add_op(loading,
			   (struct op){ .kind = OP_PROTECT, .at = area->start, .bytes = area->end - area->start, .prot = area->prot }) < 0)
			return -1;
	}
	return 0;
}

/* Pages of these are read into the area as it is, so it must be writable first. */
static int unprotect_same(struct loading *loading, const struct area *area)
{
	if (area->kind != AREA_FILE || area->shared || (area->prot & PROT_WRITE) || !has_pieces(loading, area) || !find_same(loading, area))
		return 0;
	return add_op(
		loading,
		(struct op){ .kind = OP_PROTECT, .at = area->start, .bytes = area->end - area->start, .prot = area->prot | PROT_WRITE });
}

static int plan_load(struct loading *loading)
{
	struct image *image = loading->image;
	struct wc_ends ends = wc_ends();
	const int link[3] = { ends.sock, ends.out, ends.err };
	void *ring;
	size_t ring_bytes = wc_ring(&ring);
	uintptr_t parked = (uintptr_t)loading->scratch.end - ring_bytes; /* inside of it, and taken from its room */
	loading->scratch.end -= ring_bytes;
	if (ring_bytes != image->ring_bytes) {
		errno = EBADMSG;
		return -1;
	}
	if ((ring_bytes &&
	     add_op(loading, (struct op){ .kind = OP_MOVE, .at = (uintptr_t)ring, .bytes = ring_bytes, .offset = parked }) < 0) ||
	    unmap_others(loading) < 0 || add_op(loading, (struct op){ .kind = OP_BREAK, .at = image->heap_end }) < 0)
		return -1;
	for (uint64_t i = 0; i < image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->start >= area->end || (area->start | area->end) % PAGE || (i && area->start < loading->areas[i - 1].end)) {
			errno = EBADMSG;
			return -1;
		}
		if (area->start != image->ring && (map_area(loading, area) < 0 || unprotect_same(loading, area) < 0))
			return -1;
	}
	if (put_pieces(loading) < 0 || protect_areas(loading) < 0 ||
	    (ring_bytes && add_op(loading, (struct op){ .kind = OP_MOVE, .at = parked, .bytes = ring_bytes, .offset = image->ring }) < 0))
		return -1;
	for (int i = 0; i < 3; i++)
		if (link[i] != image->link[i] &&
		    (add_op(loading, (struct op){ .kind = OP_DUP, .fd = link[i], .at = (uint64_t)image->link[i] }) < 0))
			return -1;
	for (size_t i = 0; i < loading->n_fds; i++)
		if (add_op(loading, (struct op){ .kind = OP_CLOSE, .fd = loading->fds[i] }) < 0)
			return -1;
	return 0;
}

static int read_all(int fd, void *data, size_t size, uint64_t at)
{
	while (size > 0) {
		ssize_t n = pread(fd, data, size, (off_t)at);
		if (n <= 0) {
			errno = n < 0 ? errno : EBADMSG;
			return -1;
		}
		data = (char *)data + n;
		size -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

static int read_image(int fd, struct loading *loading, void **ret_tables, size_t *ret_bytes)
{
	struct image head;
	if (read_all(fd, &head, sizeof head, 0) < 0)
		return -1;
	uint64_t need = sizeof head + head.text_bytes;
	if (head.magic != MAGIC || head.n_areas > 1u << 17 || head.n_pieces > 1u << 20 || head.text_bytes == 0 ||
	    head.text_bytes > 1u << 26 || head.bytes != need + head.n_areas * sizeof(struct area) + head.n_pieces * sizeof(struct piece)) {
		errno = EBADMSG;
		return -1;
	}
	if (memcmp(head.zygote, zygote_name, sizeof zygote_name) != 0) {
		errno = EXDEV;
		return -1;
	}
	char *tables = mmap(NULL, head.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (tables == MAP_FAILED)
		return -1;
	*ret_tables = tables;
	*ret_bytes = head.bytes;
	if (read_all(fd, tables, head.bytes, 0) < 0)
		return -1;
	loading->image = (struct image *)tables;
	loading->areas = (struct area *)(tables + sizeof head);
	loading->pieces = (struct piece *)(loading->areas + head.n_areas);
	loading->texts = (char *)(loading->pieces + head.n_pieces);
	((char *)loading->texts)[head.text_bytes - 1] = '\0';
	return 0;
}

/* Everything that the loop needs, in memory that it does not replace. */
static int move_in(struct loading *loading)
{
	struct scratch *scratch = &loading->scratch;
	size_t bytes = loading->image->bytes;
	char *tables = take(scratch, bytes);
	loading->max_ops = 3 * loading->image->n_areas + loading->image->n_pieces + 2 * loading->now.n_areas + 4096;
	loading->iov = take(scratch, loading->image->n_pieces * sizeof *loading->iov + 16);
	loading->ops = take(scratch, loading->max_ops * sizeof *loading->ops);
	loading->given = take(scratch, GIVEN_MAX);
	loading->stack = take(scratch, STACK_BYTES);
	if (!tables || !loading->iov || !loading->ops || !loading->given || !loading->stack) {
		errno = E2BIG;
		return -1;
	}
	memcpy(tables, loading->image, bytes);
	loading->image = (struct image *)tables;
	loading->areas = (struct area *)(tables + sizeof *loading->image);
	loading->pieces = (struct piece *)(loading->areas + loading->image->n_areas);
	loading->texts = (char *)(loading->pieces + loading->image->n_pieces);
	memcpy(loading->given, given, given_size);
	loading->given_size = given_size;
	return read_mappings(scratch, &loading->now);
}

static bool is_image(const struct loading *loading, int fd)
{
	for (size_t i = 0; i < loading->n_fds; i++)
		if (loading->fds[i] == fd)
			return true;
	return false;
}

/* image_load([fd, those of earlier images], given): does not return; what was saved continues. Raises OSError when it cannot, with nothing changed. */
PyObject *wc_image_load(PyObject *self, PyObject *args)
{
	(void)self;
	struct loading loading = { .fd = -1 };
	PyObject *list;
	const char *text;
	Py_ssize_t size;
	void *tables = NULL;
	size_t bytes = 0;
	if (!PyArg_ParseTuple(args, "O!y#", &PyList_Type, &list, &text, &size))
		return NULL;
	for (Py_ssize_t i = 0; i < PyList_Size(list) && loading.n_fds < 1 + WC_IMAGES_USED; i++)
		loading.fds[loading.n_fds++] = (int)PyLong_AsLong(PyList_GetItem(list, i));
	if (PyErr_Occurred())
		return NULL;
	loading.fd = loading.n_fds ? loading.fds[0] : -1;
	if (size > GIVEN_MAX)
		return PyErr_Format(PyExc_ValueError, "at most %d bytes can be given", GIVEN_MAX);
	memcpy(given, text, (size_t)size);
	given_size = (size_t)size;
	int rc = read_image(loading.fd, &loading, &tables, &bytes);
	size_t room = rc == 0 ? ((4 * bytes + SCRATCH_BYTES + loading.image->ring_bytes) & ~(PAGE - 1)) : 0;
	if (rc == 0)
		rc = place_scratch(&loading.scratch, loading.areas, loading.image->n_areas, room);
	if (rc == 0)
		rc = move_in(&loading);
	if (rc == 0)
		rc = plan_load(&loading);
	if (rc == 0) {
		struct loading *moved = take(&loading.scratch, sizeof *moved);
		if (moved) {
			loading.scratch.end = loading.scratch.base + room;
			*moved = loading;
			memcpy(moved->no_zeros, no_zeros, sizeof no_zeros);
			moved->filter = (struct sock_fprog){ sizeof no_zeros / sizeof *no_zeros, moved->no_zeros };
			JUMP_TO(run_ops, moved, moved->stack + STACK_BYTES);
		}
		errno = E2BIG;
	}
	int error = errno;
	for (size_t i = 0; i < loading.n_ops; i++)
		if (loading.ops[i].kind == OP_CLOSE && !is_image(&loading, loading.ops[i].fd))
			close(loading.ops[i].fd);
	if (loading.scratch.base)
		munmap(loading.scratch.base, room);
	if (tables)
		munmap(tables, bytes);
	errno = error;
	return PyErr_SetFromErrno(PyExc_OSError);
}
