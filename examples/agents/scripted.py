"""A model that says what it was told to say: for examples and tests without a network.

An agent asks ``reply(messages)`` and gets text with code in it, or a final answer. Put a client of a real model in its place.
"""

import re


class ScriptedModel:
    """Says one reply after the other. A reply may be a function of the messages so far."""

    def __init__(self, replies):
        self._replies = list(replies)

    async def reply(self, messages):
        said = self._replies.pop(0)
        return said(messages) if callable(said) else said


def code_of(reply):
    """The code in a reply, or None where the model has come to its end."""
    found = re.search(r"```python\n(.*?)```", reply, re.S)
    return found.group(1) if found else None


async def converse(model, run, task, turns=10):
    """The loop of every agent: the model writes code, run(code) says what became of it, until there is an answer."""
    messages = [{"role": "user", "content": task}]
    for _ in range(turns):
        reply = await model.reply(messages)
        messages.append({"role": "assistant", "content": reply})
        code = code_of(reply)
        if code is None:
            return reply
        messages.append({"role": "user", "content": await run(code)})
    raise RuntimeError("no answer after %d turns" % turns)
