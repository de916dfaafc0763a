//! Captures of the program that begin between a check of the library and its use of the stream, or that could
//! get memory which they do not keep.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use collectives::ReduceOp::Sum;
use collectives::job::{Group, Job};
use collectives::nccl::{Collectives, Communicator, Error, Memory, group};
use collectives::train::{Reducer, Zero1};
use collectives::world::{self, Position, World};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::fake::{Fake, Knob, aborts};
use crate::jobs::on_gpus;
use crate::training::{compute, options, parameters};

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn end_capture(stream: &Arc<CudaStream>) {
    // An invalidated capture ends with an error.
    let _graph = stream.end_capture(CUgraphInstantiate_flags(0));
}

#[test]
fn no_copy_of_memory_is_captured() {
    let fake = Fake::new();
    let own = fake.stream(0);
    let source = fake.memory(&own, 32);
    let mut target = fake.memory(&own, 32);
    own.begin_capture(RELAXED).unwrap();
    let copied =
        own.memcpy_dtod(&source.slice::<f32>(..).unwrap(), &mut target.slice_mut::<f32>(..).unwrap());
    let noted = own.context().check_err();
    assert!(copied.is_err() || noted.is_err(), "{copied:?} {noted:?}");
    let read = own.clone_dtoh(&source.slice::<f32>(..).unwrap());
    let noted = own.context().check_err();
    assert!(read.is_err() || noted.is_err(), "{read:?} {noted:?}");
    end_capture(&own);
    drop((source, target));
}

#[test]
fn a_slice_that_a_capture_has_made_is_not_adopted() {
    let fake = Fake::new();
    let own = fake.stream(0);
    own.begin_capture(RELAXED).unwrap();
    let slice = own.alloc_zeros::<f32>(8).unwrap();
    let refused = Memory::try_from(slice);
    assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
    end_capture(&own);
}

/// A communicator of two ranks on `own`.
fn communicator(fake: &Fake, own: &Arc<CudaStream>) -> Communicator {
    Communicator::builder(fake.library(), own).rank(1, 2).id(&fake.id()).init().unwrap()
}

#[test]
fn a_buffer_that_a_capture_has_read_is_not_freed_under_a_collective() {
    for grouped in [false, true] {
        let fake = Fake::new();
        let context = CudaContext::new(0).unwrap();
        // No stream is counted yet, so cudarc records no event.
        let buffer = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let mut copy = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let own = context.new_stream().unwrap();
        let communicator = communicator(&fake, &own);
        let mut sum = own.alloc_zeros::<f32>(8).unwrap();
        let third = context.new_stream().unwrap();
        let mut read = || {
            third.begin_capture(RELAXED).unwrap();
            third.memcpy_dtod(&buffer, &mut copy).unwrap();
        };
        let result = if grouped {
            group(|group| {
                group.on(&communicator).all_reduce(&buffer, &mut sum, Sum)?;
                read();
                Ok::<(), Error>(())
            })
        } else {
            read();
            communicator.all_reduce(&buffer, &mut sum, Sum)
        };
        // NCCL has begun the operation, so this is no refusal.
        assert!(!matches!(result, Err(Error::Stream { .. })), "{result:?}");
        end_capture(&third);
        let _noted = context.check_err();
        // The fake reports memory that is freed while it is used.
        drop(buffer);
    }
}

#[test]
fn memory_is_not_freed_under_a_collective_whose_input_a_capture_has_read() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let buffer = context.default_stream().alloc_zeros::<f32>(8).unwrap();
    let mut copy = context.default_stream().alloc_zeros::<f32>(8).unwrap();
    let own = context.new_stream().unwrap();
    let communicator = communicator(&fake, &own);
    let second = context.new_stream().unwrap();
    let mut memory = fake.memory(&second, 32);
    let third = context.new_stream().unwrap();
    third.begin_capture(RELAXED).unwrap();
    third.memcpy_dtod(&buffer, &mut copy).unwrap();
    let result = communicator.all_reduce(&buffer, &mut memory.slice_mut::<f32>(..).unwrap(), Sum);
    assert!(!matches!(result, Err(Error::Stream { .. })), "{result:?}");
    end_capture(&third);
    let _noted = context.check_err();
    drop(memory);
    own.synchronize().unwrap();
}

#[test]
fn a_collective_reads_what_a_capture_has_read() {
    for ended in [false, true] {
        let fake = Fake::new();
        let context = CudaContext::new(0).unwrap();
        let buffer = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let mut copy = context.default_stream().alloc_zeros::<f32>(8).unwrap();
        let own = context.new_stream().unwrap();
        let communicator = communicator(&fake, &own);
        let other = context.new_stream().unwrap();
        let mut sum = other.alloc_zeros::<f32>(8).unwrap();
        let third = context.new_stream().unwrap();
        third.begin_capture(RELAXED).unwrap();
        third.memcpy_dtod(&buffer, &mut copy).unwrap();
        if ended {
            end_capture(&third);
        }
        communicator.all_reduce(&buffer, &mut sum, Sum).unwrap();
        if !ended {
            end_capture(&third);
        }
        // The fake reports a use on another stream that is not ordered, and memory that is freed while it is
        // used.
        other.clone_dtoh(&sum).unwrap();
        drop(buffer);
        own.synchronize().unwrap();
        assert_eq!(fake.bugs(), [""; 0]);
    }
}

#[test]
fn a_buffer_written_in_a_capture_is_refused() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let mut buffer = context.default_stream().alloc_zeros::<f32>(8).unwrap();
    let own = context.new_stream().unwrap();
    let communicator = communicator(&fake, &own);
    let third = context.new_stream().unwrap();
    third.begin_capture(RELAXED).unwrap();
    third.memset_zeros(&mut buffer).unwrap();
    end_capture(&third);
    let refused = communicator.all_reduce_in_place(&mut buffer, Sum);
    assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
}

#[test]
fn all_collectives_of_a_group_are_waited_for_after_an_error_of_one() {
    let fake = Fake::new();
    let context = CudaContext::new(0).unwrap();
    let streams = [0; 2].map(|_| context.new_stream().unwrap());
    let communicators = streams.each_ref().map(|stream| communicator(&fake, stream));
    let buffer = streams[0].alloc_zeros::<f32>(8).unwrap();
    let mut sums = streams.each_ref().map(|stream| stream.alloc_zeros::<f32>(8).unwrap());
    let other = context.new_stream().unwrap();
    // The first record of the call: of the buffer's read.
    fake.set(Knob::EventsFail, 1);
    let result = group(|group| {
        let [first, second] = &mut sums;
        group.on(&communicators[0]).all_reduce(&buffer, first, Sum)?;
        group.on(&communicators[1]).all_reduce_in_place(second, Sum)
    });
    assert!(matches!(result, Err(Error::Cuda { .. })), "{result:?}");
    for sum in &sums {
        other.clone_dtoh(sum).unwrap();
    }
    assert_eq!(fake.bugs(), [""; 0]);
}

#[test]
fn parameters_that_a_capture_has_read_are_not_written() {
    let fake = Fake::new();
    on_gpus(&fake, 2, |group| {
        let context = group.context().unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: the fake has no values. No write is recorded, which a capture could not wait for.
        let mut parameters = [0; 2].map(|_| unsafe { stream.alloc::<f32>(8) }.unwrap());
        let gradients = [0; 2].map(|_| stream.clone_htod(&[1.0_f32; 8]).unwrap());
        // SAFETY: as above.
        let mut copy = unsafe { stream.alloc::<f32>(8) }.unwrap();
        let shapes = crate::training::parameters(&[8, 8]);
        let mut optimizer = Zero1::<CudaSlice<f32>>::new(group, &shapes, &options()).unwrap();
        let third = context.new_stream().unwrap();
        if group.rank() == 0 {
            third.begin_capture(RELAXED).unwrap();
            // A parameter of the other rank's shard, which this rank only writes.
            third.memcpy_dtod(&parameters[1], &mut copy).unwrap();
        }
        let [first, second] = &mut parameters;
        let stepped = optimizer.step(
            0,
            &gradients.each_ref().map(CudaSlice::as_view),
            &mut [first.as_view_mut(), second.as_view_mut()],
            |_, _| Ok(()),
        );
        if group.rank() == 0 {
            assert!(stepped.is_err(), "{stepped:?}");
            let _noted = context.check_err();
            end_capture(&third);
        }
        drop(optimizer);
    });
}

#[test]
fn an_optimizer_is_not_made_in_a_capture() {
    let fake = Fake::new();
    on_gpus(&fake, 1, |group| {
        // SAFETY: the optimizer orders the streams.
        unsafe { group.context().unwrap().disable_event_tracking() };
        let own = group.stream().unwrap();
        own.begin_capture(RELAXED).unwrap();
        let reducer = Reducer::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).map(drop);
        let zero = Zero1::<CudaSlice<f32>>::new(group, &parameters(&[8]), &options()).map(drop);
        end_capture(own);
        assert!(reducer.is_err() && zero.is_err(), "{reducer:?} {zero:?}");
    });
}

/// A world whose check begins a capture, once, on an armed thread.
struct Capturing {
    inner: world::Handle,
    /// The thread, the number of its checks until the capture, and the stream.
    armed: Mutex<Option<(ThreadId, usize, Arc<CudaStream>)>>,
}

impl World for Capturing {
    fn position(&self) -> Position {
        self.inner.position()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.inner.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.inner.all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.inner)
    }

    fn check(&self) -> Result<(), world::Error> {
        let mut armed = self.armed.lock().unwrap();
        if let Some((thread, left, stream)) = &mut *armed
            && *thread == thread::current().id()
        {
            *left -= 1;
            if *left == 0 {
                stream.begin_capture(RELAXED).unwrap();
                *armed = None;
            }
        }
        drop(armed);
        self.inner.check()
    }

    fn abort(&self, code: i32, _message: &str) -> ! {
        std::process::exit(code)
    }
}

#[test]
fn averages_are_not_captured_by_a_world_that_begins_a_capture() {
    let fake = Fake::new();
    let world = Arc::new(Capturing { inner: world::single(), armed: Mutex::new(None) });
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the reducer orders the streams.
    unsafe { context.disable_event_tracking() };
    let job = Job::new(Arc::clone(&world) as world::Handle);
    let group = job.group_on_gpu(fake.library(), &context).unwrap();
    let stream = compute(&group);
    let mut gradient = stream.clone_htod(&[1.0_f32; 8]).unwrap();
    let mut reducer = Reducer::<CudaSlice<f32>>::new(&group, &parameters(&[8]), &options()).unwrap();
    *world.armed.lock().unwrap() = Some((thread::current().id(), 1, Arc::clone(&stream)));
    let averaged = reducer.average(0, &mut [gradient.as_view_mut()]);
    assert!(world.armed.lock().unwrap().is_none(), "the capture has begun");
    averaged.unwrap_err();
    end_capture(&stream);
    drop((reducer, group, job));
}

#[test]
fn a_gather_of_messages_that_a_capture_interrupts_stops_the_group() {
    let fake = Fake::new();
    let world = Arc::new(Capturing { inner: world::single(), armed: Mutex::new(None) });
    let context = CudaContext::new(0).unwrap();
    let job = Job::new(Arc::clone(&world) as world::Handle);
    let group = job.group_on_gpu(fake.library(), &context).unwrap();
    // The group of all ranks gathers messages through the world.
    let part = group.split(Some(0)).unwrap().unwrap();
    let stream = part.stream().unwrap();
    // Begins at the end of the first operation, which gathers the lengths.
    *world.armed.lock().unwrap() = Some((thread::current().id(), 1, Arc::clone(stream)));
    part.all_gather_bytes(b"message").unwrap_err();
    assert!(world.armed.lock().unwrap().is_none(), "the capture has begun");
    let _noted = context.check_err();
    end_capture(stream);
    // Other ranks wait in the second operation, with which the next one would be paired.
    part.barrier().unwrap_err();
}

/// Calls `call` on two ranks of a part, of which rank 0's stream is captured after its second check of the
/// world. Returns the errors.
fn interrupt_calls(
    call: impl Fn(&Group) -> Result<(), collectives::Error> + Sync,
) -> Vec<collectives::Error> {
    let fake = Fake::new();
    fake.set(Knob::MovesData, aborts::MISLEAD);
    let (library, call) = (fake.library(), &call);
    let rank = |inner: world::Handle| {
        let world = Arc::new(Capturing { inner, armed: Mutex::new(None) });
        let job = Job::new(Arc::clone(&world) as world::Handle);
        let context = CudaContext::new(job.local_rank()).unwrap();
        let group = job.group_on_gpu(library, &context).unwrap();
        let part = group.split(Some(0)).unwrap().unwrap();
        part.barrier().unwrap();
        let stream = Arc::clone(part.stream().unwrap());
        if part.rank() == 0 {
            *world.armed.lock().unwrap() = Some((thread::current().id(), 2, Arc::clone(&stream)));
        }
        let error = call(&part).unwrap_err();
        assert!(world.armed.lock().unwrap().is_none(), "the capture has begun");
        if part.rank() == 0 {
            let _noted = context.check_err();
            end_capture(&stream);
        }
        error
    };
    thread::scope(|scope| {
        let worlds = world::threads(world::single(), 2).unwrap();
        let threads: Vec<_> = worlds.into_iter().map(|inner| scope.spawn(move || rank(inner))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_learn_of_an_exchange_that_a_capture_interrupts() {
    let reducer =
        |part: &Group| Reducer::<CudaSlice<f32>>::new(part, &parameters(&[8]), &options()).map(drop);
    let split = |part: &Group| part.split(Some(1)).map(drop);
    for errors in [interrupt_calls(reducer), interrupt_calls(split)] {
        assert!(matches!(errors[1], collectives::Error::RankFailed { rank: 0, .. }), "{errors:?}");
    }
}

/// A capture of the buffer's stream begins between the check of that stream and the wait for it.
#[test]
fn no_operation_joins_a_capture_of_its_buffers_stream() {
    for is_prepared in [false, true] {
        let fake = Fake::new();
        let context = CudaContext::new(0).unwrap();
        let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let communicator = communicator(&fake, &own);
        let mut memory = fake.memory(&other, 32);
        let list = communicator
            .prepare::<Error>(|list| list.all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum))
            .unwrap();
        fake.set(Knob::CaptureLater, 2);
        let refused = if is_prepared {
            communicator.queue(&list)
        } else {
            communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum)
        };
        assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
        end_capture(&other);
        drop((list, memory));
    }
}
