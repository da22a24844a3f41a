/* wire/jupyter: the codec of Jupyter's messages. */
#include "support.h"
#include "cli/jupyter.h"
#include "wire/jupyter.h"

#define KEY "0f2e4d6c"

struct made {
	struct cell__buf header;
	char signature[CELL_JUPYTER_SIGNATURE_BYTES + 1];
	struct cell__jupyter_part parts[7];
};

/* A message as it travels, with a routing id before it. */
static void make(struct made *made, const char *type, const char *content)
{
	const struct cell__jupyter_out out = {
		.type = type,
		.id = "m-1",
		.session = "s-1",
		.date = "2026-01-01T00:00:00Z",
		.metadata = "{}",
		.content = content,
		.content_size = strlen(content),
	};
	*made = (struct made){ 0 };
	assert_int_equal(cell__jupyter_encode(&out, KEY, &made->header, made->signature), 0);
	made->parts[0] = (struct cell__jupyter_part){ "topic", 5 };
	made->parts[1] = (struct cell__jupyter_part){ CELL_JUPYTER_DELIMITER, strlen(CELL_JUPYTER_DELIMITER) };
	made->parts[2] = (struct cell__jupyter_part){ made->signature, CELL_JUPYTER_SIGNATURE_BYTES };
	made->parts[3] = (struct cell__jupyter_part){ made->header.data, made->header.size };
	made->parts[4] = (struct cell__jupyter_part){ "{}", 2 };
	made->parts[5] = (struct cell__jupyter_part){ "{}", 2 };
	made->parts[6] = (struct cell__jupyter_part){ content, strlen(content) };
}

static enum cell__jupyter_status decode(const struct made *made, size_t n, struct cell__jupyter_seen *seen)
{
	struct cell__jupyter_message message;
	enum cell__jupyter_status status = cell__jupyter_decode(made->parts, n, KEY, seen, &message);
	if (status == CELL_JUPYTER_OK)
		cell__jupyter_message_finish(&message);
	return status;
}

static void test_round_trip(void **state)
{
	(void)state;
	struct made made;
	static struct cell__jupyter_seen seen;
	struct cell__jupyter_message message;
	make(&made, "execute_request", "{\"code\":\"1\"}");
	assert_int_equal(cell__jupyter_decode(made.parts, 7, KEY, &seen, &message), CELL_JUPYTER_OK);
	assert_string_equal(message.type, "execute_request");
	assert_string_equal(message.id, "m-1");
	assert_string_equal(message.parent_id, "");
	assert_string_equal(json_string_value(json_object_get(message.content, "code")), "1");
	cell__jupyter_message_finish(&message);
	cell__buf_finish(&made.header);
}

/* Signed by another program: hmac.new(b"0f2e4d6c", header + parent + metadata + content, hashlib.sha256).hexdigest(). */
static void test_known_signature(void **state)
{
	(void)state;
	static struct cell__jupyter_seen seen;
	static const char header[] = "{\"msg_id\":\"a\",\"msg_type\":\"status\"}";
	static const char signature[] = "fc1ff528719637e05090529230256381697f065f27acd61dcf654d6c8d6a6840";
	struct cell__jupyter_part parts[] = { { CELL_JUPYTER_DELIMITER, 9 },
					      { signature, 64 },
					      { header, sizeof header - 1 },
					      { "{\"msg_id\":\"p\",\"session\":\"q\"}", 28 },
					      { "{}", 2 },
					      { "{}", 2 },
					      { "buffer", 6 } };
	struct cell__jupyter_message message;
	assert_int_equal(cell__jupyter_decode(parts, COUNT(parts), KEY, &seen, &message), CELL_JUPYTER_OK);
	assert_string_equal(message.parent_id, "p");
	assert_string_equal(message.parent_session, "q");
	cell__jupyter_message_finish(&message);
}

static void test_every_error(void **state)
{
	(void)state;
	struct made made;
	static struct cell__jupyter_seen seen;
	make(&made, "status", "{}");
	assert_int_equal(decode(&made, 1, &seen), CELL_JUPYTER_NO_DELIMITER);
	assert_int_equal(decode(&made, 6, &seen), CELL_JUPYTER_TOO_SHORT);
	struct made changed = made;
	changed.signature[0] = made.signature[0] == 'a' ? 'b' : 'a';
	changed.parts[2].data = changed.signature;
	assert_int_equal(decode(&changed, 7, &seen), CELL_JUPYTER_BAD_SIGNATURE);
	changed = made;
	changed.parts[2].size = 0; /* unsigned, as a kernel without a key would send it */
	assert_int_equal(decode(&changed, 7, &seen), CELL_JUPYTER_BAD_SIGNATURE);
	changed = made;
	changed.parts[6] = (struct cell__jupyter_part){ "{ }", 3 };
	assert_int_equal(decode(&changed, 7, &seen), CELL_JUPYTER_BAD_SIGNATURE);
	changed = made;
	changed.parts[6].size = (size_t)CELL_JUPYTER_MAX_PART_BYTES + 1;
	assert_int_equal(decode(&changed, 7, &seen), CELL_JUPYTER_TOO_BIG);
	assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_OK);
	assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_REPLAYED);
	cell__buf_finish(&made.header);
	make(&made, "status", "[]");
	assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_NOT_JSON);
	cell__buf_finish(&made.header);
	make(&made, "\",\"msg_type\":3,\"x\":\"", "{}");
	assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_BAD_HEADER);
	cell__buf_finish(&made.header);
	for (int i = CELL_JUPYTER_OK; i <= CELL_JUPYTER_BAD_HEADER; i++)
		assert_string_not_equal(cell__jupyter_status_word((enum cell__jupyter_status)i), "?");
}

/* The memory of signatures has an end; the newest are in it. */
static void test_seen_is_bounded(void **state)
{
	(void)state;
	static struct cell__jupyter_seen seen;
	char content[64];
	for (unsigned i = 0; i < CELL_JUPYTER_SEEN + 10; i++) {
		struct made made;
		snprintf(content, sizeof content, "{\"n\":%u}", i);
		make(&made, "status", content);
		assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_OK);
		assert_int_equal(decode(&made, 7, &seen), CELL_JUPYTER_REPLAYED);
		cell__buf_finish(&made.header);
	}
	assert_true(seen.n == CELL_JUPYTER_SEEN);
}

/* ---- the other way: Workcell as a kernel ---- */

#define CONNECTION(rest) \
	"{\"transport\":\"tcp\",\"ip\":\"127.0.0.1\",\"iopub_port\":2,\"stdin_port\":3,\"control_port\":4,\"hb_port\":65535," rest "}"

static int parse(const char *text, struct cell__jupyter_connection *connection, struct cell_error *err)
{
	return cell__jupyter_connection_parse(text, strlen(text), connection, err);
}

static void test_connection(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		"[]",
		CONNECTION("\"shell_port\":1"),
		CONNECTION("\"shell_port\":1,\"key\":\"\""),
		CONNECTION("\"shell_port\":0,\"key\":\"k\""),
		CONNECTION("\"shell_port\":65536,\"key\":\"k\""),
		CONNECTION("\"shell_port\":\"1\",\"key\":\"k\""),
		CONNECTION("\"shell_port\":1,\"key\":\"k\",\"signature_scheme\":\"hmac-md5\""),
	};
	struct cell__jupyter_connection connection = { 0 };
	struct cell_error err;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_int_equal(parse(bad[i], &connection, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_string_equal(connection.key, "");
	}
	assert_int_equal(parse(CONNECTION("\"shell_port\":1,\"key\":\"k\""), &connection, &err), 0);
	assert_string_equal(connection.endpoint[CELL_JUPYTER_PORT_SHELL], "tcp://127.0.0.1:1");
	assert_string_equal(connection.endpoint[CELL_JUPYTER_PORT_HB], "tcp://127.0.0.1:65535");
	/* The longest key, and one more. */
	char text[1024], key[CELL_JUPYTER_MAX_KEY_BYTES + 2];
	memset(key, 'k', sizeof key);
	key[CELL_JUPYTER_MAX_KEY_BYTES] = '\0';
	snprintf(text, sizeof text, CONNECTION("\"shell_port\":1,\"key\":\"%s\""), key);
	assert_int_equal(parse(text, &connection, &err), 0);
	key[CELL_JUPYTER_MAX_KEY_BYTES] = 'k';
	key[CELL_JUPYTER_MAX_KEY_BYTES + 1] = '\0';
	snprintf(text, sizeof text, CONNECTION("\"shell_port\":1,\"key\":\"%s\""), key);
	assert_int_equal(parse(text, &connection, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
}

static void test_a_parent_is_signed(void **state)
{
	(void)state;
	static struct cell__jupyter_seen seen;
	struct cell__jupyter_message message;
	struct made made;
	const char *parent = "{\"msg_id\":\"p-1\",\"session\":\"s-2\"}";
	make(&made, "status", "{}");
	made.parts[4] = (struct cell__jupyter_part){ parent, strlen(parent) };
	assert_int_equal(cell__jupyter_decode(made.parts, 7, KEY, &seen, &message), CELL_JUPYTER_BAD_SIGNATURE);
	const struct cell__jupyter_out out = { .type = "status",
					       .id = "m-1",
					       .session = "s-1",
					       .date = "d",
					       .parent = parent,
					       .metadata = "{}",
					       .content = "{}",
					       .content_size = 2 };
	cell__buf_finish(&made.header);
	made.header = (struct cell__buf)CELL_BUF_INIT;
	assert_int_equal(cell__jupyter_encode(&out, KEY, &made.header, made.signature), 0);
	made.parts[3] = (struct cell__jupyter_part){ made.header.data, made.header.size };
	assert_int_equal(cell__jupyter_decode(made.parts, 7, KEY, &seen, &message), CELL_JUPYTER_OK);
	assert_string_equal(message.parent_id, "p-1");
	assert_int_equal(message.n_ids, 1);
	assert_int_equal(message.buffers, 7);
	cell__jupyter_message_finish(&message);
	cell__buf_finish(&made.header);
}

static size_t count(const struct cell_cli_history *history, json_t *question)
{
	json_t *found = cell__cli_history_find(history, question);
	size_t n = json_array_size(found);
	json_decref(found);
	json_decref(question);
	return n;
}

static void test_history_is_bounded(void **state)
{
	(void)state;
	static struct cell_cli_history history;
	for (unsigned i = 1; i <= CELL_CLI_MAX_HISTORY + 5; i++)
		cell__cli_history_add(&history, i, i % 2 ? "odd" : "even", i % 2 ? "1" : NULL);
	assert_int_equal(history.n, CELL_CLI_MAX_HISTORY);
	assert_int_equal(count(&history, json_pack("{s:s, s:i}", "hist_access_type", "tail", "n", 3)), 3);
	assert_int_equal(count(&history, json_pack("{s:s, s:i, s:i}", "hist_access_type", "range", "start", 1, "stop", 8)), 2);
	assert_int_equal(count(&history, json_pack("{s:s, s:s, s:b}", "hist_access_type", "search", "pattern", "*d*", "unique", 1)), 1);
	assert_int_equal(count(&history, json_pack("{}")), CELL_CLI_MAX_HISTORY);
	/* Bytes: one that fits alone pushes out the others, one byte more is not kept. */
	char *large = malloc(CELL_CLI_MAX_HISTORY_BYTES + 2);
	memset(large, 'x', CELL_CLI_MAX_HISTORY_BYTES + 1);
	large[CELL_CLI_MAX_HISTORY_BYTES + 1] = '\0';
	cell__cli_history_add(&history, 1, large, NULL);
	assert_int_equal(history.n, CELL_CLI_MAX_HISTORY);
	large[CELL_CLI_MAX_HISTORY_BYTES] = '\0';
	cell__cli_history_add(&history, 2, large, NULL);
	assert_int_equal(history.n, 1);
	free(large);
	cell__cli_history_finish(&history);
	assert_int_equal(history.bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),         cmocka_unit_test(test_known_signature),
		cmocka_unit_test(test_every_error),        cmocka_unit_test(test_seen_is_bounded),
		cmocka_unit_test(test_connection),         cmocka_unit_test(test_a_parent_is_signed),
		cmocka_unit_test(test_history_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
