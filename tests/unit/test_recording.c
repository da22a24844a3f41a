/* Recordings: their lines, and their limits. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "wire/recording.h"

#define HEAD "{\"workcell_recording\":1,\"seed\":\"0123456789abcdef0123456789abcdef\",\"namespaces\":true}\n"
#define CELL "{\"cell\":1,\"code\":\"1\",\"timeout_ms\":5}\n"
#define CALL \
	"{\"call\":{\"method\":\"a.b\",\"args\":{\"x\":1}},\"raw\":\"QUI=\",\"answer\":{\"result\":2},\"answer_raw\":\"Qw==\",\"progress\":\"p\"}\n"

static int code_of(const char *text, size_t size)
{
	struct cell__recording recording;
	struct cell_error err = { 0 };
	int rc = cell__recording_read(text, size, &recording, &err);
	cell__recording_finish(&recording);
	return rc < 0 ? err.code : 0;
}

static void test_lines(void **state)
{
	static const char text[] = HEAD CELL CALL "{\"clock\":{\"time\":[1.5]}}\n{\"result\":{\"stdout\":\"\"}}\n{\"reset\":true}\n" CELL
						  "{\"res";
	struct cell__recording recording;
	struct cell_error err;
	(void)state;
	assert_int_equal(cell__recording_read(text, sizeof text - 1, &recording, &err), 0);
	assert_true(recording.namespaces);
	assert_string_equal(recording.seed, "0123456789abcdef0123456789abcdef");
	assert_int_equal(recording.n_cells, 2);
	assert_int_equal(recording.cells[0].timeout_ms, 5);
	assert_false(recording.cells[0].reset_before);
	assert_true(recording.cells[1].reset_before);
	assert_true(json_is_object(recording.cells[0].result) && recording.cells[0].clock);
	assert_null(recording.cells[1].result);
	assert_int_equal(recording.n_calls, 1);
	assert_string_equal(recording.calls[0].answer, "{\"result\":2}");
	assert_string_equal(recording.calls[0].progress, "p");
	assert_int_equal(recording.calls[0].raw.size, 2);
	assert_memory_equal(recording.calls[0].answer_raw.data, "C", 1);
	cell__recording_finish(&recording);
}

static void test_keys(void **state)
{
	json_t *method = json_string("a"), *one = json_pack("{s:i, s:i}", "x", 1, "y", 2), *same = json_pack("{s:i, s:i}", "y", 2, "x", 1);
	json_t *other = json_pack("{s:i}", "x", 1);
	(void)state;
	assert_true(cell__recording_key(method, one, 0) == cell__recording_key(method, same, 0));
	assert_true(cell__recording_key(method, one, 0) != cell__recording_key(method, other, 0));
	assert_true(cell__recording_key(method, one, 0) != cell__recording_key(method, one, 1));
	json_decref(method);
	json_decref(one);
	json_decref(same);
	json_decref(other);
}

/* So many lines of a kind. */
static int code_of_many(const char *before, const char *line, size_t n)
{
	struct cell__buf text = CELL_BUF_INIT;
	cell__buf_add_str(&text, before);
	for (size_t i = 0; i < n; i++)
		cell__buf_add_str(&text, line);
	int code = code_of(text.data, text.size);
	cell__buf_finish(&text);
	return code;
}

static void test_limits(void **state)
{
	static const char call[] = "{\"call\":{\"method\":\"a\",\"args\":{}},\"answer\":{\"result\":2}}\n";
	(void)state;
	assert_int_equal(code_of_many(HEAD, CELL, CELL_RECORDING_CELLS), 0);
	assert_int_equal(code_of_many(HEAD, CELL, CELL_RECORDING_CELLS + 1), CELL_E_LIMIT);
	assert_int_equal(code_of_many(HEAD, call, CELL_RECORDING_CALLS), 0);
	assert_int_equal(code_of_many(HEAD, call, CELL_RECORDING_CALLS + 1), CELL_E_LIMIT);
	char *long_line = malloc(CELL_RECORDING_LINE_BYTES + 2);
	memset(long_line, ' ', CELL_RECORDING_LINE_BYTES + 2);
	memcpy(long_line, HEAD, sizeof HEAD - 2);
	long_line[CELL_RECORDING_LINE_BYTES] = '\n';
	assert_int_equal(code_of(long_line, CELL_RECORDING_LINE_BYTES + 1), 0);
	long_line[CELL_RECORDING_LINE_BYTES] = ' ';
	long_line[CELL_RECORDING_LINE_BYTES + 1] = '\n';
	assert_int_equal(code_of(long_line, CELL_RECORDING_LINE_BYTES + 2), CELL_E_LIMIT);
	free(long_line);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
