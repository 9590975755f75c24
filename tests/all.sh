#!/bin/sh
# all.sh BUILD - everything that `make test` stands for, one part after another.  Goes on
# after a failure; the last line is the sum of all parts.
build=$1
passed=0 failed=0 skipped=0
log=$(mktemp) && trap 'rm -f "$log" "$log.rc"' EXIT

target() {
    # shellcheck disable=SC2086
    make --no-print-directory BUILD="$build" $1
}

# part NAME COMMAND...: a part that closes with its own "N passed, N failed, N skipped".
part() {
    echo "==== $1"
    shift
    # Shown as it comes; the pipe would hide the status.
    { "$@" 2>&1; echo $? >"$log.rc"; } | tee "$log"
    rc=$(cat "$log.rc")
    sums=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log" | tail -n 1)
    # shellcheck disable=SC2086
    set -- ${sums:-0 1 0}
    test "$rc" -ne 0 && test "$2" -eq 0 && set -- "$1" 1 "$3"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# check COMMAND...: one check that holds or does not.
check() {
    echo "==== $*"
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

part "unit tests" target unit
part "CUDA on the CPU" target cuda-test
part "CUDA on the CPU, address and undefined behaviour" target "cuda-test SAN=address,undefined"
part "CUDA on the CPU, threads" target "cuda-test SAN=thread"
part "a CUDA server on the CPU" target cuda-e2e
part "end-to-end tests" tests/e2e/run.sh "$build/dormouse"
check tests/smoke.sh "$build/dormouse"
check target layers
check target headers
check target style

echo "$passed passed, $failed failed, $skipped skipped"
test "$failed" -eq 0
