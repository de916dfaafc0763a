//! A rank's two buffers, and the views of them that operations use.

use std::ops::Range;
use std::sync::Arc;

use collectives::Element;
use collectives::nccl::{
    self, Communicator, DeviceBuffer as _, Memory, MemoryView, MemoryViewMut, Registration, Window,
    WindowKind,
};

use super::operation::{OperationBuffers, PeerExchange};
use crate::backend::operands::Operands;
use crate::backend::{BufferSizes, RankWork};
use crate::collective::Collective;
use crate::request::Names;
use record::Placement;

/// Bytes of the largest element.
const LARGEST_ELEMENT: usize = 8;

/// A rank's send and receive buffer. Nothing else uses their memory, which is zeroed on allocation. All work
/// on it is on the communicator's stream.
#[derive(Debug)]
pub(super) struct RankMemory {
    send: Memory,
    receive: Memory,
    sizes: BufferSizes,
    /// Elements by which operands are shifted.
    unaligned: usize,
    registrations: Vec<Registration>,
    windows: Vec<Window>,
    /// The part of the requested registration that was not possible.
    pub(super) note: Option<String>,
}

/// Returns true when buffers of an operation overlap: the exchanges of a hypercube use one buffer, and
/// collectives without an in-place form are measured in one buffer as well.
pub(super) fn has_overlap(work: &RankWork) -> bool {
    work.collective == Collective::Hypercube
        || work.placement == Placement::InPlace && !work.collective.has_in_place()
}

impl RankMemory {
    pub(super) fn alloc_buffers(
        communicator: &Communicator,
        sizes: BufferSizes,
        unaligned: usize,
    ) -> Result<Self, nccl::Error> {
        let alloc = |room: usize| {
            let bytes = room + unaligned * LARGEST_ELEMENT;
            Memory::alloc(communicator.library(), communicator.stream(), bytes)
        };
        Ok(Self {
            send: alloc(sizes.send)?,
            receive: alloc(sizes.receive)?,
            sizes,
            unaligned,
            registrations: Vec::new(),
            windows: Vec::new(),
            note: None,
        })
    }

    pub(super) fn register_buffers(
        &mut self,
        communicator: &Communicator,
        how: record::Registration,
        names: Names,
    ) -> Result<(), nccl::Error> {
        let loaded = communicator.library().version();
        let windows = loaded >= nccl::Version::new(2, 27, 0);
        let (send, receive) = (&self.send, &self.receive);
        match how {
            record::Registration::None => {}
            record::Registration::Symmetric if windows => {
                for memory in [send, receive] {
                    self.windows.push(communicator.window(memory, WindowKind::Symmetric)?);
                }
                if !self.windows.iter().all(Window::is_active) {
                    let asked = names.with_value("registration", how as u8);
                    self.note = Some(format!("NCCL makes no symmetric windows here: {asked} has no effect"));
                }
            }
            asked => {
                if asked == record::Registration::Symmetric {
                    let [asked, instead] = [asked, record::Registration::Local]
                        .map(|each| names.with_value("registration", each as u8));
                    self.note = Some(format!(
                        "{asked} needs NCCL 2.27, and {loaded} is loaded: the buffers are registered as with \
                         {instead}"
                    ));
                }
                self.registrations = vec![communicator.register(send)?, communicator.register(receive)?];
            }
        }
        Ok(())
    }

    pub(super) fn operation_operands(&self, work: &RankWork, index: usize) -> Operands {
        Operands::new(work, index, &self.sizes, self.unaligned)
    }

    /// Views of the operands. For operations that do not [overlap](has_overlap).
    #[inline]
    pub(super) fn operand_views<T: Element>(
        &mut self,
        operands: &Operands,
    ) -> Result<OperationBuffers<MemoryView<'_, T>, MemoryViewMut<'_, T>>, nccl::Error> {
        Ok(match operands.placement {
            Placement::OutOfPlace => OperationBuffers::Two(
                self.send.slice(operands.input.clone())?,
                self.receive.slice_mut(operands.result.clone())?,
            ),
            Placement::InPlace => OperationBuffers::InPlace(self.receive.slice_mut(operands.whole_range())?),
        })
    }

    /// The operands as separate memory: for operations that are queued together, or whose buffers overlap.
    pub(super) fn separate_operands(
        &self,
        work: &RankWork,
        operands: &Operands,
    ) -> Result<OperationBuffers<Memory, Memory>, nccl::Error> {
        let (input, result) = (operands.input.clone(), operands.result.clone());
        let from = if operands.placement == Placement::InPlace { &self.receive } else { &self.send };
        Ok(match (work.collective, operands.placement) {
            (Collective::Hypercube, _) => {
                OperationBuffers::Steps(self.hypercube_exchanges(work, result.start)?)
            }
            (_, Placement::InPlace) if !has_overlap(work) => {
                OperationBuffers::InPlace(part_memory(&self.receive, work, operands.whole_range())?)
            }
            _ => OperationBuffers::Two(
                part_memory(from, work, input)?,
                part_memory(&self.receive, work, result)?,
            ),
        })
    }

    /// The exchanges of a hypercube, in the receive buffer from element `start` on.
    fn hypercube_exchanges(
        &self,
        work: &RankWork,
        start: usize,
    ) -> Result<Vec<PeerExchange<Memory>>, nccl::Error> {
        let count = work.counts.send;
        let of = |parts: &Range<usize>| {
            part_memory(&self.receive, work, start + parts.start * count..start + parts.end * count)
        };
        work.participant
            .hypercube_steps()
            .map(|step| {
                Ok(PeerExchange { send: of(&step.own)?, receive: of(&step.theirs)?, peer: step.peer })
            })
            .collect()
    }

    /// Source and target address of a hypercube's own part, which is copied before the exchanges; `None` when
    /// no copy is needed, as for all other operations.
    pub(super) fn own_part(&self, work: &RankWork, operands: &Operands) -> Option<(u64, u64)> {
        let copied = work.collective == Collective::Hypercube && operands.placement == Placement::OutOfPlace;
        copied.then(|| {
            let target = operands.result.start + work.participant.rank * work.counts.send;
            (
                element_address(&self.send, work, operands.input.start),
                element_address(&self.receive, work, target),
            )
        })
    }

    /// Address of the first used element of the receive buffer.
    pub(super) fn receive_address(&self, work: &RankWork) -> u64 {
        element_address(&self.receive, work, self.unaligned)
    }

    /// Address of this rank's input; `None` when it has none.
    pub(super) fn input_address(&self, work: &RankWork) -> Option<u64> {
        let start = self.operation_operands(work, 0).input.start;
        let memory = if work.placement == Placement::InPlace { &self.receive } else { &self.send };
        work.has_input().then(|| element_address(memory, work, start))
    }

    pub(super) fn result_address(&self, work: &RankWork) -> u64 {
        element_address(&self.receive, work, self.operation_operands(work, 0).result.start)
    }
}

fn element_address(memory: &Memory, work: &RankWork, index: usize) -> u64 {
    memory.read(memory.stream()).address() + (index * work.data_type.size()) as u64
}

/// Elements of a buffer as separate memory, for operations whose operands may overlap.
fn part_memory(memory: &Memory, work: &RankWork, elements: Range<usize>) -> Result<Memory, nccl::Error> {
    let size = work.data_type.size();
    let view = memory.slice::<u8>(elements.start * size..elements.end * size)?;
    // SAFETY: the part lies within initialised memory, which is used on its one stream and outlives this
    // rank's operations, prepared ones too, and graphs. Where operands that are written at the same time
    // overlap, which the contract excludes, their elements become a mixture of what the operations write, and
    // nobody looks at them before they are filled again: such operations are timed only, as in nccl-tests. No
    // reference to the elements exists, and whatever the GPU leaves there is an element.
    Ok(unsafe { Memory::from_raw(view.address(), view.len(), Arc::clone(memory.stream()), ()) })
}
