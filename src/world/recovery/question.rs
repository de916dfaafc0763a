//! Asking the service of another process.

use super::service::{Decision, ProcessState};
use super::table::JobProcess;
use crate::world::limits::MAX_NAME;
use crate::world::tcp::read_some;
use crate::world::tcp::wire::{Frame, FrameDecoder};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time limit for a connection, and for the answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time limit for all addresses of a process.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// The state of another process, as far as this one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// It has ended (nobody listens at any of its addresses), or has reported its exit from the job.
    Gone,
    /// It gives no answer, for this reason, and may live.
    Silent(String),
    State(ProcessState),
}

/// Asks process number `index` of the job with `key` and `processes` processes.
pub(super) fn ask_process(process: &JobProcess, index: usize, key: &str, processes: usize) -> View {
    let by = Instant::now() + TIMEOUT;
    let mut silent = None;
    for &address in &process.addresses {
        match ask_at(SocketAddr::new(address, process.port), index, key, processes, by) {
            Ok(ProcessState::Left) => return View::Gone,
            Ok(state) => return View::State(state),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => silent = Some(error.to_string()),
        }
    }
    silent.map_or(View::Gone, View::Silent)
}

fn ask_at(
    address: SocketAddr,
    index: usize,
    key: &str,
    processes: usize,
    by: Instant,
) -> io::Result<ProcessState> {
    let left = by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT.min(left))?;
    // TCP simultaneous open: a connection to an unused local port can connect to itself.
    if stream.local_addr().ok() == Some(address) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    // A later refusal of the connection does not prove that nobody listens.
    let question = Frame::AskShrink(u32::try_from(index).unwrap_or(u32::MAX), key.to_owned());
    put_question(&mut stream, &question, processes).map_err(|error| io::Error::other(error.to_string()))
}

/// Informs process number `index` of the job with `key`, if it can be reached: `members` processes continue
/// without it.
pub(super) fn tell_gone_on(process: &JobProcess, index: usize, key: &str, members: usize) {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let news = Frame::GoneOn(number(index), key.to_owned(), number(members)).encode_first();
    for &address in &process.addresses {
        let told = TcpStream::connect_timeout(&SocketAddr::new(address, process.port), CONNECT_TIMEOUT)
            .and_then(|mut stream| {
                stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                stream.write_all(&news)
            });
        if told.is_ok() {
            return;
        }
    }
}

fn put_question(stream: &mut TcpStream, question: &Frame, processes: usize) -> io::Result<ProcessState> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&question.encode_first())?;
    let mut decoder = FrameDecoder::new();
    loop {
        let bytes = read_some(stream, until)?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoder.push_bytes(&bytes);
        if let Some(state) = read_answer(&mut decoder, processes).map_err(io::Error::other)? {
            return Ok(state);
        }
    }
}

/// Decodes an answer, perhaps of an unrelated server; `None` if more bytes are needed.
fn read_answer(decoder: &mut FrameDecoder, processes: usize) -> Result<Option<ProcessState>, String> {
    let longest = 4 * processes + 2 * MAX_NAME;
    let Some(answer) = decoder.next_within(longest).map_err(|malformed| malformed.0)? else {
        return Ok(None);
    };
    Ok(Some(match answer {
        Frame::NotCalling => ProcessState::Idle,
        Frame::Calling => ProcessState::Calling,
        Frame::HasLeft => ProcessState::Left,
        Frame::NotKnown => return Err("another process answers".to_owned()),
        Frame::Decided(formed, port, key, members) => {
            let ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
            let known = members.last().is_some_and(|&last| (last as usize) < processes);
            if !ascending || !known || key.len() > MAX_NAME || key.chars().any(char::is_control) {
                return Err("an impossible decision".to_owned());
            }
            ProcessState::Decided(Decision { formed: formed == 1, port, key, members })
        }
        _ => return Err("another frame than an answer".to_owned()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(frame: &Frame, processes: usize) -> Result<Option<ProcessState>, String> {
        let mut decoder = FrameDecoder::new();
        decoder.push_bytes(&frame.encode_first());
        read_answer(&mut decoder, processes)
    }

    #[test]
    fn only_possible_decisions_are_accepted() {
        let decided = |members: &[u32]| Frame::Decided(1, 7, "new".to_owned(), members.to_vec());
        let decision = Decision { formed: true, port: 7, key: "new".to_owned(), members: vec![0, 2] };
        assert_eq!(answer(&decided(&[0, 2]), 3), Ok(Some(ProcessState::Decided(decision))));
        for wrong in [&[0, 3][..], &[2, 0], &[1, 1], &[]] {
            assert!(answer(&decided(wrong), 3).is_err(), "{wrong:?}");
        }
        // More members than the job has processes are not even read.
        let many: Vec<u32> = (0..1000).collect();
        assert!(answer(&decided(&many), 3).is_err());
        assert!(answer(&Frame::NotKnown, 3).is_err());
        assert!(answer(&Frame::Heartbeat, 3).is_err());
        assert_eq!(answer(&Frame::HasLeft, 3), Ok(Some(ProcessState::Left)));
    }

    proptest! {
        /// Any server may answer at the address of an ended process.
        #[test]
        fn answers_of_strangers_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 0..30_u8,
            speaks in any::<bool>(),
        ) {
            let mut decoder = FrameDecoder::new();
            if speaks {
                let length = bytes.len() as u32;
                decoder.push_bytes(&Frame::Heartbeat.encode_first()[..10]);
                decoder.push_bytes(&[&[kind][..], &length.to_le_bytes()].concat());
            }
            decoder.push_bytes(&bytes);
            if let Ok(Some(ProcessState::Decided(decision))) = read_answer(&mut decoder, 4) {
                prop_assert!(decision.members.iter().all(|&member| member < 4));
                prop_assert!(decision.members.is_sorted() && !decision.members.is_empty());
            }
        }
    }
}
