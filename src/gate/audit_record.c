/* Records as lines of JSON. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gate/audit.h"

#define ITEM_COST 512              /* approximate size of an item besides its strings */
#define MAX_ERROR_IN (16u * 1024u)  /* of a message before redaction */
#define HEAD_OF_ARGS 1024u
#define USUAL_HEAD 512u             /* usual size of the parts of a line */
#define USUAL_TAIL 256u

void cell__audit_time(const struct timespec *when, char out[static CELL__AUDIT_TIME_SIZE])
{
	struct tm tm;
	char date[24];
	gmtime_r(&when->tv_sec, &tm);
	strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out, CELL__AUDIT_TIME_SIZE, "%s.%03ldZ", date, when->tv_nsec / 1000000 % 1000);
}

static int add_now(struct cell__buf *out)
{
	struct timespec now;
	char text[CELL__AUDIT_TIME_SIZE];
	clock_gettime(CLOCK_REALTIME, &now);
	cell__audit_time(&now, text);
	return cell__buf_printf(out, "{\"time\":\"%s\"", text);
}

/* ,"key":"text" or ,"key":null */
static int add_word(struct cell__buf *out, const char *key, const char *text)
{
	if (cell__buf_add(out, ",\"", 2) < 0 || cell__buf_add_str(out, key) < 0 || cell__buf_add(out, "\":", 2) < 0)
		return -1;
	if (!text)
		return cell__buf_add(out, "null", 4);
	size_t size = strnlen(text, CELL__AUDIT_LIMIT_WORD + 1);
	if (size <= CELL__AUDIT_LIMIT_WORD && cell__utf8_ok(text, size))
		return cell__buf_add_json_string(out, text, size);
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	bool cut = size > CELL__AUDIT_LIMIT_WORD;
	if (cut)
		size = CELL__AUDIT_LIMIT_WORD - cell__utf8_cut(text, CELL__AUDIT_LIMIT_WORD);
	if (cell__buf_add_utf8(&clean, text, size) < 0 || (cut && cell__buf_add_str(&clean, "[cut]") < 0))
		return -1;
	return cell__buf_add_json_string(out, clean.data, clean.size);
}

static int add_rule(struct cell__buf *out, const struct cell__audit_record *record)
{
	if (record->rule > 0)
		return cell__buf_printf(out, ",\"rule\":%d", record->rule);
	return cell__buf_add_str(out, ",\"rule\":null");
}

static int add_head(struct cell__buf *out, const struct cell__audit_record *record)
{
	const struct {
		const char *key, *text;
	} words[] = {
		{ "session", record->session_id }, { "cell", record->cell_hash },    { "request", record->request_id },
		{ "kind", record->kind },          { "tool", record->tool },         { "callable", record->callable },
		{ "adapter", record->adapter },    { "executor", record->executor }, { "principal", record->principal },
		{ "client", record->client },
	};
	if (cell__buf_reserve(out, USUAL_HEAD) < 0 || add_now(out) < 0)
		return -1;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (add_word(out, words[i].key, words[i].text) < 0)
			return -1;
	return 0;
}

static int add_tail(struct cell__buf *out, const struct cell__audit_record *record)
{
	static const char *const decisions[] = { "allow", "deny", "accepted", "edited", "rejected", "timeout", "withdrawn" };
	static const char *const deciders[] = { "policy", "person", "cli", "timeout", "middleware", "session", "host" };
	static const char *const outcomes[] = { "ok", "error", "cancelled" };
	int64_t us = record->duration_us > 0 ? record->duration_us : 0;
	if (cell__buf_reserve(out, USUAL_TAIL) < 0 || add_word(out, "decision", decisions[record->decision]) < 0 ||
	    add_word(out, "by", deciders[record->by]) < 0 || add_rule(out, record) < 0 ||
	    add_word(out, "rule_name", record->rule_name) < 0 ||
	    cell__buf_printf(out, ",\"duration_ms\":%lld.%03d", (long long)(us / 1000), (int)(us % 1000)) < 0)
		return -1;
	const char *code = record->outcome == CELL__AUDIT_ERROR ? cell_code_word(record->code) : NULL;
	return add_word(out, "outcome", outcomes[record->outcome]) < 0 ? -1 : add_word(out, "code", code);
}

/* The approximate memory of the arguments: they are kept until they are written. */
static size_t estimate(const json_t *value, size_t depth)
{
	size_t cost = 32;
	const char *key;
	json_t *item;
	size_t i;
	if (depth > CELL__REDACT_LIMIT_DEPTH)
		return cost;
	if (json_is_string(value))
		return cost + json_string_length(value);
	json_array_foreach(value, i, item)
		cost += estimate(item, depth + 1);
	json_object_foreach((json_t *)value, key, item)
		cost += 32 + strlen(key) + estimate(item, depth + 1);
	return cost;
}

size_t cell__audit_memory_of(const json_t *value)
{
	return estimate(value, 0);
}

struct cell__audit_item *cell__audit_item_create(const struct cell__audit_record *record)
{
	struct cell__audit_item *item = cell__alloc(1, sizeof *item);
	if (!item)
		return NULL;
	if (record->error)
		item->error = cell__strndup(record->error, strnlen(record->error, MAX_ERROR_IN));
	if ((record->error && !item->error) || add_head(&item->head, record) < 0 || add_tail(&item->tail, record) < 0) {
		cell__audit_item_destroy(item);
		return NULL;
	}
	item->args = json_incref(record->args);
	item->args_before = json_incref(record->args_before);
	item->cost = ITEM_COST + item->head.size + item->tail.size + (item->error ? strlen(item->error) : 0) + estimate(item->args, 0) +
		     estimate(item->args_before, 0);
	return item;
}

struct cell__audit_item *cell__audit_item_create_lost(uint64_t lost, int error)
{
	struct cell__audit_item *item = cell__alloc(1, sizeof *item);
	const char *why = error ? strerrordesc_np(error) : "the queue was full";
	if (!item)
		return NULL;
	if (add_now(&item->line) < 0 ||
	    cell__buf_printf(&item->line, ",\"kind\":\"audit\",\"lost\":%llu,\"outcome\":\"error\",\"code\":\"io\",\"error\":",
			     (unsigned long long)lost) < 0 ||
	    cell__buf_printf(&item->line, "\"%llu records were lost: %s\"}\n", (unsigned long long)lost, why ? why : "unknown error") < 0) {
		cell__audit_item_destroy(item);
		return NULL;
	}
	item->cost = ITEM_COST;
	return item;
}

struct cell__audit_item *cell__audit_item_create_withdrawn(const char *session_id, uint64_t count)
{
	struct cell__audit_item *item = cell__alloc(1, sizeof *item);
	if (!item)
		return NULL;
	if (add_now(&item->line) < 0 || add_word(&item->line, "session", session_id) < 0 ||
	    cell__buf_printf(&item->line,
			     ",\"kind\":\"audit\",\"withdrawn\":%llu,\"outcome\":\"cancelled\",\"code\":\"limit\",\"error\":\"%llu "
			     "waiting calls were cancelled: the session's calls fill the log too fast\"}\n",
			     (unsigned long long)count, (unsigned long long)count) < 0) {
		cell__audit_item_destroy(item);
		return NULL;
	}
	item->cost = ITEM_COST;
	return item;
}

/* ---- how much ---- */

#define LEAST_VALUE 14u /* "[redacted]", and its separator */

#define SCANNED_TEXT (64u * 1024u)

/* As JSON. Redaction may keep any part of it, and cuts strings longer than CELL__REDACT_LIMIT_STRING. */
static size_t size_of_text(const char *text, size_t size)
{
	size_t most = CELL__REDACT_LIMIT_STRING, escapes = 0;
	if (size > SCANNED_TEXT)
		return 6 * most;
	for (size_t i = 0; i < size; i++)
		escapes += (unsigned char)text[i] < ' ' || text[i] == '"' || text[i] == '\\' || text[i] == 127;
	return (size < most ? size : most) + 5 * (escapes < most ? escapes : most);
}

static size_t size_of_value(const json_t *value, size_t left, size_t depth)
{
	size_t sum = LEAST_VALUE, i;
	const char *key;
	json_t *item;
	if (json_is_string(value))
		return sum + size_of_text(json_string_value(value), json_string_length(value));
	if (json_is_number(value))
		return sum + 16;
	for (i = 0; json_is_array(value) && i < json_array_size(value) && sum <= left && depth < CELL__REDACT_LIMIT_DEPTH; i++)
		sum += size_of_value(json_array_get(value, i), left - sum, depth + 1);
	json_object_foreach((json_t *)value, key, item) {
		if (sum > left || depth >= CELL__REDACT_LIMIT_DEPTH)
			break;
		sum += 4 + size_of_text(key, strlen(key));
		if (sum <= left)
			sum += size_of_value(item, left - sum, depth + 1);
	}
	return sum;
}

size_t cell__audit_size_of(const json_t *args)
{
	size_t size = args ? size_of_value(args, CELL__AUDIT_LIMIT_ARGS, 0) : 0;
	return size < CELL__AUDIT_LIMIT_ARGS ? size : CELL__AUDIT_LIMIT_ARGS;
}

size_t cell__audit_size_of_error(const char *error)
{
	return error ? size_of_text(error, strnlen(error, CELL__AUDIT_LIMIT_ERROR)) : 0;
}

void cell__audit_item_destroy(struct cell__audit_item *item)
{
	if (!item)
		return;
	cell__buf_finish(&item->head);
	cell__buf_finish(&item->tail);
	cell__buf_finish(&item->line);
	json_decref(item->args);
	json_decref(item->args_before);
	free(item->error);
	free(item);
}

void cell__audit_item_shrink(struct cell__audit_item *item)
{
	if (item->line.size == 0)
		return;
	cell__buf_finish(&item->head);
	cell__buf_finish(&item->tail);
	json_decref(cell__take_ptr(item->args));
	json_decref(cell__take_ptr(item->args_before));
	free(cell__take_ptr(item->error));
	item->cost = ITEM_COST + item->line.size;
}

/* ---- on the pool ---- */

static int add_args(struct cell__buf *line, const char *key, const json_t *args, const struct cell__redactor *redactor,
		    struct cell__redact_found *found)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__buf_printf(line, ",\"%s\":", key) < 0)
		return -1;
	if (!args)
		return cell__buf_add_str(line, "null");
	if (cell__redact_json(redactor, args, found, &text) < 0)
		return -1;
	if (text.size > CELL__AUDIT_LIMIT_ARGS)
		return cell__redact_add_cut(line, text.data, text.size, HEAD_OF_ARGS);
	return cell__buf_add(line, text.data, text.size);
}

/* Redact before truncating: half a secret would no longer match. */
static int add_error(struct cell__buf *line, const char *error, const struct cell__redactor *redactor,
		     const struct cell__redact_found *found)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT, text = CELL_BUF_INIT;
	if (!error)
		return cell__buf_add_str(line, ",\"error\":null");
	if (cell__buf_add_utf8(&clean, error, strlen(error)) < 0 ||
	    cell__redact_text(redactor, clean.data ? clean.data : "", clean.size, found, &text) < 0)
		return -1;
	size_t size = text.size;
	if (size > CELL__AUDIT_LIMIT_ERROR) {
		size = CELL__AUDIT_LIMIT_ERROR - cell__utf8_cut(text.data, CELL__AUDIT_LIMIT_ERROR);
		text.size = size;
		if (cell__buf_add_str(&text, "[cut]") < 0)
			return -1;
		size = text.size;
	}
	if (cell__buf_add_str(line, ",\"error\":") < 0)
		return -1;
	return cell__buf_add_json_string(line, text.data ? text.data : "", size);
}

int cell__audit_item_make_line(struct cell__audit_item *item, const struct cell__redactor *redactor)
{
	if (item->line.size > 0)
		return 0;
	struct cell__redact_found found = { .count = 0 };
	struct cell__buf line = CELL_BUF_INIT;
	if (cell__buf_add(&line, item->head.data, item->head.size) < 0 || add_args(&line, "args", item->args, redactor, &found) < 0 ||
	    (item->args_before && add_args(&line, "args_before", item->args_before, redactor, &found) < 0) ||
	    cell__buf_add(&line, item->tail.data, item->tail.size) < 0 || add_error(&line, item->error, redactor, &found) < 0 ||
	    cell__buf_add_str(&line, "}\n") < 0) {
		cell__buf_finish(&line);
		return -1;
	}
	item->line = line;
	return 0;
}
