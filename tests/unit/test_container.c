/* executors/container/config.c: what engines are told, and what is believed of what they show. */
#include "executors/container/container.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "support.h"

static json_t *describe(const struct cell_container_options *options)
{
	struct cell_error err = { 0 };
	char *text = NULL;
	json_t *config;

	if (cell__container_describe(options, NULL, &text, &err) < 0)
		fail_msg("%s", err.msg);
	config = json_loads(text, 0, NULL);
	free(text);
	assert_non_null(config);
	return config;
}

/* The body for an engine that says this of itself. */
static json_t *body_for(const char *info)
{
	struct cell_container_options options = CELL_CONTAINER_OPTIONS_INIT;
	struct cell__container_place place = { .folder = CELL_CONTAINER_FOLDER "abcdef" };
	json_t *config, *said = json_loads(info, 0, NULL), *body;
	char *text;

	options.user = "1000:1001";
	config = describe(&options);
	assert_non_null(said);
	assert_int_equal(cell__container_take_info(config, said), 0);
	text = cell__container_body(config, &place);
	assert_non_null(text);
	body = json_loads(text, 0, NULL);
	free(text);
	json_decref(said);
	json_decref(config);
	assert_non_null(body);
	return body;
}

static void test_rootless_engines(void **state)
{
	static const struct {
		const char *info, *user, *mode;
	} cases[] = {
		{ "{\"SecurityOptions\":[\"name=seccomp,profile=default\"],\"Rootless\":false}", "1000:1001",
		  NULL }, /* Podman's, Docker's */
		{ "{\"SecurityOptions\":[\"name=seccomp,profile=default\"],\"Rootless\":true}", "1000:1001", "keep-id" },
		{ "{\"SecurityOptions\":[\"name=seccomp,profile=default\",\"name=rootless\"]}", "0:0", NULL },
		{ "{\"SecurityOptions\":[7,\"name=rootless2\"],\"Rootless\":\"true\"}", "1000:1001", NULL },
		{ "[]", "1000:1001", NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *body = body_for(cases[i].info), *host = json_object_get(body, "HostConfig");
		const char *mode = json_string_value(json_object_get(host, "UsernsMode"));

		assert_string_equal(json_string_value(json_object_get(body, "User")), cases[i].user);
		assert_true(mode == cases[i].mode || (mode && cases[i].mode && !strcmp(mode, cases[i].mode)));
		json_decref(body);
	}
}

static void test_what_is_not_applied(void **state)
{
	static const struct {
		json_int_t memory, cpu, pids;
		const char *network;
		bool read_only;
		const char *word;
	} cases[] = {
		{ 256 << 20, 50000, 64, "none", true, NULL },
		{ 0, 50000, 64, "none", true, "memory_limit" },
		{ (256 << 20) + 1, 50000, 64, "none", true, "memory_limit" },
		{ 256 << 20, -1, 64, "none", true, "cpu_quota" },
		{ 256 << 20, 50000, 0, "none", true, "pids_limit" },
		{ 256 << 20, 50000, 64, "bridge", true, "network" },
		{ 256 << 20, 50000, 64, NULL, true, "network" },
		{ 256 << 20, 50000, 64, "none", false, "read-only" },
	};
	struct cell_container_options options = CELL_CONTAINER_OPTIONS_INIT;
	json_t *config, *none = json_array();
	struct cell_error err = { 0 };

	(void)state;
	options.memory_limit = 256 << 20;
	options.cpu_quota = 50000;
	options.pids_limit = 64;
	options.network_disabled = 1;
	config = describe(&options);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *shown = json_pack("{s:{s:I,s:I,s:I,s:s*,s:b}}", "HostConfig", "Memory", cases[i].memory, "CpuQuota", cases[i].cpu,
					  "PidsLimit", cases[i].pids, "NetworkMode", cases[i].network, "ReadonlyRootfs",
					  cases[i].read_only);

		assert_non_null(shown);
		assert_int_equal(cell__container_check(config, shown, &err), cases[i].word ? -1 : 0);
		if (cases[i].word) {
			assert_int_equal(err.code, CELL_E_UNAVAILABLE);
			assert_non_null(strstr(err.msg, cases[i].word));
		}
		json_decref(shown);
	}
	assert_int_equal(cell__container_check(config, none, &err), -1);
	json_decref(none);
	/* Rootless Docker shows it, and says elsewhere that it cannot. */
	none = json_pack("{s:[s],s:b,s:b}", "SecurityOptions", "name=rootless", "MemoryLimit", 1, "PidsLimit", 1);
	assert_int_equal(cell__container_take_info(config, none), 0);
	json_decref(none);
	none = json_pack("{s:{s:i,s:i,s:i,s:s,s:b}}", "HostConfig", "Memory", 256 << 20, "CpuQuota", 50000, "PidsLimit", 64, "NetworkMode",
			 "none", "ReadonlyRootfs", 1);
	assert_int_equal(cell__container_check(config, none, &err), -1);
	assert_non_null(strstr(err.msg, "cpu_quota"));
	json_decref(none);
	json_decref(config);
	/* What was not asked for need not be there. */
	options = (struct cell_container_options)CELL_CONTAINER_OPTIONS_INIT;
	options.memory_limit = options.pids_limit = -1;
	config = describe(&options);
	none = json_pack("{s:{s:b}}", "HostConfig", "ReadonlyRootfs", 1);
	assert_int_equal(cell__container_check(config, none, &err), 0);
	json_decref(none);
	json_decref(config);
}

/* A socket that another process has put there is not taken for the server's. */
static void test_whose_socket_it_is(void **state)
{
	char folder[] = "/tmp/workcell-test-XXXXXX";
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct cell_error err = { 0 };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), kept = -1;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/server.sock", folder);
	assert_int_equal(cell__container_keep_socket(address.sun_path, getpid(), &kept, &err), -1);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 4), 0);
	assert_int_equal(cell__container_keep_socket(address.sun_path, getpid(), &kept, &err), 0);
	close(kept);
	assert_int_equal(cell__container_keep_socket(address.sun_path, 0, &kept, &err), 0);
	close(kept);
	kept = -1;
	assert_int_equal(cell__container_keep_socket(address.sun_path, getppid(), &kept, &err), -1);
	assert_int_equal(err.code, CELL_E_PROTOCOL);
	assert_int_equal(kept, -1);
	unlink(address.sun_path);
	assert_int_equal(symlink("other", address.sun_path), 0);
	assert_int_equal(cell__container_keep_socket(address.sun_path, getpid(), &kept, &err), -1);
	unlink(address.sun_path);
	rmdir(folder);
	close(listener);
}

/* With a storage: two folders of it are read-only, and an engine that shows them otherwise is not used. */
static void test_what_is_kept_back(void **state)
{
	static const struct {
		const char *host;
		int tools, own;
		bool good;
	} cases[] = {
		{ "/workspace/.host", 0, 0, true },
		{ "/workspace/.host", 1, 0, false },
		{ "/workspace/.host", 0, 1, false },
		{ "/workspace/x", 0, 0, false },
	};
	char folder[] = "/tmp/workcell-test-XXXXXX";
	struct cell_container_options options = CELL_CONTAINER_OPTIONS_INIT;
	struct cell_error err = { 0 };
	json_t *config;

	(void)state;
	assert_non_null(mkdtemp(folder));
	if (!geteuid())
		assert_int_equal(chown(folder, 10001, 10001), 0);
	options.storage = folder;
	options.memory_limit = options.pids_limit = -1;
	config = describe(&options);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *shown = json_pack("{s:{s:b},s:[{s:s,s:b},{s:s,s:b}]}", "HostConfig", "ReadonlyRootfs", 1, "Mounts", "Destination",
					  "/workspace/tools", "RW", cases[i].tools, "Destination", cases[i].host, "RW", cases[i].own);

		assert_int_equal(cell__container_check(config, shown, &err), cases[i].good ? 0 : -1);
		json_decref(shown);
	}
	json_decref(config);
	rmdir(folder);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_rootless_engines), TEST(test_what_is_not_applied), TEST(test_whose_socket_it_is),
					    TEST(test_what_is_kept_back) };
	return cmocka_run_group_tests_name("container", tests, NULL, NULL);
}
