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
 * Mappings.  A fork copies every mapping of its parent, and its exit removes the copy: about 0.5 us each, and 1 to 2 us where it has been written
 * to, because Linux then also links it to the mappings of all ancestors.  The loader makes five mappings of a shared object: code and constants
 * (three), RELRO, and variables.  They become two; arenas, heap and variables that are adjacent become one.  As a result constants are
 * executable, and RELRO data is writable.  Both only protect a process from its own code, and this one runs any machine code that a program
 * brings along.
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
#include <pthread.h>
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
#define MAX_HOLE 100000 /* less than what malloc() makes a mapping of */
#define MIN_HOLE 16
#define MAX_FILLED (16u << 20)         /* bytes of holes */
#define MAX_GAP ((size_t)1 << 20)      /* that a region may contain: more memory that was never written to is left out */
#define MAX_BYTES ((size_t)64 << 20)   /* of all regions, gaps included */
#define MAX_REGIONS 256
#define STACK_BYTES 65536
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* ---- code ---- */

/* What is mapped in one piece. */
struct piece {
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
	struct piece *code = arg, piece = { 0 };
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

/* Best effort, as all of this: what cannot be joined stays as it is. */
static void protect_as(uintptr_t begin, uintptr_t end, int protection)
{
	if (begin < end)
		(void)mprotect((void *)begin, end - begin, protection);
}

/* For dl_iterate_phdr(): Linux joins mappings of one file, side by side, once they have the same rights. */
static int join_object(struct dl_phdr_info *object, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	struct piece code = { 0 };
	bool has_variables = false; /* the vDSO has none, and is not the loader's */
	for (int i = 0; i < object->dlpi_phnum; i++)
		has_variables |= object->dlpi_phdr[i].p_type == PT_LOAD && (object->dlpi_phdr[i].p_flags & PF_W);
	for (int i = 0; has_variables && i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t begin = (object->dlpi_addr + part->p_vaddr) & ~PAGE, end = object->dlpi_addr + part->p_vaddr + part->p_memsz;
		if (part->p_type == PT_GNU_RELRO)
			protect_as(begin, end & ~PAGE, PROT_READ | PROT_WRITE);
		if (part->p_type != PT_LOAD || (part->p_flags & PF_W))
			continue;
		if (begin != code.end) {
			protect_as(code.begin, code.end, PROT_READ | PROT_EXEC);
			code.begin = begin;
		}
		code.end = (end + PAGE) & ~PAGE;
	}
	protect_as(code.begin, code.end, PROT_READ | PROT_EXEC);
	return 0;
}

/* template_code() -> how many huge pages the interpreter's code lies in now */
PyObject *wc_template_code(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	dl_iterate_phdr(join_object, NULL);
	struct piece code = { .begin = (uintptr_t)PyEval_EvalCode };
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

/* This object, whose variables stay where they are: they say what the other memory is. */
extern const char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));

static size_t add_region(char *begin, char *end)
{
	if (n_regions == MAX_REGIONS)
		return 0;
	regions[n_regions++] = (struct region){ .at = begin, .size = (size_t)(end - begin) };
	return (size_t)(end - begin);
}

/* Memory in one piece, without its large gaps. */
static size_t add_memory(char *begin, char *end)
{
	unsigned char present[256];
	char *from = begin, *to = begin; /* the part that is being found */
	size_t total = 0, n;
	for (char *at = begin; at < end; at += n * PAGE_BYTES) {
		n = (size_t)(end - at) / PAGE_BYTES < sizeof present ? (size_t)(end - at) / PAGE_BYTES : sizeof present;
		if (mincore(at, n * PAGE_BYTES, present) < 0)
			break;
		for (size_t i = 0; i < n; i++) {
			char *page = at + i * PAGE_BYTES;
			if (!(present[i] & 1))
				continue;
			if ((size_t)(page - to) > MAX_GAP) {
				total += to > from ? add_region(from, to) : 0;
				from = page;
			}
			to = page + PAGE_BYTES;
		}
	}
	if (to > from && (size_t)(end - to) <= MAX_GAP)
		to = end;
	return to > from ? total + add_region(from, to) : total;
}

/* What this line of /proc/self/maps says is private memory that can be written to.  Linux itself writes to the thread's own block. */
static bool parse_mapping(const char *line, struct piece *ret)
{
	const uintptr_t own = (uintptr_t)__ehdr_start, own_end = ((uintptr_t)_end + PAGE) & ~PAGE;
	const uintptr_t thread = (uintptr_t)pthread_self();
	char mode[5];
	if (sscanf(line, "%lx-%lx %4s", &ret->begin, &ret->end, mode) != 3 || strcmp(mode, "rw-p") != 0 || strstr(line, "[stack]"))
		return false;
	if (ret->begin >= own && ret->begin < own_end)
		ret->begin = own_end;
	return ret->begin < ret->end && (thread < ret->begin || thread >= ret->end);
}

/* Returns the bytes of all regions. */
static size_t find_regions(void)
{
	struct piece found = { 0 }, next;
	char line[512];
	size_t total = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	n_regions = 0;
	while (maps && fgets(line, sizeof line, maps)) {
		if (!parse_mapping(line, &next))
			continue;
		if (next.begin != found.end) {
			total += add_memory((char *)found.begin, (char *)found.end);
			found.begin = next.begin;
		}
		found.end = next.end;
	}
	if (maps)
		fclose(maps);
	return total + add_memory((char *)found.begin, (char *)found.end);
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

static bool is_zero(const char *page)
{
	return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

static bool write_region(int fd, const struct region *region, off_t at)
{
	for (size_t done = 0; done < region->size; done += PAGE_BYTES) {
		ssize_t n = PAGE_BYTES;
		while (!is_zero(region->at + done) && (n = pwrite(fd, region->at + done, PAGE_BYTES, at + (off_t)done)) < 0 &&
		       errno == EINTR) {
		}
		if (n != (ssize_t)PAGE_BYTES)
			return false;
	}
	return true;
}

/* Pages of zeros are holes of it. */
static int write_file(size_t total)
{
	off_t at = 0;
	int fd = memfd_create("workcell-data", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool done = fd >= 0 && ftruncate(fd, (off_t)total) == 0;
	for (size_t i = 0; done && i < n_regions; at += (off_t)regions[i++].size)
		done = write_region(fd, &regions[i], at);
	if (done && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
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
 * Fills the holes of malloc()'s heap, so that what a fork allocates lies in fresh memory side by side: each page that it writes to is copied, and
 * malloc() walks over its free blocks, and cuts pieces off them.  The blocks are never freed.
 */
static void fill_holes(void)
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
	if (find_used(program) && (fd = write_file(total)) >= 0) {
		rc = map_file(fd);
		close(fd);
	}
	munmap(used, total / PAGE_BYTES);
	return rc;
}

int wc_template_data(void (*program)(void))
{
	fill_holes();
	malloc_trim(0); /* a fork copies the entries of free pages too */
	return move_data(program);
}
