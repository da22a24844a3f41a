#!/bin/sh
# Every test there is, in the order in which failures are cheapest to understand.  Set-up has been done.
set -eu
cd "$(dirname "$0")/.."
exec build/venv/bin/python scripts/run_tests.py "$@"
