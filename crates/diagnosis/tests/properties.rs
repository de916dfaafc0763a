//! Properties of the conclusions from real logs: no change that removes knowledge makes a log healthier.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use diagnosis::examination::{Examination, Health};
use diagnosis::knowledge::rules::Rules;
use diagnosis::log::Reader;
use diagnosis::log::conclusions::conclude;

/// Number of cuts of each log.
const CUTS: usize = 40;

fn examine(files: &[&[u8]]) -> Examination {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    for (index, file) in files.iter().enumerate() {
        reader.read_stream(&format!("{index}.log"), *file);
    }
    conclude(&reader.finish(), &rules)
}

/// Returns the names and contents of all logs of the test data.
fn read_logs() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let logs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let logs: Vec<_> = logs.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect();
    assert!(logs.len() > 50, "{}", logs.len());
    logs
}

#[test]
fn a_cut_log_is_never_healthier_than_the_whole() {
    let mut wrong = Vec::new();
    for (name, log) in read_logs() {
        if examine(&[&log]).health() == Health::Healthy {
            continue;
        }
        for cut in
            (1..CUTS).map(|part| log.len() * part / CUTS).chain(log.len() - 300.min(log.len())..log.len())
        {
            if examine(&[&log[..cut]]).health() == Health::Healthy {
                wrong.push(format!("{name}: {cut} of {} bytes", log.len()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_log_cut_before_its_end_is_not_healthy() {
    let mut wrong = Vec::new();
    for (name, log) in read_logs() {
        let end = log.windows(19).position(|words| words == b"# Avg bus bandwidth").unwrap_or(log.len());
        for cut in (1..CUTS).map(|part| end * part / CUTS) {
            let found = examine(&[&log[..cut]]);
            if found.health() == Health::Healthy {
                wrong.push(format!("{name}: {cut} of {} bytes: {:?}", log.len(), found.proof));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the log of the same job on another host, with other processes and communicators.
fn on_another_host(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let host = text.replace("vm:", "vmb:").replace(" on         vm ", " on        vmb ");
    host.replace("commId 0x", "commId 0x5")
}

#[test]
fn two_jobs_on_two_hosts_are_not_healthy_together() {
    let mut wrong = Vec::new();
    for (name, log) in read_logs() {
        let whole = examine(&[&log]).health();
        let other = on_another_host(&log);
        let text = String::from_utf8_lossy(&log);
        let mixed: String =
            text.lines().zip(other.lines()).map(|(one, other)| format!("{one}\n{other}\n")).collect();
        let one_after_another = format!("{text}{other}");
        let files: [&[&[u8]]; 3] =
            [&[&log, other.as_bytes()], &[one_after_another.as_bytes()], &[mixed.as_bytes()]];
        for (way, files) in ["files", "one after another", "mixed"].into_iter().zip(files) {
            let found = examine(files);
            if found.health() == Health::Healthy || !found.proof.is_empty() {
                wrong.push(format!("{name}, {way}: {:?} {:?}", found.health(), found.proof));
            }
            if whole == Health::Broken && found.health() != Health::Broken {
                wrong.push(format!("{name}, {way}: {:?}, the whole is broken", found.health()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
