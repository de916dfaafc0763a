//! Refused calls.

use super::*;

/// Invalid calls of `mistakes` on rank 1 of 2, with a send buffer of two elements and receive buffers of
/// three, and their errors.
const MISTAKES: &[&str] = &[
    "ncclAllReduce: the receive buffer has 3 elements and needs exactly 2",
    "ncclReduce: the receive buffer has 3 elements and needs exactly 2",
    "ncclReduce: rank 1 is the root and needs a receive buffer",
    NO_RANK_2,
    NO_RANK_2,
    "ncclBroadcast: the receive buffer has 3 elements and needs exactly 2",
    "ncclBroadcast: rank 1 is the root and needs a send buffer",
    NO_RANK_2,
    NO_RANK_2,
    "ncclAllGather: the receive buffer has 3 elements and needs exactly 4",
    "ncclAllGather: the buffer has 3 elements and needs a multiple of 2, one part for each rank",
    "ncclReduceScatter: the send buffer has 2 elements and needs exactly 6",
    "ncclReduceScatter: the buffer has 3 elements and needs a multiple of 2, one part for each rank",
    // monarch 4.
    "ncclAlltoAll: the receive buffer has 3 elements and needs exactly 2",
    "ncclAlltoAll: the send buffer has 1 elements and needs a multiple of 2, one part for each rank",
    "ncclGather: the receive buffer has 3 elements and needs exactly 4",
    "ncclGather: rank 1 is the root and needs a receive buffer",
    NO_RANK_2,
    "ncclGather: the buffer has 3 elements and needs a multiple of 2, one part for each rank",
    NO_RANK_2,
    "ncclScatter: the send buffer has 2 elements and needs exactly 6",
    "ncclScatter: rank 1 is the root and needs a send buffer",
    NO_RANK_2,
    "ncclScatter: the buffer has 3 elements and needs a multiple of 2, one part for each rank",
    NO_RANK_2,
    NO_RANK_2,
    NO_RANK_2,
    "all_to_all_v (ncclSend, ncclRecv): the parts of the send buffer: there are 1 for 2 ranks",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: there are 3 for 2 ranks",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the send buffer: the part of rank 1 is 1..3, but the \
     buffer has 2 elements",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: the part of rank 0 is 2..1, but the \
     buffer has 3 elements",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: rank 1's 0..2 and rank 0's 1..2 \
     overlap",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: rank 1 sends itself 1 elements and \
     receives 2",
    "ncclSend: it does not take a CallConfig: only collectives with an NCCL function of their own do",
    "ncclRecv: it does not take a CallConfig: only collectives with an NCCL function of their own do",
    "all_to_all_v (ncclSend, ncclRecv): it does not take a CallConfig: only collectives with an NCCL \
     function of their own do",
];

const NO_RANK_2: &str =
    "rank 2 of 2: a rank is at least 0 and below the size, and the size is between 1 and 2147483647";

fn mistakes<'b, L: Launch<'b>>(
    call: Call<'b, L>,
    config: &'b CallConfig,
    [two, one]: &'b [View<'b>; 2],
    receive: &'b mut [ViewMut<'b>],
) -> Vec<String> {
    let mut buffers = receive.iter_mut();
    let mut next = || buffers.next().unwrap();
    let none = None::<&View<'b>>;
    let parts = [0..1, 1..2];
    let wrong = [
        call.all_reduce(two, next(), Sum),
        call.reduce(two, Some(next()), Sum, 1),
        call.reduce(two, no_buffer(next()), Sum, 1),
        call.reduce(two, Some(next()), Sum, 2),
        call.reduce_in_place(next(), Sum, 2),
        call.broadcast(Some(two), next(), 1),
        call.broadcast(none, next(), 1),
        call.broadcast(none, next(), 2),
        call.broadcast_in_place(next(), 2),
        call.all_gather(two, next()),
        call.all_gather_in_place(next()),
        call.reduce_scatter(two, next(), Sum),
        call.reduce_scatter_in_place(next(), Sum),
        call.all_to_all(two, next()),
        call.all_to_all(one, next()),
        call.gather(two, Some(next()), 1),
        call.gather(two, no_buffer(next()), 1),
        call.gather(two, no_buffer(next()), 2),
        call.gather_in_place(next(), 1),
        call.gather_in_place(next(), 2),
        call.scatter(Some(two), next(), 1),
        call.scatter(none, next(), 1),
        call.scatter(none, next(), 2),
        call.scatter_in_place(next(), 1),
        call.scatter_in_place(next(), 2),
        call.send(two, 2),
        call.recv(next(), 2),
        call.all_to_all_v(two, &parts[..1], next(), &parts),
        call.all_to_all_v(two, &[0..1, 1..2], next(), &[0..1, 1..2, 2..3]),
        call.all_to_all_v(two, &[0..1, 1..3], next(), &[0..1, 1..3]),
        call.all_to_all_v(two, &[0..1, 1..2], next(), &[Range { start: 2, end: 1 }, 0..1]),
        call.all_to_all_v(two, &[0..0, 0..2], next(), &[1..2, 0..2]),
        call.all_to_all_v(two, &[0..1, 1..2], next(), &[0..1, 1..3]),
        call.with(config).send(two, 0),
        call.with(config).recv(next(), 0),
        call.with(config).all_to_all_v(two, &[0..1, 1..2], next(), &[0..1, 1..2]),
    ];
    wrong.map(|result| result.unwrap_err().to_string()).into()
}

#[test]
fn holes_6_and_7_every_mistake_is_refused_before_nccl_sees_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let config = CallConfig::new();
    let mut buffers = Buffers::new(&fake, &communicator, [3; 3 * MISTAKES.len()]);
    let (_, mut receive) = buffers.views();
    let small = fake.memory(communicator.stream(), 8);
    let send = [2, 1].map(|len| small.slice::<f32>(..len).unwrap());
    let mut thirds = receive.chunks_mut(MISTAKES.len());
    let mut own = || thirds.next().unwrap();

    assert_eq!(mistakes(communicator.with(&config), &config, &send, own()), MISTAKES);
    assert_eq!(fake.log(), [""; 0]);

    // If the errors are ignored, the group or graph is empty.
    group(|group| {
        assert_eq!(mistakes(group.on(&communicator), &config, &send, own()), MISTAKES);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
    Graph::capture(|capture| {
        assert_eq!(mistakes(capture.on(&communicator), &config, &send, own()), MISTAKES);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn monarch_7_numbers_of_8_bits_are_refused_where_nccl_has_none() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let mut memory = fake.memory(old.stream(), 16);
    let too_old = |result: Result, wanted: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{wanted} needs NCCL 2.24; loaded 2.18.3 from /")), "{error}");
    };
    too_old(old.all_reduce_in_place(&mut memory.slice_mut::<F8E4M3>(..2).unwrap(), Sum), "f8e4m3");
    too_old(old.broadcast_in_place(&mut memory.slice_mut::<F8E5M2>(..2).unwrap(), 0), "f8e5m2");
    too_old(old.send(&memory.slice::<F8E5M2>(..2).unwrap(), 0), "f8e5m2");
    too_old(old.recv(&mut memory.slice_mut::<F8E4M3>(..2).unwrap(), 0), "f8e4m3");
    let mut view = memory.slice_mut::<F8E4M3>(..2).unwrap();
    too_old(group(|group| group.on(&old).gather_in_place(&mut view, 0)), "f8e4m3");
    assert_eq!(fake.log(), [""; 0]);

    let new = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let mut memory = fake.memory(new.stream(), 16);
    new.send(&memory.slice::<F8E4M3>(..2).unwrap(), 0).unwrap();
    new.all_gather_in_place(&mut memory.slice_mut::<F8E5M2>(..2).unwrap()).unwrap();
    assert_eq!(
        fake.log(),
        [
            "launch send comm1 m2->null count 2 type 10 op -1 peer 0 s2 device 0",
            "launch all_gather comm1 m2+1->m2 count 1 type 11 op -1 s2 device 0",
        ]
    );
}

#[test]
fn call_settings_need_a_library_with_them_and_strings_without_nul() {
    let fake = Fake::new();
    let middle = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let mut memory = fake.memory(middle.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let too_old = |result: Result| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("CallConfig needs NCCL 2.31; loaded 2.28.9 from /"), "{error}");
    };
    let config = CallConfig::new();
    too_old(middle.with(&config).all_reduce_in_place(&mut view, Sum));
    assert_eq!(fake.log(), [""; 0]);
    too_old(group(|group| group.on(&middle).with(&config).all_reduce_in_place(&mut view, Sum)));
    assert_eq!(fake.log(), [""; 0]);
    too_old(
        Graph::capture(|capture| capture.on(&middle).with(&config).broadcast_in_place(&mut view, 0))
            .map(drop),
    );
    assert_eq!(fake.log(), [""; 0]);

    let newest = fake.communicator(&Config::new());
    let bad = CallConfig::new().algorithm("ring\0");
    let result = newest.with(&bad).all_gather_in_place(&mut view);
    not_allowed(result, "CallConfig::algorithm: the text must not contain a NUL byte");
    assert!(!fake.log().iter().any(|line| line.starts_with("launch")));
}

#[test]
fn hole_12_every_buffer_is_on_the_communicators_device() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (here, elsewhere) = (communicator.stream(), fake.stream(1));
    let (mut own, mut other) = (fake.memory(here, 16), fake.memory(&elsewhere, 16));
    let refused = |result: Result, operation: &str, buffer: &str| {
        let wanted = format!(
            "{operation}: the {buffer} is in a context of device 1, the communicator in the primary context \
             of device 0"
        );
        assert_eq!(result.unwrap_err().to_string(), wanted);
    };
    let there = other.slice::<f32>(..2).unwrap();
    let mut four = own.slice_mut::<f32>(..4).unwrap();
    refused(communicator.all_gather(&there, &mut four), "ncclAllGather", "send buffer");
    refused(communicator.send(&there, 0), "ncclSend", "send buffer");
    let mut there = other.slice_mut::<f32>(..4).unwrap();
    refused(communicator.all_to_all(&four, &mut there), "ncclAlltoAll", "receive buffer");
    refused(communicator.scatter_in_place(&mut there, 0), "ncclScatter", "buffer");
    refused(communicator.recv(&mut there, 0), "ncclRecv", "buffer");
    refused(
        group(|group| group.on(&communicator).broadcast_in_place(&mut there, 0)),
        "ncclBroadcast",
        "buffer",
    );
    refused(
        Graph::capture(|capture| capture.on(&communicator).recv(&mut there, 0)).map(drop),
        "ncclRecv",
        "buffer",
    );
    assert_eq!(fake.log(), [""; 0]);
}
