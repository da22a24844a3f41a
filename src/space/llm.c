/*
 * Queries of code to a model of the host.
 *
 *     asked ──▶ waiting ──room and budget──▶ running ──the host's reply──▶ answered
 *                  │                            └─ its caller is gone: abandoned; the reply is still counted
 *                  └─ its caller is gone, or the budget is spent: ended without costing anything
 *
 * A query counts from the moment that the host gets it, with what a query may use at most if the host has said so (`call_tokens`,
 * `call_cost`); its reply replaces that by what it has used.  A query that its caller no longer waits for holds its place until the
 * host replies: code that cancels neither gets queries for nothing nor makes the host work on more than `concurrency` of them.
 */
#include "space/llm.h"

#include <math.h>
#include <string.h>

#include "base/list.h"
#include "base/sized.h"
#include "loop/loop_ref.h"
#include "space/engine.h"
#include "space/servers.h"
#include "space/space.h"
#include "tools/tools.h"

struct query {
	struct cell__model *llm;
	struct cell__call *call;       /* NULL: nobody waits */
	struct cell__host_call *host;  /* NULL: not running */
	struct query *prev, *next;     /* of llm->running, or only next of llm->waiting */
};

struct cell__model {
	struct cell_llm spec;
	struct cell__loop_ref *loop_ref;
	struct query *waiting, **last; /* first in, first out */
	size_t n_waiting;
	struct query *running;
	int n_running;
	int64_t calls, tokens; /* used */
	double cost;
	bool starting, destroyed; /* start_waiting() is on the stack; destroyed under it */
};

int cell__llm_check(const struct cell_llm *spec, struct cell_error *err)
{
	if (!spec->fn)
		return cell_fail(err, CELL_E_INVALID, 0, "llm needs a function");
	if (spec->concurrency < 1 || spec->concurrency > CELL_LIMIT_LLM_RUNNING)
		return cell_fail(err, CELL_E_INVALID, 0, "the concurrency of llm is %d, expected 1 to %d", spec->concurrency,
				 CELL_LIMIT_LLM_RUNNING);
	if (spec->max_calls < -1 || spec->max_tokens < -1 || spec->call_tokens < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "a limit of llm is negative; -1 means unlimited");
	if (!isfinite(spec->max_cost) || !isfinite(spec->call_cost) || (spec->max_cost < 0 && spec->max_cost != -1) || spec->call_cost < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the cost of llm must be a finite number from 0; -1 means unlimited");
	return 0;
}

int cell__llm_create(struct cell__loop *loop, const struct cell_llm *spec, struct cell__model **ret_llm, struct cell_error *err)
{
	struct cell__model *llm = cell__alloc(1, sizeof *llm);
	struct cell__loop_ref *ref = llm ? cell__loop_ref_create(loop) : NULL;
	if (!ref) {
		free(llm);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	*llm = (struct cell__model){ .spec = *spec, .loop_ref = ref };
	llm->last = &llm->waiting;
	*ret_llm = llm;
	return 0;
}

void cell__llm_destroy(struct cell__model *llm)
{
	if (!llm)
		return;
	while (llm->running) {
		struct query *query = llm->running;
		CELL__LIST_REMOVE(llm->running, query);
		(void)cell__host_call_let_go(query->host);
		free(query);
	}
	while (llm->waiting) {
		struct query *query = llm->waiting;
		llm->waiting = query->next;
		free(query);
	}
	cell__loop_ref_close(cell__take_ptr(llm->loop_ref));
	llm->destroyed = true;
	if (!llm->starting)
		free(llm);
}

/* ---- the budget ---- */

/* NULL, or which limit is spent. */
static const char *spent(const struct cell__model *llm)
{
	const struct cell_llm *spec = &llm->spec;
	if (spec->max_calls >= 0 && llm->calls >= spec->max_calls)
		return "calls";
	if (spec->max_tokens >= 0 && llm->tokens >= spec->max_tokens)
		return "tokens";
	if (spec->max_cost >= 0 && llm->cost >= spec->max_cost)
		return "cost";
	return NULL;
}

/* NULL, or which limit one more query could exceed while n others are running. */
static const char *too_much(const struct cell__model *llm, int n)
{
	const struct cell_llm *spec = &llm->spec;
	if (spec->max_tokens >= 0 && spec->call_tokens > 0 && (spec->max_tokens - llm->tokens) / spec->call_tokens < n + 1)
		return "tokens";
	if (spec->max_cost >= 0 && llm->cost + spec->call_cost * (n + 1) > spec->max_cost)
		return "cost";
	return NULL;
}

static void add_tokens(struct cell__model *llm, int64_t tokens)
{
	llm->tokens = tokens > INT64_MAX - llm->tokens ? INT64_MAX : llm->tokens + tokens;
}

static json_t *number_or_null(bool limited, double number)
{
	return !limited ? json_null() : json_real(number > 0 ? number : 0);
}

static json_t *count_or_null(bool limited, int64_t count)
{
	return !limited ? json_null() : json_integer(count > 0 ? count : 0);
}

/* What is left; null: no limit. */
static json_t *describe_left(const struct cell__model *llm)
{
	const struct cell_llm *spec = &llm->spec;
	return json_pack("{s:o, s:o, s:o}", "calls", count_or_null(spec->max_calls >= 0, spec->max_calls - llm->calls), "tokens",
			 count_or_null(spec->max_tokens >= 0, spec->max_tokens - llm->tokens), "cost",
			 number_or_null(spec->max_cost >= 0, spec->max_cost - llm->cost));
}

static json_t *describe_usage(const struct cell__model *llm)
{
	return json_pack("{s:I, s:I, s:f, s:o}", "calls", (json_int_t)llm->calls, "tokens", (json_int_t)llm->tokens, "cost", llm->cost,
			 "left", describe_left(llm));
}

static void refuse(struct cell__call *call, const struct cell__model *llm, const char *what)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_LIMIT, 0, "the budget of llm is spent (%s): %lld calls, %lld tokens, cost %g", what, (long long)llm->calls,
		  (long long)llm->tokens, llm->cost);
	call->fail(call, CELL_E_LIMIT, "LlmBudgetError", err.msg);
}

/* ---- replies ---- */

static void start_waiting(struct cell__model *llm);

static const char *take_usage(struct cell__model *llm, const json_t *usage)
{
	const json_t *tokens = json_object_get(usage, "tokens"), *cost = json_object_get(usage, "cost");
	bool known_tokens = !tokens || json_is_null(tokens), known_cost = !cost || json_is_null(cost);
	if (usage && !json_is_object(usage))
		return "the usage in the host's answer is not an object";
	if ((!known_tokens && (!json_is_integer(tokens) || json_integer_value(tokens) < 0)) ||
	    (!known_cost && (!json_is_number(cost) || !isfinite(json_number_value(cost)) || json_number_value(cost) < 0)))
		return "the usage in the host's answer has an invalid number of tokens or cost";
	/* A host that does not say what a query has used is believed to have used what it reserved. */
	add_tokens(llm, known_tokens ? llm->spec.call_tokens : json_integer_value(tokens));
	llm->cost += known_cost ? llm->spec.call_cost : json_number_value(cost);
	return NULL;
}

static void fail_query(struct cell__call *call, int code, const char *message)
{
	if (call)
		call->fail(call, code, "LlmError", message);
}

static void fail_too_long(struct cell__call *call, const char *what, size_t limit, const char *advice)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_LIMIT, 0, "%s: more than %zu MiB%s", what, limit >> 20, advice);
	fail_query(call, CELL_E_LIMIT, err.msg);
}

/* {"text", "usage": {"tokens", "cost"}}, or {"error", "usage"}. */
static void deliver_json(struct cell__model *llm, struct cell__call *call, struct cell__buf *bytes)
{
	json_t *answer = json_loadb(bytes->data, bytes->size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	const json_t *text = json_object_get(answer, "text");
	const char *error = json_string_value(json_object_get(answer, "error"));
	const char *problem = take_usage(llm, json_object_get(answer, "usage"));
	if (problem) { /* what it cost is unknown: as much as it may */
		add_tokens(llm, llm->spec.call_tokens);
		llm->cost += llm->spec.call_cost;
	}
	if (problem || (!error && !json_is_string(text)))
		fail_query(call, CELL_E_TOOL, problem ? problem : "the host's answer is not an object with text and usage");
	else if (error)
		fail_query(call, CELL_E_TOOL, error);
	else if (call)
		call->answer(call, describe_usage(llm), json_string_value(text), json_string_length(text));
	json_decref(answer);
}

static void deliver(struct cell__model *llm, struct cell__call *call, struct cell__reply *reply)
{
	struct cell__buf *bytes = &reply->bytes;
	if (reply->kind == CELL__REPLY_JSON && bytes->size <= CELL_LIMIT_LLM_ANSWER) {
		deliver_json(llm, call, bytes);
		return;
	}
	(void)take_usage(llm, NULL);
	if (reply->kind == CELL__REPLY_NO_MEMORY)
		fail_query(call, CELL_E_NOMEM, "the host is out of memory");
	else if (reply->kind == CELL__REPLY_FAIL)
		fail_query(call, CELL_E_TOOL, bytes->data);
	else if (bytes->size > CELL_LIMIT_LLM_ANSWER)
		fail_too_long(call, "the model's answer", CELL_LIMIT_LLM_ANSWER, "");
	else if (call)
		call->answer(call, describe_usage(llm), bytes->data, bytes->size);
}

static void handle_reply(void *owner, struct cell__reply *reply)
{
	struct query *query = owner;
	struct cell__model *llm = query->llm;
	struct cell__call *call = query->call;
	CELL__LIST_REMOVE(llm->running, query);
	llm->n_running--;
	free(query);
	deliver(llm, call, reply);
	start_waiting(llm);
}

/* ---- queries ---- */

static char *describe_query(const struct cell__model *llm, const struct cell__call *call)
{
	json_t *all = json_pack("{s:O, s:O?, s:O?, s:o}", "prompt", json_object_get(call->args, "prompt"), "context",
				json_object_get(call->args, "context"), "options", json_object_get(call->args, "options"), "left",
				describe_left(llm));
	char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
	json_decref(all);
	return text;
}

/* The query is taken over. */
static void run_query(struct cell__model *llm, struct query *query)
{
	struct cell__call *call = query->call;
	CELL_AUTO_FREE char *args = describe_query(llm, call);
	struct cell__host_asked asked = {
		.args = args, .args_size = args ? strlen(args) : 0, .session_id = call->session_id, .handle = handle_reply, .owner = query
	};
	bool full = false;
	if (asked.args_size > CELL_LIMIT_LLM_PROMPT) {
		free(query);
		call->cancel = NULL;
		fail_too_long(call, "prompt and context", CELL_LIMIT_LLM_PROMPT, ": ask about a part of them");
		return;
	}
	query->host = args ? cell__host_call_make(llm->loop_ref, CELL_LIMIT_LLM_RUNNING, &asked, &full) : NULL;
	if (!query->host) {
		free(query);
		call->cancel = NULL;
		call->fail(call, full ? CELL_E_LIMIT : CELL_E_NOMEM, "MemoryError", "the host is out of memory for the query");
		return;
	}
	CELL__LIST_PUSH(llm->running, query);
	llm->n_running++;
	llm->calls++;
	llm->spec.fn(llm->spec.arg, (struct cell_tool_call *)query->host);
}

static struct query *take_first(struct cell__model *llm)
{
	struct query *query = llm->waiting;
	llm->waiting = query->next;
	if (!llm->waiting)
		llm->last = &llm->waiting;
	llm->n_waiting--;
	query->next = NULL;
	return query;
}

/* The host may reply from inside its function, and so may end up here again. */
static void start_waiting(struct cell__model *llm)
{
	if (llm->starting)
		return;
	llm->starting = true;
	while (!llm->destroyed && llm->waiting && llm->n_running < llm->spec.concurrency) {
		const char *what = spent(llm), *more = what ? NULL : too_much(llm, llm->n_running);
		if (more && llm->n_running > 0)
			break; /* those that run may use less than they reserve */
		struct query *query = take_first(llm);
		if (!what && !more) {
			run_query(llm, query);
			continue;
		}
		struct cell__call *call = query->call;
		free(query);
		refuse(call, llm, what ? what : more);
	}
	llm->starting = false;
	if (llm->destroyed)
		free(llm);
}

static void handle_cancel(struct cell__call *call)
{
	struct query *query = call->handler;
	struct cell__model *llm = query->llm;
	query->call = NULL;
	if (query->host) {
		cell__host_call_cancel(query->host);
		return;
	}
	struct query **at = &llm->waiting;
	while (*at != query)
		at = &(*at)->next;
	*at = query->next;
	if (llm->last == &query->next)
		llm->last = at;
	llm->n_waiting--;
	free(query);
}

static void begin(struct cell__model *llm, struct cell__call *call)
{
	const char *what = spent(llm);
	if (what) {
		refuse(call, llm, what);
		return;
	}
	if (llm->n_waiting >= CELL_LIMIT_LLM_WAITING) {
		call->fail(call, CELL_E_LIMIT, "LlmError",
			   CELL__STRING(CELL_LIMIT_LLM_WAITING) " queries are waiting for llm: wait for answers before asking more");
		return;
	}
	struct query *query = cell__alloc(1, sizeof *query);
	if (!query) {
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	*query = (struct query){ .llm = llm, .call = call };
	call->handler = query;
	call->cancel = handle_cancel;
	*llm->last = query;
	llm->last = &query->next;
	llm->n_waiting++;
	start_waiting(llm);
}

void cell__llm_handle(struct cell__model *llm, struct cell__call *call)
{
	if (!llm) {
		call->fail(call, CELL_E_NOT_FOUND, "LlmError", "this session has no llm: its host has to give one (llm= in Python)");
	} else if (call->operation->id == CELL__OP_LLM_USAGE) {
		call->answer(call, describe_usage(llm), NULL, 0);
	} else {
		begin(llm, call);
	}
}

/* ---- the public function ---- */

struct setting {
	struct cell_space *space;
	const struct cell_llm *spec;
	struct cell_error err;
	int rc;
};

static void do_set(void *arg)
{
	struct setting *setting = arg;
	struct cell__model **llm = cell__space_llm(setting->space);
	if (*llm)
		setting->rc = cell_fail(&setting->err, CELL_E_EXISTS, 0, "this space has an llm already");
	else
		setting->rc = cell__llm_create(cell__space_engine(setting->space)->loop, setting->spec, llm, &setting->err);
}

int cell_space_set_llm(struct cell_space *space, const struct cell_llm *llm, struct cell_error *err)
{
	if (cell__require(err, space, llm) < 0)
		return -1;
	struct cell_llm all = CELL_LLM_INIT;
	if (cell__sized_read(&all, sizeof all, llm, "cell_llm", err) < 0 || cell__llm_check(&all, err) < 0)
		return -1;
	struct setting setting = { .space = space, .spec = &all };
	cell__loop_call(cell__space_engine(space)->loop, do_set, &setting);
	if (setting.rc < 0 && err)
		*err = setting.err;
	return setting.rc;
}
