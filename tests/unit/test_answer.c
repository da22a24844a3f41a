/* executor/answer: what RESULT and DISPLAY frames may say.  The kernel is hostile: everything else is a named problem. */
#include "support.h"

#include "executors/answer.h"

struct rig {
	struct cell_frame frame;
	uint8_t *json, *raw; /* of exactly the frame's sizes, so that a sanitizer sees a look past the end */
	struct cell__kernel_answer answer;
	struct cell__bundle bundle;
	json_t *memory;
};

static void rig_init(struct rig *rig, const char *json, size_t json_size, const char *raw, size_t raw_size)
{
	*rig = (struct rig){ 0 };
	rig->json = malloc(json_size ? json_size : 1);
	rig->raw = malloc(raw_size ? raw_size : 1);
	memcpy(rig->json, json, json_size);
	memcpy(rig->raw, raw, raw_size);
	rig->frame = (struct cell_frame){
		.type = CELL_FRAME_RESULT,
		.json = rig->json,
		.json_size = (uint32_t)json_size,
		.raw = rig->raw,
		.raw_size = (uint32_t)raw_size,
	};
}

static void rig_finish(struct rig *rig)
{
	json_decref(rig->memory);
	free(rig->json);
	free(rig->raw);
}

static const char *result_of(struct rig *rig, const char *json, const char *raw)
{
	rig_init(rig, json, strlen(json), raw, strlen(raw));
	return cell__answer_result(&rig->frame, &rig->answer, &rig->memory);
}

static const char *display_of(struct rig *rig, const char *json, const char *raw)
{
	rig_init(rig, json, strlen(json), raw, strlen(raw));
	return cell__answer_display(&rig->frame, &rig->bundle, &rig->memory);
}

static void assert_bytes(const char *bytes, size_t size, const char *wanted)
{
	assert_int_equal(size, strlen(wanted));
	assert_memory_equal(bytes, wanted, size);
}

/* ---- good ones ---- */

static void test_nothing(void **state)
{
	(void)state;
	static const char *const heads[] = { "", "{}", "{\"later\":[1]}", "{\"mime\":[]}" };
	for (size_t i = 0; i < COUNT(heads); i++) {
		struct rig rig;
		assert_null(result_of(&rig, heads[i], ""));
		assert_null(rig.answer.value_json);
		assert_null(rig.answer.repr);
		assert_int_equal(rig.answer.mime.n_parts, 0);
		assert_false(rig.answer.failed);
		rig_finish(&rig);
	}
}

static void test_value(void **state)
{
	(void)state;
	struct rig rig;
	assert_null(result_of(&rig, "{\"v\":1,\"r\":1}", "22"));
	assert_bytes(rig.answer.value_json, rig.answer.value_size, "2");
	assert_bytes(rig.answer.repr, rig.answer.repr_size, "2");
	rig_finish(&rig);
	/* An int that no JSON library would keep. */
	assert_null(result_of(&rig, "{\"v\":40,\"r\":3}", "1234567890123456789012345678901234567890big"));
	assert_bytes(rig.answer.value_json, rig.answer.value_size, "1234567890123456789012345678901234567890");
	assert_bytes(rig.answer.repr, rig.answer.repr_size, "big");
	rig_finish(&rig);
	assert_null(result_of(&rig, "{\"r\":0}", "")); /* repr() may be empty; that is not the same as none */
	assert_non_null(rig.answer.repr);
	assert_int_equal(rig.answer.repr_size, 0);
	rig_finish(&rig);
}

static void test_mime(void **state)
{
	(void)state;
	struct rig rig;
	assert_null(
		result_of(&rig, "{\"v\":2,\"r\":3,\"mime\":[[\"text/html\",4],[\"image/png\",3],[\"text/plain\",0]]}", "[]abc<b/>\x89PN"));
	assert_bytes(rig.answer.value_json, rig.answer.value_size, "[]");
	assert_bytes(rig.answer.repr, rig.answer.repr_size, "abc");
	assert_int_equal(rig.answer.mime.n_parts, 3);
	const struct cell_mime_part *parts = rig.answer.mime.parts;
	assert_string_equal(parts[0].type, "text/html");
	assert_bytes(parts[0].data, parts[0].size, "<b/>");
	assert_string_equal(parts[1].type, "image/png");
	assert_bytes(parts[1].data, parts[1].size, "\x89PN"); /* bytes need not be text */
	assert_string_equal(parts[2].type, "text/plain");
	assert_int_equal(parts[2].size, 0);
	rig_finish(&rig);
}

static void test_error(void **state)
{
	(void)state;
	struct rig rig;
	assert_null(result_of(&rig,
			      "{\"error\":{\"type\":\"E\",\"message\":\"m\\u00e9\",\"traceback\":\"t\","
			      "\"code\":\"exception\"}}",
			      ""));
	assert_true(rig.answer.failed);
	assert_false(rig.answer.interrupted);
	assert_string_equal(rig.answer.error_type, "E");
	assert_string_equal(rig.answer.error_message, "m\xc3\xa9");
	assert_string_equal(rig.answer.error_traceback, "t");
	rig_finish(&rig);
	assert_null(result_of(&rig,
			      "{\"error\":{\"type\":\"K\",\"message\":\"\",\"traceback\":\"\","
			      "\"code\":\"interrupted\",\"x\":1}}",
			      ""));
	assert_true(rig.answer.failed);
	assert_true(rig.answer.interrupted);
	rig_finish(&rig);
	/* Whatever the kernel claims, only these two words mean something. */
	assert_null(result_of(&rig,
			      "{\"error\":{\"type\":\"K\",\"message\":\"\",\"traceback\":\"\","
			      "\"code\":\"timeout\"}}",
			      ""));
	assert_true(rig.answer.failed);
	assert_false(rig.answer.interrupted);
	rig_finish(&rig);
}

static void test_display(void **state)
{
	(void)state;
	struct rig rig;
	assert_null(display_of(&rig,
			       "{\"mime\":[[\"text/plain\",2],[\"image/svg+xml\",3]],\"metadata\":{\"a\":1},"
			       "\"update\":true}",
			       "hi<s>"));
	assert_int_equal(rig.bundle.n_parts, 2);
	assert_bytes(rig.bundle.parts[0].data, rig.bundle.parts[0].size, "hi");
	assert_bytes(rig.bundle.parts[1].data, rig.bundle.parts[1].size, "<s>");
	rig_finish(&rig);
	assert_null(display_of(&rig, "", ""));
	assert_int_equal(rig.bundle.n_parts, 0);
	rig_finish(&rig);
}

/* ---- problems, each by its name ---- */

static void test_result_problems(void **state)
{
	(void)state;
	static const struct {
		const char *json, *raw, *problem;
	} rows[] = {
		{ "[]", "", "a JSON part that is not an object" },
		{ "1", "", "a JSON part that is not an object" },
		{ "{", "", "a JSON part that is not an object" },
		{ "{} {}", "", "a JSON part that is not an object" },
		{ "{\"v\":1,\"v\":1}", "1", "a JSON part that is not an object" },
		{ "{\"a\":\"\xff\"}", "", "a JSON part that is not an object" },
		{ "{\"v\":1e400}", "", "a JSON part that is not an object" },
		{ "{\"v\":99999999999999999999}", "", "a JSON part that is not an object" },
		{ "{\"v\":2}", "1", "a missing value" },
		{ "{\"v\":-1}", "1", "a missing value" },
		{ "{\"v\":9223372036854775807}", "1", "a missing value" },
		{ "{\"v\":-9223372036854775808}", "1", "a missing value" },
		{ "{\"v\":1.0}", "1", "a missing value" },
		{ "{\"v\":\"1\"}", "1", "a missing value" },
		{ "{\"v\":null}", "1", "a missing value" },
		{ "{\"v\":0}", "", "a value that is not JSON" },
		{ "{\"v\":3}", "NaN", "a value that is not JSON" },
		{ "{\"v\":3}", "1\n2", "a value that is not JSON" },
		{ "{\"v\":5}", "\"\xed\xa0\x80\"", "a value that is not JSON" },
		{ "{\"v\":1,\"r\":1}", "1", "a missing repr" },
		{ "{\"r\":-5}", "", "a missing repr" },
		{ "{\"r\":true}", "1", "a missing repr" },
		{ "{\"r\":1}", "\xff", "a repr that is not UTF-8" },
		{ "{\"r\":1}", "\xc3\xa9", "a repr that is not UTF-8" },
		{ "{\"mime\":{}}", "", "a MIME list that is not a list or too long" },
		{ "{\"mime\":1}", "", "a MIME list that is not a list or too long" },
		{ "{\"mime\":[1]}", "", "a missing MIME part" },
		{ "{\"mime\":[[]]}", "", "a missing MIME part" },
		{ "{\"mime\":[[\"a/b\"]]}", "", "a missing MIME part" },
		{ "{\"mime\":[[1,0]]}", "", "a missing MIME part" },
		{ "{\"mime\":[[\"a/b\",1]]}", "", "a missing MIME part" },
		{ "{\"mime\":[[\"a/b\",-1]]}", "x", "a missing MIME part" },
		{ "{\"mime\":[[\"a/b\",1.5]]}", "xx", "a missing MIME part" },
		{ "{\"mime\":[[\"a/b\",1],[\"a/c\",1]]}", "x", "a missing MIME part" },
		{ "{\"mime\":[[\"text/x\",1]]}", "\xff", "a text part that is not UTF-8" },
		{ "{\"error\":1}", "", "an error without type, message, traceback and code" },
		{ "{\"error\":{}}", "", "an error without type, message, traceback and code" },
		{ "{\"error\":null}", "", "an error without type, message, traceback and code" },
		{ "{\"error\":{\"type\":\"\",\"message\":\"\",\"traceback\":\"\"}}", "",
		  "an error without type, message, traceback and code" },
		{ "{\"error\":{\"type\":1,\"message\":\"\",\"traceback\":\"\",\"code\":\"\"}}", "",
		  "an error without type, message, traceback and code" },
		{ "", "x", "surplus bytes" },
		{ "{\"v\":1,\"r\":1}", "12x", "surplus bytes" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		const char *problem = result_of(&rig, rows[i].json, rows[i].raw);
		if (!problem || strcmp(problem, rows[i].problem) != 0)
			fail_msg("%s: %s instead of %s", rows[i].json, problem ? problem : "accepted", rows[i].problem);
		rig_finish(&rig);
	}
}

static void test_display_problems(void **state)
{
	(void)state;
	static const struct {
		const char *json, *raw, *problem;
	} rows[] = {
		{ "[", "", "a JSON part that is not an object" },
		{ "{\"mime\":\"\"}", "", "a MIME list that is not a list or too long" },
		{ "{\"mime\":[[\"a/b\",2]]}", "x", "a missing MIME part" },
		{ "{\"mime\":[[\"text/plain\",2]]}", "\xc3(", "a text part that is not UTF-8" },
		{ "{\"mime\":[[\"a/b\",0]]}", "x", "surplus bytes" },
		{ "{}", "x", "surplus bytes" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		const char *problem = display_of(&rig, rows[i].json, rows[i].raw);
		if (!problem || strcmp(problem, rows[i].problem) != 0)
			fail_msg("%s: %s instead of %s", rows[i].json, problem ? problem : "accepted", rows[i].problem);
		rig_finish(&rig);
	}
}

static const char *with_parts(size_t n)
{
	struct rig rig;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	cell__buf_add_str(&json, "{\"mime\":[");
	for (size_t i = 0; i < n; i++)
		cell__buf_printf(&json, "%s[\"a/%zu\",0]", i ? "," : "", i);
	cell__buf_add_str(&json, "]}");
	const char *problem = result_of(&rig, json.data, "");
	if (!problem)
		assert_int_equal(rig.answer.mime.n_parts, n);
	rig_finish(&rig);
	return problem;
}

static void test_part_limit(void **state)
{
	(void)state;
	assert_null(with_parts(CELL_LIMIT_MIME_PARTS));
	assert_string_equal(with_parts(CELL_LIMIT_MIME_PARTS + 1), "a MIME list that is not a list or too long");
	assert_string_equal(with_parts(1000), "a MIME list that is not a list or too long");
	assert_string_equal(with_parts(10000), "a JSON part with too many values");
}

/* Refused by its weight, before anything is built of it. */
static void test_deep_head(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	for (int i = 0; i < 1000000; i++)
		cell__buf_add_str(&json, "{\"a\":");
	struct rig rig;
	assert_string_equal(result_of(&rig, json.data, ""), "a JSON part with too many values");
	rig_finish(&rig);
}

static void test_nul_bytes(void **state)
{
	(void)state;
	struct rig rig;
	/* In text they are text. */
	static const char raw[] = "a\0b";
	rig_init(&rig, "{\"r\":3}", 7, raw, 3);
	assert_null(cell__answer_result(&rig.frame, &rig.answer, &rig.memory));
	assert_int_equal(rig.answer.repr_size, 3);
	rig_finish(&rig);
	/* In JSON they are escaped or an error. */
	rig_init(&rig, "{}\0", 3, "", 0);
	assert_non_null(cell__answer_result(&rig.frame, &rig.answer, &rig.memory));
	rig_finish(&rig);
	assert_null(result_of(&rig,
			      "{\"error\":{\"type\":\"E\\u0000\",\"message\":\"a\\u0000b\","
			      "\"traceback\":\"\",\"code\":\"\"}}",
			      ""));
	assert_string_equal(rig.answer.error_type, "E");
	rig_finish(&rig);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_nothing),
		TEST(test_value),
		TEST(test_mime),
		TEST(test_error),
		TEST(test_display),
		TEST(test_result_problems),
		TEST(test_display_problems),
		TEST(test_part_limit),
		TEST(test_deep_head),
		TEST(test_nul_bytes),
	};
	return cmocka_run_group_tests_name("answer", tests, NULL, NULL);
}
