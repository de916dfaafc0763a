//! `/dev/shm`, for data between NCCL's processes of one host, and files left there by ended jobs.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::files::names_in_folder;

/// `/dev/shm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemory {
    /// Bytes, or `None` without `/dev/shm`.
    pub size: Option<u64>,
    /// Free bytes.
    pub free: Option<u64>,
    /// Files of NCCL mapped by no process of this host, or `None` if processes are not visible.
    pub stale: Option<Stale>,
    /// Number of NCCL's files in use, or with unknown use.
    pub files: usize,
}

/// Files used by no process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// Their names.
    pub names: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
}

impl SharedMemory {
    pub(super) fn read(root: &Path) -> Self {
        let folder = root.join("dev/shm");
        let sizes = rustix::fs::statvfs(&folder).ok();
        let bytes = |blocks: u64, size: u64| blocks.saturating_mul(size);
        let files: Vec<String> =
            names_in_folder(&folder).into_iter().filter(|name| name.starts_with("nccl-")).collect();
        let mapped = if files.is_empty() { Some(HashSet::new()) } else { files_in_use(root) };
        let stale = mapped.map(|mapped| {
            let names: Vec<String> = files.iter().filter(|name| !mapped.contains(*name)).cloned().collect();
            let size = |name: &String| fs::metadata(folder.join(name)).map_or(0, |file| file.blocks() * 512);
            Stale { bytes: names.iter().map(size).sum(), names }
        });
        Self {
            size: sizes.as_ref().map(|sizes| bytes(sizes.f_blocks, sizes.f_frsize)),
            free: sizes.as_ref().map(|sizes| bytes(sizes.f_bavail, sizes.f_frsize)),
            files: files.len() - stale.as_ref().map_or(0, |stale| stale.names.len()),
            stale,
        }
    }
}

/// Returns the names of NCCL's files mapped or held open by processes, or `None` if a process hides them.
fn files_in_use(root: &Path) -> Option<HashSet<String>> {
    const PREFIX: &str = "/dev/shm/";
    let mut found = HashSet::new();
    let folder = root.join("proc");
    for process in names_in_folder(&folder).into_iter().filter(|name| super::is_number(name)) {
        let folder = folder.join(process);
        match fs::read_to_string(folder.join("maps")) {
            Ok(maps) => {
                let files = maps.lines().filter_map(|line| line.split_once(PREFIX).map(|(_, name)| name));
                found.extend(files.map(|name| name.trim_end_matches(" (deleted)").to_owned()));
            }
            // The process ended.
            Err(_) if !folder.exists() => {}
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
            Err(_) => {}
        }
        for file in fs::read_dir(folder.join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            found.extend(target.to_str().and_then(|path| path.strip_prefix(PREFIX)).map(str::to_owned));
        }
    }
    Some(found)
}
