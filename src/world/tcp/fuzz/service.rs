//! Connected ranks.

use super::{Script, member};
use crate::world::call::{Contribution, pack_messages};
use crate::world::tcp::connection::FrameConnection;
use crate::world::tcp::service::{ServedPeer, handle_frames};
use crate::world::tcp::state::TcpState;
use crate::world::tcp::wire::{Frame, FrameDecoder};
use crate::world::{Awaited, Called, Error, Options, Wait};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const SIZE: usize = 3;

enum Action {
    /// The peer sends a frame.
    Send(Frame),
    /// The peer sends arbitrary bytes.
    SendRaw(Vec<u8>),
    /// Rank 0 contributes to the current call.
    Contribute(Contribution),
}

/// The current call, and its expected contributions.
struct CurrentCall {
    number: u64,
    contributions: Vec<Option<Contribution>>,
}

/// Plays the input as frames and arbitrary bytes, in pieces of any length, from connected ranks to rank 0 or
/// from rank 0.
///
/// # Panics
/// If a rank is blamed for a failure of another cause, an error has no effect, or a result contains other
/// messages than the contributions.
pub fn service(data: &[u8]) {
    let mut script = Script::new(data);
    let rank = script.number() % 2;
    let mut sockets = Vec::new();
    let connections = (0..SIZE)
        .map(|peer| {
            (peer != rank && (rank == 0 || peer == 0)).then(|| {
                let (own, other) = UnixStream::pair().unwrap();
                sockets.push(other);
                FrameConnection::new(TcpStream::from(OwnedFd::from(own))).unwrap()
            })
        })
        .collect();
    let (wake, woken) = UnixStream::pair().unwrap();
    wake.set_nonblocking(true).unwrap();
    sockets.push(woken);
    let members = (0..SIZE).map(|rank| member(&format!("node{rank}"))).collect();
    let state = TcpState::new(rank, members, connections, Options::default(), wake);
    let now = Instant::now();
    let mut peers: Vec<(usize, ServedPeer<'_>)> = state
        .connections
        .iter()
        .enumerate()
        .filter_map(|(peer, connection)| {
            Some((peer, ServedPeer::new(peer, connection.as_ref()?, FrameDecoder::default(), now)))
        })
        .collect();
    let mut call = CurrentCall { number: 0, contributions: vec![None; SIZE] };
    let mut active = BTreeSet::new();
    while !script.0.is_empty() && state.failure.get().is_none() {
        let action = script.number();
        let count = peers.len();
        let (index, peer) = &mut peers[action / 16 % count];
        let length = script.number();
        match next_action(&mut script, action % 16, length, rank, call.number) {
            Action::Contribute(own) => {
                if call.contributions[0].is_none() {
                    call.contributions[0] = Some(own.clone());
                    state.add_contribution(0, call.number, own);
                }
            }
            Action::SendRaw(bytes) => {
                active.insert(*index);
                peer.decoder.push_bytes(&bytes);
                handle_frames(&state, peer);
            }
            Action::Send(frame) => {
                active.insert(*index);
                call.expect(*index, &frame);
                for piece in frame.encode().chunks(1 + length % 7) {
                    peer.decoder.push_bytes(piece);
                    handle_frames(&state, peer);
                }
            }
        }
        call.check_result(&state);
    }
    if rank == 0 {
        state.end_time_out(Instant::now() + Duration::from_secs(60));
    }
    check_failure(&state, &active);
    drop(sockets);
}

fn next_action(script: &mut Script<'_>, kind: usize, length: usize, rank: usize, number: u64) -> Action {
    Action::Send(match kind {
        0 => Frame::Heartbeat,
        1 | 2 if rank == 0 => Frame::Barrier(number),
        3..=6 if rank == 0 => Frame::Message(number, script.bytes(length).to_vec()),
        7 if rank == 0 => {
            Frame::Note(String::from_utf8_lossy(script.bytes(length)).into_owned(), vec![0; length])
        }
        8 if rank == 0 => return Action::Contribute(Contribution::Barrier),
        9 | 10 if rank == 0 => {
            return Action::Contribute(Contribution::Message(script.bytes(length).to_vec()));
        }
        1 | 2 => Frame::Released(number),
        3 | 4 => Frame::Gathered(number, pack_messages((0..SIZE).map(|_| script.bytes(length)))),
        5 => Frame::Gathered(number, script.bytes(length).to_vec()),
        6 => Frame::Failed(3, Error::Mismatch("ranks differ".to_owned())),
        11 => Frame::Goodbye,
        14 if rank == 0 && length >= 128 => {
            // The rank in the frame may be another than the sender.
            let named = (script.number() % 4) as u32;
            let called = |_| {
                let (place, number) = (script.number() as u64 % 2, script.number() as u64 % 4);
                let what = String::from_utf8_lossy(script.bytes(2)).into_owned();
                Called { place, number, what }
            };
            Frame::Called(named, 0, (0..length % 8).map(called).collect())
        }
        15 if rank == 0 && length >= 128 => {
            // The waiting rank may be another than the sender, and the awaited ones need not exist.
            let rank = script.number() % 4;
            let awaited = |_| {
                let (named, place, number) = (script.number() % 4, script.number() % 2, script.number() % 4);
                Awaited { rank: named, place: place as u64, number: number as u64 }
            };
            let awaited = (0..length % 8).map(awaited).collect();
            let (operation, limit) = ("barrier".to_owned(), Duration::from_secs(3));
            Frame::TimedOut(Wait { rank, topic: 0, operation, limit, awaited })
        }
        15 if rank != 0 && length >= 128 => Frame::WantCalls,
        12 => Frame::Abort(
            length as i32,
            length.is_multiple_of(2).then_some((length % 5) as u32),
            "enough".into(),
        ),
        13 if length.is_multiple_of(2) => Frame::Posted(script.bytes(length).to_vec()),
        13 => Frame::Barrier(length as u64),
        _ => return Action::SendRaw(script.bytes(length).to_vec()),
    })
}

impl CurrentCall {
    fn expect(&mut self, peer: usize, frame: &Frame) {
        let contribution = match frame {
            Frame::Barrier(number) if *number == self.number => Contribution::Barrier,
            Frame::Message(_, message) => Contribution::Message(message.clone()),
            _ => return,
        };
        self.contributions[peer].get_or_insert(contribution);
    }

    /// Compares the result of a completed call with the contributions.
    fn check_result(&mut self, state: &TcpState) {
        let (next, result) = state.take_result();
        let Some(result) = result else { return };
        if state.rank == 0 && self.contributions.iter().all(Option::is_some) {
            let expected: Vec<Vec<u8>> = self
                .contributions
                .iter_mut()
                .filter_map(|contribution| match contribution.take() {
                    Some(Contribution::Message(message)) => Some(message),
                    _ => None,
                })
                .collect();
            assert_eq!(result.unwrap_or_default(), expected);
        } else if let Some(messages) = result {
            assert_eq!(messages.len(), SIZE);
        }
        self.contributions.fill(None);
        self.number = next;
    }
}

fn check_failure(state: &TcpState, active: &BTreeSet<usize>) {
    match state.failure.get().map(|failure| &failure.error) {
        None => {
            assert!(state.connections.iter().flatten().all(FrameConnection::is_open) || !active.is_empty())
        }
        Some(Error::RankFailed { rank, .. }) => {
            // Rank 0 may report a failure of any rank.
            assert!(state.rank != 0 || active.contains(rank), "rank {rank} did nothing wrong");
        }
        Some(Error::Mismatch(_) | Error::CallMismatch(_)) => {}
        Some(other) => panic!("{other}"),
    }
}
