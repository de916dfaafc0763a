//! Search for the library: in processes of their own, since the answer stays for the life of a process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use nccl_sys::Nccl;

/// Not a test: the other tests run it as a process of its own.
#[test]
#[ignore = "run by the other tests, with an environment of theirs"]
fn report() {
    match Nccl::load() {
        Ok(nccl) => println!("[loaded {} from {}]", nccl.version(), nccl.path().display()),
        Err(error) => println!("[{error}]"),
    }
}

/// Output of [`report`] with exactly these variables set.
fn reported(variables: &[(&str, &Path)]) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "report"])
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (start, end) = (text.find('[').unwrap(), text.rfind(']').unwrap());
    text[start + 1..end].to_owned()
}

/// A library with the version of NCCL 2.28.9 and every function of the floor version, each doing nothing.
fn stub(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let mut source = String::from("int ncclGetVersion(int *version) { return *version = 22809, 0; }\n");
    for (name, since) in nccl_sys::API {
        if *since == nccl_sys::FLOOR && *name != "ncclGetVersion" {
            source += &format!("int {name}(void) {{ return 3; }}\n");
        }
    }
    let file = folder.join("stub.c");
    fs::write(&file, source).unwrap();
    let library = folder.join("libnccl.so.2");
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status();
    assert!(compiler.expect("a C compiler, for this test").success());
}

#[test]
fn a_path_in_the_environment_is_the_only_place() {
    let text = reported(&[
        ("NCCL_LIBRARY", Path::new("/no/such/libnccl.so")),
        ("NCCL_HOME", Path::new("/elsewhere")),
    ]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["NCCL 2.18 or newer could not be loaded.", "Tried:"]);
    assert_eq!(lines[2], "  /no/such/libnccl.so: cannot open shared object file: No such file or directory");
    assert!(lines[3].contains("pip install nvidia-nccl-cu12") && lines[3].contains("NCCL_LIBRARY"), "{text}");
    assert_eq!(lines.len(), 4);
}

#[test]
fn every_place_is_reported_in_order() {
    let home = tempfile::tempdir().unwrap();
    let python = |prefix: &str| {
        let prefix = home.path().join(prefix);
        fs::create_dir_all(prefix.join("lib/python3.11/site-packages")).unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::write(prefix.join("bin/python3"), "").unwrap();
        prefix
    };
    let (conda, virtualenv, path) = (python("conda"), python("venv"), python("usr"));
    let not_nccl = home.path().join("nccl/lib");
    fs::create_dir_all(&not_nccl).unwrap();
    fs::write(not_nccl.join("libnccl.so.2"), "text").unwrap();
    let text = reported(&[
        ("NCCL_HOME", &home.path().join("nccl")),
        ("CONDA_PREFIX", &conda),
        ("VIRTUAL_ENV", &virtualenv),
        ("PATH", &path.join("bin")),
    ]);
    let tried: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let packages = "lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
    let expected = [
        "libnccl.so.2".into(),
        "libnccl.so".into(),
        not_nccl.join("libnccl.so.2"),
        home.path().join("nccl/lib64/libnccl.so.2"),
        conda.join("lib/libnccl.so.2"),
        conda.join(packages),
        virtualenv.join(packages),
        path.join(packages),
        "/usr/local/nccl/lib/libnccl.so.2".into(),
    ];
    for (line, place) in tried.iter().zip(&expected) {
        assert!(line.starts_with(&format!("{}: ", place.display())), "{line} is not {}", place.display());
    }
    assert!(tried[2].ends_with("file too short"), "the loader's own reason: {}", tried[2]);
}

#[test]
fn the_first_usable_library_is_loaded_and_its_path_reported() {
    let home = tempfile::tempdir().unwrap();
    let packages = home.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
    stub(&packages);
    let expected = format!("loaded 2.28.9 from {}", packages.join("libnccl.so.2").display());
    assert_eq!(reported(&[("VIRTUAL_ENV", home.path())]), expected);
    // By the loader's own search, without a folder in the requested name.
    assert_eq!(reported(&[("LD_LIBRARY_PATH", &packages)]), expected);
}
