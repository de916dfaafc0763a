//! A ring: every GPU of this machine sends a vector to its right neighbour and receives one from its left
//! neighbour.
//!
//! ```text
//! cargo run --release --example nccl_send_recv
//! ```

use collectives::nccl::{self, Collectives, Communicator, Config, Library};
use cudarc::driver::CudaContext;

const LEN: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let streams = (0..gpus).map(|gpu| CudaContext::new(gpu)?.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(library, &streams, &Config::new())?;

    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    for (rank, stream) in streams.iter().enumerate() {
        outgoing.push(stream.clone_htod(&vec![rank as i64 + 1; LEN])?);
        incoming.push(stream.alloc_zeros::<i64>(LEN)?);
    }

    // Outside a group, each send would wait for a receive that is never called.
    nccl::group(|group| {
        for (rank, (outgoing, incoming)) in outgoing.iter().zip(&mut incoming).enumerate() {
            let (left, right) = ((rank + gpus - 1) % gpus, (rank + 1) % gpus);
            group.on(&communicators[rank]).send(outgoing, right)?;
            group.on(&communicators[rank]).recv(incoming, left)?;
        }
        Ok::<_, nccl::Error>(())
    })?;

    for (rank, stream) in streams.iter().enumerate() {
        let left = (rank + gpus - 1) % gpus;
        assert_eq!(stream.clone_dtoh(&incoming[rank])?, vec![left as i64 + 1; LEN], "rank {rank}");
    }
    println!("{gpus} GPUs: every one has its left neighbour's vector");
    Ok(())
}
