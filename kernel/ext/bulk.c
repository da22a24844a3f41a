/*
 * The memory that host and kernel share for data: beyond the ring, in the same mapping.  The host puts there what would not fit into a frame, or would
 * be copied once more, and the kernel takes it out into Python's own memory.  Only the process that is the kernel may: a forked child shares the mapping.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire/ring_abi.h"

#define POPULATE_BYTES 65536
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef PyBUF_WRITE
#define PyBUF_WRITE 0x200 /* the limited API's headers show it from 3.11 on */
#endif

/* bulk() -> a memoryview of the memory that is shared with the host for data, or None */
PyObject *wc_bulk(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	if (wc_is_detached())
		Py_RETURN_NONE;
	return PyMemoryView_FromMemory(wc_bulk_memory(), CELL_BULK_BYTES, PyBUF_WRITE);
}

/* free_bulk(): its content is not needed any more, its pages are freed. */
PyObject *wc_free_bulk(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	/* Best effort: pages that stay are used again. */
	if (!wc_is_detached())
		(void)madvise(wc_bulk_memory(), CELL_BULK_BYTES, MADV_REMOVE);
	Py_RETURN_NONE;
}

/* blank(size) -> uninitialised bytes, for fill() */
PyObject *wc_blank(PyObject *self, PyObject *size)
{
	(void)self;
	Py_ssize_t n = PyLong_AsSsize_t(size);
	if (n < 0 && !PyErr_Occurred())
		PyErr_SetString(PyExc_ValueError, "a size must not be negative");
	return n < 0 ? NULL : PyBytes_FromStringAndSize(NULL, n);
}

/* Populates the pages of fresh memory in one call: a fault for each would take longer than writing the bytes. */
static void populate(char *start, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)start & ~(page - 1), end = ((uintptr_t)start + size + page - 1) & ~(page - 1);
	if (size >= POPULATE_BYTES)
		(void)madvise((void *)first, end - first, MADV_POPULATE_WRITE); /* older than Linux 5.14: it faults */
}

/* fill(blank, offset, source, size): source is bytes, or a position in bulk(). */
PyObject *wc_fill(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *blank, *source;
	Py_ssize_t offset, size, whole, have = CELL_BULK_BYTES;
	char *to, *from = NULL;
	if (!PyArg_ParseTuple(args, "SnOn", &blank, &offset, &source, &size) || PyBytes_AsStringAndSize(blank, &to, &whole) < 0)
		return NULL;
	if (PyBytes_Check(source)) {
		if (PyBytes_AsStringAndSize(source, &from, &have) < 0)
			return NULL;
	} else {
		Py_ssize_t at = PyLong_AsSsize_t(source);
		if (at == -1 && PyErr_Occurred())
			return NULL;
		from = wc_bulk_memory() + at;
		have = at < 0 || at > have || wc_is_detached() ? -1 : have - at;
	}
	if (offset < 0 || size < 0 || size > have || offset > whole || size > whole - offset) {
		PyErr_SetString(PyExc_ValueError, "the bytes do not fit");
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS populate(to + offset, (size_t)size);
	memcpy(to + offset, from, (size_t)size);
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
