#include "base/sized.h"

#include <string.h>

static size_t size_of(const void *given)
{
	size_t size;
	memcpy(&size, given, sizeof size);
	return size;
}

int cell__sized_check(const void *given, const char *name, struct cell_error *err)
{
	if (!given)
		return cell_fail(err, CELL_E_INVALID, 0, "the pointer to struct %s is NULL", name);
	size_t size = size_of(given);
	if (size < sizeof(size_t) || size > CELL_SIZED_MAX_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the size of struct %s is %zu: initialise the struct with %s_init(), which sets its size and defaults",
				 name, size, name);
	return 0;
}

int cell__sized_read(void *ret, size_t ret_bytes, const void *given, const char *name, struct cell_error *err)
{
	if (cell__sized_check(given, name, err) < 0)
		return -1;
	size_t size = size_of(given);
	const char *bytes = given;
	for (size_t i = ret_bytes; i < size; i++) {
		if (bytes[i] != 0)
			return cell_fail(err, CELL_E_INVALID, 0,
					 "struct %s sets an option that libworkcell %s does not know: the program was built for a newer "
					 "version; update the library or leave that option unset",
					 name, cell_version());
	}
	size_t known = size < ret_bytes ? size : ret_bytes;
	memcpy((char *)ret + sizeof size, bytes + sizeof size, known - sizeof size);
	return 0;
}

void cell__sized_write(void *given, const void *from, size_t from_bytes)
{
	size_t size = size_of(given), known = size < from_bytes ? size : from_bytes;
	memcpy((char *)given + sizeof size, (const char *)from + sizeof size, known - sizeof size);
	if (size > known)
		memset((char *)given + known, 0, size - known);
}
