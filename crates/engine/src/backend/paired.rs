//! NCCL between GPUs, measured in turn with a library between host buffers. Each rank has buffers of both
//! kinds.

use anyhow::Context as _;

use super::{Backend, BackendRole, Barrier, MemoryUse, Node, RankDevice, TimedLoop, Times, Work};
use crate::data::Mismatches;
use record::{Algorithm, BackendLibrary, Provenance};

/// This process's part of both backends. The baseline has the same ranks in the same positions.
pub(super) fn paired(primary: Node, baseline: Node) -> Node {
    let Provenance { backend, library_version, library_path, .. } = baseline.provenance;
    let versus = Some(BackendLibrary { backend, library_version, library_path });
    let (open_primary, open_baseline) = (primary.open, baseline.open);
    Node {
        capabilities: primary.capabilities.shared_with(&baseline.capabilities),
        versus: Some(baseline.capabilities),
        provenance: Provenance { versus, ..primary.provenance },
        notes: [primary.notes, baseline.notes].concat(),
        default_max_bytes: primary.default_max_bytes.min(baseline.default_max_bytes),
        open: Box::new(move |index| Ok(device(open_primary(index)?, open_baseline(index)?))),
        ..primary
    }
}

fn device(primary: RankDevice, baseline: RankDevice) -> RankDevice {
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
    fn current(&mut self) -> &mut dyn Backend {
        match self.active {
            BackendRole::Primary => self.primary,
            BackendRole::Baseline => self.baseline,
        }
    }
}

impl Backend for PairedRank<'_> {
    fn transport(&self) -> Option<String> {
        self.primary.transport().or_else(|| self.baseline.transport())
    }

    fn notes(&self) -> Vec<String> {
        [self.primary.notes(), self.baseline.notes()].concat()
    }

    fn algorithm(&self, work: &Work) -> Option<Algorithm> {
        match self.active {
            BackendRole::Primary => self.primary.algorithm(work),
            BackendRole::Baseline => self.baseline.algorithm(work),
        }
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        self.primary.memory_use()
    }

    fn activate(&mut self, active: BackendRole) {
        self.active = active;
    }

    fn fill(&mut self, work: &Work, seed: u64) -> anyhow::Result<()> {
        self.primary.fill(work, seed)?;
        self.baseline.fill(work, seed)
    }

    fn start(&mut self, work: &Work, index: usize, graph: bool) -> anyhow::Result<()> {
        self.current().start(work, index, graph)
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        self.current().complete()
    }

    fn time(&mut self, work: &Work, timed_loop: &TimedLoop, barrier: &Barrier<'_>) -> anyhow::Result<Times> {
        self.current().time(work, timed_loop, barrier)
    }

    fn corrupt(&mut self, work: &Work, seed: u64, index: usize) -> anyhow::Result<()> {
        self.current().corrupt(work, seed, index)
    }

    fn check(&mut self, work: &Work, seed: u64) -> anyhow::Result<Mismatches> {
        self.current().check(work, seed)
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
        fn fill(&mut self, _: &Work, seed: u64) -> anyhow::Result<()> {
            self.note(&format!("fills {seed}"));
            Ok(())
        }

        fn start(&mut self, _: &Work, index: usize, _: bool) -> anyhow::Result<()> {
            self.note(&format!("starts {index}"));
            Ok(())
        }

        fn complete(&mut self) -> anyhow::Result<()> {
            self.note("completes");
            Ok(())
        }

        fn time(&mut self, _: &Work, _: &TimedLoop, _: &Barrier<'_>) -> anyhow::Result<Times> {
            self.note("is timed");
            Ok(Times::default())
        }

        fn corrupt(&mut self, _: &Work, _: u64, index: usize) -> anyhow::Result<()> {
            self.note(&format!("is corrupted at {index}"));
            Ok(())
        }

        fn check(&mut self, _: &Work, seed: u64) -> anyhow::Result<Mismatches> {
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
        let both = device(noted("GPU", &notes), noted("host", &notes));
        assert_eq!((both.rank.device_name.as_str(), both.capacity), ("GPU", 3));
        assert_eq!(both.memory, "GPU and host");
        let (collective, data_type) = (Collective::AllReduce, DataType::Float32);
        let participant = Participant { rank: 0, ranks: 1, root: None };
        let counts = Counts::new(collective, 64, data_type, participant, None);
        let (op, placement, seed) = (Some(Op::Sum), Placement::OutOfPlace, 7);
        let work = Work { collective, data_type, op, participant, placement, counts, traffic: None };
        let buffer_sizes = BufferSizes { send: 64, receive: 64 };
        let world = world::single();
        (both.connect)(&world, buffer_sizes, &mut |backend| {
            backend.fill(&work, seed)?;
            backend.start(&work, 1, false)?;
            backend.activate(BackendRole::Baseline);
            backend.start(&work, 2, false)?;
            backend.complete()?;
            backend.check(&work, seed)?;
            backend.activate(BackendRole::Primary);
            backend.corrupt(&work, seed, 5)
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
