/*
 * The book of untrusted principals: the packages that they added, and the lock of everything that is installed for them.
 * On either backend it is one JSON text that is swapped whole, so the list and its lock never disagree.
 */
#define _GNU_SOURCE
#include <string.h>

#include "storage/backend.h"

#define SWAP_TRIES 50
#define HASH_CHARS 64u
#define VERSION_BYTES 128u

const char *cell__book_name(enum cell__book which)
{
	static const char *const names[CELL__BOOKS] = {
		[CELL__BOOK_SANDBOX] = "requirements-sandbox.json",
		[CELL__BOOK_FIXED] = "requirements-locked.json",
		[CELL__BOOK_RESULTS] = "tool-results.json",
	};
	return names[which];
}

/* ---- valid content ---- */

static bool consists_of(const char *text, size_t size, const char *chars)
{
	return size > 0 && strlen(text) == size && strspn(text, chars) == size;
}

static bool is_version(json_t *version)
{
	return json_is_string(version) && json_string_length(version) <= VERSION_BYTES &&
	       consists_of(json_string_value(version), json_string_length(version),
			   "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.!+_-") &&
	       json_string_value(version)[0] != '-';
}

bool cell__depbook_entry_ok(const char *name, json_t *entry)
{
	char normal[CELL__STORE_DEP_BYTES + 1];
	size_t n = json_array_size(entry);
	if (cell__dep_normalise(name, normal, NULL) < 0 || strcmp(name, normal) != 0 || cell__dep_base_size(name) != strlen(name))
		return false;
	if (n < 2 || n > CELL__DEPBOOK_HASHES + 1 || !is_version(json_array_get(entry, 0)))
		return false;
	for (size_t i = 1; i < n; i++) {
		json_t *hash = json_array_get(entry, i);
		if (!json_is_string(hash) || json_string_length(hash) != HASH_CHARS ||
		    !consists_of(json_string_value(hash), HASH_CHARS, "0123456789abcdef"))
			return false;
	}
	return true;
}

static bool specs_ok(json_t *list)
{
	if (!json_is_array(list) || json_array_size(list) > CELL__STORE_DEPS)
		return false;
	for (size_t i = 0; i < json_array_size(list); i++) {
		char normal[CELL__STORE_DEP_BYTES + 1];
		json_t *spec = json_array_get(list, i);
		if (!json_is_string(spec) || strlen(json_string_value(spec)) != json_string_length(spec) ||
		    cell__dep_normalise(json_string_value(spec), normal, NULL) < 0 || strcmp(normal, json_string_value(spec)) != 0)
			return false;
	}
	return true;
}

static bool is_book(json_t *book)
{
	json_t *locked = json_object_get(book, "locked"), *entry;
	const char *name;
	if (!json_is_object(locked) || json_object_size(locked) > CELL__DEPBOOK_LOCKED || !specs_ok(json_object_get(book, "packages")) ||
	    !specs_ok(json_object_get(book, "resolved")))
		return false;
	json_object_foreach(locked, name, entry)
		if (!cell__depbook_entry_ok(name, entry))
			return false;
	return true;
}

static int load(struct cell__store *store, enum cell__book which, struct cell__buf *text, json_t **ret_book, struct cell_error *err)
{
	if (store->backend->deps->read_book(store, which, text, err) < 0)
		return -1;
	json_t *book = text->size > 0 ? json_loadb(text->data, text->size, JSON_REJECT_DUPLICATES, NULL)
				      : json_pack("{s:[], s:[], s:{}}", "packages", "resolved", "locked");
	if (is_book(book)) {
		*ret_book = book;
		return 0;
	}
	json_decref(book);
	if (text->size == 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return cell_fail(err, CELL_E_IO, 0, "%s of the storage is damaged: repair it, or remove it so that packages are resolved again",
			 cell__book_name(which));
}

int cell__depbook_load(struct cell__store *store, enum cell__book which, json_t **ret_book, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	return load(store, which, &text, ret_book, err);
}

int cell__depbook_list(struct cell__store *store, enum cell__book which, json_t **ret_list, json_t **ret_problems, json_t **ret_book,
		       struct cell_error *err)
{
	json_t *book = NULL, *hosts = NULL, *problems = NULL, *all = json_array(), *sorted = NULL;
	int rc = cell__depbook_load(store, which, &book, err);
	if (rc == 0)
		rc = cell__deps_list(store, &hosts, &problems, err);
	if (rc == 0) {
		json_t *theirs = json_object_get(book, "packages");
		int told = all ? 0 : -1;
		for (size_t i = 0; i < json_array_size(theirs); i++)
			told |= cell__deps_tell(all, json_string_value(json_array_get(theirs, i)));
		for (size_t i = 0; i < json_array_size(hosts); i++)
			told |= cell__deps_tell(all, json_string_value(json_array_get(hosts, i)));
		sorted = told == 0 ? cell__deps_sorted(all) : NULL;
		rc = sorted ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	json_decref(all);
	json_decref(hosts);
	if (rc < 0) {
		json_decref(book);
		json_decref(problems);
		return -1;
	}
	*ret_list = sorted;
	*ret_problems = problems;
	*ret_book = book;
	return 0;
}

/* ---- changes ---- */

/* Removes the specifiers of this package from the list; true when there was one. */
static bool drop_spec(json_t *list, const char *spec)
{
	bool dropped = false;
	for (size_t i = json_array_size(list); i-- > 0;)
		if (cell__dep_same_package(json_string_value(json_array_get(list, i)), spec)) {
			json_array_remove(list, i);
			dropped = true;
		}
	return dropped;
}

static int put_spec(json_t *list, const char *spec)
{
	drop_spec(list, spec);
	size_t at = 0;
	while (at < json_array_size(list) && strcmp(json_string_value(json_array_get(list, at)), spec) < 0)
		at++;
	return json_array_insert_new(list, at, json_string(spec));
}

static bool share_hash(json_t *a, json_t *b)
{
	for (size_t i = 1; i < json_array_size(a); i++)
		for (size_t k = 1; k < json_array_size(b); k++)
			if (json_equal(json_array_get(a, i), json_array_get(b, k)))
				return true;
	return false;
}

int cell__depbook_merge(json_t *book, json_t *specs, json_t *resolved, json_t *locked, struct cell_error *err)
{
	json_t *all = json_object_get(book, "locked"), *entry;
	const char *name;
	int rc = 0;
	for (size_t i = 0; i < json_array_size(specs); i++)
		rc |= put_spec(json_object_get(book, "packages"), json_string_value(json_array_get(specs, i)));
	for (size_t i = 0; i < json_array_size(resolved); i++)
		rc |= put_spec(json_object_get(book, "resolved"), json_string_value(json_array_get(resolved, i)));
	json_object_foreach(locked, name, entry) {
		json_t *known = json_object_get(all, name);
		if (!known || !json_equal(json_array_get(known, 0), json_array_get(entry, 0)))
			rc |= json_object_set(all, name, entry);
		else if (!share_hash(known, entry))
			return cell_fail(
				err, CELL_E_INSTALL, 0,
				"%.60s %.40s is not the file that was locked: the index or wheel folder now has different bytes for "
				"it; if that is intended, deps.remove() it and add it again",
				name, json_string_value(json_array_get(entry, 0)));
	}
	if (rc != 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (!is_book(book))
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u dependencies, or more than %u packages including indirect ones",
				 CELL__STORE_DEPS, CELL__DEPBOOK_LOCKED);
	return 0;
}

/* Replaces the old text by the changed book. 1: another writer was faster. */
static int swap(struct cell__store *store, enum cell__book which, const struct cell__buf *old, json_t *book, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *dump = json_dumps(book, JSON_INDENT(1) | JSON_SORT_KEYS);
	bool done = false;
	if (!dump || cell__buf_printf(&text, "%s\n", dump) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (text.size > CELL__DEPBOOK_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "%s would exceed %u bytes", cell__book_name(which), CELL__DEPBOOK_BYTES);
	if (store->backend->deps->write_book(store, which, old, &text, &done, err) < 0)
		return -1;
	return done ? 0 : 1;
}

static int fail_busy(enum cell__book which, struct cell_error *err)
{
	return cell_fail(err, CELL_E_IO, 0, "cannot change %s: other processes keep changing it; try again", cell__book_name(which));
}

int cell__depbook_add(struct cell__store *store, enum cell__book which, json_t *specs, json_t *resolved, json_t *locked,
		      struct cell_error *err)
{
	for (int i = 0; i < SWAP_TRIES; i++) {
		CELL_AUTO_BUF struct cell__buf old = CELL_BUF_INIT;
		json_t *book;
		if (load(store, which, &old, &book, err) < 0)
			return -1;
		int rc = cell__depbook_merge(book, specs, resolved, locked, err);
		if (rc == 0)
			rc = swap(store, which, &old, book, err);
		json_decref(book);
		if (rc <= 0)
			return rc;
	}
	return fail_busy(which, err);
}

int cell__depbook_drop(struct cell__store *store, enum cell__book which, json_t *names, bool theirs, bool uninstalled, bool *ret_removed,
		       struct cell_error *err)
{
	for (int i = 0; i < SWAP_TRIES; i++) {
		CELL_AUTO_BUF struct cell__buf old = CELL_BUF_INIT;
		bool removed = false, changed = false;
		json_t *book;
		if (load(store, which, &old, &book, err) < 0)
			return -1;
		for (size_t k = 0; k < json_array_size(names); k++) {
			const char *name = json_string_value(json_array_get(names, k));
			removed |= theirs && drop_spec(json_object_get(book, "packages"), name);
			changed |= drop_spec(json_object_get(book, "resolved"), name);
			changed |= uninstalled && json_object_del(json_object_get(book, "locked"), name) == 0;
		}
		int rc = removed || changed ? swap(store, which, &old, book, err) : 0;
		json_decref(book);
		if (rc == 0 && ret_removed)
			*ret_removed = removed;
		if (rc <= 0)
			return rc;
	}
	return fail_busy(which, err);
}
