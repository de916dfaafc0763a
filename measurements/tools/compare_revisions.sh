#!/usr/bin/env bash
# Measures two revisions in turn on this machine, and prints a table of changes in Markdown.
#
#   measurements/tools/compare_revisions.sh BASE HEAD FOLDER [argument of nccl-bench]...
#
# Both are built from git, and started STARTS times in turn (default: 4). Exit code 1: a row of HEAD is slower by more than
# LIMIT (default: 10%) in every pair of starts; one pair proves nothing, since two starts of one program can differ by more.
# FOLDER gets base-N.json, head-N.json, table-N.md and table-N.csv.
#
#   PROGRAMS    a folder with the programs base and head, built before: nothing is built then
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
base=$1 head=$2
mkdir -p "$3"
folder=$(cd "$3" && pwd)
shift 3
arguments=("$@")
[ $# -gt 0 ] || arguments=(all -b 8K -e 256M -f 8)
[ -z "${PROGRAMS:-}" ] || PROGRAMS=$(cd "$PROGRAMS" && pwd)
cd "$(dirname "$0")/../.."

build() {
    local name=$1 revision=$2
    git worktree add --force --detach "$folder/$name-source" "$revision" >&2
    (cd "$folder/$name-source" && CARGO_TARGET_DIR=$folder/target cargo build --locked --release --package nccl-bench >&2)
    cp "$folder/target/release/nccl-bench" "$folder/$name"
    git worktree remove --force "$folder/$name-source" >&2
}
if [ -z "${PROGRAMS:-}" ]; then
    PROGRAMS=$folder
    build base "$base"
    build head "$head"
fi

starts=${STARTS:-4}
compare() {
    local code=0
    (cd "$folder" && "$PROGRAMS/head" compare "base-$1.json" "head-$1.json" --threshold "${LIMIT:-10%}" --format "$2") ||
        code=$?
    # 1 is that of a slower row.
    [ "$code" -le 1 ] || exit "$code"
}
for number in $(seq "$starts"); do
    for side in base head; do
        "$PROGRAMS/$side" "${arguments[@]}" --output "$folder/$side-$number.json" >"$folder/$side-$number.txt"
    done
    compare "$number" markdown >"$folder/table-$number.md"
    compare "$number" csv >"$folder/table-$number.csv"
done

# Rows that are slower in all pairs: the columns before the names of the files.
slower=$(sed -n 's/,base-[0-9]*\.json,.*,true$//p' "$folder"/table-[0-9]*.csv | sort | uniq -c |
    awk -v starts="$starts" '$1 == starts { print $2 }')
echo "$head against $base, $starts pairs of starts. Slower by more than ${LIMIT:-10%} in all of them:"
echo
echo "\`\`\`"
echo "${slower:-nothing}"
echo "\`\`\`"
echo
echo "The last pair:"
echo
cat "$folder/table-$starts.md"
[ -z "$slower" ]
