/*
 * The `workcell` program: a thin layer over include/workcell.h, one file a command.
 *
 * A command is a const struct.  Its flag table is the only description of its flags: cell__cli_parse() reads
 * the arguments by it and prints `--help` from it, defaults included, so the two cannot drift apart.
 *
 *     main.c        the table of commands
 *     opts.c        flags, errors      help.c   help, manual pages, completions
 *     signals.c     signals, interrupting, stopping
 *     paths.c       paths, files and interpreters as people name them
 *     space.c       the space that the common flags describe      session.c   the session
 *     verbs.c       commands with several operations on a space   arguments.c   their K=V
 *     envfile.c     --env-file      limits.c, listen.c   flags that servers share      client.c   a server, for its operators
 *     output.c      lines and tables      print.c   events and results      approve.c   questions
 *     cmd_run.c     `run`, and the running of one cell
 *     cmd_*         each of the other commands; cmd_serve_config.c   the sources of `serve`'s arguments
 *
 * Threads: the main thread parses, runs cells and does all the writing.  One signal thread interrupts and
 * stops (signals.c); `run --cells` reads its input on another.  Functions belong to the main thread unless
 * marked "any thread".
 */
#ifndef CELL_CLI_H
#define CELL_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/base.h"
#include "workcell.h"

/* A cell's status: it ended the run with sys.exit(0). */
#define CELL_CLI_EXITED 256
/* Code of one cell, from a file, from stdin or from one line of `run --cells`. */
#define CELL_CLI_MAX_CODE_BYTES (64u * 1024u * 1024u)
/* Output of background threads that waits for the main thread to print it; more than this is dropped. */
#define CELL_CLI_MAX_LATE_BYTES (1024u * 1024u)

/* ---- commands and flags (opts.c) ---------------------------------------- */

enum cell_cli_kind {
	CELL_FLAG_SWITCH = 1, /* bool */
	CELL_FLAG_STRING,     /* const char * */
	CELL_FLAG_COUNT,      /* int64_t: a whole number from 0 */
	CELL_FLAG_BYTES,      /* int64_t: a whole number, may end in k, M or G */
	CELL_FLAG_CPUS,       /* int64_t in microseconds per 100 ms: a number of CPUs, like 1.5 */
	CELL_FLAG_SECONDS,    /* int64_t in milliseconds; 0 as given means no limit and becomes -1 */
	CELL_FLAG_LIST,       /* struct cell_cli_list: may be repeated */
	CELL_FLAG_GROUP,      /* no flag: `help` is the heading of those that follow; with a letter, -h shows them too */
};

struct cell_cli_flag {
	char letter;        /* 0: none */
	const char *name;   /* without the dashes; NULL: only a letter */
	const char *arg;    /* the argument's name in --help; NULL for a switch */
	const char *help;   /* NULL: another name of the flag with the same offset, for old scripts; not shown */
	enum cell_cli_kind kind;
	size_t offset;      /* of the value, in the struct given to cell__cli_parse() */
};
#define CELL_CLI_GROUP(title) { 0, NULL, NULL, title, CELL_FLAG_GROUP, 0 }
#define CELL_CLI_SHORT_GROUP(title) { 'h', NULL, NULL, title, CELL_FLAG_GROUP, 0 }

/* Arguments in the order given.  The strings are argv's. */
struct cell_cli_list {
	struct cell_cli_item {
		char letter; /* of the flag; 0: an operand */
		const char *value;
	} *items;
	size_t count, room;
};

struct cell_cli_command {
	const char *name;
	const char *summary;  /* one line */
	const char *synopsis; /* the text after the name in `usage:` */
	const char *about;
	const char *examples;
	const struct cell_cli_flag *flags; /* ends with kind 0; --help needs no row */
	const char *behind; /* advice where a flag behind an operand is unknown; may be NULL */
	const char *verbs; /* its subcommands, for completions: "list show"; may be NULL */
	int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
};

int cell__cmd_run(int argc, char **argv);
int cell__cmd_shell(int argc, char **argv);
int cell__cmd_doctor(int argc, char **argv);
int cell__cmd_sandbox(int argc, char **argv);
int cell__cmd_tools(int argc, char **argv);
int cell__cmd_workflows(int argc, char **argv);
int cell__cmd_artifacts(int argc, char **argv);
int cell__cmd_deps(int argc, char **argv);
int cell__cmd_cache(int argc, char **argv);
int cell__cmd_saved(int argc, char **argv);
int cell__cmd_models(int argc, char **argv);
int cell__cmd_policy(int argc, char **argv);
int cell__cmd_audit(int argc, char **argv);
int cell__cmd_gen(int argc, char **argv);
int cell__cmd_mcp(int argc, char **argv);
int cell__cmd_store(int argc, char **argv);
int cell__cmd_serve(int argc, char **argv);
int cell__cmd_console(int argc, char **argv);
int cell__cmd_container(int argc, char **argv);
int cell__cmd_ps(int argc, char **argv);
int cell__cmd_top(int argc, char **argv);
int cell__cmd_kill(int argc, char **argv);
int cell__cmd_logs(int argc, char **argv);
int cell__cmd_attach(int argc, char **argv);
int cell__cmd_files(int argc, char **argv);
int cell__cmd_exec(int argc, char **argv);
int cell__cmd_batch(int argc, char **argv);
int cell__cmd_jupyter(int argc, char **argv);
int cell__cmd_replay(int argc, char **argv);
int cell__cmd_notebook(int argc, char **argv);

extern const struct cell_cli_command cell__cli_run_command;
extern const struct cell_cli_command cell__cli_shell_command;
extern const struct cell_cli_command cell__cli_doctor_command;
extern const struct cell_cli_command cell__cli_sandbox_command;
extern const struct cell_cli_command cell__cli_tools_command;
extern const struct cell_cli_command cell__cli_workflows_command;
extern const struct cell_cli_command cell__cli_artifacts_command;
extern const struct cell_cli_command cell__cli_deps_command;
extern const struct cell_cli_command cell__cli_cache_command;
extern const struct cell_cli_command cell__cli_saved_command;
extern const struct cell_cli_command cell__cli_models_command;
extern const struct cell_cli_command cell__cli_policy_command;
extern const struct cell_cli_command cell__cli_audit_command;
extern const struct cell_cli_command cell__cli_gen_command;
extern const struct cell_cli_command cell__cli_mcp_command;
extern const struct cell_cli_command cell__cli_store_command;
extern const struct cell_cli_command cell__cli_serve_command;
extern const struct cell_cli_command cell__cli_console_command;
extern const struct cell_cli_command cell__cli_container_command;
extern const struct cell_cli_command cell__cli_ps_command;
extern const struct cell_cli_command cell__cli_top_command;
extern const struct cell_cli_command cell__cli_kill_command;
extern const struct cell_cli_command cell__cli_logs_command;
extern const struct cell_cli_command cell__cli_attach_command;
extern const struct cell_cli_command cell__cli_files_command;
extern const struct cell_cli_command cell__cli_exec_command;
extern const struct cell_cli_command cell__cli_batch_command;
extern const struct cell_cli_command cell__cli_jupyter_command;
extern const struct cell_cli_command cell__cli_replay_command;
extern const struct cell_cli_command cell__cli_notebook_command;
/* Another program parses its arguments and prints its --help. */
extern const struct cell_cli_command cell__cli_bench_command;

/*
 * Fills *values, which holds the defaults, from the arguments. Operands go to `operands`, in order with the flags that share the list;
 * NULL: the command takes no operands. False: there is nothing to run, because help was printed or the arguments are wrong (which has been
 * reported); *ret_status is the exit status.
 */
bool cell__cli_parse(const struct cell_cli_command *command, int argc, char **argv, void *values, struct cell_cli_list *operands,
		     int *ret_status);
/* Checks a key of a configuration file, which is a flag's name, and its value; NULL: a switch that is on. */
int cell__cli_check_setting(const struct cell_cli_command *command, const char *key, const char *value, struct cell_error *err);
/* The values, NULL-terminated; the list owns the strings. free() the array. NULL: out of memory. */
const char **cell__cli_list_values(const struct cell_cli_list *list);
void cell__cli_list_finish(struct cell_cli_list *list);

/* ---- help (help.c) -------------------------------------------------------- */

/* Whether colours may be written to this descriptor: a terminal, and neither NO_COLOR nor TERM=dumb. */
bool cell__cli_colours(int fd);
/* whole: --help; else -h, without groups that have no letter. values has the defaults. */
void cell__cli_print_help(const struct cell_cli_command *command, const void *values, bool whole);
void cell__cli_print_man(const struct cell_cli_command *command, const void *values);
/* Lists of commands end with NULL. */
void cell__cli_print_man_overview(const struct cell_cli_command *const *commands);
int cell__cli_print_completion(const char *shell, const struct cell_cli_command *const *commands, struct cell_error *err);
/* Whether the value is one of the words that the flag takes, if it takes only some. */
int cell__cli_check_choice(const struct cell_cli_flag *flag, const char *value, struct cell_error *err);
/* "Did you mean": NULL when nothing is close. */
const char *cell__cli_nearest_flag(const struct cell_cli_command *command, const char *name);
const char *cell__cli_nearest_command(const struct cell_cli_command *const *commands, const char *name);

/* ---- errors (opts.c) ---------------------------------------------------- */

/*
 * Prints `workcell: WORD: message` on stderr, with json also an object on stdout; returns the exit status. If the error is that of the last
 * operation on a space, prints its whole message, which may be many lines.
 */
int cell__cli_report(const struct cell_error *err, bool json);
/* {"error": {"code", "message"}} as one line without the newline; free() it.  NULL: out of memory. */
char *cell__cli_error_json(const struct cell_error *err);

/* ---- paths, files and interpreters (paths.c) ----------------------------- */

/* $XDG_STATE_HOME/workcell/NAME (default ~/.local/state), with its folders made; free() it. NULL: no place for it. */
/* The folder of models, or of one; NULL: there is none.  free() it. */
char *cell__cli_models_dir(const char *name);
char *cell__cli_state_path(const char *name);
/* free() it; NULL: *err has the reason. */
char *cell__cli_absolute(const char *path, struct cell_error *err);
/* Fails unless path is a folder; `flag` names it in the message. */
int cell__cli_check_dir(const char *flag, const char *path, struct cell_error *err);
/* The interpreter's absolute path, symlinks kept because a venv is one; free() it.  name NULL: python3. */
int cell__cli_find_python(const char *name, char **ret_path, struct cell_error *err);
/* The same for --python and --python-version, of which at most one is given. */
int cell__cli_choose_python(const char *name, const char *version, char **ret_path, struct cell_error *err);
/* Makes a folder and those above it that are missing; path is changed meanwhile. */
int cell__cli_make_folders(char *path, mode_t mode, struct cell_error *err);
/* All of a file, or of stdin for "-", at most CELL_CLI_MAX_CODE_BYTES, with a NUL behind it; free() it. */
int cell__cli_read_file(const char *path, char **ret_text, size_t *ret_size, struct cell_error *err);

/* ---- the space of the common flags (space.c) ------------------------------ */

struct cell_cli_space_flags {
	const char *base;
	const char *storage;
	const char *redis;
	const char *prefix;
	const char *workspace;
	const char *tools;
	const char *index_url;
	const char *wheel_dir;
	const char *python_version;
	const char *venv_dir;
	int64_t install_timeout_ms; /* 0: as the library has it */
	bool no_runtime_deps, no_cache_venv, cleanup_venv, sync_deps, quiet, tools_from_storage, confined;
	bool reads; /* not a flag: the command only reads, so the storage must exist */
	const char *embeddings;
	const char *embeddings_url;
	const char *embeddings_model;
	const char *embeddings_key_env;
	const char *env_file;
};

/* The rows of a flag table; `at` is the offset of the struct above. */
#define CELL_CLI_SPACE_AT(at, member) ((at) + offsetof(struct cell_cli_space_flags, member))
/* clang-format off */
#define CELL_CLI_SPACE_FLAGS(at)                                                          \
	{ 0, "base", "DIR", "short for --storage DIR --tools DIR/tools",                  \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, base) },                                \
	{ 0, "storage", "DIR|URL", "workflows, artifacts and deps: a folder (created if missing) or redis://...", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, storage) },                             \
	{ 0, "redis", "URL", "use storage in Redis: redis://[user:password@]host[:port][/db], or env:NAME", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, redis) },                               \
	{ 0, "prefix", "P", "prefix of the keys in Redis",                                       \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, prefix) },                              \
	{ 0, "workspace", "ID", "use the workflows and artifacts of this workspace", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, workspace) },                           \
	{ 0, "tools", "DIR", "tool definitions, *.yaml",                                  \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, tools) },                               \
	{ 0, "tools-from-storage", NULL, "also load tools from Redis: anyone who can write there can run commands here", \
	  CELL_FLAG_SWITCH, CELL_CLI_SPACE_AT(at, tools_from_storage) },                  \
	{ 0, "env-file", "FILE", "NAME=value lines for ${NAME} in tool definitions; the environment wins", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, env_file) }
/* clang-format on */
/* clang-format off */
#define CELL_CLI_DEPS_FLAGS(at)                                                           \
	{ 0, "no-runtime-deps", NULL, "refuse deps.add and deps.remove",                  \
	  CELL_FLAG_SWITCH, CELL_CLI_SPACE_AT(at, no_runtime_deps) },                     \
	{ 0, "index-url", "URL", "install packages from this index",                      \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, index_url) },                           \
	{ 0, "wheel-dir", "DIR", "install packages from the files in this folder only",   \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, wheel_dir) },                           \
	{ 0, "python-version", "X.Y", "the interpreter pythonX.Y on $PATH, instead of --python", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, python_version) },                      \
	{ 0, "venv-dir", "DIR", "install packages into a venv there (default: one under the user's cache)", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, venv_dir) },                            \
	{ 0, "install-timeout", "SEC", "time limit of pip or uv, in seconds; 0: none",               \
	  CELL_FLAG_SECONDS, CELL_CLI_SPACE_AT(at, install_timeout_ms) }
/* clang-format on */
/* clang-format off */
#define CELL_CLI_VENV_FLAGS(at)                                                           \
	{ 0, "sync-deps", NULL, "first install missing packages of requirements.txt", \
	  CELL_FLAG_SWITCH, CELL_CLI_SPACE_AT(at, sync_deps) },                           \
	{ 0, "no-cache-venv", NULL, "install packages into a private venv, removed when the session ends", \
	  CELL_FLAG_SWITCH, CELL_CLI_SPACE_AT(at, no_cache_venv) },                       \
	{ 0, "cleanup-venv", NULL, "remove the venv at the end if Workcell created it",    \
	  CELL_FLAG_SWITCH, CELL_CLI_SPACE_AT(at, cleanup_venv) }
/* clang-format on */
/* clang-format off */
#define CELL_CLI_MODEL "bge-small-en-v1.5" /* of --embeddings builtin */
#define CELL_CLI_EMBEDDINGS_FLAGS(at)                                                     \
	{ 0, "embeddings", "builtin|NAME", "also search by meaning, with a model of `workcell models` in this process", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, embeddings) },                          \
	{ 0, "embeddings-url", "URL", "also search by meaning, with this OpenAI-compatible .../v1/embeddings", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, embeddings_url) },                      \
	{ 0, "embeddings-model", "NAME", "the model for the embeddings",           \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, embeddings_model) },                    \
	{ 0, "embeddings-key-env", "VAR", "the environment variable with the endpoint's key", \
	  CELL_FLAG_STRING, CELL_CLI_SPACE_AT(at, embeddings_key_env) }
/* clang-format on */
#define CELL_CLI_SPACE_FLAGS_INIT { .install_timeout_ms = cell__cli_space_defaults.install_timeout_ms }
extern const struct cell_space_options cell__cli_space_defaults;

/* The folder for environments of packages; free() it. NULL: neither XDG_CACHE_HOME nor HOME is an absolute path. */
char *cell__cli_cache_dir(void);
/* Whether it is the URL of a Redis server, not a folder. */
bool cell__cli_is_redis(const char *place);
/*
 * A storage as the library expects it: an absolute folder, or the URL, with this prefix unless it is NULL. "env:NAME" stands for the value
 * of that environment variable. redis: it must be a URL. free() it.
 */
char *cell__cli_storage(const char *storage, const char *prefix, bool redis, struct cell_error *err);
/* The URL with key=value in its query; free() it.  NULL: out of memory. */
char *cell__cli_with_option(const char *url, const char *key, const char *value);
bool cell__cli_has_storage(const struct cell_cli_space_flags *flags);
/* Do the flags describe a space at all? */
bool cell__cli_has_space(const struct cell_cli_space_flags *flags);
/*
 * Call before the engine of a space is created: its log goes to stderr, from this level on; level NULL: warnings, if there is an endpoint
 * that they can concern.
 */
int cell__cli_space_log(const struct cell_cli_space_flags *flags, const char *level, struct cell_engine_options *options,
			struct cell_error *err);
/* python and cwd may be NULL; both are absolute paths. */
int cell__cli_space_create(const struct cell_cli_space_flags *flags, struct cell_engine *engine, const char *python, const char *cwd,
			   struct cell_space **ret_space, struct cell_error *err);
/*
 * One operation; takes over args, which is NULL only if it could not be allocated. *ret_text is the answer's text and *ret_answer the same
 * parsed; either may be NULL.
 */
int cell__cli_call(struct cell_space *space, const char *method, json_t *args, char **ret_text, json_t **ret_answer,
		   struct cell_error *err);
/* One operation, whose answer is printed: its text if json is set, else by `print`. */
int cell__cli_answer(struct cell_space *space, const char *method, json_t *args, bool json,
		     int (*print)(const json_t *answer, struct cell_error *err), struct cell_error *err);
/* Removes the objects named by the operands after the first, one after another; with json prints their names. */
int cell__cli_remove(struct cell_space *space, const struct cell_cli_list *operands, bool json,
		     int (*remove)(struct cell_space *space, const char *name, struct cell_error *err), struct cell_error *err);
/* The same as cell__cli_call() with bytes both ways. */
int cell__cli_call_raw(struct cell_space *space, const char *method, json_t *args, const void *raw, size_t raw_size, char **ret_text,
		       void **ret_raw, size_t *ret_raw_size, struct cell_error *err);

/* Tools that are left out because their definitions have problems are named on stderr, with file and line. */
void cell__cli_warn_tools(struct cell_space *space);

/* A subcommand. */
struct cell_cli_verb {
	const char *name;
	const char *operands; /* as in the usage line */
	size_t min, max; /* how many of them */
	bool writes; /* the storage is created if it is missing; its parent must exist */
	/* operands[0] is the verb; answers the exit status, or a negative value. */
	int (*run)(const void *flags, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err);
};
/* A command with several operations, once its flags are read. */
struct cell_cli_job {
	const char *command;
	const struct cell_cli_verb *verbs;
	const void *flags; /* for the operation */
	const struct cell_cli_space_flags *space; /* NULL: no operation needs one */
	const char *alone; /* the operation that opens its own resources, with space NULL; may be NULL */
	bool installs; /* for the interpreter of --python or --python-version */
	const char *python; /* may be NULL */
	const char *cwd; /* may be NULL */
	bool needs_storage; /* refuse flags without a storage */
	bool json;
};
/* Finds the operation that the operands name, opens the space, runs it and reports; answers the exit status. */
int cell__cli_do(const struct cell_cli_job *job, const struct cell_cli_list *operands);
/* An operation failed: keeps its message for cell__cli_whole_message(). */
void cell__cli_keep_message(struct cell_answer *answer);
/* The last operation's message, if *err is its error and begins it; else NULL. */
const char *cell__cli_whole_message(const struct cell_error *err);
/* A copy of the first line, without terminal control characters; free() it. NULL: out of memory. */
char *cell__cli_plain(const char *text);
/* Prints a text on a line of stderr, without terminal control characters. */
void cell__cli_note(const char *text);
/*
 * The arguments of a callable: an object, from --args (may be NULL) and operands K=V from index `first` on. `parameters` is the array that
 * describes them, [{name, type, ...}]; the value of a K without a description is JSON if it parses, else text.
 */
int cell__cli_arguments(const char *args, const struct cell_cli_list *operands, size_t first, const json_t *parameters, json_t **ret_args,
			struct cell_error *err);
/* Prints text that code may have made: unchanged to a file or a pipe, without control characters to a terminal. */
void cell__cli_show(const char *text, size_t size);
/* A text on a line of stdout. */
void cell__cli_line(const char *text);
/* A JSON value on a line of stdout. */
int cell__cli_print_json(const json_t *value, struct cell_error *err);
/* A string member of an object; "" if it is missing. */
/* Bytes as JSON has them; NULL: out of memory. */
json_t *cell__cli_base64(const unsigned char *data, size_t size);
const char *cell__cli_text(const json_t *object, const char *key);

/* Rows of texts, printed in columns of the needed width; the last column has no width. */
#define CELL_CLI_MAX_COLUMNS 12
struct cell_cli_table {
	size_t columns;
	size_t width; /* of the screen: longer lines, and texts that leave too little for others, are cut and marked; 0: nothing is cut */
	char **cells;
	size_t count, room; /* of cells */
	bool failed; /* out of memory */
};
/* One row; each text is copied up to its first line end, control characters are left out. */
void cell__cli_table_add(struct cell_cli_table *table, const char *const *texts);
/* Prints and frees. */
int cell__cli_table_print(struct cell_cli_table *table, struct cell_error *err);
/*
 * The answer of a `check`: [{"file", "line", "message"}] as JSON, or FILE:LINE: message for each.  Takes text and problems, which
 * are the same; returns the exit status.
 */
int cell__cli_report_problems(char *text, json_t *problems, bool json);

/* ---- variables that are not the environment's (envfile.c) ----------------- */

/* Reads --env-file, once; NULL: not given.  Call before threads are started. */
int cell__cli_load_env_file(const char *path, struct cell_error *err);
/* The value of ${NAME}: the environment's, else the file's; NULL: neither has it. */
const char *cell__cli_getenv(const char *name);
/* All of the file, "NAME=value"; NULL-terminated. */
char *const *cell__cli_env_entries(void);
/*
 * Paths that no sandbox may write to: the folders of PATH, the home folder, and these files ("" is skipped; NULL-terminated). *ret_list
 * begins as NULL; the caller frees it with its strings, also when this fails.
 */
int cell__cli_trusted(const char *const *files, char ***ret_list, struct cell_error *err);
void cell__cli_trusted_free(char **list);

/* ---- the session of the common flags (session.c) ---------------------------- */

/* Sets the callbacks that are asked before a step. */
struct cell_cli_gate_flags {
	const char *approve, *policy, *audit;
	const char *saved, *saved_key_file, *resume, *durable, *record, *saved_form, *saved_host, *saved_url;
	int64_t saved_lease_ms;
	bool shell, installs, workflows, stops_clock, shell_escape, restore_cwd, speculate, save, saved_compress, saved_unsynced,
		saved_points, changes;
	int64_t approval_timeout_ms, undo, points_bytes, allow_fork, fork_memory, fork_time_ms;
};

/* The executor container. */
struct cell_cli_container_flags {
	const char *host, *image, *context, *base, *user, *isolation;
	bool auth_disabled;
	int64_t startup_ms;
};
/* Limits, the same with every executor that can enforce them; with the others they are refused. */
struct cell_cli_limit_flags {
	const char *network;
	bool network_disabled;
	int64_t memory, cpus, pids, disk;
};
#define CELL_CLI_NOT_GIVEN INT64_MIN /* a number that the help shows no default of */
#define CELL_CLI_CONTAINER_FLAGS_INIT { .startup_ms = CELL_CLI_NOT_GIVEN }
#define CELL_CLI_LIMIT_FLAGS_INIT \
	{ .memory = CELL_CLI_NOT_GIVEN, .pids = CELL_CLI_NOT_GIVEN, .cpus = CELL_CLI_NOT_GIVEN, .disk = CELL_CLI_NOT_GIVEN }
#define CELL_CLI_LIMIT_AT(at, member) ((at) + offsetof(struct cell_cli_limit_flags, member))
/* clang-format off */
#define CELL_CLI_LIMIT_FLAGS(at)                                                          \
	{ 0, "network", "WHAT", "none, full; not in a container also deps-only or allow=HOST[:PORT],...", \
	  CELL_FLAG_STRING, CELL_CLI_LIMIT_AT(at, network) },                             \
	{ 0, "memory", "BYTES", "sandbox, container: 0: no limit (default: the policy's; container 512M)", \
	  CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, memory) },                               \
	{ 0, "cpus", "N", "sandbox, container: CPUs, like 1.5; 0: no limit (default: the policy's)", \
	  CELL_FLAG_CPUS, CELL_CLI_LIMIT_AT(at, cpus) },                                  \
	{ 0, "pids", "N", "sandbox, container: processes; 0: no limit (default: the policy's; container 512)", \
	  CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, pids) },                                 \
	{ 0, "disk", "BYTES", "sandbox: in workspace, /tmp and one file; 0: no limit (default: the policy's)", \
	  CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, disk) },                                 \
	{ 0, "network-disabled", NULL, NULL, CELL_FLAG_SWITCH, CELL_CLI_LIMIT_AT(at, network_disabled) }, \
	{ 0, "memory-limit", "BYTES", NULL, CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, memory) }, \
	{ 0, "cpu-quota", "N", NULL, CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, cpus) },      \
	{ 0, "pids-limit", "N", NULL, CELL_FLAG_BYTES, CELL_CLI_LIMIT_AT(at, pids) }
/* clang-format on */
#define CELL_CLI_CONTAINER_AT(at, member) ((at) + offsetof(struct cell_cli_container_flags, member))
/* clang-format off */
#define CELL_CLI_CONTAINER_IMAGE_FLAGS(at)                                                \
	{ 0, "container-host", "URL", "container: the engine, unix:///PATH or tcp://HOST:PORT (default $DOCKER_HOST)", \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, host) },                            \
	{ 0, "image", "NAME", "container: the image (default workcell:VERSION)",          \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, image) },                           \
	{ 0, "container-context", "DIR", "container: source folder with packaging/Dockerfile, to build a missing image", \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, context) },                         \
	{ 0, "container-base", "NAME", "container: base image of the build (default debian:bookworm-slim)", \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, base) }
/* clang-format on */
/* clang-format off */
#define CELL_CLI_CONTAINER_FLAGS(at)                                                      \
	{ 0, "container-user", "UID:GID", "container: user that runs the code (default: you, or 10001:10001)", \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, user) },                            \
	{ 0, "isolation", "HOW", "container per executor (default) or session; pod per workspace or session", \
	  CELL_FLAG_STRING, CELL_CLI_CONTAINER_AT(at, isolation) },                       \
	{ 0, "startup-timeout", "SEC", "container, kubernetes: seconds to wait for a server or an idle pod (default 60)", \
	  CELL_FLAG_SECONDS, CELL_CLI_CONTAINER_AT(at, startup_ms) }
/* clang-format on */
/* The executor kubernetes. */
struct cell_cli_kubernetes_flags {
	const char *api, *token_file, *ca_file, *kubeconfig, *context, *in_namespace, *pool, *warm_pool, *pool_key_file, *runtime_class;
	int64_t port;
};
#define CELL_CLI_KUBERNETES_AT(at, member) ((at) + offsetof(struct cell_cli_kubernetes_flags, member))
/* clang-format off */
#define CELL_CLI_KUBERNETES_FLAGS(at)                                                     \
	{ 0, "pool-key-file", "FILE", "kubernetes: the key that the tokens of the pool's pods are made with", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, pool_key_file) },                  \
	{ 0, "pod-pool", "NAME", "kubernetes: claim pods with this label workcell.pool (default workcell)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, pool) },                           \
	{ 0, "sandbox-warm-pool", "NAME", "kubernetes: claim sandboxes of this SandboxWarmPool (agent-sandbox) instead", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, warm_pool) },                      \
	{ 0, "pod-namespace", "NAME", "kubernetes: their namespace (default: the service account's or the context's)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, in_namespace) },                   \
	{ 0, "pod-port", "N", "kubernetes: port of the servers in the pods (default 8080)", \
	  CELL_FLAG_COUNT, CELL_CLI_KUBERNETES_AT(at, port) },                            \
	{ 0, "runtime-class", "NAME", "kubernetes: refuse pods without this runtime class", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, runtime_class) },                  \
	{ 0, "kubeconfig", "FILE", "kubernetes: how to reach it (default: a pod's service account, else $KUBECONFIG)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, kubeconfig) },                     \
	{ 0, "kube-context", "NAME", "kubernetes: a context of the kubeconfig (default: its current one)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, context) },                        \
	{ 0, "kubernetes-api", "URL", "kubernetes: the API server, instead of a kubeconfig", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, api) },                            \
	{ 0, "kubernetes-token-file", "FILE", "kubernetes: the token for it (default: the service account's)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, token_file) },                     \
	{ 0, "kubernetes-ca", "FILE", "kubernetes: CA of the API server, PEM (default: the service account's)", \
	  CELL_FLAG_STRING, CELL_CLI_KUBERNETES_AT(at, ca_file) }
/* clang-format on */
/* Fills *options; *ret_context is memory that it points to, free() it. */
int cell__cli_fill_container(const struct cell_cli_container_flags *flags, struct cell_container_options *options, char **ret_context,
			     struct cell_error *err);

struct cell_cli_session_flags {
	struct cell_cli_space_flags space;
	struct cell_cli_gate_flags gate;
	const char *executor;
	const char *python;
	const char *preload;
	const char *cwd;
	const char *images_dir;
	struct cell_cli_list env;
	int64_t timeout_ms;
	int64_t grace_ms;
	int64_t max_output_bytes;
	int64_t pool;
	const char *sandbox_policy;
	const char *workspace_mode;
	const char *log_level; /* NULL: the engine's log is not shown */
	const char *kernel;
	struct cell_cli_limit_flags limits;
	const char *remote_url, *remote_token_file, *remote_ca;
	bool remote_reopen, remote_repeat;
	struct cell_cli_container_flags container;
	struct cell_cli_kubernetes_flags kubernetes;
	const char *zygote_per; /* of servers */
	int64_t zygote_forks, points_bytes;
	const char *secrets[5]; /* of servers: files with tokens, keys and settings; NULL or "": none */
};

extern const struct cell_session_options cell__cli_session_defaults;
/* Refuses the first flag that this executor would ignore; NULL: subprocess (limits.c). */
int cell__cli_check_executor(const struct cell_cli_session_flags *flags, const char *executor, struct cell_error *err);
/* Files with a server's secrets must not be inside the folder that the code of its sessions sees, writable or not. */
int cell__cli_check_secrets(const struct cell_cli_session_flags *flags, const char *executor, const char *workspace,
			    struct cell_error *err);
void cell__cli_fill_limits(const struct cell_cli_limit_flags *flags, struct cell_session_options *options);
#define CELL_CLI_SESSION_FLAGS_INIT(pool_size)                                        \
	{ .space = CELL_CLI_SPACE_FLAGS_INIT,                                         \
	  .timeout_ms = cell__cli_session_defaults.timeout_ms,                        \
	  .grace_ms = cell__cli_session_defaults.grace_ms,                            \
	  .max_output_bytes = cell__cli_session_defaults.max_output_bytes,            \
	  .pool = (pool_size),                                                        \
	  .gate.approval_timeout_ms = cell__cli_session_defaults.approval_timeout_ms, \
	  .limits = CELL_CLI_LIMIT_FLAGS_INIT,                                        \
	  .container = CELL_CLI_CONTAINER_FLAGS_INIT }

/* The rows of a flag table; `at` is the offset of the struct above. */
#define CELL_CLI_AT(at, member) ((at) + offsetof(struct cell_cli_session_flags, member))
/* clang-format off */
#define CELL_CLI_SESSION_FLAGS(at) CELL_CLI_SESSION_FLAGS_OF(at, "subprocess")
#define CELL_CLI_SESSION_FLAGS_OF(at, default_executor)                                   \
	CELL_CLI_SHORT_GROUP("session"),                                                          \
	{ 0, "executor", "NAME", "where the kernel runs; see `workcell doctor` (default " default_executor ")", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, executor) },                                  \
	{ 0, "python", "PATH", "the interpreter, a path or a name on $PATH (default python3)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, python) },                                    \
	{ 0, "preload", "MODULES", "import these once, before the session: numpy,pandas", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, preload) },                                   \
	{ 0, "cwd", "DIR", "the session's working directory (default: this one)",         \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, cwd) },                                       \
	{ 0, "images-dir", "DIR", "write the PNGs that cells show into this folder; created if missing", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, images_dir) },                                \
	{ 0, "env", "K=V", "set a variable; nothing is inherited; may be repeated",       \
	  CELL_FLAG_LIST, CELL_CLI_AT(at, env) },                                         \
	{ 0, "timeout", "SEC", "time limit of a cell, in seconds; 0: none",                          \
	  CELL_FLAG_SECONDS, CELL_CLI_AT(at, timeout_ms) },                               \
	{ 0, "grace", "SEC", "seconds from a cell's interrupt until its kernel is killed",         \
	  CELL_FLAG_SECONDS, CELL_CLI_AT(at, grace_ms) },                                 \
	{ 0, "max-output", "BYTES", "bytes of output that a result keeps; the rest goes to a file", \
	  CELL_FLAG_BYTES, CELL_CLI_AT(at, max_output_bytes) },                           \
	{ 0, "pool", "N", "number of idle kernels to keep ready",                                      \
	  CELL_FLAG_COUNT, CELL_CLI_AT(at, pool) },                                       \
	CELL_CLI_GROUP("approvals"),                                                              \
	{ 0, "approve", "HOW", "calls that change anything except artifacts: auto, ask or deny (default auto)",            \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.approve) },                              \
	{ 0, "policy", "FILE", "file of rules that allow, ask for or deny calls",                 \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.policy) },                               \
	{ 0, "approve-shell", NULL, "apply --approve to shell commands (it does so by default)",   \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.shell) },                                \
	{ 0, "approve-installs", NULL, "apply --approve to package installs (it does so by default)",                           \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.installs) },                             \
	{ 0, "approve-workflows", NULL, "workflows: likewise",                 \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.workflows) },                            \
	{ 0, "approval-timeout", "SEC", "reject an unanswered request after this many seconds (0: never)", \
	  CELL_FLAG_SECONDS, CELL_CLI_AT(at, gate.approval_timeout_ms) },                 \
	{ 0, "approval-stops-clock", NULL, "--timeout does not count the wait for approvals", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.stops_clock) },                          \
	{ 0, "require-shell-escape", NULL, "let code start processes only with !cmd and similar syntax", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.shell_escape) },                         \
	{ 0, "restore-cwd", NULL, "restore the working directory after each cell",  \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.restore_cwd) },                          \
	{ 0, "undo", "N", "keep the states before the last N cells, for use after a crash", \
	  CELL_FLAG_COUNT, CELL_CLI_AT(at, gate.undo) },                                  \
	{ 0, "points-memory", "SIZE", "drop the oldest kept states when they take more memory", \
	  CELL_FLAG_BYTES, CELL_CLI_AT(at, gate.points_bytes) },                          \
	{ 0, "allow-fork", "N", "let code fork its session and have N children open at a time", \
	  CELL_FLAG_COUNT, CELL_CLI_AT(at, gate.allow_fork) },                            \
	{ 0, "fork-memory", "SIZE", "end the largest child when all children take more memory", \
	  CELL_FLAG_BYTES, CELL_CLI_AT(at, gate.fork_memory) },                           \
	{ 0, "fork-time", "SEC", "end a child after this many seconds (0: no limit)", \
	  CELL_FLAG_SECONDS, CELL_CLI_AT(at, gate.fork_time_ms) },                        \
	{ 0, "changes", NULL, "results name the variables that their cell changed (--json)", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.changes) },                              \
	{ 0, "speculate", NULL, "go on in a copy while a call waits for its approval", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.speculate) },                            \
	{ 0, "saved", "PLACE", "saved sessions: a folder that code cannot write to, redis://... or env:NAME", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.saved) },                                \
	{ 0, "durable", "MODE", "save after each cell: cells (behind its result) or results (before it)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.durable) },                              \
	{ 0, "saved-compress", NULL, "compress saved sessions",                           \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.saved_compress) },                       \
	{ 0, "saved-unsynced", NULL, "do not wait for the disk when a session is saved",  \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.saved_unsynced) },                       \
	{ 0, "saved-points", NULL, "save the states that a session keeps (--undo), too",  \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.saved_points) },                         \
	{ 0, "saved-form", "FORM", "how sessions are saved: image, portable (objects, for another build) or auto", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.saved_form) },                           \
	{ 0, "saved-host", "NAME", "tell others that want a session that is awake here this name", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.saved_host) },                           \
	{ 0, "saved-url", "URL", "and this URL",                                          \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.saved_url) },                            \
	{ 0, "saved-lease", "SEC", "in Redis: give up sessions after this time (default 15)", \
	  CELL_FLAG_SECONDS, CELL_CLI_AT(at, gate.saved_lease_ms) },                      \
	{ 0, "saved-key-file", "FILE", "encrypt saved sessions with the 64 hexadecimal digits in this file", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.saved_key_file) },                       \
	{ 0, "audit", "FILE", "append a JSON line about each call to this file",                    \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, gate.audit) },                                \
	CELL_CLI_GROUP("limits and confinement"),                                                 \
	CELL_CLI_LIMIT_FLAGS(CELL_CLI_AT(at, limits)),                                          \
	{ 0, "sandbox-policy", "NAME", "untrusted, data-science, developer, or a YAML file (default untrusted)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, sandbox_policy) },                            \
	{ 0, "workspace-mode", "MODE", "sandbox: working directory: rw, cow (a layer), ro or none (default: the policy's)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, workspace_mode) },                            \
	CELL_CLI_GROUP("executors"),                                                              \
	{ 0, "kernel", "NAME", "jupyter: a kernelspec (default: ipykernel of --python)",   \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, kernel) },                                    \
	{ 0, "remote-url", "URL", "remote: URL of the session server: http://, https:// or unix:PATH", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, remote_url) },                                \
	{ 0, "remote-ca", "FILE", "remote: certificates to trust instead of the system's (PEM)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, remote_ca) },                                 \
	{ 0, "remote-reopen", NULL, "remote: run a cell in a new session when its session has expired", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, remote_reopen) },                             \
	{ 0, "remote-repeat", NULL, "remote: run a cell again, once, if its server died and lost it", \
	  CELL_FLAG_SWITCH, CELL_CLI_AT(at, remote_repeat) },                             \
	CELL_CLI_CONTAINER_IMAGE_FLAGS(CELL_CLI_AT(at, container)),                       \
	CELL_CLI_CONTAINER_FLAGS(CELL_CLI_AT(at, container)),                             \
	CELL_CLI_KUBERNETES_FLAGS(CELL_CLI_AT(at, kubernetes)),                           \
	CELL_CLI_GROUP("storage and tools"),                                                      \
	CELL_CLI_SPACE_FLAGS(CELL_CLI_AT(at, space)),                                     \
	CELL_CLI_GROUP("packages"),                                                               \
	CELL_CLI_DEPS_FLAGS(CELL_CLI_AT(at, space)),                                      \
	CELL_CLI_VENV_FLAGS(CELL_CLI_AT(at, space)),                                      \
	CELL_CLI_GROUP("search"),                                                                 \
	CELL_CLI_EMBEDDINGS_FLAGS(CELL_CLI_AT(at, space))
/* clang-format on */

/* For servers, whose clients may not trust each other. */
/* clang-format off */
#define CELL_CLI_ZYGOTE_FLAGS(at)                                                         \
	{ 0, "zygote-per", "WHOM", "sessions share a zygote per engine, workspace or session (default engine)", \
	  CELL_FLAG_STRING, CELL_CLI_AT(at, zygote_per) },                                \
	{ 0, "zygote-forks", "N", "replace a zygote after this many sessions; 0: never", \
	  CELL_FLAG_COUNT, CELL_CLI_AT(at, zygote_forks) },                               \
	{ 0, "total-points-memory", "SIZE", "the same as --points-memory, for all sessions together", \
	  CELL_FLAG_BYTES, CELL_CLI_AT(at, points_bytes) }
/* clang-format on */
/* The value of --zygote-per. */
enum cell_zygote_per cell__cli_zygote_per(const struct cell_cli_session_flags *flags);

/* For commands that are not servers; servers have a flag of this name for their own clients. */
#define CELL_CLI_REMOTE_TOKEN_FLAG(at)                                                                 \
	{ 0,                                                                                           \
	  "auth-token-file",                                                                           \
	  "FILE",                                                                                      \
	  "remote, container: the token for the session server",                                       \
	  CELL_FLAG_STRING,                                                                            \
	  CELL_CLI_AT(at, remote_token_file) },                                                        \
	{                                                                                              \
		0, "auth-disabled", NULL, "container: its server requires no token", CELL_FLAG_SWITCH, \
			CELL_CLI_AT(at, container.auth_disabled)                                       \
	}

struct cell_cli_host {
	struct cell_engine *engine;
	struct cell_space *space; /* NULL: none */
	struct cell_policy *policy; /* NULL: none */
	struct cell_audit *audit; /* NULL: none */
	char *saved_key; /* of saved sessions; NULL: none */
	struct cell_session *session;
	bool confined; /* its code is not trusted with the terminal */
};

/* The options of a session, and the strings that they point to. */
struct cell_cli_session_options {
	struct cell_session_options options;
	const char **env;
	char *python, *cwd, *token;
	struct cell_container_options container;
	struct cell_kubernetes_options kubernetes;
	char *kube_files[5]; /* of these options: absolute paths, and the URL */
	char *context, *tools, *storage, *wheels;
	char **trusted;
};
/*
 * Opens everything except the session. with_space: always opens a space. The data that *ret_options points to lives until
 * cell__cli_options_finish().
 */
int cell__cli_open_host(const struct cell_cli_session_flags *flags, bool with_space, struct cell_cli_host *ret_host,
			struct cell_cli_session_options *ret_options, struct cell_error *err);
void cell__cli_options_finish(struct cell_cli_session_options *options);
/* Opens engine and session and hands the session to the signal thread.  on_event: see session options.  shows: output as it comes. */
int cell__cli_open(const struct cell_cli_session_flags *flags, bool shows, cell_event_fn on_event, void *event_arg,
		   struct cell_cli_host *ret_host, struct cell_error *err);
/* The same for a notebook (cell_session_options).  engine: of cell__cli_warm(), taken over also on failure; NULL: a new one. */
int cell__cli_open_notebook(const struct cell_cli_session_flags *flags, struct cell_engine *engine, cell_event_fn on_event, void *event_arg,
			    struct cell_cli_host *ret_host, struct cell_error *err);
/* An engine in which a session with these flags opens without having to start an interpreter. */
int cell__cli_warm(const struct cell_cli_session_flags *flags, struct cell_engine **ret_engine, struct cell_error *err);
void cell__cli_close(struct cell_cli_host *host);

/* ---- signals and stopping (signals.c) ---------------------------------------- */

/*
 * Starts the signal thread. It calls `wake` when the main thread should check its state: Ctrl-C while no cell runs (interactive only), a
 * changed window, or a stop. `wake` may be NULL and must not block.
 */
int cell__cli_signals_start(bool interactive, void (*wake)(void *arg), void *arg, struct cell_error *err);
/* Sets the session that signals act on; NULL before it is closed. Waits for an action in progress. */
void cell__cli_signals_attach(struct cell_session *session);
/*
 * A cell runs between these two. cell__cli_run_begin() may be called early, under a lock of the caller, so that an interrupt that arrives
 * between choosing a cell and running it waits for the cell instead of getting lost. False: the program is stopping, run nothing.
 */
bool cell__cli_run_begin(void);
void cell__cli_run_end(void);
/* Interrupts the cell begun last, if it has not ended.  Any thread. */
void cell__cli_interrupt(void);
/* Ends the running cell, after which the program is to clean up and exit with this status.  Any thread. */
void cell__cli_stop(int status);
/* 0: go on.  Any thread. */
int cell__cli_stop_status(void);
/* The events since the last call, for the prompt of an interactive program. */
bool cell__cli_take_sigint(void);
bool cell__cli_take_resize(void);

/* ---- printing (print.c) ------------------------------------------------- */

enum cell_cli_format { CELL_CLI_TEXT, CELL_CLI_JSON, CELL_CLI_EVENTS };

struct cell_cli_printer;

/* `wake` is called on the engine's thread when late output waits; it may be NULL and must not block. */
struct cell_cli_printer *cell__cli_printer_create(enum cell_cli_format format, void (*wake)(void *arg), void *arg);
void cell__cli_printer_destroy(struct cell_cli_printer *printer);
/* From now on asks the user for approvals in runs of the host's session (approve.c), if it has a policy. */
int cell__cli_printer_ask(struct cell_cli_printer *printer, const struct cell_cli_host *host, bool stdin_is_taken, struct cell_error *err);
/* Text: pictures are drawn by a terminal that can, unless the code is guarded from it, or else saved and named (picture.h). */
void cell__cli_printer_show_pictures(struct cell_cli_printer *printer);
/* For cell_session_run(): prints as it comes.  arg is the printer. */
void cell__cli_print_event(void *arg, const struct cell_event *event);
/* For the session: keeps events between runs, on the engine's thread. arg is the printer. */
void cell__cli_keep_event(void *arg, const struct cell_event *event);
/* Prints the kept events. */
void cell__cli_print_kept(struct cell_cli_printer *printer);
bool cell__cli_has_kept(struct cell_cli_printer *printer);
/* One line on stdout, without its newline. */
void cell__cli_print_line(struct cell_cli_printer *printer, const char *text);
/* Ends the line on stdout where output left one unfinished. */
void cell__cli_print_fresh_line(struct cell_cli_printer *printer);
/* Whether the code ended itself without a failure, as programs do: sys.exit(), sys.exit(0). */
bool cell__cli_has_exited(const struct cell_result *result);
/*
 * Prints a result and returns the cell's exit status. In text, `prefix` precedes the value. goes_on: another cell may follow, so it
 * mentions that variables are lost. quiet: does not print the error.
 */
int cell__cli_print_result(struct cell_cli_printer *printer, struct cell_result *result, const char *prefix, bool goes_on, bool quiet);
/* Writes all of it; of a server with a log (log.c), stderr is queued.  A reader that went away stops the program quietly, another failure with a message. */
void cell__cli_write(int fd, const void *data, size_t size);

/* ---- the log of a server (log.c) ------------------------------------------ */

/* Of the line that says that lines were lost: "workcell: warning: ...", or as the server's lines. */
enum cell_cli_log_form { CELL_CLI_LOG_PLAIN, CELL_CLI_LOG_TEXT, CELL_CLI_LOG_JSON };
/* From now on what is written to stderr is queued, and nobody waits for its reader.  Not for a program that talks to a person. */
void cell__log_use(enum cell_cli_log_form form);
/* Lines for stderr.  Any thread.  False: they are not queued, and the caller writes them. */
bool cell__log_add(const char *bytes, size_t size);
/* A line, with its break. */
void cell__log_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* In a process with one thread, before it forks others that write to the same stderr ... */
int cell__log_share(struct cell_error *err);
/* ... in each of them, at its beginning ... */
void cell__log_forked(void);
/* ... and by itself again and again: writes what stderr takes now.  Milliseconds until the next try; -1: nothing is left. */
int cell__log_step(void);

/* ---- approvals (approve.c) ------------------------------------------------ */
/* 64 hexadecimal digits of a file's first line; free() it. */
/* The value of --saved: env:NAME is what that variable has.  NULL stays NULL. */
int cell__cli_saved_place(const char *saved, const char **ret_place, struct cell_error *err);
int cell__cli_saved_key(const char *path, char **ret_key, struct cell_error *err);

#define CELL_CLI_DEAF_MS 500 /* after a question has appeared, lines are ignored until none has come for so long */

struct cell_cli_asker;

/* Policy and audit log of the flags, into the host and the options of its session. */
int cell__cli_gate_open(const struct cell_cli_gate_flags *flags, struct cell_cli_host *host, struct cell_session_options *options,
			struct cell_error *err);
#define CELL_CLI_RECORD_FLAG(at, value, text) { 0, "record", value, text, CELL_FLAG_STRING, CELL_CLI_AT(at, gate.record) }
/* --save, --resume and --record, for commands that end with their session. */
#define CELL_CLI_SAVE_FLAGS(at)                                                                                                          \
	{ 0, "save", NULL, "save the session at its end, in the folder of --saved", CELL_FLAG_SWITCH, CELL_CLI_AT(at, gate.save) },      \
		CELL_CLI_RECORD_FLAG(at, "FILE", "write a recording of the session to this new file, for `workcell replay`"),            \
	{                                                                                                                                \
		0, "resume", "ID", "go on with a saved session of the folder of --saved", CELL_FLAG_STRING, CELL_CLI_AT(at, gate.resume) \
	}
/* With --save: saves it, and says so on stderr. */
int cell__cli_save(const struct cell_cli_gate_flags *flags, struct cell_session *session, struct cell_error *err);
void cell__cli_gate_close(struct cell_cli_host *host);
/* stdin_is_taken: answers come from the terminal, else from stdin; json: as lines of JSON.  NULL: out of memory. */
struct cell_cli_asker *cell__cli_asker_create(bool stdin_is_taken, bool json);
void cell__cli_asker_destroy(struct cell_cli_asker *asker);
/* Asks and answers; returns when the request waits no more.  Main thread. */
void cell__cli_ask(struct cell_cli_asker *asker, struct cell_session *session, const struct cell_event *event);
/* {"id", "accept", "reason", "args", "always"}; without an id `fallback` is meant, 0: all that wait. */
int cell__cli_answer_json(struct cell_session *session, const json_t *root, uint64_t fallback, struct cell_error *err);

/* ---- replays (cmd_replay.c) --------------------------------------------- */

/* Replays a file with this source of the workflow, and prints the outcome; json: as an object on one line.  0: the same, 1: a difference, -1: our failure. */
int cell__cli_replay_workflow(struct cell_engine *engine, struct cell_session_options *options, const char *file, const char *name,
			      const char *source, bool json, struct cell_error *err);

/* ---- a cell (cmd_run.c) ------------------------------------------------- */

/*
 * Runs a cell for which cell__cli_run_begin() was called, and prints its result. ended (may be NULL) is called when it is over, before any
 * reader can have seen the result.
 */
int cell__cli_run_cell(struct cell_cli_host *host, struct cell_cli_printer *printer, const char *code, size_t size, int64_t timeout_ms,
		       bool goes_on, void (*ended)(void), int *ret_status, struct cell_error *err);

#endif
