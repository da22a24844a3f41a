/*
 * /files: contents of files, and the work on files that all requests share.
 *
 * A body of bytes is streamed to its file (server/files.c).  A form has several files and is read as a whole; libmicrohttpd parses it.
 */
#include "server/e2b/e2b.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "files/files.h"

#define MAX_PARTS 256u /* files of one form */
#define FORM_BUFFER 4096u

/* ---- work ---- */

struct cell__e2b_work *cell__e2b_work_create(struct cell__request *request)
{
	struct cell__e2b_work *work = cell__alloc(1, sizeof(*work));

	if (!work) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the files");
		return NULL;
	}
	work->work.data = work;
	work->request = request;
	work->root.fd = -1;
	return work;
}

void cell__e2b_work_free(struct cell__e2b_work *work)
{
	json_decref(work->answer);
	if (work->drop)
		work->drop(work->data);
	free(work);
}

void cell__e2b_record(const struct cell__e2b_work *work, const char *verb, const char *path, int64_t bytes, const struct cell_error *err)
{
	struct cell__principal principal = cell__request_principal(work->request);
	struct cell__file_change change = {
		.witness = &work->root.witness,
		.principal = &principal,
		.verb = verb,
		.path = path,
		.in_tmp = work->area == CELL_E2B_IN_TMP,
		.bytes = bytes,
		.err = err,
	};

	cell__session_record_on_loop(work->request->server->engine, &change);
}

static void do_step(uv_work_t *uv)
{
	struct cell__e2b_work *work = uv->data;

	work->step(work);
	close(work->root.fd);
}

static void handle_done(uv_work_t *uv, int status)
{
	struct cell__e2b_work *work = uv->data;
	struct cell__request *request = work->request;

	(void)status; /* never cancelled */
	if (work->writes && work->changed)
		work->changed(work);
	else if (work->writes)
		cell__e2b_record(work, work->verb, work->path, -1, work->err.code ? &work->err : NULL);
	if (work->writes && request->served->session)
		cell__session_written_on_loop(request->served->session);
	if (!work->err.code && work->again && work->again(work)) {
		cell__e2b_work_start(work);
		return;
	}
	if (work->err.code)
		cell__answer_error(request, &work->err);
	else if (work->then)
		work->then(work);
	else
		cell__answer_json(request, MHD_HTTP_OK, json_incref(work->answer));
	cell__e2b_work_free(work);
}

static void handle_root(void *arg, const struct cell__root *root, const struct cell_error *err)
{
	struct cell__e2b_work *work = arg;
	struct cell_server *server = work->request->server;

	if (!root) {
		cell__answer_error(work->request, err);
		cell__e2b_work_free(work);
		return;
	}
	work->root = *root;
	uv_queue_work(cell__loop_uv(server->engine->loop), &work->work, do_step, handle_done);
}

void cell__e2b_work_start(struct cell__e2b_work *work)
{
	struct cell__request *request = work->request;
	struct cell_error err;

	if (!request->served->session) {
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "The sandbox was not found");
		cell__e2b_work_free(work);
	} else if (cell__e2b_open_area(request->served->session, work->area, work->writes, handle_root, work, &err) < 0) {
		cell__answer_error(request, &err);
		cell__e2b_work_free(work);
	}
}

/* ---- metadata ---- */

struct marks {
	json_t *found;
	bool failed;
};

/* X-Metadata-KEY: VALUE, to {"user.e2b.key": "VALUE"}. */
static enum MHD_Result take_mark(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	static const char header[] = "X-Metadata-";
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;
	struct marks *marks = arg;

	(void)kind;
	if (strncasecmp(name, header, strlen(header)) != 0)
		return MHD_YES;
	if (!name[strlen(header)] || cell__buf_printf(&full, CELL_E2B_MARKS "%s", name + strlen(header)) < 0)
		return marks->failed = true, MHD_NO;
	for (char *at = full.data; *at; at++)
		*at = *at >= 'A' && *at <= 'Z' ? (char)(*at - 'A' + 'a') : *at;
	/* It refuses what is not UTF-8. */
	marks->failed |= json_object_set_new(marks->found, full.data, json_string(value ? value : "")) < 0;
	return marks->failed ? MHD_NO : MHD_YES;
}

/* *ret_marks: the metadata that the request gives, to be kept with its file; NULL: none.  False: it was answered. */
static bool take_marks(struct cell__request *request, json_t **ret_marks)
{
	struct marks marks = { .found = json_object() };

	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, take_mark, &marks);
	if (marks.failed || json_object_size(marks.found) > CELL_E2B_MAX_MARKS) {
		json_decref(marks.found);
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "metadata: at most %u headers X-Metadata-KEY, with keys that are not empty and values in UTF-8",
				  CELL_E2B_MAX_MARKS);
		return false;
	}
	*ret_marks = json_object_size(marks.found) ? marks.found : NULL;
	if (!*ret_marks)
		json_decref(marks.found);
	return true;
}

/* As the client gave them; NULL: none. */
static json_t *keys_of(const json_t *marks)
{
	json_t *keys = json_object_size(marks) ? json_object() : NULL, *value;
	const char *name;

	json_object_foreach((json_t *)marks, name, value)
		json_object_set(keys, name + strlen(CELL_E2B_MARKS), value);
	return keys;
}

/* ---- one file ---- */

/* The path in the query; false: it was answered. */
static bool take_path(struct cell__request *request, struct cell__e2b_place *ret_place)
{
	const struct cell__e2b_sandbox *sandbox = cell__e2b_enter(request);
	CELL_AUTO_FREE char *given = sandbox ? cell__e2b_query(request, "path") : NULL;
	struct cell_error err;

	if (!sandbox)
		return false;
	if (!given)
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "path is missing");
	else if (cell__e2b_path(sandbox, given, ret_place, &err) < 0)
		cell__answer_error(request, &err);
	else
		return true;
	return false;
}

static void begin(struct cell__request *request, enum cell__file_verb verb, const struct cell__e2b_place *place,
		  void (*then)(struct cell__request *request, json_t *found))
{
	request->in_tmp = place->area == CELL_E2B_IN_TMP;
	cell__file_begin(request, verb, place->path, 0, false, then);
}

static void answer_folder(struct cell__request *request, json_t *found)
{
	(void)found;
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the path is a directory");
}

void cell__e2b_handle_file_get(struct cell__request *request)
{
	struct cell__e2b_place place;

	if (take_path(request, &place))
		begin(request, CELL_FILE_GET, &place, answer_folder);
}

/* marks: of the request, or NULL. */
static json_t *written(enum cell__e2b_area area, const char *path, const json_t *marks)
{
	const char *slash = strrchr(path, '/');
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;

	if (cell__buf_printf(&full, "%s/%s", cell__e2b_area_name(area), path) < 0)
		return NULL;
	return json_pack("{s:s,s:s,s:s,s:o*}", "name", slash ? slash + 1 : path, "type", "file", "path", full.data, "metadata",
			 keys_of(marks));
}

static void answer_put(struct cell__request *request, json_t *found)
{
	(void)found;
	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("[o]", written(request->in_tmp ? CELL_E2B_IN_TMP : CELL_E2B_IN_HOME,
						   json_string_value(json_object_get(request->kept, "path")), request->marks)));
}

/* A form is not compressed.  False: it was answered. */
static bool check_upload(struct cell__request *request, bool is_form)
{
	const char *encoding = cell__request_header(request, "Content-Encoding");

	if (!encoding || !strcasecmp(encoding, "identity"))
		return true;
	request->unzips = !strcasecmp(encoding, "gzip") && !is_form;
	if (request->unzips)
		return true;
	cell__answer_fail(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, CELL_E_UNSUPPORTED, "Content-Encoding %.20s is not supported%s",
			  encoding, is_form ? " with a form: send the bytes of one file" : ": gzip is");
	return false;
}

void cell__e2b_handle_file_post(struct cell__request *request)
{
	struct cell__e2b_place place;
	json_t *marks = NULL;

	if (!check_upload(request, false) || !take_path(request, &place) || !take_marks(request, &marks))
		return;
	request->kept = json_pack("{s:s,s:o*}", "path", place.path, "marks", marks);
	request->marks = json_object_get(request->kept, "marks");
	if (!request->kept)
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the path is not UTF-8");
	else
		begin(request, CELL_FILE_PUT, &place, answer_put);
}

/* ---- forms ---- */

struct part {
	char *path; /* as given */
	struct cell__e2b_place place;
	struct cell__buf bytes;
	bool tried, recorded;
	json_t *written; /* as it is described; NULL: it is not */
};

struct form {
	struct part *parts;
	size_t n;
	json_t *marks; /* of each file; or NULL */
	bool failed;
};

static void form_free(void *arg)
{
	struct form *form = arg;

	for (size_t i = 0; i < form->n; i++) {
		free(form->parts[i].path);
		cell__buf_finish(&form->parts[i].bytes);
		json_decref(form->parts[i].written);
	}
	free(form->parts);
	json_decref(form->marks);
	free(form);
}

static enum MHD_Result take_part(void *arg, enum MHD_ValueKind kind, const char *key, const char *filename, const char *type,
				 const char *encoding, const char *data, uint64_t offset, size_t size)
{
	struct form *form = arg;
	struct part *part;

	(void)kind;
	(void)key;
	(void)type;
	(void)encoding;
	if (!filename)
		return MHD_YES;
	if (offset == 0) {
		struct part *more = form->n < MAX_PARTS ? realloc(form->parts, (form->n + 1) * sizeof(*more)) : NULL;

		if (!more)
			return form->failed = true, MHD_NO;
		form->parts = more;
		form->parts[form->n] = (struct part){ .bytes = CELL_BUF_INIT, .path = cell__strdup(filename) };
		if (!form->parts[form->n++].path)
			return form->failed = true, MHD_NO;
	}
	part = form->n ? &form->parts[form->n - 1] : NULL;
	if (!part || cell__buf_add(&part->bytes, data, size) < 0)
		return form->failed = true, MHD_NO;
	return MHD_YES;
}

static void write_part(struct cell__e2b_work *work, const json_t *marks, struct part *part)
{
	struct cell__file_transfer *transfer = NULL;
	struct cell__root root = { .fd = dup(work->root.fd), .max_bytes = work->root.max_bytes, .guarded = work->root.guarded };

	part->tried = true;
	if (cell__file_transfer_open(CELL_TRANSFER_PUT, &root, part->place.path, 0, &transfer, &work->err) < 0)
		return;
	if ((!marks || cell__file_transfer_mark(transfer, marks, &work->err) == 0) &&
	    (!part->bytes.size || cell__file_transfer_write(transfer, part->bytes.data, part->bytes.size, &work->err) == 0) &&
	    cell__file_transfer_end(transfer, &work->err) == 0)
		part->written = written(part->place.area, part->place.path, marks);
	cell__file_transfer_destroy(transfer);
}

/* Those of the area that is open; none after one that fails. */
static void write_parts(struct cell__e2b_work *work)
{
	struct form *form = work->data;

	for (size_t i = 0; i < form->n && !work->err.code; i++) {
		if (form->parts[i].place.area == work->area)
			write_part(work, form->marks, &form->parts[i]);
	}
}

/* Also the one that failed. */
static void record_parts(struct cell__e2b_work *work)
{
	struct form *form = work->data;
	struct cell_error over;

	for (size_t i = 0; i < form->n; i++) {
		struct part *part = &form->parts[i];
		int64_t bytes = (int64_t)part->bytes.size;

		if (!part->tried || part->recorded)
			continue;
		part->recorded = true;
		cell__e2b_record(work, "put", part->place.path, bytes, part->written ? NULL : &work->err);
		/* Too much: the next upload is refused. */
		if (part->written)
			(void)cell__account_stored(work->request->server, work->request->served->account, bytes, &over);
	}
}

/* Goes on with the other area, if files are for it too; else makes the answer. */
static bool go_on(struct cell__e2b_work *work)
{
	struct form *form = work->data;

	for (size_t i = 0; i < form->n; i++) {
		if (form->parts[i].tried)
			continue;
		work->area = form->parts[i].place.area;
		return true;
	}
	work->answer = json_array();
	for (size_t i = 0; i < form->n; i++)
		json_array_append(work->answer, form->parts[i].written);
	return false;
}

/* NULL: it was answered. */
static struct form *read_form(struct cell__request *request)
{
	struct form *form = cell__alloc(1, sizeof(*form));
	struct MHD_PostProcessor *processor = form ? MHD_create_post_processor(request->connection, FORM_BUFFER, take_part, form) : NULL;
	bool is_read = processor && MHD_post_process(processor, request->body.data, request->body.size) == MHD_YES;

	if (processor)
		is_read = MHD_destroy_post_processor(processor) == MHD_YES && is_read;
	if (is_read && !form->failed && form->n)
		return form;
	if (form)
		form_free(form);
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the body is not a form with 1 to %u files", MAX_PARTS);
	return NULL;
}

void cell__e2b_handle_file_form(struct cell__request *request)
{
	const struct cell__e2b_sandbox *sandbox = check_upload(request, true) ? cell__e2b_enter(request) : NULL;
	struct form *form = sandbox ? read_form(request) : NULL;
	struct cell__e2b_work *work = form ? cell__e2b_work_create(request) : NULL;
	CELL_AUTO_FREE char *given = cell__e2b_query(request, "path");

	if (!work) {
		if (form)
			form_free(form);
		return;
	}
	work->data = form;
	work->drop = form_free;
	if (!take_marks(request, &form->marks)) {
		cell__e2b_work_free(work);
		return;
	}
	work->step = write_parts;
	work->changed = record_parts;
	work->again = go_on;
	work->writes = true;
	if (!cell__account_may_store(request, request->served->account)) {
		cell__e2b_work_free(work);
		return;
	}
	for (size_t i = 0; i < form->n; i++) {
		if (cell__e2b_path(sandbox, given && form->n == 1 ? given : form->parts[i].path, &form->parts[i].place, &work->err) < 0) {
			cell__answer_error(request, &work->err);
			cell__e2b_work_free(work);
			return;
		}
	}
	work->area = form->parts[0].place.area;
	cell__e2b_work_start(work);
}
