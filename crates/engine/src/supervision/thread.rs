//! Threads, and an explanation of a failed start.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread.
///
/// # Errors
/// The error of [`explain_missing_thread`].
pub fn start_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(body).map_err(|error| explain_missing_thread(name, &error))
}

/// Returns an error with the name of the thread that could not be started, and the limits that can prevent a
/// start.
pub fn explain_missing_thread(name: &str, error: &io::Error) -> io::Error {
    let message = format!(
        "the thread '{name}' could not be started: {error}; raise the limit on processes and threads (ulimit \
         -u; of a container or pod: pids.max, podPidsLimit) or on memory (ulimit -v), or start fewer ranks \
         on this host"
    );
    io::Error::new(error.kind(), message)
}
