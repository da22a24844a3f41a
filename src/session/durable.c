/*
 * Saving a session to a folder (durable/durable.h), and waking it again.
 *
 *     save   between two cells: kernel ── point (a file) ──▶ pool: writes it ──▶ the kernel is ended, the session is asleep
 *     wake   the next use: pool: reads it ──▶ a fresh kernel, confined as every other, continues from it
 *
 * A session that is asleep has no kernel, and is otherwise as it was; another engine can have it once this one has closed it.  While it is
 * saved no cell starts.  A save that fails changes nothing.
 */
#define _GNU_SOURCE
#include "layer/layer.h"
#include "session/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

/* ---- the end of a saving ---- */

static json_t *list_left(const json_t *left)
{
	json_t *list = json_array(), *entry;
	size_t i;
	json_array_foreach(left, i, entry) {
		const char *kind = json_string_value(json_array_get(entry, 0)), *name = json_string_value(json_array_get(entry, 1));
		json_t *variables = json_array_get(entry, 2), *variable;
		size_t k;
		if (!kind || !name || !json_is_array(variables))
			continue;
		json_t *item = json_pack("{s:s, s:s, s:[]}", "kind", kind, "name", name, "variables");
		json_array_foreach(variables, k, variable)
			if (json_is_string(variable))
				json_array_append(json_object_get(item, "variables"), variable);
		json_array_append_new(list, item);
	}
	return list;
}

static json_t *list_points(const struct cell__saving *saving)
{
	json_t *list = json_array();
	for (size_t i = 0; i < saving->memories.n_points; i++)
		json_array_append_new(list, json_string(saving->memories.points[i].name));
	return list;
}

static json_t *describe(const struct cell__saving *saving)
{
	const struct cell_session *session = saving->waiting.session;
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "session_id", session->id, "form", saving->portable ? "portable" : "image",
			 "bytes", (json_int_t)saving->sum.bytes, "stored_bytes", (json_int_t)saving->sum.stored, "cells",
			 (json_int_t)saving->cells, "points", list_points(saving), "not_carried", list_left(saving->left));
}

/* The last descriptor of a large memory: Linux takes its time to free that. */
struct closing {
	uv_work_t work;
	struct cell__memories memories;
};

static void do_close(uv_work_t *work)
{
	struct closing *closing = work->data;
	cell__memories_close(&closing->memories);
}

static void handle_closed(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	free(work->data);
}

/* Not on the loop's thread, and nobody waits for it. */
static void close_later(struct cell_session *session, struct cell__memories *memories)
{
	struct closing *closing = cell__alloc(1, sizeof *closing);
	if (!closing) {
		cell__memories_close(memories);
		return;
	}
	closing->memories = *memories;
	closing->work.data = closing;
	*memories = (struct cell__memories)CELL_MEMORIES_INIT;
	uv_queue_work(cell__loop_uv(session->engine->loop), &closing->work, do_close, handle_closed);
}

/* The first of the list has ended; the next may begin. */
static void end_saving(struct cell__saving *saving, const struct cell_error *err)
{
	struct cell_session *session = saving->waiting.session;
	struct cell_error failure = { 0 };
	session->savings = saving->next;
	json_t *answer = err ? NULL : describe(saving);
	close_later(session, &saving->memories); /* the kernel's own descriptors are gone */
	if (!err && (!answer || !(saving->answer = json_dumps(answer, JSON_COMPACT))))
		cell_fail(&failure, CELL_E_NOMEM, 0, "out of memory for a saved session");
	if (answer) {
		json_t *news = json_pack("{s:s}", "kind", saving->stays ? "saved" : "hibernated");
		json_object_update(news, answer);
		cell__branch_tell(session, news);
	}
	json_decref(answer);
	json_decref(cell__take_ptr(saving->left));
	cell__session_end_waiting(&saving->waiting, err ? err : failure.code ? &failure : NULL);
	if (session->close_waits && !session->savings)
		cell__session_close_now(session);
}

/* ---- on the pool ---- */

static int describe_session(const struct cell__saving *saving, struct cell__saved *saved, struct cell_error *err)
{
	const struct cell_session *session = saving->waiting.session;
	const struct cell__options *options = &session->options;
	struct utsname machine;
	struct timespec now;
	uname(&machine);
	clock_gettime(CLOCK_REALTIME, &now);
	saved->owner = cell__strdup(options->saved_owner ? options->saved_owner : "");
	saved->workspace = cell__strdup(options->cwd);
	saved->executor = cell__strdup(session->executor->name);
	saved->python = cell__strdup(options->python);
	saved->preload = cell__strdup(options->preload);
	saved->build = cell__strdup(saving->portable ? CELL_SAVED_PORTABLE : CELL_VERSION);
	saved->machine = cell__strdup(machine.machine);
	saved->cells = saving->cells;
	saved->state_id = saving->state_id;
	saved->saved_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	saved->notes = options->saved_notes ? json_loads(options->saved_notes, 0, NULL) : json_object();
	saved->left = saving->left ? json_incref(saving->left) : json_array();
	if (!saved->owner || !saved->workspace || !saved->executor || !saved->python || !saved->preload || !saved->build ||
	    !saved->machine || !saved->notes || !saved->left)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	return 0;
}

/* ---- the lease ---- */

struct losing {
	struct cell__task task;
	struct cell_engine *engine;
	struct cell_session *session; /* it may be gone */
	char id[33];
};

void cell__durable_lost(struct cell_session *session)
{
	if (session->closing || session->broken.code)
		return;
	cell_fail(&session->broken, CELL_E_CONFLICT, 0,
		  "the session %s is not this program's any more: its lease could not be renewed in time, or another program has it",
		  session->id);
	cell__branch_tell(session, json_pack("{s:s, s:s}", "kind", "lost", "session_id", session->id));
	(void)cell__branch_drop(session, NULL);
	if (session->slot)
		cell__slot_leave(session, 0);
	if (session->keeper && session->keeper->lost)
		session->keeper->lost(session->keeper_arg);
	if (session->current && !session->current->started && !session->current->ending)
		cell__outcome_fail(session->current, &session->broken); /* goes on to cell__session_advance() */
	else
		cell__session_advance(session);
}

static void do_lose(struct cell__task *task)
{
	struct losing *losing = (struct losing *)task;
	struct cell_session *session = losing->engine->sessions;
	while (session && (session != losing->session || strcmp(session->id, losing->id) != 0))
		session = session->next;
	if (session)
		cell__durable_lost(session);
	free(losing);
}

/* On a thread that watches leases.  The session lives, because its place does. */
static void handle_lost(void *arg)
{
	struct cell_session *session = arg;
	struct losing *losing = cell__alloc(1, sizeof *losing);
	if (!losing)
		return; /* its next cell or save sees it */
	*losing = (struct losing){ .task.fn = do_lose, .engine = session->engine, .session = session };
	memcpy(losing->id, session->id, sizeof losing->id);
	cell__loop_post(session->engine->loop, &losing->task);
}

static int open_place(struct cell_session *session, const char *id, bool creates, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	const struct cell__lease_host host = { .name = options->saved_host,
					       .url = options->saved_url,
					       .lease_ms = options->saved_lease_ms,
					       .lost = handle_lost,
					       .arg = session };
	return cell__durable_open_as(options->saved_dir, id, options->saved_key, creates, &host, &session->durable, err);
}

static void do_take(uv_work_t *work)
{
	struct cell_session *session = work->data;
	session->take_err = (struct cell_error){ 0 };
	(void)cell__durable_take(session->durable, &session->take_err);
}

static void handle_taken(uv_work_t *work, int status)
{
	struct cell_session *session = work->data;
	(void)status; /* never cancelled */
	session->taking = false;
	session->filing--;
	if (session->take_err.code && session->current && !session->current->started && !session->current->ending)
		cell__outcome_fail(session->current, &session->take_err);
	cell__session_advance(session);
}

bool cell__durable_may_run(struct cell_session *session)
{
	if (!session->durable || session->mother || cell__durable_holds(session->durable))
		return true;
	if (!cell__durable_is_released(session->durable)) {
		cell__durable_lost(session);
		return false;
	}
	/* It was reset while it slept: its kernel is a new one, under the id that others may have woken since. */
	if (!session->taking && !session->filing) {
		session->taking = true;
		session->filing++;
		session->place_work.data = session;
		uv_queue_work(cell__loop_uv(session->engine->loop), &session->place_work, do_take, handle_taken);
	}
	return false;
}

/* Waits for a storage. */
static void do_leave(uv_work_t *work)
{
	struct cell_session *session = work->data;
	struct cell__durable *durable = cell__take_ptr(session->durable);
	if (session->forgets)
		(void)cell__durable_remove(durable, NULL);
	else
		cell__durable_close(durable);
}

static void handle_left(uv_work_t *work, int status)
{
	struct cell_session *session = work->data;
	(void)status; /* never cancelled */
	session->place_left(session);
}

void cell__durable_leave(struct cell_session *session, void (*done)(void *session))
{
	session->place_left = done;
	session->place_work.data = session;
	uv_queue_work(cell__loop_uv(session->engine->loop), &session->place_work, do_leave, handle_left);
}

static void do_release(uv_work_t *work)
{
	struct cell__saving *saving = work->data;
	struct cell__durable *durable = saving->waiting.session->durable;
	cell__memories_let_go(&saving->memories);
	cell__durable_rest(durable);
	cell__durable_release(durable);
}

static void handle_released(uv_work_t *work, int status)
{
	struct cell__saving *saving = work->data;
	struct cell_session *session = saving->waiting.session;
	(void)status; /* never cancelled */
	saving->releases = false;
	session->filing--;
	cell__session_advance(session);
}

static int open_for(struct cell__saving *saving, struct cell_error *err)
{
	struct cell_session *session = saving->waiting.session;
	const struct cell__options *options = &session->options;
	if (!session->durable) {
		if (open_place(session, session->id, true, err) < 0)
			return -1;
		saving->opened = true;
	}
	cell__durable_settings(session->durable, options->saved_compress, !options->saved_unsynced);
	return 0;
}

static void do_save(uv_work_t *work)
{
	struct cell__saving *saving = work->data;
	struct cell_session *session = saving->waiting.session;
	struct cell__saved saved = { 0 };
	if (open_for(saving, &saving->err) < 0)
		return;
	if (saving->err.code || (saving->frozen && cell__frozen_pack(saving->frozen, &saving->memories.layer_fd, &saving->err) < 0) ||
	    cell__durable_pack_points(saving, &saving->err) < 0 || describe_session(saving, &saved, &saving->err) < 0)
		cell__saved_finish(&saved);
	else
		(void)cell__durable_save(session->durable, &saved, &saving->memories, &saving->sum, &saving->err);
	if (saving->err.code && saving->opened)
		cell__durable_close(cell__take_ptr(session->durable));
}

static void handle_saved(uv_work_t *work, int status)
{
	struct cell__saving *saving = work->data;
	struct cell_session *session = saving->waiting.session;
	(void)status; /* never cancelled */
	saving->writing = false;
	saving->written = true;
	session->filing--;
	session->freezing -= !saving->stays;
	if (saving->err.code == 0) {
		session->saved_cells = saving->cells + 1;
		session->saved_state_id = saving->state_id;
		session->saved_era = saving->era;
	}
	saving->releases = saving->err.code == 0 && saving->rests && !session->closing;
	cell__durable_leave_points(saving);
	if (saving->kernel)
		session->executor->close(saving->kernel, 0); /* ends in handle_exited() */
	if (saving->err.code == 0 && !saving->stays && !session->closing && session->slot) {
		(void)cell__branch_drop(session, NULL);
		uv_timer_stop(&session->timer);
		cell__slot_leave(session, 0);
		session->asleep = true;
	}
	if (saving->err.code == CELL_E_CONFLICT && session->durable)
		cell__durable_lost(session);
	cell__session_advance(session);
}

/* The point is gone, and so is the kernel that was saved: its process is freed.  True: the saving has ended. */
static bool finish(struct cell_session *session)
{
	struct cell__saving *saving = session->savings;
	if (!saving || !saving->written || saving->following || saving->freezes || saving->kernel || saving->points_open > 0 ||
	    (session->asleep && session->leaving > 0))
		return false;
	if (saving->releases && session->asleep) {
		if (saving->releasing)
			return false;
		saving->releasing = true;
		session->filing++;
		uv_queue_work(cell__loop_uv(session->engine->loop), &saving->work, do_release, handle_released);
		return false;
	}
	cell__files_drop(session, cell__take_ptr(saving->frozen));
	cell__durable_forget_points(saving);
	end_saving(saving, saving->err.code ? &saving->err : NULL);
	return true;
}

/* ---- saves that hold up cells ---- */

/*
 * A save by `durable` holds up the next cell until the kernel's memory is taken, some milliseconds.  CREDIT cells in a row may wait for that;
 * in a longer row, one part in SHARE of the time is spent on it, and the cells between two saves are put off: until the next one may be
 * saved, or until nobody runs a cell for a moment, and at most until the next cell that ends LAG_MS after the first of them.  They would be
 * lost with the kernel or the machine, and none of their results says that it is saved.
 */
#define CREDIT 8
#define SHARE 10
#define PAUSE_MS 5
#define LAG_MS 250

static bool take_credit(struct cell_session *session)
{
	int64_t now = cell__now_us();
	if (session->credit_at_us == 0)
		session->credit = CREDIT;
	else
		session->credit += (double)(now - session->credit_at_us) / (double)(SHARE * (session->held_up_us + 1));
	if (session->credit > CREDIT)
		session->credit = CREDIT;
	session->credit_at_us = now;
	bool is_late = session->put_off && now - session->put_off_us > LAG_MS * 1000;
	if (session->credit < 1 && !is_late)
		return false;
	session->credit = session->credit < 1 ? 0 : session->credit - 1;
	return true;
}

/* ---- the point that is saved ---- */

static void start_writing(struct cell__saving *saving)
{
	struct cell_session *session = saving->waiting.session;
	struct cell__memory *own = &saving->memories.own;
	struct cell__image_files files;
	const json_t *left;
	session->executor->image(saving->kernel, &files, &left);
	for (size_t i = 0; i < files.n; i++) {
		own->fds[i] = fcntl(files.fds[i], F_DUPFD_CLOEXEC, 0);
		own->inodes[i] = files.inodes[i];
		own->live[i] = files.live[i];
	}
	own->n = files.n;
	saving->memories.process = files.process ? cell__process_memory_ref(files.process) : NULL;
	if (files.process && session->options.confined && session->options.confine.memory_bytes)
		cell__process_memory_limit(files.process, session->options.confine.memory_bytes);
	cell__durable_take_points(saving);
	saving->left = json_is_array(left) ? json_copy((json_t *)left) : json_array();
	cell__durable_add_left(saving, saving->left);
	saving->work.data = saving;
	saving->rests = !saving->stays && !session->children;
	saving->writing = true;
	session->filing++;
	uv_queue_work(cell__loop_uv(session->engine->loop), &saving->work, do_save, handle_saved);
	if (saving->stays) {
		session->freezing--; /* the memory is taken: the next cell may begin */
		session->held_up_us = cell__now_us() - saving->since_us;
		cell__session_advance(session);
	}
}

/* ---- while the kernel writes its memory ---- */

static void do_follow(uv_work_t *work)
{
	struct cell__saving *saving = work->data;
	struct cell_session *session = saving->waiting.session;
	/* A failure is that of the save, which tries the same again. */
	if (open_for(saving, NULL) == 0)
		cell__durable_follow(session->durable, saving->memories.early);
}

/* Memory and files are those of one moment: no cell runs until both are taken. */
void cell__durable_go_on(struct cell__saving *saving)
{
	if (saving->is_taken && saving->kernel && !saving->writing && !saving->written && !saving->following && !saving->freezes &&
	    saving->points_waiting == 0)
		start_writing(saving);
	else
		cell__session_advance(saving->waiting.session);
}

static void handle_files_taken(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	struct cell__saving *saving = arg;
	saving->freezes = false;
	saving->frozen = frozen;
	if (err)
		saving->err = *err; /* do_save() sees it */
	cell__durable_go_on(saving);
}

static void handle_followed(uv_work_t *work, int status)
{
	struct cell__saving *saving = work->data;
	struct cell_session *session = saving->waiting.session;
	(void)status; /* never cancelled */
	saving->following = false;
	session->filing--;
	cell__durable_go_on(saving);
}

/* The disk has a part of a large memory when the kernel has written the rest. */
static void follow(struct cell__saving *saving)
{
	struct cell_session *session = saving->waiting.session;
	struct cell__image_files files;
	const json_t *left;
	if (saving->stays || saving->portable || session->options.saved_key || session->options.saved_compress)
		return;
	session->executor->image(saving->kernel, &files, &left);
	if (files.process)
		return;
	int fd = fcntl(files.fds[0], F_DUPFD_CLOEXEC, 0);
	saving->memories.early = fd >= 0 ? cell__early_create(fd) : NULL;
	if (!saving->memories.early) {
		cell__close_fd(&fd);
		return;
	}
	saving->following = true;
	saving->follow.data = saving;
	session->filing++;
	uv_queue_work(cell__loop_uv(session->engine->loop), &saving->follow, do_follow, handle_followed);
}

static void stop_following(struct cell__saving *saving)
{
	if (saving->following)
		atomic_store(&saving->memories.early->stage, CELL_PIECES_COMPLETE);
}

static void handle_ready(void *owner)
{
	struct cell__saving *saving = owner;
	saving->is_taken = true;
	stop_following(saving);
	cell__durable_go_on(saving);
}

static const char *handle_call(void *owner, const struct cell__asked *asked)
{
	(void)owner, (void)asked;
	return "a call of a kernel that runs nothing";
}

/* Before the pool has begun: it could not be made.  After it has ended: as asked. */
static void handle_exited(void *owner, const struct cell__exit *how)
{
	struct cell__saving *saving = owner;
	struct cell_session *session = saving->waiting.session;
	saving->kernel = NULL;
	if (saving->writing)
		return; /* handle_saved() goes on */
	stop_following(saving);
	if (!saving->written)
		cell__durable_leave_points(saving);
	if (!saving->written && session->options.saved_auto && !saving->portable && !session->layer && how->error.code == CELL_E_FORK &&
	    !session->closing) {
		session->freezing--;
		saving->portable = true;
		saving->started = false; /* once more, as objects */
		cell__session_advance(session);
		return;
	}
	if (!saving->written) {
		session->freezing--;
		saving->err = how->error;
		if (saving->err.code == 0)
			cell_fail(&saving->err, CELL_E_KERNEL, 0, "the kernel ended before it was saved");
	}
	saving->written = true;
	cell__session_advance(session);
}

static const struct cell__kernel_events saving_events = {
	.ready = handle_ready,
	.output = cell__ignore_output,
	.display = cell__ignore_display,
	.result = cell__ignore_result,
	.call = handle_call,
	.exited = handle_exited,
};

/* ---- requests ---- */

static int check(const struct cell_session *session, struct cell_error *err)
{
	if (session->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	if (!session->executor->image)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" cannot save a session; \"subprocess\" and \"sandbox\" can", session->executor->name);
	if (!session->options.saved_dir)
		return cell_fail(err, CELL_E_INVALID, 0, "the session has no folder to be saved in (saved_dir)");
	if (session->layer && (!session->options.confined || session->options.saved_portable))
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "a session with a layer over its workspace is saved in a sandbox and as an image only; "
				 "commit or discard it, and use another workspace_mode");
	if (session->mother)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "a child of a session is not saved; save its parent");
	return 0;
}

static void start(struct cell_session *session, struct cell__saving *saving)
{
	saving->started = true;
	saving->is_taken = false;
	session->put_off = 0;
	saving->cells = session->cells;
	saving->state_id = session->state_id;
	saving->era = session->era;
	cell__early_destroy(cell__take_ptr(saving->memories.early)); /* of an image that could not be */
	session->freezing++;
	if (session->executor->fork(session->slot->kernel, session->id, session->layer,
				    CELL__FORK_DROP | CELL__FORK_POINT | CELL__FORK_SAVE |
					    (saving->stays ? 0 : CELL__FORK_ENDS | CELL__FORK_READS) |
					    (saving->portable ? CELL__FORK_PORTABLE : 0),
				    &saving_events, saving, &saving->kernel, &saving->err) == 0) {
		follow(saving);
		saving->freezes = session->layer && cell__files_freeze(session, handle_files_taken, saving, &saving->err) == 0;
		cell__durable_start_points(saving);
		return;
	}
	session->freezing--;
	end_saving(saving, &saving->err);
}

void cell__durable_start_waiting(struct cell_session *session)
{
	struct cell__saving *saving = session->savings;
	const struct cell__run *run = session->current;
	if (finish(session))
		saving = session->savings;
	if (!saving || saving->started || saving->following || saving->freezes || (run && run->started && !run->ending) ||
	    session->freezing)
		return;
	if (session->asleep && !session->slot && !session->preparing) {
		end_saving(saving, NULL); /* it is saved already */
		cell__session_advance(session);
	} else if (session->slot && session->slot->ready && session->slot->gate.n_parked > 0) {
		cell_fail(&saving->err, CELL_E_BUSY, 0, "a call of the session waits for an approval");
		end_saving(saving, &saving->err);
	} else if (session->slot && session->slot->ready) {
		if (!cell__durable_waits_for_points(saving))
			start(session, saving);
	} else if (!session->slot && !session->preparing) {
		cell_fail(&saving->err, CELL_E_KERNEL, 0, "the session has no kernel, and so no state to save");
		end_saving(saving, &saving->err);
	}
}

void cell__durable_end_waiting(struct cell_session *session, const struct cell_error *err)
{
	struct cell__saving **at = &session->savings;
	(void)finish(session);
	if (*at && (*at)->started)
		at = &(*at)->next; /* it ends by itself */
	struct cell__saving *saving = cell__take_ptr(*at);
	while (saving) {
		struct cell__saving *next = saving->next;
		cell__session_end_waiting(&saving->waiting, err);
		saving = next;
	}
}

void cell__session_do_save(struct cell__task *task)
{
	struct cell__saving *saving = (struct cell__saving *)task;
	struct cell_session *session = saving->waiting.session;
	struct cell__saving **end = &session->savings;
	if (check(session, &saving->err) < 0) {
		cell__session_end_waiting(&saving->waiting, &saving->err);
		return;
	}
	saving->memories.layer_fd = -1;
	saving->portable = session->options.saved_portable;
	saving->next = NULL;
	while (*end)
		end = &(*end)->next;
	*end = saving;
	cell__session_advance(session);
}

/* ---- by itself, after each cell ---- */

static void handle_own_saved(struct cell__waiting *waiting)
{
	struct cell__saving *saving = (struct cell__saving *)waiting;
	struct cell_session *session = waiting->session;
	if (waiting->failed && !session->closing)
		cell__branch_tell(session, json_pack("{s:s, s:s, s:s}", "kind", "not_saved", "message", waiting->err.msg, "code",
						     cell_code_word(waiting->err.code)));
	if (saving->run) {
		saving->run->result->durable = waiting->failed ? 1 : 2;
		if (waiting->failed)
			cell__result_add_notice(saving->run->result, waiting->err.msg);
		cell__run_deliver(saving->run);
	}
	free(saving->answer);
	free(saving);
}

static bool save_own(struct cell_session *session, struct cell__run *run)
{
	struct cell__saving *saving = cell__alloc(1, sizeof *saving);
	if (!saving)
		return false;
	*saving = (struct cell__saving){ .waiting = { .session = session, .done = handle_own_saved }, .stays = true };
	saving->run = session->options.durable == CELL_DURABLE_RESULTS ? run : NULL;
	saving->since_us = cell__now_us();
	bool waits = saving->run != NULL;
	cell__session_do_save(&saving->waiting.task); /* may end it at once */
	return waits;
}

/* The kernel has ended, or the session does: nothing is new. */
static bool has_state(const struct cell_session *session)
{
	return !session->closing && !session->mother && session->slot && session->slot->ready && !session->slot->leaving;
}

void cell__durable_catch_up(struct cell_session *session)
{
	if (session->put_off && has_state(session) && !session->current && !session->first)
		(void)save_own(session, NULL);
}

static void handle_pause(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	if (session->put_off && session->savings && !session->current)
		uv_timer_start(timer, handle_pause, PAUSE_MS, 0); /* the one before is still being written */
	else
		cell__durable_catch_up(session);
}

bool cell__durable_after_cell(struct cell_session *session, struct cell__run *run)
{
	if (!session->options.durable)
		return false;
	if (run)
		run->result->durable = 1;
	bool is_saved = session->saved_cells == session->cells + 1 && session->saved_era == session->era;
	if (!has_state(session) || (run ? !run->started : is_saved)) /* it has just been woken */
		return false;
	if (run && session->options.durable != CELL_DURABLE_RESULTS && !take_credit(session)) {
		if (session->put_off++ == 0)
			session->put_off_us = cell__now_us();
		uv_timer_start(&session->timer, handle_pause, PAUSE_MS, 0); /* between two cells it is nobody's */
		return false;
	}
	return save_own(session, run);
}

bool cell__durable_is_writing(const struct cell_session *session)
{
	return session->savings && session->savings->started && !session->savings->written;
}

bool cell__durable_is_due(const struct cell_session *session)
{
	for (const struct cell__saving *saving = session->savings; saving; saving = saving->next)
		if (saving->stays && !saving->started)
			return true;
	return false;
}

/* "cell 3 is lost, too: ...", of the cells that ended after the last save; "" if all were saved. */
static void tell_lost(const struct cell_session *session, uint64_t saved, uint64_t done, char *out, size_t size)
{
	char which[64];
	*out = '\0';
	if (done == saved)
		return;
	if (done == saved + 1)
		snprintf(which, sizeof which, "cell %llu is", (unsigned long long)done);
	else
		snprintf(which, sizeof which, "cells %llu to %llu are", (unsigned long long)(saved + 1), (unsigned long long)done);
	snprintf(out, size, "%s lost, too: %s; run them again (cells are counted from 1)", which,
		 done - saved == session->put_off ? "they came faster than they could be saved"
						  : "they were not saved, as their results said");
}

/* What is saved is of this session as it is since its last reset.  *ret_done: cells that have ended. */
static bool go_back(struct cell_session *session, uint64_t *ret_done, char *lost, size_t size)
{
	const struct cell__saving *saving = session->savings;
	const bool is_written = saving && saving->stays && saving->writing;
	uint64_t saved = is_written ? saving->cells + 1 : session->saved_cells;
	uint64_t done = session->cells - (session->current && session->current->started ? 1 : 0);
	if (!session->options.durable || session->closing || session->broken.code || session->slot || session->resets || !saved ||
	    (is_written ? saving->era : session->saved_era) != session->era || saved - 1 > done)
		return false;
	tell_lost(session, saved - 1, done, lost, size);
	*ret_done = done;
	session->cells = saved - 1;
	session->state_id = is_written ? saving->state_id : session->saved_state_id;
	session->put_off = 0;
	session->asleep = true;
	cell__branch_tell(session, json_pack("{s:s, s:I, s:I}", "kind", "restored", "cell", (json_int_t)session->cells, "lost_cells",
					     (json_int_t)(done - session->cells)));
	return true;
}

bool cell__durable_restore(struct cell_session *session)
{
	char lost[200];
	uint64_t done;
	if (!go_back(session, &done, lost, sizeof lost))
		return false;
	if (*lost && session->current)
		cell__result_add_notice(session->current->result, lost);
	return true;
}

void cell__durable_restore_idle(struct cell_session *session, const char *how)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char lost[200];
	uint64_t done;
	if (!go_back(session, &done, lost, sizeof lost))
		return;
	if (cell__buf_printf(&text, "between two cells %s; the session is as it was saved last%s%s", how, *lost ? "; " : "", lost) < 0)
		return;
	free(session->ended);
	session->ended = cell__buf_take(&text);
}

/* ---- waking ---- */

static int check_same(const char *what, const char *saved, const char *now, struct cell_error *err)
{
	if (strcmp(saved, now) == 0)
		return 0;
	return cell_fail(err, CELL_E_DIFFERS, 0, "the session was saved with another %s: %.70s, and this one is %.70s", what, saved, now);
}

static int check_state(const struct cell_session *session, const struct cell__saved *saved, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	struct utsname machine;
	uname(&machine);
	if (strcmp(saved->owner, options->saved_owner ? options->saved_owner : "") != 0)
		return cell__lease_fail_missing(err, saved->id);
	bool has_layer = cell__saved_memories(saved) < saved->n_own;
	if (has_layer != options->layered)
		return cell_fail(err, CELL_E_DIFFERS, 0,
				 has_layer ? "the session was saved with a layer over its workspace: use workspace_mode \"cow\""
					   : "the session was saved without a layer over its workspace: use another workspace_mode");
	if (cell__saved_is_portable(saved))
		return 0; /* what it needs is checked where it is read */
	if (check_same("machine type", saved->machine, machine.machine, err) < 0 ||
	    check_same("version of Workcell", saved->build, CELL_VERSION, err) < 0 ||
	    check_same("executor", saved->executor, options->executor->name, err) < 0 ||
	    check_same("interpreter", saved->python, options->python, err) < 0 ||
	    check_same("working directory", saved->workspace, options->cwd, err) < 0)
		return -1;
	return 0;
}

/*
 * A person may still have a call on the screen that the session made before it slept or its server died.  An answer to that one must not meet
 * another one, so no id is given twice.  What was saved may lack the newest calls: it is the clock that tells them apart.
 */
static uint64_t first_call_id(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int cell__durable_resume(struct cell_session *session, const char *id, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	const struct cell__saved *saved;
	if (!options->executor->image)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" cannot wake a session; \"subprocess\" and \"sandbox\" can", options->executor->name);
	if (!options->saved_dir)
		return cell_fail(err, CELL_E_INVALID, 0, "resume needs the folder of saved sessions (saved_dir)");
	if (options->layered && !options->confined)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "a session with a layer over its workspace is woken in a sandbox only");
	if (open_place(session, id, false, err) < 0)
		return -1;
	if (cell__durable_state(session->durable, &saved, err) < 0 || check_state(session, saved, err) < 0)
		return -1; /* the session is freed, and with it the place */
	strcpy(session->id, saved->id);
	session->cells = saved->cells;
	session->state_id = saved->state_id;
	session->next_call_id = first_call_id();
	session->asleep = true;
	return 0;
}

void cell__durable_wake(struct cell_session *session, struct cell__prepared *prepared)
{
	const struct cell__saved *saved;
	if (!session->asleep || prepared->err.code)
		return;
	/* It may be another one than before: others could have it since it went to sleep here. */
	if (cell__durable_load(session->durable, &prepared->woken, &prepared->err) == 0 &&
	    cell__durable_state(session->durable, &saved, &prepared->err) == 0 &&
	    (check_state(session, saved, &prepared->err) < 0 ||
	     (session->layer && cell__layer_unpack(session->layer, prepared->woken.layer_fd, &prepared->err) < 0) ||
	     cell__durable_unpack_points(session, prepared, &prepared->err) < 0))
		cell__memories_close(&prepared->woken);
}

void cell__durable_woken(struct cell_session *session)
{
	const struct cell__saved *saved;
	if (!session->asleep)
		return;
	session->asleep = false;
	/* It was read when the session was woken: no look at the disk. */
	json_decref(session->left);
	session->left = NULL;
	if (cell__durable_state(session->durable, &saved, NULL) == 0) {
		session->left = list_left(saved->left);
		session->cells = saved->cells;
		session->state_id = session->saved_state_id = saved->state_id;
		session->state_base = 0; /* others may have had it */
		session->saved_cells = saved->cells + 1;
		session->saved_era = session->era;
	}
	cell__durable_keep_points(session);
	cell__branch_tell(session, json_pack("{s:s, s:s, s:I, s:O*}", "kind", "woken", "session_id", session->id, "cells",
					     (json_int_t)session->cells, "not_carried", session->left));
}

void cell__durable_tell_run(struct cell_session *session, struct cell__run *run)
{
	json_t *left = cell__take_ptr(session->left), *thing, *variable;
	CELL_AUTO_FREE char *ended = cell__take_ptr(session->ended);
	size_t i, k;
	if (ended)
		cell__result_add_notice(run->result, ended);
	json_array_foreach(left, i, thing) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		(void)cell__buf_printf(&text, "not carried when the session was saved: %s %s",
				       json_string_value(json_object_get(thing, "kind")),
				       json_string_value(json_object_get(thing, "name")));
		json_array_foreach(json_object_get(thing, "variables"), k, variable)
			(void)cell__buf_printf(&text, "%s%s", k ? ", " : " of ", json_string_value(variable));
		if (text.data) {
			cell__utf8_make_plain(text.data); /* names are the code's */
			cell__result_add_notice(run->result, text.data);
		}
	}
	json_decref(left);
}
