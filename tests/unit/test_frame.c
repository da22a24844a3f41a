/* wire/frame: the frame codec. */
#include "support.h"
#include "wire/frame.h"

static const uint8_t types[] = {
	CELL_FRAME_INIT,     CELL_FRAME_RUN,      CELL_FRAME_REPLY,  CELL_FRAME_SHUTDOWN, CELL_FRAME_READY,     CELL_FRAME_RESULT,
	CELL_FRAME_DISPLAY,  CELL_FRAME_DOORBELL, CELL_FRAME_CALL,   CELL_FRAME_HELLO,    CELL_FRAME_INTERRUPT, CELL_FRAME_OUTPUT,
	CELL_FRAME_SNAPSHOT, CELL_FRAME_FORK,     CELL_FRAME_FORKED, CELL_FRAME_LOAD,
};

static size_t encode(const struct cell_frame *frame, uint8_t *out)
{
	cell__frame_encode_header(frame, out);
	memcpy(out + CELL_FRAME_HEADER_BYTES, frame->json, frame->json_size);
	memcpy(out + CELL_FRAME_HEADER_BYTES + frame->json_size, frame->raw, frame->raw_size);
	return CELL_FRAME_HEADER_BYTES + frame->json_size + frame->raw_size;
}

static void assert_same(const struct cell_frame *a, const struct cell_frame *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->id, b->id);
	assert_true(a->ring_pos == b->ring_pos);
	assert_int_equal(a->json_size, b->json_size);
	assert_int_equal(a->raw_size, b->raw_size);
	assert_memory_equal(a->json, b->json, a->json_size);
	assert_memory_equal(a->raw, b->raw, a->raw_size);
}

static void test_round_trip(void **state)
{
	(void)state;
	uint8_t bytes[256];
	for (size_t i = 0; i < COUNT(types); i++) {
		const struct cell_frame in = {
			.type = types[i],
			.flags = 0xa5,
			.id = 0xfedcba98,
			.ring_pos = 0x0123456789abcdefu,
			.json = (const uint8_t *)"{\"v\":1}",
			.json_size = i % 2 ? 7 : 0,
			.raw = (const uint8_t *)"\0raw\xff",
			.raw_size = i % 3 ? 5 : 0,
		};
		size_t size = encode(&in, bytes);
		bytes[size] = 0x99; /* what follows is not touched */
		struct cell_frame out;
		size_t used = 0;
		assert_int_equal(cell__frame_decode(bytes, size + 1, &out, &used), CELL_FRAME_OK);
		assert_int_equal(used, size);
		assert_same(&in, &out);
		assert_ptr_equal(out.json, bytes + CELL_FRAME_HEADER_BYTES);
	}
}

/* The kernel's extension and the library may come from two builds: the layout is a promise. */
static void test_layout(void **state)
{
	(void)state;
	const struct cell_frame frame = {
		.type = CELL_FRAME_RESULT,
		.flags = 1,
		.id = 0x04030201,
		.json_size = 0x00030201,
		.raw_size = 0x01020304,
		.ring_pos = 0x0807060504030201u,
	};
	const uint8_t wanted[CELL_FRAME_HEADER_BYTES] = {
		'W', 1, 66, 1, 1, 2, 3, 4, 1, 2, 3, 0, 4, 3, 2, 1, 1, 2, 3, 4, 5, 6, 7, 8,
	};
	uint8_t bytes[CELL_FRAME_HEADER_BYTES];
	cell__frame_encode_header(&frame, bytes);
	assert_memory_equal(bytes, wanted, sizeof wanted);
}

static void test_byte_by_byte(void **state)
{
	(void)state;
	const struct cell_frame in = {
		.type = CELL_FRAME_DISPLAY,
		.id = 3,
		.json = (const uint8_t *)"{}",
		.json_size = 2,
		.raw = (const uint8_t *)"0123456789",
		.raw_size = 10,
	};
	uint8_t bytes[64];
	size_t size = encode(&in, bytes);
	struct cell_frame out = { .type = 77 };
	for (size_t n = 0; n < size; n++) {
		/* From memory of exactly this size, so that a sanitizer sees a look past the end. */
		uint8_t *part = malloc(n ? n : 1);
		memcpy(part, bytes, n);
		size_t need = 0;
		assert_int_equal(cell__frame_decode(part, n, &out, &need), CELL_FRAME_MORE);
		assert_int_equal(need, n < CELL_FRAME_HEADER_BYTES ? CELL_FRAME_HEADER_BYTES : size);
		assert_int_equal(out.type, 77);
		free(part);
	}
	size_t used;
	assert_int_equal(cell__frame_decode(bytes, size, &out, &used), CELL_FRAME_OK);
	assert_same(&in, &out);
}

static void test_two_in_a_row(void **state)
{
	(void)state;
	const struct cell_frame first = { .type = CELL_FRAME_DOORBELL, .id = 1 };
	const struct cell_frame second = { .type = CELL_FRAME_HELLO, .id = 2 };
	uint8_t bytes[2 * CELL_FRAME_HEADER_BYTES];
	cell__frame_encode_header(&first, bytes);
	cell__frame_encode_header(&second, bytes + CELL_FRAME_HEADER_BYTES);
	struct cell_frame out;
	size_t used;
	assert_int_equal(cell__frame_decode(bytes, sizeof bytes, &out, &used), CELL_FRAME_OK);
	assert_int_equal(out.id, 1);
	assert_int_equal(used, CELL_FRAME_HEADER_BYTES);
	assert_int_equal(cell__frame_decode(bytes + used, sizeof bytes - used, &out, &used), CELL_FRAME_OK);
	assert_int_equal(out.id, 2);
}

static void test_bad_magic_and_version(void **state)
{
	(void)state;
	struct cell_frame out = { .type = 77 };
	size_t used = 99;
	for (int b = 0; b < 256; b++) {
		uint8_t bytes[2] = { (uint8_t)b, 0 };
		enum cell_frame_status wanted = b == CELL_FRAME_MAGIC ? CELL_FRAME_MORE : CELL_FRAME_BAD_MAGIC;
		assert_int_equal(cell__frame_decode(bytes, 1, &out, &used), wanted);
		bytes[0] = CELL_FRAME_MAGIC;
		bytes[1] = (uint8_t)b;
		wanted = b == CELL_FRAME_VERSION ? CELL_FRAME_MORE : CELL_FRAME_BAD_VERSION;
		assert_int_equal(cell__frame_decode(bytes, 2, &out, &used), wanted);
	}
	assert_int_equal(out.type, 77);
}

static void test_bad_type(void **state)
{
	(void)state;
	struct cell_frame out;
	size_t used;
	for (int type = 0; type < 256; type++) {
		bool known = memchr(types, type, sizeof types) != NULL;
		struct cell_frame in = { .type = (uint8_t)type };
		uint8_t bytes[CELL_FRAME_HEADER_BYTES];
		cell__frame_encode_header(&in, bytes);
		assert_int_equal(cell__frame_decode(bytes, sizeof bytes, &out, &used), known ? CELL_FRAME_OK : CELL_FRAME_BAD_TYPE);
		assert_int_equal(cell__frame_decode(bytes, 3, &out, &used), known ? CELL_FRAME_MORE : CELL_FRAME_BAD_TYPE);
	}
}

static void test_limits(void **state)
{
	(void)state;
	static const struct {
		uint32_t json, raw;
		enum cell_frame_status wanted;
	} rows[] = {
		{ CELL_FRAME_MAX_JSON, CELL_FRAME_MAX_RAW, CELL_FRAME_MORE },
		{ CELL_FRAME_MAX_JSON + 1, 0, CELL_FRAME_TOO_BIG },
		{ 0, CELL_FRAME_MAX_RAW + 1, CELL_FRAME_TOO_BIG },
		{ CELL_FRAME_MAX_JSON, CELL_FRAME_MAX_RAW + 1, CELL_FRAME_TOO_BIG },
		{ UINT32_MAX, UINT32_MAX, CELL_FRAME_TOO_BIG },
		{ 0x80000000u, 0x80000000u, CELL_FRAME_TOO_BIG },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_frame in = { .type = CELL_FRAME_RUN, .json_size = rows[i].json, .raw_size = rows[i].raw }, out;
		uint8_t bytes[CELL_FRAME_HEADER_BYTES];
		size_t need = 0;
		cell__frame_encode_header(&in, bytes);
		assert_int_equal(cell__frame_decode(bytes, sizeof bytes, &out, &need), rows[i].wanted);
		if (rows[i].wanted == CELL_FRAME_MORE)
			assert_int_equal(need, CELL_FRAME_HEADER_BYTES + (size_t)rows[i].json + rows[i].raw);
	}
}

static void test_largest_frame(void **state)
{
	(void)state;
	size_t size = CELL_FRAME_HEADER_BYTES + (size_t)CELL_FRAME_MAX_JSON + CELL_FRAME_MAX_RAW;
	uint8_t *bytes = cell__alloc(1, size);
	assert_non_null(bytes);
	struct cell_frame in = { .type = CELL_FRAME_RUN, .json_size = CELL_FRAME_MAX_JSON, .raw_size = CELL_FRAME_MAX_RAW };
	struct cell_frame out;
	size_t used = 0;
	cell__frame_encode_header(&in, bytes);
	assert_int_equal(cell__frame_decode(bytes, size - 1, &out, &used), CELL_FRAME_MORE);
	assert_int_equal(cell__frame_decode(bytes, size, &out, &used), CELL_FRAME_OK);
	assert_int_equal(used, size);
	assert_ptr_equal(out.raw + out.raw_size, bytes + size);
	free(bytes);
}

static void test_status_words(void **state)
{
	(void)state;
	for (int i = CELL_FRAME_OK; i <= CELL_FRAME_TOO_BIG; i++) {
		const char *word = cell__frame_status_word((enum cell_frame_status)i);
		assert_string_not_equal(word, "unknown");
		for (int k = CELL_FRAME_OK; k < i; k++)
			assert_string_not_equal(word, cell__frame_status_word((enum cell_frame_status)k));
	}
	assert_string_equal(cell__frame_status_word((enum cell_frame_status)99), "unknown");
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_round_trip),
		TEST(test_layout),
		TEST(test_byte_by_byte),
		TEST(test_two_in_a_row),
		TEST(test_bad_magic_and_version),
		TEST(test_bad_type),
		TEST(test_limits),
		TEST(test_largest_frame),
		TEST(test_status_words),
	};
	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
