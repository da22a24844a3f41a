"""Jupyter notebooks: run as cells, and made of recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

from . import _native
from ._session import absolute
from .execution.configs import PathLike
from .errors import from_native


def notebook_cells(notebook: PathLike) -> List[str]:
    """The code cells of a notebook file (nbformat 4, Python)."""
    try:
        cells: List[str] = json.loads(_native.notebook_cells(Path(notebook).read_bytes()))
    except _native.NativeError as error:
        raise from_native(error) from None
    return cells


def export_notebook(recording: PathLike, notebook: PathLike) -> None:
    """Writes a notebook (nbformat 4.5) of a recording (``Session(record=...)``): cells, output, values, plots, errors."""
    try:
        text = _native.recording_notebook(str(absolute(recording)))
    except _native.NativeError as error:
        raise from_native(error) from None
    Path(notebook).write_text(text + "\n", encoding="utf-8")
