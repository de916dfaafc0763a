//! Variables with good values of their own that do not fit together.

use super::number;
use super::setting::Setting;
use crate::finding::{Evidence, Finding, Severity};

/// Pairs of a smallest and a largest number.
const LIMITS: [(&str, &str); 5] = [
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
    ("FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE"),
];

/// Largest product of NCCL's threads for sockets and the sockets per thread.
const MAX_SOCKETS: i64 = 64;

/// Finds contradictions between variables.
pub(super) fn find_contradictions(settings: &[Setting]) -> Vec<Finding> {
    let find = |name: &str| settings.iter().find(|setting| setting.name == name);
    let both = |one: &str, other: &str| Some((find(one)?, find(other)?));
    let is = |setting: &Setting, words: &[&str]| {
        words.iter().any(|word| word.eq_ignore_ascii_case(setting.value.trim()))
    };
    let crossed = LIMITS.iter().filter_map(|(least, most)| both(least, most));
    let crossed = crossed.filter(|(least, most)| {
        read_number(least).zip(read_number(most)).is_some_and(|(least, most)| least > most)
    });
    let crossed = crossed.map(|(least, most)| {
        let text = format!("{}={} is above {}={}", least.name, least.value, most.name, most.value);
        contradiction_finding([least, most], "variable-limits-crossed", Severity::Degraded, text)
    });
    let sockets = both("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD").filter(|(threads, sockets)| {
        let product =
            read_number(threads).zip(read_number(sockets)).map(|(one, other)| one.saturating_mul(other));
        product.is_some_and(|product| product > MAX_SOCKETS)
    });
    let sockets = sockets.map(|(threads, sockets)| {
        let text = format!(
            "{}={} times {}={} is above {MAX_SOCKETS}, the largest number of sockets of a connection",
            threads.name, threads.value, sockets.name, sockets.value
        );
        contradiction_finding([threads, sockets], "variable-sockets", Severity::Degraded, text)
    });
    let off = both("NCCL_NET", "NCCL_IB_DISABLE")
        .filter(|(net, off)| is(net, &["IB"]) && read_number(off).is_some_and(|off| off != 0));
    let without_plugin = both("NCCL_NET", "NCCL_NET_PLUGIN")
        .filter(|(net, plugin)| is(net, &["AWS Libfabric", "Libfabric", "OFI"]) && is(plugin, &["none"]));
    let missing = off.into_iter().chain(without_plugin).map(|(net, off)| {
        let text = format!(
            "{}={} demands a network that {}={} turns off: the initialization fails",
            net.name, net.value, off.name, off.value
        );
        contradiction_finding([net, off], "variable-network-off", Severity::Broken, text)
    });
    let dump = both("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        .filter(|(dump, size)| is(dump, &["1", "y", "yes", "t", "true"]) && read_number(size) == Some(0));
    let dump = dump.map(|(dump, size)| {
        let text = format!(
            "{}={} keeps nothing that {}={} could write",
            size.name, size.value, dump.name, dump.value
        );
        contradiction_finding([dump, size], "variable-nothing-to-dump", Severity::Degraded, text)
    });
    let family = both("NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY").filter(|(range, family)| {
        range.value.contains('/') && range.value.contains(':') != is(family, &["AF_INET6"])
    });
    let family = family.map(|(range, family)| {
        let text = format!(
            "{}={} does not belong to {}={}, and NCCL ignores it",
            range.name, range.value, family.name, family.value
        );
        contradiction_finding([range, family], "variable-address-family", Severity::Degraded, text)
    });
    crossed.chain(sockets).chain(missing).chain(dump).chain(family).collect()
}

fn read_number(setting: &Setting) -> Option<i64> {
    number::read_whole_number(&setting.value)
}

fn contradiction_finding(settings: [&Setting; 2], rule: &str, severity: Severity, text: String) -> Finding {
    let [one, other] = settings;
    Finding {
        remedy: Some(format!("unset one of {} and {}", one.name, other.name)),
        evidence: settings
            .map(|setting| Evidence {
                place: setting.place.name.clone(),
                line: setting.place.line,
                text: format!("{}={}", setting.name, setting.value),
                ..Evidence::default()
            })
            .to_vec(),
        source: Some(
            match one.name.split('_').next() {
                Some("FI") => "fi_tcp(7)",
                Some("TORCH") => "PyTorch documentation, ProcessGroupNCCL Environment Variables",
                _ => "NCCL user guide, Environment Variables",
            }
            .to_owned(),
        ),
        ..Finding::new(rule, severity, text)
    }
}
