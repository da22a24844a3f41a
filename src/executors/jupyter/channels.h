/*
 * The ZeroMQ sockets to one Jupyter kernel: shell and control for requests, iopub for what it tells everybody, stdin for
 * what it asks.  Belongs to the loop's thread.
 *
 * The kernel is hostile: what no honest one would send ends in broken(), once, and nothing more is read.  Callbacks may
 * close the channels.
 */
#ifndef CELL_EXECUTORS_JUPYTER_CHANNELS_H
#define CELL_EXECUTORS_JUPYTER_CHANNELS_H

#include "executors/jupyter/spec.h"
#include "loop/loop.h"
#include "wire/jupyter.h"

struct cell__jupyter_channels;

struct cell__jupyter_events {
	/* channel: CELL_JUPYTER_SHELL, ... */
	void (*message)(void *owner, int channel, const struct cell__jupyter_message *message);
	void (*broken)(void *owner, const char *reason);
};

/* zmq: a context of libzmq's, which must outlive them. */
int cell__jupyter_channels_create(struct cell__loop *loop, void *zmq, const struct cell__jupyter_spec *spec,
				  const struct cell__jupyter_events *events, void *owner, struct cell__jupyter_channels **ret_channels,
				  struct cell_error *err);
/* The session id in the header of all that is sent: messages with another one as their parent answer somebody else. */
const char *cell__jupyter_channels_session(const struct cell__jupyter_channels *channels);
/* ret_id (CELL_JUPYTER_ID_BYTES) may be NULL. */
int cell__jupyter_channels_send(struct cell__jupyter_channels *channels, int channel, const char *type, const char *content,
				size_t content_size, const char *metadata, char *ret_id, struct cell_error *err);
void cell__jupyter_channels_pause(struct cell__jupyter_channels *channels, bool paused);
/* Hands on all that has arrived. */
void cell__jupyter_channels_drain(struct cell__jupyter_channels *channels);
/* Memory goes when the loop has let go of the handles.  NULL is fine. */
void cell__jupyter_channels_close(struct cell__jupyter_channels *channels);

#endif
