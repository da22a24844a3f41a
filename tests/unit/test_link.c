/* executor/link: output and frames of one kernel in the order written, against a kernel played here. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "executors/link.h"

struct rig {
	struct cell__loop *loop;
	struct cell__link *link;
	struct cell__link_fds fds; /* the kernel's side */
	struct cell_ring_ctl *ctl;
	uint8_t *data;
	uint64_t head;
	uint64_t written[2]; /* to the pipes */
	struct cell_error err;
	bool paused;
	bool quiet; /* count output, do not keep it */
	atomic_int refills; /* the ring, or the pipe, is full again whenever output has been taken */
	bool refill_pipe;
	_Atomic uint64_t output_bytes;
	atomic_int outputs;
	atomic_int armed_at_output; /* the doorbell, when output came last */
	atomic_int frames, breaks;
	pthread_mutex_t lock;
	struct cell__buf log; /* "1:out2:err[67 id json raw][broken reason]" */
	int last_stream;
	uint32_t last_raw_size;
};

static void handle_frame(void *owner, const struct cell_frame *frame, const struct cell__read *read)
{
	(void)read;
	struct rig *rig = owner;
	pthread_mutex_lock(&rig->lock);
	int json_size = frame->json_size < 100 ? (int)frame->json_size : 0;
	int raw_size = frame->raw_size < 100 ? (int)frame->raw_size : 0;
	cell__buf_printf(&rig->log, "[%d %u %.*s %.*s]", frame->type, frame->id, json_size, (const char *)frame->json, raw_size,
			 (const char *)frame->raw);
	rig->last_stream = 0;
	rig->last_raw_size = frame->raw_size;
	pthread_mutex_unlock(&rig->lock);
	atomic_fetch_add(&rig->frames, 1);
}

/* Whatever the host has given back is full again at once. */
static void refill(struct rig *rig)
{
	static const char block[32768];
	if (rig->refill_pipe) {
		while (write(rig->fds.fd[1], block, sizeof block) > 0) {
		}
		return;
	}
	uint64_t tail = atomic_load((_Atomic uint64_t *)&rig->ctl->tail);
	atomic_store((_Atomic uint64_t *)&rig->ctl->head, tail + CELL_RING_DATA_BYTES);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct rig *rig = owner;
	CHECK(size > 0);
	atomic_fetch_add(&rig->output_bytes, size);
	atomic_fetch_add(&rig->outputs, 1);
	atomic_store(&rig->armed_at_output, (int)atomic_load((_Atomic uint32_t *)&rig->ctl->armed));
	if (atomic_load(&rig->refills))
		refill(rig);
	if (rig->quiet)
		return;
	pthread_mutex_lock(&rig->lock);
	if (rig->last_stream != (int)stream)
		cell__buf_printf(&rig->log, "%d:", stream);
	rig->last_stream = (int)stream;
	cell__buf_add(&rig->log, bytes, size);
	pthread_mutex_unlock(&rig->lock);
}

static void handle_broken(void *owner, const char *reason)
{
	struct rig *rig = owner;
	pthread_mutex_lock(&rig->lock);
	cell__buf_printf(&rig->log, "[broken %s]", reason ? reason : "");
	pthread_mutex_unlock(&rig->lock);
	atomic_fetch_add(&rig->breaks, 1);
}

static const struct cell__link_events events = { handle_frame, handle_output, handle_broken };

static void do_create(void *arg)
{
	struct rig *rig = arg;
	CHECK(cell__link_create(rig->loop, &events, rig, &rig->link, &rig->fds, &rig->err) == 0);
}

static void do_close(void *arg)
{
	cell__link_close(((struct rig *)arg)->link);
}

static void do_drain(void *arg)
{
	cell__link_drain(((struct rig *)arg)->link);
}

static void do_pause(void *arg)
{
	struct rig *rig = arg;
	cell__link_pause(rig->link, rig->paused);
}

static void nothing(void *unused)
{
	(void)unused;
}

static void rig_init(struct rig *rig)
{
	memset(rig, 0, sizeof *rig);
	pthread_mutex_init(&rig->lock, NULL);
	assert_int_equal(cell__loop_create(&rig->loop, NULL), 0);
	cell__loop_call(rig->loop, do_create, rig);
	void *map = mmap(NULL, CELL_RING_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, rig->fds.fd[3], 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	rig->ctl = map;
	rig->data = (uint8_t *)map + CELL_RING_DATA_OFFSET;
	assert_int_equal(rig->ctl->version, CELL_RING_VERSION);
}

static void rig_finish(struct rig *rig)
{
	cell__loop_call(rig->loop, do_close, rig);
	cell__loop_destroy(rig->loop);
	cell__link_fds_close(&rig->fds);
	munmap(rig->ctl, CELL_RING_MAP_BYTES);
	cell__buf_finish(&rig->log);
	pthread_mutex_destroy(&rig->lock);
}

/* ---- the kernel's part ---- */

static void send_bytes(struct rig *rig, const void *bytes, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = send(rig->fds.fd[0], (const char *)bytes + done, size - done, MSG_NOSIGNAL);
		CHECK(n > 0);
		done += (size_t)n;
	}
}

static void send_frame_at(struct rig *rig, uint8_t type, uint32_t id, const char *json, const char *raw, size_t raw_size, uint64_t pos)
{
	struct cell_frame frame = {
		.type = type,
		.id = id,
		.json_size = (uint32_t)strlen(json),
		.raw_size = (uint32_t)raw_size,
		.ring_pos = pos,
	};
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	cell__frame_encode_header(&frame, header);
	send_bytes(rig, header, sizeof header);
	send_bytes(rig, json, strlen(json));
	send_bytes(rig, raw, raw_size);
}

static void send_frame(struct rig *rig, uint8_t type, uint32_t id, const char *json, const char *raw)
{
	send_frame_at(rig, type, id, json, raw, strlen(raw), rig->head);
}

static void copy_in(struct rig *rig, uint64_t at, const void *bytes, size_t size)
{
	size_t offset = (size_t)(at & (CELL_RING_DATA_BYTES - 1));
	size_t first = CELL_RING_DATA_BYTES - offset < size ? CELL_RING_DATA_BYTES - offset : size;
	memcpy(rig->data + offset, bytes, first);
	memcpy(rig->data, (const char *)bytes + first, size - first);
}

/* Into the ring, waiting for room; the doorbell is another matter. */
static bool put(struct rig *rig, uint32_t type, const void *bytes, uint32_t size)
{
	uint64_t need = sizeof(struct cell_ring_record) + (size + 7) / 8 * 8;
	if (CELL_RING_DATA_BYTES - (rig->head - atomic_load((_Atomic uint64_t *)&rig->ctl->tail)) < need)
		return false;
	struct cell_ring_record record = { .size = size, .type = type };
	copy_in(rig, rig->head, &record, sizeof record);
	copy_in(rig, rig->head + sizeof record, bytes, size);
	rig->head += need;
	atomic_store((_Atomic uint64_t *)&rig->ctl->head, rig->head);
	return true;
}

static void print(struct rig *rig, uint32_t stream, const char *text)
{
	CHECK(put(rig, stream, text, (uint32_t)strlen(text)));
}

static void write_pipe(struct rig *rig, int which, const char *text)
{
	CHECK(write(rig->fds.fd[1 + which], text, strlen(text)) == (ssize_t)strlen(text));
	rig->written[which] += strlen(text);
}

static void sync_pipes(struct rig *rig)
{
	CHECK(put(rig, CELL_RING_SYNC, rig->written, sizeof rig->written));
}

/* ---- what the host heard ---- */

struct wanted {
	struct rig *rig;
	const char *log;
};

static bool log_is(void *arg)
{
	struct wanted *wanted = arg;
	pthread_mutex_lock(&wanted->rig->lock);
	bool same = strcmp(wanted->rig->log.data ? wanted->rig->log.data : "", wanted->log) == 0;
	pthread_mutex_unlock(&wanted->rig->lock);
	return same;
}

static void expect(struct rig *rig, const char *log)
{
	struct wanted wanted = { rig, log };
	if (!support_wait_ms(log_is, &wanted, 5000))
		fail_msg("heard %s instead of %s", rig->log.data ? rig->log.data : "nothing", log);
}

/* ---- order ---- */

static void test_frames(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	send_frame(&rig, CELL_FRAME_HELLO, 0, "", "");
	send_frame(&rig, CELL_FRAME_READY, 0, "{}", "");
	send_frame(&rig, CELL_FRAME_RESULT, 7, "{\"r\":1}", "2");
	expect(&rig, "[70 0  ][65 0 {} ][66 7 {\"r\":1} 2]");
	rig_finish(&rig);
}

static void test_byte_by_byte(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	struct cell_frame frame = { .type = CELL_FRAME_DISPLAY, .id = 3, .json_size = 2, .raw_size = 5 };
	uint8_t bytes[CELL_FRAME_HEADER_BYTES + 7];
	cell__frame_encode_header(&frame, bytes);
	memcpy(bytes + CELL_FRAME_HEADER_BYTES, "{}12345", 7);
	for (size_t i = 0; i < sizeof bytes; i++) {
		assert_int_equal(atomic_load(&rig.frames), 0);
		send_bytes(&rig, bytes + i, 1);
		cell__loop_call(rig.loop, nothing, NULL);
	}
	expect(&rig, "[67 3 {} 12345]");
	rig_finish(&rig);
}

static void test_large_frames(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	size_t size = 20 * 1024 * 1024;
	char *raw = malloc(size);
	memset(raw, 'r', size);
	for (int i = 0; i < 2; i++) {
		send_frame_at(&rig, CELL_FRAME_DISPLAY, 1, "{}", raw, size, 0);
		send_frame(&rig, CELL_FRAME_RESULT, 2, "", "");
	}
	free(raw);
	expect(&rig, "[67 1 {} ][66 2  ][67 1 {} ][66 2  ]");
	rig_finish(&rig);
}

/* A result never overtakes the output before it, whichever way that went. */
static void test_output_before_frame(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	print(&rig, CELL_RING_STDOUT, "one ");
	print(&rig, CELL_RING_STDERR, "two ");
	print(&rig, CELL_RING_STDOUT, "three");
	uint64_t middle = rig.head;
	print(&rig, CELL_RING_STDOUT, "later");
	send_frame_at(&rig, CELL_FRAME_DISPLAY, 1, "", "", 0, middle);
	send_frame(&rig, CELL_FRAME_RESULT, 2, "", "");
	expect(&rig, "1:one 2:two 1:three[67 1  ]1:later[66 2  ]");
	rig_finish(&rig);
}

/* What children and C code write comes through the pipes, and stands where it was written. */
static void test_merge(void **state)
{
	(void)state;
	for (int doorbell = 0; doorbell < 2; doorbell++) {
		struct rig rig;
		rig_init(&rig);
		print(&rig, CELL_RING_STDOUT, "a");
		write_pipe(&rig, 0, "B");
		write_pipe(&rig, 1, "C");
		sync_pipes(&rig);
		print(&rig, CELL_RING_STDOUT, "d");
		write_pipe(&rig, 0, "E");
		sync_pipes(&rig);
		print(&rig, CELL_RING_STDERR, "f\n");
		if (doorbell) {
			send_frame(&rig, CELL_FRAME_DOORBELL, 0, "", "");
			expect(&rig, "1:aB2:C1:dE2:f\n");
		} else {
			send_frame(&rig, CELL_FRAME_RESULT, 9, "", "");
			expect(&rig, "1:aB2:C1:dE2:f\n[66 9  ]");
		}
		rig_finish(&rig);
	}
}

/* After a doorbell the host looks by itself for a while, and then asks to be woken again. */
static bool is_armed(void *arg)
{
	return atomic_load((_Atomic uint32_t *)&((struct rig *)arg)->ctl->armed) == 1;
}

static void test_doorbell(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT;
	cell__buf_add_str(&wanted, "1:");
	for (int round = 0; round < 5; round++) {
		assert_true(support_wait(is_armed, &rig));
		atomic_store((_Atomic uint32_t *)&rig.ctl->armed, 0);
		print(&rig, CELL_RING_STDOUT, "ding\n");
		send_frame(&rig, CELL_FRAME_DOORBELL, 0, "", "");
		print(&rig, CELL_RING_STDOUT, "dong"); /* without a bell, and without an end of line */
		cell__buf_add_str(&wanted, "ding\ndong");
		expect(&rig, wanted.data);
	}
	rig_finish(&rig);
}

/* As a kernel's print() does: the line with a bell, if the host sleeps, then its end without or with another. */
static void ring_print(struct rig *rig, const char *text)
{
	print(rig, CELL_RING_STDOUT, text);
	if (atomic_exchange((_Atomic uint32_t *)&rig->ctl->armed, 0))
		send_frame(rig, CELL_FRAME_DOORBELL, 0, "", "");
}

static void print_line(void *arg)
{
	ring_print(arg, "line");
	ring_print(arg, "\n");
}

/* The line and its end make one event, also when the host was woken between the two. */
static void test_line_in_two_writes(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	/* On the loop's thread: both are there before it can look, but the bell says that only the first is. */
	cell__loop_call(rig.loop, print_line, &rig);
	expect(&rig, "1:line\n");
	assert_int_equal(atomic_load(&rig.outputs), 1);
	CELL_AUTO_BUF struct cell__buf wanted = CELL_BUF_INIT;
	cell__buf_add_str(&wanted, "1:line\n");
	/* It comes because nothing more does; for its end the host could be woken. Where the last poll is late it may find the half. */
	for (int tries = 0; tries == 0 || atomic_load(&rig.armed_at_output) != 1; tries++) {
		assert_true(tries < 50);
		assert_true(support_wait(is_armed, &rig));
		usleep(20000);
		int before = atomic_load(&rig.outputs);
		ring_print(&rig, "half");
		cell__buf_add_str(&wanted, "half");
		expect(&rig, wanted.data);
		assert_int_equal(atomic_load(&rig.outputs), before + 1);
	}
	rig_finish(&rig);
}

static void print_around_a_frame(void *arg)
{
	struct rig *rig = arg;
	ring_print(rig, "a\n");
	ring_print(rig, "b\n");
	send_frame(rig, CELL_FRAME_DISPLAY, 1, "", "");
	ring_print(rig, "c\n");
	send_frame(rig, CELL_FRAME_DISPLAY, 2, "", "");
	ring_print(rig, "d");
}

/* The bell makes the host look at all that is there; frames that are there too keep their place in it. */
static void test_bell_and_frames(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	cell__loop_call(rig.loop, print_around_a_frame, &rig);
	expect(&rig, "1:a\nb\n[67 1  ]1:c\n[67 2  ]1:d");
	rig_finish(&rig);
}

/* The first byte goes on at once, those behind it together. */
static void test_tiny_writes_to_a_pipe(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.quiet = true;
	for (int i = 0; i < 1000; i++) {
		write_pipe(&rig, i % 2, "x");
		cell__loop_call(rig.loop, nothing, NULL); /* the host sees it */
	}
	sync_pipes(&rig);
	send_frame(&rig, CELL_FRAME_RESULT, 1, "", "");
	expect(&rig, "[66 1  ]");
	assert_true(atomic_load(&rig.output_bytes) == 1000);
	if (atomic_load(&rig.outputs) > 300)
		fail_msg("1000 writes made %d events", atomic_load(&rig.outputs));
	/* What comes after the result, from a child that was left behind, does not lie around either. */
	write_pipe(&rig, 0, "y");
	cell__loop_call(rig.loop, nothing, NULL);
	write_pipe(&rig, 0, "z");
	for (int i = 0; i < 10000 && atomic_load(&rig.output_bytes) < 1002; i++)
		usleep(1000);
	assert_true(atomic_load(&rig.output_bytes) == 1002);
	rig_finish(&rig);
}

static void test_flood(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.quiet = true;
	char block[30000];
	memset(block, 'x', sizeof block);
	uint64_t total = 0;
	for (int i = 0; i < 2000; i++) {
		while (!put(&rig, CELL_RING_STDOUT, block, sizeof block)) {
			if (atomic_exchange((_Atomic uint32_t *)&rig.ctl->armed, 0))
				send_frame(&rig, CELL_FRAME_DOORBELL, 0, "", "");
			sched_yield();
		}
		total += sizeof block;
	}
	send_frame(&rig, CELL_FRAME_RESULT, 1, "", "");
	expect(&rig, "[66 1  ]");
	assert_true(atomic_load(&rig.output_bytes) == total);
	rig_finish(&rig);
}

static void test_pause(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.paused = true;
	cell__loop_call(rig.loop, do_pause, &rig);
	print(&rig, CELL_RING_STDOUT, "held back");
	write_pipe(&rig, 1, "so is this");
	sync_pipes(&rig);
	send_frame(&rig, CELL_FRAME_DOORBELL, 0, "", "");
	send_frame(&rig, CELL_FRAME_RESULT, 4, "", "");
	for (int i = 0; i < 50; i++) {
		cell__loop_call(rig.loop, nothing, NULL);
		usleep(500);
	}
	expect(&rig, "");
	rig.paused = false;
	cell__loop_call(rig.loop, do_pause, &rig);
	expect(&rig, "1:held back2:so is this[66 4  ]");
	rig_finish(&rig);
}

/* ---- sending ---- */

struct sending {
	struct rig *rig;
	const char *raw;
	size_t size;
	int rc;
	struct cell_error err;
};

static void do_send(void *arg)
{
	struct sending *sending = arg;
	sending->rc = cell__link_send(sending->rig->link, CELL_FRAME_RUN, 5, "{}", 2, sending->raw, sending->size, &sending->err);
}

static void test_send(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	size_t size = 5 * 1024 * 1024; /* far more than the socket takes at once */
	char *raw = malloc(CELL_FRAME_MAX_RAW + 1);
	for (size_t i = 0; i < size; i++)
		raw[i] = (char)(i * 31 % 251);
	struct sending sending = { .rig = &rig, .raw = raw, .size = size };
	for (int i = 0; i < 2; i++) {
		cell__loop_call(rig.loop, do_send, &sending);
		assert_int_equal(sending.rc, 0);
	}
	for (int i = 0; i < 2; i++) {
		uint8_t header[CELL_FRAME_HEADER_BYTES + 2];
		assert_int_equal(recv(rig.fds.fd[0], header, sizeof header, MSG_WAITALL), sizeof header);
		assert_int_equal(header[2], CELL_FRAME_RUN);
		assert_memory_equal(header + CELL_FRAME_HEADER_BYTES, "{}", 2);
		char *got = malloc(size);
		assert_int_equal(recv(rig.fds.fd[0], got, size, MSG_WAITALL), size);
		assert_memory_equal(got, raw, size);
		free(got);
	}
	sending.size = CELL_FRAME_MAX_RAW + 1;
	cell__loop_call(rig.loop, do_send, &sending);
	assert_int_equal(sending.rc, -1);
	assert_int_equal(sending.err.code, CELL_E_LIMIT);
	/* To a kernel that is gone: no error here, and no SIGPIPE; reading will tell. */
	cell__close_fd(&rig.fds.fd[0]);
	sending.size = 100;
	cell__loop_call(rig.loop, do_send, &sending);
	assert_int_equal(sending.rc, 0);
	free(raw);
	rig_finish(&rig);
}

/* ---- the end, honest or not ---- */

static void test_broken(void **state)
{
	(void)state;
	static const struct {
		const char *bytes;
		size_t size;
		const char *log;
	} rows[] = {
		{ "", 0, "[broken ]" }, /* it only closed its end */
		{ "noise", 5, "[broken bytes that do not start a frame]" },
		{ "W\2", 2, "[broken frame with another protocol version]" },
		{ "W\1\3\0", 3, "[broken truncated frame]" },
		{ "W\1\xc8", 3, "[broken frame of an unknown type]" },
		{ "W\1\x42\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0", 24, "[broken frame larger than the limit]" },
		{ "W\1\x42\0\0\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\0\0\0\0abc", 27, "[broken truncated frame]" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		rig_init(&rig);
		send_bytes(&rig, rows[i].bytes, rows[i].size);
		cell__close_fd(&rig.fds.fd[0]);
		expect(&rig, rows[i].log);
		print(&rig, CELL_RING_STDOUT, "not read any more");
		cell__loop_call(rig.loop, nothing, NULL);
		assert_int_equal(atomic_load(&rig.breaks), 1); /* once */
		rig_finish(&rig);
	}
}

static void test_broken_ring(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	print(&rig, CELL_RING_STDOUT, "good");
	CHECK(put(&rig, 99, "bad", 3));
	send_frame(&rig, CELL_FRAME_RESULT, 1, "", "");
	for (int i = 0; i < 100; i++)
		cell__loop_call(rig.loop, nothing, NULL);
	const char *log = rig.log.data ? rig.log.data : "";
	assert_non_null(strstr(log, "[broken the output ring contains invalid data]"));
	assert_null(strstr(log, "[66"));
	rig_finish(&rig);
}

static void test_drain(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.paused = true; /* so that everything is still there when the kernel is dead */
	cell__loop_call(rig.loop, do_pause, &rig);
	print(&rig, CELL_RING_STDOUT, "a");
	write_pipe(&rig, 0, "B");
	sync_pipes(&rig);
	print(&rig, CELL_RING_STDERR, "c");
	send_frame(&rig, CELL_FRAME_RESULT, 1, "", "");
	print(&rig, CELL_RING_STDOUT, "d");
	write_pipe(&rig, 1, "E");
	cell__link_fds_close(&rig.fds);
	cell__loop_call(rig.loop, do_drain, &rig);
	expect(&rig, "1:aB2:c[66 1  ]1:d2:E");
	rig_finish(&rig);
}

/* The kernel dies, or the link is closed, while a frame of it is read on the pool. */
static void test_end_while_a_frame_is_read(void **state)
{
	(void)state;
	size_t size = 8 * 1024 * 1024;
	char *raw = malloc(size);
	memset(raw, 'r', size);
	for (int i = 0; i < 20; i++) {
		struct rig rig;
		rig_init(&rig);
		send_frame_at(&rig, CELL_FRAME_DISPLAY, 1, "{\"mime\":[[\"text/plain\",8388608]]}", raw, size, 0);
		send_frame(&rig, CELL_FRAME_RESULT, 2, "", "");
		if (i % 2) { /* what was sent before death still counts */
			cell__loop_call(rig.loop, do_drain, &rig);
			expect(&rig, "[67 1 {\"mime\":[[\"text/plain\",8388608]]} ][66 2  ]");
		}
		rig_finish(&rig);
	}
	free(raw);
}

/* ---- a kernel that wants the loop to itself ---- */

struct call {
	struct rig *rig;
	atomic_int done;
};

static void *call_loop(void *arg)
{
	struct call *call = arg;
	for (int i = 0; i < 20; i++)
		cell__loop_call(call->rig->loop, nothing, NULL);
	atomic_store(&call->done, 1);
	return NULL;
}

static bool call_done(void *arg)
{
	return atomic_load(&((struct call *)arg)->done) != 0;
}

/* While this kernel is read, others are still served. */
static bool others_are_served(struct rig *rig)
{
	struct call call = { .rig = rig };
	pthread_t caller;
	assert_int_equal(pthread_create(&caller, NULL, call_loop, &call), 0);
	bool served = support_wait_ms(call_done, &call, 10000);
	atomic_store(&rig->refills, 0);
	pthread_join(caller, NULL);
	return served;
}

/* It writes without end and claims that a frame comes after output of the far future. */
static void test_hostile_position(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.quiet = true;
	static const char block[504]; /* with its header a divisor of the ring's size: every round begins at a record */
	while (put(&rig, CELL_RING_STDOUT, block, sizeof block)) {
	}
	atomic_store(&rig.refills, 1);
	send_frame_at(&rig, CELL_FRAME_DISPLAY, 1, "", "", 0, (uint64_t)1 << 62);
	bool served = others_are_served(&rig);
	rig_finish(&rig);
	assert_true(served);
}

/* The same with the pipe: it claims that far more had been written than ever will be. */
static void test_hostile_sync(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.quiet = true;
	rig.refill_pipe = true;
	assert_int_equal(fcntl(rig.fds.fd[1], F_SETFL, O_NONBLOCK), 0);
	assert_true(fcntl(rig.fds.fd[1], F_SETPIPE_SZ, 1 << 20) >= 1 << 20); /* as a kernel may */
	rig.written[0] = UINT64_MAX;
	rig.written[1] = UINT64_MAX;
	sync_pipes(&rig);
	atomic_store(&rig.refills, 1);
	refill(&rig);
	send_frame(&rig, CELL_FRAME_DISPLAY, 1, "", "");
	bool served = others_are_served(&rig);
	rig_finish(&rig);
	assert_true(served);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_frames),
		TEST(test_byte_by_byte),
		TEST(test_large_frames),
		TEST(test_output_before_frame),
		TEST(test_merge),
		TEST(test_doorbell),
		TEST(test_line_in_two_writes),
		TEST(test_bell_and_frames),
		TEST(test_tiny_writes_to_a_pipe),
		TEST(test_flood),
		TEST(test_pause),
		TEST(test_send),
		TEST(test_broken),
		TEST(test_broken_ring),
		TEST(test_drain),
		TEST(test_end_while_a_frame_is_read),
		TEST(test_hostile_position),
		TEST(test_hostile_sync),
	};
	return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
