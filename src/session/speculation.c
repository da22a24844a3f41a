/*
 * Speculation: while a call of a tool waits for a person, a copy of the kernel goes on as if the call had been accepted.
 *
 *     a call waits, and its result can be supposed ──▶ a shadow is made; its kernel is a fork in the middle of the call
 *     the copy is ready ──▶ its link is paused, then it is answered with the supposed result, and goes on
 *     the call ends with that result      ──▶ the two exchange kernels, layers and quotas; the link goes on
 *     the call ends in any other way      ──▶ the copy is killed
 *     both                                ──▶ the shadow is closed
 *
 * A paused link is read no further.  So nothing of the copy leaves it before it is kept, whatever it does: output stays in its ring and pipes,
 * calls, displays and the result in its socket, all of which are bounded, and the copy waits when they are full.  A call of the copy is
 * performed when the host reads it.  Files are in a layer of its own.  What cannot be held back so (a writable workspace, a network) prevents it.
 *
 * A shadow is a session that no client knows: it owns what the copy has besides its kernel, and what its source had once the two were exchanged.
 */
#define _GNU_SOURCE
#include "session/session.h"

#include <string.h>
#include <time.h>

#include "spawn/proc.h"

#define TICK_MS 500 /* between two looks at the limits of a copy */

/* The result of a call, kept for the next one with the same arguments. */
struct cell__recorded {
	struct cell__recorded *next;
	char *key;
	json_t *result;
	char *raw;
	size_t raw_size;
};

/* Lives as long as its shadow. */
struct cell__speculation {
	struct cell__waiting waiting; /* first; its session is the shadow */
	struct cell_session *session; /* whose code speculates; NULL: it is kept or dropped */
	struct cell_session *origin;  /* the same, until the shadow is gone */
	uint32_t call_id, run_id;
	uint64_t request;  /* the number of the approval */
	json_t *result;    /* that is supposed */
	char *raw;
	size_t raw_size;
	bool running, kept;
	int64_t cpu_before_us; /* of the copy, when it went on */
	int64_t started_us;
	bool measuring;
};

struct measuring {
	uv_work_t work;
	struct cell_session *shadow;
	int64_t pids[2], bytes[2];
};

/* ---- results ---- */

static void free_recorded(struct cell__recorded *one)
{
	json_decref(one->result);
	free(one->key);
	free(one->raw);
	free(one);
}

void cell__speculation_forget(struct cell_session *session)
{
	while (session->recorded) {
		struct cell__recorded *next = session->recorded->next;
		free_recorded(session->recorded);
		session->recorded = next;
	}
}

static char *key_of(const struct cell__call *call)
{
	return call->args ? json_dumps(call->args, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
}

static struct cell__recorded **find_recorded(struct cell_session *session, const char *key)
{
	struct cell__recorded **at = &session->recorded;
	while (*at && strcmp((*at)->key, key) != 0)
		at = &(*at)->next;
	return at;
}

/* The latest comes first; memory that is gone, and results that are large, cost a speculation. */
static void record(struct cell_session *session, const struct cell__call *call, const json_t *result, const void *raw, size_t raw_size)
{
	CELL_AUTO_FREE char *key = key_of(call);
	CELL_AUTO_FREE char *text = json_dumps(result, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!key || !text)
		return;
	struct cell__recorded **at = find_recorded(session, key), *one = *at;
	if (one) {
		*at = one->next;
		free_recorded(one);
	}
	if (strlen(key) + strlen(text) + raw_size > CELL_LIMIT_SUPPOSED_BYTES)
		return;
	one = cell__alloc(1, sizeof *one);
	char *copy = cell__strndup(raw_size ? raw : "", raw_size);
	json_t *kept = json_deep_copy(result);
	if (!one || !copy || !kept) {
		free(one);
		free(copy);
		json_decref(kept);
		return;
	}
	*one = (struct cell__recorded){
		.next = session->recorded, .key = cell__take_ptr(key), .result = kept, .raw = copy, .raw_size = raw_size
	};
	session->recorded = one;
	size_t n = 0;
	for (at = &session->recorded; *at; at = &(*at)->next)
		if (++n > CELL_LIMIT_SUPPOSED) {
			free_recorded(cell__take_ptr(*at));
			break;
		}
}

/* What the code sees of an answer; NULL: bytes of several kinds. */
static json_t *value_of(const json_t *result, const char *raw, size_t raw_size)
{
	const char *form = json_string_value(json_object_get(result, "raw"));
	if (form && strcmp(form, "json") == 0)
		return json_loadb(raw, raw_size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (form && strcmp(form, "text") == 0)
		return json_stringn(raw, raw_size);
	return form ? NULL : json_incref(json_object_get(result, "value"));
}

/* Also in the order of keys, which the code sees. */
static bool is_supposed(const struct cell__speculation *spec, const json_t *result, const char *raw, size_t raw_size)
{
	json_t *real = value_of(result, raw, raw_size), *supposed = value_of(spec->result, spec->raw, spec->raw_size);
	bool same;
	if (real && supposed) {
		CELL_AUTO_FREE char *one = json_dumps(real, JSON_COMPACT | JSON_ENCODE_ANY);
		CELL_AUTO_FREE char *other = json_dumps(supposed, JSON_COMPACT | JSON_ENCODE_ANY);
		same = one && other && strcmp(one, other) == 0;
	} else {
		same = json_equal(result, spec->result) && raw_size == spec->raw_size &&
		       memcmp(raw_size ? raw : "", spec->raw, raw_size) == 0;
	}
	json_decref(real);
	json_decref(supposed);
	return same;
}

/* ---- whether it can be ---- */

const char *cell__speculation_obstacle(const struct cell_session *session)
{
	const struct cell__options *options = &session->options;
	if (!options->confined && !session->layer)
		return "the code can write to its workspace: open the session with workspace_mode \"cow\"";
	if (options->confined && options->confine.workspace == CELL_WORKSPACE_RW)
		return "the code can write to its workspace: use the workspace_mode \"cow\", \"ro\" or \"none\"";
	if (options->confined && options->confine.write.count > 0)
		return "the code can write to other folders of the policy";
	if (options->confined && options->confine.network != CELL_NET_NONE)
		return "the code has a network: its connections cannot be held back";
	return NULL;
}

static const char *obstacle_now(const struct cell__slot *slot)
{
	const struct cell_session *session = slot->session;
	const struct cell__run *run = cell__slot_run(slot);
	const char *obstacle = cell__speculation_obstacle(session);
	if (obstacle)
		return obstacle;
	if (!run || run->interrupt_asked || run->timed_out || run->cancelled || run->over)
		return "no cell runs, or it is being stopped";
	if (slot->calls.count != 1)
		return "other calls of the code are under way";
	if (session->layer && session->points)
		return "the session has points, which keep files of its layer";
	return NULL;
}

/* ---- the end of a copy ---- */

static void ignore_closed(void *arg)
{
	(void)arg;
}

static void tell(struct cell_session *session, const struct cell__speculation *spec, const char *state, const char *reason)
{
	json_t *news = json_pack("{s:s, s:s, s:I, s:s*}", "kind", "speculation", "state", state, "call",
				 (json_int_t)(spec ? spec->request : 0), "reason", reason);
	if (news && spec && spec->started_us)
		json_object_set_new(news, "ran_ms", json_integer((cell__now_us() - spec->started_us) / 1000));
	cell__branch_tell_as(session, &session->principal, news);
}

/* No exit handler runs in the kernel that goes, whichever it is. */
static void close_shadow(struct cell_session *shadow)
{
	uv_timer_stop(&shadow->timer);
	if (shadow->closing)
		return;
	if (shadow->slot)
		cell__slot_leave(shadow, 0);
	cell__session_close_on_loop(shadow, ignore_closed, NULL);
}

static void drop(struct cell__speculation *spec, const char *reason)
{
	struct cell_session *session = cell__take_ptr(spec->session), *shadow = spec->waiting.session;
	if (!session)
		return;
	session->speculation = NULL;
	session->engine->speculations.dropped++;
	if (!session->closing)
		tell(session, spec, "dropped", reason);
	close_shadow(shadow);
}

void cell__speculation_files_changed(struct cell_session *session)
{
	if (session->speculation)
		drop(session->speculation, "files of the session were changed from outside");
}

void cell__speculation_copy_ended(struct cell_session *shadow, const char *reason)
{
	if (shadow->shadows_for)
		drop(shadow->shadows_for, reason);
}

struct cell_session *cell__speculation_remove(struct cell_session *shadow)
{
	struct cell__speculation *spec = cell__take_ptr(shadow->shadows_for);
	if (!spec)
		return NULL;
	struct cell_session *origin = spec->origin;
	origin->shadows--;
	json_decref(spec->result);
	free(spec->raw);
	free(spec);
	return origin;
}

/* ---- limits ---- */

/* The CPU time of a process, without its path; 0: it is gone. */
static int64_t cpu_us(int64_t pid)
{
	clockid_t clock;
	struct timespec used;
	if (pid <= 0 || clock_getcpuclockid((pid_t)pid, &clock) != 0 || clock_gettime(clock, &used) < 0)
		return 0;
	return (int64_t)used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

static int64_t cpu_of(const struct cell__speculation *spec, const struct cell__kernel *copy)
{
	int64_t used = cpu_us(copy->executor->pid(copy)) - spec->cpu_before_us;
	return used > 0 ? used : 0;
}

static void do_measure(uv_work_t *work)
{
	struct measuring *measuring = work->data;
	for (int i = 0; i < 2; i++)
		measuring->bytes[i] = cell__proc_shared_bytes((pid_t)measuring->pids[i]);
}

static void handle_measured(uv_work_t *work, int status)
{
	struct measuring *measuring = work->data;
	struct cell_session *shadow = measuring->shadow;
	struct cell__speculation *spec = shadow->shadows_for;
	int64_t used = 0;
	(void)status; /* never cancelled */
	for (int i = 0; i < 2; i++)
		used += measuring->bytes[i] > 0 ? measuring->bytes[i] : 0;
	free(measuring);
	spec->measuring = false;
	if (spec->session && (uint64_t)used > shadow->options.confine.memory_bytes)
		drop(spec, "the copy and its source take more memory than the limit allows");
	shadow->filing--;
	cell__session_advance(shadow);
}

static void measure(struct cell__speculation *spec)
{
	struct cell_session *session = spec->session, *shadow = spec->waiting.session;
	struct measuring *measuring = cell__alloc(1, sizeof *measuring);
	if (!measuring)
		return; /* with the next tick */
	*measuring = (struct measuring){
		.shadow = shadow, .pids = { session->executor->pid(session->slot->kernel), session->executor->pid(shadow->slot->kernel) }
	};
	measuring->work.data = measuring;
	spec->measuring = true;
	shadow->filing++;
	uv_queue_work(cell__loop_uv(session->engine->loop), &measuring->work, do_measure, handle_measured);
}

/* The shadow's timer: it has no run. */
static void handle_tick(uv_timer_t *timer)
{
	struct cell_session *shadow = timer->data;
	struct cell__speculation *spec = shadow->shadows_for;
	struct cell_session *session = spec ? spec->session : NULL;
	if (!session || !session->slot || !shadow->slot)
		return;
	/* While the run's clock stands still, the time that the copy computes counts nevertheless. */
	if (session->clock_stopped && cpu_of(spec, shadow->slot->kernel) / 1000 >= (int64_t)session->clock_left_ms) {
		drop(spec, "the copy has used the time of the cell");
		return;
	}
	if (session->options.confined && session->options.confine.memory_bytes && !spec->measuring)
		measure(spec);
}

/* ---- the beginning ---- */

static int answer_copy(struct cell__speculation *spec, struct cell_error *err)
{
	struct cell_session *shadow = spec->waiting.session;
	struct cell__kernel *copy = shadow->slot->kernel;
	json_t *answer = json_pack("{s:O}", "result", spec->result);
	CELL_AUTO_FREE char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
	json_decref(answer);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	shadow->slot->paused = true;
	shadow->executor->pause(copy, true);
	spec->cpu_before_us = cpu_us(shadow->executor->pid(copy));
	return shadow->executor->reply(copy, spec->call_id, text, strlen(text), spec->raw, spec->raw_size, err);
}

static void handle_copied(struct cell__waiting *waiting)
{
	struct cell__speculation *spec = (struct cell__speculation *)waiting;
	struct cell_session *shadow = waiting->session;
	struct cell_error err = waiting->err;
	if (!spec->session)
		return; /* it was dropped meanwhile */
	if (waiting->failed || answer_copy(spec, &err) < 0) {
		drop(spec, err.msg);
		return;
	}
	spec->running = true;
	spec->started_us = cell__now_us();
	spec->session->engine->speculations.started++;
	uv_timer_start(&shadow->timer, handle_tick, TICK_MS, TICK_MS);
	tell(spec->session, spec, "started", NULL);
}

/* Nothing of it is in a client's reach, and nothing that it does is recorded. */
static struct cell_session *make_shadow(struct cell_session *session, struct cell__speculation *spec, struct cell_error *err)
{
	struct cell_fork_options opts = CELL_FORK_OPTIONS_INIT;
	struct cell_session *shadow = cell__session_make_fork(session, &opts, err);
	if (!shadow)
		return NULL;
	shadow->options.space = NULL;
	shadow->options.audit = NULL;
	shadow->options.policy = NULL;
	shadow->options.undo = 0;
	shadow->options.speculate = false;
	shadow->shadows_for = spec;
	shadow->branching = true;
	return shadow;
}

static int begin(struct cell__slot *slot, uint32_t call_id, uint64_t request, json_t *result, const char *raw, size_t raw_size,
		 struct cell_error *err)
{
	struct cell_session *session = slot->session;
	struct cell__speculation *spec = cell__alloc(1, sizeof *spec);
	if (!spec)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*spec = (struct cell__speculation){ .waiting.done = handle_copied,
					    .session = session,
					    .origin = session,
					    .call_id = call_id,
					    .request = request,
					    .raw = cell__strndup(raw_size ? raw : "", raw_size),
					    .raw_size = raw_size };
	struct cell_session *shadow = spec->raw ? make_shadow(session, spec, err) : NULL;
	if (!shadow) {
		free(spec->raw);
		free(spec);
		return -1;
	}
	spec->result = json_incref(result);
	spec->run_id = cell__slot_run(slot)->id;
	spec->waiting.session = shadow;
	session->speculation = spec;
	session->shadows++;
	cell__session_begin(shadow, &spec->waiting);
	if (shadow->resets && cell__branch_fork_now(session, shadow, CELL__FORK_HEIR | CELL__FORK_SPECULATE, err) < 0) {
		struct cell_error why = *err;
		cell__session_end_opening(shadow, &why); /* and it is dropped */
	}
	return 0;
}

void cell__speculation_call_waits(void *owner, struct cell__call *call, uint64_t id, const json_t *supposed)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell_error err = { .code = 0 };
	if (call->origin != &slot->calls || session->closing || slot->leaving || session->speculation)
		return;
	CELL_AUTO_FREE char *key = key_of(call);
	const struct cell__recorded *recorded = supposed || !key ? NULL : *find_recorded(session, key);
	if (!supposed && !recorded)
		return;
	const char *obstacle = obstacle_now(slot);
	if (obstacle) {
		session->engine->speculations.declined++;
		tell(session, &(struct cell__speculation){ .request = id }, "declined", obstacle);
		return;
	}
	if (recorded) {
		(void)begin(slot, cell__calls_id_of(call), id, recorded->result, recorded->raw, recorded->raw_size, &err);
		return;
	}
	CELL_AUTO_FREE char *text = json_dumps(supposed, JSON_COMPACT | JSON_ENCODE_ANY);
	json_t *form = json_pack("{s:s}", "raw", "json");
	if (text && form)
		(void)begin(slot, cell__calls_id_of(call), id, form, text, strlen(text), &err);
	json_decref(form);
}

/* ---- the end of the call ---- */

bool cell__speculation_answered(void *owner, const struct cell__call *call, const json_t *result, const void *raw, size_t raw_size)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__speculation *spec = session->speculation;
	if (!call->operation || call->operation->id != CELL__OP_TOOLS_CALL)
		return false;
	if (!call->edited)
		record(session, call, result, raw, raw_size);
	if (!spec || spec->call_id != cell__calls_id_of(call))
		return false;
	const struct cell_session *shadow = spec->waiting.session;
	const struct cell__run *run = cell__slot_run(slot);
	const char *reason = NULL;
	if (!spec->running)
		reason = "the answer came before the copy was made";
	else if (call->edited)
		reason = "the arguments were edited";
	else if (!is_supposed(spec, result, raw, raw_size))
		reason = "the result is another one";
	else if (!run || run->id != spec->run_id || run->interrupt_asked || run->timed_out || run->cancelled || run->over ||
		 slot->leaving || session->closing)
		reason = "the cell is being stopped";
	else if (session->filing > 0)
		reason = "the files of the session are being read or written";
	else if (!shadow->slot || !shadow->slot->ready || shadow->slot->leaving)
		reason = "the copy has ended";
	if (reason) {
		drop(spec, reason);
		return false;
	}
	spec->kept = true;
	return true;
}

#define EXCHANGE(a, b)                         \
	do {                                   \
		__typeof__(a) exchanged = (a); \
		(a) = (b);                     \
		(b) = exchanged;               \
	} while (0)

static void exchange(struct cell_session *session, struct cell_session *shadow)
{
	struct cell__slot *slot = session->slot, *other = shadow->slot;
	EXCHANGE(slot->kernel, other->kernel);
	cell__slot_took_kernel(slot);
	cell__slot_took_kernel(other);
	EXCHANGE(session->layer, shadow->layer);
	EXCHANGE(session->quota, shadow->quota);
	EXCHANGE(session->options.cwd, shadow->options.cwd);
	cell__quota_hand_over(session->quota, session);
	cell__quota_hand_over(shadow->quota, shadow);
	slot->gate.cwd = session->clients.cwd = session->options.cwd;
	other->gate.cwd = shadow->clients.cwd = shadow->options.cwd;
	cell__quota_touch(shadow->quota, false);
	cell__quota_touch(session->quota, true);
}

/* The clock stood still while the person decided, but the copy computed. */
static void charge(struct cell_session *session, int64_t used_us)
{
	struct cell__run *run = session->current;
	if (!session->options.approval_stops_clock || run->timeout_ms < 0)
		return;
	int64_t used_ms = used_us / 1000;
	if (session->clock_stopped) {
		session->clock_left_ms -= used_ms < (int64_t)session->clock_left_ms ? (uint64_t)used_ms : session->clock_left_ms;
		return;
	}
	uv_update_time(cell__loop_uv(session->engine->loop));
	int64_t left = (int64_t)uv_timer_get_due_in(&session->timer);
	cell__session_start_timer(session, left > used_ms ? (uint64_t)(left - used_ms) : 0);
}

void cell__speculation_become(void *owner)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__speculation *spec = cell__take_ptr(session->speculation);
	struct cell_session *shadow = spec->waiting.session;
	int64_t used_us = cpu_of(spec, shadow->slot->kernel);
	spec->session = NULL;
	exchange(session, shadow);
	charge(session, used_us);
	session->engine->speculations.kept++;
	tell(session, spec, "kept", NULL);
	cell__slot_tell_packages(slot); /* they may have changed meanwhile */
	slot->paused = false;
	session->executor->pause(slot->kernel, false);
	cell__slot_update_pause(session);
	close_shadow(shadow);
}

void cell__speculation_call_ended(void *owner, uint32_t id)
{
	const struct cell__slot *slot = owner;
	struct cell__speculation *spec = slot->session->speculation;
	if (spec && spec->call_id == id && !spec->kept)
		drop(spec, "the call was rejected, failed or was cancelled");
}
