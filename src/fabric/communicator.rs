//! A communicator over host buffers.

use super::Error;
use super::algorithm::engine::{self, Memory, Operation, Workspace};
use super::algorithm::selection::{self, Algorithm, Collective, Medium, Plan};
use super::algorithm::{Schedule, all_gather, all_reduce, barrier};
use super::reduction::Reduction;
use super::transport::Transport;
use crate::{Element, ReduceOp, world};

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
    world: Option<world::Handle>,
    sequence: u64,
    workspace: Workspace,
}

impl<T: Transport> Member<T> {
    pub(crate) fn new(transport: T, world: Option<world::Handle>, tuning: Tuning) -> Result<Self, Error> {
        let (rank, ranks) = (transport.rank(), transport.size());
        for (collective, wanted) in
            [(Collective::AllReduce, tuning.all_reduce), (Collective::AllGather, tuning.all_gather)]
        {
            if let Some(algorithm) = wanted.filter(|algorithm| !algorithm.serves(collective, ranks)) {
                let choices = Algorithm::ALL.into_iter().filter(|choice| choice.serves(collective, ranks));
                let choices = selection::names(choices);
                return Err(Error::Algorithm { collective, algorithm, ranks, choices });
            }
        }
        let transport = Some(Box::new(transport));
        Ok(Self { transport, rank, ranks, tuning, world, sequence: 0, workspace: Workspace::default() })
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
        let plan = selection::plan(collective, self.tuning.medium, self.ranks, bytes, wanted);
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
        let memory = Memory { source: send.as_ptr().cast(), target: receive.as_mut_ptr().cast() };
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
        let target = data.as_mut_ptr().cast::<u8>();
        let memory = Memory { source: target.cast_const(), target };
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
        let reduction = Some(&reduction);
        let name = collective.name();
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match plan.algorithm {
                Algorithm::Direct => self.run(name, &all_reduce::Direct(message), memory, reduction),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_reduce::RecursiveDoubling(message), memory, reduction)
                }
                Algorithm::Pairwise => self.run(name, &all_reduce::Pairwise(message), memory, reduction),
                Algorithm::Rabenseifner => {
                    self.run(name, &all_reduce::Rabenseifner(message), memory, reduction)
                }
                Algorithm::Ring | Algorithm::Bruck => {
                    self.run(name, &all_reduce::Ring(message), memory, reduction)
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
        let memory = Memory { source: send.as_ptr().cast(), target: receive.as_mut_ptr().cast() };
        // SAFETY: a buffer of this many bytes and one for all ranks, borrowed until this returns.
        unsafe { self.gather_memory(memory, size_of_val(send)) }
    }

    pub(crate) fn all_gather_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        if data.len() % self.ranks != 0 {
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
        let block = size_of_val(data) / self.ranks;
        let target = data.as_mut_ptr().cast::<u8>();
        // SAFETY: the block of this rank lies within the buffer.
        let source = unsafe { target.add(self.rank * block) }.cast_const();
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.gather_memory(Memory { source, target }, block) }
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
        let schedule = barrier::Dissemination { rank: self.rank, ranks: self.ranks };
        let mut nothing = [0_u8; 0];
        let memory = Memory { source: nothing.as_ptr(), target: nothing.as_mut_ptr() };
        // SAFETY: the barrier uses scratch memory only.
        unsafe { self.run("barrier", &schedule, memory, None) }
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
        let world = self.world.as_deref();
        let check = || world.map_or(Ok(()), |world| world.check().map_err(Error::from));
        let operation = Operation { sequence: self.sequence, memory, reduction, check: &check };
        // SAFETY: the buffers are as the caller promises. The workspace is used by nothing else. After an error or a
        // panic the transport, which this function owns, is dropped and thereby closed before anything else is.
        let result = unsafe { engine::run(&mut *transport, &mut self.workspace, schedule, &operation) };
        match result {
            Ok(()) => {
                self.transport = Some(transport);
                Ok(())
            }
            Err(error) => {
                drop(transport);
                Err(error)
            }
        }
    }
}
