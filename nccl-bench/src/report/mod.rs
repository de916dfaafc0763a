//! Reports on a terminal: the text of nccl-tests, and progress.

pub mod progress;
pub mod table;
pub mod text;
