/* Workflows: plain .py files, with descriptions kept beside them. */
#define _GNU_SOURCE
#include "storage/workflows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "storage/shared.h"
#include "storage/store.h"

#define FOLDER CELL__WORKFLOWS_FOLDER
#define OLD_FOLDER CELL__SKILLS_FOLDER
#define INDEX CELL__WORKFLOWS_INDEX
#define FILE_NAME_SIZE CELL__WORKFLOW_FILE_SIZE

/* ---- names ---- */

/* Letters, digits and underscores; called for each of ten thousand files. */
static bool is_word(const char *name)
{
	for (; *name; name++)
		if (!((*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || (*name >= '0' && *name <= '9') || *name == '_'))
			return false;
	return true;
}

int cell__workflow_check_name(const char *name, struct cell_error *err)
{
	static const char *const reserved[] = { "list", "search", "get", "invoke", "create", "delete" };
	size_t size = strlen(name);
	if (size > CELL__STORE_WORKFLOW_NAME_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "Invalid workflow name: longer than %u bytes", CELL__STORE_WORKFLOW_NAME_BYTES);
	if (size == 0 || (name[0] >= '0' && name[0] <= '9') || !is_word(name))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid workflow name: '%s' (must be valid Python identifier)",
				 cell__utf8_ok(name, size) ? name : "?");
	if (name[0] == '_')
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid workflow name: '%s' (must not begin with an underscore)", name);
	if (cell__py_is_keyword(name))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid workflow name: '%s' (is a Python keyword)", name);
	for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
		if (strcmp(name, reserved[i]) == 0)
			return cell_fail(err, CELL_E_INVALID, 0, "Reserved workflow name: '%s'", name);
	return 0;
}

bool cell__workflow_is_marked(const char *source, size_t size)
{
	const size_t mark = sizeof CELL__WORKFLOW_MARK - 1;
	return size >= mark && memcmp(source, CELL__WORKFLOW_MARK, mark) == 0;
}

void cell__workflow_file(const char *name, char out[static FILE_NAME_SIZE])
{
	snprintf(out, FILE_NAME_SIZE, "%s.py", name);
}

/* ---- descriptions ---- */

static const char *first_line(const char *text, size_t *ret_size)
{
	*ret_size = text ? strcspn(text, "\n") : 0;
	return text ? text : "";
}

static json_t *describe(const struct cell__py_source *parsed, json_t *entry)
{
	json_t *given = json_object_get(entry, "description");
	if (json_string_length(given) > 0)
		return json_incref(given);
	size_t size;
	const char *line = first_line(parsed->docstring, &size);
	if (size == 0)
		line = first_line(parsed->run_docstring, &size);
	return json_stringn(line, size);
}

static int add_params(json_t *info, const struct cell__py_source *parsed)
{
	json_t *params = json_object(), *parameters = json_array();
	int rc = params && parameters ? 0 : -1;
	for (size_t i = 0; rc == 0 && i < parsed->n_params; i++) {
		const struct cell__py_param *p = &parsed->params[i];
		json_t *one = json_pack("{s:s, s:s, s:s, s:b, s:O?}", "name", p->name, "type", p->type, "description", "", "required",
					p->required, "default", p->default_value);
		rc = one ? json_array_append_new(parameters, one) : -1;
		rc |= json_object_set_new(params, p->name, json_string(p->type));
	}
	rc |= json_object_set_new(info, "params", params);
	rc |= json_object_set_new(info, "parameters", parameters);
	return rc;
}

json_t *cell__workflow_info(const char *name, const struct cell__py_source *parsed, json_t *entry, const struct timespec *when)
{
	char text[CELL__TIME_SIZE];
	cell__time_format(when, text);
	json_t *created = json_object_get(entry, "created_at");
	created = json_is_string(created) ? json_incref(created) : when->tv_sec ? json_string(text) : json_null();
	json_t *info = json_pack("{s:s, s:o, s:b, s:o}", "name", name, "description", describe(parsed, entry), "async", parsed->is_async,
				 "created_at", created);
	if (info && add_params(info, parsed) < 0) {
		json_decref(info);
		info = NULL;
	}
	return info;
}

static int tell_path(struct cell__store *store, const char *name, bool old, struct cell__buf *out)
{
	return cell__buf_printf(out, "%s/%s/%s.py", store->root, old ? OLD_FOLDER : FOLDER, name);
}

/* ---- one workflow ---- */

int cell__workflow_fail_read(struct cell_error *err, const char *name, int sys)
{
	if (sys == ENOENT || sys == ENOTDIR || sys == EISDIR)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "Workflow '%s' not found", name);
	if (sys == EFBIG)
		return cell_fail(err, CELL_E_LIMIT, 0, "Workflow '%s' is larger than %u bytes", name, CELL__STORE_SOURCE_BYTES);
	return cell_fail(err, CELL_E_IO, sys, "Cannot read workflow '%s'", name);
}

static int read_pair(struct cell__store *store, const char *name, struct cell__workflow_kept *ret_kept, struct cell_error *err)
{
	static const char *const folders[] = { FOLDER, OLD_FOLDER };
	char file[FILE_NAME_SIZE];
	struct stat st;
	cell__workflow_file(name, file);
	for (size_t i = 0; i < 2; i++) {
		CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, folders[i], false);
		CELL_AUTO_FD int lock = -1;
		if (dir_fd < 0 && errno == ENOENT)
			continue;
		if (dir_fd < 0)
			return cell__dir_fail(err, folders[i], errno);
		if (cell__index_lock(dir_fd, false, &lock, err) < 0)
			return cell_fail_wrap(err, "Cannot read workflow '%s'", name);
		if (cell__path_read(dir_fd, file, CELL__STORE_SOURCE_BYTES, &ret_kept->source, &st) < 0) {
			if (errno == ENOENT)
				continue;
			return cell__workflow_fail_read(err, name, errno);
		}
		json_t *index = NULL;
		/* An index that cannot be parsed is ignored; the source alone is enough. */
		if (cell__index_read(dir_fd, INDEX, i == 0 ? &store->workflows : NULL, &index, NULL) == 0)
			ret_kept->entry = json_incref(json_object_get(index, name));
		json_decref(index);
		ret_kept->when = st.st_mtim;
		ret_kept->old = i == 1;
		return cell__shared_mark(store, name, &ret_kept->source, err);
	}
	return cell__workflow_fail_read(err, name, ENOENT);
}

static bool file_exists(struct cell__store *store, const char *folder, const char *file)
{
	struct stat st;
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, folder, false);
	return dir_fd >= 0 && fstatat(dir_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int cell__workflow_fail_exists(struct cell_error *err, const char *name)
{
	cell_fail(err, CELL_E_INVALID, 0, "Workflow '%s' already exists; pass overwrite=True to replace it", name);
	if (err)
		err->sys = EEXIST;
	return -1;
}

static int write_pair(struct cell__store *store, const char *name, const char *source, size_t size, json_t *entry, json_t *info,
		      bool overwrite, struct cell_error *err)
{
	(void)info; /* all of it can be derived from the source and the entry */
	char file[FILE_NAME_SIZE];
	cell__workflow_file(name, file);
	if (!overwrite && file_exists(store, OLD_FOLDER, file))
		return cell__workflow_fail_exists(err, name);
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, true);
	struct cell__temp temp = CELL__TEMP_INIT;
	if (dir_fd < 0 && (errno == ELOOP || errno == EXDEV))
		return cell__dir_fail(err, FOLDER, errno);
	if (dir_fd < 0 || cell__temp_create(&temp, dir_fd) < 0)
		return cell_fail(err, CELL_E_IO, errno, "Cannot write workflow '%s'", name);
	struct cell__index_change change = { .path = file, .key = name, .entry = entry, .temp = &temp, .exclusive = !overwrite };
	struct cell__index_outcome outcome;
	struct cell_error why = { 0 };
	int rc = 0;
	if (cell__temp_write(&temp, source, size) < 0 || cell__temp_sync(&temp) < 0) {
		rc = cell_fail(err, CELL_E_IO, errno, "Cannot write workflow '%s'", name);
	} else if (cell__shared_vouch(store, name, source, size, err) < 0) {
		rc = -1;
	} else if (cell__index_apply(dir_fd, INDEX, &store->workflows, &change, &outcome, &why) < 0) {
		if (why.sys == EEXIST && !overwrite) {
			rc = cell__workflow_fail_exists(err, name);
		} else {
			cell_fail_wrap(&why, "Cannot write workflow '%s'", name);
			if (err)
				*err = why;
			rc = -1;
		}
	} else if (outcome.broken) {
		cell__store_put_notice(store, &outcome.notice);
	}
	cell__temp_discard(&temp);
	return rc;
}

static int delete_pair(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	char file[FILE_NAME_SIZE];
	struct cell__index_outcome outcome = { 0 };
	cell__workflow_file(name, file);
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, false);
	if (dir_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, FOLDER, errno);
	CELL_AUTO_FD int old_fd = cell__dir_open(store->root_fd, OLD_FOLDER, false);
	if (old_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, OLD_FOLDER, errno);
	struct cell__index_change change = { .path = file, .key = name };
	if (file_exists(store, FOLDER, file) && cell__index_apply(dir_fd, INDEX, &store->workflows, &change, &outcome, err) < 0)
		return cell_fail_wrap(err, "Cannot delete workflow '%s'", name);
	if (outcome.broken)
		cell__store_put_notice(store, &outcome.notice);
	*ret_deleted = outcome.existed;
	if (cell__shared_vouch(store, name, NULL, 0, err) < 0)
		return -1;
	/* Else the one it hid would come back. */
	if (old_fd >= 0 && unlinkat(old_fd, file, 0) == 0)
		*ret_deleted = true;
	else if (old_fd >= 0 && errno != ENOENT)
		return cell_fail(err, CELL_E_IO, errno, "Cannot delete workflow '%s'", name);
	return 0;
}

const struct cell__workflow_ops cell__file_workflows = {
	.read = read_pair,
	.write = write_pair,
	.delete = delete_pair,
	.refresh = cell__workflow_refresh_files,
	.path = tell_path,
};

/* ---- on either backend ---- */

static int finish_info(struct cell__store *store, json_t *info, bool old, const char *source, size_t size)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	const char *name = json_string_value(json_object_get(info, "name"));
	if (!info || store->backend->workflows->path(store, name, old, &path) < 0)
		return -1;
	int rc = 0;
	/* A root that is not UTF-8 cannot be written in JSON. */
	if (cell__utf8_ok(path.data, path.size))
		rc = json_object_set_new(info, "path", json_string(path.data));
	return source ? rc | json_object_set_new(info, "source", json_stringn(source, size)) : rc;
}

int cell__workflow_get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err)
{
	struct cell__workflow_kept kept = { 0 };
	if (cell__workflow_check_name(name, NULL) < 0)
		return cell__workflow_fail_read(err, strlen(name) <= CELL__STORE_WORKFLOW_NAME_BYTES ? name : "...", ENOENT);
	struct cell__py_source parsed;
	json_t *info = NULL;
	int rc = store->backend->workflows->read(store, name, &kept, err);
	if (rc == 0 && (rc = cell__py_scan(kept.source.data, kept.source.size, &parsed, err)) < 0) {
		cell_fail_wrap(err, "Invalid workflow '%s'", name);
	} else if (rc == 0) {
		info = cell__workflow_info(name, &parsed, kept.entry, &kept.when);
		cell__py_source_finish(&parsed);
		rc = finish_info(store, info, kept.old, kept.source.data, kept.source.size);
		if (rc < 0)
			cell_fail(err, CELL_E_NOMEM, 0, "get workflow '%s'", name);
	}
	cell__buf_finish(&kept.source);
	json_decref(kept.entry);
	if (rc < 0)
		return json_decref(info), -1;
	*ret_info = info;
	return 0;
}

int cell__workflow_create(struct cell__store *store, const char *name, const char *source, size_t source_size, const char *description,
			  bool overwrite, json_t **ret_info, struct cell_error *err)
{
	if (cell__workflow_check_name(name, err) < 0)
		return -1;
	if (source_size > CELL__STORE_SOURCE_BYTES)
		return cell__workflow_fail_read(err, name, EFBIG);
	if (description && strlen(description) > CELL__STORE_DESCRIPTION_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the workflow's description is longer than %u bytes", CELL__STORE_DESCRIPTION_BYTES);
	struct cell__py_source parsed;
	if (cell__py_scan(source, source_size, &parsed, err) < 0)
		return -1;
	char now[CELL__TIME_SIZE];
	const struct timespec unknown = { 0 };
	cell__time_now(now);
	json_t *entry = json_pack("{s:s, s:s}", "description", description ? description : "", "created_at", now);
	json_t *info = entry ? cell__workflow_info(name, &parsed, entry, &unknown) : NULL;
	int rc = 0;
	if (!entry)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the workflow's description is not UTF-8");
	else if (finish_info(store, info, false, source, source_size) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "create workflow '%s'", name);
	if (rc == 0)
		rc = store->backend->workflows->write(store, name, source, source_size, entry, info, overwrite, err);
	if (rc == 0 && ret_info)
		*ret_info = json_incref(info);
	json_decref(info);
	json_decref(entry);
	cell__py_source_finish(&parsed);
	return rc;
}

int cell__workflow_delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	bool deleted = false;
	/* An invalid name does not exist. */
	if (cell__workflow_check_name(name, NULL) == 0 && store->backend->workflows->delete(store, name, &deleted, err) < 0)
		return -1;
	if (ret_deleted)
		*ret_deleted = deleted;
	return 0;
}
