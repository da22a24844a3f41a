/*
 * URIs of resources: templates, and those of our own.  Pure.
 *
 * A template is text with variables: {x} stands for at least one character without '/', {+x} for at least one of any.  A variable ends where the
 * text after it first occurs, so matching takes linear time whatever the URI is.
 */
#include "mcp/server/uri.h"

#include <ctype.h>
#include <string.h>

#include "wire/access.h"

/* After the '{' of a variable: its name, whether it may contain '/', and the template after it.  -1: not a variable. */
static int read_variable(const char *at, const char **ret_name, size_t *ret_size, bool *ret_any, const char **ret_after)
{
	bool any = *at == '+';
	const char *name = at + any, *end = name;

	while (isalnum((unsigned char)*end) || *end == '_')
		end++;
	if (end == name || *end != '}' || (size_t)(end - name) > CELL_MCP_MAX_VARIABLE)
		return -1;
	*ret_name = name;
	*ret_size = (size_t)(end - name);
	*ret_any = any;
	*ret_after = end + 1;
	return 0;
}

/* -1: neither a URI nor a template; else the number of its variables. */
int cell__mcp_template_check(const char *text)
{
	const char *at = text, *name;
	size_t size;
	bool any;
	int n = 0;

	if (strlen(text) > CELL_MCP_MAX_URI || !isalpha((unsigned char)*at))
		return -1;
	while (isalnum((unsigned char)*at) || strchr("+-.", *at ? *at : ' '))
		at++;
	if (*at != ':')
		return -1;
	for (; *at; at++) {
		if (*at == '}' || (unsigned char)*at <= ' ' || *at == 0x7f)
			return -1;
		if (*at != '{')
			continue;
		/* Two without text between them could be split in many ways. */
		if (read_variable(at + 1, &name, &size, &any, &at) < 0 || *at == '{' || ++n > CELL_MCP_MAX_VARIABLES)
			return -1;
		at--;
	}
	return n;
}

/* The length of the text up to the next variable. */
static size_t literal_size(const char *template)
{
	return strcspn(template, "{");
}

json_t *cell__mcp_template_match(const char *template, const char *uri)
{
	json_t *values = json_object();

	for (;;) {
		size_t n = literal_size(template), name_size, next, taken;
		CELL_AUTO_BUF struct cell__buf value = CELL_BUF_INIT;
		const char *name, *end;
		bool any;

		if (strncmp(template, uri, n) || !values)
			break;
		template += n;
		uri += n;
		if (!*template && !*uri)
			return values;
		if (!*template || read_variable(template + 1, &name, &name_size, &any, &template) < 0)
			break;
		next = literal_size(template);
		end = uri + strlen(uri);
		for (const char *at = uri + (*uri != '\0'); next && at < end; at++) {
			if (!strncmp(at, template, next)) {
				end = at;
				break;
			}
		}
		taken = (size_t)(end - uri);
		if (!taken || (!any && memchr(uri, '/', taken)) || cell__url_decode(uri, taken, false, &value) < 0 ||
		    json_object_setn_new(values, name, name_size, json_stringn(value.data, value.size)) < 0)
			break;
		uri = end;
	}
	json_decref(values);
	return NULL;
}

bool cell__mcp_uri_is_template(const char *text)
{
	return strchr(text, '{') != NULL;
}

int cell__mcp_uri_add(struct cell__buf *out, const char *prefix, const char *name)
{
	return cell__buf_add_str(out, prefix) | cell__buf_add_percent(out, name);
}

char *cell__mcp_uri_name(const char *uri, const char *prefix)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	size_t size = strlen(prefix);

	if (strncmp(uri, prefix, size) || !uri[size] || cell__url_decode(uri + size, strlen(uri + size), false, &name) < 0)
		return NULL;
	return cell__buf_take(&name);
}
