#include "calls/principal.h"

#include <stdio.h>
#include <string.h>

const struct cell__principal cell__principal_host = { .kind = CELL__PRINCIPAL_HOST, .trusted = true };

void cell__principal_init(struct cell__principal *principal, enum cell__principal_kind kind, bool trusted,
			  const struct cell__host_limits *limits, const char *name)
{
	*principal = (struct cell__principal){ .kind = kind, .trusted = trusted, .limits = *limits };
	snprintf(principal->name, sizeof principal->name, "%s", name ? name : "");
}

bool cell__principal_is_trusted(const struct cell__principal *principal)
{
	return principal && principal->kind && principal->trusted;
}

static const char *const words[] = { [CELL__PRINCIPAL_NONE] = "nobody",
				     [CELL__PRINCIPAL_HOST] = "host",
				     [CELL__PRINCIPAL_CODE] = "code",
				     [CELL__PRINCIPAL_HTTP] = "http",
				     [CELL__PRINCIPAL_MCP] = "mcp" };

const char *cell__principal_word(const struct cell__principal *principal)
{
	return words[principal ? principal->kind : CELL__PRINCIPAL_NONE];
}

enum cell__principal_kind cell__principal_kind_of(const char *word)
{
	enum cell__principal_kind kind = CELL__PRINCIPAL_MCP;
	while (kind != CELL__PRINCIPAL_NONE && strcmp(words[kind], word) != 0)
		kind--;
	return kind;
}
