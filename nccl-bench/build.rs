//! Has the programs export what NCCL looks for in them (`src/tuning/profiler.rs`): symbols of an executable are not
//! visible to the libraries that it loads unless the linker is told so. Tests on GPUs are such programs, too.

fn main() {
    for version in 2..=6 {
        for programs in ["bins", "tests"] {
            println!("cargo::rustc-link-arg-{programs}=-Wl,--export-dynamic-symbol=ncclProfiler_v{version}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}
