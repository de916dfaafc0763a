use super::*;
use crate::world::recovery::agreement::agree_on_world;
use crate::world::recovery::question::{self, View};
use crate::world::recovery::site::Site;
use crate::world::recovery::table::{Introduced, JobProcess};
use crate::world::{Error, Rejoin};
use proptest::prelude::*;

/// A stream with some received bytes, in pieces, that takes up to `room` bytes at a time.
struct Script {
    pieces: VecDeque<Vec<u8>>,
    written: Vec<u8>,
    room: usize,
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.pieces.pop_front() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        Ok(count)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = bytes.len().min(self.room);
        self.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn conversation(pieces: impl IntoIterator<Item = Vec<u8>>, room: usize) -> Conversation<Script> {
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    Conversation::new(Script { pieces, written: Vec::new(), room }, Instant::now())
}

fn question(process: u32, key: &str) -> Vec<u8> {
    Frame::AskShrink(process, key.to_owned()).encode_first()
}

fn ask(service: &Service, process: u32, key: &str) -> Frame {
    let mut one = conversation([question(process, key)], usize::MAX);
    assert!(!one.advance_reply(service), "it ends with the answer");
    let mut decoder = FrameDecoder::new();
    decoder.push_bytes(&one.stream.written);
    decoder.next_frame().unwrap().unwrap()
}

#[test]
fn a_process_is_told_the_state_of_its_own_job_only() {
    let service = Service::new(1);
    service.set_state("ours", 2, ProcessState::Idle);
    assert_eq!(ask(&service, 2, "ours"), Frame::NotCalling);
    assert_eq!(ask(&service, 1, "ours"), Frame::NotKnown);
    assert_eq!(ask(&service, 2, "theirs"), Frame::NotKnown);
    service.set_state("ours", 2, ProcessState::Calling);
    assert_eq!(ask(&service, 2, "ours"), Frame::Calling);
    let decision = |formed| Decision { formed, port: 9, key: "new".to_owned(), members: vec![0, 2] };
    service.set_state("ours", 2, ProcessState::Decided(decision(true)));
    assert_eq!(ask(&service, 2, "ours"), Frame::Decided(1, 9, "new".to_owned(), vec![0, 2]));
    // The formed world of others stays known; an unformed one does not.
    service.leave_job("ours");
    assert_eq!(ask(&service, 2, "ours"), Frame::Decided(1, 9, "new".to_owned(), vec![0, 2]));
    service.set_state("ours", 2, ProcessState::Decided(decision(false)));
    service.leave_job("ours");
    assert_eq!(ask(&service, 2, "ours"), Frame::HasLeft);
}

#[test]
fn a_process_that_is_told_that_others_go_on_is_out() {
    let service = Service::new(1);
    service.set_state("ours", 2, ProcessState::Idle);
    let tell = |process| {
        let news = Frame::GoneOn(process, "ours".to_owned(), 3).encode_first();
        assert!(!conversation([news], usize::MAX).advance_reply(&service));
    };
    tell(1);
    assert_eq!((service.gone_on("ours"), ask(&service, 2, "ours")), (None, Frame::NotCalling));
    tell(2);
    service.set_state("ours", 2, ProcessState::Calling);
    assert_eq!((service.gone_on("ours"), ask(&service, 2, "ours")), (Some(3), Frame::HasLeft));
}

/// Process number `rank` of a job with a rank per process on this host.
fn process(rank: usize, port: u16) -> JobProcess {
    let (host, addresses) = (crate::world::host(), vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    JobProcess { first: rank, ranks: 1, host, loopback: String::new(), addresses, port }
}

#[test]
fn a_process_reads_the_news_of_those_that_have_ended() {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (listener, ended) = (listen(), listen());
    listener.set_nonblocking(true).unwrap();
    let ports = [ended.local_addr().unwrap().port(), listener.local_addr().unwrap().port()];
    let service = Arc::new(Service::new(ports[1]));
    let (key, processes) = ("reads the news".to_owned(), vec![process(0, ports[0]), process(1, ports[1])]);
    // Process 0 informs process 1, while the service there does not run, and ends.
    question::tell_gone_on(&processes[1], 1, &key, 1);
    drop(ended);
    let introduced = Introduced { key, processes, me: 1, thread: 0, rejoin: Rejoin::default() };
    let site = Site::of_process(introduced, Some(Arc::clone(&service)));
    let agreed = thread::spawn(|| agree_on_world(site, 1, Duration::from_secs(60)).map(|ranks| ranks.len()));
    // Leads, unless it waits for the service.
    thread::spawn(move || run_service(&service, &listener));
    let agreed = agreed.join().unwrap();
    assert!(matches!(&agreed, Err(Error::LeftOut(text)) if text.contains("1 of the 2")), "{agreed:?}");
}

#[test]
fn strangers_neither_stop_nor_fill_the_service() {
    let service = Service::of_process(true).unwrap();
    let key = "strangers_neither_stop_nor_fill_the_service";
    service.set_state(key, 0, ProcessState::Calling);
    let address = (Ipv4Addr::LOCALHOST, service.port);
    let connections: Vec<TcpStream> = (0..MAX_CONNECTIONS + 50)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Fails if the service has closed the connection already.
            let _ = stream.write_all(match number % 3 {
                0 => b"GET / HTTP/1.1\r\n\r\n",
                1 => b"NCCLbnch",
                _ => b"",
            });
            stream
        })
        .collect();
    let process = process(0, service.port);
    assert_eq!(question::ask_process(&process, 0, key, 2), View::State(ProcessState::Calling));
    drop(connections);
    assert_eq!(question::ask_process(&process, 0, key, 2), View::State(ProcessState::Calling));
    service.leave_job(key);
    assert_eq!(question::ask_process(&process, 0, key, 2), View::Gone);
}

#[test]
fn a_question_may_come_in_pieces_and_an_answer_go_in_pieces() {
    let service = Service::new(1);
    service.set_state("ours", 0, ProcessState::Calling);
    let bytes = question(0, "ours");
    let mut one = conversation(bytes.chunks(3).map(<[u8]>::to_vec), 0);
    for _ in 0..bytes.len().div_ceil(3) {
        assert!(one.advance_reply(&service));
    }
    assert!(!one.reply.is_empty(), "the question is complete");
    assert!(one.advance_reply(&service), "nothing can be written");
    one.stream.room = 1;
    assert!(!one.advance_reply(&service));
    assert_eq!(one.stream.written, Frame::Calling.encode_first());
}

proptest! {
    /// Strangers get no state of a job, and keep no more bytes than a question has.
    #[test]
    fn strangers_learn_nothing(
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 0..8),
        preamble in any::<bool>(),
    ) {
        let service = Service::new(1);
        service.set_state("ours", 0, ProcessState::Calling);
        let begin = if preamble { Frame::Heartbeat.encode_first()[..10].to_vec() } else { Vec::new() };
        let mut one = conversation([begin].into_iter().chain(garbage.clone()), usize::MAX);
        for _ in 0..10 {
            let goes_on = one.advance_reply(&service);
            prop_assert!(one.decoder.buffered_len() <= 3 * MAX_HELLO);
            if !goes_on {
                break;
            }
        }
        prop_assert!(one.stream.written.is_empty() || one.stream.written == Frame::NotKnown.encode_first());
    }
}
