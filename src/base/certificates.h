/* The certificates that servers are checked by, for programs that carry their own libraries. */
#ifndef CELL_BASE_CERTIFICATES_H
#define CELL_BASE_CERTIFICATES_H

/*
 * The file with the system's certificates, where the libraries that we are linked with do not know it: a build that is linked statically
 * (CELL_FIND_CERTIFICATES) runs on other distributions than the one its libraries come from. NULL: use the libraries' own default.
 */
const char *cell__system_certificates(void);

/* The same with a list of files that ends with NULL. */
const char *cell__first_readable(const char *const *files);

#endif
