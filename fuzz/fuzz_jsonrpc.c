/*
 * wire/jsonrpc.  Input: two bytes that say where the text is split, one whose lowest bit allows batches, the text.  A message
 * that is read and written again is read as the same; lines are the same whole or in two pieces, and within their bound.
 */
#include "fuzz.h"
#include "wire/jsonrpc.h"

#define MAX_LINE 200
#define MAX_LINES 4096

static bool same(const json_t *a, const json_t *b)
{
	return (!a && !b) || (a && b && json_equal((json_t *)a, (json_t *)b));
}

static void write_again(const struct cell__rpc_message *message)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int rc = -1;
	switch (message->kind) {
	case CELL__RPC_REQUEST:
		if (!json_is_integer(message->id))
			return;
		rc = cell__rpc_add_request(&text, json_integer_value(message->id), message->method, message->params);
		break;
	case CELL__RPC_NOTIFICATION:
		MUST(!message->id);
		rc = cell__rpc_add_notification(&text, message->method, message->params);
		break;
	case CELL__RPC_RESULT:
		MUST(message->id && message->result);
		rc = cell__rpc_add_result(&text, message->id, message->result);
		break;
	case CELL__RPC_ERROR:
		rc = cell__rpc_add_error(&text, message->id, message->code, message->error_text, message->data);
		break;
	}
	MUST(rc == 0);
	MUST(!memchr(text.data, '\n', text.size) && !memchr(text.data, '\r', text.size) && !memchr(text.data, '\0', text.size));
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message again;
	MUST(cell__rpc_read(text.data, text.size, false, &doc, NULL) == 0);
	MUST(cell__rpc_get(&doc, 0, &again, NULL) == 0);
	MUST(again.kind == message->kind && same(again.id, message->id) && again.code == message->code);
	MUST(same(again.params, message->params) && same(again.result, message->result) && same(again.data, message->data));
	MUST(!message->method || strcmp(message->method, again.method) == 0);
	MUST(!message->error_text || strcmp(message->error_text, again.error_text) == 0);
}

static void read_message(const char *text, size_t size, bool batches)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell_error err = { 0 };
	int rc = cell__rpc_read(text, size, batches, &doc, &err);
	MUST(rc == 0 || ((rc == CELL_RPC_PARSE_ERROR || rc == CELL_RPC_INVALID_REQUEST) && err.code != 0 && !doc.root));
	MUST(rc < 0 || batches || doc.count == 1);
	for (size_t i = 0; i < doc.count; i++) {
		struct cell__rpc_message message;
		rc = cell__rpc_get(&doc, i, &message, &err);
		MUST(rc == 0 || rc == CELL_RPC_INVALID_REQUEST);
		if (rc == 0)
			write_again(&message);
	}
}

struct found {
	enum cell__line_status status;
	size_t size;
	unsigned sum;
};

static size_t take(struct cell__lines *lines, struct found *out, size_t n)
{
	const char *line;
	size_t size;
	enum cell__line_status status;
	while ((status = cell__lines_next(lines, &line, &size)) != CELL__LINE_MORE && n < MAX_LINES) {
		struct found found = { .status = status };
		if (status == CELL__LINE_OK) {
			MUST(size > 0 && size <= MAX_LINE);
			found.size = size;
			for (size_t i = 0; i < size; i++)
				found.sum = found.sum * 31 + (unsigned char)line[i];
		}
		out[n++] = found;
	}
	MUST(n == MAX_LINES || lines->buf.size - lines->start <= MAX_LINE);
	return n;
}

static void read_lines(const char *text, size_t size, size_t split)
{
	static struct found whole[MAX_LINES], pieces[MAX_LINES];
	struct cell__lines lines;
	cell__lines_init(&lines, MAX_LINE);
	MUST(cell__lines_add(&lines, text, size) == 0);
	size_t n_whole = take(&lines, whole, 0);
	cell__lines_finish(&lines);
	MUST(cell__lines_add(&lines, text, split) == 0);
	size_t n = take(&lines, pieces, 0);
	MUST(cell__lines_add(&lines, text + split, size - split) == 0);
	n = take(&lines, pieces, n);
	cell__lines_finish(&lines);
	if (n == MAX_LINES || n_whole == MAX_LINES)
		return;
	MUST(n == n_whole);
	for (size_t i = 0; i < n; i++)
		MUST(whole[i].status == pieces[i].status && whole[i].size == pieces[i].size && whole[i].sum == pieces[i].sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 3)
		return 0;
	size_t split = data[0] | (size_t)data[1] << 8;
	bool batches = data[2] & 1;
	size -= 3;
	uint8_t *text = fuzz_copy(data + 3, size);
	read_message((const char *)text, size, batches);
	read_lines((const char *)text, size, split < size ? split : size);
	free(text);
	return 0;
}
