/* Notebooks: the public functions. */
#include "engine/notebook.h"

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

static char *notebook_of(const struct cell__buf *bytes, struct cell_error *err)
{
	struct cell__recording recording = { 0 };
	char *text = NULL;
	if (cell__recording_read(bytes->data ? bytes->data : "", bytes->size, &recording, err) == 0) {
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

char *cell_recording_notebook(const char *path, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	if (cell__require(err, path) < 0 || cell__file_load("the recording", path, 0, CELL_RECORDING_BYTES, &bytes, err) < 0)
		return NULL;
	return notebook_of(&bytes, err);
}

char *cell__notebook_so_far(const char *path, uint64_t size, const struct cell__buf *tail, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	if (cell__file_load("the recording", path, 0, CELL_RECORDING_BYTES, &bytes, err) < 0)
		return NULL;
	if (bytes.size > size)
		bytes.size = (size_t)size;
	if (cell__buf_add(&bytes, tail->data, tail->size) < 0) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook");
		return NULL;
	}
	return notebook_of(&bytes, err);
}
