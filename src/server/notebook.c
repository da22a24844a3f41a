/*
 * Notebooks over HTTP: GET makes one of the session's recording, POST runs one as cells of the session.
 *
 *     POST ──▶ cell 1 ──▶ its result ──▶ cell 2 ──▶ ... ──▶ the last one, or the first that fails ──▶ the answer
 *
 * Each cell is a job as any other, so cells of other requests may come between two of them.
 */
#include "server/api.h"

#include <string.h>

#include "engine/notebook.h"
#include "session/recording.h"
#include "session/session.h"
#include "wire/notebook.h"

static void read_notebook(struct cell__lookup *reading)
{
	reading->text = cell__notebook_so_far(reading->path, reading->at, &reading->tail, &reading->err);
}

void cell__handle_v1_notebook_get(struct cell__request *request)
{
	CELL_AUTO_BUF struct cell__buf tail = CELL_BUF_INIT;
	const struct cell__recorder *recorder;
	struct cell__lookup *reading;
	uint64_t at;

	if (!cell__served_find(request, request->params[0], false))
		return;
	recorder = request->served->session->recorder;
	if (!recorder || !recorder->path)
		cell__answer_fail(request, (unsigned)cell_code_http_status(CELL_E_UNSUPPORTED), CELL_E_UNSUPPORTED,
				  "the session is not recorded: start the server with --record DIR");
	else if (cell__recorder_unwritten(recorder, &tail, &at) < 0)
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a notebook");
	else if ((reading = cell__lookup_create(request, read_notebook, recorder->path, NULL))) {
		reading->at = at;
		reading->tail = tail;
		tail = (struct cell__buf)CELL_BUF_INIT;
		cell__lookup_begin(reading);
	}
}

/* ---- running one ---- */

/* request->kept: {"cells": [code], "results": [...], "bytes"} */
static void answer_results(struct cell__request *request)
{
	json_t *cells = json_object_get(request->kept, "cells"), *results = json_object_get(request->kept, "results");

	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("{s:s,s:I,s:O}", "session_id", request->served->id, "cells", (json_int_t)json_array_size(cells),
				    "results", results));
}

static void run_next(struct cell__request *request);

static void handle_result(struct cell__request *request, struct cell_result *result)
{
	json_t *results = json_object_get(request->kept, "results"), *bytes = json_object_get(request->kept, "bytes");
	CELL_AUTO_FREE char *text = cell__execute_answer(result, request->served->id);
	json_t *answer = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;

	if (!answer || json_array_append_new(results, answer) < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the results of a notebook");
		return;
	}
	json_integer_set(bytes, json_integer_value(bytes) + (json_int_t)strlen(text));
	if (json_integer_value(bytes) > CELL_LIMIT_NOTEBOOK_ANSWER)
		cell__answer_fail(request, (unsigned)cell_code_http_status(CELL_E_LIMIT), CELL_E_LIMIT,
				  "the results of the first %zu cells have more than %u MiB: run the others with POST /v1/sessions/S/runs",
				  json_array_size(results), CELL_LIMIT_NOTEBOOK_ANSWER >> 20);
	else if (cell_result_error(result) || json_array_size(results) == json_array_size(json_object_get(request->kept, "cells")))
		answer_results(request);
	else
		run_next(request);
}

static void run_next(struct cell__request *request)
{
	const json_t *cells = json_object_get(request->kept, "cells");
	const json_t *code = json_array_get(cells, json_array_size(json_object_get(request->kept, "results")));

	(void)cell__job_begin(request, json_string_value(code), json_string_length(code), cell__timeout_of(request), handle_result, NULL);
}

void cell__handle_v1_notebook_run(struct cell__request *request)
{
	struct cell_error err;
	json_t *cells;

	if (!cell__served_find(request, request->params[0], false))
		return;
	cells = cell__notebook_read(request->body.data ? request->body.data : "", request->body.size, &err);
	if (!cells) {
		cell__answer_error(request, &err);
		return;
	}
	request->kept = json_pack("{s:o,s:[],s:i}", "cells", cells, "results", "bytes", 0);
	if (!request->kept)
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a notebook");
	else if (json_array_size(json_object_get(request->kept, "cells")) == 0)
		answer_results(request);
	else
		run_next(request);
}
