/*
 * A program with an MCP server that offers things of its own: for tests/e2e/test_mcp_offers.py and for the conformance program.
 *
 *     offering [--storage DIR] [--python FILE] [--policy FILE] [--audit FILE] [--listen ADDRESS --auth-token-file FILE|--auth-disabled 1]
 *
 * A line "withdraw KIND NAME" or "offer" or "changed URI" that the tool `control` gets is done while the server runs.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "workcell.h"

static struct cell_mcp_server *server;

static const char *flag(int argc, char **argv, const char *name)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], name))
			return argv[i + 1];
	return NULL;
}

static int say(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	char text[512];
	int n = snprintf(text, sizeof text, "%s: %s by %s (%s) with %s", (const char *)arg, cell_mcp_call_name(call),
			 cell_mcp_call_principal(call), cell_mcp_call_client(call), cell_mcp_call_args(call));
	return cell_mcp_call_answer_text(call, text, (size_t)(n < (int)sizeof text ? n : (int)sizeof text - 1), err);
}

static int give(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	return cell_mcp_call_answer(call, arg, err);
}

static int give_bytes(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	return cell_mcp_call_answer_bytes(call, "\x00\x01\xff", 3, arg, err);
}

static int fail(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg, (void)call;
	err->code = CELL_E_NOT_FOUND;
	snprintf(err->msg, sizeof err->msg, "there is nothing here");
	return -1;
}

static int say_nothing(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg, (void)call, (void)err;
	return 0;
}

static int report(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg;
	cell_mcp_call_progress(call, 0, 100, NULL);
	if (cell_mcp_call_log(call, "info", "offering", "\"half way\"", err) < 0)
		return -1;
	cell_mcp_call_progress(call, 50, 100, "half way");
	cell_mcp_call_progress(call, 100, 100, NULL);
	return cell_mcp_call_answer_text(call, "done", 4, err);
}

/* As the conformance suite wants it. */
static int log_three(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	static const char *const words[] = { "\"Tool execution started\"", "\"Tool processing data\"", "\"Tool execution completed\"" };
	(void)arg;
	for (size_t i = 0; i < 3; i++)
		if (cell_mcp_call_log(call, "info", "offering", words[i], err) < 0)
			return -1;
	return cell_mcp_call_answer_text(call, "done", 4, err);
}

/* Two questions, the second after the answer to the first. */
static int ask_twice(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	static const char *const questions[] = {
		"{\"name\":\"step1\",\"message\":\"Step 1: What is your name?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":"
		"{\"name\":{\"type\":\"string\"}},\"required\":[\"name\"]}}",
		"{\"name\":\"step2\",\"message\":\"Step 2: What is your favorite color?\",\"requestedSchema\":{\"type\":\"object\","
		"\"properties\":{\"color\":{\"type\":\"string\"}},\"required\":[\"color\"]}}",
	};
	(void)arg;
	for (size_t i = 0; i < 2; i++) {
		char *answer = NULL;
		if (cell_mcp_call_ask(call, questions[i], 60000, &answer, err) < 0)
			return -1;
		free(answer);
	}
	return cell_mcp_call_answer_text(call, "done", 4, err);
}

static int ask(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	char *answer = NULL;
	if (cell_mcp_call_ask(call, arg, 60000, &answer, err) < 0)
		return -1;
	char *text = NULL;
	int n = asprintf(&text, "%s: %s", strstr(cell_mcp_call_name(call), "request_state") ? "state-ok" : "User response", answer);
	int rc = cell_mcp_call_answer_text(call, text, (size_t)n, err);
	free(text);
	free(answer);
	return rc;
}

static int wait_for_cancel(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg;
	fprintf(stderr, "offering: waiting\n");
	while (!cell_mcp_call_cancelled(call))
		usleep(2000);
	fprintf(stderr, "offering: cancelled\n");
	return cell_mcp_call_answer_text(call, "too late", 8, err);
}

/* ---- tools that are tasks, as the conformance suite wants them ---- */

static int greet(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg;
	return cell_mcp_call_answer_text(call, "Hello, World!", 13, err);
}

static int compute(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	const char *seconds = strstr(cell_mcp_call_args(call), "\"seconds\":");
	long left = (seconds ? atol(seconds + 10) : 0) * 500;
	(void)arg;
	cell_mcp_call_become_task(call);
	while (left-- > 0 && !cell_mcp_call_cancelled(call))
		usleep(2000);
	return cell_mcp_call_answer_text(call, "computed", 8, err);
}

static int fail_as_task(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	cell_mcp_call_become_task(call);
	fail(NULL, call, err);
	err->code = arg ? CELL_E_PROTOCOL : err->code;
	return -1;
}

#define SURE                                                                                                                           \
	"{\"message\":\"Are you sure?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"confirm\":{\"type\":\"boolean\"}}," \
	"\"required\":[\"confirm\"]}}"

struct asking {
	struct cell_mcp_call *call;
	char *answer;
};

static void *ask_beside(void *arg)
{
	struct asking *asking = arg;
	if (cell_mcp_call_ask(asking->call, SURE, 60000, &asking->answer, NULL) < 0)
		asking->answer = NULL;
	return NULL;
}

/* Two questions at once, each of a thread. */
static int ask_as_task(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	struct asking askings[2] = { { call, NULL }, { call, NULL } };
	pthread_t threads[2];
	int n = arg ? 2 : 1, i;
	cell_mcp_call_become_task(call);
	for (i = 0; i < n && pthread_create(&threads[i], NULL, ask_beside, &askings[i]) == 0; i++)
		;
	for (n = i, i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		free(askings[i].answer);
	}
	return cell_mcp_call_answer_text(call, "done", 4, err);
}

/* Becomes a task with the answer to a question. */
static int ask_and_become_task(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	char *answer = NULL;
	if (cell_mcp_call_ask(call, arg, 60000, &answer, err) < 0)
		return -1;
	cell_mcp_call_become_task(call);
	int rc = cell_mcp_call_answer_text(call, answer, strlen(answer), err);
	free(answer);
	return rc;
}

static int complete(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	(void)arg;
	return cell_mcp_call_answer(
		call, strstr(cell_mcp_call_args(call), "\"value\":\"pa") ? "{\"values\":[\"paris\",\"park\"]}" : "{\"values\":[]}", err);
}

static int offer_tool(const char *name, const char *schema, const char *scope, const char *principal, cell_mcp_fn fn, const char *arg,
		      struct cell_error *err)
{
	struct cell_offered_tool tool = CELL_OFFERED_TOOL_INIT;
	tool.needs = strstr(name, "missing_capability") ? "{\"sampling\":{}}"
		     : strstr(name, "needs_form")       ? "{\"elicitation\":{\"form\":{}}}"
		     : !strcmp(name, "failing_job")     ? "{\"extensions\":{\"io.modelcontextprotocol/tasks\":{}}}"
							: NULL;
	tool.name = name;
	tool.description = "A tool of the program";
	tool.input_schema = schema;
	tool.scope = scope;
	tool.principal = principal;
	tool.fn = fn;
	tool.arg = (void *)arg;
	return cell_mcp_server_offer_tool(server, &tool, err);
}

static int offer_prompt(const char *name, const char *arguments, const char *principal, cell_mcp_fn fn, const char *arg,
			struct cell_error *err);

static int control(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	const char *args = cell_mcp_call_args(call);
	int rc = 0;
	(void)arg;
	if (!strcmp(cell_mcp_call_name(call), "test_trigger_prompt_change"))
		rc = offer_prompt("late_prompt", NULL, NULL, say, "late", err);
	else if (strstr(args, "offer") || !strcmp(cell_mcp_call_name(call), "test_trigger_tool_change"))
		rc = offer_tool("late", NULL, NULL, NULL, say, "late", err);
	else if (strstr(args, "withdraw"))
		rc = cell_mcp_server_withdraw(server, "tool", "late", err);
	else
		rc = cell_mcp_server_resource_changed(server, "test://static-text", err);
	return rc < 0 ? -1 : cell_mcp_call_answer_text(call, "done", 4, err);
}

#define PNG "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
#define WAV "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
#define IMAGE "{\"type\":\"image\",\"data\":\"" PNG "\",\"mimeType\":\"image/png\"}"
#define AUDIO "{\"type\":\"audio\",\"data\":\"" WAV "\",\"mimeType\":\"audio/wav\"}"
#define EMBEDDED(uri)                                         \
	"{\"type\":\"resource\",\"resource\":{\"uri\":\"" uri \
	"\",\"mimeType\":\"text/plain\",\"text\":\"This is an embedded resource content.\"}}"

#define CONFIRM                                                                                                                           \
	"{\"name\":\"confirm\",\"message\":\"Please confirm\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"ok\":{\"type\":" \
	"\"boolean\"}},\"required\":[\"ok\"]}}"
#define TITLED                                                                                                                        \
	"{\"const\":\"value1\",\"title\":\"First Option\"},{\"const\":\"value2\",\"title\":\"Second Option\"},{\"const\":\"value3\"," \
	"\"title\":\"Third Option\"}"

static const struct {
	const char *name, *schema, *scope, *principal;
	cell_mcp_fn fn;
	const char *arg;
} tools[] = {
	{ "test_simple_text", NULL, NULL, NULL, give,
	  "{\"content\":[{\"type\":\"text\",\"text\":\"This is a simple text response for testing.\"}]}" },
	{ "test_image_content", NULL, NULL, NULL, give, "{\"content\":[" IMAGE "]}" },
	{ "test_audio_content", NULL, NULL, NULL, give, "{\"content\":[" AUDIO "]}" },
	{ "test_embedded_resource", NULL, NULL, NULL, give, "{\"content\":[" EMBEDDED("test://embedded-resource") "]}" },
	{ "test_multiple_content_types", NULL, NULL, NULL, give,
	  "{\"content\":[{\"type\":\"text\",\"text\":\"Multiple content types test:\"}," IMAGE
	  "," EMBEDDED("test://mixed-content-resource") "],"
							"\"structuredContent\":{\"n\":3}}" },
	{ "test_tool_with_logging", NULL, NULL, NULL, log_three, NULL },
	{ "test_logging_tool", NULL, NULL, NULL, log_three, NULL },
	{ "test_streaming_elicitation", NULL, NULL, NULL, ask, CONFIRM },
	{ "test_input_required_result_elicitation", NULL, NULL, NULL, ask,
	  "{\"name\":\"user_name\",\"message\":\"What is your name?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"name\":"
	  "{\"type\":\"string\"}},\"required\":[\"name\"]}}" },
	{ "test_input_required_result_request_state", NULL, NULL, NULL, ask, CONFIRM },
	{ "test_input_required_result_tampered_state", NULL, NULL, NULL, ask, CONFIRM },
	{ "test_input_required_result_multi_round", NULL, NULL, NULL, ask_twice, NULL },
	{ "test_elicitation_sep1034_defaults", NULL, NULL, NULL, ask,
	  "{\"message\":\"Please check\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{"
	  "\"name\":{\"type\":\"string\",\"default\":\"John Doe\"},\"age\":{\"type\":\"integer\",\"default\":30},"
	  "\"score\":{\"type\":\"number\",\"default\":95.5},\"status\":{\"type\":\"string\",\"enum\":[\"active\",\"inactive\",\"pending\"],"
	  "\"default\":\"active\"},\"verified\":{\"type\":\"boolean\",\"default\":true}}}}" },
	{ "test_elicitation_sep1330_enums", NULL, NULL, NULL, ask,
	  "{\"message\":\"Please choose\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{"
	  "\"untitledSingle\":{\"type\":\"string\",\"enum\":[\"option1\",\"option2\",\"option3\"]},"
	  "\"titledSingle\":{\"type\":\"string\",\"oneOf\":[" TITLED "]},"
	  "\"legacyEnum\":{\"type\":\"string\",\"enum\":[\"opt1\",\"opt2\",\"opt3\"],\"enumNames\":[\"One\",\"Two\",\"Three\"]},"
	  "\"untitledMulti\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"enum\":[\"option1\",\"option2\",\"option3\"]}},"
	  "\"titledMulti\":{\"type\":\"array\",\"items\":{\"anyOf\":[" TITLED "]}}}}}" },
	{ "json_schema_2020_12_tool",
	  "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"type\":\"object\",\"$defs\":{\"address\":{\"$anchor\":\"addressDef\","
	  "\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\"}}}},\"properties\":{\"name\":{"
	  "\"type\":\"string\"},\"address\":{\"$ref\":\"#/$defs/address\"},\"contactMethod\":{\"type\":\"string\",\"enum\":[\"phone\",\"email\"]},"
	  "\"phone\":{\"type\":\"string\"},\"email\":{\"type\":\"string\"}},\"allOf\":[{\"anyOf\":[{\"required\":[\"phone\"]},{\"required\":"
	  "[\"email\"]}]}],\"if\":{\"properties\":{\"contactMethod\":{\"const\":\"phone\"}},\"required\":[\"contactMethod\"]},\"then\":{\"required\":"
	  "[\"phone\"]},\"else\":{\"required\":[\"email\"]},\"additionalProperties\":false}",
	  NULL, NULL, say, "schema" },
	{ "test_tool_with_progress", NULL, NULL, NULL, report, NULL },
	{ "test_error_handling", NULL, NULL, NULL, give,
	  "{\"content\":[{\"type\":\"text\",\"text\":\"This tool intentionally returns an error for testing\"}],\"isError\":true}" },
	{ "test_elicitation", "{\"type\":\"object\",\"properties\":{\"message\":{\"type\":\"string\"}},\"required\":[\"message\"]}", NULL,
	  NULL, ask,
	  "{\"message\":\"Please give your name\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"username\":{\"type\":\"string\"},"
	  "\"email\":{\"type\":\"string\"}},\"required\":[\"username\"]}}" },
	{ "typed",
	  "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"n\"],"
	  "\"additionalProperties\":false}",
	  NULL, NULL, say, "typed" },
	{ "for_approvers", NULL, "approve", NULL, say, "approvers" },
	{ "for_two", NULL, NULL, "two", say, "two" },
	{ "bytes", NULL, NULL, NULL, give_bytes, "application/zip" },
	{ "wrong_content", NULL, NULL, NULL, give,
	  "{\"content\":[{\"type\":\"image\",\"data\":\"not base64!\",\"mimeType\":\"image/png\"}]}" },
	{ "fails", NULL, NULL, NULL, fail, NULL },
	{ "silent", NULL, NULL, NULL, say_nothing, NULL },
	{ "waits", NULL, NULL, NULL, wait_for_cancel, NULL },
	{ "control", NULL, NULL, NULL, control, NULL },
	{ "test_trigger_tool_change", NULL, NULL, NULL, control, NULL },
	{ "test_trigger_prompt_change", NULL, NULL, NULL, control, NULL },
	{ "test_missing_capability", NULL, NULL, NULL, say, "has it" },
	{ "needs_form", NULL, NULL, NULL, say, "has it" },
	{ "greet", NULL, NULL, NULL, greet, NULL },
	{ "slow_compute", NULL, NULL, NULL, compute, NULL },
	{ "failing_job", NULL, NULL, NULL, fail_as_task, NULL },
	{ "protocol_error_job", NULL, NULL, NULL, fail_as_task, "protocol" },
	{ "confirm_delete", NULL, NULL, NULL, ask_as_task, NULL },
	{ "multi_input", NULL, NULL, NULL, ask_as_task, "two" },
	{ "test_tool_with_task", NULL, NULL, NULL, ask_and_become_task,
	  "{\"name\":\"user_name\",\"message\":\"What is your name?\",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"name\":"
	  "{\"type\":\"string\"}},\"required\":[\"name\"]}}" },
	{ "test_x_mcp_header",
	  "{\"type\":\"object\",\"properties\":{\"region\":{\"type\":\"string\",\"x-mcp-header\":\"Region\"},\"n\":{\"type\":\"integer\","
	  "\"x-mcp-header\":\"N\"},\"deep\":{\"type\":\"object\",\"properties\":{\"on\":{\"type\":\"boolean\",\"x-mcp-header\":\"On\"}}}},"
	  "\"required\":[\"region\"]}",
	  NULL, NULL, say, "headers" },
};

static int offer_resource(const char *uri, const char *type, const char *scope, const char *principal, cell_mcp_fn fn, const char *arg,
			  struct cell_error *err)
{
	struct cell_offered_resource resource = CELL_OFFERED_RESOURCE_INIT;
	resource.uri = uri;
	resource.name = "Of the program";
	resource.mime_type = type;
	resource.scope = scope;
	resource.principal = principal;
	resource.fn = fn;
	resource.complete = complete;
	resource.arg = (void *)arg;
	return cell_mcp_server_offer_resource(server, &resource, err);
}

#define CONTEXT                                                                                                                    \
	"{\"name\":\"user_context\",\"message\":\"What context should the prompt use?\",\"requestedSchema\":{\"type\":\"object\"," \
	"\"properties\":{\"context\":{\"type\":\"string\"}},\"required\":[\"context\"]}}"

static int ask_and_fail(void *arg, struct cell_mcp_call *call, struct cell_error *err)
{
	char *answer = NULL;
	if (cell_mcp_call_ask(call, arg, 60000, &answer, err) < 0)
		return -1;
	free(answer);
	return fail(NULL, call, err);
}

static int offer_prompt(const char *name, const char *arguments, const char *principal, cell_mcp_fn fn, const char *arg,
			struct cell_error *err)
{
	struct cell_offered_prompt prompt = CELL_OFFERED_PROMPT_INIT;
	prompt.name = name;
	prompt.description = "A prompt of the program";
	prompt.arguments = arguments;
	prompt.principal = principal;
	prompt.fn = fn;
	prompt.needs = strstr(name, "missing_capability") ? "{\"sampling\":{}}" : NULL;
	prompt.complete = complete;
	prompt.arg = (void *)arg;
	return cell_mcp_server_offer_prompt(server, &prompt, err);
}

static int offer_all(struct cell_error *err)
{
	for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
		if (offer_tool(tools[i].name, tools[i].schema, tools[i].scope, tools[i].principal, tools[i].fn, tools[i].arg, err) < 0)
			return -1;
	static const char two[] = "[{\"name\":\"arg1\",\"description\":\"first\",\"required\":true},{\"name\":\"arg2\",\"required\":true}]";
	return offer_resource(
		       "test://static-text", "text/plain", NULL, NULL, give,
		       "{\"contents\":[{\"uri\":\"test://static-text\",\"mimeType\":\"text/plain\",\"text\":\"This is the content of the static "
		       "text resource.\"}]}",
		       err) < 0 ||
			       offer_resource("test://static-binary", "image/png", NULL, NULL, give,
					      "{\"contents\":[{\"uri\":\"test://static-binary\",\"mimeType\":\"image/png\",\"blob\":\"" PNG
					      "\"}]}",
					      err) < 0 ||
			       offer_resource("test://template/{id}/data", "application/json", NULL, NULL, say, "template", err) < 0 ||
			       offer_resource("test://files/{+path}", NULL, NULL, NULL, say, "file", err) < 0 ||
			       offer_resource("test://bytes", "application/zip", NULL, NULL, give_bytes, "application/zip", err) < 0 ||
			       offer_resource("test://approvers", NULL, "approve", NULL, say, "approvers", err) < 0 ||
			       offer_resource("test://two/{x}", NULL, NULL, "two", say, "two", err) < 0 ||
			       offer_resource("test://watched-resource", "text/plain", NULL, NULL, say, "watched", err) < 0 ||
			       offer_resource("test://gone", NULL, NULL, NULL, fail, NULL, err) < 0 ||
			       offer_prompt(
				       "test_simple_prompt", NULL, NULL, give,
				       "{\"messages\":[{\"role\":\"user\",\"content\":{\"type\":\"text\",\"text\":\"This is a simple prompt for testing.\"}}]}",
				       err) < 0 ||
			       offer_prompt("test_prompt_with_arguments", two, NULL, say, "Prompt", err) < 0 ||
			       offer_prompt("test_prompt_with_image", NULL, NULL, give,
					    "{\"messages\":[{\"role\":\"user\",\"content\":" IMAGE "}]}", err) < 0 ||
			       offer_prompt("test_prompt_with_embedded_resource",
					    "[{\"name\":\"resourceUri\",\"description\":\"of the resource\",\"required\":true}]", NULL,
					    give,
					    "{\"messages\":[{\"role\":\"user\",\"content\":" EMBEDDED("test://example-resource") "}]}",
					    err) < 0 ||
			       offer_prompt("for_two", NULL, "two", say, "two", err) < 0 ||
			       offer_prompt("test_input_required_result_prompt", NULL, NULL, ask, CONTEXT, err) < 0 ||
			       offer_prompt("asks_and_fails", NULL, NULL, ask_and_fail, CONTEXT, err) < 0 ||
			       offer_prompt("test_missing_capability", NULL, NULL, say, "has it", err) < 0 ||
			       offer_resource("test://asks/{x}", "text/plain", NULL, NULL, ask, CONTEXT, err) < 0
		       ? -1
		       : 0;
}

static void handle_signal(int number)
{
	(void)number;
	cell_mcp_server_stop(server);
}

static void listening(void *arg, const char *url)
{
	(void)arg;
	dprintf(STDERR_FILENO, "offering: listening on %s/mcp\n", url);
}

int main(int argc, char **argv)
{
	struct cell_space_options space_options = CELL_SPACE_OPTIONS_INIT;
	struct cell_session_options session = CELL_SESSION_OPTIONS_INIT;
	struct cell_mcp_server_options options = CELL_MCP_SERVER_OPTIONS_INIT;
	struct cell_server_options http = CELL_SERVER_OPTIONS_INIT;
	struct cell_audit_options audit = CELL_AUDIT_OPTIONS_INIT;
	struct cell_engine *engine = NULL;
	struct cell_space *space = NULL;
	struct cell_policy *policy = NULL;
	struct cell_error err = { 0 };
	int rc = -1;

	space_options.storage = flag(argc, argv, "--storage");
	space_options.python = session.python = flag(argc, argv, "--python");
	audit.path = flag(argc, argv, "--audit");
	options.storage = space_options.storage != NULL;
	http.listen = flag(argc, argv, "--listen");
	http.token_file = flag(argc, argv, "--auth-token-file");
	http.auth_disabled = flag(argc, argv, "--auth-disabled") != NULL;
	http.listening = listening;
	if (cell_engine_create(NULL, &engine, &err) == 0 && cell_space_open(engine, &space_options, &space, &err) == 0 &&
	    (!flag(argc, argv, "--policy") || cell_policy_load(flag(argc, argv, "--policy"), &policy, &err) == 0) &&
	    (!audit.path || cell_audit_open(engine, &audit, &session.audit, &err) == 0)) {
		session.policy = policy;
		options.space = space;
		options.session = &session;
		if (cell_mcp_server_create(engine, &options, &server, &err) == 0 && offer_all(&err) == 0 &&
		    signal(SIGTERM, handle_signal) != SIG_ERR)
			rc = http.listen ? cell_mcp_server_listen(server, &http, &err)
					 : cell_mcp_server_run(server, STDIN_FILENO, STDOUT_FILENO, &err);
	}
	if (rc < 0)
		fprintf(stderr, "offering: %s: %s\n", cell_code_word(err.code), err.msg);
	if (err.code != CELL_E_TIMEOUT) {
		cell_mcp_server_destroy(server);
		cell_space_close(space);
		cell_audit_close(session.audit);
		cell_engine_destroy(engine);
		cell_policy_destroy(policy);
	}
	return rc < 0;
}
