/* The home directory of this user. */
#ifndef CELL_BASE_HOME_H
#define CELL_BASE_HOME_H

/* The home directory of this user from the system's database (not $HOME); "/" if it has no entry. */
const char *cell__home_dir(void);

#endif
