/*
 * Policies: ordered rules that decide whether a call is allowed, needs approval, or is denied.  Pure, without a loop; a
 * policy never changes once it is made, so any thread may use it.
 *
 * A condition is true, false, or unknown: the argument is missing, of another type, too long, or the text is
 * one that only appears to match (or not to match).  "Unknown" propagates through lists, `not` and nesting as
 * in three-valued logic, and is decided at the very end:
 *
 *     an allow rule matches when all is true;   an ask or deny rule matches unless something is false.
 *
 * A missing argument makes a condition unknown only for a rule that names tools, whose arguments (and defaults that
 * are not visible here) its author knows; a rule for any tool that has such an argument does not apply to the
 * call.
 */
#ifndef CELL_GATE_POLICY_H
#define CELL_GATE_POLICY_H

#include <jansson.h>

#include "calls/table.h"
#include "base/base.h"
#include "gate/glob.h"
#include "wire/yaml.h"

#define CELL__POLICY_LIMIT_RULES 1000u
#define CELL__POLICY_LIMIT_ITEMS 1000u          /* of one list */
#define CELL__POLICY_LIMIT_NAME 100u            /* bytes of a rule's name */
#define CELL__POLICY_LIMIT_REASON 1000u
#define CELL__POLICY_LIMIT_TOOL_NAME 256u       /* bytes of a name that is compared; the result for longer ones is unknown */
#define CELL__POLICY_LIMIT_TEXT (64u * 1024u)   /* bytes of an argument that is compared; likewise */
#define CELL__POLICY_LIMIT_DEPTH 32u            /* lists within lists in an argument; likewise */
#define CELL__POLICY_LIMIT_STEPS 20000000u      /* work on one decision, some 50 ms; likewise */

struct cell__subject {
	const char *kind; /* cell__gate_kind_word(); NULL: "tool" */
	const char *tool, *callable, *adapter; /* NULL: it has none */
	const json_t *args; /* an object, or NULL */
	enum cell__principal_kind principal; /* CELL__PRINCIPAL_NONE: code */
};

/*
 * Arguments should be those that the tool gets: with presets and defaults filled in, by the names of its parameters.
 * ret->size is left alone.
 */
void cell__policy_judge(const struct cell_policy *policy, const struct cell__subject *subject, struct cell_policy_verdict *ret);
/* The default kinds of calls of the policy, CELL_GATE_*. */
unsigned cell__policy_kinds(const struct cell_policy *policy);
/* Whether the policy asks about any call. */
bool cell__policy_can_ask(const struct cell_policy *policy);
/* NULL if there are problems, or if out of memory. */
struct cell_policy *cell__policy_read(const char *file, const char *text, size_t size, struct cell__problems *problems);

/* ---- URLs (policy_url.c) ---- */

struct cell__url_glob;
enum cell__url_verdict {
	CELL__URL_MATCHES, /* every part does */
	CELL__URL_DIFFERS,
	CELL__URL_PORT,    /* all but the port */
	CELL__URL_ODD,     /* not a plain URL: programs read it differently */
	CELL__URL_NONE,    /* not a URL */
};
/* *ret_url NULL: the pattern is not about URLs; -1: out of memory. */
int cell__url_glob_create(const char *pattern, struct cell__url_glob **ret_url);
void cell__url_glob_destroy(struct cell__url_glob *url);
enum cell__url_verdict cell__url_match(const struct cell__url_glob *glob, const char *text, size_t size, uint64_t *steps);

/* ---- inside: policy_load.c makes it, policy.c evaluates it ---- */

#define CELL__KIND_ANY (1u << 31)
#define CELL__POLICY_KINDS "tool, shell, install, remove, workflow, artifact, server"
/* CELL_GATE_*, or CELL__KIND_ANY; 0: no such word. */
unsigned cell__policy_kind(const char *word);

enum cell__condition_kind {
	CELL__COND_ALL,     /* a mapping of operators */
	CELL__COND_ONE_OF,  /* a list */
	CELL__COND_NOT,
	CELL__COND_PRESENT, /* flag: must it be there? */
	CELL__COND_GLOB,
	CELL__COND_IS,      /* this scalar */
	CELL__COND_ABOVE,   /* the number in value, like the three below */
	CELL__COND_AT_LEAST,
	CELL__COND_BELOW,
	CELL__COND_AT_MOST,
};

struct cell__condition {
	enum cell__condition_kind kind;
	bool flag;
	bool presence; /* it tests presence only */
	struct cell__glob *glob;
	struct cell__url_glob *url; /* of a pattern with ://, else NULL */
	json_t *value;
	struct cell__condition **items;
	size_t count;
};

struct cell__path_part {
	char *key;
	bool every; /* "*": every member */
};

struct cell__arg_rule {
	char *text; /* the path as written */
	struct cell__path_part *parts;
	size_t n_parts;
	struct cell__condition *condition;
};

/* "grep", "git.log"; callable NULL: any. */
struct cell__name_rule {
	struct cell__glob *tool, *callable;
};

struct cell__rule {
	enum cell_decision decision;
	int line;
	char *name, *reason;
	unsigned kinds; /* 0: not said */
	unsigned principals; /* 1u << kind; 0: not said, and that is all but the host program */
	bool is_particular; /* it names tools, or only kinds other than tool */
	struct cell__name_rule *tools;
	size_t n_tools;
	struct cell__glob **callables, **adapters;
	size_t n_callables, n_adapters;
	struct cell__arg_rule *args;
	size_t n_args;
};

struct cell_policy {
	enum cell_decision fallback;
	bool written; /* given in the file: then it applies to every kind of call, not only to tools */
	struct cell__rule *rules;
	size_t count;
	char *source; /* the text that it was read from; NULL: none */
};

#endif
