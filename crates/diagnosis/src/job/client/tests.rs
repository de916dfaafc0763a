//! Tests against a server that speaks the protocol of RAS, or does not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, ClientFailure, ClientLimits};
use crate::job::status::{Format, Status};
use crate::job::tests::fixture;
use crate::job::watch::{Selection, watch_job};

/// Behaviour of the server on one connection.
#[derive(Clone)]
enum Script {
    /// Answers, only in text if the flag is false.
    Answer(bool, Vec<u8>),
    /// Accepts and says nothing until the client gives up.
    Silence,
    /// Closes at once.
    Close,
    /// Begins an answer, then says nothing.
    Stall(Vec<u8>),
    /// Sends this in reply to the first line.
    Reply(&'static [u8]),
    /// Sends without end.
    Flood,
}

/// Starts a server with one script per connection. The receiver gets the lines of each connection.
fn serve(scripts: Vec<Script>) -> (String, Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for script in scripts {
            let Ok((stream, _)) = listener.accept() else { return };
            let _ = sender.send(follow(stream, script));
        }
    });
    (address, receiver)
}

/// Starts a server with one script per connection, all at the same time.
fn serve_together(scripts: Vec<Script>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for script in scripts {
            let Ok((stream, _)) = listener.accept() else { return };
            thread::spawn(move || follow(stream, script));
        }
    });
    address
}

/// Follows a script, and returns the client's lines.
fn follow(mut stream: TcpStream, script: Script) -> Vec<String> {
    let mut lines = Vec::new();
    if matches!(script, Script::Close) {
        return lines;
    }
    for line in BufReader::new(stream.try_clone().unwrap()).lines() {
        let Ok(line) = line else { break };
        lines.push(line.clone());
        let sent = match (&script, line.as_str()) {
            (Script::Silence, _) => Ok(()),
            (Script::Reply(reply), _) => stream.write_all(reply),
            (Script::Flood, _) => loop {
                if let Err(error) = stream.write_all(&[b'x'; 4096]) {
                    break Err(error);
                }
            },
            (_, line) if line.starts_with("CLIENT PROTOCOL") => stream.write_all(b"SERVER PROTOCOL 2\n"),
            (_, line) if line.starts_with("TIMEOUT") => stream.write_all(b"OK\n"),
            (Script::Answer(false, _), "SET FORMAT json") => {
                stream.write_all(b"ERROR: Unknown command SET FORMAT json\n")
            }
            (_, "SET FORMAT json") => stream.write_all(b"OK\n"),
            (Script::Answer(_, body), "STATUS" | "VERBOSE STATUS") => {
                let _ = stream.write_all(body);
                break;
            }
            (Script::Stall(body), _) => stream.write_all(body),
            _ => stream.write_all(b"ERROR: Unknown command\n"),
        };
        if sent.is_err() {
            break;
        }
    }
    lines
}

fn json(name: &str) -> Script {
    Script::Answer(true, fixture(name))
}

fn client(address: &str) -> Client {
    let limits = ClientLimits {
        reply: Duration::from_millis(300),
        join: Duration::from_secs(60),
        slack: Duration::from_millis(300),
        timeout_s: 0,
        bytes: 1 << 20,
        silent: 3,
        others: 4,
        ..ClientLimits::default()
    };
    Client { address: address.to_owned(), limits }
}

/// Returns a client with time limits for a loaded machine.
fn patient(address: &str) -> Client {
    Client {
        address: address.to_owned(),
        limits: ClientLimits {
            reply: Duration::from_secs(60),
            join: Duration::from_secs(60),
            ..ClientLimits::default()
        },
    }
}

fn any(_: &Status) -> bool {
    true
}

#[test]
fn json_is_asked_for_and_nothing_else_is_sent() {
    let (address, lines) = serve(vec![json("2.30.7-ok.1.json")]);
    let poll = patient(&address).poll_job(&any).unwrap();
    assert_eq!(poll.status.communicators[0].ranks.len(), 2);
    let lines = lines.recv().unwrap();
    assert_eq!(lines, ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"]);
}

#[test]
fn a_library_without_json_is_asked_for_text() {
    let (address, lines) = serve(vec![Script::Answer(false, fixture("2.24.3-late.txt"))]);
    let poll = patient(&address).poll_job(&any).unwrap();
    assert_eq!(poll.status.format, Format::Text);
    assert_eq!(poll.status.communicators[0].ranks.len(), 16);
    assert_eq!(lines.recv().unwrap().last().unwrap(), "VERBOSE STATUS");
}

#[test]
fn a_connection_without_an_answer_is_tried_again() {
    let (address, _lines) = serve(vec![Script::Close, Script::Close, json("2.28.9-killed.json")]);
    let poll = patient(&address).poll_job(&any).unwrap();
    assert_eq!((poll.tries.silent, poll.status.repaired), (2, true));
}

#[test]
fn one_process_that_answers_is_found_among_stopped_ones_that_accept() {
    let mut scripts = vec![Script::Silence; 5];
    scripts.push(json("2.30.7-ok.1.json"));
    // More scripts than connections opened before the answer, on a loaded machine.
    scripts.extend(vec![Script::Silence; 200]);
    let address = serve_together(scripts);
    let mut client = patient(&address);
    client.limits.join = Duration::from_millis(20);
    client.limits.silent = 100;
    let begin = Instant::now();
    let poll = client.poll_job(&any).unwrap();
    assert_eq!(poll.status.communicators[0].ranks.len(), 2);
    assert_eq!(poll.tries.silent, 5);
    assert!(begin.elapsed() < client.limits.reply, "it waited for a silent one");
}

#[test]
fn silent_connections_are_waited_for_together() {
    let address = serve_together(vec![Script::Silence; 8]);
    let mut client = patient(&address);
    client.limits = ClientLimits {
        reply: Duration::from_secs(2),
        join: Duration::from_millis(1),
        silent: 8,
        ..client.limits
    };
    let begin = Instant::now();
    let unanswered = client.poll_job(&any).unwrap_err();
    assert!(matches!(unanswered.failure, ClientFailure::Silent(_)), "{}", unanswered.failure);
    assert_eq!(unanswered.tries.silent, 8);
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let (address, _lines) = serve(vec![Script::Silence; 3]);
    let begin = Instant::now();
    let unanswered = client(&address).poll_job(&any).unwrap_err();
    assert!(matches!(unanswered.failure, ClientFailure::Silent(_)), "{}", unanswered.failure);
    assert_eq!(unanswered.tries.silent, 3);
    assert!(begin.elapsed() >= Duration::from_millis(900));
    assert!(unanswered.failure.advice().contains("ss -ltnp"));
}

#[test]
fn an_answer_that_stalls_is_given_up() {
    let (address, _lines) = serve(vec![Script::Stall(b"{ \"nccl".to_vec()); 3]);
    let unanswered = client(&address).poll_job(&any).unwrap_err();
    assert!(
        matches!(unanswered.failure, ClientFailure::Stalled(_) | ClientFailure::Silent(_)),
        "{}",
        unanswered.failure
    );
}

#[test]
fn a_flood_ends_at_the_limit() {
    let (address, _lines) = serve(vec![Script::Flood]);
    let unanswered = patient(&address).poll_job(&any).unwrap_err();
    assert!(matches!(unanswered.failure, ClientFailure::Unexpected(_)), "{}", unanswered.failure);

    let (address, _lines) = serve(vec![Script::Answer(true, vec![b' '; 3 << 20])]);
    let mut client = patient(&address);
    client.limits.bytes = 1 << 20;
    let unanswered = client.poll_job(&any).unwrap_err();
    assert!(matches!(unanswered.failure, ClientFailure::TooLong(_)), "{}", unanswered.failure);
}

#[test]
fn another_program_at_the_port_is_told() {
    let (address, _lines) = serve(vec![Script::Reply(b"HTTP/1.1 400 Bad Request\r\n\x1b[31m\r\n")]);
    let unanswered = patient(&address).poll_job(&any).unwrap_err();
    assert_eq!(unanswered.failure.to_string(), "the reply is not from RAS: `HTTP/1.1 400 Bad Request`");
    let (address, _lines) = serve(vec![Script::Answer(true, b"{}".to_vec())]);
    let unanswered = patient(&address).poll_job(&any).unwrap_err();
    assert!(
        unanswered.failure.to_string().contains("missing field `nccl_version`"),
        "{}",
        unanswered.failure
    );
}

#[test]
fn nothing_that_listens_is_told_at_once() {
    // No program may listen at the first port.
    let unanswered = patient("127.0.0.1:1").poll_job(&any).unwrap_err();
    assert!(matches!(unanswered.failure, ClientFailure::NotListening(_)), "{}", unanswered.failure);
    assert!(unanswered.failure.advice().contains("older than 2.24"));
}

#[test]
fn another_job_that_answers_is_asked_past() {
    let (address, _lines) = serve(vec![
        json("2.30.7-absent.json"),
        json("2.30.7-ok.1.json"),
        json("2.30.7-absent.json"),
        json("2.30.7-ok.2.json"),
    ]);
    let selection = Selection { pid: Some(4543), communicator: None };
    let watch = watch_job(&patient(&address), &selection, Duration::ZERO, &mut |_| ()).unwrap();
    let second = watch.second.unwrap();
    assert_eq!((watch.first.tries.others, second.tries.others), (1, 1));
    assert_eq!(second.status.communicators[0].ranks[0].counts["AllReduce"], 4422);
}

#[test]
fn the_second_answer_is_about_the_same_job_without_a_selection() {
    let (address, _lines) =
        serve(vec![json("2.30.7-ok.1.json"), json("2.30.7-absent.json"), json("2.30.7-ok.2.json")]);
    let watch = watch_job(&patient(&address), &Selection::default(), Duration::ZERO, &mut |_| ()).unwrap();
    assert_eq!(watch.second.unwrap().tries.others, 1);
}

#[test]
fn only_other_jobs_are_named() {
    let (address, _lines) = serve(vec![json("2.30.7-absent.json"); 4]);
    let mut client = patient(&address);
    client.limits.others = 4;
    let unanswered = client.poll_job(&|_| false).unwrap_err();
    let text = unanswered.failure.to_string();
    assert_eq!(text, "only other jobs answer: communicator 0xb67645b31b895d33 with processes 4857, 4858");
}
