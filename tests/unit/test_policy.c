/* session/policy: what is said about bad files, and which rule decides. */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#include "gate/policy.h"
#include "tools/tools.h"

/* ---- files ---- */

#define R "rules:\n  - decision: allow\n    tool: t\n"

static const struct {
	const char *yaml;
	int line;
	const char *part;
} bads[] = {
	/* the reader's own strictness */
	{ "", 1, "the file is empty" },
	{ "- a\n", 1, "a policy must be a mapping" },
	{ "default: ask\ndefault: deny\n", 2, "duplicate key 'default', first in line 1" },
	{ "default: &x ask\n", 1, "anchors and aliases" },
	{ "default: ask\nrules: [\n", 3, "malformed YAML" },
	{ "default: ask\n---\ndefault: deny\n", 2, "only one YAML document" },
	/* the policy */
	{ "{}\n", 1, "a policy needs rules or a default" },
	{ "default: maybe\n", 1, "default must be allow, ask or deny" },
	{ "default: Allow\n", 1, "default must be allow, ask or deny" },
	{ "default:\n", 1, "'default' has no value" },
	{ "default: [ask]\n", 1, "default must be allow, ask or deny" },
	{ "default: ask\nfallback: deny\n", 2, "unknown key 'fallback' in a policy" },
	{ "rules: {a: b}\n", 1, "rules must be a list" },
	{ "rules:\n", 1, "'rules' has no value" },
	/* a rule */
	{ "rules:\n  - allow\n", 2, "a rule must be a mapping" },
	{ "rules:\n  - tool: t\n", 2, "a rule needs a decision" },
	{ "rules:\n  - decision: yes\n    tool: t\n", 2, "decision must be allow, ask or deny" },
	{ "rules:\n  - decision: allow\n", 2, "a rule needs a kind, tool, callable, adapter or args" },
	{ "rules:\n  - decision: allow\n    name: x\n    reason: y\n", 2, "a rule needs a kind" },
	{ R "    tols: x\n", 4, "unknown key 'tols' in a rule" },
	{ R "    callable:\n", 4, "'callable' has no value" },
	{ "rules:\n  - decision: allow\n    kind: tool\n    tool: ~\n", 4, "'tool' has no value" },
	{ "rules:\n  - {decision: allow, tool: []}\n", 2, "tool: a list must have 1 to" },
	{ "rules:\n  - {decision: allow, tool: {a: b}}\n", 2, "tool must be a pattern" },
	{ "rules:\n  - decision: allow\n    tool:\n      - a\n      - [b]\n", 5, "tool must be a pattern" },
	{ "rules:\n  - {decision: allow, tool: ''}\n", 2, "invalid name" },
	{ "rules:\n  - {decision: allow, tool: 'a.'}\n", 2, "invalid name" },
	{ "rules:\n  - {decision: allow, tool: '.a'}\n", 2, "invalid name" },
	{ "rules:\n  - {decision: allow, tool: a.b, callable: c}\n", 2, "names a callable, but the key callable is given too" },
	{ "rules:\n  - {decision: allow, tool: 'a['}\n", 2, "tool: invalid pattern 'a[': a [ has no ]" },
	{ "rules:\n  - {decision: allow, tool: 'a.{x,y}'}\n", 2, "for alternatives give a list" },
	{ "rules:\n  - {decision: allow, kind: program}\n", 2,
	  "kind must be tool, shell, install, remove, workflow, artifact, server or any" },
	{ "rules:\n  - {decision: allow, kind: [tool, 1]}\n", 2, "kind must be" },
	{ R "    callable: [a, {b: c}]\n", 4, "callable must be a pattern" },
	{ R "    name: [a]\n", 4, "name must be a string" },
	{ R "    name: ''\n", 4, "name must have 1 to 100 bytes" },
	{ R "    name: \"a\\e[31mb\"\n", 4, "name contains a control character" },
	{ R "    name: \"a\\u009bb\"\n", 4, "name contains a control character" },
	{ R "    name: \"a\\nb\"\n", 4, "name contains a control character" },
	{ R "    reason: \"a\\tb\"\n", 4, "reason contains a control character" },
	/* arguments */
	{ R "    args: x\n", 4, "args must be a mapping" },
	{ R "    args: {}\n", 4, "args must be a mapping" },
	{ R "    args:\n      a.: x\n", 5, "invalid path 'a.'" },
	{ R "    args:\n      .a: x\n", 5, "invalid path '.a'" },
	{ R "    args:\n      a..b: x\n", 5, "invalid path 'a..b'" },
	{ R "    args:\n      a:\n", 5, "a condition is missing; to match null write {is: null}" },
	{ R "    args:\n      a: [x, ]\n      b: [~]\n", 6, "a condition is missing" },
	{ R "    args:\n      a: []\n", 5, "a list must have 1 to" },
	{ R "    args:\n      a: {}\n", 5, "a mapping must have 1 to" },
	{ R "    args:\n      a: {b: c}\n", 5, "unknown operator 'b'" },
	{ R "    args:\n      a: {is: [1]}\n", 5, "is takes a single value" },
	{ R "    args:\n      a: {above: x}\n", 5, "above takes a number" },
	{ R "    args:\n      a: {at_most: 1e999}\n", 5, "at_most takes a number" },
	{ R "    args:\n      a: {present: yes}\n", 5, "present must be true or false" },
	{ R "    args:\n      a: {missing: 1}\n", 5, "missing must be true or false" },
	{ R "    args:\n      a: {glob: [x]}\n", 5, "glob takes a pattern" },
	{ R "    args:\n      a: {not: {nor: 1}}\n", 5, "unknown operator 'nor'" },
	{ R "    args:\n      a: '[z-a]'\n", 5, "is reversed" },
	{ R "    args:\n      a: [x, 'y{']\n", 5, "as \\{" },
};

static void test_problems(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(bads); i++) {
		struct cell__problems problems = { 0 };
		struct cell_policy *policy = cell__policy_read("p.yaml", bads[i].yaml, strlen(bads[i].yaml), &problems);
		if (policy || problems.count == 0)
			fail_msg("taken: %s", bads[i].yaml);
		if (problems.list[0].line != bads[i].line || !strstr(problems.list[0].message, bads[i].part) ||
		    strcmp(problems.list[0].file, "p.yaml") != 0)
			fail_msg("%s\n%s:%d: %s", bads[i].yaml, problems.list[0].file, problems.list[0].line, problems.list[0].message);
		cell__problems_finish(&problems);
	}
}

/* A file is good or bad as a whole, and all that is bad is told. */
static void test_all_problems(void **state)
{
	(void)state;
	const char *text = "default: no\nrules:\n  - tool: a\n  - {decision: allow, tool: b}\n  - {decision: deny, kind: x}\n";
	struct cell__problems problems = { 0 };
	assert_null(cell__policy_read("p", text, strlen(text), &problems));
	assert_int_equal(problems.count, 3);
	assert_int_equal(problems.list[0].line, 1);
	assert_int_equal(problems.list[1].line, 3);
	assert_int_equal(problems.list[2].line, 5);
	cell__problems_finish(&problems);
	struct cell_policy *policy = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_policy_parse(text, strlen(text), "some.yaml", &policy, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_string_equal(err.msg, "some.yaml:1: default must be allow, ask or deny (and 2 more)");
	assert_null(policy);
}

static void test_limits(void **state)
{
	(void)state;
	for (unsigned more = 0; more < 2; more++) {
		CELL_AUTO_BUF struct cell__buf rules = CELL_BUF_INIT, items = CELL_BUF_INIT, name = CELL_BUF_INIT;
		cell__buf_add_str(&rules, "rules:\n");
		for (unsigned i = 0; i < CELL__POLICY_LIMIT_RULES + more; i++)
			cell__buf_add_str(&rules, "- {decision: deny, tool: t}\n");
		cell__buf_add_str(&items, "rules:\n- decision: deny\n  tool: [a");
		for (unsigned i = 1; i < CELL__POLICY_LIMIT_ITEMS + more; i++)
			cell__buf_add_str(&items, ",b");
		cell__buf_add_str(&items, "]\n");
		cell__buf_add_str(&name, "rules:\n- {decision: deny, tool: t, name: ");
		for (unsigned i = 0; i < CELL__POLICY_LIMIT_NAME + more; i++)
			cell__buf_add_str(&name, "n");
		cell__buf_add_str(&name, "}\n");
		const struct cell__buf *all[] = { &rules, &items, &name };
		const char *const parts[] = { "more than 1000 rules", "a list must have 1 to 1000 entries",
					      "name must have 1 to 100 bytes" };
		for (size_t i = 0; i < COUNT(all); i++) {
			struct cell_policy *policy = NULL;
			struct cell_error err = { 0 };
			int rc = cell_policy_parse(all[i]->data, all[i]->size, NULL, &policy, &err);
			assert_int_equal(rc, more ? -1 : 0);
			if (more && !strstr(err.msg, parts[i]))
				fail_msg("%s", err.msg);
			cell_policy_destroy(policy);
		}
	}
}

/* ---- decisions ---- */

struct call {
	const char *kind, *tool, *callable, *adapter, *args;
};

static void decide(const char *yaml, const struct call *call, struct cell_policy_verdict *ret)
{
	static struct cell_policy *kept; /* the verdict's texts are its */
	struct cell_error err = { 0 };
	cell_policy_destroy(cell__take_ptr(kept));
	if (!yaml)
		return;
	if (cell_policy_parse(yaml, strlen(yaml), "p", &kept, &err) < 0)
		fail_msg("%s\n%s", yaml, err.msg);
	struct cell_policy_subject subject = { sizeof subject, call->kind, call->tool, call->callable, call->adapter, call->args, NULL };
	*ret = (struct cell_policy_verdict)CELL_POLICY_VERDICT_INIT;
	if (cell_policy_decide(kept, &subject, ret, &err) < 0)
		fail_msg("%s: %s", call->args, err.msg);
}

/* The same condition on argument x of tool t in a rule of each decision: which of them match? */
enum { MATCHES, DIFFERS, UNTOLD }; /* all; none; ask and deny, not allow */

static void check_condition(const char *condition, const char *kind, const char *args, int wanted)
{
	for (int decision = CELL_DENY; decision <= CELL_ALLOW; decision++) {
		char yaml[1000];
		snprintf(yaml, sizeof yaml, "default: %s\nrules:\n  - decision: %s\n    kind: any\n    tool: t\n    args:\n      %s\n",
			 decision == CELL_ALLOW ? "deny" : "allow", cell_decision_word(decision), condition);
		struct cell_policy_verdict verdict;
		decide(yaml, &(struct call){ .kind = kind, .tool = "t", .args = args }, &verdict);
		bool matches = wanted == MATCHES || (wanted == UNTOLD && decision != CELL_ALLOW);
		if ((verdict.rule == 1) != matches)
			fail_msg("%s %s with %s: rule %d", cell_decision_word(decision), condition, args, verdict.rule);
		if (matches && (verdict.doubt != NULL) != (wanted == UNTOLD))
			fail_msg("%s with %s: doubt %s", condition, args, verdict.doubt ? verdict.doubt : "(none)");
		assert_int_equal(verdict.doubt != NULL, verdict.doubt_why != NULL);
	}
}

static const struct {
	const char *condition, *args;
	int wanted;
} conditions[] = {
	/* texts */
	{ "x: abc", "{\"x\":\"abc\"}", MATCHES },
	{ "x: abc", "{\"x\":\"abd\"}", DIFFERS },
	{ "x: abc", "{\"x\":\"\\u0061bc\"}", MATCHES }, /* another spelling of the same */
	{ "x: abc", "{\"x\":\"ABC\"}", DIFFERS },
	{ "x: abc", "{\"x\":\"abc\\u0000\"}", UNTOLD },
	{ "x: '*'", "{\"x\":\"a\\u0000b\"}", UNTOLD },
	{ "x: 'a?c'",
	  "{\"x\":\"a\xc3\xa9"
	  "c\"}",
	  MATCHES },
	{ "x: '5'", "{\"x\":\"5\"}", MATCHES },
	{ "x: '5'", "{\"x\":5}", UNTOLD },
	{ "x: {is: 'a*'}", "{\"x\":\"a*\"}", MATCHES },
	{ "x: {is: 'a*'}", "{\"x\":\"ab\"}", DIFFERS },
	{ "x: {glob: '5'}", "{\"x\":\"5\"}", MATCHES },
	{ "x: {glob: true}", "{\"x\":\"true\"}", MATCHES },
	/* missing, other types */
	{ "x: abc", "{}", UNTOLD },
	{ "x: abc", NULL, UNTOLD },
	{ "x: abc", "{\"y\":\"abc\"}", UNTOLD },
	{ "x: abc", "{\"X\":\"abc\"}", UNTOLD },
	{ "x: abc", "{\"x\":null}", UNTOLD },
	{ "x: abc", "{\"x\":1}", UNTOLD },
	{ "x: abc", "{\"x\":{\"abc\":1}}", UNTOLD },
	{ "x: abc", "{\"x\":[]}", UNTOLD },
	{ "x: {not: abc}", "{\"x\":\"abd\"}", MATCHES },
	{ "x: {not: abc}", "{\"x\":\"abc\"}", DIFFERS },
	{ "x: {not: abc}", "{}", UNTOLD },
	{ "x: {not: abc}", "{\"x\":1}", UNTOLD },
	{ "x: {not: {not: abc}}", "{\"x\":\"abc\"}", MATCHES },
	/* numbers, booleans, null */
	{ "x: 5", "{\"x\":5}", MATCHES },
	{ "x: 5", "{\"x\":5.0}", MATCHES },
	{ "x: 5", "{\"x\":5.5}", DIFFERS },
	{ "x: 5", "{\"x\":\"5\"}", UNTOLD },
	{ "x: 5", "{\"x\":true}", UNTOLD },
	{ "x: 9007199254740993", "{\"x\":9007199254740993}", MATCHES },
	{ "x: 9007199254740993", "{\"x\":9007199254740992}", DIFFERS },
	{ "x: {above: 9007199254740992.0}", "{\"x\":9007199254740993}", MATCHES },
	{ "x: true", "{\"x\":true}", MATCHES },
	{ "x: true", "{\"x\":false}", DIFFERS },
	{ "x: true", "{\"x\":1}", UNTOLD },
	{ "x: true", "{\"x\":\"true\"}", UNTOLD },
	{ "x: true", "{}", UNTOLD },
	{ "x: {present: true, is: true}", "{}", DIFFERS },
	{ "x: {present: true, is: true}", "{\"x\":true}", MATCHES },
	{ "x: {present: true, is: true}", "{\"x\":\"yes\"}", UNTOLD },
	{ "x: {is: null}", "{\"x\":null}", MATCHES },
	{ "x: {is: null}", "{\"x\":0}", DIFFERS },
	{ "x: {above: 5}", "{\"x\":5}", DIFFERS },
	{ "x: {above: 5}", "{\"x\":5.01}", MATCHES },
	{ "x: {at_least: 5}", "{\"x\":5}", MATCHES },
	{ "x: {at_least: 5}", "{\"x\":4}", DIFFERS },
	{ "x: {below: -1.5}", "{\"x\":-2}", MATCHES },
	{ "x: {at_most: 5}", "{\"x\":6}", DIFFERS },
	{ "x: {at_least: 1, at_most: 5}", "{\"x\":3}", MATCHES },
	{ "x: {at_least: 1, at_most: 5}", "{\"x\":6}", DIFFERS },
	{ "x: {above: 5}", "{\"x\":\"6\"}", UNTOLD },
	{ "x: {above: 5}", "{\"x\":\"1e999\"}", UNTOLD },
	/* being there */
	{ "x: {present: true}", "{\"x\":0}", MATCHES },
	{ "x: {present: true}", "{\"x\":[]}", MATCHES },
	{ "x: {present: true}", "{}", DIFFERS },
	{ "x: {present: true}", "{\"x\":null}", UNTOLD },
	{ "x: {present: false}", "{}", MATCHES },
	{ "x: {missing: true}", "{}", MATCHES },
	{ "x: {missing: true}", "{\"x\":1}", DIFFERS },
	{ "x: {missing: true}", "{\"x\":null}", UNTOLD },
	{ "x: {not: {missing: true}}", "{\"x\":[]}", MATCHES },
	{ "x.y: {missing: true}", "{\"x\":{}}", MATCHES },
	{ "x.y: {missing: true}", "{}", MATCHES },
	{ "x.y: {missing: true}", "{\"x\":\"text\"}", UNTOLD },
	{ "x: [{missing: true}, abc]", "{}", MATCHES },
	/* one of several */
	{ "x: [a, b]", "{\"x\":\"b\"}", MATCHES },
	{ "x: [a, b]", "{\"x\":\"c\"}", DIFFERS },
	{ "x: [a, 5]", "{\"x\":5}", MATCHES },
	{ "x: [a, 5]", "{\"x\":6}", UNTOLD }, /* a is not a number */
	{ "x: {not: [a, b]}", "{\"x\":\"b\"}", DIFFERS },
	{ "x: {not: [a, b]}", "{\"x\":\"c\"}", MATCHES },
	/* lists: what holds of all of them, of none, of some */
	{ "x: 'a*'", "{\"x\":[\"a\",\"ab\"]}", MATCHES },
	{ "x: 'a*'", "{\"x\":[\"b\",\"c\"]}", DIFFERS },
	{ "x: 'a*'", "{\"x\":[\"a\",\"c\"]}", UNTOLD },
	{ "x: ['a*', 'c*']", "{\"x\":[\"a\",\"c\"]}", MATCHES },
	{ "x: {not: 'a*'}", "{\"x\":[\"a\",\"c\"]}", UNTOLD },
	{ "x: 'a*'", "{\"x\":[[\"a\"],[\"ab\",\"ac\"]]}", MATCHES },
	{ "x: 'a*'", "{\"x\":[\"a\",{\"y\":\"a\"}]}", UNTOLD },
	/* paths */
	{ "x.y: abc", "{\"x\":{\"y\":\"abc\"}}", MATCHES },
	{ "x.y: abc", "{\"x\":{\"y\":\"abd\"}}", DIFFERS },
	{ "x.y: abc", "{\"x\":{}}", UNTOLD },
	{ "x.y: abc", "{\"x.y\":\"abc\"}", UNTOLD },
	{ "x\\.y: abc", "{\"x.y\":\"abc\"}", MATCHES },
	{ "x\\.y: abc", "{\"x\":{\"y\":\"abc\"}}", UNTOLD },
	{ "x.y: abc", "{\"x\":[{\"y\":\"abc\"},{\"y\":\"abc\"}]}", MATCHES },
	{ "x.y: abc", "{\"x\":[{\"y\":\"abc\"},{\"y\":\"abd\"}]}", UNTOLD },
	{ "x.y: abc", "{\"x\":[{\"z\":1},{\"y\":\"abc\"}]}", UNTOLD },
	{ "x.1: abc", "{\"x\":[\"abd\",\"abc\"]}", MATCHES },
	{ "x.2: abc", "{\"x\":[\"abd\",\"abc\"]}", UNTOLD },
	{ "x.1: abc", "{\"x\":{\"1\":\"abc\"}}", MATCHES },
	{ "x.*: abc", "{\"x\":{\"a\":\"abc\",\"b\":\"abc\"}}", MATCHES },
	{ "x.*: abc", "{\"x\":{\"a\":\"abc\",\"b\":\"d\"}}", UNTOLD },
	{ "x.*: abc", "{\"x\":{}}", UNTOLD },
	{ "'*': abc", "{\"x\":\"abc\"}", MATCHES },
	{ "'*': abc", "{\"x\":\"d\"}", DIFFERS },
	{ "'\\*': abc", "{\"*\":\"abc\"}", MATCHES },
	/* max-count is max_count in Python */
	{ "max-count: 5", "{\"max_count\":5}", MATCHES },
	{ "max_count: 5", "{\"max-count\":6}", DIFFERS },
	{ "max-count: 5", "{\"max_count\":5,\"max-count\":5}", UNTOLD },
	/* paths of files */
	{ "x: '/data/**'", "{\"x\":\"/data/a/b\"}", MATCHES },
	{ "x: '/data/**'", "{\"x\":\"/other\"}", DIFFERS },
	{ "x: '/data/**'", "{\"x\":\"/data/../etc/passwd\"}", UNTOLD },
	{ "x: '/data/**'", "{\"x\":\"../etc\"}", UNTOLD },
	{ "x: '/data/**'", "{\"x\":\"/data/a..b\"}", MATCHES },
	{ "x: '/data/**'", "{\"x\":\"/x//data/a\"}", UNTOLD },
	{ "x: '/data/**'", "{\"x\":\"/./data/a\"}", UNTOLD },
	{ "x: '/data/**'", "{\"x\":\"/data\"}", UNTOLD },
	{ "x: '/data/**'", "{\"x\":\"/data/\"}", MATCHES },
	{ "x: '/data/*'", "{\"x\":\"/data/a/b\"}", UNTOLD },
	{ "x: '*secret*'", "{\"x\":\"/a/secret/b\"}", UNTOLD },
	{ "x: 'src**'", "{\"x\":\"src/../../etc\"}", UNTOLD },
	{ "x: '**'", "{\"x\":\"a/../b//c\"}", MATCHES },
	{ "x: '../**'", "{\"x\":\"../a\"}", MATCHES },
	{ "x: 'https://api.example.org/**'", "{\"x\":\"https://api.example.org/v1\"}", MATCHES },
	{ "x: 'https://api.example.org/**'", "{\"x\":\"https://api.example.org.evil.net/\"}", DIFFERS },
	{ "x: 'https://api.example.org/**'", "{\"x\":\"https://api.example.org@evil.net/\"}", UNTOLD },
	{ "x: 'https://api.example.org/v1/**'", "{\"x\":\"https://api.example.org/v1/%2E%2e/admin\"}", UNTOLD },
	{ "x: 'https://api.example.org/v1/**'", "{\"x\":\"https://api.example.org/v1/a\\\\..\\\\b\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org/x\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.b.example.org/x/y?q=1\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://A.Example.ORG/x\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"HTTPS://a.example.org/x\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org:443/x\"}", MATCHES },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net/x\"}", DIFFERS },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"http://a.example.org/x\"}", DIFFERS },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net/.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net?.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net#.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net\\\\.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://user@a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org@evil.net/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net:80@a.example.org/\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org:8443/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org:/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org./x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a..example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net%2f.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net%00.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net\\u0009.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net\\n.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://evil.net\\uff0f.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://\\u0430.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\" https://a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https:/a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https:a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https:///a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"//a.example.org/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"a.example.org/x\"}", DIFFERS },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"src/main.c\"}", DIFFERS },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://[::1]/x\"}", UNTOLD },
	{ "x: 'https://*.example.org/**'", "{\"x\":\"https://a.example.org/x/../y\"}", UNTOLD },
	{ "x: 'https://a.org/admin/**'", "{\"x\":\"https://a.org/%61dmin/x\"}", UNTOLD },
	{ "x: 'https://a.org/admin/**'", "{\"x\":\"https://a.org/a%20b\"}", DIFFERS },
	{ "x: 'https://a.org/v1/*'", "{\"x\":\"https://a.org/v1/a/b\"}", UNTOLD },
	{ "x: 'https://127.0.0.1/**'", "{\"x\":\"https://127.0.0.1/x\"}", MATCHES },
	{ "x: 'https://127.0.0.1/**'", "{\"x\":\"https://127.1/x\"}", UNTOLD },
	{ "x: 'https://127.0.0.1/**'", "{\"x\":\"https://0x7f.0.0.1/x\"}", UNTOLD },
	{ "x: 'https://127.0.0.1/**'", "{\"x\":\"https://2130706433/x\"}", UNTOLD },
	{ "x: 'https://127.0.0.1/**'", "{\"x\":\"https://0177.0.0.1/x\"}", UNTOLD },
	{ "x: 'http*://a.org:8080/**'", "{\"x\":\"http://a.org:8080/x\"}", MATCHES },
	{ "x: 'http*://a.org:8080/**'", "{\"x\":\"http://a.org/x\"}", UNTOLD },
	{ "x: 'https://a.org'", "{\"x\":\"https://a.org/\"}", MATCHES },
	{ "x: 'https://a.org'", "{\"x\":\"https://a.org/x\"}", DIFFERS },
	{ "x: 'https://a.org**'", "{\"x\":\"https://a.org/x/y\"}", MATCHES },
	{ "x: 'https://**/secret'", "{\"x\":\"https://a.org/b/secret\"}", UNTOLD },
	{ "x: 'https://u@a.org/**'", "{\"x\":\"https://u@a.org/x\"}", UNTOLD },
	{ "x: '**.example.org/**'", "{\"x\":\"https://evil.net?.example.org/x\"}", UNTOLD },
	{ "x: '**'", "{\"x\":\"https://evil.net?.example.org/x\"}", MATCHES },
	{ "x: 'file:///work/**'", "{\"x\":\"file:///work/../etc/passwd\"}", UNTOLD },
};

static void test_conditions(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(conditions); i++)
		check_condition(conditions[i].condition, "tool", conditions[i].args, conditions[i].wanted);
	decide(NULL, NULL, NULL);
}

static void test_shell(void **state)
{
	(void)state;
	static const struct {
		const char *condition, *args;
		int wanted;
	} lines[] = {
		{ "cmd: git log*", "{\"cmd\":\"git log -p src/a.c\"}", MATCHES },
		{ "cmd: git log*", "{\"cmd\":\"git log\\n\"}", MATCHES }, /* as %%sh has it */
		{ "cmd: git log*", "{\"cmd\":\"  git log\"}", MATCHES },
		{ "cmd: git log*", "{\"cmd\":\"git push\"}", DIFFERS },
		{ "cmd: git log*", "{\"cmd\":\"git log; rm -rf /\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log\\nrm -rf /\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log && rm\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log | sh\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log `rm`\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log $(rm)\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log \\u003e /etc/x\"}", UNTOLD },
		{ "cmd: git log*", "{\"cmd\":\"git log < x\"}", UNTOLD },
		{ "cmd: '**'", "{\"cmd\":\"git log; rm -rf /\"}", UNTOLD }, /* * alone, too */
		{ "cmd: git log | head*", "{\"cmd\":\"git log | head -3\"}", MATCHES },
		{ "cmd: git log | head*", "{\"cmd\":\"git log | head | sh\"}", UNTOLD },
		{ "cmd: {is: 'a; b'}", "{\"cmd\":\"a; b\"}", MATCHES },
		{ "cmd: rm *", "{\"cmd\":\"rm -rf x/y\"}", MATCHES },
		{ "cmd: rm *", "{\"cmd\":\"ls; rm -rf x\"}", UNTOLD },
		{ "cmd: rm *", "{\"cmd\":\"ls && rm -rf x | cat\"}", UNTOLD },
		{ "cmd: rm *", "{\"cmd\":\"echo $(rm -rf x)\"}", UNTOLD },
		{ "cmd: rm *", "{\"cmd\":\"ls; ls -l\"}", DIFFERS },
		{ "cmd: rm *", "{}", UNTOLD },
		{ "cmd: rm *", "{\"cmd\":[\"rm\",\"x\"]}", DIFFERS },
		{ "cmd: ''", "{\"cmd\":\" \\n\"}", MATCHES },
	};
	for (size_t i = 0; i < COUNT(lines); i++)
		check_condition(lines[i].condition, "shell", lines[i].args, lines[i].wanted);
	decide(NULL, NULL, NULL);
}

static void test_long_and_many(void **state)
{
	(void)state;
	for (unsigned more = 0; more < 2; more++) {
		CELL_AUTO_BUF struct cell__buf args = CELL_BUF_INIT;
		cell__buf_add_str(&args, "{\"x\":\"");
		for (unsigned i = 0; i < CELL__POLICY_LIMIT_TEXT + more; i++)
			cell__buf_add(&args, "a", 1);
		cell__buf_add_str(&args, "\"}");
		check_condition("x: 'a*'", "tool", args.data, more ? UNTOLD : MATCHES);
		args.size = 0;
		cell__buf_add_str(&args, "{\"x\":");
		for (unsigned i = 0; i < CELL__POLICY_LIMIT_DEPTH + more; i++)
			cell__buf_add(&args, "[", 1);
		cell__buf_add_str(&args, "\"a\"");
		for (unsigned i = 0; i < CELL__POLICY_LIMIT_DEPTH + more; i++)
			cell__buf_add(&args, "]", 1);
		cell__buf_add(&args, "}", 1);
		check_condition("x: 'a*'", "tool", args.data, more ? UNTOLD : MATCHES);
	}
	/* More than the work of one decision: nothing can be told any more, and allow rules do not match. */
	CELL_AUTO_BUF struct cell__buf args = CELL_BUF_INIT;
	cell__buf_add_str(&args, "{\"x\":[");
	for (unsigned i = 0; i < 400; i++) {
		cell__buf_add_str(&args, i ? ",\"" : "\"");
		for (unsigned k = 0; k < 2000; k++)
			cell__buf_add(&args, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 32);
		cell__buf_add_str(&args, "\"");
	}
	cell__buf_add_str(&args, "]}");
	check_condition("x: '*a*a*a*a'", "tool", args.data, UNTOLD);
	decide(NULL, NULL, NULL);
}

static const char by_name[] = "default: ask\n"
			      "rules:\n"
			      "  - {name: r1, decision: allow, tool: grep}\n"
			      "  - {name: r2, decision: allow, tool: git.log}\n"
			      "  - {name: r3, decision: deny, tool: [git.push, 'rm*'], reason: no}\n"
			      "  - {name: r4, decision: allow, tool: web, callable: ['get_*', list]}\n"
			      "  - {name: r5, decision: deny, adapter: http}\n"
			      "  - {name: r6, decision: allow, tool: bare, callable: ''}\n"
			      "  - {name: r7, decision: allow, kind: install, args: {package: ['numpy', 'pandas[>=]*']}}\n"
			      "  - {name: r8, decision: deny, kind: [install, workflow]}\n"
			      "  - {name: r9, decision: allow, tool: '*', callable: read}\n"
			      "  - {name: r10, decision: deny, tool: '*', args: {path: {not: '/data/**'}}}\n";

static const struct {
	struct call call;
	int rule;
} names[] = {
	{ { "tool", "grep", "find", "cli", NULL }, 1 },
	{ { NULL, "grep", NULL, "cli", NULL }, 1 },
	{ { "shell", "grep", NULL, NULL, NULL }, 0 },      /* allow means tools where it does not say */
	{ { "tool", "grep.", NULL, "cli", NULL }, 0 },
	{ { "tool", "grepp", NULL, "cli", NULL }, 0 },
	{ { "tool", "Grep", NULL, "cli", NULL }, 0 },
	{ { "tool", "gr\xd0\xb5p", NULL, "cli", NULL }, 0 },
	{ { "tool", "grep ", NULL, "cli", NULL }, 0 },
	{ { "tool", "git", "log", "cli", NULL }, 2 },
	{ { "tool", "git", "push", "cli", NULL }, 3 },
	{ { "tool", "git", "pull", "cli", NULL }, 0 },
	{ { "tool", "git", NULL, "cli", NULL }, 3 },       /* by its schema alone it may be a push */
	{ { "tool", "rmdir", "x", "cli", NULL }, 3 },
	{ { "shell", "rmdir", NULL, NULL, "{}" }, 3 },     /* deny means everything */
	{ { "tool", "web", "get_page", "http", NULL }, 4 },
	{ { "tool", "web", "post", "http", NULL }, 5 },
	{ { "tool", "web", NULL, "http", NULL }, 5 },
	{ { "tool", "x", NULL, NULL, NULL }, 0 },          /* nothing serves it: not HTTP */
	{ { "tool", "bare", NULL, "cli", NULL }, 6 },
	{ { "tool", "bare", "x", "cli", NULL }, 0 },
	{ { "install", "deps", "add", "host", "{\"package\":\"numpy\"}" }, 7 },
	{ { "install", "deps", "add", "host", "{\"package\":\"pandas>=2\"}" }, 7 },
	{ { "install", "deps", "add", "host", "{\"package\":\"pandas-evil\"}" }, 8 },
	{ { "workflow", "workflows", "create", "host", "{}" }, 8 },
	{ { "tool", "x", "read", "cli", NULL }, 9 },
	{ { "tool", NULL, "read", "cli", NULL }, 3 },      /* no name: no allow, and the first deny that could mean it */
	{ { "tool", "x", "y", "cli", NULL }, 0 },          /* r10: no such argument, so it is not meant */
	{ { "tool", "x", "y", "cli", "{\"path\":\"/data/a\"}" }, 0 },
	{ { "tool", "x", "y", "cli", "{\"path\":\"/home\"}" }, 10 },
	{ { "tool", "x", "y", "cli", "{\"path\":5}" }, 10 },
	{ { "tool", "x", "y", "cli", "{\"path\":null}" }, 10 },
};

static void test_names(void **state)
{
	(void)state;
	struct cell_policy_verdict verdict;
	for (size_t i = 0; i < COUNT(names); i++) {
		decide(by_name, &names[i].call, &verdict);
		if (verdict.rule != names[i].rule)
			fail_msg("%s.%s: rule %d, not %d", names[i].call.tool, names[i].call.callable, verdict.rule, names[i].rule);
		assert_int_equal(verdict.line, verdict.rule ? verdict.rule + 2 : 0);
		char name[16];
		snprintf(name, sizeof name, "r%d", verdict.rule);
		if (verdict.rule)
			assert_string_equal(verdict.name, name);
		else
			assert_null(verdict.name);
		if (verdict.rule == 3)
			assert_string_equal(verdict.reason, "no");
		else
			assert_null(verdict.reason);
		if (!verdict.rule)
			assert_int_equal(verdict.decision, CELL_ASK);
	}
	/* Too long to be any tool's name: nothing allows it, and whoever denies some tool by name denies it. */
	char name[CELL__POLICY_LIMIT_TOOL_NAME + 2];
	memset(name, 'a', sizeof name);
	name[CELL__POLICY_LIMIT_TOOL_NAME] = '\0';
	decide(by_name, &(struct call){ "tool", name, "read", "cli", NULL }, &verdict);
	assert_int_equal(verdict.rule, 9);
	name[CELL__POLICY_LIMIT_TOOL_NAME] = 'a';
	name[CELL__POLICY_LIMIT_TOOL_NAME + 1] = '\0';
	decide(by_name, &(struct call){ "tool", name, "read", "cli", NULL }, &verdict);
	assert_int_equal(verdict.rule, 3);
	assert_non_null(verdict.doubt);
	decide(NULL, NULL, NULL);
}

/* A rule on an argument, and calls that have none such. */
static void test_absent(void **state)
{
	(void)state;
	static const struct {
		const char *rule;
		const char *kind;
		int matches;
	} rules[] = {
		{ "args: {path: '/etc/**'}", "tool", 0 },
		{ "args: {path: {not: '/etc/**'}}", "tool", 0 },
		{ "args: {path.x: '/etc/**'}", "tool", 0 },
		{ "args: {path: {missing: true}}", "tool", 1 },
		{ "tool: '**', args: {path: '/etc/**'}", "tool", 0 },
		{ "tool: t, args: {path: '/etc/**'}", "tool", 1 },
		{ "tool: '*.read', args: {path: '/etc/**'}", "tool", 1 },
		{ "callable: read, args: {path: '/etc/**'}", "tool", 1 },
		{ "kind: shell, args: {cmd: 'rm*'}", "shell", 1 },
		{ "kind: tool, args: {path: '/etc/**'}", "tool", 0 },
		{ "kind: any, args: {path: '/etc/**'}", "shell", 0 },
	};
	for (size_t i = 0; i < COUNT(rules); i++) {
		char yaml[200];
		snprintf(yaml, sizeof yaml, "default: allow\nrules: [{decision: deny, %s}]\n", rules[i].rule);
		struct cell_policy_verdict verdict;
		decide(yaml, &(struct call){ rules[i].kind, "t", "read", "cli", "{\"other\":1}" }, &verdict);
		if (verdict.rule != rules[i].matches)
			fail_msg("%s: rule %d", rules[i].rule, verdict.rule);
	}
	/* A list in which some members lack it is no such call. */
	struct cell_policy_verdict verdict;
	decide("default: allow\nrules: [{decision: deny, args: {e.path: '/etc/**'}}]\n",
	       &(struct call){ "tool", "t", NULL, "cli", "{\"e\":[{\"no\":1},{\"path\":\"/etc/x\"}]}" }, &verdict);
	assert_int_equal(verdict.decision, CELL_DENY);
	decide(NULL, NULL, NULL);
}

static void test_first_match_and_default(void **state)
{
	(void)state;
	struct cell_policy_verdict verdict;
	const struct call call = { .tool = "t" };
	decide("rules: [{decision: ask, tool: t}, {decision: deny, tool: t}]\ndefault: allow\n", &call, &verdict);
	assert_int_equal(verdict.decision, CELL_ASK);
	assert_int_equal(verdict.rule, 1);
	decide("rules: [{decision: deny, tool: u}]\n", &call, &verdict);
	assert_int_equal(verdict.decision, CELL_ASK); /* not said: ask */
	assert_int_equal(verdict.rule, 0);
	decide("default: allow\n", &call, &verdict);
	assert_int_equal(verdict.decision, CELL_ALLOW);
	decide("rules:\n- decision: deny\n  tool: t\n  reason: |\n    one\n    two\n", &call, &verdict);
	assert_string_equal(verdict.reason, "one\ntwo");
	decide(NULL, NULL, NULL);
	for (int decision = CELL_DENY; decision <= CELL_ALLOW; decision++) {
		struct cell_policy *policy = cell_policy_of(decision);
		struct cell__subject subject = { .kind = "shell" };
		verdict = (struct cell_policy_verdict)CELL_POLICY_VERDICT_INIT;
		cell__policy_judge(policy, &subject, &verdict);
		assert_int_equal(verdict.decision, decision);
		assert_int_equal(verdict.rule, 0);
		cell_policy_destroy(policy);
	}
	cell_policy_destroy(NULL);
}

/* ---- the public edge ---- */

static void test_api(void **state)
{
	(void)state;
	struct cell_policy *policy = cell_policy_of(CELL_ALLOW);
	struct cell_policy_subject subject = CELL_POLICY_SUBJECT_INIT;
	struct cell_policy_verdict verdict = CELL_POLICY_VERDICT_INIT;
	struct cell_error err = { 0 };
	assert_int_equal(cell_policy_decide(policy, &subject, &verdict, &err), 0);
	static const char *const bad_args[] = { "[]", "1", "{", "{\"a\":1,\"a\":2}", "", "{} x" };
	for (size_t i = 0; i < COUNT(bad_args); i++) {
		subject.args_json = bad_args[i];
		assert_int_equal(cell_policy_decide(policy, &subject, &verdict, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
	subject.args_json = NULL;
	static const char *const bad_kinds[] = { "any", "", "Tool" };
	for (size_t i = 0; i < COUNT(bad_kinds); i++) {
		subject.kind = bad_kinds[i];
		assert_int_equal(cell_policy_decide(policy, &subject, &verdict, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
	subject.kind = NULL;
	subject.size = SIZE_MAX;
	assert_int_equal(cell_policy_decide(policy, &subject, &verdict, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	subject.size = sizeof subject;
	verdict.size = 0;
	assert_int_equal(cell_policy_decide(policy, &subject, &verdict, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	/* A caller built with an older header. */
	struct cell_policy_verdict old = { .size = offsetof(struct cell_policy_verdict, name), .name = "kept" };
	assert_int_equal(cell_policy_decide(policy, &subject, &old, &err), 0);
	assert_int_equal(old.decision, CELL_ALLOW);
	assert_string_equal(old.name, "kept");
	cell_policy_destroy(policy);
}

static void test_files(void **state)
{
	(void)state;
	char dir[] = "/tmp/workcell-test-XXXXXX", path[64], missing[64];
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/p.yaml", dir);
	snprintf(missing, sizeof missing, "%s/nope", dir);
	struct cell_policy *policy = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_policy_load(missing, &policy, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell_policy_load(dir, &policy, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	FILE *file = fopen(path, "w");
	fputs("default: deny\n", file);
	fclose(file);
	assert_int_equal(cell_policy_load(path, &policy, &err), 0);
	cell_policy_destroy(cell__take_ptr(policy));
	char *json = NULL;
	assert_int_equal(cell_policy_check(path, &json, &err), 0);
	assert_string_equal(json, "[]");
	free(json);
	file = fopen(path, "w");
	fputs("default: deny\nrules:\n- {decision: allow, tool: [a, \"\xc3\xa9"
	      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9[\"]}\n",
	      file);
	fclose(file);
	assert_int_equal(cell_policy_check(path, &json, &err), 0);
	json_t *problems = json_loads(json, 0, NULL);
	assert_int_equal(json_array_size(problems), 1); /* also where a character of it was cut in two */
	assert_int_equal(json_integer_value(json_object_get(json_array_get(problems, 0), "line")), 3);
	json_decref(problems);
	free(json);
	file = fopen(path, "w");
	for (unsigned i = 0; i <= CELL_TOOL_LIMIT_FILE_BYTES; i++)
		fputc('#', file);
	fclose(file);
	assert_int_equal(cell_policy_load(path, &policy, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_non_null(strstr(err.msg, "larger than"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0); /* must not stop us */
	assert_int_equal(cell_policy_check(path, &json, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	unlink(path);
	assert_int_equal(rmdir(dir), 0);
}

static void test_without_memory(void **state)
{
	(void)state;
	bool done = false;
	for (long n = 1; !done; n++) {
		struct cell_policy *policy = NULL;
		struct cell_error err = { 0 };
		cell__alloc_fail_after(n);
		int rc = cell_policy_parse(by_name, strlen(by_name), "p", &policy, &err);
		cell__alloc_fail_after(0);
		assert_int_equal(rc == 0, policy != NULL);
		done = rc == 0;
		cell_policy_destroy(policy);
		assert_true(n < 10000);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_problems),   TEST(test_all_problems), TEST(test_limits),
		TEST(test_conditions), TEST(test_shell),        TEST(test_long_and_many),
		TEST(test_names),      TEST(test_absent),       TEST(test_first_match_and_default),
		TEST(test_api),        TEST(test_files),        TEST(test_without_memory),
	};
	return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
