//! Speed and memory of reading a log: `cargo run --release --example log_speed -- [MIB [hostile] | FILE]`.
//!
//! The log has jobs of eight ranks, one after the other, with lines of other programs between. With
//! `hostile`, every line has another writer, communicator, pair of ranks and text.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use diagnosis::knowledge::rules::Rules;
use diagnosis::log::Reader;

const EIGHT_RANKS: &str = include_str!("../tests/data/logs/h200x8.log");
const ONE_POD: &str = include_str!("../tests/data/logs/seed-001.log");

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "1024".to_owned());
    let mut temporary = tempfile::NamedTempFile::new()?;
    match first.parse::<u64>() {
        Ok(mib) if arguments.next().is_some() => write_hostile(temporary.as_file_mut(), mib << 20)?,
        Ok(mib) => write_jobs(temporary.as_file_mut(), mib << 20)?,
        Err(_) => {}
    }
    let path = if first.parse::<u64>().is_ok() { temporary.path() } else { Path::new(&first) };
    let (rules, before) = (Rules::built_in(), user_s()?);
    fs::write("/proc/self/clear_refs", "5").ok();
    let mut reader = Reader::new(&rules);
    reader.read_stream("log", File::open(path)?);
    let digest = reader.finish();
    let (seconds, input) = (user_s()? - before, &digest.inputs[0]);
    println!("{} MiB, {} lines, {} of NCCL", input.bytes >> 20, input.lines, input.nccl_lines);
    println!("{:.2} s of user time, {:.0} MB/s", seconds, input.bytes as f64 / 1e6 / seconds);
    println!("peak resident memory: {} MiB", peak_kib()? >> 10);
    println!(
        "{} writers, {} communicators, {} pairs, {} hits, {} unknown",
        digest.writers.len(),
        digest.communicators.len(),
        digest.communicators.iter().map(|communicator| communicator.connections.len()).sum::<usize>(),
        digest.hits.iter().map(|hit| hit.count).sum::<u64>(),
        digest.unknown.len(),
    );
    digest.limits.iter().for_each(|limit| println!("{limit}"));
    Ok(())
}

/// Jobs of eight ranks with other processes and communicators, each with the log of a pod.
fn write_jobs(file: &mut File, size: u64) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(file);
    let mut written = 0;
    let id =
        EIGHT_RANKS.split("commId ").nth(1).and_then(|rest| rest.split(' ').next()).ok_or("no commId")?;
    for job in 0_u64.. {
        // 1000 jobs of 8 ranks and 4000 communicators, again and again.
        let pid = format!("vm:{}", 1000 + job % 1000);
        let text =
            EIGHT_RANKS.replace("vm:44", &pid).replace(id, &format!("{:#x}", 0x1000_0000 + job % 4000));
        let pod = ONE_POD.replace("vm:152", &format!("pod-{}:152", job % 256));
        for (line, other) in text.lines().zip(pod.lines().chain(std::iter::repeat(""))) {
            writeln!(out, "{line}")?;
            written += line.len() as u64 + 1;
            if !other.is_empty() {
                writeln!(out, "{other}")?;
                written += other.len() as u64 + 1;
            }
        }
        if written >= size {
            break;
        }
    }
    Ok(out.flush()?)
}

/// Writes lines into every list of the digest.
fn write_hostile(file: &mut File, size: u64) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(file);
    let mut written = 0;
    let mut text = String::new();
    for number in 0_u64.. {
        text.clear();
        let writer = format!("host-with-a-long-name-{number}:{number}:{number} [{}] NCCL", number % 8);
        let (rank, word) = (number % 30_000, "x".repeat((number % 300) as usize));
        let numbers = format!("rank {rank} nranks 4000000 cudaDev 0 nvmlDev 0 busId {number:x}");
        writeln!(
            text,
            "{writer} INFO ncclCommInitRank comm 0x{number:x} {numbers} commId 0x{:x} - Init START",
            number % 5000
        )?;
        for channel in 0..3 {
            writeln!(
                text,
                "{writer} INFO Channel {channel:02}/0 : {rank}[0] -> {}[0] [send] via NET/{word}/0",
                number % 999_983
            )?;
        }
        writeln!(
            text,
            "{writer} INFO Bootstrap timings total 0.1 (create 0.1, send 0.2, recv 0.3, ring 0.4, delay 0.5)"
        )?;
        writeln!(
            text,
            "{writer} INFO Init timings - x: rank {rank} nranks 4000000 total 0.1 (kernels 0.1, alloc 0.2, \
             bootstrap 0.3, allgathers 0.4, topo 0.5, graphs 0.5, connections 0.5, rest 0.5)"
        )?;
        writeln!(text, "{writer} INFO NCCL_{}_X set by environment to {word}{number}", word.to_uppercase())?;
        writeln!(text, "{writer} INFO NET/IB : Using [0]{word}{number}:1/IB [RO]; OOB x")?;
        writeln!(text, "{writer} WARN {word} failed")?;
        writeln!(text, "{writer} DIAG [INFO] {word} {word}")?;
        out.write_all(text.as_bytes())?;
        written += text.len() as u64;
        if written >= size {
            break;
        }
    }
    Ok(out.flush()?)
}

/// Returns the processor time of this process in user mode, at the kernel's 100 ticks in a second.
fn user_s() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit_once(')').ok_or("no name in /proc/self/stat")?.1;
    Ok(after.split_whitespace().nth(11).ok_or("no time in /proc/self/stat")?.parse::<f64>()? / 100.0)
}

fn peak_kib() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
