"""What generated modules stand on: the stand-in for pydantic, and the client.  Needs no pytest."""
from __future__ import annotations

import asyncio
import copy
import datetime
import ipaddress
import json
import os
import pickle
import sys
import uuid
from typing import Annotated, Any, Dict, List, Literal, Optional, Tuple, Union

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_workcell import Host, main, raises  # noqa: E402
from workcell_kernel import mcpmodels, mcpstandin, namespaces  # noqa: E402
from workcell_kernel.mcpmodels import IntEnum, Nullable, OneOf, Pattern, StrEnum, Unique  # noqa: E402
from workcell_kernel.mcpstandin import Field, ValidationError  # noqa: E402


class Color(StrEnum):
    red = "red"
    blue = "deep blue"


class Level(IntEnum):
    low = 1
    high = 2


class Point(mcpstandin.BaseModel, extra="forbid"):
    x: int
    y: Annotated[int, Field(ge=0, le=10)] = 0


class Node(mcpstandin.BaseModel, extra="forbid"):
    value: int
    children: List[Node] = []


class Json(mcpstandin.RootModel[Any]):
    root: Union[str, float, List[Json], Dict[str, Json], None]


class Everything(mcpstandin.BaseModel, extra="allow"):
    """About it."""

    from_: Annotated[str, Field(alias="from")]
    number: Optional[float] = None
    color: Optional[Color] = Color.blue
    level: Optional[Level] = None
    point: Optional[Point] = Field(default_factory=lambda: {"x": 1}, validate_default=True)
    points: Annotated[List[Point], Field(max_length=2)] = []
    pair: Optional[Tuple[int, str]] = None
    word: Annotated[Optional[str], Nullable] = None
    when: Optional[datetime.datetime] = None
    day: Optional[datetime.date] = None
    hour: Optional[datetime.time] = None
    ident: Optional[uuid.UUID] = None
    address: Optional[ipaddress.IPv4Address] = None
    code: Optional[Annotated[str, Field(min_length=2, max_length=3), Pattern("^[a-z]+$")]] = None
    unique: Optional[Annotated[List[Any], Unique()]] = None
    odd: Optional[Annotated[Any, OneOf(1, True, [1])]] = None
    kind: Literal["a", 1, None] = None


def types(call, *args, **kwargs):
    return [line["type"] for line in raises(ValidationError, call, *args, **kwargs).errors()]


def test_constructor():
    made = Everything(**{"from": "a"})
    assert made.from_ == "a" and Everything(from_="a") == made
    assert made.color is Color.blue and made.point == Point(x=1, y=0) and made.points == []
    assert made.model_fields_set == {"from_"}
    made.points.append(1)
    assert Everything(from_="a").points == []
    assert types(Everything) == ["missing"]
    assert raises(ValidationError, Everything).errors()[0]["loc"] == ("from",)
    assert types(Point, x=1, z=2) == ["extra_forbidden"]
    assert types(Point, x="a", y=11, z=1) == ["int_parsing", "less_than_equal", "extra_forbidden"]
    raises(TypeError, Point, 1)


def test_attributes():
    point = Point(x=1)
    point.x = "not checked"
    assert point.x == "not checked" and point.model_fields_set == {"x"}
    raises(ValueError, setattr, point, "z", 1)
    raises(AttributeError, getattr, point, "z")
    raises(AttributeError, getattr, Point, "y")
    made = Everything(from_="a", more=5)
    assert made.more == 5 and made.model_extra == {"more": 5}
    made.other = 6
    assert made.model_extra == {"more": 5, "other": 6}
    assert list(Point.model_fields) == ["x", "y"] and Point.model_fields["x"].is_required()
    assert dict(Point(x=1)) == {"x": 1, "y": 0}


def test_equality_and_text():
    assert Point(x=1) == Point(x=1, y=0) and Point(x=1) != Point(x=2) and Point(x=1) != {"x": 1, "y": 0}
    raises(TypeError, hash, Point(x=1))
    assert repr(Point(x=1)) == "Point(x=1, y=0)" and str(Point(x=1)) == "x=1 y=0"
    assert repr(Json([1, "a"])).startswith("Json(root=[Json(root=1.0), Json(root='a')])")


def test_errors_read_well():
    error = raises(ValidationError, Everything.model_validate, {"points": [{"x": "a"}], "from": "a"})
    assert isinstance(error, ValueError) and error.error_count() == 1 and error.title == "Everything"
    assert str(error) == ("1 validation error for Everything\npoints.0.x\n  Input should be a valid integer, unable to parse "
                          "string as an integer [type=int_parsing, input_value='a', input_type=str]")
    assert json.loads(error.json())[0]["loc"] == ["points", 0, "x"]
    assert len(str(raises(ValidationError, Point, x="a" * 10000))) < 300


def test_conversions():
    made = Everything.model_validate({
        "from": "a", "number": "2.5", "level": 2, "color": "red", "pair": [1, "b"], "when": "2024-01-02T03:04:05.5+02:00",
        "day": "2024-01-02", "hour": "10:20", "ident": "5F6B1C3E1C2D4E5F8A9B0C1D2E3F4A5B", "address": "127.0.0.1"})
    assert (made.number, made.level, made.color, made.pair) == (2.5, Level.high, Color.red, (1, "b"))
    assert made.when.isoformat() == "2024-01-02T03:04:05.500000+02:00" and made.day == datetime.date(2024, 1, 2)
    assert made.hour == datetime.time(10, 20) and str(made.ident) == "5f6b1c3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b"
    assert json.loads(made.model_dump_json(exclude_unset=True)) == {
        "from_": "a", "number": 2.5, "level": 2, "color": "red", "pair": [1, "b"], "when": "2024-01-02T03:04:05.500000+02:00",
        "day": "2024-01-02", "hour": "10:20:00", "ident": "5f6b1c3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "address": "127.0.0.1"}
    for field, value in (("number", "x"), ("level", 3), ("color", "green"), ("pair", [1]), ("when", "soon"), ("day", "x"),
                         ("hour", "25:00"), ("ident", "x"), ("address", "1.2.3"), ("code", "a"), ("code", "abcd"),
                         ("code", "AB"), ("unique", [1, 1.0]), ("odd", 2), ("odd", [2]), ("kind", "b"), ("points", [{}] * 3),
                         ("points", "ab"), ("point", 5), ("word", 5)):
        raises(ValidationError, Everything.model_validate, {"from": "a", field: value})
    for field, value in (("code", "ab"), ("unique", [1, True, "1", {"a": 1}]), ("odd", True), ("odd", [1]), ("kind", None)):
        assert getattr(Everything(from_="a", **{field: value}), field) == value


def test_enums_are_their_values():
    assert Color.blue == "deep blue" and str(Color.blue) == "deep blue" and "%s" % Color.blue == "deep blue"
    assert f"{Color.blue}" == "deep blue" and json.dumps(Color.blue) == '"deep blue"' and Color.blue.value == "deep blue"
    assert Level.high == 2 and str(Level.high) == f"{Level.high}" == "2" and json.dumps(Level.high) == "2"


def test_dump():
    made = Everything(from_="a", points=[Point(x=1)], more={"p": Point(x=2)})
    assert made.model_dump(include={"from_", "points"}) == {"from_": "a", "points": [{"x": 1, "y": 0}]}
    assert made.model_dump(by_alias=True, exclude_unset=True) == {"from": "a", "points": [{"x": 1}], "more": {"p": {"x": 2}}}
    assert "number" not in made.model_dump(exclude_none=True)
    assert set(made.model_dump(exclude_defaults=True)) == {"from_", "points", "point", "more"}
    assert made.model_dump()["color"] is Color.blue and made.model_dump(mode="json")["color"] == "deep blue"
    assert Point(x=1).model_dump_json() == '{"x":1,"y":0}'
    assert json.loads(Point(x=1).model_dump_json(indent=2)) == {"x": 1, "y": 0}
    assert Point.model_validate_json('{"x": 3}') == Point(x=3)
    assert types(Point.model_validate_json, "{") == ["json_invalid"]
    assert Everything(from_="a", number=float("nan")).model_dump_json(include={"number"}) == '{"number":null}'


def test_copies():
    made = Everything(from_="a", points=[Point(x=1)], more=[1])
    for other in (made.model_copy(), made.model_copy(deep=True), copy.copy(made), copy.deepcopy(made),
                  pickle.loads(pickle.dumps(made))):
        assert other == made and other.model_fields_set == made.model_fields_set and other is not made
    assert made.model_copy().points is made.points and made.model_copy(deep=True).points is not made.points
    changed = made.model_copy(update={"number": "any", "more": 2})
    assert changed.number == "any" and changed.more == 2 and made.number is None
    assert Point.model_construct(x="any").x == "any" and Point.model_construct(x="any").y == 0


def test_recursive():
    tree = Node.model_validate({"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]})
    assert tree.children[0].children[0].value == 3
    assert types(Node.model_validate, {"value": 1, "children": [{"value": 2, "children": [{}]}]}) == ["missing"]
    assert Json.model_validate({"a": [1, None]}).model_dump() == {"a": [1.0, None]}
    assert Json(a=1).model_dump() == {"a": 1.0} and Json("x").root == "x"
    raises(ValueError, Json, 1, a=1)
    assert types(Json) == ["missing"]
    loop = []
    loop.append(loop)
    assert types(Json, loop) == ["recursion_loop"]


def test_union():
    class Cat(mcpstandin.BaseModel):
        kind: Literal["cat"]

    class Dog(mcpstandin.BaseModel):
        kind: Literal["dog"]
        name: Optional[str] = None

    validate = mcpstandin.compile_type(Union[Cat, Dog, int, str])
    for value, expected in (({"kind": "dog", "name": "x"}, Dog), ({"kind": "cat"}, Cat), ("1", str), (1, int), (Dog(kind="dog"), Dog)):
        assert type(validate(value, mcpstandin._State())) is expected


def test_field_options():
    raises(TypeError, Field, nonsense=1)


def test_patterns():
    assert Pattern("(").compiled is None and Pattern("\\p{L}").compiled is None
    Pattern("(").check("anything")
    Pattern("(?<year>\\d{4})(?<=4)").check("x2024x")
    raises(ValueError, Pattern("(?<year>\\d{4})").check, "x")


# ---- the client

class Given(mcpmodels.BaseModel, extra="allow"):
    plain: Annotated[str, mcpmodels.Field(alias="pl-ain")]
    null: Annotated[Optional[str], Nullable] = None
    left: Optional[str] = None
    number: Optional[int] = 5
    inner: Optional[List[Given]] = None
    at: Optional[datetime.datetime] = None
    color: Optional[Color] = None


class Root(mcpmodels.RootModel[Any]):
    root: Union[Given, List[int]]


class Answer(mcpmodels.BaseModel, extra="allow"):
    n: int


if mcpmodels.pydantic is not None:
    Given.model_rebuild()


def test_what_is_sent():
    given = Given(plain="a", inner=[{"pl-ain": "b", "null": None, "left": None}], more={"x": Given(plain="c")},
                  at=datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc), color="red")
    assert mcpmodels.plain(given) == {
        "pl-ain": "a", "number": 5, "inner": [{"pl-ain": "b", "null": None, "number": 5}], "at": "2024-01-02T00:00:00Z",
        "color": "red", "more": {"x": {"pl-ain": "c", "number": 5}}}
    assert type(mcpmodels.plain(given)["color"]) is str
    assert mcpmodels.plain(Given(plain="a", number=None)) == {"pl-ain": "a"}
    assert json.dumps(mcpmodels.plain([1.0, 2.5, -3.0, 1e300, float(2**53), True])) == "[1, 2.5, -3, 1e+300, 9007199254740992, true]"


def with_host(handle, run):
    before = namespaces._installed
    with Host(handle) as host:
        namespaces._installed = host.channel(), None
        try:
            return run(), host.calls
        finally:
            namespaces._installed = before


def test_client():
    client = mcpmodels.Client("my-server")
    answers = {"value": {"n": 1}}, {"value": '{"n": 2}'}, {"value": "text"}, {"value": None}, {"value": [1]}, {"raw": "text"}

    def handle(host, ident, method, args, raw):
        number = args["args"].get("number")
        host.reply(ident, answers[number], "é".encode() if "raw" in answers[number] else None)

    def run():
        params = [Given(plain="p", number=number) for number in range(6)]
        assert client.run("odd tool.name", params[0], Answer).n == 1
        assert client.run("t", params[1], Answer).n == 2
        for number in range(2, 6):
            failure = raises("ToolCallError", client.run, "t", params[number], Answer)
            assert failure.data == ("text", None, [1], "é")[number - 2] and failure.code == "protocol"
        assert [client.run_text("t", each) for each in params] == ['{"n": 1}', '{"n": 2}', "text", "", "[1]", "é"]

        async def both():
            return (await asyncio.gather(*[client.run_async("t", params[0], Answer) for _ in range(5)]),
                    await client.run_text_async("t", params[5]))

        made, text = asyncio.run(both())
        assert [each.n for each in made] == [1] * 5 and text == "é"
        assert client.run("t", Root({"pl-ain": "x", "number": 0}), Answer).n == 1
        raises(TypeError, client.run, "t", Root([1]), Answer)
        raises(TypeError, client.run, "t", {"pl-ain": "x"}, Answer)
        raises(TypeError, client.run, "t", Given(plain="p", more=object()), Answer)

    _, calls = with_host(handle, run)
    assert calls[0][1:3] == ("tools.call", {"name": "my-server.odd tool.name", "args": {"pl-ain": "p", "number": 0}})


def test_client_errors():
    def handle(host, ident, method, args, raw):
        host.fail(ident, type="ToolCallError", code="tool_failed", message="it said no", namespace="tools", operation="call")

    def run():
        error = raises("ToolCallError", mcpmodels.Client("s").run, "t", Given(plain="p"), Answer)
        assert str(error) == "it said no"

    with_host(handle, run)


def test_no_session():
    before, namespaces._installed = namespaces._installed, None
    try:
        error = raises(RuntimeError, mcpmodels.Client("srv").run_text, "t", Given(plain="p"))
    finally:
        namespaces._installed = before
    assert "'srv'" in str(error) and "workcell run" in str(error)


if __name__ == "__main__":
    main(dict(globals()))
