//! Names of variables, and the versions that read them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use semver::Version;

use super::situation::{Situation, parse_version};

const TABLE: &str = include_str!("../../knowledge/variables/names.csv");

/// Software that reads a variable, by its name in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableReader {
    Nccl,
    Plugin,
    Libfabric,
    /// Software without a check of its version, by its name.
    Other(&'static str),
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueForm {
    Number,
    Flag,
    Text,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub name: &'static str,
    pub component: VariableReader,
    pub content: ValueForm,
    since: Option<Version>,
    until: Option<Version>,
    pub is_documented: bool,
}

/// Reason why a version does not read a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotInVersion {
    /// It came with this version.
    Since(Version),
    /// This version was the last with it.
    Until(Version),
}

/// The table.
static NAMES: LazyLock<BTreeMap<&str, Name>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.filter_map(parse_name).map(|name| (name.name, name)).collect()
});

/// Returns the line about a variable.
pub(super) fn find_name(name: &str) -> Option<&'static Name> {
    NAMES.get(name)
}

/// Returns all lines.
#[cfg(test)]
pub(super) fn all_names() -> impl Iterator<Item = &'static Name> {
    NAMES.values()
}

/// Returns the known name nearest to a misspelt one, among the variables of the versions in use.
pub(super) fn find_nearest_name(wrong: &str, situation: &Situation) -> Option<&'static Name> {
    let upper = wrong.to_ascii_uppercase();
    let limit = upper.split_once('_').map_or(1, |(_, rest)| rest.len().div_ceil(3).min(3));
    NAMES
        .values()
        .filter(|name| {
            name.reason_of_absence(situation).is_none() && name_prefix(name.name) == name_prefix(&upper)
        })
        .map(|name| (strsim::damerau_levenshtein(name.name, &upper), !name.is_documented, name))
        .filter(|&(distance, ..)| distance <= limit)
        .min_by_key(|&(distance, undocumented, name)| (distance, undocumented, name.name))
        .map(|(.., name)| name)
}

/// Finds the known name nearest to a misspelt one: `NCLL_DEBUG`, `CUDA_VISIBLE_DEVCES`. The first letter must
/// be right: other libraries differ in it (`RCCL_`, `HCCL_`).
pub(super) fn find_misspelt(wrong: &str) -> Option<&'static Name> {
    /// Names up to this length are not guessed: one wrong letter can give another real name (`UCC_TLS`).
    const MAX_AMBIGUOUS_LEN: usize = 7;
    let upper = wrong.to_ascii_uppercase();
    let limit = if upper.len() < 16 { 1 } else { 2 };
    let may_be = |name: &&Name| {
        let known = name.name;
        known.as_bytes().first() == upper.as_bytes().first()
            && known.len() > MAX_AMBIGUOUS_LEN
            && known.len().abs_diff(upper.len()) <= limit
            // Open MPI has parameters of similar names.
            && name.component != VariableReader::Other("open-mpi")
    };
    let near =
        NAMES.values().filter(may_be).map(|name| (strsim::damerau_levenshtein(name.name, &upper), name));
    near.filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

impl Name {
    /// Returns the reason why the version in use does not read it, or `None` if it does.
    pub(super) fn reason_of_absence(&self, situation: &Situation) -> Option<NotInVersion> {
        let version = match self.component {
            VariableReader::Nccl => situation.nccl_version(),
            VariableReader::Plugin => situation.plugin_version(),
            VariableReader::Libfabric => situation.libfabric_version(),
            VariableReader::Other(_) => return None,
        };
        match (&self.since, &self.until) {
            (Some(since), _) if version < *since => Some(NotInVersion::Since(since.clone())),
            (_, Some(until)) if version > *until => Some(NotInVersion::Until(until.clone())),
            _ => None,
        }
    }
}

impl VariableReader {
    /// Returns its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL",
            Self::Plugin => "aws-ofi-nccl",
            Self::Libfabric => "libfabric",
            Self::Other(name) => name,
        }
    }

    /// Returns the source of the knowledge about its variables, for people.
    pub(super) fn source(self) -> String {
        match self {
            Self::Nccl => "NCCL user guide, Environment Variables; src/misc/param.cc".to_owned(),
            Self::Other("cuda") => "CUDA C++ Programming Guide, CUDA Environment Variables".to_owned(),
            Self::Other("pytorch") => {
                "PyTorch documentation, ProcessGroupNCCL Environment Variables".to_owned()
            }
            Self::Other("loader") => "manual page of ld.so, ENVIRONMENT".to_owned(),
            Self::Other("open-mpi") => "Open MPI documentation, MCA parameters".to_owned(),
            Self::Other("ucx") => "UCX documentation, configuration parameters".to_owned(),
            other => format!("source code of {}", other.name()),
        }
    }

    /// Returns the version to judge for.
    pub(super) fn version_in_use(self, situation: &Situation) -> Option<Version> {
        match self {
            Self::Nccl => Some(situation.nccl_version()),
            Self::Plugin => Some(situation.plugin_version()),
            Self::Libfabric => Some(situation.libfabric_version()),
            Self::Other(_) => None,
        }
    }
}

fn name_prefix(name: &str) -> &str {
    name.split('_').next().unwrap_or_default()
}

fn parse_name(line: &'static str) -> Option<Name> {
    let fields: Vec<&'static str> = line.split(',').collect();
    let &[component, name, content, since, until, documented] = fields.as_slice() else { return None };
    let version = |text: &str| parse_version(text).ok();
    Some(Name {
        name,
        component: match component {
            "nccl" => VariableReader::Nccl,
            "aws-ofi-nccl" => VariableReader::Plugin,
            "libfabric" => VariableReader::Libfabric,
            other => VariableReader::Other(other),
        },
        content: match content {
            "number" => ValueForm::Number,
            "flag" => ValueForm::Flag,
            _ => ValueForm::Text,
        },
        since: version(since),
        until: version(until),
        is_documented: documented == "yes",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_in_words() {
        let source = |name| find_name(name).map(|name| name.component.source()).unwrap_or_default();
        assert_eq!(source("CUDA_MODULE_LOADING"), "CUDA C++ Programming Guide, CUDA Environment Variables");
        assert_eq!(source("FI_PROVIDER"), "source code of libfabric");
    }

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count() - 1;
        assert_eq!(lines, NAMES.len(), "a line is malformed, or a name occurs twice");
        assert!(lines > 800, "{lines}");
        for name in all_names() {
            assert!(super::super::setting::is_collected(name.name), "{} is never collected", name.name);
        }
    }

    #[test]
    fn versions_of_names_are_those_of_the_sources() {
        let nccl = |version: &str| Situation { nccl: parse_version(version).ok(), ..Situation::default() };
        let absence = |name: &str, version: &str| find_name(name).unwrap().reason_of_absence(&nccl(version));
        let since = |version: &str| Some(NotInVersion::Since(parse_version(version).unwrap()));
        assert_eq!(absence("NCCL_ENV_PLUGIN", "2.28.3"), since("2.28.7"));
        assert_eq!(absence("NCCL_ENV_PLUGIN", "2.28.7"), None);
        assert_eq!(absence("NCCL_CONF_FILE", "2.22.3"), since("2.23.4"));
        assert_eq!(absence("NCCL_CUMEM_ENABLE", "2.17.1"), since("2.18.1"));
        assert_eq!(absence("NCCL_MNNVL", "2.21.5"), Some(NotInVersion::Until(Version::new(2, 20, 5))));
        assert_eq!(absence("NCCL_MNNVL", "2.20.5"), None);
        assert_eq!(absence("NCCL_IB_HCA", "2.18.1"), None);
        assert_eq!(absence("NCCL_RUN_DIAGNOSTICS", "2.30.7"), since("2.31.2"));
    }

    #[test]
    fn misspelt_names_lead_to_the_right_ones() {
        for (wrong, right) in [
            ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
            ("NCCL_SOCKET_IF_NAME", "NCCL_SOCKET_IFNAME"),
            ("NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS"),
            ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
            ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
            ("nccl_debug", "NCCL_DEBUG"),
            ("FI_PROVIDERS", "FI_PROVIDER"),
            ("OFI_NCCL_PROTOCOLS", "OFI_NCCL_PROTOCOL"),
        ] {
            let found = find_nearest_name(wrong, &Situation::default()).map(|name| name.name);
            assert_eq!(found, Some(right), "{wrong}");
        }
        for stranger in ["NCCL_FOO", "NCCL_MY_SITE_SETTING", "FI_WHATEVER"] {
            assert!(find_nearest_name(stranger, &Situation::default()).is_none(), "{stranger}");
        }
    }

    #[test]
    fn names_with_a_misspelt_prefix_are_collected() {
        for (wrong, right) in [
            ("NCLL_DEBUG", "NCCL_DEBUG"),
            ("NCC_DEBUG", "NCCL_DEBUG"),
            ("NCCLDEBUG", "NCCL_DEBUG"),
            ("NNCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
            ("ncll_debug", "NCCL_DEBUG"),
            ("TORCH_NCLL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
            ("TROCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
            ("CUDA_VISIBLE_DEVCES", "CUDA_VISIBLE_DEVICES"),
            ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
            ("CUDA_LAUNCH_BLOKING", "CUDA_LAUNCH_BLOCKING"),
            ("LD_LIBARY_PATH", "LD_LIBRARY_PATH"),
            ("FFI_OFI_RXM_TX_SIZE", "FI_OFI_RXM_TX_SIZE"),
        ] {
            assert_eq!(find_misspelt(wrong).map(|name| name.name), Some(right), "{wrong}");
            assert!(super::super::setting::is_collected(wrong), "{wrong}");
        }
        for other in [
            "RCCL_DEBUG",
            "HCCL_SOCKET_IFNAME",
            "CNCL_DEBUG",
            "UCC_TLS",
            "UCX_TLS_X",
            "DYLD_LIBRARY_PATH",
            "OMPI_MCA_btl_tcp_if_exclude",
            "OMPI_MCA_oob_tcp_if_include",
            "HIP_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            "CUDA_MODULE_DATA_LOADING",
            "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
            "PATH",
            "NAME",
            "LIBRARY_PATH",
            "SSH_AUTH_SOCK",
        ] {
            assert_eq!(find_misspelt(other).map(|name| name.name), None, "{other}");
        }
    }
}
