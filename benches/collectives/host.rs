//! Ranks over this machine's memory.

use std::time::{Duration, Instant};

use collectives::fabric::{Collective, Communicator, Options};
use collectives::{ReduceOp, world};

use super::Failure;
use super::case::Case;
use super::team::{Rank, Team};

/// The most common runner of continuous integration has two processors, and more ranks than processors
/// measure the scheduler.
const RANKS: usize = 2;

struct HostRank {
    communicator: Communicator,
    case: Option<Case>,
    send: Vec<f32>,
    receive: Vec<f32>,
}

/// The ranks, or the reason why there are none.
pub(crate) fn team() -> Result<Result<Team, String>, Failure> {
    let ranks = world::threads(world::single(), RANKS)?.into_iter().map(|world| {
        move || -> Result<_, Failure> {
            let communicator = Communicator::new(world, &Options::default())?;
            let description = format!("{RANKS} ranks, {}", communicator.describe());
            Ok((HostRank { communicator, case: None, send: Vec::new(), receive: Vec::new() }, description))
        }
    });
    Team::start(ranks.collect()).map(Ok)
}

impl HostRank {
    fn operate(&mut self) -> Result<(), Failure> {
        let (ours, send, receive) = (&mut self.communicator, &self.send[..], &mut self.receive[..]);
        match self.case.map(|case| case.collective) {
            Some(Collective::AllReduce) => ours.all_reduce(send, receive, ReduceOp::Sum)?,
            Some(Collective::AllGather) => ours.all_gather(send, receive)?,
            Some(Collective::ReduceScatter) => ours.reduce_scatter(send, receive, ReduceOp::Sum)?,
            Some(Collective::Broadcast) => ours.broadcast(Some(send), receive, 0)?,
            Some(Collective::AllToAll) => ours.all_to_all(send, receive)?,
            _ => return Err("no such case".into()),
        }
        Ok(())
    }
}

impl Rank for HostRank {
    fn prepare(&mut self, case: Case) -> Result<(), Failure> {
        let rank = self.communicator.rank();
        self.send = case.sent(rank);
        self.receive = vec![f32::NAN; case.counts().1];
        self.case = Some(case);
        self.operate()?;
        Ok(case.verify(rank, &self.receive)?)
    }

    fn time(&mut self, calls: u64) -> Result<Duration, Failure> {
        self.communicator.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            self.operate()?;
        }
        Ok(start.elapsed())
    }
}
