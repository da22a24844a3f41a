/*
 * Loads the memory of another kernel into this one, in its place (image.c says why and when).
 *
 *     plan: read the tables ──▶ a list of system calls, in memory that neither has ──▶ run_calls(), copied there too ──▶ _longjmp() of the image
 *
 * Until run_calls() begins, everything can fail with nothing changed.  After that, a failure ends the process.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <asm/prctl.h>
#endif

#define PAGE IMAGE_PAGE
#define STACK_BYTES ((size_t)64 << 10)     /* of run_calls() */
#define MAPPED_PAGES 4u /* pieces of at least this size are mapped, smaller ones are read: about as long as one mapping takes */
#define MANY_PIECES 8000u /* then only large ones: Linux allows 65530 mappings */
#define MANY_MAPPED_PAGES 16u
#define MOVED_STACK_MAX ((uint64_t)64 << 20)
#define MORE_READS 4096u /* of pieces that are read in parts */
#define ROBUST_BYTES (3 * sizeof(long)) /* struct robust_list_head */
#define RSEQ_BYTES 32u
#define RSEQ_LEAVE 1
#define LOAD_FAILED 72

enum { MAY_FAIL = 1, TO_NUMBER = 2 }; /* TO_NUMBER: any result but an error will do */

struct call {
	long number;
	uint64_t args[6];
	long want;
	uint64_t flags;
};

struct loading {
	struct scratch scratch;
	struct mappings now;
	struct image here; /* of the present process */
	struct image *image;
	struct area *areas;
	struct cell_image_part *pieces;
	const char *texts;
	struct call *calls;
	size_t n_calls, max_calls;
	struct iovec *iov;
	size_t n_iov;
	int fds[1 + WC_IMAGES_USED]; /* of this and earlier images */
	uint64_t inodes[1 + WC_IMAGES_USED]; /* that they had when they were written */
	uint64_t live[1 + WC_IMAGES_USED]; /* numbers that the host knows them by */
	char *probes[1 + WC_IMAGES_USED]; /* a page of each that is on a disk; NULL: it is not */
	size_t n_fds;
	bool maps; /* pages stay in the files until they are written to */
	const char *wrong; /* the file that is not the one of the image; NULL: something else is wrong */
	int *opened; /* to be closed if nothing comes of it */
	size_t n_opened;
	const struct area *opened_for; /* the last of them; or NULL */
	bool same_stack, same_heap;
	char *parked; /* room for areas on their way */
	uint64_t *slots; /* of each area of the image: where it waits there; 0: it does not */
	struct handover *handover;
	char *stack, *code;
	stack_t signal_stack;
	struct sock_fprog filter;
	struct prctl_mm_map places;
};

#if defined(__x86_64__)
#define RSEQ_SIGNATURE 0x53053053u
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
#define RSEQ_SIGNATURE 0xd428bc00u
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

/*
 * From here on nothing but system calls and the scratch memory: whatever else there was is being replaced, the code of this library too,
 * and so a copy of this function is run.
 */
static void __attribute__((noreturn, noinline, no_stack_protector, section("wc_calls"))) run_calls(struct loading *loading)
{
	for (size_t i = 0; i < loading->n_calls; i++) {
		const struct call *call = &loading->calls[i];
		const uint64_t *args = call->args;
		long rc = RAW_CALL(call->number, args[0], args[1], args[2], args[3], args[4], args[5]);
		if (rc != call->want && !(call->flags & MAY_FAIL) && !(call->flags & TO_NUMBER && rc >= 0))
			RAW_CALL(SYS_exit_group, LOAD_FAILED, 0, 0, 0, 0, 0);
	}
	const struct image *image = loading->image;
	const volatile char *from = (const volatile char *)loading->handover;
	volatile char *to = (volatile char *)(uintptr_t)image->handover;
	for (size_t i = 0; i < sizeof(struct handover); i++)
		to[i] = from[i];
	if (image->tid)
		*(volatile int *)(uintptr_t)image->tid = (int)RAW_CALL(SYS_gettid, 0, 0, 0, 0, 0, 0);
#if defined(__aarch64__)
	__asm__ volatile("msr tpidr_el0, %0" : : "r"(image->thread) : "memory");
#endif
	if (image->rseq != loading->here.rseq && image->rseq)
		RAW_CALL(SYS_rseq, image->rseq, RSEQ_BYTES, 0, RSEQ_SIGNATURE, 0, 0);
	((void (*)(void *, int))(uintptr_t)image->jump)((void *)(uintptr_t)image->resume, 1);
	__builtin_unreachable();
}

extern const char __start_wc_calls[] __attribute__((visibility("hidden"))), __stop_wc_calls[] __attribute__((visibility("hidden")));

/* ---- the list of calls ---- */

static int add(struct loading *loading, struct call call)
{
	if (loading->n_calls == loading->max_calls) {
		errno = E2BIG;
		return -1;
	}
	loading->calls[loading->n_calls++] = call;
	return 0;
}

static int add_unmap(struct loading *loading, uint64_t at, uint64_t bytes)
{
	return add(loading, (struct call){ .number = SYS_munmap, .args = { at, bytes } });
}

static int add_map(struct loading *loading, uint64_t at, uint64_t bytes, int prot, int flags, int fd, uint64_t offset)
{
	return add(loading, (struct call){ .number = SYS_mmap,
					   .args = { at, bytes, (uint64_t)prot, (uint64_t)(flags | MAP_FIXED), (uint64_t)fd, offset },
					   .want = (long)at });
}

static int add_empty(struct loading *loading, uint64_t at, uint64_t bytes)
{
	return add(loading, (struct call){ .number = SYS_madvise, .args = { at, bytes, MADV_DONTNEED } });
}

static int add_protect(struct loading *loading, const struct area *area, uint32_t prot)
{
	return add(loading, (struct call){ .number = SYS_mprotect, .args = { area->start, area->end - area->start, prot } });
}

static int add_move(struct loading *loading, uint64_t from, uint64_t bytes, uint64_t to)
{
	return add(
		loading,
		(struct call){ .number = SYS_mremap, .args = { from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to }, .want = (long)to });
}

static int add_close(struct loading *loading, int fd)
{
	return add(loading, (struct call){ .number = SYS_close, .args = { (uint64_t)fd } });
}

/* ---- areas ---- */

/* Both are sorted, as the system lists them. */
static int unmap_others(struct loading *loading)
{
	uint64_t n = loading->image->n_areas, k = 0;
	for (size_t i = 0; i < loading->now.n_areas; i++) {
		const struct area *now = &loading->now.areas[i];
		uint64_t at = now->start;
		if ((now->kind == AREA_HEAP && loading->same_heap) || (now->kind == AREA_STACK && loading->same_stack) ||
		    now->kind == AREA_SYSTEM || now->kind == AREA_MOVED)
			continue;
		while (at < now->end) {
			while (k > 0 && loading->areas[k - 1].end > at)
				k--;
			while (k < n && loading->areas[k].end <= at)
				k++;
			uint64_t until = k < n && loading->areas[k].start < now->end ? loading->areas[k].start : now->end;
			if (until > at && add_unmap(loading, at, until - at) < 0)
				return -1;
			at = k < n && until == loading->areas[k].start ? loading->areas[k].end : until;
		}
	}
	return 0;
}

static bool same_file(const struct area *a, const struct area *b)
{
	return a->start == b->start && a->end == b->end && a->offset == b->offset && a->kind == b->kind && a->prot == b->prot &&
	       a->shared == b->shared && wc_same_id(a, b);
}

static const struct area *find_same(const struct loading *loading, const struct area *area)
{
	size_t from = 0, to = loading->now.n_areas;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (loading->now.areas[middle].start < area->start)
			from = middle + 1;
		else
			to = middle;
	}
	return from < loading->now.n_areas && same_file(&loading->now.areas[from], area) ? &loading->now.areas[from] : NULL;
}

static int image_with(const struct loading *loading, uint64_t inode)
{
	for (size_t i = 0; i < loading->n_fds; i++)
		if (loading->inodes[i] == inode)
			return loading->fds[i];
	errno = EBADMSG;
	return -1;
}

static const struct area *find_kind(const struct area *areas, uint64_t n_areas, uint32_t kind)
{
	for (uint64_t i = 0; i < n_areas; i++)
		if (areas[i].kind == kind)
			return &areas[i];
	return NULL;
}

/*
 * The stack and the heap of the image are those of this process if Linux has put them at the same place.  Else the saved ones become
 * ordinary memory: a stack with room to grow, and a heap that Linux is told of at the end.
 */
static void settle_stack_and_heap(struct loading *loading)
{
	const struct area *now = find_kind(loading->now.areas, loading->now.n_areas, AREA_STACK);
	struct rlimit limit;
	loading->same_heap = loading->image->places.start_brk == loading->here.places.start_brk;
	loading->same_stack = true;
	loading->handover->stack_from = loading->image->stack_from;
	loading->handover->stack_to = loading->image->stack_to;
	for (uint64_t i = 0; i < loading->image->n_areas; i++) {
		struct area *area = &loading->areas[i];
		if (area->kind == AREA_HEAP && !loading->same_heap)
			area->kind = AREA_ANON;
		if (area->kind != AREA_STACK || (now && now->end == area->end))
			continue;
		uint64_t room = getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < MOVED_STACK_MAX ? limit.rlim_cur & ~(PAGE - 1)
													 : MOVED_STACK_MAX;
		uint64_t low = i ? loading->areas[i - 1].end + PAGE : PAGE;
		uint64_t from = area->end > room ? area->end - room : PAGE;
		if (from < low)
			from = low;
		if (from < area->start)
			area->start = from;
		area->kind = AREA_ANON;
		loading->same_stack = false;
		loading->handover->stack_from = area->start;
		loading->handover->stack_to = area->end;
	}
	/* Linux did not take note of an earlier move. */
	if (!find_kind(loading->areas, loading->image->n_areas, AREA_STACK))
		loading->same_stack = false;
}

/* What this process has of an area of the image, elsewhere. */
static struct area *find_elsewhere(struct loading *loading, const struct area *area)
{
	for (size_t i = 0; i < loading->now.n_areas; i++) {
		struct area *now = &loading->now.areas[i];
		if (now->kind != area->kind || now->shared || now->end - now->start != area->end - area->start)
			continue;
		if (wc_same_id(now, area) &&
		    (area->kind == AREA_SYSTEM ? strcmp(loading->now.texts + now->path, loading->texts + area->path) == 0
					       : now->offset == area->offset))
			return now;
	}
	return NULL;
}

/*
 * [vdso] and its data go where the image's libc expects them, and files that are mapped go where the image has them.  A file of the zygote
 * cannot be opened by its path: the path was that of another root.  On their way they are out of the way of everything.
 */
static int park_areas(struct loading *loading)
{
	uint64_t at = (uintptr_t)loading->parked;
	for (uint64_t i = 0; i < loading->image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->kind != AREA_SYSTEM && (area->kind != AREA_FILE || area->shared || find_same(loading, area)))
			continue;
		struct area *now = find_elsewhere(loading, area);
		if (!now && area->kind == AREA_SYSTEM) {
			errno = EXDEV; /* of another Linux */
			return -1;
		}
		if (!now || now->start == area->start)
			continue;
		uint64_t bytes = area->end - area->start;
		if (bytes > (uintptr_t)loading->scratch.end - at) {
			errno = E2BIG;
			return -1;
		}
		if (add_move(loading, now->start, bytes, at) < 0)
			return -1;
		now->kind = AREA_MOVED;
		loading->slots[i] = at;
		at += bytes;
	}
	return 0;
}

/* It grows by itself where the saved one is larger. */
static int empty_stack(struct loading *loading)
{
	const struct area *now = find_kind(loading->now.areas, loading->now.n_areas, AREA_STACK);
	return add_empty(loading, now->start, now->end - now->start);
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

/* A library has several areas, one behind the other: it is opened once. */
static int open_file(struct loading *loading, const struct area *area, bool writes)
{
	const char *path = loading->texts + area->path;
	const struct area *last = loading->opened_for;
	struct known_file known;
	if (last && !writes && !last->shared && last->inode == area->inode && last->device == area->device &&
	    strcmp(loading->texts + last->path, path) == 0)
		return loading->opened[loading->n_opened - 1];
	int fd = open(path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0) {
		loading->wrong = path;
		return -1;
	}
	loading->opened[loading->n_opened++] = fd;
	loading->opened_for = area;
	if (!wc_file_is(fd, area, &known)) {
		loading->wrong = path;
		errno = ESTALE;
		return -1;
	}
	if (area->stamp && known.stamp)
		wc_known_add(loading->handover, &known);
	return fd;
}

static int map_file(struct loading *loading, const struct area *area)
{
	uint64_t bytes = area->end - area->start;
	/* Where code cannot write, pages that differ from the file's were made by the loader of libraries, and are carried. */
	if (!area->shared && find_same(loading, area))
		return area->prot & PROT_WRITE ? add_empty(loading, area->start, bytes) : 0;
	int fd = open_file(loading, area, area->shared && (area->prot & PROT_WRITE));
	if (fd < 0)
		return -1;
	int prot = area->shared || !has_pieces(loading, area) ? (int)area->prot : PROT_READ | PROT_WRITE;
	return add_map(loading, area->start, bytes, prot, area->shared ? MAP_SHARED : MAP_PRIVATE, fd, area->offset);
}

/* Writable until all pages are read into it: protect_areas() ends that. */
static int map_area(struct loading *loading, const struct area *area)
{
	uint64_t bytes = area->end - area->start, slot = loading->slots[area - loading->areas];
	if (slot && add_move(loading, slot, bytes, area->start) < 0)
		return -1;
	if (slot && area->kind == AREA_FILE)
		return add_empty(loading, area->start, bytes);
	switch (area->kind) {
	case AREA_HEAP: /* where its end has been moved to */
		return add_empty(loading, area->start, bytes);
	case AREA_STACK:
		return empty_stack(loading);
	case AREA_ANON:
		return add_map(loading, area->start, bytes, PROT_READ | PROT_WRITE,
			       (area->shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	case AREA_IMAGE: {
		int fd = image_with(loading, area->inode);
		return fd < 0 ? -1 : add_map(loading, area->start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, area->offset);
	}
	case AREA_SYSTEM:
		return 0;
	default:
		return map_file(loading, area);
	}
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
			  : add(loading, (struct call){ .number = SYS_preadv,
							.args = { (uint64_t)loading->fds[0], (uintptr_t)(loading->iov + first),
								  loading->n_iov - first, offset },
							.want = (long)bytes });
}

/* Of one call, below what Linux reads at once. */
#define READ_BYTES ((uint64_t)1 << 30)

struct reads {
	size_t first;
	uint64_t from, bytes;
};

static int add_read(struct loading *loading, struct reads *reads, const struct cell_image_part *piece)
{
	for (uint64_t done = 0, part; done < piece->bytes; done += part) {
		part = piece->bytes - done < READ_BYTES ? piece->bytes - done : READ_BYTES;
		if (reads->bytes > 0 && (loading->n_iov - reads->first == IMAGE_READS_AT_ONCE || reads->bytes + part > READ_BYTES ||
					 reads->from + reads->bytes != piece->offset + done)) {
			if (flush_reads(loading, reads->first, reads->from, reads->bytes) < 0)
				return -1;
			reads->bytes = 0;
		}
		if (loading->n_iov == loading->image->n_pieces + MORE_READS) {
			errno = E2BIG;
			return -1;
		}
		if (reads->bytes == 0) {
			reads->first = loading->n_iov;
			reads->from = piece->offset + done;
		}
		loading->iov[loading->n_iov++] = (struct iovec){ (void *)(uintptr_t)(piece->at + done), (size_t)part };
		reads->bytes += part;
	}
	return 0;
}

static int put_pieces(struct loading *loading)
{
	struct reads reads = { 0 };
	uint64_t least = (loading->image->n_pieces < MANY_PIECES ? MAPPED_PAGES : MANY_MAPPED_PAGES) * PAGE;
	for (uint64_t i = 0; i < loading->image->n_pieces; i++) {
		const struct cell_image_part *piece = &loading->pieces[i];
		const struct area *area = area_of(loading, piece->at);
		if (!area || piece->at + piece->bytes > area->end || piece->at + piece->bytes < piece->at || piece->bytes == 0) {
			errno = EBADMSG;
			return -1;
		}
		/* Not the stack: `ps` reads the title there, and only from anonymous memory. */
		bool is_stack = area->kind == AREA_STACK || area->end == loading->handover->stack_to;
		if (!loading->maps || piece->bytes < least || area->shared || is_stack || (area->prot & PROT_EXEC)) {
			if (add_read(loading, &reads, piece) < 0)
				return -1;
			continue;
		}
		if (flush_reads(loading, reads.first, reads.from, reads.bytes) < 0 ||
		    add_map(loading, piece->at, piece->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, loading->fds[0], piece->offset) < 0)
			return -1;
		reads.bytes = 0;
	}
	return flush_reads(loading, reads.first, reads.from, reads.bytes);
}

static int protect_areas(struct loading *loading)
{
	for (uint64_t i = 0; i < loading->image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->kind == AREA_FILE && !area->shared && !loading->slots[i] && !has_pieces(loading, area))
			continue; /* as it was, or as map_file() has mapped it */
		if ((area->prot == (PROT_READ | PROT_WRITE) && area->kind != AREA_FILE) || area->start == loading->image->ring ||
		    (area->kind == AREA_FILE && area->shared) || area->kind == AREA_STACK || area->kind == AREA_SYSTEM)
			continue;
		if (add_protect(loading, area, area->prot) < 0)
			return -1;
	}
	return 0;
}

/* Pages of these are read into the area as it is, so it must be writable first. */
static int unprotect_same(struct loading *loading, const struct area *area)
{
	bool moved = loading->slots[area - loading->areas] != 0;
	if (area->kind != AREA_FILE || area->shared || !has_pieces(loading, area) ||
	    (!moved && ((area->prot & PROT_WRITE) || !find_same(loading, area))))
		return 0;
	return add_protect(loading, area, area->prot | PROT_WRITE);
}

static int plan_areas(struct loading *loading)
{
	const struct image *image = loading->image;
	uint64_t end = 0;
	for (uint64_t i = 0; i < image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->start >= area->end || (area->start | area->end) % PAGE || area->start < end || area->path >= image->text_bytes) {
			errno = EBADMSG;
			return -1;
		}
		end = area->end;
	}
	settle_stack_and_heap(loading);
	if (park_areas(loading) < 0 || unmap_others(loading) < 0 ||
	    (loading->same_heap &&
	     add(loading, (struct call){ .number = SYS_brk, .args = { image->heap_end }, .want = (long)image->heap_end }) < 0))
		return -1;
	for (uint64_t i = 0; i < image->n_areas; i++) {
		const struct area *area = &loading->areas[i];
		if (area->start != image->ring && (map_area(loading, area) < 0 || unprotect_same(loading, area) < 0))
			return -1;
	}
	for (size_t i = 0; i < loading->n_opened; i++)
		if (add_close(loading, loading->opened[i]) < 0)
			return -1;
	return put_pieces(loading) < 0 || protect_areas(loading) < 0 ? -1 : 0;
}

/* ---- the rest ---- */

static int plan_descriptors(struct loading *loading)
{
	for (int i = 0; i < IMAGE_LINKS; i++) {
		int from = loading->here.link[i], to = loading->image->link[i];
		if (from == to || from < 0 || to < 0)
			continue; /* in a sandbox there is no lifeline */
		if (add(loading, (struct call){ .number = SYS_dup3, .args = { (uint64_t)from, (uint64_t)to, O_CLOEXEC }, .want = to }) <
			    0 ||
		    (i == IMAGE_LINKS - 1 && add_close(loading, from) < 0))
			return -1;
	}
	for (size_t i = 0; i < loading->n_fds; i++)
		if (add_close(loading, loading->fds[i]) < 0)
			return -1;
	return 0;
}

/* What Linux knows of the process: where things are, what signals do, and what it writes to when the thread is moved or ends. */
static int plan_process(struct loading *loading)
{
	const struct image *image = loading->image;
	const struct places *at = &image->places;
	loading->places = (struct prctl_mm_map){
		.start_code = at->start_code,
		.end_code = at->end_code,
		.start_data = at->start_data,
		.end_data = at->end_data,
		.start_brk = at->start_brk,
		.brk = image->heap_end,
		.start_stack = at->start_stack,
		.arg_start = at->arg_start,
		.arg_end = at->arg_end,
		.env_start = at->env_start,
		.env_end = at->env_end,
		.exe_fd = (uint32_t)-1,
	};
	/* A Linux without it: malloc() does without the heap, and `ps` shows nothing of the session. */
	if (memcmp(at, &loading->here.places, sizeof *at) != 0 &&
	    add(loading, (struct call){ .number = SYS_prctl,
					.args = { PR_SET_MM, PR_SET_MM_MAP, (uintptr_t)&loading->places, sizeof loading->places },
					.flags = MAY_FAIL }) < 0)
		return -1;
	if (loading->maps && add(loading, (struct call){ .number = SYS_seccomp,
							 .args = { SECCOMP_SET_MODE_FILTER, 0, (uintptr_t)&loading->filter },
							 .flags = TO_NUMBER }) < 0)
		return -1;
	for (int i = 1; i <= IMAGE_SIGNALS; i++)
		if (add(loading, (struct call){ .number = SYS_rt_sigaction,
						.args = { (uint64_t)i, (uintptr_t)image->actions[i - 1], 0, sizeof(uint64_t) },
						.flags = MAY_FAIL }) < 0)
			return -1;
	loading->signal_stack = (stack_t){ .ss_sp = (void *)(uintptr_t)image->stack_at,
					   .ss_flags = image->stack_flags,
					   .ss_size = image->stack_bytes };
	const struct call calls[] = {
		{ .number = SYS_sigaltstack, .args = { (uintptr_t)&loading->signal_stack, 0 }, .flags = MAY_FAIL },
		{ .number = SYS_set_tid_address, .args = { image->tid }, .flags = TO_NUMBER },
		{ .number = SYS_set_robust_list, .args = { image->robust, ROBUST_BYTES } },
#if defined(__x86_64__)
		{ .number = SYS_arch_prctl, .args = { ARCH_SET_FS, image->thread } },
#endif
	};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (add(loading, calls[i]) < 0)
			return -1;
	return 0;
}

static int plan_load(struct loading *loading)
{
	struct image *image = loading->image;
	const struct image *here = &loading->here;
	if (here->ring_bytes != image->ring_bytes || !image->thread) {
		errno = EBADMSG;
		return -1;
	}
	if (!wc_processor_has(image->processor)) {
		errno = ENOEXEC;
		return -1;
	}
	/* The ring waits inside the scratch memory, and takes its room. */
	loading->scratch.end -= image->ring_bytes;
	uintptr_t parked = (uintptr_t)loading->scratch.end;
	/* Linux writes there whenever it likes, unless this process came from a clone() that shared memory: that ends it, and this fails. */
	if (here->rseq && here->rseq != image->rseq &&
	    add(loading,
		(struct call){ .number = SYS_rseq, .args = { here->rseq, RSEQ_BYTES, RSEQ_LEAVE, RSEQ_SIGNATURE }, .flags = MAY_FAIL }) < 0)
		return -1;
	if (image->ring_bytes && add_move(loading, here->ring, image->ring_bytes, parked) < 0)
		return -1;
	if (plan_areas(loading) < 0)
		return -1;
	if (image->ring_bytes && add_move(loading, parked, image->ring_bytes, image->ring) < 0)
		return -1;
	return plan_descriptors(loading) < 0 || plan_process(loading) < 0 ? -1 : 0;
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

static int read_image(struct loading *loading, void **ret_tables, size_t *ret_bytes)
{
	struct image head;
	int fd = loading->fds[0];
	if (read_all(fd, &head, sizeof head, 0) < 0)
		return -1;
	uint64_t need = sizeof head + head.text_bytes;
	if (head.magic != IMAGE_MAGIC || head.n_areas > 1u << 17 || head.n_pieces > 1u << 20 || head.text_bytes == 0 ||
	    head.text_bytes > 1u << 26 ||
	    head.bytes != need + head.n_areas * sizeof(struct area) + head.n_pieces * sizeof(struct cell_image_part)) {
		errno = EBADMSG;
		return -1;
	}
	char *tables = mmap(NULL, head.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (tables == MAP_FAILED)
		return -1;
	*ret_tables = tables;
	*ret_bytes = head.bytes;
	if (read_all(fd, tables, head.bytes, 0) < 0)
		return -1;
	memcpy(tables, &head, sizeof head);
	loading->image = (struct image *)tables;
	loading->areas = (struct area *)(tables + sizeof head);
	loading->pieces = (struct cell_image_part *)(loading->areas + head.n_areas);
	loading->texts = (char *)(loading->pieces + head.n_pieces);
	((char *)loading->texts)[head.text_bytes - 1] = '\0';
	return 0;
}

/* Everything that run_calls() needs, in memory that it does not replace. */
static struct loading *move_in(struct loading *given, const char *text, size_t size)
{
	struct scratch *scratch = &given->scratch;
	size_t bytes = given->image->bytes, code_bytes = (size_t)(__stop_wc_calls - __start_wc_calls);
	size_t code_room = (code_bytes + PAGE - 1) & ~(PAGE - 1);
	char *code = wc_scratch_take(scratch, code_room); /* first: at the beginning of a page */
	struct loading *loading = wc_scratch_take(scratch, sizeof *loading);
	if (!code || !loading) {
		errno = E2BIG;
		return NULL;
	}
	*loading = *given;
	scratch = &loading->scratch;
	char *tables = wc_scratch_take(scratch, bytes);
	loading->max_calls = 4 * loading->image->n_areas + loading->image->n_pieces + 2 * MORE_READS;
	loading->iov = wc_scratch_take(scratch, (loading->image->n_pieces + MORE_READS) * sizeof *loading->iov);
	loading->opened = wc_scratch_take(scratch, loading->image->n_areas * sizeof *loading->opened + 16);
	loading->slots = wc_scratch_take(scratch, loading->image->n_areas * sizeof *loading->slots + 16);
	loading->handover = wc_scratch_take(scratch, sizeof *loading->handover);
	loading->stack = wc_scratch_take(scratch, STACK_BYTES);
	struct sock_filter *filter = wc_scratch_take(scratch, wc_image_n_no_zeros * sizeof *filter);
	if (!tables || !loading->iov || !loading->opened || !loading->slots || !loading->handover || !loading->stack || !filter) {
		errno = E2BIG;
		return NULL;
	}
	memcpy(tables, loading->image, bytes);
	loading->image = (struct image *)tables;
	loading->areas = (struct area *)(tables + sizeof *loading->image);
	loading->pieces = (struct cell_image_part *)(loading->areas + loading->image->n_areas);
	loading->texts = (char *)(loading->pieces + loading->image->n_pieces);
	memcpy(filter, wc_image_no_zeros, wc_image_n_no_zeros * sizeof *filter);
	loading->filter = (struct sock_fprog){ (unsigned short)wc_image_n_no_zeros, filter };
	loading->handover->given_size = size;
	memcpy(loading->handover->given, text, size);
	loading->handover->has_no_zeros = loading->maps;
	if (wc_mappings_read(scratch, &loading->now) < 0)
		return NULL;
	wc_files_name(&loading->now);
	memcpy(loading->handover->known, wc_image_handover.known, sizeof loading->handover->known);
	loading->handover->n_known = wc_image_handover.n_known;
	loading->max_calls += 2 * loading->now.n_areas;
	loading->calls = wc_scratch_take(scratch, loading->max_calls * sizeof *loading->calls);
	loading->parked = (char *)(((uintptr_t)scratch->next + PAGE - 1) & ~(PAGE - 1));
	if (!loading->calls) {
		errno = E2BIG;
		return NULL;
	}
	loading->code = code;
	memcpy(code, __start_wc_calls, code_bytes);
	__builtin___clear_cache(code, code + code_bytes);
	return mprotect(code, code_room, PROT_READ | PROT_EXEC) == 0 ? loading : NULL;
}

/* Address space for areas on their way. */
static size_t file_bytes(const struct loading *loading)
{
	size_t bytes = 0;
	for (uint64_t i = 0; i < loading->image->n_areas; i++)
		if (loading->areas[i].kind == AREA_FILE || loading->areas[i].kind == AREA_SYSTEM)
			bytes += loading->areas[i].end - loading->areas[i].start;
	return bytes;
}

/* One page of each image on a disk is mapped: /proc/self/maps has another device for it than fstat(), on some file systems. */
static int map_probes(struct loading *given)
{
	for (size_t i = 0; i < given->n_fds; i++) {
		if (!(given->live[i] & IMAGE_ON_DISK))
			continue;
		char *at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, given->fds[i], 0);
		if (at == MAP_FAILED)
			return -1;
		given->probes[i] = at;
	}
	return 0;
}

static void unmap_probes(const struct loading *given)
{
	for (size_t i = 0; i < given->n_fds; i++)
		if (given->probes[i])
			munmap(given->probes[i], PAGE);
}

/* For the images that this one's next images refer to. */
static void note_files(struct loading *loading)
{
	struct handover *handover = loading->handover;
	for (size_t i = 0; i < loading->n_fds; i++) {
		struct earlier *earlier = &handover->earlier[handover->n_earlier++];
		struct stat st;
		*earlier = (struct earlier){ .number = loading->live[i] };
		if (fstat(loading->fds[i], &st) == 0)
			earlier->bytes = (uint64_t)st.st_blocks * 512;
		for (size_t k = 0; loading->probes[i] && k < loading->now.n_areas; k++) {
			const struct area *area = &loading->now.areas[k];
			uint64_t at = (uintptr_t)loading->probes[i];
			if (area->start <= at && at < area->end) {
				earlier->device = area->device;
				earlier->inode = area->inode;
			}
		}
	}
}

static int take_files(PyObject *list, PyObject *inodes, PyObject *live, bool maps, struct loading *given)
{
	*given = (struct loading){ .fds = { -1 }, .maps = maps };
	if (PyList_Size(inodes) != PyList_Size(list) || PyList_Size(live) != PyList_Size(list)) {
		PyErr_SetString(PyExc_ValueError, "each file needs its inode");
		return -1;
	}
	for (Py_ssize_t i = 0; i < PyList_Size(list) && given->n_fds < 1 + WC_IMAGES_USED; i++) {
		given->fds[given->n_fds] = (int)PyLong_AsLong(PyList_GetItem(list, i));
		given->live[given->n_fds] = PyLong_AsUnsignedLongLong(PyList_GetItem(live, i));
		given->inodes[given->n_fds++] = PyLong_AsUnsignedLongLong(PyList_GetItem(inodes, i));
	}
	return PyErr_Occurred() ? -1 : 0;
}

/* image_load([fd, those of earlier images], given, [inode that each had], [number that each has now], whether it may map them): does not return; what was saved continues. Raises OSError when it cannot, with nothing changed. */
PyObject *wc_image_load(PyObject *self, PyObject *args)
{
	(void)self;
	static struct loading given; /* not on the stack: it is large */
	struct loading *loading = NULL;
	PyObject *list, *inodes, *live;
	const char *text;
	Py_ssize_t size;
	void *tables = NULL;
	size_t bytes = 0;
	int maps;
	if (!PyArg_ParseTuple(args, "O!y#O!O!p", &PyList_Type, &list, &text, &size, &PyList_Type, &inodes, &PyList_Type, &live, &maps) ||
	    take_files(list, inodes, live, maps, &given) < 0)
		return NULL;
	if (size > IMAGE_GIVEN_MAX)
		return PyErr_Format(PyExc_ValueError, "at most %d bytes can be given", IMAGE_GIVEN_MAX);
	wc_image_describe(&given.here);
	int rc = read_image(&given, &tables, &bytes) < 0 || map_probes(&given) < 0 ? -1 : 0;
	size_t room = rc == 0 ? ((4 * bytes + IMAGE_SCRATCH_BYTES + given.image->ring_bytes + file_bytes(&given)) & ~(PAGE - 1)) : 0;
	if (rc == 0)
		rc = wc_scratch_place(&given.scratch, given.areas, given.image->n_areas, room);
	if (rc == 0 && (loading = move_in(&given, text, (size_t)size)) != NULL) {
		loading->handover->left_at = given.scratch.base;
		loading->handover->left_bytes = room;
		note_files(loading);
		if (plan_load(loading) == 0)
			JUMP_TO(loading->code + ((const char *)run_calls - __start_wc_calls), loading, loading->stack + STACK_BYTES);
	}
	int error = errno;
	PyObject *wrong = loading && loading->wrong ? PyUnicode_DecodeFSDefault(loading->wrong) : NULL;
	for (size_t i = 0; loading && i < loading->n_opened; i++)
		close(loading->opened[i]);
	unmap_probes(&given);
	if (given.scratch.base)
		munmap(given.scratch.base, room);
	if (tables)
		munmap(tables, bytes);
	PyErr_Clear();
	errno = error;
	PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, wrong);
	Py_XDECREF(wrong);
	return NULL;
}
