"""Workflows: Python files with a function ``run`` that agents keep for later."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from ..errors import InvalidError, WorkflowExecutionError, WorkflowNotFoundError, WorkflowValidationError

if TYPE_CHECKING:
    from .._core import SpaceHandle
    from ..session import Session


@dataclass(frozen=True)
class WorkflowParameter:
    """A parameter of ``run``."""

    name: str
    type: str
    description: str = ""
    required: bool = True
    default: Any = None

    def to_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "type": self.type, "description": self.description, "required": self.required,
                "default": self.default}


@dataclass(frozen=True)
class WorkflowMetadata:
    """Where a workflow came from."""

    created_at: datetime.datetime
    created_by: str
    source: str

    @classmethod
    def now(cls, created_by: str = "agent", source: str = "runtime") -> "WorkflowMetadata":
        return cls(datetime.datetime.now(datetime.timezone.utc), created_by, source)


@dataclass(frozen=True)
class PythonWorkflow:
    """A workflow. Nothing of its source runs on the host."""

    name: str
    description: str
    parameters: Tuple[WorkflowParameter, ...]
    source: str
    metadata: Optional[WorkflowMetadata] = None
    tags: Tuple[str, ...] = field(default=())

    @classmethod
    def from_source(cls, name: str, source: str, description: str = "") -> "PythonWorkflow":
        """Not checked until it is added to a library."""
        return cls(name, description, (), source, WorkflowMetadata.now())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PythonWorkflow":
        parameters = tuple(WorkflowParameter(each["name"], each.get("type") or "string", each.get("description") or "",
                                             bool(each.get("required", True)), each.get("default"))
                           for each in data.get("parameters") or ())
        return cls(data["name"], data.get("description") or "", parameters, data.get("source") or "")

    async def invoke(self, session: "Session", **arguments: Any) -> Any:
        """Runs it in a session; WorkflowExecutionError where it raises."""
        import json

        result = await session.run("import json as _json\nworkflows.invoke(%r, **_json.loads(%r))"
                                   % (self.name, json.dumps(arguments)))
        if result.error is not None:
            raise WorkflowExecutionError(self.name, result.error)
        return result.value


def workflow_dict(data: Mapping[str, Any], source: bool = False) -> Dict[str, Any]:
    """The shape of every listing of workflows."""
    found = {"name": data["name"], "description": data.get("description") or "",
             "parameters": [{"name": each["name"], "type": each.get("type"), "description": each.get("description") or "",
                             "required": each.get("required", True), "default": each.get("default")}
                            for each in data.get("parameters") or ()]}
    if source:
        found["source"] = data.get("source")
    return found


class WorkflowLibrary:
    """The workflows of a storage, from the host. All methods wait. Every look sees what there is now."""

    def __init__(self, space: Callable[[], "SpaceHandle"]) -> None:
        self._space = space

    def refresh(self) -> None:
        """Nothing to do: there is no copy that could be old."""

    def add(self, workflow: PythonWorkflow) -> PythonWorkflow:
        """Keeps it, and replaces what had the name; ValueError or SyntaxError where it is none."""
        return PythonWorkflow.from_dict(add_workflow(self._space(), workflow.name, workflow.source, workflow.description))

    save = add

    def remove(self, name: str) -> bool:
        return bool(self._space().call("workflows.delete", name=name))

    delete = remove

    def get(self, name: str) -> Optional[PythonWorkflow]:
        found = self._space().call("workflows.get", name=name)
        return None if found is None else PythonWorkflow.from_dict(found)

    load = get

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def list(self) -> "List[PythonWorkflow]":
        return [PythonWorkflow.from_dict(each) for each in self._space().call("workflows.list")]

    list_all = list

    def search(self, query: str, limit: int = 10) -> "List[PythonWorkflow]":
        return [PythonWorkflow.from_dict(each) for each in self._space().call("workflows.search", query=query, limit=limit)]

    def __len__(self) -> int:
        return len(self.list())

    def __iter__(self) -> Iterator[PythonWorkflow]:
        return iter(self.list())


def add_workflow(space: "SpaceHandle", name: str, source: str, description: str) -> Dict[str, Any]:
    """Keeps a workflow; the library parses it. SyntaxError where it is no Python."""
    try:
        return dict(space.call("workflows.create", name=name, source=source, description=description, overwrite=True))
    except InvalidError as error:
        if "yntax" in str(error):
            raise SyntaxError("Syntax error in workflow code: %s" % error) from None
        raise


WorkflowStore = WorkflowLibrary


class FileWorkflowStore(WorkflowLibrary):
    """The workflows of a folder."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        from pathlib import Path

        from ..storage import FileStorage

        folder = Path(path)
        self._storage = FileStorage(folder.parent if folder.name in ("workflows", "skills") else folder)
        super().__init__(self._storage.space)


def create_workflow_library(store: Optional[WorkflowLibrary] = None, **ignored: Any) -> WorkflowLibrary:
    """A library over a store; a new one in a temporary folder without."""
    if store is not None:
        return store
    import shutil
    import tempfile
    import weakref

    folder = tempfile.mkdtemp(prefix="workcell-workflows-")
    made = FileWorkflowStore(folder)
    weakref.finalize(made, shutil.rmtree, folder, True)
    return made


# The names of older versions.
PythonSkill, SkillParameter, SkillMetadata = PythonWorkflow, WorkflowParameter, WorkflowMetadata
SkillLibrary = SkillStore = WorkflowLibrary
FileSkillStore = FileWorkflowStore
create_skill_library = create_workflow_library

__all__ = ["PythonWorkflow", "WorkflowParameter", "WorkflowMetadata", "WorkflowLibrary", "WorkflowStore",
           "FileWorkflowStore", "create_workflow_library", "PythonSkill", "SkillParameter", "SkillMetadata",
           "SkillLibrary", "SkillStore", "FileSkillStore", "create_skill_library", "WorkflowNotFoundError",
           "WorkflowValidationError", "WorkflowExecutionError"]
