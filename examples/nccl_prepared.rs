//! A loop that repeats the same collectives, prepared before it: a thread and a communicator per GPU of this
//! machine.
//!
//! ```text
//! cargo run --release --example nccl_prepared
//! ```

use std::thread;

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Error, Library, Memory, UniqueId};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Parts of the memory that are summed one by one, as gradients of a model.
const PARTS: [std::ops::Range<usize>; 3] = [0..1024, 1024..1536, 1536..4096];
const LEN: usize = 4096;
const STEPS: usize = 3;

fn main() -> Result<(), Failure> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let id = UniqueId::new(library)?;
    thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..gpus).map(|rank| scope.spawn(move || run(library, &id, rank, gpus))).collect();
        ranks
            .into_iter()
            .try_for_each(|rank| rank.join().unwrap_or_else(|_| Err("a rank's thread panicked".into())))
    })?;
    println!("{gpus} GPUs: {STEPS} steps of {} prepared sums", PARTS.len());
    Ok(())
}

fn run(library: Library, id: &UniqueId, rank: usize, gpus: usize) -> Result<(), Failure> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let communicator = Communicator::builder(library, &stream).rank(rank, gpus).id(id).init()?;
    let mut memory = Memory::alloc(library, &stream, LEN * size_of::<f32>())?;

    // Arguments are checked here, once.
    let sums: Result<_, Error> = communicator.prepare(|prepare| {
        PARTS.into_iter().try_for_each(|part| {
            prepare.all_reduce_in_place(&mut memory.slice_mut::<f32>(part)?, ReduceOp::Sum)
        })
    });
    let sums = sums?;

    for step in 1..=STEPS {
        // The sums share the memory with the program, which may use it between the calls.
        stream.memcpy_htod(&[step as f32; LEN], &mut memory.slice_mut::<f32>(..)?)?;
        communicator.queue(&sums)?;
        let values = stream.clone_dtoh(&memory.slice::<f32>(..)?)?;
        assert_eq!(values, [(gpus * step) as f32; LEN]);
    }
    communicator.close()?;
    Ok(())
}
