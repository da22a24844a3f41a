/*
 * Any bytes as a list of tools, or as the schema of one: an error of ours, or a package whose modules Python can read and
 * that consist of nothing but imports, classes, fields, constants and the two functions, whatever the schema says.
 */
#include "fuzz.h"
#include "mcp/codegen/gen.h"
#include "storage/pysource.h"

static bool is_one_of(const char *source, const struct cell__py_token *token, const char *const *words)
{
	for (; *words; words++)
		if (cell__py_token_is(source, token, *words))
			return true;
	return false;
}

/* A line may begin with this: nothing that a server says makes a statement of its own. */
static void check_line(const char *source, const struct cell__py_token *token, const struct cell__py_token *second)
{
	static const char *const outside[] = { "from", "class", "def", "async", NULL };
	static const char *const inside[] = { "return", "pass", NULL };
	if (token->kind == CELL__PY_STRING) {
		MUST(token->level > 0 && second->kind == CELL__PY_NEWLINE);
		return;
	}
	MUST(token->kind == CELL__PY_NAME);
	if (is_one_of(source, token, token->level == 0 ? outside : inside))
		return;
	if (token->level == 0)
		MUST(cell__py_token_is(source, second, ".")); /* Name.model_rebuild() */
	else
		MUST(cell__py_token_is(source, second, ":") || cell__py_token_is(source, second, "="));
	char word[512];
	MUST(token->end - token->start < sizeof word);
	memcpy(word, source + token->start, token->end - token->start);
	word[token->end - token->start] = '\0';
	MUST(!cell__py_is_keyword(word) && word[0] != '_');
}

static void check_text(const char *text, size_t size)
{
	MUST(size > strlen(CELL_GEN_MARK) && memcmp(text, CELL_GEN_MARK, strlen(CELL_GEN_MARK)) == 0);
	MUST(cell__utf8_ok(text, size));
	for (size_t i = 0; i < size; i++)
		MUST((unsigned char)text[i] >= 0x20 ? text[i] != 0x7f : text[i] == '\n');
	/* U+202A..U+202E and U+2066..U+2069 make a reader see another order. */
	for (size_t i = 0; i + 2 < size; i++) {
		unsigned char third = (unsigned char)text[i + 2];
		MUST(!(memcmp(text + i, "\xe2\x80", 2) == 0 && third >= 0xaa && third <= 0xae));
		MUST(!(memcmp(text + i, "\xe2\x81", 2) == 0 && third >= 0xa6 && third <= 0xa9));
	}
}

static void check_tokens(const char *text, size_t size, bool lines)
{
	struct cell__py_lexer lexer;
	struct cell__py_token token, first = { 0 };
	struct cell_error err;
	bool begun = false;
	cell__py_lexer_init(&lexer, text, size);
	do {
		if (cell__py_next(&lexer, &token, &err) < 0) {
			fprintf(stderr, "%s\n%.*s\n", err.msg, (int)size, text);
			abort();
		}
		if (begun && lines)
			check_line(text, &first, &token);
		begun = token.first && token.kind != CELL__PY_NEWLINE && token.kind != CELL__PY_END;
		first = token;
	} while (token.kind != CELL__PY_END);
}

static void check_package(const struct cell__gen_package *package, const json_t *tools)
{
	size_t n = json_array_size(package->tools);
	MUST(n + json_array_size(package->problems) == json_array_size(tools));
	MUST(package->n_files == n + 2);
	for (size_t i = 0; i < package->n_files; i++) {
		const struct cell__gen_file *file = &package->files[i];
		size_t stem = strspn(file->name, "abcdefghijklmnopqrstuvwxyz0123456789_");
		MUST(stem > 0 && strcmp(file->name + stem, ".py") == 0 && (file->name[0] < '0' || file->name[0] > '9'));
		check_text(file->text, file->size);
		check_tokens(file->text, file->size, i < n);
		for (size_t k = 0; k < i; k++)
			MUST(strcmp(file->name, package->files[k].name) != 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell__codegen_options opts = { .server = "demo", .async_api = size % 2 };
	struct cell__gen_package package, again;
	struct cell_error err = { 0 };
	uint8_t *copy = fuzz_copy(data, size);
	json_t *tools = cell__gen_parse((const char *)copy, size, &err);
	if (!tools) {
		MUST(err.code == CELL_E_INVALID && strlen(err.msg) > 0 && cell__utf8_ok(err.msg, strlen(err.msg)));
		json_t *schema = json_loadb((const char *)copy, size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
		if (schema)
			tools = json_pack("[{s:s, s:O, s:O, s:O?}]", "name", "t", "inputSchema", schema, "outputSchema", schema,
					  "description", json_object_get(schema, "description"));
		json_decref(schema);
	}
	free(copy);
	if (!tools)
		return 0;
	MUST(cell__gen_package(&opts, tools, &package, &err) == 0);
	MUST(cell__gen_package(&opts, tools, &again, &err) == 0);
	check_package(&package, tools);
	for (size_t i = 0; i < package.n_files; i++)
		MUST(package.files[i].size == again.files[i].size &&
		     memcmp(package.files[i].text, again.files[i].text, package.files[i].size) == 0);
	cell__gen_package_finish(&package);
	cell__gen_package_finish(&again);
	json_decref(tools);
	return 0;
}
