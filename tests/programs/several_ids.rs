//! One id per 256 ranks, as NCCL's manual recommends.

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Library, UniqueId};
use collectives::world;
use cudarc::driver::CudaContext;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = world::from_environment(&world::Options::default())?;
    let (library, rank) = (Library::load()?, world.rank());
    let mine = if rank % 256 == 0 { UniqueId::new(library)?.as_bytes().to_vec() } else { Vec::new() };
    let ids = world.all_gather(&mine)?.into_iter().filter_map(|id| id.try_into().ok());
    let ids: Vec<_> = ids.map(UniqueId::from_bytes).collect();
    nccl::cuda::available()?;
    let stream = CudaContext::new(world.local_rank())?.new_stream()?;
    let communicator = Communicator::builder(library, &stream).rank(rank, world.size()).ids(&ids).init()?;
    let mut barrier = stream.alloc_zeros::<u8>(1)?;
    communicator.all_reduce_in_place(&mut barrier, ReduceOp::Max)?;
    Ok(stream.synchronize()?)
}
