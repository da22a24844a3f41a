/*
 * Points of a session that is saved: with it, where that is asked for, or named as what it goes without (durable.c).
 *
 *     save   a point that is a process ── point (a file) ──▶ with the session's own memory to the pool
 *            a point that is a file    ────────────────────▶
 *     wake   once the session's kernel is ready ──▶ points that are files, whatever they were
 */
#define _GNU_SOURCE
#include "layer/layer.h"
#include "session/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CELL_SAVED_LEFT 32 /* things of the host's that are named */

/* One of them.  The saving has it until its kernel is gone. */
struct cell__saving_point {
	struct cell__saving *saving;
	struct cell__point *point; /* `used`, until it is packed */
	struct cell__kernel *kernel; /* a file of its memory that is made for this; NULL: it is one itself, or gone */
	bool ready, taken; /* there is such a file; it is saved */
};

/* ---- what is not carried ---- */

static void add_left(json_t *left, size_t *n, const char *kind, const char *name)
{
	if ((*n)++ < CELL_SAVED_LEFT)
		json_array_append_new(left, json_pack("[s, s, []]", kind, name));
}

static bool is_saved(const struct cell__saving *saving, const struct cell__point *point)
{
	for (size_t i = 0; i < saving->n_points; i++)
		if (saving->points[i].point == point)
			return saving->points[i].taken;
	return false;
}

static void add_commands(const struct cell_session *session, json_t *left, size_t *n)
{
	json_t *commands = session->commands ? cell__commands_describe(session) : NULL, *command;
	size_t i;
	json_array_foreach(commands, i, command) {
		const char *state = json_string_value(json_object_get(command, "state"));
		const char *program = json_string_value(json_array_get(json_object_get(command, "argv"), 0));
		if (state && program && strcmp(state, "ended") != 0)
			add_left(left, n, "command", program);
	}
	json_decref(commands);
}

void cell__durable_add_left(const struct cell__saving *saving, json_t *left)
{
	const struct cell_session *session = saving->waiting.session;
	size_t n = 0, n_undo = 0;
	char text[64];
	for (const struct cell__point *point = session->points; point; point = point->next) {
		if (point->leaving || is_saved(saving, point))
			continue;
		if (point->automatic)
			n_undo++;
		else
			add_left(left, &n, "point", point->name);
	}
	snprintf(text, sizeof text, "%zu kept by undo", n_undo);
	if (n_undo > 0)
		add_left(left, &n, "points", text);
	for (const struct cell_session *child = session->children; child; child = child->sibling)
		add_left(left, &n, "session", child->id);
	for (const struct cell__remembered *one = session->remembered; one; one = one->next)
		add_left(left, &n, "approval", one->name);
	add_commands(session, left, &n);
	snprintf(text, sizeof text, "%zu others", n - CELL_SAVED_LEFT);
	if (n > CELL_SAVED_LEFT)
		json_array_append_new(left, json_pack("[s, s, []]", "more", text));
}

/* ---- saving ---- */

static void free_if_gone(struct cell__saving_point *one)
{
	struct cell__point *point = cell__take_ptr(one->point);
	if (!point)
		return;
	point->used--;
	(void)cell__branch_free_gone(point);
}

static void handle_ready(void *owner)
{
	struct cell__saving_point *one = owner;
	one->ready = true;
	one->saving->points_waiting--;
	cell__durable_go_on(one->saving);
}

static void handle_exited(void *owner, const struct cell__exit *how)
{
	struct cell__saving_point *one = owner;
	(void)how; /* a point that cannot be saved is named in the answer */
	one->kernel = NULL;
	one->saving->points_open--;
	if (!one->ready)
		one->saving->points_waiting--;
	cell__durable_go_on(one->saving);
}

static const char *handle_call(void *owner, const struct cell__asked *asked)
{
	(void)owner, (void)asked;
	return "a call of a kernel that runs nothing";
}

static const struct cell__kernel_events point_events = {
	.ready = handle_ready,
	.output = cell__ignore_output,
	.display = cell__ignore_display,
	.result = cell__ignore_result,
	.call = handle_call,
	.exited = handle_exited,
};

static bool can_be_saved(const struct cell__point *point)
{
	return point->ready && !point->leaving && !point->gone && (point->frozen != NULL) == (point->session->layer != NULL);
}

static bool is_file(const struct cell__point *point)
{
	const struct cell__executor *executor = point->session->executor;
	return executor->kept && executor->kept(point->kernel) >= 0;
}

static bool wants_points(const struct cell__saving *saving)
{
	return !saving->stays && !saving->portable && (saving->with_points || saving->waiting.session->options.saved_points);
}

bool cell__durable_waits_for_points(const struct cell__saving *saving)
{
	const struct cell__point *point = wants_points(saving) ? saving->waiting.session->points : NULL;
	while (point && (point->ready || point->leaving || point->gone))
		point = point->next;
	return point != NULL;
}

void cell__durable_start_points(struct cell__saving *saving)
{
	struct cell_session *session = saving->waiting.session;
	const unsigned flags = CELL__FORK_DROP | CELL__FORK_POINT | CELL__FORK_SAVE | CELL__FORK_ENDS;
	struct cell_error err;
	if (!wants_points(saving))
		return;
	saving->points = cell__alloc(CELL_SAVED_POINTS, sizeof *saving->points);
	/* The latest ones, if there are too many. */
	for (struct cell__point *point = session->points; saving->points && point; point = point->next) {
		struct cell__saving_point *one = &saving->points[saving->n_points];
		if (saving->n_points == CELL_SAVED_POINTS || !can_be_saved(point))
			continue;
		*one = (struct cell__saving_point){ .saving = saving, .point = point, .ready = is_file(point) };
		if (!one->ready &&
		    session->executor->fork(point->kernel, session->id, session->layer, flags, &point_events, one, &one->kernel, &err) < 0)
			continue;
		saving->n_points++;
		saving->points_waiting += one->kernel != NULL;
		saving->points_open += one->kernel != NULL;
		point->used++;
	}
}

static bool is_among(uint64_t number, const uint64_t *numbers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (numbers[i] == number)
			return true;
	return false;
}

/* Its files, if there is room for them: those that are counted already take none. */
static bool take_files(const struct cell__image_files *files, uint64_t *numbers, size_t *n, struct cell__memory_point *to)
{
	size_t more = 0;
	for (size_t i = 0; i < files->n; i++)
		more += !is_among(files->live[i], numbers, *n);
	if (*n + more > CELL_SAVED_FILES - CELL_SAVED_POINTS - 1)
		return false; /* the others are those of layers */
	for (size_t i = 0; i < files->n; i++) {
		to->memory.fds[i] = fcntl(files->fds[i], F_DUPFD_CLOEXEC, 0);
		to->memory.inodes[i] = files->inodes[i];
		to->memory.live[i] = files->live[i];
		to->memory.n++;
		if (to->memory.fds[i] < 0)
			return false;
		if (!is_among(files->live[i], numbers, *n))
			numbers[(*n)++] = files->live[i];
	}
	return true;
}

static bool take_point(const struct cell__saving_point *one, uint64_t *numbers, size_t *n, struct cell__memory_point *to)
{
	const struct cell__point *point = one->point;
	struct cell__image_files files;
	struct timespec now;
	const json_t *left;
	point->session->executor->image(one->kernel ? one->kernel : point->kernel, &files, &left);
	clock_gettime(CLOCK_REALTIME, &now);
	*to = (struct cell__memory_point){
		.name = cell__strdup(point->name),
		.cells = point->cells,
		.upto = point->upto,
		.automatic = point->automatic,
		.taken_ms = (uint64_t)((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - (cell__now_us() - point->taken_us) / 1000),
		.layer_fd = -1,
	};
	return to->name && take_files(&files, numbers, n, to);
}

void cell__durable_take_points(struct cell__saving *saving)
{
	struct cell__memories *memories = &saving->memories;
	uint64_t numbers[CELL_SAVED_FILES];
	size_t n = 0;
	while (n < memories->own.n) {
		numbers[n] = memories->own.live[n];
		n++;
	}
	memories->points = saving->n_points ? cell__alloc(saving->n_points, sizeof *memories->points) : NULL;
	for (size_t i = 0; i < saving->n_points; i++) {
		struct cell__saving_point *one = &saving->points[i];
		struct cell__memory_point point = { .layer_fd = -1 };
		one->taken = one->ready && memories->points && take_point(one, numbers, &n, &point);
		if (one->taken)
			memories->points[memories->n_points++] = point;
		else
			cell__memory_point_close(&point);
	}
}

int cell__durable_pack_points(struct cell__saving *saving, struct cell_error *err)
{
	size_t k = 0;
	for (size_t i = 0; i < saving->n_points; i++) {
		const struct cell__saving_point *one = &saving->points[i];
		if (!one->taken)
			continue;
		struct cell__memory_point *to = &saving->memories.points[k++];
		if (one->point->frozen && cell__frozen_pack(one->point->frozen, &to->layer_fd, err) < 0)
			return -1;
	}
	return 0;
}

void cell__durable_leave_points(struct cell__saving *saving)
{
	for (size_t i = 0; i < saving->n_points; i++) {
		struct cell__saving_point *one = &saving->points[i];
		free_if_gone(one);
		if (one->kernel)
			one->saving->waiting.session->executor->close(one->kernel, 0); /* ends in handle_exited() */
	}
}

void cell__durable_forget_points(struct cell__saving *saving)
{
	free(cell__take_ptr(saving->points));
	saving->n_points = 0;
}

/* ---- waking ---- */

int cell__durable_unpack_points(struct cell_session *session, struct cell__prepared *prepared, struct cell_error *err)
{
	struct cell__memories *memories = &prepared->woken;
	struct cell__woken_points *woken = &prepared->points;
	if (memories->n_points == 0)
		return 0;
	woken->frozen = cell__alloc(memories->n_points, sizeof *woken->frozen);
	if (!woken->frozen)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the points of a session");
	woken->points = cell__take_ptr(memories->points);
	woken->n = memories->n_points;
	memories->n_points = 0;
	for (size_t i = 0; i < woken->n; i++) {
		if ((woken->points[i].layer_fd >= 0) != (session->layer != NULL))
			return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session is damaged: the files of its points");
		if (session->layer && cell__frozen_unpack(session->layer, woken->points[i].layer_fd, &woken->frozen[i], err) < 0)
			return -1;
	}
	return 0;
}

void cell__durable_drop_woken(struct cell__woken_points *woken)
{
	for (size_t i = 0; i < woken->n; i++) {
		cell__memory_point_close(&woken->points[i]);
		cell__frozen_destroy(woken->frozen[i]);
	}
	free(cell__take_ptr(woken->points));
	free(cell__take_ptr(woken->frozen));
	woken->n = 0;
}

void cell__durable_keep_points(struct cell_session *session)
{
	struct cell__woken_points *woken = &session->woken_points;
	for (size_t i = woken->n; i-- > 0;) { /* the session's list begins with the latest as well */
		struct cell_error err;
		char message[320];
		struct cell__frozen *frozen = cell__take_ptr(woken->frozen[i]);
		if (cell__branch_keep(session, &woken->points[i], frozen, &err) == 0)
			continue;
		cell__files_drop(session, frozen);
		snprintf(message, sizeof message, "the point \"%.60s\" is lost: %.200s", woken->points[i].name, err.msg);
		cell__session_emit(session, &(struct cell_event){ .type = CELL_EVENT_POINT_LOST, .message = message });
	}
	cell__durable_drop_woken(woken);
}
