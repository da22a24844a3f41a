/* cell_session_file_*() for a client that is not the host program: its name is in the audit log.  Any thread but the loop's. */
#ifndef CELL_ENGINE_FILES_H
#define CELL_ENGINE_FILES_H

#include "calls/principal.h"
#include "workcell.h"

int cell__file_put_as(struct cell_session *session, const struct cell__principal *principal, const char *path,
		      const struct cell_file_options *opts, int fd, int64_t *ret_bytes, struct cell_error *err);
int cell__file_make_folder_as(struct cell_session *session, const struct cell__principal *principal, const char *path,
			      struct cell_error *err);
int cell__file_remove_as(struct cell_session *session, const struct cell__principal *principal, const char *path, int recursive,
			 struct cell_error *err);

#endif
