/*
 * The network that a client wants for its sandbox, in the words of a session's option `network`.
 *
 *     allow_internet_access: false, or denyOut: all          "none"
 *     denyOut: all, allowOut: names                          "allow=NAME,..."
 *     nothing is denied                                      as the server has it
 *
 * Only what is stricter than the server's: "none" always is, and a list where the server allows everything.
 */
#include "server/e2b/e2b.h"

#include <string.h>

#define MAX_HOSTS 64u

static bool is_everything(const char *entry)
{
	return !strcmp(entry, "0.0.0.0/0") || !strcmp(entry, "::/0");
}

/* Everything but these is refused by name: a wish that is not kept must not pass. */
static int check_fields(const json_t *network, struct cell_error *err)
{
	static const char *const known[] = { "allowOut", "denyOut", "allowPublicTraffic" };
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)network, name, value) {
		bool is_known = false, is_empty = json_is_null(value) || (json_is_array(value) && !json_array_size(value)) ||
						  (json_is_object(value) && !json_object_size(value));

		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			is_known |= !strcmp(name, known[i]);
		if (!is_known && !is_empty)
			return cell_fail(err, CELL_E_UNSUPPORTED, 0, "network.%.40s is not supported: leave it out", name);
	}
	return 0;
}

/* Whether everything is denied; -1: it cannot be said here. */
static int denies_all(const json_t *denied, struct cell_error *err)
{
	int all = 0;
	json_t *entry;
	size_t i;

	json_array_foreach((json_t *)denied, i, entry) {
		if (!json_is_string(entry) || !is_everything(json_string_value(entry)))
			return cell_fail(err, CELL_E_UNSUPPORTED, 0,
					 "network.denyOut can only deny everything, \"0.0.0.0/0\": then list what is allowed in allowOut");
		all = 1;
	}
	return all;
}

static int add_hosts(const json_t *allowed, struct cell__buf *out, struct cell_error *err)
{
	json_t *entry;
	size_t i;

	if (json_array_size(allowed) > MAX_HOSTS)
		return cell_fail(err, CELL_E_LIMIT, 0, "network.allowOut has %zu entries, at most %u are allowed", json_array_size(allowed),
				 MAX_HOSTS);
	json_array_foreach((json_t *)allowed, i, entry) {
		const char *text = json_string_value(entry), *slash = text ? strchr(text, '/') : NULL;
		size_t size = text ? strlen(text) : 0;

		if (slash && !strcmp(slash, "/32") && slash > text)
			size = (size_t)(slash - text), slash = NULL;
		/* A separator would add entries of its own. */
		if (!size || slash || memchr(text, ',', size) || size != json_string_length(entry) - (text[size] ? 3 : 0))
			return cell_fail(err, CELL_E_UNSUPPORTED, 0, "network.allowOut: \"%.60s\" is not a host name or an address",
					 text ? text : "");
		if (cell__buf_printf(out, "%s%.*s", i ? "," : "allow=", (int)size, text) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the network");
	}
	return 0;
}

int cell__e2b_network(const struct cell_server *server, const json_t *body, char **ret_network, struct cell_error *err)
{
	const json_t *network = json_object_get(body, "network"), *allowed = json_object_get(network, "allowOut"), *entry;
	const char *has = server->session.network;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int all = json_is_false(json_object_get(body, "allow_internet_access"));
	size_t i;

	*ret_network = NULL;
	if (network && !json_is_object(network) && !json_is_null(network))
		return cell_fail(err, CELL_E_INVALID, 0, "network must be an object");
	if (check_fields(network, err) < 0)
		return -1;
	if (!all && (all = denies_all(json_object_get(network, "denyOut"), err)) < 0)
		return -1;
	json_array_foreach((json_t *)allowed, i, entry) {
		if (json_is_string(entry) && is_everything(json_string_value(entry)))
			all = 0; /* what is allowed comes before what is denied */
	}
	if (!all)
		return 0;
	if (json_array_size(allowed) && (server->session.network_disabled || !has || strcmp(has, "full")))
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "network.allowOut: a sandbox can have a list of hosts where the server allows all (--network full)");
	if (add_hosts(allowed, &text, err) < 0)
		return -1;
	*ret_network = text.size ? cell__buf_take(&text) : cell__strdup("none");
	return *ret_network ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the network");
}
