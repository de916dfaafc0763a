// compiles

use std::sync::Arc;

use collectives::ReduceOp::{Max, Sum};
use collectives::nccl::{Collectives, 
    CallConfig, Communicator, Error, Graph, Library, Memory, RawBuffer, Signal, WindowKind, group, simulate,
    windows,
};
use cudarc::driver::{CudaSlice, CudaStream};

fn main() {}

/// What the other programs get wrong, done right.
fn test(
    library: Library,
    communicator: Communicator,
    mut memory: Memory,
    a: CudaSlice<f32>,
    mut b: CudaSlice<f32>,
) -> Result<(), Error> {
    let (part, mut other) = (a.slice(0..1), b.clone());
    group(|group| {
        group.on(&communicator).all_reduce(&a, &mut b, Sum)?;
        group.on(&communicator).all_gather(&part, &mut other)
    })?;
    communicator.all_reduce(&a, &mut b, Sum)?;
    drop(a);
    let mut view = memory.slice_mut::<u8>(..4)?;
    communicator.all_reduce_in_place(&mut view, Max)?;
    let read = memory.slice::<f32>(..4)?;
    println!("{}", read.address());
    let handle = communicator.abort_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| handle.abort());
    });
    std::thread::spawn(move || communicator.close());
    Ok(())
}

fn groups(
    library: Library,
    [first, second]: &[Communicator; 2],
    a: &CudaSlice<f32>,
    mut b: CudaSlice<f32>,
    mut c: CudaSlice<f32>,
) -> Result<(), Error> {
    let config = CallConfig::new().max_ctas(8);
    let sum = first.scaled_sum(0.5)?;
    group(|group| {
        group.on(first).with(&config).all_reduce(a, &mut b, &sum)?;
        group.nested(|group| group.on(second).all_reduce(a, &mut c, Sum))
    })?;
    simulate(|group| group.on(first).all_reduce_in_place(&mut b, Sum))?;
    group(|group| {
        group.on(first).send(&b, 1)?;
        group.on(first).recv(&mut c, 1)
    })?;
    drop(sum);
    first.all_reduce_in_place(&mut b, Sum)
}

fn operators(
    communicator: Communicator,
    a: &mut CudaSlice<i32>,
    mut scalar: CudaSlice<i32>,
) -> Result<(), Error> {
    let twice = communicator.scaled_sum(2)?;
    communicator.all_reduce_in_place(a, &twice)?;
    drop(twice);
    let scaled = communicator.scaled_sum_on_device(&scalar)?;
    communicator.all_reduce_in_place(a, &scaled)?;
    drop(scaled);
    communicator.broadcast_in_place(&mut scalar, 0)?;
    communicator.close()
}

fn reachable_memory(
    communicator: Communicator,
    other: &Communicator,
    mut memory: Memory,
    more: &mut Memory,
) -> Result<(), Error> {
    let mut registration = communicator.register(&mut memory)?;
    communicator.all_reduce_in_place(&mut registration.slice_mut::<f32>(..1)?, Sum)?;
    drop(registration);
    let window = communicator.window(&mut memory, WindowKind::Symmetric)?;
    communicator.put(&window.slice::<f32>(..1)?, &window, 4, Signal::new(1))?;
    communicator.wait_signals(&[(Signal::new(1), 1)])?;
    drop(window);
    drop(windows(
        communicator.library(),
        [(&communicator, &mut memory), (other, &mut *more)],
        WindowKind::Plain,
    )?);
    communicator.send(&memory.slice::<f32>(..1)?, 1)?;
    let stream = Arc::clone(communicator.stream());
    communicator.on_stream(&stream)?.close()
}

fn graphs(
    library: Library,
    communicator: Communicator,
    a: CudaSlice<f32>,
    mut b: CudaSlice<f32>,
) -> Result<(), Error> {
    let sum = communicator.scaled_sum(0.5)?;
    let mut c = b.clone();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce(&a, &mut b, &sum)?;
        capture.group(|capture| {
            capture.on(&communicator).send(&a, 1)?;
            capture.on(&communicator).recv(&mut c, 1)
        })
    })?;
    graph.launch()?;
    // What a graph only reads may be read by others.
    communicator.send(&a, 1)?;
    graph.launch()?;
    drop(graph);
    drop(a);
    // SAFETY: this program never runs.
    unsafe { communicator.captured() }.all_reduce_in_place(&mut b, Sum)?;
    communicator.send(&c, 1)?;
    drop(sum);
    communicator.close()
}

fn addresses(
    communicator: &Communicator,
    stream: Arc<CudaStream>,
    a: &mut CudaSlice<f32>,
) -> Result<(), Error> {
    // SAFETY: this program never runs.
    let buffer = unsafe { RawBuffer::<f32>::new(0x7000_0000_0000, 1, stream) };
    communicator.all_reduce(&buffer, a, Sum)
}
