//! A running job, asked through NCCL's RAS socket, and flight recorder dumps of PyTorch.

pub mod answer;
pub mod client;
pub mod json;
pub mod judge;
pub mod malformed;
pub mod recorder;
pub mod status;
pub mod text;
pub mod watch;

#[cfg(test)]
mod tests;
