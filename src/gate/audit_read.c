/*
 * Reading an audit log: the rotated files, oldest first, then the live one; bad lines are reported and skipped.
 *
 * The files are opened newest first, so that a rotation in the meantime shows one of them twice and misses none. They stay open until they
 * are read to the end: a renamed file is still the same file.
 *
 * Each read of a file begins at the beginning of a line. A line without its end is never kept, because its writer may truncate it again.
 * Only a holder of the lock (shared; writers hold it exclusively) knows that no writer is about to complete it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "base/sized.h"
#include "gate/audit.h"
#include "gate/glob.h"

#define BLOCK (64u * 1024u)
#define LOCK_TRIES 100
#define LOCK_PAUSE_NS 10000000

struct log_file {
	char *name;
	int fd;
	dev_t dev;
	ino_t ino;
};

struct cell_audit_reader {
	char *path;
	char *session, *decision;
	struct cell__glob *tool, *callable;
	char since[CELL__AUDIT_TIME_SIZE];
	struct log_file *files; /* oldest first */
	size_t count, current;
	off_t start;            /* of the line that comes next */
	int64_t line;           /* its number, from 0 */
	int64_t skip;           /* so many lines are not wanted */
	char *block;            /* bytes read from `start` on */
	size_t block_size, block_room, block_at;
	bool too_long;          /* in the middle of a line that is too long */
	bool gap;               /* files went away before we read them */
	char *text;             /* of the entry that was given last */
};

/* ---- the filter ---- */

/* "2026-11-15", "2026-11-15T05:06:40.5Z", "... +01:00", or so long ago: "90s", "15m", "2h", "7d". */
static bool parse_since(const char *text, char out[static CELL__AUDIT_TIME_SIZE])
{
	static const struct {
		char letter;
		time_t seconds;
	} units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
	struct timespec when = { 0 };
	char *end;
	if (strlen(text) > 40)
		return false;
	long long number = strtoll(text, &end, 10);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (end > text && end[0] == units[i].letter && end[1] == '\0' && number >= 0 && number < 1000000000) {
			clock_gettime(CLOCK_REALTIME, &when);
			when.tv_sec -= (time_t)number * units[i].seconds;
			cell__audit_time(&when, out);
			return true;
		}
	struct tm tm = { 0 };
	const char *at = strptime(text, "%Y-%m-%d", &tm);
	if (!at || at - text != 10)
		return false;
	if (*at == 'T' || *at == ' ') {
		const char *time = at + 1;
		at = strptime(time, "%H:%M:%S", &tm);
		if (!at || at - time != 8)
			return false;
		if (*at == '.') {
			double part = strtod(at, &end);
			when.tv_nsec = (long)(part * 1e9);
			if (end == at + 1 || part < 0 || part >= 1)
				return false;
			at = end;
		}
		long offset = 0;
		int hours, minutes, used = 0;
		if ((*at == '+' || *at == '-') && sscanf(at + 1, "%2d:%2d%n", &hours, &minutes, &used) == 2 && used == 5 && hours >= 0 &&
		    hours < 24 && minutes >= 0 && minutes < 60) {
			offset = (*at == '-' ? -1 : 1) * (hours * 3600L + minutes * 60L);
			at += 6;
		} else if (*at == 'Z') {
			at++;
		}
		when.tv_sec -= offset;
	}
	when.tv_sec += timegm(&tm);
	cell__audit_time(&when, out);
	return *at == '\0';
}

static int load_tool(struct cell_audit_reader *reader, const char *text, struct cell_error *err)
{
	CELL_AUTO_FREE char *copy = cell__strdup(text);
	if (!copy)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	char *dot = strchr(copy, '.');
	const char *problem = NULL;
	if (dot)
		*dot = '\0';
	reader->tool = cell__glob_create(copy, &problem);
	if (dot && reader->tool)
		reader->callable = cell__glob_create(dot + 1, &problem);
	if (!reader->tool || (dot && !reader->callable))
		return cell_fail(err, CELL_E_INVALID, 0, "tool: invalid pattern '%.60s': %s", text, problem);
	return 0;
}

static int load_filter(struct cell_audit_reader *reader, const struct cell_audit_filter *filter, struct cell_error *err)
{
	if (filter->session)
		reader->session = cell__strdup(filter->session);
	if (filter->decision)
		reader->decision = cell__strdup(filter->decision);
	if ((filter->session && !reader->session) || (filter->decision && !reader->decision))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (filter->tool && load_tool(reader, filter->tool, err) < 0)
		return -1;
	if (filter->since && !parse_since(filter->since, reader->since))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "invalid time '%.60s': expected 2026-11-15, 2026-11-15T05:06:40Z, or an age like 90s, 15m, 2h, 7d",
				 filter->since);
	if (filter->last < -1)
		return cell_fail(err, CELL_E_INVALID, 0, "last is %lld, expected -1 or more", (long long)filter->last);
	return 0;
}

static const char *text_of(const json_t *record, const char *key)
{
	const char *text = json_string_value(json_object_get(record, key));
	return text ? text : "";
}

static bool matches(const struct cell__glob *glob, const char *text)
{
	return cell__glob_match(glob, CELL__GLOB_TEXT, text, strlen(text), NULL);
}

static bool wanted(const struct cell_audit_reader *reader, const json_t *record)
{
	if (reader->session && strncmp(text_of(record, "session"), reader->session, strlen(reader->session)) != 0)
		return false;
	if (reader->decision && strcmp(text_of(record, "decision"), reader->decision) != 0)
		return false;
	if (reader->tool && !matches(reader->tool, text_of(record, "tool")))
		return false;
	if (reader->callable && !matches(reader->callable, text_of(record, "callable")))
		return false;
	return strcmp(text_of(record, "time"), reader->since) >= 0;
}

/* ---- the files ---- */

static void finish_file(struct log_file *file)
{
	cell__close_fd(&file->fd);
	free(file->name);
}

/* 1: opened; 0: does not exist; -1 with errno. */
static int open_one(const char *path, int number, struct log_file *ret)
{
	struct cell__buf name = CELL_BUF_INIT;
	if ((number ? cell__buf_printf(&name, "%s.%d", path, number) : cell__buf_add_str(&name, path)) < 0) {
		errno = ENOMEM;
		return -1;
	}
	struct stat st;
	struct log_file file = { .name = name.data, .fd = open(name.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) };
	if (file.fd >= 0 && fstat(file.fd, &st) == 0 && S_ISREG(st.st_mode)) {
		file.dev = st.st_dev;
		file.ino = st.st_ino;
		*ret = file;
		return 1;
	}
	int error = file.fd < 0 ? errno : EINVAL;
	finish_file(&file);
	errno = error;
	return error == ENOENT ? 0 : -1;
}

static bool same_file(const struct log_file *a, const struct log_file *b)
{
	return a->dev == b->dev && a->ino == b->ino;
}

/*
 * Opens, newest first, all files up to the one read last, and appends them to the list, oldest first. The live one may be missing: for a
 * moment during a rotation the path names no file.
 */
static int open_new(struct cell_audit_reader *reader)
{
	struct log_file *found = NULL, *last = reader->count ? &reader->files[reader->count - 1] : NULL;
	size_t n = 0;
	bool met = false;
	int rc = 0;
	for (int number = 0; number <= CELL__AUDIT_LIMIT_KEEP && !met; number++) {
		struct log_file file;
		rc = open_one(reader->path, number, &file);
		if (rc <= 0) {
			if (rc < 0 || number > 0)
				break;
			continue;
		}
		met = last && same_file(&file, last);
		struct log_file *more = NULL;
		if (!met && !(n > 0 && same_file(&file, &found[n - 1])))
			more = cell__realloc(found, (n + 1) * sizeof *found);
		if (more) {
			found = more;
			found[n++] = file;
		} else {
			finish_file(&file);
		}
	}
	struct log_file *files = n ? cell__realloc(reader->files, (reader->count + n) * sizeof *files) : NULL;
	if (files) {
		reader->gap |= last && !met;
		reader->files = files;
		for (size_t i = 0; i < n; i++)
			files[reader->count + i] = found[n - 1 - i];
		reader->count += n;
	} else {
		for (size_t i = 0; i < n; i++)
			finish_file(&found[i]);
	}
	free(found);
	return rc < 0 ? -1 : 0;
}

/* Is the live file another one by now? */
static bool is_rotated(const struct cell_audit_reader *reader)
{
	struct stat st;
	const struct log_file *last = &reader->files[reader->count - 1];
	return stat(reader->path, &st) == 0 && (st.st_dev != last->dev || st.st_ino != last->ino);
}

static int64_t count_lines(const struct log_file *file, char *block, size_t room)
{
	int64_t lines = 0;
	off_t at = 0;
	ssize_t n;
	while ((n = pread(file->fd, block, room, at)) > 0) {
		for (const char *c = block; (c = memchr(c, '\n', (size_t)(block + n - c))); c++)
			lines++;
		at += n;
	}
	return lines;
}

/* ---- open and close ---- */

void cell_audit_reader_close(struct cell_audit_reader *reader)
{
	if (!reader)
		return;
	for (size_t i = 0; i < reader->count; i++)
		finish_file(&reader->files[i]);
	free(reader->files);
	cell__glob_destroy(reader->tool);
	cell__glob_destroy(reader->callable);
	free(reader->path);
	free(reader->session);
	free(reader->decision);
	free(reader->block);
	free(reader->text);
	free(reader);
}

static int start(struct cell_audit_reader *reader, const struct cell_audit_filter *filter, struct cell_error *err)
{
	if (!reader->path || !reader->block)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (load_filter(reader, filter, err) < 0)
		return -1;
	if (open_new(reader) < 0)
		return cell_fail(err, CELL_E_IO, errno == EINVAL ? 0 : errno, "the audit log %.120s%s", reader->path,
				 errno == EINVAL ? " is not a regular file" : "");
	if (reader->count == 0)
		return cell_fail(err, CELL_E_NOT_FOUND, ENOENT, "the audit log %.120s", reader->path);
	if (filter->last != 0) {
		int64_t lines = 0, last = filter->last > 0 ? filter->last : 0;
		for (size_t i = 0; i < reader->count; i++)
			lines += count_lines(&reader->files[i], reader->block, reader->block_room);
		reader->skip = lines > last ? lines - last : 0;
	}
	return 0;
}

int cell_audit_reader_open(const char *path, const struct cell_audit_filter *filter, struct cell_audit_reader **ret_reader,
			   struct cell_error *err)
{
	if (cell__require(err, path, ret_reader) < 0)
		return -1;
	struct cell_audit_filter all = CELL_AUDIT_FILTER_INIT;
	if (filter && cell__sized_read(&all, sizeof all, filter, "cell_audit_filter", err) < 0)
		return -1;
	struct cell_audit_reader *reader = cell__alloc(1, sizeof *reader);
	if (!reader)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	reader->path = cell__strdup(path);
	reader->block = cell__alloc(BLOCK, 1);
	reader->block_room = BLOCK;
	if (start(reader, &all, err) < 0) {
		cell_audit_reader_close(reader);
		return -1;
	}
	*ret_reader = reader;
	return 0;
}

/* ---- lines ---- */

enum step { STEP_LINE, STEP_END, STEP_FAILED };

/* Reads from the beginning of the line on; STEP_LINE: there are new bytes. */
static enum step refill(struct cell_audit_reader *reader)
{
	const struct log_file *file = &reader->files[reader->current];
	size_t had = reader->block_size - reader->block_at;
	if (had == reader->block_room && reader->block_room <= CELL__AUDIT_LIMIT_LINE) {
		char *larger = cell__realloc(reader->block, 2 * reader->block_room);
		if (!larger) {
			errno = ENOMEM;
			return STEP_FAILED;
		}
		reader->block = larger;
		reader->block_room *= 2;
	} else if (had > CELL__AUDIT_LIMIT_LINE) {
		reader->too_long = true;
	}
	if (reader->too_long) {
		reader->start += (off_t)had;
		had = 0;
	}
	ssize_t n = pread(file->fd, reader->block, reader->block_room, reader->start);
	reader->block_at = 0;
	reader->block_size = n > 0 ? (size_t)n : 0;
	if (n < 0)
		return STEP_FAILED;
	return (size_t)n > had ? STEP_LINE : STEP_END;
}

/* The next whole line: its bytes are valid until the next call. */
static enum step next_line(struct cell_audit_reader *reader, const char **ret_line, size_t *ret_size)
{
	for (;;) {
		char *from = reader->block + reader->block_at;
		size_t size = reader->block_size - reader->block_at;
		char *end = size ? memchr(from, '\n', size) : NULL;
		if (end) {
			*ret_line = from;
			*ret_size = (size_t)(end - from);
			reader->block_at += *ret_size + 1;
			reader->start += (off_t)*ret_size + 1;
			reader->line++;
			return STEP_LINE;
		}
		enum step step = refill(reader);
		if (step != STEP_LINE)
			return step;
	}
}

/* Takes the lock for a moment, so that no process writes. False: others hold it all the time. */
static bool lock_shared(int fd)
{
	struct timespec pause = { .tv_nsec = LOCK_PAUSE_NS };
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_SH | LOCK_NB) == 0)
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

/* At the end of the last file: whether the bytes after the last line will never be completed. */
static bool is_torn(struct cell_audit_reader *reader)
{
	if (reader->block_size == 0)
		return false;
	int fd = reader->files[reader->current].fd;
	if (!lock_shared(fd))
		return false;
	ssize_t n = pread(fd, reader->block, reader->block_room, reader->start);
	flock(fd, LOCK_UN);
	reader->block_at = 0;
	reader->block_size = n > 0 ? (size_t)n : 0;
	return n > 0 && !memchr(reader->block, '\n', (size_t)n);
}

/* Skips the rest of the file, which is not a line. */
static void skip_rest(struct cell_audit_reader *reader)
{
	reader->start += (off_t)reader->block_size;
	reader->block_at = reader->block_size = 0;
}

static void next_file(struct cell_audit_reader *reader)
{
	cell__close_fd(&reader->files[reader->current].fd);
	reader->current++;
	reader->start = 0;
	reader->line = 0;
	reader->block_at = reader->block_size = 0;
	reader->too_long = false;
}

static int give_problem(struct cell_audit_reader *reader, struct cell_audit_entry *entry, int64_t line, const char *problem)
{
	entry->file = reader->files[reader->current].name;
	entry->line = line;
	entry->json = NULL;
	entry->problem = problem;
	return 1;
}

/* 1: an entry; 0: go on. */
static int give_line(struct cell_audit_reader *reader, const char *line, size_t size, struct cell_audit_entry *entry)
{
	if (reader->skip > 0) {
		reader->skip--;
		reader->too_long = false;
		return 0;
	}
	if (reader->too_long || size > CELL__AUDIT_LIMIT_LINE) {
		reader->too_long = false;
		return give_problem(reader, entry, reader->line, "longer than a record can be");
	}
	if (size == 0)
		return 0;
	json_t *record = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (!json_is_object(record)) {
		json_decref(record);
		return give_problem(reader, entry, reader->line, "not a JSON object");
	}
	bool yes = wanted(reader, record);
	json_decref(record);
	if (!yes)
		return 0;
	free(reader->text);
	reader->text = cell__strndup(line, size);
	if (!reader->text) {
		errno = ENOMEM;
		return -1;
	}
	entry->file = reader->files[reader->current].name;
	entry->line = reader->line;
	entry->json = reader->text;
	entry->problem = NULL;
	return 1;
}

/* At the end of a file. 1: an entry; 0: continue; 2: no more entries for now. */
static int handle_end(struct cell_audit_reader *reader, struct cell_audit_entry *entry)
{
	bool last = reader->current + 1 == reader->count;
	if (!last && (reader->block_size > 0 || reader->too_long)) {
		skip_rest(reader);
		reader->too_long = false;
		return give_problem(reader, entry, reader->line + 1, "truncated: the line has no end");
	}
	if (!last) {
		next_file(reader);
		return 0;
	}
	if (is_rotated(reader)) {
		if (open_new(reader) < 0)
			return -1;
		if (reader->current + 1 < reader->count)
			return 0; /* again: a last line may have been added in between */
	}
	if (is_torn(reader)) {
		skip_rest(reader);
		return give_problem(reader, entry, reader->line + 1, "truncated: the line has no end");
	}
	/* That read may have brought a whole line. */
	if (reader->block_size > 0 && memchr(reader->block, '\n', reader->block_size))
		return 0;
	reader->block_at = reader->block_size = 0;
	return 2;
}

/* As cell_audit_reader_next(). */
static int next_entry(struct cell_audit_reader *reader, struct cell_audit_entry *entry, struct cell_error *err)
{
	for (;;) {
		const char *line;
		size_t size;
		int rc;
		if (reader->gap) {
			reader->gap = false;
			return give_problem(reader, entry, 0, "files were rotated away before they were read");
		}
		switch (next_line(reader, &line, &size)) {
		case STEP_LINE:
			rc = give_line(reader, line, size, entry);
			break;
		case STEP_END:
			rc = handle_end(reader, entry);
			break;
		default:
			rc = -1;
		}
		if (rc == 1)
			return 1;
		if (rc == 2)
			return 0;
		if (rc < 0)
			return cell_fail(err, CELL_E_IO, errno, "read the audit log %.120s", reader->files[reader->current].name);
	}
}

int cell_audit_reader_next(struct cell_audit_reader *reader, struct cell_audit_entry *ret_entry, struct cell_error *err)
{
	if (cell__require(err, reader, ret_entry) < 0)
		return -1;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	int rc = cell__sized_check(ret_entry, "cell_audit_entry", err) < 0 ? -1 : next_entry(reader, &entry, err);
	if (rc == 1)
		cell__sized_write(ret_entry, &entry, sizeof entry);
	return rc;
}
