//! Judgement of measurements.
//!
//! The crate reads no files and starts no processes: it computes conclusions from records and times.
