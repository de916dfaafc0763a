//! Release of cudarc's objects after the uses of their memory.

use std::mem;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use super::{call_relaxed, own_result};
use crate::log;
use crate::nccl::error::Error;

/// Drops objects of cudarc with memory of these contexts, after the events of its uses: cudarc skips the
/// waits of a drop while an error is noted, and for a context object whose streams it does not count. Leaks
/// them with a warning if it cannot be made to wait. An error that another thread notes during the drop can
/// still skip a wait.
pub(crate) fn drop_in_order<'a, T>(contexts: impl IntoIterator<Item = &'a Arc<CudaContext>>, objects: T) {
    let mut noted: Vec<(&Arc<CudaContext>, _)> = Vec::new();
    for context in contexts {
        if !noted.iter().any(|(known, _)| Arc::ptr_eq(known, context)) {
            noted.push((context, context.check_err()));
        }
    }
    let counted: Result<Vec<_>, _> = noted.iter().map(|(context, _)| count_stream(context)).collect();
    match counted {
        Ok(_counted) => drop(objects),
        Err(error) => {
            mem::forget(objects);
            log::warn(format_args!(
                "memory of a GPU is leaked, since its release cannot be ordered after its uses: {error}"
            ));
        }
    }
    noted.into_iter().for_each(|(context, noted)| context.record_err(noted));
}

/// Makes a stream for which cudarc respects the context object's events as long as the result lives; none if
/// the program has disabled events. Unlike [`track_events`](super::track_events), it does not wait for work
/// that uses other memory: it may wait for ranks that this call keeps waiting.
fn count_stream(context: &Arc<CudaContext>) -> Result<Option<Arc<CudaStream>>, Error> {
    if !context.is_event_tracking() {
        return Ok(None);
    }
    let make_stream = || {
        if context.is_in_multi_stream_mode() {
            context.new_stream()
        } else {
            // `new_stream` would wait for all work of the context.
            context.default_stream().fork()
        }
    };
    call_relaxed(|| own_result(context, make_stream).map_err(Error::of_cuda("cuStreamCreate"))).map(Some)
}
