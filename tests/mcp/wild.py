"""Random schemas, and values that fit them, nearly fit them, or do not fit at all. The same seed gives the same ones."""
import copy
import random

WORDS = ["name", "items", "class", "from", "my-field", "@id", "$ref", "_private", "1st", "int", "str", "List", "Optional",
         "date", "time", "schema", "json", "copy", "model_name", "model_dump", "self", "Params", "Result", "children", "data",
         "a b", "a_b", "a-b", "über", "城市", "ﬁle", "\u202eevil", "", "__init__", "None", "True", "BaseModel", "Field", "x.y",
         "addresses", "kind", "type", "id", "\"quoted\"", "back\\slash", "new\nline", "run", "CLIENT", "Union", "mro", "field_"]
TEXTS = ["", "plain", "\"\"\"", "\\", "ends with \"", "'''", "\n\n", "a\r\nb\tc", "\u202e\u2066\u200b", "\x00nul", "é€😀", "#", "{x}",
         "%s", "\\N{BULLET}", "\"\"\"\nimport os\nos.system('true')\n\"\"\"", "\ufeff", "x" * 300, "\x85\u2028\u2029"]
PATTERNS = ["^a+$", "\\", "(", "[0-9]{3}", "\"", "a\"\"\"b", "(?<year>\\d{4})", "\\p{L}+", "^(?!x)", "'", "\\/", "(?P<x>a)(?P<x>b)", "x{99999}"]
FORMATS = ["date-time", "date", "time", "uuid", "ipv4", "ipv6", "uri", "email", "password", "duration", "hostname", "byte",
           "binary", "int32", "unknown", "", 5]
STRINGS = ["", "a", "aaa", "123", "x", "true", "2020-01-02", "2020-01-02T03:04:05Z", "10:20:30", "127.0.0.1", "::1",
           "5f6b1c3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "ü", "no\nline", "1.5", " 7 ", "nan"]
NUMBERS = [0, 1, -1, 2, 3, 10, 0.5, 1.0, 1.5, -2.25, 1e10, 2**53, 2**62, 100]
NONSENSE = [True, False, None, 0, "text", [], {}, {"type": "nonsense"}, {"type": 5}, {"type": []}, {"$ref": "#/nowhere"},
            {"$ref": "http://127.0.0.1:9/x.json"}, {"$ref": "file:///etc/passwd"}, {"$ref": 7}, {"enum": []}, {"enum": 3},
            {"properties": []}, {"properties": 3, "type": "object"}, {"type": "array", "items": 5}, {"anyOf": []}, {"anyOf": 3},
            {"allOf": [{"$ref": "#"}]}, {"const": 1.5}, {"const": None}, {"const": {"a": [1]}}, {"not": {}}, {"$ref": "#"},
            {"type": "integer", "minimum": "low", "multipleOf": 0}, {"type": "string", "minLength": -1, "pattern": 5},
            {"type": "object", "required": "all", "additionalProperties": 3}, {"type": ["string", 5]}]


class Schemas:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.defs = []

    def tool(self, name):
        self.defs = ["Node", "Tree", "kind", "Any", "a/b"][:self.random.randrange(6)]
        tool = {"name": name, "inputSchema": self.top()}
        if self.random.random() < 0.7:
            tool["description"] = self.random.choice(TEXTS)
        if self.random.random() < 0.4:
            tool["outputSchema"] = self.top()
        return tool

    def top(self):
        schema = self.object(0) if self.random.random() < 0.9 else self.schema(0)
        if isinstance(schema, dict) and self.defs:
            schema[self.random.choice(["$defs", "definitions"])] = {name: self.schema(1) for name in self.defs}
        return schema

    def schema(self, depth):
        pick = self.random
        if depth > 4:
            return pick.choice([{"type": "string"}, {"type": "integer"}, {}])
        kinds = [self.string, self.number, self.scalar, self.array, self.object, self.enum, self.union, self.all, self.ref]
        weights = [4, 4, 3, 4, 4, 3, 3, 1, 2]
        if pick.random() < 0.04:
            return copy.deepcopy(pick.choice(NONSENSE))
        schema = pick.choices(kinds, weights)[0](depth)
        if pick.random() < 0.2:
            schema["description"] = pick.choice(TEXTS)
        if pick.random() < 0.25:
            schema["default"] = value_for(pick, schema, schema, 3) if pick.random() < 0.8 else self.junk()
        if pick.random() < 0.1:
            schema["nullable"] = pick.random() < 0.7
        return schema

    def junk(self):
        return self.random.choice(STRINGS + NUMBERS + [None, True, [], {}, [1, "a"], {"a": 1}])

    def some(self, table, chance=0.3):
        return {key: make() for key, make in table.items() if self.random.random() < chance}

    def string(self, depth):
        pick = self.random
        return dict({"type": "string"}, **self.some({
            "minLength": lambda: pick.randrange(3), "maxLength": lambda: pick.choice([0, 2, 5, 5.0, 100]),
            "pattern": lambda: pick.choice(PATTERNS), "format": lambda: pick.choice(FORMATS)}, 0.2))

    def number(self, depth):
        pick = self.random
        return dict({"type": pick.choice(["integer", "number"])}, **self.some({
            "minimum": lambda: pick.choice(NUMBERS), "maximum": lambda: pick.choice(NUMBERS),
            "exclusiveMinimum": lambda: pick.choice(NUMBERS + [True, False]),
            "exclusiveMaximum": lambda: pick.choice(NUMBERS + [True]), "multipleOf": lambda: pick.choice(NUMBERS)}, 0.15))

    def scalar(self, depth):
        pick = self.random
        kinds = ["string", "integer", "number", "boolean", "null", "object", "array"]
        if pick.random() < 0.5:
            return {"type": pick.choice(["boolean", "null", "object", "array", "boolean"])}
        return {"type": pick.sample(kinds, pick.randrange(1, 4))}

    def array(self, depth):
        pick = self.random
        schema = {"type": "array"}
        if pick.random() < 0.8:
            schema["items"] = self.schema(depth + 1)
        if pick.random() < 0.2:
            many = [self.schema(depth + 1) for _ in range(pick.randrange(1, 4))]
            schema[pick.choice(["items", "prefixItems"])] = many
            schema.update(pick.choice([{"minItems": len(many), "maxItems": len(many)}, {"additionalItems": False}, {}]))
        schema.update(self.some({"minItems": lambda: pick.randrange(3), "maxItems": lambda: pick.randrange(4),
                                 "uniqueItems": lambda: pick.random() < 0.8}, 0.2))
        return schema

    def object(self, depth):
        pick = self.random
        schema = {"type": "object"}
        names = pick.sample(WORDS, pick.randrange(0, 7))
        if names or pick.random() < 0.5:
            schema["properties"] = {name: self.schema(depth + 1) for name in names}
        if pick.random() < 0.6:
            schema["required"] = [name for name in names if pick.random() < 0.5] + (["missing"] if pick.random() < 0.1 else [])
        if pick.random() < 0.4:
            schema["additionalProperties"] = pick.choice([True, False, self.schema(depth + 1)])
        if pick.random() < 0.05:
            schema["patternProperties"] = {"^x": self.schema(depth + 1)}
        return schema

    def enum(self, depth):
        pick = self.random
        values = pick.choice([STRINGS, TEXTS, WORDS, [1, 2, 3, -1, 2**60], [1, True, 1.0, "1"], ["a", 1, None],
                              [0.5, 1, 2.5], [[1], {"a": 1}], ["count", "title", "name", "mro", "_x_", "1", "class"], [None]])
        if pick.random() < 0.3:
            return {"const": copy.deepcopy(pick.choice(values))}
        return {"enum": copy.deepcopy(pick.choices(values, k=pick.randrange(1, 6)))}

    def union(self, depth):
        pick = self.random
        schema = {pick.choice(["anyOf", "oneOf"]): [self.schema(depth + 1) for _ in range(pick.randrange(1, 4))]}
        if pick.random() < 0.3:
            list(schema.values())[0].append({"type": "null"})
        if pick.random() < 0.15:
            schema.update(self.object(depth + 1))
        return schema

    def all(self, depth):
        return {"allOf": [self.schema(depth + 1) for _ in range(self.random.randrange(1, 4))]}

    def ref(self, depth):
        if not self.defs:
            return {"$ref": "#"}
        return {"$ref": "#/%s/%s" % (self.random.choice(["$defs", "definitions"]),
                                     self.random.choice(self.defs).replace("/", "~1"))}


def find(root, ref):
    at = root
    for part in ref.split("/")[1:] if isinstance(ref, str) and ref.startswith("#") else [None]:
        at = at.get(part.replace("~1", "/")) if isinstance(at, dict) and part else None
    return at


def value_for(pick, schema, root, depth):
    """Mostly a value that fits."""
    if pick.random() < 0.08:
        return pick.choice(STRINGS + NUMBERS + [None, True, False, [], {}, [1], {"a": "b"}])
    if not isinstance(schema, dict) or depth <= 0:
        return pick.choice([None, "a", 1])
    if "$ref" in schema:
        return value_for(pick, find(root, schema["$ref"]), root, depth - 1)
    if "const" in schema:
        return copy.deepcopy(schema["const"])
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return copy.deepcopy(pick.choice(schema["enum"]))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            chosen = value_for(pick, pick.choice(schema[key]), root, depth - 1)
            if isinstance(chosen, dict) and "properties" in schema:
                more = value_for(pick, {k: v for k, v in schema.items() if k != key}, root, depth)
                chosen = dict(chosen, **more) if isinstance(more, dict) else chosen
            return chosen
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = pick.choice(kind) if kind else None
    if schema.get("nullable") is True and pick.random() < 0.3:
        return None
    if kind == "string":
        return pick.choice(STRINGS)
    if kind in ("integer", "number"):
        return pick.choice(NUMBERS)
    if kind == "boolean":
        return pick.choice([True, False, "yes", 1])
    if kind == "null":
        return None
    if kind == "array":
        items = schema.get("prefixItems", schema.get("items"))
        many = items if isinstance(items, list) else [items] * pick.randrange(4)
        return [value_for(pick, each, root, depth - 1) for each in many]
    if kind == "object" or "properties" in schema:
        made = {}
        properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
        for name, each in properties.items():
            if name in (schema.get("required") or ()) or pick.random() < 0.6:
                made[name] = value_for(pick, each, root, depth - 1)
        if pick.random() < 0.1:
            made["extra"] = 1
        return made
    return pick.choice([None, "a", 1, [1], {"k": 1}])


def tools(seed, count):
    schemas = Schemas(seed)
    return {"tools": [schemas.tool("tool-%d" % number) for number in range(count)]}


def inputs(seed, schema, count):
    pick = random.Random(seed)
    return [value_for(pick, schema, schema, 8) for _ in range(count)]
