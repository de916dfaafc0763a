//! `nccl-bench plot` on numbers that nccl-tests measured. The output is parsed as XML, and its values are
//! compared.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod charts;
mod colours;
mod command;
mod drawing;
mod headlines;
mod pages;
mod runs;
