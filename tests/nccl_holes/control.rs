// compiles

use std::sync::Arc;

use collectives::ReduceOp::{Max, Sum};
use collectives::nccl::{
    CallConfig, Collectives, Communicator, Error, Graph, Library, Memory, Registration, Signal,
    Window, WindowKind, group, simulate, windows,
};
use cudarc::driver::{CudaSlice, CudaStream};

fn main() {}

/// Valid counterparts of the other programs.
fn test(
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
    let (first, mut second) = view.split_at_mut(2)?;
    communicator.all_reduce(&first, &mut second, Sum)?;
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

/// Registrations and windows are values: of memory that the program keeps, shared by communicators, dropped
/// in any order.
struct Known {
    registrations: [Registration; 2],
    window: Window,
}

fn reachable_memory(
    mut communicator: Communicator,
    other: &Communicator,
    mut memory: Memory,
) -> Result<Known, Error> {
    let registrations = [communicator.register(&memory)?, other.register(&memory.slice::<f32>(1..)?)?];
    let window = communicator.window(&memory, WindowKind::Symmetric)?;
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1)?, Sum)?;
    // SAFETY: this program never runs.
    unsafe { communicator.put(&memory.slice::<f32>(..1)?, &window, 1, Signal::new(1)) }?;
    communicator.wait_signals(&[(Signal::new(1), 1)])?;
    let more = windows([(&communicator, &memory), (other, &memory)], WindowKind::Plain)?;
    std::thread::spawn(move || drop(more));
    let stream = Arc::clone(communicator.stream());
    communicator.set_stream(&stream)?;
    communicator.close()?;
    drop(memory);
    Ok(Known { registrations, window })
}

fn end(known: Known) -> bool {
    let Known { registrations, window } = known;
    std::thread::spawn(move || drop(registrations));
    window.is_active()
}

/// A graph owns its buffers together with the program, which writes new values between launches.
fn graphs(communicator: Communicator, a: CudaSlice<f32>, mut b: CudaSlice<f32>) -> Result<(), Error> {
    let mut a = Memory::try_from(a)?;
    let graph = Graph::capture(|capture| {
        let sum = communicator.scaled_sum(0.5)?;
        capture.on(&communicator).all_reduce_in_place(&mut a.slice_mut::<f32>(..)?, &sum)?;
        capture.group(|capture| {
            let mut view = a.slice_mut::<f32>(..)?;
            let (sent, mut received) = view.split_at_mut(4)?;
            capture.on(&communicator).send(&sent, 1)?;
            capture.on(&communicator).recv(&mut received, 1)
        })
    })?;
    graph.launch()?;
    communicator.broadcast_in_place(&mut a.slice_mut::<f32>(..)?, 0)?;
    graph.launch()?;
    drop(a);
    // SAFETY: this program never runs.
    unsafe { communicator.captured() }.all_reduce_in_place(&mut b, Sum)?;
    communicator.close()?;
    std::thread::spawn(move || graph.launch());
    Ok(())
}

fn addresses(
    library: Library,
    communicator: &Communicator,
    stream: Arc<CudaStream>,
    a: &mut CudaSlice<f32>,
) -> Result<(), Error> {
    let owner = Memory::alloc(library, &stream, 4)?;
    // SAFETY: this program never runs.
    let memory = unsafe { Memory::from_raw(0x7000_0000_0000, 4, stream, owner) };
    communicator.register(&memory)?;
    communicator.all_reduce(&memory.slice::<f32>(..)?, a, Sum)
}
