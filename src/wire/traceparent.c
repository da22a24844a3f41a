#include "wire/traceparent.h"

#include <stdio.h>
#include <string.h>

#define HEX "0123456789abcdef"
#define AT_TRACE 3
#define AT_SPAN (AT_TRACE + CELL_TRACE_DIGITS + 1)
#define AT_FLAGS (AT_SPAN + CELL_SPAN_DIGITS + 1)
#define LENGTH (AT_FLAGS + 2)

/* So many digits, then this character; zeros alone are not an id. */
static bool is_id(const char *text, size_t digits, char after)
{
	return strspn(text, HEX) == digits && text[digits] == after && strspn(text, "0") != digits;
}

bool cell__traceparent_read(const char *text, struct cell__traceparent *ret_parent)
{
	size_t size = text ? strlen(text) : 0;

	if (size < LENGTH || strspn(text, HEX) != 2 || text[2] != '-' || !strncmp(text, "ff", 2))
		return false;
	if (!is_id(text + AT_TRACE, CELL_TRACE_DIGITS, '-') || !is_id(text + AT_SPAN, CELL_SPAN_DIGITS, '-') ||
	    strspn(text + AT_FLAGS, HEX) != 2)
		return false;
	if (size != LENGTH && (!strncmp(text, "00", 2) || text[LENGTH] != '-'))
		return false;
	memcpy(ret_parent->trace, text + AT_TRACE, CELL_TRACE_DIGITS);
	ret_parent->trace[CELL_TRACE_DIGITS] = '\0';
	memcpy(ret_parent->span, text + AT_SPAN, CELL_SPAN_DIGITS);
	ret_parent->span[CELL_SPAN_DIGITS] = '\0';
	ret_parent->sampled = strchr("13579bdf", text[AT_FLAGS + 1]) != NULL;
	return true;
}

void cell__traceparent_write(const struct cell__traceparent *parent, char ret_text[static CELL_TRACEPARENT_SIZE])
{
	snprintf(ret_text, CELL_TRACEPARENT_SIZE, "00-%s-%s-0%d", parent->trace, parent->span, parent->sampled);
}
