/*
 * search/embedder.c against a real endpoint (tests/embeddings_server.py) that misbehaves on request, with short times.
 */
#define _GNU_SOURCE
#include "search/embedder.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "base/libraries.h"
#include "support.h"
#include "wire/embeddings.h"

#define DIM 64

/* ---- the endpoint ---- */

static pid_t server_pid;
static int server_stdin = -1;
static char server_url[64];

static void start_server(void)
{
	extern char **environ;
	int in[2], out[2];
	char port[16] = "";
	posix_spawn_file_actions_t actions;
	char *const argv[] = { (char *)TEST_PYTHON, (char *)TEST_SOURCE_DIR "/tests/embeddings_server.py", NULL };
	if (pipe2(in, 02000000) || pipe2(out, 02000000))
		abort();
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	if (posix_spawn(&server_pid, argv[0], &actions, NULL, argv, environ))
		abort();
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	server_stdin = in[1];
	for (size_t n = 0; n < sizeof port - 1 && read(out[0], port + n, 1) == 1 && port[n] != '\n'; n++)
		;
	close(out[0]);
	snprintf(server_url, sizeof server_url, "http://127.0.0.1:%d", atoi(port));
}

static void stop_server(void)
{
	close(server_stdin);
	waitpid(server_pid, NULL, 0);
}

static int begin(void **state)
{
	if (support_begin(state))
		return -1;
	start_server();
	return 0;
}

static int end(void **state)
{
	stop_server();
	return support_end(state);
}
#define SERVED(name) cmocka_unit_test_setup_teardown(name, begin, end)

static size_t take_body(char *bytes, size_t one, size_t n, void *arg)
{
	(void)one;
	return cell__buf_add(arg, bytes, n) < 0 ? 0 : n;
}

/* A request of the test's own; the answer as JSON. */
static json_t *tell_server(const char *path, const char *post)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	char url[128];
	CURL *easy = curl_easy_init();
	snprintf(url, sizeof url, "%s%s", server_url, path);
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
	if (post)
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, post);
	assert_int_equal(curl_easy_perform(easy), CURLE_OK);
	curl_easy_cleanup(easy);
	json_t *answer = json_loadb(body.data, body.size, 0, NULL);
	assert_non_null(answer);
	return answer;
}

static void mode(const char *name)
{
	char post[64];
	snprintf(post, sizeof post, "{\"mode\": \"%s\"}", name);
	json_decref(tell_server("/control", post));
}

static size_t count_requests(void)
{
	json_t *asked = tell_server("/asked", NULL);
	size_t n = json_array_size(asked);
	json_decref(asked);
	return n;
}

/* ---- an embedder on a loop, with documents ---- */

struct bench {
	struct cell__loop *loop;
	struct cell__embedder *embedder;
	struct cell__search *search;
	struct cell__corpus corpus;
	struct cell__waiter closed;
	pthread_mutex_t log_lock;
	char log[65536];
};

static struct bench bench;

static void take_log(void *arg, enum cell_log_level level, const char *fmt, ...)
{
	(void)arg;
	va_list ap;
	pthread_mutex_lock(&bench.log_lock);
	size_t n = strlen(bench.log);
	n += (size_t)snprintf(bench.log + n, sizeof bench.log - n, "%d ", level);
	va_start(ap, fmt);
	n += (size_t)vsnprintf(bench.log + n, sizeof bench.log - n, fmt, ap);
	va_end(ap);
	snprintf(bench.log + n, sizeof bench.log - n, "\n");
	pthread_mutex_unlock(&bench.log_lock);
}

static bool logged(const char *part)
{
	pthread_mutex_lock(&bench.log_lock);
	bool found = strstr(bench.log, part) != NULL;
	pthread_mutex_unlock(&bench.log_lock);
	return found;
}

static const char *fake_getenv(void *arg, const char *name)
{
	return strcmp(name, "THE_KEY") == 0 ? arg : NULL;
}

static int with_search(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err), void *fn_arg,
		       struct cell_error *err)
{
	return fn(fn_arg, arg, err);
}

struct creating {
	struct cell__embedder_options opts;
	struct cell_error err;
	int rc;
};

static void create_on_loop(void *arg)
{
	struct creating *creating = arg;
	creating->opts.loop = bench.loop;
	creating->rc = cell__embedder_create(&creating->opts, &bench.embedder, &creating->err);
}

static struct cell__embedder_options options(void)
{
	static char url[128];
	snprintf(url, sizeof url, "%s/v1/embeddings", server_url);
	return (struct cell__embedder_options){ .url = url,
						.model = "m",
						.log = take_log,
						.getenv_fn = fake_getenv,
						.getenv_arg = (void *)"k-secret-1",
						.wait_ms = 2000,
						.request_ms = 5000,
						.rest_ms = 200,
						.rest_max_ms = 800 };
}

static void start_with(struct cell__embedder_options opts)
{
	struct creating creating = { .opts = opts };
	struct cell_error err = { 0 };
	bench.log[0] = '\0';
	assert_int_equal(cell__loop_create(&bench.loop, &err), 0);
	cell__loop_call(bench.loop, create_on_loop, &creating);
	if (creating.rc < 0)
		fail_msg("%s", creating.err.msg);
	assert_int_equal(cell__search_open(NULL, &bench.search, &err), 0);
	assert_int_equal(cell__search_add_vectors(bench.search, NULL, "m", &err), 0);
	bench.corpus = (struct cell__corpus){ .name = "things", .with = with_search, .arg = bench.search };
}

static void start(void)
{
	mode("ok");
	start_with(options());
}

static void handle_closed(void *arg)
{
	cell__waiter_signal(arg);
}

static void close_on_loop(struct cell__task *task)
{
	(void)task;
	cell__embedder_close(bench.embedder, handle_closed, &bench.closed);
}

static void stop(void)
{
	struct cell__task task = { .fn = close_on_loop };
	cell__waiter_init(&bench.closed);
	cell__loop_do(bench.loop, &task, &bench.closed);
	cell__waiter_finish(&bench.closed);
	cell__loop_destroy(bench.loop);
	cell__search_close(bench.search);
}

static void add(const char *name, const char *description)
{
	const struct cell__search_doc doc = { .id = name, .name = name, .description = description };
	assert_int_equal(cell__search_update(bench.search, &doc, 1, NULL, 0, NULL), 0);
}

/* One who asks. */
struct asker {
	struct cell__embed_wait wait; /* first */
	struct cell__task task;
	struct cell__waiter waiter;
	const char *query; /* NULL: fills the corpus */
	bool waited;
	size_t dimensions; /* 0: no vector */
	float vector[2 * DIM];
};

static void take_answer(struct asker *asker)
{
	asker->dimensions = asker->wait.vector ? asker->wait.dimensions : 0;
	if (asker->wait.vector)
		memcpy(asker->vector, asker->wait.vector, asker->wait.dimensions * sizeof *asker->vector);
	cell__waiter_signal(&asker->waiter);
}

static void handle_answer(struct cell__embed_wait *wait)
{
	take_answer((struct asker *)wait);
}

static void ask_on_loop(struct cell__task *task)
{
	struct asker *asker = (struct asker *)((char *)task - offsetof(struct asker, task));
	asker->wait.done = handle_answer;
	asker->waited = asker->query ? cell__embedder_query(bench.embedder, asker->query, &asker->wait)
				     : cell__embedder_fill(bench.embedder, &bench.corpus, &asker->wait);
	if (!asker->waited)
		take_answer(asker);
}

static void begin_ask(struct asker *asker, const char *query)
{
	*asker = (struct asker){ .query = query, .task.fn = ask_on_loop };
	cell__waiter_init(&asker->waiter);
	cell__loop_post(bench.loop, &asker->task);
}

static void end_ask(struct asker *asker)
{
	cell__loop_do(bench.loop, NULL, &asker->waiter);
	cell__waiter_finish(&asker->waiter);
}

static size_t ask(const char *query)
{
	struct asker asker;
	begin_ask(&asker, query);
	end_ask(&asker);
	return asker.dimensions;
}

static void fill(void)
{
	ask(NULL);
}

static void status_on_loop(void *arg)
{
	*(json_t **)arg = cell__embedder_status(bench.embedder);
}

static bool state_is(void *name)
{
	json_t *status = NULL;
	cell__loop_call(bench.loop, status_on_loop, &status);
	bool is = strcmp(json_string_value(json_object_get(status, "state")), name) == 0;
	json_decref(status);
	return is;
}

static void expect_state(const char *name, const char *error)
{
	json_t *status = NULL;
	cell__loop_call(bench.loop, status_on_loop, &status);
	const char *got = json_string_value(json_object_get(status, "error"));
	const char *word = json_string_value(json_object_get(status, "state"));
	if (strcmp(name, "failing") == 0) /* its rest may be over by now */
		assert_true(strcmp(word, "resting") == 0 || strcmp(word, "failed") == 0);
	else
		assert_string_equal(word, name);
	if (error && (!got || !strstr(got, error)))
		fail_msg("'%s' is not in '%s'", error, got ? got : "(none)");
	if (!error)
		assert_null(got);
	assert_string_equal(json_string_value(json_object_get(status, "model")), "m");
	json_decref(status);
}

static bool is_rested(void *unused)
{
	(void)unused;
	return !state_is((void *)"resting");
}

static bool has_failed(void *unused)
{
	(void)unused;
	return state_is((void *)"resting") || state_is((void *)"failed");
}

static size_t embedded(void)
{
	struct cell__vector_counts counts;
	cell__search_vector_counts(bench.search, &counts);
	return counts.vectors;
}

static bool all_embedded(void *n)
{
	fill();
	return embedded() == *(size_t *)n;
}

/* ---- queries ---- */

static void test_queries(void **state)
{
	(void)state;
	start();
	struct asker first, second, other;
	begin_ask(&first, "picture");
	end_ask(&first);
	assert_true(first.waited);
	assert_int_equal(first.dimensions, DIM);
	/* Known: at once.  Nothing to ask: not at all. */
	begin_ask(&second, "picture");
	end_ask(&second);
	assert_false(second.waited);
	assert_memory_equal(first.vector, second.vector, DIM * sizeof(float));
	static char long_query[CELL__SEARCH_QUERY_BYTES + 2];
	memset(long_query, 'x', sizeof long_query - 1);
	assert_int_equal(ask(""), 0);
	assert_int_equal(ask(long_query), 0);
	assert_int_equal(count_requests(), 1);
	/* The same question twice is one request. */
	mode("slow 0.2");
	begin_ask(&first, "photo");
	begin_ask(&second, "photo");
	begin_ask(&other, "rain");
	end_ask(&first);
	end_ask(&second);
	end_ask(&other);
	assert_true(first.dimensions == DIM && second.dimensions == DIM && other.dimensions == DIM);
	assert_memory_equal(first.vector, second.vector, DIM * sizeof(float));
	assert_int_equal(count_requests(), 2);
	/* The ones that were used last are kept. */
	mode("ok");
	char text[32];
	for (unsigned i = 0; i < CELL__EMBED_CACHED + 5; i++) {
		snprintf(text, sizeof text, "query %u", i);
		assert_int_equal(ask(text), DIM);
		assert_int_equal(ask("picture"), DIM);
	}
	assert_int_equal(count_requests(), CELL__EMBED_CACHED + 5);
	assert_int_equal(ask("query 0"), DIM);
	assert_int_equal(count_requests(), CELL__EMBED_CACHED + 6);
	expect_state("ok", NULL);
	stop();
}

static void test_too_many_queries(void **state)
{
	(void)state;
	start();
	mode("slow 0.5");
	enum { N = CELL__EMBED_QUERIES + 10 };
	static struct asker askers[N];
	static char texts[N][16];
	size_t answered = 0, refused = 0;
	for (unsigned i = 0; i < N; i++) {
		snprintf(texts[i], sizeof texts[i], "query %u", i);
		begin_ask(&askers[i], texts[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		end_ask(&askers[i]);
		refused += !askers[i].waited;
		answered += askers[i].waited;
	}
	assert_int_equal(answered, CELL__EMBED_QUERIES);
	assert_int_equal(refused, 10);
	stop();
}

static void cancel_on_loop(void *arg)
{
	struct asker *asker = arg;
	if (asker->wait.list)
		cell__embedder_cancel(&asker->wait);
}

static void test_cancel(void **state)
{
	(void)state;
	start();
	mode("slow 0.3");
	struct asker gone, stays;
	begin_ask(&gone, "picture");
	begin_ask(&stays, "picture");
	cell__loop_call(bench.loop, cancel_on_loop, &gone);
	end_ask(&stays);
	assert_int_equal(stays.dimensions, DIM);
	assert_false(cell__waiter_is_done(&gone.waiter));
	cell__waiter_finish(&gone.waiter);
	/* The last one goes: the answer still comes to be known. */
	begin_ask(&gone, "photo");
	cell__loop_call(bench.loop, cancel_on_loop, &gone);
	cell__waiter_finish(&gone.waiter);
	begin_ask(&stays, "photo");
	end_ask(&stays);
	assert_int_equal(stays.dimensions, DIM);
	assert_int_equal(count_requests(), 2);
	stop();
}

/* ---- failures ---- */

static void test_back_off(void **state)
{
	(void)state;
	start();
	mode("status 500");
	static const char *const rests[] = { "0.2 s", "0.4 s", "0.8 s", "0.8 s" }; /* doubles up to the most */
	for (size_t i = 0; i < COUNT(rests); i++) {
		char expected[128], text[32];
		snprintf(text, sizeof text, "query %zu", i);
		bench.log[0] = '\0';
		assert_int_equal(ask(text), 0);
		snprintf(expected, sizeof expected, "2 embeddings: HTTP 500: told to fail; searching by words only for %s\n", rests[i]);
		assert_string_equal(bench.log, expected);
		expect_state("failing", "HTTP 500: told to fail");
		assert_int_equal(count_requests(), i + 1);
		assert_true(support_wait(is_rested, NULL));
		expect_state("failing", "HTTP 500"); /* it is not forgotten before it works */
	}
	mode("ok");
	assert_int_equal(ask("query 0"), DIM);
	expect_state("ok", NULL);
	assert_true(logged("1 embeddings: the endpoint answers again"));
	/* And the next failure begins with the shortest time again. */
	mode("status 502");
	assert_int_equal(ask("other"), 0);
	assert_true(logged("HTTP 502: told to fail; searching by words only for 0.2 s"));
	stop();
}

/* Nothing is asked before the time is over. */
static void test_resting(void **state)
{
	(void)state;
	struct cell__embedder_options opts = options();
	opts.rest_ms = opts.rest_max_ms = 600000;
	mode("status 500");
	start_with(opts);
	add("car", "x");
	assert_int_equal(ask("query"), 0);
	assert_true(state_is((void *)"resting"));
	mode("ok");
	assert_int_equal(ask("query"), 0);
	assert_int_equal(ask("another"), 0);
	fill();
	assert_int_equal(count_requests(), 0);
	assert_true(state_is((void *)"resting"));
	stop();
}

static void test_retry_after(void **state)
{
	(void)state;
	start();
	mode("busy 2");
	assert_int_equal(ask("x"), 0);
	assert_true(logged("HTTP 429: slow down; searching by words only for 2 s"));
	stop();
	start();
	mode("busy 99999999");
	assert_int_equal(ask("x"), 0);
	assert_true(logged("for 300 s"));
	stop();
}

static void test_faults(void **state)
{
	(void)state;
	static const struct {
		const char *mode, *error;
	} rows[] = {
		{ "status 404", "HTTP 404: told to fail" },
		{ "status 401", "HTTP 401: it requires a key" },
		{ "redirect", "HTTP 307: it redirects" },
		{ "reset", "mpty reply" },
		{ "cut", "" },
		{ "garbage", "not JSON" },
		{ "html", "not JSON" },
		{ "empty", "not JSON" },
		{ "count", "0 vectors for 1 texts" },
		{ "more", "indexes" },
		{ "uneven", "" },
		{ "nan", "not JSON" },
		{ "huge", "too large" },
		{ "text", "not a number" },
		{ "null", "not a number" },
		{ "flood", "larger than 1048576 bytes" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		start();
		mode(rows[i].mode);
		if (strcmp(rows[i].mode, "uneven") != 0)
			assert_int_equal(ask("query"), 0);
		else
			ask("query");
		expect_state("failing", rows[i].error);
		stop();
	}
	start();
	mode("zero"); /* points nowhere, and is no failure */
	assert_int_equal(ask("query"), DIM);
	expect_state("ok", NULL);
	stop();
}

static void test_slow(void **state)
{
	(void)state;
	struct cell__embedder_options opts = options();
	opts.wait_ms = 100;
	opts.request_ms = 1500;
	start_with(opts);
	mode("slow 0.8");
	assert_int_equal(ask("picture"), 0);
	assert_true(logged("no answer within 0.1 s"));
	assert_true(support_wait(state_is, (void *)"ok"));
	assert_int_equal(ask("picture"), DIM); /* it came to be known */
	assert_int_equal(count_requests(), 1);
	/* An answer that never comes is a failure in the end. */
	mode("hang");
	assert_int_equal(ask("hanging"), 0);
	assert_true(support_wait(has_failed, NULL));
	expect_state("failing", "no answer within 1.5 s");
	stop();
}

/* Nobody waits for one that does not answer. */
static void test_hanging(void **state)
{
	(void)state;
	struct cell__embedder_options opts = options();
	opts.wait_ms = 100;
	opts.request_ms = 600000;
	start_with(opts);
	mode("hang");
	assert_int_equal(ask("picture"), 0);
	expect_state("slow", "no answer yet");
	struct asker other;
	begin_ask(&other, "rain");
	end_ask(&other);
	assert_false(other.waited);
	assert_int_equal(count_requests(), 1);
	stop();
}

static void test_close_at_any_time(void **state)
{
	(void)state;
	static const char *const modes[] = { "hang", "slow 0.01", "ok", "flood", "status 500" };
	for (int i = 0; i < 30; i++) {
		struct cell__embedder_options opts = options();
		opts.wait_ms = 1 + i;
		start_with(opts);
		mode(modes[i % COUNT(modes)]);
		for (int k = 0; k < 100; k++) {
			char name[32];
			snprintf(name, sizeof name, "doc%d", k);
			add(name, "x");
		}
		struct asker query, documents;
		begin_ask(&query, "picture");
		begin_ask(&documents, NULL);
		end_ask(&query);
		end_ask(&documents);
		stop();
	}
}

/* ---- documents ---- */

static void test_documents(void **state)
{
	(void)state;
	start();
	fill(); /* nothing to do */
	assert_int_equal(count_requests(), 0);
	add("car", "x");
	add("boat", "x");
	fill();
	assert_int_equal(embedded(), 2);
	assert_int_equal(count_requests(), 1);
	fill();
	assert_int_equal(count_requests(), 1);
	/* Many: in batches, and not waited for. */
	size_t n = 2 * CELL__EMBED_BATCH + 2 + 7;
	for (size_t i = 2; i < n; i++) {
		char name[32];
		snprintf(name, sizeof name, "doc%zu", i);
		add(name, "x");
	}
	mode("slow 0.2");
	fill();
	assert_true(embedded() < n);
	assert_true(support_wait(all_embedded, &n));
	assert_int_equal(count_requests(), 3);
	assert_int_equal(bench.corpus.counts.documents, n);
	assert_int_equal(bench.corpus.counts.dimensions, DIM);
	stop();
}

static void test_documents_fail(void **state)
{
	(void)state;
	static const char *const modes[] = { "status 500", "count", "uneven", "nan", "garbage", "reset", "busy 0" };
	start();
	for (size_t i = 0; i < COUNT(modes); i++) {
		char name[32];
		snprintf(name, sizeof name, "doc%zu", i);
		add(name, "x");
		add(strcat(name, "b"), "x");
		mode(modes[i]);
		fill();
		assert_int_equal(embedded(), 2 * i);
		expect_state("failing", "");
		mode("ok");
		assert_true(support_wait(is_rested, NULL));
		fill();
		assert_int_equal(embedded(), 2 * i + 2);
		expect_state("ok", NULL);
	}
	stop();
}

static void test_documents_that_take_too_long(void **state)
{
	(void)state;
	struct cell__embedder_options opts = options();
	opts.wait_ms = 100;
	start_with(opts);
	size_t n = 1;
	add("car", "x");
	mode("slow 0.7");
	fill(); /* is over long before the endpoint answers, which goes on */
	assert_int_equal(embedded(), 0);
	assert_true(support_wait(all_embedded, &n));
	assert_int_equal(count_requests(), 1);
	stop();
}

static void test_refusals(void **state)
{
	(void)state;
	start();
	char text[4000];
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	size_t n = 20;
	for (size_t i = 0; i < n; i++) {
		char name[32];
		snprintf(name, sizeof name, "doc%02zu", i);
		add(name, i % 2 ? "short" : text);
	}
	/* Before anything has succeeded a refusal is a failure: the model may be unknown. */
	mode("status 400");
	fill();
	expect_state("failing", "HTTP 400");
	assert_int_equal(count_requests(), 1);
	assert_true(support_wait(is_rested, NULL));
	mode("long 600");
	assert_int_equal(ask("query"), DIM);
	assert_true(support_wait(all_embedded, &n));
	assert_int_equal(bench.corpus.counts.refused, 0);
	/* One is refused whatever is done; the others are not held up. */
	add("taboo1", "voldemort");
	add("fine1", "x");
	mode("word voldemort");
	n++;
	assert_true(support_wait(all_embedded, &n));
	assert_int_equal(bench.corpus.counts.refused, 1);
	assert_true(logged("things 'taboo1' is skipped: HTTP 400: we do not speak of that"));
	expect_state("ok", NULL);
	/* All are: that is no property of theirs. */
	for (int i = 0; i < 30; i++) {
		char name[32];
		snprintf(name, sizeof name, "more%02d", i);
		add(name, "x");
	}
	mode("status 422");
	fill();
	assert_true(support_wait(has_failed, NULL));
	assert_true(count_requests() < 300);
	mode("ok");
	n += 30 + 1; /* all of them, also the one from before */
	assert_true(support_wait(all_embedded, &n));
	stop();
}

struct odd {
	size_t dimensions;
};

static void odd_on_loop(void *arg)
{
	cell__embedder_odd(bench.embedder, &bench.corpus, ((struct odd *)arg)->dimensions);
}

static bool has_wide(void *n)
{
	struct cell__vector_counts counts;
	fill();
	cell__search_vector_counts(bench.search, &counts);
	return counts.dimensions == 2 * DIM && counts.vectors == *(size_t *)n;
}

static void test_dimensions(void **state)
{
	(void)state;
	start();
	size_t n = 2;
	add("car", "x");
	fill();
	/* By a document: twice is a failure, and then right again; three times it is so. */
	add("boat", "x");
	for (int i = 0; i < 2; i++) {
		mode("wide");
		fill();
		expect_state("failing", "the vectors have 128 dimensions, the earlier ones 64");
		assert_int_equal(embedded(), 1);
		assert_true(support_wait(is_rested, NULL));
	}
	mode("ok");
	fill();
	assert_int_equal(embedded(), 2);
	mode("wide");
	assert_true(!logged("now have 128 dimensions"));
	add("boat", "y");
	assert_true(support_wait(has_wide, &n));
	assert_true(logged("the model's vectors now have 128 dimensions; embedding all things again"));
	/* By a query. */
	mode("ok");
	struct odd odd = { DIM };
	assert_int_equal(ask("query"), DIM);
	for (unsigned i = 0; i < CELL__EMBED_ODD_TIMES; i++) {
		assert_false(logged("now have 64 dimensions"));
		cell__loop_call(bench.loop, odd_on_loop, &odd);
	}
	assert_true(logged("now have 64 dimensions"));
	assert_true(support_wait(is_rested, NULL));
	assert_true(support_wait(all_embedded, &n));
	struct cell__vector_counts counts;
	cell__search_vector_counts(bench.search, &counts);
	assert_int_equal(counts.dimensions, DIM);
	stop();
}

/* ---- the key ---- */

static char *key_seen(void)
{
	json_t *asked = tell_server("/asked", NULL);
	const char *key = json_string_value(json_object_get(json_array_get(asked, 0), "key"));
	char *copy = key ? strdup(key) : NULL;
	json_decref(asked);
	return copy;
}

static void test_keys(void **state)
{
	(void)state;
	static const struct {
		const char *key, *sent, *error;
	} rows[] = {
		{ NULL, NULL, NULL },
		{ "", NULL, NULL },
		{ "literal", "Bearer literal", NULL },
		{ "${THE_KEY}", "Bearer k-secret-1", NULL },
		{ "${NO_KEY}", NULL, "environment variable NO_KEY" },
		{ "a\r\nX: y", NULL, "line break" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell__embedder_options opts = options();
		opts.key = rows[i].key;
		mode("ok");
		start_with(opts);
		assert_int_equal(ask("x"), rows[i].error ? 0 : DIM);
		CELL_AUTO_FREE char *key = key_seen();
		if (rows[i].sent)
			assert_string_equal(key, rows[i].sent);
		else
			assert_null(key);
		expect_state(rows[i].error ? "resting" : "ok", rows[i].error);
		assert_int_equal(count_requests(), rows[i].error ? 0 : 1);
		stop();
	}
	struct cell__embedder_options opts = options();
	opts.key = "${THE_KEY}";
	start_with(opts);
	mode("echo 400");
	assert_int_equal(ask("x"), 0);
	expect_state("failing", "the answer contains the key and is not shown");
	assert_false(logged("k-secret-1"));
	stop();
}

static void test_refused_options(void **state)
{
	(void)state;
	struct cell_error err;
	assert_int_equal(cell__loop_create(&bench.loop, &err), 0);
	static const struct {
		const char *url, *model, *message;
	} rows[] = {
		{ "", "m", "http:// or https://" },        { "ftp://user:hunter2@x/", "m", "http:// or https://" },
		{ "http://x", NULL, "name of a model" },   { "http://x", "", "name of a model" },
		{ "http://x", "\xff", "name of a model" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct creating creating = { .opts = options() };
		creating.opts.url = rows[i].url;
		creating.opts.model = rows[i].model;
		cell__loop_call(bench.loop, create_on_loop, &creating);
		assert_int_equal(creating.rc, -1);
		assert_int_equal(creating.err.code, CELL_E_INVALID);
		assert_non_null(strstr(creating.err.msg, rows[i].message));
		assert_null(strstr(creating.err.msg, "hunter2"));
	}
	cell__loop_destroy(bench.loop);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	pthread_mutex_init(&bench.log_lock, NULL);
	if (cell__library_load(CELL__LIBRARY_CURL, NULL) < 0)
		return 1;
	curl_global_init(CURL_GLOBAL_DEFAULT);
	const struct CMUnitTest tests[] = {
		SERVED(test_queries),
		SERVED(test_too_many_queries),
		SERVED(test_cancel),
		SERVED(test_back_off),
		SERVED(test_resting),
		SERVED(test_retry_after),
		SERVED(test_faults),
		SERVED(test_slow),
		SERVED(test_hanging),
		SERVED(test_close_at_any_time),
		SERVED(test_documents),
		SERVED(test_documents_fail),
		SERVED(test_documents_that_take_too_long),
		SERVED(test_refusals),
		SERVED(test_dimensions),
		SERVED(test_keys),
		SERVED(test_refused_options),
	};
	return cmocka_run_group_tests_name("embedder", tests, NULL, NULL);
}
