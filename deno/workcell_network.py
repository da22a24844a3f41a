"""TCP and TLS of a session with a network: what socket.create_connection() gives, and with it http.client, urllib and what
stands on them. The connections themselves are the runner's.
"""

import io
import socket

import _workcell


class Connection:
    """As much of a socket as clients use."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, 0

    def __init__(self, host, port, timeout):
        self._peer = host, port
        self._files = 0  # made of it and not closed: they keep it open
        self._closed = False
        self._timeout = timeout
        self._id = _workcell.net("connect", host=str(host), port=int(port), timeout=timeout)[0]

    def start_tls(self, hostname):
        _workcell.net("tls", self._id, host=hostname or self._peer[0], timeout=self._timeout)

    def send(self, data, flags=0):
        return _workcell.net("send", self._id, data=bytes(data), timeout=self._timeout)[0]

    def sendall(self, data, flags=0):
        view = memoryview(bytes(data))
        for at in range(0, len(view), 1 << 18):
            self.send(view[at:at + (1 << 18)])

    def recv(self, size, flags=0):
        return _workcell.net("recv", self._id, size=size, timeout=self._timeout)[1] if size else b""

    def recv_into(self, buffer, nbytes=0, flags=0):
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view))
        view[:len(data)] = data
        return len(data)

    def makefile(self, mode="r", buffering=None, *, encoding=None, errors=None, newline=None):
        raw = _Raw(self)
        size = io.DEFAULT_BUFFER_SIZE if buffering in (None, -1) else buffering
        if not size:
            return raw
        file = io.BufferedReader(raw, size) if "r" in mode and "w" not in mode else io.BufferedWriter(raw, size)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, errors, newline)

    def settimeout(self, timeout):
        self._timeout = timeout

    def gettimeout(self):
        return self._timeout

    def setblocking(self, flag):
        self._timeout = None if flag else 0.0

    def setsockopt(self, *args):
        """Nothing that would matter here."""

    def getpeername(self):
        return self._peer

    def getsockname(self):
        return "0.0.0.0", 0

    def fileno(self):
        return -1

    def shutdown(self, how):
        pass

    def close(self):
        self._closed = True
        self._end()

    def _end(self):
        if self._closed and not self._files and self._id:
            ident, self._id = self._id, 0
            _workcell.net("close", ident)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class _Raw(io.RawIOBase):
    def __init__(self, connection):
        self._connection = connection
        connection._files += 1

    def close(self):
        if not self.closed:
            super().close()
            self._connection._files -= 1
            self._connection._end()

    def readable(self):
        return True

    def writable(self):
        return True

    def readinto(self, buffer):
        return self._connection.recv_into(buffer)

    def write(self, data):
        return self._connection.send(data)


def create_connection(address, timeout=socket._GLOBAL_DEFAULT_TIMEOUT, source_address=None, *, all_errors=False):
    if timeout is socket._GLOBAL_DEFAULT_TIMEOUT:
        timeout = socket.getdefaulttimeout()
    return Connection(address[0], address[1], timeout)


def install():
    import ssl

    plain = ssl.SSLContext.wrap_socket

    def wrap_socket(self, sock, *args, server_hostname=None, **kwargs):
        if not isinstance(sock, Connection):
            return plain(self, sock, *args, server_hostname=server_hostname, **kwargs)
        if self.verify_mode == ssl.CERT_NONE:
            raise ssl.SSLError("certificates are always checked in this session; the check cannot be turned off")
        sock.start_tls(server_hostname)
        return sock

    ssl.SSLContext.wrap_socket = wrap_socket
    socket.create_connection = create_connection
