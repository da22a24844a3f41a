#define _GNU_SOURCE
#include "spawn/confinement.h"

#include <string.h>
#include <sys/stat.h>

#include "base/protected.h"
#include "sandbox/machine.h"
#include "sandbox/places.h"
#include "spawn/supervisor.h"

struct cell__confinement {
	int refs;
	struct cell__sandbox_plan *plan, *session;
	char *cwd;
	struct cell__sandbox_policy policy;
	bool has_policy;
	char **index_hosts; /* NULL-terminated; NULL: none */
	char **written;     /* places that the code writes to, under each of their names; NULL-terminated, or NULL */
	cell__confinement_tell_fn tell;
	void *tell_arg;
};

static const char *const plain_env[] = { "HOME=" CELL_PLAN_HOME, NULL };
static const char *const filtered_env[] = { "HOME=" CELL_PLAN_HOME, CELL_EGRESS_ENV, NULL };

struct cell__confinement *cell__confinement_ref(struct cell__confinement *confinement)
{
	if (confinement)
		confinement->refs++;
	return confinement;
}

void cell__confinement_unref(struct cell__confinement *confinement)
{
	if (!confinement || --confinement->refs > 0)
		return;
	cell__sandbox_plan_unref(confinement->plan);
	cell__sandbox_plan_unref(confinement->session);
	if (confinement->has_policy)
		cell__sandbox_policy_finish(&confinement->policy);
	cell__strings_free(confinement->index_hosts);
	cell__strings_free(confinement->written);
	free(confinement->cwd);
	free(confinement);
}

static int copy_written(struct cell__confinement *confinement, const struct cell__writable_list *writable)
{
	confinement->written = cell__alloc(writable->count + 1, sizeof *confinement->written);
	for (size_t i = 0; confinement->written && i < writable->count; i++)
		if (!(confinement->written[i] = cell__strdup(writable->items[i].path)))
			return -1;
	return confinement->written ? 0 : -1;
}

static struct cell__confinement *start_making(const struct cell__sandbox_policy *policy, const char *const *index_hosts,
					      struct cell_error *err)
{
	struct cell__confinement *confinement = cell__alloc(1, sizeof *confinement);
	if (!confinement) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
		return NULL;
	}
	confinement->refs = 1;
	if (cell__sandbox_policy_copy(&confinement->policy, policy, err) == 0) {
		confinement->has_policy = true;
		if ((confinement->index_hosts = cell__strings_copy(index_hosts)))
			return confinement;
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	}
	cell__confinement_unref(confinement);
	return NULL;
}

/* A missing folder would be skipped, and files written to it would go to the sandbox's own root. */
static int check_writable(const char *const *folders, struct cell_error *err)
{
	struct stat st;
	for (; folders && *folders; folders++)
		if (stat(*folders, &st) < 0)
			return cell_fail(err, CELL_E_INVALID, errno, "make %.160s writable for a confined program", *folders);
	return 0;
}

static void apply_network(struct cell__sandbox_policy *policy, enum cell__confinement_network network)
{
	if (network == CELL_CONFINED_AS_POLICY)
		return;
	policy->network = network == CELL_CONFINED_INDEX ? CELL_NET_DEPS : CELL_NET_NONE;
	for (size_t i = 0; i < policy->hosts.count; i++)
		free(policy->hosts.items[i]);
	policy->hosts.count = 0;
}

static int build(struct cell__confinement *confinement, struct cell__supervisor *supervisor,
		 const struct cell__confinement_options *options, struct cell_error *err)
{
	static const struct cell__plan_env no_env;
	const struct cell__machine *machine = cell__machine_here();
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	struct cell__plan_session session = {
		.workspace = options->workspace,
		.mode = options->mode,
		.read = options->read,
		.write = options->write,
		.env = options->env ? options->env : &no_env,
		.policy = &confinement->policy,
	};
	confinement->policy.workspace = options->mode;
	apply_network(&confinement->policy, options->network);
	cell__sandbox_policy_obey(&confinement->policy);
	if (cell__plan_workspace(options->workspace, options->mode, &confinement->cwd, err) < 0 || check_writable(options->write, err) < 0)
		return -1;
	session.cwd = confinement->cwd;
	if (cell__plans_find(&supervisor->plans, &session, &confinement->plan, err) < 0)
		return -1;
	if (cell__plan_build_session(machine, &session, &bytes, err) < 0)
		return -1;
	confinement->session = cell__sandbox_plan_create(&bytes, err);
	return confinement->session ? 0 : -1;
}

int cell__confinement_create(struct cell__supervisor *supervisor, const struct cell__confinement_options *options,
			     struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell__confinement *confinement = start_making(options->policy, options->index_hosts, err);
	if (!confinement)
		return -1;
	if (build(confinement, supervisor, options, err) < 0) {
		cell__confinement_unref(confinement);
		return -1;
	}
	*ret_confinement = confinement;
	return 0;
}

int cell__confinement_create_like(const struct cell__sandbox_policy *policy, struct cell__sandbox_plan *plan,
				  const struct cell__buf *session, const char *cwd, const struct cell__writable_list *writable,
				  const char *const *index_hosts, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	struct cell__confinement *confinement = start_making(policy, index_hosts, err);
	if (!confinement)
		return -1;
	confinement->plan = cell__sandbox_plan_ref(plan);
	confinement->cwd = cell__strdup(cwd);
	if (!confinement->cwd || copy_written(confinement, writable) < 0 || cell__buf_add(&bytes, session->data, session->size) < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	else
		confinement->session = cell__sandbox_plan_create(&bytes, err);
	if (!confinement->session) {
		cell__confinement_unref(confinement);
		return -1;
	}
	*ret_confinement = confinement;
	return 0;
}

void cell__confinement_watch(struct cell__confinement *confinement, cell__confinement_tell_fn tell, void *arg)
{
	confinement->tell = tell;
	confinement->tell_arg = arg;
}

const char *cell__confinement_cwd(const struct cell__confinement *confinement)
{
	return confinement->cwd;
}

bool cell__confinement_has_workspace(const struct cell__confinement *confinement)
{
	return confinement->policy.workspace != CELL_WORKSPACE_NONE;
}

bool cell__confinement_shows(const struct cell__confinement *confinement, const char *path)
{
	const struct cell__sandbox_policy_list *lists[] = { &confinement->policy.read, &confinement->policy.write };
	for (size_t l = 0; l < 2; l++)
		for (size_t i = 0; i < lists[l]->count; i++)
			if (cell__path_lies_in(path, lists[l]->items[i]))
				return true;
	return cell__path_is_under(path, "/usr");
}

bool cell__confinement_can_write(const struct cell__confinement *confinement, const char *path)
{
	const struct cell__sandbox_policy *policy = &confinement->policy;
	if (cell__workspace_is_writable(policy->workspace) && cell__path_is_under(path, confinement->cwd))
		return true;
	for (size_t i = 0; i < policy->write.count; i++)
		if (cell__path_lies_in(path, policy->write.items[i]))
			return true;
	for (char **place = confinement->written; place && *place; place++)
		if (cell__path_is_under(path, *place))
			return true;
	return false;
}

static bool is_free(const struct cell__sandbox_policy_list *names, const char *name, size_t size)
{
	for (size_t i = 0; i < names->count; i++)
		if (cell__protected_fits(names->items[i], name, size))
			return true;
	return false;
}

bool cell__confinement_protects(const struct cell__confinement *confinement, const char *path)
{
	for (size_t size; *path; path += size + (path[size] == '/')) {
		size = strcspn(path, "/");
		if (cell__protected_name(path, size) && !is_free(&confinement->policy.unprotect, path, size))
			return true;
	}
	return false;
}

bool cell__confinement_can_redirect(const struct cell__confinement *confinement, const char *path)
{
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	bool found = cell__place_add(&list, "the program", false, path, NULL) < 0; /* links without end, no memory: on the careful side */
	for (char **point = found ? NULL : list.items[0].points; point && *point && !found; point++)
		found = cell__confinement_can_write(confinement, *point);
	cell__place_list_finish(&list);
	return found;
}

const char *const *cell__confinement_env(const struct cell__confinement *confinement)
{
	bool filtered = confinement->policy.network == CELL_NET_ALLOW || confinement->policy.network == CELL_NET_DEPS;
	return filtered ? filtered_env : plain_env;
}

static bool same_hosts(const char *const *a, const char *const *b)
{
	while (*a && *b && strcmp(*a, *b) == 0) {
		a++;
		b++;
	}
	return !*a && !*b;
}

bool cell__confinement_equal(const struct cell__confinement *a, const struct cell__confinement *b)
{
	if (!a || !b || a == b)
		return a == b;
	return a->plan == b->plan && a->session->size == b->session->size &&
	       memcmp(a->session->bytes, b->session->bytes, a->session->size) == 0 &&
	       same_hosts((const char *const *)a->index_hosts, (const char *const *)b->index_hosts);
}

/* ---- for process.c ---- */

int cell__confinement_plan_fd(const struct cell__confinement *confinement)
{
	return confinement->plan->fd;
}

int cell__confinement_session_fd(const struct cell__confinement *confinement)
{
	return confinement->session->fd;
}

static int tell(void *arg, const struct cell__egress_event *event, struct cell_error *err)
{
	struct cell__confinement *confinement = arg;
	return confinement->tell ? confinement->tell(confinement->tell_arg, confinement, event, err) : 0;
}

int cell__confinement_open_proxy(struct cell__confinement *confinement, struct cell__loop *loop, int listen_fd,
				 struct cell__egress **ret_egress, struct cell_error *err)
{
	const struct cell__sandbox_policy *policy = &confinement->policy;
	struct cell__egress_options options = {
		.loop = loop,
		.listen_fd = listen_fd,
		.hosts = &policy->hosts,
		.more_hosts = policy->network == CELL_NET_DEPS ? (const char *const *)confinement->index_hosts : NULL,
		.tell = tell,
		.arg = confinement,
	};
	return cell__egress_create(&options, ret_egress, err);
}

void cell__confinement_failure(const struct cell__confinement *confinement, int step, int sys, struct cell_error *err)
{
	struct cell_plan_report report = { .step = step, .sys = sys };
	if (step < 0)
		cell_fail(err, CELL_E_SANDBOX, sys, "start a program in its sandbox (cgroup, namespaces)");
	else
		cell__plan_failure((const struct cell_plan *)confinement->plan->bytes,
				   (const struct cell_plan *)confinement->session->bytes, &report, err);
}
