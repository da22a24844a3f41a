/* wire/seal: what a browser keeps instead of a token; wire/call_seal: the state of a call that waits for answers. */
#include "support.h"
#include "wire/call_seal.h"
#include "wire/seal.h"

static const unsigned char key[CELL_SEAL_KEY_BYTES] = "a key of thirty-two bytes 123456";
static const unsigned char other[CELL_SEAL_KEY_BYTES] = "another of thirty-two bytes 1234";
static const char nonce[] = "0123456789abcdef0123456789abcdef";

static void test_round(void **state)
{
	char text[CELL_SEAL_MAX + 1], name[CELL_SEAL_MAX_NAME + 1];
	int64_t until;
	(void)state;
	assert_true(cell__seal_write(key, "alice \xc3\xa9", 1763456789, nonce, text));
	assert_true(cell__seal_read(text, name, &until));
	assert_string_equal(name, "alice \xc3\xa9");
	assert_int_equal(until, 1763456789);
	assert_true(cell__seal_check(key, text));
	assert_false(cell__seal_check(other, text));
}

static void test_every_change_breaks_it(void **state)
{
	char text[CELL_SEAL_MAX + 1];
	(void)state;
	assert_true(cell__seal_write(key, "alice", 1763456789, nonce, text));
	for (size_t i = 0; text[i]; i++) {
		char kept = text[i];
		text[i] = kept == '1' ? '2' : '1';
		assert_false(cell__seal_check(key, text));
		text[i] = kept;
	}
	assert_true(cell__seal_check(key, text));
}

static void test_limits(void **state)
{
	char text[CELL_SEAL_MAX + 1], name[CELL_SEAL_MAX_NAME + 2];
	int64_t until;
	(void)state;
	memset(name, 'n', sizeof name);
	name[CELL_SEAL_MAX_NAME] = '\0';
	assert_true(cell__seal_write(key, name, INT64_C(999999999999999999), nonce, text));
	assert_true(cell__seal_read(text, name, &until) && cell__seal_check(key, text));
	memset(name, 'n', CELL_SEAL_MAX_NAME + 1);
	name[CELL_SEAL_MAX_NAME + 1] = '\0';
	assert_false(cell__seal_write(key, name, 1, nonce, text));
	assert_false(cell__seal_write(key, "", 1, nonce, text));
	assert_false(cell__seal_write(key, "alice", -1, nonce, text));
	assert_false(cell__seal_write(key, "alice", 1, "short", text));
}

static void test_other_forms(void **state)
{
	static const char *const bad[] = { "",    ".",     "61",     "61.1",  "61..0123456789abcdef0123456789abcdef.",
					   "6.1", "6g.1.", "00.1.2", "61.-1", "61.99999999999999999999.x" };
	char name[CELL_SEAL_MAX_NAME + 1];
	int64_t until;
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		assert_false(cell__seal_read(bad[i], name, &until));
		assert_false(cell__seal_check(key, bad[i]));
	}
}

static void test_the_proof_is_another_secret(void **state)
{
	char text[CELL_SEAL_MAX + 1], proof[CELL_SEAL_MAC_DIGITS + 1], again[CELL_SEAL_MAC_DIGITS + 1];
	(void)state;
	assert_true(cell__seal_write(key, "alice", 1763456789, nonce, text));
	assert_true(cell__seal_proof(key, text, proof) && cell__seal_proof(other, text, again));
	assert_int_equal(strlen(proof), CELL_SEAL_MAC_DIGITS);
	assert_false(cell__seal_same(proof, again));
	assert_null(strstr(text, proof));
	assert_true(cell__seal_proof(key, text, again));
	assert_true(cell__seal_same(proof, again));
	assert_false(cell__seal_same(proof, "short"));
}

/* ---- calls ---- */

static const struct cell__call_seal waiting = { "0123456789abcdef0123456789abcdef", "00112233445566778899aabbccddeeff", 1763456789 };

static void test_a_call(void **state)
{
	json_t *args = json_pack("{s:s, s:i}", "code", "1", "wait_ms", 5), *same = json_pack("{s:i, s:s}", "wait_ms", 5, "code", "1");
	json_t *changed = json_pack("{s:s, s:i}", "code", "2", "wait_ms", 5), *real = json_pack("{s:s, s:f}", "code", "1", "wait_ms", 5.0);
	const struct cell__sealed_call call = { "one", "run_code", args };
	const struct cell__sealed_call wrong[] = {
		{ "two", "run_code", args }, { "", "run_code", args },       { "one", "reset", args },
		{ "oner", "un_code", args }, { "one", "run_code", changed }, { "one", "run_code", real }
	};
	char text[CELL_CALL_SEAL_MAX + 1];
	struct cell__call_seal again;
	(void)state;
	assert_true(cell__call_seal_write(key, &waiting, &call, text));
	assert_true(cell__call_seal_read(text, &again));
	assert_string_equal(again.session, waiting.session);
	assert_string_equal(again.round, waiting.round);
	assert_int_equal(again.until_s, waiting.until_s);
	assert_true(cell__call_seal_check(key, text, &call, waiting.until_s - 1));
	assert_true(cell__call_seal_check(key, text, &(struct cell__sealed_call){ "one", "run_code", same }, 0));
	assert_false(cell__call_seal_check(key, text, &call, waiting.until_s)); /* it has expired */
	assert_false(cell__call_seal_check(other, text, &call, 0));
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_false(cell__call_seal_check(key, text, &wrong[i], 0));
	json_decref(args);
	json_decref(same);
	json_decref(changed);
	json_decref(real);
}

static void test_every_change_of_a_call_breaks_it(void **state)
{
	json_t *args = json_object();
	const struct cell__sealed_call call = { "one", "run_code", args };
	char text[CELL_CALL_SEAL_MAX + 2], longer[2 * CELL_CALL_SEAL_MAX];
	(void)state;
	assert_true(cell__call_seal_write(key, &waiting, &call, text));
	for (size_t i = 0; text[i]; i++) {
		char kept = text[i];
		for (const char *c = "019af.Ax"; *c; c++) {
			text[i] = *c;
			assert_int_equal(cell__call_seal_check(key, text, &call, 0), *c == kept);
		}
		text[i] = '\0';
		assert_false(cell__call_seal_check(key, text, &call, 0));
		text[i] = kept;
	}
	snprintf(longer, sizeof longer, "%s0", text);
	assert_false(cell__call_seal_check(key, longer, &call, 0));
	/* The same number in other digits is another text. */
	snprintf(longer, sizeof longer, "%.33s0%s", text, text + 33);
	assert_false(cell__call_seal_check(key, longer, &call, 0));
	json_decref(args);
}

static void test_limits_of_a_call(void **state)
{
	json_t *args = json_object();
	const struct cell__sealed_call call = { "one", "run_code", args };
	char text[CELL_CALL_SEAL_MAX + 1];
	struct cell__call_seal seal = waiting;
	(void)state;
	seal.until_s = INT64_C(999999999999999999);
	assert_true(cell__call_seal_write(key, &seal, &call, text));
	assert_int_equal(strlen(text), CELL_CALL_SEAL_MAX);
	assert_true(cell__call_seal_check(key, text, &call, 0));
	seal.until_s++;
	assert_false(cell__call_seal_write(key, &seal, &call, text));
	seal.until_s = -1;
	assert_false(cell__call_seal_write(key, &seal, &call, text));
	seal = waiting;
	seal.round[31] = '\0';
	assert_false(cell__call_seal_write(key, &seal, &call, text));
	seal = waiting;
	seal.session[0] = 'x';
	assert_false(cell__call_seal_write(key, &seal, &call, text));
	assert_false(cell__call_seal_read("", &seal) || cell__call_seal_read("0123456789abcdef0123456789abcdef..", &seal));
	json_decref(args);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_round),
					    cmocka_unit_test(test_every_change_breaks_it),
					    cmocka_unit_test(test_limits),
					    cmocka_unit_test(test_other_forms),
					    cmocka_unit_test(test_the_proof_is_another_secret),
					    cmocka_unit_test(test_a_call),
					    cmocka_unit_test(test_every_change_of_a_call_breaks_it),
					    cmocka_unit_test(test_limits_of_a_call) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
