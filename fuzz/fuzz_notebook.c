/* wire/notebook: Jupyter notebooks.  The cells of whatever is accepted are a notebook again, with the same cells. */
#include "base/base.h"
#include "fuzz.h"
#include "wire/notebook.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell_error err = { 0 };
	uint8_t *copy = fuzz_copy(data, size);
	json_t *cells = cell__notebook_read((const char *)copy, size, &err), *list = json_array(), *cell;
	size_t i;
	if (cells) {
		MUST(json_is_array(cells) && json_array_size(cells) <= CELL_NOTEBOOK_CELLS);
		json_array_foreach(cells, i, cell)
			json_array_append_new(list, json_pack("{s:O}", "code", cell));
		json_t *notebook = cell__notebook_make(list);
		char *text = notebook ? json_dumps(notebook, 0) : NULL;
		json_t *again = text ? cell__notebook_read(text, strlen(text), &err) : NULL;
		MUST(again && json_equal(again, cells));
		json_decref(again);
		json_decref(notebook);
		free(text);
	} else {
		MUST(err.code == CELL_E_INVALID || err.code == CELL_E_UNSUPPORTED || err.code == CELL_E_LIMIT || err.code == CELL_E_NOMEM);
	}
	json_decref(cells);
	json_decref(list);
	free(copy);
	return 0;
}
