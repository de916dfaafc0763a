#!/bin/sh
# Compares host collectives with MPI libraries (measurements/tools/host_collectives.rs), over shared memory and TCP, with 2 and 4
# ranks, and with Gloo (gloo.py, needs PyTorch) over TCP. Writes a text table and a JSON file per case.
#
#   measurements/tools/host_collectives.sh FOLDER [argument of host_collectives]...
#
# Variables select cases and locate programs:
#   LIBRARIES   of openmpi, mpich (over TCP: by its UCX), mpich_ofi (by its libfabric), gloo   (default: openmpi mpich)
#   RANKS, TRANSPORTS   as in RANKS=2 TRANSPORTS=shm
#   OPENMPI, MPICH      folders of installations with bin/mpicc and bin/mpirun  (default: the distribution's)
#   PROGRAMS    a folder with host_collectives-openmpi and host_collectives-mpich, built before: nothing is built then
#   LIMIT       seconds that a case may take (default: 900)
set -eu

if [ $# -lt 1 ]; then
    sed -n '2,15s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
folder=$1
shift
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cores=$(nproc)

# Path of an MPI library's program: tool <openmpi|mpich> <mpicc|mpirun>
tool() {
    if [ "$1" = openmpi ]; then installation=${OPENMPI:-}; else installation=${MPICH:-}; fi
    if [ -n "$installation" ]; then echo "$installation/bin/$2"; else echo "$2.$1"; fi
}

# An MPI program is built for one MPI library: a target folder for each.
build() {
    if [ -n "${PROGRAMS:-}" ]; then
        echo "$PROGRAMS/host_collectives-$1"
        return
    fi
    (cd "$here/../.." && MPICC=$(tool "$1" mpicc) CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/bench-$1 \
        cargo build --release --no-default-features --features fabric,mpi --example host_collectives \
        --message-format=json 2>"$folder/build-$1.log") |
        sed -n 's/.*"name":"host_collectives".*"executable":"\([^"]*\)".*/\1/p'
}

# one <library> <transport> <ranks> <program> [argument]...
one() {
    library=$1 transport=$2 ranks=$3 program=$4
    shift 4
    name=$library-$transport-$ranks
    if [ "$ranks" -le "$cores" ]; then bind=core; else bind=none; fi
    set -- "$program" --transport "$transport" --output "$folder/$name.json" "$@"
    case $library-$transport in
    openmpi-*)
        if [ "$transport" = shm ]; then btl=self,vader; else btl=self,tcp; fi
        set -- "$(tool openmpi mpirun)" --oversubscribe --bind-to "$bind" --mca pml ob1 --mca btl "$btl" -np "$ranks" "$@"
        ;;
    # MPICH has its own shared memory; over TCP it must take its ranks for those of different hosts.
    mpich_ofi-tcp) set -- env MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp \
        "$(tool mpich mpirun)" -bind-to "$bind" -n "$ranks" "$@" ;;
    mpich-tcp) set -- env MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self \
        "$(tool mpich mpirun)" -bind-to "$bind" -n "$ranks" "$@" ;;
    mpich-shm) set -- "$(tool mpich mpirun)" -bind-to "$bind" -n "$ranks" "$@" ;;
    gloo-tcp)
        shift 5
        set -- python3 "$here/gloo.py" --ranks "$ranks" --output "$folder/$name.json" "$@"
        ;;
    # Gloo has no shared memory, and MPICH the same one with each network.
    *) return 0 ;;
    esac
    echo "== $name"
    # A library that cannot run a case says so in its log; the other cases go on.
    if ! timeout "${LIMIT:-900}" "$@" >"$folder/$name.txt" 2>"$folder/$name.log"; then
        echo "failed: see $folder/$name.log" >&2
        failed=1
    fi
    cat "$folder/$name.txt"
}

failed=0
for library in ${LIBRARIES:-openmpi mpich}; do
    program=
    if [ "$library" != gloo ]; then
        program=$(build "${library%_ofi}")
        if [ -z "$program" ]; then
            echo "$library: host_collectives was not built: see $folder/build-${library%_ofi}.log" >&2
            failed=1
            continue
        fi
    fi
    for transport in ${TRANSPORTS:-shm tcp}; do
        for ranks in ${RANKS:-2 4}; do
            one "$library" "$transport" "$ranks" "$program" "$@"
        done
    done
done
exit "$failed"
