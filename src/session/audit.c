#include "session/audit.h"
int cell__audit_write(struct cell_audit *a, const struct cell__audit_record *r, void (*written)(void *arg, int rc), void *arg, struct cell_error *err)
{ (void)a; (void)r; (void)err; if (written) written(arg, 0); return 0; }
