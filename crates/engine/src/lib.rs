//! The measurement of collectives: requests, backends, timing, verification, and ends before the last measurement.

pub mod agreement;
pub mod backend;
pub mod collective;
pub mod data;
pub mod nccl_choice;
pub mod request;
pub mod session;
pub mod supervision;
pub mod sweep;
