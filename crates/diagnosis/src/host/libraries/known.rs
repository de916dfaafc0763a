//! Known faults and conflicts of the libraries a job would load.

use semver::Version;

use super::super::gpu::Gpus;
use super::super::nic::Nic;
use super::{Library, LibraryKind};
use crate::examination::{Body, KNOWN_FAULTS, Section};
use crate::finding::{Finding, Severity};
use crate::knowledge::conflicts::{Conflict, Conflicts, Together};
use crate::knowledge::faults::{Component, Fault, Faults};
use crate::knowledge::texts::compose_finding;
use crate::words::counted;

/// A library with its version as a number.
struct Versioned<'a> {
    library: &'a Library,
    version: Version,
}

/// Returns the library of the loader, or else the first one found.
fn library_in_use(libraries: &[Library], kind: LibraryKind) -> Option<Versioned<'_>> {
    let all = || {
        libraries.iter().filter(move |library| library.kind == kind && library.problem.is_none()).filter_map(
            |library| Some(Versioned { library, version: Version::parse(library.version.as_deref()?).ok()? }),
        )
    };
    all().find(|one| one.library.first).or_else(|| all().next())
}

/// Returns the known faults of NCCL, and of the software for EFA if the host has EFA devices.
fn find_known_faults<'a>(
    libraries: &'a [Library],
    nics: &[Nic],
) -> Vec<(String, &'a Library, &'static Fault)> {
    let has_efa = nics.iter().any(Nic::is_efa);
    let has_network = nics.iter().any(Nic::is_up);
    let parts = [
        ("NCCL", LibraryKind::Nccl, Component::Nccl),
        ("aws-ofi-nccl", LibraryKind::NetPlugin, Component::AwsOfiNccl),
        ("libfabric", LibraryKind::Libfabric, Component::Libfabric),
    ];
    let mut found = Vec::new();
    for (name, kind, component) in parts {
        if kind != LibraryKind::Nccl && !has_efa {
            continue;
        }
        let Some(Versioned { library, version }) = library_in_use(libraries, kind) else { continue };
        for fault in Faults::built_in().of_component(component, &version) {
            let of_build = kind != LibraryKind::Nccl || fault.applies_to_build(library.suffix.as_deref());
            if of_build && (has_network || !fault.needs_several_nodes()) {
                found.push((format!("{name} {version}"), library, fault));
            }
        }
    }
    found
}

/// Returns one advice about all known faults: no job has run with them yet.
pub(super) fn known_faults(libraries: &[Library], nics: &[Nic]) -> Option<Finding> {
    let faults = find_known_faults(libraries, nics);
    let mut names: Vec<(String, &Library)> =
        faults.iter().map(|(name, library, _)| (name.clone(), *library)).collect();
    names.dedup_by(|one, other| one.0 == other.0);
    if names.is_empty() {
        return None;
    }
    let versions: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
    let count = counted(faults.len(), "known fault");
    let mut finding =
        compose_finding("known-faults", &[("faults", &count), ("versions", &versions.join(", "))]);
    finding.versions = versions;
    Some(names.iter().fold(finding, |finding, (_, library)| {
        finding.with_evidence(&library.path, library.version_and_build())
    }))
}

/// Returns the table of known faults.
pub(crate) fn known_faults_section(libraries: &[Library], nics: &[Nic]) -> Option<Section> {
    let row = |(name, _, fault): &(String, &Library, &Fault)| {
        vec![name.clone(), fault.effect.clone(), fault.conditions.join("; "), fault.remedy.clone()]
    };
    let rows: Vec<Vec<String>> = find_known_faults(libraries, nics).iter().map(row).collect();
    let columns = ["version", "effect", "if", "remedy"].map(str::to_owned).to_vec();
    (!rows.is_empty())
        .then(|| Section { title: KNOWN_FAULTS.to_owned(), body: Body::Table { columns, rows } })
}

/// Returns findings about versions that do not work together.
pub(super) fn find_version_conflicts(libraries: &[Library], gpus: &Gpus, nics: &[Nic]) -> Vec<Finding> {
    let kinds = [LibraryKind::Nccl, LibraryKind::NetPlugin, LibraryKind::Libfabric];
    let [nccl, plugin, libfabric] = kinds.map(|kind| library_in_use(libraries, kind));
    let driver = gpus.cuda.as_ref().and_then(|cuda| Version::parse(&format!("{cuda}.0")).ok());
    let together = Together {
        nccl: nccl.as_ref().map(|one| &one.version),
        plugin: plugin.as_ref().map(|one| &one.version),
        libfabric: libfabric.as_ref().map(|one| &one.version),
        driver: driver.as_ref(),
    };
    let has_efa = nics.iter().any(Nic::is_efa);
    let finding = |conflict: &Conflict| {
        let named = [
            (&nccl, conflict.nccl.is_some()),
            (&plugin, conflict.plugin.is_some()),
            (&libfabric, conflict.libfabric.is_some()),
        ];
        let named: Vec<&Library> =
            named.iter().filter(|(_, is)| *is).filter_map(|(one, _)| Some(one.as_ref()?.library)).collect();
        // A library outside the loader's path may stay unused, as may the plugin without EFA.
        let is_used = named.iter().all(|library| library.first) && (has_efa || conflict.plugin.is_none());
        let severity = if is_used { conflict.severity_for(false) } else { Severity::Advice };
        let conditions = Some(&conflict.conditions).filter(|conditions| !conditions.is_empty());
        let finding = Finding {
            cause: conditions.map(|conditions| format!("if: {}", conditions.join("; "))),
            remedy: Some(conflict.remedy.clone()),
            source: Some(conflict.source.clone()),
            ..Finding::new(conflict.id.clone(), severity, conflict.effect.clone())
        };
        named.iter().fold(finding, |finding, library| {
            finding.with_evidence(&library.path, library.version_and_build())
        })
    };
    Conflicts::built_in().conflicts_among(&together).into_iter().map(finding).collect()
}
