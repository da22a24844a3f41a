"""What runs inside a Workcell kernel.

Needs nothing from the environment it runs in but CPython 3.9 or later. Reading order: zygote.py and warm.py (the warm process
that kernels are forked from), kernel.py (one session's main loop), cell.py (compiling and running one cell),
values.py, errors.py, streams.py (what a cell's result is made of), interactive.py and magics.py (IPython's syntax and
magics where the environment has no IPython), ipy.py (where it has), display.py and pretty.py.
"""
