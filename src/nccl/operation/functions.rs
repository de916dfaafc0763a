//! Calls of NCCL's functions.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use nccl_sys::{Version, cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclRedOp_t, ncclResult_t};

use super::kind::{NcclOperation, OperationKind, PeerExchange, PeerWindow, raw_type};
use crate::nccl::{error::Error, library::Library, memory::Signal, nccl_group};

/// Common arguments of NCCL's functions: addresses of the buffers, communicator and stream.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    pub(super) from: *const c_void,
    pub(super) to: *mut c_void,
    pub(super) comm: ncclComm_t,
    pub(super) stream: cudaStream_t,
}

impl NcclOperation {
    /// Calls NCCL's function, or equivalent ones if the library lacks it.
    ///
    /// # Safety
    /// The addresses are the checked buffers' addresses, the handle is alive, and no other thread uses it.
    #[inline(always)]
    pub(super) unsafe fn call_function(
        &self,
        library: Library,
        arguments: Arguments,
    ) -> Result<ncclResult_t, Error> {
        let Arguments { from, to, comm, stream } = arguments;
        let (raw, n, t) = (library.raw(), self.count, raw_type(self.data_type));
        // SAFETY: by the contract above.
        let code = unsafe {
            match self.kind {
                _ if self.is_scale => return self.call_scale(library, arguments),
                OperationKind::AllReduce(op) => raw.ncclAllReduce(from, to, n, t, op, comm, stream),
                OperationKind::Reduce(op, root) => {
                    raw.ncclReduce(from, to, n, t, op, root as c_int, comm, stream)
                }
                OperationKind::Broadcast(root) => {
                    raw.ncclBroadcast(from, to, n, t, root as c_int, comm, stream)
                }
                OperationKind::AllGather => raw.ncclAllGather(from, to, n, t, comm, stream),
                OperationKind::ReduceScatter(op) => raw.ncclReduceScatter(from, to, n, t, op, comm, stream),
                // Errors of these three mean that the library lacks the function.
                OperationKind::AllToAll => match raw.ncclAlltoAll(from, to, n, t, comm, stream) {
                    Ok(code) => code,
                    Err(_) => return self.exchange_all(library, arguments),
                },
                OperationKind::Gather(root) => {
                    match raw.ncclGather(from, to, n, t, root as c_int, comm, stream) {
                        Ok(code) => code,
                        Err(_) => return self.exchange_all(library, arguments),
                    }
                }
                OperationKind::Scatter(root) => {
                    match raw.ncclScatter(from, to, n, t, root as c_int, comm, stream) {
                        Ok(code) => code,
                        Err(_) => return self.exchange_all(library, arguments),
                    }
                }
                OperationKind::AllToAllV(_) => return self.exchange_all(library, arguments),
                OperationKind::Send(peer) => raw.ncclSend(from, n, t, peer as c_int, comm, stream),
                OperationKind::Recv(peer) => raw.ncclRecv(to, n, t, peer as c_int, comm, stream),
                OperationKind::Put(Signal { peer, index, context }, PeerWindow(window), offset) => {
                    let peer = peer as c_int;
                    raw.ncclPutSignal(from, n, t, peer, window, offset, index, context, 0, comm, stream)?
                }
                OperationKind::Signal(Signal { peer, index, context }) => {
                    raw.ncclSignal(peer as c_int, index, context, 0, comm, stream)?
                }
                OperationKind::WaitSignals(ref descriptions) => {
                    // NCCL takes a mutable pointer but only reads.
                    let mut descriptions = descriptions.clone();
                    let count = descriptions.len() as c_int;
                    raw.ncclWaitSignal(count, descriptions.as_mut_ptr(), comm, stream)?
                }
            }
        };
        Ok(code)
    }

    /// A scaled sum over a single rank. NCCL's kernel skips the last elements of some lengths, from 2.19 to
    /// 2.29.3: they need a second call.
    ///
    /// # Safety
    /// See [`call_function`](Self::call_function).
    #[cold]
    unsafe fn call_scale(
        &self,
        library: Library,
        Arguments { from, to, comm, stream }: Arguments,
    ) -> Result<ncclResult_t, Error> {
        let (raw, bytes, t) = (library.raw(), self.data_type.size(), raw_type(self.data_type));
        let op = self.kind.reduction_op().unwrap_or(ncclRedOp_t::ncclSum);
        let scale = |elements: Range<usize>| {
            let offset = elements.start * bytes;
            let (from, to) = (from.wrapping_byte_add(offset), to.wrapping_byte_add(offset));
            // SAFETY: by the contract of `call_function`: the elements lie within the checked buffers.
            let code = unsafe { raw.ncclAllReduce(from, to, elements.len(), t, op, comm, stream) };
            library.accept_code(self.operation_name(), code)
        };
        let is_whole = |&count: &usize| library.version() >= SCALES_ALL || is_scaled_whole(count, bytes);
        match (0..=self.count).rev().find(is_whole) {
            Some(whole) if whole < self.count => {
                let both = || scale(0..whole).and_then(|_| scale(whole..self.count));
                Ok(nccl_group::run_calls(library, self.operation_name(), both)?.0)
            }
            _ => scale(0..self.count),
        }
    }

    /// Composes the operation of sends and receives in a group, if NCCL has no function for it or is too old.
    ///
    /// # Safety
    /// See [`call_function`](Self::call_function).
    #[cold]
    unsafe fn exchange_all(
        &self,
        library: Library,
        Arguments { from, to, comm, stream }: Arguments,
    ) -> Result<ncclResult_t, Error> {
        let (raw, bytes, t) = (library.raw(), self.data_type.size(), raw_type(self.data_type));
        let accept = |code| library.accept_code(self.operation_name(), code).map(drop);
        let exchange = |rank: usize| {
            let (PeerExchange { send, receive }, peer) = (self.peer_exchange(rank), rank as c_int);
            let from = from.wrapping_byte_add(send.start * bytes);
            let to = to.wrapping_byte_add(receive.start * bytes);
            // NCCL assigns channels to empty sends and receives too.
            if !send.is_empty() {
                // SAFETY: by the contract of `call_function`: the part lies within the checked buffer.
                accept(unsafe { raw.ncclSend(from, send.len(), t, peer, comm, stream) })?;
            }
            if receive.is_empty() {
                return Ok(());
            }
            // SAFETY: as above.
            accept(unsafe { raw.ncclRecv(to, receive.len(), t, peer, comm, stream) })
        };
        Ok(nccl_group::run_calls(library, self.operation_name(), || (0..self.size).try_for_each(exchange))?.0)
    }

    fn peer_exchange(&self, peer: usize) -> PeerExchange {
        let (part, whole) = (peer * self.count..(peer + 1) * self.count, 0..self.count);
        let only = |condition: bool, range: Range<usize>| if condition { range } else { 0..0 };
        let (send, receive) = match self.kind {
            OperationKind::AllToAll => (part.clone(), part),
            OperationKind::AllToAllV(ref exchanges) => return exchanges[peer].clone(),
            OperationKind::Gather(root) => (only(peer == root, whole), only(self.rank == root, part)),
            OperationKind::Scatter(root) => (only(self.rank == root, part), only(peer == root, whole)),
            _ => (0..0, 0..0),
        };
        PeerExchange { send, receive }
    }

    /// Calls the variant of NCCL's function with a configuration. Versions with these functions scale all
    /// elements.
    ///
    /// # Safety
    /// See [`call_function`](Self::call_function); the pointers in the configuration are valid.
    pub(super) unsafe fn call_configured(
        &self,
        library: Library,
        Arguments { from, to, comm, stream }: Arguments,
        config: &ncclCollConfig_t,
    ) -> Result<ncclResult_t, Error> {
        let (raw, n, t) = (library.raw(), self.count, raw_type(self.data_type));
        let root = self.kind.root_rank().unwrap_or_default() as c_int;
        // SAFETY: by the contract above.
        let code = unsafe {
            match self.kind {
                OperationKind::AllReduce(op) => {
                    raw.ncclAllReduceConfig(from, to, n, t, op, comm, stream, config)
                }
                OperationKind::Reduce(op, _) => {
                    raw.ncclReduceConfig(from, to, n, t, op, root, comm, stream, config)
                }
                OperationKind::Broadcast(_) => {
                    raw.ncclBroadcastConfig(from, to, n, t, root, comm, stream, config)
                }
                OperationKind::AllGather => raw.ncclAllGatherConfig(from, to, n, t, comm, stream, config),
                OperationKind::ReduceScatter(op) => {
                    raw.ncclReduceScatterConfig(from, to, n, t, op, comm, stream, config)
                }
                OperationKind::AllToAll => raw.ncclAlltoAllConfig(from, to, n, t, comm, stream, config),
                OperationKind::Gather(_) => raw.ncclGatherConfig(from, to, n, t, root, comm, stream, config),
                OperationKind::Scatter(_) => {
                    raw.ncclScatterConfig(from, to, n, t, root, comm, stream, config)
                }
                // The caller has refused these.
                _ => Ok(ncclResult_t::ncclInvalidUsage),
            }
        };
        Ok(code?)
    }
}

/// First NCCL whose kernel for a single rank scales all elements again.
const SCALES_ALL: Version = Version::new(2, 29, 7);

/// True if older kernels scale all of `count` elements. They give each thread block the same number of
/// elements: an equal share, rounded down, then up to a multiple of 16 bytes.
fn is_scaled_whole(count: usize, bytes: usize) -> bool {
    let blocks = (count * bytes).div_ceil(16 << 10).clamp(1, 32);
    (count / blocks).next_multiple_of(16 / bytes) * blocks >= count
}
