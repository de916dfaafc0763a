//! Shards of parameters that are laid out one after the other.

use std::ops::Range;

/// One rank's shard of all parameters, which follow each other in their order and are padded to a multiple of
/// the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shards {
    /// The first element of each parameter, and the number of all elements.
    starts: Vec<usize>,
    /// Elements of a shard, with padding.
    len: usize,
    rank: usize,
    ranks: usize,
}

impl Shards {
    pub(super) fn new(lens: impl IntoIterator<Item = usize>, rank: usize, ranks: usize) -> Self {
        let mut starts = vec![0];
        let mut total = 0;
        for len in lens {
            total += len;
            starts.push(total);
        }
        Self { starts, len: total.div_ceil(ranks.max(1)), rank, ranks }
    }

    /// Number of elements of all parameters.
    pub(super) fn total_len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of elements of every shard, with padding.
    pub(super) fn shard_len(&self) -> usize {
        self.len
    }

    /// Number of elements of all shards, with padding.
    pub(super) fn padded_len(&self) -> usize {
        self.len * self.ranks
    }

    /// The elements of this rank's shard, without padding; empty at the end if there are fewer elements than
    /// ranks.
    pub(super) fn own_range(&self) -> Range<usize> {
        let clip = |element: usize| element.min(self.total_len());
        clip(self.rank * self.len)..clip((self.rank + 1) * self.len)
    }

    /// All elements of a parameter.
    pub(super) fn parameter_range(&self, index: usize) -> Range<usize> {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or_else(|| self.total_len());
        at(index)..at(index + 1)
    }

    /// The part of a parameter in this rank's shard, if any: its elements of the parameter, and its place in
    /// the shard.
    pub(super) fn parameter_part(&self, index: usize) -> Option<(Range<usize>, usize)> {
        let (own, parameter) = (self.own_range(), self.parameter_range(index));
        let (start, end) = (own.start.max(parameter.start), own.end.min(parameter.end));
        (start < end).then(|| (start - parameter.start..end - parameter.start, start - own.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_element_once_in_order() {
        for (lens, ranks) in [
            (vec![7, 1, 0, 12], 3),
            (vec![7, 1, 0, 12], 1),
            (vec![1, 1], 4),
            (vec![5], 4),
            (vec![], 2),
            (vec![0, 0], 2),
        ] {
            let total: usize = lens.iter().sum();
            let mut covered = Vec::new();
            for rank in 0..ranks {
                let shards = Shards::new(lens.iter().copied(), rank, ranks);
                assert_eq!(shards.shard_len(), total.div_ceil(ranks), "{lens:?} on {ranks}");
                assert!(shards.padded_len() >= total && shards.padded_len() < total + ranks);
                assert_eq!(shards.total_len(), total);
                assert!(shards.own_range().len() <= shards.shard_len());
                let mut place = 0;
                for index in 0..lens.len() {
                    let Some((elements, at)) = shards.parameter_part(index) else { continue };
                    assert_eq!(at, place, "the parts follow each other");
                    place += elements.len();
                    covered.extend(elements.map(|element| (index, element)));
                }
                assert_eq!(place, shards.own_range().len());
            }
            let all: Vec<_> = (0..lens.len()).flat_map(|i| (0..lens[i]).map(move |e| (i, e))).collect();
            assert_eq!(covered, all, "{lens:?} on {ranks}");
        }
    }

    #[test]
    fn a_parameter_is_cut_at_the_boundary() {
        let shards = Shards::new([4, 6], 1, 3);
        assert_eq!((shards.shard_len(), shards.own_range()), (4, 4..8));
        assert_eq!((shards.parameter_part(0), shards.parameter_part(1)), (None, Some((0..4, 0))));
        let last = Shards::new([4, 6], 2, 3);
        assert_eq!(
            (last.own_range(), last.parameter_part(1), last.parameter_range(1)),
            (8..10, Some((4..6, 0)), 4..10)
        );
    }
}
