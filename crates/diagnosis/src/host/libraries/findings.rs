//! Conclusions about libraries.

use super::super::gpu::Gpus;
use super::super::nic::Nic;
use super::super::system::System;
use super::{Library, LibraryKind, known};
use crate::examination::{Body, Section};
use crate::finding::Finding;
use crate::knowledge::texts::compose_finding;
use crate::words::{join_list, or_dash, size_text};

/// Returns findings about the libraries.
pub(crate) fn judge_libraries(
    libraries: &[Library],
    system: &System,
    gpus: &Gpus,
    nics: &[Nic],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(same_version(libraries));
    findings.extend(several_nccl(libraries));
    findings.extend(find_driver_mismatch(libraries, system));
    if nics.iter().any(Nic::is_efa) && gpus.has_gpus() {
        findings.extend(without_plugin(libraries));
    }
    findings.extend(not_loadable(libraries));
    findings.extend(known::find_version_conflicts(libraries, gpus, nics));
    findings.extend(known::known_faults(libraries, nics));
    findings
}

fn libraries_of_kind(libraries: &[Library], kind: LibraryKind) -> impl Iterator<Item = &Library> {
    libraries.iter().filter(move |library| library.kind == kind && library.problem.is_none())
}

/// Returns findings about two builds of one version.
fn same_version(libraries: &[Library]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for kind in [LibraryKind::Nccl, LibraryKind::NetPlugin, LibraryKind::Libfabric] {
        let all: Vec<&Library> =
            libraries_of_kind(libraries, kind).filter(|library| library.version.is_some()).collect();
        for (index, one) in all.iter().enumerate() {
            let twin = all[index + 1..].iter().find(|other| {
                other.name == one.name
                    && other.version == one.version
                    && (&other.build_id, other.size, &other.suffix) != (&one.build_id, one.size, &one.suffix)
            });
            if let Some(other) = twin {
                findings.push(
                    compose_finding(
                        "two-builds-of-one-version",
                        &[("name", &one.name), ("version", &or_dash(one.version.as_ref()))],
                    )
                    .with_evidence(&one.path, format!("{}, {}", one.version_and_build(), size_text(one.size)))
                    .with_evidence(
                        &other.path,
                        format!("{}, {}", other.version_and_build(), size_text(other.size)),
                    ),
                );
            }
        }
    }
    findings
}

fn several_nccl(libraries: &[Library]) -> Option<Finding> {
    let all: Vec<&Library> =
        libraries_of_kind(libraries, LibraryKind::Nccl).filter(|library| library.version.is_some()).collect();
    let first = all.iter().find(|library| library.first).or(all.first())?;
    let others: Vec<String> = all
        .iter()
        .filter(|library| library.version != first.version)
        .map(|library| format!("{} at {}", library.version_and_build(), library.path))
        .collect();
    (!others.is_empty()).then(|| {
        let taken = if first.first { "the loader takes" } else { "besides" };
        compose_finding(
            "several-nccl-versions",
            &[
                ("taken", &taken),
                ("version", &first.version_and_build()),
                ("path", &first.path),
                ("others", &join_list(&others)),
            ],
        )
    })
}

/// Returns a finding about driver libraries of another version than the kernel's module.
fn find_driver_mismatch(libraries: &[Library], system: &System) -> Option<Finding> {
    let kernel = system.driver.version.as_ref()?;
    let library = libraries_of_kind(libraries, LibraryKind::Driver).find(|library| library.first)?;
    let version = library.version.as_ref()?;
    // Newer libraries of the package cuda-compat work with older modules.
    (version != kernel && !library.file.contains("compat")).then(|| {
        compose_finding(
            "libcuda-mismatch",
            &[("path", &library.path), ("version", &version), ("kernel", &kernel)],
        )
    })
}

fn without_plugin(libraries: &[Library]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if libraries_of_kind(libraries, LibraryKind::NetPlugin).next().is_none() {
        findings.push(compose_finding("no-net-plugin", &[]));
    } else if !libraries_of_kind(libraries, LibraryKind::NetPlugin).any(|library| library.first) {
        let paths: Vec<&str> = libraries_of_kind(libraries, LibraryKind::NetPlugin)
            .map(|library| library.path.as_str())
            .collect();
        findings.push(compose_finding("net-plugin-not-searched", &[("paths", &join_list(&paths))]));
    }
    if libraries_of_kind(libraries, LibraryKind::Libfabric).next().is_none() {
        findings.push(compose_finding("no-libfabric", &[]));
    }
    findings
}

/// Returns a finding about files with the name of a library that cannot be libraries of this machine.
fn not_loadable(libraries: &[Library]) -> Option<Finding> {
    let names: Vec<String> = libraries
        .iter()
        // Scripts of the linker have the name without a number.
        .filter(|library| library.file.contains(".so.") || library.kind == LibraryKind::NetPlugin)
        .filter_map(|library| Some(format!("{} ({})", library.path, library.problem.as_ref()?)))
        .collect();
    (!names.is_empty()).then(|| compose_finding("library-not-loadable", &[("names", &join_list(&names))]))
}

/// Returns the table of libraries.
pub(crate) fn library_sections(libraries: &[Library]) -> Vec<Section> {
    if libraries.is_empty() {
        return Vec::new();
    }
    let row = |library: &Library| {
        let interfaces: Vec<&str> =
            library.interfaces.iter().map(|name| name.strip_prefix("nccl").unwrap_or(name)).collect();
        vec![
            library.name.clone(),
            if library.first { "yes" } else { "" }.to_owned(),
            match &library.problem {
                Some(problem) => problem.clone(),
                None => format!(
                    "{}{}",
                    or_dash(library.version.as_ref()),
                    library.suffix.as_deref().unwrap_or_default()
                ),
            },
            library
                .build_id
                .as_ref()
                .map_or_else(|| "-".to_owned(), |id| id.get(..12).unwrap_or(id).to_owned()),
            size_text(library.size),
            library.path.clone(),
            library.found.clone(),
            interfaces.join(" "),
        ]
    };
    let columns = ["library", "loaded", "version", "build", "size", "path", "found by", "interfaces"];
    vec![Section {
        title: "Libraries".to_owned(),
        body: Body::Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: libraries.iter().map(row).collect(),
        },
    }]
}
