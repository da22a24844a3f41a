/*
 * http_load [-w] PORT CONNECTIONS SECONDS BODY [HEADER...]: POST /execute over keep-alive connections, one request at a time on each;
 * the i-th connection sends the i-th HEADER, where there are as many, else the last.  Prints one line of JSON.
 *
 * With the last HEADER "X-Session-ID: own" each connection opens a session first and asks for it alone, as a client with a connection for each
 * session does: no request is passed on to another worker.  The HEADER before it, if there is one, goes along with all requests.
 *
 * -w: prints "ready" when all connections are open, and begins when its stdin ends, so that several can begin together.
 *
 * One thread and epoll: the client must not be what is measured.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_SAMPLES 4000000
#define MAX_EVENTS 256

struct connection {
	int fd;
	char request[2048], answer[16384];
	size_t request_size, got;
	double began;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int fail(const char *what)
{
	fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
	return -1;
}

static int write_request(struct connection *c, const char *body, const char *header)
{
	c->request_size = (size_t)snprintf(
		c->request, sizeof(c->request),
		"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s%sContent-Length: "
		"%zu\r\n\r\n%s",
		header, *header ? "\r\n" : "", strlen(body), body);
	return c->request_size < sizeof(c->request) ? 0 : fail("the request is too long");
}

static int open_connection(struct connection *c, int port, const char *body, const char *header)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int on = 1;

	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) || connect(c->fd, (struct sockaddr *)&to, sizeof(to)))
		return fail("connect");
	return write_request(c, body, header);
}

#define OWN "X-Session-ID: own"

/* Opens a session on the connection, and asks for it from now on. */
static int own_session(struct connection *c, const char *body, const char *header)
{
	static const char key[] = "\"session_id\":\"";
	char both[512];
	ssize_t n;
	char *id;

	c->request_size = (size_t)snprintf(
		c->request, sizeof(c->request),
		"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s%sContent-Length: 2\r\n\r\n{}",
		header, *header ? "\r\n" : "");
	if (write(c->fd, c->request, c->request_size) != (ssize_t)c->request_size)
		return fail("write");
	n = read(c->fd, c->answer, sizeof(c->answer) - 1);
	c->answer[n > 0 ? n : 0] = '\0';
	id = strstr(c->answer, key);
	if (!id || !strchr(id + strlen(key), '"'))
		return fail("no session was opened");
	id += strlen(key);
	*strchr(id, '"') = '\0';
	snprintf(both, sizeof(both), "%s%sX-Session-ID: %s", header, *header ? "\r\n" : "", id);
	return write_request(c, body, both);
}

static int send_request(struct connection *c)
{
	c->got = 0;
	c->began = now_s();
	return write(c->fd, c->request, c->request_size) == (ssize_t)c->request_size ? 0 : fail("write");
}

/* 1: the answer is there; 0: not yet; -1: it is none. */
static int read_answer(struct connection *c)
{
	ssize_t n = read(c->fd, c->answer + c->got, sizeof(c->answer) - 1 - c->got);
	char *head, *length;

	if (n <= 0)
		return fail("the server hung up");
	c->got += (size_t)n;
	c->answer[c->got] = '\0';
	head = strstr(c->answer, "\r\n\r\n");
	if (!head)
		return 0;
	length = strcasestr(c->answer, "\r\ncontent-length:");
	if (!length || strncmp(c->answer, "HTTP/1.1 200", 12)) {
		fprintf(stderr, "http_load: unexpected answer: %s\n", c->answer);
		return -1;
	}
	return c->got >= (size_t)(head + 4 - c->answer) + strtoul(length + 17, NULL, 10);
}

static void wait_for_others(void)
{
	char byte;

	puts("ready");
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
}

int main(int argc, char **argv)
{
	bool waits = argc > 1 && !strcmp(argv[1], "-w");

	if (waits)
		argc--, argv++;

	int port = argc > 4 ? atoi(argv[1]) : 0, count = argc > 4 ? atoi(argv[2]) : 0, headers = argc - 5,
	    epoll = epoll_create1(EPOLL_CLOEXEC);
	struct connection *connections = calloc((size_t)count + 1, sizeof(*connections));
	double *samples = malloc(MAX_SAMPLES * sizeof(*samples)), began, end;
	struct epoll_event events[MAX_EVENTS];
	size_t n_samples = 0;
	bool own = headers > 0 && !strcmp(argv[argc - 1], OWN);

	if (!port || count < 1 || !connections || !samples)
		return fprintf(stderr, "usage: http_load [-w] PORT CONNECTIONS SECONDS BODY [HEADER...]\n"), 2;
	for (int i = 0; i < count; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &connections[i] };
		const char *header = headers > 0 ? argv[5 + (i < headers ? i : headers - 1)] : "";

		if (own)
			header = headers > 1 ? argv[argc - 2] : "";
		if (open_connection(&connections[i], port, argv[4], header) || (own && own_session(&connections[i], argv[4], header)) ||
		    epoll_ctl(epoll, EPOLL_CTL_ADD, connections[i].fd, &event))
			return 1;
	}
	if (waits)
		wait_for_others();
	began = now_s();
	end = began + atof(argv[3]);
	for (int i = 0; i < count; i++)
		if (send_request(&connections[i]))
			return 1;
	while (now_s() < end && n_samples < MAX_SAMPLES - MAX_EVENTS) {
		int n = epoll_wait(epoll, events, MAX_EVENTS, 1000);

		for (int i = 0; i < n; i++) {
			struct connection *c = events[i].data.ptr;
			int done = read_answer(c);

			if (done < 0)
				return 1;
			if (done) {
				samples[n_samples++] = now_s() - c->began;
				if (send_request(c))
					return 1;
			}
		}
	}
	end = now_s();
	if (!n_samples)
		return fprintf(stderr, "http_load: no answer\n"), 1;
	qsort(samples, n_samples, sizeof(*samples), compare);
	printf("{\"per_s\": %.1f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"n\": %zu}\n", (double)n_samples / (end - began),
	       samples[n_samples / 2] * 1e3, samples[n_samples * 99 / 100] * 1e3, n_samples);
	return 0;
}
