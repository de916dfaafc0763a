//! Registered memory on all GPUs of this machine: a registration, which avoids copies, and a window, into
//! which another rank writes. Prints features that the loaded libnccl lacks.
//!
//! ```text
//! cargo run --release --example nccl_window
//! ```

use std::thread;

use collectives::ReduceOp;
use collectives::nccl::{
    self, Collectives, Communicator, Error, Library, Memory, Signal, UniqueId, WindowKind,
};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LEN: usize = 1024;

fn main() -> Result<(), Failure> {
    let gpus = nccl::device_count().map_err(|error| format!("needs a GPU: {error}"))?;
    let library = Library::load()?;
    let id = UniqueId::new(library)?;
    let done = thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..gpus).map(|rank| scope.spawn(move || one_rank(library, rank, gpus, &id))).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|_| Err("a rank's thread panicked".into())))
            .collect::<Result<Vec<_>, _>>()
    })?;
    println!("{gpus} GPUs: {}", done[0]);
    Ok(())
}

/// Runs one rank. Returns a description of the result.
fn one_rank(library: Library, rank: usize, gpus: usize, id: &UniqueId) -> Result<String, Failure> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let communicator = Communicator::builder(library, &stream).rank(rank, gpus).id(id).init()?;
    // The first half is sent, the second half received.
    let mut memory = Memory::alloc(library, &stream, 2 * LEN * size_of::<f32>())?;
    stream.memcpy_htod(&[(rank + 1) as f32; LEN], &mut memory.slice_mut::<f32>(..LEN)?)?;

    let registration = match communicator.register(&memory) {
        Err(error @ Error::MissingSymbol(_)) => return Ok(format!("nothing done: {error}")),
        registration => registration?,
    };
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..LEN)?, ReduceOp::Max)?;
    assert_eq!(stream.clone_dtoh(&memory.slice::<f32>(..LEN)?)?, [gpus as f32; LEN]);
    drop(registration);

    let window = match communicator.window(&memory, WindowKind::Symmetric) {
        Err(error @ Error::MissingSymbol(_)) => return Ok(format!("registered memory; no window: {error}")),
        window => window?,
    };
    if gpus == 1 || !window.is_active() {
        return Ok("registered memory and a window; no other GPU can reach it".to_owned());
    }
    // Every rank writes its own number into the second half of its right neighbour's window.
    let (left, right) = ((rank + gpus - 1) % gpus, (rank + 1) % gpus);
    stream.memcpy_htod(&[(rank + 1) as f32; LEN], &mut memory.slice_mut::<f32>(..LEN)?)?;
    let (source, signal) = (memory.slice::<f32>(..LEN)?, Signal::new(right));
    // SAFETY: the right neighbour runs this function, too: its window lasts until it has waited for the
    // signal, and it reads the second half only then.
    match unsafe { communicator.put(&source, &window, LEN, signal) } {
        Err(error @ Error::MissingSymbol(_)) => {
            return Ok(format!("registered memory and a window; no put: {error}"));
        }
        put => put?,
    }
    communicator.wait_signals(&[(Signal::new(left), 1)])?;
    assert_eq!(stream.clone_dtoh(&memory.slice::<f32>(LEN..)?)?, [(left + 1) as f32; LEN]);
    Ok("registered memory, a window, and in every window what the left neighbour has put there".to_owned())
}
