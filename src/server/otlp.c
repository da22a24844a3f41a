#include "server/otlp.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <curl/curl.h>

#include "base/libraries.h"

#define EVERY_MS 1000
#define POST_MS 5000
#define LAST_MS 2000 /* for the last post */

#define RESOURCE \
	"{\"resource\":{\"attributes\":[{\"key\":\"service.name\",\"value\":{\"stringValue\":\"workcell\"}},{\"key\":\"service.version\",\"value\":{\"stringValue\":\"%s\"}}]},"

struct cell__otlp {
	pthread_t thread;
	pthread_mutex_t lock; /* of the following; held for an append or an exchange only */
	pthread_cond_t more;
	struct cell__buf spans; /* with commas between them */
	uint64_t count, lost;
	char *metrics; /* the newest; or NULL */
	bool ends;
	/* the thread's own */
	CURL *curl;
	struct curl_slist *headers;
	char *endpoint;
};

/* ---- metrics ---- */

static int add_metric(struct cell__buf *out, const char *name, size_t name_size, bool is_sum, double value, int64_t now_ns)
{
	int rc = cell__buf_printf(out, "%s{\"name\":\"%.*s\",\"%s\":{", out->size ? "," : "", (int)name_size, name,
				  is_sum ? "sum" : "gauge");

	if (is_sum)
		rc |= cell__buf_add_str(out, "\"aggregationTemporality\":2,\"isMonotonic\":true,");
	return rc | cell__buf_printf(out, "\"dataPoints\":[{\"timeUnixNano\":\"%" PRId64 "\",\"asDouble\":%.17g}]}}", now_ns, value);
}

int cell__otlp_metrics(const char *text, int64_t now_ns, struct cell__buf *out)
{
	int rc = 0;

	for (const char *line = text, *end; line && *line; line = end ? end + 1 : NULL) {
		size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz_0123456789");
		char *after;
		double value;

		end = strchr(line, '\n');
		if (!name || line[name] != ' ')
			continue;
		value = strtod(line + name + 1, &after);
		if (after == line + name + 1 || (*after && *after != '\n') || value != value)
			continue;
		rc |= add_metric(out, line, name, name > 6 && !strncmp(line + name - 6, "_total", 6), value, now_ns);
	}
	return rc;
}

/* ---- the thread ---- */

static size_t drop_answer(char *bytes, size_t size, size_t n, void *arg)
{
	(void)bytes;
	(void)arg;
	return size * n;
}

static bool post(struct cell__otlp *otlp, const char *path, const struct cell__buf *body, long timeout_ms)
{
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	long status = 0;

	if (cell__buf_printf(&url, "%s%s", otlp->endpoint, path) < 0)
		return false;
	curl_easy_setopt(otlp->curl, CURLOPT_URL, url.data);
	curl_easy_setopt(otlp->curl, CURLOPT_HTTPHEADER, otlp->headers);
	curl_easy_setopt(otlp->curl, CURLOPT_POSTFIELDS, body->data);
	curl_easy_setopt(otlp->curl, CURLOPT_POSTFIELDSIZE, (long)body->size);
	curl_easy_setopt(otlp->curl, CURLOPT_TIMEOUT_MS, timeout_ms);
	curl_easy_setopt(otlp->curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(otlp->curl, CURLOPT_WRITEFUNCTION, drop_answer);
	if (curl_easy_perform(otlp->curl) == CURLE_OK)
		curl_easy_getinfo(otlp->curl, CURLINFO_RESPONSE_CODE, &status);
	return status >= 200 && status < 300;
}

static void send_spans(struct cell__otlp *otlp, struct cell__buf *spans, uint64_t count, long timeout_ms)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	int rc = cell__buf_printf(&body, "{\"resourceSpans\":[" RESOURCE "\"scopeSpans\":[{\"scope\":{\"name\":\"workcell\"},\"spans\":[",
				  cell_version());

	rc |= cell__buf_add(&body, spans->data, spans->size);
	rc |= cell__buf_add_str(&body, "]}]}]}");
	if (rc || !post(otlp, "/v1/traces", &body, timeout_ms)) {
		pthread_mutex_lock(&otlp->lock);
		otlp->lost += count;
		pthread_mutex_unlock(&otlp->lock);
	}
}

static void send_metrics(struct cell__otlp *otlp, const char *text, long timeout_ms)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, list = CELL_BUF_INIT;
	struct timespec now;
	int rc;

	clock_gettime(CLOCK_REALTIME, &now);
	rc = cell__otlp_metrics(text, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, &list);
	rc |= cell__buf_printf(&body,
			       "{\"resourceMetrics\":[" RESOURCE "\"scopeMetrics\":[{\"scope\":{\"name\":\"workcell\"},\"metrics\":[",
			       cell_version());
	rc |= cell__buf_add(&body, list.data, list.size);
	rc |= cell__buf_add_str(&body, "]}]}]}");
	if (!rc)
		(void)post(otlp, "/v1/metrics", &body, timeout_ms); /* the next ones tell the same */
}

static void wait_for_more(struct cell__otlp *otlp)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += EVERY_MS / 1000;
	while (!otlp->ends && pthread_cond_timedwait(&otlp->more, &otlp->lock, &until) != ETIMEDOUT)
		;
}

static void *exporter_main(void *arg)
{
	struct cell__otlp *otlp = arg;
	bool ends = false;

	while (!ends) {
		struct cell__buf spans;
		CELL_AUTO_FREE char *metrics = NULL;
		uint64_t count;

		pthread_mutex_lock(&otlp->lock);
		wait_for_more(otlp);
		ends = otlp->ends;
		spans = otlp->spans;
		count = otlp->count;
		metrics = cell__take_ptr(otlp->metrics);
		otlp->spans = (struct cell__buf)CELL_BUF_INIT;
		otlp->count = 0;
		pthread_mutex_unlock(&otlp->lock);
		if (spans.size)
			send_spans(otlp, &spans, count, ends ? LAST_MS : POST_MS);
		if (metrics && !ends)
			send_metrics(otlp, metrics, POST_MS);
		cell__buf_finish(&spans);
	}
	return NULL;
}

/* ---- the loop's side ---- */

void cell__otlp_add(struct cell__otlp *otlp, const char *span, size_t size)
{
	pthread_mutex_lock(&otlp->lock);
	if (otlp->spans.size + size + 1 > CELL_OTLP_QUEUE_BYTES || (otlp->spans.size && cell__buf_add_str(&otlp->spans, ",") < 0) ||
	    cell__buf_add(&otlp->spans, span, size) < 0)
		otlp->lost++;
	else
		otlp->count++;
	pthread_mutex_unlock(&otlp->lock);
}

void cell__otlp_set_metrics(struct cell__otlp *otlp, char *text)
{
	char *old;

	pthread_mutex_lock(&otlp->lock);
	old = otlp->metrics;
	otlp->metrics = text;
	pthread_mutex_unlock(&otlp->lock);
	free(old);
}

uint64_t cell__otlp_lost(struct cell__otlp *otlp)
{
	uint64_t lost;

	pthread_mutex_lock(&otlp->lock);
	lost = otlp->lost;
	pthread_mutex_unlock(&otlp->lock);
	return lost;
}

static void otlp_free(struct cell__otlp *otlp)
{
	if (otlp->curl)
		curl_easy_cleanup(otlp->curl);
	if (otlp->headers)
		curl_slist_free_all(otlp->headers);
	cell__buf_finish(&otlp->spans);
	free(otlp->metrics);
	free(otlp->endpoint);
	free(otlp);
}

/* "name=value,..." */
static int add_headers(struct cell__otlp *otlp, const char *headers)
{
	struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");

	while (list && headers && *headers) {
		size_t size = strcspn(headers, ","), name = strcspn(headers, "=,");
		CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
		struct curl_slist *longer;

		otlp->headers = list;
		if (name == size ||
		    cell__buf_printf(&line, "%.*s: %.*s", (int)name, headers, (int)(size - name - 1), headers + name + 1) < 0 ||
		    strpbrk(line.data, "\r\n") || !(longer = curl_slist_append(list, line.data)))
			return -1;
		list = longer;
		headers += size + (headers[size] == ',');
	}
	otlp->headers = list;
	return list ? 0 : -1;
}

int cell__otlp_create(const char *endpoint, const char *headers, struct cell__otlp **ret_otlp, struct cell_error *err)
{
	size_t size = strlen(endpoint);
	struct cell__otlp *otlp;
	pthread_condattr_t clock;

	if (strncasecmp(endpoint, "http://", 7) && strncasecmp(endpoint, "https://", 8))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the address of an OpenTelemetry receiver begins with http:// or https://, not %.100s", endpoint);
	if (cell__library_load(CELL__LIBRARY_CURL, err) < 0)
		return -1;
	otlp = cell__alloc(1, sizeof(*otlp));
	if (!otlp)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for traces");
	pthread_mutex_init(&otlp->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&otlp->more, &clock);
	pthread_condattr_destroy(&clock);
	otlp->endpoint = cell__strndup(endpoint, size && endpoint[size - 1] == '/' ? size - 1 : size);
	otlp->curl = curl_easy_init();
	if (!otlp->endpoint || !otlp->curl || add_headers(otlp, headers) < 0) {
		otlp_free(otlp);
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the headers for an OpenTelemetry receiver are name=value, with commas between them");
	}
	if (pthread_create(&otlp->thread, NULL, exporter_main, otlp) != 0) {
		otlp_free(otlp);
		return cell_fail(err, CELL_E_IO, errno, "start a thread for traces");
	}
	*ret_otlp = otlp;
	return 0;
}

void cell__otlp_destroy(struct cell__otlp *otlp)
{
	if (!otlp)
		return;
	pthread_mutex_lock(&otlp->lock);
	otlp->ends = true;
	pthread_cond_signal(&otlp->more);
	pthread_mutex_unlock(&otlp->lock);
	pthread_join(otlp->thread, NULL);
	otlp_free(otlp);
}
