//! NVIDIA's kernel driver, services, and settings of the system.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::files::{names_in_folder, read_text, value_of_field};
use super::has_module;

/// NVIDIA's kernel driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Version, or `None` if the driver is not loaded.
    pub version: Option<String>,
    /// True for the open kernel module. It can export memory as DMA-BUF.
    pub open: bool,
    /// True if `nvidia_peermem` is loaded.
    pub peermem: bool,
    /// True if `gdrdrv` is loaded.
    pub gdrdrv: bool,
    /// True if a parameter disables NVLink.
    pub nvlink_off: bool,
    /// `NVreg_GrdmaPciTopoCheckOverride`, or `None` for a driver without it.
    pub topology_check_override: Option<bool>,
}

/// Services and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Services {
    /// True if the fabric manager runs.
    pub fabric_manager: bool,
    /// True if the IMEX daemon runs.
    pub imex: bool,
    /// Channels of IMEX visible to this process.
    pub imex_channels: usize,
    /// True if `systemd` is the first process.
    pub systemd: bool,
    /// `RemoveIPC` of systemd-logind, if it is set.
    pub remove_ipc: Option<bool>,
}

impl Driver {
    pub(super) fn read(root: &Path) -> Self {
        let line = read_text(&root.join("proc/driver/nvidia/version")).unwrap_or_default();
        let line = line.lines().next().unwrap_or_default();
        let parameters = read_text(&root.join("proc/driver/nvidia/params")).unwrap_or_default();
        let number = |name: &str| value_of_field(&parameters, name)?.parse::<u64>().ok();
        let version =
            line.split_whitespace().find(|word| word.contains('.') && word.split('.').all(super::is_number));
        Self {
            version: version.map(str::to_owned),
            open: line.contains("Open Kernel Module"),
            peermem: has_module(root, "nvidia_peermem"),
            gdrdrv: has_module(root, "gdrdrv"),
            nvlink_off: number("NvLinkDisable") == Some(1),
            topology_check_override: number("GrdmaPciTopoCheckOverride").map(|value| value != 0),
        }
    }

    /// Returns the first number of the version.
    pub fn major_version(&self) -> Option<u32> {
        self.version.as_deref()?.split('.').next()?.parse().ok()
    }
}

impl Services {
    pub(super) fn read(root: &Path) -> Self {
        let processes = root.join("proc");
        let commands: Vec<String> = names_in_folder(&processes)
            .iter()
            .filter(|name| super::is_number(name))
            .filter_map(|process| read_text(&processes.join(process).join("comm")))
            .collect();
        // The kernel keeps 15 letters.
        let runs =
            |name: &str| commands.iter().any(|command| command.starts_with(&name[..name.len().min(15)]));
        let channels = names_in_folder(&root.join("dev/nvidia-caps-imex-channels"));
        Self {
            fabric_manager: runs("nv-fabricmanager"),
            imex: runs("nvidia-imex"),
            imex_channels: channels.iter().filter(|name| name.starts_with("channel")).count(),
            systemd: read_text(&processes.join("1/comm")).as_deref() == Some("systemd"),
            remove_ipc: remove_ipc(root),
        }
    }
}

/// Returns the last `RemoveIPC=` of systemd-logind's files.
fn remove_ipc(root: &Path) -> Option<bool> {
    let folder = root.join("etc/systemd/logind.conf.d");
    let parts = names_in_folder(&folder).into_iter().map(|name| folder.join(name));
    let files = [root.join("etc/systemd/logind.conf")].into_iter().chain(parts);
    let mut last = None;
    for text in files.filter_map(|file| read_text(&file)) {
        for line in text.lines() {
            if let Some(value) = line.trim().strip_prefix("RemoveIPC=") {
                last = Some(matches!(value.trim(), "yes" | "true" | "1" | "on"));
            }
        }
    }
    last
}
