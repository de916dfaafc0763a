//! Ranks on this machine's GPUs.

use std::time::{Duration, Instant};

use collectives::fabric::Collective;
use collectives::nccl::{self, Collectives, Communicator, Error, Library, UniqueId};
use collectives::{ReduceOp, world};
use cudarc::driver::{CudaContext, CudaSlice};

use super::Failure;
use super::case::Case;
use super::team::{Rank, Team};

/// Operations that are queued before the stream is waited for: it has room for about a thousand.
const BATCH: u64 = 256;

struct GpuRank {
    communicator: Communicator,
    world: world::Handle,
    buffers: Option<(Case, CudaSlice<f32>, CudaSlice<f32>)>,
}

/// The ranks, or the reason why there are none.
pub(crate) fn team() -> Result<Result<Team, String>, Failure> {
    let gpus = match nccl::device_count() {
        Err(error @ (Error::NoDriver { .. } | Error::NoDevice { .. })) => return Ok(Err(error.to_string())),
        gpus => gpus?,
    };
    if gpus < 2 {
        return Ok(Err("a single GPU has nothing to exchange".to_owned()));
    }
    let library = Library::load()?;
    let id = UniqueId::new(library)?;
    let ranks = world::threads(world::single(), gpus)?.into_iter().map(|world| {
        move || -> Result<_, Failure> {
            let (rank, context) = (world.rank(), CudaContext::new(world.rank())?);
            let stream = context.new_stream()?;
            let communicator = Communicator::builder(library, &stream).rank(rank, gpus).id(&id).init()?;
            let description = format!("{gpus} {}, NCCL {}", context.name()?, library.version());
            Ok((GpuRank { communicator, world, buffers: None }, description))
        }
    });
    Team::start(ranks.collect()).map(Ok)
}

impl GpuRank {
    fn operate(&mut self) -> Result<(), Failure> {
        let (ours, Some((case, send, receive))) = (&self.communicator, &mut self.buffers) else {
            return Err("no buffers".into());
        };
        match case.collective {
            Collective::AllReduce => ours.all_reduce(send, receive, ReduceOp::Sum)?,
            Collective::AllGather => ours.all_gather(send, receive)?,
            Collective::ReduceScatter => ours.reduce_scatter(send, receive, ReduceOp::Sum)?,
            Collective::Broadcast => ours.broadcast(Some(send), receive, 0)?,
            Collective::AllToAll => ours.all_to_all(send, receive)?,
            _ => return Err("no such case".into()),
        }
        Ok(())
    }
}

impl Rank for GpuRank {
    fn prepare(&mut self, case: Case) -> Result<(), Failure> {
        let stream = self.communicator.stream().clone();
        let rank = self.communicator.rank();
        // The buffers of the case before are freed first.
        self.buffers = None;
        let send = stream.clone_htod(&case.sent(rank))?;
        let receive = stream.clone_htod(&vec![f32::NAN; case.counts().1])?;
        self.buffers = Some((case, send, receive));
        self.operate()?;
        let Some((_, _, receive)) = &self.buffers else { return Err("no buffers".into()) };
        Ok(case.verify(rank, &stream.clone_dtoh(receive)?)?)
    }

    fn time(&mut self, calls: u64) -> Result<Duration, Failure> {
        self.communicator.stream().synchronize()?;
        self.world.barrier()?;
        let start = Instant::now();
        let mut left = calls;
        while left > 0 {
            let now = left.min(BATCH);
            for _ in 0..now {
                self.operate()?;
            }
            self.communicator.stream().synchronize()?;
            left -= now;
        }
        Ok(start.elapsed())
    }
}
