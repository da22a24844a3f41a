"""The command ``workcell``: the program of the library, with this package's own parts."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # nothing is imported that the command would have to wait for
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Becomes the program."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", "workcell")
    os.execv(program, ["workcell", *sys.argv[1:]])
