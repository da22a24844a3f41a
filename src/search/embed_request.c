/*
 *     created ──start──▶ sending (libcurl) ──answer──▶ parsing (pool) ──▶ done()
 *                            └──failure──▶ done()        └─ destroyed meanwhile: freed when the pool has finished
 *
 * With a model in this process: created ──start──▶ computing (pool) ──▶ done().
 */
#define _GNU_SOURCE
#include "search/embed_request.h"

#include <jansson.h>
#include <string.h>

#include "wire/embeddings.h"

#define QUERY_ANSWER_BYTES (1024u * 1024u) /* one vector, and the text around it */
#define CONNECT_MS 5000
#define KEY_NAME_BYTES 128u
#define SECRET_BYTES 4u /* a shorter key is not a secret, and removing it would damage ordinary words */

static void secret_free(char *text)
{
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
}

static void free_request(struct cell__embed_request *request)
{
	cell__http_finish(&request->transfer);
	secret_free(request->secret);
	cell__buf_finish(&request->body);
	cell__buf_finish(&request->answer);
	free(request->vectors);
	free(request);
}

void cell__embed_request_destroy(struct cell__embed_request *request)
{
	if (!request)
		return;
	if (request->parsing) {
		request->dropped = true;
		return;
	}
	if (request->sending)
		cell__http_cancel(request->endpoint->http, &request->transfer);
	free_request(request);
}

/* ---- sending ---- */

struct cell__embed_request *cell__embed_request_create(struct cell__embed_endpoint *endpoint, const char *const *texts, size_t n)
{
	struct cell__embed_request *request = cell__alloc(1, sizeof *request);
	if (!request)
		return NULL;
	request->endpoint = endpoint;
	request->n = n;
	request->answer_limit = n == 1 ? QUERY_ANSWER_BYTES : CELL__EMBED_ANSWER_BYTES;
	int rc = 0;
	if (!endpoint->local)
		rc = cell__embed_request(&request->body, endpoint->model, texts, n);
	for (size_t i = 0; endpoint->local && i < n && !rc; i++)
		rc = cell__buf_add(&request->body, texts[i], strlen(texts[i]) + 1);
	if (rc < 0) {
		free_request(request);
		return NULL;
	}
	return request;
}

/* "${NAME}" is the value in the host's environment now; anything else is the key itself. */
static const char *find_key(const struct cell__embed_endpoint *endpoint, struct cell_error *err)
{
	const char *key = endpoint->key;
	size_t size = strlen(key);
	char name[KEY_NAME_BYTES];
	if (strncmp(key, "${", 2) != 0 || key[size - 1] != '}')
		return key;
	if (size - 3 >= sizeof name) {
		cell_fail(err, CELL_E_INVALID, 0, "the name of the environment variable with the key is too long");
		return NULL;
	}
	memcpy(name, key + 2, size - 3);
	name[size - 3] = '\0';
	const char *value = endpoint->getenv_fn ? endpoint->getenv_fn(endpoint->getenv_arg, name) : NULL;
	if (!value)
		cell_fail(err, CELL_E_INVALID, 0, "environment variable %s, which should contain the key, is not set", name);
	return value;
}

static int add_key(struct cell__embed_request *request, struct cell_error *err)
{
	static const char start[] = "Authorization: Bearer ";
	if (!request->endpoint->key)
		return 0;
	const char *key = find_key(request->endpoint, err);
	if (!key)
		return -1;
	if (strpbrk(key, "\r\n"))
		return cell_fail(err, CELL_E_INVALID, 0, "the key contains a line break");
	char *line = cell__alloc(1, sizeof start + strlen(key));
	int rc = -1;
	if (line) {
		memcpy(line, start, sizeof start);
		strcat(line, key);
		rc = cell__http_add_header(&request->transfer, line);
	}
	secret_free(line);
	request->secret = cell__strdup(key);
	return rc < 0 || !request->secret ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static size_t body_came(struct cell__http_transfer *transfer, const char *bytes, size_t size)
{
	struct cell__embed_request *request = (struct cell__embed_request *)transfer;
	if (size > request->answer_limit - request->answer.size) {
		request->too_big = true;
		return 0;
	}
	return cell__buf_add(&request->answer, bytes, size) < 0 ? 0 : size;
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code);
static void handle_parsed(uv_work_t *work, int status);

/* On the pool: one text after the other. */
static void compute(uv_work_t *work)
{
	struct cell__embed_request *request = work->data;
	const char *text = request->body.data;
	for (size_t i = 0; i < request->n && !atomic_load(&request->dropped); i++, text += strlen(text) + 1) {
		CELL_AUTO_FREE float *vector = NULL;
		size_t dimensions = 0;
		int rc = cell__onnx_embed(request->endpoint->local, text, request->is_query, &vector, &dimensions, &request->err);
		if (rc == 0 && !request->vectors) {
			request->dimensions = dimensions;
			request->vectors = cell__alloc(request->n * dimensions, sizeof(float));
			rc = request->vectors ? 0 : cell_fail(&request->err, CELL_E_NOMEM, 0, "out of memory");
		}
		if (rc == 0 && dimensions != request->dimensions)
			rc = cell_fail(&request->err, CELL_E_INVALID, 0, "the model gives vectors of different sizes");
		if (rc < 0) {
			free(request->vectors);
			request->vectors = NULL;
			return;
		}
		memcpy(request->vectors + i * dimensions, vector, dimensions * sizeof(float));
	}
}

static void start_work(struct cell__embed_request *request, uv_work_cb fn)
{
	request->parsing = true;
	request->endpoint->parsing++;
	request->work.data = request;
	uv_queue_work(cell__loop_uv(request->endpoint->loop), &request->work, fn, handle_parsed);
}

int cell__embed_request_start(struct cell__embed_request *request, struct cell_error *err)
{
	const struct cell__embed_endpoint *endpoint = request->endpoint;
	if (endpoint->local) {
		start_work(request, compute);
		return 0;
	}
	if (add_key(request, err) < 0)
		return -1;
	request->transfer.done = handle_done;
	request->transfer.body = body_came;
	const struct cell__http_request what = { .method = "POST",
						 .url = endpoint->url,
						 .body = request->body.data,
						 .body_size = request->body.size,
						 .connect_ms = CONNECT_MS,
						 .timeout_ms = endpoint->request_ms,
						 .repeats = true };
	if (cell__http_add_header(&request->transfer, "Content-Type: application/json") < 0 ||
	    cell__http_start(endpoint->http, &request->transfer, &what) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	request->sending = true;
	return 0;
}

/* ---- errors ---- */

/* The endpoint's error message from one of the usual members; "" if there is none. */
static const char *find_words(json_t *answer)
{
	json_t *error = json_object_get(answer, "error");
	json_t *const places[] = { json_object_get(error, "message"), error, json_object_get(answer, "message"),
				   json_object_get(answer, "detail") };
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (json_string_length(places[i]) > 0)
			return json_string_value(places[i]);
	return "";
}

/* Quotes untrusted text: on one line, bounded, and without the key, which an endpoint may repeat. */
static void quote(const struct cell__embed_request *request, const char *words, char *out, size_t size)
{
	size_t n = strnlen(words, size - 1);
	if (request->secret && strlen(request->secret) >= SECRET_BYTES && strstr(words, request->secret)) {
		strcpy(out, "(the answer contains the key and is not shown)");
		return;
	}
	memcpy(out, words, n);
	n -= cell__utf8_cut(out, n);
	out[n] = '\0';
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f)
			out[i] = ' ';
}

static void fail_status(struct cell__embed_request *request, long status)
{
	char words[CELL__EMBED_ERROR_BYTES] = "";
	curl_off_t retry_s = 0;
	json_t *answer = json_loadb(request->answer.data ? request->answer.data : "", request->answer.size, 0, NULL);
	if (status == 401 || status == 403)
		strcpy(words, request->secret ? "the key was refused" : "it requires a key");
	else if (status >= 300 && status < 400)
		strcpy(words, "it redirects; redirects are not followed");
	else
		quote(request, find_words(answer), words, sizeof words);
	json_decref(answer);
	curl_easy_getinfo(request->transfer.easy, CURLINFO_RETRY_AFTER, &retry_s);
	if (retry_s > 0)
		request->retry_ms = retry_s < CELL__EMBED_RETRY_MAX_MS / 1000 ? (int64_t)retry_s * 1000 : CELL__EMBED_RETRY_MAX_MS;
	request->refused = status == 400 || status == 413 || status == 422;
	cell_fail(&request->err, CELL_E_PROTOCOL, 0, "HTTP %ld%s%s", status, words[0] ? ": " : "", words);
}

static void fail_transfer(struct cell__embed_request *request, CURLcode code)
{
	char words[CELL__EMBED_ERROR_BYTES];
	if (code == CURLE_OPERATION_TIMEDOUT) {
		cell_fail(&request->err, CELL_E_TIMEOUT, 0, "no answer within %g s", (double)request->endpoint->request_ms / 1000);
	} else if (request->too_big) {
		cell_fail(&request->err, CELL_E_LIMIT, 0, "the answer is larger than %zu bytes", request->answer_limit);
	} else {
		quote(request, cell__http_explain(&request->transfer, code), words, sizeof words);
		cell_fail(&request->err, CELL_E_IO, 0, "%s", words);
	}
}

/* ---- the answer ---- */

static void parse(uv_work_t *work)
{
	struct cell__embed_request *request = work->data;
	struct cell__buf *answer = &request->answer;
	char nothing[1];
	cell__embed_parse(answer->data ? answer->data : nothing, answer->size, request->n, &request->vectors, &request->dimensions,
			  &request->err);
	cell__buf_finish(answer);
}

static void handle_parsed(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct cell__embed_request *request = work->data;
	struct cell__embed_endpoint *endpoint = request->endpoint;
	request->parsing = false;
	endpoint->parsing--;
	if (!request->dropped) {
		request->done(request);
		return;
	}
	free_request(request);
	endpoint->parsed(endpoint->owner);
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__embed_request *request = (struct cell__embed_request *)transfer;
	long status = cell__http_status(transfer);
	request->sending = false;
	if (code != CURLE_OK)
		fail_transfer(request, code);
	else if (status < 200 || status > 299)
		fail_status(request, status);
	else {
		start_work(request, parse);
		return;
	}
	request->done(request);
}
