/*
 * The files of a session, for its client: GET, PUT and DELETE below /v1/sessions/S/files.
 *
 *     a request ──▶ the workspace (session/files.c) ──▶ the pool: one step ──▶ the answer
 *                                                                    │
 *                          an upload: a block of the body, again ◀───┤
 *                          a download: a block of the answer, again ◀┘
 *
 * A step reads or writes at most a block, so a transfer of any size takes the memory of one.  While the pool works for a request, its
 * connection is suspended: the request, and the response that reads from a download, stay until the step is done.
 *
 * A sandbox's /tmp is memory, which an open file of it would keep when the sandbox has ended, as long as a client takes to read it.  So such
 * transfers end with the kernel.
 *
 * Where another server has the workspace (executors "remote" and "container") a step waits for that server.  Such a step has a thread of its
 * own, so that a slow server does not keep the pool from everybody else.
 */
#include "server/api.h"
#include "server/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "files/files.h"
#include "server/gunzip.h"

#define BLOCK_BYTES (256u * 1024u)
#define SENT_BYTES (32u * 1024u) /* that libmicrohttpd asks for at once */
#define UNZIPPED_BYTES (32u * 1024u) /* of a compressed upload at once, ... */
#define STEP_BYTES (4u * 1024u * 1024u) /* ... and in one step */

/* One operation on files; request->files is the same while the request lives. */
struct cell__file_work {
	uv_work_t work;
	/* a step on a thread of its own */
	struct cell__task task;
	uv_work_cb step;
	uv_after_work_cb stepped;
	bool is_there;         /* another server has the workspace */
	atomic_bool cancelled; /* the server stops */
	struct cell__file_work *next;
	struct cell__request *request;
	struct cell_server *server;
	struct cell__account *account;
	enum cell__file_verb verb;
	char path[PATH_MAX];
	unsigned mode;
	bool recursive, in_tmp;
	int64_t kernel_pid; /* in_tmp: whose /tmp it is */
	struct cell__root root;
	struct cell__file_witness witness;
	struct cell__principal principal;
	bool recorded; /* in the audit log, or there is nothing to record */
	struct cell__file_transfer *transfer;
	json_t *answer;
	struct cell_error err;
	bool busy; /* the pool's, or about to be */
	void (*then)(struct cell__request *request, json_t *found); /* NULL: /v1's answers */
	bool gone; /* the request or its response is freed: to be destroyed when the pool is done */
	struct cell__gunzip *gunzip; /* of an upload that is compressed; or NULL */
	/* a block of the transfer */
	char *block;
	size_t used, at;
	size_t moved;   /* bytes of an upload that the last step wrote */
	bool is_more;   /* the block becomes more bytes than it could write */
	int64_t stored; /* and all of them */
	bool ended;
};

/* ---- ends ---- */

static void do_destroy(uv_work_t *work)
{
	struct cell__file_work *files = work->data;

	cell__file_transfer_destroy(files->transfer);
	cell__gunzip_destroy(files->gunzip);
}

static void handle_destroyed(uv_work_t *work, int status)
{
	struct cell__file_work *files = work->data;

	(void)status;
	free(files->block);
	free(files);
}

void cell__files_cancel(struct cell_server *server)
{
	for (struct cell__file_work *files = server->transfers; files; files = files->next)
		atomic_store(&files->cancelled, true);
}

static const char *word_of(enum cell__file_verb verb)
{
	return verb == CELL_FILE_PUT ? "put" : verb == CELL_FILE_UNPACK ? "unpack" : verb == CELL_FILE_FOLDER ? "make_folder" : "remove";
}

/* Changes of files have a record in the audit log: once, when they are made, or as far as they were. */
static void record(struct cell__file_work *files, const struct cell_error *err)
{
	struct cell__file_change change = { .witness = &files->witness,
					    .principal = &files->principal,
					    .verb = word_of(files->verb),
					    .path = files->path,
					    .in_tmp = files->in_tmp,
					    .bytes = files->verb == CELL_FILE_PUT || files->verb == CELL_FILE_UNPACK ? files->stored : -1,
					    .err = err };

	if (!files->recorded)
		cell__session_record_on_loop(files->server->engine, &change);
	files->recorded = true;
}

/* The pool removes what an upload left. */
static void release(struct cell__file_work *files)
{
	struct cell__file_work **at = &files->server->transfers;
	struct cell_error gone;

	while (*at != files)
		at = &(*at)->next;
	*at = files->next;
	if (!files->recorded) {
		cell_fail(&gone, CELL_E_CANCELLED, 0, "the client has gone");
		record(files, &gone);
	}
	cell__root_finish(&files->root);
	cell__server_advance(files->server);
	files->server->use->transfers--;
	files->account->use->transfers--;
	json_decref(files->answer);
	uv_queue_work(cell__loop_uv(files->server->engine->loop), &files->work, do_destroy, handle_destroyed);
}

/* Nobody waits for it any more. */
static void leave(struct cell__file_work *files)
{
	files->gone = true;
	if (!files->busy)
		release(files);
}

void cell__files_forget(struct cell__request *request)
{
	struct cell__file_work *files = cell__take_ptr(request->files);

	if (files)
		leave(files);
}

/* A step has ended.  Returns false when its request has, too. */
static bool is_wanted(struct cell__file_work *files)
{
	files->busy = false;
	if (!files->gone)
		return true;
	release(files);
	return false;
}

/* ---- the beginning ---- */

static struct cell__file_work *create(struct cell__request *request, enum cell__file_verb verb)
{
	struct cell_server *server = request->server;
	struct cell__account *account = request->served->account;
	struct cell__file_work *files;
	bool is_full;

	cell__pool_lock(server);
	is_full = CELL_ALL(server, transfers) >= CELL_SERVER_MAX_TRANSFERS ||
		  CELL_ALL_OF(server, account, transfers) >= CELL_SERVER_TOKEN_TRANSFERS;
	server->use->transfers += !is_full;
	account->use->transfers += !is_full;
	cell__pool_unlock(server);
	if (is_full) {
		cell__answer_busy(request, 1, "too many transfers of files at once");
		return NULL;
	}
	files = cell__alloc(1, sizeof(*files));
	if (files)
		files->block = cell__alloc(1, BLOCK_BYTES);
	if (!files || !files->block) {
		free(files);
		server->use->transfers--;
		account->use->transfers--;
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a transfer");
		return NULL;
	}
	files->work.data = files;
	files->request = request;
	files->server = server;
	files->account = account;
	files->verb = verb;
	files->root.fd = -1;
	files->recorded = true; /* nothing is changed yet */
	files->principal = cell__request_principal(request);
	files->next = server->transfers;
	server->transfers = files;
	request->files = files;
	return files;
}

static void handle_stepped(struct cell__task *task)
{
	struct cell__file_work *files = (struct cell__file_work *)((char *)task - offsetof(struct cell__file_work, task));

	files->stepped(&files->work, 0);
}

static void *step_main(void *arg)
{
	struct cell__file_work *files = arg;

	files->step(&files->work);
	cell__loop_post(files->server->engine->loop, &files->task);
	return NULL;
}

static bool start_thread(struct cell__file_work *files)
{
	pthread_attr_t attr;
	pthread_t thread;
	bool runs;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	runs = pthread_create(&thread, &attr, step_main, files) == 0;
	pthread_attr_destroy(&attr);
	return runs;
}

static void queue(struct cell__file_work *files, uv_work_cb step, uv_after_work_cb done)
{
	files->busy = true;
	files->step = step;
	files->stepped = done;
	files->task.fn = handle_stepped;
	if (files->is_there && start_thread(files))
		return;
	uv_queue_work(cell__loop_uv(files->server->engine->loop), &files->work, step, done);
}

/* ---- the first step ---- */

static void fill_block(struct cell__file_work *files)
{
	ssize_t n = cell__file_transfer_read(files->transfer, files->block, BLOCK_BYTES, &files->err);

	files->at = 0;
	files->used = n > 0 ? (size_t)n : 0;
	files->ended = n == 0;
}

static void open_transfer(struct cell__file_work *files, enum cell__file_transfer_kind kind)
{
	(void)cell__file_transfer_open(kind, &files->root, files->path, files->mode, &files->transfer, &files->err);
}

/* A file's bytes, or the list of a folder. */
static void open_or_list(struct cell__file_work *files)
{
	struct cell__root root = files->root;
	json_t *found;

	if (files->is_there) {
		found = cell__root_describe(&root, files->path, &files->err);
		if (found && strcmp(json_string_value(json_object_get(found, "type")), "folder") != 0) {
			json_decref(found);
			open_transfer(files, CELL_TRANSFER_GET);
		} else {
			files->answer = found;
		}
		return;
	}
	files->root.fd = dup(root.fd);
	open_transfer(files, CELL_TRANSFER_GET);
	files->root.fd = root.fd;
	if (!files->transfer && files->err.sys == EISDIR)
		files->answer = cell__root_describe(&root, files->path, &files->err);
}

/* The request stays while the pool works for it. */
static void mark(struct cell__file_work *files)
{
	if (files->transfer && files->request->marks && cell__file_transfer_mark(files->transfer, files->request->marks, &files->err) < 0)
		cell__file_transfer_destroy(cell__take_ptr(files->transfer));
}

static void do_first(uv_work_t *work)
{
	struct cell__file_work *files = work->data;

	switch (files->verb) {
	case CELL_FILE_GET:
		open_or_list(files);
		break;
	case CELL_FILE_PACK:
		open_transfer(files, CELL_TRANSFER_PACK);
		if (files->transfer)
			fill_block(files);
		break;
	case CELL_FILE_PUT:
	case CELL_FILE_UNPACK:
		open_transfer(files, files->verb == CELL_FILE_PUT ? CELL_TRANSFER_PUT : CELL_TRANSFER_UNPACK);
		mark(files);
		if (files->transfer && files->request->unzips && !(files->gunzip = cell__gunzip_create(&files->err)))
			cell__file_transfer_destroy(cell__take_ptr(files->transfer));
		break;
	case CELL_FILE_DESCRIBE:
		files->answer = cell__root_describe(&files->root, files->path, &files->err);
		break;
	case CELL_FILE_FOLDER:
		if (cell__root_make_folder(&files->root, files->path, &files->err) == 0)
			files->answer = cell__root_describe(&files->root, files->path, &files->err);
		break;
	case CELL_FILE_REMOVE:
		if (cell__root_remove(&files->root, files->path, files->recursive, &files->err) == 0)
			files->answer = json_null();
		break;
	}
	cell__root_finish(&files->root);
}

static void answer_download(struct cell__file_work *files);

static void handle_first(uv_work_t *work, int status)
{
	struct cell__file_work *files = work->data;
	struct cell__request *request = files->request;

	(void)status; /* never cancelled */
	if (!is_wanted(files))
		return;
	if (files->verb == CELL_FILE_REMOVE && request->served->session)
		cell__session_written_on_loop(request->served->session);
	if (files->verb == CELL_FILE_REMOVE || files->verb == CELL_FILE_FOLDER || (files->verb >= CELL_FILE_PUT && !files->transfer))
		record(files, files->answer ? NULL : &files->err);
	if (files->answer && files->then)
		files->then(request, files->answer);
	else if (files->answer && files->verb == CELL_FILE_REMOVE)
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	else if (files->answer)
		cell__answer_json(request, files->verb == CELL_FILE_FOLDER ? MHD_HTTP_CREATED : MHD_HTTP_OK, json_incref(files->answer));
	else if (!files->transfer || (files->verb == CELL_FILE_PACK && files->err.code))
		cell__answer_error(request, &files->err);
	else if (files->verb == CELL_FILE_GET || files->verb == CELL_FILE_PACK)
		answer_download(files);
	else
		cell__request_resume(request); /* with the body */
}

static int64_t pid_of_kernel(const struct cell__file_work *files)
{
	struct cell_session *session = files->request->served ? files->request->served->session : NULL;

	return session ? cell__session_pid_on_loop(session) : 0;
}

static void handle_root(void *arg, const struct cell__root *root, const struct cell_error *err)
{
	struct cell__file_work *files = arg;

	if (root)
		files->root = *root;
	if (!is_wanted(files))
		return;
	if (!root) {
		cell__answer_error(files->request, err);
		return;
	}
	files->root.cancelled = &files->cancelled;
	files->kernel_pid = pid_of_kernel(files);
	files->is_there = root->place;
	files->witness = root->witness;
	files->recorded = files->verb < CELL_FILE_PUT;
	if (files->root.max_bytes > (uint64_t)files->server->limits.max_file_bytes)
		files->root.max_bytes = (uint64_t)files->server->limits.max_file_bytes;
	queue(files, do_first, handle_first);
}

static void start(struct cell__file_work *files)
{
	struct cell__request *request = files->request;
	int (*root_of)(struct cell_session *session, bool writes, cell__root_done done, void *arg,
		       struct cell_error *err) = files->in_tmp ? cell__session_tmp_on_loop : cell__session_root_on_loop;
	bool writes = files->verb >= CELL_FILE_PUT;
	struct cell_error err;

	if ((files->verb == CELL_FILE_PUT || files->verb == CELL_FILE_UNPACK) && !cell__account_may_store(request, files->account))
		return;
	if (!request->served->session) {
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "this session has ended");
		return;
	}
	files->busy = true;
	if (root_of(request->served->session, writes, handle_root, files, &err) < 0) {
		files->busy = false;
		cell__answer_error(request, &err);
	}
}

/* ---- downloads ---- */

int cell__range_parse(const char *header, uint64_t size, uint64_t *ret_offset, uint64_t *ret_size)
{
	const char *at = header ? header : "";
	uint64_t numbers[2] = { 0 };
	size_t digits[2];

	if (strncasecmp(at, "bytes=", 6))
		return 0;
	at += 6;
	for (int i = 0; i < 2; i++) {
		digits[i] = strspn(at, "0123456789");
		if (digits[i] > 18)
			return 0;
		for (size_t k = 0; k < digits[i]; k++)
			numbers[i] = numbers[i] * 10 + (uint64_t)(*at++ - '0');
		if (i == 0 && *at++ != '-')
			return 0;
	}
	if (*at || (!digits[0] && !digits[1]) || (digits[0] && digits[1] && numbers[1] < numbers[0]))
		return 0;
	if (!digits[0]) { /* so many at the end */
		if (!numbers[1] || !size)
			return -1;
		*ret_size = numbers[1] < size ? numbers[1] : size;
		*ret_offset = size - *ret_size;
		return 1;
	}
	if (numbers[0] >= size)
		return -1;
	*ret_offset = numbers[0];
	*ret_size = (digits[1] && numbers[1] < size ? numbers[1] + 1 : size) - numbers[0];
	return 1;
}

static void do_read(uv_work_t *work)
{
	fill_block(work->data);
}

static void handle_read(uv_work_t *work, int status)
{
	struct cell__file_work *files = work->data;

	(void)status; /* never cancelled */
	if (is_wanted(files))
		cell__request_resume(files->request);
}

static ssize_t send_block(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__file_work *files = arg;
	size_t n = files->used - files->at;

	(void)position;
	if (n > 0) {
		n = n < max ? n : max;
		memcpy(out, files->block + files->at, n);
		files->at += n;
		return (ssize_t)n;
	}
	if (files->err.code)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (files->ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	queue(files, do_read, handle_read);
	cell__request_suspend(files->request);
	return 0;
}

static void handle_response_freed(void *arg)
{
	leave(arg);
}

static void add_header(struct MHD_Response *response, const char *name, const char *fmt, uint64_t a, uint64_t b, uint64_t c)
{
	char text[96];

	snprintf(text, sizeof(text), fmt, a, b, c);
	MHD_add_response_header(response, name, text);
}

static void add_date(struct MHD_Response *response, time_t at)
{
	char text[40];
	struct tm tm;

	if (gmtime_r(&at, &tm) && strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm) > 0)
		MHD_add_response_header(response, "Last-Modified", text);
}

#define ETAG "\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "\""

/* Whether the part that is asked for is one of this file as it is now. */
static bool is_same_file(const struct cell__request *request, const struct stat *st)
{
	const char *given = cell__request_header(request, "If-Range");
	char tag[64];

	snprintf(tag, sizeof(tag), ETAG, (uint64_t)st->st_ino, (uint64_t)st->st_size,
		 (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec);
	return !given || !strcmp(given, tag);
}

static void answer_download(struct cell__file_work *files)
{
	struct cell__request *request = files->request;
	const struct stat *st = cell__file_transfer_stat(files->transfer);
	bool is_file = files->verb == CELL_FILE_GET;
	uint64_t size = is_file ? (uint64_t)st->st_size : MHD_SIZE_UNKNOWN, offset = 0, part = size;
	int range = is_file && is_same_file(request, st) ? cell__range_parse(cell__request_header(request, "Range"), size, &offset, &part)
							 : 0;
	struct MHD_Response *response;

	if (range < 0) {
		cell__answer_fail(request, MHD_HTTP_RANGE_NOT_SATISFIABLE, CELL_E_INVALID, "the file has %" PRIu64 " bytes", size);
		if (request->response)
			add_header(request->response, "Content-Range", "bytes */%" PRIu64, size, 0, 0);
		return;
	}
	if (is_file)
		cell__file_transfer_seek(files->transfer, offset, part);
	response = MHD_create_response_from_callback(part, SENT_BYTES, send_block, files, handle_response_freed);
	if (!response) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a transfer");
		return;
	}
	request->files = NULL; /* the response's */
	MHD_add_response_header(response, "Content-Type", is_file ? "application/octet-stream" : "application/x-tar");
	MHD_add_response_header(response, "Content-Disposition", "attachment");
	if (is_file) {
		MHD_add_response_header(response, "Accept-Ranges", "bytes");
		add_header(response, "ETag", ETAG, (uint64_t)st->st_ino, size,
			   (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec);
		add_date(response, st->st_mtim.tv_sec);
	}
	if (range)
		add_header(response, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, offset, offset + part - 1, size);
	cell__answer_response(request, range ? MHD_HTTP_PARTIAL_CONTENT : MHD_HTTP_OK, response);
}

/* ---- uploads ---- */

/* Writes what the block becomes, as much as one step may write; the rest of the block waits for the next step. */
static int write_unzipped(struct cell__file_work *files)
{
	const char *bytes = files->block;
	char out[UNZIPPED_BYTES];
	ssize_t n = 0;

	while (files->moved < STEP_BYTES &&
	       (n = cell__gunzip_next(files->gunzip, &bytes, &files->used, out, sizeof(out), &files->err)) > 0) {
		if (cell__file_transfer_write(files->transfer, out, (size_t)n, &files->err) < 0)
			return -1;
		files->moved += (size_t)n;
	}
	memmove(files->block, bytes, files->used);
	files->is_more = n > 0;
	if (n == 0 && files->ended && !cell__gunzip_is_whole(files->gunzip))
		return cell_fail(&files->err, CELL_E_INVALID, 0, "the body is not gzip, or was cut off");
	return n < 0 ? -1 : 0;
}

static void write_block(struct cell__file_work *files)
{
	files->moved = 0;
	if (files->gunzip && write_unzipped(files) < 0)
		return;
	if (!files->gunzip) {
		if (files->used && cell__file_transfer_write(files->transfer, files->block, files->used, &files->err) < 0)
			return;
		files->moved = files->used;
		files->used = 0;
	}
	if (files->ended && !files->is_more && cell__file_transfer_end(files->transfer, &files->err) == 0)
		files->answer = json_object();
}

static void do_write(uv_work_t *work)
{
	struct cell__file_work *files = work->data;

	write_block(files);
	/* What it took is free again when the client gets to know. */
	if (files->err.code)
		cell__file_transfer_destroy(cell__take_ptr(files->transfer));
}

static void handle_written(uv_work_t *work, int status)
{
	struct cell__file_work *files = work->data;
	struct cell__request *request = files->request;

	(void)status; /* never cancelled */
	if (!is_wanted(files))
		return;
	files->stored += (int64_t)files->moved;
	if (!files->err.code && request->served->folder)
		(void)cell__account_stored(files->server, files->account, (int64_t)files->moved, &files->err);
	if (!files->err.code && files->is_more) {
		queue(files, do_write, handle_written);
		return;
	}
	if ((files->err.code || files->ended) && request->served->session)
		cell__session_written_on_loop(request->served->session);
	if (files->err.code || files->ended)
		record(files, files->err.code ? &files->err : NULL);
	if (files->err.code)
		cell__answer_error(request, &files->err);
	else if (files->ended && files->then)
		files->then(request, NULL);
	else if (files->ended)
		cell__answer_json(request, MHD_HTTP_CREATED,
				  json_pack("{s:s,s:I}", "path", files->path, "bytes", (json_int_t)request->taken_bytes));
	else
		cell__request_resume(request);
}

bool cell__upload_is_busy(const struct cell__request *request)
{
	return request->files && request->files->busy;
}

size_t cell__upload_take(struct cell__request *request, const char *bytes, size_t size)
{
	struct cell__file_work *files = request->files;
	size_t n;

	/* The handler has not got so far yet; or it needs no body, and throws it away. */
	if (!files || files->busy)
		return size;
	if (files->err.code) { /* it was ended while it waited for the body */
		record(files, &files->err);
		cell__answer_error(request, &files->err);
		return size; /* to be thrown away, so that the client can read the answer */
	}
	if (files->verb != CELL_FILE_PUT && files->verb != CELL_FILE_UNPACK)
		return 0;
	n = BLOCK_BYTES - files->used < size ? BLOCK_BYTES - files->used : size;
	if (n > 0)
		memcpy(files->block + files->used, bytes, n); /* at the end of the body there are no bytes */
	files->used += n;
	files->ended = size == 0;
	if (files->ended || files->used == BLOCK_BYTES)
		queue(files, do_write, handle_written);
	return size - n;
}

/* ---- the end of a sandbox ---- */

static void do_end(uv_work_t *work)
{
	struct cell__file_work *files = work->data;

	cell__file_transfer_destroy(cell__take_ptr(files->transfer));
}

static void handle_ended(uv_work_t *work, int status)
{
	struct cell__file_work *files = work->data;

	(void)status; /* never cancelled */
	if (is_wanted(files))
		cell__request_resume(files->request); /* its body, or its answer, may have come meanwhile */
}

void cell__files_sweep(struct cell_server *server)
{
	for (struct cell__file_work *files = server->transfers; files; files = files->next) {
		/* One that is busy is looked at again. */
		if (!files->in_tmp || files->busy || !files->transfer || pid_of_kernel(files) == files->kernel_pid)
			continue;
		cell_fail(&files->err, CELL_E_EXPIRED, 0, "the sandbox's /tmp has ended with its process");
		files->used = files->at = 0;
		queue(files, do_end, handle_ended);
	}
}

/* ---- handlers ---- */

/* The path in the URL, or, for names that another route has, in the query. */
static bool take_path(struct cell__request *request, char out[static PATH_MAX])
{
	const char *inner = request->params[1], *asked = json_string_value(json_object_get(request->query, "path"));
	struct cell_error err;

	if (cell__files_path(inner ? inner : asked ? asked : "", out, &err) == 0)
		return true;
	cell__answer_error(request, &err);
	return false;
}

static const char *format_of(const struct cell__request *request)
{
	const char *format = json_string_value(json_object_get(request->query, "format"));

	return format ? format : "";
}

/* Three octal digits. */
static bool take_mode(struct cell__request *request, unsigned *ret_mode)
{
	const char *text = json_string_value(json_object_get(request->query, "mode"));

	if (text && (strlen(text) != 3 || strspn(text, "01234567") != 3)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "mode must have three octal digits, as 644");
		return false;
	}
	*ret_mode = text ? (unsigned)strtoul(text, NULL, 8) : 0;
	return true;
}

void cell__file_begin(struct cell__request *request, enum cell__file_verb verb, const char *path, unsigned mode, bool recursive,
		      void (*then)(struct cell__request *request, json_t *found))
{
	struct cell__file_work *files = create(request, verb);

	if (!files)
		return;
	strcpy(files->path, path);
	files->in_tmp = request->in_tmp;
	files->mode = mode;
	files->recursive = recursive;
	files->then = then;
	start(files);
}

static void begin(struct cell__request *request, enum cell__file_verb verb)
{
	char path[PATH_MAX];
	unsigned mode;

	if (cell__served_find(request, request->params[0], false) && take_path(request, path) && take_mode(request, &mode))
		cell__file_begin(request, verb, path, mode, json_is_true(json_object_get(request->query, "recursive")), NULL);
}

void cell__handle_v1_file_get(struct cell__request *request)
{
	const char *format = format_of(request);

	begin(request, !strcmp(format, "json") ? CELL_FILE_DESCRIBE : !strcmp(format, "tar") ? CELL_FILE_PACK : CELL_FILE_GET);
}

void cell__handle_v1_file_put(struct cell__request *request)
{
	const char *format = format_of(request);

	begin(request, !strcmp(format, "folder") ? CELL_FILE_FOLDER : !strcmp(format, "tar") ? CELL_FILE_UNPACK : CELL_FILE_PUT);
}

void cell__handle_v1_file_delete(struct cell__request *request)
{
	begin(request, CELL_FILE_REMOVE);
}
