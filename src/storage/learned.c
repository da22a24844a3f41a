/* Learned types of tools' results: one JSON text that is swapped whole, on either backend. */
#define _GNU_SOURCE
#include <string.h>

#include "storage/backend.h"
#include "wire/shape.h"

#define SWAP_TRIES 50

/* What is damaged is learned again. */
static json_t *parse(const struct cell__buf *text)
{
	json_t *kept = json_object(), *entry;
	json_t *book = text->size ? json_loadb(text->data, text->size, JSON_REJECT_DUPLICATES, NULL) : NULL;
	const char *name;
	json_object_foreach(book, name, entry) {
		if (json_object_size(kept) < CELL__LEARNED_TOOLS && strlen(name) <= CELL__LEARNED_NAME && cell__shape_entry_ok(entry))
			json_object_set(kept, name, entry);
	}
	json_decref(book);
	return kept;
}

static int load(struct cell__store *store, struct cell__buf *text, json_t **ret_book, struct cell_error *err)
{
	if (store->backend->deps->read_book(store, CELL__BOOK_RESULTS, text, err) < 0)
		return -1;
	json_t *book = parse(text);
	if (!book)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_book = book;
	return 0;
}

int cell__learned_load(struct cell__store *store, json_t **ret_book, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (!store->confined)
		return load(store, &text, ret_book, err);
	*ret_book = json_object();
	return *ret_book ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

/* 1: another writer was faster. */
static int swap(struct cell__store *store, const struct cell__buf *old, const json_t *book, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *dump = json_dumps(book, JSON_COMPACT);
	bool done = false;
	if (!dump || cell__buf_printf(&text, "%s\n", dump) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (text.size > CELL__DEPBOOK_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "%s would exceed %u bytes", cell__book_name(CELL__BOOK_RESULTS),
				 CELL__DEPBOOK_BYTES);
	if (store->backend->deps->write_book(store, CELL__BOOK_RESULTS, old, &text, &done, err) < 0)
		return -1;
	return done ? 0 : 1;
}

/* As swap(); *ret_entry is set on success only. */
static int try_note(struct cell__store *store, const char *name, const json_t *shape, json_t **ret_entry, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf old = CELL_BUF_INIT;
	json_t *book;
	bool drift;
	if (load(store, &old, &book, err) < 0)
		return -1;
	json_t *before = json_object_get(book, name), *entry = NULL;
	int rc = 0;
	if (!before && json_object_size(book) >= CELL__LEARNED_TOOLS)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "the results of more than %u tools have learned types", CELL__LEARNED_TOOLS);
	else if (!(entry = cell__shape_learn(before, shape, &drift)))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	else if (!before || !json_equal(before, entry))
		rc = json_object_set(book, name, entry) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory")
							    : swap(store, &old, book, err);
	json_decref(book);
	if (rc == 0)
		*ret_entry = entry;
	else
		json_decref(entry);
	return rc;
}

int cell__learned_note(struct cell__store *store, const char *name, const json_t *shape, json_t **ret_entry, struct cell_error *err)
{
	if (store->confined || strlen(name) > CELL__LEARNED_NAME)
		return cell_fail(err, CELL_E_LIMIT, 0, "the type of this result is not kept");
	for (int i = 0; i < SWAP_TRIES; i++) {
		int rc = try_note(store, name, shape, ret_entry, err);
		if (rc <= 0)
			return rc;
	}
	return cell_fail(err, CELL_E_IO, 0, "cannot change %s: other processes keep changing it; try again",
			 cell__book_name(CELL__BOOK_RESULTS));
}
