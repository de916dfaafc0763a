//! One operation on addresses: a collective after all checks, and the call of NCCL's function for it.

pub(crate) mod agreement;
pub(crate) mod batch;
mod call;
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

pub use call::Call;
pub use call_config::CallConfig;
pub use collectives::Collectives;
pub(crate) use group::nested;
pub use group::{Group, group, simulate};
pub use reduction::{Reduction, ScaledSum};
pub use submit::{Captured, Immediate, Launch};

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

const fn is_fp8(data_type: DataType) -> bool {
    data_type.size() == 1 && data_type.is_float()
}

/// A checked operation: everything of it but the buffers.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Operation {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Elements, in the meaning of NCCL's function.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    /// Byte offsets of NCCL's two addresses in the buffers.
    pub(crate) offsets: Offsets,
}

/// Where in its buffers an operation reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offsets {
    pub(crate) source: u64,
    pub(crate) target: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    AllReduce(ncclRedOp_t),
    Reduce(ncclRedOp_t, c_int),
    Broadcast(c_int),
    AllGather,
    ReduceScatter(ncclRedOp_t),
    AllToAll(Ranks),
    AllToAllV(Box<[Exchange]>),
    Gather(c_int, Ranks),
    Scatter(c_int, Ranks),
    Send(c_int),
    Recv(c_int),
    Put { peer: c_int, window: ncclWindow_t, offset: usize, index: c_int, context: c_int },
    Signal { peer: c_int, index: c_int, context: c_int },
    WaitSignals(Box<[ncclWaitSignalDesc_t]>),
}

/// This rank and how many there are, for operations that are composed of sends and receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    pub(crate) own: c_int,
    pub(crate) size: c_int,
}

/// What goes to one rank and comes from it: elements of the send buffer, and of the receive buffer.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) send: Range<usize>,
    pub(crate) receive: Range<usize>,
}

/// Where NCCL works: the addresses of the buffers, the communicator, and the stream.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) source: *const c_void,
    pub(crate) target: *mut c_void,
    pub(crate) handle: ncclComm_t,
    pub(crate) stream: cudaStream_t,
}

impl Operation {
    /// The functions below that need a newer NCCL than the oldest have another way where there is one.
    ///
    /// # Safety
    /// The addresses are those of the checked buffers, the handle is alive, and no other thread uses it.
    #[inline(always)]
    pub(crate) unsafe fn call(&self, raw: &Nccl, site: Site) -> Result<ncclResult_t, MissingSymbol> {
        let Site { source, target, handle, stream } = site;
        let (count, data_type) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        Ok(unsafe {
            match self.kind {
                Kind::AllReduce(op) => {
                    raw.ncclAllReduce(source, target, count, data_type, op, handle, stream)
                }
                Kind::Reduce(op, root) => {
                    raw.ncclReduce(source, target, count, data_type, op, root, handle, stream)
                }
                Kind::Broadcast(root) => {
                    raw.ncclBroadcast(source, target, count, data_type, root, handle, stream)
                }
                Kind::AllGather => raw.ncclAllGather(source, target, count, data_type, handle, stream),
                Kind::ReduceScatter(op) => {
                    raw.ncclReduceScatter(source, target, count, data_type, op, handle, stream)
                }
                Kind::Send(peer) => raw.ncclSend(source, count, data_type, peer, handle, stream),
                Kind::Recv(peer) => raw.ncclRecv(target, count, data_type, peer, handle, stream),
                _ => return self.call_uncommon(raw, site),
            }
        })
    }

    /// # Safety
    /// As [`call`](Self::call).
    #[cold]
    unsafe fn call_uncommon(&self, raw: &Nccl, site: Site) -> Result<ncclResult_t, MissingSymbol> {
        let Site { source, target, handle, stream } = site;
        let (count, data_type) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        unsafe {
            match &self.kind {
                Kind::AllToAll(_) if raw.has("ncclAlltoAll") => {
                    raw.ncclAlltoAll(source, target, count, data_type, handle, stream)
                }
                Kind::Gather(root, _) if raw.has("ncclGather") => {
                    raw.ncclGather(source, target, count, data_type, *root, handle, stream)
                }
                Kind::Scatter(root, _) if raw.has("ncclScatter") => {
                    raw.ncclScatter(source, target, count, data_type, *root, handle, stream)
                }
                Kind::Put { peer, window, offset, index, context } => raw.ncclPutSignal(
                    source, count, data_type, *peer, *window, *offset, *index, *context, 0, handle, stream,
                ),
                Kind::Signal { peer, index, context } => {
                    raw.ncclSignal(*peer, *index, *context, 0, handle, stream)
                }
                Kind::WaitSignals(descriptions) => {
                    // NCCL takes a pointer to mutable but only reads.
                    let mut descriptions = descriptions.clone();
                    let count = descriptions.len() as c_int;
                    raw.ncclWaitSignal(count, descriptions.as_mut_ptr(), handle, stream)
                }
                _ => Ok(self.compose(raw, site)),
            }
        }
    }

    /// The same result by sends and receives in a group: for what NCCL has no function, or a newer one.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    unsafe fn compose(&self, raw: &Nccl, site: Site) -> ncclResult_t {
        let bytes = self.data_type.size();
        let part = |rank: c_int| rank as usize * self.count..(rank as usize + 1) * self.count;
        let whole = 0..self.count;
        let composed = Composed { raw, site, bytes, data_type: raw_type(self.data_type) };
        let body = || {
            // SAFETY: by the contract above: the parts lie within the checked buffers.
            unsafe {
                match &self.kind {
                    Kind::AllToAll(ranks) => {
                        (0..ranks.size).try_for_each(|peer| composed.exchange(peer, part(peer), part(peer)))
                    }
                    Kind::AllToAllV(exchanges) => (0..).zip(exchanges).try_for_each(|(peer, exchange)| {
                        composed.exchange(peer, exchange.send.clone(), exchange.receive.clone())
                    }),
                    Kind::Gather(root, ranks) => {
                        composed.send(*root, whole)?;
                        let from = if ranks.own == *root { 0..ranks.size } else { 0..0 };
                        from.into_iter().try_for_each(|peer| composed.receive(peer, part(peer)))
                    }
                    Kind::Scatter(root, ranks) => {
                        let to = if ranks.own == *root { 0..ranks.size } else { 0..0 };
                        to.into_iter().try_for_each(|peer| composed.send(peer, part(peer)))?;
                        composed.receive(*root, whole)
                    }
                    _ => Ok(()),
                }
            }
        };
        // SAFETY: no arguments; the group is ended below on this thread.
        let started = unsafe { raw.ncclGroupStart() };
        if started != ncclResult_t::ncclSuccess {
            return started;
        }
        let queued = body();
        // SAFETY: no arguments. Where an operation failed, NCCL launches nothing.
        let ended = unsafe { raw.ncclGroupEnd() };
        queued.err().unwrap_or(ended)
    }

    /// The same by the variant of NCCL's function that takes a configuration.
    ///
    /// # Safety
    /// As [`call`](Self::call); the pointers in the configuration are valid.
    pub(crate) unsafe fn call_configured(
        &self,
        raw: &Nccl,
        site: Site,
        config: &ncclCollConfig_t,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let Site { source, target, handle, stream } = site;
        let (count, data_type) = (self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        unsafe {
            match self.kind {
                Kind::AllReduce(op) => {
                    raw.ncclAllReduceConfig(source, target, count, data_type, op, handle, stream, config)
                }
                Kind::Reduce(op, root) => {
                    raw.ncclReduceConfig(source, target, count, data_type, op, root, handle, stream, config)
                }
                Kind::Broadcast(root) => {
                    raw.ncclBroadcastConfig(source, target, count, data_type, root, handle, stream, config)
                }
                Kind::AllGather => {
                    raw.ncclAllGatherConfig(source, target, count, data_type, handle, stream, config)
                }
                Kind::ReduceScatter(op) => {
                    raw.ncclReduceScatterConfig(source, target, count, data_type, op, handle, stream, config)
                }
                Kind::AllToAll(_) => {
                    raw.ncclAlltoAllConfig(source, target, count, data_type, handle, stream, config)
                }
                Kind::Gather(root, _) => {
                    raw.ncclGatherConfig(source, target, count, data_type, root, handle, stream, config)
                }
                Kind::Scatter(root, _) => {
                    raw.ncclScatterConfig(source, target, count, data_type, root, handle, stream, config)
                }
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

    /// Whether NCCL runs a kernel for it over a single rank, where it does not make its device current first. What
    /// scales its input does.
    #[inline]
    pub(crate) fn needs_kernel(&self) -> bool {
        match self.kind {
            Kind::AllReduce(op) | Kind::Reduce(op, _) | Kind::ReduceScatter(op) => {
                op.0 >= ncclRedOp_t::ncclAvg.0
            }
            _ => false,
        }
    }

    /// True for an operation after which the windows' memory has what other ranks wrote.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        matches!(self.kind, Kind::WaitSignals(_))
    }

    /// Whether NCCL makes sends and receives of it.
    pub(crate) fn is_point_to_point(&self) -> bool {
        !matches!(
            self.kind,
            Kind::AllReduce(_)
                | Kind::Reduce(..)
                | Kind::Broadcast(_)
                | Kind::AllGather
                | Kind::ReduceScatter(_)
        )
    }

    /// Whether NCCL has a variant of its function that takes a configuration.
    pub(crate) fn takes_config(&self) -> bool {
        !matches!(
            self.kind,
            Kind::AllToAllV(_)
                | Kind::Send(_)
                | Kind::Recv(_)
                | Kind::Put { .. }
                | Kind::Signal { .. }
                | Kind::WaitSignals(_)
        )
    }
}

/// Sends and receives of elements of an operation's buffers.
#[derive(Clone, Copy)]
struct Composed<'a> {
    raw: &'a Nccl,
    site: Site,
    bytes: usize,
    data_type: ncclDataType_t,
}

impl Composed<'_> {
    /// # Safety
    /// The elements lie in the send buffer; else as [`Operation::call`].
    unsafe fn send(&self, peer: c_int, elements: Range<usize>) -> Result<(), ncclResult_t> {
        let Site { source, handle, stream, .. } = self.site;
        let from = source.wrapping_byte_add(elements.start * self.bytes);
        // SAFETY: by the contract above.
        accepted(unsafe { self.raw.ncclSend(from, elements.len(), self.data_type, peer, handle, stream) })
    }

    /// # Safety
    /// The elements lie in the receive buffer; else as [`Operation::call`].
    unsafe fn receive(&self, peer: c_int, elements: Range<usize>) -> Result<(), ncclResult_t> {
        let Site { target, handle, stream, .. } = self.site;
        let to = target.wrapping_byte_add(elements.start * self.bytes);
        // SAFETY: by the contract above.
        accepted(unsafe { self.raw.ncclRecv(to, elements.len(), self.data_type, peer, handle, stream) })
    }

    /// # Safety
    /// As [`send`](Self::send) and [`receive`](Self::receive).
    unsafe fn exchange(
        &self,
        peer: c_int,
        send: Range<usize>,
        receive: Range<usize>,
    ) -> Result<(), ncclResult_t> {
        // NCCL gives empty sends and receives a share of its channels, too.
        if !send.is_empty() {
            // SAFETY: by the contract above.
            unsafe { self.send(peer, send) }?;
        }
        if !receive.is_empty() {
            // SAFETY: by the contract above.
            unsafe { self.receive(peer, receive) }?;
        }
        Ok(())
    }
}

fn accepted(code: ncclResult_t) -> Result<(), ncclResult_t> {
    match code {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        code => Err(code),
    }
}
