#!/usr/bin/env python3
"""check-hardening.py [--self-test] [BUILD]: do the built files have the hardening that meson.build asks for?

Reads with readelf what the linker wrote: full RELRO, a stack that is not executable, position-independent code, the stack
protector, checked string functions (_FORTIFY_SOURCE), and on x86-64 CET's landing pads (at the beginning of a function: the note of a
whole file is missing wherever libc's start files have none). Stack clash protection leaves no mark in a file, so the compiler's command
lines (compile_commands.json) are searched for it. --self-test proves that every rule can fail, with a
program that is built without any of this.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What is installed: the name in the build folder, and a function in it that is called from outside.
FILES = {"libworkcell.so": "cell_version", "workcell": "main", "workcell-bench": "main", "workcell-spawner": "main", "_workcell.abi3.so": "PyInit__workcell",
         "_native.abi3.so": "PyInit__native"}
ENDBR64 = bytes.fromhex("f30f1efa")
X86 = platform.machine() == "x86_64"


def readelf(path, *what):
    done = subprocess.run(["readelf", "--wide", *what, path], capture_output=True, text=True, env=dict(os.environ, LC_ALL="C"))
    if done.returncode != 0:
        sys.exit("check-hardening: readelf %s: %s" % (path, done.stderr.strip()))
    return done.stdout


def first_bytes(path, function):
    """The first instruction of a function."""
    found = re.search(r": (\w+) +\d+ FUNC .* %s(?:@.*)?$" % function, readelf(path, "--syms"), re.M)
    if not found:
        sys.exit("check-hardening: %s has no function %s" % (path, function))
    address = int(found.group(1), 16)
    for offset, start, size in re.findall(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", readelf(path, "--program-headers")):
        if int(start, 16) <= address < int(start, 16) + int(size, 16):
            with open(path, "rb") as file:
                file.seek(address - int(start, 16) + int(offset, 16))
                return file.read(len(ENDBR64))
    sys.exit("check-hardening: %s of %s is in no segment" % (function, path))


def missing_in(path, function):
    """What the file lacks, a line each."""
    segments = readelf(path, "--file-header", "--program-headers")
    dynamic = readelf(path, "--dynamic")
    symbols = set(re.findall(r" UND (\w+)", readelf(path, "--dyn-syms")))
    missing = []
    if "GNU_RELRO" not in segments or not re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", dynamic):
        missing.append("full RELRO (-z relro, -z now)")
    if not re.search(r"GNU_STACK +\S+ \S+ \S+ \S+ \S+ +RW +", segments):
        missing.append("a stack that is not executable (-z noexecstack)")
    if not re.search(r"Type: +DYN", segments) or function == "main" and not re.search(r"\(FLAGS_1\).*PIE", dynamic):
        missing.append("position-independent code (PIE)")
    if "(TEXTREL)" in dynamic:
        missing.append("code without relocations (TEXTREL)")
    if "__stack_chk_fail" not in symbols:
        missing.append("the stack protector (-fstack-protector-strong)")
    if not any(name.endswith("_chk") for name in symbols):
        missing.append("checked string functions (_FORTIFY_SOURCE)")
    if X86 and first_bytes(path, function) != ENDBR64:
        missing.append("CET (-fcf-protection)")
    return missing


def missing_flags(commands):
    """Sources that were compiled without stack clash protection."""
    return [command["file"] for command in commands if command["file"].endswith(".c") and "-fstack-clash-protection" not in command["command"].split()]


def check(folder):
    problems = []
    for name, function in FILES.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            problems.append("%s is not there; build it first" % path)
        else:
            problems += ["%s lacks %s" % (path, what) for what in missing_in(path, function)]
    with open(os.path.join(folder, "compile_commands.json")) as file:
        problems += ["%s was compiled without -fstack-clash-protection" % name for name in missing_flags(json.load(file))]
    return problems


def self_test():
    """A program with nothing of it: each rule must say so."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "bare.c"), os.path.join(folder, "bare")
        with open(source, "w") as file:
            file.write("int main(int argc, char **argv)\n{\n\treturn argv[argc] != 0;\n}\n")
        subprocess.run(["cc", "-O0", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-fno-pie", "-no-pie", "-fcf-protection=none" if X86 else "-g",
                        "-Wl,-z,norelro", "-Wl,-z,lazy", "-Wl,-z,execstack", "-o", program, source], check=True)
        found = missing_in(program, "main")
    expected = ["RELRO", "executable", "PIE", "stack protector", "_FORTIFY_SOURCE"] + (["CET"] if X86 else [])
    unseen = [word for word in expected if not any(word in line for line in found)]
    if not missing_flags([{"file": "a.c", "command": "cc -c a.c"}]):
        unseen.append("stack clash protection")
    for word in unseen:
        print("check-hardening: the rule on %s did not notice a program without it" % word)
    return 1 if unseen else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems = check(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build"))
    for line in problems:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
