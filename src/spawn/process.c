/*
 * Theory of operation: the spawner forks and reports the exit; we hold the other ends of the program's pipes.  A
 * process is over when three things have happened, in any order: the spawner reported its exit (it has killed the whole group by
 * then) and both streams are at their end.
 */
#define _GNU_SOURCE
#include "spawn/process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "spawn/confinement.h"
#include "spawn/supervisor.h"

#define READ_BYTES 65536
#define READS_PER_ITERATION 4 /* one flooding program does not keep the loop to itself */

struct stream_end {
	int fd;
	uv_poll_t poll;
	bool polled, ended;
};

struct cell__process {
	struct cell__supervisor *supervisor;
	uint64_t id;
	int64_t pid;
	struct cell__process_spec spec; /* callbacks only; strings are not kept */
	struct stream_end stream[2];
	int stdin_fd;
	uv_poll_t stdin_poll;
	bool stdin_polled, stdin_closing;
	struct cell__buf stdin_waiting;
	size_t stdin_sent; /* of it */
	uv_timer_t timer;
	struct cell__confinement *confine; /* a reference; NULL: none */
	struct cell__egress *egress;       /* its egress proxy, if it has one */
	int handles;
	bool exited, paused, closing;
	struct cell__process_exit how;
	struct cell__process *next;
};

static void maybe_over(struct cell__process *process);

static void handle_closed(uv_handle_t *handle)
{
	struct cell__process *process = handle->data;
	if (--process->handles > 0)
		return;
	for (int i = 0; i < 2; i++)
		cell__close_fd(&process->stream[i].fd);
	cell__close_fd(&process->stdin_fd);
	cell__buf_finish(&process->stdin_waiting);
	cell__confinement_unref(process->confine);
	free(process);
}

static void close_handles(struct cell__process *process)
{
	process->closing = true;
	for (int i = 0; i < 2; i++)
		if (process->stream[i].polled)
			uv_close((uv_handle_t *)&process->stream[i].poll, handle_closed);
	if (process->stdin_polled)
		uv_close((uv_handle_t *)&process->stdin_poll, handle_closed);
	uv_close((uv_handle_t *)&process->timer, handle_closed);
}

static void maybe_over(struct cell__process *process)
{
	if (!process->exited || !process->stream[0].ended || !process->stream[1].ended || process->closing)
		return;
	for (struct cell__process **at = &process->supervisor->processes; *at; at = &(*at)->next)
		if (*at == process) {
			*at = process->next;
			break;
		}
	void (*exited)(void *, const struct cell__process_exit *) = process->spec.exited;
	void *owner = process->spec.owner;
	struct cell__process_exit how = process->how;
	close_handles(process);
	if (exited)
		exited(owner, &how);
}

/* ---- its output ---- */

static void end_stream(struct stream_end *stream)
{
	stream->ended = true;
	if (stream->polled)
		uv_poll_stop(&stream->poll);
}

static void handle_output(uv_poll_t *poll, int status, int events)
{
	(void)events;
	struct cell__process *process = poll->data;
	int i = poll == &process->stream[0].poll ? 0 : 1;
	struct stream_end *stream = &process->stream[i];
	char bytes[READ_BYTES];
	for (int reads = 0; reads < READS_PER_ITERATION && !process->paused && !process->closing && !stream->ended; reads++) {
		ssize_t n = status < 0 ? -1 : read(stream->fd, bytes, sizeof bytes);
		if (n > 0) {
			if (process->spec.output)
				process->spec.output(process->spec.owner, i == 0 ? CELL_STDOUT : CELL_STDERR, bytes, (size_t)n);
			continue;
		}
		if (n < 0 && status == 0 && (errno == EAGAIN || errno == EINTR))
			return;
		end_stream(stream);
	}
	maybe_over(process);
}

bool cell__process_drain(struct cell__process *process)
{
	char bytes[READ_BYTES];
	for (int i = 0; i < 2; i++) {
		int waiting = 0; /* not more than that: a program that goes on writing does not keep us here */
		struct stream_end *stream = &process->stream[i];
		if (stream->ended || ioctl(stream->fd, FIONREAD, &waiting) < 0)
			continue;
		while (waiting > 0 && !process->closing) {
			if (process->paused)
				return false;
			ssize_t n = read(stream->fd, bytes, (size_t)waiting < sizeof bytes ? (size_t)waiting : sizeof bytes);
			if (n <= 0)
				break; /* the poll finds out why */
			waiting -= (int)n;
			if (process->spec.output)
				process->spec.output(process->spec.owner, i == 0 ? CELL_STDOUT : CELL_STDERR, bytes, (size_t)n);
		}
	}
	return true;
}

static void update_polls(struct cell__process *process)
{
	for (int i = 0; i < 2; i++) {
		if (process->stream[i].ended || process->closing)
			continue;
		if (process->paused)
			uv_poll_stop(&process->stream[i].poll);
		else
			uv_poll_start(&process->stream[i].poll, UV_READABLE, handle_output);
	}
}

void cell__process_pause(struct cell__process *process, bool paused)
{
	process->paused = paused;
	update_polls(process);
}

/* ---- its input ---- */

/*
 * One end of a socket pair, as programs often get it: writing to a reader that has ended is then an error instead of a SIGPIPE in a thread
 * of the host's, and the program reads an end of file.
 */
static void end_stdin(struct cell__process *process)
{
	if (process->stdin_polled)
		uv_poll_stop(&process->stdin_poll);
	cell__buf_finish(&process->stdin_waiting);
	process->stdin_sent = 0;
	process->stdin_closing = true;
	shutdown(process->stdin_fd, SHUT_WR);
}

/* How much of it was taken; -1 when the reader is gone. */
static ssize_t write_stdin(struct cell__process *process, const char *bytes, size_t size)
{
	size_t sent = 0;
	while (sent < size) {
		ssize_t n = process->spec.want_tty ? write(process->stdin_fd, bytes + sent, size - sent)
						   : send(process->stdin_fd, bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? (ssize_t)sent : -1;
		sent += (size_t)n;
	}
	return (ssize_t)sent;
}

static void handle_writable(uv_poll_t *poll, int status, int events)
{
	(void)events;
	struct cell__process *process = poll->data;
	struct cell__buf *waiting = &process->stdin_waiting;
	ssize_t n = -1;
	if (status >= 0)
		n = write_stdin(process, waiting->data + process->stdin_sent, waiting->size - process->stdin_sent);
	if (n < 0) {
		end_stdin(process); /* it reads no more; its exit will tell */
		return;
	}
	process->stdin_sent += (size_t)n;
	if (process->stdin_sent < waiting->size) {
		/* Else the bytes already sent would stay allocated until the program has read everything. */
		if (process->stdin_sent > waiting->size / 2) {
			cell__buf_shift(waiting, process->stdin_sent);
			process->stdin_sent = 0;
		}
		return;
	}
	cell__buf_finish(waiting);
	process->stdin_sent = 0;
	uv_poll_stop(poll);
	if (process->stdin_closing)
		end_stdin(process);
}

size_t cell__process_unread(const struct cell__process *process)
{
	return process->stdin_waiting.size - process->stdin_sent;
}

int cell__process_write(struct cell__process *process, const void *bytes, size_t size, struct cell_error *err)
{
	if (process->stdin_fd < 0 || process->stdin_closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the program's stdin is closed");
	/* Write directly if the program reads as fast as we write. */
	ssize_t n = cell__process_unread(process) > 0 ? 0 : write_stdin(process, bytes, size);
	if (n == (ssize_t)size)
		return 0;
	if (n < 0)
		n = 0; /* the reader is gone: the next attempt finds that out, and the exit reports it */
	if (cell__buf_add(&process->stdin_waiting, (const char *)bytes + n, size - (size_t)n) < 0) {
		if (n > 0)
			end_stdin(process); /* half a message went out */
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	uv_poll_start(&process->stdin_poll, UV_WRITABLE, handle_writable);
	return 0;
}

void cell__process_close_stdin(struct cell__process *process)
{
	if (process->stdin_fd < 0 || process->stdin_closing)
		return;
	if (process->spec.want_tty) {
		(void)cell__process_write(process, "\004", 1, NULL);
		return;
	}
	process->stdin_closing = true;
	if (cell__process_unread(process) == 0)
		end_stdin(process);
}

int cell__process_resize(struct cell__process *process, unsigned short rows, unsigned short cols, struct cell_error *err)
{
	struct winsize size = { .ws_row = rows, .ws_col = cols };
	if (!process->spec.want_tty)
		return cell_fail(err, CELL_E_INVALID, 0, "the command has no terminal");
	if (ioctl(process->stdin_fd, TIOCSWINSZ, &size) < 0)
		return cell_fail(err, CELL_E_IO, errno, "resize a terminal");
	return 0;
}

/* ---- start and end ---- */

static void kill_group(struct cell__process *process)
{
	if (!process->exited)
		cell__spawn_client_tell(&process->supervisor->client, CELL_SPAWN_PROCESS_KILL, process->id, 0);
}

void cell__process_signal(struct cell__process *process, int signal_number, bool group)
{
	if (!process->exited)
		cell__spawn_client_send(&process->supervisor->client, CELL_SPAWN_PROCESS_SIGNAL, process->id, signal_number, group, NULL, 0,
					NULL, 0, NULL);
}

static void handle_timeout(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	process->how.timed_out = true;
	kill_group(process);
}

void cell__process_kill(struct cell__process *process)
{
	process->how.killed = true;
	cell__process_pause(process, false);
	kill_group(process);
}

void cell__process_abandon(struct cell__process *process)
{
	process->spec.output = NULL;
	process->spec.exited = NULL;
	process->spec.started = NULL;
	cell__egress_close(cell__take_ptr(process->egress)); /* the receiver of connection events may be gone too */
	cell__process_kill(process);
}

/* It has ended, and processes that it left hold its streams. */
static void handle_linger(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	if (process->paused || !cell__process_drain(process) || process->paused) {
		uv_timer_start(timer, handle_linger, (uint64_t)process->spec.linger_ms, 0);
		return;
	}
	for (int i = 0; i < 2; i++)
		end_stream(&process->stream[i]);
	maybe_over(process);
}

static void process_exited(struct cell__process *process, int64_t status, int64_t error, const struct cell_spawn_failure *failure)
{
	process->exited = true;
	process->how.error = (int)error;
	cell__egress_close(cell__take_ptr(process->egress));
	process->how.bad_cwd = error && failure && failure->stage == CELL_SPAWN_AT_CWD;
	if (error && process->confine && (!failure || failure->stage == CELL_SPAWN_AT_PLAN))
		cell__confinement_failure(process->confine, failure ? failure->step : -1, (int)error, &process->how.failure);
	if (error == 0) {
		process->how.signalled = WIFSIGNALED((int)status);
		process->how.status = WIFSIGNALED((int)status) ? WTERMSIG((int)status) : WEXITSTATUS((int)status);
	}
	uv_timer_stop(&process->timer);
	if (error)
		for (int i = 0; i < 2; i++)
			end_stream(&process->stream[i]);
	else if (process->spec.linger_ms > 0)
		uv_timer_start(&process->timer, handle_linger, (uint64_t)process->spec.linger_ms, 0);
	maybe_over(process);
}

/* A proxy that cannot be supervised is not allowed: the program does not continue without it. */
static void open_proxy(struct cell__process *process)
{
	struct cell_error err;
	int fd = cell__take_fd(&process->supervisor->client.received_fd);
	if (fd < 0 || !process->confine)
		return;
	if (cell__confinement_open_proxy(process->confine, process->supervisor->loop, fd, &process->egress, &err) < 0) {
		process->how.failure = err;
		kill_group(process);
	}
}

void cell__process_message(struct cell__supervisor *supervisor, const struct cell_spawn_msg *head, const void *payload, size_t size)
{
	struct cell_spawn_failure failure;
	struct cell__process *p = supervisor->processes;
	while (p && p->id != head->id)
		p = p->next;
	if (!p)
		return;
	if (head->type == CELL_SPAWN_PROCESS_EXITED) {
		bool told = size == sizeof failure;
		if (told)
			memcpy(&failure, payload, sizeof failure);
		process_exited(p, head->a, head->b, told ? &failure : NULL);
		return;
	}
	p->pid = head->a;
	open_proxy(p);
	if (p->spec.started)
		p->spec.started(p->spec.owner, head->a);
}

int64_t cell__process_pid(const struct cell__process *process)
{
	return process->pid;
}

void cell__process_spawner_ended(struct cell__supervisor *supervisor)
{
	for (struct cell__process *p = supervisor->processes, *next; p; p = next) {
		next = p->next;
		process_exited(p, 0, ECONNRESET, NULL);
	}
}

/* The spawner's input as NUL-terminated strings: folder, PATH, argv, environment. */
static int make_payload(const struct cell__process_spec *spec, struct cell__buf *payload, int64_t *ret_argc)
{
	int rc = cell__buf_add(payload, spec->cwd, strlen(spec->cwd) + 1);
	rc |= cell__buf_add(payload, spec->path, strlen(spec->path) + 1);
	int64_t argc = 0;
	for (const char *const *arg = spec->argv; *arg; arg++, argc++)
		rc |= cell__buf_add(payload, *arg, strlen(*arg) + 1);
	for (const char *const *entry = spec->env; *entry; entry++)
		rc |= cell__buf_add(payload, *entry, strlen(*entry) + 1);
	*ret_argc = argc;
	return rc;
}

static int init_handles(struct cell__process *process, struct cell_error *err)
{
	uv_loop_t *uv = cell__loop_uv(process->supervisor->loop);
	uv_timer_init(uv, &process->timer);
	process->timer.data = process;
	process->handles = 1;
	for (int i = 0; i < 2; i++) {
		process->stream[i].ended = process->stream[i].fd < 0;
		if (process->stream[i].ended)
			continue;
		int rc = uv_poll_init(uv, &process->stream[i].poll, process->stream[i].fd);
		if (rc < 0)
			return cell_fail(err, CELL_E_IO, -rc, "watch a program's output");
		process->stream[i].poll.data = process;
		process->stream[i].polled = true;
		process->handles++;
	}
	if (process->stdin_fd >= 0) {
		int rc = uv_poll_init(uv, &process->stdin_poll, process->stdin_fd);
		if (rc < 0)
			return cell_fail(err, CELL_E_IO, -rc, "watch a program's input");
		process->stdin_poll.data = process;
		process->stdin_polled = true;
		process->handles++;
	}
	return 0;
}

/* Undoes a start that failed half way: closes only the parts that were made. */
static void give_up(struct cell__process *process)
{
	int made = process->handles;
	process->closing = true;
	if (made == 0) {
		process->handles = 1;
		process->timer.data = process;
		handle_closed((uv_handle_t *)&process->timer);
		return;
	}
	close_handles(process);
}

/* A terminal: our end for input and for output, and theirs. */
static int open_tty(struct cell__process *process, int theirs[static 3], struct cell_error *err)
{
	struct winsize size = { .ws_row = process->spec.rows, .ws_col = process->spec.cols };
	CELL_AUTO_FD int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0 ||
	    fcntl(master, F_SETFL, O_NONBLOCK) < 0 || (theirs[0] = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0 ||
	    (theirs[1] = fcntl(theirs[0], F_DUPFD_CLOEXEC, 0)) < 0 || (theirs[2] = fcntl(theirs[0], F_DUPFD_CLOEXEC, 0)) < 0 ||
	    (process->stdin_fd = fcntl(master, F_DUPFD_CLOEXEC, 0)) < 0)
		return cell_fail(err, errno == EMFILE ? CELL_E_BUSY : CELL_E_IO, errno, "make a terminal");
	process->stream[0].fd = cell__take_fd(&master);
	return 0;
}

int cell__process_start(struct cell__supervisor *supervisor, const struct cell__process_spec *spec, struct cell__process **ret_process,
			struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf payload = CELL_BUF_INIT;
	int64_t argc;
	if (make_payload(spec, &payload, &argc) != 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (cell__supervisor_start(supervisor, err) < 0)
		return -1;
	struct cell__process *process = cell__alloc(1, sizeof *process);
	if (!process)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	process->supervisor = supervisor;
	process->spec = *spec;
	process->confine = cell__confinement_ref(spec->confine);
	process->id = supervisor->next_id++;
	process->stream[0].fd = process->stream[1].fd = process->stdin_fd = -1;
	int theirs[3] = { -1, -1, -1 }, pair[2], all[CELL_SPAWN_MAX_FDS];
	size_t n_all = spec->want_stdin ? 3 : 2;
	int rc = 0;
	if (spec->want_tty)
		rc = open_tty(process, theirs, err);
	for (int i = 0; i < (spec->want_stdin ? 3 : 2) && rc == 0 && !spec->want_tty; i++) {
		rc = i == 2 ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) : pipe2(pair, O_CLOEXEC);
		if (rc < 0) {
			cell_fail(err, errno == EMFILE ? CELL_E_BUSY : CELL_E_IO, errno, "make a program's pipes");
			break;
		}
		int ours = i == 2 ? pair[1] : pair[0];
		theirs[i] = i == 2 ? pair[0] : pair[1];
		fcntl(ours, F_SETFL, O_NONBLOCK);
		*(i == 2 ? &process->stdin_fd : &process->stream[i].fd) = ours;
	}
	if (rc == 0)
		rc = init_handles(process, err);
	if (rc == 0) {
		assert(n_all + spec->n_fds + 2 <= CELL_SPAWN_MAX_FDS);
		memcpy(all, theirs, n_all * sizeof *all);
		for (size_t i = 0; i < spec->n_fds; i++)
			all[n_all++] = spec->fds[i];
		if (spec->confine) {
			all[n_all++] = cell__confinement_plan_fd(spec->confine);
			all[n_all++] = cell__confinement_session_fd(spec->confine);
		}
		rc = cell__spawn_client_send(
			&supervisor->client, CELL_SPAWN_PROCESS_START, process->id, argc,
			(spec->want_stdin ? CELL_SPAWN_WITH_STDIN : 0) | (spec->confine ? CELL_SPAWN_WITH_PLAN : 0) |
				(spec->want_tty ? CELL_SPAWN_WITH_TTY : 0) |
				(spec->kernel ? CELL_SPAWN_IN_KERNEL | (int64_t)(spec->kernel << CELL_SPAWN_KERNEL_SHIFT) : 0),
			payload.data, payload.size, all, n_all, err);
	}
	for (int i = 0; i < 3; i++)
		cell__close_fd(&theirs[i]);
	if (rc < 0) {
		give_up(process);
		return -1;
	}
	process->next = supervisor->processes;
	supervisor->processes = process;
	update_polls(process);
	if (spec->timeout_ms >= 0) {
		uv_update_time(cell__loop_uv(supervisor->loop));
		uv_timer_start(&process->timer, handle_timeout, (uint64_t)spec->timeout_ms, 0);
	}
	*ret_process = process;
	return 0;
}
