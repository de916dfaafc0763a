//! A CUDA graph of collectives over all GPUs of this machine, which is captured once and launched three times.
//!
//! ```text
//! cargo run --release --example nccl_graph
//! ```

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Config, Graph, Library};
use cudarc::driver::CudaContext;

const LEN: usize = 1024;
const LAUNCHES: u32 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(library, &streams, &Config::new())?;
    let ones = streams.iter().map(|stream| stream.clone_htod(&[1.0_f32; LEN]));
    let mut values = ones.collect::<Result<Vec<_>, _>>()?;

    // The group is for the one thread that has all ranks, as outside a graph.
    let graph = Graph::capture(|capture| {
        capture.group(|capture| {
            let mut ranks = communicators.iter().zip(&mut values);
            ranks.try_for_each(|(communicator, values)| {
                capture.on(communicator).all_reduce_in_place(values, ReduceOp::Sum)
            })
        })
    })?;
    for _ in 0..LAUNCHES {
        graph.launch()?;
    }
    // The graph borrows what it works on.
    drop(graph);

    // Each launch multiplies by the number of GPUs.
    let expected = (gpus as f32).powi(LAUNCHES as i32);
    for (stream, values) in streams.iter().zip(&values) {
        assert_eq!(stream.clone_dtoh(values)?, [expected; LEN]);
    }
    println!("{gpus} GPUs: after {LAUNCHES} launches every one has {expected}");
    Ok(())
}
