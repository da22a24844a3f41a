# -*- coding: utf-8 -*-
# Any Python must be able to read this file, even 2.7: the zygote says that it is too old.
"""Run as ``python -I -S sitecheck.py FOLDERS PYTHON ARGS...`` where FOLDERS is a JSON list of what confined code can write to.

Kernels of other sessions are forked from a zygote, and Python loads much by itself: the lines of .pth files, sitecustomize, what a
preload names. So before it is started, what it would look for modules in is found out without loading anything of it (-S). When some of that lies
where confined code can write, this program says so and ends with REFUSED; else it becomes ``PYTHON ARGS...``.
"""

import json
import os
import sys

REFUSED = 77


def is_under(path, folder):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except (IOError, OSError):
        return ""


class Search:
    """The folders that modules are looked for in, and texts of what is loaded without being asked for."""

    def __init__(self):
        self.folders = []
        self.texts = []

    def add_package(self, folder, name, known_paths):
        """Instead of site.addpackage(), which executes lines of the file."""
        self.folders.append(folder)
        for line in read(os.path.join(folder, name)).splitlines():
            if line.startswith(("import ", "import\t")):
                self.texts.append(line)
                for module in line[7:].split(";")[0].split(","):
                    self.texts.append(read(os.path.join(folder, module.split(" as ")[0].strip() + ".py")))
            elif line.strip() and not line.startswith("#"):
                path = os.path.join(folder, line.strip())
                if os.path.exists(path):
                    self.folders.append(path)
        return known_paths

    def run(self):
        import site

        site.addpackage = self.add_package
        site.execsitecustomize = lambda: None
        site.main()
        self.folders += [path for path in sys.path if path] + [sys.prefix, sys.base_prefix, sys.exec_prefix]

    def find(self, writable):
        """A folder that confined code can write to, or None."""
        for folder in self.folders:
            for path in (os.path.abspath(folder), os.path.realpath(folder)):
                if any(is_under(path, place) for place in writable):
                    return path
        for place in writable:
            if any(place in text for text in self.texts):
                return place
        return None


def main():
    writable, python, args = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if sys.version_info >= (3, 9):
        search = Search()
        search.run()
        found = search.find(writable)
        if found:
            sys.stderr.write("loads modules from %s, which sandboxed code can write to\n" % found)
            sys.stderr.flush()
            os._exit(REFUSED)
    os.execv(python, [python] + args)


if __name__ == "__main__":
    main()
