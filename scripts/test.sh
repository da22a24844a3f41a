#!/bin/sh
# The tests, as scripts/run_tests.py --help says.  Set-up has been done.
set -eu
cd "$(dirname "$0")/.."
exec build/venv/bin/python scripts/run_tests.py "$@"
