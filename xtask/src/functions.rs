//! `cargo xtask functions`: compares the table of NCCL's functions with newer headers.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use bindgen::CodegenConfig;
use nccl_sys::{API, Version};

use crate::bindings::nccl;
use crate::wheels;

/// NVIDIA's packages of libnccl, one for each CUDA version.
const PACKAGES: [&str; 2] = ["nvidia-nccl-cu12", "nvidia-nccl-cu13"];

/// Compares [`API`] with the headers of the newest wheels.
pub(crate) fn run() -> Result<()> {
    for package in PACKAGES {
        let version = wheels::newest(package)?;
        compare(&version, &wheels::nccl_header(package, &version)?)
            .with_context(|| format!("{package} {version}"))?;
        println!("{package} {version}: its nccl.h has the functions of the table and no others");
    }
    Ok(())
}

/// Fails unless the header of this version of NCCL declares exactly the functions of [`API`] for this
/// version.
fn compare(version: &str, header: &str) -> Result<()> {
    let number = number(version)?;
    let declared = nccl::parse(header, CodegenConfig::FUNCTIONS)?;
    let declared: BTreeSet<_> =
        declared.split("pub fn ").skip(1).filter_map(|function| function.split([' ', '(']).next()).collect();
    let table: BTreeSet<_> =
        API.iter().filter(|(_, since)| *since <= number).map(|(name, _)| *name).collect();
    let names = |names: Vec<&str>| names.join(", ");
    let (new, gone) = (
        names(declared.difference(&table).copied().collect()),
        names(table.difference(&declared).copied().collect()),
    );
    ensure!(
        new.is_empty(),
        "nccl.h declares functions that nccl-sys/src/table.rs lacks for this version: {new}. CONTRIBUTING.md \
         says under \"A new NCCL\" how to add them"
    );
    ensure!(gone.is_empty(), "nccl.h does not declare functions that nccl-sys/src/table.rs has: {gone}");
    Ok(())
}

/// Returns the number of a wheel's version. It may continue after the third number: `2.26.2.post1`.
fn number(version: &str) -> Result<Version> {
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Ok(Version::new(major, minor, patch)),
        _ => anyhow::bail!("`{version}` is not a version of NCCL"),
    }
}

#[cfg(test)]
mod tests {
    use nccl_sys::FLOOR;

    use super::*;
    use crate::cache;

    /// Compares the hand-written page of the documentation with [`API`].
    #[test]
    fn every_function_is_in_the_page_with_its_version_and_place() {
        let path = cache::repository().unwrap().join("src/nccl/functions.md");
        let page = std::fs::read_to_string(path).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        assert_eq!(rows.len(), API.len());
        for (row, (name, since)) in rows.iter().zip(API) {
            let [function, version, place] = row[..] else { panic!("{row:?}") };
            assert_eq!(function, format!("{name}`"));
            // The page has the versions of functions older than the floor too.
            let older = *since == FLOOR && version != FLOOR.to_string();
            assert!(older || version == since.to_string(), "{row:?}, {since}");
            assert!(place.contains("[`") || place == "deprecated: not offered", "{row:?}");
        }
    }

    #[test]
    fn headers_of_the_wheels_have_the_functions_of_the_table() {
        let mut versions = 0;
        for wheel in wheels::WHEELS.iter().filter(|wheel| wheel.library == "nccl") {
            compare(wheel.version, &wheels::nccl_header(wheel.package, wheel.version).unwrap()).unwrap();
            versions += 1;
        }
        assert!(versions > 1);
    }

    /// `compare` finds an added and a removed function.
    #[test]
    fn a_newer_header_with_another_function_is_an_error() {
        let newest = wheels::NCCL_OF_BINDINGS;
        let header = wheels::nccl_header(newest.package, newest.version).unwrap();
        compare("2.99.1", &header).unwrap();

        let more = format!("{header}\nncclResult_t  ncclInvented(ncclComm_t comm);\n");
        let message = compare("2.99.1", &more).unwrap_err().to_string();
        assert!(message.contains("lacks for this version: ncclInvented."), "{message}");

        let less = header.replace("ncclCommSplit(", "renamed(");
        let message = compare("2.99.1", &less).unwrap_err().to_string();
        assert!(message.ends_with("has: ncclCommSplit"), "{message}");

        // A function newer than the header, according to the table.
        let message = compare("2.31.2", &header).unwrap_err().to_string();
        assert!(message.contains("ncclSetEncryption"), "{message}");
    }

    #[test]
    fn numbers_of_wheels() {
        assert_eq!(number("2.32.3").unwrap(), Version::new(2, 32, 3));
        assert_eq!(number("2.26.2.post1").unwrap(), Version::new(2, 26, 2));
        assert!(number("2.32").is_err());
        assert!(number("").is_err());
    }
}
