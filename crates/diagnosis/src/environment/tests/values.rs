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
    assert_eq!(judged("NCCL_GRAPH_REGISTER", "0", &now).kind, Kind::Plain);
    assert!(judged("FI_EFA_USE_HUGE_PAGE", "no way", &now).reason.contains("`no way`"));
    assert!(judged("NCCL_WORK_ARGS_BYTES", "99999999999999999999", &now).reason.contains("too large"));
}

/// A bad value is told once, with the way out, and without a judgement about what it does not mean.
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
            "unset NCCL_IB_GID_INDEX, or set it to a number from -1",
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
        let examination = examine(&collection, &Situation::default(), Some(&network), None);
        let told: Vec<_> =
            examination.findings.iter().map(|it| (it.severity, it.remedy.as_deref())).collect();
        assert_eq!(told, [(severity, Some(remedy))], "{name}={value}: {:?}", examination.findings);
    }
}

#[test]
fn impossible_values_are_told() {
    for (name, value, words) in [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "0", "no number from 1 to 32"),
        ("NCCL_CTA_POLICY", "9", "none of DEFAULT (0), EFFICIENCY (1) and ZERO (2)"),
        ("NCCL_NET_GDR_READ", "2", "which are 0, 1"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "-5", "cannot be negative"),
        ("FI_EFA_TX_SIZE", "abc", "libfabric reads numbers only: `abc` counts as 0"),
        ("FI_EFA_TX_SIZE", "64K", "libfabric stops reading at `K`: `64K` is 64"),
        ("FI_EFA_TX_SIZE", "", "libfabric reads as 0"),
        ("OFI_NCCL_NIC_DUP_CONNS", "x", "`x` is not a number: aws-ofi-nccl uses its default"),
        ("OFI_NCCL_NIC_DUP_CONNS", "4x", "`4x` is not a number"),
        ("OFI_NCCL_MR_CACHE_DISABLE", "yes", "`yes` is not 0, 1, true or false"),
    ] {
        let verdict = judged(name, value, &Situation::default());
        assert_eq!(verdict.kind, Kind::Invalid, "{name}={value}: {verdict:?}");
        assert_eq!(verdict.severity, Some(Severity::Degraded), "{name}={value}: {verdict:?}");
        assert!(verdict.reason.contains(words), "{name}={value}: {}", verdict.reason);
    }
    for (name, value) in [("FI_EFA_TX_SIZE", "-1"), ("OFI_NCCL_MR_CACHE_DISABLE", "True")] {
        assert_ne!(judged(name, value, &Situation::default()).kind, Kind::Invalid, "{name}={value}");
    }
}

#[test]
fn a_smallest_number_above_the_largest_is_told() {
    let health = |text: &str| examined(text, &Situation::default()).health();
    assert_eq!(health("NCCL_MIN_NCHANNELS=16\nNCCL_MAX_NCHANNELS=8\n"), Health::Degraded);
    assert_eq!(health("NCCL_MIN_CTAS=16\nNCCL_MAX_CTAS=8\n"), Health::Degraded);
    assert_eq!(health("NCCL_MIN_NCHANNELS=8\nNCCL_MAX_NCHANNELS=8\n"), Health::Healthy);
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
