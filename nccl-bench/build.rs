//! Has the programs export what NCCL looks for in them (`src/tuning/profiler.rs`): symbols of an executable are not
//! visible to the libraries that it loads unless the linker is told so.

fn main() {
    for version in 2..=6 {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ncclProfiler_v{version}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
