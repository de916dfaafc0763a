//! Slurm's short form for lists of hosts.

/// The most hosts that a list may name; a longer one is a mistake.
const MOST: usize = 1 << 20;

/// The hosts of a list in Slurm's short form, in order: `gpu[01-03,7],login` is `gpu01`, `gpu02`, `gpu03`, `gpu7`,
/// `login`. Names with several brackets (`rack[1-2]node[1-4]`) count up from the last. `None` when the list is
/// not well formed.
pub fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        if item.is_empty() {
            return None;
        }
        hosts.extend(expand_item(item)?);
        if hosts.len() > MOST {
            return None;
        }
    }
    Some(hosts)
}

/// Splits at the commas outside brackets.
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
    let Some((prefix, rest)) = item.split_once('[') else { return Some(vec![item.to_owned()]) };
    let (ranges, suffix) = rest.split_once(']')?;
    let suffixes = expand_item(suffix)?;
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if digits { text.parse::<usize>().ok() } else { None }
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || (to - from + 1).checked_mul(suffixes.len())?.checked_add(hosts.len())? > MOST {
            return None;
        }
        for number in from..=to {
            let number = format!("{number:0width$}", width = first.len());
            hosts.extend(suffixes.iter().map(|suffix| format!("{prefix}{number}{suffix}")));
        }
    }
    Some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
