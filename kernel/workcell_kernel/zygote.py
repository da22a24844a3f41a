# -*- coding: utf-8 -*-
# This file must be readable for any Python, even 2.7.
"""Started by the spawner as ``python -I zygote.py CONTROL_FD LIFELINE_FD PRELOADS``: nothing of the person's home and environment
is loaded (sitecheck.py sees to the rest). Goes on in warm.py, which Python does not compile anew each time, as it does with a script.
"""

import gc
import os
import sys

gc.disable()  # in the zygote for good: collections would only visit what it has loaded
# Nothing of ours is to be found by accident: -I keeps this file's folder off the path, and -s, for recorded sessions, does not.
if not sys.flags.isolated and sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]
KERNEL_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

if sys.version_info < (3, 9):
    sys.stderr.write("Python %d.%d is too old: Workcell needs CPython 3.9 or later\n" % sys.version_info[:2])
    sys.exit(78)
if sys.implementation.name != "cpython":
    sys.stderr.write("%s is not CPython\n" % sys.implementation.name)
    sys.exit(78)

sys.path.insert(0, KERNEL_DIR)
from workcell_kernel import warm  # noqa: E402

sys.path.remove(KERNEL_DIR)
warm.main()
