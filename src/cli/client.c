#define _GNU_SOURCE 1
#include "client.h"

#include <stdlib.h>
#include <string.h>

int cell__cli_client_open(const struct cell_cli_client_flags *flags, struct cell_client **ret_client, struct cell_error *err)
{
	struct cell_client_options options = CELL_CLIENT_OPTIONS_INIT;
	const char *url = flags->url ? flags->url : getenv(CELL_CLI_URL_VARIABLE);
	char *token = NULL;
	size_t size;
	int status;

	options.url = url && *url ? url : "http://127.0.0.1:8080";
	options.token = getenv(CELL_CLI_TOKEN_VARIABLE);
	options.ca = flags->ca;
	if (flags->token_file) {
		if (cell__cli_read_file(flags->token_file, &token, &size, err) < 0)
			return -1;
		token[strcspn(token, "\r\n")] = '\0';
		options.token = token;
	}
	status = cell_client_create(&options, ret_client, err);
	if (token)
		explicit_bzero(token, strlen(token));
	free(token);
	return status;
}

int cell__cli_client_ask(struct cell_client *client, const char *method, const char *path, const json_t *body, json_t **ret_answer,
			 struct cell_error *err)
{
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL, *answer = NULL;
	int status = body && !text ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request")
				   : cell_client_ask(client, method, path, text, &answer, err);

	if (!status && ret_answer && answer && !(*ret_answer = json_loads(answer, JSON_ALLOW_NUL, NULL)))
		status = cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not JSON");
	free(text);
	free(answer);
	return status;
}

int cell__cli_client_sessions(struct cell_client *client, json_t **ret_list, struct cell_error *err)
{
	json_t *answer = NULL, *list;

	if (cell__cli_client_ask(client, "GET", "/v1/sessions?all=true", NULL, &answer, err) < 0)
		return -1;
	list = json_object_get(answer, "sessions");
	if (!json_is_array(list)) {
		json_decref(answer);
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not a list of sessions");
	}
	*ret_list = json_incref(list);
	json_decref(answer);
	return 0;
}

int cell__cli_client_find(struct cell_client *client, const char *prefix, char ret_id[static 33], struct cell_error *err)
{
	size_t size = strlen(prefix), i, found = 0;
	json_t *list = NULL, *each;

	if (!size || size > 32 || strspn(prefix, "0123456789abcdef") != size)
		return cell_fail(err, CELL_E_INVALID, 0, "'%.40s' is not the beginning of a session's id", prefix);
	if (cell__cli_client_sessions(client, &list, err) < 0)
		return -1;
	json_array_foreach(list, i, each) {
		const char *id = cell__cli_text(each, "session_id");

		if (strncmp(id, prefix, size) || strlen(id) != 32)
			continue;
		memcpy(ret_id, id, 33);
		found++;
	}
	json_decref(list);
	if (!found)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "no session begins with %s; `workcell ps` lists them", prefix);
	if (found > 1)
		return cell_fail(err, CELL_E_INVALID, 0, "%zu sessions begin with %s; give more of the id", found, prefix);
	return 0;
}
