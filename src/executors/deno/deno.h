/* The `deno` executor: versions, and paths shared with the code that prepares packages for it. */
#ifndef CELL_EXECUTORS_DENO_H
#define CELL_EXECUTORS_DENO_H

#include "executors/executor.h"

#define CELL_DENO_VERSION "2.9.6"      /* as deno/package.json has them */
#define CELL_PYODIDE_VERSION "314.0.7"
#define CELL_PYODIDE_PYTHON "3.14"

/* A folder of wheels: [[name, size, SHA-256 in hex], ...] is in this file of it. */
#define CELL_WHEELS_MANIFEST "manifest.json"
#define CELL_WHEELS_BYTES (60u * 1024u * 1024u) /* of one session; below what a frame carries */

#endif
