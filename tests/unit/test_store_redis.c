/*
 * Storage in Redis, past what both backends promise (test_store_*-redis): the URL, the layout, data that others wrote, servers
 * that are down, die, lie or do not let us in.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "storage/redis.h"
#include "store_support.h"

#define SOURCE "async def run(city: str):\n    \"\"\"Forecasts the weather.\"\"\"\n    return city\n"
#define VALUE(words)                                                                                                   \
	"{\"name\": \"w\", \"description\": \"" words "\", \"source\": \"async def run(n: int = 3):\\n    pass\\n\", " \
	"\"parameters\": [{\"name\": \"wrong\"}]}"

static int create(struct cell__store *store, const char *name, const char *description, struct cell_error *err)
{
	return cell__workflow_create(store, name, SOURCE, strlen(SOURCE), description, true, NULL, err);
}

static int save(struct cell__store *store, const char *name, const void *bytes, size_t size, struct cell_error *err)
{
	struct cell__artifact_writer *writer;
	if (cell__artifact_begin(store, name, &writer, err) < 0)
		return -1;
	if (cell__artifact_write(writer, bytes, size, err) < 0) {
		cell__artifact_abort(writer);
		return -1;
	}
	return cell__artifact_commit(writer, "bytes", "", NULL, NULL, err);
}

static void expect_names(json_t *list, const char *expected)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	size_t i;
	json_t *one;
	json_array_foreach(list, i, one)
		cell__buf_printf(&buf, "%s%s", i ? " " : "", text_of(one, "name"));
	assert_string_equal(buf.data ? buf.data : "", expected);
	json_decref(list);
}

static void expect_workflows(struct cell__store *store, const char *expected)
{
	json_t *list = NULL;
	OK(cell__workflow_list(store, &list, NULL, &err));
	expect_names(list, expected);
}

static void expect_found(struct cell__store *store, const char *query, const char *expected)
{
	json_t *list = NULL;
	OK(cell__workflow_search(store, query, 10, &list, &err));
	expect_names(list, expected);
}

static void expect_artifacts(struct cell__store *store, const char *expected)
{
	json_t *list = NULL;
	OK(cell__artifact_list(store, &list, &err));
	expect_names(list, expected);
}

/* ---- the URL ---- */

static void test_urls(void **state)
{
	(void)state;
	static const struct {
		const char *text, *shown, *user, *password, *prefix;
		int db;
	} good[] = {
		{ "redis://localhost", "localhost:6379", NULL, NULL, "py_code_mode", 0 },
		{ "REDIS://h:1/2?prefix=app", "h:1", NULL, NULL, "app", 2 },
		{ "redis://h?tools_prefix=their&prefix=app", "h:6379", NULL, NULL, "app", 0 },
		{ "redis://:s%40cret@h", "h:6379", NULL, "s@cret", "py_code_mode", 0 },
		{ "redis://me:a:b@c@h:7/?db=3", "h:7", "me", "a:b@c", "py_code_mode", 3 },
		{ "rediss://h?ssl_cert_reqs=none&prefix=a%3Ab", "h:6379", NULL, NULL, "a:b", 0 },
		{ "redis://[::1]:7000/1", "[::1]:7000", NULL, NULL, "py_code_mode", 1 },
		{ "redis+unix:///run/redis.sock?db=4", "/run/redis.sock", NULL, NULL, "py_code_mode", 4 },
		{ "unix://me:pw@/run/a", "/run/a", "me", "pw", "py_code_mode", 0 },
		{ "redis://", "localhost:6379", NULL, NULL, "py_code_mode", 0 },
		{ "redis://h?via=/run/dialer", "h:6379", NULL, NULL, "py_code_mode", 0 },
	};
	for (size_t i = 0; i < COUNT(good); i++) {
		struct cell__redis_url url;
		OK(cell__redis_url_parse(good[i].text, &url, &err));
		assert_string_equal(url.shown, good[i].shown);
		assert_string_equal(url.prefix, good[i].prefix);
		assert_int_equal(url.db, good[i].db);
		assert_string_equal(url.user ? url.user : "-", good[i].user ? good[i].user : "-");
		assert_string_equal(url.password ? url.password : "-", good[i].password ? good[i].password : "-");
		cell__redis_url_finish(&url);
	}
	static const char *const bad[] = {
		"redis://me@h",
		"redis://:secret@h:x",
		"redis://:secret@h:70000",
		"redis://:secret@h/x",
		"redis://:secret@h?prefix=",
		"redis://:secret@h?tools_prefix=",
		"redis://:secret@h?what=secret",
		"redis://:secret@h?ssl_ca_certs=x",
		"redis+unix://:secret@rel",
		"redis://:secret@[::1",
		"rediss://:secret@h?ssl_cert_reqs=maybe",
		"redis://:secret@h\n",
		"redis://:secret@h?prefix=%ff",
		"redis://:secret%00@h",
		"http://:secret@h",
		"redis:/:secret@h",
		"redis://:secret@h?via=relative",
	};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct cell__redis_url url;
		struct cell_error err = { 0 };
		if (cell__redis_url_parse(bad[i], &url, &err) == 0)
			fail_msg("accepted: %s", bad[i]);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_null(strstr(err.msg, "secret"));
	}
	CELL_AUTO_FREE char *longest = calloc(1, CELL__REDIS_URL_BYTES + 2);
	memset(longest, 'a', CELL__REDIS_URL_BYTES + 1);
	memcpy(longest, "redis://", 8);
	struct cell__redis_url url;
	FAILS(CELL_E_LIMIT, "longer", cell__redis_url_parse(longest, &url, &err));
}

/* ---- the reference's layout ---- */

static void test_data_of_others(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	redis_do("HSET %s forecast %s", redis_key(folder, "workflows:__workflows__"), VALUE("Predicts rain"));
	redis_do("HSET %s older %s", redis_key(folder, "skills:__skills__"), VALUE("An older one"));
	redis_do("HSET %s forecast %s", redis_key(folder, "skills:__skills__"), VALUE("Hidden"));
	expect_workflows(store, "forecast older");
	expect_found(store, "rain", "forecast");
	expect_found(store, "hidden", "");
	json_t *info = NULL;
	OK(cell__workflow_get(store, "forecast", &info, &err));
	assert_string_equal(text_of(info, "description"), "Predicts rain");
	assert_string_equal(text_of(json_object_get(info, "params"), "n"), "integer");
	assert_null(json_object_get(json_object_get(info, "params"), "wrong"));
	assert_true(json_is_null(json_object_get(info, "created_at")));
	json_decref(info);
	FAILS(CELL_E_INVALID, "already exists", cell__workflow_create(store, "older", SOURCE, strlen(SOURCE), NULL, false, NULL, &err));
	OK(cell__workflow_delete(store, "forecast", NULL, &err));
	expect_workflows(store, "older");
	redis_do("SET %s %s", redis_key(folder, "artifacts:report.txt"), "hello");
	redis_do("HSET %s report.txt %s", redis_key(folder, "artifacts:__index__"),
		 "{\"description\": \"d\", \"created_at\": \"2024-01-02T03:04:05+00:00\", \"metadata\": {\"_data_type\": \"text\"}}");
	redis_do("HSET %s gone %s", redis_key(folder, "artifacts:__index__"), "{}");
	redis_do("SET %s x", redis_key(folder, "artifacts:unknown"));
	expect_artifacts(store, "report.txt");
	OK(cell__artifact_get(store, "report.txt", &info, &err));
	assert_string_equal(text_of(info, "description"), "d");
	assert_int_equal(json_integer_value(json_object_get(info, "size")), 5);
	json_decref(info);
	FAILS(CELL_E_NOT_FOUND, "'gone'", cell__artifact_get(store, "gone", &info, &err));
	FAILS(CELL_E_NOT_FOUND, "'unknown'", cell__artifact_get(store, "unknown", &info, &err));
	redis_do("SADD %s pandas>=2 My_Pkg", redis_key(folder, "deps"));
	redis_do("SADD %s six pandas", redis_key(folder, "deps:deps"));
	redis_do("SADD %s -e", redis_key(folder, "deps"));
	json_t *list = NULL, *problems = NULL;
	OK(cell__deps_list(store, &list, &problems, &err));
	CELL_AUTO_FREE char *text = json_dumps(list, JSON_COMPACT);
	assert_string_equal(text, "[\"my-pkg\",\"pandas>=2\",\"six\"]");
	assert_int_equal(json_array_size(problems), 1);
	assert_string_equal(text_of(json_array_get(problems, 0), "text"), "-e");
	json_decref(list);
	json_decref(problems);
	json_t *specs = json_pack("[s, s]", "my-pkg==2", "attrs");
	OK(cell__deps_add_all(store, specs, &err));
	json_decref(specs);
	redis_expect("0", "SISMEMBER %s My_Pkg", redis_key(folder, "deps"));
	redis_expect("1", "SISMEMBER %s my-pkg==2", redis_key(folder, "deps"));
	redis_expect("1", "SISMEMBER %s attrs", redis_key(folder, "deps"));
	bool removed = false;
	OK(cell__deps_remove(store, "pandas", &removed, &err));
	assert_true(removed);
	redis_expect("1", "SCARD %s", redis_key(folder, "deps:deps"));
}

static void test_layout(void **state)
{
	struct folder *folder = *state;
	OK(create(folder->store, "w", "Words", &err));
	OK(save(folder->store, "a/b", "raw", 3, &err));
	OK(cell__deps_add(folder->store, "six", &err));
	redis_expect("hash", "TYPE %s", redis_key(folder, "workflows:__workflows__"));
	redis_expect("raw", "GET %s", redis_key(folder, "artifacts:a/b"));
	redis_expect("1", "HEXISTS %s a/b", redis_key(folder, "artifacts:__index__"));
	redis_expect("1", "SISMEMBER %s six", redis_key(folder, "deps"));
	redis_expect("-1", "TTL %s", redis_key(folder, "artifacts:a/b"));
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "HGET %s w", redis_key(folder, "workflows:__workflows__"));
	cell__redis_add(&batch, "HGET %s a/b", redis_key(folder, "artifacts:__index__"));
	OK(cell__redis_run(folder->store->redis, &batch, CELL__REDIS_AGAIN, false, &replies, &err));
	json_t *value = json_loads(replies.list[0]->str, 0, NULL), *entry = json_loads(replies.list[1]->str, 0, NULL);
	assert_string_equal(text_of(value, "name"), "w");
	assert_string_equal(text_of(value, "description"), "Words");
	assert_string_equal(text_of(value, "source"), SOURCE);
	assert_string_equal(text_of(json_array_get(json_object_get(value, "parameters"), 0), "type"), "string");
	assert_string_equal(text_of(json_object_get(entry, "metadata"), "_data_type"), "bytes");
	assert_int_equal(strlen(text_of(entry, "created_at")), 32);
	json_decref(value);
	json_decref(entry);
}

/* ---- large artifacts ---- */

#define LARGE ((size_t)CELL__REDIS_WHOLE_BYTES + CELL__REDIS_CHUNK_BYTES / 2)

static char *make_large(char c)
{
	char *data = malloc(LARGE);
	for (size_t i = 0; i < LARGE; i++)
		data[i] = (char)(c + i / 1000 % 20);
	return data;
}

static void expect_bytes(struct cell__artifact_reader *reader, const char *data, int64_t offset, size_t size)
{
	CELL_AUTO_FREE char *got = malloc(size);
	struct cell_error err = { 0 };
	ssize_t n = cell__artifact_pread(reader, got, size, offset, &err);
	if (n != (ssize_t)size)
		fail_msg("%zd: %s", n, err.msg);
	assert_memory_equal(got, data + offset, size);
}

static void test_chunks(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	CELL_AUTO_FREE char *data = make_large('a'), *other = make_large('b');
	struct cell__artifact_reader *reader = NULL;
	struct cell__artifact_writer *writer = NULL;
	char buf[10];
	OK(save(store, "exact", data, CELL__REDIS_WHOLE_BYTES, &err));
	redis_expect("string", "TYPE %s", redis_key(folder, "artifacts:exact"));
	OK(save(store, "large", data, LARGE, &err));
	redis_expect("hash", "TYPE %s", redis_key(folder, "artifacts:large"));
	redis_expect("-1", "TTL %s", redis_key(folder, "artifacts:large"));
	expect_artifacts(store, "exact large");
	OK(cell__artifact_open(store, "large", &reader, &err));
	assert_int_equal(cell__artifact_reader_size(reader), LARGE);
	assert_int_equal(cell__artifact_pread_cached(reader, buf, 10, 0), -1);
	expect_bytes(reader, data, 0, LARGE);
	expect_bytes(reader, data, CELL__REDIS_CHUNK_BYTES - 3, 7);
	expect_bytes(reader, data, (int64_t)LARGE - 5, 5);
	assert_int_equal(cell__artifact_pread(reader, buf, 10, LARGE, NULL), 0);
	/* Replaced by another large one, in the middle: it says so, and never mixes the two. */
	OK(save(store, "large", other, LARGE, &err));
	FAILS(CELL_E_IO, "changed", (int)cell__artifact_pread(reader, buf, 10, 0, &err));
	cell__artifact_reader_close(reader);
	OK(cell__artifact_open(store, "large", &reader, &err));
	OK(cell__artifact_delete(store, "large", NULL, &err));
	FAILS(CELL_E_IO, "changed", (int)cell__artifact_pread(reader, buf, 10, 0, &err));
	cell__artifact_reader_close(reader);
	/* Given up half way: what was sent expires, and is gone with the next save. */
	OK(cell__artifact_begin(store, "half", &writer, &err));
	OK(cell__artifact_write(writer, data, LARGE, &err));
	assert_int_equal(redis_count("*__tmp__*"), 1);
	cell__artifact_abort(writer);
	OK(save(store, "small", "x", 1, &err));
	assert_int_equal(redis_count("*__tmp__*"), 0);
	expect_artifacts(store, "exact small");
	/* Its chunks vanish before it is complete. */
	OK(cell__artifact_begin(store, "half", &writer, &err));
	OK(cell__artifact_write(writer, data, LARGE, &err));
	redis_do("EVAL %s 0", "for _, k in ipairs(redis.call('KEYS', '*__tmp__*')) do redis.call('DEL', k) end return 1");
	FAILS(CELL_E_IO, "removed from Redis", cell__artifact_commit(writer, "bytes", "", NULL, NULL, &err));
	expect_artifacts(store, "exact small");
}

/* A string past the size that we keep whole, as the reference writes them. */
static void test_large_string_of_others(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FREE char *data = make_large('c');
	struct cell__artifact_reader *reader = NULL;
	char buf[10];
	redis_do("SET %s %b", redis_key(folder, "artifacts:s"), data, LARGE);
	redis_do("HSET %s s %s", redis_key(folder, "artifacts:__index__"), "{\"description\": \"one\"}");
	OK(cell__artifact_open(folder->store, "s", &reader, &err));
	expect_bytes(reader, data, 0, LARGE);
	assert_string_equal(text_of(json_object_get(cell__artifact_reader_info(reader), "metadata"), "_data_type"), "text");
	redis_do("HSET %s s %s", redis_key(folder, "artifacts:__index__"), "{\"description\": \"two\"}");
	FAILS(CELL_E_IO, "changed", (int)cell__artifact_pread(reader, buf, 10, 0, &err));
	cell__artifact_reader_close(reader);
}

/* ---- in step ---- */

static void test_two_instances(void **state)
{
	struct folder *folder = *state;
	struct cell__store *other = NULL, *scoped = NULL;
	OK(cell__store_open(folder->base, NULL, &other, &err));
	OK(cell__store_open(folder->base, "w1", &scoped, &err));
	expect_found(other, "thunder", "");
	for (int i = 0; i < 20; i++) {
		char name[16];
		snprintf(name, sizeof name, "w%02d", i);
		OK(create(folder->store, name, "Hears thunder", &err));
		json_t *list = NULL;
		OK(cell__workflow_search(other, "thunder", 100, &list, &err));
		assert_int_equal(json_array_size(list), i + 1);
		json_decref(list);
	}
	/* By a client that knows nothing of us: the same number of fields, another value. */
	redis_do("HSET %s w00 %s", redis_key(folder, "workflows:__workflows__"), VALUE("Sees lightning"));
	expect_found(other, "lightning", "w00");
	expect_found(folder->store, "lightning", "w00");
	expect_found(scoped, "lightning", "");
	redis_do("DEL %s", redis_key(folder, "workflows:__workflows__"));
	expect_found(other, "thunder", "");
	expect_workflows(folder->store, "");
	OK(create(scoped, "own", "Thunder in a workspace", &err));
	expect_found(scoped, "thunder", "own");
	expect_found(other, "thunder", "");
	/* Nothing changed: nothing is read but the answer to one question. */
	OK(create(folder->store, "one", "x", &err));
	expect_workflows(other, "one");
	redis_do("CONFIG RESETSTAT");
	for (int i = 0; i < 5; i++)
		expect_workflows(other, "one");
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "INFO commandstats");
	OK(cell__redis_run(other->redis, &batch, CELL__REDIS_AGAIN, false, &replies, &err));
	assert_non_null(strstr(replies.list[0]->str, "cmdstat_client|info:calls=5"));
	assert_null(strstr(replies.list[0]->str, "cmdstat_hkeys"));
	cell__store_close(other);
	cell__store_close(scoped);
}

/* ---- hostile data ---- */

static void test_wrong_types(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	static const char *const keys[] = { "workflows:__workflows__", "skills:__skills__", "artifacts:__index__", "deps", "deps:deps" };
	json_t *list = NULL, *info = NULL;
	for (size_t i = 0; i < COUNT(keys); i++)
		redis_do("LPUSH %s x", redis_key(folder, keys[i]));
	FAILS(CELL_E_IO, "a value of another type under a key", cell__workflow_list(store, &list, NULL, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__workflow_search(store, "x", 5, &list, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__workflow_get(store, "w", &info, &err));
	FAILS(CELL_E_IO, "a value of another type", create(store, "w", "x", &err));
	FAILS(CELL_E_IO, "a value of another type", cell__workflow_delete(store, "w", NULL, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__artifact_list(store, &list, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__artifact_get(store, "a", &info, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__artifact_delete(store, "a", NULL, &err));
	FAILS(CELL_E_IO, "a value of another type", save(store, "a", "x", 1, &err));
	redis_expect("0", "EXISTS %s", redis_key(folder, "artifacts:a")); /* nothing half */
	FAILS(CELL_E_IO, "a value of another type", cell__deps_list(store, &list, NULL, &err));
	FAILS(CELL_E_IO, "a value of another type", cell__deps_add(store, "six", &err));
}

static void test_broken_values(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	CELL_AUTO_FREE char *workflows = strdup(redis_key(folder, "workflows:__workflows__"));
	static const char *const broken[] = { "",
					      "{",
					      "null",
					      "[]",
					      "{}",
					      "{\"source\": 5}",
					      "{\"source\": \"\"}",
					      "\xff\xfe",
					      "{\"source\": \"def run(): pass\\u0000\"}",
					      "{\"source\": \"x = 1\"}" };
	for (size_t i = 0; i < COUNT(broken); i++) {
		char name[8];
		json_t *info = NULL;
		snprintf(name, sizeof name, "b%zu", i);
		redis_do("HSET %s %s %s", workflows, name, broken[i]);
		struct cell_error err = { 0 };
		assert_int_equal(cell__workflow_get(store, name, &info, &err), -1);
		assert_true(err.code == CELL_E_IO || err.code == CELL_E_INVALID);
		assert_non_null(strstr(err.msg, name));
	}
	redis_do("HSET %s %b %s", workflows, "n\0l", (size_t)3, VALUE("x"));
	redis_do("HSET %s ../x %s", workflows, VALUE("x"));
	redis_do("HSET %s odd {\"source\":\"def\\u0020run():pass\",\"description\":[1],\"created_at\":{}}", workflows);
	redis_do("EVAL %s 1 %s", "return redis.call('HSET', KEYS[1], 'huge', string.rep('x', 9 * 1024 * 1024))", workflows);
	OK(create(store, "good", "x", &err));
	json_t *list = NULL, *problems = NULL;
	OK(cell__workflow_list(store, &list, &problems, &err));
	expect_names(list, "good odd");
	assert_int_equal(json_array_size(problems), COUNT(broken) + 1);
	json_decref(problems);

	CELL_AUTO_FREE char *index = strdup(redis_key(folder, "artifacts:__index__"));
	static const char *const entries[] = {
		"", "{", "[]", "5", "{\"metadata\": 5}", "{\"description\": [], \"metadata\": {\"_data_type\": 1}}"
	};
	for (size_t i = 0; i < COUNT(entries); i++) {
		char key[32], name[8];
		snprintf(name, sizeof name, "a%zu", i);
		snprintf(key, sizeof key, "artifacts:%s", name);
		redis_do("SET %s text", redis_key(folder, key));
		redis_do("HSET %s %s %s", index, name, entries[i]);
		struct cell__artifact_reader *reader = NULL;
		OK(cell__artifact_open(store, name, &reader, &err));
		json_t *info = cell__artifact_reader_info(reader);
		assert_string_equal(text_of(json_object_get(info, "metadata"), "_data_type"), "text");
		assert_string_equal(text_of(info, "description"), "");
		cell__artifact_reader_close(reader);
	}
	redis_do("HSET %s ../../etc/passwd {} /abs {} %b {}", index, "n\0l", (size_t)3);
	redis_do("EVAL %s 1 %s", "return redis.call('HSET', KEYS[1], 'wide', string.rep('x', 9 * 1024 * 1024))", index);
	redis_do("HSET %s listed {} zset {}", index);
	redis_do("LPUSH %s x", redis_key(folder, "artifacts:listed"));
	static const char *const chunked[] = { "size 5", "size x chunk_bytes 1 version v",
					       "size -1 chunk_bytes 1 version 0123456789abcdef0123456789abcdef",
					       "size 5 chunk_bytes 0 version 0123456789abcdef0123456789abcdef",
					       "size 99999999999999999999 chunk_bytes 1 version 0123456789abcdef0123456789abcdef" };
	for (size_t i = 0; i < COUNT(chunked); i++) {
		char command[200];
		struct cell__artifact_reader *reader = NULL;
		redis_do("DEL %s", redis_key(folder, "artifacts:zset"));
		snprintf(command, sizeof command, "HSET %s %s", redis_key(folder, "artifacts:zset"), chunked[i]);
		redis_do(command);
		FAILS(CELL_E_IO, "is not an artifact", cell__artifact_open(store, "zset", &reader, &err));
	}
	/* Chunks that are missing, or not as long as they must be. */
	char buf[8];
	struct cell__artifact_reader *reader = NULL;
	redis_do("HSET %s size 5 chunk_bytes 2 version 0123456789abcdef0123456789abcdef 0 ab 1 cde", redis_key(folder, "artifacts:zset"));
	OK(cell__artifact_open(store, "zset", &reader, &err));
	FAILS(CELL_E_IO, "is not an artifact", (int)cell__artifact_pread(reader, buf, 5, 0, &err));
	cell__artifact_reader_close(reader);
	OK(cell__artifact_list(store, &list, &err));
	expect_names(list, "a0 a1 a2 a3 a4 a5 zset");
}

/* ---- down, and up again ---- */

static int ping(struct cell__store *store, enum cell__redis_retry retry)
{
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "PING");
	return cell__redis_run(store->redis, &batch, retry, false, &replies, NULL);
}

static void test_down(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	json_t *list = NULL;
	glob_t found;
	struct stat cache, after;
	OK(create(store, "before", "x", &err));
	expect_workflows(store, "before");
	assert_int_equal(glob(in(folder, "stores/*/.cache/search.sqlite"), 0, NULL, &found), 0);
	assert_int_equal(stat(found.gl_pathv[0], &cache), 0);
	redis_kill();
	FAILS(CELL_E_STORAGE, redis_socket(), create(store, "w", "x", &err));
	FAILS(CELL_E_STORAGE, "is it running there?", cell__artifact_list(store, &list, &err));
	FAILS(CELL_E_STORAGE, redis_socket(), cell__workflow_list(store, &list, NULL, &err));
	FAILS(CELL_E_STORAGE, redis_socket(), cell__workflow_search(store, "x", 5, &list, &err));
	store->redis->down_until_us = cell__now_us() + 3600 * INT64_C(1000000); /* it is left alone for long */
	assert_int_equal(ping(store, CELL__REDIS_PROBE), -1);
	assert_int_equal(redis_restart(), 0);
	assert_int_equal(ping(store, CELL__REDIS_AGAIN), -1);
	assert_int_equal(ping(store, CELL__REDIS_PROBE), 0); /* its answer ends that */
	OK(create(store, "after", "x", &err));
	expect_workflows(store, "after before");
	/* The index is not made anew because the server was away. */
	assert_int_equal(stat(found.gl_pathv[0], &after), 0);
	assert_int_equal(after.st_ino, cache.st_ino);
	globfree(&found);
	/* Restarted in between: connections that were kept are known to be dead. */
	redis_kill();
	assert_int_equal(redis_restart(), 0);
	bool deleted = false;
	OK(cell__workflow_delete(store, "after", &deleted, &err));
	assert_true(deleted);
	expect_workflows(store, "before");
}

/* Saves and says so, for ever: what it said must be there. */
static void save_and_tell(const char *url, int fd)
{
	struct cell__store *store = NULL;
	CHECK(cell__store_open(url, NULL, &store, NULL) == 0);
	for (int i = 0;; i++) {
		char name[16];
		struct cell_error err = { 0 };
		snprintf(name, sizeof name, "n%d", i);
		/* The server is away for longer than one operation waits, perhaps: that is an error, not a loss. */
		if (save(store, name, &i, sizeof i, &err) == 0 && create(store, name, name, &err) == 0)
			CHECK(write(fd, &i, sizeof i) == sizeof i);
	}
}

static void test_killed_while_writing(void **state)
{
	struct folder *folder = *state;
	int ends[2], last = -1, n = 0, said[1000];
	assert_int_equal(pipe(ends), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		save_and_tell(folder->base, ends[1]);
	close(ends[1]);
	for (int round = 0; round < 5; round++) {
		/* A few are told, then it dies wherever it is. */
		for (int i = 0; i < 7; i++) {
			assert_int_equal(read(ends[0], &last, sizeof last), sizeof last);
			said[n++] = last;
		}
		redis_kill();
		assert_int_equal(redis_restart(), 0);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	while (n < 1000 && read(ends[0], &last, sizeof last) == sizeof last)
		said[n++] = last;
	close(ends[0]);
	for (int i = 0; i < n; i++) {
		char name[16];
		int got = -1;
		struct cell__artifact_reader *reader = NULL;
		json_t *info = NULL;
		snprintf(name, sizeof name, "n%d", said[i]);
		OK(cell__artifact_open(folder->store, name, &reader, &err));
		assert_int_equal(cell__artifact_pread(reader, &got, sizeof got, 0, NULL), sizeof got);
		assert_int_equal(got, said[i]);
		cell__artifact_reader_close(reader);
		OK(cell__workflow_get(folder->store, name, &info, &err));
		json_decref(info);
	}
	/* Every entry has its payload: nothing is half there. */
	json_t *list = NULL;
	OK(cell__artifact_list(folder->store, &list, &err));
	char count[16];
	snprintf(count, sizeof count, "%zu", json_array_size(list));
	redis_expect(count, "HLEN %s", redis_key(folder, "artifacts:__index__"));
	json_decref(list);
}

static void test_no_memory_left(void **state)
{
	struct folder *folder = *state;
	OK(save(folder->store, "a", "old", 3, &err));
	redis_do("CONFIG SET maxmemory 1");
	FAILS(CELL_E_IO, "maxmemory", save(folder->store, "a", "new", 3, &err));
	FAILS(CELL_E_IO, "maxmemory", create(folder->store, "w", "x", &err));
	redis_do("CONFIG SET maxmemory 0");
	redis_expect("old", "GET %s", redis_key(folder, "artifacts:a"));
}

/* ---- who is let in ---- */

static void test_users(void **state)
{
	struct folder *folder = *state;
	static const struct {
		const char *login, *says;
	} rows[] = {
		{ "bob:s3cret%40@", NULL },
		{ "bob:wrong@", "refuses the user or password" },
		{ "eve:s3cret%40@", "refuses the user or password" },
		{ "reader:s3cret%40@", "does not allow this user" },
		{ "", "requires a password" },
	};
	char rule[300];
	snprintf(rule, sizeof rule, "ACL SETUSER bob on >s3cret@ ~%s:* resetchannels +@read +@write +@connection +@transaction +@scripting",
		 folder->path + 5);
	redis_do(rule);
	snprintf(rule, sizeof rule, "ACL SETUSER reader on >s3cret@ ~%s:* +@read +@connection +@transaction", folder->path + 5);
	redis_do(rule);
	redis_do("ACL SETUSER admin on nopass ~* +@all");
	redis_do("ACL SETUSER default resetpass >other"); /* connections that are open stay in */
	for (size_t i = 0; i < COUNT(rows); i++) {
		char url[400];
		struct cell__store *store = NULL;
		struct cell_error err = { 0 };
		snprintf(url, sizeof url, "redis+unix://%s%s?prefix=%s", rows[i].login, redis_socket(), folder->path + 5);
		assert_int_equal(cell__store_open(url, NULL, &store, NULL), 0);
		assert_null(strstr(cell__store_root(store), "s3cret"));
		int rc = create(store, "w", "x", &err);
		assert_int_equal(rc, rows[i].says ? -1 : 0);
		if (rc < 0 &&
		    (err.code != CELL_E_IO || !strstr(err.msg, rows[i].says) || strstr(err.msg, "s3cret") || strstr(err.msg, "wrong")))
			fail_msg("%s: %s", rows[i].login, err.msg);
		if (rc == 0)
			expect_found(store, "forecasts", "w");
		cell__store_close(store);
	}
	char url[400];
	struct cell__store *store = NULL;
	snprintf(url, sizeof url, "redis+unix://admin:x@%s", redis_socket());
	OK(cell__store_open(url, NULL, &store, &err));
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	cell__redis_add(&batch, "ACL SETUSER default nopass");
	OK(cell__redis_run(store->redis, &batch, CELL__REDIS_AGAIN, false, &replies, &err));
	cell__store_close(store);
}

/* ---- a server that lies, or hangs up ---- */

struct liar {
	int listener;
	const char *says;  /* to everything; NULL: hangs up */
	atomic_int heard;  /* how many requests */
	atomic_bool stop;
	char path[64];
	pthread_t thread;
};

/* Hears one request and says its piece; false: hangs up. */
static bool answer_lie(struct liar *liar, int fd)
{
	static char buf[65536];
	if (recv(fd, buf, sizeof buf, 0) <= 0)
		return false;
	liar->heard++;
	return liar->says && send(fd, liar->says, strlen(liar->says), MSG_NOSIGNAL) > 0;
}

static void *lie(void *arg)
{
	struct liar *liar = arg;
	struct pollfd fds[16] = { { .fd = liar->listener, .events = POLLIN } };
	nfds_t n = 1;
	while (!liar->stop && poll(fds, n, -1) >= 0) {
		for (nfds_t i = 1; i < n; i++)
			if (fds[i].revents && !answer_lie(liar, fds[i].fd)) {
				close(fds[i].fd);
				fds[i--] = fds[--n];
			}
		if (fds[0].revents & POLLIN && n < COUNT(fds))
			fds[n++] = (struct pollfd){ .fd = accept(liar->listener, NULL, NULL), .events = POLLIN };
	}
	while (n > 1)
		if (fds[--n].fd >= 0)
			close(fds[n].fd);
	return NULL;
}

static struct cell__store *begin_lies(struct liar *liar, const char *says)
{
	static int number;
	struct cell__store *store = NULL;
	char url[128];
	*liar = (struct liar){ .says = says, .listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	snprintf(liar->path, sizeof liar->path, "/tmp/cell-liar-%d-%d", (int)getpid(), number++);
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strcpy(address.sun_path, liar->path);
	assert_int_equal(bind(liar->listener, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(liar->listener, 10), 0);
	assert_int_equal(pthread_create(&liar->thread, NULL, lie, liar), 0);
	snprintf(url, sizeof url, "redis+unix://%s", liar->path);
	OK(cell__store_open(url, NULL, &store, &err));
	return store;
}

static void end_lies(struct liar *liar, struct cell__store *store)
{
	liar->stop = true;
	cell__store_close(store);
	shutdown(liar->listener, SHUT_RDWR);
	pthread_join(liar->thread, NULL);
	close(liar->listener);
	unlink(liar->path);
}

static void test_lost_answers(void **state)
{
	(void)state;
	struct liar liar;
	struct cell__store *store = begin_lies(&liar, NULL);
	/* What would not come to the same is asked once. */
	FAILS(CELL_E_STORAGE, "it is unknown whether this was done", cell__workflow_delete(store, "w", NULL, &err));
	assert_int_equal(liar.heard, 1);
	FAILS(CELL_E_STORAGE, "it is unknown whether this was done", cell__artifact_delete(store, "a", NULL, &err));
	assert_int_equal(liar.heard, 2);
	FAILS(CELL_E_STORAGE, liar.path, create(store, "w", "x", &err));
	assert_true(liar.heard > 4);
	end_lies(&liar, store);
}

static void test_lies(void **state)
{
	(void)state;
	static const char *const says[] = {
		"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
		":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
		"*1000000000\r\n",
		"$-5\r\n$-5\r\n$-5\r\n$-5\r\n$-5\r\n$-5\r\n",
		"what?\r\n",
		"*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n:1\r\n",
		"-ERR \x1b[31m\xff what\r\n-ERR x\r\n-ERR x\r\n-ERR x\r\n-ERR x\r\n-ERR x\r\n",
		"*-1\r\n*-1\r\n*-1\r\n*-1\r\n*-1\r\n*-1\r\n",
		"*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n",
		"$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
	};
	for (size_t i = 0; i < COUNT(says); i++) {
		struct liar liar;
		struct cell__store *store = begin_lies(&liar, says[i]);
		json_t *out = NULL;
		bool yes;
		struct cell_error err = { 0 };
		struct cell__artifact_reader *reader = NULL;
		/* Whatever it says: an answer or an error, and no more than that. */
		if (cell__workflow_list(store, &out, NULL, &err) == 0)
			json_decref(cell__take_ptr(out));
		else
			assert_true(err.code == CELL_E_PROTOCOL || err.code == CELL_E_IO);
		assert_true(cell__utf8_ok(err.msg, strlen(err.msg)));
		assert_null(strchr(err.msg, '\x1b'));
		assert_int_equal(cell__workflow_get(store, "w", &out, NULL), -1);
		assert_int_equal(cell__artifact_open(store, "a", &reader, NULL), -1);
		if (cell__artifact_list(store, &out, NULL) == 0)
			json_decref(cell__take_ptr(out));
		if (cell__deps_list(store, &out, NULL, NULL) == 0)
			json_decref(cell__take_ptr(out));
		(void)cell__artifact_exists(store, "a", &yes, NULL);
		end_lies(&liar, store);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_urls),
		BOTH_TEST(test_data_of_others),
		BOTH_TEST(test_layout),
		BOTH_TEST(test_chunks),
		BOTH_TEST(test_large_string_of_others),
		BOTH_TEST(test_two_instances),
		BOTH_TEST(test_wrong_types),
		BOTH_TEST(test_broken_values),
		BOTH_TEST(test_down),
		BOTH_TEST(test_killed_while_writing),
		BOTH_TEST(test_no_memory_left),
		BOTH_TEST(test_users),
		TEST(test_lost_answers),
		TEST(test_lies),
	};
	if (redis_start() < 0)
		return 1;
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	redis_stop();
	return rc;
}
