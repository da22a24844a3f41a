"""The command ``workcell``: the program of the library, with this package's own parts."""

import os
import sys
from typing import NoReturn

from ._kernel import LIB_DIR


def main() -> NoReturn:
    """Becomes the program."""
    program = os.path.join(LIB_DIR, "workcell")
    os.execv(program, ["workcell", *sys.argv[1:]])
