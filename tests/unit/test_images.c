/* session/images: names, files and their order; and what comes of a run's pictures through the public API. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/images.h"

#define SESSION "0123456789abcdef0123456789abcdef"
#define PNG "\x89PNG\r\n\x1a\n"

static char base[64];

static int setup(void **state)
{
	snprintf(base, sizeof base, "/tmp/workcell-images-XXXXXX");
	return mkdtemp(base) ? support_begin(state) : -1;
}

static int teardown(void **state)
{
	char command[100];
	snprintf(command, sizeof command, "rm -rf %s", base);
	int rc = system(command);
	return support_end(state) | rc;
}

static const char *in(const char *name)
{
	static char paths[8][256];
	static unsigned next;
	char *path = paths[next++ % COUNT(paths)];
	snprintf(path, sizeof paths[0], "%s/%s", base, name);
	return path;
}

/* Entries of a folder, those that are hidden too. */
static size_t count_entries(const char *path)
{
	size_t n = 0;
	DIR *dir = opendir(path);
	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static void expect_file(const char *path, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	assert_true(support_read_file(path, &got));
	assert_int_equal(got.size, size);
	assert_memory_equal(got.data, bytes, size);
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* ---- names ---- */

static void test_names(void **state)
{
	(void)state;
	struct cell__image_folder folder, other;
	assert_int_equal(cell__image_folder_init(&folder, base, SESSION, NULL), 0);
	assert_int_equal(cell__image_folder_init(&other, base, "fedcba9876543210", NULL), 0);
	char before[CELL__IMAGE_NAME_BYTES] = "", name[CELL__IMAGE_NAME_BYTES], theirs[CELL__IMAGE_NAME_BYTES];
	/* 2026-11-15 09:30:15.123 UTC; then later, at the same moment, and after the clock was set back by a day. */
	const int64_t now = 1794735015123, times[] = { now, now, now + 1, now + 1000, now - 86400000, now + 86400000 };
	cell__image_name(&folder, now, "png", name);
	assert_string_equal(name, "20261115T093015123Z-01234567-0001.png");
	for (size_t i = 0; i < 4000; i++) {
		cell__image_name(&folder, times[i % COUNT(times)], "png", name);
		cell__image_name(&other, times[i % COUNT(times)], "png", theirs);
		assert_true(strcmp(before, name) < 0);
		assert_string_not_equal(name, theirs);
		strcpy(before, name);
	}
	cell__image_folder_finish(&folder);
	cell__image_folder_finish(&other);
}

static void test_signature(void **state)
{
	(void)state;
	assert_string_equal(cell__image_type(PNG "rest", 12), "png");
	assert_string_equal(cell__image_type(PNG, 8), "png");
	assert_null(cell__image_type(PNG, 7));
	assert_string_equal(cell__image_type("GIF89a..", 8), "gif");
	assert_string_equal(cell__image_type("\xff\xd8\xff\xe0", 4), "jpg");
	assert_string_equal(cell__image_type("RIFF....WEBPVP8", 15), "webp");
	assert_null(cell__image_type("RIFF....WAVE", 12));
	assert_null(cell__image_type("", 0));
}

/* ---- the folder ---- */

static void test_folder(void **state)
{
	(void)state;
	struct cell__image_folder folder;
	struct cell_error err;
	assert_int_equal(cell__image_folder_init(&folder, NULL, SESSION, NULL), 0);
	assert_null(folder.path);
	/* Not there yet, some levels deep, named with more slashes than it needs. */
	assert_int_equal(cell__image_folder_init(&folder, in("a//b/c/"), SESSION, NULL), 0);
	assert_string_equal(folder.path, in("a//b/c"));
	assert_string_equal(folder.real, in("a//b/c"));
	assert_int_not_equal(access(in("a"), F_OK), 0);
	cell__image_folder_finish(&folder);
	/* A link that was there when the session began is the caller's choice. */
	assert_int_equal(mkdir(in("real"), 0777), 0);
	assert_int_equal(symlink("real", in("link")), 0);
	assert_int_equal(cell__image_folder_init(&folder, in("link/new"), SESSION, NULL), 0);
	assert_string_equal(folder.path, in("link/new"));
	assert_string_equal(folder.real, in("real/new"));
	cell__image_folder_finish(&folder);
	const char *roots[] = { "/", "/workcell-no-such-folder" };
	for (size_t i = 0; i < COUNT(roots); i++) {
		assert_int_equal(cell__image_folder_init(&folder, roots[i], SESSION, NULL), 0);
		assert_string_equal(folder.path, roots[i]);
		assert_string_equal(folder.real, i == 0 ? "" : roots[i]);
		cell__image_folder_finish(&folder);
	}
	char here[256];
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(cell__image_folder_init(&folder, "relative", SESSION, NULL), 0);
	assert_memory_equal(folder.path, here, strlen(here));
	assert_string_equal(folder.path + strlen(here), "/relative");
	cell__image_folder_finish(&folder);
	write_text(in("file"), "");
	const char *bad[] = { "", "a\xff", in("file"), in("file/below") };
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(cell__image_folder_init(&folder, bad[i], SESSION, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "images_dir"));
		assert_null(folder.path);
	}
	for (long n = 1; n < 8; n++) {
		cell__alloc_fail_after(n);
		if (cell__image_folder_init(&folder, in("link/new"), SESSION, &err) < 0)
			assert_int_equal(err.code, CELL_E_NOMEM);
		cell__alloc_fail_after(0);
		cell__image_folder_finish(&folder);
	}
}

/* ---- files ---- */

static void test_write(void **state)
{
	(void)state;
	const char *folder = in("deep/er/folder");
	mode_t old = umask(027);
	assert_int_equal(cell__image_write(folder, "a.png", PNG "a", 9), 0);
	umask(old);
	expect_file(in("deep/er/folder/a.png"), PNG "a", 9);
	assert_int_equal(count_entries(folder), 1); /* no temporary file either */
	struct stat st;
	assert_int_equal(stat(in("deep/er/folder/a.png"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(stat(folder, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	/* Never over another one, whatever that is. */
	assert_int_equal(cell__image_write(folder, "a.png", PNG "b", 9), -1);
	assert_int_equal(errno, EEXIST);
	expect_file(in("deep/er/folder/a.png"), PNG "a", 9);
	assert_int_equal(symlink("/dev/null", in("deep/er/folder/b.png")), 0);
	assert_int_equal(cell__image_write(folder, "b.png", PNG "b", 9), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(symlink(in("victim"), in("deep/er/folder/.c.png.tmp")), 0);
	assert_int_equal(cell__image_write(folder, "c.png", PNG "b", 9), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_not_equal(access(in("victim"), F_OK), 0);
	assert_int_equal(count_entries(folder), 3);
}

/* The code in the kernel can put links where the folder is to be: they lead nowhere. */
static void test_planted_links(void **state)
{
	(void)state;
	struct cell__image_folder folder;
	assert_int_equal(cell__image_folder_init(&folder, in("images/today"), SESSION, NULL), 0);
	assert_int_equal(mkdir(in("elsewhere"), 0777), 0);
	assert_int_equal(symlink("elsewhere", in("images")), 0);
	assert_int_equal(cell__image_write(folder.real, "a.png", PNG, 8), -1);
	assert_true(errno == ENOTDIR || errno == ELOOP);
	assert_int_equal(count_entries(in("elsewhere")), 0);
	assert_int_equal(unlink(in("images")), 0);
	assert_int_equal(mkdir(in("images"), 0777), 0);
	assert_int_equal(symlink("../elsewhere", in("images/today")), 0);
	assert_int_equal(cell__image_write(folder.real, "a.png", PNG, 8), -1);
	assert_true(errno == ENOTDIR || errno == ELOOP);
	assert_int_equal(count_entries(in("elsewhere")), 0);
	cell__image_folder_finish(&folder);
}

static void test_write_failures(void **state)
{
	(void)state;
	write_text(in("file"), "");
	assert_int_equal(cell__image_write(in("file"), "a.png", PNG, 8), -1);
	assert_int_equal(errno, ENOTDIR);
	char longest[300];
	snprintf(longest, sizeof longest, "/tmp/%0260d", 0);
	assert_int_equal(cell__image_write(longest, "a.png", PNG, 8), -1);
	assert_int_equal(errno, ENAMETOOLONG);
	assert_int_equal(mkdir(in("small"), 0777), 0);
	if (mount("tmpfs", in("small"), "tmpfs", 0, "size=64k") < 0) {
		if (geteuid() == 0)
			fail_msg("mount: %s", strerror(errno));
		skip();
	}
	static char large[256 * 1024];
	int rc = cell__image_write(in("small"), "a.png", large, sizeof large), error = errno;
	size_t left = count_entries(in("small"));
	int again = cell__image_write(in("small"), "b.png", PNG, 8);
	int readonly = mount(NULL, in("small"), NULL, MS_REMOUNT | MS_RDONLY, NULL);
	int refused = cell__image_write(in("small"), "c.png", PNG, 8), refused_error = errno;
	assert_int_equal(umount2(in("small"), MNT_DETACH), 0);
	assert_int_equal(rc, -1);
	assert_int_equal(error, ENOSPC);
	assert_int_equal(left, 0);
	assert_int_equal(again, 0);
	assert_int_equal(readonly, 0);
	assert_int_equal(refused, -1);
	assert_int_equal(refused_error, EROFS);
}

/* ---- the queue ---- */

struct rig {
	struct cell__task task;
	struct cell__loop *loop;
	struct cell__waiter waiter;
	struct cell__image_folder folder;
	struct cell__image_queue queue;
	size_t wanted, done;
	char *paths[50];
	int errors[50];
};

static char contents[50][64];

static void handle_written(void *arg, size_t number, char *path, int error)
{
	struct rig *rig = arg;
	CHECK(number == rig->done); /* one after the other */
	rig->paths[number] = path;
	rig->errors[number] = error;
	if (path) {
		struct stat st;
		CHECK(stat(path, &st) == 0 && (size_t)st.st_size == strlen(contents[number]));
	}
	if (++rig->done == rig->wanted) {
		CHECK(!rig->queue.first && rig->queue.bytes == 0);
		cell__waiter_signal(&rig->waiter);
	}
}

static void do_queue(struct cell__task *task)
{
	struct rig *rig = (struct rig *)task;
	cell__image_queue_init(&rig->queue, rig->loop, &rig->folder, handle_written, rig);
	for (size_t i = 0; i < rig->wanted; i++) {
		snprintf(contents[i], sizeof contents[i], PNG "number %zu", i);
		CHECK(cell__image_queue_add(&rig->queue, i, contents[i], strlen(contents[i])) == 0);
	}
	CHECK(rig->done == 0); /* never from inside */
}

static void run_rig(struct rig *rig, size_t wanted)
{
	struct cell_error err;
	rig->wanted = wanted;
	rig->task.fn = do_queue;
	assert_int_equal(cell__loop_create(&rig->loop, &err), 0);
	cell__waiter_init(&rig->waiter);
	cell__loop_do(rig->loop, &rig->task, &rig->waiter);
	cell__waiter_finish(&rig->waiter);
	cell__loop_destroy(rig->loop);
	assert_int_equal(rig->done, wanted);
}

static void finish_rig(struct rig *rig)
{
	for (size_t i = 0; i < rig->wanted; i++)
		free(rig->paths[i]);
	cell__image_folder_finish(&rig->folder);
}

static void test_queue(void **state)
{
	(void)state;
	struct rig rig = { 0 };
	assert_int_equal(cell__image_folder_init(&rig.folder, in("many"), SESSION, NULL), 0);
	rig.folder.last_ms = 4102444800000; /* 2100: the clock is behind, so that names can be foreseen */
	assert_int_equal(mkdir(in("many"), 0777), 0);
	/* Somebody has used the first two names. */
	write_text(in("many/21000101T000000000Z-01234567-0001.png"), "theirs");
	write_text(in("many/21000101T000000000Z-01234567-0002.png"), "theirs");
	run_rig(&rig, COUNT(rig.paths));
	for (size_t i = 0; i < rig.wanted; i++) {
		assert_non_null(rig.paths[i]);
		expect_file(rig.paths[i], contents[i], strlen(contents[i]));
		if (i > 0)
			assert_true(strcmp(rig.paths[i - 1], rig.paths[i]) < 0);
	}
	assert_string_equal(rig.paths[0], in("many/21000101T000000000Z-01234567-0003.png"));
	expect_file(in("many/21000101T000000000Z-01234567-0001.png"), "theirs", 6);
	assert_int_equal(count_entries(in("many")), rig.wanted + 2);
	finish_rig(&rig);
}

static void test_queue_failure(void **state)
{
	(void)state;
	struct rig rig = { 0 };
	assert_int_equal(cell__image_folder_init(&rig.folder, in("gone"), SESSION, NULL), 0);
	write_text(in("gone"), ""); /* after the session began */
	run_rig(&rig, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_null(rig.paths[i]);
		assert_int_equal(rig.errors[i], ENOTDIR);
	}
	finish_rig(&rig);
}

/* All names taken: it gives up. */
static void test_queue_names_taken(void **state)
{
	(void)state;
	struct rig rig = { 0 };
	assert_int_equal(cell__image_folder_init(&rig.folder, in("full"), SESSION, NULL), 0);
	rig.folder.last_ms = 4102444800000;
	assert_int_equal(mkdir(in("full"), 0777), 0);
	for (int i = 1; i <= 100; i++) {
		char name[100];
		snprintf(name, sizeof name, "full/21000101T000000000Z-01234567-%04d.png", i);
		write_text(in(name), "theirs");
	}
	run_rig(&rig, 1);
	assert_int_equal(rig.errors[0], EEXIST);
	assert_int_equal(count_entries(in("full")), 100);
	finish_rig(&rig);
}

/* ---- through the API ---- */

struct heard {
	int type[2000];
	char path[2000][128];
	size_t index[2000];
	size_t n, images, failures, results;
	struct cell_result *result; /* of a started run */
	pthread_mutex_t lock;
};

static struct heard heard = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void hear(void *arg, const struct cell_event *event)
{
	(void)arg;
	pthread_mutex_lock(&heard.lock);
	CHECK(heard.n < COUNT(heard.type));
	heard.type[heard.n] = event->type;
	if (event->type == CELL_EVENT_IMAGE && event->path) {
		struct stat st;
		CHECK(stat(event->path, &st) == 0 && st.st_size >= 8);
		snprintf(heard.path[heard.n], sizeof heard.path[0], "%s", event->path);
		heard.index[heard.n] = event->index;
		heard.images++;
	} else if (event->type == CELL_EVENT_IMAGE) {
		CHECK(strlen(event->message) > 0);
		heard.failures++;
	}
	heard.n++;
	if (event->type == CELL_EVENT_RESULT) {
		heard.results++;
		if (arg)
			heard.result = event->result;
	}
	pthread_mutex_unlock(&heard.lock);
}

static bool has_result(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&heard.lock);
	bool has = heard.results > 0;
	pthread_mutex_unlock(&heard.lock);
	return has;
}

static void forget(void)
{
	heard.n = heard.images = heard.failures = heard.results = 0;
	heard.result = NULL;
}

/* A class with a picture; the tests need no library for that. */
#define PICTURE                                                                    \
	"class P:\n"                                                               \
	"    def __init__(self, tail=b''): self.tail = tail\n"                     \
	"    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + self.tail\n" \
	"    def _repr_html_(self): return '<img>'\n"                              \
	"    def __repr__(self): return 'P'\n"

static struct cell_session *open_with(struct cell_engine *engine, const char *images_dir)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.images_dir = images_dir;
	struct cell_session *session = support_session_with(engine, &options);
	cell_result_destroy(support_run(session, PICTURE));
	return session;
}

static struct cell_result *run_heard(struct cell_session *session, const char *code)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result = NULL;
	struct cell_error err;
	options.on_event = hear;
	forget();
	if (cell_session_run(session, code, strlen(code), &options, &result, &err) < 0)
		fail_msg("%s: %s", code, err.msg);
	return result;
}

/* Which types a bundle has, in one string. */
static const char *types(const struct cell_mime_part *parts, size_t n)
{
	static char text[200];
	text[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		strcat(text, i > 0 ? " " : "");
		strcat(text, parts[i].type);
	}
	return text;
}

static void test_images_of_a_run(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	const struct cell_mime_part *parts;
	assert_int_not_equal(access(in("out"), F_OK), 0); /* made with the first image */
	struct cell_result *result = run_heard(session, "display(P(b'1'), P(b'2'))\nprint('x')\nP(b'3')");
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(cell_result_image_count(result), 3);
	assert_null(cell_result_image(result, 3));
	size_t seen = 0;
	for (size_t i = 0; i < heard.n; i++) {
		if (heard.type[i] != CELL_EVENT_IMAGE)
			continue;
		assert_int_equal(heard.index[i], seen);
		assert_string_equal(heard.path[i], cell_result_image(result, seen));
		seen++;
	}
	assert_int_equal(seen, 3);
	assert_int_equal(heard.type[heard.n - 1], CELL_EVENT_RESULT);
	for (size_t i = 0; i < 3; i++) {
		char wanted[16];
		snprintf(wanted, sizeof wanted, PNG "%zu", i + 1);
		expect_file(cell_result_image(result, i), wanted, 9);
		assert_memory_equal(cell_result_image(result, i), in("out"), strlen(in("out")));
	}
	/* The bytes are in the file; the other parts stay. */
	for (size_t i = 0; i < 2; i++) {
		size_t n = cell_result_display(result, i, &parts);
		assert_string_equal(types(parts, n), "text/plain text/html");
	}
	size_t n = cell_result_mime(result, &parts);
	assert_string_equal(types(parts, n), "text/plain text/html");
	assert_int_equal(cell_result_notice_count(result), 0);
	char *json = cell_result_json(result);
	char *list = strstr(json, "\"images\":[\"/tmp/workcell-images-");
	assert_non_null(list);
	assert_null(strstr(json, "image/png"));
	free(json);
	char first[128];
	snprintf(first, sizeof first, "%s", cell_result_image(result, 2));
	cell_result_destroy(result);
	assert_int_equal(access(first, F_OK), 0); /* files outlive the result */
	result = run_heard(session, "P()");
	assert_int_equal(cell_result_image_count(result), 1);
	assert_true(strcmp(first, cell_result_image(result, 0)) < 0);
	cell_result_destroy(result);
	result = run_heard(session, "1");
	assert_int_equal(cell_result_image_count(result), 0);
	cell_result_destroy(result);
	assert_int_equal(count_entries(in("out")), 4);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_without_a_folder(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, NULL);
	const struct cell_mime_part *parts;
	size_t n;
	struct cell_result *result = run_heard(session, "display(P())\nP()");
	assert_int_equal(cell_result_image_count(result), 0);
	assert_int_equal(heard.images + heard.failures, 0);
	n = cell_result_display(result, 0, &parts);
	assert_string_equal(types(parts, n), "text/plain text/html image/png");
	n = cell_result_mime(result, &parts);
	assert_string_equal(types(parts, n), "text/plain text/html image/png");
	cell_result_destroy(result);
	cell_session_close(session);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err;
	options.images_dir = "/dev/null";
	assert_int_equal(cell_session_open(engine, &options, &session, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_engine_destroy(engine);
}

static void test_started_run(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	static const char code[] = "display(P(b'x' * 1000000))\nP()";
	options.on_event = hear;
	options.event_arg = engine;
	forget();
	assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
	assert_true(support_wait(has_result, NULL));
	assert_int_equal(heard.images, 2);
	assert_int_equal(heard.type[heard.n - 1], CELL_EVENT_RESULT);
	assert_int_equal(cell_result_image_count(heard.result), 2);
	cell_result_destroy(heard.result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Nothing is lost: what cannot be written stays where it was, and is told. */
static void test_failures_are_told(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	const struct cell_mime_part *parts;
	size_t n;
	write_text(in("out"), "a file by now");
	struct cell_result *result = run_heard(session, "display(P(b'1'))\nP(b'2')");
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(cell_result_image_count(result), 0);
	assert_int_equal(heard.failures, 2);
	assert_int_equal(cell_result_notice_count(result), 2);
	assert_non_null(strstr(cell_result_notice(result, 0), "Not a directory"));
	assert_non_null(strstr(cell_result_notice(result, 0), in("out")));
	assert_null(cell_result_notice(result, 2));
	n = cell_result_display(result, 0, &parts);
	assert_string_equal(types(parts, n), "text/plain text/html image/png");
	assert_memory_equal(parts[2].data, PNG "1", 9);
	n = cell_result_mime(result, &parts);
	assert_string_equal(types(parts, n), "text/plain text/html image/png");
	char *json = cell_result_json(result);
	assert_non_null(strstr(json, "\"notices\":[\"cannot write an image to "));
	free(json);
	cell_result_destroy(result);
	/* Mended meanwhile: the next one is written. */
	assert_int_equal(unlink(in("out")), 0);
	result = run_heard(session, "P(b'3')");
	assert_int_equal(cell_result_image_count(result), 1);
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_no_png(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	const struct cell_mime_part *parts;
	size_t n;
	struct cell_result *result = run_heard(
		session, "for i in range(40): display({'image/png': b'<script>', 'text/plain': 'lie'}, raw=True)\n"
			 "display({'image/jpeg': b'\\xff\\xd8', 'image/svg+xml': '<svg/>', 'text/plain': 'other'}, raw=True)");
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(cell_result_image_count(result), 0);
	assert_int_equal(heard.failures, 40);
	assert_int_equal(cell_result_notice_count(result), CELL_LIMIT_NOTICES);
	assert_non_null(strstr(cell_result_notice(result, 0), "is not a PNG"));
	assert_non_null(strstr(cell_result_notice(result, CELL_LIMIT_NOTICES - 1), "more notices"));
	n = cell_result_display(result, 0, &parts);
	assert_string_equal(types(parts, n), "image/png text/plain");
	n = cell_result_display(result, 40, &parts);
	assert_string_equal(types(parts, n), "image/jpeg image/svg+xml text/plain");
	assert_int_not_equal(access(in("out"), F_OK), 0);
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_limit(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	char code[200];
	snprintf(code, sizeof code, "for i in range(%u): display(P())\nP()", CELL_LIMIT_IMAGES + 5);
	struct cell_result *result = support_run(session, code);
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(cell_result_image_count(result), CELL_LIMIT_IMAGES);
	assert_int_equal(count_entries(in("out")), CELL_LIMIT_IMAGES);
	assert_int_equal(cell_result_display_count(result), CELL_LIMIT_DISPLAYS);
	/* One about the displays, one about the value, which is the image too many. */
	assert_int_equal(cell_result_notice_count(result), 2);
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Images that were shown before the cell failed, or its kernel died, are there. */
static void test_images_of_a_failed_run(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	const char *codes[] = { "display(P())\n1/0", "display(P())\nimport os\nos._exit(3)" };
	for (size_t i = 0; i < COUNT(codes); i++) {
		struct cell_result *result = run_heard(session, codes[i]);
		assert_int_equal(support_outcome(result), i == 0 ? CELL_OUT_EXCEPTION : CELL_OUT_KERNEL_DIED);
		assert_int_equal(cell_result_image_count(result), 1);
		assert_int_equal(heard.images, 1);
		cell_result_destroy(result);
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void *close_main(void *arg)
{
	cell_session_close(arg);
	return NULL;
}

/* The session is closed while images are on their way. */
static void test_close_while_writing(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	for (int round = 0; round < 5; round++) {
		struct cell_session *session = open_with(engine, in("out"));
		struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
		static const char code[] = "for i in range(200): display(P(b'x' * 200000))";
		pthread_t thread;
		options.on_event = hear;
		options.event_arg = engine;
		forget();
		assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
		assert_int_equal(pthread_create(&thread, NULL, close_main, session), 0);
		assert_true(support_wait(has_result, NULL));
		pthread_join(thread, NULL);
		assert_int_equal(cell_result_image_count(heard.result), heard.images);
		cell_result_destroy(heard.result);
	}
	cell_engine_destroy(engine);
}

static void test_large_images(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_with(engine, in("out"));
	struct cell_result *result = run_heard(session, "for i in range(4): display(P(bytes([i]) * (30 << 20)))");
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(cell_result_image_count(result), 4);
	for (size_t i = 0; i < 4; i++) {
		CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
		assert_true(support_read_file(cell_result_image(result, i), &got));
		assert_int_equal(got.size, (30 << 20) + 8);
		assert_int_equal(got.data[8], i);
		assert_int_equal(got.data[got.size - 1], i);
	}
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

#define IMAGE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		IMAGE_TEST(test_names),
		IMAGE_TEST(test_signature),
		IMAGE_TEST(test_folder),
		IMAGE_TEST(test_write),
		IMAGE_TEST(test_planted_links),
		IMAGE_TEST(test_write_failures),
		IMAGE_TEST(test_queue),
		IMAGE_TEST(test_queue_failure),
		IMAGE_TEST(test_queue_names_taken),
		IMAGE_TEST(test_images_of_a_run),
		IMAGE_TEST(test_without_a_folder),
		IMAGE_TEST(test_started_run),
		IMAGE_TEST(test_failures_are_told),
		IMAGE_TEST(test_no_png),
		IMAGE_TEST(test_limit),
		IMAGE_TEST(test_images_of_a_failed_run),
		IMAGE_TEST(test_close_while_writing),
		IMAGE_TEST(test_large_images),
	};
	return cmocka_run_group_tests_name("images", tests, NULL, NULL);
}
