//! Messages of different lengths, gathered by a backend that gathers equal ones.

use super::Error;
use crate::world::MAX_MESSAGE;

/// Gathers a message of every rank, in rank order. `all_gather` concatenates all ranks' parts, which have the
/// same length, not 0. Returns `None` if a rank's length is above [`MAX_MESSAGE`]: a failed operation of NCCL
/// leaves undefined bytes.
pub(super) fn gather_messages<E>(
    mine: &[u8],
    mut all_gather: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Option<Vec<Vec<u8>>>, E> {
    let lengths = all_gather(&(mine.len() as u64).to_le_bytes())?;
    let (lengths, _) = lengths.as_chunks();
    let lengths: Vec<usize> = lengths.iter().map(|length| u64::from_le_bytes(*length) as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest > MAX_MESSAGE {
        return Ok(None);
    }
    if longest == 0 {
        return Ok(Some(vec![Vec::new(); lengths.len()]));
    }
    let mut padded = mine.to_vec();
    padded.resize(longest, 0);
    let all = all_gather(&padded)?;
    let parts = all.chunks(longest).zip(lengths);
    Ok(Some(parts.map(|(part, length)| part.get(..length).unwrap_or(part).to_vec()).collect()))
}

/// The error where [`gather_messages`] returns `None`.
pub(super) fn make_length_error() -> Error {
    Error::Job(
        "all_gather_bytes: a rank's length is above the limit of a message: an operation has failed"
            .to_owned(),
    )
}
