#!/usr/bin/env python3
"""check-version.py [--self-test]: is the version the one of the file VERSION wherever it is written out?

meson, the Python package and the programs read the file. The public header and the compose file cannot, and the changelog is written by
hand: they are compared with it.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def differences(version, header, compose, changelog):
    found = []
    written = re.findall(r'^#define CELL_VERSION "(.*)"$', header, re.M)
    parts = [re.findall(r"^#define CELL_VERSION_%s (\d+)$" % part, header, re.M) for part in ("MAJOR", "MINOR", "PATCH")]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append("VERSION is '%s', expected MAJOR.MINOR.PATCH" % version)
    if written != [version]:
        found.append("include/workcell.h: CELL_VERSION is %s, VERSION is %s" % (written, version))
    if [number for part in parts for number in part] != version.split("."):
        found.append("include/workcell.h: CELL_VERSION_MAJOR, _MINOR, _PATCH are %s, VERSION is %s" % (parts, version))
    for image in re.findall(r"workcell:(\d[\w.]*)", compose):
        if image != version:
            found.append("packaging/compose.yaml: the image is workcell:%s, VERSION is %s" % (image, version))
    if not re.search(r"^## %s\b" % re.escape(version), changelog, re.M):
        found.append("CHANGELOG.md has no section '## %s'" % version)
    return found


def self_test():
    header = '#define CELL_VERSION "1.2.3"\n#define CELL_VERSION_MAJOR 1\n#define CELL_VERSION_MINOR 2\n#define CELL_VERSION_PATCH 3\n'
    good = {"version": "1.2.3", "header": header, "compose": "image: workcell:1.2.3", "changelog": "## 1.2.3\n"}
    broken = [{"header": header.replace('"1.2.3"', '"1.2.4"')}, {"header": header.replace("MINOR 2", "MINOR 3")}, {"compose": "workcell:1.2.2"},
              {"changelog": "## 1.2.30\n"}]
    blind = [change for change in broken if len(differences(**{**good, **change})) != 1] + differences(**good)
    for each in blind:
        print("check-version: not judged as it should be: %s" % (each,))
    return 1 if blind else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems = differences(text_of("VERSION").strip(), text_of("include/workcell.h"), text_of("packaging/compose.yaml"), text_of("CHANGELOG.md"))
    for line in problems:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
