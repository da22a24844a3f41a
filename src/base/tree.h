/*
 * Removing a folder that code could write to, with all that is in it, whatever it made of it: any depth, folders without
 * rights, links, mounts, changes while it goes on.  Any thread; may take long.
 */
#ifndef CELL_BASE_TREE_H
#define CELL_BASE_TREE_H

/*
 * 0: `name` in dir_fd is gone, or never was.  -1 with errno: something resisted (it is another's, or a mount) and is still
 * there, with the folders that lead to it.  No link is followed, and no mount entered.
 */
int cell__tree_remove(int dir_fd, const char *name);

#endif
