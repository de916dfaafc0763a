//! A future of an operation that is called while another thread of the rank exchanges messages.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::job::Group;
use collectives::nccl::{Collectives, Communicator};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::fake::{Fake, Knob};
use crate::jobs::on_gpus;

/// Time limit of a wake, which takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// Sends a message for each wake.
struct Sender(mpsc::Sender<()>);

impl Wake for Sender {
    fn wake(self: Arc<Self>) {
        let _ended = self.0.send(());
    }
}

/// Two ranks of a communicator on two devices, the first one on the group's. An operation of the first one is
/// under way until the second one calls it.
fn two_ranks(fake: &Fake, streams: &[Arc<CudaStream>; 2]) -> [Communicator; 2] {
    let id = fake.id();
    thread::scope(|scope| {
        let made = [0, 1].map(|rank| {
            let (id, stream, library) = (&id, &streams[rank], fake.library());
            scope.spawn(move || Communicator::builder(library, stream).rank(rank, 2).id(id).init().unwrap())
        });
        made.map(|thread| thread.join().unwrap())
    })
}

/// Calls an operation, which is inside NCCL while another thread runs `meanwhile`. It waits for `buffer`'s
/// earlier use.
fn wakes(fake: &Fake, group: &Group, buffer: CudaSlice<f32>, meanwhile: impl FnOnce(), end: impl FnOnce()) {
    fake.set(Knob::CallMillis, -1);
    let work = thread::scope(|scope| {
        let (starts, started) = mpsc::channel();
        let call = scope.spawn(move || {
            starts.send(()).unwrap();
            group.all_reduce(buffer, Sum)
        });
        started.recv().unwrap();
        thread::sleep(Duration::from_millis(100));
        meanwhile();
        fake.set(Knob::CallMillis, 0);
        call.join().unwrap()
    });
    let (sender, woken) = mpsc::channel();
    let waker = Arc::new(Sender(sender)).into();
    let mut work = pin!(work);
    assert!(work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    end();
    woken.recv_timeout(LIMIT).unwrap();
    assert!(work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn an_exchange_of_another_thread_does_not_keep_an_operation_from_waking_its_future() {
    for exchanges in [false, true] {
        let fake = Fake::new();
        on_gpus(&fake, 1, |group| {
            let context = group.context().unwrap();
            let streams = [context.new_stream().unwrap(), CudaContext::new(1).unwrap().new_stream().unwrap()];
            let ranks = two_ranks(&fake, &streams);
            let [mut buffer, mut other] = [0, 1].map(|rank| streams[rank].clone_htod(&[1.0_f32; 8]).unwrap());
            ranks[0].all_reduce_in_place(&mut buffer, Sum).unwrap();
            let exchange = || {
                if exchanges {
                    assert_eq!(group.all_gather_bytes(b"hello").unwrap(), [b"hello"]);
                }
            };
            wakes(&fake, group, buffer, exchange, || ranks[1].all_reduce_in_place(&mut other, Sum).unwrap());
            // The last rank waits for the other one.
            thread::scope(|scope| ranks.map(|rank| _ = scope.spawn(|| drop(rank))));
        });
    }
}
