/*
 * wire/jupyter.  Input: parts, each with two bytes for its size before it.  Decoded once as it is, and once with the signature
 * that it should have, so that what comes behind the check is reached.
 */
#include "fuzz.h"
#include "wire/jupyter.h"

#define KEY "key"

static void check(const struct cell__jupyter_part *parts, size_t n, struct cell__jupyter_seen *seen, bool may_be_good)
{
	struct cell__jupyter_message message;
	enum cell__jupyter_status status = cell__jupyter_decode(parts, n, KEY, seen, &message);
	MUST(strcmp(cell__jupyter_status_word(status), "?") != 0);
	if (status != CELL_JUPYTER_OK)
		return;
	MUST(may_be_good);
	MUST(message.type && message.id && message.parent_id && message.parent_session);
	MUST(strlen(message.type) <= CELL_JUPYTER_ID_BYTES && strlen(message.id) <= CELL_JUPYTER_ID_BYTES);
	MUST(json_is_object(message.content));
	cell__jupyter_message_finish(&message);
	MUST(cell__jupyter_decode(parts, n, KEY, seen, &message) == CELL_JUPYTER_REPLAYED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell__jupyter_part parts[CELL_JUPYTER_MAX_PARTS];
	uint8_t *copies[CELL_JUPYTER_MAX_PARTS];
	static struct cell__jupyter_seen seen;
	size_t n = 0, at = 0;
	memset(&seen, 0, sizeof seen);
	while (at + 2 <= size && n < CELL_JUPYTER_MAX_PARTS) {
		size_t length = data[at] | (size_t)data[at + 1] << 8;
		at += 2;
		if (length > size - at)
			length = size - at;
		copies[n] = fuzz_copy(data + at, length);
		parts[n] = (struct cell__jupyter_part){ copies[n], length };
		at += length;
		n++;
	}
	check(parts, n, &seen, true);
	struct cell__jupyter_connection connection;
	struct cell_error err;
	if (n > 0 && cell__jupyter_connection_parse(parts[0].data, parts[0].size, &connection, &err) == 0)
		MUST(*connection.key && strlen(connection.endpoint[CELL_JUPYTER_PORT_HB]) > 0);
	/* The same with a header of ours: five parts behind a delimiter, the content from outside. */
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	char signature[CELL_JUPYTER_SIGNATURE_BYTES + 1];
	const struct cell__jupyter_out out = {
		.type = "status",
		.id = "1",
		.session = "2",
		.date = "3",
		.metadata = "{}",
		.content = n ? parts[n - 1].data : "{}",
		.content_size = n ? parts[n - 1].size : 2,
	};
	MUST(cell__jupyter_encode(&out, KEY, &header, signature) == 0);
	const struct cell__jupyter_part signed_parts[] = {
		{ CELL_JUPYTER_DELIMITER, 9 },     { signature, 64 }, { header.data, header.size }, { "{}", 2 }, { "{}", 2 },
		{ out.content, out.content_size },
	};
	check(signed_parts, 6, &seen, true);
	signature[0] ^= 1;
	check(signed_parts, 6, &seen, false);
	for (size_t i = 0; i < n; i++)
		free(copies[i]);
	return 0;
}
