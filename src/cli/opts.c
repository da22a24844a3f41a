/* Flags, and error messages. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define MAX_SECONDS 1e9
#define MAX_COUNT 1000000000 /* of anything; what a flag sets has its own maximum where it is used */

/* ---- errors ------------------------------------------------------------- */

/* A copy in which the bytes that `hides` picks are shown as \xNN; free() it. */
static char *show_bytes(const char *text, bool (*hides)(unsigned char byte))
{
	char *copy = malloc(strlen(text) * 4 + 1), *out = copy;

	for (const unsigned char *p = (const unsigned char *)text; copy && *p; p++)
		out += sprintf(out, hides(*p) ? "\\x%02x" : "%c", *p);
	if (copy)
		*out = '\0';
	return copy;
}

static bool is_not_ascii(unsigned char byte)
{
	return byte >= 0x80;
}

static char *error_json(int code, const char *message)
{
	json_t *root = json_pack("{s:{s:s, s:s}}", "error", "code", cell_code_word(code), "message", message);
	char *shown, *line;

	/* A message may quote bytes that are not UTF-8: they are shown as on stderr. */
	if (!root) {
		shown = show_bytes(message, is_not_ascii);
		root = json_pack("{s:{s:s, s:s}}", "error", "code", cell_code_word(code), "message", shown ? shown : "");
		free(shown);
	}
	line = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return line;
}

char *cell__cli_error_json(const struct cell_error *err)
{
	return error_json(err->code, err->msg);
}

int cell__cli_report(const struct cell_error *err, bool json)
{
	const char *whole = cell__cli_whole_message(err), *message = whole ? whole : err->msg;
	bool colours = cell__cli_colours(STDERR_FILENO);
	char *shown, *text = NULL;

	if (json) {
		char *line = error_json(err->code, message);

		if (line) {
			cell__cli_write(STDOUT_FILENO, line, strlen(line));
			cell__cli_write(STDOUT_FILENO, "\n", 1);
			free(line);
		}
	}
	/* Control characters in a path or an argument must not reach the terminal. The message of a tool keeps its lines. */
	shown = cell_shown_text(message, strlen(message), whole ? CELL_SHOWN_LINES : CELL_SHOWN_LINE);
	if (asprintf(&text, "workcell: %s%s%s: %s\n", colours ? "\033[1;31m" : "", cell_code_word(err->code), colours ? "\033[0m" : "",
		     shown ? shown : "") < 0)
		text = NULL;
	if (text)
		cell__cli_write(STDERR_FILENO, text, strlen(text));
	free(text);
	free(shown);
	return cell_code_exit_status(err->code);
}

/* ---- parsing ------------------------------------------------------------ */

static int list_append(struct cell_cli_list *list, char letter, const char *value, struct cell_error *err)
{
	if (list->count == list->room) {
		size_t room = list->room ? list->room * 2 : 8;
		struct cell_cli_item *items = reallocarray(list->items, room, sizeof(*items));

		if (!items)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the arguments");
		list->items = items;
		list->room = room;
	}
	list->items[list->count++] = (struct cell_cli_item){ letter, value };
	return 0;
}

const char **cell__cli_list_values(const struct cell_cli_list *list)
{
	const char **values = calloc(list->count + 1, sizeof(*values));

	for (size_t i = 0; values && i < list->count; i++)
		values[i] = list->items[i].value;
	return values;
}

void cell__cli_list_finish(struct cell_cli_list *list)
{
	free(list->items);
	*list = (struct cell_cli_list){ 0 };
}

/* A flag as the person wrote it: "--timeout" or "-e". */
static const char *flag_text(const struct cell_cli_flag *flag, char text[64])
{
	if (flag->name)
		snprintf(text, 64, "--%s", flag->name);
	else
		snprintf(text, 64, "-%c", flag->letter);
	return text;
}

static int parse_whole(const struct cell_cli_flag *flag, const char *value, int64_t *ret, struct cell_error *err)
{
	static const char units[] = "kMG", small[] = "kmg"; /* as Docker writes them */
	char text[64], *end;
	long long number;
	int shift = 0;

	errno = 0;
	number = strtoll(value, &end, 10);
	if (flag->kind == CELL_FLAG_BYTES && *end && strchr(units, *end)) {
		shift = 10 * (int)(strchr(units, *end) - units + 1);
		end++;
	} else if (flag->kind == CELL_FLAG_BYTES && *end && strchr(small, *end)) {
		shift = 10 * (int)(strchr(small, *end) - small + 1);
		end++;
	}
	if (*value < '0' || *value > '9' || *end || errno || number > INT64_MAX >> shift)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be a whole number%s, not '%s'", flag_text(flag, text),
				 flag->kind == CELL_FLAG_BYTES ? " of bytes, like 65536 or 16M" : "", value);
	if (flag->kind == CELL_FLAG_COUNT && number > MAX_COUNT)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be at most %d", flag_text(flag, text), MAX_COUNT);
	*ret = (int64_t)number << shift;
	return 0;
}

static int parse_seconds(const struct cell_cli_flag *flag, const char *value, int64_t *ret_ms, struct cell_error *err)
{
	char text[64], *end;
	double seconds = strtod(value, &end);

	if (end == value || *end || !isfinite(seconds) || seconds < 0 || seconds > MAX_SECONDS)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be %s, like 2.5, or 0 for no limit, not '%s'", flag_text(flag, text),
				 strcmp(flag->arg, "DAYS") ? "seconds" : "days", value);
	*ret_ms = seconds == 0 ? -1 : (int64_t)ceil(seconds * 1000);
	return 0;
}

static int parse_cpus(const struct cell_cli_flag *flag, const char *value, int64_t *ret_quota, struct cell_error *err)
{
	char text[64], *end;
	double cpus = strtod(value, &end);

	if (end == value || *end || !isfinite(cpus) || cpus < 0 || cpus > 1e6 || (cpus > 0 && cpus < 0.01))
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be a number of CPUs from 0.01, like 1.5, or 0 for no limit, not '%s'",
				 flag_text(flag, text), value);
	*ret_quota = (int64_t)(cpus * 100000 + 0.5);
	return 0;
}

static int set_flag(const struct cell_cli_flag *flag, const char *value, void *at, struct cell_error *err)
{
	assert(value || flag->kind == CELL_FLAG_SWITCH);
	switch (flag->kind) {
	case CELL_FLAG_SWITCH:
		*(bool *)at = true;
		return 0;
	case CELL_FLAG_STRING:
		*(const char **)at = value;
		return cell__cli_check_choice(flag, value, err);
	case CELL_FLAG_COUNT:
	case CELL_FLAG_BYTES:
		return parse_whole(flag, value, at, err);
	case CELL_FLAG_CPUS:
		return parse_cpus(flag, value, at, err);
	case CELL_FLAG_SECONDS:
		return parse_seconds(flag, value, at, err);
	case CELL_FLAG_LIST:
		return list_append(at, flag->letter, value, err);
	case CELL_FLAG_GROUP:
		break;
	}
	return 0;
}

static const struct cell_cli_flag *find_flag(const struct cell_cli_flag *flags, char letter, const char *name, size_t size)
{
	for (; flags->kind; flags++) {
		if (flags->kind == CELL_FLAG_GROUP)
			continue;
		if (letter ? flags->letter == letter : flags->name && strlen(flags->name) == size && !memcmp(flags->name, name, size))
			return flags;
	}
	return NULL;
}

static int unknown_flag(const struct cell_cli_command *command, const char *advice, const char *word, bool is_long, size_t size,
			struct cell_error *err)
{
	char name[64] = "";
	const char *near = NULL;

	if (is_long) {
		snprintf(name, sizeof(name), "%.*s", (int)size, word + 2);
		near = cell__cli_nearest_flag(command, name);
	}
	return cell_fail(err, CELL_E_INVALID, 0, "unknown flag %.*s%s%s%s%s%s", is_long ? (int)size + 2 : 2, word,
			 near ? "; did you mean --" : "", near ? near : "", near ? "?" : "", advice ? "; " : "", advice ? advice : "");
}

/* Reads argv[*at], a flag, and its argument; moves *at to the last argument used. values NULL: sets nothing. Positive: a kind of help. */
enum { HELP_SHORT = 1, HELP_WHOLE, HELP_MAN };

static int parse_flag(const struct cell_cli_command *command, const char *advice, int argc, char **argv, int *at, void *values,
		      struct cell_error *err)
{
	const char *word = argv[*at], *value = NULL;
	const struct cell_cli_flag *flag;
	bool is_long = word[1] == '-';
	size_t size = is_long ? strcspn(word + 2, "=") : 1;

	if (!strcmp(word, "-h"))
		return HELP_SHORT;
	if (!strcmp(word, "--help"))
		return HELP_WHOLE;
	if (!strcmp(word, "--help=man")) /* the build makes the pages so */
		return HELP_MAN;
	if (is_long)
		flag = find_flag(command->flags, 0, word + 2, size);
	else
		flag = find_flag(command->flags, word[1], NULL, 0);
	if (!flag)
		return unknown_flag(command, advice, word, is_long, size, err);
	if (is_long && word[2 + size] == '=')
		value = word + 2 + size + 1;
	else if (!is_long && word[2])
		value = word + 2;
	if (!flag->arg && value)
		return cell_fail(err, CELL_E_INVALID, 0, "%.*s takes no argument", is_long ? (int)size + 2 : 2, word);
	if (flag->arg && !value) {
		if (*at + 1 >= argc)
			return cell_fail(err, CELL_E_INVALID, 0, "%s needs an argument: %s", word, flag->arg);
		value = argv[++*at];
	}
	return values ? set_flag(flag, value, (char *)values + flag->offset, err) : 0;
}

int cell__cli_check_setting(const struct cell_cli_command *command, const char *key, const char *value, struct cell_error *err)
{
	const struct cell_cli_flag *flag = find_flag(command->flags, 0, key, strlen(key));
	struct cell_cli_list list = { 0 };
	int64_t number;
	const char *text;
	bool given;
	int status;

	if (!flag) {
		const char *near = cell__cli_nearest_flag(command, key);

		return cell_fail(err, CELL_E_INVALID, 0, "unknown key '%s'%s%s%s", key, near ? "; did you mean '" : "", near ? near : "",
				 near ? "'?" : "");
	}
	if (!flag->arg != !value)
		return cell_fail(err, CELL_E_INVALID, 0, flag->arg ? "'%s' needs a value: %s" : "'%s' must be true or false", key,
				 flag->arg);
	status = set_flag(flag, value,
			  flag->kind == CELL_FLAG_LIST     ? (void *)&list
			  : flag->kind == CELL_FLAG_STRING ? (void *)&text
			  : flag->kind == CELL_FLAG_SWITCH ? (void *)&given
							   : (void *)&number,
			  err);
	cell__cli_list_finish(&list);
	return status;
}

static int parse_all(const struct cell_cli_command *command, int argc, char **argv, void *values, struct cell_cli_list *operands,
		     struct cell_error *err)
{
	bool only_operands = false, has_operand = false;

	for (int i = 1; i < argc; i++) {
		int status;

		if (!only_operands && !strcmp(argv[i], "--")) {
			only_operands = true;
			continue;
		}
		if (!only_operands && argv[i][0] == '-' && argv[i][1]) {
			status = parse_flag(command, has_operand ? command->behind : NULL, argc, argv, &i, values, err);
			if (status)
				return status;
			continue;
		}
		if (!operands)
			return cell_fail(err, CELL_E_INVALID, 0, "unexpected argument '%s'", argv[i]);
		has_operand = true;
		if (values && list_append(operands, 0, argv[i], err) < 0)
			return -1;
	}
	return 0;
}

bool cell__cli_parse(const struct cell_cli_command *command, int argc, char **argv, void *values, struct cell_cli_list *operands,
		     int *ret_status)
{
	struct cell_error err;
	bool json = false;
	int status;

	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "--json") && find_flag(command->flags, 0, "json", 4))
			json = true;
	}
	/* Twice, because help prints the defaults and must come before the first flag changes one. */
	status = parse_all(command, argc, argv, NULL, operands, &err);
	if (!status)
		status = parse_all(command, argc, argv, values, operands, &err);
	if (!status)
		return true;
	if (status > 0) {
		if (status == HELP_MAN)
			cell__cli_print_man(command, values);
		else
			cell__cli_print_help(command, values, status == HELP_WHOLE);
		*ret_status = 0;
		return false;
	}
	*ret_status = cell__cli_report(&err, json);
	fprintf(stderr, "workcell: `workcell %s -h` lists the flags\n", command->name);
	return false;
}
