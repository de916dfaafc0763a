//! What arbitrary bytes must not do to ranks that meet over TCP: each function takes any input, plays it, and panics
//! when something does not hold. `cargo fuzz` calls them (`fuzz/`), and the tests with inputs that were kept.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is all tests")]

use super::host::Host;
use super::meeting::Contribution;
use super::rendezvous::{Failure, GREETING, Joining, MOST_AT_ONCE, MOST_PENDING, Reception};
use super::service::{Connection, Line, take_frames};
use super::tcp::Shared;
use super::wire::{Answer, Frame, Frames, Greeting, Member, pack, unpack};
use super::{Called, Error, Options, Place};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The longest input that is played.
const LONGEST: usize = 4096;

/// An input as a series of small numbers and of bytes; zeros when it has ended.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self(&data[..data.len().min(LONGEST)])
    }

    fn number(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Decodes the input as each of the messages, whole and in pieces.
///
/// # Panics
/// When what is understood depends on how it was cut, or is not the same when it is written and read again.
pub fn wire(data: &[u8]) {
    let data = &data[..data.len().min(LONGEST)];
    let greeting = Greeting::decode(data);
    if let Ok(Some(greeting)) = &greeting {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(Some(greeting.clone())));
    }
    let answer = Answer::decode(data);
    if let Ok(Some((answer, used))) = &answer {
        assert!(*used <= data.len());
        let written = answer.encode();
        // What is no text gets longer when it is made one, and may be cut.
        if written.len() <= *used {
            assert_eq!(Answer::decode(&written), Ok(Some((answer.clone(), written.len()))));
        }
    }
    // Every length around the headers, and some of the others.
    for end in (0..data.len()).filter(|end| *end < 64 || end % 37 == 0) {
        // More bytes never change a judgement, but those behind a greeting, which are an error.
        if let Err(malformed) = Greeting::decode(&data[..end]) {
            assert_eq!(greeting.as_ref().map_err(|later| later.0.is_empty()), Err(false), "{malformed:?}");
        }
        match Answer::decode(&data[..end]) {
            Ok(None) => {}
            known => assert_eq!(known, answer),
        }
    }
    let mut whole = Frames::default();
    whole.push(data);
    let (frames, end) = all_frames(&mut whole);
    let mut pieces = Frames::default();
    let (mut found, mut found_end) = (Vec::new(), None);
    let mut rest = data;
    while !rest.is_empty() && found_end.is_none() {
        // Pieces of lengths that depend on the input.
        let (piece, others) = rest.split_at(rest.len().min(1 + usize::from(rest[0] % 32)));
        pieces.push(piece);
        rest = others;
        let (mut more, end) = all_frames(&mut pieces);
        found.append(&mut more);
        found_end = end;
    }
    assert_eq!((&found, &found_end), (&frames, &end));
    for frame in frames {
        let written = frame.encode();
        if written.len() <= LONGEST {
            let mut again = Frames::default();
            again.push(&written);
            assert_eq!(again.next().as_ref(), Ok(&Some(frame)));
        }
    }
    if let Some(messages) = unpack(data) {
        assert_eq!(pack(messages.iter().map(Vec::as_slice)), data);
    }
}

/// The frames until more bytes must come, or until an error.
fn all_frames(stream: &mut Frames) -> (Vec<Frame>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match stream.next() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(malformed) => return (frames, Some(malformed.0)),
        }
    }
}

/// A connection in memory: what the other side has said, and what it is told.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) incoming: VecDeque<u8>,
    /// The other side says nothing more.
    pub(super) ended: bool,
    /// The other side takes nothing.
    broken: bool,
    taken: Vec<u8>,
    pub(super) answered: Vec<u8>,
}

/// Rank 0's end of it.
pub(super) struct End(pub(super) Rc<RefCell<Wire>>);

impl End {
    /// Whether the system would wake rank 0 for it.
    fn ready(&self) -> bool {
        let wire = self.0.borrow();
        !wire.incoming.is_empty() || wire.ended
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.incoming.is_empty() {
            return if wire.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = wire.incoming.read(buffer)?;
        wire.taken.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        wire.answered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const KEY: &str = "our job";
/// Ranks of the job that waits. Rank 1 has come, the last one comes after all strangers.
const SIZE: usize = 4;

fn member(name: &str) -> Member {
    Member { host: Host { name: name.to_owned(), id: name.to_owned() }, local: None }
}

fn greeting(rank: usize, size: usize, key: &str, name: &str) -> Vec<u8> {
    Greeting { rank: rank as u32, size: size as u32, key: key.to_owned(), member: member(name) }.encode()
}

/// What has happened to a job.
#[derive(Debug, Default)]
pub struct Told {
    /// Why connections were turned away.
    pub refusals: BTreeSet<String>,
    /// How often a rank of the input took a seat.
    pub seated: usize,
}

/// Plays the input as what strangers do while a job waits for its last rank: connect, send, end, break, or let time
/// pass.
///
/// # Panics
/// When the job's own ranks lose their place or do not get one, when one gets a place without this job's key, or when
/// connections or memory are kept for longer than they may be.
pub fn rendezvous(data: &[u8]) -> Told {
    let mut place = Place::new(0, SIZE, "127.0.0.1:29500").unwrap();
    place.key = KEY.to_owned();
    let mut job = Job {
        reception: Reception::new(&place),
        wires: Vec::new(),
        now: Instant::now(),
        unheard: 0,
        told: Told::default(),
    };
    let honest = job.connect();
    job.say(honest, &greeting(1, SIZE, KEY, "honest"));
    job.attend();
    assert!(job.reception.joined[1].is_some(), "rank 1 has no seat");

    let mut script = Script::new(data);
    let mut strangers = Vec::new();
    while !script.0.is_empty() {
        let action = script.number();
        let stranger = || -> Option<usize> { strangers.get(action / 8 % strangers.len().max(1)).copied() };
        match (action % 8, stranger()) {
            (0, _) => {
                // One may come with a crowd.
                let crowd = action == 248 && strangers.len() < MOST_PENDING;
                let count = if crowd { MOST_PENDING + 1 } else { 1 };
                strangers.extend((0..count).map(|_| job.connect()));
            }
            (1, Some(stranger)) => {
                let count = script.number();
                job.say(stranger, script.bytes(count));
            }
            (2, Some(stranger)) => {
                let (rank, size, key) = (script.number() % 6, script.number(), script.number());
                let size = if size < 200 { SIZE } else { size };
                let key = if key < 128 { KEY } else { "another job" };
                let bytes = greeting(rank, size, key, "stranger");
                let cut = script.number();
                job.say(stranger, &bytes[..bytes.len().saturating_sub(cut)]);
            }
            (3, Some(stranger)) => job.wires[stranger].borrow_mut().ended = true,
            (4, Some(stranger)) => job.wires[stranger].borrow_mut().broken = true,
            (5, _) => {
                job.now += Duration::from_millis(25 * script.number() as u64);
                job.attend();
            }
            (6, _) => job.attend_together(),
            _ => job.attend(),
        }
    }
    job.attend();
    // Silent and slow ones have their time, and no more.
    job.now += GREETING;
    job.attend();
    assert!(job.reception.pending.is_empty(), "a connection is kept without a greeting");

    let last = SIZE - 1;
    if job.reception.joined[last].is_none() {
        let wire = job.connect();
        job.say(wire, &greeting(last, SIZE, KEY, "honest"));
        job.attend();
        let (_, member) = job.reception.joined[last].as_ref().unwrap();
        assert_eq!(member.host.name, "honest");
        assert_eq!(job.wires[wire].borrow().answered, Answer::Accepted.encode());
    }
    let missing: Vec<usize> = job.reception.missing().collect();
    assert!(!missing.contains(&1) && !missing.contains(&last));
    assert!(job.reception.given_up("here", Duration::from_secs(1)).starts_with("the rendezvous at here"));
    job.told
}

struct Job<'a> {
    reception: Reception<'a, End>,
    wires: Vec<Rc<RefCell<Wire>>>,
    now: Instant,
    /// How many connections were taken in that rank 0 has not listened to.
    unheard: usize,
    told: Told,
}

impl Job<'_> {
    fn connect(&mut self) -> usize {
        if self.unheard == MOST_AT_ONCE {
            self.attend();
        }
        self.unheard += 1;
        let wire = Rc::<RefCell<Wire>>::default();
        self.reception.take_in(End(Rc::clone(&wire)), self.now);
        self.wires.push(wire);
        self.note_refusal();
        self.wires.len() - 1
    }

    fn say(&self, wire: usize, bytes: &[u8]) {
        self.wires[wire].borrow_mut().incoming.extend(bytes);
    }

    fn note_refusal(&mut self) {
        if self.reception.refused > 0 {
            self.told.refusals.insert(self.reception.last_refusal.clone());
        }
    }

    /// Lets rank 0 do what the system would wake it for, and sees what it has done: one connection at a time, so that
    /// every reason to turn one away is seen.
    fn attend(&mut self) {
        self.attend_to(1);
    }

    /// As `attend`, but as after rank 0 has stood still: all connections in one turn.
    fn attend_together(&mut self) {
        self.attend_to(usize::MAX);
    }

    fn attend_to(&mut self, most: usize) {
        self.unheard = 0;
        let mut first = true;
        loop {
            let joined: Vec<usize> = (0..SIZE)
                .filter(|&rank| self.reception.joined[rank].as_ref().is_some_and(|(end, _)| end.ready()))
                .collect();
            let mut left = most;
            let mut next = |ready: bool| {
                let heard = ready && left > 0;
                left -= usize::from(heard);
                heard
            };
            let pending: Vec<bool> =
                self.reception.pending.iter().map(|pending| next(pending.stream.ready())).collect();
            if !pending.contains(&true) && joined.is_empty() && !first {
                return;
            }
            first = false;
            let seats = self.seats();
            self.reception.attend(&joined, &pending, self.now);
            self.told.seated += self.seats().saturating_sub(seats);
            self.note_refusal();
            self.look();
        }
    }

    fn seats(&self) -> usize {
        self.reception.joined.iter().flatten().count()
    }

    fn look(&self) {
        // Nothing that strangers do takes the seat of a rank.
        let (end, member) = self.reception.joined[1].as_ref().unwrap();
        assert_eq!(member.host.name, "honest");
        assert!(Rc::ptr_eq(&end.0, &self.wires[0]));
        assert!(self.reception.joined[0].is_none(), "somebody has rank 0's seat");
        assert!(self.reception.pending.len() <= MOST_PENDING);
        for pending in &self.reception.pending {
            assert!(pending.bytes.len() < 4096, "{} bytes of a greeting", pending.bytes.len());
        }
        for (rank, (end, member)) in
            self.reception.joined.iter().enumerate().filter_map(|(rank, seat)| Some((rank, seat.as_ref()?)))
        {
            // A job does not start with one that has gone.
            assert!(!end.ready(), "rank {rank} has a seat though it has ended or spoken");
            let wire = end.0.borrow();
            let Ok(Some(said)) = Greeting::decode(&wire.taken) else {
                panic!("rank {rank} said no greeting")
            };
            assert_eq!((said.key.as_str(), said.rank as usize, said.size as usize), (KEY, rank, SIZE));
            assert_eq!((&said.member, &wire.answered), (member, &Answer::Accepted.encode()));
        }
        let open = self.wires.iter().filter(|wire| Rc::strong_count(wire) > 1).count();
        assert_eq!(open, self.reception.pending.len() + self.seats(), "a connection was lost or kept");
        for wire in &self.wires {
            let wire = wire.borrow();
            if wire.answered.is_empty() {
                continue;
            }
            let Ok(Some((answer, used))) = Answer::decode(&wire.answered) else { panic!("no answer") };
            assert_eq!(used, wire.answered.len());
            // Who does not know the job's key learns nothing of it.
            let Ok(Some(said)) = Greeting::decode(&wire.taken) else { panic!("an answer to no greeting") };
            assert_eq!(answer == Answer::Stranger, said.key != KEY);
        }
    }
}

/// Plays the input as what listens at rank 0's address says to a rank that wants to join, in pieces: what became of it.
///
/// # Panics
/// When the rank takes something for its job that is not, depends on how the bytes are cut, keeps more than it may, or
/// gives up for good because of what is not rank 0.
pub fn join(data: &[u8]) -> String {
    let mut script = Script::new(data);
    let cut = script.number();
    let mut said = Vec::new();
    while !script.0.is_empty() {
        let action = script.number();
        let number = action / 8;
        match action % 8 {
            0 => said.extend(Answer::Accepted.encode()),
            1 => said.extend(Answer::Refused("there is no place".to_owned()).encode()),
            2 => said.extend(Answer::Stranger.encode()),
            3 => {
                let members = (0..number % 6).map(|rank| member(&format!("node{rank}"))).collect();
                said.extend(Frame::Members(members).encode());
            }
            4 => said.extend(Frame::GivenUp("rank 2 is missing".to_owned()).encode()),
            5 => said.extend(Frame::Heartbeat.encode()),
            // The head of a frame of any length.
            6 => said.extend([&[9][..], script.bytes(4)].concat()),
            _ => said.extend_from_slice(script.bytes(number)),
        }
    }
    let mut place = Place::new(1, SIZE, "127.0.0.1:29500").unwrap();
    place.key = KEY.to_owned();
    let whole = hear(&place, &said, said.len().max(1));
    let (outcome, left) = hear(&place, &said, 1 + cut % 64);
    assert_eq!(outcome, whole.0, "it depends on how it is cut");
    let answer = Answer::decode(&said);
    let accepted = matches!(answer, Ok(Some((Answer::Accepted, _))));
    match &outcome {
        Ok(members) => {
            assert!(accepted && members.len() == SIZE);
            let Ok(Some((_, used))) = answer else { panic!("no answer") };
            let mut frames = Frames::default();
            frames.push(&said[used..]);
            assert_eq!(frames.next(), Ok(Some(Frame::Members(members.clone()))));
            // What came right behind is still there, as far as it was read.
            assert!(left <= frames.kept() && whole.1 == frames.kept());
            "met".to_owned()
        }
        Err(Failure::Retry(reason)) => {
            assert!(!accepted && !matches!(answer, Ok(Some((Answer::Refused(_), _)))), "{reason}");
            reason.clone()
        }
        Err(Failure::Final(error)) => {
            assert!(accepted || matches!(answer, Ok(Some((Answer::Refused(_), _)))), "{error}");
            error.to_string()
        }
    }
}

/// What a rank that joins makes of these bytes, in pieces of this length, and how many it then keeps.
fn hear(place: &Place, said: &[u8], piece: usize) -> (Result<Vec<Member>, Failure>, usize) {
    let mut joining = Joining::new(place, "127.0.0.1:29500");
    for bytes in said.chunks(piece) {
        match joining.hear(bytes) {
            Ok(None) => {
                let most = Frame::longest_of_members(SIZE) + 64 + piece;
                assert!(joining.frames.kept() <= most, "{} bytes are kept", joining.frames.kept());
            }
            Ok(Some(members)) => return (Ok(members), joining.frames.kept()),
            Err(failure) => return (Err(failure), 0),
        }
    }
    (Err(joining.ended()), 0)
}

/// Plays the input as what ranks say once they have met, to rank 0 or by rank 0: frames and bytes that are none, in
/// any pieces.
///
/// # Panics
/// When the failure is put down to a rank that said nothing wrong, when nothing happens after an error, or when ranks
/// are given other messages than were brought.
pub fn service(data: &[u8]) {
    let mut script = Script::new(data);
    let first = script.number();
    let rank = first % 2;
    let size = 3;
    let members = (0..size).map(|rank| member(&format!("node{rank}"))).collect();
    let mut others = Vec::new();
    let connections = (0..size)
        .map(|peer| {
            (peer != rank && (rank == 0 || peer == 0)).then(|| {
                let (own, other) = UnixStream::pair().unwrap();
                others.push(other);
                Connection::new(TcpStream::from(OwnedFd::from(own))).unwrap()
            })
        })
        .collect();
    let (wake, woken) = UnixStream::pair().unwrap();
    wake.set_nonblocking(true).unwrap();
    let shared = Shared::new(rank, members, connections, Options::default(), wake);
    let now = Instant::now();
    let mut lines: Vec<(usize, Line<'_>)> = shared
        .connections
        .iter()
        .enumerate()
        .filter_map(|(peer, connection)| {
            Some((peer, Line::new(peer, connection.as_ref()?, Frames::default(), now)))
        })
        .collect();
    // What each rank has brought to the call under way, as far as it is in order.
    let mut brought: Vec<Option<Contribution>> = vec![None; size];
    let mut number = 0;
    let mut blamed = BTreeSet::new();
    while !script.0.is_empty() && shared.failure().is_none() {
        let action = script.number();
        let count = lines.len();
        let (peer, line) = &mut lines[action / 16 % count];
        let length = script.number();
        let frame = match action % 16 {
            0 => Frame::Heartbeat,
            1 | 2 if rank == 0 => Frame::Barrier(number),
            3..=6 if rank == 0 => Frame::Message(number, script.bytes(length).to_vec()),
            7 if rank == 0 => Frame::Note(String::from_utf8_lossy(script.bytes(length)).into_owned()),
            8..=10 if rank == 0 => {
                // Rank 0's own part, which is in order.
                let own = match action % 16 {
                    8 => Contribution::Barrier,
                    _ => Contribution::Message(script.bytes(length).to_vec()),
                };
                if brought[0].is_none() {
                    brought[0] = Some(own.clone());
                    shared.arrive(0, number, own);
                    settle(&shared, &mut brought, &mut number);
                }
                continue;
            }
            1 | 2 => Frame::Released(number),
            3 | 4 => Frame::Gathered(number, pack((0..size).map(|_| script.bytes(length)))),
            5 => Frame::Gathered(number, script.bytes(length).to_vec()),
            6 => Frame::Failed(3, Error::Mismatch("ranks differ".to_owned())),
            11 => Frame::Goodbye,
            14 if rank == 0 && length >= 128 => {
                // The ranks that these bytes name need not be those that say so.
                let named = (script.number() % 4) as u32;
                let called = |_| {
                    let (place, number) = (script.number() as u64 % 2, script.number() as u64 % 4);
                    let what = String::from_utf8_lossy(script.bytes(2)).into_owned();
                    Called { place, number, what }
                };
                Frame::Called(named, 0, (0..length % 8).map(called).collect())
            }
            12 => Frame::Abort(
                length as i32,
                length.is_multiple_of(2).then_some((length % 5) as u32),
                "enough".to_owned(),
            ),
            13 => Frame::Barrier(length as u64),
            _ => {
                blamed.insert(*peer);
                line.frames.push(script.bytes(length));
                take_frames(&shared, line);
                settle(&shared, &mut brought, &mut number);
                continue;
            }
        };
        blamed.insert(*peer);
        match &frame {
            Frame::Barrier(its) if *its == number => {
                brought[*peer].get_or_insert(Contribution::Barrier);
            }
            Frame::Message(_, message) => {
                brought[*peer].get_or_insert(Contribution::Message(message.clone()));
            }
            _ => {}
        }
        for piece in frame.encode().chunks(1 + length % 7) {
            line.frames.push(piece);
            take_frames(&shared, line);
        }
        settle(&shared, &mut brought, &mut number);
    }
    match shared.failure().map(|failure| &failure.error) {
        None => assert!(shared.connections.iter().flatten().all(Connection::is_open) || !blamed.is_empty()),
        Some(Error::RankFailed { rank: culprit, .. }) => {
            // Rank 0 may tell of any.
            assert!(rank != 0 || blamed.contains(culprit), "rank {culprit} did nothing wrong");
        }
        Some(Error::Mismatch(_)) => {}
        Some(other) => panic!("{other}"),
    }
    drop((others, woken));
}

/// Sees what a call has ended with, when it has.
fn settle(shared: &Shared, brought: &mut [Option<Contribution>], number: &mut u64) {
    let (next, reply) = shared.take_reply();
    let Some(reply) = reply else { return };
    if shared.rank == 0 && brought.iter().all(Option::is_some) {
        let expected: Vec<Vec<u8>> = brought
            .iter_mut()
            .filter_map(|brought| match brought.take() {
                Some(Contribution::Message(message)) => Some(message),
                _ => None,
            })
            .collect();
        assert_eq!(reply.unwrap_or_default(), expected);
    } else if let Some(messages) = reply {
        assert_eq!(messages.len(), brought.len());
    }
    brought.fill(None);
    *number = next;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    /// The inputs that are kept for a target of `cargo fuzz`.
    fn kept(target: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let inputs: Vec<Vec<u8>> =
            fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(!inputs.is_empty(), "no inputs are kept for {target}");
        inputs
    }

    #[test]
    fn inputs_that_were_kept_are_survived() {
        kept("wire").iter().for_each(|input| wire(input));
        kept("service").iter().for_each(|input| service(input));
        let joined: BTreeSet<String> = kept("join").iter().map(|input| join(input)).collect();
        // What listens at an address must have said for this to say anything.
        for outcome in [
            "met",
            "rank 0 of another job listens there",
            "it does not speak this program's protocol",
            "ended the connection without an answer",
            "refused this rank: there is no place",
            "rank 2 is missing",
            "rank 0 sent something else than the list of ranks",
            "rank 0 sent a frame of 4294967295 bytes",
            "rank 0 ended while other ranks were missing",
        ] {
            assert!(joined.iter().any(|joined| joined.contains(outcome)), "{outcome}: {joined:?}");
        }
        let mut told = Told::default();
        for input in kept("rendezvous") {
            let mut of_this = rendezvous(&input);
            told.refusals.append(&mut of_this.refusals);
            told.seated += of_this.seated;
        }
        // What strangers must have tried for this to say anything.
        for reason in [
            "it belongs to another job (`another job`, this one is `our job`)",
            "it does not speak this program's protocol",
            "it speaks version 9 of the protocol",
            "a greeting of 65535 bytes",
            "a name of 65535 bytes",
            "its greeting took too long",
            "it said nothing in time",
            "it ended before its greeting",
            "too many connections came at once",
            "was started as one of",
            "was started twice",
            "it ended after its greeting",
            "bytes too many",
        ] {
            assert!(told.refusals.iter().any(|refusal| refusal.contains(reason)), "{reason}: {told:?}");
        }
        assert!(told.seated > 1, "{told:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..300)) {
            wire(&data);
            rendezvous(&data);
            service(&data);
            join(&data);
        }

        #[test]
        fn any_bytes_behind_rank_0_s_consent_are_survived(
            mut data in prop::collection::vec(any::<u8>(), 0..100),
            cut in any::<u8>(),
        ) {
            data.splice(0..0, [cut, 0]);
            join(&data);
        }

        /// A crowd of strangers takes longer, and comes rarely by chance.
        #[test]
        fn any_bytes_behind_a_greeting_are_survived(
            mut data in prop::collection::vec(any::<u8>(), 0..100),
            rank in 0_u8..6,
        ) {
            data.splice(0..0, [0, 2, rank, 0, 0, 0, 7]);
            rendezvous(&data);
        }
    }
}
