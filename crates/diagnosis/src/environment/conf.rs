//! NCCL's files of variables: `/etc/nccl.conf`, `~/.nccl.conf` and the file in `NCCL_CONF_FILE`.

use semver::Version;

use super::setting::{Location, Setting, is_collected};
use crate::finding::{Evidence, Finding};
use crate::knowledge::texts::compose_finding;

/// First version that skips lines with `#` at the beginning.
const COMMENTS: Version = Version::new(2, 26, 2);
/// First version that removes a carriage return.
const CARRIAGE_RETURNS: Version = Version::new(2, 30, 3);
/// Largest number of bytes of a value in NCCL.
const LONGEST: usize = 1023;

/// Variables and faults of a file.
#[derive(Debug, Default)]
pub(super) struct Conf {
    pub settings: Vec<Setting>,
    pub findings: Vec<Finding>,
}

/// Reads a file as this version of NCCL does: a line is a name, `=`, and the value up to its end.
pub(super) fn parse_conf(text: &str, file: &str, nccl: &Version) -> Conf {
    let mut conf = Conf::default();
    for (number, line) in (1..).zip(text.split('\n')) {
        let place = Location { name: file.to_owned(), line: Some(number) };
        let has_return = line.ends_with('\r');
        let line = if has_return && *nccl >= CARRIAGE_RETURNS { line.trim_end_matches('\r') } else { line };
        if line.starts_with('#') && (*nccl >= COMMENTS || !line.contains('=')) {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            if is_collected(line.trim()) {
                conf.findings.push(describe_fault(
                    &place,
                    line,
                    "a line without `=` is skipped",
                    "write NAME=VALUE",
                ));
            }
            continue;
        };
        if !is_collected(name) {
            let plain = name.trim().trim_start_matches("export ").trim();
            if is_collected(plain) && !line.starts_with('#') {
                let reason = format!("NCCL reads `{name}` as the name, so {plain} is not set");
                let remedy = format!("write {plain}={} from the beginning of the line", value.trim());
                conf.findings.push(describe_fault(&place, line, &reason, &remedy));
            }
            continue;
        }
        let value: String = value.chars().take(LONGEST).collect();
        if let Some((reason, right)) = find_spoilt_value(&value) {
            let remedy = format!("write {name}={right}");
            conf.findings.push(describe_fault(&place, line, reason, &remedy));
        }
        conf.settings.push(Setting::new(name, value, place));
    }
    conf
}

/// Returns a description of unintended text in a value, and the value without it.
fn find_spoilt_value(value: &str) -> Option<(&'static str, String)> {
    let trimmed = value.trim();
    if let Some((right, _)) = trimmed.split_once(" #") {
        return Some(("a comment behind a value is part of the value", right.trim().to_owned()));
    }
    for quote in ['"', '\''] {
        if let Some(right) = trimmed.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Some(("quotes are part of the value", right.to_owned()));
        }
    }
    if value.ends_with('\r') {
        return Some((
            "the line ends with a carriage return: it becomes part of the value",
            trimmed.to_owned(),
        ));
    }
    (trimmed != value).then(|| ("spaces around a value are part of it", trimmed.to_owned()))
}

fn describe_fault(place: &Location, line: &str, reason: &str, remedy: &str) -> Finding {
    // A value may be a secret.
    let (name, _) = line.split_once('=').unwrap_or((line, ""));
    let finding =
        compose_finding("nccl-conf-line", &[("place", place), ("reason", &reason), ("remedy", &remedy)]);
    let evidence = Evidence { line: place.line, ..Evidence::at_place(&place.name, name.trim()) };
    Finding { evidence: vec![evidence], ..finding }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version::new(2, 25, 1);
    const MIDDLE: Version = Version::new(2, 28, 9);
    const NEW: Version = Version::new(2, 30, 7);

    fn pairs(conf: &Conf) -> Vec<(&str, &str, u64)> {
        let settings = conf.settings.iter();
        settings.map(|it| (it.name.as_str(), it.value.as_str(), it.place.line.unwrap())).collect()
    }

    #[test]
    fn lines_are_read_as_nccl_reads_them() {
        let text =
            "# NCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n\nNCCL_SOCKET_IFNAME==ens1f0\nPATH=/secret\nHOME_TOKEN=x\n";
        let conf = parse_conf(text, "/etc/nccl.conf", &NEW);
        assert_eq!(pairs(&conf), [("NCCL_DEBUG", "WARN", 2), ("NCCL_SOCKET_IFNAME", "=ens1f0", 4)]);
        assert!(conf.findings.is_empty(), "{:?}", conf.findings);
        // Before 2.26 the line sets a harmless variable with the name `# NCCL_ALGO`.
        let conf = parse_conf(text, "/etc/nccl.conf", &OLD);
        assert_eq!(conf.settings.len(), 2);
        assert!(conf.findings.is_empty(), "{:?}", conf.findings);
    }

    #[test]
    fn lines_of_a_shell_script_are_found() {
        for (line, says, remedy) in [
            ("export NCCL_DEBUG=INFO", "`export NCCL_DEBUG` as the name", "write NCCL_DEBUG=INFO"),
            ("NCCL_DEBUG = INFO", "`NCCL_DEBUG ` as the name", "write NCCL_DEBUG=INFO"),
            ("NCCL_DEBUG=\"INFO\"", "quotes are part", "write NCCL_DEBUG=INFO"),
            ("NCCL_DEBUG=INFO # for now", "comment behind a value", "write NCCL_DEBUG=INFO"),
            ("NCCL_DEBUG=INFO ", "spaces around", "write NCCL_DEBUG=INFO"),
            ("NCCL_DEBUG", "without `=`", "NAME=VALUE"),
        ] {
            let conf = parse_conf(line, "f", &NEW);
            let [finding] = conf.findings.as_slice() else { panic!("{line}: {:?}", conf.findings) };
            assert!(finding.diagnosis.contains(says), "{}", finding.diagnosis);
            assert!(finding.remedy.as_ref().unwrap().contains(remedy), "{finding:?}");
        }
    }

    #[test]
    fn a_carriage_return_spoils_the_value_before_2_30() {
        assert_eq!(parse_conf("NCCL_NET=IB\r\n", "f", &MIDDLE).findings.len(), 1);
        let conf = parse_conf("NCCL_NET=IB\r\n", "f", &NEW);
        assert_eq!(pairs(&conf), [("NCCL_NET", "IB", 1)]);
        assert!(conf.findings.is_empty());
    }
}
