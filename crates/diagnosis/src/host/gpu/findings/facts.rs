//! Proof and tables of GPUs.

use super::super::super::counters;
use super::super::{Access, Gpu, Gpus};
use super::FAULTS;
use crate::examination::{Body, Cell, Grade, Matrix, Section};
use crate::words::{counted, or_dash, size_text};

/// Returns statements about visibly working GPUs, or none if a GPU could not be read.
pub(crate) fn prove_gpus(gpus: &Gpus) -> Vec<String> {
    let devices = &gpus.devices;
    if devices.is_empty() || !gpus.lost.is_empty() || gpus.problem.is_some() {
        return Vec::new();
    }
    let mut seen = Vec::new();
    let all = |good: &dyn Fn(&Gpu) -> bool| devices.iter().all(good);
    if all(&|gpu| gpu.ecc.uncorrected == Some(0)) {
        seen.push("no uncorrected ECC errors".to_owned());
    }
    if all(&|gpu| !gpu.slowed.iter().any(|reason| FAULTS.contains(&reason.as_str())))
        && all(&|gpu| gpu.clock.is_some())
    {
        seen.push("no throttling".to_owned());
    }
    if all(&|gpu| gpu.recovery == Some(0)) {
        seen.push("no recovery asked for".to_owned());
    }
    let pairs = devices.len() * (devices.len() - 1);
    let works = |access: Access| access == Access::Supported;
    let accessible = gpus.peers.iter().flatten().filter(|peer| works(peer.read) && works(peer.write)).count();
    if pairs > 0 && accessible == pairs {
        seen.push(format!("peer-to-peer access between all {pairs} pairs"));
    }
    let (active, links) = gpus.count_links();
    if active > 0 && all(&|gpu| gpu.links_refused.is_none()) {
        seen.push(format!("{active} of {links} NVLinks up"));
    }
    let watched = gpus.counters.iter().filter(|counter| counter.growth.is_some()).count();
    if watched > 0 && !gpus.counters.iter().any(super::super::Counter::has_grown) {
        seen.push(format!("{} of NVLinks did not grow", counted(watched, "error counter")));
    }
    if seen.is_empty() {
        Vec::new()
    } else {
        vec![format!("{}: {}", gpus.describe_models(), seen.join(", "))]
    }
}

/// Returns tables of GPUs, and the matrix of access among them.
pub(crate) fn gpu_sections(gpus: &Gpus) -> Vec<Section> {
    if gpus.devices.is_empty() {
        return Vec::new();
    }
    let columns = [
        "GPU",
        "name",
        "PCI",
        "PCIe",
        "memory",
        "ECC errors",
        "remapped rows",
        "clock",
        "slowed by",
        "C",
        "W",
        "NVLink",
        "recovery",
        "processes",
    ];
    let mut sections = vec![Section {
        title: "GPUs".to_owned(),
        body: Body::Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: gpus.devices.iter().map(gpu_row).collect(),
        },
    }];
    if gpus.devices.len() > 1 {
        sections.push(Section {
            title: "Peer-to-peer access".to_owned(),
            body: Body::Matrix(access_matrix(gpus)),
        });
    }
    sections.extend(counters::counter_table("Error counters of NVLinks", "link", &gpus.counters));
    sections
}

fn gpu_row(gpu: &Gpu) -> Vec<String> {
    let pcie = &gpu.pcie;
    let rows = gpu.rows.as_ref().map(|rows| {
        let state = if rows.failed {
            " failed"
        } else if rows.pending {
            " pending"
        } else {
            ""
        };
        format!("{}{state}", u64::from(rows.corrected) + u64::from(rows.uncorrected))
    });
    let links = if gpu.links.is_empty() {
        "-".to_owned()
    } else {
        format!("{}/{}", gpu.active_links(), gpu.links.len())
    };
    let slowed = if gpu.slowed.is_empty() { "-".to_owned() } else { gpu.slowed.join(", ") };
    let recovery = gpu.recovery.map(|action| match action {
        0 => "none".to_owned(),
        1 => "reset".to_owned(),
        2 => "reboot".to_owned(),
        3 => "drain P2P".to_owned(),
        4 => "drain and reset".to_owned(),
        other => other.to_string(),
    });
    let of = |now: Option<u32>, most: Option<u32>| match (now, most) {
        (Some(now), Some(most)) if now != most => format!("{now} of {most}"),
        (now, _) => or_dash(now),
    };
    vec![
        gpu.index.to_string(),
        gpu.name.clone(),
        or_dash(gpu.pci.as_ref()),
        format!("gen {} x{}", of(pcie.generation, pcie.max_generation), of(pcie.width, pcie.max_width)),
        or_dash(gpu.memory.map(size_text)),
        match gpu.ecc.enabled {
            Some(false) => "off".to_owned(),
            _ => {
                format!("{} ({} in all)", or_dash(gpu.ecc.uncorrected), or_dash(gpu.ecc.lifetime_uncorrected))
            }
        },
        or_dash(rows),
        of(gpu.clock, gpu.max_clock),
        slowed,
        or_dash(gpu.temperature),
        or_dash(gpu.power.map(|power| power / 1000)),
        links,
        or_dash(recovery),
        gpu.processes.len().to_string(),
    ]
}

fn access_matrix(gpus: &Gpus) -> Matrix {
    let cell = |(from, to): (usize, usize)| {
        let peer = gpus.peers.get(from).and_then(|row| row.get(to)).cloned().unwrap_or_default();
        let (text, grade) = if from == to {
            ("X", Grade::None)
        } else if peer.nvlink == Access::Supported {
            ("NVL", Grade::Fastest)
        } else {
            match peer.read {
                Access::Supported => ("OK", Grade::Fast),
                Access::Unknown => ("", Grade::None),
                other => (other.code(), Grade::Staged),
            }
        };
        Cell { text: text.to_owned(), grade }
    };
    let count = gpus.devices.len();
    let legend = [
        ("X", "the GPU itself"),
        ("NVL", "over NVLink"),
        ("OK", "over PCIe"),
        ("CNS", "chipset not supported"),
        ("GNS", "GPU not supported"),
        ("TNS", "topology not supported"),
        ("DR", "disabled by a setting of the driver"),
        ("NS", "not supported"),
    ];
    Matrix {
        labels: gpus.devices.iter().map(|gpu| format!("GPU{}", gpu.index)).collect(),
        cells: (0..count).map(|from| (0..count).map(|to| cell((from, to))).collect()).collect(),
        legend: legend.map(|(text, meaning)| (text.to_owned(), meaning.to_owned())).to_vec(),
    }
}
