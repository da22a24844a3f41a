"""Tools as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Mapping, Tuple


@dataclass(frozen=True)
class ToolParameter:
    """A parameter of a callable."""

    name: str
    type: str
    required: bool
    default: Any = None
    description: str = ""

    def signature_fragment(self) -> str:
        """``name: type``, with its default."""
        if self.required:
            return "%s: %s" % (self.name, self.type)
        if self.default is None:
            return "%s: %s | None = None" % (self.name, self.type)
        default = self.default
        if self.type == "str" and not (isinstance(default, str) and default.startswith('"')):
            default = '"%s"' % default
        return "%s: %s = %s" % (self.name, self.type, default)

    def to_dict(self) -> Dict[str, Any]:
        """``{name, type, required, default, description}``"""
        return {"name": self.name, "type": self.type, "required": self.required, "default": self.default,
                "description": self.description}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ToolParameter":
        """The inverse of to_dict()."""
        return cls(data["name"], data.get("type") or "str", bool(data.get("required")), data.get("default"),
                   data.get("description") or "")


@dataclass(frozen=True)
class ToolCallable:
    """A function of a tool."""

    name: str
    description: str
    parameters: Tuple[ToolParameter, ...] = ()

    def signature(self) -> str:
        """``name(required, optional)``."""
        order = sorted(self.parameters, key=lambda each: not each.required)
        return "%s(%s)" % (self.name, ", ".join(each.signature_fragment() for each in order))

    def __repr__(self) -> str:
        return "%s: %s" % (self.signature(), self.description)

    def to_dict(self) -> Dict[str, Any]:
        """``{name, description, parameters}``"""
        return {"name": self.name, "description": self.description,
                "parameters": [each.to_dict() for each in self.parameters]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ToolCallable":
        """The inverse of to_dict()."""
        return cls(data["name"], data.get("description") or "",
                   tuple(ToolParameter.from_dict(each) for each in data.get("parameters") or ()))


@dataclass(frozen=True)
class Tool:
    """A tool: a name and its callables."""

    name: str
    description: str
    callables: Tuple[ToolCallable, ...] = ()
    tags: FrozenSet[str] = frozenset()

    def signatures(self) -> List[str]:
        """Of all callables."""
        return [each.signature() for each in self.callables]

    def __repr__(self) -> str:
        return "\n".join(["%s: %s" % (self.name, self.description)] + ["  %r" % each for each in self.callables])

    def to_dict(self) -> Dict[str, Any]:
        """The shape of every listing of tools."""
        return {"name": self.name, "description": self.description, "tags": sorted(self.tags),
                "callables": [each.to_dict() for each in self.callables]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Tool":
        """The inverse of to_dict()."""
        return cls(data["name"], data.get("description") or "",
                   tuple(ToolCallable.from_dict(each) for each in data.get("callables") or ()),
                   frozenset(data.get("tags") or ()))


__all__ = ["Tool", "ToolCallable", "ToolParameter"]
