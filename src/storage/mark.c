#include "storage/mark.h"

bool cell__mark_is_on(const json_t *source)
{
	return json_is_string(source) && cell__workflow_is_marked(json_string_value(source), json_string_length(source));
}

int cell__mark_hide(json_t *workflow, struct cell_error *err)
{
	const json_t *source = json_object_get(workflow, "source");
	if (!cell__mark_is_on(source))
		return 0;
	json_t *rest = json_stringn(json_string_value(source) + CELL__MARK_BYTES, json_string_length(source) - CELL__MARK_BYTES);
	return json_object_set_new(workflow, "source", rest) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a workflow") : 0;
}
