"""Ctrl-C while the main thread waits inside the library.

The shortest way of a cell is a call that waits in C, where Python runs no signal handlers. For the handler that Python has by
itself (KeyboardInterrupt) that does not matter as long as the cell ends: so a thread of ours waits for the signal's number on
the wake-up descriptor and interrupts the cell; the handler then runs when the call returns. A program that has other handlers
gets the longer way, on which they run at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from typing import Any, Callable, Optional, Tuple

from . import _native

# Those that programs have handlers for.
_USUAL = tuple(int(getattr(signal, name)) for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGCHLD",
                                                  "SIGCONT", "SIGTSTP", "SIGWINCH", "SIGIO"))
# The function of the signal module makes enums of what this one answers, which takes longer than a cell.
_getsignal: Callable[[int], Any] = importlib.import_module("_signal").getsignal
_SIGINT = int(signal.SIGINT)
#: When a cell that does not stop is interrupted again, and when its kernel is killed; seconds.
_AGAIN, _KILL = 0.5, 2.0


def only_ctrl_c() -> bool:
    """Whether Python has no handler but that of Ctrl-C."""
    if _getsignal(_SIGINT) is not signal.default_int_handler:
        return False
    for each in _USUAL:
        if callable(_getsignal(each)):
            return False
    return True


class Watch:
    """The thread, and the run that it watches over."""

    _one: Optional["Watch"] = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.run: Optional[Tuple[_native.Session]] = None  # another object for each run
        threading.Thread(target=self._wait, name="workcell-signals", daemon=True).start()

    @classmethod
    def get(cls) -> "Watch":
        """Main thread."""
        if cls._one is None or cls._one.pid != os.getpid():
            cls._one = cls()
        return cls._one

    def _wait(self) -> None:
        while True:
            numbers = os.read(self.reader, 512)
            run = self.run
            if run is None or _SIGINT not in numbers:
                continue
            try:
                run[0].interrupt()
                if self._lasts(run, _AGAIN):
                    run[0].interrupt()  # the first may have come before the cell had begun
                    if self._lasts(run, _KILL - _AGAIN):
                        run[0].reset()
            except _native.NativeError:
                continue  # closed meanwhile

    def _lasts(self, run: Tuple[_native.Session], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.run is run and time.monotonic() < end:
            time.sleep(0.01)
        return self.run is run


def run_watched(session: _native.Session, code: str, timeout_ms: int) -> Optional[_native.Result]:
    """Main thread: one cell, waited for in C. None, and nothing was done, where somebody else waits for signals."""
    watch = Watch.get()
    before = signal.set_wakeup_fd(watch.writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        return None
    watch.run = (session,)
    try:
        return session.run(code, timeout_ms)
    finally:
        watch.run = None
        signal.set_wakeup_fd(-1)
