/* The audit log as the public API has it: opened and closed from any thread. */
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "egress/egress.h"
#include "gate/audit.h"
#include "space/engine.h"

struct cell_audit {
	struct cell_engine *engine;
	struct cell__audit_log *audit;
};

struct opening {
	struct cell_audit *audit;
	struct cell__audit_log_options opts;
	struct cell_error err;
	int rc;
};

static void do_open(void *arg)
{
	struct opening *opening = arg;
	opening->rc = cell__audit_log_open(&opening->opts, &opening->audit->audit, &opening->err);
}

int cell_audit_open(struct cell_engine *engine, const struct cell_audit_options *opts, struct cell_audit **ret_audit,
		    struct cell_error *err)
{
	if (cell__require(err, engine, opts, ret_audit) < 0)
		return -1;
	struct cell_audit_options all = CELL_AUDIT_OPTIONS_INIT;
	if (cell__sized_read(&all, sizeof all, opts, "cell_audit_options", err) < 0)
		return -1;
	if (!all.path || !*all.path)
		return cell_fail(err, CELL_E_INVALID, 0, "an audit log needs a path");
	if (cell__engine_may_wait(engine, "cell_audit_open", err) < 0)
		return -1;
	struct cell_audit *audit = cell__alloc(1, sizeof *audit);
	if (!audit)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	audit->engine = engine;
	struct opening opening = { .audit = audit, .opts = CELL__AUDIT_OPTIONS_INIT };
	opening.opts.loop = engine->loop;
	opening.opts.path = all.path;
	opening.opts.max_bytes = all.max_bytes;
	opening.opts.keep = all.keep;
	opening.opts.sync = (enum cell__audit_log_sync)all.sync;
	opening.opts.sync_ms = all.sync_ms;
	opening.opts.redact = all.redact;
	opening.opts.fail_closed = all.fail_closed != 0;
	opening.opts.log = engine->host.log;
	opening.opts.log_arg = engine->host.log_arg;
	cell__loop_call(engine->loop, do_open, &opening);
	if (opening.rc < 0) {
		free(audit);
		if (err)
			*err = opening.err;
		return -1;
	}
	*ret_audit = audit;
	return 0;
}

static void start_close(void *audit, void (*done)(void *arg), void *arg)
{
	cell__audit_log_close(audit, done, arg);
}

void cell_audit_close(struct cell_audit *audit)
{
	if (!audit)
		return;
	cell__engine_must_wait(audit->engine, "cell_audit_close");
	cell__engine_wait(audit->engine, start_close, audit->audit);
	free(audit);
}

struct cell__audit_log *cell__audit_of(struct cell_audit *audit)
{
	return audit->audit;
}

int cell__audit_connection(struct cell__audit_log *audit, const char *session_id, const char *cell_hash, const char *executor,
			   const struct cell__egress_event *event, struct cell_error *err)
{
	if (!event->refusal && !event->ended && cell__audit_admit(audit, err) < 0)
		return -1;
	json_t *args = json_pack("{s:s?, s:i, s:s?}", "host", event->host, "port", (int)event->port, "address", event->address);
	if (args && event->ended) {
		json_object_set_new(args, "sent", json_integer((json_int_t)event->sent));
		json_object_set_new(args, "received", json_integer((json_int_t)event->received));
	}
	char error[400];
	snprintf(error, sizeof error, "%s:%u: %s", event->host ? event->host : "?", event->port, event->refusal ? event->refusal : "");
	struct cell__audit_record record = {
		.session_id = session_id,
		.cell_hash = cell_hash && *cell_hash ? cell_hash : NULL,
		.kind = "network",
		.tool = "network",
		.callable = event->ended ? "close" : "connect",
		.adapter = event->protocol,
		.executor = executor,
		.principal = "code",
		.args = args,
		.decision = event->denied ? CELL__AUDIT_DENY : CELL__AUDIT_ALLOW,
		.by = CELL__AUDIT_BY_POLICY,
		.duration_us = event->duration_us,
		.outcome = event->refusal ? CELL__AUDIT_ERROR : CELL__AUDIT_OK,
		.code = event->denied ? CELL_OUT_REJECTED : CELL_E_IO,
		.error = event->refusal ? error : NULL,
	};
	int rc = cell__audit_write(audit, &record, NULL, NULL, err);
	json_decref(args);
	return rc;
}
