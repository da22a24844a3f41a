/* Recording a session, and answering one that is replayed; see recording.h. */
#define _GNU_SOURCE
#include "session/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "wire/json_check.h"

#define CLOCK_METHOD "recording.clock" /* of kernel/workcell_kernel/recorded.py */
/* Nobody waits for its answer, which may come after the end of the recording: it is neither recorded nor compared. */
#define UNANSWERED_METHOD "artifacts.load_close"
#define WRITE_BYTES (64u << 10)        /* a write wakes a thread of the pool */

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- writing ---- */

static void start_write(struct cell__recorder *recorder);

static void end_recording(struct cell__recorder *recorder, const char *why)
{
	if (!recorder->problem[0])
		snprintf(recorder->problem, sizeof recorder->problem, "the recording of this session ended: %s", why);
	cell__buf_finish(&recorder->waiting);
}

/* On the pool's thread: touches fd, writing and write_error only, which the loop leaves alone while busy. */
static void write_out(uv_work_t *work)
{
	struct cell__recorder *recorder = work->data;
	if (cell__fd_write_all(recorder->fd, recorder->writing.data, recorder->writing.size) < 0)
		recorder->write_error = errno;
}

static void handle_written(uv_work_t *work, int status)
{
	struct cell__recorder *recorder = work->data;
	(void)status; /* never cancelled */
	recorder->busy = false;
	recorder->writing.size = 0;
	--*recorder->filing;
	if (recorder->write_error)
		end_recording(recorder, strerror(recorder->write_error));
	if (recorder->waiting.size > 0)
		start_write(recorder);
	recorder->progress(recorder->arg);
}

static void start_write(struct cell__recorder *recorder)
{
	struct cell__buf swap = recorder->writing;
	recorder->writing = recorder->waiting;
	recorder->waiting = swap;
	recorder->waiting.size = 0;
	recorder->busy = true;
	recorder->work.data = recorder;
	++*recorder->filing;
	uv_queue_work(cell__loop_uv(recorder->loop), &recorder->work, write_out, handle_written);
}

/* The line is taken over.  flushes: a reader may want it now. */
static void add_line(struct cell__recorder *recorder, json_t *line, bool flushes)
{
	const size_t before = recorder->waiting.size;
	if (recorder->problem[0]) {
		json_decref(line);
		return;
	}
	if (cell__recording_add(&recorder->waiting, line) < 0) {
		recorder->waiting.size = before;
		end_recording(recorder, "out of memory, or a text that is not UTF-8");
		return;
	}
	const size_t added = recorder->waiting.size - before;
	if (added > CELL_RECORDING_LINE_BYTES || recorder->bytes + added > CELL_RECORDING_BYTES) {
		recorder->waiting.size = before;
		end_recording(recorder, added > CELL_RECORDING_LINE_BYTES ? "a line of it would be too long" : "it is full (256 MiB)");
		return;
	}
	recorder->bytes += added;
	if (!recorder->busy && (flushes || recorder->waiting.size >= WRITE_BYTES))
		start_write(recorder);
}

int cell__recorder_unwritten(const struct cell__recorder *recorder, struct cell__buf *out, uint64_t *ret_at)
{
	if ((recorder->busy && cell__buf_add(out, recorder->writing.data, recorder->writing.size) < 0) ||
	    cell__buf_add(out, recorder->waiting.data, recorder->waiting.size) < 0)
		return -1;
	*ret_at = recorder->bytes - out->size;
	return 0;
}

/* ---- opening ---- */

static int create_file(const char *given, const char *id, char **ret_path, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	struct stat st;
	bool is_folder = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
	if (cell__buf_printf(&name, "%s%s%s%s", given, is_folder ? "/" : "", is_folder ? id : "", is_folder ? ".jsonl" : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a recording");
	const char *path = name.data;
	*ret_fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (*ret_fd < 0 && errno == EEXIST)
		return cell_fail(err, CELL_E_CONFLICT, 0, "%.150s exists: remove it, or record to another file", path);
	if (*ret_fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot record to %.150s", path);
	*ret_path = cell__buf_take(&name);
	return 0;
}

static int open_record(struct cell__recorder *recorder, const char *path, const char *id, const char *executor, const char *python,
		       bool namespaces, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	struct utsname machine;
	uname(&machine);
	if (create_file(path, id, &recorder->path, &recorder->fd, err) < 0)
		return -1;
	cell__random_hex(recorder->seed, CELL_RECORDING_SEED);
	if (cell__recording_add(&line,
				json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:b, s:I}", "workcell_recording", CELL_RECORDING_VERSION,
					  "version", CELL_VERSION, "executor", executor, "python", python, "machine", machine.machine,
					  "seed", recorder->seed, "namespaces", namespaces, "started_ms", (json_int_t)now_ms())) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a recording");
	recorder->bytes = line.size;
	if (cell__fd_write_all(recorder->fd, line.data, line.size) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot record to %.150s", path);
	return 0;
}

static int open_replay(struct cell__recorder *recorder, const char *path, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	recorder->replays = true;
	if (cell__file_load("the recording", path, 0, CELL_RECORDING_BYTES, &text, err) < 0 ||
	    cell__recording_read(text.data ? text.data : "", text.size, &recorder->replayed, err) < 0)
		return -1;
	memcpy(recorder->seed, recorder->replayed.seed, sizeof recorder->seed);
	return 0;
}

int cell__recorder_create(const char *record, const char *replay, const char *id, const char *executor, const char *python, bool namespaces,
			  struct cell__recorder **ret_recorder, struct cell_error *err)
{
	struct cell__recorder *recorder = cell__alloc(1, sizeof *recorder);
	if (!recorder)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a recording");
	recorder->fd = -1;
	int rc = replay ? open_replay(recorder, replay, err) : open_record(recorder, record, id, executor, python, namespaces, err);
	if (rc < 0) {
		cell__recorder_destroy(recorder);
		return -1;
	}
	*ret_recorder = recorder;
	return 0;
}

void cell__recorder_destroy(struct cell__recorder *recorder)
{
	if (!recorder)
		return;
	if (recorder->path && !recorder->loop)
		(void)unlink(recorder->path); /* the session could not be opened */
	free(recorder->path);
	cell__recording_finish(&recorder->replayed);
	cell__close_fd(&recorder->fd);
	cell__buf_finish(&recorder->waiting);
	cell__buf_finish(&recorder->writing);
	free(recorder->strange);
	free(recorder);
}

static void remove_file(uv_work_t *work)
{
	const struct cell__recorder *recorder = work->data;
	(void)unlink(recorder->path);
}

static void handle_removed(uv_work_t *work, int status)
{
	struct cell__recorder *recorder = work->data;
	(void)status; /* never cancelled */
	--*recorder->filing;
	recorder->progress(recorder->arg);
}

void cell__recorder_close(struct cell__recorder *recorder)
{
	if (recorder->cells > 0 || !recorder->path || !recorder->loop)
		return;
	recorder->work.data = recorder;
	++*recorder->filing;
	uv_queue_work(cell__loop_uv(recorder->loop), &recorder->work, remove_file, handle_removed);
}

/* ---- cells ---- */

void cell__recorder_begin_cell(struct cell__recorder *recorder, const char *code, size_t size, int64_t timeout_ms)
{
	if (recorder->replays) {
		recorder->at++;
		return;
	}
	recorder->cells++;
	add_line(recorder,
		 json_pack("{s:I, s:s%, s:I, s:I}", "cell", (json_int_t)recorder->cells, "code", code, size, "timeout_ms",
			   (json_int_t)timeout_ms, "at_ms", (json_int_t)now_ms()),
		 false);
}

json_t *cell__recorder_describe(const struct cell_result *result)
{
	static const char *const left_out[] = { "isolation", "duration_ms", "spill", "session_id", "text",
						"images",    "notices",     "value", "changes" };
	struct cell_result copy = *result;
	copy.value_json = NULL; /* its numbers may be larger than a tree can hold */
	copy.isolation = "{}";
	CELL_AUTO_FREE char *text = cell_result_json(&copy);
	json_t *all = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
	if (text && !all)
		all = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
	for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
		json_object_del(all, left_out[i]);
	if (all)
		json_object_set_new(all, "value_json", result->value_json ? json_string(result->value_json) : json_null());
	return all;
}

void cell__recorder_end_cell(struct cell__recorder *recorder, struct cell_result *result)
{
	if (recorder->replays)
		return;
	add_line(recorder, json_pack("{s:o}", "result", cell__recorder_describe(result)), true);
	if (recorder->problem[0] && !recorder->is_told) {
		recorder->is_told = true;
		cell__result_add_notice(result, recorder->problem);
	}
}

void cell__recorder_reset(struct cell__recorder *recorder)
{
	if (!recorder->replays && recorder->cells > 0)
		add_line(recorder, json_pack("{s:b}", "reset", 1), true);
}

/* ---- calls ---- */

static int add_raw(json_t *line, const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (size == 0)
		return 0;
	return cell__buf_add_base64(&text, bytes, size) < 0 ? -1 : json_object_set_new(line, name, json_stringn(text.data, text.size));
}

static bool is_unanswered(const json_t *method)
{
	return json_is_string(method) && strcmp(json_string_value(method), UNANSWERED_METHOD) == 0;
}

void cell__recorder_add_call(struct cell__recorder *recorder, const char *asked, size_t size, const void *raw, size_t raw_size,
			     const char *answer, const void *answer_raw, size_t answer_size, const char *progress)
{
	if (recorder->problem[0])
		return;
	json_t *call = json_loadb(asked, size, JSON_ALLOW_NUL, NULL);
	if (is_unanswered(json_object_get(call, "method"))) {
		json_decref(call);
		return;
	}
	json_t *line = json_pack("{s:o, s:o}", "call", call, "answer", json_loads(answer, JSON_ALLOW_NUL, NULL));
	if (!line || add_raw(line, "raw", raw, raw_size) < 0 || add_raw(line, "answer_raw", answer_raw, answer_size) < 0 ||
	    (progress && json_object_set_new(line, "progress", json_string(progress)) < 0)) {
		json_decref(line);
		end_recording(recorder, "a call of the code cannot be written as JSON");
		return;
	}
	add_line(recorder, line, false);
}

static struct cell__recorded_call *find_call(struct cell__recorder *recorder, const json_t *method, const json_t *args, const void *raw,
					     size_t raw_size)
{
	struct cell__recording *recording = &recorder->replayed;
	const uint64_t key = cell__recording_key(method, args, raw_size);
	while (recorder->first_unused < recording->n_calls && recording->calls[recorder->first_unused].used)
		recorder->first_unused++;
	for (size_t i = recorder->first_unused; i < recording->n_calls; i++) {
		struct cell__recorded_call *call = &recording->calls[i];
		if (!call->used && call->key == key && call->raw.size == raw_size &&
		    (raw_size == 0 || memcmp(call->raw.data, raw, raw_size) == 0) &&
		    json_equal(json_object_get(call->asked, "method"), method) && json_equal(json_object_get(call->asked, "args"), args))
			return call;
	}
	return NULL;
}

static char *refusal(const char *method)
{
	json_t *error = json_pack("{s:{s:s, s:s++, s:s}}", "error", "type", "RuntimeError", "message", "the recording has no such call of ",
				  method, " left: tools are offline in a replay", "code", cell_code_word(CELL_E_DIFFERS));
	char *text = error ? json_dumps(error, JSON_COMPACT) : NULL;
	json_decref(error);
	return text;
}

/* The times of a cell: given back in a replay, and written otherwise. */
static char *answer_clock(struct cell__recorder *recorder, const json_t *args)
{
	const struct cell__recording *recording = &recorder->replayed;
	json_t *clock = NULL;
	if (!recorder->replays) {
		json_t *values = json_object_get(args, "values");
		if (json_is_object(values) && recorder->cells > 0)
			add_line(recorder, json_pack("{s:O}", "clock", values), false);
	} else if (recorder->at > 0 && recorder->at <= recording->n_cells) {
		clock = recording->cells[recorder->at - 1].clock;
	}
	json_t *answer = json_pack("{s:O?}", "result", clock);
	char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
	json_decref(answer);
	return text;
}

bool cell__recorder_answer(struct cell__recorder *recorder, const struct cell__asked *asked, struct cell__recorded_answer *ret_answer)
{
	static const char clock_head[] = "{\"method\":\"" CLOCK_METHOD "\"";
	*ret_answer = (struct cell__recorded_answer){ 0 };
	if (!recorder->replays && (asked->json_size < sizeof clock_head || memcmp(asked->json, clock_head, sizeof clock_head - 1) != 0))
		return false;
	const size_t weight = asked->weight ? asked->weight : cell__json_weigh(asked->json, asked->json_size);
	if (weight > CELL_LIMIT_TREE_BYTES)
		return false; /* refused as in any session */
	json_t *document = asked->is_read ? json_incref(asked->document)
					  : json_loadb(asked->json, asked->json_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	json_t *method = json_object_get(document, "method"), *args = json_object_get(document, "args");
	if (!json_is_string(method) || !json_is_object(args)) {
		json_decref(document);
		return false;
	}
	struct cell__recorded_call *call = NULL;
	if (strcmp(json_string_value(method), "cancel") == 0) {
		ret_answer->silent = true;
	} else if (recorder->replays && is_unanswered(method)) {
		ret_answer->text = "{\"result\":null}";
	} else if (strcmp(json_string_value(method), CLOCK_METHOD) == 0) {
		ret_answer->text = ret_answer->own = answer_clock(recorder, args);
	} else if ((call = find_call(recorder, method, args, asked->raw, asked->raw_size))) {
		call->used = true;
		ret_answer->text = call->answer;
		ret_answer->raw = call->answer_raw.data;
		ret_answer->raw_size = call->answer_raw.size;
		ret_answer->progress = call->progress;
	} else {
		ret_answer->text = ret_answer->own = refusal(json_string_value(method));
		if (!recorder->strange)
			recorder->strange = json_dumps(document, JSON_COMPACT);
	}
	json_decref(document);
	return true;
}
