#include "spawn/supervisor.h"

static void handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size)
{
	struct cell__supervisor *supervisor = arg;
	if (head->type == CELL_SPAWN_PROCESS_STARTED || head->type == CELL_SPAWN_PROCESS_EXITED)
		cell__process_message(supervisor, head, payload, size);
	else if (supervisor->listener.message)
		supervisor->listener.message(supervisor->listener.arg, head, payload, size);
}

static void finish(struct cell__supervisor *supervisor)
{
	free(cell__take_ptr(supervisor->program));
	cell__plans_finish(&supervisor->plans);
	supervisor->destroyed(supervisor->destroyed_arg);
}

static void handle_ended(void *arg)
{
	struct cell__supervisor *supervisor = arg;
	if (supervisor->destroying) {
		cell__spawn_client_stop(&supervisor->client);
		finish(supervisor);
		return;
	}
	if (supervisor->listener.ended)
		supervisor->listener.ended(supervisor->listener.arg);
	cell__process_spawner_ended(supervisor);
	cell__spawn_client_stop(&supervisor->client); /* lets go of the lifeline */
}

int cell__supervisor_init(struct cell__supervisor *supervisor, struct cell__loop *loop, const char *program, struct cell_error *err)
{
	*supervisor = (struct cell__supervisor){ .loop = loop, .next_id = 2, .plans = CELL_PLANS_INIT };
	supervisor->program = cell__strdup(program);
	if (!supervisor->program)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__spawn_client_init(&supervisor->client, loop, handle_message, handle_ended, supervisor);
	return 0;
}

int cell__supervisor_start(struct cell__supervisor *supervisor, struct cell_error *err)
{
	return cell__spawn_client_start(&supervisor->client, supervisor->program, err);
}

void cell__supervisor_finish(struct cell__supervisor *supervisor, void (*done)(void *arg), void *arg)
{
	supervisor->destroying = true;
	supervisor->destroyed = done;
	supervisor->destroyed_arg = arg;
	if (cell__spawn_client_running(&supervisor->client))
		cell__spawn_client_finish(&supervisor->client);
	else
		finish(supervisor);
}
