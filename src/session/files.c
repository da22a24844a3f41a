/*
 * The session's files as a layer (layer/layer.h): what its code changed, written to the real workspace or dropped.
 *
 * The layer is made before the first kernel and removed after the last; kernels that follow each other see the same one.  Its functions
 * take long, so they run on the caller's thread or on the pool; the loop only says which process the kernel is.
 *
 * With an executor that asks a server (its files()) the layer is that of the server's session, and so is not one of ours.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "files/relay.h"
#include "gate/audit.h"
#include "layer/layer.h"
#include "sandbox/build.h"
#include "sandbox/machine.h"
#include "sandbox/overlay.h"
#include "session/session.h"

/*
 * Without namespaces the code's working directory is the copy, and TMPDIR names the layer's folder for temporary files; nothing keeps the code
 * from the real ones but their paths.
 */
static int work_in_copy(struct cell_session *session, struct cell_error *err)
{
	struct cell__options *options = &session->options;
	CELL_AUTO_FREE char *base = realpath(options->cwd, NULL);
	if (!base)
		return cell_fail(err, CELL_E_INVALID, errno, "working directory %.160s", options->cwd);
	if (cell__layer_create(base, session->engine->spill_dir, CELL_LAYER_COPY, 0, 0, &session->layer, err) < 0 ||
	    cell__layer_add_tmp(session->layer, err) < 0)
		return -1;
	char *cwd = cell__strdup(cell__layer_upper(session->layer));
	if (!cwd)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	free(options->cwd);
	options->cwd = cwd;
	return 0;
}

int cell__session_make_layer(struct cell_session *session, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	const char *home = session->engine->spill_dir;
	CELL_AUTO_FREE char *base = NULL;
	if (!options->layered)
		return 0;
	if (!atomic_exchange(&session->engine->layers_reclaimed, true))
		cell__layer_reclaim(home);
	if (!options->confined)
		return work_in_copy(session, err);
	if (cell__machine_here()->level != CELL_LEVEL_FULL)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "workspace_mode: cow needs mount namespaces: %.76s; %.105s",
				 cell__machine_here()->reason, cell__machine_here()->advice);
	if (cell__plan_workspace(options->cwd, options->confine.workspace, &base, err) < 0)
		return -1;
	return cell__layer_create(base, home, cell__overlay_works(home) ? CELL_LAYER_OVERLAY : CELL_LAYER_COPY,
				  options->confine.workspace_bytes, options->confine.workspace_files, &session->layer, err);
}

char *cell__files_receipt(const struct cell_session *session)
{
	const char *receipt = session->executor->receipt;
	struct cell__buf text = CELL_BUF_INIT;
	if (!session->layer || session->options.confined)
		return NULL;
	if (cell__buf_printf(&text, "%.*s,\"workspace\":\"cow\",\"layer\":\"%s\",\"protected\":\"at commit\",\"not_in_layer\":[\"/tmp\"]}",
			     (int)strlen(receipt) - 1, receipt, cell__layer_word(session->layer)) < 0)
		return NULL;
	return cell__buf_take(&text);
}

struct kernel_question {
	struct cell_session *session;
	int64_t pid; /* 0: no kernel */
	bool busy;
};

/* The process through which the layer reaches the code's files; 0: it has them itself. */
static int64_t pid_of(const struct cell_session *session, const struct cell__kernel *kernel)
{
	return session->options.confined ? session->executor->pid(kernel) : 0;
}

static void ask_kernel(struct kernel_question *question)
{
	const struct cell_session *session = question->session;
	const struct cell__run *run = session->current;
	question->busy = run && run->started && !run->ending;
	question->pid = session->slot && session->slot->ready ? pid_of(session, session->slot->kernel) : 0;
}

static void do_ask_kernel(void *arg)
{
	ask_kernel(arg);
}

static int has_layer(const struct cell_session *session, struct cell_error *err)
{
	if (session->layer)
		return 0;
	return cell_fail(err, CELL_E_UNSUPPORTED, 0,
			 "the session has no layer: its code writes to the workspace itself; open it with workspace_mode \"cow\"");
}

static int discard(struct cell_session *session, const struct kernel_question *kernel, struct cell_error *err)
{
	if (kernel->busy)
		return cell_fail(err, CELL_E_BUSY, 0, "a cell runs in this session; discard its files when it has ended");
	return cell__layer_restore(session->layer, kernel->pid, NULL, err);
}

/* The real workspace, or the layer, was changed from outside of the code: that is recorded.  On the loop's thread. */
static void tell_change(struct cell_session *session, const char *kind, const json_t *answer)
{
	json_t *files = json_object_get(answer, "committed");
	cell__speculation_files_changed(session);
	cell__branch_tell(session, json_pack("{s:s, s:O*}", "kind", kind, "files", files));
}

/* ---- for callers that wait ---- */

struct change {
	struct cell_session *session;
	const char *kind;
	const json_t *answer; /* or NULL */
};

static void do_tell_change(void *arg)
{
	const struct change *change = arg;
	tell_change(change->session, change->kind, change->answer);
}

static char *text_of(json_t *json, struct cell_error *err)
{
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
	if (json && !text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(json);
	return text;
}

struct asking {
	struct cell__task task; /* first */
	struct cell__waiter waiter;
	struct cell_session *session;
	enum cell__files_verb verb;
	const char *const *paths;
	bool flag;
	json_t *answer;
	struct cell_error err;
};

static void handle_answer(void *arg, json_t *answer, const struct cell_error *err)
{
	struct asking *asking = arg;
	asking->answer = json_incref(answer);
	if (err)
		asking->err = *err;
	cell__waiter_signal(&asking->waiter);
}

static void do_ask(struct cell__task *task)
{
	struct asking *asking = (struct asking *)task;
	if (cell__session_files_on_loop(asking->session, asking->verb, asking->paths, asking->flag, handle_answer, asking, &asking->err) <
	    0)
		cell__waiter_signal(&asking->waiter);
}

/* The server has the layer. */
static json_t *ask_there(struct cell_session *session, enum cell__files_verb verb, const char *const *paths, bool flag,
			 struct cell_error *err)
{
	struct asking asking = { .task.fn = do_ask, .session = session, .verb = verb, .paths = paths, .flag = flag };
	cell__waiter_init(&asking.waiter);
	cell__loop_do(session->engine->loop, &asking.task, &asking.waiter);
	cell__waiter_finish(&asking.waiter);
	if (!asking.answer && err)
		*err = asking.err;
	return asking.answer;
}

static void do_hold_layer(void *arg)
{
	struct cell_session *session = arg;
	session->filing++;
}

static void do_let_go_layer(void *arg)
{
	struct cell_session *session = arg;
	session->filing--;
	cell__session_advance(session);
}

/* While a caller's thread works on the layer it stays the session's (speculation.c replaces it). */
static void hold_layer(struct cell_session *session)
{
	cell__loop_call(session->engine->loop, do_hold_layer, session);
}

static void let_go_layer(struct cell_session *session)
{
	cell__loop_call(session->engine->loop, do_let_go_layer, session);
}

char *cell__files_diff(struct cell_session *session, bool with_text, struct cell_error *err)
{
	if (session->executor->files)
		return text_of(ask_there(session, CELL__FILES_DIFF, NULL, with_text, err), err);
	if (has_layer(session, err) < 0)
		return NULL;
	hold_layer(session);
	json_t *answer = cell__layer_diff(session->layer, with_text, err);
	let_go_layer(session);
	return text_of(answer, err);
}

char *cell__files_commit(struct cell_session *session, const char *const *paths, bool force, struct cell_error *err)
{
	if (session->executor->files)
		return text_of(ask_there(session, CELL__FILES_COMMIT, paths, force, err), err);
	if (has_layer(session, err) < 0)
		return NULL;
	hold_layer(session);
	json_t *answer = cell__layer_commit(session->layer, paths, force, err);
	struct change change = { session, "commit", answer };
	if (answer)
		cell__loop_call(session->engine->loop, do_tell_change, &change);
	let_go_layer(session);
	return text_of(answer, err);
}

int cell__files_discard(struct cell_session *session, struct cell_error *err)
{
	struct kernel_question kernel = { .session = session };
	if (session->executor->files) {
		json_t *answer = ask_there(session, CELL__FILES_DISCARD, NULL, false, err);
		json_decref(answer);
		return answer ? 0 : -1;
	}
	if (has_layer(session, err) < 0)
		return -1;
	hold_layer(session);
	cell__loop_call(session->engine->loop, do_ask_kernel, &kernel);
	int rc = discard(session, &kernel, err);
	struct change change = { session, "discard", NULL };
	if (rc == 0)
		cell__loop_call(session->engine->loop, do_tell_change, &change);
	let_go_layer(session);
	return rc;
}

/* ---- for the loop's thread ---- */

struct filing {
	struct cell__waiting waiting; /* first */
	uv_work_t work;
	struct cell_session *session;
	enum cell__files_verb verb;
	char **paths;
	bool flag;
	struct kernel_question kernel;
	json_t *answer;
	struct cell_error err;
	cell__files_done done;
	void *arg;
};

static void do_file(uv_work_t *work)
{
	struct filing *filing = work->data;
	struct cell_session *session = filing->session;
	switch (filing->verb) {
	case CELL__FILES_DIFF:
		filing->answer = cell__layer_diff(session->layer, filing->flag, &filing->err);
		break;
	case CELL__FILES_COMMIT:
		filing->answer = cell__layer_commit(session->layer, (const char *const *)filing->paths, filing->flag, &filing->err);
		break;
	case CELL__FILES_DISCARD:
		filing->answer = discard(session, &filing->kernel, &filing->err) < 0 ? NULL : json_object();
		break;
	}
}

static void end_filing(struct filing *filing)
{
	struct cell_session *session = filing->session;
	session->filing--;
	if (filing->answer && filing->verb != CELL__FILES_DIFF)
		tell_change(session, filing->verb == CELL__FILES_COMMIT ? "commit" : "discard", filing->answer);
	filing->done(filing->arg, filing->answer, filing->answer ? NULL : &filing->err);
	json_decref(filing->answer);
	cell__strings_free(filing->paths);
	free(filing);
}

static void handle_filed(uv_work_t *work, int status)
{
	struct filing *filing = work->data;
	struct cell_session *session = filing->session;
	(void)status; /* never cancelled */
	end_filing(filing);
	cell__session_advance(session);
}

static void handle_server_answer(void *arg, json_t *answer, const struct cell_error *err)
{
	struct filing *filing = arg;
	struct cell_session *session = filing->session;
	filing->answer = json_incref(answer);
	if (err)
		filing->err = *err;
	end_filing(filing);
	cell__session_advance(session);
}

/* Its kernel is ready, or cannot be started.  Called by cell__session_advance(), which goes on with the session. */
static void ask_server(struct cell__waiting *waiting)
{
	struct filing *filing = (struct filing *)waiting;
	struct cell_session *session = filing->session;
	if (waiting->failed)
		filing->err = waiting->err;
	else if (!session->slot || !session->slot->ready)
		cell_fail(&filing->err, CELL_E_KERNEL, 0, "the kernel has ended");
	else if (session->executor->files(session->slot->kernel, filing->verb, (const char *const *)filing->paths, filing->flag,
					  handle_server_answer, filing, &filing->err) == 0)
		return;
	end_filing(filing);
}

int cell__session_files_on_loop(struct cell_session *session, enum cell__files_verb verb, const char *const *paths, bool flag,
				cell__files_done done, void *arg, struct cell_error *err)
{
	if (!session->executor->files && has_layer(session, err) < 0)
		return -1;
	if (session->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	struct filing *filing = cell__alloc(1, sizeof *filing);
	if (!filing || !(filing->paths = cell__strings_copy(paths))) {
		free(filing);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	filing->work.data = filing;
	filing->session = session;
	filing->verb = verb;
	filing->flag = flag;
	filing->kernel.session = session;
	ask_kernel(&filing->kernel);
	filing->done = done;
	filing->arg = arg;
	session->filing++;
	if (!session->executor->files) {
		uv_queue_work(cell__loop_uv(session->engine->loop), &filing->work, do_file, handle_filed);
		return 0;
	}
	filing->waiting.session = session;
	filing->waiting.done = ask_server;
	cell__session_do_need_kernel(&filing->waiting.task);
	return 0;
}

/* ---- the workspace, for transfers ---- */

/* Options alone: any thread. */
static int check_root(const struct cell_session *session, bool writes, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	if (session->executor->elsewhere)
		return 0; /* that server decides */
	if (!session->executor->works_here)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" has its files elsewhere: they cannot be reached from here", session->executor->name);
	if (options->confined && options->confine.workspace == CELL_WORKSPACE_NONE)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the session has no workspace (workspace_mode \"none\")");
	if (writes && options->confined && options->confine.workspace == CELL_WORKSPACE_RO)
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the workspace is read-only (workspace_mode \"ro\")");
	return 0;
}

/* Whether only a process of the session has the merged view of its files. */
static bool needs_kernel(const struct cell_session *session)
{
	return session->executor->elsewhere || (session->layer && cell__layer_form(session->layer) == CELL_LAYER_OVERLAY);
}

/* Not on the loop's thread. */
static int open_root(const struct cell_session *session, int64_t pid, struct cell__root *root, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	const struct cell__sandbox_policy *policy = &options->confine;
	if (root->place)
		return 0;
	if (needs_kernel(session))
		return cell__layer_open_view(session->layer, pid, &root->fd, err);
	const char *path = session->layer ? cell__layer_upper(session->layer) : options->cwd;
	/* Hidden paths are covered in the code's namespace only. */
	for (size_t i = 0; options->confined && !session->layer && i < policy->hide.count; i++)
		if (cell__path_is_under(policy->hide.items[i], path) || cell__path_lies_in(policy->hide.items[i], path))
			return cell_fail(err, CELL_E_UNSUPPORTED, 0,
					 "the policy hides parts of the workspace: its files cannot be transferred");
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open the workspace %.160s", path);
	root->fd = fd;
	return 0;
}

/* Loop's thread.  Its kernel is ready, where that is needed. */
static int find_place(const struct cell_session *session, struct cell__root *root, struct cell_error *err)
{
	if (!session->executor->elsewhere)
		return 0;
	root->place = session->slot && session->slot->ready ? session->executor->elsewhere(session->slot->kernel) : NULL;
	return root->place ? 0 : cell_fail(err, CELL_E_KERNEL, 0, "the session of the server has ended");
}

/* Loop's thread. */
static int witness_root(const struct cell_session *session, bool writes, struct cell__root *root, struct cell_error *err)
{
	struct cell_audit *audit = session->options.audit;
	if (writes && audit && cell__audit_admit(cell__audit_of(audit), err) < 0)
		return -1;
	root->witness = (struct cell__file_witness){ .audit = audit, .executor = session->executor->name };
	strcpy(root->witness.session_id, session->id);
	return 0;
}

/* Loop's thread. */
static int measure_root(const struct cell_session *session, bool writes, struct cell__root *root, struct cell_error *err)
{
	if (witness_root(session, writes, root, err) < 0)
		return -1;
	/* The host's own files: a sandbox may not write such names there either. */
	root->guarded = session->options.confined && !session->layer;
	root->max_bytes = writes ? cell__quota_left(session->quota) : UINT64_MAX;
	if (root->max_bytes > 0)
		return 0;
	cell__quota_changed(session->quota); /* files may have been removed since */
	return cell_fail(err, CELL_E_LIMIT, ENOSPC, "the workspace is full: %llu bytes are allowed",
			 (unsigned long long)session->options.confine.workspace_bytes);
}

struct root_question {
	struct cell_session *session;
	struct kernel_question kernel;
	struct cell__root *root;
	struct cell_error *err;
	bool writes;
	int rc;
};

static void do_measure_root(void *arg)
{
	struct root_question *question = arg;
	ask_kernel(&question->kernel);
	question->rc = measure_root(question->session, question->writes, question->root, question->err);
	if (question->rc == 0)
		question->rc = find_place(question->session, question->root, question->err);
}

/* As for a reset, for a caller that waits. */
static int wait_for_kernel(struct cell_session *session, struct cell_error *err)
{
	struct cell__waiting waiting = { .task.fn = cell__session_do_need_kernel, .session = session };
	cell__waiter_init(&waiting.waiter);
	cell__loop_do(session->engine->loop, &waiting.task, &waiting.waiter);
	cell__waiter_finish(&waiting.waiter);
	if (waiting.failed && err)
		*err = waiting.err;
	return waiting.failed ? -1 : 0;
}

int cell__files_root(struct cell_session *session, bool writes, struct cell__root *ret_root, struct cell_error *err)
{
	struct cell__root root = CELL_ROOT_INIT;
	struct root_question question = { .session = session, .kernel.session = session, .root = &root, .err = err, .writes = writes };
	if (check_root(session, writes, err) < 0 || (needs_kernel(session) && wait_for_kernel(session, err) < 0))
		return -1;
	hold_layer(session);
	cell__loop_call(session->engine->loop, do_measure_root, &question);
	int rc = question.rc < 0 ? -1 : open_root(session, question.kernel.pid, &root, err);
	let_go_layer(session);
	if (rc == 0)
		*ret_root = root;
	return rc;
}

void cell__session_record_on_loop(struct cell_engine *engine, const struct cell__file_change *change)
{
	struct cell_error err;
	const struct cell_error *why = change->err;
	json_t *args;
	if (!change->witness->audit)
		return;
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;
	const char *path = *change->path ? change->path : ".";
	if (change->in_tmp && cell__buf_printf(&full, "/tmp%s%s", *change->path ? "/" : "", change->path) == 0)
		path = full.data;
	/* Bytes that JSON cannot hold are shown as \xNN. */
	CELL_AUTO_FREE char *shown = cell__utf8_ok(path, strlen(path)) ? NULL : cell_shown_text(path, strlen(path), CELL_SHOWN_ASCII);
	args = json_pack("{s:s}", "path", shown ? shown : path);
	if (args && change->bytes >= 0)
		json_object_set_new(args, "bytes", json_integer(change->bytes));
	struct cell__audit_record record = { .session_id = change->witness->session_id,
					     .kind = "files",
					     .tool = "session",
					     .callable = change->verb,
					     .adapter = "files",
					     .executor = change->witness->executor,
					     .principal = cell__principal_word(change->principal),
					     .client = *change->principal->name ? change->principal->name : NULL,
					     .args = args,
					     .decision = CELL__AUDIT_ALLOW,
					     .by = CELL__AUDIT_BY_HOST,
					     .outcome = !why                            ? CELL__AUDIT_OK
							: why->code == CELL_E_CANCELLED ? CELL__AUDIT_CANCELLED
											: CELL__AUDIT_ERROR,
					     .code = why ? why->code : 0,
					     .error = why ? why->msg : NULL };
	if (cell__audit_write(cell__audit_of(change->witness->audit), &record, NULL, NULL, &err) < 0)
		engine->host.log(engine->host.log_arg, CELL_LOG_WARN, "the audit log lacks a record: %s", err.msg);
	json_decref(args);
}

struct written {
	struct cell_session *session;
	const struct cell__file_change *change;
};

static void do_written(void *arg)
{
	const struct written *written = arg;
	cell__session_record_on_loop(written->session->engine, written->change);
	cell__session_written_on_loop(written->session);
}

void cell__files_written(struct cell_session *session, const struct cell__file_change *change)
{
	struct written written = { session, change };
	cell__loop_call(session->engine->loop, do_written, &written);
}

void cell__session_written_on_loop(struct cell_session *session)
{
	cell__quota_changed(session->quota);
	cell__speculation_files_changed(session);
}

struct rooting {
	struct cell__waiting waiting; /* first */
	uv_work_t work;
	struct cell__root root;
	struct kernel_question kernel;
	bool is_tmp, opened;
	struct cell_error err;
	cell__root_done done;
	void *arg;
};

static void do_root(uv_work_t *work)
{
	struct rooting *rooting = work->data;
	const struct cell_session *session = rooting->waiting.session;
	int rc = rooting->is_tmp ? cell__tmp_open(session, rooting->kernel.pid, &rooting->root.fd, &rooting->err)
				 : open_root(session, rooting->kernel.pid, &rooting->root, &rooting->err);
	rooting->opened = rc == 0;
}

static void handle_rooted(uv_work_t *work, int status)
{
	struct rooting *rooting = work->data;
	struct cell_session *session = rooting->waiting.session;
	(void)status; /* never cancelled */
	rooting->done(rooting->arg, rooting->opened ? &rooting->root : NULL, &rooting->err);
	free(rooting);
	session->filing--;
	cell__session_advance(session);
}

/* Its kernel is ready, or cannot be started.  Called by cell__session_advance(), which goes on with the session: all else is the pool's. */
static void handle_kernel(struct cell__waiting *waiting)
{
	struct rooting *rooting = (struct rooting *)waiting;
	struct cell_session *session = waiting->session;
	if (!waiting->failed && find_place(session, &rooting->root, &waiting->err) < 0)
		waiting->failed = true;
	if (waiting->failed) {
		rooting->done(rooting->arg, NULL, &waiting->err);
		free(rooting);
		session->filing--;
		return;
	}
	ask_kernel(&rooting->kernel);
	uv_queue_work(cell__loop_uv(session->engine->loop), &rooting->work, do_root, handle_rooted);
}

/* What was measured is in the root. */
static int start_rooting(struct cell_session *session, const struct cell__root *root, bool is_tmp, cell__root_done done, void *arg,
			 struct cell_error *err)
{
	struct rooting *rooting = cell__alloc(1, sizeof *rooting);
	if (!rooting)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a transfer");
	*rooting = (struct rooting){ .waiting.session = session,
				     .waiting.done = handle_kernel,
				     .root = *root,
				     .is_tmp = is_tmp,
				     .kernel.session = session,
				     .done = done,
				     .arg = arg };
	rooting->work.data = rooting;
	session->filing++;
	if (is_tmp || needs_kernel(session))
		cell__session_do_need_kernel(&rooting->waiting.task);
	else
		handle_kernel(&rooting->waiting);
	return 0;
}

int cell__session_root_on_loop(struct cell_session *session, bool writes, cell__root_done done, void *arg, struct cell_error *err)
{
	struct cell__root root = CELL_ROOT_INIT;
	if (session->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	if (check_root(session, writes, err) < 0 || measure_root(session, writes, &root, err) < 0)
		return -1;
	return start_rooting(session, &root, false, done, arg, err);
}

int cell__session_tmp_on_loop(struct cell_session *session, bool writes, cell__root_done done, void *arg, struct cell_error *err)
{
	struct cell__root root = CELL_ROOT_INIT;
	if (session->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	if (cell__tmp_check(session, err) < 0 || witness_root(session, writes, &root, err) < 0)
		return -1;
	root.max_bytes = UINT64_MAX; /* its file system has a size */
	return start_rooting(session, &root, true, done, arg, err);
}

/* ---- states, for branch.c ---- */

struct state_work {
	uv_work_t work;
	struct cell_session *session;
	struct cell__frozen *frozen;
	struct cell_error err;
	cell__frozen_done done; /* NULL: it is restored */
	void *arg;
};

static void do_freeze(uv_work_t *work)
{
	struct state_work *state = work->data;
	(void)cell__layer_freeze(state->session->layer, &state->frozen, &state->err);
}

static void do_restore(uv_work_t *work)
{
	struct state_work *state = work->data;
	(void)cell__layer_restore(state->session->layer, 0, state->frozen, &state->err);
}

static void do_drop(uv_work_t *work)
{
	struct state_work *state = work->data;
	cell__frozen_destroy(state->frozen);
}

static void handle_state(uv_work_t *work, int status)
{
	struct state_work *state = work->data;
	struct cell_session *session = state->session;
	(void)status; /* never cancelled */
	session->filing--;
	if (state->done)
		state->done(state->arg, state->frozen, state->err.code ? &state->err : NULL);
	free(state);
	cell__session_advance(session);
}

static int start_state(struct cell_session *session, struct cell__frozen *frozen, uv_work_cb work, cell__frozen_done done, void *arg,
		       struct cell_error *err)
{
	struct state_work *state = cell__alloc(1, sizeof *state);
	if (!state)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a point");
	*state = (struct state_work){ .session = session, .frozen = frozen, .done = done, .arg = arg };
	state->work.data = state;
	session->filing++;
	uv_queue_work(cell__loop_uv(session->engine->loop), &state->work, work, handle_state);
	return 0;
}

int cell__files_freeze(struct cell_session *session, cell__frozen_done done, void *arg, struct cell_error *err)
{
	return start_state(session, NULL, do_freeze, done, arg, err);
}

int cell__files_restore(struct cell_session *session, struct cell__frozen *frozen, cell__frozen_done done, void *arg,
			struct cell_error *err)
{
	return start_state(session, frozen, do_restore, done, arg, err);
}

void cell__files_drop(struct cell_session *session, struct cell__frozen *frozen)
{
	if (frozen && start_state(session, frozen, do_drop, NULL, NULL, NULL) < 0)
		cell__frozen_destroy(frozen); /* out of memory: then here */
}

/* ---- forks ---- */

struct fork_work {
	uv_work_t work;
	struct cell_session *source, *target;
	struct cell__point *point; /* whose files they are; NULL: those of now */
	struct cell_error err;
	cell__files_forked done;
	unsigned flags;
};

static void do_fork(uv_work_t *work)
{
	struct fork_work *fork = work->data;
	struct cell_session *target = fork->target;
	struct cell__layer *source = fork->source->layer;
	if ((!source || cell__layer_fork(source, fork->point ? fork->point->frozen : NULL, &target->layer, &fork->err) == 0))
		(void)cell__session_watch_folders(target, &fork->err);
}

static void handle_forked(uv_work_t *work, int status)
{
	struct fork_work *fork = work->data;
	struct cell_session *source = fork->source, *target = fork->target;
	char *cwd = NULL;
	(void)status; /* never cancelled */
	if (!fork->err.code && target->layer && !target->options.confined) {
		cwd = cell__strdup(cell__layer_upper(target->layer));
		if (!cwd)
			cell_fail(&fork->err, CELL_E_NOMEM, 0, "out of memory for a layer");
	}
	if (cwd) {
		free(target->options.cwd);
		target->options.cwd = cwd;
	}
	cell__quota_start(target->quota);
	fork->done(source, target, fork->point, fork->flags, fork->err.code ? &fork->err : NULL);
	source->filing--;
	target->filing--;
	free(fork);
	cell__session_advance(target);
	cell__session_advance(source);
}

int cell__files_fork(struct cell_session *source, struct cell_session *target, struct cell__point *point, unsigned flags,
		     cell__files_forked done, struct cell_error *err)
{
	struct fork_work *fork = cell__alloc(1, sizeof *fork);
	if (!fork)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	*fork = (struct fork_work){ .source = source, .target = target, .point = point, .flags = flags, .done = done };
	fork->work.data = fork;
	source->filing++;
	target->filing++;
	uv_queue_work(cell__loop_uv(source->engine->loop), &fork->work, do_fork, handle_forked);
	return 0;
}

/* ---- the end ---- */

struct removing {
	uv_work_t work;
	struct cell__layer *layer;
	void (*done)(void *arg);
	void *arg;
};

static void do_remove(uv_work_t *work)
{
	struct removing *removing = work->data;
	cell__layer_destroy(removing->layer);
}

static void handle_removed(uv_work_t *work, int status)
{
	struct removing *removing = work->data;
	(void)status;
	removing->done(removing->arg);
	free(removing);
}

void cell__session_remove_layer(struct cell_session *session, void (*done)(void *arg), void *arg)
{
	struct cell__layer *layer = cell__take_ptr(session->layer);
	struct removing *removing = layer ? cell__alloc(1, sizeof *removing) : NULL;
	if (!removing) {
		cell__layer_destroy(layer); /* out of memory: then here */
		done(arg);
		return;
	}
	*removing = (struct removing){ .layer = layer, .done = done, .arg = arg };
	removing->work.data = removing;
	uv_queue_work(cell__loop_uv(session->engine->loop), &removing->work, do_remove, handle_removed);
}
