#define _GNU_SOURCE
#include "mcp/codegen/gen.h"

#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/*
 * The file that every package has beside its tools. The first half is for type checkers, which need neither pydantic nor Workcell for it;
 * the second half runs.
 */
static const char api_text[] =
	"\"\"\"Common definitions of the modules in this package.\"\"\"\n"
	"\n"
	"from typing import TYPE_CHECKING\n"
	"\n"
	"if TYPE_CHECKING:\n"
	"    from enum import Enum\n"
	"    from typing import Any, Callable, Dict, Generic, List, Optional, Set, Type, TypeVar, Union\n"
	"\n"
	"    from typing_extensions import dataclass_transform\n"
	"\n"
	"    M = TypeVar(\"M\", bound=\"Model\")\n"
	"    T = TypeVar(\"T\")\n"
	"\n"
	"    def Field(\n"
	"        default: Any = ..., *, default_factory: Optional[Callable[[], Any]] = ..., alias: Optional[str] = ...,\n"
	"        validate_default: Optional[bool] = ..., ge: Optional[float] = ..., gt: Optional[float] = ...,\n"
	"        le: Optional[float] = ..., lt: Optional[float] = ..., multiple_of: Optional[float] = ...,\n"
	"        min_length: Optional[int] = ..., max_length: Optional[int] = ...\n"
	"    ) -> Any: ...\n"
	"\n"
	"    class Model:\n"
	"        @property\n"
	"        def model_fields_set(self) -> Set[str]: ...\n"
	"        @property\n"
	"        def model_extra(self) -> Optional[Dict[str, Any]]: ...\n"
	"        @classmethod\n"
	"        def model_validate(cls: Type[M], obj: Any) -> M: ...\n"
	"        @classmethod\n"
	"        def model_validate_json(cls: Type[M], json_data: Union[str, bytes]) -> M: ...\n"
	"        @classmethod\n"
	"        def model_construct(cls: Type[M], _fields_set: Optional[Set[str]] = ..., **values: Any) -> M: ...\n"
	"        @classmethod\n"
	"        def model_rebuild(cls) -> Optional[bool]: ...\n"
	"        def model_copy(self: M, *, update: Optional[Dict[str, Any]] = ..., deep: bool = ...) -> M: ...\n"
	"        def model_dump(\n"
	"            self, *, mode: str = ..., include: Optional[Set[str]] = ..., exclude: Optional[Set[str]] = ...,\n"
	"            by_alias: bool = ..., exclude_unset: bool = ..., exclude_defaults: bool = ..., exclude_none: bool = ...\n"
	"        ) -> Any: ...\n"
	"        def model_dump_json(\n"
	"            self, *, indent: Optional[int] = ..., include: Optional[Set[str]] = ..., exclude: Optional[Set[str]] = ...,\n"
	"            by_alias: bool = ..., exclude_unset: bool = ..., exclude_defaults: bool = ..., exclude_none: bool = ...\n"
	"        ) -> str: ...\n"
	"\n"
	"    @dataclass_transform(kw_only_default=True, field_specifiers=(Field,))\n"
	"    class BaseModel(Model):\n"
	"        def __init_subclass__(cls, *, extra: str = ...) -> None: ...\n"
	"\n"
	"    @dataclass_transform(kw_only_default=False, field_specifiers=(Field,))\n"
	"    class RootModel(Model, Generic[T]):\n"
	"        root: T\n"
	"\n"
	"    class StrEnum(str, Enum): ...\n"
	"\n"
	"    class IntEnum(int, Enum): ...\n"
	"\n"
	"    class Pattern:\n"
	"        def __init__(self, pattern: str) -> None: ...\n"
	"\n"
	"    class Unique: ...\n"
	"\n"
	"    class OneOf:\n"
	"        def __init__(self, *values: Any) -> None: ...\n"
	"\n"
	"    Nullable: object\n"
	"\n"
	"    class ValidationError(ValueError):\n"
	"        def errors(self) -> List[Any]: ...\n"
	"        def error_count(self) -> int: ...\n"
	"\n"
	"    class Client:\n"
	"        def __init__(self, server: str) -> None: ...\n"
	"        def run(self, tool: str, params: Model, result: Type[M], learned: bool = ...) -> M: ...\n"
	"        async def run_async(self, tool: str, params: Model, result: Type[M], learned: bool = ...) -> M: ...\n"
	"        def run_text(self, tool: str, params: Model) -> str: ...\n"
	"        async def run_text_async(self, tool: str, params: Model) -> str: ...\n"
	"else:\n"
	"    try:\n"
	"        import workcell_kernel  # noqa: F401\n"
	"    except ImportError:\n"
	"        raise ImportError(\n"
	"            \"this package calls tools through Workcell and cannot be used without it: import it in a Workcell session \"\n"
	"            \"(workcell run), or put the folder `kernel` of Workcell on PYTHONPATH to look at its classes\"\n"
	"        ) from None\n"
	"    from workcell_kernel.mcpmodels import (\n"
	"        BaseModel, Client, Field, IntEnum, Nullable, OneOf, Pattern, RootModel, StrEnum, Unique, ValidationError,\n"
	"    )\n"
	"\n";

/* ---- one tool ---- */

static void finish_module(struct cell__gen_module *m)
{
	cell__gen_free_blocks(m);
	json_decref(m->names);
	json_decref(m->kept);
}

/* What run() answers with. */
enum answer {
	ANSWER_TEXT,
	ANSWER_DECLARED, /* by the server: its answers must fit */
	ANSWER_LEARNED,  /* from answers that were seen (wire/shape.h) */
};

static int add_function(struct cell__buf *out, const json_t *tool, enum answer result, bool waits, const char *name, bool first)
{
	const json_t *original = json_object_get(tool, "name");
	int rc = cell__buf_printf(out, "\n\n%sdef %s(params: Params) -> %s:\n", waits ? "" : "async ", name, result ? "Result" : "str");
	size_t before = out->size;
	if (rc == 0 && first)
		rc = cell__gen_add_json_doc(out, json_object_get(tool, "description"), 4);
	if (rc == 0 && first && out->size == before)
		rc = cell__gen_add_json_doc(out, json_object_get(tool, "title"), 4);
	if (rc == 0 && !first)
		rc = cell__buf_printf(out, "    \"\"\"The same for %s.\"\"\"\n",
				      waits ? "synchronous code" : "async code: other tasks keep running");
	if (rc == 0)
		rc = cell__buf_printf(out, "    return %sCLIENT.run%s%s(", waits ? "" : "await ", result ? "" : "_text",
				      waits ? "" : "_async");
	if (rc == 0)
		rc = cell__gen_add_string(out, json_string_value(original), json_string_length(original));
	if (rc == 0)
		rc = cell__buf_printf(out, ", params%s%s)\n", result ? ", Result" : "", result == ANSWER_LEARNED ? ", learned=True" : "");
	return rc;
}

static int add_module(struct cell__gen_module *m, const struct cell__codegen_options *opts, const json_t *tool, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf classes = CELL_BUF_INIT;
	const json_t *answer = json_object_get(tool, "outputSchema"), *learned = json_object_get(tool, "learnedSchema");
	enum answer result = json_is_object(answer) ? ANSWER_DECLARED : json_is_object(learned) ? ANSWER_LEARNED : ANSWER_TEXT;
	if (result == ANSWER_LEARNED)
		answer = learned;
	cell__gen_reserve_names(m);
	cell__gen_top(m, json_object_get(tool, "inputSchema"), "Params");
	if (result) {
		m->output = true;
		m->refs = NULL;
		cell__gen_top(m, answer, "Result");
	}
	cell__gen_use(m, GEN_CLIENT);
	if (cell__gen_add_classes(m, &classes) < 0 || cell__buf_add_str(out, CELL_GEN_MARK) < 0 ||
	    cell__buf_add_str(out, "from __future__ import annotations\n\n") < 0)
		return -1;
	cell__gen_add_imports(m, out);
	if (m->nomem || cell__buf_add(out, classes.data ? classes.data : "", classes.size) < 0)
		return -1;
	bool waits = !opts->async_api;
	if (add_function(out, tool, result, waits, "run", true) < 0)
		return -1;
	return add_function(out, tool, result, !waits, waits ? "run_async" : "run_sync", false);
}

/* 0; 1: there is too much of it; -1: no memory. */
static int make_module(const struct cell__codegen_options *opts, const json_t *tool, struct cell__buf *out)
{
	struct cell__gen_module m = { .names = json_object(), .kept = json_array() };
	m.last = &m.first;
	int rc = m.names && m.kept ? add_module(&m, opts, tool, out) : -1;
	finish_module(&m);
	return rc < 0 ? -1 : out->size > CELL_GEN_LIMIT_MODULE_BYTES ? 1 : 0;
}

/* ---- the package ---- */

void cell__gen_package_finish(struct cell__gen_package *package)
{
	for (size_t i = 0; i < package->n_files; i++) {
		free(package->files[i].name);
		free(package->files[i].text);
	}
	free(package->files);
	free(package->name);
	free(package->head);
	json_decref(package->tools);
	json_decref(package->problems);
	*package = (struct cell__gen_package){ 0 };
}

static int add_problem(struct cell__gen_package *package, const json_t *tool, size_t index, const char *message)
{
	const json_t *name = json_object_get(tool, "name");
	json_t *shown = json_is_string(name) ? json_incref((json_t *)name) : json_sprintf("#%zu", index + 1);
	json_t *problem = json_pack("{s:o, s:s}", "tool", shown, "message", message);
	return problem && json_array_append_new(package->problems, problem) == 0 ? 0 : -1;
}

/* NULL: no problem is visible from outside. */
static const char *tool_problem(const json_t *tool, const json_t *seen)
{
	const json_t *name = json_object_get(tool, "name");
	if (!json_is_object(tool))
		return "is not an object";
	if (!json_is_string(name))
		return "has no name";
	if (json_string_length(name) == 0)
		return "has an empty name";
	if (json_string_length(name) > CELL_GEN_LIMIT_NAME)
		return "has a name of more than 256 bytes";
	if (strlen(json_string_value(name)) != json_string_length(name))
		return "has a NUL character in its name, which a call cannot contain";
	if (json_object_get(seen, json_string_value(name)))
		return "is listed twice";
	return NULL;
}

/* Gives a tool its module, which no other has; -1: no memory. */
static int name_module(json_t *modules, json_t *taken, const char *tool, const char *base)
{
	json_t *next = json_object_get(taken, base), *module = json_string(base);
	json_int_t number = next ? json_integer_value(next) : 1;
	while (module && json_object_get(taken, json_string_value(module))) {
		json_decref(module);
		module = json_sprintf("%s_%lld", base, (long long)number++);
	}
	if (!module || (next && json_object_set_new(taken, base, json_integer(number)) < 0) ||
	    json_object_set_new(taken, json_string_value(module), json_integer(1)) < 0) {
		json_decref(module);
		return -1;
	}
	return json_object_set_new(modules, tool, module);
}

/*
 * The module of each tool, as {tool: module}: first tools whose name is a valid module name, so that no other takes it, then the others.
 * NULL: out of memory.
 */
static json_t *name_modules(const json_t *tools)
{
	json_t *modules = json_object(), *taken = json_pack("{s:i, s:i}", "__init__", 1, "_api", 1);
	const json_t *tool;
	size_t i;
	int rc = modules && taken ? 0 : -1;
	for (int round = 0; round < 2 && rc == 0; round++) {
		json_array_foreach(tools, i, tool) {
			if (rc < 0 || tool_problem(tool, modules))
				continue;
			const char *name = json_string_value(json_object_get(tool, "name"));
			CELL_AUTO_FREE char *base = cell__gen_module_name(name, strlen(name));
			if (!base)
				rc = -1;
			else if (round == 1 || strcmp(base, name) == 0)
				rc = name_module(modules, taken, name, base);
		}
	}
	json_decref(taken);
	if (rc == 0)
		return modules;
	json_decref(modules);
	return NULL;
}

/* Takes the text over. */
static int add_file(struct cell__gen_package *package, const char *name, struct cell__buf *text)
{
	struct cell__gen_file *file = &package->files[package->n_files];
	file->name = cell__strdup(name);
	file->size = text->size;
	file->text = cell__buf_take(text);
	package->n_files++;
	return file->name && file->text ? 0 : -1;
}

static int add_tool(const struct cell__codegen_options *opts, struct cell__gen_package *package, const json_t *tool, size_t index,
		    const char *module, size_t *total)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char name[CELL_GEN_LIMIT_IDENTIFIER + 40];
	int rc = make_module(opts, tool, &text);
	if (rc < 0)
		return -1;
	if (rc > 0 || *total + text.size > CELL_GEN_LIMIT_PACKAGE_BYTES)
		return add_problem(package, tool, index, "has a schema that is too large");
	*total += text.size;
	snprintf(name, sizeof name, "%s.py", module);
	json_t *entry = json_pack("{s:O, s:s}", "name", json_object_get(tool, "name"), "module", module);
	if (!entry || json_array_append_new(package->tools, entry) < 0)
		return -1;
	return add_file(package, name, &text);
}

/* The first line of a description, truncated if it is too long. */
static int add_summary(struct cell__buf *out, const json_t *tool)
{
	const json_t *text = json_object_get(tool, "description");
	if (!json_is_string(text))
		text = json_object_get(tool, "title");
	const char *words = json_is_string(text) ? json_string_value(text) : "";
	words += strspn(words, " \t\r\n");
	size_t size = strcspn(words, "\r\n");
	if (size == 0)
		return 0;
	bool cut = size > CELL_GEN_LIMIT_SUMMARY_BYTES;
	if (cut)
		size = CELL_GEN_LIMIT_SUMMARY_BYTES - cell__utf8_cut(words, CELL_GEN_LIMIT_SUMMARY_BYTES);
	if (cell__buf_add_str(out, "  ") < 0 || cell__buf_add(out, words, size) < 0)
		return -1;
	return cut ? cell__buf_add_str(out, "...") : 0;
}

/* The package's description of itself: untrusted data, so it is escaped like everything else. */
static int add_init(struct cell__gen_package *package, const struct cell__codegen_options *opts, const json_t *tools)
{
	CELL_AUTO_BUF struct cell__buf doc = CELL_BUF_INIT, text = CELL_BUF_INIT;
	const json_t *entry, *tool;
	size_t i, at = 0;
	int rc = cell__buf_printf(&doc,
				  "Tools of the MCP server %s.  Each module has Params, Result if the tool "
				  "declares an output schema\nor its answers had one shape, run() and %s.\n",
				  opts->server, opts->async_api ? "run_sync()" : "run_async()");
	json_array_foreach(package->tools, i, entry) {
		while ((tool = json_array_get(tools, at++)) && !json_equal(json_object_get(tool, "name"), json_object_get(entry, "name")))
			;
		if (rc == 0)
			rc = cell__buf_printf(&doc, "\n%s", json_string_value(json_object_get(entry, "module")));
		if (rc == 0)
			rc = add_summary(&doc, tool);
	}
	if (rc == 0)
		rc = cell__buf_add_str(&text, package->head);
	if (rc == 0)
		rc = cell__gen_add_doc(&text, doc.data, doc.size, 0, SIZE_MAX);
	return rc < 0 ? -1 : add_file(package, "__init__.py", &text);
}

static int add_api(struct cell__gen_package *package, const struct cell__codegen_options *opts)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__buf_add_str(&text, CELL_GEN_MARK) < 0 || cell__buf_add_str(&text, api_text) < 0 ||
	    cell__buf_printf(&text, "CLIENT = Client(\"%s\")\n", opts->server) < 0)
		return -1;
	return add_file(package, "_api.py", &text);
}

static int fill_package(struct cell__gen_package *package, const struct cell__codegen_options *opts, const json_t *tools)
{
	const json_t *tool;
	size_t i, total = 0;
	package->name = cell__gen_package_name(opts->server);
	package->tools = json_array();
	package->problems = json_array();
	package->files = cell__alloc(json_array_size(tools) + 2, sizeof *package->files);
	struct cell__buf head = CELL_BUF_INIT;
	int rc = cell__buf_printf(&head, "%s# server: %s\n", CELL_GEN_MARK, opts->server);
	package->head = cell__buf_take(&head);
	if (rc < 0 || !package->name || !package->head || !package->tools || !package->problems || !package->files)
		return -1;
	json_t *modules = name_modules(tools), *seen = json_object();
	rc = modules && seen ? 0 : -1;
	json_array_foreach(tools, i, tool) {
		const char *problem = tool_problem(tool, seen), *name = json_string_value(json_object_get(tool, "name"));
		if (rc < 0)
			break;
		if (problem)
			rc = add_problem(package, tool, i, problem);
		else if (json_object_set_new(seen, name, json_true()) < 0)
			rc = -1;
		else
			rc = add_tool(opts, package, tool, i, json_string_value(json_object_get(modules, name)), &total);
	}
	json_decref(modules);
	json_decref(seen);
	return rc < 0 || add_api(package, opts) < 0 ? -1 : add_init(package, opts, tools);
}

int cell__gen_package(const struct cell__codegen_options *opts, const json_t *tools, struct cell__gen_package *ret, struct cell_error *err)
{
	struct cell__gen_package package = { 0 };
	if (!opts->server || !cell__gen_server_ok(opts->server))
		return cell_fail(err, CELL_E_INVALID, 0, "the name of an MCP server must be 1 to %u letters, digits, _ and -",
				 CELL_GEN_LIMIT_SERVER);
	if (!json_is_array(tools))
		return cell_fail(err, CELL_E_INVALID, 0, "the tools of a server must be an array");
	if (json_array_size(tools) > CELL_GEN_LIMIT_TOOLS)
		return cell_fail(err, CELL_E_LIMIT, 0, "%zu tools; a server may have at most %u", json_array_size(tools),
				 CELL_GEN_LIMIT_TOOLS);
	if (fill_package(&package, opts, tools) < 0) {
		cell__gen_package_finish(&package);
		return cell_fail(err, CELL_E_NOMEM, 0, "create the modules of %s", opts->server);
	}
	*ret = package;
	return 0;
}
