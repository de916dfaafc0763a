//! NCCL's log: reading it, and what it proves.

pub mod conclusions;
pub mod digest;
mod path;
