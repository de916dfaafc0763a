//! What this machine has for RDMA: devices, drivers, device files, limits, and whether it is a container.
//!
//! All is read below a root folder, so that tests can make up machines.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// Amazon's number on the PCI bus.
const AMAZON: &str = "0x1d0f";
/// How the numbers of EFA devices begin.
const EFA: &str = "0xefa";

/// The machine, or the container, as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// `/sys/class/infiniband`.
    pub(super) devices: Vec<Device>,
    /// The modules out of [`MODULES`] that are loaded.
    pub(super) modules: Vec<&'static str>,
    /// `/dev/infiniband`: the files of devices, `uverbs0`, and of the connection manager, `rdma_cm`.
    pub(super) device_files: Vec<String>,
    /// Places on the PCI bus of EFA devices, with or without a driver.
    pub(super) efa_on_pci: Vec<String>,
    /// How much memory this process may lock.
    pub(super) memlock: Option<Memlock>,
    /// What runs the container that this is.
    pub(super) container: Option<&'static str>,
}

/// The kernel's modules that matter.
const MODULES: [&str; 4] = ["efa", "ib_uverbs", "rdma_cm", "mlx5_ib"];

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    pub(super) ports: Vec<Port>,
}

/// A port of a device, in the kernel's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Port {
    pub(super) number: u32,
    /// `ACTIVE`, `DOWN`.
    pub(super) state: String,
    /// `100 Gb/sec (4X EDR)`.
    pub(super) rate: String,
    /// `InfiniBand`, `Ethernet`, `Unspecified`.
    pub(super) link_layer: String,
}

/// The limit of locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memlock {
    /// There is none.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
}

impl Host {
    /// Reads what is below `root`, which is `/` but for tests. What cannot be read is not there.
    pub(super) fn look(root: &Path) -> Self {
        let modules = MODULES.into_iter().filter(|module| root.join("sys/module").join(module).exists());
        let files = names(&root.join("dev/infiniband"));
        Self {
            devices: devices(&root.join("sys/class/infiniband")),
            modules: modules.collect(),
            device_files: files
                .into_iter()
                .filter(|name| name.starts_with("uverbs") || name == "rdma_cm")
                .collect(),
            efa_on_pci: efa_on_pci(&root.join("sys/bus/pci/devices")),
            memlock: text(&root.join("proc/self/limits")).as_deref().and_then(memlock),
            container: container(root),
        }
    }

    /// Whether there is a device that this process can open: `uverbs0`.
    pub(super) fn has_uverbs(&self) -> bool {
        self.device_files.iter().any(|name| name.starts_with("uverbs"))
    }
}

impl Device {
    pub(super) fn is_efa(&self) -> bool {
        match &self.driver {
            Some(driver) => driver == "efa",
            None => self.name.starts_with("efa_"),
        }
    }

    /// Whether a port can be used.
    pub(super) fn is_up(&self) -> bool {
        self.ports.iter().any(|port| port.state == "ACTIVE")
    }

    /// What several devices may have in common: `driver efa, ACTIVE, 100 Gb/sec (4X EDR)`.
    pub(super) fn description(&self) -> String {
        let driver =
            self.driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("driver {name}"));
        let mut parts = vec![driver];
        parts.extend(self.ports.iter().map(|Port { state, rate, link_layer, .. }| {
            // EFA has no link layer that the kernel knows.
            let layer = Some(link_layer.as_str()).filter(|layer| !["", "Unspecified"].contains(layer));
            let known: Vec<&str> =
                layer.into_iter().chain([state.as_str(), rate]).filter(|part| !part.is_empty()).collect();
            known.join(" ")
        }));
        parts.retain(|part| !part.is_empty());
        parts.join(", ")
    }
}

fn devices(class: &Path) -> Vec<Device> {
    let of = |name: String| {
        let folder = class.join(&name);
        let driver = fs::read_link(folder.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let mut ports: Vec<Port> = names(&folder.join("ports"))
            .into_iter()
            .filter_map(|port| {
                let of_port =
                    |file: &str| text(&folder.join("ports").join(&port).join(file)).unwrap_or_default();
                let state = of_port("state");
                Some(Port {
                    number: port.parse().ok()?,
                    // `4: ACTIVE`
                    state: state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned(),
                    rate: of_port("rate"),
                    link_layer: of_port("link_layer"),
                })
            })
            .collect();
        ports.sort_by_key(|port| port.number);
        Device { name, driver, ports }
    };
    names(class).into_iter().map(of).collect()
}

fn efa_on_pci(devices: &Path) -> Vec<String> {
    let is = |place: &String| {
        let number = |file: &str| text(&devices.join(place).join(file)).unwrap_or_default();
        number("vendor") == AMAZON && number("device").starts_with(EFA)
    };
    names(devices).into_iter().filter(is).collect()
}

/// The soft limit in the text of `/proc/self/limits`.
fn memlock(limits: &str) -> Option<Memlock> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(Memlock::Unlimited),
        bytes => bytes.parse().ok().map(Memlock::Bytes),
    }
}

fn container(root: &Path) -> Option<&'static str> {
    let groups = text(&root.join("proc/1/cgroup")).unwrap_or_default();
    let runs_in = |name: &str| groups.contains(name);
    if runs_in("kubepods") {
        Some("Kubernetes")
    } else if root.join(".dockerenv").exists() || runs_in("docker") {
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

/// The names in a folder, with numbers in them in their order: `mlx5_2` comes before `mlx5_10`.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_by_cached_key(|name| natural(name));
    names
}

/// Sorts by numbers where there are numbers, else by text.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (text, after) = rest.split_at(word);
        let digits = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

/// The text of a file, without the blanks around it.
fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine in a folder.
    pub(in super::super) struct Machine(tempfile::TempDir);

    impl Machine {
        pub(in super::super) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(in super::super) fn file(self, path: &str, text: &str) -> Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// A device with one port, as the kernel shows it.
        pub(in super::super) fn device(self, name: &str, driver: &str, state: &str, layer: &str) -> Self {
            let folder = format!("sys/class/infiniband/{name}");
            let machine = self
                .file(&format!("{folder}/ports/1/state"), state)
                .file(&format!("{folder}/ports/1/rate"), "100 Gb/sec (4X EDR)\n")
                .file(&format!("{folder}/ports/1/link_layer"), layer)
                .file(&format!("{folder}/device/vendor"), "");
            let link = machine.0.path().join(&folder).join("device/driver");
            symlink(format!("../../../../../bus/pci/drivers/{driver}"), link).unwrap();
            machine
        }

        /// The limit of locked memory, as `/proc` shows it.
        pub(in super::super) fn memlock(self, soft: &str) -> Self {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max file size             unlimited            unlimited            bytes     \n\
                 Max locked memory         {soft:<20} unlimited            bytes     \n"
            );
            self.file("proc/self/limits", &text)
        }

        pub(in super::super) fn look(&self) -> Host {
            Host::look(self.0.path())
        }
    }

    /// A host with two EFA devices, of which one is down.
    pub(in super::super) fn efa_host() -> Machine {
        efa_devices()
            .file("dev/infiniband/uverbs0", "")
            .file("dev/infiniband/uverbs1", "")
            .file("dev/infiniband/issm0", "")
            .memlock("unlimited")
    }

    /// What a container sees of it to which nothing was given.
    pub(in super::super) fn efa_container() -> Machine {
        efa_devices().memlock("65536").file(".dockerenv", "")
    }

    fn efa_devices() -> Machine {
        Machine::new()
            .device("rdmap10s6", "efa", "1: DOWN\n", "Unspecified\n")
            .device("rdmap0s6", "efa", "4: ACTIVE\n", "Unspecified\n")
            .file("sys/module/efa/refcnt", "0")
            .file("sys/module/ib_uverbs/refcnt", "0")
            .file("sys/bus/pci/devices/0000:00:06.0/vendor", "0x1d0f\n")
            .file("sys/bus/pci/devices/0000:00:06.0/device", "0xefa1\n")
            .file("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f\n")
            .file("sys/bus/pci/devices/0000:00:05.0/device", "0xec20\n")
    }

    /// A host with InfiniBand.
    pub(in super::super) fn infiniband_host() -> Machine {
        Machine::new()
            .device("mlx5_10", "mlx5_core", "4: ACTIVE", "InfiniBand")
            .device("mlx5_2", "mlx5_core", "4: ACTIVE", "InfiniBand")
            .file("sys/module/mlx5_ib/refcnt", "0")
            .file("dev/infiniband/uverbs0", "")
            .file("dev/infiniband/rdma_cm", "")
            .memlock("65536")
    }

    #[test]
    fn an_efa_host_is_seen_with_its_devices() {
        let host = efa_host().look();
        let names: Vec<&str> = host.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["rdmap0s6", "rdmap10s6"]);
        assert!(host.devices.iter().all(Device::is_efa));
        assert_eq!([0, 1].map(|index| host.devices[index].is_up()), [true, false]);
        assert_eq!(host.devices[0].description(), "driver efa, ACTIVE 100 Gb/sec (4X EDR)");
        assert_eq!(host.modules, ["efa", "ib_uverbs"]);
        assert_eq!(host.device_files, ["uverbs0", "uverbs1"]);
        assert_eq!(host.efa_on_pci, ["0000:00:06.0"]);
        assert_eq!((host.memlock, host.container), (Some(Memlock::Unlimited), None));
        assert!(host.has_uverbs());
    }

    #[test]
    fn an_infiniband_host_is_seen_with_its_limit() {
        let host = infiniband_host().look();
        assert_eq!(host.devices[0].name, "mlx5_2");
        assert_eq!(host.devices[0].description(), "driver mlx5_core, InfiniBand ACTIVE 100 Gb/sec (4X EDR)");
        assert!(!host.devices[0].is_efa() && host.devices[0].is_up());
        assert_eq!(host.memlock, Some(Memlock::Bytes(65536)));
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
            assert_eq!(Machine::new().file(path, text).look().container, expected, "{path} {text}");
        }
    }

    #[test]
    fn an_empty_machine_has_nothing() {
        assert_eq!(Machine::new().look(), Host::default());
    }

    #[test]
    fn this_machine_s_limit_is_the_one_that_the_shell_knows() {
        let output = std::process::Command::new("sh").args(["-c", "ulimit -l"]).output().unwrap();
        let shell = String::from_utf8(output.stdout).unwrap();
        let expected = match shell.trim() {
            "unlimited" => Memlock::Unlimited,
            kibibytes => Memlock::Bytes(kibibytes.parse::<u64>().unwrap() * 1024),
        };
        assert_eq!(Host::look(Path::new("/")).memlock, Some(expected));
    }
}
