//! A rank that is killed while the others are inside a collective. Each rank is a process: this program
//! again, with its rank in the environment. They exchange lines with the test over standard input and output.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio, exit};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Shrink, UniqueId};

use crate::collectives::works;
use crate::copies::Copies as _;
use crate::gpus::{Gpus, missing};

const RANK: &str = "GPU_NCCL_RANK";
/// Rank that is killed.
const VICTIM: &str = "GPU_NCCL_VICTIM";
/// Time limit for a rank's next line.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time after which a rank assumes that its collective will not end.
const SUSPICION: Duration = Duration::from_secs(2);

/// Lines that rank processes and the test exchange.
mod line {
    /// Followed by the unique id.
    pub(super) const ID: &str = "rank says id ";
    /// All ranks have worked together.
    pub(super) const CONNECTED: &str = "rank says connected";
    /// The collective that cannot end has been queued.
    pub(super) const INSIDE: &str = "rank says inside";
    /// The remaining ranks have worked together.
    pub(super) const RECOVERED: &str = "rank says recovered";
}

/// Runs the rank and never returns, if this process is a rank of this test.
pub(crate) fn run_if_rank() {
    let number = |name| env::var(name).ok()?.parse().ok();
    if let (Some(rank), Some(victim)) = (number(RANK), number(VICTIM)) {
        // SAFETY: plain numbers; from now on this process ends with the thread that started it.
        let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        assert_eq!(code, 0);
        rank_process(rank, victim);
        exit(0);
    }
}

fn tell(words: impl Display) {
    let mut output = io::stdout().lock();
    writeln!(output, "{words}").unwrap();
    output.flush().unwrap();
}

fn listen() -> String {
    let mut text = String::new();
    io::stdin().lock().read_line(&mut text).unwrap();
    assert!(!text.is_empty(), "the test has ended");
    text.trim_end().to_owned()
}

fn rank_process(rank: usize, victim: usize) {
    const LEN: usize = 1 << 20;
    let gpus = Gpus::all();
    if rank == 0 {
        let id = UniqueId::new(gpus.library).unwrap();
        tell(format!("{}{}", line::ID, hex(id.as_bytes())));
    }
    let id = UniqueId::from_bytes(from_hex(&listen()));
    // The same on all ranks.
    let seed = id.as_bytes().iter().fold(0, |seed: u64, &byte| seed.rotate_left(5) ^ u64::from(byte));
    let (stream, size) = (gpus.stream(rank), gpus.count);
    let communicator = gpus.rank(&stream, rank).id(&id).init().unwrap();
    works(&communicator, seed);
    let mut buffer = stream.clone_htod(&vec![1.0f32; LEN]).unwrap();
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(stream.read(&buffer) == vec![size as f32; LEN]);
    tell(line::CONNECTED);
    listen();
    if rank == victim {
        // Killed here.
        listen();
        panic!("nobody has killed rank {rank}");
    }
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let end = stream.record_event(None).unwrap();
    tell(line::INSIDE);
    listen();
    let suspicious = Instant::now() + SUSPICION;
    while Instant::now() < suspicious {
        assert!(!end.try_is_complete().unwrap(), "a rank has not taken part");
        thread::sleep(Duration::from_millis(10));
    }
    tell(format!("NCCL itself says {:?}", communicator.async_error()));
    let rest = communicator.shrink(&Shrink::without(&[victim]).abort());
    if !gpus.has("ncclCommShrink") {
        missing(rest, "ncclCommShrink");
    } else {
        let rest = rest.unwrap();
        let new_rank = if rank < victim { rank } else { rank - 1 };
        assert_eq!((rest.rank(), rest.size()), (new_rank, size - 1));
        let mut buffer = stream.clone_htod(&vec![rank as f32; LEN]).unwrap();
        rest.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let sum = (0..size).filter(|&rank| rank != victim).sum::<usize>();
        assert!(stream.read(&buffer) == vec![sum as f32; LEN]);
        works(&rest, !seed);
        rest.close().unwrap();
    }
    communicator.abort_handle().abort().unwrap();
    tell(line::RECOVERED);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> [u8; UniqueId::BYTES] {
    std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..][..2], 16).unwrap())
}

/// A rank's process, killed when the test ends.
struct Rank {
    number: usize,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Rank {
    fn start(number: usize, victim: usize) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(RANK, number.to_string())
            .env(VICTIM, victim.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { number, child, input, lines }
    }

    fn tell(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap();
    }

    /// Waits for a line with this prefix, prints all others, and returns the rest of the line.
    #[track_caller]
    fn wait_for(&self, beginning: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => match line.strip_prefix(beginning) {
                    Some(rest) => return rest.to_owned(),
                    None => println!("  rank {}: {}", self.number, line.trim_start()),
                },
                Err(error) => panic!("rank {}: {error} before it said '{beginning}'", self.number),
            }
        }
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let limit = Instant::now() + PATIENCE;
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("rank {} does not end", self.number);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both fail if the process has ended.
        let _ended = (self.child.kill(), self.child.wait());
    }
}

fn death_of(victim: impl Fn(usize) -> usize) {
    let gpus = Gpus::all();
    let victim = victim(gpus.count);
    println!("  rank {victim} will die");
    let mut ranks: Vec<_> = (0..gpus.count).map(|rank| Rank::start(rank, victim)).collect();
    let id = ranks[0].wait_for(line::ID);
    ranks.iter_mut().for_each(|rank| rank.tell(&id));
    ranks.iter().for_each(|rank| drop(rank.wait_for(line::CONNECTED)));
    ranks.iter_mut().for_each(|rank| rank.tell("go on"));
    let others = |rank: &&mut Rank| rank.number != victim;
    ranks.iter_mut().filter(others).for_each(|rank| drop(rank.wait_for(line::INSIDE)));
    ranks[victim].child.kill().unwrap();
    assert_eq!(ranks[victim].end().signal(), Some(9));
    ranks.iter_mut().filter(others).for_each(|rank| rank.tell("go on"));
    for rank in ranks.iter_mut().filter(others) {
        rank.wait_for(line::RECOVERED);
        let status = rank.end();
        assert!(status.success(), "rank {}: {status}", rank.number);
    }
}

pub(crate) fn shrink_after_the_death_of_the_last_rank() {
    death_of(|ranks| ranks - 1);
}

/// The rank that has created the id.
pub(crate) fn shrink_after_the_death_of_rank_0() {
    death_of(|_| 0);
}
