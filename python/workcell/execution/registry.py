"""Executors by their names."""

from .protocol import get_backend, list_backends, register_backend

__all__ = ["get_backend", "list_backends", "register_backend"]
