/*
 * The public look-ups in the table of error codes, and the version. In a separate file, because programs that link the library take them
 * from there.
 */
#include "workcell.h"

static const struct {
	const char *word;
	int http;
	int exit_status;
} codes[CELL_CODE_COUNT] = {
#define CELL_CODE_ROW(number, name, word, http, rpc, exit_status, py) [CELL_##name] = { word, http, exit_status },
	CELL_CODE_TABLE(CELL_CODE_ROW)
#undef CELL_CODE_ROW
};

const char *cell_code_word(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].word : "unknown";
}

int cell_code_exit_status(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].exit_status : 125;
}

int cell_code_http_status(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].http : 500;
}

const char *cell_version(void)
{
	return CELL_VERSION;
}
