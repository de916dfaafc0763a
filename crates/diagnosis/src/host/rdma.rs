//! RDMA on this host: devices, drivers, device files, limits, and the container of the process.
//!
//! All files are read below a root folder, so that tests can create machines.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::Path;

use rustix::io::Errno;

use super::files::{names_in_folder, read_text};
use super::limits::Limits;
use super::nic::{self, Nic};
use super::pci::{self, OnPci};

/// Amazon's number on the PCI bus.
const AMAZON: u32 = 0x1d0f;
/// The first digits of the PCI device numbers of EFA devices.
const EFA: u32 = 0xefa;

/// A variable in every container of Kubernetes: the address of its API.
pub const SERVICE: &str = "KUBERNETES_SERVICE_HOST";

/// The machine, or the container, as this process sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// `/sys/class/infiniband`.
    pub devices: Vec<Nic>,
    /// Loaded kernel modules, among the modules for EFA and verbs.
    pub modules: Vec<&'static str>,
    /// `/dev/infiniband`: the files of devices, `uverbs0`, and of the connection manager, `rdma_cm`.
    pub device_files: Vec<String>,
    /// Device files that this process cannot open.
    pub refused: Vec<Refused>,
    /// EFA devices on the PCI bus, with or without a driver.
    pub efa_on_pci: Vec<OnPci>,
    /// True if all network namespaces see all RDMA devices (`rdma system`: netns shared), false if each
    /// device is in one namespace.
    pub shared_devices: Option<bool>,
    /// Limits of this process.
    pub limits: Limits,
    /// Runtime of this process's container.
    pub container: Option<&'static str>,
}

/// Relevant modules of the kernel.
const MODULES: [&str; 4] = ["efa", "ib_uverbs", "rdma_cm", "mlx5_ib"];

/// An existing device file that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// `uverbs0`.
    pub name: String,
    /// The kernel's error.
    pub error: Errno,
}

impl Host {
    /// Reads the facts below `root` (`/` except in tests). Unreadable files count as missing.
    /// `service` is the value of [`SERVICE`], if it has one.
    pub fn read_host(root: &Path, service: Option<&OsStr>) -> Self {
        let modules = MODULES.into_iter().filter(|module| root.join("sys/module").join(module).exists());
        let folder = root.join("dev/infiniband");
        let device_files: Vec<String> = names_in_folder(&folder)
            .into_iter()
            .filter(|name| name.starts_with("uverbs") || name == "rdma_cm")
            .collect();
        let uverbs = device_files.iter().filter(|name| name.starts_with("uverbs"));
        Self {
            devices: nic::read_nics(root),
            modules: modules.collect(),
            refused: uverbs.filter_map(|name| try_device_file(&folder, name)).collect(),
            device_files,
            efa_on_pci: efa_on_pci(root),
            shared_devices: match read_text(&root.join("sys/module/ib_core/parameters/netns_mode")).as_deref()
            {
                Some("Y") => Some(true),
                Some("N") => Some(false),
                _ => None,
            },
            limits: Limits::read(root),
            container: if in_pod(root, service) { Some("Kubernetes") } else { detect_container(root) },
        }
    }

    /// Returns true if a device file such as `uverbs0` exists. This process may not be able to open it.
    pub fn has_uverbs(&self) -> bool {
        self.device_files.iter().any(|name| name.starts_with("uverbs"))
    }

    /// Returns true if the driver efa has a device. The device need not be visible here.
    pub fn efa_is_served(&self) -> bool {
        self.efa_on_pci.iter().any(|device| device.driver.as_deref() == Some("efa"))
    }
}

/// Opens a device's file as libraries do.
fn try_device_file(folder: &Path, name: &str) -> Option<Refused> {
    let error = OpenOptions::new().read(true).write(true).open(folder.join(name)).err()?;
    Some(Refused { name: name.to_owned(), error: Errno::from_io_error(&error).unwrap_or(Errno::IO) })
}

fn efa_on_pci(root: &Path) -> Vec<OnPci> {
    let functions = pci::read_functions(root).into_iter();
    functions
        .filter(|function| function.vendor == AMAZON && function.device >> 4 == EFA)
        .map(|function| function.on_pci())
        .collect()
}

/// Returns true in a container of Kubernetes. Names of version 2 control groups do not show it, so marks of
/// the runtimes and of the kubelet are also checked.
fn in_pod(root: &Path, service: Option<&OsStr>) -> bool {
    let read = |file: &str| read_text(&root.join(file)).unwrap_or_default();
    // The token of a pod. A pod may be made without it.
    root.join("var/run/secrets/kubernetes.io").exists()
        || service.is_some_and(|address| !address.is_empty())
        || read("proc/1/cgroup").contains("kubepods")
        || read("proc/self/mountinfo").lines().any(mounted_by_kubelet)
}

/// Returns true if a line of `/proc/self/mountinfo` belongs to a pod's control group, or to a file from the
/// kubelet for a container, such as `/etc/hosts`. A node also mounts its pods' folders, at their own paths.
fn mounted_by_kubelet(line: &str) -> bool {
    const FILES: &str = "kubelet/pods/";
    let mut fields = line.split(' ').skip(3);
    let (Some(source), Some(target)) = (fields.next(), fields.next()) else { return false };
    // If the kubelet's files have their own disk, only this target shows it.
    let log = target == "/dev/termination-log";
    log || source.contains("kubepods") || (source.contains(FILES) && !target.contains(FILES))
}

fn detect_container(root: &Path) -> Option<&'static str> {
    let groups = read_text(&root.join("proc/1/cgroup")).unwrap_or_default();
    let runs_in = |name: &str| groups.contains(name);
    if root.join(".dockerenv").exists() || runs_in("docker") {
        Some("Docker")
    } else if root.join("run/.containerenv").exists() || runs_in("libpod") {
        Some("Podman")
    } else if runs_in("containerd") {
        Some("containerd")
    } else if runs_in("/lxc") {
        Some("LXC")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::sample::{Machine, efa_host, infiniband_host};

    #[test]
    fn an_efa_host_is_seen_with_its_devices() {
        let host = efa_host().read_host();
        let names: Vec<&str> = host.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["rdmap0s6", "rdmap10s6"]);
        assert!(host.devices.iter().all(Nic::is_efa));
        assert_eq!([0, 1].map(|index| host.devices[index].is_up()), [true, false]);
        assert_eq!(host.devices[0].description(), "driver efa, ACTIVE 100 Gb/sec (4X EDR)");
        assert_eq!(host.modules, ["efa", "ib_uverbs"]);
        assert_eq!(host.device_files, ["uverbs0", "uverbs1"]);
        let on_pci = OnPci { bus_id: "0000:00:06.0".to_owned(), driver: Some("efa".to_owned()) };
        assert_eq!(host.efa_on_pci, [on_pci]);
        assert!(host.refused.is_empty() && host.shared_devices.is_none());
        assert_eq!((host.limits.locked_memory, host.container), (None, None));
        assert!(host.has_uverbs());
    }

    #[test]
    fn an_infiniband_host_is_seen_with_its_limit() {
        let host = infiniband_host().read_host();
        assert_eq!(host.devices[0].name, "mlx5_2");
        assert_eq!(host.devices[0].description(), "driver mlx5_core, InfiniBand ACTIVE 100 Gb/sec (4X EDR)");
        assert!(!host.devices[0].is_efa() && host.devices[0].is_up());
        assert_eq!(host.limits.locked_memory, Some(65536));
        assert_eq!(host.modules, ["mlx5_ib"]);
    }

    #[test]
    fn containers_are_told_by_what_their_makers_leave() {
        for (path, text, expected) in [
            (".dockerenv", "", Some("Docker")),
            ("run/.containerenv", "", Some("Podman")),
            ("proc/1/cgroup", "1:name=systemd:/kubepods/besteffort/pod7", Some("Kubernetes")),
            ("proc/1/cgroup", "0::/system.slice/docker-7.scope", Some("Docker")),
            ("proc/1/cgroup", "0::/lxc/web", Some("LXC")),
            ("proc/1/cgroup", "0::/init.scope", None),
        ] {
            assert_eq!(Machine::new().with_file(path, text).read_host().container, expected, "{path} {text}");
        }
    }

    /// With the second version of control groups, each in its own namespace.
    #[test]
    fn a_pod_is_told_by_what_the_kubelet_gives_it_whichever_runtime_made_it() {
        const HOSTS: &str = "/var/lib/kubelet/pods/6f1c/etc-hosts /etc/hosts";
        const VOLUME: &str = "/var/lib/kubelet/pods/6f1c/volumes/kubernetes.io~empty-dir/cache";
        let mounted = |mount: &str| {
            let text = format!(
                "1511 1510 0:279 / / rw,relatime - overlay overlay \
                 rw,lowerdir=/var/lib/containerd/snapshots/1\n\
                 1519 1511 259:1 {mount} rw,noatime - xfs /dev/nvme0n1p1 rw\n"
            );
            Machine::new().with_file("proc/1/cgroup", "0::/\n").with_file("proc/self/mountinfo", &text)
        };
        for (machine, expected) in [
            (mounted(HOSTS), Some("Kubernetes")),
            (mounted(HOSTS).with_file("run/.containerenv", ""), Some("Kubernetes")),
            (mounted(HOSTS).with_file(".dockerenv", ""), Some("Kubernetes")),
            (mounted("/pods/6f1c/containers/main/0a1b /dev/termination-log"), Some("Kubernetes")),
            (mounted("/kubepods.slice/pod6f1c /sys/fs/cgroup/memory"), Some("Kubernetes")),
            // The node itself: a volume may be a part of another one there.
            (mounted(&format!("/ {VOLUME}")), None),
            (mounted(&format!("{VOLUME} /var/lib/kubelet/pods/6f1c/volume-subpaths/cache/main/0")), None),
            (mounted("/ /home"), None),
            (mounted("/"), None),
            (mounted("/ /home").with_file("run/.containerenv", ""), Some("Podman")),
            (
                Machine::new().with_file("var/run/secrets/kubernetes.io/serviceaccount/token", "x"),
                Some("Kubernetes"),
            ),
        ] {
            let found = machine.read_host().container;
            assert_eq!(found, expected, "{:?}", read_text(&machine.root().join("proc/self/mountinfo")));
        }
        let podman = Machine::new().with_file("run/.containerenv", "");
        for (address, expected) in
            [(Some("10.100.0.1"), "Kubernetes"), (Some(""), "Podman"), (None, "Podman")]
        {
            let host = Host::read_host(podman.root(), address.map(OsStr::new));
            assert_eq!(host.container, Some(expected), "{address:?}");
        }
    }

    #[test]
    fn device_files_that_cannot_be_opened_are_told_from_those_that_can() {
        let machine = efa_host()
            .with_link("dev/infiniband/uverbs2", "nowhere")
            .with_file("dev/infiniband/uverbs10/as-a-folder", "")
            .with_link("dev/infiniband/rdma_cm", "nowhere");
        let refused = |name: &str, error| Refused { name: name.to_owned(), error };
        let host = machine.read_host();
        assert_eq!(host.refused, [refused("uverbs2", Errno::NOENT), refused("uverbs10", Errno::ISDIR)]);
        assert_eq!(host.device_files, ["rdma_cm", "uverbs0", "uverbs1", "uverbs2", "uverbs10"]);
        assert!(host.has_uverbs());
    }

    #[test]
    fn an_empty_machine_has_nothing() {
        assert_eq!(Machine::new().read_host(), Host::default());
    }

    #[test]
    fn this_machine_s_limit_is_the_one_that_the_shell_knows() {
        let output = std::process::Command::new("sh").args(["-c", "ulimit -l"]).output().unwrap();
        let shell = String::from_utf8(output.stdout).unwrap();
        let expected = match shell.trim() {
            "unlimited" => None,
            kibibytes => Some(kibibytes.parse::<u64>().unwrap() * 1024),
        };
        assert_eq!(Host::read_host(Path::new("/"), None).limits.locked_memory, expected);
    }
}
