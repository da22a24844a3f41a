/* wire/embeddings.c: what is asked of an embeddings endpoint, and every way in which its answer can be wrong. */
#define _GNU_SOURCE
#include "wire/embeddings.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>

#include "support.h"

static void test_request(void **state)
{
	(void)state;
	const char *const texts[] = { "plain", "a \"quote\"\n\\ and \xc3\xa9", "", "bad \xff byte" };
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	assert_int_equal(cell__embed_request(&body, "the \"model\"", texts, COUNT(texts)), 0);
	json_t *json = json_loadb(body.data, body.size, 0, NULL);
	assert_non_null(json);
	assert_string_equal(json_string_value(json_object_get(json, "model")), "the \"model\"");
	json_t *input = json_object_get(json, "input");
	assert_int_equal(json_array_size(input), COUNT(texts));
	for (size_t i = 0; i < 3; i++)
		assert_string_equal(json_string_value(json_array_get(input, i)), texts[i]);
	assert_string_equal(json_string_value(json_array_get(input, 3)), "bad \xef\xbf\xbd byte");
	json_decref(json);
}

/* With ' for ". */
static int parse(const char *quick, size_t n, float **vectors, size_t *dimensions, struct cell_error *err)
{
	/* Exactly as large as it is, so that the sanitizer sees a look past the end. */
	size_t size = strlen(quick);
	char *text = malloc(size ? size : 1);
	for (size_t i = 0; i < size; i++)
		text[i] = quick[i] == '\'' ? '"' : quick[i];
	int rc = cell__embed_parse(text, size, n, vectors, dimensions, err);
	free(text);
	return rc;
}

static void expect_vectors(const char *quick, size_t n, size_t dimensions, const float *expected)
{
	float *vectors = NULL;
	size_t got = 0;
	struct cell_error err = { 0 };
	if (parse(quick, n, &vectors, &got, &err) < 0)
		fail_msg("%s: %s", quick, err.msg);
	assert_int_equal(got, dimensions);
	for (size_t i = 0; i < n * dimensions; i++)
		if (!(fabsf(vectors[i] - expected[i]) < 1e-6f))
			fail_msg("%s: number %zu is %g, not %g", quick, i, (double)vectors[i], (double)expected[i]);
	free(vectors);
}

static void test_answers(void **state)
{
	(void)state;
	expect_vectors("{'data':[{'embedding':[3,4]}]}", 1, 2, (float[]){ 0.6f, 0.8f });
	/* As they come: more keys, any order of keys and of items, blanks and line breaks. */
	expect_vectors("{'object':'list','usage':{'total_tokens':5,'x':[[],{}]},\r\n 'data' : [ "
		       "{'object':'embedding', 'index' : 1 , 'embedding':[ 0 , -2.5e0 ]},\n"
		       "{'embedding':[1E2,0.0],'index':0,'object':'embedding'} ] , 'model':'m'}",
		       2, 2, (float[]){ 1, 0, 0, -1 });
	expect_vectors("{'data':[{'index':0,'embedding':[1]},{'embedding':[-7]}]}", 2, 1, (float[]){ 1, -1 });
	/* Zeros have no direction and stay. */
	expect_vectors("{'data':[{'embedding':[0,-0.0,0e5,1e-300]}]}", 1, 4, (float[]){ 0, 0, 0, 0 });
	/* Long and small numbers. */
	expect_vectors("{'data':[{'embedding':[0.30000000000000000000000000000000000004,"
		       "0.000000000000000000000000000000000000000000000000004e50]}]}",
		       1, 2, (float[]){ 0.6f, 0.8f });
	expect_vectors("{'data':[{'embedding':[300000000000000000000000000000,4e29]}]}", 1, 2, (float[]){ 0.6f, 0.8f });
	expect_vectors("{'data':[{'embedding':[1e-99999999999999999999,1]}]}", 1, 2, (float[]){ 0, 1 });
	/* The last of several keys counts; braces in strings do not. */
	expect_vectors("{'data':7,'x':'}]\\\\\\'{','data':[{'embedding':[],'embedding':[2],'e':'\\\\'}]}", 1, 1, (float[]){ 1 });
	/* The point is a point, whatever the host's language. */
	if (setlocale(LC_NUMERIC, "de_DE.UTF-8"))
		expect_vectors("{'data':[{'embedding':[0.3,0.4]}]}", 1, 2, (float[]){ 0.6f, 0.8f });
	setlocale(LC_NUMERIC, "C");
}

static void test_bad_answers(void **state)
{
	(void)state;
	static const struct {
		const char *text, *message;
		size_t n;
	} rows[] = {
		{ "", "not JSON", 1 },
		{ "   ", "not JSON", 1 },
		{ "<html>", "not JSON", 1 },
		{ "{'data':[{'embedding':[1,2]}]", "not JSON", 1 },
		{ "{'data':[{'embedding':[NaN]}]}", "not JSON", 1 },
		{ "{'data':[{'embedding':[Infinity]}]}", "not JSON", 1 },
		{ "{'data':[{'embedding':[1,]}]}", "not JSON", 1 },
		{ "{'data':[{'embedding':[1]}]} {}", "not JSON", 1 },
		{ "7", "lacks the list \"data\"", 1 },
		{ "[]", "lacks the list \"data\"", 1 },
		{ "{}", "lacks the list \"data\"", 1 },
		{ "{'error':{'message':'no'}}", "lacks the list \"data\"", 1 },
		{ "{'data':{}}", "lacks the list \"data\"", 1 },
		{ "{'x':{'data':[{'embedding':[1]}]}}", "lacks the list \"data\"", 1 },
		{ "{'data':[]}", "0 vectors for 1 texts", 1 },
		{ "{'data':[{'embedding':[1]}]}", "1 vectors for 2 texts", 2 },
		{ "{'data':[{'embedding':[1]},{'embedding':[1]}]}", "more vectors than the 1 texts", 1 },
		{ "{'data':[7]}", "not an object", 1 },
		{ "{'data':[{'vector':[1]}]}", "not a list of numbers", 1 },
		{ "{'data':[{'embedding':'AAAA'}]}", "not a list of numbers", 1 },
		{ "{'data':[{'embedding':null}]}", "not a list of numbers", 1 },
		{ "{'data':[{'embedding':[]}]}", "is empty", 1 },
		{ "{'data':[{'embedding':[1,'2']}]}", "not a number", 1 },
		{ "{'data':[{'embedding':[1,null]}]}", "not a number", 1 },
		{ "{'data':[{'embedding':[1,[2]]}]}", "not a number", 1 },
		{ "{'data':[{'embedding':[1,true]}]}", "not a number", 1 },
		{ "{'data':[{'embedding':[1e39]}]}", "too large", 1 },
		{ "{'data':[{'embedding':[-1e999999999999]}]}", "too large", 1 },
		{ "{'data':[{'embedding':[1,2]},{'embedding':[1]}]}", "different numbers of dimensions", 2 },
		{ "{'data':[{'embedding':[1]},{'embedding':[1,2]}]}", "different numbers of dimensions", 2 },
		{ "{'data':[{'index':0,'embedding':[1]},{'index':0,'embedding':[1]}]}", "indexes", 2 },
		{ "{'data':[{'index':1,'embedding':[1]},{'embedding':[1]}]}", "indexes", 2 },
		{ "{'data':[{'index':1,'embedding':[1]}]}", "indexes", 1 },
		{ "{'data':[{'index':-1,'embedding':[1]}]}", "indexes", 1 },
		{ "{'data':[{'index':0.5,'embedding':[1]}]}", "indexes", 1 },
		{ "{'data':[{'index':1e300,'embedding':[1]}]}", "indexes", 1 },
		{ "{'data':[{'index':'0','embedding':[1]}]}", "not a number", 1 },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		float *vectors = (float *)1;
		size_t dimensions = 77;
		struct cell_error err = { 0 };
		if (parse(rows[i].text, rows[i].n, &vectors, &dimensions, &err) == 0)
			fail_msg("accepted: %s", rows[i].text);
		if (err.code != CELL_E_PROTOCOL || !strstr(err.msg, rows[i].message))
			fail_msg("%s: %s: %s", rows[i].text, cell_code_word(err.code), err.msg);
		assert_ptr_equal(vectors, (float *)1);
		assert_int_equal(dimensions, 77);
	}
}

static void test_limits(void **state)
{
	(void)state;
	for (size_t extra = 0; extra < 2; extra++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		cell__buf_add_str(&text, "{\"data\":[{\"embedding\":[1");
		for (size_t i = 1; i < CELL__EMBED_DIMENSIONS + extra; i++)
			cell__buf_add_str(&text, ",0");
		cell__buf_add_str(&text, "]}]}");
		float *vectors = NULL;
		size_t dimensions = 0;
		struct cell_error err = { 0 };
		assert_int_equal(cell__embed_parse(text.data, text.size, 1, &vectors, &dimensions, &err), extra ? -1 : 0);
		assert_int_equal(extra ? err.code : CELL_E_PROTOCOL, CELL_E_PROTOCOL);
		assert_int_equal(dimensions, extra ? 0 : CELL__EMBED_DIMENSIONS);
		free(vectors);
	}
	/* Deep, and much of it. */
	CELL_AUTO_BUF struct cell__buf deep = CELL_BUF_INIT;
	cell__buf_add_str(&deep, "{\"data\":[{\"embedding\":");
	for (size_t i = 0; i < 100000; i++)
		cell__buf_add_str(&deep, "[");
	float *vectors = NULL;
	size_t dimensions = 0;
	assert_int_equal(cell__embed_parse(deep.data, deep.size, 1, &vectors, &dimensions, NULL), -1);
	for (long n = 1;; n++) {
		char text[] = "{\"data\":[{\"embedding\":[1,2]}]}";
		struct cell_error err = { 0 };
		cell__alloc_fail_after(n);
		int rc = cell__embed_parse(text, strlen(text), 1, &vectors, &dimensions, &err);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
		assert_int_equal(err.code, CELL_E_NOMEM);
	}
	free(vectors);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_request), TEST(test_answers), TEST(test_bad_answers), TEST(test_limits) };
	return cmocka_run_group_tests_name("embeddings", tests, NULL, NULL);
}
