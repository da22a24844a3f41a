#!/usr/bin/env python3
"""check-abi.py [--self-test] [BUILD]: do programs that were compiled against former headers still fit the library?

tests/abi/workcell-*.h are headers as they were. Everything in them must be in include/workcell.h as well: each function with its type, each
enumerator with its number (codes, events), each member of a struct at its place with its type. A struct may have become longer, unless it
has no `size` and the program gives the memory. With a build folder, libworkcell.so must export what the header declares, with a version
(src/workcell.map), and nothing else. clang reads the headers. --self-test proves that every rule can fail.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "include", "workcell.h")
# Results are the library's memory, and events too: only it makes them. Programs only read what they know.
GROW_AT_THE_LIBRARY = {"struct cell_call_info", "struct cell_event", "struct cell_outcome", "struct cell_mime_part", "struct cell_text"}


def clang(source, *flags):
    done = subprocess.run(["clang", "-x", "c", "-std=gnu17", *flags, source], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("check-abi: clang on %s: %s" % (source, done.stderr))
    return done.stdout


def read(header):
    """{"function cell_x": type, "enumerator CELL_X": number, "struct cell_x": size, "struct cell_x.member": (place, type)}"""
    facts = {}
    tree = json.loads(clang(header, "-fsyntax-only", "-Xclang", "-ast-dump=json"))
    structs = []
    for node in tree["inner"]:
        name = node.get("name", "")
        if node["kind"] == "FunctionDecl" and name.startswith("cell_") and node.get("storageClass") != "static":
            facts["function " + name] = node["type"]["qualType"]
        elif node["kind"] == "RecordDecl" and name.startswith("cell_") and node.get("completeDefinition"):
            structs.append(name)
        elif node["kind"] == "EnumDecl":
            number = -1
            for each in node["inner"]:
                given = next((inner["value"] for inner in each.get("inner", []) if "value" in inner), None)
                number = int(given) if given is not None else number + 1
                if each["name"].startswith("CELL_") and not each["name"].endswith("_COUNT"):
                    facts["enumerator " + each["name"]] = number
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        # A layout is printed where a struct is used.
        file.write('#include "%s"\n' % os.path.abspath(header))
        file.writelines("size_t size_of_%s = sizeof(struct %s);\n" % (name, name) for name in structs)
        file.flush()
        layouts = clang(file.name, "-c", "-o", os.devnull, "-Xclang", "-fdump-record-layouts")
    for struct, members, size in re.findall(r"AST Record Layout\n +0 \| (struct \w+)\n(.*?)\[sizeof=(\d+)", layouts, re.S):
        facts[struct] = int(size)
        for place, what, member in re.findall(r"^ +(\d+) \|   (\S.*?) (\w+)$", members, re.M):
            facts[struct + "." + member] = (int(place), what)
    missing = {"struct " + name for name in structs} - set(facts)
    if missing:
        sys.exit("check-abi: clang printed no layout of %s" % ", ".join(sorted(missing)))
    return facts


def differences(before, now):
    found = []
    for what, old in before.items():
        new = now.get(what)
        if re.fullmatch(r"struct \w+", what):
            may_grow = what + ".size" in before and before[what + ".size"][0] == 0 or what in GROW_AT_THE_LIBRARY
            if new is not None and (new < old or new > old and not may_grow):
                found.append("%s had %d bytes and has %d" % (what, old, new))
        elif new != old:
            found.append("%s was %s and is %s" % (what, old, "gone" if new is None else new))
    return found


def exported(library):
    """{name: version}"""
    table = subprocess.run(["readelf", "--wide", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
    return {name: version for name, version in re.findall(r"(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)(?:@@?(\S+))?", table)}


def check_exports(symbols, functions):
    symbols = {name: version for name, version in symbols.items() if not name.startswith("WORKCELL_")}
    found = ["%s is exported, and include/workcell.h does not declare it" % name for name in sorted(set(symbols) - functions)]
    found += ["%s is declared and not exported" % name for name in sorted(functions - set(symbols))]
    return found + ["%s is exported without a version" % name for name, version in sorted(symbols.items()) if not version.startswith("WORKCELL_")]


def self_test():
    before = {"function cell_a": "int (void)", "enumerator CELL_A": 1, "struct cell_o": 16, "struct cell_o.size": (0, "size_t"),
              "struct cell_o.a": (8, "int"), "struct cell_fixed": 8, "struct cell_fixed.a": (0, "int")}
    broken = [{"function cell_a": "int (int)"}, {"enumerator CELL_A": 2}, {"struct cell_o.a": (12, "int")}, {"struct cell_o.a": (8, "long")},
              {"struct cell_o": 8}, {"struct cell_fixed": 16}, {"function cell_a": None}]
    blind = [change for change in broken if len(differences(before, {**before, **change})) != 1]
    blind += ["a longer struct"] if differences(before, {**before, "struct cell_o": 24}) else []
    for symbols, functions in (({"cell_a": "WORKCELL_0.1", "other": "WORKCELL_0.1"}, {"cell_a"}), ({}, {"cell_a"}), ({"cell_a": ""}, {"cell_a"})):
        blind += [] if len(check_exports(symbols, functions)) == 1 else [symbols]
    for each in blind:
        print("check-abi: not judged as it should be: %s" % (each,))
    return 1 if blind else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    build = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build")
    now = read(HEADER)
    problems = []
    former = sorted(glob.glob(os.path.join(ROOT, "tests", "abi", "workcell-*.h")))
    if not former:
        problems.append("tests/abi has no former header")
    for header in former:
        problems += ["%s: %s" % (os.path.relpath(header, ROOT), line) for line in differences(read(header), now)]
    functions = {what.split()[1] for what in now if what.startswith("function ")}
    problems += check_exports(exported(os.path.join(build, "libworkcell.so")), functions)
    for line in problems:
        print(line)
    if problems:
        print("check-abi: programs that exist would break. workcell-X.h of a version that is not released yet (CHANGELOG.md) may be made again "
              "from include/workcell.h; others never.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
