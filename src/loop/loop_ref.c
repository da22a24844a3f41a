#include "loop/loop_ref.h"

struct cell__loop_ref {
	pthread_mutex_t lock;    /* guards all below */
	struct cell__loop *loop; /* NULL: closed */
	size_t refs, bytes;
};

struct cell__loop_ref *cell__loop_ref_create(struct cell__loop *loop)
{
	struct cell__loop_ref *ref = cell__alloc(1, sizeof *ref);
	if (!ref)
		return NULL;
	pthread_mutex_init(&ref->lock, NULL);
	ref->loop = loop;
	ref->refs = 1;
	return ref;
}

bool cell__loop_ref_try_ref(struct cell__loop_ref *ref, size_t bytes, size_t max_refs, size_t max_bytes)
{
	pthread_mutex_lock(&ref->lock);
	bool room = ref->refs <= max_refs && ref->bytes <= max_bytes && bytes <= max_bytes - ref->bytes;
	if (room) {
		ref->refs++;
		ref->bytes += bytes;
	}
	pthread_mutex_unlock(&ref->lock);
	return room;
}

struct cell__loop_ref *cell__loop_ref_ref(struct cell__loop_ref *ref)
{
	(void)cell__loop_ref_try_ref(ref, 0, SIZE_MAX, SIZE_MAX);
	return ref;
}

void cell__loop_ref_unref(struct cell__loop_ref *ref, size_t bytes)
{
	pthread_mutex_lock(&ref->lock);
	bool last = --ref->refs == 0;
	ref->bytes -= bytes;
	pthread_mutex_unlock(&ref->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&ref->lock);
	free(ref);
}

void cell__loop_ref_close(struct cell__loop_ref *ref)
{
	if (!ref)
		return;
	pthread_mutex_lock(&ref->lock);
	ref->loop = NULL;
	pthread_mutex_unlock(&ref->lock);
	cell__loop_ref_unref(ref, 0);
}

/* ---- replies ---- */

static void handle_posted(struct cell__task *task)
{
	struct cell__reply *reply = (struct cell__reply *)((char *)task - offsetof(struct cell__reply, task));
	reply->handle(reply);
}

void cell__reply_send(struct cell__reply *reply, enum cell__reply_kind kind, const char *bytes, size_t size)
{
	reply->kind = kind;
	if (kind != CELL__REPLY_NEXT) {
		int rc = kind == CELL__REPLY_JSON ? cell__buf_add(&reply->bytes, bytes, size)
						  : cell__buf_add_utf8(&reply->bytes, bytes, size);
		/* The empty text too has memory behind it. */
		if (rc < 0 || cell__buf_add(&reply->bytes, "", 0) < 0)
			reply->kind = CELL__REPLY_NO_MEMORY;
	}
	reply->task.fn = handle_posted;
	/* Once it is posted, the reply and its reference may have been freed. */
	struct cell__loop_ref *ref = cell__loop_ref_ref(reply->ref);
	pthread_mutex_lock(&ref->lock);
	struct cell__loop *loop = ref->loop;
	bool here = loop && cell__loop_is_current(loop);
	/* Posted under the lock: closing waits for it, and a loop that ends still runs tasks posted before. */
	if (loop && !here)
		cell__loop_post(loop, &reply->task);
	pthread_mutex_unlock(&ref->lock);
	if (here)
		reply->handle(reply);
	else if (!loop)
		reply->drop(reply);
	cell__loop_ref_unref(ref, 0);
}
