"""What an adapter keeps for each conversation of an agent that many users share: their code must not see each other's variables."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Any, AsyncIterator, Callable, Generic, Iterator, List, Tuple, TypeVar

#: Conversations whose sessions are kept; of more, the one that was unused for longest is ended.
MAX_CONVERSATIONS = 64

_T = TypeVar("_T")


class _Kept(Generic[_T]):
    def __init__(self, made: _T, close: Callable[[], Any]) -> None:
        self.made, self.close, self.users = made, close, 0


class Conversations(Generic[_T]):
    """Things by the key of their conversation; ``make`` gives one and what ends it. One that is in use is not ended."""

    def __init__(self, make: Callable[[], Tuple[_T, Callable[[], Any]]], most: int = MAX_CONVERSATIONS) -> None:
        self.make, self._most = make, most
        self._kept: "OrderedDict[Any, _Kept[_T]]" = OrderedDict()
        self._lock = threading.Lock()

    def _enter(self, key: Any) -> _Kept[_T]:
        with self._lock:
            found = self._kept.pop(key, None) or _Kept(*self.make())
            self._kept[key] = found
            found.users += 1
        return found

    def _leave(self, found: _Kept[_T]) -> List[Callable[[], Any]]:
        """What is to be called now."""
        with self._lock:
            found.users -= 1
            idle = [key for key, each in self._kept.items() if not each.users]
            return [self._kept.pop(key).close for key in idle[:max(0, len(self._kept) - self._most)]]

    @contextlib.contextmanager
    def of(self, key: Any) -> Iterator[_T]:
        """That of a conversation, while it is used."""
        found = self._enter(key)
        try:
            yield found.made
        finally:
            for close in self._leave(found):
                close()

    @contextlib.asynccontextmanager
    async def of_async(self, key: Any) -> AsyncIterator[_T]:
        """The same where they end with a coroutine."""
        found = self._enter(key)
        try:
            yield found.made
        finally:
            for close in self._leave(found):
                await close()

    def take_all(self) -> List[Callable[[], Any]]:
        """Forgets all; what ends them."""
        with self._lock:
            ended = [each.close for each in self._kept.values()]
            self._kept.clear()
        return ended
