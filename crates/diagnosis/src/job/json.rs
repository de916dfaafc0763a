//! Answers of RAS in JSON (NCCL 2.28.7 and later).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

use super::malformed::Malformed;
use super::status::{
    Absence, Format, Identity, JobCommunicator, MissingRank, Processes, Rank, RankPlace, State, Status,
    error_name,
};

/// Reads an answer in JSON.
///
/// NCCL 2.28.7 to 2.28.9 omit the comma after `nvml_dev` of a missing rank. It is added to an otherwise
/// unreadable answer.
///
/// # Errors
/// The first place outside JSON, or the missing field.
pub fn parse_json(text: &str) -> Result<Status, Malformed> {
    let (document, repaired) = match serde_json::from_str::<Document>(text) {
        Ok(document) => (document, false),
        Err(error) => match add_missing_comma(text) {
            Cow::Borrowed(_) => return Err(Malformed::new(error)),
            Cow::Owned(text) => (serde_json::from_str(&text).map_err(Malformed::new)?, true),
        },
    };
    let mut communicators =
        document.communicators.into_iter().map(convert_communicator).collect::<Result<Vec<_>, _>>()?;
    communicators.sort_by(|one, other| one.identity.cmp(&other.identity));
    Ok(Status {
        nccl_version: document.nccl_version,
        cuda_runtime: document.cuda_runtime_version,
        cuda_driver: document.cuda_driver_version,
        timestamp: document.timestamp,
        format: Format::Json,
        repaired,
        communicators,
        kinds: Vec::new(),
        silent: Processes::default(),
        dead: Processes::default(),
        collection_s: document.ras.collection_time_sec,
        timeouts: document.ras.timeouts_count,
    })
}

/// Adds the comma between `nvml_dev` and `status`.
fn add_missing_comma(text: &str) -> Cow<'_, str> {
    #[expect(clippy::unwrap_used, reason = "a constant pattern, which a test compiles")]
    static MISSING_COMMA: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"("nvml_dev":\s*-?\d+)(\s*"status")"#).unwrap());
    MISSING_COMMA.replace_all(text, "$1,$2")
}

fn convert_communicator(entry: CommunicatorEntry) -> Result<JobCommunicator, Malformed> {
    let hash = parse_hexadecimal(&entry.hash)
        .ok_or_else(|| Malformed::new(format!("`{}` is not a hash of a communicator", entry.hash)))?;
    let mut ranks: Vec<Rank> = entry.ranks.into_iter().map(convert_rank).collect();
    ranks.sort_by_key(|rank| rank.rank);
    let mut missing: Vec<MissingRank> = entry.missing_ranks.into_iter().map(missing_rank).collect();
    missing.sort_by_key(|rank| rank.rank);
    let missing_count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
    let identity = Identity { hash, secondary: entry.secondary_hash };
    Ok(JobCommunicator { ranks, missing, missing_count, ..JobCommunicator::new(identity, entry.size) })
}

fn convert_rank(entry: RankEntry) -> Rank {
    let status = entry.status;
    let state = match status.init_state {
        _ if status.abort_flag => State::Abort,
        _ if status.finalize_called || status.destroy_flag => State::Finalize,
        0 => State::Running,
        _ => State::Init,
    };
    Rank {
        rank: entry.rank,
        place: Some(entry.place.into()),
        state: Some(state),
        init_error: error_name(status.init_state),
        async_error: error_name(status.async_error),
        counts: entry.collective_counts,
    }
}

fn missing_rank(entry: MissingRankEntry) -> MissingRank {
    let absence = match entry.status {
        MissingStatus { considered_dead: true, .. } => Absence::Dead,
        MissingStatus { unresponsive: true, .. } => Absence::Unresponsive,
        MissingStatus { .. } => Absence::NotAMember,
    };
    MissingRank { rank: entry.rank, place: Some(entry.place.into()), absence }
}

/// Reads a hash with or without `0x`.
pub fn parse_hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if all_digits { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[derive(Deserialize)]
struct Document {
    nccl_version: String,
    cuda_runtime_version: Option<i64>,
    cuda_driver_version: Option<i64>,
    timestamp: Option<String>,
    communicators: Vec<CommunicatorEntry>,
    #[serde(default)]
    ras: CollectionEntry,
}

#[derive(Default, Deserialize)]
struct CollectionEntry {
    collection_time_sec: Option<f64>,
    #[serde(default)]
    timeouts_count: u64,
}

#[derive(Deserialize)]
struct CommunicatorEntry {
    hash: String,
    #[serde(default)]
    secondary_hash: String,
    size: u32,
    ranks: Vec<RankEntry>,
    #[serde(default)]
    missing_ranks: Vec<MissingRankEntry>,
}

#[derive(Deserialize)]
struct PlaceEntry {
    host: String,
    pid: i64,
    cuda_dev: i64,
    nvml_dev: i64,
}

impl From<PlaceEntry> for RankPlace {
    fn from(entry: PlaceEntry) -> Self {
        Self { host: entry.host, pid: entry.pid, cuda_dev: entry.cuda_dev, nvml_dev: entry.nvml_dev }
    }
}

#[derive(Deserialize)]
struct RankEntry {
    rank: u32,
    #[serde(flatten)]
    place: PlaceEntry,
    status: RankStatus,
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct RankStatus {
    init_state: i64,
    async_error: i64,
    #[serde(default)]
    finalize_called: bool,
    #[serde(default)]
    destroy_flag: bool,
    #[serde(default)]
    abort_flag: bool,
}

#[derive(Deserialize)]
struct MissingRankEntry {
    rank: u32,
    #[serde(flatten)]
    place: PlaceEntry,
    status: MissingStatus,
}

#[derive(Deserialize)]
struct MissingStatus {
    #[serde(default)]
    unresponsive: bool,
    #[serde(default)]
    considered_dead: bool,
}
