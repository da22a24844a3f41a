/* tools: the registry, commands that are really run, and functions of the host. */
#define _GNU_SOURCE
#include "tools_support.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#include "calls/principal.h"

static const char *const echo_yaml =
	"name: echo\ncommand: echo\ndescription: Says it again\ntags: [text, demo]\n"
	"schema:\n  options:\n    n: {type: boolean, short: n}\n  positional:\n    - {name: words, type: array}\n"
	"recipes:\n  say: {description: Say words, preset: {n: true}, params: {words: {required: true}}}\n";

/* A script is a value of an option here: tests need all kinds of behaviour, and no tool gets a shell by itself. */
static const char *const sh_yaml = "name: sh\ncommand: sh\ntimeout: 20\nmax_output: 1000\n"
				   "env: {TOKEN: '${SECRET}', PLAIN: yes}\ntags: [system]\n"
				   "schema:\n  options:\n    c: {short: c}\nrecipes:\n  run: {params: {c: {required: true}}}\n";

static const char *const env[] = { "SECRET=hunter2hunter2", "HOME=/nowhere", NULL };

static void start(struct bench *bench)
{
	bench_start(bench);
	bench->env = env;
	bench_write(bench, "echo.yaml", echo_yaml);
	bench_write(bench, "sh.yml", sh_yaml);
}

/* ---- commands ---- */

static void test_commands(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	expect_text(&bench, "echo.say", "{'words':['a','b c']}", "a b c");
	expect_text(&bench, "echo", "{'words':['x']}", "x\n");
	expect_text(&bench, "echo.say", "{'words':['x'],'n':false}", "x\n");
	expect_text(&bench, "sh.run", "{'c':'true'}", "");
	expect_text(&bench, "sh.run", "{'c':'echo out; echo err >&2'}", "out\n");
	expect_text(&bench, "sh.run", "{'c':'pwd'}", "/\n");
	bench.view.cwd = "/usr";
	expect_text(&bench, "sh.run", "{'c':'pwd'}", "/usr\n");
	/* stdin is empty; the environment is ours and nothing of the host's */
	expect_text(&bench, "sh.run", "{'c':'cat | wc -c'}", "0\n");
	expect_text(&bench, "sh.run", "{'c':'env | grep -v ^PWD= | cut -d= -f1 | sort | tr \\\\\\\\n ,'}", "HOME,LANG,PATH,PLAIN,TOKEN,");
	expect_text(&bench, "sh.run", "{'c':'test $TOKEN = hunter2hunter2 && test $PLAIN = yes && echo ok'}", "ok\n");
	/* bytes that are no UTF-8 */
	expect_text(&bench, "sh.run", "{'c':'printf a\\\\\\\\377b'}",
		    "a\xef\xbf\xbd"
		    "b");
	bench_stop(&bench);
}

static void test_command_failures(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	bench_write(&bench, "gone.yaml", "name: gone\ncommand: no-such-program\nrecipes: {r: }\n");
	bench_write(&bench, "slash.yaml", "name: slash\ncommand: /no/such/program\nrecipes: {r: }\n");
	bench_write(&bench, "away.yaml", "name: away\ncommand: echo\ncwd: /no/such/dir\nrecipes: {r: }\n");
	bench_write(&bench, "unset.yaml", "name: unset\ncommand: echo\nenv: {A: '${NOT_SET}'}\nrecipes: {r: }\n");
	bench_write(&bench, "slow.yaml",
		    "name: slow\ncommand: sh\ntimeout: 0.2\nschema:\n  options: {c: {short: c}}\n"
		    "recipes: {r: }\n");
	expect_fail(&bench, "sh.run", "{'c':'echo out; echo err >&2; exit 3'}", CELL_TOOL_E_FAILED, "ToolCallError",
		    "Tool 'sh' failed: Command failed with exit code 3: err\nstdout:\nout");
	expect_fail(&bench, "sh.run", "{'c':'exit 4'}", CELL_TOOL_E_FAILED, "ToolCallError", "exit code 4");
	expect_fail(&bench, "sh.run", "{'c':'kill -9 $$'}", CELL_TOOL_E_FAILED, "ToolCallError", "Command was killed by signal 9 (Killed)");
	expect_fail(&bench, "gone.r", "{}", CELL_TOOL_E_FAILED, "ToolCallError",
		    "command 'no-such-program' not found in PATH (/usr/local/sbin:");
	expect_fail(&bench, "slash.r", "{}", CELL_TOOL_E_FAILED, "ToolCallError",
		    "command '/no/such/program' cannot be started: No such file or directory");
	expect_fail(&bench, "away.r", "{}", CELL_TOOL_E_FAILED, "ToolCallError", "the working directory '/no/such/dir' does not exist");
	expect_fail(&bench, "unset.r", "{}", CELL_TOOL_E_FAILED, "ToolCallError", "environment variable NOT_SET is not set");
	/* what the tool says of its secret does not stand in the error */
	expect_fail(&bench, "sh.run", "{'c':'echo token $TOKEN. >&2; exit 1'}", CELL_TOOL_E_FAILED, "ToolCallError",
		    "exit code 1: token ***.");
	/* the whole group goes with the timeout: a child that holds stdout would keep the call open */
	expect_fail(&bench, "slow.r", "{'c':'sleep 1000 & sleep 1000'}", CELL_TOOL_E_TIMEOUT, "ToolTimeoutError",
		    "Tool 'slow' timed out after 0.2s");
	bench_stop(&bench);
}

static void test_output_is_capped(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask ask;
	start(&bench);
	ask_tool(&ask, &bench, "sh.run", "{'c':'head -c 1000 /dev/zero | tr \\\\\\\\0 x'}");
	assert_int_equal(ask.raw.size, 1000);
	ask_finish(&ask);
	ask_tool(&ask, &bench, "sh.run", "{'c':'head -c 5000000 /dev/zero | tr \\\\\\\\0 x'}");
	assert_true(ask.answered);
	assert_string_equal(ask.raw.data + 1000, "\n[... 4999000 bytes left out ...]\n");
	ask_finish(&ask);
	ask_tool(&ask, &bench, "sh.run", "{'c':'head -c 5000000 /dev/zero | tr \\\\\\\\0 x >&2; exit 1'}");
	assert_false(ask.answered);
	if (!strstr(ask.message.data, "[... 4999000 bytes left out ...]"))
		fail_msg("%s", ask.message.data);
	assert_true(ask.message.size < 2000);
	ask_finish(&ask);
	/* a NUL does not end the message */
	expect_fail(&bench, "sh.run", "{'c':'head -c 1 /dev/zero >&2; echo end >&2; exit 1'}", CELL_TOOL_E_FAILED, "ToolCallError",
		    "\xef\xbf\xbd"
		    "end");
	bench_stop(&bench);
}

static void test_wrong_calls(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	expect_fail(&bench, "nope.x", "{}", CELL_TOOL_E_UNKNOWN, "ToolNotFoundError", "Tool 'nope' not found. Available: echo, sh");
	expect_fail(&bench, "echo.nope", "{}", CELL_TOOL_E_UNKNOWN, "ToolCallError",
		    "Tool 'echo' failed: Recipe 'nope' not found. Available: say");
	expect_fail(&bench, "echo.say", "{}", CELL_TOOL_E_ARGS, "ToolCallError",
		    "Tool 'echo' failed: Required parameter 'words' is missing\nSignature: echo.say(words: list)");
	expect_fail(&bench, "echo.say", "{'word':['x']}", CELL_TOOL_E_ARGS, "ToolCallError",
		    "Unknown argument 'word'. Known: words, n\nSignature: echo.say(words: list)");
	expect_fail(&bench, "echo.say", "{'words':['-e']}", CELL_TOOL_E_ARGS, "ToolCallError", "must not begin with '-'");
	expect_fail(&bench, "echo.say", "[1]", CELL_TOOL_E_ARGS, "ValueError", "'args' must be an object");
	static const struct {
		const char *method, *args, *part;
	} rows[] = {
		{ "tools.fly", "{}", "there is no method" },
		{ "tools.call", "{}", "needs 'name'" },
		{ "tools.call", "{'name':5}", "needs 'name'" },
		{ "tools.search", "{}", "needs 'query'" },
		{ "tools.search", "{'query':'x','limit':0}", "'limit' must be" },
		{ "tools.search", "{'query':'x','limit':1001}", "'limit' must be" },
		{ "tools.search", "{'query':'x','limit':'5'}", "'limit' must be" },
		{ "tools.list", "{'tags':'x'}", "'tags' must be" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct ask ask;
		ask_start(&ask, &bench, rows[i].method, quick_json(rows[i].args));
		ask_wait(&ask);
		assert_int_equal(ask.code, CELL_TOOL_E_ARGS);
		assert_string_equal(ask.type, "ValueError");
		assert_non_null(strstr(ask.message.data, rows[i].part));
		ask_finish(&ask);
	}
	bench_stop(&bench);
}

static void test_cancel(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask ask[3];
	start(&bench);
	for (int i = 0; i < 3; i++)
		ask_start(&ask[i], &bench, "tools.call", quick_json("{'name':'sh.run','args':{'c':'sleep 1000 & sleep 1000'}}"));
	expect_text(&bench, "echo.say", "{'words':['x']}", "x");
	ask_cancel(&ask[1]);
	ask_cancel(&ask[0]);
	assert_false(ask[0].answered);
	assert_int_equal(ask[0].code, 0);
	/* the third ends with the registry */
	bench_stop(&bench);
	assert_int_equal(ask[2].code, CELL_E_CLOSED);
	for (int i = 0; i < 3; i++)
		ask_finish(&ask[i]);
}

#define N_AT_ONCE 150

static void test_many_at_once(void **state)
{
	(void)state;
	static struct bench bench;
	static struct ask ask[N_AT_ONCE];
	start(&bench);
	fake_most = 0;
	for (int i = 0; i < N_AT_ONCE; i++) {
		char text[32];
		snprintf(text, sizeof text, "%d", i);
		ask_start(&ask[i], &bench, "tools.call", json_pack("{s:s, s:{s:[s]}}", "name", "echo.say", "args", "words", text));
	}
	ask_wait(&ask[3]);
	for (int i = 0; i < N_AT_ONCE; i++) {
		char text[32];
		snprintf(text, sizeof text, "%d", i);
		ask_wait(&ask[i]);
		assert_true(ask[i].answered);
		assert_string_equal(ask[i].raw.data, text);
		ask_finish(&ask[i]);
	}
	assert_true(fake_most <= CELL_TOOL_LIMIT_PROCESSES);
	assert_true(fake_most > 1);
	/* calls that wait can be cancelled too */
	for (int i = 0; i < N_AT_ONCE; i++)
		ask_start(&ask[i], &bench, "tools.call", quick_json("{'name':'sh.run','args':{'c':'sleep 1000'}}"));
	for (int i = N_AT_ONCE - 1; i >= 0; i--) {
		ask_cancel(&ask[i]);
		ask_finish(&ask[i]);
	}
	bench_stop(&bench);
}

/* ---- lists, search, scope ---- */

static char *names(struct bench *bench, const char *method, const char *args)
{
	struct ask ask;
	ask_start(&ask, bench, method, quick_json(args));
	ask_wait(&ask);
	if (!ask.answered)
		fail_msg("%s", ask.message.data);
	struct cell__buf out = CELL_BUF_INIT;
	for (size_t i = 0; i < json_array_size(ask.result); i++)
		cell__buf_printf(&out, "%s%s", i ? "," : "", json_string_value(json_object_get(json_array_get(ask.result, i), "name")));
	ask_finish(&ask);
	return cell__buf_take(&out);
}

static void expect_names(struct bench *bench, const char *method, const char *args, const char *expected)
{
	char *got = names(bench, method, args);
	assert_string_equal(got, expected);
	free(got);
}

static void test_list_and_search(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	bench_write(&bench, "echo2.yaml", "name: echo2\ncommand: echo\ndescription: another echo\nrecipes: {shout: }\n");
	expect_names(&bench, "tools.list", "{}", "echo,echo2,sh");
	expect_names(&bench, "tools.list", "{'tags':['system']}", "sh");
	expect_names(&bench, "tools.list", "{'tags':[]}", "");
	/* exact name, then name and description, then parts */
	expect_names(&bench, "tools.search", "{'query':'ECHO'}", "echo,echo2");
	expect_names(&bench, "tools.search", "{'query':'echo','limit':1}", "echo");
	expect_names(&bench, "tools.search", "{'query':'another'}", "echo2");
	expect_names(&bench, "tools.search", "{'query':'demo'}", "echo");
	expect_names(&bench, "tools.search", "{'query':'shout'}", "echo2");
	expect_names(&bench, "tools.search", "{'query':'zzz'}", "");
	expect_names(&bench, "tools.search", "{'query':'s','tags':['system']}", "sh");

	char *text = ask_json(&bench, "tools.list_recipes", quick_json("{'name':'echo'}"));
	assert_string_equal(text, "[{\"description\":\"Say words\",\"name\":\"say\"}]");
	free(text);
	text = ask_json(&bench, "tools.describe", quick_json("{'name':'echo.say'}"));
	assert_string_equal(text, "{\"description\":\"Say words\",\"name\":\"say\",\"parameters\":[{\"default\":null,"
				  "\"description\":\"\",\"name\":\"words\",\"required\":true,\"type\":\"array\"}],"
				  "\"signature\":\"say(words: list)\"}");
	free(text);
	struct ask ask;
	ask_start(&ask, &bench, "tools.describe", quick_json("{'name':'echo.nope'}"));
	ask_wait(&ask);
	assert_string_equal(ask.type, "ValueError");
	assert_string_equal(ask.message.data, "Callable 'nope' not found in tool 'echo'. Available: say");
	ask_finish(&ask);

	const char *const scope[] = { "demo", "other", NULL };
	bench.view.scope = scope;
	expect_names(&bench, "tools.list", "{}", "echo");
	expect_names(&bench, "tools.search", "{'query':'s'}", "echo");
	expect_text(&bench, "echo.say", "{'words':['x']}", "x");
	expect_fail(&bench, "sh.run", "{'c':'id'}", CELL_TOOL_E_UNKNOWN, "ToolNotFoundError", "Tool 'sh' not found. Available: echo");
	bench_stop(&bench);
}

static uint64_t last_generation;

static int backwards(void *arg, const char *query, const struct cell__rank_doc *docs, size_t n_docs, uint64_t generation, size_t limit,
		     size_t *ret_order)
{
	(void)arg;
	last_generation = generation;
	assert_int_equal(limit, n_docs);
	assert_string_equal(docs[0].name, "echo.say");
	assert_string_equal(docs[0].description, "Say words");
	assert_non_null(strstr(docs[0].text, "words"));
	assert_non_null(strstr(docs[0].text, "demo"));
	if (strcmp(query, "fall back") == 0)
		return -1;
	for (size_t i = 0; i < n_docs; i++)
		ret_order[i] = n_docs - 1 - i;
	return (int)n_docs;
}

static void test_rank_function(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	bench.tools->opts.rank = backwards;
	expect_names(&bench, "tools.search", "{'query':'anything'}", "sh,echo");
	expect_names(&bench, "tools.search", "{'query':'anything','limit':1}", "sh");
	expect_names(&bench, "tools.search", "{'query':'fall back'}", "");
	char *text = ask_json(&bench, "tools.search", quick_json("{'query':'anything','callables':true,'limit':1}"));
	assert_string_equal(text, "[{\"description\":\"\",\"name\":\"run\",\"signature\":\"run(c: str)\",\"tool\":\"sh\"}]");
	free(text);
	text = ask_json(&bench, "tools.list", quick_json("{'callables':true,'tags':['demo']}"));
	assert_string_equal(text, "[{\"callables\":[\"say(words: list)\"],\"name\":\"echo\"}]");
	free(text);
	uint64_t before = last_generation;
	bench_write(&bench, "z.yaml", "name: z\ncommand: c\nrecipes: {r: }\n");
	expect_names(&bench, "tools.search", "{'query':'anything'}", "z,sh,echo");
	assert_true(last_generation > before);
	bench_stop(&bench);
}

/* ---- files that change ---- */

static void ask_problems(struct ask *ask, struct bench *bench)
{
	ask_start(ask, bench, "tools.problems", json_object());
	ask_wait(ask);
	assert_true(ask->answered);
}

static void expect_problems(struct bench *bench, const char *expected)
{
	struct ask ask;
	ask_problems(&ask, bench);
	json_t *list = ask.result;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	cell__buf_add_str(&text, "");
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *p = json_array_get(list, i);
		const char *file = json_string_value(json_object_get(p, "file"));
		assert_memory_equal(file, bench->dir, strlen(bench->dir));
		cell__buf_printf(&text, "%s:%d: %s\n", file + strlen(bench->dir) + 1, (int)json_integer_value(json_object_get(p, "line")),
				 json_string_value(json_object_get(p, "message")));
	}
	ask_finish(&ask);
	assert_string_equal(text.data, expected);
}

/* watched: as calls come densely; else by looking at the files each time. */
static void check_reload(bool watched)
{
	static struct bench bench;
	start(&bench);
	if (!watched)
		bench.tools->watch_at = UINT64_MAX;
	expect_names(&bench, "tools.list", "{}", "echo,sh");
	/* changed in place, same size, at once: the clock's grain must not hide it */
	for (int i = 0; i < 20; i++) {
		char text[128], expected[16];
		snprintf(text, sizeof text,
			 "name: v\ncommand: echo\nschema: {positional: [{name: a, default: %c}]}\n"
			 "recipes: {r: }\n",
			 'a' + i);
		snprintf(expected, sizeof expected, "%c\n", 'a' + i);
		bench_write(&bench, "v.yaml", text);
		expect_text(&bench, "v.r", "{}", expected);
	}
	bench_write(&bench, "v.yaml", "name: w\ncommand: echo\nrecipes: {r: }\n");
	expect_text(&bench, "w.r", "{}", "\n");
	expect_fail(&bench, "v.r", "{}", CELL_TOOL_E_UNKNOWN, "ToolNotFoundError", "Tool 'v' not found");
	expect_names(&bench, "tools.list", "{}", "echo,sh,w");
	/* broken: it goes, the others stay; mended: it is back */
	bench_write(&bench, "echo.yaml", "name: echo\ncommand: [\n");
	expect_names(&bench, "tools.list", "{}", "sh,w");
	expect_problems(&bench, "echo.yaml:3: malformed YAML: did not find expected node content, while parsing a flow "
				"node\n");
	bench_write(&bench, "echo.yaml", echo_yaml);
	expect_names(&bench, "tools.list", "{}", "echo,sh,w");
	expect_problems(&bench, "");
	bench_remove(&bench, "sh.yml");
	expect_names(&bench, "tools.list", "{}", "echo,w");
	/* old times, as a copied file has */
	char path[128];
	snprintf(path, sizeof path, "%s/echo.yaml", bench.dir);
	struct utimbuf old = { 1000000, 1000000 };
	bench_write(&bench, "echo.yaml", "name: tone\ncommand: echo\nrecipes: {r: }\n");
	assert_int_equal(utime(path, &old), 0);
	expect_names(&bench, "tools.list", "{}", "tone,w");
	assert_int_equal(bench.tools->watch.fd >= 0, watched);
	bench_stop(&bench);
}

static void test_reload(void **state)
{
	(void)state;
	check_reload(true);
	check_reload(false);
}

static void link_in(struct bench *bench, const char *name, const char *target, int (*make)(const char *, const char *))
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", bench->dir, name);
	assert_int_equal(make(target, path), 0);
}

/* Files that can change elsewhere, where no watch would tell. */
static void test_linked_files(void **state)
{
	(void)state;
	for (int hard = 0; hard < 2; hard++) {
		static struct bench bench;
		bench_start(&bench);
		char other[80], command[300];
		snprintf(other, sizeof other, "%s.elsewhere", bench.dir);
		snprintf(command, sizeof command, "mkdir %s && echo '{name: one, command: c, recipes: {r: }}' >%s/x.yaml", other, other);
		assert_int_equal(system(command), 0);
		snprintf(command, sizeof command, "%s/x.yaml", other);
		link_in(&bench, "x.yaml", command, hard ? link : symlink);
		for (int i = 0; i < 3; i++)
			expect_names(&bench, "tools.list", "{}", "one");
		assert_int_equal(bench.tools->watch.fd, -1);
		snprintf(command, sizeof command, "echo '{name: two, command: c, recipes: {r: }}' >%s/x.yaml", other);
		assert_int_equal(system(command), 0);
		expect_names(&bench, "tools.list", "{}", "two");
		/* Once it is an ordinary file it can be watched, and that is found out some time. */
		bench_remove(&bench, "x.yaml");
		bench_write(&bench, "x.yaml", "name: three\ncommand: c\nrecipes: {r: }\n");
		for (int i = 0; i < 1000 && bench.tools->watch.fd < 0; i++)
			expect_names(&bench, "tools.list", "{}", "three");
		assert_true(bench.tools->watch.fd >= 0);
		snprintf(command, sizeof command, "rm -r %s", other);
		assert_int_equal(system(command), 0);
		bench_stop(&bench);
	}
}

static void test_directory_comes_and_goes(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	char command[256];
	snprintf(command, sizeof command, "rm -r %s", bench.dir);
	expect_names(&bench, "tools.list", "{}", "echo,sh");
	assert_int_equal(system(command), 0);
	expect_names(&bench, "tools.list", "{}", "");
	expect_problems(&bench, "");
	assert_int_equal(mkdir(bench.dir, 0700), 0);
	bench_write(&bench, "echo.yaml", echo_yaml);
	expect_names(&bench, "tools.list", "{}", "echo");
	bench_stop(&bench);
}

static void test_files_that_are_not(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	char path[128];
	snprintf(path, sizeof path, "%s/pipe.yaml", bench.dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	snprintf(path, sizeof path, "%s/dir.yaml", bench.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof path, "%s/link.yaml", bench.dir);
	assert_int_equal(symlink("/no/where", path), 0);
	bench_write(&bench, ".hidden.yaml", "nonsense");
	bench_write(&bench, "notes.txt", "nonsense");
	bench_write(&bench, "also.yaml.bak", "nonsense");
	expect_names(&bench, "tools.list", "{}", "echo,sh");
	expect_problems(&bench, "dir.yaml:1: cannot be read: Is a directory\n"
				"link.yaml:1: cannot be read: No such file or directory\n"
				"pipe.yaml:1: cannot be read: it is not a regular file\n");
	bench_stop(&bench);
}

static void test_problems(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	bench_write(&bench, "zz.yaml", "command: c\nname: echo\nrecipes: {r: }\n");
	bench_write(&bench, "a.yaml", "name: a\ncommand: c\nrecipes:\n  r: {bad: 1}\nworse: 1\n");
	bench_write(&bench, "m.yaml", "type: mcp\nname: m\n");
	expect_names(&bench, "tools.list", "{}", "echo,sh");
	char expected[512];
	snprintf(expected, sizeof expected,
		 "a.yaml:5: unknown key 'worse' in a tool of type cli\n"
		 "a.yaml:4: unknown key 'bad' in a recipe\n"
		 "m.yaml:1: Tool 'm': Neither a \"command\" nor a \"url\"\n"
		 "zz.yaml:2: Tool 'echo' already registered (%s/echo.yaml). Use unique names.\n",
		 bench.dir);
	expect_problems(&bench, expected);
	bench_remove(&bench, "echo.yaml");
	expect_names(&bench, "tools.list", "{}", "sh,echo");
	bench_stop(&bench);
}

static void test_file_limit(void **state)
{
	(void)state;
	static struct bench bench;
	bench_start(&bench);
	char name[32], text[64];
	for (unsigned i = 0; i < CELL_TOOL_LIMIT_FILES; i++) {
		snprintf(name, sizeof name, "t%u.yaml", i);
		snprintf(text, sizeof text, "name: t%u\ncommand: c\nrecipes: {r: }\n", i);
		bench_write(&bench, name, text);
	}
	expect_problems(&bench, "");
	bench_write(&bench, "u.yaml", "name: u\ncommand: c\nrecipes: {r: }\n");
	struct ask ask;
	ask_problems(&ask, &bench);
	assert_int_equal(json_array_size(ask.result), 1);
	ask_finish(&ask);
	bench_stop(&bench);
}

/* ---- functions of the host ---- */

static pthread_t answer_thread;
static struct cell__host_call *kept;

static void host_add(void *arg, struct cell__host_call *call)
{
	assert_ptr_equal(arg, &answer_thread);
	assert_string_equal(cell__host_call_session_id(call), "s1");
	json_t *args = json_loads(cell__host_call_args(call), 0, NULL);
	char text[64];
	int n = snprintf(text, sizeof text, "{\n \"sum\": %lld}",
			 json_integer_value(json_object_get(args, "a")) + json_integer_value(json_object_get(args, "b")));
	json_decref(args);
	cell__host_call_reply(call, CELL__REPLY_JSON, text, (size_t)n);
}

static void *answer_later(void *arg)
{
	struct cell__host_call *call = arg;
	struct timespec time = { .tv_nsec = 20000000 };
	nanosleep(&time, NULL);
	cell__host_call_reply(call, CELL__REPLY_TEXT, "later", 5);
	return NULL;
}

static void host_later(void *arg, struct cell__host_call *call)
{
	(void)arg;
	pthread_create(&answer_thread, NULL, answer_later, call);
}

static void host_keep(void *arg, struct cell__host_call *call)
{
	(void)arg;
	kept = call;
}

static void host_bad(void *arg, struct cell__host_call *call)
{
	(void)arg;
	const char *what = cell__host_call_args(call);
	if (strstr(what, "json"))
		cell__host_call_reply(call, CELL__REPLY_JSON, "{nonsense", 9);
	else if (strstr(what, "bytes"))
		cell__host_call_reply(call, CELL__REPLY_TEXT, "\xff", 1);
	else
		cell__host_call_reply(call, CELL__REPLY_FAIL, "it broke", 8);
}

struct registration {
	struct bench *bench;
	struct cell__host_tool tool;
	struct cell_error err;
	int rc;
};

static void do_register(void *arg)
{
	struct registration *r = arg;
	r->rc = cell__tools_add_host(r->bench->tools, &r->tool, &r->err);
}

static int try_register(struct bench *bench, const char *name, const char *parameters, int64_t timeout_ms, cell__host_fn fn,
			char *ret_message)
{
	static const char *const tags[] = { "host", NULL };
	struct registration r = { .bench = bench,
				  .tool = { .name = name,
					    .description = "A function",
					    .parameters = parameters,
					    .tags = tags,
					    .timeout_ms = timeout_ms,
					    .fn = fn,
					    .arg = &answer_thread } };
	bench_call(bench, do_register, &r);
	if (r.rc < 0 && ret_message)
		strcpy(ret_message, r.err.msg);
	return r.rc < 0 ? r.err.code : 0;
}

static void test_host_functions(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	const char *schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"description\":\"one\"},"
			     "\"b\":{\"type\":\"integer\",\"default\":10}},\"required\":[\"a\"]}";
	assert_int_equal(try_register(&bench, "add", schema, -1, host_add, NULL), 0);
	assert_int_equal(try_register(&bench, "math.later", NULL, -1, host_later, NULL), 0);
	assert_int_equal(try_register(&bench, "math.keep", NULL, 50, host_keep, NULL), 0);
	assert_int_equal(try_register(&bench, "bad", "{\"properties\":{\"how\":{}}}", -1, host_bad, NULL), 0);

	struct ask ask;
	ask_tool(&ask, &bench, "add", "{'a':1}");
	assert_true(ask.answered);
	assert_string_equal(json_string_value(json_object_get(ask.result, "raw")), "json");
	assert_string_equal(ask.raw.data, "{  \"sum\": 11}");
	ask_finish(&ask);
	ask_tool(&ask, &bench, "add.add", "{'a':1,'b':2}");
	assert_string_equal(ask.raw.data, "{  \"sum\": 3}");
	ask_finish(&ask);
	expect_text(&bench, "math.later", "{}", "later");
	pthread_join(answer_thread, NULL);
	expect_fail(&bench, "add", "{'a':'x'}", CELL_TOOL_E_ARGS, "ToolCallError",
		    "'a' must be an integer, not a string\nSignature: add.add(a: int, b: int = 10)");
	expect_fail(&bench, "add", "{'a':1,'c':1}", CELL_TOOL_E_ARGS, "ToolCallError", "Unknown argument 'c'. Known: a, b");
	expect_fail(&bench, "math", "{}", CELL_TOOL_E_UNKNOWN, "ToolCallError", "Available: later, keep");
	expect_fail(&bench, "bad", "{}", CELL_TOOL_E_FAILED, "ToolCallError", "Tool 'bad' failed: it broke");
	expect_fail(&bench, "bad", "{'how':'json'}", CELL_TOOL_E_FAILED, "ToolCallError", "is not JSON");
	expect_text(&bench, "bad", "{'how':'bytes'}", "\xef\xbf\xbd");
	expect_names(&bench, "tools.list", "{'tags':['host']}", "add,math,bad");

	/* too late: the answer is dropped */
	expect_fail(&bench, "math.keep", "{}", CELL_TOOL_E_TIMEOUT, "ToolTimeoutError", "Tool 'math' timed out after 0.05s");
	assert_true(cell__host_call_cancelled(kept));
	cell__host_call_reply(kept, CELL__REPLY_TEXT, "x", 1);
	/* the host's names come first */
	bench_write(&bench, "add.yaml", "name: add\ncommand: c\nrecipes: {r: }\n");
	expect_problems(&bench, "add.yaml:1: Tool 'add' already registered (by the host program). Use unique names.\n");
	bench_stop(&bench);
}

static void test_host_cancel(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask ask;
	start(&bench);
	assert_int_equal(try_register(&bench, "keep", NULL, -1, host_keep, NULL), 0);
	ask_start(&ask, &bench, "tools.call", quick_json("{'name':'keep'}"));
	expect_text(&bench, "echo.say", "{'words':['x']}", "x");
	assert_false(cell__host_call_cancelled(kept));
	ask_cancel(&ask);
	assert_true(cell__host_call_cancelled(kept));
	cell__host_call_reply(kept, CELL__REPLY_TEXT, "x", 1);
	ask_finish(&ask);
	/* answered after the registry and its loop are gone */
	ask_start(&ask, &bench, "tools.call", quick_json("{'name':'keep'}"));
	bench_stop(&bench);
	assert_int_equal(ask.code, CELL_E_CLOSED);
	ask_finish(&ask);
	assert_string_equal(cell__host_call_args(kept), "{}");
	cell__host_call_reply(kept, CELL__REPLY_FAIL, "nobody hears it", 15);
}

/* ---- files that are looked up on the pool ---- */

static const char show_yaml[] =
	"name: show\ncommand: cat\nschema:\n  positional: [{name: it, type: path}]\nrecipes: {r: {params: {it: }}}\n";

static void host_note(void *arg, struct cell__host_call *call)
{
	(void)arg;
	cell__host_call_reply(call, CELL__REPLY_TEXT, "noted", 5);
}

static void call_tool(struct ask *ask, struct bench *bench, const char *name, const char *args)
{
	ask_start(ask, bench, "tools.call", json_pack("{s:s, s:o}", "name", name, "args", quick_json(args)));
}

static void do_nothing(void *arg)
{
	(void)arg;
}

/* Calls that have been started are under way afterwards. */
static void expect_waiting(struct bench *bench, struct ask *asks, size_t n)
{
	bench_call(bench, do_nothing, NULL);
	for (size_t i = 0; i < n; i++)
		assert_false(cell__waiter_is_done(&asks[i].waiter));
}

static void test_changed_files_wait(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask asks[4];
	start(&bench);
	assert_int_equal(try_register(&bench, "note", NULL, -1, host_note, NULL), 0);
	expect_text(&bench, "note", "{}", "noted");
	expect_text(&bench, "echo.say", "{'words':['x']}", "x");

	/* Unchanged files need no pool, and neither do functions of the host, but those of a session that waits keep its order. */
	bench_hold_pool(&bench);
	expect_text(&bench, "echo.say", "{'words':['x']}", "x");
	bench_write(&bench, "new.yaml", "name: new\ncommand: echo\nschema:\n  positional: [{name: it}]\nrecipes: {r: {params: {it: }}}\n");
	expect_text(&bench, "note", "{}", "noted");
	call_tool(&asks[0], &bench, "new.r", "{'it':'y'}");
	call_tool(&asks[1], &bench, "new.r", "{'it':'z'}");
	call_tool(&asks[2], &bench, "note", "{}");
	expect_waiting(&bench, asks, 3);
	ask_start_for(&asks[3], &bench, "s2", "tools.call", quick_json("{'name':'note'}"));
	ask_wait(&asks[3]);
	assert_true(asks[3].answered);
	ask_cancel(&asks[0]);
	bench_release_pool(&bench);
	for (size_t i = 0; i < 4; i++) {
		if (i == 1 || i == 2)
			ask_wait(&asks[i]);
		assert_int_equal(asks[i].answered, i != 0);
		ask_finish(&asks[i]);
	}

	/* A change that comes after the reading has begun is seen, too. */
	bench_write(&bench, "new.yaml", "name: newer\ncommand: echo\nrecipes: {r: }\n");
	bench_hold_pool(&bench);
	call_tool(&asks[0], &bench, "newer.r", "{}");
	expect_waiting(&bench, asks, 1);
	bench_write(&bench, "new.yaml", "name: newest\ncommand: echo\nrecipes: {r: }\n");
	call_tool(&asks[1], &bench, "newest.r", "{}");
	bench_release_pool(&bench);
	ask_wait(&asks[0]);
	ask_wait(&asks[1]);
	assert_int_equal(asks[0].code, CELL_TOOL_E_UNKNOWN);
	assert_true(asks[1].answered);
	ask_finish(&asks[0]);
	ask_finish(&asks[1]);
	bench_stop(&bench);
}

static void test_paths_wait(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask asks[3];
	start(&bench);
	bench_write(&bench, "show.yaml", show_yaml);
	bench_write(&bench, "a.txt", "text");
	bench.view.cwd = bench.dir;
	expect_text(&bench, "show.r", "{'it':'a.txt'}", "text");
	size_t before = fake_started;
	bench_hold_pool(&bench);
	call_tool(&asks[0], &bench, "show.r", "{'it':'a.txt'}");
	call_tool(&asks[1], &bench, "show.r", "{'it':'a.txt'}");
	call_tool(&asks[2], &bench, "echo.say", "{'words':['x']}");
	expect_waiting(&bench, asks, 3);
	assert_int_equal(fake_started, before);
	ask_cancel(&asks[0]);
	bench_release_pool(&bench);
	ask_wait(&asks[1]);
	ask_wait(&asks[2]);
	assert_string_equal(asks[1].raw.data, "text");
	assert_string_equal(asks[2].raw.data, "x");
	for (size_t i = 0; i < 3; i++)
		ask_finish(&asks[i]);
	bench_stop(&bench);
}

static void *release_later(void *arg)
{
	struct timespec time = { .tv_nsec = 50000000 };
	nanosleep(&time, NULL);
	bench_release_pool(arg);
	return NULL;
}

static void test_close_while_files_are_read(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask asks[2];
	pthread_t thread;
	start(&bench);
	bench_write(&bench, "show.yaml", show_yaml);
	bench_write(&bench, "a.txt", "text");
	bench.view.cwd = bench.dir;
	expect_text(&bench, "show.r", "{'it':'a.txt'}", "text");
	bench_hold_pool(&bench);
	call_tool(&asks[0], &bench, "show.r", "{'it':'a.txt'}");
	expect_waiting(&bench, asks, 1);
	bench_write(&bench, "new.yaml", "name: new\ncommand: echo\nrecipes: {r: }\n");
	call_tool(&asks[1], &bench, "new.r", "{}");
	expect_waiting(&bench, asks, 2);
	pthread_create(&thread, NULL, release_later, &bench);
	bench_close(&bench); /* ends when the pool is done */
	pthread_join(thread, NULL);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(asks[i].code, CELL_E_CLOSED);
		ask_finish(&asks[i]);
	}
	bench_stop(&bench);
}

/* Confinements for callers that are not trusted: none can be made here, so that their calls fail. */
static struct {
	struct bench *bench;
	size_t begun, made, ended;
} confined;

static int find_none(void *arg, const struct cell__call *call, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	(void)arg;
	(void)call;
	(void)err;
	*ret_confinement = NULL;
	return 0;
}

static void *begin_confining(void *arg, const struct cell__call *call)
{
	(void)arg;
	(void)call;
	confined.begun++;
	return &confined;
}

static void make_none(void *making)
{
	(void)making;
	assert_false(cell__loop_is_current(confined.bench->loop));
	__atomic_add_fetch(&confined.made, 1, __ATOMIC_SEQ_CST);
}

static int end_confining(void *making, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	(void)making;
	(void)ret_confinement;
	confined.ended++;
	return cell_fail(err, CELL_E_SANDBOX, 0, "no sandbox here");
}

static void start_untrusted(struct bench *bench)
{
	static const struct cell__confine_ops ops = { find_none, begin_confining, make_none, end_confining };
	static const struct cell__principal code = { .kind = CELL__PRINCIPAL_CODE };
	start(bench);
	memset(&confined, 0, sizeof confined);
	confined.bench = bench;
	bench->tools->opts.confine = &ops;
	bench->asker = &code;
	bench_write(bench, "server.yaml", "name: server\ntype: mcp\ncommand: cat\n");
}

static void test_confinements_wait(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask asks[5];
	start_untrusted(&bench);
	expect_fail(&bench, "echo.say", "{'words':['x']}", CELL_E_SANDBOX, "ToolCallError", "no sandbox here");
	size_t before = fake_started, begun = confined.begun;
	bench_hold_pool(&bench);
	call_tool(&asks[0], &bench, "echo.say", "{'words':['x']}");
	call_tool(&asks[1], &bench, "echo.say", "{'words':['y']}");
	call_tool(&asks[2], &bench, "server.hi", "{}");
	ask_start_for(&asks[3], &bench, "s2", "tools.call", quick_json("{'name':'echo.say','args':{'words':['z']}}"));
	ask_start_for(&asks[4], &bench, "s2", "tools.list", quick_json("{}"));
	expect_waiting(&bench, asks, 5);
	assert_int_equal(confined.begun, begun + 2); /* one for a session */
	ask_cancel(&asks[0]);
	bench_release_pool(&bench);
	for (size_t i = 1; i < 5; i++)
		ask_wait(&asks[i]);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(asks[i].code, i == 0 ? 0 : CELL_E_SANDBOX);
	assert_true(asks[4].answered); /* a server that cannot start keeps no other tool from being listed */
	for (size_t i = 0; i < 5; i++)
		ask_finish(&asks[i]);
	assert_int_equal(fake_started, before);
	assert_int_equal(confined.made, confined.begun);
	assert_int_equal(confined.ended, confined.begun);
	bench_stop(&bench);
}

static void test_close_while_confinements_are_made(void **state)
{
	(void)state;
	static struct bench bench;
	struct ask asks[2];
	pthread_t thread;
	start_untrusted(&bench);
	expect_fail(&bench, "echo.say", "{'words':['x']}", CELL_E_SANDBOX, "ToolCallError", "no sandbox here");
	bench_hold_pool(&bench);
	call_tool(&asks[0], &bench, "echo.say", "{'words':['x']}");
	call_tool(&asks[1], &bench, "server.hi", "{}");
	expect_waiting(&bench, asks, 2);
	pthread_create(&thread, NULL, release_later, &bench);
	bench_close(&bench); /* ends when the pool is done */
	pthread_join(thread, NULL);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(asks[i].code, CELL_E_CLOSED);
		ask_finish(&asks[i]);
	}
	assert_int_equal(confined.ended, confined.begun);
	bench_stop(&bench);
}

static void test_host_registration(void **state)
{
	(void)state;
	static struct bench bench;
	char message[240];
	start(&bench);
	assert_int_equal(try_register(&bench, "one", NULL, -1, host_keep, NULL), 0);
	assert_int_equal(try_register(&bench, "one", NULL, -1, host_keep, message), CELL_E_INVALID);
	assert_string_equal(message, "Tool 'one' already registered");
	assert_int_equal(try_register(&bench, "a b", NULL, -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "a.b.c", NULL, -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "two", "nonsense", -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "two", "[]", -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "two", "{\"required\":[\"x\"]}", -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "one.x", "[]", -1, host_keep, message), CELL_E_INVALID);
	assert_int_equal(try_register(&bench, "two", NULL, -1, NULL, message), CELL_E_INVALID);
	expect_names(&bench, "tools.list", "{}", "one,echo,sh");
	bench_stop(&bench);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_command_failures),
		cmocka_unit_test(test_output_is_capped),
		cmocka_unit_test(test_wrong_calls),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_many_at_once),
		cmocka_unit_test(test_list_and_search),
		cmocka_unit_test(test_rank_function),
		cmocka_unit_test(test_reload),
		cmocka_unit_test(test_linked_files),
		cmocka_unit_test(test_directory_comes_and_goes),
		cmocka_unit_test(test_files_that_are_not),
		cmocka_unit_test(test_problems),
		cmocka_unit_test(test_file_limit),
		cmocka_unit_test(test_changed_files_wait),
		cmocka_unit_test(test_paths_wait),
		cmocka_unit_test(test_close_while_files_are_read),
		cmocka_unit_test(test_confinements_wait),
		cmocka_unit_test(test_close_while_confinements_are_made),
		cmocka_unit_test(test_host_functions),
		cmocka_unit_test(test_host_cancel),
		cmocka_unit_test(test_host_registration),
	};
	signal(SIGPIPE, SIG_DFL);
	return cmocka_run_group_tests_name("tools_registry", tests, NULL, NULL);
}
