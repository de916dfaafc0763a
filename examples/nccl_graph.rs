//! A CUDA graph of collectives over all GPUs of this machine, captured once and launched with new values in
//! every step.
//!
//! ```text
//! cargo run --release --example nccl_graph
//! ```

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Config, Graph, Library, Memory};
use cudarc::driver::CudaContext;

const LEN: usize = 1024;
const STEPS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(library, &streams, &Config::new())?;
    let memories = streams.iter().map(|stream| Memory::alloc(library, stream, LEN * size_of::<f32>()));
    let mut memories = memories.collect::<Result<Vec<_>, _>>()?;

    // The group is needed because one thread has all ranks, as outside a graph.
    let graph = Graph::capture(|capture| {
        capture.group(|capture| {
            communicators.iter().zip(&mut memories).try_for_each(|(communicator, memory)| {
                let mut values = memory.slice_mut::<f32>(..)?;
                capture.on(communicator).all_reduce_in_place(&mut values, ReduceOp::Sum)
            })
        })
    })?;

    for step in 1..=STEPS {
        // The graph shares the memory with the program, which may use it between launches.
        for (stream, memory) in streams.iter().zip(&mut memories) {
            stream.memcpy_htod(&[step as f32; LEN], &mut memory.slice_mut::<f32>(..)?)?;
        }
        graph.launch()?;
        for (stream, memory) in streams.iter().zip(&memories) {
            assert_eq!(stream.clone_dtoh(&memory.slice::<f32>(..)?)?, [(gpus * step) as f32; LEN]);
        }
    }
    println!("{gpus} GPUs: {STEPS} launches, each with values of its own");
    Ok(())
}
