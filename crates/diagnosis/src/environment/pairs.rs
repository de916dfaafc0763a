//! Variables with good values of their own that do not fit together.

use std::fmt::Display;

use super::number;
use super::setting::Setting;
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;

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
        let is_fabric = least.name.starts_with("FI_");
        let id = if is_fabric { "variable-limits-crossed/libfabric" } else { "variable-limits-crossed" };
        contradiction_finding(id, [least, most])
    });
    let sockets = both("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD").filter(|(threads, sockets)| {
        let product =
            read_number(threads).zip(read_number(sockets)).map(|(one, other)| one.saturating_mul(other));
        product.is_some_and(|product| product > MAX_SOCKETS)
    });
    let sockets = sockets.map(|(one, other)| contradiction_finding("variable-sockets", [one, other]));
    let off = both("NCCL_NET", "NCCL_IB_DISABLE")
        .filter(|(net, off)| is(net, &["IB"]) && read_number(off).is_some_and(|off| off != 0));
    let without_plugin = both("NCCL_NET", "NCCL_NET_PLUGIN")
        .filter(|(net, plugin)| is(net, &["AWS Libfabric", "Libfabric", "OFI"]) && is(plugin, &["none"]));
    let missing = off.into_iter().chain(without_plugin);
    let missing = missing.map(|(net, off)| contradiction_finding("variable-network-off", [net, off]));
    let dump = both("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        .filter(|(dump, size)| is(dump, &["1", "y", "yes", "t", "true"]) && read_number(size) == Some(0));
    let dump = dump.map(|(dump, size)| contradiction_finding("variable-nothing-to-dump", [dump, size]));
    let family = both("NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY").filter(|(range, family)| {
        range.value.contains('/') && range.value.contains(':') != is(family, &["AF_INET6"])
    });
    let family = family.map(|(one, other)| contradiction_finding("variable-address-family", [one, other]));
    crossed.chain(sockets).chain(missing).chain(dump).chain(family).collect()
}

fn read_number(setting: &Setting) -> Option<i64> {
    number::read_whole_number(&setting.value)
}

fn contradiction_finding(id: &str, settings: [&Setting; 2]) -> Finding {
    let [one, other] = settings.map(Setting::cite_setting);
    let values: [(&str, &dyn Display); 5] = [
        ("one", &one.text),
        ("other", &other.text),
        ("name", &settings[0].name),
        ("other_name", &settings[1].name),
        ("sockets", &MAX_SOCKETS),
    ];
    let finding = compose_finding(id, &values);
    Finding { evidence: vec![one, other], ..finding }
}
