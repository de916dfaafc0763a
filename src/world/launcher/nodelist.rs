//! Slurm's compressed host lists.

use crate::world::limits::{MAX_NAME, MAX_RANKS};

/// Maximum number of brackets in a name; expansion is recursive.
const MOST_BRACKETS: usize = 8;
/// Maximum number of digits in a number.
const MOST_DIGITS: usize = 20;

/// Expands Slurm's compressed host list, in order: `gpu[01-03,7],login` is `gpu01`, `gpu02`, `gpu03`, `gpu7`, `login`. In
/// names with several brackets (`rack[1-2]node[1-4]`), the last one varies fastest.
///
/// Returns `None` if the list is malformed, or has more than 262144 hosts, 255 bytes or 8 brackets in a name, or 20 digits
/// in a number.
pub(crate) fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        if item.is_empty() || item.matches('[').count() > MOST_BRACKETS {
            return None;
        }
        hosts.extend(expand_item(item)?);
        if hosts.len() > MAX_RANKS {
            return None;
        }
    }
    Some(hosts)
}

/// Splits at commas outside brackets.
fn items(list: &str) -> Option<Vec<&str>> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (index, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return None,
            b'[' => inside = true,
            b']' if !inside => return None,
            b']' => inside = false,
            b',' if !inside => {
                items.push(&list[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    (!inside).then_some(items)
}

fn expand_item(item: &str) -> Option<Vec<String>> {
    let Some((prefix, rest)) = item.split_once('[') else {
        return (item.len() <= MAX_NAME).then(|| vec![item.to_owned()]);
    };
    let (ranges, suffix) = rest.split_once(']')?;
    let suffixes = expand_item(suffix)?;
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = text.len() <= MOST_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
            if digits { text.parse::<usize>().ok() } else { None }
        };
        let (from, to) = (number(first)?, number(last)?);
        let count = to.checked_sub(from)?.checked_add(1)?.checked_mul(suffixes.len())?;
        if hosts.len().checked_add(count)? > MAX_RANKS {
            return None;
        }
        for number in from..=to {
            let number = format!("{number:0width$}", width = first.len());
            for suffix in &suffixes {
                if prefix.len() + number.len() + suffix.len() > MAX_NAME {
                    return None;
                }
                hosts.push(format!("{prefix}{number}{suffix}"));
            }
        }
    }
    Some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_forms_are_written_out_in_order() {
        let cases: &[(&str, &[&str])] = &[
            ("node1", &["node1"]),
            ("node[01-04,7]", &["node01", "node02", "node03", "node04", "node7"]),
            ("a,b[1-2],c", &["a", "b1", "b2", "c"]),
            ("n[9-11]", &["n9", "n10", "n11"]),
            ("n[098-101]", &["n098", "n099", "n100", "n101"]),
            ("r[1-2]n[1-2]", &["r1n1", "r1n2", "r2n1", "r2n2"]),
            ("ip-10-0-[1,3]-7.ec2", &["ip-10-0-1-7.ec2", "ip-10-0-3-7.ec2"]),
        ];
        for (list, hosts) in cases {
            let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
            assert_eq!(expand(list), Some(hosts), "{list}");
        }
    }

    #[test]
    fn lists_that_are_not_well_formed_have_no_hosts() {
        for list in ["", ",", "a,", "a[", "a]", "a[1", "a[]", "a[1-]", "a[-2]", "a[3-1]", "a[[1]]", "a[x-z]"]
        {
            assert_eq!(expand(list), None, "{list}");
        }
        assert_eq!(expand("a[0-99999999999]"), None);
        assert_eq!(expand("a[0-9999]b[0-9999]c[0-9999]"), None);
        assert_eq!(expand("a[0-99999999999999999999999999]"), None);
        assert_eq!(expand("a[0-18446744073709551615]"), None);
    }

    proptest! {
        #[test]
        fn any_list_is_refused_or_has_names(list in "[a0-9,\\[\\]-]{0,40}") {
            for host in expand(&list).into_iter().flatten() {
                prop_assert!(!host.is_empty() && host.len() <= MAX_NAME);
                prop_assert!(!host.contains([',', '[', ']']), "{host}");
            }
        }
    }

    #[test]
    fn lists_have_the_lengths_of_real_ones() {
        let count = |list: &str| expand(list).map(|hosts| hosts.len());
        // Numbers.
        assert_eq!(expand("n[00000000000000000001]"), Some(vec!["n00000000000000000001".to_owned()]));
        assert_eq!(expand("n[000000000000000000001]"), None);
        assert_eq!(expand(&format!("n[{}1-2]", "0".repeat(70_000))), None);
        // Brackets.
        assert_eq!(count(&"r[1-2]".repeat(8)), Some(256));
        assert_eq!(count(&"r[1-2]".repeat(9)), None);
        assert_eq!(count(&"[1]".repeat(1_000_000)), None);
        // Names, whether they are spelled out or not.
        let longest = "n".repeat(MAX_NAME);
        assert_eq!(expand(&longest), Some(vec![longest.clone()]));
        assert_eq!(expand(&format!("{longest}n")), None);
        let bracketed = |suffix: &str| count(&format!("{}[1-10]{suffix}", &longest[3..]));
        assert_eq!((bracketed("x"), bracketed("xx")), (Some(10), None));
        // Hosts.
        assert_eq!(count(&format!("n[1-{MAX_RANKS}]")), Some(MAX_RANKS));
        assert_eq!(count(&format!("n[0-{MAX_RANKS}]")), None);
        assert_eq!(count(&format!("n[1-{MAX_RANKS}],login")), None);
        assert_eq!(count(&format!("n[1-{},7,8]", MAX_RANKS - 1)), None);
    }
}
