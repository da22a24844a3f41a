/* Policies, plans and the proxy's parsers: everything of the sandbox that needs no privilege. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "executors/subprocess/cpu_share.h"
#include "sandbox/apply.h"
#include "sandbox/build.h"
#include "sandbox/cgroup.h"
#include "base/address.h"
#include "egress/egress.h"
#include "sandbox/mapped.h"
#include "sandbox/plans.h"

static int parse(const char *text, struct cell__sandbox_policy *policy, struct cell_error *err)
{
	return cell__sandbox_policy_parse(policy, "p.yaml", text, strlen(text), err);
}

static void policies(void **state)
{
	(void)state;
	struct cell__sandbox_policy p;
	struct cell_error err;
	assert_int_equal(parse("preset: data-science\nlimits: {memory: 3G, cpus: 1.5, cpu_time: 2.5, files: none}\n"
			       "network: {allow: ['a.b:1', '*.c:*']}\nenv: {A: '1'}\nfilesystem: {read: [/x/]}\n",
			       &p, &err),
			 0);
	assert_int_equal(p.memory_bytes, 3ull << 30);
	assert_int_equal(p.cpu_percent, 150);
	assert_int_equal(p.cpu_time_ms, 2500);
	assert_int_equal(p.files, 0);
	assert_int_equal(p.network, CELL_NET_ALLOW);
	assert_int_equal(p.hosts.count, 2);
	assert_string_equal(p.env.items[0], "A=1");
	assert_string_equal(p.read.items[0], "/x");
	struct cell__sandbox_policy copy;
	assert_int_equal(cell__sandbox_policy_copy(&copy, &p, &err), 0);
	cell__sandbox_policy_finish(&p);
	assert_string_equal(copy.hosts.items[1], "*.c:*");
	cell__sandbox_policy_finish(&copy);
	assert_int_equal(
		parse("limits: {storage: 5M, storage_artifacts: 7, storage_workflows: none, workspace_files: 2000000}\n", &p, &err), 0);
	struct cell__host_limits storage = cell__policy_host_limits(&p);
	assert_int_equal(storage.bytes, 5ull << 20);
	assert_int_equal(storage.artifacts, 7);
	assert_true(storage.workflows == UINT64_MAX);
	assert_int_equal(storage.index_bytes, 8ull << 20); /* the preset's */
	cell__sandbox_policy_finish(&p);
	assert_int_equal(parse("limits: {memory: 99999999999G}\n", &p, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_non_null(strstr(err.msg, "line 1"));
	assert_int_equal(cell__sandbox_policy_load(&p, "no-such-preset", &err), -1);
	assert_int_equal(cell__sandbox_policy_load(&p, "/no/such/file.yaml", &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
}

/* What is unknown, of the wrong kind, too much or contradictory is refused with its line. */
static void bad_policies(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int line;
		const char *words;
	} rows[] = {
		{ "", 1, "empty" },
		{ "untrusted\n", 1, "names" },
		{ "level: [full]\n", 1, "level" },
		{ "level: unavailable\n", 1, "level" },
		{ "level: full\nworkspace: yes\n", 2, "workspace" },
		{ "level: full\nlevel: full\n", 2, "duplicate" },
		{ "level: full\n---\nlevel: full\n", 2, "one YAML document" },
		{ "level: !!python/name:os.system full\n", 1, "tags" },
		{ "? [a]\n: b\n", 1, "key" },
		{ "level: \xff\n", 1, "UTF-8" },
		{ "level:\tfull\n\tworkspace: rw\n", 2, "tab" },
		{ "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 1, "anchors" },
		{ "preset: [untrusted]\n", 1, "preset" },
		{ "limits: [1]\n", 1, "limits" },
		{ "limits:\n  pids: 5\n  pids: 6\n", 3, "duplicate" },
		{ "limits:\n  memory: -1\n", 2, "bytes" },
		{ "limits: {memory: 99999999999999999999}\n", 1, "bytes" },
		{ "limits: {memory: 9999999T}\n", 1, "bytes" },
		{ "limits: {memory: 99999999iB}\n", 1, "bytes" },
		{ "limits: {memory: [1G]}\n", 1, "bytes" },
		{ "limits: {pids: 0x10}\n", 1, "number" },
		{ "limits: {cpus: nan}\n", 1, "number" },
		{ "limits: {cpus: 0x10}\n", 1, "number" },
		{ "limits: {wall_time: 1e99}\n", 1, "number" },
		{ "limits: {tmp: none}\n", 1, "tmp" },
		{ "limits: {files: 3}\n", 1, "32" },
		{ "limits:\n  storage: much\n", 2, "bytes" },
		{ "limits:\n  storage: 1G\n  storage_artifacts: 1G\n", 3, "number" },
		{ "limits:\n  storage_workflows: 0\n", 2, "number" },
		{ "limits:\n  storage_descriptions: -1\n", 2, "bytes" },
		{ "limits:\n  audit: 1K\n", 2, "4K or more" },
		{ "limits: {storage_files: 1}\n", 1, "unknown limit 'storage_files'" },
		{ "env: [A=B]\n", 1, "env" },
		{ "env: {'A=B': c}\n", 1, "env" },
		{ "env: {A: \"x\\0y\"}\n", 1, "NUL" },
		{ "env: {A: 1, A: 2}\n", 1, "duplicate" },
		{ "network: allow\n", 1, "network" },
		{ "network:\n  allow: ['a:1']\n  deny: ['b:1']\n", 2, "network" },
		{ "network:\n  allow:\n    - a.org:443\n    - https://a.org:443\n", 4, "HOST:PORT" },
		{ "network: {allow: ['a.org:+443']}\n", 1, "HOST:PORT" },
		{ "network: {allow: ['a.org:70000']}\n", 1, "HOST:PORT" },
		{ "network: {allow: ['10.0.0.0/8:443']}\n", 1, "HOST:PORT" },
		{ "network: {allow: ['*:443']}\n", 1, "HOST:PORT" },
		{ "network: {allow: ['a.*.org:443']}\n", 1, "HOST:PORT" },
		{ "filesystem: {exec: [/x]}\n", 1, "unknown key" },
		{ "filesystem: {read: /x}\n", 1, "list" },
		{ "filesystem: {read: [x]}\n", 1, "absolute" },
		{ "filesystem: {read: [/]}\n", 1, "absolute" },
		{ "filesystem: {read: [//]}\n", 1, "absolute" },
		{ "filesystem: {read: [/x/..]}\n", 1, "absolute" },
		{ "filesystem: {read: [/x/./y]}\n", 1, "absolute" },
		{ "filesystem: {read: [/proc/1]}\n", 1, "its own" },
		{ "filesystem: {write: [/dev]}\n", 1, "its own" },
		{ "filesystem:\n  read: [/x//y]\n  hide: [/x/y/]\n", 3, "hidden" },
		{ "filesystem:\n  hide: [/x]\n  write: [/x/y]\n", 2, "hidden" },
		{ "filesystem:\n  read: [/bin]\n  hide: [/usr/bin]\n", 3, "hidden" }, /* a link, where /usr is merged */
		{ "filesystem:\n  write: [/x]\n  read: [/x/y]\n", 3, "read-only" },
		{ "filesystem:\n  write: [/x, /x/y]\n", 2, "again" },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct cell__sandbox_policy p;
		struct cell_error err = { 0 };
		char line[16];
		if (strstr(rows[i].text, "/usr/bin") && readlink("/bin", line, sizeof line) < 0)
			continue;
		snprintf(line, sizeof line, "line %d:", rows[i].line);
		if (parse(rows[i].text, &p, &err) == 0)
			fail_msg("accepted: %s", rows[i].text);
		assert_int_equal(err.code, CELL_E_INVALID);
		if (!strstr(err.msg, line) || !strstr(err.msg, rows[i].words))
			fail_msg("%s: %s", rows[i].text, err.msg);
	}
}

static void build(enum cell_plan_level level, struct cell__buf *out, enum cell_plan_level least, int want)
{
	struct cell__machine machine = { .level = level, .landlock_abi = 7, .seccomp = true };
	struct cell__plan_env env = { 0 };
	struct cell__sandbox_policy p;
	struct cell_error err = { 0 };
	assert_int_equal(cell__sandbox_policy_load(&p, "untrusted", &err), 0);
	p.level = least;
	assert_int_equal(cell__plan_build(&p, &machine, &env, 7, out, &err), want);
	if (want < 0)
		assert_int_equal(err.code, CELL_E_UNAVAILABLE);
	cell__sandbox_policy_finish(&p);
}

static bool has_op(const struct cell_plan *plan, int op, int stage)
{
	const struct cell_plan_step *step = cell__plan_first(plan);
	for (uint32_t i = 0; i < plan->n_steps; i++, step = cell__plan_next(step))
		if (step->op == op && step->stage == stage)
			return true;
	return false;
}

static void levels(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT, lower = CELL_BUF_INIT, none = CELL_BUF_INIT, text = CELL_BUF_INIT;
	build(CELL_LEVEL_FULL, &full, CELL_LEVEL_FULL, 0);
	const struct cell_plan *plan = (const struct cell_plan *)full.data;
	assert_true(cell__plan_check(full.data, full.size));
	static const int needed[] = { CELL_OP_DETACH, CELL_OP_SEAL, CELL_OP_RESTRICT, CELL_OP_CAPS, CELL_OP_SECCOMP, CELL_OP_NOT_DUMPABLE };
	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		assert_true(has_op(plan, needed[i], CELL_STAGE_KERNEL));
	assert_true(has_op(plan, CELL_OP_NAMESPACES, CELL_STAGE_JAIL));
	assert_int_equal(cell__plan_print(plan, &text), 0);
	assert_non_null(strstr(text.data, "drop all capabilities"));
	/* Less than asked for is refused, with what is to be done. */
	struct cell__machine ubuntu = { .level = CELL_LEVEL_NO_USERNS,
					.landlock_abi = 5,
					.seccomp = true,
					.reason = "a user namespace was made but nothing can be mounted in it: Permission denied",
					.advice = CELL_ADVICE_APPARMOR };
	struct cell__plan_env no_env = { 0 };
	struct cell__sandbox_policy p;
	struct cell_error err = { 0 };
	assert_int_equal(parse("filesystem: {hide: [/x]}\nnetwork: deps-only\n", &p, &err), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cell__plan_build(&p, &ubuntu, &no_env, 1, &none, &err), -1);
		assert_int_equal(err.code, CELL_E_UNAVAILABLE);
		assert_non_null(strstr(err.msg, i == 0 ? "\"full\"" : i == 1 ? "deps-only" : "hide"));
		assert_non_null(strstr(err.msg, "nothing can be mounted"));
		assert_non_null(strstr(err.msg, "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (AppArmor, Ubuntu"));
		p.level = CELL_LEVEL_NO_USERNS;
		p.network = i == 0 ? CELL_NET_DEPS : CELL_NET_NONE;
	}
	cell__sandbox_policy_finish(&p);
	build(CELL_LEVEL_NO_USERNS, &none, CELL_LEVEL_FULL, -1);
	build(CELL_LEVEL_UNAVAILABLE, &none, CELL_LEVEL_NO_USERNS, -1);
	build(CELL_LEVEL_NO_USERNS, &lower, CELL_LEVEL_NO_USERNS, 0);
	plan = (const struct cell_plan *)lower.data;
	assert_false(has_op(plan, CELL_OP_NAMESPACES, CELL_STAGE_JAIL));
	assert_true(has_op(plan, CELL_OP_RESTRICT, CELL_STAGE_KERNEL));
}

/* Where nothing can refuse protected names, writable folders need a policy that lets the code write every name. */
static void protection(void **state)
{
	(void)state;
	static const struct {
		const char *policy;
		enum cell_plan_level level;
		bool guards;
		enum cell__workspace_mode mode;
		int result;
	} rows[] = {
		{ "level: no-userns\n", CELL_LEVEL_NO_USERNS, true, CELL_WORKSPACE_RW, -1 },
		{ "level: no-userns\n", CELL_LEVEL_NO_USERNS, true, CELL_WORKSPACE_RO, 0 },
		{ "level: no-userns\nfilesystem: {write: [/srv]}\n", CELL_LEVEL_NO_USERNS, true, CELL_WORKSPACE_NONE, -1 },
		{ "level: no-userns\nfilesystem: {unprotect: [Makefile]}\n", CELL_LEVEL_NO_USERNS, true, CELL_WORKSPACE_RW, -1 },
		{ "level: no-userns\nfilesystem: {unprotect: ['*']}\n", CELL_LEVEL_NO_USERNS, true, CELL_WORKSPACE_RW, 0 },
		{ "preset: untrusted\n", CELL_LEVEL_FULL, false, CELL_WORKSPACE_RW, -1 }, /* before Linux 5.19 */
		{ "preset: untrusted\n", CELL_LEVEL_FULL, false, CELL_WORKSPACE_COW, -1 },
		{ "filesystem: {unprotect: ['*']}\n", CELL_LEVEL_FULL, false, CELL_WORKSPACE_COW, 0 },
		{ "preset: untrusted\n", CELL_LEVEL_FULL, true, CELL_WORKSPACE_COW, 0 },
		{ "preset: untrusted\n", CELL_LEVEL_FULL, true, CELL_WORKSPACE_RW, 0 },
	};
	static const struct cell__plan_env env;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct cell__machine machine = { .level = rows[i].level, .guards = rows[i].guards, .landlock_abi = 5, .seccomp = true };
		struct cell__sandbox_policy policy;
		struct cell_error err = { 0 };
		CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
		assert_int_equal(parse(rows[i].policy, &policy, &err), 0);
		struct cell__plan_session session = {
			.mode = rows[i].mode,
			.cwd = "/srv/work",
			.workspace = "/srv/work",
			.env = &env,
			.policy = &policy,
			.layer = rows[i].mode == CELL_WORKSPACE_COW ? "/srv/layer" : NULL,
		};
		assert_int_equal(cell__plan_build_session(&machine, &session, &out, &err), rows[i].result);
		if (rows[i].result < 0) {
			assert_int_equal(err.code, CELL_E_UNAVAILABLE);
			assert_non_null(strstr(err.msg, "unprotect"));
		}
		cell__sandbox_policy_finish(&policy);
	}
}

/* No byte of a plan can be changed so that its steps leave it. */
static void damaged_plans(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	build(CELL_LEVEL_FULL, &bytes, CELL_LEVEL_FULL, 0);
	for (size_t size = 0; size < sizeof(struct cell_plan) + 200; size++)
		assert_false(cell__plan_check(bytes.data, size));
	for (size_t i = 0; i < bytes.size; i += i < 4096 ? 1 : 61) {
		char before = bytes.data[i];
		bytes.data[i] = (char)(before ^ 0x80);
		if (cell__plan_check(bytes.data, bytes.size)) {
			const struct cell_plan *plan = (const struct cell_plan *)bytes.data;
			const struct cell_plan_step *step = cell__plan_first(plan);
			for (uint32_t k = 0; k < plan->n_steps; k++, step = cell__plan_next(step))
				assert_true((const char *)step + step->bytes <= bytes.data + bytes.size);
		}
		bytes.data[i] = before;
	}
	assert_true(cell__plan_check(bytes.data, bytes.size));
}

static void rules(void **state)
{
	(void)state;
	static const struct {
		const char *rule, *host;
		unsigned port;
		bool matches;
	} rows[] = {
		{ "a.org:443", "a.org", 443, true },    { "a.org:443", "A.ORG.", 443, true },  { "a.org:443", "a.org", 80, false },
		{ "a.org:443", "b.a.org", 443, false }, { "a.org:443", "xa.org", 443, false }, { "*.a.org:*", "b.a.org", 1, true },
		{ "*.a.org:*", "a.org", 1, false },     { "*.a.org:*", "xa.org", 1, false },   { "[::1]:80", "::1", 80, true },
		{ "10.0.0.1:5", "10.0.0.1", 5, true },  { "a.org", "a.org", 443, false },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_int_equal(cell__egress_rule_matches(rows[i].rule, rows[i].host, rows[i].port), rows[i].matches);
}

static void addresses(void **state)
{
	(void)state;
	static const char *const private[] = {
		"127.0.0.1",
		"10.1.2.3",
		"172.16.0.1",
		"172.31.255.255",
		"192.168.1.1",
		"169.254.169.254",
		"100.64.0.1",
		"0.0.0.0",
		"224.0.0.1",
		"255.255.255.255",
		"::1",
		"::",
		"fe80::1",
		"fd00::1",
		"ff02::1",
		"::ffff:127.0.0.1",
		"::ffff:10.0.0.1",
		"64:ff9b::a9fe:a9fe",
		"2002:7f00:1::",
		"fd00:ec2::254",
		"::127.0.0.1",
		"168.63.129.16",
		"::ffff:168.63.129.16",
		"100.100.100.200",
		"192.0.0.192",
		"2001:0:4136:e378::1",
	};
	static const char *const public[] = {
		"1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "168.63.129.17"
	};
	for (int side = 0; side < 2; side++)
		for (size_t i = 0; i < (side ? sizeof public : sizeof private) / sizeof *private; i++) {
			const char *text = side ? public[i] : private[i];
			struct sockaddr_in v4 = { .sin_family = AF_INET };
			struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
			bool is4 = inet_pton(AF_INET, text, &v4.sin_addr) == 1;
			assert_true(is4 || inet_pton(AF_INET6, text, &v6.sin6_addr) == 1);
			if (cell__address_is_private(is4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6) == (side == 1))
				fail_msg("%s", text);
		}
}

static void requests(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int answer;
		const char *host;
		unsigned port;
	} rows[] = {
		{ "CONNECT a.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", 1, "a.org", 443 },
		{ "CONNECT [::1]:443 HTTP/1.1\r\n\r\n", 1, "::1", 443 },
		{ "GET http://a.org/x HTTP/1.1\r\n\r\n", 1, "a.org", 80 },
		{ "GET http://a.org:8080 HTTP/1.0\r\n\r\n", 1, "a.org", 8080 },
		{ "CONNECT a.org:443 HTTP/1.1\r\n", 0, NULL, 0 },
		{ "", 0, NULL, 0 },
		{ "CONNECT a.org HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "CONNECT a.org:0 HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "CONNECT a.org:99999 HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "CONNECT user@a.org:1 HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "CONNECT :1 HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "GET https://a.org/ HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "GET / HTTP/1.1\r\n\r\n", -1, NULL, 0 },
		{ "\r\n\r\n", -1, NULL, 0 },
		{ "A B C\r\n\r\n", -1, NULL, 0 },
		{ "GET http://a.org/x\nHost:b HTTP/1.1\r\n\r\n", -1, NULL, 0 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct cell__egress_wish wish = { 0 };
		assert_int_equal(cell__egress_parse_http(rows[i].text, strlen(rows[i].text), &wish), rows[i].answer);
		if (rows[i].answer == 1) {
			assert_string_equal(wish.host, rows[i].host);
			assert_int_equal(wish.port, rows[i].port);
			assert_int_equal(wish.used, strlen(rows[i].text));
		}
	}
	struct cell__egress_wish wish = { 0 };
	static const uint8_t named[] = { 5, 1, 0, 3, 1, 'a', 0, 80 }, v4[] = { 5, 1, 0, 1, 1, 2, 3, 4, 1, 0 },
			     bind_request[] = { 5, 2, 0, 1, 1, 2, 3, 4, 1, 0 }, colon[] = { 5, 1, 0, 3, 2, 'a', ':', 0, 80 };
	for (size_t n = 0; n < sizeof named; n++)
		assert_int_equal(cell__egress_parse_socks(named, n, &wish), 0);
	assert_int_equal(cell__egress_parse_socks(named, sizeof named, &wish), 1);
	assert_string_equal(wish.host, "a");
	assert_int_equal(cell__egress_parse_socks(v4, sizeof v4, &wish), 1);
	assert_string_equal(wish.host, "1.2.3.4");
	assert_int_equal(wish.port, 256);
	assert_int_equal(cell__egress_parse_socks(bind_request, sizeof bind_request, &wish), -1);
	assert_int_equal(cell__egress_parse_socks(colon, sizeof colon, &wish), -1);
}

/* ---- cgroups ---- */

static void put(const char *folder, const char *name, const char *text)
{
	char path[400];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void expect(const char *folder, const char *name, const char *text)
{
	char path[400], got[128] = "";
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && read(fd, got, sizeof got - 1) >= 0);
	close(fd);
	assert_string_equal(got, text);
}

#define UNIFIED "28 22 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
#define ROOT_DISK "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
#define MEMORY_V1 "30 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define CPU_V1 "31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"

/* Where we are, as Linux tells it on its own, with systemd, in containers and in namespaces. */
static void cgroup_places(void **state)
{
	(void)state;
	static const struct {
		const char *mounts, *groups, *controller, *folder; /* NULL: not to be seen */
	} rows[] = {
		/* version 2 only */
		{ ROOT_DISK UNIFIED, "0::/\n", NULL, "/sys/fs/cgroup" },
		{ ROOT_DISK UNIFIED, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", NULL,
		  "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope" },
		{ ROOT_DISK UNIFIED, "0::/a:b\n", NULL, "/sys/fs/cgroup/a:b" },
		{ ROOT_DISK UNIFIED, "0::/\n", "memory", NULL },
		/* both: the controllers of version 1 have their own paths */
		{ MEMORY_V1 CPU_V1 "32 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		  "5:cpu,cpuacct:/c\n4:memory:/m/n\n1:name=systemd:/s\n0::/u\n", NULL, "/sys/fs/cgroup/unified/u" },
		{ MEMORY_V1 CPU_V1, "5:cpu,cpuacct:/c\n4:memory:/m/n\n1:name=systemd:/s\n0::/u\n", "memory", "/sys/fs/cgroup/memory/m/n" },
		{ MEMORY_V1 CPU_V1, "5:cpu,cpuacct:/c\n4:memory:/m/n\n", "cpu", "/sys/fs/cgroup/cpu,cpuacct/c" },
		{ MEMORY_V1 CPU_V1, "5:cpu,cpuacct:/c\n4:memory:/m/n\n", "pids", NULL },
		{ MEMORY_V1, "4:memory:/\n", "memory", "/sys/fs/cgroup/memory" },
		{ MEMORY_V1, "6:cpuset:/x\n4:memory:/\n", "cpu", NULL },
		/* a part of the tree is mounted: ours, one that is not, and one whose name only begins like ours */
		{ "30 25 0:27 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/4f\n", "memory",
		  "/sys/fs/cgroup/memory" },
		{ "30 25 0:27 /docker/4f /mnt ro - cgroup2 cgroup rw\n", "0::/docker/4f/in/side\n", NULL, "/mnt/in/side" },
		{ "30 25 0:27 /docker/4f /mnt ro - cgroup2 cgroup rw\n", "0::/docker/4fa\n", NULL, NULL },
		{ "30 25 0:27 /other /mnt rw - cgroup2 cgroup rw\n" UNIFIED, "0::/ours\n", NULL, "/sys/fs/cgroup/ours" },
		/* a namespace: mounted from outside of it, and we are outside of it */
		{ "30 25 0:27 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/\n", NULL, NULL },
		{ ROOT_DISK UNIFIED, "0::/../elsewhere\n", NULL, NULL },
		/* names */
		{ "28 22 0:25 / /my\\040cgroup\\134s rw - cgroup2 none rw\n", "0::/g\n", NULL, "/my cgroup\\s/g" },
		/* damaged */
		{ "", "", NULL, NULL },
		{ "28 22 0:25\n - cgroup2\n" ROOT_DISK, "0::/\n", NULL, NULL },
		{ UNIFIED, "0:\n0\n::\n", NULL, NULL },
		{ UNIFIED, "0::relative\n", NULL, NULL },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char mounts[1024], groups[512], folder[256] = "";
		snprintf(mounts, sizeof mounts, "%s", rows[i].mounts);
		snprintf(groups, sizeof groups, "%s", rows[i].groups);
		bool found = cell__cgroup_locate(mounts, groups, rows[i].controller, folder, sizeof folder);
		if (found != (rows[i].folder != NULL) || (found && strcmp(folder, rows[i].folder) != 0))
			fail_msg("row %zu: %s", i, found ? folder : "not found");
	}
	char mounts[] = UNIFIED, groups[] = "0::/too/long\n", small[20];
	assert_false(cell__cgroup_locate(mounts, groups, NULL, small, sizeof small));
}

/* A folder with the files that a group of version 2 has: what is written is what the kernel's documentation asks for. */
static void cgroup_v2_files(void **state)
{
	(void)state;
	static const char *const files[] = { "memory.max",     "memory.swap.max", "memory.oom.group", "pids.max",
					     "cpu.max",        "cpu.weight",      "cgroup.procs",     "memory.peak",
					     "memory.current", "memory.events",   "pids.peak",        "pids.events" };
	char parent[] = "/tmp/workcell-cgroup-XXXXXX", folder[64], path[160];
	const struct cell_plan_limits limits = { .memory_bytes = 64 << 20, .pids = 20, .cpu_percent = 150, .cpu_weight = 100 };
	struct cell_cgroup group;
	struct cell_cgroup_usage usage;
	assert_non_null(mkdtemp(parent));
	for (int with_cpu = 1; with_cpu >= 0; with_cpu--) {
		struct cell_cgroups groups = { .version = 2 };
		for (int c = 0; c < (with_cpu ? CELL_CG_COUNT : CELL_CG_CPU); c++)
			snprintf(groups.parent[c], sizeof groups.parent[c], "%s", parent);
		snprintf(folder, sizeof folder, "%s/g%d", parent, with_cpu);
		assert_int_equal(mkdir(folder, 0700), 0);
		for (size_t i = 0; i < sizeof files / sizeof *files; i++)
			put(folder, files[i], "");
		assert_int_equal(cell__cgroup_make(&groups, with_cpu ? "g1" : "g0", &limits, &group), 0);
		expect(folder, "memory.max", "67108864");
		expect(folder, "memory.swap.max", "0");
		expect(folder, "memory.oom.group", "1");
		expect(folder, "pids.max", "21"); /* pid 1 is ours */
		expect(folder, "cpu.max", with_cpu ? "150000 100000" : "");
		expect(folder, "cpu.weight", with_cpu ? "100" : "");
		put(folder, "cpu.weight", "");
		assert_int_equal(cell__cgroup_set_share(&group, CELL_SHARE_REST), with_cpu); /* without cpu.idle: before Linux 5.15 */
		expect(folder, "cpu.weight", with_cpu ? "50" : "");
		put(folder, "cpu.idle", "");
		put(folder, "cpu.weight", "");
		assert_int_equal(cell__cgroup_set_share(&group, CELL_SHARE_REST), with_cpu);
		expect(folder, "cpu.idle", with_cpu ? "1" : "");
		expect(folder, "cpu.weight", "");
		put(folder, "cpu.idle", "");
		assert_int_equal(cell__cgroup_set_share(&group, CELL_SHARE_HALF), with_cpu);
		expect(folder, "cpu.idle", with_cpu ? "0" : "");
		expect(folder, "cpu.weight", with_cpu ? "50" : "");
		put(folder, "cpu.weight", "");
		assert_int_equal(cell__cgroup_set_share(&group, CELL_SHARE_USUAL), with_cpu);
		expect(folder, "cpu.weight", with_cpu ? "100" : "");
		snprintf(path, sizeof path, "%s/cpu.idle", folder);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(cell__cgroup_join(&group), 0);
		expect(folder, "cgroup.procs", "0");
		put(folder, "memory.peak", "1000\n");
		put(folder, "memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n");
		put(folder, "pids.peak", "9\n");
		put(folder, "pids.events", "max 5\n");
		cell__cgroup_usage(&group, &usage);
		assert_int_equal(usage.memory_peak, 1000);
		assert_int_equal(usage.memory_max, 67108864);
		assert_int_equal(usage.oom_kills, 2);
		assert_int_equal(usage.pids_peak, 9);
		assert_int_equal(usage.pids_refused, 5);
		/* Before Linux 5.19 */
		put(folder, "memory.peak", "");
		cell__cgroup_usage(&group, &usage);
		assert_int_equal(usage.memory_peak, 67108864);
		put(folder, "memory.events", "oom_kill 0\n");
		put(folder, "memory.current", "2000\n");
		cell__cgroup_usage(&group, &usage);
		assert_int_equal(usage.memory_peak, 2000);
		for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
			snprintf(path, sizeof path, "%s/%s", folder, files[i]);
			assert_int_equal(unlink(path), 0);
		}
		assert_int_equal(cell__cgroup_remove(&group), 0);
	}
	/* Where a limit cannot be set, the group is not made, and nothing is left. */
	struct cell_cgroups groups = { .version = 2 };
	snprintf(groups.parent[CELL_CG_MEMORY], sizeof groups.parent[0], "%s", parent);
	assert_int_equal(cell__cgroup_make(&groups, "g2", &limits, &group), -ENOENT);
	assert_int_equal(rmdir(parent), 0);
}

/* Real groups of version 2, where there is a hierarchy that we may write to: joined, busy, removed. */
static void cgroup_v2_life(void **state)
{
	(void)state;
	static const char *const places[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
	struct cell_cgroup group = { .version = 2 };
	int go[2];
	char byte;
	for (size_t i = 0; i < 2 && !group.path[CELL_CG_PIDS][0]; i++) {
		char probe[64];
		snprintf(probe, sizeof probe, "%s/cgroup.subtree_control", places[i]);
		snprintf(group.path[CELL_CG_PIDS], sizeof group.path[0], "%s/workcell-test-%d", places[i], (int)getpid());
		if (access(probe, F_OK) < 0 || mkdir(group.path[CELL_CG_PIDS], 0755) < 0)
			group.path[CELL_CG_PIDS][0] = '\0';
	}
	if (!group.path[CELL_CG_PIDS][0])
		skip();
	assert_int_equal(pipe(go), 0);
	pid_t child = fork();
	if (child == 0) {
		close(go[1]);
		_exit(cell__cgroup_join(&group) == 0 && read(go[0], &byte, 1) == 0 ? 0 : 1);
	}
	char text[32] = "", path[200];
	snprintf(path, sizeof path, "%s/cgroup.procs", group.path[CELL_CG_PIDS]);
	for (int tries = 0; tries < 10000 && !strtol(text, NULL, 10); tries++) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0 && read(fd, text, sizeof text - 1) >= 0);
		close(fd);
		usleep(1000);
	}
	assert_int_equal(strtol(text, NULL, 10), child);
	assert_int_equal(cell__cgroup_remove(&group), -EBUSY);
	close(go[1]);
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(go[0]);
	assert_int_equal(cell__cgroup_remove(&group), 0);
	assert_int_equal(cell__cgroup_remove(&group), 0); /* gone already is fine */
}

/* ---- shares ---- */

/* ---- mount points ---- */

static void add_step(struct cell__buf *plan, int op, int stage, unsigned flags, uint64_t arg, const char *a, const char *b)
{
	size_t a_size = strlen(a), b_size = strlen(b);
	struct cell_plan_step step = {
		.bytes = (uint32_t)((sizeof step + a_size + b_size + 2 + 7) & ~(size_t)7),
		.op = (uint16_t)op,
		.stage = (uint8_t)stage,
		.flags = (uint8_t)flags,
		.arg = arg,
		.a_size = (uint32_t)a_size,
		.b_size = (uint32_t)b_size,
	};
	char text[2 * PATH_MAX] = { 0 };
	memcpy(text, a, a_size);
	memcpy(text + a_size + 1, b, b_size);
	assert_int_equal(cell__buf_add(plan, &step, sizeof step), 0);
	assert_int_equal(cell__buf_add(plan, text, step.bytes - sizeof step), 0);
	struct cell_plan *head = (struct cell_plan *)plan->data;
	head->n_steps++;
	head->bytes = (uint32_t)plan->size;
}

/* The errno of the step that failed when a process in namespaces of its own does this plan; 0: none did. */
static int apply_in_child(const struct cell__buf *bytes)
{
	const struct cell_plan *plan = (const struct cell_plan *)bytes->data;
	assert_true(cell__plan_check(plan, bytes->size));
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct cell_plan_report report = { .step = -1 };
		struct cell_apply apply = { .plan = plan, .landlock_fd = -1 };
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			_exit(255);
		_exit(cell__apply_stage(&apply, CELL_STAGE_JAIL, &report) < 0 ||
				      cell__apply_stage(&apply, CELL_STAGE_SESSION_FILES, &report) < 0
			      ? report.sys
			      : 0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/*
 * A folder of the host that code could write to holds a link to the host's files below the old root.  Nothing may be made
 * through it, and nothing that was swapped for a link since the plan was made may be shown.
 */
static void links_in_the_way(void **state)
{
	(void)state;
	char folder[] = "/tmp/workcell-mounts-XXXXXX", path[PATH_MAX], target[PATH_MAX];
	assert_non_null(mkdtemp(folder));
	static const char *const names[] = { "work", "outside", "shown" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		assert_int_equal(mkdir(path, 0755), 0);
	}
	snprintf(target, sizeof target, CELL_PLAN_OLD_ROOT "%s/outside", folder);
	snprintf(path, sizeof path, "%s/work/x", folder);
	assert_int_equal(symlink(target, path), 0);
	static const struct {
		const char *source, *target;
		int stage, error;
	} rows[] = {
		{ "shown", "work/x/made", CELL_STAGE_JAIL, ELOOP },         { "shown", "work/x", CELL_STAGE_JAIL, ELOOP },
		{ "shown", "elsewhere/made", CELL_STAGE_JAIL, 0 },          { "work/x", "elsewhere/made", CELL_STAGE_SESSION_FILES, ELOOP },
		{ "shown", "elsewhere/made", CELL_STAGE_SESSION_FILES, 0 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		CELL_AUTO_BUF struct cell__buf plan = CELL_BUF_INIT;
		struct cell_plan head = { .magic = CELL_PLAN_MAGIC, .version = CELL_PLAN_VERSION };
		assert_int_equal(cell__buf_add(&plan, &head, sizeof head), 0);
		add_step(&plan, CELL_OP_IDS, CELL_STAGE_JAIL, 0, geteuid(), "", "");
		add_step(&plan, CELL_OP_ROOT, CELL_STAGE_JAIL, 0, 1 << 20, "", "");
		snprintf(path, sizeof path, "%s/work", folder);
		add_step(&plan, CELL_OP_BIND, CELL_STAGE_JAIL, 0, 0, path, path);
		snprintf(path, sizeof path, "%s/%s", folder, rows[i].source);
		snprintf(target, sizeof target, "%s/%s", folder, rows[i].target);
		add_step(&plan, CELL_OP_BIND, rows[i].stage, 0, 0, path, target);
		assert_int_equal(apply_in_child(&plan), rows[i].error);
		snprintf(path, sizeof path, "%s/outside/made", folder);
		assert_int_equal(access(path, F_OK), -1);
	}
	static const char *const left[] = { "work/x", "work", "outside", "shown", "" };
	for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, left[i]);
		assert_int_equal(remove(path), 0);
	}
}

static int told;

static void count_told(struct cell__cpu_share *entry, enum cell_cgroup_share share)
{
	(void)entry;
	(void)share;
	told++;
}

static void pass(struct cell__cpu_shares *shares, uint64_t ms, bool quick)
{
	shares->loop->time += ms;
	if (quick)
		cell__cpu_shares_quick(shares);
	if (shares->busy)
		shares->timer.timer_cb(&shares->timer);
}

/* Who runs long yields while cells begin; in turn each has a second; all of it in a time of its own. */
static void shares_taken(void **state)
{
	(void)state;
	uv_loop_t loop;
	struct cell__cpu_shares shares;
	struct cell__cpu_share one = { 0 }, two = { 0 };
	assert_int_equal(uv_loop_init(&loop), 0);
	cell__cpu_shares_init(&shares, &loop, count_told);
	told = 0;
	cell__cpu_shares_quick(&shares);
	assert_false(shares.busy);
	loop.time += 500;
	cell__cpu_shares_long(&shares, &one); /* its own beginning is too long ago to count */
	assert_int_equal(one.share, CELL_SHARE_HALF);
	assert_int_equal(told, 1);
	cell__cpu_shares_quick(&shares);
	assert_int_equal(one.share, CELL_SHARE_REST);
	cell__cpu_shares_long(&shares, &two);
	assert_int_equal(two.share, CELL_SHARE_REST);
	unsigned rested[2] = { 0, 0 };
	for (int second = 0; second < 40; second++) {
		pass(&shares, 1000, true);
		rested[0] += one.share == CELL_SHARE_HALF;
		rested[1] += two.share == CELL_SHARE_HALF;
		assert_false(one.share == CELL_SHARE_HALF && two.share == CELL_SHARE_HALF);
	}
	assert_true(rested[0] >= 3 && rested[1] >= 3 && rested[0] + rested[1] <= 8);
	pass(&shares, 1000, false);
	assert_false(shares.busy);
	assert_int_equal(one.share, CELL_SHARE_HALF);
	assert_int_equal(two.share, CELL_SHARE_HALF);
	cell__cpu_shares_leave(&shares, &one, false);
	assert_int_equal(one.share, CELL_SHARE_USUAL);
	told = 0;
	cell__cpu_shares_leave(&shares, &two, true); /* nobody is there to be told */
	cell__cpu_shares_leave(&shares, &one, false);
	assert_int_equal(told, 0);
	cell__cpu_shares_quick(&shares);
	assert_false(shares.busy);
	uv_close((uv_handle_t *)&shares.timer, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
}

/* Which mounts a session needs: the one below each path, and what is mounted below that; some cannot be. */
static void mounts(void **state)
{
	(void)state;
	char why[160];
	if (!cell__mapped_possible())
		skip(); /* an ordinary user's sandboxes have the user's uid */
	struct cell__mounts *list = cell__mounts_create();
	assert_non_null(list);
	assert_null(cell__mounts_of(list, (const char *const[]){ "/proc/self", NULL }, why));
	assert_string_equal(why, "/proc");
	assert_null(cell__mounts_of(list, (const char *const[]){ "/", NULL }, why)); /* /proc lies below it */
	const char *const *none = cell__mounts_of(list, (const char *const[]){ NULL }, why);
	assert_true(none && !none[0]);
	cell__mounts_destroy(list);
	cell__mounts_destroy(NULL);
}

static struct cell__sandbox_plan *found_for(struct cell__plans *plans, const char *text)
{
	static const struct cell__plan_env env;
	struct cell__sandbox_plan *plan = NULL;
	struct cell__sandbox_policy policy;
	struct cell_error err;
	assert_int_equal(parse(text, &policy, &err), 0);
	struct cell__plan_session session = { .mode = CELL_WORKSPACE_NONE, .env = &env, .policy = &policy };
	if (cell__plans_find(plans, &session, &plan, &err) < 0)
		fail_msg("%s", err.msg);
	cell__sandbox_policy_finish(&policy);
	cell__sandbox_plan_unref(plan); /* the cache keeps it */
	return plan;
}

/* Plans with the same bytes are one; whatever else differs, a plan is never given to a policy that it is not of. */
static void plans_shared(void **state)
{
	(void)state;
	if (cell__machine_here()->level < CELL_LEVEL_NO_USERNS)
		skip();
	struct cell__plans plans = CELL_PLANS_INIT;
	struct cell__sandbox_plan *first = found_for(&plans, "limits: {memory: 3G}\n");
	assert_ptr_equal(found_for(&plans, "limits: {memory: 3G}\n"), first);
	/* Not in the plan: the host watches it. */
	assert_ptr_equal(found_for(&plans, "limits: {memory: 3G, workspace_files: 77}\n"), first);
	assert_ptr_not_equal(found_for(&plans, "limits: {memory: 4G}\n"), first);
	struct cell__sandbox_plan *two = found_for(&plans, "filesystem: {read: [/var/lib, /var/log]}\n");
	assert_ptr_not_equal(found_for(&plans, "filesystem: {read: [/var/lib]}\n"), two);
	/* Also if only the borders between texts differ. */
	assert_ptr_not_equal(found_for(&plans, "filesystem: {read: [\"/var/lib\\t/var/log\"]}\n"), two);
	assert_ptr_not_equal(found_for(&plans, "filesystem: {read: [\"/var/lib\\n/var/log\"]}\n"), two);
	assert_ptr_not_equal(found_for(&plans, "filesystem: {read: [/var/lib], write: [/var/log]}\n"), two);
	assert_ptr_equal(found_for(&plans, "limits: {memory: 3G}\n"), first);
	/* Those that nobody uses go, also where several inputs lead to one. */
	for (int i = 0; i < 3 * CELL_PLANS_MAX; i++) {
		char text[64];
		snprintf(text, sizeof text, "limits: {memory: %dG, workspace_files: %d}\n", 5 + i / 2, 100 + i);
		(void)found_for(&plans, text);
	}
	size_t count = 0;
	char name[64], target[64];
	for (int fd = 3; fd < 1024; fd++) {
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, target, sizeof target - 1);
		count += n > 0 && strncmp(target, "/memfd:workcell-plan", 20) == 0;
	}
	assert_true(count >= CELL_PLANS_MAX / 2 && count <= CELL_PLANS_MAX);
	cell__plans_finish(&plans);
}

/* Lines of /etc/subuid: by name or number, long enough, and not the user's own uid. */
static void subordinate_ids(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		unsigned first, count; /* 0: none */
	} rows[] = {
		{ "", 0, 0 },
		{ "me:100000:65536\n", 100000, 65536 },
		{ "1000:100000:65536", 100000, 65536 },
		{ "root:1:65536\nme:200000:10\nme:300000:65536\n", 200000, 10 },
		{ "me:200000:7\nme:300000:8\n", 300000, 8 },
		{ "mee:100000:65536\nm:100000:65536\n10001:100000:65536\n", 0, 0 },
		{ "me:0:65536\n", 0, 0 },
		{ "me:900:65536\n", 0, 0 },
		{ "me:1001:65536\n", 1001, 65536 },
		{ "me:4294967290:8\n", 0, 0 },
		{ "me:4294967295:65536\nme:100000:4294967295\n", 0, 0 },
		{ "me:x:65536\nme:100000\nme\n:100000:65536\n", 0, 0 },
		{ "# me:100000:65536\n\nme:100000:65536\n", 100000, 65536 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		unsigned first = 0, count = 0;
		assert_int_equal(cell__subids_parse(rows[i].text, "me", 1000, &first, &count), rows[i].count > 0);
		assert_int_equal(first, rows[i].first);
		assert_int_equal(count, rows[i].count);
	}
}

static void make_open(const char *folder, const char *name, mode_t mode, bool is_folder)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	if (is_folder)
		assert_int_equal(mkdir(path, 0755), 0);
	else
		close(creat(path, 0644));
	assert_int_equal(chmod(path, mode), 0);
}

/* Folders for a uid with everybody's rights: what a private umask leaves is noticed, and said. */
static void open_to_all(void **state)
{
	(void)state;
	char folder[] = "/tmp/workcell-open-XXXXXX", shut[64], inner[64], why[160] = "";
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chmod(folder, 0755), 0);
	snprintf(shut, sizeof shut, "%s/shut", folder);
	snprintf(inner, sizeof inner, "%s/fine", folder);
	make_open(folder, "fine", 0755, true);
	make_open(folder, "fine/file", 0644, false);
	make_open(folder, "fine/.lock", 0600, false);
	struct cell__mounts *list = cell__mounts_create();
	const char *const *found = cell__mounts_open_to_all(list, (const char *const[]){ inner, folder, inner, NULL }, why);
	assert_true(found && strcmp(found[0], folder) == 0 && !found[1]);
	make_open(folder, "shut", 0755, true);
	make_open(folder, "shut/file", 0640, false);
	assert_null(cell__mounts_open_to_all(list, (const char *const[]){ inner, shut, NULL }, why));
	assert_non_null(strstr(why, shut));
	assert_null(cell__mounts_open_to_all(list, (const char *const[]){ "/nowhere", NULL }, why));
	const char *many[CELL_PLAN_MAX_TREES + 2] = { NULL };
	for (size_t i = 0; i <= CELL_PLAN_MAX_TREES; i++) {
		char name[32], *path = malloc(96);
		snprintf(name, sizeof name, "fine/%zu", i);
		make_open(folder, name, 0755, true);
		snprintf(path, 96, "%s/%s", folder, name);
		many[i] = path;
	}
	assert_null(cell__mounts_open_to_all(list, many, why));
	free((void *)many[CELL_PLAN_MAX_TREES]);
	many[CELL_PLAN_MAX_TREES] = NULL;
	assert_non_null(cell__mounts_open_to_all(list, many, why));
	for (size_t i = 0; many[i]; i++)
		free((void *)many[i]);
	cell__mounts_destroy(list);
	char command[96];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mounts),           cmocka_unit_test(policies),       cmocka_unit_test(bad_policies),
		cmocka_unit_test(levels),           cmocka_unit_test(damaged_plans),  cmocka_unit_test(cgroup_places),
		cmocka_unit_test(cgroup_v2_files),  cmocka_unit_test(cgroup_v2_life), cmocka_unit_test(shares_taken),
		cmocka_unit_test(links_in_the_way), cmocka_unit_test(rules),          cmocka_unit_test(addresses),
		cmocka_unit_test(requests),         cmocka_unit_test(plans_shared),   cmocka_unit_test(subordinate_ids),
		cmocka_unit_test(open_to_all),      cmocka_unit_test(protection),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
