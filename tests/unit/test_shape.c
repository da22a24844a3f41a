/* wire/shape: types of results, made from results. */
#include "support.h"
#include "wire/shape.h"

static json_t *parse(const char *text)
{
	json_error_t error;
	json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
	if (!value)
		fail_msg("%s in %s", error.text, text);
	return value;
}

static json_t *shape_of(const char *text)
{
	json_t *value = parse(text), *shape = cell__shape_of(value);
	json_decref(value);
	assert_non_null(shape);
	assert_true(cell__shape_ok(shape));
	return shape;
}

static void assert_text(const json_t *shape, size_t max, const char *expected)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	assert_int_equal(cell__shape_text(shape, max, &text), 0);
	assert_string_equal(text.data, expected);
	assert_true(text.size <= max);
}

static void assert_shape(const char *value, const char *expected)
{
	json_t *shape = shape_of(value);
	assert_text(shape, 500, expected);
	json_decref(shape);
}

static void assert_merged(const char *a, const char *b, const char *expected)
{
	json_t *x = shape_of(a), *y = shape_of(b), *both = cell__shape_merge(x, y), *turned = cell__shape_merge(y, x);
	assert_text(both, 500, expected);
	assert_true(json_equal(both, turned));
	assert_true(cell__shape_ok(both));
	json_t *again = cell__shape_merge(both, x);
	assert_true(json_equal(both, again));
	json_decref(x);
	json_decref(y);
	json_decref(both);
	json_decref(turned);
	json_decref(again);
}

static void test_values(void **state)
{
	(void)state;
	assert_shape("1", "int");
	assert_shape("1.5", "float");
	assert_shape("\"secret\"", "str");
	assert_shape("true", "bool");
	assert_shape("null", "None");
	assert_shape("[]", "list");
	assert_shape("[1, 2]", "[int]");
	assert_shape("[1, 2.5, null]", "[float | None]");
	assert_shape("{}", "{}");
	assert_shape("{\"id\": 7, \"tags\": [\"a\"], \"user\": {\"name\": \"x\"}}", "{id: int, tags: [str], user: {name: str}}");
	assert_shape("[{\"a\": 1}, {\"a\": 2, \"b\": \"x\"}]", "[{a: int, b?: str}]");
}

static void test_merges(void **state)
{
	(void)state;
	assert_merged("{\"a\": 1}", "{\"a\": \"x\"}", "{a: str | int}");
	assert_merged("{\"a\": 1, \"b\": 1}", "{\"a\": 2}", "{a: int, b?: int}");
	assert_merged("{\"a\": 1}", "{\"a\": 1.5}", "{a: float}");
	assert_merged("{\"a\": []}", "{\"a\": [1]}", "{a: [int]}");
	assert_merged("{\"a\": null}", "{\"a\": {\"b\": 1}}", "{a: None | {b: int}}");
	assert_merged("[1]", "{\"b\": 1}", "{b: int} | [int]");
	assert_merged("\"text\"", "{\"b\": 1}", "str | {b: int}");
	assert_merged("{}", "{\"b\": 1}", "{b?: int}");
}

/* Keys that may be values are not kept. */
static void test_keys_that_are_data(void **state)
{
	(void)state;
	assert_shape("{\"alice@example.com\": 1}", "{str: int}");
	assert_shape("{\"+49 30 1234\": {\"name\": \"x\"}}", "{str: {name: str}}");
	assert_shape("{\"a1b2c3d4e5\": 1}", "{str: int}");
	assert_shape("{\"\": 1}", "{str: int}");
	assert_shape("{\"sha256\": \"x\", \"@id\": 1, \"$ref\": \"y\", \"content-type\": \"z\"}",
		     "{sha256: str, @id: int, $ref: str, content-type: str}");
	assert_shape("{\"line\\nbreak\": 1}", "{str: int}");
	assert_shape("{\"x; import os\": 1}", "{str: int}");
	assert_shape("{\"caf\xc3\xa9\": 1}", "{str: int}");
	/* Alike values under names that differ. */
	assert_merged("{\"alice\": 1}", "{\"bob\": 2}", "{str: int}");
	assert_merged("{\"alice\": 1}", "{\"bob\": \"x\"}", "{alice?: int, bob?: str}");
	char name[CELL_SHAPE_LIMIT_NAME + 2], text[100];
	memset(name, 'a', sizeof name);
	name[CELL_SHAPE_LIMIT_NAME] = '\0';
	snprintf(text, sizeof text, "{\"%s\": 1}", name);
	json_t *shape = shape_of(text);
	assert_non_null(json_object_get(json_object_get(shape, "properties"), name));
	json_decref(shape);
	snprintf(text, sizeof text, "{\"%sa\": 1}", name);
	assert_shape(text, "{str: int}");
}

static json_t *wide(size_t n)
{
	json_t *value = json_object();
	for (size_t i = 0; i < n; i++) {
		char name[20];
		snprintf(name, sizeof name, "f%zu", i);
		json_object_set_new(value, name, json_integer((json_int_t)i));
	}
	return value;
}

static void test_limits(void **state)
{
	(void)state;
	json_t *value = wide(CELL_SHAPE_LIMIT_FIELDS), *shape = cell__shape_of(value);
	assert_int_equal(json_object_size(json_object_get(shape, "properties")), CELL_SHAPE_LIMIT_FIELDS);
	json_decref(shape);
	json_decref(value);
	value = wide(CELL_SHAPE_LIMIT_FIELDS + 1);
	shape = cell__shape_of(value);
	assert_text(shape, 100, "{str: int}");
	json_decref(shape);
	json_decref(value);
	/* Depth: the limit, and one more. */
	assert_shape("[[[[[[1]]]]]]", "[[[[[[int]]]]]]");
	assert_shape("[[[[[[[1]]]]]]]", "[[[[[[Any]]]]]]");
	/* Nodes: an object of objects of objects. */
	value = json_object();
	for (size_t i = 0; i < 20; i++) {
		char name[20];
		snprintf(name, sizeof name, "g%zu", i);
		json_object_set_new(value, name, wide(30));
	}
	shape = cell__shape_of(value);
	assert_true(cell__shape_ok(shape));
	assert_text(json_object_get(json_object_get(shape, "properties"), "g3"), 10, "Any");
	json_decref(shape);
	json_decref(value);
	/* A hundred thousand items, and a depth that a recursion without a limit would not survive. */
	value = json_array();
	for (size_t i = 0; i < 100000; i++)
		json_array_append_new(value, i < CELL_SHAPE_LIMIT_ITEMS ? json_integer(1) : json_string("x"));
	shape = cell__shape_of(value);
	assert_text(shape, 100, "[int]");
	json_decref(shape);
	json_decref(value);
	value = json_object();
	for (size_t i = 0; i < 1000; i++)
		value = json_pack("{s:o}", "next", value);
	shape = cell__shape_of(value);
	assert_true(cell__shape_ok(shape));
	json_decref(shape);
	json_decref(value);
}

static void test_texts_fit(void **state)
{
	(void)state;
	json_t *shape = shape_of("{\"id\": 1, \"user\": {\"name\": \"x\", \"groups\": [{\"title\": \"y\"}]}, \"note\": null}");
	assert_text(shape, 200, "{id: int, user: {name: str, groups: [{title: str}]}, note: None}");
	assert_text(shape, 60, "{id: int, user: {name: str, groups: [dict]}, note: None}");
	assert_text(shape, 40, "{id: int, user: dict, note: None}");
	assert_text(shape, 30, "{id: int, user: dict, ...}");
	assert_text(shape, 12, "dict");
	assert_text(shape, 3, "Any");
	json_decref(shape);
}

static void learn(json_t **entry, const char *value, bool expect_drift)
{
	json_t *shape = shape_of(value);
	bool drift;
	json_t *next = cell__shape_learn(*entry, shape, &drift);
	assert_true(cell__shape_entry_ok(next));
	assert_int_equal(drift, expect_drift);
	json_decref(*entry);
	json_decref(shape);
	*entry = next;
}

static void test_learning(void **state)
{
	(void)state;
	json_t *entry = NULL;
	learn(&entry, "{\"a\": 1}", false);
	learn(&entry, "{\"a\": 2, \"b\": \"x\"}", false);
	for (int i = 1; i < CELL_SHAPE_STABLE; i++) {
		assert_null(cell__shape_stable(entry));
		learn(&entry, "{\"a\": 3}", false);
	}
	assert_text(cell__shape_stable(entry), 100, "{a: int, b?: str}");
	learn(&entry, "{\"a\": 3, \"b\": \"z\"}", false);
	learn(&entry, "{\"a\": \"oops-secret\"}", true);
	assert_string_equal(json_string_value(json_object_get(entry, "drift")), "result.a: int became str | int");
	assert_text(cell__shape_stable(entry), 100, "{a: str | int, b?: str}");
	learn(&entry, "{\"a\": \"again\"}", false);
	learn(&entry, "{\"b\": \"again\"}", true);
	assert_string_equal(json_string_value(json_object_get(entry, "drift")), "result.a is missing at times");
	learn(&entry, "{\"a\": 1, \"c\": [{\"d\": 1}]}", true);
	assert_string_equal(json_string_value(json_object_get(entry, "drift")), "result.c is new");
	learn(&entry, "{\"a\": 1, \"c\": [{\"d\": null}]}", true);
	assert_string_equal(json_string_value(json_object_get(entry, "drift")), "result.c[].d: int became int | None");
	learn(&entry, "[]", true);
	assert_int_equal(json_integer_value(json_object_get(entry, "drifts")), 5);
	CELL_AUTO_FREE char *dump = json_dumps(entry, 0);
	assert_null(strstr(dump, "oops"));
	assert_null(strstr(dump, "again"));
	json_decref(entry);
}

/* A server whose answers differ without end: the shape ends as a map, and the drifts end. */
static void test_endless_changes_end(void **state)
{
	(void)state;
	json_t *entry = NULL;
	int drifts = 0;
	for (int i = 0; i < 3000; i++) {
		char text[100];
		bool drift;
		snprintf(text, sizeof text, "{\"%c%c\": {\"%c\": %s}}", 'a' + i % 26, 'a' + i / 26 % 26, 'a' + i % 7,
			 i % 3 ? "1" : "\"x\"");
		json_t *shape = shape_of(text), *next = cell__shape_learn(entry, shape, &drift);
		assert_true(cell__shape_entry_ok(next));
		drifts += drift;
		json_decref(entry);
		json_decref(shape);
		entry = next;
	}
	assert_true(drifts < 10);
	assert_non_null(cell__shape_stable(entry));
	json_decref(entry);
}

static void test_stored_entries_are_checked(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"[]",
		"{}",
		"{\"shape\": {}, \"same\": 0}",
		"{\"shape\": {}, \"same\": 4}",
		"{\"shape\": {}, \"same\": 3, \"x\": 1}",
		"{\"shape\": {\"type\": \"text\"}, \"same\": 3}",
		"{\"shape\": {\"type\": \"string\", \"const\": \"secret\"}, \"same\": 3}",
		"{\"shape\": {\"$ref\": \"#\"}, \"same\": 3}",
		"{\"shape\": {\"type\": \"object\", \"properties\": {\"a b\": {}}, \"required\": []}, \"same\": 3}",
		"{\"shape\": {\"type\": \"object\", \"properties\": {}, \"required\": [\"a\"]}, \"same\": 3}",
		"{\"shape\": {\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"a\", \"a\"]}, \"same\": 3}",
		"{\"shape\": {\"anyOf\": [{\"type\": \"string\"}]}, \"same\": 3}",
		"{\"shape\": {\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"string\"}]}, \"same\": 3}",
		"{\"shape\": {\"anyOf\": [{\"type\": \"string\"}, {}]}, \"same\": 3}",
		"{\"shape\": {}, \"same\": 3, \"drifts\": 1, \"drift\": \"\\u001b[31m\"}",
		"{\"shape\": {}, \"same\": 3, \"drifts\": 0, \"drift\": \"x\"}",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		json_t *entry = parse(bad[i]);
		if (cell__shape_entry_ok(entry))
			fail_msg("accepted %s", bad[i]);
		json_decref(entry);
	}
	json_t *good = parse("{\"shape\": {\"type\": \"array\"}, \"same\": 3, \"drifts\": 2, \"drift\": \"result: a became b\"}");
	assert_true(cell__shape_entry_ok(good));
	json_decref(good);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_merges),
		cmocka_unit_test(test_keys_that_are_data),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_texts_fit),
		cmocka_unit_test(test_learning),
		cmocka_unit_test(test_endless_changes_end),
		cmocka_unit_test(test_stored_entries_are_checked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
