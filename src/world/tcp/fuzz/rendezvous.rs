//! Rank 0 at the rendezvous.

use super::stream::{End, Wire};
use super::{KEY, SIZE, Script, greeting};
use crate::world::Place;
use crate::world::tcp::rendezvous::{MOST_AT_ONCE, MOST_PENDING, Reception};
use crate::world::tcp::wire::{Answer, GREETING, Greeting};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

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
