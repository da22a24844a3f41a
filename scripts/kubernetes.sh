#!/bin/sh
# kubernetes.sh [--check]: makes packaging/kubernetes/*.yaml of the chart, or checks that they are what it makes.
#
# Needs helm, or Go to build it: $WORKCELL_HELM, else `helm` of the PATH, else the Go module, once, into $XDG_CACHE_HOME/workcell-tests.
set -eu
cd "$(dirname "$0")/.."
HELM_VERSION=v3.16.4
KUBERNETES=1.31.4

find_helm() {
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/workcell-tests/helm-$HELM_VERSION
	helm=${WORKCELL_HELM:-$(command -v helm || true)}
	[ -n "$helm" ] && return
	helm=$cache/helm
	[ -x "$helm" ] && return
	command -v go >/dev/null || { echo "kubernetes.sh: neither helm nor go is here: install one of them, or set WORKCELL_HELM" >&2; exit 1; }
	echo "kubernetes.sh: building helm $HELM_VERSION, once" >&2
	GOBIN=$cache CGO_ENABLED=0 go install "helm.sh/helm/v3/cmd/helm@$HELM_VERSION"
}

# render TARGET [FLAGS...]
render() {
	target=$1
	shift
	echo "# Made by scripts/kubernetes.sh of the chart: change that, and run it." >"$target"
	"$helm" template workcell packaging/kubernetes/chart --kube-version "$KUBERNETES" "$@" >>"$target"
}

find_helm
folder=packaging/kubernetes
if [ "${1:-}" = --check ]; then
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	"$helm" lint packaging/kubernetes/chart >"$folder/lint" || { cat "$folder/lint" >&2; exit 1; }
fi
render "$folder/workcell.yaml"
render "$folder/workcell-scaled.yaml" -f packaging/kubernetes/scaled-values.yaml
render "$folder/workcell-pods.yaml" -f packaging/kubernetes/pods-values.yaml
if [ "${1:-}" = --check ]; then
	for name in workcell.yaml workcell-scaled.yaml workcell-pods.yaml; do
		diff -u "packaging/kubernetes/$name" "$folder/$name" || { echo "kubernetes.sh: $name is not what the chart makes: run scripts/kubernetes.sh" >&2; exit 1; }
	done
	echo "packaging/kubernetes is what the chart makes"
fi
