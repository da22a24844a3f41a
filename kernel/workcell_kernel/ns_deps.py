"""``deps``: the packages of the session's environment. The host installs; here they become importable at once."""

import os
import sys
from collections import namedtuple

SyncResult = namedtuple("SyncResult", "installed already_present failed")
SyncResult.__module__ = "__main__"


# Set by a kernel whose packages come as wheels: install(wheels, bytes), and what its calls say besides.
install_wheels = None
extra = {}


def result_of(answer):
    answer = answer or {}
    return SyncResult(*(tuple(answer.get(field) or ()) for field in SyncResult._fields))


def fits(site):
    """Whether this site-packages folder is for the running Python; its parent folder names the version."""
    python = os.path.basename(os.path.dirname(site.rstrip("/")))
    return not python.startswith("python") or python.rstrip("t") == "python%d.%d" % sys.version_info[:2]


def make_importable(sites, programs=None):
    """Puts the folders that packages were installed into on the path, in front of other packages' folders.

    ``programs`` is where their commands are; it goes on PATH for ``!cmd`` and subprocesses.
    """
    for site in sites or ():
        if site not in sys.path and fits(site):
            add_site(site)
    search = os.environ.get("PATH", "")
    if programs and programs not in search.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, (programs, search)))
    invalidate_caches()


def add_site(folder):
    import site

    from . import errors  # not at the top: it brings in threads where nothing else does

    before = list(sys.path)
    site.addsitedir(folder)  # .pth files count
    added = [each for each in sys.path if each not in before]
    at = next((i for i, each in enumerate(before) if each.endswith(("site-packages", "dist-packages"))), len(before))
    sys.path[:] = before[:at] + added + before[at:]
    errors.add_library(folder)


def invalidate_caches():
    """Clears import caches, so that installed and removed packages are noticed."""
    import importlib

    importlib.invalidate_caches()


class DepsNamespace:
    """The packages of this session.

    deps.add("pandas>=2", "requests")   deps.remove("pandas")   deps.list()   deps.sync()
    """

    __slots__ = ("_channel",)

    def __init__(self, channel):
        self._channel = channel

    def add(self, package, *more):
        """Installs packages and adds them to the configuration: SyncResult(installed, already_present, failed).

        Several of them, or a list, are resolved together: if one cannot be installed, none is added.
        """
        packages = [*(package if isinstance(package, (list, tuple)) else [package]), *more]
        texts = [package_text(each) for each in packages]
        return self._change("deps.add", {"package": texts[0] if len(texts) == 1 else texts})

    def sync(self):
        """Installs the configured packages that are missing."""
        return self._change("deps.sync", {})

    def remove(self, package):
        """Removes a package from the configuration and the environment, and returns whether it was there."""
        answer = self._channel.call("deps.remove", {"package": package_text(package), **extra})[0]
        invalidate_caches()
        if isinstance(answer, dict):
            return bool(answer.get("removed_from_config", answer.get("removed")))
        return bool(answer)

    def list(self):
        """Lists the configured packages."""
        return self._channel.call("deps.list")[0]

    def _change(self, method, args):
        answer, raw = self._channel.call(method, {**args, **extra})
        answer = answer or {}
        if install_wheels is not None:
            install_wheels(answer.get("wheels"), raw)
        sites = answer.get("site") or ()
        make_importable(sites, answer.get("bin"))
        if not all(map(fits, sites)):
            import warnings

            warnings.warn("this session's Python, %d.%d, cannot import these packages, which are for another version: %s"
                          % (sys.version_info[:2] + (", ".join(sites),)), RuntimeWarning, stacklevel=3)
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
        raise TypeError("a package must be a str such as 'pandas>=2', not %s" % type(package).__name__)
    return package
