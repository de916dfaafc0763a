//! Texts of other releases and programs.

use super::{find, parse_run, parse_runs};
use crate::collective::UNKNOWN_COLLECTIVE;
use crate::run::{Placement, RunOutcome};

/// The text of nccl-tests 2.9: all_reduce over four ranks.
pub(super) const OLD: &str = "\
# nThread 1 nGpus 4 minBytes 33554432 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \n\
#\n\
# Using devices\n\
#   Rank  0 Pid    195 on      node1 device  0 [0x07] Tesla V100-SXM2-16GB\n\
#   Rank  1 Pid    195 on      node1 device  1 [0x0a] Tesla V100-SXM2-16GB\n\
#   Rank  2 Pid    195 on      node1 device  2 [0x0b] Tesla V100-SXM2-16GB\n\
#   Rank  3 Pid    195 on      node1 device  3 [0x85] Tesla V100-SXM2-16GB\n\
#\n\
#                                                     out-of-place                       in-place          \n\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n\
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n\
    33554432       8388608   float     sum    19902    1.69    2.53  2e-07    19898    1.69    2.53  2e-07\n\
    67108864      16777216   float     sum    39804    1.69    2.53  2e-07    39796    1.69    2.53  2e-07\n\
# Out of bounds values : 0 OK\n\
# Avg bus bandwidth    : 2.53 \n\
#\n";

#[test]
fn older_tables_are_read() {
    let run = parse_run(OLD);
    assert_eq!((&run.outcome, run.ranks.len()), (&RunOutcome::Complete, 4));
    let first = find(&run, 33_554_432, Placement::OutOfPlace);
    assert_eq!(
        (first.collective.as_str(), first.op.as_deref(), first.root),
        ("allreduce", Some("sum"), None)
    );
    assert_eq!((first.time_us, first.wrong), (19_902.0, Some(0)));
    assert!((first.busbw_gbps - 33_554_432.0 / 19_902e3 * 1.5).abs() < 1e-9);
    // The column of differences does not tell which row has the wrong values.
    let failed = parse_run(&OLD.replace("0 OK", "1 FAILED"));
    assert!(failed.measurements.iter().all(|each| each.wrong.is_none()));
    let first_release = "\
# Using devices\n\
#   Rank  0 on      node1 device  0 [0x04] Tesla P100-SXM2-16GB\n\
#   Rank  1 on      node1 device  1 [0x06] Tesla P100-SXM2-16GB\n\n\
#                                                 out-of-place                    in-place\n\
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n\
     1048576        262144   float     sum    0.125   8.39   8.39    2e-07    0.126   8.32   8.32    2e-07\n\
 Out of bounds values : 0 OK\n\
 Avg bus bandwidth    : 8.355 \n";
    let run = parse_run(first_release);
    assert_eq!((run.outcome, run.ranks.len(), run.measurements[1].time_us), (RunOutcome::Complete, 2, 126.0));
    // Of two ranks, all_reduce and sendrecv have equal bandwidths.
    assert_eq!(run.measurements[0].collective, UNKNOWN_COLLECTIVE);
    let named = parse_run(&format!("$ ./build/all_reduce_perf -g 2\n{first_release}"));
    assert_eq!(named.measurements[0].collective, "allreduce");
}

#[test]
fn single_iterations_and_time_stamps_are_columns_of_their_own() {
    let text = "\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n\
# Collective test starting: all_reduce_perf\n\
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 3 validation: 1 \
graph: 0 unalign: 0\n\
# Per-Iteration Report: CUDA event timing; i_* uses max over process rows; summary skips first 2 iterations \n\
# Using devices\n\
#  Rank  0 Group  0 Pid  15559 on     node01 device  0 [0000:18:00] NVIDIA H200\n\
#  Rank  1 Group  0 Pid  15559 on     node01 device  1 [0000:2a:00] NVIDIA H200\n\
#                  out-of-place (+ per-iteration)             in-place (+ per-iteration)\n\
#  size count  type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max \
i_p99 i_cv% timestamp\n\
   8  2  float  sum  -1  9.87  0.00  0.00  0  9.87  11.75  11.75  5.27  9.52  0.00  0.00  0  9.52  11.33  11.33  \
5.27  2026-11-20 15:03:28\n\
# Out of bounds values : 0 OK\n\
# Avg bus bandwidth    : 0.00083 \n";
    let run = parse_run(text);
    assert_eq!((run.outcome, run.measurements.len()), (RunOutcome::Complete, 2));
    assert_eq!((run.settings.per_iteration, run.settings.per_iteration_skip), (true, 2));
    assert_eq!((run.measurements[1].time_us, run.measurements[1].operations), (9.52, 60));
    assert_eq!(run.provenance.library_version, "2.30.7");
}

#[test]
fn texts_of_rccl_tests_are_read() {
    let table = "\
# Using devices\n\
#   Rank  0 Pid 2509534 on host device  0 [0000:0c:00.0] AMD Instinct MI300X\n\
#   Rank  1 Pid 2509535 on host device  1 [0000:22:00.0] AMD Instinct MI300X\n\
RCCL version : 2.22.3-develop:f5b15f2\n\
HIP version  : 6.3.42131-fa1d09cbd\n\
#\n\
#                                                               in-place          \n\
#       size         count      type   redop    root     time   algbw   busbw #wrong\n\
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       \n\
     1048576        262144      half    none       0    100.0   10.49   10.49      0\n\
# Testing 2 cycle.\n\
     1048576        262144      half    none       0    200.0    5.24    5.24      0\n\
# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n\
# Out of bounds values : 0 OK\n\
# Avg bus bandwidth    : 7.865 \n";
    let settings = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 1048576(bytes) warmup iters: 5 \
                    iters: 20 agg iters: 1 validation: 1 graph: 0\n";
    let older = format!("{settings}#\nrccl-tests: Version develop:448c4c7\n{table}");
    let newer = format!(
        "# rccl-tests version 2.17.9-develop:2596ca rccl-headers=22803 rccl-library=22707\n\
         # Collective test starting: broadcast_perf\n{settings}#\n{table}"
    );
    for (text, program, version) in [
        (&older, "rccl-tests develop:448c4c7", "2.22.3"),
        (&newer, "rccl-tests 2.17.9-develop:2596ca", "2.27.7"),
    ] {
        let run = parse_run(text);
        assert_eq!((run.program.as_str(), run.provenance.backend.as_str()), (program, "rccl"));
        assert_eq!((run.provenance.library_version.as_str(), run.outcome), (version, RunOutcome::Complete));
        let cycles: Vec<_> =
            run.measurements.iter().map(|each| (each.cycle, each.placement, each.root)).collect();
        assert_eq!(cycles, [(0, Placement::InPlace, Some(0)), (1, Placement::InPlace, Some(0))]);
    }
    assert_eq!(parse_run(&newer).measurements[0].collective, "broadcast");
    // The bytes do not agree with the count, so no collective fits.
    assert_eq!(parse_run(&older).measurements[0].collective, UNKNOWN_COLLECTIVE);
}

#[test]
fn texts_of_the_osu_benchmarks_are_read() {
    let text = "\
$ mpirun -np 4 osu_allreduce -d cuda\n\n\
# OSU MPI-CUDA Allreduce Latency Test v7.5\n\
# Datatype: MPI_FLOAT.\n\
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
4                       2.50              1.89              3.73        1000\n\
1048576               104.30            104.26            104.33          10\n\n\
# OSU NCCL-CUDA Allgather Latency Test v7.5\n\
# Size       Avg Latency(us)\n\
1073741824           8955.18\n\n\
# OSU MPI Bi-Directional Bandwidth Test v7.5\n\
# Datatype: MPI_CHAR.\n\
# Size      Bandwidth (MB/s)        Validation\n\
4096                    4096.00              Pass\n\
8192                    8192.00              Fail\n\n\
# OSU MPI Barrier Latency Test v7.5\n\
# Avg Latency(us)\n\
             12.00\n";
    let runs = parse_runs(text);
    assert_eq!(runs.len(), 3);
    let names: Vec<&str> = runs.iter().map(|run| run.measurements[0].collective.as_str()).collect();
    assert_eq!(names, ["allreduce", "osu_allgather", "osu_bibw"]);
    let [reduce, gather, bandwidth] = [&runs[0], &runs[1], &runs[2]];
    assert_eq!(reduce.program, "OSU Micro-Benchmarks 7.5");
    assert!(runs.iter().all(|run| run.outcome == RunOutcome::Running && run.ranks.is_empty()));
    let large = &reduce.measurements[1];
    assert_eq!((large.data_type.as_str(), large.op.as_deref(), large.count), ("float", Some("sum"), 262_144));
    assert_eq!((large.time_us, large.operations, large.wrong), (104.3, 10, None));
    assert!((large.algbw_gbps - 10.053).abs() < 1e-3 && large.busbw_gbps.is_nan());
    assert_eq!((gather.provenance.backend.as_str(), gather.measurements[0].bytes), ("nccl", 1 << 30));
    let pair = &bandwidth.measurements;
    assert_eq!((pair[0].algbw_gbps, pair[0].time_us, pair[0].wrong), (4.096, 1.0, Some(0)));
    assert_eq!(pair[1].wrong, Some(1));
}
