"""Tools of a folder."""

from .registry import load_tools_from_path

__all__ = ["load_tools_from_path"]
