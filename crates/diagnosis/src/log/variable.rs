//! Variables in the messages of NCCL 2.18 to 2.32.
//!
//! Most messages are `NAME set by environment to VALUE`. Others tell a value that NCCL refuses or changes. A
//! message about the settings of a communicator names a variable only where the variable replaced the
//! program's value.

use memchr::memmem;

use super::text::first_word;

/// A form of a message: the text before the name, between name and value, and after the value.
struct MessageForm {
    before: &'static [u8],
    between: &'static [u8],
    /// Empty for a value up to the end.
    after: &'static [u8],
}

const fn form(before: &'static str, between: &'static str, after: &'static str) -> MessageForm {
    MessageForm { before: before.as_bytes(), between: between.as_bytes(), after: after.as_bytes() }
}

/// The forms with the name before the value, without the name of a part of NCCL before them (`NET/IB: `).
const FORMS: [MessageForm; 22] = [
    form("", " set by environment to ", ""),
    form("", " set to ", ""),
    form("", "=", " is being ignored because "),
    form("", "=", ", RMA disabled"),
    form("", "=", " set; skipping "),
    form("", "=", " exceeds provisioned contexts"),
    form("", "=", " takes precedence over "),
    form("", "=", " not found in PKey table"),
    form("", " value ", " is too big"),
    form("", " ", " is too low, leaving it set at "),
    form("", " ", " is not valid, leaving it set at "),
    form("", " = ", ": "),
    form("", ": unknown value '", "', defaulting to "),
    form("", " invalid value \"", "\", using "),
    form("'", "=", "' is too small"),
    form("Invalid ", "=", "; expected "),
    form("Invalid ", " ", " (m"),
    form("Parsed environment variable ", "=", " to "),
    form("No valid CTA policies found in ", "=", "."),
    form("Unable to recognize ", "=", ", using "),
    form("failed to decode ", "=", ". Ignoring"),
    form("Force-fusing NICs using ", "=", ""),
];

/// Names that NCCL writes, with the right ones.
const WRONG_NAMES: [(&[u8], &[u8]); 2] = [
    (b"NCCL_MAX_CGA_CLUSTER_SIZE", b"NCCL_CGA_CLUSTER_SIZE"),
    (b"NCCL_MAX_P2P_PEERS", b"NCCL_P2P_MAX_PEERS"),
];

/// Returns the name and the value of a variable in a message.
pub(super) fn parse_variable(message: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(found) = parse_plugin(message) {
        return Some(found);
    }
    if let Some(found) = parse_refused_value(message) {
        return Some(found);
    }
    let message = without_part(message);
    memchr::memchr(b'_', message)?;
    let (name, value) = FORMS
        .iter()
        .find_map(|form| parse_form(message, form))
        .or_else(|| parse_replaced_setting(message))?;
    let name = WRONG_NAMES.iter().find(|(wrong, _)| *wrong == name).map_or(name, |(_, right)| right);
    Some((name, strip_full_stop(value)))
}

/// Returns the message after the name of a part of NCCL: `NET/IB: `, `TUNER/Plugin: `, `TOPO/NET : `.
fn without_part(message: &[u8]) -> &[u8] {
    let part = first_word(message);
    let rest = &message[part.len()..];
    match part.strip_suffix(b":") {
        _ if !part.contains(&b'/') || part.len() > 20 => message,
        Some(_) => rest.strip_prefix(b" ").unwrap_or(message),
        None => rest.strip_prefix(b" : ").unwrap_or(message),
    }
}

fn parse_form<'a>(message: &'a [u8], form: &MessageForm) -> Option<(&'a [u8], &'a [u8])> {
    let rest = message.strip_prefix(form.before)?;
    let name = &rest[..rest.iter().position(|&byte| !is_of_name(byte))?];
    let value = rest[name.len()..].strip_prefix(form.between)?;
    let value = match form.after {
        b"" => value,
        after => &value[..memmem::find(value, after)?],
    };
    // A sentence is no value, except after the words that only stand before values.
    let is_value = form.between.ends_with(b"environment to ") || !value.contains(&b' ');
    (is_name(name) && !value.is_empty() && is_value).then_some((name, value))
}

/// Reads `Invalid value 3x for NCCL_RAS_TIMEOUT_FACTOR, using default 1.` and
/// `Unknown CTA policy X passed as environment variable. Ignoring.`.
fn parse_refused_value(message: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(rest) = message.strip_prefix(b"Unknown CTA policy ") {
        let end = memmem::find(rest, b" passed as environment variable")?;
        return Some((b"NCCL_CTA_POLICY", &rest[..end]));
    }
    let rest = message.strip_prefix(b"Invalid value ")?;
    let value = first_word(rest);
    let rest = rest[value.len()..].strip_prefix(b" for ")?;
    let name = &rest[..memmem::find(rest, b", using default ")?];
    is_name(name).then_some((name, value))
}

/// Reads `Comm config minCTAs reset to NCCL_MIN_CTAS=16` and
/// `Comm config graphUsageMode reset to 2 by NCCL_GRAPH_MIXING_SUPPORT=1`. NCCL also writes NCCL_NET there
/// where only the program chose a network.
fn parse_replaced_setting(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = message.strip_prefix(b"Comm config ")?;
    let rest = rest[first_word(rest).len()..].strip_prefix(b" reset to ")?;
    let assignment = memmem::find(rest, b" by ").map_or(rest, |by| &rest[by + 4..]);
    let equal = memchr::memchr(b'=', assignment)?;
    let (name, value) = (&assignment[..equal], &assignment[equal + 1..]);
    (is_name(name) && name != b"NCCL_NET").then_some((name, value))
}

/// Reads the name of a plugin. Versions before 2.21 write the whole name of the file. 2.27 writes the default
/// name of the network's plugin as well. The tuner's can come from NCCL_NET_PLUGIN.
fn parse_plugin(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let file = |part: &[u8]| message.strip_prefix(part)?.strip_prefix(b"Plugin name set by env to ");
    if let Some(file) = file(b"PROFILER/Plugin: ") {
        return Some((b"NCCL_PROFILER_PLUGIN", file));
    }
    let file = file(b"NET/Plugin: ").or_else(|| file(b"")).filter(|file| *file != b"libnccl-net.so")?;
    let name = file.strip_prefix(b"libnccl-net-").and_then(|rest| rest.strip_suffix(b".so"));
    Some((b"NCCL_NET_PLUGIN", name.unwrap_or(file)))
}

/// Returns a number without the full stop after it.
fn strip_full_stop(value: &[u8]) -> &[u8] {
    let number = value.strip_suffix(b".").filter(|number| {
        let digits = number.strip_prefix(b"-").unwrap_or(number);
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    });
    number.unwrap_or(value)
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'
}

/// Returns true for the name of a variable.
pub(super) fn is_name(name: &[u8]) -> bool {
    name.len() > 3 && name.iter().copied().all(is_of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of NCCL 2.18 to 2.32, each with the variable in it.
    const MESSAGES: &[(&str, &str, &str)] = &[
        ("NCCL_CROSS_NIC set by environment to 2.", "NCCL_CROSS_NIC", "2"),
        ("NCCL_ALGO set by environment to Ring", "NCCL_ALGO", "Ring"),
        (
            "NCCL_THREAD_THRESHOLDS set by environment to 8 8 64 8 8 64",
            "NCCL_THREAD_THRESHOLDS",
            "8 8 64 8 8 64",
        ),
        ("NCCL_IB_HCA set to ^=mlx5_8,^=mlx5_14", "NCCL_IB_HCA", "^=mlx5_8,^=mlx5_14"),
        ("NCCL_SOCKET_IFNAME set to ^docker,lo", "NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_OOB_NET_IFNAME set to =mlx5_0:1", "NCCL_OOB_NET_IFNAME", "=mlx5_0:1"),
        ("NET/DOCA: NCCL_IB_HCA set to mlx5_0", "NCCL_IB_HCA", "mlx5_0"),
        ("NCCL_P2P_LEVEL set by environment to PXB", "NCCL_P2P_LEVEL", "PXB"),
        ("NCCL_TUNER_PLUGIN set to ofi", "NCCL_TUNER_PLUGIN", "ofi"),
        ("TUNER/Plugin: NCCL_TUNER_PLUGIN set to ofi", "NCCL_TUNER_PLUGIN", "ofi"),
        ("Plugin name set by env to libnccl-net-ofi.so", "NCCL_NET_PLUGIN", "ofi"),
        ("NET/Plugin: Plugin name set by env to /opt/x.so", "NCCL_NET_PLUGIN", "/opt/x.so"),
        ("PROFILER/Plugin: Plugin name set by env to x.so", "NCCL_PROFILER_PLUGIN", "x.so"),
        ("NCCL_NET_PLUGIN set by environment to ofi,none", "NCCL_NET_PLUGIN", "ofi,none"),
        ("NET/IB: NCCL_IB_RAIL_POLICY set by environment to CX9_ALT", "NCCL_IB_RAIL_POLICY", "CX9_ALT"),
        (
            "NET/IB: NCCL_IB_PKEY_VALUE=0x8001 takes precedence over NCCL_IB_PKEY index 1",
            "NCCL_IB_PKEY_VALUE",
            "0x8001",
        ),
        (
            "TOPO/NET : Force-fusing NICs using NCCL_NET_FORCE_MERGE=mlx5_0,mlx5_1;mlx5_2,mlx5_3",
            "NCCL_NET_FORCE_MERGE",
            "mlx5_0,mlx5_1;mlx5_2,mlx5_3",
        ),
        (
            "Invalid value 99999999999999999999 for NCCL_BUFFSIZE, using default -2.",
            "NCCL_BUFFSIZE",
            "99999999999999999999",
        ),
        (
            "Unable to recognize NCCL_NETDEVS_POLICY=x, using NCCL_NETDEVS_POLICY_AUTO instead.",
            "NCCL_NETDEVS_POLICY",
            "x",
        ),
        ("NCCL_PROXY_CPUSET = 0-3: 0-63 changed to 0-3", "NCCL_PROXY_CPUSET", "0-3"),
        ("failed to decode NCCL_PROXY_CPUSET=x. Ignoring", "NCCL_PROXY_CPUSET", "x"),
        ("NCCL_CGA_CLUSTER_SIZE value 16 is too big. Limiting value to 8.", "NCCL_CGA_CLUSTER_SIZE", "16"),
        ("NCCL_MIN_CTAS 0 is too low, leaving it set at 1", "NCCL_MIN_CTAS", "0"),
        ("NCCL_MAX_P2P_PEERS 0 is too low, leaving it set at 1", "NCCL_P2P_MAX_PEERS", "0"),
        (
            "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE 2 is not valid, leaving it set at 0",
            "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
            "2",
        ),
        (
            "NCCL_WORK_FIFO_DEPTH=100 is being ignored because it is not a power of 2.",
            "NCCL_WORK_FIFO_DEPTH",
            "100",
        ),
        ("'NCCL_WORK_FIFO_DEPTH=8' is too small. Minimum value is 64", "NCCL_WORK_FIFO_DEPTH", "8"),
        ("Invalid NCCL_NTHREADS 100 (must be a multiple of 32)", "NCCL_NTHREADS", "100"),
        ("Invalid NCCL_NTHREADS 1024 (maximum 512).", "NCCL_NTHREADS", "1024"),
        (
            "Parsed environment variable NCCL_CTA_POLICY=ZERO|EFFICIENCY to 3",
            "NCCL_CTA_POLICY",
            "ZERO|EFFICIENCY",
        ),
        ("Unknown CTA policy FAST passed as environment variable. Ignoring.", "NCCL_CTA_POLICY", "FAST"),
        ("No valid CTA policies found in NCCL_CTA_POLICY=FAST.", "NCCL_CTA_POLICY", "FAST"),
        ("NCCL_NET_MERGE_POLICY: unknown value 'x', defaulting to ALL", "NCCL_NET_MERGE_POLICY", "x"),
        ("NCCL_SOCKET_MAGIC invalid value \"x\", using built-in default", "NCCL_SOCKET_MAGIC", "x"),
        (
            "Invalid NCCL_GDRCOPY_USE_INTERNAL_DMABUF=7; expected 0, 1, or 2",
            "NCCL_GDRCOPY_USE_INTERNAL_DMABUF",
            "7",
        ),
        (
            "NCCL_GDRCOPY_USE_INTERNAL_DMABUF=1 set; skipping libgdrapi.so",
            "NCCL_GDRCOPY_USE_INTERNAL_DMABUF",
            "1",
        ),
        ("NCCL_NUM_RMA_CTX=0, RMA disabled for this communicator", "NCCL_NUM_RMA_CTX", "0"),
        (
            "NCCL_HIER_CE_COLL_NUM_CTX=9 exceeds provisioned contexts; using 4.",
            "NCCL_HIER_CE_COLL_NUM_CTX",
            "9",
        ),
        ("Comm config minCTAs reset to NCCL_MIN_CTAS=16", "NCCL_MIN_CTAS", "16"),
        ("Comm config cgaClusterSize reset to NCCL_MAX_CGA_CLUSTER_SIZE=2", "NCCL_CGA_CLUSTER_SIZE", "2"),
        (
            "Comm config graphUsageMode reset to 2 by NCCL_GRAPH_MIXING_SUPPORT=1",
            "NCCL_GRAPH_MIXING_SUPPORT",
            "1",
        ),
    ];

    #[test]
    fn each_form_of_a_value_is_read() {
        for (message, name, value) in MESSAGES {
            let found = parse_variable(message.as_bytes());
            assert_eq!(found, Some((name.as_bytes(), value.as_bytes())), "{message}");
        }
    }

    #[test]
    fn values_of_programs_defaults_and_advice_are_no_variables() {
        for message in [
            "Comm config Blocking set to 1",
            "Comm config netName reset to NCCL_NET=IB",
            "P2P Chunksize set to 524288",
            "NET/Plugin: Plugin name set by env to libnccl-net.so",
            "TUNER/Plugin: Plugin name set by env to libnccl-net-ofi.so",
            "NCCL_SYM_KERNEL set to X. At largest grouped work size 123 Bytes, kernel will not exercise TMA paths.",
            "Socket handshake magic 0x00000000deadbeef (built-in default)",
            "Set NCCL_IGNORE_NET_MISMATCH=1 to continue.",
            "Disable NVLS (NCCL_NVLS_ENABLE=0) and run again",
            "NCCL_DEBUG set by",
            "",
        ] {
            assert_eq!(parse_variable(message.as_bytes()), None, "{message}");
        }
    }
}
