/*
 * Makes a process cheap to fork that forks many others and changes no more.
 *
 * Code.  A fork has no page tables for the code of the interpreter: each 64 kB of it that it runs are a page fault, some fifty for a short
 * program.  As anonymous memory in huge pages the same code is a few entries that a fork copies, and it never faults there.  The code is
 * that of a file that nobody changes, so a copy of it is the same.  Where the machine has no huge pages everything stays as it is.
 *
 * Data.  A fork copies an entry for every page of data that its parent has in its page table, and its end removes them: 120 ns for each page.
 * A kernel that forks programs (script.c) has 1,500 of them, and a short program uses 200.  A page that is not in the table costs nothing until
 * somebody uses it.  So
 *
 *   - a fork runs a short program with all this memory protected, and its faults say which pages a program uses;
 *   - the memory becomes a private mapping of a file with the same content, and only those pages are put into the table again.
 *
 * A page of a private mapping is copied when it is written to, like any other after a fork: no program changes what another one or the kernel
 * sees.  The file has no name, is sealed, and nobody has it open.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE_BYTES ((uintptr_t)2 << 20)
#define PAGE_BYTES ((size_t)4096)
#define PAGE ((uintptr_t)PAGE_BYTES - 1)
#define MAX_SMALL 512 /* what pymalloc gives out, in steps of 16 */
#define MAX_POOL_HEAD 64
#define MAX_HOLE 100000 /* less than what malloc() makes a mapping of */
#define MIN_HOLE 24
#define MAX_FILLED (1u << 20)          /* bytes of holes */
#define MIN_BYTES ((size_t)128 << 10)  /* of a region: a smaller one is not worth a mapping of its own */
#define MAX_GAP ((size_t)64 << 10)     /* between two pages of one region */
#define MAX_BYTES ((size_t)32 << 20)   /* of all regions: it is as much more memory for each kernel */
#define MAX_REGIONS 256
#define STACK_BYTES 65536
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* ---- code ---- */

/* What is mapped of one object without PROT_WRITE, in one piece. */
struct code {
	uintptr_t begin, end;
};

/* Copies one huge page and puts the copy in its place, in one step: this very code may run there. */
static bool move_page(uintptr_t at)
{
	char *space = mmap(NULL, 2 * HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		return false;
	char *copy = (char *)(((uintptr_t)space + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
	/* Not by MADV_HUGEPAGE and a fault: that may leave small pages, and says nothing. */
	memcpy(copy, (const void *)at, HUGE_BYTES);
	__builtin___clear_cache(copy, copy + HUGE_BYTES);
	bool moved = madvise(copy, HUGE_BYTES, MADV_COLLAPSE) == 0 && mprotect(copy, HUGE_BYTES, PROT_READ | PROT_EXEC) == 0 &&
		     mremap(copy, HUGE_BYTES, HUGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) != MAP_FAILED;
	if (copy > space)
		munmap(space, (size_t)(copy - space));
	if (!moved)
		munmap(copy, HUGE_BYTES);
	munmap(copy + HUGE_BYTES, (size_t)(space + HUGE_BYTES - copy));
	return moved;
}

/* For dl_iterate_phdr(): what is mapped around the address `begin`, if it is this object's. */
static int find_code(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct code *code = arg, piece = { 0 };
	bool found = false;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
		if (part->p_type != PT_LOAD)
			continue;
		if (found && ((part->p_flags & PF_W) || (from & ~PAGE) != piece.end))
			break;
		if ((from & ~PAGE) != piece.end || (part->p_flags & PF_W))
			piece.begin = from & ~PAGE;
		piece.end = (to + PAGE) & ~PAGE;
		found |= code->begin >= from && code->begin < to;
	}
	if (found)
		*code = piece;
	return found;
}

/* template_code() -> how many huge pages the interpreter's code lies in now */
PyObject *wc_template_code(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct code code = { .begin = (uintptr_t)PyEval_EvalCode };
	long moved = 0;
	dl_iterate_phdr(find_code, &code);
	for (uintptr_t at = (code.begin + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1); code.end && at + HUGE_BYTES <= code.end; at += HUGE_BYTES) {
		if (!move_page(at))
			break;
		moved++;
	}
	return PyLong_FromLong(moved);
}

/* ---- data ---- */

/* A mapping of private memory that can be written to. */
struct region {
	char *at;
	size_t size;
	unsigned char *used; /* by a program: one byte for each page, shared with the fork that finds out */
};

static struct region regions[MAX_REGIONS];
static size_t n_regions;

/* The end of this object's own variables, which must stay: they say what the other memory is. */
extern char _end[] __attribute__((visibility("hidden")));

static size_t add_region(char *begin, char *end)
{
	if (n_regions == MAX_REGIONS || (size_t)(end - begin) < MIN_BYTES)
		return 0;
	regions[n_regions++] = (struct region){ .at = begin, .size = (size_t)(end - begin) };
	return (size_t)(end - begin);
}

/* The parts of a mapping that have been written to. */
static size_t add_mapping(char *begin, char *end)
{
	unsigned char present[256];
	char *from = NULL, *to = NULL;
	size_t total = 0, n;
	for (char *at = begin; at < end; at += n * PAGE_BYTES) {
		n = (size_t)(end - at) / PAGE_BYTES < sizeof present ? (size_t)(end - at) / PAGE_BYTES : sizeof present;
		if (mincore(at, n * PAGE_BYTES, present) < 0)
			return total;
		for (size_t i = 0; i < n; i++) {
			char *page = at + i * PAGE_BYTES;
			if (!(present[i] & 1))
				continue;
			if (from && (size_t)(page - to) > MAX_GAP) {
				total += add_region(from, to);
				from = NULL;
			}
			from = from ? from : page;
			to = page + PAGE_BYTES;
		}
	}
	return from ? total + add_region(from, to) : total;
}

/* Returns the bytes of all regions. */
static size_t find_regions(void)
{
	const uintptr_t own_end = ((uintptr_t)_end + PAGE) & ~PAGE;
	unsigned long begin, end;
	char line[512], mode[5];
	size_t total = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	n_regions = 0;
	while (maps && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %4s", &begin, &end, mode) != 3 || strcmp(mode, "rw-p") != 0 || strstr(line, "[stack]"))
			continue;
		if (begin < own_end && end >= own_end)
			begin = own_end;
		total += add_mapping((char *)begin, (char *)end);
	}
	if (maps)
		fclose(maps);
	return total;
}

static void note_use(int number, siginfo_t *info, void *context)
{
	(void)context;
	char *at = (char *)((uintptr_t)info->si_addr & ~PAGE);
	for (size_t i = 0; i < n_regions; i++) {
		size_t page = (size_t)(at - regions[i].at) / PAGE_BYTES;
		if (at < regions[i].at || page >= regions[i].size / PAGE_BYTES || regions[i].used[page])
			continue;
		regions[i].used[page] = 1;
		if (mprotect(at, PAGE_BYTES, PROT_READ | PROT_WRITE) == 0)
			return;
	}
	signal(number, SIG_DFL); /* it was another fault, which comes again */
}

static bool protect(void)
{
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const stack_t own = { .ss_sp = stack, .ss_size = STACK_BYTES };
	const struct sigaction action = { .sa_sigaction = note_use, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	if (stack == MAP_FAILED || sigaltstack(&own, NULL) < 0 || sigaction(SIGSEGV, &action, NULL) < 0)
		return false;
	for (size_t i = 0; i < n_regions; i++)
		if (mprotect(regions[i].at, regions[i].size, PROT_NONE) < 0)
			return false;
	return true;
}

static bool find_used(void (*program)(void))
{
	int status = -1;
	PyOS_BeforeFork();
	pid_t pid = fork();
	if (pid == 0) {
		if (protect())
			program();
		_exit(1);
	}
	PyOS_AfterFork_Parent();
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return pid > 0 && status == 0;
}

static int write_file(void)
{
	int fd = memfd_create("workcell-data", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	for (size_t i = 0; fd >= 0 && i < n_regions; i++)
		for (size_t done = 0; done < regions[i].size;) {
			ssize_t n = write(fd, regions[i].at + done, regions[i].size - done);
			if (n <= 0 && errno != EINTR) {
				close(fd);
				return -1;
			}
			done += n > 0 ? (size_t)n : 0;
		}
	if (fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* 0, or -1: memory may be missing. */
static int map_file(int fd)
{
	off_t at = 0;
	for (size_t i = 0; i < n_regions; at += (off_t)regions[i++].size) {
		if (mmap(regions[i].at, regions[i].size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, at) == MAP_FAILED)
			return -1;
		for (size_t page = 0; page < regions[i].size / PAGE_BYTES; page++)
			/* Written to at once: reading would put sixteen pages into the table. */
			if (regions[i].used[page])
				__atomic_fetch_or(regions[i].at + page * PAGE_BYTES, 0, __ATOMIC_RELAXED);
	}
	return 0;
}

/*
 * Fills the holes of the heap, so that what a fork allocates lies in fresh memory side by side: each page that it writes to is copied, and
 * an object in an old pool is two of them, with the head of the pool.  The blocks are never freed.
 */
static void fill_holes(void)
{
	size_t filled = 0;
	for (size_t size = 16; size <= MAX_SMALL; size += 16) {
		void *block = PyObject_Malloc(size);
		/* The first block of a pool is behind its head, at the beginning of a page.  Another allocator has no pools. */
		for (; block && filled < MAX_FILLED && ((uintptr_t)block & 4095) >= MAX_POOL_HEAD; filled += size)
			block = PyObject_Malloc(size);
		PyObject_Free(block); /* and this pool is free again */
	}
}

/* The same for malloc(), which walks over its free blocks, and cuts pieces off them. */
static void fill_malloc(void)
{
	char *end = NULL;
	size_t filled = 0;
	malloc_trim(0);
	/* One that the heap had to grow for: whatever lies before it is a hole. */
	for (const char *old_end = sbrk(0); end < old_end && filled < MAX_FILLED; filled += MAX_HOLE)
		end = malloc(MAX_HOLE);
	for (size_t size = MAX_HOLE; end && size >= MIN_HOLE; size -= size > 1024 ? size / 16 & ~(size_t)15 : 16) {
		char *block = malloc(size);
		for (; block && block < end && filled < MAX_FILLED; filled += size)
			block = malloc(size);
		free(block);
	}
	free(end);
}

/* 0, or -1: memory may be missing. */
static int move_data(void (*program)(void))
{
	size_t total = find_regions();
	unsigned char *used = MAP_FAILED;
	int fd = -1, rc = 0;
	if (n_regions > 0 && total <= MAX_BYTES && sysconf(_SC_PAGESIZE) == (long)PAGE_BYTES)
		used = mmap(NULL, total / PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (used == MAP_FAILED)
		return 0;
	for (size_t i = 0, at = 0; i < n_regions; at += regions[i++].size / PAGE_BYTES)
		regions[i].used = used + at;
	if (find_used(program) && (fd = write_file()) >= 0) {
		rc = map_file(fd);
		close(fd);
	}
	munmap(used, total / PAGE_BYTES);
	return rc;
}

int wc_template_data(void (*program)(void))
{
	fill_holes();
	fill_malloc();
	malloc_trim(0); /* a fork copies the entries of free pages too */
	return move_data(program);
}
