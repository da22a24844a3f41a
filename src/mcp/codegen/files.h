/*
 * Puts a generated package into its folder, completely or not at all.
 *
 * Only generated files, which begin with CELL_GEN_MARK, are replaced or removed. Other files in the package's folder stay. No link out of
 * the folder is followed, and a folder that was made for another server is refused. The package can be generated again at any time, so
 * nothing is fsynced. Any thread; blocks.
 */
#ifndef CELL_MCP_CODEGEN_FILES_H
#define CELL_MCP_CODEGEN_FILES_H

#include "base/base.h"
#include "mcp/codegen/gen.h"

/*
 * Makes out_dir if it is missing and makes or replaces <out_dir>/<package>. After a failure the old package is unchanged, unless the
 * message says otherwise. CELL_E_EXISTS: a file that we did not generate is in the way.
 */
int cell__gen_write(const struct cell__gen_package *package, const char *out_dir, struct cell_error *err);

#endif
