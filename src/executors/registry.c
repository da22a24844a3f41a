/* The list of executors, and which options of a session are whose. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "executors/registry.h"

static const struct cell__executor *const executors[] = {
#define CELL__EXECUTOR(name) &cell__##name##_executor,
#include "executors/registry.def"
#undef CELL__EXECUTOR
};

const struct cell__executor *cell__executor_at(size_t i)
{
	if (i >= sizeof executors / sizeof *executors)
		return NULL;
	const struct cell__executor *e = executors[i];
	assert(e->name && e->isolation && e->probe && e->receipt && !e->create == !e->destroy && !e->read_options == !e->free_options);
	/* An executor that is not in this build refuses every session by check(), and opens none. */
	assert(e->open ? e->drain && e->run && e->reply && e->interrupt && e->pause && e->close && e->pid : e->check != NULL);
	return e;
}

void **cell__executor_state(const struct cell__executor_host *host, const struct cell__executor *executor)
{
	size_t i = 0;
	while (executors[i] != executor)
		i++;
	return &host->states[i];
}

int cell__executor_create_state(struct cell__executor_host *host, size_t size, void **ret_state, struct cell_error *err)
{
	struct cell__executor_host **state = cell__alloc(1, size);
	if (!state)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*state = host;
	*ret_state = state;
	return 0;
}

const struct cell__executor *cell__executor_find(const char *name)
{
	const struct cell__executor *e;
	for (size_t i = 0; (e = cell__executor_at(i)); i++)
		if (strcmp(e->name, name) == 0)
			return e;
	return NULL;
}

int cell__executor_unknown(const char *name, struct cell_error *err)
{
	const char *words[sizeof executors / sizeof *executors + 1] = { NULL };
	char list[100] = "";
	for (size_t i = 0; i < sizeof executors / sizeof *executors; i++) {
		size_t size = strlen(list);
		words[i] = executors[i]->name;
		snprintf(list + size, sizeof list - size, "%s%s", i ? ", " : "", words[i]);
	}
	const char *near = cell__nearest(name, words);
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "unknown executor \"%.60s\"%s%s%s; expected one of %s", name,
			 near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "", list);
}

/* An executor would ignore options that it does not know, so they are refused. */
int cell__executor_check(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err)
{
	bool is_layer = !opts->sandbox_policy && opts->workspace_mode && strcmp(opts->workspace_mode, "cow") == 0;
	const struct {
		unsigned takes;
		bool given;
		const char *what;
	} groups[] = {
		{ CELL_TAKES_KERNEL, opts->kernel, "a kernelspec is only" },
		{ CELL_TAKES_POLICY | (is_layer ? (unsigned)CELL_TAKES_LAYER : 0), opts->sandbox_policy || opts->workspace_mode,
		  "a sandbox policy and a workspace mode are only" },
		{ CELL_TAKES_CONTAINER, opts->container, "container options are only" },
		{ CELL_TAKES_KUBERNETES, opts->kubernetes, "the options of a cluster are only" },
		{ CELL_TAKES_SERVER, opts->remote_url || opts->remote_token || opts->remote_ca,
		  "a server's URL, token, workspace and certificates are only" },
		{ CELL_TAKES_WORKSPACE, opts->remote_workspace, "a server's URL, token, workspace and certificates are only" },
	};
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
		if (!groups[i].given || executor->takes & groups[i].takes)
			continue;
		const struct cell__executor *whose = NULL;
		for (size_t k = 0; (whose = cell__executor_at(k)) && !(whose->takes & groups[i].takes); k++)
			;
		assert(whose);
		return cell_fail(err, CELL_E_INVALID, 0, "%s for the executor \"%s\", not for \"%s\"", groups[i].what, whose->name,
				 executor->name);
	}
	return executor->check ? executor->check(opts, err) : 0;
}

/* ---- limits ---- */

const char *cell__network_hosts(const char *network)
{
	static const char word[] = "allow=";
	return network && strncmp(network, word, sizeof word - 1) == 0 ? network + sizeof word - 1 : NULL;
}

static int settle_network(struct cell_session_options *opts, struct cell_error *err)
{
	const char *given = opts->network ? opts->network : opts->network_profile;
	if (opts->network && opts->network_profile && strcmp(opts->network, opts->network_profile) != 0)
		return cell_fail(err, CELL_E_INVALID, 0, "network is \"%.60s\" and network_profile is \"%.60s\": give only network",
				 opts->network, opts->network_profile);
	if (given && strcmp(given, "none") != 0 && strcmp(given, "full") != 0 && strcmp(given, "deps-only") != 0 &&
	    !cell__network_hosts(given))
		return cell_fail(err, CELL_E_INVALID, 0, "network is \"%.60s\", expected none, deps-only, full or allow=HOST,HOST:PORT",
				 given);
	if (opts->network_disabled && given && strcmp(given, "none") != 0)
		return cell_fail(err, CELL_E_INVALID, 0, "network_disabled conflicts with the network \"%.60s\": give only one", given);
	opts->network = opts->network_disabled ? "none" : given;
	opts->network_profile = NULL;
	opts->network_disabled = 0;
	return 0;
}

/* "sandbox or container": those that have this bit. */
static void add_takers(unsigned takes, char *text, size_t room)
{
	const struct cell__executor *e;
	*text = '\0';
	for (size_t i = 0; (e = cell__executor_at(i)); i++) {
		size_t size = strlen(text);
		if (e->takes & takes)
			snprintf(text + size, room - size, "%s%s", size ? " or " : "", e->name);
	}
}

int cell__executor_settle_limits(const struct cell__executor *executor, struct cell_session_options *opts, struct cell_error *err)
{
	if (settle_network(opts, err) < 0)
		return -1;
	bool hosts = opts->network && strcmp(opts->network, "none") != 0 && strcmp(opts->network, "full") != 0;
	const struct {
		unsigned takes;
		bool given;
		const char *what;
	} limits[] = {
		{ CELL_TAKES_LIMITS, opts->memory_limit, "limit memory (memory_limit)" },
		{ CELL_TAKES_LIMITS, opts->cpu_quota, "limit the use of CPUs (cpu_quota)" },
		{ CELL_TAKES_LIMITS, opts->pids_limit, "limit the number of processes (pids_limit)" },
		{ CELL_TAKES_DISK, opts->disk_limit, "limit what is written to disk (disk_limit)" },
		{ CELL_TAKES_NETWORK, opts->network, "control the network" },
		{ CELL_TAKES_HOSTS, hosts, "allow only some hosts of the network" },
	};
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		char takers[100];
		if (!limits[i].given || executor->takes & limits[i].takes)
			continue;
		add_takers(limits[i].takes, takers, sizeof takers);
		return cell_fail(err, CELL_E_INVALID, 0, "the executor \"%s\" cannot %s; use the executor %s%s", executor->name,
				 limits[i].what, takers,
				 executor->takes & CELL_TAKES_SERVER ? ", or set the limit where the server is started" : "");
	}
	return 0;
}

bool cell__executor_is_trusted(const struct cell__executor *executor)
{
	return !executor->untrusted && !executor->calls_there;
}
