/* spawn/confinement: programs in a sandbox, on the real spawner. */
#define _GNU_SOURCE
#include "support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/machine.h"
#include "spawn/confinement.h"
#include "spawn/supervisor.h"

struct rig {
	struct cell__loop *loop;
	struct cell__supervisor supervisor;
	struct cell__sandbox_policy policy;
	struct cell__confinement *confine;
	struct cell__confinement_options options;
	char folder[64], other[64];
	int rc;
	struct cell_error err;
	int told, refuse;
};

struct program {
	struct rig *rig;
	struct cell__task task;
	struct cell__waiter over;
	struct cell__process *process;
	struct cell__process_spec spec;
	const char *input;
	bool kill_when_started, plain;
	struct cell__buf out, errors;
	int64_t pid;
	struct cell__process_exit how;
};

static const char *const plain_env[] = { "LANG=C", NULL };

static void do_create(void *arg)
{
	struct rig *rig = arg;
	rig->options.policy = &rig->policy;
	rig->rc = cell__confinement_create(&rig->supervisor, &rig->options, &rig->confine, &rig->err);
}

static void do_unref(void *arg)
{
	struct rig *rig = arg;
	cell__confinement_unref(rig->confine);
	rig->confine = NULL;
}

static void make(struct rig *rig)
{
	cell__loop_call(rig->loop, do_create, rig);
	if (rig->rc < 0)
		fail_msg("%s", rig->err.msg);
}

static void rig_start(struct rig *rig)
{
	*rig = (struct rig){ 0 };
	snprintf(rig->folder, sizeof rig->folder, "/tmp/wc-confine-XXXXXX");
	snprintf(rig->other, sizeof rig->other, "/tmp/wc-confine-XXXXXX");
	assert_non_null(mkdtemp(rig->folder));
	assert_non_null(mkdtemp(rig->other));
	assert_int_equal(cell__sandbox_policy_load(&rig->policy, "untrusted", NULL), 0);
	assert_int_equal(cell__loop_create(&rig->loop, NULL), 0);
	assert_int_equal(cell__supervisor_init(&rig->supervisor, rig->loop, TEST_LIB_DIR "/workcell-spawner", NULL), 0);
	rig->options = (struct cell__confinement_options){ .workspace = rig->folder, .mode = CELL_WORKSPACE_RW };
}

static void handle_hub_gone(void *arg)
{
	cell__waiter_signal(arg);
}

static void do_finish_hub(struct cell__task *task)
{
	struct program *program = (struct program *)((char *)task - offsetof(struct program, task));
	cell__supervisor_finish(&program->rig->supervisor, handle_hub_gone, &program->over);
}

static void rig_end(struct rig *rig)
{
	struct program end = { .rig = rig, .task.fn = do_finish_hub };
	char command[200];
	cell__loop_call(rig->loop, do_unref, rig);
	cell__waiter_init(&end.over);
	cell__loop_do(rig->loop, &end.task, &end.over);
	cell__waiter_finish(&end.over);
	cell__loop_destroy(rig->loop);
	cell__sandbox_policy_finish(&rig->policy);
	snprintf(command, sizeof command, "rm -rf %s %s", rig->folder, rig->other);
	assert_int_equal(system(command), 0);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct program *program = owner;
	CHECK(cell__buf_add(stream == CELL_STDOUT ? &program->out : &program->errors, bytes, size) == 0);
}

static void handle_started(void *owner, int64_t pid)
{
	struct program *program = owner;
	program->pid = pid;
	if (program->kill_when_started)
		cell__process_kill(program->process);
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct program *program = owner;
	program->how = *how;
	cell__waiter_signal(&program->over);
}

static void do_start(struct cell__task *task)
{
	struct program *program = (struct program *)((char *)task - offsetof(struct program, task));
	struct cell_error err;
	program->spec.confine = program->plain ? NULL : program->rig->confine;
	CHECK(cell__process_start(&program->rig->supervisor, &program->spec, &program->process, &err) == 0);
	if (program->input) {
		CHECK(cell__process_write(program->process, program->input, strlen(program->input), &err) == 0);
		cell__process_close_stdin(program->process);
	}
}

static void do_start_one(void *arg)
{
	do_start(&((struct program *)arg)->task);
}

static void program_init(struct program *program, struct rig *rig, const char *const *argv)
{
	*program = (struct program){ .rig = rig, .task.fn = do_start };
	program->spec = (struct cell__process_spec){
		.argv = argv,
		.env = plain_env,
		.path = "/usr/bin:/bin",
		.cwd = rig->folder,
		.timeout_ms = 20000,
		.started = handle_started,
		.output = handle_output,
		.exited = handle_exited,
		.owner = program,
	};
}

static void program_run(struct program *program)
{
	cell__waiter_init(&program->over);
	cell__loop_do(program->rig->loop, &program->task, &program->over);
	cell__waiter_finish(&program->over);
	CHECK(cell__buf_add(&program->out, "", 1) == 0 && cell__buf_add(&program->errors, "", 1) == 0);
}

static void program_finish(struct program *program)
{
	cell__buf_finish(&program->out);
	cell__buf_finish(&program->errors);
}

/* Runs a jail script; its output is out. */
static void script(struct program *program, struct rig *rig, const char *text)
{
	static const char *argv[4] = { "/bin/sh", "-c", NULL, NULL };
	argv[2] = text;
	program_init(program, rig, argv);
	program_run(program);
}

static void expect(struct rig *rig, const char *text, const char *wanted)
{
	struct program program;
	script(&program, rig, text);
	if (program.how.error)
		fail_msg("%s: %s", strerror(program.how.error), program.how.failure.msg);
	assert_string_equal(program.out.data, wanted);
	assert_int_equal(program.how.status, 0);
	program_finish(&program);
}

/* ---- what it sees ---- */

static void test_it_sees_what_it_is_shown(void **state)
{
	(void)state;
	static struct rig rig;
	char path[128], text[256];
	rig_start(&rig);
	make(&rig);
	snprintf(path, sizeof path, "%s/in", rig.folder);
	FILE *file = fopen(path, "w");
	fputs("hello\n", file);
	fclose(file);
	expect(&rig, "cat in; echo $PWD > out", "hello\n");
	snprintf(path, sizeof path, "%s/out", rig.folder);
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	assert_true(support_read_file(path, &out));
	assert_int_equal(strncmp(out.data, rig.folder, strlen(rig.folder)), 0);
	expect(&rig, "cat /etc/shadow /root/.bashrc 2>/dev/null; echo $$ > /tmp/mine; ls /tmp | grep -v wc-confine", "mine\n");
	snprintf(text, sizeof text, "ls %s 2>/dev/null; test -e /.host && echo host; true", rig.other);
	expect(&rig, text, "");
	/* Nothing of an earlier one is left. */
	expect(&rig, "ls /tmp | grep -v wc-confine; true", "");
	rig_end(&rig);
}

static void test_modes_and_folders(void **state)
{
	(void)state;
	static struct rig rig;
	char text[256];
	rig_start(&rig);
	const char *const others[] = { rig.other, NULL };
	rig.options.mode = CELL_WORKSPACE_RO;
	rig.options.read = others;
	make(&rig);
	snprintf(text, sizeof text, "touch %s/a . 2>/dev/null || echo no; touch b 2>/dev/null || echo no; ls -d %s", rig.other, rig.other);
	char wanted[128];
	snprintf(wanted, sizeof wanted, "no\nno\n%s\n", rig.other);
	expect(&rig, text, wanted);
	cell__loop_call(rig.loop, do_unref, &rig);
	rig.options.mode = CELL_WORKSPACE_NONE;
	rig.options.read = NULL;
	rig.options.write = others;
	make(&rig);
	assert_string_equal(cell__confinement_cwd(rig.confine), CELL_PLAN_HOME);
	struct program program;
	static const char *argv[] = { "/bin/sh", "-c", NULL, NULL };
	snprintf(text, sizeof text, "touch %s/made && ls -A / | grep -c tmp; ls %s 2>/dev/null", rig.other, rig.folder);
	argv[2] = text;
	program_init(&program, &rig, argv);
	program.spec.cwd = cell__confinement_cwd(rig.confine);
	program_run(&program);
	assert_string_equal(program.out.data, "1\n");
	program_finish(&program);
	snprintf(text, sizeof text, "%s/made", rig.other);
	assert_int_equal(access(text, F_OK), 0);
	rig_end(&rig);
}

static void test_its_environment_and_descriptors(void **state)
{
	(void)state;
	static struct rig rig;
	struct program program;
	rig_start(&rig);
	make(&rig);
	static const char *const argv[] = { "sh", "-c", "env | grep -v ^_= | sort; cat; cat <&3; ls /proc/self/fd", NULL };
	int pair[2];
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	assert_int_equal(write(pair[1], "three\n", 6), 6);
	close(pair[1]);
	program_init(&program, &rig, argv);
	program.spec.want_stdin = true;
	program.spec.fds = pair;
	program.spec.n_fds = 1;
	program.input = "zero\n";
	program_run(&program);
	close(pair[0]);
	char wanted[256];
	/* 4 is the folder that ls itself reads. */
	snprintf(wanted, sizeof wanted, "LANG=C\nPWD=%s\nzero\nthree\n0\n1\n2\n3\n4\n", rig.folder);
	assert_string_equal(program.out.data, wanted);
	program_finish(&program);
	rig_end(&rig);
}

/* ---- how it ends ---- */

static void test_exit_statuses(void **state)
{
	(void)state;
	static struct rig rig;
	struct program program;
	rig_start(&rig);
	make(&rig);
	script(&program, &rig, "exit 7");
	assert_int_equal(program.how.status, 7);
	assert_false(program.how.signalled);
	program_finish(&program);
	script(&program, &rig, "kill -TERM $$; sleep 20");
	assert_int_equal(program.how.status, SIGTERM);
	assert_true(program.how.signalled);
	program_finish(&program);
	rig_end(&rig);
}

static bool nobody_sleeps(const char *name)
{
	char command[200];
	snprintf(command, sizeof command, "! pgrep -f '[s]leep %s' >/dev/null", (char *)name);
	return system(command) == 0;
}

/* What it left behind is gone when its exit is told, whatever session or group that went to. */
static void test_orphans_go_with_it(void **state)
{
	(void)state;
	static struct rig rig;
	rig_start(&rig);
	make(&rig);
	expect(&rig, "setsid sleep 4711.25 >/dev/null 2>&1 & setsid sh -c 'sleep 4711.25 & sleep 4711.25' >/dev/null 2>&1 & echo ok",
	       "ok\n");
	assert_true(nobody_sleeps("4711.25"));
	rig_end(&rig);
}

static void test_kill_and_timeout(void **state)
{
	(void)state;
	static struct rig rig;
	struct program program;
	static const char *const argv[] = { "/bin/sh", "-c", "trap '' TERM; setsid sleep 4712.5 & sleep 4712.5", NULL };
	rig_start(&rig);
	make(&rig);
	for (int i = 0; i < 2; i++) {
		program_init(&program, &rig, argv);
		program.kill_when_started = i == 0;
		program.spec.timeout_ms = i == 0 ? 20000 : 30;
		program_run(&program);
		assert_int_equal(program.how.killed, i == 0);
		assert_int_equal(program.how.timed_out, i == 1);
		assert_int_equal(program.how.error, 0);
		assert_true(nobody_sleeps("4712.5"));
		program_finish(&program);
	}
	rig_end(&rig);
}

static void test_many_at_once(void **state)
{
	(void)state;
	static struct rig rig;
	static struct program programs[12];
	static const char *const argv[] = { "/bin/sh", "-c", "echo $$; cat", NULL };
	rig_start(&rig);
	make(&rig);
	for (size_t i = 0; i < COUNT(programs); i++) {
		program_init(&programs[i], &rig, argv);
		programs[i].spec.want_stdin = true;
		programs[i].input = "x";
		cell__waiter_init(&programs[i].over);
		cell__loop_call(rig.loop, do_start_one, &programs[i]);
	}
	for (size_t i = 0; i < COUNT(programs); i++) {
		cell__loop_do(rig.loop, NULL, &programs[i].over);
		cell__waiter_finish(&programs[i].over);
		assert_int_equal(programs[i].how.error, 0);
		assert_int_equal(programs[i].how.status, 0);
		assert_int_equal(programs[i].out.data[programs[i].out.size - 1], 'x');
		program_finish(&programs[i]);
	}
	rig_end(&rig);
}

/* ---- what cannot be ---- */

static void test_what_is_not_shown_is_not_found(void **state)
{
	(void)state;
	static struct rig rig;
	struct program program;
	char hidden[128];
	rig_start(&rig);
	make(&rig);
	snprintf(hidden, sizeof hidden, "%s/tool", rig.other);
	FILE *file = fopen(hidden, "w");
	fputs("#!/bin/sh\necho ran\n", file);
	fclose(file);
	chmod(hidden, 0755);
	const char *const full[] = { hidden, NULL }, *const name[] = { "tool", NULL };
	const char *const *both[] = { full, name };
	for (int i = 0; i < 2; i++) {
		program_init(&program, &rig, both[i]);
		program.spec.path = rig.other;
		program_run(&program);
		assert_int_equal(program.how.error, ENOENT);
		assert_false(program.how.bad_cwd);
		assert_int_equal(program.how.failure.code, 0);
		program_finish(&program);
	}
	const char *const fine[] = { "true", NULL };
	program_init(&program, &rig, fine);
	program.spec.cwd = rig.other;
	program_run(&program);
	assert_int_equal(program.how.error, ENOENT);
	assert_true(program.how.bad_cwd);
	program_finish(&program);
	rig_end(&rig);
}

/* A folder that went away after the confinement was made: the program does not run with less. */
static void test_a_step_that_fails(void **state)
{
	(void)state;
	static struct rig rig;
	struct program program;
	rig_start(&rig);
	const char *const others[] = { rig.other, NULL };
	rig.options.write = others;
	make(&rig);
	assert_int_equal(rmdir(rig.other), 0);
	script(&program, &rig, "touch ran");
	assert_int_equal(program.how.error, ENOENT);
	assert_int_equal(program.how.failure.code, CELL_E_SANDBOX);
	assert_non_null(strstr(program.how.failure.msg, rig.other));
	char path[128];
	snprintf(path, sizeof path, "%s/ran", rig.folder);
	assert_int_equal(access(path, F_OK), -1);
	program_finish(&program);
	/* The next one is as good as ever. */
	assert_int_equal(mkdir(rig.other, 0755), 0);
	expect(&rig, "echo fine", "fine\n");
	rig_end(&rig);
}

static void test_what_is_refused_at_once(void **state)
{
	(void)state;
	static struct rig rig;
	rig_start(&rig);
	const char *const missing[] = { "/nowhere/at/all", NULL };
	rig.options.write = missing;
	cell__loop_call(rig.loop, do_create, &rig);
	assert_int_equal(rig.rc, -1);
	assert_int_equal(rig.err.code, CELL_E_INVALID);
	rig.options.write = NULL;
	rig.options.workspace = "/etc";
	cell__loop_call(rig.loop, do_create, &rig);
	assert_int_equal(rig.rc, -1);
	assert_int_equal(rig.err.code, CELL_E_INVALID);
	rig_end(&rig);
}

/* ---- the network ---- */

static int tell(void *arg, const struct cell__confinement *confinement, const struct cell__egress_event *event, struct cell_error *err)
{
	struct rig *rig = arg;
	CHECK(confinement == rig->confine);
	rig->told += !event->ended && !event->refusal;
	return rig->refuse ? cell_fail(err, CELL_E_IO, 0, "not now") : 0;
}

static void do_watch(void *arg)
{
	struct rig *rig = arg;
	cell__confinement_watch(rig->confine, tell, rig);
}

/* A CONNECT through the proxy; prints the status. */
#define CONNECT(port)                                                                  \
	"python3 -c \"import socket\ns=socket.create_connection(('127.0.0.1',3128))\n" \
	"s.sendall(b'CONNECT 127.0.0.1:" port " HTTP/1.1\\r\\n\\r\\n')\nprint(s.recv(99).split()[1].decode())\""

static void test_networks(void **state)
{
	(void)state;
	static struct rig rig;
	char port[16], text[512];
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof here;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &size), 0);
	snprintf(port, sizeof port, "127.0.0.1:%d", ntohs(here.sin_port));
	rig_start(&rig);
	rig.options.network = CELL_CONFINED_OFFLINE;
	make(&rig);
	snprintf(text, sizeof text, "python3 -c \"import socket; socket.create_connection(('127.0.0.1', %d))\" 2>/dev/null || echo none",
		 ntohs(here.sin_port));
	expect(&rig, text, "none\n");
	assert_null(cell__confinement_env(rig.confine)[1]);
	cell__loop_call(rig.loop, do_unref, &rig);
	const char *const hosts[] = { port, NULL };
	rig.options.network = CELL_CONFINED_INDEX;
	rig.options.index_hosts = hosts;
	make(&rig);
	cell__loop_call(rig.loop, do_watch, &rig);
	assert_non_null(cell__confinement_env(rig.confine)[1]);
	snprintf(text, sizeof text, CONNECT("%d") ";" CONNECT("%d"), ntohs(here.sin_port), ntohs(here.sin_port) ^ 1);
	expect(&rig, text, "200\n403\n");
	assert_int_equal(rig.told, 1);
	rig.refuse = 1;
	snprintf(text, sizeof text, CONNECT("%d"), ntohs(here.sin_port));
	expect(&rig, text, "503\n");
	close(fd);
	rig_end(&rig);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	if (cell__machine_here()->level != CELL_LEVEL_FULL) {
		fprintf(stderr, "programs cannot be confined here: %s\n", cell__machine_here()->reason);
		return 77;
	}
	const struct CMUnitTest tests[] = {
		TEST(test_it_sees_what_it_is_shown),
		TEST(test_modes_and_folders),
		TEST(test_its_environment_and_descriptors),
		TEST(test_exit_statuses),
		TEST(test_orphans_go_with_it),
		TEST(test_kill_and_timeout),
		TEST(test_many_at_once),
		TEST(test_what_is_not_shown_is_not_found),
		TEST(test_a_step_that_fails),
		TEST(test_what_is_refused_at_once),
		TEST(test_networks),
	};
	return cmocka_run_group_tests_name("confinement", tests, NULL, NULL);
}
