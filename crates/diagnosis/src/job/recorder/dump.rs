//! Flight recorder dumps of PyTorch: one file per rank, as pickle or JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::pickle;
use crate::input;
use serde_json::error::Category;

use crate::job::malformed::Malformed;

/// Size limit of a file, in bytes.
pub const LARGEST_FILE: u64 = 1 << 30;

/// The dump of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Dump {
    /// Version of the form.
    pub version: String,
    /// Version of NCCL.
    #[serde(default, alias = "nccl_version")]
    pub comm_lib_version: Option<String>,
    /// The process groups by name.
    #[serde(default)]
    pub pg_config: BTreeMap<String, ProcessGroup>,
    /// Progress of the process groups, by their number in this process.
    #[serde(default)]
    pub pg_status: BTreeMap<String, GroupProgress>,
    /// The operations, oldest first. JSON without operations lacks them.
    #[serde(default)]
    pub entries: Vec<CollectiveEntry>,
}

/// A process group.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProcessGroup {
    /// Description: `default_pg`.
    #[serde(default)]
    pub desc: String,
    /// The ranks: `[0, 1]`.
    #[serde(default)]
    pub ranks: String,
}

/// Progress of a process group in one rank: sequence numbers of collectives, -1 for none.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct GroupProgress {
    /// The last one called by the program.
    #[serde(default = "none", deserialize_with = "number")]
    pub last_enqueued_collective: i64,
    /// The last one known to be complete.
    #[serde(default = "none", deserialize_with = "number")]
    pub last_completed_collective: i64,
}

fn none() -> i64 {
    -1
}

/// Reads a number. In JSON it is a text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberOrText {
        Number(i64),
        Text(String),
    }

    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(number) => Ok(number),
        NumberOrText::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

/// An operation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CollectiveEntry {
    /// Number of the record, from 0. Old records are overwritten.
    #[serde(default)]
    pub record_id: u64,
    /// Number of the process group in this process.
    #[serde(default)]
    pub pg_id: i64,
    /// Name and description of the process group.
    pub process_group: Vec<String>,
    /// Sequence number among the collectives of the group.
    pub collective_seq_id: i64,
    /// Name: `nccl:all_reduce`.
    pub profiling_name: String,
    /// Dimensions of each input.
    #[serde(default)]
    pub input_sizes: Vec<Vec<i64>>,
    /// Data types of the inputs.
    #[serde(default)]
    pub input_dtypes: Vec<String>,
    /// State.
    pub state: EntryState,
    /// True for sends and receives.
    #[serde(default)]
    pub is_p2p: bool,
    /// Place in the program, outside of PyTorch: `train.py:16`.
    #[serde(default, rename = "frames", deserialize_with = "location")]
    pub location: Option<String>,
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", rename_all = "snake_case")]
pub enum EntryState {
    /// Called by the program. This state includes operations on the GPU, unless the start is recorded
    /// (`TORCH_NCCL_ENABLE_TIMING`).
    Scheduled,
    /// Runs on the GPU.
    Started,
    /// Complete.
    Completed,
    /// An unknown state.
    Other,
}

impl From<String> for EntryState {
    fn from(name: String) -> Self {
        match name.as_str() {
            "scheduled" => Self::Scheduled,
            "started" => Self::Started,
            "completed" => Self::Completed,
            _ => Self::Other,
        }
    }
}

/// Reads the dump of a rank.
///
/// # Errors
/// The reason why the file cannot be read.
pub fn read_dump(path: &Path) -> Result<Dump, Malformed> {
    parse_dump(&input::read_regular_file(path, LARGEST_FILE).map_err(Malformed::new)?)
}

/// Reads a dump from bytes.
///
/// # Errors
/// The reason why it cannot be read.
pub fn parse_dump(bytes: &[u8]) -> Result<Dump, Malformed> {
    if pickle::is_pickle(bytes) {
        return pickle::read_pickle(bytes);
    }
    if bytes.is_empty() {
        return Err(Malformed::new("the file is empty: the process ended while it wrote the dump"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let expected = "neither a pickle nor JSON of the flight recorder";
        Malformed::new(match error.classify() {
            // A place in a file of another kind does not help.
            Category::Syntax => {
                format!("{expected}: name a file that PyTorch wrote at TORCH_FR_DUMP_TEMP_FILE")
            }
            _ => format!("{expected}: {error}"),
        })
    })
}

/// Finds the rank in the name of a dump: the number after `rank`, else the last number.
///
/// PyTorch appends the rank to `TORCH_FR_DUMP_TEMP_FILE` (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` in older
/// versions).
pub fn rank_of(path: &Path) -> Option<u32> {
    #[expect(clippy::unwrap_used, reason = "constant patterns, which the tests compile")]
    static NAMED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?i)rank[_.-]?(\d+)").unwrap());
    #[expect(clippy::unwrap_used, reason = "constant patterns, which the tests compile")]
    static LAST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\d+)\D*$").unwrap());
    let name = path.file_name()?.to_str()?;
    let found = NAMED.captures(name).or_else(|| LAST.captures(name))?;
    found[1].parse().ok()
}

/// Returns the ranks of a group, from `[0, 1]`.
pub(super) fn parse_ranks(text: &str) -> Vec<u32> {
    text.split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Keeps the first frame outside of PyTorch.
fn location<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct FirstFrame;

    #[derive(Deserialize)]
    struct Frame {
        #[serde(default)]
        filename: String,
        #[serde(default)]
        line: i64,
    }

    impl<'de> Visitor<'de> for FirstFrame {
        type Value = Option<String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("the frames of a call")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut frames: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(frame) = frames.next_element::<Frame>()? {
                let is_library = frame.filename.contains("/torch/") || frame.filename.is_empty();
                if found.is_none() && !is_library {
                    found = Some(format!("{}:{}", frame.filename, frame.line));
                }
            }
            Ok(found)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    deserializer.deserialize_any(FirstFrame)
}
