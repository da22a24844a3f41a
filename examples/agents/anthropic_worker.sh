#!/bin/sh
# A worker of Claude Managed Agents with self-hosted sandboxes: what runs one session's work, confined.
#
#   ant beta:worker poll --environment-id ENV --environment-key KEY --workdir DIR --on-work ./anthropic_worker.sh
#
# The poller gives the work item on stdin and in ANTHROPIC_* variables. The worker of the session, and every command that the agent asks for,
# runs in a sandbox with one folder of its own, and reaches the API and nothing else.
#
#   WORKCELL_WORK    folder with a folder for each session (default ./sessions)
#   WORKCELL_POLICY  a policy of `workcell sandbox` (default anthropic_worker.yaml beside this script)
#   WORKCELL_WORKER  the command of the worker (default: ant beta:worker run)
set -eu

session=${ANTHROPIC_SESSION_ID:?this is run by ant beta:worker poll, which sets ANTHROPIC_SESSION_ID}
case $session in
*[!A-Za-z0-9_-]* | -*)
	echo "anthropic_worker: not a session id: $session" >&2
	exit 2
	;;
esac
here=$(cd "$(dirname "$0")" && pwd)
folder=${WORKCELL_WORK:-./sessions}/$session
mkdir -p "$folder"
folder=$(cd "$folder" && pwd -P)

set -- --policy "${WORKCELL_POLICY:-$here/anthropic_worker.yaml}" --cwd "$folder" --env "HOME=$folder"
# The variables of this work item, and no others of this machine.
for name in ANTHROPIC_SESSION_ID ANTHROPIC_WORK_ID ANTHROPIC_ENVIRONMENT_ID ANTHROPIC_ENVIRONMENT_KEY ANTHROPIC_WORK_SECRET ANTHROPIC_BASE_URL; do
	eval "value=\${$name-}"
	[ -z "$value" ] || set -- "$@" --env "$name=$value"
done
# shellcheck disable=SC2086 # a command with its words
exec workcell sandbox run "$@" -- ${WORKCELL_WORKER:-ant beta:worker run --workdir "$folder"}
