/* wire/jwt: signed tokens, keys and claims, honest and not. */
#include "support.h"
#include "wire/jwt.h"
#include "wire/oauth.h"

/* Made once, with keys that are gone: JWKS with keys that we use (r, e) and keys that we do not. */
static const char keys_text[] =
	"{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\",\"alg\":\"HS256\",\"kid\":\"h\"},{\"kty\":\"RSA\",\"kid\":\"r\",\"n\":\"zk98qUAvvm"
	"Q8sGDt6U2u6SEdjElIHdOXXw4kRqKSIUAjOrbcDz_PwCmnXrJhUvCx0k_TIgxQmc2SbVL6npJrvlpZLm_gnxyx01RidkFPwaLnBu"
	"lLs9wuHxe9YAB6E4FN50-s2Iip-znsNQI3M3TNyc7PrEYAacKGiIEqcnvBf7XOlyfjefE_MswkiRIdAzLBVot9cBa0pSTV0GBdke"
	"gb7kTo-Sg9S0rFB8BNgBN_oL7GEpqQn4K5mfF4eF1qhxWZlzeCnZS-t6vNiHE6s9JtVxQYNafAlPfNnGbapBmL7IcAnldi-PFxwN"
	"llBWk8mdKp8a4yk8d_oCO9eW_rzNBUmw\",\"e\":\"AQAB\",\"use\":\"sig\"},{\"kty\":\"EC\",\"kid\":\"e\",\"crv\":\"P-256\",\"x\":\"3"
	"UHDiAlbkerYES6saxsKy_2u2EPxwRweD-rglXeePxA\",\"y\":\"hBYR6YV-iOVC_jTJBtX3NA0dkZKbqiXCf00FA82SgXo\",\"alg\":"
	"\"ES256\"},{\"kty\":\"RSA\",\"kid\":\"small\",\"n\":\"sPv5bSCFSJNwBEhL-6EQbvDDTIFwDLHDI4SL68mFqOeTaiK8mw7W7II2YpN"
	"WddCCbq9r9HnwhdnIOEc75eq0aE787nlqn3bVboSCwiaLy4zXIB9aQ33OXlFRAQzzOZ6D-HWiAMbk_H5II2ArLHzvXgqIOsxiMJr"
	"0kUiK5EcnqJ8\",\"e\":\"AQAB\"},{\"kty\":\"EC\",\"kid\":\"e3\",\"crv\":\"P-384\",\"x\":\"2oupo3pgUeF7Iwag1o1_JpSFrZidFnvC"
	"rPMq_7IMpmlo2uBJTrSHUeOmxojrw5eu\",\"y\":\"nXt9NijZftm4yDcTagTHHeLOthCeoGsksWOQ1Isz8-0aHXkMnfxklfVx2xcSh"
	"S0Z\"},{\"kty\":\"EC\",\"kid\":\"off\",\"crv\":\"P-256\",\"x\":\"3UHDiAlbkerYES6saxsKy_2u2EPxwRweD-rglXeePxA\",\"y\":\"3"
	"UHDiAlbkerYES6saxsKy_2u2EPxwRweD-rglXeePxA\"},{\"kty\":\"RSA\",\"kid\":\"enc\",\"n\":\"zk98qUAvvmQ8sGDt6U2u6SEdj"
	"ElIHdOXXw4kRqKSIUAjOrbcDz_PwCmnXrJhUvCx0k_TIgxQmc2SbVL6npJrvlpZLm_gnxyx01RidkFPwaLnBulLs9wuHxe9YAB6E"
	"4FN50-s2Iip-znsNQI3M3TNyc7PrEYAacKGiIEqcnvBf7XOlyfjefE_MswkiRIdAzLBVot9cBa0pSTV0GBdkegb7kTo-Sg9S0rFB"
	"8BNgBN_oL7GEpqQn4K5mfF4eF1qhxWZlzeCnZS-t6vNiHE6s9JtVxQYNafAlPfNnGbapBmL7IcAnldi-PFxwNllBWk8mdKp8a4yk"
	"8d_oCO9eW_rzNBUmw\",\"e\":\"AQAB\",\"use\":\"enc\"}]}";
static const char rs256[] = "eyJhbGciOiJSUzI1NiIsImtpZCI6InIiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6Imh0d"
			    "HBzOi8vci5leGFtcGxlL21jcCIsInN1YiI6ImFsaWNlIiwiZXhwIjoyMDAwMDAwMDAwLCJuYmYiOjEwMDAwMDAwMDAsInNjb3BlI"
			    "joiYSBiOmMifQ.aGWV86q-CuvvVH_HDQyyffpbxJ6vZymaxXvJh_39U5x7GExGRCMQ-R06nmnJHJPSZXHxcqDNPx1EENnaIp40TL"
			    "eNb55F4MdAQvRGIAzumug-AhJVX3R5tpvSBGAJLEQ1__OH7FIvVkVP4Aho2GzF582AF1qiO-bXui1FVkLpGP7TiBo24e5jftQWcx"
			    "9d83_emH1qyq4MZVQ3CrcU11mIYU_zmsjmjoqdthmRDZ7-4O6-lphqfToCwToi9ZqtS32VjLJYZ_oEwBNNDnIozfmi5XmfcWAVJd"
			    "lkK0nQD-5bFuXfKI-heNXrHmXesp4QuKuNeq0Qi3U_jlEhQmv7DxONQw";
static const char ps256[] = "eyJhbGciOiJQUzI1NiIsImtpZCI6InIiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6Imh0d"
			    "HBzOi8vci5leGFtcGxlL21jcCIsInN1YiI6ImFsaWNlIiwiZXhwIjoyMDAwMDAwMDAwLCJuYmYiOjEwMDAwMDAwMDAsInNjb3BlI"
			    "joiYSBiOmMifQ.bXFYBBrqv4GWPsddfIpgRbIjOcrTZXne0eTzXL891eOFZI4INXiZx4iYklqbZEe6ciD0c_7uCX6q_RWgFO7i_N"
			    "oshY-fgFpRUaCAJX2aOY0u4ft44n8kPsCgZQqF7lO83vK5m1jCtNPeRTFvp5Jxz-OJnlS2hbyF-HcvUQQxm4GORILTNVJW7BqUyE"
			    "s7n17OIv79HbsSN0JZbXQ0CmbS3v3a-rPRd5mtHPCT29chjxGNM5vtRtWCPq48vLC20vF2IzxPKs-sIlnPWjFvXNPc8OynX5u5P3"
			    "moD2pAAs522-AWCg15Je5-9TabR5L2gfRClila_huiW_ERJ_jtkqbnhw";
static const char es256[] = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImUiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6Imh0d"
			    "HBzOi8vci5leGFtcGxlL21jcCIsInN1YiI6ImFsaWNlIiwiZXhwIjoyMDAwMDAwMDAwLCJuYmYiOjEwMDAwMDAwMDAsInNjb3BlI"
			    "joiYSBiOmMifQ.53Av1JU_R6L5xqDADgkVhznjdQqoeu05Z5ctN36ogFA1UE4WPYB-HeqwqOJN0Y6ecr9eBt5zM5NfodT-Zuv0hw";
static const char rs256_nokid[] = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6Imh0dHBzOi8vci5leGF"
				  "tcGxlL21jcCIsInN1YiI6ImFsaWNlIiwiZXhwIjoyMDAwMDAwMDAwLCJuYmYiOjEwMDAwMDAwMDAsInNjb3BlIjoiYSBiOmMifQ."
				  "k2PbU53tKJvOhIZAe3l2ly-TvTutEOH02xgByNakPEiLljS1ZXzyztUQVS8ThUj9k6AFHpRQ2pO5HkVAfLXviYJlIjWVYCfCojVm"
				  "rxoZQnJmlROnMPsf1r8SRtbii3H50LrcAfE3Oe7HVDaGHzmHhID8aNyapXcByRbPQ35MqemTuGusGZIa9SxWRMdQHTpp1LA7BM9U"
				  "NoWETL5H0cF5CDdSOXEOPgGjFN_P0b0ERuxTjhTRhm7uyOHJ5sadL1hKRdRPigIoVNXTzP6LfOrHzeeztSwgQNtHAHtbDhZ9Qt3V"
				  "dvVCQIANKTmoiefuYtySmTS1jPm1q50mPYElIS2v1A";
static const char rs256_small[] = "eyJhbGciOiJSUzI1NiIsImtpZCI6InNtYWxsIiwidHlwIjoiSldUIn0.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSIsImF1ZCI6"
				  "Imh0dHBzOi8vci5leGFtcGxlL21jcCIsInN1YiI6ImFsaWNlIiwiZXhwIjoyMDAwMDAwMDAwLCJuYmYiOjEwMDAwMDAwMDAsInNj"
				  "b3BlIjoiYSBiOmMifQ.P1Q8qzLeEJxpk6mtwmqZQtOkTvM_C2qYeXYjLl91ja2_LNfvd-nHhKftSIf2vBQISQsJGFKZc5s-Qu6CF"
				  "IElH70qaOVhHAG9Efh3DlvcO6tFvafTarinr0bSZsHfhJIHFLJTob1ULWopTM13uJxYorKwC2sUeVdsa866GHaxygY";
/* Signed by HMAC with the public key as the secret. */
static const char hs256[] = "eyJhbGciOiAiSFMyNTYiLCAia2lkIjogInIifQ.eyJpc3MiOiAiaHR0cHM6Ly9pLmV4YW1wbGUiLCAiYXVkIjogImh0dHBzOi8vc"
			    "i5leGFtcGxlL21jcCIsICJzdWIiOiAiYWxpY2UiLCAiZXhwIjogMjAwMDAwMDAwMCwgIm5iZiI6IDEwMDAwMDAwMDAsICJzY29wZ"
			    "SI6ICJhIGI6YyJ9.ZObgyJ01r1CxnPbim9dmRIMrbCwJCfE_I7-naDB8rjw";

static struct cell__jwks load_keys(void)
{
	struct cell__jwks keys;
	struct cell_error err;
	assert_int_equal(cell__jwks_parse(keys_text, strlen(keys_text), &keys, &err), 0);
	return keys;
}

/* -1: it is not even read. */
static int verdict(const char *token, unsigned algs)
{
	struct cell__jwks keys = load_keys();
	struct cell__jwt jwt;
	struct cell_error err = { 0 };
	int found = -1;
	if (cell__jwt_parse(token, strlen(token), algs, &jwt, &err) == 0) {
		found = (int)cell__jwt_verify(&jwt, &keys);
		cell__jwt_finish(&jwt);
	} else {
		assert_int_equal(err.code, CELL_E_AUTH);
	}
	cell__jwks_finish(&keys);
	return found;
}

static void test_signatures(void **state)
{
	(void)state;
	assert_int_equal(verdict(rs256, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
	assert_int_equal(verdict(ps256, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
	assert_int_equal(verdict(es256, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
	assert_int_equal(verdict(rs256_nokid, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
	assert_int_equal(verdict(rs256, CELL_JWT_ES256), -1);
	assert_int_equal(verdict(es256, CELL_JWT_RS256 | CELL_JWT_PS256), -1);
	assert_int_equal(verdict(hs256, CELL_JWT_ALL_ALGS), -1);
	assert_int_equal(verdict(rs256_small, CELL_JWT_ALL_ALGS), CELL_JWT_UNKNOWN);
}

/* Every byte of a token matters, also those that base64 could ignore. */
static void test_changed(void **state)
{
	(void)state;
	const char *const all[] = { rs256, ps256, es256 };
	for (size_t i = 0; i < 3; i++) {
		char *copy = strdup(all[i]);
		size_t size = strlen(copy);
		for (size_t at = 0; at<size; at += at> size - 90 ? 1 : 7) {
			char old = copy[at];
			copy[at] = old == 'A' ? 'B' : 'A';
			assert_int_not_equal(verdict(copy, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
			copy[at] = old;
		}
		assert_int_equal(verdict(copy, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
		copy[size - 1] = '\0';
		assert_int_not_equal(verdict(copy, CELL_JWT_ALL_ALGS), CELL_JWT_GOOD);
		free(copy);
	}
}

/* head.claims with this head, and the signature of a good token. */
static char *forge(const char *head, const char *claims, const char *signature)
{
	struct cell__buf out = CELL_BUF_INIT;
	assert_int_equal(cell__buf_add_base64url(&out, head, strlen(head)), 0);
	assert_int_equal(cell__buf_add(&out, ".", 1), 0);
	assert_int_equal(cell__buf_add_base64url(&out, claims, strlen(claims)), 0);
	assert_int_equal(cell__buf_add_str(&out, signature), 0);
	return cell__buf_take(&out);
}

static void test_heads(void **state)
{
	(void)state;
	static const char *const refused[] = {
		"{\"alg\":\"none\"}",
		"{\"alg\":\"None\"}",
		"{\"alg\":\"nOnE\"}",
		"{\"alg\":\"\"}",
		"{}",
		"{\"alg\":null}",
		"{\"alg\":[\"RS256\"]}",
		"{\"alg\":\"HS256\"}",
		"{\"alg\":\"RS256 \"}",
		"{\"alg\":\"rs256\"}",
		"{\"alg\":\"RS512\"}",
		"{\"alg\":\"ES384\"}",
		"{\"alg\":\"RS256\",\"crit\":[\"b64\"],\"b64\":false}",
		"{\"alg\":\"RS256\",\"kid\":1}",
		"{\"alg\":\"none\",\"alg\":\"RS256\"}",
		"[]",
		"\"RS256\"",
		"{\"alg\":\"RS256\"",
	};
	const char *signature = strrchr(rs256, '.');
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		char *token = forge(refused[i], "{}", signature);
		assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), -1);
		free(token);
	}
	/* A key that the token brings along is not used. */
	char *token = forge("{\"alg\":\"RS256\",\"kid\":\"new\",\"jwk\":{\"kty\":\"RSA\"},\"jku\":\"http://x/\"}", "{}", signature);
	assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), CELL_JWT_UNKNOWN);
	free(token);
	token = forge("{\"alg\":\"ES256\",\"kid\":\"r\"}", "{}", signature); /* the key is RSA */
	assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), CELL_JWT_UNKNOWN);
	free(token);
	token = forge("{\"alg\":\"RS256\",\"kid\":\"r\"}", "{}", "."); /* the signature is empty */
	assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), -1);
	free(token);
	token = forge("{\"alg\":\"RS256\",\"kid\":\"r\"}", "{}", ".YQ"); /* one byte */
	assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), CELL_JWT_BAD);
	free(token);
	static const char *const shapes[] = { "", ".", "..", "...", "a.b.c", "a.b", ".e30.x", "opaque", "a.b.c.d" };
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		assert_int_equal(verdict(shapes[i], CELL_JWT_ALL_ALGS), -1);
}

static void test_zero_signature(void **state)
{
	(void)state;
	char zeros[2 + 86] = ".";
	memset(zeros + 1, 'A', 86); /* r = s = 0 */
	char *token = forge("{\"alg\":\"ES256\",\"kid\":\"e\"}", "{}", zeros);
	assert_int_equal(verdict(token, CELL_JWT_ALL_ALGS), CELL_JWT_BAD);
	free(token);
}

static void test_size(void **state)
{
	(void)state;
	for (size_t more = 0; more < 2; more++) {
		char *long_one = malloc(CELL_JWT_LIMIT_BYTES + 2);
		struct cell__jwt jwt;
		struct cell_error err;
		memset(long_one, 'a', CELL_JWT_LIMIT_BYTES + 1);
		assert_int_equal(cell__jwt_parse(long_one, CELL_JWT_LIMIT_BYTES + more, CELL_JWT_ALL_ALGS, &jwt, &err), -1);
		assert_int_equal(!!strstr(err.msg, "bytes"), more);
		free(long_one);
	}
}

static void test_keys(void **state)
{
	(void)state;
	struct cell__jwks keys = load_keys();
	struct cell_error err;
	assert_int_equal(keys.count, 2); /* r, e: no secret key, no short one, no other curve, no point beside it, none for encryption */
	cell__jwks_finish(&keys);
	static const char *const bad[] = { "",
					   "[]",
					   "{}",
					   "{\"keys\":{}}",
					   "{\"keys\":[]}",
					   "{\"keys\":[1,{},{\"kty\":\"RSA\"}]}",
					   "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AA\",\"alg\":\"RS256\"}]}",
					   "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"}]}",
					   "{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AA\",\"y\":\"AA\"}]}" };
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(cell__jwks_parse(bad[i], strlen(bad[i]), &keys, &err), -1);
	struct cell__buf many = CELL_BUF_INIT;
	for (unsigned more = 0; more < 2; more++) {
		const char *one = strchr(strchr(keys_text, '{') + 1, '{');
		const char *second = strchr(one + 1, '{');
		many.size = 0;
		assert_int_equal(cell__buf_add_str(&many, "{\"keys\":["), 0);
		for (unsigned i = 0; i < CELL_JWT_LIMIT_KEYS + more; i++) {
			assert_int_equal(cell__buf_add(&many, i ? "," : "", i ? 1 : 0), 0);
			assert_int_equal(cell__buf_add(&many, second, strcspn(second, "}") + 1), 0);
		}
		assert_int_equal(cell__buf_add_str(&many, "]}"), 0);
		assert_int_equal(cell__jwks_parse(many.data, many.size, &keys, &err), more ? -1 : 0);
		if (more)
			assert_int_equal(err.code, CELL_E_LIMIT);
		else
			cell__jwks_finish(&keys);
	}
	cell__buf_finish(&many);
}

static const char *refusal(const char *claims_text, bool answered, int64_t now_s)
{
	static const char *const audiences[] = { "other", "me", NULL };
	static struct cell_error err;
	struct cell__claims_rules rules = { .issuer = "i", .audiences = audiences, .skew_s = 60, .answered = answered };
	json_t *claims = json_loads(claims_text, 0, NULL);
	assert_non_null(claims);
	err.msg[0] = '\0';
	int rc = cell__claims_check(claims, &rules, now_s, &err);
	assert_int_equal(rc < 0, err.msg[0] != '\0');
	json_decref(claims);
	return err.msg;
}

static void test_claims(void **state)
{
	(void)state;
	assert_string_equal(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":1000}", false, 999), "");
	assert_string_equal(refusal("{\"iss\":\"i\",\"aud\":[\"x\",\"me\"],\"exp\":1000.5,\"nbf\":1059,\"iat\":1059}", false, 999), "");
	assert_string_equal(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":1000}", false, 1059), ""); /* within the skew */
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":1000}", false, 1060), "expired"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":1000,\"nbf\":1060}", false, 999), "yet"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":2000,\"iat\":1060}", false, 999), "yet"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\"}", false, 999), "does not expire"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":\"1000\"}", false, 999), "times"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":-1}", false, 999), "times"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"me\",\"exp\":1e300}", false, 999), "times"));
	assert_non_null(strstr(refusal("{\"iss\":\"I\",\"aud\":\"me\",\"exp\":1000}", false, 999), "issuer"));
	assert_non_null(strstr(refusal("{\"iss\":[\"i\"],\"aud\":\"me\",\"exp\":1000}", false, 999), "issuer"));
	assert_non_null(strstr(refusal("{\"aud\":\"me\",\"exp\":1000}", false, 999), "issuer"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":\"mee\",\"exp\":1000}", false, 999), "audience"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"exp\":1000}", false, 999), "audience"));
	assert_non_null(strstr(refusal("{\"iss\":\"i\",\"aud\":{\"me\":1},\"exp\":1000}", false, 999), "audience"));
	/* The issuer's own answer may leave out what it has checked, and must not contradict. */
	assert_string_equal(refusal("{\"aud\":\"me\"}", true, 999), "");
	assert_non_null(strstr(refusal("{\"aud\":\"me\",\"iss\":\"x\"}", true, 999), "issuer"));
	assert_non_null(strstr(refusal("{\"aud\":\"me\",\"exp\":1}", true, 999), "expired"));
	assert_non_null(strstr(refusal("{\"active\":true}", true, 999), "audience"));
}

static void test_scopes(void **state)
{
	(void)state;
	json_t *claims = json_loads("{\"scope\":\"a  b:c\",\"scp\":[\"d\",1]}", 0, NULL);
	assert_true(cell__claims_has_scope(claims, "a"));
	assert_true(cell__claims_has_scope(claims, "b:c"));
	assert_true(cell__claims_has_scope(claims, "d"));
	assert_false(cell__claims_has_scope(claims, "b"));
	assert_false(cell__claims_has_scope(claims, "c"));
	assert_false(cell__claims_has_scope(claims, ""));
	json_decref(claims);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_signatures),     cmocka_unit_test(test_changed), cmocka_unit_test(test_heads),
		cmocka_unit_test(test_zero_signature), cmocka_unit_test(test_size),    cmocka_unit_test(test_keys),
		cmocka_unit_test(test_claims),         cmocka_unit_test(test_scopes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
