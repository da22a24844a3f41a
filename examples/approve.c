/*
 * Approvals: a tool of this program that a person (here: a small function) must agree to, and a middleware that sees
 * every call.
 *
 *     the cell calls tools.mail.send() ──▶ middleware ──▶ policy: ask ──▶ event ──▶ cell_session_answer() ──▶ the tool
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <workcell.h>

struct program {
	struct cell_session *session;
	int sent, seen;
};

/* The tool.  Engine's thread: it must not block, and may answer later. */
static void send_mail(void *arg, struct cell_tool_call *call)
{
	struct program *program = arg;

	program->sent++;
	printf("sent: %s\n", cell_tool_call_args(call));
	cell_tool_call_answer_json(call, "true", 4);
}

static void look(void *arg, struct cell_middleware_call *call)
{
	struct program *program = arg;

	program->seen++;
	printf("asked: %s.%s%s\n", cell_middleware_tool(call), cell_middleware_callable(call), cell_middleware_args(call));
	cell_middleware_next(call);
}

/* The person: mail to ann is fine, to everybody it is not, and to bob it goes with another text. */
static void decide(void *arg, const struct cell_event *event)
{
	struct program *program = arg;
	struct cell_approval_answer answer;
	struct cell_error err;

	cell_approval_answer_init(&answer);
	if (event->type != CELL_EVENT_APPROVAL)
		return;
	answer.accept = !strstr(event->call->args, "\"all\"");
	answer.reason = "not to everybody";
	if (strstr(event->call->args, "\"bob\""))
		answer.args = "{\"to\": \"bob\", \"text\": \"hello from me too\"}";
	if (cell_session_answer(program->session, event->call->id, &answer, &err) < 0)
		fprintf(stderr, "approve: %s\n", err.msg);
}

static int run(struct program *program, const char *code, const char *want)
{
	struct cell_run_options options;
	struct cell_result *result;
	const struct cell_outcome *error;
	struct cell_error err;
	int ok;

	cell_run_options_init(&options);
	options.on_event = decide;
	options.event_arg = program;
	if (cell_session_run(program->session, code, strlen(code), &options, &result, &err) < 0) {
		fprintf(stderr, "approve: %s\n", err.msg);
		return -1;
	}
	error = cell_result_error(result);
	printf("%s\n", error ? error->message : cell_result_repr(result));
	ok = !strcmp(error ? cell_code_word(error->code) : cell_result_repr(result), want);
	cell_result_destroy(result);
	return ok ? 0 : -1;
}

static int open_all(struct program *program, struct cell_engine *engine, const struct cell_policy *policy, struct cell_space **ret_space,
		    struct cell_error *err)
{
	struct cell_space_options space_options;
	struct cell_session_options options;
	struct cell_middleware middleware;
	struct cell_tool tool;

	cell_space_options_init(&space_options);
	cell_session_options_init(&options);
	cell_middleware_init(&middleware);
	cell_tool_init(&tool);
	tool.name = "mail.send";
	tool.description = "Sends mail.";
	tool.parameters = "{\"type\": \"object\", \"required\": [\"to\", \"text\"], \"properties\": "
			  "{\"to\": {\"type\": \"string\"}, \"text\": {\"type\": \"string\"}}}";
	tool.fn = send_mail;
	tool.arg = program;
	middleware.name = "look";
	middleware.before = look;
	middleware.arg = program;
	options.policy = policy;
	if (cell_space_open(engine, &space_options, ret_space, err) < 0)
		return -1;
	options.space = *ret_space;
	if (cell_space_add_tool(*ret_space, &tool, err) < 0 || cell_space_add_middleware(*ret_space, &middleware, err) < 0)
		return -1;
	return cell_session_open(engine, &options, &program->session, err);
}

int main(void)
{
	struct program program = { 0 };
	struct cell_policy *policy = cell_policy_of(CELL_ASK);
	struct cell_engine *engine = NULL;
	struct cell_space *space = NULL;
	struct cell_error err;
	int status = 1;

	if (!policy || cell_engine_create(NULL, &engine, &err) < 0 || open_all(&program, engine, policy, &space, &err) < 0)
		fprintf(stderr, "approve: %s\n", policy ? err.msg : "out of memory");
	else if (!run(&program, "tools.mail.send(to='ann', text='hello')", "True") &&
		 !run(&program, "tools.mail.send(to='all', text='hello')", "rejected") &&
		 !run(&program, "tools.mail.send(to='bob', text='hello')", "True") && program.sent == 2 && program.seen == 3)
		status = 0;
	cell_session_close(program.session);
	cell_space_close(space);
	cell_policy_destroy(policy);
	cell_engine_destroy(engine);
	return status;
}
