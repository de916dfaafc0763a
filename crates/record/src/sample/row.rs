//! Records for the tests of reports.

use crate::run::{Measurement, Placement, Provenance, Rank, Run};
use crate::settings::Settings;

/// Two processes with two ranks each, and no measurement.
pub fn bare_run() -> Run {
    let full = super::full_run();
    let rank = |rank: usize, pid: u32, host: &str| Rank {
        device: Some(rank % 2),
        pci: Some(format!("0000:{:02x}:00", 0x18 + rank % 2)),
        host: host.to_owned(),
        pid,
        job_rank: None,
        domains: Vec::new(),
        addresses: Vec::new(),
        ..super::sample_rank(rank)
    };
    Run {
        program: "nccl-bench 1.2.3".to_owned(),
        command: vec!["nccl-bench".to_owned(), "allreduce".to_owned()],
        started_at: "2026-11-20T14:57:55.250Z".to_owned(),
        ended_at: Some("2026-11-20T14:58:11.750Z".to_owned()),
        provenance: Provenance {
            library_path: "/usr/lib/libnccl.so.2".to_owned(),
            versus: None,
            transport: None,
            environment: [("NCCL_DEBUG".to_owned(), "WARN".to_owned())].into(),
            ..full.provenance
        },
        settings: Settings {
            gpus: 2,
            max_bytes: 16,
            step_bytes: None,
            warm_up: 1,
            cycles: 1,
            stream_checks: None,
            per_iteration: false,
            per_iteration_skip: 0,
            cpu_time: false,
            cta_policy: None,
            rounds: None,
            until_stable: None,
            budget_seconds: None,
            pairs: None,
            ..full.settings
        },
        ranks: vec![
            rank(0, 11, "node01"),
            rank(1, 11, "node01"),
            rank(2, 22, "node02"),
            rank(3, 22, "node02"),
        ],
        measurements: Vec::new(),
        notes: Vec::new(),
        left_out: None,
        ..full
    }
}

/// A measurement without optional parts: 10 us, 1024 bytes.
pub fn bare_measurement(collective: &str, placement: Placement) -> Measurement {
    Measurement {
        op: None,
        cpu_time_us: None,
        algbw_gbps: 50.0,
        busbw_gbps: 75.0,
        operations: 20,
        rounds_us: Vec::new(),
        stable: None,
        versus: None,
        statistics: None,
        per_iteration: None,
        per_rank: Vec::new(),
        algorithm: None,
        measured_at: "2026-11-20T14:58:00.000Z".to_owned(),
        ..super::sample_measurement(collective, placement, 1024, 10.0)
    }
}
