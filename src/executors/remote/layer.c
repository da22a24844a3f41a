/* The layer of a session of a server: the server is asked for its changes, and told to commit or discard them. */
#include "executors/remote/kernel.h"

#include "wire/json_check.h"

/* NULL: err has the reason. */
static json_t *read_answer(struct cell__remote_exchange *exchange, CURLcode code, long status, struct cell_error *err)
{
	const struct cell__buf *text = &exchange->answer;
	bool weighs = text->size && cell__json_weigh(text->data, text->size) > CELL_LIMIT_TREE_BYTES;
	json_t *answer = code == CURLE_OK && status == 200 && text->size && !weighs ? json_loadb(text->data, text->size, 0, NULL) : NULL;
	json_t *files = json_object_get(answer, "files"), *file;
	size_t i;

	if (code == CURLE_OK && status == 204 && exchange->verb == CELL__FILES_DISCARD)
		return json_object();
	if (json_is_object(answer)) {
		json_array_foreach(files, i, file)
			if (!exchange->with_text)
				json_object_del(file, "diff");
		return answer;
	}
	json_decref(answer);
	if (weighs)
		cell_fail(err, CELL_E_LIMIT, 0, "the changes of the layer would take too much memory: commit some of them by name");
	else
		cell__remote_describe(exchange->kernel, exchange, code, status, err);
	return NULL;
}

static void handle_filed(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell_error err = { 0 };
	json_t *answer = read_answer(exchange, code, status, &err);

	exchange->filed(exchange->filed_arg, answer, answer ? NULL : &err);
	json_decref(answer);
}

static char *commit_body(const char *const *paths, bool force)
{
	json_t *body = json_pack("{s:b}", "force", force), *list = paths && *paths ? json_array() : NULL;
	char *text;

	for (; list && *paths; paths++)
		if (json_array_append_new(list, json_string(*paths)) < 0) {
			json_decref(list);
			json_decref(body);
			return NULL;
		}
	if (list)
		json_object_set_new(body, "paths", list);
	text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	json_decref(body);
	return text;
}

int cell__remote_files(struct cell__kernel *base, enum cell__files_verb verb, const char *const *paths, bool flag, cell__files_done done,
		       void *arg, struct cell_error *err)
{
	static const char *const names[] = { "diff", "commit", "discard" };
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;
	struct cell__remote_exchange *exchange;
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	char *body = verb == CELL__FILES_COMMIT ? commit_body(paths, flag) : NULL;

	if (verb == CELL__FILES_COMMIT && !body)
		return cell_fail(err, CELL_E_INVALID, 0, "the paths to commit are not valid UTF-8, or out of memory");
	if (!*kernel->session || kernel->state == CELL_REMOTE_CLOSING) {
		free(body);
		return cell_fail(err, CELL_E_KERNEL, 0, "the session of the server has ended");
	}
	if (cell__buf_printf(&path, "/v1/sessions/%s/files/%s", kernel->session, names[verb]) < 0) {
		free(body);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request to the server");
	}
	exchange = cell__remote_begin(kernel, verb == CELL__FILES_DIFF ? "GET" : "POST", path.data, body, NULL, false, handle_filed);
	if (!exchange)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request to the server");
	exchange->repeats = true;
	exchange->filed = done;
	exchange->filed_arg = arg;
	exchange->verb = verb;
	exchange->with_text = flag;
	return 0;
}
