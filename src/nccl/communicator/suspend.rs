//! Suspending communicators, and memory statistics.

use std::ffi::c_int;

use nccl_sys::{NCCL_SUSPEND_MEM, ncclCommMemStat_t};

use super::{Communicator, handle::CommunicatorState};
use crate::nccl::{error::Error, nccl_group};

const STATISTICS: &str = "ncclCommMemStats";

/// Device memory allocated by NCCL for a communicator, in bytes (`ncclCommMemStats`, NCCL 2.29.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// Released by [`Communicator::suspend`].
    pub suspendable: u64,
    /// Stays allocated.
    pub persistent: u64,
    /// Total tracked by NCCL.
    pub total: u64,
    /// True for a suspended communicator.
    pub suspended: bool,
}

impl Communicator {
    /// Waits for the queued work and releases the communicator's device memory, as far as NCCL can allocate
    /// it again (`ncclCommSuspend`, NCCL 2.29.7). Operations are refused until [`resume`](Self::resume). All
    /// ranks call it.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Communicator, Error};
    /// # fn example(communicator: &Communicator) -> Result<(), Error> {
    /// communicator.suspend()?;
    /// // Another job uses the GPU ...
    /// communicator.resume()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.7; [`Error::Nccl`], among others for communicators with
    /// shared resources; [`Error::InsideGroup`]; [`Error::Deadline`]; [`Error::Aborted`] and
    /// [`Error::Unusable`]. [`Error::Stream`] while one of its streams is being captured: nothing has changed
    /// then.
    pub fn suspend(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommSuspend";
        nccl_group::forbid_group(OPERATION)?;
        self.library().raw().require(OPERATION)?;
        self.handle.wait_in_state(OPERATION, CommunicatorState::Suspending, || {
            self.handle.drain_or_abort(OPERATION)?;
            self.handle.change_state(
                OPERATION,
                CommunicatorState::Suspending,
                CommunicatorState::Suspended,
                |raw, comm| {
                    // SAFETY: `change_state` holds the guard, and the handle is alive.
                    unsafe { raw.ncclCommSuspend(comm, NCCL_SUSPEND_MEM as c_int) }
                },
            )
        })
    }

    /// Allocates the memory released by [`suspend`](Self::suspend) again (`ncclCommResume`, NCCL 2.29.7). All
    /// ranks call it.
    ///
    /// # Errors
    /// The errors of [`suspend`](Self::suspend). No effect if the communicator is not suspended.
    pub fn resume(&self) -> Result<(), Error> {
        const OPERATION: &str = "ncclCommResume";
        nccl_group::forbid_group(OPERATION)?;
        self.library().raw().require(OPERATION)?;
        if *self.handle.lock_state() == CommunicatorState::Alive {
            return Ok(());
        }
        self.handle.change_state(
            OPERATION,
            CommunicatorState::Suspended,
            CommunicatorState::Alive,
            |raw, comm| {
                // SAFETY: `change_state` holds the guard, and the handle is alive.
                unsafe { raw.ncclCommResume(comm) }
            },
        )
    }

    /// Statistics of NCCL's device memory for the communicator.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.29.7; [`Error::Nccl`]; [`Error::InsideGroup`];
    /// [`Error::Aborted`].
    pub fn memory_statistics(&self) -> Result<MemoryStatistics, Error> {
        nccl_group::forbid_group(STATISTICS)?;
        Ok(MemoryStatistics {
            suspendable: self.memory_statistic(ncclCommMemStat_t::ncclStatGpuMemSuspend)?,
            persistent: self.memory_statistic(ncclCommMemStat_t::ncclStatGpuMemPersist)?,
            total: self.memory_statistic(ncclCommMemStat_t::ncclStatGpuMemTotal)?,
            suspended: self.memory_statistic(ncclCommMemStat_t::ncclStatGpuMemSuspended)? != 0,
        })
    }

    fn memory_statistic(&self, which: ncclCommMemStat_t) -> Result<u64, Error> {
        let mut value = 0;
        self.handle.call_in_state(STATISTICS, CommunicatorState::allows_queries, |raw, comm| {
            // SAFETY: `call_in_state` holds the guard, and the handle is alive; writes one number.
            unsafe { raw.ncclCommMemStats(comm, which, &mut value) }
        })?;
        Ok(value)
    }
}
