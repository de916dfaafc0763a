//! Search for many words at once in a line.
//!
//! Lines are sampled: six bytes are looked up at the positions 0, 4, 8, ... The table contains the four
//! groups of six in nine consecutive bytes of each word, so each occurrence of the word contains a sample of
//! the table. Most samples are rejected by one bit of a 16 KiB filter. This is several times faster than an
//! automaton over every byte.

use std::collections::HashMap;

/// Bytes of a sample.
const SAMPLE: usize = 6;

/// Distance between samples.
const STEP: usize = 4;

/// Shortest word.
pub(super) const SHORTEST: usize = SAMPLE + STEP - 1;

/// Bits of a hash.
const HASH_BITS: u32 = 17;

/// Bits of a hash that select a bucket of samples.
const BUCKET_BITS: u32 = 12;

/// The bytes of a sample in a number.
const MASK: u64 = (1 << (8 * SAMPLE)) - 1;

/// Blocks of 64 bits in the filter.
const BLOCKS: usize = 1 << (HASH_BITS - 6);

/// Words, each with the number of its owner.
#[derive(Debug)]
pub(super) struct Words {
    words: Vec<(Box<[u8]>, usize)>,
    /// Bits of the hashes of all samples.
    filter: Box<[u64; BLOCKS]>,
    /// Samples in the order of their hashes, each with its word and its position in the word.
    samples: Vec<(u64, usize, usize)>,
    /// The first sample of each bucket, and the end of the last one.
    buckets: Vec<usize>,
}

impl Words {
    /// Prepares the search. Words with fewer than [`SHORTEST`] bytes are never found.
    pub(super) fn new<'a>(words: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let words: Vec<(Box<[u8]>, usize)> = words
            .filter(|(word, _)| word.len() >= SHORTEST)
            .map(|(word, owner)| (word.as_bytes().into(), owner))
            .collect();
        // Groups that are frequent in words are also frequent in lines.
        let mut frequency: HashMap<u64, usize> = HashMap::new();
        for group in words.iter().flat_map(|(word, _)| word.windows(SAMPLE)) {
            *frequency.entry(sample_of_group(group)).or_default() += 1;
        }
        let mut samples = Vec::new();
        for (index, (word, _)) in words.iter().enumerate() {
            let cost = |start: &usize| -> usize {
                word[*start..start + SHORTEST]
                    .windows(SAMPLE)
                    .map(|group| frequency[&sample_of_group(group)])
                    .sum()
            };
            let start = (0..=word.len() - SHORTEST).min_by_key(cost).unwrap_or(0);
            for position in start..start + STEP {
                samples.push((sample_of_group(&word[position..position + SAMPLE]), index, position));
            }
        }
        samples.sort_unstable_by_key(|&(value, index, _)| (hash_of_sample(value), value, index));
        let first_of = |bucket| samples.partition_point(|&(value, ..)| bucket_of_sample(value) < bucket);
        let buckets = (0..=1 << BUCKET_BITS).map(first_of).collect();
        let mut filter = Box::new([0_u64; BLOCKS]);
        for &(value, ..) in &samples {
            let (block, bit) = place_in_filter(value);
            filter[block] |= bit;
        }
        Self { words, filter, samples, buckets }
    }

    /// Calls a function with the owner of every word in the line, possibly several times for a repeated word.
    pub(super) fn find_all(&self, line: &[u8], mut found: impl FnMut(usize)) {
        let mut look = |at: usize, value: u64| {
            let (block, bit) = place_in_filter(value);
            if self.filter[block] & bit != 0 {
                self.confirm_words(line, value, at, &mut found);
            }
        };
        let mut at = 0;
        while let Some(group) = line[at..].first_chunk::<8>() {
            look(at, u64::from_le_bytes(*group) & MASK);
            at += STEP;
        }
        if let Some(group) = line[at..].get(..SAMPLE) {
            look(at, sample_of_group(group));
        }
    }

    /// Compares the words with this sample with the line around it.
    #[cold]
    fn confirm_words(&self, line: &[u8], value: u64, at: usize, found: &mut impl FnMut(usize)) {
        let bucket = bucket_of_sample(value);
        let samples = &self.samples[self.buckets[bucket]..self.buckets[bucket + 1]];
        for &(_, index, position) in samples.iter().filter(|&&(other, ..)| other == value) {
            let (word, owner) = &self.words[index];
            if at.checked_sub(position).is_some_and(|start| line[start..].starts_with(word)) {
                found(*owner);
            }
        }
    }
}

impl Default for Words {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

/// Returns the number of a group of six bytes. The first byte is the lowest.
fn sample_of_group(group: &[u8]) -> u64 {
    group.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn hash_of_sample(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HASH_BITS)
}

/// Returns the block and bit of a sample in the filter.
fn place_in_filter(value: u64) -> (usize, u64) {
    let hash = hash_of_sample(value);
    ((hash >> 6) as usize, 1 << (hash & 63))
}

fn bucket_of_sample(value: u64) -> usize {
    (hash_of_sample(value) >> (HASH_BITS - BUCKET_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[&str], line: &str) -> Vec<usize> {
        let index = Words::new(words.iter().enumerate().map(|(owner, &word)| (word, owner)));
        let mut owners = Vec::new();
        index.find_all(line.as_bytes(), |owner| owners.push(owner));
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    #[test]
    fn a_word_is_found_at_every_position_of_a_line() {
        let words = ["Connection closed by remote peer", ", retrying", "closed by", "peer_is_9", "123456789"];
        for (owner, word) in words.iter().enumerate() {
            for before in 0..9 {
                for after in 0..9 {
                    let line = format!("{}{word}{}", "x".repeat(before), "y".repeat(after));
                    assert!(found(&words, &line).contains(&owner), "{line}");
                }
            }
        }
    }

    #[test]
    fn words_inside_of_others_and_equal_words_are_all_found() {
        assert_eq!(
            found(&["remote peer", "by remote peer", "remote peer"], "closed by remote peer."),
            [0, 1, 2]
        );
    }

    #[test]
    fn parts_of_words_other_letters_and_short_lines_are_not_found() {
        for line in
            ["", "a", "retrying", ", retryin", ", Retrying", ", retry ing", ",retrying", ", ret", "ying"]
        {
            assert_eq!(found(&[", retrying"], line), [0; 0], "{line}");
        }
        assert_eq!(found(&[], ", retrying"), [0; 0]);
    }
}
