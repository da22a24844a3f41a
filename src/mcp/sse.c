#include "mcp/transport.h"
int cell__mcp_sse_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport,
			struct cell_error *err)
{
	(void)spec; (void)ret_transport;
	return cell_fail(err, CELL_E_TOOL, 0, "no sse");
}
