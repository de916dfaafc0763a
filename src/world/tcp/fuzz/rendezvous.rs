//! Rank 0 during the rendezvous.

use super::stream::{PeerStream, SharedStream};
use super::{KEY, SIZE, Script, hello, received};
use crate::world::RendezvousConfig;
use crate::world::tcp::rendezvous::{Acceptor, MAX_ACCEPTS, MAX_PENDING};
use crate::world::tcp::wire::{Frame, HANDSHAKE_TIMEOUT};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Outcome of a rendezvous.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Reasons for rejected connections.
    pub rejections: BTreeSet<String>,
    /// Number of accepted ranks of the input.
    pub accepted: usize,
}

/// Plays the input as actions of untrusted peers while a job waits for its last rank: connect, send, close,
/// break, or let time pass.
///
/// # Panics
/// If a rank of the job is not accepted or loses its connection, a peer without the job's key is accepted, or
/// connections or memory are kept beyond their limits.
pub fn rendezvous(data: &[u8]) -> Outcome {
    let mut config = RendezvousConfig::new(0, SIZE, "127.0.0.1:29500").unwrap();
    config.key = KEY.to_owned();
    let mut job = Job {
        acceptor: Acceptor::new(&config),
        streams: Vec::new(),
        now: Instant::now(),
        unpolled: 0,
        outcome: Outcome::default(),
    };
    let honest = job.connect();
    job.send(honest, &hello(1, SIZE, KEY, "honest"));
    job.poll();
    assert!(job.acceptor.joined[1].is_some(), "rank 1 was not accepted");

    let mut script = Script::new(data);
    let mut untrusted = Vec::new();
    while !script.0.is_empty() {
        let action = script.number();
        let peer = || -> Option<usize> { untrusted.get(action / 8 % untrusted.len().max(1)).copied() };
        match (action % 8, peer()) {
            (0, _) => {
                // A burst of connections.
                let crowd = action == 248 && untrusted.len() < MAX_PENDING;
                let count = if crowd { MAX_PENDING + 1 } else { 1 };
                untrusted.extend((0..count).map(|_| job.connect()));
            }
            (1, Some(peer)) => {
                let count = script.number();
                job.send(peer, script.bytes(count));
            }
            (2, Some(peer)) => {
                let (rank, size, key) = (script.number() % 6, script.number(), script.number());
                let size = if size < 200 { SIZE } else { size };
                let key = if key < 128 { KEY } else { "another job" };
                let bytes = hello(rank, size, key, "peer");
                let cut = script.number();
                job.send(peer, &bytes[..bytes.len().saturating_sub(cut)]);
            }
            (3, Some(peer)) => job.streams[peer].borrow_mut().ended = true,
            (4, Some(peer)) => job.streams[peer].borrow_mut().broken = true,
            (5, _) => {
                job.now += Duration::from_millis(25 * script.number() as u64);
                job.poll();
            }
            (6, _) => job.poll_all(),
            _ => job.poll(),
        }
    }
    job.poll();
    // Incomplete handshakes time out.
    job.now += HANDSHAKE_TIMEOUT;
    job.poll();
    assert!(job.acceptor.pending.is_empty(), "a connection is kept without a hello");

    let last = SIZE - 1;
    if job.acceptor.joined[last].is_none() {
        let stream = job.connect();
        job.send(stream, &hello(last, SIZE, KEY, "honest"));
        job.poll();
        let (_, member) = job.acceptor.joined[last].as_ref().unwrap();
        assert_eq!(member.host.name, "honest");
        assert_eq!(job.streams[stream].borrow().replied, Frame::Accepted.encode_first());
    }
    let missing: Vec<usize> = job.acceptor.missing_ranks().collect();
    assert!(!missing.contains(&1) && !missing.contains(&last));
    assert!(
        job.acceptor.timeout_message("here", Duration::from_secs(1)).starts_with("the rendezvous at here")
    );
    job.outcome
}

struct Job<'a> {
    acceptor: Acceptor<'a, SharedStream>,
    streams: Vec<Rc<RefCell<PeerStream>>>,
    now: Instant,
    /// Number of connections since the last poll.
    unpolled: usize,
    outcome: Outcome,
}

impl Job<'_> {
    fn connect(&mut self) -> usize {
        if self.unpolled == MAX_ACCEPTS {
            self.poll();
        }
        self.unpolled += 1;
        let stream = Rc::<RefCell<PeerStream>>::default();
        self.acceptor.add_pending(SharedStream(Rc::clone(&stream)), self.now);
        self.streams.push(stream);
        self.record_rejection();
        self.streams.len() - 1
    }

    fn send(&self, stream: usize, bytes: &[u8]) {
        self.streams[stream].borrow_mut().incoming.extend(bytes);
    }

    fn record_rejection(&mut self) {
        if self.acceptor.rejected > 0 {
            self.outcome.rejections.insert(self.acceptor.last_rejection.clone());
        }
    }

    /// Polls until nothing is ready, one pending connection at a time, to record every rejection.
    fn poll(&mut self) {
        self.poll_up_to(1);
    }

    /// Polls until nothing is ready, all pending connections at once, as after a delay of rank 0.
    fn poll_all(&mut self) {
        self.poll_up_to(usize::MAX);
    }

    fn poll_up_to(&mut self, max: usize) {
        self.unpolled = 0;
        let mut first = true;
        loop {
            let joined: Vec<usize> = (0..SIZE)
                .filter(|&rank| self.acceptor.joined[rank].as_ref().is_some_and(|(stream, _)| stream.ready()))
                .collect();
            let mut left = max;
            let mut next = |ready: bool| {
                let polled = ready && left > 0;
                left -= usize::from(polled);
                polled
            };
            let pending: Vec<bool> =
                self.acceptor.pending.iter().map(|pending| next(pending.stream.ready())).collect();
            if !pending.contains(&true) && joined.is_empty() && !first {
                return;
            }
            first = false;
            let accepted_ranks = self.accepted_ranks();
            self.acceptor.handle_readable(&joined, &pending, self.now);
            self.outcome.accepted += self.accepted_ranks().saturating_sub(accepted_ranks);
            self.record_rejection();
            self.check_invariants();
        }
    }

    fn accepted_ranks(&self) -> usize {
        self.acceptor.joined.iter().flatten().count()
    }

    fn check_invariants(&self) {
        // Untrusted peers do not replace a rank.
        let (stream, member) = self.acceptor.joined[1].as_ref().unwrap();
        assert_eq!(member.host.name, "honest");
        assert!(Rc::ptr_eq(&stream.0, &self.streams[0]));
        assert!(self.acceptor.joined[0].is_none(), "a peer was accepted as rank 0");
        assert!(self.acceptor.pending.len() <= MAX_PENDING);
        for pending in &self.acceptor.pending {
            let count = pending.decoder.buffered_len();
            assert!(count < 4096, "{count} bytes of a hello");
        }
        for (rank, (stream, member)) in self
            .acceptor
            .joined
            .iter()
            .enumerate()
            .filter_map(|(rank, joined)| Some((rank, joined.as_ref()?)))
        {
            // A job does not start with a disconnected rank.
            assert!(!stream.ready(), "rank {rank} is accepted though it has disconnected or sent data");
            let stream = stream.0.borrow();
            let sent = Frame::Hello(rank as u32, SIZE as u32, KEY.to_owned(), member.clone());
            assert_eq!(received(&stream.consumed).next_frame(), Ok(Some(sent)));
            assert_eq!(stream.replied, Frame::Accepted.encode_first());
        }
        let open = self.streams.iter().filter(|stream| Rc::strong_count(stream) > 1).count();
        assert_eq!(
            open,
            self.acceptor.pending.len() + self.accepted_ranks(),
            "a connection was lost or kept"
        );
        for stream in &self.streams {
            let stream = stream.borrow();
            if stream.replied.is_empty() {
                continue;
            }
            let mut replied = received(&stream.replied);
            let Ok(Some(reply)) = replied.next_frame() else { panic!("no reply") };
            assert_eq!(replied.buffered_len(), 0);
            // A peer without the job's key learns nothing about the job.
            let Ok(Some(Frame::Hello(_, _, key, _))) = received(&stream.consumed).next_frame() else {
                panic!("a reply without a hello")
            };
            assert_eq!(reply == Frame::OtherJob, key != KEY);
        }
    }
}
