//! Checks of values, and of names with a misspelt prefix.

use super::*;

#[test]
fn values_are_checked_without_a_rule() {
    let now = Situation::default();
    assert!(judged("NCCL_P2P_NET_CHUNKSIZE", "512K", &now).reason.contains("`512K` is 512"));
    assert_eq!(
        judged("NCCL_P2P_NET_CHUNKSIZE", "512K", &now).remedy.as_deref(),
        Some("set NCCL_P2P_NET_CHUNKSIZE=524288")
    );
    assert_eq!(judged("NCCL_GRAPH_REGISTER", "false", &now).severity, Some(Severity::Advice));
    assert_eq!(judged("NCCL_GRAPH_REGISTER", "yes", &now).severity, Some(Severity::Degraded));
    assert_eq!(judged("NCCL_GRAPH_REGISTER", "0", &now).kind, VerdictKind::Plain);
    assert!(judged("FI_EFA_USE_HUGE_PAGE", "no way", &now).reason.contains("`no way`"));
    assert!(judged("NCCL_WORK_ARGS_BYTES", "99999999999999999999", &now).reason.contains("too large"));
}

/// A bad value is reported once, with the remedy, and without a judgement about its meaning.
#[test]
fn a_bad_value_has_one_finding_with_a_remedy() {
    for (name, value, severity, remedy) in [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "9", Severity::Degraded, "unset TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_PROTO", "LL129", Severity::Broken, "set NCCL_PROTO=LL128"),
        ("NCCL_P2P_LEVEL", "NVLINK", Severity::Degraded, "set NCCL_P2P_LEVEL=NVL"),
        ("NCCL_P2P_LEVEL", "LOCAL", Severity::Degraded, "unset NCCL_P2P_LEVEL"),
        (
            "NCCL_IB_GID_INDEX",
            "three",
            Severity::Degraded,
            "unset NCCL_IB_GID_INDEX, or set it to a number from -1 to 255",
        ),
        ("NCCL_CROSS_NIC", "3", Severity::Degraded, "unset NCCL_CROSS_NIC, or set it to one of 0, 1, 2"),
        (
            "NCCL_IB_TIMEOUT",
            "40",
            Severity::Degraded,
            "unset NCCL_IB_TIMEOUT, or set it to a number from 1 to 31",
        ),
        (
            "NCCL_MIN_NCHANNELS",
            "512",
            Severity::Degraded,
            "unset NCCL_MIN_NCHANNELS, or set it to a number from 1 to 64",
        ),
        ("NCCL_SOCKET_IFNAME", "=eth0,^lo", Severity::Degraded, "set NCCL_SOCKET_IFNAME==eth0"),
        ("NCCL_IB_HCA", "mlx5_*", Severity::Broken, "set NCCL_IB_HCA=mlx5_"),
        (
            "FI_PROVIDER",
            "efa;tcp",
            Severity::Broken,
            "unset FI_PROVIDER; where other programs need it, separate the names by commas",
        ),
        ("FI_PROVIDER", "^efa", Severity::Degraded, "unset FI_PROVIDER"),
        ("CUDA_VISIBLE_DEVICES", "0,0,1", Severity::Broken, "set CUDA_VISIBLE_DEVICES=0,1"),
    ] {
        let network = Network { interfaces: vec!["lo".to_owned(), "eth0".to_owned()], ..Network::default() };
        let collection = Collection::of_text(&format!("{name}={value}\n"), "-");
        let examination = examine_variables(&collection, &Situation::default(), Some(&network), None);
        let told: Vec<_> =
            examination.findings.iter().map(|it| (it.severity, it.remedy.as_deref())).collect();
        assert_eq!(told, [(severity, Some(remedy))], "{name}={value}: {:?}", examination.findings);
    }
}

#[test]
fn impossible_values_are_told() {
    for (name, value, words) in [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "0", "not a number from 1 to 32"),
        ("NCCL_CTA_POLICY", "9", "not one of DEFAULT (0), EFFICIENCY (1) and ZERO (2)"),
        ("NCCL_NET_GDR_READ", "2", "is not one of its values (0, 1)"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "-5", "without a grace period"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "0", "without a grace period"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "-5", "cannot be negative"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10m", "takes no unit"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2k", "takes no unit"),
        ("NCCL_SOCKET_IFNAME", "eth0,10.0.0.1", "is an address"),
        ("NCCL_IB_HCA", "ib0", "not the name of an RDMA device"),
        ("NCCL_SET_THREAD_NAME", "yes", "reads numbers only"),
        ("NCCL_IB_GID_INDEX", "300", "above 255"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1;mlx5_2", "commas separate the names"),
        ("NCCL_IB_HCA", "mlx5_0:x", "NCCL reads port 0"),
        ("FI_VERBS_USE_ODP", "maybe", "does not take `maybe`"),
        ("FI_EFA_TX_SIZE", "abc", "libfabric reads numbers only: `abc` counts as 0"),
        ("FI_EFA_TX_SIZE", "64K", "libfabric stops reading at `K`: `64K` is 64"),
        ("FI_EFA_TX_SIZE", "", "libfabric reads this as 0"),
        ("OFI_NCCL_NIC_DUP_CONNS", "x", "`x` is not a number: aws-ofi-nccl uses its default"),
        ("OFI_NCCL_NIC_DUP_CONNS", "4x", "`4x` is not a number"),
        ("OFI_NCCL_NIC_DUP_CONNS", "-1", "-1 is below 0"),
        ("FI_EFA_TX_SIZE", "-1", "-1 is below 0"),
        ("NCCL_IB_DISABLE", "-1", "is not one of its values (0, 1)"),
        ("NCCL_RAS_ADDR", "foo", "not HOST:PORT"),
        ("OFI_NCCL_MR_CACHE_DISABLE", "yes", "`yes` is not 0, 1, true or false"),
    ] {
        let verdict = judged(name, value, &Situation::default());
        assert_eq!(verdict.kind, VerdictKind::Invalid, "{name}={value}: {verdict:?}");
        assert_eq!(verdict.severity, Some(Severity::Degraded), "{name}={value}: {verdict:?}");
        assert!(verdict.reason.contains(words), "{name}={value}: {}", verdict.reason);
    }
    for (name, value) in [
        ("FI_MR_CACHE_MAX_SIZE", "-1"),
        ("OFI_NCCL_EAGER_MAX_SIZE", "-1"),
        ("OFI_NCCL_MR_CACHE_DISABLE", "True"),
    ] {
        assert_ne!(judged(name, value, &Situation::default()).kind, VerdictKind::Invalid, "{name}={value}");
    }
}

#[test]
fn variables_that_do_not_fit_together_are_told() {
    let health = |text: &str| examined(text, &Situation::default()).health();
    for (text, expected) in [
        ("NCCL_MIN_NCHANNELS=16\nNCCL_MAX_NCHANNELS=8\n", Health::Degraded),
        ("NCCL_MIN_CTAS=16\nNCCL_MAX_CTAS=8\n", Health::Degraded),
        ("NCCL_MIN_NCHANNELS=8\nNCCL_MAX_NCHANNELS=8\n", Health::Healthy),
        ("FI_TCP_PORT_LOW_RANGE=5000\nFI_TCP_PORT_HIGH_RANGE=4000\n", Health::Degraded),
        ("NCCL_SOCKET_NTHREADS=16\nNCCL_NSOCKS_PERTHREAD=16\n", Health::Degraded),
        ("NCCL_SOCKET_NTHREADS=8\nNCCL_NSOCKS_PERTHREAD=8\n", Health::Healthy),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=1\n", Health::Broken),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=0\n", Health::Healthy),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=0x1\n", Health::Broken),
        ("NCCL_MIN_NCHANNELS=0x10\nNCCL_MAX_NCHANNELS=8\n", Health::Degraded),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_TRACE_BUFFER_SIZE=0\n", Health::Degraded),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_TRACE_BUFFER_SIZE=2000\n", Health::Healthy),
        ("NCCL_NET=AWS Libfabric\nNCCL_NET_PLUGIN=none\n", Health::Broken),
    ] {
        assert_eq!(health(text), expected, "{text}");
    }
    for excluded in ["^Ring", "^Ring,Tree", "^Ring;allreduce:Tree"] {
        assert_eq!(health(&format!("NCCL_ALGO={excluded}\n")), Health::Broken, "{excluded}");
    }
    assert_ne!(health("NCCL_ALGO=^Tree;allreduce:NVLS,Ring\n"), Health::Broken);
    assert_eq!(health("NCCL_IB_ADDR_RANGE=fe80::/10\nNCCL_IB_ADDR_FAMILY=AF_INET\n"), Health::Degraded);
    assert_eq!(health("NCCL_IB_ADDR_RANGE=fe80::/10\nNCCL_IB_ADDR_FAMILY=AF_INET6\n"), Health::Healthy);
    // An empty number is not set, and no rule is about it.
    assert_eq!(examined("NCCL_IB_GID_INDEX=\n", &Situation::default()).findings.len(), 1);
    let of_nodes = Situation { nodes: Some(2), ..Situation::default() };
    assert_eq!(examined("GLOO_SOCKET_IFNAME=lo\n", &of_nodes).health(), Health::Broken);
    for protocols in ["Simple", "Simple,LL128"] {
        let of_google = format!("NCCL_PROTO={protocols}\nNCCL_FASTRAK_CTRL_DEV=eth0\n");
        assert_eq!(health(&of_google), Health::Healthy);
    }
    assert_eq!(
        health("NCCL_TEST_PORT=tcp://10.0.0.1:80\nNCCL_TEST_SERVICE_HOST=10.0.0.1\n"),
        Health::Healthy
    );
    let without_devices = Situation { rdma: Some(false), ..Situation::default() };
    assert_eq!(examined("NCCL_NET=IB\n", &without_devices).health(), Health::Broken);
}

/// Each number of the knowledge's examples has the same verdict in hexadecimal digits and with a sign.
#[test]
fn numbers_are_judged_however_they_are_written() {
    let mut count = 0;
    for (_, text) in knowledge::FILES {
        let file: knowledge::File = toml::from_str(text).unwrap();
        for variable in file.variable.iter().filter(|it| it.form == Some(knowledge::Form::Number)) {
            let name = &variable.names[0];
            for example in &variable.example {
                let Ok(number) = example.value.parse::<u64>() else { continue };
                let now = Situation::default();
                let expected = judged(name, &example.value, &now);
                for written in [format!("{number:#x}"), format!("+{number}"), format!(" {number}")] {
                    let verdict = judged(name, &written, &now);
                    assert_eq!(
                        (verdict.kind, &verdict.rule),
                        (expected.kind, &expected.rule),
                        "{name}={written}"
                    );
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count}");
    // A leading zero is advice, and hides no rule.
    assert_eq!(judged("NCCL_P2P_DISABLE", "01", &Situation::default()).kind, VerdictKind::Harmful);
}

#[test]
fn values_that_nothing_can_check_are_not_healthy() {
    let now = Situation::default();
    assert_eq!(examined("FI_VERBS_IFACE=typo\n", &now).health(), Health::CannotTell);
    let unchecked = "NCCL_DEBUG=WARN\nFI_UCX_TLS=rc\n";
    let examination = examined(unchecked, &now);
    assert_eq!(examination.health(), Health::CannotTell, "{examination:?}");
    assert!(examination.findings.iter().any(|it| it.rule == "variable-unjudged"), "{examination:?}");
    // A run with them tries them.
    let collection = Collection { is_measured: true, ..Collection::of_text(unchecked, "-") };
    assert_eq!(examine_variables(&collection, &now, None, None).health(), Health::Healthy);
    for checked in ["FI_TCP_TX_SIZE=64\n", "LD_LIBRARY_PATH=/opt/lib\n", "NCCL_TUNER_PLUGIN=mine\n"] {
        assert_eq!(examined(checked, &now).health(), Health::Healthy, "{checked}");
    }
}

#[test]
fn carriage_returns_of_scripts_are_told() {
    let has_finding = |text: &str| {
        let found = examined(text, &Situation::default()).findings;
        found.iter().any(|it| it.rule == "variable-carriage-return")
    };
    assert!(has_finding("#!/bin/bash\r\nexport NCCL_DEBUG=WARN\r\n"));
    assert!(has_finding("export NCCL_DEBUG=WARN\r\n") && has_finding("NCCL_DEBUG=WARN\r\nA=b\r\n"));
    assert!(!has_finding("export NCCL_DEBUG=WARN\n"));
    assert!(!has_finding("env:\r\n- name: NCCL_DEBUG\r\n  value: WARN\r\n"));
}

#[test]
fn folders_and_libraries_that_are_not_there_are_told() {
    let root = tempfile::tempdir().unwrap();
    let there = root.path().join("there.so");
    std::fs::write(&there, "").unwrap();
    let missing = root.path().join("missing/file");
    let folder = root.path().join("file");
    for (name, value, rule) in [
        ("NCCL_DEBUG_FILE", format!("{}.%h.%p", missing.display()), Some("variable-file-missing")),
        ("NCCL_DEBUG_FILE", format!("{}.%h.%p", folder.display()), None),
        ("NCCL_DEBUG_FILE", "/tmp/%h/nccl".to_owned(), None),
        ("NCCL_TOPO_DUMP_FILE", missing.display().to_string(), Some("variable-file-missing")),
        ("NCCL_TOPO_DUMP_FILE", folder.display().to_string(), None),
        ("LD_PRELOAD", format!("{}:libm.so", missing.display()), Some("variable-file-missing")),
        ("LD_PRELOAD", format!("{} libm.so /usr/$LIB/libx.so", there.display()), None),
    ] {
        let block = format!("{name}={value}\0");
        let collection = Collection::of_process(
            &Process::from_block(block.as_bytes(), "environment"),
            &Version::new(2, 28, 9),
        );
        let found = examine_variables(&collection, &Situation::default(), None, None).findings;
        let missing = found.iter().find(|it| it.rule == "variable-file-missing");
        let remedy = missing.and_then(|it| it.remedy.as_deref()).unwrap_or_default();
        let is_folder = name != "LD_PRELOAD";
        assert_eq!(remedy.contains("create the folder"), missing.is_some() && is_folder, "{name}: {remedy}");
        let rule_found = missing.map(|it| it.rule.as_str());
        assert_eq!(rule_found, rule, "{name}={value}: {found:?}");
    }
}

#[test]
fn values_end_where_their_quote_or_list_ends() {
    for (text, expected) in [
        ("sbatch --export=\"ALL,NCCL_DEBUG=WARN\" x.sh", &["NCCL_DEBUG=WARN"][..]),
        ("ssh h \"NCCL_DEBUG=WARN ./x\"", &["NCCL_DEBUG=WARN"]),
        ("srun bash -c 'NCCL_IB_TIMEOUT=22 ./x'", &["NCCL_IB_TIMEOUT=22"]),
        (
            "command: [sh, -c, \"NCCL_IB_TIMEOUT=22 NCCL_DEBUG=WARN ./x\"]",
            &["NCCL_DEBUG=WARN", "NCCL_IB_TIMEOUT=22"],
        ),
        (
            "mpirun --mca mca_base_env_list \"NCCL_ALGO=Ring;NCCL_DEBUG=WARN\" a",
            &["NCCL_ALGO=Ring", "NCCL_DEBUG=WARN"],
        ),
        ("env:\n- name: NCCL_IB_TIMEOUT\n  value: &t \"22\"\n", &["NCCL_IB_TIMEOUT=22"]),
        ("mpirun -x \"NCCL_NET=AWS Libfabric\" ./x", &["NCCL_NET=AWS Libfabric"]),
        ("NCCL_DEBUG=WARN\0NCCL_ALGO=Ring\0", &["NCCL_ALGO=Ring", "NCCL_DEBUG=WARN"]),
    ] {
        let all = Collection::of_text(text, "-");
        let found: Vec<_> = all.settings.iter().map(|it| format!("{}={}", it.name, it.value)).collect();
        assert_eq!(found, expected, "{text}");
        assert!(!all.is_partial, "{text}: {:?}", all.unseen);
    }
}

#[test]
fn forms_from_which_no_value_is_read_are_told() {
    for text in [
        ": ${NCCL_ALGO:=Rnig}",
        "read NCCL_ALGO <<< Rnig",
        "printf -v NCCL_ALGO Rnig",
        "helm install --set env.NCCL_ALGO=Rnig x",
        "NCCL_ALGO = Rnig",
        "os.environ.setdefault(\"NCCL_ALGO\",\"Rnig\")",
        "os.putenv(\"NCCL_ALGO\", \"Rnig\")",
        "os.environ[\"NCCL_ALGO\"]=str(99)",
        "- name: NCCL_ALGO\n  value: *t\n",
    ] {
        let all = Collection::of_text(&format!("export NCCL_DEBUG=WARN\n{text}\n"), "-");
        assert!(all.is_partial && all.unseen.iter().any(|it| it.contains("NCCL_ALGO")), "{text}: {all:?}");
    }
    for text in [
        "echo $NCCL_ALGO ${NCCL_ALGO:-Ring}",
        "env | grep NCCL_",
        "cd nccl_tests",
        "srun fi_info",
        "module load nccl_2.18",
        "unset A NCCL_PROTO",
        "export A NCCL_PROTO",
        "echo \"use NCCL_ALGO\"",
        "PATH=/opt/nccl_tests:/usr/bin",
        ": ${NCCL_ALGO:?}",
        "mpirun --mca mca_base_env_list \"NCCL_PROTO=Simple\" -x NCCL_ALGO=Ring ./x",
    ] {
        let all = Collection::of_text(&format!("export NCCL_DEBUG=WARN\n{text}\n"), "-");
        assert!(!all.is_partial, "{text}: {:?}", all.unseen);
        assert!(
            all.settings.iter().all(|it| it.name != "NCCL_ALGO" || it.value == "Ring"),
            "{text}: {all:?}"
        );
    }
}

#[test]
fn names_with_a_misspelt_prefix_are_told() {
    for (name, meant) in [("NCLL_DEBUG", "NCCL_DEBUG"), ("CUDA_VISIBLE_DEVCES", "CUDA_VISIBLE_DEVICES")] {
        let examination = examined(&format!("{name}=1\n"), &Situation::default());
        let told: Vec<_> = examination.findings.iter().map(|it| it.diagnosis.as_str()).collect();
        assert_eq!(told, [format!("{name}=1: nothing reads {name}: did you mean {meant}?")]);
        assert_eq!(examination.health(), Health::Degraded);
    }
}

#[test]
fn a_file_that_a_text_names_is_not_taken_as_read() {
    let examination = examined("NCCL_CONF_FILE=/shared/nccl.conf\nNCCL_DEBUG=WARN\n", &Situation::default());
    let words = "/shared/nccl.conf, which NCCL_CONF_FILE names, was not read";
    assert!(examination.unseen.iter().any(|it| it == words), "{:?}", examination.unseen);
}
