//! A rank's two buffers, and the parts of them that operations work on.

use std::ops::Range;
use std::sync::Arc;

use collectives::Element;
use collectives::nccl::{
    self, Communicator, DeviceBuffer as _, Memory, MemoryView, MemoryViewMut, Registration, Window,
    WindowKind,
};

use super::operation::{OperationBuffers, PeerExchange};
use crate::backend::{BufferSizes, Work, shift};
use crate::collective::{Collective, Layout as _};
use record::Placement;

/// Bytes of the largest element.
const LARGEST_ELEMENT: usize = 8;

/// A rank's send and receive buffer. Nothing else uses their memory, which is zeroed when it is made; all work on it is on one
/// stream, that of the communicator.
#[derive(Debug)]
pub(super) struct RankMemory {
    send: Memory,
    receive: Memory,
    buffer_sizes: BufferSizes,
    /// Elements by which parts are shifted.
    unaligned: usize,
    known: BufferRegistration,
}

/// The buffers as NCCL knows them, until this is dropped.
#[derive(Debug)]
enum BufferRegistration {
    Not,
    Registered { _guards: [Registration; 2], note: Option<String> },
    Windows { _guards: [Window; 2], active: bool },
}

/// Where one operation works: elements of its type, counted from the beginning of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    placement: Placement,
    /// Of the send buffer; in place of the receive buffer.
    input: Range<usize>,
    /// Of the receive buffer.
    result: Range<usize>,
}

impl Parts {
    /// The parts of operation `index` of a loop.
    pub(super) fn new(
        work: &Work,
        placement: Placement,
        index: usize,
        buffer_sizes: &BufferSizes,
        unaligned: usize,
    ) -> Self {
        let (size, counts, rank) = (work.data_type.size(), &work.counts, work.participant.rank);
        let start = |room: usize, step: usize| unaligned + shift(index, step, room) / size;
        let receive = start(buffer_sizes.receive, work.bytes());
        let input = match placement {
            Placement::InPlace => receive + work.collective.in_place_input(counts, rank),
            // A send buffer that has no room for the largest size is gone through by what is sent.
            Placement::OutOfPlace if buffer_sizes.send >= buffer_sizes.size => {
                start(buffer_sizes.send, work.bytes())
            }
            Placement::OutOfPlace => start(buffer_sizes.send, counts.send * size),
        };
        let result = receive + work.result_start(placement);
        Self { placement, input: input..input + counts.send, result: result..result + counts.receive }
    }

    /// The one buffer of an operation in place.
    fn whole(&self) -> Range<usize> {
        self.input.start.min(self.result.start)..self.input.end.max(self.result.end)
    }
}

/// Whether buffers of an operation overlap: a hypercube's exchanges work on one buffer, and what has no form in place is
/// measured in one buffer all the same.
pub(super) fn overlaps(work: &Work, placement: Placement) -> bool {
    work.collective == Collective::Hypercube
        || placement == Placement::InPlace && !work.collective.has_in_place()
}

impl RankMemory {
    pub(super) fn alloc(
        communicator: &Communicator,
        buffer_sizes: BufferSizes,
        unaligned: usize,
    ) -> Result<Self, nccl::Error> {
        let alloc = |room: usize| {
            let bytes = room + unaligned * LARGEST_ELEMENT;
            Memory::alloc(communicator.library(), communicator.stream(), bytes)
        };
        Ok(Self {
            send: alloc(buffer_sizes.send)?,
            receive: alloc(buffer_sizes.receive)?,
            buffer_sizes,
            unaligned,
            known: BufferRegistration::Not,
        })
    }

    /// Makes NCCL know both buffers.
    pub(super) fn register(
        &mut self,
        communicator: &Communicator,
        how: record::Registration,
    ) -> Result<(), nccl::Error> {
        let loaded = communicator.library().version();
        let windows = loaded >= nccl::Version::new(2, 27, 0);
        let (send, receive) = (&self.send, &self.receive);
        self.known = match how {
            record::Registration::None => BufferRegistration::Not,
            record::Registration::Symmetric if windows => {
                let send = communicator.window(send, WindowKind::Symmetric)?;
                let receive = communicator.window(receive, WindowKind::Symmetric)?;
                let active = send.is_active() && receive.is_active();
                BufferRegistration::Windows { _guards: [send, receive], active }
            }
            asked => {
                let note = format!(
                    "-R 2 needs NCCL 2.27, and {loaded} is loaded: the buffers are registered as with -R 1"
                );
                let note = (asked == record::Registration::Symmetric).then_some(note);
                let _guards = [communicator.register(send)?, communicator.register(receive)?];
                BufferRegistration::Registered { _guards, note }
            }
        };
        Ok(())
    }

    /// What was not possible of what was asked for.
    pub(super) fn note(&self) -> Option<String> {
        match &self.known {
            BufferRegistration::Registered { note, .. } => note.clone(),
            BufferRegistration::Windows { active: false, .. } => {
                Some("NCCL makes no symmetric windows here: -R 2 has no effect".to_owned())
            }
            BufferRegistration::Not | BufferRegistration::Windows { .. } => None,
        }
    }

    /// The parts of operation `index` of a loop.
    pub(super) fn parts(&self, work: &Work, placement: Placement, index: usize) -> Parts {
        Parts::new(work, placement, index, &self.buffer_sizes, self.unaligned)
    }

    /// The parts as what users pass. For operations that do not [overlap](overlaps).
    #[inline]
    pub(super) fn views<T: Element>(
        &mut self,
        parts: &Parts,
    ) -> Result<OperationBuffers<MemoryView<'_, T>, MemoryViewMut<'_, T>>, nccl::Error> {
        Ok(match parts.placement {
            Placement::OutOfPlace => OperationBuffers::Two(
                self.send.slice(parts.input.clone())?,
                self.receive.slice_mut(parts.result.clone())?,
            ),
            Placement::InPlace => OperationBuffers::InPlace(self.receive.slice_mut(parts.whole())?),
        })
    }

    /// The parts, each as memory of its own: for operations that are queued together, or whose buffers overlap.
    pub(super) fn apart(
        &self,
        work: &Work,
        parts: &Parts,
    ) -> Result<OperationBuffers<Memory, Memory>, nccl::Error> {
        let (input, result) = (parts.input.clone(), parts.result.clone());
        let from = if parts.placement == Placement::InPlace { &self.receive } else { &self.send };
        Ok(match (work.collective, parts.placement) {
            (Collective::Hypercube, _) => OperationBuffers::Steps(self.steps(work, result.start)?),
            (_, Placement::InPlace) if !overlaps(work, parts.placement) => {
                OperationBuffers::InPlace(part(&self.receive, work, parts.whole())?)
            }
            _ => OperationBuffers::Two(part(from, work, input)?, part(&self.receive, work, result)?),
        })
    }

    /// A hypercube's exchanges, in the receive buffer from element `start` on: of the parts that a rank has with a neighbour,
    /// which is twice as far away in each step.
    fn steps(&self, work: &Work, start: usize) -> Result<Vec<PeerExchange<Memory>>, nccl::Error> {
        let (rank, count) = (work.participant.rank, work.counts.send);
        let step = |step: u32| {
            let block = 1_usize << step;
            let peer = rank ^ block;
            let of = |rank: usize| {
                let first = start + (rank & !(block - 1)) * count;
                part(&self.receive, work, first..first + block * count)
            };
            Ok(PeerExchange { send: of(rank)?, receive: of(peer)?, peer })
        };
        (0..work.participant.ranks.ilog2()).map(step).collect()
    }

    /// Where a hypercube's own part has to be copied from and to before it begins; `None` where it is in its place, as with all
    /// other operations.
    pub(super) fn own_part(&self, work: &Work, parts: &Parts) -> Option<(u64, u64)> {
        let copied = work.collective == Collective::Hypercube && parts.placement == Placement::OutOfPlace;
        copied.then(|| {
            let target = parts.result.start + work.participant.rank * work.counts.send;
            (element(&self.send, work, parts.input.start), element(&self.receive, work, target))
        })
    }

    /// The address from which on the receive buffer is used.
    pub(super) fn receive_address(&self, work: &Work) -> u64 {
        element(&self.receive, work, self.unaligned)
    }

    /// Where this rank's input is; `None` where it has none.
    pub(super) fn input_address(&self, work: &Work, placement: Placement) -> Option<u64> {
        let start = self.parts(work, placement, 0).input.start;
        let memory = if placement == Placement::InPlace { &self.receive } else { &self.send };
        work.collective.has_input(work.participant).then(|| element(memory, work, start))
    }

    /// Where this rank's result is.
    pub(super) fn result_address(&self, work: &Work, placement: Placement) -> u64 {
        element(&self.receive, work, self.parts(work, placement, 0).result.start)
    }
}

/// The address of element `index`.
fn element(memory: &Memory, work: &Work, index: usize) -> u64 {
    memory.read(memory.stream()).address() + (index * work.data_type.size()) as u64
}

/// Elements of a memory as memory of its own, for operations whose parts may overlap.
fn part(memory: &Memory, work: &Work, elements: Range<usize>) -> Result<Memory, nccl::Error> {
    let size = work.data_type.size();
    let view = memory.slice::<u8>(elements.start * size..elements.end * size)?;
    // SAFETY: the part lies within initialised memory, which is used on its one stream and outlives this rank's operations and
    // graphs. Where parts that are written at the same time overlap, which the contract excludes, their elements become a mixture
    // of what the operations write, and nobody looks at them before they are filled again: such operations are timed only, as in
    // nccl-tests. No reference to the elements exists, and whatever the GPU leaves there is an element.
    Ok(unsafe { Memory::from_raw(view.address(), view.len(), Arc::clone(memory.stream()), ()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Participant;
    use crate::data::Op;
    use crate::data::traffic::{Pattern, Traffic};
    use collectives::DataType;

    fn work(collective: Collective, bytes: usize, data_type: DataType, rank: usize, ranks: usize) -> Work {
        let participant = Participant { rank, ranks, root: collective.has_root().then_some(ranks - 1) };
        let traffic = (collective == Collective::AllToAllV)
            .then(|| Arc::new(Traffic::new(&Pattern::Spread(1.0), bytes as u64, data_type, ranks)));
        let counts = collective.counts(bytes as u64, data_type, participant, traffic.as_deref());
        Work { collective, data_type, op: Some(Op::Sum), participant, counts, traffic }
    }

    /// Calls `look` with every collective and placement, the first operations of a loop, several ranks, sizes, types and shifts.
    fn each(mut look: impl FnMut(&Work, &Parts, &BufferSizes, usize)) {
        for collective in Collective::ALL {
            for ranks in [1, 2, 3, 8].into_iter().filter(|&ranks| collective.runs_over(ranks)) {
                for (rank, bytes, unaligned) in
                    (0..ranks).flat_map(|rank| [(rank, 0, 0), (rank, 8, 1), (rank, 4000, 3), (rank, 4096, 0)])
                {
                    for data_type in [DataType::Int8, DataType::Float16, DataType::Float64] {
                        let work = work(collective, bytes, data_type, rank, ranks);
                        let sent = work.counts.send * data_type.size();
                        for (size, send) in [(4096, 4096), (9000, 9000), (4096, sent)] {
                            let buffer_sizes = BufferSizes { size, send, receive: size };
                            for placement in [Placement::OutOfPlace, Placement::InPlace] {
                                for index in 0..5 {
                                    let parts = Parts::new(&work, placement, index, &buffer_sizes, unaligned);
                                    look(&work, &parts, &buffer_sizes, unaligned);
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
        each(|work, parts, buffer_sizes, unaligned| {
            let elements = |room: usize| (room + unaligned * LARGEST_ELEMENT) / work.data_type.size();
            let input_room =
                if parts.placement == Placement::InPlace { buffer_sizes.receive } else { buffer_sizes.send };
            assert!(parts.input.end <= elements(input_room), "{work:?} {parts:?} {buffer_sizes:?}");
            assert!(
                parts.result.end <= elements(buffer_sizes.receive),
                "{work:?} {parts:?} {buffer_sizes:?}"
            );
            assert!(unaligned <= parts.input.start && unaligned <= parts.result.start, "{parts:?}");
        });
    }

    /// The one buffer has the input and the result where the library's methods in place have them.
    #[test]
    fn parts_in_place_are_where_the_methods_in_place_look_for_them() {
        each(|work, parts, _, _| {
            if parts.placement == Placement::OutOfPlace || overlaps(work, parts.placement) {
                return;
            }
            let whole = parts.whole();
            let part = whole.len() / work.participant.ranks;
            let own = whole.start + work.participant.rank * part;
            let (input, result) = match work.collective {
                Collective::AllGather | Collective::Gather => (own..own + part, whole.clone()),
                Collective::ReduceScatter | Collective::Scatter => (whole.clone(), own..own + part),
                _ => (whole.clone(), whole.clone()),
            };
            assert_eq!((&parts.input, &parts.result), (&input, &result), "{work:?}");
        });
    }

    #[test]
    fn operations_move_on_through_the_buffers() {
        let work = work(Collective::AllGather, 64, DataType::Float32, 1, 2);
        let starts = |placement, send| {
            let buffer_sizes = BufferSizes { size: 200, send, receive: 200 };
            let parts = (0..4).map(|index| Parts::new(&work, placement, index, &buffer_sizes, 2));
            parts.map(|parts| (parts.input.start, parts.result.start)).collect::<Vec<_>>()
        };
        assert_eq!(starts(Placement::OutOfPlace, 200), [(2, 2), (18, 18), (34, 34), (2, 2)]);
        assert_eq!(starts(Placement::InPlace, 200), [(10, 2), (26, 18), (42, 34), (10, 2)]);
        // What is sent moves on by itself where the send buffer is smaller.
        assert_eq!(starts(Placement::OutOfPlace, 64), [(2, 2), (10, 18), (2, 34), (10, 2)]);
    }
}
