//! The ranks of a training, also after some are gone.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::Device;
use candle_nn::VarMap;
use collectives::job::{Group, Job};
use collectives_candle::{AdamW, Error};

use crate::checkpoint::Checkpoint;
use crate::optimizer::Optimizer;
use crate::{Common, output};

pub(crate) struct Team {
    pub(crate) group: Group,
    pub(crate) optimizer: Optimizer,
    pub(crate) device: Device,
    /// True after ranks have gone.
    pub(crate) is_smaller: bool,
    job: Job,
}

impl Team {
    /// Gives all ranks the variables of rank 0. Collective.
    pub(crate) fn new(
        job: &Job,
        device: &Device,
        variables: &VarMap,
        options: &Common,
    ) -> Result<Self, Error> {
        let group = collectives_candle::group(job, device)?;
        let optimizer = Optimizer::new(&group, variables, options.learning_rate, options.shard)?;
        Ok(Self { group, optimizer, device: device.clone(), is_smaller: false, job: job.clone() })
    }

    /// Returns the team of the remaining ranks, and the step with which they continue. `step` is this rank's.
    pub(crate) fn shrunk(
        self,
        failure: &anyhow::Error,
        step: u64,
        variables: &VarMap,
        options: &Common,
    ) -> Result<(Self, u64)> {
        let began = Instant::now();
        let ranks = self.group.size();
        let job = self.job.shrink().map_err(Error::from)?;
        let mut team = Self::new(&job, &self.device, variables, options)?;
        team.is_smaller = true;
        let step = match (self.optimizer, &mut team.optimizer) {
            (Optimizer::Replicated(_, old), Optimizer::Replicated(_, new)) => {
                replicate(&team.group, &old, new, step)?
            }
            _ => team.restart(step, variables, options.checkpoint.as_deref())?,
        };
        if team.group.rank() == 0 {
            let (left, seconds) = (team.group.size(), began.elapsed().as_secs_f64());
            output::print(&format!(
                "# {failure}; {left} of {ranks} ranks continue after step {step}, {seconds:.1} s later"
            ))?;
        }
        Ok((team, step))
    }

    /// Continues when shards of the optimizer's state are lost: with the state of the checkpoint, or on CPUs
    /// without moments.
    fn restart(&mut self, step: u64, variables: &VarMap, path: Option<&Path>) -> Result<u64> {
        let saved = path.filter(|path| path.is_file());
        let mut agreed = [step, u64::from(saved.is_some())];
        self.group.broadcast_in_place(&mut agreed, 0).map_err(Error::from)?;
        let [mut step, is_saved] = agreed;
        if let (1, Some(path)) = (is_saved, path) {
            let checkpoint = Checkpoint::load(path, &self.device)?;
            checkpoint.restore(variables)?;
            self.optimizer.load_state(checkpoint.tensors())?;
            step = checkpoint.step;
        } else if !self.device.is_cpu() {
            bail!(
                "a shard of the optimizer's state is lost, and the last step undefined: save a --checkpoint \
                 and continue from it"
            );
        } else if self.group.rank() == 0 {
            output::print(
                "# a shard of the optimizer's state is lost, and no checkpoint saved: its moments begin at 0",
            )?;
        }
        Ok(step)
    }
}

/// Continues on all ranks with the state of rank 0: some may have done one step more than others.
fn replicate(group: &Group, old: &AdamW, new: &mut AdamW, step: u64) -> Result<u64, Error> {
    new.load_state(&old.state()?)?;
    new.broadcast(group, 0)?;
    let mut step = [step];
    group.broadcast_in_place(&mut step, 0)?;
    let [step] = step;
    Ok(step)
}
