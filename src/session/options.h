/*
 * The options of a session: checked, copied, immutable for its lifetime.  Reading them accesses files, so not on the loop's
 * thread; afterwards any thread may read.
 */
#ifndef CELL_SESSION_OPTIONS_H
#define CELL_SESSION_OPTIONS_H

#include "executors/executor.h"
#include "sandbox/places.h"
#include "sandbox/policy.h"

struct cell__options {
	const struct cell__executor *executor;
	char *python, *preload, *cwd;
	char **env; /* complete; the first entry is PATH */
	int64_t timeout_ms, grace_ms;
	size_t max_output;
	size_t undo; /* points that are kept */
	int64_t points_bytes; /* that they may take; 0: no limit */
	size_t allow_fork;    /* children that its code may have at a time, with their own children */
	bool speculate;       /* while calls wait for a person */
	bool call_results;    /* events have them */
	int64_t fork_memory, fork_time_ms; /* that they may use; 0: no limit */
	cell_event_fn on_event;
	void *event_arg;
	struct cell_space *space; /* or NULL; borrowed, as are policy and audit */
	const struct cell_policy *policy;
	struct cell_audit *audit;
	unsigned gate_kinds;
	int64_t approval_timeout_ms;
	struct cell__kernel_wants wants;
	bool approval_stops_clock, no_spill;
	bool takes_questions; /* of MCP servers */
	char *zygote_owner; /* "": none */
	char *workspace_path; /* of the code's working directory inside; "": as outside */
	void *own; /* options of its executor, see read_options(); NULL: none */
	struct cell__sandbox_policy confine;
	bool confined; /* confine holds */
	bool layered;  /* the code works in a layer over cwd */
	struct cell__host_limits limits; /* for code that is not trusted */
	char *saved_dir, *saved_owner, *saved_key, *saved_notes, *saved_host, *saved_url; /* as given; NULL: not given */
	int64_t saved_lease_ms;
	bool saved_portable; /* saves are portable */
	bool saved_auto; /* a save that can be no image is portable */
	char *record, *replay; /* files; NULL: not given */
	bool saved_compress, saved_unsynced, saved_points;
	enum cell__durable_mode { CELL_DURABLE_NOT, CELL_DURABLE_CELLS, CELL_DURABLE_RESULTS } durable;
	struct cell__place_list places; /* files with this session's rules, and further files that its host trusts */
};

/* On failure, too, finish() must follow. */
int cell__options_init(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err);
void cell__options_finish(struct cell__options *options);
/* The same options for a fork: of an executor without options of its own.  finish() must follow, as above. */
int cell__options_copy(const struct cell__options *options, struct cell__options *ret_copy, struct cell_error *err);
/*
 * container.c: checks the folder that a container is to write to, and makes it.  *ret_storage is its real path, to be shared
 * (cell__store_share()) once all else is fine; NULL: the storage is not a folder.  free() it.
 */
int cell__options_make_storage(const struct cell_container_options *options, char **ret_storage, struct cell_error *err);
/* Whether the code can connect to listeners on this machine's own addresses. */
bool cell__options_reach_host(const struct cell__options *options);

#endif
