//! One operation on addresses: a collective after all checks, and the call of NCCL's function for it.

pub(crate) mod agreement;
pub(crate) mod batch;
pub(crate) mod call;
mod call_config;
mod collectives;
mod group;
mod reduction;
pub(crate) mod submit;

use std::ffi::{c_int, c_void};
use std::ops::Range;

use nccl_sys::{
    MissingSymbol, Nccl, Version, cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t,
    ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

use super::error::Error;
use super::library::Library;
use crate::{DataType, Element, ReduceOp};

pub use call::{Call, Captured, Immediate, Launch};
pub use call_config::CallConfig;
pub use collectives::Collectives;
pub use group::{Group, group, simulate};
pub(crate) use group::{cancelled, nested};
pub use reduction::{Reduction, ScaledSum};

/// NCCL's number of a type.
pub(crate) const fn raw_type(data_type: DataType) -> ncclDataType_t {
    match data_type {
        DataType::Int8 => ncclDataType_t::ncclInt8,
        DataType::Uint8 => ncclDataType_t::ncclUint8,
        DataType::Int32 => ncclDataType_t::ncclInt32,
        DataType::Uint32 => ncclDataType_t::ncclUint32,
        DataType::Int64 => ncclDataType_t::ncclInt64,
        DataType::Uint64 => ncclDataType_t::ncclUint64,
        DataType::Float16 => ncclDataType_t::ncclFloat16,
        DataType::Float32 => ncclDataType_t::ncclFloat32,
        DataType::Float64 => ncclDataType_t::ncclFloat64,
        DataType::Bfloat16 => ncclDataType_t::ncclBfloat16,
        DataType::Float8E4M3 => ncclDataType_t::ncclFloat8e4m3,
        DataType::Float8E5M2 => ncclDataType_t::ncclFloat8e5m2,
    }
}

/// NCCL's number of an operator.
pub(crate) const fn raw_op(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
    }
}

/// The first NCCL with 8-bit floating-point types.
const FP8: Version = Version::new(2, 24, 0);

/// Refuses a type that the library does not have yet.
#[inline]
pub(crate) fn require_type<T: Element>(library: Library) -> Result<(), Error> {
    if const { is_fp8(T::DATA_TYPE) } { library.require(T::DATA_TYPE.name(), FP8) } else { Ok(()) }
}

pub(crate) const fn is_fp8(data_type: DataType) -> bool {
    data_type.size() == 1 && data_type.is_float()
}

/// A checked operation: everything of it but the buffers.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Elements, in the meaning of NCCL's function.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) ranks: Ranks,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    AllReduce(ncclRedOp_t),
    Reduce(ncclRedOp_t, c_int),
    Broadcast(c_int),
    AllGather,
    ReduceScatter(ncclRedOp_t),
    /// A reduction with a scaled sum over a single rank.
    Scale(ncclRedOp_t),
    AllToAll,
    AllToAllV(Box<[Exchange]>),
    Gather(c_int),
    Scatter(c_int),
    Send(c_int),
    Recv(c_int),
    Put {
        peer: c_int,
        window: ncclWindow_t,
        offset: usize,
        index: c_int,
        context: c_int,
    },
    Signal {
        peer: c_int,
        index: c_int,
        context: c_int,
    },
    WaitSignals(Box<[ncclWaitSignalDesc_t]>),
}

pub(crate) const PUT: &str = "ncclPutSignal";
pub(crate) const WAIT_SIGNAL: &str = "ncclWaitSignal";
pub(crate) const ALL_TO_ALL_V: &str = "all_to_all_v (ncclSend, ncclRecv)";

/// Buffers that hold one part for each rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) send: bool,
    pub(crate) receive: bool,
}

impl Kind {
    /// NCCL's function.
    #[inline]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::AllReduce(_) | Self::Scale(_) => "ncclAllReduce",
            Self::Reduce(..) => "ncclReduce",
            Self::Broadcast(_) => "ncclBroadcast",
            Self::AllGather => "ncclAllGather",
            Self::ReduceScatter(_) => "ncclReduceScatter",
            Self::AllToAll => "ncclAlltoAll",
            Self::AllToAllV(_) => ALL_TO_ALL_V,
            Self::Gather(_) => "ncclGather",
            Self::Scatter(_) => "ncclScatter",
            Self::Send(_) => "ncclSend",
            Self::Recv(_) => "ncclRecv",
            Self::Put { .. } => PUT,
            Self::Signal { .. } => "ncclSignal",
            Self::WaitSignals(_) => WAIT_SIGNAL,
        }
    }

    #[inline]
    pub(crate) const fn parts(&self) -> Parts {
        Parts {
            send: matches!(self, Self::ReduceScatter(_) | Self::AllToAll | Self::Scatter(_)),
            receive: matches!(self, Self::AllGather | Self::AllToAll | Self::Gather(_)),
        }
    }

    #[inline]
    pub(crate) const fn root(&self) -> Option<c_int> {
        match *self {
            Self::Reduce(_, root) | Self::Broadcast(root) | Self::Gather(root) | Self::Scatter(root) => {
                Some(root)
            }
            _ => None,
        }
    }

    /// True where only the root needs a send buffer. Where it is false and there is a root, only that needs a receive buffer.
    #[inline]
    pub(crate) const fn root_sends(&self) -> bool {
        matches!(self, Self::Broadcast(_) | Self::Scatter(_))
    }

    #[inline]
    pub(crate) const fn op(&self) -> Option<ncclRedOp_t> {
        match *self {
            Self::AllReduce(op) | Self::Reduce(op, _) | Self::ReduceScatter(op) | Self::Scale(op) => Some(op),
            _ => None,
        }
    }

    /// True for a reduction that scales its input or its result.
    #[inline]
    pub(crate) fn scales(&self) -> bool {
        self.op().is_some_and(|op| op.0 >= ncclRedOp_t::ncclAvg.0)
    }

    /// The same over a single rank, for a kind that [scales](Self::scales). An average is the input. NCCL would run a kernel for
    /// it as for scaled sums, but has none for 8-bit floating-point numbers, and that for others leaves out elements: see
    /// [`Operation::scale`].
    pub(crate) fn of_one_rank(&self) -> Self {
        match self.op() {
            Some(op) if op != ncclRedOp_t::ncclAvg => Self::Scale(op),
            _ => Self::AllReduce(ncclRedOp_t::ncclSum),
        }
    }
}

/// The number of this rank, and of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    pub(crate) own: c_int,
    pub(crate) size: c_int,
}

/// The elements of the send buffer that go to a rank, and those of the receive buffer that come from it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) send: Range<usize>,
    pub(crate) receive: Range<usize>,
}

/// Where NCCL works: the addresses of the buffers, the communicator, and the stream.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) from: *const c_void,
    pub(crate) to: *mut c_void,
    pub(crate) comm: ncclComm_t,
    pub(crate) stream: cudaStream_t,
}

impl Operation {
    /// Calls NCCL's function, or others with the same result where the library has none.
    ///
    /// # Safety
    /// The addresses are those of the checked buffers, the handle is alive, and no other thread uses it.
    #[inline(always)]
    pub(crate) unsafe fn call(&self, raw: &Nccl, site: Site) -> Result<ncclResult_t, MissingSymbol> {
        let Site { from, to, comm, stream } = site;
        let (n, t) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        let code = unsafe {
            match self.kind {
                Kind::AllReduce(op) => raw.ncclAllReduce(from, to, n, t, op, comm, stream),
                Kind::Reduce(op, root) => raw.ncclReduce(from, to, n, t, op, root, comm, stream),
                Kind::Broadcast(root) => raw.ncclBroadcast(from, to, n, t, root, comm, stream),
                Kind::AllGather => raw.ncclAllGather(from, to, n, t, comm, stream),
                Kind::ReduceScatter(op) => raw.ncclReduceScatter(from, to, n, t, op, comm, stream),
                Kind::Send(peer) => raw.ncclSend(from, n, t, peer, comm, stream),
                Kind::Recv(peer) => raw.ncclRecv(to, n, t, peer, comm, stream),
                _ => return self.call_uncommon(raw, site),
            }
        };
        Ok(code)
    }

    /// # Safety
    /// See [`call`](Self::call).
    #[cold]
    unsafe fn call_uncommon(&self, raw: &Nccl, site: Site) -> Result<ncclResult_t, MissingSymbol> {
        let Site { from, to, comm, stream } = site;
        let (n, t) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract of `call`.
        unsafe {
            match self.kind {
                Kind::Scale(op) => Ok(self.scale(raw, site, op)),
                Kind::AllToAll if raw.has(self.name) => raw.ncclAlltoAll(from, to, n, t, comm, stream),
                Kind::Gather(root) if raw.has(self.name) => {
                    raw.ncclGather(from, to, n, t, root, comm, stream)
                }
                Kind::Scatter(root) if raw.has(self.name) => {
                    raw.ncclScatter(from, to, n, t, root, comm, stream)
                }
                Kind::Put { peer, window, offset, index, context } => {
                    raw.ncclPutSignal(from, n, t, peer, window, offset, index, context, 0, comm, stream)
                }
                Kind::Signal { peer, index, context } => {
                    raw.ncclSignal(peer, index, context, 0, comm, stream)
                }
                Kind::WaitSignals(ref descriptions) => {
                    // NCCL takes a pointer to mutable but only reads.
                    let mut descriptions = descriptions.clone();
                    let count = descriptions.len() as c_int;
                    raw.ncclWaitSignal(count, descriptions.as_mut_ptr(), comm, stream)
                }
                _ => Ok(self.exchange_all(raw, site)),
            }
        }
    }

    /// A scaled sum over a single rank. The kernel that NCCL has for it leaves out the last elements of some lengths, from 2.19
    /// to 2.29.3: those follow in a call of their own.
    ///
    /// # Safety
    /// See [`call`](Self::call).
    unsafe fn scale(&self, raw: &Nccl, site: Site, op: ncclRedOp_t) -> ncclResult_t {
        let Site { from, to, comm, stream } = site;
        let (bytes, t) = (self.data_type.size(), raw_type(self.data_type));
        let scale = |elements: Range<usize>| {
            let offset = elements.start * bytes;
            let (from, to) = (from.wrapping_byte_add(offset), to.wrapping_byte_add(offset));
            // SAFETY: by the contract of `call`: the elements lie within the checked buffers.
            accepted(unsafe { raw.ncclAllReduce(from, to, elements.len(), t, op, comm, stream) })
        };
        let is_whole = |&count: &usize| raw.version() >= SCALES_ALL || is_scaled_whole(count, bytes);
        let whole = (0..=self.count).rev().find(is_whole).unwrap_or(self.count);
        grouped(raw, || {
            scale(0..whole)?;
            if whole < self.count { scale(whole..self.count) } else { Ok(()) }
        })
    }

    /// Composes the operation of sends and receives in a group: for what NCCL has no function, or a newer one.
    ///
    /// # Safety
    /// See [`call`](Self::call).
    unsafe fn exchange_all(&self, raw: &Nccl, site: Site) -> ncclResult_t {
        let Site { from, to, comm, stream } = site;
        let (bytes, t) = (self.data_type.size(), raw_type(self.data_type));
        let exchange = |peer: c_int| {
            let Exchange { send, receive } = self.exchange(peer);
            // NCCL gives empty sends and receives a share of its channels, too.
            if !send.is_empty() {
                let from = from.wrapping_byte_add(send.start * bytes);
                // SAFETY: by the contract of `call`: the part lies within the checked buffer.
                accepted(unsafe { raw.ncclSend(from, send.len(), t, peer, comm, stream) })?;
            }
            if !receive.is_empty() {
                let to = to.wrapping_byte_add(receive.start * bytes);
                // SAFETY: as above.
                accepted(unsafe { raw.ncclRecv(to, receive.len(), t, peer, comm, stream) })?;
            }
            Ok(())
        };
        grouped(raw, || (0..self.ranks.size).try_for_each(exchange))
    }

    /// The elements that go to a rank and come from it.
    fn exchange(&self, peer: c_int) -> Exchange {
        let part = peer as usize * self.count..(peer as usize + 1) * self.count;
        let whole = 0..self.count;
        let only = |condition: bool, range: Range<usize>| if condition { range } else { 0..0 };
        let (send, receive) = match self.kind {
            Kind::AllToAll => (part.clone(), part),
            Kind::AllToAllV(ref exchanges) => return exchanges[peer as usize].clone(),
            Kind::Gather(root) => (only(peer == root, whole), only(self.ranks.own == root, part)),
            Kind::Scatter(root) => (only(self.ranks.own == root, part), only(peer == root, whole)),
            _ => (0..0, 0..0),
        };
        Exchange { send, receive }
    }

    /// Calls the variant of NCCL's function that takes a configuration.
    ///
    /// # Safety
    /// See [`call`](Self::call); the pointers in the configuration are valid.
    pub(crate) unsafe fn call_configured(
        &self,
        raw: &Nccl,
        site: Site,
        config: &ncclCollConfig_t,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let Site { from, to, comm, stream } = site;
        let (n, t) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        unsafe {
            match self.kind {
                // The versions that take a configuration scale all elements.
                Kind::AllReduce(op) | Kind::Scale(op) => {
                    raw.ncclAllReduceConfig(from, to, n, t, op, comm, stream, config)
                }
                Kind::Reduce(op, root) => {
                    raw.ncclReduceConfig(from, to, n, t, op, root, comm, stream, config)
                }
                Kind::Broadcast(root) => raw.ncclBroadcastConfig(from, to, n, t, root, comm, stream, config),
                Kind::AllGather => raw.ncclAllGatherConfig(from, to, n, t, comm, stream, config),
                Kind::ReduceScatter(op) => {
                    raw.ncclReduceScatterConfig(from, to, n, t, op, comm, stream, config)
                }
                Kind::AllToAll => raw.ncclAlltoAllConfig(from, to, n, t, comm, stream, config),
                Kind::Gather(root) => raw.ncclGatherConfig(from, to, n, t, root, comm, stream, config),
                Kind::Scatter(root) => raw.ncclScatterConfig(from, to, n, t, root, comm, stream, config),
                // The caller has refused these.
                _ => Ok(ncclResult_t::ncclInvalidUsage),
            }
        }
    }

    /// Refuses what the library has no function for, and no other way.
    pub(crate) fn require(&self, library: Library) -> Result<(), MissingSymbol> {
        match self.kind {
            Kind::Put { .. } | Kind::Signal { .. } | Kind::WaitSignals(_) => library.raw().require(self.name),
            _ => Ok(()),
        }
    }

    /// True for what NCCL has a kernel for over a single rank, where it does not make its device current first.
    #[inline]
    pub(crate) fn needs_kernel(&self) -> bool {
        matches!(self.kind, Kind::Scale(_))
    }

    /// True for an operation after which the windows' memory has what other ranks wrote.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        matches!(self.kind, Kind::WaitSignals(_))
    }

    /// True where NCCL has an algorithm for it, and does not make sends and receives of it.
    pub(crate) fn has_algorithm(&self) -> bool {
        matches!(
            self.kind,
            Kind::AllReduce(_)
                | Kind::Reduce(..)
                | Kind::Broadcast(_)
                | Kind::AllGather
                | Kind::ReduceScatter(_)
                | Kind::Scale(_)
        )
    }

    /// True for a collective that is one function of NCCL: these have variants that take a configuration.
    #[inline]
    pub(crate) fn is_collective(&self) -> bool {
        self.has_algorithm() || matches!(self.kind, Kind::AllToAll | Kind::Gather(_) | Kind::Scatter(_))
    }
}

/// The first NCCL whose kernel for a single rank scales all elements again.
const SCALES_ALL: Version = Version::new(2, 29, 7);

/// True when older kernels scale all of so many elements. It gives each block of threads the same number
/// of elements: their share rounded down, and then up to 16 bytes.
fn is_scaled_whole(count: usize, bytes: usize) -> bool {
    let blocks = (count * bytes).div_ceil(16 << 10).clamp(1, 32);
    (count / blocks).next_multiple_of(16 / bytes) * blocks >= count
}

/// Makes several calls in a group of NCCL's, which launches nothing where one of them fails.
fn grouped(raw: &Nccl, calls: impl FnOnce() -> Result<(), ncclResult_t>) -> ncclResult_t {
    // SAFETY: no arguments; the group is ended below on this thread.
    let started = unsafe { raw.ncclGroupStart() };
    if started != ncclResult_t::ncclSuccess {
        return started;
    }
    let queued = calls();
    // SAFETY: no arguments.
    let ended = unsafe { raw.ncclGroupEnd() };
    queued.err().unwrap_or(ended)
}

fn accepted(code: ncclResult_t) -> Result<(), ncclResult_t> {
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => Err(code),
    }
}
