//! Checked operations without their buffers, and NCCL's constants for them.

use std::ops::Range;

use nccl_sys::{MissingSymbol, Version, ncclDataType_t, ncclRedOp_t, ncclWaitSignalDesc_t, ncclWindow_t};

use crate::nccl::{error::Error, library::Library, memory::Signal};
use crate::{DataType, Element, ReduceOp};

/// NCCL's constant of a type. It has the same number.
pub(super) const fn raw_type(data_type: DataType) -> ncclDataType_t {
    ncclDataType_t(data_type as u32)
}

/// NCCL's constant of an operator. It has the same number.
pub(super) const fn raw_op(op: ReduceOp) -> ncclRedOp_t {
    ncclRedOp_t(op as u32)
}

const _: () = {
    assert!(raw_type(DataType::Int8).0 == ncclDataType_t::ncclInt8.0);
    assert!(raw_type(DataType::Uint8).0 == ncclDataType_t::ncclUint8.0);
    assert!(raw_type(DataType::Int32).0 == ncclDataType_t::ncclInt32.0);
    assert!(raw_type(DataType::Uint32).0 == ncclDataType_t::ncclUint32.0);
    assert!(raw_type(DataType::Int64).0 == ncclDataType_t::ncclInt64.0);
    assert!(raw_type(DataType::Uint64).0 == ncclDataType_t::ncclUint64.0);
    assert!(raw_type(DataType::Float16).0 == ncclDataType_t::ncclFloat16.0);
    assert!(raw_type(DataType::Float32).0 == ncclDataType_t::ncclFloat32.0);
    assert!(raw_type(DataType::Float64).0 == ncclDataType_t::ncclFloat64.0);
    assert!(raw_type(DataType::Bfloat16).0 == ncclDataType_t::ncclBfloat16.0);
    assert!(raw_type(DataType::Float8E4M3).0 == ncclDataType_t::ncclFloat8e4m3.0);
    assert!(raw_type(DataType::Float8E5M2).0 == ncclDataType_t::ncclFloat8e5m2.0);
    assert!(raw_op(ReduceOp::Sum).0 == ncclRedOp_t::ncclSum.0);
    assert!(raw_op(ReduceOp::Prod).0 == ncclRedOp_t::ncclProd.0);
    assert!(raw_op(ReduceOp::Max).0 == ncclRedOp_t::ncclMax.0);
    assert!(raw_op(ReduceOp::Min).0 == ncclRedOp_t::ncclMin.0);
    assert!(raw_op(ReduceOp::Avg).0 == ncclRedOp_t::ncclAvg.0);
};

/// First NCCL with 8-bit floating-point types.
const FP8: Version = Version::new(2, 24, 0);

#[inline]
pub(super) fn require_type<T: Element>(library: Library) -> Result<(), Error> {
    if const { is_fp8(T::DATA_TYPE) } { library.require(T::DATA_TYPE.name(), FP8) } else { Ok(()) }
}

pub(super) const fn is_fp8(data_type: DataType) -> bool {
    data_type.size() == 1 && data_type.is_float()
}

#[derive(Clone, Debug)]
pub(crate) struct NcclOperation {
    pub(crate) kind: OperationKind,
    /// Count argument of NCCL's function, in elements.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// True for a scaled sum over a single rank. NCCL has a kernel for it, but does not make its device
    /// current before.
    pub(crate) is_scale: bool,
}

/// Kind of an operation. Roots and peers are below the size, so they fit into NCCL's ints.
#[derive(Clone, Debug)]
pub(crate) enum OperationKind {
    AllReduce(ncclRedOp_t),
    Reduce(ncclRedOp_t, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ncclRedOp_t),
    AllToAll,
    AllToAllV(Box<[PeerExchange]>),
    Gather(usize),
    Scatter(usize),
    Send(usize),
    Recv(usize),
    /// With the peer's window, and the offset in it in bytes.
    Put(Signal, PeerWindow, usize),
    Signal(Signal),
    WaitSignals(Box<[ncclWaitSignalDesc_t]>),
}

pub(super) const PUT: &str = "ncclPutSignal";
pub(super) const WAIT_SIGNAL: &str = "ncclWaitSignal";
pub(super) const ALL_TO_ALL_V: &str = "all_to_all_v (ncclSend, ncclRecv)";

/// NCCL's handle of the window of a rank that writes into a peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWindow(pub(crate) ncclWindow_t);

// SAFETY: it is only passed to NCCL, together with the communicator; one thread at a time uses the latter.
unsafe impl Send for PeerWindow {}
// SAFETY: as above.
unsafe impl Sync for PeerWindow {}

/// Elements of the send buffer for a rank, and elements of the receive buffer from it.
#[derive(Clone, Debug)]
pub(crate) struct PeerExchange {
    pub(crate) send: Range<usize>,
    pub(crate) receive: Range<usize>,
}

impl OperationKind {
    /// Name of NCCL's function.
    #[inline]
    pub(crate) const fn function_name(&self) -> &'static str {
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

    /// True if the send buffer has one part per rank.
    #[inline]
    pub(crate) const fn sends_parts(&self) -> bool {
        matches!(self, Self::ReduceScatter(_) | Self::AllToAll | Self::Scatter(_))
    }

    /// True if the receive buffer has one part per rank.
    #[inline]
    pub(crate) const fn receives_parts(&self) -> bool {
        matches!(self, Self::AllGather | Self::AllToAll | Self::Gather(_))
    }

    #[inline]
    pub(crate) const fn root_rank(&self) -> Option<usize> {
        match *self {
            Self::Reduce(_, root) | Self::Broadcast(root) | Self::Gather(root) | Self::Scatter(root) => {
                Some(root)
            }
            _ => None,
        }
    }

    /// The other rank, for operations between two ranks.
    #[inline]
    pub(crate) const fn peer_rank(&self) -> Option<usize> {
        match *self {
            Self::Send(peer) | Self::Recv(peer) => Some(peer),
            Self::Put(signal, ..) | Self::Signal(signal) => Some(signal.peer),
            _ => None,
        }
    }

    /// True if only the root needs a send buffer. If false, and there is a root, only the root needs a
    /// receive buffer.
    #[inline]
    pub(crate) const fn root_sends(&self) -> bool {
        matches!(self, Self::Broadcast(_) | Self::Scatter(_))
    }

    #[inline]
    pub(crate) const fn reduction_op(&self) -> Option<ncclRedOp_t> {
        match *self {
            Self::AllReduce(op) | Self::Reduce(op, _) | Self::ReduceScatter(op) => Some(op),
            _ => None,
        }
    }
}

impl NcclOperation {
    #[inline]
    pub(crate) const fn operation_name(&self) -> &'static str {
        self.kind.function_name()
    }

    /// Refuses an operation without a function in the library, unless it can be composed of others.
    pub(crate) fn require_function(&self, library: Library) -> Result<(), MissingSymbol> {
        match self.kind {
            OperationKind::Put(..) | OperationKind::Signal(_) | OperationKind::WaitSignals(_) => {
                library.raw().require(self.operation_name())
            }
            _ => Ok(()),
        }
    }

    /// True for an operation after which the windows' memory contains other ranks' writes.
    #[inline]
    pub(crate) const fn waits_for_signals(&self) -> bool {
        matches!(self.kind, OperationKind::WaitSignals(_))
    }

    /// True if NCCL has an algorithm for it, instead of composing it of sends and receives.
    pub(crate) const fn has_algorithm(&self) -> bool {
        matches!(self.kind, OperationKind::Broadcast(_) | OperationKind::AllGather)
            || self.kind.reduction_op().is_some()
    }

    /// True for a collective with an NCCL function of its own. The function has a variant with a
    /// configuration.
    #[inline]
    pub(crate) const fn is_collective(&self) -> bool {
        self.has_algorithm()
            || matches!(
                self.kind,
                OperationKind::AllToAll | OperationKind::Gather(_) | OperationKind::Scatter(_)
            )
    }
}
