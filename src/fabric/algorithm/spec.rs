//! Parameters of schedules.

use super::{Pipeline, RankPosition, Split};

/// One rank's place among the others, and the vector or block moved by a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) at: RankPosition,
    /// Elements of the vector, or of each rank's block.
    pub(crate) count: usize,
    pub(crate) element_size: usize,
    /// Largest segment, in bytes.
    pub(crate) segment: usize,
    /// Largest number of segments in flight.
    pub(crate) in_flight: usize,
}

impl Spec {
    /// The vector or block, cut into segments.
    pub(super) fn vector_segments(&self) -> Split {
        Split::into_segments(self.count, self.element_size, self.segment)
    }

    pub(super) fn segment_pipeline(&self) -> Pipeline {
        Pipeline { segments: self.vector_segments().part_count(), in_flight: self.in_flight }
    }

    /// Bytes of the vector or block.
    pub(super) fn byte_count(&self) -> usize {
        self.count * self.element_size
    }
}
