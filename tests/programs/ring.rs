//! An all-gather by send and receive, as in ring attention.

use collectives::nccl::{Collectives, Communicator, Error, Library, UniqueId, device_count, group};
use cudarc::driver::{CudaContext, CudaSlice};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every step forwards the data of the previous step, so the two buffers swap.
fn ring(communicator: &Communicator, [block, next]: &mut [CudaSlice<f32>; 2]) -> Result<(), Error> {
    let (rank, size) = (communicator.rank(), communicator.size());
    for _ in 1..size {
        group(|group| {
            group.on(communicator).send(&*block, (rank + 1) % size)?;
            group.on(communicator).recv(&mut *next, (rank + size - 1) % size)
        })?;
        std::mem::swap(block, next);
    }
    Ok(())
}

pub(crate) fn main() -> Result<(), Failure> {
    let (library, size) = (Library::load()?, device_count()?);
    let id = UniqueId::new(library)?;
    let one = |rank: usize| -> Result<(), Failure> {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let communicator = Communicator::builder(library, &stream).rank(rank, size).id(&id).init()?;
        let mut blocks = [stream.clone_htod(&[rank as f32; 1024])?, stream.alloc_zeros(1024)?];
        ring(&communicator, &mut blocks)?;
        assert_eq!(stream.clone_dtoh(&blocks[0])?[0], ((rank + 1) % size) as f32);
        Ok(())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|r| scope.spawn(move || one(r))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
