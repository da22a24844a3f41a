/*
 * Prints the table of operations, and the texts of wire/call_text.h, as JSON for scripts/operations.py. A program of the build, never
 * installed.
 */
#include <stdio.h>

#include "calls/table.h"
#include "wire/call_text.h"

static json_t *principals(unsigned who)
{
	json_t *list = json_array();
	for (struct cell__principal one = { .kind = CELL__PRINCIPAL_HOST }; one.kind <= CELL__PRINCIPAL_MCP; one.kind++)
		if (who & (1u << one.kind))
			json_array_append_new(list, json_string(cell__principal_word(&one)));
	return list;
}

int main(void)
{
	json_t *all = json_array();
	for (size_t i = 0; i < CELL__OPS; i++) {
		const struct cell__operation *operation = &cell__operations[i];
		json_t *row = json_pack("{s:s, s:s, s:s?, s:s, s:o, s:o, s:o}", "method", operation->method, "about", operation->about,
					"kind", cell__gate_kind_word(operation->kind), "shown", cell__operation_shown(operation), "who",
					principals(operation->who), "args", json_loads(operation->args, JSON_REJECT_DUPLICATES, NULL),
					"result", json_loads(operation->result, JSON_REJECT_DUPLICATES, NULL));
		if (!row || json_array_append_new(all, row) < 0) {
			fprintf(stderr, "%s: the schemas are not JSON\n", operation->method);
			json_decref(all);
			return 1;
		}
	}
	all = json_pack("{s:o, s:{s:s, s:s, s:s}}", "operations", all, "call_text", "HEAD", CELL_CALL_TEXT_HEAD, "MIDDLE",
			CELL_CALL_TEXT_MIDDLE, "TAIL", CELL_CALL_TEXT_TAIL);
	int status = !all || json_dumpf(all, stdout, JSON_INDENT(1)) < 0 || fflush(stdout) != 0;
	json_decref(all);
	return status;
}
