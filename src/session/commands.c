#define _GNU_SOURCE
#include "session/commands.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/utf8.h"
#include "session/session.h"
#include "spawn/confinement.h"
#include "spawn/process.h"

#define LINGER_MS 200 /* for output of processes that a command leaves */
#define CHUNK_BYTES 4096u
#define CHUNK_MAX_BYTES 65536u
#define LEAST_OUTPUT_BYTES (128u * 1024u) /* of a command that are kept, however many there are */
#define WAITING_STDIN (CELL_COMMAND_STDIN_BYTES)

struct chunk {
	struct chunk *next;
	enum cell_stream stream;
	size_t size, room;
	uint64_t position; /* of its first byte */
	char data[];
};

struct cell__command {
	unsigned refs;
	struct cell_session *session; /* NULL: it has forgotten the command */
	char id[17];
	struct cell__process *process; /* NULL: it does not run yet, or has ended, or is ... */
	struct cell__far_command *far; /* ... at a server; or NULL */
	int64_t pid;
	json_t *argv;
	char *cwd, *tag;
	bool tty, has_stdin, blocks, ended;
	int64_t started_s, ended_us;
	struct cell__process_exit how;
	const char *reason; /* of its end; or NULL */

	/* output */
	struct chunk *first, *last;
	size_t kept_bytes;     /* with the room in chunks */
	uint64_t total, begin; /* positions: of the next byte, of the first that is kept */
	uint64_t taken;        /* with `blocks`: looked at up to here */
	bool paused;
	struct cell__command_reader *readers;

	/* until it runs */
	struct starting *starting;
	struct cell__command *next;
};

/* A start that waits for a kernel, and then for the program. */
struct starting {
	struct cell__waiting waiting; /* first */
	struct cell__command *command;
	char **argv, **env; /* complete strings of the spec */
	struct cell__command_spec spec;
	struct cell__principal principal;
	cell__command_done done;
	void *arg;
};

/* ---- life ---- */

struct cell__command *cell__command_ref(struct cell__command *command)
{
	command->refs++;
	return command;
}

static void drop_chunk(struct cell__command *command)
{
	struct chunk *chunk = command->first;
	command->first = chunk->next;
	if (!command->first)
		command->last = NULL;
	command->begin = chunk->position + chunk->size;
	command->kept_bytes -= chunk->room;
	free(chunk);
}

void cell__command_unref(struct cell__command *command)
{
	if (--command->refs > 0)
		return;
	while (command->first)
		drop_chunk(command);
	json_decref(command->argv);
	free(command->cwd);
	free(command->tag);
	free(command);
}

static void free_starting(struct starting *starting)
{
	for (char **at = starting->env; at && *at; at++)
		explicit_bzero(*at, strlen(*at)); /* there may be secrets in it */
	cell__strings_free(starting->argv);
	cell__strings_free(starting->env);
	free(starting);
}

static void unlist(struct cell__command *command)
{
	struct cell_session *session = command->session;
	struct cell__command **at = &session->commands;
	while (*at != command)
		at = &(*at)->next;
	*at = command->next;
	command->session = NULL;
	session->n_commands--;
	cell__command_unref(command);
}

static bool has_program(const struct cell__command *command)
{
	return command->process || command->far;
}

static void kill_program(struct cell__command *command)
{
	if (command->far)
		command->far->ops->signal(command->far, SIGKILL);
	else
		cell__process_kill(command->process);
}

static bool is_running(const struct cell__command *command)
{
	return !command->ended;
}

size_t cell__commands_running(const struct cell_session *session)
{
	size_t n = 0;
	for (const struct cell__command *c = session->commands; c; c = c->next)
		n += is_running(c);
	return n;
}

/* Those that ended long ago, and the oldest of too many.  They are listed with the latest first. */
static void tidy(struct cell_session *session)
{
	size_t ended = 0;
	int64_t now_us = cell__now_us();
	for (struct cell__command *c = session->commands, *next; c; c = next) {
		next = c->next;
		if (c->ended && (++ended > CELL_COMMANDS_ENDED || now_us - c->ended_us > CELL_COMMAND_KEPT_MS * 1000ll))
			unlist(c);
	}
}

struct cell__command *cell__command_find(const struct cell_session *session, const char *id)
{
	struct cell__command *c;
	tidy((struct cell_session *)session);
	for (c = session->commands; c && (strcmp(c->id, id) != 0 || c->starting); c = c->next) {
	}
	return c;
}

struct cell__command *cell__command_find_pid(const struct cell_session *session, int64_t pid)
{
	struct cell__command *c = session->commands;
	while (c && (c->pid != pid || c->ended || c->starting))
		c = c->next;
	return c;
}

/* ---- output ---- */

/* Bytes that this command may keep. */
static size_t share_of(const struct cell__command *command)
{
	size_t n = command->session && command->session->n_commands > 0 ? command->session->n_commands : 1;
	size_t share = CELL_COMMANDS_OUTPUT_BYTES / n;
	return share > CELL_COMMAND_OUTPUT_BYTES ? CELL_COMMAND_OUTPUT_BYTES : share < LEAST_OUTPUT_BYTES ? LEAST_OUTPUT_BYTES : share;
}

/* The position that must be kept: of the slowest attached reader. */
static uint64_t wanted_by_readers(const struct cell__command *command)
{
	uint64_t wanted = command->blocks ? command->taken : command->total;
	for (const struct cell__command_reader *r = command->readers; r; r = r->next)
		if (r->position < wanted)
			wanted = r->position;
	return wanted;
}

/* Lets the program wait, or go on. */
static void pace(struct cell__command *command)
{
	bool paused = command->total - wanted_by_readers(command) > share_of(command) / 2;
	if (paused == command->paused || !has_program(command))
		return;
	command->paused = paused;
	if (command->far)
		command->far->ops->pause(command->far, paused);
	else
		cell__process_pause(command->process, paused);
}

static void wake_readers(struct cell__command *command)
{
	cell__command_ref(command);
	for (struct cell__command_reader *r = command->readers, *next; r; r = next) {
		next = r->next;
		if (r->position < command->total || command->ended)
			r->wake(r);
	}
	cell__command_unref(command);
}

static struct chunk *add_chunk(struct cell__command *command, enum cell_stream stream, size_t size)
{
	size_t room = size < CHUNK_BYTES ? CHUNK_BYTES : size;
	struct chunk *chunk = cell__alloc(1, sizeof *chunk + room);
	if (!chunk)
		return NULL;
	*chunk = (struct chunk){ .stream = stream, .room = room, .position = command->total };
	if (command->last)
		command->last->next = chunk;
	else
		command->first = chunk;
	command->last = chunk;
	command->kept_bytes += room;
	return chunk;
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__command *command = owner;
	struct chunk *chunk = command->last;
	uint64_t wanted = wanted_by_readers(command);
	if (!chunk || chunk->stream != stream || chunk->room - chunk->size < size || chunk->position + chunk->size != command->total)
		chunk = add_chunk(command, stream, size);
	if (!chunk) { /* out of memory: as if it had been dropped */
		command->total += size;
		while (command->first)
			drop_chunk(command);
		command->begin = command->total;
		return;
	}
	memcpy(chunk->data + chunk->size, bytes, size);
	chunk->size += size;
	command->total += size;
	size_t share = share_of(command);
	while (command->kept_bytes > share && command->first != command->last && command->first->position + command->first->size <= wanted)
		drop_chunk(command);
	pace(command);
	wake_readers(command);
}

/* Output is lost on its way: its positions stay empty. */
static void handle_lost(void *owner, uint64_t bytes)
{
	struct cell__command *command = owner;
	command->total += bytes;
	if (!command->first)
		command->begin = command->total;
}

void cell__command_peek(struct cell__command *command, uint64_t position, struct cell__command_piece *ret_piece)
{
	uint64_t from = position < command->begin ? command->begin : position;
	*ret_piece = (struct cell__command_piece){ .position = from, .dropped = from - position };
	if (command->blocks && from > command->taken) {
		command->taken = from;
		pace(command);
	}
	for (const struct chunk *chunk = command->first; chunk; chunk = chunk->next) {
		uint64_t end = chunk->position + chunk->size;
		if (from >= end)
			continue;
		if (from < chunk->position) {
			ret_piece->dropped += chunk->position - from;
			ret_piece->position = from = chunk->position;
		}
		ret_piece->stream = chunk->stream;
		ret_piece->data = chunk->data + (from - chunk->position);
		ret_piece->size = (size_t)(end - from);
		return;
	}
}

void cell__command_attach(struct cell__command *command, struct cell__command_reader *reader, uint64_t position,
			  void (*wake)(struct cell__command_reader *reader))
{
	*reader = (struct cell__command_reader){
		.command = cell__command_ref(command), .position = position, .wake = wake, .next = command->readers
	};
	if (reader->position > command->total)
		reader->position = command->total;
	command->readers = reader;
	pace(command);
}

void cell__command_took(struct cell__command_reader *reader, uint64_t position)
{
	reader->position = position;
	pace(reader->command);
}

void cell__command_detach(struct cell__command_reader *reader)
{
	struct cell__command *command = cell__take_ptr(reader->command);
	if (!command)
		return;
	struct cell__command_reader **at = &command->readers;
	while (*at != reader)
		at = &(*at)->next;
	*at = reader->next;
	pace(command);
	cell__command_unref(command);
}

/* ---- starting ---- */

int cell__command_check(const struct cell__command_spec *spec, struct cell_error *err)
{
	size_t n = 0, bytes = spec->cwd ? strlen(spec->cwd) : 0;
	if (!spec->argv || !spec->argv[0] || !spec->argv[0][0])
		return cell_fail(err, CELL_E_INVALID, 0, "a command needs a program: argv[0] is missing or empty");
	for (const char *const *at = spec->argv; *at; at++, n++)
		bytes += strlen(*at) + 1;
	for (const char *const *at = spec->env; at && *at; at++, n++) {
		bytes += strlen(*at) + 1;
		if (!strchr(*at, '=') || **at == '=')
			return cell_fail(err, CELL_E_INVALID, 0, "a variable of a command needs a name and a value: %.60s", *at);
	}
	if (n > CELL_COMMAND_STRINGS || bytes > CELL_LIMIT_SPAWN_MESSAGE)
		return cell_fail(err, CELL_E_LIMIT, 0, "arguments and environment of a command are larger than %u bytes or %u strings",
				 CELL_LIMIT_SPAWN_MESSAGE, CELL_COMMAND_STRINGS);
	if (spec->cwd && strlen(spec->cwd) >= PATH_MAX)
		return cell_fail(err, CELL_E_INVALID, 0, "cwd is longer than %d bytes", PATH_MAX - 1);
	if (spec->tag && strlen(spec->tag) > CELL_COMMAND_TAG_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0, "the tag is longer than %u bytes", CELL_COMMAND_TAG_BYTES);
	if (spec->timeout_ms < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "timeout must not be negative");
	return 0;
}

/* Ends a start: with a command that runs, or with an error. */
static void end_start(struct cell__command *command, const struct cell_error *err)
{
	struct starting *starting = cell__take_ptr(command->starting);
	if (!starting)
		return;
	cell__command_ref(command);
	if (err) {
		command->ended = true;
		if (command->session)
			unlist(command);
	}
	starting->done(starting->arg, err ? NULL : command, err);
	free_starting(starting);
	cell__command_unref(command);
}

static void handle_started(void *owner, int64_t pid)
{
	struct cell__command *command = owner;
	command->pid = pid;
	end_start(command, NULL);
}

/* In the words of the one who gave the command. */
static void describe_failure(const struct cell__command *command, const struct cell__process_exit *how, struct cell_error *err)
{
	const struct starting *starting = command->starting;
	const char *program = starting ? starting->argv[0] : "";
	if (how->failure.code)
		*err = how->failure;
	else if (how->bad_cwd)
		cell_fail(err, CELL_E_INVALID, how->error, "enter the command's folder %.160s", command->cwd);
	else if (how->error == ENOENT || how->error == ENOTDIR)
		cell_fail(err, CELL_E_NOT_FOUND, how->error, "the session has no program %.160s", program);
	else if (how->error == EACCES || how->error == ENOEXEC || how->error == ELOOP || how->error == ENAMETOOLONG)
		cell_fail(err, CELL_E_INVALID, how->error, "run %.160s", program);
	else if (how->error == E2BIG)
		cell_fail(err, CELL_E_LIMIT, how->error, "the command's arguments and environment are too large");
	else if (how->error == EAGAIN || how->error == ENOMEM)
		cell_fail(err, CELL_E_LIMIT, how->error, "the session has no room for another process (its limits apply to commands too)");
	else if (how->error == ESRCH)
		cell_fail(err, CELL_E_KERNEL, 0, "the session's kernel has ended; try again");
	else
		cell_fail(err, CELL_E_KERNEL, how->error, "start the command");
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct cell__command *command = owner;
	struct cell_session *session = command->session;
	command->process = NULL;
	command->far = NULL;
	if (how->error && command->starting) {
		struct cell_error err = { 0 };
		describe_failure(command, how, &err);
		end_start(command, &err);
	} else {
		command->ended = true;
		command->ended_us = cell__now_us();
		command->how = *how;
		if (how->error) { /* the spawner has ended, and with it everything */
			command->how.signalled = true;
			command->how.status = SIGKILL;
			command->reason = "session";
		}
		if (how->timed_out)
			command->reason = "timeout";
		end_start(command, NULL);
		wake_readers(command);
		if (session && command->session == session) {
			cell__session_written_on_loop(session);
			tidy(session);
		}
	}
	cell__command_unref(command);
}

/* The session's environment with the given variables, which come later and so override; NULL-terminated.  Borrows all strings. */
static const char **join_env(const char *const *own, const char *const *given)
{
	size_t n = 0, m = 0;
	while (own[n])
		n++;
	while (given && given[m])
		m++;
	const char **all = cell__alloc(n + m + 1, sizeof *all);
	if (!all)
		return NULL;
	size_t at = 0;
	for (size_t i = 0; i < n + m; i++) {
		const char *entry = i < n ? own[i] : given[i - n];
		size_t name = strcspn(entry, "=") + 1, k = 0;
		while (k < at && strncmp(all[k], entry, name) != 0)
			k++;
		all[k] = entry;
		at += k == at;
	}
	all[at] = NULL;
	return all;
}

static const char *path_of(const char *const *env)
{
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			return *env + 5;
	return "/usr/local/bin:/usr/bin:/bin";
}

/* "a/b" in "/work": "/work/a/b"; free() it. */
static char *place_in(const char *folder, const char *path)
{
	struct cell__buf text = CELL_BUF_INIT;
	if (!path || !path[0])
		return cell__strdup(folder);
	if (path[0] == '/')
		return cell__strdup(path);
	return cell__buf_printf(&text, "%s/%s", folder, path) < 0 ? NULL : cell__buf_take(&text);
}

static struct cell__process_spec process_spec(struct cell__command *command)
{
	const struct starting *starting = command->starting;
	return (struct cell__process_spec){
		.argv = (const char *const *)starting->argv,
		.timeout_ms = starting->spec.timeout_ms > 0 ? starting->spec.timeout_ms : -1,
		.linger_ms = LINGER_MS,
		.want_stdin = starting->spec.want_stdin || starting->spec.tty,
		.want_tty = starting->spec.tty,
		.rows = starting->spec.rows ? starting->spec.rows : 24,
		.cols = starting->spec.cols ? starting->spec.cols : 80,
		.started = handle_started,
		.output = handle_output,
		.lost = handle_lost,
		.exited = handle_exited,
		.owner = command,
	};
}

/* The server that has the session's code knows its variables and its folder. */
static int launch_there(struct cell__command *command, struct cell_error *err)
{
	struct cell_session *session = command->session;
	struct cell__process_spec spec = process_spec(command);
	spec.env = command->starting->spec.env;
	spec.cwd = command->cwd;
	cell__command_ref(command);
	int rc = session->executor->command(session->slot->kernel, &spec, &command->far, err);
	if (rc < 0)
		cell__command_unref(command);
	return rc;
}

/* Variables of a program that its session's code has too: PATH with the packages' own programs, HOME, the way to the proxy. */
static int launch(struct cell__command *command, struct cell_error *err)
{
	struct starting *starting = command->starting;
	struct cell_session *session = command->session;
	const struct cell__executor *executor = session->executor;
	CELL_AUTO_FREE const char **own = NULL, **env = NULL;
	CELL_AUTO_FREE char *path = NULL;
	struct cell__kernel_place place = { 0 };
	int rc = -1;
	if (executor->command)
		return launch_there(command, err);
	if (cell__slot_env(session->slot, &own, &path, err) < 0)
		return -1;
	const char *const *base = own ? (const char *const *)own : (const char *const *)session->options.env;
	if (executor->place(session->slot->kernel, base, &place, err) < 0)
		return -1;
	env = join_env(place.env ? (const char *const *)place.env : base, starting->spec.env);
	CELL_AUTO_FREE char *given = cell__take_ptr(command->cwd);
	command->cwd = place_in(place.cwd ? place.cwd : session->options.cwd, given);
	if (!env || !command->cwd) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a command");
	} else {
		struct cell__process_spec spec = process_spec(command);
		spec.env = env;
		spec.path = path_of(env);
		spec.cwd = command->cwd;
		spec.kernel = place.kernel;
		spec.confine = place.confine;
		cell__command_ref(command);
		rc = cell__process_start(&session->engine->supervisor, &spec, &command->process, err);
		if (rc < 0)
			cell__command_unref(command);
	}
	cell__confinement_unref(place.confine);
	free(place.env);
	return rc;
}

/* Started by a client, with its rights: that is recorded before it begins. */
static int record(struct cell__command *command, struct cell_error *err)
{
	struct cell_session *session = command->session;
	if (!session->options.audit)
		return 0;
	json_t *args = json_pack("{s:O, s:s?, s:s?}", "argv", command->argv, "cwd", command->cwd, "tag", command->tag);
	struct cell__audit_record entry = { .session_id = session->id,
					    .kind = "command",
					    .tool = "session",
					    .callable = "command",
					    .adapter = "kernel",
					    .executor = session->executor->name,
					    .principal = cell__principal_word(&command->starting->principal),
					    .client = *command->starting->principal.name ? command->starting->principal.name : NULL,
					    .args = args,
					    .decision = CELL__AUDIT_ALLOW,
					    .by = CELL__AUDIT_BY_HOST };
	int rc = args ? cell__audit_admit(cell__audit_of(session->options.audit), err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0)
		rc = cell__audit_write(cell__audit_of(session->options.audit), &entry, NULL, NULL, err);
	json_decref(args);
	return rc;
}

/* Its kernel is ready, or cannot be started. */
static void handle_kernel(struct cell__waiting *waiting)
{
	struct starting *starting = (struct starting *)waiting;
	struct cell__command *command = starting->command;
	struct cell_session *session = waiting->session;
	struct cell_error err = waiting->err;
	bool failed = waiting->failed;
	session->filing--;
	if (!failed && !command->session)
		failed = cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed") < 0;
	if (!failed && !session->slot)
		failed = cell_fail(&err, CELL_E_KERNEL, 0, "the session's kernel has ended; try again") < 0;
	if (failed || record(command, &err) < 0 || launch(command, &err) < 0)
		end_start(command, &err);
}

static bool is_text(const char *const *strings)
{
	for (; strings && *strings; strings++)
		if (!cell__utf8_ok(*strings, strlen(*strings)))
			return false;
	return true;
}

static json_t *words_of(const char *const *argv)
{
	json_t *words = json_array();
	for (; words && *argv; argv++)
		if (json_array_append_new(words, json_string(*argv)) < 0) {
			json_decref(words);
			return NULL;
		}
	return words;
}

static struct cell__command *make_command(struct cell_session *session, const struct cell__command_spec *spec, cell__command_done done,
					  void *arg)
{
	struct cell__command *command = cell__alloc(1, sizeof *command);
	struct starting *starting = cell__alloc(1, sizeof *starting);
	static const char *const none[] = { NULL };
	if (!command || !starting) {
		free(command);
		free(starting);
		return NULL;
	}
	*command = (struct cell__command){ .refs = 1,
					   .argv = words_of(spec->argv),
					   .tag = spec->tag ? cell__strdup(spec->tag) : NULL,
					   .tty = spec->tty,
					   .has_stdin = spec->want_stdin || spec->tty,
					   .blocks = spec->blocks,
					   .started_s = (int64_t)time(NULL),
					   .starting = starting };
	cell__random_hex(command->id, 16);
	*starting = (struct starting){ .waiting.session = session,
				       .waiting.done = handle_kernel,
				       .command = command,
				       .argv = cell__strings_copy(spec->argv),
				       .env = cell__strings_copy(spec->env ? spec->env : none),
				       .spec = *spec,
				       .principal = spec->principal ? *spec->principal : cell__principal_host,
				       .done = done,
				       .arg = arg };
	starting->spec.env = (const char *const *)starting->env;
	starting->spec.tag = command->tag;
	command->cwd = spec->cwd ? cell__strdup(spec->cwd) : NULL;
	if (command->argv && (command->tag || !spec->tag) && (command->cwd || !spec->cwd) && starting->argv && starting->env)
		return command;
	free_starting(starting);
	cell__command_unref(command);
	return NULL;
}

int cell__command_start(struct cell_session *session, const struct cell__command_spec *spec, cell__command_done done, void *arg,
			struct cell_error *err)
{
	if (!session->executor->place && !session->executor->command)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor %s does not run commands; use subprocess, sandbox, container or remote",
				 session->executor->name);
	if (cell__command_check(spec, err) < 0)
		return -1;
	if (!is_text(spec->argv) || !is_text(spec->env))
		return cell_fail(err, CELL_E_INVALID, 0, "arguments and variables of a command must be UTF-8");
	if (session->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	tidy(session);
	if (cell__commands_running(session) >= CELL_COMMANDS_RUNNING)
		return cell_fail(err, CELL_E_LIMIT, 0, "the session runs %u commands already", CELL_COMMANDS_RUNNING);
	struct cell__command *command = make_command(session, spec, done, arg);
	if (!command)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a command");
	command->session = session;
	command->next = session->commands;
	session->commands = command;
	session->n_commands++;
	session->filing++;
	cell__session_do_need_kernel(&command->starting->waiting.task);
	return 0;
}

/* ---- what a client does with it ---- */

const char *cell__command_id(const struct cell__command *command)
{
	return command->id;
}

int64_t cell__command_pid(const struct cell__command *command)
{
	return command->pid;
}

bool cell__command_has_tty(const struct cell__command *command)
{
	return command->tty;
}

bool cell__command_has_ended(const struct cell__command *command)
{
	return command->ended;
}

int cell__command_status(const struct cell__command *command, int *ret_signal)
{
	if (ret_signal)
		*ret_signal = command->how.signalled ? command->how.status : 0;
	return command->how.signalled ? 128 + command->how.status : command->how.status;
}

const char *cell__command_reason(const struct cell__command *command)
{
	return command->reason;
}

json_t *cell__command_describe(const struct cell__command *command)
{
	char when[32] = "";
	time_t started = (time_t)command->started_s;
	struct tm tm;
	int signal_number = 0, status = cell__command_status(command, &signal_number);
	if (gmtime_r(&started, &tm))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
	json_t *all = json_pack("{s:s, s:I, s:O, s:s?, s:s?, s:b, s:s, s:s, s:I, s:I}", "command_id", command->id, "pid",
				(json_int_t)command->pid, "argv", command->argv, "cwd", command->cwd, "tag", command->tag, "tty",
				command->tty, "state", command->ended ? "ended" : "running", "started_at", when, "output",
				(json_int_t)command->total, "dropped", (json_int_t)command->begin);
	json_object_set_new(all, "exit_code", command->ended ? json_integer(status) : json_null());
	json_object_set_new(all, "signal", command->ended && signal_number ? json_integer(signal_number) : json_null());
	json_object_set_new(all, "reason", command->ended && command->reason ? json_string(command->reason) : json_null());
	return all;
}

json_t *cell__commands_describe(const struct cell_session *session)
{
	json_t *list = json_array();
	tidy((struct cell_session *)session);
	for (const struct cell__command *c = session->commands; c; c = c->next)
		if (!c->starting)
			json_array_insert_new(list, 0, cell__command_describe(c));
	return list;
}

static int check_runs(const struct cell__command *command, struct cell_error *err)
{
	return has_program(command) && !command->ended ? 0 : cell_fail(err, CELL_E_CLOSED, 0, "the command has ended");
}

int cell__command_write(struct cell__command *command, const void *bytes, size_t size, struct cell_error *err)
{
	if (check_runs(command, err) < 0)
		return -1;
	if (!command->has_stdin)
		return cell_fail(err, CELL_E_INVALID, 0, "the command was started without stdin");
	size_t waiting = command->far ? command->far->ops->unread(command->far) : cell__process_unread(command->process);
	if (waiting + size > WAITING_STDIN)
		return cell_fail(err, CELL_E_LIMIT, 0, "the command does not read: at most %u bytes wait for it", WAITING_STDIN);
	if (command->far)
		return command->far->ops->write(command->far, bytes, size, err);
	return cell__process_write(command->process, bytes, size, err);
}

int cell__command_close_stdin(struct cell__command *command, struct cell_error *err)
{
	if (check_runs(command, err) < 0)
		return -1;
	if (!command->has_stdin)
		return cell_fail(err, CELL_E_INVALID, 0, "the command was started without stdin");
	if (command->far)
		command->far->ops->close_stdin(command->far);
	else
		cell__process_close_stdin(command->process);
	return 0;
}

static const struct {
	const char *name;
	int number;
} signals[] = {
	{ "HUP", SIGHUP },   { "INT", SIGINT },   { "QUIT", SIGQUIT }, { "KILL", SIGKILL }, { "USR1", SIGUSR1 },   { "USR2", SIGUSR2 },
	{ "TERM", SIGTERM }, { "CONT", SIGCONT }, { "STOP", SIGSTOP }, { "TSTP", SIGTSTP }, { "WINCH", SIGWINCH },
};

int cell__command_signal_number(const char *name)
{
	char *end;
	long number = strtol(name, &end, 10);
	if (strncasecmp(name, "SIG", 3) == 0)
		name += 3;
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (strcasecmp(name, signals[i].name) == 0 || (*name && !*end && number == signals[i].number))
			return signals[i].number;
	return 0;
}

int cell__command_signal(struct cell__command *command, int signal_number, struct cell_error *err)
{
	if (check_runs(command, err) < 0)
		return -1;
	if (signal_number == SIGKILL) {
		command->reason = "killed";
		kill_program(command);
		command->paused = false;
	} else if (command->far) {
		command->far->ops->signal(command->far, signal_number);
	} else {
		cell__process_signal(command->process, signal_number, true);
	}
	return 0;
}

int cell__command_resize(struct cell__command *command, unsigned short rows, unsigned short cols, struct cell_error *err)
{
	if (check_runs(command, err) < 0)
		return -1;
	if (rows == 0 || cols == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "rows and cols of a terminal must be at least 1");
	if (!command->far)
		return cell__process_resize(command->process, rows, cols, err);
	if (!command->tty)
		return cell_fail(err, CELL_E_INVALID, 0, "the command has no terminal");
	command->far->ops->resize(command->far, rows, cols);
	return 0;
}

void cell__command_drop(struct cell__command *command)
{
	if (has_program(command))
		(void)cell__command_signal(command, SIGKILL, NULL);
	if (command->session && !command->starting)
		unlist(command);
}

/* ---- for the session ---- */

void cell__commands_end(struct cell_session *session)
{
	for (struct cell__command *c = session->commands; c; c = c->next) {
		if (!has_program(c))
			continue;
		if (!c->reason)
			c->reason = "session";
		c->paused = false;
		kill_program(c);
	}
}

void cell__commands_forget(struct cell_session *session)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
	while (session->commands) {
		struct cell__command *command = cell__command_ref(session->commands);
		if (command->process) {
			cell__process_abandon(cell__take_ptr(command->process));
			cell__command_unref(command);
		} else if (command->far) {
			command->far->ops->abandon(cell__take_ptr(command->far));
			cell__command_unref(command);
		}
		end_start(command, &err);
		if (!command->ended) {
			command->ended = true;
			command->ended_us = cell__now_us();
			command->how = (struct cell__process_exit){ .signalled = true, .status = SIGKILL };
			command->reason = "session";
		}
		if (command->session)
			unlist(command);
		wake_readers(command);
		cell__command_unref(command);
	}
}
