use diagnosis::host::rdma::Refused;
use diagnosis::host::sample::{Machine, efa_container, efa_devices, efa_host, infiniband_host};
use rustix::io::Errno;

use super::*;

fn entry(provider: &str, endpoint: &str, capabilities: &str, domain: &str) -> Info {
    let mut entry = Info::default();
    entry.provider = provider.to_owned();
    entry.endpoint = format!("FI_EP_{endpoint}");
    entry.capabilities = capabilities.split(' ').map(|name| format!("FI_{name}")).collect();
    entry.domain = domain.to_owned();
    entry.fabric = "net".to_owned();
    entry
}

fn offered() -> Vec<Info> {
    vec![
        entry("tcp", "RDM", "MSG TAGGED RMA", "eth0"),
        entry("tcp", "RDM", "MSG TAGGED RMA", "lo"),
        entry("tcp", "MSG", "MSG RMA", "eth0"),
        entry("shm", "RDM", "MSG TAGGED RMA ATOMIC", "shm"),
        entry("udp", "DGRAM", "MSG MULTICAST", "eth0"),
    ]
}

/// Answers like libfabric, from [`offered`]. No node can be reached.
fn answer(hints: &Hints) -> Result<Vec<Info>, fabric::Error> {
    let fits = |entry: &Info| {
        hints.provider.as_ref().is_none_or(|name| *name == entry.provider)
            && hints.endpoint.is_none_or(|kind| kind.name() == entry.endpoint)
            && hints.capabilities.iter().all(|capability| entry.capabilities.contains(capability.name()))
            && hints.domain.as_ref().is_none_or(|name| *name == entry.domain)
            && hints.fabric.as_ref().is_none_or(|name| *name == entry.fabric)
            && hints.node.is_none()
    };
    Ok(offered().into_iter().filter(fits).collect())
}

fn hints(provider: Option<&str>, endpoint: Option<&str>, capabilities: &[&str]) -> Hints {
    Hints {
        provider: provider.map(str::to_owned),
        endpoint: endpoint.map(|kind| kind.parse().unwrap()),
        capabilities: capabilities.iter().map(|name| name.parse().unwrap()).collect(),
        ..Hints::default()
    }
}

fn explained(hints: &Hints) -> Vec<String> {
    assert_eq!(answer(hints).unwrap(), [], "something matches");
    texts(&why_not(hints, answer).unwrap())
}

fn why_not(
    hints: &Hints,
    ask: impl Fn(&Hints) -> Result<Vec<Info>, fabric::Error>,
) -> Result<Vec<Reason>, fabric::Error> {
    let of_provider = ask(&Hints { provider: hints.provider.clone(), ..Hints::default() })?;
    explain_excluded_providers(hints, &of_provider, ask)
}

fn texts(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(|reason| reason.text.clone()).collect()
}

#[test]
fn the_capability_that_excluded_a_provider_is_named() {
    let hints = hints(Some("tcp"), Some("rdm"), &["msg", "atomic"]);
    let found = why_not(&hints, answer).unwrap();
    let expected =
        ["provider tcp would match without the capability FI_ATOMIC", "without -p tcp these match: shm"];
    assert_eq!(texts(&found), expected);
    assert_eq!(
        (found[0].provider.as_deref(), &found[0].without[..]),
        (Some("tcp"), &["FI_ATOMIC".to_owned()][..])
    );
}

#[test]
fn without_a_provider_each_is_explained() {
    let expected = [
        "provider tcp would match without the endpoint type FI_EP_DGRAM (it has endpoint type FI_EP_RDM and \
         FI_EP_MSG)",
        "provider shm would match without the endpoint type FI_EP_DGRAM (it has endpoint type FI_EP_RDM)",
        "provider udp would match without the capability FI_RMA",
    ];
    assert_eq!(explained(&hints(None, Some("dgram"), &["rma"])), expected);
}

#[test]
fn what_stands_against_each_other_is_named_on_both_sides() {
    let expected = [
        "provider tcp would match without the endpoint type FI_EP_MSG (it has endpoint type FI_EP_RDM), or \
         without the capability FI_TAGGED",
    ];
    assert_eq!(explained(&hints(Some("tcp"), Some("msg"), &["tagged"])), expected);
}

#[test]
fn a_domain_that_is_not_there_is_answered_with_those_that_are() {
    let asked = Hints { domain: Some("eth9".to_owned()), ..hints(Some("tcp"), None, &[]) };
    assert_eq!(
        explained(&asked),
        ["provider tcp would match without the domain eth9 (it has domain eth0 and lo)"]
    );
    let asked = Hints { fabric: Some("other".to_owned()), ..hints(Some("shm"), None, &[]) };
    assert_eq!(explained(&asked), ["provider shm would match without the fabric other (it has fabric net)"]);
}

#[test]
fn when_no_single_hint_is_at_fault_all_are_named_that_are() {
    let expected = [
        "provider tcp lacks the capability FI_ATOMIC and the capability FI_MULTICAST",
        "provider shm would match without the capability FI_MULTICAST",
        "provider udp lacks the endpoint type FI_EP_RDM and the capability FI_ATOMIC",
    ];
    assert_eq!(explained(&hints(None, Some("rdm"), &["atomic", "multicast"])), expected);
    // Each pair of these fits no entry, though each single one does.
    let lo = Hints { domain: Some("lo".to_owned()), ..hints(Some("tcp"), Some("msg"), &["tagged"]) };
    let expected = "provider tcp has each of these, but not together: the endpoint type FI_EP_MSG, the \
                    capability FI_TAGGED, the domain lo";
    let impossible = |hints: &Hints| {
        let several = usize::from(hints.domain.is_some())
            + usize::from(hints.endpoint.is_some())
            + hints.capabilities.len();
        Ok(if several > 1 { Vec::new() } else { vec![entry("tcp", "RDM", "MSG", "lo")] })
    };
    assert_eq!(texts(&why_not(&lo, impossible).unwrap()), [expected]);
}

#[test]
fn a_node_that_is_not_reached_comes_with_advice() {
    let asked = Hints { node: Some("nowhere".to_owned()), ..hints(Some("udp"), None, &[]) };
    let found = why_not(&asked, answer).unwrap();
    assert_eq!(texts(&found), ["provider udp would match without the node nowhere"]);
    assert!(found[0].advice.as_ref().unwrap().contains("getent hosts"));
}

#[test]
fn an_error_of_libfabric_is_passed_on() {
    let failing = |_: &Hints| {
        Err(fabric::Error::Provider { provider: "tcp".to_owned(), problem: "it is gone".to_owned() })
    };
    let error = why_not(&hints(Some("tcp"), None, &[]), failing).unwrap_err();
    assert!(error.to_string().contains("it is gone"), "{error}");
}

/// Returns the reasons why a provider is missing on a machine, by a libfabric of this version with these
/// providers.
fn why(wanted: &str, version: (u16, u16), registered: &[&str], library: &str, host: &Host) -> Vec<Reason> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), library).unwrap();
    let registered: Vec<Registered> = registered
        .iter()
        .map(|name| Registered { name: (*name).to_owned(), version: Version::new(1, 0) })
        .collect();
    let hints = hints(Some(wanted), None, &[]);
    explain_missing_provider(&ProviderFacts {
        hints: &hints,
        all: &offered(),
        of_provider: &answer(&hints).unwrap(),
        registered: &registered,
        version: Version::new(version.0, version.1),
        path: file.path(),
        host,
        variable: None,
    })
}

/// Returns true if a reason has the words `text`, and its advice the words `advice`.
fn says(reasons: &[Reason], text: &str, advice: &str) -> bool {
    reasons.iter().any(|reason| {
        reason.text.contains(text) && reason.advice.as_deref().unwrap_or_default().contains(advice)
    })
}

#[test]
fn on_an_efa_host_the_libfabric_is_at_fault() {
    let host = efa_host().read_host();
    let found = why("efa", (2, 5), &["tcp"], "a libfabric", &host);
    assert!(
        says(&found, "has no provider efa; it has tcp. It was built without", "/opt/amazon/efa/lib"),
        "{found:#?}"
    );
    assert!(
        says(&found, "1 EFA device (driver efa, ACTIVE 100 Gb/sec (4X EDR)): rdmap0s6", ""),
        "{found:#?}"
    );
    assert!(says(&found, "1 EFA device (driver efa, DOWN 100 Gb/sec (4X EDR)): rdmap10s6", ""), "{found:#?}");
    assert_eq!(found.len(), 2, "{found:#?}");

    let linked = why("efa", (1, 17), &["tcp"], "needs libefa.so.1", &host);
    assert!(says(&linked, "it links libefa.so", ""), "{linked:#?}");
    assert!(says(&linked, "libfabric 1.17 is old for EFA", "FABRIC_LIBRARY"), "{linked:#?}");

    let there = why("efa", (2, 5), &["tcp", "efa"], "needs libefa.so.1", &host);
    assert!(says(&there, "has the provider efa, but it finds nothing here", ""), "{there:#?}");
    assert!(says(&there, "no cause is visible", "FI_LOG_PROV=efa"), "{there:#?}");
}

#[test]
fn an_efa_host_whose_links_are_down_or_whose_driver_is_missing_is_told_so() {
    let down = Machine::new()
        .with_device("rdmap0s6", "efa", "1: DOWN", "Unspecified")
        .with_file("dev/infiniband/uverbs0", "");
    let found = why("efa", (2, 5), &["efa"], "", &down.read_host());
    assert!(says(&found, "no EFA device is up", "dmesg"), "{found:#?}");
    let bare = Machine::new().with_pci_device("0000:00:06.0", "0xefa2", None);
    let found = why("efa", (2, 5), &["efa"], "", &bare.read_host());
    assert!(says(&found, "(0000:00:06.0), but no driver serves them", "modprobe efa"), "{found:#?}");
    assert!(says(&found, "kernel module efa is not loaded", "modprobe efa"), "{found:#?}");
    assert!(says(&found, "no /dev/infiniband/uverbs*", "modprobe ib_uverbs"), "{found:#?}");
    // Loaded modules need not be loaded again.
    let loaded = bare.with_file("sys/module/efa/refcnt", "0").with_file("sys/module/ib_uverbs/refcnt", "0");
    let found = why("efa", (2, 5), &["efa"], "", &loaded.read_host());
    assert!(says(&found, "(0000:00:06.0), but no driver serves them", "see dmesg"), "{found:#?}");
    assert!(says(&found, "ib_uverbs is loaded, and makes one for each device", ""), "{found:#?}");
    assert!(!says(&found, "", "modprobe"), "{found:#?}");
}

#[test]
fn devices_that_another_network_namespace_has_are_told_from_those_without_a_driver() {
    let served = |driver| {
        Machine::new()
            .with_pci_device("0000:00:06.0", "0xefa2", Some(driver))
            .with_pci_device("0000:00:07.0", "0xefa2", Some(driver))
            .with_file("sys/module/ib_uverbs/refcnt", "0")
    };
    let mode = |machine: Machine, mode| machine.with_file("sys/module/ib_core/parameters/netns_mode", mode);
    let why = |machine: Machine| why("efa", (2, 5), &["efa"], "", &machine.read_host());
    let invisible = "the driver efa serves EFA devices on the PCI bus (0000:00:06.0 and 0000:00:07.0), but";

    let found = why(mode(served("efa"), "N\n").with_file(".dockerenv", ""));
    let alone = "not visible in this network namespace: the host has each RDMA device in one alone (rdma \
                 system: netns exclusive)";
    assert!(says(&found, invisible, "--network=host") && says(&found, alone, "netns shared"), "{found:#?}");
    assert!(!says(&found, "no driver", "") && !says(&found, "not loaded", ""), "{found:#?}");
    assert!(!says(&found, "", "modprobe"), "{found:#?}");
    let found = why(mode(served("efa"), "N\n").with_file("proc/1/cgroup", "0::/kubepods/pod7"));
    assert!(says(&found, alone, "hostNetwork: true"), "{found:#?}");
    // A kernel without an answer.
    let found = why(served("efa"));
    assert!(says(&found, "the host probably has each", "in the host's network namespace"), "{found:#?}");
    assert!(says(&found, "ib_uverbs is loaded, but udev has not made them", "udevadm trigger"), "{found:#?}");
    // It is not the namespace.
    let found = why(mode(served("efa"), "Y\n"));
    assert!(says(&found, invisible, "mounted over /sys"), "{found:#?}");
    assert!(!says(&found, "", "--network=host"), "{found:#?}");

    let mixed = served("vfio-pci").with_pci_device("0000:00:08.0", "0xefa2", None);
    let found = why(mixed);
    let held = "EFA devices (0000:00:06.0 and 0000:00:07.0), but the driver vfio-pci holds them, not efa";
    assert!(says(&found, held, "/sys/bus/pci/drivers/efa/bind"), "{found:#?}");
    assert!(says(&found, "(0000:00:08.0), but no driver serves them", "modprobe efa"), "{found:#?}");
}

#[test]
fn device_files_that_cannot_be_opened_are_named_with_what_to_do() {
    let why = |host: &Host| why("efa", (2, 5), &["efa"], "", host);
    let refusing = |container, error| {
        let refused = ["uverbs0", "uverbs1"].map(|name| Refused { name: name.to_owned(), error });
        Host { container, refused: refused.to_vec(), ..efa_host().read_host() }
    };
    let forbidden =
        "uverbs0 and uverbs1 are there, but cannot be opened: Operation not permitted (os error 1)";
    for (container, error, text, advice) in [
        (Some("Docker"), Errno::PERM, forbidden, "--device=/dev/infiniband/uverbs0, not -v"),
        (
            Some("Kubernetes"),
            Errno::PERM,
            forbidden,
            "vpc.amazonaws.com/efa of the EFA device plugin, not as a volume",
        ),
        (None, Errno::PERM, forbidden, "DeviceAllow="),
        (Some("Podman"), Errno::ACCESS, "Permission denied", "--device=/dev/infiniband/uverbs0, not -v"),
        (
            None,
            Errno::ACCESS,
            "Permission denied",
            "ls -l /dev/infiniband/uverbs0; the kernel makes it for all",
        ),
        (None, Errno::NXIO, "No such device or address", "no device is behind it"),
        (Some("Docker"), Errno::NXIO, "No such device or address", "start the container again"),
        (None, Errno::IO, "Input/output error", "dmesg"),
    ] {
        let found = why(&refusing(container, error));
        assert!(says(&found, text, advice), "{error} {container:?}: {found:#?}");
        assert!(!says(&found, "there is no /dev/infiniband", ""), "{found:#?}");
        assert!(!says(&found, "no cause is visible", ""), "{found:#?}");
    }
    // The namespace is at fault.
    let elsewhere =
        Host { devices: Vec::new(), shared_devices: Some(false), ..refusing(Some("Docker"), Errno::PERM) };
    assert!(says(&why(&elsewhere), forbidden, "--network=host"), "{:#?}", why(&elsewhere));
    // Really tried, and one by one.
    let host = efa_host().with_link("dev/infiniband/uverbs2", "nowhere").read_host();
    let found = why(&host);
    let one = "/dev/infiniband/uverbs2 is there, but cannot be opened: No such file or directory";
    assert!(says(&found, one, "ls -l /dev/infiniband/uverbs2"), "{found:#?}");
    assert!(!says(&found, "uverbs0", ""), "{found:#?}");
}

#[test]
fn on_an_infiniband_host_efa_is_not_to_be_had() {
    let host = infiniband_host().read_host();
    let found = why("efa", (2, 5), &["efa"], "", &host);
    let devices = "no EFA device, but 2 RDMA devices (driver mlx5_core, InfiniBand ACTIVE 100 Gb/sec (4X \
                   EDR)): mlx5_2 and mlx5_10";
    assert!(says(&found, devices, "-p 'verbs;ofi_rxm'"), "{found:#?}");
    assert!(says(&found, "no more than 64 KiB", "ulimit -l unlimited"), "{found:#?}");

    let found = why("verbs;ofi_rxm", (2, 5), &["tcp", "ofi_rxm"], "", &host);
    assert!(says(&found, "has no provider verbs", "FABRIC_LIBRARY=<path>"), "{found:#?}");
    assert!(says(&found, "this host has 2 RDMA devices", ""), "{found:#?}");
    assert!(!says(&found, "rdma_cm", "") && !says(&found, "old for EFA", ""), "{found:#?}");
    let no_manager = Machine::new().with_device("mlx5_0", "mlx5_core", "4: ACTIVE", "Ethernet");
    let found =
        why("verbs", (2, 5), &["verbs"], "", &no_manager.with_file("dev/infiniband/uverbs0", "").read_host());
    assert!(says(&found, "no /dev/infiniband/rdma_cm", "modprobe rdma_ucm"), "{found:#?}");
}

#[test]
fn in_a_container_the_advice_is_for_the_one_who_starts_it() {
    let found = why("efa", (2, 5), &["efa"], "", &efa_container().read_host());
    assert!(says(&found, "no /dev/infiniband/uverbs*", "--device=/dev/infiniband"), "{found:#?}");
    assert!(says(&found, "they are missing from this container", ""), "{found:#?}");
    assert!(!says(&found, "", "modprobe"), "{found:#?}");
    assert!(says(&found, "no more than 64 KiB", "--ulimit memlock=-1:-1"), "{found:#?}");
    assert!(says(&found, "this is a container (Docker)", ""), "{found:#?}");

    let pod =
        Machine::new().with_file("proc/1/cgroup", "0::/kubepods/pod7").with_memlock("65536").read_host();
    let found = why("efa", (2, 5), &["efa"], "", &pod);
    assert!(says(&found, "no /dev/infiniband/uverbs*", "vpc.amazonaws.com/efa"), "{found:#?}");
    assert!(says(&found, "no more than 64 KiB", "LimitMEMLOCK"), "{found:#?}");
    assert!(says(&found, "kernel module efa is not loaded", "on the host: modprobe efa"), "{found:#?}");
    assert!(
        says(&found, "no /dev/infiniband/uverbs*", "on the host: modprobe ib_uverbs; then"),
        "{found:#?}"
    );
}

/// A pod on EKS: version 2 of control groups, each in a namespace of its own.
#[test]
fn in_a_pod_whose_control_group_has_no_name_the_resource_is_named() {
    let pod = efa_devices()
        .with_file("proc/1/cgroup", "0::/\n")
        .with_file(
            "proc/self/mountinfo",
            "1519 1511 259:1 /var/lib/kubelet/pods/6f1c/etc-hosts /etc/hosts rw,noatime - xfs /dev/nvme0n1p1 \
             rw\n",
        )
        .with_memlock("65536")
        .read_host();
    let found = why("efa", (2, 5), &["efa"], "", &pod);
    assert!(says(&found, "they are missing from this container", "vpc.amazonaws.com/efa"), "{found:#?}");
    assert!(says(&found, "no more than 64 KiB", "LimitMEMLOCK"), "{found:#?}");
    assert!(says(&found, "this is a container (Kubernetes)", ""), "{found:#?}");
    assert!(!says(&found, "", "modprobe"), "{found:#?}");
}

#[test]
fn other_providers_are_missing_by_name() {
    let host = Host::default();
    let slip = why("smh", (2, 5), &["tcp", "shm", "ofi_hook_perf"], "", &host);
    assert!(says(&slip, "has no provider smh; it has tcp, shm", "did you mean -p shm?"), "{slip:#?}");
    assert!(!says(&slip, "ofi_hook_perf", ""), "{slip:#?}");
    let either = why("smm", (2, 5), &["shm", "sm2", "tcp"], "", &host);
    assert!(says(&either, "no provider smm", "did you mean -p shm or -p sm2?"), "{either:#?}");
    let renamed = why("net", (2, 5), &["tcp", "shm"], "", &host);
    assert!(says(&renamed, "libfabric 2.5 calls the provider net tcp", "-p tcp"), "{renamed:#?}");
    let other = why("xyzzy", (2, 5), &["tcp"], "", &host);
    assert!(says(&other, "has no provider xyzzy", "choose one of them"), "{other:#?}");
    let idle = why("psm2", (1, 17), &["tcp", "psm2"], "", &host);
    assert!(says(&idle, "has the provider psm2, but it finds nothing here", ""), "{idle:#?}");
    assert!(says(&idle, "no cause is visible", "FI_LOG_LEVEL=debug FI_LOG_PROV=psm2"), "{idle:#?}");
    // An excluded provider need not exist.
    let excluded = why("psm2;^efa", (1, 17), &["psm2"], "", &host);
    assert!(says(&excluded, "has the provider psm2;^efa, but it finds nothing here", ""), "{excluded:#?}");
    // A present provider is not missing for any reason.
    assert_eq!(why("tcp", (2, 5), &["tcp"], "", &host), []);
}

#[test]
fn a_variable_that_hides_providers_is_named() {
    let (wanted, none) = (hints(Some("tcp"), None, &[]), hints(None, None, &[]));
    let mut known = ProviderFacts {
        hints: &wanted,
        all: &[],
        of_provider: &[],
        registered: &[],
        version: Version::new(2, 5),
        path: Path::new("/nowhere"),
        host: &Host::default(),
        variable: Some("shm"),
    };
    let found = explain_missing_provider(&known);
    assert!(says(&found, "FI_PROVIDER=shm", "unset FI_PROVIDER"), "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
    known.variable = Some("shm,tcp");
    assert!(!says(&explain_missing_provider(&known), "FI_PROVIDER", ""), "it has tcp in it");
    known.hints = &none;
    known.variable = Some("nonsense");
    assert!(says(&explain_missing_provider(&known), "FI_PROVIDER=nonsense", "unset FI_PROVIDER"));
    known.variable = None;
    assert!(says(&explain_missing_provider(&known), "offers nothing on this machine", "FI_LOG_LEVEL=warn"));
    for (value, provider, expected) in [
        ("^tcp", "tcp", true),
        ("^shm,udp", "tcp", false),
        ("TCP", "tcp", false),
        ("tcp", "tcp;ofi_rxm", false),
        ("tcp;ofi_rxm", "tcp;ofi_rxm", false),
        ("tcp2", "tcp", true),
    ] {
        assert_eq!(hides_provider(value, provider), expected, "{value} {provider}");
    }
}

#[test]
fn a_driver_that_is_loaded_is_not_to_be_loaded() {
    let bare = Machine::new();
    let found = devices::explain_verbs(&bare.read_host());
    assert!(says(&found, "no RDMA device", "modprobe mlx5_ib"), "{found:#?}");
    let loaded = bare.with_file("sys/module/mlx5_ib/refcnt", "0");
    let found = devices::explain_verbs(&loaded.read_host());
    assert!(says(&found, "though the driver mlx5_ib is loaded", "rdma link"), "{found:#?}");
    assert!(!says(&found, "", "modprobe mlx5_ib"), "{found:#?}");
    let alone = loaded.with_file("sys/module/ib_core/parameters/netns_mode", "N\n");
    let found = devices::explain_verbs(&alone.read_host());
    assert!(says(&found, "netns exclusive", "--network=host"), "{found:#?}");
}
