"""A model for the code of a session: ``llm.query()`` and ``llm.batch()`` there, a function of this program here (docs/llm.md)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Mapping, Optional, Union

from . import _calls
from ._engine import log, tool_threads
from ._json import loads

if TYPE_CHECKING:
    from . import _native

#: Seconds between two looks whether a query is still waited for.
LOOK = 0.05



@dataclass(frozen=True)
class LlmRequest:
    """A query of code: untrusted, like everything that the code writes.

    Attributes:
        prompt: the question.
        context: data that it is about: a text, or any JSON; None: none.
        options: what the code gave beside them, by name; the function decides what it takes of it.
        session_id: the session that asks.
        calls_left, tokens_left, cost_left: of the budget, without this query; None: no limit.
    """

    prompt: str
    context: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    session_id: str = ""
    calls_left: Optional[int] = None
    tokens_left: Optional[int] = None
    cost_left: Optional[float] = None

    @property
    def text(self) -> str:
        """Prompt and context as one text."""
        if self.context is None:
            return self.prompt
        return "%s\n\n%s" % (self.prompt, self.context if isinstance(self.context, str) else json.dumps(self.context, ensure_ascii=False))


@dataclass(frozen=True)
class LlmAnswer:
    """The answer of a model, and what it has used: ``tokens`` and ``cost`` as the program counts them; None: unknown."""

    text: str
    tokens: Optional[int] = None
    cost: Optional[float] = None


@dataclass(frozen=True)
class LlmBudget:
    """What the code of a session and of everything that is forked from it may use together; None: no limit.

    Attributes:
        calls: queries.
        tokens: as the function counts them.
        cost: the same, in a unit of the program.
        concurrency: queries that are answered at a time; more wait.
        call_tokens, call_cost: what one query uses at most, which is reserved while it runs. With 0, queries that run side by side can
            exceed ``tokens`` and ``cost`` by what they use themselves.
    """

    calls: Optional[int] = None
    tokens: Optional[int] = None
    cost: Optional[float] = None
    concurrency: int = 8
    call_tokens: int = 0
    call_cost: float = 0.0


@dataclass(frozen=True)
class LlmUsage:
    """What queries have used so far, and what is left; None: no limit."""

    calls: int
    tokens: int
    cost: float
    calls_left: Optional[int] = None
    tokens_left: Optional[int] = None
    cost_left: Optional[float] = None


#: A function of the program that answers queries; one that is not async runs in a thread.
LlmFunction = Callable[[LlmRequest], Union[str, LlmAnswer, Awaitable[Union[str, LlmAnswer]]]]


def budget_of(given: Union[LlmBudget, Mapping[str, Any], None]) -> LlmBudget:
    """A budget, also from a dict."""
    budget = given if isinstance(given, LlmBudget) else LlmBudget(**(given or {}))
    for name in ("calls", "tokens", "cost"):
        value = getattr(budget, name)
        if value is not None and value < 0:
            raise ValueError("llm_budget: %s must be 0 or more, or None for no limit, not %r" % (name, value))
    return budget


def request_of(args: Dict[str, Any], session_id: str) -> LlmRequest:
    """From the library's arguments."""
    left = args["left"]
    return LlmRequest(args["prompt"], args.get("context"), args.get("options") or {}, session_id, left["calls"], left["tokens"], left["cost"])


def answer_json(answer: Any) -> str:
    """For the library."""
    if isinstance(answer, str):
        answer = LlmAnswer(answer)
    if not isinstance(answer, LlmAnswer) or not isinstance(answer.text, str):
        raise TypeError("the function of llm must return a str or an LlmAnswer, not %s" % type(answer).__name__)
    return json.dumps({"text": answer.text, "usage": {"tokens": answer.tokens, "cost": answer.cost}})


async def serve_llm(fn: LlmFunction, args: str, session_id: str, call: _native.ToolCall) -> None:
    """Answers one query, on the event loop of its session."""
    try:
        request = request_of(loads(args), session_id)
        if _is_async(fn):
            answer = await _ask(fn, request, call)
        else:  # a thread cannot be cancelled: the query holds its place until the function returns
            answer, raised = await asyncio.get_running_loop().run_in_executor(tool_threads(), _calls.outcome, functools.partial(fn, request))
            if raised is not None:
                raise raised
            if inspect.isawaitable(answer):
                answer = await answer
        call.answer_json(answer_json(answer))
    except (asyncio.CancelledError, GeneratorExit):
        call.fail("the query was cancelled")
    except BaseException as error:  # a query that is not answered would hold the cell for ever
        log.warning("the function of llm raised", exc_info=True)
        call.fail(_calls.told(error))
        if isinstance(error, KeyboardInterrupt) and _is_async(fn):
            raise


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))


async def _ask(fn: Any, request: LlmRequest, call: _native.ToolCall) -> Any:
    asking = asyncio.ensure_future(fn(request))
    try:
        while not asking.done():
            # The library says by a flag alone that nobody waits any more; models are slow enough to look for it.
            await asyncio.wait([asking], timeout=LOOK)
            if call.cancelled():
                asking.cancel()
        return asking.result()
    finally:
        asking.cancel()


def usage_of(answer: Mapping[str, Any]) -> LlmUsage:
    """From the library's answer."""
    left = answer["left"]
    return LlmUsage(answer["calls"], answer["tokens"], answer["cost"], left["calls"], left["tokens"], left["cost"])


__all__ = ["LlmAnswer", "LlmBudget", "LlmFunction", "LlmRequest", "LlmUsage"]
