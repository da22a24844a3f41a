/* Handlers, one per route; table.c assigns them. */
#ifndef CELL_SERVER_API_H
#define CELL_SERVER_API_H

#include "server/server.h"

/* The timeout of a cell that a body requests, within the allowed range; 0: the session's own. */
int64_t cell__timeout_of(struct cell__request *request);

/* docs.c */
void cell__handle_docs(struct cell__request *request);
/* console.c */
void cell__handle_console_start(struct cell__request *request);
void cell__handle_console_page(struct cell__request *request);
void cell__handle_console_file(struct cell__request *request);
void cell__handle_console_frame(struct cell__request *request);
void cell__handle_console_login(struct cell__request *request);
void cell__handle_console_logout(struct cell__request *request);
void cell__handle_v1_whoami(struct cell__request *request);
/* history.c */
void cell__handle_v1_session_events(struct cell__request *request);
/* inspect.c */
void cell__handle_v1_audit(struct cell__request *request);
void cell__handle_v1_logins(struct cell__request *request);
void cell__handle_login_page(struct cell__request *request);
void cell__handle_login(struct cell__request *request);
void cell__handle_login_callback(struct cell__request *request);
void cell__handle_v1_doctor(struct cell__request *request);
void cell__handle_v1_policy(struct cell__request *request);
void cell__handle_v1_policy_try(struct cell__request *request);
void cell__handle_v1_complete(struct cell__request *request);
/* session_log.c */
void cell__handle_v1_log(struct cell__request *request);
/* ready.c */
void cell__handle_ready(struct cell__request *request);
void cell__handle_started(struct cell__request *request);
/* v1.c: the number after which a reader goes on; false: it was answered. */
/* Whether the client accepts server-sent events. */
bool cell__wants_events(const struct cell__request *request);
bool cell__last_event(struct cell__request *request, const struct cell__events *events, uint64_t *ret_after);
/* api.c */
void cell__handle_execute(struct cell__request *request);
void cell__handle_v1_batch(struct cell__request *request);
void cell__handle_v1_session_batch(struct cell__request *request);
void cell__handle_v1_batch_get(struct cell__request *request);
void cell__handle_v1_batch_events(struct cell__request *request);
void cell__handle_v1_batch_delete(struct cell__request *request);
/* tasks.c */
void cell__handle_v1_tasks(struct cell__request *request);
void cell__handle_v1_task_get(struct cell__request *request);
void cell__handle_v1_task_events(struct cell__request *request);
void cell__handle_v1_task_delete(struct cell__request *request);
void cell__handle_run_code(struct cell__request *request);
void cell__handle_sessions(struct cell__request *request);
void cell__handle_reset(struct cell__request *request);
void cell__handle_health(struct cell__request *request);
void cell__handle_openapi(struct cell__request *request);
void cell__handle_metrics(struct cell__request *request);
void cell__handle_info(struct cell__request *request);
void cell__handle_tool_call(struct cell__request *request);
void cell__handle_install(struct cell__request *request);
void cell__handle_uninstall(struct cell__request *request);
/* Runs the route's operation with the request's arguments. */
void cell__handle_operation(struct cell__request *request);
void cell__answer_workflows(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);
void cell__answer_workflow(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);
void cell__answer_deleted(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);
void cell__answer_sync(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);
void cell__answer_removed(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);
/* artifacts.c */
void cell__handle_artifact_get(struct cell__request *request);
void cell__handle_artifact_save(struct cell__request *request);
void cell__handle_artifact_put(struct cell__request *request);
void cell__handle_artifact_delete(struct cell__request *request);
/* files.c */
void cell__handle_v1_file_get(struct cell__request *request);
void cell__handle_v1_file_put(struct cell__request *request);
void cell__handle_v1_file_delete(struct cell__request *request);
/* commands.c */
void cell__handle_v1_commands(struct cell__request *request);
void cell__handle_v1_command_start(struct cell__request *request);
void cell__handle_v1_command_get(struct cell__request *request);
void cell__handle_v1_command_output(struct cell__request *request);
void cell__handle_v1_command_stdin(struct cell__request *request);
void cell__handle_v1_command_signal(struct cell__request *request);
void cell__handle_v1_command_resize(struct cell__request *request);
void cell__handle_v1_command_delete(struct cell__request *request);
/* lookup.c: on a thread of the pool, read() sets answer or text, else err. */
struct cell__lookup {
	uv_work_t work;
	struct cell__request *request;
	void (*read)(struct cell__lookup *reading);
	void (*shown)(struct cell__lookup *reading); /* changes the answer, on the loop's thread; or NULL */
	char *path, *key; /* its own; or NULL */
	uint64_t at; /* of a file that is being written: what of it is read, */
	struct cell__buf tail; /* and what follows */
	json_t *answer;
	char *text;
	struct cell_error err;
};
/* path, key: copied; may be NULL.  NULL: it was answered. */
struct cell__lookup *cell__lookup_create(struct cell__request *request, void (*read)(struct cell__lookup *reading), const char *path,
					 const char *key);
/* NULL is allowed. */
void cell__lookup_begin(struct cell__lookup *reading);
/* saved.c */
void cell__handle_v1_saved(struct cell__request *request);
/* notebook.c */
void cell__handle_v1_notebook_get(struct cell__request *request);
void cell__handle_v1_notebook_run(struct cell__request *request);
/* v1.c */
void cell__handle_v1_open(struct cell__request *request);
void cell__handle_v1_list(struct cell__request *request);
void cell__handle_v1_get(struct cell__request *request);
void cell__handle_v1_delete(struct cell__request *request);
void cell__handle_v1_interrupt(struct cell__request *request);
void cell__handle_v1_reset(struct cell__request *request);
void cell__handle_v1_fork(struct cell__request *request);
void cell__handle_v1_points(struct cell__request *request);
void cell__handle_v1_checkpoint(struct cell__request *request);
void cell__handle_v1_variables(struct cell__request *request);
void cell__handle_v1_hibernate(struct cell__request *request);
void cell__handle_v1_drop_point(struct cell__request *request);
void cell__handle_v1_rewind(struct cell__request *request);
void cell__handle_v1_files_diff(struct cell__request *request);
void cell__handle_v1_files_commit(struct cell__request *request);
void cell__handle_v1_files_discard(struct cell__request *request);
void cell__handle_v1_race(struct cell__request *request);
void cell__handle_v1_run(struct cell__request *request);
void cell__handle_v1_run_get(struct cell__request *request);
void cell__handle_v1_run_cancel(struct cell__request *request);
void cell__handle_v1_runs(struct cell__request *request);
void cell__handle_v1_events(struct cell__request *request);
void cell__handle_v1_approvals(struct cell__request *request);
void cell__handle_v1_all_approvals(struct cell__request *request);
void cell__handle_v1_answer(struct cell__request *request);

#endif
