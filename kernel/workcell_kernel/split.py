"""The last statement of a cell apart from the others, without a tree.

A cell's value is that of its last statement, if that is an expression. Making a tree of objects to take it off, and code of
both halves of the tree, takes twice as long as compiling does. So the text is cut before the last line that begins
at the margin. The tokens of the first part are the same whether or not the second follows; so where it compiles by itself it ends
outside of brackets and strings, between two statements, and where the second compiles by itself too it is no ``else`` of theirs.
Whatever does not compile that way, and whatever this module has doubts about, is for the tree.
"""

import __future__
import keyword
import re

CO_COROUTINE = 0x80
FUTURE_MASK = 0
for _name in __future__.all_feature_names:
    FUTURE_MASK |= getattr(__future__, _name).compiler_flag

STATEMENTS = frozenset(keyword.kwlist) - {"None", "True", "False", "not", "lambda", "await"}
_CONTINUE = frozenset(" \t\f\r\n#)]}")  # a line that begins with one of these ends a statement, or belongs to one
_PARTS = frozenset(("else", "elif", "except", "finally"))
_word = re.compile(r"[^\W\d]\w*").match
# Of names alone: an "=" further on may stand in a text.
_assignment = re.compile(r"[^\W\d][\w.]*(?:\s*,\s*[^\W\d][\w.]*)*\s*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)").match


def place(source):
    """Where the last statement begins, by the look of it; None: that cannot be said."""
    at = len(source)
    while at > 0:
        at = source.rfind("\n", 0, at)
        begin = source[at + 1:at + 2]
        if begin and begin not in _CONTINUE:
            return at + 1
    return None


def split(source, name, flags):
    """(code before the last statement or None, its own code, whether that has a value), or None: make a tree."""
    at = place(source)
    if at is None:
        return None
    last = source[at:] if at else source
    # What else has to do with the lines before it: a line that goes on, and what may stand at their beginning only.
    if ";" in last or "global" in last or "__future__" in last or source[at - 2:at - 1] == "\\":
        return None
    word = _word(last)
    word = word.group() if word else ""
    if word in _PARTS:
        return None
    has_value = word not in STATEMENTS and not _assignment(last)
    try:
        # The one that fails more often, and sooner, comes first.
        code = compile("\n" * source.count("\n", 0, at) + last, name, "eval" if has_value else "exec", flags, True)
        first = compile(source[:at], name, "exec", flags, True) if at else None
    except (SyntaxError, ValueError):
        return None
    both = code.co_flags | (first.co_flags if at else 0)
    if both & CO_COROUTINE or both & FUTURE_MASK & ~flags:
        return None
    return first, code, has_value
