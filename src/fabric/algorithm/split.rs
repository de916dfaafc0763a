//! Cutting a range of elements into parts.

/// A range of elements, cut into parts whose sizes differ by at most one element. Positions are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    offset: usize,
    base: usize,
    extra: usize,
    parts: usize,
    element_size: usize,
}

impl Split {
    /// Cuts `count` elements, at `offset` bytes in a buffer, into `parts` parts.
    pub(crate) fn new(offset: usize, count: usize, parts: usize, element_size: usize) -> Self {
        Self { offset, base: count / parts, extra: count % parts, parts, element_size }
    }

    /// The fewest parts of at most `limit` bytes, but at least one part, and one element in each.
    pub(crate) fn into_segments(count: usize, element_size: usize, limit: usize) -> Self {
        if count.checked_mul(element_size).is_some_and(|len| len <= limit) {
            // The usual case, without a division.
            return Self { offset: 0, base: count, extra: 0, parts: 1, element_size };
        }
        let most = (limit / element_size).max(1);
        Self::new(0, count, count.div_ceil(most).max(1), element_size)
    }

    /// Number of parts.
    pub(crate) fn part_count(&self) -> usize {
        self.parts
    }

    /// Start of part `index`; for `parts`, end of the last one.
    pub(crate) fn part_start(&self, index: usize) -> usize {
        self.offset + (index * self.base + index.min(self.extra)) * self.element_size
    }

    /// Bytes of the parts `first..end` together.
    pub(crate) fn parts_bytes(&self, first: usize, end: usize) -> usize {
        self.part_start(end) - self.part_start(first)
    }

    /// Start of part `index`, and its bytes.
    pub(crate) fn part_span(&self, index: usize) -> (usize, usize) {
        (self.part_start(index), self.parts_bytes(index, index + 1))
    }

    /// All parts: start and bytes.
    pub(crate) fn part_spans(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.parts).map(move |index| self.part_span(index))
    }

    /// Elements of part `index`.
    pub(crate) fn element_count(&self, index: usize) -> usize {
        self.base + usize::from(index < self.extra)
    }

    /// Bytes of the largest part.
    pub(crate) fn largest_bytes(&self) -> usize {
        self.element_count(0) * self.element_size
    }

    /// Part `index`, cut again.
    pub(crate) fn split_part(&self, index: usize, parts: usize) -> Self {
        Self::new(self.part_start(index), self.element_count(index), parts, self.element_size)
    }
}
