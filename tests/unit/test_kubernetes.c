/* executors/kubernetes/pod.c: what is believed of the API server's description of a pod. */
#include "executors/kubernetes/pod.h"

#include <string.h>

#include "support.h"

static json_t *pod_at(const char *address)
{
	json_t *pod = json_pack("{s:{s:o}}", "status", "podIP", address ? json_string(address) : json_integer(7));

	assert_non_null(pod);
	return pod;
}

static int url_of(const char *address, bool is_local, char **ret_url)
{
	json_t *pod = pod_at(address), *config = json_pack("{s:i}", "port", 8080);
	struct cell_error err = { 0 };
	int status = cell__kube_pod_url(config, pod, is_local, ret_url, &err);

	if (status < 0)
		assert_int_equal(err.code, CELL_E_PROTOCOL);
	json_decref(config);
	json_decref(pod);
	return status;
}

static void test_addresses(void **state)
{
	static const char *const bad[] = { "169.254.169.254",
					   "224.0.0.1",
					   "255.255.255.255",
					   "0.0.0.0",
					   "0.1.2.3",
					   "fe80::1",
					   "ff02::1",
					   "::",
					   "::ffff:127.0.0.1",
					   "::ffff:10.0.0.1",
					   "::7f00:1",
					   "127.0.0.1@evil",
					   "localhost",
					   "10.0.0.1:80",
					   "10.1",
					   "0x7f.0.0.1",
					   "",
					   " 10.0.0.1",
					   "10.0.0.1/x",
					   NULL };
	char *url = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(url_of(bad[i], false, &url), -1);
		assert_int_equal(url_of(bad[i], true, &url), -1);
	}
	assert_null(url);
	assert_int_equal(url_of("127.0.0.1", false, &url), -1);
	assert_int_equal(url_of("::1", false, &url), -1);
	assert_int_equal(url_of("127.0.0.1", true, &url), 0);
	free(url);
	assert_int_equal(url_of("10.244.1.7", false, &url), 0);
	assert_string_equal(url, "http://10.244.1.7:8080");
	free(url);
	assert_int_equal(url_of("fd00::7", false, &url), 0);
	assert_string_equal(url, "http://[fd00::7]:8080");
	free(url);
}

static void test_names(void **state)
{
	char name[300];

	(void)state;
	assert_true(cell__kube_is_name("pool-7d4b9-x2x.a"));
	static const char *const bad[] = { NULL, "", "A", "a/b", "../a", "a..b", "-a", "a-", "a b", "a\n", "a?b", "a%2fb", "\xc3\xa9" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(cell__kube_is_name(bad[i]));
	memset(name, 'a', sizeof(name));
	name[253] = '\0';
	assert_true(cell__kube_is_name(name));
	name[253] = 'a';
	name[254] = '\0';
	assert_false(cell__kube_is_name(name));
	assert_true(cell__kube_is_label("A_b-c.9"));
	static const char *const labels[] = { NULL, "", "a,b", "a=b", "a b", "_a", "a&b", "\xc3\xa9", "a)" };
	for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++)
		assert_false(cell__kube_is_label(labels[i]));
	name[63] = '\0';
	assert_true(cell__kube_is_label(name));
	name[63] = 'a';
	name[64] = '\0';
	assert_false(cell__kube_is_label(name));
}

static void test_quantities(void **state)
{
	static const struct {
		const char *text;
		int64_t value;
	} cases[] = {
		{ "512Mi", 536870912000 },
		{ "1.5", 1500 },
		{ "500m", 500 },
		{ "1k", 1000000 },
		{ "1Gi", 1073741824000 },
		{ "0", 0 },
		{ NULL, -1 },
		{ "", -1 },
		{ "Mi", -1 },
		{ "1X", -1 },
		{ "-1", -1 },
		{ "1.2.3", -1 },
		{ ".", -1 },
		{ "99999999999999999999Ti", -1 },
		{ "999999999999999999999", -1 },
		{ "1 Mi", -1 },
		{ "1e3", -1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(cell__kube_quantity(cases[i].text), cases[i].value);
}

/* Any shape: nothing is followed that is not there. */
static void test_odd_pods(void **state)
{
	static const char *const odd[] = {
		"[]",
		"7",
		"{}",
		"{\"metadata\":[],\"spec\":7,\"status\":\"x\"}",
		"{\"metadata\":{\"labels\":[]},\"spec\":{\"containers\":[7,null,{}],\"volumes\":{}},\"status\":{\"conditions\":[1]}}",
		"{\"spec\":{\"automountServiceAccountToken\":false,\"containers\":[{\"securityContext\":[]}]}}",
		"{\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":1}]}}"
	};
	json_t *config = json_pack("{s:i}", "port", 1);
	struct cell_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		json_t *pod = json_loads(odd[i], JSON_DECODE_ANY, NULL);
		char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE], *text;

		assert_non_null(pod);
		assert_false(cell__kube_pod_is_idle(pod));
		assert_false(cell__kube_pod_has_ended(pod, &err));
		assert_false(cell__kube_identity(pod, name, uid));
		assert_int_equal(cell__kube_pod_check(config, pod, &err), -1);
		assert_int_equal(err.code, CELL_E_UNAVAILABLE);
		assert_null(cell__kube_claim_patch(pod, "lease", "uid"));
		text = cell__kube_receipt(config, pod);
		assert_non_null(text);
		free(text);
		json_decref(pod);
	}
	json_decref(config);
}

/* As packaging/pod_token.py computes it. */
static void test_token(void **state)
{
	char token[CELL_KUBE_TOKEN_SIZE];
	struct cell_error err;

	(void)state;
	assert_int_equal(cell__kube_pod_token("0123456789abcdef0123456789abcdef", "a-b", token, &err), 0);
	assert_string_equal(token, "10c899de4d0bcb1284be46f997e4ef08308049763345521572d5b4899eea0273");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_addresses), cmocka_unit_test(test_names), cmocka_unit_test(test_quantities),
		cmocka_unit_test(test_odd_pods),  cmocka_unit_test(test_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
