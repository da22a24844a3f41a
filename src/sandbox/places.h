/*
 * Compares the paths that the host trusts with the paths that confined code can write to.
 *
 * Code that can write to a file that the host trusts (a tool's definition, a package, an interpreter, a policy) runs outside
 * of its sandbox at the host's next use of it.  A mount over such a file does not help: it vanishes as soon as the host renames
 * another file to that name.  So the two must not overlap: an open session with a writable place, and a trusted path that is
 * in that place or is reached through it, cannot coexist; the later of the two is refused.
 *
 * A struct cell__places belongs to an engine and to its loop's thread.  Lists are built on other threads, because that looks up paths,
 * which may block; the loop's thread only compares them.
 */
#ifndef CELL_SANDBOX_PLACES_H
#define CELL_SANDBOX_PLACES_H

#include "base/base.h"
#include "sandbox/policy.h"

/* A path that the host trusts. */
struct cell__place {
	const char *what; /* for messages: "the storage folder"; static */
	bool whole;       /* nothing inside may be writable either; else it may contain a writable folder */
	bool unlinked; /* it may be inside a writable folder, but no link there may lead to it: the host writes to it through descriptors */
	char *path; /* as it was given, absolute */
	char **points; /* real paths: each link on the way to it, then the place itself; NULL-terminated */
};

struct cell__place_list {
	struct cell__place *items;
	size_t count;
};
#define CELL_PLACE_LIST_INIT { NULL, 0 }

/* Resolves path, which need not exist; relative to the current directory.  NULL adds nothing. */
int cell__place_add(struct cell__place_list *list, const char *what, bool whole, const char *path, struct cell_error *err);
int cell__place_add_unlinked(struct cell__place_list *list, const char *what, const char *path, struct cell_error *err);
/* An interpreter with the files it loads itself: its venv, and the installation of its program. */
int cell__place_add_python(struct cell__place_list *list, const char *python, struct cell_error *err);
/* Looks nothing up: any thread. */
int cell__place_list_copy(const struct cell__place_list *list, struct cell__place_list *ret_copy, struct cell_error *err);
/* Whether both name the same places, with the same links on the way to them. */
bool cell__place_list_equal(const struct cell__place_list *a, const struct cell__place_list *b);
void cell__place_list_finish(struct cell__place_list *list);

/* The paths that one session can write to: real paths, each with a name for messages. */
struct cell__writable {
	char *path;
	char *name; /* "the writable workspace", "the writable folder of the policy's line 4," */
};

struct cell__writable_list {
	struct cell__writable *items;
	size_t count;
	struct cell__writable_list *next; /* of the engine's */
	bool named; /* the other names that mounts give to the paths are in it */
	bool held;
};
#define CELL_WRITABLE_LIST_INIT { NULL, 0, NULL, false, false }

/* Why code must not write to this folder, a real path; NULL: it may write there. */
const char *cell__place_refusal(const char *path);
/*
 * The places that sessions with this policy write to; workspace: real path, used when it is writable.  Refuses the system's
 * folders, homes and what is executed or read from there at the next login, at boot or by cron.
 */
int cell__writable_init(struct cell__writable_list *list, const struct cell__sandbox_policy *policy, const char *workspace,
			struct cell_error *err);
/* Of a list that is not the engine's yet; looks nothing up. */
int cell__writable_copy(const struct cell__writable_list *list, struct cell__writable_list *ret_copy, struct cell_error *err);
void cell__writable_finish(struct cell__writable_list *list);

/* Refuses trusted paths that confined code could change.  Adds the other names that mounts give to writable paths. */
int cell__places_check(const struct cell__place_list *trusted, struct cell__writable_list *writable, struct cell_error *err);

/* ---- all of an engine ---- */

struct cell__places;
struct cell__places *cell__places_create(void);
void cell__places_destroy(struct cell__places *places);

/* Trusts these until cell__places_untrust() of the same; counted.  Refuses paths that an open session can write to. */
int cell__places_trust(struct cell__places *places, const struct cell__place_list *list, struct cell_error *err);
void cell__places_untrust(struct cell__places *places, const struct cell__place_list *list);
/* Adds the other names that mounts give to writable paths, for cell__places_write().  Any thread but the loop's. */
int cell__places_name(struct cell__places *places, struct cell__writable_list *list, struct cell_error *err);
/* A session that writes there is opened; the list is linked in until cell__places_unwrite(). */
int cell__places_write(struct cell__places *places, struct cell__writable_list *list, struct cell_error *err);
/* The paths that open sessions write to; NULL: none. */
const struct cell__writable_list *cell__places_writable(const struct cell__places *places);
void cell__places_unwrite(struct cell__places *places, struct cell__writable_list *list);

#endif
