"""Folders that are removed with what they were made for."""

from __future__ import annotations

import os
import shutil
import weakref
from typing import Any, Callable, Optional


def remove(pid: int, folder: str, before: Optional[Callable[[], Any]] = None) -> None:
    """Removes a folder of the process ``pid``: a child that was forked has inherited whatever calls this, but not the folder."""
    if pid == os.getpid():
        if before is not None:
            before()
        shutil.rmtree(folder, ignore_errors=True)


def remove_with(owner: Any, folder: str, before: Optional[Callable[[], Any]] = None) -> Callable[[], Any]:
    """Removes a folder when its owner goes, at the latest when this process ends; or when the result is called.

    ``before``: what is called first; it must not know the owner.
    """
    return weakref.finalize(owner, remove, os.getpid(), folder, before)
