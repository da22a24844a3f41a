/*
 * The request path: a line "METHOD PATH\n", then a body.  What a route takes is decoded and checked as the server does it, and
 * as tokens where the body is a list of them.
 */
#include "fuzz.h"

#include <string.h>

#include "server/server.h"
#include "wire/access.h"

static void check_body(const struct cell__route *route, const char *body, size_t size)
{
	const json_t *schema = cell__route_body(route), *required = json_object_get(schema, "required");
	json_t *object = json_loadb(body, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
	json_t *problems = object && schema ? cell__fields_check(schema, object, "body") : NULL;

	/* What passes has every required member. */
	if (problems && !json_array_size(problems)) {
		for (size_t i = 0; i < json_array_size(required); i++)
			MUST(json_object_get(object, json_string_value(json_array_get(required, i))));
	}
	json_decref(problems);
	json_decref(object);
}

static void check_tokens(const char *text, size_t size)
{
	struct cell__tokens tokens = { 0 };
	struct cell_error err;

	if (cell__tokens_parse("tokens", text, size, &tokens, &err) < 0)
		return;
	MUST(tokens.count > 0);
	for (size_t i = 0; i < tokens.count; i++)
		MUST(tokens.list[i].scopes && (!*tokens.list[i].workspace || cell__workspace_id_ok(tokens.list[i].workspace)));
	cell__tokens_finish(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *end = memchr(text, '\n', size),
		   *space = end ? memchr(text, ' ', (size_t)(end - text)) : NULL;
	char method[16], path[512];
	struct cell__match match;

	check_tokens(text, size);
	if (!space || (size_t)(space - text) >= sizeof(method) || (size_t)(end - space) > sizeof(path))
		return 0;
	memcpy(method, text, (size_t)(space - text));
	method[space - text] = '\0';
	memcpy(path, space + 1, (size_t)(end - space - 1));
	path[end - space - 1] = '\0';
	cell__route_find(cell__routes, method, path, &match);
	if (!match.route)
		return 0;
	MUST(!strcmp(match.route->method, method));
	for (size_t i = 0; i < CELL_SERVER_MAX_PARAMS && match.params[i]; i++) {
		CELL_AUTO_BUF struct cell__buf decoded = CELL_BUF_INIT;

		MUST(match.params[i] >= path && match.params[i] + match.sizes[i] <= path + strlen(path) && match.sizes[i] > 0);
		if (!cell__url_decode(match.params[i], match.sizes[i], false, &decoded))
			MUST(cell__utf8_ok(decoded.data, decoded.size) && strlen(decoded.data) == decoded.size);
	}
	check_body(match.route, end + 1, size - (size_t)(end + 1 - text));
	return 0;
}
