/*
 * `workcell store`: moves workflows, tools, deps and artifacts between a folder and Redis.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"

#define NOTE_CHARS 50 /* of a description, in a list */

struct store_flags {
	const char *source, *dest, *base, *storage, *target, *redis, *prefix, *workspace, *tools, *type;
	bool clear, dry_run, json;
};

#define AT(member) offsetof(struct store_flags, member)
static const struct cell_cli_flag store_flag_table[] = {
	{ 0, "source", "DIR", "the folder; also --base DIR, --storage DIR and, with pull, --dest DIR", CELL_FLAG_STRING, AT(source) },
	{ 0, "dest", "DIR", "the same", CELL_FLAG_STRING, AT(dest) },
	{ 0, "base", "DIR", "the same", CELL_FLAG_STRING, AT(base) },
	{ 0, "storage", "DIR", "the same", CELL_FLAG_STRING, AT(storage) },
	{ 0, "target", "URL", "Redis: redis://[user:password@]host[:port][/db], or env:NAME", CELL_FLAG_STRING, AT(target) },
	{ 0, "redis", "URL", "the same", CELL_FLAG_STRING, AT(redis) },
	{ 0, "prefix", "P", "prefix of the keys in Redis", CELL_FLAG_STRING, AT(prefix) },
	{ 0, "workspace", "ID", "use the workflows and artifacts of this workspace, on both sides", CELL_FLAG_STRING, AT(workspace) },
	{ 0, "tools", "DIR", "tool definitions, *.yaml (default: the folder tools of the source)", CELL_FLAG_STRING, AT(tools) },
	{ 0, "type", "KIND", "workflows, tools, deps, artifacts, or all (default workflows)", CELL_FLAG_STRING, AT(type) },
	{ 0, "clear", NULL, "push, pull: also remove items that the other side does not have", CELL_FLAG_SWITCH, AT(clear) },
	{ 0, "dry-run", NULL, "push, pull: change nothing, print what would be changed", CELL_FLAG_SWITCH, AT(dry_run) },
	{ 0, "json", NULL, "print one JSON object per line: type, what, name, note", CELL_FLAG_SWITCH, AT(json) },
	{ 0 },
};

const struct cell_cli_command cell__cli_store_command = {
	.name = "store",
	.summary = "move workflows, tools, deps and artifacts between a folder and Redis",
	.synopsis = "push | pull | diff | list",
	.about = "  push   copies new and changed items from the folder to Redis\n"
		 "  pull   copies new and changed items from Redis to the folder\n"
		 "  diff   shows the differences: + in Redis only, - in the folder only, ~ modified, = the same\n"
		 "  list   lists the items in Redis",
	.examples = "  workcell store push --source ./base --target redis://localhost --prefix app --type all\n"
		    "  workcell store diff --source ./base --target redis://localhost --prefix app\n"
		    "  workcell store pull --target env:REDIS_URL --dest ./copy --type artifacts --dry-run",
	.flags = store_flag_table,
	.verbs = "push pull diff list",
	.run = cell__cmd_store,
};

struct verb {
	const char *name;
	bool pulls, compares, lists;
	const char *done;
};

static const struct verb verbs[] = {
	{ "push", false, false, false, "Pushed" },
	{ "pull", true, false, false, "Pulled" },
	{ "diff", false, true, false, NULL },
	{ "list", false, false, true, NULL },
};

struct job {
	const struct verb *verb;
	const struct store_flags *flags;
	const char *kind;
	const char *folder, *url; /* as the library has them */
	size_t count; /* listed, or changed */
	size_t same, skipped;
};

/* A line of stdout: two spaces, then words that may contain any character. */
static void print_line(const char *before, const char *name, const char *after)
{
	char *line;

	if (asprintf(&line, "  %s%s%s", before, name, after) < 0)
		return;
	for (char *at = line; *at; at++) {
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			*at = '?';
	}
	cell__cli_line(line);
	free(line);
}

static void print_skipped(const struct job *job, const char *name, const char *note)
{
	char *line;

	if (asprintf(&line, "%s: '%s' is skipped: %s", job->kind, name, note) < 0)
		return;
	cell__cli_note(line);
	free(line);
}

static void print_listed(const struct job *job, const char *name, const char *note)
{
	char *short_note;
	int n = (int)strcspn(note, "\n");

	if (!strcmp(job->kind, "deps")) {
		print_line("", note, "");
		return;
	}
	/* Characters, not bytes. */
	for (int chars = 0, i = 0; i < n; i++) {
		if (((unsigned char)note[i] & 0xc0) != 0x80 && chars++ == NOTE_CHARS)
			n = i;
	}
	if (asprintf(&short_note, ": %.*s", n, note) < 0)
		return;
	print_line("", name, short_note);
	free(short_note);
}

/* Where a pulled one is now; free() it. */
static char *place_of(const struct job *job, const char *name)
{
	const char *workspace = job->flags->workspace, *kind = job->kind;
	bool scoped = workspace && (!strcmp(kind, "workflows") || !strcmp(kind, "artifacts"));
	char *path;
	int n;

	if (!strcmp(kind, "deps"))
		n = asprintf(&path, "%s/requirements.txt", job->folder);
	else if (!strcmp(kind, "tools") && job->flags->tools)
		n = asprintf(&path, "%s/%s.yaml", job->flags->tools, name);
	else
		n = asprintf(&path, "%s%s%s/%s/%s%s", job->folder, scoped ? "/workspaces/" : "", scoped ? workspace : "", kind, name,
			     !strcmp(kind, "workflows") ? ".py"
			     : !strcmp(kind, "tools")   ? ".yaml"
							: "");
	return n < 0 ? NULL : path;
}

static void print_pulled(const struct job *job, const char *name)
{
	char *path = place_of(job, name), *line;

	if (path && asprintf(&line, "%s -> %s", name, path) >= 0) {
		print_line("", line, "");
		free(line);
	}
	free(path);
}

static void print_moved(const char *what, const char *name)
{
	static const struct {
		const char *what, *words;
	} lines[] = { { "added", "Added: " }, { "changed", "Changed: " }, { "removed", "Removed: " } };

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (!strcmp(what, lines[i].what))
			print_line(lines[i].words, name, "");
	}
}

static void print_difference(const char *what, const char *name)
{
	static const struct {
		const char *what, *before, *after;
	} lines[] = { { "extra", "+ ", " (agent-created)" },
		      { "added", "- ", " (removed from store)" },
		      { "changed", "~ ", " (modified)" },
		      { "same", "= ", "" } };

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (!strcmp(what, lines[i].what))
			print_line(lines[i].before, name, lines[i].after);
	}
}

static void handle_item(void *arg, const char *what, const char *name, const char *note)
{
	struct job *job = arg;
	json_t *row;

	cell__progress_hide();
	job->same += !strcmp(what, "same");
	job->skipped += !strcmp(what, "skipped");
	job->count += !strcmp(what, "added") || !strcmp(what, "changed") || !strcmp(what, "listed");
	if (job->flags->json) {
		row = json_pack("{s:s, s:s, s:s, s:s}", "type", job->kind, "what", what, "name", name, "note", note);
		cell__cli_print_json(row, NULL);
		json_decref(row);
	} else if (!strcmp(what, "skipped")) {
		print_skipped(job, name, note);
	} else if (job->verb->lists) {
		print_listed(job, name, note);
	} else if (job->verb->compares) {
		print_difference(what, name);
	} else if (job->verb->pulls && (!strcmp(what, "added") || !strcmp(what, "changed"))) {
		print_pulled(job, name);
	} else {
		print_moved(what, name);
	}
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct job *job = arg;

	cell__progress_count(done, total, strcmp(job->kind, "artifacts") != 0 ? job->kind : NULL);
}

static void print_sum(const struct job *job)
{
	const struct verb *verb = job->verb;
	char *shown = cell_storage_shown(job->url);
	const char *place = verb->pulls ? job->folder : shown ? shown : "Redis";

	if (verb->compares || job->flags->json) {
		free(shown);
		return;
	}
	if (verb->lists)
		printf("\n%zu %s in %s", job->count, job->kind, place);
	else
		printf("\n%s%s %zu %s to %s", job->flags->dry_run ? "Would have " : "",
		       job->flags->dry_run ? verb->pulls ? "pulled" : "pushed" : verb->done, job->count, job->kind, place);
	if (!verb->pulls && job->flags->prefix)
		printf(" (prefix: %s)", job->flags->prefix);
	if (job->same)
		printf(", %zu unchanged", job->same);
	if (job->skipped)
		printf(", %zu skipped", job->skipped);
	printf("\n");
	fflush(stdout);
	free(shown);
}

static int run_kind(struct job *job, const char *tools, struct cell_error *err)
{
	struct cell_transfer_options options = CELL_TRANSFER_OPTIONS_INIT;
	bool from_redis = job->verb->pulls || job->verb->lists;
	int status;

	job->count = job->same = job->skipped = 0;
	options.kind = job->kind;
	options.from = from_redis ? job->url : job->folder;
	options.to = job->verb->lists ? NULL : from_redis ? job->folder : job->url;
	options.workspace_id = job->flags->workspace;
	options.tools_dir = tools;
	options.clear = job->flags->clear;
	options.dry_run = job->flags->dry_run || job->verb->compares;
	options.on_item = handle_item;
	options.on_progress = show_progress;
	options.arg = job;
	if (!job->flags->json)
		cell__progress_begin(job->verb->lists || job->verb->compares ? "reading" : job->verb->pulls ? "pulling" : "pushing");
	status = cell_transfer(&options, err);
	cell__progress_end();
	if (status < 0)
		return -1;
	print_sum(job);
	return 0;
}

static const char *one_of(const char *a, const char *b, const char *c, const char *d)
{
	return a ? a : b ? b : c ? c : d;
}

/* Which kinds, and where; then each of them. */
static int run_verb(const struct verb *verb, const struct store_flags *flags, struct cell_error *err)
{
	static const char *const kinds[] = { "workflows", "tools", "deps", "artifacts" };
	const char *place = one_of(flags->source, flags->dest, flags->base, flags->storage);
	const char *target = flags->target ? flags->target : flags->redis, *type = flags->type ? flags->type : "workflows";
	char *folder = NULL, *url = NULL, *tools = NULL;
	struct job job = { .verb = verb, .flags = flags };
	int status = 0;
	bool known = !strcmp(type, "skills");

	if (known)
		type = kinds[0];
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		known |= !strcmp(type, "all") || !strcmp(type, kinds[i]);
	if (!known)
		return cell_fail(err, CELL_E_INVALID, 0, "--type must be workflows, tools, deps, artifacts or all");
	if (!target)
		return cell_fail(err, CELL_E_INVALID, 0, "give the Redis server with --target redis://...");
	if (!verb->lists && !place)
		return cell_fail(err, CELL_E_INVALID, 0, "give the folder with %s DIR", verb->pulls ? "--dest" : "--source");
	if (place && cell__cli_is_redis(place))
		return cell_fail(err, CELL_E_INVALID, 0, "%s takes a folder; give Redis with --target",
				 verb->pulls ? "--dest" : "--source");
	if ((flags->clear || flags->dry_run) && (verb->lists || verb->compares))
		return cell_fail(err, CELL_E_INVALID, 0, "--clear and --dry-run require push or pull");
	if (!(url = cell__cli_storage(target, flags->prefix, true, err)) || (place && !(folder = cell__cli_absolute(place, err))) ||
	    (flags->tools && !(tools = cell__cli_absolute(flags->tools, err))))
		status = -1;
	if (!status && !verb->pulls && folder)
		status = cell__cli_check_dir("--source", folder, err);
	job.url = url;
	job.folder = folder;
	for (size_t i = 0; !status && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		job.kind = kinds[i];
		if (!strcmp(type, "all") || !strcmp(type, kinds[i]))
			status = run_kind(&job, tools, err);
	}
	free(folder);
	free(url);
	free(tools);
	return status;
}

int cell__cmd_store(int argc, char **argv)
{
	struct store_flags flags = { 0 };
	struct cell_cli_list operands = { 0 };
	struct cell_error err = { 0 };
	const struct verb *verb = NULL;
	int status;

	if (cell__cli_parse(&cell__cli_store_command, argc, argv, &flags, &operands, &status)) {
		for (size_t i = 0; operands.count == 1 && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
			if (!strcmp(operands.items[0].value, verbs[i].name))
				verb = &verbs[i];
		}
		if (!verb)
			cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell store push|pull|diff|list");
		status = verb && run_verb(verb, &flags, &err) == 0 ? 0 : cell__cli_report(&err, flags.json);
	}
	cell__cli_list_finish(&operands);
	return status;
}
