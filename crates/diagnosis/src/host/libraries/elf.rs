//! Version, build and interfaces of a library's file. Only the necessary parts are read, as NCCL's files have
//! hundreds of megabytes.

use std::fs::File;
use std::path::Path;
use std::sync::LazyLock;

use object::read::ReadCache;
use object::{Architecture, Object as _, ObjectSection as _, ObjectSymbol as _};
use regex::bytes::Regex;

use super::LibraryKind;

/// Length limit of a searched section of constants, in bytes.
const LONGEST: u64 = 256 << 20;

/// Content of a library's file.
#[derive(Debug, Default)]
pub(super) struct LibraryContent {
    pub(super) version: Option<String>,
    pub(super) suffix: Option<String>,
    pub(super) build_id: Option<String>,
    pub(super) interfaces: Vec<String>,
}

/// Reads a file.
///
/// # Errors
/// An error if it is not a library of this machine.
pub(super) fn read_library(path: &Path, kind: LibraryKind) -> Result<LibraryContent, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let cache = ReadCache::new(file);
    let object = object::File::parse(&cache).map_err(|_| "it is not an ELF library".to_owned())?;
    let own = if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
    if object.architecture() != own {
        return Err(format!("it is for another processor ({:?})", object.architecture()));
    }
    let build_id = object.build_id().ok().flatten().map(format_hexadecimal);
    let mut content = LibraryContent { build_id, ..LibraryContent::default() };
    if matches!(kind, LibraryKind::NetPlugin | LibraryKind::TunerPlugin | LibraryKind::Plugin) {
        content.interfaces = plugin_interfaces(&object);
    }
    let constants = object.section_by_name(".rodata").filter(|section| section.size() <= LONGEST);
    if let Some(found) = constants.and_then(|section| find_version(section.data().ok()?, kind)) {
        (content.version, content.suffix) = (Some(found.0), found.1);
    }
    Ok(content)
}

fn format_hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the symbols that identify a plugin for NCCL: `ncclNetPlugin_v10`.
fn plugin_interfaces<'data>(object: &object::File<'data, &'data ReadCache<File>>) -> Vec<String> {
    let symbols = object.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let names = symbols.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    let mut names: Vec<String> = names
        .filter(|name| {
            name.strip_prefix("nccl").and_then(|name| name.split_once("_v")).is_some_and(|(kind, number)| {
                [
                    "NetPlugin",
                    "CollNetPlugin",
                    "TunerPlugin",
                    "ProfilerPlugin",
                    "Profiler",
                    "EnvPlugin",
                    "GinPlugin",
                ]
                .contains(&kind)
                    && number.bytes().all(|digit| digit.is_ascii_digit())
            })
        })
        .collect();
    names.sort_by_cached_key(|name| crate::words::natural_key(name));
    names.dedup();
    names
}

/// Returns the version in a library's constants, and the following suffix.
fn find_version(constants: &[u8], kind: LibraryKind) -> Option<(String, Option<String>)> {
    let pattern = match kind {
        LibraryKind::Nccl => NCCL.as_ref()?,
        LibraryKind::NetPlugin | LibraryKind::TunerPlugin => AWS.as_ref()?,
        LibraryKind::Libfabric => FABRIC.as_ref()?,
        _ => return None,
    };
    // The constants are strings with zero bytes at their ends.
    let strings = constants.split(|byte| *byte == 0).filter(|text| text.len() >= 5);
    let mut found: Vec<(String, Option<String>)> = strings
        .filter_map(|text| pattern.captures(text))
        .map(|captures| {
            let text = |index: usize| {
                captures.get(index).map(|part| String::from_utf8_lossy(part.as_bytes()).into_owned())
            };
            (text(1).unwrap_or_default(), text(2).filter(|text| !text.is_empty()))
        })
        .collect();
    found.dedup();
    match kind {
        // Several numbers of this form: only Amazon's is certain.
        LibraryKind::Libfabric if found.len() > 1 => found.into_iter().find(|(_, suffix)| suffix.is_some()),
        _ => found.into_iter().next(),
    }
}

/// `NCCL version 2.28.9+cuda13.0`
static NCCL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"NCCL version (\d+\.\d+\.\d+)([+.\-\w]*)").ok());
/// `Initializing aws-ofi-nccl 1.17.1`
static AWS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"aws-ofi-nccl (\d+\.\d+\.\d+)([\-+.\w]*)").ok());
/// A string of nothing but a version: `2.1.0amzn5.0`.
static FABRIC: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^(\d+\.\d+\.\d+)((?:amzn|rc)[\d.]+)?$").ok());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_with_what_follows() {
        let told = |text: &[u8], kind| {
            find_version(text, kind).map(|(version, suffix)| (version, suffix.unwrap_or_default()))
        };
        let pair = |version: &str, suffix: &str| Some((version.to_owned(), suffix.to_owned()));
        assert_eq!(
            told(b"\0NCCL version 2.28.9+cuda13.0\0x", LibraryKind::Nccl),
            pair("2.28.9", "+cuda13.0")
        );
        assert_eq!(told(b"Initializing aws-ofi-nccl 1.17.1\0", LibraryKind::NetPlugin), pair("1.17.1", ""));
        assert_eq!(
            told(b"Initializing aws-ofi-nccl 1.18.0git-ab\0", LibraryKind::NetPlugin),
            pair("1.18.0", "git-ab")
        );
        assert_eq!(told(b"\x002.1.0amzn5.0\0\x001.2.3\0", LibraryKind::Libfabric), pair("2.1.0", "amzn5.0"));
        assert_eq!(told(b"\x001.22.0\0", LibraryKind::Libfabric), pair("1.22.0", ""));
        assert_eq!(told(b"\x001.22.0\0x\x001.5.0\0", LibraryKind::Libfabric), None);
        assert_eq!(told(b"NCCL version %d", LibraryKind::Nccl), None);
    }

    #[test]
    fn this_program_is_a_file_for_this_processor_and_a_text_is_not() {
        let content = read_library(&std::env::current_exe().unwrap(), LibraryKind::Nccl).unwrap();
        assert!(content.version.is_none() || content.version.is_some());
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("libnccl.so");
        std::fs::write(&text, "INPUT(libnccl.so.2)").unwrap();
        assert_eq!(read_library(&text, LibraryKind::Nccl).unwrap_err(), "it is not an ELF library");
    }
}
