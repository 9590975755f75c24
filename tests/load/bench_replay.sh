#!/bin/sh
# bench_replay.sh SERVER MODEL [ARGUMENTS OF replay.py] - 24 conversations of 5 turns over a KV
# pool that holds 4 of them: with RAM and SSD below it, and with nothing.  With REPLAY_TARGET=URL
# that server is measured beside it; give it as much KV memory, and the same model.
set -eu

server=$1 model=$2
shift 2
here=$(dirname "$0")
top=$(mktemp -d)
pid=
trap 'test -z "$pid" || kill "$pid" 2>/dev/null || :; rm -rf "$top"' EXIT

# A conversation grows to some 1,250 tokens: 80 blocks of 16.
blocks=320

# measure FLAGS...: start a server with them, replay, stop it.
measure() {
    "$server" serve "$model" --port 0 --kv-blocks $blocks "$@" >"$top/log" 2>&1 &
    pid=$!
    base=
    while test -z "$base"; do
        kill -0 $pid 2>/dev/null || { cat "$top/log" >&2; exit 1; }
        sleep 0.2
        base=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$top/log" | head -n 1)
    done
    # shellcheck disable=SC2086
    "$here/replay.py" "$base" $replay
    kill $pid
    wait $pid || :
    pid=
}

replay=$*
echo "==== a KV pool of $blocks blocks, RAM and SSD"
measure --ram 1G --ssd "$top/kv" --ssd-size 2G --copy-after 1s --idle-after 10s --ssd-after 2s
echo "==== a KV pool of $blocks blocks alone"
measure
if test -n "${REPLAY_TARGET:-}"; then
    echo "==== $REPLAY_TARGET"
    # shellcheck disable=SC2086
    "$here/replay.py" "$REPLAY_TARGET" $replay
fi
