//! Groups of groups, whose ranks are threads of one process or processes.

use std::env;
use std::process::{Child, Command, exit};
use std::thread;
use std::time::{Duration, Instant};

use collectives::job::{Group, Job};
use cudarc::driver::CudaContext;

use crate::gpus::Gpus;
use crate::jobs::on_groups;
use crate::port::reserve_port;
use crate::shape;
use crate::shape::gpu::Gpu;
use crate::shape::loss::{Case, Loss, cases, lose_last, lost_ranks};

/// Body of a rank that is a process.
const BODY: &str = "GPU_NCCL_BODY";
/// Case of a lost rank.
const CASE: &str = "GPU_NCCL_CASE";
/// Time limit for the processes of a job.
const PATIENCE: Duration = Duration::from_secs(60);
/// Losses of processes: one that ends in order, and one that is killed.
const LOSSES: [Loss; 2] = [Loss::Ends, Loss::Killed];

type Body = fn(&Group);

/// Tests whose ranks are threads or processes, by name.
const BODIES: [(&str, Body); 6] = [
    ("each shape", shape::each_shape::<Gpu>),
    ("parts at once", shape::parts_at_once::<Gpu>),
    ("messages at once", shape::messages_at_once),
    ("mixed order", shape::mixed_order::<Gpu>),
    ("dropped parts", shape::dropped_parts::<Gpu>),
    ("reducers", shape::reducers::<Gpu>),
];

fn form(gpus: Gpus, job: &Job) -> Group {
    let context = CudaContext::new(gpus.device(job.local_rank())).unwrap();
    job.group_on_gpu(gpus.library, &context).unwrap()
}

pub(crate) fn threads() {
    let gpus = Gpus::all();
    for (name, body) in BODIES {
        println!("  {name}");
        on_groups(gpus, body);
    }
}

pub(crate) fn lost_threads() {
    let gpus = Gpus::all();
    lost_ranks::<Gpu>(gpus.count, |job| form(gpus, job));
}

pub(crate) fn processes() {
    let gpus = Gpus::all();
    for (name, _) in BODIES {
        println!("  {name}");
        let ends = run_processes(gpus.count, &[(BODY, name)]);
        assert_eq!(ends, vec![Some(0); gpus.count], "{name}");
    }
}

pub(crate) fn lost_processes() {
    let gpus = Gpus::all();
    for (number, case) in cases(&LOSSES).enumerate() {
        let ends = run_processes(gpus.count, &[(CASE, &number.to_string())]);
        let mut expected = vec![Some(0); gpus.count];
        if case.2 == Loss::Killed {
            expected[gpus.count - 1] = None;
        }
        assert_eq!(ends, expected, "{case:?}");
    }
}

/// Starts this program as each rank of a job. Returns the exit codes; `None` for ranks that a signal has
/// ended.
fn run_processes(ranks: usize, variables: &[(&str, &str)]) -> Vec<Option<i32>> {
    let address = format!("127.0.0.1:{}", reserve_port());
    let start = |rank: usize| {
        Command::new(env::current_exe().unwrap())
            .envs(variables.iter().copied())
            .env("NCCL_BENCH_RANK", rank.to_string())
            .env("NCCL_BENCH_SIZE", ranks.to_string())
            .env("NCCL_BENCH_ADDR", &address)
            .spawn()
            .unwrap()
    };
    let mut processes: Vec<Child> = (0..ranks).map(start).collect();
    let limit = Instant::now() + PATIENCE;
    while processes.iter_mut().any(|process| process.try_wait().unwrap().is_none()) {
        if Instant::now() > limit {
            processes.iter_mut().for_each(|process| _ = process.kill());
            panic!("{variables:?}: a rank does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
    processes.iter_mut().map(|process| process.wait().unwrap().code()).collect()
}

/// Runs the rank and never returns, if this process is a rank of these tests.
pub(crate) fn run_if_rank() {
    let case = env::var(CASE).ok().and_then(|number| cases(&LOSSES).nth(number.parse().ok()?));
    let body = env::var(BODY).ok().and_then(|name| BODIES.into_iter().find(|body| body.0 == name));
    if case.is_none() && body.is_none() {
        return;
    }
    let gpus = Gpus::all();
    let job = Job::from_environment().unwrap();
    let group = form(gpus, &job);
    if let Some((_, body)) = body {
        body(&group);
    }
    if let Some(case) = case {
        observe(&group, case);
    }
    drop(group);
    drop(job);
    exit(0);
}

fn observe(group: &Group, case: Case) {
    let lose = || {
        if case.2 == Loss::Killed {
            // SAFETY: takes a number.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    };
    let meet = || group.world().barrier().unwrap();
    if let Some(observed) = lose_last::<Gpu>(group, case, meet, lose) {
        observed.assert_named(case, group.rank(), group.size() - 1);
    }
}
