"""The parts of the kernel's own package that the host needs too: how values become bytes and back."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from . import _native

#: Where libworkcell, its programs and the kernel's files are.
LIB_DIR = os.path.join(os.path.dirname(os.path.abspath(_native.__file__)), "_lib")


def kernel_module(name: str) -> Any:
    """``workcell_kernel.NAME``, under a name of ours so that nobody else's is taken."""
    package = "workcell._kernel_files"
    if package not in sys.modules:
        folder = os.path.join(LIB_DIR, "kernel", "workcell_kernel")
        spec = importlib.util.spec_from_file_location(package, os.path.join(folder, "__init__.py"),
                                                      submodule_search_locations=[folder])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        spec.loader.exec_module(module)
    return importlib.import_module(package + "." + name)
