/* search/wordpiece: text as the numbers of a vocabulary, for any text. */
#include "support.h"

#include "search/wordpiece.h"

#define VOCABULARY "[PAD]\n[UNK]\n[CLS]\n[SEP]\nsend\nmail\n##s\n##er\n,\n.\ncafe\n\xe4\xb8\xad\n\xd0\xbc\xd0\xb8\xd1\x80\na\n##b\n"

static struct cell__wordpiece pieces;

static void expect(const char *text, size_t size, const char *wanted)
{
	CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
	int64_t ids[64];
	size_t n = cell__wordpiece_encode(&pieces, text, size, ids, 64);
	for (size_t i = 0; i < n; i++)
		cell__buf_printf(&shown, "%s%lld", i ? " " : "", (long long)ids[i]);
	assert_string_equal(shown.data, wanted);
}

#define EXPECT(text, wanted) expect(text, sizeof(text) - 1, wanted)

static void test_texts(void **state)
{
	(void)state;
	struct cell_error err;
	assert_int_equal(cell__wordpiece_init(&pieces, VOCABULARY, sizeof(VOCABULARY) - 1, &err), 0);
	EXPECT("", "2 3");
	EXPECT("send mails", "2 4 5 6 3");
	EXPECT("  Send,\tMAILER. ", "2 4 8 5 7 9 3");
	EXPECT("Caf\xc3\xa9 cafe\xcc\x81 CAF\xc3\x89", "2 10 10 10 3");
	EXPECT("a\xe4\xb8\xad"
	       "ab",
	       "2 13 11 13 14 3");
	EXPECT("\xd0\x9c\xd0\x98\xd0\xa0", "2 12 3");
	EXPECT("unknown mail", "2 1 5 3");
	EXPECT("send\0mail\xff\xfe", "2 1 3"); /* bytes that are not text are left out */
	EXPECT("a\xc2\xad"
	       "b",
	       "2 13 14 3");
	char longest[CELL__WORD_BYTES * 2];
	memset(longest, 'b', sizeof longest);
	longest[0] = 'a';
	int64_t ids[1024];
	assert_int_equal(cell__wordpiece_encode(&pieces, longest, CELL__WORD_BYTES - 3, ids, 1024), CELL__WORD_BYTES - 3 + 2);
	assert_int_equal(cell__wordpiece_encode(&pieces, longest, sizeof longest, ids, 1024), 3);
	assert_int_equal(ids[1], pieces.unknown);
	/* What does not fit is left out; the end is always there. */
	assert_int_equal(cell__wordpiece_encode(&pieces, "send send send", 14, ids, 3), 3);
	assert_int_equal(ids[2], pieces.sep);
	assert_int_equal(cell__wordpiece_encode(&pieces, "send", 4, ids, 2), 2);
	cell__wordpiece_finish(&pieces);
}

static void test_vocabularies(void **state)
{
	(void)state;
	static const char json[] = "{\"model\":{\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"hi\":3}}}";
	static const char *const wrong[] = {
		"", "{}", "{\"model\":{\"vocab\":[]}}", "{\"model\":{\"vocab\":{\"[CLS]\":1}}}", "a\nb\n", "{"
	};
	struct cell_error err;
	assert_int_equal(cell__wordpiece_init(&pieces, json, sizeof(json) - 1, &err), 0);
	EXPECT("Hi there", "1 3 0 2");
	cell__wordpiece_finish(&pieces);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(cell__wordpiece_init(&pieces, wrong[i], strlen(wrong[i]), &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_texts), TEST(test_vocabularies) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
