use super::*;
use crate::command::fabric::info::reasons::Reason;
use crate::command::fabric::info::{FabricInfoArguments, Host, Libfabric, Provider, print_answer};
use collectives::fabric::Link;
use diagnosis::host::sample::efa_host;

fn entry(provider: &str, domain: &str, capabilities: &[&str]) -> Info {
    let mut entry = Info::default();
    entry.provider = provider.to_owned();
    entry.provider_version = "205.10".to_owned();
    entry.fabric = format!("{domain}-net");
    entry.domain = domain.to_owned();
    entry.endpoint = "FI_EP_RDM".to_owned();
    entry.protocol = "FI_PROTO_XNET".to_owned();
    entry.address_format = "FI_SOCKADDR_IN".to_owned();
    entry.capabilities = capabilities.iter().map(|name| (*name).to_owned()).collect();
    entry.max_message_bytes = usize::MAX;
    entry.inject_bytes = 128;
    entry
}

/// Returns a device with a link in the state `up`.
fn nic(device: &str) -> Nic {
    let (mut nic, mut link) = (Nic::default(), Link::default());
    link.state = "up".to_owned();
    nic.device = Some(device.to_owned());
    nic.link = Some(link);
    nic
}

fn answer(entries: Option<Vec<Info>>, host: Host) -> Answer {
    Answer {
        schema_version: 1,
        program: "nccl-bench".to_owned(),
        host: "node".to_owned(),
        libfabric: Libfabric { version: "2.5".to_owned(), path: "/lib/libfabric.so.1".to_owned() },
        asked: Hints::default(),
        providers: vec![
            Provider { name: "tcp".to_owned(), version: "205.10".to_owned(), entries: 12 },
            Provider { name: "ofi_hook_perf".to_owned(), version: "205.10".to_owned(), entries: 0 },
        ],
        devices: host.devices,
        entries,
        reasons: Vec::new(),
    }
}

fn text(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the lines after the head with this host's name.
fn lines(text: &str) -> Vec<&str> {
    assert!(text.starts_with("libfabric 2.5 (/lib/libfabric.so.1) on node\n"), "{text}");
    text.lines().skip(1).collect()
}

#[test]
fn the_table_is_aligned_and_has_no_link_where_nobody_has_one() {
    let found =
        vec![entry("tcp;ofi_rxm", "lo", &["FI_MSG", "FI_RMA", "FI_SEND"]), entry("shm", "shm", &["FI_MSG"])];
    let answer = answer(Some(found), Host::default());
    let text = text(|out| print_entries(&answer, false, out));
    let expected = [
        "2 entries of 2 providers",
        "",
        "provider     domain  endpoint  capabilities  fabric",
        "tcp;ofi_rxm  lo      RDM       MSG RMA       lo-net",
        "shm          shm     RDM       MSG           shm-net",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn devices_are_counted_and_their_links_shown() {
    let mut nic = nic("rdmap");
    nic.link.as_mut().unwrap().bits_per_second = 100_000_000_000;
    let found = (0..32).map(|index| {
        let mut entry = entry("efa", &format!("rdmap{index}"), &["FI_MSG", "FI_HMEM"]);
        entry.fabric = "efa".to_owned();
        entry.nic = Some(nic.clone());
        entry
    });
    let found = found.chain([entry("shm", "shm", &["FI_MSG"])]).collect();
    let answer = answer(Some(found), efa_host().read_host());
    let text = text(|out| print_entries(&answer, false, out));
    let expected = [
        "1 EFA device (driver efa, ACTIVE 100 Gb/sec (4X EDR)): rdmap0s6; \
         1 EFA device (driver efa, DOWN 100 Gb/sec (4X EDR)): rdmap10s6",
        "33 entries of 2 providers",
        "",
        "provider  domain                      endpoint  capabilities  link          fabric",
        "efa       rdmap0, rdmap1 and 30 more  RDM       MSG HMEM      up, 100 Gb/s  efa",
        "shm       shm                         RDM       MSG           -             shm-net",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn verbose_has_all_attributes_and_folds_what_is_equal() {
    let mut nic = nic("rdmap0");
    nic.driver = Some("efa".to_owned());
    nic.pci = Some("0000:00:06.0".to_owned());
    nic.link.as_mut().unwrap().mtu_bytes = 8760;
    let mut with_nic = entry("efa", "a", &["FI_MSG"]);
    (with_nic.nic, with_nic.address) = (Some(nic), Some("10.0.0.1".to_owned()));
    let answer =
        answer(Some(vec![with_nic.clone(), with_nic, entry("tcp", "b", &["FI_MSG"])]), Host::default());
    let text = text(|out| print_entries(&answer, true, out));
    for line in [
        "efa 205.10 (2 times)",
        "tcp 205.10",
        "  address          10.0.0.1, FI_SOCKADDR_IN",
        "  capabilities     FI_MSG",
        "  modes needed     none",
        "  message          up to any length",
        "  inject           up to 128 bytes",
        "  device           rdmap0, driver efa, PCI 0000:00:06.0",
        "  link             up, MTU 8760 bytes",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
    assert_eq!(text.matches("  device ").count(), 1, "{text}");
}

#[test]
fn reasons_stand_with_their_advice() {
    let mut answer = answer(Some(Vec::new()), Host::default());
    answer.asked = Hints {
        provider: Some("verbs;ofi_rxm".to_owned()),
        endpoint: Some("rdm".parse().unwrap()),
        capabilities: vec!["rma".parse().unwrap(), "msg".parse().unwrap()],
        node: Some("there".to_owned()),
        ..Hints::default()
    };
    answer.reasons = vec![
        Reason {
            text: "it is not there".to_owned(),
            advice: Some("bring it".to_owned()),
            ..Reason::default()
        },
        Reason { text: "nobody knows".to_owned(), ..Reason::default() },
    ];
    let found = text(|out| print_entries(&answer, false, out));
    let expected = [
        "",
        "Nothing matches -p 'verbs;ofi_rxm' -t FI_EP_RDM -c FI_RMA,FI_MSG -n there.",
        "- it is not there",
        "  -> bring it",
        "- nobody knows",
    ];
    assert_eq!(lines(&found), expected);
    answer.asked = Hints::default();
    assert!(text(|out| print_entries(&answer, false, out)).contains("\nNothing matches at all.\n"));
}

#[test]
fn providers_are_listed_with_their_entries() {
    let text = text(|out| print_providers(&answer(None, Host::default()), out));
    let expected = [
        "",
        "provider       version  entries here",
        "tcp            205.10   12",
        "ofi_hook_perf  205.10   -",
    ];
    assert_eq!(lines(&text), expected);
}

#[test]
fn every_field_of_the_json_is_documented() {
    let mut nic = nic("rdmap0");
    nic.device_id = Some("0xefa1".to_owned());
    nic.device_version = Some("1".to_owned());
    nic.vendor_id = Some("0x1d0f".to_owned());
    nic.driver = Some("efa".to_owned());
    nic.firmware = Some("0".to_owned());
    nic.pci = Some("0000:00:06.0".to_owned());
    let link = nic.link.as_mut().unwrap();
    link.address = Some("fe80::1".to_owned());
    link.network = Some("Ethernet".to_owned());
    let mut full = entry("efa", "a", &["FI_MSG"]);
    (full.nic, full.address) = (Some(nic), Some("10.0.0.1".to_owned()));
    let mut answer = answer(Some(vec![full]), efa_host().read_host());
    answer.asked = Hints {
        provider: Some("efa".to_owned()),
        endpoint: Some("rdm".parse().unwrap()),
        capabilities: vec!["rma".parse().unwrap()],
        domain: Some("a".to_owned()),
        fabric: Some("b".to_owned()),
        node: Some("c".to_owned()),
        service: Some("d".to_owned()),
    };
    answer.reasons = vec![Reason {
        text: "why".to_owned(),
        advice: Some("do".to_owned()),
        provider: Some("efa".to_owned()),
        without: vec!["FI_ATOMIC".to_owned()],
    }];
    let arguments = FabricInfoArguments { json: true, ..FabricInfoArguments::default() };
    let text = text(|out| print_answer(&answer, &arguments, out));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["schema_version"], &value["libfabric"]["version"]), (&1.into(), &"2.5".into()));
    let mut names = BTreeSet::new();
    collect(&value, &mut names);
    assert!(names.contains("bits_per_second") && names.contains("link_layer"), "{names:?}");
    let documentation = include_str!("../../../../../../docs/results.md");
    let (_, part) = documentation.split_once("## `nccl-bench fabric info --json`").unwrap();
    let part = part.split("\n## ").next().unwrap();
    let missing: Vec<&String> = names.iter().filter(|name| !part.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/results.md does not say what {missing:?} are");
}

fn collect(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                names.insert(name.clone());
                collect(field, names);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
        _ => {}
    }
}
