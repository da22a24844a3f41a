/* wire/access: who may come in by HTTP, as the session server and the MCP server look at it. */
#include "support.h"

#include <string.h>

#include "wire/access.h"

static void test_bearer(void **state)
{
	(void)state;
	static const struct {
		const char *header, *token;
	} cases[] = {
		{ "Bearer s3cret", "s3cret" },
		{ "bearer s3cret", "s3cret" },
		{ "Bearer  s3cret", "s3cret" },
		{ "Bearer s3cret ", "s3cret " },
		{ NULL, NULL },
		{ "", NULL },
		{ "Bearer", NULL },
		{ "Bearer ", NULL },
		{ "Bearers3cret", NULL },
		{ "Basic s3cret", NULL },
		{ "\tBearer s3cret", NULL },
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		const char *found = cell__access_bearer(cases[i].header);
		if (!found != !cases[i].token || (found && strcmp(found, cases[i].token)))
			fail_msg("case %zu: %s", i, found ? found : "none");
	}
}

static void test_hashes(void **state)
{
	(void)state;
	static const char *const others[] = { "", "s3cre", "s3cret2", "S3CRET", "s3cret " };
	unsigned char hash[CELL_ACCESS_HASH_BYTES], other[CELL_ACCESS_HASH_BYTES];
	cell__access_hash("s3cret", 6, hash);
	cell__access_hash("s3cret", 6, other);
	assert_true(cell__access_same(hash, other));
	for (size_t i = 0; i < COUNT(others); i++) {
		cell__access_hash(others[i], strlen(others[i]), other);
		assert_false(cell__access_same(hash, other));
	}
}

static void test_hosts(void **state)
{
	(void)state;
	static const char *const more[] = { "proxy.example", NULL };
	static const struct {
		const char *host, *bound;
		bool ours;
	} cases[] = {
		{ "127.0.0.1:8765", "127.0.0.1", true },
		{ "localhost", "127.0.0.1", true },
		{ "LOCALHOST:8765", "127.0.0.1", true },
		{ "[::1]:8765", "127.0.0.1", true },
		{ "PROXY.example", "127.0.0.1", true },
		{ "[::1]", "::1", true },
		{ "10.0.0.7:8765", "10.0.0.7", true },
		{ NULL, "127.0.0.1", false },
		{ "", "127.0.0.1", false },
		{ "127.0.0.1:80", "127.0.0.1", false },
		{ "127.0.0.1.evil.example", "127.0.0.1", false },
		{ "evil.example:8765", "127.0.0.1", false },
		{ "localhost.evil.example", "127.0.0.1", false },
		{ "proxy.example.evil", "127.0.0.1", false },
		{ "localhost:8765:8765", "127.0.0.1", false },
		{ "10.0.0.8", "10.0.0.7", false },
	};
	for (size_t i = 0; i < COUNT(cases); i++)
		if (cell__access_host(cases[i].host, cases[i].bound, 8765, more) != cases[i].ours)
			fail_msg("case %zu: %s", i, cases[i].host);
}

static void test_origins(void **state)
{
	(void)state;
	static const char *const more[] = { "https://page.example", NULL };
	static const struct {
		const char *origin;
		bool ours;
	} cases[] = {
		{ NULL, true },
		{ "http://localhost:8765", true },
		{ "https://localhost:8765", true },
		{ "https://page.example", true },
		{ "http://page.example", false },
		{ "http://evil.example", false },
		{ "null", false },
		{ "", false },
		{ "localhost:8765", false },
		{ "http://localhost", false },
		{ "http://localhost:8765.evil", false },
		{ "file://localhost:8765", false },
	};
	for (size_t i = 0; i < COUNT(cases); i++)
		if (cell__access_origin(cases[i].origin, "localhost:8765", more) != cases[i].ours)
			fail_msg("case %zu: %s", i, cases[i].origin);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_bearer), TEST(test_hashes), TEST(test_hosts), TEST(test_origins) };
	return cmocka_run_group_tests_name("access", tests, NULL, NULL);
}
