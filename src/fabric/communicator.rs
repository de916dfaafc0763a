//! A communicator over host buffers.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Error;
use super::algorithm::selection::{Algorithm, Collective, Medium, Plan};
use super::board::Board;
use super::member::{Member, Tuning};
use super::network::Network;
use crate::{Element, ReduceOp, world};

/// How a communicator is made and works. Every rank must ask for the same.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The libfabric provider: `shm`, `tcp`, ...; if none, chosen by where the ranks are.
    pub provider: Option<String>,
    /// The algorithm for all_reduce; if none, the table's.
    pub all_reduce: Option<Algorithm>,
    /// The algorithm for all_gather; if none, the table's.
    pub all_gather: Option<Algorithm>,
    /// Bytes of a segment of long messages; if none, the table's.
    pub segment: Option<usize>,
    /// Segments in flight at a time; if none, the table's.
    pub in_flight: Option<usize>,
}

/// One rank of a communicator over host buffers.
///
/// All ranks call the same operations in the same order, with the same counts, element types and operators. Ranks
/// that do not get an error where it shows in the lengths of messages, but not always: over `shm` with cross-memory
/// attach, libfabric 1.17 never returns from a long message that is longer than its receiver expects.
///
/// Every rank gets the same bits from a reduction, also of floating-point numbers (a NaN's payload aside): its
/// elements are combined in an order that is the same on all ranks. The order depends on the number of ranks and on
/// the algorithm, which depends on the size. For results of each operator see [`ReduceOp`]; floating-point numbers of
/// 16 and 8 bits are combined in `f32` and rounded after every combination; those of 8 bits saturate: what is too
/// large, an infinity included, becomes the largest finite value, also the sum that an average divides. `max` and
/// `min` give NaN when there is one, and order `-0 < +0`.
///
/// An operation that fails, or panics, closes the connections of this rank before it returns, since the network
/// could otherwise write to buffers that are no longer borrowed; operations after that give [`Error::Closed`].
/// It also tells the other ranks ([`World::fail`](world::World::fail)), whose operations then give [`Error::World`].
pub struct Communicator {
    member: Member<Network>,
    world: world::Handle,
    description: String,
    /// Used by one thread at a time, which may change.
    not_sync: PhantomData<Cell<()>>,
}

impl Communicator {
    /// Connects the ranks of a world. Collective: returns when every rank has called it.
    ///
    /// # Errors
    /// When libfabric cannot be loaded or has no provider that fits, or another rank fails.
    pub fn new(world: world::Handle, options: &Options) -> Result<Self, Error> {
        let network = Network::open(&world, options.provider.as_deref())?;
        let mut description = network.describe();
        let medium = if network.is_shared_memory() { Medium::SharedMemory } else { Medium::Network };
        let tuning = Tuning {
            medium,
            all_reduce: options.all_reduce,
            all_gather: options.all_gather,
            segment: options.segment,
            in_flight: options.in_flight,
        };
        let board = if medium == Medium::SharedMemory { Board::meet(&*world)? } else { None };
        if board.is_some() {
            description += "; short messages on a board in shared memory";
        }
        let member = Member::new(network, board, tuning)?;
        Ok(Self { member, world, description, not_sync: PhantomData })
    }

    /// This rank, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.member.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.member.size()
    }

    /// One line for a report's header.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// How an operation would be carried out: all_reduce of a vector, all_gather of blocks, of so many bytes.
    #[must_use]
    pub fn plan(&self, collective: Collective, bytes: usize) -> Plan {
        self.member.plan(collective, bytes)
    }

    /// Reduces all ranks' `send` into every rank's `receive`. Both have the same number of elements, which is the
    /// same on every rank.
    ///
    /// # Errors
    /// [`Error::Length`] when the buffers differ in length: nothing is sent then. Otherwise the communicator is
    /// closed: [`Error::World`] when another rank has failed, or what libfabric reported.
    pub fn all_reduce<T: Element>(
        &mut self,
        send: &[T],
        receive: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.member.all_reduce(send, receive, op)
    }

    /// Reduces all ranks' `data` into every rank's `data`, which has the same number of elements on every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.member.all_reduce_in_place(data, op)
    }

    /// Gathers all ranks' `send` in every rank's `receive`, in rank order. `send` has the same number of elements
    /// on every rank, and `receive` that many for each rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&mut self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        self.member.all_gather(send, receive)
    }

    /// Gathers all ranks' parts of `data` in every rank's `data`. With `n` elements for each rank, this rank's part
    /// starts at `rank * n`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Error::Length`] when the length is no multiple of the number of ranks.
    pub fn all_gather_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<(), Error> {
        self.member.all_gather_in_place(data)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.member.barrier()
    }

    /// Ends the communicator when every rank has called it. A communicator that is dropped instead closes at once,
    /// which other ranks that still wait for its messages may see as a failure.
    ///
    /// # Errors
    /// When another rank has failed.
    pub fn close(self) -> Result<(), Error> {
        self.world.barrier()?;
        Ok(())
    }
}
