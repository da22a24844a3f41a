/*
 * Every route. A fixed path precedes one with a parameter in its place. Routes that are operations of a space take arguments, checks,
 * descriptions and answers from their rows (calls/table.c); only differences are here, so that older clients keep working.
 */
#include "server/api.h"

#define GET "GET"
#define POST "POST"
#define PUT "PUT"
#define DELETE "DELETE"
#define OF(id) .operation = &cell__operations[CELL__OP_##id], .session_header = true, .status = 200

#define BODY(properties, required) "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]}"
#define FIELD(name, type, words) "\"" name "\":{\"type\":" type ",\"description\":\"" words "\"}"

#define EXECUTE_BODY                                                                                                                                  \
	BODY("\"code\":{\"type\":\"string\",\"x-nul\":true,\"description\":\"Python code of one cell\"},"                                             \
	     "\"timeout\":{\"type\":[\"number\",\"null\"],\"minimum\":0,\"description\":\"time limit in seconds; 0 or null: the server's default\"}", \
	     "\"code\"")
#define RUN_BODY                                                                                                                                      \
	BODY("\"code\":{\"type\":\"string\",\"x-nul\":true,\"description\":\"Python code of one cell\"},"                                             \
	     "\"timeout\":{\"type\":[\"number\",\"null\"],\"minimum\":0,\"description\":\"time limit in seconds; 0 or null: the server's default\"}," \
	     "\"state_id\":{\"type\":\"string\",\"pattern\":\"^[0-9a-f]{32}$\",\"description\":"                                                      \
	     "\"name of the session's state after the cell, random: whoever loses the answer finds out by it whether the cell took place\"}",         \
	     "\"code\"")
/* SandboxFusion's; it ignores other members. */
#define RUN_CODE_BODY                                                                                                                                                                                                                                                                   \
	BODY("\"code\":{\"type\":\"string\",\"description\":\"the program\"},"                                                                                                                                                                                                          \
	     "\"language\":{\"type\":\"string\",\"enum\":[\"python\",\"bash\"]}," FIELD("compile_timeout", "\"number\"", "not used") "," FIELD("run_timeout", "\"number\"", "seconds; default 10") "," FIELD(                                                                           \
		     "memory_limit_MB", "\"integer\"",                                                                                                                                                                                                                                  \
		     "0 or less: the server's limit, which is also the most") "," FIELD("stdin", "[\"string\",\"null\"]",                                                                                                                                                               \
											"standard input of the program") "," FIELD("files",                                                                                                                                             \
																   "[\"object\",\"null\"]",                                                                                                                             \
																   "contents in base64 by path") ","                                                                                                                    \
																				 "\"fetch_files\":{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"string\"},\"description\":\"paths to return\"}", \
	     "\"code\",\"language\"")
/* No other members: an ignored one could be a requested limit. */
#define SESSION_BODY                                                                                                                                                               \
	"{\"type\":\"object\",\"properties\":{" FIELD(                                                                                                                             \
		"workspace_id", "[\"string\",\"null\"]",                                                                                                                           \
		"1-128 letters, digits, underscores or hyphens") ",\"allow_fork\":{\"type\":\"integer\",\"minimum\":0,\"description\":"                                            \
								 "\"children that the code may fork from its session; at most, and by default, as many as the server allows\"},"   \
								 "\"speculate\":{\"type\":\"boolean\",\"description\":"                                                            \
								 "\"goes on in a copy while a call waits for its approval; by default as the server does, which must allow it\"}," \
								 "\"resume\":{\"type\":\"string\",\"pattern\":\"^[0-9a-f]{32}$\",\"description\":"                                 \
								 "\"the id of a saved session of the same client and workspace, to continue it\"}"                                 \
								 "},\"additionalProperties\":false}"
#define DROP_FIELD FIELD("drop", "\"boolean\"", "go without threads, child processes, connections and file locks")
#define COUNT_FIELD(name, about) "\"" name "\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"description\":\"" about "\"}"
#define FORK_BODY                                                                                                               \
	"{\"type\":\"object\",\"properties\":{" COUNT_FIELD(                                                                    \
		"n", "so many, all of them or none; without it one, which is the answer itself") "," DROP_FIELD "," POINT_FIELD \
												 "},\"additionalProperties\":false}"
#define RACE_BODY                                                                                                                                                                                                                           \
	"{\"type\":\"object\",\"properties\":{\"codes\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"                                                                                                                               \
	"\"description\":\"a cell for each fork\"}," FIELD("code", "\"string\"", "instead: a cell for all of them") "," COUNT_FIELD("n", "with code: the number of forks") "," FIELD(                                                       \
		"judge", "[\"string\",\"null\"]",                                                                                                                                                                                           \
		"an expression that each fork evaluates after its cell: the largest number "                                                                                                                                                \
		"wins; null: the first cell that succeeds") ","                                                                                                                                                                             \
							    "\"keep\":{\"type\":\"string\",\"enum\":[\"winner\",\"none\"],\"description\":\"winner: its state becomes the session's\"}," COUNT_FIELD(                                       \
								    "concurrency",                                                                                                                                                          \
								    "cells that run at once; default: all") ","                                                                                                                             \
													    "\"timeout\":{\"type\":[\"number\",\"null\"],\"minimum\":0,\"description\":\"time limit of each cell in seconds\"}," DROP_FIELD \
													    "},"                                                                                                                            \
													    "\"additionalProperties\":false}"
#define BATCH_FIELDS                                                                                                                                                                                              \
	"\"runs\":{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"object\"]},\"description\":\"cells: code, or an object with code, "                                                                       \
	"timeout, memory and max_output\"}," COUNT_FIELD(                                                                                                                                                         \
		"concurrency",                                                                                                                                                                                    \
		"runs at once; default 8") ","                                                                                                                                                                    \
					   "\"timeout\":{\"type\":[\"number\",\"null\"],\"minimum\":0,\"description\":\"time limit of each run in seconds\"},"                                                    \
					   "\"memory\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":1099511627776,\"description\":\"bytes that each process of a run may allocate; 0: the session's limit\"}," \
					   "\"max_output\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":1099511627776,\"description\":\"bytes of output that a result has; 0: the session's limit\"}," DROP_FIELD
#define BATCH_BODY "{\"type\":\"object\",\"properties\":{" BATCH_FIELDS "},\"required\":[\"runs\"],\"additionalProperties\":false}"
#define NEW_BATCH_BODY                                                  \
	"{\"type\":\"object\",\"properties\":{" BATCH_FIELDS "," FIELD( \
		"workspace_id", "[\"string\",\"null\"]", "of the new session") "},\"required\":[\"runs\"],\"additionalProperties\":false}"
#define POINT_FIELD "\"point\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":200,\"description\":\"the kept state to continue from\"}"
#define POINT_BODY BODY("\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":200}," DROP_FIELD, "\"name\"")
#define HIBERNATE_BODY \
	"{\"type\":\"object\",\"properties\":{" FIELD("points", "\"boolean\"", "save the kept states, too; the latest 32") "}}"
#define REWIND_BODY                                                             \
	"{\"type\":\"object\",\"properties\":{" FIELD(                          \
		"name", "\"string\"",                                           \
		"of a point") ",\"cells\":{\"type\":\"integer\",\"minimum\":0," \
			      "\"description\":\"instead of a name: the number of cells to go back\"}},\"additionalProperties\":false}"
#define COMMIT_BODY                                                                                           \
	"{\"type\":\"object\",\"properties\":{\"paths\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}," \
	"\"description\":\"commit these files and folders; without it, all\"}," FIELD(                        \
		"force", "\"boolean\"", "also files that were changed in the real workspace since") "},\"additionalProperties\":false}"
#define PACKAGES_BODY BODY("\"packages\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}", "\"packages\"")
#define ANSWER_BODY                                                                                                                                                       \
	BODY("\"accept\":{\"type\":\"boolean\"}," FIELD("reason", "[\"string\",\"null\"]", "when rejecting: the reason to report to the code") "," FIELD(                 \
		     "args", "[\"object\",\"null\"]",                                                                                                                     \
		     "when accepting: run the call with these arguments instead") "," FIELD("always", "\"boolean\"",                                                      \
											    "when accepting: also accept every later call of this tool in this session"), \
	     "\"accept\"")
#define ALL_QUERY BODY(FIELD("all", "\"boolean\"", "include those of all clients; needs the scope admin, for approvals also approve"), "")

#define SAVED_QUERY                                                                                                                                                                                     \
	BODY(FIELD("all", "\"boolean\"",                                                                                                                                                                \
		   "include those of all clients; needs the scope admin") ","                                                                                                                           \
									  "\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"description\":\"sessions of a page; default 100\"}," FIELD( \
										  "after", "\"string\"", "next of the page before"),                                                                    \
	     "")
#define NOTEBOOK_QUERY BODY("\"timeout\":{\"type\":\"number\",\"minimum\":0,\"description\":\"time limit of each cell in seconds\"}", "")

#define LOG_QUERY BODY(FIELD("follow", "\"boolean\"", "false: end after the last output so far"), "")

#define AUDIT_QUERY                                                                                                                                                                                                                                              \
	BODY(FIELD("session", "\"string\"", "an id, or its beginning") "," FIELD("tool", "\"string\"", "a pattern") "," FIELD(                                                                                                                                   \
		     "decision", "\"string\"",                                                                                                                                                                                                                   \
		     "allow, deny, accepted, edited, rejected or timeout") "," FIELD("since", "\"string\"",                                                                                                                                                      \
										     "2026-11-15T05:06:40Z, 2026-11-15, or 15m: so long ago") ","                                                                                                                \
																	      "\"last\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"description\":\"at most so many; default 200\"}", \
	     "")
#define TRY_BODY                                                                                                                                                                        \
	"{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\",\"enum\":[\"tool\",\"shell\",\"install\",\"remove\",\"workflow\","                                          \
	"\"artifact\",\"server\"]},\"tool\":{\"type\":\"string\",\"minLength\":1}," FIELD("callable", "\"string\"", "of the tool") "," FIELD(                                           \
		"adapter", "\"string\"",                                                                                                                                                \
		"of the tool: cli, http, mcp") "," FIELD("args", "\"object\"",                                                                                                          \
							 "the arguments") ","                                                                                                           \
									  "\"principal\":{\"type\":\"string\",\"enum\":[\"code\",\"mcp\",\"http\",\"host\"]}},\"required\":[\"tool\"]," \
									  "\"additionalProperties\":false}"
#define LOGIN_BODY                                                                                               \
	"{\"type\":\"object\",\"properties\":{" FIELD("token", "\"string\"", "a token of the server") "," FIELD( \
		"code", "\"string\"", "instead: that of a one-time link") "},\"additionalProperties\":false}"
#define FRAME_QUERY BODY(FIELD("scripts", "\"boolean\"", "true: scripts of the markup run, in the frame"), "")
#define COMPLETE_BODY BODY("\"code\":{\"type\":\"string\",\"x-nul\":true,\"description\":\"the code before the cursor\"}", "\"code\"")

#define PATH_FIELD FIELD("path", "\"string\"", "below the workspace; without it the workspace itself")
#define FORMAT_FIELD(formats, words) "\"format\":{\"type\":\"string\",\"enum\":[" formats "],\"description\":\"" words "\"}"
#define GET_FORMATS                           \
	FORMAT_FIELD(                         \
		"\"bytes\",\"json\",\"tar\"", \
		"json: a description, of a folder its list; tar: a folder as an archive; default: a file's bytes, of a folder the list")
#define PUT_FORMATS                                  \
	FORMAT_FIELD("\"bytes\",\"tar\",\"folder\"", \
		     "tar: an archive to unpack into the folder; folder: make one, without a body; default: a file's bytes")
#define MODE_FIELD \
	"\"mode\":{\"type\":\"string\",\"description\":\"of the file, three octal digits; default: that of the file it replaces, else 644\"}"
#define RECURSIVE_FIELD FIELD("recursive", "\"boolean\"", "also a folder that is not empty")

#define SIZE_FIELD(name) "\"" name "\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":65535}"
#define COMMAND_WORDS                                                                                                                                       \
	"\"argv\":{\"type\":\"array\",\"minItems\":1,\"maxItems\":4096,\"items\":{\"type\":\"string\"},\"description\":\"the program and its arguments\"}," \
	"\"line\":{\"type\":\"string\",\"description\":\"instead: a line for /bin/sh -c\"}"
#define COMMAND_PLACE                                                                                                                             \
	"\"cwd\":{\"type\":[\"string\",\"null\"],\"description\":\"as the code sees it, or relative to the workspace; default: the workspace\"}," \
	"\"env\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"},\"description\":\"variables beside the session's\"}"
#define COMMAND_STREAMS                                                                                                          \
	"\"stdin\":{\"type\":\"boolean\",\"description\":\"whether it gets input; else its stdin is at its end\"},"              \
	"\"blocks\":{\"type\":\"boolean\",\"description\":\"it waits while output is not read, instead of losing the oldest\"}," \
	"\"tty\":{\"type\":[\"object\",\"null\"],\"properties\":{" SIZE_FIELD("rows") "," SIZE_FIELD(                            \
		"cols") "},\"additionalProperties\":false,"                                                                      \
			"\"description\":\"a terminal for all three streams\"}"
#define COMMAND_BODY                                                                                                                                  \
	"{\"type\":\"object\",\"properties\":{" COMMAND_WORDS "," COMMAND_PLACE "," COMMAND_STREAMS ","                                               \
	"\"timeout\":{\"type\":[\"number\",\"null\"],\"minimum\":0,\"maximum\":1e9,\"description\":\"seconds, then it is killed; 0 or null: none\"}," \
	"\"tag\":{\"type\":[\"string\",\"null\"],\"maxLength\":200,\"description\":\"the client's own name for it\"}},\"additionalProperties\":false}"
#define STDIN_BODY                                                                                                                    \
	"{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"x-nul\":true},\"base64\":{\"type\":\"string\"}," FIELD( \
		"close", "\"boolean\"", "no more comes") "},\"additionalProperties\":false}"
#define SIGNAL_BODY BODY(FIELD("signal", "\"string\"", "as TERM, KILL, INT; to its process group"), "\"signal\"")
#define RESIZE_BODY BODY(SIZE_FIELD("rows") "," SIZE_FIELD("cols"), "\"rows\",\"cols\"")

#define NO_TAGS "{\"properties\":{\"tags\":null}}"
/* Creates or replaces. */
#define DESCRIBED "{\"required\":[\"name\",\"source\",\"description\"]}"
#define OVERWRITES "{\"overwrite\":true}"
#define ANY_DATA \
	"{\"properties\":{\"data\":{\"x-nul\":true,\"description\":\"a string or any JSON value\"},\"type\":null},\"required\":[\"name\",\"data\"]}"
#define METADATA_TEXT "{\"properties\":{\"metadata\":{\"type\":\"string\",\"description\":\"a JSON object\"}}}"

/* Workflows were called skills once: the same routes under two names. */
#define LISTED cell__handle_operation, OF(WORKFLOWS_LIST), .then = cell__answer_workflows, .answer = "Workflows"
#define FOUND cell__handle_operation, OF(WORKFLOWS_SEARCH), .then = cell__answer_workflows, .answer = "Workflows"
#define CREATED                                                                                                              \
	cell__handle_operation, OF(WORKFLOWS_CREATE), .takes = DESCRIBED, .sets = OVERWRITES, .then = cell__answer_workflow, \
		.answer = "Workflow", .summary = "Creates or replaces a workflow"
#define SHOWN                                                                                           \
	cell__handle_operation, OF(WORKFLOWS_GET), .then = cell__answer_workflow, .answer = "Workflow", \
		.summary = "Returns a workflow with its source"
#define DELETED \
	cell__handle_operation, OF(WORKFLOWS_DELETE), .then = cell__answer_deleted, .answer = "True", .summary = "Deletes a workflow"

const struct cell__route cell__routes[] = {
	{ GET, "/health", CELL_SCOPE_OPEN, cell__handle_health, .status = 200, .answer = "Health", .unlogged = true,
	  .summary = "Reports whether the server is up" },
	{ GET, "/ready", CELL_SCOPE_OPEN, cell__handle_ready, .status = 200, .answer = "Ready", .unlogged = true,
	  .summary = "Reports whether a session can be opened and the storage answers; 503 if not" },
	{ GET, "/started", CELL_SCOPE_OPEN, cell__handle_started, .status = 200, .answer = "Started", .unlogged = true,
	  .summary = "Reports that the server has started, ready or not; before that it is 503" },
	{ POST, "/execute", CELL_SCOPE_RUN, cell__handle_execute, .lasting = true, .body = EXECUTE_BODY, .session_header = true,
	  .status = 200, .answer = "Execute",
	  .summary =
		  "Runs a cell and waits for its result; without X-Session-ID in a new session, which ends after a minute unless it is used again" },
	{ POST, "/run_code", CELL_SCOPE_RUN, cell__handle_run_code, .body = RUN_CODE_BODY, .basic = true, .status = 200,
	  .answer = "RunCode", .summary = "Runs a program in a fresh, confined process, as SandboxFusion does; needs --sandbox-fusion" },
	{ POST, "/sessions", CELL_SCOPE_RUN, cell__handle_sessions, .body = SESSION_BODY, .optional_body = true, .status = 200,
	  .answer = "SessionId", .summary = "Opens a session" },
	{ POST, "/reset", CELL_SCOPE_RUN, cell__handle_reset, .session_header = true, .status = 200, .answer = "Reset",
	  .summary = "Ends a session" },
	{ GET, "/info", CELL_SCOPE_READ, cell__handle_info, .session_header = true, .status = 200, .answer = "Info",
	  .summary = "Returns a short overview of tools and workflows" },
	{ POST, "/install_deps", CELL_SCOPE_RUN, cell__handle_install, .lasting = true, .body = PACKAGES_BODY, .session_header = true,
	  .status = 200, .answer = "Packages", .summary = "Adds packages" },
	{ POST, "/uninstall_deps", CELL_SCOPE_RUN, cell__handle_uninstall, .lasting = true, .body = PACKAGES_BODY, .session_header = true,
	  .status = 200, .answer = "Packages", .summary = "Removes packages" },
	{ GET, "/api/tools", CELL_SCOPE_READ, cell__handle_operation, OF(TOOLS_LIST), .takes = NO_TAGS },
	{ GET, "/api/tools/search", CELL_SCOPE_READ, cell__handle_operation, OF(TOOLS_SEARCH), .takes = NO_TAGS },
	{ POST, "/api/tools/{name}/call", CELL_SCOPE_RUN, cell__handle_tool_call, .lasting = true, OF(TOOLS_CALL), .optional_body = true,
	  .answer = "Called",
	  .summary =
		  "Calls a tool, or \"tool.callable\", as code in the session would; without X-Session-ID in a session for this call only" },
	{ GET, "/api/workflows", CELL_SCOPE_READ, LISTED },
	{ POST, "/api/workflows", CELL_SCOPE_RUN, CREATED },
	{ GET, "/api/workflows/search", CELL_SCOPE_READ, FOUND },
	{ GET, "/api/workflows/{name}", CELL_SCOPE_READ, SHOWN },
	{ DELETE, "/api/workflows/{name}", CELL_SCOPE_RUN, DELETED },
	{ GET, "/api/skills", CELL_SCOPE_READ, LISTED, .former = true },
	{ POST, "/api/skills", CELL_SCOPE_RUN, CREATED, .former = true },
	{ GET, "/api/skills/search", CELL_SCOPE_READ, FOUND, .former = true },
	{ GET, "/api/skills/{name}", CELL_SCOPE_READ, SHOWN, .former = true },
	{ DELETE, "/api/skills/{name}", CELL_SCOPE_RUN, DELETED, .former = true },
	{ GET, "/api/artifacts", CELL_SCOPE_READ, cell__handle_operation, OF(ARTIFACTS_LIST) },
	{ POST, "/api/artifacts", CELL_SCOPE_RUN, cell__handle_artifact_save, OF(ARTIFACTS_SAVE), .takes = ANY_DATA,
	  .summary = "Saves a text or a JSON value as an artifact and replaces an existing one of this name" },
	{ GET, "/api/artifacts/{name...}", CELL_SCOPE_READ, cell__handle_artifact_get, OF(ARTIFACTS_LOAD), .answer = "bytes",
	  .summary = "Returns the data of an artifact: JSON for strings and JSON values, else bytes" },
	{ PUT, "/api/artifacts/{name...}", CELL_SCOPE_RUN, cell__handle_artifact_put, OF(ARTIFACTS_SAVE), .takes = METADATA_TEXT,
	  .raw = true },
	{ DELETE, "/api/artifacts/{name...}", CELL_SCOPE_RUN, cell__handle_artifact_delete, OF(ARTIFACTS_DELETE) },
	{ GET, "/api/deps", CELL_SCOPE_READ, cell__handle_operation, OF(DEPS_LIST) },
	{ POST, "/api/deps/add", CELL_SCOPE_RUN, cell__handle_operation, .lasting = true, OF(DEPS_ADD), .then = cell__answer_sync },
	{ POST, "/api/deps/remove", CELL_SCOPE_RUN, cell__handle_operation, .lasting = true, OF(DEPS_REMOVE), .then = cell__answer_removed,
	  .answer = "Removed" },
	{ POST, "/api/deps/sync", CELL_SCOPE_RUN, cell__handle_operation, .lasting = true, OF(DEPS_SYNC),
	  .takes = "{\"properties\":{\"quick\":null}}", .then = cell__answer_sync },
	{ GET, "/v1/sessions", CELL_SCOPE_READ, cell__handle_v1_list, .gather = "sessions", .query = ALL_QUERY, .status = 200,
	  .answer = "Sessions", .summary = "Lists the client's own sessions" },
	{ POST, "/v1/sessions", CELL_SCOPE_RUN, cell__handle_v1_open, .body = SESSION_BODY, .optional_body = true, .status = 201,
	  .answer = "Session", .summary = "Opens a session" },
	{ GET, "/v1/sessions/{session}", CELL_SCOPE_READ, cell__handle_v1_get, .status = 200, .answer = "Session",
	  .summary = "Returns a session" },
	{ DELETE, "/v1/sessions/{session}", CELL_SCOPE_RUN, cell__handle_v1_delete, .status = 204, .summary = "Ends a session" },
	{ POST, "/v1/sessions/{session}/interrupt", CELL_SCOPE_RUN, cell__handle_v1_interrupt, .status = 204,
	  .summary = "Interrupts the running cell" },
	{ POST, "/v1/sessions/{session}/reset", CELL_SCOPE_RUN, cell__handle_v1_reset, .status = 200, .answer = "Session",
	  .summary = "Starts a fresh kernel under the same id" },
	{ GET, "/v1/sessions/{session}/variables", CELL_SCOPE_READ, cell__handle_v1_variables, .status = 200, .answer = "Variables",
	  .summary = "Lists the variables of a session, without running its code; busy while a cell runs" },
	{ POST, "/v1/sessions/{session}/hibernate", CELL_SCOPE_RUN, cell__handle_v1_hibernate, .lasting = true, .body = HIBERNATE_BODY,
	  .optional_body = true, .status = 200, .answer = "Hibernated",
	  .summary = "Saves a session and ends its process; its next use wakes it" },
	{ GET, "/v1/sessions/{session}/notebook", CELL_SCOPE_READ, cell__handle_v1_notebook_get, .status = 200, .answer = "Object",
	  .summary = "Makes a Jupyter notebook of the session's recording: cells, output, values, plots, errors; needs --record" },
	{ POST, "/v1/sessions/{session}/notebook", CELL_SCOPE_RUN, cell__handle_v1_notebook_run, .lasting = true, .raw = true,
	  .query = NOTEBOOK_QUERY, .status = 200, .answer = "NotebookRun",
	  .summary = "Runs the code cells of a Jupyter notebook, up to the first that fails" },
	{ GET, "/v1/saved", CELL_SCOPE_READ, cell__handle_v1_saved, .query = SAVED_QUERY, .status = 200, .answer = "Saved",
	  .summary = "Lists the client's saved sessions, the latest first, in pages" },
	{ POST, "/v1/sessions/{session}/fork", CELL_SCOPE_RUN, cell__handle_v1_fork, .lasting = true, .body = FORK_BODY,
	  .optional_body = true, .status = 201, .answer = "Fork",
	  .summary = "Opens a session that continues from the state of this one; with n several, as {\"sessions\"}" },
	{ GET, "/v1/sessions/{session}/checkpoints", CELL_SCOPE_READ, cell__handle_v1_points, .status = 200, .answer = "Points",
	  .summary = "Lists the kept states of a session, the latest first" },
	{ POST, "/v1/sessions/{session}/checkpoints", CELL_SCOPE_RUN, cell__handle_v1_checkpoint, .lasting = true, .body = POINT_BODY,
	  .status = 201, .answer = "Points", .summary = "Keeps the current state of a session under a name" },
	{ DELETE, "/v1/sessions/{session}/checkpoints/{name}", CELL_SCOPE_RUN, cell__handle_v1_drop_point, .status = 204,
	  .summary = "Drops a kept state" },
	{ POST, "/v1/sessions/{session}/rewind", CELL_SCOPE_RUN, cell__handle_v1_rewind, .lasting = true, .body = REWIND_BODY,
	  .status = 200, .answer = "Session", .summary = "Continues from a kept state" },
	{ GET, "/v1/sessions/{session}/files/diff", CELL_SCOPE_READ, cell__handle_v1_files_diff, .status = 200, .answer = "Diff",
	  .summary = "Returns what the code changed in the layer over its workspace" },
	{ POST, "/v1/sessions/{session}/files/commit", CELL_SCOPE_APPROVE, cell__handle_v1_files_commit, .lasting = true,
	  .body = COMMIT_BODY, .optional_body = true, .status = 200, .answer = "Committed",
	  .summary = "Writes changes of the layer to the real workspace" },
	{ POST, "/v1/sessions/{session}/files/discard", CELL_SCOPE_RUN, cell__handle_v1_files_discard, .status = 204,
	  .summary = "Drops the changes of the layer" },
	{ GET, "/v1/sessions/{session}/files", CELL_SCOPE_READ, cell__handle_v1_file_get, .query = BODY(PATH_FIELD "," GET_FORMATS, ""),
	  .status = 200, .answer = "bytes", .summary = "Lists the workspace, or returns a file or folder of any name" },
	{ PUT, "/v1/sessions/{session}/files", CELL_SCOPE_RUN, cell__handle_v1_file_put,
	  .query = BODY(PATH_FIELD "," PUT_FORMATS "," MODE_FIELD, ""), .raw = true, .streamed = true, .status = 201, .answer = "Written",
	  .summary = "Unpacks an archive into the workspace, or writes a file of any name" },
	{ DELETE, "/v1/sessions/{session}/files", CELL_SCOPE_RUN, cell__handle_v1_file_delete,
	  .query = BODY(PATH_FIELD "," RECURSIVE_FIELD, "\"path\""), .status = 204,
	  .summary = "Removes a file, a link or a folder of any name" },
	{ GET, "/v1/sessions/{session}/files/{path...}", CELL_SCOPE_READ, cell__handle_v1_file_get, .query = BODY(GET_FORMATS, ""),
	  .status = 200, .answer = "bytes",
	  .summary = "Returns a file of the workspace, with ranges; of a folder the list, or an archive" },
	{ PUT, "/v1/sessions/{session}/files/{path...}", CELL_SCOPE_RUN, cell__handle_v1_file_put,
	  .query = BODY(PUT_FORMATS "," MODE_FIELD, ""), .raw = true, .streamed = true, .status = 201, .answer = "Written",
	  .summary = "Writes a file of the workspace, with the folders that lead to it" },
	{ DELETE, "/v1/sessions/{session}/files/{path...}", CELL_SCOPE_RUN, cell__handle_v1_file_delete, .query = BODY(RECURSIVE_FIELD, ""),
	  .status = 204, .summary = "Removes a file, a link or a folder of the workspace" },
	{ POST, "/v1/sessions/{session}/race", CELL_SCOPE_RUN, cell__handle_v1_race, .lasting = true, .body = RACE_BODY, .status = 200,
	  .answer = "Race", .summary = "Runs cells side by side in forks of a session; the winner's state becomes the session's" },
	{ POST, "/v1/sessions/{session}/batch", CELL_SCOPE_RUN, cell__handle_v1_session_batch, .body = BATCH_BODY, .status = 202,
	  .answer = "Batch",
	  .summary =
		  "Runs cells, each in a fork of the session's state; with Accept: text/event-stream the results are the answer, as they come" },
	{ POST, "/v1/batch", CELL_SCOPE_RUN, cell__handle_v1_batch, .body = NEW_BATCH_BODY, .status = 202, .answer = "Batch",
	  .summary = "The same in forks of a new session" },
	{ GET, "/v1/batches/{batch}", CELL_SCOPE_READ, cell__handle_v1_batch_get, .status = 200, .answer = "Batch",
	  .summary = "Returns how far a batch is" },
	{ GET, "/v1/batches/{batch}/events", CELL_SCOPE_READ, cell__handle_v1_batch_events, .status = 200, .answer = "events",
	  .summary = "Streams the results of a batch, from Last-Event-ID on" },
	{ DELETE, "/v1/batches/{batch}", CELL_SCOPE_RUN, cell__handle_v1_batch_delete, .status = 204,
	  .summary = "Cancels a batch, or removes one that has ended" },
	{ GET, "/v1/tasks", CELL_SCOPE_READ, cell__handle_v1_tasks, .gather = "tasks", .status = 200, .answer = "Tasks",
	  .summary = "Lists the client's own tasks, without their answers" },
	{ GET, "/v1/tasks/{task}", CELL_SCOPE_READ, cell__handle_v1_task_get, .status = 200, .answer = "Task",
	  .summary = "Returns a task, with the answer of its request when it has ended" },
	{ GET, "/v1/tasks/{task}/events", CELL_SCOPE_READ, cell__handle_v1_task_events, .status = 200, .answer = "events",
	  .summary = "Streams the progress of a task and its answer, from Last-Event-ID on" },
	{ DELETE, "/v1/tasks/{task}", CELL_SCOPE_RUN, cell__handle_v1_task_delete, .status = 204,
	  .summary = "Cancels a task, or removes one that has ended" },
	{ POST, "/v1/sessions/{session}/runs", CELL_SCOPE_RUN, cell__handle_v1_run, .body = RUN_BODY, .status = 202, .answer = "Run",
	  .summary = "Starts a cell; with Accept: text/event-stream its events are the answer" },
	{ GET, "/v1/sessions/{session}/runs", CELL_SCOPE_READ, cell__handle_v1_runs, .status = 200, .answer = "Runs",
	  .summary = "Lists the runs of a session that wait, run or are kept, without their results; the newest first" },
	{ DELETE, "/v1/sessions/{session}/runs/{run}", CELL_SCOPE_RUN, cell__handle_v1_run_cancel, .status = 202, .answer = "Run",
	  .summary = "Cancels a run: one that waits does not begin, one that runs is interrupted and, if it goes on, killed" },
	{ GET, "/v1/sessions/{session}/runs/{run}", CELL_SCOPE_READ, cell__handle_v1_run_get, .status = 200, .answer = "Run",
	  .summary = "Returns a run, with its result when it has ended" },
	{ GET, "/v1/sessions/{session}/runs/{run}/events", CELL_SCOPE_READ, cell__handle_v1_events, .status = 200, .answer = "events",
	  .summary =
		  "Streams the events of a run: chunk, image, display, approval, approval_ended, call_started, call_ended, result; from Last-Event-ID on" },
	{ GET, "/v1/sessions/{session}/commands", CELL_SCOPE_READ, cell__handle_v1_commands, .status = 200, .answer = "Commands",
	  .summary = "Lists the commands of a session: those that run, and those that ended lately" },
	{ POST, "/v1/sessions/{session}/commands", CELL_SCOPE_RUN, cell__handle_v1_command_start, .body = COMMAND_BODY, .status = 201,
	  .answer = "Command",
	  .summary = "Starts a program where the session's code runs; with Accept: text/event-stream its output is the answer" },
	{ GET, "/v1/sessions/{session}/commands/{command}", CELL_SCOPE_READ, cell__handle_v1_command_get, .status = 200,
	  .answer = "Command", .summary = "Returns a command, with its exit code when it has ended" },
	{ GET, "/v1/sessions/{session}/commands/{command}/output", CELL_SCOPE_READ, cell__handle_v1_command_output, .status = 200,
	  .answer = "events", .summary = "Streams the output of a command: started, chunk, gap, ended; from Last-Event-ID on" },
	{ POST, "/v1/sessions/{session}/commands/{command}/stdin", CELL_SCOPE_RUN, cell__handle_v1_command_stdin, .body = STDIN_BODY,
	  .status = 204, .summary = "Writes to the stdin of a command, or closes it" },
	{ POST, "/v1/sessions/{session}/commands/{command}/signal", CELL_SCOPE_RUN, cell__handle_v1_command_signal, .body = SIGNAL_BODY,
	  .status = 204, .summary = "Sends a signal to a command; KILL ends all that it has started" },
	{ POST, "/v1/sessions/{session}/commands/{command}/resize", CELL_SCOPE_RUN, cell__handle_v1_command_resize, .body = RESIZE_BODY,
	  .status = 204, .summary = "Resizes the terminal of a command" },
	{ DELETE, "/v1/sessions/{session}/commands/{command}", CELL_SCOPE_RUN, cell__handle_v1_command_delete, .status = 204,
	  .summary = "Kills a command and forgets it" },
	{ GET, "/v1/sessions/{session}/log", CELL_SCOPE_READ, cell__handle_v1_log, .query = LOG_QUERY, .status = 200, .answer = "events",
	  .summary = "Streams the last output of all cells of a session, and what comes: cell, chunk, ended; gap where some was lost" },
	{ GET, "/v1/sessions/{session}/events", CELL_SCOPE_READ, cell__handle_v1_session_events, .query = LOG_QUERY, .status = 200,
	  .answer = "events",
	  .summary = "Streams all that happened in a session, from its first cell on, and what comes; needs --console" },
	{ POST, "/v1/sessions/{session}/complete", CELL_SCOPE_RUN, cell__handle_v1_complete, .body = COMPLETE_BODY, .status = 200,
	  .answer = "Completions", .summary = "Returns names that could follow the code before the cursor, while no cell runs" },
	{ GET, "/v1/sessions/{session}/approvals", CELL_SCOPE_READ, cell__handle_v1_approvals, .status = 200, .answer = "Approvals",
	  .summary = "Lists the calls that wait for an answer" },
	{ POST, "/v1/sessions/{session}/approvals/{id}", CELL_SCOPE_APPROVE, cell__handle_v1_answer, .body = ANSWER_BODY, .status = 204,
	  .summary = "Accepts, edits or rejects a call" },
	{ GET, "/v1/approvals", CELL_SCOPE_READ, cell__handle_v1_all_approvals, .gather = "approvals", .query = ALL_QUERY, .status = 200,
	  .answer = "Approvals", .summary = "Lists the waiting calls of all of the client's sessions" },
	{ GET, "/metrics", CELL_SCOPE_METRICS, cell__handle_metrics, .gather = "", .status = 200, .answer = "text",
	  .summary = "Returns metrics for Prometheus" },
	{ GET, "/v1/whoami", CELL_SCOPE_ANY, cell__handle_v1_whoami, .status = 200, .answer = "Whoami",
	  .summary = "Returns the token's name and scopes, and the server's version" },
	{ GET, "/v1/policy", CELL_SCOPE_ADMIN, cell__handle_v1_policy, .status = 200, .answer = "Policy",
	  .summary = "Returns the policy of the server's sessions" },
	{ POST, "/v1/policy/try", CELL_SCOPE_ADMIN, cell__handle_v1_policy_try, .body = TRY_BODY, .status = 200, .answer = "Verdict",
	  .summary = "Returns the decision of the policy about a call, which is not made" },
	{ GET, "/v1/audit", CELL_SCOPE_ADMIN, cell__handle_v1_audit, .query = AUDIT_QUERY, .status = 200, .answer = "Audit",
	  .summary = "Returns the newest records of the audit log, the oldest of them first" },
	{ GET, "/v1/doctor", CELL_SCOPE_ADMIN, cell__handle_v1_doctor, .status = 200, .answer = "Doctor",
	  .summary = "Returns the executors of this machine, and why some do not work" },
	{ GET, "/v1/logins", CELL_SCOPE_READ, cell__handle_v1_logins, .status = 200, .answer = "Logins",
	  .summary = "Lists the MCP servers with logins, and where a person can log in" },
	{ GET, "/oauth/login", CELL_SCOPE_OPEN, cell__handle_login_page, .status = 200, .answer = "html", .is_page = true,
	  .summary = "The page on which a person logs in at an MCP server; ?server=NAME" },
	{ POST, "/oauth/login", CELL_SCOPE_OPEN, cell__handle_login, .raw = true, .status = 303, .is_page = true,
	  .summary = "The form of that page: leads to the authorization server" },
	{ GET, "/oauth/callback", CELL_SCOPE_OPEN, cell__handle_login_callback, .status = 200, .answer = "html", .is_page = true,
	  .summary = "Where the authorization server sends the browser back to" },
	{ GET, "/console", CELL_SCOPE_OPEN, cell__handle_console_start, .status = 302, .summary = "Leads to the console" },
	{ GET, "/console/", CELL_SCOPE_OPEN, cell__handle_console_page, .status = 200, .answer = "html",
	  .summary = "The console for browsers; needs --console" },
	{ POST, "/console/login", CELL_SCOPE_OPEN, cell__handle_console_login, .body = LOGIN_BODY, .status = 200, .answer = "Login",
	  .summary = "Logs a browser in: the answer sets a cookie, which is good together with csrf in X-CSRF-Token" },
	{ POST, "/console/logout", CELL_SCOPE_OPEN, cell__handle_console_logout, .status = 204, .summary = "Removes the cookie" },
	{ GET, "/console/frame", CELL_SCOPE_OPEN, cell__handle_console_frame, .query = FRAME_QUERY, .status = 200, .answer = "html",
	  .summary = "The frame in which the console shows markup that code has made, with an origin of its own" },
	{ GET, "/console/{file...}", CELL_SCOPE_OPEN, cell__handle_console_file, .status = 200, .answer = "bytes",
	  .summary = "A file of the console, compressed by gzip" },
	{ GET, "/docs", CELL_SCOPE_OPEN, cell__handle_docs, .status = 200, .answer = "html",
	  .summary = "A page that shows this document in a browser; it asks for a token" },
	{ GET, "/openapi.json", CELL_SCOPE_READ, cell__handle_openapi, .status = 200, .answer = "Object", .summary = "This document" },
	{ 0 },
};
_Static_assert(sizeof(cell__routes) / sizeof(cell__routes[0]) <= CELL_SERVER_MAX_ROUTES, "CELL_SERVER_MAX_ROUTES");

#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
#define TEXT "{\"type\":\"string\"}"
#define OR_NULL "{\"type\":[\"string\",\"null\"]}"
#define REF(name) "{\"$ref\":\"#/components/schemas/" name "\"}"
#define OBJECT(required, properties) "{\"type\":\"object\",\"required\":[" required "],\"properties\":{" properties "}}"
#define LIST(item) "{\"type\":\"array\",\"items\":" item "}"

const struct cell__schema cell__schemas[] = {
	{ "Error", OBJECT("\"detail\"", "\"detail\":{\"type\":[\"string\",\"array\"]},\"code\":" TEXT) },
	{ "Health", OBJECT("\"status\",\"uptime_seconds\"", "\"status\":" TEXT ",\"uptime_seconds\":{\"type\":\"number\"}") },
	{ "Started", OBJECT("\"status\"", "\"status\":{\"enum\":[\"started\",\"starting\"]}") },
	{ "Ready",
	  OBJECT("\"status\",\"executor\",\"storage\"", "\"status\":{\"enum\":[\"ready\",\"not ready\",\"draining\",\"starting\"]},"
							"\"executor\":{\"type\":\"boolean\"},\"storage\":{\"type\":\"boolean\"}") },
	{ "Execute",
	  OBJECT("\"value\",\"stdout\",\"error\",\"execution_time_ms\",\"session_id\"",
		 "\"value\":{},\"stdout\":" TEXT ",\"stderr\":" TEXT ",\"error\":" OR_NULL ",\"error_code\":" OR_NULL
		 ",\"durable\":{\"type\":\"boolean\"},\"state\":{\"enum\":[\"kept\",\"restored\",\"lost\"]},\"execution_time_ms\":{\"type\":\"number\"},\"session_id\":" TEXT) },
	{ "CommandRun",
	  OBJECT("\"status\",\"execution_time\",\"return_code\",\"stdout\",\"stderr\"",
		 "\"status\":{\"enum\":[\"Finished\",\"TimeLimitExceeded\",\"Error\"]},\"execution_time\":{\"type\":\"number\"},"
		 "\"return_code\":{\"type\":[\"integer\",\"null\"]},\"stdout\":" TEXT ",\"stderr\":" TEXT) },
	{ "RunCode",
	  OBJECT("\"status\",\"message\",\"compile_result\",\"run_result\",\"executor_pod_name\",\"files\"",
		 "\"status\":{\"enum\":[\"Success\",\"Failed\",\"SandboxError\"]},\"message\":" TEXT
		 ",\"compile_result\":{\"type\":\"null\"},\"run_result\":{\"anyOf\":[" REF(
			 "CommandRun") ",{\"type\":\"null\"}]},\"executor_pod_name\":{\"type\":\"null\"},\"files\":{\"type\":\"object\"}") },
	{ "SessionId", OBJECT("\"session_id\"", "\"session_id\":" TEXT) },
	{ "Reset", OBJECT("\"status\",\"session_id\"", "\"status\":" TEXT ",\"session_id\":" TEXT) },
	{ "Name", OBJECT("\"name\",\"description\"", "\"name\":" TEXT ",\"description\":" TEXT) },
	{ "Info", OBJECT("\"tools\",\"workflows\",\"artifacts_path\"",
			 "\"tools\":" LIST(REF("Name")) ",\"workflows\":" LIST(REF("Name")) ",\"artifacts_path\":" TEXT) },
	{ "Packages", OBJECT("\"installed\",\"already_present\",\"removed\",\"not_found\",\"failed\"",
			     "\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"removed\":" STRINGS ",\"not_found\":" STRINGS
			     ",\"failed\":" STRINGS) },
	{ "Called", OBJECT("\"value\"", "\"value\":{},\"parts\":" LIST("{\"type\":\"object\"}")) },
	{ "Workflow", OBJECT("\"name\",\"description\",\"params\"",
			     "\"name\":" TEXT ",\"description\":" TEXT ",\"params\":{\"type\":\"object\"},\"source\":" TEXT) },
	{ "Workflows", LIST(REF("Workflow")) },
	{ "Removed", OBJECT("\"removed\",\"not_found\",\"failed\",\"removed_from_config\"",
			    "\"removed\":" STRINGS ",\"not_found\":" STRINGS ",\"failed\":" STRINGS
			    ",\"removed_from_config\":{\"type\":\"boolean\"}") },
	{ "True", "{\"const\":true}" },
	{ "Object", "{\"type\":\"object\"}" },
	{ "Session",
	  OBJECT("\"session_id\",\"workspace_id\",\"owner\",\"client\",\"created_at\",\"idle_seconds\",\"state\",\"runs\",\"cells\",\"state_id\",\"awake_id\",\"pending\","
		 "\"executor\",\"running\",\"pid\",\"memory_bytes\",\"cpu_seconds\",\"parent\",\"points\",\"point_bytes\"",
		 "\"session_id\":" TEXT ",\"workspace_id\":" OR_NULL ",\"owner\":" TEXT ",\"client\":" TEXT ",\"created_at\":" TEXT
		 ",\"idle_seconds\":{\"type\":\"number\"},\"state\":{\"enum\":[\"idle\",\"busy\"]},\"runs\":{\"type\":\"integer\"},"
		 "\"cells\":{\"type\":\"integer\"},\"state_id\":" OR_NULL ",\"awake_id\":" OR_NULL
		 ",\"pending\":{\"type\":\"integer\"},\"executor\":" TEXT ",\"running\":{\"type\":[\"object\",\"null\"]},"
		 "\"pid\":{\"type\":[\"integer\",\"null\"]},\"memory_bytes\":{\"type\":[\"integer\",\"null\"]},"
		 "\"cpu_seconds\":{\"type\":[\"number\",\"null\"]},\"parent\":" OR_NULL ",\"points\":{\"type\":\"integer\"},"
		 "\"point_bytes\":{\"type\":\"integer\"},\"isolation\":" OR_NULL) },
	{ "Sessions", OBJECT("\"sessions\"", "\"sessions\":" LIST(REF("Session"))) },
	{ "Fork", "{\"anyOf\":[" REF("Session") "," REF("Sessions") "]}" },
	{ "Race", OBJECT("\"winner\",\"scores\",\"results\"",
			 "\"winner\":{\"type\":[\"integer\",\"null\"]},\"scores\":" LIST(
				 "{\"type\":[\"number\",\"null\"]}") ",\"results\":" LIST("{\"type\":\"object\"}")) },
	{ "Batch",
	  OBJECT("\"batch_id\",\"state\",\"runs\",\"running\",\"ended\",\"failed\",\"last_event\"",
		 "\"batch_id\":" TEXT ",\"state\":{\"enum\":[\"running\",\"ended\"]},\"runs\":{\"type\":\"integer\"},\"running\":"
		 "{\"type\":\"integer\"},\"ended\":{\"type\":\"integer\"},\"failed\":{\"type\":\"integer\"},\"last_event\":{\"type\":"
		 "\"integer\"}") },
	{ "Task", OBJECT("\"task_id\",\"request\",\"state\",\"created_at\",\"status\",\"last_event\",\"answer\"",
			 "\"task_id\":" TEXT ",\"request\":" TEXT ",\"state\":{\"enum\":[\"running\",\"ended\"]},\"created_at\":" TEXT
			 ",\"status\":{\"type\":[\"integer\",\"null\"]},\"last_event\":{\"type\":\"integer\"}"
			 ",\"answer\":{}") },
	{ "Tasks", OBJECT("\"tasks\"", "\"tasks\":" LIST(OBJECT(
					       "\"task_id\",\"request\",\"state\",\"created_at\",\"status\",\"last_event\"",
					       "\"task_id\":" TEXT ",\"request\":" TEXT
					       ",\"state\":{\"enum\":[\"running\",\"ended\"]},\"created_at\":" TEXT
					       ",\"status\":{\"type\":[\"integer\",\"null\"]},\"last_event\":{\"type\":\"integer\"}"))) },
	{ "Variables", OBJECT("\"variables\",\"more\"",
			      "\"variables\":" LIST(OBJECT("\"name\",\"type\",\"size\",\"preview\"",
							   "\"name\":" TEXT ",\"type\":" TEXT ",\"size\":{\"type\":[\"integer\",\"null\"]},"
							   "\"preview\":" TEXT)) ",\"more\":{\"type\":\"integer\"}") },
	{ "Hibernated", OBJECT("\"session_id\",\"bytes\",\"stored_bytes\",\"cells\",\"points\",\"not_carried\"",
			       "\"session_id\":" TEXT ",\"bytes\":{\"type\":\"integer\"},\"stored_bytes\":{\"type\":\"integer\"},\"cells\":"
			       "{\"type\":\"integer\"},\"points\":" STRINGS ",\"not_carried\":" LIST(OBJECT(
				       "\"kind\",\"name\",\"variables\"", "\"kind\":" TEXT ",\"name\":" TEXT ",\"variables\":" STRINGS))) },
	{ "NotebookRun", OBJECT("\"session_id\",\"cells\",\"results\"",
				"\"session_id\":" TEXT ",\"cells\":{\"type\":\"integer\"},\"results\":" LIST(REF("Execute"))) },
	{ "Saved",
	  OBJECT("\"sessions\",\"next\"",
		 "\"sessions\":" LIST(OBJECT(
			 "\"session_id\",\"owner\",\"workspace_id\",\"saved_at\",\"cells\",\"executor\",\"form\",\"bytes\",\"awake\"",
			 "\"session_id\":" TEXT ",\"owner\":" TEXT ",\"workspace_id\":" OR_NULL ",\"saved_at\":" TEXT
			 ",\"cells\":{\"type\":\"integer\"},\"executor\":" TEXT
			 ",\"form\":{\"enum\":[\"image\",\"portable\"]},\"bytes\":{\"type\":\"integer\"},\"awake\":{\"type\":\"boolean\"}")) ",\"next\":" OR_NULL) },
	{ "Points", OBJECT("\"points\"", "\"points\":" LIST(OBJECT("\"name\",\"cell\",\"automatic\",\"age_ms\"",
								   "\"name\":" TEXT ",\"cell\":{\"type\":\"integer\"},"
								   "\"automatic\":{\"type\":\"boolean\"},\"age_ms\":{\"type\":\"integer\"},"
								   "\"memory_bytes\":{\"type\":[\"integer\",\"null\"]}"))) },
	{ "Diff",
	  OBJECT("\"form\",\"files\",\"added\",\"changed\",\"deleted\",\"truncated\"",
		 "\"form\":{\"enum\":[\"overlay\",\"copy\"]},\"files\":" LIST(OBJECT(
			 "\"path\",\"change\",\"type\"",
			 "\"path\":" TEXT ",\"change\":{\"enum\":[\"added\",\"changed\",\"deleted\",\"type\",\"mode\"]},\"type\":" TEXT
			 ",\"size\":{\"type\":\"integer\"},\"old_size\":{\"type\":\"integer\"},\"diff\":" TEXT
			 ",\"protected\":{\"type\":\"boolean\"},\"conflict\":{\"type\":\"boolean\"}")) ",\"added\":{\"type\":\"integer\"},"
												       "\"changed\":{\"type\":\"integer\"},"
												       "\"deleted\":{\"type\":\"integer\"},"
												       "\"truncated\":{\"type\":\"boolean\"}") },
	{ "Committed", OBJECT("\"committed\",\"protected\",\"skipped\"",
			      "\"committed\":" STRINGS ",\"protected\":" STRINGS
			      ",\"skipped\":" LIST(OBJECT("\"path\",\"reason\"", "\"path\":" TEXT ",\"reason\":" TEXT))) },
	{ "Written", OBJECT("\"path\"", "\"path\":" TEXT ",\"bytes\":{\"type\":\"integer\"}") },
	{ "Run", OBJECT("\"run_id\",\"session_id\",\"state\",\"last_event\",\"result\"",
			"\"run_id\":{\"type\":\"integer\"},\"session_id\":" TEXT
			",\"state\":{\"enum\":[\"waiting\",\"running\",\"ended\"]},\"last_event\":{\"type\":\"integer\"},"
			"\"result\":{\"type\":[\"object\",\"null\"]}") },
	{ "Runs", OBJECT("\"runs\"",
			 "\"runs\":" LIST(OBJECT("\"run_id\",\"state\",\"last_event\"", "\"run_id\":{\"type\":\"integer\"},\"state\":" TEXT
											",\"last_event\":{\"type\":\"integer\"}"))) },
	{ "Command",
	  OBJECT("\"command_id\",\"pid\",\"argv\",\"cwd\",\"tag\",\"tty\",\"state\",\"started_at\",\"output\",\"dropped\",\"exit_code\","
		 "\"signal\",\"reason\"",
		 "\"command_id\":" TEXT ",\"pid\":{\"type\":\"integer\"},\"argv\":" STRINGS ",\"cwd\":" OR_NULL ",\"tag\":" OR_NULL
		 ",\"tty\":{\"type\":\"boolean\"},\"state\":{\"enum\":[\"running\",\"ended\"]},\"started_at\":" TEXT
		 ",\"output\":{\"type\":\"integer\"},\"dropped\":{\"type\":\"integer\"},\"exit_code\":{\"type\":[\"integer\",\"null\"]},"
		 "\"signal\":{\"type\":[\"integer\",\"null\"]},\"reason\":" OR_NULL) },
	{ "Commands", OBJECT("\"commands\"", "\"commands\":" LIST(REF("Command"))) },
	{ "Whoami", OBJECT("\"name\",\"scopes\",\"workspace\",\"version\",\"executor\",\"layers\",\"audit\"",
			   "\"name\":" TEXT ",\"scopes\":" STRINGS ",\"workspace\":" OR_NULL ",\"version\":" TEXT ",\"executor\":" TEXT
			   ",\"layers\":{\"type\":\"boolean\"},\"audit\":{\"type\":\"boolean\"}") },
	{ "Login", OBJECT("\"name\",\"scopes\",\"csrf\"", "\"name\":" TEXT ",\"scopes\":" STRINGS ",\"csrf\":" TEXT) },
	{ "Policy", OBJECT("\"source\",\"default\",\"rules\"",
			   "\"source\":" OR_NULL ",\"default\":{\"enum\":[\"allow\",\"ask\",\"deny\"]},\"rules\":{\"type\":\"integer\"}") },
	{ "Verdict", OBJECT("\"decision\",\"rule\",\"line\",\"name\",\"reason\",\"doubt\"",
			    "\"decision\":{\"enum\":[\"allow\",\"ask\",\"deny\"]},\"rule\":{\"type\":\"integer\"},\"line\":"
			    "{\"type\":\"integer\"},\"name\":" OR_NULL ",\"reason\":" OR_NULL ",\"doubt\":" OR_NULL) },
	{ "Audit",
	  OBJECT("\"records\",\"unreadable\"", "\"records\":" LIST("{\"type\":\"object\"}") ",\"unreadable\":{\"type\":\"integer\"}") },
	{ "Doctor", OBJECT("\"version\",\"executors\"", "\"version\":" TEXT ",\"executors\":" LIST("{\"type\":\"object\"}")) },
	{ "Completions",
	  OBJECT("\"prefix\",\"matches\",\"more\"", "\"prefix\":" TEXT ",\"matches\":" STRINGS ",\"more\":{\"type\":\"integer\"}") },
	{ "Logins",
	  OBJECT("\"logins\"", "\"logins\":" LIST(OBJECT("\"server\",\"needed\"",
							 "\"server\":" TEXT ",\"needed\":{\"type\":\"boolean\"},\"link\":" TEXT))) },
	{ "Approvals", OBJECT("\"approvals\"", "\"approvals\":" LIST("{\"type\":\"object\"}")) },
	{ NULL, NULL },
};
