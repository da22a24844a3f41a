/* The one checker of arguments (schema.h), and the first step of every call. */
#include <math.h>
#include <string.h>

#include "calls/schema.h"
#include "calls/table.h"
#include "base/hole.h"

#define MAX_WHOLE 9007199254740992.0 /* 2^53: larger reals do not identify an integer */

static bool is_whole(const json_t *value)
{
	double real = json_real_value(value);
	return json_is_real(value) && real >= -MAX_WHOLE && real <= MAX_WHOLE && real == floor(real);
}

static bool has_type(const json_t *value, const char *type)
{
	if (strcmp(type, "string") == 0)
		return json_is_string(value);
	if (strcmp(type, "integer") == 0)
		return json_is_integer(value) || is_whole(value);
	if (strcmp(type, "number") == 0)
		return json_is_number(value);
	if (strcmp(type, "boolean") == 0)
		return json_is_boolean(value);
	if (strcmp(type, "array") == 0)
		return json_is_array(value);
	if (strcmp(type, "null") == 0)
		return json_is_null(value);
	return strcmp(type, "object") == 0 && json_is_object(value);
}

static bool fits(const json_t *schema, const json_t *value)
{
	const json_t *type = json_object_get(schema, "type"), *one;
	const json_t *items = json_is_array(value) ? json_object_get(schema, "items") : NULL;
	bool any = !type || (json_is_string(type) && has_type(value, json_string_value(type)));
	size_t i;
	json_array_foreach(type, i, one)
		any |= has_type(value, json_string_value(one));
	for (i = 0; any && items && i < json_array_size(value); i++)
		any = fits(items, json_array_get(value, i));
	return any;
}

static bool in_range(const json_t *schema, const json_t *value)
{
	const json_t *least = json_object_get(schema, "minimum"), *most = json_object_get(schema, "maximum");
	if (json_is_integer(value) && (!least || json_is_integer(least)) && (!most || json_is_integer(most)))
		return (!least || json_integer_value(value) >= json_integer_value(least)) &&
		       (!most || json_integer_value(value) <= json_integer_value(most));
	return (!least || json_number_value(value) >= json_number_value(least)) &&
	       (!most || json_number_value(value) <= json_number_value(most));
}

static bool is_chosen(const json_t *schema, const json_t *value)
{
	const json_t *choices = json_object_get(schema, "enum"), *choice;
	size_t i;
	json_array_foreach(choices, i, choice)
		if (json_equal(choice, value))
			return true;
	return !choices;
}

/* Strings are C strings from here on: a NUL would change their meaning. Strings that are handled with their length have x-nul. */
static bool has_nul(const json_t *schema, const json_t *value)
{
	return strlen(json_string_value(value)) != json_string_length(value) && !json_object_get(schema, "x-nul");
}

static bool is_required(const json_t *schema, const char *name)
{
	const json_t *one;
	size_t i;
	json_array_foreach(json_object_get(schema, "required"), i, one)
		if (strcmp(json_string_value(one), name) == 0)
			return true;
	return false;
}

static bool find_wrong_text(const json_t *schema, const json_t *value, enum cell__wrong *ret_wrong)
{
	if (json_string_length(value) == 0 && json_object_get(schema, "minLength"))
		*ret_wrong = CELL__WRONG_EMPTY;
	else if (has_nul(schema, value) && !is_hole("call-nul"))
		*ret_wrong = CELL__WRONG_NUL;
	else if (!is_chosen(schema, value))
		*ret_wrong = CELL__WRONG_CHOICE;
	else
		return false;
	return true;
}

/* Only for a present value. False: no problem. */
static bool find_wrong(const json_t *schema, const json_t *value, enum cell__wrong *ret_wrong)
{
	if (!fits(schema, value)) {
		*ret_wrong = CELL__WRONG_TYPE;
		return true;
	}
	if (json_is_string(value))
		return find_wrong_text(schema, value, ret_wrong);
	*ret_wrong = CELL__WRONG_RANGE;
	return json_is_number(value) && !in_range(schema, value);
}

static bool takes_integers(const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type");
	for (size_t i = 0; i < json_array_size(type); i++)
		if (strcmp(json_string_value(json_array_get(type, i)), "integer") == 0)
			return true;
	return json_is_string(type) && strcmp(json_string_value(type), "integer") == 0;
}

/* Handlers expect integers. True: out of memory. */
static bool settle(const json_t *schema, json_t *object, const char *name, const json_t *value, enum cell__wrong *ret_wrong)
{
	if (!json_is_real(value) || !takes_integers(schema) ||
	    json_object_set_new(object, name, json_integer((json_int_t)json_real_value(value))) == 0)
		return false;
	*ret_wrong = CELL__WRONG_TYPE;
	return true;
}

size_t cell__members_check(const json_t *schema, json_t *object, cell__misfit_fn fn, void *arg)
{
	json_t *properties = json_object_get(schema, "properties"), *property, *value;
	const char *name;
	size_t n = 0;
	json_object_foreach(properties, name, property) {
		value = json_object_get(object, name);
		struct cell__misfit problem = { .name = name, .schema = property, .value = value, .required = is_required(schema, name) };
		if (value ? find_wrong(property, value, &problem.wrong) || settle(property, object, name, value, &problem.wrong)
			  : problem.required) {
			n++;
			if (fn)
				fn(arg, &problem);
		}
	}
	if (!json_is_false(json_object_get(schema, "additionalProperties")))
		return n;
	json_object_foreach(object, name, value) {
		struct cell__misfit problem = { .wrong = CELL__WRONG_UNKNOWN, .name = name, .value = value };
		if (json_object_get(properties, name))
			continue;
		n++;
		if (fn)
			fn(arg, &problem);
	}
	return n;
}

int cell__schema_add_defaults(const json_t *schema, json_t *object)
{
	const char *name;
	json_t *property;
	int rc = 0;
	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		json_t *standard = json_object_get(property, "default"), *value = json_object_get(object, name);
		if (standard && (!value || json_is_null(value)))
			rc |= json_object_set(object, name, standard);
	}
	return rc;
}

static void add_range(struct cell__buf *out, const json_t *schema)
{
	const json_t *least = json_object_get(schema, "minimum"), *most = json_object_get(schema, "maximum");
	if (least && most)
		(void)cell__buf_printf(out, " from %.15g to %.15g", json_number_value(least), json_number_value(most));
	else if (least || most)
		(void)cell__buf_printf(out, " of %.15g or %s", json_number_value(least ? least : most), least ? "more" : "less");
}

void cell__schema_add_words(struct cell__buf *out, const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type"), *choices = json_object_get(schema, "enum"), *one;
	size_t i, n = 0;
	json_array_foreach(choices, i, one)
		(void)cell__buf_printf(out, "%s%s", i == 0 ? "" : i + 1 < json_array_size(choices) ? ", " : " or ", json_string_value(one));
	if (choices)
		return;
	for (i = 0; i < (json_is_array(type) ? json_array_size(type) : 1); i++) {
		const char *word = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
		if (!word || strcmp(word, "null") == 0)
			continue;
		(void)cell__buf_printf(out, "%s%s%s",
				       n                      ? " or "
				       : strchr("aio", *word) ? "an "
							      : "a ",
				       word, strcmp(word, "array") == 0 && json_object_get(schema, "items") ? " of strings" : "");
		n++;
	}
	add_range(out, schema);
}

/* ---- calls ---- */

struct words {
	const char *method;
	struct cell__buf *why;
};

static void add_problem(void *arg, const struct cell__misfit *problem)
{
	const struct words *words = arg;
	if (words->why->size > 0) /* the first one is reported */
		return;
	if (problem->wrong == CELL__WRONG_NUL) {
		(void)cell__buf_printf(words->why, "%s: '%s' must not contain NUL", words->method, problem->name);
	} else if (problem->wrong == CELL__WRONG_EMPTY) {
		(void)cell__buf_printf(words->why, "%s: '%s' must not be empty", words->method, problem->name);
	} else {
		(void)cell__buf_printf(words->why, problem->required ? "%s needs '%s', " : "%s: '%s' must be ", words->method,
				       problem->name);
		cell__schema_add_words(words->why, problem->schema);
	}
}

/* null means that a member is missing: Python programs pass None. */
static json_t *load_schema(const void *arg)
{
	json_t *schema = json_loads(((const struct cell__operation *)arg)->args, JSON_REJECT_DUPLICATES, NULL);
	if (schema && cell__schema_allow_null(schema) < 0) {
		json_decref(schema);
		return NULL;
	}
	return schema;
}

int cell__operation_check(const struct cell__operation *operation, json_t *args, struct cell__buf *why)
{
	static json_t *schemas[CELL__OPS];
	const json_t *schema = cell__schema_once(&schemas[operation->id], load_schema, operation);
	struct words words = { operation->method, why };
	if (schema)
		return cell__members_check(schema, args, add_problem, &words) == 0 ? 0 : -1;
	(void)cell__buf_add_str(why, "out of memory");
	return -1;
}

int cell__call_prepare(struct cell__call *call, const struct cell__principal *principal)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	const struct cell__operation *operation = cell__operation_find(call->method);
	call->principal = principal;
	call->operation = operation;
	if (!operation || (!cell__operation_is_open_to(operation, principal) && !is_hole("call-who")))
		(void)cell__buf_printf(&why, "there is no method \"%.100s\"", call->method);
	else if (cell__operation_check(operation, call->args, &why) == 0)
		return 0;
	call->fail(call, CELL_E_INVALID, "ValueError", why.data ? why.data : "out of memory");
	return -1;
}
