/* base: errors, allocation, buffers, text, whole files. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/stat.h>

#include "base/certificates.h"
#include "base/file.h"
#include "support.h"

/* ---- errors ---- */

static void test_codes(void **state)
{
	(void)state;
	static const struct {
		int code;
		const char *word;
		int http, exit_status;
	} rows[] = {
#define ROW(number, name, word, http, rpc, exit_status, py) { CELL_##name, word, http, exit_status },
		CELL_CODE_TABLE(ROW)
#undef ROW
	};
	assert_int_equal(COUNT(rows), CELL_CODE_COUNT);
	for (size_t i = 0; i < COUNT(rows); i++) {
		assert_int_equal(rows[i].code, i);
		assert_string_equal(cell_code_word(rows[i].code), rows[i].word);
		assert_int_equal(cell_code_http_status(rows[i].code), rows[i].http);
		assert_int_equal(cell_code_exit_status(rows[i].code), rows[i].exit_status);
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(rows[i].word, rows[k].word);
	}
	assert_false(cell__code_is_outcome(CELL_OK));
	assert_false(cell__code_is_outcome(CELL_E_INVALID));
	assert_true(cell__code_is_outcome(CELL_OUT_EXCEPTION));
	assert_true(cell__code_is_outcome(CELL_OUT_REJECTED));
	assert_false(cell__code_is_outcome(CELL_E_TOOL));
	assert_false(cell__code_is_outcome(CELL_E_STORAGE));
	assert_true(cell__code_is_outcome(CELL_OUT_LIMIT));
	const int unknown[] = { -1, CELL_CODE_COUNT, INT32_MAX, INT32_MIN };
	for (size_t i = 0; i < COUNT(unknown); i++) {
		assert_string_equal(cell_code_word(unknown[i]), "unknown");
		assert_int_equal(cell_code_http_status(unknown[i]), 500);
		assert_int_equal(cell_code_exit_status(unknown[i]), 125);
		assert_false(cell__code_is_outcome(unknown[i]));
	}
	/* What design.md promises of `workcell run`. */
	assert_int_equal(cell_code_exit_status(CELL_OUT_EXCEPTION), 1);
	assert_int_equal(cell_code_exit_status(CELL_OUT_TIMEOUT), 124);
	assert_int_equal(cell_code_exit_status(CELL_OUT_KERNEL_DIED), 137);
	assert_int_equal(cell_code_exit_status(CELL_E_INVALID), 2);
	assert_true(strlen(cell_version()) > 0);
}

static void test_fail(void **state)
{
	(void)state;
	struct cell_error err;
	assert_int_equal(cell_fail(NULL, CELL_E_IO, ENOENT, "open %s", "x"), -1);
	assert_int_equal(cell_fail(&err, CELL_E_IO, ENOENT, "open %s", "x"), -1);
	assert_int_equal(err.code, CELL_E_IO);
	assert_int_equal(err.sys, ENOENT);
	assert_string_equal(err.msg, "open x: No such file or directory");
	cell_fail(&err, CELL_E_LIMIT, 0, "too many");
	assert_int_equal(err.sys, 0);
	assert_string_equal(err.msg, "too many");
	/* The locale's own words would make messages differ from machine to machine. */
	cell_fail(&err, CELL_E_IO, EACCES, "read");
	assert_string_equal(err.msg, "read: Permission denied");
}

static void test_fail_truncates(void **state)
{
	(void)state;
	struct cell_error err;
	char text[600];
	/* Around the size of msg: always terminated, never past the end, the beginning is kept. */
	for (size_t n = sizeof err.msg - 4; n <= sizeof err.msg + 4; n++) {
		memset(text, 'a', n);
		text[n] = '\0';
		cell_fail(&err, CELL_E_IO, ENOENT, "%s", text);
		size_t kept = strnlen(err.msg, sizeof err.msg);
		assert_true(kept < sizeof err.msg);
		assert_true(kept >= (n < sizeof err.msg - 1 ? n : sizeof err.msg - 1));
		assert_memory_equal(err.msg, text, n < sizeof err.msg - 1 ? n : sizeof err.msg - 1);
	}
}

/* Messages end up in JSON, which has no place for half a character. */
static void test_fail_cuts_between_characters(void **state)
{
	(void)state;
	struct cell_error err;
	char text[600];
	for (size_t shift = 0; shift < 4; shift++) {
		memset(text, 'a', shift);
		for (size_t i = shift; i + 4 < sizeof text; i += 4)
			memcpy(text + i, "\xf0\x9f\x98\x80", 5);
		cell_fail(&err, CELL_E_IO, 0, "%s", text);
		assert_true(cell__utf8_ok(err.msg, strlen(err.msg)));
		cell_fail_wrap(&err, "%s", "\xc3\xa9");
		assert_true(cell__utf8_ok(err.msg, strlen(err.msg)));
		cell_fail(&err, CELL_E_IO, ENOENT, "%.*s", (int)(232 + shift), text);
		assert_true(cell__utf8_ok(err.msg, strlen(err.msg)));
	}
}

static void test_fail_wrap(void **state)
{
	(void)state;
	struct cell_error err;
	assert_int_equal(cell_fail_wrap(NULL, "x"), -1);
	cell_fail(&err, CELL_E_IO, EPIPE, "write");
	assert_int_equal(cell_fail_wrap(&err, "kernel %d", 7), -1);
	assert_string_equal(err.msg, "kernel 7: write: Broken pipe");
	assert_int_equal(err.code, CELL_E_IO);
	assert_int_equal(err.sys, EPIPE);
	for (int i = 0; i < 100; i++)
		cell_fail_wrap(&err, "layer %d", i);
	assert_true(strnlen(err.msg, sizeof err.msg) == sizeof err.msg - 1);
	assert_memory_equal(err.msg, "layer 99: layer 98: ", 20);
}

/* ---- memory ---- */

static void test_alloc(void **state)
{
	(void)state;
	CELL_AUTO_FREE char *zeroed = cell__alloc(16, 4);
	assert_non_null(zeroed);
	for (int i = 0; i < 64; i++)
		assert_int_equal(zeroed[i], 0);
	CELL_AUTO_FREE void *nothing = cell__alloc(0, 8);
	assert_non_null(nothing); /* NULL means out of memory and nothing else */
#ifndef SANITIZED /* which takes the attempt for a bug */
	/* Products that overflow; volatile keeps the compiler from seeing them coming. */
	volatile size_t huge = SIZE_MAX / 2;
	assert_null(cell__alloc(huge, 3));
	assert_null(cell__alloc(3, huge));
#endif
	CELL_AUTO_FREE char *copy = cell__strndup("ab\0cd", 5);
	assert_memory_equal(copy, "ab\0cd", 6);
	CELL_AUTO_FREE char *empty = cell__strndup(NULL, 0);
	assert_string_equal(empty, "");
	CELL_AUTO_FREE char *text = cell__strdup("text");
	assert_string_equal(text, "text");
	CELL_AUTO_FREE char *grown = cell__realloc(NULL, 0);
	assert_non_null(grown);
}

static void test_alloc_fail_after(void **state)
{
	(void)state;
	cell__alloc_fail_after(2);
	CELL_AUTO_FREE void *first = cell__alloc(1, 1);
	assert_non_null(first);
	assert_null(cell__strdup("second"));
	CELL_AUTO_FREE void *third = cell__alloc(1, 1); /* once only */
	assert_non_null(third);
	cell__alloc_fail_after(1);
	assert_null(cell__realloc(NULL, 8));
	cell__alloc_fail_after(1);
	cell__alloc_fail_after(0);
	CELL_AUTO_FREE void *fourth = cell__alloc(1, 1);
	assert_non_null(fourth);
}

static void test_take(void **state)
{
	(void)state;
	char *owner = cell__strdup("x");
	CELL_AUTO_FREE char *taken = cell__take_ptr(owner);
	assert_null(owner);
	assert_string_equal(taken, "x");
	int fd = dup(2);
	CELL_AUTO_FD int mine = cell__take_fd(&fd);
	assert_int_equal(fd, -1);
	assert_true(mine >= 0);
	int closed = dup(2);
	cell__close_fd(&closed);
	assert_int_equal(closed, -1);
	cell__close_fd(&closed); /* -1 is fine */
}

/* ---- buffers ---- */

static void test_buf(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	cell__buf_shift(&buf, 0);
	assert_int_equal(cell__buf_add(&buf, NULL, 0), 0);
	assert_int_equal(buf.size, 0);
	assert_string_equal(buf.data, "");
	assert_int_equal(cell__buf_add_str(&buf, "hello"), 0);
	assert_int_equal(cell__buf_printf(&buf, " %d %s", 42, "worlds"), 0);
	assert_string_equal(buf.data, "hello 42 worlds");
	assert_int_equal(buf.size, 15);
	cell__buf_shift(&buf, 6);
	assert_string_equal(buf.data, "42 worlds");
	cell__buf_shift(&buf, buf.size);
	assert_int_equal(buf.size, 0);
	assert_string_equal(buf.data, "");
	assert_int_equal(cell__buf_add(&buf, "a\0b", 3), 0);
	char *data = cell__buf_take(&buf);
	assert_memory_equal(data, "a\0b", 4);
	free(data);
	assert_null(buf.data);
	assert_int_equal(buf.capacity, 0);
	data = cell__buf_take(&buf); /* an empty one too gives a string */
	assert_string_equal(data, "");
	free(data);
}

static void test_buf_grows(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	for (int i = 0; i < 100000; i++) {
		char byte = (char)('a' + i % 26);
		assert_int_equal(cell__buf_add(&buf, &byte, 1), 0);
	}
	assert_int_equal(buf.size, 100000);
	for (int i = 0; i < 100000; i++)
		assert_int_equal(buf.data[i], 'a' + i % 26);
	assert_int_equal(buf.data[buf.size], '\0');
	char *big = cell__alloc(1, 70001);
	memset(big, 'z', 70000);
	assert_int_equal(cell__buf_printf(&buf, "%s|", big), 0);
	assert_int_equal(buf.size, 170001);
	assert_int_equal(buf.data[170000], '|');
	free(big);
}

static void test_buf_refuses_overflow(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	assert_int_equal(cell__buf_add_str(&buf, "kept"), 0);
	assert_int_equal(cell__buf_reserve(&buf, SIZE_MAX), -1);
	assert_int_equal(cell__buf_reserve(&buf, SIZE_MAX - 2), -1);
	assert_int_equal(cell__buf_reserve(&buf, SIZE_MAX / 2), -1);
	assert_string_equal(buf.data, "kept");
}

/* Every function that appends, with the n-th allocation failing: -1, and what was there is still there. */
static int add_by(int which, struct cell__buf *buf)
{
	static const char bytes[] = "line\n\"quoted\" \x01 and \xff bad and some length to make the buffer grow past it";
	switch (which) {
	case 0:
		return cell__buf_add(buf, bytes, sizeof bytes);
	case 1:
		return cell__buf_add_str(buf, bytes);
	case 2:
		return cell__buf_printf(buf, "%s %d", bytes, 1);
	case 3:
		return cell__buf_add_json_escaped(buf, bytes, sizeof bytes - 1);
	case 4:
		return cell__buf_add_json_string(buf, bytes, sizeof bytes - 1);
	case 5:
		return cell__buf_add_base64(buf, bytes, sizeof bytes);
	case 6:
		return cell__buf_add_utf8(buf, bytes, sizeof bytes);
	default:
		return cell__buf_reserve(buf, 1000);
	}
}

static void test_buf_without_memory(void **state)
{
	(void)state;
	for (int which = 0; which < 8; which++)
		for (long n = 1;; n++) {
			CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
			bool begun = which % 2 == 0; /* with and without something in it */
			if (begun)
				assert_int_equal(cell__buf_add_str(&buf, "before"), 0);
			cell__alloc_fail_after(n);
			int rc = add_by(which, &buf);
			cell__alloc_fail_after(0);
			assert_true(rc == 0 || rc == -1);
			if (begun)
				assert_memory_equal(buf.data, "before", 6);
			assert_true(buf.data == NULL || buf.data[buf.size] == '\0' || buf.size == 0);
			if (rc == 0)
				break;
			assert_true(n < 20);
		}
	CELL_AUTO_BUF struct cell__buf empty = CELL_BUF_INIT;
	cell__alloc_fail_after(1);
	assert_null(cell__buf_take(&empty));
}

/* ---- text ---- */

static void test_json_escape(void **state)
{
	(void)state;
	static const struct {
		const char *in;
		size_t size;
		const char *out;
	} rows[] = {
		{ "", 0, "\"\"" },
		{ "plain", 5, "\"plain\"" },
		{ "a\"b", 3, "\"a\\\"b\"" },
		{ "a\\b", 3, "\"a\\\\b\"" },
		{ "a/b", 3, "\"a/b\"" },
		{ "\n\r\t", 3, "\"\\n\\r\\t\"" },
		{ "\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\\u007f\"" },
		{ "\b\f", 2, "\"\\u0008\\u000c\"" },
		{ "\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"" },
		{ "\"\"", 2, "\"\\\"\\\"\"" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_json_string(&buf, rows[i].in, rows[i].size), 0);
		assert_string_equal(buf.data, rows[i].out);
		assert_int_equal(buf.size, strlen(rows[i].out));
	}
}

static void test_base64(void **state)
{
	(void)state;
	static const struct {
		const char *in;
		size_t size;
		const char *out;
	} rows[] = {
		/* RFC 4648, section 10 */
		{ "", 0, "" },
		{ "f", 1, "Zg==" },
		{ "fo", 2, "Zm8=" },
		{ "foo", 3, "Zm9v" },
		{ "foob", 4, "Zm9vYg==" },
		{ "fooba", 5, "Zm9vYmE=" },
		{ "foobar", 6, "Zm9vYmFy" },
		{ "\0\0\0", 3, "AAAA" },
		{ "\xff\xff\xff", 3, "////" },
		{ "\xfb\xef\xbe", 3, "++++" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_str(&buf, ">"), 0);
		assert_int_equal(cell__buf_add_base64(&buf, rows[i].in, rows[i].size), 0);
		assert_string_equal(buf.data + 1, rows[i].out);
		assert_int_equal(buf.size, strlen(rows[i].out) + 1);
		buf.size = 1;
		assert_int_equal(cell__buf_add_unbase64(&buf, rows[i].out, strlen(rows[i].out)), 0);
		assert_int_equal(buf.size, rows[i].size + 1);
		assert_memory_equal(buf.data + 1, rows[i].in, rows[i].size);
		assert_int_equal(buf.data[buf.size], 0);
	}
	/* Without padding, with spaces, in the alphabet for URLs; and what is no base64. */
	static const struct {
		const char *in, *out;
	} loose[] = { { "Zm9v Ym\r\nE", "fooba" }, { "Zg", "f" }, { " Z m 8 = ", "fo" }, { "--__", "\xfb\xef\xff" } };
	for (size_t i = 0; i < COUNT(loose); i++) {
		CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_unbase64(&buf, loose[i].in, strlen(loose[i].in)), 0);
		assert_string_equal(buf.data, loose[i].out);
	}
	static const char *const bad[] = { "Z", "Zm9vY", "Zg=", "Zg===", "=", "Z=g=", "Zm9v=", "Zm9v====", "Zm9*", "Zm9v\x80", "Zg==Zg==" };
	for (size_t i = 0; i < COUNT(bad); i++) {
		CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_str(&buf, ">"), 0);
		if (cell__buf_add_unbase64(&buf, bad[i], strlen(bad[i])) == 0)
			fail_msg("accepted: %s", bad[i]);
		assert_int_equal(buf.size, 1);
	}
}

/* What bytes.decode("utf-8", "replace") of CPython makes of each. */
static void test_utf8_table(void **state)
{
	(void)state;
#define R "\xef\xbf\xbd"
	static const struct {
		const char *in;
		size_t size;
		const char *out;
	} rows[] = {
		{ "abc", 3, "abc" },
		{ "\xc3\xa9", 2, "\xc3\xa9" },
		{ "\x80", 1, R },
		{ "\xc3", 1, R },
		{ "\xc3"
		  "A",
		  2, R "A" },
		{ "\xe2\x82\xac", 3, "\xe2\x82\xac" },
		{ "\xe2\x82", 2, R },
		{ "\xe2\x82"
		  "A",
		  3, R "A" },
		{ "\xc0\xaf", 2, R R },                                      /* overlong */
		{ "\xe0\x80\xaf", 3, R R R },                                /* overlong */
		{ "\xe0\x9f\xbf", 3, R R R },                                /* overlong */
		{ "\xed\x9f\xbf", 3, "\xed\x9f\xbf" },
		{ "\xed\xa0\x80", 3, R R R },                                /* a surrogate */
		{ "\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80" },
		{ "\xf0\x9f\x98", 3, R },
		{ "\xf0\x9f"
		  "A",
		  3, R "A" },
		{ "\xf0\x80\x80\xaf", 4, R R R R },                          /* overlong */
		{ "\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf" },
		{ "\xf4\x90\x80\x80", 4, R R R R },                          /* past U+10FFFF */
		{ "\xf5\x80\x80\x80", 4, R R R R },
		{ "\xf8\x88\x80\x80\x80", 5, R R R R R },
		{ "\xfe\xff", 2, R R },
		{ "a\xff"
		  "b\xff"
		  "c",
		  5, "a" R "b" R "c" },
		{ "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
		  "A",
		  9, R R R R "A" },  /* the Unicode standard's example */
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
		assert_int_equal(cell__buf_add_utf8(&buf, rows[i].in, rows[i].size), 0);
		assert_string_equal(buf.data, rows[i].out);
		bool good = rows[i].size == strlen(rows[i].out) && memcmp(rows[i].in, rows[i].out, rows[i].size) == 0;
		assert_int_equal(cell__utf8_ok(rows[i].in, rows[i].size), good);
	}
	CELL_AUTO_BUF struct cell__buf nul = CELL_BUF_INIT;
	assert_int_equal(cell__buf_add_utf8(&nul, "\0\xff\0", 3), 0);
	assert_int_equal(nul.size, 5);
	assert_memory_equal(nul.data, "\0" R "\0", 5);
	assert_true(cell__utf8_ok(NULL, 0));
#undef R
}

/*
 * All sequences of one to four bytes over the bytes at which something changes.  The number is the FNV-1a hash of what
 * CPython 3.11 makes of them, in the same order:
 *
 *     S = bytes.fromhex("00417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff")
 *     for n in 1, 2, 3, 4:
 *         for t in itertools.product(S, repeat=n): update(bytes(t).decode("utf-8", "replace").encode())
 */
static void test_utf8_like_python(void **state)
{
	(void)state;
	static const unsigned char s[] = { 0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
					   0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff };
	const size_t n = sizeof s;
	uint64_t hash = 0xcbf29ce484222325u;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	size_t combinations = 1;
	for (size_t length = 1; length <= 4; length++) {
		combinations *= n;
		for (size_t i = 0; i < combinations; i++) {
			char bytes[4];
			size_t rest = i;
			for (size_t k = length; k-- > 0; rest /= n)
				bytes[k] = (char)s[rest % n];
			out.size = 0;
			assert_int_equal(cell__buf_add_utf8(&out, bytes, length), 0);
			for (size_t k = 0; k < out.size; k++)
				hash = (hash ^ (unsigned char)out.data[k]) * 0x100000001b3u;
			bool same = out.size == length && memcmp(out.data, bytes, length) == 0;
			if (cell__utf8_ok(bytes, length) != same || !cell__utf8_ok(out.data, out.size))
				fail_msg("cell__utf8_ok and cell__buf_add_utf8 disagree");
		}
	}
	assert_true(hash == 0xc66a72811f8e1f0fu);
}

/* ---- small things ---- */

static void test_random_hex(void **state)
{
	(void)state;
	char a[129], b[129];
	memset(a, 'x', sizeof a);
	cell__random_hex(a, 0);
	assert_string_equal(a, "");
	cell__random_hex(a, 7);
	assert_int_equal(strlen(a), 7);
	cell__random_hex(a, 128);
	cell__random_hex(b, 128);
	assert_int_equal(strlen(a), 128);
	assert_int_equal(strspn(a, "0123456789abcdef"), 128);
	assert_string_not_equal(a, b);
}

static void test_home_and_clock(void **state)
{
	(void)state;
	struct passwd *user = getpwuid(getuid());
	assert_non_null(user);
	assert_string_equal(cell__home_dir(), user->pw_dir);
	/* Not from the environment: the library never reads it. */
	setenv("HOME", "/nonexistent", 1);
	assert_string_equal(cell__home_dir(), user->pw_dir);
	int64_t before = cell__now_us();
	int64_t after = cell__now_us();
	assert_true(before > 0 && after >= before);
}

/* ---- whole files ---- */

static char dir[] = "/tmp/workcell-base-XXXXXX";

static const char *at(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void put(const char *name, const char *bytes, size_t size)
{
	CELL_AUTO_FD int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(cell__fd_write_all(fd, bytes, size), 0);
}

static int make_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	(void)state;
	return cell_remove_tree(dir, NULL);
}

static void test_file_read(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct stat st;
	put("a", "hello", 5);
	/* At the limit, and one past it. */
	assert_int_equal(cell__file_read(AT_FDCWD, at("a"), 0, 5, &text, &st), 0);
	assert_string_equal(text.data, "hello");
	assert_int_equal(text.size, 5);
	assert_int_equal(st.st_size, 5);
	assert_int_equal(cell__file_read(AT_FDCWD, at("a"), 0, 5, &text, NULL), 0);
	assert_string_equal(text.data, "hellohello"); /* appended */
	cell__buf_finish(&text);
	assert_int_equal(cell__file_read(AT_FDCWD, at("a"), 0, 4, &text, NULL), -1);
	assert_int_equal(errno, EFBIG);
	cell__buf_finish(&text);
	/* Relative to a folder; an empty one still is a string. */
	CELL_AUTO_FD int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	put("empty", "", 0);
	assert_int_equal(cell__file_read(dir_fd, "empty", 0, 0, &text, NULL), 0);
	assert_string_equal(text.data, "");
	/* A file that does not tell its size. */
	assert_int_equal(cell__file_read(AT_FDCWD, "/proc/self/status", 0, 1 << 20, &text, NULL), 0);
	assert_non_null(strstr(text.data, "Pid:"));
	cell__buf_finish(&text);
	cell__alloc_fail_after(1);
	assert_int_equal(cell__file_read(AT_FDCWD, at("a"), 0, 5, &text, NULL), -1);
	assert_int_equal(errno, ENOMEM);
	cell__alloc_fail_after(0);
}

static void test_file_refuses(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell_error err;
	put("a", "hello", 5);
	assert_int_equal(symlink("a", at("link")), 0);
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	assert_int_equal(cell__file_read(AT_FDCWD, at("link"), CELL_FILE_NO_LINK, 9, &text, NULL), -1);
	assert_int_equal(errno, ELOOP);
	assert_int_equal(cell__file_read(AT_FDCWD, at("link"), 0, 9, &text, NULL), 0);
	/* A FIFO without a writer does not hold us up. */
	assert_int_equal(cell__file_load("the settings", at("fifo"), 0, 9, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	assert_non_null(strstr(err.msg, "/fifo is not a regular file"));
	assert_int_equal(cell__file_load("the settings", dir, 0, 9, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	assert_non_null(strstr(err.msg, "is a directory"));
	assert_int_equal(cell__file_load("the settings", at("missing"), 0, 9, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell__file_load("the settings", at("a"), 0, 4, &text, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	assert_non_null(strstr(err.msg, "is larger than 4 bytes"));
}

static void *write_pipe(void *arg)
{
	static char bytes[200000];
	memset(bytes, 'x', sizeof bytes);
	int *fd = arg;
	cell__fd_write_all(*fd, bytes, sizeof bytes);
	cell__close_fd(fd);
	return NULL;
}

static void test_file_from_pipe(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int ends[2];
	char path[64];
	pthread_t writer;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(pthread_create(&writer, NULL, write_pipe, &ends[1]), 0);
	snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
	assert_int_equal(cell__file_read(AT_FDCWD, path, CELL_FILE_ANY, 200000, &text, NULL), 0);
	assert_int_equal(text.size, 200000);
	pthread_join(writer, NULL);
	close(ends[0]);
}

static void test_first_readable(void **state)
{
	(void)state;
	assert_string_equal(cell__first_readable((const char *const[]){ "/nowhere/at/all", "/etc/passwd", "/etc/group", NULL }),
			    "/etc/passwd");
	assert_null(cell__first_readable((const char *const[]){ "/nowhere/at/all", NULL }));
	assert_null(cell__system_certificates()); /* this build has the system's libraries, which know */
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_codes),
		TEST(test_fail),
		TEST(test_fail_truncates),
		TEST(test_fail_cuts_between_characters),
		TEST(test_fail_wrap),
		TEST(test_alloc),
		TEST(test_alloc_fail_after),
		TEST(test_take),
		TEST(test_buf),
		TEST(test_buf_grows),
		TEST(test_buf_refuses_overflow),
		TEST(test_buf_without_memory),
		TEST(test_json_escape),
		TEST(test_base64),
		TEST(test_utf8_table),
		TEST(test_utf8_like_python),
		TEST(test_random_hex),
		TEST(test_home_and_clock),
		TEST(test_file_read),
		TEST(test_file_refuses),
		TEST(test_file_from_pipe),
		TEST(test_first_readable),
	};
	return cmocka_run_group_tests_name("base", tests, make_dir, remove_dir);
}
