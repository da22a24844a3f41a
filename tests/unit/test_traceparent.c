/* wire/traceparent: the header of W3C's Trace Context. */
#include "support.h"
#include "wire/traceparent.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static void test_good(void **state)
{
	struct cell__traceparent parent;
	(void)state;
	assert_true(cell__traceparent_read("00-" TRACE "-" SPAN "-01", &parent));
	assert_string_equal(parent.trace, TRACE);
	assert_string_equal(parent.span, SPAN);
	assert_true(parent.sampled);
	assert_true(cell__traceparent_read("00-" TRACE "-" SPAN "-00", &parent));
	assert_false(parent.sampled);
	assert_true(cell__traceparent_read("01-" TRACE "-" SPAN "-03-more", &parent));
	assert_true(parent.sampled);
}

static void test_bad(void **state)
{
	static const char *const bad[] = { NULL,
					   "",
					   "00",
					   "00-" TRACE "-" SPAN,
					   "00-" TRACE "-" SPAN "-0",
					   "00-" TRACE "-" SPAN "-01-more",
					   "00-" TRACE "-" SPAN "-012",
					   "01-" TRACE "-" SPAN "-01more",
					   "ff-" TRACE "-" SPAN "-01",
					   "00-00000000000000000000000000000000-" SPAN "-01",
					   "00-" TRACE "-0000000000000000-01",
					   "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
					   "0g-" TRACE "-" SPAN "-01",
					   "00-" TRACE "0-" SPAN "-01" };
	struct cell__traceparent parent = { .trace = "untouched" };
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_false(cell__traceparent_read(bad[i], &parent));
	assert_string_equal(parent.trace, "untouched");
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_good), cmocka_unit_test(test_bad) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
