/* The host's own calls of a space: cell_space_call() and similar, which wait, and how they are cancelled. */
#include <pthread.h>
#include <string.h>

#include "base/sized.h"
#include "space/servers.h"
#include "space/space.h"

/*
 * The caller runs the loop until the call is over or there is a line of progress; lines are handed over outside the loop, so that a slow
 * receiver delays no other caller. deps bounds their number.
 */
struct host_call {
	struct cell__call base;
	struct cell__task task;
	struct cell__waiter waiter; /* its lock guards lines, work and over */
	struct cell_space *space;
	struct cell_session *session; /* the session it acts for; NULL: none */
	struct cell_answer answer;
	struct cell_error err;
	bool failed;
	struct cell__buf lines;     /* each with its NUL */
	struct cell__lent_work *work; /* for the caller's thread, which then need not wait for one of the pool's; or NULL */
	bool over;
	bool started, cancelled;    /* loop's thread */
};

/* Its lock is taken before a call's, and held by every thread that touches `call`, which is on another thread's stack. */
struct cell_canceller {
	pthread_mutex_t lock;
	struct host_call *call; /* under way; NULL: none */
	bool cancelled;
};

static void end_host_call(struct host_call *call)
{
	/* As in cell__waiter_signal(): after the unlock the call may be gone. */
	cell__waiter_lock(&call->waiter);
	call->over = true;
	cell__waiter_set_done(&call->waiter, true);
	cell__waiter_unlock(&call->waiter);
}

static void take_raw(struct host_call *call, const void *raw, size_t raw_size)
{
	struct cell_answer *answer = &call->answer;
	if (raw_size > 0)
		answer->raw = cell__strndup(raw, raw_size);
	answer->raw_size = raw_size;
	if (!answer->json || (raw_size > 0 && !answer->raw)) {
		call->failed = true;
		cell_fail(&call->err, CELL_E_NOMEM, 0, "out of memory for the answer");
	}
	end_host_call(call);
}

static void host_answer(struct cell__call *base, json_t *result, const void *raw, size_t raw_size)
{
	struct host_call *call = (struct host_call *)base;
	call->answer.json = result ? json_dumps(result, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	json_decref(result);
	take_raw(call, raw, raw_size);
}

static void host_answer_text(struct cell__call *base, const char *result, const void *raw, size_t raw_size)
{
	struct host_call *call = (struct host_call *)base;
	call->answer.json = cell__strdup(result);
	take_raw(call, raw, raw_size);
}

static void host_fail(struct cell__call *base, int code, const char *type, const char *message)
{
	(void)type;
	struct host_call *call = (struct host_call *)base;
	call->failed = true;
	cell_fail(&call->err, code, 0, "%s", message);
	call->answer.message = cell__strdup(message);
	end_host_call(call);
}

static void host_progress(struct cell__call *base, const char *line, size_t size)
{
	struct host_call *call = (struct host_call *)base;
	cell__waiter_lock(&call->waiter);
	/* Memory that is gone costs a line of progress. */
	(void)cell__buf_add(&call->lines, line, size + 1);
	cell__waiter_set_done(&call->waiter, true);
	cell__waiter_unlock(&call->waiter);
}

static void host_lend(struct cell__call *base, struct cell__lent_work *work)
{
	struct host_call *call = (struct host_call *)base;
	cell__waiter_lock(&call->waiter);
	call->work = work;
	cell__waiter_set_done(&call->waiter, true);
	cell__waiter_unlock(&call->waiter);
}

static void end_work(void *arg)
{
	struct cell__lent_work *work = arg;
	work->done(work);
}

/* Also when the call was cancelled in the meantime: the work belongs to others. */
static void do_work(struct host_call *call)
{
	cell__waiter_lock(&call->waiter);
	struct cell__lent_work *work = cell__take_ptr(call->work);
	cell__waiter_unlock(&call->waiter);
	if (!work)
		return;
	work->run(work);
	cell__loop_call(cell__space_engine(call->space)->loop, end_work, work);
}

/* Hands lines over; false when the call continues. Work that was lent since do_work() must not be lost: it counts as not over. */
static bool take_lines(struct host_call *call)
{
	cell__waiter_lock(&call->waiter);
	CELL_AUTO_BUF struct cell__buf lines = call->lines;
	call->lines = (struct cell__buf)CELL_BUF_INIT;
	bool over = call->over && !call->work;
	cell__waiter_set_done(&call->waiter, call->over || call->work);
	cell__waiter_unlock(&call->waiter);
	for (size_t at = 0; at < lines.size; at += strlen(lines.data + at) + 1)
		cell__space_progress(call->space, lines.data + at);
	return over;
}

static void do_call(struct cell__task *task)
{
	struct host_call *call = (struct host_call *)((char *)task - offsetof(struct host_call, task));
	call->started = true;
	if (call->cancelled)
		host_fail(&call->base, CELL_E_CANCELLED, "", "the operation was cancelled");
	else if (call->session)
		cell__space_engine(call->space)->session_ops->call(call->session, call->base.principal, &call->base);
	else
		cell__space_submit(call->space, call->base.principal, &call->base);
}

/* ---- cancelling ---- */

struct cell_canceller *cell_canceller_create(void)
{
	struct cell_canceller *canceller = cell__alloc(1, sizeof *canceller);
	if (canceller)
		pthread_mutex_init(&canceller->lock, NULL);
	return canceller;
}

void cell_canceller_destroy(struct cell_canceller *canceller)
{
	if (!canceller)
		return;
	pthread_mutex_destroy(&canceller->lock);
	free(canceller);
}

static bool is_over(struct host_call *call)
{
	cell__waiter_lock(&call->waiter);
	bool over = call->over;
	cell__waiter_unlock(&call->waiter);
	return over;
}

static void do_cancel(void *arg)
{
	struct cell_canceller *canceller = arg;
	pthread_mutex_lock(&canceller->lock);
	struct host_call *call = canceller->call;
	if (call && !call->started) {
		call->cancelled = true;
	} else if (call && !is_over(call) && call->base.cancel) {
		/* Work that cannot be stopped is short, and ends by itself. */
		call->base.cancel(&call->base);
		host_fail(&call->base, CELL_E_CANCELLED, "", "the operation was cancelled");
	}
	pthread_mutex_unlock(&canceller->lock);
}

void cell_canceller_cancel(struct cell_canceller *canceller)
{
	if (!canceller)
		return;
	pthread_mutex_lock(&canceller->lock);
	struct cell__loop *loop = canceller->call ? cell__space_engine(canceller->call->space)->loop : NULL;
	canceller->cancelled = true;
	pthread_mutex_unlock(&canceller->lock);
	if (loop)
		cell__loop_call(loop, do_cancel, canceller);
}

/* False: it was cancelled before. */
static bool set_call(struct cell_canceller *canceller, struct host_call *call)
{
	if (!canceller)
		return true;
	pthread_mutex_lock(&canceller->lock);
	canceller->call = call;
	bool cancelled = canceller->cancelled;
	pthread_mutex_unlock(&canceller->lock);
	return !cancelled;
}

void cell_answer_finish(struct cell_answer *answer)
{
	struct cell_answer all = CELL_ANSWER_INIT, none = CELL_ANSWER_INIT;
	if (!answer || cell__sized_read(&all, sizeof all, answer, "cell_answer", NULL) < 0)
		return;
	free(all.json);
	free(all.raw);
	free(all.message);
	cell__sized_write(answer, &none, sizeof none);
}

static int wait_for(const struct cell__asking_for *who, const char *method, const char *args_json, const void *raw, size_t raw_size,
		    struct cell_canceller *canceller, struct cell_answer *ret_answer, struct cell_error *err)
{
	struct cell_space *space = who->space;
	if (cell__engine_may_wait(cell__space_engine(space), "cell_space_call", err) < 0)
		return -1;
	json_error_t problem;
	json_t *args = json_loads(args_json ? args_json : "{}", JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
	if (!json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of %.60s are not a JSON object", method);
	}
	struct host_call call = {
		.base = { .method = method,
			  .args = args,
			  .raw = raw,
			  .raw_size = raw_size,
			  .session_id = "",
			  .principal = who->principal,
			  .client = who->client,
			  .work = who->work,
			  .answer = host_answer,
			  .answer_text = host_answer_text,
			  .fail = host_fail,
			  .lend = host_lend,
			  .progress = cell__space_progress(space, NULL) ? host_progress : NULL },
		.task.fn = do_call,
		.space = space,
		.session = who->session,
	};
	struct cell__task *task = &call.task;
	cell__waiter_init(&call.waiter);
	call.cancelled = !set_call(canceller, &call);
	do {
		cell__loop_do(cell__space_engine(space)->loop, task, &call.waiter);
		task = NULL;
		do_work(&call);
	} while (!take_lines(&call));
	set_call(canceller, NULL);
	cell__waiter_finish(&call.waiter);
	json_decref(args);
	if (call.failed && err)
		*err = call.err;
	call.answer.size = sizeof call.answer;
	*ret_answer = call.answer;
	return call.failed ? -1 : 0;
}

int cell__space_wait(struct cell_space *space, const struct cell__principal *principal, const char *method, const char *args_json,
		     const void *raw, size_t raw_size, struct cell_canceller *canceller, struct cell_answer *ret_answer,
		     struct cell_error *err)
{
	return wait_for(&(struct cell__asking_for){ .space = space, .principal = principal }, method, args_json, raw, raw_size, canceller,
			ret_answer, err);
}

int cell_space_call(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size, char **ret_json,
		    void **ret_raw, size_t *ret_raw_size, struct cell_error *err)
{
	if (cell__require(err, space, method, ret_json) < 0)
		return -1;
	if ((ret_raw && cell__require(err, ret_raw_size) < 0) || (raw_size > 0 && cell__require(err, raw) < 0))
		return -1;
	struct cell_answer answer = CELL_ANSWER_INIT;
	int rc = cell__space_wait(space, &cell__principal_host, method, args_json, raw, raw_size, NULL, &answer, err);
	if (rc == 0) {
		*ret_json = cell__take_ptr(answer.json);
		if (ret_raw) {
			*ret_raw = cell__take_ptr(answer.raw);
			*ret_raw_size = answer.raw_size;
		}
	}
	cell_answer_finish(&answer);
	return rc;
}

int cell_space_call_ex(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size,
		       struct cell_answer *ret_answer, struct cell_error *err)
{
	if (cell__require(err, space, method, ret_answer) < 0)
		return -1;
	return cell_space_call_with(space, method, args_json, raw, raw_size, NULL, ret_answer, err);
}

int cell__space_answer_for(const struct cell__asking_for *who, const char *method, const char *args_json, const void *raw, size_t raw_size,
			   struct cell_canceller *canceller, struct cell_answer *ret_answer, struct cell_error *err)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error why = { 0 };
	if (cell__sized_check(ret_answer, "cell_answer", err) < 0 || (raw_size > 0 && cell__require(err, raw) < 0))
		return -1;
	int rc = wait_for(who, method, args_json, raw, raw_size, canceller, &answer, &why);
	if (rc < 0 && !answer.message)
		answer.message = cell__strdup(why.msg);
	if (rc < 0 && err)
		*err = why;
	cell__sized_write(ret_answer, &answer, sizeof answer);
	/* Free members that the program's struct has no room for. */
	if (!cell__sized_has(ret_answer, json))
		free(answer.json);
	if (!cell__sized_has(ret_answer, raw))
		free(answer.raw);
	if (!cell__sized_has(ret_answer, message))
		free(answer.message);
	return rc;
}

int cell_space_call_with(struct cell_space *space, const char *method, const char *args_json, const void *raw, size_t raw_size,
			 struct cell_canceller *canceller, struct cell_answer *ret_answer, struct cell_error *err)
{
	if (cell__require(err, space, method, ret_answer) < 0)
		return -1;
	struct cell__asking_for who = { .space = space, .principal = &cell__principal_host };
	return cell__space_answer_for(&who, method, args_json, raw, raw_size, canceller, ret_answer, err);
}
