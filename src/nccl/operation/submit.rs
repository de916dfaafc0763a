//! Immediate submission of an operation to NCCL.

use std::{iter, mem};

use nccl_sys::{cudaStream_t, ncclResult_t};

use super::buffers::{CallBuffers, OtherStreams, check_recorded};
use super::call::{Immediate, Submission, sealed};
use super::call_config::CallConfig;
use super::functions::Arguments;
use super::kind::NcclOperation;
use crate::nccl::communicator::{CommunicatorState, Handle};
use crate::nccl::error::{Error, each_first_error};
use crate::nccl::memory::{DeviceBuffer, DeviceBufferMut};
use crate::nccl::{cuda, nccl_group};

impl<'b> sealed::Launch<'b> for Immediate {
    #[inline(always)]
    fn launch(
        self,
        Submission { communicator, config, operation }: Submission<'b>,
        buffers: CallBuffers<'b, impl DeviceBuffer + ?Sized, impl DeviceBufferMut + ?Sized>,
    ) -> Result<(), Error> {
        let (name, handle, stream) =
            (operation.operation_name(), &*communicator.handle, &*communicator.stream);
        nccl_group::forbid_group(name)?;
        if cuda::is_default(stream) || operation.is_scale {
            cuda::bind_context(&handle.context)?;
        } else {
            cuda::bind_once(&handle.context)?;
        }
        if !self.captured {
            cuda::refuse_captured(name, stream)?;
        }
        let mut others = OtherStreams::new();
        let offsets = buffers.offsets;
        let accesses = communicator.access_buffers(&operation, buffers, self.captured, &mut others)?;
        let events = accesses.have_events();
        let addresses = communicator.operation_addresses(&operation, offsets, &accesses)?;
        if !self.captured {
            handle.fence_operation(stream)?;
        }
        let state = handle.lock_state();
        // SAFETY: checked buffers, borrowed until this function returns; the guard is held.
        let code = unsafe {
            call_nccl(handle, stream.cu_stream() as cudaStream_t, *state, config, &operation, addresses)
        };
        drop(state);
        if others.is_empty() && !events && matches!(code, Ok(ncclResult_t::ncclSuccess)) {
            // Fast path. An empty list has nothing to free, but the compiler does not detect this.
            mem::forget(others);
            return Ok(());
        }
        let accesses = accesses.into_queued();
        let result = code.and_then(|code| handle.finish_operation(name, code));
        // Even after an error, something may have been queued. Before the events of the buffers: waiting for
        // an earlier one can make this stream part of a capture, and the other streams cannot wait for a
        // captured one.
        let result = result.and(each_first_error(&others, |stream| communicator.make_wait(stream)));
        drop(accesses);
        if events { result.and(check_recorded(iter::once(stream))) } else { result }
    }
}

/// Calls NCCL's function for an operation.
///
/// # Safety
/// The addresses are of checked buffers, valid until the work is done; the caller holds the guard of the
/// communicator's state, with the value `state`.
#[inline(always)]
pub(super) unsafe fn call_nccl(
    handle: &Handle,
    stream: cudaStream_t,
    state: CommunicatorState,
    config: Option<&CallConfig>,
    operation: &NcclOperation,
    (source, target): (u64, u64),
) -> Result<ncclResult_t, Error> {
    // Not `Handle::comm_in_state`: the name of a recorded operation is looked up.
    if !state.is_alive() {
        return Err(state.refuse_operation(operation.operation_name()));
    }
    let comm = handle.raw_handle();
    let arguments = Arguments { from: source as *const _, to: target as *mut _, comm, stream };
    match config {
        // SAFETY: by the contract above; the handle is alive.
        None => unsafe { operation.call_function(handle.library, arguments) },
        Some(config) => {
            let config = config.raw_config(handle.library)?;
            // SAFETY: as above; the configuration's text outlives the call.
            unsafe { operation.call_configured(handle.library, arguments, &config) }
        }
    }
}
