/* wire/oauth: challenges, addresses and queries of OAuth, honest and not; and where a public server may not send us. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/http.h"
#include "support.h"
#include "wire/oauth.h"

static void expect_challenge(const char *header, const char *name, const char *value)
{
	char *found = cell__oauth_challenge(header, name);
	if (value)
		assert_string_equal(found ? found : "(null)", value);
	else
		assert_null(found);
	free(found);
}

static void test_challenges(void **state)
{
	(void)state;
	expect_challenge("Bearer scope=\"a b\", resource_metadata=\"https://x/y\"", "scope", "a b");
	expect_challenge("bearer SCOPE = plain , error=\"insufficient_scope\"", "scope", "plain");
	expect_challenge("Basic realm=\"x\", Bearer resource_metadata=\"https://x\"", "resource_metadata", "https://x");
	expect_challenge("Basic scope=\"x\"", "scope", NULL); /* of another scheme */
	expect_challenge("Negotiate abc==, Bearer scope=\"s\"", "scope", "s");
	expect_challenge("Bearer realm=\"a, scope=\\\"no\\\"\", scope=\"yes\"", "scope", "yes");
	expect_challenge("Bearer", "scope", NULL);
	expect_challenge("", "scope", NULL);
	expect_challenge("Bearer scope=\"never ends", "scope", NULL);
	expect_challenge("Bearer scope=\"a\x1b[0m\"", "scope", NULL);
	char *longest = malloc(CELL_OAUTH_LIMIT_VALUE + 32);
	for (int more = 0; more < 2; more++) {
		int n = sprintf(longest, "Bearer scope=\"");
		memset(longest + n, 'x', CELL_OAUTH_LIMIT_VALUE + (size_t)more);
		strcpy(longest + n + CELL_OAUTH_LIMIT_VALUE + more, "\"");
		char *found = cell__oauth_challenge(longest, "scope");
		assert_int_equal(found ? strlen(found) : 0, more ? 0 : CELL_OAUTH_LIMIT_VALUE);
		free(found);
	}
	free(longest);
}

static void test_urls(void **state)
{
	(void)state;
	struct cell__oauth_url url;
	assert_int_equal(cell__oauth_url_read("HTTPS://Example.COM:443/a/b?c", &url), 0);
	assert_string_equal(url.origin, "https://example.com");
	assert_int_equal(url.path_size, 4);
	assert_true(url.secure);
	assert_int_equal(cell__oauth_url_read("http://[::1]:8080", &url), 0);
	assert_string_equal(url.origin, "http://[::1]:8080");
	assert_true(cell__oauth_is_loopback(url.host));
	assert_int_equal(cell__oauth_url_read("https://x:44", &url), 0);
	assert_string_equal(url.origin, "https://x:44");
	static const char *const bad[] = { "",
					   "ftp://x",
					   "https://",
					   "https:///a",
					   "https://user@x/",
					   "https://x/#f",
					   "https://x/\x1b",
					   "https://x y",
					   "https://x:port/",
					   "https://x:123456/",
					   "https://x\\y",
					   "javascript:alert(1)",
					   "https://[::1/",
					   "//x" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(cell__oauth_url_read(bad[i], &url), -1);
	assert_true(cell__oauth_is_loopback("127.0.0.1"));
	assert_false(cell__oauth_is_loopback("127.0.0.1.evil.example"));
	assert_false(cell__oauth_is_loopback("localhost.evil.example"));
	assert_false(cell__oauth_is_loopback("127.0.0.999"));
}

static void expect_found(const char *query, const char *name, const char *value)
{
	char *found = cell__query_value(query, strlen(query), name);
	if (value)
		assert_string_equal(found ? found : "(null)", value);
	else
		assert_null(found);
	free(found);
}

static void test_queries(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	bool first = true;
	assert_int_equal(cell__buf_add_query(&text, &first, "a", "x y&=\n"), 0);
	assert_int_equal(cell__buf_add_query(&text, &first, "b", "~"), 0);
	assert_string_equal(text.data, "a=x%20y%26%3D%0A&b=~");
	expect_found(text.data, "a", "x y&=\n");
	expect_found("a=1+2&b=%41", "a", "1 2");
	expect_found("a=1+2&b=%41", "b", "A");
	expect_found("a=1&a=2", "a", NULL);
	expect_found("a=%4", "a", NULL);
	expect_found("a=%zz", "a", NULL);
	expect_found("a=%00", "a", NULL);
	expect_found("aa=1", "a", NULL);
}

static void test_base64url(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, bytes = CELL_BUF_INIT;
	assert_int_equal(cell__buf_add_base64url(&text, "\xfb\xff\xfe\x00", 4), 0);
	assert_string_equal(text.data, "-__-AA");
	assert_int_equal(cell__buf_add_unbase64url(&bytes, text.data, text.size), 0);
	assert_int_equal(bytes.size, 4);
	assert_memory_equal(bytes.data, "\xfb\xff\xfe\x00", 4);
	assert_int_equal(cell__buf_add_unbase64url(&bytes, "+/", 2), -1);
	assert_int_equal(cell__buf_add_unbase64url(&bytes, "AA==", 4), -1);
	assert_int_equal(cell__buf_add_unbase64url(&bytes, "A", 1), -1);
	/* Each byte has one text. */
	for (const char *c = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"; *c; c++) {
		char two[] = { 'A', *c }, three[] = { 'A', 'A', *c };

		assert_int_equal(cell__buf_add_unbase64url(&bytes, two, 2), strchr("AQgw", *c) ? 0 : -1);
		assert_int_equal(cell__buf_add_unbase64url(&bytes, three, 3), strchr("AEIMQUYcgkosw048", *c) ? 0 : -1);
	}
}

/* ---- requests to a private network ---- */

static int request(const char *host, unsigned port, bool allow_private, struct cell__http_reply *reply, struct cell_error *err)
{
	const struct cell__http_rules rules = { 1024, allow_private };
	char url[80];
	const struct cell__http_request request = { .method = "GET", .url = url, .timeout_ms = 20000 };
	snprintf(url, sizeof url, "http://%s:%u/.well-known/x", host, port);
	*reply = (struct cell__http_reply){ 0 };
	return cell__http_perform(&request, NULL, &rules, reply, err);
}

static void *answer_once(void *arg)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
	char bytes[1024];
	int fd = accept(*(int *)arg, NULL, NULL);
	assert_true(fd >= 0 && recv(fd, bytes, sizeof bytes, 0) > 0 && send(fd, answer, sizeof answer - 1, 0) > 0);
	close(fd);
	return NULL;
}

/* However the address is written: what counts is where the connection would go, also when a name means another address than before. */
static void test_private_networks(void **state)
{
	static const char *const hosts[] = { "127.0.0.1", "localhost",          "0.0.0.0", "2130706433", "0x7f.1",
					     "[::1]",     "[::ffff:127.0.0.1]", "127.1" };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	struct cell__http_reply reply;
	struct cell_error err;
	pthread_t thread;
	(void)state;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 4) == 0 &&
		    getsockname(fd, (struct sockaddr *)&address, &size) == 0);
	struct pollfd came = { .fd = fd, .events = POLLIN };
	for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
		assert_int_equal(request(hosts[i], ntohs(address.sin_port), false, &reply, &err), -1);
		assert_int_equal(err.code, CELL_E_FORBIDDEN);
		assert_non_null(strstr(err.msg, "private network"));
		cell__http_reply_finish(&reply);
	}
	assert_int_equal(poll(&came, 1, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, answer_once, &fd), 0);
	assert_int_equal(request("127.0.0.1", ntohs(address.sin_port), true, &reply, &err), 0);
	assert_true(reply.private_address && reply.status == 200);
	cell__http_reply_finish(&reply);
	pthread_join(thread, NULL);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_private_networks), cmocka_unit_test(test_challenges), cmocka_unit_test(test_urls),
		cmocka_unit_test(test_queries),          cmocka_unit_test(test_base64url),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
