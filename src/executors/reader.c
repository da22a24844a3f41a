#include "executors/reader.h"

bool cell__reader_wants(const struct cell_frame *frame)
{
	return (size_t)frame->json_size + frame->raw_size > CELL_LIMIT_LARGE_BYTES &&
	       (frame->type == CELL_FRAME_CALL || frame->type == CELL_FRAME_RESULT || frame->type == CELL_FRAME_DISPLAY);
}

/* On a thread of the pool. */
static void do_read(uv_work_t *work)
{
	struct cell__reader *reader = work->data;
	cell__read_frame(&reader->frame, &reader->read);
	uv_sem_post(&reader->done);
}

static void handle_over(uv_work_t *work, int status)
{
	(void)status; /* cancelled: it has been taken */
	struct cell__reader *reader = work->data;
	if (!reader->taken) {
		reader->taken = true;
		reader->ready(reader);
	}
	cell__read_finish(&reader->read);
	uv_sem_destroy(&reader->done);
	reader->at_work = false;
	reader->over(reader);
}

int cell__reader_start(struct cell__reader *reader, struct cell__loop *loop, const struct cell_frame *frame)
{
	if (uv_sem_init(&reader->done, 0) < 0)
		return -1;
	reader->work.data = reader;
	reader->frame = *frame;
	reader->taken = false;
	if (uv_queue_work(cell__loop_uv(loop), &reader->work, do_read, handle_over) < 0) {
		uv_sem_destroy(&reader->done);
		return -1;
	}
	reader->at_work = true;
	return 0;
}

bool cell__reader_await(struct cell__reader *reader)
{
	if (!reader->at_work || reader->taken)
		return false;
	if (uv_cancel((uv_req_t *)&reader->work) == 0)
		cell__read_frame(&reader->frame, &reader->read);
	else
		uv_sem_wait(&reader->done);
	reader->taken = true;
	return true;
}
