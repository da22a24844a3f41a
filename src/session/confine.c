#define _GNU_SOURCE
#include "session/session.h"

#include <string.h>

#include "space/servers.h"
#include "space/space.h"
#include "spawn/confinement.h"

/*
 * Connections of confined programs count as those of a session with the same confinement: of the calling session, or, for a server that
 * sessions share, of any such session. Without one nobody could answer for them.
 */
static int tell(void *arg, const struct cell__confinement *confinement, const struct cell__egress_event *event, struct cell_error *err)
{
	struct cell_space *space = arg;
	struct cell_engine *engine = cell__space_engine(space);
	for (const struct cell_session *session = engine->sessions; session; session = session->next) {
		if (session->options.space != space || !session->slot || !session->slot->confinement ||
		    !cell__confinement_equal(session->slot->confinement, confinement))
			continue;
		if (!session->options.audit)
			return 0;
		return cell__audit_connection(cell__audit_of(session->options.audit), session->id, session->cell_hash,
					      session->executor->name, event, err);
	}
	return cell_fail(err, CELL_E_CLOSED, 0, "the session of this program has ended");
}

int cell__confine_strictly(struct cell__supervisor *supervisor, const char *workspace, struct cell__confinement **ret_confinement,
			   struct cell_error *err)
{
	struct cell__sandbox_policy policy;
	if (cell__sandbox_policy_load(&policy, CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	const struct cell__confinement_options options = {
		.policy = &policy,
		.workspace = workspace,
		.mode = workspace ? CELL_WORKSPACE_RO : CELL_WORKSPACE_NONE,
		.network = CELL_CONFINED_OFFLINE,
	};
	int rc = cell__confinement_create(supervisor, &options, ret_confinement, err);
	cell__sandbox_policy_finish(&policy);
	return rc;
}

/* *ret_confinement is borrowed; NULL: it has to be made first. */
static int confinement_of(struct cell_session *session, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell__slot *slot = session->slot;
	const struct cell__executor *executor = session->executor;
	if (!slot->confinement && slot->unconfined.code) {
		if (err)
			*err = slot->unconfined;
		return -1;
	}
	if (!slot->confinement && executor->confine) {
		if (executor->confine(slot->kernel, &slot->confinement, err) < 0)
			return -1;
		if (!slot->confinement)
			return cell_fail(err, CELL_E_BUSY, 0, "the session's kernel is not ready yet; try again");
	}
	if (slot->confinement)
		cell__confinement_watch(slot->confinement, tell, session->options.space);
	*ret_confinement = slot->confinement;
	return 0;
}

/* The session of a call, if it has a slot. */
static struct cell_session *session_of(struct cell_space *space, const char *id)
{
	struct cell_session *session = id && *id ? cell__session_of(cell__space_engine(space), space, id) : NULL;
	return session && session->slot ? session : NULL;
}

static int find_confinement(void *arg, const struct cell__call *call, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell_space *space = arg;
	struct cell__confinement *confinement = NULL;
	struct cell_session *session = session_of(space, call->session_id);
	if (session && confinement_of(session, &confinement, err) < 0)
		return -1;
	/* A client's own call, outside of any session: with the confinement of one of the space's sessions, or with no access at all. */
	bool outside = !call->session_id || !*call->session_id;
	for (session = cell__space_engine(space)->sessions; outside && !confinement && session; session = session->next)
		if (session->options.space == space && session->slot && session->slot->ready && session->executor->untrusted)
			(void)confinement_of(session, &confinement, NULL);
	*ret_confinement = cell__confinement_ref(confinement);
	return 0;
}

/* ---- for a caller that is less trusted than the code of its session, or has none ---- */

struct making {
	struct cell_space *space;
	struct cell__supervisor *supervisor;
	char *session_id, *workspace; /* NULL: none */
	struct cell__confinement *confinement;
	struct cell_error err;
};

static void destroy_making(struct making *making)
{
	cell__confinement_unref(making->confinement);
	free(making->session_id);
	free(making->workspace);
	free(making);
}

static void *begin_making(void *arg, const struct cell__call *call)
{
	struct cell_space *space = arg;
	const struct cell_session *session = session_of(space, call->session_id);
	struct making *making = cell__alloc(1, sizeof *making);
	if (!making)
		return NULL;
	making->space = space;
	making->supervisor = &cell__space_engine(space)->supervisor;
	if (!session)
		return making;
	making->session_id = cell__strdup(session->id);
	making->workspace = cell__strdup(session->options.cwd);
	if (making->session_id && making->workspace)
		return making;
	destroy_making(making);
	return NULL;
}

static void make(void *arg)
{
	struct making *making = arg;
	(void)cell__confine_strictly(making->supervisor, making->workspace, &making->confinement, &making->err);
}

/* The session keeps it for the next call; it goes with the slot. */
static int end_making(void *arg, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct making *making = arg;
	struct cell_session *session = session_of(making->space, making->session_id);
	struct cell__confinement *confinement = cell__take_ptr(making->confinement);
	if (confinement) {
		cell__confinement_watch(confinement, tell, making->space);
		if (session && !session->slot->confinement)
			session->slot->confinement = cell__confinement_ref(confinement);
		*ret_confinement = confinement;
	} else if (err) {
		*err = making->err;
	}
	destroy_making(making);
	return confinement ? 0 : -1;
}

const struct cell__confine_ops cell__session_confine_ops = {
	.find = find_confinement,
	.begin = begin_making,
	.make = make,
	.end = end_making,
};
