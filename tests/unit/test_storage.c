/* Artifacts through the calls of real kernels: pieces in frames and in shared memory, several under way, all the ways out. */
#define _GNU_SOURCE
#include "support.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/base.h"

struct place {
	struct cell_engine *engine;
	struct cell_space *space;
	struct cell_session *session;
	char dir[64];
};

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st, (void)kind, (void)where;
	return remove(path);
}

/* What the cells of these tests use. */
static const char prelude[] =
	"import os\n"
	"from workcell_kernel import rpc\n"
	"channel = artifacts._channel\n"
	"link = channel.link\n"
	"def begin(name):\n"
	"    return channel.call('artifacts.save_begin', {'name': name, 'type': 'bytes', 'description': '', 'metadata': {}})[0]['handle']\n"
	"def failure(method, **args):\n"
	"    try:\n"
	"        return channel.call(method, args)\n"
	"    except Exception as exc:\n"
	"        return '%s: %s' % (exc.code, exc)\n";

static void open_place(struct place *place)
{
	struct cell_space_options space_options = CELL_SPACE_OPTIONS_INIT;
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	*place = (struct place){ .engine = support_engine(0), .dir = "/tmp/workcell-test-storage-XXXXXX" };
	assert_non_null(mkdtemp(place->dir));
	space_options.storage = place->dir;
	space_options.cache_dir = place->dir;
	if (cell_space_open(place->engine, &space_options, &place->space, &err) < 0)
		fail_msg("%s", err.msg);
	options.python = TEST_PYTHON;
	options.space = place->space;
	place->session = support_session_with(place->engine, &options);
	support_expect(place->session, prelude, NULL);
}

static void close_place(struct place *place)
{
	cell_session_close(place->session);
	cell_space_close(place->space);
	cell_engine_destroy(place->engine);
	assert_int_equal(nftw(place->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void test_sizes(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(
		place.session,
		"bad = []\n"
		"sizes = [0, 1, rpc.SMALL, rpc.SMALL + 1, rpc.CHUNK - 1, rpc.CHUNK, rpc.CHUNK + 1, 4 * rpc.CHUNK, 9 * rpc.CHUNK + 7]\n"
		"for size in sizes:\n"
		"    data = os.urandom(size)\n"
		"    for kind in (bytes, bytearray, memoryview):\n"
		"        artifacts.save('x', kind(data))\n"
		"        if artifacts.load('x') != data: bad.append((size, kind))\n"
		"bad, len(channel.places)",
		"([], 4)");
	support_expect(place.session,
		       "big = os.urandom(3 * rpc.CHUNK + 5)\n"
		       "artifacts.save_file('f', '/proc/self/status') and artifacts.load('f')[:5], "
		       "artifacts.save('g', 'é' * 400000) and artifacts.load('g') == 'é' * 400000",
		       "(b'Name:', True)");
	close_place(&place);
}

/* ---- whole ones, by the host ---- */

struct stream {
	char *bytes; /* all that came */
	size_t size, calls;
	size_t left, fail_at; /* to be given; where it fails */
	char piece[100000];
};

static int take(void *arg, const void *bytes, size_t size, int64_t whole, struct cell_error *err)
{
	struct stream *stream = arg;
	stream->calls++;
	if (stream->fail_at && stream->size + size >= stream->fail_at) {
		*err = (struct cell_error){ .code = CELL_E_IO, .msg = "the disk is full" };
		return -1;
	}
	assert_true(size > 0 && stream->size + size <= (size_t)whole);
	stream->bytes = stream->bytes ? stream->bytes : malloc((size_t)whole);
	memcpy(stream->bytes + stream->size, bytes, size);
	stream->size += size;
	return 0;
}

static int more(void *arg, const void **ret_bytes, size_t *ret_size, struct cell_error *err)
{
	struct stream *stream = arg;
	if (stream->fail_at && stream->left <= stream->fail_at) {
		*err = (struct cell_error){ .code = CELL_E_IO, .msg = "cannot read any more" };
		return -1;
	}
	*ret_size = stream->left < sizeof stream->piece ? stream->left : sizeof stream->piece;
	stream->left -= *ret_size;
	memset(stream->piece, 'm', sizeof stream->piece);
	*ret_bytes = stream->piece;
	return 0;
}

static void expect_loaded(struct place *place, const char *args, const char *bytes, size_t size, bool in_pieces)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	struct stream *stream = calloc(1, sizeof *stream);
	if (cell_artifact_load(place->space, args, take, stream, &answer, &err) < 0)
		fail_msg("%s", err.msg);
	assert_non_null(strstr(answer.json, "\"type\":\"text\""));
	assert_int_equal(stream->size, size);
	assert_true(size == 0 || memcmp(stream->bytes, bytes, size) == 0);
	assert_int_equal(stream->calls > 1, in_pieces);
	/* A single piece stays. */
	assert_int_equal(answer.raw_size, in_pieces ? 0 : size);
	cell_answer_finish(&answer);
	free(stream->bytes);
	free(stream);
}

static void test_whole(void **state)
{
	(void)state;
	static struct place place;
	static const size_t small = 16u << 20;
	static const size_t sizes[] = { 0, 1, 1 << 20, (16u << 20) - 1, 16u << 20, (16u << 20) + 1 };
	open_place(&place);
	char *bytes = malloc(small + 1);
	for (size_t i = 0; i <= small; i++)
		bytes[i] = (char)(i * 31 + i / 4099);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct cell_answer answer = CELL_ANSWER_INIT;
		struct cell_error err = { 0 };
		if (cell_artifact_save(place.space, "{\"name\":\"d/w\",\"type\":\"text\",\"metadata\":{\"k\":1}}", bytes, sizes[i], NULL,
				       NULL, &answer, &err) < 0)
			fail_msg("%s", err.msg);
		assert_non_null(strstr(answer.json, "\"k\":1"));
		cell_answer_finish(&answer);
		expect_loaded(&place, "{\"name\":\"d/w\"}", bytes, sizes[i], sizes[i] > small);
	}
	/* With more to come it is saved in chunks, however little there is. */
	struct stream *stream = calloc(1, sizeof *stream);
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	stream->left = 250000;
	assert_int_equal(cell_artifact_save(place.space, "{\"name\":\"m\",\"type\":\"text\"}", "m", 1, more, stream, &answer, &err), 0);
	cell_answer_finish(&answer);
	memset(bytes, 'm', 250001);
	expect_loaded(&place, "{\"name\":\"m\"}", bytes, 250001, false);
	free(stream);
	free(bytes);
	close_place(&place);
}

static void expect_call(struct place *place, const char *method, const char *args, const void *raw, size_t size, int code,
			const char *words)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	int rc = cell_space_call_ex(place->space, method, args, raw, size, &answer, &err);
	if (rc < 0 ? err.code != code || !strstr(answer.message, words) : code != 0)
		fail_msg("%s %s: %d %s", method, args, rc, rc < 0 ? answer.message : answer.json);
	cell_answer_finish(&answer);
}

static void test_whole_refused(void **state)
{
	(void)state;
	static struct place place;
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	struct stream *stream = calloc(1, sizeof *stream);
	open_place(&place);
	expect_call(&place, "artifacts.save", "{\"name\":\"a\"}", "12345", 5, 0, "");
	expect_call(&place, "artifacts.load", "{\"name\":\"a\",\"max_bytes\":5}", NULL, 0, 0, "");
	expect_call(&place, "artifacts.load", "{\"name\":\"a\",\"max_bytes\":4}", NULL, 0, CELL_E_LIMIT,
		    "5 bytes, but an answer may have at most 4");
	expect_call(&place, "artifacts.load", "{\"name\":\"b\"}", NULL, 0, CELL_E_NOT_FOUND, "b");
	expect_call(&place, "artifacts.save", "{\"name\":\"../a\"}", "x", 1, CELL_E_INVALID, "");
	expect_call(&place, "artifacts.save", "{\"name\":\"a\\u0000b\"}", "x", 1, CELL_E_INVALID, "NUL");
	/* One byte past what a call carries: refused before any of it is looked at. */
	size_t past = (size_t)CELL_LIMIT_ARTIFACT_WHOLE + 1;
	void *huge = mmap(NULL, past, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(huge != MAP_FAILED);
	expect_call(&place, "artifacts.save", "{\"name\":\"h\"}", huge, past, CELL_E_LIMIT, "at most 1073741824 bytes");
	munmap(huge, past);
	/* Who gives or takes fails: that is what is told, and nothing is kept. */
	stream->left = 250000;
	stream->fail_at = 100000;
	assert_int_equal(cell_artifact_save(place.space, "{\"name\":\"m\"}", "m", 1, more, stream, &answer, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	assert_string_equal(answer.message, "cannot read any more");
	cell_answer_finish(&answer);
	expect_call(&place, "artifacts.load", "{\"name\":\"m\"}", NULL, 0, CELL_E_NOT_FOUND, "m");
	stream->fail_at = 1;
	assert_int_equal(cell_artifact_load(place.space, "{\"name\":\"a\"}", take, stream, &answer, &err), -1);
	assert_string_equal(answer.message, "the disk is full");
	cell_answer_finish(&answer);
	/* Kernels have none of it: the host would hold their artifacts in memory. */
	support_expect(place.session, "failure('artifacts.save', name='x'), failure('artifacts.load', name='a')",
		       "('invalid: there is no method \"artifacts.save\"', 'invalid: there is no method \"artifacts.load\"')");
	free(stream);
	close_place(&place);
}

/* Calls that nobody waits for in between are carried out in their order. */
static void test_order(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session,
		       "def pour(name, number):\n"
		       "    handle = begin(name)\n"
		       "    slots = [channel.submit('artifacts.save_chunk', {'handle': handle}, b'%06d' % n) for n in range(number)]\n"
		       "    slots.append(channel.submit('artifacts.save_commit', {'handle': handle}))\n"
		       "    answers = []\n"
		       "    for slot in slots:\n"
		       "        try:\n"
		       "            channel.wait(slot)\n"
		       "            answers.append('')\n"
		       "        except Exception as exc:\n"
		       "            answers.append(exc.code)\n"
		       "    return answers\n"
		       "ok = [pour('a%d' % i, 12) == [''] * 13 and artifacts.load('a%d' % i) == b''.join(b'%06d' % n for n in range(12))\n"
		       "      for i in range(20)]\n"
		       "all(ok)",
		       "True");
	/* Past the limit they are refused one by one, and those that are taken keep their order. */
	support_expect(place.session,
		       "seen = set()\n"
		       "for i in range(20):\n"
		       "    answers = pour('b', 60)\n"
		       "    seen.update(answers)\n"
		       "    if answers[-1] == '':\n"
		       "        assert artifacts.load('b') == b''.join(b'%06d' % n for n in range(60) if answers[n] == '')\n"
		       "seen <= {'', 'limit'} and '' in seen",
		       "True");
	close_place(&place);
}

static void test_reads_overlap(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(
		place.session,
		"data = os.urandom(3000000)\n"
		"artifacts.save('d', data)\n"
		"handle = channel.call('artifacts.load_open', {'name': 'd'})[0]['handle']\n"
		"slots = [channel.submit('artifacts.load_chunk', {'handle': handle, 'offset': n * 100000, 'size': 100000}) for n in range(12)]\n"
		"frames = [channel.wait(slot)[1] for slot in slots]\n"
		"places = [channel.call('artifacts.load_chunk', {'handle': handle, 'offset': 5, 'size': 1000, 'at': at})[0] for at in (0, 2000, 2097152 - 1000)]\n"
		"views = [bytes(channel.bulk[at:at + 1000]) == data[5:1005] for at in (0, 2000, 2097152 - 1000)]\n"
		"end = channel.call('artifacts.load_chunk', {'handle': handle, 'offset': 2999999, 'size': 1000, 'at': 0})[0]\n"
		"past = channel.call('artifacts.load_chunk', {'handle': handle, 'offset': 3000001, 'size': 1000, 'at': 0})[0]\n"
		"channel.call('artifacts.load_close', {'handle': handle})\n"
		"b''.join(frames) == data[:1200000], places, views, end, past",
		"(True, [1000, 1000, 1000], [True, True, True], 1, 0)");
	close_place(&place);
}

/* Nothing outside of the shared memory can be named, and no handle of somebody else. */
static void test_refused(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(
		place.session,
		"handle = begin('w')\n"
		"bad = []\n"
		"for at, size in ((-1, 10), (2097152, 1), (2097151, 2), (0, 2097153), (2**62, 10), (0, 0), (0, -5), ('0', 10), (None, 10), (0.5, 10), (0, None), (2**63 - 1, 2**63 - 1)):\n"
		"    said = failure('artifacts.save_chunk', handle=handle, at=at, size=size)\n"
		"    if 'invalid: ' not in str(said): bad.append((at, size, said))\n"
		"bad",
		"[]");
	support_expect(
		place.session,
		"channel.call('artifacts.save_chunk', {'handle': handle}, b'all')\n"
		"channel.call('artifacts.save_commit', {'handle': handle})\n"
		"reader = channel.call('artifacts.load_open', {'name': 'w'})[0]['handle']\n"
		"bad = []\n"
		"for args in ({'offset': -1, 'size': 1}, {'offset': 0, 'size': 0}, {'offset': 0, 'size': 2**40}, {'offset': 0, 'size': 1, 'at': 2097152},\n"
		"             {'offset': 0, 'size': 1, 'at': -1}, {'offset': 0, 'size': 1, 'at': 'x'}, {'size': 1, 'at': 2**63 - 1, 'offset': 0}):\n"
		"    said = failure('artifacts.load_chunk', handle=reader, **args)\n"
		"    if 'invalid: ' not in str(said): bad.append((args, said))\n"
		"bad, failure('artifacts.load_chunk', handle=reader + 1, offset=0, size=1), failure('artifacts.save_chunk', handle=reader)",
		"([], 'invalid: this session has no open artifact with handle 3', 'invalid: this session has no open artifact with handle 2')");
	support_expect(place.session,
		       "try:\n"
		       "    channel.call('artifacts.save_chunk', {'handle': begin('v')}, bytes(4 * 1024 * 1024 + 1))\n"
		       "except Exception as exc:\n"
		       "    code = exc.code\n"
		       "code, artifacts.load('w')",
		       "('limit', b'all')");
	close_place(&place);
}

/* What is closed while pieces wait for it fails them, and takes nothing else along. */
static void test_closed_under_pieces(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session,
		       "codes = set()\n"
		       "for i in range(30):\n"
		       "    handle = begin('x')\n"
		       "    slots = [channel.submit('artifacts.save_chunk', {'handle': handle}, bytes(100000)) for n in range(3)]\n"
		       "    slots.append(channel.submit('artifacts.save_abort', {'handle': handle}))\n"
		       "    slots += [channel.submit('artifacts.save_chunk', {'handle': handle}, bytes(1000)) for n in range(5)]\n"
		       "    for slot in slots[:4]: channel.wait(slot)\n"
		       "    for slot in slots[4:]:\n"
		       "        try:\n"
		       "            channel.wait(slot)\n"
		       "            codes.add('')\n"
		       "        except Exception as exc:\n"
		       "            codes.add(exc.code)\n"
		       "codes, artifacts.exists('x'), [n for n in os.listdir(artifacts.path) if 'tmp' in n]",
		       "({'invalid'}, False, [])");
	close_place(&place);
}

static bool file_is_there(void *arg)
{
	return access(arg, F_OK) == 0;
}

struct ending {
	struct place *place;
	char flag[128];
	bool reset;
};

static void *end_session(void *arg)
{
	struct ending *ending = arg;
	CHECK(support_wait(file_is_there, ending->flag));
	if (ending->reset)
		CHECK(cell_session_reset(ending->place->session, NULL) == 0);
	else
		CHECK(cell_session_interrupt(ending->place->session, NULL) == 0);
	return NULL;
}

/* The kernel is killed, or interrupted, while pieces are under way: old or new, nothing left over, and it goes on. */
static void test_interrupted(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session, "artifacts.save('keep', b'old'); 1", "1");
	for (int i = 0; i < 8; i++) {
		struct ending ending = { .place = &place, .reset = i % 2 };
		char code[512];
		pthread_t thread;
		snprintf(ending.flag, sizeof ending.flag, "%s/flag%d", place.dir, i);
		snprintf(code, sizeof code,
			 "import os, threading\n"
			 "data = os.urandom(1 << 20) * 64\n"
			 "open('%s', 'w').close()\n"
			 "while True:\n"
			 "    artifacts.save('keep', data)\n"
			 "    assert artifacts.load('keep') == data\n",
			 ending.flag);
		assert_int_equal(pthread_create(&thread, NULL, end_session, &ending), 0);
		struct cell_result *result = support_run(place.session, code);
		pthread_join(thread, NULL);
		assert_int_equal(support_outcome(result), CELL_OUT_INTERRUPTED);
		assert_int_equal(cell_result_state_kept(result), !ending.reset);
		cell_result_destroy(result);
		support_expect(place.session, "len(artifacts.load('keep')) in (3, 64 << 20)", "True");
		support_expect(place.session,
			       "import os\ndata = os.urandom(5000000)\nartifacts.save('other', data)\nartifacts.load('other') == data",
			       "True");
	}
	/* The folder holds what it should: a temporary file of an end a moment ago may still be on its way out. */
	support_expect(place.session,
		       "import time\n"
		       "def left(): return [n for n in os.listdir(artifacts.path) if 'tmp' in n]\n"
		       "end = time.monotonic() + 20\n"
		       "while left() and time.monotonic() < end: time.sleep(0.01)\n"
		       "left()",
		       "[]");
	close_place(&place);
}

/* Threads share what memory there is. */
static void test_threads(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session,
		       "import threading\n"
		       "ok = []\n"
		       "def work(i):\n"
		       "    data = os.urandom(1 << 20) * 3 + bytes([i])\n"
		       "    for n in range(6):\n"
		       "        artifacts.save('t%d' % i, data)\n"
		       "        ok.append(artifacts.load('t%d' % i) == data)\n"
		       "threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
		       "for t in threads: t.start()\n"
		       "for t in threads: t.join()\n"
		       "len(ok), all(ok), sorted(channel.places)",
		       "(24, True, [0, 524288, 1048576, 1572864])");
	close_place(&place);
}

#ifndef SANITIZED
/* The host's own memory does not grow with what passes through it, and the shared memory is given back. */
static void test_memory(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session, "data = os.urandom(1 << 20) * 8\nartifacts.save('m', data); artifacts.load('m') == data", "True");
	long before = support_private_kb();
	support_expect(place.session, "data = data * 16\nartifacts.save('m', data); artifacts.load('m') == data", "True");
	long after = support_private_kb();
	if (after - before > 4096)
		fail_msg("the host grew by %ld KB while 128 MB passed twice", after - before);
	support_expect(place.session,
		       "with open('/proc/self/smaps') as f: text = f.read()\n"
		       "ring = text[text.index('workcell-ring'):]\n"
		       "int(ring[ring.index('Rss:') + 4:].split()[0]) < 1024",
		       "True");
	close_place(&place);
}
#endif

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_sizes),         TEST(test_whole),   TEST(test_whole_refused),       TEST(test_order),
		TEST(test_reads_overlap), TEST(test_refused), TEST(test_closed_under_pieces), TEST(test_interrupted),
		TEST(test_threads),
#ifndef SANITIZED
		TEST(test_memory),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
