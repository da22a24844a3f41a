"""``deps``: the packages of the session's environment. The host installs; here they become importable at once."""

import sys
from collections import namedtuple

SyncResult = namedtuple("SyncResult", "installed already_present failed")
SyncResult.__module__ = "__main__"


def result_of(answer):
    answer = answer or {}
    return SyncResult(*(tuple(answer.get(field) or ()) for field in SyncResult._fields))


def make_importable(paths):
    """Puts the folders that packages were installed into on the path, in front of other packages' folders."""
    for path in paths or ():
        if path in sys.path:
            continue
        import site

        before = list(sys.path)
        site.addsitedir(path)  # .pth files count
        added = [each for each in sys.path if each not in before]
        at = next((i for i, each in enumerate(before) if each.endswith(("site-packages", "dist-packages"))), len(before))
        sys.path[:] = before[:at] + added + before[at:]
        known_as_library(path)
    import importlib

    importlib.invalidate_caches()


def known_as_library(path):
    """Tracebacks fold the frames of libraries."""
    from . import errors

    folder = path.rstrip("/") + "/"
    if folder not in errors._LIBRARIES:
        errors._LIBRARIES += (folder,)


class DepsNamespace:
    """The packages of this session.

    deps.add("pandas>=2")   deps.remove("pandas")   deps.list()   deps.sync()
    """

    __slots__ = ("_channel",)

    def __init__(self, channel):
        self._channel = channel

    def add(self, package):
        """Installs a package and keeps it configured: SyncResult(installed, already_present, failed)."""
        return self._change("deps.add", {"package": package_text(package)})

    def sync(self):
        """Installs what is configured and not there."""
        return self._change("deps.sync", {})

    def remove(self, package):
        """Removes a package from the configuration and the environment; whether it was configured."""
        answer = self._channel.call("deps.remove", {"package": package_text(package)})[0]
        import importlib

        importlib.invalidate_caches()
        if isinstance(answer, dict):
            return bool(answer.get("removed_from_config", answer.get("removed")))
        return bool(answer)

    def list(self):
        """The configured packages."""
        return self._channel.call("deps.list")[0]

    def _change(self, method, args):
        answer = self._channel.call(method, args)[0]
        make_importable((answer or {}).get("site"))
        return result_of(answer)

    def __getattr__(self, name):
        raise AttributeError("deps has no attribute %r" % name)

    def __dir__(self):
        return ["add", "list", "remove", "sync"]

    def __repr__(self):
        try:
            count = len(self.list())
        except Exception:
            return "<DepsNamespace>"
        return "<DepsNamespace: %d package%s configured>" % (count, "" if count == 1 else "s")


def package_text(package):
    if not isinstance(package, str):
        raise TypeError("a package is a str such as 'pandas>=2', not %s" % type(package).__name__)
    return package
