//! Records for the tests of reports.

use crate::run::{
    Average, Blocking, Measurement, Outcome, Placement, Provenance, Rank, Registration, Run, SCHEMA_VERSION,
    Settings,
};

/// Two processes with two ranks each that measured nothing.
pub fn run() -> Run {
    let rank = |rank: usize, pid: u32, host: &str| Rank {
        rank,
        group: 0,
        pid,
        host: host.to_owned(),
        device: Some(rank % 2),
        pci: Some(format!("0000:{:02x}:00", 0x18 + rank % 2)),
        device_name: "NVIDIA H200".to_owned(),
    };
    Run {
        schema_version: SCHEMA_VERSION,
        program: "nccl-bench 1.2.3".to_owned(),
        command: vec!["nccl-bench".to_owned(), "allreduce".to_owned()],
        started_at: "2026-11-20T14:57:55.250Z".to_owned(),
        ended_at: Some("2026-11-20T14:58:11.750Z".to_owned()),
        outcome: Outcome::Complete,
        provenance: Provenance {
            backend: "nccl".to_owned(),
            library_version: "2.28.9".to_owned(),
            library_path: "/usr/lib/libnccl.so.2".to_owned(),
            cuda_driver: Some("13.0".to_owned()),
            versus: None,
            transport: None,
            world: "mpirun (Open MPI), 2 processes".to_owned(),
            system: "Linux 6.8.0 x86_64".to_owned(),
            environment: [("NCCL_DEBUG".to_owned(), "WARN".to_owned())].into(),
        },
        settings: Settings {
            threads: 1,
            gpus: 2,
            min_bytes: 8,
            max_bytes: 16,
            step_factor: Some(2),
            step_bytes: None,
            iterations: 20,
            aggregated: 1,
            warm_up: 1,
            cycles: 1,
            checks: 1,
            stream_checks: None,
            average: Average::Mean,
            blocking: Blocking::No,
            graph_launches: 0,
            registration: Registration::None,
            unaligned: 0,
            per_iteration: false,
            per_iteration_skip: 0,
            parallel_init: false,
            cpu_time: false,
            time_stamps: false,
            cta_policy: None,
            default_stream: false,
            until_stable: None,
            budget_seconds: None,
            rounds: None,
        },
        ranks: vec![
            rank(0, 11, "node01"),
            rank(1, 11, "node01"),
            rank(2, 22, "node02"),
            rank(3, 22, "node02"),
        ],
        measurements: Vec::new(),
        notes: Vec::new(),
    }
}

/// A measurement without optional parts: 10 us, 1024 bytes.
pub fn measurement(collective: &str, placement: Placement) -> Measurement {
    Measurement {
        collective: collective.to_owned(),
        cycle: 0,
        data_type: "float".to_owned(),
        op: None,
        root: None,
        placement,
        bytes: 1024,
        count: 256,
        time_us: 10.0,
        cpu_time_us: None,
        algbw_gbps: 50.0,
        busbw_gbps: 75.0,
        wrong: Some(0),
        operations: 20,
        rounds_us: Vec::new(),
        stable: None,
        versus: None,
        statistics: None,
        per_iteration: None,
        per_rank: Vec::new(),
        algorithm: None,
        mismatches: Vec::new(),
        measured_at: "2026-11-20T14:58:00.000Z".to_owned(),
    }
}
