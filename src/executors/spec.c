/* The message that tells a kernel about its session: the only place where options of a session become JSON (kernel.py, guest.py). */
#include <jansson.h>
#include <string.h>

#include "executors/executor.h"

static json_t *env_object(const char *const *env)
{
	json_t *object = json_object();
	for (size_t i = 0; env && env[i]; i++) {
		const char *equals = strchr(env[i], '=');
		if (!equals)
			continue;
		CELL_AUTO_FREE char *key = cell__strndup(env[i], (size_t)(equals - env[i]));
		if (key)
			json_object_set_new(object, key, json_string(equals + 1));
	}
	return object;
}

char *cell__kernel_spec_json(const struct cell__kernel_spec *spec)
{
	const struct cell__kernel_wants *wants = &spec->wants;
	json_t *limits = spec->limits_json ? json_loads(spec->limits_json, 0, NULL) : NULL;
	json_t *init = json_pack("{s:s, s:s, s:s, s:o, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:s?, s:s*, s:o*, s:s*, s:b, s:b, s:b}",
				 "session", spec->session_id, "cwd", spec->cwd, "preload", spec->preload, "env", env_object(spec->env),
				 "namespaces", spec->namespaces, "gate_shell", wants->gate_shell, "shell_escape", wants->shell_escape,
				 "restore_cwd", wants->restore_cwd, "portable", wants->portable, "undo", wants->undo, "sessions",
				 wants->sessions, "tables", wants->tables, "notebook", wants->notebook, "site", spec->site, "host_site",
				 spec->host_site, "limits", limits, "recording", spec->recording, "replay", spec->is_replay, "changes",
				 wants->changes, "saved_images", wants->saved_images);
	char *text = init ? json_dumps(init, JSON_COMPACT) : NULL;
	json_decref(init);
	return text;
}
