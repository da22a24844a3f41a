/*
 * What the tests of the audit log share: a folder for each test, a log on a loop of its own, and reading it back.  The
 * program's fsync() and fdatasync() are counted, and fail where a test wants it.
 */
#ifndef CELL_TEST_AUDIT_SUPPORT_H
#define CELL_TEST_AUDIT_SUPPORT_H

#include <jansson.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "gate/audit.h"
#include "support.h"

extern atomic_int audit_syncs, audit_dir_syncs, audit_sync_error;
extern char audit_dir[64], audit_live[128];
#define AUDIT_TEST(name) cmocka_unit_test_setup_teardown(name, audit_begin, audit_end)
#define AUDIT_EACH 400 /* records of each writer */

struct rig {
	struct cell__loop *loop;
	struct cell__audit_log_options opts;
	struct cell__audit_log *audit;
	struct cell_error err;
	int rc;
	const struct cell__audit_record *record;
	atomic_int ok, failed, last_error;
	size_t asked;
	char logged[4096];
};

int audit_begin(void **state);
int audit_end(void **state);
/* The n-th rotated file; 0: the one that is written to. */
const char *audit_numbered(int n);
/* -1: there is none. */
off_t audit_size(const char *path);
void audit_put(const char *path, const char *mode, const char *text);
void rig_init(struct rig *rig);
int rig_open(struct rig *rig);
int rig_write(struct rig *rig, const struct cell__audit_record *record);
/* Has every record that was written been answered for? */
bool rig_all_told(void *arg);
void rig_wait(struct rig *rig);
int rig_admit(struct rig *rig);
struct cell__audit_stats rig_stats(struct rig *rig);
void rig_finish(struct rig *rig);
struct cell__audit_record audit_simple(const char *request);
/* All records, and what the reader had to say of others. */
json_t *audit_read(const struct cell_audit_filter *filter, json_t **ret_problems);
const char *audit_text(const json_t *records, size_t i, const char *key);
void rig_write_many(struct rig *rig, int count);
/* For a child: AUDIT_EACH records, the session named after the number. */
void audit_be_a_writer(int number);

#endif
