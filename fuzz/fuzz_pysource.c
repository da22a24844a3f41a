/* Any bytes as a workflow's source: an error of ours, or a description in which everything that must be there is. */
#include "fuzz.h"
#include "storage/pysource.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const types[] = { "string", "integer", "number", "boolean", "array", "object" };
	struct cell__py_source out;
	struct cell_error err = { 0 };
	uint8_t *copy = fuzz_copy(data, size);
	int rc = cell__py_scan((const char *)copy, size, &out, &err);
	free(copy); /* nothing in the result may point into the source */
	if (rc < 0) {
		MUST(err.code == CELL_E_INVALID || err.code == CELL_E_LIMIT);
		MUST(strlen(err.msg) > 0);
		return 0;
	}
	MUST(out.n_params <= CELL__PY_PARAMS);
	MUST(!out.docstring || cell__utf8_ok(out.docstring, strlen(out.docstring)));
	MUST(!out.run_docstring || cell__utf8_ok(out.run_docstring, strlen(out.run_docstring)));
	for (size_t i = 0; i < out.n_params; i++) {
		const struct cell__py_param *p = &out.params[i];
		bool known = false;
		for (size_t k = 0; k < sizeof types / sizeof *types; k++)
			known |= strcmp(types[k], p->type) == 0;
		MUST(known && p->name[0] && !cell__py_is_keyword(p->name));
		MUST(p->required == (p->default_value == NULL));
	}
	cell__py_source_finish(&out);
	return 0;
}
