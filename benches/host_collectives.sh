#!/bin/sh
# Runs host_collectives under Open MPI and MPICH, over shared memory and TCP on this machine, with 2 and 4 ranks,
# one after the other, and collects tables and JSON files.
#
#   benches/host_collectives.sh FOLDER [argument of host_collectives]...
#
# RANKS, TRANSPORTS and MPIS narrow it down: RANKS=2 TRANSPORTS=shm MPIS=openmpi benches/host_collectives.sh out
set -eu

if [ $# -lt 1 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$1
shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

# An MPI program is built for one MPI library: a target folder for each.
build() {
    MPICC=$2 CARGO_TARGET_DIR=$target/bench-$1 cargo bench --no-run --no-default-features --features fabric,mpi \
        --bench host_collectives --message-format=json 2>"$folder/build-$1.log" |
        sed -n 's/.*"name":"host_collectives".*"executable":"\([^"]*\)".*/\1/p'
}

one() {
    mpi=$1 transport=$2 ranks=$3 program=$4
    shift 4
    name=$mpi-$transport-$ranks
    echo "== $name"
    cores=$(nproc)
    case $mpi in
    openmpi)
        case $transport in
        shm) btl=self,vader ;;
        *) btl=self,tcp ;;
        esac
        if [ "$ranks" -le "$cores" ]; then bind=core; else bind=none; fi
        set -- "${OPENMPI_RUN:-mpirun.openmpi}" --oversubscribe --bind-to "$bind" --mca pml ob1 --mca btl "$btl" \
            -np "$ranks" "$program" --transport "$transport" --output "$folder/$name.json" "$@"
        ;;
    mpich)
        # MPICH has its own shared memory; over TCP it must take its ranks for those of different hosts.
        case $transport in
        shm) set -- env UCX_TLS=posix,sysv,self "$program" "$@" ;;
        *) set -- env MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self "$program" "$@" ;;
        esac
        set -- "${MPICH_RUN:-mpirun.mpich}" -np "$ranks" "$@" --transport "$transport" --output "$folder/$name.json"
        ;;
    esac
    # A library that cannot run a case says so in its log; the other cases go on.
    if ! timeout "${LIMIT:-900}" "$@" >"$folder/$name.txt" 2>"$folder/$name.log"; then
        echo "failed: see $folder/$name.log" >&2
        failed=1
    fi
    cat "$folder/$name.txt"
}

failed=0
for mpi in ${MPIS:-openmpi mpich}; do
    program=$(build "$mpi" "mpicc.$mpi")
    if [ -z "$program" ]; then
        echo "$mpi: host_collectives was not built: see $folder/build-$mpi.log" >&2
        failed=1
        continue
    fi
    for transport in ${TRANSPORTS:-shm tcp}; do
        for ranks in ${RANKS:-2 4}; do
            one "$mpi" "$transport" "$ranks" "$program" "$@"
        done
    done
done
exit "$failed"
