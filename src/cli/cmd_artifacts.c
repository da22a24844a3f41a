/*
 * `workcell artifacts`: data kept in the storage.  Large ones go through in pieces, so size does not matter.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/words.h"
#include "progress.h"

#define PIECE_BYTES (1024u * 1024u)

struct artifacts_flags {
	struct cell_cli_space_flags space;
	const char *type;
	const char *description;
	const char *metadata;
	bool json;
};

static const struct cell_cli_flag artifacts_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON on one line", CELL_FLAG_SWITCH, offsetof(struct artifacts_flags, json) },
	{ 0, "type", "TYPE", "put: text, json or bytes (default: by the name's ending)", CELL_FLAG_STRING,
	  offsetof(struct artifacts_flags, type) },
	{ 0, "description", "TEXT", "put: description of the artifact", CELL_FLAG_STRING, offsetof(struct artifacts_flags, description) },
	{ 0, "metadata", "JSON", "put: JSON object to store with the artifact", CELL_FLAG_STRING,
	  offsetof(struct artifacts_flags, metadata) },
	CELL_CLI_SPACE_FLAGS(offsetof(struct artifacts_flags, space)),
	{ 0 },
};

const struct cell_cli_command cell__cli_artifacts_command = {
	.name = "artifacts",
	.summary = "list, put, get and remove artifacts",
	.synopsis = "list | put NAME FILE|- | get NAME [FILE|-] | rm NAME...",
	.about = "Artifacts are kept in the artifacts/ of --storage DIR; a name may have folders.\n\n"
		 "  list                Lists the stored artifacts, with type, size, time and description\n"
		 "  put NAME FILE|-     Saves bytes as an artifact and replaces an existing one of this name; the\n"
		 "                      bytes are those of a file, or of stdin\n"
		 "  get NAME [FILE|-]   Returns an artifact with its bytes: in a file, or on stdout (on a terminal\n"
		 "                      without control characters); with --json and no FILE only its description\n"
		 "  rm NAME...          Deletes an artifact",
	.examples = "  workcell artifacts put reports/q3.csv q3.csv --description 'Third quarter' --base ./data\n"
		    "  tar c src | workcell artifacts put src.tar - --base ./data\n"
		    "  workcell artifacts get reports/q3.csv - --base ./data | head\n"
		    "  workcell artifacts list --base ./data --json",
	.flags = artifacts_flag_table,
	.verbs = "list put get rm",
	.run = cell__cmd_artifacts,
};

/* ---- list, rm -------------------------------------------------------------------- */

static const char *type_of(const json_t *artifact)
{
	const char *type = cell__cli_text(artifact, "type");

	return *type ? type : cell__cli_text(json_object_get(artifact, "metadata"), "_data_type");
}

static int print_artifacts(const json_t *artifacts, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 5 };
	const json_t *artifact;
	char size[32], age[32];
	size_t i;

	json_array_foreach(artifacts, i, artifact) {
		struct tm tm = { 0 };
		const char *created = cell__cli_text(artifact, "created_at");

		cell__size_words((uint64_t)json_integer_value(json_object_get(artifact, "size")), size);
		/* Times of storages are UTC. */
		if (strptime(created, "%Y-%m-%dT%H:%M:%S", &tm))
			created = cell__age_words((int64_t)difftime(time(NULL), timegm(&tm)), age);
		cell__cli_table_add(&table, (const char *[]){ cell__cli_text(artifact, "name"), type_of(artifact), size, created,
							      cell__cli_text(artifact, "description") });
	}
	return cell__cli_table_print(&table, err);
}

static int run_list(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct artifacts_flags *flags = values;

	(void)operands;
	return cell__cli_answer(space, "artifacts.list", json_object(), flags->json, print_artifacts, err);
}

static int remove_artifact(struct cell_space *space, const char *name, struct cell_error *err)
{
	json_t *there;
	int status;

	/* Code may delete a missing artifact; a person who mistyped a name needs an error. */
	if (cell__cli_call(space, "artifacts.exists", json_pack("{s:s}", "name", name), NULL, &there, err) < 0)
		return -1;
	status = json_is_false(there) ? cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no artifact '%s'", name)
				      : cell__cli_call(space, "artifacts.delete", json_pack("{s:s}", "name", name), NULL, NULL, err);
	json_decref(there);
	return status;
}

static int run_rm(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct artifacts_flags *flags = values;

	return cell__cli_remove(space, operands, flags->json, remove_artifact, err);
}

/* ---- put ------------------------------------------------------------------------- */

static const char *type_by_name(const char *name)
{
	static const char *const texts[] = { "txt",  "md",  "rst",  "csv", "tsv", "log", "html", "xml", "svg",
					     "yaml", "yml", "toml", "ini", "sql", "py",  "js",   "sh",  NULL };
	const char *dot = strrchr(name, '.');

	if (!dot || strchr(dot, '/'))
		return "bytes";
	if (!strcasecmp(dot + 1, "json"))
		return "json";
	for (size_t i = 0; texts[i]; i++) {
		if (!strcasecmp(dot + 1, texts[i]))
			return "text";
	}
	return "bytes";
}

/* The arguments of artifacts.save as JSON text; free() it.  NULL: *err. */
static char *save_args(const struct artifacts_flags *flags, const char *name, struct cell_error *err)
{
	static const char *const types[] = { "text", "json", "bytes", NULL };
	const char *type = flags->type ? flags->type : type_by_name(name);
	json_t *metadata = NULL, *args;
	char *text;
	size_t i = 0;

	while (types[i] && strcmp(types[i], type))
		i++;
	if (!types[i]) {
		cell_fail(err, CELL_E_INVALID, 0, "--type must be text, json or bytes, not '%s'", type);
		return NULL;
	}
	if (flags->metadata)
		metadata = json_loads(flags->metadata, JSON_REJECT_DUPLICATES, NULL);
	if (flags->metadata && !json_is_object(metadata)) {
		json_decref(metadata);
		cell_fail(err, CELL_E_INVALID, 0, "--metadata must be a JSON object");
		return NULL;
	}
	args = json_pack("{s:s, s:s, s:s, s:o*}", "name", name, "type", type, "description", flags->description ? flags->description : "",
			 "metadata", metadata);
	text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	if (!text)
		cell_fail(err, CELL_E_INVALID, 0, "names and descriptions must be UTF-8");
	json_decref(args);
	return text;
}

struct input {
	int fd;
	const char *where; /* for messages */
	char *piece;
	uint64_t done, total; /* total 0: not known */
};

/* The next piece, which is short only at the end. */
static int read_piece(void *arg, const void **ret_bytes, size_t *ret_size, struct cell_error *err)
{
	struct input *input = arg;
	size_t size = 0;
	ssize_t n = 1;

	while (size < PIECE_BYTES && n) {
		n = read(input->fd, input->piece + size, PIECE_BYTES - size);
		if (n < 0 && errno == EINTR) {
			n = 1;
			continue;
		}
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "cannot read %s", input->where);
		size += (size_t)n;
	}
	*ret_bytes = input->piece;
	*ret_size = size;
	input->done += size;
	cell__progress_set(input->done, input->total);
	return 0;
}

static int put(struct cell_space *space, const char *args, struct input *input, struct cell_answer *answer, struct cell_error *err)
{
	const void *bytes;
	size_t size;

	input->piece = malloc(PIECE_BYTES);
	if (!input->piece)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a piece of %s", input->where);
	if (read_piece(input, &bytes, &size, err) < 0)
		return -1;
	if (cell_artifact_save(space, args, bytes, size, size == PIECE_BYTES ? read_piece : NULL, input, answer, err) == 0)
		return 0;
	cell__cli_keep_message(answer);
	return -1;
}

static int run_put(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct artifacts_flags *flags = values;
	const char *name = operands->items[1].value, *path = operands->items[2].value;
	bool from_stdin = !strcmp(path, "-");
	struct input input = { .fd = from_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC), .where = from_stdin ? "stdin" : path };
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct stat st;
	char *args;
	int status = -1;

	if (input.fd < 0)
		return cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "cannot open %s", path);
	args = save_args(flags, name, err);
	if (!flags->json)
		cell__progress_begin("saving");
	if (!fstat(input.fd, &st) && S_ISREG(st.st_mode))
		input.total = (uint64_t)st.st_size;
	if (args)
		status = put(space, args, &input, &answer, err);
	cell__progress_end();
	if (!from_stdin)
		close(input.fd);
	if (!status && flags->json)
		cell__cli_line(answer.json);
	cell_answer_finish(&answer);
	free(input.piece);
	free(args);
	return status;
}

/* ---- get ------------------------------------------------------------------------- */

/* Code may have saved it: it must not act on a terminal. bytes NULL: the end. */
static int show(struct cell_shown_carry *carry, const char *bytes, size_t size, struct cell_error *err)
{
	char *text = cell_shown_output(carry, bytes, size, &size);

	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory to show the artifact");
	cell__cli_write(STDOUT_FILENO, text, size);
	free(text);
	return 0;
}

static int write_all(int fd, const char *bytes, size_t size, const char *path, struct cell_error *err)
{
	if (fd == STDOUT_FILENO) {
		cell__cli_write(fd, bytes, size);
		return 0;
	}
	return cell__fd_write_all(fd, bytes, size) < 0 ? cell_fail(err, CELL_E_IO, errno, "cannot write %s", path) : 0;
}

struct output {
	int fd;
	const char *path;
	bool shown; /* on a terminal, which its bytes must not act on */
	uint64_t done;
	struct cell_shown_carry carry;
};

static int write_piece(void *arg, const void *bytes, size_t size, int64_t whole, struct cell_error *err)
{
	struct output *output = arg;

	output->done += size;
	cell__progress_set(output->done, whole > 0 ? (uint64_t)whole : 0);
	if (cell__cli_stop_status())
		return cell_fail(err, CELL_E_CANCELLED, 0, "stopped");
	return output->shown ? show(&output->carry, bytes, size, err) : write_all(output->fd, bytes, size, output->path, err);
}

static int fetch_pieces(struct cell_space *space, const char *name, int fd, const char *path, struct cell_error *err)
{
	struct output output = { .fd = fd, .path = path, .shown = fd == STDOUT_FILENO && isatty(fd) };
	struct cell_answer answer = CELL_ANSWER_INIT;
	json_t *named = json_pack("{s:s}", "name", name);
	char *args = named ? json_dumps(named, JSON_COMPACT) : NULL;
	int status;

	json_decref(named);
	if (!args)
		return cell_fail(err, CELL_E_INVALID, 0, "the name of an artifact must be UTF-8");
	status = cell_artifact_load(space, args, write_piece, &output, &answer, err);
	if (status < 0)
		cell__cli_keep_message(&answer);
	else if (output.shown)
		status = show(&output.carry, NULL, 0, err);
	cell_answer_finish(&answer);
	free(args);
	return status;
}

/* A new file beside path, to replace it when it is complete; *ret_temporary stays NULL if path is not a file. */
static int open_target(const char *path, char **ret_temporary, struct cell_error *err)
{
	struct stat st;
	mode_t mask;
	int fd;

	if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
		fd = open(path, O_WRONLY | O_CLOEXEC);
		return fd < 0 ? cell_fail(err, CELL_E_IO, errno, "cannot write %s", path) : fd;
	}
	if (asprintf(ret_temporary, "%s.XXXXXX", path) < 0) {
		*ret_temporary = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	}
	fd = mkostemp(*ret_temporary, O_CLOEXEC);
	if (fd < 0) {
		cell_fail(err, CELL_E_IO, errno, "cannot write %s", path);
		free(*ret_temporary);
		*ret_temporary = NULL;
		return -1;
	}
	mask = umask(0);
	umask(mask);
	fchmod(fd, 0666 & ~mask);
	return fd;
}

static int fetch(struct cell_space *space, const char *name, const char *path, struct cell_error *err)
{
	char *temporary = NULL;
	int fd, status;

	if (!strcmp(path, "-"))
		return fetch_pieces(space, name, STDOUT_FILENO, path, err);
	fd = open_target(path, &temporary, err);
	if (fd < 0)
		return -1;
	status = fetch_pieces(space, name, fd, path, err);
	if (close(fd) < 0 && !status)
		status = cell_fail(err, CELL_E_IO, errno, "cannot write %s", path);
	if (!status && temporary && rename(temporary, path) < 0)
		status = cell_fail(err, CELL_E_IO, errno, "cannot write %s", path);
	if (status < 0 && temporary)
		unlink(temporary);
	free(temporary);
	return status;
}

static int describe(struct cell_space *space, const char *name, struct cell_error *err)
{
	json_t *artifact;
	char *text;
	int status = 0;

	if (cell__cli_call(space, "artifacts.get", json_pack("{s:s}", "name", name), &text, &artifact, err) < 0)
		return -1;
	if (json_is_object(artifact))
		cell__cli_line(text);
	else
		status = cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no artifact '%s'", name);
	json_decref(artifact);
	free(text);
	return status;
}

static int run_get(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct artifacts_flags *flags = values;
	const char *name = operands->items[1].value, *path = operands->count > 2 ? operands->items[2].value : "-";
	int status;

	if (flags->json && operands->count > 2 && !strcmp(path, "-"))
		return cell_fail(err, CELL_E_INVALID, 0, "--json and the data cannot both go to stdout");
	if (flags->json && operands->count == 2)
		return describe(space, name, err);
	if (!flags->json && (strcmp(path, "-") || !isatty(STDOUT_FILENO)))
		cell__progress_begin("loading");
	status = fetch(space, name, path, err);
	cell__progress_end();
	if (!status && flags->json)
		status = describe(space, name, err);
	return status;
}

/* ---- the command ------------------------------------------------------------------ */

static const struct cell_cli_verb verbs[] = {
	{ "list", "", 0, 0, false, run_list },
	{ "put", "NAME FILE|- [--type TYPE] [--description TEXT]", 2, 2, true, run_put },
	{ "get", "NAME [FILE|-]", 1, 2, false, run_get },
	{ "rm", "NAME...", 1, SIZE_MAX, false, run_rm },
	{ 0 },
};

int cell__cmd_artifacts(int argc, char **argv)
{
	struct artifacts_flags flags = { 0 };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_artifacts_command, argc, argv, &flags, &operands, &status))
		status = cell__cli_do(&(struct cell_cli_job){ .command = "artifacts",
							      .verbs = verbs,
							      .flags = &flags,
							      .space = &flags.space,
							      .needs_storage = true,
							      .json = flags.json },
				      &operands);
	cell__cli_list_finish(&operands);
	return status;
}
