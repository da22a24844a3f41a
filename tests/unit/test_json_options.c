/* Options in JSON (engine/json_options.h): each kind of member, and what is refused. */
#include "support.h"

#include <jansson.h>

#include "engine/json_options.h"

struct sample {
	const char *text;
	int number;
	int64_t large;
	int flag;
	const char *const *texts;
	const char *const *pairs;
};
#define ROW(member, kind) { #member, CELL__JSON_##kind, offsetof(struct sample, member) }
static const struct cell__json_field fields[] = {
	ROW(text, TEXT),
	ROW(number, INT),
	ROW(large, INT64),
	ROW(flag, FLAG),
	ROW(texts, TEXTS),
	ROW(pairs, PAIRS),
	{ "other", CELL__JSON_OTHER, 0 },
	{ NULL, 0, 0 },
};

static int read_sample(const char *text, struct sample *ret, struct cell__json_memory *memory, struct cell_error *err)
{
	json_t *object = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
	assert_non_null(object);
	int rc = cell__json_read(object, "\"options\"", fields, ret, memory, err);
	/* Texts are the JSON's. */
	if (rc == 0 && ret->text)
		assert_string_equal(ret->text, "a");
	json_decref(object);
	return rc;
}

static void test_kinds(void **state)
{
	(void)state;
	struct sample sample = { 0 };
	struct cell__json_memory memory = { 0 };
	struct cell_error err;
	assert_int_equal(read_sample("{\"text\":\"a\",\"number\":-2147483648,\"large\":9223372036854775807,\"flag\":true,\"other\":[],"
				     "\"pairs\":{\"K\":\"v=w\",\"E\":\"\"}}",
				     &sample, &memory, &err),
			 0);
	assert_int_equal(sample.number, -2147483647 - 1);
	assert_true(sample.large == INT64_MAX);
	assert_int_equal(sample.flag, 1);
	assert_null(sample.texts);
	/* Pairs are copies, in any order. */
	assert_null(sample.pairs[2]);
	assert_true(strcmp(sample.pairs[0], "K=v=w") == 0 || strcmp(sample.pairs[1], "K=v=w") == 0);
	cell__json_memory_finish(&memory);
	sample = (struct sample){ .number = 7, .flag = 1 };
	assert_int_equal(read_sample("{\"number\":null,\"text\":null,\"texts\":[]}", &sample, &memory, &err), 0);
	assert_int_equal(sample.number, 7);
	assert_null(sample.texts[0]);
	cell__json_memory_finish(&memory);
	cell__json_memory_finish(&memory);
}

static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *json, *message;
	} bad[] = {
		{ "[]", "\"options\" must be a JSON object" },
		{ "{\"txet\":1}", "\"options\" has no member \"txet\"; did you mean \"text\"?" },
		{ "{\"zzzzzz\":1}", "\"options\" has no member \"zzzzzz\"" },
		{ "{\"text\":1}", "\"text\" of \"options\" must be a string without NUL characters" },
		{ "{\"text\":\"a\\u0000\"}", "\"text\" of \"options\" must be a string without NUL characters" },
		{ "{\"number\":2147483648}", "\"number\" of \"options\" must be an integer of at most 32 bits" },
		{ "{\"number\":1.0}", "\"number\" of \"options\" must be an integer of at most 32 bits" },
		{ "{\"large\":\"1\"}", "\"large\" of \"options\" must be an integer" },
		{ "{\"flag\":1}", "\"flag\" of \"options\" must be true or false" },
		{ "{\"texts\":{}}", "\"texts\" of \"options\" must be an array of strings" },
		{ "{\"texts\":[\"a\",null]}", "\"texts\" of \"options\" must be an array of strings without NUL characters" },
		{ "{\"pairs\":[]}", "\"pairs\" of \"options\" must be an object of strings" },
		{ "{\"pairs\":{\"\":\"a\"}}",
		  "\"pairs\" of \"options\" must be an object of strings without NUL characters, with names without \"=\"" },
		{ "{\"pairs\":{\"a=b\":\"a\"}}",
		  "\"pairs\" of \"options\" must be an object of strings without NUL characters, with names without \"=\"" },
	};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct sample sample = { 0 };
		struct cell__json_memory memory = { 0 };
		struct cell_error err;
		assert_int_equal(read_sample(bad[i].json, &sample, &memory, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_string_equal(err.msg, bad[i].message);
		cell__json_memory_finish(&memory);
	}
}

/* Every allocation fails once. */
static void test_no_memory(void **state)
{
	(void)state;
	json_t *object = json_loads("{\"texts\":[\"a\"],\"pairs\":{\"K\":\"v\"}}", 0, NULL);
	int failed = 0, rc = -1;
	for (long n = 1; rc < 0; n++) {
		struct sample sample = { 0 };
		struct cell__json_memory memory = { 0 };
		struct cell_error err;
		cell__alloc_fail_after(n);
		rc = cell__json_read(object, "\"options\"", fields, &sample, &memory, &err);
		cell__alloc_fail_after(0);
		if (rc < 0) {
			assert_int_equal(err.code, CELL_E_NOMEM);
			failed++;
		}
		cell__json_memory_finish(&memory);
	}
	assert_true(failed >= 3);
	json_decref(object);
}

/* Requests that need no engine; NULL only when there is no memory. */
static void test_call(void **state)
{
	(void)state;
	struct cell_json *json = cell_json_create();
	char *text = cell_json_call(json, "{\"op\":\"version\"}");
	assert_string_equal(text, "{\"ok\":{\"version\":\"" CELL_VERSION "\"}}");
	cell_free(text);
	text = cell_json_call(json, NULL);
	assert_string_equal(text, "{\"error\":{\"code\":\"invalid\",\"message\":\"cell_json_call(): request is NULL\"}}");
	cell_free(text);
	text = NULL;
	for (long n = 1; !text; n++) {
		cell__alloc_fail_after(n);
		text = cell_json_call(json, "{\"op\":\"sessions\"}");
		cell__alloc_fail_after(0);
		if (text && strcmp(text, "{\"ok\":[]}") != 0) {
			assert_string_equal(text, "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory\"}}");
			cell_free(cell__take_ptr(text));
		}
	}
	cell_free(text);
	cell_json_destroy(json);
	cell_json_destroy(NULL);
	cell_free(NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_kinds),
		TEST(test_refused),
		TEST(test_no_memory),
		TEST(test_call),
	};
	support_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
