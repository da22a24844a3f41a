/* wire/ring: the host's end of the output ring, against a producer written here after ring_abi.h. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "wire/ring.h"
#include "wire/ring_spin.h"

struct rig {
	struct cell__ring ring;
	uint8_t *map;
	uint64_t head; /* the producer's own */
	uint8_t *out;
	uint32_t type, size;
};

static void rig_init(struct rig *rig)
{
	*rig = (struct rig){ 0 };
	rig->map = aligned_alloc(4096, CELL_RING_MAP_BYTES);
	memset(rig->map, 0, CELL_RING_MAP_BYTES);
	/* Exactly the size that is promised, so that a sanitizer sees a write past it. */
	rig->out = malloc(CELL_RING_MAX_RECORD);
	cell__ring_init(&rig->ring, rig->map);
}

static void rig_finish(struct rig *rig)
{
	free(rig->map);
	free(rig->out);
}

static void set_head(struct rig *rig, uint64_t head)
{
	rig->head = head;
	atomic_store((_Atomic uint64_t *)&rig->ring.ctl->head, head);
}

static void copy_in(struct rig *rig, uint64_t at, const void *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		rig->map[CELL_RING_DATA_OFFSET + ((at + i) & (CELL_RING_DATA_BYTES - 1))] = ((const uint8_t *)bytes)[i];
}

/* Writes a record with whatever is asked for; the size in the header may lie. */
static void put_raw(struct rig *rig, uint32_t type, uint32_t said, const void *bytes, uint32_t size)
{
	struct cell_ring_record record = { .size = said, .type = type };
	copy_in(rig, rig->head, &record, sizeof record);
	copy_in(rig, rig->head + sizeof record, bytes, size);
	set_head(rig, rig->head + sizeof record + (size + 7) / 8 * 8);
}

/* As an honest kernel does it: false when there is no room. */
static bool put(struct rig *rig, uint32_t type, const void *bytes, uint32_t size)
{
	uint64_t need = sizeof(struct cell_ring_record) + ((uint64_t)size + 7) / 8 * 8;
	uint64_t tail = atomic_load((_Atomic uint64_t *)&rig->ring.ctl->tail);
	if (CELL_RING_DATA_BYTES - (rig->head - tail) < need)
		return false;
	put_raw(rig, type, size, bytes, size);
	return true;
}

static enum cell__ring_status next(struct rig *rig)
{
	return cell__ring_next(&rig->ring, rig->head, &rig->type, rig->out, &rig->size);
}

static void test_init(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig.ring.ctl->version, CELL_RING_VERSION);
	assert_int_equal(rig.ring.ctl->armed, 1); /* the first write rings */
	assert_true(cell__ring_head(&rig.ring) == 0);
	assert_int_equal(next(&rig), CELL__RING_EMPTY);
	rig_finish(&rig);
}

static void test_records(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_true(put(&rig, CELL_RING_STDOUT, "hello", 5));
	assert_true(put(&rig, CELL_RING_STDERR, "12345678", 8));
	assert_true(put(&rig, CELL_RING_STDOUT, "", 0));
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_int_equal(rig.type, CELL_RING_STDOUT);
	assert_int_equal(rig.size, 5);
	assert_memory_equal(rig.out, "hello", 5);
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_int_equal(rig.type, CELL_RING_STDERR);
	assert_int_equal(rig.size, 8);
	assert_memory_equal(rig.out, "12345678", 8);
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_int_equal(rig.size, 0);
	assert_int_equal(next(&rig), CELL__RING_EMPTY);
	assert_true(rig.ring.tail == rig.head);
	rig_finish(&rig);
}

static void test_upto(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_true(put(&rig, CELL_RING_STDOUT, "one", 3));
	uint64_t middle = rig.head;
	assert_true(put(&rig, CELL_RING_STDOUT, "two", 3));
	uint32_t type, size;
	assert_int_equal(cell__ring_next(&rig.ring, 0, &type, rig.out, &size), CELL__RING_EMPTY);
	assert_int_equal(cell__ring_next(&rig.ring, middle, &type, rig.out, &size), CELL__RING_RECORD);
	assert_memory_equal(rig.out, "one", 3);
	assert_int_equal(cell__ring_next(&rig.ring, middle, &type, rig.out, &size), CELL__RING_EMPTY);
	/* A position in the past, and one from the future: take what is there and no more. */
	assert_int_equal(cell__ring_next(&rig.ring, 8, &type, rig.out, &size), CELL__RING_EMPTY);
	assert_int_equal(cell__ring_next(&rig.ring, rig.head + 8000, &type, rig.out, &size), CELL__RING_RECORD);
	assert_memory_equal(rig.out, "two", 3);
	assert_int_equal(cell__ring_next(&rig.ring, rig.head + 8000, &type, rig.out, &size), CELL__RING_EMPTY);
	assert_int_equal(cell__ring_next(&rig.ring, INT64_MAX, &type, rig.out, &size), CELL__RING_EMPTY);
	rig_finish(&rig);
}

static void test_wrap_around(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	uint8_t bytes[1000];
	uint32_t sizes[] = { 1, 7, 8, 9, 13, 999, 1000, 0 };
	uint8_t value = 0;
	/* Several times round, with records that straddle the end in every way. */
	for (unsigned i = 0; rig.head < 5u * CELL_RING_DATA_BYTES; i++) {
		uint32_t size = sizes[i % COUNT(sizes)];
		for (uint32_t k = 0; k < size; k++)
			bytes[k] = value++;
		assert_true(put(&rig, 1 + i % 2, bytes, size));
		assert_int_equal(next(&rig), CELL__RING_RECORD);
		assert_int_equal(rig.type, 1 + i % 2);
		assert_int_equal(rig.size, size);
		assert_memory_equal(rig.out, bytes, size);
		assert_int_equal(next(&rig), CELL__RING_EMPTY);
		cell__ring_release(&rig.ring);
	}
	rig_finish(&rig);
}

/* Positions count for ever; their own overflow is only a number. */
static void test_position_overflow(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.ring.tail = UINT64_MAX - 7;
	cell__ring_release(&rig.ring);
	set_head(&rig, rig.ring.tail);
	assert_int_equal(next(&rig), CELL__RING_EMPTY);
	assert_true(put(&rig, CELL_RING_STDOUT, "around", 6));
	assert_true(rig.head < 100);
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_memory_equal(rig.out, "around", 6);
	assert_true(rig.ring.tail == rig.head);
	rig_finish(&rig);
}

static void test_full(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	uint8_t bytes[1016];
	memset(bytes, 'x', sizeof bytes);
	int count = 0;
	while (put(&rig, CELL_RING_STDOUT, bytes, sizeof bytes))
		count++;
	assert_int_equal(count, CELL_RING_DATA_BYTES / 1024); /* to the last byte */
	assert_true(rig.head == CELL_RING_DATA_BYTES);
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	/* Taken is not yet given back: the kernel may not overwrite it before release. */
	assert_false(put(&rig, CELL_RING_STDOUT, bytes, sizeof bytes));
	assert_false(cell__ring_release(&rig.ring));
	assert_true(put(&rig, CELL_RING_STDOUT, bytes, sizeof bytes));
	while (next(&rig) == CELL__RING_RECORD)
		count--;
	assert_int_equal(count, 0);
	rig_finish(&rig);
}

static void test_record_limit(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	uint8_t *bytes = malloc(CELL_RING_MAX_RECORD + 8);
	memset(bytes, 'y', CELL_RING_MAX_RECORD + 8);
	bytes[CELL_RING_MAX_RECORD - 1] = 'z';
	assert_true(put(&rig, CELL_RING_STDOUT, bytes, CELL_RING_MAX_RECORD));
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_int_equal(rig.size, CELL_RING_MAX_RECORD);
	assert_memory_equal(rig.out, bytes, CELL_RING_MAX_RECORD);
	assert_true(put(&rig, CELL_RING_STDOUT, bytes, CELL_RING_MAX_RECORD + 1));
	assert_int_equal(next(&rig), CELL__RING_BAD);
	assert_int_equal(next(&rig), CELL__RING_BAD); /* and stays so */
	free(bytes);
	rig_finish(&rig);
}

static void test_bad_head(void **state)
{
	(void)state;
	static const struct {
		uint64_t tail, head;
	} rows[] = {
		{ 0, 4 },      /* not on a boundary */
		{ 0, CELL_RING_DATA_BYTES + 8 },           /* more than fits */
		{ 0, UINT64_MAX - 7 },                     /* before the tail */
		{ 0, UINT64_MAX },
		{ 64, 56 },    /* backwards */
		{ 64, 0 },
		{ 800000, 800000 + CELL_RING_DATA_BYTES + 8 },
		{ 0, (uint64_t)1 << 63 },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		rig_init(&rig);
		rig.ring.tail = rows[i].tail;
		set_head(&rig, rows[i].head);
		assert_int_equal(next(&rig), CELL__RING_BAD);
		assert_true(rig.ring.tail == rows[i].tail);
		rig_finish(&rig);
	}
}

static void test_bad_record(void **state)
{
	(void)state;
	static const struct {
		uint32_t type, said, size;
	} rows[] = {
		{ 0, 8, 8 },          /* unknown types */
		{ 4, 8, 8 },
		{ UINT32_MAX, 8, 8 },
		{ CELL_RING_STDOUT, 9, 8 },                /* longer than what is there */
		{ CELL_RING_STDOUT, 1, 0 },
		{ CELL_RING_STDOUT, UINT32_MAX, 8 },
		{ CELL_RING_STDOUT, UINT32_MAX - 6, 8 },
		{ CELL_RING_STDOUT, CELL_RING_MAX_RECORD + 1, 8 },
		{ CELL_RING_SYNC, 8, 8 },                  /* SYNC has one size */
		{ CELL_RING_SYNC, 0, 0 },
		{ CELL_RING_SYNC, 24, 24 },
		{ CELL_RING_SYNC, 15, 16 },
	};
	uint8_t bytes[32] = { 0 };
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		rig_init(&rig);
		rig.type = rig.size = 77;
		put_raw(&rig, rows[i].type, rows[i].said, bytes, rows[i].size);
		assert_int_equal(next(&rig), CELL__RING_BAD);
		assert_true(rig.ring.tail == 0);
		assert_int_equal(rig.type, 77);
		assert_int_equal(rig.size, 77);
		rig_finish(&rig);
	}
}

static void test_sync(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	const uint64_t written[2] = { 12345, 0xfedcba9876543210u };
	assert_true(put(&rig, CELL_RING_SYNC, written, sizeof written));
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_int_equal(rig.type, CELL_RING_SYNC);
	assert_int_equal(rig.size, sizeof written);
	assert_memory_equal(rig.out, written, sizeof written);
	rig_finish(&rig);
}

static void test_release_and_arm(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	struct cell_ring_ctl *ctl = rig.ring.ctl;
	assert_true(put(&rig, CELL_RING_STDOUT, "x", 1));
	assert_int_equal(next(&rig), CELL__RING_RECORD);
	assert_true(ctl->tail == 0);
	assert_false(cell__ring_release(&rig.ring)); /* nobody sleeps */
	assert_true(ctl->tail == rig.head);
	assert_int_equal(ctl->space_futex, 0);
	ctl->kernel_waits = 1;
	assert_true(cell__ring_release(&rig.ring));
	assert_int_equal(ctl->space_futex, 1); /* so that a kernel about to sleep does not */
	ctl->kernel_waits = 0;
	ctl->armed = 0;
	assert_true(cell__ring_arm(&rig.ring));
	assert_int_equal(ctl->armed, 1);
	ctl->armed = 0;
	assert_true(put(&rig, CELL_RING_STDOUT, "y", 1));
	assert_false(cell__ring_arm(&rig.ring)); /* something came meanwhile */
	assert_int_equal(ctl->armed, 1);
	rig_finish(&rig);
}

static void test_pipe_counters(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	struct cell_ring_ctl *ctl = rig.ring.ctl;
	cell__ring_pipe_begin(&rig.ring);
	assert_int_equal(ctl->pipe_seq % 2, 1); /* odd: do not believe the numbers now */
	cell__ring_pipe_end(&rig.ring, 1, 500);
	assert_int_equal(ctl->pipe_seq, 2);
	assert_true(ctl->pipe_read[0] == 0 && ctl->pipe_read[1] == 500);
	cell__ring_pipe_begin(&rig.ring);
	cell__ring_pipe_end(&rig.ring, 0, 7);
	assert_int_equal(ctl->pipe_seq, 4);
	assert_true(ctl->pipe_read[0] == 7 && ctl->pipe_read[1] == 500);
	rig_finish(&rig);
}

/* ---- both sides at once ---- */

#define FLOOD_RECORDS 40000

static uint32_t flood_size(unsigned i)
{
	return i * 2654435761u % 1500;
}

static void *produce(void *arg)
{
	struct rig *rig = arg;
	uint8_t bytes[1500];
	for (unsigned i = 0; i < FLOOD_RECORDS; i++) {
		memset(bytes, (int)(i & 0xff), sizeof bytes);
		while (!put(rig, 1 + i % 2, bytes, flood_size(i)))
			sched_yield();
	}
	return NULL;
}

static void test_flood(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, produce, &rig), 0);
	unsigned i = 0;
	while (i < FLOOD_RECORDS) {
		enum cell__ring_status status = cell__ring_next(&rig.ring, cell__ring_head(&rig.ring), &rig.type, rig.out, &rig.size);
		if (status == CELL__RING_EMPTY) {
			cell__ring_release(&rig.ring);
			sched_yield();
			continue;
		}
		if (status != CELL__RING_RECORD || rig.type != 1 + i % 2 || rig.size != flood_size(i) ||
		    (rig.size && (rig.out[0] != (i & 0xff) || rig.out[rig.size - 1] != (i & 0xff))))
			fail_msg("record %u came out wrong", i);
		i++;
	}
	pthread_join(thread, NULL);
	rig_finish(&rig);
}

/* ---- looking for frames ---- */

#define ELSEWHERE 0xffffu /* a CPU that nobody runs on */

static void test_spin(void **state)
{
	(void)state;
	struct cell_ring_beat beat = { .cpu = ELSEWHERE };
	struct cell_ring_spin spin = { 0 };
	/* There already: nothing is looked for. */
	cell_ring_spin_beat(&beat);
	assert_int_equal(beat.cpu < ELSEWHERE, 1);
	assert_true(cell_ring_spin_wait(&beat, &spin));
	spin.received++;
	beat.cpu = ELSEWHERE;
	/* In vain, and then rarer and rarer. */
	for (uint32_t i = 1; i <= CELL_SPIN_MISSES; i++) {
		assert_false(cell_ring_spin_wait(&beat, &spin));
		assert_int_equal(spin.cell.misses, i);
		assert_int_equal(spin.cell.rest, 0);
	}
	unsigned looks = 0;
	for (int i = 0; i < 2000; i++)
		looks += !cell_ring_spin_wait(&beat, &spin);
	assert_true(looks >= 10 && looks <= 20);
	assert_int_equal(spin.cell.rest < CELL_SPIN_REST_MAX, 1);
	/* What the other side says of itself may be wrong in any way. */
	beat.sent = spin.received - 1;
	spin.cell.rest = 0;
	assert_false(cell_ring_spin_wait(&beat, &spin));
	beat.sent = spin.received + 1;
	assert_true(cell_ring_spin_wait(&beat, &spin));
}

/* A short wait without a look says that looking is worth it again; a long one, or one for this CPU, says nothing. */
static void test_spin_again(void **state)
{
	(void)state;
	struct cell_ring_beat beat = { .cpu = ELSEWHERE };
	const struct cell_spin resting = { .misses = CELL_SPIN_MISSES + 3, .rest = 100 };
	struct cell_ring_spin spin = { .cell = resting };
	assert_true(cell_ring_spin_wait(&beat, &spin));
	assert_int_equal(spin.cell.rest, 99);
	assert_int_not_equal(spin.cell.since, 0);
	spin.cell.since = cell_spin_now() + 1000000000; /* however long this test is kept waiting, the wait was short */
	cell_ring_spin_has_slept(&beat, &spin);
	assert_int_equal(spin.cell.rest, 0);
	assert_int_equal(spin.cell.misses, 0);
	/* After a look nothing is left to learn from. */
	spin.cell = resting;
	spin.cell.rest = 0;
	assert_false(cell_ring_spin_wait(&beat, &spin));
	struct cell_spin before = spin.cell;
	cell_ring_spin_has_slept(&beat, &spin);
	assert_memory_equal(&spin.cell, &before, sizeof before);
	/* Too long. */
	assert_true(cell_ring_spin_wait(&beat, &spin));
	spin.cell.since -= 2 * CELL_RING_SPIN_NS;
	cell_ring_spin_has_slept(&beat, &spin);
	assert_int_equal(spin.cell.rest, before.rest - 1);
	assert_int_equal(spin.cell.since, 0);
	/* Answers to calls are learnt apart. */
	spin = (struct cell_ring_spin){ .cell = resting, .call = resting };
	assert_true(cell_ring_spin_wait_answer(&beat, &spin));
	spin.call.since = cell_spin_now() + 1000000000;
	cell_ring_spin_has_slept(&beat, &spin);
	assert_int_equal(spin.call.rest, 0);
	assert_int_equal(spin.cell.rest, 100);
}

static void test_spin_again_on_one_cpu(void **state)
{
	(void)state;
	struct cell_spin look = { .misses = CELL_SPIN_MISSES + 3, .rest = 7, .since = cell_spin_now() + 1000000000 };
	cell_spin_has_slept(&look, CELL_RING_SPIN_NS, false);
	assert_int_equal(look.rest, 7);
	assert_int_equal(look.since, 0);
}

/* On the same CPU nobody looks: the other would have to wait for it. */
static void test_spin_on_one_cpu(void **state)
{
	(void)state;
	cpu_set_t before, one;
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	struct cell_ring_beat beat = { 0 };
	struct cell_ring_spin spin = { 0 };
	cell_ring_spin_beat(&beat);
	spin.received++;
	for (int i = 0; i < 100; i++)
		assert_true(cell_ring_spin_wait(&beat, &spin));
	assert_int_equal(spin.cell.misses, 0);
	assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void *beat_later(void *arg)
{
	struct cell_ring_beat *beat = arg;
	sched_yield();
	atomic_fetch_add((_Atomic uint32_t *)&beat->sent, 1);
	return NULL;
}

static bool is_sanitized(void)
{
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
	return true;
#endif
#endif
	return false;
}

static void test_spin_in_time(void **state)
{
	(void)state;
	int found = 0;
	for (int i = 0; i < 20000 && !found; i++) {
		struct cell_ring_beat beat = { .cpu = ELSEWHERE };
		struct cell_ring_spin spin = { .cell.misses = 1 };
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, beat_later, &beat), 0);
		bool came = cell_ring_spin_wait(&beat, &spin);
		/* Found while looking, or there before the first look, or too late. */
		found += came && spin.cell.misses == 0;
		assert_true(came || spin.cell.misses == 2);
		pthread_join(thread, NULL);
		assert_true(cell_ring_spin_has_come(&beat, &spin));
	}
	/* None in 20,000 times is too seldom, except where a look has less time than a thread needs: under a sanitizer. */
	assert_true(found > 0 || is_sanitized() || sysconf(_SC_NPROCESSORS_ONLN) == 1);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_init),
		TEST(test_records),
		TEST(test_upto),
		TEST(test_wrap_around),
		TEST(test_position_overflow),
		TEST(test_full),
		TEST(test_record_limit),
		TEST(test_bad_head),
		TEST(test_bad_record),
		TEST(test_sync),
		TEST(test_release_and_arm),
		TEST(test_pipe_counters),
		TEST(test_flood),
		TEST(test_spin),
		TEST(test_spin_again),
		TEST(test_spin_again_on_one_cpu),
		TEST(test_spin_on_one_cpu),
		TEST(test_spin_in_time),
	};
	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
