//! Arguments, refusals and stream order of a collective outside a group.

use collectives::nccl::{
    Collectives, Communicator, Config, DeviceBuffer, Error, Memory, Needed, ResultCode, group,
};
use collectives::{DataType, Element, ReduceOp};
use cudarc::driver::{CudaContext, DeviceRepr, ValidAsZeroBits};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::fake::{Fake, Knob};

fn all_reduce_of<T: Element>(
    fake: &Fake,
    communicator: &Communicator,
    memory: [&mut Memory; 2],
) -> Vec<String> {
    let [send, receive] = memory;
    for op in ReduceOp::ALL {
        let mut view = receive.slice_mut::<T>(..3).unwrap();
        communicator.all_reduce(&send.slice::<T>(..3).unwrap(), &mut view, op).unwrap();
    }
    fake.log()
}

#[test]
fn every_type_and_operator_arrives_as_nccl_numbers_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut send = fake.memory(communicator.stream(), 64);
    let mut receive = fake.memory(communicator.stream(), 64);
    macro_rules! check {
        ($($type:ty => $number:literal),*) => {$({
            let log = all_reduce_of::<$type>(&fake, &communicator, [&mut send, &mut receive]);
            let line = |op| format!(
                "launch all_reduce comm1 m1->m2 count 3 type {} op {op} s1 device 0", $number
            );
            assert_eq!(log, [0, 1, 2, 3, 4].map(line));
        })*};
    }
    check!(i8 => 0, u8 => 1, i32 => 2, u32 => 3, i64 => 4, u64 => 5, f16 => 6, f32 => 7, f64 => 8, bf16 => 9);
    check!(F8E4M3 => 10, F8E5M2 => 11);
    assert_eq!(DataType::ALL.len(), 12);
}

#[test]
fn all_gather_passes_its_part_and_in_place_its_own_place() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let send = fake.memory(communicator.stream(), 64);
    let mut receive = fake.memory(communicator.stream(), 64);
    let part = send.slice::<f64>(..3).unwrap();
    communicator.all_gather(&part, &mut receive.slice_mut::<f64>(..6).unwrap()).unwrap();
    communicator.all_gather_in_place(&mut receive.slice_mut::<f64>(..6).unwrap()).unwrap();
    communicator.all_reduce_in_place(&mut receive.slice_mut::<i8>(..5).unwrap(), ReduceOp::Max).unwrap();
    assert_eq!(
        fake.log(),
        [
            "launch all_gather comm1 m1->m2 count 3 type 8 op -1 s1 device 0",
            // Rank 1: its three doubles begin at byte 24.
            "launch all_gather comm1 m2+24->m2 count 3 type 8 op -1 s1 device 0",
            "launch all_reduce comm1 m2->m2 count 5 type 0 op 2 s1 device 0",
        ]
    );
}

#[test]
fn hole_6_wrong_lengths_are_refused_before_nccl_sees_them() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream();
    let (send, mut receive) = (fake.memory(stream, 64), fake.memory(stream, 64));
    let error = |result: Result<(), Error>| match result.unwrap_err() {
        Error::Length { needed, found, .. } => (needed, found),
        other => panic!("{other}"),
    };
    let four = send.slice::<f32>(..4).unwrap();
    let mut three = receive.slice_mut::<f32>(..3).unwrap();
    assert_eq!(error(communicator.all_reduce(&four, &mut three, ReduceOp::Sum)), (Needed::Exactly(4), 3));
    assert_eq!(error(communicator.all_gather(&four, &mut three)), (Needed::Exactly(8), 3));
    assert_eq!(error(communicator.all_gather_in_place(&mut three)), (Needed::MultipleOf(2), 3));
    let refused = group(|group| group.on(&communicator).all_reduce(&four, &mut three, ReduceOp::Sum));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "ncclAllReduce: the receive buffer has 3 elements and needs exactly 4"
    );
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
}

#[test]
fn views_stay_inside_their_memory_and_start_on_an_element() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let mut memory = fake.memory(&stream, 64);
    assert_eq!(
        memory.slice::<u64>(7..8).unwrap().address() - memory.slice::<u64>(..0).unwrap().address(),
        56
    );
    assert!(DeviceBuffer::is_empty(&memory.slice::<u64>(8..8).unwrap()));
    assert!(!DeviceBuffer::is_empty(&memory.slice::<u64>(7..8).unwrap()));
    for (offset, end) in [(7, 9), (0, 9), (9, 9), (1, usize::MAX), (usize::MAX, usize::MAX), (3, 2)] {
        assert!(matches!(memory.slice::<u64>(offset..end), Err(Error::View { .. })), "{offset} {end}");
        assert!(matches!(memory.slice_mut::<u64>(offset..end), Err(Error::View { .. })), "{offset} {end}");
    }
}

#[test]
fn hole_12_other_devices_and_contexts_are_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = fake.stream(1);
    let mut memory = fake.memory(&other, 64);
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum);
    assert_eq!(
        result.unwrap_err().to_string(),
        "ncclAllReduce: the buffer is in a context of device 1, the communicator in the primary context of \
         device 0"
    );

    let own = CudaContext::new_non_primary(0, 0).unwrap().new_stream().unwrap();
    let mut memory = Memory::alloc(fake.library(), &own, 64).unwrap();
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::WrongDevice { .. })));
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));

    let init = |stream| Communicator::builder(fake.library(), stream).rank(0, 1).id(&fake.id()).init();
    assert!(matches!(init(&own), Err(Error::Stream { .. })));
    let per_thread = CudaContext::new(0).unwrap().per_thread_stream();
    assert!(matches!(init(&per_thread), Err(Error::Stream { .. })));
}

#[test]
fn memory_of_a_per_thread_stream_is_refused() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let per_thread = communicator.stream().context().per_thread_stream();
    assert!(matches!(Memory::alloc(fake.library(), &per_thread, 64), Err(Error::Stream { .. })));
    let mut buffer = per_thread.alloc_zeros::<f32>(2).unwrap();
    let result = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum);
    assert!(matches!(result, Err(Error::Stream { operation: "ncclAllReduce", .. })));
    let result = group(|group| group.on(&communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum));
    assert!(matches!(result, Err(Error::Stream { .. })));
    // SAFETY: nothing uses the memory.
    let memory = unsafe { Memory::from_raw(0x7000_0000_0000, 8, per_thread, ()) };
    assert!(matches!(
        communicator.register(&memory),
        Err(Error::Stream { operation: "ncclCommRegister", .. })
    ));
    assert!(!fake.log().iter().any(|line| line.starts_with("launch") || line.starts_with("register")));
}

#[test]
fn hole_20_a_buffer_of_another_stream_is_ordered_before_and_after() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (send, mut receive) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let mut view = receive.slice_mut::<f32>(..2).unwrap();
    communicator.all_reduce(&send.slice::<f32>(..2).unwrap(), &mut view, ReduceOp::Sum).unwrap();
    drop(send);
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_reduce comm1 m1->m2 count 2 type 7 op 0 s1 device 0",
            "e1 records s1",
            "s2 waits e1",
            "synchronize s2",
            "ncclMemFree m1",
        ]
    );
}

#[test]
fn hole_20_other_streams_wait_even_when_nccl_fails() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    fake.set(Knob::NcclResult, 5);
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum);
    assert!(matches!(result, Err(Error::Nccl { .. })));
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1", "e1 records s1", "s2 waits e1"]);
}

#[test]
fn when_streams_cannot_be_ordered_the_host_waits() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    fake.log();
    let fails = |result| assert!(matches!(result, Err(Error::Cuda { operation: "cuStreamWaitEvent", .. })));
    // Before the operation: nothing is launched.
    fake.set(Knob::EventsFail, 0b1);
    fails(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
    assert_eq!(fake.log(), [""; 0]);
    // After it.
    fake.set(Knob::EventsFail, 0b10);
    fails(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
    let launch = "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";
    assert_eq!(fake.log(), ["e1 records s2", "s1 waits e1", launch, "synchronize s1"]);
}

#[test]
fn a_buffer_of_the_same_stream_needs_no_events() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum).unwrap();
    assert_eq!(fake.log().len(), 1);
}

#[test]
fn cudarc_buffers_are_freed_after_nccl_has_used_them() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let send = other.clone_htod(&[1.0f32, 2.0]).unwrap();
    let mut receive = other.alloc_zeros::<f32>(2).unwrap();
    fake.log();
    communicator.all_reduce(&send, &mut receive, ReduceOp::Sum).unwrap();
    drop(send);
    let log = fake.log();
    let at = |wanted: &str| log.iter().position(|line| line.starts_with(wanted)).unwrap();
    // cudarc has its own events; ours is the last that was made.
    assert!(at("s1 waits e5") < at("launch"), "{log:#?}");
    assert!(at("launch") < at("s2 waits e5"), "{log:#?}");
    assert!(at("s2 waits e5") < at("free m1 on s2"), "{log:#?}");
    let view = communicator.all_gather(&receive.slice(0..1), &mut other.alloc_zeros::<f32>(2).unwrap());
    assert!(view.is_ok());
}

#[test]
fn memory_is_copied_in_both_directions() {
    fn round_trip<T: Element + DeviceRepr + ValidAsZeroBits>(fake: &Fake, values: &[T]) {
        let stream = fake.stream(0);
        let (mut memory, at) = (fake.memory(&stream, 64), 16 / size_of::<T>());
        assert_eq!(stream.clone_dtoh(&memory.slice::<T>(..2).unwrap()).unwrap(), vec![T::default(); 2]);
        stream.memcpy_htod(values, &mut memory.slice_mut::<T>(at..at + values.len()).unwrap()).unwrap();
        assert_eq!(stream.clone_dtoh(&memory.slice::<T>(at..at + values.len()).unwrap()).unwrap(), values);
        // For a copy on another stream, the host waits before and after.
        let other = stream.context().new_stream().unwrap();
        fake.log();
        assert_eq!(other.clone_dtoh(&memory.slice::<T>(at..at + 1).unwrap()).unwrap(), values[..1]);
        assert_eq!(fake.log(), ["synchronize s1", "synchronize s2"]);
    }
    round_trip(&Fake::new(), &[1.5f32, -2.0, 3.25]);
    round_trip(&Fake::new(), &[7u8, 8]);
    round_trip(&Fake::new(), &[F8E4M3::from_bits(0x7e), F8E4M3::from_bits(0x81)]);
    round_trip(&Fake::new(), &[F8E5M2::from_bits(0xfc), F8E5M2::from_bits(1)]);
}

#[test]
fn hole_11_unknown_result_codes_are_errors() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    for code in [8, 9, 4711] {
        fake.set(Knob::NcclResult, code);
        let result =
            communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum);
        match result.unwrap_err() {
            Error::Nccl { code: ResultCode(seen), .. } => assert_eq!(seen, code.cast_unsigned()),
            other => panic!("{other}"),
        }
    }
    fake.set(Knob::AsyncResult, 4711);
    let error = communicator.async_error().unwrap_err().to_string();
    assert!(error.contains("code 4711, unknown to this build"), "{error}");
}
