//! The elements of a rank's two buffers that one operation uses.

use std::ops::Range;

use super::{BufferSizes, RankWork};
use record::Placement;

/// The elements that one operation uses, counted from the beginning of a buffer.
///
/// Operations of a loop move on through the buffers, so that caches do not flatter small sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operands {
    pub(super) placement: Placement,
    /// Elements of the send buffer; in place, of the receive buffer.
    pub(super) input: Range<usize>,
    pub(super) result: Range<usize>,
}

impl Operands {
    /// The operands of operation `index` of a loop, `unaligned` elements behind the beginning of the buffers.
    pub(super) fn new(work: &RankWork, index: usize, sizes: &BufferSizes, unaligned: usize) -> Self {
        let (size, counts) = (work.data_type.size(), &work.counts);
        let start = |buffer: usize, step: usize| unaligned + buffer_offset(index, step, buffer) / size;
        let receive = start(sizes.receive, work.reported_bytes());
        let input = match work.placement {
            Placement::InPlace => receive + work.in_place_input(),
            // A send buffer that is smaller than the largest size moves on by the length of the input.
            Placement::OutOfPlace if sizes.send >= sizes.receive => start(sizes.send, work.reported_bytes()),
            Placement::OutOfPlace => start(sizes.send, counts.send * size),
        };
        let result = receive + work.result_start();
        Self {
            placement: work.placement,
            input: input..input + counts.send,
            result: result..result + counts.receive,
        }
    }

    /// The one range of an operation in place: input and result.
    pub(super) fn whole_range(&self) -> Range<usize> {
        self.input.start.min(self.result.start)..self.input.end.max(self.result.end)
    }

    /// The range of the receive buffer that is cleared before the input is written.
    pub(super) fn cleared_range(&self) -> Range<usize> {
        match self.placement {
            Placement::OutOfPlace => self.result.clone(),
            Placement::InPlace => self.whole_range(),
        }
    }
}

/// Offset of operation `index` of a loop in a buffer of `buffer` bytes: `step` bytes behind the previous
/// operation, or the beginning where there is no room for another step.
fn buffer_offset(index: usize, step: usize, buffer: usize) -> usize {
    match step {
        0 => 0,
        step => step * (index % (buffer / step).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use collectives::DataType;

    use super::*;
    use crate::collective::{Collective, Counts, Participant};
    use crate::data::Op;
    use crate::data::traffic::{Pattern, Traffic};

    /// Bytes of the largest element.
    const LARGEST_ELEMENT: usize = 8;

    fn has_no_form_in_place(work: &RankWork) -> bool {
        work.collective == Collective::Hypercube || !work.collective.has_in_place()
    }

    fn work(
        collective: Collective,
        bytes: usize,
        data_type: DataType,
        rank: usize,
        ranks: usize,
    ) -> RankWork {
        let participant = Participant { rank, ranks, root: collective.has_root().then_some(ranks - 1) };
        let traffic = (collective == Collective::AllToAllV)
            .then(|| Arc::new(Traffic::new(&Pattern::Spread(1.0), bytes as u64, data_type, ranks)));
        let counts = Counts::new(collective, bytes as u64, data_type, participant, traffic.as_deref());
        let (op, placement) = (Some(Op::Sum), Placement::OutOfPlace);
        RankWork { collective, data_type, op, participant, placement, counts, traffic }
    }

    /// Calls `look` with every collective and placement, the first operations of a loop, several ranks,
    /// sizes, types and shifts.
    fn each(mut look: impl FnMut(&RankWork, &Operands, &BufferSizes, usize)) {
        for collective in Collective::ALL {
            for ranks in [1, 2, 3, 8].into_iter().filter(|&ranks| collective.runs_over(ranks)) {
                for (rank, bytes, unaligned) in
                    (0..ranks).flat_map(|rank| [(rank, 0, 0), (rank, 8, 1), (rank, 4000, 3), (rank, 4096, 0)])
                {
                    for data_type in [DataType::Int8, DataType::Float16, DataType::Float64] {
                        let work = work(collective, bytes, data_type, rank, ranks);
                        let sent = work.counts.send * data_type.size();
                        for (size, send) in [(4096, 4096), (9000, 9000), (4096, sent)] {
                            let buffer_sizes = BufferSizes { send, receive: size };
                            for placement in [Placement::OutOfPlace, Placement::InPlace] {
                                let work = RankWork { placement, ..work.clone() };
                                for index in 0..5 {
                                    let operands = Operands::new(&work, index, &buffer_sizes, unaligned);
                                    look(&work, &operands, &buffer_sizes, unaligned);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn parts_lie_within_the_buffers() {
        each(|work, operands, buffer_sizes, unaligned| {
            let elements = |room: usize| (room + unaligned * LARGEST_ELEMENT) / work.data_type.size();
            let input_room = if operands.placement == Placement::InPlace {
                buffer_sizes.receive
            } else {
                buffer_sizes.send
            };
            assert!(operands.input.end <= elements(input_room), "{work:?} {operands:?} {buffer_sizes:?}");
            assert!(
                operands.result.end <= elements(buffer_sizes.receive),
                "{work:?} {operands:?} {buffer_sizes:?}"
            );
            assert!(unaligned <= operands.input.start && unaligned <= operands.result.start, "{operands:?}");
        });
    }

    /// The one buffer has the input and the result where the library's methods in place have them.
    #[test]
    fn parts_in_place_are_where_the_methods_in_place_look_for_them() {
        each(|work, operands, _, _| {
            if operands.placement == Placement::OutOfPlace || has_no_form_in_place(work) {
                return;
            }
            let whole = operands.whole_range();
            let part = whole.len() / work.participant.ranks;
            let own = whole.start + work.participant.rank * part;
            let (input, result) = match work.collective {
                Collective::AllGather | Collective::Gather => (own..own + part, whole.clone()),
                Collective::ReduceScatter | Collective::Scatter => (whole.clone(), own..own + part),
                _ => (whole.clone(), whole.clone()),
            };
            assert_eq!((&operands.input, &operands.result), (&input, &result), "{work:?}");
        });
    }

    #[test]
    fn operations_move_on_through_the_buffers() {
        let work = work(Collective::AllGather, 64, DataType::Float32, 1, 2);
        let starts = |placement, send| {
            let buffer_sizes = BufferSizes { send, receive: 200 };
            let work = RankWork { placement, ..work.clone() };
            let operands = (0..4).map(|index| Operands::new(&work, index, &buffer_sizes, 2));
            operands.map(|operands| (operands.input.start, operands.result.start)).collect::<Vec<_>>()
        };
        assert_eq!(starts(Placement::OutOfPlace, 200), [(2, 2), (18, 18), (34, 34), (2, 2)]);
        assert_eq!(starts(Placement::InPlace, 200), [(10, 2), (26, 18), (42, 34), (10, 2)]);
        // With a smaller send buffer, the input moves on by what is sent.
        assert_eq!(starts(Placement::OutOfPlace, 64), [(2, 2), (10, 18), (2, 34), (10, 2)]);
    }
}
