/* The home directory of this user. */
#ifndef CELL_BASE_HOME_H
#define CELL_BASE_HOME_H

/* The home directory of this user as the system knows it (not $HOME); "/" when it knows none. */
const char *cell__home_dir(void);

#endif
