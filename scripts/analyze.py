#!/usr/bin/env python3
"""analyze.py [--changed|--self-test] [BUILD]: clang's static analyzer on the sources that are installed. Each finding fails the run.

Takes the compiler's command lines from BUILD/compile_commands.json. A file whose text after the preprocessor was analyzed before without a
finding is not analyzed again (BUILD/analyzed.json). --changed: only files that differ from the main branch, or are not committed.
Checks: clang's defaults (core, unix, deadcode, security, nullability) but those in ALLOWED. --self-test proves that a finding fails.
"""

import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Programs, library and extensions; each source once, though several targets compile it.
FOLDERS = ("src/", "kernel/ext/", "python/ext/")
# {source: checkers that are off for it}. Both files call vfork(): the child shares the parent's memory on purpose. It enters the namespaces,
# forks the process that stays there, writes its number into the parent's memory and ends. posix_spawn() cannot enter namespaces, and fork()
# would copy the page tables twice.
VFORK = ("security.insecureAPI.vfork", "unix.Vfork")
ALLOWED = {"kernel/ext/confine.c": VFORK, "src/spawn/spawner_zygotes.c": VFORK}


def commands(build):
    """{source: (folder, compiler arguments)}"""
    found = {}
    with open(os.path.join(build, "compile_commands.json")) as file:
        for each in json.load(file):
            name = os.path.relpath(os.path.join(each["directory"], each["file"]), ROOT)
            arguments = shlex.split(each["command"])
            while arguments[0] in ("ccache", "cc", "gcc", "clang"):
                arguments.pop(0)
            # Output, dependencies, colours and gcc's own options are not the analyzer's.
            for flag in ("-o", "-MF", "-MQ"):
                if flag in arguments:
                    at = arguments.index(flag)
                    del arguments[at:at + 2]
            if name.startswith(FOLDERS) and name not in found:
                off = [word for checker in ALLOWED.get(name, ()) for word in ("-Xclang", "-analyzer-disable-checker", "-Xclang", checker)]
                left_out = ("-MD", "-c", "-Werror", "-fdiagnostics-color=always")
                found[name] = each["directory"], off + [argument for argument in arguments if argument not in left_out]
    return found


def changed():
    """Names of C files that differ from where this branch left main."""
    base = subprocess.run(["git", "merge-base", "HEAD", "origin/main"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or "HEAD"
    listed = subprocess.run(["git", "diff", "--name-only", base], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if name.endswith(".c")}


def analyze(folder, arguments, known):
    """(key, what the analyzer says)"""
    text = subprocess.run(["clang", "-E", "-P", "-w", *arguments], cwd=folder, capture_output=True)
    key = hashlib.sha256(text.stdout + repr(arguments).encode()).hexdigest()
    if key in known:
        return key, ""
    done = subprocess.run(["clang", "--analyze", "-Xclang", "-analyzer-output=text", "-Xclang", "-analyzer-werror", "-w", "-fno-color-diagnostics",
                           *arguments], cwd=folder, capture_output=True, text=True)
    return key, done.stderr if done.returncode != 0 else ""


def self_test():
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write("int f(int *p)\n{\n\tif (p)\n\t\treturn 1;\n\treturn *p;\n}\n")
        file.flush()
        said = analyze("/", ["-std=gnu17", file.name], set())[1]
    if "Dereference of null pointer" not in said:
        print("analyze: NULL is dereferenced, and that is not found: %s" % said)
        return 1
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    build = os.path.abspath(names[0]) if names else os.path.join(ROOT, "build")
    todo = commands(build)
    if not todo:
        sys.exit("analyze: no sources in %s/compile_commands.json" % build)
    gone = set(ALLOWED) - set(todo)
    if gone:
        sys.exit("analyze: ALLOWED names sources that are not built: %s" % " ".join(sorted(gone)))
    if "--changed" in sys.argv[1:]:
        wanted = changed()
        todo = {name: how for name, how in todo.items() if name in wanted}
    cache = os.path.join(build, "analyzed.json")
    known = set()
    if os.path.exists(cache):
        with open(cache) as file:
            known = set(json.load(file))
    good, bad = set(), 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, (key, said) in zip(todo, pool.map(lambda how: analyze(*how, known), todo.values())):
            if said:
                bad += 1
                print("== %s\n%s" % (name, said), flush=True)
            else:
                good.add(key)
    with open(cache, "w") as file:
        json.dump(sorted(good if "--changed" not in sys.argv[1:] else known | good), file)
    print("analyze: %d files, %d with findings" % (len(todo), bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
