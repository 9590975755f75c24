#!/bin/sh
# run.sh PROGRAM... - run cmocka test programs and add up the tests in them.
# A program that crashes, hangs or dies before its own closing lines counts as one
# failed test more.
passed=0 failed=0 skipped=0
log=$(mktemp) && trap 'rm -f "$log"' EXIT

for program; do
    echo "== ${program#*/tests/}"
    timeout "${TEST_TIMEOUT:-300}" "$program" >"$log" 2>&1
    rc=$?
    grep -vE '^\[ +(RUN|OK) +\]' "$log"
    p=$(grep -c '^\[       OK \]' "$log")
    f=$(grep -c '^\[  FAILED  \] [A-Za-z_]' "$log")
    s=$(grep -c '^\[  SKIPPED \] [A-Za-z_]' "$log")
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "** $program ended with status $rc"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

echo "$passed passed, $failed failed, $skipped skipped"
test "$failed" -eq 0
