#!/bin/sh
# run.sh TARGET SEEDS: fuzzes for $WORKCELL_FUZZ_SECONDS (1) from the seeds.  What it finds on the way stays out of the source
# tree; an input that breaks something is left in the current folder.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -max_total_time="${WORKCELL_FUZZ_SECONDS:-1}" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 "$scratch" "$2"
