//! Checks of all files of knowledge.

use std::collections::BTreeSet;
use std::fs;

use semver::Version;

use crate::finding::{Role, Severity};

use super::conflicts::{self, Conflicts, Together};
use super::faults::{self, Component, Faults};
use super::file::{check_lines, read_rules};
use super::rules::{FILES, Origin, Rules};

#[test]
fn every_file_is_read_and_every_rule_has_its_own_name() {
    let mut ids = BTreeSet::new();
    for (file, text) in FILES {
        let rules = read_rules(file, text).unwrap_or_else(|error| panic!("{error}"));
        assert!(!rules.is_empty(), "{file} has no rules");
        for rule in rules {
            assert!(ids.insert(rule.id.clone()), "{file}: two rules are named {}", rule.id);
        }
    }
    assert_eq!(Rules::built_in().iter().count(), ids.len());
}

#[test]
fn every_rule_finds_its_own_lines_and_no_other_rule_takes_them() {
    let rules = Rules::built_in();
    let mut faults = Vec::new();
    for rule in rules.iter() {
        if let Err((field, problem)) = check_lines(rule).and_then(|()| rules.check_search(rule)) {
            faults.push(format!("{}: {field}: {problem}", rule.id));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_diagnosis_is_one_sentence_and_texts_have_an_end() {
    for rule in Rules::built_in().iter() {
        let sentences = [Some(&rule.diagnosis), rule.cause.as_ref()];
        for text in sentences.into_iter().flatten() {
            assert!(text.ends_with(['.', '`', ')']), "{}: no end: {text}", rule.id);
            assert!(text.is_ascii(), "{}: not ASCII: {text}", rule.id);
        }
        if let Some(text) = &rule.remedy {
            // It can end with a command. A full stop after it would be copied with the command.
            assert!(!text.ends_with([' ', ',', ';', ':']), "{}: no end: {text}", rule.id);
            assert!(text.is_ascii(), "{}: not ASCII: {text}", rule.id);
        }
        assert!(!rule.diagnosis.trim_end_matches('.').contains(". "), "{}: two sentences", rule.id);
    }
}

#[test]
fn a_timeout_an_abort_and_the_end_of_a_peer_are_no_roots() {
    let rules = Rules::built_in();
    let lines = [
        ("socketProgress: Connection closed by remote peer vm<35941>", Origin::Nccl),
        ("NCCL WARN unhandled cuda error (run with NCCL_DEBUG=INFO for details)", Origin::Any),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting \
             prematurely.",
            Origin::Any,
        ),
        ("remote process exited or there was a network error", Origin::Any),
        (
            "[rank0]:[E1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: \
             WorkNCCL(SeqNum=1)",
            Origin::Any,
        ),
        ("RuntimeError: NCCL communicator was aborted on rank 3.", Origin::Any),
    ];
    for (line, origin) in lines {
        let rule = rules.find_rule(line.as_bytes(), origin).unwrap_or_else(|| panic!("no rule: {line}"));
        assert_eq!(rule.role, Role::Cascade, "{}: {line}", rule.id);
    }
}

#[test]
fn lines_of_healthy_runs_have_no_rule_that_is_a_fault() {
    let rules = Rules::built_in();
    for line in [
        "Bootstrap: Using eth0:192.0.2.1<0>",
        "NET/Plugin: Could not find: libnccl-net.so",
        "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
        "PROFILER/Plugin: Could not find: libnccl-profiler.so. ",
        "Failed to initialize NET plugin IB",
        "NET/IB : Using [RO]; OOB eth0:192.0.2.1<0>",
        "NET/OFI No eligible providers were found",
        "ncclOsDlsym(ncclNetPlugin_v12) failed: libnccl-net.so: undefined symbol: ncclNetPlugin_v12",
        "NET/OFI Internode latency set at 75.0 us",
        "NET/OFI NCCL_OFI_TUNER is not available for platform : g6e.8xlarge, Fall back to NCCL's tuner",
        "NCCL_SOCKET_IFNAME set by environment to ^docker0,lo",
        "Could not find real path of /sys/class/pci_bus/fffffff/../../fffffff:ff:f",
        "RMA/Plugin: Failed to load external plugin libnccl-rma.so, dlHandle: (nil), ncclRma: (nil)",
        "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
        "[Proxy Service] Device 0 CPU core 12",
        "comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1b000 - Destroy COMPLETE",
        "Check P2P Type isAllDirectP2p 0 directMode 0",
        "ncclOsSocketStartConnect: connect to 192.0.2.3<41235> returned Connection refused, retrying (1/34) \
         after sleep for 100 msec",
        "Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM",
        "ncclCommInitRank comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init \
         COMPLETE",
        "",
    ] {
        let found = rules.find_rule(line.as_bytes(), Origin::Nccl);
        assert!(found.is_none_or(|rule| rule.severity == Severity::Advice), "{line}: {found:?}");
    }
}

#[test]
fn the_start_of_a_pattern_is_found_after_the_prefixes_of_launchers() {
    let rules = Rules::built_in();
    let found = |line: String| rules.find_rule(line.as_bytes(), Origin::Any).map(|rule| rule.id.as_str());
    for prefix in [
        "",
        "[rank3]:",
        "[rank3]: ",
        "[default3]:",
        "[1,0]<stderr>:",
        "3: ",
        "2026-11-24T13:42:01.123456789Z stderr F ",
        "2026-11-24T13:42:01+01:00 ",
        "2026-11-24 13:42:01,123 ",
        "Nov 24 13:42:01 vm python[12]: ",
        "(RayWorker pid=12, ip=192.0.2.1) ",
        "(pid=12) ",
        "[pod/train-0/main] ",
        "train-0  | ",
        "node1: ",
        "  what():  ",
    ] {
        let line = format!("{prefix}terminate called after throwing an instance of 'c10::Error'");
        assert_eq!(found(line), Some("process-aborted"), "{prefix}");
        assert_eq!(found(format!("{prefix}Killed")), Some("process-killed"), "{prefix}");
    }
    for prefix in ["why is ", "prompt: ", "print(\"", "2026-11-24 INFO train: ", "- "] {
        let line = format!("{prefix}terminate called after throwing an instance of 'c10::Error'");
        assert_eq!(found(line), None, "{prefix}");
        assert_eq!(found(format!("{prefix}Killed")), None, "{prefix}");
    }
}

#[test]
fn a_rule_holds_for_its_versions_and_for_an_unknown_one() {
    let text = rule_text("nccl = \">=2.28.3, <2.30.7\"");
    let rules = read_rules("site.toml", &text).expect("a rule");
    assert!(rules[0].applies_to(Some(&version_of("2.28.9"))));
    assert!(!rules[0].applies_to(Some(&version_of("2.30.7"))));
    assert!(!rules[0].applies_to(Some(&version_of("2.27.7"))));
    assert!(rules[0].applies_to(None));
    assert!(rules[0].applies_to_plugin(Some(&version_of("1.16.2"))));
}

#[test]
fn a_sites_own_rules_come_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("site.toml");
    fs::write(&path, rule_text("")).expect("written");
    let rules = Rules::with_files(&[path]).expect("rules");
    let found = rules.find_rule(
        b"Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 23007",
        Origin::Nccl,
    );
    assert_eq!(found.map(|rule| rule.id.as_str()), Some("site-rule"));
    assert_eq!(rules.iter().count(), Rules::built_in().iter().count() + 1);
}

#[test]
fn a_fault_in_a_sites_file_is_located_and_the_allowed_values_are_named() {
    let cases = [
        (rule_text("sevrity = \"broken\""), ["line 12", "`site-rule`", "`sevrity`", "`severity`"]),
        (
            rule_text("").replace("\"broken\"", "\"brokn\""),
            ["line 8", "`site-rule`", "`severity`", "`degraded`"],
        ),
        (
            rule_text("").replace("\"broken\"", "\"advice\""),
            ["line 8", "`site-rule`", "`severity`", "`broken`"],
        ),
        (rule_text("").replace("site-rule", "Site Rule"), ["line 4", "`Site Rule`", "`id`", "efa-not-found"]),
        (rule_text("nccl = \"2.28\""), ["line 12", "`site-rule`", "`nccl`", ">=2.28.3, <2.30.7"]),
        (rule_text("short = \"gone\""), ["line 12", "`site-rule`", "`short`", "`pattern`"]),
        (rule_text("pattern = \"(\""), ["line 12", "`site-rule`", "`pattern`", "regular expression"]),
        (rule_text("with = \"nccl-tests-head\""), ["line 12", "`site-rule`", "`with`", "`case_of`"]),
        (rule_text("case_of = \"nccl-shm-full\""), ["line 6", "`site-rule`", "`contains`", "`case_of`"]),
        (rule_text("denies = \"gdr\""), ["line 12", "`site-rule`", "`denies`", "refuted"]),
        (
            rule_text("frame_of = \"proces-crashed\""),
            ["line 12", "`site-rule`", "`frame_of`", "`proces-crashed`"],
        ),
        (rule_text("not = \"Mismatched NCCL version\""), ["line 12", "`site-rule`", "`not`", "must not"]),
        (
            rule_text("").replace("version = 1\n", "version = 7\n"),
            ["line 1", "site.toml", "`version`", "`version = 1`"],
        ),
        (
            rule_text("").replace("cause = \"A cause.\"\n", ""),
            ["line 4", "`site-rule`", "`cause`", "`remedy`"],
        ),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (text, parts) in cases {
        let path = folder.path().join("site.toml");
        fs::write(&path, &text).expect("written");
        let error = Rules::with_files(&[path]).expect_err(&text).to_string();
        for part in parts.iter().chain(&["doctor log --help"]) {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }
}

#[test]
fn a_file_that_does_not_exist_is_named() {
    let error = Rules::with_files(&["/nonexistent/site.toml".into()]).expect_err("no file").to_string();
    assert!(error.starts_with("/nonexistent/site.toml: cannot read: "), "{error}");
}

#[test]
fn bytes_that_are_no_text_have_no_rule() {
    assert!(Rules::built_in().find_rule(b"\xff\xfe\x00\x80", Origin::Any).is_none());
}

/// Returns a file with one rule of a site. The extra line is line 12.
fn rule_text(extra: &str) -> String {
    format!(
        "version = 1\n\n[[rule]]\nid = \"site-rule\"\norigin = \"nccl\"\ncontains = \"Mismatched NCCL \
         version\"\nrole = \"root\"\n\
         severity = \"broken\"\ndiagnosis = \"A diagnosis.\"\ncause = \"A cause.\"\nsource = \"the site\"\n\
         {extra}\n\
         matches = \"NCCL WARN Mismatched NCCL version\"\n"
    )
}

#[test]
fn faults_and_conflicts_are_read_and_have_their_own_names() {
    let faults =
        faults::parse_faults(faults::FILE.0, faults::FILE.1).unwrap_or_else(|error| panic!("{error}"));
    let conflicts = conflicts::parse_conflicts(conflicts::FILE.0, conflicts::FILE.1)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut ids: Vec<&str> = faults.iter().map(|fault| fault.id.as_str()).collect();
    ids.extend(conflicts.iter().map(|conflict| conflict.id.as_str()));
    let rules = Rules::built_in();
    ids.extend(rules.iter().map(|rule| rule.id.as_str()));
    let different: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(different.len(), ids.len());
    assert_eq!(Faults::built_in().iter().count(), faults.len());
    assert_eq!(Conflicts::built_in().iter().count(), conflicts.iter().count());
}

#[test]
fn faults_belong_to_their_versions() {
    let all = Faults::built_in();
    let has = |version: &str, id: &str| {
        all.of_component(Component::Nccl, &version_of(version)).iter().any(|fault| fault.id == id)
    };
    for (version, is_racing) in [("2.27.7", false), ("2.28.9", true), ("2.30.4", true), ("2.30.7", false)] {
        assert_eq!(has(version, "symmetric-without-grid-sync"), is_racing, "{version}");
    }
    assert!(has("2.29.3", "average-of-one-rank") && !has("2.29.7", "average-of-one-rank"));
    assert!(has("2.29.2", "arm-proxy-hang") && has("2.28.9", "ras-json-missing-comma"));
    assert_eq!(all.of_component(Component::AwsOfiNccl, &version_of("1.16.2")).len(), 0);
    assert_eq!(all.of_component(Component::Driver, &version_of("595.1.0")).len(), 0);
}

#[test]
fn an_unknown_need_of_a_fault_is_refused() {
    let text = faults::FILE.1.replacen("needs = \"one-rank\"", "needs = \"one-rnk\"", 1);
    let error = faults::parse_faults("faults.toml", &text).expect_err("an error").to_string();
    assert!(error.contains("needs") && error.contains("one-rank, split"), "{error}");
}

#[test]
fn a_fault_whose_conditions_are_not_seen_is_advice() {
    let all = Faults::built_in();
    let fault = all.iter().find(|fault| fault.id == "average-of-one-rank").expect("a fault");
    assert_eq!((fault.severity_for(false), fault.severity_for(true)), (Severity::Advice, Severity::Broken));
}

#[test]
fn conflicts_need_all_versions_that_they_name() {
    let all = Conflicts::built_in();
    let between = |nccl: Option<&str>, plugin: Option<&str>, libfabric: Option<&str>| -> Vec<&str> {
        let [nccl, plugin, libfabric] = [nccl, plugin, libfabric].map(|text| text.map(version_of));
        let versions = Together {
            nccl: nccl.as_ref(),
            plugin: plugin.as_ref(),
            libfabric: libfabric.as_ref(),
            driver: None,
        };
        all.conflicts_among(&versions).iter().map(|one| one.id.as_str()).collect()
    };
    assert_eq!(between(Some("2.20.5"), Some("1.16.2"), Some("2.1.0")), ["plugin-1-16-2-with-nccl-2-20"]);
    assert_eq!(between(Some("2.27.3"), Some("1.16.2"), Some("2.1.0")), [""; 0]);
    assert_eq!(between(Some("2.27.3"), Some("1.16.2"), Some("1.17.1")), ["plugin-needs-libfabric-1-22"]);
    assert_eq!(between(Some("2.27.3"), Some("1.16.2"), None), [""; 0]);
    assert_eq!(between(Some("2.28.9"), Some("1.17.2"), Some("2.1.0")), ["plugin-1-17-with-nccl-2-28-9"]);
    let hang = all.iter().find(|one| one.id == "plugin-1-17-with-nccl-2-28-9").expect("a conflict");
    assert_eq!((hang.severity_for(false), hang.severity_for(true)), (Severity::Advice, Severity::Degraded));
    let (nccl, driver) = (version_of("2.28.9"), version_of("12.8.0"));
    let found =
        all.conflicts_among(&Together { nccl: Some(&nccl), driver: Some(&driver), ..Together::default() });
    assert_eq!(found.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["host-memory-without-p2p"]);
}

#[test]
fn the_table_of_threads_names_entries_that_exist() {
    let text = include_str!("../../knowledge/THREADS.md");
    let name = regex::Regex::new("(rule|fault|conflict):([a-z0-9-]+)").expect("a pattern");
    let (rules, faults, conflicts) = (Rules::built_in(), Faults::built_in(), Conflicts::built_in());
    let mut count = 0;
    for found in name.captures_iter(text) {
        let id = &found[2];
        let exists = match &found[1] {
            "rule" => rules.rule_by_id(id).is_some(),
            "fault" => faults.iter().any(|fault| fault.id == id),
            _ => conflicts.iter().any(|conflict| conflict.id == id),
        };
        assert!(exists, "{}", &found[0]);
        count += 1;
    }
    assert!(count > 80, "{count}");
    for thread in 1..=30 {
        assert!(text.contains(&format!("\n| {thread} | ")), "thread {thread}");
    }
}

#[test]
fn texts_that_are_never_printed_have_no_rule() {
    let rules = Rules::built_in();
    for text in [
        "NCCL ERROR",
        "NET/Plugin: Using EFA",
        "NET/OFI Using Profile efa",
        "NET/OFI Using TCP",
        "NET/OFI Using provider: efa",
        "NCCL function not found",
        "Incompatible NCCL version",
        "fi_getinfo failed",
        "Call to ncclCommAbort",
        "Using network EFA",
        "CUDA_VISIBLE_DEVICES set by environment to 0",
        "Successfully loaded external network plugin libnccl-net.so",
    ] {
        for origin in [Origin::Nccl, Origin::Any] {
            let found = rules.find_rule(text.as_bytes(), origin);
            assert!(found.is_none(), "{text}: {}", found.map_or("", |rule| &rule.id));
        }
    }
}

fn version_of(text: &str) -> Version {
    Version::parse(text).expect("a version")
}
