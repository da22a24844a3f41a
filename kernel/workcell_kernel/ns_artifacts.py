"""``artifacts``: named data that outlives the session, kept by the host.

Bytes travel raw, a piece at a time with a few pieces under way at once (rpc.Transfer), so that neither side holds more
of a large artifact than it must. Nothing is ever pickled: values that another program, or another version, could not read are
refused.
"""

import os
import sys
from itertools import count

from .ns_errors import ArtifactError
from .rpc import CHUNK
from .values import Record

# How the bytes are to be understood. The first three are the reference's words; a reader that does not know the
# others sees bytes or text.
TEXT, JSON, BYTES = "text", "json", "bytes"
FRAME_PARQUET, FRAME_JSON = "dataframe.parquet", "dataframe.json"
SERIES_PARQUET, SERIES_JSON = "series.parquet", "series.json"
_INTERNAL = "_data_type"
# An open artifact is closed by the number that it was asked for with: an interrupt may keep the host's own from us.
KEYS = count(1)


class ArtifactMeta(Record):
    """What is known about an artifact: name, path, description, created_at, metadata; as keys and as attributes."""

    def __init__(self, fields):
        super().__init__(fields)
        self.setdefault("name", "")
        self.setdefault("path", "")
        self.setdefault("description", "")
        self.setdefault("created_at", None)
        self["metadata"] = {k: v for k, v in (fields.get("metadata") or {}).items() if k != _INTERNAL}

    def to_dict(self):
        return dict(self)

    def __repr__(self):
        return "ArtifactMeta(%s)" % ", ".join("%s=%r" % item for item in self.items())


# ---- values to bytes and back

def to_bytes(value):
    """(type, bytes-like) of a value; TypeError with advice where there is no portable form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, value
    if isinstance(value, str):
        try:
            return TEXT, value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("the text contains a lone surrogate and cannot be encoded: save text.encode('utf-8', "
                             "'surrogateescape'), which is bytes") from None
    pandas = sys.modules.get("pandas")  # a DataFrame cannot be here without it
    if pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series)):
        return table_to_bytes(value, pandas)
    if value is None or isinstance(value, (dict, list, tuple, bool, int, float)):
        return JSON, json_to_bytes(value)
    raise TypeError(advice(value))


def json_to_bytes(value):
    from json import dumps

    from .values import any_digits

    try:
        with any_digits():
            return dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        problem = ValueError("a string in the data contains a lone surrogate and cannot be encoded")
    except ValueError as exc:
        words = str(exc)
        if "JSON compliant" in words:
            words = "JSON cannot represent nan and inf: replace them, for example with None"
        problem = ValueError("the data cannot be saved as JSON: %s" % words)
    except (TypeError, RecursionError) as exc:
        problem = TypeError("the data cannot be saved as JSON: %s. Convert its contents to str, int, float, list, "
                            "dict, or save bytes" % exc)
    raise problem


def advice(value):
    kind = type(value).__name__
    if hasattr(value, "__fspath__"):
        words = "to save the file itself use artifacts.save_file(name, path)"
    elif hasattr(value, "read"):
        words = "to save the contents of a file use artifacts.save_file(name, file)"
    elif isinstance(value, (set, frozenset)):
        words = "save sorted(value) or list(value)"
    elif hasattr(value, "savefig"):
        words = "save the picture: buffer = io.BytesIO(); figure.savefig(buffer); artifacts.save(name, buffer.getvalue())"
    elif hasattr(value, "tolist"):
        words = "save value.tolist(), or the bytes that numpy.save() writes into an io.BytesIO"
    elif hasattr(value, "isoformat"):
        words = "save value.isoformat()"
    else:
        words = "objects are not pickled; turn it into a dict, a list or bytes that can be read again"
    return "an artifact is str, bytes, a JSON value or a pandas DataFrame or Series, not %s: %s" % (kind, words)


def from_bytes(kind, data):
    """The value of what was saved."""
    if kind == TEXT:
        return data.decode("utf-8")
    if kind == JSON:
        from json import loads

        from .values import any_digits

        with any_digits():
            return loads(data.decode("utf-8"))
    if kind in (FRAME_PARQUET, FRAME_JSON, SERIES_PARQUET, SERIES_JSON):
        import io

        return table_from_bytes(kind, io.BytesIO(data))
    if kind == BYTES:
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


# ---- pandas

def table_to_bytes(value, pandas):
    import io

    is_series = isinstance(value, pandas.Series)
    frame = value.to_frame(name="values" if value.name is None else value.name) if is_series else value
    try:
        import pyarrow  # noqa: F401

        buffer = io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow")
    except ImportError:
        data = table_to_json(frame, value.name if is_series else None, pandas)
        return SERIES_JSON if is_series else FRAME_JSON, data
    except Exception as exc:
        raise TypeError("the %s cannot be saved as parquet: %s" % (type(value).__name__, exc)) from None
    if is_series and value.name is None:
        buffer = unnamed(buffer, pandas)
    return SERIES_PARQUET if is_series else FRAME_PARQUET, buffer.getvalue()


def unnamed(buffer, pandas):
    """Marks the one column as that of a Series without a name."""
    import io

    import pyarrow.parquet

    buffer.seek(0)
    table = pyarrow.parquet.read_table(buffer)
    made = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata(dict(table.schema.metadata or {}, unnamed=b"1")), made)
    return made


def table_to_json(frame, name, pandas):
    """JSON with a Table Schema (pandas' orient="table"), plus the dtypes and the exact floats that that form lacks."""
    from json import dumps, loads

    if frame.columns.nlevels > 1 or len(set(map(str, frame.columns))) != len(frame.columns):
        raise TypeError("the columns are not plain and distinct names; reset them, or deps.add('pyarrow') and save again")
    check_cells(frame, pandas)
    plain = frame.rename(columns=str)
    try:
        table = loads(plain.to_json(orient="table", date_format="iso", date_unit="ns"))
    except Exception as exc:
        raise TypeError("the DataFrame has no JSON form: %s; deps.add('pyarrow') and save again" % exc) from None
    for column in plain.columns:
        if plain[column].dtype.kind == "f":
            for row, number in zip(table["data"], plain[column].tolist()):
                row[column] = None if number != number else number
    table["workcell"] = {
        "columns": [c if isinstance(c, (str, int)) else str(c) for c in frame.columns.tolist()],
        "dtypes": [str(dtype) for dtype in frame.dtypes],
        "name": name if name is None or isinstance(name, (str, int)) else str(name),
        "index": [frame.index.name, str(frame.index.dtype)] if frame.index.nlevels == 1 else None,
    }
    return dumps(table, ensure_ascii=False, allow_nan=False).encode("utf-8")


def check_cells(frame, pandas):
    """Refuses what the JSON form would change without a word."""
    for column, dtype in zip(frame.columns, frame.dtypes):
        cells = frame[column]
        if dtype.kind == "c":
            raise TypeError("column %r contains complex numbers, which have no portable form" % (column,))
        if dtype.kind == "f" and cells.isin([float("inf"), float("-inf")]).any():
            raise ValueError("column %r contains inf, which JSON cannot represent: deps.add('pyarrow') and save again" % (column,))
        if dtype == object:
            for cell in cells:
                if not isinstance(cell, (str, bool, int, float, type(None))) and cell is not pandas.NA:
                    raise TypeError("column %r contains %s, which has no portable form: convert it to str"
                                    % (column, type(cell).__name__))


def table_from_bytes(kind, buffer):
    try:
        import pandas
    except ImportError:
        raise ArtifactError("this artifact is a pandas %s and pandas is not installed: deps.add('pandas'), or fetch the "
                            "file with artifacts.load_to(name, path)" % kind.split(".")[0], "artifacts", "load",
                            "ImportError") from None
    buffer.seek(0)
    if kind in (FRAME_PARQUET, SERIES_PARQUET):
        try:
            frame = pandas.read_parquet(buffer)
        except ImportError:
            raise ArtifactError("this artifact is a parquet file and pyarrow is not installed: deps.add('pyarrow')",
                                "artifacts", "load", "ImportError") from None
        if kind == FRAME_PARQUET:
            return frame
        import pyarrow.parquet

        buffer.seek(0)
        series = frame.iloc[:, 0]
        if b"unnamed" in (pyarrow.parquet.read_schema(buffer).metadata or {}):
            series.name = None
        return series
    return table_from_json(kind, str(buffer.getbuffer(), "utf-8"), pandas)


def table_from_json(kind, text, pandas):
    import io
    from json import loads

    frame = pandas.read_json(io.StringIO(text), orient="table", precise_float=True)
    exact = loads(text).get("workcell") or {}
    for column, dtype in zip(frame.columns, exact.get("dtypes") or ()):
        if str(frame[column].dtype) != dtype:
            try:
                frame[column] = frame[column].astype(dtype)
            except (TypeError, ValueError):
                pass  # as near as this pandas comes
    if exact.get("columns") is not None and len(exact["columns"]) == len(frame.columns):
        frame.columns = exact["columns"]
    if exact.get("index") is not None:
        frame.index.name = exact["index"][0]
        if str(frame.index.dtype) != exact["index"][1]:
            try:
                frame.index = frame.index.astype(exact["index"][1])
            except (TypeError, ValueError):
                pass
    if kind == FRAME_JSON:
        return frame
    series = frame.iloc[:, 0]
    series.name = exact.get("name")
    return series


# ---- the namespace

class ArtifactsNamespace:
    """Data kept beyond the session.

    artifacts.save(name, data, description="", metadata=None)   str, bytes, JSON values, DataFrames
    artifacts.load(name)   artifacts.get(name)   artifacts.list()   artifacts.exists(name)   artifacts.delete(name)
    artifacts.save_file(name, path)   artifacts.load_to(name, path)   without holding the data in memory
    """

    __slots__ = ("_channel",)

    def __init__(self, channel):
        self._channel = channel

    # -- in

    def save(self, name, data, description="", metadata=None):
        """Keeps data under a name and returns what is known about it; replaces what had the name."""
        check(name, metadata)
        kind, value = to_bytes(data)
        rest = memoryview(value).cast("B") if memoryview(value).c_contiguous else memoryview(bytes(value))

        def fill(memory):
            nonlocal rest
            n = min(len(memory), len(rest))
            memory[:n] = rest[:n]
            rest = rest[n:]
            return n

        return self._send(name, kind, description, metadata, len(rest), fill)

    def save_file(self, name, path, description="", metadata=None):
        """Keeps a file, given by path or open for reading bytes, as it is."""
        check(name, metadata)
        if hasattr(path, "read"):
            return self._send(name, BYTES, description, metadata, None, self._reader(path))
        with open(path, "rb", buffering=0) as file:
            return self._send(name, BYTES, description, metadata, os.fstat(file.fileno()).st_size, file.readinto)

    @staticmethod
    def _reader(file):
        def fill(memory):
            piece = file.read(len(memory))
            if isinstance(piece, str):
                raise TypeError("the file must be open for reading bytes, mode 'rb'")
            memory[:len(piece)] = piece
            return len(piece)

        return fill

    def _send(self, name, kind, description, metadata, size, fill):
        channel = self._channel
        request = {"name": name, "type": kind, "description": description, "metadata": metadata or {}}
        if size is not None:
            request["size"] = size
        key = request["key"] = next(KEYS)
        transfer = None
        try:
            handle = channel.call("artifacts.save_begin", request)[0]["handle"]
            transfer = channel.transfer(lambda answer, piece, at: None)
            while True:
                at, memory = transfer.piece(CHUNK if size is None else max(1, min(CHUNK, size)))
                n = fill(memory)
                if not n:
                    break
                transfer.send("artifacts.save_chunk", {"handle": handle}, at, memory[:n])
            transfer.finish()
            return ArtifactMeta(channel.call("artifacts.save_commit", {"handle": handle})[0])
        except BaseException:
            self._tell("artifacts.save_abort", key)
            raise
        finally:
            if transfer:
                transfer.end()

    def _tell(self, method, key):
        try:
            self._channel.notify(method, {"key": key})
        except OSError:
            pass  # the host is gone, and its handles with it

    # -- out

    def load(self, name):
        """The data saved under a name. Raises ArtifactNotFoundError if it does not exist."""
        buffer = None

        def begin(size):
            nonlocal buffer
            buffer = self._channel.buffer(size)
            return buffer.write

        kind = self._receive(name, begin)
        return from_bytes(kind, buffer.take())

    def load_to(self, name, path):
        """Writes the bytes of an artifact into a file, which appears when it is complete. Returns the path."""
        target = os.fspath(path)
        part = "%s.%d.part" % (target, os.getpid())
        try:
            with open(part, "wb", buffering=0) as file:
                def write(piece, at):
                    view = memoryview(piece)
                    while view:
                        view = view[file.write(view):]

                self._receive(name, lambda size: write)
            os.replace(part, target)
        except BaseException:
            try:
                os.unlink(part)
            except OSError:
                pass
            raise
        return path

    def _receive(self, name, begin):
        """Hands the bytes to what begin(size) returns, in order; returns their type."""
        check(name, None)
        left, write, key, transfer = 0, None, next(KEYS), None

        def take(answer, piece, at):
            nonlocal left
            if piece is None or answer != min(CHUNK, left) or len(piece) != answer:
                raise ArtifactError("artifact %r changed while it was read" % name, "artifacts", "load", "OSError")
            left -= answer
            write(piece, at)

        try:
            opened = self._channel.call("artifacts.load_open", {"name": name, "key": key})[0]
            handle, size = opened["handle"], opened["size"]
            transfer = self._channel.transfer(take)
            left, write = size, begin(size)
            for offset in range(0, size, CHUNK):
                n = min(CHUNK, size - offset)
                at, memory = transfer.piece(n)
                transfer.ask("artifacts.load_chunk", {"handle": handle, "offset": offset, "size": n}, at, memory)
            transfer.finish()
        finally:
            self._tell("artifacts.load_close", key)
            if transfer:
                transfer.end()
        return opened.get("type") or ""

    # -- the rest

    def get(self, name):
        """Returns the description of an artifact, or None."""
        check(name, None)
        found = self._channel.call("artifacts.get", {"name": name})[0]
        return None if found is None else ArtifactMeta(found)

    def list(self):
        """Lists the stored artifacts."""
        return [ArtifactMeta(each) for each in self._channel.call("artifacts.list")[0]]

    def exists(self, name):
        """Returns whether an artifact exists."""
        check(name, None)
        return bool(self._channel.call("artifacts.exists", {"name": name})[0])

    def delete(self, name):
        """Deletes an artifact; one that does not exist is fine."""
        check(name, None)
        self._channel.call("artifacts.delete", {"name": name})

    @property
    def path(self):
        """Returns the location where artifacts are stored."""
        return self._channel.call("artifacts.path")[0]

    def __getattr__(self, name):
        raise AttributeError("artifacts has no attribute %r" % name)

    def __dir__(self):
        return ["delete", "exists", "get", "list", "load", "load_to", "path", "save", "save_file"]

    def __repr__(self):
        try:
            return "<artifacts: %d>" % len(self._channel.call("artifacts.list")[0])
        except Exception:
            return "<artifacts>"


def check(name, metadata):
    if not isinstance(name, str):
        raise TypeError("the name of an artifact must be str, not %s" % type(name).__name__)
    if metadata is not None and not isinstance(metadata, dict):
        raise TypeError("metadata must be a dict, not %s" % type(metadata).__name__)
