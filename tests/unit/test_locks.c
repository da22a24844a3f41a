/*
 * Objects that threads share under a lock of their own, used by several at once: the cache of plans, the sessions behind cell_json_call(),
 * the version of the interpreter that packages are for.  Meant for TSan, which sees a lock that is missing even if nothing goes wrong.
 *
 * The machine is a stand-in (--wrap): the real probe calls clone(), which TSan cannot follow.
 */
#define _GNU_SOURCE
#include "deps_support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "sandbox/plans.h"

#define THREADS 4

/* ---- plans ---- */

const struct cell__machine *__wrap_cell__machine_here(void);

const struct cell__machine *__wrap_cell__machine_here(void)
{
	/* With subordinate ids, so that the mounts are asked too. */
	static const struct cell__machine machine = {
		.level = CELL_LEVEL_FULL, .landlock_abi = 3, .seccomp = true, .subids = { .uid = 100000, .gid = 100000, .count = 65536 }
	};
	return &machine;
}

static void *find_plans(void *arg)
{
	static const struct cell__plan_env env;
	struct cell__plans *plans = arg;
	for (int i = 0; i < 5 * CELL_PLANS_MAX; i++) {
		char text[64];
		struct cell__sandbox_plan *plan = NULL;
		struct cell__sandbox_policy policy;
		/* More than the cache keeps, and each is found by all threads at about the same time. */
		snprintf(text, sizeof text, "limits: {memory: %dM}\n", 100 + i % (2 * CELL_PLANS_MAX));
		CHECK(cell__sandbox_policy_parse(&policy, "p.yaml", text, strlen(text), NULL) == 0);
		struct cell__plan_session session = { .mode = CELL_WORKSPACE_NONE, .env = &env, .policy = &policy };
		CHECK(cell__plans_find(plans, &session, &plan, NULL) == 0 && plan->size > 0 && plan->bytes);
		cell__sandbox_plan_unref(cell__sandbox_plan_ref(plan));
		cell__sandbox_plan_unref(plan);
		cell__sandbox_policy_finish(&policy);
	}
	return NULL;
}

static void test_plans(void **state)
{
	(void)state;
	struct cell__plans plans = CELL_PLANS_INIT;
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, find_plans, &plans), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	cell__plans_finish(&plans);
}

/* ---- JSON in, JSON out ---- */

static struct cell_json *json;
static char shared[64]; /* the session of all threads */

/* The answer to a request; the caller's to free. */
static json_t *call(const char *format, ...)
{
	char request[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(request, sizeof request, format, arguments);
	va_end(arguments);
	char *text = cell_json_call(json, request);
	json_t *answer = text ? json_loads(text, 0, NULL) : NULL;
	cell_free(text);
	CHECK(answer);
	return answer;
}

static bool is_ok(const char *format, const char *session)
{
	json_t *answer = call(format, session);
	bool ok = json_object_get(answer, "ok") != NULL;
	json_decref(answer);
	return ok;
}

static void open_session(char id[static 64])
{
	json_t *answer = call("{\"op\": \"open\", \"options\": {\"python\": \"%s\"}}", TEST_PYTHON);
	const char *text = json_string_value(json_object_get(json_object_get(answer, "ok"), "session"));
	CHECK(text && strlen(text) < 64);
	memcpy(id, text, strlen(text) + 1);
	json_decref(answer);
}

static void *use_sessions(void *arg)
{
	(void)arg;
	for (int i = 0; i < 5; i++) {
		char own[64];
		open_session(own);
		CHECK(is_ok("{\"op\": \"run\", \"session\": \"%s\", \"code\": \"1 + 1\"}", own));
		CHECK(is_ok("{\"op\": \"run\", \"session\": \"%s\", \"code\": \"1 + 1\"}", shared));
		CHECK(is_ok("{\"op\": \"sessions\"%.0s}", ""));
		CHECK(is_ok("{\"op\": \"interrupt\", \"session\": \"%s\"}", shared));
		CHECK(is_ok("{\"op\": \"close\", \"session\": \"%s\"}", own));
		CHECK(!is_ok("{\"op\": \"run\", \"session\": \"%s\", \"code\": \"1\"}", own));
	}
	return NULL;
}

static void *run_for_ever(void *arg)
{
	(void)arg;
	json_decref(call("{\"op\": \"run\", \"session\": \"%s\", \"code\": \"while True: pass\"}", shared));
	return NULL;
}

static bool all_run(void *arg)
{
	(void)arg;
	json_t *answer = call("{\"op\": \"sessions\"}");
	json_int_t runs = json_integer_value(json_object_get(json_array_get(json_object_get(answer, "ok"), 0), "runs"));
	json_decref(answer);
	return runs == THREADS;
}

static void test_json(void **state)
{
	(void)state;
	pthread_t threads[THREADS];
	json = cell_json_create();
	assert_non_null(json);
	assert_true(is_ok("{\"op\": \"engine\", \"options\": {\"lib_dir\": \"%s\"}}", TEST_LIB_DIR));
	open_session(shared);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use_sessions, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	/* Closed by one thread while others run in it and wait for their turn. */
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_for_ever, NULL), 0);
	assert_true(support_wait(all_run, NULL));
	assert_true(is_ok("{\"op\": \"close\", \"session\": \"%s\"}", shared));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	cell_json_destroy(json);
}

/* ---- packages ---- */

struct seeker {
	struct project *project;
	atomic_bool over;
	atomic_int found;
};

static void *find_packages(void *arg)
{
	struct seeker *seeker = arg;
	while (!atomic_load(&seeker->over)) {
		struct cell__deps_place place;
		cell__deps_find(seeker->project->deps, false, &place);
		if (place.site)
			atomic_fetch_add(&seeker->found, 1);
		cell__deps_place_finish(&place);
	}
	return NULL;
}

/* Sessions that open ask on the pool where packages are, while the first operation finds out the interpreter's version. */
static void test_packages(void **state)
{
	(void)state;
	static struct project project;
	static struct seeker seeker;
	pthread_t thread;
	project_open(&project, "locks", NULL);
	seeker.project = &project;
	assert_int_equal(pthread_create(&thread, NULL, find_packages, &seeker), 0);
	do_sync(&project, "deps.add", "cell-alpha==1.0", "[\"cell-alpha==1.0\"]", "[]", "[]");
	int before = atomic_load(&seeker.found);
	while (atomic_load(&seeker.found) == before)
		usleep(1000);
	atomic_store(&seeker.over, true);
	pthread_join(thread, NULL);
	project_close(&project);
}

int main(int argc, char **argv)
{
	const char *uv = getenv("WORKCELL_TEST_UV");
	with_uv = uv && *uv;
	snprintf(search_path, sizeof search_path, "%s%s/usr/local/bin:/usr/bin:/bin", with_uv ? uv : "", with_uv ? ":" : "");
	support_init(argc, argv);
	snprintf(tmp, sizeof tmp, "/tmp/test-locks-XXXXXX");
	CHECK(mkdtemp(tmp) != NULL);
	make_wheels();
	const struct CMUnitTest tests[] = { TEST(test_plans), TEST(test_json), TEST(test_packages) };
	int failures = cmocka_run_group_tests(tests, NULL, NULL);
	if (failures == 0)
		shell("rm -rf %s", tmp);
	return failures;
}
