#!/usr/bin/env python3
"""check-words.py [--self-test] [ROOT]: are the texts that users see written in plain English?

Checks every string literal of the sources (docstrings of the SDK included, comments not) for wordings that a reader outside
of the project stumbles over; CONTRIBUTING.md has the style. Prints each finding as
FILE:LINE: words: the text, and exits 1 when there was one. --self-test proves that every rule can fail.
"""

import io
import os
import re
import subprocess
import sys
import tokenize

FOLDERS = ["include", "src", "kernel", "python", "deno", "scripts", "bench"]
C_ENDINGS = (".c", ".h", ".mjs", ".js", ".ts")
# A docstring outside of the SDK is a comment; in it, help() and docs/python/api.md show it.
DOCUMENTED = "python/workcell/"

RULES = [
    ("say what is wrong with the value, not that it is none", r"\b(?:is|are) none\b"),
    ("name the noun", r"\bnone that\b"),
    ('write "is not a ..."', r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b|less\b|other\b)[a-z]+"),
    ('write "again"', r"\banew\b"),
    ('write "out of memory"', r"\bmemory is gone\b|\bno memory (?:for|to)\b"),
    ('write "not available"', r"\bto be had\b"),
    ('write "unsuccessful"', r"\bin vain\b"),
    ('write "is inside"', r"\blies? in\b"),
    ('write "no longer"', r"\bdoes not wait any more\b"),
    ('write "a string"', r"\b(?:is|be) a text\b|\blist of texts\b"),
]
COMPILED = [(advice, re.compile(pattern)) for advice, pattern in RULES]
C_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
C_PIECE = re.compile(r"\s*(?:\\\n\s*)?")


def c_strings(text):
    """(line, content) of each literal; neighbours are one, as they are for the compiler."""
    found, end = [], None
    for token in C_TOKEN.finditer(text):
        if not token.group().startswith('"'):
            continue
        content = token.group()[1:-1].replace("\\n", "\n")
        if end is not None and C_PIECE.fullmatch(text, end, token.start()):
            found[-1][1] += content
        else:
            found.append([text.count("\n", 0, token.start()) + 1, content])
        end = token.end()
    return found


def python_strings(text, documented):
    """The same for Python. A string that is a statement by itself is a docstring."""
    found, joins, first = [], False, True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            if joins:
                found[-1][1] += token.string
            elif documented or not first:
                found.append([token.start[0], token.string])
            joins, first = bool(found) and not (first and not documented), False
        elif token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            joins, first = False, True
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENCODING):
            joins, first = False, False
    return found


def problems_of(name, text):
    strings = c_strings(text) if name.endswith(C_ENDINGS) else python_strings(text, name.startswith(DOCUMENTED))
    for line, content in strings:
        words = " ".join(content.split())
        for advice, pattern in COMPILED:
            found = pattern.search(words)
            if found:
                yield "%s:%d: \"%s\": %s: %s" % (name, line, found.group(), advice, words[:160])


def check(root):
    listed = subprocess.run(["git", "ls-files", "-z", "--"] + FOLDERS, cwd=root, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name.endswith(C_ENDINGS + (".py",)) and "/tests/" not in name
             and name != "scripts/check-words.py"]
    if not names:
        return ["%s: no sources found" % root]
    problems = []
    for name in names:
        path = os.path.join(root, name)
        if os.path.exists(path):  # git lists a file that was removed and not committed yet
            with open(path, encoding="utf-8") as file:
                problems += problems_of(name, file.read())
    return problems


SELF_TESTS = [
    ("a.c", 'fail("port %d is none: they go to 65535");', 1),
    ("a.c", 'fail("port %d "\n     "is none");', 1),
    ("a.c", '/* "port is none" */ int x;', 0),
    ("a.c", 'fail("unknown header; none that we speak");', 1),
    ("a.c", "fail(\"'%s' is no name for a tool\");", 1),
    ("a.c", 'fail("there is no tool \'%s\'");', 0),
    ("a.c", 'fail("it is no longer kept");', 0),
    ("a.c", 'fail("made anew");', 1),
    ("a.c", 'fail("no memory for a path");', 1),
    ("a.c", 'fail("not to be had from a server");', 1),
    ("a.c", 'fail("looked for in vain");', 1),
    ("a.c", 'fail("%s lies in %s");', 1),
    ("a.c", 'fail("the question does not wait any more");', 1),
    ("a.c", 'fail("a key must be a text");', 1),
    ("a.h", '#define FLAG { "x", \\\n"this is no "  \\\n "flag" }', 1),
    ("kernel/a.py", 'raise ValueError("%r is no variable" % x)', 1),
    ("kernel/a.py", '"""ValueError where it is none."""\nx = 1', 0),
    ("kernel/a.py", 'def f():\n    """It is none."""\n    return "it "\\\n        "is none"', 1),
    ("python/workcell/a.py", '"""ValueError where it is none."""\nx = 1', 1),
]


def self_test():
    wrong = 0
    for i, (name, text, expected) in enumerate(SELF_TESTS):
        found = list(problems_of(name, text))
        if len(found) != expected:
            print("self-test %d: expected %d problem(s) in %s, found %s" % (i, expected, text, found))
            wrong += 1
    print("self-test: %d texts tried, %d wrong" % (len(SELF_TESTS), wrong))
    return wrong


def main():
    arguments = sys.argv[1:]
    if "--self-test" in arguments:
        sys.exit(1 if self_test() else 0)
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    problems = check(root)
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
