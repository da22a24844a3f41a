/* Notebooks: the public functions. */
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "wire/notebook.h"
#include "wire/recording.h"

char *cell_notebook_cells(const char *notebook, size_t size, struct cell_error *err)
{
	if (cell__require(err, notebook) < 0)
		return NULL;
	json_t *cells = cell__notebook_read(notebook, size, err);
	char *text = cells ? json_dumps(cells, JSON_COMPACT) : NULL;
	if (cells && !text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook");
	json_decref(cells);
	return text;
}

char *cell_recording_notebook(const char *path, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	struct cell__recording recording = { 0 };
	char *text = NULL;
	if (cell__require(err, path) < 0 || cell__file_load("the recording", path, 0, CELL_RECORDING_BYTES, &bytes, err) < 0)
		return NULL;
	if (cell__recording_read(bytes.data ? bytes.data : "", bytes.size, &recording, err) == 0) {
		json_t *cells = json_array();
		for (size_t i = 0; i < recording.n_cells; i++)
			json_array_append_new(cells, json_pack("{s:s%, s:O*}", "code", recording.cells[i].code, recording.cells[i].size,
							       "result", recording.cells[i].result));
		json_t *notebook = cell__notebook_make(cells);
		text = notebook ? json_dumps(notebook, JSON_INDENT(1)) : NULL;
		if (!text)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook");
		json_decref(notebook);
		json_decref(cells);
	}
	cell__recording_finish(&recording);
	return text;
}
