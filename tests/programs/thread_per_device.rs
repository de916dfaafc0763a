//! A thread per device.

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Library, UniqueId, device_count};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn main() -> Result<(), Failure> {
    let (library, size) = (Library::load()?, device_count()?);
    let id = UniqueId::new(library)?;
    let rank = |rank: usize| -> Result<(), Failure> {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let communicator = Communicator::builder(library, &stream).rank(rank, size).id(&id).init()?;
        let mut values = stream.clone_htod(&vec![rank as f32; 1 << 20])?;
        communicator.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        assert_eq!(stream.clone_dtoh(&values)?[0], (size * (size - 1) / 2) as f32);
        Ok(communicator.close()?)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
