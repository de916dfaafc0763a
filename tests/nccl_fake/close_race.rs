//! Communicators that another thread closes while a graph of theirs is being made.

use std::sync::mpsc;
use std::thread;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph};

use crate::fake::{Fake, Knob};

/// The other thread closes the communicator during the capture, or before the graph is complete. Several
/// times, since the order of the threads is not known: none may end the communicator before its graph.
#[test]
fn a_graph_is_known_to_a_communicator_that_another_thread_closes() {
    let fake = Fake::new();
    for _ in 0..25 {
        let communicator = fake.communicator(&Config::new());
        let mut memory = fake.memory(communicator.stream(), 8);
        let (close, closes) = mpsc::channel();
        let closing = thread::spawn(move || closes.recv().map(Communicator::close));
        fake.set(Knob::CallMillis, 2);
        let graph: Result<Graph, Error> = Graph::capture(|capture| {
            capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)?;
            close.send(communicator).unwrap();
            Ok(())
        });
        let closed = closing.join().unwrap().unwrap();
        fake.set(Knob::CallMillis, 0);
        assert!(closed.is_ok(), "{closed:?}");
        let launched = graph.and_then(|graph| graph.launch());
        assert!(matches!(launched, Err(Error::Aborted { .. } | Error::Unusable { .. })), "{launched:?}");
        let log = fake.log_with_bugs();
        assert!(!log.iter().any(|line| line.contains("BUG")), "{log:#?}");
    }
}
