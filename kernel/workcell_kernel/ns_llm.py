"""``llm``: a model of the host that code may ask, where the host gives one.

A query is one call of the host. A batch is many of them under way at once: the host decides how many it works on, and its gate sees each
one. Calls that nobody waits for any more are cancelled, but what they have cost stays counted.
"""

WINDOW = 64  # queries of one batch that are under way at once; CELL_LIMIT_LLM_RUNNING


def query_args(prompt, context, options):
    if not isinstance(prompt, str):
        raise TypeError("the prompt must be a str, not %s" % type(prompt).__name__)
    if not prompt:
        raise ValueError("the prompt is empty")
    args = {"prompt": prompt}
    if context is not None:
        args["context"] = context
    if options:
        args["options"] = options
    return args


def batch_args(prompts, context, options):
    """Arguments of each query: an item is a prompt, or a dict with ``prompt`` and perhaps ``context`` and options."""
    if isinstance(prompts, (str, bytes, dict)):
        raise TypeError("llm.batch() takes a list of prompts, not %s" % type(prompts).__name__)
    found = []
    for item in prompts:
        if isinstance(item, dict):
            given = {**options, **item}
            prompt, own = given.pop("prompt", None), given.pop("context", context)
            found.append(query_args(prompt, own, given))
        else:
            found.append(query_args(item, context, options))
    return found


def text_of(answer):
    return (answer[1] or b"").decode("utf-8", "replace")


class LlmNamespace:
    """A model of the host.

    llm.query("Summarise this", context=text)   llm.batch([prompt, ...])   llm.usage()
    """

    __slots__ = ("_channel",)

    def __init__(self, channel):
        self._channel = channel

    def query(self, prompt, context=None, **options):
        """Asks and waits; returns the answer, a str. ``context``: data that the prompt is about, a str or any JSON."""
        return text_of(self._channel.call("llm.query", query_args(prompt, context, options)))

    async def query_async(self, prompt, context=None, **options):
        """``query()`` for code on an event loop."""
        return text_of(await self._channel.call_async("llm.query", query_args(prompt, context, options)))

    def batch(self, prompts, context=None, return_exceptions=False, **options):
        """Asks all at once, as many side by side as the host allows; returns the answers in the order of the prompts.

        An item may also be a dict with ``prompt`` and a ``context`` of its own. ``return_exceptions``: a query that fails has its exception
        in the list; otherwise the first is raised, and the rest is cancelled.
        """
        args = batch_args(prompts, context, options)
        run = self._overlap if self._channel.overlaps else self._in_threads
        return run(args, return_exceptions)

    def _overlap(self, args, return_exceptions):
        channel, answers, slots = self._channel, [], []
        try:
            for number in range(len(args)):
                while len(slots) < len(args) and len(slots) - number < WINDOW:
                    slots.append(None)  # an interrupt finds no slot, or one that was sent
                    slots[-1] = channel.submit("llm.query", args[len(slots) - 1])
                slot, slots[number] = slots[number], None
                try:
                    answers.append(text_of(channel.wait(slot)))
                except Exception as exc:
                    if not return_exceptions:
                        raise
                    answers.append(exc)
        finally:
            for slot in slots:
                if slot is not None:
                    channel.abandon(slot)
        return answers

    def _in_threads(self, args, return_exceptions):
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(max(1, min(WINDOW, len(args))))
        answers = []
        try:
            asked = [pool.submit(self._channel.call, "llm.query", each) for each in args]
            for each in asked:
                try:
                    answers.append(text_of(each.result()))
                except Exception as exc:
                    if not return_exceptions:
                        raise
                    answers.append(exc)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return answers

    async def batch_async(self, prompts, context=None, return_exceptions=False, **options):
        """``batch()`` for code on an event loop."""
        from asyncio import Semaphore, ensure_future, gather

        room, call = Semaphore(WINDOW), self._channel.call_async

        async def ask(args):
            async with room:
                return text_of(await call("llm.query", args))

        tasks = [ensure_future(ask(each)) for each in batch_args(prompts, context, options)]
        try:
            return await gather(*tasks, return_exceptions=return_exceptions)
        finally:
            for task in tasks:
                task.cancel()

    def usage(self):
        """What was used and is left: a dict with ``calls``, ``tokens``, ``cost`` and ``left``, which has the same keys; None: no limit."""
        return self._channel.call("llm.usage")[0]

    def __repr__(self):
        return "<llm: query(prompt, context=...) asks the host's model, batch([...]) many at once>"
