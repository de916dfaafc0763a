//! NCCL's log: reading it, and what it proves.

pub mod digest;
