/*
 * The parts of base that nearly every file needs, in one include.  Files that need the others include them: file.h (whole
 * files), tree.h (removing a folder), spin.h, hole.h.  base includes nothing of ours except the public header and keeps no state
 * except the counter of the tests' fault hook.
 */
#ifndef CELL_BASE_H
#define CELL_BASE_H

#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "workcell.h"

#include "base/base64.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/home.h"
#include "base/limits.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"

#endif
