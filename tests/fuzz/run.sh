#!/bin/sh
# run.sh SECONDS FUZZER... - run each fuzzer, as many at once as there are processors: for
# SECONDS those of what strangers send, for a quarter of that the others.  One that finds
# something says all it has to say and leaves the input in its own folder.

one() {
    name=$(basename "$2") seconds=$1
    case $name in *_request | *_safetensors | *_template | *_tokenizer) ;;
    *) seconds=$((seconds / 4)) ;; esac
    words=tests/fuzz/$name.dict
    test -f "$words" || words=
    if "$2" -verbosity=0 -print_final_stats=1 -artifact_prefix="$(dirname "$2")/" \
        -max_total_time="$seconds" ${words:+-dict="$words"} >"$2.log" 2>&1; then
        echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$2.log") inputs in $seconds s"
    else
        echo "$name found something:"
        cat "$2.log"
        exit 1
    fi
}

if [ "$1" = --one ]; then
    one "$2" "$3"
    exit
fi

seconds=$1
shift
printf '%s\0' "$@" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "$0" --one "$seconds"
