//! The git revision that `build.rs` sets, and the changes that recompile the package, in a small project with
//! the paths of this repository.

#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The output of the project's program, and true when it was compiled for it.
#[derive(Debug, PartialEq)]
struct Built {
    revision: String,
    again: bool,
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A project whose package `nccl-bench` has the real `build.rs`.
fn project(root: &Path) {
    write(root, "Cargo.toml", "[workspace]\nmembers = [\"nccl-bench\"]\nresolver = \"3\"\n");
    write(root, ".gitignore", "/target\n");
    for file in
        ["xtask/Cargo.toml", "docs/results.md", "src/lib.rs", "nccl-sys/src/lib.rs", "nccl-bench/tests/a.rs"]
    {
        write(root, file, "\n");
    }
    write(
        root,
        "nccl-bench/Cargo.toml",
        "[package]\nname = \"nccl-bench\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    );
    write(root, "nccl-bench/build.rs", include_str!("../build.rs"));
    write(root, "nccl-bench/src/main.rs", "fn main() { print!(\"{}\", env!(\"BUILD_REVISION\")) }\n");
}

fn run(root: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    // Git sets some of these for a hook, and then looks nowhere else.
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(variable);
    }
    let output = command
        .args(arguments)
        .current_dir(root)
        .env("CARGO_TARGET_DIR", root.join("target"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn git(root: &Path, arguments: &str) -> String {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let arguments: Vec<_> = identity.into_iter().chain(arguments.split(' ')).collect();
    run(root, "git", &arguments).trim().to_owned()
}

fn build(root: &Path) -> Built {
    let cargo = env::var("CARGO").unwrap();
    let messages = run(root, &cargo, &["build", "--offline", "--message-format=json"]);
    let program = messages
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|message| message["reason"] == "compiler-artifact" && message["executable"].is_string())
        .unwrap();
    let revision = run(root, program["executable"].as_str().unwrap(), &[]);
    Built { revision, again: program["fresh"] == false }
}

fn compiled(revision: &str) -> Built {
    Built { revision: revision.to_owned(), again: true }
}

fn kept(revision: &str) -> Built {
    Built { revision: revision.to_owned(), again: false }
}

#[test]
fn only_another_revision_or_source_compiles_the_package_again() {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().canonicalize().unwrap();
    project(root);
    git(root, "init --quiet");
    git(root, "add .");
    git(root, "commit --quiet -m one");
    // The first build makes the lock file, which is a source.
    build(root);
    git(root, "add Cargo.lock");
    git(root, "commit --quiet -m lock");
    let head = || git(root, "rev-parse --short=12 HEAD");
    let first = head();
    assert_eq!(build(root), compiled(&first));

    // What is not compiled into the program, and the index.
    write(root, "docs/results.md", "changed\n");
    write(root, "nccl-bench/tests/a.rs", "// changed\n");
    assert_eq!(build(root), kept(&first));
    git(root, "add .");
    assert_eq!(build(root), kept(&first));
    git(root, "status");
    git(root, "branch other");
    assert_eq!(build(root), kept(&first));

    git(root, "commit --quiet -m docs");
    let second = head();
    assert_ne!(second, first);
    assert_eq!(build(root), compiled(&second));
    assert_eq!(build(root), kept(&second));

    // Sources of other packages that are compiled into it, changed, added, and put back.
    write(root, "nccl-sys/src/lib.rs", "// changed\n");
    assert_eq!(build(root), compiled(&format!("{second}-dirty")));
    git(root, "add .");
    assert_eq!(build(root), kept(&format!("{second}-dirty")));
    git(root, "reset --quiet --hard");
    assert_eq!(build(root), compiled(&second));
    write(root, "src/new.rs", "\n");
    assert_eq!(build(root), compiled(&format!("{second}-dirty")));
    git(root, "add .");
    git(root, "commit --quiet -m source");
    assert_eq!(build(root), compiled(&head()));

    // Without files for the branches, then with one again; without a branch.
    git(root, "pack-refs --all");
    let packed = build(root);
    assert_eq!(packed.revision, head());
    git(root, "commit --quiet --allow-empty -m more");
    assert_eq!(build(root), compiled(&head()));
    git(root, "checkout --quiet --detach HEAD~1");
    assert_eq!(build(root), compiled(&head()));
    git(root, "checkout --quiet --detach HEAD~1");
    assert_eq!(build(root), compiled(&head()));
}

#[test]
fn a_copy_among_other_sources_has_no_revision_of_theirs() {
    let unknown = compiled("unknown: not built in its own git checkout");
    let folder = tempfile::tempdir().unwrap();
    project(folder.path());
    // Without git.
    assert_eq!(build(folder.path()), unknown);
    // A folder of somebody's repository.
    let folder = tempfile::tempdir().unwrap();
    project(&folder.path().join("vendor/all"));
    git(folder.path(), "init --quiet");
    git(folder.path(), "add .");
    git(folder.path(), "commit --quiet -m theirs");
    assert_eq!(build(&folder.path().join("vendor/all")), unknown);
    // The package alone at the same place in somebody's repository.
    let folder = tempfile::tempdir().unwrap();
    project(folder.path());
    fs::remove_dir_all(folder.path().join("xtask")).unwrap();
    git(folder.path(), "init --quiet");
    git(folder.path(), "add .");
    git(folder.path(), "commit --quiet -m theirs");
    assert_eq!(build(folder.path()), unknown);
}
