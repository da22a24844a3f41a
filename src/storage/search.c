/*
 * The index is two tables: items (the caller's data) and docs (FTS5), joined by rowid. The text given to FTS5 is expanded first, because
 * its tokenizers do not know camelCase.
 */
#define _GNU_SOURCE
#include "storage/search_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

int cell__search_fail(sqlite3 *db, struct cell_error *err, const char *what)
{
	int code = sqlite3_errcode(db);
	return cell_fail(err, code == SQLITE_NOMEM ? CELL_E_NOMEM : CELL_E_IO, 0, "search index: %s: %s", what, sqlite3_errmsg(db));
}

/* ---- words ---- */

static bool is_word(unsigned char c)
{
	return isalnum(c) || c == '_' || c >= 0x80;
}

/* Does a part of an identifier begin at i?  "HTTPServer2Go": H, S, 2, G. */
static bool part_begins(const char *word, size_t size, size_t i)
{
	unsigned char here = (unsigned char)word[i], before = (unsigned char)word[i - 1];
	if (here == '_' || before == '_')
		return true;
	if (isupper(here))
		return !isupper(before) || (i + 1 < size && islower((unsigned char)word[i + 1]));
	return isdigit(here) ? !isdigit(before) : isdigit(before);
}

/* One identifier as its parts, when it has more than one.  Joined too: a query may have it without the '_'. */
static int add_parts(struct cell__buf *out, const char *word, size_t size)
{
	size_t start = 0;
	bool compound = false;
	for (size_t i = 1; i < size; i++)
		compound |= part_begins(word, size, i);
	if (!compound)
		return 0;
	int rc = 0;
	for (size_t i = 1; i <= size; i++) {
		if (i < size && !part_begins(word, size, i))
			continue;
		if (word[start] != '_')
			rc |= cell__buf_add(out, " ", 1) | cell__buf_add(out, word + start, i - start);
		start = i;
	}
	rc |= cell__buf_add(out, " ", 1);
	for (size_t i = 0; i < size; i++)
		if (word[i] != '_')
			rc |= cell__buf_add(out, word + i, 1);
	return rc;
}

int cell__search_expand(struct cell__buf *out, const char *text)
{
	int rc = cell__buf_add_str(out, text);
	for (const char *at = text; *at;) {
		size_t size = 0;
		while (is_word((unsigned char)at[size]))
			size++;
		if (size > 1)
			rc |= add_parts(out, at, size);
		at += size ? size : 1;
	}
	return rc;
}

/* ---- opening ---- */

/* The check for changed files reads all documents at once, so it has its own index, without their payloads. */
static const char tables[] = "CREATE TABLE items(rowid INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, plain TEXT NOT NULL,"
			     " stamp0 INTEGER, stamp1 INTEGER, stamp2 INTEGER, hash BLOB, payload TEXT);"
			     "CREATE INDEX items_plain ON items(plain);"
			     "CREATE INDEX items_stamps ON items(id, stamp0, stamp1, stamp2, hash);"
			     "CREATE VIRTUAL TABLE docs USING fts5(name, description, tags, params, extra, body,"
			     " tokenize='porter unicode61 remove_diacritics 2');"
			     "INSERT INTO docs(docs, rank) VALUES('rank', 'bm25(10.0, 6.0, 5.0, 3.0, 3.0, 1.0)');";
static const struct cell__search_schema schema = {
	.version = 2,
	.page_bytes = 4096,
	.tables = tables,
	.drops = "DROP TABLE IF EXISTS items; DROP TABLE IF EXISTS docs",
};

int cell__search_read_int(sqlite3 *db, const char *sql, int *ret_value)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK || sqlite3_step(statement) != SQLITE_ROW)
		return -1;
	*ret_value = sqlite3_column_int(statement, 0);
	return 0;
}

static int exec(sqlite3 *db, const char *sql)
{
	return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
}

/* In a transaction. */
static int make_tables(sqlite3 *db, const struct cell__search_schema *made)
{
	char set_version[64];
	int now;
	/* Another process may have made it while we waited. */
	if (cell__search_read_int(db, "PRAGMA user_version", &now) < 0)
		return -1;
	if (now == made->version)
		return 0;
	snprintf(set_version, sizeof set_version, "PRAGMA user_version = %d", made->version);
	return exec(db, made->drops) < 0 || exec(db, made->tables) < 0 ? -1 : exec(db, set_version);
}

static int make_schema(sqlite3 *db, const struct cell__search_schema *made, struct cell_error *err)
{
	int now = 0;
	if (cell__search_read_int(db, "PRAGMA user_version", &now) < 0)
		return cell__search_fail(db, err, "open");
	if (now == made->version)
		return 0;
	if (exec(db, "BEGIN IMMEDIATE") == 0 && make_tables(db, made) == 0 && exec(db, "COMMIT") == 0)
		return 0;
	cell__search_fail(db, err, "make");
	if (!sqlite3_get_autocommit(db))
		exec(db, "ROLLBACK");
	return -1;
}

int cell__search_open_db(const char *path, const struct cell__search_schema *made, sqlite3 **ret_db, struct cell_error *err)
{
	sqlite3 *db = NULL;
	char settings[160];
	int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | (path ? SQLITE_OPEN_NOFOLLOW : 0);
	int rc = sqlite3_open_v2(path ? path : ":memory:", &db, flags, NULL);
	if (rc != SQLITE_OK) {
		sqlite3_close_v2(db);
		return cell_fail(err, CELL_E_IO, 0, "search index: open: %s", sqlite3_errstr(rc));
	}
	sqlite3_busy_timeout(db, CELL__SEARCH_BUSY_MS);
	/* The journal's two syncs per change protect against power cuts; a cache torn by one is rebuilt. */
	snprintf(settings, sizeof settings,
		 "PRAGMA page_size = %d; PRAGMA synchronous = OFF; PRAGMA trusted_schema = OFF;"
		 " PRAGMA temp_store = MEMORY",
		 made->page_bytes);
	(void)exec(db, settings);
	if (make_schema(db, made, err) < 0) {
		sqlite3_close_v2(db);
		return -1;
	}
	*ret_db = db;
	return 0;
}

int cell__search_open(const char *path, struct cell__search **ret_search, struct cell_error *err)
{
	struct cell__search *search = cell__alloc(1, sizeof *search);
	if (!search)
		return cell_fail(err, CELL_E_NOMEM, 0, "open search index");
	pthread_mutex_init(&search->lock, NULL);
	search->data_version = -1;
	if (cell__search_open_db(path, &schema, &search->db, err) < 0) {
		cell__search_close(search);
		return -1;
	}
	*ret_search = search;
	return 0;
}

void cell__search_close(struct cell__search *search)
{
	if (!search)
		return;
	cell__vectors_destroy(search->vectors);
	sqlite3_close_v2(search->db);
	pthread_mutex_destroy(&search->lock);
	free(search);
}

/* ---- filling ---- */

/* Names are compared without case and with any separators. */
static int add_plain(struct cell__buf *out, const char *name)
{
	int rc = cell__buf_add(out, "", 0);
	bool gap = false;
	for (; *name; name++) {
		unsigned char c = (unsigned char)*name;
		if (!isalnum(c) && c < 0x80) {
			gap = true;
			continue;
		}
		if (gap && out->size > 0)
			rc |= cell__buf_add(out, "_", 1);
		gap = false;
		char lower = (char)(c < 0x80 ? tolower(c) : c);
		rc |= cell__buf_add(out, &lower, 1);
	}
	return rc;
}

struct filler {
	sqlite3_stmt *find, *drop_item, *drop_doc, *add_item, *add_doc;
};

static int step_done(sqlite3_stmt *statement)
{
	int rc = sqlite3_step(statement);
	sqlite3_reset(statement);
	sqlite3_clear_bindings(statement);
	return rc == SQLITE_DONE ? 0 : -1;
}

static int drop(struct filler *f, const char *id)
{
	sqlite3_bind_text(f->find, 1, id, -1, SQLITE_STATIC);
	int rc = sqlite3_step(f->find);
	sqlite3_int64 row = rc == SQLITE_ROW ? sqlite3_column_int64(f->find, 0) : 0;
	sqlite3_reset(f->find);
	if (rc == SQLITE_DONE)
		return 0;
	if (rc != SQLITE_ROW)
		return -1;
	sqlite3_bind_int64(f->drop_doc, 1, row);
	sqlite3_bind_int64(f->drop_item, 1, row);
	return step_done(f->drop_doc) < 0 ? -1 : step_done(f->drop_item);
}

static int bind_expanded(sqlite3_stmt *statement, int column, const char *text)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	if (text && cell__search_expand(&buf, text) < 0)
		return -1;
	return sqlite3_bind_text(statement, column, buf.data ? buf.data : "", (int)buf.size, SQLITE_TRANSIENT) == SQLITE_OK ? 0 : -1;
}

static int put(struct cell__search *search, struct filler *f, const struct cell__search_doc *doc)
{
	CELL_AUTO_BUF struct cell__buf plain = CELL_BUF_INIT;
	unsigned char hash[CELL__SEARCH_HASH_BYTES];
	if (drop(f, doc->id) < 0 || add_plain(&plain, doc->name) < 0)
		return -1;
	sqlite3_bind_text(f->add_item, 1, doc->id, -1, SQLITE_STATIC);
	sqlite3_bind_text(f->add_item, 2, plain.data, (int)plain.size, SQLITE_STATIC);
	for (int i = 0; i < 3; i++)
		sqlite3_bind_int64(f->add_item, 3 + i, doc->stamp[i]);
	if (cell__vectors_hash(doc, hash))
		sqlite3_bind_blob(f->add_item, 6, hash, sizeof hash, SQLITE_STATIC);
	sqlite3_bind_text(f->add_item, 7, doc->payload, -1, SQLITE_STATIC);
	if (step_done(f->add_item) < 0)
		return -1;
	sqlite3_bind_int64(f->add_doc, 1, sqlite3_last_insert_rowid(search->db));
	const char *const texts[] = { doc->name, doc->description, doc->tags, doc->params, doc->extra, doc->body };
	for (int i = 0; i < 6; i++)
		if (bind_expanded(f->add_doc, 2 + i, texts[i]) < 0)
			return -1;
	return step_done(f->add_doc);
}

static int prepare_filler(struct cell__search *search, struct filler *f)
{
	const struct {
		sqlite3_stmt **statement;
		const char *sql;
	} rows[] = {
		{ &f->find, "SELECT rowid FROM items WHERE id = ?" },
		{ &f->drop_item, "DELETE FROM items WHERE rowid = ?" },
		{ &f->drop_doc, "DELETE FROM docs WHERE rowid = ?" },
		{ &f->add_item, "INSERT INTO items(id, plain, stamp0, stamp1, stamp2, hash, payload) VALUES(?,?,?,?,?,?,?)" },
		{ &f->add_doc, "INSERT INTO docs(rowid, name, description, tags, params, extra, body) VALUES(?,?,?,?,?,?,?)" },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (sqlite3_prepare_v2(search->db, rows[i].sql, -1, rows[i].statement, NULL) != SQLITE_OK)
			return -1;
	return 0;
}

static int fill(struct cell__search *search, struct filler *f, const struct cell__search_doc *docs, size_t n_docs,
		const char *const *removed, size_t n_removed)
{
	if (prepare_filler(search, f) < 0)
		return -1;
	for (size_t i = 0; i < n_removed; i++)
		if (drop(f, removed[i]) < 0)
			return -1;
	for (size_t i = 0; i < n_docs; i++)
		if (put(search, f, &docs[i]) < 0)
			return -1;
	return 0;
}

int cell__search_update(struct cell__search *search, const struct cell__search_doc *docs, size_t n_docs, const char *const *removed,
			size_t n_removed, struct cell_error *err)
{
	struct filler f = { 0 };
	pthread_mutex_lock(&search->lock);
	int rc = sqlite3_exec(search->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
	if (rc == 0)
		rc = fill(search, &f, docs, n_docs, removed, n_removed);
	if (rc == 0 && sqlite3_exec(search->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
		rc = -1;
	if (rc < 0)
		cell__search_fail(search->db, err, "update");
	sqlite3_finalize(f.find);
	sqlite3_finalize(f.drop_item);
	sqlite3_finalize(f.drop_doc);
	sqlite3_finalize(f.add_item);
	sqlite3_finalize(f.add_doc);
	if (rc < 0 && !sqlite3_get_autocommit(search->db))
		sqlite3_exec(search->db, "ROLLBACK", NULL, NULL, NULL);
	cell__vectors_stale(search->vectors);
	pthread_mutex_unlock(&search->lock);
	return rc;
}

/* ---- reading back ---- */

bool cell__search_changed(struct cell__search *search)
{
	int version = -1;
	pthread_mutex_lock(&search->lock);
	bool changed = cell__search_read_int(search->db, "PRAGMA data_version", &version) < 0 || version != search->data_version;
	search->data_version = version;
	if (changed)
		cell__vectors_stale(search->vectors);
	pthread_mutex_unlock(&search->lock);
	return changed;
}

void cell__search_stamps_free(struct cell__search_stamp *stamps, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(stamps[i].id);
	free(stamps);
}

static int read_stamps(struct cell__search *search, struct cell__search_stamp **stamps, size_t *n)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	size_t capacity = 0;
	if (sqlite3_prepare_v2(search->db, "SELECT id, stamp0, stamp1, stamp2 FROM items ORDER BY id", -1, &statement, NULL) != SQLITE_OK)
		return -1;
	int rc;
	while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
		if (*n == capacity) {
			capacity = capacity ? capacity * 2 : 64;
			struct cell__search_stamp *more = cell__realloc(*stamps, capacity * sizeof **stamps);
			if (!more)
				return -1;
			*stamps = more;
		}
		struct cell__search_stamp *s = &(*stamps)[*n];
		s->id = cell__strdup((const char *)sqlite3_column_text(statement, 0));
		if (!s->id)
			return -1;
		for (int i = 0; i < 3; i++)
			s->stamp[i] = sqlite3_column_int64(statement, 1 + i);
		(*n)++;
	}
	return rc == SQLITE_DONE ? 0 : -1;
}

int cell__search_stamps(struct cell__search *search, struct cell__search_stamp **ret_stamps, size_t *ret_n, struct cell_error *err)
{
	struct cell__search_stamp *stamps = NULL;
	size_t n = 0;
	pthread_mutex_lock(&search->lock);
	int rc = read_stamps(search, &stamps, &n);
	if (rc < 0)
		cell__search_fail(search->db, err, "read");
	pthread_mutex_unlock(&search->lock);
	if (rc < 0) {
		cell__search_stamps_free(stamps, n);
		return -1;
	}
	*ret_stamps = stamps;
	*ret_n = n;
	return 0;
}

int cell__search_each(struct cell__search *search, int (*fn)(void *arg, const char *id, const char *payload), void *arg,
		      struct cell_error *err)
{
	int stop = 0, rc;
	pthread_mutex_lock(&search->lock);
	sqlite3_stmt *statement = NULL;
	rc = sqlite3_prepare_v2(search->db, "SELECT id, payload FROM items ORDER BY id", -1, &statement, NULL);
	while (rc == SQLITE_OK || rc == SQLITE_ROW) {
		rc = sqlite3_step(statement);
		if (rc != SQLITE_ROW)
			break;
		stop = fn(arg, (const char *)sqlite3_column_text(statement, 0), (const char *)sqlite3_column_text(statement, 1));
		if (stop)
			break;
	}
	if (!stop && rc != SQLITE_DONE)
		stop = cell__search_fail(search->db, err, "read");
	sqlite3_finalize(statement);
	pthread_mutex_unlock(&search->lock);
	return stop;
}

int cell__search_payload(struct cell__search *search, const char *id, char **ret_payload, struct cell_error *err)
{
	int result = 0;
	pthread_mutex_lock(&search->lock);
	sqlite3_stmt *statement = NULL;
	int rc = sqlite3_prepare_v2(search->db, "SELECT payload FROM items WHERE id = ?", -1, &statement, NULL);
	if (rc == SQLITE_OK) {
		sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
		rc = sqlite3_step(statement);
	}
	const char *payload = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : NULL;
	char *copy = payload ? cell__strdup(payload) : NULL;
	if (rc != SQLITE_ROW && rc != SQLITE_DONE)
		result = cell__search_fail(search->db, err, "read");
	else if (payload && !copy)
		result = cell_fail(err, CELL_E_NOMEM, 0, "search index");
	else
		*ret_payload = copy;
	sqlite3_finalize(statement);
	pthread_mutex_unlock(&search->lock);
	return result;
}

/* ---- asking ---- */

static bool is_stop_word(const char *word, size_t size)
{
	static const char *const words[] = { "a",  "an", "and", "are",  "by",  "for",  "from", "how",  "in",   "is", "it",
					     "of", "on", "or",  "that", "the", "this", "to",   "with", "what", "do", "i" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strlen(words[i]) == size && strncasecmp(words[i], word, size) == 0)
			return true;
	return false;
}

/*
 * The words of a query. Bytes other than letters and digits never reach FTS5, so a query has no syntax. A word that no document has is
 * searched as a prefix, so that half a word finds documents.
 */
struct term {
	char text[CELL__SEARCH_TERM_BYTES + 1];
	bool prefix; /* it matches words that begin with it */
	bool common; /* in more documents than are worth ranking */
};

struct terms {
	struct term list[CELL__SEARCH_QUERY_TERMS];
	size_t n;
};

static void add_term(struct terms *terms, const char *word, size_t size)
{
	if (size == 0 || size > CELL__SEARCH_TERM_BYTES || terms->n == CELL__SEARCH_QUERY_TERMS)
		return;
	for (size_t i = 0; i < terms->n; i++)
		if (strlen(terms->list[i].text) == size && strncasecmp(terms->list[i].text, word, size) == 0)
			return;
	struct term *term = &terms->list[terms->n++];
	memcpy(term->text, word, size);
	term->text[size] = '\0';
	term->prefix = term->common = false;
}

static int find_terms(struct terms *terms, const char *query, bool keep_stop_words)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__search_expand(&text, query) < 0)
		return -1;
	for (const char *at = text.data; *at;) {
		size_t size = 0;
		while (isalnum((unsigned char)at[size]) || (unsigned char)at[size] >= 0x80)
			size++;
		if (keep_stop_words || !is_stop_word(at, size))
			add_term(terms, at, size);
		at += size ? size : 1;
	}
	return 0;
}

struct hits {
	struct cell__search_hit *list;
	size_t n, capacity;
};

static int add_hit(struct hits *hits, const char *id, double score)
{
	if (hits->n == hits->capacity) {
		size_t capacity = hits->capacity ? hits->capacity * 2 : 16;
		struct cell__search_hit *more = cell__realloc(hits->list, capacity * sizeof *more);
		if (!more)
			return -1;
		hits->list = more;
		hits->capacity = capacity;
	}
	char *copy = cell__strdup(id);
	if (!copy)
		return -1;
	hits->list[hits->n++] = (struct cell__search_hit){ copy, score };
	return 0;
}

static bool has_hit(const struct hits *hits, const char *id)
{
	for (size_t i = 0; i < hits->n; i++)
		if (strcmp(hits->list[i].id, id) == 0)
			return true;
	return false;
}

/* Runs a query that gives id and score and has two parameters: text and limit. */
static int collect(struct cell__search *search, const char *sql, const char *text, size_t limit, struct hits *hits)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(search->db, sql, -1, &statement, NULL) != SQLITE_OK)
		return -1;
	sqlite3_bind_text(statement, 1, text, -1, SQLITE_STATIC);
	sqlite3_bind_int64(statement, 2, (sqlite3_int64)limit);
	int rc = SQLITE_DONE;
	while (hits->n < limit && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
		const char *id = (const char *)sqlite3_column_text(statement, 0);
		if (!has_hit(hits, id) && add_hit(hits, id, sqlite3_column_double(statement, 1)) < 0)
			return -1;
	}
	return hits->n >= limit || rc == SQLITE_DONE ? 0 : -1;
}

/*
 * Ranking costs a microsecond or two for each matching document, and a word that thousands of them have says little. So the candidates are
 * the documents with at least one word that is not common; common words only help to rank them. If every word is common, a limited number
 * of documents is ranked: those with all words, with one in the name, with any.
 */

static int add_match(struct cell__buf *out, const struct terms *terms, const char *joiner, bool with_common)
{
	int rc = cell__buf_add(out, "(", 1);
	bool first = true;
	for (size_t i = 0; i < terms->n; i++) {
		const struct term *term = &terms->list[i];
		if (term->common && !with_common)
			continue;
		rc |= cell__buf_printf(out, "%s\"%s\"%s", first ? "" : joiner, term->text, term->prefix ? "*" : "");
		first = false;
	}
	return rc | cell__buf_add(out, ")", 1);
}

/* The number of documents with the term, counted only until it is clear that they are too many to rank. -1: the index fails. */
static int count_term(struct cell__search *search, const struct term *term)
{
	CELL_AUTO_STATEMENT sqlite3_stmt *statement = NULL;
	static const char sql[] = "SELECT count(*) FROM (SELECT 1 FROM docs WHERE docs MATCH ?1 LIMIT ?2)";
	char match[CELL__SEARCH_TERM_BYTES + 8];
	snprintf(match, sizeof match, "\"%s\"%s", term->text, term->prefix ? "*" : "");
	if (sqlite3_prepare_v2(search->db, sql, -1, &statement, NULL) != SQLITE_OK)
		return -1;
	sqlite3_bind_text(statement, 1, match, -1, SQLITE_STATIC);
	sqlite3_bind_int(statement, 2, CELL__SEARCH_RANKED + 1);
	return sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int(statement, 0) : -1;
}

/* Finds the common terms; *ret_rare is the number of the others. Drops terms that no document has, and too many terms. */
static int weigh(struct cell__search *search, struct terms *terms, size_t *ret_rare)
{
	size_t rare = 0, common = 0, kept = 0;
	for (size_t i = 0; i < terms->n; i++) {
		struct term *term = &terms->list[i];
		int n = count_term(search, term);
		if (n == 0 && strlen(term->text) >= 3) {
			term->prefix = true;
			n = count_term(search, term);
		}
		if (n < 0)
			return -1;
		term->common = n > CELL__SEARCH_RANKED;
		if (n == 0 || (term->common && ++common > CELL__SEARCH_COMMON_TERMS))
			continue;
		rare += !term->common;
		if (kept != i)
			terms->list[kept] = *term;
		kept++;
	}
	terms->n = kept;
	*ret_rare = rare;
	return 0;
}

/* The subqueries are cut by FTS5 itself; the names of equals give a stable order. */
#define FOUND "SELECT items.id, -found.score FROM (SELECT rowid AS row, rank AS score FROM docs WHERE docs MATCH ?1"
#define SORTED ") AS found JOIN items ON items.rowid = found.row ORDER BY found.score, items.id LIMIT ?2"
static const char best[] = FOUND " ORDER BY rank LIMIT ?2" SORTED;
static const char some[] = FOUND " LIMIT " CELL__STRING(CELL__SEARCH_RANKED) SORTED;

static int ask_common(struct cell__search *search, const struct terms *terms, size_t limit, struct hits *hits)
{
	CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT;
	CELL_AUTO_BUF struct cell__buf any = CELL_BUF_INIT;
	CELL_AUTO_BUF struct cell__buf named = CELL_BUF_INIT;
	if (add_match(&all, terms, " AND ", true) < 0 || add_match(&any, terms, " OR ", true) < 0 ||
	    cell__buf_printf(&named, "name : %s", any.data) < 0)
		return -1;
	const char *const matches[] = { all.data, named.data, any.data };
	for (size_t i = 0; i < 3 && hits->n < limit; i++) {
		size_t before = hits->n;
		if (collect(search, some, matches[i], limit, hits) < 0)
			return -1;
		/* Later hits rank lower, whatever their score. */
		for (size_t k = before; before > 0 && k < hits->n; k++)
			if (hits->list[k].score > hits->list[before - 1].score)
				hits->list[k].score = hits->list[before - 1].score;
	}
	return 0;
}

static int ask(struct cell__search *search, const char *plain, struct terms *terms, size_t limit, struct hits *hits)
{
	static const char named[] = "SELECT id, " CELL__STRING(CELL__SEARCH_NAME_SCORE) " FROM items WHERE plain = ?1 ORDER BY id LIMIT ?2";
	size_t rare = 0;
	if (plain[0] && collect(search, named, plain, limit, hits) < 0)
		return -1;
	if (terms->n == 0 || hits->n >= limit)
		return 0;
	if (weigh(search, terms, &rare) < 0)
		return -1;
	if (terms->n == 0)
		return 0;
	if (rare == 0)
		return ask_common(search, terms, limit, hits);
	CELL_AUTO_BUF struct cell__buf match = CELL_BUF_INIT;
	int rc = add_match(&match, terms, " OR ", false);
	if (rare < terms->n)
		rc |= cell__buf_add_str(&match, " AND ") | add_match(&match, terms, " OR ", true);
	return rc < 0 ? -1 : collect(search, best, match.data, limit, hits);
}

int cell__search_query(struct cell__search *search, const char *query, size_t limit, struct cell__search_hit **ret_hits, size_t *ret_n,
		       struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf plain = CELL_BUF_INIT;
	struct terms terms = { .n = 0 };
	if (strlen(query) > CELL__SEARCH_QUERY_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the search query is longer than %u bytes", CELL__SEARCH_QUERY_BYTES);
	if (!cell__utf8_ok(query, strlen(query)))
		return cell_fail(err, CELL_E_INVALID, 0, "the search query is not UTF-8");
	if (limit > CELL_LIMIT_SEARCH)
		limit = CELL_LIMIT_SEARCH;
	if (add_plain(&plain, query) < 0 || find_terms(&terms, query, false) < 0 || (terms.n == 0 && find_terms(&terms, query, true) < 0))
		return cell_fail(err, CELL_E_NOMEM, 0, "search");
	struct hits hits = { NULL, 0, 0 };
	pthread_mutex_lock(&search->lock);
	int rc = limit > 0 ? ask(search, plain.data, &terms, limit, &hits) : 0;
	if (rc < 0)
		cell__search_fail(search->db, err, "query");
	pthread_mutex_unlock(&search->lock);
	if (rc < 0) {
		cell__search_hits_free(hits.list, hits.n);
		return -1;
	}
	*ret_hits = hits.list;
	*ret_n = hits.n;
	return 0;
}

void cell__search_hits_free(struct cell__search_hit *hits, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(hits[i].id);
	free(hits);
}

/* ---- two rankings ---- */

static int compare_hits(const void *a, const void *b)
{
	const struct cell__search_hit *x = a, *y = b;
	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	return strcmp(x->id, y->id);
}

static struct cell__search_hit *find_hit(struct hits *hits, const char *id)
{
	for (size_t i = 0; i < hits->n; i++)
		if (strcmp(hits->list[i].id, id) == 0)
			return &hits->list[i];
	return NULL;
}

int cell__search_fuse(const struct cell__search_hit *words, size_t n_words, const struct cell__search_hit *near, size_t n_near,
		      double weight, size_t limit, struct cell__search_hit **ret_hits, size_t *ret_n)
{
	struct hits hits = { NULL, 0, 0 };
	double floor = n_near ? near[n_near - 1].score : 0, most = 0;
	int rc = 0;
	for (size_t i = 0; i < n_words; i++)
		most = words[i].score > most ? words[i].score : most;
	for (size_t i = 0; i < n_near && rc == 0; i++)
		rc = add_hit(&hits, near[i].id, near[i].score);
	for (size_t i = 0; i < n_words && rc == 0; i++) {
		double more = most > 0 ? weight * words[i].score / most : 0;
		struct cell__search_hit *hit = find_hit(&hits, words[i].id);
		if (hit)
			hit->score += more;
		else
			rc = add_hit(&hits, words[i].id, floor - 2 * weight + more);
	}
	if (rc < 0) {
		cell__search_hits_free(hits.list, hits.n);
		return -1;
	}
	if (hits.n > 0)
		qsort(hits.list, hits.n, sizeof *hits.list, compare_hits);
	while (hits.n > limit)
		free(hits.list[--hits.n].id);
	*ret_hits = hits.list;
	*ret_n = hits.n;
	return 0;
}
