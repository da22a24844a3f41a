/* cell_container_build(): an image for the executor "container". */
#include "base/sized.h"
#include "executors/container/container.h"
#include "space/engine.h"

struct building {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_engine *engine;
	struct cell__http *http;
	struct cell__docker docker;
	json_t *config;
	void (*progress)(void *arg, const char *line);
	void *arg;
	struct cell_error err;
};

static void handle_http_gone(void *arg)
{
	struct building *building = arg;
	cell__docker_finish(&building->docker);
	cell__waiter_signal(&building->waiter);
}

static void handle_built(void *arg, const struct cell_error *err)
{
	struct building *building = arg;
	if (err)
		building->err = *err;
	cell__http_close(building->http, handle_http_gone, building);
}

static void handle_line(void *arg, const char *line)
{
	struct building *building = arg;
	if (building->progress)
		building->progress(building->arg, line);
}

static void start(struct cell__task *task)
{
	struct building *building = (struct building *)task;
	if (cell__http_create(building->engine->loop, 2, &building->http, &building->err) < 0) {
		cell__waiter_signal(&building->waiter);
		return;
	}
	if (cell__docker_init(&building->docker, building->http, json_string_value(json_object_get(building->config, "engine")),
			      &building->err) < 0) {
		cell__http_close(building->http, handle_http_gone, building);
		return;
	}
	if (!cell__image_build(building->engine->loop, &building->docker, building->config, handle_line, handle_built, building)) {
		cell_fail(&building->err, CELL_E_NOMEM, 0, "out of memory to build an image");
		cell__http_close(building->http, handle_http_gone, building);
	}
}

int cell_container_build(struct cell_engine *engine, const struct cell_container_options *options,
			 void (*progress)(void *arg, const char *line), void *arg, struct cell_error *err)
{
	if (cell__require(err, engine, options) < 0)
		return -1;
	CELL_AUTO_FREE char *text = NULL;
	struct building building = { .task.fn = start, .engine = engine, .progress = progress, .arg = arg };
	if (cell__engine_may_wait(engine, "cell_container_build", err) < 0)
		return -1;
	if (cell__sized_check(options, "cell_container_options", err) < 0)
		return -1;
	if (!options->context)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "building an image needs a build context: a folder that contains packaging/Dockerfile");
	if (cell__container_describe(options, NULL, &text, err) < 0)
		return -1;
	building.config = json_loads(text, 0, NULL);
	if (!building.config)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__waiter_init(&building.waiter);
	cell__loop_do(engine->loop, &building.task, &building.waiter);
	cell__waiter_finish(&building.waiter);
	json_decref(building.config);
	if (building.err.code && err)
		*err = building.err;
	return building.err.code ? -1 : 0;
}
