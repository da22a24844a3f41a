"""Looks at generated modules from inside an interpreter: probe.py [--standin] FOLDER < jobs > answers, JSON lines.

A job is {"module": "server.tool", "class": "Params", "inputs": [...]}; its answer is a list, for each input either what
the class makes of it or what it says against it. --standin hides pydantic. A job {"import": [...]} imports modules.
"""
import importlib
import json
import os
import re
import sys

loads = json.loads
HERE = os.path.dirname(os.path.abspath(__file__))


def shown(value):
    """Each has its own class for time zones."""
    return re.sub(r"TzInfo\(-?[0-9]+\)|datetime\.timezone(\.utc|\(.*?\)\))", "zone", repr(value))


def outcome(models, cls, value):
    try:
        made = cls.model_validate(value)
    except models.ValidationError as exc:
        return {"errors": [[line["type"], [str(part) for part in line["loc"]]] for line in exc.errors()]}
    try:
        same = cls.model_validate(loads(made.model_dump_json(by_alias=True))) == made
    except models.ValidationError:
        same = None  # a default need not fit: it is the server's
    return {
        "repr": shown(made), "plain": models.plain(made), "json": loads(made.model_dump_json(by_alias=True)),
        "names": loads(made.model_dump_json()), "set": sorted(made.model_fields_set), "dump": shown(made.model_dump()),
        "unset": loads(made.model_dump_json(exclude_unset=True)), "none": loads(made.model_dump_json(exclude_none=True)),
        "same": same, "copy": made.model_copy(deep=True) == made,
    }


def main():
    words = sys.argv[1:]
    if "--standin" in words:
        words.remove("--standin")
        sys.modules["pydantic"] = None
    sys.path[:0] = [words[0], os.path.join(os.path.dirname(os.path.dirname(HERE)), "kernel")]
    from workcell_kernel import mcpmodels

    for line in sys.stdin:
        job = json.loads(line)
        if "import" in job:
            for name in job["import"]:
                importlib.import_module(name)
            answer = {"pydantic": mcpmodels.pydantic is not None}
        else:
            module = importlib.import_module(job["module"])
            answer = [outcome(mcpmodels, getattr(module, job["class"]), value) for value in job["inputs"]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
