/* session/redact: what must not stand in a log, and what may. */
#define _GNU_SOURCE
#include "support.h"

#include "gate/redact.h"

static struct cell__redactor *make(const char *const *more)
{
	struct cell__redactor *redactor = NULL;
	struct cell_error err = { 0 };
	if (cell__redactor_create(more, &redactor, &err) < 0)
		fail_msg("%s", err.msg);
	return redactor;
}

static void check_text(const struct cell__redactor *redactor, const char *in, const char *out)
{
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	size_t size = strlen(in);
	char *copy = malloc(size ? size : 1); /* exactly its size */
	memcpy(copy, in, size);
	assert_int_equal(cell__redact_text(redactor, copy, size, NULL, &got), 0);
	free(copy);
	if (strcmp(got.data ? got.data : "", out) != 0)
		fail_msg("%s\n%s\nnot\n%s", in, got.data, out);
}

#define R CELL__REDACTED
#define KEY20 "abcdefghij0123456789"

static const struct {
	const char *in, *out;
} texts[] = {
	{ "", "" },
	{ "nothing here", "nothing here" },
	/* shapes */
	{ "key sk-" KEY20 " end", "key " R " end" },
	{ "sk-" KEY20, R },
	{ "sk-proj-abc_def-0123456789", R },
	{ "ghp_" KEY20 ",", R "," },
	{ "github_pat_" KEY20 "_" KEY20, R },
	{ "AKIAABCDEFGHIJKLMNO7", R },
	{ "xAKIAABCDEFGHIJKLMNO7", "xAKIAABCDEFGHIJKLMNO7" }, /* the middle of a word */
	{ "AIza" KEY20 KEY20, R },
	{ "xoxb-1234567890-abc", R },
	{ "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-_1", R },
	{ "sk-learn-is-a-library-of-tools", "sk-learn-is-a-library-of-tools" }, /* no digit */
	{ "sk-short1", "sk-short1" },
	{ "(glpat-" KEY20 ")", "(" R ")" },
	{ "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nrest", R "\nrest" },
	{ "-----BEGIN PRIVATE KEY-----\nMIIE", R },
	{ "-----BEGIN CERTIFICATE-----\nMIIE", "-----BEGIN CERTIFICATE-----\nMIIE" },
	/* names and values in a text */
	{ "password=hunter2&x=1", "password=" R "&x=1" },
	{ "https://h/?api_key=abc&b=c", "https://h/?api_key=" R "&b=c" },
	{ "https://h/?X-Amz-Signature=abc&b=c", "https://h/?X-Amz-Signature=" R "&b=c" },
	{ "export PGPASSWORD='a b' x", "export PGPASSWORD='" R "' x" },
	{ "PASSWORD = x", "PASSWORD = " R },
	{ "{\"password\": \"a\\\"b\", \"c\": 1}", "{\"password\": \"" R "\", \"c\": 1}" },
	{ "{\\\"password\\\":\\\"ab\\\",\\\"c\\\":1}", "{\\\"password\\\":\\\"" R "\\\",\\\"c\\\":1}" },
	{ "-H \"Authorization: Bearer abc\" -v", "-H \"Authorization: " R "\" -v" },
	{ "Authorization: Basic dXNlcjpwdw==\r\nHost: x", "Authorization: " R "\r\nHost: x" },
	{ "Cookie: a=b; c=d\nX: y", "Cookie: " R "\nX: y" },
	{ "client_secret:abc", "client_secret:" R },
	{ "password=", "password=" },
	{ "a=b c: d", "a=b c: d" },
	{ "tool --password hunter2 --x y", "tool --password " R " --x y" },
	{ "tool --api-key=abc --x", "tool --api-key=" R " --x" },
	{ "tool --token --x", "tool --token --x" },
	{ "tool --token \"a b\" c", "tool --token \"" R "\" c" },
	/* others */
	{ "Bearer abc.def-123456", "Bearer " R },
	{ "the bearer understands", "the bearer understands" },
	{ "postgres://user:pa:ss@host/db", "postgres://user:" R "@host/db" },
	{ "https://user@host/a:b@c", "https://user@host/a:b@c" },
	{ "http://h:80/x", "http://h:80/x" },
	{ "password=a password=b", "password=" R " password=" R },
};

static void test_texts(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	for (size_t i = 0; i < COUNT(texts); i++)
		check_text(redactor, texts[i].in, texts[i].out);
	cell__redactor_destroy(redactor);
}

static void check_json(const struct cell__redactor *redactor, const char *in, const char *out)
{
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	json_t *value = json_loads(in, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	assert_non_null(value);
	assert_int_equal(cell__redact_json(redactor, value, NULL, &got), 0);
	if (strcmp(got.data, out) != 0)
		fail_msg("%s\n%s\nnot\n%s", in, got.data, out);
	json_decref(value);
}

#define J "\"" CELL__REDACTED "\""

static const struct {
	const char *in, *out;
} values[] = {
	{ "{\"a\":1,\"b\":[true,null,2.5,\"x\"],\"c\":{}}", "{\"a\":1,\"b\":[true,null,2.5,\"x\"],\"c\":{}}" },
	{ "{\"password\":\"x\"}", "{\"password\":" J "}" },
	{ "{\"Password\":12345}", "{\"Password\":" J "}" },
	{ "{\"db_passwd\":[1,2]}", "{\"db_passwd\":" J "}" },
	{ "{\"token\":{\"a\":\"b\"}}", "{\"token\":" J "}" },
	{ "{\"accessToken\":\"\"}", "{\"accessToken\":" J "}" },
	{ "{\"token\":null}", "{\"token\":null}" },
	{ "{\"max_tokens\":5,\"tokens\":\"x\"}", "{\"max_tokens\":5,\"tokens\":" J "}" },
	{ "{\"apiKey\":\"x\",\"X-API-Key\":\"y\"}", "{\"apiKey\":" J ",\"X-API-Key\":" J "}" },
	{ "{\"headers\":{\"Authorization\":\"x\",\"Set-Cookie\":\"y\",\"Accept\":\"z\"}}",
	  "{\"headers\":{\"Authorization\":" J ",\"Set-Cookie\":" J ",\"Accept\":\"z\"}}" },
	{ "{\"author\":\"x\",\"auth\":\"y\"}", "{\"author\":\"x\",\"auth\":" J "}" },
	{ "[{\"name\":\"Authorization\",\"value\":\"x\"},{\"name\":\"Accept\",\"value\":\"y\"}]",
	  "[{\"name\":\"Authorization\",\"value\":" J "},{\"name\":\"Accept\",\"value\":\"y\"}]" },
	{ "{\"cmd\":\"curl -H 'Authorization: Bearer x' u\"}", "{\"cmd\":\"curl -H 'Authorization: [redacted]' u\"}" },
	{ "{\"sk-" KEY20 "\":1}", "{\"[redacted]\":1}" },
	{ "\"a\\nb\\u0000c\\u001b\"", "\"a\\nb\\u0000c\\u001b\"" },
	{ "-9007199254740993", "-9007199254740993" },
};

static void test_values(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	for (size_t i = 0; i < COUNT(values); i++)
		check_json(redactor, values[i].in, values[i].out);
	cell__redactor_destroy(redactor);
}

static void test_own_patterns(void **state)
{
	(void)state;
	const char *const more[] = { "iban", "x-*-id", "body.customer.*", "Max_Tokens", NULL };
	struct cell__redactor *redactor = make(more);
	check_json(redactor, "{\"IBAN\":\"x\",\"ibans\":\"y\",\"a\":[{\"iban\":1}]}",
		   "{\"IBAN\":" J ",\"ibans\":\"y\",\"a\":[{\"iban\":" J "}]}");
	check_json(redactor, "{\"X-Client-ID\":\"x\"}", "{\"X-Client-ID\":" J "}");
	check_json(redactor, "{\"body\":{\"customer\":{\"name\":\"x\"},\"b\":1},\"customer\":{\"name\":\"y\"}}",
		   "{\"body\":{\"customer\":{\"name\":" J "},\"b\":1},\"customer\":{\"name\":\"y\"}}");
	check_json(redactor, "{\"body\":[{\"customer\":{\"name\":\"x\"}}]}", "{\"body\":[{\"customer\":{\"name\":" J "}}]}");
	check_json(redactor, "{\"max_tokens\":5}", "{\"max_tokens\":" J "}"); /* said so is meant so */
	check_text(redactor, "iban=DE12&x", "iban=" R "&x");
	cell__redactor_destroy(redactor);
	struct cell_error err = { 0 };
	const char *const bad[] = { "a[", NULL };
	assert_int_equal(cell__redactor_create(bad, &redactor, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	const char **many = calloc(CELL__REDACT_LIMIT_PATTERNS + 2, sizeof *many);
	for (size_t i = 0; i <= CELL__REDACT_LIMIT_PATTERNS; i++)
		many[i] = "a";
	assert_int_equal(cell__redactor_create(many, &redactor, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	many[CELL__REDACT_LIMIT_PATTERNS] = NULL;
	assert_int_equal(cell__redactor_create(many, &redactor, &err), 0);
	cell__redactor_destroy(redactor);
	free(many);
}

/* Longer and shorter secrets leave the same behind. */
static void test_no_length(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	CELL_AUTO_BUF struct cell__buf in = CELL_BUF_INIT;
	cell__buf_add_str(&in, "{\"password\":\"");
	for (int i = 0; i < 100000; i++)
		cell__buf_add(&in, "x", 1);
	cell__buf_add_str(&in, "\"}");
	check_json(redactor, in.data, "{\"password\":" J "}");
	check_json(redactor, "{\"password\":\"x\"}", "{\"password\":" J "}");
	cell__redactor_destroy(redactor);
}

static void test_cut(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	for (size_t more = 0; more < 2; more++) {
		json_t *value = json_object();
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, got = CELL_BUF_INIT;
		for (size_t i = 0; i < CELL__REDACT_LIMIT_STRING + more; i++)
			cell__buf_add(&text, "x", 1);
		json_object_set_new(value, "a", json_stringn(text.data, text.size));
		assert_int_equal(cell__redact_json(redactor, value, NULL, &got), 0);
		json_t *back = json_loads(got.data, 0, NULL), *a = json_object_get(back, "a");
		if (more) {
			char hash[CELL__SHA256_SIZE];
			cell__sha256_hex(text.data, text.size, hash);
			assert_int_equal(json_string_length(json_object_get(a, "[cut]")), CELL__REDACT_LIMIT_HEAD);
			assert_int_equal(json_integer_value(json_object_get(a, "bytes")), text.size);
			assert_string_equal(json_string_value(json_object_get(a, "sha256")), hash);
		} else {
			assert_int_equal(json_string_length(a), text.size);
		}
		json_decref(back);
		json_decref(value);
	}
	/* The hash is of what is left: from the hash of a text that is known but for a password it could be guessed. */
	char hashes[2][CELL__SHA256_SIZE];
	for (int i = 0; i < 2; i++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, got = CELL_BUF_INIT;
		cell__buf_printf(&text, "password=%s\n", i ? "one" : "another");
		for (size_t k = 0; k < CELL__REDACT_LIMIT_STRING; k++)
			cell__buf_add(&text, "\xc3\xa9", 2);
		json_t *value = json_stringn(text.data, text.size);
		assert_int_equal(cell__redact_json(redactor, value, NULL, &got), 0);
		json_t *back = json_loads(got.data, 0, NULL);
		assert_non_null(back); /* also when a character would have been cut in two */
		strcpy(hashes[i], json_string_value(json_object_get(back, "sha256")));
		json_decref(back);
		json_decref(value);
	}
	assert_string_equal(hashes[0], hashes[1]);
	cell__redactor_destroy(redactor);
}

static void test_deep(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	CELL_AUTO_BUF struct cell__buf in = CELL_BUF_INIT, got = CELL_BUF_INIT;
	for (int i = 0; i < 1000; i++)
		cell__buf_add(&in, "[", 1);
	for (int i = 0; i < 1000; i++)
		cell__buf_add(&in, "]", 1);
	json_t *value = json_loads(in.data, 0, NULL);
	assert_int_equal(cell__redact_json(redactor, value, NULL, &got), 0);
	assert_non_null(strstr(got.data, "[\"[cut]\"]"));
	assert_int_equal(got.size, 2 * (CELL__REDACT_LIMIT_DEPTH + 1) + 7);
	json_decref(value);
	cell__redactor_destroy(redactor);
}

/* What was cut out for its name is cut out of the error as well. */
static void test_found(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	struct cell__redact_found found = { .count = 0 };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT, text = CELL_BUF_INIT;
	json_t *value = json_loads("{\"password\":\"hunter2\",\"secret\":\"ab\",\"token\":5}", 0, NULL);
	assert_int_equal(cell__redact_json(redactor, value, &found, &out), 0);
	assert_int_equal(found.count, 1);
	const char *error = "login of me with hunter2 failed (ab)";
	assert_int_equal(cell__redact_text(redactor, error, strlen(error), &found, &text), 0);
	assert_string_equal(text.data, "login of me with [redacted] failed (ab)");
	json_decref(value);
	cell__redactor_destroy(redactor);
}

/* Texts made to be slow: each is looked at once, more or less. */
static void test_work(void **state)
{
	(void)state;
	struct cell__redactor *redactor = make(NULL);
	static const char *const units[] = { "sk-",         "eyJ.", "-----BEGIN ", "-----BEGIN x PRIVATE KEY",
					     "password=\"", "://:", "a=",          "--token ",
					     "bearer ",     "\\\"", "password:",   "-----END ",
					     "xoxb-xoxb-" };
	for (size_t i = 0; i < COUNT(units); i++) {
		CELL_AUTO_BUF struct cell__buf in = CELL_BUF_INIT, out = CELL_BUF_INIT;
		while (in.size < LARGE_INPUT(4u << 20))
			cell__buf_add_str(&in, units[i]);
		assert_int_equal(cell__redact_text(redactor, in.data, in.size, NULL, &out), 0);
	}
	cell__redactor_destroy(redactor);
}

static void test_without_memory(void **state)
{
	(void)state;
	const char *const more[] = { "a*", "b.c", NULL };
	bool made = false;
	for (long n = 1; !made; n++) {
		struct cell__redactor *redactor = NULL;
		struct cell_error err = { 0 };
		cell__alloc_fail_after(n);
		made = cell__redactor_create(more, &redactor, &err) == 0;
		cell__alloc_fail_after(0);
		cell__redactor_destroy(redactor);
		assert_true(n < 100);
	}
	struct cell__redactor *redactor = make(more);
	json_t *value = json_loads("{\"a\":[\"password=x\",{\"b\":{\"c\":1}}],\"token\":\"abcd\"}", 0, NULL);
	made = false;
	for (long n = 1; !made; n++) {
		CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
		cell__alloc_fail_after(n);
		made = cell__redact_json(redactor, value, NULL, &out) == 0;
		cell__alloc_fail_after(0);
		assert_true(n < 1000);
	}
	json_decref(value);
	cell__redactor_destroy(redactor);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_texts), TEST(test_values), TEST(test_own_patterns), TEST(test_no_length),      TEST(test_cut),
		TEST(test_deep),  TEST(test_found),  TEST(test_work),         TEST(test_without_memory),
	};
	return cmocka_run_group_tests_name("redact", tests, NULL, NULL);
}
