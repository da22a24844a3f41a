#!/usr/bin/env python3
"""check-format.py [--fix]: is every C file formatted as .clang-format says? With --fix it is afterwards.

The program is clang-format of one version, from scripts/test-requirements.txt: other versions format a few places differently.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build", "venv", "bin", "clang-format")


def main():
    listed = subprocess.run(["git", "ls-files", "-z", "*.c", "*.h"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [name for name in listed.split("\0") if name and os.path.exists(os.path.join(ROOT, name))]
    if not files:
        sys.exit("check-format: git lists no C files here")
    how = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "--Werror", "--ferror-limit=1"]
    sys.exit(subprocess.run([PROGRAM, *how, *files], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
