/* session/result: what the caller gets, and its one line of JSON. */
#include "support.h"

#include <fcntl.h>
#include <jansson.h>

#include "executors/answer.h"
#include "session/result.h"

static struct cell_result *make(void)
{
	struct cell_result *result = cell__alloc(1, sizeof *result);
	assert_non_null(result);
	strcpy(result->session_id, "0123456789abcdef0123456789abcdef");
	result->isolation = "{\"level\":\"process\"}";
	result->state_kept = true;
	return result;
}

/* One line, valid JSON with no key twice. */
static json_t *load(const struct cell_result *result)
{
	char *text = cell_result_json(result);
	assert_non_null(text);
	assert_null(strchr(text, '\n'));
	json_error_t problem;
	json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
	if (!json)
		fail_msg("%s in %s", problem.text, text);
	free(text);
	return json;
}

static void set_text(struct cell__kept_text *text, const char *bytes, size_t size)
{
	assert_int_equal(cell__buf_add(&text->raw, bytes, size), 0);
	text->total = size;
}

static void test_empty(void **state)
{
	(void)state;
	struct cell_result *result = make();
	assert_null(cell_result_value_json(result));
	assert_null(cell_result_repr(result));
	assert_null(cell_result_error(result));
	assert_null(cell_result_spill_path(result));
	assert_int_equal(cell_result_display_count(result), 0);
	const struct cell_mime_part *parts;
	assert_int_equal(cell_result_mime(result, &parts), 0);
	assert_int_equal(cell_result_display(result, 0, &parts), 0);
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_string_equal(text.data, "");
	assert_string_equal(text.raw, "");
	assert_int_equal(text.size, 0);
	char *json = cell_result_json(result);
	assert_string_equal(json, "{\"value\":null,\"repr\":null,\"mime\":{},\"stdout\":\"\",\"stderr\":\"\",\"text\":\"\","
				  "\"error\":null,\"images\":[],\"displays\":[],\"duration_ms\":0.000,\"state\":\"kept\","
				  "\"isolation\":{\"level\":\"process\"},\"notices\":[],\"spill\":null,"
				  "\"session_id\":\"0123456789abcdef0123456789abcdef\"}");
	free(json);
	cell_result_destroy(result);
	cell_result_destroy(NULL);
}

static void fill_answer(struct cell__kernel_answer *answer)
{
	*answer = (struct cell__kernel_answer){
		.value_json = "{\"a\":123456789012345678901234567890}",
		.value_size = 36,
		.repr = "{'a': 1}",
		.repr_size = 8,
	};
	answer->mime.n_parts = 4;
	answer->mime.parts[0] = (struct cell_mime_part){ "text/html", "<b>\"x\"</b>", 10 };
	answer->mime.parts[1] = (struct cell_mime_part){ "image/png", "\x89PNG\0\xff", 6 };
	answer->mime.parts[2] = (struct cell_mime_part){ "application/json", "{\"k\": [1]}", 10 };
	answer->mime.parts[3] = (struct cell_mime_part){ "application/x-bytes", "\xff\xfe", 2 };
}

static void test_answer(void **state)
{
	(void)state;
	struct cell_result *result = make();
	struct cell__kernel_answer answer;
	fill_answer(&answer);
	assert_int_equal(cell__result_take_answer(result, &answer), 0);
	assert_string_equal(cell_result_value_json(result), "{\"a\":123456789012345678901234567890}");
	assert_string_equal(cell_result_repr(result), "{'a': 1}");
	const struct cell_mime_part *parts;
	assert_int_equal(cell_result_mime(result, &parts), 5);
	assert_string_equal(parts[0].type, "text/plain"); /* first, and the repr */
	assert_string_equal(parts[0].data, "{'a': 1}");
	assert_string_equal(parts[1].type, "text/html");
	assert_int_equal(parts[2].size, 6);
	assert_memory_equal(parts[2].data, "\x89PNG\0\xff", 7); /* and a NUL behind */
	result->duration_us = 1500;
	assert_true(cell_result_duration_ms(result) == 1.5);
	char *text = cell_result_json(result);
	assert_non_null(strstr(text, "{\"value\":{\"a\":123456789012345678901234567890},")); /* passed on as text */
	assert_non_null(strstr(text, "\"text/html\":\"<b>\\\"x\\\"</b>\""));
	assert_non_null(strstr(text, "\"image/png\":\"iVBORwD/\""));
	assert_non_null(strstr(text, "\"application/json\":{\"k\": [1]}"));
	assert_non_null(strstr(text, "\"application/x-bytes\":\"//4=\""));
	assert_non_null(strstr(text, "\"duration_ms\":1.500,"));
	free(text);
	cell_result_destroy(result);
}

static void test_answer_kinds(void **state)
{
	(void)state;
	struct cell__kernel_answer answer = { .value_json = NULL };
	struct cell_result *none = make();
	assert_int_equal(cell__result_take_answer(none, &answer), 0);
	assert_null(cell_result_repr(none));
	cell_result_destroy(none);
	/* The kernel's own text/plain wins over the repr. */
	answer = (struct cell__kernel_answer){ .repr = "<repr>", .repr_size = 6 };
	answer.mime.n_parts = 1;
	answer.mime.parts[0] = (struct cell_mime_part){ "text/plain", "pretty", 6 };
	struct cell_result *own = make();
	const struct cell_mime_part *parts;
	assert_int_equal(cell__result_take_answer(own, &answer), 0);
	assert_int_equal(cell_result_mime(own, &parts), 1);
	assert_string_equal(parts[0].data, "pretty");
	cell_result_destroy(own);
	/* As many parts as an answer may have, and text/plain besides. */
	answer = (struct cell__kernel_answer){ .repr = "r", .repr_size = 1 };
	answer.mime.n_parts = CELL_LIMIT_MIME_PARTS;
	char types[CELL_LIMIT_MIME_PARTS][16];
	for (size_t i = 0; i < CELL_LIMIT_MIME_PARTS; i++) {
		snprintf(types[i], sizeof types[i], "a/%zu", i);
		answer.mime.parts[i] = (struct cell_mime_part){ types[i], "", 0 };
	}
	struct cell_result *many = make();
	assert_int_equal(cell__result_take_answer(many, &answer), 0);
	assert_int_equal(cell_result_mime(many, &parts), CELL_LIMIT_MIME_PARTS);
	json_decref(load(many));
	cell_result_destroy(many);
}

/*
 * A hostile kernel names a type twice, or text/plain not first: that is refused, or else the JSON object still has each
 * key once.
 */
static void test_repeated_types(void **state)
{
	(void)state;
	static const char *const heads[] = {
		"{\"r\":1,\"mime\":[[\"text/html\",1],[\"text/html\",1]]}",
		"{\"r\":1,\"mime\":[[\"text/html\",1],[\"text/plain\",1]]}",
		"{\"r\":1,\"mime\":[[\"text/plain\",1],[\"text/plain\",1]]}",
	};
	for (size_t i = 0; i < COUNT(heads); i++) {
		const struct cell_frame frame = {
			.type = CELL_FRAME_RESULT,
			.json = (const uint8_t *)heads[i],
			.json_size = (uint32_t)strlen(heads[i]),
			.raw = (const uint8_t *)"123",
			.raw_size = 3,
		};
		struct cell__kernel_answer answer;
		json_t *memory = NULL;
		if (!cell__answer_result(&frame, &answer, &memory)) {
			struct cell_result *result = make();
			assert_int_equal(cell__result_take_answer(result, &answer), 0);
			json_decref(load(result));
			cell_result_destroy(result);
		}
		json_decref(memory);
	}
}

static void test_error(void **state)
{
	(void)state;
	struct cell_result *result = make();
	result->state_kept = false;
	assert_int_equal(cell__result_set_error(result, CELL_OUT_EXCEPTION, "ValueError", "bad \"x\"\n", "Trace\xc3\xa9"), 0);
	const struct cell_outcome *outcome = cell_result_error(result);
	assert_non_null(outcome);
	assert_int_equal(outcome->code, CELL_OUT_EXCEPTION);
	assert_string_equal(outcome->type, "ValueError");
	assert_string_equal(outcome->message, "bad \"x\"\n");
	assert_string_equal(outcome->traceback, "Trace\xc3\xa9");
	assert_int_equal(cell_result_state_kept(result), 0);
	json_t *json = load(result);
	const char *code, *type, *message, *traceback, *kept;
	assert_int_equal(json_unpack(json, "{s:{s:s,s:s,s:s,s:s},s:s}", "error", "code", &code, "type", &type, "message", &message,
				     "traceback", &traceback, "state", &kept),
			 0);
	assert_string_equal(code, "exception");
	assert_string_equal(type, "ValueError");
	assert_string_equal(message, "bad \"x\"\n");
	assert_string_equal(traceback, "Trace\xc3\xa9");
	assert_string_equal(kept, "lost");
	json_decref(json);
	cell_result_destroy(result);
}

/* Every outcome has its word. */
static void test_error_codes(void **state)
{
	(void)state;
	for (int code = 1; code < CELL_CODE_COUNT; code++) {
		struct cell_result *result = make();
		assert_int_equal(cell__result_set_error(result, code, "", "", ""), 0);
		json_t *json = load(result);
		json_t *word = json_object_get(json_object_get(json, "error"), "code");
		assert_string_equal(json_string_value(word), cell_code_word(code));
		json_decref(json);
		cell_result_destroy(result);
	}
}

static void test_text(void **state)
{
	(void)state;
	struct cell_result *result = make();
	set_text(&result->out, "a\0b\x1b[1m", 7);
	set_text(&result->err, "caf\xff", 4);
	assert_int_equal(cell__buf_add_utf8(&result->err.clean, "caf\xff", 4), 0);
	result->err.total = 9000;
	struct cell_text text;
	cell_result_stdout(result, &text);
	assert_int_equal(text.size, 7);
	assert_memory_equal(text.data, "a\0b\x1b[1m", 8);
	assert_ptr_equal(text.raw, text.data);
	cell_result_stderr(result, &text);
	assert_string_equal(text.data, "caf\xef\xbf\xbd");
	assert_int_equal(text.size, 6);
	assert_int_equal(text.raw_size, 4);
	assert_memory_equal(text.raw, "caf\xff", 5);
	assert_true(text.total == 9000);
	json_t *json = load(result);
	json_t *out = json_object_get(json, "stdout");
	assert_int_equal(json_string_length(out), 7);
	assert_memory_equal(json_string_value(out), "a\0b\x1b[1m", 7);
	assert_string_equal(json_string_value(json_object_get(json, "stderr")), "caf\xef\xbf\xbd");
	json_decref(json);
	cell_result_destroy(result);
}

static void test_displays(void **state)
{
	(void)state;
	struct cell_result *result = make();
	struct cell__bundle bundle = { .n_parts = 2 };
	bundle.parts[0] = (struct cell_mime_part){ "image/svg+xml", "<svg/>", 6 };
	bundle.parts[1] = (struct cell_mime_part){ "application/vnd.x+json", "not json", 8 };
	result->displays = cell__alloc(2, sizeof *result->displays);
	assert_int_equal(cell__owned_bundle_copy(&result->displays[0], &bundle), 0);
	bundle.n_parts = 0;
	assert_int_equal(cell__owned_bundle_copy(&result->displays[1], &bundle), 0);
	result->n_displays = 2;
	assert_int_equal(cell_result_display_count(result), 2);
	const struct cell_mime_part *parts;
	assert_int_equal(cell_result_display(result, 0, &parts), 2);
	assert_string_equal(parts[0].type, "image/svg+xml");
	assert_int_equal(cell_result_display(result, 1, &parts), 0);
	assert_int_equal(cell_result_display(result, 2, &parts), 0);
	json_t *json = load(result);
	const char *svg, *other;
	json_t *first = json_array_get(json_object_get(json, "displays"), 0);
	assert_int_equal(json_unpack(first, "{s:s,s:s}", "image/svg+xml", &svg, "application/vnd.x+json", &other), 0);
	assert_string_equal(svg, "<svg/>"); /* text, though an image */
	assert_string_equal(other, "not json");
	json_decref(json);
	cell_result_destroy(result);
}

static void test_images_and_notices(void **state)
{
	(void)state;
	struct cell_result *result = make();
	assert_int_equal(cell_result_image_count(result), 0);
	assert_null(cell_result_image(result, 0));
	assert_null(cell_result_notice(result, 0));
	result->images = cell__alloc(2, sizeof *result->images);
	result->images[result->n_images++] = cell__strdup("/a \"b\"/1.png");
	result->images[result->n_images++] = cell__strdup("/a/2.png");
	for (unsigned i = 0; i < CELL_LIMIT_NOTICES + 3; i++) {
		char text[32];
		snprintf(text, sizeof text, "notice\n%u", i);
		cell__result_add_notice(result, text);
	}
	assert_int_equal(cell_result_image_count(result), 2);
	assert_string_equal(cell_result_image(result, 1), "/a/2.png");
	assert_null(cell_result_image(result, 2));
	assert_int_equal(cell_result_notice_count(result), CELL_LIMIT_NOTICES);
	assert_string_equal(cell_result_notice(result, CELL_LIMIT_NOTICES - 2), "notice\n14");
	assert_string_equal(cell_result_notice(result, CELL_LIMIT_NOTICES - 1), "more notices followed that were not kept");
	char *json = cell_result_json(result);
	assert_non_null(strstr(json, "\"images\":[\"/a \\\"b\\\"/1.png\",\"/a/2.png\"]"));
	assert_non_null(strstr(json, "\"notices\":[\"notice\\n0\",\"notice\\n1\","));
	free(json);
	cell_result_destroy(result);
}

static void test_bundle_parts(void **state)
{
	(void)state;
	struct cell__bundle in = { .n_parts = 3 };
	in.parts[0] = (struct cell_mime_part){ "text/plain", "p", 1 };
	in.parts[1] = (struct cell_mime_part){ "image/png", "i", 1 };
	in.parts[2] = (struct cell_mime_part){ "text/html", "h", 1 };
	struct cell__owned_bundle bundle;
	assert_int_equal(cell__owned_bundle_copy(&bundle, &in), 0);
	assert_int_equal(cell__owned_bundle_find(&bundle, "image/jpeg"), 3);
	assert_int_equal(cell__owned_bundle_find(&bundle, "image/png"), 1);
	cell__owned_bundle_remove(&bundle, 1);
	assert_int_equal(bundle.n_parts, 2);
	assert_string_equal(bundle.parts[1].type, "text/html");
	cell__owned_bundle_remove(&bundle, 1);
	cell__owned_bundle_remove(&bundle, 0);
	assert_int_equal(cell__owned_bundle_find(&bundle, "text/plain"), 0);
	assert_int_equal(bundle.n_parts, 0);
	cell__owned_bundle_finish(&bundle);
}

static void test_spill_path(void **state)
{
	(void)state;
	for (int keep = 0; keep < 2; keep++) {
		char path[] = "/tmp/workcell-test-XXXXXX";
		int fd = mkstemp(path);
		assert_true(fd >= 0);
		close(fd);
		struct cell_result *result = make();
		result->spill_path = cell__strdup(path);
		assert_string_equal(cell_result_spill_path(result), path);
		json_t *json = load(result);
		assert_string_equal(json_string_value(json_object_get(json, "spill")), path);
		json_decref(json);
		if (keep)
			cell_result_keep_spill(result);
		cell_result_destroy(result);
		assert_int_equal(access(path, F_OK), keep ? 0 : -1);
		unlink(path);
	}
}

/* With each allocation failing in turn: an error, never a crash or half a line. */
static void test_without_memory(void **state)
{
	(void)state;
	int failures = 0;
	for (long n = 1; n < 40; n++) {
		struct cell_result *result = make();
		struct cell__kernel_answer answer;
		fill_answer(&answer);
		cell__alloc_fail_after(n);
		int rc = cell__result_take_answer(result, &answer);
		cell__alloc_fail_after(0);
		failures += rc < 0;
		assert_true(rc == 0 || rc == -1);
		cell_result_destroy(result);
	}
	assert_int_equal(failures, 3); /* value, repr, MIME parts */
	for (long n = 1; n < 5; n++) {
		struct cell_result *result = make();
		cell__alloc_fail_after(n);
		int rc = cell__result_set_error(result, CELL_OUT_TIMEOUT, "T", "m", "t");
		cell__alloc_fail_after(0);
		assert_int_equal(rc, n <= 3 ? -1 : 0);
		/* The code is the least that can be said without memory. */
		assert_int_equal(cell_result_error(result)->code, CELL_OUT_TIMEOUT);
		assert_non_null(cell_result_error(result)->type);
		assert_non_null(cell_result_error(result)->message);
		assert_non_null(cell_result_error(result)->traceback);
		json_decref(load(result));
		cell_result_destroy(result);
	}
	struct cell_result *result = make();
	struct cell__kernel_answer answer;
	fill_answer(&answer);
	assert_int_equal(cell__result_take_answer(result, &answer), 0);
	char *whole = cell_result_json(result);
	for (long n = 1;; n++) {
		cell__alloc_fail_after(n);
		char *text = cell_result_json(result);
		cell__alloc_fail_after(0);
		if (text) {
			assert_string_equal(text, whole);
			free(text);
			break;
		}
		assert_true(n < 100);
	}
	free(whole);
	cell_result_destroy(result);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_empty),          TEST(test_answer),     TEST(test_answer_kinds),
		TEST(test_repeated_types), TEST(test_error),      TEST(test_error_codes),
		TEST(test_text),           TEST(test_displays),   TEST(test_images_and_notices),
		TEST(test_bundle_parts),   TEST(test_spill_path), TEST(test_without_memory),
	};
	return cmocka_run_group_tests_name("result", tests, NULL, NULL);
}
