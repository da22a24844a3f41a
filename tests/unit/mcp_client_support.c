#define _GNU_SOURCE
#include "mcp_client_support.h"

#include "calls/table.h"
#include "spawn/confinement.h"

/* ---- a process that does not exist ---- */

uv_loop_t *cell__loop_uv(struct cell__loop *of)
{
	return &of->uv;
}

void cell__loop_expect(struct cell__loop *of)
{
	(void)of;
}

/* calls/check.c is linked for the defaults of forms alone. */
const struct cell__operation *cell__operation_find(const char *method)
{
	(void)method;
	return NULL;
}

bool cell__operation_is_open_to(const struct cell__operation *operation, const struct cell__principal *principal)
{
	(void)operation, (void)principal;
	return false;
}

struct cell__loop loop;
struct cell__process *processes;
unsigned n_started, n_alive;
int start_error;

static void handle_freed(uv_handle_t *handle)
{
	struct cell__process *process = handle->data;
	cell__buf_finish(&process->written);
	free(process);
}

static void handle_end(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	for (struct cell__process **at = &processes; *at; at = &(*at)->next)
		if (*at == process) {
			*at = process->next;
			break;
		}
	n_alive--;
	process->spec.exited(process->spec.owner, &process->how);
	uv_close((uv_handle_t *)timer, handle_freed);
}

void end_process(struct cell__process *process, int status)
{
	if (process->ended)
		return;
	process->ended = true;
	process->how.status = status;
	process->how.killed = process->killed;
	uv_timer_start(&process->end, handle_end, 0, 0);
}

void cell__confinement_unref(struct cell__confinement *confinement)
{
	assert_null(confinement);
}

int cell__process_start(struct cell__supervisor *supervisor, const struct cell__process_spec *spec, struct cell__process **ret_process,
			struct cell_error *err)
{
	(void)supervisor;
	if (start_error)
		return cell_fail(err, CELL_E_IO, start_error, "start it");
	struct cell__process *process = calloc(1, sizeof *process);
	process->spec = *spec;
	process->end.data = process;
	uv_timer_init(&loop.uv, &process->end);
	process->next = processes;
	processes = process;
	n_started++;
	n_alive++;
	*ret_process = process;
	return 0;
}

int cell__process_write(struct cell__process *process, const void *bytes, size_t size, struct cell_error *err)
{
	if (process->stdin_closed || process->ended)
		return cell_fail(err, CELL_E_CLOSED, 0, "closed");
	return cell__buf_add(&process->written, bytes, size);
}

size_t cell__process_unread(const struct cell__process *process)
{
	(void)process;
	return 0;
}

void cell__process_close_stdin(struct cell__process *process)
{
	process->stdin_closed = true;
	end_process(process, 0); /* an honest server */
}

void cell__process_kill(struct cell__process *process)
{
	process->killed = true;
	end_process(process, 0);
}

/* ---- the server's side ---- */

void turn(void)
{
	uv_run(&loop.uv, UV_RUN_NOWAIT);
}

bool turn_until(bool (*condition)(void))
{
	for (int i = 0; i < 20000 && !condition(); i++) {
		turn();
		usleep(500);
	}
	return condition();
}

void say(const char *line)
{
	processes->spec.output(processes->spec.owner, CELL_STDOUT, line, strlen(line));
	if (processes)
		processes->spec.output(processes->spec.owner, CELL_STDOUT, "\n", 1);
}

void sayf(const char *fmt, ...)
{
	char *line = NULL;
	va_list ap;
	va_start(ap, fmt);
	assert_true(vasprintf(&line, fmt, ap) > 0);
	va_end(ap);
	/* ' stands for ". */
	for (char *at = line; *at; at++)
		if (*at == '\'')
			*at = '"';
	say(line);
	free(line);
}

json_t *heard(void)
{
	struct cell__buf *written = &processes->written;
	char *end = written->size ? memchr(written->data, '\n', written->size) : NULL;
	if (!end)
		return NULL;
	json_t *message = json_loadb(written->data, (size_t)(end - written->data), 0, NULL);
	assert_non_null(message);
	cell__buf_shift(written, (size_t)(end - written->data) + 1);
	return message;
}

int64_t expect(const char *method)
{
	json_t *message = heard();
	if (!message)
		fail_msg("the client said nothing, where %s was expected", method);
	assert_string_equal(json_string_value(json_object_get(message, "method")), method);
	int64_t id = json_integer_value(json_object_get(message, "id"));
	json_decref(message);
	return id;
}

void expect_nothing(void)
{
	json_t *message = heard();
	assert_null(message);
}

json_t *heard_initialize(void)
{
	json_t *message = heard();
	assert_non_null(message);
	if (strcmp(json_string_value(json_object_get(message, "method")), "server/discover") == 0) {
		sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32601,'message':'?'}}",
		     (int)json_integer_value(json_object_get(message, "id")));
		json_decref(message);
		message = heard();
	}
	assert_string_equal(json_string_value(json_object_get(message, "method")), "initialize");
	return message;
}

int expect_initialize(void)
{
	json_t *message = heard_initialize();
	int id = (int)json_integer_value(json_object_get(message, "id"));
	json_decref(message);
	return id;
}

void greet(void)
{
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2025-06-18','capabilities':{},'serverInfo':{'name':'x'}}}",
	     expect_initialize());
	expect("notifications/initialized");
}

void list_nothing(void)
{
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[]}}", (int)expect("tools/list"));
}

/* ---- the owner's side ---- */

struct cell__mcp_client *client;
unsigned n_listed, n_closed, n_ended, n_logged;
int listed_code;
char listed_msg[240], listed_tail[256];
int launch_error;

int handle_launch(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err)
{
	(void)arg;
	if (launch_error)
		return cell_fail(err, launch_error, 0, "no launch");
	*ret_launch = (struct cell__mcp_launch){ .kind = CELL_MCP_STDIO };
	ret_launch->argv = cell__alloc(2, sizeof(char *));
	ret_launch->argv[0] = cell__strdup("program");
	ret_launch->env = cell__alloc(1, sizeof(char *));
	ret_launch->path = cell__strdup("/bin");
	ret_launch->cwd = cell__strdup("/");
	return 0;
}

void handle_listed(void *arg, const struct cell__mcp_failure *failure)
{
	(void)arg;
	n_listed++;
	listed_code = failure ? failure->err.code : 0;
	snprintf(listed_msg, sizeof listed_msg, "%s", failure ? failure->err.msg : "");
	snprintf(listed_tail, sizeof listed_tail, "%s", failure && failure->tail ? failure->tail : "");
}

static void handle_ended(void *arg)
{
	(void)arg;
	n_ended++;
}

static void handle_log(void *arg, const json_t *params)
{
	(void)arg;
	(void)params;
	n_logged++;
}

struct cell__mcp_elicitation *question, *questions[4];
struct cell__mcp_request *question_of;

static void handle_elicit(void *arg, struct cell__mcp_elicitation *elicitation, struct cell__mcp_request *request, const json_t *params)
{
	(void)arg;
	assert_string_equal(json_string_value(json_object_get(params, "message")), "who?");
	memmove(questions + 1, questions, sizeof questions - sizeof *questions);
	questions[0] = question;
	question = elicitation;
	question_of = request;
}

static void handle_closed(void *arg)
{
	(void)arg;
	n_closed++;
}

bool closing;

void close_client(void)
{
	closing = true;
	cell__mcp_client_close(client, handle_closed, NULL);
}

bool is_closed(void)
{
	return n_closed > 0 && n_alive == 0;
}

void begin_with(bool asks)
{
	assert_int_equal(uv_loop_init(&loop.uv), 0);
	n_listed = n_closed = n_ended = n_logged = n_started = n_alive = 0;
	start_error = launch_error = 0;
	closing = false;
	question = NULL;
	struct cell__mcp_client_options opts = {
		.loop = &loop,
		.start_timeout_ms = 20000,
		.launch = handle_launch,
		.listed = handle_listed,
		.ended = handle_ended,
		.log = handle_log,
		.elicit = asks ? handle_elicit : NULL,
	};
	assert_int_equal(cell__mcp_client_create(&opts, &client, NULL), 0);
}

void begin(void)
{
	begin_with(false);
}

void finish(void)
{
	if (!closing)
		close_client();
	assert_true(turn_until(is_closed));
	uv_run(&loop.uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop.uv), 0);
	assert_int_equal(n_closed, 1);
}

void handle_done(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct asked *asked = (struct asked *)request;
	asked->done++;
	if (answer->failure) {
		asked->code = answer->failure->err.code;
		snprintf(asked->text, sizeof asked->text, "%s", answer->failure->err.msg);
	} else {
		const json_t *shown = answer->message->kind == CELL__RPC_RESULT ? answer->message->result : NULL;
		char *text = shown ? json_dumps(shown, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		snprintf(asked->text, sizeof asked->text, "%s", text ? text : answer->message->error_text);
		free(text);
	}
	if (asked->close_then)
		close_client();
}

void handle_progress(struct cell__mcp_request *request, const json_t *params)
{
	(void)params;
	((struct asked *)request)->progress++;
}

void ask(struct asked *asked, int64_t timeout_ms)
{
	*asked = (struct asked){
		.request = { .method = "tools/call",
			     .params = json_pack("{s:s}", "name", "t"),
			     .timeout_ms = timeout_ms,
			     .done = handle_done },
	};
	assert_int_equal(cell__mcp_request_start(client, &asked->request, NULL), 0);
	assert_int_equal(asked->done, 0);
}

void make_ready(void)
{
	cell__mcp_client_list(client);
	greet();
	list_nothing();
	assert_int_equal(n_listed, 1);
	assert_int_equal(listed_code, 0);
}

struct asked late;

bool late_done(void)
{
	return late.done > 0;
}

bool all_dead(void)
{
	return n_alive == 0;
}
