/* Shared by the files of the front end: http.c, admission.c, answers.c. */
#ifndef CELL_SERVER_HTTP_H
#define CELL_SERVER_HTTP_H

#include "server/server.h"

/* ---- http.c ---- */

const struct sockaddr *cell__http_address(struct MHD_Connection *connection);
struct cell__connection *cell__http_connection(struct MHD_Connection *connection);

/* ---- admission.c ---- */

/* Everything that can be decided before the body.  False: it is answered, or its state is CELL_REQUEST_ASKING. */
bool cell__admit_head(struct cell__request *request, const char *method, const char *path, const char *version);
/* The part of it that depends on the client's token, for a request that has waited for an answer about that. */
bool cell__admit_client(struct cell__request *request);

/* ---- answers.c ---- */

struct MHD_Response *cell__http_error(int code, const char *words);
int64_t cell__http_max_body(const struct cell__request *request);
/* Answers at once, while the body is still being sent; then cell__http_discard() takes the rest of it. */
void cell__http_refuse(struct cell__request *request, unsigned status, const char *type, const char *body);
void cell__http_refuse_body(struct cell__request *request, unsigned status, int code, const char *words);
void cell__http_refuse_large(struct cell__request *request);
/* The end of the body, or of our patience, ends the connection. */
enum MHD_Result cell__http_discard(struct cell__request *request, size_t *data_size);

#endif
