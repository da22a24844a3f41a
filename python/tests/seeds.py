"""The examples of the seed documents, as code that can run.

Two of the documents are Markdown with fences; the others are pages whose text was copied, so that code and prose stand beside
each other, and in one of them indentation is lost. An example is taken as it stands there: lines of code are found, the body of
`async with` is indented again, and prose that sticks to the end of a line is cut off where what is left compiles.
"""
import ast
import os
import re

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def compiles(text):
    try:
        compile(text, "<example>", "exec", flags=_FLAGS)
    except SyntaxError:
        return False
    return True


def _read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def _fenced(name):
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", _read(name), re.S)):
        yield "%s-%d" % (name, number), text


# ---- the page without indentation

_BEGIN = re.compile(r"(from \w+|import \w+|[a-z_]+ = |async with |\w+Config\(|executor = |# [A-Z][a-z]+: |# Init)")
_GO_ON = re.compile(r"(from |import |[a-z_]+ ?= ?|async with |result = |print\(|#|\)|\w+(Config|Executor)\(|"
                    r"\w+(Executor|Config), \w+,$)")
_BODY = re.compile(r"(result = |print\(|assert |#)")


def _indented(lines):
    found, body = [], False
    for line in lines:
        body = body and bool(_BODY.match(line))
        found.append("    " + line if body else line)
        body = body or line.startswith("async with ")
    return "\n".join(found) + "\n"


def _cut(lines):
    """The longest beginning that compiles; the last line may have prose stuck to it."""
    for end in range(len(lines), 0, -1):
        whole = _indented(lines[:end])
        if compiles(whole):
            return end, whole
        last = lines[end - 1]
        for at in range(len(last) - 1, 0, -1):
            if last[at - 1] in ")\"'":
                piece = _indented(lines[:end - 1] + [last[:at]])
                if compiles(piece):
                    return end, piece
    return 1, ""


def _flat(name):
    lines, at, number = _read(name).split("\n"), 0, 0
    while at < len(lines):
        if not _BEGIN.match(lines[at]):
            at += 1
            continue
        end = at + 1
        while end < len(lines) and _GO_ON.match(lines[end]):
            end += 1
        used, text = _cut(lines[at:end])
        at += used
        if re.search(r"[(=]", text):
            yield "%s-%d" % (name, number), text
            number += 1


# ---- the page with indentation

_CODE = re.compile(r"(from ipybox|async with |with tempfile|code = |import |# |\"\"\"|\)|    |$)")


def _plain(name):
    lines, number = _read(name).split("\n"), 0
    begins = [i for i, line in enumerate(lines) if re.match(r"(from ipybox|async with|with tempfile|code = |# set custom|"
                                                            r"# IPython kernel)", line)]
    at = 0
    for begin in begins:
        if begin < at:
            continue
        best, inside, end = None, False, begin
        while end < len(lines) and (inside or _CODE.match(lines[end])):
            inside ^= lines[end].count('"""') % 2 == 1
            end += 1
            if not inside and not lines[end - 1].startswith("#") and compiles("\n".join(lines[begin:end])):
                best = end
        if best is None:  # the page ends within the last line
            for cut in range(len(lines[end - 1]), 0, -1):
                text = "\n".join(lines[begin:end - 1] + [lines[end - 1][:cut]])
                if compiles(text):
                    yield "%s-%d" % (name, number), text
                    return
            continue
        at = best
        yield "%s-%d" % (name, number), "\n".join(lines[begin:best]).rstrip() + "\n"
        number += 1


def examples():
    """[(name, code)]: only the import lines are changed."""
    found = [*_fenced("executors-old.md"), *_fenced("subprocess-executor.md"), *_flat("executors-new.md"),
             *_plain("code-execution.md")]
    return [(name, re.sub(r"^(\s*from )(py_code_mode|ipybox)\b", r"\1workcell", text, flags=re.M)) for name, text in found]


if __name__ == "__main__":
    for label, code in examples():
        print("=" * 20, label)
        print(code)
