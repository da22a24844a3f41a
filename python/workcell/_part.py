"""Parts of a storage: its workflows, artifacts and deps, and storages that are gone with the part."""

from __future__ import annotations

import datetime
import tempfile
from typing import TYPE_CHECKING, Any

from ._folders import remove_with

if TYPE_CHECKING:
    from ._core import SpaceHandle


class StoragePart:
    """Something that asks the storage it is a part of. All methods wait."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def _space(self) -> "SpaceHandle":
        space: "SpaceHandle" = self.storage.space()
        return space

    def _use_temporary(self) -> None:
        """A storage of its own, in a folder that goes with it."""
        from .storage import FileStorage

        folder = tempfile.mkdtemp(prefix="workcell-storage-")
        self.storage = FileStorage(folder)
        remove_with(self, folder, self.storage.close)


def time_of(text: Any) -> datetime.datetime:
    """A timestamp of a storage as ISO text; 1970 if it has none."""
    try:
        return datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
