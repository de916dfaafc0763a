//! A process's place in a job, shared by its ranks.

use super::Shrunk;
use super::service::{Decision, ProcessState, Service};
use super::table::{Introduced, JobProcess};
use crate::lock::lock;
use crate::world::{Error, Options};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A process's place in a job. Dropping it leaves the job.
pub(super) struct Site {
    pub(super) key: String,
    /// All processes of the job.
    pub(super) processes: Vec<JobProcess>,
    /// This process.
    pub(super) me: usize,
    /// Options of the next world.
    pub(super) options: Options,
    /// `None` in a job that began with one process.
    pub(super) service: Option<Arc<Service>>,
    local: Mutex<Local>,
    changed: Condvar,
}

/// State of the ranks of this process.
struct Local {
    threads: Vec<Thread>,
    /// True while a rank of this process shrinks the job for all callers.
    running: bool,
    /// True once the job has been shrunk.
    finished: bool,
}

enum Thread {
    /// It has not called.
    Here,
    Called,
    /// Result for a thread that has called.
    Done(Result<Shrunk, Error>),
    /// It has dropped its handle.
    Gone,
    /// The others have continued without it.
    LeftOut,
}

/// Sites by key: the ranks of a process make theirs one after another.
static SITES: Mutex<Option<HashMap<String, Weak<Site>>>> = Mutex::new(None);

impl Site {
    /// Returns the site of this process in a job. Its first rank makes it.
    pub(super) fn of_process(introduced: Introduced, service: Option<Arc<Service>>) -> Arc<Self> {
        let mut sites = lock(&SITES);
        let sites = sites.get_or_insert_default();
        if let Some(site) = sites.get(&introduced.key).and_then(Weak::upgrade) {
            return site;
        }
        sites.retain(|_, site| site.strong_count() > 0);
        let key = introduced.key.clone();
        let options = Options { on_wait: None, ..introduced.rejoin.options };
        let site = Self::new(introduced.key, introduced.processes, introduced.me, options, service);
        sites.insert(key, Arc::downgrade(&site));
        site
    }

    fn new(
        key: String,
        processes: Vec<JobProcess>,
        me: usize,
        options: Options,
        service: Option<Arc<Service>>,
    ) -> Arc<Self> {
        let threads = (0..processes[me].ranks).map(|_| Thread::Here).collect();
        let local = Mutex::new(Local { threads, running: false, finished: false });
        let site = Self { key, processes, me, options, service, local, changed: Condvar::new() };
        site.report_state(ProcessState::Idle);
        Arc::new(site)
    }

    /// Returns the place in the next world of a decision's members, with `ranks` ranks per process; `None` if
    /// this process is not a member.
    pub(super) fn after(&self, decision: &Decision, ranks: usize) -> Option<Arc<Self>> {
        let members = decision.members.iter().map(|&member| member as usize);
        let me = members.clone().position(|member| member == self.me)?;
        let processes = members.enumerate().map(|(number, member)| {
            Some(JobProcess { first: number * ranks, ranks, ..self.processes.get(member)?.clone() })
        });
        let processes = processes.collect::<Option<Vec<_>>>()?;
        Some(Self::new(decision.key.clone(), processes, me, self.options.clone(), self.service.clone()))
    }

    /// Sets the state reported to other processes.
    pub(super) fn report_state(&self, state: ProcessState) {
        if let Some(service) = &self.service {
            service.set_state(&self.key, self.me, state);
        }
    }

    /// Number of processes that continue without this one, if it has been informed.
    pub(super) fn gone_on(&self) -> Option<usize> {
        Some(self.service.as_ref()?.gone_on(&self.key)? as usize)
    }

    pub(super) fn leave_job(&self) {
        if let Some(service) = &self.service {
            service.leave_job(&self.key);
        }
    }

    /// Records that rank number `thread` of this process will not call.
    pub(super) fn depart_thread(&self, thread: usize) {
        let before = std::mem::replace(&mut lock(&self.local).threads[thread], Thread::Gone);
        self.changed.notify_all();
        // Perhaps the new world: it is left without the lock.
        drop(before);
    }

    /// True if rank number `thread` of this process has dropped its handle before the others continued
    /// without it.
    #[cfg(test)]
    pub(super) fn has_departed(&self, thread: usize) -> bool {
        matches!(lock(&self.local).threads[thread], Thread::Gone)
    }

    /// Shrinks the job for rank number `thread` of this process. The first rank to call does so for all, with
    /// `run`: it gets the number of callers and returns as many results.
    pub(super) fn shrink_job(
        &self,
        thread: usize,
        limit: Duration,
        run: impl FnOnce(usize) -> Result<Vec<Shrunk>, Error>,
    ) -> Result<Shrunk, Error> {
        let mut local = lock(&self.local);
        match local.threads[thread] {
            Thread::LeftOut => return Err(self.left_out(thread)),
            _ if local.finished => {
                let again = "this job has been shrunk already: use the job returned by the first call";
                return Err(Error::Mismatch(again.to_owned()));
            }
            Thread::Here => local.threads[thread] = Thread::Called,
            _ => {
                let rank = self.processes[self.me].first + thread;
                return Err(Error::Mismatch(format!("rank {rank} shrinks its job twice at once")));
            }
        }
        self.changed.notify_all();
        if !local.running {
            local.running = true;
            local = self.wait_for_threads(local, limit);
            self.run_shrink(local, run);
            local = lock(&self.local);
        }
        loop {
            match std::mem::replace(&mut local.threads[thread], Thread::Here) {
                Thread::Done(result) => return result,
                other => local.threads[thread] = other,
            }
            local = self.changed.wait(local).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all remaining ranks of this process have called, for three quarters of `limit` at most:
    /// the other processes wait for this one no longer than `limit`.
    fn wait_for_threads<'a>(
        &'a self,
        mut local: MutexGuard<'a, Local>,
        limit: Duration,
    ) -> MutexGuard<'a, Local> {
        let by = Instant::now() + limit / 4 * 3;
        let may_call = |thread: &Thread| matches!(thread, Thread::Here | Thread::Done(_));
        while local.threads.iter().any(may_call) {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            local = self.changed.wait_timeout(local, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        local
    }

    fn run_shrink(
        &self,
        mut local: MutexGuard<'_, Local>,
        run: impl FnOnce(usize) -> Result<Vec<Shrunk>, Error>,
    ) {
        for thread in &mut local.threads {
            if matches!(thread, Thread::Here) {
                *thread = Thread::LeftOut;
            }
        }
        let called: Vec<usize> =
            (0..local.threads.len()).filter(|&one| matches!(local.threads[one], Thread::Called)).collect();
        let all = called.len() == local.threads.len();
        drop(local);
        let result = if all || self.processes.len() == 1 {
            run(called.len())
        } else {
            self.leave_job();
            Err(self.incomplete_error(&called))
        };
        let mut local = lock(&self.local);
        local.finished = result.is_ok();
        local.running = false;
        match result {
            Ok(results) => {
                for (thread, result) in called.into_iter().zip(results) {
                    local.threads[thread] = Thread::Done(Ok(result));
                }
            }
            Err(error) => {
                for thread in called {
                    local.threads[thread] = Thread::Done(Err(error.clone()));
                }
            }
        }
        drop(local);
        self.changed.notify_all();
    }

    fn left_out(&self, thread: usize) -> Error {
        let rank = self.processes[self.me].first + thread;
        Error::LeftOut(format!(
            "rank {rank} was excluded: the other ranks of its process called shrink and did not wait longer \
             for it"
        ))
    }

    fn incomplete_error(&self, called: &[usize]) -> Error {
        let process = &self.processes[self.me];
        Error::LeftOut(format!(
            "only {} of the {} ranks of this process ({}) remain, and every process needs the same number: \
             this process is excluded. With one process for each rank, a failure costs no other rank",
            called.len(),
            process.ranks,
            process.describe_process(),
        ))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.leave_job();
    }
}
