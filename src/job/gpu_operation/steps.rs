//! Comparison of the steps of training in which the ranks of a group over GPUs are.
//!
//! Operations of equal lengths match on GPUs whatever they are for, and end before calls are compared. So the
//! first operation of a step is followed by a reduction of two numbers, which tells every rank the first and
//! the last step, each with a rank that is in it. They are read when the operation has ended, for which no
//! call of the program waits.

use std::mem;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, result};

use super::of_driver;
use crate::lock::lock;
use crate::nccl::{Collectives as _, Communicator, cuda};
use crate::purpose::{MAX_STEP, Purpose};
use crate::{Error, ReduceOp};

/// Low bits of a number, for the rank. The others are for the step.
const RANK_BITS: u32 = MAX_STEP.leading_zeros();

/// The first operation of a step.
pub(crate) struct FirstCall {
    /// Its description, without its purpose.
    pub(crate) operation: String,
    pub(crate) purpose: Purpose,
    /// The number of the step.
    pub(crate) step: u64,
}

/// Memory of comparisons that have ended, for the next ones. A thread of the group ends them, and must not
/// free the memory: cudarc takes an error that it has noted, and notes it again, and a call of the program
/// in between would return it as its own.
#[derive(Default)]
pub(crate) struct SpareMemory {
    numbers: Mutex<Vec<CudaSlice<u64>>>,
}

/// A comparison under way.
pub(crate) struct Comparison {
    call: FirstCall,
    /// `None` only while this is dropped.
    numbers: Option<CudaSlice<u64>>,
    address: CUdeviceptr,
    spare: Arc<SpareMemory>,
    /// A stream of the library's own, which waits for nothing.
    reading: Arc<CudaStream>,
    /// The error of ranks in different steps, once it is read.
    result: OnceLock<Option<Error>>,
}

impl Comparison {
    /// Queues the reduction on the communicator's stream.
    pub(crate) fn start_reduction(
        communicator: &Communicator,
        reading: Arc<CudaStream>,
        spare: Arc<SpareMemory>,
        call: FirstCall,
    ) -> Result<Self, Error> {
        let stream = communicator.stream();
        let own = encode_step(call.step, communicator.rank());
        let ended = lock(&spare.numbers).pop();
        let (mut numbers, copied) = match ended {
            Some(mut numbers) => {
                let copied = cuda::own_result(stream.context(), || stream.memcpy_htod(&own, &mut numbers));
                (numbers, copied)
            }
            None => (cuda::make_slice(stream, |stream| stream.clone_htod(&own))?, Ok(())),
        };
        let reduced = copied.map_err(Error::from).and_then(|()| {
            communicator.all_reduce_in_place(&mut numbers, ReduceOp::Max).map_err(Error::from)
        });
        if let Err(error) = reduced {
            // Kept, since the copy or the reduction may be queued.
            lock(&spare.numbers).push(numbers);
            return Err(error);
        }
        let (address, recorded) = numbers.device_ptr(stream);
        drop(recorded);
        Ok(Self { call, numbers: Some(numbers), address, spare, reading, result: OnceLock::new() })
    }

    /// The error of ranks in different steps, which have their numbers in the group. The reduction has ended.
    pub(super) fn find_mismatch(&self) -> Result<Option<&Error>, Error> {
        if self.result.get().is_none() {
            let [last, first] = decode_steps(self.read_numbers()?);
            let differ = last.0 != first.0;
            let _read_by_another_thread =
                self.result.set(differ.then(|| self.call.mismatch_error(first, last)));
        }
        Ok(self.result.get().and_then(Option::as_ref))
    }

    fn read_numbers(&self) -> Result<[u64; 2], Error> {
        cuda::bind_context(self.reading.context()).map_err(of_driver)?;
        let mut numbers = Box::new([0; 2]);
        // SAFETY: the memory has two numbers, and is kept allocated by this until the copy has ended,
        // unless the context has failed.
        let copied = cuda::call_relaxed(|| unsafe {
            Ok(result::memcpy_dtoh_async(numbers.as_mut_slice(), self.address, self.reading.cu_stream()))
        });
        if let Err(error) = cuda::wait_for_stream(&self.reading) {
            // The copy may still write it.
            mem::forget(numbers);
            return Err(of_driver(error));
        }
        copied.map_err(of_driver)??;
        Ok(*numbers)
    }
}

impl Drop for SpareMemory {
    fn drop(&mut self) {
        mem::take(&mut *lock(&self.numbers)).into_iter().for_each(cuda::release_slice);
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        lock(&self.spare.numbers).extend(self.numbers.take());
    }
}

impl FirstCall {
    /// The error of two ranks, each with its step.
    fn mismatch_error(&self, (step, rank): (u64, usize), (peer_step, peer): (u64, usize)) -> Error {
        let called = |step| format!("{}{}", self.operation, self.purpose.in_step(step));
        Error::Mismatch { rank, called: called(step), peer, peer_called: Some(called(peer_step)) }
    }
}

/// Two numbers. Their maxima over all ranks contain the last and the first step.
fn encode_step(step: u64, rank: usize) -> [u64; 2] {
    let number = step << RANK_BITS | rank as u64;
    [number, !number]
}

/// Step and rank of each number.
fn decode_steps([last, first]: [u64; 2]) -> [(u64, usize); 2] {
    [last, !first].map(|number| (number >> RANK_BITS, (number & ((1 << RANK_BITS) - 1)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_last_step_have_a_rank_in_them() {
        let largest = |ranks: &[(u64, usize)]| {
            let all = ranks.iter().map(|&(step, rank)| encode_step(step, rank));
            decode_steps(all.reduce(|[a, b], [c, d]| [a.max(c), b.max(d)]).unwrap())
        };
        assert_eq!(largest(&[(7, 0), (7, 1), (7, 2)]), [(7, 2), (7, 0)]);
        assert_eq!(largest(&[(7, 0), (6, 1), (7, 2)]), [(7, 2), (6, 1)]);
        assert_eq!(largest(&[(0, 0), (MAX_STEP, 1), (4, 2)]), [(MAX_STEP, 1), (0, 0)]);
        assert_eq!(largest(&[(MAX_STEP, (1 << RANK_BITS) - 1)])[1], (MAX_STEP, (1 << RANK_BITS) - 1));
    }
}
