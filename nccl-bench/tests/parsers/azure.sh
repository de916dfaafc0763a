#!/usr/bin/env bash
# Azure's health check of all_reduce on a text and an exit code: CHECKOUT TEXT CODE GOES_ON. Prints passed or failed.
#
# Functions stand in for the commands that it calls, and for those of NHC, by which it says what it concludes. With
# GOES_ON=1 `die` returns, as where NHC does all checks.
checkout=$1 text=$2 code=$3 goes_on=$4

source "$checkout/customTests/azure_nccl_allreduce.nhc"

mpirun() { cat "$text"; return "$code"; }
nvidia-smi() { printf 'GPU 0\nGPU 1\n'; }
check_all_reduce_dependencies() { ALL_REDUCE_PATH=all_reduce_perf; }
background_cleanup() { :; }
dbg() { :; }
pass() { echo passed; }
die() { echo failed; [[ $goes_on == 1 ]] || exit 1; }
command -v bc >/dev/null || { echo "bc is missing"; exit 3; }

# Any bandwidth will do.
check_nccl_allreduce 0.0000001 1 1M none
