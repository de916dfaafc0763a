//! Holes of other wrappers that are not about one concept of this layer. Where the others are tested:
//!
//! | cudarc | run-time tests here | programs that must not compile (`tests/nccl_holes`) |
//! |---|---|---|
//! | 1 | `groups` | `hole_1_*` |
//! | 2, 4 | `groups` | `hole_2_*` |
//! | 3 | `leaked` | `hole_3_*` |
//! | 5 | `groups` | |
//! | 6 | `calls`, `collective`, `windows` | `hole_6_*` |
//! | 7 | `calls`, here | |
//! | 8, 9 | | `hole_8_*`, `hole_9_*` |
//! | 10 | here | |
//! | 11 | `collective` | |
//! | 12 | `calls`, `collective`, `creation` | |
//! | 13 | `lifecycle`, `aborts`, `split` | |
//! | 14 | `creation`, `lifecycle`, `aborts`, `split`, `windows` | |
//! | 15 | | `hole_15_*` |
//! | 16, 17 | here | |
//! | 18 | the documentation's own examples, which are tests | |
//! | 19 | `creation`, here, and nccl-sys's `load` | |
//! | 20 | `collective` | |
//!
//! | monarch | run-time tests here | programs that must not compile |
//! |---|---|---|
//! | 1 | `calls`, here | |
//! | 2, 3, 4, 6 | here | |
//! | 5 | | `monarch_5_*` |
//! | 7 | `calls`, `split`, `operators` | `monarch_7_*` |
//! | 8 | the lint `undocumented_unsafe_blocks`, and `types_are_send_and_sync_as_documented` | |

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Grow, Memory, MemoryView, MemoryViewMut, ResultCode, Shrink,
    Split, group,
};
use collectives::{DataType, Element};
use float8::{F8E4M3, F8E5M2};
use nccl_sys::Nccl;

use crate::fake::{Fake, Knob};
use crate::not_allowed;

type View<'a> = MemoryView<'a, f32>;
type ViewMut<'a> = MemoryViewMut<'a, f32>;

/// NCCL gets no null for a root's buffer, in builds of any kind.
#[test]
fn hole_7_a_root_has_its_buffer() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let root = communicator.rank();
    let refused = |result: Result<(), Error>, operation: &str, buffer: &str| {
        not_allowed(result, &format!("{operation}: rank 1 is the root and needs a {buffer} buffer"));
    };
    refused(communicator.reduce(&view, None::<&mut ViewMut<'_>>, Sum, root), "ncclReduce", "receive");
    refused(communicator.gather(&view, None::<&mut ViewMut<'_>>, root), "ncclGather", "receive");
    refused(communicator.broadcast(None::<&View<'_>>, &mut view, root), "ncclBroadcast", "send");
    refused(communicator.scatter(None::<&View<'_>>, &mut view, root), "ncclScatter", "send");
    let beyond = communicator.broadcast_in_place(&mut view, usize::MAX);
    assert!(matches!(beyond, Err(Error::Rank { rank: usize::MAX, .. })));
    assert_eq!(fake.log(), [""; 0]);
}

/// Operators, results and states that NCCL numbers beyond what this build knows are numbers, not values of
/// Rust enums.
#[test]
fn hole_10_numbers_of_nccl_that_this_build_does_not_know() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let ops = [1.0f32, 2.0, 3.0].map(|scalar| communicator.scaled_sum(scalar).unwrap());
    communicator.all_reduce_in_place(&mut view, &ops[2]).unwrap();
    assert_eq!(fake.log()[3], "launch all_reduce comm1 m1->m1 count 2 type 7 op 7 s1 device 0");
    for code in [-1, i32::MAX] {
        fake.set(Knob::AsyncResult, code);
        let error = communicator.async_error().unwrap_err();
        assert!(matches!(error, Error::Nccl { code: ResultCode(seen), .. } if seen == code.cast_unsigned()));
    }
}

#[test]
fn hole_16_every_type_has_nccls_number() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 16);
    communicator.send(&memory.slice::<F8E4M3>(..3).unwrap(), 0).unwrap();
    communicator.send(&memory.slice::<F8E5M2>(..3).unwrap(), 0).unwrap();
    let line = |number| format!("launch send comm1 m1->null count 3 type {number} op -1 peer 0 s1 device 0");
    assert_eq!(fake.log(), [line(10), line(11)]);
    assert_eq!([F8E4M3::DATA_TYPE, F8E5M2::DATA_TYPE].map(DataType::size), [1, 1]);
}

#[test]
fn hole_17_an_error_has_the_operation_the_reason_and_advice() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    fake.set(Knob::NcclResult, 4);
    let error = communicator.broadcast_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), 0).unwrap_err();
    let text = "ncclBroadcast failed with ncclInvalidArgument (4): invalid argument (NCCL's last warning: \
                the fake was told to fail); check the arguments, and that all ranks make \
                the same call; NCCL_DEBUG=WARN shows the reason";
    assert_eq!(error.to_string(), text);
    assert!(format!("{error:?}").contains("ncclBroadcast"), "{error:?}");
    let error: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert_eq!(error.to_string(), text);
}

#[test]
fn hole_19_a_library_that_is_not_there_is_an_error() {
    // SAFETY: there is no library to run anything of.
    let error = unsafe { Nccl::from_path("/nowhere/libnccl.so.2") }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/nowhere/libnccl.so.2") && text.contains("pip install"), "{text}");
}

/// The thread that met the error goes on to use NCCL.
#[test]
fn monarch_1_an_error_between_the_ends_of_a_group_leaves_the_thread_clean() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let launched = "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";
    let mut other = fake.memory(communicator.stream(), 16);
    let mut theirs = other.slice_mut::<f32>(..2).unwrap();
    let library = fake.library();
    let mut clean_after = |result: Result<(), Error>| {
        assert!(result.is_err());
        fake.log();
        communicator.all_reduce_in_place(&mut view, Sum).unwrap();
        assert_eq!(fake.log(), [launched]);
    };
    // In the closure.
    clean_after(group(|_| Err(Error::Rank { rank: 7, size: 2 })));
    clean_after(group(|group| group.on(&communicator).broadcast_in_place(&mut theirs, 7)));
    // At NCCL.
    fake.set(Knob::NcclResult, 3);
    clean_after(group(|group| group.on(&communicator).broadcast_in_place(&mut theirs, 0)));
    // In a composition of sends and receives.
    let send = fake.memory(communicator.stream(), 16);
    let parts = [0..1, 1..2];
    fake.set(Knob::NcclResult, 3);
    clean_after(communicator.all_to_all_v(&send.slice(..2).unwrap(), &parts, &mut theirs, &parts));
    // While communicators are made.
    fake.set(Knob::InitResult, 2);
    let streams = [communicator.stream().clone()];
    clean_after(Communicator::init_all(library, &streams, &Config::new()).map(drop));
}

#[test]
fn monarch_2_every_communicator_ends_once() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let mut all = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    all.push(all[0].split(&Split::color(0)).unwrap());
    all.push(all[1].shrink(&Shrink::without(&[0])).unwrap());
    all.push(all[0].grow(&Grow::to(3)).unwrap());
    let log = fake.log();
    assert_eq!(log.iter().filter(|line| line.contains(" rank ")).count(), 5, "{log:#?}");
    drop(all);
    assert_eq!(fake.log(), [1, 2, 3, 4, 5].map(|number| format!("destroy comm{number}")));
}

/// A buffer that lives no longer than the call, as a barrier's: its memory is freed after NCCL's work.
#[test]
fn monarch_3_a_temporary_buffer_is_freed_after_the_work_on_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let launch =
        |memory| format!("launch all_reduce comm1 m{memory}->m{memory} count 1 type 7 op 0 s1 device 0");
    for stream in [communicator.stream(), &other] {
        communicator.all_reduce_in_place(&mut stream.alloc_zeros::<f32>(1).unwrap(), Sum).unwrap();
    }
    {
        let mut memory = Memory::alloc(fake.library(), &other, 4).unwrap();
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1).unwrap(), Sum).unwrap();
    }
    let log = fake.log();
    let at = |wanted: &str| {
        log.iter().position(|line| line == wanted).unwrap_or_else(|| panic!("{wanted}: {log:#?}"))
    };
    assert!(at(&launch(1)) < at("free m1 on s1"), "in the same stream's order");
    assert!(at(&launch(2)) < at("free m2 on s2"));
    let between = &log[at(&launch(2))..at("free m2 on s2")];
    assert!(between.iter().any(|line| line.starts_with("s2 waits")), "after it on another: {between:#?}");
    let waited = log[at(&launch(3))..].iter().position(|line| line.starts_with("s2 waits")).unwrap();
    assert!(at(&launch(3)) + waited < at("synchronize s2") && at("synchronize s2") < at("ncclMemFree m3"));
}

#[test]
fn monarch_4_lengths_that_do_not_fit_all_ranks_are_refused() {
    let fake = Fake::new();
    let communicator = fake.rank(fake.library(), 1, 3, &Config::new());
    let (send, mut receive) =
        (fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64));
    let of = |len| send.slice::<f32>(..len).unwrap();
    type Call = fn(&Communicator, &View<'_>, &mut ViewMut<'_>) -> Result<(), Error>;
    let mut check = |len, call: Call, sent, wanted| {
        let error = call(&communicator, &of(sent), &mut receive.slice_mut(..len).unwrap()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    };
    check(9, |on, send, receive| on.all_to_all(send, receive), 6, "has 9 elements and needs exactly 6");
    check(7, |on, send, receive| on.all_to_all(send, receive), 7, "has 7 elements and needs a multiple of 3");
    check(0, |on, send, receive| on.all_gather(send, receive), 1, "has 0 elements and needs exactly 3");
    check(5, |on, send, receive| on.all_gather(send, receive), 2, "has 5 elements and needs exactly 6");
    // Parts whose sum is right, but not each of them.
    let parts: Call =
        |on, send, receive| on.all_to_all_v(send, &[0..2, 2..4, 4..6], receive, &[0..1, 1..4, 4..6]);
    check(6, parts, 6, "rank 1 sends itself 2 elements and receives 3");
    check(6, |on, send, receive| on.all_to_all_v(send, &[], receive, &[]), 6, "there are 0 for 3 ranks");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn monarch_6_a_code_of_a_newer_nccl_is_an_error_with_nccls_last_message() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    for (code, name) in [(8, "ncclTimeout (8)"), (99, "code 99, unknown to this build")] {
        fake.set(Knob::NcclResult, code);
        let text = communicator.broadcast_in_place(&mut view, 0).unwrap_err().to_string();
        let wanted = format!(
            "ncclBroadcast failed with {name}: fake words (NCCL's last warning: the fake was told to fail); "
        );
        assert!(text.starts_with(&wanted), "{text}");
    }
}
