//! Memory that NCCL knows beforehand, on all GPUs of this machine: a registration, which saves copies, and a window,
//! into which another rank writes. Says what the loaded libnccl is too old for.
//!
//! ```text
//! cargo run --release --example nccl_window
//! ```

use std::thread;

use collectives::ReduceOp;
use collectives::nccl::{
    self, Collectives, Communicator, Config, Error, Library, Memory, Signal, UniqueId, WindowKind,
};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LEN: usize = 1024;
const BYTES: usize = LEN * size_of::<f32>();

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

/// What was done.
fn one_rank(library: Library, rank: usize, gpus: usize, id: &UniqueId) -> Result<String, Failure> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let communicator = Communicator::init(library, &stream, rank, gpus, id, &Config::new())?;
    let mut memory = Memory::alloc(library, &stream, 2 * BYTES)?;
    stream.memcpy_htod(&[(rank + 1) as f32; LEN], &mut memory.slice_mut::<f32>(..LEN)?)?;

    let mut registered = match communicator.register(&mut memory) {
        Err(error @ Error::MissingSymbol(_)) => return Ok(format!("nothing done: {error}")),
        registered => registered?,
    };
    communicator.all_reduce_in_place(&mut registered.slice_mut::<f32>(..LEN)?, ReduceOp::Max)?;
    assert_eq!(stream.clone_dtoh(&registered.slice::<f32>(..LEN)?)?, [gpus as f32; LEN]);
    drop(registered);

    let mut window = match communicator.window(&mut memory, WindowKind::Symmetric) {
        Err(error @ Error::MissingSymbol(_)) => return Ok(format!("registered memory; no window: {error}")),
        window => window?,
    };
    if gpus == 1 || !window.is_active() {
        return Ok("registered memory and a window; no other GPU can reach it".to_owned());
    }
    // Every rank writes its own number into the second half of its right neighbour's window.
    let (left, right) = ((rank + gpus - 1) % gpus, (rank + 1) % gpus);
    stream.memcpy_htod(&[(rank + 1) as f32; LEN], &mut window.slice_mut::<f32>(..LEN)?)?;
    match communicator.put(&window.slice::<f32>(..LEN)?, &window, BYTES, Signal::new(right)) {
        Err(error @ Error::MissingSymbol(_)) => {
            return Ok(format!("registered memory and a window; no put: {error}"));
        }
        put => put?,
    }
    communicator.wait_signals(&[(Signal::new(left), 1)])?;
    assert_eq!(stream.clone_dtoh(&window.slice::<f32>(BYTES, LEN)?)?, [(left + 1) as f32; LEN]);
    Ok("registered memory, a window, and in every window what the left neighbour has put there".to_owned())
}
