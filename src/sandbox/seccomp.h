/* The system call filter, as instructions that a process loads into itself. */
#ifndef CELL_SANDBOX_SECCOMP_H
#define CELL_SANDBOX_SECCOMP_H

#include "core/core.h"

struct cell__filter_options {
	bool internet; /* AF_INET and AF_INET6 sockets may be made */
	bool shared;   /* files, IPC objects and abstract names are the host's: there are no namespaces of its own */
	bool cuts;     /* shared, and Landlock does not see truncate() (before Linux 6.2) */
};

/* Appends struct sock_filter[] to out. */
int cell__filter_build(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* A second filter: arguments that are refused of calls that are allowed. */
int cell__filter_refusals(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* The last one: what the confinement itself needs and nobody after it. */
int cell__filter_last(struct cell__buf *out, struct cell_error *err);
/* One line for each group: what it is for.  NULL past the end. */
const char *cell__filter_group(size_t i, bool *ret_allowed);

#endif
