//! NCCL between GPUs, measured in turn with a library between host buffers. Each rank has buffers of both
//! kinds.

use anyhow::Context as _;

use super::{Backend, BackendRole, Barrier, MemoryUse, Node, RankDevice, RankWork, TimedLoop, Times};
use crate::data::Mismatches;
use record::{Algorithm, BackendLibrary, Provenance};

/// This process's part of both backends. The baseline has the same ranks in the same positions.
pub(super) fn pair_nodes(primary: Node, baseline: Node) -> Node {
    let Provenance { backend, library_version, library_path, .. } = baseline.provenance;
    let versus = Some(BackendLibrary { backend, library_version, library_path });
    let (open_primary, open_baseline) = (primary.open, baseline.open);
    Node {
        capabilities: primary.capabilities.shared_with(&baseline.capabilities),
        versus: Some(baseline.capabilities),
        provenance: Provenance { versus, ..primary.provenance },
        notes: [primary.notes, baseline.notes].concat(),
        default_max_bytes: primary.default_max_bytes.min(baseline.default_max_bytes),
        open: Box::new(move |index| Ok(pair_devices(open_primary(index)?, open_baseline(index)?))),
        ..primary
    }
}

fn pair_devices(primary: RankDevice, baseline: RankDevice) -> RankDevice {
    let mut connect_baseline = Some(baseline.connect);
    RankDevice {
        rank: primary.rank,
        capacity: primary.capacity.min(baseline.capacity),
        memory: format!("{} and {}", primary.memory, baseline.memory),
        connect: Box::new(move |world, buffer_sizes, body| {
            (primary.connect)(world, buffer_sizes, &mut |primary| {
                let connect_baseline = connect_baseline.take().context("a rank was connected twice")?;
                connect_baseline(world, buffer_sizes, &mut |baseline| {
                    body(&mut PairedRank { primary: &mut *primary, baseline, active: BackendRole::Primary })
                })
            })
        }),
    }
}

/// One rank's buffers of both kinds.
struct PairedRank<'a> {
    primary: &'a mut dyn Backend,
    baseline: &'a mut dyn Backend,
    active: BackendRole,
}

impl PairedRank<'_> {
    fn active_backend(&mut self) -> &mut dyn Backend {
        match self.active {
            BackendRole::Primary => self.primary,
            BackendRole::Baseline => self.baseline,
        }
    }
}

impl Backend for PairedRank<'_> {
    fn transport_name(&self) -> Option<String> {
        self.primary.transport_name().or_else(|| self.baseline.transport_name())
    }

    fn list_notes(&self) -> Vec<String> {
        [self.primary.list_notes(), self.baseline.list_notes()].concat()
    }

    fn operation_algorithm(&self, work: &RankWork) -> Option<Algorithm> {
        match self.active {
            BackendRole::Primary => self.primary.operation_algorithm(work),
            BackendRole::Baseline => self.baseline.operation_algorithm(work),
        }
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        self.primary.memory_use()
    }

    fn activate_role(&mut self, active: BackendRole) {
        self.active = active;
    }

    fn fill_buffers(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<()> {
        self.primary.fill_buffers(work, seed)?;
        self.baseline.fill_buffers(work, seed)
    }

    fn start_operation(&mut self, work: &RankWork, index: usize, graph: bool) -> anyhow::Result<()> {
        self.active_backend().start_operation(work, index, graph)
    }

    fn await_completion(&mut self) -> anyhow::Result<()> {
        self.active_backend().await_completion()
    }

    fn time_loop(
        &mut self,
        work: &RankWork,
        timed_loop: &TimedLoop,
        barrier: &Barrier<'_>,
    ) -> anyhow::Result<Times> {
        self.active_backend().time_loop(work, timed_loop, barrier)
    }

    fn corrupt_result(&mut self, work: &RankWork, seed: u64, index: usize) -> anyhow::Result<()> {
        self.active_backend().corrupt_result(work, seed, index)
    }

    fn check_result(&mut self, work: &RankWork, seed: u64) -> anyhow::Result<Mismatches> {
        self.active_backend().check_result(work, seed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use collectives::{DataType, world};
    use record::{Placement, Rank};

    use super::*;
    use crate::backend::BufferSizes;
    use crate::collective::{Collective, Counts, Participant};
    use crate::data::Op;

    /// A backend that records its calls.
    struct Noted(&'static str, Rc<RefCell<Vec<String>>>);

    impl Noted {
        fn note(&self, what: &str) {
            self.1.borrow_mut().push(format!("{} {what}", self.0));
        }
    }

    impl Backend for Noted {
        fn fill_buffers(&mut self, _: &RankWork, seed: u64) -> anyhow::Result<()> {
            self.note(&format!("fills {seed}"));
            Ok(())
        }

        fn start_operation(&mut self, _: &RankWork, index: usize, _: bool) -> anyhow::Result<()> {
            self.note(&format!("starts {index}"));
            Ok(())
        }

        fn await_completion(&mut self) -> anyhow::Result<()> {
            self.note("completes");
            Ok(())
        }

        fn time_loop(&mut self, _: &RankWork, _: &TimedLoop, _: &Barrier<'_>) -> anyhow::Result<Times> {
            self.note("is timed");
            Ok(Times::default())
        }

        fn corrupt_result(&mut self, _: &RankWork, _: u64, index: usize) -> anyhow::Result<()> {
            self.note(&format!("is corrupted at {index}"));
            Ok(())
        }

        fn check_result(&mut self, _: &RankWork, seed: u64) -> anyhow::Result<Mismatches> {
            self.note(&format!("is checked with {seed}"));
            Ok(Mismatches::default())
        }
    }

    fn noted(name: &'static str, notes: &Rc<RefCell<Vec<String>>>) -> RankDevice {
        let mut noted = Noted(name, Rc::clone(notes));
        RankDevice {
            rank: Rank { device_name: name.to_owned(), ..Rank::default() },
            capacity: name.len() as u64,
            memory: name.to_owned(),
            connect: Box::new(move |_, buffer_sizes, body| {
                noted.note(&format!("connects for {}", buffer_sizes.receive));
                body(&mut noted)?;
                noted.note("is closed");
                Ok(())
            }),
        }
    }

    #[test]
    fn both_are_connected_and_filled_and_the_one_whose_turn_it_is_works() {
        let notes = Rc::new(RefCell::new(Vec::new()));
        let both = pair_devices(noted("GPU", &notes), noted("host", &notes));
        assert_eq!((both.rank.device_name.as_str(), both.capacity), ("GPU", 3));
        assert_eq!(both.memory, "GPU and host");
        let (collective, data_type) = (Collective::AllReduce, DataType::Float32);
        let participant = Participant { rank: 0, ranks: 1, root: None };
        let counts = Counts::new(collective, 64, data_type, participant, None);
        let (op, placement, seed) = (Some(Op::Sum), Placement::OutOfPlace, 7);
        let work = RankWork { collective, data_type, op, participant, placement, counts, traffic: None };
        let buffer_sizes = BufferSizes { send: 64, receive: 64 };
        let world = world::single();
        (both.connect)(&world, buffer_sizes, &mut |backend| {
            backend.fill_buffers(&work, seed)?;
            backend.start_operation(&work, 1, false)?;
            backend.activate_role(BackendRole::Baseline);
            backend.start_operation(&work, 2, false)?;
            backend.await_completion()?;
            backend.check_result(&work, seed)?;
            backend.activate_role(BackendRole::Primary);
            backend.corrupt_result(&work, seed, 5)
        })
        .unwrap();
        let expected = [
            "GPU connects for 64",
            "host connects for 64",
            "GPU fills 7",
            "host fills 7",
            "GPU starts 1",
            "host starts 2",
            "host completes",
            "host is checked with 7",
            "GPU is corrupted at 5",
            "host is closed",
            "GPU is closed",
        ];
        assert_eq!(*notes.borrow(), expected);
    }
}
