"""Hooks on the import of modules."""
import sys


class Hook:
    """First on sys.meta_path until all of its modules have been imported. load(module, exec_module) loads one of them."""

    def __init__(self, names, load):
        self.wanted = set(names) - set(sys.modules)
        self.load = load
        self.busy = False

    def install(self):
        if self.wanted and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self):
        # Another list: other threads may be going through this one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name, path=None, target=None):
        # Somebody may only ask whether there is such a module: nothing is done before it is loaded.
        if self.busy or name not in self.wanted:
            return None
        from importlib.util import find_spec

        self.busy = True
        try:
            spec = find_spec(name)
        finally:
            self.busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def loaded(self, name):
        self.wanted.discard(name)
        if not self.wanted:
            self.remove()


class _Loader:
    """Loads as usual, by way of the hook."""

    def __init__(self, loader, hook):
        self.loader, self.hook = loader, hook

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.hook.load(module, self._exec)

    def _exec(self, module):
        self.loader.exec_module(module)
        self.hook.loaded(module.__name__)
