//! Messages of different lengths, gathered by a backend that gathers equal ones.

/// Gathers a message of every rank, in rank order. `all_gather` concatenates all ranks' parts, which have the same length, not 0.
pub(super) fn gather_messages<E>(
    mine: &[u8],
    mut all_gather: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Vec<Vec<u8>>, E> {
    let lengths = all_gather(&(mine.len() as u64).to_le_bytes())?;
    let (lengths, _) = lengths.as_chunks();
    let lengths: Vec<usize> = lengths.iter().map(|length| u64::from_le_bytes(*length) as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(vec![Vec::new(); lengths.len()]);
    }
    let mut padded = mine.to_vec();
    padded.resize(longest, 0);
    let all = all_gather(&padded)?;
    let parts = all.chunks(longest).zip(lengths);
    Ok(parts.map(|(part, length)| part.get(..length).unwrap_or(part).to_vec()).collect())
}
