/*
 * The `deno` executor: the kernel package in Pyodide, in a Deno process of its own (deno/runner.mjs has its inside).
 *
 *     (asking for the package index's hosts, if the code may reach those) ──▶
 *     starting ──HELLO──▶ opening (INIT) ──READY──▶ live ──close, death──▶ ending ──exit──▶ exited() and gone
 *         └──exit, timeout──▶ its snapshot is removed (pool) ──▶ once more, if there was one; else exited() with the reason
 *
 * Frames go over the process's stdin and stdout; there is no shared memory.  Output comes as frames too, so everything
 * arrives in order.  Interrupts are frames that the runner's main thread reads while Python runs in another.  The end of the
 * process's stderr is the reason of its end.
 *
 * A runner without a matching snapshot sends a new one before HELLO, that is, before any code of a session can
 * have run; it is written to the cache in the pool (to a file of its own, then renamed).
 *
 * Invariant: a kernel is freed only when its process has ended and none of its work is in the pool.
 */
#define _GNU_SOURCE
#include "executors/deno/deno.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "executors/reader.h"
#include "executors/deno/files.h"
#include "executors/registry.h"
#include "executors/subprocess/subprocess.h"
#include "spawn/process.h"
#include "wire/frame.h"

#define WORDS_BYTES 2048u                   /* of its last words */
#define TRIES 2
#define PLAIN_START_TIMES 4                 /* that much longer may a start take that has no snapshot */
#define HOSTS_BYTES 65536u
#define SNAPSHOT_HEAD_BYTES 72u
/* Exit statuses of runner.mjs. */
#define RUNNER_FAILED 70
#define RUNNER_PRELOAD 71

enum state { ASKING, STARTING, OPENING, LIVE, ENDING };

struct job {
	uv_work_t work;
	bool under_way;
	char *path;
	char *bytes;
	size_t size;
	int error;
};

/* Packages for the session, read while the process starts. */
struct wheels {
	uv_work_t work;
	bool under_way;
	char *folder; /* NULL: there are none */
	json_t *manifest;
	struct cell__buf bytes;
	struct cell_error error;
};

struct kernel {
	struct cell__kernel base;
	struct cell__executor_host *host;
	struct cell__deno *deno;
	struct cell__process *process; /* NULL: it has ended */
	enum state state;
	int tries;
	bool asked;
	bool late; /* it was not ready in time */
	bool plain; /* there is no snapshot to start from */
	struct cell__process_exit failed; /* the start that is tried again */
	struct cell__exit how;
	struct cell_error error;
	const struct cell__kernel_events *events;
	void *owner;
	char *init, *preload, *network, *snapshot;
	char *allow_net; /* the flag that the network profile comes to; NULL: not known yet */
	struct cell__buf in;
	struct cell__reader reader;
	struct cell__buf read_from; /* where its frame lies */
	struct cell__buf words;
	struct job job;
	struct wheels wheels;
	uv_timer_t timer; /* start timeout, then grace */
	bool paused;
	bool resuming; /* the task is on its way */
	struct cell__task resume;
};

static int start_process(struct kernel *kernel, struct cell_error *err);

#define LOG(kernel, level, ...) (kernel)->host->log((kernel)->host->log_arg, level, __VA_ARGS__)

/* ---- the end ---- */

static void handle_timer_closed(uv_handle_t *handle)
{
	struct kernel *kernel = handle->data;
	free(kernel->init);
	free(kernel->preload);
	free(kernel->network);
	free(kernel->snapshot);
	free(kernel->allow_net);
	free(kernel->job.path);
	free(kernel->job.bytes);
	free(kernel->wheels.folder);
	json_decref(kernel->wheels.manifest);
	cell__buf_finish(&kernel->wheels.bytes);
	cell__buf_finish(&kernel->in);
	cell__buf_finish(&kernel->read_from);
	cell__buf_finish(&kernel->words);
	free(kernel);
}

static void maybe_gone(struct kernel *kernel)
{
	if (kernel->process || kernel->job.under_way || kernel->wheels.under_way || kernel->resuming || kernel->reader.at_work ||
	    uv_is_closing((uv_handle_t *)&kernel->timer))
		return;
	kernel->how.asked = kernel->asked;
	if (kernel->error.code)
		kernel->how.error = kernel->error;
	uv_close((uv_handle_t *)&kernel->timer, handle_timer_closed);
	kernel->events->exited(kernel->owner, &kernel->how);
}

static void end_kernel(struct kernel *kernel, int code, const char *reason)
{
	if (kernel->error.code == 0 && reason)
		cell_fail(&kernel->error, code, 0, "%s", reason);
	kernel->state = ENDING;
	if (kernel->process)
		cell__process_kill(kernel->process);
}

static void break_kernel(struct kernel *kernel, const char *problem)
{
	char reason[200];
	snprintf(reason, sizeof reason, "the kernel broke the protocol: %s", problem);
	end_kernel(kernel, CELL_E_PROTOCOL, reason);
}

/* ---- snapshots ---- */

static void write_snapshot(uv_work_t *work)
{
	struct job *job = (struct job *)work;
	job->error = cell__deno_write_snapshot(job->path, job->bytes, job->size);
}

static void handle_snapshot_written(uv_work_t *work, int status)
{
	(void)status;
	struct kernel *kernel = (struct kernel *)((char *)work - offsetof(struct kernel, job));
	kernel->job.under_way = false;
	free(cell__take_ptr(kernel->job.bytes));
	if (kernel->job.error)
		LOG(kernel, CELL_LOG_WARN, "cannot write Pyodide's snapshot to %s: %s; sessions will start slowly", kernel->job.path,
		    strerror(kernel->job.error));
	maybe_gone(kernel);
}

static const char *keep_snapshot(struct kernel *kernel, const struct cell_frame *frame)
{
	if (kernel->state != STARTING || kernel->job.path)
		return "SNAPSHOT after HELLO";
	if (frame->json_size != SNAPSHOT_HEAD_BYTES)
		return "SNAPSHOT with a head of the wrong size";
	struct job *job = &kernel->job;
	size_t size = (size_t)frame->json_size + frame->raw_size;
	job->path = cell__strdup(kernel->snapshot);
	job->bytes = cell__alloc(1, size);
	if (!job->path || !job->bytes)
		return NULL; /* the next one tries again */
	memcpy(job->bytes, frame->json, frame->json_size);
	memcpy(job->bytes + frame->json_size, frame->raw, frame->raw_size);
	job->size = size;
	job->under_way = uv_queue_work(cell__loop_uv(kernel->host->loop), &job->work, write_snapshot, handle_snapshot_written) == 0;
	return NULL;
}

/* ---- packages ---- */

static void read_wheels(uv_work_t *work)
{
	struct wheels *wheels = (struct wheels *)work;
	(void)cell__deno_read_wheels(wheels->folder, &wheels->manifest, &wheels->bytes, &wheels->error);
}

static void send_init(struct kernel *kernel);

static void handle_wheels_read(uv_work_t *work, int status)
{
	(void)status;
	struct kernel *kernel = (struct kernel *)((char *)work - offsetof(struct kernel, wheels));
	kernel->wheels.under_way = false;
	if (kernel->wheels.error.code && kernel->error.code == 0) {
		kernel->error = kernel->wheels.error;
		end_kernel(kernel, 0, NULL);
	} else if (kernel->state == OPENING) {
		send_init(kernel);
	}
	maybe_gone(kernel);
}

/* ---- its messages ---- */

static int send_frame(struct kernel *kernel, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
		      size_t raw_size, struct cell_error *err)
{
	struct cell_frame frame = { .type = type, .id = id, .json_size = (uint32_t)json_size, .raw_size = (uint32_t)raw_size };
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	if (!kernel->process)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return cell_fail(err, CELL_E_LIMIT, 0, "a frame may carry at most %u + %u bytes", CELL_FRAME_MAX_JSON, CELL_FRAME_MAX_RAW);
	cell__frame_encode_header(&frame, header);
	/* Out of memory in the middle of a frame ends its stdin, and with it the kernel. */
	if (cell__process_write(kernel->process, header, sizeof header, err) < 0 ||
	    (json_size > 0 && cell__process_write(kernel->process, json, json_size, err) < 0) ||
	    (raw_size > 0 && cell__process_write(kernel->process, raw, raw_size, err) < 0))
		return -1;
	return 0;
}

static void send_init(struct kernel *kernel)
{
	json_t *init = json_loads(kernel->init, 0, NULL);
	if (init && kernel->wheels.manifest)
		json_object_set(init, "wheels", kernel->wheels.manifest);
	CELL_AUTO_FREE char *text = init ? json_dumps(init, JSON_COMPACT) : NULL;
	json_decref(init);
	if (!text)
		end_kernel(kernel, CELL_E_NOMEM, "out of memory");
	else if (send_frame(kernel, CELL_FRAME_INIT, 0, text, strlen(text), kernel->wheels.bytes.data, kernel->wheels.bytes.size,
			    &kernel->error) < 0)
		end_kernel(kernel, 0, NULL);
}

static const char *handle_ready(struct kernel *kernel, const struct cell_frame *frame)
{
	struct cell_error refusal;
	if (kernel->state != OPENING)
		return "READY without INIT";
	const char *problem = cell__answer_ready(frame, &refusal);
	if (problem)
		return problem;
	if (refusal.code) {
		end_kernel(kernel, refusal.code, refusal.msg);
		return NULL;
	}
	uv_timer_stop(&kernel->timer);
	kernel->state = LIVE;
	kernel->events->ready(kernel->owner);
	return NULL;
}

static const char *handle_early_frame(struct kernel *kernel, const struct cell_frame *frame)
{
	switch (frame->type) {
	case CELL_FRAME_SNAPSHOT:
		return keep_snapshot(kernel, frame);
	case CELL_FRAME_HELLO:
		if (kernel->state != STARTING)
			return "HELLO twice";
		kernel->state = OPENING;
		if (!kernel->wheels.under_way)
			send_init(kernel);
		return NULL;
	case CELL_FRAME_READY:
		return handle_ready(kernel, frame);
	case CELL_FRAME_OUTPUT:
		return NULL; /* of modules that are imported ahead */
	default:
		return "an unexpected frame before READY";
	}
}

static const char *handle_live_frame(struct kernel *kernel, const struct cell_frame *frame)
{
	if (frame->type != CELL_FRAME_OUTPUT) {
		struct cell__read read;
		cell__read_frame(frame, &read);
		const char *problem = cell__answer_hand_on(frame, &read, kernel->events, kernel->owner);
		cell__read_finish(&read);
		return problem;
	}
	kernel->events->output(kernel->owner, frame->flags == CELL_STDERR ? CELL_STDERR : CELL_STDOUT, (const char *)frame->raw,
			       frame->raw_size);
	return NULL;
}

static bool is_held(const struct kernel *kernel)
{
	return kernel->paused || (kernel->reader.at_work && !kernel->reader.taken);
}

static void go_on(struct kernel *kernel);

/* Large frames are read on the pool, and no others in the meantime; the buffer with the frame goes to the reader. */
static bool read_elsewhere(struct kernel *kernel, const struct cell_frame *frame, size_t used)
{
	struct cell__buf rest = CELL_BUF_INIT;
	if (!kernel->process || kernel->state != LIVE || kernel->reader.at_work || !cell__reader_wants(frame) ||
	    cell__buf_add(&rest, kernel->in.data + used, kernel->in.size - used) < 0)
		return false;
	if (cell__reader_start(&kernel->reader, kernel->host->loop, frame) < 0) {
		cell__buf_finish(&rest);
		return false;
	}
	kernel->read_from = kernel->in;
	kernel->in = rest;
	cell__process_pause(kernel->process, true);
	return true;
}

static void hand_on_read(struct kernel *kernel)
{
	struct cell__reader *reader = &kernel->reader;
	const char *problem = cell__answer_hand_on(&reader->frame, &reader->read, kernel->events, kernel->owner);
	if (problem)
		break_kernel(kernel, problem);
}

static void handle_read(struct cell__reader *reader)
{
	struct kernel *kernel = (struct kernel *)((char *)reader - offsetof(struct kernel, reader));
	if (kernel->state != ENDING)
		hand_on_read(kernel);
}

static void handle_reader_over(struct cell__reader *reader)
{
	struct kernel *kernel = (struct kernel *)((char *)reader - offsetof(struct kernel, reader));
	cell__buf_finish(&kernel->read_from);
	if (kernel->process && !kernel->paused)
		go_on(kernel);
	maybe_gone(kernel);
}

static void take_frames(struct kernel *kernel)
{
	struct cell_frame frame;
	size_t used = 0, need;
	while (!is_held(kernel) && kernel->state != ENDING && used < kernel->in.size) {
		const uint8_t *bytes = (const uint8_t *)kernel->in.data + used;
		enum cell_frame_status status = cell__frame_decode(bytes, kernel->in.size - used, &frame, &need);
		if (status == CELL_FRAME_MORE)
			break;
		const char *problem = cell__frame_status_word(status);
		if (status == CELL_FRAME_OK) {
			used += need;
			if (read_elsewhere(kernel, &frame, used))
				return;
			problem = kernel->state == LIVE ? handle_live_frame(kernel, &frame) : handle_early_frame(kernel, &frame);
		}
		if (problem)
			break_kernel(kernel, problem);
	}
	if (used == kernel->in.size && kernel->in.capacity > 1u << 20)
		cell__buf_finish(&kernel->in); /* a large frame's memory is not kept */
	else
		cell__buf_shift(&kernel->in, used);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct kernel *kernel = owner;
	if (stream == CELL_STDERR) {
		if (kernel->words.size < WORDS_BYTES)
			(void)cell__buf_add(&kernel->words, bytes, size < WORDS_BYTES ? size : WORDS_BYTES);
		return;
	}
	if (kernel->state == ENDING && !kernel->asked)
		return;
	if (cell__buf_add(&kernel->in, bytes, size) < 0) {
		end_kernel(kernel, CELL_E_NOMEM, "out of memory for a frame");
		return;
	}
	take_frames(kernel);
}

/* ---- its process ---- */

/* Explains its end by the last lines of the process. */
static void explain_end(struct kernel *kernel, const struct cell__process_exit *how)
{
	char line[200] = "";
	if (kernel->words.size > 0) {
		size_t size = strcspn(kernel->words.data, "\n");
		snprintf(line, sizeof line, "%.*s", (int)(size < sizeof line - 1 ? size : sizeof line - 1), kernel->words.data);
		if (!cell__utf8_ok(line, strlen(line)))
			line[0] = '\0';
	}
	if (how->error == ECONNRESET)
		cell_fail(&kernel->error, CELL_E_SPAWNER, 0, "the spawner died and ended all its sessions; open a new session");
	else if (how->error)
		cell_fail(&kernel->error, CELL_E_UNAVAILABLE, how->error, "start Deno");
	else if (kernel->words.size > 0 && strstr(kernel->words.data, "out of memory"))
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel ran out of memory");
	else if (!how->signalled && how->status == RUNNER_PRELOAD)
		cell_fail(&kernel->error, CELL_E_PRELOAD, 0, "%s", line);
	else if (!how->signalled && how->status == RUNNER_FAILED && line[0])
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "%s", line);
}

static void handle_over(struct kernel *kernel, const struct cell__process_exit *how)
{
	kernel->paused = false;
	if (cell__reader_await(&kernel->reader) && kernel->state == LIVE)
		hand_on_read(kernel);
	take_frames(kernel); /* frames sent before count, also a result */
	if (kernel->error.code == 0 && !kernel->asked)
		explain_end(kernel, how);
	kernel->state = ENDING;
	kernel->how.known = how->error == 0;
	kernel->how.status = how->signalled ? how->status : how->status << 8;
	maybe_gone(kernel);
}

static void remove_snapshot(uv_work_t *work)
{
	struct job *job = (struct job *)work;
	job->error = unlink(job->path) < 0 ? errno : 0;
}

static void handle_snapshot_removed(uv_work_t *work, int status)
{
	(void)status;
	struct kernel *kernel = (struct kernel *)((char *)work - offsetof(struct kernel, job));
	kernel->job.under_way = false;
	free(cell__take_ptr(kernel->job.path));
	if (kernel->job.error || kernel->asked || kernel->wheels.error.code) {
		handle_over(kernel, &kernel->failed);
		return;
	}
	LOG(kernel, CELL_LOG_WARN, "a Deno runner did not start from its snapshot; the snapshot is made again");
	kernel->error = (struct cell_error){ 0 };
	kernel->late = false;
	kernel->plain = true;
	cell__buf_finish(&kernel->in);
	cell__buf_finish(&kernel->words);
	if (start_process(kernel, &kernel->error) < 0)
		handle_over(kernel, &kernel->failed);
}

/* A start that failed: the snapshot may be the cause. */
static bool try_again(struct kernel *kernel, const struct cell__process_exit *how)
{
	struct job *job = &kernel->job;
	if (kernel->asked || kernel->state == LIVE || (kernel->state == ENDING && !kernel->late) || how->error || kernel->tries >= TRIES ||
	    job->path || !(job->path = cell__strdup(kernel->snapshot)))
		return false;
	kernel->failed = *how;
	kernel->state = ENDING;
	job->under_way = uv_queue_work(cell__loop_uv(kernel->host->loop), &job->work, remove_snapshot, handle_snapshot_removed) == 0;
	return job->under_way;
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct kernel *kernel = owner;
	kernel->process = NULL;
	uv_timer_stop(&kernel->timer);
	if (!try_again(kernel, how))
		handle_over(kernel, how);
}

static void handle_late(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	kernel->late = true;
	end_kernel(kernel, CELL_E_TIMEOUT, "Deno and Pyodide were not ready in time");
}

static int start_process(struct kernel *kernel, struct cell_error *err)
{
	struct cell__deno *deno = kernel->deno;
	CELL_AUTO_DENO_COMMAND struct cell__deno_command command = { 0 };
	if (cell__deno_command_init(&command, deno, kernel->snapshot, kernel->preload, kernel->network, kernel->allow_net, err) < 0)
		return -1;
	struct cell__process_spec spec = {
		.argv = command.argv,
		.env = cell__deno_env,
		.path = "/usr/bin:/bin",
		.cwd = "/",
		.timeout_ms = -1,
		.want_stdin = true,
		.output = handle_output,
		.exited = handle_exited,
		.owner = kernel,
	};
	kernel->state = STARTING;
	kernel->tries++;
	if (cell__process_start(deno->supervisor, &spec, &kernel->process, err) < 0)
		return -1;
	uv_update_time(cell__loop_uv(kernel->host->loop));
	uv_timer_start(&kernel->timer, handle_late, (uint64_t)deno->start_timeout_ms * (kernel->plain ? PLAIN_START_TIMES : 1), 0);
	return 0;
}

/* ---- the package index ---- */

static void handle_hosts_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct kernel *kernel = owner;
	if (stream == CELL_STDOUT && kernel->in.size < HOSTS_BYTES)
		(void)cell__buf_add(&kernel->in, bytes, size);
}

static void handle_hosts(void *owner, const struct cell__process_exit *how)
{
	struct kernel *kernel = owner;
	CELL_AUTO_BUF struct cell__buf flag = CELL_BUF_INIT;
	kernel->process = NULL;
	uv_timer_stop(&kernel->timer);
	bool ok = !kernel->asked && how->error == 0 && !how->signalled && how->status == 0 && kernel->in.size > 0;
	/* Without a known index there is no host to reach. */
	int rc = cell__buf_add_str(&flag, kernel->in.size > 1 ? "--allow-net=" : "--deny-net");
	for (const char *at = ok && kernel->in.size > 1 ? kernel->in.data : ""; *at; at++) {
		ok = ok && ((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || strchr(".:-\n", *at));
		rc |= cell__buf_add(&flag, *at == '\n' ? at[1] ? "," : "" : at, *at == '\n' && !at[1] ? 0 : 1);
	}
	cell__buf_finish(&kernel->in);
	if (!ok && !kernel->asked)
		cell_fail(&kernel->error, CELL_E_UNAVAILABLE, 0,
			  "cannot find out the configured package index, which the network profile deps-only needs");
	else if (ok && rc == 0 && (kernel->allow_net = cell__buf_take(&flag)) && start_process(kernel, &kernel->error) == 0)
		return;
	kernel->state = ENDING;
	maybe_gone(kernel);
}

/* The interpreter of the host knows how its installers are configured. */
static int ask_hosts(struct kernel *kernel, const char *python, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf script = CELL_BUF_INIT, home = CELL_BUF_INIT;
	if (cell__buf_printf(&script, "%s/index_hosts.py", kernel->deno->kernel_dir) < 0 ||
	    cell__buf_printf(&home, "HOME=%s", cell__home_dir()) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	const char *argv[] = { python, "-I", script.data, NULL }, *env[] = { home.data, "LANG=C.UTF-8", NULL };
	struct cell__process_spec spec = {
		.argv = argv,
		.env = env,
		.path = "/usr/bin:/bin",
		.cwd = "/",
		.timeout_ms = kernel->deno->start_timeout_ms,
		.output = handle_hosts_output,
		.exited = handle_hosts,
		.owner = kernel,
	};
	kernel->state = ASKING;
	return cell__process_start(kernel->deno->supervisor, &spec, &kernel->process, err);
}

/* ---- the executor ---- */

/* Deno's flag for a network that needs no further question; NULL: out of memory. */
static char *net_flag(const char *network)
{
	const char *hosts = cell__network_hosts(network);
	char *flag = NULL;
	if (!hosts)
		return cell__strdup(strcmp(network, "full") == 0 ? "--allow-net" : "--deny-net");
	return asprintf(&flag, "--allow-net=%s", hosts) < 0 ? NULL : flag;
}

/* What is looked up before a kernel is opened: its snapshot. */
struct found {
	char *snapshot;
	bool plain; /* it does not exist */
};

static void deno_discard(void *arg)
{
	struct found *found = arg;
	free(found->snapshot);
	free(found);
}

static int deno_resolve(struct cell__executor_host *host, const struct cell__kernel_spec *spec, void **ret_found, struct cell_error *err)
{
	struct cell_executor_info info = { 0 };
	cell__deno_probe(host, &info);
	if (!info.available)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "%.150s; %.80s", info.reason, info.advice);
	struct found *found = cell__alloc(1, sizeof *found);
	if (!found || !(found->snapshot = cell__deno_snapshot_path(*cell__executor_state(host, &cell__deno_executor), spec->preload))) {
		free(found);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	}
	found->plain = access(found->snapshot, R_OK) < 0;
	*ret_found = found;
	return 0;
}

static int deno_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		     void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct found *found = spec->found;
	char *snapshot = cell__take_ptr(found->snapshot);
	bool plain = found->plain;
	deno_discard(found);
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel) {
		free(snapshot);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	}
	struct cell__kernel_spec own = *spec;
	own.site = NULL; /* folders of the host are not there */
	kernel->base.executor = &cell__deno_executor;
	kernel->host = host;
	kernel->deno = *cell__executor_state(host, &cell__deno_executor);
	kernel->reader.ready = handle_read;
	kernel->reader.over = handle_reader_over;
	kernel->events = events;
	kernel->owner = owner;
	kernel->init = cell__kernel_spec_json(&own);
	kernel->preload = cell__strdup(spec->preload);
	kernel->network = cell__strdup(spec->own ? spec->own : "none");
	kernel->snapshot = snapshot;
	kernel->plain = plain;
	uv_timer_init(cell__loop_uv(host->loop), &kernel->timer);
	kernel->timer.data = kernel;
	int rc = 0;
	if (!kernel->init)
		rc = cell_fail(err, CELL_E_INVALID, 0, "working directory or environment is not valid UTF-8");
	else if (!kernel->preload || !kernel->network)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0 && spec->wheels && !(kernel->wheels.folder = cell__strdup(spec->wheels)))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	bool asks = strcmp(kernel->network ? kernel->network : "", "deps-only") == 0;
	if (rc == 0 && !asks && !(kernel->allow_net = net_flag(kernel->network)))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc < 0 || (asks ? ask_hosts(kernel, spec->python, err) : start_process(kernel, err)) < 0) {
		uv_close((uv_handle_t *)&kernel->timer, handle_timer_closed);
		return -1;
	}
	if (kernel->wheels.folder)
		kernel->wheels.under_way = uv_queue_work(cell__loop_uv(host->loop), &kernel->wheels.work, read_wheels,
							 handle_wheels_read) == 0;
	*ret_kernel = &kernel->base;
	return 0;
}

static int deno_check(const struct cell_session_options *opts, struct cell_error *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:[],";
	const char *hosts = cell__network_hosts(opts->network);
	if (hosts && (!*hosts || strspn(hosts, letters) != strlen(hosts) || *hosts == ',' || strstr(hosts, ",,")))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "network is \"%.80s\": with deno, allow= takes names and addresses, each with or without a port",
				 opts->network);
	return 0;
}

static void deno_drain(struct cell__kernel *base)
{
	(void)base; /* output and results come one behind the other */
}

static int deno_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	return send_frame((struct kernel *)base, CELL_FRAME_RUN, run_id, NULL, 0, code, size, err);
}

static int deno_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
		      struct cell_error *err)
{
	return send_frame((struct kernel *)base, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
}

static void deno_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	/* A kernel that cannot be notified is killed after the grace period. */
	(void)send_frame((struct kernel *)base, CELL_FRAME_INTERRUPT, run_id, NULL, 0, NULL, 0, NULL);
}

static void run_resume(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, resume));
	kernel->resuming = false;
	take_frames(kernel);
	maybe_gone(kernel);
}

static void go_on(struct kernel *kernel)
{
	cell__process_pause(kernel->process, false);
	if (kernel->resuming)
		return;
	kernel->resuming = true;
	kernel->resume.fn = run_resume;
	cell__loop_post(kernel->host->loop, &kernel->resume);
}

static void deno_pause(struct cell__kernel *base, bool paused)
{
	struct kernel *kernel = (struct kernel *)base;
	if (kernel->paused == paused || !kernel->process)
		return;
	kernel->paused = paused;
	if (paused)
		cell__process_pause(kernel->process, true);
	else if (!is_held(kernel))
		go_on(kernel);
}

static size_t deno_unread(const struct cell__kernel *base)
{
	const struct kernel *kernel = (const struct kernel *)base;
	return kernel->process ? cell__process_unread(kernel->process) : 0;
}

static void handle_grace_over(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	if (kernel->process)
		cell__process_kill(kernel->process);
}

static void deno_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct kernel *kernel = (struct kernel *)base;
	bool live = kernel->state == LIVE;
	kernel->asked = true;
	if (!kernel->process)
		return; /* on its way already */
	deno_pause(base, false);
	if (live && grace_ms > 0 && send_frame(kernel, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL) == 0) {
		uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)grace_ms, 0);
		return;
	}
	uv_timer_stop(&kernel->timer);
	cell__process_kill(kernel->process);
}

static int64_t deno_pid(const struct cell__kernel *base)
{
	const struct kernel *kernel = (const struct kernel *)base;
	return kernel->process ? cell__process_pid(kernel->process) : 0;
}

#define RECEIPT(network)                                                                                \
	"{\"executor\":\"deno\",\"level\":\"wasm\",\"namespaces\":[],\"seccomp\":false,\"landlock\":0," \
	"\"limits\":{\"memory\":268435456,\"files\":128,\"file_size\":0},\"network\":\"" network        \
	"\",\"filesystem\":\"memory\",\"skipped\":[]}"

static const char *deno_receipt_of(const struct cell__kernel *base)
{
	const struct kernel *kernel = (const struct kernel *)base;
	if (strcmp(kernel->network, "full") == 0)
		return RECEIPT("full");
	if (strcmp(kernel->network, "none") == 0)
		return RECEIPT("none");
	return cell__network_hosts(kernel->network) ? RECEIPT("allow") : RECEIPT("deps-only");
}

/* Its own option is the network profile, as text. */
static int deno_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err)
{
	*ret_own = cell__strdup(opts->network ? opts->network : "none");
	return *ret_own ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static bool deno_reaches_host(const void *own)
{
	return strcmp(own, "none") != 0;
}

const struct cell__executor cell__deno_executor = {
	.name = "deno",
	.isolation = "wasm",
	.takes = CELL_TAKES_NETWORK | CELL_TAKES_HOSTS,
	.untrusted = true,
	.wants_wheels = true,
	.create = cell__deno_create,
	.destroy = cell__deno_destroy,
	.read_options = deno_read_options,
	.free_options = free,
	.reaches_host = deno_reaches_host,
	.probe = cell__deno_probe,
	.check = deno_check,
	.resolve = deno_resolve,
	.discard = deno_discard,
	.open = deno_open,
	.drain = deno_drain,
	.run = deno_run,
	.reply = deno_reply,
	.unread = deno_unread,
	.interrupt = deno_interrupt,
	.pause = deno_pause,
	.close = deno_close,
	.pid = deno_pid,
	.receipt = RECEIPT("none"),
	.receipt_of = deno_receipt_of,
};
