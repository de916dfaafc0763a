//! Demonstrations of a review of soundness.

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Split, group};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::fake::{Fake, Knob};

fn bugs(fake: &Fake) -> Vec<String> {
    fake.log_with_bugs().into_iter().filter(|line| line.contains("BUG")).collect()
}

/// The group is refused, but the drop of its accesses records the event of the slice's write in the capture. The event
/// of the earlier write is lost: cudarc cannot wait for it when it frees the slice.
#[test]
fn a_group_refused_for_a_capture_that_its_closure_began_keeps_the_events_of_its_buffers() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut slice = own.alloc_zeros::<f32>(8).unwrap();
    other.memcpy_dtod(&source, &mut slice).unwrap();
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut slice, Sum)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        communicator.stream().begin_capture(mode).unwrap();
        Ok::<_, Error>(())
    });
    assert!(matches!(result, Err(Error::Stream { .. })), "{result:?}");
    let _ = communicator.stream().end_capture(CUgraphInstantiate_flags(0));
    drop(slice);
    assert_eq!(bugs(&fake), [""; 0]);
    drop(source);
}

/// The same for a closure that fails.
#[test]
fn a_group_whose_closure_fails_in_a_capture_keeps_the_events_of_its_buffers() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let source = other.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut slice = own.alloc_zeros::<f32>(8).unwrap();
    other.memcpy_dtod(&source, &mut slice).unwrap();
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut slice, Sum)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        communicator.stream().begin_capture(mode).unwrap();
        Err::<(), _>(Error::Rank { rank: 0, size: 0 })
    });
    assert!(result.is_err());
    let _ = communicator.stream().end_capture(CUgraphInstantiate_flags(0));
    drop(slice);
    assert_eq!(bugs(&fake), [""; 0]);
    drop(source);
}

/// NCCL would run both splits on threads of their own, which use the parent's bootstrap at the same time.
#[test]
fn a_communicator_is_not_split_twice_in_one_group() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let split = || Some(Split::color(0));
    let result = Communicator::split_all([(&communicator, split()), (&communicator, split())]);
    println!("{:?}", fake.log_with_bugs());
    assert!(result.is_err(), "{result:?}");
}

/// NCCL: "If the child communicator shares the resources with the parent communicator (splitShare), it is not allowed to
/// issue NCCL operations to the child and parent communicators in parallel" (threadsafety.rst).
#[test]
fn a_child_that_shares_resources_excludes_its_parent() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new().split_share(true));
    let child = parent.split(&Split::color(0)).unwrap();
    let (mut one, mut two) = (fake.memory(parent.stream(), 8), fake.memory(child.stream(), 8));
    fake.log();
    fake.set(Knob::CallMillis, -1);
    let both = std::thread::scope(|scope| {
        scope.spawn(move || parent.all_reduce_in_place(&mut one.slice_mut::<f32>(..).unwrap(), Sum).unwrap());
        fake.until("inside NCCL");
        scope.spawn(move || child.all_reduce_in_place(&mut two.slice_mut::<f32>(..).unwrap(), Sum).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
        let log = fake.log();
        fake.set(Knob::CallMillis, 0);
        log
    });
    assert!(!both.iter().any(|line| line == "inside NCCL"), "{both:#?}");
}

/// Compiles without `unsafe`: cudarc's views of a module's global are neither exclusive nor freed in the order of their stream, and
/// need not be of the stream's device. Not run: the fake has no modules with globals.
#[allow(dead_code)]
fn views_of_a_global(
    communicator: &Communicator,
    module: std::sync::Arc<cudarc::driver::CudaModule>,
    any: &std::sync::Arc<cudarc::driver::CudaStream>,
) -> Result<(), Error> {
    let mut first = module.get_global("buffer", any).unwrap();
    let second = module.get_global("buffer", any).unwrap();
    // One buffer, written and read.
    communicator.all_reduce(&second, &mut first, Sum)?;
    // Unloads the module, and frees its global, while the collective runs.
    drop(module);
    Ok(())
}
