/*
 * The tool `files`: files of a session's workspace, small ones.  A client has the rights of its code there (docs/files.md); large files are for
 * code.  Each call has a thread of its own, and does not wait for the cells of the session.
 */
#define _GNU_SOURCE
#include "mcp/server/server.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/files.h"
#include "session/session.h"

static int fail_with(struct cell__buf *message, const struct cell_error *err)
{
	cell__buf_printf(message, "%s: %s", cell_code_word(err->code), err->msg);
	return -1;
}

static int answer(struct cell__mcp_answer_out *out, json_t *structured, const char *text, size_t size)
{
	out->structured = structured;
	out->content = json_pack("[{s:s, s:s%}]", "type", "text", "text", text, size);
	return out->structured && out->content ? 0 : -1;
}

static int list(struct cell_session *session, const char *path, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_error err;
	CELL_AUTO_FREE char *text = cell_session_file_describe(session, path, &err);
	json_t *found;

	if (!text)
		return fail_with(message, &err);
	found = json_loads(text, 0, NULL);
	return answer(out, found, text, strlen(text));
}

static int read_file(struct cell_session *session, const char *path, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_file_options options = CELL_FILE_OPTIONS_INIT;
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, shown = CELL_BUF_INIT;
	CELL_AUTO_FD int fd = memfd_create("workcell-file", MFD_CLOEXEC);
	struct cell_error err;
	bool is_text;

	options.max_bytes = CELL_MCP_MAX_FILE_BYTES + 1;
	if (fd < 0 || cell_session_file_get(session, path, &options, fd, NULL, &err) < 0) {
		if (fd < 0)
			cell_fail(&err, CELL_E_IO, errno, "make a file in memory");
		return fail_with(message, &err);
	}
	if (lseek(fd, 0, SEEK_SET) < 0 || cell__fd_read_all(fd, CELL_MCP_MAX_FILE_BYTES, &bytes) < 0) {
		cell__buf_add_str(message, "limit: the file is too large for one call; read it in code");
		return -1;
	}
	is_text = cell__utf8_ok(bytes.size ? bytes.data : "", bytes.size);
	if (!is_text && cell__buf_add_base64(&shown, bytes.data, bytes.size) < 0) {
		cell__buf_add_str(message, "out of memory");
		return -1;
	}
	const struct cell__buf *data = is_text ? &bytes : &shown;

	return answer(out, json_pack("{s:s%, s:b}", "data", data->size ? data->data : "", data->size, "base64", !is_text),
		      data->size ? data->data : "", data->size);
}

static int write_file(struct cell_session *session, const struct cell__principal *principal, const char *path, const json_t *args,
		      struct cell__buf *message)
{
	const json_t *data = json_object_get(args, "data");
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	CELL_AUTO_FD int fd = memfd_create("workcell-file", MFD_CLOEXEC);
	struct cell_error err;
	int rc;

	if (!data) {
		cell__buf_add_str(message, "invalid: argument 'data' is missing");
		return -1;
	}
	rc = json_is_true(json_object_get(args, "base64"))
		     ? cell__buf_add_unbase64(&bytes, json_string_value(data), json_string_length(data))
		     : cell__buf_add(&bytes, json_string_value(data), json_string_length(data));
	if (rc < 0) {
		cell__buf_add_str(message, "invalid: argument 'data' is not base64");
		return -1;
	}
	if (bytes.size > CELL_MCP_MAX_FILE_BYTES) {
		cell__buf_add_str(message, "limit: this is too large for one call; write it in code");
		return -1;
	}
	if (fd < 0 || cell__fd_write_all(fd, bytes.size ? bytes.data : "", bytes.size) < 0 || lseek(fd, 0, SEEK_SET) < 0) {
		cell_fail(&err, CELL_E_IO, errno, "make a file in memory");
		return fail_with(message, &err);
	}
	return cell__file_put_as(session, principal, path, NULL, fd, NULL, &err) < 0 ? fail_with(message, &err) : 0;
}

int cell__mcp_files(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const char *op = json_string_value(json_object_get(args, "op")), *path = json_string_value(json_object_get(args, "path"));
	struct cell__principal principal;
	struct cell_error err;
	struct cell_session *session = cell__mcp_handle_session(job->handle, &err);

	if (!session)
		return fail_with(message, &err);
	if (!strcmp(op, "list"))
		return list(session, path, out, message);
	if (!strcmp(op, "read"))
		return read_file(session, path, out, message);
	cell__principal_init(&principal, CELL__PRINCIPAL_MCP, cell__executor_is_trusted(session->executor), &session->options.limits,
			     job->client);
	if (!strcmp(op, "write")) {
		if (write_file(session, &principal, path, args, message) < 0)
			return -1;
	} else if (cell__file_remove_as(session, &principal, path, 0, &err) < 0) {
		return fail_with(message, &err);
	}
	return answer(out, json_pack("{s:s}", "result", "done"), "Done.", 5);
}
