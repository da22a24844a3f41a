/*
 * `workcell audit`: the audit log, for people and for programs.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/words.h"

#define BATCH 200       /* rows that are aligned together */
#define POLL_MS 200     /* between two polls of -f */
#define SHORT_ID 8      /* characters of an id that are shown */
#define SHORT_DETAIL 100

struct audit_flags {
	const char *session;
	const char *tool;
	const char *decision;
	const char *since;
	int64_t last;
	bool follow;
	bool json;
};

static const struct cell_cli_flag audit_flag_table[] = {
	{ 0, "json", NULL, "print the records unchanged, one per line", CELL_FLAG_SWITCH, offsetof(struct audit_flags, json) },
	{ 'n', NULL, "N", "tail: number of lines", CELL_FLAG_BYTES, offsetof(struct audit_flags, last) },
	{ 'f', "follow", NULL, "tail: wait for more records", CELL_FLAG_SWITCH, offsetof(struct audit_flags, follow) },
	{ 0, "session", "ID", "only records of this session; a prefix of the id is enough", CELL_FLAG_STRING,
	  offsetof(struct audit_flags, session) },
	{ 0, "tool", "NAME", "only records of this TOOL or TOOL.CALLABLE; may contain * and ?", CELL_FLAG_STRING,
	  offsetof(struct audit_flags, tool) },
	{ 0, "decision", "WORD", "only records with this decision: allow, deny, accepted, edited, rejected or timeout", CELL_FLAG_STRING,
	  offsetof(struct audit_flags, decision) },
	{ 0, "since", "TIME", "only records since this time: 2026-11-15T05:06:40Z, 2026-11-15, or 90s, 15m, 2h, 7d ago", CELL_FLAG_STRING,
	  offsetof(struct audit_flags, since) },
	{ 0 },
};

const struct cell_cli_command cell__cli_audit_command = {
	.name = "audit",
	.summary = "show the audit log: who called what, and who allowed it",
	.synopsis = "tail [-n N] [-f] FILE | show FILE [--session ID] [--tool NAME] [--decision WORD] [--since TIME]",
	.about = "FILE is the live file; FILE.1, FILE.2, ... are read before it.\n\n"
		 "  tail   the last lines, and with -f also new ones\n"
		 "  show   all records, or those that the flags select\n\n"
		 "Lines that are not records are reported on stderr and skipped.",
	.examples = "  workcell audit tail -f audit.jsonl\n"
		    "  workcell audit show audit.jsonl --tool 'github.*' --since 2h\n"
		    "  workcell audit show audit.jsonl --decision rejected --json",
	.flags = audit_flag_table,
	.verbs = "tail show",
	.run = cell__cmd_audit,
};

/* ---- one record as text ---------------------------------------------------------- */

static char *decision_text(const json_t *record)
{
	json_int_t rule = json_integer_value(json_object_get(record, "rule"));
	const char *by = cell__cli_text(record, "by"), *name = cell__cli_text(record, "rule_name");
	char *text = NULL;
	int n;

	if (rule > 0)
		n = asprintf(&text, "%s (rule %" JSON_INTEGER_FORMAT "%s%s)", cell__cli_text(record, "decision"), rule, *name ? ": " : "",
			     name);
	else if (*by)
		n = asprintf(&text, "%s (%s)", cell__cli_text(record, "decision"), by);
	else
		n = asprintf(&text, "%s", cell__cli_text(record, "decision"));
	return n < 0 ? NULL : text;
}

static char *outcome_text(const json_t *record)
{
	const char *code = cell__cli_text(record, "code");
	const json_t *duration = json_object_get(record, "duration_ms");
	char *text = NULL, words[32];
	int n;

	if (json_is_number(duration))
		n = asprintf(&text, "%s %s", *code ? code : cell__cli_text(record, "outcome"),
			     cell__duration_words(json_number_value(duration), words));
	else
		n = asprintf(&text, "%s", *code ? code : cell__cli_text(record, "outcome"));
	return n < 0 ? NULL : text;
}

/* The error, or else the arguments. */
static char *detail_text(const json_t *record)
{
	const char *error = cell__cli_text(record, "error");
	const json_t *args = json_object_get(record, "args");
	char *text = *error ? strdup(error) : args && !json_is_null(args) ? json_dumps(args, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("");
	size_t size = text ? strlen(text) : 0;

	if (size > SHORT_DETAIL) {
		size = SHORT_DETAIL - 3;
		while (size && ((unsigned char)text[size] & 0xc0) == 0x80)
			size--;
		strcpy(text + size, "...");
	}
	return text;
}

static void add_row(struct cell_cli_table *table, const json_t *record)
{
	const char *callable = cell__cli_text(record, "callable"), *tool = cell__cli_text(record, "tool");
	char session[SHORT_ID + 1];
	char *name = NULL, *decision = decision_text(record), *outcome = outcome_text(record), *detail = detail_text(record);

	snprintf(session, sizeof(session), "%s", cell__cli_text(record, "session"));
	if (asprintf(&name, "%s%s%s", *tool ? tool : cell__cli_text(record, "kind"), *callable ? "." : "", callable) < 0)
		name = NULL;
	if (name && decision && outcome && detail)
		cell__cli_table_add(table, (const char *[]){ cell__cli_text(record, "time"), session, name, decision, outcome, detail });
	else
		table->failed = true;
	free(name);
	free(decision);
	free(outcome);
	free(detail);
}

static void complain(const struct cell_audit_entry *entry)
{
	char *text = NULL;
	int n;

	if (entry->line)
		n = asprintf(&text, "workcell: %s:%" PRId64 ": %s; skipped", entry->file, entry->line, entry->problem);
	else
		n = asprintf(&text, "workcell: %s: %s", entry->file, entry->problem);
	if (n > 0)
		cell__cli_note(text);
	free(text);
}

/* ---- reading ----------------------------------------------------------------------- */

static int print_entry(const struct cell_audit_entry *entry, bool json, struct cell_cli_table *table, struct cell_error *err)
{
	json_t *record;

	if (!entry->json) {
		complain(entry);
		return 0;
	}
	if (json) {
		cell__cli_line(entry->json);
		return 0;
	}
	record = json_loads(entry->json, JSON_ALLOW_NUL, NULL);
	add_row(table, record);
	json_decref(record);
	return table->count >= BATCH * table->columns ? cell__cli_table_print(table, err) : 0;
}

/* All that there is at the moment. */
static int print_all(struct cell_audit_reader *reader, bool json, struct cell_error *err)
{
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_cli_table table = { .columns = 6 };
	int more, status = 0;

	while (!status && (more = cell_audit_reader_next(reader, &entry, err)) != 0 && !cell__cli_stop_status())
		status = more < 0 ? -1 : print_entry(&entry, json, &table, err);
	if (status < 0) {
		cell__cli_table_print(&table, NULL);
		return -1;
	}
	return cell__cli_table_print(&table, err);
}

static int read_log(const struct audit_flags *flags, const char *file, int64_t last, struct cell_error *err)
{
	struct cell_audit_filter filter = CELL_AUDIT_FILTER_INIT;
	struct cell_audit_reader *reader;
	int status;

	filter.session = flags->session;
	filter.tool = flags->tool;
	filter.decision = flags->decision;
	filter.since = flags->since;
	filter.last = last;
	if (cell_audit_reader_open(file, &filter, &reader, err) < 0)
		return -1;
	status = print_all(reader, flags->json, err);
	while (!status && flags->follow && !cell__cli_stop_status()) {
		poll(NULL, 0, POLL_MS);
		status = print_all(reader, flags->json, err);
	}
	cell_audit_reader_close(reader);
	return status;
}

static int run_tail(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct audit_flags *flags = values;

	(void)space;
	return read_log(flags, operands->items[1].value, flags->last ? flags->last : -1, err);
}

static int run_show(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct audit_flags *flags = values;

	(void)space;
	if (flags->follow)
		return cell_fail(err, CELL_E_INVALID, 0, "-f requires tail");
	return read_log(flags, operands->items[1].value, 0, err);
}

/* ---- the command ------------------------------------------------------------------- */

static const struct cell_cli_verb verbs[] = {
	{ "tail", "[-n N] [-f] FILE", 1, 1, false, run_tail },
	{ "show", "FILE [--session ID] [--tool NAME] [--decision WORD] [--since TIME]", 1, 1, false, run_show },
	{ 0 },
};

int cell__cmd_audit(int argc, char **argv)
{
	struct audit_flags flags = { .last = 10 };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_audit_command, argc, argv, &flags, &operands, &status)) {
		struct cell_cli_job job = { .command = "audit", .verbs = verbs, .flags = &flags, .json = flags.json };

		status = cell__cli_do(&job, &operands);
	}
	cell__cli_list_finish(&operands);
	return status;
}
