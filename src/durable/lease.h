/*
 * Who has a saved session awake.
 *
 *     asleep ──take: number + 1──▶ held ──renewed every quarter of its time──▶ held
 *                                   │ released: by a save that ends in sleep, by closing, by removing
 *                                   └ lost: not renewed in time, or taken by another holder ──▶ the holder ends the kernel
 *
 * The number is the fencing number: it grows with each holder, a save names the one under which its session was taken, and the storage
 * refuses it once there is a larger one.  In Redis the storage compares it in the script that writes; in a folder the lock file has it, and the
 * lock of that file (flock) ends with its process, so nothing has to be renewed there.
 */
#ifndef CELL_DURABLE_LEASE_H
#define CELL_DURABLE_LEASE_H

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

#define CELL_LEASE_MS 15000
#define CELL_LEASE_MIN_MS 1000
#define CELL_LEASE_MAX_MS 3600000
#define CELL_LEASE_NAME_BYTES 256 /* of a holder's name, and of its URL */

/* How this program is named to others that want the session; what is NULL or 0 has a default (the host's name and the pid, none, CELL_LEASE_MS). */
struct cell__lease_host {
	const char *name, *url;
	int64_t lease_ms;
	/* A storage whose leases expire: it was not renewed in time, or another one has it.  Any thread, with locks held: it must only post a task. */
	void (*lost)(void *arg);
	void *arg;
};

/* The name and URL that are written, checked: without control characters, within the limits.  buf: for the default. */
int cell__lease_check(const struct cell__lease_host *host, struct cell_error *err);
const char *cell__lease_name(const struct cell__lease_host *host, char *buf, size_t size);
int64_t cell__lease_ms(const struct cell__lease_host *host);
/* CELL_E_CONFLICT, with the name and the URL of the holder as far as they are known.  Their bytes come from the storage. */
int cell__lease_conflict(struct cell_error *err, const char *id, const char *name, const char *url);
/* CELL_E_NOT_FOUND, for one that is another owner's as well. */
static inline int cell__lease_fail_missing(struct cell_error *err, const char *id)
{
	return cell_fail(
		err, CELL_E_NOT_FOUND, 0,
		"there is no saved session %.40s here that is yours: check its id, and the folder or URL; a list of the saved sessions "
		"has those that there are",
		id);
}
/* As cell__lease_conflict(), for one who had it. */
int cell__lease_fail_lost(struct cell_error *err, const char *id, const char *name, const char *url);

/* What the lock file of a folder says: the number, and the name and URL of the one who wrote it.  0: nobody has. */
uint64_t cell__lease_read(int fd, char ret_name[CELL_LEASE_NAME_BYTES + 1], char ret_url[CELL_LEASE_NAME_BYTES + 1]);

#endif
