/* MCP servers of a space: the public functions, and the servers' notifications and questions. */
#define _GNU_SOURCE
#include "space/servers.h"

#include <string.h>

#include "mcp/client/client.h"
#include "mcp/client/oauth.h"
#include "space/engine.h"
#include "space/space.h"

/* ---- adding and removing ---- */

/* Made as a call of the host program, so policy and audit see it. */
static int change(struct cell_space *space, const char *method, json_t *args, struct cell_error *err)
{
	CELL_AUTO_FREE char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_answer answer = CELL_ANSWER_INIT;
	json_decref(args);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	int rc = cell__space_wait(space, &cell__principal_host, method, text, NULL, 0, NULL, &answer, err);
	cell_answer_finish(&answer);
	return rc;
}

int cell_space_add_mcp(struct cell_space *space, const char *name, const char *params_json, struct cell_error *err)
{
	if (cell__require(err, space, name, params_json) < 0)
		return -1;
	json_error_t problem;
	json_t *params = json_loads(params_json, JSON_REJECT_DUPLICATES, &problem);
	if (!params)
		return cell_fail(err, CELL_E_INVALID, 0, "the parameters of MCP server '%.60s' are not JSON: %.100s", name, problem.text);
	return change(space, "tools.register", json_pack("{s:s, s:o}", "name", name, "params", params), err);
}

int cell_space_remove_mcp(struct cell_space *space, const char *name, struct cell_error *err)
{
	if (cell__require(err, space, name) < 0)
		return -1;
	return change(space, "tools.unregister", json_pack("{s:s}", "name", name), err);
}

/* ---- stopping ---- */

static void start_stop(void *tools, void (*done)(void *arg), void *arg)
{
	cell__tools_stop_mcp(tools, done, arg);
}

int cell_space_stop_servers(struct cell_space *space, struct cell_error *err)
{
	if (cell__require(err, space) < 0)
		return -1;
	struct cell_engine *engine = cell__space_engine(space);
	if (cell__engine_may_wait(engine, "cell_space_stop_servers", err) < 0)
		return -1;
	cell__engine_wait(engine, start_stop, cell__space_tools(space));
	return 0;
}

/* ---- logins ---- */

struct wanting {
	struct cell_space *space;
	const char *name;
	struct cell__oauth *oauth;
	struct cell_error err;
};

static void do_change(void *arg)
{
	struct wanting *wanting = arg;
	cell__tools_oauth_changed(cell__space_tools(wanting->space), wanting->name);
}

/* The next use of the server begins with the tokens that are kept now. */
static void tell_changed(struct cell_space *space, const char *name)
{
	cell__loop_call(cell__space_engine(space)->loop, do_change, &(struct wanting){ .space = space, .name = name });
}

static void do_want(void *arg)
{
	struct wanting *wanting = arg;
	wanting->oauth = cell__tools_oauth(cell__space_tools(wanting->space), wanting->name, &wanting->err);
}

/* What a login needs; the login itself blocks, and is done on the caller's thread. */
static struct cell__oauth *want_oauth(struct cell_space *space, const char *name, const char *function, struct cell_error *err)
{
	struct cell_engine *engine = cell__space_engine(space);
	struct wanting wanting = { .space = space, .name = name };
	if (cell__engine_may_wait(engine, function, err) < 0)
		return NULL;
	cell__loop_call(engine->loop, do_want, &wanting);
	if (!wanting.oauth && err)
		*err = wanting.err;
	return wanting.oauth;
}

int cell_space_login(struct cell_space *space, const char *name, const char *scope, int (*show)(void *arg, const char *link), void *arg,
		     int64_t timeout_ms, struct cell_error *err)
{
	struct cell_error why = { 0 };
	if (cell__require(err, space, name, show) < 0)
		return -1;
	struct cell__oauth *oauth = want_oauth(space, name, "cell_space_login", err);
	if (!oauth)
		return -1;
	struct cell__oauth with = *oauth;
	CELL_AUTO_BUF struct cell__buf scopes = CELL_BUF_INIT;
	if (scope && cell__buf_printf(&scopes, "%s%s%s", oauth->scope ? oauth->scope : "", oauth->scope ? " " : "", scope) == 0)
		with.scope = scopes.data;
	int rc = cell__oauth_login(&with, &(struct cell__oauth_login){ show, arg, timeout_ms }, &why);
	cell__tools_oauth_destroy(oauth);
	tell_changed(space, name);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

int cell_space_logout(struct cell_space *space, const char *name, struct cell_error *err)
{
	struct cell_error why = { 0 };
	if (cell__require(err, space, name) < 0)
		return -1;
	struct cell__oauth *oauth = want_oauth(space, name, "cell_space_logout", err);
	if (!oauth)
		return -1;
	int rc = cell__oauth_logout(oauth, &why);
	cell__tools_oauth_destroy(oauth);
	tell_changed(space, name);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

/* ---- notifications and questions ---- */

struct cell_question {
	struct cell__task task;
	struct cell__loop *loop;
	struct cell__mcp_elicitation *elicitation;
	char action[16];
	json_t *content;
};

/* A question on its way through a session's gate: the call whose answer is the server's. */
struct asking {
	struct cell__call base;
	struct cell__mcp_elicitation *elicitation;
	bool has_form; /* there is something to fill in */
};

static void end_asking(struct asking *asking, const char *action, json_t *content)
{
	struct cell__mcp_elicitation *elicitation = asking->elicitation;
	json_decref(asking->base.args);
	free(asking);
	cell__mcp_elicitation_watch(elicitation, NULL, NULL);
	cell__mcp_elicitation_answer(elicitation, action, content);
}

static void handle_content(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw, (void)raw_size;
	struct asking *asking = (struct asking *)call;
	if (!asking->has_form)
		json_decref(cell__take_ptr(result));
	end_asking(asking, "accept", result);
}

static void handle_refusal(struct cell__call *call, int code, const char *type, const char *message)
{
	(void)message;
	bool declined = code == CELL_OUT_REJECTED && strcmp(type, "ApprovalTimeoutError") != 0;
	end_asking((struct asking *)call, declined ? "decline" : "cancel", NULL);
}

static void handle_gone(void *arg)
{
	struct asking *asking = arg;
	asking->base.cancel(&asking->base);
	end_asking(asking, "cancel", NULL);
}

/* False: the session does not take questions. */
static bool ask_session(const struct cell__session_ops *ops, struct cell_session *session, const struct cell__mcp_event *event)
{
	if (!session || !ops->takes_questions(session))
		return false;
	struct asking *asking = cell__alloc(1, sizeof *asking);
	json_t *args = json_pack("{s:s, s:s, s:O}", "tool", event->tool, "callable", event->callable ? event->callable : "", "params",
				 event->params);
	if (!asking || !args) {
		json_decref(args);
		free(asking);
		return false;
	}
	json_object_del(json_object_get(args, "params"), "_meta");
	*asking = (struct asking){
		.base = { .method = "question",
			  .args = args,
			  .session_id = event->session_id ? event->session_id : "",
			  .answer = handle_content,
			  .fail = handle_refusal },
		.elicitation = event->elicitation,
		.has_form = json_is_object(json_object_get(event->params, "requestedSchema")),
	};
	cell__mcp_elicitation_watch(event->elicitation, handle_gone, asking);
	ops->ask(session, &asking->base);
	return true;
}

/* True: no other receiver gets it. */
static bool tell_session(struct cell__servers *servers, const struct cell__mcp_event *event, const char *json)
{
	struct cell_space *space = servers->space;
	struct cell_engine *engine = cell__space_engine(space);
	struct cell_session *session = engine->session_ops->find(engine, space, event->session_id);
	if (event->type == CELL_MCP_QUESTION)
		return ask_session(engine->session_ops, session, event);
	if (session && json)
		engine->session_ops->tell(session, event->type == CELL_MCP_LOG ? CELL_EVENT_TOOL_LOG : CELL_EVENT_TOOL_PROGRESS,
					  event->call, event->tool, json);
	return !servers->fn;
}

static void hear(void *arg, const struct cell__mcp_event *event)
{
	struct cell__servers *servers = arg;
	CELL_AUTO_FREE char *json = event->params ? json_dumps(event->params, JSON_COMPACT) : cell__strdup("{}");
	struct cell_question *question = NULL;
	if (tell_session(servers, event, json))
		return;
	if (!servers->fn) {
		cell__mcp_elicitation_answer(event->elicitation, "decline", NULL);
		return;
	}
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
			: event->type == CELL_MCP_LOG    ? CELL_TOOL_LOG
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
	servers->fn = listening->fn;
	servers->arg = listening->arg;
}

/* Whether there is an answerer. */
static bool somebody_answers(void *arg)
{
	struct cell__servers *servers = arg;
	struct cell_engine *engine = cell__space_engine(servers->space);
	return servers->fn || engine->session_ops->any_takes_questions(engine, servers->space);
}

void cell__servers_init(struct cell__servers *servers, struct cell_space *space)
{
	*servers = (struct cell__servers){ .loop = cell__space_engine(space)->loop, .space = space };
	cell__tools_on_mcp(cell__space_tools(space), hear, somebody_answers, servers);
}

int cell_space_on_tool_event(struct cell_space *space, cell_tool_event_fn fn, void *arg, struct cell_error *err)
{
	if (cell__require(err, space) < 0)
		return -1;
	(void)err;
	struct listening listening = { space, fn, arg };
	cell__loop_call(cell__space_engine(space)->loop, do_listen, &listening);
	return 0;
}

/* ---- answers to their questions ---- */

static void deliver(struct cell__task *task)
{
	struct cell_question *question = (struct cell_question *)task;
	cell__mcp_elicitation_answer(question->elicitation, question->action, question->content);
	free(question);
}

int cell_question_answer(struct cell_question *question, const char *action, const char *content_json, struct cell_error *err)
{
	if (cell__require(err, question, action) < 0)
		return -1;
	bool accept = strcmp(action, "accept") == 0;
	json_t *content = NULL;
	if (!accept && strcmp(action, "decline") != 0 && strcmp(action, "cancel") != 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the action of an answer must be accept, decline or cancel, not '%.40s'", action);
	if (content_json) {
		content = json_loads(content_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
		if (!json_is_object(content) || !accept) {
			json_decref(content);
			return cell_fail(err, CELL_E_INVALID, 0,
					 "the content of an answer must be a JSON object, and only \"accept\" may have one");
		}
	}
	memcpy(question->action, action, strlen(action) + 1);
	question->content = content;
	question->task.fn = deliver;
	cell__loop_post(question->loop, &question->task);
	return 0;
}
