//! NCCL's log, with its choices.
//!
//! From 2.20 on NCCL writes a line for each operation it enqueues, on rank 0 of the communicator:
//!
//! | NCCL | message after `NCCL INFO` | meaning of the bytes |
//! |---|---|---|
//! | 2.20 to 2.22 | `8192 Bytes -> Algo 1 proto 0 time 12.300000` | the larger buffer; of a group: the sum |
//! | 2.23 | `AllReduce: 8192 Bytes -> Algo 1 proto 0 time 12.300000` | the same |
//! | 2.24 to 2.32 | `AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}` | the call's count |
//! | 2.27 to 2.32 | `AllReduce [Symmetric]: 8192 Bytes -> Kernel AllReduce_AGxLL_R ...` | the works' counts |
//! | 2.29 to 2.32 | `AllGather [Copy Engine]: 8192 Bytes -> cudaMemcpy` | the call's count |
//!
//! NCCL 2.18 and 2.19 log no choices. No version logs sends and receives (all-to-all, gather and scatter), or
//! copies of a single rank.
//!
//! NCCL reads its log settings at its first use, and has no supported way to change them later, so lines are
//! written during timed operations as well. A line costs the enqueuing thread of rank 0 about 1 to 1.5
//! microseconds, and affects sizes below some 64 KiB. So the log is optional.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{FallocateFlags, MemfdFlags};

use super::settings::{self, Assignments};
use super::{Bytes, Choice, copy_engine_algorithm, count_choice};
use record::Algorithm;

/// NCCL's algorithms by number, as written by 2.20 to 2.23.
const ALGORITHMS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
/// NCCL's protocols by number.
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
const VARIABLES: [&str; 3] = ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"];

/// Parses one line of NCCL's log; `None` when it contains no choice. Text before `NCCL INFO` is ignored.
pub fn parse_line(line: &str) -> Option<Choice> {
    let message = line.split_once("NCCL INFO ")?.1.trim();
    let (what, how) = message.split_once(" Bytes -> ")?;
    let (named, bytes) = what.rsplit_once(": ").map_or((None, what), |(named, bytes)| (Some(named), bytes));
    let bytes: u64 = bytes.parse().ok()?;
    let (name, kind) = match named {
        Some(named) => match named.split_once(" [") {
            Some((name, kind)) => (Some(name), kind.strip_suffix(']')?),
            None => (Some(named), ""),
        },
        None => (None, ""),
    };
    if name.is_some_and(|name| name.is_empty() || !name.chars().all(|letter| letter.is_ascii_alphanumeric()))
    {
        return None;
    }
    let words: Vec<&str> = how.split_whitespace().collect();
    let after = |key: &str| {
        let place = words.iter().position(|word| *word == key)?;
        words.get(place + 1).copied()
    };
    let number = |key: &str| after(key)?.parse::<u32>().ok();
    let (bytes, algorithm) = match kind {
        "" => {
            let (algorithm, protocol) = (after("Algo")?, after("proto")?);
            let channels = words.iter().find_map(|word| parse_channels(word));
            // Versions with channels in the log write the bytes of the count, and names instead of numbers.
            let bytes = if channels.is_some() { Bytes::Count(bytes) } else { Bytes::Larger(bytes) };
            let algorithm = Algorithm {
                algorithm: named_or_numbered(algorithm, &ALGORITHMS),
                protocol: Some(named_or_numbered(protocol, &PROTOCOLS)),
                channels,
            };
            (bytes, algorithm)
        }
        "Symmetric" => {
            let works = u64::from(number("nWorks").unwrap_or(1).max(1));
            let algorithm = Algorithm {
                algorithm: after("Kernel")?.to_owned(),
                protocol: None,
                channels: number("nchannels"),
            };
            (Bytes::Count(bytes / works), algorithm)
        }
        "Copy Engine" => (Bytes::Count(bytes), copy_engine_algorithm("copy_engine")),
        "Hierarchical CE" => (Bytes::Count(bytes), copy_engine_algorithm("hierarchical_copy_engine")),
        _ => return None,
    };
    Some(Choice { collective: name.map(str::to_ascii_lowercase), bytes, algorithm })
}

/// Returns the number of channels: 4 for `channel{Lo..Hi}={0..3}`.
fn parse_channels(word: &str) -> Option<u32> {
    let (low, high) = word.strip_prefix("channel{Lo..Hi}={")?.strip_suffix('}')?.split_once("..")?;
    let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
    high.checked_sub(low)?.checked_add(1)
}

/// Returns a name in lower case. An unknown number stays a number.
fn named_or_numbered(word: &str, names: &[&str]) -> String {
    match word.parse::<usize>() {
        Ok(number) => names.get(number).map_or_else(|| word.to_owned(), |name| (*name).to_owned()),
        Err(_) => word.to_ascii_lowercase(),
    }
}

/// NCCL's log as it grows.
#[derive(Debug)]
pub struct Log {
    source: LogFile,
    position: u64,
}

#[derive(Debug)]
enum LogFile {
    /// An anonymous file in memory, which ends with this process.
    Own(File),
    /// The user's file, created by NCCL at its first use.
    Users { path: PathBuf, file: Option<File> },
}

impl Log {
    /// Makes NCCL log its choices to this process, by setting `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and
    /// `NCCL_DEBUG_FILE`.
    ///
    /// Must be called in `main`, before NCCL is loaded and before any thread starts. Only the process of rank
    /// 0 needs it. The log does not survive an `exec`, so the variables must not survive it either: see
    /// [`own_variables`](super::own_variables).
    ///
    /// If the user has set `NCCL_DEBUG`, in the environment or in one of NCCL's configuration files, nothing
    /// is changed. The user's log is read if it contains choices and goes to a file.
    ///
    /// # Errors
    /// When NCCL's choices will not be known, with the reason. Nothing is changed then.
    pub fn start_log() -> anyhow::Result<Self> {
        let (log, variables) = Self::prepare_log(&settings::of_nccl(&settings::read_variable))?;
        settings::set_variables(variables)?;
        Ok(log)
    }

    /// Returns the log, and the variables it needs.
    pub(super) fn prepare_log(
        setting: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<(Self, Assignments)> {
        let (source, variables) = match setting("NCCL_DEBUG").filter(|level| !level.is_empty()) {
            Some(level) => (LogFile::Users { path: users_file(&level, setting)?, file: None }, Vec::new()),
            None => {
                let (file, path) = create_memory_file().context("making a place for NCCL's log")?;
                let values = ["INFO".to_owned(), "TUNING".to_owned(), path];
                let variables = VARIABLES.into_iter().zip(values).collect();
                (LogFile::Own(file), variables)
            }
        };
        Ok((Self { source, position: 0 }, variables))
    }

    /// Skips all lines so far. Call it before the first operation of each measurement, but after NCCL has
    /// started.
    pub fn skip_lines(&mut self) -> io::Result<()> {
        self.position = match self.open_file()? {
            Some(file) => file.metadata()?.len(),
            None => 0,
        };
        self.free_memory();
        Ok(())
    }

    /// Returns the choices since the last call of this or of [`skip_lines`](Self::skip_lines), with their
    /// numbers of lines, in the order of the last line. An operation has one line, or one for each GPU of
    /// this process.
    pub fn read_choices(&mut self) -> io::Result<Vec<(Choice, u64)>> {
        let mut choices = Vec::new();
        let mut position = self.position;
        if let Some(file) = self.open_file()? {
            if file.metadata()?.len() < position {
                // NCCL has truncated the file at its start.
                position = 0;
            }
            let mut reader = BufReader::new(file);
            reader.seek(SeekFrom::Start(position))?;
            let mut line = Vec::new();
            // An incomplete line is read again when it is complete.
            while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
                position += line.len() as u64;
                if let Some(choice) = parse_line(&String::from_utf8_lossy(&line)) {
                    count_choice(&mut choices, choice);
                }
                line.clear();
            }
        }
        self.position = position;
        self.free_memory();
        Ok(choices)
    }

    /// Returns the file, once it exists.
    fn open_file(&mut self) -> io::Result<Option<&File>> {
        match &mut self.source {
            LogFile::Own(file) => Ok(Some(file)),
            LogFile::Users { path, file } => {
                if file.is_none() {
                    *file = match File::open(path) {
                        Ok(opened) => Some(opened),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                        Err(error) => return Err(error),
                    };
                }
                Ok(file.as_ref())
            }
        }
    }

    /// Frees the memory of the part already read. NCCL continues to write behind it.
    fn free_memory(&self) {
        if let LogFile::Own(file) = &self.source
            && self.position > 0
        {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the kernel refuses, the log takes about 110 bytes of memory for each operation.
            let _ = rustix::fs::fallocate(file, flags, 0, self.position);
        }
    }
}

/// Creates a file in memory, with a path by which NCCL, in this process, can open it.
pub(super) fn create_memory_file() -> io::Result<(File, String)> {
    let file = File::from(rustix::fs::memfd_create(c"nccl-log", MemfdFlags::CLOEXEC)?);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (known, found) = (file.metadata()?, fs::metadata(&path)?);
    if (known.dev(), known.ino()) != (found.dev(), found.ino()) {
        return Err(io::Error::other(format!("{path} is a different file")));
    }
    Ok((file, path))
}

/// Returns the path of the user's log file, if it will contain NCCL's choices.
fn users_file(level: &str, setting: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<PathBuf> {
    if !["INFO", "ABORT", "TRACE"].iter().any(|name| name.eq_ignore_ascii_case(level)) {
        bail!(
            "NCCL_DEBUG={level} is set, but NCCL reports its choice only with INFO: unset it, or set it to \
             INFO"
        );
    }
    if !setting("NCCL_DEBUG_SUBSYS").is_some_and(|subsystems| has_tuning(&subsystems)) {
        bail!(
            "NCCL_DEBUG is set, but NCCL_DEBUG_SUBSYS lacks TUNING, and NCCL reports its choice there: add \
             TUNING, or unset NCCL_DEBUG"
        );
    }
    let place = |place: &str| {
        anyhow!(
            "NCCL_DEBUG is set, and NCCL's log goes to {place} and cannot be read there: set \
             NCCL_DEBUG_FILE to the path of a file, or unset NCCL_DEBUG"
        )
    };
    let pattern = setting("NCCL_DEBUG_FILE")
        .filter(|pattern| !pattern.is_empty())
        .ok_or_else(|| place("standard output"))?;
    let path = expand_path(&pattern, &collectives::world::host().name, std::process::id());
    match fs::metadata(&path) {
        Ok(found) if !found.is_file() => Err(place(&path)),
        _ => Ok(PathBuf::from(path)),
    }
}

/// Returns true when `NCCL_DEBUG_SUBSYS` includes NCCL's choices: `INIT,TUNING`, `ALL`, `^NET`.
fn has_tuning(subsystems: &str) -> bool {
    let (inverted, list) = subsystems.strip_prefix('^').map_or((false, subsystems), |list| (true, list));
    let named =
        list.split(',').any(|name| ["TUNING", "ALL"].iter().any(|known| known.eq_ignore_ascii_case(name)));
    named != inverted
}

/// Expands the path of NCCL's log: `%h` is the host's name up to its first dot, `%p` the process, `%%` a per
/// cent sign.
fn expand_path(pattern: &str, host: &str, process: u32) -> String {
    let mut path = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            path.push(letter);
            continue;
        }
        match letters.next() {
            Some('%') => path.push('%'),
            Some('h') => path.push_str(host.split('.').next().unwrap_or(host)),
            Some('p') => path.push_str(&process.to_string()),
            Some(other) => path.extend(['%', other]),
            None => path.push('%'),
        }
    }
    path
}

#[cfg(test)]
mod tests;
