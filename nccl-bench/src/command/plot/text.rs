//! Texts of a plot: numbers with units, facts of a run, and the width of a text.

use record::{Run, RunOutcome};

/// Font size of a chart's text, in the pixels of its SVG and as in its style sheet.
const FONT_SIZE: f64 = 13.0;

/// Returns the state of an incomplete run, in short and as a predicate; `None` for a complete one.
pub(super) fn describe_unfinished(outcome: &RunOutcome) -> Option<(&'static str, String)> {
    match outcome {
        RunOutcome::Complete => None,
        RunOutcome::Running => {
            Some(("not finished", "had not ended when its file was written, or was killed".to_owned()))
        }
        RunOutcome::Interrupted { signal } => Some(("interrupted", format!("was interrupted by {signal}"))),
        RunOutcome::Failed { message } => Some(("failed", format!("failed: {message}"))),
    }
}

/// Returns the hosts, each once, in the order of ranks.
pub(super) fn host_names(run: &Run) -> Vec<&str> {
    let mut hosts: Vec<&str> = Vec::new();
    for rank in &run.ranks {
        if !hosts.contains(&rank.host.as_str()) {
            hosts.push(&rank.host);
        }
    }
    hosts
}

/// Returns a number with its noun: `1 rank`, `2 ranks`.
pub(super) fn count_text(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Returns the name of the library that carried the data: `NCCL`.
pub(super) fn library_name(run: &Run) -> &str {
    match run.provenance.backend.as_str() {
        "nccl" => "NCCL",
        "fabric" => "libfabric",
        "mpi" => "MPI",
        other => other,
    }
}

/// Returns the library with its version: `NCCL 2.28.9`. An MPI's version includes its name: `Open MPI 4.1.4`.
pub(super) fn library_text(run: &Run) -> String {
    let version = &run.provenance.library_version;
    if run.provenance.backend == "mpi" { version.clone() } else { format!("{} {version}", library_name(run)) }
}

/// Returns the devices and hosts of a run: `8 x NVIDIA H200 on 1 host`, `4 ranks in host memory on 2 hosts`.
pub(super) fn machine_text(run: &Run) -> String {
    let what = if run.ranks.iter().all(|rank| rank.device.is_none()) {
        format!("{} in host memory", count_text(run.ranks.len(), "rank"))
    } else {
        run.devices_text()
    };
    format!("{what} on {}", count_text(host_names(run).len(), "host"))
}

/// Returns a size for tables and tooltips, with its exact bytes.
pub(super) fn exact_size(size: u64) -> String {
    let text = size_text(size);
    if text == format!("{size} B") { text } else { format!("{text} ({size} B)") }
}

/// Returns a time in microseconds or a bandwidth in GB/s, for tables and tooltips.
pub(super) fn value_text(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => if value.is_nan() { "NaN" } else { "inf" }.to_owned(),
        0.0 => "0".to_owned(),
        large if large >= 1e7 => format!("{value:.4e}"),
        large if large >= 1e4 => format!("{value:.1}"),
        usual if usual >= 0.1 => format!("{value:.2}"),
        small if small >= 1e-3 => {
            let decimals = 2 - small.log10().floor() as i32;
            format!("{value:.*}", decimals.max(2) as usize)
        }
        _ => format!("{value:.2e}"),
    }
}

/// Returns a text without its middle if it is too long: names of files differ at their ends.
pub(super) fn shorten_middle(text: &str, longest: usize) -> String {
    let count = text.chars().count();
    if count <= longest {
        return text.to_owned();
    }
    let half = (longest - 1) / 2;
    let start: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{start}…{end}")
}

/// Returns a size in binary units: `8 B`, `64 KiB`, `1.5 GiB`; in bytes if two decimals do not hold it.
pub(super) fn size_text(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = UNITS.iter().enumerate().rev().find(|(index, _)| size >> (10 * (index + 1)) > 0);
    let Some((index, unit)) = unit else { return format!("{size} B") };
    let factor = 1u64 << (10 * (index + 1));
    let exact = (u128::from(size) * 100).is_multiple_of(u128::from(factor));
    if exact { format!("{} {unit}", size as f64 / factor as f64) } else { format!("{size} B") }
}

/// Estimates the width of a text from above, in pixels. The font is unknown, so a wide one is assumed.
pub(super) fn estimate_width(text: &str) -> f64 {
    let share = |character: char| match character {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' => 0.34,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.0,
        'A'..='Z' => 0.75,
        _ if character < '\u{1100}' => 0.64,
        _ => 1.1,
    };
    text.chars().map(share).sum::<f64>() * FONT_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_at_least_and_no_noise() {
        for (value, text) in [
            (12.94, "12.94"),
            (40_982.5, "40982.5"),
            (0.0006, "6.00e-4"),
            (0.0066, "0.00660"),
            (0.05, "0.0500"),
            (0.0, "0"),
            (366.8, "366.80"),
            (1e-9, "1.00e-9"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(value_text(value), text);
        }
    }

    #[test]
    fn long_labels_keep_their_ends() {
        assert_eq!(shorten_middle("short", 9), "short");
        assert_eq!(shorten_middle("0123456789", 9), "0123…6789");
        assert_eq!(shorten_middle("ééééüüüüüü", 5), "éé…üü");
    }

    #[test]
    fn sizes_are_exact() {
        for (size, text) in [
            (8, "8 B"),
            (1023, "1023 B"),
            (1036, "1036 B"),
            (1536, "1.5 KiB"),
            (5 << 28, "1.25 GiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) + 4, "1048580 B"),
            (8 << 30, "8 GiB"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(size_text(size), text);
        }
    }
}
