#!/usr/bin/env python3
"""check-includes.py [--self-test] [ROOT]: do the #include lines of src/ point the way they should?

    core <- loop <- wire <- calls <- sandbox <- spawn <- mcp <- executor, tools, store <- session <- server, cli

A folder includes what stands left of it and itself; folders at the same level do not include each other. wire is pure
(no loop), and the programs in cli/ stand on the public header alone, as anybody's program would; they share headers
with bench/. Prints each violation as FILE:LINE: what, and exits 1 when there was one. --self-test proves that every
rule can fail.
"""

import os
import re
import sys
import tempfile

LEVELS = [["core"], ["loop"], ["wire"], ["calls"], ["sandbox"], ["spawn"], ["mcp"], ["executor", "tools", "store"], ["session"], ["server"]]
PUBLIC = "workcell.h"

# Folder -> folders it may include. What is not named here may not be included.
ALLOWED = {}
below = []
for level in LEVELS:
    for folder in level:
        ALLOWED[folder] = {folder, *below}
    below += level
ALLOWED["wire"].discard("loop")
ALLOWED["cli"] = {"cli", "bench"}
ANYWHERE = {os.path.join("include", PUBLIC), os.path.join("src", "core", "hole.h")}  # the second one is nothing but a test's switch

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def resolve(root, path, name, quoted):
    """The file that a compiler would take, relative to root, or None: not one of ours."""
    folders = ["src", "include", "bench"]
    if quoted:
        folders.insert(0, os.path.dirname(path))
    for folder in folders:
        found = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, found)):
            return found
    return None


def check_include(root, path, name, quoted):
    """What is wrong with this line, or None."""
    folder = path.split(os.sep)[1]
    target = resolve(root, path, name, quoted)
    if target is None:
        return 'there is no "%s" of ours' % name if quoted else None
    parts = target.split(os.sep)
    if target in ANYWHERE:
        return None
    if not quoted:
        return 'our own header <%s> is included as if it were the system\'s' % name
    to = parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]
    if to in ALLOWED[folder]:
        return None
    return '%s/ must not include "%s": it may include %s' % (folder, target, ", ".join(sorted(ALLOWED[folder])))


def check_file(root, path):
    parts = path.split(os.sep)
    if len(parts) != 3:
        return [(1, "sources lie in src/FOLDER/")]
    if parts[1] not in ALLOWED:
        this = os.path.basename(__file__)
        return [(1, "src/%s/ has no place in the order of folders; give it one in %s" % (parts[1], this))]
    problems = []
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            problem = match and check_include(root, path, match[2], match[1] == '"')
            if problem:
                problems.append((number, problem))
    return problems


def check_tree(root):
    problems, count = [], 0
    for folder, folders, names in os.walk(os.path.join(root, "src")):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                path = os.path.relpath(os.path.join(folder, name), root)
                count += 1
                problems += ["%s:%d: %s" % (path, line, what) for line, what in check_file(root, path)]
    if not count:
        problems.append("%s: no sources found" % os.path.join(root, "src"))
    return problems


# (file, include line, is it right?)
SELF_TEST = [
    ("core", '"core/a.h"', True),
    ("core", '"workcell.h"', True),
    ("core", "<workcell.h>", True),
    ("core", "<stdio.h>", True),
    ("core", '"loop/a.h"', False),
    ("core", "<loop/a.h>", False),
    ("core", '"../loop/a.h"', False),
    ("core", '"missing.h"', False),
    ("loop", '"core/a.h"', True),
    ("loop", '"wire/a.h"', False),
    ("wire", '"core/a.h"', True),
    ("wire", '"loop/a.h"', False),
    ("wire", '"spawn/a.h"', False),
    ("wire", '"calls/a.h"', False),
    ("calls", '"loop/a.h"', True),
    ("calls", '"tools/a.h"', False),
    ("tools", '"calls/a.h"', True),
    ("spawn", '"wire/a.h"', True),
    ("spawn", '"loop/a.h"', True),
    ("spawn", '"sandbox/a.h"', True),
    ("spawn", '"executor/a.h"', False),
    ("sandbox", '"spawn/a.h"', False),
    ("executor", '"spawn/a.h"', True),
    ("executor", '"sandbox/a.h"', True),
    ("executor", '"tools/a.h"', False),
    ("executor", '"session/a.h"', False),
    ("tools", '"executor/a.h"', False),
    ("tools", '"store/a.h"', False),
    ("mcp", '"tools/a.h"', False),
    ("mcp", '"spawn/a.h"', True),
    ("tools", '"mcp/a.h"', True),
    ("store", '"wire/a.h"', True),
    ("store", '"tools/a.h"', False),
    ("session", '"executor/a.h"', True),
    ("session", '"store/a.h"', True),
    ("session", '"core/a.h"', True),
    ("session", '"server/a.h"', False),
    ("session", '"cli/a.h"', False),
    ("session", '"a.h"', True),
    ("session", '"bench.h"', False),
    ("session", '"../../bench/bench.h"', False),
    ("server", '"session/a.h"', True),
    ("server", '"cli/a.h"', False),
    ("cli", '"a.h"', True),
    ("cli", '"workcell.h"', True),
    ("cli", '"bench.h"', True),
    ("cli", '"../../bench/bench.h"', True),
    ("cli", '"core/a.h"', False),
    ("cli", '"../core/a.h"', False),
    ("cli", '"session/a.h"', False),
    ("cli", '"server/a.h"', False),
    ("newcomer", '"core/a.h"', False),
]


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def self_test():
    wrong = 0
    for number, (folder, include, right) in enumerate(SELF_TEST):
        with tempfile.TemporaryDirectory() as root:
            for name in ALLOWED:
                write(os.path.join(root, "src", name, "a.h"), "\n")
            write(os.path.join(root, "include", PUBLIC), "\n")
            write(os.path.join(root, "bench", "bench.h"), "\n")
            write(os.path.join(root, "src", folder, "b.c"), "/* a comment */\n  #  include %s\nint x;\n" % include)
            problems = check_tree(root)
        line = 1 if folder not in ALLOWED else 2
        expected = 0 if right else 1
        place = os.path.join("src", folder, "b.c") + ":%d: " % line
        if len(problems) != expected or (problems and not problems[0].startswith(place)):
            print("self-test %d: %s includes %s: expected %d problem(s), found %s"
                  % (number, folder, include, expected, problems))
            wrong += 1
    with tempfile.TemporaryDirectory() as root:
        if not check_tree(root):
            print("self-test: an empty tree passed")
            wrong += 1
    print("self-test: %d rules tried, %d wrong" % (len(SELF_TEST) + 1, wrong))
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
