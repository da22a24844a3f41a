/*
 * Every route.  A fixed path stands before one with a parameter in its place.
 */
#include "server/api.h"

#define GET "GET"
#define POST "POST"
#define PUT "PUT"
#define DELETE "DELETE"
#define END { NULL, CELL_KIND_ANY, false, false, NULL }

static const struct cell__field execute_fields[] = {
	{ "code", CELL_KIND_STRING, true, false, "Python, one cell" },
	{ "timeout", CELL_KIND_SECONDS, false, true, "seconds; 0 or null: the server's default" },
	END,
};
static const struct cell__field session_fields[] = {
	{ "workspace_id", CELL_KIND_NAME, false, true, "1-128 letters, digits, underscores or hyphens" },
	END,
};
static const struct cell__field packages_fields[] = { { "packages", CELL_KIND_STRINGS, true, false, NULL }, END };
static const struct cell__field package_fields[] = { { "package", CELL_KIND_NAME, true, false, "name, extras, versions" }, END };
static const struct cell__field workflow_fields[] = {
	{ "name", CELL_KIND_STRING, true, false, NULL },
	{ "source", CELL_KIND_STRING, true, false, "Python with a function run" },
	{ "description", CELL_KIND_STRING, true, false, NULL },
	END,
};
static const struct cell__field artifact_fields[] = {
	{ "name", CELL_KIND_STRING, true, false, "may have folders" },
	{ "data", CELL_KIND_ANY, true, false, "a text, or any JSON value" },
	{ "description", CELL_KIND_STRING, false, true, NULL },
	{ "metadata", CELL_KIND_OBJECT, false, true, NULL },
	END,
};
static const struct cell__field answer_fields[] = {
	{ "accept", CELL_KIND_BOOL, true, false, NULL },
	{ "reason", CELL_KIND_STRING, false, true, "for the code, when it is rejected" },
	{ "args", CELL_KIND_OBJECT, false, true, "accepted: run with these instead" },
	{ "always", CELL_KIND_BOOL, false, false, "accepted: and every later call of this tool in this session" },
	END,
};
static const struct cell__field call_fields[] = {
	{ "args", CELL_KIND_OBJECT, false, true, "by name" },
	END,
};
static const struct cell__field search_query[] = {
	{ "query", CELL_KIND_STRING, true, false, NULL },
	{ "limit", CELL_KIND_COUNT, false, false, NULL },
	END,
};
static const struct cell__field put_query[] = {
	{ "type", CELL_KIND_STRING, false, false, "text, json or bytes (default bytes)" },
	{ "description", CELL_KIND_STRING, false, false, NULL },
	{ "metadata", CELL_KIND_STRING, false, false, "a JSON object" },
	END,
};
static const struct cell__field all_query[] = {
	{ "all", CELL_KIND_BOOL, false, false, "those of everybody; needs the scope admin, for approvals also approve" },
	END,
};

const struct cell__route cell__routes[] = {
	{ GET, "/health", CELL_SCOPE_OPEN, cell__handle_health, .status = 200, .answer = "Health", .summary = "Is it up?" },
	{ POST, "/execute", CELL_SCOPE_RUN, cell__handle_execute, .body = execute_fields, .session_header = true, .status = 200,
	  .answer = "Execute", .summary = "Runs a cell and waits; without X-Session-ID in a new session" },
	{ POST, "/sessions", CELL_SCOPE_RUN, cell__handle_sessions, .body = session_fields, .closed = true, .optional_body = true, .status = 200,
	  .answer = "SessionId", .summary = "Opens a session" },
	{ POST, "/reset", CELL_SCOPE_RUN, cell__handle_reset, .session_header = true, .status = 200, .answer = "Reset",
	  .summary = "Ends a session" },
	{ GET, "/info", CELL_SCOPE_READ, cell__handle_info, .session_header = true, .status = 200, .answer = "Info",
	  .summary = "Tools and workflows in short" },
	{ POST, "/install_deps", CELL_SCOPE_RUN, cell__handle_packages, .body = packages_fields, .session_header = true, .status = 200,
	  .answer = "Packages", .summary = "Adds packages" },
	{ POST, "/uninstall_deps", CELL_SCOPE_RUN, cell__handle_packages, .body = packages_fields, .session_header = true, .status = 200,
	  .answer = "Packages", .summary = "Removes packages" },
	{ GET, "/api/tools", CELL_SCOPE_READ, cell__handle_tools, .session_header = true, .status = 200, .answer = "Tools",
	  .summary = "All tools" },
	{ GET, "/api/tools/search", CELL_SCOPE_READ, cell__handle_tools_search, .query = search_query, .session_header = true, .status = 200,
	  .answer = "Tools", .summary = "Tools that fit, best first" },
	{ POST, "/api/tools/{name}/call", CELL_SCOPE_RUN, cell__handle_tool_call, .body = call_fields, .optional_body = true,
	  .session_header = true, .status = 200, .answer = "Called",
	  .summary = "Calls a tool, or \"tool.callable\", as code in the session would; without X-Session-ID in one for this call" },
	{ GET, "/api/workflows", CELL_SCOPE_READ, cell__handle_workflows, .session_header = true, .status = 200, .answer = "Workflows",
	  .summary = "All workflows" },
	{ POST, "/api/workflows", CELL_SCOPE_RUN, cell__handle_workflow_create, .body = workflow_fields, .session_header = true,
	  .status = 200, .answer = "Workflow", .summary = "Creates or replaces a workflow" },
	{ GET, "/api/workflows/search", CELL_SCOPE_READ, cell__handle_workflows_search, .query = search_query, .session_header = true,
	  .status = 200, .answer = "Workflows", .summary = "Workflows that fit, best first" },
	{ GET, "/api/workflows/{name}", CELL_SCOPE_READ, cell__handle_workflow_get, .session_header = true, .status = 200,
	  .answer = "Workflow", .summary = "One workflow with its source" },
	{ DELETE, "/api/workflows/{name}", CELL_SCOPE_RUN, cell__handle_workflow_delete, .session_header = true, .status = 200,
	  .answer = "True", .summary = "Deletes a workflow" },
	/* The former name of workflows. */
	{ GET, "/api/skills", CELL_SCOPE_READ, cell__handle_workflows, .session_header = true, .status = 200, .answer = "Workflows",
	  .summary = "All workflows (former name)" },
	{ POST, "/api/skills", CELL_SCOPE_RUN, cell__handle_workflow_create, .body = workflow_fields, .session_header = true, .status = 200,
	  .answer = "Workflow", .summary = "Creates or replaces a workflow (former name)" },
	{ GET, "/api/skills/search", CELL_SCOPE_READ, cell__handle_workflows_search, .query = search_query, .session_header = true,
	  .status = 200, .answer = "Workflows", .summary = "Workflows that fit, best first (former name)" },
	{ GET, "/api/skills/{name}", CELL_SCOPE_READ, cell__handle_workflow_get, .session_header = true, .status = 200, .answer = "Workflow",
	  .summary = "One workflow with its source (former name)" },
	{ DELETE, "/api/skills/{name}", CELL_SCOPE_RUN, cell__handle_workflow_delete, .session_header = true, .status = 200,
	  .answer = "True", .summary = "Deletes a workflow (former name)" },
	{ GET, "/api/artifacts", CELL_SCOPE_READ, cell__handle_artifacts, .session_header = true, .status = 200, .answer = "Artifacts",
	  .summary = "All artifacts" },
	{ POST, "/api/artifacts", CELL_SCOPE_RUN, cell__handle_artifact_save, .body = artifact_fields, .session_header = true, .status = 200,
	  .answer = "Artifact", .summary = "Saves a text or a JSON value" },
	{ GET, "/api/artifacts/{name...}", CELL_SCOPE_READ, cell__handle_artifact_get, .session_header = true, .status = 200,
	  .answer = "bytes", .summary = "The data: JSON for texts and JSON values, else bytes" },
	{ PUT, "/api/artifacts/{name...}", CELL_SCOPE_RUN, cell__handle_artifact_put, .query = put_query, .raw = true, .session_header = true,
	  .status = 200, .answer = "Artifact", .summary = "Saves the body as it is" },
	{ DELETE, "/api/artifacts/{name...}", CELL_SCOPE_RUN, cell__handle_artifact_delete, .session_header = true, .status = 200,
	  .answer = "Null", .summary = "Deletes an artifact" },
	{ GET, "/api/deps", CELL_SCOPE_READ, cell__handle_deps, .session_header = true, .status = 200, .answer = "Strings",
	  .summary = "Configured packages" },
	{ POST, "/api/deps/add", CELL_SCOPE_RUN, cell__handle_dep_add, .body = package_fields, .session_header = true, .status = 200,
	  .answer = "Sync", .summary = "Installs a package and records it" },
	{ POST, "/api/deps/remove", CELL_SCOPE_RUN, cell__handle_dep_remove, .body = package_fields, .session_header = true, .status = 200,
	  .answer = "Removed", .summary = "Uninstalls a package" },
	{ POST, "/api/deps/sync", CELL_SCOPE_RUN, cell__handle_deps_sync, .session_header = true, .status = 200, .answer = "Sync",
	  .summary = "Installs what is configured" },
	{ GET, "/v1/sessions", CELL_SCOPE_READ, cell__handle_v1_list, .query = all_query, .status = 200, .answer = "Sessions",
	  .summary = "The client's own sessions" },
	{ POST, "/v1/sessions", CELL_SCOPE_RUN, cell__handle_v1_open, .body = session_fields, .closed = true, .optional_body = true, .status = 201,
	  .answer = "Session", .summary = "Opens a session" },
	{ GET, "/v1/sessions/{session}", CELL_SCOPE_READ, cell__handle_v1_get, .status = 200, .answer = "Session", .summary = "One session" },
	{ DELETE, "/v1/sessions/{session}", CELL_SCOPE_RUN, cell__handle_v1_delete, .status = 204, .summary = "Ends a session" },
	{ POST, "/v1/sessions/{session}/interrupt", CELL_SCOPE_RUN, cell__handle_v1_interrupt, .status = 204,
	  .summary = "Interrupts the running cell" },
	{ POST, "/v1/sessions/{session}/reset", CELL_SCOPE_RUN, cell__handle_v1_reset, .status = 200, .answer = "Session",
	  .summary = "A fresh kernel under the same id" },
	{ POST, "/v1/sessions/{session}/runs", CELL_SCOPE_RUN, cell__handle_v1_run, .body = execute_fields, .status = 202, .answer = "Run",
	  .summary = "Begins a cell; with Accept: text/event-stream its events are the answer" },
	{ GET, "/v1/sessions/{session}/runs/{run}", CELL_SCOPE_READ, cell__handle_v1_run_get, .status = 200, .answer = "Run",
	  .summary = "One run, with its result when it has ended" },
	{ GET, "/v1/sessions/{session}/runs/{run}/events", CELL_SCOPE_READ, cell__handle_v1_events, .status = 200, .answer = "events",
	  .summary = "Its events: chunk, image, display, approval, approval_ended, call_started, call_ended, result; from Last-Event-ID on" },
	{ GET, "/v1/sessions/{session}/approvals", CELL_SCOPE_READ, cell__handle_v1_approvals, .status = 200, .answer = "Approvals",
	  .summary = "Calls that wait for an answer" },
	{ POST, "/v1/sessions/{session}/approvals/{id}", CELL_SCOPE_APPROVE, cell__handle_v1_answer, .body = answer_fields, .status = 204,
	  .summary = "Accepts, edits or rejects a call" },
	{ GET, "/v1/approvals", CELL_SCOPE_READ, cell__handle_v1_all_approvals, .query = all_query, .status = 200, .answer = "Approvals",
	  .summary = "Calls that wait in all of the client's sessions" },
	{ GET, "/metrics", CELL_SCOPE_ADMIN, cell__handle_metrics, .status = 200, .answer = "text", .summary = "Counters for Prometheus" },
	{ GET, "/openapi.json", CELL_SCOPE_READ, cell__handle_openapi, .status = 200, .answer = "Object", .summary = "This document" },
	{ 0 },
};

#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
#define TEXT "{\"type\":\"string\"}"
#define OR_NULL "{\"type\":[\"string\",\"null\"]}"
#define REF(name) "{\"$ref\":\"#/components/schemas/" name "\"}"
#define OBJECT(required, properties) "{\"type\":\"object\",\"required\":[" required "],\"properties\":{" properties "}}"
#define LIST(item) "{\"type\":\"array\",\"items\":" item "}"

const struct cell__schema cell__schemas[] = {
	{ "Error", OBJECT("\"detail\"", "\"detail\":{\"type\":[\"string\",\"array\"]},\"code\":" TEXT) },
	{ "Health", OBJECT("\"status\",\"uptime_seconds\"", "\"status\":" TEXT ",\"uptime_seconds\":{\"type\":\"number\"}") },
	{ "Execute", OBJECT("\"value\",\"stdout\",\"error\",\"execution_time_ms\",\"session_id\"",
			    "\"value\":{},\"stdout\":" TEXT ",\"stderr\":" TEXT ",\"error\":" OR_NULL ",\"error_code\":" OR_NULL
			    ",\"state\":{\"enum\":[\"kept\",\"lost\"]},\"execution_time_ms\":{\"type\":\"number\"},\"session_id\":" TEXT) },
	{ "SessionId", OBJECT("\"session_id\"", "\"session_id\":" TEXT) },
	{ "Reset", OBJECT("\"status\",\"session_id\"", "\"status\":" TEXT ",\"session_id\":" TEXT) },
	{ "Name", OBJECT("\"name\",\"description\"", "\"name\":" TEXT ",\"description\":" TEXT) },
	{ "Info", OBJECT("\"tools\",\"workflows\",\"artifacts_path\"",
			 "\"tools\":" LIST(REF("Name")) ",\"workflows\":" LIST(REF("Name")) ",\"artifacts_path\":" TEXT) },
	{ "Packages", OBJECT("\"installed\",\"already_present\",\"removed\",\"not_found\",\"failed\"",
			     "\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"removed\":" STRINGS ",\"not_found\":" STRINGS
			     ",\"failed\":" STRINGS) },
	{ "Tool", OBJECT("\"name\",\"description\",\"tags\",\"callables\"",
			 "\"name\":" TEXT ",\"description\":" TEXT ",\"tags\":" STRINGS ",\"callables\":" LIST("{\"type\":\"object\"}")) },
	{ "Tools", LIST(REF("Tool")) },
	{ "Called", OBJECT("\"value\"", "\"value\":{},\"parts\":" LIST("{\"type\":\"object\"}")) },
	{ "Workflow", OBJECT("\"name\",\"description\",\"params\"",
			     "\"name\":" TEXT ",\"description\":" TEXT ",\"params\":{\"type\":\"object\"},\"source\":" TEXT) },
	{ "Workflows", LIST(REF("Workflow")) },
	{ "Artifact", OBJECT("\"name\",\"path\",\"description\",\"metadata\",\"created_at\"",
			     "\"name\":" TEXT ",\"path\":" TEXT ",\"description\":" TEXT
			     ",\"metadata\":{\"type\":\"object\"},\"created_at\":" TEXT ",\"size\":{\"type\":\"integer\"}") },
	{ "Artifacts", LIST(REF("Artifact")) },
	{ "Strings", STRINGS },
	{ "Sync", OBJECT("\"installed\",\"already_present\",\"failed\"",
			 "\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"failed\":" STRINGS) },
	{ "Removed", OBJECT("\"removed\",\"not_found\",\"failed\",\"removed_from_config\"",
			    "\"removed\":" STRINGS ",\"not_found\":" STRINGS ",\"failed\":" STRINGS
			    ",\"removed_from_config\":{\"type\":\"boolean\"}") },
	{ "True", "{\"const\":true}" },
	{ "Null", "{\"type\":\"null\"}" },
	{ "Object", "{\"type\":\"object\"}" },
	{ "Session", OBJECT("\"session_id\",\"workspace_id\",\"owner\",\"created_at\",\"idle_seconds\",\"state\",\"runs\",\"pending\"",
			    "\"session_id\":" TEXT ",\"workspace_id\":" OR_NULL ",\"owner\":" TEXT ",\"created_at\":" TEXT
			    ",\"idle_seconds\":{\"type\":\"number\"},\"state\":{\"enum\":[\"idle\",\"busy\"]},\"runs\":{\"type\":\"integer\"},"
			    "\"pending\":{\"type\":\"integer\"}") },
	{ "Sessions", OBJECT("\"sessions\"", "\"sessions\":" LIST(REF("Session"))) },
	{ "Run", OBJECT("\"run_id\",\"session_id\",\"state\",\"last_event\",\"result\"",
			"\"run_id\":{\"type\":\"integer\"},\"session_id\":" TEXT
			",\"state\":{\"enum\":[\"waiting\",\"running\",\"ended\"]},\"last_event\":{\"type\":\"integer\"},"
			"\"result\":{\"type\":[\"object\",\"null\"]}") },
	{ "Approvals", OBJECT("\"approvals\"", "\"approvals\":" LIST("{\"type\":\"object\"}")) },
	{ NULL, NULL },
};
