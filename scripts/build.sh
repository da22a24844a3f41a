#!/bin/sh
# build.sh DIR [meson options]: configures DIR once (again when the options changed) and builds; only $TARGETS where that is set.
#
# Shows how far it is: on a terminal in one line, elsewhere in a line every two seconds.  What meson and ninja print is kept in DIR, and shown
# when they fail or warn.
set -eu
dir=$1
shift
cd "$(dirname "$0")/.."

# watched LOG WHAT COMMAND...: runs the command and says what it does and for how long.
watched() {
	log=$1 what=$2
	shift 2
	"$@" >"$log" 2>&1 &
	pid=$! every=150
	[ ! -t 1 ] || every=50
	tell_time
	began=$now said=$now
	while kill -0 $pid 2>/dev/null; do
		sleep 0.1
		tell_time
		[ $((now - said)) -ge $every ] || continue
		said=$now
		if [ -t 1 ]; then
			printf '\r\033[K%s' "$(progress)"
		else
			progress
		fi
	done
	[ ! -t 1 ] || [ $said = $began ] || printf '\r\033[K'
	status=0
	wait $pid || status=$?
	[ $status = 0 ] || { cat "$log" >&2; echo "build: $what in $dir ended with status $status" >&2; exit 1; }
}

# now: hundredths of a second.  Turns of a loop would not do: on a busy machine they take longer than they sleep.
tell_time() {
	read -r now _ </proc/uptime
	now=${now%.*}${now#*.}
}

# ninja's last line begins with [17/265].
progress() {
	echo "build: $what in $dir $(sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 of \2 steps /p' "$log" | tail -n 1)$(((now - began) / 100)) s"
}

if [ -f "$dir/build.ninja" ]; then
	# pip configures the folder in its own way when it is told to build there, and is gone afterwards.
	if [ "$(cat "$dir/.options" 2>/dev/null)" != "$*" ] || [ "$dir/meson-python-native-file.ini" -nt "$dir/.options" ]; then
		watched "$dir/setup.log" configuring meson setup --reconfigure "$dir" -Dwheel=false "$@"
	fi
else
	mkdir -p "$dir"
	watched "$dir/setup.log" configuring meson setup "$dir" "$@"
fi
printf '%s' "$*" >"$dir/.options"
# shellcheck disable=SC2086 # a list of names
watched "$dir/build.log" building ninja -C "$dir" ${TARGETS:-}
if grep -q 'warning:' "$dir/build.log"; then
	cat "$dir/build.log" >&2
fi
