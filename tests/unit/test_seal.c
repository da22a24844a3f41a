/* wire/seal: what a browser keeps instead of a token. */
#include "support.h"
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

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_round), cmocka_unit_test(test_every_change_breaks_it),
					    cmocka_unit_test(test_limits), cmocka_unit_test(test_other_forms),
					    cmocka_unit_test(test_the_proof_is_another_secret) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
