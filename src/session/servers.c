/* MCP servers of a space: the public functions, and what servers tell and ask. */
#define _GNU_SOURCE
#include "session/servers.h"

#include <string.h>

#include "mcp/client.h"
#include "session/space.h"

/* ---- adding and removing ---- */

struct changing {
	struct cell__tools *tools;
	const char *name;
	const json_t *params; /* NULL: remove */
	struct cell_error err;
	int rc;
};

static void do_change(void *arg)
{
	struct changing *changing = arg;
	changing->rc = changing->params
			       ? cell__tools_add_mcp(changing->tools, changing->name, changing->params, &changing->err)
			       : cell__tools_remove_mcp(changing->tools, changing->name, &changing->err);
}

static int change(struct cell_space *space, const char *name, const json_t *params, struct cell_error *err)
{
	struct cell__loop *loop = cell__space_loop(space);
	struct changing changing = { .tools = cell__space_tools(space), .name = name, .params = params };
	if (cell__loop_is_current(loop))
		do_change(&changing);
	else
		cell__loop_call(loop, do_change, &changing);
	if (changing.rc < 0 && err)
		*err = changing.err;
	return changing.rc;
}

int cell_space_add_mcp(struct cell_space *space, const char *name, const char *params_json, struct cell_error *err)
{
	json_error_t problem;
	json_t *params = json_loads(params_json, JSON_REJECT_DUPLICATES, &problem);
	if (!params)
		return cell_fail(err, CELL_E_INVALID, 0, "the parameters of MCP server '%.60s' are not JSON: %.100s", name,
				 problem.text);
	int rc = change(space, name, params, err);
	json_decref(params);
	return rc;
}

int cell_space_remove_mcp(struct cell_space *space, const char *name, struct cell_error *err)
{
	return change(space, name, NULL, err);
}

/* ---- stopping ---- */

struct stopping {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell__tools *tools;
};

static void handle_stopped(void *arg)
{
	cell__waiter_signal(&((struct stopping *)arg)->waiter);
}

static void do_stop(struct cell__task *task)
{
	struct stopping *stopping = (struct stopping *)task;
	cell__tools_stop_mcp(stopping->tools, handle_stopped, stopping);
}

int cell_space_stop_servers(struct cell_space *space, struct cell_error *err)
{
	struct cell__loop *loop = cell__space_loop(space);
	if (cell__loop_is_current(loop))
		return cell_fail(err, CELL_E_INVALID, 0, "cell_space_stop_servers() waits and must not be called from a callback");
	struct stopping stopping = { .task.fn = do_stop, .tools = cell__space_tools(space) };
	cell__waiter_init(&stopping.waiter);
	cell__loop_do(loop, &stopping.task, &stopping.waiter);
	cell__waiter_finish(&stopping.waiter);
	return 0;
}

/* ---- what servers tell ---- */

struct cell_question {
	struct cell__task task;
	struct cell__loop *loop;
	struct cell__mcp_elicitation *elicitation;
	char action[16];
	json_t *content;
};

static void hear(void *arg, const struct cell__mcp_event *event)
{
	struct cell__servers *servers = arg;
	CELL_AUTO_FREE char *json = event->params ? json_dumps(event->params, JSON_COMPACT) : cell__strdup("{}");
	struct cell_question *question = NULL;
	if (event->type == CELL_MCP_QUESTION) {
		question = json ? cell__alloc(1, sizeof *question) : NULL;
		if (!question) {
			cell__mcp_elicitation_answer(event->elicitation, "decline", NULL);
			return;
		}
		question->loop = servers->loop;
		question->elicitation = event->elicitation;
	}
	if (!json)
		return;
	const struct cell_tool_event public = {
		.type = event->type == CELL_MCP_PROGRESS ? CELL_TOOL_PROGRESS
			: event->type == CELL_MCP_LOG	 ? CELL_TOOL_LOG
							 : CELL_TOOL_QUESTION,
		.tool = event->tool,
		.callable = event->callable ? event->callable : "",
		.session_id = event->session_id ? event->session_id : "",
		.json = json,
		.question = question,
	};
	servers->fn(servers->arg, &public);
}

struct listening {
	struct cell_space *space;
	cell_tool_event_fn fn;
	void *arg;
};

static void do_listen(void *arg)
{
	struct listening *listening = arg;
	struct cell__servers *servers = cell__space_servers(listening->space);
	servers->loop = cell__space_loop(listening->space);
	servers->fn = listening->fn;
	servers->arg = listening->arg;
	cell__tools_on_mcp(cell__space_tools(listening->space), listening->fn ? hear : NULL, servers);
}

int cell_space_on_tool_event(struct cell_space *space, cell_tool_event_fn fn, void *arg, struct cell_error *err)
{
	(void)err;
	struct cell__loop *loop = cell__space_loop(space);
	struct listening listening = { space, fn, arg };
	if (cell__loop_is_current(loop))
		do_listen(&listening);
	else
		cell__loop_call(loop, do_listen, &listening);
	return 0;
}

/* ---- answers to their questions ---- */

static void deliver(struct cell__task *task)
{
	struct cell_question *question = (struct cell_question *)task;
	cell__mcp_elicitation_answer(question->elicitation, question->action, question->content);
	free(question);
}

int cell_question_answer(struct cell_question *question, const char *action, const char *content_json,
			 struct cell_error *err)
{
	bool accept = strcmp(action, "accept") == 0;
	json_t *content = NULL;
	if (!accept && strcmp(action, "decline") != 0 && strcmp(action, "cancel") != 0)
		return cell_fail(err, CELL_E_INVALID, 0, "a question is answered with accept, decline or cancel, not '%.40s'",
				 action);
	if (content_json) {
		content = json_loads(content_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
		if (!json_is_object(content) || !accept) {
			json_decref(content);
			return cell_fail(err, CELL_E_INVALID, 0, "the content of an answer is a JSON object, and for accept alone");
		}
	}
	memcpy(question->action, action, strlen(action) + 1);
	question->content = content;
	question->task.fn = deliver;
	cell__loop_post(question->loop, &question->task);
	return 0;
}
