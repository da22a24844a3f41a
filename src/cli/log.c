/*
 * The log of a server, on stderr.  Its reader may be stuck, and a full pipe holds up whoever writes: never the threads that serve.
 *
 *     any thread ──cell__log_add()──▶ stderr      if nothing waits, and it is a file, or a pipe that takes the line at once
 *                       ├──▶ queue ──writer──▶ stderr      else
 *                       └── it is full: the line is not written, and counted; a line says so when there is room again
 *
 * The writer is a thread, made with the first line.  The process that starts workers forks, and so has no thread: it calls cell__log_step(), which
 * writes only what a pipe or socket takes at once.  O_NONBLOCK would be no way: it is a property of what we share with the program that started us.
 *
 * Processes that share a log (cell__log_share()) write in turn, whole lines: Linux keeps only PIPE_BUF bytes in one piece, and a line may be longer.
 * One that is killed in its turn gives it up.  At the end of the program what is queued has FLUSH_MS to be written.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_BYTES (256u * 1024) /* that wait, and as many that are being written */
#define NOTE_BYTES 256u
#define FLUSH_MS 2000
#define STEP_MS 10

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_mutex_t *turn; /* of all processes that write; NULL: there is only this */
	enum cell_cli_log_form form;
	bool is_used, is_stepped, has_thread, is_idle;
	unsigned long long lost; /* lines, of which no line tells yet */
	char *queued, *writing; /* of LOG_BYTES and room for a note; NULL: not yet */
	size_t size;
	mode_t kind; /* of stderr */
} live = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .is_idle = true };

/* ---- the queue, with the lock ---- */

static size_t write_note(char *out)
{
	struct timespec now;
	struct tm tm;
	char at[32], words[80];
	int size;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(words, sizeof(words), "%llu lines were not written: nobody read them", live.lost);
	if (live.form == CELL_CLI_LOG_JSON)
		size = snprintf(out, NOTE_BYTES, "{\"time\":\"%s.%03ldZ\",\"level\":\"warning\",\"message\":\"%s\"}\n", at,
				now.tv_nsec / 1000000, words);
	else if (live.form == CELL_CLI_LOG_TEXT)
		size = snprintf(out, NOTE_BYTES, "%s.%03ldZ warning %s\n", at, now.tv_nsec / 1000000, words);
	else
		size = snprintf(out, NOTE_BYTES, "workcell: warning: %s\n", words);
	live.lost = 0;
	return (size_t)size;
}

/* A line, or a part of one. */
static void add_piece(const char *bytes, size_t size)
{
	bool is_full = live.size + size > LOG_BYTES || (live.is_stepped && size > PIPE_BUF);

	/* Once lines are lost, a good many should fit before the next are. */
	if (is_full || (live.lost && live.size > LOG_BYTES / 2)) {
		live.lost += memchr(bytes, '\n', size) != NULL;
		return;
	}
	if (live.lost)
		live.size += write_note(live.queued + live.size);
	memcpy(live.queued + live.size, bytes, size);
	live.size += size;
}

/* So many bytes of whole lines as Linux keeps in one piece; at least one line. */
static size_t cut(const char *bytes, size_t size)
{
	const char *end = memrchr(bytes, '\n', size < PIPE_BUF ? size : PIPE_BUF);

	if (!end)
		end = memchr(bytes, '\n', size);
	return end ? (size_t)(end - bytes) + 1 : size;
}

/* ---- writing, without the lock ---- */

static bool take_turn(bool waits)
{
	int status = !live.turn ? 0 : waits ? pthread_mutex_lock(live.turn) : pthread_mutex_trylock(live.turn);

	if (status == EOWNERDEAD)
		pthread_mutex_consistent(live.turn);
	return status == 0 || status == EOWNERDEAD;
}

static void end_turn(void)
{
	if (live.turn)
		pthread_mutex_unlock(live.turn);
}

/* What cannot be written is lost: there is no other place to say so. */
static void write_all(const char *bytes, size_t size)
{
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };

	while (size) {
		ssize_t n = write(STDERR_FILENO, bytes, size);

		if (n > 0) {
			bytes += n;
			size -= (size_t)n;
		} else if (n < 0 && errno == EAGAIN) { /* another program made it non-blocking */
			poll(&fd, 1, -1);
		} else if (n == 0 || errno != EINTR) {
			return;
		}
	}
}

/*
 * With the lock: writes without waiting, if that is possible.  A thread that is woken for each line costs more than the line.  Nobody of ours fills the
 * pipe between the question and the answer, because it is our turn.
 */
static bool write_at_once(const char *bytes, size_t size)
{
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };
	bool is_pipe = live.kind == S_IFIFO && size <= PIPE_BUF, takes;

	if (live.is_stepped || live.size || live.lost || !live.is_idle || (live.kind != S_IFREG && !is_pipe) || !take_turn(false))
		return false;
	takes = !is_pipe || (poll(&fd, 1, 0) > 0 && !(fd.revents & POLLERR));
	if (takes)
		write_all(bytes, size);
	end_turn();
	return takes;
}

static void *run_writer(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&live.lock);
	while (true) {
		char *bytes;
		size_t size, n;

		if (!live.size && live.lost)
			live.size = write_note(live.queued);
		if (!live.size) {
			live.is_idle = true;
			pthread_cond_broadcast(&live.changed);
			pthread_cond_wait(&live.changed, &live.lock);
			continue;
		}
		live.is_idle = false;
		bytes = live.queued;
		size = live.size;
		live.queued = live.writing;
		live.writing = bytes;
		live.size = 0;
		pthread_mutex_unlock(&live.lock);
		for (size_t at = 0; at < size; at += n) {
			n = cut(bytes + at, size - at);
			(void)take_turn(true);
			write_all(bytes + at, n);
			end_turn();
		}
		pthread_mutex_lock(&live.lock);
	}
	return NULL;
}

/* With the lock.  No signal of ours is for it, and SIGPIPE would end the program. */
static bool start_writer(void)
{
	pthread_t thread;
	sigset_t all, before;
	int status;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	status = pthread_create(&thread, NULL, run_writer, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!status)
		pthread_detach(thread);
	return !status;
}

static bool is_ready(void)
{
	if (!live.queued)
		live.queued = malloc(LOG_BYTES + NOTE_BYTES);
	if (!live.writing && !live.is_stepped)
		live.writing = malloc(LOG_BYTES + NOTE_BYTES);
	if (!live.queued || (!live.writing && !live.is_stepped))
		return false;
	if (!live.has_thread && !live.is_stepped)
		live.has_thread = start_writer();
	return live.has_thread || live.is_stepped;
}

bool cell__log_add(const char *bytes, size_t size)
{
	bool is_taken;

	if (!live.is_used)
		return false;
	pthread_mutex_lock(&live.lock);
	if (write_at_once(bytes, size)) {
		pthread_mutex_unlock(&live.lock);
		return true;
	}
	is_taken = is_ready();
	while (is_taken && size) {
		const char *end = memchr(bytes, '\n', size);
		size_t n = end ? (size_t)(end - bytes) + 1 : size;

		add_piece(bytes, n);
		bytes += n;
		size -= n;
	}
	if (is_taken)
		live.is_idle = false;
	pthread_cond_broadcast(&live.changed);
	pthread_mutex_unlock(&live.lock);
	return is_taken;
}

void cell__log_say(const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	int size;

	va_start(ap, fmt);
	size = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (size < 0)
		return;
	if (!cell__log_add(text, (size_t)size))
		write_all(text, (size_t)size);
	free(text);
}

/* ---- the process that starts others ---- */

int cell__log_share(struct cell_error *err)
{
	pthread_mutexattr_t kind;
	int status;

	live.turn = mmap(NULL, sizeof(*live.turn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (live.turn == MAP_FAILED) {
		live.turn = NULL;
		return cell_fail(err, CELL_E_NOMEM, errno, "out of memory for the log");
	}
	pthread_mutexattr_init(&kind);
	pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	status = pthread_mutex_init(live.turn, &kind);
	pthread_mutexattr_destroy(&kind);
	live.is_stepped = true;
	return status ? cell_fail(err, CELL_E_IO, status, "make a lock for the log") : 0;
}

void cell__log_forked(void)
{
	live.is_stepped = false;
	live.size = 0;
	live.lost = 0;
	live.is_idle = true;
}

int cell__log_step(void)
{
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };
	const struct timespec now = { 0 };
	sigset_t pipe, before;
	size_t n;

	if (!live.is_stepped || (!live.size && !live.lost))
		return -1;
	/* A reader that went away does not end this process either. */
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	if (!live.size && is_ready())
		live.size = write_note(live.queued);
	/* Nobody else writes while it is our turn, and a pipe that is writable takes PIPE_BUF bytes. */
	while (live.size && take_turn(false)) {
		bool is_writable = poll(&fd, 1, 0) > 0;

		if (is_writable) {
			n = cut(live.queued, live.size);
			write_all(live.queued, n);
			live.size -= n;
			memmove(live.queued, live.queued + n, live.size);
		}
		end_turn();
		if (!is_writable)
			break;
	}
	(void)sigtimedwait(&pipe, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return live.size ? STEP_MS : -1;
}

/* ---- the whole ---- */

/* Of the program. */
static void flush(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FLUSH_MS / 1000;
	if (live.is_stepped) {
		for (int waited_ms = 0; waited_ms < FLUSH_MS && cell__log_step() >= 0; waited_ms += STEP_MS)
			poll(NULL, 0, STEP_MS);
		return;
	}
	pthread_mutex_lock(&live.lock);
	while (live.has_thread && !live.is_idle && pthread_cond_timedwait(&live.changed, &live.lock, &until) != ETIMEDOUT)
		continue;
	pthread_mutex_unlock(&live.lock);
}

void cell__log_use(enum cell_cli_log_form form)
{
	struct stat st;

	live.form = form;
	live.kind = fstat(STDERR_FILENO, &st) < 0 ? 0 : st.st_mode & S_IFMT;
	if (!live.is_used)
		atexit(flush);
	live.is_used = true;
}
