/* The console's files, which are built from console/ and put into the library (scripts/embed-console.py). */
#ifndef CELL_SERVER_CONSOLE_H
#define CELL_SERVER_CONSOLE_H

#include <stddef.h>

struct cell__console_file {
	const char *path; /* below /console/; "": the page itself */
	const char *type;
	const char *etag; /* with its quotes */
	const unsigned char *bytes; /* by gzip */
	size_t size;
};
/* Ends with one without a path; a build without the console has no others. */
extern const struct cell__console_file cell__console_files[];

#endif
