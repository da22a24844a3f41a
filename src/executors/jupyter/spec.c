/*
 * Kernelspecs are found as Jupyter finds them: NAME/kernel.json in the `kernels` folder of JUPYTER_PATH (which the caller gives; the
 * environment is not read), of the interpreter's prefix, of the user, and of the system. "python3" exists whenever the interpreter has
 * ipykernel, installed as a kernelspec or not.
 *
 * Transport: ipykernel uses Unix sockets in a folder that only this user may enter; all others use TCP on the loopback device, because many
 * support nothing else. Every message is signed with the key of the connection file either way.
 */
#define _GNU_SOURCE
#include "executors/jupyter/spec.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/file.h"

#define SEARCH_PATHS 32
#define NAMES_SHOWN 8

static const char *const channel_words[CELL_JUPYTER_CHANNELS] = { "shell", "iopub", "stdin", "control", "hb" };

static int no_memory(struct cell_error *err)
{
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

/* ---- where kernelspecs are ---- */

struct places {
	char *folder[SEARCH_PATHS];
	size_t n;
};

static void places_finish(struct places *places)
{
	for (size_t i = 0; i < places->n; i++)
		free(places->folder[i]);
}

static void add_place(struct places *places, const char *head, size_t size, const char *tail)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (size == 0 || places->n == SEARCH_PATHS || cell__buf_printf(&path, "%.*s%s/kernels", (int)size, head, tail) < 0)
		return;
	for (size_t i = 0; i < places->n; i++)
		if (strcmp(places->folder[i], path.data) == 0)
			return;
	char *taken = cell__buf_take(&path);
	if (taken)
		places->folder[places->n++] = taken;
}

/* The folder above the interpreter's bin/, as sys.prefix is for an interpreter of a venv and for one of the system. */
static size_t prefix_size(const char *python)
{
	const char *slash = strrchr(python, '/');
	while (slash && slash > python && slash[-1] != '/')
		slash--;
	return slash && slash > python ? (size_t)(slash - 1 - python) : 0;
}

static void find_places(const struct cell__jupyter_question *question, struct places *places)
{
	for (const char *at = question->jupyter_path; at && *at;) {
		size_t n = strcspn(at, ":");
		add_place(places, at, n, "");
		at += n + (at[n] == ':');
	}
	const char *home = cell__home_dir();
	add_place(places, question->python, prefix_size(question->python), "/share/jupyter");
	add_place(places, home, strlen(home), "/.local/share/jupyter");
	add_place(places, "/usr/local", strlen("/usr/local"), "/share/jupyter");
	add_place(places, "/usr", strlen("/usr"), "/share/jupyter");
}

static bool is_name(const char *name)
{
	if (!name[0] || strlen(name) > 100 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return false;
	return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == strlen(name);
}

/* Jupyter does not tell names apart by their case. */
static char *find_folder(const struct places *places, const char *name)
{
	for (size_t i = 0; i < places->n; i++) {
		DIR *dir = opendir(places->folder[i]);
		struct dirent *entry;
		char *found = NULL;
		while (dir && !found && (entry = readdir(dir))) {
			CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
			if (strcasecmp(entry->d_name, name) == 0 &&
			    cell__buf_printf(&path, "%s/%s/kernel.json", places->folder[i], entry->d_name) == 0 &&
			    access(path.data, R_OK) == 0) {
				path.size -= strlen("/kernel.json");
				path.data[path.size] = '\0';
				found = cell__buf_take(&path);
			}
		}
		if (dir)
			closedir(dir);
		if (found)
			return found;
	}
	return NULL;
}

static int no_such_kernel(const struct places *places, const char *name, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf names = CELL_BUF_INIT;
	size_t shown = 0;
	for (size_t i = 0; i < places->n; i++) {
		DIR *dir = opendir(places->folder[i]);
		struct dirent *entry;
		while (dir && shown < NAMES_SHOWN && (entry = readdir(dir))) {
			CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
			if (is_name(entry->d_name) && cell__buf_printf(&path, "%s/%s/kernel.json", places->folder[i], entry->d_name) == 0 &&
			    access(path.data, R_OK) == 0 && cell__buf_printf(&names, "%s%s", shown ? ", " : "", entry->d_name) == 0)
				shown++;
		}
		if (dir)
			closedir(dir);
	}
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "unknown kernelspec \"%.60s\"; installed: %.120s", name,
			 names.data ? names.data : "none");
}

/* ---- the content of a kernelspec ---- */

static json_t *read_spec(const char *folder, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, text = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/kernel.json", folder) < 0) {
		no_memory(err);
		return NULL;
	}
	if (cell__file_load("the kernelspec", path.data, 0, CELL_JUPYTER_SPEC_BYTES, &text, err) < 0)
		return NULL;
	json_error_t problem;
	json_t *spec = json_loadb(text.data, text.size, 0, &problem);
	json_t *argv = json_object_get(spec, "argv");
	bool ok = json_is_array(argv) && json_array_size(argv) > 0 && json_array_size(argv) <= CELL_JUPYTER_SPEC_ARGS;
	for (size_t i = 0; ok && i < json_array_size(argv); i++)
		ok = json_is_string(json_array_get(argv, i));
	if (ok)
		return spec;
	json_decref(spec);
	cell_fail(err, CELL_E_INVALID, 0, "%s is not a kernelspec: it is not a JSON object with an argv", path.data);
	return NULL;
}

static const char *find_env(const char *const *env, const char *name, size_t size)
{
	const char *found = NULL;
	for (size_t i = 0; env[i]; i++)
		if (strncmp(env[i], name, size) == 0 && env[i][size] == '=')
			found = env[i] + size + 1;
	return found;
}

/* ${NAME} of the session's environment, as Jupyter does it. */
static int expand(const char *text, const char *const *env, struct cell__buf *out)
{
	int rc = 0;
	while (*text && rc == 0) {
		const char *end = strncmp(text, "${", 2) == 0 ? strchr(text, '}') : NULL;
		const char *value = end ? find_env(env, text + 2, (size_t)(end - text - 2)) : NULL;
		if (value) {
			rc = cell__buf_add_str(out, value);
			text = end + 1;
		} else {
			rc = cell__buf_add(out, text, 1);
			text++;
		}
	}
	return rc;
}

static int make_env(struct cell__jupyter_spec *spec, const struct cell__jupyter_question *question, json_t *extra, struct cell_error *err)
{
	size_t n = 0, made = 0;
	const char *name;
	json_t *value;
	while (question->env[n])
		n++;
	spec->env = cell__alloc(n + json_object_size(extra) + 1, sizeof *spec->env);
	if (!spec->env)
		return no_memory(err);
	for (; made < n; made++)
		if (!(spec->env[made] = cell__strdup(question->env[made])))
			return no_memory(err);
	json_object_foreach(extra, name, value) {
		CELL_AUTO_BUF struct cell__buf entry = CELL_BUF_INIT;
		if (!json_is_string(value) || strchr(name, '=') || !name[0])
			continue;
		if (cell__buf_printf(&entry, "%s=", name) < 0 || expand(json_string_value(value), question->env, &entry) < 0 ||
		    !(spec->env[made] = cell__buf_take(&entry)))
			return no_memory(err);
		made++;
	}
	return 0;
}

/* One of Jupyter's placeholders, anywhere in an argument. */
static char *fill_in(const char *text, const char *connection_file, const char *resource_dir, const char *prefix)
{
	const struct {
		const char *word, *value;
	} words[] = { { "{connection_file}", connection_file }, { "{resource_dir}", resource_dir }, { "{prefix}", prefix } };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	while (*text) {
		size_t i = 0;
		while (i < 3 && strncmp(text, words[i].word, strlen(words[i].word)) != 0)
			i++;
		if ((i < 3 ? cell__buf_add_str(&out, words[i].value) : cell__buf_add(&out, text, 1)) < 0)
			return NULL;
		text += i < 3 ? strlen(words[i].word) : 1;
	}
	return cell__buf_take(&out);
}

static bool is_python_word(const char *word)
{
	return strncmp(word, "python", 6) == 0 && strspn(word + 6, "0123456789.") == strlen(word + 6);
}

static int make_argv(struct cell__jupyter_spec *spec, const struct cell__jupyter_question *question, json_t *argv, const char *folder,
		     struct cell_error *err)
{
	CELL_AUTO_FREE char *prefix = cell__strndup(question->python, prefix_size(question->python));
	size_t n = json_array_size(argv);
	spec->argv = cell__alloc(n + 1, sizeof *spec->argv);
	if (!prefix || !spec->argv)
		return no_memory(err);
	for (size_t i = 0; i < n; i++) {
		const char *word = json_string_value(json_array_get(argv, i));
		/* A kernelspec with just "python" means the chosen interpreter. */
		spec->argv[i] = i == 0 && is_python_word(word) ? cell__strdup(question->python)
							       : fill_in(word, spec->connection_file, folder, prefix);
		if (!spec->argv[i])
			return no_memory(err);
	}
	return 0;
}

static json_t *native_spec(void)
{
	/* No history: an agent's cells do not belong into the history of the person who owns this home. */
	return json_pack("{s:[s,s,s,s,s,s], s:s}", "argv", "python", "-m", "ipykernel_launcher", "-f", "{connection_file}",
			 "--HistoryManager.enabled=False", "language", "python");
}

/* ---- connection files ---- */

/* Ports that are free now.  All are held at once, so that they differ; another program may still be faster. */
static int find_ports(int ports[CELL_JUPYTER_CHANNELS], struct cell_error *err)
{
	int fds[CELL_JUPYTER_CHANNELS] = { -1, -1, -1, -1, -1 }, rc = 0;
	for (int i = 0; i < CELL_JUPYTER_CHANNELS && rc == 0; i++) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t size = sizeof at;
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fds[i] < 0 || bind(fds[i], (struct sockaddr *)&at, sizeof at) < 0 ||
		    getsockname(fds[i], (struct sockaddr *)&at, &size) < 0)
			rc = cell_fail(err, CELL_E_IO, errno, "find a free port");
		ports[i] = ntohs(at.sin_port);
	}
	for (int i = 0; i < CELL_JUPYTER_CHANNELS; i++)
		cell__close_fd(&fds[i]);
	return rc;
}

static int write_file(const char *path, const char *text, struct cell_error *err)
{
	CELL_AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	size_t size = strlen(text), at = 0;
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "make %s", path);
	while (at < size) {
		ssize_t n = write(fd, text + at, size - at);
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "write %s", path);
		at += (size_t)n;
	}
	return 0;
}

static int make_connection(struct cell__jupyter_spec *spec, const struct cell__jupyter_question *question, const char *name,
			   struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	int ports[CELL_JUPYTER_CHANNELS] = { 1, 2, 3, 4, 5 };
	if (cell__buf_printf(&path, "%s/workcell-jupyter-XXXXXX", question->folder) < 0)
		return no_memory(err);
	if (!mkdtemp(path.data))
		return cell_fail(err, CELL_E_IO, errno, "make a folder in %s", question->folder);
	spec->folder = cell__buf_take(&path);
	if (!spec->folder || cell__buf_printf(&path, "%s/connection.json", spec->folder) < 0 ||
	    !(spec->connection_file = cell__buf_take(&path)) || cell__buf_printf(&path, "%s/s", spec->folder) < 0)
		return no_memory(err);
	bool ipc = spec->is_python && path.size + 2 < sizeof((struct sockaddr_un *)NULL)->sun_path;
	if (!ipc && find_ports(ports, err) < 0)
		return -1;
	cell__random_hex(spec->key, CELL_JUPYTER_KEY_CHARS);
	json_t *file = json_pack("{s:s, s:s, s:s, s:s, s:s}", "transport", ipc ? "ipc" : "tcp", "ip", ipc ? path.data : "127.0.0.1", "key",
				 spec->key, "signature_scheme", "hmac-sha256", "kernel_name", name);
	for (int i = 0; i < CELL_JUPYTER_CHANNELS; i++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		if (cell__buf_printf(&text, "%s_port", channel_words[i]) < 0 ||
		    json_object_set_new(file, text.data, json_integer(ports[i])) < 0)
			break;
		text.size = 0;
		if ((ipc ? cell__buf_printf(&text, "ipc://%s-%d", path.data, ports[i])
			 : cell__buf_printf(&text, "tcp://127.0.0.1:%d", ports[i])) == 0)
			spec->endpoint[i] = cell__buf_take(&text);
	}
	CELL_AUTO_FREE char *text = spec->endpoint[CELL_JUPYTER_CHANNELS - 1] ? json_dumps(file, JSON_INDENT(1)) : NULL;
	json_decref(file);
	return text ? write_file(spec->connection_file, text, err) : no_memory(err);
}

int cell__jupyter_spec_init(struct cell__jupyter_spec *spec, const struct cell__jupyter_question *question, struct cell_error *err)
{
	struct places places = { .n = 0 };
	CELL_AUTO_FREE char *folder = NULL;
	const char *name = question->name ? question->name : "python3";
	int rc = -1;
	*spec = (struct cell__jupyter_spec){ 0 };
	find_places(question, &places);
	if (!is_name(name)) {
		cell_fail(err, CELL_E_INVALID, 0, "invalid kernel name \"%.60s\": expected letters, digits, \".\", \"_\" and \"-\"", name);
		goto out;
	}
	if (question->name)
		folder = find_folder(&places, name);
	if (!folder && strcmp(name, "python3") != 0) {
		no_such_kernel(&places, name, err);
		goto out;
	}
	json_t *text = folder ? read_spec(folder, err) : native_spec();
	if (!text)
		goto out;
	const char *mode = json_string_value(json_object_get(text, "interrupt_mode"));
	const char *language = json_string_value(json_object_get(text, "language"));
	spec->interrupt_by_message = mode && strcmp(mode, "message") == 0;
	spec->is_python = language && strcasecmp(language, "python") == 0;
	rc = make_connection(spec, question, name, err);
	if (rc == 0)
		rc = make_argv(spec, question, json_object_get(text, "argv"), folder ? folder : "", err);
	if (rc == 0)
		rc = make_env(spec, question, json_object_get(text, "env"), err);
	json_decref(text);
out:
	places_finish(&places);
	if (rc < 0)
		cell__jupyter_spec_finish(spec);
	return rc;
}

/* Only its direct entries: sockets and the file. */
static void remove_folder(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			(void)unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	(void)rmdir(path);
}

void cell__jupyter_spec_finish(struct cell__jupyter_spec *spec)
{
	if (spec->folder)
		remove_folder(spec->folder);
	cell__strings_free(spec->argv);
	cell__strings_free(spec->env);
	free(spec->folder);
	free(spec->connection_file);
	for (int i = 0; i < CELL_JUPYTER_CHANNELS; i++)
		free(spec->endpoint[i]);
	*spec = (struct cell__jupyter_spec){ 0 };
}
