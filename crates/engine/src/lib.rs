//! The measurement of collectives: what is requested, what carries it, what is timed and verified, and what ends it early.

pub mod agreement;
pub mod backend;
pub mod collective;
pub mod data;
pub mod nccl_choice;
pub mod request;
pub mod session;
pub mod supervision;
pub mod sweep;
