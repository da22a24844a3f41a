/* Many clients by Streamable HTTP. */
#include "mcp/server.h"

int cell_mcp_server_listen(struct cell_mcp_server *server, const struct cell_mcp_http_options *opts, struct cell_error *err)
{
	(void)server;
	(void)opts;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "this workcell was built without libmicrohttpd and cannot listen");
}
