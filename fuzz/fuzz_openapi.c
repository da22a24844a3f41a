/*
 * tools/openapi: a document as JSON, then, behind a NUL, the arguments of a call.  Whatever comes in, each callable has a name and a path,
 * and no argument changes where a request goes.
 */
#include "fuzz.h"
#include "tools/openapi.h"

#define BASE "https://host/base"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = memchr(data, '\0', size);
	size_t first = nul ? (size_t)(nul - data) : size;
	json_t *document = json_loadb((const char *)data, first, 0, NULL);
	json_t *args = nul ? json_loadb((const char *)nul + 1, size - first - 1, 0, NULL) : NULL;
	if (!json_is_object(args)) {
		json_decref(args);
		args = json_object();
	}
	const struct cell__openapi_wish wish = { .server = BASE };
	struct cell__tool_entry *tool = cell__alloc(1, sizeof *tool);
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	tool->refs = 1;
	int rc = document ? cell__openapi_read(document, &wish, tool, &why) : 0;
	MUST(rc == 0 || why.size > 0);
	for (size_t i = 0; i < tool->n_callables && rc == 0 && document; i++) {
		struct cell__httpreq req = { 0 };
		CELL_AUTO_BUF struct cell__buf reason = CELL_BUF_INIT;
		MUST(cell__tool_name_ok(tool->callables[i].name) && tool->callables[i].path[0] == '/');
		if (cell__httpreq_build(tool, &tool->callables[i], args, &req, &reason) == 0)
			MUST(strncmp(req.url, tool->base_url, strlen(tool->base_url)) == 0);
		else
			MUST(reason.size > 0);
		cell__httpreq_finish(&req);
	}
	cell__tool_unref(tool);
	json_decref(document);
	json_decref(args);
	return 0;
}
