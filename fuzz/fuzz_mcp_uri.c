/*
 * mcp/server/uri.  Input: a template, a NUL, a URI.  A match has no more than the template's variables, a URI without any
 * matches itself, and names in our own URIs survive writing and reading.
 */
#include "base/base.h"
#include "fuzz.h"
#include "mcp/server/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CELL_AUTO_FREE char *text = cell__alloc(1, size + 2);
	CELL_AUTO_BUF struct cell__buf uri = CELL_BUF_INIT;
	const char *given;
	int n;

	memcpy(text, data, size);
	given = text + strlen(text) + (strlen(text) < size);
	n = cell__mcp_template_check(text);
	if (n >= 0) {
		json_t *values = cell__mcp_template_match(text, given);
		MUST(!values || json_object_size(values) <= (size_t)n);
		json_decref(values);
		if (!n) {
			values = cell__mcp_template_match(text, text);
			MUST(values && json_object_size(values) == 0);
			json_decref(values);
		}
	}
	if (*given && cell__utf8_ok(given, strlen(given)) && !cell__mcp_uri_add(&uri, CELL_MCP_ARTIFACTS, given)) {
		CELL_AUTO_FREE char *name = cell__mcp_uri_name(uri.data, CELL_MCP_ARTIFACTS);
		MUST(name && !strcmp(name, given));
	}
	return 0;
}
