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

/* Made with the first call that needs it; it goes with the slot. */
static int confinement_of(struct cell_session *session, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell__slot *slot = session->slot;
	if (!slot->confinement && slot->unconfined.code) {
		if (err)
			*err = slot->unconfined;
		return -1;
	}
	if (!slot->confinement) {
		/* Sessions of untrusted code have one from the beginning; this is for an untrusted client of trusted code, which is rare. */
		const struct cell__executor *executor = session->executor;
		if ((executor->confine
			     ? executor->confine(slot->kernel, &slot->confinement, err)
			     : cell__confine_strictly(&session->engine->supervisor, session->options.cwd, &slot->confinement, err)) < 0)
			return -1;
		if (!slot->confinement)
			return cell_fail(err, CELL_E_BUSY, 0, "the session's kernel is not ready yet; try again");
	}
	cell__confinement_watch(slot->confinement, tell, session->options.space);
	*ret_confinement = slot->confinement;
	return 0;
}

int cell__session_confine(void *arg, const struct cell__call *call, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell_space *space = arg;
	struct cell_engine *engine = cell__space_engine(space);
	struct cell__confinement *confinement = NULL;
	struct cell_session *session = call->session_id && *call->session_id ? cell__session_of(engine, space, call->session_id) : NULL;
	if (session && session->slot) {
		if (confinement_of(session, &confinement, err) < 0)
			return -1;
		*ret_confinement = cell__confinement_ref(confinement);
		return 0;
	}
	/* A client's own call, outside of any session: with the confinement of one of the space's sessions, or with no access at all. */
	bool outside = !call->session_id || !*call->session_id;
	for (session = engine->sessions; outside && session; session = session->next)
		if (session->options.space == space && session->slot && session->slot->ready && session->executor->untrusted &&
		    confinement_of(session, &confinement, NULL) == 0) {
			*ret_confinement = cell__confinement_ref(confinement);
			return 0;
		}
	if (cell__confine_strictly(&engine->supervisor, NULL, ret_confinement, err) < 0)
		return -1;
	cell__confinement_watch(*ret_confinement, tell, space);
	return 0;
}
