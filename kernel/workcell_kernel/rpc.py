"""How a namespace call travels: a CALL frame to the host, a REPLY frame back, matched by id.

Theory of operation

  No thread reads the socket in the background: the kernel starts no thread, so that it can be forked. The waiting
  threads read. One reader at a time is the *leader*; it passes answers that are not its own on to their waiters.

    main thread, in a cell    call() leads until its answer is there
    other threads             call() leads if nobody does, else follows: sleeps on a lock of its own until its answer
                              is there, or until the leader leaves and asks it to lead
    asyncio                   call_async() leaves a future; the loop watches the socket and leads for as long as one
                              callback takes. While a thread leads, the loop's watch is off and the leader completes
                              the future; a leader that leaves turns the watch on again
    main thread, between      next_frame() leads or follows like a call; while tasks of the session are pending it
    cells                     runs their loop

  The invariant: while any thread waits, a thread leads, or has been woken to lead, or a loop watches. Both sides of every
  race set their own mark first and then look at the other's ("I wait" / "I lead no more").

  Frames that are not answers (RUN, SHUTDOWN, a REPLY to nobody) are queued for the main loop. SHUTDOWN and the end of
  the connection also end every wait, with an exception that no ``except Exception`` holds up.

  Interrupts. KeyboardInterrupt, or whatever a signal handler of the user's code raises, may come out between any two
  steps of the main thread. So a frame is received and stored in one step of C (`_pull`), leaves the store only after
  it was delivered, and delivering twice does no harm. Leadership is marked with the thread's own id: one that an
  interrupt left behind is simply found again by the same thread.

  The short way. A plain call of a tool, while nobody else has to do with the channel, is one step of C (caller.c), which
  marks itself as leader in the same way and comes back here with everything that is not simply its answer.
"""

import sys
from _thread import allocate_lock, get_ident
from collections import deque
from itertools import count
from json import JSONDecoder, encoder, loads

from .ns_errors import from_reply

try:
    from _workcell import encode as encode_plain  # None for what only a closer look can tell
except ImportError:
    def encode_plain(head, args, tail):
        return None

MAX_ID = 0xFFFFFFFF
MAX_JSON = 16 * 1024 * 1024  # CELL_FRAME_MAX_JSON
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
WINDOW = 4                # pieces of one transfer that are under way at once
CHUNK = 512 * 1024        # a piece; WINDOW of them fill the memory that is shared with the host


def _make_encoder():
    """JSON text of a value. The C encoder, made once: json.dumps() makes one for every call."""
    if encoder.c_make_encoder is None:
        return encoder.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

    def default(value):
        raise TypeError("%s is not JSON" % type(value).__name__)

    chunks = encoder.c_make_encoder(None, default, encoder.encode_basestring, None, ":", ",", False, False, False)
    join = "".join
    return lambda value: join(chunks(value, 0))


_encode = _make_encoder()
_decode = JSONDecoder().raw_decode
_STR = frozenset((str,))
_SIMPLE = frozenset((str, float, bool, type(None)))
_NESTED = frozenset((dict, list, tuple))
MAX_DEPTH = 200
SMALL = 64 * 1024  # no more than this travels in the frame at once
_PENDING = object()


class Shutdown(SystemExit):
    """Raised when the session ends while code waits for the host."""


class _ThreadSlot:
    """A thread's wait for one answer."""

    __slots__ = ("frame", "ident", "lock", "thread")

    def __init__(self):
        self.frame = _PENDING
        self.ident = None  # of the call, once it is being sent
        self.thread = get_ident()
        self.lock = allocate_lock()
        self.lock.acquire()

    def wake(self):
        try:
            self.lock.release()
        except RuntimeError:
            pass  # woken already

    def deliver(self, frame):
        self.frame = frame
        self.wake()


class _PieceSlot(_ThreadSlot):
    """The wait for the answer about one piece. Where that stands in shared memory its place is free with the answer."""

    __slots__ = ("places", "mine", "left")

    def __init__(self, places, at):
        super().__init__()
        self.places, self.mine, self.left = places, [] if at is None else [at], False

    def free(self):
        """Frees the slot when the host is done with it; only the caller that removes it from ``mine`` does so."""
        try:
            self.places.append(self.mine.pop())
        except IndexError:
            pass

    def leave(self):
        """The caller no longer waits. The host may still use the slot: it is freed with the answer."""
        self.left = True
        if self.frame is not _PENDING or self.ident is None:
            self.free()

    def deliver(self, frame):
        self.frame = frame
        if self.left:
            self.free()
        self.wake()


class _FutureSlot:
    """A task's wait for one answer."""

    __slots__ = ("future", "loop", "thread")

    def __init__(self, loop):
        self.loop = loop
        self.future = loop.create_future()
        self.thread = get_ident()

    def finish(self, frame):
        if not self.future.done():
            self.future.set_result(frame)

    def deliver(self, frame):
        try:
            if get_ident() == self.thread:
                self.finish(frame)
            else:
                self.loop.call_soon_threadsafe(self.finish, frame)
        except RuntimeError:
            pass  # closed: nobody waits any more


class _Watch:
    """One loop's watch on the socket, while tasks on it wait for answers."""

    def __init__(self, channel, loop):
        self.channel = channel
        self.loop = loop
        self.thread = get_ident()
        self.count = 0
        self.armed = False

    def arm(self):
        """On the loop's thread."""
        if self.armed or self.loop.is_closed():
            return
        self.loop.add_reader(self.channel.fd, self.on_readable)
        self.armed = True
        if self.channel._inbox or self.channel._pending():
            self.loop.call_soon(self.on_readable)

    def disarm(self):
        if self.armed:
            self.armed = False
            self.loop.remove_reader(self.channel.fd)

    def rest(self):
        """Nobody waited a moment ago. Asked an iteration of the loop later, because the next call often follows at once."""
        if not self.count and not self.channel.is_idling(self.loop):
            self.disarm()
            self.channel._watches.pop(self.loop, None)

    def on_readable(self):
        channel, me = self.channel, get_ident()
        if channel._leader.setdefault(0, me) != me:
            # A thread reads, and completes our futures. Watching too would only spin.
            self.disarm()
            if not channel._leader:
                self.arm()
            return
        try:
            channel._busy = True
            while channel._inbox or channel._pending():
                channel._step()
                if channel.closed:
                    self.disarm()
                    break
        finally:
            channel._busy = False
            channel._leave()


class Channel:
    """The kernel's side of its socket. ``link`` is the module ``_workcell``, or what behaves like it."""

    def __init__(self, link, fd):
        self.link = link
        self.fd = fd
        self.closed = False    # SHUTDOWN came, or the end of the connection
        self._ids = count()
        self._leader = {}      # {0: thread id}, or empty. setdefault() and pop() are one step each
        self._busy = False     # the leader is inside its try block
        self._inbox = deque()  # received, not delivered
        self._queue = deque()  # for the main loop
        self._waiting = {}     # id: slot
        self._parked = {}      # id: slot, of threads that sleep
        self._watches = {}     # loop: its watch
        self.main_thread = get_ident()
        self._main = None      # wakes the main loop
        self._idle_loop = None
        self._send = link.send
        self._pending = link.pending
        self._pull = map(self._inbox.append, iter(link.recv, self)).__next__
        self._call, self._reply, self._shutdown = link.CALL, link.REPLY, link.SHUTDOWN
        self._fork = getattr(link, "FORK", None)
        self.speculate = None  # the kernel's: makes a copy for a FORK frame that comes in the middle of a call
        self.is_quick = hasattr(link, "attach")  # calls may take the short way
        self._in_quick_call = bool
        self.bulk = link.bulk() if hasattr(link, "bulk") else None  # shared memory for data
        self.places = deque(range(0, len(self.bulk) - CHUNK + 1, CHUNK) if self.bulk else ())
        self._n_places = len(self.places)
        if self.is_quick:
            link.attach(self, self._leader, self._inbox, self._parked, self._watches, self._ids, loads)
            self._in_quick_call = link.in_call

    # -- calls

    def call(self, method, args=None, raw=None, data=None):
        """Asks the host and waits; returns (result, raw bytes or None). Any thread.

        ``data`` is method and args already encoded.
        """
        if data is None:
            data = encode(method, args)
        me = get_ident()
        if self._busy or self.closed or self._leader.setdefault(0, me) != me or self._in_quick_call():
            return self.wait(self.submit(method, args, raw, data))
        return self.result_of(self._lead_on(next(self._ids) % MAX_ID + 1, data, raw))

    def _lead_on(self, ident, data=None, raw=None):
        """The leader makes a call, or, without data, waits for one that has been made. Returns the answer's frame."""
        try:
            self._busy = True
            if data is not None and not self._send(self._call, ident, data, raw):
                raise forked()
            inbox = self._inbox
            while True:
                if not inbox:
                    self._pull()
                frame = inbox[0]
                if frame is not None and frame[1] == ident and frame[0] == self._reply:
                    inbox.popleft()
                    return frame
                self._deliver(frame)
                if self.closed:
                    raise self._closed_error()
        except BaseException as exc:
            raise self._failed(ident, exc)
        finally:
            self._end_lead()

    def _end_lead(self):
        self._busy = False
        self._leader.pop(0, None)
        if self._parked or self._watches:
            self._hand_over()

    def _abandon(self, ident):
        """For the C part: its call ended with an exception of a signal handler's, unless _lead_on() has seen to it."""
        if self._leader.get(0) == get_ident():
            self._end_lead()
            self._cancel(ident)

    def submit(self, method, args=None, raw=None, data=None, slot=None):
        """Asks the host; wait() with what this returns gives the answer."""
        if data is None:
            data = encode(method, args)
        if self.closed:
            raise self._closed_error()
        if self._leader.get(0) == get_ident() and (self._in_quick_call() or (self._busy and is_nested())):
            raise RuntimeError("a signal handler or finalizer cannot make a call while the call that it interrupted is "
                               "being answered")
        ident = next(self._ids) % MAX_ID + 1
        if slot is None:
            slot = _ThreadSlot()
        slot.ident = ident
        self._waiting[ident] = slot
        try:
            if not self._send(self._call, ident, data, raw):
                raise forked()
        except BaseException as exc:
            if not isinstance(slot, _PieceSlot):
                self._forget(ident)
            raise self._failed(ident, exc, slot)
        return slot

    overlaps = True  # several calls of one thread may be under way at once

    def abandon(self, slot):
        """Nobody will wait for this call."""
        if slot.frame is _PENDING:
            self._cancel(slot.ident)
        self._forget(slot.ident)

    def wait(self, slot):
        ident = slot.ident
        leader, me = self._leader, get_ident()
        try:
            while slot.frame is _PENDING:
                if self.closed:
                    raise self._closed_error()
                if leader.setdefault(0, me) != me:
                    self._parked[ident] = slot
                    if leader and slot.frame is _PENDING:
                        slot.lock.acquire()
                    continue
                try:
                    self._busy = True
                    while slot.frame is _PENDING and not self.closed:
                        self._step()
                finally:
                    self._busy = False
                    self._leave()
        except BaseException as exc:
            raise self._failed(ident, exc, slot)
        finally:
            if slot.frame is _PENDING and isinstance(slot, _PieceSlot):
                self._step_back(ident)
            else:
                self._forget(ident)
        if slot.frame is None:
            raise self._closed_error()
        return self.result_of(slot.frame)

    def transfer(self, done):
        """For many calls that each carry a piece of data; done(answer, piece, place) is called in their order.

        A piece without a place is bytes where they came in the answer.
        """
        return Transfer(self, done)

    def buffer(self, size):
        """For bytes that come in pieces: write(piece, place), then take()."""
        return _Blank(self.link, size) if hasattr(self.link, "blank") else _Growing()

    def free_places(self):
        """A transfer is over: where no other is under way the memory goes back."""
        taken = []
        try:
            while len(taken) < self._n_places:
                taken.append(self.places.popleft())
            if taken:
                self.link.free_bulk()
        except IndexError:
            pass
        finally:
            self.places.extend(taken)

    def notify(self, method, args=None):
        """Tells the host something; an answer would be dropped."""
        self._send(self._call, next(self._ids) % MAX_ID + 1, encode(method, args))

    async def call_async(self, method, args=None, raw=None, data=None):
        """call() for code on an event loop: many may be under way at once."""
        from asyncio import get_running_loop

        if data is None:
            data = encode(method, args)
        if self.closed:
            raise self._closed_error()
        loop = get_running_loop()
        watch = self._watch(loop)
        ident = next(self._ids) % MAX_ID + 1
        self._waiting[ident] = slot = _FutureSlot(loop)
        watch.count += 1
        try:
            if not self._send(self._call, ident, data, raw):
                raise forked()
            if not watch.armed and self._leader.get(0, slot.thread) == slot.thread:
                watch.arm()
            frame = await slot.future
        except BaseException as exc:
            raise self._failed(ident, exc)
        finally:
            self._waiting.pop(ident, None)
            watch.count -= 1
            if not watch.count and not loop.is_closed():
                loop.call_soon(watch.rest)
        if frame is None:
            raise self._closed_error()
        return self.result_of(frame)

    # -- the main loop's side

    def next_frame(self, loop=None):
        """The next frame that is not an answer; None at the end. While tasks on ``loop`` are pending it runs."""
        queue, leader, me = self._queue, self._leader, get_ident()
        if leader or self._parked or self._watches:
            self._tidy(me)
        while not queue:
            if self.closed:
                return None
            if loop is not None and self._has_tasks(loop):
                self._run_loop(loop)
            elif leader.setdefault(0, me) == me:
                try:
                    self._busy = True
                    while not queue:
                        self._step()
                finally:
                    self._busy = False
                    self._leave()
            else:
                self._follow_for_frame()
        frame = queue.popleft()
        return frame or None

    def take_queued(self):
        """The frames that have arrived and are not answers, without waiting. For a main loop that is not ours."""
        me = get_ident()
        self._tidy(me)
        if self._leader.setdefault(0, me) == me:
            try:
                self._busy = True
                while self._inbox or self._pending():
                    self._step()
                    if self.closed:
                        break
            finally:
                self._busy = False
                self._leave()
        frames = list(self._queue)
        self._queue.clear()
        return frames

    def take_frame(self, kind):
        """The queued frame of this kind, which must be there."""
        for frame in self._queue:
            if frame and frame[0] == kind:
                self._queue.remove(frame)
                return frame
        raise RuntimeError("the host has not sent what this call needs")

    def begin_again(self):
        """In a fork: nobody else waits here, and what had come was for the source."""
        self._busy = False
        self._leader.clear()
        self._parked.clear()
        self._inbox.clear()
        self._queue.clear()
        self._main = self._idle_loop = None
        self.main_thread = get_ident()

    def _tidy(self, me):
        """Nothing of the main thread is under way: what says otherwise was left behind by an interrupt."""
        if self._leader.get(0) == me:
            self._busy = False
            self._leader.pop(0)
        for ident, slot in self._parked.copy().items():
            if slot.thread == me:
                self._parked.pop(ident, None)
                self._waiting.pop(ident, None)
        if not self._leader:
            self._hand_over()

    def _follow_for_frame(self):
        slot = _ThreadSlot()
        self._main = slot.wake
        self._parked[0] = slot
        try:
            if not self._queue and self._leader:
                slot.lock.acquire()
        finally:
            self._main = None
            self._parked.pop(0, None)

    @staticmethod
    def _has_tasks(loop):
        if loop.is_closed():
            return False
        from asyncio import all_tasks

        return bool(all_tasks(loop))

    def is_idling(self, loop):
        return self._idle_loop is loop

    def _run_loop(self, loop):
        def stop():
            # One that comes late must not stop the loop under the next cell.
            if self._idle_loop is loop:
                loop.stop()

        watch = self._watch(loop)
        self._idle_loop = loop
        self._main = lambda: loop.call_soon_threadsafe(stop)
        try:
            watch.arm()
            if not self._queue:
                loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            pass  # a task called exit(): it has ended, the session goes on
        finally:
            self._main = self._idle_loop = None
            if not watch.count:
                watch.rest()

    # -- reading

    def _step(self):
        """The leader takes one frame."""
        inbox = self._inbox
        if not inbox:
            try:
                self._pull()
            except (OSError, EOFError) as exc:
                if not is_own(exc):
                    raise
                inbox.append(None)
        self._deliver(inbox[0])

    def _deliver(self, frame):
        """Delivers inbox[0] to its waiter."""
        if frame is None or frame[0] == self._shutdown:
            self._close(frame or ())
        elif frame[0] == self._reply and frame[1]:
            ident = frame[1]
            slot = self._waiting.get(ident)
            if slot is not None:
                slot.deliver(frame)
                self._waiting.pop(ident, None)
                self._parked.pop(ident, None)
        elif frame[0] == self._fork and self.speculate is not None and b'"speculate":true' in frame[2]:
            self._inbox.popleft()
            self._make_copy(frame, sys._getframe(1))
            return
        else:
            self._queue.append(frame)
            self._wake_main()
        self._inbox.popleft()

    def _make_copy(self, frame, caller):
        """The host wants a copy that goes on as if the waiting call were answered. In the copy the same call waits, on its own connection."""
        if caller.f_code is Channel._step.__code__:
            caller = caller.f_back
        waits = get_ident() == self.main_thread and caller.f_code in (Channel._lead_on.__code__, Channel.wait.__code__)
        if self.speculate(frame[1], loads(frame[2]), waits):
            self._leader[0] = get_ident()
            self._busy = True

    def _close(self, frame):
        self.closed = True
        self._queue.append(frame)
        self._wake_main()
        for ident, slot in self._waiting.copy().items():
            slot.deliver(None)
            self._waiting.pop(ident, None)
            self._parked.pop(ident, None)

    def _wake_main(self):
        wake = self._main
        if wake is not None:
            wake()

    def _leave(self):
        """Ends leading, and makes sure that a remaining waiter has a reader."""
        self._leader.pop(0, None)
        if self._parked or self._watches:
            self._hand_over()

    def _hand_over(self):
        for slot in list(self._parked.values()):
            slot.wake()
            if slot.thread != self.main_thread:
                break  # one is enough, but one of the main thread may have been left behind by an interrupt
        if not self._watches:
            return
        me = get_ident()
        # The socket is silent about what was already received with an earlier frame.
        more = bool(self._inbox) or self._pending()
        for loop, watch in self._watches.copy().items():
            if not watch.count and self._idle_loop is not loop:
                continue
            if watch.armed and not more:
                continue
            wake = watch.on_readable if watch.armed else watch.arm
            try:
                if watch.thread != me:
                    loop.call_soon_threadsafe(wake)
                elif watch.armed:
                    loop.call_soon(wake)
                else:
                    wake()
            except RuntimeError:
                self._watches.pop(loop, None)  # the loop is closed

    def _watch(self, loop):
        watch = self._watches.get(loop)
        if watch is None:
            for old in list(self._watches):
                if old.is_closed():
                    self._watches.pop(old, None)
            watch = self._watches[loop] = _Watch(self, loop)
        watch.thread = get_ident()
        return watch

    def _forget(self, ident):
        """A thread's wait is over."""
        self._waiting.pop(ident, None)
        self._step_back(ident)

    def _step_back(self, ident):
        """A thread no longer waits; if it was woken to lead, another must lead."""
        self._parked.pop(ident, None)
        if not self._leader and (self._parked or self._watches):
            self._hand_over()

    # -- answers

    def _failed(self, ident, exc, slot=None):
        """A call ended without its answer. What to raise.

        The host is told, a late answer finds nobody. An interrupt may have come before the call was sent, or after it
        was answered: the host does not mind a cancel for a call it does not know. A piece is not cancelled: its answer
        says when its place is free.
        """
        if isinstance(exc, Shutdown):
            return exc
        if isinstance(exc, (OSError, EOFError)) and is_own(exc):
            self._close(())
            return self._closed_error()
        if not isinstance(slot, _PieceSlot):
            self._cancel(ident)
        return exc

    def _cancel(self, ident):
        try:
            self.notify("cancel", {"id": ident})
        except OSError:
            pass  # the connection is gone, and the host with it

    def _closed_error(self):
        return Shutdown("the session is closing")

    def result_of(self, frame):
        text, raw = frame[2], frame[3]
        reply = _decode(text.decode())[0] if text else {}
        if "error" in reply:
            raise from_reply(reply["error"])
        return reply.get("result"), raw


class _Growing:
    """Bytes that grow piece by piece."""

    def __init__(self):
        import io

        self.io = io.BytesIO()

    def write(self, piece, at):
        self.io.write(piece)

    def take(self):
        return self.io.getvalue()  # the buffer itself, not a copy


class _Blank:
    """Bytes that are there from the beginning and are filled piece by piece."""

    def __init__(self, link, size):
        self.fill, self.data, self.position = link.fill, link.blank(size), 0

    def write(self, piece, at):
        size = len(piece)
        self.fill(self.data, self.position, piece if at is None else at, size)
        self.position += size

    def take(self):
        assert self.position == len(self.data)
        return self.data


class Transfer:
    """Pieces of one stream of data, several under way at once.

    A piece is a memoryview in the memory that is shared with the host, or, where there is none or all of it is in use, one
    of its own, and then its bytes travel in the frame.
    """

    __slots__ = ("_channel", "_done", "_under_way", "_spare")

    def __init__(self, channel, done):
        self._channel, self._done = channel, done
        self._under_way = deque()
        self._spare = []  # a place that was given out by piece() and not used yet

    def piece(self, size=CHUNK):
        """(place, memory) for the next one; waits where too many are under way."""
        if len(self._under_way) >= WINDOW:
            self._settle()
        channel = self._channel
        if size <= SMALL:
            return None, memoryview(bytearray(size))
        try:
            at = self._spare[0] if self._spare else channel.places.popleft()
        except IndexError:
            return None, memoryview(bytearray(size))
        self._spare = [at]
        return at, channel.bulk[at:at + size]

    def send(self, method, args, at, memory):
        """A piece that is filled."""
        if at is None:
            self._submit(method, args, at, memory, bytes(memory))
        else:
            args.update(at=at, size=len(memory))
            self._submit(method, args, at, memory)

    def ask(self, method, args, at, memory):
        """A piece that is to be filled; args has its size."""
        if at is not None:
            args["at"] = at
        self._submit(method, args, at, memory)

    def _submit(self, method, args, at, memory, raw=None):
        slot = _PieceSlot(self._channel.places, at)
        # First its entry, then the call: an interrupt between the two must find both, or neither.
        self._under_way.append((slot, memory, at))
        self._spare = []
        self._channel.submit(method, args, raw, slot=slot)

    def _settle(self):
        slot, memory, at = self._under_way[0]
        try:
            result, raw = self._channel.wait(slot)
            self._done(result, memory if at is not None else raw, at)
        finally:
            if slot.frame is not _PENDING:
                slot.free()
                self._under_way.popleft()

    def finish(self):
        """Waits for all that is under way."""
        while self._under_way:
            self._settle()

    def end(self):
        """Always, and whatever has happened."""
        for slot, _, _ in self._under_way:
            self._spare = [at for at in self._spare if at not in slot.mine]
            slot.leave()
        self._channel.places.extend(self._spare)
        self._spare = []
        self._channel.free_places()


def forked():
    return RuntimeError("tools, workflows, artifacts and deps work in the session's own process only, not in a process "
                       "forked from it: make the call in the parent, or use a thread")


def is_own(exc):
    """Raised by the C function that the handler's frame called, not by a signal handler of the user's code."""
    return exc.__traceback__ is not None and exc.__traceback__.tb_next is None


def is_nested():
    """For submit(): is its thread's leader further up the stack? If not, the mark was left behind by an interrupt."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _LEADERS:
            return True
        frame = frame.f_back
    return False


_LEADERS = frozenset(f.__code__ for f in (Channel._lead_on, Channel.wait, Channel.next_frame, _Watch.on_readable))


# ---- what a call carries

def encode(method, args):
    """The json part of a CALL."""
    return encode_after(b'{"method":"%s","args":' % method.encode(), args or {}, b"}")


def encode_after(head, args, tail):
    """The same where all but the innermost arguments is known: head + args + tail."""
    data = encode_plain(head, args, tail)
    if data is not None:
        return data
    try:
        data = head + _encode(args).encode() + tail
        problem = None if _is_plain(args, 0) and b"\\u0000" not in data else find_unfit(args)
    except (TypeError, ValueError, RecursionError) as exc:
        problem = find_unfit(args) or str(exc)
    if problem is not None:
        raise TypeError(problem)
    if len(data) > MAX_JSON:
        raise ValueError("the arguments take %d bytes, but a call may carry at most %d: save large data as an artifact and "
                         "pass its name" % (len(data), MAX_JSON))
    return data


def _is_plain(value, depth):
    """Whether the host's JSON accepts the value. False also if only a full check can tell."""
    if depth > MAX_DEPTH:
        return False
    members = value
    if type(value) is dict:
        members = value.values()
        if not set(map(type, value)) <= _STR:
            return False
    kinds = set(map(type, members)) - _SIMPLE
    if not kinds:
        return True
    if int in kinds:
        kinds.discard(int)
        ints = [member for member in members if type(member) is int]
        if min(ints) < INT_MIN or max(ints) > INT_MAX:
            return False
    if not kinds <= _NESTED:
        return False
    return all(_is_plain(member, depth + 1) for member in members if type(member) in _NESTED)


def find_unfit(value, path=""):
    """The first problem of ``value`` as an argument of a call, as a sentence, or None."""
    for where, problem in _unfit(value, path, 0):
        if not path and where and "[" not in where and "." not in where:
            where = "argument %r" % where
        return "%s %s" % (where or "the value", problem)
    return None


def _unfit(value, path, depth):
    if depth > MAX_DEPTH:
        yield path, "is nested too deeply"
    elif isinstance(value, dict):
        names = set()
        for key, member in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                yield path, "has a key of type %s; keys must be str" % type(key).__name__
                return
            if isinstance(key, float) and key - key != 0:
                yield path, "has the key %r, which JSON cannot represent" % key
                return
            name = key if isinstance(key, str) else _encode(key)
            if "\0" in name:
                yield path, "has a key that contains a NUL character"
            if name in names:
                yield path, "has two keys that are both %r in JSON" % name
            names.add(name)
            yield from _unfit(member, "%s[%r]" % (path, key) if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, member in enumerate(value):
            yield from _unfit(member, "%s[%d]" % (path, i), depth + 1)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield path, "contains a lone surrogate, which cannot be encoded"
    elif isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            yield path, "is an integer of more than 64 bits; pass it as str"
    elif isinstance(value, float):
        if value - value != 0:
            yield path, "is %r, which JSON cannot represent" % value
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield path, ("is %s, which JSON cannot represent: decode it, base64.b64encode() it, or save it as an artifact"
                     % type(value).__name__)
    else:
        advice = ""
        for method, words in (("tolist", ".tolist()"), ("to_dict", ".to_dict()"), ("isoformat", ".isoformat()")):
            if hasattr(type(value), method):
                advice = ", try %s" % words
                break
        yield path, "is of type %s, which JSON cannot represent%s" % (type(value).__name__, advice)
