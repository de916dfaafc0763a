//! Lines of nccl-tests and rccl-tests above and below their table.

use super::table::Columns;
use crate::run::{Placement, Rank};
use crate::settings::{Blocking, Settings};

/// A line that is not a row.
#[derive(Debug, PartialEq)]
pub(super) enum HeadLine<'a> {
    /// Program, its version, and the number of the library's version if it is known.
    Program { name: &'static str, version: &'a str, library: Option<u64> },
    /// Version of the program, in the middle of the head (older rccl-tests).
    ProgramVersion { name: &'static str, version: &'a str },
    /// Backend and version of its library (nccl-bench).
    Backend { name: &'a str, version: &'a str },
    /// Name of the test program.
    Start(&'a str),
    /// Settings, as far as the line has them, and true if it has the unalignment (since 2.18).
    Settings { settings: Box<Settings>, has_unaligned: bool },
    /// Beginning of the list of devices.
    DeviceList,
    /// A device; `None` when the line is damaged.
    Device(Option<Box<Rank>>),
    /// Largest size after the limit of the memory.
    ReducedBytes(u64),
    /// Blocking mode.
    Blocking(Blocking),
    /// Initialisation by several threads.
    ParallelInit,
    /// Times of single iterations; the number of skipped ones.
    PerIteration(usize),
    /// Placements of the table, above its columns.
    Placements(Vec<Placement>),
    /// Columns of the table.
    Columns(Columns),
    /// Result of the verification: true without wrong values.
    OutOfBounds(bool),
    /// Mean of all bus bandwidths, and true if the program calls it too low.
    Average { busbw: f64, is_too_low: bool },
    /// The last line.
    End,
    /// Version of NCCL or RCCL, printed by the library.
    LibraryVersion { is_rccl: bool, version: &'a str },
    /// An error of the program.
    Failure(&'a str),
}

/// Recognizes a line. `None` for rows and for lines of other programs.
pub(super) fn read_head_line(line: &str) -> Option<HeadLine<'_>> {
    if let Some(found) = read_version(line).or_else(|| read_failure(line)) {
        return Some(found);
    }
    if let Some(version) = line.strip_prefix("rccl-tests: Version ") {
        return Some(HeadLine::ProgramVersion { name: "rccl-tests", version: version.trim() });
    }
    // The first releases of nccl-tests have no # before their results, and a page of Markdown can lack it.
    let comment = line.strip_prefix('#');
    let text = comment.unwrap_or(line).trim();
    let after = |start: &str| text.strip_prefix(start).map(str::trim);
    if let Some(name) = after("Collective test starting:") {
        return Some(HeadLine::Start(name));
    }
    if after("Collective test concluded:").is_some() {
        return Some(HeadLine::End);
    }
    if let Some((name, rest)) = after("Backend: ").and_then(|rest| rest.split_once(' ')) {
        let version = rest.split_once(" from ").map_or(rest, |(version, _)| version);
        return Some(HeadLine::Backend { name, version });
    }
    if text.starts_with("nThread") {
        let settings = Box::new(read_settings(text)?);
        return Some(HeadLine::Settings { settings, has_unaligned: text.contains(" unalign:") });
    }
    if text == "Using devices" {
        return Some(HeadLine::DeviceList);
    }
    if let Some(device) = after("Rank ") {
        let device = read_device(device).map(Box::new);
        return (comment.is_some() || device.is_some()).then_some(HeadLine::Device(device));
    }
    if let Some(rest) = after("Reducing maxBytes to ") {
        return first_number(rest).map(HeadLine::ReducedBytes);
    }
    if let Some(mode) = after("Blocking Enabled:") {
        return Some(HeadLine::Blocking(read_blocking(mode)));
    }
    if text.starts_with("Parallel Init Enabled") {
        return Some(HeadLine::ParallelInit);
    }
    if let Some(rest) = after("Per-Iteration Report") {
        let skipped = rest.split_once("skips first ").and_then(|(_, rest)| first_number(rest));
        return Some(HeadLine::PerIteration(usize::try_from(skipped.unwrap_or(0)).unwrap_or(0)));
    }
    if text.starts_with("out-of-place") || text.starts_with("in-place") {
        return Some(HeadLine::Placements(read_placements(text)));
    }
    read_program(text)
        .or_else(|| read_foot(text))
        .or_else(|| Columns::from_names(text).map(HeadLine::Columns))
}

/// Reads `nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809`, also of the other programs.
fn read_program(text: &str) -> Option<HeadLine<'_>> {
    let names = ["nccl-tests", "rccl-tests", "nccl-bench"];
    let mut words = text.split_whitespace();
    let first = words.next()?;
    let name = names.into_iter().find(|name| *name == first)?;
    if words.next() != Some("version") {
        return None;
    }
    let version = words.next()?;
    let library = words.find_map(|word| word.split_once("-library=")).and_then(|(_, code)| code.parse().ok());
    Some(HeadLine::Program { name, version, library })
}

/// Reads the version that the library prints: `NCCL version 2.27.3+cuda12.9`, also after the process of a
/// line of `NCCL INFO`, and `RCCL version : 2.22.3-develop:f5b15f2`.
fn read_version(line: &str) -> Option<HeadLine<'_>> {
    let (before, rest) = line.split_once("CCL version ")?;
    let (is_rccl, before) = match (before.strip_suffix('R'), before.strip_suffix('N')) {
        (Some(before), _) => (true, before),
        (None, Some(before)) => (false, before),
        (None, None) => return None,
    };
    // Prefixes are removed first: they name the stream.
    let has_prefix = |before: &str| {
        before.starts_with('[')
            || before.contains('<')
            || before.split(' ').next().is_some_and(|word| word.ends_with(':'))
    };
    if !before.is_empty() && (!before.ends_with("INFO ") || has_prefix(before)) {
        return None;
    }
    let version = rest.trim_start_matches([':', ' ']).split_whitespace().next()?;
    version.starts_with(|letter: char| letter.is_ascii_digit()).then_some(())?;
    Some(HeadLine::LibraryVersion { is_rccl, version: version.split(['+', '-']).next().unwrap_or(version) })
}

/// Recognizes the errors of nccl-tests: `vm: Test NCCL failure common.cu:1278 'unhandled system error'`.
fn read_failure(line: &str) -> Option<HeadLine<'_>> {
    let (before, error) = line.split_once(": Test ")?;
    let kinds = ["NCCL failure ", "CUDA failure ", "HIP failure ", "failure ", "timeout "];
    // Prefixes are removed first: they name the stream.
    let is_failure =
        !before.contains([':', '<', '[', '(']) && kinds.iter().any(|kind| error.starts_with(kind));
    is_failure.then_some(HeadLine::Failure(line))
}

/// Reads the line with the settings. Words that it does not have leave 0.
fn read_settings(text: &str) -> Option<Settings> {
    let mut settings = Settings { aggregated: 1, ..Settings::default() };
    let words: Vec<&str> = text.split_whitespace().map(|word| word.trim_end_matches(':')).collect();
    let mut has_threads = false;
    for (index, &name) in words.iter().enumerate() {
        let Some(&word) = words.get(index + 1) else { break };
        let Some(value) = first_number(word) else { continue };
        let number = || usize::try_from(value).unwrap_or(usize::MAX);
        match name {
            "nThread" => (settings.threads, has_threads) = (number(), true),
            "nGpus" => settings.gpus = number(),
            "minBytes" => settings.min_bytes = value,
            "maxBytes" => settings.max_bytes = value,
            "step" if word.ends_with("(factor)") => settings.step_factor = Some(value),
            "step" if word.ends_with("(bytes)") => settings.step_bytes = Some(value),
            "warmupIters" => settings.warm_up = number(),
            "iters" => match index.checked_sub(1).map(|before| words[before]) {
                Some("warmup") => settings.warm_up = number(),
                Some("agg") => settings.aggregated = number(),
                _ => settings.iterations = number(),
            },
            "validation" => settings.checks = number(),
            "graph" => settings.graph_launches = number(),
            "unalign" => settings.unaligned = number(),
            _ => {}
        }
    }
    has_threads.then_some(settings)
}

/// Reads ` 0 Group  0 Pid   2284 on         vm device  0 [0000:00:06] NVIDIA H200`, the text after `Rank`.
/// Older releases have no group and only the bus of the PCI address, and the first ones no process.
fn read_device(text: &str) -> Option<Rank> {
    let mut words = text.split_whitespace();
    let mut rank = Rank { rank: words.next()?.parse().ok()?, ..Rank::default() };
    let mut word = words.next()?;
    if word == "Group" {
        rank.group = words.next()?.parse().ok()?;
        word = words.next()?;
    }
    if word == "Pid" {
        rank.pid = words.next()?.parse().ok()?;
        word = words.next()?;
    }
    if word != "on" {
        return None;
    }
    rank.host = words.next()?.to_owned();
    let mut rest: Vec<&str> = words.collect();
    if let ["device", ordinal, pci, ..] = rest[..] {
        rank.device = Some(ordinal.parse().ok()?);
        let pci = pci.strip_prefix('[')?.strip_suffix(']')?;
        rank.pci = pci.contains(':').then(|| pci.to_owned());
        rest.drain(..3);
    } else {
        // Ranks of nccl-bench in host memory have processors instead.
        let end = rest.iter().position(|&word| word == "processors" || word == "NUMA");
        rest.truncate(end.filter(|_| rest.starts_with(&["host", "memory"]))?);
    }
    rank.device_name = rest.join(" ");
    // The program cuts a long list.
    let is_whole = !rest.is_empty() && !rank.device_name.ends_with("...");
    is_whole.then_some(rank)
}

fn read_blocking(mode: &str) -> Blocking {
    if mode.contains("outer iteration") {
        Blocking::Outer
    } else if mode.contains("no barrier") {
        Blocking::Wait
    } else {
        Blocking::WaitAndBarrier
    }
}

fn read_placements(text: &str) -> Vec<Placement> {
    let placement = |word| match word {
        "out-of-place" => Some(Placement::OutOfPlace),
        "in-place" => Some(Placement::InPlace),
        _ => None,
    };
    text.split_whitespace().filter_map(placement).collect()
}

/// Reads the results below the table.
fn read_foot(text: &str) -> Option<HeadLine<'_>> {
    let (name, value) = text.split_once(':')?;
    let mut words = value.split_whitespace();
    match name.trim() {
        "Out of bounds values" => match (words.next()?.parse::<u64>().ok()?, words.next()?) {
            (0, "OK") => Some(HeadLine::OutOfBounds(true)),
            (_, "OK" | "FAILED") => Some(HeadLine::OutOfBounds(false)),
            _ => None,
        },
        "Avg bus bandwidth" => {
            let busbw = words.next()?.parse().ok()?;
            Some(HeadLine::Average { busbw, is_too_low: words.next() == Some("FAILED") })
        }
        _ => None,
    }
}

/// Returns the number at the beginning of a text: 2 of `2(factor)`.
fn first_number(text: &str) -> Option<u64> {
    let digits = text.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}
