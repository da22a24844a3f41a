/*
 * `workcell jupyter`: Workcell as a kernel of Jupyter. `install` writes a kernelspec whose command is `workcell jupyter kernel` with the
 * flags that were given to it; `kernel` is what Jupyter then starts (jupyter_kernel.c).
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/home.h"
#ifdef CELL_HAVE_ZMQ
#include "jupyter.h"
#endif

#define MARK "workcell" /* in the metadata of a kernelspec: it is ours */
#define DEFAULT_NAME "workcell"
#define MAX_SPEC_BYTES (1u << 20)
#define MAX_NAME 100u
#define KEEP_MS (600 * 1000)

struct jupyter_flags {
	struct cell_cli_session_flags session;
	const char *name, *display_name, *prefix, *connection_file;
	bool user, replace, json;
	int64_t keep_ms;
};

/* The first rows are not for the kernel: install does not pass them on. */
#define OWN_FLAGS 7
static const struct cell_cli_flag jupyter_flag_table[] = {
	{ 0, "name", "NAME", "the kernelspec's name (default " DEFAULT_NAME ")", CELL_FLAG_STRING, offsetof(struct jupyter_flags, name) },
	{ 0, "display-name", "TEXT", "the name that people see", CELL_FLAG_STRING, offsetof(struct jupyter_flags, display_name) },
	{ 0, "user", NULL, "install for this user (the default)", CELL_FLAG_SWITCH, offsetof(struct jupyter_flags, user) },
	{ 0, "prefix", "DIR", "install below this folder instead, as that of a venv: DIR/share/jupyter/kernels", CELL_FLAG_STRING,
	  offsetof(struct jupyter_flags, prefix) },
	{ 0, "replace", NULL, "install: replace a kernelspec of this name that is not Workcell's", CELL_FLAG_SWITCH,
	  offsetof(struct jupyter_flags, replace) },
	{ 0, "json", NULL, "list: print JSON", CELL_FLAG_SWITCH, offsetof(struct jupyter_flags, json) },
	{ 'f', "connection-file", "FILE", "kernel: where to listen, and the key", CELL_FLAG_STRING,
	  offsetof(struct jupyter_flags, connection_file) },
	{ 0, "keep-ready", "SEC", "how long a warm process waits for the Jupyter server's next notebook (default 600, 0: none)",
	  CELL_FLAG_SECONDS, offsetof(struct jupyter_flags, keep_ms) },
	CELL_CLI_SESSION_FLAGS_OF(offsetof(struct jupyter_flags, session), "sandbox where it works; else name one"),
	{ 0 },
};

const struct cell_cli_command cell__cli_jupyter_command = {
	.name = "jupyter",
	.summary = "Workcell as a kernel of Jupyter: notebooks in sessions",
	.synopsis = "install|uninstall|list|kernel [flags]",
	.about = "install registers a kernel, so that JupyterLab, VS Code, nbclient and papermill can run notebooks in sessions of\n"
		 "Workcell. Session flags that are given to it apply to each notebook; without --executor it takes the sandbox, and\n"
		 "refuses if that does not work here. uninstall removes a kernel that install has made; list prints them.\n"
		 "kernel is what Jupyter starts. The executors subprocess and sandbox have kernels for notebooks.",
	.examples = "  workcell jupyter install\n"
		    "  workcell jupyter install --name data --python ~/venv/bin/python --preload pandas --workspace-mode rw\n"
		    "  workcell jupyter install --name mine --executor subprocess\n"
		    "  workcell jupyter uninstall --name data",
	.flags = jupyter_flag_table,
	.verbs = "install uninstall list kernel",
	.run = cell__cmd_jupyter,
};

/* ---- places ---------------------------------------------------------------------------- */

static int kernels_folder(const struct jupyter_flags *flags, char **ret_path, struct cell_error *err)
{
	const char *data = getenv("JUPYTER_DATA_DIR");
	char *prefix = NULL;
	int n;

	if (flags->prefix && flags->user)
		return cell_fail(err, CELL_E_INVALID, 0, "--user and --prefix exclude each other: give only one of them");
	if (flags->prefix && !(prefix = cell__cli_absolute(flags->prefix, err)))
		return -1;
	if (prefix)
		n = asprintf(ret_path, "%s/share/jupyter/kernels", prefix);
	else if (data && *data == '/')
		n = asprintf(ret_path, "%s/kernels", data);
	else
		n = asprintf(ret_path, "%s/.local/share/jupyter/kernels", cell__home_dir());
	free(prefix);
	return n < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path") : 0;
}

/* As Jupyter wants them; no name leads to another folder. */
static int check_name(const char *name, struct cell_error *err)
{
	size_t size = strlen(name);

	for (size_t i = 0; i < size; i++) {
		if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
			size = 0;
	}
	if (!size || size > MAX_NAME || *name == '.')
		return cell_fail(err, CELL_E_INVALID, 0, "--name must be letters, digits, '-', '_' and '.', at most %u, not '%.100s'",
				 MAX_NAME, name);
	return 0;
}

/* NULL: there is none, or it is not JSON. */
static json_t *read_spec(const char *folder, const char *name)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char *path = NULL;
	json_t *spec = NULL;

	if (asprintf(&path, "%s/%s/kernel.json", folder, name) > 0 && cell__file_read(AT_FDCWD, path, 0, MAX_SPEC_BYTES, &text, NULL) == 0)
		spec = json_loadb(text.data ? text.data : "", text.size, 0, NULL);
	free(path);
	return spec;
}

static bool is_ours(const json_t *spec)
{
	return json_object_get(json_object_get(spec, "metadata"), MARK) != NULL;
}

/* ---- install ------------------------------------------------------------------------------ */

/* The sandbox, if it works; otherwise the user has to decide. */
static int choose_executor(struct jupyter_flags *flags, struct cell_error *err)
{
	struct cell_executor_info info;
	struct cell_engine *engine;
	int status = 0;

	if (flags->session.executor && (!strcmp(flags->session.executor, "subprocess") || !strcmp(flags->session.executor, "sandbox")))
		return 0;
	if (flags->session.executor)
		return cell_fail(err, CELL_E_INVALID, 0, "--executor %.60s has no kernels for notebooks: subprocess and sandbox have",
				 flags->session.executor);
	if (cell_engine_create(NULL, &engine, err) < 0)
		return -1;
	for (size_t i = 0;; i++) {
		cell_executor_info_init(&info);
		if (cell_executor_probe(engine, i, &info) < 0)
			break;
		if (!strcmp(info.name, "sandbox") && info.available)
			flags->session.executor = "sandbox";
		if (!strcmp(info.name, "sandbox"))
			break;
	}
	if (!flags->session.executor)
		status = cell_fail(err, CELL_E_UNAVAILABLE, 0,
				   "the sandbox does not work here (%.120s); --executor subprocess runs notebooks with your rights",
				   info.reason);
	cell_engine_destroy(engine);
	return status;
}

static bool is_path(const struct cell_cli_flag *flag, const char *value)
{
	return (!strcmp(flag->arg, "DIR") || !strcmp(flag->arg, "FILE") || !strcmp(flag->arg, "PATH")) && *value != '/' &&
	       !strstr(value, "://");
}

static const struct cell_cli_flag *find_flag(const char *word, size_t size)
{
	for (const struct cell_cli_flag *flag = jupyter_flag_table; flag->kind; flag++) {
		if (flag->name && flag->kind != CELL_FLAG_GROUP && strlen(flag->name) == size && !memcmp(flag->name, word, size))
			return flag;
	}
	return NULL;
}

static int add_flag(json_t *words, const struct cell_cli_flag *flag, const char *value, struct cell_error *err)
{
	char *made = NULL, *name = NULL;

	/* The interpreter and folders of now, wherever the notebook is. */
	if (!strcmp(flag->name, "python")   ? cell__cli_choose_python(value, NULL, &made, err) < 0
	    : value && is_path(flag, value) ? !(made = cell__cli_absolute(value, err))
					    : false)
		return -1;
	if (asprintf(&name, "--%s", flag->name) < 0)
		name = NULL;
	if (name)
		json_array_append_new(words, json_string(name));
	if (value)
		json_array_append_new(words, json_string(made ? made : value));
	free(name);
	free(made);
	return 0;
}

/* The session flags among the arguments, which have been checked, as the kernel's. */
static int pass_flags(int argc, char **argv, json_t *words, struct cell_error *err)
{
	for (int i = 2; i < argc; i++) {
		const char *word = argv[i] + 2, *equals = strchr(argv[i], '='), *value = NULL;
		const struct cell_cli_flag *flag;

		if (strncmp(argv[i], "--", 2))
			continue; /* the verb, if flags came first */
		flag = find_flag(word, equals ? (size_t)(equals - word) : strlen(word));
		if (flag && flag->arg)
			value = equals ? equals + 1 : argv[++i];
		if (flag && flag - jupyter_flag_table >= OWN_FLAGS && strcmp(flag->name, "executor") &&
		    add_flag(words, flag, value, err) < 0)
			return -1;
	}
	return 0;
}

static int make_spec(struct jupyter_flags *flags, int argc, char **argv, json_t **ret_spec, struct cell_error *err)
{
	const char *executor = flags->session.executor;
	char program[4096], *shown = NULL;
	ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
	json_t *words;

	if (size < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot find the path of this program");
	program[size] = '\0';
	words = json_pack("[s, s, s, s, s, s, s]", program, "jupyter", "kernel", "-f", "{connection_file}", "--executor", executor);
	if (pass_flags(argc, argv, words, err) < 0) {
		json_decref(words);
		return -1;
	}
	if (!flags->display_name && asprintf(&shown, "Python (Workcell %s)", executor) < 0)
		shown = NULL;
	*ret_spec = json_pack("{s:o, s:s, s:s, s:s, s:{s:b, s:{s:s, s:s}}}", "argv", words, "display_name",
			      flags->display_name ? flags->display_name
			      : shown             ? shown
						  : "Workcell",
			      "language", "python", "interrupt_mode", "message", "metadata", "debugger", 0, MARK, "version", cell_version(),
			      "executor", executor);
	free(shown);
	return *ret_spec ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

/* The old file or the new one is there, never half of one. */
static int write_spec(const char *folder, const json_t *spec, struct cell_error *err)
{
	char *path = NULL, *temporary = NULL;
	int status = -1;

	if (asprintf(&path, "%s/kernel.json", folder) < 0 || asprintf(&temporary, "%s/.kernel.json.%d", folder, (int)getpid()) < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	else if (json_dump_file(spec, temporary, JSON_INDENT(1)) < 0)
		cell_fail(err, CELL_E_IO, errno, "cannot write %s", temporary);
	else if (chmod(temporary, 0644) < 0 || rename(temporary, path) < 0)
		cell_fail(err, CELL_E_IO, errno, "cannot write %s", path);
	else
		status = 0;
	if (status < 0 && temporary)
		unlink(temporary);
	free(path);
	free(temporary);
	return status;
}

static int install(struct jupyter_flags *flags, int argc, char **argv, struct cell_error *err)
{
	const char *name = flags->name ? flags->name : DEFAULT_NAME;
	char *kernels = NULL, *folder = NULL;
	json_t *spec = NULL, *old;
	int status = -1;

	if (check_name(name, err) < 0 || kernels_folder(flags, &kernels, err) < 0)
		return -1;
	old = read_spec(kernels, name);
	if (old && !is_ours(old) && !flags->replace)
		cell_fail(err, CELL_E_EXISTS, 0, "%.120s/%s is not a kernel of Workcell; --replace replaces it", kernels, name);
	else if (choose_executor(flags, err) == 0 && cell__cli_check_executor(&flags->session, flags->session.executor, err) == 0 &&
		 make_spec(flags, argc, argv, &spec, err) == 0) {
		if (asprintf(&folder, "%s/%s", kernels, name) < 0)
			folder = NULL;
		status = folder && cell__cli_make_folders(folder, 0755, err) == 0 ? write_spec(folder, spec, err) : -1;
	}
	if (!status)
		printf("installed %s (executor %s) in %s\n", name, flags->session.executor, folder);
	json_decref(old);
	json_decref(spec);
	free(folder);
	free(kernels);
	return status;
}

/* ---- uninstall and list ---------------------------------------------------------------------- */

static int uninstall(struct jupyter_flags *flags, struct cell_error *err)
{
	const char *name = flags->name ? flags->name : DEFAULT_NAME;
	char *kernels = NULL, *folder = NULL;
	json_t *spec;
	int status = -1;

	if (check_name(name, err) < 0 || kernels_folder(flags, &kernels, err) < 0)
		return -1;
	spec = read_spec(kernels, name);
	if (!spec)
		cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no kernel %s in %.150s", name, kernels);
	else if (!is_ours(spec))
		cell_fail(err, CELL_E_FORBIDDEN, 0, "%.120s/%s is not a kernel of Workcell; `jupyter kernelspec remove` removes it",
			  kernels, name);
	else if (asprintf(&folder, "%s/%s", kernels, name) > 0)
		status = cell_remove_tree(folder, err);
	if (!status)
		printf("removed %s\n", folder);
	json_decref(spec);
	free(folder);
	free(kernels);
	return status;
}

static int compare_names(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static int list(struct jupyter_flags *flags, struct cell_error *err)
{
	struct dirent **names = NULL;
	json_t *found = json_array();
	char *kernels = NULL, *text;
	int n;

	if (kernels_folder(flags, &kernels, err) < 0) {
		json_decref(found);
		return -1;
	}
	n = scandir(kernels, &names, NULL, compare_names); /* none: an empty list */
	for (int i = 0; i < n; i++) {
		json_t *spec = names[i]->d_name[0] == '.' ? NULL : read_spec(kernels, names[i]->d_name);
		json_t *mark = json_object_get(json_object_get(spec, "metadata"), MARK);

		if (mark)
			json_array_append_new(found, json_pack("{s:s, s:s, s:s, s:s}", "name", names[i]->d_name, "executor",
							       cell__cli_text(mark, "executor"), "display_name",
							       cell__cli_text(spec, "display_name"), "folder", kernels));
		if (mark && !flags->json)
			printf("%-20s %-12s %s/%s\n", names[i]->d_name, cell__cli_text(mark, "executor"), kernels, names[i]->d_name);
		json_decref(spec);
		free(names[i]);
	}
	text = flags->json ? json_dumps(found, JSON_COMPACT) : NULL;
	if (text)
		puts(text);
	free(text);
	free(names);
	free(kernels);
	json_decref(found);
	return 0;
}

/* ---- the command --------------------------------------------------------------------------------- */

/* A path that means something else in another folder: `install` writes none. */
static bool has_relative_path(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		const char *word = argv[i] + 2, *equals = strchr(argv[i], '='), *value = NULL;
		const struct cell_cli_flag *flag;

		if (strncmp(argv[i], "--", 2))
			continue;
		flag = find_flag(word, equals ? (size_t)(equals - word) : strlen(word));
		if (flag && flag->arg)
			value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
		if (value && (is_path(flag, value) || (!strcmp(flag->name, "python") && *value != '/')))
			return true;
	}
	return false;
}

static int run_kernel(struct jupyter_flags *flags, const char *verb, int argc, char **argv, struct cell_error *err)
{
	if (!flags->connection_file)
		return cell_fail(err, CELL_E_INVALID, 0, "`workcell jupyter kernel` needs -f FILE; Jupyter starts it");
	if (!flags->session.executor)
		return cell_fail(err, CELL_E_INVALID, 0, "`workcell jupyter kernel` needs --executor NAME, as `install` writes it");
#ifdef CELL_HAVE_ZMQ
	struct cell_cli_notebook notebook = { &flags->session, flags->connection_file, verb, argv, argc, NULL, flags->keep_ms };
	CELL_AUTO_FREE char **env = NULL;
	size_t n = 0;
	int status;

	while (environ[n])
		n++;
	env = calloc(n + 1, sizeof(*env));
	if (!env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	memcpy(env, environ, n * sizeof(*env));
	notebook.env = env;
	if (has_relative_path(argc, argv))
		notebook.keep_ms = 0;
	if (!strcmp(verb, "spare"))
		return cell__cli_spare_serve(&notebook);
	return cell__cli_spare_use(&notebook, &status) ? status : cell__cli_jupyter_serve(&notebook, NULL, -1);
#else
	(void)verb;
	(void)has_relative_path(argc, argv);
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "this workcell was built without libzmq and has no kernels for Jupyter");
#endif
}

int cell__cmd_jupyter(int argc, char **argv)
{
	struct jupyter_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0) };
	struct cell_cli_list operands = { 0 };
	struct cell_error err;
	const char *verb;
	int status;

	/* A person is here, who interrupts, and who may need time for an answer. */
	flags.session.timeout_ms = -1;
	flags.keep_ms = KEEP_MS;
	flags.session.gate.approval_timeout_ms = -1;
	if (cell__cli_parse(&cell__cli_jupyter_command, argc, argv, &flags, &operands, &status)) {
		verb = operands.count == 1 ? operands.items[0].value : "";
		if (!strcmp(verb, "install"))
			status = install(&flags, argc, argv, &err);
		else if (!strcmp(verb, "uninstall"))
			status = uninstall(&flags, &err);
		else if (!strcmp(verb, "list"))
			status = list(&flags, &err);
		else if (!strcmp(verb, "kernel") || !strcmp(verb, "spare")) /* the latter is started by a kernel */
			status = run_kernel(&flags, verb, argc, argv, &err);
		else
			status = cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell jupyter install|uninstall|list|kernel [flags]");
		if (status < 0)
			status = cell__cli_report(&err, false);
	}
	free(operands.items);
	return status;
}
