use super::acceptor::{MOST_AT_ONCE, Reception};
use super::address::ranges;
use super::joiner::{Attempts, join};
use super::*;
use crate::world::OnWait;
use crate::world::tcp::fuzz::{End, Wire};
use crate::world::tcp::wire::{Answer, Frame, Greeting};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

#[test]
fn ranges_are_written_as_people_do() {
    assert_eq!(ranges(&[1]), "1");
    assert_eq!(ranges(&[1, 2]), "1, 2");
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8, 9]), "0-2, 5, 7-9");
    assert_eq!(ranges(&[]), "");
}

#[test]
fn addresses_that_failed_alike_are_told_together() {
    let mut attempts = Attempts::default();
    attempts.note("a:1".to_owned(), "refused".to_owned());
    attempts.note("a:2".to_owned(), "silent".to_owned());
    attempts.note("a:3".to_owned(), "refused".to_owned());
    assert_eq!(attempts.summary(), "a:1, a:3: refused; a:2: silent");
    attempts.note("a:2".to_owned(), "refused".to_owned());
    assert_eq!(attempts.summary(), "a:1, a:2, a:3: refused");
}

/// Two ranks of which rank 0 listens, with an address that only the resolver of a test knows.
fn pair() -> (Place, Place, TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let place = |rank| Place::new(rank, 2, &format!("bench-0.bench:{port}")).unwrap();
    (place(0), place(1), listener, port)
}

fn member() -> Member {
    Member { host: host(), local: None }
}

/// A connection in memory over which rank 1 of 2 has said its greeting.
fn greeted() -> Rc<RefCell<Wire>> {
    let greeting = Greeting { rank: 1, size: 2, key: String::new(), member: member() };
    let wire = Rc::<RefCell<Wire>>::default();
    wire.borrow_mut().incoming.extend(greeting.encode());
    wire
}

#[test]
fn a_rank_that_gave_up_and_came_again_is_seated_with_its_last_connection() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut reception = Reception::new(&zero);
    let ended = || {
        let wire = greeted();
        wire.borrow_mut().ended = true;
        End(wire)
    };
    // There is none behind it yet: the job must not start with it.
    reception.take_in(ended(), now);
    reception.attend(&[], &[true], now);
    assert_eq!(reception.missing().collect::<Vec<_>>(), [1]);
    assert_eq!(reception.last_refusal, "it ended after its greeting");
    let text = reception.given_up("here", Duration::from_secs(1));
    assert!(text.contains(&format!("(rank 1 came from {} and ended)", host().name)), "{text}");
    let last = greeted();
    reception.take_in(ended(), now);
    reception.take_in(End(Rc::clone(&last)), now);
    reception.attend(&[], &[true; 2], now);
    let (seated, _) = reception.joined[1].as_ref().unwrap();
    assert!(Rc::ptr_eq(&seated.0, &last));
    assert_eq!(last.borrow().answered, Answer::Accepted.encode());
}

#[test]
fn connections_that_come_without_end_keep_nobody_from_being_heard() {
    let (zero, _, listener, port) = pair();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut first = connect();
    let _others: Vec<TcpStream> = (0..MOST_AT_ONCE + 10).map(|_| connect()).collect();
    let mut reception = Reception::new(&zero);
    let turn = Duration::from_secs(60);
    reception.serve(&listener, turn).unwrap();
    assert_eq!(reception.pending.len(), MOST_AT_ONCE, "more were waiting");
    first.write_all(&Vec::from(std::mem::take(&mut greeted().borrow_mut().incoming))).unwrap();
    while reception.joined[1].is_none() {
        reception.serve(&listener, turn).unwrap();
    }
    assert_eq!(reception.refused, 0);
}

#[test]
fn only_who_was_listened_to_makes_room() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut reception = Reception::new(&zero);
    let honest = greeted();
    reception.take_in(End(Rc::clone(&honest)), now);
    reception.evict("no connection can be accepted");
    assert_eq!(
        (reception.pending.len(), reception.last_refusal.as_str()),
        (1, "no connection can be accepted")
    );
    reception.take_in(End(Rc::default()), now);
    reception.attend(&[], &[true, false], now);
    assert_eq!(honest.borrow().answered, Answer::Accepted.encode());
    reception.evict("no connection can be accepted");
    assert!(reception.pending.is_empty());
}

#[test]
fn a_seat_is_taken_while_its_rank_lives() {
    let (zero, ..) = pair();
    let now = Instant::now();
    let mut reception = Reception::new(&zero);
    let mut come = || {
        let wire = greeted();
        reception.take_in(End(Rc::clone(&wire)), now);
        // Rank 0 has not heard yet that the one with the seat has ended.
        reception.attend(&[], &[true], now);
        let answer = Answer::decode(&wire.borrow().answered).unwrap().unwrap().0;
        let seated = reception.joined[1].as_ref().is_some_and(|(end, _)| Rc::ptr_eq(&end.0, &wire));
        (wire, answer, seated)
    };
    let (first, answer, seated) = come();
    assert_eq!((answer, seated), (Answer::Accepted, true));
    let (_, answer, seated) = come();
    let twice = format!("rank 1 of 2 was started twice, on {0} and on {0}", host().name);
    assert_eq!((answer, seated), (Answer::Refused(twice), false));
    first.borrow_mut().ended = true;
    let (_, answer, seated) = come();
    assert_eq!((answer, seated), (Answer::Accepted, true));
}

#[test]
fn a_name_that_is_not_known_yet_is_asked_for_again() {
    let (zero, one, listener, port) = pair();
    let patience = Duration::from_secs(60);
    let options = Options { timeout: patience, ..Options::default() };
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
            let met = meet(&zero, &options, Some(listener))?;
            // What a world does first, and what the other rank waits for.
            for (stream, _) in met.connections.iter().flatten() {
                let mut stream: &TcpStream = stream;
                stream.write_all(&Frame::Members(met.members.clone()).encode()).unwrap();
            }
            Ok::<_, Error>(met)
        });
        let options = Options { timeout: patience, ..Options::default() };
        let met = join(&one, member(), &options, Instant::now() + patience, &late).unwrap();
        assert_eq!(met.members.len(), 2);
        assert_eq!(met.address, format!("bench-0.bench:{port}"));
        assert_eq!(first.join().unwrap().unwrap().members.len(), 2);
    });
    assert_eq!(asked.get(), 4);
}

#[test]
fn a_name_that_nobody_knows_is_told() {
    static TOLD: Mutex<String> = Mutex::new(String::new());
    let (_, one, _listener, port) = pair();
    let limit = Duration::from_millis(100);
    let never = |_: &str, _| Err(io::Error::other("Name or service not known"));
    let tell: OnWait = |why| why.clone_into(&mut TOLD.lock().unwrap());
    let options = Options { timeout: limit, on_wait: Some(tell), ..Options::default() };
    let met = join(&one, member(), &options, Instant::now() + limit, &never);
    let Err(error) = met else { panic!("there is nobody to meet") };
    let tried = format!("tried bench-0.bench:{port}: its name cannot be resolved: Name or service not known");
    assert!(error.to_string().contains(&tried), "{error}");
    assert_eq!(format!("tried {}", TOLD.lock().unwrap()), tried, "also while it waits");
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
}
