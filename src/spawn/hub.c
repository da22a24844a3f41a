#include "spawn/hub.h"

static void handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size)
{
	struct cell__spawn_hub *hub = arg;
	if (head->type == CELL_SPAWN_PROCESS_STARTED || head->type == CELL_SPAWN_PROCESS_EXITED)
		cell__process_message(hub, head, payload, size);
	else if (hub->listener.message)
		hub->listener.message(hub->listener.arg, head, payload, size);
}

static void finish(struct cell__spawn_hub *hub)
{
	free(cell__take_ptr(hub->program));
	cell__plans_finish(&hub->plans);
	hub->destroyed(hub->destroyed_arg);
}

static void handle_ended(void *arg)
{
	struct cell__spawn_hub *hub = arg;
	if (hub->destroying) {
		cell__spawn_client_stop(&hub->client);
		finish(hub);
		return;
	}
	if (hub->listener.ended)
		hub->listener.ended(hub->listener.arg);
	cell__process_spawner_ended(hub);
	cell__spawn_client_stop(&hub->client); /* lets go of the lifeline */
}

int cell__spawn_hub_init(struct cell__spawn_hub *hub, struct cell__loop *loop, const char *program, struct cell_error *err)
{
	*hub = (struct cell__spawn_hub){ .loop = loop, .next_id = 2 };
	hub->program = cell__strdup(program);
	if (!hub->program)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell__spawn_client_init(&hub->client, loop, handle_message, handle_ended, hub);
	return 0;
}

int cell__spawn_hub_start(struct cell__spawn_hub *hub, struct cell_error *err)
{
	return cell__spawn_client_start(&hub->client, hub->program, err);
}

void cell__spawn_hub_finish(struct cell__spawn_hub *hub, void (*done)(void *arg), void *arg)
{
	hub->destroying = true;
	hub->destroyed = done;
	hub->destroyed_arg = arg;
	if (cell__spawn_client_running(&hub->client))
		cell__spawn_client_finish(&hub->client);
	else
		finish(hub);
}
