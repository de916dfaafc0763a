//! The knowledge on its examples, common claims, and whole examinations.

use super::judge::judge_variable;
use super::knowledge::{self, FILES, File, VerdictKind};
use super::names;
use super::*;
use crate::examination::{Body, Examination, Health};
use crate::finding::Severity;

mod values;

fn situation(
    nccl: Option<&str>,
    plugin: Option<&str>,
    libfabric: Option<&str>,
    platform: Option<&str>,
) -> Situation {
    let version = |text: Option<&str>| text.map(|text| parse_version(text).unwrap());
    Situation {
        nccl: version(nccl),
        plugin: version(plugin),
        libfabric: version(libfabric),
        platform: platform.map(Platform::from_product),
        ..Situation::default()
    }
}

fn judged(name: &str, value: &str, situation: &Situation) -> Verdict {
    let setting = Setting::new(name, value, Location::without_line("environment"));
    judge_variable(&setting, situation, &|_| false).worst_verdict().unwrap().clone()
}

#[test]
fn efa_is_not_asked_for_on_a_host_without_devices() {
    for (rdma, kind) in [
        (None, VerdictKind::Redundant),
        (Some(true), VerdictKind::Redundant),
        (Some(false), VerdictKind::Harmful),
    ] {
        let machine = Situation { rdma, ..Situation::default() };
        assert_eq!(judged("FI_PROVIDER", "efa", &machine).kind, kind, "{rdma:?}");
    }
    let machine = Situation { rdma: Some(false), ..Situation::default() };
    assert_eq!(examined("FI_PROVIDER=efa\n", &machine).health(), Health::Degraded);
}

#[test]
fn every_rule_has_examples_that_hold() {
    let mut seen = std::collections::BTreeSet::new();
    for (file, text) in FILES {
        let parsed: File = toml::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!parsed.variable.is_empty(), "{file}");
        for variable in parsed.variable {
            for name in &variable.names {
                assert!(seen.insert(name.clone()), "{file}: {name} occurs twice");
                assert!(is_collected(name), "{file}: {name} is never collected");
                assert!(
                    names::find_name(name).is_some() || name == "NCCL_TIMEOUT",
                    "{file}: {name} is not in names.csv"
                );
            }
            assert!(!variable.meaning.ends_with('.') && !variable.meaning.is_empty());
            let name = &variable.names[0];
            for rule in &variable.rule {
                let words = format!("{}{}", rule.reason, rule.remedy.clone().unwrap_or_default());
                assert!(!words.contains("  ") && !rule.reason.ends_with('.'), "{}", rule.id);
                assert!(!rule.source.is_empty());
            }
            assert!(
                variable.rule.is_empty() || !variable.example.is_empty(),
                "{file}: {name} has no example"
            );
            for example in &variable.example {
                let situation = situation(
                    example.nccl.as_deref(),
                    example.plugin.as_deref(),
                    example.libfabric.as_deref(),
                    example.platform.as_deref(),
                );
                let setting = Setting::new(
                    name.as_str(),
                    example.value.as_str(),
                    Location::without_line("environment"),
                );
                let with = example.with.clone();
                let judged = judge_variable(&setting, &situation, &|other| with.as_deref() == Some(other));
                let verdict = judged.worst_verdict().unwrap();
                let context = format!("{name}={} {situation:?}: {verdict:?}", example.value);
                assert_eq!(verdict.kind, example.verdict, "{context}");
                assert!(example.severity.is_none() || verdict.severity == example.severity, "{context}");
                assert!(
                    example.says.as_ref().is_none_or(|words| verdict.reason.contains(words)),
                    "{context}"
                );
            }
        }
        for family in parsed.family {
            assert!(!family.meaning.is_empty());
        }
    }
}

/// Names and values recommended or explained wrongly by notes of users and published skills, with the
/// correcting words.
#[test]
fn false_claims_are_set_right() {
    let p5 = situation(Some("2.27.3"), Some("1.16.2"), Some("2.1.0"), Some("p5.48xlarge"));
    let p4d = situation(Some("2.27.3"), Some("1.16.2"), Some("2.1.0"), Some("p4d.24xlarge"));
    let plain = situation(Some("2.28.9"), None, None, None);
    let spark = situation(Some("2.28.9"), None, None, Some("spark"));
    use VerdictKind::{Debugging, Harmful, Misspelt, NoEffect, OtherVersion, Redundant, Tuning, Useful};
    for (name, value, machine, kind, words) in [
        // "FI_PROVIDER=efa, FI_EFA_USE_DEVICE_RDMA=1 and NCCL_PROTO=simple are needed for EFA"
        ("FI_PROVIDER", "efa", &p5, Redundant, "falls back to TCP sockets"),
        ("FI_EFA_USE_DEVICE_RDMA", "1", &p5, Redundant, "libfabric aborts the process"),
        ("NCCL_PROTO", "simple", &p5, Harmful, "keeps the plugin's tuner from loading"),
        ("NCCL_PROTO", "Simple", &plain, Harmful, "NVLink included"),
        ("FI_EFA_FORK_SAFE", "1", &p5, Redundant, "the plugin always sets it"),
        ("RDMAV_FORK_SAFE", "1", &p5, Harmful, "do not use"),
        // "the default of NCCL_BUFFSIZE is 2 MiB"
        ("NCCL_BUFFSIZE", "2097152", &plain, Harmful, "the default is 4 MiB (4194304)"),
        ("NCCL_BUFFSIZE", "2097152", &p4d, Harmful, "2097152 a quarter"),
        ("NCCL_BUFFSIZE", "4194304", &p5, Harmful, "4194304 is half"),
        // "NCCL_P2P_LEVEL=5 means NVLink"
        ("NCCL_P2P_LEVEL", "5", &plain, Debugging, "numbers above 4 mean SYS"),
        ("NCCL_P2P_LEVEL", "NVL", &p4d, NoEffect, "NVSwitch"),
        ("NCCL_P2P_DISABLE", "0", &p4d, Redundant, "0 is the default"),
        ("NCCL_SHM_DISABLE", "1", &p4d, Harmful, "does not make P2P faster"),
        // "NCCL_IB_DISABLE=0 forces RDMA, and is mandatory for EFA"
        ("NCCL_IB_DISABLE", "0", &p5, Redundant, "EFA does not need it"),
        ("NCCL_IB_DISABLE", "1", &p5, NoEffect, "nor does it turn EFA off"),
        // "ring for latency, tree for bandwidth"
        ("NCCL_ALGO", "Ring", &plain, Debugging, "not the other way round"),
        ("NCCL_ALGO", "Tree", &plain, Harmful, "does not fall back to Ring"),
        // "NCCL_TIMEOUT=nodes*5+600", "INFO costs 10 to 30 % of the bandwidth"
        ("NCCL_TIMEOUT", "1800", &plain, NoEffect, "no such variable"),
        ("NCCL_DEBUG", "INFO", &plain, Debugging, "not a share of the bandwidth"),
        ("NCCL_SOCKET_IFNAME", "eth0,en", &p5, Tuning, "bootstrap only"),
        ("NCCL_SOCKET_IFNAME", "enp1s0f1np1", &spark, Tuning, "both halves of the port"),
        ("UCX_NET_DEVICES", "enp1s0f1np1", &spark, Tuning, "NCCL does not read it"),
        ("NCCL_IB_HCA", "rocep1s0f1", &spark, Harmful, "half of the bandwidth"),
        ("NCCL_NET", "AWS Libfabric", &p5, Useful, "instead of falling back to TCP sockets"),
        ("NCCL_IB_GID_INDEX", "3", &plain, Harmful, "since 2.21 NCCL chooses"),
        ("NCCL_MIN_CHANNELS", "8", &p4d, Misspelt, "NCCL_MIN_NCHANNELS"),
        ("NCCL_MNNVL", "1", &plain, OtherVersion, "2.20.5 was the last"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", &plain, Redundant, "a variable of PyTorch, not of NCCL"),
        ("CUDA_LAUNCH_BLOCKING", "1", &plain, Harmful, "do not overlap"),
        ("NCCL_DMABUF_ENABLE", "1", &plain, Redundant, "forces nothing"),
        ("NCCL_NVLS_ENABLE", "1", &plain, Redundant, "does not prove that NVLS is used"),
        ("NCCL_TOPO_FILE", "/opt/amazon/topo.xml", &p5, Harmful, "even if it is of another instance"),
        ("OFI_NCCL_NIC_DUP_CONNS", "4", &p4d, Harmful, "without GPUDirect RDMA"),
    ] {
        let verdict = judged(name, value, machine);
        assert_eq!(verdict.kind, kind, "{name}={value}: {verdict:?}");
        assert!(verdict.reason.contains(words), "{name}={value}: {}", verdict.reason);
    }
}

#[test]
fn unknown_names_are_told_from_those_of_other_versions_and_programs() {
    let old = situation(Some("2.28.9"), None, None, None);
    assert_eq!(judged("NCCL_FOO_BAR_BAZ", "1", &old).kind, VerdictKind::Unknown);
    assert_eq!(
        judged("NCCL_SOCKET_IFACE", "eth0", &old).reason,
        "nothing reads NCCL_SOCKET_IFACE: did you mean NCCL_SOCKET_IFNAME?"
    );
    assert_eq!(
        judged("NCCL_IB_OOO_RQ", "1", &old).reason,
        "NCCL 2.28.9 does not read it: it came with 2.30.3"
    );
    assert_eq!(judged("NCCL_TREE_THRESHOLD", "0", &old).kind, VerdictKind::OtherVersion);
    for (wrong, meant) in
        [("NCCL_BENCH_TIMEOT", "NCCL_BENCH_TIMEOUT"), ("NCCL_TESTS_SPLT", "NCCL_TESTS_SPLIT")]
    {
        let verdict = judged(wrong, "1", &old);
        assert_eq!(verdict.kind, VerdictKind::Misspelt);
        assert_eq!(verdict.reason, format!("nothing reads {wrong}: did you mean {meant}?"));
    }
    assert_eq!(judged("NCCL_BENCH_COLOUR", "1", &old).kind, VerdictKind::Unknown);
    for harmless in [
        "NCCL_BENCH_TIMEOUT",
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_TESTS_SPLIT",
        "NVSHMEM_DEBUG",
        "NCCL_FASTRAK_CTRL_DEV",
    ] {
        assert_eq!(judged(harmless, "1", &old).severity, None, "{harmless}");
    }
    // A newer library may know it.
    let newer = situation(Some("2.40.1"), None, None, None);
    assert_eq!(judged("NCCL_FOO_BAR_BAZ", "1", &newer).severity, Some(Severity::Unknown));
    assert_eq!(judged("FI_SOMETHING_NEW", "1", &old).severity, Some(Severity::Advice));
    assert_eq!(judged("TORCH_NCCL_NEW_THING_X", "1", &old).severity, Some(Severity::Advice));
    assert_eq!(judged("TORCH_NCCL_DUMP_ON_TIMEOUTS", "1", &old).kind, VerdictKind::Misspelt);
    assert_eq!(judged("OFI_NCCL_WHATEVER_IT_IS", "1", &old).severity, Some(Severity::Degraded));
}

#[test]
fn a_missing_file_takes_the_proof_away() {
    let mut collection = Collection::of_text("NCCL_TOPO_FILE=/nope.xml\n", "-");
    collection.without_file.push("NCCL_TOPO_FILE".to_owned());
    let examination = examine_variables(&collection, &Situation::default(), None, None);
    assert_eq!(examination.health(), Health::Degraded);
    assert_eq!(examination.findings.len(), 1, "{:?}", examination.findings);
    assert!(
        examination.findings[0]
            .diagnosis
            .contains("NCCL_TOPO_FILE=/nope.xml: it names a file that does not exist")
    );
}

/// A value may be bad, and its names may also be missing on the host.
#[test]
fn a_missing_interface_is_told_besides_a_bad_value() {
    let network = Network { interfaces: vec!["lo".to_owned(), "ens5".to_owned()], ..Network::default() };
    let collection = Collection::of_text("NCCL_SOCKET_IFNAME==eth0,^lo\n", "-");
    let examination = examine_variables(&collection, &Situation::default(), Some(&network), None);
    assert_eq!(examination.findings[0].rule, "socket-interface-missing", "{:?}", examination.findings);
}

#[test]
fn machines_are_known_by_words() {
    let words = |name: &str| Platform::from_product(name).words;
    assert_eq!(words("p5.48xlarge"), ["aws", "p5", "p5.48xlarge"]);
    assert_eq!(words("p6-b200.48xlarge"), ["aws", "p6-b200", "p6-b200.48xlarge"]);
    assert_eq!(words("p5.4xlarge"), ["aws", "p5.4xlarge"]);
    assert_eq!(words("aws"), ["aws"]);
    assert_eq!(words("NVIDIA_DGX_Spark"), ["nvidia_dgx_spark", "spark"]);
    let folder = tempfile::tempdir().unwrap();
    let dmi = folder.path().join("sys/devices/virtual/dmi/id");
    std::fs::create_dir_all(&dmi).unwrap();
    assert_eq!(Platform::detect_platform(folder.path()), None);
    for (vendor, name, is_aws) in [("Amazon EC2", "p4d.24xlarge", true), ("GIGABYTE", "G492-ID0", false)] {
        std::fs::write(dmi.join("sys_vendor"), format!("{vendor}\n")).unwrap();
        std::fs::write(dmi.join("product_name"), format!("{name}\n")).unwrap();
        let platform = Platform::detect_platform(folder.path()).unwrap();
        assert_eq!((platform.name.as_str(), platform.has_word("aws")), (name, is_aws));
    }
}

#[test]
fn names_of_machines_are_checked() {
    for known in [
        "p5.48xlarge",
        "P5en.48xlarge",
        "p5",
        "aws",
        "spark",
        "NVIDIA_DGX_Spark",
        "p6-b200.48xlarge",
        "g4dn.metal",
        "p6e-gb200.36xlarge",
        "m5.24xlarge",
    ] {
        assert!(Platform::parse(known).is_ok(), "{known}");
    }
    for (wrong, nearest) in [
        ("p5.banana", "did you mean p5.48xlarge?"),
        ("p55.48xlarge", "did you mean p5.48xlarge?"),
        ("p4d.24xlarg", "did you mean p4d.24xlarge?"),
        ("sparc", "did you mean spark?"),
        ("p5.", "did you mean p5.48xlarge?"),
        ("banana", "such as p5.48xlarge"),
        ("", "such as p5.48xlarge"),
    ] {
        let error = Platform::parse(wrong).unwrap_err();
        assert!(error.contains(nearest), "{wrong}: {error}");
    }
}

#[test]
fn versions_are_read_as_people_write_them() {
    for (text, expected) in [
        ("2.28.9", "2.28.9"),
        ("v1.16.2-aws", "1.16.2"),
        ("1.18", "1.18.0"),
        ("2.0.0rc1", "2.0.0"),
        ("2.30.7-1", "2.30.7"),
    ] {
        assert_eq!(parse_version(text).unwrap().to_string(), expected, "{text}");
    }
    for wrong in ["", "2", "newest", "2.x", "1.2.3.4", "99999999999999999999.0"] {
        assert!(parse_version(wrong).is_err(), "{wrong}");
    }
}

fn examined(text: &str, situation: &Situation) -> Examination {
    examine_variables(&Collection::of_text(text, "job.sh"), situation, None, None)
}

#[test]
fn an_empty_environment_is_healthy_with_proof() {
    let examination = examine_variables(&Collection::default(), &Situation::default(), None, None);
    assert_eq!(examination.health(), Health::Healthy);
    assert_eq!(
        examination.proof,
        ["no variable of NCCL, its plugins or libfabric is set: their defaults hold"]
    );
    assert!(examination.unseen.is_empty());
}

#[test]
fn sound_variables_are_healthy_and_assumptions_are_told() {
    let text = "export NCCL_DEBUG=WARN\nexport NCCL_SOCKET_IFNAME==eth0\nexport NCCL_NET=Libfabric\n";
    let known = situation(Some("2.28.9"), Some("1.16.2"), Some("2.1.0"), Some("p5.48xlarge"));
    let examination = examined(text, &known);
    assert_eq!(examination.health(), Health::Healthy, "{:?}", examination.findings);
    assert!(
        examination.proof[0].starts_with("3 variables are set, all known to NCCL 2.28.9"),
        "{:?}",
        examination.proof
    );
    assert_eq!(examination.unseen.len(), 1, "{:?}", examination.unseen);
    let unknown = examined(text, &Situation::default());
    assert!(unknown.unseen.iter().any(|text| text.contains("--nccl")), "{:?}", unknown.unseen);
    assert!(unknown.unseen.iter().any(|text| text.contains("--platform")), "{:?}", unknown.unseen);
    assert!(unknown.proof[0].contains("(assumed)"));
}

/// aws-ofi-nccl's names of its network depend on its version.
#[test]
fn the_version_that_the_name_of_a_network_was_judged_for_is_told() {
    let with = |value: &str| examined(&format!("NCCL_NET={value}\n"), &Situation::default()).unseen;
    for (value, is_told) in [("ofi", true), ("Libfabric", true), ("IB", false)] {
        let told = with(value).iter().any(|text| text.contains("--plugin"));
        assert_eq!(told, is_told, "{value}: {:?}", with(value));
    }
}

#[test]
fn the_manifest_of_a_seed_is_judged() {
    let text = "env:\n- name: FI_PROVIDER\n  value: efa\n- name: NCCL_ALGO\n  value: Tree\n\
                - name: NCCL_BUFFSIZE\n  value: \"2097152\"\n- name: NCCL_SHM_DISABLE\n  value: \"0\"\n\
                - name: DB_PASSWORD\n  value: hush\n";
    let machine = situation(Some("2.27.3"), Some("1.16.2"), Some("2.1.0"), Some("p4d.24xlarge"));
    let examination = examined(text, &machine);
    assert_eq!(examination.health(), Health::Broken);
    let rules: Vec<_> = examination.findings.iter().map(|finding| finding.rule.as_str()).collect();
    assert_eq!(
        rules,
        ["algo-without-ring", "buffsize-overrides-the-plugin", "fi-provider-efa", "shm-enabled"]
    );
    assert!(examination.proof.is_empty());
    let first = &examination.findings[0];
    assert!(first.diagnosis.starts_with("NCCL_ALGO=Tree: since 2.24"), "{}", first.diagnosis);
    assert_eq!((first.evidence[0].line, first.evidence[0].text.as_str()), (Some(4), "NCCL_ALGO=Tree"));
    let Body::Table { rows, .. } = &examination.sections[1].body else {
        panic!("{:?}", examination.sections[1])
    };
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[2], ["NCCL_BUFFSIZE", "2097152", "job.sh:6", "harmful"].map(str::to_owned));
    let json = serde_json::to_string(&examination).unwrap();
    assert!(!json.contains("hush") && json.contains("\"verdicts\""), "{json}");
}

#[test]
fn a_text_without_known_variables_proves_nothing() {
    for text in
        ["", "hello", "export NCCL_HOSTID=$(hostname)\n", "{}", "envFrom:\n- configMapRef: {name: a}\n"]
    {
        let examination = examined(text, &Situation::default());
        assert_eq!(examination.health(), Health::CannotTell, "{text}");
        assert!(examination.proof.is_empty());
        let expected = "no variable of NCCL was recognised in job.sh";
        assert!(examination.unseen.iter().any(|text| text == expected), "{:?}", examination.unseen);
    }
}

#[test]
fn the_loopback_is_broken_between_nodes() {
    for (nodes, severity) in
        [(Some(2), Some(Severity::Broken)), (None, Some(Severity::Degraded)), (Some(1), None)]
    {
        let situation = Situation { nodes, ..Situation::default() };
        assert_eq!(judged("NCCL_SOCKET_IFNAME", "lo", &situation).severity, severity, "{nodes:?}");
    }
}

#[test]
fn what_mpirun_passes_on_wins_in_an_mpi_job() {
    let text = "kind: MPIJob\nargs:\n- mpirun\n- -x\n- NCCL_DEBUG=WARN\nenv:\n\
                - name: NCCL_DEBUG\n  value: TRACE\n- name: NCCL_SOCKET_IFNAME\n  value: =eth0\n";
    let examination = examined(text, &Situation::default());
    assert_eq!(examination.facts["variables"][0]["value"], "WARN");
    assert_eq!(examination.facts["overridden"][0]["value"], "TRACE");
    let lost = examination.findings.iter().find(|finding| finding.rule == "mpi-job-env-not-passed").unwrap();
    assert!(lost.diagnosis.starts_with("NCCL_SOCKET_IFNAME may not reach"), "{}", lost.diagnosis);
    assert_eq!(lost.severity, Severity::Advice);
}

#[test]
fn a_harmful_value_that_is_only_advice_is_questionable() {
    let known = situation(Some("2.28.9"), None, None, Some("p5.48xlarge"));
    let examination = examined("export NCCL_MNNVL_ENABLE=0\nexport NCCL_TOPO_FILE=/x.xml\n", &known);
    assert!(
        examination.proof[0].ends_with("none is known to break a job; 2 findings advise a change"),
        "{:?}",
        examination.proof
    );
    let Body::Table { rows, .. } = &examination.sections[1].body else { panic!("a table") };
    assert!(rows.iter().any(|row| row[3] == "questionable"), "{rows:?}");
    assert!(!rows.iter().any(|row| row[3] == "harmful"), "{rows:?}");
}

#[test]
fn an_answer_of_nccl_is_shown() {
    let answer = Answer {
        library: "NCCL 2.30.7".to_owned(),
        parameters: vec![("NCCL_DEBUG".to_owned(), "INFO".to_owned())],
    };
    let examination = examine_variables(&Collection::default(), &Situation::default(), None, Some(&answer));
    let last = examination.sections.last().unwrap();
    assert_eq!(last.title, "Values in effect, by NCCL 2.30.7");
    assert_eq!(examination.facts["nccl_answer"]["library"], "NCCL 2.30.7");
}

#[test]
fn a_variable_that_is_set_twice_is_told() {
    let examination = examined("export NCCL_DEBUG=INFO\nexport NCCL_DEBUG=WARN\n", &Situation::default());
    let finding = examination.findings.iter().find(|finding| finding.rule == "variable-set-twice").unwrap();
    assert_eq!(
        finding.diagnosis,
        "NCCL_DEBUG is set twice: WARN (job.sh:2) counts, INFO (job.sh:1) does not"
    );
}

#[test]
fn knowledge_is_complete_for_its_files() {
    assert!(
        knowledge::find_variable("NCCL_PROTO").is_some() && knowledge::find_variable("FI_PROVIDER").is_some()
    );
    assert!(knowledge::find_family("NCCL_HOME").is_some());
}

/// The same list judges environments and logs.
#[test]
fn variables_that_must_be_equal_are_told_from_those_of_a_host() {
    for name in ["NCCL_ALGO", "NCCL_LL128_BUFFSIZE", "NCCL_RUNTIME_CONNECT", "NCCL_MAX_NRINGS"] {
        assert!(must_be_equal(name), "{name}");
    }
    for name in ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL", "NO_SUCH_NAME"] {
        assert!(!must_be_equal(name), "{name}");
    }
}
