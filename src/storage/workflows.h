/* Shared by the two files about workflows. */
#ifndef CELL_STORAGE_WORKFLOWS_H
#define CELL_STORAGE_WORKFLOWS_H

#include "storage/file.h"

#define CELL__WORKFLOWS_FOLDER "workflows"
#define CELL__SKILLS_FOLDER "skills"
#define CELL__WORKFLOWS_INDEX ".workflows.json"
#define CELL__WORKFLOW_FILE_SIZE (CELL__STORE_WORKFLOW_NAME_BYTES + 4)

/* "<name>.py" */
void cell__workflow_file(const char *name, char out[static CELL__WORKFLOW_FILE_SIZE]);
/* Brings the search index up to date by the folders; workflow_index.c. */
int cell__workflow_refresh_files(struct cell__store *store, struct cell_error *err);

#endif
