#include "loop/door.h"

struct cell__door {
	pthread_mutex_t lock; /* guards all below */
	struct cell__loop *loop; /* NULL: closed */
	size_t refs;
};

struct cell__door *cell__door_create(struct cell__loop *loop)
{
	struct cell__door *door = cell__alloc(1, sizeof *door);
	if (!door)
		return NULL;
	pthread_mutex_init(&door->lock, NULL);
	door->loop = loop;
	door->refs = 1;
	return door;
}

struct cell__door *cell__door_ref(struct cell__door *door)
{
	pthread_mutex_lock(&door->lock);
	door->refs++;
	pthread_mutex_unlock(&door->lock);
	return door;
}

void cell__door_unref(struct cell__door *door)
{
	pthread_mutex_lock(&door->lock);
	bool last = --door->refs == 0;
	pthread_mutex_unlock(&door->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&door->lock);
	free(door);
}

void cell__door_close(struct cell__door *door)
{
	if (!door)
		return;
	pthread_mutex_lock(&door->lock);
	door->loop = NULL;
	pthread_mutex_unlock(&door->lock);
	cell__door_unref(door);
}

bool cell__door_pass(struct cell__door *door, struct cell__task *task)
{
	pthread_mutex_lock(&door->lock);
	struct cell__loop *loop = door->loop;
	bool here = loop && cell__loop_is_current(loop);
	/* Posted under the lock: closing waits for it, and a loop that ends runs what was posted before. */
	if (loop && !here)
		cell__loop_post(loop, task);
	pthread_mutex_unlock(&door->lock);
	if (here)
		task->fn(task);
	return loop != NULL;
}
