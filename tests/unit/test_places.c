/* What the host trusts against where code can write: what a path leads through, and both orders of coming. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/places.h"

static char top[] = "/tmp/test-places-XXXXXX";

static const char *at(const char *name)
{
	static char paths[8][256];
	static unsigned next;
	char *path = paths[next++ % 8];
	snprintf(path, 256, "%s/%s", top, name);
	return path;
}

static int set_up(void **state)
{
	(void)state;
	char command[128];
	if (!mkdtemp(top))
		return -1;
	snprintf(command, sizeof command, "cd %s && mkdir work other store && ln -s ../store work/link && ln -s work/link via", top);
	return system(command);
}

static int tear_down(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof command, "rm -r %s", top);
	return system(command);
}

static struct cell__place_list trusts(const char *path, bool whole)
{
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	struct cell_error err;
	assert_int_equal(cell__place_add(&list, "it", whole, path, &err), 0);
	return list;
}

static struct cell__writable_list writes(const char *path)
{
	struct cell__writable_list list;
	struct cell__sandbox_policy policy = { .workspace = CELL_WORKSPACE_RW };
	struct cell_error err;
	assert_int_equal(cell__writable_init(&list, &policy, path, &err), 0);
	return list;
}

/* 0, or the code of the refusal, in both orders. */
static int meet(const char *trusted, bool whole, const char *writable)
{
	struct cell__place_list list = trusts(trusted, whole);
	struct cell__writable_list folder = writes(writable);
	struct cell__places *places = cell__places_create();
	struct cell_error first = { 0 }, second = { 0 };
	assert_int_equal(cell__places_trust(places, &list, &first), 0);
	assert_int_equal(cell__places_write(places, &folder, &first), -1); /* its other names are not known yet */
	assert_int_equal(first.code, CELL_E_SANDBOX);
	assert_int_equal(cell__places_name(places, &folder, &first), 0);
	int a = cell__places_write(places, &folder, &first) < 0 ? first.code : 0;
	cell__places_unwrite(places, &folder);
	cell__places_untrust(places, &list);
	assert_int_equal(cell__places_write(places, &folder, &second), 0);
	int b = cell__places_trust(places, &list, &second) < 0 ? second.code : 0;
	if (b == 0)
		cell__places_untrust(places, &list);
	cell__places_unwrite(places, &folder);
	assert_int_equal(a, b);
	cell__places_destroy(places);
	cell__place_list_finish(&list);
	cell__writable_finish(&folder);
	return a;
}

static void test_meeting(void **state)
{
	(void)state;
	assert_int_equal(meet(at("store"), false, at("work")), 0);
	assert_int_equal(meet(at("work"), false, at("work")), CELL_E_INVALID);
	assert_int_equal(meet(at("work/a/b"), false, at("work")), CELL_E_INVALID);
	assert_int_equal(meet(at("work/link"), false, at("work")), CELL_E_INVALID);
	assert_int_equal(meet(at("via"), false, at("work")), CELL_E_INVALID);
	assert_int_equal(meet(at("via/x"), false, at("store")), CELL_E_INVALID);
	assert_int_equal(meet(at("other/../work/x"), false, at("work")), CELL_E_INVALID);
	assert_int_equal(meet(at("workshop"), false, at("work")), 0);
	assert_int_equal(meet(at("store"), false, at("store/in")), 0);
	assert_int_equal(meet(at("store"), true, at("store/in")), CELL_E_INVALID);
}

static void test_unlinked(void **state)
{
	(void)state;
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	struct cell__writable_list folder = writes(at("work"));
	struct cell_error err;
	assert_int_equal(cell__place_add_unlinked(&list, "it", at("work/images"), &err), 0);
	assert_int_equal(cell__places_check(&list, &folder, &err), 0);
	assert_int_equal(cell__place_add_unlinked(&list, "it", at("work/link"), &err), 0);
	assert_int_equal(cell__places_check(&list, &folder, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell__place_list_finish(&list);
	cell__writable_finish(&folder);
}

/* Two spaces trust the same place: it is trusted until both are gone. */
static void test_counted(void **state)
{
	(void)state;
	struct cell__place_list a = trusts(at("work/x"), false), b = trusts(at("work/x"), false);
	struct cell__writable_list folder = writes(at("work"));
	struct cell__places *places = cell__places_create();
	struct cell_error err;
	assert_int_equal(cell__places_trust(places, &a, &err), 0);
	assert_int_equal(cell__places_trust(places, &b, &err), 0);
	assert_int_equal(cell__places_name(places, &folder, &err), 0);
	cell__places_untrust(places, &a);
	assert_int_equal(cell__places_write(places, &folder, &err), -1);
	cell__places_untrust(places, &b);
	assert_int_equal(cell__places_write(places, &folder, &err), 0);
	cell__places_unwrite(places, &folder);
	cell__places_destroy(places);
	cell__place_list_finish(&a);
	cell__place_list_finish(&b);
	cell__writable_finish(&folder);
}

static void test_a_loop_of_links(void **state)
{
	(void)state;
	struct cell__place_list list = CELL_PLACE_LIST_INIT;
	struct cell_error err;
	assert_int_equal(symlink("loop", at("loop")), 0);
	assert_int_equal(cell__place_add(&list, "it", false, at("loop/x"), &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell__place_list_finish(&list);
}

static void test_folders_that_nobody_writes_to(void **state)
{
	(void)state;
	static const char *const folders[] = { "/", "/etc", "/etc/cron.d", "/usr/local/x", "/home", "/var", "/var/spool/cron", "/boot" };
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
		struct cell__writable_list list;
		struct cell__sandbox_policy policy = { .workspace = CELL_WORKSPACE_RW };
		struct cell_error err;
		assert_int_equal(cell__writable_init(&list, &policy, folders[i], &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_meeting),
		cmocka_unit_test(test_unlinked),
		cmocka_unit_test(test_counted),
		cmocka_unit_test(test_a_loop_of_links),
		cmocka_unit_test(test_folders_that_nobody_writes_to),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
