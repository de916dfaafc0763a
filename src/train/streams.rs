//! The streams that use the memory of a reducer or optimizer.

use crate::Error;
use crate::job::Work;

/// The streams of the program's memory and of the group's operations. The defaults are those of hosts, where
/// a call returns when its work is done.
pub trait Streams: Send {
    /// Refuses a call whose operations would be refused now, in a capture or an NCCL group, before it changes
    /// anything.
    fn check_callable(&self) -> Result<(), Error> {
        Ok(())
    }

    /// True if the program has streams of its own.
    fn has_program_streams(&self) -> bool {
        false
    }

    /// Makes the group's operations wait for what the program has queued, and for copies.
    fn make_group_wait(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Makes the program's work wait for the group's operations.
    fn make_program_wait(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Orders the release of the group's memory after its uses; after an error, it must not be released.
    fn settle_memory(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The buffers of an operation, for use on the group's stream.
    fn collect_buffers<W>(&self, work: Work<W>) -> Result<W, Error> {
        work.wait()
    }
}

/// Use of memory on the program's streams, which have waited for the group's results.
pub struct OnProgram<'a, S> {
    #[cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "hosts have no streams"))]
    pub(super) streams: &'a S,
}

/// Use of memory on the group's stream. The program's streams wait for it before they use the memory again.
pub struct OnGroup<'a, S> {
    pub(super) streams: &'a mut S,
}
