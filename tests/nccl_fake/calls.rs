//! Arguments of every collective on each path to NCCL: immediate, with settings, in a group, in a graph; and the calls
//! that are refused.

use std::ops::Range;
use std::time::Duration;

use collectives::ReduceOp::{Avg, Max, Min, Prod, Sum};
use collectives::nccl::{
    Call, CallConfig, Collectives, Communicator, Config, Error, Graph, Launch, Memory, MemoryView,
    MemoryViewMut, ResultCode, group,
};
use float8::{F8E4M3, F8E5M2};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, not_allowed};

type View<'a> = MemoryView<'a, f32>;
type ViewMut<'a> = MemoryViewMut<'a, f32>;
type Table = [(usize, &'static str)];

/// Length of each call's buffer in `collectives`, and NCCL's expected arguments on rank 1 of 2. `m1` is the send
/// buffer, `@` the call's own.
const COLLECTIVES: &Table = &[
    (2, "all_reduce comm1 m1->@ count 2 type 7 op 0"),
    (2, "all_reduce comm1 @->@ count 2 type 7 op 4"),
    (2, "reduce comm1 m1->@ count 2 type 7 op 2 root 1"),
    // Buffers that a rank other than the root does not need are ignored, whatever their length.
    (9, "reduce comm1 m1->null count 2 type 7 op 1 root 0"),
    (2, "reduce comm1 m1->null count 2 type 7 op 1 root 0"),
    (2, "reduce comm1 @->@ count 2 type 7 op 3 root 0"),
    (2, "broadcast comm1 m1->@ count 2 type 7 op -1 root 1"),
    (2, "broadcast comm1 @->@ count 2 type 7 op -1 root 0"),
    (2, "broadcast comm1 @->@ count 2 type 7 op -1 root 0"),
    (2, "broadcast comm1 @->@ count 2 type 7 op -1 root 1"),
    (4, "all_gather comm1 m1->@ count 2 type 7 op -1"),
    // In place, rank 1 has its part, which begins at byte 8.
    (4, "all_gather comm1 @+8->@ count 2 type 7 op -1"),
    (2, "reduce_scatter comm1 m1->@ count 2 type 7 op 4"),
    (4, "reduce_scatter comm1 @->@+8 count 2 type 7 op 0"),
    (4, "all_to_all comm1 m1->@ count 2 type 7 op -1"),
    (4, "gather comm1 m1->@ count 2 type 7 op -1 root 1"),
    (4, "gather comm1 m1->@ count 2 type 7 op -1 root 0"),
    (2, "gather comm1 m1->null count 2 type 7 op -1 root 0"),
    (4, "gather comm1 @+8->@ count 2 type 7 op -1 root 1"),
    (4, "gather comm1 @+8->@ count 2 type 7 op -1 root 0"),
    (2, "scatter comm1 m1->@ count 2 type 7 op -1 root 1"),
    (2, "scatter comm1 @->@ count 2 type 7 op -1 root 0"),
    (2, "scatter comm1 @->@ count 2 type 7 op -1 root 0"),
    (4, "scatter comm1 @->@+8 count 2 type 7 op -1 root 1"),
    (4, "scatter comm1 @->@+8 count 2 type 7 op -1 root 0"),
];

/// Calls each collective, on a communicator or a `Call`.
macro_rules! collectives {
    ($on:expr, $send:expr, $receive:expr) => {{
        let (on, [two, four]) = ($on, $send);
        let mut buffers = $receive.iter_mut();
        let mut next = || buffers.next().unwrap();
        on.all_reduce(two, next(), Sum)?;
        on.all_reduce_in_place(next(), Avg)?;
        on.reduce(two, Some(next()), Max, 1)?;
        on.reduce(two, Some(next()), Prod, 0)?;
        on.reduce(two, no_buffer(next()), Prod, 0)?;
        on.reduce_in_place(next(), Min, 0)?;
        on.broadcast(Some(two), next(), 1)?;
        on.broadcast(Some(four), next(), 0)?;
        on.broadcast(None::<&View<'_>>, next(), 0)?;
        on.broadcast_in_place(next(), 1)?;
        on.all_gather(two, next())?;
        on.all_gather_in_place(next())?;
        on.reduce_scatter(four, next(), Avg)?;
        on.reduce_scatter_in_place(next(), Sum)?;
        on.all_to_all(four, next())?;
        on.gather(two, Some(next()), 1)?;
        on.gather(two, Some(next()), 0)?;
        on.gather(two, no_buffer(next()), 0)?;
        on.gather_in_place(next(), 1)?;
        on.gather_in_place(next(), 0)?;
        on.scatter(Some(four), next(), 1)?;
        on.scatter(Some(two), next(), 0)?;
        on.scatter(None::<&View<'_>>, next(), 0)?;
        on.scatter_in_place(next(), 1)?;
        on.scatter_in_place(next(), 0)?;
        assert!(buffers.next().is_none());
        Ok(())
    }};
}

fn no_buffer<'a, 'b>(_: &'a mut ViewMut<'b>) -> Option<&'a mut ViewMut<'b>> {
    None
}

/// Collectives without a function with settings.
const PEER_TO_PEER: &Table = &[
    (1, "send comm1 m1->null count 2 type 7 op -1 peer 0"),
    (2, "recv comm1 null->@ count 2 type 7 op -1 peer 0"),
    (
        4,
        "send comm1 m1->null count 3 type 7 op -1 peer 0\n\
         recv comm1 null->@+8 count 2 type 7 op -1 peer 0\n\
         send comm1 m1+12->null count 1 type 7 op -1 peer 1\n\
         recv comm1 null->@ count 1 type 7 op -1 peer 1",
    ),
    // Empty parts are neither sent nor received.
    (
        4,
        "recv comm1 null->@+4 count 2 type 7 op -1 peer 0\n\
         send comm1 m1->null count 1 type 7 op -1 peer 1\n\
         recv comm1 null->@+12 count 1 type 7 op -1 peer 1",
    ),
];

macro_rules! peer_to_peer {
    ($on:expr, $send:expr, $receive:expr) => {{
        let (on, [two, four]) = ($on, $send);
        let [_, received, parts, fewer] = $receive else { panic!("four") };
        on.send(two, 0)?;
        on.recv(received, 0)?;
        on.all_to_all_v(four, &[0..3, 3..4], parts, &[2..4, 0..1])?;
        on.all_to_all_v(four, &[2..2, 0..1], fewer, &[1..3, 3..4])
    }};
}

type Result<T = ()> = std::result::Result<T, Error>;

fn call_collectives<'b, L: Launch<'b>>(
    call: Call<'b, L>,
    send: &'b [View<'b>; 2],
    receive: &'b mut [ViewMut<'b>],
) -> Result {
    collectives!(call, send, receive)
}

fn call_peer_to_peer<'b, L: Launch<'b>>(
    call: Call<'b, L>,
    send: &'b [View<'b>; 2],
    receive: &'b mut [ViewMut<'b>],
) -> Result {
    peer_to_peer!(call, send, receive)
}

/// A send buffer of 16 bytes, `m1`, and receive buffers with the given numbers of elements.
struct Buffers {
    send: Memory,
    receive: Vec<Memory>,
}

impl Buffers {
    fn new(fake: &Fake, communicator: &Communicator, lengths: impl IntoIterator<Item = usize>) -> Self {
        let memory = |bytes| fake.memory(communicator.stream(), bytes);
        Self { send: memory(16), receive: lengths.into_iter().map(|len| memory(4 * len)).collect() }
    }

    /// The send buffer's first two elements and all four, and the receive buffers.
    fn views(&mut self) -> ([View<'_>; 2], Vec<ViewMut<'_>>) {
        let send = [2, 4].map(|len| self.send.slice(..len).unwrap());
        let mut receive = Vec::new();
        for memory in &mut self.receive {
            let len = memory.bytes() / 4;
            receive.push(memory.slice_mut(..len).unwrap());
        }
        (send, receive)
    }
}

fn lengths(table: &Table) -> impl Iterator<Item = usize> {
    table.iter().map(|&(len, _)| len)
}

/// The table's lines as they appear in the log, with buffers numbered from this one.
fn lines(verb: &str, table: &Table, first: usize, settings: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, (_, calls)) in (first..).zip(table) {
        for line in calls.lines() {
            let line = line.replace('@', &format!("m{number}"));
            lines.push(format!("{verb} {line} s1 device 0{settings}"));
        }
    }
    lines
}

/// Expected log of both tables.
fn all_lines(verb: &str) -> Vec<String> {
    let peers = lines(verb, PEER_TO_PEER, 2 + COLLECTIVES.len(), "");
    [lines(verb, COLLECTIVES, 2, ""), peers].concat()
}

/// Buffers for both tables.
fn all_buffers(fake: &Fake, communicator: &Communicator) -> Buffers {
    Buffers::new(fake, communicator, lengths(COLLECTIVES).chain(lengths(PEER_TO_PEER)))
}

#[test]
fn every_collective_at_once() {
    fn at_once(on: &Communicator, send: &[View<'_>; 2], receive: &mut [ViewMut<'_>]) -> Result {
        collectives!(on, send, receive)
    }
    fn peers_at_once(on: &Communicator, send: &[View<'_>; 2], receive: &mut [ViewMut<'_>]) -> Result {
        peer_to_peer!(on, send, receive)
    }
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = all_buffers(&fake, &communicator);
    let (send, mut receive) = buffers.views();
    let (first, second) = receive.split_at_mut(COLLECTIVES.len());
    at_once(&communicator, &send, first).unwrap();
    peers_at_once(&communicator, &send, second).unwrap();
    assert_eq!(fake.log(), all_lines("launch"));
}

#[test]
fn every_collective_with_settings() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = Buffers::new(&fake, &communicator, lengths(COLLECTIVES));
    let (send, mut receive) = buffers.views();
    let config = CallConfig::new()
        .min_ctas(1)
        .max_ctas(8)
        .nvls_ctas(2)
        .cluster_size(4)
        .cta_policy(3)
        .algorithm("ring/ll")
        .force_algorithm(false)
        .profiler_tag(1 << 40);
    call_collectives(communicator.with(&config), &send, &mut receive).unwrap();
    let settings = " with settings min_ctas 1 max_ctas 8 nvls_ctas 2 cluster 4 policy 3 algorithm ring/ll forced 0 tag \
                    1099511627776";
    assert_eq!(fake.log(), lines("launch", COLLECTIVES, 2, settings));
}

#[test]
fn every_collective_in_a_group() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = all_buffers(&fake, &communicator);
    let (send, mut receive) = buffers.views();
    let (first, second) = receive.split_at_mut(COLLECTIVES.len());
    group(|group| {
        call_collectives(group.on(&communicator), &send, first)?;
        call_peer_to_peer(group.on(&communicator), &send, second)?;
        assert_eq!(fake.log(), [""; 0], "nothing is launched inside the group");
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), all_lines("launch"));
}

#[test]
fn every_collective_in_a_group_with_settings() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = Buffers::new(&fake, &communicator, lengths(COLLECTIVES));
    let (send, mut receive) = buffers.views();
    let config = CallConfig::new();
    group(|group| call_collectives(group.on(&communicator).with(&config), &send, &mut receive)).unwrap();
    assert_eq!(fake.log(), lines("launch", COLLECTIVES, 2, " with settings"));
}

/// The lines with the stream of a capture.
fn privately(lines: Vec<String>) -> Vec<String> {
    lines.iter().map(|line| line.replace(" s1 ", " s2 ")).collect()
}

#[test]
fn every_collective_into_a_graph() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = all_buffers(&fake, &communicator);
    let (send, mut receive) = buffers.views();
    let (first, second) = receive.split_at_mut(COLLECTIVES.len());
    let graph = Graph::capture(|capture| {
        call_collectives(capture.on(&communicator), &send, first)?;
        call_peer_to_peer(capture.on(&communicator), &send, second)?;
        assert_eq!(fake.log(), [""; 0], "nothing is captured before the closure has returned");
        Ok::<_, Error>(())
    })
    .unwrap();
    let log = fake.log();
    let (captured, made) = log[1..].split_at(log.len() - 5);
    assert_eq!(log[0], "begin capture s2");
    assert_eq!(captured, privately(all_lines("capture")));
    assert_eq!(
        made,
        ["end capture s2 graph1", "instantiate graph1", "upload graph1 on s2", "synchronize s2"]
    );
    graph.launch().unwrap();
    let log = fake.log();
    assert_eq!(log[0], "launch graph1 on s1");
    assert_eq!(log[1..], privately(all_lines("launch")));
}

#[test]
fn every_collective_into_a_graph_with_settings() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = Buffers::new(&fake, &communicator, lengths(COLLECTIVES));
    let (send, mut receive) = buffers.views();
    let config = CallConfig::new().algorithm("tree");
    let graph = Graph::capture(|capture| {
        call_collectives(capture.on(&communicator).with(&config), &send, &mut receive)
    })
    .unwrap();
    let settings = " with settings algorithm tree";
    let expected = privately(lines("capture", COLLECTIVES, 2, settings));
    assert_eq!(fake.log()[1..=COLLECTIVES.len()], expected);
    drop(graph);
}

/// Invalid calls of `mistakes` on rank 1 of 2, with a send buffer of two elements and receive buffers of three, and
/// their errors.
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
    "all_to_all_v (ncclSend, ncclRecv): the parts of the send buffer: rank 1's is 1..3 of a buffer with 2 elements",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: rank 0's is 2..1 of a buffer with 3 elements",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: rank 1's 0..2 and rank 0's 1..2 overlap",
    "all_to_all_v (ncclSend, ncclRecv): the parts of the receive buffer: rank 1 sends itself 1 elements and receives 2",
    "ncclSend: it takes no CallConfig: only collectives that are one function of NCCL do",
    "ncclRecv: it takes no CallConfig: only collectives that are one function of NCCL do",
    "all_to_all_v (ncclSend, ncclRecv): it takes no CallConfig: only collectives that are one function of NCCL do",
];

const NO_RANK_2: &str =
    "rank 2 of 2: a rank is at least 0 and below the size, which is between 1 and 2147483647";

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

/// Log lines of two elements: "send m1+8 to 0" and "recv m2 from 0".
fn messages(lines: &[&str]) -> Vec<String> {
    let line = |line: &&str| {
        let words: Vec<_> = line.split(' ').collect();
        let [verb, address, _, peer] = words[..] else { panic!("{line}") };
        let addresses = if verb == "send" { format!("{address}->null") } else { format!("null->{address}") };
        format!("launch {verb} comm1 {addresses} count 2 type 7 op -1 peer {peer} s1 device 0")
    };
    lines.iter().map(line).collect()
}

#[test]
fn what_an_old_library_lacks_is_composed_of_sends_and_receives() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 3, &Config::new());
    let (send, mut receive) = (fake.memory(old.stream(), 24), fake.memory(old.stream(), 24));
    let (two, six) = (send.slice::<f32>(..2).unwrap(), send.slice::<f32>(..6).unwrap());
    let sent = |result: Result, expected: &[&str]| {
        result.unwrap();
        assert_eq!(fake.log(), messages(expected));
    };

    let mut into = receive.slice_mut::<f32>(..6).unwrap();
    let all_to_all = [
        "send m1 to 0",
        "recv m2 from 0",
        "send m1+8 to 1",
        "recv m2+8 from 1",
        "send m1+16 to 2",
        "recv m2+16 from 2",
    ];
    sent(old.all_to_all(&six, &mut into), &all_to_all);
    sent(group(|group| group.on(&old).all_to_all(&six, &mut into)), &all_to_all);

    let gathered = |own| ["recv m2 from 0", own, "recv m2+8 from 1", "recv m2+16 from 2"];
    sent(old.gather(&two, Some(&mut into), 1), &gathered("send m1 to 1"));
    sent(old.gather(&two, None::<&mut ViewMut<'_>>, 0), &["send m1 to 0"]);
    // In place, rank 1 has its part, which begins at byte 8.
    sent(old.gather_in_place(&mut into, 1), &gathered("send m2+8 to 1"));
    sent(old.gather_in_place(&mut into, 0), &["send m2+8 to 0"]);

    let to_all = ["send m2 to 0", "send m2+8 to 1", "recv m2+8 from 1", "send m2+16 to 2"];
    sent(old.scatter_in_place(&mut into, 1), &to_all);
    sent(old.scatter_in_place(&mut into, 0), &["recv m2+8 from 0"]);
    let mut into = receive.slice_mut::<f32>(..2).unwrap();
    let to_all = ["send m1 to 0", "send m1+8 to 1", "recv m2 from 1", "send m1+16 to 2"];
    sent(old.scatter(Some(&six), &mut into, 1), &to_all);
    sent(old.scatter(None::<&View<'_>>, &mut into, 0), &["recv m2 from 0"]);
}

#[test]
fn monarch_1_a_composition_that_fails_launches_nothing_and_names_the_collective() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let mut memory = fake.memory(old.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    fake.set(Knob::NcclResult, 5);
    let error = old.gather_in_place(&mut view, 1).unwrap_err();
    assert!(matches!(error, Error::Nccl { operation: "ncclGather", code: ResultCode(5), .. }), "{error}");
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
    // The thread is in no group (monarch 1).
    old.broadcast_in_place(&mut view, 0).unwrap();
    assert_eq!(fake.log(), ["launch broadcast comm1 m1->m1 count 4 type 7 op -1 root 0 s1 device 0"]);
}

#[test]
fn a_composition_in_progress_is_waited_for() {
    let fake = Fake::new();
    let config = Config::new().blocking(false).deadline(Duration::from_millis(20));
    let old = fake.rank(fake.old_library(), 1, 2, &config);
    let mut memory = fake.memory(old.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let result = old.scatter_in_place(&mut view, 0);
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclScatter", .. })), "{result:?}");
    let recv = "launch recv comm1 null->m1+8 count 2 type 7 op -1 peer 0 s1 device 0";
    assert_eq!(fake.log(), [recv, "abort comm1"]);
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
fn settings_of_a_call_need_a_library_that_knows_them_and_texts_for_c() {
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
fn each_buffer_of_another_stream_is_waited_for_and_waits() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let others = [context.new_stream().unwrap(), context.new_stream().unwrap()];
    let (send, mut receive) = (fake.memory(&others[0], 16), fake.memory(&others[1], 16));
    let two = send.slice::<f32>(..2).unwrap();
    let mut four = receive.slice_mut::<f32>(..4).unwrap();
    let before = ["e1 records s2", "s1 waits e1", "e1 records s3", "s1 waits e1"];
    let after = ["e1 records s1", "s2 waits e1", "e1 records s1", "s3 waits e1"];
    let launch = ["launch gather comm1 m1->m2 count 2 type 7 op -1 root 1 s1 device 0"];
    let expected = [&before[..], &launch, &after].concat();
    communicator.gather(&two, Some(&mut four), 1).unwrap();
    assert_eq!(fake.log(), expected);
    group(|group| {
        group.on(&communicator).gather(&two, Some(&mut four), 1)?;
        assert_eq!(fake.log(), before, "before the launch");
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), expected[4..]);

    // Unused buffers are not waited for.
    communicator.reduce(&two, Some(&mut four), Sum, 0).unwrap();
    let launch = "launch reduce comm1 m1->null count 2 type 7 op 0 root 0 s1 device 0";
    assert_eq!(fake.log(), [&before[..2], &[launch], &after[..2]].concat());
    communicator.recv(&mut four, 0).unwrap();
    assert_eq!(fake.log().len(), 5);
}

#[test]
fn hole_12_every_buffer_is_on_the_communicators_device() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (here, elsewhere) = (communicator.stream(), fake.stream(1));
    let (mut own, mut other) = (fake.memory(here, 16), fake.memory(&elsewhere, 16));
    let refused = |result: Result, operation: &str, buffer: &str| {
        let wanted = format!(
            "{operation}: the {buffer} is in a context of device 1, the communicator in the primary context of device 0"
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

#[test]
fn memory_by_its_address_goes_into_collectives_like_any() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let memory = fake.memory(&other, 32);
    let address = memory.slice::<f64>(..0).unwrap().address();
    // SAFETY: two disjoint parts of the memory, which outlives them.
    let (send, mut receive) = unsafe {
        (Memory::from_raw(address, 8, other.clone(), ()), Memory::from_raw(address + 8, 16, other, ()))
    };
    let mut received = receive.slice_mut::<f64>(..).unwrap();
    communicator.all_gather(&send.slice::<f64>(..).unwrap(), &mut received).unwrap();
    drop((send, receive));
    let log = fake.log();
    assert_eq!(log[4], "launch all_gather comm1 m1->m1+8 count 1 type 8 op -1 s1 device 0");
    assert_eq!(log.len(), 9, "its stream is ordered like any: {log:#?}");
}

/// A buffer of another length is not used: only one like the root's gives the root's offset in the window.
#[test]
fn a_gather_passes_the_receive_buffer_of_other_ranks_on_where_it_is_like_the_roots() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (send, mut receive) = (fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 64));
    let part = send.slice::<f32>(..2).unwrap();
    for (len, address) in [(3, "null"), (4, "m2")] {
        let mut other = receive.slice_mut::<f32>(..len).unwrap();
        communicator.gather(&part, Some(&mut other), 0).unwrap();
        let launch = format!("launch gather comm1 m1->{address} count 2 type 7 op -1 root 0 s1 device 0");
        assert_eq!(fake.log(), [launch]);
    }
}
