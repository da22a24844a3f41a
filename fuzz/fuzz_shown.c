/*
 * wire/shown: whatever code prints or names, what a person is shown holds no control character but line breaks and tabs where
 * they may stay, is valid UTF-8 within its bounds, and a stream is the same however it is cut into chunks.
 */
#include "fuzz.h"
#include "wire/shown.h"

static void check_plain(const char *text, size_t size, bool lines)
{
	MUST(cell__utf8_ok(text, size));
	for (size_t i = 0; i < size; i++)
		MUST((unsigned char)text[i] >= 0x20 ? text[i] != 0x7f : lines && (text[i] == '\n' || text[i] == '\t'));
}

/* In a stream pass colours, ESC [ digits and semicolons m, and line ends of two characters; nothing else that is a control. */
static void check_stream(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (text[i] != 0x1b) {
			MUST((unsigned char)text[i] >= 0x20
				     ? text[i] != 0x7f
				     : text[i] == '\n' || text[i] == '\t' || (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n'));
			continue;
		}
		MUST(i + 2 < size && text[i + 1] == '[');
		for (i += 2; i < size && (text[i] == ';' || text[i] == ':' || (text[i] >= '0' && text[i] <= '9')); i++) {
		}
		MUST(i < size && text[i] == 'm');
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = fuzz_copy(data, size);
	for (int how = CELL_SHOWN_LINES; how <= CELL_SHOWN_MARKDOWN; how++) {
		char *text = cell_shown_text((const char *)bytes, size, (enum cell_shown)how);
		MUST(text);
		check_plain(text, strlen(text), how == CELL_SHOWN_LINES);
		free(text);
		char *args = NULL;
		struct cell_error err;
		if (how >= CELL_SHOWN_ASCII && cell_shown_args((const char *)bytes, size, (enum cell_shown)how, &args, &err) == 0)
			check_plain(args, strlen(args), true);
		free(args);
	}
	size_t cut = size ? bytes[0] % (size + 1) : 0, sizes[5], n = 0;
	struct cell_shown_carry whole = { .size = 0 }, parts = { .size = 0 };
	char *out[5] = {
		cell_shown_output(&whole, (const char *)bytes, size, &sizes[0]),
		cell_shown_output(&whole, NULL, 0, &sizes[1]),
		cell_shown_output(&parts, (const char *)bytes, cut, &sizes[2]),
		cell_shown_output(&parts, (const char *)bytes + cut, size - cut, &sizes[3]),
		cell_shown_output(&parts, NULL, 0, &sizes[4]),
	};
	CELL_AUTO_BUF struct cell__buf one = CELL_BUF_INIT, two = CELL_BUF_INIT;
	for (; n < 5; n++) {
		MUST(out[n] && cell__buf_add(n < 2 ? &one : &two, out[n], sizes[n]) == 0);
		free(out[n]);
	}
	check_stream(one.data, one.size);
	MUST(one.size == two.size && (one.size == 0 || memcmp(one.data, two.data, one.size) == 0));
	free(bytes);
	return 0;
}
