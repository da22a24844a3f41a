#define _GNU_SOURCE
#include "session/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

void cell__capped_init(struct cell__capped *capped, size_t cap)
{
	*capped = (struct cell__capped){ .cap = cap };
}

void cell__capped_finish(struct cell__capped *capped)
{
	cell__buf_finish(&capped->head);
	cell__buf_finish(&capped->tail);
}

static size_t half_of(const struct cell__capped *capped)
{
	return capped->cap / 2;
}

/* The head is full and the tail's memory is allocated: the last kept bytes become the tail's beginning. */
static void make_tail(struct cell__capped *capped)
{
	size_t half = half_of(capped);
	size_t keep = capped->head.size - half < half ? capped->head.size - half : half; /* an odd cap loses a byte */
	memcpy(capped->tail.data, capped->head.data + capped->head.size - keep, keep);
	capped->tail.size = keep;
	capped->tail_at = keep % half;
	capped->head.size = half;
	capped->head.data[half] = '\0';
}

static void add_tail(struct cell__capped *capped, const char *bytes, size_t size)
{
	size_t room = half_of(capped);
	if (size > room) {
		bytes += size - room;
		size = room;
	}
	while (size > 0) {
		size_t part = room - capped->tail_at < size ? room - capped->tail_at : size;
		memcpy(capped->tail.data + capped->tail_at, bytes, part);
		capped->tail_at = (capped->tail_at + part) % room;
		capped->tail.size = capped->tail.size + part < room ? capped->tail.size + part : room;
		bytes += part;
		size -= part;
	}
}

int cell__capped_add(struct cell__capped *capped, const char *bytes, size_t size)
{
	if (capped->total <= capped->cap && size <= capped->cap - capped->total) {
		if (cell__buf_add(&capped->head, bytes, size) < 0)
			return -1;
	} else {
		if (!capped->tail.data) {
			size_t fits = capped->cap - (size_t)capped->total;
			if (cell__buf_reserve(&capped->head, fits) < 0 || cell__buf_reserve(&capped->tail, half_of(capped)) < 0)
				return -1;
			(void)cell__buf_add(&capped->head, bytes, fits); /* reserved */
			make_tail(capped);
			capped->total += fits;
			bytes += fits;
			size -= fits;
		}
		add_tail(capped, bytes, size);
	}
	capped->total += size;
	return 0;
}

int cell__capped_join(const struct cell__capped *capped, const char *spill, uint64_t spilled, struct cell__buf *out)
{
	char where[48] = "";
	if (!capped->tail.data)
		return cell__buf_add(out, capped->head.data ? capped->head.data : "", capped->head.size);
	CELL_AUTO_BUF struct cell__buf tail = CELL_BUF_INIT;
	size_t first = capped->tail.size < half_of(capped) ? 0 : capped->tail_at;
	if (cell__buf_add(&tail, capped->tail.data + first, capped->tail.size - first) < 0 ||
	    cell__buf_add(&tail, capped->tail.data, first) < 0)
		return -1;
	/* A character that the cut goes through is left out whole. */
	size_t head_size = capped->head.size, skip = 0;
	if (capped->total > head_size + tail.size) {
		head_size -= cell__utf8_cut(capped->head.data, head_size);
		while (skip < 3 && skip < tail.size && ((unsigned char)tail.data[skip] & 0xc0) == 0x80)
			skip++;
	}
	uint64_t missing = capped->total - head_size - (tail.size - skip);
	if (cell__buf_add(out, capped->head.data, head_size) < 0)
		return -1;
	if (spill && spilled)
		snprintf(where, sizeof where, "; the first %llu are in ", (unsigned long long)spilled);
	else if (spill)
		snprintf(where, sizeof where, "; the whole output is in ");
	if (missing > 0 &&
	    cell__buf_printf(out, "\n[... %llu bytes left out%s%s ...]\n", (unsigned long long)missing, where, spill ? spill : "") < 0)
		return -1;
	return cell__buf_add(out, tail.data + skip, tail.size - skip);
}

/* ---- spill ---- */

void cell__spill_init(struct cell__spill *spill, struct cell__loop *loop, void (*progress)(void *arg), void (*finished)(void *arg),
		      void *arg)
{
	*spill = (struct cell__spill){ .loop = loop, .fd = -1, .progress = progress, .finished = finished, .arg = arg };
	spill->work.data = spill;
}

static void fail_spill(struct cell__spill *spill, int error)
{
	if (spill->error == 0)
		spill->error = error;
	cell__buf_finish(&spill->waiting);
}

void cell__spill_open(struct cell__spill *spill, const char *dir, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/workcell-%s-XXXXXX.txt", dir, name) < 0) {
		fail_spill(spill, ENOMEM);
		return;
	}
	spill->fd = mkostemps(path.data, 4, O_CLOEXEC);
	if (spill->fd < 0) {
		fail_spill(spill, errno);
		cell__buf_finish(&path);
		return;
	}
	spill->path = cell__buf_take(&path);
}

/* On the pool's thread: touches fd, writing and write_error only, which the loop leaves alone while busy. */
static void write_out(uv_work_t *work)
{
	struct cell__spill *spill = work->data;
	if (cell__fd_write_all(spill->fd, spill->writing.data, spill->writing.size) < 0)
		spill->write_error = errno;
}

static void end_spill(struct cell__spill *spill)
{
	cell__close_fd(&spill->fd);
	if (spill->error && spill->path) {
		/* An incomplete file must not claim to hold all of the output. */
		unlink(spill->path);
		free(cell__take_ptr(spill->path));
	}
	cell__buf_finish(&spill->writing);
	cell__buf_finish(&spill->waiting);
	spill->finished(spill->arg);
}

static void start_write(struct cell__spill *spill);

static void handle_written(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct cell__spill *spill = work->data;
	spill->busy = false;
	spill->writing.size = 0;
	if (spill->write_error)
		fail_spill(spill, spill->write_error);
	if (spill->error)
		cell__buf_finish(&spill->waiting);
	if (spill->waiting.size >= (spill->finishing ? 1 : CELL__SPILL_WRITE_BYTES))
		start_write(spill);
	if (spill->finishing && !spill->busy)
		end_spill(spill);
	else
		spill->progress(spill->arg);
}

static void start_write(struct cell__spill *spill)
{
	struct cell__buf swap = spill->writing;
	spill->writing = spill->waiting;
	spill->waiting = swap;
	spill->waiting.size = 0;
	spill->busy = true;
	int rc = uv_queue_work(cell__loop_uv(spill->loop), &spill->work, write_out, handle_written);
	if (rc < 0) {
		spill->busy = false;
		fail_spill(spill, -rc);
	}
}

void cell__spill_add(struct cell__spill *spill, const char *bytes, size_t size)
{
	if (spill->fd < 0 || spill->error || spill->cut)
		return;
	if (size > CELL_LIMIT_SPILL_BYTES - spill->size) {
		size = CELL_LIMIT_SPILL_BYTES - spill->size;
		spill->cut = true;
	}
	spill->size += size;
	if (cell__buf_add(&spill->waiting, bytes, size) < 0)
		fail_spill(spill, ENOMEM);
	else if (!spill->busy && spill->waiting.size >= CELL__SPILL_WRITE_BYTES)
		start_write(spill);
}

size_t cell__spill_backlog(const struct cell__spill *spill)
{
	return spill->waiting.size;
}

void cell__spill_close(struct cell__spill *spill)
{
	spill->finishing = true;
	if (!spill->busy && spill->waiting.size > 0)
		start_write(spill);
	if (!spill->busy)
		end_spill(spill);
}
