/* Saved sessions: the public functions, and the same for callers on the loop's thread. */
#include <stdlib.h>
#include <string.h>

#include "durable/durable.h"
#include "session/session.h"

static char *hibernate(struct cell_session *session, const char *name, bool with_points, struct cell_error *err)
{
	if (cell__require(err, session) < 0 || cell__engine_may_wait(session->engine, name, err) < 0)
		return NULL;
	struct cell__saving saving = { .waiting = { .task.fn = cell__session_do_save, .session = session }, .with_points = with_points };
	cell__waiter_init(&saving.waiting.waiter);
	cell__loop_do(session->engine->loop, &saving.waiting.task, &saving.waiting.waiter);
	cell__waiter_finish(&saving.waiting.waiter);
	if (saving.waiting.failed && err)
		*err = saving.waiting.err;
	return saving.answer;
}

char *cell_session_hibernate(struct cell_session *session, struct cell_error *err)
{
	return hibernate(session, "cell_session_hibernate", false, err);
}

char *cell_session_hibernate_with_points(struct cell_session *session, struct cell_error *err)
{
	return hibernate(session, "cell_session_hibernate_with_points", true, err);
}

struct asking {
	struct cell__saving saving; /* first */
	cell__saved_done done;
	void *arg;
};

static void handle_saved(struct cell__waiting *waiting)
{
	struct asking *asking = (struct asking *)waiting;
	asking->done(asking->arg, asking->saving.answer, waiting->failed ? &waiting->err : NULL);
	free(asking->saving.answer);
	free(asking);
}

int cell__session_hibernate_on_loop(struct cell_session *session, bool with_points, cell__saved_done done, void *arg,
				    struct cell_error *err)
{
	struct asking *asking = cell__alloc(1, sizeof *asking);
	if (!asking)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	asking->done = done;
	asking->arg = arg;
	asking->saving.waiting.session = session;
	asking->saving.with_points = with_points;
	asking->saving.waiting.done = handle_saved;
	cell__session_do_save(&asking->saving.waiting.task);
	return 0;
}

void cell__session_forget_on_loop(struct cell_session *session)
{
	session->forgets = true;
}

/* Takes over the value. */
static char *print_saved(json_t *value, struct cell_error *err)
{
	char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	if (value && !text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
	json_decref(value);
	return text;
}

char *cell_saved_list(const char *dir, const char *owner, const char *key, struct cell_error *err)
{
	const struct cell__saved_search all = { .owner = owner ? owner : "" };
	if (cell__require(err, dir) < 0)
		return NULL;
	json_t *page = cell__durable_page(dir, &all, key, err), *list = json_incref(json_object_get(page, "sessions"));
	json_decref(page);
	return print_saved(list, err);
}

char *cell_saved_page(const char *dir, const char *owner, const char *key, const char *after, size_t limit, struct cell_error *err)
{
	const struct cell__saved_search search = { .owner = owner ? owner : "",
						   .limit = limit ? limit : CELL_DEFAULT_SAVED_PAGE,
						   .after = after };
	return cell__require(err, dir) < 0 ? NULL : print_saved(cell__durable_page(dir, &search, key, err), err);
}

int cell_saved_remove(const char *dir, const char *owner, const char *key, const char *id, struct cell_error *err)
{
	struct cell__durable *durable;
	const struct cell__saved *saved;
	if (cell__require(err, dir, id) < 0 || cell__durable_open(dir, id, key, false, &durable, err) < 0)
		return -1;
	if (cell__durable_state(durable, &saved, err) < 0) {
		cell__durable_close(durable);
		return -1;
	}
	if (strcmp(saved->owner, owner ? owner : "") != 0) {
		cell__durable_close(durable);
		return cell__lease_fail_missing(err, id);
	}
	return cell__durable_remove(durable, err);
}
