#!/usr/bin/env python3
"""check-includes.py [--self-test] [ROOT]: do the sources of src/ depend on each other in one direction only?

The rooms of src/ stand in the order of LEVELS. A room may include and call what stands before it, and itself; rooms of one
level do not know each other. wire is pure (no loop). The program in cli/ stands on base, on the codecs of wire, and on
the public header, as anybody's program would; it includes the list of executors for their names (LISTS). Checked are

    #include lines,
    calls of public functions (include/workcell.h) that a later room defines: they would be includes that nobody sees,
    a struct tag that two files define,
    structs that must stay opaque (OPAQUE) but are defined in a header; members that one room alone may touch (MEMBERS),
    private names that differ from a public one by an underscore only (cell__policy beside cell_policy),
    comments that name a file of ours that does not exist (headers of the system are named as <x.h>),
    files and names that docs/glossary.md says define a word.

Prints each violation as FILE:LINE: what, and exits 1 when there was one. --self-test proves that every rule can fail.
"""

import os
import re
import sys
import tempfile

# Folders that hold rooms of their own.
NESTED = {"executors", "mcp", "server"}
LEVELS = [
    ["base"],
    ["wire"],
    ["loop"],
    ["calls"],
    ["layer"],
    ["files"],
    ["sandbox"],
    ["egress"],
    ["spawn"],
    ["mcp/client"],
    ["executors", "tools", "storage"],
    ["durable"],
    ["executors/subprocess", "executors/remote", "executors/inprocess"],  # and every executor that is not named here
    ["executors/sandbox", "executors/deno", "executors/jupyter", "executors/container", "executors/kubernetes"],
    ["search", "mcp/codegen"],
    ["gate"],
    ["deps"],
    ["space"],
    ["session"],
    ["engine"],
    ["mcp/server"],
    ["server"],
    ["server/e2b"],
]
PUBLIC = "workcell.h"

# Room -> rooms it may include. What is not named here may not be included.
ALLOWED = {}
below = []
for level in LEVELS:
    for name in level:
        ALLOWED[name] = {name, *below}
    below += level
ALLOWED["wire"].discard("loop")
EXECUTOR = ALLOWED["executors/subprocess"] - {"executors/subprocess"}
ALLOWED["cli"] = {"cli", "base", "wire"}
ANYWHERE = {os.path.join("include", PUBLIC)}
# Room, and a list of names in another room that it may include.
LISTS = {("cli", os.path.join("src", "executors", "registry.def"))}

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
DEFINITION = re.compile(r"^(?!static|typedef|return|extern|#)[a-z][\w \t*]*?\b(cell_[a-z]\w*)\(", re.M)
CALL = re.compile(r"\b(cell_[a-z]\w*)\(")
STRUCT = re.compile(r"^struct (\w+) \{", re.M)
OPAQUE = {"cell__loop"}
# Room -> the members that the other rooms reach by functions only.
MEMBERS = {"loop": re.compile(r"\bwaiter(?:\.|->)(?:lock|cond|done|lent)\b")}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
MENTION = re.compile(r"(?<![\w/.<\"])((?:\w+/)*\w+\.[ch])\b")
DEFINES = re.compile(r"`((?:src|include|kernel)/[\w/.]+)`(?: \(([^)]*)\))?")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def room_of(path):
    """The room of src/ROOM/FILE or src/NESTED/ROOM/FILE; None: it lies in no room."""
    parts = path.split(os.sep)[1:-1]
    if len(parts) == 1:
        return parts[0]
    if len(parts) != 2 or parts[0] not in NESTED:
        return None
    room = "/".join(parts)
    if parts[0] == "executors":
        ALLOWED.setdefault(room, {room, *EXECUTOR})
    return room


def resolve(root, path, name, quoted):
    """The file that a compiler would take, relative to root, or None: not one of ours."""
    folders = ["src", "include"]
    if quoted:
        folders.insert(0, os.path.dirname(path))
    for folder in folders:
        found = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, found)):
            return found
    return None


def check_include(root, path, name, quoted):
    """What is wrong with this line, or None."""
    room = room_of(path)
    target = resolve(root, path, name, quoted)
    if target is None:
        return 'there is no "%s" of ours' % name if quoted else None
    if target in ANYWHERE or (room, target) in LISTS:
        return None
    if not quoted:
        return 'our own header <%s> is included as if it were the system\'s' % name
    to = room_of(target) if target.startswith("src" + os.sep) else target.split(os.sep)[0]
    if to in ALLOWED[room]:
        return None
    return '%s/ must not include "%s": it may include %s' % (room, target, ", ".join(sorted(ALLOWED[room])))


def blank(text, pattern):
    """The text without these parts, every line where it was."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


class Tree:
    def __init__(self, root):
        self.root, self.problems, self.texts = root, [], {}
        self.files = {"/include/" + PUBLIC}
        for top in ("kernel", "fuzz", "bench", "tests"):
            for folder, _, names in os.walk(os.path.join(root, top)):
                self.files.update("/" + os.path.relpath(os.path.join(folder, name), root) for name in names)
        for folder, folders, names in os.walk(os.path.join(root, "src")):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(folder, name), root)
                    with open(os.path.join(root, path), encoding="utf-8") as file:
                        self.texts[path] = file.read()
        self.files.update("/" + path for path in self.texts)
        if not self.texts:
            self.problems.append("%s: no sources found" % os.path.join(root, "src"))
        header = os.path.join(root, "include", PUBLIC)
        self.public = set()
        if os.path.exists(header):
            with open(header, encoding="utf-8") as file:
                self.public = set(re.findall(r"\bcell_[a-z]\w*", blank(file.read(), COMMENT)))

    def tell(self, path, line, what):
        self.problems.append("%s:%d: %s" % (path, line, what))

    def check_rooms(self):
        this = os.path.basename(__file__)
        for path in list(self.texts):
            room = room_of(path)
            if room not in ALLOWED:
                what = "src/%s/ has no place in the order of rooms; give it one in %s" % (room, this) if room else \
                    "sources belong in src/ROOM/, or in src/%s/ROOM/" % "|".join(sorted(NESTED))
                self.tell(path, 1, what)
                del self.texts[path]

    def check_includes(self):
        for path, text in self.texts.items():
            for number, line in enumerate(text.split("\n"), 1):
                match = INCLUDE.match(line)
                problem = match and check_include(self.root, path, match[2], match[1] == '"')
                if problem:
                    self.tell(path, number, problem)

    def check_calls(self):
        code = {path: blank(blank(text, COMMENT), STRING) for path, text in self.texts.items() if path.endswith(".c")}
        defined = {}
        for path, text in code.items():
            for match in DEFINITION.finditer(text):
                if match[1] in self.public and not text[match.end():].split("{")[0].rstrip().endswith(";"):
                    defined[match[1]] = path
        for path, text in code.items():
            if room_of(path) == "cli":
                continue
            for match in CALL.finditer(text):
                where = defined.get(match[1])
                if where and room_of(where) not in ALLOWED[room_of(path)]:
                    self.tell(path, text.count("\n", 0, match.start()) + 1,
                              "%s/ must not call %s(), which is defined in %s" % (room_of(path), match[1], where))

    def check_tags(self):
        first = {}
        for path, text in self.texts.items():
            for match in STRUCT.finditer(blank(text, COMMENT)):
                # In a .c file a tag without our prefix is the file's own.
                if path.endswith(".c") and not match[1].startswith("cell_"):
                    continue
                if first.setdefault(match[1], path) != path:
                    self.tell(path, text.count("\n", 0, match.start()) + 1,
                              "struct %s is defined in %s as well" % (match[1], first[match[1]]))

    def check_opaque(self):
        for path, text in self.texts.items():
            code = blank(text, COMMENT)
            for match in STRUCT.finditer(code):
                if match[1] in OPAQUE and path.endswith(".h"):
                    self.tell(path, code.count("\n", 0, match.start()) + 1, "struct %s must be defined in a .c file" % match[1])
            for room, members in MEMBERS.items():
                for match in members.finditer(code) if room_of(path) != room else ():
                    self.tell(path, code.count("\n", 0, match.start()) + 1,
                              "%s is for %s/ alone; call its functions" % (match[0], room))

    def check_names(self):
        for path, text in self.texts.items():
            seen = set()
            for match in re.finditer(r"\bcell__(\w+)", blank(text, COMMENT)):
                if "cell_" + match[1] in self.public and match[0] not in seen:
                    seen.add(match[0])
                    self.tell(path, text.count("\n", 0, match.start()) + 1,
                              "%s differs from the public cell_%s by an underscore only" % (match[0], match[1]))

    def check_mentions(self):
        ends = {"/".join(parts[i:]) for parts in (path.split("/") for path in self.files) for i in range(1, len(parts))}
        for path, text in self.texts.items():
            for comment in COMMENT.finditer(blank(text, STRING)):
                for match in MENTION.finditer(comment[0]):
                    if match[1] not in ends:
                        self.tell(path, text.count("\n", 0, comment.start() + match.start()) + 1,
                                  "the comment names %s, which does not exist" % match[1])

    def check_glossary(self):
        path = os.path.join("docs", "glossary.md")
        if not os.path.exists(os.path.join(self.root, path)):
            return
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        for number, line in enumerate(lines, 1):
            for match in DEFINES.finditer(line):
                defining = os.path.join(self.root, match[1])
                if not os.path.exists(defining):
                    self.tell(path, number, "%s does not exist" % match[1])
                elif match[2]:
                    with open(defining, encoding="utf-8") as file:
                        text = file.read()
                    for name in re.findall(r"`(?:struct )?(\w+)`", match[2]):
                        if not re.search(r"\b%s\b" % name, text):
                            self.tell(path, number, "%s does not hold %s" % (match[1], name))


def check_tree(root):
    tree = Tree(root)
    tree.check_rooms()
    tree.check_includes()
    tree.check_calls()
    tree.check_tags()
    tree.check_opaque()
    tree.check_names()
    tree.check_mentions()
    tree.check_glossary()
    return tree.problems


# (room, include line, is it right?)
SELF_TEST = [
    ("base", '"base/a.h"', True),
    ("base", '"workcell.h"', True),
    ("base", "<workcell.h>", True),
    ("base", "<stdio.h>", True),
    ("base", '"loop/a.h"', False),
    ("base", "<loop/a.h>", False),
    ("base", '"../loop/a.h"', False),
    ("base", '"missing.h"', False),
    ("loop", '"base/a.h"', True),
    ("loop", '"calls/a.h"', False),
    ("wire", '"base/a.h"', True),
    ("wire", '"loop/a.h"', False),
    ("calls", '"loop/a.h"', True),
    ("calls", '"tools/a.h"', False),
    ("tools", '"calls/a.h"', True),
    ("spawn", '"sandbox/a.h"', True),
    ("spawn", '"executors/a.h"', False),
    ("sandbox", '"spawn/a.h"', False),
    ("sandbox", '"egress/a.h"', False),
    ("executors", '"executors/subprocess/a.h"', False),
    ("executors/subprocess", '"executors/a.h"', True),
    ("executors/subprocess", '"executors/remote/a.h"', False),
    ("executors/sandbox", '"executors/subprocess/a.h"', True),
    ("executors/deno", '"executors/jupyter/a.h"', False),
    ("executors/container", '"executors/remote/a.h"', True),
    ("tools", '"executors/a.h"', False),
    ("tools", '"storage/a.h"', False),
    ("tools", '"mcp/client/a.h"', True),
    ("mcp/client", '"tools/a.h"', False),
    ("mcp/client", '"mcp/server/a.h"', False),
    ("storage", '"wire/a.h"', True),
    ("search", '"storage/a.h"', True),
    ("gate", '"space/a.h"', False),
    ("gate", '"tools/a.h"', True),
    ("space", '"session/a.h"', False),
    ("session", '"space/a.h"', True),
    ("session", '"engine/a.h"', False),
    ("session", '"a.h"', True),
    ("session", '"bench.h"', False),
    ("session", '"../../bench/bench.h"', False),
    ("engine", '"session/a.h"', True),
    ("server", '"engine/a.h"', True),
    ("server", '"cli/a.h"', False),
    ("mcp/server", '"server/a.h"', False),
    ("server", '"mcp/server/a.h"', True),
    ("cli", '"a.h"', True),
    ("cli", '"workcell.h"', True),
    ("cli", '"../../bench/bench.h"', False),
    ("cli", '"base/a.h"', True),
    ("cli", '"wire/a.h"', True),
    ("cli", '"loop/a.h"', False),
    ("cli", '"session/a.h"', False),
    ("cli", '"server/a.h"', False),
    ("newcomer", '"base/a.h"', False),
    ("executors/newcomer", '"executors/a.h"', True),
    ("executors/newcomer", '"executors/subprocess/a.h"', False),
    ("base/inner", '"base/a.h"', False),
]
# (files, how many problems)
SELF_TEST_TREES = [
    ({"include/workcell.h": "int cell_thing_do(void);\n", "src/engine/a.c": "int cell_thing_do(void)\n{\n}\n",
      "src/session/a.c": "int x(void)\n{\n\treturn cell_thing_do();\n}\n"}, 1),
    ({"include/workcell.h": "int cell_thing_do(void);\n", "src/engine/a.c": "int cell_thing_do(void)\n{\n}\n",
      "src/server/a.c": "int x(void)\n{\n\treturn cell_thing_do();\n}\n"}, 0),
    ({"include/workcell.h": "int cell_thing_do(void);\n", "src/engine/a.c": "int cell_thing_do(void)\n{\n}\n",
      "src/session/a.c": "/* cell_thing_do() */\nconst char *x = \"cell_thing_do()\";\n"}, 0),
    ({"src/executors/registry.def": "\n", "src/cli/a.c": '#include "executors/registry.def"\n'}, 0),
    ({"src/executors/registry.def": "\n", "src/base/a.c": '#include "executors/registry.def"\n'}, 1),
    ({"src/base/a.h": "struct cell__x {\n};\n", "src/loop/a.h": "struct cell__x {\n};\n"}, 1),
    ({"src/base/a.c": "struct own {\n};\n", "src/loop/a.c": "struct own {\n};\n"}, 0),
    ({"src/loop/a.h": "struct cell__loop {\n};\n"}, 1),
    ({"src/loop/a.c": "struct cell__loop {\n};\n"}, 0),
    ({"src/calls/a.c": "int x = run->waiter.done;\n"}, 1),
    ({"src/loop/a.c": "int x = waiter->done;\n", "src/calls/a.c": "/* waiter->done */\nint y = waiter->other;\n"}, 0),
    ({"include/workcell.h": "struct cell_policy;\n", "src/base/a.c": "struct cell__policy *x;\n"}, 1),
    ({"include/workcell.h": "struct cell_policy;\n", "src/base/a.c": "struct cell__policy_x *x;\n"}, 0),
    ({"src/base/a.c": "/* b.c does it, with base/c.h */\n", "src/base/b.c": "\n"}, 1),
    ({"src/base/a.c": "/* b.c does it, as base/b.c and <sched.h> say */\n", "src/base/b.c": "\n"}, 0),
    ({"src/base/a.c": "int x;\n", "docs/glossary.md": "| x | `src/base/a.c` (`x`), `src/base` |\n"}, 0),
    ({"src/base/a.c": "int x;\n", "docs/glossary.md": "| x | `src/base/a.c` (`y`), `src/base/b.c` |\n"}, 2),
]


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def self_test():
    wrong = 0
    rooms = list(ALLOWED)
    for number, (room, include, right) in enumerate(SELF_TEST):
        with tempfile.TemporaryDirectory() as root:
            for name in rooms:
                write(os.path.join(root, "src", name, "a.h"), "\n")
            write(os.path.join(root, "include", PUBLIC), "\n")
            write(os.path.join(root, "bench", "bench.h"), "\n")
            write(os.path.join(root, "src", room, "b.c"), "/* a comment */\n  #  include %s\nint x;\n" % include)
            problems = check_tree(root)
        line = 1 if room not in ALLOWED else 2
        expected = 0 if right else 1
        place = os.path.join("src", room, "b.c") + ":%d: " % line
        if len(problems) != expected or (problems and not problems[0].startswith(place)):
            print("self-test %d: %s includes %s: expected %d problem(s), found %s" % (number, room, include, expected, problems))
            wrong += 1
    for number, (files, expected) in enumerate(SELF_TEST_TREES):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                write(os.path.join(root, path), text)
            problems = check_tree(root)
        if len(problems) != expected:
            print("self-test of tree %d: expected %d problem(s), found %s" % (number, expected, problems))
            wrong += 1
    with tempfile.TemporaryDirectory() as root:
        if not check_tree(root):
            print("self-test: an empty tree passed")
            wrong += 1
    print("self-test: %d rules tried, %d wrong" % (len(SELF_TEST) + len(SELF_TEST_TREES) + 1, wrong))
    return wrong


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--self-test"]:
        sys.exit(1 if self_test() else 0)
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
    problems = check_tree(os.path.normpath(root))
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
