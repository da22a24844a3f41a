/* The description of a saved session, see saved.h. */
#include "wire/saved.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static int damaged(struct cell_error *err, const char *what)
{
	return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session is damaged: %s", what);
}

/* ---- hexadecimal ---- */

bool cell__saved_from_hex(const char *text, unsigned char *out, size_t bytes)
{
	for (size_t i = 0; i < 2 * bytes; i++) {
		char c = text[i];
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return false;
		if (i % 2 == 0)
			out[i / 2] = (unsigned char)(digit << 4);
		else
			out[i / 2] = (unsigned char)(out[i / 2] | digit);
	}
	return text[2 * bytes] == '\0';
}

void cell__saved_to_hex(const unsigned char *bytes, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++) {
		out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
		out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
	}
	out[2 * n] = '\0';
}

bool cell__saved_is_id(const char *text)
{
	unsigned char unused[16];
	return strlen(text) == 32 && cell__saved_from_hex(text, unused, sizeof unused);
}

static bool is_name(const char *text)
{
	unsigned char unused[8];
	return strlen(text) == CELL_SAVED_NAME && strncmp(text, "p-", 2) == 0 && cell__saved_from_hex(text + 2, unused, sizeof unused);
}

/* ---- reading ---- */

static bool read_number(const json_t *list, size_t i, uint64_t max, uint64_t *out)
{
	const json_t *value = json_array_get(list, i);
	json_int_t number = json_integer_value(value);
	*out = (uint64_t)number;
	return json_is_integer(value) && number >= 0 && (uint64_t)number <= max;
}

static int read_piece(const json_t *entry, uint64_t after, struct cell__saved_piece *piece, struct cell_error *err)
{
	uint64_t size, stored, codec;
	const char *checksum = json_string_value(json_array_get(entry, 5));
	if (json_array_size(entry) != 6 || !read_number(entry, 0, CELL_SAVED_OFFSET_MAX, &piece->offset) ||
	    !read_number(entry, 1, CELL_SAVED_PIECE_BYTES, &size) || !read_number(entry, 2, CELL_SAVED_OFFSET_MAX, &piece->at) ||
	    !read_number(entry, 3, CELL_SAVED_STORED_BYTES, &stored) || !read_number(entry, 4, CELL_SAVED_ZSTD, &codec) || !checksum ||
	    strlen(checksum) != 2 * CELL_SAVED_CHECKSUM || !cell__saved_from_hex(checksum, piece->checksum, CELL_SAVED_CHECKSUM))
		return damaged(err, "a piece is not described as one");
	if (size == 0 || stored == 0 || piece->offset < after || piece->offset + size > CELL_SAVED_OFFSET_MAX ||
	    (codec == CELL_SAVED_PLAIN && stored != size))
		return damaged(err, "pieces overlap or are empty");
	piece->size = (uint32_t)size;
	piece->stored = (uint32_t)stored;
	piece->codec = (uint32_t)codec;
	return 0;
}

static int read_file(const json_t *entry, size_t *n_all, struct cell__saved_file *file, struct cell_error *err)
{
	const char *name = NULL, *inode = NULL, *key = "";
	int is_layer = 0;
	json_t *pieces = NULL;
	if (json_unpack((json_t *)entry, "{s:s, s:s, s?s, s?b, s:o}", "name", &name, "inode", &inode, "key", &key, "layer", &is_layer,
			"pieces", &pieces) < 0 ||
	    !json_is_array(pieces) || !is_name(name))
		return damaged(err, "a file is not described as one");
	strcpy(file->name, name);
	file->is_layer = is_layer != 0;
	char *end;
	file->inode = strtoull(inode, &end, 10);
	if (*end || (*key && !cell__saved_from_hex(key, file->key, sizeof file->key)))
		return damaged(err, "a file is not described as one");
	size_t n = json_array_size(pieces);
	*n_all += n;
	if (*n_all > CELL_SAVED_PIECES)
		return damaged(err, "it has too many pieces");
	if (n == 0)
		return damaged(err, "a file without pieces");
	file->pieces = cell__alloc(n, sizeof *file->pieces);
	if (!file->pieces)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	uint64_t after = 0;
	for (; file->n_pieces < n; file->n_pieces++) {
		struct cell__saved_piece *piece = &file->pieces[file->n_pieces];
		if (read_piece(json_array_get(pieces, file->n_pieces), after, piece, err) < 0)
			return -1;
		after = piece->offset + piece->size;
	}
	return 0;
}

static int read_texts(const json_t *all, struct cell__saved *saved, struct cell_error *err)
{
	const struct {
		const char *name;
		char **copy;
	} texts[] = { { "owner", &saved->owner },    { "workspace", &saved->workspace }, { "executor", &saved->executor },
		      { "python", &saved->python },  { "preload", &saved->preload },     { "build", &saved->build },
		      { "machine", &saved->machine } };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		const char *text = json_string_value(json_object_get(all, texts[i].name));
		if (!text)
			return damaged(err, "a text is missing");
		if (!(*texts[i].copy = cell__strdup(text)))
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	}
	return 0;
}

static int read_own(const json_t *all, struct cell__saved *saved, struct cell_error *err)
{
	const json_t *own = json_object_get(all, "own");
	json_int_t number = own ? json_integer_value(own) : (json_int_t)saved->n_files;
	if ((own && !json_is_integer(own)) || number < 1 || number > (json_int_t)saved->n_files)
		return damaged(err, "its own files are not a part of all");
	saved->n_own = (size_t)number;
	size_t n = cell__saved_memories(saved);
	if (n == 0 || n > CELL_SAVED_MEMORIES)
		return damaged(err, n ? "its memory refers to too many files" : "it has no memory");
	for (size_t i = 0; i + 1 < saved->n_own; i++)
		if (saved->files[i].is_layer)
			return damaged(err, "the layer is not the last file");
	return 0;
}

static bool read_point_file(const json_t *list, const json_t *inodes, size_t i, const struct cell__saved *saved,
			    struct cell__saved_point *point)
{
	uint64_t number;
	const char *inode = json_string_value(json_array_get(inodes, i));
	char *end = NULL;
	if (!read_number(list, i, saved->n_files - 1, &number))
		return false;
	if (saved->files[number].is_layer) {
		point->layer = (int)number;
		return i + 1 == json_array_size(list) && i > 0;
	}
	if (point->n_files == CELL_SAVED_MEMORIES || !inode)
		return false;
	point->files[point->n_files] = (unsigned)number;
	point->inodes[point->n_files++] = strtoull(inode, &end, 10);
	return *inode && !*end;
}

static int read_point(const json_t *entry, const struct cell__saved *saved, struct cell__saved_point *point, struct cell_error *err)
{
	const char *name = NULL;
	json_t *files = NULL, *inodes = NULL, *cells = NULL, *upto = NULL, *taken = NULL;
	int automatic = 0;
	point->layer = -1;
	if (json_unpack((json_t *)entry, "{s:s, s:b, s:o, s:o, s:o, s:o, s:o}", "name", &name, "automatic", &automatic, "cells", &cells,
			"upto", &upto, "taken_ms", &taken, "files", &files, "inodes", &inodes) < 0 ||
	    !*name || strlen(name) > CELL_LIMIT_POINT_NAME || json_array_size(files) == 0)
		return damaged(err, "a point is not described as one");
	json_t *numbers = json_pack("[O, O, O]", cells, upto, taken);
	bool ok = numbers && read_number(numbers, 0, INT64_MAX, &point->cells) && read_number(numbers, 1, INT64_MAX, &point->upto) &&
		  read_number(numbers, 2, INT64_MAX, &point->taken_ms);
	json_decref(numbers);
	for (size_t i = 0; ok && i < json_array_size(files); i++)
		ok = read_point_file(files, inodes, i, saved, point);
	if (!ok || point->upto < point->cells || json_array_size(inodes) != point->n_files)
		return damaged(err, "a point is not described as one");
	point->automatic = automatic != 0;
	return (point->name = cell__strdup(name)) ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
}

static int read_points(const json_t *all, json_int_t version, struct cell__saved *saved, struct cell_error *err)
{
	const json_t *points = json_object_get(all, "points");
	size_t n = json_array_size(points);
	if ((version == CELL_SAVED_VERSION_POINTS) != json_is_array(points) || n > CELL_SAVED_POINTS)
		return damaged(err, "its points are not a list, or too many");
	while (saved->n_points < n) {
		struct cell__saved_point *point = &saved->points[saved->n_points++];
		if (read_point(json_array_get(points, saved->n_points - 1), saved, point, err) < 0)
			return -1;
	}
	return 0;
}

bool cell__state_id_read(const char *text, struct cell__state_id *ret_id)
{
	struct cell__state_id id = { 0 };
	if (!cell__saved_is_id(text))
		return false;
	for (size_t i = 0; i < 32; i++) {
		uint64_t digit = (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
		uint64_t *half = i < 16 ? &id.high : &id.low;
		*half = *half << 4 | digit;
	}
	if (!cell__state_id_known(id))
		return false;
	*ret_id = id;
	return true;
}

void cell__state_id_write(struct cell__state_id id, char out[33])
{
	snprintf(out, 33, "%016llx%016llx", (unsigned long long)id.high, (unsigned long long)id.low);
}

bool cell__state_id_is(struct cell__state_id a, struct cell__state_id b)
{
	return a.high == b.high && a.low == b.low;
}

bool cell__state_id_known(struct cell__state_id id)
{
	return id.high || id.low;
}

/* Sessions that were saved by older versions have none. */
static bool read_state_id(const json_t *all, struct cell__saved *saved)
{
	const json_t *id = json_object_get(all, "state_id");
	return !id || (json_is_string(id) && cell__state_id_read(json_string_value(id), &saved->state_id));
}

static int read_all(json_t *all, struct cell__saved *saved, struct cell_error *err)
{
	const char *id = json_string_value(json_object_get(all, "id"));
	json_int_t version = json_integer_value(json_object_get(all, "version"));
	json_t *numbers = json_pack("[O?, O?, O?]", json_object_get(all, "cells"), json_object_get(all, "generation"),
				    json_object_get(all, "saved_ms"));
	bool ok = numbers && read_number(numbers, 0, INT64_MAX, &saved->cells) && read_number(numbers, 1, INT64_MAX, &saved->generation) &&
		  read_number(numbers, 2, INT64_MAX, &saved->saved_ms);
	json_decref(numbers);
	if (version != CELL_SAVED_VERSION && version != CELL_SAVED_VERSION_POINTS)
		return cell_fail(err, CELL_E_DIFFERS, 0,
				 "the session was saved in version %lld of the format, this program reads version %d", (long long)version,
				 CELL_SAVED_VERSION);
	if (!ok || !id || !cell__saved_is_id(id) || !read_state_id(all, saved))
		return damaged(err, "its id or a number is missing");
	strcpy(saved->id, id);
	saved->notes = json_incref(json_object_get(all, "notes"));
	saved->left = json_incref(json_object_get(all, "left"));
	const json_t *files = json_object_get(all, "files");
	if (!json_is_object(saved->notes) || !json_is_array(saved->left) || json_array_size(files) == 0 ||
	    json_array_size(files) > CELL_SAVED_FILES)
		return damaged(err, "its lists are missing or too long");
	if (read_texts(all, saved, err) < 0)
		return -1;
	size_t n_all = 0, n = json_array_size(files);
	while (saved->n_files < n) {
		struct cell__saved_file *file = &saved->files[saved->n_files++];
		if (read_file(json_array_get(files, saved->n_files - 1), &n_all, file, err) < 0)
			return -1;
	}
	return read_own(all, saved, err) < 0 ? -1 : read_points(all, version, saved, err);
}

int cell__saved_read(const char *bytes, size_t size, struct cell__saved *ret_saved, struct cell_error *err)
{
	json_error_t problem;
	*ret_saved = (struct cell__saved){ 0 };
	json_t *all = size <= CELL_SAVED_STATE_BYTES ? json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &problem) : NULL;
	int rc = json_is_object(all) ? read_all(all, ret_saved, err) : damaged(err, "its description is not a JSON object");
	json_decref(all);
	return rc;
}

size_t cell__saved_memories(const struct cell__saved *saved)
{
	return saved->n_own > 0 && saved->files[saved->n_own - 1].is_layer ? saved->n_own - 1 : saved->n_own;
}

bool cell__saved_is_portable(const struct cell__saved *saved)
{
	return strcmp(saved->build, CELL_SAVED_PORTABLE) == 0;
}

void cell__saved_finish(struct cell__saved *saved)
{
	char *const texts[] = {
		saved->owner, saved->workspace, saved->executor, saved->python, saved->preload, saved->build, saved->machine
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		free(texts[i]);
	for (size_t i = 0; i < saved->n_files; i++)
		free(saved->files[i].pieces);
	for (size_t i = 0; i < saved->n_points; i++)
		free(saved->points[i].name);
	json_decref(saved->notes);
	json_decref(saved->left);
	*saved = (struct cell__saved){ 0 };
}

/* ---- writing ---- */

static json_t *piece_json(const struct cell__saved_piece *piece)
{
	char checksum[2 * CELL_SAVED_CHECKSUM + 1];
	cell__saved_to_hex(piece->checksum, sizeof piece->checksum, checksum);
	return json_pack("[I, I, I, I, I, s]", (json_int_t)piece->offset, (json_int_t)piece->size, (json_int_t)piece->at,
			 (json_int_t)piece->stored, (json_int_t)piece->codec, checksum);
}

static json_t *file_json(const struct cell__saved_file *file)
{
	char key[65], inode[24];
	cell__saved_to_hex(file->key, sizeof file->key, key);
	snprintf(inode, sizeof inode, "%llu", (unsigned long long)file->inode);
	json_t *entry = json_pack("{s:s, s:s, s:s, s:b, s:[]}", "name", file->name, "inode", inode, "key", key, "layer", file->is_layer,
				  "pieces");
	for (size_t i = 0; entry && i < file->n_pieces; i++)
		if (json_array_append_new(json_object_get(entry, "pieces"), piece_json(&file->pieces[i])) < 0) {
			json_decref(entry);
			return NULL;
		}
	return entry;
}

static json_t *point_json(const struct cell__saved_point *point)
{
	char inode[24];
	json_t *entry = json_pack("{s:s, s:b, s:I, s:I, s:I, s:[], s:[]}", "name", point->name, "automatic", point->automatic, "cells",
				  (json_int_t)point->cells, "upto", (json_int_t)point->upto, "taken_ms", (json_int_t)point->taken_ms,
				  "files", "inodes");
	bool ok = entry != NULL;
	for (size_t i = 0; ok && i < point->n_files; i++) {
		snprintf(inode, sizeof inode, "%llu", (unsigned long long)point->inodes[i]);
		ok = json_array_append_new(json_object_get(entry, "files"), json_integer((json_int_t)point->files[i])) == 0 &&
		     json_array_append_new(json_object_get(entry, "inodes"), json_string(inode)) == 0;
	}
	if (ok && point->layer >= 0)
		ok = json_array_append_new(json_object_get(entry, "files"), json_integer(point->layer)) == 0;
	if (ok)
		return entry;
	json_decref(entry);
	return NULL;
}

static bool add_points(const struct cell__saved *saved, json_t *all)
{
	json_t *points = json_array();
	bool ok = points && json_object_set_new(all, "version", json_integer(CELL_SAVED_VERSION_POINTS)) == 0 &&
		  json_object_set_new(all, "own", json_integer((json_int_t)saved->n_own)) == 0;
	for (size_t i = 0; ok && i < saved->n_points; i++)
		ok = json_array_append_new(points, point_json(&saved->points[i])) == 0;
	if (ok)
		return json_object_set_new(all, "points", points) == 0;
	json_decref(points);
	return false;
}

int cell__saved_write(const struct cell__saved *saved, struct cell__buf *out, struct cell_error *err)
{
	json_t *all = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:O, s:O, s:[]}", "version",
				CELL_SAVED_VERSION, "id", saved->id, "owner", saved->owner, "workspace", saved->workspace, "executor",
				saved->executor, "python", saved->python, "preload", saved->preload, "build", saved->build, "machine",
				saved->machine, "cells", (json_int_t)saved->cells, "generation", (json_int_t)saved->generation, "saved_ms",
				(json_int_t)saved->saved_ms, "notes", saved->notes, "left", saved->left, "files");
	bool ok = all != NULL;
	if (ok && cell__state_id_known(saved->state_id)) {
		char id[33];
		cell__state_id_write(saved->state_id, id);
		ok = json_object_set_new(all, "state_id", json_string(id)) == 0;
	}
	for (size_t i = 0; ok && i < saved->n_files; i++)
		ok = json_array_append_new(json_object_get(all, "files"), file_json(&saved->files[i])) == 0;
	if (ok && saved->n_points > 0)
		ok = add_points(saved, all);
	CELL_AUTO_FREE char *text = ok ? json_dumps(all, JSON_COMPACT) : NULL;
	json_decref(all);
	if (!text || cell__buf_add_str(out, text) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	return 0;
}
