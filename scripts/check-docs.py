#!/usr/bin/env python3
"""Checks the pages: scripts/check-docs.py [--self-test]

- Relative links of every *.md lead to a file of the tree, and their anchors to a heading of that page.
- A file or folder of the source that a page names in `code` is there.
- docs/limits.md has every CELL_LIMIT_* of the source, with its value.
- Every message of docs/troubleshooting.md (```text blocks) is one of the source; `…` stands for a value.
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pages():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split("\n") if path and os.path.exists(os.path.join(ROOT, path))]


def anchors(text):
    """The anchors that GitHub makes of the headings."""
    found, counts = set(), {}
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", FENCE.sub("", text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
        found.add("%s-%d" % (slug, counts[slug]) if counts[slug] else slug)
    found.update(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    return found


def link_problems(path, text, read_page):
    """read_page(path): its text, or None where there is no such file; a folder is ""."""
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        other = text if full == path else read_page(full)
        if other is None:
            yield "%s: %s leads nowhere" % (path, target)
        elif anchor and full.endswith(".md") and anchor not in anchors(other):
            yield "%s: %s has no heading for #%s" % (path, target, anchor)


def read_page(path):
    full = os.path.join(ROOT, path)
    if os.path.isdir(full):
        return ""
    if full.endswith(".png"):
        return "" if os.path.isfile(full) else None
    return read(full) if os.path.isfile(full) else None


def path_problems(path, text, exists):
    for name in re.findall(r"`((?:src|include|kernel|python|deno|tests|fuzz|bench|scripts|packaging|examples)/[\w./-]*)`", FENCE.sub("", text)):
        if not exists(name):
            yield "%s: there is no %s" % (path, name)


def value_of(expression):
    return eval(re.sub(r"(\d)[uUlL]+", r"\1", expression), {"__builtins__": {}})


def renderings(value):
    yield from (str(value), "{:,}".format(value))
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if value % size == 0:
            yield "%d %s" % (value // size, unit)


def limit_problems(page, headers):
    rows = page.split("\n")
    for name, expression in re.findall(r"^#define (CELL_LIMIT_\w+)\s+(.*?)\s*(?:/\*.*)?$", headers, re.M):
        mine = [row for row in rows if re.search(r"`%s`" % name, row)]
        if not mine:
            yield "docs/limits.md does not have %s" % name
        elif not any(re.search(r"(?<![\w,])%s(?![\w,])" % re.escape(text), row) for row in mine for text in renderings(value_of(expression))):
            yield "docs/limits.md has another value for %s than %s" % (name, expression)


def literals(text):
    """C string literals, those beside each other joined; macros such as PRIu64 between them count as values."""
    for run in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*(?:PRI\w+\s*)?)+', text):
        yield "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', run)).replace('\\"', '"')


def message_problems(page, source):
    for block in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S):
        for line in block.strip().split("\n"):
            for part in re.split(r"…", line):
                if part.strip(" ;:,()\"") and part.strip() not in source:
                    yield "docs/troubleshooting.md: no message of the source has %r" % part.strip()


def source_text(pattern):
    return "\n".join(read(path) for path in sorted(glob.glob(os.path.join(ROOT, "src", pattern), recursive=True)))


def problems():
    for path in pages():
        text = read(os.path.join(ROOT, path))
        yield from link_problems(path, text, read_page)
        yield from path_problems(path, text, lambda name: os.path.exists(os.path.join(ROOT, name)))
    yield from limit_problems(read(os.path.join(ROOT, "docs", "limits.md")), source_text("**/*.h"))
    source = "\n".join(text for text in literals(source_text("**/*.[ch]")))
    yield from message_problems(read(os.path.join(ROOT, "docs", "troubleshooting.md")), source)


def self_test():
    other = {"docs/b.md": "# One `two`\n\n## One two\n", "docs": ""}
    good = "[x](b.md) [x](b.md#one-two-1) [x](https://a/b) [x](#here) [x](../docs)\n# Here\n```\n[no](nothing.md)\n```\n`[no](x.md)`\n"
    assert not list(link_problems("docs/a.md", good, other.get)), list(link_problems("docs/a.md", good, other.get))
    assert len(list(link_problems("docs/a.md", "[x](c.md) [x](b.md#three) [x](#there)", other.get))) == 3
    there = {"src/a.c", "tests/"}.__contains__
    assert not list(path_problems("a.md", "`src/a.c` `tests/` `src/*.c`\n```\n`src/b.c`\n```\n", there))
    assert len(list(path_problems("a.md", "`src/b.c`", there))) == 1
    header = "#define CELL_LIMIT_A (4u * 1024u) /* x */\n#define CELL_LIMIT_B 12\n"
    assert not list(limit_problems("| x | 4 KiB | `CELL_LIMIT_A` |\n| 12 | `CELL_LIMIT_B` |", header))
    assert len(list(limit_problems("| x | 14 KiB | `CELL_LIMIT_A` |", header))) == 2
    source = "\n".join(literals('fail("there is \\"%s\\" " PRIu64 "here");'))
    assert not list(message_problems('```text\nthere is "…" …here\n```\n', source))
    assert list(message_problems("```text\nthere is nothing\n```\n", source))


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
