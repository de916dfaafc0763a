//! Collectives of the ranks of a job, or of a part of them.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "nccl")]
use cudarc::driver::{CudaContext, CudaStream};

use super::backend::{Backend, Choice};
use super::buffer::{Buffer, BufferSet, hold_buffers};
use super::connect::connect_ranks;
use super::connection::GroupConnection;
use super::dispatch::with_backend;
use super::group_backend::{GroupBackend, Operations as _};
use super::work::Work;
use super::work_error::FailedWork;
use crate::lock::lock;
use crate::purpose::Purpose;
use crate::world::{self, MAX_MESSAGE, Members, Part, PartExchange, Position, Reason};
use crate::{Element, Error, ReduceOp};

/// Collectives of the ranks of a [`Job`](super::Job), or of a part of them, over host memory or GPUs.
///
/// All ranks of the group call the same operations in the same order, with the same lengths, element types,
/// operators and roots. Each operation runs after those called before. Clones are the same rank of the same
/// group; where several threads call, the program must order their calls alike on all ranks.
///
/// Operations that own their buffers return at once, with a [`Work`] that gives them back. The others return
/// when the operation is complete.
///
/// Dropping the last clone waits for the operations under way, and leaves the group; in a waker that a group
/// calls, another thread does that; while the thread is panicking, it tells the other ranks instead.
///
/// # Errors
/// An operation whose arguments are refused ([`Error::Buffer`], [`Error::Job`]) has sent nothing, and the
/// group can still be used; [`Work::wait_or_return`] returns its buffers. After any other error the group has
/// stopped, on all its ranks: every operation returns that error. [`Error::RankFailed`] has the failed rank
/// and its own reason, [`Error::Mismatch`] both calls of ranks that differ. Errors number ranks as the job
/// does, also in parts of it.
#[derive(Clone)]
pub struct Group {
    connection: GroupConnection,
    inner: Arc<Inner>,
}

struct Inner {
    members: Members,
    world: world::Handle,
    /// The reason of [`Backend::Auto`] for hosts.
    reason: Option<String>,
    /// Reducers and sharded optimizers so far.
    reducers: AtomicU32,
    /// Held during a [`split`](Group::split), whose exchanges would mix with those of another thread's.
    splitting: Mutex<()>,
    /// True for the job's first group of all ranks, which exchanges messages over the world if it is over
    /// GPUs. Other groups exchange them over NCCL: calls of different groups need not have the same order on
    /// all ranks.
    over_world: bool,
}

impl Group {
    /// All ranks of a job.
    pub(super) fn of_job(world: &world::Handle, choice: Choice, over_world: bool) -> Result<Self, Error> {
        let members = Members::of_all(&**world);
        let exchange = Arc::clone(world);
        Self::form(world, members, Box::new(move |mine| exchange.all_gather(mine)), choice, over_world)
    }

    fn form(
        world: &world::Handle,
        members: Members,
        exchange: Box<PartExchange<'static>>,
        choice: Choice,
        over_world: bool,
    ) -> Result<Self, Error> {
        let part = Part::of_members(Arc::clone(world), members.clone(), exchange);
        let connected = connect_ranks(&part, &members, choice);
        let ended = part.end(connected.as_ref().err().map(Reason::from));
        let (connection, reason) = connected?;
        ended?;
        let (world, reducers, splitting) = (Arc::clone(world), AtomicU32::new(0), Mutex::new(()));
        let inner = Inner { members, world, reason, reducers, splitting, over_world };
        Ok(Self { connection, inner: Arc::new(inner) })
    }

    /// The same rank of the same group, for operations of a purpose.
    pub(crate) fn with_purpose(&self, purpose: Purpose) -> Self {
        let mut group = self.clone();
        with_backend!(GroupConnection, &mut group.connection, rank => *rank.purpose_mut() = Some(purpose));
        group
    }

    /// The number of a reducer or sharded optimizer, the same on all ranks, which make them in the same
    /// order.
    pub(crate) fn next_reducer(&self) -> u32 {
        self.inner.reducers.fetch_add(1, Ordering::Relaxed)
    }

    /// This rank in the group, `0..size`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.members.position.rank
    }

    /// Number of ranks of the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.members.position.size
    }

    /// The ranks of the job that are in the group, by their rank in the group.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.inner.members.of_job
    }

    /// The world of the whole job. A job's first group over GPUs uses its collectives
    /// ([`all_gather_bytes`](Self::all_gather_bytes), [`split`](Self::split)): call both in the same order on
    /// all ranks.
    #[must_use]
    pub fn world(&self) -> &world::Handle {
        &self.inner.world
    }

    /// [`Backend::Host`] or [`Backend::Gpu`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        fn backend_of<G: GroupBackend>(_: &G) -> Backend {
            G::BACKEND
        }
        with_backend!(GroupConnection, &self.connection, rank => backend_of(rank))
    }

    /// Describes the transport in one line; where [`Backend::Auto`] has chosen hosts, also the reason. The
    /// error of [`Backend::Gpu`] has the details.
    #[must_use]
    pub fn describe(&self) -> String {
        let transport = with_backend!(GroupConnection, &self.connection, rank => rank.describe_transport());
        match &self.inner.reason {
            Some(reason) => {
                // The places in which libraries were looked for are on lines of their own.
                let first = reason.lines().next().unwrap_or_default();
                format!("{transport}; not GPUs: {first}")
            }
            None => transport.to_owned(),
        }
    }

    /// The longest time that an operation waits for other ranks, as [`set_timeout`](Self::set_timeout) has
    /// set it.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        with_backend!(GroupConnection, &self.connection, rank => rank.operation_timeout())
    }

    /// Sets the longest time that an operation of this rank waits for the others; `None`, the default, waits
    /// forever. After that, and 200 ms in which the other ranks report their calls, it returns
    /// [`Error::TimedOut`], which names the ranks that have not reported the call, and so do the operations
    /// of the other ranks, as far as they can be told. The ranks may set different times. On GPUs the time
    /// includes the work that is queued on the buffers' streams before the operation.
    ///
    /// A timeout notices ranks that are alive but do not come to the operation. Ranks that have ended, and
    /// different calls, are noticed without. A timeout stops all groups of the job. With a timeout of zero,
    /// every operation that waits fails. Parts that [`split`](Self::split) makes begin with the timeout of
    /// their group.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        with_backend!(GroupConnection, &self.connection, rank => rank.set_timeout(limit))
    }

    /// Returns the error that has stopped the group or the job, without waiting for other ranks. On GPUs,
    /// whose operations are not complete when calls return: once a stream that waits for an operation is
    /// synchronised, `Ok` means that the operation is complete.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn check(&self) -> Result<(), Error> {
        with_backend!(GroupConnection, &self.connection, rank => rank.check_group())
    }

    /// The group's own stream, on which its collectives run; `None` on hosts. Operations on memory that is
    /// allocated on it make no other stream wait.
    #[cfg(feature = "nccl")]
    #[must_use]
    pub fn stream(&self) -> Option<&Arc<CudaStream>> {
        with_backend!(GroupConnection, &self.connection, rank => rank.group_stream())
    }

    /// The context of this rank's device; `None` on hosts.
    #[cfg(feature = "nccl")]
    #[must_use]
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        self.stream().map(|stream| stream.context())
    }

    /// Returns when every rank has called it, and all operations before are complete.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn barrier(&self) -> Result<(), Error> {
        with_backend!(GroupConnection, &self.connection, rank => rank.run_barrier())
    }

    /// Makes a group of the ranks that pass the same color, in the order of this group's ranks, and with its
    /// backend; `None` for ranks without a color. Collective: returns when every rank of this group has
    /// called it.
    ///
    /// # Errors
    /// Those of [`Job::group`](super::Job::group); see [`Group`].
    pub fn split(&self, color: Option<u32>) -> Result<Option<Self>, Error> {
        let _one = lock(&self.inner.splitting);
        let host = world::host().id;
        let own =
            [&[u8::from(color.is_some())], &color.unwrap_or(0).to_le_bytes()[..], host.as_bytes()].concat();
        let group = self.with_purpose(Purpose::Split);
        let all = group.all_gather_bytes(&own)?;
        let members = self.members_of_color(&all);
        let world = &self.inner.world;
        // The parts connect over a world, whose error type cannot represent every error of a group.
        let failure = Arc::new(Mutex::new(None));
        let exchange = Box::new({
            let failure = Arc::clone(&failure);
            move |mine: &[u8]| {
                let gathered = group.all_gather_bytes(mine);
                // The other ranks wait in this exchange: a refusal of it is a failure.
                let gathered = gathered.inspect_err(|error| {
                    if error.is_refusal() {
                        group.world().fail(Reason::from(error));
                    }
                });
                gathered.map_err(|error| world::Error::from(lock(&failure).insert(error).clone()))
            }
        });
        let restore = |error| match error {
            Error::World(world::Error::Mismatch(_)) => lock(&failure).take().unwrap_or(error),
            other => other,
        };
        if color.is_none() {
            let part = Part::of_members(Arc::clone(world), members, exchange);
            return part.end(None).map(|()| None).map_err(|error| restore(error.into()));
        }
        let choice = with_backend!(GroupConnection, &self.connection, rank => rank.backend_choice());
        let part = Self::form(world, members, exchange, choice, false).map_err(restore)?;
        part.set_timeout(self.timeout());
        Ok(Some(part))
    }

    /// The ranks with this rank's color, from all ranks' messages of [`split`](Self::split).
    fn members_of_color(&self, all: &[Vec<u8>]) -> Members {
        let color = |message: &[u8]| message.get(..5).map(<[u8]>::to_vec);
        let own = all.get(self.rank()).map(Vec::as_slice).unwrap_or_default();
        let of_parent: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(_, message)| color(message) == color(own))
            .map(|(rank, _)| rank)
            .collect();
        let here: Vec<usize> = of_parent
            .iter()
            .copied()
            .filter(|&rank| all.get(rank).is_some_and(|message| message == own))
            .collect();
        let place = |ranks: &[usize]| ranks.iter().position(|&rank| rank == self.rank()).unwrap_or(0);
        let position = Position {
            rank: place(&of_parent),
            size: of_parent.len(),
            local_rank: place(&here),
            local_size: here.len(),
        };
        let of_job = of_parent.iter().filter_map(|&rank| self.ranks().get(rank).copied()).collect();
        Members { of_parent, of_job, position }
    }

    /// Replaces `data` on every rank by the [reduction](ReduceOp) of all ranks' `data`, element by element.
    /// It has the same length on every rank.
    pub fn all_reduce<B: Buffer>(&self, data: B, op: ReduceOp) -> Work<B> {
        self.start_operation::<B, _>("all_reduce", data, |rank, data| rank.all_reduce(data, op))
    }

    /// Replaces `data` on every rank by that of rank `root` of the group. It has the same length on every
    /// rank.
    pub fn broadcast<B: Buffer>(&self, data: B, root: usize) -> Work<B> {
        self.start_operation::<B, _>("broadcast", data, |rank, data| rank.broadcast(data, root))
    }

    /// Concatenates all ranks' `part` in every rank's `whole`, in rank order. `part` has the same length on
    /// every rank, and `whole` has [`size`](Self::size) times as many elements. Returns `(part, whole)`.
    pub fn all_gather<B: Buffer>(&self, part: B, whole: B) -> Work<(B, B)> {
        self.start_operation::<B, _>("all_gather", (part, whole), |rank, (part, whole)| {
            rank.all_gather(part, whole)
        })
    }

    /// Reduces all ranks' `whole`, cuts the result into one block for each rank, and stores this rank's block
    /// in `part`. `whole` has the same length on every rank, [`size`](Self::size) times that of `part`, and
    /// stays as it is. Returns `(whole, part)`.
    pub fn reduce_scatter<B: Buffer>(&self, whole: B, part: B, op: ReduceOp) -> Work<(B, B)> {
        self.start_operation::<B, _>("reduce_scatter", (whole, part), |rank, (whole, part)| {
            rank.reduce_scatter(whole, part, op)
        })
    }

    /// An [`all_reduce`](Self::all_reduce) of several buffers as one operation, which is faster than one for
    /// each where they are small. The list has the same lengths in the same order on every rank; they are
    /// compared on hosts.
    pub fn all_reduce_list<B: Buffer>(&self, data: Vec<B>, op: ReduceOp) -> Work<Vec<B>> {
        self.start_operation::<B, _>("all_reduce_list", data, |rank, data| rank.all_reduce_list(data, op))
    }

    /// Starts an operation on memory `B`, or refuses it if the group has the other backend.
    fn start_operation<B: Buffer, W: BufferSet<B>>(
        &self,
        operation: &str,
        buffers: W,
        start: impl FnOnce(&B::Group, W) -> Work<W>,
    ) -> Work<W> {
        match self.connection.as_backend::<B::Group>() {
            Some(rank) => start(rank, buffers),
            None => {
                let error = other_memory(operation, self.backend());
                Work::not_begun(FailedWork::new(error, hold_buffers::<B, _>(buffers)))
            }
        }
    }

    /// An [`all_reduce`](Self::all_reduce) of borrowed host memory, which returns when it is complete. A
    /// group on GPUs copies it to the GPU and back.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        with_backend!(GroupConnection, &self.connection, rank => rank.all_reduce_in_place(data, op))
    }

    /// A [`broadcast`](Self::broadcast) of borrowed host memory, which returns when it is complete. A group
    /// on GPUs copies it to the GPU and back.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn broadcast_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        with_backend!(GroupConnection, &self.connection, rank => rank.broadcast_in_place(data, root))
    }

    /// Gathers a message of every rank, in rank order; lengths may differ between ranks. For names, shapes
    /// and other small values.
    ///
    /// # Errors
    /// [`Error::Buffer`] for a message of more than 16 MiB. See [`Group`].
    pub fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if mine.len() > MAX_MESSAGE {
            return Err(Error::Buffer(format!(
                "all_gather_bytes: the message has {} bytes, and may have {MAX_MESSAGE}: gather data with \
                 all_gather",
                mine.len()
            )));
        }
        let world = Some(&self.inner.world).filter(|_| self.inner.over_world);
        with_backend!(GroupConnection, &self.connection, rank => rank.all_gather_bytes(mine, world))
    }
}

/// The error of buffers of the backend that the group does not have.
fn other_memory(operation: &str, of_group: Backend) -> Error {
    let (memory, place, instead, backend) = match of_group {
        Backend::Gpu => ("host memory", "GPUs", "a CudaSlice", Backend::Host),
        _ => ("memory of a GPU", "hosts", "a Vec", Backend::Gpu),
    };
    Error::Buffer(format!(
        "{operation}: the buffer is {memory}, but this group is over {place}: pass {instead}, or make the \
         group with Backend::{backend:?}"
    ))
}

impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Group(rank {} of {}, {})", self.rank(), self.size(), self.describe())
    }
}
