"""The result of a cell, and small data types."""

from __future__ import annotations

import ast
import datetime
import decimal
import html
import io
import json
import os
import stat
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Literal, NamedTuple, Optional, Tuple, Union

from . import _json, _native

_UNSET: Any = object()


def shortened(text: str, limit: int = 80) -> str:
    """A text of the code for a repr, on one line: its beginning, and how long it is."""
    cut = text if len(text) <= limit else text[:limit - 20]
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)
    return shown if len(cut) == len(text) else "%s... (%d characters)" % (shown, len(text))


#: How a cell failed.
ErrorCode = Literal["exception", "timeout", "interrupted", "kernel_died", "rejected", "limit_exceeded"]


class ErrorInfo(NamedTuple):
    """Why a cell failed."""

    code: ErrorCode  #: ``exception``, ``timeout``, ``interrupted``, ``kernel_died``, ``rejected``, ``limit_exceeded``
    type: str  #: ``"ZeroDivisionError"``; ``""`` when no exception
    message: str
    traceback: str
    limit: Optional[str]  #: ``limit_exceeded``: ``"memory"``, ``"pids"``, ...
    limit_max: int
    limit_used: int
    #: ``kernel_died`` of a session server: True, the session is as it was before the cell, run it again; False, the cell took place and only its
    #: answer is lost, do not; None, not known
    retry: Optional[bool] = None


#: More than a kernel can send as one picture: a larger file is not what the session wrote.
_IMAGE_BYTES = 64 << 20


def _read_image(path: Path) -> bytes:
    """The file that a session wrote. It may be in the workspace, where the code can replace it with a link, a FIFO or another file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("%s was replaced: it is not a regular file" % path)
        data = file.read(_IMAGE_BYTES + 1)
    if len(data) > _IMAGE_BYTES:
        raise OSError("%s was replaced: it has more than %d bytes" % (path, _IMAGE_BYTES))
    return data


class Image:
    """A picture that a cell showed: bytes, and a file if the session writes them.

    ``data`` reads the file at its first use; raises OSError if the file is gone or was replaced.
    """

    def __init__(self, data: Optional[bytes] = None, path: Optional[Path] = None, mime: str = "image/png") -> None:
        self._data = data
        self.path = path
        self.mime = mime

    @property
    def data(self) -> bytes:
        """Its bytes."""
        if self._data is None:
            assert self.path is not None
            self._data = _read_image(self.path)
        return self._data

    def pil(self) -> Any:
        """The picture as a PIL image; needs Pillow."""
        import PIL.Image

        return PIL.Image.open(io.BytesIO(self.data))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, Any]:
        import base64

        return {self.mime: base64.b64encode(self.data).decode("ascii")}

    def __repr__(self) -> str:
        return "<Image %s>" % (self.path if self.path is not None else "%s, %d bytes" % (self.mime, len(self.data)))


def _bytearray(data: bytes = b"") -> bytearray:
    if not isinstance(data, bytes):
        raise TypeError("data must be bytes, not a number")
    return bytearray(data)


#: What may be called in the text of a value, with plain arguments. The text is not trusted: nothing here is large or has effects.
_CALLS: Dict[str, Any] = {
    "datetime.datetime": datetime.datetime, "datetime.date": datetime.date, "datetime.time": datetime.time,
    "datetime.timedelta": datetime.timedelta, "datetime.timezone": datetime.timezone, "Decimal": decimal.Decimal,
    "UUID": uuid.UUID, "frozenset": frozenset, "bytearray": _bytearray, "set": set}
_NAMES: Dict[str, Any] = {"nan": float("nan"), "inf": float("inf"), "datetime.timezone.utc": datetime.timezone.utc}


#: As long as a kernel's own values get; a longer text would become gigabytes of nodes.
_LITERAL_BYTES = 8 << 20
_FEW_KEYS = 1000


def _check_keys(keys: List[Any]) -> List[Any]:
    """The keys of a set or dict. Numbers whose hashes are equal are easily made, and a table of them takes quadratic time."""
    if len(keys) > _FEW_KEYS and len(set(map(hash, keys))) < len(keys) // 2:
        raise ValueError("too many keys have the same hash")
    return keys


def _call_node(node: ast.Call) -> Any:
    make = _CALLS[ast.unparse(node.func)]
    parts = [_read_node(each) for each in node.args]
    if make in (set, frozenset):
        parts = [_check_keys(list(each)) for each in parts]
    return make(*parts, **{str(each.arg): _read_node(each.value) for each in node.keywords})


def _read_node(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = [_read_node(each) for each in node.elts]
        return parts if isinstance(node, ast.List) else tuple(parts) if isinstance(node, ast.Tuple) else set(_check_keys(parts))
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = _check_keys([_read_node(key) for key in node.keys if key is not None])
        return dict(zip(keys, map(_read_node, node.values)))
    if isinstance(node, ast.Call):
        return _call_node(node)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _NAMES[ast.unparse(node)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Name):
        return -_NAMES[node.operand.id]
    return ast.literal_eval(node)


def read_literal(text: str) -> Any:
    """The value of a text such as repr() gives for data; ValueError where it is something else."""
    if len(text) > _LITERAL_BYTES:
        raise ValueError("the text of a value may have at most %d characters" % _LITERAL_BYTES)
    try:
        return _read_node(ast.parse(text.strip(), mode="eval").body)
    except ValueError:
        raise
    except Exception as error:  # whatever the constructors above raise for arguments that no kernel of ours writes
        raise ValueError(str(error)) from None


def _read_ours(kind: str, data: Any) -> Any:
    """What calls of ``deps`` and ``artifacts`` gave in the code. It is the code's choice, so it may be of any shape."""
    if kind == "sync":
        from .deps import SyncResult

        parts = [data[name] for name in SyncResult._fields]
        if not all(isinstance(part, list) and all(isinstance(each, str) for each in part) for part in parts):
            raise ValueError("not a SyncResult")
        return SyncResult(*map(frozenset, parts))
    from .artifacts import Artifact

    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in ([data] if kind == "artifact" else data)):
        raise ValueError("not an artifact")
    return Artifact.from_dict(data) if kind == "artifact" else [Artifact.from_dict(each) for each in data]


def read_portable(mime: str, data: bytes) -> Any:
    """The value that a kernel wrote in one of its portable forms. Raises anything where it is not such a form."""
    kind = mime[len(PORTABLE):]
    if kind == "literal":
        return read_literal(data.decode("utf-8"))
    if kind == "npy":
        import numpy

        if not data.startswith(b"\x93NUMPY"):  # load() takes archives and pickles too
            raise ValueError("not an array")
        return numpy.load(io.BytesIO(data), allow_pickle=False)
    if kind in ("sync", "artifact", "artifacts"):
        return _read_ours(kind, _json.loads(data.decode("utf-8")))
    from .artifacts.tables import table_from_bytes

    return table_from_bytes(kind, data)


#: The beginning of the MIME types of portable values.
PORTABLE = "application/vnd.workcell.value."

#: Executors whose code may do what the host may: its HTML is as good as the host's own.
_UNCONFINED = ("subprocess", "inprocess", "jupyter")
#: Else it must neither run scripts in the notebook's page, which can run code in the notebook's kernel, nor fetch anything.
_FRAME = ('<iframe sandbox srcdoc="%s" style="width: 100%%; height: 24em; border: 0; resize: vertical; overflow: auto"></iframe>')
_FRAME_POLICY = ("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; font-src data:; "
                 "style-src 'unsafe-inline'\">")


class ExecutionResult:
    """The outcome of one cell.

    ``value`` is the value of the last expression as Python data: exact for JSON-like data, tuples, sets, bytes and numbers,
    dates, decimals and UUIDs, a DataFrame for a DataFrame (with pandas on the host), otherwise the value's ``repr``. ``error``
    is None or the traceback; :attr:`error_info` has its parts. A notebook displays a result.
    """

    def __init__(self, value: Any = None, stdout: str = "", error: Optional[str] = None,
                 execution_time_ms: Optional[float] = None, backend_info: Optional[Dict[str, Any]] = None, *,
                 error_info: Optional[ErrorInfo] = None, native: Optional[_native.Result] = None,
                 session_id: str = "") -> None:
        self._native = native
        self.session_id = session_id
        self.error_info: Optional[ErrorInfo]
        if native is None:
            self._value, self._stdout = value, stdout
            self.error, self.error_info = error, error_info
            self.execution_time_ms = execution_time_ms
            self._backend_info: Optional[Dict[str, Any]] = backend_info if backend_info is not None else {}
            return
        self._value = self._stdout = _UNSET
        self._backend_info = None
        self.execution_time_ms = native.duration_ms
        found = native.error
        if found is None:
            self.error = self.error_info = None
        else:
            self.error_info = info = ErrorInfo(*found)
            why = info.type + ": " + info.message if info.type else info.message
            if not info.traceback:
                self.error = why
            elif info.code in ("timeout", "interrupted", "limit_exceeded"):  # where the code was, and what ended it there
                self.error = info.traceback.rstrip("\n") + "\n" + why
            else:
                self.error = info.traceback

    # -- the value

    @property
    def value(self) -> Any:
        """The value of the last expression, as Python data."""
        if self._value is _UNSET:
            self._value = self._read_value()
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    def _read_value(self) -> Any:
        native = self._native
        assert native is not None
        text = native.value_json
        shown = native.repr
        # What a kernel sends is the code's choice: a number of too many digits, an array that is none, a table that no pandas reads.
        try:
            if text is not None:
                return _json.loads(text)
            for mime, data in native.mime if shown is not None else ():
                if mime.startswith(PORTABLE):
                    return read_portable(mime, data)
        except Exception:
            pass
        return shown

    @property
    def repr(self) -> Optional[str]:
        """The value as IPython would print it; None if the cell had none."""
        return self._native.repr if self._native is not None else (None if self._value is None else repr(self._value))

    @property
    def mime(self) -> Dict[str, bytes]:
        """The value's representations by MIME type."""
        if self._native is None:
            return {}
        return {mime: data for mime, data in self._native.mime if not mime.startswith(PORTABLE)}

    # -- output

    @property
    def stdout(self) -> str:
        """The text written to stdout."""
        if self._stdout is _UNSET:
            assert self._native is not None
            self._stdout = self._native.stdout
        return str(self._stdout)

    @stdout.setter
    def stdout(self, text: str) -> None:
        self._stdout = text

    @property
    def stderr(self) -> str:
        """The text written to stderr."""
        return self._native.stderr if self._native is not None else ""

    @property
    def text(self) -> str:
        """stdout and stderr in the order written."""
        return self._native.text if self._native is not None else self.stdout

    @property
    def displays(self) -> List[Dict[str, bytes]]:
        """The outputs of ``display()``, each by MIME type."""
        return [dict(each) for each in self._native.displays] if self._native is not None else []

    @property
    def images(self) -> List[Image]:
        """Pictures in the order shown; files if the session has an ``images_dir``."""
        if self._native is None:
            return []
        found = [Image(path=Path(path)) for path in self._native.images]
        for parts in [*self._native.displays, self._native.mime]:
            pictures = [Image(data, mime=mime) for mime, data in parts if mime in ("image/png", "image/jpeg")]
            found += sorted(pictures, key=lambda each: each.mime, reverse=True)[:1]  # one thing, which may come in both
        return found

    @property
    def changes(self) -> Optional[Dict[str, Any]]:
        """With ``Session(changes=True)``: the names of variables that the cell ``added``, ``changed`` and ``removed``; ``more``: how many others."""
        text = self._native.changes if self._native is not None else None
        return None if text is None else json.loads(text)

    @property
    def notices(self) -> List[str]:
        """Deviations from the request that are not errors."""
        return list(self._native.notices) if self._native is not None else []

    @property
    def spill_path(self) -> Optional[Path]:
        """A file with all output, if that was more than a result keeps; it is removed with the result."""
        path = self._native.spill_path if self._native is not None else None
        return Path(path) if path else None

    # -- about the run

    @property
    def is_ok(self) -> bool:
        """Whether the cell ended without an error."""
        return self.error is None

    @property
    def state_kept(self) -> bool:
        """Whether the session has its variables; see ``state``."""
        return self._native.state_kept if self._native is not None else True

    @property
    def state(self) -> Literal["kept", "restored", "lost"]:
        """``restored``: the kernel ended, and the variables are those from before the cell (``undo``)."""
        return self._native.state if self._native is not None else "kept"

    @property
    def durable(self) -> Optional[bool]:
        """Whether the state after the cell is saved (``durable`` of the session). None: the session is not saved by itself."""
        return self._native.durable if self._native is not None else None

    @property
    def isolation(self) -> Dict[str, Any]:
        """The isolation receipt: what confined the code."""
        return dict(json.loads(self._native.isolation)) if self._native is not None else {}

    @property
    def backend_info(self) -> Dict[str, Any]:
        """``executor``, ``session_id``, ``state``, ``isolation``."""
        if self._backend_info is None:
            receipt = self.isolation
            self._backend_info = {"executor": receipt.get("executor", ""), "session_id": self.session_id,
                                  "state": self.state, "isolation": receipt}
        return self._backend_info

    @backend_info.setter
    def backend_info(self, info: Dict[str, Any]) -> None:
        self._backend_info = info

    def raise_for_error(self) -> "ExecutionResult":
        """Returns the result; raises CodeExecutionError if the cell failed."""
        if self.error is not None:
            from .errors import CodeExecutionError

            raise CodeExecutionError(self.error, self.text, self.error_info.code if self.error_info else "exception")
        return self

    def to_dict(self) -> Dict[str, Any]:
        """The shape of ``workcell run --json``."""
        if self._native is None:
            return {"value": self.value, "stdout": self.stdout, "error": self.error,
                    "duration_ms": self.execution_time_ms}
        return dict(json.loads(self._native.json()))

    # -- as an object

    def _fields(self) -> Tuple[Any, ...]:
        return (self.value, self.stdout, self.error, self.execution_time_ms, self.backend_info)

    def __reduce__(self) -> Tuple[Any, ...]:
        return (ExecutionResult, self._fields())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionResult) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Short and telling: the value or the error, and what there is besides."""
        info = self.error_info
        if info is not None and info.type:
            parts = ["error=%s" % shortened("%s: %s" % (info.type, info.message))]
        elif self.error is not None:
            parts = ["error=%s" % shortened(info.message if info is not None else self.error)]
        else:
            parts = ["value=%s" % shortened(self.repr or "None")]
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            if text:
                parts.append("%s=%s" % (name, shortened(repr(text[:200])) if len(text) <= 200 else "<%d characters>" % len(text)))
        if self._native is not None and self.images:
            parts.append("images=%d" % len(self.images))
        if self.execution_time_ms is not None:
            parts.append("%.1f ms" % self.execution_time_ms)
        if self.state != "kept":
            parts.append("variables " + self.state)
        return "<ExecutionResult %s>" % ", ".join(parts)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, Any]:
        """For notebooks: output, pictures, the value in its richest form, or the traceback."""
        return {"text/plain": self._plain(), "text/html": self._html()}

    def _plain(self) -> str:
        parts = [self.text.rstrip("\n")] if self.text else []
        if self.error is not None:
            parts.append(self.error)
        elif self.repr is not None:
            parts.append(self.repr)
        return "\n".join(parts)

    def _framed(self, text: str) -> str:
        """HTML of the code, in a frame of its own where the code is not trusted."""
        if self.isolation.get("executor") in _UNCONFINED:
            return text
        return _FRAME % html.escape(_FRAME_POLICY + text)

    def _html(self) -> str:
        import base64

        parts = []
        if self.text:
            parts.append("<pre>%s</pre>" % html.escape(self.text))
        for image in self.images:
            try:
                parts.append('<img src="data:%s;base64,%s">' % (image.mime, base64.b64encode(image.data).decode("ascii")))
            except OSError as error:
                parts.append("<pre>%s</pre>" % html.escape(str(error)))
        if self.error is not None:
            parts.append('<pre style="color: #b00">%s</pre>' % html.escape(self.error))
        elif self.repr is not None:
            mime = self.mime
            if "text/html" in mime:
                parts.append(self._framed(mime["text/html"].decode("utf-8", "replace")))
            elif not {"image/png", "image/jpeg"} & set(mime):
                parts.append("<pre>%s</pre>" % html.escape(self.repr))
        return "\n".join(parts)


# ---- the schema types of the first family


@dataclass(frozen=True)
class JsonSchema:
    """A JSON Schema as an object."""

    type: str = "object"
    description: Optional[str] = None
    properties: Dict[str, "JsonSchema"] = field(default_factory=dict)
    required: List[str] = field(default_factory=list)
    items: Optional["JsonSchema"] = None
    enum: List[Any] = field(default_factory=list)
    default: Any = None
    additional_properties: Union[bool, "JsonSchema"] = True

    def to_dict(self) -> Dict[str, Any]:
        """As JSON, without empty members."""
        found: Dict[str, Any] = {"type": self.type}
        if self.description:
            found["description"] = self.description
        if self.properties:
            found["properties"] = {name: each.to_dict() for name, each in self.properties.items()}
        if self.required:
            found["required"] = list(self.required)
        if self.items is not None:
            found["items"] = self.items.to_dict()
        if self.enum:
            found["enum"] = list(self.enum)
        if self.default is not None:
            found["default"] = self.default
        if self.additional_properties is not True:
            extra = self.additional_properties
            found["additionalProperties"] = extra.to_dict() if isinstance(extra, JsonSchema) else extra
        return found

    @classmethod
    def from_dict(cls, data: Dict[str, Any]) -> "JsonSchema":
        """The inverse of to_dict()."""
        extra = data.get("additionalProperties", True)
        return cls(
            type=data.get("type", "object"), description=data.get("description"),
            properties={name: cls.from_dict(each) for name, each in data.get("properties", {}).items()},
            required=list(data.get("required", [])),
            items=cls.from_dict(data["items"]) if data.get("items") is not None else None,
            enum=list(data.get("enum", [])), default=data.get("default"),
            additional_properties=cls.from_dict(extra) if isinstance(extra, dict) else bool(extra))


@dataclass(frozen=True)
class ToolDefinition:
    """A tool by its schema."""

    name: str
    description: str
    input_schema: JsonSchema
    output_schema: Optional[JsonSchema] = None
    tags: FrozenSet[str] = frozenset()
    python_deps: Tuple[str, ...] = ()
    timeout_seconds: float = 60.0

    def matches_scope(self, scope: Optional[FrozenSet[str]]) -> bool:
        """Whether one of its tags is in the scope."""
        return bool(scope) and bool(self.tags & frozenset(scope or ()))


__all__ = ["ExecutionResult", "ErrorInfo", "Image", "JsonSchema", "ToolDefinition"]
