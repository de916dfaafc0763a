//! Tagged messages between the ranks of a communicator, completed by polling.

mod affinity;
mod deferred_close;
mod endpoint;
pub(crate) mod network;
mod provider_choice;
mod rest;
pub(crate) mod summary;

use std::time::Duration;

use crate::fabric::Error;
use crate::fabric::calls::CallRecord;
use crate::fabric::hosts::Hosts;
use crate::world::{Awaited, Reason};

/// A posted operation, valid until `Transport::is_done` has returned true for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageRequest(pub(crate) u32);

/// Tagged messages between the ranks of one communicator. Used by one thread. Tags have 62 bits. After its
/// drop, nothing touches the memory of incomplete requests.
pub(crate) trait Transport {
    /// This rank, `0..size`.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn size(&self) -> usize;
    /// Placement of the ranks on hosts: the same on every rank.
    fn rank_hosts(&self) -> Hosts;
    /// Posts a receive of exactly `len` bytes from `peer` with `tag`.
    ///
    /// # Safety
    /// `data..data+len` stays valid and untouched until the request is done.
    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<MessageRequest, Error>;
    /// Posts a send of `len` bytes to `peer` with `tag`.
    ///
    /// # Safety
    /// `data..data+len` stays valid and unchanged until the request is done.
    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<MessageRequest, Error>;
    /// Records a call of this rank, for comparison with other ranks when it waits for long.
    fn record_call(&mut self, entry: CallRecord);
    /// Compares this rank's calls with the other ranks' calls; a difference fails on all ranks.
    fn compare_calls(&mut self);
    /// Reports this rank's failure to the other ranks, to end their waits for it.
    fn report_failure(&self, reason: Reason);
    /// Reports this operation's wait of `limit` to the other ranks, and returns its error with the late ranks
    /// among the awaited.
    fn time_out(&mut self, operation: &str, limit: Duration, awaited: Vec<Awaited>) -> Error;
    /// Sets the longest wait of an operation; [`check_ranks`](Self::check_ranks) fails after it. Without a
    /// limit it waits forever.
    fn set_timeout(&mut self, limit: Option<Duration>);
    /// Checks, in a waiting operation: the other ranks must be alive and call the same operations, and the
    /// timeout must not have passed.
    fn check_ranks(&mut self) -> Result<(), Error>;
    /// Polls for completions once, and checks from time to time.
    fn make_progress(&mut self) -> Result<(), Error>;
    /// Like [`make_progress`](Self::make_progress), for a rank waiting for a completion: after a while
    /// without one yields the processor, then checks and sleeps.
    fn wait_for_completion(&mut self) -> Result<(), Error>;
    /// True when `request` has completed. This frees it: not to be called again then.
    fn is_done(&mut self, request: MessageRequest) -> bool;
}
