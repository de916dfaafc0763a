//! One rank's part in the collectives of a communicator.

use std::ptr;

use super::Error;
use super::algorithm::engine::{self, Memory, Operation, Workspace};
use super::algorithm::selection::{self, Algorithm, Collective, Medium, Plan};
use super::algorithm::{Schedule, all_gather, all_reduce, barrier};
use super::board::{self, Board};
use super::reduction::Reduction;
use super::transport::Transport;
use crate::{Element, ReduceOp};

/// What decides how operations are carried out: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) medium: Medium,
    pub(crate) all_reduce: Option<Algorithm>,
    pub(crate) all_gather: Option<Algorithm>,
    pub(crate) segment: Option<usize>,
    pub(crate) in_flight: Option<usize>,
}

/// One rank's part in the collectives of a communicator, over any transport.
///
/// An operation borrows the caller's buffers only while it runs, but posts requests that a transport may serve for
/// as long as it is open. So an operation owns the transport while it runs, and gives it back when all its requests
/// are complete; after an error or a panic it does not, which closes the transport before the borrows end.
pub(crate) struct Member<T> {
    transport: Option<Box<T>>,
    rank: usize,
    ranks: usize,
    tuning: Tuning,
    sequence: u64,
    workspace: Workspace,
    board: Option<Board>,
}

impl<T: Transport> Member<T> {
    pub(crate) fn new(transport: T, board: Option<Board>, tuning: Tuning) -> Result<Self, Error> {
        let (rank, ranks) = (transport.rank(), transport.size());
        for (collective, wanted) in
            [(Collective::AllReduce, tuning.all_reduce), (Collective::AllGather, tuning.all_gather)]
        {
            let can = |algorithm: &Algorithm| {
                let has_board = board.is_some() || ranks == 1;
                algorithm.serves(collective, ranks) && (*algorithm != Algorithm::Board || has_board)
            };
            if let Some(algorithm) = wanted.filter(|algorithm| !can(algorithm)) {
                let choices = selection::names(Algorithm::ALL.into_iter().filter(can));
                return Err(Error::Algorithm { collective, algorithm, ranks, choices });
            }
        }
        let transport = Some(Box::new(transport));
        let workspace = Workspace::default();
        Ok(Self { transport, rank, ranks, tuning, sequence: 0, workspace, board })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks
    }

    pub(crate) fn plan(&self, collective: Collective, bytes: usize) -> Plan {
        let wanted = match collective {
            Collective::AllReduce => self.tuning.all_reduce,
            Collective::AllGather => self.tuning.all_gather,
        };
        let plan = selection::plan(
            collective,
            self.tuning.medium,
            self.ranks,
            bytes,
            wanted,
            self.board.as_ref().map(|_| board::CAPACITY),
        );
        Plan {
            segment: self.tuning.segment.unwrap_or(plan.segment),
            in_flight: self.tuning.in_flight.unwrap_or(plan.in_flight),
            ..plan
        }
    }

    pub(crate) fn all_reduce<E: Element>(
        &mut self,
        send: &[E],
        receive: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let operation = Collective::AllReduce.name();
        if send.len() != receive.len() {
            let problem = format!(
                "the send buffer has {} elements and the receive buffer {}; they must have as many",
                send.len(),
                receive.len()
            );
            return Err(Error::Length { operation, problem });
        }
        if self.ranks == 1 && self.transport.is_some() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory {
            source: send.as_ptr().cast(),
            source_len: size_of_val(send),
            target: receive.as_mut_ptr().cast(),
            target_len: size_of_val(receive),
        };
        // SAFETY: two buffers of this many elements, borrowed until this returns.
        unsafe { self.reduce_memory::<E>(memory, receive.len(), op) }
    }

    pub(crate) fn all_reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        if self.ranks == 1 && self.transport.is_some() {
            return Ok(());
        }
        let len = size_of_val(data);
        let target = data.as_mut_ptr().cast::<u8>();
        let memory = Memory { source: target.cast_const(), source_len: len, target, target_len: len };
        // SAFETY: one buffer of this many elements for both, borrowed until this returns.
        unsafe { self.reduce_memory::<E>(memory, data.len(), op) }
    }

    /// # Safety
    /// Both buffers have `count` elements of type `E`, are the same or disjoint, and borrowed while this runs.
    unsafe fn reduce_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let collective = Collective::AllReduce;
        let reduction = Reduction::new(E::DATA_TYPE, op);
        let plan = self.plan(collective, count * size_of::<E>());
        let message = all_reduce::Message {
            rank: self.rank,
            ranks: self.ranks,
            count,
            element_size: reduction.element_size(),
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let reduction = &reduction;
        let name = collective.name();
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.reduce_on_board(name, memory, reduction),
                Algorithm::Direct => self.run(name, &all_reduce::Direct(message), memory, Some(reduction)),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_reduce::RecursiveDoubling(message), memory, Some(reduction))
                }
                Algorithm::Pairwise => {
                    self.run(name, &all_reduce::Pairwise(message), memory, Some(reduction))
                }
                Algorithm::Rabenseifner => {
                    self.run(name, &all_reduce::Rabenseifner(message), memory, Some(reduction))
                }
                Algorithm::Ring | Algorithm::Bruck => {
                    self.run(name, &all_reduce::Ring(message), memory, Some(reduction))
                }
            }
        }
    }

    pub(crate) fn all_gather<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        if send.len().checked_mul(self.ranks) != Some(receive.len()) {
            let problem = format!(
                "the send buffer has {} elements and there are {} ranks, but the receive buffer has {} elements; \
                 it must have as many as all send buffers together",
                send.len(),
                self.ranks,
                receive.len()
            );
            return Err(Error::Length { operation: Collective::AllGather.name(), problem });
        }
        if self.ranks == 1 && self.transport.is_some() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory {
            source: send.as_ptr().cast(),
            source_len: size_of_val(send),
            target: receive.as_mut_ptr().cast(),
            target_len: size_of_val(receive),
        };
        // SAFETY: a buffer of this many bytes and one for all ranks, borrowed until this returns.
        unsafe { self.gather_memory(memory, size_of_val(send)) }
    }

    pub(crate) fn all_gather_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        if !data.len().is_multiple_of(self.ranks) {
            let problem = format!(
                "the buffer has {} elements, which is no multiple of the number of ranks, {}",
                data.len(),
                self.ranks
            );
            return Err(Error::Length { operation: Collective::AllGather.name(), problem });
        }
        if self.ranks == 1 && self.transport.is_some() {
            return Ok(());
        }
        let target_len = size_of_val(data);
        let block = target_len / self.ranks;
        let target = data.as_mut_ptr().cast::<u8>();
        // SAFETY: the block of this rank lies within the buffer.
        let source = unsafe { target.add(self.rank * block) }.cast_const();
        let memory = Memory { source, source_len: block, target, target_len };
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.gather_memory(memory, block) }
    }

    /// # Safety
    /// The target has `block` bytes for each rank and the source is this rank's part of it or `block` other bytes;
    /// both are borrowed while this runs.
    unsafe fn gather_memory(&mut self, memory: Memory, block: usize) -> Result<(), Error> {
        let collective = Collective::AllGather;
        let plan = self.plan(collective, block);
        let message = all_gather::Message {
            rank: self.rank,
            ranks: self.ranks,
            block,
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let name = collective.name();
        // SAFETY: the schedules are made for blocks of this size.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.gather_on_board(name, memory),
                Algorithm::Direct => self.run(name, &all_gather::Direct(message), memory, None),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_gather::RecursiveDoubling(message), memory, None)
                }
                Algorithm::Bruck => self.run(name, &all_gather::Bruck(message), memory, None),
                Algorithm::Ring | Algorithm::Pairwise | Algorithm::Rabenseifner => {
                    self.run(name, &all_gather::Ring(message), memory, None)
                }
            }
        }
    }

    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        if self.ranks == 1 && self.transport.is_some() {
            return Ok(());
        }
        if self.board.is_some() {
            return self.on_board("barrier", |board, meanwhile| {
                // SAFETY: no bytes.
                unsafe { board.write(ptr::null(), 0) };
                (0..board.ranks()).try_for_each(|rank| board.read(rank, 0, meanwhile).map(drop))
            });
        }
        let schedule = barrier::Dissemination { rank: self.rank, ranks: self.ranks };
        let mut nothing = [0_u8; 0];
        let memory =
            Memory { source: nothing.as_ptr(), source_len: 0, target: nothing.as_mut_ptr(), target_len: 0 };
        // SAFETY: the barrier uses scratch memory only.
        unsafe { self.run("barrier", &schedule, memory, None) }
    }

    /// Reduces in rank order, which is the same on all ranks.
    ///
    /// # Safety
    /// Both buffers are equally long and borrowed while this runs, and the same or disjoint.
    unsafe fn reduce_on_board(
        &mut self,
        name: &'static str,
        memory: Memory,
        reduction: &Reduction,
    ) -> Result<(), Error> {
        let Memory { source, target, target_len: len, .. } = memory;
        self.on_board(name, |board, meanwhile| {
            // SAFETY: the source has this many bytes, the plan is for messages that fit, and every operation on the
            // board reads all messages.
            unsafe { board.write(source, len) };
            let first = board.read(0, len, meanwhile)?;
            let second = board.read(1, len, meanwhile)?;
            // SAFETY: messages on the board are aligned and have this many bytes, which nobody changes before the
            // next operation but one; the target is apart from them, and aligned for its elements.
            unsafe { reduction.combine(target, first, second, len) };
            for rank in 2..board.ranks() {
                let other = board.read(rank, len, meanwhile)?;
                // SAFETY: as above.
                unsafe { reduction.combine(target, target.cast_const(), other, len) };
            }
            // SAFETY: the target is borrowed by this operation.
            unsafe { reduction.finish(target, len, board.ranks()) };
            Ok(())
        })
    }

    /// # Safety
    /// The target has a block as long as the source for each rank, and the source is this rank's or apart from it;
    /// both are borrowed while this runs.
    unsafe fn gather_on_board(&mut self, name: &'static str, memory: Memory) -> Result<(), Error> {
        let Memory { source, source_len: block, target, .. } = memory;
        self.on_board(name, |board, meanwhile| {
            // SAFETY: as for `reduce_on_board`.
            unsafe { board.write(source, block) };
            for rank in 0..board.ranks() {
                let message = board.read(rank, block, meanwhile)?;
                // SAFETY: the message has this many bytes, and the target that many for each rank.
                unsafe { target.add(rank * block).copy_from_nonoverlapping(message, block) };
            }
            Ok(())
        })
    }

    /// Runs an operation on the board, and keeps the transport and the watch over the other ranks going meanwhile.
    fn on_board(
        &mut self,
        name: &'static str,
        operation: impl FnOnce(&mut Board, &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (Some(mut transport), Some(board)) = (self.transport.take(), self.board.as_mut()) else {
            return Err(Error::Closed { operation: name });
        };
        let result = operation(board, &mut || transport.progress());
        self.end(name, transport, result)
    }

    /// Takes the transport back after an operation; if that failed, tells the other ranks and closes it.
    fn end(&mut self, name: &str, transport: Box<T>, result: Result<(), Error>) -> Result<(), Error> {
        match &result {
            Ok(()) => self.transport = Some(transport),
            // The others know.
            Err(Error::World(_)) => {}
            Err(error) => transport.fail(&format!("{name}: {error}")),
        }
        result
    }

    /// # Safety
    /// The memory is as large as the schedule says, aligned for the reduction's element type, and borrowed while
    /// this runs.
    unsafe fn run<S: Schedule>(
        &mut self,
        name: &'static str,
        schedule: &S,
        memory: Memory,
        reduction: Option<&Reduction>,
    ) -> Result<(), Error> {
        let Some(mut transport) = self.transport.take() else {
            return Err(Error::Closed { operation: name });
        };
        self.sequence += 1;
        if let Some(board) = &mut self.board {
            board.pass();
        }
        let operation = Operation { sequence: self.sequence, memory, reduction };
        // SAFETY: the buffers are as the caller promises. The workspace is used by nothing else. After an error or a
        // panic the transport, which this function owns, is dropped and thereby closed before anything else is.
        let result = unsafe { engine::run(&mut *transport, &mut self.workspace, schedule, &operation) };
        self.end(name, transport, result)
    }
}
