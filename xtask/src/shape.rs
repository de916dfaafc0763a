//! `cargo xtask shape`: lengths of files and functions, circles among modules, and other measures of a
//! checkout.

mod modules;
mod report;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::cache;
use source::{Function, RustFile};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The checkout to measure, of any revision (default: this one)
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Measure the subjects of these commits too, such as main..
    #[arg(long, value_name = "RANGE")]
    commits: Option<String>,
    /// List only the doc comments that begin with What, Whether, How, As or Of
    #[arg(long)]
    doc_starts: bool,
    /// List only the functions of more lines than this
    #[arg(long, value_name = "LINES")]
    functions: Option<usize>,
    /// Fail on product functions above 80 lines, above 6 % of such doc comments, and circles of modules
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = arguments.tree.clone().map_or_else(|| cache::repository().map(Path::to_owned), Ok)?;
    let tree = Tree::read(&root)?;
    if arguments.doc_starts {
        print!("{}", report::doc_starts(&tree));
    }
    if let Some(limit) = arguments.functions {
        print!("{}", report::functions_above(&tree, false, limit));
        print!("{}", report::functions_above(&tree, true, limit));
    }
    if arguments.check {
        let faults = report::faults(&tree);
        ensure!(faults.is_empty(), "out of shape:\n{faults}");
    } else if !arguments.doc_starts && arguments.functions.is_none() {
        print!("{}", report::tables(&tree));
    }
    if let Some(range) = &arguments.commits {
        print!("{}", report::subjects(&git(&root, &["log", "--format=%h %s", range])?));
    }
    Ok(())
}

/// The Rust files of a checkout, in the order of their paths.
struct Tree(Vec<RustFile>);

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let list = git(root, &["ls-files", "--cached", "--others", "--exclude-standard"])?;
        let paths: BTreeSet<&str> = list.lines().filter(|path| root.join(path).is_file()).collect();
        let mut packages = BTreeMap::from([("", "(no package)".to_owned())]);
        for folder in paths.iter().filter_map(|path| path.strip_suffix("Cargo.toml")) {
            let text = fs::read_to_string(root.join(folder).join("Cargo.toml"))?;
            let name = text.split_once("[package]\nname = \"").and_then(|(_, rest)| rest.split_once('"'));
            packages.extend(name.map(|(name, _)| (folder, name.to_owned())));
        }
        let mut files = Vec::new();
        for path in paths.iter().filter(|path| path.ends_with(".rs")) {
            let around = packages.iter().filter(|(folder, _)| path.starts_with(**folder));
            let (folder, name) = around.max_by_key(|(folder, _)| folder.len()).context("no package")?;
            let text = fs::read_to_string(root.join(path))?;
            let generated =
                path.ends_with("/bindings.rs") && text.lines().take(3).any(|l| l.contains("enerated by"));
            if !generated && !["fuzz/", "tests/beside/"].iter().any(|other| folder.ends_with(other)) {
                let source = RustFile::parse(name, folder, &path[folder.len()..], &text);
                files.push(source.with_context(|| path.to_string())?);
            }
        }
        Ok(Self::new(files))
    }

    /// Marks the files with modules declared for tests only.
    fn new(mut files: Vec<RustFile>) -> Self {
        let tests: Vec<_> = files.iter().flat_map(|file| file.test_modules.clone()).collect();
        let declared = |file: &&mut RustFile| tests.iter().any(|test| file.module.starts_with(test));
        for file in files.iter_mut().filter(declared) {
            file.test_lines.extend(1..=file.lines);
        }
        Self(files)
    }

    /// The functions of the tests, or of the product, with their files.
    fn functions(&self, tests: bool) -> impl Iterator<Item = (&RustFile, &Function)> {
        let functions =
            self.0.iter().flat_map(|file| file.functions.iter().map(move |function| (file, function)));
        functions.filter(move |(file, function)| file.test_lines.contains(&function.line) == tests)
    }
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().context("git")?;
    ensure!(output.status.success(), "git {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
