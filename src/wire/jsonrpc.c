#include "wire/jsonrpc.h"

#include <math.h>
#include <string.h>

#include "wire/json_check.h"

/* Memory that an empty reader of lines holds on to. */
#define KEPT_BYTES (256u * 1024u)

/* ---- reading ---- */

/* Jansson recurses: the depth is the sender's choice, and the stack is ours. */
static bool too_deep(const char *text, size_t size)
{
	size_t depth = 0;
	for (size_t i = 0; i < size; i++) {
		switch (text[i]) {
		case '"':
			for (i++; i < size && text[i] != '"'; i++)
				if (text[i] == '\\')
					i++;
			break;
		case '[':
		case '{':
			if (++depth > CELL_LIMIT_JSON_DEPTH)
				return true;
			break;
		case ']':
		case '}':
			if (depth > 0)
				depth--;
			break;
		default:
			break;
		}
	}
	return false;
}

/* Jansson takes a NUL after the value for the end of the text. */
static bool has_nul(const char *text, size_t size)
{
	return size > 0 && memchr(text, '\0', size) != NULL;
}

static int load(const char *text, size_t size, json_t **ret_root, struct cell_error *err)
{
	json_error_t problem;
	if (cell__json_weigh(text, size) > CELL_LIMIT_TREE_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "the values of a message would take more than %u MiB of memory",
			  CELL_LIMIT_TREE_BYTES >> 20);
		return CELL_RPC_PARSE_ERROR;
	}
	json_t *root = json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
	if (!root && json_error_code(&problem) == json_error_numeric_overflow)
		root = json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &problem);
	if (root) {
		*ret_root = root;
		return 0;
	}
	int code = json_error_code(&problem) == json_error_out_of_memory ? CELL_E_NOMEM : CELL_E_PROTOCOL;
	cell_fail(err, code, 0, "not JSON: %s at byte %d", problem.text, problem.position);
	return CELL_RPC_PARSE_ERROR;
}

int cell__rpc_read(const char *text, size_t size, bool batches, struct cell__rpc_doc *ret_doc, struct cell_error *err)
{
	if (size > CELL_RPC_MAX_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "a message has %zu bytes, more than the limit of %u", size, CELL_RPC_MAX_BYTES);
		return CELL_RPC_INVALID_REQUEST;
	}
	if (too_deep(text, size)) {
		cell_fail(err, CELL_E_LIMIT, 0, "a message nests deeper than %u levels", CELL_LIMIT_JSON_DEPTH);
		return CELL_RPC_INVALID_REQUEST;
	}
	if (has_nul(text, size)) {
		cell_fail(err, CELL_E_PROTOCOL, 0, "not JSON: a NUL byte");
		return CELL_RPC_PARSE_ERROR;
	}
	json_t *root = NULL;
	int rc = load(text, size, &root, err);
	if (rc < 0)
		return rc;
	struct cell__rpc_doc doc = { .root = root, .count = 1, .batch = json_is_array(root) };
	if (doc.batch) {
		doc.count = json_array_size(root);
		if (!batches)
			cell_fail(err, CELL_E_PROTOCOL, 0, "batches of messages are not part of this protocol revision");
		else if (doc.count == 0)
			cell_fail(err, CELL_E_PROTOCOL, 0, "an empty batch");
		else if (doc.count > CELL_RPC_MAX_BATCH)
			cell_fail(err, CELL_E_LIMIT, 0, "a batch has %zu messages, more than the limit of %u", doc.count,
				  CELL_RPC_MAX_BATCH);
		if (!batches || doc.count == 0 || doc.count > CELL_RPC_MAX_BATCH) {
			json_decref(root);
			return CELL_RPC_INVALID_REQUEST;
		}
	}
	*ret_doc = doc;
	return 0;
}

void cell__rpc_doc_finish(struct cell__rpc_doc *doc)
{
	json_decref(doc->root);
	*doc = (struct cell__rpc_doc)CELL__RPC_DOC_INIT;
}

/* A string without NUL; NULL: not a string, too long, or with a NUL. */
static const char *plain_string(const json_t *value, size_t max)
{
	if (!json_is_string(value))
		return NULL;
	const char *text = json_string_value(value);
	size_t size = json_string_length(value);
	return size <= max && strlen(text) == size ? text : NULL;
}

/*
 * The id in this object, NULL: missing or invalid. A whole number counts however it is written: some peers send 1.0, and all numbers are
 * reals in a message with one past 64 bits.
 */
static json_t *usable_id(json_t *object)
{
	json_t *id = json_object_get(object, "id");
	if (json_is_integer(id) || plain_string(id, CELL_RPC_MAX_ID))
		return id;
	if (!json_is_real(id))
		return NULL;
	double number = json_real_value(id);
	if (floor(number) != number || fabs(number) > 9007199254740992.0)
		return NULL;
	if (json_object_set_new(object, "id", json_integer((json_int_t)number)) < 0)
		return NULL;
	return json_object_get(object, "id");
}

static int invalid(struct cell_error *err, const char *what)
{
	cell_fail(err, CELL_E_PROTOCOL, 0, "not a JSON-RPC message: %s", what);
	return CELL_RPC_INVALID_REQUEST;
}

static int get_call(json_t *object, struct cell__rpc_message *message, struct cell_error *err)
{
	message->method = plain_string(json_object_get(object, "method"), CELL_RPC_MAX_METHOD);
	if (!message->method || !message->method[0])
		return invalid(err, "\"method\" is not a string");
	message->params = json_object_get(object, "params");
	if (json_is_null(message->params))
		message->params = NULL; /* against the letter, but harmless, and some peers send it */
	if (message->params && !json_is_object(message->params) && !json_is_array(message->params))
		return invalid(err, "\"params\" is neither an object nor an array");
	message->kind = json_object_get(object, "id") ? CELL__RPC_REQUEST : CELL__RPC_NOTIFICATION;
	if (message->kind == CELL__RPC_REQUEST && !message->id)
		return invalid(err, "\"id\" is neither a string nor an integer");
	return 0;
}

static int get_answer(json_t *object, struct cell__rpc_message *message, struct cell_error *err)
{
	json_t *result = json_object_get(object, "result"), *error = json_object_get(object, "error");
	if (result && json_is_null(error))
		error = NULL;
	if (error && json_is_null(result))
		result = NULL;
	if (!result == !error)
		return invalid(err, "exactly one of \"method\", \"result\" and \"error\" is required");
	if (result) {
		message->kind = CELL__RPC_RESULT;
		message->result = result;
		return message->id ? 0 : invalid(err, "a result without an id");
	}
	message->kind = CELL__RPC_ERROR;
	if (!json_is_object(error) || !json_is_number(json_object_get(error, "code")))
		return invalid(err, "\"error\" has no \"code\"");
	message->code = (int64_t)json_integer_value(json_object_get(error, "code"));
	if (json_is_real(json_object_get(error, "code"))) {
		double code = json_real_value(json_object_get(error, "code"));
		message->code = fabs(code) <= 9007199254740992.0 ? (int64_t)code : CELL_RPC_INTERNAL_ERROR;
	}
	message->error_text = plain_string(json_object_get(error, "message"), CELL_RPC_MAX_BYTES);
	if (!message->error_text)
		return invalid(err, "\"error\" has no \"message\"");
	message->data = json_object_get(error, "data");
	json_t *id = json_object_get(object, "id");
	if (id && !json_is_null(id) && !message->id)
		return invalid(err, "\"id\" is neither a string nor an integer");
	return 0;
}

int cell__rpc_get(const struct cell__rpc_doc *doc, size_t i, struct cell__rpc_message *ret_message, struct cell_error *err)
{
	json_t *object = doc->batch ? json_array_get(doc->root, i) : doc->root;
	*ret_message = (struct cell__rpc_message){ 0 };
	if (!json_is_object(object))
		return invalid(err, "it is not an object");
	struct cell__rpc_message message = { .id = usable_id(object) };
	ret_message->id = message.id;
	const char *version = json_string_value(json_object_get(object, "jsonrpc"));
	if (!version || strcmp(version, "2.0") != 0)
		return invalid(err, "\"jsonrpc\" is not \"2.0\"");
	int rc = json_object_get(object, "method") ? get_call(object, &message, err) : get_answer(object, &message, err);
	if (rc == 0)
		*ret_message = message;
	return rc;
}

/* ---- writing ---- */

struct dump {
	struct cell__buf *buf;
	size_t start;
};

static int dump_piece(const char *bytes, size_t size, void *arg)
{
	struct dump *dump = arg;
	if (dump->buf->size - dump->start + size > CELL_RPC_MAX_BYTES)
		return -1;
	return cell__buf_add(dump->buf, bytes, size);
}

/* Compact: Jansson then writes no line break, and escapes those in strings. */
static int dump_json(struct dump *dump, const json_t *value)
{
	if (!value)
		return dump_piece("null", 4, dump);
	return json_dump_callback(value, dump_piece, dump, JSON_COMPACT | JSON_ENCODE_ANY);
}

static int dump_text(struct dump *dump, const char *text)
{
	return dump_piece(text, strlen(text), dump);
}

static int done(struct dump *dump, int rc)
{
	if (rc == 0 && dump->buf->size - dump->start <= CELL_RPC_MAX_BYTES)
		return 0;
	if (dump->buf->data) {
		dump->buf->size = dump->start;
		dump->buf->data[dump->start] = '\0';
	}
	return -1;
}

static int dump_call(struct dump *dump, const char *method, const json_t *params)
{
	if (dump_text(dump, "\"method\":") < 0 || cell__buf_add_json_string(dump->buf, method, strlen(method)) < 0)
		return -1;
	if (params && (dump_text(dump, ",\"params\":") < 0 || dump_json(dump, params) < 0))
		return -1;
	return dump_text(dump, "}");
}

int cell__rpc_add_request(struct cell__buf *buf, int64_t id, const char *method, const json_t *params)
{
	struct dump dump = { buf, buf->size };
	int rc = cell__buf_printf(buf, "{\"jsonrpc\":\"2.0\",\"id\":%lld,", (long long)id);
	return done(&dump, rc < 0 ? rc : dump_call(&dump, method, params));
}

int cell__rpc_add_notification(struct cell__buf *buf, const char *method, const json_t *params)
{
	struct dump dump = { buf, buf->size };
	int rc = dump_text(&dump, "{\"jsonrpc\":\"2.0\",");
	return done(&dump, rc < 0 ? rc : dump_call(&dump, method, params));
}

/* An error whose message had no readable id has none: the protocol does not know null. */
static int dump_head(struct dump *dump, const json_t *id)
{
	if (!id)
		return dump_text(dump, "{\"jsonrpc\":\"2.0\"");
	return dump_text(dump, "{\"jsonrpc\":\"2.0\",\"id\":") < 0 ? -1 : dump_json(dump, id);
}

int cell__rpc_add_result(struct cell__buf *buf, const json_t *id, const json_t *result)
{
	struct dump dump = { buf, buf->size };
	int rc = dump_head(&dump, id);
	if (rc == 0 && dump_text(&dump, ",\"result\":") == 0 && dump_json(&dump, result) == 0)
		return done(&dump, dump_text(&dump, "}"));
	return done(&dump, -1);
}

int cell__rpc_add_error(struct cell__buf *buf, const json_t *id, int64_t code, const char *message, const json_t *data)
{
	struct dump dump = { buf, buf->size };
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	/* The message may quote untrusted text. */
	if (cell__buf_add_utf8(&clean, message, strlen(message)) < 0 || dump_head(&dump, id) < 0 ||
	    cell__buf_printf(buf, ",\"error\":{\"code\":%lld,\"message\":", (long long)code) < 0 ||
	    cell__buf_add_json_string(buf, clean.data, clean.size) < 0)
		return done(&dump, -1);
	if (data && (dump_text(&dump, ",\"data\":") < 0 || dump_json(&dump, data) < 0))
		return done(&dump, -1);
	return done(&dump, dump_text(&dump, "}}"));
}

/* ---- lines ---- */

void cell__lines_init(struct cell__lines *lines, size_t max_bytes)
{
	*lines = (struct cell__lines){ .max_bytes = max_bytes };
}

void cell__lines_finish(struct cell__lines *lines)
{
	cell__buf_finish(&lines->buf);
	cell__lines_init(lines, lines->max_bytes);
}

int cell__lines_add(struct cell__lines *lines, const char *bytes, size_t size)
{
	if (lines->start > 0) {
		cell__buf_shift(&lines->buf, lines->start);
		lines->scanned -= lines->start;
		lines->start = 0;
	}
	if (lines->buf.size == 0 && lines->buf.capacity > KEPT_BYTES)
		cell__buf_finish(&lines->buf); /* one long line must not keep its memory for ever */
	return cell__buf_add(&lines->buf, bytes, size);
}

/* Drops the beginning of a line that is too long. */
static void drop(struct cell__lines *lines)
{
	lines->buf.size = lines->start;
	lines->scanned = lines->start;
}

enum cell__line_status cell__lines_next(struct cell__lines *lines, const char **ret_line, size_t *ret_size)
{
	struct cell__buf *buf = &lines->buf;
	while (lines->scanned < buf->size) {
		const char *end = memchr(buf->data + lines->scanned, '\n', buf->size - lines->scanned);
		if (!end) {
			lines->scanned = buf->size;
			bool too_long = lines->scanned - lines->start > lines->max_bytes;
			if (!too_long && !lines->skipping)
				return CELL__LINE_MORE;
			drop(lines);
			if (lines->skipping)
				return CELL__LINE_MORE;
			lines->skipping = true;
			return CELL__LINE_TOO_LONG;
		}
		const char *line = buf->data + lines->start;
		size_t size = (size_t)(end - line);
		lines->start = lines->scanned = (size_t)(end - buf->data) + 1;
		if (lines->skipping) {
			lines->skipping = false;
			continue;
		}
		if (size > lines->max_bytes)
			return CELL__LINE_TOO_LONG;
		if (size > 0 && line[size - 1] == '\r')
			size--;
		if (size == 0)
			continue;
		*ret_line = line;
		*ret_size = size;
		return CELL__LINE_OK;
	}
	return CELL__LINE_MORE;
}
