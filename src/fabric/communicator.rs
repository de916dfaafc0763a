//! A communicator over host buffers.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::Duration;

use super::Error;
use super::host_collectives::HostCollectives;
use super::selection::{Algorithm, Collective, Medium, Plan, SelectionOptions};
use super::shared_memory::segment::SharedSegment;
use super::transport::network::Network;
use super::transport::summary;
use crate::purpose::Purpose;
use crate::{Element, ReduceOp, world};

/// Options of a communicator. All but `host` must be the same on every rank.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The libfabric provider: `shm`, `tcp`, ...; if none, chosen by the placement of the ranks.
    pub provider: Option<String>,
    /// Name of this rank's host. Ranks with different names count as ranks of different hosts, to simulate
    /// several hosts on one. If none, `NCCL_HOSTID`; without it, ranks share a host when they can share
    /// memory.
    pub host: Option<String>,
    /// Algorithm by collective; if none, selected by the rules.
    algorithms: [Option<Algorithm>; Collective::ALL.len()],
    /// Algorithm between hosts for `hierarchical`, if it serves the collective; if none, selected by the
    /// rules.
    pub between: Option<Algorithm>,
    /// Bytes of a segment of long messages; if none, selected by the rules.
    pub segment: Option<usize>,
    /// Segments in flight at a time, limited to [`MOST_IN_FLIGHT`](super::MOST_IN_FLIGHT); if none, selected
    /// by the rules.
    pub in_flight: Option<usize>,
}

impl Options {
    /// Sets the algorithm of a collective; without it, the rules select one. [`Communicator::new`] returns
    /// [`Error::Algorithm`] if it cannot serve the collective on these ranks. In place, an all_to_all with
    /// any algorithm but `board` and `bruck`, and every all_to_all_v, runs as `direct`.
    pub fn set_algorithm(&mut self, collective: Collective, algorithm: Algorithm) {
        self.algorithms[collective as usize] = Some(algorithm);
    }
}

/// One rank of a communicator over host buffers.
///
/// All ranks call the same operations in the same order, with the same counts, element types, operators and
/// roots (except for [`send`](Self::send), [`recv`](Self::recv) and [`exchange`](Self::exchange), which
/// involve only two ranks). If they do not, no rank receives data of another operation (with a probability of
/// 1 - 2^-16; always for data through [`Algorithm::Board`]), and all get [`Error::World`] or
/// [`Error::Mismatch`] with the names of the calls: immediately with `Board`, otherwise when a rank has
/// waited for a second or closes the communicator. A rank that only sends may return from the operation
/// before.
///
/// An operation returns when this rank's part in it is complete: its result is there, and the buffers can be
/// reused.
///
/// Every rank gets the same bits from an all_reduce, also of floating-point numbers (except for a NaN's
/// payload): the order of the combinations is the same on all ranks. It depends on the number of ranks and on
/// the algorithm, thus on the size. [`ReduceOp`] describes the results of each operator; floating-point
/// numbers of 16 and 8 bits are combined in `f32` and rounded after every combination; numbers of 8 bits
/// saturate: larger values, infinity included, become the largest finite value, also the sum before the
/// division of an average. `max` and `min` return NaN when there is one, and order `-0 < +0`.
///
/// A failed or panicking operation closes the connections of this rank before it returns: otherwise the
/// network could write to buffers after the end of their borrow. Later operations return [`Error::Closed`].
/// The failure is reported to the other ranks ([`World::fail`](world::World::fail)), and their operations
/// return [`Error::World`].
pub struct Communicator {
    collectives: HostCollectives<Network>,
    world: world::Handle,
    description: String,
    /// Used by one thread at a time; the thread may change.
    not_sync: PhantomData<Cell<()>>,
}

impl Communicator {
    /// Connects the ranks of a world. Collective: returns when every rank has called it.
    ///
    /// # Errors
    /// When libfabric cannot be loaded or has no suitable provider, an algorithm of the options cannot serve
    /// its collective, the options differ between ranks, or another rank fails.
    pub fn new(world: world::Handle, options: &Options) -> Result<Self, Error> {
        let world = world::check_world(world)?;
        let mut selection_options = SelectionOptions {
            algorithms: options.algorithms,
            between: options.between,
            segment: options.segment,
            in_flight: options.in_flight,
            ..SelectionOptions::new(Medium::Network)
        };
        let asked = selection_options.describe(options.provider.as_deref());
        let everyone = world.all_gather(asked.as_bytes())?;
        if let Some(rank) = everyone.iter().position(|other| *other != everyone[0]) {
            let asked = |rank: usize| String::from_utf8_lossy(&everyone[rank]);
            return Err(world::Error::Mismatch(format!(
                "all ranks must make a communicator with the same options, but rank 0 uses {}, and rank \
                 {rank} uses {}",
                asked(0),
                asked(rank)
            ))
            .into());
        }
        let network = Network::connect_ranks(&world, options.provider.as_deref(), options.host.as_deref())?;
        let mut description =
            summary::describe_job(&*world, &network.transport_summary(), &network.first_ranks())?;
        let medium = if network.is_shared_memory() { Medium::SharedMemory } else { Medium::Network };
        selection_options.medium = medium;
        let shared = if medium == Medium::SharedMemory {
            SharedSegment::create(&*world, network.is_oversubscribed())?
        } else {
            None
        };
        if shared.is_some() {
            description += "; a board in shared memory";
        }
        let collectives = HostCollectives::new(network, shared, selection_options)?;
        Ok(Self { collectives, world, description, not_sync: PhantomData })
    }

    /// This rank, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.collectives.own_rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.collectives.rank_count()
    }

    /// Sets the time limit of this rank's operations, counted from their first wait for other ranks; with
    /// `None`, the default, they wait forever. After the limit, and 200 ms for the reports of the other
    /// ranks' calls, an operation returns [`Error::TimedOut`]. As any failure does, this closes the
    /// communicator and fails the operations of the other ranks. The errors of all ranks name the ranks that
    /// have not reported the call. An operation without a wait is not interrupted. The ranks may set
    /// different times.
    ///
    /// A timeout detects ranks that are alive but do not call the operation. The end of a rank is detected
    /// without a timeout.
    pub fn set_timeout(&mut self, limit: Option<Duration>) {
        self.collectives.set_timeout(limit);
    }

    /// Calls operations for a purpose.
    pub(crate) fn with_purpose<R>(
        &mut self,
        purpose: Option<Purpose>,
        call: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.collectives.set_purpose(purpose);
        let result = call(self);
        self.collectives.set_purpose(None);
        result
    }

    /// Describes the transport in one line, the same on all ranks: providers, copy protocol of `shm`, and
    /// each host's interface and the address of its first rank there.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// The plan for an operation of this size, counted as in [`Rule::bytes`](super::Rule::bytes).
    #[must_use]
    pub fn plan(&self, collective: Collective, bytes: usize) -> Plan {
        self.collectives.plan_for(collective, bytes)
    }

    /// Reduces all ranks' `send` into every rank's `receive`. Both have the same number of elements on every
    /// rank.
    ///
    /// # Errors
    /// [`Error::Length`] when the buffers differ in length: nothing is sent then. Otherwise the communicator
    /// is closed: [`Error::World`] when another rank has failed, or libfabric's error.
    pub fn all_reduce<T: Element>(
        &mut self,
        send: &[T],
        receive: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.collectives.all_reduce(send, receive, op)
    }

    /// Reduces all ranks' `data` into every rank's `data`, of the same number of elements on every rank.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.collectives.all_reduce_in_place(data, op)
    }

    /// Gathers all ranks' `send` in every rank's `receive`, in rank order. `send` has the same number of
    /// elements on every rank, and `receive` as many for each rank.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&mut self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        self.collectives.all_gather(send, receive)
    }

    /// Gathers all ranks' parts of `data` in every rank's `data`. With `n` elements for each rank, this
    /// rank's part starts at `rank * n`.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] when the length is not a multiple of the
    /// number of ranks.
    pub fn all_gather_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<(), Error> {
        self.collectives.all_gather_in_place(data)
    }

    /// Cuts the reduction of all ranks' `send` into one block for each rank, of `receive.len()` elements;
    /// `receive` becomes this rank's. `send` has the same number of elements on every rank.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] unless
    /// `send.len() == size * receive.len()`.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &[T],
        receive: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.collectives.reduce_scatter(send, receive, op)
    }

    /// In-place [`reduce_scatter`](Self::reduce_scatter): the result replaces this rank's block of the input;
    /// with `n` elements for each rank, from `rank * n` on. The rest of `data` is unchanged.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] when the length is not a multiple of the
    /// number of ranks.
    pub fn reduce_scatter_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.collectives.reduce_scatter_in_place(data, op)
    }

    /// Every rank's `receive` becomes the root's `send`. The other ranks need no `send`, and theirs is not
    /// read. All buffers have the same number of elements.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] for a root without `send`;
    /// [`Error::Rank`] when there is no such root.
    pub fn broadcast<T: Element>(
        &mut self,
        send: Option<&[T]>,
        receive: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        self.collectives.broadcast_from_root(send, receive, root)
    }

    /// Every rank's `data` becomes the root's. It has the same number of elements on every rank.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Rank`] when there is no such root.
    pub fn broadcast_in_place<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.collectives.broadcast_in_place(data, root)
    }

    /// Reduces all ranks' `send` into the root's `receive`. The other ranks need no `receive`, and theirs is
    /// unchanged. All buffers have the same number of elements.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] for a root without `receive`;
    /// [`Error::Rank`] when there is no such root.
    pub fn reduce<T: Element>(
        &mut self,
        send: &[T],
        receive: Option<&mut [T]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        self.collectives.reduce_to_root(send, receive, op, root)
    }

    /// In-place [`reduce`](Self::reduce): the result replaces the root's input. The other ranks' `data` is
    /// only read.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Rank`] when there is no such root.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        self.collectives.reduce_in_place(data, op, root)
    }

    /// Part `r` of `send` goes to rank `r`, and part `r` of `receive` comes from it. There is one part of the
    /// same length for each rank.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] when the length is not a multiple of the
    /// number of ranks.
    pub fn all_to_all<T: Element>(&mut self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        self.collectives.all_to_all(send, receive)
    }

    /// Part `r` of `data` goes to rank `r`, and the part from rank `r` replaces it.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_to_all`].
    pub fn all_to_all_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<(), Error> {
        self.collectives.all_to_all_in_place(data)
    }

    /// An [`all_to_all`](Self::all_to_all) with parts of any lengths and offsets: the elements
    /// `send_parts[r]` go to rank `r`, and the elements from rank `r`, of the same number, arrive in
    /// `receive_parts[r]`. For an empty part nothing is sent or received. The rest of `receive` is unchanged.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] unless there is one part for each rank,
    /// within its buffer, this rank's parts for itself have the same length, and no two parts of `receive`
    /// overlap.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_parts: &[Range<usize>],
        receive: &mut [T],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        self.collectives.all_to_all_v(send, send_parts, receive, receive_parts)
    }

    /// In-place [`all_to_all_v`](Self::all_to_all_v): received parts may overlap sent ones. Arrivals wait in
    /// memory of the communicator until all parts are sent.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_to_all_v`].
    pub fn all_to_all_v_in_place<T: Element>(
        &mut self,
        data: &mut [T],
        send_parts: &[Range<usize>],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        self.collectives.all_to_all_v_in_place(data, send_parts, receive_parts)
    }

    /// The root's `receive` becomes all ranks' `send`, in rank order. `send` has the same number of elements
    /// on every rank, and the root's `receive` as many for each rank. The other ranks need no `receive`, and
    /// theirs is unchanged.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] for a root without `receive`;
    /// [`Error::Rank`] when there is no such root.
    pub fn gather<T: Element>(
        &mut self,
        send: &[T],
        receive: Option<&mut [T]>,
        root: usize,
    ) -> Result<(), Error> {
        self.collectives.gather_to_root(send, receive, root)
    }

    /// In-place [`gather`](Self::gather): every rank's input is its block of a buffer of the root's length;
    /// with `n` elements for each rank, from `rank * n` on. Only the root's buffer is written.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] when the length is not a multiple of the
    /// number of ranks; [`Error::Rank`] when there is no such root.
    pub fn gather_in_place<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.collectives.gather_in_place(data, root)
    }

    /// Cuts the root's `send` into one block for each rank, of `receive.len()` elements; `receive` becomes
    /// this rank's. The other ranks need no `send`, and theirs is not read.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] for a root without `send`, or unless the
    /// root's `send.len() == size * receive.len()`; [`Error::Rank`] when there is no such root.
    pub fn scatter<T: Element>(
        &mut self,
        send: Option<&[T]>,
        receive: &mut [T],
        root: usize,
    ) -> Result<(), Error> {
        self.collectives.scatter_from_root(send, receive, root)
    }

    /// In-place [`scatter`](Self::scatter): every rank's result is its block of a buffer of the root's
    /// length; with `n` elements for each rank, from `rank * n` on. Nothing else is written.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; [`Error::Length`] when the length is not a multiple of the
    /// number of ranks; [`Error::Rank`] when there is no such root.
    pub fn scatter_in_place<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.collectives.scatter_in_place(data, root)
    }

    /// Sends `data` to another rank. The peer calls [`recv`](Self::recv) or [`exchange`](Self::exchange) for
    /// as many elements of the same type. Messages from one rank to another are received in the order of the
    /// sends; empty messages are not sent.
    ///
    /// It may wait for the peer's receive: sends in a circle of ranks deadlock; use `exchange`.
    ///
    /// # Errors
    /// [`Error::Rank`] when there is no such peer, or it is this rank: nothing is sent then. Otherwise the
    /// communicator is closed: [`Error::World`] when another rank has failed, or libfabric's error.
    pub fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), Error> {
        self.collectives.send_elements(data, to)
    }

    /// Receives a message that another rank sends with [`send`](Self::send) or [`exchange`](Self::exchange).
    /// Waits for it.
    ///
    /// # Errors
    /// The errors of [`Communicator::send`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), Error> {
        self.collectives.receive_elements(data, from)
    }

    /// Sends `send` to one rank and receives `receive` from the same or another, at the same time. If both
    /// peers are this rank itself, it copies.
    ///
    /// # Errors
    /// The errors of [`Communicator::send`]; [`Error::Length`] when a rank exchanges with itself and the
    /// buffers differ in length.
    pub fn exchange<T: Element>(
        &mut self,
        send: &[T],
        to: usize,
        receive: &mut [T],
        from: usize,
    ) -> Result<(), Error> {
        self.collectives.exchange_elements(send, to, receive, from)
    }

    /// In-place [`exchange`](Self::exchange): the message received, of the same length, replaces the one
    /// sent.
    ///
    /// # Errors
    /// The errors of [`Communicator::send`].
    pub fn exchange_in_place<T: Element>(
        &mut self,
        data: &mut [T],
        to: usize,
        from: usize,
    ) -> Result<(), Error> {
        self.collectives.exchange_in_place(data, to, from)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.collectives.run_barrier()
    }

    /// Ends the communicator when every rank has called it. A dropped communicator closes immediately; ranks
    /// waiting for this one in a later operation get an error after a second, unless rank 0 left more than a
    /// minute before. The limit of [`set_timeout`](Self::set_timeout) does not apply to the wait for missing
    /// ranks; [`World::set_limit`](world::World::set_limit) limits it.
    ///
    /// # Errors
    /// When another rank has failed.
    pub fn close(mut self) -> Result<(), Error> {
        self.collectives.record_leave();
        self.world.barrier()?;
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A panic is reported by the transport.
        if !std::thread::panicking() {
            self.collectives.record_leave();
        }
    }
}
