use std::fs;
use std::path::Path;

use super::Reader;
use super::digest::Digest;
use crate::knowledge::rules::Rules;

fn data(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs").join(name)).unwrap()
}

fn digest(log: &[u8]) -> Digest {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    reader.read("log", log);
    reader.finish()
}

#[test]
fn print() {
    for name in ["seed-001.log", "two-split.log"] {
        println!("{}", serde_json::to_string_pretty(&digest(&data(name))).unwrap());
    }
}
