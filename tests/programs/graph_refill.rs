//! New gradients before every launch of a graph.

use std::error::Error;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Graph, MemoryViewMut};

pub(crate) fn train(rank: &Communicator, gradients: &mut MemoryViewMut<f32>) -> Result<(), Box<dyn Error>> {
    let graph = Graph::capture(|capture| capture.on(rank).all_reduce_in_place(gradients, ReduceOp::Avg))?;
    for _ in 0..100 {
        rank.stream().memcpy_htod(&[1.0; 1024], gradients)?;
        graph.launch()?;
        println!("{:?}", rank.stream().clone_dtoh(gradients)?);
    }
    Ok(())
}
