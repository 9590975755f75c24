#!/bin/sh
# style.sh - what the compiler and clang-format do not see.  Prints each breach, exits 1
# where there is one.
breaches=$(mktemp) && trap 'rm -f "$breaches"' EXIT

# rule TEXT: the lines on standard input break it.  Runs at the end of a pipe, so it notes
# the breach in a file.
rule() {
    found=$(cat)
    test -z "$found" && return
    echo "$1" >>"$breaches"
    printf 'style: %s\n%s\n' "$1" "$found" | sed '2,$s/^/    /'
}

sources=$(git ls-files '*.c' '*.h' '*.cu')
scripts=$(git ls-files '*.sh' '*.py' Makefile .ci/run)

for h in $(git ls-files '*.h'); do
    case "$(head -n 1 "$h")" in
    "/* $(basename "$h") - "*) ;;
    *) echo "$h" ;;
    esac
done | rule "a header opens with '/* NAME.h - what it is for'"

# shellcheck disable=SC2086
wc -l $sources | awk '$2 != "total" && $1 > 500 { print $2 ": " $1 }' |
    rule "a file stays readable in one sitting: at most 500 lines"

# shellcheck disable=SC2086
grep -nE '\b(TODO|FIXME|XXX|HACK)\b|not implemented' $sources $scripts /dev/null |
    grep -v '^tests/style.sh' | rule "nothing is left open"

# shellcheck disable=SC2086
grep -nE '[[:space:]]$' $sources $scripts README.md CONTRIBUTING.md /dev/null |
    rule "no white space at a line's end"

tests/cuda_on_cpu/faults.py --places |
    rule "each of the bugs that faults.py plants has one place"

# One door for each outside library.
door() {
    header=$1
    shift
    # shellcheck disable=SC2086
    grep -lE "^#include [<\"]$header" $sources /dev/null | grep -vE "^($*)" |
        rule "$header is included by $* alone"
}
door 'jsmn\.h' kernels/json.c
door '(cjson/)?cJSON\.h' "server/api_|tests/"
door 'microhttpd\.h' server/http
door 'pcre2\.h' tokenizer/regex.c
door 'utf8proc\.h' tokenizer/normalize.c
door 'ini\.h' server/options
door 'sodium(\.h|/)' kernels/crypto.c
door 'xxhash\.h' kernels/checksum.c
door 'liburing\.h' offload/ssd_
door 'cmocka\.h' tests/
door 'simde/' tests/emulated/
door 'cu(da|blas)[a-z0-9_]*\.h' "kernels/cuda/|tests/cuda_on_cpu/|tests/bench_cuda\.c"

test ! -s "$breaches"
