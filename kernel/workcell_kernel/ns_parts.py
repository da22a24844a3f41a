"""Answers of tools that are more than text: images, sound, files, in the order of the tool.

Each is bytes or text that can be used as such, knows its MIME type, and shows itself at the end of a cell.
"""

from json import dumps, loads


class ToolBytes(bytes):
    """Bytes with a MIME type; ``uri`` is where a tool says they come from."""

    mime, uri, _word = "application/octet-stream", None, "data"

    def __repr__(self):
        return "<%s %s%s, %d bytes>" % (self._word, self.mime, " of " + self.uri if self.uri else "", len(self))

    __str__ = __repr__

    def __reduce__(self):
        return _restore, (type(self), bytes(self), self.mime, self.uri)


class ToolImage(ToolBytes):
    """An image, as the bytes of its file."""

    _word = "image"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return _bundle(self, [self])


class ToolAudio(ToolBytes):
    """Sound, as the bytes of its file."""

    _word = "audio"


class ToolText(str):
    """The text of a resource; ``uri`` and ``mime`` say what it is."""

    mime, uri = "text/plain", None

    def __reduce__(self):
        return _restore, (type(self), str(self), self.mime, self.uri)


class ToolParts(list):
    """Several of these, and plain texts, in order."""

    structured = None  # the answer as data, where the tool gave that too

    @property
    def text(self):
        """The plain texts, joined by line breaks."""
        return "\n".join(part for part in self if type(part) is str)

    @property
    def images(self):
        return [part for part in self if isinstance(part, ToolImage)]

    def _repr_mimebundle_(self, include=None, exclude=None):
        return _bundle(self, self.images)


class ToolAnswer(str):
    """An answer as text, where a text is promised and there is more: ``parts`` has all of it."""

    parts = ()

    @property
    def images(self):
        return [part for part in self.parts if isinstance(part, ToolImage)]

    def _repr_mimebundle_(self, include=None, exclude=None):
        return _bundle(self, self.images)


def as_text(value):
    """ToolParts or ToolBytes as one text, in which images and files are named."""
    parts = value if isinstance(value, ToolParts) else [value]
    made = ToolAnswer("\n".join(part if isinstance(part, str) else repr(part) if isinstance(part, ToolBytes)
                                else dumps(part, ensure_ascii=False) for part in parts))
    made.parts = parts
    return made


def _bundle(shown, images):
    bundle = {"text/plain": repr(shown)}
    for image in images:
        if image.mime.startswith("image/"):  # a server's word, which must not turn data into a page
            bundle.setdefault(image.mime, bytes(image))
    return bundle


def _restore(kind, value, mime, uri):
    made = kind(value)
    made.mime, made.uri = mime, uri
    return made


_KINDS = {"image": ToolImage, "audio": ToolAudio}


def _part(part, data):
    kind = part["type"]
    if kind == "text":
        return data.decode("utf-8", "replace")
    if kind in ("json", "structured"):
        return loads(data)
    if kind == "resource" and part.get("text"):
        return _restore(ToolText, data.decode("utf-8", "replace"), part.get("mime") or ToolText.mime, part.get("uri"))
    cls = _KINDS.get(kind, ToolBytes)
    if kind == "resource" and (part.get("mime") or "").startswith("image/"):
        cls = ToolImage
    return _restore(cls, data, part.get("mime") or cls.mime, part.get("uri"))


def from_parts(parts, raw):
    """One part as itself, several as ToolParts."""
    made, at = ToolParts(), 0
    for part in parts:
        data = raw[at:at + part["size"]]
        at += part["size"]
        value = _part(part, bytes(data))
        if part["type"] == "structured":
            made.structured = value
        else:
            made.append(value)
    return made[0] if len(made) == 1 and made.structured is None else made
