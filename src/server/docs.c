/*
 * GET /docs: /openapi.json for people.  One page without anything from elsewhere.  It says nothing about this server: it asks for a token,
 * fetches the document with it, and keeps the token in memory only.
 *
 * Texts of the document become text nodes, never markup.  The policy lets exactly the page's own script and style run, by a number
 * that is new in each answer, and connect to this server alone.
 */
#include "server/api.h"

#include <stdio.h>
#include <string.h>

#define NONCE_DIGITS 32

static const char page_style[] =
	"body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
	"code,pre,input{font-family:ui-monospace,monospace;font-size:13px}"
	"summary{cursor:pointer;padding:.3em 0;border-top:1px solid #ddd}"
	".m{display:inline-block;width:5em;font-weight:bold}.s{color:#666;float:right}"
	"table{border-collapse:collapse;margin:.5em 0}td,th{text-align:left;padding:.2em .8em .2em 0;vertical-align:top}"
	"pre{background:#f5f5f5;padding:.6em;overflow:auto}.e{color:#b00}"
	"@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}pre{background:#222}.s{color:#999}}";

static const char page_script[] =
	"'use strict';\n"
	"const main = document.getElementById('main'), form = document.getElementById('form'), token = document.getElementById('token');\n"
	"function make(name, text, parent, kind) {\n"
	"  const element = document.createElement(name);\n"
	"  if (text !== undefined && text !== null) element.textContent = String(text);\n"
	"  if (kind) element.className = kind;\n"
	"  if (parent) parent.appendChild(element);\n"
	"  return element;\n"
	"}\n"
	"function resolve(whole, schema) {\n"
	"  const name = schema && schema.$ref ? schema.$ref.split('/').pop() : null;\n"
	"  return name ? (whole.components.schemas[name] || {}) : (schema || {});\n"
	"}\n"
	"function typeOf(schema) {\n"
	"  if (schema.$ref) return schema.$ref.split('/').pop();\n"
	"  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(' | ');\n"
	"  if (schema.type === 'array') return 'array of ' + typeOf(schema.items || {});\n"
	"  return [].concat(schema.type || 'any').join(' | ');\n"
	"}\n"
	"function rows(parent, title, list) {\n"
	"  if (!list.length) return;\n"
	"  make('h4', title, parent);\n"
	"  const table = make('table', null, parent);\n"
	"  for (const [name, type, words] of list) {\n"
	"    const row = make('tr', null, table);\n"
	"    make('code', name, make('td', null, row));\n"
	"    make('td', type, row);\n"
	"    make('td', words || '', row);\n"
	"  }\n"
	"}\n"
	"function fields(whole, schema) {\n"
	"  const found = resolve(whole, schema), needed = found.required || [];\n"
	"  return Object.entries(found.properties || {}).map(([name, field]) =>\n"
	"    [name + (needed.includes(name) ? '' : '?'), typeOf(field), field.description]);\n"
	"}\n"
	"function show(whole) {\n"
	"  main.textContent = '';\n"
	"  make('h1', whole.info.title + ' ' + whole.info.version, main);\n"
	"  for (const [path, methods] of Object.entries(whole.paths)) {\n"
	"    for (const [method, route] of Object.entries(methods)) {\n"
	"      const box = make('details', null, main), head = make('summary', null, box);\n"
	"      make('span', method.toUpperCase(), head, 'm');\n"
	"      make('code', path, head);\n"
	"      make('span', route['x-scope'] || 'open', head, 's');\n"
	"      make('p', route.summary || '', box);\n"
	"      rows(box, 'parameters', (route.parameters || []).map((each) =>\n"
	"        [each.name, each.in + ', ' + typeOf(each.schema || {}), each.description || (each.schema || {}).description]));\n"
	"      for (const [type, body] of Object.entries((route.requestBody || {}).content || {}))\n"
	"        rows(box, 'body: ' + type, fields(whole, body.schema));\n"
	"      for (const [status, answer] of Object.entries(route.responses || {})) {\n"
	"        const contents = Object.entries(answer.content || {});\n"
	"        make('h4', status + (contents.length ? ': ' + contents.map((each) => each[0]).join(', ') : ''), box);\n"
	"        for (const [, content] of contents) {\n"
	"          const list = fields(whole, content.schema);\n"
	"          if (list.length) rows(box, typeOf(content.schema), list);\n"
	"          else make('pre', JSON.stringify(content.schema, null, 1), box);\n"
	"        }\n"
	"      }\n"
	"    }\n"
	"  }\n"
	"}\n"
	"async function load() {\n"
	"  const headers = token.value ? {Authorization: 'Bearer ' + token.value} : {};\n"
	"  const answer = await fetch('openapi.json', {headers, credentials: 'omit'});\n"
	"  const body = await answer.json();\n"
	"  if (!answer.ok) throw new Error(answer.status + ' ' + body.detail);\n"
	"  show(body);\n"
	"}\n"
	"function complain(error) { main.textContent = ''; make('p', error.message, main, 'e'); }\n"
	"form.addEventListener('submit', (event) => { event.preventDefault(); load().catch(complain); });\n";

void cell__handle_docs(struct cell__request *request)
{
	CELL_AUTO_BUF struct cell__buf page = CELL_BUF_INIT;
	struct MHD_Response *response = NULL;
	char nonce[NONCE_DIGITS + 1], policy[256];
	size_t size;
	int rc;

	cell__random_hex(nonce, NONCE_DIGITS);
	snprintf(
		policy, sizeof(policy),
		"default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'",
		nonce, nonce);
	rc = cell__buf_printf(
		&page,
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Workcell session server</title>\n"
		"<meta name=\"viewport\" content=\"width=device-width\"><style nonce=\"%s\">%s</style></head>\n"
		"<body><form id=\"form\"><label>token <input id=\"token\" type=\"password\" autocomplete=\"off\" size=\"40\">"
		"</label> <button>show</button></form>\n<main id=\"main\"></main>\n<script nonce=\"%s\">\n%s</script></body></html>\n",
		nonce, page_style, nonce, page_script);
	size = page.size;
	if (!rc)
		response = cell__http_response(cell__buf_take(&page), size, "text/html; charset=utf-8");
	if (!response) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the page");
		return;
	}
	MHD_add_response_header(response, "Content-Security-Policy", policy);
	MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	cell__answer_response(request, MHD_HTTP_OK, response);
}
