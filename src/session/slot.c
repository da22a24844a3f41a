/* The session's kernel: opening and leaving it, and its messages. */
#include <jansson.h>
#include <string.h>

#include "egress/egress.h"
#include "layer/layer.h"
#include "spawn/confinement.h"
#include "session/session.h"
#include "space/space.h"

static const struct cell__kernel_events kernel_events, shadow_events;
static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size);
static void handle_tool_image(void *owner, const void *bytes, size_t size);
static void handle_ignored(void *owner);
static size_t unread_of(const void *owner);

/* ---- opening and leaving ---- */

/* The value of TMPDIR that the session's environment is given; NULL: it has one, or no layer with such a folder. */
static const char *own_tmp(const struct cell_session *session)
{
	const char *tmp = session->layer ? cell__layer_tmp(session->layer) : NULL;
	for (size_t i = 0; tmp && session->options.env[i]; i++)
		if (strncmp(session->options.env[i], "TMPDIR=", 7) == 0)
			tmp = NULL;
	return tmp;
}

/*
 * The session's environment with the project's own programs first on PATH, and the layer's folder for temporary files. ret_env borrows all
 * entries except those in *ret_texts; both are NULL when nothing needs to be added.
 */
static int own_env(struct cell_session *session, const char *bin, const char *host_bin, const char ***ret_env, char **ret_texts,
		   struct cell_error *err)
{
	char *const *given = session->options.env;
	const char *tmp = own_tmp(session);
	*ret_env = NULL;
	*ret_texts = NULL;
	if (!bin && !host_bin && !tmp)
		return 0;
	size_t n = 0, last = 0; /* the first entry is our own PATH; a later one overrides it, as it does in the kernel */
	for (; given[n]; n++)
		if (strncmp(given[n], "PATH=", 5) == 0)
			last = n;
	const char **env = cell__alloc(n + 2, sizeof *env);
	CELL_AUTO_BUF struct cell__buf texts = CELL_BUF_INIT;
	if (!env || cell__buf_printf(&texts, "PATH=%s%s%s%s%s%cTMPDIR=%s", bin ? bin : "", bin ? ":" : "", host_bin ? host_bin : "",
				     host_bin ? ":" : "", given[last] + 5, 0, tmp ? tmp : "") < 0) {
		free(env);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	memcpy(env, given, n * sizeof *env);
	env[last] = texts.data;
	env[n] = tmp ? texts.data + strlen(texts.data) + 1 : NULL;
	*ret_env = env;
	*ret_texts = cell__buf_take(&texts);
	return 0;
}

void cell__slot_spec(struct cell_session *session, const struct cell__prepared *prepared, struct cell__kernel_spec *ret_spec,
		     const char *read[static 3])
{
	const struct cell__options *options = &session->options;
	*ret_spec = (struct cell__kernel_spec){
		.session_id = session->id,
		.python = options->python,
		.preload = options->preload,
		.zygote_owner = options->zygote_owner,
		.cwd = options->cwd,
		.workspace_path = *options->workspace_path ? options->workspace_path : NULL,
		.env = (const char *const *)options->env,
		.namespaces = options->space ? !(session->executor->takes &
						 (CELL_TAKES_CONTAINER | CELL_TAKES_KUBERNETES)) /* the server inside provides them */
					     : session->recorder && session->recorder->replays && session->recorder->replayed.namespaces,
		.recording = session->recorder ? session->recorder->seed : NULL,
		.is_replay = session->recorder && session->recorder->replays,
		.wants = options->wants,
		.site = prepared->own.site,
		.host_site = prepared->hosts.site,
		.policy = options->confined ? &options->confine : NULL,
		.wheels = prepared->wheels,
		.layer = session->layer,
		.own = options->own,
		.found = prepared->found,
	};
	if (!options->confined || !options->space)
		return;
	const char *own = prepared->own.folder, *hosts = prepared->hosts.folder;
	read[0] = own ? own : hosts;
	read[1] = own ? hosts : NULL;
	ret_spec->read = read;
}

struct cell__prepared *cell__slot_prepare(struct cell_session *session)
{
	struct cell_space *space = session->options.space;
	const struct cell__executor *executor = session->executor;
	bool shown = session->options.confined;
	struct cell__kernel_spec spec;
	const char *read[3] = { NULL };
	struct cell__prepared *prepared = cell__alloc(1, sizeof *prepared);
	if (!prepared)
		return NULL;
	prepared->woken.layer_fd = -1;
	if (space) {
		prepared->changes = cell__space_package_changes(space);
		cell__space_find_packages(space, !executor->untrusted, shown, &prepared->own);
		if (executor->untrusted)
			cell__space_find_packages(space, true, shown, &prepared->hosts);
		if (executor->wants_wheels)
			prepared->wheels = cell__space_wheels(space);
	}
	if (space && !executor->confine && !cell__executor_is_trusted(executor))
		(void)cell__confine_strictly(&session->engine->supervisor, session->options.cwd, &prepared->confinement,
					     &prepared->unconfined);
	cell__slot_spec(session, prepared, &spec, read);
	if (executor->resolve)
		(void)executor->resolve(&session->engine->host, &spec, &prepared->found, &prepared->err);
	return prepared;
}

void cell__prepared_destroy(struct cell_session *session, struct cell__prepared *prepared)
{
	if (!prepared)
		return;
	if (prepared->found)
		session->executor->discard(prepared->found);
	cell__memories_close(&prepared->woken);
	cell__durable_drop_woken(&prepared->points);
	cell__confinement_unref(prepared->confinement);
	cell__deps_place_finish(&prepared->own);
	cell__deps_place_finish(&prepared->hosts);
	free(prepared->wheels);
	free(prepared);
}

int cell__slot_trust(struct cell_session *session, struct cell_error *err)
{
	if (!session->trusts && cell__places_trust(session->engine->host.places, &session->options.places, err) < 0)
		return -1;
	session->trusts = true;
	return 0;
}

void cell__slot_distrust(struct cell_session *session)
{
	if (session->trusts)
		cell__places_untrust(session->engine->host.places, &session->options.places);
	session->trusts = false;
}

int cell__slot_check_places(struct cell_session *session, struct cell__writable_list *writable, struct cell_error *err)
{
	struct cell__places *places = session->engine->host.places;
	int rc = cell__slot_trust(session, err);
	if (rc == 0)
		rc = cell__places_write(places, writable, err);
	cell__places_unwrite(places, writable);
	cell__slot_distrust(session);
	return rc;
}

static void free_slot(struct cell__slot *slot)
{
	cell__confinement_unref(slot->confinement);
	cell__deps_place_finish(&slot->own);
	cell__deps_place_finish(&slot->hosts);
	free(slot);
}

static int open_kernel(struct cell__slot *slot, struct cell__prepared *prepared, struct cell_error *err)
{
	struct cell_session *session = slot->session;
	CELL_AUTO_FREE const char **env = NULL;
	CELL_AUTO_FREE char *path = NULL;
	struct cell__kernel_spec spec;
	const char *read[3] = { NULL };
	const struct cell__memory *memory = &prepared->woken.own;
	struct cell__image_files woken = { .n = memory->n };
	if (prepared->err.code) {
		if (err)
			*err = prepared->err;
		return -1;
	}
	if (cell__slot_trust(session, err) < 0 || own_env(session, prepared->own.bin, prepared->hosts.bin, &env, &path, err) < 0)
		return -1;
	cell__slot_spec(session, prepared, &spec, read);
	prepared->found = NULL;
	if (env)
		spec.env = (const char *const *)env;
	memcpy(woken.fds, memory->fds, woken.n * sizeof *woken.fds);
	memcpy(woken.inodes, memory->inodes, woken.n * sizeof *woken.inodes);
	memcpy(woken.live, memory->live, woken.n * sizeof *woken.live);
	spec.woken = woken.n > 0 ? &woken : NULL;
	return session->executor->open(&session->engine->host, &spec, &kernel_events, slot, &slot->kernel, err);
}

/* Its kernel was opened: it is the session's from now on. */
static void settle(struct cell__slot *slot)
{
	struct cell_session *session = slot->session;
	cell__approvals_init_gate(slot);
	slot->calls = (struct cell__calls){
		.kernel = slot->kernel,
		.session_id = session->id,
		.gate = &slot->gate,
		.principal = &session->principal,
		.output = handle_output,
		.image = handle_tool_image,
		.ignored = handle_ignored,
		.owner = slot,
		.recorder = session->recorder,
		.budget = { .unread = unread_of, .owner = slot->kernel },
	};
	if (session->options.speculate) {
		slot->gate.waits = cell__speculation_call_waits;
		slot->calls.answered = cell__speculation_answered;
		slot->calls.become = cell__speculation_become;
		slot->calls.ended = cell__speculation_call_ended;
	}
	cell__budget_join(&slot->calls.budget, &session->engine->budgets);
	session->slot = slot;
}

static const struct cell__kernel_events *events_of(const struct cell_session *session)
{
	return session->shadows_for ? &shadow_events : &kernel_events;
}

void cell__slot_took_kernel(struct cell__slot *slot)
{
	slot->calls.kernel = slot->kernel;
	slot->calls.budget.owner = slot->kernel;
	cell__confinement_unref(cell__take_ptr(slot->confinement)); /* it showed programs the other kernel's files */
	slot->kernel->executor->hand_over(slot->kernel, events_of(slot->session), slot);
}

int cell__slot_open(struct cell_session *session, struct cell__prepared *prepared, struct cell_error *err)
{
	struct cell__slot *slot = cell__alloc(1, sizeof *slot);
	int rc = slot ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0) {
		slot->session = session;
		rc = open_kernel(slot, prepared, err);
	}
	if (rc == 0) {
		slot->own = prepared->own;
		slot->hosts = prepared->hosts;
		prepared->own = prepared->hosts = (struct cell__deps_place){ 0 };
		cell__durable_drop_woken(&session->woken_points); /* of a kernel that never was ready */
		session->woken_points = prepared->points;
		prepared->points = (struct cell__woken_points){ 0 };
		slot->confinement = cell__take_ptr(prepared->confinement);
		slot->unconfined = prepared->unconfined;
		slot->news = session->options.space && prepared->changes != cell__space_package_changes(session->options.space);
	}
	cell__prepared_destroy(session, prepared);
	if (rc < 0) {
		free(slot);
		return -1;
	}
	settle(slot);
	return 0;
}

int cell__slot_fork(struct cell_session *session, struct cell__kernel *kernel, const struct cell__deps_place *own,
		    const struct cell__deps_place *hosts, unsigned flags, struct cell_error *err)
{
	struct cell__slot *slot = cell__alloc(1, sizeof *slot);
	int rc = slot && cell__deps_place_copy(own, &slot->own) == 0 && cell__deps_place_copy(hosts, &slot->hosts) == 0
			 ? 0
			 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0 && (rc = cell__slot_trust(session, err)) == 0) {
		slot->session = session;
		slot->news = session->options.space != NULL; /* packages may have come since */
		rc = kernel->executor->fork(kernel, session->shadows_for ? session->parent : session->id, session->layer, flags,
					    events_of(session), slot, &slot->kernel, err);
	}
	if (rc < 0) {
		if (slot)
			free_slot(slot);
		return -1;
	}
	settle(slot);
	return 0;
}

/* No caller waits for answers any more; drops open artifacts. */
static void end_own_calls(struct cell__slot *slot)
{
	struct cell_session *session = slot->session;
	cell__calls_cancel(&slot->calls);
	cell__gate_drop(&slot->gate);
	cell__children_end(session, slot);
	if (session->options.space)
		cell__space_session_ended(session->options.space, session->id, &slot->calls);
}

static void end_calls(struct cell__slot *slot)
{
	end_own_calls(slot);
	cell__gate_drop_waiting(&slot->session->clients);
}

void cell__slot_leave(struct cell_session *session, int64_t grace_ms)
{
	struct cell__slot *slot = session->slot;
	end_calls(slot);
	cell__commands_end(session);
	session->slot = NULL;
	uv_timer_stop(&session->wall);
	slot->leaving = true;
	session->leaving++;
	session->executor->close(slot->kernel, grace_ms);
}

void cell__slot_update_pause(struct cell_session *session)
{
	struct cell__slot *slot = session->slot;
	if (!slot)
		return;
	/* A run whose kernel was replaced does not concern the new one. */
	struct cell__run *run = session->current;
	bool paused = run && !run->ending && session->running_on == slot && cell__run_wants_pause(run);
	if (paused == slot->paused)
		return;
	slot->paused = paused;
	session->executor->pause(slot->kernel, paused);
}

/* ---- packages that come while it lives ---- */

/* Where packages are now: after the last change, or as it was when the kernel was opened. */
static const struct cell__deps_place *packages_of(const struct cell__slot *slot, bool trusted)
{
	const struct cell__deps_place *changed = cell__space_changed_packages(slot->session->options.space, trusted);
	bool own = trusted == !slot->session->executor->untrusted;
	return changed->site ? changed : own ? &slot->own : &slot->hosts;
}

int cell__slot_env(struct cell__slot *slot, const char ***ret_env, char **ret_texts, struct cell_error *err)
{
	struct cell_session *session = slot->session;
	bool trusted = !session->executor->untrusted, has_space = session->options.space != NULL;
	const struct cell__deps_place *own = has_space ? packages_of(slot, trusted) : &slot->own;
	const struct cell__deps_place *hosts = has_space && !trusted ? packages_of(slot, true) : &slot->hosts;
	return own_env(session, own->bin, hosts->bin, ret_env, ret_texts, err);
}

/* Tells a kernel that may have come up before the packages did. */
static void tell_packages(struct cell__slot *slot)
{
	struct cell_session *session = slot->session;
	if (session->executor->wants_wheels)
		return;
	bool trusted = !session->executor->untrusted;
	const struct cell__deps_place *own = packages_of(slot, trusted);
	const char *host_site = trusted ? NULL : packages_of(slot, true)->site;
	if (!own->site && !host_site)
		return;
	json_t *news = json_pack("{s:[]}", "site"), *sites = json_object_get(news, "site");
	if (host_site) /* the last one is searched first */
		json_array_append_new(sites, json_string(host_site));
	if (own->site)
		json_array_append_new(sites, json_string(own->site));
	if (own->bin)
		json_object_set_new(news, "bin", json_string(own->bin));
	char *text = news ? json_dumps(news, JSON_COMPACT) : NULL;
	/* An answer without a call. A kernel that does not get it asks by itself, with deps.sync(). */
	if (text)
		(void)session->executor->reply(slot->kernel, 0, text, strlen(text), NULL, 0, NULL);
	free(text);
	json_decref(news);
}

void cell__slot_tell_packages(struct cell__slot *slot)
{
	if (slot->session->options.space)
		tell_packages(slot);
}

void cell__session_tell_packages(struct cell_engine *engine, struct cell_space *space)
{
	for (struct cell_session *session = engine->sessions; session; session = session->next) {
		if (session->options.space != space || !session->slot)
			continue;
		if (session->slot->ready)
			tell_packages(session->slot);
		else
			session->slot->news = true;
	}
}

/* ---- messages of the kernel ---- */

struct cell__run *cell__slot_run(const struct cell__slot *slot)
{
	struct cell__run *run = slot->session->current;
	return run && run->started && !run->ending && slot->session->running_on == slot ? run : NULL;
}

/* The kernel has lived as long as it may. */
static void handle_wall(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	struct cell__run *run = session->current;
	if (!session->slot)
		return;
	if (run && run->started && !run->ending && session->running_on == session->slot) {
		run->over = "wall_time";
		run->over_max = run->over_used = session->options.confine.wall_ms;
		cell__slot_leave(session, 0);
		return;
	}
	cell__slot_leave(session, 0);
	cell__durable_restore_idle(session, "the kernel has lived as long as it may");
}

static void handle_ready(void *owner)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	slot->ready = true;
	if (slot->leaving)
		return;
	if (session->options.confine.wall_ms)
		uv_timer_start(&session->wall, handle_wall, session->options.confine.wall_ms, 0);
	if (slot->news)
		tell_packages(slot);
	cell__durable_woken(session);
	cell__session_advance(session);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__run *run = cell__slot_run(slot);
	if (run) {
		uint64_t most = session->options.confine.output_bytes;
		cell__run_output(run, session->options.no_spill ? NULL : session->engine->spill_dir, stream, bytes, size);
		if (most && run->text.total > most)
			cell__session_stop_run(session, run, "output", most, run->text.total);
		if (!slot->leaving)
			cell__slot_update_pause(session);
	} else {
		struct cell_event event = { .type = CELL_EVENT_CHUNK, .stream = stream, .data = bytes, .size = size };
		cell__session_emit(session, &event);
	}
}

static void handle_tool_image(void *owner, const void *bytes, size_t size)
{
	struct cell__run *run = cell__slot_run(owner);
	if (run)
		cell__run_tool_image(run, bytes, size);
}

static void handle_display(void *owner, const struct cell__bundle *bundle)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__run *run = cell__slot_run(slot);
	if (run) {
		cell__run_display(run, bundle);
		if (!slot->leaving)
			cell__slot_update_pause(session);
	} else {
		struct cell_event event = { .type = CELL_EVENT_DISPLAY, .parts = bundle->parts, .n_parts = bundle->n_parts };
		cell__session_emit(session, &event);
	}
}

static void handle_result(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__run *run = cell__slot_run(slot);
	if (slot->leaving)
		return; /* too late: it is being killed, and the run ends with that */
	if (!run || run->id != run_id) {
		slot->violation = "a result for an unknown run";
		session->executor->close(slot->kernel, 0);
		return;
	}
	uv_timer_stop(&session->timer);
	if (answer->lost)
		run->restored = cell__branch_replace_lost(session);
	else
		cell__branch_after_run(session, answer->same);
	cell__outcome_answered(run, slot->gate.refused > 0, answer);
}

static const char *handle_call(void *owner, const struct cell__asked *asked)
{
	struct cell__slot *slot = owner;
	return cell__calls_handle(&slot->calls, asked);
}

static void handle_ignored(void *owner)
{
	struct cell__slot *slot = owner;
	slot->violation = "it does not read the answers to its calls, and too many are waiting";
	slot->session->executor->close(slot->kernel, 0);
}

static size_t unread_of(const void *owner)
{
	const struct cell__kernel *kernel = owner;
	return kernel->executor->unread ? kernel->executor->unread(kernel) : 0;
}

static void handle_exited(void *owner, const struct cell__exit *how)
{
	struct cell__slot *slot = owner;
	struct cell_session *session = slot->session;
	struct cell__run *run = cell__slot_run(slot);
	bool was_current = session->slot == slot;
	cell__budget_leave(&slot->calls.budget); /* after this its kernel is gone */
	if (was_current) {
		end_calls(slot);
		cell__commands_end(session);
		session->slot = NULL;
		uv_timer_stop(&session->wall);
	} else {
		end_own_calls(slot); /* of its exit handlers, and calls made before it learned of its end */
		session->leaving--;
	}
	if (how->error.code == CELL_E_SPAWNER)
		session->broken = how->error;
	if (run) {
		bool replaced = how->asked && !slot->violation && !run->timed_out && !run->over && !run->cancelled;
		uv_timer_stop(&session->timer);
		cell__branch_end_run(session, slot->violation, how, !replaced);
	} else if (was_current && !slot->ready) {
		struct cell_error err = how->error;
		char message[320];
		if (err.code == 0) {
			cell__outcome_describe_death(how, slot->violation, message, sizeof message);
			cell_fail(&err, CELL_E_KERNEL, 0, "%.200s before it was ready", message);
		}
		cell__session_end_opening(session, &err);
	} else if (was_current) {
		char message[320];
		cell__outcome_describe_death(how, slot->violation, message, sizeof message);
		struct cell_event event = { .type = CELL_EVENT_KERNEL_DIED, .message = message };
		cell__durable_restore_idle(session, message);
		cell__session_emit(session, &event);
	}
	free_slot(slot);
	cell__speculation_copy_ended(session, "the copy has ended");
	cell__session_advance(session);
}

static int handle_connection(void *owner, const struct cell__egress_event *event, struct cell_error *err)
{
	struct cell_session *session = ((struct cell__slot *)owner)->session;
	if (!session->options.audit)
		return 0;
	return cell__audit_connection(cell__audit_of(session->options.audit), session->id, session->cell_hash, session->executor->name,
				      event, err);
}

static const struct cell__kernel_events kernel_events = {
	.connection = handle_connection,
	.ready = handle_ready,
	.output = handle_output,
	.display = handle_display,
	.result = handle_result,
	.call = handle_call,
	.exited = handle_exited,
};

/* ---- of a shadow's kernel, which is a copy that was not kept, or the source of one that was: nothing it says counts ---- */

void cell__ignore_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	(void)owner, (void)stream, (void)bytes, (void)size;
}

void cell__ignore_display(void *owner, const struct cell__bundle *bundle)
{
	(void)owner, (void)bundle;
}

void cell__ignore_result(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer)
{
	(void)owner, (void)run_id, (void)answer;
}

static const char *ignore_call(void *owner, const struct cell__asked *asked)
{
	(void)owner, (void)asked;
	return NULL;
}

static int refuse_connection(void *owner, const struct cell__egress_event *event, struct cell_error *err)
{
	(void)owner, (void)event;
	return cell_fail(err, CELL_E_FORBIDDEN, 0, "a copy that speculates makes no connections");
}

static const struct cell__kernel_events shadow_events = {
	.connection = refuse_connection,
	.ready = handle_ready,
	.output = cell__ignore_output,
	.display = cell__ignore_display,
	.result = cell__ignore_result,
	.call = ignore_call,
	.exited = handle_exited,
};
