//! The training loop.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use collectives::ReduceOp;
use collectives::job::{Group, Job};
use collectives_candle::Error;

use crate::checkpoint::Checkpoint;
use crate::optimizer::settle;
use crate::team::Team;
use crate::{Common, Processor, Task, output, task};

/// Runs a program: 0 if all steps are done, 1 otherwise, with the reason on standard error.
pub fn main<T: Task>(options: &Common, make: impl FnOnce(&Device) -> Result<T>) -> ExitCode {
    match run(options, make) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An unprintable error has no other place to go.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Joins the job, and trains the task from `make` for this rank's device.
///
/// # Errors
/// If options contradict each other or the job, files cannot be read or written, or the remaining ranks
/// cannot continue after a failure.
pub fn run<T: Task>(options: &Common, make: impl FnOnce(&Device) -> Result<T>) -> Result<()> {
    let job = Job::from_environment()?;
    let trained = train(&job, options, make);
    if let Err(error) = &trained {
        // The others would wait for this rank.
        job.fail(&format!("{error:#}"));
    }
    trained
}

fn train<T: Task>(job: &Job, options: &Common, make: impl FnOnce(&Device) -> Result<T>) -> Result<()> {
    let ranks = job.size();
    ensure!(options.batch >= ranks, "--batch {}: {ranks} ranks need a sample each", options.batch);
    if let Some(rank) = options.fail_rank {
        ensure!(rank < ranks, "--fail-rank {rank}: the ranks are 0 to {}", ranks - 1);
    }
    let device = collectives_candle::device(job, options.device == Processor::Gpu)?;
    let task = make(&device)?;
    let checkpoint = match (&options.checkpoint, options.resume) {
        (Some(path), true) => Some(Checkpoint::load(path, &device)?),
        _ => None,
    };
    if let Some(checkpoint) = &checkpoint {
        checkpoint.restore(task.variables())?;
    }
    let mut team = Team::new(job, &device, task.variables(), options)?;
    let mut progress = Progress { step: 0, settled: true, window: Window::new() };
    if let Some(checkpoint) = checkpoint {
        team.optimizer.load_state(checkpoint.tensors())?;
        progress.step = checkpoint.step;
    }
    introduce(&team, &task, progress.step)?;
    while progress.step < task.steps() || !progress.settled {
        if options.fail_at == Some(progress.step)
            && options.fail_rank == Some(team.group.rank())
            && !team.is_smaller
        {
            // SIGKILL runs no handler: the other ranks get no report. SAFETY: takes no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        match advance(&mut team, &task, options, &mut progress) {
            Ok(()) => {}
            Err(failure) if is_of_group(&failure) => {
                let step;
                (team, step) = team.shrunk(&failure, progress.step, task.variables(), options)?;
                // After the last step, the line of output and the checkpoint may still be due.
                let settled = step < task.steps();
                progress = Progress { step, settled, window: Window::new() };
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// True if other ranks have failed, and not this one.
fn is_of_group(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(Error::is_of_group)
}

fn introduce<T: Task>(team: &Team, task: &T, step: u64) -> Result<()> {
    let Team { group, optimizer, .. } = team;
    if group.rank() != 0 {
        return Ok(());
    }
    let parameters: usize = task.variables().all_vars().iter().map(|var| var.elem_count()).sum();
    let begins = if step == 0 { String::new() } else { format!(", from step {step} on") };
    output::print(&format!(
        "# {} ranks over {}; {parameters} parameters, {} bytes of optimizer state on rank 0; {} \
         steps{begins}",
        group.size(),
        group.describe(),
        optimizer.state_bytes(),
        task.steps()
    ))
}

struct Progress {
    /// Number of steps done by this rank.
    step: u64,
    /// True if the line of output and the checkpoint of the last step, where due, are written.
    settled: bool,
    window: Window,
}

/// A step, with its line of output and its checkpoint.
fn advance<T: Task>(team: &mut Team, task: &T, options: &Common, progress: &mut Progress) -> Result<()> {
    if progress.settled {
        step(team, task, progress)?;
    }
    let (done, is_last) = (progress.step, progress.step == task.steps());
    if is_last || done.is_multiple_of(task.report_every()) {
        report(&team.group, task, &progress.window, done)?;
        progress.window = Window::new();
    }
    if let Some(path) = &options.checkpoint
        && (is_last || options.checkpoint_every.is_some_and(|every| done.is_multiple_of(every)))
    {
        let state = team.optimizer.state()?;
        settle(&team.group, &team.device)?;
        if team.group.rank() == 0 {
            Checkpoint::new(done, task.variables(), state)?.save(path)?;
        }
    }
    progress.settled = true;
    Ok(())
}

fn step<T: Task>(team: &mut Team, task: &T, progress: &mut Progress) -> Result<()> {
    let samples = task.batch(progress.step);
    let (rank, size) = (team.group.rank(), team.group.size());
    let own = samples.get(task::part(samples.len(), rank, size)).unwrap_or_default();
    let loss = task.loss(own)?;
    // The mean over ranks is the mean over samples, where ranks have different numbers of them.
    let weight = (own.len() * size) as f64 / samples.len() as f64;
    let mut gradients = (&loss * weight)?.backward()?;
    team.optimizer.step(progress.step, &mut gradients, &team.device)?;
    progress.step += 1;
    progress.settled = false;
    progress.window.add(&loss, own.len(), team.optimizer.exposed())
}

/// Steps since the last line of output.
struct Window {
    began: Instant,
    steps: u32,
    /// Sum over samples; a tensor, since a number would need a wait for the GPU.
    loss: Option<Tensor>,
    samples: usize,
    exposed: Duration,
}

impl Window {
    fn new() -> Self {
        Self { began: Instant::now(), steps: 0, loss: None, samples: 0, exposed: Duration::ZERO }
    }

    fn add(&mut self, loss: &Tensor, samples: usize, exposed: Duration) -> Result<()> {
        let sum = (loss.detach() * samples as f64)?;
        self.loss = Some(match &self.loss {
            Some(loss) => (loss + sum)?,
            None => sum,
        });
        self.samples += samples;
        self.steps += 1;
        self.exposed += exposed;
        Ok(())
    }
}

fn report<T: Task>(group: &Group, task: &T, window: &Window, done: u64) -> Result<()> {
    let loss = window.loss.as_ref().map(|loss| loss.to_dtype(DType::F64)?.to_scalar::<f64>()).transpose()?;
    let elapsed = window.began.elapsed().as_secs_f64();
    let score = task.evaluate(group.rank(), group.size())?;
    let mut sums = [loss.unwrap_or_default(), window.samples as f64, score.correct, score.of];
    group.all_reduce_in_place(&mut sums, ReduceOp::Sum).map_err(Error::from)?;
    let [loss, samples, correct, of] = sums;
    // There are no samples if a failure came between the last step and its report.
    if group.rank() != 0 || samples == 0.0 {
        return Ok(());
    }
    output::print(&format!(
        "step {done:>5}  loss {:.6}  accuracy {:.2} %  {:.2} ms/step  {:.1} % communication",
        loss / samples,
        100.0 * correct / of,
        1e3 * elapsed / f64::from(window.steps),
        100.0 * window.exposed.as_secs_f64() / elapsed
    ))
}
