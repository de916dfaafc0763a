#!/usr/bin/env bash
# Runs the programs of measurements/compare and measurements/tools/train_ddp_cpu.py in turn on two ranks of this machine, one thread each, and
# prints a Markdown table: lines, time of a step, share of communication. What they print goes to FOLDER.
#
#   measurements/tools/compare_training.sh FOLDER
#
# PROGRAMS  folder of the built programs (default: built here)
# SOURCES   folder of their sources, whose lines are counted (default: measurements/compare/src/bin)
# DDP       the PyTorch program (default: beside this script)
# PYTHON    interpreter that has PyTorch (default: python3)
# STARTS    starts of each program (default: 8)
# LIMIT     seconds that a start may take (default: 60); a program whose first start fails is not started again
# TIME      seconds after which nothing more is started (default: no limit)
# FLAGS     flags of all programs, like "--width 2048 --steps 5"
set -euo pipefail
[ $# = 1 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
sources=${SOURCES:-$here/../compare/src/bin}
ddp=${DDP:-$here/train_ddp_cpu.py}
python=${PYTHON:-python3}
starts=${STARTS:-8}
limit=${LIMIT:-60}
read -ra flags <<<"${FLAGS:-}"
if [ -z "${PROGRAMS:-}" ]; then
    (cd "$here/../compare" && cargo build --release --locked) >&2
    PROGRAMS=${CARGO_TARGET_DIR:-$here/../compare/target}/release
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)

export RAYON_NUM_THREADS=1 OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
programs="candle_ours candle_rsmpi burn_ours burn_threads burn_processes pytorch_ddp"

# Reason why a program cannot run here; nothing if it can.
missing() {
    case $1 in
    pytorch_ddp)
        "$python" -c 'import torch.distributed' 2>/dev/null || echo "$python has no PyTorch" ;;
    burn_threads)
        [ -x "$PROGRAMS/$1" ] || echo "$PROGRAMS/$1 is not there" ;;
    *)
        [ -x "$PROGRAMS/$1" ] || echo "$PROGRAMS/$1 is not there"
        command -v mpirun >/dev/null || echo "there is no mpirun" ;;
    esac
}

start() {
    case $1 in
    pytorch_ddp) timeout "$limit" "$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$ddp" "${flags[@]}" ;;
    burn_threads) timeout "$limit" "$PROGRAMS/$1" "${flags[@]}" ;;
    *) timeout "$limit" mpirun --bind-to none -np 2 "$PROGRAMS/$1" "${flags[@]}" ;;
    esac
}

# Lines between the marks, without comments and lines of brackets alone.
lines() {
    local file=$sources/$1.rs
    [ "$1" = pytorch_ddp ] && file=$ddp
    [ -r "$file" ] || { echo N/A; return; }
    awk '$1 ~ /^(\/\/|#)$/ && $2 == "begin" { inside = 1; next }
         $1 ~ /^(\/\/|#)$/ && $2 == "end" { inside = 0 }
         inside && !/^[ \t]*(\/\/.*|#.*|[][(){};,]*)$/ { count++ }
         END { print count + 0 }' "$file"
}

rm -f "$folder"/*.log
running=""
for program in $programs; do
    reason=$(missing "$program")
    if [ -z "$reason" ]; then
        running+=" $program"
    else
        echo "skipped $program: $reason" | tee -a "$folder/skipped.log" >&2
    fi
done

for number in $(seq "$starts"); do
    for program in $running; do
        [ -z "${TIME:-}" ] || [ "$SECONDS" -lt "$TIME" ] || break 2
        # A start that fails after its line does not count.
        if output=$(start "$program" 2>&1); then
            echo "$output"
        else
            echo "start $number failed: ${output//$'\n'/ / }"
            # Ranks that hang outlive their mpirun, and hold the ports of the next start.
            pkill -KILL -f "^$PROGRAMS/$program( |\$)" || true
            [ "$number" != 1 ] || running=" $running " running=${running/ $program / }
        fi >>"$folder/$program.log"
    done
done

# Median, least and greatest of numbers, one a line.
summary() {
    sort -g | awk -v places="$1" '{ value[NR] = $1 }
        END { middle = NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2
              format = "%." places "f"; printf format " (" format " to " format ")", middle, value[1], value[NR] }'
}

{
    echo "| program | lines | ms per step | without communication, ms | share of communication, % | starts |"
    echo "|---|---|---|---|---|---|"
    for program in $programs; do
        log=$folder/$program.log
        succeeded=$(grep -cs "^$program .* parameters equal$" "$log" || true)
        if [ "${succeeded:-0}" = 0 ]; then
            row="| N/A | N/A | N/A |"
            if [ -e "$log" ]; then row+=" failed |"; else row+=" not run |"; fi
        else
            row="|"
            for column in "5 2" "7 2" "9 1"; do
                read -r field places <<<"$column"
                row+=" $(grep "^$program .* parameters equal$" "$log" | awk -v field="$field" '{ print $field }' | summary "$places") |"
            done
            row+=" $succeeded of $starts |"
        fi
        echo "| \`$program\` | $(lines "$program") $row"
    done
} | tee "$folder/table.md"
