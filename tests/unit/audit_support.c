#define _GNU_SOURCE
#include "audit_support.h"

#include <errno.h>
#include <ftw.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* ---- the disk, as far as it cannot be had otherwise ---- */

atomic_int audit_syncs, audit_dir_syncs, audit_sync_error;

int fdatasync(int fd)
{
	audit_syncs++;
	if (audit_sync_error) {
		errno = audit_sync_error;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	audit_dir_syncs++;
	return (int)syscall(SYS_fsync, fd);
}

/* ---- a folder for each test ---- */

char audit_dir[64], audit_live[128];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)kind;
	(void)where;
	return remove(path);
}

int audit_begin(void **state)
{
	strcpy(audit_dir, "/tmp/cell-audit-XXXXXX");
	if (!mkdtemp(audit_dir))
		return -1;
	snprintf(audit_live, sizeof audit_live, "%s/audit.jsonl", audit_dir);
	audit_syncs = audit_dir_syncs = audit_sync_error = 0;
	return support_begin(state);
}

int audit_end(void **state)
{
	(void)umount2(audit_dir, MNT_DETACH); /* of a test that failed */
	nftw(audit_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return support_end(state);
}

const char *audit_numbered(int n)
{
	static char path[160];
	snprintf(path, sizeof path, n ? "%s.%d" : "%s", audit_live, n);
	return path;
}

off_t audit_size(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 ? st.st_size : -1;
}

void audit_put(const char *path, const char *mode, const char *text)
{
	FILE *file = fopen(path, mode);
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* ---- a log on a loop ---- */

static void take_log(void *arg, enum cell_log_level level, const char *fmt, ...)
{
	struct rig *rig = arg;
	(void)level;
	va_list ap;
	va_start(ap, fmt);
	size_t used = strlen(rig->logged);
	vsnprintf(rig->logged + used, sizeof rig->logged - used, fmt, ap);
	va_end(ap);
	strncat(rig->logged, "\n", sizeof rig->logged - strlen(rig->logged) - 1);
}

static void do_open(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_log_open(&rig->opts, &rig->audit, &rig->err);
}

void rig_init(struct rig *rig)
{
	*rig = (struct rig){ .opts = CELL__AUDIT_OPTIONS_INIT };
	CHECK(cell__loop_create(&rig->loop, NULL) == 0);
	rig->opts.loop = rig->loop;
	rig->opts.path = audit_live;
	rig->opts.log = take_log;
	rig->opts.log_arg = rig;
}

int rig_open(struct rig *rig)
{
	cell__loop_call(rig->loop, do_open, rig);
	return rig->rc;
}

static void handle_written(void *arg, int rc)
{
	struct rig *rig = arg;
	if (rc < 0)
		rig->last_error = -rc;
	if (rc < 0)
		rig->failed++;
	else
		rig->ok++;
}

static void do_write(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_write(rig->audit, rig->record, handle_written, rig, &rig->err);
	rig->asked += rig->rc == 0;
}

int rig_write(struct rig *rig, const struct cell__audit_record *record)
{
	rig->record = record;
	cell__loop_call(rig->loop, do_write, rig);
	return rig->rc;
}

bool rig_all_told(void *arg)
{
	struct rig *rig = arg;
	return (size_t)(rig->ok + rig->failed) == rig->asked;
}

void rig_wait(struct rig *rig)
{
	assert_true(support_wait(rig_all_told, rig));
}

static void do_admit(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_admit(rig->audit, &rig->err);
}

int rig_admit(struct rig *rig)
{
	cell__loop_call(rig->loop, do_admit, rig);
	return rig->rc;
}

struct stats_call {
	struct rig *rig;
	struct cell__audit_stats stats;
};

static void do_stats(void *arg)
{
	struct stats_call *call = arg;
	cell__audit_stats(call->rig->audit, &call->stats);
}

struct cell__audit_stats rig_stats(struct rig *rig)
{
	struct stats_call call = { .rig = rig };
	cell__loop_call(rig->loop, do_stats, &call);
	return call.stats;
}

struct close_call {
	struct cell__task task;
	struct cell__waiter waiter;
	struct rig *rig;
};

static void handle_closed(void *arg)
{
	cell__waiter_signal(&((struct close_call *)arg)->waiter);
}

static void do_close(struct cell__task *task)
{
	struct close_call *call = (struct close_call *)task;
	cell__audit_log_close(call->rig->audit, handle_closed, call);
}

void rig_finish(struct rig *rig)
{
	struct close_call call = { .task.fn = do_close, .rig = rig };
	if (rig->audit) {
		cell__waiter_init(&call.waiter);
		cell__loop_do(rig->loop, &call.task, &call.waiter);
		cell__waiter_finish(&call.waiter);
	}
	cell__loop_destroy(rig->loop);
}

struct cell__audit_record audit_simple(const char *request)
{
	return (struct cell__audit_record){ .session_id = "s", .request_id = request, .kind = "tool", .tool = "t" };
}

/* ---- reading it back ---- */

json_t *audit_read(const struct cell_audit_filter *filter, json_t **ret_problems)
{
	struct cell_audit_reader *reader = NULL;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_error err = { 0 };
	if (cell_audit_reader_open(audit_live, filter, &reader, &err) < 0)
		fail_msg("%s", err.msg);
	json_t *records = json_array(), *problems = json_array();
	int rc;
	while ((rc = cell_audit_reader_next(reader, &entry, &err)) == 1) {
		if (entry.json)
			json_array_append_new(records, json_loads(entry.json, JSON_ALLOW_NUL, NULL));
		else
			json_array_append_new(problems, json_pack("{s:s, s:I, s:s}", "file", entry.file, "line", (json_int_t)entry.line,
								  "problem", entry.problem));
	}
	assert_int_equal(rc, 0);
	cell_audit_reader_close(reader);
	if (ret_problems) {
		*ret_problems = problems;
	} else {
		if (json_array_size(problems) > 0)
			fail_msg("%s", json_dumps(problems, 0));
		json_decref(problems);
	}
	return records;
}

const char *audit_text(const json_t *records, size_t i, const char *key)
{
	const char *text = json_string_value(json_object_get(json_array_get(records, i), key));
	return text ? text : "(none)";
}

/* ---- writers ---- */

void rig_write_many(struct rig *rig, int count)
{
	for (int i = 0; i < count; i++) {
		char request[16];
		snprintf(request, sizeof request, "%06d", i);
		struct cell__audit_record record = audit_simple(request);
		CHECK(rig_write(rig, &record) == 0);
	}
}

void audit_be_a_writer(int number)
{
	struct rig rig;
	char session[16];
	rig_init(&rig);
	rig.opts.max_bytes = 8192;
	rig.opts.keep = CELL__AUDIT_LIMIT_KEEP;
	rig.opts.sync = CELL__AUDIT_SYNC_NEVER;
	CHECK(rig_open(&rig) == 0);
	snprintf(session, sizeof session, "p%d", number);
	for (int i = 0; i < AUDIT_EACH; i++) {
		char request[16];
		snprintf(request, sizeof request, "%d", i);
		struct cell__audit_record record = audit_simple(request);
		record.session_id = session;
		CHECK(rig_write(&rig, &record) == 0);
		if (i % 7 == 0)
			CHECK(support_wait(rig_all_told, &rig)); /* small batches and large ones */
	}
	rig_finish(&rig);
	CHECK(rig.ok == AUDIT_EACH);
}
