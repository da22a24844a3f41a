/* Answers that take reading a disk or a network: on the pool, so that the loop waits for neither.  The server ends only after them. */
#include "server/api.h"

#include <stdlib.h>

static void free_reading(struct cell__lookup *reading)
{
	free(reading->path);
	free(reading->key);
	free(reading->text);
	cell__buf_finish(&reading->tail);
	free(reading);
}

static void do_read(uv_work_t *work)
{
	struct cell__lookup *reading = work->data;

	reading->read(reading);
}

static void handle_read(uv_work_t *work, int status)
{
	struct cell__lookup *reading = work->data;
	struct cell_server *server = reading->request->server;

	(void)status; /* never cancelled */
	if (reading->answer && reading->shown)
		reading->shown(reading);
	if (reading->text)
		cell__answer_text(reading->request, MHD_HTTP_OK, cell__take_ptr(reading->text));
	else if (reading->answer)
		cell__answer_json(reading->request, MHD_HTTP_OK, reading->answer);
	else
		cell__answer_error(reading->request, &reading->err);
	free_reading(reading);
	server->readings--;
	cell__server_advance(server);
}

struct cell__lookup *cell__lookup_create(struct cell__request *request, void (*read)(struct cell__lookup *reading), const char *path,
					 const char *key)
{
	struct cell__lookup *reading = cell__alloc(1, sizeof(*reading));

	if (reading) {
		*reading = (struct cell__lookup){ .request = request, .read = read };
		reading->path = path ? cell__strdup(path) : NULL;
		reading->key = key ? cell__strdup(key) : NULL;
		reading->work.data = reading;
	}
	if (!reading || !reading->path != !path || !reading->key != !key) {
		if (reading)
			free_reading(reading);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory");
		return NULL;
	}
	return reading;
}

void cell__lookup_begin(struct cell__lookup *reading)
{
	struct cell_server *server = reading ? reading->request->server : NULL;

	if (!reading)
		return;
	server->readings++;
	uv_queue_work(cell__loop_uv(server->engine->loop), &reading->work, do_read, handle_read);
}
