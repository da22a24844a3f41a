/* storage/workflows.c and workflow_index.c: files, descriptions, listing and searching. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "storage/file.h"
#include "store_support.h"

#define SOURCE "def run(city: str, days: int = 3):\n    \"\"\"Forecasts the weather.\n\n    More.\n    \"\"\"\n    return city\n"

static int create(struct cell__store *store, const char *name, const char *source, const char *description, bool overwrite,
		  struct cell_error *err)
{
	return cell__workflow_create(store, name, source, strlen(source), description, overwrite, NULL, err);
}

/* The names, joined by spaces. */
static char *names(json_t *list)
{
	struct cell__buf buf = CELL_BUF_INIT;
	size_t i;
	json_t *one;
	json_array_foreach(list, i, one)
		cell__buf_printf(&buf, "%s%s", i ? " " : "", text_of(one, "name"));
	json_decref(list);
	return cell__buf_take(&buf);
}

static void expect_list(struct cell__store *store, const char *expected)
{
	json_t *list = NULL;
	OK(cell__workflow_list(store, &list, NULL, &err));
	CELL_AUTO_FREE char *got = names(list);
	assert_string_equal(got, expected);
}

static void expect_found(struct cell__store *store, const char *query, const char *expected)
{
	json_t *list = NULL;
	OK(cell__workflow_search(store, query, 10, &list, &err));
	CELL_AUTO_FREE char *got = names(list);
	if (strcmp(got, expected) != 0)
		fail_msg("'%s' gave '%s', not '%s'", query, got, expected);
}

static void expect_description(struct cell__store *store, const char *name, const char *expected)
{
	json_t *info = NULL;
	OK(cell__workflow_get(store, name, &info, &err));
	assert_string_equal(text_of(info, "description"), expected);
	json_decref(info);
}

static void test_names(void **state)
{
	(void)state;
	static const struct {
		const char *name, *message;
	} rows[] = {
		{ "", "Invalid workflow name: '' (must be valid Python identifier)" },
		{ "a-b", "Invalid workflow name: 'a-b' (must be valid Python identifier)" },
		{ "1a", "must be valid Python identifier" },
		{ "a b", "must be valid Python identifier" },
		{ "../x", "must be valid Python identifier" },
		{ "\xc3\xa9", "must be valid Python identifier" },
		{ "\xff", "must be valid Python identifier" },
		{ "_x", "Invalid workflow name: '_x'" },
		{ "class", "Invalid workflow name: 'class' (is a Python keyword)" },
		{ "None", "Python keyword" },
		{ "list", "Reserved workflow name: 'list'" },
		{ "delete", "Reserved workflow name: 'delete'" },
		{ "invoke", "Reserved workflow name: 'invoke'" },
	};
	for (size_t i = 0; i < COUNT(rows); i++)
		FAILS(CELL_E_INVALID, rows[i].message, cell__workflow_check_name(rows[i].name, &err));
	char name[CELL__STORE_WORKFLOW_NAME_BYTES + 2];
	memset(name, 'a', sizeof name);
	name[CELL__STORE_WORKFLOW_NAME_BYTES] = '\0';
	OK(cell__workflow_check_name(name, &err));
	name[CELL__STORE_WORKFLOW_NAME_BYTES] = 'a';
	name[CELL__STORE_WORKFLOW_NAME_BYTES + 1] = '\0';
	FAILS(CELL_E_LIMIT, "longer", cell__workflow_check_name(name, &err));
	OK(cell__workflow_check_name("match", &err)); /* a soft keyword is a name */
}

static void test_create_and_get(void **state)
{
	struct folder *folder = *state;
	json_t *info = NULL, *again = NULL;
	OK(cell__workflow_create(folder->store, "forecast", SOURCE, strlen(SOURCE), "For the trip", false, &info, &err));
	OK(cell__workflow_get(folder->store, "forecast", &again, &err));
	assert_true(json_equal(info, again));
	assert_string_equal(text_of(info, "name"), "forecast");
	assert_string_equal(text_of(info, "description"), "For the trip");
	assert_string_equal(text_of(info, "source"), SOURCE);
	assert_string_equal(text_of(info, "path"), on_files(folder) ? in(folder, "workflows/forecast.py")
								    : redis_key(folder, "workflows:__workflows__[forecast]"));
	assert_string_equal(text_of(json_object_get(info, "params"), "days"), "integer");
	json_t *days = json_array_get(json_object_get(info, "parameters"), 1);
	assert_int_equal(json_integer_value(json_object_get(days, "default")), 3);
	assert_true(json_is_false(json_object_get(days, "required")));
	json_t *city = json_array_get(json_object_get(info, "parameters"), 0);
	assert_true(json_is_null(json_object_get(city, "default")));
	json_decref(info);
	json_decref(again);
	/* The file is what was given, nothing else. */
	CELL_AUTO_FREE char *text = on_files(folder) ? read_text(folder, "workflows/forecast.py") : NULL;
	if (text)
		assert_string_equal(text, SOURCE);
	assert_true(!on_files(folder) == !text);
	OK(create(folder->store, "plain", SOURCE, NULL, false, &err));
	expect_description(folder->store, "plain", "Forecasts the weather.");
	OK(create(folder->store, "both", "'''Module.'''\n" SOURCE, "", false, &err));
	expect_description(folder->store, "both", "Module.");
	/* Kept by another process, too. */
	struct cell__store *other = NULL;
	OK(cell__store_open(folder->base, NULL, &other, &err));
	expect_description(other, "forecast", "For the trip");
	cell__store_close(other);
	expect_list(folder->store, "both forecast plain");
}

static void test_overwrite_and_delete(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	struct cell_error why = { 0 };
	bool deleted = true;
	OK(cell__workflow_delete(store, "a", &deleted, &err));
	assert_false(deleted);
	assert_false(there(folder, "workflows"));
	OK(create(store, "a", SOURCE, "one", false, &err));
	assert_int_equal(create(store, "a", "def run(): pass", "two", false, &why), -1);
	assert_int_equal(why.code, CELL_E_INVALID);
	assert_int_equal(why.sys, EEXIST);
	assert_string_equal(why.msg, "Workflow 'a' already exists; pass overwrite=True to replace it");
	expect_description(store, "a", "one");
	OK(create(store, "a", "def run(): pass", "two", true, &err));
	expect_description(store, "a", "two");
	FAILS(CELL_E_INVALID, "Workflow must define", create(store, "a", "x = 1", NULL, true, &err));
	FAILS(CELL_E_INVALID, "Syntax error in workflow code", create(store, "a", "def run(: pass", NULL, true, &err));
	FAILS(CELL_E_INVALID, "UTF-8", create(store, "a", SOURCE, "\xff", true, &err));
	expect_description(store, "a", "two");
	OK(cell__workflow_delete(store, "a", &deleted, &err));
	assert_true(deleted);
	json_t *info = NULL;
	FAILS(CELL_E_NOT_FOUND, "Workflow 'a' not found", cell__workflow_get(store, "a", &info, &err));
	FAILS(CELL_E_NOT_FOUND, "", cell__workflow_get(store, "../a", &info, &err));
	/* The next one of that name does not inherit the description. */
	OK(create(store, "a", SOURCE, NULL, false, &err));
	expect_description(store, "a", "Forecasts the weather.");
	CELL_AUTO_FREE char *large = malloc(CELL__STORE_SOURCE_BYTES + 2);
	memset(large, '\n', CELL__STORE_SOURCE_BYTES + 1);
	memcpy(large, "def run(): pass", 15);
	OK(cell__workflow_create(store, "large", large, CELL__STORE_SOURCE_BYTES, NULL, false, NULL, &err));
	FAILS(CELL_E_LIMIT, "larger", cell__workflow_create(store, "large", large, CELL__STORE_SOURCE_BYTES + 1, NULL, true, NULL, &err));
}

static void test_nothing_runs(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FREE char *source = NULL;
	assert_true(asprintf(&source, "open('%s/ran', 'w')\ndef run(x=open('%s/ran', 'w')): pass\n", folder->path, folder->path) > 0);
	OK(create(folder->store, "a", source, NULL, false, &err));
	expect_list(folder->store, "a");
	expect_found(folder->store, "ran", "a");
	assert_false(there(folder, "ran"));
}

static void test_hand_edited(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "workflows");
	expect_list(folder->store, "");
	write_text(folder, "workflows/hand.py", "def run():\n  '''Peels potatoes.'''\n");
	write_text(folder, "workflows/_helper.py", "x = 1");
	write_text(folder, "workflows/notes.txt", "x");
	write_text(folder, "workflows/bad-name.py", "def run(): pass");
	write_text(folder, "workflows/broken.py", "def run(: potatoes");
	make_folder(folder, "workflows/folder.py");
	json_t *list = NULL, *problems = NULL;
	OK(cell__workflow_list(folder->store, &list, &problems, &err));
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(text_of(json_array_get(list, 0), "description"), "Peels potatoes.");
	assert_string_equal(text_of(json_array_get(list, 0), "path"), in(folder, "workflows/hand.py"));
	assert_int_equal(json_array_size(problems), 1);
	assert_string_equal(text_of(json_array_get(problems, 0), "name"), "broken");
	assert_non_null(strstr(text_of(json_array_get(problems, 0), "message"), "Syntax error in workflow code"));
	json_decref(list);
	json_decref(problems);
	expect_found(folder->store, "potato", "hand");
	expect_found(folder->store, "broken", "");
	/* Edited in place, same size, at once: the time may not even have moved. */
	write_text(folder, "workflows/hand.py", "def run():\n  '''Boils cabbages.'''\n");
	expect_found(folder->store, "potato", "");
	expect_found(folder->store, "cabbage", "hand");
	write_text(folder, "workflows/broken.py", "def run(): return 'potato'");
	expect_found(folder->store, "potato", "broken");
	assert_int_equal(unlink(in(folder, "workflows/hand.py")), 0);
	expect_found(folder->store, "cabbage", "");
	expect_list(folder->store, "broken");
	/* A description that a person edits counts, too. */
	write_text(folder, "workflows/.workflows.json", "{\"broken\": {\"description\": \"Grows asparagus\"}}");
	expect_found(folder->store, "asparagus", "broken");
	write_text(folder, "workflows/.workflows.json", "{not json");
	expect_found(folder->store, "asparagus", "");
	expect_description(folder->store, "broken", "");
	struct cell_error notice;
	OK(create(folder->store, "new", SOURCE, NULL, false, &err));
	assert_true(cell__store_take_notice(folder->store, &notice));
	assert_non_null(strstr(notice.msg, "kept as .workflows.json.broken-"));
}

/* Two writes within one tick of the clock: nothing that stat() tells differs. */
static void test_same_tick(void **state)
{
	struct folder *folder = *state;
	struct timespec times[2];
	make_folder(folder, "workflows");
	for (int i = 0; i < 2; i++) {
		struct cell__store *fresh = NULL;
		write_text(folder, "workflows/w.py", i ? "def run(): 'cabbage'" : "def run(): 'potatos'");
		if (i == 0)
			clock_gettime(CLOCK_REALTIME, &times[0]);
		times[1] = times[0];
		assert_int_equal(utimensat(AT_FDCWD, in(folder, "workflows/w.py"), times, 0), 0);
		OK(cell__store_open(folder->base, NULL, &fresh, &err));
		expect_found(fresh, i ? "cabbage" : "potatos", "w");
		cell__store_close(fresh);
	}
}

static void test_skills(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "skills");
	write_text(folder, "skills/a.py", "def run():\n  '''An older one.'''\n");
	write_text(folder, "skills/b.py", "def run():\n  '''Another older one.'''\n");
	expect_list(folder->store, "a b");
	expect_description(folder->store, "a", "An older one.");
	FAILS(CELL_E_INVALID, "already exists", create(folder->store, "a", SOURCE, NULL, false, &err));
	OK(create(folder->store, "a", SOURCE, "A newer one", true, &err));
	expect_list(folder->store, "a b");
	expect_description(folder->store, "a", "A newer one");
	json_t *list = NULL;
	OK(cell__workflow_list(folder->store, &list, NULL, &err));
	assert_string_equal(text_of(json_array_get(list, 0), "path"), in(folder, "workflows/a.py"));
	assert_string_equal(text_of(json_array_get(list, 1), "path"), in(folder, "skills/b.py"));
	json_decref(list);
	/* Moved by hand: the same file, another path. */
	char from[256];
	strcpy(from, in(folder, "skills/b.py"));
	assert_int_equal(rename(from, in(folder, "workflows/b.py")), 0);
	OK(cell__workflow_list(folder->store, &list, NULL, &err));
	assert_string_equal(text_of(json_array_get(list, 1), "path"), in(folder, "workflows/b.py"));
	json_decref(list);
	bool deleted = false;
	OK(cell__workflow_delete(folder->store, "a", &deleted, &err));
	assert_true(deleted);
	expect_list(folder->store, "b");
}

static void test_search_fields(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	OK(create(store, "fetch_weather_data", "def run(station): return requests.get(station)", "Reads thermometers", false, &err));
	OK(create(store, "summarise", "'''Module words: aardvark.'''\ndef run(paragraphs):\n  '''Shortens texts.'''\n  return zebra\n",
		  NULL, false, &err));
	expect_found(store, "weather", "fetch_weather_data");
	expect_found(store, "fetch weather data", "fetch_weather_data");
	expect_found(store, "thermometer", "fetch_weather_data");
	expect_found(store, "station", "fetch_weather_data");
	expect_found(store, "aardvarks", "summarise");
	expect_found(store, "shorten", "summarise");
	expect_found(store, "paragraph", "summarise");
	expect_found(store, "zebra", "summarise");
	expect_found(store, "summarise", "summarise");
	json_t *list = NULL;
	OK(cell__workflow_search(store, "zebra", 1, &list, &err));
	assert_true(json_real_value(json_object_get(json_array_get(list, 0), "score")) > 0);
	assert_null(json_object_get(json_array_get(list, 0), "source"));
	json_decref(list);
	FAILS(CELL_E_INVALID, "UTF-8", cell__workflow_search(store, "\xff", 1, &list, &err));
}

/* The cache is deleted, torn, or in the way: searching goes on. */
static void test_cache(void **state)
{
	struct folder *folder = *state;
	OK(create(folder->store, "one", "def run(): return 'giraffe'", NULL, false, &err));
	expect_found(folder->store, "giraffe", "one");
	assert_true(there(folder, ".cache/search.sqlite"));
	CELL_AUTO_FREE char *ignore = read_text(folder, ".cache/.gitignore");
	assert_string_equal(ignore, "*\n");
	remove_tree(in(folder, ".cache"));
	expect_found(folder->store, "giraffe", "one");
	for (int how = 0; how < 4; how++) {
		struct cell__store *other = NULL;
		remove_tree(in(folder, ".cache"));
		OK(cell__store_open(folder->base, NULL, &other, &err));
		expect_found(other, "giraffe", "one");
		cell__store_close(other);
		if (how == 0) {
			write_text(folder, ".cache/search.sqlite", "garbage garbage garbage");
		} else if (how == 1) {
			assert_int_equal(truncate(in(folder, ".cache/search.sqlite"), 5000), 0);
		} else if (how == 2) {
			assert_int_equal(unlink(in(folder, ".cache/search.sqlite")), 0);
			make_folder(folder, ".cache/search.sqlite");
		} else {
			int fd = open(in(folder, ".cache/search.sqlite"), O_WRONLY | O_CLOEXEC);
			char noise[4096];
			memset(noise, 0x5a, sizeof noise);
			for (off_t at = 4096; at < 100000; at += 8192)
				assert_int_equal(pwrite(fd, noise, sizeof noise, at), sizeof noise);
			close(fd);
		}
		OK(cell__store_open(folder->base, NULL, &other, &err));
		expect_found(other, "giraffe", "one");
		expect_list(other, "one");
		OK(create(other, "two", "def run(): return 'ostrich'", NULL, true, &err));
		expect_found(other, "ostrich", "two");
		OK(cell__workflow_delete(other, "two", NULL, &err));
		cell__store_close(other);
	}
}

static void test_read_only(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "ro");
	struct cell__store *store = NULL;
	OK(cell__store_open(in(folder, "ro"), NULL, &store, &err));
	OK(create(store, "a", SOURCE, NULL, false, &err));
	for (int cached = 0; cached < 2; cached++) {
		if (cached)
			expect_found(store, "weather", "a");
		cell__store_close(store);
		const char *ro = in(folder, "ro");
		if (mount(ro, ro, NULL, MS_BIND, NULL) < 0) {
			if (geteuid() == 0)
				fail_msg("mount: %s", strerror(errno));
			skip();
		}
		assert_int_equal(mount(NULL, ro, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
		OK(cell__store_open(ro, NULL, &store, &err));
		expect_found(store, "weather", "a");
		expect_list(store, "a");
		expect_description(store, "a", "Forecasts the weather.");
		FAILS(CELL_E_IO, "Cannot write workflow 'b': Read-only file system", create(store, "b", SOURCE, NULL, false, &err));
		FAILS(CELL_E_IO, "Read-only file system", cell__workflow_delete(store, "a", NULL, &err));
		cell__store_close(store);
		assert_int_equal(umount2(in(folder, "ro"), MNT_DETACH), 0);
		OK(cell__store_open(in(folder, "ro"), NULL, &store, &err));
	}
	cell__store_close(store);
}

static void test_eight_processes(void **state)
{
	struct folder *folder = *state;
	for (int me = 0; me < 8; me++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid > 0)
			continue;
		struct cell__store *store = NULL;
		CHECK(cell__store_open(folder->base, NULL, &store, NULL) == 0);
		for (int i = 0; i < 15; i++) {
			char name[32];
			json_t *list = NULL;
			struct cell_error err = { 0 };
			snprintf(name, sizeof name, "w%d_%d", me, i);
			CHECK(create(store, name, SOURCE, name, false, &err) == 0);
			/* Who has just made it finds it, first. */
			if (cell__workflow_search(store, name, 3, &list, &err) < 0) {
				fprintf(stderr, "%s\n", err.msg);
				abort();
			}
			CHECK(strcmp(text_of(json_array_get(list, 0), "name"), name) == 0);
			json_decref(list);
			CHECK((create(store, "contested", SOURCE, name, false, &err) == 0) == (err.code == 0));
			CHECK(err.code == 0 || err.sys == EEXIST);
		}
		cell__store_close(store);
		_exit(0);
	}
	for (int i = 0; i < 8; i++) {
		int status = -1;
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	json_t *list = NULL;
	OK(cell__workflow_list(folder->store, &list, NULL, &err));
	assert_int_equal(json_array_size(list), 8 * 15 + 1);
	size_t i;
	json_t *one;
	json_array_foreach(list, i, one)
		if (strcmp(text_of(one, "name"), "contested") != 0)
			assert_string_equal(text_of(one, "description"), text_of(one, "name"));
	json_decref(list);
}

/* One store, several threads: what the engine's worker threads do. */
static void *work(void *arg)
{
	struct cell__store *store = arg;
	static atomic_int next;
	for (int i = 0; i < 15; i++) {
		char name[32];
		json_t *found = NULL;
		struct cell__artifact_writer *writer = NULL;
		snprintf(name, sizeof name, "t%d", atomic_fetch_add(&next, 1));
		CHECK(create(store, name, SOURCE, name, false, NULL) == 0);
		CHECK(cell__workflow_search(store, name, 3, &found, NULL) == 0);
		CHECK(strcmp(text_of(json_array_get(found, 0), "name"), name) == 0);
		json_decref(found);
		CHECK(cell__artifact_begin(store, name, &writer, NULL) == 0);
		CHECK(cell__artifact_write(writer, name, strlen(name), NULL) == 0);
		CHECK(cell__artifact_commit(writer, "text", name, NULL, &found, NULL) == 0);
		json_decref(found);
		CHECK(cell__deps_add(store, name, NULL) == 0);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct folder *folder = *state;
	pthread_t threads[4];
	json_t *list = NULL;
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, folder->store), 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	OK(cell__workflow_list(folder->store, &list, NULL, &err));
	assert_int_equal(json_array_size(list), 60);
	json_decref(list);
	OK(cell__artifact_list(folder->store, &list, &err));
	assert_int_equal(json_array_size(list), 60);
	json_decref(list);
	OK(cell__deps_list(folder->store, &list, NULL, &err));
	assert_int_equal(json_array_size(list), 60);
	json_decref(list);
}

static void test_kill_9(void **state)
{
	struct folder *folder = *state;
	for (int round = 0; round < 60; round++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			struct cell__store *store = NULL;
			CHECK(cell__store_open(folder->base, NULL, &store, NULL) == 0);
			for (unsigned i = 0;; i++) {
				char source[64], word[16];
				json_t *list = NULL;
				snprintf(word, sizeof word, "v%u", i);
				snprintf(source, sizeof source, "def run(): return '%s'", word);
				CHECK(create(store, "x", source, word, true, NULL) == 0);
				CHECK(cell__workflow_search(store, word, 3, &list, NULL) == 0);
				json_decref(list);
			}
		}
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 + (long)(random() % 20000000) }, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		json_t *info = NULL;
		if (cell__workflow_get(folder->store, "x", &info, NULL) < 0)
			continue;
		/* Source and description are of one version. */
		CELL_AUTO_FREE char *quoted = NULL;
		assert_true(asprintf(&quoted, "'%s'", text_of(info, "description")) > 0);
		assert_non_null(strstr(text_of(info, "source"), quoted));
		expect_found(folder->store, text_of(info, "description"), "x");
		json_decref(info);
	}
}

/* ---- figures, printed and not judged ---- */

#define MANY 10000

static double ms_since(int64_t start_us)
{
	return (double)(cell__now_us() - start_us) / 1000.0;
}

/* What the thread itself took: the figure on a machine that has other things to do, too. */
static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void test_ten_thousand(void **state)
{
	struct folder *folder = *state;
	static const char *const verbs[] = { "fetch", "parse", "send", "merge", "rank", "plot", "clean", "train", "index", "check" };
	static const char *const nouns[] = { "weather", "invoice", "email", "report", "image", "tweet", "order", "user", "price", "log" };
	make_folder(folder, "workflows");
	for (int i = 0; i < MANY; i++) {
		char name[64], source[600];
		const char *verb = verbs[i % 10], *noun = nouns[i / 10 % 10];
		snprintf(name, sizeof name, "workflows/%s_%s_%d.py", verb, noun, i);
		snprintf(source, sizeof source,
			 "\"\"\"%s the %s number %d of the collection.\"\"\"\nimport json\n\n"
			 "def run(path: str, limit: int = 10, unique%d: bool = False):\n    data = tools.curl.get(url=path)\n"
			 "    items = json.loads(data)[:limit]\n    return [%s_%s(item) for item in items]\n",
			 verb, noun, i, i, verb, noun);
		write_text(folder, name, source);
	}
	int64_t start = cell__now_us();
	struct cell__store *store = NULL;
	OK(cell__store_open(folder->base, NULL, &store, &err));
	printf("    open                     %8.3f ms\n", ms_since(start));
	json_t *list = NULL;
	start = cell__now_us();
	OK(cell__workflow_search(store, "weather", 10, &list, &err));
	json_decref(list);
	printf("    first search, indexing   %8.1f ms\n", ms_since(start));
	cell__store_close(store);
	OK(cell__store_open(folder->base, NULL, &store, &err));
	start = cell__now_us();
	OK(cell__workflow_search(store, "weather", 10, &list, &err));
	json_decref(list);
	printf("    first search, indexed    %8.3f ms\n", ms_since(start));
	static const char *const queries[] = { "weather",        "fetch weather data", "unique4711",
					       "collection",     "send_email_1234",    "how do I rank the prices of a user",
					       "nothinglikethis" };
	for (size_t q = 0; q < COUNT(queries); q++) {
		double times[51], cpu = cpu_ms();
		for (size_t i = 0; i < COUNT(times); i++) {
			start = cell__now_us();
			OK(cell__workflow_search(store, queries[q], 10, &list, &err));
			times[i] = ms_since(start);
			json_decref(list);
		}
		qsort(times, COUNT(times), sizeof *times, compare_doubles);
		printf("    search %-34s p50 %7.3f ms, max %7.3f ms, cpu %7.3f ms\n", queries[q], times[25], times[50],
		       (cpu_ms() - cpu) / (double)COUNT(times));
	}
	start = cell__now_us();
	OK(cell__workflow_list(store, &list, NULL, &err));
	printf("    list                     %8.1f ms\n", ms_since(start));
	assert_int_equal(json_array_size(list), MANY);
	json_decref(list);
	start = cell__now_us();
	OK(create(store, "one_more", SOURCE, "The zyzzyva", false, &err));
	printf("    create                   %8.3f ms\n", ms_since(start));
	start = cell__now_us();
	expect_found(store, "zyzzyva", "one_more");
	printf("    search after create      %8.3f ms\n", ms_since(start));
	cell__store_close(store);
}

/* A file with another name changes by it, and no watch on our folder would tell. */
static void test_hard_links(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "workflows");
	make_folder(folder, "elsewhere");
	write_text(folder, "elsewhere/a.py", "def run():\n    return 'apples'\n");
	char other[256];
	snprintf(other, sizeof other, "%s/elsewhere/a.py", folder->path);
	assert_int_equal(link(other, in(folder, "workflows/a.py")), 0);
	for (int i = 0; i < 3; i++)
		expect_found(folder->store, "apples", "a");
	write_text(folder, "elsewhere/a.py", "def run():\n    return 'oranges'\n");
	expect_found(folder->store, "apples", "");
	expect_found(folder->store, "oranges", "a");
	/* Files that are no workflows, and those of others, do not make the folders be listed again. */
	assert_int_equal(unlink(other), 0);
	expect_found(folder->store, "oranges", "a");
	expect_found(folder->store, "oranges", "a");
	int watch = folder->store->watch.fd;
	assert_true(watch >= 0);
	write_text(folder, "workflows/notes.txt", "x");
	write_text(folder, "requirements.txt", "x");
	expect_found(folder->store, "oranges", "a");
	write_text(folder, "workflows/b.py", "def run():\n    return 'pears'\n");
	expect_found(folder->store, "pears", "b");
}

static int put_one(void *arg, struct cell__search *search, struct cell_error *err)
{
	struct cell__vector_batch batch;
	size_t missing;
	if (cell__search_collect(search, 64, 100, &batch, &missing, err) < 0)
		return -1;
	float vectors[64 * 2] = { 0 };
	for (size_t i = 0; i < batch.n; i++) /* what has an x in it points one way, the rest the other */
		vectors[2 * i + !strchr(batch.list[i].text, 'x')] = 1;
	*(size_t *)arg = batch.n;
	int rc = cell__search_put_vectors(search, &batch, vectors, 2, err);
	cell__vector_batch_finish(&batch);
	return rc;
}

static void test_by_meaning(void **state)
{
	struct folder *folder = *state;
	const float x_wards[2] = { 1, 0 };
	struct cell__meaning meaning = { .vector = x_wards, .dimensions = 2 };
	json_t *list = NULL;
	size_t asked = 0;
	OK(cell__store_use_vectors(folder->store, "m", &err));
	OK(create(folder->store, "alpha", "def run():\n    pass\n", "Has an x in it", false, &err));
	OK(create(folder->store, "beta", "def run():\n    pass\n", "Has none", false, &err));
	OK(cell__workflow_search_by(folder->store, "zebra", 5, &meaning, &list, &err));
	assert_int_equal(meaning.missing, 2);
	assert_false(meaning.fused);
	assert_int_equal(json_array_size(list), 0);
	json_decref(list);
	OK(cell__workflow_with_search(folder->store, put_one, &asked, &err));
	assert_int_equal(asked, 2);
	OK(cell__workflow_search_by(folder->store, "zebra", 5, &meaning, &list, &err));
	assert_int_equal(meaning.missing, 0);
	assert_int_equal(meaning.counts.vectors, 2);
	assert_true(meaning.fused);
	CELL_AUTO_FREE char *found = names(list);
	assert_string_equal(found, "alpha");
	/* The index of words is a cache of its own: the vectors outlive it. */
	assert_true(there(folder, ".cache/vectors.sqlite"));
	cell__store_close_search(folder->store);
	assert_int_equal(unlink(in(folder, ".cache/search.sqlite")), 0);
	OK(cell__workflow_search_by(folder->store, "zebra", 5, &meaning, &list, &err));
	assert_int_equal(meaning.missing, 0);
	assert_true(meaning.fused);
	json_decref(list);
	meaning = (struct cell__meaning){ 0 };
	OK(cell__workflow_search_by(folder->store, "zebra", 5, &meaning, &list, &err));
	assert_false(meaning.fused);
	json_decref(list);
	FAILS(CELL_E_INVALID, "UTF-8", cell__workflow_search_by(folder->store, "\xff", 5, &meaning, &list, &err));
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_hard_links),
		STORE_TEST(test_by_meaning),
		TEST(test_names),
		BOTH_TEST(test_create_and_get),
		BOTH_TEST(test_overwrite_and_delete),
		BOTH_TEST(test_nothing_runs),
		STORE_TEST(test_hand_edited),
		STORE_TEST(test_same_tick),
		STORE_TEST(test_skills),
		BOTH_TEST(test_search_fields),
		STORE_TEST(test_cache),
		STORE_TEST(test_read_only),
		BOTH_TEST(test_eight_processes),
		BOTH_TEST(test_threads),
		STORE_TEST(test_kill_9),
		STORE_TEST(test_ten_thousand),
	};
	return RUN_STORE_TESTS(tests);
}
