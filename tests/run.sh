#!/bin/sh
# run.sh PROGRAM... - run cmocka test programs and add up the tests in them.
# A program that crashes, hangs or dies after its tests counts as one failed test more.
passed=0 failed=0 skipped=0
log=$(mktemp) && trap 'rm -f "$log"' EXIT

# cmocka names failed and skipped tests twice, as they end and in its closing list; a
# result counts where it follows the RUN line of the same test.
# shellcheck disable=SC2016
count='
/^\[ RUN      \] /   { running = $NF; last = $NF }
/^\[       OK \] /   { if ($NF == running) { ok++; running = "" } }
/^\[  FAILED  \] /   { if ($NF == running) { bad++; running = "" } }
/^\[  SKIPPED \] /   { if ($NF == running) { skip++; running = "" } }
END { print ok + 0, bad + 0, skip + 0, running }'

for program; do
    echo "== ${program#*/tests/}"
    timeout "${TEST_TIMEOUT:-900}" "$program" >"$log" 2>&1
    rc=$?
    grep -vE '^\[ +(RUN|OK) +\]' "$log"
    # shellcheck disable=SC2046
    set -- $(awk "$count" "$log")
    p=$1 f=$2 s=$3 running=$4
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "** $program ended with status $rc${running:+ in $running}"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

echo "$passed passed, $failed failed, $skipped skipped"
test "$failed" -eq 0
