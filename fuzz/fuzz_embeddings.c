/*
 * wire/embeddings.  What it takes for vectors Jansson takes for JSON (but for numbers that Jansson cannot hold), and they
 * are all there, finite, and of length one or zero.
 */
#include <jansson.h>
#include <math.h>

#include "fuzz.h"
#include "wire/embeddings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	size_t n = 1 + data[0] % 3;
	char *text = (char *)fuzz_copy(data + 1, size - 1);
	float *vectors = NULL;
	size_t dimensions = 0;
	if (cell__embed_parse(text, size - 1, n, &vectors, &dimensions, NULL) == 0) {
		json_error_t problem;
		json_t *json = json_loadb(text, size - 1, JSON_ALLOW_NUL, &problem);
		MUST(json || json_error_code(&problem) == json_error_numeric_overflow ||
		     json_error_code(&problem) == json_error_null_byte_in_key);
		MUST(!json || json_array_size(json_object_get(json, "data")) == n);
		MUST(dimensions > 0 && dimensions <= CELL__EMBED_DIMENSIONS);
		for (size_t i = 0; i < n; i++) {
			double sum = 0;
			for (size_t k = 0; k < dimensions; k++)
				sum += (double)vectors[i * dimensions + k] * vectors[i * dimensions + k];
			MUST(sum == 0 || fabs(sum - 1) < 1e-3);
		}
		json_decref(json);
		free(vectors);
	}
	free(text);
	return 0;
}
