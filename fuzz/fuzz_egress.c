/* sandbox/egress: what a sandbox sends to the proxy.  A wish is complete and lies within the bytes. */
#include <string.h>

#include "fuzz.h"
#include "egress/egress.h"

static void check(const struct cell__egress_wish *wish, size_t size)
{
	size_t n = strnlen(wish->host, sizeof wish->host);
	MUST(n > 0 && n < sizeof wish->host && wish->port > 0 && wish->port <= 65535 && wish->used <= size);
	MUST(!strpbrk(wish->host, " \r\n/@"));
	if (wish->plain)
		MUST(wish->path <= wish->path_end && wish->path_end <= size && wish->method_size < wish->path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = fuzz_copy(data, size);
	struct cell__egress_wish wish = { 0 };
	if (cell__egress_parse_http((const char *)bytes, size, &wish) > 0)
		check(&wish, size);
	if (cell__egress_parse_socks(bytes, size, &wish) > 0)
		check(&wish, size);
	free(bytes);
	return 0;
}
