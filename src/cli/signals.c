/*
 * Signals, interrupting and stopping: the state of the process as a whole.
 *
 * Theory of operation.  The main thread may be deep inside cell_session_run() when a signal comes, so signals
 * are handled elsewhere:
 *
 *     handler (any thread) ── byte ──> pipe ──> signal thread ──┬── cell_session_interrupt()
 *     cell__cli_stop() ─────── 0 ────────┘                      ├── cell_session_reset()   ends the run
 *                                                               └── wake()                 main checks again
 *
 * Stopping (SIGTERM, SIGHUP, a second Ctrl-C, a reader of stdout that went away) has one path: the status is
 * noted, the running cell is ended, and the main thread, coming back from it, sees the status, closes the
 * session and exits.  If there is no session to end yet, or the main thread does not come back in
 * STOP_SECONDS, the process exits at once: the spawner kills all its processes when its socket closes, so
 * nothing is left behind either way.
 *
 * `live.mutex` is held while the signal thread works on the session.  The main thread takes it to end a run
 * and to withdraw the session, so an interrupt can hit neither the next cell nor a closed session.
 *
 * Handlers are installed instead of blocking or ignoring signals, because the engine's programs would inherit
 * a mask and SIG_IGN, but not handlers.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define STOP_SECONDS 5
/* A second Ctrl-C within this time ends the program. */
#define TWICE_MS 2000
/*
 * cell_session_run() does not tell the caller when the cell has begun, and an interrupt before that is lost. A cell that was begun less
 * than this long ago is interrupted when it is this old.
 */
#define BEGIN_MS 20
#define KICK_MS 20

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t ended;
	struct cell_session *session;
	bool running;
	uint64_t serial; /* of runs */
	int64_t begun_ms;
	bool interactive;
	void (*wake)(void *arg);
	void *wake_arg;
} live = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static atomic_int stop_status;
static atomic_bool sigint_seen, resize_seen, attached;
static int signal_pipe[2] = { -1, -1 };
static pthread_t main_thread;

static void handle_signal(int number)
{
	unsigned char byte = (unsigned char)number;
	int saved = errno;

	if (number == SIGALRM) {
		static atomic_int kicks;

		/*
		 * We are stopping. The main thread may hang in a read, or in a write to a full pipe. These two signals are handled without
		 * SA_RESTART, so whichever thread received this one, the main thread gets out of there.
		 */
		if (atomic_fetch_add(&kicks, 1) >= STOP_SECONDS * 1000 / KICK_MS)
			_exit(cell__cli_stop_status());
		if (atomic_load(&attached))
			pthread_kill(main_thread, SIGPIPE);
	} else if (number != SIGPIPE && write(signal_pipe[1], &byte, 1) < 0) {
		/* Full: as many signals wait already as anyone could have meant. */
	}
	errno = saved;
}

/* ---- runs, as the signal thread sees them --------------------------------- */

bool cell__cli_run_begin(void)
{
	bool begun;

	pthread_mutex_lock(&live.mutex);
	begun = live.running = !cell__cli_stop_status();
	live.serial++;
	live.begun_ms = cell__now_us() / 1000;
	pthread_mutex_unlock(&live.mutex);
	/* A Ctrl-C that came after the input was entered and before this is meant for the cell. */
	if (cell__cli_take_sigint())
		handle_signal(SIGINT);
	return begun;
}

void cell__cli_run_end(void)
{
	pthread_mutex_lock(&live.mutex);
	live.running = false;
	pthread_cond_broadcast(&live.ended);
	pthread_mutex_unlock(&live.mutex);
}

/* With the mutex held.  True: the cell that was begun when this was called is under way. */
static bool under_way(void)
{
	uint64_t serial = live.serial;
	int64_t at_ms = live.begun_ms + BEGIN_MS;
	struct timespec until = { .tv_sec = at_ms / 1000, .tv_nsec = at_ms % 1000 * 1000000 };

	while (live.running && live.serial == serial && cell__now_us() / 1000 < at_ms)
		pthread_cond_timedwait(&live.ended, &live.mutex, &until);
	return live.running && live.serial == serial && live.session;
}

void cell__cli_interrupt(void)
{
	pthread_mutex_lock(&live.mutex);
	if (under_way())
		cell_session_interrupt(live.session, NULL);
	pthread_mutex_unlock(&live.mutex);
}

void cell__cli_signals_attach(struct cell_session *session)
{
	pthread_mutex_lock(&live.mutex);
	live.session = session;
	pthread_mutex_unlock(&live.mutex);
	atomic_store(&attached, session != NULL);
	/* A stop that came while the session was being opened had no session to end. */
	if (session && cell__cli_stop_status())
		_exit(cell__cli_stop_status());
}

int cell__cli_stop_status(void)
{
	return atomic_load(&stop_status);
}

bool cell__cli_take_sigint(void)
{
	return atomic_exchange(&sigint_seen, false);
}

bool cell__cli_take_resize(void)
{
	return atomic_exchange(&resize_seen, false);
}

void cell__cli_stop(int status)
{
	int none = 0;

	atomic_compare_exchange_strong(&stop_status, &none, status);
	if (signal_pipe[1] >= 0 && write(signal_pipe[1], "", 1) < 0) {
		/* The pipe is full of signals: the thread is awake and checks stop_status after each. */
	}
}

/* ---- the signal thread ---------------------------------------------------- */

static void end_everything(void)
{
	static const struct itimerval kicks = { .it_interval.tv_usec = KICK_MS * 1000, .it_value.tv_usec = KICK_MS * 1000 };

	setitimer(ITIMER_REAL, &kicks, NULL);
	pthread_mutex_lock(&live.mutex);
	if (!live.session)
		_exit(cell__cli_stop_status());
	if (under_way())
		cell_session_reset(live.session, NULL);
	pthread_mutex_unlock(&live.mutex);
}

static void handle_sigint(int64_t *last_ms)
{
	int64_t now = cell__now_us() / 1000;
	bool running, opened;

	pthread_mutex_lock(&live.mutex);
	running = live.running;
	opened = live.session;
	pthread_mutex_unlock(&live.mutex);
	if (running && (live.interactive || *last_ms == 0 || now - *last_ms > TWICE_MS)) {
		*last_ms = now;
		cell__cli_interrupt();
	} else if (live.interactive && opened) {
		atomic_store(&sigint_seen, true);
	} else {
		cell__cli_stop(128 + SIGINT);
	}
}

static void *signal_main(void *arg)
{
	int64_t last_sigint_ms = 0;
	bool ended = false;
	unsigned char byte;
	ssize_t n;

	(void)arg;
	while ((n = read(signal_pipe[0], &byte, 1)) == 1 || (n < 0 && errno == EINTR)) {
		if (n == 1 && byte == SIGINT)
			handle_sigint(&last_sigint_ms);
		else if (n == 1 && (byte == SIGTERM || byte == SIGHUP))
			cell__cli_stop(128 + byte);
		else if (n == 1 && (byte == SIGWINCH || byte == SIGCONT))
			atomic_store(&resize_seen, true);
		if (live.wake)
			live.wake(live.wake_arg);
		if (cell__cli_stop_status() && !ended) {
			ended = true;
			end_everything();
		}
	}
	return NULL;
}

int cell__cli_signals_start(bool interactive, void (*wake)(void *arg), void *arg, struct cell_error *err)
{
	/* SIGPIPE is caught and dropped: the write then fails with EPIPE, as cell__cli_write() expects. */
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGALRM, SIGWINCH, SIGCONT };
	struct sigaction action = { .sa_handler = handle_signal }, old;
	pthread_condattr_t attr;
	pthread_t thread;
	int status;

	main_thread = pthread_self();
	live.interactive = interactive;
	live.wake = wake;
	live.wake_arg = arg;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&live.ended, &attr);
	pthread_condattr_destroy(&attr);
	if (pipe2(signal_pipe, O_CLOEXEC) < 0 || fcntl(signal_pipe[1], F_SETFL, O_NONBLOCK) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make a pipe for signals");
	status = pthread_create(&thread, NULL, signal_main, NULL);
	if (status)
		return cell_fail(err, CELL_E_IO, status, "cannot start a thread for signals");
	pthread_detach(thread);
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!interactive && (numbers[i] == SIGWINCH || numbers[i] == SIGCONT))
			continue;
		/* nohup, and a shell's background jobs, rely on ignored signals staying ignored. */
		if (!sigaction(numbers[i], NULL, &old) && old.sa_handler == SIG_IGN && (numbers[i] == SIGHUP || numbers[i] == SIGINT))
			continue;
		action.sa_flags = numbers[i] == SIGPIPE || numbers[i] == SIGALRM ? 0 : SA_RESTART;
		sigaction(numbers[i], &action, NULL);
	}
	return 0;
}
