//! An object that owns its communicator, its memory and their windows.

use collectives::ReduceOp;
use collectives::nccl::{
    Collectives, Communicator, Error, Library, Memory, UniqueId, Window, WindowKind, device_count,
};
use cudarc::driver::CudaContext;

type Failure = Box<dyn std::error::Error + Send + Sync>;
const COUNT: usize = 1 << 20;

struct Exchange {
    communicator: Communicator,
    memory: [Memory; 2],
    _windows: [Window; 2],
}

impl Exchange {
    fn new(communicator: Communicator) -> Result<Self, Error> {
        let memory = || Memory::alloc(communicator.library(), communicator.stream(), 4 * COUNT);
        let memory = [memory()?, memory()?];
        let window = |index: usize| communicator.window(&memory[index], WindowKind::Symmetric);
        let _windows = [window(0)?, window(1)?];
        Ok(Self { memory, _windows, communicator })
    }

    fn step(&mut self) -> Result<(), Error> {
        let [send, receive] = &mut self.memory;
        self.communicator.all_reduce(&send.slice::<f32>(..)?, &mut receive.slice_mut(..)?, ReduceOp::Sum)
    }
}

pub(crate) fn main() -> Result<(), Failure> {
    let (library, size) = (Library::load()?, device_count()?);
    let id = UniqueId::new(library)?;
    let one = |rank: usize| -> Result<(), Failure> {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let communicator = Communicator::builder(library, &stream).rank(rank, size).id(&id).init()?;
        let mut exchange = Exchange::new(communicator)?;
        stream.memcpy_htod(&vec![rank as f32; COUNT], &mut exchange.memory[0].slice_mut(..)?)?;
        exchange.step()?;
        let values = stream.clone_dtoh(&exchange.memory[1].slice::<f32>(..)?)?;
        assert_eq!(values[0], (size * (size - 1) / 2) as f32);
        Ok(())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|r| scope.spawn(move || one(r))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
