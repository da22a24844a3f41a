/* storage/search.c: words, ranking, the cache file, fusion. */
#define _GNU_SOURCE
#include "store_support.h"

static void expect_expanded(const char *text, const char *expected)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	assert_int_equal(cell__search_expand(&buf, text), 0);
	assert_string_equal(buf.data, expected);
}

static void test_expand(void **state)
{
	(void)state;
	expect_expanded("", "");
	expect_expanded("plain words", "plain words");
	expect_expanded("fetch_data", "fetch_data fetch data fetchdata");
	expect_expanded("fetchData", "fetchData fetch Data fetchData");
	expect_expanded("HTTPServer2Go", "HTTPServer2Go HTTP Server 2 Go HTTPServer2Go");
	expect_expanded("a.parseXML(x)", "a.parseXML(x) parse XML parseXML");
	expect_expanded("__init__", "__init__ init init");
	expect_expanded("\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9");
}

static struct cell__search *tools(const char *path)
{
	static const struct cell__search_doc docs[] = {
		{ .id = "curl",
		  .name = "curl",
		  .description = "Fetches web pages over HTTP",
		  .tags = "network web",
		  .extra = "get post download",
		  .payload = "{\"n\":1}" },
		{ .id = "fetchWeather", .name = "fetchWeather", .description = "Forecasts for a city" },
		{ .id = "jq", .name = "jq", .description = "Queries JSON documents", .body = "def weather(): pass" },
		{ .id = "run_report", .name = "run_report", .description = "Running totals by month" },
		{ .id = "city_list", .name = "city_list", .description = "All cities of a country" },
	};
	struct cell__search *search = NULL;
	OK(cell__search_open(path, &search, &err));
	OK(cell__search_update(search, docs, COUNT(docs), NULL, 0, &err));
	return search;
}

static void expect_hits(struct cell__search *search, const char *query, size_t limit, const char *expected)
{
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	OK(cell__search_query(search, query, limit, &hits, &n, &err));
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	cell__buf_add(&got, "", 0);
	for (size_t i = 0; i < n; i++) {
		cell__buf_printf(&got, "%s%s", i ? " " : "", hits[i].id);
		assert_true(hits[i].score > 0);
		assert_true(i == 0 || hits[i].score <= hits[i - 1].score);
	}
	if (strcmp(got.data, expected) != 0)
		fail_msg("'%s' gave '%s', not '%s'", query, got.data, expected);
	cell__search_hits_free(hits, n);
}

static void test_ranking(void **state)
{
	(void)state;
	struct cell__search *search = tools(NULL);
	expect_hits(search, "weather", 10, "fetchWeather jq");  /* a name counts more than a source */
	expect_hits(search, "fetching", 10, "fetchWeather curl"); /* stems, and in a name first */
	expect_hits(search, "WEATHER forecast", 1, "fetchWeather");
	expect_hits(search, "forecasting", 10, "fetchWeather");
	expect_hits(search, "city", 10, "city_list fetchWeather");
	expect_hits(search, "network", 10, "curl");             /* tags */
	expect_hits(search, "download", 10, "curl");
	expect_hits(search, "jso", 10, "jq");                   /* half a word */
	expect_hits(search, "how to get the web page", 10, "curl");
	expect_hits(search, "fetchweather", 10, "fetchWeather"); /* joined */
	expect_hits(search, "run report", 10, "run_report");
	/* The whole name stands first, whatever else is said of the words. */
	expect_hits(search, "Run-Report", 1, "run_report");
	expect_hits(search, "jq", 10, "jq");
	expect_hits(search, "nothing of this", 10, "");
	expect_hits(search, "", 10, "");
	expect_hits(search, "weather", 0, "");
	cell__search_close(search);
}

/* What FTS5 would take for syntax. */
static void test_no_syntax(void **state)
{
	(void)state;
	struct cell__search *search = tools(NULL);
	static const char *const queries[] = {
		"\"",           "weather\"", "AND",      "NOT OR AND",       "(",        "weather)",
		"name:weather", "^weather",  "a*b*",     "NEAR(weather, 2)", "-weather", "'; DROP TABLE items; --",
		"{weather}",    "+",         "\xc3\xa9", "weather\n\t",      "*"
	};
	for (size_t i = 0; i < COUNT(queries); i++) {
		struct cell__search_hit *hits = NULL;
		size_t n = 0;
		OK(cell__search_query(search, queries[i], 10, &hits, &n, &err));
		if (strstr(queries[i], "weather"))
			assert_string_equal(hits[0].id, "fetchWeather");
		cell__search_hits_free(hits, n);
	}
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	CELL_AUTO_FREE char *query = calloc(1, CELL__SEARCH_QUERY_BYTES + 2);
	for (size_t i = 0; i < CELL__SEARCH_QUERY_BYTES; i++)
		query[i] = i % 5 == 4 ? ' ' : (char)('a' + i % 23);
	OK(cell__search_query(search, query, 10, &hits, &n, &err));
	cell__search_hits_free(hits, n);
	query[CELL__SEARCH_QUERY_BYTES] = 'x';
	FAILS(CELL_E_LIMIT, "", cell__search_query(search, query, 10, &hits, &n, &err));
	FAILS(CELL_E_INVALID, "UTF-8", cell__search_query(search, "\xff", 10, &hits, &n, &err));
	cell__search_close(search);
}

static void test_update(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = tools(in(folder, "x.sqlite")), *other = NULL;
	OK(cell__search_open(in(folder, "x.sqlite"), &other, &err));
	assert_true(cell__search_changed(other));
	assert_false(cell__search_changed(other));
	const struct cell__search_doc changed = { .id = "jq", .name = "jq", .description = "Slices bananas", .stamp = { 1, 2, 3 } };
	const char *const removed[] = { "curl", "missing" };
	OK(cell__search_update(search, &changed, 1, removed, 2, &err));
	assert_true(cell__search_changed(other));
	expect_hits(other, "banana", 10, "jq");
	expect_hits(other, "json", 10, "");
	expect_hits(other, "download", 10, "");
	char *payload = NULL;
	OK(cell__search_payload(other, "curl", &payload, &err));
	assert_null(payload);
	struct cell__search_stamp *stamps = NULL;
	size_t n = 0;
	OK(cell__search_stamps(other, &stamps, &n, &err));
	assert_int_equal(n, 4);
	assert_string_equal(stamps[2].id, "jq");
	assert_int_equal(stamps[2].stamp[2], 3);
	cell__search_stamps_free(stamps, n);
	cell__search_close(search);
	cell__search_close(other);
	/* A file that is no index of ours is refused, not overwritten blindly: the caller decides. */
	write_text(folder, "y.sqlite", "this is not a database, and long enough to be looked at as one.....................");
	FAILS(CELL_E_IO, "search index", cell__search_open(in(folder, "y.sqlite"), &search, &err));
}

static void test_fuse(void **state)
{
	(void)state;
	const struct cell__search_hit a[] = { { (char *)"x", 9 }, { (char *)"y", 8 }, { (char *)"z", 7 } };
	const struct cell__search_hit b[] = { { (char *)"y", 0.2 }, { (char *)"w", 0.1 } };
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	assert_int_equal(cell__search_fuse(a, 3, b, 2, 0.09, 10, &hits, &n), 0);
	assert_int_equal(n, 4);
	const char *const order[] = { "y", "w", "x", "z" };
	for (size_t i = 0; i < n; i++)
		assert_string_equal(hits[i].id, order[i]);
	assert_true(hits[0].score > 0.28 - 1e-9 && hits[0].score < 0.28 + 1e-9);
	assert_true(hits[2].score < hits[1].score);
	cell__search_hits_free(hits, n);
	assert_int_equal(cell__search_fuse(a, 3, NULL, 0, 1, 2, &hits, &n), 0);
	assert_int_equal(n, 2);
	assert_string_equal(hits[0].id, "x");
	cell__search_hits_free(hits, n);
	assert_int_equal(cell__search_fuse(NULL, 0, NULL, 0, 1, 2, &hits, &n), 0);
	assert_int_equal(n, 0);
	free(hits);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_expand), TEST(test_ranking), TEST(test_no_syntax), STORE_TEST(test_update), TEST(test_fuse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
