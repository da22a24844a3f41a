/* spawn/process: programs with a stdin that is written to, on the real spawner. */
#define _GNU_SOURCE
#include "support.h"

#include <signal.h>

#include "spawn/supervisor.h"

struct program {
	struct cell__loop *loop;
	struct cell__supervisor supervisor;
	struct cell__waiter over;
	struct cell__process *process;
	const char *const *argv;
	const char *input;
	size_t input_size;
	bool close_stdin;
	struct cell__buf out;
	int64_t pid; /* as told when it started */
	struct cell__process_exit how;
	int rc;
	struct cell_error err;
	struct cell__task task;
};

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct program *program = owner;
	if (stream == CELL_STDOUT)
		CHECK(cell__buf_add(&program->out, bytes, size) == 0);
}

static void handle_started(void *owner, int64_t pid)
{
	struct program *program = owner;
	CHECK(program->pid == 0 && cell__process_pid(program->process) == pid);
	program->pid = pid;
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct program *program = owner;
	program->how = *how;
	program->process = NULL;
	cell__waiter_signal(&program->over);
}

static void do_start(struct cell__task *task)
{
	struct program *program = (struct program *)((char *)task - offsetof(struct program, task));
	static const char *const env[] = { "LANG=C", NULL };
	struct cell__process_spec spec = {
		.argv = program->argv,
		.env = env,
		.path = "/usr/bin:/bin",
		.cwd = "/",
		.timeout_ms = 20000,
		.want_stdin = true,
		.started = handle_started,
		.output = handle_output,
		.exited = handle_exited,
		.owner = program,
	};
	CHECK(cell__process_start(&program->supervisor, &spec, &program->process, &program->err) == 0);
	/* In two pieces, the second behind the first. */
	size_t half = program->input_size / 2;
	program->rc = cell__process_write(program->process, program->input, half, &program->err);
	if (program->rc == 0)
		program->rc = cell__process_write(program->process, program->input + half, program->input_size - half, &program->err);
	if (program->close_stdin)
		cell__process_close_stdin(program->process);
}

static void do_finish_hub(void *arg);

static void handle_hub_gone(void *arg)
{
	cell__waiter_signal(&((struct program *)arg)->over);
}

static void do_finish_hub(void *arg)
{
	struct program *program = arg;
	cell__supervisor_finish(&program->supervisor, handle_hub_gone, program);
}

static void run(struct program *program)
{
	assert_int_equal(cell__loop_create(&program->loop, NULL), 0);
	assert_int_equal(cell__supervisor_init(&program->supervisor, program->loop, TEST_LIB_DIR "/workcell-spawner", NULL), 0);
	cell__waiter_init(&program->over);
	program->task.fn = do_start;
	cell__loop_do(program->loop, &program->task, &program->over);
	cell__waiter_finish(&program->over);
	cell__waiter_init(&program->over);
	cell__loop_call(program->loop, do_finish_hub, program);
	cell__loop_do(program->loop, NULL, &program->over);
	cell__waiter_finish(&program->over);
	cell__loop_destroy(program->loop);
}

static void test_all_of_it_arrives(void **state)
{
	(void)state;
	static struct program program;
	static const char *const argv[] = { "/bin/sh", "-c", "sleep 0.2; exec sha256sum", NULL };
	size_t size = 20 * 1000 * 1000;
	char *input = malloc(size);
	for (size_t i = 0; i < size; i++)
		input[i] = (char)(i * 31 >> 3);
	program = (struct program){ .argv = argv, .input = input, .input_size = size, .close_stdin = true };
	run(&program);
	assert_int_equal(program.rc, 0);
	assert_int_equal(program.how.status, 0);
	assert_int_equal(program.out.size, 64 + 4);
	FILE *file = fopen("/tmp/workcell-test-process", "wb");
	assert_non_null(file);
	fwrite(input, 1, size, file);
	fclose(file);
	FILE *sum = popen("sha256sum < /tmp/workcell-test-process", "r");
	char wanted[65] = "";
	assert_int_equal(fread(wanted, 1, 64, sum), 64);
	pclose(sum);
	unlink("/tmp/workcell-test-process");
	assert_memory_equal(program.out.data, wanted, 64);
	cell__buf_finish(&program.out);
	free(input);
}

/* A reader that goes must not cost the host a SIGPIPE: it has its default action here. */
static void test_a_reader_that_goes(void **state)
{
	(void)state;
	static struct program program;
	static const char *const argv[] = { "/bin/sh", "-c", "exec <&-; sleep 0.2; exit 3", NULL };
	size_t size = 4 * 1000 * 1000;
	char *input = calloc(1, size);
	assert_ptr_equal(signal(SIGPIPE, SIG_DFL), SIG_DFL);
	program = (struct program){ .argv = argv, .input = input, .input_size = size };
	run(&program);
	assert_int_equal(program.how.status, 3);
	free(input);
	cell__buf_finish(&program.out);
}

static void test_back_and_forth(void **state)
{
	(void)state;
	static struct program program;
	static const char *const argv[] = { "/bin/sh", "-c", "read a; read b; echo \"$b $a\"", NULL };
	program = (struct program){ .argv = argv, .input = "one\ntwo\n", .input_size = 8 };
	run(&program);
	assert_int_equal(program.how.status, 0);
	assert_string_equal(program.out.data, "two one\n");
	cell__buf_finish(&program.out);
}

static void test_the_pid_is_told(void **state)
{
	(void)state;
	static struct program program;
	static const char *const argv[] = { "/bin/sh", "-c", "read a; echo $$", NULL };
	program = (struct program){ .argv = argv, .input = "go\n", .input_size = 3 };
	run(&program);
	assert_true(program.pid > 0);
	assert_int_equal(strtol(program.out.data, NULL, 10), program.pid);
	cell__buf_finish(&program.out);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_the_pid_is_told),
		TEST(test_all_of_it_arrives),
		TEST(test_a_reader_that_goes),
		TEST(test_back_and_forth),
	};
	return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
