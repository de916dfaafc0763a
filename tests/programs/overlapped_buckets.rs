//! Gradients of one bucket are reduced while the next is computed: two communicators, two streams, and a
//! third for computing.

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Library, Split, UniqueId, device_count};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn main() -> Result<(), Failure> {
    let (library, size) = (Library::load()?, device_count()?);
    let id = UniqueId::new(library)?;
    let one = |rank: usize| -> Result<(), Failure> {
        let context = CudaContext::new(rank)?;
        let compute = context.new_stream()?;
        let even = Communicator::builder(library, &context.new_stream()?).rank(rank, size).id(&id).init()?;
        let odd = even.split(&Split::color(0).stream(&context.new_stream()?))?;
        let mut buckets =
            (0..4).map(|_| compute.alloc_zeros::<f32>(1 << 20)).collect::<Result<Vec<_>, _>>()?;
        for step in 0..3 {
            for (bucket, communicator) in buckets.iter_mut().zip([&even, &odd].repeat(2)) {
                compute.memcpy_htod(&vec![step as f32; 1 << 20], bucket)?; // a kernel, in life
                communicator.all_reduce_in_place(bucket, ReduceOp::Avg)?;
            }
        }
        for bucket in &buckets {
            assert_eq!(compute.clone_dtoh(bucket)?[0], 2.0);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|r| scope.spawn(move || one(r))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
