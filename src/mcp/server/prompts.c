/*
 * Prompts: those that the program offers, and the storage's workflows that have a docstring.  A workflow's prompt asks the model to run it, with
 * the arguments that the user chose.  Also completions of the arguments of prompts and templates.
 */
#include "mcp/server/server.h"

#include <string.h>

#include "mcp/server/uri.h"
#include "storage/pysource.h"

#define MAX_VALUES 100u /* of a completion, as the protocol says */

static int fail(struct cell__mcp_answer_out *out, struct cell__buf *message, const char *words)
{
	out->code = CELL_RPC_INVALID_PARAMS;
	cell__buf_shift(message, message->size);
	cell__buf_add_str(message, words);
	return -1;
}

/* ---- workflows ---- */

/* NULL: there is no such workflow, or it has no docstring.  Finish *ret_source otherwise; the text is part of it. */
static const char *scan(const json_t *workflow, struct cell__py_source *ret_source)
{
	const json_t *source = json_object_get(workflow, "source");
	const char *words;

	if (!json_is_string(source) || cell__py_scan(json_string_value(source), json_string_length(source), ret_source, NULL) < 0)
		return NULL;
	words = ret_source->run_docstring && *ret_source->run_docstring ? ret_source->run_docstring : ret_source->docstring;
	if (words && *words)
		return words;
	cell__py_source_finish(ret_source);
	return NULL;
}

static json_t *get_workflow(struct cell__mcp_job *job, const char *name, struct cell__buf *message)
{
	json_t *found = NULL;

	if (cell__mcp_space_call(job, cell__operations[CELL__OP_WORKFLOWS_GET].method, json_pack("{s:s}", "name", name), &found, NULL,
				 message) < 0)
		return NULL;
	return found;
}

static json_t *prompt_of(const char *name, const struct cell__py_source *source, const char *words)
{
	json_t *arguments = json_array();
	size_t first = strcspn(words, "\n");

	for (size_t i = 0; i < source->n_params; i++)
		json_array_append_new(arguments,
				      json_pack("{s:s, s:b}", "name", source->params[i].name, "required", source->params[i].required));
	return json_pack("{s:s, s:s#, s:o}", "name", name, "description", words, (int)first, "arguments", arguments);
}

/* Adds the workflows that are prompts, but for those of names that the program uses itself. */
static int add_workflows(struct cell__mcp_job *job, json_t *list, struct cell__buf *message)
{
	json_t *all = NULL;
	const json_t *each;
	size_t i;

	if (cell__mcp_space_call(job, cell__operations[CELL__OP_WORKFLOWS_LIST].method, json_object(), &all, NULL, message) < 0)
		return -1;
	json_array_foreach(all, i, each) {
		const char *name = json_string_value(json_object_get(each, "name"));
		json_t *workflow = name && json_array_size(list) < CELL_MCP_MAX_PROMPTS ? get_workflow(job, name, message) : NULL;
		struct cell__py_source source = { 0 };
		const char *words = scan(workflow, &source);

		if (words) {
			json_array_append_new(list, prompt_of(name, &source, words));
			cell__py_source_finish(&source);
		}
		json_decref(workflow);
	}
	json_decref(all);
	return 0;
}

int cell__mcp_prompts_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	json_t *list = json_array();

	(void)args;
	out->code = CELL_RPC_INTERNAL_ERROR;
	pthread_mutex_lock(&server->lock);
	cell__mcp_offers_add(server, CELL__MCP_OFFERS_PROMPT, false, job->handle->owner, job->scopes, list);
	pthread_mutex_unlock(&server->lock);
	if (server->opts.storage && add_workflows(job, list, message) < 0) {
		json_decref(list);
		return -1;
	}
	return cell__mcp_page(job, "prompts", list, out, message);
}

/* ---- getting one ---- */

/* The value as Python: a number or truth value where the parameter is one, else a string. */
static int add_value(struct cell__buf *code, const struct cell__py_param *param, const json_t *value)
{
	json_t *read = json_loadb(json_string_value(value), json_string_length(value), JSON_DECODE_ANY, NULL);
	bool number = (!strcmp(param->type, "integer") && json_is_integer(read)) ||
		      (!strcmp(param->type, "number") && json_is_number(read));
	CELL_AUTO_FREE char *text = json_dumps(number ? read : value, JSON_ENCODE_ANY);

	json_decref(read);
	return text ? cell__buf_add_str(code, text) : -1;
}

/* NULL, or why the arguments cannot be used. */
static const char *add_call(struct cell__buf *code, const char *name, const struct cell__py_source *source, const json_t *args)
{
	size_t used = 0;
	int status = cell__buf_printf(code, "workflows.%s(", name);

	for (size_t i = 0; i < source->n_params; i++) {
		const struct cell__py_param *param = &source->params[i];
		const json_t *value = json_object_get(args, param->name);

		if (!value && param->required)
			return "a required argument of the prompt is missing";
		if (!value)
			continue;
		status |= cell__buf_printf(code, "%s%s=", used++ ? ", " : "", param->name);
		status |= add_value(code, param, value);
	}
	status |= cell__buf_add_str(code, ")");
	if (used < json_object_size(args))
		return "the prompt has no such argument";
	return status ? "out of memory" : NULL;
}

static int get_from_workflow(struct cell__mcp_job *job, const char *name, const json_t *args, struct cell__mcp_answer_out *out,
			     struct cell__buf *message)
{
	json_t *workflow = get_workflow(job, name, message);
	struct cell__py_source source = { 0 };
	const char *words = scan(workflow, &source), *wrong;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, code = CELL_BUF_INIT;

	json_decref(workflow);
	if (!words)
		return fail(out, message, "unknown prompt");
	wrong = add_call(&code, name, &source, args);
	if (!wrong && cell__buf_printf(&text, "Run this with run_code and tell me the result%s:\n\n    %s%s\n\n%s",
				       source.is_async ? " (it is async)" : "", source.is_async ? "await " : "", code.data, words) < 0)
		wrong = "out of memory";
	if (!wrong)
		out->whole = json_pack("{s:s#, s:[{s:s, s:{s:s, s:o}}]}", "description", words, (int)strcspn(words, "\n"), "messages",
				       "role", "user", "content", "type", "text", "text", json_stringn(text.data, text.size));
	cell__py_source_finish(&source);
	return wrong ? fail(out, message, wrong) : out->whole ? 0 : -1;
}

/* NULL, or what is wrong. */
static const char *check_strings(const json_t *args)
{
	const char *key;
	json_t *value;

	if (args && !json_is_object(args))
		return "arguments must be an object";
	json_object_foreach((json_t *)args, key, value) {
		if (!json_is_string(value))
			return "arguments of a prompt must be strings";
	}
	return NULL;
}

static const char *check_required(const struct cell__mcp_offer *offer, const json_t *args)
{
	const json_t *each;
	size_t i;

	json_array_foreach(json_object_get(offer->entry, "arguments"), i, each) {
		if (json_is_true(json_object_get(each, "required")) &&
		    !json_object_get(args, json_string_value(json_object_get(each, "name"))))
			return "a required argument of the prompt is missing";
	}
	return NULL;
}

/* With a reference, which release() drops. */
static struct cell__mcp_offer *find(struct cell__mcp_job *job, enum cell__mcp_offer_kind kind, const char *name)
{
	struct cell_mcp_server *server = job->handle->server;
	struct cell__mcp_offer *offer;

	pthread_mutex_lock(&server->lock);
	offer = cell__mcp_offer_find(server, kind, name, job->handle->owner, job->scopes);
	if (offer)
		offer->refs++;
	pthread_mutex_unlock(&server->lock);
	return offer;
}

static void release(struct cell__mcp_job *job, struct cell__mcp_offer *offer)
{
	pthread_mutex_lock(&job->handle->server->lock);
	cell__mcp_offer_unref(offer);
	pthread_mutex_unlock(&job->handle->server->lock);
}

int cell__mcp_prompts_get(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const char *name = json_string_value(json_object_get(args, "name")), *wrong;
	const json_t *given = json_object_get(args, "arguments");
	json_t *none = json_object();
	struct cell__mcp_offer *offer = name ? find(job, CELL__MCP_OFFERS_PROMPT, name) : NULL;
	struct cell_error err;
	int status;

	out->code = CELL_RPC_INTERNAL_ERROR;
	wrong = name ? check_strings(given) : "params.name must be a string";
	if (!wrong && offer)
		wrong = check_required(offer, given);
	if (wrong)
		status = fail(out, message, wrong);
	else if (offer && cell__mcp_offer_ask(job, offer, false, name, given ? given : none, &out->whole, &err) < 0)
		status = cell__mcp_fail_offer(out, message, &err);
	else if (offer)
		status = 0;
	else if (!job->handle->server->opts.storage)
		status = fail(out, message, "unknown prompt");
	else
		status = get_from_workflow(job, name, given, out, message);
	release(job, offer);
	json_decref(none);
	return status;
}

/* ---- completions ---- */

/* Names that begin with the text so far. */
static int complete_names(struct cell__mcp_job *job, enum cell__op op, const char *so_far, struct cell__mcp_answer_out *out,
			  struct cell__buf *message)
{
	json_t *all = NULL, *values = json_array();
	const json_t *each;
	size_t i, total = 0;

	if (cell__mcp_space_call(job, cell__operations[op].method, json_object(), &all, NULL, message) < 0) {
		json_decref(values);
		return -1;
	}
	json_array_foreach(all, i, each) {
		const char *name = json_string_value(json_object_get(each, "name"));

		if (!name || strncmp(name, so_far, strlen(so_far)))
			continue;
		if (total++ < MAX_VALUES)
			json_array_append_new(values, json_string(name));
	}
	json_decref(all);
	out->whole = json_pack("{s:{s:o, s:i, s:b}}", "completion", "values", values, "total", (int)total, "hasMore", total > MAX_VALUES);
	return out->whole ? 0 : -1;
}

static int complete_offered(struct cell__mcp_job *job, struct cell__mcp_offer *offer, const char *name, const char *so_far,
			    const json_t *context, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	json_t *args = json_pack("{s:s, s:s}", "argument", name, "value", so_far), *result = NULL, *values;
	struct cell_error err;
	int status = 0;

	if (args && json_is_object(json_object_get(context, "arguments")))
		json_object_set(args, "arguments", json_object_get(context, "arguments"));
	if (!offer->complete)
		result = json_pack("{s:[]}", "values");
	else
		status = cell__mcp_offer_ask(job, offer, true, offer->name, args, &result, &err);
	json_decref(args);
	if (status < 0)
		return cell__mcp_fail_offer(out, message, &err);
	values = json_object_get(result, "values");
	while (json_array_size(values) > MAX_VALUES)
		json_array_remove(values, json_array_size(values) - 1);
	out->whole = json_pack("{s:{s:O}}", "completion", "values", values);
	json_decref(result);
	return out->whole ? 0 : -1;
}

int cell__mcp_complete(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const json_t *ref = json_object_get(args, "ref"), *argument = json_object_get(args, "argument");
	const char *type = json_string_value(json_object_get(ref, "type")), *name = json_string_value(json_object_get(argument, "name"));
	const char *so_far = json_string_value(json_object_get(argument, "value"));
	bool prompt = type && !strcmp(type, "ref/prompt");
	const char *what = json_string_value(json_object_get(ref, prompt ? "name" : "uri"));
	struct cell__mcp_offer *offer;
	int status;

	out->code = CELL_RPC_INTERNAL_ERROR;
	if (!type || (!prompt && strcmp(type, "ref/resource")) || !what || !name || !so_far)
		return fail(out, message, "completion/complete needs ref (a prompt's name or a template's uri) and argument {name, value}");
	offer = find(job, prompt ? CELL__MCP_OFFERS_PROMPT : CELL__MCP_OFFERS_RESOURCE, what);
	if (offer)
		status = complete_offered(job, offer, name, so_far, json_object_get(args, "context"), out, message);
	else if (job->handle->server->opts.storage && !strcmp(what, CELL_MCP_ARTIFACTS "{+name}"))
		status = complete_names(job, CELL__OP_ARTIFACTS_LIST, so_far, out, message);
	else if (job->handle->server->opts.storage && !strcmp(what, CELL_MCP_WORKFLOWS "{name}"))
		status = complete_names(job, CELL__OP_WORKFLOWS_LIST, so_far, out, message);
	else if (prompt && job->handle->server->opts.storage)
		out->whole = json_pack("{s:{s:[]}}", "completion", "values"), status = 0;
	else
		status = fail(out, message, prompt ? "unknown prompt" : "unknown template");
	release(job, offer);
	return status;
}
