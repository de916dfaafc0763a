//! Programs that other wrappers accept and that access freed, foreign or mistyped memory: none compiles here.
//! Numbers in names are those of the holes.
//!
//! The first line of each program lists the compiler's expected error codes, and no others. Only codes are
//! compared, so that any compiler version works.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests
#![cfg(feature = "nccl")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use collectives::nccl::{AbortHandle, Communicator, Graph, Library, Memory, Pending, Registration, Window};

type Codes = BTreeSet<String>;

/// Programs with their expected codes.
fn programs(folder: &Path) -> BTreeMap<String, Codes> {
    let program = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap();
        let wanted = text.lines().next().unwrap().strip_prefix("// ").unwrap();
        let codes = wanted.split(' ').filter(|&word| word != "compiles").map(str::to_owned).collect();
        (entry.path().file_stem().unwrap().to_str().unwrap().to_owned(), codes)
    };
    fs::read_dir(folder).unwrap().map(|entry| program(entry.unwrap())).collect()
}

/// Programs with the codes of their errors; those that compile have none.
fn compile(project: &Path, programs: &BTreeMap<String, Codes>) -> BTreeMap<String, Codes> {
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["check", "--bins", "--keep-going", "--offline", "--message-format=json", "--quiet"])
        .current_dir(project)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl_holes"))
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let mut found: BTreeMap<_, _> = programs.keys().map(|name| (name.clone(), Codes::new())).collect();
    let mut compiled = BTreeSet::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        if message["reason"] == "compiler-artifact" {
            compiled.insert(name);
        } else if let Some(code) = message["message"]["code"]["code"].as_str()
            && message["message"]["level"] == "error"
            && let Some(codes) = found.get_mut(&name)
        {
            codes.insert(code.to_owned());
        }
    }
    for (name, codes) in &found {
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(codes.is_empty(), compiled.contains(name), "{name}: {words}");
    }
    found
}

#[test]
fn none_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/nccl_holes");
    let programs = programs(&folder);
    assert!(programs.len() > 10 && programs["control"].is_empty());

    let project = tempfile::tempdir().unwrap();
    let mut manifest = format!(
        "[package]\nname = \"nccl-holes\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [workspace]\n[dependencies]\n\
         collectives = {{ path = {root:?}, default-features = false, features = [\"nccl\"] }}\n\
         cudarc = {{ version = \"0.19\", default-features = false, features = [\"cuda-12000\"] }}\n"
    );
    for name in programs.keys() {
        let path = folder.join(name).with_extension("rs");
        writeln!(manifest, "[[bin]]\nname = {name:?}\npath = {path:?}").unwrap();
    }
    fs::write(project.path().join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), project.path().join("Cargo.lock")).unwrap();
    assert_eq!(compile(project.path(), &programs), programs);
}

/// Safe counterpart of hole 15: these move between threads, and the abort handle is shared by them.
#[test]
fn types_are_send_and_sync_as_documented() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<Communicator>();
    moves::<Pending>();
    is_shared::<AbortHandle>();
    is_shared::<Library>();
    is_shared::<Memory>();
    is_shared::<Registration>();
    is_shared::<Window>();
    is_shared::<Graph>();
}
