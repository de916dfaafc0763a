use super::acceptor::{Acceptor, MAX_ACCEPTS, accept_ranks};
use super::address::format_ranges;
use super::joiner::{Attempts, join_rendezvous};
use super::*;
use crate::world::OnWait;
use crate::world::tcp::fuzz::{PeerStream, SharedStream};
use crate::world::tcp::wire::Frame;
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

#[test]
fn ascending_numbers_are_formatted_as_ranges() {
    assert_eq!(format_ranges(&[1]), "1");
    assert_eq!(format_ranges(&[1, 2]), "1, 2");
    assert_eq!(format_ranges(&[0, 1, 2, 5, 7, 8, 9]), "0-2, 5, 7-9");
    assert_eq!(format_ranges(&[]), "");
}

#[test]
fn failures_are_grouped_by_reason() {
    let mut attempts = Attempts::default();
    attempts.record_failure("a:1".to_owned(), "rejected".to_owned());
    attempts.record_failure("a:2".to_owned(), "silent".to_owned());
    attempts.record_failure("a:3".to_owned(), "rejected".to_owned());
    assert_eq!(attempts.failure_summary(), "a:1, a:3: rejected; a:2: silent");
    attempts.record_failure("a:2".to_owned(), "rejected".to_owned());
    assert_eq!(attempts.failure_summary(), "a:1, a:2, a:3: rejected");
}

/// Configurations of two ranks, with a name known only to a test resolver, and rank 0's listener and port.
fn pair() -> (RendezvousConfig, RendezvousConfig, TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = |rank| RendezvousConfig::new(rank, 2, &format!("bench-0.bench:{port}")).unwrap();
    (config(0), config(1), listener, port)
}

fn member() -> JobMember {
    JobMember { host: host(), local: None }
}

/// A stream in memory with the hello of rank 1 of 2.
fn hello_sent() -> Rc<RefCell<PeerStream>> {
    let hello = Frame::Hello(1, 2, String::new(), member());
    let stream = Rc::<RefCell<PeerStream>>::default();
    stream.borrow_mut().incoming.extend(hello.encode_first());
    stream
}

#[test]
fn a_rank_that_reconnects_joins_with_its_latest_connection() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut acceptor = Acceptor::new(&zero);
    let ended = || {
        let stream = hello_sent();
        stream.borrow_mut().ended = true;
        SharedStream(stream)
    };
    // It has not reconnected yet, so the job must not start with it.
    acceptor.add_pending(ended(), now);
    acceptor.handle_readable(&[], &[true], now);
    assert_eq!(acceptor.missing_ranks().collect::<Vec<_>>(), [1]);
    assert_eq!(acceptor.last_rejection, "it closed the connection after its hello");
    let text = acceptor.timeout_message("here", Duration::from_secs(1));
    assert!(text.contains(&format!("(rank 1 came from {} and ended)", host().name)), "{text}");
    let last = hello_sent();
    acceptor.add_pending(ended(), now);
    acceptor.add_pending(SharedStream(Rc::clone(&last)), now);
    acceptor.handle_readable(&[], &[true; 2], now);
    let (accepted, _) = acceptor.joined[1].as_ref().unwrap();
    assert!(Rc::ptr_eq(&accepted.0, &last));
    assert_eq!(last.borrow().replied, Frame::Accepted.encode_first());
}

#[test]
fn keys_that_are_no_names_are_refused_and_not_printed() {
    let (zero, ..) = pair();
    for key in ["another job\nrank 0 on host here failed".to_owned(), "k".repeat(256)] {
        let stream = Rc::<RefCell<PeerStream>>::default();
        stream.borrow_mut().incoming.extend(Frame::Hello(1, 2, key, member()).encode_first());
        let mut acceptor = Acceptor::new(&zero);
        acceptor.add_pending(SharedStream(Rc::clone(&stream)), Instant::now());
        acceptor.handle_readable(&[], &[true], Instant::now());
        assert_eq!((acceptor.rejected, acceptor.last_rejection.as_str()), (1, "a key that is not a name"));
        assert!(stream.borrow().replied.is_empty());
    }
}

#[test]
fn a_stream_of_new_connections_does_not_starve_pending_ones() {
    let (zero, _, listener, port) = pair();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut first = connect();
    let _others: Vec<TcpStream> = (0..MAX_ACCEPTS + 10).map(|_| connect()).collect();
    let mut acceptor = Acceptor::new(&zero);
    let turn = Duration::from_secs(60);
    acceptor.serve_connections(&listener, turn).unwrap();
    assert_eq!(acceptor.pending.len(), MAX_ACCEPTS, "more were waiting");
    first.write_all(&Vec::from(std::mem::take(&mut hello_sent().borrow_mut().incoming))).unwrap();
    while acceptor.joined[1].is_none() {
        acceptor.serve_connections(&listener, turn).unwrap();
    }
    assert_eq!(acceptor.rejected, 0);
}

#[test]
fn only_polled_connections_are_evicted() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut acceptor = Acceptor::new(&zero);
    let honest = hello_sent();
    acceptor.add_pending(SharedStream(Rc::clone(&honest)), now);
    acceptor.evict_oldest("no connection can be accepted");
    assert_eq!(
        (acceptor.pending.len(), acceptor.last_rejection.as_str()),
        (1, "no connection can be accepted")
    );
    acceptor.add_pending(SharedStream(Rc::default()), now);
    acceptor.handle_readable(&[], &[true, false], now);
    assert_eq!(honest.borrow().replied, Frame::Accepted.encode_first());
    acceptor.evict_oldest("no connection can be accepted");
    assert!(acceptor.pending.is_empty());
}

#[test]
fn a_rank_is_rejected_while_another_holds_its_number() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut acceptor = Acceptor::new(&zero);
    let mut connect_again = || {
        let stream = hello_sent();
        acceptor.add_pending(SharedStream(Rc::clone(&stream)), now);
        // Rank 0 does not know yet that the earlier connection has closed.
        acceptor.handle_readable(&[], &[true], now);
        let mut decoder = FrameDecoder::new();
        decoder.push_bytes(&stream.borrow().replied);
        let reply = decoder.next_frame().unwrap().unwrap();
        let accepted = acceptor.joined[1].as_ref().is_some_and(|(end, _)| Rc::ptr_eq(&end.0, &stream));
        (stream, reply, accepted)
    };
    let (first, reply, accepted) = connect_again();
    assert_eq!((reply, accepted), (Frame::Accepted, true));
    let (_, reply, accepted) = connect_again();
    let twice = format!("rank 1 of 2 was started twice, on {0} and on {0}", host().name);
    assert_eq!((reply, accepted), (Frame::Rejected(twice), false));
    first.borrow_mut().ended = true;
    let (_, reply, accepted) = connect_again();
    assert_eq!((reply, accepted), (Frame::Accepted, true));
}

#[test]
fn rank_0_stops_at_a_rank_of_a_job_of_another_size() {
    let (zero, _, listener, port) = pair();
    let mut other = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    other.write_all(&Frame::Hello(1, 4, String::new(), member()).encode_first()).unwrap();
    let limit = Duration::from_secs(60);
    // At the limit the error would be another one.
    match accept_ranks(&zero, &listener, member(), limit, Instant::now() + limit) {
        Err(Error::Rendezvous(message)) => {
            assert!(message.contains("was started as one of 4 ranks but rank 0 as one of 2"), "{message}");
        }
        other => panic!("{:?}", other.map(|connected| connected.address)),
    }
}

#[test]
fn a_name_that_cannot_be_resolved_yet_is_retried() {
    let (zero, one, listener, port) = pair();
    let timeout = Duration::from_secs(60);
    let options = Options { timeout, ..Options::default() };
    let asked = Cell::new(0);
    let late = |name: &str, asked_port| {
        assert_eq!((name, asked_port), ("bench-0.bench", port));
        asked.set(asked.get() + 1);
        if asked.get() <= 3 {
            return Err(io::Error::other("Name or service not known"));
        }
        Ok(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)])
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let connected = connect_ranks(&zero, &options, Some(listener))?;
            // The other rank waits for the list of ranks.
            for (stream, _) in connected.connections.iter().flatten() {
                let mut stream: &TcpStream = stream;
                stream.write_all(&Frame::Members(connected.members.clone()).encode()).unwrap();
            }
            Ok::<_, Error>(connected)
        });
        let options = Options { timeout, ..Options::default() };
        let connected = join_rendezvous(&one, member(), &options, Instant::now() + timeout, &late).unwrap();
        assert_eq!(connected.members.len(), 2);
        assert_eq!(connected.address, format!("bench-0.bench:{port}"));
        assert_eq!(first.join().unwrap().unwrap().members.len(), 2);
    });
    assert_eq!(asked.get(), 4);
}

#[test]
fn a_name_that_cannot_be_resolved_is_reported() {
    static TOLD: Mutex<String> = Mutex::new(String::new());
    let (_, one, _listener, port) = pair();
    let limit = Duration::from_millis(100);
    let never = |_: &str, _| Err(io::Error::other("Name or service not known"));
    let tell: OnWait = |why| why.clone_into(&mut TOLD.lock().unwrap());
    let options = Options { timeout: limit, on_wait: Some(tell), ..Options::default() };
    let connected = join_rendezvous(&one, member(), &options, Instant::now() + limit, &never);
    let Err(error) = connected else { panic!("there is nobody to meet") };
    let tried = format!("tried bench-0.bench:{port}: its name cannot be resolved: Name or service not known");
    assert!(error.to_string().contains(&tried), "{error}");
    assert_eq!(format!("tried {}", TOLD.lock().unwrap()), tried, "also while it waits");
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
}
