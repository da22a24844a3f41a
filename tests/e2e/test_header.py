"""include/workcell.h as programs see it: C and C++ of several standards, and the init functions of its structs."""
import os
import re
import subprocess

import pytest

import support

INCLUDE = os.path.join(support.ROOT, "include")
STANDARDS = [("gcc", "c11"), ("gcc", "c17"), ("g++", "c++17"), ("g++", "c++20")]


def header():
    with open(os.path.join(INCLUDE, "workcell.h"), encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def macros():
    """{struct: name of its macro}"""
    return {struct: macro for macro, struct in re.findall(r"#define (CELL_\w+_INIT)\s+\\?\s*\{ \.size = sizeof\(struct (\w+)\)", header())}


def sized_structs():
    return re.findall(r"^struct (\w+) \{\s*size_t size;", header(), re.M)


def compile_program(folder, compiler, standard, source, *flags):
    program = folder / "program"
    file = folder / ("program.cc" if compiler == "g++" else "program.c")
    file.write_text(source)
    done = subprocess.run([compiler, "-std=" + standard, "-Wall", "-Wextra", "-pedantic-errors", "-Werror", "-I", INCLUDE, str(file), "-o",
                           str(program), *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return program


def test_every_struct_with_a_size_has_an_init_function():
    functions = set(re.findall(r"static inline void (\w+)_init\(", header()))
    assert functions == set(sized_structs())
    assert len(macros()) >= 20 and set(macros()) <= functions


def test_init_functions_do_as_the_macros(tmp_path):
    """Byte by byte; the functions must also clear memory that was used before."""
    checks = ["{ static const struct %s want = %s; struct %s have; memset(&have, 0x5a, sizeof have); %s_init(&have);"
              " if (memcmp(&want, &have, sizeof have) != 0) { puts(\"%s\"); wrong = 1; } }" % (name, macro, name, name, name)
              for name, macro in macros().items()]
    source = "#include <stdio.h>\n#include <workcell.h>\nint main(void)\n{\nint wrong = 0;\n%s\nreturn wrong;\n}\n" % "\n".join(checks)
    done = subprocess.run([str(compile_program(tmp_path, "gcc", "c17", source))], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, "these differ from their macros: %s" % done.stdout


@pytest.mark.parametrize("compiler, standard", STANDARDS)
def test_init_functions_set_the_size(compiler, standard, tmp_path):
    """The program needs no library: the functions are in the header, with the size of the program's struct."""
    checks = ["{ struct %s have; %s_init(&have); %s_init(NULL); if (have.size != sizeof have) return 1; }" % (name, name, name)
              for name in sized_structs()]
    source = "#include <workcell.h>\nint main(void)\n{\n%s\nreturn 0;\n}\n" % "\n".join(checks)
    assert subprocess.run([str(compile_program(tmp_path, compiler, standard, source))]).returncode == 0


PROGRAM = r"""
#include <workcell.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct cell_engine *engine = NULL;
	struct cell_session *session = NULL;
	struct cell_result *result = NULL;
	struct cell_session_options options;
	struct cell_run_options run;
	struct cell_error err;
	int status = 1;

	cell_session_options_init(&options);
	options.python = argc > 1 ? argv[1] : NULL;
	cell_run_options_init(&run);
	run.timeout_ms = 30000;
	if (cell_engine_create(NULL, &engine, &err) < 0 || cell_session_open(engine, &options, &session, &err) < 0 ||
	    cell_session_run(session, "6 * 7", 5, &run, &result, &err) < 0)
		fprintf(stderr, "%s\n", err.msg);
	else
		status = strcmp(cell_result_repr(result), "42") != 0;
	cell_result_destroy(result);
	cell_session_close(session);
	cell_engine_destroy(engine);
	return status;
}
"""


if not support.is_asan():  # a program that is built without sanitizers cannot load a library that has them
    @pytest.mark.parametrize("compiler, standard", STANDARDS)
    def test_a_program_runs_a_cell(compiler, standard, tmp_path, bare_python):
        build = os.path.dirname(support.BIN)
        program = compile_program(tmp_path, compiler, standard, PROGRAM, "-L", build, "-lworkcell", "-Wl,-rpath," + build)
        done = support.popen([str(program), bare_python], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.communicate(timeout=support.DEADLINE)[0] == b"" and done.returncode == 0
