//! Table of the system's facts.

use super::System;
use crate::examination::{Body, Section};
use crate::words::{or_dash, size_text};

/// Returns the table of the facts.
pub(crate) fn system_section(system: &System) -> Section {
    let limits = &system.limits;
    let or_unlimited = |value: Option<u64>, text: &dyn Fn(u64) -> String| match value {
        _ if !limits.known => "-".to_owned(),
        None => "unlimited".to_owned(),
        Some(value) => text(value),
    };
    let plain = |value: u64| value.to_string();
    let modes: Vec<String> =
        system.iommu.modes.iter().map(|(mode, count)| format!("{count} {mode}")).collect();
    let facts = [
        ("host", system.name.clone()),
        (
            "machine",
            [system.vendor.as_deref(), system.product.as_deref()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" "),
        ),
        ("virtual machine", or_dash(system.virtual_machine.map(|is| if is { "yes" } else { "no" }))),
        ("container", or_dash(system.container.as_ref())),
        ("kernel", or_dash(system.kernel.as_ref())),
        ("processors", format!("{} of {}", or_dash(system.allowed_processors), or_dash(system.processors))),
        ("NUMA nodes", system.numa_nodes.to_string()),
        (
            "memory",
            format!(
                "{} available of {}",
                or_dash(system.available.map(size_text)),
                or_dash(system.memory.map(size_text))
            ),
        ),
        (
            "NVIDIA driver",
            match &system.driver.version {
                Some(version) => format!(
                    "{version} ({} kernel module)",
                    if system.driver.open { "open" } else { "proprietary" }
                ),
                None => "-".to_owned(),
            },
        ),
        (
            "nvidia_peermem, gdrdrv",
            format!("{}, {}", loaded_text(system.driver.peermem), loaded_text(system.driver.gdrdrv)),
        ),
        ("locked memory", or_unlimited(limits.locked_memory, &size_text)),
        ("stack", or_unlimited(limits.stack, &size_text)),
        ("open files", or_unlimited(limits.open_files, &plain)),
        ("processes", or_unlimited(limits.processes, &plain)),
        (
            "/dev/shm",
            format!(
                "{} free of {}",
                or_dash(system.shm.free.map(size_text)),
                or_dash(system.shm.size.map(size_text))
            ),
        ),
        (
            "huge pages",
            or_dash(
                system
                    .huge_pages
                    .map(|(total, free, size)| format!("{free} free of {total}, {} each", size_text(size))),
            ),
        ),
        ("memory of the control group", or_dash(system.group.memory.map(size_text))),
        ("IOMMU", if modes.is_empty() { "-".to_owned() } else { modes.join(", ") }),
    ];
    let facts = facts.into_iter().filter(|(_, value)| !value.is_empty() && value != "-");
    Section {
        title: "System".to_owned(),
        body: Body::Facts(facts.map(|(name, value)| (name.to_owned(), value)).collect()),
    }
}

fn loaded_text(is: bool) -> &'static str {
    if is { "loaded" } else { "not loaded" }
}
