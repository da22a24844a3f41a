/*
 * What E2B's clients send beside JSON and messages (server/e2b): the first byte says whether the rest is a time, a domain or the body that asks for a
 * network.  A network that is given has as many hosts as the list, or none at all; a domain that passes has no other characters than a name.
 */
#include "fuzz.h"

#include "server/e2b/e2b.h"

static void check_network(const char *text, size_t size)
{
	json_t *body = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct cell_server *server = calloc(1, sizeof(*server));
	struct cell_error err = { 0 };
	char *network = NULL;
	size_t hosts = 1;

	if (!server)
		abort();
	server->session.network = "full";
	if (json_is_object(body) && cell__e2b_network(server, body, &network, &err) == 0 && network && strcmp(network, "none")) {
		MUST(!strncmp(network, "allow=", 6));
		for (const char *at = network; *at; at++)
			hosts += *at == ',';
		MUST(hosts == json_array_size(json_object_get(json_object_get(body, "network"), "allowOut")));
	}
	MUST(!err.code || !network);
	free(network);
	free(server);
	json_decref(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (!size)
		return 0;
	text = malloc(size);
	if (!text)
		abort();
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	if (data[0] == 't')
		(void)cell__e2b_read_time(text);
	else if (data[0] == 'd')
		MUST(!cell__e2b_domain_ok(text) || !strpbrk(text, "/@?#\\ \r\n\"'<>"));
	else
		check_network(text, size - 1);
	free(text);
	return 0;
}
