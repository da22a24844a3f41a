#define _GNU_SOURCE
#include "tools_support.h"
#include "calls/table.h"
#include "spawn/confinement.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- spawn/confinement.h: nobody is confined here ---- */

void cell__confinement_unref(struct cell__confinement *confinement)
{
	assert_null(confinement);
}

struct cell__confinement *cell__confinement_ref(struct cell__confinement *confinement)
{
	assert_null(confinement);
	return NULL;
}

bool cell__confinement_equal(const struct cell__confinement *a, const struct cell__confinement *b)
{
	return a == b;
}

bool cell__confinement_can_write(const struct cell__confinement *confinement, const char *path)
{
	(void)path;
	assert_non_null(confinement);
	return true;
}

bool cell__confinement_protects(const struct cell__confinement *confinement, const char *path)
{
	(void)path;
	assert_non_null(confinement);
	return true;
}

bool cell__confinement_can_redirect(const struct cell__confinement *confinement, const char *path)
{
	(void)path;
	assert_non_null(confinement);
	return true;
}

bool cell__confinement_shows(const struct cell__confinement *confinement, const char *path)
{
	(void)path;
	assert_non_null(confinement);
	return true;
}

bool cell__confinement_has_workspace(const struct cell__confinement *confinement)
{
	assert_non_null(confinement);
	return true;
}

bool cell__path_is_under(const char *path, const char *folder)
{
	size_t n = strlen(folder);
	return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

const char *cell__confinement_cwd(const struct cell__confinement *confinement)
{
	assert_non_null(confinement);
	return "/";
}

const char *const *cell__confinement_env(const struct cell__confinement *confinement)
{
	assert_non_null(confinement);
	return NULL;
}

/* ---- spawn/process.h on posix_spawn ---- */

size_t fake_started, fake_most, fake_alive;

struct fake_stream {
	uv_poll_t poll;
	int fd;
	bool ended;
};

struct cell__process {
	struct cell__loop *loop;
	struct cell__process_spec spec;
	struct fake_stream stream[2];
	uv_poll_t exit_poll;
	int pidfd;
	uv_timer_t timer;
	pid_t pid;
	int stdin_fd; /* -1: none */
	bool exited, abandoned, closing;
	struct cell__process_exit how;
	int handles;
};

/* The supervisor of the fake is the loop. */
static struct cell__loop *loop_of(struct cell__supervisor *supervisor)
{
	return (struct cell__loop *)supervisor;
}

static void fake_closed(uv_handle_t *handle)
{
	struct cell__process *process = handle->data;
	if (--process->handles > 0)
		return;
	close(process->stream[0].fd);
	close(process->stream[1].fd);
	close(process->pidfd);
	if (process->stdin_fd >= 0)
		close(process->stdin_fd);
	free(process);
}

static void fake_close(struct cell__process *process)
{
	if (process->closing)
		return;
	process->closing = true;
	uv_close((uv_handle_t *)&process->stream[0].poll, fake_closed);
	uv_close((uv_handle_t *)&process->stream[1].poll, fake_closed);
	uv_close((uv_handle_t *)&process->exit_poll, fake_closed);
	uv_close((uv_handle_t *)&process->timer, fake_closed);
}

static void fake_maybe_over(struct cell__process *process)
{
	if (!process->exited || !process->stream[0].ended || !process->stream[1].ended || process->closing)
		return;
	fake_close(process);
	if (!process->abandoned)
		process->spec.exited(process->spec.owner, &process->how);
}

static void fake_readable(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	struct cell__process *process = poll->data;
	int i = poll == &process->stream[1].poll;
	char bytes[65536];
	ssize_t n = read(process->stream[i].fd, bytes, sizeof bytes);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		if (!process->abandoned)
			process->spec.output(process->spec.owner, i ? CELL_STDERR : CELL_STDOUT, bytes, (size_t)n);
		return;
	}
	uv_poll_stop(poll);
	process->stream[i].ended = true;
	fake_maybe_over(process);
}

static void fake_exit(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	struct cell__process *process = poll->data;
	int how;
	kill(-process->pid, SIGKILL);
	if (waitpid(process->pid, &how, 0) != process->pid)
		abort();
	fake_alive--;
	process->how.signalled = WIFSIGNALED(how);
	process->how.status = WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how);
	process->exited = true;
	uv_poll_stop(poll);
	fake_maybe_over(process);
}

static void fake_timeout(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	process->how.timed_out = true;
	kill(-process->pid, SIGKILL);
}

static void fake_never_started(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	process->exited = process->stream[0].ended = process->stream[1].ended = true;
	fake_maybe_over(process);
}

/* Of glibc 2.29: the portable build links with 2.28 and runs its tests with a newer one. */
#pragma weak posix_spawn_file_actions_addchdir_np

/* As the real one does it: along the given path. */
static int fake_spawn(const struct cell__process_spec *spec, int in, int out, int err, pid_t *ret_pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	posix_spawn_file_actions_init(&actions);
	if (in >= 0)
		posix_spawn_file_actions_adddup2(&actions, in, 0);
	else
		posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, out, 1);
	posix_spawn_file_actions_adddup2(&actions, err, 2);
	assert_true(spec->n_fds <= 1); /* further ones could be in each other's way */
	if (spec->n_fds == 1)
		posix_spawn_file_actions_adddup2(&actions, spec->fds[0], 3);
	posix_spawn_file_actions_addchdir_np(&actions, spec->cwd);
	posix_spawnattr_init(&attr);
	sigset_t none;
	sigemptyset(&none);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	char *path = strdup(strchr(spec->argv[0], '/') ? "" : spec->path), *rest = path, *dir;
	int rc = ENOENT;
	while (rc != 0 && (dir = strsep(&rest, ":"))) {
		char full[4096];
		snprintf(full, sizeof full, "%s%s%s", dir, *dir ? "/" : "", spec->argv[0]);
		if (*path == '\0' || access(full, X_OK) == 0)
			rc = posix_spawn(ret_pid, full, &actions, &attr, (char **)spec->argv, (char **)spec->env);
	}
	free(path);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

int cell__process_start(struct cell__supervisor *supervisor, const struct cell__process_spec *spec, struct cell__process **ret_process,
			struct cell_error *err)
{
	(void)err;
	struct cell__process *process = calloc(1, sizeof *process);
	int out[2], bad[2], in[2] = { -1, -1 };
	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(bad, O_CLOEXEC) < 0 ||
	    (spec->want_stdin && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0))
		abort();
	process->spec = *spec;
	process->handles = 4;
	process->stdin_fd = in[1];
	process->how.error = fake_spawn(spec, in[0], out[1], bad[1], &process->pid);
	process->how.bad_cwd = process->how.error && access(spec->cwd, X_OK) < 0;
	if (in[0] >= 0)
		close(in[0]);
	close(out[1]);
	close(bad[1]);
	bool runs = process->how.error == 0;
	process->pidfd = runs ? (int)syscall(SYS_pidfd_open, process->pid, 0) : eventfd(0, EFD_CLOEXEC);
	process->stream[0].fd = out[0];
	process->stream[1].fd = bad[0];
	uv_loop_t *uv = cell__loop_uv(loop_of(supervisor));
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	fcntl(bad[0], F_SETFL, O_NONBLOCK);
	uv_poll_init(uv, &process->stream[0].poll, out[0]);
	uv_poll_init(uv, &process->stream[1].poll, bad[0]);
	uv_poll_init(uv, &process->exit_poll, process->pidfd);
	uv_timer_init(uv, &process->timer);
	process->stream[0].poll.data = process->stream[1].poll.data = process->exit_poll.data = process->timer.data = process;
	*ret_process = process;
	if (!runs) {
		uv_timer_start(&process->timer, fake_never_started, 0, 0);
		return 0;
	}
	fake_started++;
	fake_alive++;
	if (fake_alive > fake_most)
		fake_most = fake_alive;
	uv_poll_start(&process->stream[0].poll, UV_READABLE, fake_readable);
	uv_poll_start(&process->stream[1].poll, UV_READABLE, fake_readable);
	uv_poll_start(&process->exit_poll, UV_READABLE, fake_exit);
	uv_update_time(uv);
	if (spec->timeout_ms >= 0)
		uv_timer_start(&process->timer, fake_timeout, (uint64_t)spec->timeout_ms, 0);
	return 0;
}

int cell__process_write(struct cell__process *process, const void *bytes, size_t size, struct cell_error *err)
{
	/* The tests send little, to programs that read. */
	if (process->stdin_fd < 0 || send(process->stdin_fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size)
		return cell_fail(err, CELL_E_CLOSED, 0, "no stdin");
	return 0;
}

size_t cell__process_unread(const struct cell__process *process)
{
	(void)process;
	return 0;
}

void cell__process_close_stdin(struct cell__process *process)
{
	if (process->stdin_fd >= 0)
		shutdown(process->stdin_fd, SHUT_WR);
}

void cell__process_pause(struct cell__process *process, bool paused)
{
	(void)process;
	(void)paused;
}

void cell__process_kill(struct cell__process *process)
{
	process->how.killed = true;
	if (process->pid > 0)
		kill(-process->pid, SIGKILL);
}

void cell__process_abandon(struct cell__process *process)
{
	process->abandoned = true;
	if (process->pid > 0)
		kill(-process->pid, SIGKILL);
}

/* ---- the bench ---- */

static size_t count_fds(void)
{
	size_t n = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static const char *bench_getenv(void *arg, const char *name)
{
	struct bench *bench = arg;
	size_t n = strlen(name);
	for (const char *const *at = bench->env; at && *at; at++)
		if (strncmp(*at, name, n) == 0 && (*at)[n] == '=')
			return *at + n + 1;
	return NULL;
}

static void make_tools(void *arg)
{
	struct bench *bench = arg;
	struct cell_error err;
	struct cell__tools_options opts = {
		.loop = bench->loop,
		.supervisor = (struct cell__supervisor *)bench->loop,
		.getenv_fn = bench_getenv,
		.getenv_arg = bench,
	};
	struct cell__tools_dir *dir = NULL;
	if (cell__tools_create(&opts, &bench->tools, &err) < 0 || cell__tools_read_dir(bench->dir, &dir, &err) < 0 ||
	    cell__tools_add_dir(bench->tools, dir, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
}

void bench_start(struct bench *bench)
{
	struct cell_error err;
	memset(bench, 0, sizeof *bench);
	/* The first loop of a process opens some descriptors for good. */
	assert_int_equal(cell__loop_create(&bench->loop, &err), 0);
	cell__loop_destroy(bench->loop);
	bench->fds_before = count_fds();
	bench->view.cwd = "/";
	strcpy(bench->dir, "/tmp/test_tools.XXXXXX");
	assert_non_null(mkdtemp(bench->dir));
	if (cell__loop_create(&bench->loop, &err) < 0)
		fail_msg("%s", err.msg);
	bench_call(bench, make_tools, bench);
}

struct closing {
	struct cell__task task;
	struct bench *bench;
	struct cell__waiter waiter;
};

static void tools_closed(void *arg)
{
	cell__waiter_signal(&((struct closing *)arg)->waiter);
}

static void close_tools(struct cell__task *task)
{
	struct closing *closing = (struct closing *)task;
	cell__tools_close(closing->bench->tools, tools_closed, closing);
}

void bench_close(struct bench *bench)
{
	struct closing closing = { .task.fn = close_tools, .bench = bench };
	cell__waiter_init(&closing.waiter);
	cell__loop_do(bench->loop, &closing.task, &closing.waiter);
	cell__waiter_finish(&closing.waiter);
	cell__loop_destroy(bench->loop);
	bench->tools = NULL;
}

void bench_stop(struct bench *bench)
{
	if (bench->tools)
		bench_close(bench);
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", bench->dir);
	assert_int_equal(system(command), 0);
	assert_int_equal(count_fds(), bench->fds_before);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

void bench_call(struct bench *bench, void (*fn)(void *arg), void *arg)
{
	cell__loop_call(bench->loop, fn, arg);
}

/* ---- the pool ---- */

#define POOL_THREADS 4 /* libuv's, unless $UV_THREADPOOL_SIZE says otherwise */

static struct {
	uv_work_t work[POOL_THREADS];
	sem_t held, released, left;
} pool;

static void do_hold(uv_work_t *work)
{
	(void)work;
	sem_post(&pool.held);
	sem_wait(&pool.released);
}

static void handle_left(uv_work_t *work, int status)
{
	(void)work;
	(void)status;
	sem_post(&pool.left);
}

static void queue_holds(void *arg)
{
	struct bench *bench = arg;
	for (size_t i = 0; i < POOL_THREADS; i++)
		uv_queue_work(cell__loop_uv(bench->loop), &pool.work[i], do_hold, handle_left);
}

void bench_hold_pool(struct bench *bench)
{
	sem_init(&pool.held, 0, 0);
	sem_init(&pool.released, 0, 0);
	sem_init(&pool.left, 0, 0);
	bench_call(bench, queue_holds, bench);
	for (size_t i = 0; i < POOL_THREADS; i++)
		sem_wait(&pool.held);
}

void bench_release_pool(struct bench *bench)
{
	(void)bench;
	for (size_t i = 0; i < POOL_THREADS; i++)
		sem_post(&pool.released);
	for (size_t i = 0; i < POOL_THREADS; i++)
		sem_wait(&pool.left);
}

void bench_write(struct bench *bench, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", bench->dir, name);
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

void bench_remove(struct bench *bench, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", bench->dir, name);
	assert_int_equal(unlink(path), 0);
}

/* ---- questions ---- */

static void take_answer(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	struct ask *ask = (struct ask *)call;
	ask->answered = true;
	ask->result = result;
	cell__buf_add(&ask->raw, raw ? raw : "", raw_size);
	cell__waiter_signal(&ask->waiter);
}

static void take_failure(struct cell__call *call, int code, const char *type, const char *message)
{
	struct ask *ask = (struct ask *)call;
	ask->code = code;
	snprintf(ask->type, sizeof ask->type, "%s", type);
	cell__buf_add_str(&ask->message, message);
	if (!cell__utf8_ok(message, strlen(message)))
		abort();
	cell__waiter_signal(&ask->waiter);
}

static void run_ask(struct cell__task *task)
{
	struct ask *ask = (struct ask *)((char *)task - offsetof(struct ask, task));
	if (cell__call_prepare(&ask->call, ask->bench->asker ? ask->bench->asker : &cell__principal_host) == 0)
		cell__tools_handle(ask->bench->tools, &ask->bench->view, &ask->call);
}

void ask_start(struct ask *ask, struct bench *bench, const char *method, json_t *args)
{
	ask_start_for(ask, bench, "s1", method, args);
}

void ask_start_for(struct ask *ask, struct bench *bench, const char *session_id, const char *method, json_t *args)
{
	*ask = (struct ask){
		.call = { .method = method, .args = args, .session_id = session_id, .answer = take_answer, .fail = take_failure },
		.task.fn = run_ask,
		.bench = bench
	};
	cell__waiter_init(&ask->waiter);
	cell__loop_post(bench->loop, &ask->task);
}

void ask_wait(struct ask *ask)
{
	cell__loop_do(ask->bench->loop, NULL, &ask->waiter);
}

static void cancel_now(void *arg)
{
	struct ask *ask = arg;
	assert_non_null(ask->call.cancel);
	ask->call.cancel(&ask->call);
}

void ask_cancel(struct ask *ask)
{
	bench_call(ask->bench, cancel_now, ask);
}

void ask_finish(struct ask *ask)
{
	json_decref(ask->call.args);
	json_decref(ask->result);
	cell__buf_finish(&ask->raw);
	cell__buf_finish(&ask->message);
	cell__waiter_finish(&ask->waiter);
}

json_t *quick_json(const char *text)
{
	char *copy = strdup(text);
	for (char *at = copy; *at; at++)
		if (*at == '\'')
			*at = '"';
	json_error_t err;
	json_t *json = json_loads(copy, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);
	if (!json)
		fail_msg("%s: %s", copy, err.text);
	free(copy);
	return json;
}

void ask_tool(struct ask *ask, struct bench *bench, const char *name, const char *args)
{
	ask_start(ask, bench, "tools.call", json_pack("{s:s, s:o}", "name", name, "args", quick_json(args)));
	ask_wait(ask);
}

void expect_text(struct bench *bench, const char *name, const char *args, const char *text)
{
	struct ask ask;
	ask_tool(&ask, bench, name, args);
	if (!ask.answered)
		fail_msg("%s %s: %s: %s", name, args, ask.type, ask.message.data);
	assert_string_equal(json_string_value(json_object_get(ask.result, "raw")), "text");
	assert_string_equal(ask.raw.data, text);
	ask_finish(&ask);
}

void expect_fail(struct bench *bench, const char *name, const char *args, int code, const char *type, const char *part)
{
	struct ask ask;
	ask_tool(&ask, bench, name, args);
	if (ask.answered)
		fail_msg("%s %s: was answered: %s", name, args, ask.raw.data);
	if (!strstr(ask.message.data, part))
		fail_msg("not '%s' in: %s", part, ask.message.data);
	assert_string_equal(ask.type, type);
	assert_int_equal(ask.code, code);
	ask_finish(&ask);
}

char *ask_json(struct bench *bench, const char *method, json_t *args)
{
	struct ask ask;
	ask_start(&ask, bench, method, args);
	ask_wait(&ask);
	if (!ask.answered)
		fail_msg("%s: %s: %s", method, ask.type, ask.message.data);
	char *text = json_dumps(ask.result, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	ask_finish(&ask);
	return text;
}

struct cell__tool_entry *load_ok(const char *yaml)
{
	struct cell__problems problems = { 0 };
	struct cell__tool_entry *tool = cell__tool_load("t.yaml", yaml, strlen(yaml), &problems);
	for (size_t i = 0; i < problems.count; i++)
		fprintf(stderr, "%s:%d: %s\n", problems.list[i].file, problems.list[i].line, problems.list[i].message);
	assert_int_equal(problems.count, 0);
	assert_non_null(tool);
	return tool;
}
