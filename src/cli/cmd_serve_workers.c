/*
 * `workcell serve --workers N`: the process that starts the workers.  It has one thread and no engine; it listens, hands each client to the
 * worker with the fewest (cell_server_pool_accept()), starts workers that died again, and passes signals on.
 *
 *     starting: worker 0, then the others ──all listen──▶ serving ──SIGTERM──▶ leaving: SIGTERM to all ──none takes clients──▶ stopping: the socket is
 *                  └── one ends ──▶ stopping, with its exit status                                                                closed ──all ended──▶ over
 *
 * Worker 0 starts first and alone: a wrong configuration is reported once, and packages are installed once.  A worker that died while the
 * others serve is started again, later each time if it dies soon.  Workers get SIGTERM when this process dies, however it dies.
 * Signals are blocked but while ppoll() waits, so that none is missed.
 */
#define _GNU_SOURCE 1
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FULL_MS 20        /* until clients are accepted again when there are too many */
#define LEAVING_MS 10     /* between two looks whether workers still take clients */
#define FIRST_DELAY_MS 50 /* before a worker is started again ... */
#define MAX_DELAY_MS 5000 /* ... doubled up to this while it ends within ... */
#define SOON_MS 10000

struct worker {
	pid_t pid; /* 0: none */
	bool ready;
	int64_t started_ms, start_at_ms, delay_ms;
};

struct supervisor {
	struct cell_server_pool *pool;
	const struct cell_serve_crew *crew;
	struct worker workers[CELL_SERVE_MAX_WORKERS];
	int running;
	int ready_fd[2];
	bool serving, leaving, stopping;
	int64_t leave_until_ms;
	int exit_status;
};

static volatile sig_atomic_t has_to_stop, has_to_reload;

static void note_signal(int number)
{
	if (number == SIGHUP)
		has_to_reload = 1;
	else if (number != SIGCHLD)
		has_to_stop = 1;
}

static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD };

static void set_handlers(void (*handler)(int), int how)
{
	struct sigaction action = { .sa_handler = handler };
	sigset_t set;

	sigemptyset(&set);
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		sigaction(numbers[i], &action, NULL);
		sigaddset(&set, numbers[i]);
	}
	sigprocmask(how, &set, NULL);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void signal_all(const struct supervisor *all, int number)
{
	for (int i = 0; i < all->crew->count; i++) {
		if (all->workers[i].pid)
			kill(all->workers[i].pid, number);
	}
}

static void close_socket(struct supervisor *all)
{
	all->stopping = true;
	cell_server_pool_close(all->pool);
}

/* At once. */
static void stop(struct supervisor *all)
{
	(void)cell_server_pool_leave(all->pool);
	close_socket(all);
	signal_all(all, SIGTERM);
}

/* What it starts inherits it.  Where that fails it runs where it may. */
static void hold_worker(int number)
{
	cpu_set_t allowed, own;
	int n = sched_getaffinity(0, sizeof(allowed), &allowed) < 0 ? 0 : CPU_COUNT(&allowed);
	int left = n ? number % n : 0;

	CPU_ZERO(&own);
	for (int cpu = 0; n && cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || left--)
			continue;
		CPU_SET(cpu, &own);
		(void)sched_setaffinity(0, sizeof(own), &own);
		return;
	}
}

/* In the new process. */
static void become_worker(const struct supervisor *all, int number, pid_t parent)
{
	cell__log_forked();
	if (all->crew->holds)
		hold_worker(number);
	prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
	if (getppid() != parent)
		_exit(1);
	/* The sandbox is tried first (cmd_serve.c); code beside us that is not confined must not read our memory in the meantime. */
	if (!all->serving || all->crew->is_confined)
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	close(all->ready_fd[0]);
	set_handlers(SIG_DFL, SIG_UNBLOCK);
}

/* True in the new process. */
static bool start(struct supervisor *all, int number, struct cell_error *err)
{
	struct worker *worker = &all->workers[number];
	pid_t parent = getpid();

	worker->pid = fork();
	if (worker->pid == 0) {
		become_worker(all, number, parent);
		return true;
	}
	worker->ready = false;
	worker->started_ms = now_ms();
	if (worker->pid < 0) {
		worker->pid = 0;
		worker->start_at_ms = worker->started_ms + MAX_DELAY_MS;
		if (!all->serving) {
			cell_fail(err, CELL_E_IO, errno, "start a worker");
			all->exit_status = cell__cli_report(err, false);
			stop(all);
		}
		return false;
	}
	all->running++;
	return false;
}

/* True in a new process, with its number. */
static bool start_due(struct supervisor *all, int *ret_number, struct cell_error *err)
{
	for (int i = 0; i < all->crew->count && !all->stopping && !all->leaving; i++) {
		const struct worker *worker = &all->workers[i];

		if (worker->pid || worker->start_at_ms > now_ms() || (i && !all->workers[0].ready && !all->serving))
			continue;
		if (start(all, i, err)) {
			*ret_number = i;
			return true;
		}
	}
	return false;
}

static void reap(struct supervisor *all)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct worker *worker = all->workers;
		int number;

		while (worker < all->workers + all->crew->count && worker->pid != pid)
			worker++;
		number = (int)(worker - all->workers);
		if (number == all->crew->count)
			continue;
		worker->pid = 0;
		all->running--;
		cell_server_pool_clear(all->pool, number);
		if (all->stopping || all->leaving || !all->serving) {
			bool asked = all->stopping || all->leaving;
			/* Asked to end before it could handle the signal, it is ended by it. */
			int code = WIFEXITED(status) ? WEXITSTATUS(status) : asked && WTERMSIG(status) == SIGTERM ? 0 : 125;

			if (!all->exit_status)
				all->exit_status = code;
			if (!all->stopping && !all->leaving)
				stop(all);
			continue;
		}
		worker->delay_ms = !worker->delay_ms || now_ms() - worker->started_ms > SOON_MS ? FIRST_DELAY_MS : worker->delay_ms * 2;
		if (worker->delay_ms > MAX_DELAY_MS)
			worker->delay_ms = MAX_DELAY_MS;
		worker->start_at_ms = now_ms() + worker->delay_ms;
		cell__log_say("workcell: warning: worker %d (process %d) %s %d: its sessions have ended, and it is started again\n", number,
			      (int)pid, WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
			      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
}

static void take_ready(struct supervisor *all)
{
	unsigned char number;
	bool each = true;

	while (read(all->ready_fd[0], &number, 1) == 1) {
		if (number < all->crew->count)
			all->workers[number].ready = true;
	}
	for (int i = 0; i < all->crew->count; i++)
		each &= all->workers[i].ready;
	if (each && !all->serving && !all->stopping) {
		all->serving = true;
		all->crew->serving(cell_server_pool_url(all->pool));
	}
}

/* Milliseconds until a worker is to be started, or the socket may be closed; -1: none is. */
static int until_start(const struct supervisor *all)
{
	int64_t first = -1, now = now_ms();

	if (all->leaving && !all->stopping)
		return all->leave_until_ms > now ? (int)(all->leave_until_ms - now) : LEAVING_MS;
	for (int i = 0; i < all->crew->count && !all->stopping; i++) {
		int64_t left = all->workers[i].start_at_ms - now;

		if (!all->workers[i].pid && all->serving && (first < 0 || left < first))
			first = left > 0 ? left : 0;
	}
	return (int)first;
}

static void take_signals(struct supervisor *all)
{
	if (has_to_reload) {
		has_to_reload = 0;
		signal_all(all, SIGHUP);
	}
	if (has_to_stop) {
		has_to_stop = 0;
		all->crew->stopping();
		if (!all->serving || all->leaving || all->stopping) {
			stop(all); /* a second time */
		} else {
			all->leaving = true; /* as each of the workers does by itself */
			all->leave_until_ms = now_ms() + all->crew->leave_ms;
			(void)cell_server_pool_leave(all->pool);
			signal_all(all, SIGTERM);
		}
	}
	/* Sessions may have to sleep before the socket is closed. */
	if (all->leaving && !all->stopping && now_ms() >= all->leave_until_ms && !cell_server_pool_leave(all->pool))
		close_socket(all);
}

int cell__serve_supervise(struct cell_server_pool *pool, const struct cell_serve_crew *crew, int *ret_worker, int *ret_ready_fd,
			  struct cell_error *err)
{
	struct supervisor all = { .pool = pool, .crew = crew };
	bool is_full = false;
	sigset_t none;

	if (pipe2(all.ready_fd, O_CLOEXEC | O_NONBLOCK) < 0)
		return cell_fail(err, CELL_E_IO, errno, "make a pipe");
	sigemptyset(&none);
	set_handlers(note_signal, SIG_BLOCK);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* tokens are in our memory */
	while (!all.stopping || all.running) {
		struct pollfd fds[] = { { .fd = all.ready_fd[0], .events = POLLIN }, { .events = POLLIN } };
		struct timespec wait = { 0 };
		int wait_ms, log_ms;

		if (start_due(&all, ret_worker, err)) {
			*ret_ready_fd = all.ready_fd[1];
			return all.serving;
		}
		fds[1].fd = !is_full ? cell_server_pool_fd(pool) : -1;
		wait_ms = until_start(&all);
		if (is_full && (wait_ms < 0 || wait_ms > FULL_MS))
			wait_ms = FULL_MS;
		log_ms = cell__log_step();
		if (log_ms >= 0 && (wait_ms < 0 || wait_ms > log_ms))
			wait_ms = log_ms;
		wait.tv_sec = wait_ms / 1000;
		wait.tv_nsec = (long)(wait_ms % 1000) * 1000000;
		(void)ppoll(fds, 2, wait_ms < 0 ? NULL : &wait, &none);
		take_signals(&all);
		reap(&all);
		take_ready(&all);
		is_full = !all.stopping && cell_server_pool_accept(pool) < 0; /* while it starts, clients are told so */
	}
	close(all.ready_fd[0]);
	close(all.ready_fd[1]);
	set_handlers(SIG_DFL, SIG_UNBLOCK);
	*ret_worker = -1;
	return all.exit_status;
}
