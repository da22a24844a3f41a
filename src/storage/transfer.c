/*
 * Moves the content of a storage to another one, and lists the differences of two: workflows, artifacts, deps, and tool definitions, which
 * are in a folder of their own or in a hash in Redis.
 *
 * Both sides are read into objects {name: value to compare}, the names are visited in order, and differing items are copied. Nothing is
 * removed before everything is copied: a side is never empty in between.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/sized.h"
#include "storage/file.h"
#ifdef CELL_HAVE_REDIS
#include "storage/redis.h"
#endif
#include "wire/yaml.h"

#define COPY_BYTES (1024 * 1024)
#define TOOL_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."

struct side {
	struct cell__store *store;
	char *tools_dir; /* NULL: in Redis */
	json_t *items;   /* name -> value to compare */
	json_t *files;   /* tools in a folder: name -> file */
};

struct transfer {
	const struct cell_transfer_options *opts;
	struct side from, to;
	uint64_t done, total; /* as on_progress() has them */
};

static void say(const struct transfer *t, const char *what, const char *name, const char *note)
{
	if (t->opts->on_item)
		t->opts->on_item(t->opts->arg, what, name, note ? note : "");
}

static void advance(struct transfer *t, uint64_t amount)
{
	t->done += amount;
	if (t->opts->on_progress)
		t->opts->on_progress(t->opts->arg, t->done, t->total);
}

/* Adds an item; takes over the reference. */
static int add_item(json_t *items, const char *name, json_t *item, struct cell_error *err)
{
	if (item && json_object_set_new(items, name, item) == 0)
		return 0;
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

/* key: the member of a problem that names its item */
static void say_skipped(struct transfer *t, const json_t *problems, const char *key)
{
	json_t *one;
	size_t i;
	json_array_foreach(problems, i, one)
		say(t, "skipped", json_string_value(json_object_get(one, key)), json_string_value(json_object_get(one, "message")));
}

/* ---- workflows ---- */

static int load_workflows(struct transfer *t, struct side *side, struct cell_error *err)
{
	json_t *list = NULL, *problems = NULL, *one;
	size_t i;
	if (cell__workflow_list(side->store, &list, &problems, err) < 0)
		return -1;
	say_skipped(t, problems, "name");
	int rc = 0;
	json_array_foreach(list, i, one) {
		const char *name = json_string_value(json_object_get(one, "name"));
		json_t *info = NULL;
		rc = cell__workflow_get(side->store, name, &info, err);
		if (rc < 0)
			break;
		rc = add_item(
			side->items, name,
			json_pack("{s:O, s:O}", "note", json_object_get(info, "description"), "source", json_object_get(info, "source")),
			err);
		json_decref(info);
		if (rc < 0)
			break;
	}
	json_decref(list);
	json_decref(problems);
	return rc;
}

static int put_workflow(struct transfer *t, const char *name, json_t *item, struct cell_error *err)
{
	json_t *source = json_object_get(item, "source");
	return cell__workflow_create(t->to.store, name, json_string_value(source), json_string_length(source),
				     json_string_value(json_object_get(item, "note")), true, NULL, err);
}

static int drop_workflow(struct transfer *t, const char *name, struct cell_error *err)
{
	return cell__workflow_delete(t->to.store, name, NULL, err);
}

/* ---- deps ---- */

static int load_deps(struct transfer *t, struct side *side, struct cell_error *err)
{
	json_t *list = NULL, *problems = NULL, *one;
	size_t i;
	if (cell__deps_list(side->store, &list, &problems, err) < 0)
		return -1;
	say_skipped(t, problems, "text");
	int rc = 0;
	json_array_foreach(list, i, one) {
		const char *spec = json_string_value(one);
		CELL_AUTO_FREE char *name = cell__strndup(spec, cell__dep_base_size(spec));
		rc = name ? add_item(side->items, name, json_pack("{s:O}", "note", one), err)
			  : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		if (rc < 0)
			break;
	}
	json_decref(list);
	json_decref(problems);
	return rc;
}

static int put_dep(struct transfer *t, const char *name, json_t *item, struct cell_error *err)
{
	(void)name;
	return cell__deps_add(t->to.store, json_string_value(json_object_get(item, "note")), err);
}

static int drop_dep(struct transfer *t, const char *name, struct cell_error *err)
{
	return cell__deps_remove(t->to.store, name, NULL, err);
}

/* ---- artifacts ---- */

static int load_artifacts(struct transfer *t, struct side *side, struct cell_error *err)
{
	(void)t;
	json_t *list = NULL, *one;
	size_t i;
	if (cell__artifact_list(side->store, &list, err) < 0)
		return -1;
	int rc = 0;
	json_array_foreach(list, i, one) {
		rc = add_item(side->items, json_string_value(json_object_get(one, "name")),
			      json_pack("{s:O, s:O, s:O}", "note", json_object_get(one, "description"), "metadata",
					json_object_get(one, "metadata"), "size", json_object_get(one, "size")),
			      err);
		if (rc < 0)
			break;
	}
	json_decref(list);
	return rc;
}

/* Reads it all, into a hash or a writer; both may be NULL. t NULL: without progress. */
static int read_artifact(struct transfer *t, struct cell__artifact_reader *reader, EVP_MD_CTX *hash, struct cell__artifact_writer *writer,
			 struct cell_error *err)
{
	CELL_AUTO_FREE char *buf = cell__alloc(1, COPY_BYTES);
	if (!buf)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (int64_t offset = 0, size = cell__artifact_reader_size(reader); offset < size;) {
		ssize_t n = cell__artifact_pread(reader, buf, COPY_BYTES, offset, err);
		if (n < 0)
			return -1;
		if (n == 0)
			return cell_fail(err, CELL_E_IO, 0, "an artifact became shorter while it was read");
		if (hash && EVP_DigestUpdate(hash, buf, (size_t)n) != 1)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		if (writer && cell__artifact_write(writer, buf, (size_t)n, err) < 0)
			return -1;
		offset += n;
		if (t)
			advance(t, (uint64_t)n);
	}
	return 0;
}

static int hash_artifact(struct cell__store *store, const char *name, unsigned char out[static EVP_MAX_MD_SIZE], struct cell_error *err)
{
	struct cell__artifact_reader *reader = NULL;
	if (cell__artifact_open(store, name, &reader, err) < 0)
		return -1;
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	int rc = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0)
		rc = read_artifact(NULL, reader, hash, NULL, err);
	if (rc == 0)
		EVP_DigestFinal_ex(hash, out, NULL);
	EVP_MD_CTX_free(hash);
	cell__artifact_reader_close(reader);
	return rc;
}

static int same_artifact(struct transfer *t, const char *name, bool *ret_same, struct cell_error *err)
{
	unsigned char a[EVP_MAX_MD_SIZE] = { 0 }, b[EVP_MAX_MD_SIZE] = { 0 };
	if (hash_artifact(t->from.store, name, a, err) < 0 || hash_artifact(t->to.store, name, b, err) < 0)
		return -1;
	*ret_same = memcmp(a, b, sizeof a) == 0;
	return 0;
}

static int put_artifact(struct transfer *t, const char *name, json_t *item, struct cell_error *err)
{
	(void)item; /* in its present state, which may be newer than the listing */
	struct cell__artifact_reader *reader = NULL;
	struct cell__artifact_writer *writer = NULL;
	if (cell__artifact_open(t->from.store, name, &reader, err) < 0)
		return -1;
	json_t *info = cell__artifact_reader_info(reader), *metadata = json_object_get(info, "metadata");
	int rc = cell__artifact_begin(t->to.store, name, &writer, err);
	if (rc == 0 && (rc = read_artifact(t, reader, NULL, writer, err)) < 0)
		cell__artifact_abort(writer);
	else if (rc == 0)
		rc = cell__artifact_commit(writer, json_string_value(json_object_get(metadata, "_data_type")),
					   json_string_value(json_object_get(info, "description")), metadata, NULL, err);
	cell__artifact_reader_close(reader);
	return rc;
}

static int drop_artifact(struct transfer *t, const char *name, struct cell_error *err)
{
	return cell__artifact_delete(t->to.store, name, NULL, err);
}

/* ---- tools ---- */

static bool tool_name_ok(const char *name)
{
	size_t size = strlen(name);
	return size >= 1 && size <= CELL__STORE_TOOL_NAME && name[0] != '.' && strspn(name, TOOL_LETTERS) == size;
}

static int add_tool(struct transfer *t, struct side *side, const char *name, json_t *definition, struct cell_error *err)
{
	const char *described = json_string_value(json_object_get(definition, "description"));
	if (!tool_name_ok(name)) {
		say(t, "skipped", name, "not a valid tool name");
		return 0;
	}
	return add_item(side->items, name, json_pack("{s:s, s:O}", "note", described ? described : "", "definition", definition), err);
}

static int load_tool_file(struct transfer *t, struct side *side, int dir_fd, const char *file, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__problems problems = { 0 };
	if (cell__path_read(dir_fd, file, CELL_YAML_LIMIT_FILE_BYTES, &text, NULL) < 0)
		return cell_fail(err, CELL_E_IO, errno, "read tool definition %.120s", file);
	struct cell__yaml *tree = cell__yaml_parse(file, text.data, text.size, &problems);
	json_t *definition = tree && tree->kind == CELL_YAML_MAPPING ? cell__yaml_to_json(tree) : NULL;
	const char *name = json_string_value(json_object_get(definition, "name"));
	int rc = 0;
	if (!name)
		say(t, "skipped", file, problems.count ? problems.list[0].message : "it has no name");
	else if ((rc = add_tool(t, side, name, definition, err)) == 0)
		json_object_set_new(side->files, name, json_string(file));
	json_decref(definition);
	cell__yaml_destroy(tree);
	cell__problems_finish(&problems);
	return rc;
}

static bool is_yaml(const char *name)
{
	const char *dot = strrchr(name, '.');
	return name[0] != '.' && dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

static int load_tool_dir(struct transfer *t, struct side *side, struct cell_error *err)
{
	DIR *dir = opendir(side->tools_dir);
	if (!dir && errno == ENOENT)
		return 0;
	if (!dir)
		return cell_fail(err, CELL_E_IO, errno, "read folder %.160s", side->tools_dir);
	int rc = 0;
	for (struct dirent *entry; rc == 0 && (entry = readdir(dir));)
		if (is_yaml(entry->d_name) && cell__utf8_ok(entry->d_name, strlen(entry->d_name)))
			rc = load_tool_file(t, side, dirfd(dir), entry->d_name, err);
	closedir(dir);
	return rc;
}

static int put_tool_file(struct transfer *t, const char *name, json_t *definition, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf fresh = CELL_BUF_INIT;
	const char *file = json_string_value(json_object_get(t->to.files, name));
	/* JSON is YAML. */
	CELL_AUTO_FREE char *text = json_dumps(definition, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	if (!text || cell__buf_printf(&fresh, "%s.yaml", name) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (cell__mkdir_all(t->to.tools_dir) < 0)
		return cell_fail(err, CELL_E_IO, errno, "make folder %.160s", t->to.tools_dir);
	CELL_AUTO_FD int fd = open(t->to.tools_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || cell__file_replace(fd, file ? file : fresh.data, text, strlen(text)) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write tool definition %.120s", name);
	return 0;
}

static int drop_tool_file(struct transfer *t, const char *name, struct cell_error *err)
{
	const char *file = json_string_value(json_object_get(t->to.files, name));
	CELL_AUTO_FD int fd = open(t->to.tools_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !file || unlinkat(fd, file, 0) < 0)
		return cell_fail(err, CELL_E_IO, errno, "remove tool definition %.120s", name);
	return 0;
}

#ifdef CELL_HAVE_REDIS
struct tool_load {
	struct transfer *t;
	struct side *side;
};

static int load_tool_field(void *arg, const char *name, const char *value, size_t size, struct cell_error *err)
{
	struct tool_load *load = arg;
	json_t *definition = value ? json_loadb(value, size, 0, NULL) : NULL;
	int rc = 0;
	if (json_is_object(definition))
		rc = add_tool(load->t, load->side, name, definition, err);
	else
		say(load->t, "skipped", name, "its value in Redis is not a JSON object");
	json_decref(definition);
	return rc;
}

static int load_tool_hash(struct transfer *t, struct side *side, struct cell_error *err)
{
	struct tool_load load = { t, side };
	struct cell__redis *redis = side->store->redis;
	return cell__redis_each_field(redis, redis->tools_key, CELL__STORE_TOOL_NAME, load_tool_field, &load, err);
}

/* definition NULL: it goes. */
static int set_tool_field(struct transfer *t, const char *name, json_t *definition, struct cell_error *err)
{
	struct cell__redis *redis = t->to.store->redis;
	CELL_AUTO_BATCH struct cell__redis_batch batch = CELL__REDIS_BATCH_INIT;
	CELL_AUTO_REPLIES struct cell__redis_replies replies = CELL__REDIS_REPLIES_INIT;
	CELL_AUTO_FREE char *text = definition ? json_dumps(definition, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
	if (definition && !text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (text)
		cell__redis_add(&batch, "HSET %s %s %s", redis->tools_key, name, text);
	else
		cell__redis_add(&batch, "HDEL %s %s", redis->tools_key, name);
	return cell__redis_run(redis, &batch, CELL__REDIS_AGAIN, false, &replies, err);
}
#else
/* A side without a folder is one in Redis, which cannot be opened. */
static int load_tool_hash(struct transfer *t, struct side *side, struct cell_error *err)
{
	(void)t;
	(void)side;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "storage in Redis is not built into this version");
}

static int set_tool_field(struct transfer *t, const char *name, json_t *definition, struct cell_error *err)
{
	(void)name;
	(void)definition;
	return load_tool_hash(t, NULL, err);
}
#endif

static int load_tools(struct transfer *t, struct side *side, struct cell_error *err)
{
	return side->tools_dir ? load_tool_dir(t, side, err) : load_tool_hash(t, side, err);
}

static int put_tool(struct transfer *t, const char *name, json_t *item, struct cell_error *err)
{
	json_t *definition = json_object_get(item, "definition");
	return t->to.tools_dir ? put_tool_file(t, name, definition, err) : set_tool_field(t, name, definition, err);
}

static int drop_tool(struct transfer *t, const char *name, struct cell_error *err)
{
	return t->to.tools_dir ? drop_tool_file(t, name, err) : set_tool_field(t, name, NULL, err);
}

/* ---- both sides ---- */

static const struct kind {
	const char *name;
	int (*load)(struct transfer *t, struct side *side, struct cell_error *err);
	/* Compares two with equal items; NULL: equal items are the same. */
	int (*same)(struct transfer *t, const char *name, bool *ret_same, struct cell_error *err);
	int (*put)(struct transfer *t, const char *name, json_t *item, struct cell_error *err);
	int (*drop)(struct transfer *t, const char *name, struct cell_error *err);
} kinds[] = {
	{ "workflows", load_workflows, NULL, put_workflow, drop_workflow },
	{ "tools", load_tools, NULL, put_tool, drop_tool },
	{ "deps", load_deps, NULL, put_dep, drop_dep },
	{ "artifacts", load_artifacts, same_artifact, put_artifact, drop_artifact },
};

/* The names of both, sorted, each once; NULL: no memory. */
static json_t *all_names(json_t *a, json_t *b)
{
	json_t *both = json_object(), *names = NULL, *value;
	const char *key;
	int rc = both ? 0 : -1;
	json_object_foreach(a, key, value)
		rc |= json_object_set_new(both, key, json_string(key));
	json_object_foreach(b, key, value)
		rc |= json_object_set_new(both, key, json_string(key));
	if (rc == 0)
		names = cell__sorted_values(both);
	json_decref(both);
	return names;
}

static const char *note_of(json_t *item)
{
	const char *note = json_string_value(json_object_get(item, "note"));
	return note ? note : "";
}

/* Its part of the whole: the bytes of an artifact, otherwise 1. */
static uint64_t weight_of(json_t *item)
{
	json_t *size = json_object_get(item, "size");
	return size ? (uint64_t)json_integer_value(size) : 1;
}

static int copy_one(struct transfer *t, const struct kind *kind, const char *name, struct cell_error *err)
{
	json_t *from = json_object_get(t->from.items, name), *to = json_object_get(t->to.items, name);
	if (!from)
		return 0;
	uint64_t before = t->done;
	bool same = to && json_equal(from, to);
	if (same && kind->same && kind->same(t, name, &same, err) < 0)
		return -1;
	if (!same && !t->opts->dry_run && kind->put(t, name, from, err) < 0)
		return cell_fail_wrap(err, "%.100s", name);
	/* Another amount if the artifact has changed since it was listed. */
	t->done = before;
	advance(t, weight_of(from));
	say(t, same ? "same" : to ? "changed" : "added", name, note_of(from));
	return 0;
}

static int drop_one(struct transfer *t, const struct kind *kind, const char *name, struct cell_error *err)
{
	json_t *to = json_object_get(t->to.items, name);
	if (!to || json_object_get(t->from.items, name))
		return 0;
	if (t->opts->clear && !t->opts->dry_run && kind->drop(t, name, err) < 0)
		return cell_fail_wrap(err, "%.100s", name);
	say(t, t->opts->clear ? "removed" : "extra", name, note_of(to));
	return 0;
}

static int go_through(struct transfer *t, const struct kind *kind, struct cell_error *err)
{
	size_t i;
	json_t *name, *names = all_names(t->from.items, t->to.items);
	json_t *item;
	const char *key;
	int rc = names ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_object_foreach(t->from.items, key, item)
		t->total += weight_of(item);
	if (t->opts->to)
		advance(t, 0);
	json_array_foreach(names, i, name) {
		const char *text = json_string_value(name);
		if (rc == 0 && !t->opts->to)
			say(t, "listed", text, note_of(json_object_get(t->from.items, text)));
		else if (rc == 0)
			rc = copy_one(t, kind, text, err);
		/* Removals follow after all copies; in a dry run, names are listed in their order. */
		if (rc == 0 && t->opts->to && t->opts->dry_run)
			rc = drop_one(t, kind, text, err);
	}
	json_array_foreach(names, i, name)
		if (rc == 0 && t->opts->to && !t->opts->dry_run)
			rc = drop_one(t, kind, json_string_value(name), err);
	json_decref(names);
	return rc;
}

static int open_side(struct side *side, const char *place, const char *tools_dir, const char *workspace_id, struct cell_error *err)
{
	struct cell__buf tools = CELL_BUF_INIT;
	side->items = json_object();
	side->files = json_object();
	if (cell__store_open(place, workspace_id, &side->store, err) < 0)
		return -1;
	/* Tools are not a workspace's. */
	if (!tools_dir && cell__store_folder(side->store) && cell__buf_printf(&tools, "%s/tools", side->store->base) == 0)
		side->tools_dir = cell__buf_take(&tools);
	else if (tools_dir && cell__store_folder(side->store))
		side->tools_dir = cell__strdup(tools_dir);
	if (!side->items || !side->files || (cell__store_folder(side->store) && !side->tools_dir))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return 0;
}

static void close_side(struct side *side)
{
	cell__store_close(side->store);
	free(side->tools_dir);
	json_decref(side->items);
	json_decref(side->files);
}

int cell_transfer(const struct cell_transfer_options *opts, struct cell_error *err)
{
	if (cell__require(err, opts) < 0)
		return -1;
	struct cell_transfer_options all = CELL_TRANSFER_OPTIONS_INIT;
	if (cell__sized_read(&all, sizeof all, opts, "cell_transfer_options", err) < 0)
		return -1;
	const struct kind *kind = NULL;
	for (size_t i = 0; all.kind && i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].name, all.kind) == 0)
			kind = &kinds[i];
	if (!kind || !all.from)
		return cell_fail(err, CELL_E_INVALID, 0, "a transfer needs a source and a kind: workflows, tools, deps or artifacts");
	struct transfer t = { .opts = &all };
	int rc = open_side(&t.from, all.from, all.tools_dir, all.workspace_id, err);
	if (rc == 0 && all.to)
		rc = open_side(&t.to, all.to, all.tools_dir, all.workspace_id, err);
	if (rc == 0)
		rc = kind->load(&t, &t.from, err);
	if (rc == 0 && all.to)
		rc = kind->load(&t, &t.to, err);
	if (rc == 0)
		rc = go_through(&t, kind, err);
	close_side(&t.from);
	close_side(&t.to);
	return rc;
}
