//! The locks of a capture, under which nothing is dropped that can be the program's.

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Memory};

use crate::fake::{Fake, Knob};
use crate::subscriber::EventSubscriber;

/// Time after which a thread is taken for stuck.
const LIMIT: Duration = Duration::from_secs(300);

fn capture(communicator: &Communicator, memory: &mut Memory) -> Result<Graph, Error> {
    Graph::capture(|capture| {
        capture.on(communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
    })
}

fn drop_scaled_sums_during_captures(round: u32) {
    let fake = Fake::new();
    fake.set(Knob::OnlyMistakes, 1);
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let mut prepare = || {
        let sum = communicator.scaled_sum(2.0_f32)?;
        communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, &sum))
    };
    let mut lists: Vec<_> = (0..240).map(|_| prepare()).collect::<Result<_, Error>>().unwrap();
    for attempt in 0..12 {
        let go = Arc::new(Barrier::new(2));
        let dropped = lists.split_off(lists.len() - 20);
        let delay = Duration::from_micros(u64::from((round * 7 + attempt * 13) % 120));
        let other = thread::spawn({
            let go = Arc::clone(&go);
            move || {
                go.wait();
                let start = Instant::now();
                while start.elapsed() < delay {
                    std::hint::spin_loop();
                }
                drop(dropped);
            }
        });
        go.wait();
        drop(capture(&communicator, &mut memory).unwrap());
        other.join().unwrap();
    }
}

/// The last owner of a scaled sum calls NCCL under the communicator's lock, which the capture holds.
#[test]
fn scaled_sums_can_be_dropped_by_another_thread_during_a_capture() {
    let (ended, end) = mpsc::channel();
    // Not scoped: a thread that waits for its own lock never ends.
    thread::spawn(move || {
        (0..12).for_each(drop_scaled_sums_during_captures);
        ended.send(()).unwrap();
    });
    end.recv_timeout(LIMIT).expect("the capture waits for its own lock");
}

/// The warning about a graph that cannot be destroyed comes without the lock that an abort takes.
#[test]
fn a_subscriber_can_abort_when_a_captured_graph_fails() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let abort = communicator.abort_handle();
    fake.set(Knob::WaitsFail, 1);
    fake.set(Knob::DisposalResult, 1);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let subscriber = EventSubscriber(move || abort.abort().unwrap());
        let result = tracing::subscriber::with_default(subscriber, || capture(&communicator, &mut memory));
        ended.send((result.map(drop), communicator, memory)).unwrap();
    });
    let (result, communicator, memory) =
        end.recv_timeout(LIMIT).expect("the subscriber waits for the lock of the graphs");
    fake.set(Knob::WaitsFail, 0);
    assert!(matches!(result, Err(Error::Cuda { .. })), "{result:?}");
    drop((communicator, memory));
    fake.log();
}
