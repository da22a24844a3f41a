#include "session/run.h"

#include <stdio.h>
#include <string.h>

#include "gate/call_info.h"
#include "gate/redact.h"

#define SPILL_BACKLOG (1u << 20)
#define IMAGE_BACKLOG (16u << 20)
#define OF_VALUE SIZE_MAX /* the number of the value's image; others have their display's, ... */
#define OF_TOOLS (SIZE_MAX / 2) /* ... or, from here on, the index among the images in tools' answers */

/* A display or the value with the same bytes is the same file: once that is written, these bytes are not needed. */
struct cell__tool_image {
	char *bytes; /* until it is written */
	size_t size;
	char hash[CELL__SHA256_SIZE];
	bool written;
	size_t *shown_in; /* numbers */
	size_t n_shown;
};

struct cell__run_item {
	struct cell_event event;
	struct cell__owned_bundle bundle;
	size_t bytes;
	struct cell__run_item *next;
	char data[];
};

static void handle_spill_finished(void *arg);
static void handle_image_written(void *arg, size_t number, char *path, int error);

struct cell__run *cell__run_create(const char *code, size_t size, const struct cell_run_options *opts,
				   const struct cell__run_config *config, struct cell_error *err)
{
	struct cell__run *run = cell__alloc(1, sizeof *run);
	struct cell_result *result = cell__alloc(1, sizeof *result);
	char *copy = cell__strndup(code, size);
	if (!run || !result || !copy) {
		free(run);
		free(result);
		free(copy);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a cell of %zu bytes", size);
		return NULL;
	}
	run->code = copy;
	run->size = size;
	run->result = result;
	run->timeout_ms = opts->timeout_ms;
	run->on_event = opts->on_event;
	run->event_arg = opts->event_arg;
	run->spin_us = opts->spin_us;
	run->spin_end = opts->spin_end;
	if (opts->traceparent) {
		snprintf(run->trace.parent, sizeof run->trace.parent, "%s", opts->traceparent);
		run->trace.spans = opts->call_spans;
	}
	run->progress = config->progress;
	run->finished = config->finished;
	memcpy(result->session_id, config->session_id, sizeof result->session_id);
	result->isolation = config->isolation;
	cell__waiter_init(&run->waiter);
	cell__capped_init(&run->out, config->max_output);
	cell__capped_init(&run->err, config->max_output);
	cell__capped_init(&run->text, config->max_output);
	cell__spill_init(&run->spill, config->loop, config->progress, handle_spill_finished, run);
	cell__image_queue_init(&run->images, config->loop, config->images, handle_image_written, run);
	return run;
}

static void destroy_item(struct cell__run_item *item)
{
	cell__owned_bundle_finish(&item->bundle);
	cell__call_info_unref(item->event.call);
	free(item);
}

void cell__run_destroy(struct cell__run *run)
{
	if (!run)
		return;
	while (run->first) {
		struct cell__run_item *next = run->first->next;
		destroy_item(run->first);
		run->first = next;
	}
	cell__capped_finish(&run->out);
	cell__capped_finish(&run->err);
	cell__capped_finish(&run->text);
	for (size_t i = 0; i < run->n_tool_images; i++) {
		free(run->tool_images[i].bytes);
		free(run->tool_images[i].shown_in);
	}
	free(run->tool_images);
	free(run->spill.path);
	cell_result_destroy(run->result);
	free(run->code);
	cell__waiter_finish(&run->waiter);
	free(run);
}

/* ---- events ---- */

static void queue_item(struct cell__run *run, struct cell__run_item *item)
{
	cell__waiter_lock(&run->waiter);
	item->next = NULL;
	if (run->last)
		run->last->next = item;
	else
		run->first = item;
	run->last = item;
	run->queued_bytes += item->bytes;
	if (run->queued_bytes > CELL_LIMIT_EVENT_QUEUE_BYTES)
		run->throttled = true;
	cell__waiter_unlock(&run->waiter);
	cell__waiter_signal(&run->waiter);
}

/* An event for another thread is copied. Without memory the event is lost, but its content is still in the result. */
static void emit(struct cell__run *run, const struct cell_event *event, const struct cell__bundle *bundle)
{
	if (!run->on_event)
		return;
	if (!run->waited) {
		run->on_event(run->event_arg, event);
		return;
	}
	const char *text = event->path ? event->path : event->message;
	size_t text_size = text ? strlen(text) + 1 : 0;
	struct cell__run_item *item = cell__alloc(1, sizeof *item + event->size + text_size);
	if (!item)
		return;
	item->event = *event;
	item->bytes = event->size + text_size + sizeof *item;
	if (event->call) {
		cell__call_info_ref(event->call);
		item->bytes += event->call->args_size;
	}
	if (event->size > 0) {
		memcpy(item->data, event->data, event->size);
		item->event.data = item->data;
	}
	if (text) {
		memcpy(item->data + event->size, text, text_size);
		*(event->path ? &item->event.path : &item->event.message) = item->data + event->size;
	}
	if (bundle) {
		if (cell__owned_bundle_copy(&item->bundle, bundle) < 0) {
			destroy_item(item);
			return;
		}
		item->event.parts = item->bundle.parts;
		for (size_t i = 0; i < bundle->n_parts; i++)
			item->bytes += bundle->parts[i].size;
	}
	queue_item(run, item);
}

/* The next event, or NULL when there is none now; then the waiter is set to wait for more. */
static struct cell__run_item *take_item(struct cell__run *run, bool *ret_delivered, bool *ret_caught_up)
{
	cell__waiter_lock(&run->waiter);
	struct cell__run_item *item = run->first;
	*ret_delivered = run->delivered;
	*ret_caught_up = false;
	if (item) {
		run->first = item->next;
		if (!run->first)
			run->last = NULL;
		run->queued_bytes -= item->bytes;
		if (run->throttled && run->queued_bytes < CELL_LIMIT_EVENT_QUEUE_BYTES / 2) {
			run->throttled = false;
			*ret_caught_up = !run->delivered;
		}
	} else {
		cell__waiter_set_done(&run->waiter, run->delivered);
	}
	cell__waiter_unlock(&run->waiter);
	return item;
}

struct cell_result *cell__run_wait(struct cell__run *run, struct cell__loop *loop, void (*resume)(struct cell__run *run))
{
	struct cell__task *task = &run->task;
	for (;;) {
		cell__loop_do(loop, task, &run->waiter);
		task = NULL;
		struct cell__run_item *item;
		bool delivered, caught_up;
		while ((item = take_item(run, &delivered, &caught_up))) {
			run->on_event(run->event_arg, &item->event);
			destroy_item(item);
			if (caught_up)
				resume(run);
		}
		if (delivered)
			break;
	}
	struct cell_result *result = cell__take_ptr(run->result);
	if (run->on_event) {
		struct cell_event event = { .type = CELL_EVENT_RESULT, .run_id = run->id, .result = result };
		run->on_event(run->event_arg, &event);
	}
	return result;
}

/* ---- output ---- */

bool cell__run_wants_pause(struct cell__run *run)
{
	if (cell__spill_backlog(&run->spill) > SPILL_BACKLOG || run->images.bytes > IMAGE_BACKLOG)
		return true;
	if (!run->waited)
		return run->held;
	cell__waiter_lock(&run->waiter);
	bool throttled = run->throttled;
	cell__waiter_unlock(&run->waiter);
	return throttled;
}

void cell__run_output(struct cell__run *run, const char *spill_dir, enum cell_stream stream, const char *bytes, size_t size)
{
	/* Until the cap is reached, `text` holds all output: the file starts with it. */
	if (!run->spilling && spill_dir && !run->over && run->text.total + size > run->text.cap) {
		run->spilling = true;
		cell__spill_open(&run->spill, spill_dir, run->result->session_id);
		cell__spill_add(&run->spill, run->text.head.data ? run->text.head.data : "", run->text.head.size);
	}
	if (run->over)
		run->spill.cut = true; /* it is being stopped, and may ignore that: do not fill the disk */
	if (run->spilling)
		cell__spill_add(&run->spill, bytes, size);
	/* Out of memory loses output only from the result; the events and the file have it. */
	(void)cell__capped_add(&run->text, bytes, size);
	(void)cell__capped_add(stream == CELL_STDERR ? &run->err : &run->out, bytes, size);
	struct cell_event event = { .type = CELL_EVENT_CHUNK, .run_id = run->id, .stream = stream, .data = bytes, .size = size };
	emit(run, &event, NULL);
}

/* ---- displays and images ---- */

static struct cell__owned_bundle *image_bundle(struct cell_result *result, size_t number)
{
	return number == OF_VALUE ? &result->mime : &result->displays[number];
}

static void tell_image(struct cell__run *run, const char *path, const char *message)
{
	struct cell_event event = { .type = CELL_EVENT_IMAGE, .run_id = run->id, .path = path, .message = message };
	if (path)
		event.index = run->result->n_images - 1;
	else
		cell__result_add_notice(run->result, message);
	emit(run, &event, NULL);
}

/* Sends the bytes to the folder; false: they cannot be saved, and the reason has been reported. */
static bool queue_image(struct cell__run *run, size_t number, const void *bytes, size_t size)
{
	struct cell_result *result = run->result;
	if (run->images_asked == CELL_LIMIT_IMAGES || size > CELL_LIMIT_IMAGE_BYTES - run->image_bytes) {
		char message[160];
		snprintf(message, sizeof message, "a cell writes at most %u images of %u MiB in total: the other images were not written",
			 CELL_LIMIT_IMAGES, CELL_LIMIT_IMAGE_BYTES >> 20);
		if (!run->told_images)
			tell_image(run, NULL, message);
		run->told_images = true;
		return false;
	}
	/* Allocate room for the path first: every written file must be listed. */
	char **more = cell__realloc(result->images, (run->images_asked + 1) * sizeof *more);
	if (more)
		result->images = more;
	if (!more || cell__image_queue_add(&run->images, number, bytes, size) < 0) {
		tell_image(run, NULL, "out of memory: an image was not written");
		return false;
	}
	run->images_asked++;
	run->image_bytes += size;
	return true;
}

static size_t find_image(const struct cell__owned_bundle *bundle)
{
	size_t at = cell__owned_bundle_find(bundle, "image/png");
	for (size_t i = 0; i < bundle->n_parts && at == bundle->n_parts; i++)
		if (strncmp(bundle->parts[i].type, "image/", 6) == 0)
			at = i;
	return at;
}

/* There is a file of it. */
static void remove_image(struct cell__run *run, size_t number)
{
	struct cell__owned_bundle *bundle = image_bundle(run->result, number);
	size_t at = find_image(bundle);
	if (number != OF_VALUE)
		run->display_bytes -= bundle->parts[at].size;
	cell__owned_bundle_remove(bundle, at);
}

/* True: a tool answered with this image. */
static bool is_tool_image(struct cell__run *run, size_t number, const struct cell_mime_part *part)
{
	char hash[CELL__SHA256_SIZE] = "";
	for (size_t i = 0; i < run->n_tool_images; i++) {
		struct cell__tool_image *image = &run->tool_images[i];
		if (image->size != part->size || (!hash[0] && cell__sha256_hex(part->data, part->size, hash) < 0) ||
		    strcmp(hash, image->hash) != 0)
			continue;
		if (image->written) {
			remove_image(run, number);
			return true;
		}
		size_t *more = image->bytes ? cell__realloc(image->shown_in, (image->n_shown + 1) * sizeof *more) : NULL;
		if (!more)
			return false;
		image->shown_in = more;
		image->shown_in[image->n_shown++] = number;
		return true;
	}
	return false;
}

/* Sends the PNG of a display or of the value to the folder; otherwise it stays in the result. */
static void save_image(struct cell__run *run, size_t number)
{
	struct cell__owned_bundle *bundle = image_bundle(run->result, number);
	size_t at = find_image(bundle);
	if (!run->images.folder->path || at == bundle->n_parts)
		return;
	const struct cell_mime_part *part = &bundle->parts[at];
	if (is_tool_image(run, number, part) || strcmp(part->type, "image/png") != 0)
		return;
	const char *type = cell__image_type(part->data, part->size);
	if (!type || strcmp(type, "png") != 0)
		tell_image(run, NULL, "an image/png part is not a PNG and was not written");
	else
		(void)queue_image(run, number, part->data, part->size);
}

void cell__run_tool_image(struct cell__run *run, const void *bytes, size_t size)
{
	if (!run->images.folder->path)
		return;
	if (!cell__image_type(bytes, size)) {
		tell_image(run, NULL, "an image from a tool is not a PNG, JPEG, GIF or WebP and was not written");
		return;
	}
	struct cell__tool_image *more = cell__realloc(run->tool_images, (run->n_tool_images + 1) * sizeof *more);
	char *copy = cell__strndup(bytes, size);
	if (more)
		run->tool_images = more;
	if (!more || !copy) {
		free(copy);
		tell_image(run, NULL, "out of memory: an image was not written");
		return;
	}
	struct cell__tool_image *image = &more[run->n_tool_images];
	*image = (struct cell__tool_image){ .bytes = copy, .size = size };
	(void)cell__sha256_hex(bytes, size, image->hash); /* without a hash, a displayed image is written twice */
	if (queue_image(run, OF_TOOLS + run->n_tool_images, copy, size))
		run->n_tool_images++;
	else
		free(copy);
}

static void finish_if_done(struct cell__run *run);

static void handle_image_written(void *arg, size_t number, char *path, int error)
{
	struct cell__run *run = arg;
	struct cell_result *result = run->result;
	struct cell__tool_image *image = number >= OF_TOOLS && number != OF_VALUE ? &run->tool_images[number - OF_TOOLS] : NULL;
	if (image)
		free(cell__take_ptr(image->bytes));
	if (path) {
		if (image)
			image->written = true;
		else
			remove_image(run, number);
		for (size_t i = 0; image && i < image->n_shown; i++)
			remove_image(run, image->shown_in[i]);
		result->images[result->n_images++] = path;
		tell_image(run, path, NULL);
	} else {
		struct cell_error err;
		struct cell__owned_bundle *bundle = image ? NULL : image_bundle(result, number);
		run->images_asked--;
		run->image_bytes -= image ? image->size : bundle->parts[find_image(bundle)].size;
		cell_fail(&err, CELL_E_IO, error, "cannot write an image to %.140s", run->images.folder->path);
		tell_image(run, NULL, err.msg);
	}
	run->progress(run);
	finish_if_done(run);
}

void cell__run_display(struct cell__run *run, const struct cell__bundle *bundle)
{
	struct cell_result *result = run->result;
	size_t bytes = 0;
	for (size_t i = 0; i < bundle->n_parts; i++)
		bytes += bundle->parts[i].size;
	bool kept = false;
	if (result->n_displays < CELL_LIMIT_DISPLAYS && run->display_bytes + bytes <= CELL_LIMIT_DISPLAY_BYTES) {
		struct cell__owned_bundle copy;
		struct cell__owned_bundle *more = cell__realloc(result->displays, (result->n_displays + 1) * sizeof *more);
		if (more)
			result->displays = more;
		if (more && cell__owned_bundle_copy(&copy, bundle) == 0) {
			more[result->n_displays++] = copy;
			run->display_bytes += bytes;
			kept = true;
		}
	}
	if (!kept && !run->told_displays) {
		char message[160];
		snprintf(message, sizeof message, "a result keeps at most %u displays of %u MiB in total: the other displays were left out",
			 CELL_LIMIT_DISPLAYS, CELL_LIMIT_DISPLAY_BYTES >> 20);
		cell__result_add_notice(result, message);
		run->told_displays = true;
	}
	struct cell_event event = { .type = CELL_EVENT_DISPLAY, .run_id = run->id, .parts = bundle->parts, .n_parts = bundle->n_parts };
	emit(run, &event, bundle);
	if (kept)
		save_image(run, result->n_displays - 1);
}

void cell__run_call_event(struct cell__run *run, const struct cell_event *event)
{
	struct cell_event mine = *event;
	bool is_news = event->type == CELL_EVENT_TOOL_PROGRESS || event->type == CELL_EVENT_TOOL_LOG;
	/* Pausing the kernel does not pause a server: a receiver that is too slow misses some of the server's messages. */
	if (is_news && run->waited && cell__run_wants_pause(run))
		return;
	mine.run_id = run->id;
	emit(run, &mine, NULL);
}

/* ---- the end ---- */

static void complete_text(struct cell__kept_text *text, const struct cell__capped *capped, const char *spill, uint64_t spilled)
{
	text->total = capped->total;
	if (capped->total == 0)
		return;
	(void)cell__capped_join(capped, spill, spilled, &text->raw);
	if (text->raw.size > 0 && !cell__utf8_ok(text->raw.data, text->raw.size))
		(void)cell__buf_add_utf8(&text->clean, text->raw.data, text->raw.size);
}

static void handle_spill_finished(void *arg)
{
	struct cell__run *run = arg;
	struct cell_result *result = run->result;
	result->spill_path = cell__take_ptr(run->spill.path);
	const uint64_t spilled = run->spill.cut ? run->spill.size : 0;
	complete_text(&result->out, &run->out, result->spill_path, spilled);
	complete_text(&result->err, &run->err, result->spill_path, spilled);
	complete_text(&result->text, &run->text, result->spill_path, spilled);
	if (result->spill_path && spilled) {
		char message[120];
		snprintf(message, sizeof message, "the output is longer than its file may be: only the first %llu bytes were written",
			 (unsigned long long)spilled);
		cell__result_add_notice(result, message);
	}
	run->spilled = true;
	finish_if_done(run);
}

static void finish_if_done(struct cell__run *run)
{
	if (run->spilled && !run->images.first)
		run->finished(run);
}

void cell__run_end(struct cell__run *run, bool state_kept)
{
	run->ending = true;
	run->result->state_kept = state_kept ? 1 : run->restored ? 2 : 0;
	if (run->started)
		run->result->duration_us = cell__now_us() - run->started_us;
	save_image(run, OF_VALUE);
	cell__spill_close(&run->spill);
}

void cell__run_deliver(struct cell__run *run)
{
	if (run->waited) {
		/* As in cell__waiter_signal(): after the unlock the run may be gone. */
		cell__waiter_lock(&run->waiter);
		run->delivered = true;
		cell__waiter_set_done(&run->waiter, true);
		cell__waiter_unlock(&run->waiter);
		return;
	}
	struct cell_event event = { .type = CELL_EVENT_RESULT, .run_id = run->id, .result = cell__take_ptr(run->result) };
	if (run->on_event)
		run->on_event(run->event_arg, &event);
	else
		cell_result_destroy(event.result);
	cell__run_destroy(run);
}
