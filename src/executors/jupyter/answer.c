#include "executors/jupyter/answer.h"

#include <string.h>

static bool is_base64(const char *type)
{
	return (strncmp(type, "image/", 6) == 0 && strcmp(type, "image/svg+xml") != 0) || strncmp(type, "audio/", 6) == 0 ||
	       strncmp(type, "video/", 6) == 0 || strcmp(type, "application/pdf") == 0 || strcmp(type, "application/octet-stream") == 0;
}

static bool keep(struct cell__jupyter_bundle *bundle, char *text)
{
	if (text)
		bundle->owned[bundle->n_owned++] = text;
	return text != NULL;
}

static void add_part(struct cell__jupyter_bundle *bundle, const char *type, json_t *value)
{
	struct cell_mime_part part = { .type = type };
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	if (!json_is_string(value)) {
		char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
		if (!keep(bundle, text))
			return;
		part.data = text;
		part.size = strlen(text);
	} else if (is_base64(type) && cell__buf_add_unbase64(&bytes, json_string_value(value), json_string_length(value)) == 0 &&
		   bytes.size > 0) {
		part.size = bytes.size;
		char *taken = cell__buf_take(&bytes);
		if (!keep(bundle, taken))
			return;
		part.data = taken;
	} else {
		part.data = json_string_value(value);
		part.size = json_string_length(value);
	}
	bundle->bundle.parts[bundle->bundle.n_parts++] = part;
}

void cell__jupyter_bundle_init(struct cell__jupyter_bundle *bundle, json_t *data, const char *skip)
{
	const char *type;
	json_t *value, *plain = json_object_get(data, "text/plain");
	bundle->bundle.n_parts = bundle->n_owned = 0;
	if (plain && (!skip || strcmp(skip, "text/plain") != 0))
		add_part(bundle, "text/plain", plain);
	json_object_foreach(data, type, value)
		if (strcmp(type, "text/plain") != 0 && (!skip || strcmp(type, skip) != 0) && bundle->bundle.n_parts < CELL_LIMIT_MIME_PARTS)
			add_part(bundle, type, value);
}

void cell__jupyter_bundle_finish(struct cell__jupyter_bundle *bundle)
{
	for (size_t i = 0; i < bundle->n_owned; i++)
		free(bundle->owned[i]);
	bundle->bundle.n_parts = bundle->n_owned = 0;
}

/* Appends text without escape sequences (ESC [ ... letter) and without NUL. */
static int add_plain(struct cell__buf *out, const char *text, size_t size)
{
	int rc = 0;
	for (size_t i = 0; i < size && rc == 0; i++) {
		if (text[i] == '\033' && i + 1 < size && text[i + 1] == '[') {
			i += 2;
			while (i < size && (text[i] < '@' || text[i] > '~'))
				i++;
		} else if (text[i]) {
			rc = cell__buf_add(out, &text[i], 1);
		}
	}
	return rc;
}

char *cell__jupyter_traceback(json_t *lines)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	size_t i;
	json_t *line;
	json_array_foreach(lines, i, line)
		if (json_is_string(line) && ((out.size > 0 && cell__buf_add_str(&out, "\n") < 0) ||
					     add_plain(&out, json_string_value(line), json_string_length(line)) < 0))
			return NULL;
	return cell__buf_take(&out);
}
