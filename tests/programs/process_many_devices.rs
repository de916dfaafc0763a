//! One thread for all devices.

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Library, device_count, group};
use cudarc::driver::CudaContext;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let streams = (0..device_count()?).map(|gpu| CudaContext::new(gpu)?.new_stream());
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(Library::load()?, &streams, &Config::new())?;
    let (mut send, mut receive) = (Vec::new(), Vec::new());
    for stream in &streams {
        send.push(stream.clone_htod(&[1.0f32; 1024])?);
        receive.push(stream.alloc_zeros::<f32>(1024)?);
    }
    group(|group| {
        let mut ranks = communicators.iter().zip(&send).zip(&mut receive);
        ranks.try_for_each(|((rank, send), receive)| group.on(rank).all_reduce(send, receive, ReduceOp::Sum))
    })?;
    for (stream, receive) in streams.iter().zip(&receive) {
        assert_eq!(stream.clone_dtoh(receive)?[0], streams.len() as f32);
    }
    Ok(())
}
