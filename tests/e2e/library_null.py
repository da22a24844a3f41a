"""Every function of the public header with NULL for its pointers and with structs that were only zeroed: errors, never a crash.

The functions and their parameters are read from include/workcell.h, so that a new one is called too; scripts/check-abi.py proves that the
library exports exactly those. A process per function, as in library.py.
"""
import ctypes as c
import os
import re
import signal
import sys

import library
import support
from library import LIB, Engine, Error

INVALID = 1
ROOM = 65536
# Whose only pointers may be NULL.
OPTIONAL = {"cell_session_check"}
HANDLES = ("engine", "space", "session", "policy", "result", "canceller", "json")
TAKE = c.CFUNCTYPE(c.c_int)(lambda: 0)


def text_of_header():
    with open(os.path.join(support.ROOT, "include", "workcell.h"), encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/|^#define(?:[^\n]*\\\n)*[^\n]*\n", "", file.read(), flags=re.S | re.M)


def functions():
    """[(name, type of the result, [(type, name)])]"""
    for whole, name, params in re.findall(r"CELL_API ((?:const )?(?:struct )?\w+[ *]+)(cell_\w+)\(((?:[^()]|\([^()]*\))*)\);", text_of_header()):
        params = re.sub(r"\w+ \(\*(\w+)\)\([^)]*\)", r"cell_function_fn \1", params)
        pairs = [re.fullmatch(r"\s*(.*?[\s*])(\w+)(\[\w*\])?\s*", param, re.S) for param in params.split(",") if param.strip() != "void"]
        yield name, whole.strip(), [(re.sub(r"\s+", " ", pair[1]).strip() + ("*" if pair[3] else ""), pair[2]) for pair in pairs]


SIZED = set(re.findall(r"^struct (\w+) \{\s*size_t size;", text_of_header(), re.M))
KEPT = []


def sized(size):
    memory = (c.c_size_t * (ROOM // 8))()
    memory[0] = size
    return memory


class Objects:
    """Made when a function needs them: forked processes have no threads of their parent."""

    def __init__(self):
        self.made = {}

    def get(self, name):
        if name not in self.made:
            self.made[name] = getattr(self, name)()
        return self.made[name]

    def make(self, function, *arguments):
        handle, error = c.c_void_p(), Error()
        library.check(function(*arguments, c.byref(handle), c.byref(error)), error)
        return handle

    def engine(self):
        return Engine().handle

    def space(self):
        return self.make(LIB.cell_space_open, self.get("engine"), None)

    def session(self):
        options = library.SessionOptions(size=c.sizeof(library.SessionOptions), python=os.environ["WORKCELL_BARE_PYTHON"].encode(),
                                         timeout_ms=60000, grace_ms=2000, max_output_bytes=1 << 20)
        return self.make(LIB.cell_session_open, self.get("engine"), c.byref(options))

    def policy(self):
        return c.c_void_p(LIB.cell_policy_of(2))

    def result(self):
        return self.make(LIB.cell_session_run, self.get("session"), b"1", 1, None)

    def canceller(self):
        return c.c_void_p(LIB.cell_canceller_create())

    def json(self):
        return c.c_void_p(LIB.cell_json_create())


def is_pointer(kind):
    return "*" in kind or kind.endswith("_fn")


def real(objects, kind, name):
    struct = re.search(r"struct cell_(\w+)", kind)
    if not is_pointer(kind):
        return 0
    if kind.count("*") == 1 and struct and struct[1] in HANDLES:
        return objects.get(struct[1])
    if struct and "cell_" + struct[1] in SIZED:
        return sized(8)
    if struct and kind.count("*") == 1 and struct[1] not in ("text", "shown_carry", "error"):
        return None  # an object that only a callback gets
    if kind == "const char *":
        return b"x"
    if kind.endswith("_fn"):
        return TAKE if name == "take" else None
    return sized(0)


def call(name, result, kinds, arguments, error):
    """(int) what it returned, or None where it returns something else."""
    function = getattr(LIB, name)
    function.restype = c.c_void_p if "*" in result else c.c_int64 if "int64" in result or "size_t" in result else None if result == "void" else c.c_int
    function.argtypes = None
    KEPT.append(arguments)
    given = [c.byref(error) if kind == "struct cell_error *" and error is not None
             else value if value is None or isinstance(value, (bytes, c.c_void_p, c.Array)) or value is TAKE else c.c_int64(value)
             for (kind, _), value in zip(kinds, arguments)]
    returned = function(*given)
    return returned if result == "int" and any(kind == "struct cell_error *" for kind, _ in kinds) else None


def try_function(name, result, params):
    objects, error = Objects(), Error()
    values = lambda change: [change(kind, parameter) for kind, parameter in params]  # noqa: E731
    pointers = [parameter for kind, parameter in params if is_pointer(kind)]
    call(name, result, params, values(lambda kind, parameter: None if is_pointer(kind) else 0), None)
    returned = call(name, result, params, values(lambda kind, parameter: None if is_pointer(kind) else 0), error)
    if returned is not None and name not in OPTIONAL:
        assert returned == -1 and error.code == INVALID, "%s with NULL: %s, %s" % (name, returned, error.code)
        message = error.msg.decode()
        assert message.startswith(name + "(): ") and any("): %s is NULL" % each in message for each in pointers), message
    # One by one, with everything else in order.
    for missing in pointers:
        call(name, result, params, values(lambda kind, parameter: None if parameter == missing else real(objects, kind, parameter)), Error())
        # Sizes that tell of bytes behind the pointer.
        call(name, result, params, values(lambda kind, parameter: None if parameter == missing else 5 if kind == "size_t"
                                          else b"12345" if kind == "const char *" else real(objects, kind, parameter)), Error())
    # A struct whose size was forgotten.
    for zeroed in [parameter for kind, parameter in params if set(re.findall(r"struct (\w+)", kind)) & SIZED]:
        error = Error()
        returned = call(name, result, params, values(lambda kind, parameter: sized(0) if parameter == zeroed else real(objects, kind, parameter)), error)
        if returned is not None and all(real(objects, kind, parameter) is not None for kind, parameter in params):
            assert returned == -1 and error.code == INVALID, "%s with an empty struct: %s, %s" % (name, returned, error.code)
            assert re.search(r"the size of struct cell_\w+ is 0: initialise the struct with cell_\w+_init\(\)", error.msg.decode()), error.msg


def nulls():
    LIB.cell_json_create.restype = LIB.cell_policy_of.restype = LIB.cell_canceller_create.restype = c.c_void_p
    LIB.cell_space_open.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]
    os.chdir(support.temporary_folder("workcell-tests-library-"))
    every = list(functions())
    assert len(every) == len(re.findall(r"CELL_API .*\bcell_\w+\(", text_of_header())) > 100, len(every)
    failed = []
    for name, result, params in every:
        child = os.fork()
        if child == 0:
            signal.alarm(int(support.DEADLINE))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            status = 1
            try:
                try_function(name, result, params)
                status = 0
            except BaseException as problem:  # noqa: B902
                print("%s: %r" % (name, problem), flush=True)
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            print("%s died by %s" % (name, signal.Signals(os.WTERMSIG(status)).name), flush=True)
        if status:
            failed.append(name)
    assert not failed, failed


SCENARIOS = [nulls]

if __name__ == "__main__":
    {scenario.__name__: scenario for scenario in SCENARIOS}[sys.argv[1]]()
    print("ok")
