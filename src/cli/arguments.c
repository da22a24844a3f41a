/* Arguments as people write them: K=V, by the type that the parameter has, or --args JSON. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum value_kind { VALUE_TEXT, VALUE_JSON, VALUE_LIST, VALUE_ANY };

static bool starts_with_one_of(const char *text, const char *const *starts)
{
	for (; *starts; starts++) {
		if (!strncmp(text, *starts, strlen(*starts)))
			return true;
	}
	return false;
}

static enum value_kind kind_of(const json_t *parameters, const char *name)
{
	static const char *const texts[] = { "str", NULL };
	static const char *const lists[] = { "array", "list", NULL };
	static const char *const values[] = { "int", "float", "num", "bool", "obj", "dict", NULL };
	const json_t *parameter;
	const char *type;
	size_t i;

	json_array_foreach(parameters, i, parameter) {
		if (strcmp(cell__cli_text(parameter, "name"), name))
			continue;
		type = cell__cli_text(parameter, "type");
		if (starts_with_one_of(type, texts))
			return VALUE_TEXT;
		if (starts_with_one_of(type, lists))
			return VALUE_LIST;
		if (starts_with_one_of(type, values))
			return VALUE_JSON;
		return VALUE_ANY;
	}
	return VALUE_ANY;
}

/* A value that is not JSON stays text: its receiver then reports the expected type. */
static json_t *read_value(enum value_kind kind, const char *text)
{
	json_t *value = NULL;

	if (kind == VALUE_JSON || kind == VALUE_ANY || (kind == VALUE_LIST && *text == '['))
		value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	return value ? value : json_string(text);
}

/* given: the names set by earlier K=V; another one of the same name adds to a list. */
static int set_argument(json_t *object, json_t *given, const json_t *parameters, const char *word, struct cell_error *err)
{
	const char *equals = strchr(word, '=');
	char *name = equals && equals > word ? strndup(word, (size_t)(equals - word)) : NULL;
	enum value_kind kind;
	json_t *value, *before, *list;
	int status = -1;

	if (!name)
		return cell_fail(err, CELL_E_INVALID, 0, "an argument must be K=V, not '%s'", word);
	kind = kind_of(parameters, name);
	value = read_value(kind, equals + 1);
	before = json_object_get(given, name);
	if (value && kind == VALUE_LIST && !json_is_array(value)) {
		list = before ? json_incref(before) : json_array();
		json_array_append_new(list, value);
		value = list;
	} else if (before) {
		cell_fail(err, CELL_E_INVALID, 0, "'%s' is given twice", name);
		goto out;
	}
	if (!value || json_object_set(given, name, value) < 0 || json_object_set(object, name, value) < 0)
		cell_fail(err, CELL_E_INVALID, 0, "'%s' is not UTF-8", name);
	else
		status = 0;
out:
	json_decref(value);
	free(name);
	return status;
}

int cell__cli_arguments(const char *args, const struct cell_cli_list *operands, size_t first, const json_t *parameters, json_t **ret_args,
			struct cell_error *err)
{
	json_t *object, *given;
	json_error_t bad;
	int status = 0;

	object = args ? json_loads(args, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &bad) : json_object();
	if (!json_is_object(object)) {
		json_decref(object);
		return cell_fail(err, CELL_E_INVALID, 0, "--args must be a JSON object%s%s", object ? "" : ": ", object ? "" : bad.text);
	}
	given = json_object();
	for (size_t i = first; i < operands->count && !status; i++)
		status = set_argument(object, given, parameters, operands->items[i].value, err);
	json_decref(given);
	if (status < 0) {
		json_decref(object);
		return -1;
	}
	*ret_args = object;
	return 0;
}
