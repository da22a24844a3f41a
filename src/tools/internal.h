/*
 * Shared by the files of this folder: definitions of tools, their arguments, and a call in progress.
 *
 * Definitions are reference-counted and immutable once loaded: a call keeps its tool alive when the file behind it changes.
 */
#ifndef CELL_TOOLS_INTERNAL_H
#define CELL_TOOLS_INTERNAL_H

#include <sys/stat.h>

#include "loop/http.h"
#include "loop/watch.h"
#include "tools/tools.h"
#include "wire/yaml.h"

/* ---- arguments ---- */

enum cell__arg_type {
	CELL_ARG_UNTYPED, /* no type given: text, and a number is taken as its text */
	CELL_ARG_STRING,
	CELL_ARG_BOOLEAN,
	CELL_ARG_INTEGER,
	CELL_ARG_NUMBER,
	CELL_ARG_ARRAY,
	CELL_ARG_OBJECT,
	CELL_ARG_ANY,
};

enum cell__arg_place {
	CELL_IN_OPTION,
	CELL_IN_POSITIONAL,
	CELL_IN_PATH,
	CELL_IN_QUERY,
	CELL_IN_BODY, /* a member of it */
	CELL_IN_HEADER,
	CELL_IN_COOKIE,
	CELL_IN_WHOLE, /* the body itself */
};

struct cell__param {
	char *name;
	char *description;
	enum cell__arg_type type;
	bool required;
	json_t *fallback; /* default, or NULL */
	json_t *choices;  /* array, or NULL */
	enum cell__arg_place place;
	char *short_flag; /* "-s", or NULL */
	char *long_flag;  /* "--name", or NULL when only the short one is known */
	bool allow_dash;
	char *under;      /* a path: the absolute folder it must be inside, or "workspace"; NULL: not a path */
	bool writes, directory; /* a path: opened for writing; must be a directory */
	/* MCP */
	char *alias;      /* for code, where the name cannot be written there; or NULL */
	bool nullable;    /* null is a value like any other */
	bool theirs;      /* the server of the call fills in the default */
};

struct cell__params {
	struct cell__param *list;
	size_t count;
};

/* ---- tools ---- */

struct cell__callable {
	char *name;
	char *description;
	struct cell__params params; /* as advertised */
	json_t *preset;             /* object, or NULL */
	json_t *supposed;           /* the result that it usually has, or NULL */
	bool open;                  /* accepts arguments without a description */
	/* HTTP */
	char *method, *path;
	json_t *query, *body;       /* fixed parts, or NULL */
	bool form, multipart;       /* the body is written as a form of this kind, not as JSON */
	int64_t timeout_ms;         /* 0: the tool's */
	/* host function */
	cell__host_fn fn;
	void *arg;
	/* MCP */
	char *alias;                /* as a parameter's */
	bool task;                  /* called as a task, because the server requires it */
	bool typed;                 /* the server declares an output schema */
};

struct cell__pair {
	char *key;
	char *value; /* may hold ${VAR} */
	bool basic;  /* a header: "user:password", sent as basic authentication */
};

struct cell__pairs {
	struct cell__pair *list;
	size_t count;
};

struct cell__tool_run;

struct cell__tool_adapter {
	const char *name;
	/* Must end in one of cell__tool_run_answer, _fail, _timed_out; may do so at once.  Takes no reference to args. */
	void (*start)(struct cell__tool_run *run, json_t *args);
	/* The caller no longer waits: drops everything that belongs to the run. */
	void (*cancel)(struct cell__tool_run *run);
	/* Whether a call starts a program that is confined if the caller is not trusted.  NULL: no. */
	bool (*confines)(const struct cell__tool_entry *tool);
};

extern const struct cell__tool_adapter cell__tool_cli, cell__tool_http, cell__tool_host, cell__tool_mcp;

struct cell__tool_entry {
	const struct cell__tool_adapter *adapter;
	unsigned refs;
	char *name;
	char *description;
	char *file; /* NULL: registered by the host */
	int line;   /* of the name */
	char **tags;
	size_t n_tags;
	int64_t timeout_ms;
	size_t max_output;
	struct cell__callable *callables;
	size_t n_callables;
	/* CLI */
	struct cell__params schema; /* options in order, then positionals */
	char *command, *cwd;
	struct cell__pairs env;
	bool end_of_options;
	bool host; /* runs on the host also for callers that are not trusted */
	/* HTTP */
	char *base_url;
	struct cell__pairs headers;
	struct cell__pairs query; /* with every request; may be secret */
	/* MCP */
	struct cell__mcp_params *mcp;
	struct cell__tool_server *server; /* set once it is in the registry */
	bool described;                  /* the description was made of its callables */
};

struct cell__tool_entry *cell__tool_ref(struct cell__tool_entry *tool);
void cell__tool_unref(struct cell__tool_entry *tool);
void cell__callable_finish(struct cell__callable *callable);
/* By its name, or by its alias. */
const struct cell__callable *cell__tool_callable(const struct cell__tool_entry *tool, const char *name);
bool cell__tool_name_ok(const char *name);
/* One of the tags is among the tool's; NULL: true. */
bool cell__tool_in_scope(const struct cell__tool_entry *tool, const char *const *scope);

/* The tool in one file's text; NULL when it is invalid, and then a problem is recorded. */
struct cell__tool_entry *cell__tool_load(const char *file, const char *bytes, size_t size, struct cell__problems *problems);

/* Value NULL or YAML null: leaves the target unchanged. `what` names it in the problem. */
void cell__load_bool(struct cell__loader *loader, const struct cell__yaml *value, const char *what, bool *ret);
void cell__load_timeout(struct cell__loader *loader, const struct cell__yaml *value, int64_t *ret_ms);
void cell__load_pairs(struct cell__loader *loader, const struct cell__yaml *value, const char *what, struct cell__pairs *ret);
void cell__load_json(struct cell__loader *loader, const struct cell__yaml *value, json_t **ret);
/* type, description, required, default, enum: the keys that every parameter may have. */
void cell__load_param(struct cell__loader *loader, const struct cell__yaml *spec, struct cell__param *param);
/* A parameter of this name at the end of the list; NULL: there are too many or memory is gone, reported as a problem. */
struct cell__param *cell__load_add_param(struct cell__loader *loader, const struct cell__yaml *at, struct cell__params *params,
					 const char *name);
/* Room for one more at the end of an array, zeroed; NULL: out of memory, reported as a problem. */
void *cell__load_more(struct cell__loader *loader, const struct cell__yaml *at, void *list, size_t *count, size_t size);
typedef void (*cell__load_callable_fn)(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
				       struct cell__tool_entry *tool);
/* All callables of a mapping.  what: "recipes" */
void cell__load_callables(struct cell__loader *loader, const struct cell__yaml *mapping, const char *what, cell__load_callable_fn load,
			  struct cell__tool_entry *tool);
/* The next callable of a tool, with its name; NULL: a problem was recorded. what: "recipe" */
struct cell__callable *cell__load_callable(struct cell__loader *loader, const struct cell__yaml *key, const char *what,
					   struct cell__tool_entry *tool);
void cell__load_cli(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool);
void cell__load_http(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool);
void cell__load_headers(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool);
void cell__load_openapi(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool);
void cell__pairs_finish(struct cell__pairs *pairs);

/* ---- schema.c ---- */

void cell__param_finish(struct cell__param *param);
void cell__params_finish(struct cell__params *params);
/* Other names for those that Python cannot write (mcp_tools.c).  -1: out of memory. */
int cell__params_add_aliases(struct cell__params *params);
/* The same for callables that a keyword or an attribute of every tool (list, describe) hides.  Without memory there is none. */
void cell__tool_add_aliases(struct cell__tool_entry *tool);
/* NULL: not found. If no name is equal, `_` in the requested name also matches `-`. */
const struct cell__param *cell__params_find(const struct cell__params *params, const char *name);
/* UNTYPED when the word is unknown and *ret_ok false. */
enum cell__arg_type cell__arg_type_parse(const char *word, bool *ret_ok);
const char *cell__arg_type_word(enum cell__arg_type type);
/* Checks one value; `why` receives the reason if it is invalid. */
int cell__arg_check(const struct cell__param *param, const json_t *value, struct cell__buf *why);
/*
 * Call arguments over preset over defaults, checked: names, required, types, enums.  callable NULL: a CLI tool called
 * by its schema alone.
 */
int cell__args_merge(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given, json_t **ret_args,
		     struct cell__buf *why);
/* Would merging give the same object again?  Says false also where only the merge itself can tell. */
bool cell__args_fit(const struct cell__callable *callable, const char *args, size_t args_size);
/* A scalar as text: numbers in decimal, true and false. */
int cell__arg_text(const json_t *value, struct cell__buf *out);
/* Appends bytes as UTF-8 without NUL: ill-formed sequences and NUL become U+FFFD. */
int cell__buf_add_quote(struct cell__buf *out, const char *bytes, size_t size);
/* Replaces line breaks between the tokens of a JSON text by blanks; false when it is not a JSON value. */
bool cell__json_one_line(struct cell__buf *text);
/* From a JSON Schema of an object. */
int cell__params_from_schema(const json_t *schema, struct cell__params *ret_params, bool *ret_open, struct cell_error *err);
/* "get(url: str, header: list = None)". */
int cell__callable_signature(const struct cell__callable *callable, struct cell__buf *out);
json_t *cell__callable_to_json(const struct cell__tool_entry *tool, const struct cell__callable *callable);
json_t *cell__tool_to_json(const struct cell__tool_entry *tool);
/* {tool, name, signature, description}: names as code writes them, the first sentence of the description. */
json_t *cell__callable_brief(const struct cell__tool_entry *tool, const struct cell__callable *callable);

/* ---- argv.c ---- */

struct cell__argv {
	char **list; /* NULL-terminated */
	size_t count;
	size_t bytes;
	struct {
		size_t at; /* which word */
		const struct cell__param *param;
	} paths[CELL_PROCESS_FDS]; /* arguments that are files to be opened */
	size_t n_paths;
};
void cell__argv_finish(struct cell__argv *argv);
/* args as cell__args_merge() made them. recipe NULL: by the schema alone. */
int cell__argv_build(const struct cell__tool_entry *tool, const struct cell__callable *recipe, const json_t *args,
		     struct cell__argv *ret_argv, struct cell__buf *why);

/* For whom a program is started. */
struct cell__program_caller {
	struct cell__confinement *code; /* the caller's confinement; NULL: a trusted caller */
	bool host;        /* the program runs on the host all the same */
	const char *cwd;                /* the session's */
};
/*
 * paths.c: opens the file that a parameter's value names, for this caller. Gives a descriptor or a name to be freed, which is untouched
 * until then. -1: `why` has the reason, or out of memory.  On the pool.
 */
int cell__path_arg_open(const struct cell__program_caller *caller, const struct cell__param *param, const char *value, int *ret_fd,
			char **ret_name, struct cell__buf *why);

/* ---- vars.c: ${VAR} ---- */

/* Values that must not be shown; zeroed when finished. */
struct cell__secrets {
	char **list;
	size_t count;
};
void cell__secrets_finish(struct cell__secrets *secrets);
/* Replaces every secret by ***. */
int cell__secrets_redact(const struct cell__secrets *secrets, struct cell__buf *text);
/* "$${" is a literal "${".  A missing variable is named in `why`; the caller zeroes *ret_text before freeing it. */
int cell__vars_expand(const char *text, const struct cell__tools_options *opts, struct cell__secrets *secrets, char **ret_text,
		      struct cell__buf *why);
/* Whether every "${" begins a well-formed reference. */
bool cell__vars_ok(const char *text);
void cell__secret_free(char *text);

/* ---- httpreq.c ---- */

/* http:// or https://, a host and optionally a path, without anything that could be a secret. */
bool cell__http_base_ok(const char *url);
/* Percent-encodes everything that has a meaning in a URL. */
int cell__http_add_encoded(struct cell__buf *out, const char *bytes, size_t size);

struct cell__httpreq {
	char *method, *url;
	char **headers; /* "Name: value" */
	size_t n_headers;
	char *body;     /* NULL: none */
	size_t body_size;
};
void cell__httpreq_finish(struct cell__httpreq *req);
/* Leaves out the tool's own headers, which are resolved at the last moment. */
int cell__httpreq_build(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *args,
			struct cell__httpreq *ret_req, struct cell__buf *why);
/* The body and its Content-Type (multipart.c); -1: why says what is wrong with it. */
int cell__multipart_write(const json_t *body, struct cell__buf *out, char **ret_type, struct cell__buf *why);
bool cell__http_header_name_ok(const char *name);
/* Name of the placeholder that begins at path[0] == '{', its length with braces in *ret_size; NULL: not a placeholder. */
const char *cell__http_placeholder(const char *path, size_t *ret_size);
/* Scheme, host and port are the same. */
bool cell__http_same_origin(const char *a, const char *b);
bool cell__http_is_json(const char *content_type);

/* ---- calls under way ---- */

/* Waits for a confinement.  Embedded by its owner, who sets ready. */
struct cell__confine_wait {
	/* Once, in a later iteration of the loop; not after _cancel().  Takes the reference over; NULL: err has the reason. */
	void (*ready)(struct cell__confine_wait *wait, struct cell__confinement *confinement, const struct cell_error *err);
	struct cell__confine_wait *next;
};

/* Lives from the check of the arguments to the answer. */
struct cell__tool_run {
	struct cell__tools *tools;
	struct cell__tool_entry *tool;
	const struct cell__callable *callable; /* NULL: by the schema alone */
	struct cell__call *call;
	char *cwd; /* the session's; NULL for functions of the host, which have their own */
	struct cell__confinement *code; /* the caller's confinement; NULL: a trusted caller, or the adapter starts no program */
	struct cell__confine_wait confine;
	json_t *args; /* while it waits for the confinement; NULL: the adapter has started */
	struct cell__secrets secrets;
	void *state; /* the adapter's */
	struct cell__tool_run *prev, *next;
};

/* ---- confine.c ---- */

/*
 * The confinement of the caller.  0: *ret_confinement is a new reference, or NULL if the caller is trusted.  1: it is made first, and
 * wait->ready() gets it.  Waits of one session are ended in the order they came.
 */
int cell__tools_confine(struct cell__tools *tools, const struct cell__call *call, struct cell__confine_wait *wait,
			struct cell__confinement **ret_confinement, struct cell_error *err);
void cell__tools_confine_cancel(struct cell__tools *tools, struct cell__confine_wait *wait);
/* Whether the code can write to it, also through links.  It and the next one look up paths: on the pool. */
bool cell__program_is_codes(const struct cell__confinement *code, const char *path);
/* Removes relative folders from a PATH, and those that the code can write to; code NULL: for a trusted caller. */
void cell__program_clean_path(const struct cell__confinement *code, char *path);
/*
 * HOME of a program. The host program's HOME only if no untrusted code calls the program: settings are read from there, and only the
 * home folders of /etc/passwd are kept from the code in all their parts.
 */
const char *cell__program_home(const struct cell__tools *tools, bool trusted);
/* Refuses a program that the code can write to; `why` gets the reason.  On the pool. */
int cell__program_check(const struct cell__confinement *code, const char *command, const char *path, const char *cwd,
			struct cell__buf *why);
/*
 * The working directory of a program as its definition says (NULL: unspecified): the word workspace, a path, or a path in the workspace.
 * code NULL: for a trusted caller. NULL: not found, with the reason in `why`, or out of memory.
 */
char *cell__program_cwd(const struct cell__confinement *code, bool host, const char *defined, const char *workspace, struct cell__buf *why);

/* Each ends the run and frees it.  result is taken over. */
void cell__tool_run_answer(struct cell__tool_run *run, json_t *result, const void *raw, size_t raw_size);
/* {"raw": kind}, "text" or "json". */
void cell__tool_run_answer_raw(struct cell__tool_run *run, const char *kind, const void *raw, size_t raw_size);
/* "Tool 'x' failed: ..." with secrets cut out. */
void cell__tool_run_fail(struct cell__tool_run *run, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void cell__tool_run_timed_out(struct cell__tool_run *run, int64_t timeout_ms);
int64_t cell__tool_run_timeout_ms(const struct cell__tool_run *run);

/* ---- files.c: directories of definitions ---- */

struct cell__tool_file {
	char *path;
	struct stat seen;
	bool racy;  /* changed so shortly before it was read that another change may have the same time stamp */
	bool kept;  /* in a copy: unchanged, so that the original has its tool and its problems */
	struct cell__tool_entry *tool; /* NULL: bad */
	struct cell__problems problems;
};

struct cell__tool_dir {
	char *path;
	struct stat seen;
	bool there, racy;
	bool kept; /* in a copy: the original has its problems */
	struct cell__tool_file *files; /* sorted */
	size_t n_files;
	struct cell__problems problems; /* of the directory itself */
};

void cell__tool_dir_finish(struct cell__tool_dir *dir);
/* Fills a virtual directory with these definitions; definitions with the same text as in `old` stay loaded. */
int cell__tool_dir_set(struct cell__tool_dir *dir, const char *where, json_t *texts, const json_t *old);
/*
 * Reads changed files; true: there were some. all: checks every file, else only the directory (whose time changes with added and removed
 * files) and the file with the path `only` (may be NULL).
 */
bool cell__tool_dir_refresh(struct cell__tool_dir *dir, bool all, const char *only);
/* Whether the watch on the directory reports every change of its current files. */
bool cell__tool_dir_watchable(const struct cell__tool_dir *dir);
/* A copy for another thread to refresh: without tools and problems. */
int cell__tool_dir_copy(const struct cell__tool_dir *dir, struct cell__tool_dir *ret_copy);
/* Replaces a directory by its refreshed copy, which is taken over; unchanged files keep their tools. */
void cell__tool_dir_replace(struct cell__tool_dir *dir, struct cell__tool_dir *copy);
/* By a file's name: is it a definition? */
bool cell__tool_file_wanted(const char *name);

/* ---- park.c: calls that wait and are then handled again ---- */

struct cell__parked {
	struct cell__tools *tools;
	struct cell__call *call;
	char *cwd;
	char **scope; /* NULL: all */
};
/* -1: out of memory; the call is as it was.  Else cancel(call) is called if the asker ends first, with `handler` in call->handler. */
int cell__parked_init(struct cell__parked *parked, struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
		      void (*cancel)(struct cell__call *call), void *handler);
void cell__parked_finish(struct cell__parked *parked);
/* The call no longer waits; call before it is handled or failed. */
struct cell__call *cell__parked_take(struct cell__parked *parked);
void cell__parked_handle(const struct cell__parked *parked);

/* ---- refresh.c ---- */

/*
 * Before a call is handled that uses definitions: true if it waits until changed directories have been read, and is then handled again.
 * tool: the one that the call is about, as it is known now; NULL: all of them, or an unknown one.
 */
bool cell__tools_must_read(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
			   const struct cell__tool_entry *tool);
/* When the registry closes. */
void cell__tools_fail_waiting(struct cell__tools *tools);
/* Work on the pool has ended, which the registry counted in `on_pool`. */
void cell__tools_left_pool(struct cell__tools *tools);

/* ---- search.c ---- */

/* A new array, best first: of tools, or of callables as cell__callable_brief() describes them.  NULL: out of memory. */
json_t *cell__tools_search(struct cell__tools *tools, const char *query, bool callables, size_t limit, const char *const *scope,
			   const json_t *tags);
/* Calls the ranking with an empty query. */
void cell__tools_prepare_rank(struct cell__tools *tools);
/* Whether one of the tags (an array of strings) is among the tool's; NULL: true. */
bool cell__tool_has_tag(const struct cell__tool_entry *tool, const json_t *tags);

/* ---- callback.c: its state in the registry ---- */

/* Calls the run's function with arguments that are text. */
void cell__host_start(struct cell__tool_run *run, const char *args, size_t args_size);

struct cell__tools {
	struct cell__tools_options opts;
	char *path;
	struct cell__tool_dir *dirs;
	size_t n_dirs;
	struct cell__tool_dir stored;   /* in no directory */
	json_t *stored_texts;
	struct cell__watch watch;       /* on all of them, or on none of them */
	uint64_t refreshes, watch_at;   /* how often they were refreshed; when watching is tried */
	struct cell__reading *reading;  /* refresh.c: under way on the pool; NULL: none */
	struct cell__tools_wait *waits; /* refresh.c: for the directories, in the order they came */
	bool serving;                   /* refresh.c: waits are ended now */
	struct cell__call *fresh;       /* is handled now, after the directories were read for it */
	unsigned on_pool;               /* work there that uses the registry afterwards */
	struct cell__tool_entry **host_tools; /* registered ones, in the order of registration */
	size_t n_host_tools;
	struct cell__tool_entry **index;      /* all that exist, host's first; borrowed */
	size_t n_index;
	json_t *names;                  /* name: place in the index */
	uint64_t generation;
	struct cell__problems clashes;  /* names that are taken */
	struct cell__rank_doc *docs;    /* of this generation; NULL: not made yet */
	struct cell__doc_place *places; /* what each of them stands for */
	size_t n_docs;
	struct cell__tool_run *runs;
	size_t n_runs;
	struct confining *confining;    /* confine.c: confinements that are being made */
	struct cell__cli_queue {
		void *first, *last;
	} cli_waiting, cli_starting; /* cli.c: calls that wait for a process, and those whose process starts, in the order of the calls */
	size_t n_processes; /* starting or running */
	struct cell__http *http; /* made with the first request */
	struct cell__loop_ref *loop_ref; /* of calls that functions of the host have not answered, also of cancelled ones */
	struct cell__tool_server *servers; /* mcp.c: the servers that a tool uses */
	unsigned mcp_closing; /* servers that are not gone yet */
	void (*mcp_closed)(struct cell__tools *tools);
	void (*mcp_event)(void *arg, const struct cell__mcp_event *event);
	bool (*mcp_elicits)(void *arg);
	void *mcp_event_arg;
	char *login_page; /* see cell__tools_login_at(); or NULL */
	struct cell__mcp_stop *stops; /* callers that wait for the end of stopped servers */
	void *parked; /* mcp_wait.c */
	struct cell__call *settled; /* is handled now, and waits for no server */
	json_t *learned; /* learn.c: {"TOOL.CALLABLE": entry} */
	enum { CELL__LEARNED_UNKNOWN, CELL__LEARNED_READING, CELL__LEARNED_READ } learned_state;
	struct learning *learning; /* work on the pool: the first is under way */
	size_t notes;    /* observations in it */
	bool learn_failed;
	bool closing;
	bool ended; /* closing: only the work on the pool is left */
	void (*closed)(void *arg);
	void *closed_arg;
	struct cell__task close_task;
};
void cell__tools_free_docs(struct cell__tools *tools);
/* The set of tools has changed. */
void cell__tools_reindex(struct cell__tools *tools);

#endif
