//! The log on standard error.

use std::io;

use engine::supervision::Stop;
use tracing_subscriber::filter::LevelFilter;

/// The variable with the level of the log: off, error, warn, info, debug or trace.
const LEVEL: &str = "NCCL_BENCH_LOG";

/// Starts the log with the level of the variable, by default warnings.
///
/// # Errors
/// [`Stop::Refused`] for an unknown level.
pub(crate) fn start_log() -> Result<(), Stop> {
    let level = match std::env::var_os(LEVEL).filter(|level| !level.is_empty()) {
        Some(level) => {
            let level = level.to_string_lossy();
            level.parse().map_err(|_| {
                Stop::Refused(format!("{LEVEL}={level}: give off, error, warn, info, debug or trace"))
            })?
        }
        None => LevelFilter::WARN,
    };
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level).init();
    Ok(())
}
