"""Workflows: Python files with a function ``run`` that agents keep for later."""

from __future__ import annotations

import ast
import datetime
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from .._kernel import kernel_module
from .._part import StoragePart, time_of
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
        """``{name, type, description, required, default}``"""
        return {"name": self.name, "type": self.type, "description": self.description, "required": self.required,
                "default": self.default}


@dataclass(frozen=True)
class WorkflowMetadata:
    """The origin of a workflow."""

    created_at: datetime.datetime
    created_by: str
    source: str

    @classmethod
    def now(cls, created_by: str = "agent", source: str = "runtime") -> "WorkflowMetadata":
        """Made at this moment."""
        return cls(datetime.datetime.now(datetime.timezone.utc), created_by, source)


@dataclass(frozen=True)
class PythonWorkflow:
    """A workflow. None of its source runs on the host."""

    name: str
    description: str
    parameters: Tuple[WorkflowParameter, ...]
    source: str
    metadata: Optional[WorkflowMetadata] = None
    tags: Tuple[str, ...] = field(default=())
    storage: Any = field(default=None, repr=False, compare=False)  #: that it was read from

    @classmethod
    def from_source(cls, name: str, source: str, description: str = "") -> "PythonWorkflow":
        """Read and checked, not run; raises SyntaxError, or ValueError if it is not a workflow."""
        kernel = kernel_module("ns_workflows")
        kernel.check_name(name)
        words, parameters = kernel.describe(source, "<workflow:%s>" % name)
        return cls.from_dict({"name": name, "description": description or words, "parameters": parameters, "source": source})

    @classmethod
    def from_file(cls, path: Union[str, "os.PathLike[str]"]) -> "PythonWorkflow":
        """The same of a file, whose name is that of the workflow."""
        return cls.from_source(Path(path).stem, Path(path).read_text(encoding="utf-8"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], storage: Any = None) -> "PythonWorkflow":
        """From the data of a storage."""
        parameters = tuple(WorkflowParameter(each["name"], each.get("type") or "string", each.get("description") or "",
                                             bool(each.get("required", True)), each.get("default"))
                           for each in data.get("parameters") or ())
        metadata = WorkflowMetadata(time_of(data.get("created_at")), "unknown", "storage")
        return cls(data["name"], data.get("description") or "", parameters, data.get("source") or "", metadata,
                   storage=storage)

    async def invoke(self, session: Optional["Session"] = None, /, **arguments: Any) -> Any:
        """Runs it in the given session, or in one of its own; raises WorkflowExecutionError if it raises."""
        import json

        if session is None:
            from ..session import Session

            part: StoragePart = MemoryWorkflowStore() if self.storage is None else StoragePart(self.storage)
            async with Session(part.storage) as own:
                if self.storage is None:
                    await own.add_workflow(self.name, self.source, self.description)
                return await self.invoke(own, **arguments)
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


class WorkflowStore(StoragePart):
    """The workflows of a storage, from the host. All methods block. Every call sees the current state."""

    def _made(self, data: Mapping[str, Any]) -> PythonWorkflow:
        return PythonWorkflow.from_dict(data, self.storage)

    def refresh(self) -> None:
        """Nothing to do: there is no copy that could be old."""

    def add(self, workflow: PythonWorkflow) -> PythonWorkflow:
        """Stores a workflow and replaces one of the same name; raises ValueError or SyntaxError if it is not valid."""
        return self._made(add_workflow(self._space(), workflow.name, workflow.source, workflow.description))

    save = add

    def remove(self, name: str) -> bool:
        """Deletes a workflow, and returns whether it existed."""
        return bool(self._space().call("workflows.delete", name=name))

    delete = remove

    def get(self, name: str) -> Optional[PythonWorkflow]:
        """A workflow, or None if it does not exist."""
        found = self._space().call("workflows.get", name=name)
        return None if found is None else self._made(found)

    def load(self, name: str) -> Optional[PythonWorkflow]:
        """A workflow, or None; raises ValueError if no workflow can have this name."""
        if not name.isidentifier():
            raise ValueError("Invalid workflow name: %r" % name)
        return self.get(name)

    def exists(self, name: str) -> bool:
        """Whether a workflow has this name."""
        return self.get(name) is not None

    def list(self) -> "List[PythonWorkflow]":
        """All workflows."""
        return [self._made(each) for each in self._space().call("workflows.list")]

    list_all = list

    def search(self, query: str, limit: int = 10) -> "List[PythonWorkflow]":
        """The workflows that match, best match first."""
        return [self._made(each) for each in self._space().call("workflows.search", query=query, limit=limit)]

    def __len__(self) -> int:
        return len(self.list())

    def __iter__(self) -> Iterator[PythonWorkflow]:
        return iter(self.list())


def add_workflow(space: "SpaceHandle", name: str, source: str, description: str) -> Dict[str, Any]:
    """Keeps a workflow; the library parses it. SyntaxError where it is not valid Python; this interpreter parses it first if it is the session's."""
    if space.own_python:
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise SyntaxError("Syntax error in workflow code: %s (line %s)" % (error.msg, error.lineno)) from None
        except (ValueError, MemoryError, RecursionError):
            pass  # the library has words for it
    try:
        return dict(space.call("workflows.create", name=name, source=source, description=description, overwrite=True))
    except InvalidError as error:
        if str(error).startswith("Syntax error"):
            raise SyntaxError(str(error)) from None
        raise


class FileWorkflowStore(WorkflowStore):
    """The workflows of a folder."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        from ..storage import FileStorage

        folder = Path(path)
        super().__init__(FileStorage(folder.parent if folder.name in ("workflows", "skills") else folder))


class RedisWorkflowStore(WorkflowStore):
    """The workflows of a Redis server; the prefix is ``P:workflows`` for a storage with the prefix ``P``."""

    def __init__(self, redis: Any, prefix: str = "py_code_mode:workflows") -> None:
        from ..storage import redis_storage

        super().__init__(redis_storage(redis, prefix, "workflows", "skills"))

    def save_batch(self, workflows: Iterable[PythonWorkflow]) -> None:
        """Stores the workflows one by one."""
        for each in workflows:
            self.save(each)


class MemoryWorkflowStore(WorkflowStore):
    """Workflows in memory, lost with the store."""

    def __init__(self) -> None:
        self._use_temporary()


class WorkflowLibrary(WorkflowStore):
    """The workflows of a store. The C library does the search (docs/workflows.md), so the other parameters, which
    py-code-mode has, have no effect."""

    def __init__(self, embedder: Any = None, store: Optional[WorkflowStore] = None, vector_store: Any = None,
                 ranking: Any = None) -> None:
        self._store = store if store is not None else MemoryWorkflowStore()
        super().__init__(self._store.storage)


def create_workflow_library(store: Optional[WorkflowStore] = None, embedder: Any = None,
                            embedding_model: Optional[str] = None, vector_store: Any = None) -> WorkflowLibrary:
    """A library over a store; without one, over a new store."""
    return WorkflowLibrary(embedder, store, vector_store)


# The names of older versions.
PythonSkill, SkillParameter, SkillMetadata = PythonWorkflow, WorkflowParameter, WorkflowMetadata
SkillLibrary, SkillStore = WorkflowLibrary, WorkflowStore
FileSkillStore, RedisSkillStore, MemorySkillStore = FileWorkflowStore, RedisWorkflowStore, MemoryWorkflowStore
create_skill_library = create_workflow_library

__all__ = ["PythonWorkflow", "WorkflowParameter", "WorkflowMetadata", "WorkflowLibrary", "WorkflowStore",
           "FileWorkflowStore", "RedisWorkflowStore", "MemoryWorkflowStore", "create_workflow_library", "PythonSkill", "SkillParameter", "SkillMetadata",
           "SkillLibrary", "SkillStore", "FileSkillStore", "RedisSkillStore", "MemorySkillStore", "create_skill_library", "WorkflowNotFoundError",
           "WorkflowValidationError", "WorkflowExecutionError"]
