//! Arguments of every collective on each path to NCCL: immediate, with settings, in a group, prepared, in a
//! graph; and the calls that are refused.

mod composed;
mod refused;

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

/// Length of each call's buffer in `collectives`, and NCCL's expected arguments on rank 1 of 2. `m1` is the
/// send buffer, `@` the call's own.
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
fn every_collective_immediately() {
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
    let settings = " with settings min_ctas 1 max_ctas 8 nvls_ctas 2 cluster 4 policy 3 algorithm ring/ll \
                    forced 0 tag 1099511627776";
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

#[test]
fn every_collective_prepared() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = all_buffers(&fake, &communicator);
    let [single, grouped] = [false, true].map(|grouped| {
        let (send, mut receive) = buffers.views();
        let (first, second) = receive.split_at_mut(COLLECTIVES.len());
        let prepared = communicator.prepare(|prepare| {
            if !grouped {
                call_collectives(prepare.call(), &send, first)?;
                return call_peer_to_peer(prepare.call(), &send, second);
            }
            prepare.group(|group| {
                call_collectives(group.call(), &send, first)?;
                call_peer_to_peer(group.call(), &send, second)
            })
        });
        assert_eq!(fake.log(), [""; 0], "nothing is queued");
        prepared.unwrap()
    });
    assert_eq!((single.len(), grouped.len()), (COLLECTIVES.len() + PEER_TO_PEER.len(), 1));
    for prepared in [&single, &grouped, &single] {
        communicator.queue(prepared).unwrap();
        assert_eq!(fake.log(), all_lines("launch"));
    }
}

#[test]
fn every_collective_prepared_with_settings() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut buffers = Buffers::new(&fake, &communicator, lengths(COLLECTIVES));
    let (send, mut receive) = buffers.views();
    let config = CallConfig::new().algorithm("tree");
    let prepared =
        communicator.prepare(|prepare| call_collectives(prepare.with(&config), &send, &mut receive)).unwrap();
    drop(config);
    communicator.queue(&prepared).unwrap();
    assert_eq!(fake.log(), lines("launch", COLLECTIVES, 2, " with settings algorithm tree"));
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
fn adopted_raw_memory_is_a_buffer_of_collectives() {
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
fn a_gather_passes_other_ranks_receive_buffers_that_are_like_the_roots() {
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
