//! Ranks that are connected.

use super::{Script, member};
use crate::world::call::{Contribution, pack};
use crate::world::tcp::connection::Connection;
use crate::world::tcp::service::{Line, take_frames};
use crate::world::tcp::state::Shared;
use crate::world::tcp::wire::{Frame, Frames};
use crate::world::{Called, Error, Options};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

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
