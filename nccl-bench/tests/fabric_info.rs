//! `nccl-bench fabric info` with the machine's libfabric and every one that `cargo xtask wheels libfabric`
//! has unpacked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "../../tests/wheels/mod.rs"]
mod wheels;

fn run(library: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args(["fabric", "info"]).args(arguments).env_remove("FABRIC_LIBRARY").env_remove("FI_PROVIDER");
    if let Some(library) = library {
        command.env("FABRIC_LIBRARY", library);
    }
    command.output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The output, with the expected exit code.
fn printed(library: Option<&Path>, arguments: &[&str], code: i32) -> String {
    let output = run(library, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", out(&output), err(&output));
    assert_eq!(err(&output), "", "{arguments:?}");
    out(&output)
}

/// The rows of the table, as cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .skip_while(|line| !line.starts_with("provider "))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect()
}

#[test]
fn tcp_and_shm_are_listed_with_what_they_can_do() {
    for library in wheels::each_libfabric() {
        let text = printed(library.as_deref(), &[], 0);
        if let Some(path) = &library {
            assert!(text.lines().next().unwrap().contains(path.to_str().unwrap()), "{text}");
        }
        let old = text.starts_with("libfabric 1.17 ");
        assert_ne!(old, library.is_some(), "{text}");
        let rows = rows(&text);
        let row = |provider: &str, endpoint: &str, domain: &str| {
            rows.iter()
                .find(|row| (row[0], row[1], row[2]) == (provider, domain, endpoint))
                .unwrap_or_else(|| panic!("no {provider} {domain} {endpoint} in {text}"))
        };
        let tcp = row(if old { "net" } else { "tcp" }, "RDM", "lo");
        assert!(tcp[3].starts_with("MSG TAGGED RMA"), "{text}");
        assert!(tcp[4].contains("127.0.0.1/"), "{text}");
        assert_eq!(row("tcp", "MSG", "lo")[3], "MSG RMA", "{text}");
        assert_eq!(row("shm", "RDM", "shm")[3], "MSG TAGGED RMA ATOMIC", "{text}");
        // No duplicates.
        assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len(), "{text}");
    }
}

#[test]
fn what_excluded_tcp_is_named() {
    for library in wheels::libfabrics() {
        let asked = ["-p", "tcp;^ofi_rxm", "-c", "ATOMIC", "-t", "FI_EP_RDM"];
        let text = printed(Some(&library), &asked, 1);
        assert!(text.contains("Nothing matches -p 'tcp;^ofi_rxm' -t FI_EP_RDM -c FI_ATOMIC."), "{text}");
        assert!(text.contains("- provider tcp would match without the capability FI_ATOMIC\n"), "{text}");
        let others = text.split_once("without -p tcp;^ofi_rxm these match: ").unwrap().1;
        assert!(others.split(['\n', ',']).any(|name| name.trim() == "tcp;ofi_rxm"), "{text}");
    }
    // The tcp of 1.17 is an older one, which connects.
    let text = printed(None, &["-p", "tcp;^ofi_rxm", "-t", "rdm"], 1);
    let reason =
        "provider tcp would match without the endpoint type FI_EP_RDM (it has endpoint type FI_EP_MSG)";
    assert!(text.contains(reason), "{text}");
}

/// The answers of `fi_info -p` of both libfabrics.
#[test]
fn a_provider_is_what_libfabric_takes_it_for() {
    for library in wheels::each_libfabric() {
        let entries = |arguments: &[&str]| -> Vec<Value> {
            let text = printed(library.as_deref(), &[arguments, &["--json"]].concat(), 0);
            let value: Value = serde_json::from_str(&text).unwrap();
            value["entries"].as_array().unwrap().clone()
        };
        let providers = |arguments: &[&str]| -> BTreeSet<String> {
            let name = |entry: &Value| entry["provider"].as_str().unwrap().to_owned();
            entries(arguments).iter().map(name).collect()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let all = providers(&[]);
        let tcp = ["tcp", "tcp;ofi_rxm"];
        assert!(
            set(&tcp).union(&set(&["shm", "udp", "udp;ofi_rxd"])).all(|name| all.contains(name)),
            "{all:?}"
        );
        for asked in ["tcp", "TCP"] {
            assert_eq!(providers(&["-p", asked]), set(&tcp), "{asked}");
        }
        for asked in ["tcp;ofi_rxm", "ofi_rxm;tcp"] {
            assert_eq!(providers(&["-p", asked]), set(&["tcp;ofi_rxm"]), "{asked}");
        }
        assert_eq!(providers(&["-p", "tcp;^ofi_rxm"]), set(&["tcp"]));
        assert_eq!(providers(&["-p", "ofi_rxd"]), set(&["udp;ofi_rxd"]));
        let without = |excluded: &[&str]| -> BTreeSet<String> { &all - &set(excluded) };
        assert_eq!(providers(&["-p", "^shm"]), without(&["shm"]));
        assert_eq!(providers(&["-p", "^tcp;^shm"]), without(&["shm", "tcp", "tcp;ofi_rxm"]));
        let rdm = entries(&["-p", "tcp", "-c", "tagged|RMA", "-t", "rdm"]);
        assert!(rdm.iter().all(|entry| entry["endpoint"] == "FI_EP_RDM"), "{rdm:?}");
        let text = printed(library.as_deref(), &["-p", "shm;^shm"], 1);
        assert!(text.contains("has the provider shm;^shm, but it finds nothing here"), "{text}");
    }
}

#[test]
fn a_host_without_an_address_is_refused_before_anything_is_listed() {
    for arguments in
        [&["-n", "no.such.host.invalid", "-s", "1"][..], &["-p", "udp", "-n", "no.such.host.invalid"]]
    {
        let output = run(None, arguments);
        let message = err(&output);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{message}");
        let start = "error: -n no.such.host.invalid: this host finds no address for the name (";
        assert!(
            message.starts_with(start) && message.ends_with("(getent hosts no.such.host.invalid)\n"),
            "{message}"
        );
    }
}

/// The other host's address is one for documentation, which no host has.
#[test]
fn shared_memory_reaches_this_host_alone() {
    for library in wheels::each_libfabric() {
        let library = library.as_deref();
        let providers =
            |text: &str| -> BTreeSet<String> { rows(text).iter().map(|row| row[0].to_owned()).collect() };
        for here in ["localhost", "127.0.0.1"] {
            let text = printed(library, &["-n", here, "-s", "1"], 0);
            assert!(providers(&text).contains("shm"), "{text}");
        }
        let elsewhere = run(library, &["-n", "198.51.100.7", "-s", "1"]);
        assert!(!providers(&out(&elsewhere)).contains("shm"), "{}", out(&elsewhere));
        let text = printed(library, &["-p", "shm", "-n", "198.51.100.7"], 1);
        assert!(text.contains("- provider shm would match without the node 198.51.100.7\n"), "{text}");
    }
}

#[test]
fn each_hint_that_excludes_is_named_with_what_there_is() {
    for library in wheels::each_libfabric() {
        let library = library.as_deref();
        let text = printed(library, &["-p", "udp", "-d", "nowhere0"], 1);
        assert!(
            text.contains("provider udp would match without the domain nowhere0 (it has domain "),
            "{text}"
        );
        let text = printed(library, &["-p", "udp", "-f", "nowhere"], 1);
        assert!(text.contains("provider udp would match without the fabric nowhere"), "{text}");
        let text = printed(library, &["-p", "udp", "-t", "dgram", "-c", "rma"], 1);
        assert!(text.contains("provider udp would match without the capability FI_RMA"), "{text}");
        let text = printed(library, &["-p", "smh"], 1);
        assert!(text.contains("has no provider smh") && text.contains("did you mean -p shm"), "{text}");
    }
}

#[test]
fn a_provider_that_this_libfabric_does_not_have_is_looked_for() {
    for library in wheels::libfabrics() {
        let text = printed(Some(&library), &["-p", "efa", "-t", "FI_EP_RDM"], 1);
        assert!(text.contains("has no provider efa; it has "), "{text}");
        assert!(text.contains("-> load one that has it: FABRIC_LIBRARY="), "{text}");
    }
    let hidden = Command::new(env!("CARGO_BIN_EXE_nccl-bench"))
        .args(["fabric", "info", "-p", "udp"])
        .env_remove("FABRIC_LIBRARY")
        .env("FI_PROVIDER", "shm")
        .output()
        .unwrap();
    assert_eq!(hidden.status.code(), Some(1), "{}{}", out(&hidden), err(&hidden));
    assert!(out(&hidden).contains("-> unset FI_PROVIDER"), "{}", out(&hidden));
}

#[test]
fn the_json_has_what_the_table_has() {
    for library in wheels::each_libfabric() {
        let library = library.as_deref();
        let text = printed(library, &["-t", "rdm"], 0);
        let value: Value = serde_json::from_str(&printed(library, &["-t", "rdm", "--json"], 0)).unwrap();
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["asked"], serde_json::json!({"endpoint": "FI_EP_RDM"}));
        let head = text.lines().next().unwrap();
        for part in [&value["libfabric"]["version"], &value["libfabric"]["path"], &value["host"]] {
            assert!(head.contains(part.as_str().unwrap()), "{part} is not in {head}");
        }
        let entries = value["entries"].as_array().unwrap();
        assert!(text.contains(&format!("\n{} entries of ", entries.len())), "{text}");
        assert!(value.get("reasons").is_none(), "{value}");

        let field = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
        let in_json: BTreeSet<_> = entries
            .iter()
            .map(|entry| (field(entry, "provider"), field(entry, "domain"), field(entry, "endpoint")))
            .collect();
        let in_table: BTreeSet<_> = rows(&text)
            .iter()
            .map(|row| (row[0].to_owned(), row[1].to_owned(), format!("FI_EP_{}", row[2])))
            .collect();
        assert_eq!(in_json, in_table, "{text}");
        let shm = entries.iter().find(|entry| entry["provider"] == "shm").unwrap();
        assert!(shm["capabilities"].as_array().unwrap().contains(&"FI_TAGGED".into()), "{shm}");

        let none = printed(library, &["-p", "udp", "-d", "nowhere0", "--json"], 1);
        let none: Value = serde_json::from_str(&none).unwrap();
        assert_eq!(none["entries"], serde_json::json!([]));
        for provider in ["udp", "udp;ofi_rxd"] {
            let reasons = none["reasons"].as_array().unwrap();
            let reason = reasons.iter().find(|reason| reason["provider"] == provider).unwrap();
            assert_eq!(reason["without"], serde_json::json!(["nowhere0"]));
        }
    }
}

#[test]
fn the_list_has_every_provider_and_counts_its_entries() {
    for library in wheels::each_libfabric() {
        let text = printed(library.as_deref(), &["--list"], 0);
        let rows = rows(&text);
        let of = |name: &str| {
            rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}: {text}"))
        };
        assert!(of("shm")[2].parse::<usize>().unwrap() > 0, "{text}");
        assert_eq!(of("ofi_hook_noop")[2], "-", "{text}");
        let value: Value = serde_json::from_str(&printed(library.as_deref(), &["-l", "--json"], 0)).unwrap();
        assert_eq!(value["providers"].as_array().unwrap().len(), rows.len(), "{text}");
        assert!(value.get("entries").is_none(), "{value}");
    }
}

#[test]
fn verbose_says_all_of_what_is_asked_for() {
    for library in wheels::each_libfabric() {
        let text = printed(library.as_deref(), &["-p", "shm", "-v"], 0);
        for part in
            ["  capabilities ", "FI_EP_RDM, FI_PROTO_SHM", "FI_MR_VIRT_ADDR", "FI_THREAD_SAFE", "FI_ADDR_STR"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[test]
fn without_a_libfabric_one_sentence_says_so() {
    for arguments in [&[][..], &["--json"], &["-l"], &["-p", "efa"]] {
        let output = run(Some(Path::new("/nowhere/libfabric.so.1")), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(out(&output), "", "{arguments:?}");
        let text = err(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in
            ["no usable libfabric", "/nowhere/libfabric.so.1", "apt-get install libfabric1", "FABRIC_LIBRARY"]
        {
            assert!(text.contains(part), "no '{part}' in: {text}");
        }
    }
}

#[test]
fn bad_values_are_refused_with_those_that_are_known() {
    for (arguments, parts) in [
        (&["-t", "stream"][..], &["'stream' is none of FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM"][..]),
        (&["-c", "MSG,TAG"], &["'TAG' is none of FI_MSG, FI_TAGGED, FI_RMA"]),
        (&["-c", ""], &["'' is none of FI_MSG"]),
        (&["-l", "-p", "tcp"], &["--list", "--provider"]),
        (&["-v", "--json"], &["--verbose", "--json"]),
        (&["-m", "x"], &["-m"]),
        (&["tcp"], &["tcp"]),
    ] {
        let output = run(None, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(out(&output), "", "{arguments:?}");
        for part in parts {
            assert!(err(&output).contains(part), "no '{part}' in: {}", err(&output));
        }
    }
}
