//! A job that goes on when one of its ranks is killed: no restart, and the ranks that are left have their
//! data.
//!
//! With a number as argument, that rank kills itself at step 3 of 10. The launcher must leave the others
//! alone, as a shell does:
//!
//! ```text
//! cargo build --example job_shrink
//! export NCCL_BENCH_SIZE=4 NCCL_BENCH_ADDR=127.0.0.1:29500
//! for rank in 0 1 2 3; do NCCL_BENCH_RANK=$rank target/debug/examples/job_shrink 0 & done; wait
//! ```

use collectives::job::{Backend, Job};
use collectives::{Error, ReduceOp};
use std::time::Instant;

const STEPS: u64 = 10;

/// Makes the steps that are missing, with the ranks of this job.
fn train(job: &Job, first_rank: usize, step: &mut u64, failure: &mut Option<Instant>) -> Result<(), Error> {
    let victim = std::env::args().nth(1).and_then(|rank| rank.parse::<usize>().ok());
    let group = job.group(Backend::Auto)?;
    // A rank may have finished a step that others have not; a program that cannot repeat one reads a
    // checkpoint.
    let mut common = [*step];
    group.all_reduce_in_place(&mut common, ReduceOp::Min)?;
    *step = common[0];
    while *step < STEPS {
        if *step == 3 && victim == Some(first_rank) {
            // SAFETY: takes no memory, and ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let mut mean = [first_rank as f32];
        group.all_reduce_in_place(&mut mean, ReduceOp::Avg)?;
        let (rank, size, mean) = (job.rank(), job.size(), mean[0]);
        let after =
            failure.take().map(|since| format!(", {:.3} s after the failure", since.elapsed().as_secs_f64()));
        println!("step {step}: rank {rank} of {size}, mean {mean}{}", after.unwrap_or_default());
        *step += 1;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut job = Job::from_environment()?;
    let (first_rank, mut step, mut failure) = (job.rank(), 0, None);
    while let Err(error) = train(&job, first_rank, &mut step, &mut failure) {
        if matches!(error, Error::Job(_) | Error::Buffer(_)) {
            // This rank's own error, which the others learn.
            job.fail(&error.to_string());
            return Err(error);
        }
        println!("step {step}: {error}");
        failure = Some(Instant::now());
        let left = job.shrink()?;
        if left.size() == job.size() {
            // Nobody is gone: the same would fail again.
            return Err(error);
        }
        job = left;
    }
    Ok(())
}
