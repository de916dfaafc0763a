//! Measures and verifies collectives over NCCL and libfabric.

fn main() {}
