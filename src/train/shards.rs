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
    pub(super) fn total(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of elements of every shard, with padding.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of elements of all shards, with padding.
    pub(super) fn padded(&self) -> usize {
        self.len * self.ranks
    }

    /// The elements of this rank's shard, without padding; empty at the end if there are fewer elements than
    /// ranks.
    pub(super) fn own(&self) -> Range<usize> {
        let clip = |element: usize| element.min(self.total());
        clip(self.rank * self.len)..clip((self.rank + 1) * self.len)
    }

    /// All elements of a parameter.
    pub(super) fn parameter(&self, index: usize) -> Range<usize> {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or_else(|| self.total());
        at(index)..at(index + 1)
    }

    /// The part of a parameter in this rank's shard, if any: its elements of the parameter, and its place in
    /// the shard.
    pub(super) fn part(&self, index: usize) -> Option<(Range<usize>, usize)> {
        let (own, parameter) = (self.own(), self.parameter(index));
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
                assert_eq!(shards.len(), total.div_ceil(ranks), "{lens:?} on {ranks}");
                assert!(shards.padded() >= total && shards.padded() < total + ranks);
                assert_eq!(shards.total(), total);
                assert!(shards.own().len() <= shards.len());
                let mut place = 0;
                for index in 0..lens.len() {
                    let Some((elements, at)) = shards.part(index) else { continue };
                    assert_eq!(at, place, "the parts follow each other");
                    place += elements.len();
                    covered.extend(elements.map(|element| (index, element)));
                }
                assert_eq!(place, shards.own().len());
            }
            let all: Vec<_> = (0..lens.len()).flat_map(|i| (0..lens[i]).map(move |e| (i, e))).collect();
            assert_eq!(covered, all, "{lens:?} on {ranks}");
        }
    }

    #[test]
    fn a_parameter_is_cut_at_the_boundary() {
        let shards = Shards::new([4, 6], 1, 3);
        assert_eq!((shards.len(), shards.own()), (4, 4..8));
        assert_eq!((shards.part(0), shards.part(1)), (None, Some((0..4, 0))));
        let last = Shards::new([4, 6], 2, 3);
        assert_eq!((last.own(), last.part(1), last.parameter(1)), (8..10, Some((4..6, 0)), 4..10));
    }
}
