//! Lines of the topology with the paths of a GPU: `GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL)`.

use std::collections::BTreeSet;
use std::hash::BuildHasher as _;

use foldhash::HashSet;
use foldhash::fast::RandomState;

use super::digest::GpuPath;
use super::message;

/// Largest number of paths.
const PATHS: usize = 65_536;
/// Largest number of remembered lines.
const LINES: usize = 65_536;

/// The paths of all hosts.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: BTreeSet<GpuPath>,
    /// Hashes of earlier lines, with their hosts: communicators repeat them.
    lines: HashSet<u64>,
    hasher: RandomState,
    /// Number of dropped paths.
    pub(super) lost: u64,
}

impl Paths {
    /// Notes the paths of a line.
    pub(super) fn note_paths(&mut self, host: &str, line: &[u8]) {
        let hash = self.hasher.hash_one((host, line));
        if self.lines.contains(&hash) {
            return;
        }
        if self.lines.len() < LINES {
            self.lines.insert(hash);
        }
        let Ok(line) = std::str::from_utf8(line) else { return };
        for (from, to, kind) in parse_paths(line) {
            let number = |text| u64::from_str_radix(text, 16).map(message::bus_id);
            let (Ok(from), Ok(to)) = (number(from), number(to)) else { continue };
            let path = GpuPath { host: host.to_owned(), from, to, kind: kind.to_owned() };
            if self.paths.len() < PATHS {
                self.paths.insert(path);
            } else {
                self.lost += u64::from(!self.paths.contains(&path));
            }
        }
    }

    /// Returns all paths.
    pub(super) fn into_paths(self) -> BTreeSet<GpuPath> {
        self.paths
    }
}

/// A path in such a line: bus ids of both GPUs, and NCCL's name of the path.
type LoggedPath<'a> = (&'a str, &'a str, &'a str);

/// Returns the paths from a GPU to the other GPUs of its system. A message of another kind has none.
fn parse_paths(message: &str) -> Vec<LoggedPath<'_>> {
    let Some((from, others)) = message.split_once(" :").filter(|(from, _)| from.starts_with("GPU/")) else {
        return Vec::new();
    };
    let Some((system, from)) = parse_gpu(from) else { return Vec::new() };
    let mut paths = Vec::new();
    let mut words = others.split_whitespace();
    while let (Some(to), Some(path)) = (words.next(), words.next()) {
        let kind = path.strip_suffix(')').and_then(|path| path.rsplit('/').next());
        // A cut line ends with an incomplete path.
        let Some(kind) = kind.filter(|kind| kind.len() == 3) else { break };
        if let Some((_, to)) = parse_gpu(to).filter(|&(other, to)| other == system && to != from) {
            paths.push((from, to, kind));
        }
    }
    paths
}

/// Reads system and bus id: `GPU/0-60`.
fn parse_gpu(word: &str) -> Option<(&str, &str)> {
    let (system, bus) = word.strip_prefix("GPU/")?.split_once('-')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(system) && is_hex(bus)).then_some((system, bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_between_gpus_are_read() {
        let line = "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) CPU/0-0 (1/24.0/PHB) GPU/1-80 \
                    (2/3.1/NET) ";
        assert_eq!(parse_paths(line), [("60", "70", "NVL")]);
        assert_eq!(parse_paths("GPU/0-60 :GPU/0-70 (2/370.8/NVL) GPU/0-80 (2/37"), [("60", "70", "NVL")]);
    }

    #[test]
    fn other_lines_have_no_paths() {
        for line in [
            "",
            "GPU/0-60",
            "NET/0-0 :GPU/0-60 (3/1.2/PHB)",
            "GPU/0-xx :GPU/0-70 (2/370.8/NVL)",
            "GPU/ :",
            " :",
        ] {
            assert_eq!(parse_paths(line), [], "{line}");
        }
    }
}
