//! `cargo xtask functions`: the table of NCCL's functions, and what a newer NCCL adds to it.
//!
//! Names and versions are those of [`nccl_sys::API`], places in the safe layer those of [`PLACES`]. The table is
//! written twice: for readers of the repository, and for rustdoc with links, which it refuses to build when one leads
//! nowhere.

mod header;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use nccl_sys::{API, Version};

use crate::{cache, generated, wheels};
use places::{BEFORE_FLOOR, PLACES};

const PAGE: &str = "docs/nccl-functions.md";
const RUSTDOC: &str = "src/nccl/functions.md";

/// NVIDIA's packages of libnccl, one for each CUDA that it is built for.
const PACKAGES: [&str; 2] = ["nvidia-nccl-cu12", "nvidia-nccl-cu13"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when the committed table differs from what would be written
    #[arg(long)]
    check: bool,
    /// Write nothing; fail when the table and the nccl.h of NVIDIA's newest wheels differ (asks the package index)
    #[arg(long, conflicts_with = "check")]
    newest: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.newest {
        return newest();
    }
    let root = cache::repository()?;
    let rows = rows(API, PLACES)?;
    let page = format!(
        "# NCCL's functions in the safe layer\n\n\
         Every function of `nccl.h`, the NCCL version that brought it, and where `collectives::nccl` has it.\n\
         `nccl_sys::Nccl` has all of them as raw functions.\n\n\
         {}",
        rows.replace("[`", "`").replace("`]", "`")
    );
    generated::put(&root.join(PAGE), &page, arguments.check)?;
    generated::put(&root.join(RUSTDOC), &rows, arguments.check)
}

/// The table in Markdown, with rustdoc's links.
fn rows(api: &[(&str, Version)], places: &[(&str, &str)]) -> Result<String> {
    let by_name: BTreeMap<_, _> = places.iter().copied().collect();
    ensure!(by_name.len() == places.len(), "PLACES has a function twice");
    for name in by_name.keys() {
        ensure!(
            api.iter().any(|(known, _)| known == name),
            "{name} has a place in xtask/src/functions/places.rs, but is not in nccl-sys/src/table.rs"
        );
    }
    let mut text = "| function | since NCCL | in the safe layer |\n|---|---|---|\n".to_owned();
    for (name, since) in api {
        let place = by_name.get(name).with_context(|| {
            format!("{name} is in nccl-sys/src/table.rs, but has no place in xtask/src/functions/places.rs")
        })?;
        let before_floor = BEFORE_FLOOR.iter().find(|(_, names)| names.contains(name));
        let since = before_floor.map_or_else(|| since.to_string(), |(version, _)| (*version).to_owned());
        writeln!(text, "| `{name}` | {since} | {place} |")?;
    }
    text.push_str("\n<!-- Made by `cargo xtask functions`. Do not edit. -->\n");
    Ok(text)
}

/// Compares the table with the headers of the newest wheels.
fn newest() -> Result<()> {
    for package in PACKAGES {
        let version = wheels::newest(package)?;
        compare(&version, &wheels::nccl_header(package, &version)?)
            .with_context(|| format!("{package} {version}"))?;
        println!("{package} {version}: its nccl.h has the functions of the table and no others");
    }
    Ok(())
}

/// Fails unless the header of this version of NCCL declares exactly the functions that [`API`] has for that version.
fn compare(version: &str, header: &str) -> Result<()> {
    let number = number(version)?;
    let declared = header::functions(header);
    let declared: BTreeSet<_> = declared.iter().map(String::as_str).collect();
    let table: BTreeSet<_> =
        API.iter().filter(|(_, since)| *since <= number).map(|(name, _)| *name).collect();
    let names = |names: Vec<&str>| names.join(", ");
    let (new, gone) = (
        names(declared.difference(&table).copied().collect()),
        names(table.difference(&declared).copied().collect()),
    );
    ensure!(
        new.is_empty(),
        "nccl.h declares functions that nccl-sys/src/table.rs lacks for this version: {new}. CONTRIBUTING.md says under \
         \"A new NCCL\" how to add them"
    );
    ensure!(gone.is_empty(), "nccl.h does not declare functions that nccl-sys/src/table.rs has: {gone}");
    Ok(())
}

/// The number of a wheel's version, which may go on after the third: `2.26.2.post1`.
fn number(version: &str) -> Result<Version> {
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Ok(Version::new(major, minor, patch)),
        _ => anyhow::bail!("`{version}` is no version of NCCL"),
    }
}

#[cfg(test)]
mod tests {
    use nccl_sys::FLOOR;

    use super::*;

    #[test]
    fn every_function_has_one_place() {
        let table = rows(API, PLACES).unwrap();
        assert_eq!(table.lines().filter(|line| line.starts_with("| `nccl")).count(), API.len());

        let message =
            |api: &[(&str, Version)], places: &[(&str, &str)]| rows(api, places).unwrap_err().to_string();
        let more = [API, &[("ncclInvented", Version::new(2, 99, 0))]].concat();
        assert!(
            message(&more, PLACES).contains("ncclInvented is in nccl-sys/src/table.rs, but has no place")
        );
        let more = [PLACES, &[("ncclInvented", "")]].concat();
        assert!(message(API, &more).contains("ncclInvented has a place"));
        let more = [PLACES, &PLACES[..1]].concat();
        assert!(message(API, &more).contains("twice"));
    }

    #[test]
    fn a_row_has_version_and_place() {
        let table = rows(API, PLACES).unwrap();
        for row in [
            "| `ncclCommAbort` | 2.4 | [`AbortHandle::abort`]",
            "| `ncclCommSplit` | 2.18 | [`Communicator::split`]",
            "| `ncclCommRevoke` | 2.28.7 | [`Communicator::revoke`]",
        ] {
            assert!(table.lines().any(|line| line.starts_with(row)), "{row}");
        }
    }

    /// The functions at the floor are those that are older, and the one that came with it.
    #[test]
    fn versions_before_the_floor_are_of_functions_at_the_floor() {
        let older = BEFORE_FLOOR.iter().flat_map(|(_, names)| names.iter().copied());
        let mut older: Vec<_> = older.chain(["ncclCommSplit"]).collect();
        let mut floor: Vec<_> =
            API.iter().filter(|(_, since)| *since == FLOOR).map(|(name, _)| *name).collect();
        older.sort_unstable();
        floor.sort_unstable();
        assert_eq!(older, floor);
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

    /// The check of `--newest` finds a function that was added, and one that was removed.
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

        // A function that the table says to be newer than the header.
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
