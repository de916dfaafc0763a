//! Checks of all files of knowledge.

use std::collections::BTreeSet;
use std::fs;

use semver::Version;

use crate::finding::{Role, Severity};

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
fn a_diagnosis_is_one_sentence_and_remedies_end_as_sentences() {
    for rule in Rules::built_in().iter() {
        let texts = [Some(&rule.diagnosis), rule.cause.as_ref(), rule.remedy.as_ref()];
        for text in texts.into_iter().flatten() {
            assert!(text.ends_with(['.', '`', ')']), "{}: no end: {text}", rule.id);
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
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            Origin::Any,
        ),
        ("remote process exited or there was a network error", Origin::Any),
        (
            "[rank0]:[E1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
            Origin::Any,
        ),
        ("RuntimeError: NCCL communicator was aborted on rank 3.", Origin::Any),
    ];
    for (line, origin) in lines {
        let rule = rules.find(line.as_bytes(), origin).unwrap_or_else(|| panic!("no rule: {line}"));
        assert_eq!(rule.role, Role::Cascade, "{}: {line}", rule.id);
    }
}

#[test]
fn lines_of_healthy_runs_have_no_rule_that_is_a_fault() {
    let rules = Rules::built_in();
    for line in [
        "Bootstrap: Using eth0:192.0.2.1<0>",
        "Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM",
        "ncclCommInitRank comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE",
        "",
    ] {
        let found = rules.find(line.as_bytes(), Origin::Nccl);
        assert!(found.is_none_or(|rule| rule.severity == Severity::Advice), "{line}: {found:?}");
    }
}

#[test]
fn a_rule_holds_for_its_versions_and_for_an_unknown_one() {
    let text = rule_text("nccl = \">=2.28.3, <2.30.7\"");
    let rules = read_rules("site.toml", &text).expect("a rule");
    let version = |text| Version::parse(text).expect("a version");
    assert!(rules[0].applies_to(Some(&version("2.28.9"))));
    assert!(!rules[0].applies_to(Some(&version("2.30.7"))));
    assert!(!rules[0].applies_to(Some(&version("2.27.7"))));
    assert!(rules[0].applies_to(None));
    assert!(rules[0].applies_to_plugin(Some(&version("1.16.2"))));
}

#[test]
fn a_sites_own_rules_come_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("site.toml");
    fs::write(&path, rule_text("")).expect("written");
    let rules = Rules::with_files(&[path]).expect("rules");
    let found = rules
        .find(b"Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 23007", Origin::Nccl);
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
        (rule_text("pattern = \"(\""), ["line 12", "`site-rule`", "`pattern`", "regular expression"]),
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
        for part in parts.iter().chain(&["README.md"]) {
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
    assert!(Rules::built_in().find(b"\xff\xfe\x00\x80", Origin::Any).is_none());
}

/// A file with one rule of a site; the extra line is line 12.
fn rule_text(extra: &str) -> String {
    format!(
        "version = 1\n\n[[rule]]\nid = \"site-rule\"\norigin = \"nccl\"\ncontains = \"Mismatched NCCL version\"\nrole = \"root\"\n\
         severity = \"broken\"\ndiagnosis = \"A diagnosis.\"\ncause = \"A cause.\"\nsource = \"the site\"\n{extra}\n\
         matches = \"NCCL WARN Mismatched NCCL version\"\n"
    )
}

#[test]
#[ignore = "prints times"]
fn times() {
    let start = std::time::Instant::now();
    let files: Vec<_> =
        FILES.iter().flat_map(|(file, text)| read_rules(file, text).expect("rules")).collect();
    eprintln!("read {} rules: {:?}", files.len(), start.elapsed());
    let start = std::time::Instant::now();
    let rules = Rules::built_in();
    eprintln!("built in: {:?}", start.elapsed());
    let line =
        b"Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM/read and some further text for the length of a line";
    let text = b"INFO     | 2026-11-24 13:00:00 | trainer step=1234 loss=2.3456 tokens/s=12345.6 lr=0.0001 grad_norm=1.234";
    for (line, origin) in [(&line[..], Origin::Nccl), (&text[..], Origin::Any)] {
        let start = std::time::Instant::now();
        let count = 1_000_000;
        for _ in 0..count {
            assert!(std::hint::black_box(&rules).find(std::hint::black_box(line), origin).is_none());
        }
        let time = start.elapsed();
        eprintln!(
            "find: {:?} per line, {} GB/s",
            time / count,
            (line.len() as f64 * f64::from(count)) / time.as_nanos() as f64
        );
    }
}
