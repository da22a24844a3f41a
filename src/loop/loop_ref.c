#include "loop/loop_ref.h"

struct cell__loop_ref {
	pthread_mutex_t lock; /* guards all below */
	struct cell__loop *loop; /* NULL: closed */
	size_t refs;
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

struct cell__loop_ref *cell__loop_ref_ref(struct cell__loop_ref *ref)
{
	pthread_mutex_lock(&ref->lock);
	ref->refs++;
	pthread_mutex_unlock(&ref->lock);
	return ref;
}

void cell__loop_ref_unref(struct cell__loop_ref *ref)
{
	pthread_mutex_lock(&ref->lock);
	bool last = --ref->refs == 0;
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
	cell__loop_ref_unref(ref);
}

bool cell__loop_ref_post(struct cell__loop_ref *ref, struct cell__task *task)
{
	pthread_mutex_lock(&ref->lock);
	struct cell__loop *loop = ref->loop;
	bool here = loop && cell__loop_is_current(loop);
	/* Posted under the lock: closing waits for it, and a loop that ends runs what was posted before. */
	if (loop && !here)
		cell__loop_post(loop, task);
	pthread_mutex_unlock(&ref->lock);
	if (here)
		task->fn(task);
	return loop != NULL;
}
