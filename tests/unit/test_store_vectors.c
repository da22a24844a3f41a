/* storage/vectors.c and near.c: documents that get vectors, the cache file behind them, ranking and fusion. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>

#include "store_support.h"
#include "storage/search_internal.h"

#define DIM 4

/*
 * The tests' own endpoint: a document's vector is by its name.  Documents are called by their direction and a number:
 * "north1", "east1", ...
 */
static void embed(const char *text, float *out)
{
	static const char *const directions[] = { "north", "east", "south", "west" };
	memset(out, 0, DIM * sizeof *out);
	for (size_t i = 0; i < DIM; i++)
		if (strncmp(text, directions[i], strlen(directions[i])) == 0)
			out[i] = 1;
	float length = 1.0f;
	if (strchr(text, '2')) { /* the second of a kind leans to the next one */
		for (size_t i = 0; i < DIM; i++)
			if (out[i] == 1.0f) {
				out[(i + 1) % DIM] = 0.5f;
				break;
			}
		length = sqrtf(1.25f);
	}
	for (size_t i = 0; i < DIM; i++)
		out[i] /= length;
}

static const float north[DIM] = { 1, 0, 0, 0 }, east[DIM] = { 0, 1, 0, 0 };

static struct cell__search *open_search(const struct folder *folder, const char *model)
{
	struct cell__search *search = NULL;
	OK(cell__search_open(in(folder, "s.sqlite"), &search, &err));
	assert_false(cell__search_has_vectors(search));
	OK(cell__search_add_vectors(search, in(folder, "v.sqlite"), model, &err));
	assert_true(cell__search_has_vectors(search));
	return search;
}

static void add(struct cell__search *search, const char *name, const char *description)
{
	const struct cell__search_doc doc = { .id = name, .name = name, .description = description };
	OK(cell__search_update(search, &doc, 1, NULL, 0, &err));
}

static void drop(struct cell__search *search, const char *name)
{
	OK(cell__search_update(search, NULL, 0, &name, 1, &err));
}

static size_t missing(struct cell__search *search)
{
	struct cell__vector_batch none = { 0 };
	size_t n = 99;
	OK(cell__search_collect(search, 0, 0, &none, &n, &err));
	assert_int_equal(none.n, 0);
	cell__vector_batch_finish(&none);
	return n;
}

/* Gives every document its vector, in batches; says how many were asked for. */
static size_t fill(struct cell__search *search, size_t batch_size)
{
	size_t asked = 0;
	for (;;) {
		struct cell__vector_batch batch;
		size_t left;
		OK(cell__search_collect(search, batch_size, CELL__SEARCH_TEXT_BYTES, &batch, &left, &err));
		assert_true(batch.n <= batch_size && batch.n <= left);
		float vectors[64 * DIM];
		for (size_t i = 0; i < batch.n; i++)
			embed(batch.list[i].text, vectors + i * DIM);
		size_t n = batch.n;
		if (n)
			OK(cell__search_put_vectors(search, &batch, vectors, DIM, &err));
		cell__vector_batch_finish(&batch);
		if (n == 0)
			return asked;
		asked += n;
	}
}

static void expect_near(struct cell__search *search, const char *query, const float *vector, size_t limit, const char *expected)
{
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	bool fused = false;
	OK(cell__search_query_by(search, query, vector, DIM, limit, &hits, &n, &fused, &err));
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	cell__buf_add(&got, "", 0);
	for (size_t i = 0; i < n; i++) {
		cell__buf_printf(&got, "%s%s", i ? " " : "", hits[i].id);
		assert_true(i == 0 || hits[i].score <= hits[i - 1].score);
	}
	if (strcmp(got.data, expected) != 0)
		fail_msg("'%s' gave '%s', not '%s'", query, got.data, expected);
	assert_true(fused);
	cell__search_hits_free(hits, n);
}

static void expect_counts(struct cell__search *search, size_t documents, size_t vectors, size_t refused, size_t dimensions)
{
	struct cell__vector_counts counts;
	cell__search_vector_counts(search, &counts);
	assert_int_equal(counts.documents, documents);
	assert_int_equal(counts.vectors, vectors);
	assert_int_equal(counts.refused, refused);
	assert_int_equal(counts.dimensions, dimensions);
}

static void test_ranking(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	assert_int_equal(missing(search), 0);
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	bool fused = true;
	add(search, "north1", "about ice");
	add(search, "north2", "about snow");
	add(search, "east1", "about tea");
	add(search, "south1", "about penguins and ice");
	assert_int_equal(missing(search), 4);
	OK(cell__search_query_by(search, "ice", north, DIM, 5, &hits, &n, &fused, &err));
	assert_false(fused); /* nothing has a vector yet: by words alone */
	assert_int_equal(n, 2);
	cell__search_hits_free(hits, n);
	expect_counts(search, 4, 0, 0, 0);
	assert_int_equal(fill(search, 3), 4);
	assert_int_equal(missing(search), 0);
	expect_counts(search, 4, 4, 0, DIM);
	/* No common word: by meaning alone; what points elsewhere is not found. */
	expect_near(search, "arctic", north, 5, "north1 north2");
	expect_near(search, "beverage", east, 5, "east1 north2");
	expect_near(search, "arctic", north, 1, "north1");
	/* Both: a word that a document shares counts less than what it means. */
	expect_near(search, "penguins", north, 5, "north1 north2 south1");
	expect_near(search, "ice", north, 5, "north1 north2 south1");
	/* A name is a name, whatever it means. */
	expect_near(search, "South1", north, 5, "south1 north1 north2 east1");
	expect_near(search, "east1", east, 1, "east1");
	/* Without a vector, or with one of another kind, by words. */
	OK(cell__search_query_by(search, "ice", NULL, 0, 5, &hits, &n, &fused, &err));
	assert_false(fused);
	assert_int_equal(n, 2);
	cell__search_hits_free(hits, n);
	OK(cell__search_query_by(search, "ice", north, DIM - 1, 1, &hits, &n, &fused, &err));
	assert_false(fused);
	assert_int_equal(n, 1);
	cell__search_hits_free(hits, n);
	OK(cell__search_query_by(search, "ice", north, DIM, 0, &hits, &n, &fused, &err));
	assert_int_equal(n, 0);
	cell__search_hits_free(hits, n);
	FAILS(CELL_E_INVALID, "UTF-8", cell__search_query_by(search, "\xff", north, DIM, 5, &hits, &n, &fused, &err));
	cell__search_close(search);
}

/* Documents come, change and go: each is asked for once, and rows follow their documents. */
static void test_changes(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	add(search, "north1", "x");
	add(search, "east1", "x");
	add(search, "south1", "x");
	add(search, "west1", "x");
	assert_int_equal(fill(search, 64), 4);
	add(search, "west1", "x"); /* the same again */
	assert_int_equal(fill(search, 64), 0);
	add(search, "west1", "y");
	assert_int_equal(fill(search, 64), 1);
	add(search, "west1", "x"); /* as it was: known from the cache file */
	assert_int_equal(fill(search, 64), 0);
	drop(search, "north1");
	expect_near(search, "zzz", north, 5, "north1"); /* not noticed yet */
	assert_int_equal(missing(search), 0);
	expect_counts(search, 3, 3, 0, DIM);
	expect_near(search, "zzz", east, 5, "east1");
	add(search, "north2", "x");
	drop(search, "south1");
	assert_int_equal(fill(search, 1), 1);
	expect_near(search, "zzz", north, 5, "north2");
	expect_near(search, "zzz", east, 5, "east1 north2");
	expect_near(search, "zzz", (const float[]){ 0, 0, 0, 1 }, 5, "west1");
	/* A document that changes while it is under way: what comes is for what it was. */
	struct cell__vector_batch batch;
	size_t left;
	add(search, "south1", "new");
	OK(cell__search_collect(search, 64, CELL__SEARCH_TEXT_BYTES, &batch, &left, &err));
	assert_int_equal(batch.n, 1);
	assert_string_equal(batch.list[0].text, "south1: new");
	add(search, "south1", "newer");
	assert_int_equal(missing(search), 1);
	OK(cell__search_put_vectors(search, &batch, north, DIM, &err));
	cell__vector_batch_finish(&batch);
	assert_int_equal(missing(search), 1);
	expect_near(search, "zzz", north, 5, "north2");
	/* Documents without a name are no documents. */
	const struct cell__search_doc nameless = { .id = ".index", .name = "" };
	OK(cell__search_update(search, &nameless, 1, NULL, 0, &err));
	assert_int_equal(missing(search), 1);
	cell__search_close(search);
}

static void test_texts(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	char body[8000];
	for (size_t i = 0; i + 2 < sizeof body; i += 2)
		memcpy(body + i, "\xc3\xa9", 2);
	body[sizeof body - 2] = '\0';
	const struct cell__search_doc doc = {
		.id = "a", .name = "a", .description = "what", .tags = "t", .params = "p q", .extra = "docs", .body = body
	};
	OK(cell__search_update(search, &doc, 1, NULL, 0, &err));
	for (size_t bytes = 21; bytes < 25; bytes++) {
		struct cell__vector_batch batch;
		size_t left;
		OK(cell__search_collect(search, 1, bytes, &batch, &left, &err));
		assert_memory_equal(batch.list[0].text, "a: what\nt\np q\ndocs\n", 19);
		size_t size = strlen(batch.list[0].text);
		assert_true(size <= bytes && size >= bytes - 1 && cell__utf8_ok(batch.list[0].text, size));
		cell__vector_batch_finish(&batch);
	}
	/* Any part of it makes it another document; what is never sent does not. */
	struct cell__search_doc other = doc;
	unsigned char first[CELL__SEARCH_HASH_BYTES], second[CELL__SEARCH_HASH_BYTES];
	assert_true(cell__vectors_hash(&doc, first));
	other.tags = "t p";
	other.params = "q";
	assert_true(cell__vectors_hash(&other, second));
	assert_memory_not_equal(first, second, sizeof first);
	other = doc;
	char longer[sizeof body];
	memcpy(longer, body, sizeof body);
	longer[sizeof body - 4] = 'x';
	other.body = longer;
	assert_true(cell__vectors_hash(&other, second));
	assert_memory_equal(first, second, sizeof first);
	cell__search_close(search);
}

static void test_cache(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m"), *other;
	add(search, "north1", "x");
	add(search, "east2", "x");
	other = open_search(folder, "m");
	assert_int_equal(missing(other), 2);
	assert_int_equal(fill(search, 64), 2);
	/* Another process has them already. */
	assert_int_equal(missing(other), 0);
	expect_near(other, "zzz", north, 5, "north1");
	cell__search_close(other);
	/* Another model is another matter, and does not harm the first. */
	other = open_search(folder, "n");
	assert_int_equal(missing(other), 2);
	assert_int_equal(fill(other, 64), 2);
	cell__search_close(other);
	cell__search_close(search);
	search = open_search(folder, "m");
	assert_int_equal(missing(search), 0);
	cell__search_close(search);
	/* It is a cache. */
	assert_int_equal(unlink(in(folder, "v.sqlite")), 0);
	search = open_search(folder, "m");
	assert_int_equal(fill(search, 64), 2);
	cell__search_close(search);
}

/* What anybody may have done to the file. */
static void test_torn_cache(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	for (int i = 0; i < 200; i++) {
		char name[32];
		snprintf(name, sizeof name, "north1_%d", i);
		add(search, name, "x");
	}
	assert_int_equal(fill(search, 64), 200);
	cell__search_close(search);
	struct stat st;
	assert_int_equal(stat(in(folder, "v.sqlite"), &st), 0);
	for (int way = 0; way < 4; way++) {
		if (way == 0)
			write_text(folder, "v.sqlite", "this is no database, but it is long enough to be read as one, surely");
		else if (way == 1)
			assert_int_equal(truncate(in(folder, "v.sqlite"), st.st_size / 2), 0);
		else if (way == 2)
			assert_int_equal(unlink(in(folder, "v.sqlite")) | mkdir(in(folder, "v.sqlite"), 0700), 0);
		search = open_search(folder, "m");
		size_t left = missing(search);
		assert_true(way == 3 ? left == 0 : left > 0);
		if (way == 3) { /* under our feet */
			FILE *file = fopen(in(folder, "v.sqlite"), "r+");
			for (int i = 0; i < 100000; i++)
				fputc(i * 7, file);
			fclose(file);
			add(search, "east1", "x");
		}
		assert_int_equal(fill(search, 64), way == 3 ? 1 : left);
		expect_near(search, "zzz", north, 1, "north1_0");
		cell__search_close(search);
		if (way == 2)
			assert_int_equal(rmdir(in(folder, "v.sqlite")), 0);
		if (way == 2 || way == 1) {
			search = open_search(folder, "m");
			fill(search, 64);
			cell__search_close(search);
		}
	}
}

static void change_file(const struct folder *folder, const char *sql)
{
	sqlite3 *db = NULL;
	assert_int_equal(sqlite3_open(in(folder, "v.sqlite"), &db), SQLITE_OK);
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
		fail_msg("%s: %s", sql, sqlite3_errmsg(db));
	sqlite3_close(db);
}

static void test_hostile_cache(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	add(search, "north1", "x");
	add(search, "east1", "x");
	assert_int_equal(fill(search, 64), 2);
	cell__search_close(search);
	static const char *const changes[] = {
		"UPDATE vectors SET vector = x'0000c07f0000c07f0000c07f0000c07f' WHERE rowid = 1", /* NaN */
		"UPDATE vectors SET vector = x'0000807f000000000000000000000000' WHERE rowid = 1", /* infinite */
		"UPDATE vectors SET vector = x'ffff7f7fffff7f7fffff7f7fffff7f7f' WHERE rowid = 1", /* long */
		"UPDATE vectors SET vector = x'00' WHERE rowid = 1",
		"UPDATE vectors SET vector = 'text' WHERE rowid = 1",
		"UPDATE vectors SET vector = zeroblob(0) WHERE rowid = 1",
		"UPDATE vectors SET vector = zeroblob(1000000) WHERE rowid = 1",
		"DELETE FROM vectors WHERE rowid = 1",
	};
	for (size_t i = 0; i < COUNT(changes); i++) {
		change_file(folder, "UPDATE vectors SET rowid = 1 WHERE rowid = (SELECT min(rowid) FROM vectors)");
		change_file(folder, changes[i]);
		search = open_search(folder, "m");
		if (fill(search, 64) != 1)
			fail_msg("not seen: %s", changes[i]);
		expect_near(search, "zzz", north, 5, "north1");
		cell__search_close(search);
	}
	/* Where all are of no use they are made anew, with any number of dimensions. */
	change_file(folder, "UPDATE vectors SET vector = zeroblob(40000)");
	search = open_search(folder, "m");
	assert_int_equal(fill(search, 64), 2);
	cell__search_close(search);
}

static void test_dimensions(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	struct cell__vector_batch batch;
	size_t left;
	add(search, "north1", "x");
	assert_int_equal(fill(search, 64), 1);
	add(search, "east1", "x");
	OK(cell__search_collect(search, 64, CELL__SEARCH_TEXT_BYTES, &batch, &left, &err));
	const float wide[2 * DIM] = { 1 };
	FAILS(CELL_E_PROTOCOL, "the vectors have 8 dimensions, the earlier ones 4",
	      cell__search_put_vectors(search, &batch, wide, 2 * DIM, &err));
	assert_int_equal(missing(search), 1);
	/* The model has changed behind its name. */
	cell__search_set_dimensions(search, 2 * DIM);
	assert_int_equal(missing(search), 2);
	OK(cell__search_put_vectors(search, &batch, wide, 2 * DIM, &err));
	assert_int_equal(missing(search), 1);
	expect_counts(search, 2, 1, 0, 2 * DIM);
	cell__vector_batch_finish(&batch);
	cell__search_close(search);
	/* The newest say how many they are; older ones of another number count as missing. */
	search = open_search(folder, "m");
	assert_int_equal(missing(search), 1);
	expect_counts(search, 2, 1, 0, 2 * DIM);
	cell__search_close(search);
}

static void test_refused(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	struct cell__vector_batch batch;
	size_t left;
	add(search, "east1", "x");
	add(search, "north1", "x");
	OK(cell__search_collect(search, 1, CELL__SEARCH_TEXT_BYTES, &batch, &left, &err));
	assert_string_equal(batch.list[0].id, "east1");
	cell__search_refuse_vectors(search, &batch);
	cell__vector_batch_finish(&batch);
	assert_int_equal(missing(search), 1);
	assert_int_equal(fill(search, 64), 1);
	expect_counts(search, 2, 1, 1, DIM);
	cell__search_refuse_vectors(search, NULL); /* it was not the document */
	assert_int_equal(missing(search), 1);
	OK(cell__search_collect(search, 1, CELL__SEARCH_TEXT_BYTES, &batch, &left, &err));
	cell__search_refuse_vectors(search, &batch);
	cell__vector_batch_finish(&batch);
	expect_counts(search, 2, 1, 1, DIM);
	add(search, "east1", "y"); /* another text may be taken */
	assert_int_equal(fill(search, 64), 1);
	expect_counts(search, 2, 2, 0, DIM);
	cell__search_close(search);
}

static int count_rows(const struct folder *folder)
{
	sqlite3 *db = NULL;
	int n = -1;
	assert_int_equal(sqlite3_open(in(folder, "v.sqlite"), &db), SQLITE_OK);
	assert_int_equal(cell__search_read_int(db, "SELECT count(*) FROM vectors", &n), 0);
	sqlite3_close(db);
	return n;
}

static void test_tidying(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = open_search(folder, "m");
	add(search, "north1", "x");
	fill(search, 64);
	for (int i = 0; i < 1500; i++) {
		char text[16];
		snprintf(text, sizeof text, "%d", i);
		add(search, "east1", text);
		if (i % 10 == 0 || i == 1499)
			fill(search, 64);
	}
	change_file(folder, "WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < 1500)"
			    " INSERT INTO vectors(model, hash, vector) SELECT 'old', randomblob(16), zeroblob(16) FROM c");
	OK(cell__search_tidy_vectors(search, &err));
	assert_int_equal(count_rows(folder), 2 * 2 + 1000);
	OK(cell__search_tidy_vectors(search, &err));
	assert_int_equal(count_rows(folder), 2 * 2 + 1000);
	cell__search_close(search);
	/* What the documents need was kept, although one of them is the oldest. */
	search = open_search(folder, "m");
	assert_int_equal(fill(search, 64), 0);
	cell__search_close(search);
}

/* Against the plain way, with ties, more and fewer documents than are wanted. */
static void test_nearest(void **state)
{
	struct folder *folder = *state;
	enum { N = 300, D = 37 };
	struct cell__search *search = open_search(folder, "m");
	static float vectors[N][D];
	float query[D];
	struct cell__search_doc docs[N];
	static char names[N][16];
	srand(7);
	for (int i = 0; i < N; i++) {
		double sum = 0;
		for (int k = 0; k < D; k++)
			vectors[i][k] = (float)(rand() % 7 - 3);
		for (int k = 0; k < D; k++)
			sum += (double)vectors[i][k] * vectors[i][k];
		for (int k = 0; k < D; k++)
			vectors[i][k] /= (float)sqrt(sum);
		snprintf(names[i], sizeof names[i], "doc%03d", i);
		docs[i] = (struct cell__search_doc){ .id = names[i], .name = names[i] };
	}
	OK(cell__search_update(search, docs, N, NULL, 0, &err));
	struct cell__vector_batch batch;
	size_t left;
	OK(cell__search_collect(search, N, 100, &batch, &left, &err));
	assert_int_equal(batch.n, N);
	for (int i = 0; i < N; i++)
		assert_string_equal(batch.list[i].id, names[i]);
	OK(cell__search_put_vectors(search, &batch, vectors[0], D, &err));
	cell__vector_batch_finish(&batch);
	for (size_t limit = 1; limit <= 500; limit = limit * 3 + 1) {
		struct cell__search_hit *hits = NULL;
		size_t n = 0;
		bool fused;
		for (int k = 0; k < D; k++)
			query[k] = (float)(rand() % 5 - 2) / 10;
		OK(cell__search_query_by(search, "zzz", query, D, limit, &hits, &n, &fused, &err));
		double scores[N], last = 2;
		size_t positive = 0;
		for (int i = 0; i < N; i++) {
			scores[i] = 0;
			for (int k = 0; k < D; k++)
				scores[i] += (double)vectors[i][k] * query[k];
			positive += scores[i] > 1e-4;
		}
		assert_true(n <= limit && (n == limit || n >= positive));
		for (size_t i = 0; i < n; i++) {
			double score = scores[atoi(hits[i].id + 3)];
			assert_true(score <= last + 1e-4);
			last = score;
		}
		size_t better = 0;
		for (int i = 0; i < N; i++)
			better += scores[i] > last + 1e-4;
		assert_true(better < n);
		cell__search_hits_free(hits, n);
	}
	cell__search_close(search);
}

struct racing {
	struct cell__search *search;
	atomic_bool stop;
};

static void *rank_always(void *arg)
{
	struct racing *racing = arg;
	while (!atomic_load(&racing->stop)) {
		struct cell__search_hit *hits = NULL;
		size_t n = 0;
		bool fused;
		if (cell__search_query_by(racing->search, "zzz", north, DIM, 5, &hits, &n, &fused, NULL) < 0)
			abort();
		for (size_t i = 0; i < n; i++)
			if (strncmp(hits[i].id, "north", 5) != 0)
				abort();
		cell__search_hits_free(hits, n);
	}
	return NULL;
}

/* Ranking goes on while documents come and go. */
static void test_threads(void **state)
{
	struct folder *folder = *state;
	struct racing racing = { .search = open_search(folder, "m") };
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, rank_always, &racing), 0);
	for (int i = 0; i < 60; i++) {
		char a[32], b[32];
		snprintf(a, sizeof a, "north1_%d", i * 7 % 20);
		snprintf(b, sizeof b, "south1_%d", i % 20);
		add(racing.search, a, "x");
		add(racing.search, b, "x");
		fill(racing.search, 64);
		drop(racing.search, i % 2 ? a : b);
		assert_int_equal(missing(racing.search), 0);
	}
	atomic_store(&racing.stop, true);
	pthread_join(thread, NULL);
	cell__search_close(racing.search);
}

static void test_out_of_memory(void **state)
{
	struct folder *folder = *state;
	struct cell__search *search = NULL;
	OK(cell__search_open(NULL, &search, &err));
	for (long n = 1;; n++) {
		cell__alloc_fail_after(n);
		int rc = cell__search_add_vectors(search, in(folder, "v.sqlite"), "m", NULL);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
		assert_false(cell__search_has_vectors(search));
	}
	add(search, "north1", "ice");
	add(search, "east1", "tea");
	for (long n = 1;; n++) {
		struct cell__vector_batch batch;
		size_t left;
		float vectors[2 * DIM];
		cell__alloc_fail_after(n);
		int rc = cell__search_collect(search, 64, 100, &batch, &left, NULL);
		if (rc == 0) {
			assert_int_equal(batch.n, 2);
			for (size_t i = 0; i < 2; i++)
				embed(batch.list[i].text, vectors + i * DIM);
			rc = cell__search_put_vectors(search, &batch, vectors, DIM, NULL);
			cell__vector_batch_finish(&batch);
		}
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
	}
	for (long n = 1;; n++) {
		struct cell__search_hit *hits = NULL;
		size_t count;
		bool fused;
		cell__alloc_fail_after(n);
		int rc = cell__search_query_by(search, "tea", north, DIM, 5, &hits, &count, &fused, NULL);
		cell__alloc_fail_after(0);
		if (rc == 0) {
			assert_int_equal(count, 2);
			cell__search_hits_free(hits, count);
			break;
		}
	}
	cell__search_close(search);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_ranking),    STORE_TEST(test_changes),       STORE_TEST(test_texts),      STORE_TEST(test_cache),
		STORE_TEST(test_torn_cache), STORE_TEST(test_hostile_cache), STORE_TEST(test_dimensions), STORE_TEST(test_refused),
		STORE_TEST(test_tidying),    STORE_TEST(test_nearest),       STORE_TEST(test_threads),    STORE_TEST(test_out_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
