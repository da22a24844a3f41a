#ifndef CELL_SESSION_AUDIT_H
#define CELL_SESSION_AUDIT_H
#include <jansson.h>
#include "core/core.h"
struct cell_audit;
struct cell__audit_record { const char *session_id, *cell_hash, *request_id, *kind, *tool, *callable, *adapter, *executor; const json_t *args; const char *decision, *who; double duration_ms; const char *outcome, *error_code, *error_message; };
int cell__audit_write(struct cell_audit *a, const struct cell__audit_record *r, void (*written)(void *arg, int rc), void *arg, struct cell_error *err);
#endif
