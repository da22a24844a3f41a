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
 *   The host reads nothing of the file; whatever is in it can only do what the confinement of the fresh kernel lets any code do.
 *
 *   Save: a list of the mappings, and the pages that are this process's own (neither untouched nor those of a file).
 *   Load (image_load.c): a list of system calls is prepared, which turn the present mappings into the saved ones; then a loop executes it.
 *   The loop runs on a stack outside of both address spaces and calls no function: libraries, their data and this thread's own block are
 *   replaced under it.  Large pieces are mapped from the file and copied when they are written to, so several loads of one file share
 *   memory.
 *
 *   A save that ends the kernel leaves out the second half of that: the file has only the tables, and the host reads the pages out of this
 *   process, which waits in wait_while_read() (src/spawn/process_memory.h).
 *
 *   Kernels that are forks of one zygote have the interpreter, its libraries and the stack at the same addresses, and little has to be
 *   mapped anew.  In a kernel of another zygote everything lies elsewhere, and all of it is moved, also what Linux itself put there: the
 *   stack, the heap, [vdso].  It must have files with the same content, though (image_files.c), and a processor that can do as much.
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
#include "image.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <asm/prctl.h>
#endif

#define PAGE IMAGE_PAGE
#define WRITE_BYTES ((size_t)2 << 20) /* at once: the host, which copies what is there already, waits for the end of each write */
#define KEPT_PAGES 4u   /* the source maps pieces of at least this size from the image */
#define MANY_AREAS 8000 /* then only large ones: Linux allows 65530 */
#define MANY_PAGES 64u
#define SCRATCH_FROM ((uint64_t)1 << 36) /* far from where Linux puts anything by itself */
#define SCRATCH_TO ((uint64_t)1 << 38)

struct handover wc_image_handover;
static jmp_buf resume;
static char token[WC_TOKEN_BYTES + 1]; /* by which the host knows that it reads this process */
static struct places places; /* of the zygote: a confined kernel cannot read them */

static void find_places(void)
{
	char text[2048];
	uint64_t fields[52] = { 0 };
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return;
	text[n] = '\0';
	/* The second field may contain anything. */
	char *at = strrchr(text, ')');
	for (int field = 3; at && field <= 51; field++) {
		at = strchr(at + 1, ' ');
		fields[field] = at ? strtoull(at + 1, NULL, 10) : 0;
	}
	places = (struct places){ fields[26], fields[27], fields[45], fields[46], fields[47], fields[47],
				  fields[28], fields[48], fields[49], fields[50], fields[51] };
}

void wc_image_begin(uintptr_t *ret_args, uintptr_t *ret_args_end)
{
	find_places();
	*ret_args = places.arg_start;
	*ret_args_end = places.arg_end;
}

/* ---- no zeros on demand ---- */

struct sock_filter wc_image_no_zeros[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_FREE, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
const size_t wc_image_n_no_zeros = sizeof wc_image_no_zeros / sizeof *wc_image_no_zeros;

/* ---- memory of our own, in neither image ---- */

int wc_scratch_place(struct scratch *scratch, const struct area *areas, uint64_t n_areas, size_t bytes)
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

void *wc_scratch_take(struct scratch *scratch, size_t bytes)
{
	bytes = (bytes + 15) & ~(size_t)15;
	if ((size_t)(scratch->end - scratch->next) < bytes)
		return NULL;
	void *at = scratch->next;
	scratch->next += bytes;
	return at;
}

/* ---- the mappings ---- */

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

static const struct earlier *find_on_disk(const struct area *area)
{
	for (uint64_t i = 0; i < wc_image_handover.n_earlier; i++) {
		const struct earlier *earlier = &wc_image_handover.earlier[i];
		if (earlier->number & IMAGE_ON_DISK && earlier->device == area->device && earlier->inode == area->inode)
			return earlier;
	}
	return NULL;
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
	const struct earlier *on_disk = *at == '/' && !area->shared ? find_on_disk(area) : NULL;
	if (on_disk) {
		area->kind = AREA_IMAGE;
		area->inode = on_disk->number;
		return true;
	}
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
	else if (has_prefix(at, "[v"))
		area->kind = AREA_SYSTEM;
	return strcmp(at, "[vsyscall]") != 0; /* in every process at the same place */
}

int wc_mappings_read(struct scratch *scratch, struct mappings *out)
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
		struct area *area = wc_scratch_take(scratch, sizeof *area);
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
#define PAGE_ALONE (1ull << 56) /* in no other process */
#define PAGES_AT_ONCE ((size_t)4096)
#define SPARE_BYTES ((uint64_t)4 << 20) /* for whatever else happens while it is written */

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
	struct cell_image_part *pieces; /* at scratch.next: grows */
	size_t n_pieces;
	uint64_t used[WC_IMAGES_USED]; /* inodes of earlier images */
	size_t n_used;
	int pages_fd;
	uint64_t *entries, pages_from, pages_to; /* what was read of it last: of these addresses */
	uint64_t limit, alone; /* of the memory; what counts in it of the pages that are written */
	bool keeps; /* pages that were written stay in the file */
	/* The host reads the pages out of this process, which waits: */
	int wait_fd; /* until its other end is closed; -1: they are written */
	uint32_t ident; /* of the answer, which is sent before that */
	const char *answer; /* its beginning */
	size_t answer_bytes;
};

/* first: of the same area; pieces of two areas have different rights. */
static int add_piece(struct saving *saving, size_t first, uint64_t at)
{
	struct cell_image_part *last = saving->n_pieces > first ? &saving->pieces[saving->n_pieces - 1] : NULL;
	if (last && last->at + last->bytes == at) {
		last->bytes += PAGE;
		return 0;
	}
	struct cell_image_part *piece = wc_scratch_take(&saving->scratch, sizeof *piece);
	if (!piece)
		return -1;
	saving->pieces[saving->n_pieces++] = (struct cell_image_part){ .at = at, .bytes = PAGE };
	return 0;
}

/* What Linux says of the pages from here on, also of those of the next areas: most are small, and lie close together. */
static int read_pages(struct saving *saving, uint64_t at)
{
	ssize_t got = pread(saving->pages_fd, saving->entries, PAGES_AT_ONCE * sizeof *saving->entries, (off_t)(at / PAGE * 8));
	if (got <= 0 || got % 8 != 0) {
		errno = got < 0 ? errno : EIO;
		return -1;
	}
	saving->pages_from = at;
	saving->pages_to = at + (uint64_t)got / 8 * PAGE;
	return 0;
}

/* Which pages of an area are carried: a shared one's content has no other place, of a private file only what was written to. */
static int find_pieces(struct saving *saving, const struct area *area)
{
	bool whole = area->kind == AREA_ANON && area->inode != 0; /* of a file that is gone */
	size_t first = saving->n_pieces;
	for (uint64_t at = area->start; at < area->end; at += PAGE) {
		if ((at < saving->pages_from || at >= saving->pages_to) && read_pages(saving, at) < 0)
			return -1;
		uint64_t entry = saving->entries[(at - saving->pages_from) / PAGE];
		bool there = entry & (PAGE_PRESENT | PAGE_SWAPPED), of_file = entry & PAGE_FILE;
		saving->alone += there && !of_file && (entry & PAGE_ALONE) ? PAGE : 0;
		if ((whole || (there && (!of_file || area->shared))) && add_piece(saving, first, at) < 0)
			return -1;
	}
	return 0;
}

static int write_pieces(int fd, struct saving *saving, uint64_t from)
{
	static struct iovec iov[IMAGE_READS_AT_ONCE];
	for (size_t i = 0; i < saving->n_pieces;) {
		size_t n = 0, bytes = 0;
		for (; n < IMAGE_READS_AT_ONCE && i + n < saving->n_pieces; n++) {
			iov[n] = (struct iovec){ (void *)(uintptr_t)saving->pieces[i + n].at, (size_t)saving->pieces[i + n].bytes };
			bytes += iov[n].iov_len;
		}
		for (size_t at = 0; bytes > 0;) {
			size_t count = 0, sum = 0;
			while (at + count < n && sum < WRITE_BYTES)
				sum += iov[at + count++].iov_len;
			size_t over = sum > WRITE_BYTES ? sum - WRITE_BYTES : 0;
			iov[at + count - 1].iov_len -= over;
			ssize_t done = pwritev(fd, iov + at, (int)count, (off_t)from);
			iov[at + count - 1].iov_len += over;
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

/*
 * The answer, without letting go of the GIL: nothing may change from the tables' writing until the host has read all pages.  It ends when the host has
 * closed the pipe; if the pages were read, this process is killed.
 */
static int wait_while_read(struct saving *saving, uint64_t pieces_at, uint64_t data)
{
	size_t room = saving->answer_bytes + 256 + 24 * WC_IMAGES_USED, size = saving->answer_bytes;
	char *text = wc_scratch_take(&saving->scratch, room);
	if (!text) {
		errno = E2BIG;
		return -1;
	}
	memcpy(text, saving->answer, size);
	size += (size_t)snprintf(text + size, room - size, ",\"reads\":[%llu,%llu,%zu,%llu],\"image\":[",
				 (unsigned long long)(uintptr_t)token, (unsigned long long)pieces_at, saving->n_pieces,
				 (unsigned long long)data);
	for (size_t i = 0; i < saving->n_used; i++)
		size += (size_t)snprintf(text + size, room - size, i ? ",%llu" : "%llu", (unsigned long long)saving->used[i]);
	size += (size_t)snprintf(text + size, room - size, "]}");
	if ((errno = wc_send_now(CELL_FRAME_FORKED, saving->ident, text, size)) != 0)
		return -1;
	char byte;
	ssize_t n;
	while ((n = read(saving->wait_fd, &byte, 1)) > 0 || (n < 0 && errno == EINTR)) {
	}
	return 0;
}

/* Of the calling thread, which is the main one. */
static void describe_thread(struct image *image)
{
	void *robust = NULL;
	size_t size;
	int *tid = NULL;
#if defined(__x86_64__)
	syscall(SYS_arch_prctl, ARCH_GET_FS, &image->thread);
#else
	image->thread = (uintptr_t)__builtin_thread_pointer();
#endif
	if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0)
		image->tid = (uintptr_t)tid;
	if (syscall(SYS_get_robust_list, 0, &robust, &size) == 0)
		image->robust = (uintptr_t)robust;
	/* Not linked: a libc from before 2.35 has no such variables. */
	const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
	const unsigned *bytes = dlsym(RTLD_DEFAULT, "__rseq_size");
	if (offset && bytes && *bytes > 0)
		image->rseq = (uint64_t)((int64_t)image->thread + *offset);
}

void wc_image_describe(struct image *image)
{
	void *ring;
	stack_t stack;
	struct wc_ends ends = wc_ends();
	image->magic = IMAGE_MAGIC;
	image->heap_end = (uintptr_t)syscall(SYS_brk, 0);
	image->ring_bytes = wc_ring(&ring);
	image->link[0] = ends.sock;
	image->link[1] = ends.out;
	image->link[2] = ends.err;
	image->link[3] = ends.lifeline; /* a fork of a kernel has it elsewhere */
	image->ring = (uintptr_t)ring;
	image->places = places;
	wc_processor(image->processor);
	image->stack_from = wc_image_handover.stack_from;
	image->stack_to = wc_image_handover.stack_to;
	image->handover = (uintptr_t)&wc_image_handover;
	image->resume = (uintptr_t)&resume;
	image->jump = (uintptr_t)&_longjmp;
	describe_thread(image);
	if (sigaltstack(NULL, &stack) == 0) {
		image->stack_flags = stack.ss_flags;
		image->stack_at = (uintptr_t)stack.ss_sp;
		image->stack_bytes = stack.ss_size;
	}
	for (int i = 1; i <= IMAGE_SIGNALS; i++)
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

static uint64_t size_of_earlier(uint64_t number)
{
	for (uint64_t i = 0; i < wc_image_handover.n_earlier; i++)
		if (wc_image_handover.earlier[i].number == number)
			return wc_image_handover.earlier[i].bytes;
	return 0;
}

/*
 * A file is kept as a whole as long as one page of it is used.  If the files have more than a fifth over what is used of them, the one with the
 * most of that goes.
 */
static size_t drop_wasteful(struct saving *saving, uint64_t *inodes, uint64_t *bytes, size_t n)
{
	for (;;) {
		uint64_t files = 0, used = 0, most = 0;
		size_t worst = 0;
		for (size_t k = 0; k < n; k++) {
			uint64_t size = size_of_earlier(inodes[k]);
			files += size;
			used += bytes[k];
			if (size > bytes[k] && size - bytes[k] > most) {
				most = size - bytes[k];
				worst = k;
			}
		}
		if (most == 0 || files <= used + used / 5 + SPARE_BYTES)
			return n;
		stop_using(saving, inodes[worst]);
		inodes[worst] = inodes[--n];
		bytes[worst] = bytes[n];
	}
}

/* The memory is in this image too, and no longer in those that it does not refer to. */
static void note_earlier(int fd, const struct saving *saving, uint64_t bytes)
{
	struct handover *handover = &wc_image_handover;
	struct stat st;
	uint64_t n = 0;
	for (uint64_t i = 0; i < handover->n_earlier; i++)
		for (size_t k = 0; k < saving->n_used; k++)
			if (handover->earlier[i].number == saving->used[k] && n < WC_IMAGES_USED) {
				handover->earlier[n++] = handover->earlier[i];
				break;
			}
	if (fstat(fd, &st) == 0)
		handover->earlier[n++] = (struct earlier){ .number = st.st_ino, .bytes = bytes };
	handover->n_earlier = n;
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
	n = drop_wasteful(saving, inodes, bytes, n);
	memcpy(saving->used, inodes, n * sizeof *inodes);
	saving->n_used = n;
}

/*
 * Our own variables are not mapped from the new file, and may not stay in an earlier one that the host lets go: they get memory of their own.
 * Between the two calls nothing writes to them.
 */
static int own_piece(const struct cell_image_part *piece, int prot)
{
	void *copy = mmap(NULL, piece->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED)
		return -1;
	memcpy(copy, (const void *)(uintptr_t)piece->at, piece->bytes);
	if (mprotect(copy, piece->bytes, prot) == 0 &&
	    mremap(copy, piece->bytes, piece->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)piece->at) != MAP_FAILED)
		return 0;
	munmap(copy, piece->bytes);
	return -1;
}

/*
 * Pages that are in the file now need not be ours any longer.  Not those that have changed since they were written: our own variables, the
 * stack.  What else may have changed there in the meantime is errno.
 */
static int keep_in_file(int fd, const struct saving *saving)
{
	struct sock_fprog program = { (unsigned short)wc_image_n_no_zeros, wc_image_no_zeros };
	if (!wc_image_handover.has_no_zeros && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		return 0; /* then not */
	wc_image_handover.has_no_zeros = true;
	uint64_t least = (saving->maps.n_areas < MANY_AREAS ? KEPT_PAGES : MANY_PAGES) * PAGE;
	size_t k = 0;
	for (size_t i = 0; i < saving->n_pieces; i++) {
		const struct cell_image_part *piece = &saving->pieces[i];
		while (saving->maps.areas[k].end <= piece->at)
			k++;
		const struct area *area = &saving->maps.areas[k];
		bool is_stack = area->start < wc_image_handover.stack_to && wc_image_handover.stack_from < area->end;
		bool ours = is_stack || (area->start <= (uintptr_t)saving && (uintptr_t)saving < area->end);
		bool anew = area->kind == AREA_ANON && area->inode != 0; /* no page may stay in an earlier image */
		if (ours && anew && !is_stack && own_piece(piece, (int)area->prot) < 0)
			return -1;
		/* A disk may be mounted such that nothing on it can be executed, and the image may be mapped from there one day. */
		if ((piece->bytes < least && !anew) || area->shared || ours || ((area->prot & PROT_EXEC) && !anew) ||
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
		if (area->start == ring || area->kind == AREA_SYSTEM || (area->kind == AREA_FILE && area->shared))
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
	wc_image_describe(&image);
	saving->entries = wc_scratch_take(&saving->scratch, PAGES_AT_ONCE * sizeof *saving->entries);
	if (wc_mappings_read(&saving->scratch, &saving->maps) < 0 || (saving->pages_fd = open_pages()) < 0)
		return -1;
	wc_files_name(&saving->maps);
	find_used(saving);
	saving->pieces = (struct cell_image_part *)saving->scratch.next;
	int rc = save_areas(saving, image.ring, false);
	image.n_areas = saving->maps.n_areas;
	image.n_pieces = saving->n_pieces;
	image.text_bytes = saving->maps.text_bytes;
	image.bytes = sizeof image + image.n_areas * sizeof(struct area) + image.n_pieces * sizeof(struct cell_image_part) +
		      image.text_bytes;
	uint64_t data = (image.bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1), at = data;
	for (size_t i = 0; i < saving->n_pieces; i++) {
		saving->pieces[i].offset = at;
		at += saving->pieces[i].bytes;
	}
	/* Until the pages are in the file alone they count twice, and the kernel would be killed. */
	if (rc == 0 && saving->wait_fd < 0 && saving->limit && saving->alone + at + SPARE_BYTES > saving->limit) {
		errno = EDQUOT;
		rc = -1;
	}
	uint64_t areas_at = sizeof image, pieces_at = areas_at + image.n_areas * sizeof(struct area),
		 texts_at = pieces_at + image.n_pieces * sizeof(struct cell_image_part);
	if (rc == 0)
		rc = write_all(fd, &image, sizeof image, 0) < 0 ||
				     write_all(fd, saving->maps.areas, texts_at - pieces_at ? pieces_at - areas_at : 0, areas_at) < 0 ||
				     write_all(fd, saving->pieces, texts_at - pieces_at, pieces_at) < 0 ||
				     write_all(fd, saving->maps.texts, image.text_bytes, texts_at) < 0 ||
				     (saving->wait_fd < 0 ? write_pieces(fd, saving, data) : wait_while_read(saving, pieces_at, data)) < 0
			     ? -1
			     : 0;
	int error = errno;
	if (save_areas(saving, image.ring, true) < 0 && rc == 0) {
		error = errno;
		rc = -1;
	}
	close(saving->pages_fd);
	if (rc == 0 && saving->keeps && (rc = keep_in_file(fd, saving)) < 0)
		error = errno;
	if (rc == 0 && saving->keeps)
		note_earlier(fd, saving, at);
	errno = error;
	return rc;
}

/*
 * image_save(fd, limit of the memory; 0: none, whether the pages stay in the file) -> inodes of earlier images that it needs; None in the process that
 * continues from the image, which has image_given().  With (..., pipe, id, beginning of the answer, token) the host reads the pages; it has the answer when this ends.
 */
PyObject *wc_image_save(PyObject *self, PyObject *args)
{
	(void)self;
	static struct saving saving; /* not on the stack: that is saved too, and read by the process that continues */
	static int fd, rc, error;
	unsigned long long limit;
	int keeps, wait_fd = -1;
	unsigned int ident = 0;
	const char *answer = NULL, *given = "";
	Py_ssize_t bytes = 0, given_bytes = 0;
	if (!PyArg_ParseTuple(args, "iKp|iIy#s#", &fd, &limit, &keeps, &wait_fd, &ident, &answer, &bytes, &given, &given_bytes))
		return NULL;
	memcpy(token, given, (size_t)given_bytes < WC_TOKEN_BYTES ? (size_t)given_bytes : WC_TOKEN_BYTES);
	saving = (struct saving){ .pages_fd = -1,
				  .limit = limit,
				  .keeps = keeps,
				  .wait_fd = wait_fd,
				  .ident = ident,
				  .answer = answer,
				  .answer_bytes = (size_t)bytes };
	if (wc_scratch_place(&saving.scratch, NULL, 0, IMAGE_SCRATCH_BYTES) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	PyOS_BeforeFork();
	if (_setjmp(resume) != 0) {
		munmap(wc_image_handover.left_at, wc_image_handover.left_bytes);
		PyOS_AfterFork_Child();
		Py_RETURN_NONE;
	}
	rc = save(fd, &saving);
	error = errno;
	PyOS_AfterFork_Parent();
	munmap(saving.scratch.base, IMAGE_SCRATCH_BYTES);
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
	return PyBytes_FromStringAndSize(wc_image_handover.given, (Py_ssize_t)wc_image_handover.given_size);
}
