/*
 * Vectors of a search's documents: a matrix in memory, one row per document, and a cache file behind it.
 *
 * Two locks, always taken in this order: `db_lock` for all changes (one at a time, may read files), and `lock` for the moments in which the
 * matrix changes and while it is ranked. So ranking never waits for a file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

#include "storage/search_internal.h"
#include "wire/embeddings.h"

#define KEPT_EXTRA 1000u /* rows of the cache file, beside twice as many as there are documents */
#define NO_ROW CELL__VECTOR_NO_ROW
#define LANES CELL__VECTOR_LANES

/* The version of a vector's source text; increase it when that changes. */
#define TEXT_VERSION "2"
#define REPEATED_BYTES 8u /* a shorter text may be part of another by chance */

/* ---- documents' texts ---- */

bool cell__vectors_hash(const struct cell__search_doc *doc, unsigned char out[static CELL__SEARCH_HASH_BYTES])
{
	const char *const texts[] = { TEXT_VERSION, doc->name, doc->description, doc->tags, doc->params, doc->extra, doc->body };
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned size = 0;
	if (!doc->name[0])
		return false;
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
	for (size_t i = 0; i < sizeof texts / sizeof *texts && ok; i++) {
		const char *text = texts[i] ? texts[i] : "";
		/* With the NUL, so that no byte can move from one text to the next; text past the bound is never sent. */
		size_t n = strnlen(text, CELL__SEARCH_TEXT_BYTES);
		ok = EVP_DigestUpdate(context, text, n) == 1 && EVP_DigestUpdate(context, "", 1) == 1;
	}
	ok = ok && EVP_DigestFinal_ex(context, digest, &size) == 1 && size >= CELL__SEARCH_HASH_BYTES;
	EVP_MD_CTX_free(context);
	if (ok)
		memcpy(out, digest, CELL__SEARCH_HASH_BYTES);
	return ok;
}

void cell__vector_batch_finish(struct cell__vector_batch *batch)
{
	for (size_t i = 0; i < batch->n; i++) {
		free(batch->list[i].id);
		free(batch->list[i].text);
	}
	free(batch->list);
	*batch = (struct cell__vector_batch){ 0 };
}

/* Whether the text is there already: a tool with one callable often describes both in the same words, which would count twice. */
static bool is_repeated(const struct cell__buf *out, const char *text)
{
	size_t size = strlen(text);
	while (size > 0 && strchr(" \t\r\n", text[size - 1]))
		size--;
	return size == 0 || (size >= REPEATED_BYTES && memmem(out->data, out->size, text, size));
}

/*
 * Name, description, tags, parameters, docstring, source, as far as they fit. The name as words, before a colon: of the forms that were
 * tried, models of sentences rank that best (bench/ranking.py).
 */
static int make_text(struct cell__buf *out, const char *id, sqlite3_stmt *statement, size_t text_bytes)
{
	const char *separator = ": ";
	int rc = cell__buf_add_str(out, id);
	for (size_t i = 0; rc == 0 && i < out->size; i++)
		if (strchr("_.-", out->data[i]))
			out->data[i] = ' ';
	for (int i = 0; i < 5 && rc == 0 && out->size < text_bytes; i++) {
		const char *text = (const char *)sqlite3_column_text(statement, i);
		if (text && text[0] && !is_repeated(out, text))
			rc |= cell__buf_add_str(out, separator) | cell__buf_add(out, text, strnlen(text, text_bytes));
		separator = "\n";
	}
	if (rc == 0 && out->size > text_bytes)
		out->size = text_bytes - cell__utf8_cut(out->data, text_bytes);
	if (rc == 0)
		out->data[out->size] = '\0';
	return rc;
}

/* *ret_text NULL: the document no longer exists. */
static int read_text(struct cell__search *search, const char *id, size_t text_bytes, char **ret_text, struct cell_error *err)
{
	static const char sql[] = "SELECT description, tags, params, extra, body FROM docs WHERE rowid ="
				  " (SELECT rowid FROM items WHERE id = ?)";
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	sqlite3_stmt *statement = NULL;
	int result = 0;
	*ret_text = NULL;
	pthread_mutex_lock(&search->lock);
	int rc = sqlite3_prepare_v2(search->db, sql, -1, &statement, NULL);
	if (rc == SQLITE_OK) {
		sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
		rc = sqlite3_step(statement);
	}
	if (rc == SQLITE_ROW && (make_text(&text, id, statement, text_bytes) < 0 || !(*ret_text = cell__buf_take(&text))))
		result = cell_fail(err, CELL_E_NOMEM, 0, "search index");
	else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		result = cell__search_fail(search->db, err, "read");
	sqlite3_finalize(statement);
	pthread_mutex_unlock(&search->lock);
	return result;
}

/* ---- rows ---- */

static int by_id(const void *a, const void *b)
{
	return strcmp(((const struct cell__vectors_doc *)a)->id, ((const struct cell__vectors_doc *)b)->id);
}

static struct cell__vectors_doc *find_doc(struct cell__vectors *v, const char *id)
{
	struct cell__vectors_doc key = { .id = (char *)id };
	return v->n_docs ? bsearch(&key, v->docs, v->n_docs, sizeof key, by_id) : NULL;
}

static void free_docs(struct cell__vectors_doc *docs, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(docs[i].id);
	free(docs);
}

/* With db_lock held, like the two below. */
static void set_known(struct cell__vectors *v, struct cell__vectors_doc *doc, enum cell__vector_known known)
{
	pthread_mutex_lock(&v->lock);
	doc->known = known;
	pthread_mutex_unlock(&v->lock);
}

static void set_dimensions(struct cell__vectors *v, size_t dimensions)
{
	if (v->dimensions == dimensions)
		return;
	pthread_mutex_lock(&v->lock);
	v->dimensions = dimensions;
	v->stride = (dimensions + LANES - 1) / LANES * LANES;
	v->n_rows = v->capacity = 0;
	free(cell__take_ptr(v->rows));
	free(cell__take_ptr(v->row_docs));
	for (size_t i = 0; i < v->n_docs; i++) {
		if (v->docs[i].row != NO_ROW || v->docs[i].known == CELL__VECTOR_MISSING)
			v->docs[i].known = CELL__VECTOR_UNKNOWN;
		v->docs[i].row = NO_ROW;
	}
	pthread_mutex_unlock(&v->lock);
}

static int grow(struct cell__vectors *v)
{
	size_t capacity = v->capacity ? v->capacity * 2 : 64, most = CELL__SEARCH_VECTOR_BYTES / sizeof(int16_t) / v->stride;
	if (capacity > most)
		capacity = most;
	int16_t *rows = cell__realloc(v->rows, capacity * v->stride * sizeof *rows);
	if (!rows)
		return -1;
	v->rows = rows;
	size_t *row_docs = cell__realloc(v->row_docs, capacity * sizeof *row_docs);
	if (!row_docs)
		return -1;
	v->row_docs = row_docs;
	v->capacity = capacity;
	return 0;
}

/* The vector has as many dimensions as all. */
static int set_row(struct cell__vectors *v, struct cell__vectors_doc *doc, const float *vector)
{
	int rc = 0;
	pthread_mutex_lock(&v->lock);
	if (doc->row == NO_ROW && v->n_rows >= CELL__SEARCH_VECTOR_BYTES / sizeof(int16_t) / v->stride) {
		doc->known = CELL__VECTOR_REFUSED;
	} else if (doc->row != NO_ROW || v->n_rows < v->capacity || (rc = grow(v)) == 0) {
		if (doc->row == NO_ROW)
			doc->row = v->n_rows++;
		cell__vectors_pack(vector, v->dimensions, v->rows + doc->row * v->stride);
		v->row_docs[doc->row] = (size_t)(doc - v->docs);
	}
	pthread_mutex_unlock(&v->lock);
	return rc;
}

/* Closes the gaps that documents which are gone have left.  With both locks held. */
static void compact(struct cell__vectors *v, struct cell__vectors_doc *docs, size_t n)
{
	for (size_t row = 0; row < v->n_rows; row++)
		v->row_docs[row] = NO_ROW;
	for (size_t i = 0; i < n; i++)
		if (docs[i].row != NO_ROW)
			v->row_docs[docs[i].row] = i;
	for (size_t row = 0; row < v->n_rows; row++) {
		while (v->n_rows > row && v->row_docs[v->n_rows - 1] == NO_ROW)
			v->n_rows--;
		if (row >= v->n_rows || v->row_docs[row] != NO_ROW)
			continue;
		v->n_rows--;
		memcpy(v->rows + row * v->stride, v->rows + v->n_rows * v->stride, v->stride * sizeof *v->rows);
		v->row_docs[row] = v->row_docs[v->n_rows];
		docs[v->row_docs[row]].row = row;
	}
}

/* ---- which documents there are ---- */

struct listed {
	struct cell__vectors_doc *docs;
	size_t n, capacity;
};

static int add_listed(struct listed *list, const char *id, const void *hash)
{
	if (list->n == list->capacity) {
		size_t capacity = list->capacity ? list->capacity * 2 : 64;
		struct cell__vectors_doc *more = cell__realloc(list->docs, capacity * sizeof *more);
		if (!more)
			return -1;
		list->docs = more;
		list->capacity = capacity;
	}
	struct cell__vectors_doc *doc = &list->docs[list->n];
	*doc = (struct cell__vectors_doc){ .id = cell__strdup(id), .known = CELL__VECTOR_UNKNOWN, .row = NO_ROW };
	if (!doc->id)
		return -1;
	memcpy(doc->hash, hash, sizeof doc->hash);
	list->n++;
	return 0;
}

static int list_docs(struct cell__search *search, struct listed *list)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(search->db, "SELECT id, hash FROM items WHERE hash IS NOT NULL ORDER BY id", -1, &statement, NULL) !=
	    SQLITE_OK)
		return -1;
	int rc;
	while ((rc = sqlite3_step(statement)) == SQLITE_ROW)
		if (sqlite3_column_bytes(statement, 1) == CELL__SEARCH_HASH_BYTES &&
		    add_listed(list, (const char *)sqlite3_column_text(statement, 0), sqlite3_column_blob(statement, 1)) < 0)
			return -1;
	return rc == SQLITE_DONE ? 0 : -1;
}

/* Reads the present documents; keeps the state of unchanged ones. With db_lock held. */
static int sync_docs(struct cell__search *search, struct cell_error *err)
{
	struct cell__vectors *v = search->vectors;
	struct listed list = { 0 };
	if (!atomic_exchange(&v->stale, false))
		return 0;
	pthread_mutex_lock(&search->lock);
	int rc = list_docs(search, &list);
	if (rc < 0)
		cell__search_fail(search->db, err, "read");
	pthread_mutex_unlock(&search->lock);
	if (rc < 0) {
		free_docs(list.docs, list.n);
		atomic_store(&v->stale, true);
		return -1;
	}
	for (size_t i = 0, k = 0; i < list.n; i++) {
		while (k < v->n_docs && strcmp(v->docs[k].id, list.docs[i].id) < 0)
			k++;
		const struct cell__vectors_doc *old = k < v->n_docs ? &v->docs[k] : NULL;
		if (old && strcmp(old->id, list.docs[i].id) == 0 && memcmp(old->hash, list.docs[i].hash, sizeof old->hash) == 0) {
			list.docs[i].row = old->row;
			list.docs[i].known = old->known;
		}
	}
	pthread_mutex_lock(&v->lock);
	compact(v, list.docs, list.n);
	free_docs(v->docs, v->n_docs);
	v->docs = list.docs;
	v->n_docs = list.n;
	pthread_mutex_unlock(&v->lock);
	return 0;
}

/* ---- the cache file ---- */

/* Large pages: a vector has some thousand bytes. */
static const struct cell__search_schema schema = {
	.version = 1,
	.page_bytes = 65536,
	.tables = "CREATE TABLE vectors(rowid INTEGER PRIMARY KEY, model TEXT NOT NULL, hash BLOB NOT NULL,"
		  " vector BLOB NOT NULL);"
		  "CREATE UNIQUE INDEX vectors_key ON vectors(model, hash);",
	.drops = "DROP TABLE IF EXISTS vectors",
};

/* Opens the file, or replaces it, or works without. */
static int open_cache(struct cell__vectors *v, bool anew, struct cell_error *err)
{
	int rc = -1;
	sqlite3_close_v2(cell__take_ptr(v->db));
	v->data_version = -1;
	if (v->path && !anew)
		rc = cell__search_open_db(v->path, &schema, &v->db, NULL);
	if (rc < 0 && v->path && (unlink(v->path) == 0 || errno == ENOENT))
		rc = cell__search_open_db(v->path, &schema, &v->db, NULL);
	return rc < 0 ? cell__search_open_db(NULL, &schema, &v->db, err) : 0;
}

int cell__search_add_vectors(struct cell__search *search, const char *path, const char *model, struct cell_error *err)
{
	struct cell__vectors *v = cell__alloc(1, sizeof *v);
	if (!v)
		return cell_fail(err, CELL_E_NOMEM, 0, "open search index");
	pthread_mutex_init(&v->db_lock, NULL);
	pthread_mutex_init(&v->lock, NULL);
	atomic_store(&v->stale, true);
	v->model = cell__strdup(model);
	v->path = path ? cell__strdup(path) : NULL;
	if (!v->model || (path && !v->path)) {
		cell__vectors_destroy(v);
		return cell_fail(err, CELL_E_NOMEM, 0, "open search index");
	}
	search->vectors = v;
	return 0;
}

bool cell__search_has_vectors(const struct cell__search *search)
{
	return search->vectors != NULL;
}

void cell__vectors_destroy(struct cell__vectors *v)
{
	if (!v)
		return;
	sqlite3_close_v2(v->db);
	free_docs(v->docs, v->n_docs);
	free(v->rows);
	free(v->row_docs);
	free(v->model);
	free(v->path);
	pthread_mutex_destroy(&v->db_lock);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

void cell__vectors_stale(struct cell__vectors *v)
{
	if (v)
		atomic_store(&v->stale, true);
}

/* The newest vector has the model's number of dimensions. */
static void learn_dimensions(struct cell__vectors *v)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(v->db, "SELECT length(vector) FROM vectors WHERE model = ? ORDER BY rowid DESC LIMIT 1", -1, &statement,
			       NULL) != SQLITE_OK)
		return;
	sqlite3_bind_text(statement, 1, v->model, -1, SQLITE_STATIC);
	if (sqlite3_step(statement) != SQLITE_ROW)
		return;
	int bytes = sqlite3_column_int(statement, 0);
	if (bytes > 0 && bytes % (int)sizeof(float) == 0 && (unsigned)bytes / sizeof(float) <= CELL__EMBED_DIMENSIONS)
		set_dimensions(v, (unsigned)bytes / sizeof(float));
}

/* Any user may have written the file: a vector that is not of length one (or zero) counts as missing. */
static bool usable(const float *vector, size_t n)
{
	float sums[4] = { 0 };
	size_t i = 0;
	for (; i + 4 <= n; i += 4)
		for (size_t k = 0; k < 4; k++)
			sums[k] += vector[i + k] * vector[i + k];
	for (; i < n; i++)
		sums[0] += vector[i] * vector[i];
	float sum = sums[0] + sums[1] + sums[2] + sums[3];
	return sum >= 0 && sum < 1.01f;
}

static int load_one(struct cell__vectors *v, sqlite3_stmt *statement, struct cell__vectors_doc *doc)
{
	sqlite3_bind_blob(statement, 2, doc->hash, sizeof doc->hash, SQLITE_STATIC);
	int rc = sqlite3_step(statement), result = 0;
	const void *blob = rc == SQLITE_ROW ? sqlite3_column_blob(statement, 0) : NULL;
	size_t bytes = blob ? (size_t)sqlite3_column_bytes(statement, 0) : 0;
	if (rc == SQLITE_ROW || rc == SQLITE_DONE)
		set_known(v, doc, CELL__VECTOR_MISSING);
	else
		result = -1;
	if (bytes > 0 && bytes == v->dimensions * sizeof(float) && usable(blob, v->dimensions))
		result = set_row(v, doc, blob);
	sqlite3_reset(statement);
	return result;
}

static int load_each(struct cell__vectors *v)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(v->db, "SELECT vector FROM vectors WHERE model = ? AND hash = ?", -1, &statement, NULL) != SQLITE_OK)
		return -1;
	sqlite3_bind_text(statement, 1, v->model, -1, SQLITE_STATIC);
	for (size_t i = 0; i < v->n_docs; i++) {
		struct cell__vectors_doc *doc = &v->docs[i];
		if (doc->row == NO_ROW && doc->known == CELL__VECTOR_UNKNOWN && load_one(v, statement, doc) < 0)
			return -1;
	}
	return 0;
}

/* -1: the file is damaged, or out of memory; unknown documents stay unknown. */
static int load_unknown(struct cell__vectors *v)
{
	size_t unknown = 0;
	int version = 0;
	if (cell__search_read_int(v->db, "PRAGMA data_version", &version) == 0 && version != v->data_version) {
		/* Another process may have stored vectors that we miss. */
		for (size_t i = 0; i < v->n_docs; i++)
			if (v->docs[i].row == NO_ROW && v->docs[i].known == CELL__VECTOR_MISSING)
				set_known(v, &v->docs[i], CELL__VECTOR_UNKNOWN);
		v->data_version = version;
	}
	if (v->dimensions == 0)
		learn_dimensions(v);
	for (size_t i = 0; i < v->n_docs; i++)
		unknown += v->docs[i].row == NO_ROW && v->docs[i].known == CELL__VECTOR_UNKNOWN;
	if (unknown == 0)
		return 0;
	/* In one transaction: otherwise each read would lock and unlock the file. */
	if (sqlite3_exec(v->db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK)
		return -1;
	int rc = load_each(v);
	sqlite3_exec(v->db, rc == 0 ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL);
	return rc;
}

static int collect_texts(struct cell__search *search, size_t max, size_t text_bytes, struct cell__vector_batch *batch, size_t *ret_missing,
			 struct cell_error *err)
{
	struct cell__vectors *v = search->vectors;
	size_t missing = 0;
	batch->list = cell__alloc(max ? max : 1, sizeof *batch->list);
	if (!batch->list)
		return cell_fail(err, CELL_E_NOMEM, 0, "search index");
	for (size_t i = 0; i < v->n_docs; i++) {
		const struct cell__vectors_doc *doc = &v->docs[i];
		if (doc->row != NO_ROW || doc->known == CELL__VECTOR_REFUSED)
			continue;
		missing++;
		if (batch->n == max)
			continue;
		struct cell__vector_doc *out = &batch->list[batch->n];
		if (read_text(search, doc->id, text_bytes, &out->text, err) < 0)
			return -1;
		if (!out->text)
			continue;
		out->id = cell__strdup(doc->id);
		memcpy(out->hash, doc->hash, sizeof out->hash);
		batch->n++;
		if (!out->id)
			return cell_fail(err, CELL_E_NOMEM, 0, "search index");
	}
	*ret_missing = missing;
	return 0;
}

int cell__search_collect(struct cell__search *search, size_t max, size_t text_bytes, struct cell__vector_batch *ret_batch,
			 size_t *ret_missing, struct cell_error *err)
{
	struct cell__vectors *v = search->vectors;
	struct cell__vector_batch batch = { 0 };
	pthread_mutex_lock(&v->db_lock);
	int rc = v->db ? 0 : open_cache(v, false, err);
	if (rc == 0)
		rc = sync_docs(search, err);
	if (rc == 0 && load_unknown(v) < 0)
		rc = open_cache(v, true, err) < 0 || load_unknown(v) < 0 ? -1 : 0;
	if (rc == 0)
		rc = collect_texts(search, max, text_bytes, &batch, ret_missing, err);
	pthread_mutex_unlock(&v->db_lock);
	if (rc == 0)
		*ret_batch = batch;
	else
		cell__vector_batch_finish(&batch);
	return rc;
}

/* ---- new vectors ---- */

static int write_vectors(struct cell__vectors *v, const struct cell__vector_batch *batch, const float *vectors, size_t dimensions)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(v->db, "INSERT OR REPLACE INTO vectors(model, hash, vector) VALUES(?,?,?)", -1, &statement, NULL) !=
	    SQLITE_OK)
		return -1;
	sqlite3_bind_text(statement, 1, v->model, -1, SQLITE_STATIC);
	for (size_t i = 0; i < batch->n; i++) {
		sqlite3_bind_blob(statement, 2, batch->list[i].hash, CELL__SEARCH_HASH_BYTES, SQLITE_STATIC);
		sqlite3_bind_blob(statement, 3, vectors + i * dimensions, (int)(dimensions * sizeof *vectors), SQLITE_STATIC);
		if (sqlite3_step(statement) != SQLITE_DONE)
			return -1;
		sqlite3_reset(statement);
	}
	return 0;
}

/* A batch is stored completely or not at all; a failure leaves no transaction open. */
static int in_transaction(struct cell__vectors *v, int (*fn)(struct cell__vectors *, void *), void *arg, struct cell_error *err)
{
	int rc = sqlite3_exec(v->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK ? fn(v, arg) : -1;
	if (rc == 0 && sqlite3_exec(v->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
		rc = -1;
	if (rc == 0)
		return 0;
	cell__search_fail(v->db, err, "write vectors");
	if (!sqlite3_get_autocommit(v->db))
		sqlite3_exec(v->db, "ROLLBACK", NULL, NULL, NULL);
	return -1;
}

struct writing {
	const struct cell__vector_batch *batch;
	const float *vectors;
	size_t dimensions;
};

static int write_batch(struct cell__vectors *v, void *arg)
{
	const struct writing *writing = arg;
	return write_vectors(v, writing->batch, writing->vectors, writing->dimensions);
}

/* The document of a batch, if it has not changed since it was given out. */
static struct cell__vectors_doc *still_there(struct cell__vectors *v, const struct cell__vector_doc *given)
{
	struct cell__vectors_doc *doc = find_doc(v, given->id);
	return doc && memcmp(doc->hash, given->hash, sizeof doc->hash) == 0 ? doc : NULL;
}

int cell__search_put_vectors(struct cell__search *search, const struct cell__vector_batch *batch, const float *vectors, size_t dimensions,
			     struct cell_error *err)
{
	struct cell__vectors *v = search->vectors;
	struct writing writing = { batch, vectors, dimensions };
	pthread_mutex_lock(&v->db_lock);
	int rc = v->db ? 0 : open_cache(v, false, err);
	if (rc == 0 && v->dimensions == 0)
		set_dimensions(v, dimensions);
	if (rc == 0 && v->dimensions != dimensions)
		rc = cell_fail(err, CELL_E_PROTOCOL, 0, "the vectors have %zu dimensions, the earlier ones %zu", dimensions, v->dimensions);
	for (size_t i = 0; i < batch->n && rc == 0; i++) {
		struct cell__vectors_doc *doc = still_there(v, &batch->list[i]);
		if (doc && set_row(v, doc, vectors + i * dimensions) < 0)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for vectors");
	}
	if (rc == 0)
		rc = in_transaction(v, write_batch, &writing, err);
	pthread_mutex_unlock(&v->db_lock);
	return rc;
}

void cell__search_refuse_vectors(struct cell__search *search, const struct cell__vector_batch *batch)
{
	struct cell__vectors *v = search->vectors;
	pthread_mutex_lock(&v->db_lock);
	for (size_t i = 0; !batch && i < v->n_docs; i++)
		if (v->docs[i].known == CELL__VECTOR_REFUSED)
			set_known(v, &v->docs[i], CELL__VECTOR_MISSING);
	for (size_t i = 0; batch && i < batch->n; i++) {
		struct cell__vectors_doc *doc = still_there(v, &batch->list[i]);
		if (doc)
			set_known(v, doc, CELL__VECTOR_REFUSED);
	}
	pthread_mutex_unlock(&v->db_lock);
}

void cell__search_set_dimensions(struct cell__search *search, size_t dimensions)
{
	pthread_mutex_lock(&search->vectors->db_lock);
	set_dimensions(search->vectors, dimensions);
	pthread_mutex_unlock(&search->vectors->db_lock);
}

void cell__search_vector_counts(struct cell__search *search, struct cell__vector_counts *ret_counts)
{
	struct cell__vectors *v = search->vectors;
	pthread_mutex_lock(&v->lock);
	*ret_counts = (struct cell__vector_counts){ .documents = v->n_docs, .vectors = v->n_rows, .dimensions = v->dimensions };
	for (size_t i = 0; i < v->n_docs; i++)
		ret_counts->refused += v->docs[i].row == NO_ROW && v->docs[i].known == CELL__VECTOR_REFUSED;
	pthread_mutex_unlock(&v->lock);
}

/* ---- leaving no litter ---- */

static int by_hash(const void *a, const void *b)
{
	return memcmp(a, b, CELL__SEARCH_HASH_BYTES);
}

struct tidying {
	unsigned char (*hashes)[CELL__SEARCH_HASH_BYTES]; /* of the documents, sorted */
	size_t n;
	sqlite3_int64 excess;
};

static bool is_live(struct cell__vectors *v, const struct tidying *tidying, sqlite3_stmt *row)
{
	const char *model = (const char *)sqlite3_column_text(row, 1);
	const void *hash = sqlite3_column_blob(row, 2);
	return model && strcmp(model, v->model) == 0 && sqlite3_column_bytes(row, 2) == CELL__SEARCH_HASH_BYTES && tidying->n &&
	       bsearch(hash, tidying->hashes, tidying->n, CELL__SEARCH_HASH_BYTES, by_hash);
}

static int remove_oldest(struct cell__vectors *v, void *arg)
{
	const struct tidying *tidying = arg;
	CELL_AUTO_STATEMENT sqlite3_stmt *rows = NULL;
	CELL_AUTO_STATEMENT sqlite3_stmt *removal = NULL;
	if (sqlite3_prepare_v2(v->db, "SELECT rowid, model, hash FROM vectors ORDER BY rowid", -1, &rows, NULL) != SQLITE_OK ||
	    sqlite3_prepare_v2(v->db, "DELETE FROM vectors WHERE rowid = ?", -1, &removal, NULL) != SQLITE_OK)
		return -1;
	int rc = SQLITE_DONE;
	for (sqlite3_int64 left = tidying->excess; left > 0 && (rc = sqlite3_step(rows)) == SQLITE_ROW;) {
		if (is_live(v, tidying, rows))
			continue;
		sqlite3_bind_int64(removal, 1, sqlite3_column_int64(rows, 0));
		if (sqlite3_step(removal) != SQLITE_DONE)
			return -1;
		sqlite3_reset(removal);
		left--;
	}
	return rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : -1;
}

int cell__search_tidy_vectors(struct cell__search *search, struct cell_error *err)
{
	struct cell__vectors *v = search->vectors;
	struct tidying tidying = { 0 };
	int count = 0;
	pthread_mutex_lock(&v->db_lock);
	int rc = v->db ? 0 : open_cache(v, false, err);
	if (rc == 0 && cell__search_read_int(v->db, "SELECT count(*) FROM vectors", &count) < 0)
		rc = cell__search_fail(v->db, err, "read vectors");
	tidying.excess = (sqlite3_int64)count - (sqlite3_int64)(2 * v->n_docs + KEPT_EXTRA);
	if (rc == 0 && tidying.excess > 0) {
		tidying.hashes = cell__alloc(v->n_docs + 1, sizeof *tidying.hashes);
		for (; tidying.hashes && tidying.n < v->n_docs; tidying.n++)
			memcpy(tidying.hashes[tidying.n], v->docs[tidying.n].hash, sizeof *tidying.hashes);
		if (tidying.n)
			qsort(tidying.hashes, tidying.n, sizeof *tidying.hashes, by_hash);
		rc = tidying.hashes ? in_transaction(v, remove_oldest, &tidying, err) : cell_fail(err, CELL_E_NOMEM, 0, "search index");
		free(tidying.hashes);
	}
	pthread_mutex_unlock(&v->db_lock);
	return rc;
}
