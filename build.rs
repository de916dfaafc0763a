//! Stamps what every result must carry: git revision, compiler, target and features.
//! It finds nothing, links nothing, and works outside a git checkout.

use std::env;
use std::process::Command;

fn main() {
    let revision = output("git", &["describe", "--always", "--dirty", "--abbrev=12", "--match="])
        .unwrap_or_else(|| "unknown (not built in a git checkout)".to_owned());
    let compiler = env::var("RUSTC")
        .ok()
        .and_then(|rustc| output(&rustc, &["--version"]))
        .unwrap_or_else(|| "unknown".to_owned());
    let mut features: Vec<String> = env::vars()
        .filter_map(|(key, _)| key.strip_prefix("CARGO_FEATURE_").map(str::to_lowercase))
        .filter(|feature| feature != "default")
        .collect();
    features.sort();

    println!("cargo::rustc-env=COLLECTIVES_GIT_REVISION={revision}");
    println!("cargo::rustc-env=COLLECTIVES_COMPILER={compiler}");
    println!("cargo::rustc-env=COLLECTIVES_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=COLLECTIVES_PROFILE={}", env::var("PROFILE").unwrap_or_default());
    println!("cargo::rustc-env=COLLECTIVES_FEATURES={}", features.join(","));
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(git) = output("git", &["rev-parse", "--git-dir"]) {
        println!("cargo::rerun-if-changed={git}/HEAD");
        println!("cargo::rerun-if-changed={git}/index");
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
