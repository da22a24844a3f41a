/*
 * The ZeroMQ sockets to one Jupyter kernel: shell and control for requests, iopub for its broadcasts, stdin for
 * its questions.  Belongs to the loop's thread.
 *
 * The kernel is hostile: a message that no honest kernel would send ends in broken(), once, and nothing more is read.  Callbacks may
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
/* The session id in the header of all our messages: messages with another parent session answer other clients. */
const char *cell__jupyter_channels_session(const struct cell__jupyter_channels *channels);
/* ret_id (CELL_JUPYTER_ID_BYTES) may be NULL. */
int cell__jupyter_channels_send(struct cell__jupyter_channels *channels, int channel, const char *type, const char *content,
				size_t content_size, const char *metadata, char *ret_id, struct cell_error *err);
void cell__jupyter_channels_pause(struct cell__jupyter_channels *channels, bool paused);
/* Delivers all messages that have arrived. */
void cell__jupyter_channels_drain(struct cell__jupyter_channels *channels);
/* Memory is freed when the loop has closed the handles.  NULL is allowed. */
void cell__jupyter_channels_close(struct cell__jupyter_channels *channels);

#endif
