/* The system call filter, as instructions that a process loads for itself. */
#ifndef CELL_SANDBOX_SECCOMP_H
#define CELL_SANDBOX_SECCOMP_H

#include "base/base.h"

struct cell__filter_options {
	bool internet; /* AF_INET and AF_INET6 sockets may be made */
	bool shared;   /* files, IPC objects and abstract names are shared with the host: no private namespaces */
	bool cuts;     /* shared, and Landlock does not see truncate() (before Linux 6.2) */
	bool watch;    /* inotify */
};

/* Appends struct sock_filter[] to out. */
int cell__filter_build(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* A second filter: arguments that are refused of calls that are allowed. */
int cell__filter_refusals(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* The last filter: refuses calls that only the confinement itself needs. */
int cell__filter_last(struct cell__buf *out, struct cell_error *err);
/* The filter of a zygote: refuses calls that neither it nor a kernel without its own filters needs. */
int cell__filter_zygote(struct cell__buf *out, struct cell_error *err);
/*
 * The filter of the guard (guard.h): calls that make, remove, rename or open a file for writing go to its listener.  It must be the last
 * one that has a listener; of two filters the stricter answer counts.
 */
int cell__filter_guard(struct cell__buf *out, struct cell_error *err);
/* A call's number on this machine; -1: it has none. */
int cell__filter_number(const char *call);
/*
 * The decision on a call: 0 or the errno it returns, once all filters are loaded; ret_conditions: some arguments are
 * treated differently.  False: the call is in no list and returns ENOSYS.
 */
bool cell__filter_judgement(const char *call, const struct cell__filter_options *options, int *ret_error, bool *ret_conditions);

#endif
