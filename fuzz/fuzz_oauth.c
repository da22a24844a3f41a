/* wire/oauth.  A header, a URL and a query: what is found is bounded and printable, and a value that is written is read again. */
#include "base/base.h"
#include "fuzz.h"
#include "wire/oauth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CELL_AUTO_FREE char *text = cell__strndup((const char *)data, strnlen((const char *)data, size));
	struct cell__oauth_url url;
	MUST(text);
	CELL_AUTO_FREE char *scope = cell__oauth_challenge(text, "scope");
	for (const char *at = scope ? scope : ""; *at; at++)
		MUST((unsigned char)*at >= 0x20 && *at != 0x7f);
	MUST(!scope || strlen(scope) <= CELL_OAUTH_LIMIT_VALUE);
	if (cell__oauth_url_read(text, &url) == 0) {
		struct cell__oauth_url again;
		MUST(!strchr(url.host, '@') && !strchr(url.origin, '#') && url.path >= text && url.path <= text + strlen(text));
		MUST(cell__oauth_url_read(url.origin, &again) == 0 && strcmp(again.origin, url.origin) == 0);
	}
	CELL_AUTO_FREE char *value = cell__query_value((const char *)data, size, "a");
	if (value) {
		CELL_AUTO_BUF struct cell__buf query = CELL_BUF_INIT;
		bool first = true;
		MUST(cell__buf_add_query(&query, &first, "a", value) == 0);
		CELL_AUTO_FREE char *again = cell__query_value(query.data, query.size, "a");
		MUST(strlen(value) > CELL_OAUTH_LIMIT_VALUE / 3 || (again && strcmp(again, value) == 0));
	}
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, plain = CELL_BUF_INIT;
	if (cell__buf_add_unbase64url(&bytes, (const char *)data, size) == 0 && bytes.size > 0)
		MUST(cell__buf_add_base64url(&plain, bytes.data, bytes.size) == 0 && plain.size == size);
	return 0;
}
