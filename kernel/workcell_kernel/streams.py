"""sys.stdin, sys.stdout and sys.stderr of a kernel.

Output goes into a ring in memory shared with the host (see src/wire/ring_abi.h), so a write is a copy and no
system call, and flush() has nothing to do.
"""

import io

import _workcell

real_input = input  # before no_input() takes its place


class BinaryOut(io.BufferedIOBase):
    """The ``buffer`` of an output stream: bytes go through untouched, also when they are not UTF-8."""

    def __init__(self, fd):
        self._fd = fd
        self.mode = "wb"
        self.name = "<stdout>" if fd == 1 else "<stderr>"

    def write(self, data):
        return _workcell.write_bytes(self._fd, bytes(data))

    def writable(self):
        return True

    def fileno(self):
        return self._fd

    def close(self):
        """The streams of a kernel stay open: a stray close() must not silence the session."""


class TextOut(io.TextIOBase):
    """sys.stdout or sys.stderr. ``write`` is a C function, set per instance so that print() finds it at once."""

    encoding = "utf-8"
    errors = "surrogateescape"
    newlines = None
    line_buffering = True
    write_through = True
    mode = "w"

    def __init__(self, fd):
        self._fd = fd
        self.name = "<stdout>" if fd == 1 else "<stderr>"
        self.write = _workcell.writer(fd)
        self.buffer = BinaryOut(fd)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return self._fd

    def reconfigure(self, **options):
        """Encoding and buffering are fixed: the host expects UTF-8 and takes output at once."""

    def close(self):
        pass


def no_input(*args):
    raise RuntimeError(
        "input() is not available: nobody can type into this session. Put the value into the code instead."
    )
