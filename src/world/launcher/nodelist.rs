//! Slurm's compressed host lists.

use crate::world::limits::MAX_NAME;

/// Returns the first host of Slurm's compressed host list: `gpu01` of `gpu[01-03,7],login`, `r1n1` of
/// `r[1-2]n[1-4]`.
///
/// Returns `None` if the list is malformed up to the end of the host's name, or the name is longer than 255
/// bytes.
pub(crate) fn first_host(mut list: &str) -> Option<String> {
    let mut host = String::new();
    while let Some(bracket) = list.find(['[', ']', ',']).filter(|&end| list.as_bytes()[end] != b',') {
        let (ranges, rest) = list[bracket..].strip_prefix('[')?.split_once(']')?;
        let mut numbers = ranges.split([',', '-']);
        let first = numbers.next()?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !numbers.all(is_number) {
            return None;
        }
        host.extend([&list[..bracket], first]);
        list = rest;
    }
    host.push_str(list.split(',').next()?);
    (!host.is_empty() && host.len() <= MAX_NAME).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_host_is_written_out() {
        let cases = [
            ("node1", "node1"),
            ("node[01-04,7]", "node01"),
            ("a,b[1-2],c", "a"),
            ("n[9-11]", "n9"),
            ("n[098-101]", "n098"),
            ("r[1-2]n[1-2]", "r1n1"),
            ("ip-10-0-[1,3]-7.ec2", "ip-10-0-1-7.ec2"),
            ("a[0-99999999999999999999999999]", "a0"),
        ];
        for (list, host) in cases {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
    }

    #[test]
    fn lists_that_are_not_well_formed_have_no_hosts() {
        for list in
            ["", ",", "a[", "a]", "a[1", "a[]", "a[1-]", "a[-2]", "a[[1]]", "a[x-z]", "a[1,x]", "a[1]]"]
        {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_refused_or_has_a_name(list in "[a0-9,\\[\\]-]{0,40}") {
            if let Some(host) = first_host(&list) {
                prop_assert!(!host.is_empty() && host.len() <= MAX_NAME);
                prop_assert!(!host.contains([',', '[', ']']), "{host}");
            }
        }
    }

    #[test]
    fn names_have_the_lengths_of_real_ones() {
        let longest = "n".repeat(MAX_NAME);
        assert_eq!(first_host(&longest), Some(longest.clone()));
        assert_eq!(first_host(&format!("{longest}n")), None);
        let bracketed = |suffix: &str| first_host(&format!("{}[10-11]{suffix}", &longest[3..]));
        assert_eq!((bracketed("x").map(|host| host.len()), bracketed("xx")), (Some(MAX_NAME), None));
        assert_eq!(first_host(&format!("n[{}1-2]", "0".repeat(70_000))), None);
        assert_eq!(first_host(&"[1]".repeat(1_000_000)), None);
    }
}
