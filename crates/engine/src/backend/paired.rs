//! NCCL between GPUs, measured in turn with a library between host buffers. Each rank has buffers of both kinds.

use anyhow::Context as _;
use collectives::world;

use super::{
    Backend, BackendRole, BufferSizes, Capabilities, GroupPosition, MemoryUse, Node, RankBody, RankDevice,
    TimedLoop, Times, Work,
};
use crate::data::Mismatches;
use record::{Algorithm, BackendLibrary, Placement, Provenance, Rank};

/// This process's part of both backends.
pub(super) struct Paired {
    pub(super) primary: Box<dyn Node>,
    /// The baseline, with the same ranks in the same positions.
    pub(super) baseline: Box<dyn Node>,
}

impl Node for Paired {
    fn threads(&self) -> usize {
        self.primary.threads()
    }

    fn gpus(&self) -> usize {
        self.primary.gpus()
    }

    fn position(&self, index: usize) -> GroupPosition {
        self.primary.position(index)
    }

    fn capabilities(&self) -> Capabilities {
        self.primary.capabilities().shared_with(&self.baseline.capabilities())
    }

    fn versus(&self) -> Option<Capabilities> {
        Some(self.baseline.capabilities())
    }

    fn provenance(&self) -> Provenance {
        let Provenance { backend, library_version, library_path, .. } = self.baseline.provenance();
        let versus = Some(BackendLibrary { backend, library_version, library_path });
        Provenance { versus, ..self.primary.provenance() }
    }

    fn notes(&self) -> Vec<String> {
        [self.primary.notes(), self.baseline.notes()].concat()
    }

    fn default_max_bytes(&self) -> u64 {
        self.primary.default_max_bytes().min(self.baseline.default_max_bytes())
    }

    fn open(&self, index: usize) -> anyhow::Result<Box<dyn RankDevice>> {
        Ok(Box::new(PairedDevice {
            primary: self.primary.open(index)?,
            baseline: self.baseline.open(index)?,
        }))
    }
}

struct PairedDevice {
    primary: Box<dyn RankDevice>,
    baseline: Box<dyn RankDevice>,
}

impl RankDevice for PairedDevice {
    fn describe(&self) -> Rank {
        self.primary.describe()
    }

    fn capacity(&self) -> u64 {
        self.primary.capacity().min(self.baseline.capacity())
    }

    fn memory(&self) -> String {
        format!("{} and {}", self.primary.memory(), self.baseline.memory())
    }

    fn connect(
        self: Box<Self>,
        world: &world::Handle,
        buffer_sizes: BufferSizes,
        body: &mut RankBody<'_>,
    ) -> anyhow::Result<()> {
        let mut baseline = Some(self.baseline);
        self.primary.connect(world, buffer_sizes, &mut |primary| {
            let baseline = baseline.take().context("a rank was connected twice")?;
            baseline.connect(world, buffer_sizes, &mut |baseline| {
                body(&mut PairedRank { primary: &mut *primary, baseline, active: BackendRole::Primary })
            })
        })
    }
}

/// One rank's buffers of both kinds.
struct PairedRank<'a> {
    primary: &'a mut dyn Backend,
    baseline: &'a mut dyn Backend,
    /// The backend that runs operations.
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

    fn algorithm(&self, work: &Work, placement: Placement) -> Option<Algorithm> {
        match self.active {
            BackendRole::Primary => self.primary.algorithm(work, placement),
            BackendRole::Baseline => self.baseline.algorithm(work, placement),
        }
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        self.primary.memory_use()
    }

    fn activate(&mut self, active: BackendRole) {
        self.active = active;
    }

    /// Fills the buffers of both backends.
    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        self.primary.fill(work, placement, seed)?;
        self.baseline.fill(work, placement, seed)
    }

    fn start(&mut self, work: &Work, placement: Placement, index: usize, graph: bool) -> anyhow::Result<()> {
        self.current().start(work, placement, index, graph)
    }

    fn complete(&mut self) -> anyhow::Result<()> {
        self.current().complete()
    }

    fn time(
        &mut self,
        work: &Work,
        placement: Placement,
        timed_loop: &TimedLoop,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        self.current().time(work, placement, timed_loop, barrier)
    }

    fn corrupt(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()> {
        self.current().corrupt(work, placement, index)
    }

    fn check(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<Mismatches> {
        self.current().check(work, placement, seed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use collectives::DataType;

    use super::*;
    use crate::collective::{Collective, Layout as _, Participant};
    use crate::data::Op;

    /// A backend that records its calls.
    struct Noted(&'static str, Rc<RefCell<Vec<String>>>);

    impl Noted {
        fn note(&self, what: &str) {
            self.1.borrow_mut().push(format!("{} {what}", self.0));
        }
    }

    impl Backend for Noted {
        fn fill(&mut self, _: &Work, _: Placement, seed: u64) -> anyhow::Result<()> {
            self.note(&format!("fills {seed}"));
            Ok(())
        }

        fn start(&mut self, _: &Work, _: Placement, index: usize, _: bool) -> anyhow::Result<()> {
            self.note(&format!("starts {index}"));
            Ok(())
        }

        fn complete(&mut self) -> anyhow::Result<()> {
            self.note("completes");
            Ok(())
        }

        fn time(
            &mut self,
            _: &Work,
            _: Placement,
            _: &TimedLoop,
            _: &dyn Fn() -> anyhow::Result<()>,
        ) -> anyhow::Result<Times> {
            self.note("is timed");
            Ok(Times::default())
        }

        fn corrupt(&mut self, _: &Work, _: Placement, index: usize) -> anyhow::Result<()> {
            self.note(&format!("is corrupted at {index}"));
            Ok(())
        }

        fn check(&mut self, _: &Work, _: Placement, seed: u64) -> anyhow::Result<Mismatches> {
            self.note(&format!("is checked with {seed}"));
            Ok(Mismatches::default())
        }
    }

    impl RankDevice for Noted {
        fn describe(&self) -> Rank {
            Rank {
                rank: 0,
                group: 0,
                pid: 0,
                host: String::new(),
                device: None,
                pci: None,
                device_name: self.0.to_owned(),
            }
        }

        fn capacity(&self) -> u64 {
            self.0.len() as u64
        }

        fn memory(&self) -> String {
            self.0.to_owned()
        }

        fn connect(
            mut self: Box<Self>,
            _: &world::Handle,
            buffer_sizes: BufferSizes,
            body: &mut RankBody<'_>,
        ) -> anyhow::Result<()> {
            self.note(&format!("connects for {}", buffer_sizes.size));
            body(&mut *self)?;
            self.note("is closed");
            Ok(())
        }
    }

    #[test]
    fn both_are_connected_and_filled_and_the_one_whose_turn_it_is_works() {
        let notes = Rc::new(RefCell::new(Vec::new()));
        let noted = |name| Box::new(Noted(name, Rc::clone(&notes)));
        let devices = Box::new(PairedDevice { primary: noted("GPU"), baseline: noted("host") });
        assert_eq!((devices.describe().device_name.as_str(), devices.capacity()), ("GPU", 3));
        assert_eq!(devices.memory(), "GPU and host");
        let (collective, data_type) = (Collective::AllReduce, DataType::Float32);
        let participant = Participant { rank: 0, ranks: 1, root: None };
        let counts = collective.counts(64, data_type, participant, None);
        let work = Work { collective, data_type, op: Some(Op::Sum), participant, counts, traffic: None };
        let (seed, position) = (7, Placement::OutOfPlace);
        let buffer_sizes = BufferSizes { size: 64, send: 64, receive: 64 };
        let world = world::single();
        devices
            .connect(&world, buffer_sizes, &mut |backend| {
                backend.fill(&work, position, seed)?;
                backend.start(&work, position, 1, false)?;
                backend.activate(BackendRole::Baseline);
                backend.start(&work, position, 2, false)?;
                backend.complete()?;
                backend.check(&work, position, seed)?;
                backend.activate(BackendRole::Primary);
                backend.corrupt(&work, position, 5)
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
