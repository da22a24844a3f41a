/* The end of a run: its result after an answer, a timeout, a limit or a death, and whether the variables are kept. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "session/session.h"

/* What became of the session, after the end of its kernel. */
static const char *fate(const struct cell__run *run)
{
	return run->restored ? "the session is back in the state before the cell" : "the session's variables are lost";
}

void cell__outcome_fail(struct cell__run *run, const struct cell_error *err)
{
	run->result->unbegun = !run->started;
	(void)cell__result_set_error(run->result, err->code, "", err->msg, "");
	cell__run_end(run, false);
}

/* how is NULL where the kernel lives on. */
static void end_timed_out(struct cell__run *run, const struct cell__exit *how, const char *traceback)
{
	char message[240];
	bool kept = how == NULL;
	snprintf(message, sizeof message, "the cell ran longer than its timeout of %.3g s; %s%s", (double)run->timeout_ms / 1000.0,
		 kept             ? "it was interrupted and the session's variables are kept"
		 : how->abandoned ? "it did not stop when interrupted: its thread was abandoned and still runs in this process, and "
		 : run->session->executor->takes_loop ? "it did not stop in time when interrupted, and "
						      : "it did not stop when interrupted, so its kernel was killed and ",
		 kept ? "" : fate(run));
	(void)cell__result_set_error(run->result, CELL_OUT_TIMEOUT, "TimeoutError", message, traceback);
	cell__run_end(run, kept);
}

static int failure_code(const struct cell__run *run, bool refused, bool limited, const struct cell__kernel_answer *answer)
{
	if (answer->interrupted && run->interrupt_asked)
		return CELL_OUT_INTERRUPTED;
	if (answer->code)
		return answer->code;
	/* Only a run that was refused something can have ended with it. */
	if (refused &&
	    (strcmp(answer->error_type, "ApprovalRejectedError") == 0 || strcmp(answer->error_type, "ApprovalTimeoutError") == 0))
		return CELL_OUT_REJECTED;
	return limited ? CELL_OUT_LIMIT : CELL_OUT_EXCEPTION;
}

static void end_limited(struct cell__run *run, bool kept, const char *limit, uint64_t max, uint64_t used, const char *message,
			const char *traceback)
{
	(void)cell__result_set_error(run->result, CELL_OUT_LIMIT, "LimitExceeded", message, traceback);
	(void)cell__result_set_limit(run->result, limit, max, used);
	cell__run_end(run, kept);
}

static void end_over_limit(struct cell__run *run, bool kept, const char *traceback)
{
	char message[240];
	snprintf(message, sizeof message, "the cell exceeded the limit on %s: %llu of %llu %s; %s%s", run->over,
		 (unsigned long long)run->over_used, (unsigned long long)run->over_max,
		 strcmp(run->over, "wall_time") == 0         ? "ms"
		 : strcmp(run->over, "fork_time") == 0       ? "ms"
		 : strcmp(run->over, "workspace_files") == 0 ? "files"
		 : strcmp(run->over, "cpu_seconds") == 0     ? "seconds"
							     : "bytes",
		 kept ? "it was interrupted and the session's variables are kept" : "its kernel was killed and ", kept ? "" : fate(run));
	end_limited(run, kept, run->over, run->over_max, run->over_used, message, traceback);
}

void cell__outcome_describe_excess(const struct cell__excess *excess, char *out, size_t size)
{
	bool files = strcmp(excess->limit, "workspace_files") == 0;
	if (excess->reason)
		snprintf(out, size, "the writable folders cannot be measured against the limit on the workspace: %s", excess->reason);
	else
		snprintf(out, size, "the workspace and other writable folders hold more than their limit: %llu of %llu %s",
			 (unsigned long long)excess->used, (unsigned long long)excess->max, files ? "files" : "bytes");
}

void cell__outcome_refused(struct cell__run *run, const struct cell__excess *excess)
{
	char why[160], message[320];
	cell__outcome_describe_excess(excess, why, sizeof why);
	snprintf(message, sizeof message, "%s; remove files on the host, or raise limits.%s in the sandbox policy", why, excess->limit);
	end_limited(run, true, excess->limit, excess->max, excess->used, message, "");
}

void cell__outcome_answered(struct cell__run *run, bool refused, const struct cell__kernel_answer *answer)
{
	if (run->timed_out) {
		end_timed_out(run, answer->lost ? &(struct cell__exit){ 0 } : NULL, answer->failed ? answer->error_traceback : "");
		return;
	}
	if (run->over) {
		end_over_limit(run, true, answer->failed ? answer->error_traceback : "");
		return;
	}
	struct cell_result *result = run->result;
	cell__result_take_changes(result, answer->changes);
	result->durable = answer->durable;
	for (size_t i = 0; i < answer->n_notices; i++)
		cell__result_add_notice(result, answer->notices[i]);
	bool limited = answer->limit && (run->session->options.confined || answer->code == CELL_OUT_LIMIT);
	int rc = 0;
	if (answer->failed)
		rc = cell__result_set_error(result, failure_code(run, refused, limited, answer), answer->error_type, answer->error_message,
					    answer->error_traceback);
	if (answer->failed && limited && result->outcome.code == CELL_OUT_LIMIT)
		rc |= cell__result_set_limit(result, answer->limit, answer->limit_max, answer->limit_used);
	else
		rc = cell__result_take_answer(result, answer);
	result->outcome.retry = answer->retry;
	run->restored |= answer->restored;
	if (rc < 0 && !result->failed)
		(void)cell__result_set_error(result, CELL_E_NOMEM, "", "out of memory for the result", "");
	if (answer->isolation && !result->own_isolation && (result->own_isolation = cell__strdup(answer->isolation)))
		result->isolation = result->own_isolation;
	cell__run_end(run, !answer->lost && !answer->restored);
}

void cell__outcome_describe_death(const struct cell__exit *how, const char *violation, char *out, size_t size)
{
	if (violation)
		snprintf(out, size, "the kernel broke the protocol (%s) and was killed", violation);
	else if (how->error.code)
		snprintf(out, size, "%s", how->error.msg);
	else if (how->oom)
		snprintf(out, size, "the kernel ran out of memory: the system's OOM killer ended it (signal 9)");
	else if (!how->known)
		snprintf(out, size, "the kernel died for an unknown reason");
	else if (WIFSIGNALED(how->status))
		snprintf(out, size, "the kernel was killed by signal %d (%s)", WTERMSIG(how->status),
			 sigdescr_np(WTERMSIG(how->status)) ? sigdescr_np(WTERMSIG(how->status)) : "unknown");
	else
		snprintf(out, size, "the kernel exited with status %d", WEXITSTATUS(how->status));
}

void cell__outcome_dead(struct cell__run *run, const char *violation, const struct cell__exit *how)
{
	struct cell_session *session = run->session;
	uint64_t cpu_ms = session->options.confine.cpu_time_ms;
	char message[320];
	if (session->broken.code) {
		cell__outcome_fail(run, &session->broken);
	} else if (session->closing) {
		struct cell_error err;
		cell_fail(&err, CELL_E_CLOSED, 0, "the session was closed while the cell ran");
		cell__outcome_fail(run, &err);
	} else if (how->error.code == CELL_E_EXPIRED) {
		cell__outcome_fail(run, &how->error);
	} else if (run->timed_out) {
		end_timed_out(run, how, "");
	} else if (run->over) {
		end_over_limit(run, false, "");
	} else if (how->oom && how->memory_max > 0) {
		snprintf(message, sizeof message, "the code exceeded the limit on memory: %llu of %llu bytes; its kernel was killed and %s",
			 (unsigned long long)how->memory_used, (unsigned long long)how->memory_max, fate(run));
		end_limited(run, false, "memory", how->memory_max, how->memory_used, message, "");
	} else if (cpu_ms && how->known && WIFSIGNALED(how->status) && WTERMSIG(how->status) == SIGXCPU) {
		end_limited(run, false, "cpu_time", cpu_ms, cpu_ms,
			    "the code exceeded the limit on CPU time; its kernel was killed and the session's variables are lost", "");
	} else if (how->asked && !violation) {
		(void)cell__result_set_error(run->result, CELL_OUT_INTERRUPTED, "KeyboardInterrupt",
					     run->cancelled ? "the cell was cancelled and did not stop when interrupted, so its kernel was "
							      "killed and the session's variables are lost"
							    : "the session was reset while the cell ran",
					     "");
		cell__run_end(run, false);
	} else {
		cell__outcome_describe_death(how, violation, message, sizeof message);
		if (run->restored) {
			size_t size = strlen(message);
			snprintf(message + size, sizeof message - size, "; %s", fate(run));
		}
		(void)cell__result_set_error(run->result, CELL_OUT_KERNEL_DIED, "KernelDied", message, "");
		cell__run_end(run, false);
	}
}
