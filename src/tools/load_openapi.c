/*
 * `type: openapi`: the definition that names an OpenAPI document, which becomes a tool of HTTP requests.  On the pool, where waiting for
 * files and servers holds up nothing but the calls that need the definitions.
 */
#define _GNU_SOURCE
#include <curl/curl.h>
#include <string.h>

#include "base/file.h"
#include "base/libraries.h"
#include "tools/openapi.h"
#include "wire/json_check.h"

#define MAX_TREE_BYTES (1024u * 1024u * 1024u) /* of the document in memory; real ones take ten times their size */

static bool is_url(const char *text)
{
	return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
}

/* ---- reading the document ---- */

static size_t bytes_came(char *bytes, size_t size, size_t n, void *arg)
{
	struct cell__buf *text = arg;
	return text->size + size * n > CELL_OPENAPI_LIMIT_BYTES || cell__buf_add(text, bytes, size * n) < 0 ? 0 : size * n;
}

/* Without redirects, proxies and credentials: the document comes from where the definition says. */
static int fetch(const char *url, struct cell__buf *text, struct cell__buf *why)
{
	struct cell_error err;
	if (cell__library_load(CELL__LIBRARY_CURL, &err) < 0) {
		cell__buf_add_str(why, err.msg);
		return -1;
	}
	CURL *curl = curl_easy_init();
	long status = 0;
	if (!curl) {
		cell__buf_add_str(why, "out of memory");
		return -1;
	}
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(curl, CURLOPT_PROXY, "");
	curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)CELL_OPENAPI_FETCH_S);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, bytes_came);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, text);
	CURLcode code = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_cleanup(curl);
	if (code == CURLE_WRITE_ERROR)
		cell__buf_printf(why, "it is larger than %u MiB", CELL_OPENAPI_LIMIT_BYTES >> 20);
	else if (code != CURLE_OK)
		cell__buf_add_str(why, curl_easy_strerror(code));
	else if (status != 200)
		cell__buf_printf(why, "HTTP %ld", status);
	return code == CURLE_OK && status == 200 ? 0 : -1;
}

/* Relative to the definition. */
static int read_file(const char *definition, const char *name, struct cell__buf *text, struct cell__buf *why)
{
	const char *slash = strrchr(definition, '/');
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	struct cell_error err;
	int rc = *name == '/' || !slash ? cell__buf_add_str(&path, name)
					: cell__buf_printf(&path, "%.*s/%s", (int)(slash - definition), definition, name);
	if (rc == 0)
		rc = cell__file_load("document", path.data, 0, CELL_OPENAPI_LIMIT_BYTES, text, &err);
	if (rc < 0)
		cell__buf_add_str(why, path.data ? err.msg : "out of memory");
	return rc;
}

/* JSON, or else YAML, within the limits of definitions. */
static json_t *parse(const char *name, const struct cell__buf *text, struct cell__buf *why)
{
	struct cell__problems problems = { 0 };
	size_t at = text->size > 0 ? strspn(text->data, " \t\r\n") : 0;
	json_t *document = NULL;
	json_error_t bad;
	if (at < text->size && text->data[at] == '{') {
		if (cell__json_weigh(text->data, text->size) <= MAX_TREE_BYTES)
			document = json_loadb(text->data, text->size, 0, &bad);
		if (!document)
			cell__buf_printf(why, "it is not valid JSON, or too large");
		return document;
	}
	struct cell__yaml *yaml = cell__yaml_parse_within(name, text->data ? text->data : "", text->size, CELL_OPENAPI_LIMIT_YAML_BYTES,
							  &problems);
	document = yaml ? cell__yaml_to_json(yaml) : NULL;
	cell__yaml_destroy(yaml);
	if (!document)
		cell__buf_printf(why, "it is neither JSON nor YAML: %s", problems.count ? problems.list[0].message : "out of memory");
	cell__problems_finish(&problems);
	return document;
}

/* ---- documents that it refers to ---- */

struct others {
	const char *definition, *document; /* the definition's path, and what it says; a URL or a file */
	const json_t *allowed;             /* beginnings of URLs, or NULL */
};

/* "https://host/a" allows https://host/a and https://host/a/b, and neither https://host.evil nor https://host/ab. */
static bool is_allowed(const json_t *allowed, const char *url)
{
	const json_t *each;
	size_t i;
	json_array_foreach(allowed, i, each) {
		const char *start = json_string_value(each);
		const size_t n = start ? strlen(start) : 0;
		if (start && is_url(start) && strchr(strstr(start, "://") + 3, '/') && strncmp(url, start, n) == 0 &&
		    (start[n - 1] == '/' || strchr("/?", url[n])) && !strstr(url, "/.."))
			return true;
	}
	return false;
}

static int load_other(void *arg, const char *place, size_t *bytes_left, json_t **ret_document, struct cell__buf *why)
{
	const struct others *others = arg;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, path = CELL_BUF_INIT, reason = CELL_BUF_INIT;
	const char *slash = strrchr(others->document, '/');
	int rc;
	if (is_url(place)) {
		if (!is_allowed(others->allowed, place))
			return 0;
		rc = fetch(place, &text, &reason);
	} else {
		rc = slash ? cell__buf_printf(&path, "%.*s/%s", (int)(slash - others->document), others->document, place)
			   : cell__buf_add_str(&path, place);
		rc = rc < 0 ? rc : read_file(others->definition, path.data, &text, &reason);
	}
	if (rc == 0 && text.size > *bytes_left) {
		cell__buf_printf(&reason, "all documents together are larger than %u MiB", CELL_OPENAPI_LIMIT_BYTES >> 20);
		rc = -1;
	}
	if (rc == 0) {
		*bytes_left -= text.size;
		*ret_document = parse(place, &text, &reason);
	}
	if (!*ret_document)
		cell__buf_printf(why, "it refers to %.120s: %s", place, reason.data ? reason.data : "out of memory");
	return *ret_document ? 0 : -1;
}

/* The document, with those that it refers to; NULL: why says what is wrong. */
static json_t *load_document(const struct others *others, struct cell__buf *why)
{
	const char *name = others->document, *slash = strrchr(name, '/');
	const struct cell__openapi_loader loader = { load_other, (void *)others };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const bool url = is_url(name);
	int rc = url ? fetch(name, &text, why) : read_file(others->definition, name, &text, why);
	json_t *document = rc == 0 ? parse(name, &text, why) : NULL;
	if (document && cell__openapi_bundle(document, url ? name : slash ? slash + 1 : name, &loader, why) < 0) {
		json_decref(document);
		document = NULL;
	}
	return document;
}

/* ---- the definition ---- */

static void load_list(struct cell__loader *loader, const struct cell__yaml *value, const char *what, json_t **ret)
{
	const json_t *each;
	size_t i;
	cell__load_json(loader, value, ret);
	if (*ret && !json_is_array(*ret))
		cell__load_problem(loader, value, "%s must be a list of patterns", what);
	json_array_foreach(*ret, i, each)
		if (!json_is_string(each))
			cell__load_problem(loader, value, "%s must be a list of patterns", what);
}

static void load_filter(struct cell__loader *loader, const struct cell__yaml *filter, const char *what, json_t **ret_tags,
			json_t **ret_operations)
{
	static const char *const known[] = { "tags", "operations", NULL };
	if (!cell__yaml_is_given(filter) || !cell__load_keys(loader, filter, what, known))
		return;
	load_list(loader, cell__yaml_get(filter, "tags"), "tags", ret_tags);
	load_list(loader, cell__yaml_get(filter, "operations"), "operations", ret_operations);
}

/* Names and texts, as an object. */
static json_t *load_texts(struct cell__loader *loader, const struct cell__yaml *value, const char *what)
{
	struct cell__pairs pairs = { 0 };
	json_t *object = json_object();
	cell__load_pairs(loader, value, what, &pairs);
	for (size_t i = 0; i < pairs.count; i++)
		if (pairs.list[i].key && pairs.list[i].value)
			json_object_set_new(object, pairs.list[i].key, json_string(pairs.list[i].value));
	cell__pairs_finish(&pairs);
	return object;
}

void cell__load_openapi(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	static const char *const known[] = { "name",      "type", "description", "timeout", "tags",    "max_output", "document", "server",
					     "variables", "auth", "headers",     "include", "exclude", "references", NULL };
	CELL_AUTO_FREE char *name = NULL, *server = NULL;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *tags = NULL, *operations = NULL, *no_tags = NULL, *no_operations = NULL, *document = NULL, *references = NULL;
	const size_t before = loader->problems->count;
	const struct cell__yaml *at = cell__yaml_get(doc, "document");
	tool->adapter = &cell__tool_http;
	cell__load_keys(loader, doc, "a tool of type openapi", known);
	cell__load_text(loader, at, "document", &name);
	cell__load_text(loader, cell__yaml_get(doc, "server"), "server", &server);
	cell__load_headers(loader, doc, tool);
	load_filter(loader, cell__yaml_get(doc, "include"), "include", &tags, &operations);
	load_filter(loader, cell__yaml_get(doc, "exclude"), "exclude", &no_tags, &no_operations);
	load_list(loader, cell__yaml_get(doc, "references"), "references", &references);
	json_t *variables = load_texts(loader, cell__yaml_get(doc, "variables"), "variables");
	json_t *auth = load_texts(loader, cell__yaml_get(doc, "auth"), "auth");
	if (!name || !*name)
		cell__load_problem(loader, at ? at : doc, "Tool '%s' needs a document: a file or a URL", tool->name);
	if (loader->problems->count == before) {
		const struct others others = { loader->file, name, references };
		document = load_document(&others, &why);
		const struct cell__openapi_wish wish = { .server = server,
							 .document_url = is_url(name) ? name : NULL,
							 .variables = variables,
							 .auth = auth,
							 .tags = tags,
							 .operations = operations,
							 .without_tags = no_tags,
							 .without_operations = no_operations };
		if (!document || cell__openapi_read(document, &wish, tool, &why) < 0)
			cell__load_problem(loader, at, "%.80s: %s", name, why.data ? why.data : "out of memory");
	}
	json_decref(document);
	json_decref(variables);
	json_decref(auth);
	json_decref(tags);
	json_decref(operations);
	json_decref(no_tags);
	json_decref(no_operations);
	json_decref(references);
}
