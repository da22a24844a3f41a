/*
 * Removes a folder that code could write to, with all its contents, whatever the code made of it: any depth, folders without
 * permissions, links, mounts, concurrent changes.  Any thread; may take long.
 */
#ifndef CELL_BASE_TREE_H
#define CELL_BASE_TREE_H

/*
 * 0: `name` in dir_fd was removed or did not exist.  -1 with errno: an entry could not be removed (another user's, or a mount) and is
 * still there, with the folders that lead to it.  No link is followed, and no mount is entered.
 */
int cell__tree_remove(int dir_fd, const char *name);

#endif
