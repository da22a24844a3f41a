/*
 * `workcell files`: files of a server's session, into its workspace and out of it, in pieces.
 *
 * A folder goes as a tar archive: a thread packs or unpacks it at one end of a pipe, the transfer is at the other.  The server, and the code
 * that wrote the files, are not trusted: names are shown without control characters, and an archive stays in its folder (cell_folder_unpack()).
 */
#define _GNU_SOURCE 1
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/words.h"
#include "progress.h"

struct files_flags {
	struct cell_cli_client_flags client;
	bool json, recursive;
	const char *mode;
};

static const struct cell_cli_flag files_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON on one line", CELL_FLAG_SWITCH, offsetof(struct files_flags, json) },
	{ 'r', "recursive", NULL, "rm: folders with everything in them", CELL_FLAG_SWITCH, offsetof(struct files_flags, recursive) },
	{ 0, "mode", "OCTAL", "put: permissions of the file, as 755 (default: those of the file it replaces, else 644)", CELL_FLAG_STRING,
	  offsetof(struct files_flags, mode) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct files_flags, client)),
	{ 0 },
};

const struct cell_cli_command cell__cli_files_command = {
	.name = "files",
	.summary = "list, get, put and remove files of a server's session",
	.synopsis = "ls SESSION [PATH] | get SESSION PATH [FILE|FOLDER|-] | put SESSION FILE|FOLDER|- PATH | rm [-r] SESSION PATH... | "
		    "mkdir SESSION PATH...",
	.about = "SESSION is an id that `workcell ps` shows, or its beginning.  A PATH is relative to the workspace of the session.\n\n"
		 "  ls SESSION [PATH]                    Lists a folder, or describes a file\n"
		 "  get SESSION PATH [FILE|FOLDER|-]     Downloads a file, or a folder with everything in it; -: to stdout, a folder as a\n"
		 "                                       tar archive.  A file appears when all of it is there.  Links that point out of a\n"
		 "                                       folder are left out.  By default it gets the name that it has there\n"
		 "  put SESSION FILE|FOLDER|- PATH       Uploads a file or a folder, or stdin as a file\n"
		 "  rm [-r] SESSION PATH...              Removes files, links and empty folders; -r: any folder\n"
		 "  mkdir SESSION PATH...                Makes folders, and those that lead to them",
	.examples = "  workcell files ls 3f2a --auth-token-file token\n"
		    "  workcell files put 3f2a data.csv in/data.csv --auth-token-file token\n"
		    "  workcell files get 3f2a results ./results --auth-token-file token\n"
		    "  workcell files get 3f2a results - --auth-token-file token | tar t",
	.flags = files_flag_table,
	.verbs = "ls get put rm mkdir",
	.run = cell__cmd_files,
};

struct filing {
	const struct files_flags *flags;
	struct cell_client *client;
	char id[33];
	uint64_t total; /* bytes of the transfer; 0: not known */
	int64_t bytes;
};

/* ---- requests ---- */

/* free() it.  NULL: err has the reason. */
static char *url_of(const struct filing *filing, const char *path, const char *query, struct cell_error *err)
{
	struct cell__buf url = CELL_BUF_INIT;
	int rc = cell__buf_printf(&url, "/v1/sessions/%s/files?path=", filing->id);

	rc |= cell__buf_add_percent(&url, path);
	rc |= cell__buf_add_str(&url, query);
	if (!rc)
		return cell__buf_take(&url);
	cell__buf_finish(&url);
	cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	return NULL;
}

static int ask(const struct filing *filing, const char *method, const char *path, const char *query, json_t **ret_answer,
	       struct cell_error *err)
{
	CELL_AUTO_FREE char *url = url_of(filing, path, query, err);

	return url ? cell__cli_client_ask(filing->client, method, url, NULL, ret_answer, err) : -1;
}

static int describe(const struct filing *filing, const char *path, json_t **ret_found, struct cell_error *err)
{
	json_t *found = NULL;

	if (ask(filing, "GET", path, "&format=json", &found, err) < 0)
		return -1;
	if (!json_is_string(json_object_get(found, "type"))) {
		json_decref(found);
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not the description of a file");
	}
	*ret_found = found;
	return 0;
}

static volatile sig_atomic_t stopped;

static void handle_stop(int number)
{
	stopped = number;
}

static int handle_moved(void *arg, int64_t bytes, struct cell_error *err)
{
	struct filing *filing = arg;

	filing->bytes = bytes;
	cell__progress_set((uint64_t)bytes, filing->total);
	return stopped ? cell_fail(err, CELL_E_CANCELLED, 0, "stopped") : 0;
}

static int transfer(struct filing *filing, const char *method, const char *path, const char *query, int in_fd, int out_fd,
		    struct cell_error *err)
{
	CELL_AUTO_FREE char *url = url_of(filing, path, query, err);

	return url ? cell_client_transfer(filing->client, method, url, in_fd, out_fd, handle_moved, filing, err) : -1;
}

/* ---- folders ---- */

/* The other end of the pipe, on a thread. */
struct packing {
	const char *folder;
	int fd;
	bool packs;
	size_t left_out;
	int status;
	struct cell_error err;
};

static void *packing_main(void *arg)
{
	struct packing *packing = arg;

	packing->status = packing->packs ? cell_folder_pack(packing->folder, packing->fd, NULL, &packing->err)
					 : cell_folder_unpack(packing->folder, packing->fd, &packing->left_out, &packing->err);
	close(packing->fd);
	return NULL;
}

static int move_folder(struct filing *filing, const char *path, const char *folder, bool up, struct cell_error *err)
{
	struct packing packing = { .folder = folder, .packs = up };
	pthread_t thread;
	char *note;
	int fds[2], status;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make a pipe");
	packing.fd = fds[up ? 1 : 0];
	status = pthread_create(&thread, NULL, packing_main, &packing);
	if (status) {
		close(fds[0]);
		close(fds[1]);
		return cell_fail(err, CELL_E_IO, status, "cannot start a thread");
	}
	status = transfer(filing, up ? "PUT" : "GET", path, "&format=tar", up ? fds[0] : -1, up ? -1 : fds[1], err);
	close(fds[up ? 0 : 1]);
	pthread_join(thread, NULL);
	/* A failure at one end is one at the other too: the first is meant. */
	if (packing.status < 0 && (up ? packing.err.sys != EPIPE : status == 0 || err->sys == EPIPE)) {
		*err = packing.err;
		status = -1;
	}
	if (!status && packing.left_out && asprintf(&note, "%zu links that point out of the folder were left out", packing.left_out) >= 0) {
		cell__progress_hide();
		cell__cli_note(note);
		free(note);
	}
	return status;
}

/* ---- get ---- */

/* Code has written it: it must not act on a terminal. */
static int show(int fd, struct cell_error *err)
{
	struct cell_shown_carry carry = { 0 };
	char block[65536], *text;
	size_t size;
	ssize_t n;

	do {
		n = read(fd, block, sizeof(block));
		text = n < 0 ? NULL : cell_shown_output(&carry, n ? block : NULL, (size_t)n, &size);
		if (!text)
			return cell_fail(err, CELL_E_IO, n < 0 ? errno : ENOMEM, "cannot show the file");
		cell__cli_write(STDOUT_FILENO, text, size);
		free(text);
	} while (n > 0);
	return 0;
}

static int get_to_terminal(struct filing *filing, const char *path, struct cell_error *err)
{
	FILE *file = tmpfile();
	int status;

	if (!file)
		return cell_fail(err, CELL_E_IO, errno, "cannot make a temporary file");
	status = transfer(filing, "GET", path, "", -1, fileno(file), err);
	cell__progress_end();
	rewind(file);
	if (!status)
		status = show(fileno(file), err);
	fclose(file);
	return status;
}

static int get_file(struct filing *filing, const char *path, const char *target, const json_t *found, struct cell_error *err)
{
	unsigned mode = (unsigned)strtoul(cell__cli_text(found, "mode"), NULL, 8) & 0777;
	CELL_AUTO_FREE char *temporary = NULL;
	mode_t mask = umask(0);
	int fd, status;

	umask(mask);
	if (asprintf(&temporary, "%s.XXXXXX", target) < 0) {
		temporary = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	}
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot write %.160s", target);
	status = transfer(filing, "GET", path, "", -1, fd, err);
	if (!status && fchmod(fd, ((mode & 0111) | 0666) & ~mask) < 0)
		status = cell_fail(err, CELL_E_IO, errno, "cannot write %.160s", target);
	if (close(fd) < 0 && !status)
		status = cell_fail(err, CELL_E_IO, errno, "cannot write %.160s", target);
	if (!status && rename(temporary, target) < 0)
		status = cell_fail(err, CELL_E_IO, errno, "cannot write %.160s", target);
	if (status < 0)
		unlink(temporary);
	return status;
}

/* The name that a path has here: its last part, below a folder that exists.  free() it. */
static char *target_of(const char *path, const char *given, bool is_folder, struct cell_error *err)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	struct stat st;
	char *target = NULL;

	if (!given && (!*name || !strcmp(name, ".") || !strcmp(name, ".."))) {
		cell_fail(err, CELL_E_INVALID, 0, "give the name that it shall have here");
		return NULL;
	}
	if (!given)
		target = strdup(name);
	else if (!is_folder && *name && !stat(given, &st) && S_ISDIR(st.st_mode))
		target = asprintf(&target, "%s/%s", given, name) < 0 ? NULL : target;
	else
		target = strdup(given);
	if (!target)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	return target;
}

static int get(struct filing *filing, const char *path, const char *given, struct cell_error *err)
{
	CELL_AUTO_FREE char *target = NULL;
	json_t *found = NULL;
	bool is_folder, is_stdout = given && !strcmp(given, "-");
	int status;

	if (is_stdout && filing->flags->json)
		return cell_fail(err, CELL_E_INVALID, 0, "--json and the data cannot both go to stdout");
	if (describe(filing, path, &found, err) < 0)
		return -1;
	is_folder = !strcmp(cell__cli_text(found, "type"), "folder");
	filing->total = is_folder ? 0 : (uint64_t)json_integer_value(json_object_get(found, "size"));
	if (is_stdout && is_folder && isatty(STDOUT_FILENO))
		status = cell_fail(err, CELL_E_INVALID, 0, "an archive is not for a terminal: name a folder, or redirect the output");
	else if (is_stdout && isatty(STDOUT_FILENO))
		status = get_to_terminal(filing, path, err);
	else if (is_stdout)
		status = transfer(filing, "GET", path, is_folder ? "&format=tar" : "", -1, STDOUT_FILENO, err);
	else if (!(target = target_of(path, given, is_folder, err)))
		status = -1;
	else if (!is_folder)
		status = get_file(filing, path, target, found, err);
	else if (mkdir(target, 0777) < 0 && errno != EEXIST)
		status = cell_fail(err, CELL_E_IO, errno, "cannot make the folder %.160s", target);
	else
		status = move_folder(filing, path, target, false, err);
	json_decref(found);
	cell__progress_end();
	if (!status && filing->flags->json) {
		json_t *answer = json_pack("{s:s, s:s?, s:I}", "path", path, "file", target, "bytes", (json_int_t)filing->bytes);

		status = answer ? cell__cli_print_json(answer, err) : cell_fail(err, CELL_E_INVALID, 0, "the names are not UTF-8");
		json_decref(answer);
	}
	return status;
}

/* ---- put ---- */

static int put(struct filing *filing, const char *source, const char *path, struct cell_error *err)
{
	bool is_stdin = !strcmp(source, "-");
	int fd = is_stdin ? STDIN_FILENO : open(source, O_RDONLY | O_CLOEXEC), status;
	char query[16] = "";
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "cannot open %.160s", source);
	filing->total = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	if (filing->flags->mode)
		snprintf(query, sizeof(query), "&mode=%.8s", filing->flags->mode);
	if (filing->flags->mode && strspn(filing->flags->mode, "01234567") != strlen(filing->flags->mode))
		status = cell_fail(err, CELL_E_INVALID, 0, "--mode must have three octal digits, as 644");
	else if (S_ISDIR(st.st_mode))
		status = move_folder(filing, path, source, true, err);
	else
		status = transfer(filing, "PUT", path, query, fd, -1, err);
	if (!is_stdin)
		close(fd);
	cell__progress_end();
	if (!status && filing->flags->json) {
		json_t *answer = json_pack("{s:s, s:I}", "path", path, "bytes", (json_int_t)filing->bytes);

		status = answer ? cell__cli_print_json(answer, err) : cell_fail(err, CELL_E_INVALID, 0, "the names are not UTF-8");
		json_decref(answer);
	}
	return status;
}

/* ---- ls, rm, mkdir ---- */

static void add_row(struct cell_cli_table *table, const json_t *item, const char *name)
{
	char size[32], age[32];
	const char *type = cell__cli_text(item, "type"), *target = cell__cli_text(item, "target");
	CELL_AUTO_FREE char *shown = NULL;
	double mtime = json_number_value(json_object_get(item, "mtime"));

	cell__size_words((uint64_t)json_integer_value(json_object_get(item, "size")), size);
	cell__age_words((int64_t)difftime(time(NULL), mtime > 0 && mtime < 1e11 ? (time_t)mtime : 0), age);
	if (asprintf(&shown, "%s%s%s%s", name, !strcmp(type, "folder") ? "/" : "", *target ? " -> " : "", target) < 0) {
		shown = NULL;
		table->failed = true;
		return;
	}
	cell__cli_table_add(table, (const char *[]){ cell__cli_text(item, "mode"), type, strcmp(type, "file") ? "" : size, age, shown });
}

static int list(struct filing *filing, const char *path, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 5 };
	json_t *found = NULL, *entries, *item;
	size_t i;
	int status;

	if (describe(filing, path, &found, err) < 0)
		return -1;
	entries = json_object_get(found, "entries");
	if (filing->flags->json) {
		status = cell__cli_print_json(found, err);
	} else {
		if (!json_is_array(entries))
			add_row(&table, found, cell__cli_text(found, "path"));
		json_array_foreach(entries, i, item)
			add_row(&table, item, cell__cli_text(item, "name"));
		status = cell__cli_table_print(&table, err);
		if (!status && json_is_true(json_object_get(found, "truncated")))
			cell__cli_note("the folder has more entries than are listed");
	}
	json_decref(found);
	return status;
}

static int change(struct filing *filing, const struct cell_cli_list *operands, const char *method, const char *query,
		  struct cell_error *err)
{
	json_t *done = json_array();
	int status = 0;

	for (size_t i = 2; i < operands->count && !status; i++) {
		status = ask(filing, method, operands->items[i].value, query, NULL, err);
		if (!status)
			json_array_append_new(done, json_string(operands->items[i].value));
	}
	if (!status && filing->flags->json)
		status = cell__cli_print_json(done, err);
	json_decref(done);
	return status;
}

/* ---- the command ---- */

static int run_verb(struct filing *filing, const struct cell_cli_list *operands, struct cell_error *err)
{
	const char *verb = operands->items[0].value;
	const char *first = operands->count > 2 ? operands->items[2].value : "",
		   *second = operands->count > 3 ? operands->items[3].value : NULL;
	bool gets = !strcmp(verb, "get");

	if (!strcmp(verb, "ls"))
		return list(filing, first, err);
	if (!strcmp(verb, "rm"))
		return change(filing, operands, "DELETE", filing->flags->recursive ? "&recursive=true" : "", err);
	if (!strcmp(verb, "mkdir"))
		return change(filing, operands, "PUT", "&format=folder", err);
	if (!filing->flags->json)
		cell__progress_begin(gets ? "downloading" : "uploading");
	return gets ? get(filing, first, second, err) : put(filing, first, second, err);
}

static int check(const struct cell_cli_list *operands, struct cell_error *err)
{
	static const struct {
		const char *verb, *usage;
		size_t least, most; /* operands, with the verb */
	} verbs[] = { { "ls", "ls SESSION [PATH]", 2, 3 },
		      { "get", "get SESSION PATH [FILE|FOLDER|-]", 3, 4 },
		      { "put", "put SESSION FILE|FOLDER|- PATH", 4, 4 },
		      { "rm", "rm [-r] SESSION PATH...", 3, SIZE_MAX },
		      { "mkdir", "mkdir SESSION PATH...", 3, SIZE_MAX } };

	for (size_t i = 0; operands->count && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(operands->items[0].value, verbs[i].verb))
			continue;
		if (operands->count >= verbs[i].least && operands->count <= verbs[i].most)
			return 0;
		return cell_fail(err, CELL_E_INVALID, 0, "usage: workcell files %s", verbs[i].usage);
	}
	return cell_fail(err, CELL_E_INVALID, 0, "give one of ls, get, put, rm and mkdir; `workcell files --help` explains them");
}

int cell__cmd_files(int argc, char **argv)
{
	struct files_flags flags = { 0 };
	struct cell_cli_list operands = { 0 };
	struct filing filing = { .flags = &flags };
	struct sigaction action = { .sa_handler = handle_stop, .sa_flags = (int)(SA_RESETHAND | SA_RESTART) };
	struct cell_error err;
	int status;

	if (!cell__cli_parse(&cell__cli_files_command, argc, argv, &flags, &operands, &status)) {
		cell__cli_list_finish(&operands);
		return status;
	}
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGINT, &action, NULL); /* a second one ends the program at once */
	sigaction(SIGTERM, &action, NULL);
	status = check(&operands, &err);
	if (!status)
		status = cell__cli_client_open(&flags.client, &filing.client, &err);
	if (!status)
		status = cell__cli_client_find(filing.client, operands.items[1].value, filing.id, &err);
	if (!status)
		status = run_verb(&filing, &operands, &err);
	cell__progress_end();
	cell_client_destroy(filing.client);
	cell__cli_list_finish(&operands);
	return status < 0 ? cell__cli_report(&err, flags.json) : 0;
}
