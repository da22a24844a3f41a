/* spawn: messages, questions to /proc, and the host's end of the spawner, also against the real one. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "spawn/client.h"
#include "spawn/message.h"
#include "spawn/proc.h"

/* ---- message ---- */

struct received {
	struct cell_spawn_msg head;
	char payload[256];
	size_t size;
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
};

static void receive(int fd, struct received *out)
{
	struct iovec iov[2] = { { &out->head, sizeof out->head }, { out->payload, sizeof out->payload } };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_SPAWN_MAX_FDS * sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	assert_true(n >= (ssize_t)sizeof out->head);
	out->size = (size_t)n - sizeof out->head;
	out->n_fds = 0;
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	if (c) {
		out->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(out->fds, CMSG_DATA(c), out->n_fds * sizeof(int));
	}
}

static void test_message(void **state)
{
	(void)state;
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	const struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION,
		.type = CELL_SPAWN_KERNEL_FORK,
		.id = 0x1122334455667788u,
		.a = -1,
		.b = INT64_MIN,
	};
	struct received got;
	assert_int_equal(cell__spawn_send(pair[0], &head, NULL, 0, NULL, 0, 0), 0);
	receive(pair[1], &got);
	assert_memory_equal(&got.head, &head, sizeof head);
	assert_int_equal(got.size, 0);
	assert_int_equal(got.n_fds, 0);
	assert_int_equal(cell__spawn_send(pair[0], &head, "a\0b", 4, NULL, 0, 0), 0);
	receive(pair[1], &got);
	assert_int_equal(got.size, 4);
	assert_memory_equal(got.payload, "a\0b", 4);
	close(pair[0]);
	close(pair[1]);
}

static void test_message_with_fds(void **state)
{
	(void)state;
	int pair[2], files[CELL_SPAWN_MAX_FDS];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	for (int i = 0; i < CELL_SPAWN_MAX_FDS; i++)
		files[i] = open(i % 2 ? "/dev/zero" : "/dev/null", O_RDWR | O_CLOEXEC);
	const struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_KERNEL_FORK };
	for (size_t n = 1; n <= CELL_SPAWN_MAX_FDS; n++) {
		struct received got;
		assert_int_equal(cell__spawn_send(pair[0], &head, "p", 1, files, n, 0), 0);
		receive(pair[1], &got);
		assert_int_equal(got.n_fds, n);
		for (size_t i = 0; i < n; i++) {
			struct stat sent, arrived;
			assert_int_equal(fstat(files[i], &sent), 0);
			assert_int_equal(fstat(got.fds[i], &arrived), 0);
			assert_true(sent.st_rdev == arrived.st_rdev);
			close(got.fds[i]);
		}
	}
	for (int i = 0; i < CELL_SPAWN_MAX_FDS; i++)
		close(files[i]);
	close(pair[0]);
	close(pair[1]);
}

static void test_message_failures(void **state)
{
	(void)state;
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	const struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION };
	int rc, count = 0;
	while ((rc = cell__spawn_send(pair[0], &head, NULL, 0, NULL, 0, MSG_DONTWAIT)) == 0 && count < 1000000)
		count++;
	assert_int_equal(rc, -EAGAIN);
	assert_true(count > 64); /* what the executor keeps in flight fits */
	close(pair[0]);
	assert_int_equal(cell__spawn_send(pair[1], &head, NULL, 0, NULL, 0, 0), -EPIPE); /* and no SIGPIPE */
	close(pair[1]);
	assert_int_equal(cell__spawn_send(-1, &head, NULL, 0, NULL, 0, 0), -EBADF);
}

/* ---- proc ---- */

struct pids {
	pid_t pid[64];
	size_t n;
};

static void add_pid(pid_t pid, void *arg)
{
	struct pids *pids = arg;
	assert_true(pids->n < COUNT(pids->pid));
	pids->pid[pids->n++] = pid;
}

static bool holds(const struct pids *pids, pid_t pid)
{
	for (size_t i = 0; i < pids->n; i++)
		if (pids->pid[i] == pid)
			return true;
	return false;
}

static pid_t start_sleeper(void)
{
	pid_t pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	return pid;
}

static void *fork_elsewhere(void *arg)
{
	*(pid_t *)arg = start_sleeper();
	return NULL;
}

static void test_children(void **state)
{
	(void)state;
	struct pids found = { .n = 0 };
	cell__proc_children(getpid(), add_pid, &found);
	assert_int_equal(found.n, 0);
	struct pids made = { .n = 3 };
	made.pid[0] = start_sleeper();
	made.pid[1] = start_sleeper();
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, fork_elsewhere, &made.pid[2]), 0);
	pthread_join(thread, NULL);
	cell__proc_children(getpid(), add_pid, &found);
	assert_int_equal(found.n, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_true(made.pid[i] > 0);
		assert_true(holds(&found, made.pid[i]));
		cell__proc_kill_tree(made.pid[i]);
		assert_int_equal(waitpid(made.pid[i], NULL, 0), made.pid[i]);
	}
	/* A process that is not there has no children. */
	found.n = 0;
	cell__proc_children(made.pid[0], add_pid, &found);
	assert_int_equal(found.n, 0);
}

/* The root of a binary tree of processes: each has two children, down to this depth, and tells its pid through fd. */
static void grow(int fd, int depth)
{
	for (int children = 0; depth > 0 && children < 2; children++)
		if (fork() == 0) {
			/* Each hides in a session of its own and ignores what can be ignored. */
			setsid();
			signal(SIGTERM, SIG_IGN);
			depth--;
			children = -1;
		}
	pid_t self = getpid();
	if (write(fd, &self, sizeof self) != sizeof self)
		_exit(1);
	for (;;)
		pause();
}

static void test_kill_tree(void **state)
{
	(void)state;
	int fds[2];
	struct pids tree = { .n = 15 };
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	pid_t root = fork();
	assert_true(root >= 0);
	if (root == 0)
		grow(fds[1], 3);
	for (size_t i = 0; i < tree.n; i++)
		assert_int_equal(read(fds[0], &tree.pid[i], sizeof(pid_t)), sizeof(pid_t));
	pid_t bystander = start_sleeper();
	assert_true(holds(&tree, root));
	cell__proc_kill_tree(root);
	for (size_t i = 0; i < tree.n; i++)
		assert_true(support_wait(support_pid_gone, &tree.pid[i]));
	assert_int_equal(waitpid(bystander, NULL, WNOHANG), 0);
	kill(bystander, SIGKILL);
	waitpid(bystander, NULL, 0);
	close(fds[0]);
	close(fds[1]);
}

static void test_oom_kills(void **state)
{
	(void)state;
	uint64_t before = cell__proc_oom_kills();
	assert_true(cell__proc_oom_kills() >= before);
}

/* ---- client ---- */

struct rig {
	struct cell__loop *loop;
	struct cell__spawn_client client;
	const char *program;
	int rc;
	struct cell_error err;
	struct cell__waiter waiter; /* its lock guards what follows */
	struct received got[16];
	size_t n_got;
	int ended;
};

static void handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size)
{
	struct rig *rig = arg;
	cell__waiter_lock(&rig->waiter);
	CHECK(rig->n_got < COUNT(rig->got) && size < sizeof rig->got[0].payload);
	struct received *got = &rig->got[rig->n_got++];
	got->head = *head;
	got->size = size;
	memcpy(got->payload, payload, size);
	cell__waiter_unlock(&rig->waiter);
	cell__waiter_signal(&rig->waiter);
}

static void handle_ended(void *arg)
{
	struct rig *rig = arg;
	cell__spawn_client_stop(&rig->client);
	cell__waiter_lock(&rig->waiter);
	rig->ended++;
	cell__waiter_unlock(&rig->waiter);
	cell__waiter_signal(&rig->waiter);
}

static void do_start(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__spawn_client_start(&rig->client, rig->program, &rig->err);
}

static void do_finish(void *arg)
{
	cell__spawn_client_finish(&((struct rig *)arg)->client);
}

static void rig_start(struct rig *rig, const char *program)
{
	*rig = (struct rig){ .program = program };
	assert_int_equal(cell__loop_create(&rig->loop, NULL), 0);
	cell__waiter_init(&rig->waiter);
	cell__spawn_client_init(&rig->client, rig->loop, handle_message, handle_ended, rig);
	assert_false(cell__spawn_client_running(&rig->client));
	cell__loop_call(rig->loop, do_start, rig);
}

static void rig_stop(struct rig *rig)
{
	assert_false(cell__spawn_client_running(&rig->client));
	cell__loop_destroy(rig->loop);
	cell__waiter_finish(&rig->waiter);
}

/* Runs the loop until there are this many messages or the end. */
static void rig_wait(struct rig *rig, size_t n_got, int ended)
{
	for (;;) {
		cell__waiter_lock(&rig->waiter);
		bool there = rig->n_got >= n_got && rig->ended >= ended;
		cell__waiter_set_done(&rig->waiter, false);
		cell__waiter_unlock(&rig->waiter);
		if (there)
			return;
		cell__loop_do(rig->loop, NULL, &rig->waiter);
	}
}

static void test_client_bad_programs(void **state)
{
	(void)state;
	static const struct {
		const char *program;
		int sys;
	} rows[] = {
		{ "/nonexistent/workcell-spawner", ENOENT },
		{ "/etc/passwd", EACCES },
		{ "/tmp", EACCES },
		{ "/bin/false", 0 }, /* starts, and says that it failed */
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		rig_start(&rig, rows[i].program);
		assert_int_equal(rig.rc, -1);
		assert_int_equal(rig.err.code, CELL_E_SPAWNER);
		assert_int_equal(rig.err.sys, rows[i].sys);
		assert_non_null(strstr(rig.err.msg, rows[i].program));
		assert_int_equal(rig.ended, 0);
		/* Nothing runs, so nothing can be asked of it. */
		struct cell_error err;
		int rc = cell__spawn_client_send(&rig.client, CELL_SPAWN_ZYGOTE_STOP, 2, 0, 0, NULL, 0, NULL, 0, &err);
		assert_int_equal(rc, -1);
		assert_int_equal(err.code, CELL_E_SPAWNER);
		rig_stop(&rig);
	}
}

/* A program that ends well without serving: its end of the socket closes. */
static void test_client_end(void **state)
{
	(void)state;
	struct rig rig;
	rig_start(&rig, "/bin/true");
	assert_int_equal(rig.rc, 0);
	rig_wait(&rig, 0, 1);
	assert_int_equal(rig.ended, 1);
	assert_int_equal(rig.n_got, 0);
	rig_stop(&rig);
}

struct send {
	struct rig *rig;
	uint32_t type;
	uint64_t id;
	int64_t a;
	const char *payload;
	size_t size;
	const int *fds;
	size_t n_fds;
	int rc;
	struct cell_error err;
};

static void do_send(void *arg)
{
	struct send *send = arg;
	send->rc = cell__spawn_client_send(&send->rig->client, send->type, send->id, send->a, 0, send->payload, send->size, send->fds,
					   send->n_fds, &send->err);
}

static void test_client_limit(void **state)
{
	(void)state;
	struct rig rig;
	rig_start(&rig, TEST_LIB_DIR "/workcell-spawner");
	assert_int_equal(rig.rc, 0);
	size_t most = CELL_LIMIT_SPAWN_MESSAGE - sizeof(struct cell_spawn_msg);
	char *payload = cell__alloc(1, most + 1);
	struct send send = { .rig = &rig, .type = CELL_SPAWN_ZYGOTE_START, .id = 5, .payload = payload, .size = most + 1 };
	cell__loop_call(rig.loop, do_send, &send);
	assert_int_equal(send.rc, -1);
	assert_int_equal(send.err.code, CELL_E_LIMIT);
	send.size = most; /* at the limit it arrives, and is refused for what it says: no program */
	cell__loop_call(rig.loop, do_send, &send);
	assert_int_equal(send.rc, 0);
	rig_wait(&rig, 1, 0);
	assert_int_equal(rig.got[0].head.type, CELL_SPAWN_ZYGOTE_EXITED);
	assert_int_equal(rig.got[0].head.id, 5);
	assert_int_equal(rig.got[0].head.b, EINVAL);
	free(payload);
	cell__loop_call(rig.loop, do_finish, &rig);
	rig_wait(&rig, 1, 1);
	rig_stop(&rig);
}

static void test_spawner(void **state)
{
	(void)state;
	struct rig rig;
	rig_start(&rig, TEST_LIB_DIR "/workcell-spawner");
	assert_int_equal(rig.rc, 0);
	assert_true(cell__spawn_client_running(&rig.client));
	cell__loop_call(rig.loop, do_start, &rig); /* again: nothing happens */
	assert_int_equal(rig.rc, 0);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int fds[4] = { null, null, null, null };
	static const char no_such[] = "/nonexistent/python\0LANG=C";
	static const char fails[] = "/bin/sh\0-c\0echo last words >&2; exit 3\0A=1";
	static const char dies[] = "/bin/sh\0-c\0kill -9 $$";
	const struct {
		struct send send;
		uint32_t type;
		int64_t a, b;
		const char *payload;
	} rows[] = {
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 1, .payload = no_such, .size = sizeof no_such },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  -1,
		  ENOENT,
		  "" },
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 3, .payload = fails, .size = sizeof fails },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  W_EXITCODE(3, 0),
		  0,
		  "last words\n" },
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 3, .payload = dies, .size = sizeof dies },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  W_EXITCODE(0, 9),
		  0,
		  "" },
		/* What makes no sense is answered, not believed. */
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 0, .payload = fails, .size = sizeof fails },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  -1,
		  EINVAL,
		  "" },
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 100, .payload = fails, .size = sizeof fails },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  -1,
		  EINVAL,
		  "" },
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 1, .payload = fails, .size = sizeof fails - 1 },
		  CELL_SPAWN_ZYGOTE_EXITED,
		  -1,
		  EINVAL,
		  "" },
		{ { .type = CELL_SPAWN_ZYGOTE_START, .a = 1 }, CELL_SPAWN_ZYGOTE_EXITED, -1, EINVAL, "" },
		{ { .type = CELL_SPAWN_KERNEL_FORK, .a = 4711, .fds = fds, .n_fds = 4 }, CELL_SPAWN_KERNEL_FORKED, 0, ESRCH, "" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		/* Noise and questions about nobody in between are passed over. */
		struct send nobody = { .rig = &rig, .type = CELL_SPAWN_KERNEL_KILL, .id = 99, .a = 9 };
		cell__loop_call(rig.loop, do_send, &nobody);
		nobody.type = 12345;
		cell__loop_call(rig.loop, do_send, &nobody);
		assert_int_equal(send(rig.client.fd, "noise", 5, MSG_NOSIGNAL), 5);
		struct send wish = rows[i].send;
		wish.rig = &rig;
		wish.id = 10 + i;
		cell__loop_call(rig.loop, do_send, &wish);
		assert_int_equal(wish.rc, 0);
		rig_wait(&rig, i + 1, 0);
		assert_int_equal(rig.n_got, i + 1);
		assert_int_equal(rig.got[i].head.type, rows[i].type);
		assert_int_equal(rig.got[i].head.id, 10 + i);
		assert_int_equal(rig.got[i].head.a, rows[i].a);
		assert_int_equal(rig.got[i].head.b, rows[i].b);
		assert_int_equal(rig.got[i].size, strlen(rows[i].payload));
		assert_memory_equal(rig.got[i].payload, rows[i].payload, strlen(rows[i].payload));
	}
	close(null);
	cell__loop_call(rig.loop, do_finish, &rig);
	rig_wait(&rig, 0, 1);
	assert_int_equal(rig.ended, 1);
	rig_stop(&rig);
}

/* Its end takes along what it started, also what hides in a session of its own. */
static void test_spawner_leaves_nothing(void **state)
{
	(void)state;
	struct rig rig;
	rig_start(&rig, TEST_LIB_DIR "/workcell-spawner");
	assert_int_equal(rig.rc, 0);
	static const char tree[] = "/bin/sh\0-c\0setsid sleep 1000 & trap '' TERM HUP INT; sleep 1000\0PATH=/bin:/usr/bin";
	struct send wish = { .rig = &rig, .type = CELL_SPAWN_ZYGOTE_START, .id = 7, .a = 3, .payload = tree, .size = sizeof tree };
	cell__loop_call(rig.loop, do_send, &wish);
	assert_int_equal(wish.rc, 0);
	cell__loop_call(rig.loop, do_finish, &rig);
	rig_wait(&rig, 0, 1);
	rig_stop(&rig);
	/* The teardown finds what is left, because it would be our child now. */
}

static void test_spawner_refuses_to_be_called(void **state)
{
	(void)state;
	int status = system(TEST_LIB_DIR "/workcell-spawner 2>/dev/null");
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 2);
	status = system(TEST_LIB_DIR "/workcell-spawner serve 3<&- 2>/dev/null");
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 2);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_message),
		TEST(test_message_with_fds),
		TEST(test_message_failures),
		TEST(test_children),
		TEST(test_kill_tree),
		TEST(test_oom_kills),
		TEST(test_client_bad_programs),
		TEST(test_client_end),
		TEST(test_client_limit),
		TEST(test_spawner),
		TEST(test_spawner_leaves_nothing),
		TEST(test_spawner_refuses_to_be_called),
	};
	return cmocka_run_group_tests_name("spawn", tests, NULL, NULL);
}
