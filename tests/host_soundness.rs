//! Safe programs on host buffers that could break memory: panics, foreign addresses, and extreme options.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::fabric::rdm::{self, Endpoint};
use collectives::fabric::{Algorithm, Collective, Communicator};
use collectives::world::{self, Error, Handle, Position, Reason, World};

#[allow(dead_code, reason = "shared with the tests of communicators, which use all of it")]
mod host;

use host::{on_every_rank, over};

/// A program's own world whose checks panic from some time on, as with a poisoned lock.
struct PanickingWorld {
    world: Handle,
    panics: AtomicBool,
    /// True if reports of a failure panic, too: no other rank learns of it.
    reports_panic: bool,
    has_panicked: AtomicBool,
}

impl PanickingWorld {
    fn new(world: Handle, reports_panic: bool) -> Arc<Self> {
        let (panics, has_panicked) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { world, panics, reports_panic, has_panicked })
    }

    fn panic_on_demand(&self) {
        if self.panics.load(Ordering::SeqCst) {
            self.has_panicked.store(true, Ordering::SeqCst);
            panic!("a panic of the program's world");
        }
    }
}

impl World for PanickingWorld {
    fn position(&self) -> Position {
        self.world.position()
    }

    fn describe(&self) -> String {
        self.world.describe()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.world.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.world.all_gather(mine)
    }

    fn check(&self) -> Result<(), Error> {
        self.panic_on_demand();
        self.world.check()
    }

    fn fail(&self, reason: Reason) {
        if self.reports_panic {
            self.panic_on_demand();
        }
        self.world.fail(reason);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.world.abort(code, message)
    }
}

/// With cross-memory attach, the receiver reads a buffer that is the sender's again after a panic.
#[test]
fn a_message_of_a_rank_that_panicked_is_not_taken_for_what_it_sent() {
    let mut worlds = world::threads(world::single(), 2).unwrap();
    let (receiving, sending) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    let (refill, refilled) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let own = PanickingWorld::new(sending, false);
            let mut communicator = Communicator::new(Arc::clone(&own) as Handle, &over("shm")).unwrap();
            let mut data = vec![1_u32; 4 << 20];
            communicator.exchange(&[1_u8], 1, &mut [0], 1).unwrap();
            own.panics.store(true, Ordering::SeqCst);
            let error = communicator.send(&data, 1).unwrap_err().to_string();
            assert!(error.contains("failed: World::check of the program's own world panicked"), "{error}");
            data.fill(2);
            refill.send(()).unwrap();
            // The buffer is there until the receiver is done with it.
            ended.recv().unwrap();
        });
        scope.spawn(move || {
            let mut communicator = Communicator::new(receiving, &over("shm")).unwrap();
            let mut data = vec![0_u32; 4 << 20];
            communicator.exchange(&[1_u8], 0, &mut [0], 0).unwrap();
            communicator.set_timeout(Some(Duration::from_secs(60)));
            refilled.recv().unwrap();
            let result = communicator.recv(&mut data, 0);
            end.send(()).unwrap();
            assert!(
                result.is_err(),
                "Ok with {} other elements",
                data.iter().filter(|&&value| value != 1).count()
            );
        });
    });
}

#[test]
fn operations_end_when_the_world_panics_on_the_progress_thread() {
    use collectives::job::{Backend, Job};
    let worlds = world::threads(world::single(), 2).unwrap();
    let (end, ended) = mpsc::channel();
    for world in worlds {
        let end = end.clone();
        thread::spawn(move || {
            let own = PanickingWorld::new(world, true);
            let group = Job::new(Arc::clone(&own) as Handle).group(Backend::Host).unwrap();
            group.barrier().unwrap();
            own.panics.store(true, Ordering::SeqCst);
            let works = [0, 1, 2].map(|_| group.all_reduce(vec![1.0_f32; 8], ReduceOp::Sum));
            end.send(works.map(|work| work.wait().is_err())).unwrap();
        });
    }
    for _ in 0..2 {
        assert_eq!(
            ended.recv_timeout(Duration::from_secs(10)).expect("an operation never returns"),
            [true; 3]
        );
    }
}

/// The shm provider writes into endpoints of the process where they are: one is closed with those of the
/// other ranks only.
#[test]
fn an_endpoint_stays_open_for_the_others_when_the_world_panics_in_its_drop() {
    let worlds = world::threads(world::single(), 3).unwrap();
    let gone = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        for (rank, world) in worlds.into_iter().enumerate() {
            let gone = &gone;
            scope.spawn(move || {
                let own = PanickingWorld::new(world, false);
                let mut communicator = Communicator::new(Arc::clone(&own) as Handle, &over("shm")).unwrap();
                // Connects them.
                if rank == 0 {
                    for from in [1, 2] {
                        communicator.recv(&mut [0_u8], from).unwrap();
                    }
                } else {
                    communicator.send(&[1_u8], 0).unwrap();
                }
                communicator.barrier().unwrap();
                own.panics.store(rank == 0, Ordering::SeqCst);
                if rank == 0 {
                    drop(communicator);
                    assert!(own.has_panicked.load(Ordering::SeqCst), "the drop has not called the world");
                    gone.wait();
                    gone.wait();
                } else {
                    gone.wait();
                    // Into memory of the endpoint that has no owner any more.
                    communicator.send(&[7_u8; 100], 0).unwrap();
                    gone.wait();
                }
            });
        }
    });
}

/// libfabric maps any file that an address over `shm` names, and trusts its content.
#[test]
fn addresses_over_shm_that_name_other_files_are_refused() {
    let name = format!("host-soundness-{}", std::process::id());
    let file = format!("/dev/shm/{name}");
    fs::write(&file, vec![0x41_u8; 1 << 20]).unwrap();
    let mut endpoint = Endpoint::open(&rdm::Options::new("shm")).unwrap();
    let inserted = endpoint.insert(format!("fi_shm://{name}\0").as_bytes());
    fs::remove_file(&file).unwrap();
    let text = inserted.map(drop).unwrap_err().to_string();
    assert!(text.contains("not an address of an endpoint of this library"), "{text}");
}

#[test]
fn any_number_of_segments_in_flight_is_accepted() {
    let mut options = over("tcp");
    options.set_algorithm(Collective::AllReduce, Algorithm::Rabenseifner);
    options.segment = Some(64);
    options.in_flight = Some(usize::MAX);
    on_every_rank(3, &options, |communicator| {
        let mut data = vec![1_u32; 1000];
        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|&sum| sum == 3), "{data:?}");
    });
}
