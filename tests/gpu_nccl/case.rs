//! Every collective as data: inputs, expected results, and ways to call it. All ways to call collectives and
//! all kinds of memory are tested with the same cases.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Once};

use collectives::ReduceOp;
use collectives::nccl::{
    CallConfig, Collectives, Communicator, DeviceBuffer, DeviceBufferMut, Error, Graph, Group, Version,
    group, simulate,
};

use crate::arena::{Arena, GUARDS, Room};
use crate::copies::Copies as _;
use crate::reference::{Value, bits, reduced};

/// A collective with the arguments that are the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Collective {
    AllReduce(ReduceOp),
    Reduce(ReduceOp, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ReduceOp),
    AllToAll,
    AllToAllV,
    Gather(usize),
    Scatter(usize),
    /// Every rank sends to its right neighbour and receives from its left one.
    Ring,
}

use Collective::*;

impl Collective {
    /// All collectives, with all operators and these roots.
    pub(crate) fn all(roots: &[usize]) -> Vec<Self> {
        let mut all = vec![AllGather, AllToAll, AllToAllV, Ring];
        for op in ReduceOp::ALL {
            all.extend([AllReduce(op), ReduceScatter(op)]);
            all.extend(roots.iter().map(|&root| Reduce(op, root)));
        }
        for &root in roots {
            all.extend([Broadcast(root), Gather(root), Scatter(root)]);
        }
        all
    }

    pub(crate) fn op(self) -> Option<ReduceOp> {
        match self {
            AllReduce(op) | Reduce(op, _) | ReduceScatter(op) => Some(op),
            _ => None,
        }
    }

    /// True if it has an in-place variant.
    pub(crate) fn has_in_place(self) -> bool {
        !matches!(self, AllToAll | AllToAllV | Ring)
    }

    /// True if it is a single NCCL function, which takes a configuration.
    pub(crate) fn is_one_function(self) -> bool {
        !matches!(self, AllToAllV | Ring)
    }
}

/// Expected value of an element.
enum Wanted<T> {
    Value(T),
    /// A rounded average.
    Near(T),
    /// The previous value.
    Kept,
    Anything,
}

/// A collective with a length and data.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) in_place: bool,
    /// Elements per part.
    pub(crate) len: usize,
    /// Number of ranks.
    pub(crate) size: usize,
    pub(crate) seed: u64,
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, in_place, len, size, seed } = self;
        let place = if *in_place { "in place" } else { "out of place" };
        write!(formatter, "{collective:?} {place}, {len} elements, {size} ranks, seed {seed}")
    }
}

impl Case {
    /// Input of a rank.
    fn input<T: Value>(&self, rank: usize, index: usize) -> T {
        let bits = bits(self.seed, rank, index);
        match self.collective.op() {
            Some(op) => T::contribution(bits, op, self.size),
            None => T::any(bits),
        }
    }

    fn reduced<T: Value>(&self, op: ReduceOp, index: usize) -> Wanted<T> {
        let value = reduced(op, (0..self.size).map(|rank| self.input(rank, index)));
        let exact = op != ReduceOp::Avg || self.size.is_power_of_two() || !T::DATA_TYPE.is_float();
        if exact { Wanted::Value(value) } else { Wanted::Near(value) }
    }

    /// Elements from one rank to another in `AllToAllV`.
    fn exchanged(&self, from: usize, to: usize) -> usize {
        self.len * ((from + 2 * to) % 3) / 2
    }

    /// Parts of `AllToAllV`, with an unused element between them: in rank order to send, in reverse order to
    /// receive.
    fn parts(&self, rank: usize, sent: bool) -> Vec<Range<usize>> {
        let mut parts = vec![0..0; self.size];
        let mut start = 1;
        for position in 0..self.size {
            let peer = if sent { position } else { self.size - 1 - position };
            let len = if sent { self.exchanged(rank, peer) } else { self.exchanged(peer, rank) };
            parts[peer] = start..start + len;
            start += len + 1;
        }
        parts
    }

    fn send_len(&self, rank: usize) -> usize {
        match self.collective {
            AllReduce(_) | Reduce(..) | Broadcast(_) | AllGather | Gather(_) | Ring => self.len,
            ReduceScatter(_) | AllToAll | Scatter(_) => self.size * self.len,
            AllToAllV => self.parts(rank, true).iter().map(|part| part.len() + 1).sum::<usize>() + 1,
        }
    }

    fn receive_len(&self, rank: usize) -> usize {
        match self.collective {
            AllReduce(_) | Reduce(..) | Broadcast(_) | Ring => self.len,
            AllGather | AllToAll | Gather(_) => self.size * self.len,
            ReduceScatter(_) | Scatter(_) => {
                if self.in_place {
                    self.size * self.len
                } else {
                    self.len
                }
            }
            AllToAllV => self.parts(rank, false).iter().map(|part| part.len() + 1).sum::<usize>() + 1,
        }
    }

    /// Previous contents of a rank's receive buffer.
    fn before<T: Value>(&self, rank: usize, index: usize) -> T {
        match self.collective {
            _ if !self.in_place => guard(),
            AllGather | Gather(_) if index / self.len == rank => self.input(rank, index % self.len),
            AllGather | Gather(_) => guard(),
            _ => self.input(rank, index),
        }
    }

    /// Expected contents of a rank's receive buffer.
    fn wanted<T: Value>(&self, rank: usize, index: usize) -> Wanted<T> {
        let &Self { in_place, len, size, .. } = self;
        let input = |rank, index| Wanted::Value(self.input(rank, index));
        let own = index / len == rank;
        match self.collective {
            AllReduce(op) => self.reduced(op, index),
            Reduce(op, root) if rank == root => self.reduced(op, index),
            Broadcast(root) => input(root, index),
            AllGather => input(index / len, index % len),
            ReduceScatter(op) if !in_place => self.reduced(op, rank * len + index),
            ReduceScatter(op) if own => self.reduced(op, index),
            ReduceScatter(_) => Wanted::Anything,
            AllToAll => input(index / len, rank * len + index % len),
            AllToAllV => {
                let parts = self.parts(rank, false);
                match parts.iter().position(|part| part.contains(&index)) {
                    Some(peer) => input(peer, self.parts(peer, true)[rank].start + index - parts[peer].start),
                    None => Wanted::Kept,
                }
            }
            Gather(root) if rank == root => input(index / len, index % len),
            Scatter(root) if !in_place => input(root, rank * len + index),
            Scatter(root) if own => input(root, index),
            Reduce(..) | Gather(_) | Scatter(_) => Wanted::Kept,
            Ring => input((rank + size - 1) % size, index),
        }
    }

    /// True if NCCL has an algorithm for it, instead of composing it of sends and receives.
    fn has_algorithm(&self) -> bool {
        matches!(self.collective, AllReduce(_) | Reduce(..) | Broadcast(_) | AllGather | ReduceScatter(_))
    }

    /// True if ranks other than the root pass a buffer that they do not need: in some cases.
    fn generous(&self) -> bool {
        self.len.is_multiple_of(2)
    }
}

fn guard<T: Value>() -> T {
    T::any(0xa5a5_a5a5_a5a5_a5a5)
}

/// Elements before a view: in some cases it is not aligned to 16 bytes.
fn lead(case: &Case) -> usize {
    if case.generous() { 16 } else { GUARDS }
}

/// Way to call collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'b> {
    /// One after the other: only if this thread has one rank.
    Alone,
    /// With a configuration, otherwise like `Alone`.
    Configured(&'b CallConfig),
    Grouped,
    /// In nested groups.
    Nested,
    /// Prepared, and queued several times if the result is the same: only if this thread has one rank.
    Prepared,
    /// In a CUDA graph, launched several times if the result is the same.
    Graph,
    /// Simulated only.
    Simulated,
}

enum Buffers<'b, S, R> {
    Apart(&'b S, &'b mut R),
    InPlace(&'b mut R),
}

/// Calls a case's collective.
fn issue<'b, C, S, R>(call: C, case: &Case, rank: usize, buffers: Buffers<'b, S, R>) -> Result<(), Error>
where
    C: Collectives<'b>,
    S: DeviceBuffer,
    R: DeviceBufferMut<Element = S::Element>,
{
    let call = call.call();
    let needed = |root| rank == root || case.generous();
    let (left, right) = ((rank + case.size - 1) % case.size, (rank + 1) % case.size);
    match buffers {
        Buffers::Apart(send, receive) => match case.collective {
            AllReduce(op) => call.all_reduce(send, receive, op),
            Reduce(op, root) => call.reduce(send, needed(root).then_some(receive), op, root),
            Broadcast(root) => call.broadcast(needed(root).then_some(send), receive, root),
            AllGather => call.all_gather(send, receive),
            ReduceScatter(op) => call.reduce_scatter(send, receive, op),
            AllToAll => call.all_to_all(send, receive),
            AllToAllV => call.all_to_all_v(send, &case.parts(rank, true), receive, &case.parts(rank, false)),
            Gather(root) => call.gather(send, needed(root).then_some(receive), root),
            Scatter(root) => call.scatter(needed(root).then_some(send), receive, root),
            // Outside a group, one side must begin.
            Ring if rank == 0 => call.send(send, right).and_then(|()| call.recv(receive, left)),
            Ring => call.recv(receive, left).and_then(|()| call.send(send, right)),
        },
        Buffers::InPlace(buffer) => match case.collective {
            AllReduce(op) => call.all_reduce_in_place(buffer, op),
            Reduce(op, root) => call.reduce_in_place(buffer, op, root),
            Broadcast(root) => call.broadcast_in_place(buffer, root),
            AllGather => call.all_gather_in_place(buffer),
            ReduceScatter(op) => call.reduce_scatter_in_place(buffer, op),
            Gather(root) => call.gather_in_place(buffer, root),
            Scatter(root) => call.scatter_in_place(buffer, root),
            AllToAll | AllToAllV | Ring => panic!("{case:?}: there is no such collective"),
        },
    }
}

fn launch<'b, S, R>(
    party: &'b [Communicator],
    way: Way<'b>,
    case: &Case,
    buffers: Vec<Buffers<'b, S, R>>,
) -> Result<(), Error>
where
    S: DeviceBuffer,
    R: DeviceBufferMut<Element = S::Element>,
{
    let times = if case.in_place { 1 } else { 3 };
    let mut each = party.iter().zip(buffers);
    let grouped = |group: &Group<'b>, each: std::iter::Zip<_, std::vec::IntoIter<Buffers<'b, S, R>>>| {
        let mut each: std::iter::Zip<std::slice::Iter<'b, Communicator>, _> = each;
        each.try_for_each(|(member, buffers)| issue(group.on(member), case, member.rank(), buffers))
    };
    match way {
        Way::Alone => each.try_for_each(|(member, buffers)| issue(member, case, member.rank(), buffers)),
        Way::Configured(config) => {
            each.try_for_each(|(member, buffers)| issue(member.with(config), case, member.rank(), buffers))
        }
        Way::Grouped => group(|group| grouped(group, each)),
        Way::Nested => group(|group| {
            each.try_for_each(|(member, buffers)| {
                group.nested(|inner| issue(inner.on(member), case, member.rank(), buffers))
            })
        }),
        Way::Prepared => each.try_for_each(|(member, buffers)| {
            let prepared = member
                .prepare(|prepare| prepare.group(|group| issue(group, case, member.rank(), buffers)))?;
            (0..times).try_for_each(|_| member.queue(&prepared))
        }),
        Way::Simulated => simulate(|group| grouped(group, each)).map(drop),
        Way::Graph => {
            let graph = Graph::capture(|capture| {
                capture.group(|capture| {
                    each.try_for_each(|(member, buffers)| {
                        issue(capture.on(member), case, member.rank(), buffers)
                    })
                })
            })?;
            (0..times).try_for_each(|_| graph.launch())
        }
    }
}

/// Fills the memory of this thread's ranks, calls the collective, and checks everything that it may and may
/// not change.
#[track_caller]
pub(crate) fn check<T: Value, A: Arena<T>>(
    party: &[Communicator],
    rooms: &mut [Room<A>],
    way: Way<'_>,
    case: &Case,
) {
    // NCCL 2.30.7 selects a kernel for it in symmetric windows that does not exist.
    if A::WINDOW
        && case.collective == AllReduce(ReduceOp::Avg)
        && party[0].library().version() == Version::new(2, 30, 7)
    {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            println!("  left out: all_reduce with avg in windows, which NCCL 2.30.7 cannot do")
        });
        return;
    }
    let what = format!("{} {case:?}, {way:?}", T::DATA_TYPE);
    let images: Vec<_> = party
        .iter()
        .zip(rooms.iter_mut())
        .map(|(member, room)| {
            let rank = member.rank();
            let sent: Vec<T> = image(case, case.send_len(rank), |index| {
                if case.in_place { guard() } else { case.input(rank, index) }
            });
            let before: Vec<T> = image(case, case.receive_len(rank), |index| case.before(rank, index));
            upload(&mut room.send, &sent);
            upload(&mut room.receive, &before);
            (sent, before)
        })
        .collect();
    match call(party, rooms, way, case) {
        Err(Error::Misaligned { loaded, .. }) if A::WINDOW && loaded < Version::new(2, 30, 0) => return,
        Err(Error::Argument { reason, .. })
            if matches!(way, Way::Simulated)
                && !case.has_algorithm()
                && reason.starts_with("not possible in a simulation: ") => {}
        Ok(()) if !matches!(way, Way::Simulated) || case.has_algorithm() => {}
        other => panic!("{what}: {other:?}"),
    }
    for ((member, room), (sent, before)) in party.iter().zip(rooms.iter()).zip(&images) {
        let rank = member.rank();
        let what = format!("{what}, rank {rank}");
        let found: Vec<T> = download(&room.send, sent.len());
        if let Some(at) = (0..sent.len()).find(|&at| found[at] != sent[at]) {
            panic!("{what}: element {at} of the input's memory was {:?} and is {:?}", sent[at], found[at]);
        }
        let found: Vec<T> = download(&room.receive, before.len());
        let view = lead(case)..lead(case) + case.receive_len(rank);
        for (at, (&found, &before)) in found.iter().zip(before).enumerate() {
            let wanted = match way {
                Way::Simulated => Wanted::Kept,
                _ if view.contains(&at) => case.wanted(rank, at - view.start),
                _ => Wanted::Kept,
            };
            let (right, wanted) = match wanted {
                Wanted::Value(value) => (found == value, value),
                Wanted::Near(value) => (found.near(value, case.size), value),
                Wanted::Kept => (found == before, before),
                Wanted::Anything => continue,
            };
            let index = at.cast_signed() - view.start.cast_signed();
            assert!(right, "{what}: element {index} is {found:?}, expected {wanted:?}");
        }
    }
}

/// Calls it with arbitrary memory contents.
pub(crate) fn call<T: Value, A: Arena<T>>(
    party: &[Communicator],
    rooms: &mut [Room<A>],
    way: Way<'_>,
    case: &Case,
) -> Result<(), Error> {
    let views = |(member, room): (&Communicator, _)| {
        let (rank, Room { send, receive }): (_, &mut Room<A>) = (member.rank(), room);
        let range = |len| lead(case)..lead(case) + len;
        (send.view(range(case.send_len(rank))), receive.view_mut(range(case.receive_len(rank))))
    };
    let mut views: Vec<_> = party.iter().zip(rooms.iter_mut()).map(views).collect();
    let buffers = |views| {
        let (send, receive): &mut (_, _) = views;
        if case.in_place { Buffers::InPlace(receive) } else { Buffers::Apart(&*send, receive) }
    };
    launch(party, way, case, views.iter_mut().map(buffers).collect())
}

fn image<T: Value>(case: &Case, len: usize, value: impl Fn(usize) -> T) -> Vec<T> {
    let guards = |count| std::iter::repeat_n(guard(), count);
    guards(lead(case)).chain((0..len).map(value)).chain(guards(GUARDS)).collect()
}

fn upload<T: Value, A: Arena<T>>(arena: &mut A, image: &[T]) {
    let mut view = arena.view_mut(0..image.len());
    let stream = Arc::clone(DeviceBuffer::stream(&view));
    stream.write(image, &mut view);
}

fn download<T: Value, A: Arena<T>>(arena: &A, len: usize) -> Vec<T> {
    let view = arena.view(0..len);
    DeviceBuffer::stream(&view).read(&view)
}

/// Checks all collectives with all operators that the way supports, each with fresh data.
#[track_caller]
pub(crate) fn check_all<T: Value, A: Arena<T>>(
    party: &[Communicator],
    rooms: &mut [Room<A>],
    way: Way<'_>,
    lengths: &[usize],
    seed: u64,
) {
    check_some::<T, A>(party, rooms, way, lengths, seed, |_| true);
}

/// Like [`check_all`], for the given collectives.
#[track_caller]
pub(crate) fn check_some<T: Value, A: Arena<T>>(
    party: &[Communicator],
    rooms: &mut [Room<A>],
    way: Way<'_>,
    lengths: &[usize],
    seed: u64,
    wanted: impl Fn(Collective) -> bool,
) {
    let size = party[0].size();
    // All roots, unless there are many.
    let roots: Vec<_> = match size {
        1..=4 => (0..size).collect(),
        _ => vec![0, 1 + seed as usize % (size - 2), size - 1],
    };
    let mut cases = 0u64;
    for &len in lengths {
        for collective in Collective::all(&roots) {
            let left_out = match way {
                // NCCL sends to the own rank only in a group.
                Way::Alone => collective == Ring && size == 1,
                Way::Configured(_) => !collective.is_one_function(),
                _ => false,
            } || !wanted(collective);
            for in_place in [false, true] {
                if left_out || in_place && !collective.has_in_place() {
                    continue;
                }
                cases += 1;
                let seed = seed.wrapping_add(cases.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                check::<T, A>(party, rooms, way, &Case { collective, in_place, len, size, seed });
            }
        }
    }
}
