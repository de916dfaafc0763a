//! A run with every field filled, for tests.

#![allow(clippy::unwrap_used, reason = "for tests")]

/// Records of text reports.
pub mod row;

use crate::links::{GpuLinks, HostLinks, NicLink};
use crate::pairs::{Completion, Messages, PairSettings, Until};
use crate::run::{
    Algorithm, BackendLibrary, Measurement, PerIteration, Phase, Placement, Provenance, Rank, RankMismatch,
    RankTimes, Run, RunOutcome, SCHEMA_VERSION, StartPhase, Versus,
};
use crate::settings::Settings;
use crate::statistics::Statistics;

/// Two ranks; an allreduce in both placements, one of them wrong, a broadcast of another cycle, and an
/// allgather with nothing that can be absent.
pub fn full_run() -> Run {
    Run {
        schema_version: SCHEMA_VERSION,
        program: "nccl-bench 0.1.0 (1a2b3c4d5e6f)".to_owned(),
        command: ["nccl-bench", "allreduce,broadcast", "-e", "1M"].map(str::to_owned).to_vec(),
        started_at: "2026-11-22T08:30:00.123Z".to_owned(),
        ended_at: Some("2026-11-22T08:30:05.000Z".to_owned()),
        outcome: RunOutcome::Complete,
        provenance: sample_provenance(),
        settings: sample_settings(),
        ranks: (0..2).map(sample_rank).collect(),
        start_phases: vec![StartPhase {
            phase: Phase::Connection,
            median_s: 1.25,
            longest_s: 1.5,
            slowest_rank: 1,
        }],
        measurements: sample_measurements(),
        notes: vec!["the largest size was 2M: reduced to what memory allows".to_owned()],
        left_out: None,
    }
}

fn sample_provenance() -> Provenance {
    Provenance {
        backend: "nccl".to_owned(),
        library_version: "2.28.9".to_owned(),
        library_path: "/usr/lib/x86_64-linux-gnu/libnccl.so.2".to_owned(),
        cuda_driver: Some("13.0".to_owned()),
        versus: Some(BackendLibrary {
            backend: "mpi".to_owned(),
            library_version: "Open MPI 4.1.4".to_owned(),
            library_path: "/usr/lib/x86_64-linux-gnu/libmpi.so.40".to_owned(),
        }),
        transport: Some("nvlink".to_owned()),
        world: "mpirun (Open MPI), 2 processes".to_owned(),
        system: "Linux 6.8.0 x86_64".to_owned(),
        links: Some(HostLinks {
            gpus: vec![GpuLinks { pci: "0000:18:00.0".to_owned(), nvlinks: Some(18), pcie_gbps: Some(63.0) }],
            nics: vec![NicLink { name: "mlx5_0".to_owned(), gbits: Some(400.0), rdma: true, up: Some(true) }],
        }),
        environment: [("NCCL_ALGO".to_owned(), "ring".to_owned())].into(),
    }
}

fn sample_settings() -> Settings {
    Settings {
        threads: 1,
        gpus: 1,
        max_bytes: 1 << 20,
        step_bytes: Some(1024),
        warm_up: 5,
        cycles: 2,
        stream_checks: Some(200),
        per_iteration: true,
        per_iteration_skip: 1,
        cpu_time: true,
        cta_policy: Some(1),
        rounds: Some(2),
        until_stable: Some(0.01),
        budget_seconds: Some(2.5),
        pairs: Some(PairSettings {
            test: "bw".to_owned(),
            messages: Some(Messages::Tagged),
            window: Some(64),
            both_ways: false,
            until: Some(Until::Arrived),
            inject_bytes: Some(128),
            direct: Some(true),
            completion: Completion::Poll,
            pause_ns: 2000,
            endpoints: 2,
            shared_domain: false,
        }),
        ..Settings::of_collectives()
    }
}

fn sample_measurements() -> Vec<Measurement> {
    let measurement = sample_measurement("allreduce", Placement::OutOfPlace, 1 << 20, 12.5);
    vec![
        measurement.clone(),
        Measurement {
            placement: Placement::InPlace,
            wrong: Some(3),
            mismatches: vec![RankMismatch {
                rank: 1,
                wrong: 3,
                first: "element 3: expected 1.5 (0x3fc00000), found NaN (0x7fc00000)".to_owned(),
            }],
            versus: measurement.versus.clone().map(|versus| Versus {
                wrong: Some(1),
                mismatches: vec![RankMismatch {
                    rank: 0,
                    wrong: 1,
                    first: "element 0: expected 1.0 (0x3f800000), found 0.0 (0x00000000)".to_owned(),
                }],
                ..versus
            }),
            ..measurement.clone()
        },
        Measurement {
            collective: "broadcast".to_owned(),
            group: Some(1),
            pair: Some([0, 1]),
            cycle: 1,
            op: None,
            root: Some(1),
            ..measurement
        },
        Measurement {
            collective: "allgather".to_owned(),
            op: None,
            cpu_time_us: None,
            wrong: None,
            statistics: None,
            per_iteration: None,
            per_rank: Vec::new(),
            algorithm: None,
            rounds_us: Vec::new(),
            stable: None,
            versus: None,
            ..self::sample_measurement("allgather", Placement::OutOfPlace, 8, 3.25)
        },
    ]
}

fn sample_rank(rank: usize) -> Rank {
    Rank {
        rank,
        job_rank: Some(2 * rank + 1),
        group: 0,
        pid: 4000 + u32::try_from(rank).unwrap(),
        host: "node-1".to_owned(),
        device: Some(rank),
        pci: Some(format!("0000:{rank:02}:00")),
        device_name: "NVIDIA H200".to_owned(),
        processors: Some("0-3".to_owned()),
        numa_nodes: Some("0".to_owned()),
        domains: vec!["mlx5_0".to_owned()],
        addresses: vec!["fi_addr_ib://1".to_owned()],
    }
}

/// A float allreduce of two ranks with everything that can be known.
pub fn sample_measurement(collective: &str, placement: Placement, bytes: u64, time_us: f64) -> Measurement {
    let times_us = [9.0, 1.0, 1.25, 1.0].map(|share| share * time_us).to_vec();
    let statistics = Statistics::from_times(&times_us[1..]);
    let bandwidth = bytes as f64 / time_us / 1e3;
    Measurement {
        collective: collective.to_owned(),
        group: None,
        pair: None,
        cycle: 0,
        data_type: "float".to_owned(),
        op: Some("sum".to_owned()),
        root: None,
        placement,
        bytes,
        count: bytes / 4,
        time_us,
        cpu_time_us: Some(time_us / 4.0),
        algbw_gbps: bandwidth,
        busbw_gbps: bandwidth,
        wrong: Some(0),
        operations: 40,
        rounds_us: vec![time_us, time_us],
        stable: Some(false),
        versus: Some(Versus {
            time_us: time_us * 2.0,
            algbw_gbps: bandwidth / 2.0,
            busbw_gbps: bandwidth / 2.0,
            rounds_us: vec![time_us * 2.5, time_us * 1.5],
            wrong: Some(0),
            mismatches: Vec::new(),
            ratio: 0.5,
            best_ratio: 1.0 / 1.5,
        }),
        statistics,
        per_iteration: Some(PerIteration {
            skipped: 1,
            times_us: times_us.clone(),
            processes_us: vec![times_us; 2],
        }),
        per_rank: vec![RankTimes { time_us, statistics }; 2],
        algorithm: Some(Algorithm {
            algorithm: "ring".to_owned(),
            protocol: Some("ll128".to_owned()),
            channels: Some(16),
        }),
        mismatches: Vec::new(),
        measured_at: "2026-11-22T08:30:01.500Z".to_owned(),
    }
}
