"""An analyst: state between cells, a function of the host as a tool, an error that the model repairs, an artifact."""

import asyncio
import tempfile

from scripted import ScriptedModel, converse

from workcell import FileStorage, Session

SALES = {"north": [120, 80, 95], "south": [60, 70, 110]}

REPLIES = [
    "I look at the regions.\n```python\nregions = tools.sales.regions()\nregions\n```",
    "Now the totals.\n```python\ntotals = {r: sum(tools.sales.of(region=r)) for r in region}\n```",
    "A slip: the variable is `regions`.\n```python\ntotals = {r: sum(tools.sales.of(region=r)) for r in regions}\n"
    "artifacts.save('totals.json', totals, description='Sales by region')\ntotals\n```",
    lambda messages: "The best region is north: " + messages[-1]["content"],
]


async def main():
    with tempfile.TemporaryDirectory() as folder:
        answer, kept = await analyse(FileStorage(folder))
    print(answer)
    print("kept:", kept)
    return answer, kept


async def analyse(storage):
    async with Session(storage=storage) as session:
        @session.tool(name="sales.regions")
        def regions() -> list:
            """All regions."""
            return sorted(SALES)

        @session.tool(name="sales.of")
        async def of(region: str) -> list:
            """The sales of a region, month by month."""
            await asyncio.sleep(0)
            return SALES[region]

        async def run(code):
            result = await session.run(code)
            return result.error if result.error is not None else "%s%r" % (result.text, result.value)

        answer = await converse(ScriptedModel(REPLIES), run, "Which region sells best?")
        return answer, await session.load_artifact("totals.json")


if __name__ == "__main__":
    asyncio.run(main())
