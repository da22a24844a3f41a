/* storage/pysource.c and pylex.c: what is read from Python source, and what is refused. */
#define _GNU_SOURCE
#include "storage/pysource.h"
#include "store_support.h"

static int scan(const char *text, struct cell__py_source *out, struct cell_error *err)
{
	/* Exactly as long as it is: a byte too far is seen by the sanitizer. */
	size_t size = strlen(text);
	CELL_AUTO_FREE char *copy = malloc(size ? size : 1);
	memcpy(copy, text, size);
	return cell__py_scan(copy, size, out, err);
}

/* "name:type[=default as JSON]" of every parameter, joined by spaces. */
static char *params(const char *source)
{
	struct cell__py_source out;
	struct cell__buf buf = CELL_BUF_INIT;
	OK(scan(source, &out, &err));
	for (size_t i = 0; i < out.n_params; i++) {
		const struct cell__py_param *p = &out.params[i];
		assert_int_equal(p->required, p->default_value == NULL);
		CELL_AUTO_FREE char *value = p->default_value ? json_dumps(p->default_value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
		cell__buf_printf(&buf, "%s%s:%s%s%s", i ? " " : "", p->name, p->type, value ? "=" : "", value ? value : "");
	}
	cell__py_source_finish(&out);
	return cell__buf_take(&buf);
}

static void test_params(void **state)
{
	(void)state;
	static const struct {
		const char *source, *expected;
	} rows[] = {
		{ "def run(): pass", "" },
		{ "async def run(): pass", "" },
		{ "def run(a): pass", "a:string" },
		{ "def run(a: int, b: float = 1.5, *, c: bool = True, d: str = 'x'): pass",
		  "a:integer b:number=1.5 c:boolean=true d:string=\"x\"" },
		{ "def run(a, /, b, *args, c=None, **kw): pass", "a:string b:string c:string=null" },
		{ "def run(a: list[int], b: List[str], c: Sequence[int], d: typing.Iterable[str], e: tuple, f: list): pass",
		  "a:array b:array c:array d:array e:array f:array" },
		{ "def run(a: dict[str, int], b: Dict, c: collections.abc.Mapping[str, int]): pass", "a:object b:object c:object" },
		{ "def run(a: Optional[int], b: int | None, c: None | float, d: 'bool', e: int | str, f: Foo): pass",
		  "a:integer b:integer c:number d:boolean e:string f:string" },
		{ "def run(a: Annotated[int, 'x, y']): pass", "a:integer" },
		{ "def run(a=-1, b=+2, c=0x1F, d=1_000, e=1e3, f=.5, g=0b11, h=0o17): pass",
		  "a:string=-1 b:string=2 c:string=31 d:string=1000 e:string=1000.0 f:string=0.5 g:string=3 h:string=15" },
		{ "def run(a=[1, 'x', None,], b={'k': [True]}, c=(1, 2), d=(1), e=(), f=[], g={}): pass",
		  "a:string=[1,\"x\",null] b:string={\"k\":[true]} c:string=[1,2] d:string=1 e:string=[] f:string=[] g:string={}" },
		{ "def run(a=os.getcwd(), b=1 + 2, c=f'x{1}', d=b'x', e=10**99, f=99999999999999999999, g=1j, h=...): pass",
		  "a:string=\"os.getcwd()\" b:string=\"1 + 2\" c:string=\"f'x{1}'\" d:string=\"b'x'\" e:string=\"10**99\" "
		  "f:string=\"99999999999999999999\" g:string=\"1j\" h:string=\"...\"" },
		{ "def run(key=lambda a, b=1: (a, b), c: int = 2): pass", "key:string=\"lambda a, b=1: (a, b)\" c:integer=2" },
		{ "def run(a='x' \"y\" r'\\n', b='\\x41\\u00e9\\n\\101', c='a\\\nb'): pass",
		  "a:string=\"xy\\\\n\" b:string=\"A\xc3\xa9\\nA\" c:string=\"ab\"" },
		{ "def run(\n    a: int,  # one, two = three\n    b: str = 'x # no comment',\n) -> dict[str, int]:\n    pass\n",
		  "a:integer b:string=\"x # no comment\"" },
		{ "def run[T: (int, str)](a: T) -> T: pass", "a:string" },
		{ "@decorate(x='def run(')\ndef run(a): pass", "a:string" },
		{ "\xef\xbb\xbf"
		  "def run(a): pass",
		  "a:string" },
		{ "def run(a): pass\r\n", "a:string" },
		{ "def \\\n  run(a): pass", "a:string" },
		{ "x = '''\ndef run(z): pass\n'''\nclass A:\n    def run(self): pass\nif x:\n  def run(q): pass\ndef run(a): pass",
		  "a:string" },
		{ "x = f\"{d['k']}{'}'!r:>{w}} {{}} \\N{DASH}\"\ndef run(a): pass", "a:string" },
		{ "x = f\"{d[\"k\"]}\"\ndef run(a): pass", "a:string" },
		{ "def run(a): return f'{a:{\"x\"}}'", "a:string" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		CELL_AUTO_FREE char *got = params(rows[i].source);
		if (strcmp(got, rows[i].expected) != 0)
			fail_msg("%s\n  gave     %s\n  expected %s", rows[i].source, got, rows[i].expected);
	}
}

static void test_docstrings(void **state)
{
	(void)state;
	static const struct {
		const char *source, *module, *run;
	} rows[] = {
		{ "def run(): pass", NULL, NULL },
		{ "'''Module.'''\ndef run():\n    \"One.\"\n", "Module.", "One." },
		{ "# comment\n\n\"\"\"\n  First.\n\n    Indented.\n  Last.\n\"\"\"\ndef run(): 'short'", "First.\n\n  Indented.\nLast.",
		  "short" },
		{ "'a' 'b'; x = 1\ndef run():\n  r'\\d'; pass", "ab", "\\d" },
		{ "f'no'\ndef run():\n  b'no'\n", NULL, NULL },
		{ "'no'.join([])\ndef run():\n  'no' % 1\n", NULL, NULL },
		{ "import os\n'late'\ndef run():\n  x = 1\n  'late'\n", NULL, NULL },
		{ "def run():\n\n    # comment\n    '''Doc.'''\n    return 1\n'''not module'''\n", NULL, "Doc." },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell__py_source out;
		OK(scan(rows[i].source, &out, &err));
		assert_string_equal(out.docstring ? out.docstring : "-", rows[i].module ? rows[i].module : "-");
		assert_string_equal(out.run_docstring ? out.run_docstring : "-", rows[i].run ? rows[i].run : "-");
		cell__py_source_finish(&out);
	}
	struct cell__py_source out;
	OK(scan("async def run(): pass", &out, &err));
	assert_true(out.is_async);
	cell__py_source_finish(&out);
	OK(scan("def run(): pass", &out, &err));
	assert_false(out.is_async);
	cell__py_source_finish(&out);
}

#define NONE "Workflow must define a 'def run()' or 'async def run()' function at top level"

static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *source, *message;
	} rows[] = {
		{ "", NONE },
		{ "x = 1", NONE },
		{ "def runner(): pass", NONE },
		{ "class A:\n    def run(self): pass", NONE },
		{ "if True:\n    def run(): pass", NONE },
		{ "run = lambda: 1", NONE },
		{ "def run(): pass\nasync def run(): pass", "exactly one top-level 'run' function (line 2" },
		{ "def run(): pass\ndef run(): pass", "exactly one" },
		{ "def run(tools): pass", "parameter 'tools' is reserved" },
		{ "def run(*, deps=1): pass", "parameter 'deps' is reserved" },
		{ "def run(a, a): pass", "Syntax error in workflow code: duplicate argument 'a'" },
		{ "def run(a b): pass", "Syntax error in workflow code: invalid syntax (line 1)" },
		{ "def run(a, , b): pass", "invalid syntax" },
		{ "def run(class): pass", "invalid syntax" },
		{ "def run(a=): pass", "invalid syntax" },
		{ "def run(a:): pass", "invalid syntax" },
		{ "def run(1): pass", "invalid syntax" },
		{ "def run: pass", "invalid syntax" },
		{ "def run()\n  pass", "expected ':'" },
		{ "def run(:\n pass", "never closed" },
		{ "def run():", "expected an indented block" },
		{ "def run():\npass", "expected an indented block (line 2)" },
		{ "def run(): pass\n  x = 1", "unexpected indent (line 2)" },
		{ "def run():\n    x = 1\n  y = 2", "unindent does not match" },
		{ "def run():\n\tif x:\n        y = 1", "inconsistent use of tabs" },
		{ "def run(): 'abc", "unterminated string literal (line 1)" },
		{ "x = '''abc\n\ndef run(): pass", "unterminated triple-quoted string literal (line 1)" },
		{ "x = f'{a'\ndef run(): pass", "unterminated" },
		{ "x = f'}'\ndef run(): pass", "single '}'" },
		{ "x = (1]\ndef run(): pass", "does not match" },
		{ "x = 1)\ndef run(): pass", "unmatched" },
		{ "x = $\ndef run(): pass", "invalid character (line 1)" },
		{ "x = \\ 1\ndef run(): pass", "after line continuation" },
		{ "\xff\ndef run(): pass", "not UTF-8" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell__py_source out;
		struct cell_error err = { 0 };
		if (scan(rows[i].source, &out, &err) == 0)
			fail_msg("accepted: %s", rows[i].source);
		assert_int_equal(err.code, CELL_E_INVALID);
		if (!strstr(err.msg, rows[i].message))
			fail_msg("%s\n  gave     %s\n  expected %s", rows[i].source, err.msg, rows[i].message);
	}
	struct cell__py_source out;
	FAILS(CELL_E_INVALID, "null bytes", cell__py_scan("def run():\0 pass", 16, &out, &err));
}

/* n times one text between two others. */
static char *repeat(const char *before, const char *what, unsigned n, const char *after)
{
	struct cell__buf buf = CELL_BUF_INIT;
	cell__buf_add_str(&buf, before);
	for (unsigned i = 0; i < n; i++)
		cell__buf_add_str(&buf, what);
	cell__buf_add_str(&buf, after);
	return cell__buf_take(&buf);
}

static void expect_limit(char *source, const char *message)
{
	struct cell__py_source out;
	struct cell_error err = { 0 };
	int rc = scan(source, &out, &err);
	assert_int_equal(rc, message ? -1 : 0);
	if (message && !strstr(err.msg, message))
		fail_msg("%s", err.msg);
	if (rc == 0)
		cell__py_source_finish(&out);
	free(source);
}

static void test_limits(void **state)
{
	(void)state;
	/* The signature's own bracket counts. */
	expect_limit(repeat("x = ", "(", CELL__PY_NESTING, ""), "never closed");
	expect_limit(repeat("x = ", "(", CELL__PY_NESTING + 1, ""), "too many nested");
	expect_limit(repeat("x = '", "a", 500000, "'\ndef run(): pass"), NULL);
	expect_limit(repeat("x = ", "f'{", 10000, ""), "nested too deeply");
	expect_limit(repeat("x = f'", "{x:", 10000, ""), "nested too deeply");
	expect_limit(repeat("def run(a=", "[", 150, ""), "never closed");
	/* Past what literals may nest a default is told by its source. */
	struct cell__buf deep = CELL_BUF_INIT;
	CELL_AUTO_FREE char *open = repeat("def run(a=", "[", 100, ""), *close = repeat("", "]", 100, "): pass");
	cell__buf_printf(&deep, "%s%s", open, close);
	expect_limit(cell__buf_take(&deep), NULL);
	struct cell__buf many = CELL_BUF_INIT;
	for (unsigned extra = 0; extra < 2; extra++) {
		cell__buf_add_str(&many, "def run(");
		for (unsigned i = 0; i < CELL__PY_PARAMS + extra; i++)
			cell__buf_printf(&many, "a%u, ", i);
		cell__buf_add_str(&many, "): pass");
		expect_limit(cell__buf_take(&many), extra ? "more than 255 parameters" : NULL);
	}
	struct cell__buf levels = CELL_BUF_INIT;
	for (unsigned i = 0; i <= CELL__PY_INDENTS; i++)
		cell__buf_printf(&levels, "%*sif x:\n", (int)i, "");
	expect_limit(cell__buf_take(&levels), "too many levels");
}

static void test_out_of_memory(void **state)
{
	(void)state;
	static const char source[] = "'''Module'''\ndef run(a: int = 1, b=[1, 'x'], c: str = f()):\n    '''Doc'''\n";
	for (long n = 1;; n++) {
		struct cell__py_source out;
		struct cell_error err = { 0 };
		assert_true(n < 1000);
		cell__alloc_fail_after(n);
		int rc = cell__py_scan(source, strlen(source), &out, &err);
		cell__alloc_fail_after(0);
		if (rc == 0) {
			cell__py_source_finish(&out);
			break;
		}
		assert_int_equal(err.code, CELL_E_NOMEM);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_params), TEST(test_docstrings), TEST(test_refused), TEST(test_limits), TEST(test_out_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
