/*
 * Whether a sandbox can mount overlayfs with its changes in a folder: that depends on the kernel (Linux 5.11 for callers without
 * privileges), on what an administrator allows, and on the folder's file system.  Found out by trying, in namespaces of their own.
 */
#ifndef CELL_SANDBOX_OVERLAY_H
#define CELL_SANDBOX_OVERLAY_H

#include <stdbool.h>

/* Tried once for each file system.  Starts a short-lived process, without a SIGCHLD.  Any thread but the loop's. */
bool cell__overlay_works(const char *folder);

#endif
