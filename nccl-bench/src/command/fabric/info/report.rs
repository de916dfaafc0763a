//! The answer as text.

use std::collections::BTreeSet;
use std::io::{self, Write};

use collectives::fabric::{Hints, Info, Nic};

use super::{Answer, fold, reasons};

/// Maximum number of names in a list; the others are counted.
const NAMED: usize = 3;

/// Prints the matching entries, as a table or with all attributes, or the reasons for an empty result.
pub(super) fn print_entries(answer: &Answer, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    let entries = answer.entries.as_deref().unwrap_or_default();
    let providers = reasons::provider_names(entries).len();
    print_head(answer, out)?;
    if entries.is_empty() {
        writeln!(out, "\nNothing matches {}.", flags_text(&answer.asked))?;
        return print_reasons(answer, out);
    }
    let plural = if providers == 1 { "provider" } else { "providers" };
    writeln!(out, "{} entries of {providers} {plural}", entries.len())?;
    if verbose {
        print_attributes(entries, out)?;
    } else {
        writeln!(out)?;
        print_table(entries, out)?;
    }
    Ok(())
}

pub(super) fn print_providers(answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    print_head(answer, out)?;
    writeln!(out)?;
    let mut lines = vec![["provider", "version", "entries here"].map(str::to_owned).to_vec()];
    lines.extend(answer.providers.iter().map(|provider| {
        let entries = if provider.entries == 0 { "-".to_owned() } else { provider.entries.to_string() };
        vec![provider.name.clone(), provider.version.clone(), entries]
    }));
    print_aligned(&lines, out)
}

fn print_head(answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    let library = &answer.libfabric;
    writeln!(out, "libfabric {} ({}) on {}", library.version, library.path, answer.host)?;
    if !answer.devices.is_empty() {
        writeln!(out, "{}", reasons::describe_devices(&answer.devices.iter().collect::<Vec<_>>()))?;
    }
    Ok(())
}

fn flags_text(hints: &Hints) -> String {
    let mut flags = Vec::new();
    let mut flag = |name: &str, value: Option<&str>| {
        flags.extend(value.map(|value| {
            let quote = if value.contains([';', ' ', '|', '&']) { "'" } else { "" };
            format!("{name} {quote}{value}{quote}")
        }));
    };
    let capabilities: Vec<&str> = hints.capabilities.iter().map(|capability| capability.name()).collect();
    let capabilities = capabilities.join(",");
    flag("-p", hints.provider.as_deref());
    flag("-t", hints.endpoint.map(|kind| kind.name()));
    flag("-c", Some(capabilities.as_str()).filter(|names| !names.is_empty()));
    flag("-d", hints.domain.as_deref());
    flag("-f", hints.fabric.as_deref());
    flag("-n", hints.node.as_deref());
    flag("-s", hints.service.as_deref());
    if flags.is_empty() { "at all".to_owned() } else { flags.join(" ") }
}

fn print_reasons(answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    for reason in &answer.reasons {
        writeln!(out, "- {}", reason.text)?;
        if let Some(advice) = &reason.advice {
            writeln!(out, "  -> {advice}")?;
        }
    }
    Ok(())
}

fn print_table(entries: &[Info], out: &mut impl Write) -> io::Result<()> {
    let rows = fold::fold_entries(entries);
    let links = rows.iter().any(|row| row.link.is_some());
    let mut lines = vec![
        ["provider", "domain", "endpoint", "capabilities", "link", "fabric"].map(str::to_owned).to_vec(),
    ];
    lines.extend(rows.into_iter().map(|row| {
        vec![
            row.provider,
            first_names(&row.domains),
            row.endpoints.join(" "),
            row.capabilities.join(" "),
            row.link.unwrap_or_else(|| "-".to_owned()),
            first_names(&row.fabrics),
        ]
    }));
    if !links {
        lines.iter_mut().for_each(|line| drop(line.remove(4)));
    }
    print_aligned(&lines, out)
}

/// Returns the first names, and the number of remaining ones.
fn first_names(names: &[String]) -> String {
    match names.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {} more", names[..NAMED - 1].join(", "), more + 1),
    }
}

/// Pads columns to their longest cell, without blanks at the end of a line.
fn print_aligned(lines: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Prints all attributes of each entry; equal entries are printed once.
fn print_attributes(entries: &[Info], out: &mut impl Write) -> io::Result<()> {
    let mut distinct: Vec<(&Info, usize)> = Vec::new();
    for entry in entries {
        match distinct.iter_mut().find(|(other, _)| *other == entry) {
            Some((_, times)) => *times += 1,
            None => distinct.push((entry, 1)),
        }
    }
    for (entry, times) in distinct {
        let repeated = if times == 1 { String::new() } else { format!(" ({times} times)") };
        writeln!(out, "\n{} {}{repeated}", entry.provider, entry.provider_version)?;
        let mut lines: Vec<(&str, String)> = vec![
            ("fabric", entry.fabric.clone()),
            ("domain", entry.domain.clone()),
            (
                "endpoint",
                format!("{}, {} version {}", entry.endpoint, entry.protocol, entry.protocol_version),
            ),
            (
                "address",
                entry.address.iter().chain([&entry.address_format]).cloned().collect::<Vec<_>>().join(", "),
            ),
            ("capabilities", join_names(&entry.capabilities)),
            ("modes needed", join_names(&entry.mode)),
            ("registration", join_names(&entry.mr_mode)),
            ("threading", entry.threading.clone()),
            ("progress", format!("control {}, data {}", entry.control_progress, entry.data_progress)),
            ("address vector", entry.address_vector.clone()),
            ("message order", join_names(&entry.message_order)),
            ("message", format!("up to {}", bytes_text(entry.max_message_bytes))),
            ("inject", format!("up to {}", bytes_text(entry.inject_bytes))),
            ("queues", format!("{} sends, {} receives", entry.transmit_size, entry.receive_size)),
            (
                "segments",
                format!(
                    "{} of a send, {} of a receive, {} remote",
                    entry.transmit_segments, entry.receive_segments, entry.rma_segments
                ),
            ),
            ("completion data", bytes_text(entry.completion_data_bytes)),
            ("key", bytes_text(entry.key_bytes)),
            (
                "of a domain",
                format!(
                    "{} endpoints, {} completion queues",
                    entry.max_endpoints, entry.max_completion_queues
                ),
            ),
        ];
        lines.extend(entry.nic.iter().flat_map(device_lines));
        let lines: Vec<Vec<String>> =
            lines.into_iter().map(|(name, value)| vec![format!("  {name}"), value]).collect();
        print_aligned(&lines, out)?;
    }
    Ok(())
}

fn join_names(set: &BTreeSet<String>) -> String {
    if set.is_empty() { "none".to_owned() } else { set.iter().cloned().collect::<Vec<_>>().join(" ") }
}

fn bytes_text(count: usize) -> String {
    if count == usize::MAX { "any length".to_owned() } else { format!("{count} bytes") }
}

fn device_lines(nic: &Nic) -> Vec<(&'static str, String)> {
    let listed = |parts: &[(&str, &Option<String>)]| {
        let known = parts.iter().filter_map(|(name, value)| Some(format!("{name}{}", value.as_ref()?)));
        known.collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![(
        "device",
        listed(&[
            ("", &nic.device),
            ("driver ", &nic.driver),
            ("vendor ", &nic.vendor_id),
            ("model ", &nic.device_id),
            ("version ", &nic.device_version),
            ("firmware ", &nic.firmware),
            ("PCI ", &nic.pci),
        ]),
    )];
    if let Some(link) = &nic.link {
        let mut parts = vec![fold::link_text(link)];
        if link.mtu_bytes > 0 {
            parts.push(format!("MTU {} bytes", link.mtu_bytes));
        }
        parts.extend(link.network.iter().cloned());
        parts.extend(link.address.iter().cloned());
        lines.push(("link", parts.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests;
