/* What the two files about workflows share. */
#ifndef CELL_STORE_WORKFLOWS_H
#define CELL_STORE_WORKFLOWS_H

#include "store/file.h"
#include "store/pysource.h"
#include "store/store.h"

#define CELL__WORKFLOWS_FOLDER "workflows"
#define CELL__SKILLS_FOLDER "skills"
#define CELL__WORKFLOWS_INDEX ".workflows.json"
#define CELL__WORKFLOW_FILE_SIZE (CELL__STORE_WORKFLOW_NAME_BYTES + 4)

/* "<name>.py" */
void cell__workflow_file(const char *name, char out[static CELL__WORKFLOW_FILE_SIZE]);
/* All that is told of it but path and source; entry may be NULL.  NULL: no memory. */
json_t *cell__workflow_info(const char *name, const struct cell__py_source *parsed, json_t *entry,
			    const struct stat *st);
int cell__workflow_add_path(struct cell__store *store, json_t *info, const char *folder, const char *name);
/* Puts an errno into words. */
int cell__workflow_fail_read(struct cell_error *err, const char *name, int sys);

#endif
