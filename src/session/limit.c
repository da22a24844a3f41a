/*
 * Lower limits for one kernel: those of a run of a batch.
 *
 * Memory is RLIMIT_DATA, set from outside with prlimit(): code of a sandbox cannot raise it again, and no file of ours in the kernel has to be
 * trusted.  It counts what the state has that the kernel was forked from, so that is added.  The session's own limits stay in force.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "session/on_loop.h"
#include "session/session.h"

/* Bytes of private writable memory now; -1: not known. */
static int64_t data_bytes(int64_t pid)
{
	char path[48], line[256];
	long long kib = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%lld/status", (long long)pid);
	file = fopen(path, "re");
	while (file && kib < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmData: %lld kB", &kib) != 1)
			kib = -1;
	if (file)
		fclose(file);
	return kib < 0 ? -1 : kib * 1024;
}

static int limit_memory(struct cell_session *session, int64_t bytes, struct cell_error *err)
{
	int64_t pid = session->slot && session->slot->ready && session->executor->fork ? session->executor->pid(session->slot->kernel) : 0;
	int64_t has = pid > 0 ? data_bytes(pid) : -1;
	struct rlimit now, wanted;

	if (has < 0)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the executor %s has no limit of memory for a run", session->executor->name);
	wanted.rlim_cur = wanted.rlim_max = (rlim_t)(has + bytes);
	if (prlimit((pid_t)pid, RLIMIT_DATA, NULL, &now) < 0 ||
	    (now.rlim_max > wanted.rlim_max && prlimit((pid_t)pid, RLIMIT_DATA, &wanted, NULL) < 0))
		return cell_fail(err, CELL_E_SANDBOX, errno, "limit the memory of a run");
	return 0;
}

int cell__session_limit_on_loop(struct cell_session *session, int64_t memory_bytes, int64_t max_output_bytes, struct cell_error *err)
{
	if (memory_bytes < 0 || memory_bytes > INT64_MAX / 2)
		return cell_fail(err, CELL_E_INVALID, 0, "memory is %lld, expected 0 or more bytes", (long long)memory_bytes);
	if (max_output_bytes && max_output_bytes < CELL_LIMIT_MIN_OUTPUT)
		return cell_fail(err, CELL_E_INVALID, 0, "max_output is %lld, expected %d or more bytes", (long long)max_output_bytes,
				 CELL_LIMIT_MIN_OUTPUT);
	if (memory_bytes && limit_memory(session, memory_bytes, err) < 0)
		return -1;
	if (max_output_bytes && (size_t)max_output_bytes < session->options.max_output)
		session->options.max_output = (size_t)max_output_bytes;
	return 0;
}
