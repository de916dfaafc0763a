//! What a collective needs from a network: tagged messages between ranks, completed by polling.

mod affinity;
mod deferred_close;
mod endpoint;
pub(crate) mod network;
mod operations;
mod provider_choice;
pub(crate) mod summary;

use crate::fabric::Error;
use crate::fabric::calls::CallRecord;
use crate::fabric::hosts::Hosts;

/// A posted operation, valid until `Transport::is_done` has said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request(pub(crate) u32);

/// Tagged messages between the ranks of one communicator. Used by one thread. Tags have 62 bits. Once it is dropped,
/// nothing touches the memory of requests that were not done.
pub(crate) trait Transport {
    /// This rank, `0..size`.
    fn rank(&self) -> usize;
    /// How many ranks there are.
    fn size(&self) -> usize;
    /// Which ranks share a host: the same on every rank.
    fn hosts(&self) -> Hosts;
    /// Posts a receive of exactly `len` bytes from `peer` with `tag`.
    /// # Safety: `data..data+len` stays valid and untouched until the request is done.
    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<Request, Error>;
    /// Posts a send. # Safety: `data..data+len` stays valid and unchanged until the request is done.
    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<Request, Error>;
    /// Notes what this rank calls, to be compared with others when it waits for long.
    fn record(&mut self, entry: CallRecord);
    /// Has what this rank has called compared with what others have: what is different fails on all ranks.
    fn compare(&mut self);
    /// Tells the other ranks that this one has failed, and why, so that they do not wait for it.
    fn fail(&self, reason: &str);
    /// Polls for completions once; yields the processor now and then when nothing happens.
    fn progress(&mut self) -> Result<(), Error>;
    /// Whether `request` has completed; frees it when so (a request is asked at most once after it is done).
    fn is_done(&mut self, request: Request) -> bool;
}
