//! NCCL between GPUs in turn with a library between host buffers: each rank has buffers of both kinds.

use anyhow::Context as _;
use collectives::world;

use super::{Abilities, Backend, Body, Device, MemoryUse, Node, Place, Rooms, Schedule, Side, Times, Work};
use crate::data::Mismatches;
use record::{Algorithm, Library, Placement, Provenance, Rank};

/// What this process contributes to both sides.
pub(super) struct Paired {
    pub(super) ours: Box<dyn Node>,
    /// As many ranks as ours, in the same places.
    pub(super) theirs: Box<dyn Node>,
}

impl Node for Paired {
    fn threads(&self) -> usize {
        self.ours.threads()
    }

    fn gpus(&self) -> usize {
        self.ours.gpus()
    }

    fn place(&self, index: usize) -> Place {
        self.ours.place(index)
    }

    fn abilities(&self) -> Abilities {
        self.ours.abilities().shared_with(&self.theirs.abilities())
    }

    fn versus(&self) -> Option<Abilities> {
        Some(self.theirs.abilities())
    }

    fn provenance(&self) -> Provenance {
        let Provenance { backend, library_version, library_path, .. } = self.theirs.provenance();
        let versus = Some(Library { backend, library_version, library_path });
        Provenance { versus, ..self.ours.provenance() }
    }

    fn notes(&self) -> Vec<String> {
        [self.ours.notes(), self.theirs.notes()].concat()
    }

    fn default_max_bytes(&self) -> u64 {
        self.ours.default_max_bytes().min(self.theirs.default_max_bytes())
    }

    fn open(&self, index: usize) -> anyhow::Result<Box<dyn Device>> {
        Ok(Box::new(Devices { ours: self.ours.open(index)?, theirs: self.theirs.open(index)? }))
    }
}

struct Devices {
    ours: Box<dyn Device>,
    theirs: Box<dyn Device>,
}

impl Device for Devices {
    fn describe(&self) -> Rank {
        self.ours.describe()
    }

    fn capacity(&self) -> u64 {
        self.ours.capacity().min(self.theirs.capacity())
    }

    fn memory(&self) -> String {
        format!("{} and {}", self.ours.memory(), self.theirs.memory())
    }

    fn connect(
        self: Box<Self>,
        world: &world::Handle,
        rooms: Rooms,
        body: &mut Body<'_>,
    ) -> anyhow::Result<()> {
        let mut theirs = Some(self.theirs);
        self.ours.connect(world, rooms, &mut |ours| {
            let theirs = theirs.take().context("a rank was connected twice")?;
            theirs.connect(world, rooms, &mut |theirs| {
                body(&mut Both { ours: &mut *ours, theirs, side: Side::Ours })
            })
        })
    }
}

/// One rank's buffers of both kinds.
struct Both<'a> {
    ours: &'a mut dyn Backend,
    theirs: &'a mut dyn Backend,
    /// Whose turn it is.
    side: Side,
}

impl Both<'_> {
    fn current(&mut self) -> &mut dyn Backend {
        match self.side {
            Side::Ours => self.ours,
            Side::Theirs => self.theirs,
        }
    }
}

impl Backend for Both<'_> {
    fn transport(&self) -> Option<String> {
        self.ours.transport().or_else(|| self.theirs.transport())
    }

    fn notes(&self) -> Vec<String> {
        [self.ours.notes(), self.theirs.notes()].concat()
    }

    fn algorithm(&self, work: &Work, placement: Placement) -> Option<Algorithm> {
        match self.side {
            Side::Ours => self.ours.algorithm(work, placement),
            Side::Theirs => self.theirs.algorithm(work, placement),
        }
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        self.ours.memory_use()
    }

    fn turn(&mut self, side: Side) {
        self.side = side;
    }

    /// The buffers of both sides: who fills them may do it for both.
    fn fill(&mut self, work: &Work, placement: Placement, seed: u64) -> anyhow::Result<()> {
        self.ours.fill(work, placement, seed)?;
        self.theirs.fill(work, placement, seed)
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
        schedule: &Schedule,
        barrier: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Times> {
        self.current().time(work, placement, schedule, barrier)
    }

    fn damage(&mut self, work: &Work, placement: Placement, index: usize) -> anyhow::Result<()> {
        self.current().damage(work, placement, index)
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
    use crate::collective::{Collective, Layout as _, Member};
    use crate::data::Op;

    /// A side that notes what is asked of it.
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
            _: &Schedule,
            _: &dyn Fn() -> anyhow::Result<()>,
        ) -> anyhow::Result<Times> {
            self.note("is timed");
            Ok(Times::default())
        }

        fn damage(&mut self, _: &Work, _: Placement, index: usize) -> anyhow::Result<()> {
            self.note(&format!("is damaged at {index}"));
            Ok(())
        }

        fn check(&mut self, _: &Work, _: Placement, seed: u64) -> anyhow::Result<Mismatches> {
            self.note(&format!("is checked with {seed}"));
            Ok(Mismatches::default())
        }
    }

    impl Device for Noted {
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
            rooms: Rooms,
            body: &mut Body<'_>,
        ) -> anyhow::Result<()> {
            self.note(&format!("connects for {}", rooms.size));
            body(&mut *self)?;
            self.note("is closed");
            Ok(())
        }
    }

    #[test]
    fn both_are_connected_and_filled_and_the_one_whose_turn_it_is_works() {
        let notes = Rc::new(RefCell::new(Vec::new()));
        let noted = |name| Box::new(Noted(name, Rc::clone(&notes)));
        let devices = Box::new(Devices { ours: noted("GPU"), theirs: noted("host") });
        assert_eq!((devices.describe().device_name.as_str(), devices.capacity()), ("GPU", 3));
        assert_eq!(devices.memory(), "GPU and host");
        let (collective, data_type) = (Collective::AllReduce, DataType::Float32);
        let member = Member { rank: 0, ranks: 1, root: None };
        let counts = collective.counts(64, data_type, member, None);
        let work = Work { collective, data_type, op: Some(Op::Sum), member, counts, traffic: None };
        let (seed, place) = (7, Placement::OutOfPlace);
        let rooms = Rooms { size: 64, send: 64, receive: 64 };
        let world = world::single();
        devices
            .connect(&world, rooms, &mut |backend| {
                backend.fill(&work, place, seed)?;
                backend.start(&work, place, 1, false)?;
                backend.turn(Side::Theirs);
                backend.start(&work, place, 2, false)?;
                backend.complete()?;
                backend.check(&work, place, seed)?;
                backend.turn(Side::Ours);
                backend.damage(&work, place, 5)
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
            "GPU is damaged at 5",
            "host is closed",
            "GPU is closed",
        ];
        assert_eq!(*notes.borrow(), expected);
    }
}
