/*
 * Spans and metrics to a receiver of OpenTelemetry, by OTLP/HTTP as JSON.
 *
 *     loop: cell__otlp_add() ──▶ queue of at most CELL_OTLP_QUEUE_BYTES ──▶ a thread, which posts what has gathered every second
 *
 * The loop's thread only appends.  A queue that is full, or a receiver that does not answer, costs spans, which are counted.
 */
#ifndef CELL_SERVER_OTLP_H
#define CELL_SERVER_OTLP_H

#include <stdint.h>

#include "base/base.h"

#define CELL_OTLP_QUEUE_BYTES (4u << 20)

struct cell__otlp;
/* endpoint: http://127.0.0.1:4318; headers: "name=value,...", or NULL.  Starts the thread. */
int cell__otlp_create(const char *endpoint, const char *headers, struct cell__otlp **ret_otlp, struct cell_error *err);
/* One span, a JSON object.  Does not wait. */
void cell__otlp_add(struct cell__otlp *otlp, const char *span, size_t size);
/* Prometheus' text, sent as metrics; takes it over.  Does not wait. */
void cell__otlp_set_metrics(struct cell__otlp *otlp, char *text);
/* Sends what is left, for at most two seconds.  NULL is allowed. */
void cell__otlp_destroy(struct cell__otlp *otlp);
uint64_t cell__otlp_lost(struct cell__otlp *otlp);
/* Prometheus' text as the "metrics" of OTLP, at this time: values without labels.  Pure. */
int cell__otlp_metrics(const char *text, int64_t now_ns, struct cell__buf *out);

#endif
