//! A failure of which the ranks of a group learn at different times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::Job;
use collectives::world::{self, Handle, Position, World};
use collectives::{Error, ReduceOp};
use cudarc::driver::CudaContext;

use crate::fake::{Fake, Knob, aborts};

/// A rank that learns of failures 50 ms late, as one in another process can.
struct Late {
    world: Handle,
    failed: Arc<OnceLock<Instant>>,
}

impl World for Late {
    fn position(&self) -> Position {
        self.world.position()
    }

    fn describe(&self) -> String {
        self.world.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.world.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.world.all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.world)
    }

    fn check(&self) -> Result<(), world::Error> {
        let knows = self.failed.get().is_some_and(|failed| failed.elapsed() > Duration::from_millis(50));
        if knows { self.world.check() } else { Ok(()) }
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.world.abort(code, message)
    }
}

/// Rank 2 fails. Rank 0 aborts its work, which lets that of rank 1 end with undefined data.
#[test]
fn an_abort_comes_after_the_others_have_learned_of_the_failure() {
    let fake = Fake::new();
    fake.set(Knob::MovesData, aborts::MISLEAD);
    let (library, under_way, failed) = (fake.library(), Barrier::new(3), Arc::new(OnceLock::new()));
    thread::scope(|scope| {
        for world in world::threads(world::single(), 3).unwrap() {
            let (under_way, failed) = (&under_way, Arc::clone(&failed));
            scope.spawn(move || {
                let rank = world.rank();
                let late = Arc::new(Late { world: Arc::clone(&world), failed: Arc::clone(&failed) });
                let job = Job::new(if rank == 1 { late } else { world });
                let group = job.group_on_gpu(library, &CudaContext::new(rank).unwrap()).unwrap();
                if rank == 2 {
                    under_way.wait();
                    failed.set(Instant::now()).unwrap();
                    return job.fail("the loss is NaN");
                }
                let data = group.stream().unwrap().clone_htod(&[1.0_f32; 5]).unwrap();
                let work = group.all_reduce(data, ReduceOp::Sum);
                under_way.wait();
                let error = work.wait().map(drop).unwrap_err();
                assert!(matches!(&error, Error::RankFailed { rank: 2, .. }), "rank {rank}: {error}");
            });
        }
    });
}

/// A program's own world, which panics in all reports and checks from some time on, as with a poisoned lock.
struct Panicking {
    world: Handle,
    panics: Arc<AtomicBool>,
}

impl Panicking {
    fn world(&self) -> &dyn World {
        assert!(!self.panics.load(Ordering::SeqCst), "a panic of the program's world");
        &*self.world
    }
}

impl World for Panicking {
    fn position(&self) -> Position {
        self.world.position()
    }

    fn describe(&self) -> String {
        self.world.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.world().barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.world().all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(self.world())
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.world().abort(code, message)
    }
}

/// On the threads that notice failures and ends of operations.
#[test]
fn operations_end_when_the_world_panics_on_a_thread_of_the_group() {
    let fake = Fake::new();
    let panics = Arc::new(AtomicBool::new(false));
    let world = Arc::new(Panicking { world: world::single(), panics: Arc::clone(&panics) });
    let context = CudaContext::new(0).unwrap();
    let group = Job::new(world).group_on_gpu(fake.library(), &context).unwrap();
    let memory = || group.stream().unwrap().alloc_zeros::<f32>(5).unwrap();
    fake.set(Knob::Hang, 1);
    let work = group.all_reduce(memory(), ReduceOp::Sum);
    panics.store(true, Ordering::SeqCst);
    let (end, ended) = mpsc::channel();
    thread::spawn(move || end.send(work.wait().map(drop).unwrap_err().to_string()));
    let error = ended.recv_timeout(Duration::from_secs(60)).expect("the operation never returns");
    assert!(error.contains("of the program's own world panicked"), "{error}");
    fake.set(Knob::Hang, 0);
    assert_eq!(group.barrier().unwrap_err().to_string(), error);
}
