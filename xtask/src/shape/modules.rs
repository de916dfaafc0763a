//! Circles among the modules of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Path, RustFile};

/// Edges: from and to, with the first line that names `to`.
pub(super) type Edges = BTreeMap<(Path, Path), usize>;

/// Returns the edges from the product's modules to the modules named in their paths, without their ancestors
/// and descendants. A path to a re-export leads to the re-exporting module.
pub(super) fn edges(files: &[RustFile]) -> Edges {
    let product = files.iter().filter(|file| !file.is_test());
    let modules: BTreeMap<_, _> = product.map(|file| (&file.module, file)).collect();
    let mut edges = Edges::new();
    for (from, file) in &modules {
        for (line, path) in file.references.iter().filter(|(line, _)| !file.test_lines.contains(line)) {
            let mut to = path.clone();
            while !to.is_empty() && !modules.contains_key(&to) {
                to.pop();
            }
            if !from.starts_with(&to) && !to.starts_with(from) {
                edges.entry(((*from).clone(), to)).or_insert(*line);
            }
        }
    }
    edges
}

/// The strongly connected components of more than one module.
pub(super) fn circles(edges: &Edges) -> BTreeSet<BTreeSet<&Path>> {
    let reached: BTreeMap<_, _> = edges.keys().map(|(from, _)| (from, reached(from, edges))).collect();
    let mut circles = BTreeSet::new();
    for (module, others) in &reached {
        let back = |other: &&Path| reached.get(*other).is_some_and(|others| others.contains(module));
        circles.insert(others.iter().copied().filter(back).collect::<BTreeSet<_>>());
    }
    circles.retain(|circle| !circle.is_empty());
    circles
}

/// Returns the modules reached by edges from `start`, directly or through others.
fn reached<'a>(start: &'a Path, edges: &'a Edges) -> BTreeSet<&'a Path> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(module) = waiting.pop() {
        let next = edges.keys().filter(|(from, _)| from == module).map(|(_, to)| to);
        waiting.extend(next.filter(|to| found.insert(*to)));
    }
    found
}
