//! Errors as exceptions.

use collectives::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(nccl_collectives, CollectiveError, PyRuntimeError, "A job or a collective has failed.");
create_exception!(
    nccl_collectives,
    RankFailed,
    CollectiveError,
    "Another rank has failed: its `rank`, `host` and `reason`."
);
create_exception!(
    nccl_collectives,
    Mismatch,
    CollectiveError,
    "Two ranks called different operations: `rank` and its `called`, `peer` and its `peer_called` (or None)."
);
create_exception!(
    nccl_collectives,
    TimedOut,
    CollectiveError,
    "An operation has not finished within the group's timeout: `operation`, `limit` in seconds, and `late`, \
     the ranks that have not called it, are busy, or have continued, with their hosts."
);

/// The exception of an error, with its text and its parts as attributes.
pub(crate) fn exception(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    let with = |exception: PyErr, set: &dyn Fn(&Bound<'_, PyAny>) -> PyResult<()>| match set(exception
        .value(py)
        .as_any())
    {
        Ok(()) => exception,
        Err(error) => error,
    };
    match error {
        Error::RankFailed { rank, host, reason } => with(RankFailed::new_err(text), &|value| {
            value.setattr("rank", rank)?;
            value.setattr("host", host.as_str())?;
            value.setattr("reason", reason.to_string())
        }),
        Error::Mismatch { rank, called, peer, peer_called } => with(Mismatch::new_err(text), &|value| {
            value.setattr("rank", rank)?;
            value.setattr("called", called.as_str())?;
            value.setattr("peer", peer)?;
            value.setattr("peer_called", peer_called.as_deref())
        }),
        Error::TimedOut { operation, limit, late } => with(TimedOut::new_err(text), &|value| {
            value.setattr("operation", operation.as_str())?;
            value.setattr("limit", limit.as_secs_f64())?;
            value.setattr("late", late.as_slice())
        }),
        Error::Buffer(_) => PyValueError::new_err(text),
        _ => CollectiveError::new_err(text),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("CollectiveError", py.get_type::<CollectiveError>())?;
    module.add("RankFailed", py.get_type::<RankFailed>())?;
    module.add("Mismatch", py.get_type::<Mismatch>())?;
    module.add("TimedOut", py.get_type::<TimedOut>())
}
