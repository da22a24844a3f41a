/* See json_options.h. */
#include "engine/json_options.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"

#define MAX_FIELDS 64u

#define FIELD(struct_name, member, kind) { #member, CELL__JSON_##kind, offsetof(struct struct_name, member) }

#define ENGINE(member, kind) FIELD(cell_engine_options, member, kind)
const struct cell__json_field cell__json_engine_fields[] = {
	ENGINE(lib_dir, TEXT),   ENGINE(spill_dir, TEXT),     ENGINE(pool_size, INT),      ENGINE(start_timeout_ms, INT64),
	ENGINE(cache_dir, TEXT), ENGINE(zygote_forks, INT64), ENGINE(points_bytes, INT64), { NULL, 0, 0 },
};

#define SESSION(member, kind) FIELD(cell_session_options, member, kind)
const struct cell__json_field cell__json_session_fields[] = {
	SESSION(executor, TEXT),
	SESSION(python, TEXT),
	SESSION(preload, TEXT),
	SESSION(cwd, TEXT),
	SESSION(env, PAIRS),
	SESSION(timeout_ms, INT64),
	SESSION(grace_ms, INT64),
	SESSION(max_output_bytes, INT64),
	SESSION(space, OTHER),
	SESSION(policy, OTHER),
	SESSION(gate, OTHER),
	SESSION(approval_timeout_ms, INT64),
	SESSION(approval_stops_clock, FLAG),
	SESSION(require_shell_escape, FLAG),
	SESSION(restore_cwd, FLAG),
	SESSION(audit, OTHER),
	SESSION(images_dir, TEXT),
	SESSION(sandbox_policy, TEXT),
	SESSION(workspace_mode, TEXT),
	SESSION(kernel, TEXT),
	SESSION(jupyter_path, TEXT),
	SESSION(network_profile, TEXT),
	SESSION(remote_url, TEXT),
	SESSION(remote_token, TEXT),
	SESSION(remote_workspace, TEXT),
	SESSION(remote_reopen, FLAG),
	SESSION(remote_repeat, FLAG),
	SESSION(portable_values, FLAG),
	SESSION(container, OTHER),
	SESSION(kubernetes, OTHER),
	SESSION(remote_ca, TEXT),
	SESSION(no_spill, FLAG),
	SESSION(network_disabled, FLAG),
	SESSION(memory_limit, INT64),
	SESSION(undo, INT),
	SESSION(points_bytes, INT64),
	SESSION(allow_fork, INT),
	SESSION(fork_memory, INT64),
	SESSION(fork_time_ms, INT64),
	SESSION(speculate, FLAG),
	SESSION(saved_dir, TEXT),
	SESSION(saved_owner, TEXT),
	SESSION(saved_key, TEXT),
	SESSION(saved_notes, TEXT),
	SESSION(durable, TEXT),
	SESSION(saved_compress, FLAG),
	SESSION(saved_unsynced, FLAG),
	SESSION(saved_points, FLAG),
	SESSION(resume, TEXT),
	SESSION(saved_host, TEXT),
	SESSION(saved_url, TEXT),
	SESSION(saved_lease_ms, INT64),
	SESSION(call_results, FLAG),
	SESSION(cpu_quota, INT64),
	SESSION(pids_limit, INT64),
	SESSION(zygote_owner, TEXT),
	SESSION(trusted, TEXTS),
	SESSION(network, TEXT),
	SESSION(disk_limit, INT64),
	SESSION(workspace_path, TEXT),
	SESSION(tables, FLAG),
	SESSION(notebook, FLAG),
	SESSION(record, TEXT),
	SESSION(replay, TEXT),
	SESSION(saved_form, TEXT),
	SESSION(changes, FLAG),
	SESSION(saved_images, FLAG),
	{ NULL, 0, 0 },
};

#define SPACE(member, kind) FIELD(cell_space_options, member, kind)
const struct cell__json_field cell__json_space_fields[] = {
	SPACE(storage, TEXT),
	SPACE(workspace_id, TEXT),
	SPACE(tools_dir, TEXT),
	SPACE(cwd, TEXT),
	SPACE(allow_runtime_deps, FLAG),
	SPACE(python, TEXT),
	SPACE(venv_dir, TEXT),
	SPACE(cache_dir, TEXT),
	SPACE(oauth_dir, TEXT),
	SPACE(index_url, TEXT),
	SPACE(wheel_dir, TEXT),
	SPACE(python_version, TEXT),
	SPACE(cache_venv, FLAG),
	SPACE(cleanup_venv_on_close, FLAG),
	SPACE(sync_deps_on_start, FLAG),
	SPACE(installer_env, PAIRS),
	SPACE(path, TEXT),
	SPACE(install_timeout_ms, INT64),
	SPACE(embeddings_url, TEXT),
	SPACE(embeddings_model, TEXT),
	SPACE(embeddings_key, TEXT),
	SPACE(tools_from_storage, FLAG),
	SPACE(confined, FLAG),
	{ NULL, 0, 0 },
};

#define CONTAINER(member, kind) FIELD(cell_container_options, member, kind)
const struct cell__json_field cell__json_container_fields[] = {
	CONTAINER(engine, TEXT),
	CONTAINER(image, TEXT),
	CONTAINER(context, TEXT),
	CONTAINER(base_image, TEXT),
	CONTAINER(name, TEXT),
	CONTAINER(user, TEXT),
	CONTAINER(tools, TEXT),
	CONTAINER(storage, TEXT),
	CONTAINER(auth_token, TEXT),
	CONTAINER(auth_disabled, FLAG),
	CONTAINER(session_isolation, FLAG),
	CONTAINER(network_disabled, FLAG),
	CONTAINER(no_runtime_deps, FLAG),
	CONTAINER(memory_limit, INT64),
	CONTAINER(cpu_quota, INT64),
	CONTAINER(pids_limit, INT64),
	CONTAINER(startup_timeout_ms, INT64),
	CONTAINER(deps, TEXTS),
	CONTAINER(sync_deps, FLAG),
	CONTAINER(index_url, TEXT),
	CONTAINER(wheel_dir, TEXT),
	CONTAINER(install_timeout_ms, INT64),
	{ NULL, 0, 0 },
};

#define KUBERNETES(member, kind) FIELD(cell_kubernetes_options, member, kind)
const struct cell__json_field cell__json_kubernetes_fields[] = {
	KUBERNETES(api, TEXT),
	KUBERNETES(token_file, TEXT),
	KUBERNETES(ca_file, TEXT),
	KUBERNETES(kubeconfig, TEXT),
	KUBERNETES(context, TEXT),
	KUBERNETES(in_namespace, TEXT),
	KUBERNETES(pool, TEXT),
	KUBERNETES(warm_pool, TEXT),
	KUBERNETES(pool_key_file, TEXT),
	KUBERNETES(runtime_class, TEXT),
	KUBERNETES(port, INT),
	KUBERNETES(session_isolation, FLAG),
	KUBERNETES(startup_timeout_ms, INT64),
	{ NULL, 0, 0 },
};

#define AUDIT(member, kind) FIELD(cell_audit_options, member, kind)
const struct cell__json_field cell__json_audit_fields[] = {
	AUDIT(path, TEXT),     AUDIT(max_bytes, INT64), AUDIT(keep, INT),         AUDIT(sync, OTHER),
	AUDIT(sync_ms, INT64), AUDIT(redact, TEXTS),    AUDIT(fail_closed, FLAG), { NULL, 0, 0 },
};

#define ANSWER(member, kind) FIELD(cell_approval_answer, member, kind)
const struct cell__json_field cell__json_answer_fields[] = {
	ANSWER(accept, FLAG), ANSWER(reason, TEXT), ANSWER(always, FLAG), ANSWER(dismiss, FLAG), ANSWER(args, OTHER), { NULL, 0, 0 },
};

void cell__json_memory_finish(struct cell__json_memory *memory)
{
	for (size_t i = 0; i < memory->count; i++)
		free(memory->list[i]);
	free(memory->list);
	*memory = (struct cell__json_memory){ 0 };
}

/* NULL: out of memory. */
static void *allocate(struct cell__json_memory *memory, size_t count, size_t size)
{
	void **longer = cell__realloc(memory->list, (memory->count + 1) * sizeof *longer);
	if (!longer)
		return NULL;
	memory->list = longer;
	void *made = cell__alloc(count, size);
	if (made)
		memory->list[memory->count++] = made;
	return made;
}

static const struct cell__json_field *find(const struct cell__json_field *fields, const char *name)
{
	for (; fields->name; fields++)
		if (strcmp(fields->name, name) == 0)
			return fields;
	return NULL;
}

static int refuse_unknown(const char *what, const char *name, const struct cell__json_field *fields, struct cell_error *err)
{
	const char *words[MAX_FIELDS + 1] = { NULL };
	for (size_t i = 0; i < MAX_FIELDS && fields[i].name; i++)
		words[i] = fields[i].name;
	const char *near = cell__nearest(name, words);
	return cell_fail(err, CELL_E_INVALID, 0, "%s has no member \"%.60s\"%s%s%s", what, name, near ? "; did you mean \"" : "",
			 near ? near : "", near ? "\"?" : "");
}

static int refuse_type(const char *what, const char *name, const char *expected, struct cell_error *err)
{
	return cell_fail(err, CELL_E_INVALID, 0, "\"%.60s\" of %s must be %s", name, what, expected);
}

/* A C string cannot hold a NUL. */
static const char *text_of(const json_t *value)
{
	const char *text = json_string_value(value);
	return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static int read_texts(const json_t *value, const struct cell__json_field *field, const char *what, void *ret,
		      struct cell__json_memory *memory, struct cell_error *err)
{
	if (!json_is_array(value))
		return refuse_type(what, field->name, "an array of strings", err);
	size_t count = json_array_size(value);
	const char **list = allocate(memory, count + 1, sizeof *list);
	if (!list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (size_t i = 0; i < count; i++) {
		list[i] = text_of(json_array_get(value, i));
		if (!list[i])
			return refuse_type(what, field->name, "an array of strings without NUL characters", err);
	}
	memcpy(ret, &list, sizeof list);
	return 0;
}

static int read_pairs(json_t *value, const struct cell__json_field *field, const char *what, void *ret, struct cell__json_memory *memory,
		      struct cell_error *err)
{
	if (!json_is_object(value))
		return refuse_type(what, field->name, "an object of strings", err);
	const char **list = allocate(memory, json_object_size(value) + 1, sizeof *list);
	const char *name;
	json_t *each;
	size_t i = 0;
	if (!list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_object_foreach(value, name, each) {
		const char *text = text_of(each);
		if (!text || !*name || strchr(name, '='))
			return refuse_type(what, field->name, "an object of strings without NUL characters, with names without \"=\"", err);
		size_t size = strlen(name) + strlen(text) + 2;
		char *pair = allocate(memory, size, 1);
		if (!pair)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		snprintf(pair, size, "%s=%s", name, text);
		list[i++] = pair;
	}
	memcpy(ret, &list, sizeof list);
	return 0;
}

static int read_field(json_t *value, const struct cell__json_field *field, const char *what, char *ret, struct cell__json_memory *memory,
		      struct cell_error *err)
{
	void *member = ret + field->offset;
	json_int_t number = json_integer_value(value);
	switch (field->kind) {
	case CELL__JSON_TEXT:
		if (!text_of(value))
			return refuse_type(what, field->name, "a string without NUL characters", err);
		*(const char **)member = text_of(value);
		return 0;
	case CELL__JSON_INT:
		if (!json_is_integer(value) || number < INT_MIN || number > INT_MAX)
			return refuse_type(what, field->name, "an integer of at most 32 bits", err);
		*(int *)member = (int)number;
		return 0;
	case CELL__JSON_INT64:
		if (!json_is_integer(value))
			return refuse_type(what, field->name, "an integer", err);
		*(int64_t *)member = number;
		return 0;
	case CELL__JSON_FLAG:
		if (!json_is_boolean(value))
			return refuse_type(what, field->name, "true or false", err);
		*(int *)member = json_is_true(value);
		return 0;
	case CELL__JSON_TEXTS:
		return read_texts(value, field, what, member, memory, err);
	case CELL__JSON_PAIRS:
		return read_pairs(value, field, what, member, memory, err);
	case CELL__JSON_OTHER:
		return 0;
	}
	return 0;
}

int cell__json_read(const json_t *object, const char *what, const struct cell__json_field *fields, void *ret,
		    struct cell__json_memory *memory, struct cell_error *err)
{
	const char *name;
	json_t *value;
	if (!json_is_object(object))
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be a JSON object", what);
	json_object_foreach((json_t *)object, name, value) {
		const struct cell__json_field *field = find(fields, name);
		if (!field)
			return refuse_unknown(what, name, fields, err);
		if (field->kind != CELL__JSON_OTHER && !json_is_null(value) && read_field(value, field, what, ret, memory, err) < 0)
			return -1;
	}
	return 0;
}
