#!/usr/bin/env bash
# Compares `nccl-bench doctor log` with two recipes of grep on the logs of the test data, and prints a table in Markdown.
# Usage: measurements/tools/doctor_against_greps.sh path/to/nccl-bench > measurements/results/doctor.md
set -euo pipefail
program=${1:?path of nccl-bench}
logs=$(dirname "$0")/../../crates/diagnosis/tests/data/logs

# The patterns that awslabs/agent-plugins, hyperpod-nccl, scripts/nccl-diagnose.sh (commit ef84ee3c) looks for in the logs of
# pods with grep -qi. Each one that matches is reported as a detected problem.
hyperpod=(
  "Timeout waiting for" "Connection refused" "Address already in use" "NCCL WARN Connect to" "network is unreachable"
  "Error in Store" "DistStoreError" "RendezvousConnectionError" "RendezvousTimeout" "Name or service not known"
  "getaddrinfo failed" "Watchdog timeout" "unhandled system error" "unhandled cuda error" "peer access is not supported"
  "NCCL WARN Cuda failure" "fi_getinfo failed" "NCCL_OFI_RDMA" "Call to ibv_reg_mr failed" "NET/OFI Using TCP"
  "Failed to load NCCL" "libnccl-net.so" "OOMKilled" "CUDA out of memory" "cudaMalloc failed" "failed to extend /dev/shm"
  "Bus error" "NCCL function not found" "Incompatible NCCL version" "Could not find interface" "world_size mismatch"
  "doesn't have NCCL built in" "CUDA_VISIBLE_DEVICES" "unlink shared memory" "Call to ncclCommAbort" "MNNVL topology"
  "ENOMEM" "invalid alignment"
)
# The recipe of the engineers' notes: a line of WARN or ERROR is a problem.
notes='NCCL WARN|NCCL ERROR'

# log | what was done | patterns of hyperpod-nccl that name it | finding of the doctor that names it
truth='
h200x8|nothing: 8 GPUs over NVLink||
seed-001|no EFA device in the container|NET/OFI Using TCP;fi_getinfo failed|network-fell-back-to-tcp
one|nothing||
one-plugin|NCCL_NET_PLUGIN names no library|libnccl-net.so|net-plugin-missing
one-commid|NCCL_COMM_ID outside of the subnets|Could not find interface|nccl-comm-id-unreachable
one-net-ib|NCCL_NET names an absent network||nccl-no-network-plugin
one-nogpu|no GPU visible|CUDA_VISIBLE_DEVICES|cuda-no-device
one-wrong-if|wrong NCCL_SOCKET_IFNAME|Could not find interface|nccl-no-interface
two-differ|NCCL_PROTO on one rank only||variable-differs
two-dup|two ranks on one GPU||nccl-duplicate-gpu
two-dup28|two ranks on one GPU||nccl-duplicate-gpu
two-hosts|one host counted as two nodes|NET/OFI Using TCP|host-counted-as-nodes
two-killed|a rank killed|OOMKilled|nccl-peer-closed
two-stopped|a rank stopped, then killed|OOMKilled|mpirun-killed
two-late|nothing in NCCL||
two-mixed|two versions of NCCL|NCCL function not found;Incompatible NCCL version|nccl-versions-differ
two-net|nothing: P2P off without effect||
two-nofile|GPU busy|unhandled cuda error|cuda-busy
two-shm-full1|nothing: small /dev/shm, not used||
two-shm-full2|/dev/shm too small|failed to extend /dev/shm|nccl-shm-full
two-split|nothing||
g2|nothing||
g1of2|nothing||
g2-algo|NCCL_ALGO misspelt||nccl-algorithm-syntax
g2-differ|NCCL_PROTO on one rank only||variable-differs
g2-dup|two ranks on one GPU||nccl-duplicate-gpu
g2-hosts|one host counted as two nodes|NET/OFI Using TCP|host-counted-as-nodes
g2-late|nothing in NCCL||
g2-level|NCCL_P2P_LEVEL=LOC||no-p2p-within-node
g2-mixed|two versions of NCCL|NCCL function not found;Incompatible NCCL version|nccl-versions-differ
g2-net|P2P and shared memory off||network-within-host
g2-nogpu|one GPU visible for two ranks|CUDA_VISIBLE_DEVICES|nccl-tests-too-few-gpus
g2-p2p-off|P2P off||no-p2p-within-node
g2-shm-off|nothing: shared memory off, not used||
g2-shm-full|/dev/shm too small|failed to extend /dev/shm|nccl-shm-full
g2-tagged|nothing||
g2-wrong-if1|wrong NCCL_SOCKET_IFNAME on one rank|Could not find interface|nccl-no-interface
torch-ok|nothing||
torch-absent|a rank did not call a collective|Watchdog timeout|torch-rank-late
torch-order|calls in a different order|Watchdog timeout|torch-order-differs
torch-shape|different sizes|Watchdog timeout|torch-sizes-differ
'

echo "# The doctor beside recipes of grep"
echo
echo "Made by \`measurements/tools/doctor_against_greps.sh\` from the logs in \`crates/diagnosis/tests/data/logs\`. *Found*: what was done is named"
echo "(for killed and absent ranks: the failure is told, and that the log has no cause). *False*: problems reported that are none, or"
echo "a wrong cause. The expectations are those of \`crates/diagnosis/tests/logs.rs\`, which were written by hand for these logs: the"
echo "rules were written with them in view, so this shows what greps miss, not how the doctor does on logs that nobody has seen."
echo "Not counted as false, since they are true there: \`host-counted-as-nodes\` in logs whose ranks have different host ids,"
echo "\`nccl-bootstrap-mismatch\` and \`nccl-bootstrap-truncated\` beside different versions, \`variable-value\` beside NCCL's own warning"
echo "about the variable, and \`torch-rank-late\` in torch-order, where rank 1 reports nothing: the order is not in the log."
echo
echo "| log | what was done | doctor | false | hyperpod-nccl | false | WARN or ERROR |"
echo "|---|---|---|---|---|---|---|"
faults=0 healthy=0 doctor_found=0 doctor_false=0 hyper_found=0 hyper_false=0 notes_found=0 notes_false=0
while IFS='|' read -r log fault right rule; do
  [ -n "$log" ] || continue
  file=$logs/$log.log
  report=$("$program" doctor log --json "$file") || true
  own=$(python3 -c '
import json, sys
rule = sys.argv[1]
found = [f for e in json.load(sys.stdin)["examinations"] for f in e["findings"] if f["severity"] != "advice"]
# Ranks of the host ids that were set for the test are a finding of their own.
true = (rule, "host-counted-as-nodes", "nccl-bootstrap-mismatch", "nccl-bootstrap-truncated", "variable-value", "torch-rank-late")
others = [f["rule"] for f in found if f["rule"] not in true]
print(int(any(f["rule"] == rule for f in found)), len(others))' "$rule" <<<"$report")
  read -r found false <<<"$own"
  hits=() named=0
  for pattern in "${hyperpod[@]}"; do
    if grep -qai -- "$pattern" "$file"; then
      if [[ ";$right;" == *";$pattern;"* ]]; then named=1; else hits+=("\`$pattern\`"); fi
    fi
  done
  warned=0
  if grep -qaE "$notes" "$file"; then warned=1; fi
  if [ -n "$rule" ]; then
    faults=$((faults + 1)) doctor_found=$((doctor_found + found)) hyper_found=$((hyper_found + named)) notes_found=$((notes_found + warned))
    doctor=$([ "$found" = 1 ] && echo "\`$rule\`" || echo missed)
    grep_found=$([ "$named" = 1 ] && echo found || echo missed)
    note=$([ "$warned" = 1 ] && echo "a line to read" || echo missed)
  else
    healthy=$((healthy + 1)) notes_false=$((notes_false + warned)) doctor="no problem" grep_found="–"
    note=$([ "$warned" = 1 ] && echo "false alarm" || echo "no problem")
  fi
  doctor_false=$((doctor_false + false)) hyper_false=$((hyper_false + ${#hits[@]}))
  list=$(IFS=,; echo "${hits[*]-}")
  echo "| $log | $fault | $doctor | ${false/#0/} | $grep_found | ${list//,/, } | $note |"
done <<<"$truth"
echo
echo "| | faults found of $faults | false reports |"
echo "|---|---|---|"
echo "| doctor | $doctor_found | $doctor_false |"
echo "| hyperpod-nccl, ${#hyperpod[@]} patterns | $hyper_found | $hyper_false |"
echo "| WARN or ERROR, as in the engineers' notes | $notes_found lines to read, without cause | $notes_false |"
