//! Rows and columns of a mesh of processes: tensor parallel in rows, data parallel in columns.

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Library, Split, UniqueId};
use collectives::world;
use cudarc::driver::CudaContext;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = world::from_environment(&world::Options::default())?;
    let library = Library::load()?;
    let mine = if world.rank() == 0 { UniqueId::new(library)?.as_bytes().to_vec() } else { Vec::new() };
    let id = UniqueId::from_bytes(world.all_gather(&mine)?.swap_remove(0).try_into().map_err(|_| "no id")?);
    nccl::cuda::available()?;
    let context = CudaContext::new(world.local_rank())?;
    let (rank, streams) = (world.rank(), [context.new_stream()?, context.new_stream()?]);
    let all = Communicator::builder(library, &streams[0]).rank(rank, world.size()).id(&id).init()?;
    let (row, column) = (rank as i32 / 2, rank as i32 % 2);
    let tensor = all.split(&Split::color(row).key(column))?;
    let data = all.split(&Split::color(column).key(row).stream(&streams[1]))?;
    let mut activations = streams[0].alloc_zeros::<f32>(1 << 20)?;
    let mut gradients = streams[1].alloc_zeros::<f32>(1 << 20)?;
    tensor.all_reduce_in_place(&mut activations, ReduceOp::Sum)?;
    data.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
    Ok(streams[1].synchronize()?)
}
