/* The system call filter, as instructions that a process loads into itself. */
#ifndef CELL_SANDBOX_SECCOMP_H
#define CELL_SANDBOX_SECCOMP_H

#include "base/base.h"

struct cell__filter_options {
	bool internet; /* AF_INET and AF_INET6 sockets may be made */
	bool shared;   /* files, IPC objects and abstract names are the host's: there are no namespaces of its own */
	bool cuts;     /* shared, and Landlock does not see truncate() (before Linux 6.2) */
	bool watch;    /* inotify */
};

/* Appends struct sock_filter[] to out. */
int cell__filter_build(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* A second filter: arguments that are refused of calls that are allowed. */
int cell__filter_refusals(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err);
/* The last one: what the confinement itself needs and nobody after it. */
int cell__filter_last(struct cell__buf *out, struct cell_error *err);
/* That of a zygote: refuses what neither it nor a kernel needs before that has filters of its own. */
int cell__filter_zygote(struct cell__buf *out, struct cell_error *err);
/* A call's number on this machine; -1: it has none. */
int cell__filter_number(const char *call);
/*
 * What was decided of a call: 0 or the errno it answers, once all filters are loaded; ret_conditions: some arguments are
 * answered otherwise.  False: nobody judged it, it answers ENOSYS.
 */
bool cell__filter_judgement(const char *call, const struct cell__filter_options *options, int *ret_error, bool *ret_conditions);

#endif
