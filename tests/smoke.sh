#!/bin/sh
# smoke.sh SERVER [MODEL] - the server as README shows it, with curl alone.
set -eu

server=$1
model=${2:-models/smollm2-135m-instruct}
log=$(mktemp)
"$server" serve "$model" --port 0 --packed-cache=false >"$log" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null || :; rm -f "$log" "$log.sse"' EXIT

die() {
    echo "smoke: $*" >&2
    cat "$log" >&2
    exit 1
}

base=
for _ in $(seq 600); do
    base=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$log" | head -n 1)
    test -n "$base" && break
    kill -0 "$pid" 2>/dev/null || die "the server ended"
    sleep 0.1
done
test -n "$base" || die "the server is not ready after a minute"

name=$(basename "$model")
question='{"messages":[{"role":"user","content":"What is the capital of France?"}],"temperature":0,"max_tokens":32'
json='Content-Type: application/json'

curl -sf "$base/health" | grep -q '"ok"' || die "/health"
curl -sf "$base/v1/models" | grep -q "\"$name\"" || die "/v1/models does not name $name"
curl -sf "$base/v1/chat/completions" -H "$json" -d "$question}" | grep -q Paris ||
    die "the answer does not name Paris"
curl -sfN "$base/v1/chat/completions" -H "$json" -d "$question,\"stream\":true}" >"$log.sse" ||
    die "the stream"
grep -q '^data: \[DONE\]$' "$log.sse" || die "the stream does not end by [DONE]"

test "$(curl -s -o /dev/null -w '%{http_code}' "$base/v1/chat/completions" -H "$json" -d '{')" = 400 ||
    die "bad JSON is not answered 400"
curl -sf "$base/metrics" | grep -q '^dormouse_generation_tokens_total' || die "/metrics"

kill -TERM "$pid"
wait "$pid" || die "exit code $? after SIGTERM"
echo "smoke: right"
