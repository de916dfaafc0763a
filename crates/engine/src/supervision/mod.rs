//! Supervision of a run: signals, the watchdog, and saving results when it ends early.

mod interrupt;
mod message;
mod salvage;
mod signal;
mod stop;
mod thread;
mod watchdog;

pub use interrupt::{Interrupt, hold_signals, ignore_file_size_signal};
pub use message::print_message;
pub use salvage::Salvage;
pub use signal::{Signal, interrupted_outcome, signal_code};
pub use stop::{CLOSED_PIPE, FAILED, REFUSED, Stop, TIMED_OUT, Verdict, WRONG_DATA, await_cause};
pub use thread::{explain_missing_thread, start_thread};
pub use watchdog::number_ranges;
pub use watchdog::{RankProgress, TimeLimit, Watchdog};
