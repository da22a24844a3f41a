/* `workcell policy`: the decision of a policy about a call, and the problems of a policy. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of `policy test`, besides 0 for allow: no status that a failure has. */
#define STATUS_ASK 3
#define STATUS_DENY 4

struct policy_flags {
	const char *kind;
	const char *principal;
	const char *tool;
	const char *adapter;
	const char *args;
	bool json;
};

static const struct cell_cli_flag policy_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON on one line", CELL_FLAG_SWITCH, offsetof(struct policy_flags, json) },
	{ 0, "tool", "NAME", "test: TOOL or TOOL.CALLABLE", CELL_FLAG_STRING, offsetof(struct policy_flags, tool) },
	{ 0, "kind", "KIND", "test: tool, shell, install, remove, workflow, artifact or server (default tool)", CELL_FLAG_STRING,
	  offsetof(struct policy_flags, kind) },
	{ 0, "principal", "WHO", "test: principal of the call: code, mcp, http or host (default code)", CELL_FLAG_STRING,
	  offsetof(struct policy_flags, principal) },
	{ 0, "adapter", "NAME", "test: adapter of the tool: cli, http, ...", CELL_FLAG_STRING, offsetof(struct policy_flags, adapter) },
	{ 0, "args", "JSON", "test: the arguments as a JSON object (default {})", CELL_FLAG_STRING, offsetof(struct policy_flags, args) },
	{ 0 },
};

const struct cell_cli_command cell__cli_policy_command = {
	.name = "policy",
	.summary = "test and check policies: which calls are allowed, need approval, or are denied",
	.synopsis = "test FILE --tool TOOL[.CALLABLE] [--kind KIND] [--args JSON] | check FILE",
	.about = "A policy is a YAML file of ordered rules; the first that matches decides.\n\n"
		 "  test FILE    prints which rule decides on this call, and how; exit status 0: allow, 3: ask, 4: deny\n"
		 "  check FILE   prints every problem as FILE:LINE: message; exit status 1 when there is one",
	.examples = "  workcell policy test policy.yaml --tool grep.find --args '{\"file\": \"/data/a.txt\"}'\n"
		    "  workcell policy test policy.yaml --kind shell --args '{\"cmd\": \"git status\"}' --json\n"
		    "  workcell policy check policy.yaml",
	.flags = policy_flag_table,
	.verbs = "test check",
	.run = cell__cmd_policy,
};

/* ---- test ----------------------------------------------------------------------- */

static json_t *text_or_null(const char *text)
{
	return text ? json_string(text) : json_null();
}

static int print_verdict_json(const struct cell_policy_verdict *verdict, struct cell_error *err)
{
	json_t *doubt = verdict->doubt ? json_pack("{s:s, s:s}", "what", verdict->doubt, "why", verdict->doubt_why) : json_null();
	json_t *root = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "decision", cell_decision_word(verdict->decision), "rule",
				 verdict->rule ? json_integer(verdict->rule) : json_null(), "line",
				 verdict->rule ? json_integer(verdict->line) : json_null(), "name", text_or_null(verdict->name), "reason",
				 text_or_null(verdict->reason), "doubt", doubt);
	int status = root ? cell__cli_print_json(root, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a verdict");

	json_decref(root);
	return status;
}

/* Of a reason the first line: a table has one for each row. */
static int print_verdict_text(const char *file, const struct cell_policy_verdict *verdict, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 2 };
	char *by = NULL, *doubt = NULL;
	int n;

	if (verdict->rule)
		n = asprintf(&by, "rule %d (%s:%d)%s%s", verdict->rule, file, verdict->line, verdict->name ? ": " : "",
			     verdict->name ? verdict->name : "");
	else
		n = asprintf(&by, "the default: no rule matches");
	if (n < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a verdict");
	cell__cli_table_add(&table, (const char *[]){ cell_decision_word(verdict->decision), by });
	if (verdict->reason)
		cell__cli_table_add(&table, (const char *[]){ "reason", verdict->reason });
	if (verdict->doubt && asprintf(&doubt, "%s %s, so the rule is taken to match", verdict->doubt, verdict->doubt_why) > 0)
		cell__cli_table_add(&table, (const char *[]){ "doubt", doubt });
	free(by);
	free(doubt);
	return cell__cli_table_print(&table, err);
}

/* The gate's names of objects that are not tools. */
static const char *usual_name(const char *kind)
{
	if (!strcmp(kind, "shell"))
		return "shell";
	if (!strcmp(kind, "install"))
		return "deps.add";
	return !strcmp(kind, "workflow") ? "workflows.create" : NULL;
}

static int run_test(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct policy_flags *flags = values;
	const char *file = operands->items[1].value, *name = flags->tool ? flags->tool : usual_name(flags->kind);
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_policy *policy = NULL;
	char *tool = NULL, *dot;
	int status;

	(void)space;
	if (!name)
		return cell_fail(err, CELL_E_INVALID, 0, "give --tool TOOL or --tool TOOL.CALLABLE");
	tool = strdup(name);
	if (!tool)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a name");
	dot = strchr(tool, '.');
	if (dot)
		*dot++ = '\0';
	subject.kind = flags->kind;
	subject.tool = tool;
	subject.callable = dot;
	subject.adapter = flags->adapter;
	subject.principal = flags->principal;
	subject.args_json = flags->args;
	status = cell_policy_load(file, &policy, err);
	if (!status)
		status = cell_policy_decide(policy, &subject, &verdict, err);
	if (!status)
		status = flags->json ? print_verdict_json(&verdict, err) : print_verdict_text(file, &verdict, err);
	if (!status && verdict.decision != CELL_ALLOW)
		status = verdict.decision == CELL_ASK ? STATUS_ASK : STATUS_DENY;
	cell_policy_destroy(policy);
	free(tool);
	return status;
}

/* ---- check ---------------------------------------------------------------------- */

static int run_check(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct policy_flags *flags = values;
	char *text;

	(void)space;
	if (cell_policy_check(operands->items[1].value, &text, err) < 0)
		return -1;
	return cell__cli_report_problems(text, json_loads(text, 0, NULL), flags->json);
}

/* ---- the command ----------------------------------------------------------------- */

static const struct cell_cli_verb verbs[] = {
	{ "test", "FILE --tool TOOL[.CALLABLE] [--kind KIND] [--args JSON]", 1, 1, false, run_test },
	{ "check", "FILE", 1, 1, false, run_check },
	{ 0 },
};

int cell__cmd_policy(int argc, char **argv)
{
	struct policy_flags flags = { .kind = "tool" };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_policy_command, argc, argv, &flags, &operands, &status)) {
		struct cell_cli_job job = { .command = "policy", .verbs = verbs, .flags = &flags, .json = flags.json };

		status = cell__cli_do(&job, &operands);
	}
	cell__cli_list_finish(&operands);
	return status;
}
