"""Builds Workcell with each layer of the sandbox left out in turn and sees the escape suite go red: holes.py [HOLE...]

A suite that stays green without a layer does not test it. Exits 1 when a hole goes unnoticed.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    with open(os.path.join(ROOT, "meson_options.txt"), encoding="utf-8") as file:
        known = [hole for hole in re.findall(r"'([a-z]+)'", re.search(r"planted_hole.*?\[(.*?)\]", file.read(), re.S)[1])]
    unnoticed = []
    for hole in sys.argv[1:] or known:
        folder = os.path.join(ROOT, "build-hole")
        subprocess.run([os.path.join(ROOT, "scripts", "build.sh"), folder, "-Dplanted_hole=%s" % hole], check=True,
                       stderr=subprocess.DEVNULL)
        env = dict(os.environ, WORKCELL_BIN=os.path.join(folder, "workcell"))
        suite = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "every_attempt",
                                os.path.join(ROOT, "tests", "escape")], env=env, capture_output=True, text=True)
        red = re.search("failed|error", suite.stdout.splitlines()[-1])  # an open that is refused is noticed too
        print("%-10s %s" % (hole, "noticed" if red else "NOT NOTICED"), flush=True)
        if not red:
            unnoticed.append(hole)
            print(suite.stdout[-2000:])
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
