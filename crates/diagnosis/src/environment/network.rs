//! Names in variables, compared with the interfaces and devices of a host.

use std::fs;
use std::path::Path;

use super::judge::Verdict;
use super::knowledge::VerdictKind;
use super::setting::Setting;
use super::situation::Situation;
use crate::finding::Severity;

/// Network interfaces and RDMA devices of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Names of the network interfaces.
    pub interfaces: Vec<String>,
    /// Names of the RDMA devices.
    pub devices: Vec<String>,
}

/// A list of names with its signs, as NCCL reads it.
struct List<'a> {
    excludes: bool,
    exact: bool,
    names: Vec<&'a str>,
}

impl Network {
    /// Reads the names: interfaces from `proc` (`/proc/self`, or the folder of another process), and devices
    /// below `root`. Returns `None` without any interface, since every host has the loopback.
    pub fn read(proc: &Path, root: &Path) -> Option<Self> {
        let text = fs::read_to_string(proc.join("net/dev")).ok()?;
        let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
        let mut interfaces: Vec<String> = text.lines().skip(2).filter_map(name).collect();
        let entries = fs::read_dir(root.join("sys/class/infiniband")).into_iter().flatten().flatten();
        let mut devices: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        interfaces.sort();
        devices.sort();
        (!interfaces.is_empty()).then_some(Self { interfaces, devices })
    }

    /// Compares a variable with the names of the host.
    pub(super) fn check_names(&self, setting: &Setting, situation: &Situation) -> Option<Verdict> {
        match setting.name.as_str() {
            "NCCL_SOCKET_IFNAME" => self.check_interfaces(&setting.value),
            "GLOO_SOCKET_IFNAME" => self.check_gloo(&setting.value),
            "FI_TCP_IFACE" | "FI_SOCKETS_IFACE" | "FI_UDP_IFACE" => {
                self.check_interface_of_libfabric(setting)
            }
            "NCCL_IB_HCA" => self.check_devices(&setting.value, situation),
            _ => None,
        }
    }

    fn check_interfaces(&self, value: &str) -> Option<Verdict> {
        let list = List::parse(value)?;
        let used = list.matching_names(&self.interfaces);
        if used.is_empty() {
            let reason = format!(
                "no interface of this host fits `{value}`: NCCL's bootstrap fails with `no socket interface \
                 found`; the host has {}",
                self.interfaces.join(", ")
            );
            let remedy =
                self.likely_interface().map(|name| format!("set NCCL_SOCKET_IFNAME=={name}, or unset it"));
            return Some(broken_verdict("socket-interface-missing", reason, remedy));
        }
        let link_local = used.iter().find(|name| name.starts_with("pod-id-link"))?;
        let reason = format!(
            "`{value}` lets NCCL use {link_local}, which has a link-local address (169.254.170.x) that other \
             nodes cannot reach"
        );
        Some(Verdict {
            kind: VerdictKind::Harmful,
            severity: Some(Severity::Degraded),
            rule: "socket-interface-link-local".to_owned(),
            reason,
            remedy: Some("set NCCL_SOCKET_IFNAME==eth0, with the name of the pods' interface".to_owned()),
            source: Some("aws-samples/aws-do-eks PR 54".to_owned()),
        })
    }

    fn check_gloo(&self, value: &str) -> Option<Verdict> {
        let missing = value.split(',').find(|name| !self.interfaces.iter().any(|own| own == name))?;
        let reason = format!(
            "this host has no interface `{missing}`, and Gloo takes exact names: it has {}",
            self.interfaces.join(", ")
        );
        let remedy = self.likely_interface().map(|name| format!("set GLOO_SOCKET_IFNAME={name}"));
        Some(broken_verdict("gloo-interface-missing", reason, remedy))
    }

    fn check_interface_of_libfabric(&self, setting: &Setting) -> Option<Verdict> {
        let name = setting.value.as_str();
        if self.interfaces.iter().any(|own| own == name) {
            return None;
        }
        let own = self.interfaces.join(", ");
        Some(Verdict {
            kind: VerdictKind::Harmful,
            severity: Some(Severity::Degraded),
            rule: "fabric-interface-missing".to_owned(),
            reason: format!(
                "this host has no interface `{name}`, so the provider finds no address: it has {own}"
            ),
            remedy: Some(format!("unset {}, or set it to an interface of all hosts", setting.name)),
            source: Some("fi_tcp(7), fi_sockets(7), fi_udp(7)".to_owned()),
        })
    }

    fn check_devices(&self, value: &str, situation: &Situation) -> Option<Verdict> {
        let list = List::parse(value)?;
        if self.devices.is_empty() {
            return Some(Verdict {
                kind: VerdictKind::NoEffect,
                severity: Some(Severity::Advice),
                rule: "hca-without-device".to_owned(),
                reason:
                    "this host shows no RDMA device (/sys/class/infiniband): there is nothing to choose from"
                        .to_owned(),
                remedy: None,
                source: None,
            });
        }
        let used = list.matching_names(&self.devices);
        let all = self.devices.join(", ");
        if used.is_empty() {
            let reason = format!(
                "no RDMA device of this host fits `{value}`: NCCL uses none and falls back to sockets; the \
                 host has {all}"
            );
            return Some(broken_verdict(
                "hca-missing",
                reason,
                Some("set NCCL_IB_HCA to devices that exist, or unset it".to_owned()),
            ));
        }
        if let Some(half) = used.iter().find_map(|name| self.other_half(name, &used)) {
            let reason = format!(
                "`{value}` does not contain {half}, the other half of the same port: each half is a PCIe x4 \
                 link of about 100 Gb/s"
            );
            let remedy = format!("set NCCL_IB_HCA={},{half}", used.join(","));
            return Some(Verdict {
                kind: VerdictKind::Harmful,
                severity: Some(Severity::Degraded),
                rule: "hca-half-of-a-port".to_owned(),
                reason,
                remedy: Some(remedy),
                source: Some("NVIDIA dgx-spark-playbooks, spark_cluster_setup.py".to_owned()),
            });
        }
        let wanted = list.names.iter().find(|name| {
            let longer = |own: &&&str| own.len() > name.len() && own.starts_with(**name);
            !list.exact && self.devices.iter().any(|own| own == *name) && used.iter().any(|own| longer(&own))
        })?;
        if situation.platform.as_ref().is_some_and(|platform| platform.has_word("aws")) {
            return None;
        }
        let also: Vec<&str> =
            used.iter().copied().filter(|own| own.len() > wanted.len() && own.starts_with(*wanted)).collect();
        let verb = if list.excludes { "excludes" } else { "selects" };
        Some(Verdict {
            kind: VerdictKind::Harmful,
            severity: Some(Severity::Degraded),
            rule: "hca-prefix".to_owned(),
            reason: format!("names are prefixes: `{wanted}` also {verb} {}", also.join(", ")),
            remedy: Some(format!(
                "put `=` before the list: NCCL_IB_HCA={}={}",
                if list.excludes { "^" } else { "" },
                list.names.join(",")
            )),
            source: Some("NCCL user guide, NCCL_IB_HCA".to_owned()),
        })
    }

    /// Returns the second half of a port of DGX Spark, if it exists and is unused.
    fn other_half(&self, name: &str, used: &[&str]) -> Option<String> {
        let other = match (name.strip_prefix("rocep1"), name.strip_prefix("roceP2p1")) {
            (Some(port), _) => format!("roceP2p1{port}"),
            (_, Some(port)) => format!("rocep1{port}"),
            _ => return None,
        };
        let exists = self.devices.contains(&other) && !used.contains(&other.as_str());
        exists.then_some(other)
    }

    /// Returns the likely intended interface.
    fn likely_interface(&self) -> Option<&str> {
        let is_virtual = |name: &str| {
            [
                "lo",
                "docker",
                "veth",
                "br-",
                "virbr",
                "cni",
                "flannel",
                "cali",
                "pod-id-link",
                "tunl",
                "sit",
                "dummy",
                "ip6",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        };
        self.interfaces.iter().map(String::as_str).find(|name| !is_virtual(name))
    }
}

impl<'a> List<'a> {
    /// Reads a list. Returns `None` for a list without names.
    fn parse(value: &'a str) -> Option<Self> {
        let (excludes, value) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
        let (exact, value) = value.strip_prefix('=').map_or((false, value), |rest| (true, rest));
        let names = value.split(',').filter_map(|name| name.split(':').next());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        (!names.is_empty()).then_some(Self { excludes, exact, names })
    }

    /// Returns the names of the host that NCCL uses.
    fn matching_names<'b>(&self, own: &'b [String]) -> Vec<&'b str> {
        let fits = |name: &&str| {
            let listed = self
                .names
                .iter()
                .any(|wanted| if self.exact { name == wanted } else { name.starts_with(wanted) });
            listed != self.excludes
        };
        own.iter().map(String::as_str).filter(fits).collect()
    }
}

fn broken_verdict(rule: &str, reason: String, remedy: Option<String>) -> Verdict {
    Verdict {
        kind: VerdictKind::Harmful,
        severity: Some(Severity::Broken),
        rule: rule.to_owned(),
        reason,
        remedy,
        source: Some("src/misc/socket.cc, src/transport/net_ib".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::setting::Location;

    fn verdict(name: &str, value: &str) -> Option<Verdict> {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let network = Network {
            interfaces: list(&["docker0", "ens5", "lo", "pod-id-link0"]),
            devices: list(&[
                "mlx5_0",
                "mlx5_1",
                "mlx5_10",
                "roceP2p1s0f0",
                "roceP2p1s0f1",
                "rocep1s0f0",
                "rocep1s0f1",
            ]),
        };
        network.check_names(
            &Setting::new(name, value, Location::without_line("environment")),
            &Situation::default(),
        )
    }

    #[test]
    fn interfaces_that_a_host_lacks_are_told() {
        let text = verdict("NCCL_SOCKET_IFNAME", "eth0").unwrap();
        assert_eq!(text.severity, Some(Severity::Broken));
        assert!(text.reason.contains("docker0, ens5, lo"), "{}", text.reason);
        assert_eq!(text.remedy.as_deref(), Some("set NCCL_SOCKET_IFNAME==ens5, or unset it"));
        for fine in ["ens", "=ens5", "^docker,lo,pod", "eth0,en", "ens5:1"] {
            assert_eq!(verdict("NCCL_SOCKET_IFNAME", fine), None, "{fine}");
        }
        assert_eq!(verdict("NCCL_SOCKET_IFNAME", "=ens").unwrap().rule, "socket-interface-missing");
        assert_eq!(verdict("NCCL_SOCKET_IFNAME", "^docker,lo").unwrap().rule, "socket-interface-link-local");
        assert_eq!(verdict("GLOO_SOCKET_IFNAME", "ens").unwrap().rule, "gloo-interface-missing");
        assert_eq!(verdict("GLOO_SOCKET_IFNAME", "ens5"), None);
        assert_eq!(verdict("FI_TCP_IFACE", "ens").unwrap().rule, "fabric-interface-missing");
        assert_eq!(verdict("FI_TCP_IFACE", "ens5"), None);
    }

    #[test]
    fn devices_are_prefixes_unless_told_otherwise() {
        let text = verdict("NCCL_IB_HCA", "mlx5_1:1").unwrap();
        assert_eq!(text.rule, "hca-prefix");
        assert!(text.reason.contains("selects mlx5_10"), "{}", text.reason);
        assert_eq!(verdict("NCCL_IB_HCA", "=mlx5_1"), None);
        assert_eq!(verdict("NCCL_IB_HCA", "mlx5"), None);
        assert_eq!(verdict("NCCL_IB_HCA", "ibp5s0").unwrap().rule, "hca-missing");
    }

    #[test]
    fn half_a_port_of_dgx_spark_is_told() {
        let text = verdict("NCCL_IB_HCA", "rocep1s0f1").unwrap();
        assert_eq!(text.rule, "hca-half-of-a-port");
        assert!(text.reason.contains("roceP2p1s0f1"), "{}", text.reason);
        assert_eq!(verdict("NCCL_IB_HCA", "=rocep1s0f1,roceP2p1s0f1"), None);
        assert_eq!(verdict("NCCL_IB_HCA", "roceP2p1s0f0").unwrap().rule, "hca-half-of-a-port");
    }
}
