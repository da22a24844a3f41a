/*
 * Makes a process cheap to fork that forks many others and changes no more.
 *
 * A fork has no page tables for the code of the interpreter: each 64 kB of it that it runs are a page fault, some fifty for a short
 * program.  As anonymous memory in huge pages the same code is a few entries that a fork copies, and it never faults there.  The code is
 * that of a file that nobody changes, so a copy of it is the same.  Where the machine has no huge pages everything stays as it is.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((uintptr_t)2 << 20)
#define PAGE ((uintptr_t)4095)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

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
