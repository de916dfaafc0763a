//! Developer commands of this repository. Run `cargo xtask help`.

fn main() {}
