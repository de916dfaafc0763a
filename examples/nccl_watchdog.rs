//! Handling of missing ranks: a deadline for connecting, a watchdog that aborts connecting, and one that
//! aborts a collective in which the other rank does not take part. The last needs two GPUs.
//!
//! ```text
//! cargo run --release --example nccl_watchdog
//! ```

#![allow(clippy::disallowed_methods, reason = "an error ends the program")]

use std::thread::{self, JoinHandle};
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{self, AbortHandle, Collectives, Communicator, Config, Error, Library, UniqueId};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A thread that aborts after a second. A real watchdog would check for progress.
fn watch(handle: AbortHandle) -> JoinHandle<Result<(), Error>> {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        handle.abort()
    })
}

fn join(watchdog: JoinHandle<Result<(), Error>>) -> Result<(), Failure> {
    Ok(watchdog.join().map_err(|_| "the watchdog panicked")??)
}

fn main() -> Result<(), Failure> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let stream = CudaContext::new(0)?.new_stream()?;
    // Rank 0 of two. There is no rank 1.
    let connect = || -> Result<_, Error> {
        let id = UniqueId::new(library)?;
        Communicator::builder(library, &stream).rank(0, 2).id(&id).init_pending()
    };

    let never = connect()?.wait(Duration::from_secs(1));
    assert!(matches!(never, Err(Error::Deadline { .. })), "{never:?}");
    println!("connecting met its deadline");

    let mut pending = connect()?;
    let watchdog = watch(pending.abort_handle());
    let aborted = loop {
        match pending.poll() {
            Ok(false) => thread::sleep(Duration::from_millis(10)),
            other => break other,
        }
    };
    assert!(matches!(aborted, Err(Error::Aborted { .. })), "{aborted:?}");
    join(watchdog)?;
    println!("connecting was aborted");

    if gpus < 2 {
        println!("only one GPU: no collective to abort");
        return Ok(());
    }
    let streams = [stream, CudaContext::new(1)?.new_stream()?];
    let config = Config::new().blocking(false).deadline(Duration::from_secs(60));
    let communicators = Communicator::init_all(library, &streams, &config)?;
    let mut buffers = [streams[0].alloc_zeros::<f32>(1024)?, streams[1].alloc_zeros::<f32>(1024)?];
    nccl::group(|group| {
        let mut ranks = communicators.iter().zip(&mut buffers);
        ranks.try_for_each(|(rank, buffer)| group.on(rank).all_reduce_in_place(buffer, ReduceOp::Sum))
    })?;
    streams.iter().try_for_each(|stream| stream.synchronize())?;

    let watchdog = watch(communicators[0].abort_handle());
    communicators[0].all_reduce_in_place(&mut buffers[0], ReduceOp::Sum)?;
    // Returns once the collective has been aborted. The contents of the buffer are then undefined.
    streams[0].synchronize()?;
    join(watchdog)?;
    let error = communicators[0].async_error();
    assert!(matches!(error, Err(Error::Aborted { .. })), "{error:?}");
    // The other rank cannot close its communicator without this one.
    communicators[1].abort_handle().abort()?;
    println!("a collective was aborted");
    Ok(())
}
