#define _GNU_SOURCE
#include "base/nearest.h"
#include "sandbox/policy.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/protected.h"
#include "wire/yaml.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)
#define LARGEST_BYTES (1ull << 50)
#define LARGEST_COUNT 1000000ull
#define LARGEST_FILES 1000000000ull
#define LARGEST_SECONDS 1e7

/* How many objects code of either strict preset may keep in a storage; bytes differ. */
#define STORAGE_COUNTS .storage_artifacts = 50000, .storage_index_bytes = 8 * MIB, .storage_workflows = 2000

static const struct cell__sandbox_policy presets[] = {
	/* Code of unknown intent: enough to compute with, no network and no files of the host. */
	{ .name = "untrusted",
	  .level = CELL_LEVEL_FULL,
	  .workspace = CELL_WORKSPACE_RW,
	  .network = CELL_NET_NONE,
	  .memory_bytes = 2 * GIB,
	  .pids = 256,
	  .files = 512,
	  .file_size_bytes = 1 * GIB,
	  .tmp_bytes = 256 * MIB,
	  .output_bytes = 64 * MIB,
	  .workspace_bytes = 4 * GIB,
	  .workspace_files = 500000,
	  .storage_bytes = 16 * GIB,
	  STORAGE_COUNTS,
	  .audit_bytes = 256 * KIB },
	/* Large tables, packages from the index. */
	{ .name = "data-science",
	  .level = CELL_LEVEL_FULL,
	  .workspace = CELL_WORKSPACE_RW,
	  .network = CELL_NET_DEPS,
	  .shows_machine = true,
	  .memory_bytes = 16 * GIB,
	  .pids = 1024,
	  .files = 4096,
	  .file_size_bytes = 16 * GIB,
	  .tmp_bytes = 4 * GIB,
	  .output_bytes = 256 * MIB,
	  .workspace_bytes = 64 * GIB,
	  .workspace_files = 2000000,
	  .storage_bytes = 64 * GIB,
	  STORAGE_COUNTS,
	  .audit_bytes = 1 * MIB },
	/* A person's own code that should not reach their other files. */
	{ .name = "developer",
	  .level = CELL_LEVEL_NO_USERNS,
	  .workspace = CELL_WORKSPACE_RW,
	  .network = CELL_NET_FULL,
	  .shows_machine = true,
	  .memory_bytes = 0,
	  .pids = 4096,
	  .files = 65536,
	  .file_size_bytes = 0,
	  .tmp_bytes = 4 * GIB,
	  .output_bytes = 0 },
};

/* ---- words ---- */

static const char *const workspace_words[] = { "rw", "ro", "none", "cow" };
#define N_WORKSPACE_WORDS (sizeof workspace_words / sizeof *workspace_words)
static const char *const network_words[] = { "none", "deps-only", "allow", "full" };
static const char *const level_words[] = { "unavailable", "no-userns", "full" };

const char *cell__workspace_word(enum cell__workspace_mode mode)
{
	return workspace_words[mode];
}

const char *cell__network_word(enum cell__network network)
{
	return network_words[network];
}

const char *cell__level_word(enum cell_plan_level level)
{
	return level_words[level];
}

static int find_word(const char *const *words, size_t count, const char *word)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(words[i], word) == 0)
			return (int)i;
	return -1;
}

int cell__workspace_from_word(const char *word, enum cell__workspace_mode *ret_mode, struct cell_error *err)
{
	int found = find_word(workspace_words, N_WORKSPACE_WORDS, word);
	if (found < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the workspace mode must be rw, cow, ro or none, not \"%.60s\"", word);
	*ret_mode = (enum cell__workspace_mode)found;
	return 0;
}

static uint64_t or_no_limit(uint64_t max)
{
	return max ? max : UINT64_MAX;
}

struct cell__host_limits cell__policy_host_limits(const struct cell__sandbox_policy *policy)
{
	return (struct cell__host_limits){
		.bytes = or_no_limit(policy->storage_bytes),
		.artifacts = or_no_limit(policy->storage_artifacts),
		.index_bytes = or_no_limit(policy->storage_index_bytes),
		.workflows = or_no_limit(policy->storage_workflows),
		.audit_bytes = or_no_limit(policy->audit_bytes),
	};
}

bool cell__path_is_under(const char *path, const char *folder)
{
	size_t n = strlen(folder);
	return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/' || strcmp(folder, "/") == 0);
}

bool cell__path_lies_in(const char *path, const char *folder)
{
	char real[PATH_MAX], real_folder[PATH_MAX];
	const char *p = realpath(path, real) ? real : path, *f = realpath(folder, real_folder) ? real_folder : folder;
	return cell__path_is_under(path, folder) || cell__path_is_under(path, f) || cell__path_is_under(p, folder) ||
	       cell__path_is_under(p, f);
}

/* ---- memory ---- */

static void list_finish(struct cell__sandbox_policy_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->items[i]);
	free(list->items);
	free(list->lines);
	*list = (struct cell__sandbox_policy_list){ 0 };
}

static int list_add(struct cell__sandbox_policy_list *list, const char *text, int line)
{
	char **items = cell__realloc(list->items, (list->count + 1) * sizeof *items);
	if (items)
		list->items = items;
	int *lines = cell__realloc(list->lines, (list->count + 1) * sizeof *lines);
	if (lines)
		list->lines = lines;
	char *copy = cell__strdup(text);
	if (!items || !lines || !copy) {
		free(copy);
		return -1;
	}
	list->items[list->count] = copy;
	list->lines[list->count++] = line;
	return 0;
}

/* Where the lists of a policy are, for all that goes through them. */
static const size_t list_places[] = {
	offsetof(struct cell__sandbox_policy, read), offsetof(struct cell__sandbox_policy, write),
	offsetof(struct cell__sandbox_policy, hide), offsetof(struct cell__sandbox_policy, hosts),
	offsetof(struct cell__sandbox_policy, env),  offsetof(struct cell__sandbox_policy, unprotect),
};
#define N_LISTS (sizeof list_places / sizeof *list_places)

static struct cell__sandbox_policy_list *list_at(const struct cell__sandbox_policy *policy, size_t i)
{
	return (struct cell__sandbox_policy_list *)((char *)policy + list_places[i]);
}

void cell__sandbox_policy_finish(struct cell__sandbox_policy *policy)
{
	for (size_t i = 0; i < N_LISTS; i++)
		list_finish(list_at(policy, i));
}

int cell__sandbox_policy_copy(struct cell__sandbox_policy *out, const struct cell__sandbox_policy *in, struct cell_error *err)
{
	struct cell__sandbox_policy copy = *in;
	for (size_t i = 0; i < N_LISTS; i++)
		*list_at(&copy, i) = (struct cell__sandbox_policy_list){ 0 };
	for (size_t i = 0; i < N_LISTS; i++)
		for (size_t k = 0; k < list_at(in, i)->count; k++)
			if (list_add(list_at(&copy, i), list_at(in, i)->items[k], list_at(in, i)->lines[k]) < 0) {
				cell__sandbox_policy_finish(&copy);
				return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a policy");
			}
	*out = copy;
	return 0;
}

int cell__sandbox_policy_add_bytes(const struct cell__sandbox_policy *policy, struct cell__buf *out)
{
	struct cell__sandbox_policy plain;
	int rc = 0;
	memcpy(&plain, policy, sizeof plain);
	for (size_t i = 0; i < N_LISTS; i++) {
		const struct cell__sandbox_policy_list *list = list_at(policy, i);
		memset(list_at(&plain, i), 0, sizeof *list);
		rc |= cell__buf_add(out, &list->count, sizeof list->count);
		for (size_t k = 0; k < list->count; k++)
			rc |= cell__buf_add(out, list->items[k], strlen(list->items[k]) + 1);
	}
	return rc | cell__buf_add(out, &plain, sizeof plain);
}

/* ---- the file ---- */

struct reader {
	struct cell__sandbox_policy *policy;
	const char *file;
	struct cell_error *err;
};

static int bad(struct reader *r, const struct cell__yaml *at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int bad(struct reader *r, const struct cell__yaml *at, const char *fmt, ...)
{
	char message[160];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	return cell_fail(r->err, CELL_E_INVALID, 0, "policy %.60s, line %d: %s", r->file, at->line, message);
}

static int one_of(struct reader *r, const struct cell__yaml *node, const char *what, const char *const *words, size_t count, int *ret)
{
	*ret = node->kind == CELL_YAML_SCALAR ? find_word(words, count, node->text) : -1;
	if (*ret >= 0)
		return 0;
	bad(r, node, "%s is \"%.40s\", expected one of %s, %s%s%s%s%s", what, node->kind == CELL_YAML_SCALAR ? node->text : "", words[0],
	    words[1], count > 2 ? ", " : "", count > 2 ? words[2] : "", count > 3 ? ", " : "", count > 3 ? words[3] : "");
	return -1;
}

/* 512M, 4G, 65536; "none": no limit. */
static int read_bytes(struct reader *r, const struct cell__yaml *node, uint64_t *ret)
{
	static const char units[] = "KMGT";
	const char *text = node->kind == CELL_YAML_SCALAR ? node->text : "";
	char *end;
	if (strcmp(text, "none") == 0) {
		*ret = 0;
		return 0;
	}
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	unsigned shift = 0;
	if (end != text && *end && strchr(units, *end)) {
		shift = 10u * (unsigned)(strchr(units, *end++) - units + 1);
		if (strcmp(end, "iB") == 0)
			end += 2;
	}
	if (*text < '0' || *text > '9' || *end || errno || number == 0 || number > LARGEST_BYTES >> shift)
		return bad(r, node, "\"%.40s\" is not a number of bytes; write 512M, 4G or none", text);
	*ret = (uint64_t)number << shift;
	return 0;
}

static int read_count(struct reader *r, const struct cell__yaml *node, unsigned long long largest, uint64_t *ret)
{
	const char *text = node->kind == CELL_YAML_SCALAR ? node->text : "";
	char *end;
	if (strcmp(text, "none") == 0) {
		*ret = 0;
		return 0;
	}
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || number == 0 || number > largest)
		return bad(r, node, "\"%.40s\" is neither a number from 1 to %llu nor none", text, largest);
	*ret = number;
	return 0;
}

static int read_real(struct reader *r, const struct cell__yaml *node, double scale, uint64_t *ret)
{
	const char *text = node->kind == CELL_YAML_SCALAR ? node->text : "";
	char *end;
	if (strcmp(text, "none") == 0) {
		*ret = 0;
		return 0;
	}
	double number = strtod(text, &end);
	if (end == text || *end || text[strspn(text, "0123456789.")] || !(number > 0) || number > LARGEST_SECONDS || number * scale < 1)
		return bad(r, node, "\"%.40s\" is neither a number above 0 nor none", text);
	*ret = (uint64_t)(number * scale);
	return 0;
}

static int read_list(struct reader *r, const struct cell__yaml *node, const char *what, unsigned max,
		     struct cell__sandbox_policy_list *list)
{
	if (node->kind != CELL_YAML_SEQUENCE)
		return bad(r, node, "%s is a list", what);
	for (size_t i = 0; i < node->count; i++) {
		const struct cell__yaml *item = node->items[i];
		if (item->kind != CELL_YAML_SCALAR || item->text[0] == '\0')
			return bad(r, item, "the entries of %s must be strings", what);
		if (list->count >= max)
			return bad(r, item, "%s has more than %u entries", what, max);
		if (list_add(list, item->text, item->line) < 0)
			return cell_fail(r->err, CELL_E_NOMEM, 0, "out of memory for a policy");
	}
	return 0;
}

/* Checks for an absolute path without "." or "..". Removes redundant slashes. */
static bool tidy_path(char *path)
{
	char *to = path;
	if (path[0] != '/' || strlen(path) >= 4000)
		return false;
	for (const char *at = path; *at;) {
		size_t n = strcspn(at + 1, "/");
		if ((n == 1 && at[1] == '.') || (n == 2 && at[1] == '.' && at[2] == '.'))
			return false;
		if (n > 0) {
			memmove(to, at, n + 1);
			to += n + 1;
		}
		at += n + 1;
	}
	*to = '\0';
	return to != path;
}

/* The sandbox has its own instances of these; the host's describe all processes or are the machine's devices. */
static bool is_of_the_machine(const char *path)
{
	return cell__path_is_under(path, "/proc") || cell__path_is_under(path, "/dev") || strcmp(path, "/sys") == 0;
}

static int read_paths(struct reader *r, const struct cell__yaml *node, const char *what, struct cell__sandbox_policy_list *list)
{
	size_t before = list->count;
	if (read_list(r, node, what, CELL_POLICY_LIMIT_PATHS, list) < 0)
		return -1;
	for (size_t i = before; i < list->count; i++) {
		const char *path = list->items[i];
		struct cell__yaml at = { .line = list->lines[i] };
		if (!tidy_path(list->items[i]))
			return bad(r, &at, "\"%.80s\" in %s is not an absolute path below /", path, what);
		if (list != &r->policy->hide && is_of_the_machine(path))
			return bad(r, &at, "%.80s in %s cannot be made visible: a sandbox has its own or none", path, what);
	}
	return 0;
}

/* A name that is protected, one of the patterns of the list, or CELL_UNPROTECT_ALL. */
static int read_names(struct reader *r, const struct cell__yaml *node)
{
	struct cell__sandbox_policy_list *list = &r->policy->unprotect;
	if (read_list(r, node, "unprotect", CELL_POLICY_LIMIT_PATHS, list) < 0)
		return -1;
	for (size_t i = 0; i < list->count; i++) {
		struct cell__yaml at = { .line = list->lines[i] };
		const char *name = list->items[i];
		if (strcmp(name, CELL_UNPROTECT_ALL) == 0)
			continue;
		if (strchr(name, '/') || strlen(name) > NAME_MAX || !cell__protected_name(name, strlen(name)))
			return bad(r, &at, "%.80s in unprotect is not a protected name (docs/branches.md lists them)", name);
	}
	return 0;
}

static int read_filesystem(struct reader *r, const struct cell__yaml *node)
{
	if (node->kind != CELL_YAML_MAPPING)
		return bad(r, node, "filesystem must be a mapping with the lists read, write, hide and unprotect");
	for (size_t i = 0; i < node->count; i += 2) {
		const struct cell__yaml *key = node->items[i], *value = node->items[i + 1];
		int rc;
		if (strcmp(key->text, "read") == 0)
			rc = read_paths(r, value, "read", &r->policy->read);
		else if (strcmp(key->text, "write") == 0)
			rc = read_paths(r, value, "write", &r->policy->write);
		else if (strcmp(key->text, "hide") == 0)
			rc = read_paths(r, value, "hide", &r->policy->hide);
		else if (strcmp(key->text, "unprotect") == 0)
			rc = read_names(r, value);
		else
			rc = bad(r, key, "unknown key '%.40s' in filesystem; known keys: read, write, hide, unprotect", key->text);
		if (rc < 0)
			return -1;
	}
	return 0;
}

/* example.org, *.example.org, 10.0.0.1, [2001:db8::1], 2001:db8::1 */
static bool is_host(const char *host, size_t size)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	static const char address[] = "abcdefABCDEF0123456789:.";
	if (size > 2 && host[0] == '[')
		return host[size - 1] == ']' && strspn(host + 1, address) == size - 2;
	if (memchr(host, ':', size))
		return strspn(host, address) >= size;
	if (size > 2 && host[0] == '*' && host[1] == '.')
		host += 2, size -= 2;
	return size > 0 && host[0] != '.' && strspn(host, letters) >= size;
}

static bool is_host_port(const char *host)
{
	const char *colon = strrchr(host, ':');
	bool any = colon && strcmp(colon + 1, "*") == 0;
	bool digits = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
	long port = digits ? strtol(colon + 1, NULL, 10) : 0;
	return colon && strlen(host) <= 260 && is_host(host, (size_t)(colon - host)) && (any || (port >= 1 && port <= 65535));
}

static int check_hosts(struct reader *r)
{
	for (size_t i = 0; i < r->policy->hosts.count; i++) {
		const char *host = r->policy->hosts.items[i];
		struct cell__yaml at = { .line = r->policy->hosts.lines[i] };
		if (!is_host_port(host))
			return bad(r, &at, "\"%.80s\" is not HOST:PORT, like example.org:443 or *.example.org:*", host);
	}
	return 0;
}

static int read_network(struct reader *r, const struct cell__yaml *node)
{
	if (node->kind == CELL_YAML_MAPPING) {
		const struct cell__yaml *allow = cell__yaml_get(node, "allow");
		if (!allow || node->count != 2)
			return bad(r, node, "network must be none, deps-only, full, or allow: with a list of HOST:PORT");
		r->policy->network = CELL_NET_ALLOW;
		if (read_list(r, allow, "allow", CELL_POLICY_LIMIT_HOSTS, &r->policy->hosts) < 0)
			return -1;
		return check_hosts(r);
	}
	int found;
	static const char *const plain[] = { "none", "deps-only", "full" };
	static const enum cell__network values[] = { CELL_NET_NONE, CELL_NET_DEPS, CELL_NET_FULL };
	if (one_of(r, node, "network", plain, 3, &found) < 0)
		return -1;
	r->policy->network = values[found];
	return 0;
}

static int read_limits(struct reader *r, const struct cell__yaml *node)
{
	struct cell__sandbox_policy *p = r->policy;
	const struct {
		const char *name;
		int kind; /* 0: bytes, 1: count, 2: real, 3: count of files */
		double scale;
		uint64_t *value;
	} rows[] = {
		{ "memory", 0, 0, &p->memory_bytes },
		{ "file_size", 0, 0, &p->file_size_bytes },
		{ "tmp", 0, 0, &p->tmp_bytes },
		{ "output", 0, 0, &p->output_bytes },
		{ "pids", 1, 0, &p->pids },
		{ "files", 1, 0, &p->files },
		{ "cpus", 2, 100, &p->cpu_percent },
		{ "cpu_time", 2, 1000, &p->cpu_time_ms },
		{ "wall_time", 2, 1000, &p->wall_ms },
		{ "workspace", 0, 0, &p->workspace_bytes },
		{ "workspace_files", 3, 0, &p->workspace_files },
		{ "storage", 0, 0, &p->storage_bytes },
		{ "storage_artifacts", 3, 0, &p->storage_artifacts },
		{ "storage_descriptions", 0, 0, &p->storage_index_bytes },
		{ "storage_workflows", 3, 0, &p->storage_workflows },
		{ "audit", 0, 0, &p->audit_bytes },
	};
	if (node->kind != CELL_YAML_MAPPING)
		return bad(r, node, "limits must be a mapping of names to values");
	for (size_t i = 0; i < node->count; i += 2) {
		const struct cell__yaml *key = node->items[i], *value = node->items[i + 1];
		size_t k = 0;
		while (k < sizeof rows / sizeof *rows && strcmp(rows[k].name, key->text) != 0)
			k++;
		if (k == sizeof rows / sizeof *rows)
			return bad(r, key, "unknown limit '%.40s'", key->text);
		int rc = rows[k].kind == 0   ? read_bytes(r, value, rows[k].value)
			 : rows[k].kind == 2 ? read_real(r, value, rows[k].scale, rows[k].value)
					     : read_count(r, value, rows[k].kind == 3 ? LARGEST_FILES : LARGEST_COUNT, rows[k].value);
		if (rc < 0)
			return -1;
		p->pids_asked |= strcmp(key->text, "pids") == 0;
		if (strcmp(key->text, "tmp") == 0 && p->tmp_bytes == 0)
			return bad(r, value, "tmp needs a size, because files in /tmp are kept in memory");
		if (strcmp(key->text, "audit") == 0 && p->audit_bytes && p->audit_bytes < 4 * KIB)
			return bad(r, value, "audit must be 4K or more: a call's record takes about 1K");
		if (strcmp(key->text, "files") == 0 && p->files && p->files < 32)
			return bad(r, value, "files must be 32 or more, or Python does not start");
		if (strcmp(key->text, "memory") == 0 && p->memory_bytes && p->memory_bytes < 16 * MIB)
			return bad(r, value, "memory must be 16M or more, or Python does not start");
	}
	return 0;
}

static int read_env(struct reader *r, const struct cell__yaml *node)
{
	if (node->kind != CELL_YAML_MAPPING)
		return bad(r, node, "env must be a mapping of names to strings");
	for (size_t i = 0; i < node->count; i += 2) {
		const struct cell__yaml *key = node->items[i], *value = node->items[i + 1];
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		if (value->kind != CELL_YAML_SCALAR || key->text[0] == '\0' || strchr(key->text, '='))
			return bad(r, key, "env must be a mapping of names to strings");
		if (r->policy->env.count >= CELL_POLICY_LIMIT_ENV)
			return bad(r, key, "env has more than %u entries", CELL_POLICY_LIMIT_ENV);
		if (cell__buf_printf(&text, "%s=%s", key->text, value->text) < 0 || list_add(&r->policy->env, text.data, key->line) < 0)
			return cell_fail(r->err, CELL_E_NOMEM, 0, "out of memory for a policy");
	}
	return 0;
}

/* A path that is shown must not be inside a hidden one. */
static int check_hidden(struct reader *r, const struct cell__sandbox_policy_list *shown)
{
	const struct cell__sandbox_policy_list *hide = &r->policy->hide;
	for (size_t h = 0; h < hide->count; h++)
		for (size_t i = 0; i < shown->count; i++) {
			struct cell__yaml at = { .line = hide->lines[h] };
			if (cell__path_lies_in(shown->items[i], hide->items[h]))
				return bad(r, &at, "%.80s is hidden here but made visible in line %d", hide->items[h], shown->lines[i]);
		}
	return 0;
}

/* A path in a writable folder cannot be read-only, and the code could put a link there that redirects the next session. */
static int check_writable(struct reader *r, const struct cell__sandbox_policy_list *shown)
{
	const struct cell__sandbox_policy_list *write = &r->policy->write;
	for (size_t i = 0; i < shown->count; i++)
		for (size_t w = 0; w < write->count; w++) {
			int line = shown->lines[i], other = write->lines[w];
			struct cell__yaml at = { .line = line > other ? line : other };
			if ((shown == write && w == i) || !cell__path_lies_in(shown->items[i], write->items[w]))
				continue;
			return bad(r, &at, "%.40s (line %d) cannot be %s: it is inside %.40s (line %d), which is writable", shown->items[i],
				   line, shown == write ? "named again" : "read-only", write->items[w], other);
		}
	return 0;
}

/* Checks for contradictory settings. */
static int check_whole(struct reader *r)
{
	if (check_hidden(r, &r->policy->read) < 0 || check_hidden(r, &r->policy->write) < 0 || check_writable(r, &r->policy->read) < 0)
		return -1;
	return check_writable(r, &r->policy->write);
}

static int read_key(struct reader *r, const struct cell__yaml *key, const struct cell__yaml *value)
{
	int found;
	if (strcmp(key->text, "preset") == 0)
		return 0; /* taken first */
	if (strcmp(key->text, "level") == 0) {
		if (one_of(r, value, "level", level_words + 1, 2, &found) < 0)
			return -1;
		r->policy->level = (enum cell_plan_level)(found + 1);
		return 0;
	}
	if (strcmp(key->text, "workspace") == 0) {
		if (one_of(r, value, "workspace", workspace_words, N_WORKSPACE_WORDS, &found) < 0)
			return -1;
		r->policy->workspace = (enum cell__workspace_mode)found;
		return 0;
	}
	if (strcmp(key->text, "machine") == 0) {
		static const char *const words[] = { "hidden", "shown" };
		if (one_of(r, value, "machine", words, 2, &found) < 0)
			return -1;
		r->policy->shows_machine = found == 1;
		return 0;
	}
	if (strcmp(key->text, "filesystem") == 0)
		return read_filesystem(r, value);
	if (strcmp(key->text, "network") == 0)
		return read_network(r, value);
	if (strcmp(key->text, "limits") == 0)
		return read_limits(r, value);
	if (strcmp(key->text, "env") == 0)
		return read_env(r, value);
	return bad(r, key, "unknown key '%.40s'; known keys: preset, level, workspace, filesystem, machine, network, limits, env",
		   key->text);
}

static const struct cell__sandbox_policy *find_preset(const char *name)
{
	for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
		if (strcmp(presets[i].name, name) == 0)
			return &presets[i];
	return NULL;
}

static int read_root(struct reader *r, const struct cell__yaml *root)
{
	if (root->kind != CELL_YAML_MAPPING)
		return bad(r, root, "a policy must be a mapping of names to values");
	const struct cell__yaml *preset = cell__yaml_get(root, "preset");
	if (preset) {
		const struct cell__sandbox_policy *base = preset->kind == CELL_YAML_SCALAR ? find_preset(preset->text) : NULL;
		if (!base)
			return bad(r, preset, "preset must be untrusted, data-science or developer");
		*r->policy = *base;
	}
	snprintf(r->policy->name, sizeof r->policy->name, "%s", r->file);
	for (size_t i = 0; i < root->count; i += 2)
		if (read_key(r, root->items[i], root->items[i + 1]) < 0)
			return -1;
	return check_whole(r);
}

int cell__sandbox_policy_parse(struct cell__sandbox_policy *policy, const char *file, const char *text, size_t size, struct cell_error *err)
{
	struct cell__sandbox_policy made = presets[0];
	struct cell__problems problems = { 0 };
	struct cell__yaml *root = cell__yaml_parse(file, text, size, &problems);
	int rc;
	if (!root) {
		rc = cell_fail(err, CELL_E_INVALID, 0, "policy %.60s, line %d: %s", file, problems.count ? problems.list[0].line : 1,
			       problems.count && problems.list[0].message ? problems.list[0].message : "cannot be read");
	} else {
		struct reader reader = { .policy = &made, .file = file, .err = err };
		rc = read_root(&reader, root);
	}
	cell__yaml_destroy(root);
	cell__problems_finish(&problems);
	if (rc < 0)
		cell__sandbox_policy_finish(&made);
	else
		*policy = made;
	return rc;
}

void cell__sandbox_policy_obey(struct cell__sandbox_policy *policy)
{
	const struct {
		int resource;
		uint64_t *max, unit;
	} rows[] = {
		{ RLIMIT_NOFILE, &policy->files, 1 },
		{ RLIMIT_FSIZE, &policy->file_size_bytes, 1 },
		{ RLIMIT_CPU, &policy->cpu_time_ms, 1000 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct rlimit now;
		if (getrlimit(rows[i].resource, &now) < 0 || now.rlim_max == RLIM_INFINITY || now.rlim_max > UINT64_MAX / 1000)
			continue;
		uint64_t mine = (uint64_t)now.rlim_max * rows[i].unit;
		if (*rows[i].max == 0 || mine < *rows[i].max)
			*rows[i].max = mine;
	}
}

bool cell__sandbox_policy_is_file(const char *name)
{
	size_t size = strlen(name);
	return !find_preset(name) && (strchr(name, '/') || (size > 5 && strcmp(name + size - 5, ".yaml") == 0) ||
				      (size > 4 && strcmp(name + size - 4, ".yml") == 0));
}

int cell__sandbox_policy_load(struct cell__sandbox_policy *policy, const char *name, struct cell_error *err)
{
	const struct cell__sandbox_policy *preset = find_preset(name);
	if (preset)
		return cell__sandbox_policy_copy(policy, preset, err);
	if (!cell__sandbox_policy_is_file(name)) {
		const char *near = cell__nearest(name, (const char *[]){ "untrusted", "data-science", "developer", NULL });
		return cell_fail(err, CELL_E_INVALID, 0,
				 "unknown policy \"%.60s\"%s%s%s; give a preset (untrusted, data-science, developer) or a file name that "
				 "ends in .yaml",
				 name, near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
	}
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__file_load("policy", name, 0, CELL_YAML_LIMIT_FILE_BYTES, &text, err) < 0)
		return -1;
	return cell__sandbox_policy_parse(policy, name, text.data, text.size, err);
}

/* One host of "allow=..."; an address of IPv6 stands in brackets, so a colon elsewhere is that of a port. */
static int add_host(struct cell__sandbox_policy_list *hosts, const char *text, size_t size, struct cell_error *err)
{
	char host[300];
	const char *port = memrchr(text, ':', size), *bracket = memrchr(text, ']', size);
	if (size >= 270 || hosts->count >= CELL_POLICY_LIMIT_HOSTS)
		return cell_fail(err, CELL_E_INVALID, 0, "network: a host's name is too long, or there are more than %u",
				 CELL_POLICY_LIMIT_HOSTS);
	snprintf(host, sizeof host, "%.*s%s", (int)size, text, port && port > bracket ? "" : ":*");
	if (!is_host_port(host))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "network: \"%.*s\" is not HOST or HOST:PORT, like example.org, example.org:443 or *.example.org",
				 (int)(size < 80 ? size : 80), text);
	return list_add(hosts, host, 0) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a policy") : 0;
}

int cell__sandbox_policy_set_network(struct cell__sandbox_policy *policy, const char *network, struct cell_error *err)
{
	static const char allow[] = "allow=";
	list_finish(&policy->hosts);
	for (size_t i = 0; i < sizeof network_words / sizeof *network_words; i++)
		if (i != CELL_NET_ALLOW && strcmp(network, network_words[i]) == 0) {
			policy->network = (enum cell__network)i;
			return 0;
		}
	if (strncmp(network, allow, sizeof allow - 1) != 0)
		return cell_fail(err, CELL_E_INVALID, 0, "network is \"%.60s\", expected none, deps-only, full or allow=HOST,HOST:PORT",
				 network);
	policy->network = CELL_NET_ALLOW;
	for (const char *at = network + sizeof allow - 1;; at++) {
		size_t size = strcspn(at, ",");
		if (add_host(&policy->hosts, at, size, err) < 0)
			return -1;
		at += size;
		if (!*at)
			return 0;
	}
}

int cell__policy_load_host_limits(const char *name_or_path, struct cell__host_limits *ret_limits, struct cell_error *err)
{
	struct cell__sandbox_policy policy;
	if (cell__sandbox_policy_load(&policy, name_or_path ? name_or_path : CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	*ret_limits = cell__policy_host_limits(&policy);
	cell__sandbox_policy_finish(&policy);
	return 0;
}
