/* The sandbox's part of the kernel's extension. */
#ifndef WORKCELL_CONFINE_H
#define WORKCELL_CONFINE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>

/* fork_into(fds, join) of a KERNEL_FORK -> pid in the zygote, 0 in the kernel; OSError when it fails */
PyObject *wc_fork_into(PyObject *self, PyObject *args);
/* join_group(fds, join): this process and what it starts */
PyObject *wc_join_group(PyObject *self, PyObject *args);
/* confine_early(plan_fd, [fds to keep]) -> (failed step or -1, errno, skipped steps): the steps that need no session */
PyObject *wc_confine_early(PyObject *self, PyObject *args);
/* confine(session) -> the same: the rest */
PyObject *wc_confine(PyObject *self, PyObject *args);

#endif
