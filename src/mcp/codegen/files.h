/*
 * Puts a generated package into its folder, whole or not at all.
 *
 * Only files of ours are replaced or removed: those that begin with CELL_GEN_MARK.  What else lies in the package's
 * folder stays there.  Nothing is followed out of the folder, and a folder that was not made for this server is refused.
 * The package can be made again at any time, so nothing is fsynced.  Any thread; blocks.
 */
#ifndef CELL_MCP_CODEGEN_FILES_H
#define CELL_MCP_CODEGEN_FILES_H

#include "base/base.h"
#include "mcp/codegen/gen.h"

/*
 * Makes out_dir when it is missing and <out_dir>/<package>, or replaces that.  When it fails the old package is as it was,
 * unless the message says otherwise.  CELL_E_EXISTS: something is in the way that is not ours.
 */
int cell__gen_write(const struct cell__gen_package *package, const char *out_dir, struct cell_error *err);

#endif
