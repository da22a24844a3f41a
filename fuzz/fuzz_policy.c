/*
 * Policies: a YAML text, then, behind a NUL, the arguments of a call as JSON.  Whatever comes in, it is either a policy
 * or there is a problem with a line of that text; a decision is always the same, names a rule that there is, and no
 * allow rule decides in doubt.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include "gate/policy.h"

static int count_lines(const char *bytes, size_t size)
{
	int n = 2; /* the parser may stand behind the last one */
	for (size_t i = 0; i < size; i++)
		n += bytes[i] == '\n' || bytes[i] == '\r' || (unsigned char)bytes[i] >= 0x80;
	return n;
}

static void check_verdict(const struct cell_policy *policy, const struct cell__subject *subject)
{
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT, again = CELL_POLICY_VERDICT_INIT;
	cell__policy_judge(policy, subject, &verdict);
	cell__policy_judge(policy, subject, &again);
	MUST(memcmp(&verdict, &again, sizeof verdict) == 0);
	MUST(verdict.rule >= 0 && (size_t)verdict.rule <= policy->count);
	MUST((verdict.doubt != NULL) == (verdict.doubt_why != NULL));
	if (verdict.rule == 0) {
		MUST(verdict.decision == policy->fallback && !verdict.name && !verdict.doubt);
		return;
	}
	const struct cell__rule *rule = &policy->rules[verdict.rule - 1];
	MUST(verdict.decision == rule->decision && verdict.name == rule->name && verdict.line == rule->line);
	MUST(verdict.decision != CELL_ALLOW || !verdict.doubt);
	MUST(verdict.decision != CELL_ALLOW || rule->kinds || !subject->kind || strcmp(subject->kind, "tool") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *bytes = (const char *)data;
	const char *end = size ? memchr(bytes, '\0', size) : NULL;
	size_t yaml_size = end ? (size_t)(end - bytes) : size;
	json_t *args = end ? json_loadb(end + 1, size - yaml_size - 1, JSON_ALLOW_NUL, NULL) : NULL;
	if (!json_is_object(args)) {
		json_decref(args);
		args = NULL;
	}
	struct cell__problems problems = { 0 };
	struct cell_policy *policy = cell__policy_read("f.yaml", bytes, yaml_size, &problems);
	MUST((policy != NULL) == (problems.count == 0));
	for (size_t i = 0; i < problems.count; i++)
		MUST(problems.list[i].message && problems.list[i].line >= 1 && problems.list[i].line <= count_lines(bytes, yaml_size));
	static const char *const kinds[] = { NULL, "tool", "shell", "install", "workflow" };
	static const char *const names[] = { NULL, "a", "git", "grep" };
	for (size_t i = 0; policy && i < sizeof kinds / sizeof *kinds; i++)
		for (size_t k = 0; k < sizeof names / sizeof *names; k++)
			check_verdict(policy, &(struct cell__subject){ .kind = kinds[i],
								       .tool = names[k],
								       .callable = names[(k + i) % 4],
								       .adapter = "cli",
								       .args = args });
	cell_policy_destroy(policy);
	cell__problems_finish(&problems);
	json_decref(args);
	return 0;
}
