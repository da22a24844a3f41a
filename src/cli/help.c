/* What the program tells of itself from the tables of flags: help, manual pages, completions of shells. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/nearest.h"

#define HELP_COLUMN 28
#define MAX_CHOICE_BYTES 256 /* words of one flag */

bool cell__cli_colours(int fd)
{
	const char *term = getenv("TERM"), *no = getenv("NO_COLOR");

	return isatty(fd) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

/* ---- --help --------------------------------------------------------------- */

/* " (default ...)" into text, or "". */
static void default_text(const struct cell_cli_flag *flag, const void *values, char text[64])
{
	int64_t number;

	*text = '\0';
	if (flag->kind != CELL_FLAG_COUNT && flag->kind != CELL_FLAG_BYTES && flag->kind != CELL_FLAG_SECONDS)
		return;
	memcpy(&number, (const char *)values + flag->offset, sizeof(number));
	if (number == CELL_CLI_NOT_GIVEN)
		return;
	if (flag->kind == CELL_FLAG_SECONDS && number < 0)
		snprintf(text, 64, " (default none)");
	else if (flag->kind == CELL_FLAG_SECONDS)
		snprintf(text, 64, " (default %g)", (double)number / 1000);
	else if (flag->kind == CELL_FLAG_BYTES && number && number % (1 << 20) == 0)
		snprintf(text, 64, " (default %" PRId64 "M)", number >> 20);
	else
		snprintf(text, 64, " (default %" PRId64 ")", number);
}

static void print_heading(const char *text)
{
	bool colours = cell__cli_colours(STDOUT_FILENO);

	printf("%s%s:%s\n", colours ? "\033[1m" : "", text, colours ? "\033[0m" : "");
}

static void print_flag(const struct cell_cli_flag *flag, const void *values)
{
	char left[64], given[64];

	snprintf(left, sizeof(left), "  %c%c%s%s%s %s", flag->letter ? '-' : ' ', flag->letter ? flag->letter : ' ',
		 flag->letter && flag->name ? "," : " ", flag->name ? " --" : "", flag->name ? flag->name : "", flag->arg ? flag->arg : "");
	if (!flag->name && flag->arg)
		snprintf(left, sizeof(left), "  -%c %s", flag->letter, flag->arg);
	default_text(flag, values, given);
	printf("%-*s %s%s\n", HELP_COLUMN, left, flag->help, given);
}

/* The first paragraph is enough for somebody who only forgot a flag's name. */
static size_t first_paragraph(const char *about)
{
	const char *end = strstr(about, "\n\n");

	return end ? (size_t)(end - about) : strlen(about);
}

void cell__cli_print_help(const struct cell_cli_command *command, const void *values, bool whole)
{
	size_t about = whole ? strlen(command->about) : first_paragraph(command->about);
	bool groups = false;

	printf("usage: workcell %s %s\n\n%.*s\n\n", command->name, command->synopsis, (int)about, command->about);
	print_heading("flags");
	for (const struct cell_cli_flag *flag = command->flags; flag->kind; flag++) {
		if (!flag->help)
			continue;
		if (flag->kind != CELL_FLAG_GROUP) {
			print_flag(flag, values);
			continue;
		}
		groups = true;
		if (!whole && !flag->letter)
			break;
		putchar('\n');
		print_heading(flag->help);
	}
	if (!whole && groups)
		printf("%-*s %s\n", HELP_COLUMN, "  -h, --help", "-h: this text; --help: all flags");
	else
		printf("\n%-*s %s\n", HELP_COLUMN, "  -h, --help", groups ? "-h: the most used flags; --help: this text" : "this text");
	putchar('\n');
	print_heading("examples");
	printf("%s\n", command->examples);
	fflush(stdout);
}

/* ---- manual pages ----------------------------------------------------------- */

/* A text of several lines, in roff. */
static void roff(const char *text)
{
	bool line_start = true;

	for (; *text; text++) {
		if (line_start && (*text == '.' || *text == '\''))
			fputs("\\&", stdout);
		if (*text == '\\')
			fputs("\\e", stdout);
		else if (*text == '-')
			fputs("\\-", stdout);
		else
			putchar(*text);
		line_start = *text == '\n';
	}
}

static void roff_block(const char *title, const char *text)
{
	printf(".SH %s\n.nf\n", title);
	roff(text);
	printf("\n.fi\n");
}

static void print_man_flag(const struct cell_cli_flag *flag, const void *values)
{
	char given[64];

	if (flag->kind == CELL_FLAG_GROUP) {
		printf(".SS ");
		roff(flag->help);
		putchar('\n');
		return;
	}
	printf(".TP\n\\fB");
	if (flag->letter)
		printf("\\-%c%s", flag->letter, flag->name ? ", " : "");
	if (flag->name) {
		printf("\\-\\-");
		roff(flag->name);
	}
	printf("\\fR");
	if (flag->arg) {
		printf(" \\fI");
		roff(flag->arg);
		printf("\\fR");
	}
	putchar('\n');
	roff(flag->help);
	default_text(flag, values, given);
	roff(given);
	putchar('\n');
}

void cell__cli_print_man(const struct cell_cli_command *command, const void *values)
{
	printf(".TH WORKCELL\\-%s 1 \"\" \"workcell %s\"\n.SH NAME\nworkcell\\-%s \\- ", command->name, cell_version(), command->name);
	roff(command->summary);
	printf("\n.SH SYNOPSIS\n.B workcell %s\n", command->name);
	roff(command->synopsis);
	putchar('\n');
	roff_block("DESCRIPTION", command->about);
	printf(".SH FLAGS\n");
	for (const struct cell_cli_flag *flag = command->flags; flag->kind; flag++)
		if (flag->help)
			print_man_flag(flag, values);
	roff_block("EXAMPLES", command->examples);
	printf(".SH SEE ALSO\n.BR workcell (1)\n");
	fflush(stdout);
}

void cell__cli_print_man_overview(const struct cell_cli_command *const *commands)
{
	printf(".TH WORKCELL 1 \"\" \"workcell %s\"\n.SH NAME\nworkcell \\- runs the Python code that AI agents write\n"
	       ".SH SYNOPSIS\n.B workcell\n.I COMMAND\n[flags]\n.SH COMMANDS\n",
	       cell_version());
	for (; *commands; commands++) {
		printf(".TP\n.BR workcell\\-%s (1)\n", (*commands)->name);
		roff((*commands)->summary);
		putchar('\n');
	}
	fflush(stdout);
}

/* ---- completions --------------------------------------------------------------- */

/* Whether it is a flag with a name that is not an old one. */
static bool is_shown(const struct cell_cli_flag *flag)
{
	return flag->name && flag->help && flag->kind != CELL_FLAG_GROUP;
}

static void print_flag_words(const struct cell_cli_command *command)
{
	for (const struct cell_cli_flag *flag = command->flags; flag && flag->kind; flag++)
		if (is_shown(flag))
			printf(" --%s", flag->name);
	printf(" --help");
}

static const char executors[] =
#define CELL__EXECUTOR(name) " " #name
#include "executors/registry.def"
#undef CELL__EXECUTOR
	;
_Static_assert(sizeof(executors) <= MAX_CHOICE_BYTES, "MAX_CHOICE_BYTES has no room for all executors");

/* The values of flags that take one of a few words, the same in every command that has the flag. */
static const struct choice {
	const char *flag, *words;
	bool others; /* other values are possible */
} choices[] = {
	{ "executor", executors + 1, false },
	{ "approve", "auto ask deny", false },
	{ "workspace-mode", "rw cow ro none", false },
	{ "isolation", "executor workspace session", false },
	{ "zygote-per", "engine workspace session", false },
	{ "sandbox-policy", "untrusted data-science developer", true },
	{ "network", "none deps-only full", true },
	{ "log-level", "debug info warning error", true },
};

static const struct choice *find_choice(const struct cell_cli_flag *flag)
{
	for (size_t i = 0; flag->name && flag->arg && i < sizeof(choices) / sizeof(choices[0]); i++) {
		if (!strcmp(choices[i].flag, flag->name))
			return &choices[i];
	}
	return NULL;
}

/* NULL: any text. */
static const char *choices_of(const struct cell_cli_flag *flag)
{
	const struct choice *choice = find_choice(flag);

	return choice ? choice->words : NULL;
}

int cell__cli_check_choice(const struct cell_cli_flag *flag, const char *value, struct cell_error *err)
{
	const struct choice *choice = find_choice(flag);
	char text[MAX_CHOICE_BYTES], list[2 * MAX_CHOICE_BYTES] = "", *word, *rest = text;
	const char *words[MAX_CHOICE_BYTES / 2 + 1], *near;
	size_t n = 0;

	if (!choice || choice->others)
		return 0;
	snprintf(text, sizeof(text), "%s", choice->words);
	while ((word = strsep(&rest, " "))) {
		if (!strcmp(word, value))
			return 0;
		words[n++] = word;
	}
	words[n] = NULL;
	for (size_t i = 0; i < n; i++) {
		size_t size = strlen(list);

		snprintf(list + size, sizeof(list) - size, "%s%s", !i ? "" : i + 1 < n ? ", " : " or ", words[i]);
	}
	near = cell__nearest(value, words);
	return cell_fail(err, CELL_E_INVALID, 0, "--%s must be %s, not '%.60s'%s%s%s", flag->name, list, value,
			 near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static void complete_bash(const struct cell_cli_command *const *commands)
{
	printf("# bash completion for workcell: eval \"$(workcell completion bash)\"\n"
	       "_workcell()\n{\n"
	       "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words= flags=\n"
	       "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tCOMPREPLY=($(compgen -W '");
	for (size_t i = 0; commands[i]; i++)
		printf("%s%s", i ? " " : "", commands[i]->name);
	printf(" help --version --help' -- \"$cur\"))\n\t\treturn\n\tfi\n\tcase $command:$prev in\n");
	for (size_t i = 0; commands[i]; i++) {
		for (const struct cell_cli_flag *flag = commands[i]->flags; flag && flag->kind; flag++) {
			if (choices_of(flag))
				printf("\t%s:--%s) words='%s' ;;\n", commands[i]->name, flag->name, choices_of(flag));
		}
	}
	printf("\tesac\n\tif [ -n \"$words\" ]; then\n\t\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n\t\treturn\n\tfi\n"
	       "\tcase $command in\n");
	for (size_t i = 0; commands[i]; i++) {
		printf("\t%s) words='%s' flags='", commands[i]->name, commands[i]->verbs ? commands[i]->verbs : "");
		print_flag_words(commands[i]);
		printf("' ;;\n");
	}
	printf("\thelp) words='");
	for (size_t i = 0; commands[i]; i++)
		printf("%s ", commands[i]->name);
	printf("' ;;\n\tesac\n"
	       "\tcase $cur in\n"
	       "\t-*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")) ;;\n"
	       "\t*) if [ \"$COMP_CWORD\" -eq 2 ] && [ -n \"$words\" ]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); else\n"
	       "\t\tcompopt -o default 2>/dev/null; COMPREPLY=(); fi ;;\n"
	       "\tesac\n}\ncomplete -F _workcell workcell\n");
}

/* A text between single quotes; zsh's own characters of a specification are escaped. */
static void quoted(const char *text, const char *escaped)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", stdout);
		else if (strchr(escaped, *text))
			printf("\\%c", *text);
		else
			putchar(*text);
	}
}

static void complete_zsh(const struct cell_cli_command *const *commands)
{
	printf("#compdef workcell\n"
	       "# zsh completion: put it as _workcell into a folder of $fpath, or: source <(workcell completion zsh)\n"
	       "_workcell() {\n\tlocal -a commands\n\tcommands=(\n");
	for (size_t i = 0; commands[i]; i++) {
		printf("\t\t'%s:", commands[i]->name);
		quoted(commands[i]->summary, ":\\");
		printf("'\n");
	}
	printf("\t\t'help:help on a command'\n\t)\n"
	       "\tif (( CURRENT == 2 )); then _describe command commands; return; fi\n"
	       "\tlocal command=$words[2]\n\tshift words; (( CURRENT-- ))\n\tcase $command in\n");
	for (size_t i = 0; commands[i]; i++) {
		printf("\t%s) _arguments \\\n", commands[i]->name);
		for (const struct cell_cli_flag *flag = commands[i]->flags; flag && flag->kind; flag++) {
			if (!is_shown(flag))
				continue;
			printf("\t\t'%s--%s[", flag->kind == CELL_FLAG_LIST ? "*" : "", flag->name);
			quoted(flag->help, "[]:\\");
			putchar(']');
			if (flag->arg) {
				putchar(':');
				quoted(flag->arg, "[]:\\");
				putchar(':');
				if (choices_of(flag))
					printf("(%s)", choices_of(flag));
				else
					printf("_files");
			}
			printf("' \\\n");
		}
		if (commands[i]->verbs)
			printf("\t\t'1:subcommand:(%s)' \\\n", commands[i]->verbs);
		printf("\t\t'*:file:_files' ;;\n");
	}
	printf("\thelp) _arguments '1:command:(");
	for (size_t i = 0; commands[i]; i++)
		printf("%s ", commands[i]->name);
	printf(")' ;;\n\tesac\n}\n"
	       "if [ \"$funcstack[1]\" = _workcell ]; then _workcell \"$@\"; else compdef _workcell workcell; fi\n");
}

/* Between single quotes fish knows \' and \\ only. */
static void quoted_fish(const char *text)
{
	for (; *text; text++) {
		if (*text == '\'' || *text == '\\')
			putchar('\\');
		putchar(*text);
	}
}

static void complete_fish(const struct cell_cli_command *const *commands)
{
	printf("# fish completion for workcell: workcell completion fish | source\n");
	for (size_t i = 0; commands[i]; i++) {
		printf("complete -c workcell -n __fish_use_subcommand -f -a %s -d '", commands[i]->name);
		quoted_fish(commands[i]->summary);
		printf("'\n");
		if (commands[i]->verbs)
			printf("complete -c workcell -n '__fish_seen_subcommand_from %s' -a '%s'\n", commands[i]->name, commands[i]->verbs);
		for (const struct cell_cli_flag *flag = commands[i]->flags; flag && flag->kind; flag++) {
			if (!is_shown(flag))
				continue;
			printf("complete -c workcell -n '__fish_seen_subcommand_from %s' -l %s%s", commands[i]->name, flag->name,
			       flag->arg ? " -r" : "");
			if (choices_of(flag))
				printf(" -f -a '%s'", choices_of(flag));
			printf(" -d '");
			quoted_fish(flag->help);
			printf("'\n");
		}
	}
	printf("complete -c workcell -n __fish_use_subcommand -f -a help -d 'help on a command'\n"
	       "complete -c workcell -n '__fish_seen_subcommand_from help' -f -a '");
	for (size_t i = 0; commands[i]; i++)
		printf("%s ", commands[i]->name);
	printf("'\n");
}

int cell__cli_print_completion(const char *shell, const struct cell_cli_command *const *commands, struct cell_error *err)
{
	static const char *const names[] = { "bash", "zsh", "fish", NULL };
	static void (*const writers[])(const struct cell_cli_command *const *) = { complete_bash, complete_zsh, complete_fish };

	for (size_t i = 0; names[i]; i++) {
		if (!strcmp(names[i], shell)) {
			writers[i](commands);
			fflush(stdout);
			return 0;
		}
	}
	return cell_fail(err, CELL_E_INVALID, 0, "completions exist for bash, zsh and fish, not for '%s'", shell);
}

/* ---- did you mean ------------------------------------------------------------- */

#define MAX_WORDS 200

const char *cell__cli_nearest_flag(const struct cell_cli_command *command, const char *name)
{
	const char *words[MAX_WORDS + 1];
	size_t n = 0;

	for (const struct cell_cli_flag *flag = command->flags; flag->kind && n < MAX_WORDS; flag++)
		if (is_shown(flag))
			words[n++] = flag->name;
	words[n] = NULL;
	return cell__nearest(name, words);
}

const char *cell__cli_nearest_command(const struct cell_cli_command *const *commands, const char *name)
{
	const char *words[MAX_WORDS + 3];
	size_t n = 0;

	for (; commands[n] && n < MAX_WORDS; n++)
		words[n] = commands[n]->name;
	words[n++] = "help";
	words[n++] = "version";
	words[n] = NULL;
	return cell__nearest(name, words);
}
