//! Limits of this process and of its control group.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{read_number, read_text};

/// Soft limits of this process. `None` means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// True if `/proc/self/limits` was read.
    pub known: bool,
    /// Locked memory in bytes.
    pub locked_memory: Option<u64>,
    /// Stack in bytes.
    pub stack: Option<u64>,
    /// True if the stack has no limit.
    pub unlimited_stack: bool,
    /// Open files.
    pub open_files: Option<u64>,
    /// Hard limit of open files. A process may raise its own limit up to it.
    pub most_open_files: Option<u64>,
    /// Processes and threads of the user.
    pub processes: Option<u64>,
}

/// Limits of a control group and of the groups above it. `None` means no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlGroup {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Processors.
    pub processors: Option<f64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Current processes and threads, if they are limited.
    pub running: Option<u64>,
}

impl Limits {
    pub(super) fn read(root: &Path) -> Self {
        let Some(text) = read_text(&root.join("proc/self/limits")) else { return Self::default() };
        let word = |name: &str, column: usize| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().nth(column)
        };
        let value = |name: &str, column: usize| word(name, column)?.parse().ok();
        Self {
            known: true,
            locked_memory: value("Max locked memory", 0),
            stack: value("Max stack size", 0),
            unlimited_stack: word("Max stack size", 0) == Some("unlimited"),
            open_files: value("Max open files", 0),
            most_open_files: value("Max open files", 1),
            processes: value("Max processes", 0),
        }
    }
}

impl ControlGroup {
    pub(super) fn read(root: &Path) -> Self {
        let groups = read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
        let path = |wanted: &str| {
            groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers.split(',').any(|name| name == wanted).then(|| path.to_owned())
            })
        };
        let base = root.join("sys/fs/cgroup");
        let mut group = Self::default();
        if base.join("cgroup.controllers").exists() || path("").is_some() && path("memory").is_none() {
            for folder in folders_upwards(&base, &path("").unwrap_or_default()) {
                group.memory = least_limit(group.memory, read_number(&folder.join("memory.max")));
                let quota = read_text(&folder.join("cpu.max")).and_then(|text| parse_quota(&text));
                group.processors = [group.processors, quota].into_iter().flatten().reduce(f64::min);
                group.take_process_limit(read_number(&folder.join("pids.max")), &folder.join("pids.current"));
            }
        } else {
            for folder in folders_upwards(&base.join("memory"), &path("memory").unwrap_or_default()) {
                // The first version writes a number near the largest for none.
                let bytes =
                    read_number(&folder.join("memory.limit_in_bytes")).filter(|bytes| *bytes < 1 << 60);
                group.memory = least_limit(group.memory, bytes);
            }
            for folder in folders_upwards(&base.join("pids"), &path("pids").unwrap_or_default()) {
                group.take_process_limit(read_number(&folder.join("pids.max")), &folder.join("pids.current"));
            }
            for folder in folders_upwards(&base.join("cpu"), &path("cpu").unwrap_or_default()) {
                let time = |name: &str| read_text(&folder.join(name));
                let quota = time("cpu.cfs_quota_us").zip(time("cpu.cfs_period_us"));
                let quota = quota.and_then(|(time, period)| self::parse_quota(&format!("{time} {period}")));
                group.processors = [group.processors, quota].into_iter().flatten().reduce(f64::min);
            }
        }
        group
    }

    /// Takes the limit with the fewest processes left.
    fn take_process_limit(&mut self, most: Option<u64>, current: &Path) {
        let Some(most) = most else { return };
        let running: Option<u64> = read_number(current);
        let left = |most: u64, running: Option<u64>| most.saturating_sub(running.unwrap_or(0));
        if self.processes.is_none_or(|known| left(most, running) < left(known, self.running)) {
            (self.processes, self.running) = (Some(most), running);
        }
    }
}

fn least_limit(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}

/// Returns the folders of a group and of the groups above it. In a container the path may name a folder that
/// is not mounted here.
fn folders_upwards(base: &Path, path: &str) -> Vec<PathBuf> {
    let mut folders = vec![base.to_owned()];
    let mut folder = base.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != "..") {
        folder.push(part);
        folders.push(folder.clone());
    }
    folders
}

/// Returns the processors of a quota: `200000 100000` are two.
fn parse_quota(text: &str) -> Option<f64> {
    let (time, period) = text.split_once(' ')?;
    let (time, period): (f64, f64) = (time.parse().ok()?, period.trim().parse().ok()?);
    (time > 0.0 && period > 0.0).then(|| time / period)
}
