/* Structs with a size: every public function takes those of older and of newer programs (base/sized.h). */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/sized.h"

static struct cell_engine *engine;
static struct cell_session *session;
static struct cell_space *space;
static char folder[] = "/tmp/workcell-sized-XXXXXX";

/* ---- the helpers ---- */

struct grown {
	size_t size;
	int first;
	int second; /* default 5 */
};

static void test_read(void **state)
{
	(void)state;
	struct cell_error err;
	char room[sizeof(struct grown) + 8];
	struct grown *given = (struct grown *)room, all = { sizeof all, 1, 5 };
	memset(room, 0x7f, sizeof room);
	given->first = 7;
	given->second = 8;
	given->size = offsetof(struct grown, second);
	assert_int_equal(cell__sized_read(&all, sizeof all, given, "grown", &err), 0);
	assert_int_equal(all.first, 7);
	assert_int_equal(all.second, 5);
	assert_int_equal(all.size, sizeof all);
	assert_true(cell__sized_has(given, first));
	assert_false(cell__sized_has(given, second));
	/* A longer one, whose end is set. */
	given->size = sizeof room;
	assert_int_equal(cell__sized_read(&all, sizeof all, given, "grown", &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_non_null(strstr(err.msg, "struct grown sets an option that libworkcell " CELL_VERSION " does not know"));
	assert_int_equal(all.second, 5);
	memset(room + sizeof all, 0, 8);
	assert_int_equal(cell__sized_read(&all, sizeof all, given, "grown", &err), 0);
	assert_int_equal(all.second, 8);
	const size_t bad[] = { 0, sizeof(size_t) - 1, CELL_SIZED_MAX_BYTES + 1, SIZE_MAX };
	for (size_t i = 0; i < COUNT(bad); i++) {
		given->size = bad[i];
		assert_int_equal(cell__sized_read(&all, sizeof all, given, "grown", &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "initialise the struct with grown_init()"));
	}
	given->size = sizeof(size_t);
	assert_int_equal(cell__sized_read(&all, sizeof all, given, "grown", &err), 0);
}

static void test_write(void **state)
{
	(void)state;
	const struct grown from = { sizeof from, 3, 4 };
	char room[sizeof from + 8];
	struct grown *given = (struct grown *)room;
	memset(room, 0x7f, sizeof room);
	given->size = offsetof(struct grown, second);
	cell__sized_write(given, &from, sizeof from);
	assert_int_equal(given->size, offsetof(struct grown, second));
	assert_int_equal(given->first, 3);
	assert_int_equal(given->second, 0x7f7f7f7f); /* not the program's */
	given->size = sizeof room;
	cell__sized_write(given, &from, sizeof from);
	assert_int_equal(given->size, sizeof room);
	assert_int_equal(given->second, 4);
	for (size_t i = sizeof from; i < sizeof room; i++)
		assert_int_equal(room[i], 0);
}

/* ---- the public functions ---- */

static int try_engine(void *given, struct cell_error *err)
{
	struct cell_engine_options *opts = given;
	struct cell_engine *made;
	if (cell__sized_has(opts, lib_dir))
		opts->lib_dir = TEST_LIB_DIR;
	int rc = cell_engine_create(opts, &made, err);
	if (rc == 0)
		cell_engine_destroy(made);
	return rc;
}

static int try_env_info(void *given, struct cell_error *err)
{
	return cell_engine_prewarm(engine, TEST_PYTHON, NULL, given, err);
}

static int try_executor_info(void *given, struct cell_error *err)
{
	(void)err; /* it has none */
	return cell_executor_probe(engine, 0, given);
}

static int try_sandbox(void *given, struct cell_error *err)
{
	char *text = NULL;
	int rc = cell_sandbox_explain(given, &text, err);
	free(text);
	/* This program does not lie beside the kernel's files, which are searched for once the options are taken. */
	return rc < 0 && strstr(err->msg, "workcell-spawner and kernel/") ? 0 : rc;
}

static int try_space(void *given, struct cell_error *err)
{
	struct cell_space *made;
	int rc = cell_space_open(engine, given, &made, err);
	if (rc == 0)
		cell_space_close(made);
	return rc;
}

static int try_answer(void *given, struct cell_error *err)
{
	int rc = cell_space_call_ex(space, "tools.list", NULL, NULL, 0, given, err);
	cell_answer_finish(given);
	return rc;
}

static int try_transfer(void *given, struct cell_error *err)
{
	struct cell_transfer_options *opts = given;
	if (cell__sized_has(opts, from)) {
		opts->kind = "workflows";
		opts->from = folder;
	}
	return cell_transfer(opts, err);
}

static void never(void *arg, struct cell_tool_call *call)
{
	(void)arg, (void)call;
	abort();
}

static int try_tool(void *given, struct cell_error *err)
{
	struct cell_tool *tool = given;
	static char name[16];
	static int n;
	snprintf(name, sizeof name, "tool%d", n++);
	if (cell__sized_has(tool, fn)) {
		tool->name = name;
		tool->fn = never;
	}
	return cell_space_add_tool(space, tool, err);
}

static struct cell_policy *policy(void)
{
	static const char text[] = "default: deny\n";
	struct cell_policy *made = NULL;
	struct cell_error err;
	assert_int_equal(cell_policy_parse(text, strlen(text), "test.yaml", &made, &err), 0);
	return made;
}

static int try_subject(void *given, struct cell_error *err)
{
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_policy *made = policy();
	int rc = cell_policy_decide(made, given, &verdict, err);
	cell_policy_destroy(made);
	return rc;
}

static int try_verdict(void *given, struct cell_error *err)
{
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy *made = policy();
	int rc = cell_policy_decide(made, &subject, given, err);
	cell_policy_destroy(made);
	return rc;
}

static int try_middleware(void *given, struct cell_error *err)
{
	return cell_space_add_middleware(space, given, err);
}

static const char *audit_path(void)
{
	static char path[64];
	snprintf(path, sizeof path, "%s/audit.jsonl", folder);
	return path;
}

static int try_audit(void *given, struct cell_error *err)
{
	struct cell_audit_options *opts = given;
	struct cell_audit *audit;
	if (cell__sized_has(opts, path))
		opts->path = audit_path();
	int rc = cell_audit_open(engine, opts, &audit, err);
	if (rc == 0)
		cell_audit_close(audit);
	return rc;
}

static int try_filter(void *given, struct cell_error *err)
{
	struct cell_audit_reader *reader;
	int rc = cell_audit_reader_open(audit_path(), given, &reader, err);
	if (rc == 0)
		cell_audit_reader_close(reader);
	return rc;
}

static int try_entry(void *given, struct cell_error *err)
{
	struct cell_audit_reader *reader;
	int fd = open(audit_path(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "nonsense\n", 9), 9);
	close(fd);
	assert_int_equal(cell_audit_reader_open(audit_path(), NULL, &reader, err), 0);
	int rc = cell_audit_reader_next(reader, given, err);
	cell_audit_reader_close(reader);
	return rc == 1 ? 0 : rc;
}

static int try_gen(void *given, struct cell_error *err)
{
	struct cell_gen_options *opts = given;
	if (cell__sized_has(opts, out_dir)) {
		opts->server = "server";
		opts->tools_json = "[]";
		opts->out_dir = folder;
	}
	return cell_gen_mcp(opts, NULL, err);
}

static int try_session(void *given, struct cell_error *err)
{
	return cell_session_check(given, 0, err);
}

static int try_run(void *given, struct cell_error *err)
{
	struct cell_result *result;
	int rc = cell_session_run(session, "1", 1, given, &result, err);
	if (rc == 0)
		cell_result_destroy(result);
	return rc;
}

static int try_approval(void *given, struct cell_error *err)
{
	return cell_session_answer(session, 0, given, err);
}

static int try_mcp_server(void *given, struct cell_error *err)
{
	struct cell_mcp_server_options *opts = given;
	struct cell_mcp_server *server;
	if (cell__sized_has(opts, space))
		opts->space = space;
	int rc = cell_mcp_server_create(engine, opts, &server, err);
	if (rc == 0)
		cell_mcp_server_destroy(server);
	return rc;
}

#ifdef CELL_HAVE_LISTEN
static int try_server(void *given, struct cell_error *err)
{
	struct cell_server_options *opts = given;
	if (cell__sized_has(opts, auth_disabled)) {
		opts->listen = "127.0.0.1:0";
		opts->auth_disabled = 1;
	}
	return cell_server_check(opts, err);
}

static int try_limits(void *given, struct cell_error *err)
{
	struct cell_server_options opts = CELL_SERVER_OPTIONS_INIT;
	opts.limits = given;
	return try_server(&opts, err);
}
#endif

/* `answers`: the library fills it in, and what is behind the part that it knows does not matter. */
struct row {
	const char *name;
	size_t size;
	int (*try)(void *given, struct cell_error *err);
	bool answers;
};
#define CHECK_STRUCT(name, try, answers, ...)                                                  \
	do {                                                                                   \
		const struct name defaults = __VA_ARGS__;                                      \
		check(&(const struct row){ #name, sizeof defaults, try, answers }, &defaults); \
	} while (0)

static void check(const struct row *row, const void *defaults)
{
	static char room[16384];
	struct cell_error err = { 0 };
	assert_true(row->size + 64 <= sizeof room);
	/* Of a newer program, which wants nothing that we lack. */
	memset(room, 0, sizeof room);
	memcpy(room, defaults, row->size);
	size_t size = row->size + 64;
	memcpy(room, &size, sizeof size);
	if (row->answers)
		memset(room + row->size, 0x7f, 64);
	if (row->try(room, &err) < 0)
		fail_msg("a longer %s: %s", row->name, err.msg);
	for (size_t i = row->size; i < row->size + 64; i++)
		assert_int_equal(room[i], 0);
	assert_memory_equal(room, &size, sizeof size);
	/* One that does. */
	if (!row->answers) {
		memcpy(room, defaults, row->size);
		memcpy(room, &size, sizeof size);
		room[row->size + 63] = 1;
		assert_int_equal(row->try(room, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, row->name));
		assert_non_null(strstr(err.msg, "newer"));
	}
	/* Of the oldest program that can be: what is not given may be missing, but nothing is said about the size, or read behind it. */
	memset(room, 0x7f, sizeof room);
	size = sizeof size;
	memcpy(room, &size, sizeof size);
	err = (struct cell_error){ 0 };
	if (row->try(room, &err) < 0 && strstr(err.msg, row->name))
		fail_msg("a short %s: %s", row->name, err.msg);
	for (size_t i = sizeof size; i < sizeof room; i++)
		assert_int_equal(room[i], 0x7f);
	/* Not set at all. */
	memset(room, 0, sizeof room);
	assert_int_equal(row->try(room, &err), -1);
	if (row->try != try_executor_info)
		assert_int_equal(err.code, CELL_E_INVALID);
}

static void test_structs(void **state)
{
	(void)state;
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_error err;
	assert_non_null(mkdtemp(folder));
	engine = support_engine(0);
	session = support_session(engine);
	space_opts.cwd = "/tmp";
	assert_int_equal(cell_space_open(engine, &space_opts, &space, &err), 0);
	CHECK_STRUCT(cell_engine_options, try_engine, false, CELL_ENGINE_OPTIONS_INIT);
	CHECK_STRUCT(cell_env_info, try_env_info, true, { 0 });
	CHECK_STRUCT(cell_executor_info, try_executor_info, true, { 0 });
	CHECK_STRUCT(cell_sandbox_options, try_sandbox, false, CELL_SANDBOX_OPTIONS_INIT);
	CHECK_STRUCT(cell_space_options, try_space, false, CELL_SPACE_OPTIONS_INIT);
	CHECK_STRUCT(cell_answer, try_answer, true, CELL_ANSWER_INIT);
	CHECK_STRUCT(cell_transfer_options, try_transfer, false, CELL_TRANSFER_OPTIONS_INIT);
	CHECK_STRUCT(cell_tool, try_tool, false, CELL_TOOL_INIT);
	CHECK_STRUCT(cell_policy_subject, try_subject, false, CELL_POLICY_SUBJECT_INIT);
	CHECK_STRUCT(cell_policy_verdict, try_verdict, true, CELL_POLICY_VERDICT_INIT);
	CHECK_STRUCT(cell_middleware, try_middleware, false, CELL_MIDDLEWARE_INIT);
	CHECK_STRUCT(cell_audit_options, try_audit, false, CELL_AUDIT_OPTIONS_INIT);
	CHECK_STRUCT(cell_audit_filter, try_filter, false, CELL_AUDIT_FILTER_INIT);
	CHECK_STRUCT(cell_audit_entry, try_entry, true, CELL_AUDIT_ENTRY_INIT);
	CHECK_STRUCT(cell_gen_options, try_gen, false, CELL_GEN_OPTIONS_INIT);
	CHECK_STRUCT(cell_session_options, try_session, false, CELL_SESSION_OPTIONS_INIT);
	CHECK_STRUCT(cell_run_options, try_run, false, CELL_RUN_OPTIONS_INIT);
	CHECK_STRUCT(cell_approval_answer, try_approval, false, CELL_APPROVAL_ANSWER_INIT);
	CHECK_STRUCT(cell_mcp_server_options, try_mcp_server, false, CELL_MCP_SERVER_OPTIONS_INIT);
#ifdef CELL_HAVE_LISTEN
	CHECK_STRUCT(cell_server_options, try_server, false, CELL_SERVER_OPTIONS_INIT);
	CHECK_STRUCT(cell_server_limits, try_limits, false, CELL_SERVER_LIMITS_INIT);
#endif
	cell_space_close(space);
	cell_session_close(session);
	cell_engine_destroy(engine);
	assert_int_equal(cell_remove_tree(folder, &err), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_read),
		TEST(test_write),
		TEST(test_structs),
	};
	support_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
