/*
 * deps, for real: venvs are made and packages installed with the machine's own installers, offline from wheels that are
 * written here, and once from the configured index.
 *
 * WORKCELL_TEST_UV=<folder of uv> runs everything with uv, else pip does it; WORKCELL_TEST_OFFLINE=1 leaves out the
 * index.  The same program, called as `test_deps worker TMP NAME SPEC`, is one of several processes on one project.
 */
#define _GNU_SOURCE
#include "deps_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "deps/venv.h"

#define MANY_S 300 /* a test with several real venvs on a busy machine */

/* ---- without any installer ---- */

static void configure_disabled(struct project *project)
{
	project->options.allow_runtime = false;
}

static void test_disabled(void **state)
{
	(void)state;
	static struct project project; /* outlives a test that fails */
	project_open(&project, "disabled", configure_disabled);
	do_fail(&project, "deps.add", "six", CELL_E_DISABLED, "RuntimeDepsDisabledError",
		"Runtime dependency installation is disabled. Dependencies must be pre-configured before session start.");
	do_fail(&project, "deps.remove", "six", CELL_E_DISABLED, "RuntimeDepsDisabledError",
		"Runtime dependency modification is disabled.");
	expect_list(&project, "[]");
	do_sync(&project, "deps.sync", NULL, "[]", "[]", "[]");
	assert_int_equal(project.lines, 0);
	project_close(&project);
}

static void test_refused(void **state)
{
	(void)state;
	static struct project project;
	project_open(&project, "refused", NULL);
	static const char *const bad[] = { "",
					   "  ",
					   "-e .",
					   "git+https://x/y",
					   "six @ https://x/y.whl",
					   "six; python_version>'3'",
					   "six\n--index-url=http://x",
					   "--index-url=http://x",
					   "a b",
					   "requests>",
					   "./six.whl" };
	for (size_t i = 0; i < COUNT(bad); i++)
		do_fail(&project, "deps.add", bad[i], CELL_E_INVALID, "ValueError", "");
	do_fail(&project, "deps.add", NULL, CELL_E_INVALID, "ValueError", "needs 'package', a string");
	do_fail(&project, "deps.explode", NULL, CELL_E_INVALID, "ValueError", "there is no method");
	expect_list(&project, "[]");
	remove_is(&project, "six", false);
	remove_is(&project, " ", false);
	do_fail(&project, "deps.remove", "-e .", CELL_E_INVALID, "ValueError", "starts with -");
	assert_int_not_equal(shell("ls -A %s/venvs | grep -v '^[.]'", project.cache), 0);
	project_close(&project);
}

static void test_find_python(void **state)
{
	(void)state;
	struct cell_error err = { 0 };
	char *python = NULL;
	static const char *const bad[] = { "3", "3.", "x", "3.11.2", "3.11 x", "3..11" };
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(cell__deps_find_python(bad[i], "/usr/bin", &python, &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
		assert_non_null(strstr(err.msg, "python_version must be in major.minor format (e.g., '3.11'), got: "));
	}
	assert_int_equal(cell__deps_find_python("  ", "/usr/bin", &python, &err), -1);
	assert_string_equal(err.msg, "python_version cannot be empty or whitespace-only");
	assert_int_equal(cell__deps_find_python("2.3", "/usr/bin", &python, &err), -1);
	assert_int_equal(err.code, CELL_E_PYTHON);
	assert_int_equal(cell__deps_find_python(" 3.11 ", "/nowhere:relative:/usr/bin", &python, &err), 0);
	assert_string_equal(python, "/usr/bin/python3.11");
	free(python);
}

static void test_versions_and_listings(void **state)
{
	(void)state;
	static const char *const good[] = { "cpython-3.11.2", "pypy-7.3.12" };
	static const char *const bad[] = { "",       "3.11.2",           "cpython-3.11", "cpython-3.11.2.1",     "cpython-3.11.x",
					   "-3.1.1", "cpython-3.11.2\n", "../x-1.1.1",   "cpython-3.11.12345678" };
	for (size_t i = 0; i < COUNT(good); i++)
		assert_true(cell__venv_version_ok(good[i]));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(cell__venv_version_ok(bad[i]));
	char dir[128], site[160];
	snprintf(dir, sizeof dir, "%s/listing", tmp);
	snprintf(site, sizeof site, "%s/listing", tmp);
	shell("mkdir -p %s/My.Pkg-1.0.dist-info %s/a__b-2.dist-info %s/b-1 %s/~x-1.dist-info", dir, dir, dir, dir);
	CELL_AUTO_BUF struct cell__buf listing = CELL_BUF_INIT;
	struct cell_error err;
	assert_int_equal(cell__venv_listing(tmp, site, false, &listing, &err), 0);
	assert_string_equal(listing.data, "a-b==2\nmy-pkg==1.0\n");
	size_t size;
	assert_memory_equal(cell__venv_listed(&listing, "my-pkg", 6, &size), "1.0", 3);
	assert_int_equal(size, 3);
	assert_null(cell__venv_listed(&listing, "my", 2, &size));
	char one[17], two[17];
	cell__venv_key("/a", "b", "c", one);
	cell__venv_key("/ab", "", "c", two);
	assert_string_not_equal(one, two);
}

/* A listing is whole or an error: what is missing in it would count as uninstalled. */
static void test_listing_without_memory(void **state)
{
	(void)state;
	char site[160];
	snprintf(site, sizeof site, "%s/hungry", tmp);
	shell("mkdir -p %s/a_b-1.dist-info %s/c_d-2.dist-info", site, site);
	int rc = -1;
	for (long n = 1; rc < 0; n++) {
		CELL_AUTO_BUF struct cell__buf listing = CELL_BUF_INIT;
		struct cell_error err = { 0 };
		cell__alloc_fail_after(n);
		rc = cell__venv_listing(tmp, site, false, &listing, &err);
		cell__alloc_fail_after(0);
		if (rc < 0)
			assert_int_equal(err.code, CELL_E_NOMEM);
		else
			assert_string_equal(listing.data, "a-b==1\nc-d==2\n");
		assert_true(rc < 0 || n > 3);
	}
}

/* ---- one project ---- */

static void test_add_and_remove(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	project_open(&project, "life", NULL);
	struct where where = { .project = &project };
	handle_where(&where);
	assert_null(where.site);
	assert_null(where.bin);

	json_t *result = do_ok(&project, "deps.add", "Cell_Alpha == 1.0");
	expect_sync(result, "[\"cell-alpha==1.0\"]", "[]", "[]");
	handle_where(&where);
	assert_non_null(where.site);
	assert_string_equal(json_string_value(json_array_get(json_object_get(result, "site"), 0)), where.site);
	assert_string_equal(json_string_value(json_object_get(result, "bin")), where.bin);
	json_decref(result);
	assert_true(project.lines > 0);
	assert_true(venv_says(&project, "import cell_alpha; assert cell_alpha.VERSION == '1.0'"));
	/* Importable by the interpreter itself, which is what a running session is. */
	assert_int_equal(shell(TEST_PYTHON " -c \"import sys; sys.path.append('%s'); import cell_alpha\"", where.site), 0);
	/* Its scripts name the folder where it is, not the one where it was made. */
	assert_int_not_equal(shell("grep -rlI '[.]new-' %s %s/../pyvenv.cfg", where.bin, where.bin), 0);
	assert_int_equal(shell("test \"$(%s/cell-alpha)\" = 'alpha 1.0'", where.bin), 0);
	if (!with_uv)
		assert_int_equal(shell("%s/pip --version >/dev/null", where.bin), 0);
	expect_list(&project, "[\"cell-alpha==1.0\"]");

	do_sync(&project, "deps.add", "cell-alpha==1.0", "[]", "[\"cell-alpha==1.0\"]", "[]");
	do_sync(&project, "deps.add", "cell.alpha>=2", "[\"cell-alpha>=2\"]", "[]", "[]");
	expect_list(&project, "[\"cell-alpha>=2\"]");
	assert_true(venv_says(&project, "import cell_alpha; assert cell_alpha.VERSION == '2.0'"));

	remove_is(&project, "CELL_alpha>=7", true);
	expect_list(&project, "[]");
	assert_false(venv_says(&project, "import cell_alpha"));
	remove_is(&project, "cell-alpha", false);
	do_sync(&project, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	assert_true(venv_says(&project, "import cell_alpha"));
	project_close(&project);

	/* Another process finds what is there, at once. */
	project_open(&project, "life", NULL);
	struct where again = { .project = &project };
	handle_where(&again);
	assert_string_equal(again.site, where.site);
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-alpha\"]", "[]");
	assert_int_equal(project.lines, 0); /* no installer had to be asked */
	project_close(&project);
	free(where.site);
	free(where.bin);
	free(again.site);
	free(again.bin);
}

static void test_failures(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	project_open(&project, "failures", NULL);
	do_fail(&project, "deps.add", "cell-nowhere>=3", CELL_E_INSTALL, "DepsError", "cannot install cell-nowhere>=3: ");
	do_fail(&project, "deps.add", "cell-nowhere", CELL_E_INSTALL, "DepsError",
		with_uv ? "cell-nowhere was not found" : "No matching distribution found for cell-nowhere");
	do_fail(&project, "deps.add", "cell-alpha==9", CELL_E_INSTALL, "DepsError", "cell-alpha==9");
	expect_list(&project, "[]");
	/* What is configured already stays as it was asked for. */
	do_sync(&project, "deps.add", "cell-alpha==1.0", "[\"cell-alpha==1.0\"]", "[]", "[]");
	do_fail(&project, "deps.add", "cell-gamma", CELL_E_INSTALL, "DepsError", "cell-gamma");
	expect_list(&project, "[\"cell-alpha==1.0\"]");
	assert_true(venv_says(&project, "import cell_alpha; assert cell_alpha.VERSION == '1.0'"));
	assert_false(venv_says(&project, "import cell_gamma"));
	/* Extras of what is configured are no obstacle. */
	do_sync(&project, "deps.add", "cell-alpha[more]>=1", "[]", "[\"cell-alpha[more]>=1\"]", "[]");
	do_sync(&project, "deps.add", "cell-gamma[x]", "[\"cell-gamma[x]\"]", "[]", "[]");
	assert_true(venv_says(&project, "import cell_alpha, cell_gamma; assert cell_alpha.VERSION == '2.0'"));
	project_close(&project);
}

static void test_sync(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	char base[160];
	snprintf(base, sizeof base, "%s/sync", tmp);
	write_requirements(base, "# ours\ncell-alpha\ncell_beta>=1\nhttps://example.org/x.whl\n");
	project_open(&project, "sync", configure_disabled);
	json_t *result = do_ok(&project, "deps.sync", NULL);
	expect_sync(result, "[\"cell-alpha\",\"cell-beta>=1\"]", "[]", "[]");
	assert_int_equal(json_array_size(json_object_get(result, "problems")), 1);
	assert_null(json_object_get(result, "errors"));
	json_decref(result);
	size_t lines = project.lines;
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-alpha\",\"cell-beta>=1\"]", "[]");
	assert_int_equal(project.lines, lines);

	/* A person takes one away behind our back, and asks for what does not exist. */
	assert_true(venv_says(&project, "import shutil, cell_beta, glob, os\n"
					"d = os.path.dirname(cell_beta.__file__)\n"
					"shutil.rmtree(glob.glob(d + '/cell_beta*dist-info')[0])\n"
					"os.unlink(cell_beta.__file__)"));
	write_requirements(base, "cell-alpha\ncell_beta>=1\ncell-nowhere\n");
	result = do_ok(&project, "deps.sync", NULL);
	expect_sync(result, "[\"cell-beta>=1\"]", "[\"cell-alpha\"]", "[\"cell-nowhere\"]");
	const char *words = json_string_value(json_object_get(json_object_get(result, "errors"), "cell-nowhere"));
	assert_non_null(words);
	assert_non_null(strstr(words, "cell-nowhere"));
	json_decref(result);
	assert_true(venv_says(&project, "import cell_beta"));

	write_requirements(base, "cell-nowhere\n");
	do_sync(&project, "deps.sync", NULL, "[]", "[]", "[\"cell-nowhere\"]");
	project_close(&project);
}

/* What others need stays when it is removed, and goes with them; what a person takes off the list goes too. */
static void test_needed(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	project_open(&project, "needed", NULL);
	do_sync(&project, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	do_sync(&project, "deps.add", "cell-gamma", "[\"cell-gamma\"]", "[]", "[]");
	do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
	remove_is(&project, "cell-alpha", true);
	expect_list(&project, "[\"cell-beta\",\"cell-gamma\"]");
	assert_true(venv_says(&project, "import cell_alpha, cell_gamma"));
	write_requirements(project.base, "cell-beta\n");
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-beta\"]", "[]");
	assert_false(venv_says(&project, "import cell_gamma"));
	assert_false(venv_says(&project, "import cell_alpha"));
	assert_true(venv_says(&project, "import cell_beta"));
	write_requirements(project.base, "# nothing\n");
	do_sync(&project, "deps.sync", NULL, "[]", "[]", "[]");
	assert_false(venv_says(&project, "import cell_beta"));
	/* What code in a session wrote there is not believed. */
	assert_int_equal(
		shell("for v in %s/venvs/*; do echo '[\"-r /etc/passwd\", 5, \"pip\"]' > $v/.workcell-configured; done", project.cache), 0);
	write_requirements(project.base, "cell-alpha\n");
	do_sync(&project, "deps.sync", NULL, "[\"cell-alpha\"]", "[]", "[]");
	project_close(&project);
}

static void configure_cache_of_one(struct project *project)
{
	snprintf(project->cache, sizeof project->cache, "%s/one-cache", tmp);
}

static void test_projects_do_not_share(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project one, two;
	project_open(&one, "one", NULL);
	do_sync(&one, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	project_open(&two, "two", configure_cache_of_one);
	do_sync(&two, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
	assert_false(venv_says(&two, "import cell_alpha"));
	assert_false(venv_says(&one, "import cell_beta"));
	assert_int_equal(shell("test $(ls %s/venvs | wc -l) = 2", one.cache), 0);
	project_close(&two);
	project_close(&one);
}

/* ---- venvs that are not as they should be ---- */

static char chosen[160];

static void configure_chosen(struct project *project)
{
	project->options.venv_dir = chosen;
}

static void configure_chosen_cleanup(struct project *project)
{
	project->options.venv_dir = chosen;
	project->options.cleanup = CELL__DEPS_CLEANUP_ALWAYS;
}

static void test_chosen_folder(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	snprintf(chosen, sizeof chosen, "%s/deep/er/venv", tmp);
	project_open(&project, "chosen", configure_chosen);
	do_sync(&project, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	assert_int_equal(shell("test -x %s/bin/python", chosen), 0);
	/* The interpreter is taken away under it. */
	shell("rm %s/bin/python*; ln -s /nowhere/python %s/bin/python", chosen, chosen);
	do_sync(&project, "deps.add", "cell-beta", "[\"cell-alpha\",\"cell-beta\"]", "[]", "[]");
	assert_true(venv_says(&project, "import cell_alpha, cell_beta"));
	shell("printf '#!/bin/sh\\nexit 3\\n' > %s/x; chmod +x %s/x; ln -sf %s/x %s/bin/python", chosen, chosen, chosen, chosen);
	remove_is(&project, "cell-beta", true); /* nothing to uninstall from */
	do_sync(&project, "deps.sync", NULL, "[\"cell-alpha\"]", "[]", "[]");
	assert_true(support_wait(nothing_is_left, tmp));
	project_close(&project);

	/* What a person made is not thrown away. */
	project_open(&project, "chosen", configure_chosen_cleanup);
	shell("rm %s/.workcell", chosen);
	project_close(&project);
	assert_int_equal(shell("test -x %s/bin/python", chosen), 0);
	project_open(&project, "chosen", configure_chosen_cleanup);
	shell("touch %s/.workcell", chosen);
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-alpha\"]", "[]");
	project_close(&project);
	assert_int_not_equal(shell("test -e %s", chosen), 0);

	shell("mkdir -p %s; echo mine > %s/notes.txt", chosen, chosen);
	project_open(&project, "chosen", configure_chosen);
	do_fail(&project, "deps.add", "cell-alpha", CELL_E_INVALID, "ValueError", "is neither empty nor a venv");
	assert_int_equal(shell("test -e %s/notes.txt", chosen), 0);
	project_close(&project);
}

static void test_other_interpreter(void **state)
{
	(void)state;
	alarm(MANY_S);
	if (access(TEST_OTHER_PYTHON, X_OK) < 0)
		skip();
	static struct project project;
	snprintf(chosen, sizeof chosen, "%s/other/venv", tmp);
	assert_int_equal(shell(TEST_OTHER_PYTHON " -m venv --without-pip %s", chosen), 0);
	project_open(&project, "other", configure_chosen);
	do_fail(&project, "deps.add", "cell-alpha", CELL_E_INVALID, "ValueError", "is for cpython-3.12.1");
	assert_int_equal(shell("test -x %s/bin/python", chosen), 0);
	project_close(&project);
}

static void test_repair(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	project_open(&project, "repair", NULL);
	do_sync(&project, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
	/* As an installer leaves it that was killed: marked, a package without its module, one moved away. */
	assert_true(venv_says(&project, "import os, cell_alpha; os.unlink(cell_alpha.__file__)\n"
					"os.mkdir(os.path.dirname(cell_alpha.__file__) + '/~ell_gamma')"));
	assert_int_equal(shell("for v in %s/venvs/*; do touch $v/.workcell-busy; done", project.cache), 0);
	do_sync(&project, "deps.sync", NULL, "[\"cell-alpha\"]", "[\"cell-beta\"]", "[]");
	assert_true(venv_says(&project, "import cell_alpha, cell_beta"));
	assert_int_not_equal(shell("ls -d %s/venvs/*/.workcell-busy %s/venvs/*/lib/*/*/~* 2>/dev/null", project.cache, project.cache), 0);
	project_close(&project);
}

static char python[160];

static void configure_python(struct project *project)
{
	project->options.python = python;
}

static void lead_to(const char *interpreter)
{
	FILE *out = fopen(python, "w");
	assert_non_null(out);
	fprintf(out, "#!/bin/sh\nexec %s \"$@\"\n", interpreter);
	fclose(out);
	chmod(python, 0755);
}

/* pyenv's shims are scripts, and lead somewhere else when their user says so. */
static void test_script_interpreter(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	snprintf(python, sizeof python, "%s/shim-aa", tmp);
	lead_to(TEST_PYTHON);
	project_open(&project, "script", configure_python);
	do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
	assert_true(venv_says(&project, "import sys; assert sys.version_info[:2] == (3, 11)"));
	project_close(&project);
	if (access(TEST_OTHER_PYTHON, X_OK) == 0) {
		/* The script itself looks the same as before. */
		char other[200];
		snprintf(other, sizeof other, "%s/pyenv", tmp);
		snprintf(python, sizeof python, "%s/shim-bb", tmp);
		assert_int_equal(shell("printf '#!/bin/sh\\nexec %s \"$@\"\\n' > %s; chmod +x %s", TEST_PYTHON, other, other), 0);
		lead_to(other);
		project_open(&project, "script2", configure_python);
		do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
		project_close(&project);
		assert_int_equal(shell("printf '#!/bin/sh\\nexec %s \"$@\"\\n' > %s", TEST_OTHER_PYTHON, other), 0);
		project_open(&project, "script2", configure_python);
		do_sync(&project, "deps.sync", NULL, "[\"cell-beta\"]", "[]", "[]");
		assert_true(venv_says(&project, "import sys, cell_beta; assert sys.version_info[:2] == (3, 12)"));
		project_close(&project);
	}
	/* A script counts only where there is no real one. */
	char path[256], *found = NULL;
	snprintf(path, sizeof path, "%s/shims:/usr/bin", tmp);
	assert_int_equal(shell("mkdir %s/shims; cp %s %s/shims/python3.11; cp %s %s/shims/python3.97", tmp, python, tmp, python, tmp), 0);
	assert_int_equal(cell__deps_find_python("3.11", path, &found, NULL), 0);
	assert_string_equal(found, "/usr/bin/python3.11");
	free(found);
	assert_int_equal(cell__deps_find_python("3.97", path, &found, NULL), 0);
	assert_non_null(strstr(found, "/shims/python3.97"));
	free(found);
}

static void test_no_interpreter(void **state)
{
	(void)state;
	static struct project project;
	snprintf(python, sizeof python, "/nowhere/python3");
	project_open(&project, "nowhere", configure_python);
	write_requirements(project.base, "six\n");
	expect_list(&project, "[\"six\"]");
	do_fail(&project, "deps.sync", NULL, CELL_E_PYTHON, "EnvironmentError", "/nowhere/python3");
	do_fail(&project, "deps.add", "six", CELL_E_PYTHON, "EnvironmentError", "/nowhere/python3");
	struct where where = { .project = &project };
	handle_where(&where);
	assert_null(where.site);
	project_close(&project);
}

static void test_maker_fails(void **state)
{
	(void)state;
	if (with_uv)
		skip();
	static struct project project;
	snprintf(python, sizeof python, "%s/python-without-venv", tmp);
	FILE *out = fopen(python, "w");
	fputs("#!/bin/sh\ncase \"$*\" in *' venv '*) echo 'not created because ensurepip is not available'; mkdir -p \"$6\"; "
	      "exit 1;; esac\nexec " TEST_PYTHON " \"$@\"\n",
	      out);
	fclose(out);
	chmod(python, 0755);
	project_open(&project, "maker", configure_python);
	do_fail(&project, "deps.add", "cell-alpha", CELL_E_INSTALL, "DepsError", "apt install python3-venv");
	do_fail(&project, "deps.add", "cell-alpha", CELL_E_INSTALL, "DepsError", "ensurepip is not available");
	char venvs[200];
	snprintf(venvs, sizeof venvs, "%s/venvs", project.cache);
	assert_true(support_wait(nothing_is_left, venvs));
	project_close(&project);
}

static void configure_private(struct project *project)
{
	project->options.private_venv = true;
}

static void test_private(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	project_open(&project, "private", configure_private);
	do_sync(&project, "deps.add", "cell-alpha", "[\"cell-alpha\"]", "[]", "[]");
	assert_int_equal(shell("ls -d %s/venvs/private-* >/dev/null", project.cache), 0);
	/* Left by somebody who died, and in use by somebody who lives. */
	shell("mkdir -p %s/venvs/private-dead/x; touch %s/venvs/.private-dead.lock", project.cache, project.cache);
	shell("mkdir -p %s/venvs/private-live/x; touch %s/venvs/.private-live.lock", project.cache, project.cache);
	char lock[200];
	snprintf(lock, sizeof lock, "%s/venvs/.private-live.lock", project.cache);
	int fd = open(lock, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	project_close(&project);
	project_open(&project, "private", configure_private);
	do_sync(&project, "deps.sync", NULL, "[\"cell-alpha\"]", "[]", "[]");
	assert_int_not_equal(shell("ls -d %s/venvs/private-dead 2>/dev/null", project.cache), 0);
	assert_int_equal(shell("ls -d %s/venvs/private-live >/dev/null", project.cache), 0);
	close(fd);
	project_close(&project);
	assert_int_equal(
		shell("test \"$(cd %s/venvs; ls -dA *private-[0-9a-f]* .private* 2>/dev/null)\" = .private-live.lock", project.cache), 0);
}

/* ---- installers that take too long ---- */

static int dead_socket, visitors[64];
static size_t n_visitors;
static char dead_url[64];

static void open_dead_index(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	dead_socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(dead_socket, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(dead_socket, 16), 0);
	getsockname(dead_socket, (struct sockaddr *)&address, &size);
	snprintf(dead_url, sizeof dead_url, "http://127.0.0.1:%d/simple", ntohs(address.sin_port));
}

static void close_dead_index(void)
{
	while (n_visitors > 0)
		close(visitors[--n_visitors]);
	close(dead_socket);
}

static void configure_dead_index(struct project *project)
{
	project->options.wheel_dir = NULL;
	project->options.index_url = dead_url;
	project->options.timeout_ms = 20000;
}

static bool someone_came(void *unused)
{
	(void)unused;
	int fd = accept4(dead_socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return false;
	CHECK(n_visitors < COUNT(visitors));
	visitors[n_visitors++] = fd; /* open, and silent */
	return true;
}

struct cancel_task {
	struct cell__task task;
	struct ask *ask;
	struct cell__waiter waiter;
};

static void handle_cancel(struct cell__task *task)
{
	struct cancel_task *cancel = (struct cancel_task *)task;
	CHECK(cancel->ask->call.cancel != NULL);
	cancel->ask->call.cancel(&cancel->ask->call);
	cell__waiter_signal(&cancel->waiter);
}

static void cancel_ask(struct ask *ask)
{
	struct cancel_task cancel = { .task = { .fn = handle_cancel }, .ask = ask };
	cell__waiter_init(&cancel.waiter);
	cell__loop_do(ask->project->loop, &cancel.task, &cancel.waiter);
	cell__waiter_finish(&cancel.waiter);
}

static void prepare_venv(const char *name)
{
	static struct project project;
	project_open(&project, name, NULL);
	do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
	project_close(&project);
}

static void test_cancel(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	prepare_venv("cancel");
	open_dead_index();
	project_open(&project, "cancel", configure_dead_index);
	struct ask slow, waiting, list;
	ask_init(&slow, &project, "deps.add", "cell-slow");
	ask_init(&waiting, &project, "deps.add", "cell-waiting");
	ask_init(&list, &project, "deps.list", NULL);
	cell__loop_post(project.loop, &slow.task);
	cell__loop_post(project.loop, &waiting.task);
	assert_true(support_wait(someone_came, NULL));
	cancel_ask(&waiting);
	int64_t start = cell__now_us();
	cancel_ask(&slow);
	ask_wait(&list);
	assert_true(cell__now_us() - start < 60000000); /* pip itself would wait for more than 90 s */
	expect_array(list.result, "[\"cell-beta\"]");
	assert_false(slow.done || waiting.done);
	assert_true(support_wait(nobody_runs_in, project.cache));
	ask_finish(&slow);
	ask_finish(&waiting);
	ask_finish(&list);
	/* What was killed in the middle leaves a venv that works. */
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-beta\"]", "[]");
	remove_is(&project, "cell-beta", true);
	project_close(&project);
	close_dead_index();
}

static void configure_impatient(struct project *project)
{
	configure_dead_index(project);
	project->options.timeout_ms = 1500;
}

static void test_timeout_and_close(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	prepare_venv("timeout");
	open_dead_index();
	project_open(&project, "timeout", configure_impatient);
	do_fail(&project, "deps.add", "cell-slow", CELL_E_INSTALL, "DepsError", "and was stopped");
	expect_list(&project, "[\"cell-beta\"]");
	assert_true(support_wait(nobody_runs_in, project.cache));
	project_close(&project);

	project_open(&project, "timeout", configure_dead_index);
	struct ask asks[3];
	for (size_t i = 0; i < COUNT(asks); i++) {
		ask_init(&asks[i], &project, "deps.add", "cell-slow");
		cell__loop_post(project.loop, &asks[i].task);
	}
	assert_true(support_wait(someone_came, NULL));
	project_close(&project);
	for (size_t i = 0; i < COUNT(asks); i++) {
		assert_true(asks[i].done);
		assert_int_equal(asks[i].code, CELL_E_CLOSED);
		ask_finish(&asks[i]);
	}
	close_dead_index();
}

static void configure_short_wait(struct project *project)
{
	project->options.timeout_ms = 700;
}

static void test_lock_is_held(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	prepare_venv("held");
	project_open(&project, "held", configure_short_wait);
	struct where where = { .project = &project };
	handle_where(&where);
	CELL_AUTO_FREE char *dir = strndup(where.bin, strlen(where.bin) - strlen("/bin"));
	int fd = -1;
	struct cell_error err;
	CELL_AUTO_FREE char *lock = cell__venv_sibling(dir, "lock", false);
	assert_int_equal(cell__venv_lock(lock, &fd, &err), 0);
	do_fail(&project, "deps.add", "cell-alpha", CELL_E_INSTALL, "DepsError", "another process has been working");
	struct ask ask;
	ask_init(&ask, &project, "deps.add", "cell-alpha");
	cell__loop_post(project.loop, &ask.task);
	cancel_ask(&ask); /* while it waits for the lock, or just before */
	ask_finish(&ask);
	close(fd);
	do_sync(&project, "deps.sync", NULL, "[]", "[\"cell-beta\"]", "[]");
	project_close(&project);
	free(where.site);
	free(where.bin);
}

/* Whichever allocation fails: an answer comes, nothing leaks, and the next call works. */
static void test_no_memory(void **state)
{
	(void)state;
	alarm(MANY_S);
	static struct project project;
	prepare_venv("memory");
	project_open(&project, "memory", NULL);
	for (long n = 1; n <= 80; n++) {
		struct ask ask;
		ask_init(&ask, &project, n % 2 ? "deps.sync" : "deps.remove", n % 2 ? NULL : "cell-nowhere");
		cell__alloc_fail_after(n / 2 + 1);
		ask_wait(&ask);
		cell__alloc_fail_after(0);
		assert_true(ask.done);
		ask_finish(&ask);
	}
	expect_list(&project, "[\"cell-beta\"]");
	json_t *result = do_ok(&project, "deps.sync", NULL);
	expect_array(json_object_get(result, "failed"), "[]");
	json_decref(result);
	assert_true(venv_says(&project, "import cell_beta"));
	project_close(&project);
}

/* ---- several processes ---- */

/* Programs in front of the real ones: <tmp>/<folder>/<name> runs `before`, then the real one. */
static void make_wrapper(const char *folder, const char *name, const char *real, const char *before)
{
	char file[128];
	snprintf(file, sizeof file, "%s/%s", tmp, folder);
	mkdir(file, 0755);
	snprintf(file, sizeof file, "%s/%s/%s", tmp, folder, name);
	FILE *out = fopen(file, "w");
	assert_non_null(out);
	fprintf(out, "#!/bin/sh\nreal=%s\n%s\nexec $real \"$@\"\n", real, before);
	fclose(out);
	chmod(file, 0755);
}

static const char *real_uv(void)
{
	static char file[4200];
	snprintf(file, sizeof file, "%s/uv", with_uv ? getenv("WORKCELL_TEST_UV") : "");
	return file;
}

static void configure_worker(struct project *project)
{
	static char path[4400];
	const char *folder = strstr(project->base, "/killed") ? "slow" : "counted";
	snprintf(path, sizeof path, "%s/%s:%s", tmp, folder, search_path);
	project->options.path = path;
	if (!with_uv && strcmp(folder, "counted") == 0)
		project->options.python = "python-counted";
}

static pid_t start_worker(const char *name, const char *spec)
{
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "test_deps", "worker", tmp, name, spec, NULL);
		_exit(99);
	}
	return pid;
}

static int worker_main(char **argv)
{
	static struct project project;
	snprintf(tmp, sizeof tmp, "%s", argv[2]);
	snprintf(wheels, sizeof wheels, "%s/wheels", tmp);
	project_open(&project, argv[3], configure_worker);
	struct ask ask;
	ask_init(&ask, &project, "deps.add", argv[4]);
	ask_wait(&ask);
	int code = ask.code;
	if (code)
		fprintf(stderr, "worker: %s\n", ask.message);
	ask_finish(&ask);
	project_close(&project);
	return code ? 1 : 0;
}

static int wait_status(pid_t pid)
{
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return status;
}

static void test_concurrent_makers(void **state)
{
	(void)state;
	alarm(MANY_S);
	static const char *const specs[] = { "cell-alpha", "cell-beta", "cell-gamma", "cell-alpha>=1" };
	pid_t pids[COUNT(specs)];
	char count[256], venvs[200];
	snprintf(count, sizeof count, "case \"$*\" in 'venv '*|*' venv '*) echo made >> %s/counted/made;; esac", tmp);
	if (with_uv)
		make_wrapper("counted", "uv", real_uv(), count);
	else
		make_wrapper("counted", "python-counted", TEST_PYTHON, count);
	for (size_t i = 0; i < COUNT(specs); i++)
		pids[i] = start_worker("makers", specs[i]);
	for (size_t i = 0; i < COUNT(specs); i++)
		assert_int_equal(wait_status(pids[i]), 0);
	assert_int_equal(shell("test $(wc -l < %s/counted/made) = 1", tmp), 0);
	static struct project project;
	project_open(&project, "makers", configure_worker);
	assert_true(venv_says(&project, "import cell_alpha, cell_beta, cell_gamma"));
	json_t *list = do_ok(&project, "deps.list", NULL);
	assert_int_equal(json_array_size(list), 3);
	json_decref(list);
	snprintf(venvs, sizeof venvs, "%s/venvs", project.cache);
	assert_true(support_wait(nothing_is_left, venvs));
	assert_int_equal(shell("test $(ls %s | wc -l) = 1", venvs), 0);
	project_close(&project);
}

static bool making(void *arg)
{
	return leftovers(arg);
}

static bool made(void *arg)
{
	return shell("ls %s/*/.workcell-busy >/dev/null 2>&1", (char *)arg) == 0;
}

static void test_killed_maker(void **state)
{
	(void)state;
	alarm(MANY_S);
	char venvs[200];
	snprintf(venvs, sizeof venvs, "%s/killed-cache/venvs", tmp);
	shell("mkdir -p %s", venvs);
	if (with_uv) /* it is done before anybody can look */
		make_wrapper("slow", "uv", real_uv(), "if [ $1 = venv ]; then $real \"$@\"; sleep 5; exit; fi; sleep 5");
	bool (*const moments[])(void *arg) = { making, made };
	for (size_t i = 0; i < COUNT(moments); i++) {
		pid_t pid = start_worker("killed", "cell-alpha");
		bool seen = support_wait(moments[i], venvs);
		kill(pid, SIGKILL);
		wait_status(pid);
		assert_true(seen);
		assert_true(support_wait(nobody_runs_in, venvs)); /* the spawner ends what it started */
		struct project project;
		project_open(&project, "killed", NULL);
		expect_list(&project, "[]");
		/* What has the name of a venv is a whole one. */
		assert_int_equal(shell("for v in %s/*; do test ! -e $v || test -e $v/.workcell || exit 1; done", venvs), 0);
		do_sync(&project, "deps.add", "cell-beta", "[\"cell-beta\"]", "[]", "[]");
		assert_true(venv_says(&project, "import cell_beta"));
		remove_is(&project, "cell-beta", true);
		assert_true(support_wait(nothing_is_left, venvs));
		project_close(&project);
	}
}

/* ---- the index ---- */

static void configure_index(struct project *project)
{
	static const char *const env[] = { "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", NULL };
	project->options.wheel_dir = NULL;
	project->options.extra_env = env;
}

static void test_index(void **state)
{
	(void)state;
	alarm(MANY_S);
	if (getenv("WORKCELL_TEST_OFFLINE"))
		skip();
	static struct project project;
	project_open(&project, "index", configure_index);
	do_sync(&project, "deps.add", "six>=1.16", "[\"six>=1.16\"]", "[]", "[]");
	assert_true(venv_says(&project, "import six"));
	do_fail(&project, "deps.add", "cell-nowhere-to-be-found", CELL_E_INSTALL, "DepsError", "cell-nowhere-to-be-found");
	expect_list(&project, "[\"six>=1.16\"]");
	remove_is(&project, "six", true);
	assert_false(venv_says(&project, "import six"));
	project_close(&project);
}

int main(int argc, char **argv)
{
	const char *uv = getenv("WORKCELL_TEST_UV");
	with_uv = uv && *uv;
	snprintf(search_path, sizeof search_path, "%s%s/usr/local/bin:/usr/bin:/bin", with_uv ? uv : "", with_uv ? ":" : "");
	if (argc == 5 && strcmp(argv[1], "worker") == 0)
		return worker_main(argv);
	support_init(argc, argv);
	snprintf(tmp, sizeof tmp, "/tmp/test-deps-XXXXXX");
	CHECK(mkdtemp(tmp) != NULL);
	make_wheels();
	const struct CMUnitTest installers[] = {
		TEST(test_versions_and_listings), TEST(test_listing_without_memory),
		TEST(test_add_and_remove),        TEST(test_failures),
		TEST(test_maker_fails),           TEST(test_cancel),
		TEST(test_concurrent_makers),     TEST(test_index),
	};
	/* Nothing in these depends on who installs, and a venv with pip takes seconds to make. */
	const struct CMUnitTest ours[] = {
		TEST(test_disabled),
		TEST(test_refused),
		TEST(test_find_python),
		TEST(test_sync),
		TEST(test_needed),
		TEST(test_projects_do_not_share),
		TEST(test_chosen_folder),
		TEST(test_other_interpreter),
		TEST(test_repair),
		TEST(test_script_interpreter),
		TEST(test_no_interpreter),
		TEST(test_private),
		TEST(test_timeout_and_close),
		TEST(test_lock_is_held),
		TEST(test_no_memory),
		TEST(test_killed_maker),
	};
	int failures = cmocka_run_group_tests(installers, NULL, NULL);
	if (with_uv)
		failures += cmocka_run_group_tests(ours, NULL, NULL);
	if (failures == 0)
		shell("rm -rf %s", tmp);
	return failures;
}
