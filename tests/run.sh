#!/bin/sh
# run.sh PROGRAM... - run cmocka test programs, as many at once as there are processors, and
# add up the tests in them.
# A program that crashes, hangs or dies after its tests counts as one failed test more.

# cmocka names failed and skipped tests twice, as they end and in its closing list; a
# result counts where it follows the RUN line of the same test.
# shellcheck disable=SC2016
count='
/^\[ RUN      \] /   { running = $NF }
/^\[       OK \] /   { if ($NF == running) { ok++; running = "" } }
/^\[  FAILED  \] /   { if ($NF == running) { bad++; running = "" } }
/^\[  SKIPPED \] /   { if ($NF == running) { skip++; running = "" } }
END { print ok + 0, bad + 0, skip + 0, running }'

# one FOLDER PROGRAM: run it, say at once what it said, leave its sums in the folder.
one() {
    log=$(mktemp "$1/log.XXXXXX")
    timeout "${TEST_TIMEOUT:-900}" "$2" >"$log" 2>&1
    rc=$?
    # shellcheck disable=SC2046
    set -- "$1" "$2" $(awk "$count" "$log")
    p=$3 f=$4 s=$5 running=$6
    {
        flock 9
        echo "== ${2#*/tests/}"
        grep -vE '^\[ +(RUN|OK) +\]' "$log"
        if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
            echo "** $2 ended with status $rc${running:+ in $running}"
            f=1
        fi
        echo "$p $f $s" >>"$1/sums"
    } 9>"$1/lock"
}

if [ "$1" = --one ]; then
    one "$2" "$3"
    exit
fi

folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
printf '%s\0' "$@" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "$0" --one "$folder"
awk '{ p += $1; f += $2; s += $3 }
     END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped"; exit f > 0 }' "$folder/sums"
