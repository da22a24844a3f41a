"""How executors are configured."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

from .._core import milliseconds
from .._engine import Size, bytes_of, log
from .._folders import remove
from ..deps import collect_configured_deps
from ..tools.middleware import ToolMiddleware

PathLike = Union[str, "os.PathLike[str]"]
WorkspaceMode = Literal["rw", "cow", "ro", "none"]
NetworkProfile = Literal["none", "deps-only", "full"]
Network = Union[NetworkProfile, str, Sequence[str]]


#: What a kernel of the first family had to have installed.
_KERNEL_DEPS = ("ipykernel", "py-code-mode", "nest-asyncio")


def _path(path: Optional[PathLike]) -> Optional[str]:
    return None if path is None else os.path.abspath(os.path.expanduser(os.fspath(path)))


def _cpu_quota(cpus: float) -> int:
    """Microseconds of CPU in 100 ms."""
    if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not (cpus == 0 or 0.01 <= cpus <= 1e6):
        raise ValueError("cpus must be a number of CPUs from 0.01, like 1.5, or 0 for no limit, not %r" % (cpus,))
    return round(cpus * 100000)


def _network(network: Network) -> str:
    """As the library writes it: ``none``, ``deps-only``, ``full`` or ``allow=HOST,...``."""
    if isinstance(network, str):
        if network in ("none", "deps-only", "full") or network.startswith("allow="):
            return network
        raise ValueError('network must be "none", "deps-only", "full", "allow=HOST,..." or a list of hosts, not %r' % network)
    hosts = list(network)
    for host in hosts:
        if not isinstance(host, str) or not re.fullmatch(r"[^\s,]+", host):
            raise ValueError('network must be a list of hosts, like ["example.org:443"]; %r is not a host' % (host,))
    return "allow=" + ",".join(hosts) if hosts else "none"


@dataclass(frozen=True)
class ExecutorConfig:
    """The options of all executors.

    Args:
        default_timeout: seconds that a cell may take; None: no limit. It is hard: interrupt, a short grace, then kill.
        allow_runtime_deps: whether code may add packages while it runs.
        tools_path: a folder of tool definitions (``*.yaml``); one that is not there yet has no tools.
        deps: packages that are there before the first cell.
        deps_file: a requirements file with more of them.
        ipc_timeout: taken for compatibility; calls end with their cell.
        tool_middlewares: functions around every tool call.
        python: the interpreter; None: the one that runs this.
        cwd: the working directory of the code; None: that of this process.
        env: environment variables of the code; nothing is inherited.
        preload: modules that are imported ahead of the session.
        images_dir: where PNGs that cells show are written; None: they stay in the result.
        max_output: bytes of output that a result keeps.
        grace: seconds between an interrupt and a kill.
        memory: bytes that the code's processes may use together: ``"512m"``, ``"2g"`` or a number.
        cpus: CPUs that they may use together: ``1.5``.
        pids: how many processes and threads there may be.
        network: ``"none"``, ``"deps-only"`` (the hosts of the package index), ``"full"``, or the hosts that the code may reach:
            ``["example.org:443"]`` or ``"allow=example.org:443"``.
        disk: bytes that the code may write: into its working directory, its ``/tmp``, and into one file.

    An executor enforces the last five, or the session is refused with the executors that can. None: the executor's default;
    0: no limit.
    """

    default_timeout: Optional[float] = 60.0
    allow_runtime_deps: bool = True
    tools_path: Optional[PathLike] = None
    deps: Optional[Sequence[str]] = None
    deps_file: Optional[PathLike] = None
    ipc_timeout: Optional[float] = 30.0
    tool_middlewares: Tuple[ToolMiddleware, ...] = ()
    python: Optional[PathLike] = None
    cwd: Optional[PathLike] = None
    env: Optional[Mapping[str, str]] = None
    preload: Sequence[str] = ()
    images_dir: Optional[PathLike] = None
    max_output: Optional[int] = None
    grace: Optional[float] = None
    memory: Optional[Size] = None
    cpus: Optional[float] = None
    pids: Optional[int] = None
    network: Optional[Network] = None
    disk: Optional[Size] = None

    def __post_init__(self) -> None:
        self._limits()
        if self.default_timeout is not None and self.default_timeout <= 0:
            raise ValueError("default_timeout must be more than 0, or None")
        for name, value in (self.env or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError("%r is not a valid environment variable" % name)

    def configured_deps(self) -> List[str]:
        """``deps`` and the lines of ``deps_file``."""
        return collect_configured_deps(self.deps, self.deps_file)

    def packages(self) -> List[str]:
        """The packages that are installed before the first cell."""
        return self.configured_deps()

    def _limits(self) -> Dict[str, Any]:
        """The limits that are given, in the library's names and units, where -1 means no limit."""
        if self.pids is not None and (isinstance(self.pids, bool) or not isinstance(self.pids, int) or self.pids < 0):
            raise ValueError("pids must be a number of processes, or 0 for no limit, not %r" % (self.pids,))
        found: Dict[str, Any] = {
            "memory_limit": None if self.memory is None else bytes_of("memory", self.memory) or -1,
            "cpu_quota": None if self.cpus is None else _cpu_quota(self.cpus) or -1,
            "pids_limit": None if self.pids is None else self.pids or -1,
            "network": None if self.network is None else _network(self.network),
            "disk_limit": None if self.disk is None else bytes_of("disk", self.disk) or -1}
        return {name: value for name, value in found.items() if value is not None}

    def session_options(self) -> Dict[str, Any]:
        """For the library."""
        found: Dict[str, Any] = {
            **self._limits(),
            "timeout_ms": milliseconds(self.default_timeout), "cwd": _path(self.cwd), "images_dir": _path(self.images_dir),
            "preload": ",".join(self.preload) or None, "max_output_bytes": self.max_output, "portable_values": 1,
            "grace_ms": None if self.grace is None else int(self.grace * 1000)}
        if self.env is not None:
            found["env"] = ["%s=%s" % item for item in self.env.items()]
        if self.python is not None:
            found["python"] = _path(self.python)
        return found

    def space_options(self) -> Dict[str, Any]:
        """For the library."""
        folder = _path(self.tools_path)
        if folder is not None and not os.path.isdir(folder):
            log.warning("the tools folder %s does not exist, so there are no tools; it is made, empty", folder)
            os.makedirs(folder, exist_ok=True)
        return {"tools_dir": folder, "allow_runtime_deps": int(self.allow_runtime_deps),
                "python": _path(self.python) or sys.executable or None}


@dataclass(frozen=True)
class InProcessConfig(ExecutorConfig):
    """Code in the program's own process: no isolation (docs/executors.md says what cannot be guarded).

    The code has this program's interpreter, environment and working directory: giving ``python``, ``env`` or another ``cwd``
    is refused.
    """

    default_timeout: Optional[float] = 30.0


@dataclass(frozen=True)
class SubprocessConfig(ExecutorConfig):
    """A kernel process of its own.

    Args:
        python_version: ``"3.11"``: the interpreter by its version; None: the one that runs this program.
        venv_dir, venv_path: the folder of the environment for packages, made if missing.
        cache_venv: whether the project's environment is kept and used again.
        cleanup_venv_on_close: whether it is removed at the end; None: if it is not kept.
        startup_timeout: accepted for compatibility; :class:`workcell.Engine` has the time limit for starting an interpreter.
        base_deps: further packages; those that py-code-mode needed for a kernel are ignored.
        workspace_mode: ``cow``: the code works in a copy of the working directory, see :meth:`workcell.Session.diff`; None: in the
            directory itself.
    """

    python_version: Optional[str] = None
    venv_path: Optional[PathLike] = None
    venv_dir: Optional[PathLike] = None
    base_deps: Tuple[str, ...] = ("ipykernel",)
    startup_timeout: float = 30.0
    cleanup_venv_on_close: Optional[bool] = None
    cache_venv: bool = True
    workspace_mode: Optional[WorkspaceMode] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.startup_timeout <= 0:
            raise ValueError("startup_timeout must be more than 0")
        if self.python_version is None:
            object.__setattr__(self, "python_version", "%d.%d" % sys.version_info[:2])
        assert self.python_version is not None
        version = self.python_version.strip()
        if not version:
            raise ValueError("python_version cannot be empty or whitespace-only")
        if not re.fullmatch(r"\d+\.\d+", version):
            raise ValueError("python_version must be in major.minor format (e.g., '3.11'), got: %r" % self.python_version)

    def session_options(self) -> Dict[str, Any]:
        found = super().session_options()
        found["workspace_mode"] = self.workspace_mode
        return found

    def get_resolved_cleanup(self) -> bool:
        """Whether the environment is removed at the end."""
        return not self.cache_venv if self.cleanup_venv_on_close is None else self.cleanup_venv_on_close

    def packages(self) -> List[str]:
        extra = [each for each in self.base_deps if each.lower().replace("_", "-") not in _KERNEL_DEPS]
        return list(dict.fromkeys(extra + super().packages()))

    def space_options(self) -> Dict[str, Any]:
        found = super().space_options()
        here = "%d.%d" % sys.version_info[:2]
        version = (self.python_version or here).strip()
        if self.python is None and version != here:
            found["python_version"] = version
            del found["python"]
        venv = _path(self.venv_path if self.venv_path is not None else self.venv_dir)
        if venv is not None:
            found["venv_dir"] = venv
        else:
            found["cache_venv"] = int(self.cache_venv)
        if self.cleanup_venv_on_close is not None:
            found["cleanup_venv_on_close"] = int(self.cleanup_venv_on_close)
        return found


@dataclass(frozen=True)
class _OlderNames(ExecutorConfig):
    """Limits by the names that py-code-mode documents.

    ``memory_limit``, ``pids_limit`` and ``disk_limit`` are ``memory``, ``pids`` and ``disk``; ``cpu_quota`` is ``cpus``, or 1,000
    and more in microseconds of 100 ms; ``network_disabled=True`` is ``network="none"``.
    """

    network_disabled: bool = False
    memory_limit: Optional[Size] = None
    cpu_quota: Optional[float] = None
    pids_limit: Optional[int] = None
    disk_limit: Optional[Size] = None

    def __post_init__(self) -> None:
        quota = self.cpu_quota
        for name, older, value in (
                ("network", "network_disabled", "none" if self.network_disabled else None), ("memory", "memory_limit", self.memory_limit),
                ("cpus", "cpu_quota", quota / 100000 if isinstance(quota, (int, float)) and quota >= 1000 else quota),
                ("pids", "pids_limit", self.pids_limit), ("disk", "disk_limit", self.disk_limit)):
            given = getattr(self, name)
            if value is not None and given not in (None, value):
                raise ValueError("%s is %r and %s is %r: give only %s" % (name, given, older, getattr(self, older), name))
            if value is not None:
                object.__setattr__(self, name, value)
        super().__post_init__()


@dataclass(frozen=True)
class SandboxConfig(SubprocessConfig, _OlderNames):
    """A kernel process that is confined by namespaces, seccomp and Landlock (docs/security.md).

    Args:
        policy: ``untrusted``, ``data-science``, ``developer``, or the path of a YAML file.
        workspace_mode: the code's access to its working directory: ``rw``, ``cow`` (a layer over it, see
            :meth:`workcell.Session.diff`), ``ro``, ``none``.
        read, write: further paths that the code sees.

    ``memory``, ``cpus``, ``pids``, ``network`` and ``disk`` replace those of the policy. ``memory_limit``, ``cpu_quota``,
    ``pids_limit``, ``disk_limit`` and ``network_disabled=True`` are older names.
    """

    policy: Optional[PathLike] = None
    read: Sequence[PathLike] = ()
    write: Sequence[PathLike] = ()

    def own_policy(self) -> Optional[str]:
        """YAML that adds ``read`` and ``write`` to the named policy; None without them."""
        import json

        lines = ["  %s: %s" % (name, json.dumps([_path(each) for each in paths]))
                 for name, paths in (("read", self.read), ("write", self.write)) if paths]
        if not lines:
            return None
        named = os.fspath(self.policy) if self.policy is not None else "untrusted"
        if "/" in named or named.endswith((".yaml", ".yml")):
            raise ValueError("read and write cannot be combined with a policy file: write them into the file, under filesystem:")
        return "\n".join(["preset: " + named, "filesystem:"] + lines) + "\n"

    def session_options(self) -> Dict[str, Any]:
        found = super().session_options()
        found["sandbox_policy"] = None if self.policy is None else os.fspath(self.policy)
        text = self.own_policy()
        if text is not None:
            found["sandbox_policy"] = write_policy(text)
        return found


_policies: Dict[int, str] = {}  # folders, by process


def write_policy(text: str) -> str:
    """A file with a policy, for the library to read; it goes when the process ends."""
    import hashlib

    pid = os.getpid()
    if pid not in _policies:
        _policies[pid] = tempfile.mkdtemp(prefix="workcell-policies-")
        atexit.register(remove, pid, _policies[pid])
    path = os.path.join(_policies[pid], hashlib.sha256(text.encode()).hexdigest()[:16] + ".yaml")
    fd, made = tempfile.mkstemp(dir=_policies[pid])
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(made, path)
    return path


@dataclass(frozen=True)
class ContainerConfig(_OlderNames):
    """A container of Docker or Podman, or an existing session server (``remote_url``).

    Without ``auth_token`` or ``auth_disabled=True`` a container is refused. With ``remote_url`` (``http://``, ``https://``,
    ``unix:PATH``) interpreter, environment, tools, storage and limits are the server's, and giving them here is refused; of
    the session's storage only ``workspace_id`` is used.

    Args:
        timeout: the same as ``default_timeout``, by its name in py-code-mode.
        auth_token: the server's token.
        memory, pids: None: 512 MiB and 512 processes.
        network: ``"none"`` or ``"full"``; None: full.
        remote_ca: certificates to trust for ``https://``, a PEM file; None: ``$SSL_CERT_FILE``, or the system's.
        remote_reopen: a cell whose session the server has ended runs in a new one, instead of failing.
        remote_repeat: a cell whose server died before its result came is run again, once, where the session woke as it was before that cell. What
            it did outside of the session it may do twice.
        workspace_mode: ``cow``: the code works in a layer over the container's working directory, see :meth:`workcell.Session.diff`;
            None: in that directory.

    ``memory_limit``, ``cpu_quota``, ``pids_limit`` and ``network_disabled=True`` are older names of ``memory``, ``cpus``, ``pids`` and
    ``network="none"``.
    """

    default_timeout: Optional[float] = 30.0
    timeout: Optional[float] = None
    image: Optional[str] = None
    auto_build: bool = True
    port: int = 0
    host: str = "localhost"
    startup_timeout: float = 60.0
    health_check_interval: float = 0.5
    environment: Mapping[str, str] = field(default_factory=dict)
    remove_on_exit: bool = True
    name: Optional[str] = None
    auth_token: Optional[str] = None
    auth_disabled: bool = False
    remote_url: Optional[str] = None
    remote_reopen: bool = False
    remote_repeat: bool = False
    remote_ca: Optional[PathLike] = None
    workspace_mode: Optional[WorkspaceMode] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout is None:
            object.__setattr__(self, "timeout", self.default_timeout)

    def session_options(self) -> Dict[str, Any]:
        found = super().session_options()
        if self.timeout is not None:
            found["timeout_ms"] = milliseconds(self.timeout)
        if self.environment:
            found["env"] = ["%s=%s" % item for item in {**self.environment, **(self.env or {})}.items()]
        if self.remote_url is not None:
            found["remote_url"] = self.remote_url
            if self.auth_token is not None:
                found["remote_token"] = self.auth_token
            ca = self.remote_ca or os.environ.get("SSL_CERT_FILE")
            if ca and self.remote_url.startswith("https:"):
                found["remote_ca"] = os.path.abspath(os.fspath(ca))
            if self.remote_reopen:
                found["remote_reopen"] = 1
            if self.remote_repeat:
                found["remote_repeat"] = 1
            return found
        given: Dict[str, Any] = {
            "engine": os.environ.get("DOCKER_HOST") or None, "image": self.image, "name": self.name, "auth_token": self.auth_token,
            "auth_disabled": int(self.auth_disabled),
            "no_runtime_deps": int(not self.allow_runtime_deps), "startup_timeout_ms": milliseconds(self.startup_timeout)}
        found["container"] = {name: value for name, value in given.items() if value is not None}
        found["workspace_mode"] = self.workspace_mode
        return found

    def check(self) -> None:
        """Raises ValueError if it cannot be started with these values."""
        if self.remote_url is None and self.auth_token is None and not self.auth_disabled:
            raise ValueError("the container's API needs an auth_token; auth_disabled=True is for local development only")
        if self.auth_token is not None and self.auth_disabled:
            raise ValueError("auth_token and auth_disabled cannot be used together")
        if self.remote_url is not None:
            given = [name for name in ("python", "cwd", "env", "environment", "preload", "tools_path", "tool_middlewares",
                                       "image", "workspace_mode") if getattr(self, name)]
            given += [name for name in ("memory", "cpus", "pids", "network", "disk") if getattr(self, name) is not None]
            if given:
                raise ValueError("with remote_url, these belong to the server and cannot be given here: %s" % ", ".join(given))


@dataclass(frozen=True)
class KubernetesConfig(ExecutorConfig):
    """A pod of a Kubernetes cluster for each session, or for each workspace (docs/kubernetes.md).

    Interpreter, environment, tools, storage and packages are those of the server in the pod, and giving them here is refused.

    Args:
        pool_key_file: the key that the tokens of the pool's pods are made with.
        pool: the label ``workcell.pool`` of the pods to claim; None: ``workcell``.
        warm_pool: instead, the name of a SandboxWarmPool of agent-sandbox.
        kubeconfig: how to reach the cluster; None: ``$KUBECONFIG``, and in a pod its service account.
        context: of the kubeconfig; None: its current one.
        namespace: of the pods; None: the service account's or the context's.
        runtime_class: pods without it are refused.
        port: of the servers in the pods.
        workspace_id: sessions with the same one share a pod; None: a pod for each.
        startup_timeout: seconds to wait for an idle pod.
        memory, cpus: pods whose limits are higher, or missing, are refused.
    """

    pool_key_file: PathLike = ""
    pool: Optional[str] = None
    warm_pool: Optional[str] = None
    kubeconfig: Optional[PathLike] = None
    context: Optional[str] = None
    namespace: Optional[str] = None
    runtime_class: Optional[str] = None
    port: int = 8080
    workspace_id: Optional[str] = None
    startup_timeout: float = 60.0

    def session_options(self) -> Dict[str, Any]:
        found = super().session_options()
        config = self.kubeconfig
        if config is None and not os.environ.get("KUBERNETES_SERVICE_HOST"):
            config = os.environ.get("KUBECONFIG")
        given: Dict[str, Any] = {
            "pool_key_file": _path(self.pool_key_file) if self.pool_key_file else None, "pool": self.pool, "warm_pool": self.warm_pool,
            "kubeconfig": _path(config), "context": self.context, "in_namespace": self.namespace, "runtime_class": self.runtime_class,
            "port": self.port, "startup_timeout_ms": milliseconds(self.startup_timeout)}
        found["kubernetes"] = {name: value for name, value in given.items() if value is not None}
        found["remote_workspace"] = self.workspace_id
        return found

    def check(self) -> None:
        """Raises ValueError if it cannot be started with these values."""
        if not self.pool_key_file:
            raise ValueError("the executor kubernetes needs pool_key_file, the key of the pool (docs/kubernetes.md)")
        given = [name for name in ("python", "cwd", "env", "preload", "tools_path", "tool_middlewares", "deps", "deps_file") if getattr(self, name)]
        if given:
            raise ValueError("these belong to the server in the pod and cannot be given here: %s" % ", ".join(given))


@dataclass(frozen=True)
class DenoSandboxConfig(ExecutorConfig):
    """Pyodide under Deno (docs/executors.md). Deno, Pyodide and their snapshots are in the ``cache_dir`` of the engine.

    Args:
        network: None: ``none``.
        network_profile: an older name of ``network``.
        deps_timeout: seconds that installing packages may take.
        deps_net_allowlist: refused with ``deps-only``, which means the hosts of the package index that pip is configured with.
        deno_executable, runner_path, deno_dir: accepted for compatibility: the pinned Deno is used, and it keeps no
            cache of its own.
    """

    deps_timeout: float = 300.0
    deno_executable: str = "deno"
    runner_path: Optional[PathLike] = None
    deno_dir: Optional[PathLike] = None
    network_profile: Optional[NetworkProfile] = None
    deps_net_allowlist: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.network_profile not in (None, "none", "deps-only", "full"):
            raise ValueError("network_profile must be none, deps-only or full, not %r" % self.network_profile)
        if self.network_profile is not None:
            if self.network not in (None, self.network_profile):
                raise ValueError("network is %r and network_profile is %r: give only network" % (self.network, self.network_profile))
            object.__setattr__(self, "network", self.network_profile)
        super().__post_init__()
        if self.deps_net_allowlist and self.network == "deps-only":
            raise ValueError("deps-only allows only the hosts of the package index that pip is configured with: others cannot be "
                             "named in deps_net_allowlist")

    def space_options(self) -> Dict[str, Any]:
        return {**super().space_options(), "install_timeout_ms": milliseconds(self.deps_timeout)}


@dataclass(frozen=True)
class JupyterConfig(ExecutorConfig):
    """A Jupyter kernel: the name of a kernelspec; None: ipykernel of ``python``."""

    kernel: Optional[str] = None
    jupyter_path: Optional[str] = None

    def session_options(self) -> Dict[str, Any]:
        found = super().session_options()
        found.update({name: value for name, value in (("kernel", self.kernel), ("jupyter_path", self.jupyter_path))
                      if value is not None})
        return found


__all__ = ["ExecutorConfig", "InProcessConfig", "SubprocessConfig", "SandboxConfig", "ContainerConfig",
           "DenoSandboxConfig", "JupyterConfig", "KubernetesConfig"]
