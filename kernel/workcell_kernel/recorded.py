"""Time and chance in a session that is recorded, and in one that is replayed.

Random numbers come from the recording's seed in both. Times that the code reads are written down, per function and cell, and given out
again in the same order. Reads by modules that only wait (asyncio, threading, ...) are left alone: how often they look depends on the machine.

The code can undo all this; it then has a recording that does not repeat.
"""

import os
import random
import sys
import time

import _workcell

MAX_TIMES = 10000  # per function and cell; further ones are not recorded
WAITING = frozenset(("asyncio", "concurrent", "http", "multiprocessing", "queue", "sched", "selectors", "socket", "ssl", "subprocess",
                     "threading", "urllib", "workcell_kernel"))
NUMBERS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns")

channel = clock = stream = None


class Stream:
    """Bytes from a seed: BLAKE2b over a counter. A forked process goes on with other ones than its parent."""

    def __init__(self, seed):
        from hashlib import blake2b

        self.hash, self.key, self.count, self.forks = blake2b, seed, 0, 0

    def bytes(self, size):
        if size < 0:
            raise ValueError("negative argument not allowed")
        found = []
        for _ in range(0, size, 64):
            self.count += 1
            found.append(self.hash(self.count.to_bytes(8, "little"), key=self.key).digest())
        return b"".join(found)[:size]

    def before_fork(self):
        self.forks += 1

    def after_fork(self):
        self.key = self.hash(b"fork %d" % self.forks, key=self.key).digest()[:32]


class Clock:
    """The times of one cell: {function: [value]}."""

    def __init__(self, replays):
        self.replays = replays
        self.values = None if replays else {}
        self.used = {}

    def next_cell(self):
        """A cell has ended."""
        if self.replays:
            self.values, self.used = None, {}
        elif self.values:
            values, self.values = self.values, {}
            channel.call("recording.clock", {"values": values})

    def read(self, name, real):
        value = real()
        if self.replays:
            if self.values is None:
                self.values = fetch()
            at = self.used.get(name, 0)
            self.used[name] = at + 1
            given = self.values.get(name, ())
            return given[at] if at < len(given) else value
        values = self.values.setdefault(name, [])
        if len(values) < MAX_TIMES:
            values.append(value)
        return value


def fetch():
    if not _workcell.is_kernel():
        return {}  # a process that the code has forked
    return channel.call("recording.clock", {})[0] or {}


def read(name, real):
    """For the function that called the function that calls this; not recorded if it belongs to a module that only waits."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return real() if type(caller) is str and caller.partition(".")[0] in WAITING else clock.read(name, real)


def replace_number(name):
    real = getattr(time, name)

    def now():
        return read(name, real)

    now.__name__ = now.__qualname__ = name
    now.__doc__ = real.__doc__
    setattr(time, name, now)


def replace_fields():
    """time.localtime() and the like, without a time."""
    now = time.time
    local, universal, text, fields_text, format_time = time.localtime, time.gmtime, time.ctime, time.asctime, time.strftime

    def localtime(secs=None):
        return local(read("time", now) if secs is None else secs)

    def gmtime(secs=None):
        return universal(read("time", now) if secs is None else secs)

    def ctime(secs=None):
        return text(read("time", now) if secs is None else secs)

    def asctime(t=None):
        return fields_text(local(read("time", now)) if t is None else t)

    def strftime(format, t=None):
        return format_time(format, local(read("time", now)) if t is None else t)

    time.localtime, time.gmtime, time.ctime, time.asctime, time.strftime = localtime, gmtime, ctime, asctime, strftime


def replace_datetime():
    """The methods of the C types themselves: a class in their place would not be what other modules have imported."""
    import datetime
    import gc

    nanoseconds = time.time_ns

    def seconds():
        return clock.read("time_ns", nanoseconds) // 1000 / 1e6

    def now(cls, tz=None):
        return cls.fromtimestamp(seconds(), tz)

    def utcnow(cls):
        return cls.fromtimestamp(seconds(), datetime.timezone.utc).replace(tzinfo=None)

    def today(cls):
        return cls.fromtimestamp(seconds())

    for cls, methods in ((datetime.datetime, (now, utcnow)), (datetime.date, (today,))):
        members = next(each for each in gc.get_referents(cls.__dict__) if type(each) is dict)
        for method in methods:
            members[method.__name__] = classmethod(method)
        _workcell.type_changed(cls)


def replace_random():
    os.urandom = random._urandom = stream.bytes
    os.register_at_fork(before=stream.before_fork, after_in_child=stream.after_fork)
    seed = random.Random.seed

    def seeded(self, a=None, version=2):
        return seed(self, int.from_bytes(stream.bytes(32), "little") if a is None else a, version)

    random.Random.seed = seeded
    random.seed = random._inst.seed
    random.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(int.from_bytes(stream.bytes(4), "little"))


def install(the_channel, seed, replays):
    global channel, clock, stream
    channel, clock, stream = the_channel, Clock(replays), Stream(bytes.fromhex(seed))
    channel.bulk, channel._n_places = None, 0  # data travels where it is recorded
    channel.places.clear()
    replace_random()
    replace_fields()
    replace_datetime()
    for name in NUMBERS:
        replace_number(name)


def next_cell():
    if not _workcell.is_kernel():
        return
    try:
        clock.next_cell()
    except Exception as exc:  # a fork of a recorded session is not recorded
        sys.__stderr__.write("[times of this cell were not recorded: %s]\n" % exc)
