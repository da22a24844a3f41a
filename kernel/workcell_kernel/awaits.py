"""Namespace calls in async code, with and without ``await``.

Agents write namespace calls with and without ``await``; both mean the same. Python has no hook for awaiting a value that is
not awaitable, so the few awaits of such calls are rewritten in the syntax tree (softener.py, loaded with the first of them).

A workflow with ``async def run`` that is called while a loop runs gives a coroutine. Where nobody awaits it (nor hands it to
``gather()`` and its like) the call is rewritten too: then the coroutine runs to its end on a loop of its own, inside the running
one, and the call gives the value, as a tool call does.
"""

import builtins

NAMES = frozenset(("tools", "workflows", "skills", "artifacts", "deps"))
SETTLED, VALUED = "__workcell_settled__", "__workcell_valued__"


async def settled(value):
    return await value if hasattr(type(value), "__await__") else value


async def drive(entered, coroutine):
    """The coroutine of a workflow that was called while a loop runs."""
    with entered:
        return await coroutine


def valued(value):
    return run_inside(value) if getattr(value, "cr_code", None) is drive.__code__ else value


class NoLoop:
    """While this is entered no loop is running, as far as asyncio can tell."""

    def __enter__(self):
        import asyncio

        self.loop = asyncio._get_running_loop()
        # Since Python 3.12 a thread has one current task, before that each loop has one.
        self.swap = getattr(asyncio.tasks, "_swap_current_task", None)
        self.task = self.swap(self.loop, None) if self.swap and self.loop is not None else None
        asyncio._set_running_loop(None)

    def __exit__(self, *exc):
        import asyncio

        asyncio._set_running_loop(self.loop)
        if self.task is not None:
            self.swap(self.loop, self.task)


def run_inside(coroutine):
    """Runs a coroutine to its end while a loop runs on this thread; that loop waits meanwhile."""
    import asyncio

    with NoLoop():
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            left = asyncio.all_tasks(loop)
            for each in left:
                each.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def is_needed(source):
    """Whether a source may hold something to rewrite."""
    if "await" in source:
        return any(name in source for name in NAMES)
    return ("def" in source or "lambda" in source) and ("workflows" in source or "skills" in source)


def soften(tree, source):
    """The tree with its namespace calls rewritten. Costs nothing where the source has none in async code."""
    if not is_needed(source):
        return tree
    from .softener import rewrite

    setattr(builtins, SETTLED, settled)
    setattr(builtins, VALUED, valued)
    return rewrite(tree)
