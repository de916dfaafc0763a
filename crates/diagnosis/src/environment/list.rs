//! Checks of lists of interfaces and RDMA devices. NCCL takes their names as prefixes.

use super::bad_value::BadValue;

/// Signs before a list.
const SIGNS: [char; 2] = ['^', '='];
/// Signs of a shell's patterns.
const PATTERN: [char; 3] = ['*', '?', '['];

/// Checks a list of RDMA devices, also for names of network interfaces.
pub(super) fn check_devices(value: &str, set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    let names = value.trim_start_matches(SIGNS).split(',').filter_map(|name| name.split(':').next());
    let fault = check_list(value, "NCCL uses no RDMA device and falls back to sockets", set);
    fault.or_else(|| {
        let has_bad_port = |name: &&str| {
            name.split(':').skip(1).any(|number| number.bytes().any(|byte| !byte.is_ascii_digit()))
        };
        if let Some(name) = value.trim_start_matches(SIGNS).split(',').find(has_bad_port) {
            let reason = format!(
                "`{name}` has no port number after the colon: NCCL reads port 0, and no device has a port 0"
            );
            return Some(BadValue::invalid(reason, None));
        }
        let name = names.into_iter().find(|name| is_no_device(name))?;
        let reason =
            format!("`{name}` is not the name of an RDMA device, such as mlx5_0 (`ibv_devices` lists them)");
        Some(BadValue::invalid(reason, None))
    })
}

/// Returns true for placeholders of instructions, such as `<interface>`, `your_nic` and `ethX`, and for names
/// with impossible characters.
fn is_placeholder(name: &str) -> bool {
    const WORDS: [&str; 7] = ["your", "interface", "ifname", "localhost", "auto", "default", "any"];
    let name = name.split(':').next().unwrap_or_default();
    let lower = name.to_ascii_lowercase();
    name.bytes().any(|byte| !byte.is_ascii_graphic() || b"<>{}()\"'@$".contains(&byte))
        || WORDS.contains(&lower.as_str())
        || lower.contains("your_")
        || lower.contains("your-")
        || lower.ends_with("xxx")
        || name.ends_with('X') && name.len() > 1
}

/// Returns true for a name with a sign unknown to NCCL before it: `!docker0`, `-lo`.
fn has_foreign_sign(name: &str) -> bool {
    name.starts_with(['!', '-', '~'])
}

/// Returns true for names of network interfaces given by udev or people, for words and for ranges.
fn is_no_device(name: &str) -> bool {
    let is_numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    ["all", "none"].contains(&name)
        || is_number(name)
        || name.strip_prefix("mlx").is_some_and(|rest| rest.starts_with('_'))
        || ["ib", "eth", "ens", "eno", "enp", "bond"].into_iter().any(is_numbered)
        || name.split_once('-').is_some_and(|(_, last)| last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Checks the signs in a list, and refuses patterns as names. `without` is the effect of a list without a
/// match.
pub(super) fn check_list(
    value: &str,
    without: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<BadValue> {
    let body = value.trim_start_matches(SIGNS);
    let sign = &value[..value.len() - body.len()];
    if !["", "^", "=", "^="].contains(&sign) {
        let reason = format!("`{sign}` is not a sign before a list: write `^`, `=` or `^=`");
        return Some(BadValue::invalid(reason, None));
    }
    if value.chars().any(char::is_whitespace) {
        let right: String = value.chars().filter(|letter| !letter.is_whitespace()).collect();
        let reason = "spaces count as part of the names: such names match nothing".to_owned();
        return Some(BadValue::invalid(reason, set(&right)));
    }
    let names: Vec<&str> = body.split(',').collect();
    if let Some(name) = names.iter().skip(1).find(|name| name.starts_with(SIGNS)) {
        let reason = format!(
            "write `^` and `=` once, before the whole list: `{name}` counts as a name, and matches nothing"
        );
        return Some(BadValue::invalid(reason, with_one_sign(sign, &names).as_deref().and_then(set)));
    }
    let fault = |is_wrong: &dyn Fn(&str) -> bool, reason: String, right: Option<String>| {
        let nothing_fits = !sign.starts_with('^') && names.iter().all(|name| is_wrong(name));
        let effect = match sign {
            _ if nothing_fits => without,
            "^" | "^=" => "it excludes nothing",
            _ => "it selects nothing",
        };
        let fault = BadValue::invalid(format!("{reason}: {effect}"), right.as_deref().and_then(set));
        if nothing_fits { fault.into_broken() } else { fault }
    };
    let is_joined = |name: &str| name.contains([';', '|', '/']);
    if let Some(name) = names.iter().find(|name| is_joined(name)) {
        let right = (!name.contains('/')).then(|| value.replace([';', '|'], ","));
        return Some(fault(
            &is_joined,
            format!("commas separate the names, and `{name}` is one name"),
            right,
        ));
    }
    let is_invented = |name: &str| is_placeholder(name) || has_foreign_sign(name);
    if let Some(name) = names.iter().find(|name| is_invented(name)) {
        return Some(fault(&is_invented, format!("`{name}` is not a name that a host can have"), None));
    }
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    if let Some(name) = names.iter().find(|name| is_address(name)) {
        return Some(fault(&is_address, format!("`{name}` is an address instead of a name"), None));
    }
    let is_pattern = |name: &str| name.contains(PATTERN);
    if let Some(name) = names.iter().find(|name| is_pattern(name)) {
        let reason = format!("NCCL knows no patterns, and no name begins with `{name}` (names are prefixes)");
        return Some(fault(&is_pattern, reason, without_patterns(sign, &names)));
    }
    if body.is_empty() && !sign.is_empty() {
        return Some(BadValue::invalid(format!("`{sign}` has no names behind it"), None));
    }
    None
}

/// Returns the list with a single sign before it. A list of names to use excludes all other names.
fn with_one_sign(sign: &str, names: &[&str]) -> Option<String> {
    let is_wanted = |name: &&&str| sign.starts_with('^') || !name.starts_with('^');
    let wanted: Vec<&str> =
        names.iter().filter(is_wanted).map(|name| name.trim_start_matches(SIGNS)).collect();
    // A name to use among names to exclude may mean either.
    let is_clear = !sign.starts_with('^') || names.iter().all(|name| !name.starts_with('='));
    (is_clear && wanted.iter().any(|name| !name.is_empty())).then(|| format!("{sign}{}", wanted.join(",")))
}

/// Returns the list meant by the patterns: `eth*` is the prefix `eth`, `mlx5_[0-3]` is four names.
fn without_patterns(sign: &str, names: &[&str]) -> Option<String> {
    let prefixes: Option<Vec<&str>> = names
        .iter()
        .map(|name| name.strip_suffix('*').filter(|prefix| !prefix.is_empty() && !prefix.contains(PATTERN)))
        .collect();
    let excludes = if sign.starts_with('^') { "^" } else { "" };
    if let Some(prefixes) = prefixes {
        return Some(format!("{excludes}{}", prefixes.join(",")));
    }
    let names: Option<Vec<String>> = names.iter().map(|name| expand_range(name)).collect();
    Some(format!("{excludes}={}", names?.join(",")))
}

/// Returns the names of a range of digits: `mlx5_[0-3]`.
fn expand_range(name: &str) -> Option<String> {
    if !name.contains(PATTERN) {
        return Some(name.to_owned());
    }
    let (prefix, rest) = name.split_once('[')?;
    let (range, suffix) = rest.split_once(']')?;
    let (first, last) = range.split_once('-')?;
    let digit = |text: &str| text.parse::<u8>().ok().filter(|digit| *digit <= 9);
    let (first, last) = (digit(first)?, digit(last)?);
    if first > last || prefix.contains(PATTERN) || suffix.contains(PATTERN) {
        return None;
    }
    let names: Vec<String> = (first..=last).map(|digit| format!("{prefix}{digit}{suffix}")).collect();
    Some(names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    fn checked(value: &str) -> Option<(Severity, Option<String>)> {
        check_list(value, "it fails", &|right| Some(right.to_owned()))
            .map(|fault| (fault.severity, fault.remedy))
    }

    #[test]
    fn patterns_become_the_names_that_they_mean() {
        for (value, severity, right) in [
            ("eth*", Severity::Broken, Some("eth")),
            ("=eth*", Severity::Broken, Some("eth")),
            ("^docker*,veth*", Severity::Degraded, Some("^docker,veth")),
            ("eth0,en*", Severity::Degraded, None),
            ("mlx5_*", Severity::Broken, Some("mlx5_")),
            ("mlx5_[0-3]", Severity::Broken, Some("=mlx5_0,mlx5_1,mlx5_2,mlx5_3")),
            ("^mlx5_[6-7]:1", Severity::Degraded, Some("^=mlx5_6:1,mlx5_7:1")),
            ("mlx5_[3-0]", Severity::Broken, None),
            ("mlx5_[0-", Severity::Broken, None),
            ("*", Severity::Broken, None),
            ("e*0", Severity::Broken, None),
        ] {
            assert_eq!(checked(value), Some((severity, right.map(str::to_owned))), "{value}");
        }
        assert_eq!(checked("mlx5_0;mlx5_1"), Some((Severity::Broken, Some("mlx5_0,mlx5_1".to_owned()))));
        assert_eq!(checked("10.0.0.1"), Some((Severity::Broken, None)));
        for invented in [
            "<your-interface>",
            "ethX",
            "your_interface",
            "xxx",
            "!docker0",
            "-lo",
            "\u{201c}eth0\u{201d}",
            "eth0@if3",
        ] {
            assert_eq!(checked(invented), Some((Severity::Broken, None)), "{invented}");
        }
        assert_eq!(checked("eth0,10.0.0.1"), Some((Severity::Degraded, None)));
        assert_eq!(checked("^10.0.0.1"), Some((Severity::Degraded, None)));
        for wrong in ["mlx5_X", "mlx5_0:x", "mlx_5", "0", "ib0", "=eth0", "mlx5_0,ens5", "all", "mlx5_0-7"] {
            assert!(check_devices(wrong, &|_| None).is_some(), "{wrong}");
        }
        for fine in [
            "mlx5_0",
            "^mlx5_bond_0",
            "mlx5_xyz",
            "ibp5s0",
            "rocep1s0f0",
            "rdmap16s27",
            "mlx5_ib0",
            "bnxt_re0:1",
        ] {
            assert!(check_devices(fine, &|_| None).is_none(), "{fine}");
        }
        for fine in ["eth0", "=eth0,eth1", "^docker,lo", "mlx5_0:1", "mlx5_0:1:2", "mlx5_0::3", ""] {
            assert_eq!(checked(fine), None, "{fine}");
        }
    }

    #[test]
    fn a_name_that_was_to_be_excluded_is_never_selected() {
        for (value, right) in [
            ("=eth0,^lo", Some("=eth0")),
            ("eth0,^lo,^docker", Some("eth0")),
            ("=eth0,=eth1", Some("=eth0,eth1")),
            ("^lo,^docker", Some("^lo,docker")),
            ("^lo,=eth0", None),
        ] {
            assert_eq!(checked(value), Some((Severity::Degraded, right.map(str::to_owned))), "{value}");
        }
    }
}
