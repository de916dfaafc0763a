//! Checked operations, without their buffers, and NCCL's numbers for them.

use std::ops::Range;

use nccl_sys::{MissingSymbol, Version, ncclDataType_t, ncclRedOp_t, ncclWaitSignalDesc_t, ncclWindow_t};

use crate::nccl::{error::Error, library::Library, memory::Signal};
use crate::{DataType, Element, ReduceOp};

/// NCCL's number of a type.
pub(super) const fn raw_type(data_type: DataType) -> ncclDataType_t {
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
pub(super) const fn raw_op(op: ReduceOp) -> ncclRedOp_t {
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
pub(super) fn require_type<T: Element>(library: Library) -> Result<(), Error> {
    if const { is_fp8(T::DATA_TYPE) } { library.require(T::DATA_TYPE.name(), FP8) } else { Ok(()) }
}

pub(super) const fn is_fp8(data_type: DataType) -> bool {
    data_type.size() == 1 && data_type.is_float()
}

/// A checked operation: everything of it but the buffers.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// Elements, in the meaning of NCCL's function.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    /// This rank's number.
    pub(crate) rank: usize,
    /// The number of ranks.
    pub(crate) size: usize,
    /// True for a scaled sum over a single rank, for which NCCL has a kernel. NCCL does not make its device current before it.
    pub(crate) is_scale: bool,
}

/// Roots and peers are below the size, and so fit into NCCL's ints.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    AllReduce(ncclRedOp_t),
    Reduce(ncclRedOp_t, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ncclRedOp_t),
    AllToAll,
    AllToAllV(Box<[Exchange]>),
    Gather(usize),
    Scatter(usize),
    Send(usize),
    Recv(usize),
    /// With the other rank's window, and the offset in it in bytes.
    Put(Signal, ncclWindow_t, usize),
    Signal(Signal),
    WaitSignals(Box<[ncclWaitSignalDesc_t]>),
}

pub(super) const PUT: &str = "ncclPutSignal";
pub(super) const WAIT_SIGNAL: &str = "ncclWaitSignal";
pub(super) const ALL_TO_ALL_V: &str = "all_to_all_v (ncclSend, ncclRecv)";

/// The elements of the send buffer that go to a rank, and those of the receive buffer that come from it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) send: Range<usize>,
    pub(crate) receive: Range<usize>,
}

impl Kind {
    /// NCCL's function.
    #[inline]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::AllReduce(_) => "ncclAllReduce",
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
            Self::Put(..) => PUT,
            Self::Signal(_) => "ncclSignal",
            Self::WaitSignals(_) => WAIT_SIGNAL,
        }
    }

    /// True where the send buffer has one part for each rank.
    #[inline]
    pub(crate) const fn sends_parts(&self) -> bool {
        matches!(self, Self::ReduceScatter(_) | Self::AllToAll | Self::Scatter(_))
    }

    /// True where the receive buffer has one part for each rank.
    #[inline]
    pub(crate) const fn receives_parts(&self) -> bool {
        matches!(self, Self::AllGather | Self::AllToAll | Self::Gather(_))
    }

    #[inline]
    pub(crate) const fn root(&self) -> Option<usize> {
        match *self {
            Self::Reduce(_, root) | Self::Broadcast(root) | Self::Gather(root) | Self::Scatter(root) => {
                Some(root)
            }
            _ => None,
        }
    }

    /// The other rank, of two that take part.
    #[inline]
    pub(crate) const fn peer(&self) -> Option<usize> {
        match *self {
            Self::Send(peer) | Self::Recv(peer) => Some(peer),
            Self::Put(signal, ..) | Self::Signal(signal) => Some(signal.peer),
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
            Self::AllReduce(op) | Self::Reduce(op, _) | Self::ReduceScatter(op) => Some(op),
            _ => None,
        }
    }
}

impl Operation {
    /// NCCL's function.
    #[inline]
    pub(crate) const fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Refuses an operation whose function the library lacks, and which cannot be composed of others.
    pub(crate) fn require(&self, library: Library) -> Result<(), MissingSymbol> {
        match self.kind {
            Kind::Put(..) | Kind::Signal(_) | Kind::WaitSignals(_) => library.raw().require(self.name()),
            _ => Ok(()),
        }
    }

    /// True for an operation after which the windows' memory has what other ranks wrote.
    #[inline]
    pub(crate) const fn waits(&self) -> bool {
        matches!(self.kind, Kind::WaitSignals(_))
    }

    /// True where NCCL has an algorithm for it, and does not make sends and receives of it.
    pub(crate) const fn has_algorithm(&self) -> bool {
        matches!(self.kind, Kind::Broadcast(_) | Kind::AllGather) || self.kind.op().is_some()
    }

    /// True for a collective that is one function of NCCL: these have variants that take a configuration.
    #[inline]
    pub(crate) const fn is_collective(&self) -> bool {
        self.has_algorithm() || matches!(self.kind, Kind::AllToAll | Kind::Gather(_) | Kind::Scatter(_))
    }
}
