"""Policies: which calls are made, which a person is asked about, which are refused."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Literal, Mapping, NamedTuple, Optional, Union

from . import _native
from .errors import from_native

if TYPE_CHECKING:
    from .approvals import ApprovalRequest

#: Kinds of calls that the gate looks at.
Gate = Literal["tools", "shell", "installs", "workflows", "llm"]
Decision = Literal["allow", "ask", "deny"]
CallKind = Literal["tool", "shell", "install", "workflow", "llm"]
GATES: Dict[str, int] = {"tools": 1, "shell": 2, "installs": 4, "workflows": 8, "llm": 256}


class Verdict(NamedTuple):
    """What a policy says of a call."""

    decision: Decision
    rule: int  #: 1-based; 0: the default
    line: int
    name: Optional[str]
    reason: Optional[str]
    doubt: Optional[str]
    doubt_why: Optional[str]


class Policy:
    """Ordered rules from a YAML file (docs/policy.md). The first that matches decides."""

    def __init__(self, native: _native.Policy) -> None:
        self.native = native

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"]) -> "Policy":
        """From a file; raises InvalidError with file, line and problem."""
        return cls(_make("load", os.fspath(path)))

    @classmethod
    def parse(cls, text: str, name: str = "policy") -> "Policy":
        """From text."""
        return cls(_make("parse", text, name))

    @classmethod
    def of(cls, decision: Decision) -> "Policy":
        """The same decision for everything: allow, ask or deny."""
        if decision not in ("allow", "ask", "deny"):
            raise ValueError("a decision must be allow, ask or deny, not %r" % decision)
        return cls(_make("of", decision))

    def decide(self, tool: Optional[str] = None, args: Optional[Mapping[str, Any]] = None, *,
               callable: Optional[str] = None, kind: CallKind = "tool", adapter: Optional[str] = None) -> Verdict:
        """The decision about a call, which is not made."""
        try:
            return Verdict(*self.native.decide(kind, tool, callable, adapter, json.dumps(dict(args or {}))))
        except _native.NativeError as error:
            raise from_native(error) from None


def _make(kind: str, text: str, name: Optional[str] = None) -> _native.Policy:
    try:
        return _native.Policy(kind, text, name)
    except _native.NativeError as error:
        raise from_native(error) from None


def check_policy(path: Union[str, "os.PathLike[str]"]) -> List[Dict[str, Any]]:
    """All problems of a policy file: ``[{file, line, message}]``."""
    try:
        return list(json.loads(_native.policy_check(os.fspath(path))))
    except _native.NativeError as error:
        raise from_native(error) from None


#: A policy: rules, a decision for everything, a file of rules, or a function.
PolicyLike = Union[Policy, str, "os.PathLike[str]", Callable[["ApprovalRequest"], Any], None]


class Resolved(NamedTuple):
    """A policy as the library takes it, and the function that is asked first, if there is one."""

    native: Optional[_native.Policy]
    function: Optional[Callable[["ApprovalRequest"], Any]]


def resolve(policy: PolicyLike) -> Resolved:
    """``"auto"``, ``"ask"``, ``"deny"``, a path, a Policy, or a function of a request that answers allow, ask or deny."""
    if policy is None or (isinstance(policy, str) and policy in ("auto", "allow")):
        return Resolved(None, None)
    if isinstance(policy, Policy):
        return Resolved(policy.native, None)
    if callable(policy):
        return Resolved(Policy.of("ask").native, policy)
    if policy == "ask" or policy == "deny":
        return Resolved(Policy.of("ask" if policy == "ask" else "deny").native, None)
    return Resolved(Policy.load(policy).native, None)


def gate_bits(gate: Optional[Any]) -> int:
    """The library's bits for names of GATES."""
    if gate is None:
        return 0
    unknown = [name for name in gate if name not in GATES]
    if unknown:
        raise ValueError("gate must be some of %s, not %r" % (", ".join(sorted(GATES)), unknown[0]))
    return sum(GATES[name] for name in set(gate))


__all__ = ["Policy", "Verdict", "check_policy"]
