//! Agreement of the remaining processes on their next world.

use super::Shrunk;
use super::question::{View, ask_process, tell_gone_on};
use super::service::{Decision, ProcessState};
use super::site::Site;
use super::table::new_key;
use super::verdict::{NextStep, Observer, has_called};
use crate::lock::lock;
use crate::log;
use crate::world::{Error, Handle, Options, RendezvousConfig, single, tcp, threads};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between questions. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a silent process is asked again.
const SILENT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of processes asked at once.
const MAX_QUESTIONS: usize = 32;
/// Smallest and largest time limit of the rendezvous of a new world.
const MEET_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// A world of the remaining processes, and this process's place in it.
type Formed = (Option<Handle>, Arc<Site>);

/// Agrees with the other processes on a world of the remaining ones, and makes `ranks` ranks of this process.
///
/// # Errors
/// If this process is left out, too few processes are left, or they do not agree in three times `limit`.
pub(super) fn agree_on_world(site: Arc<Site>, ranks: usize, limit: Duration) -> Result<Vec<Shrunk>, Error> {
    let deadline = Instant::now() + limit.saturating_mul(3);
    let mut site = site;
    loop {
        let (world, next) = Caller::new(&site, ranks, limit, deadline).run_agreement()?;
        let handles = match world {
            None => None,
            Some(world) if ranks == 1 && next.processes.len() > 1 => Some(vec![world]),
            // If another process has died meanwhile, this one continues from the new world.
            Some(world) => threads(world, ranks).ok(),
        };
        if let Some(handles) = handles {
            let shrunk = handles.into_iter().enumerate();
            return Ok(shrunk.map(|(thread, world)| Shrunk::new(world, Arc::clone(&next), thread)).collect());
        }
        site = next;
    }
}

/// A process after its call.
struct Caller<'a> {
    site: &'a Site,
    ranks: usize,
    limit: Duration,
    deadline: Instant,
    start: Instant,
    views: Vec<Option<View>>,
    /// For each silent process: the times of the first question without an answer, and of the last question.
    silent: Vec<Option<(Instant, Instant)>>,
}

impl<'a> Caller<'a> {
    fn new(site: &'a Site, ranks: usize, limit: Duration, deadline: Instant) -> Self {
        let processes = site.processes.len();
        let (views, silent) = (vec![None; processes], vec![None; processes]);
        Self { site, ranks, limit, deadline, start: Instant::now(), views, silent }
    }

    fn run_agreement(&mut self) -> Result<Formed, Error> {
        self.site.report_state(ProcessState::Calling);
        let result = self.take_steps();
        match &result {
            Ok(_) => {}
            Err(Error::LeftOut(_)) => self.site.leave_job(),
            // It may call again.
            Err(_) => self.site.report_state(ProcessState::Idle),
        }
        result
    }

    fn take_steps(&mut self) -> Result<Formed, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(members) = self.site.gone_on() {
                return Err(self.left_out(members));
            }
            self.survey_processes();
            let formed = match self.next_step() {
                NextStep::Wait => None,
                NextStep::Lead(members) => {
                    let has_read_all = self.read_news();
                    if let Some(members) = self.site.gone_on() {
                        return Err(self.left_out(members));
                    }
                    if has_read_all { self.lead_world(&members)? } else { None }
                }
                NextStep::Join(leader, decision) => self.join_world(leader, &decision),
                NextStep::Follow(decision) => {
                    let next = self.place_in(&decision)?;
                    self.site.report_state(ProcessState::Decided(decision));
                    return Ok((None, next));
                }
                NextStep::LeftOut(decision) => return Err(self.left_out(decision.members.len())),
                NextStep::TooFew(left, uncertain) => return Err(self.too_few(&left, &uncertain)),
            };
            if let Some(formed) = formed {
                return Ok(formed);
            }
            if Instant::now() >= self.deadline {
                return Err(self.timed_out());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    fn next_step(&self) -> NextStep {
        let now = Instant::now();
        let silence =
            self.silent.iter().flatten().map(|(since, _)| now.saturating_duration_since(*since)).min();
        let observer = Observer {
            me: self.site.me,
            views: &self.views,
            elapsed: now.saturating_duration_since(self.start),
            limit: self.limit,
            silence: silence.unwrap_or_default(),
        };
        observer.next_step()
    }

    /// Asks the processes before this one, in batches of growing size, until one has called. Asks the
    /// processes after this one only if none has.
    fn survey_processes(&mut self) {
        let (me, all) = (self.site.me, self.site.processes.len());
        let (mut begin, mut count) = (0, 1);
        while begin < me {
            let end = me.min(begin + count);
            self.ask_all(begin..end);
            if self.views[begin..end].iter().any(has_called) {
                return;
            }
            (begin, count) = (end, count * 2);
        }
        self.ask_all(me + 1..all);
    }

    fn ask_all(&mut self, range: std::ops::Range<usize>) {
        let now = Instant::now();
        let rests = |silent: &Option<(Instant, Instant)>| {
            silent.is_some_and(|(_, last)| now.saturating_duration_since(last) < SILENT_PAUSE)
        };
        let asked: Vec<usize> = range
            .filter(|&other| self.views[other] != Some(View::Gone) && !rests(&self.silent[other]))
            .collect();
        let answers = Mutex::new(Vec::with_capacity(asked.len()));
        let site = self.site;
        for_each(&asked, |other| {
            let view = ask_process(&site.processes[other], other, &site.key, site.processes.len());
            lock(&answers).push((other, view));
        });
        let now = Instant::now();
        for (other, view) in lock(&answers).drain(..) {
            self.silent[other] = match view {
                View::Silent(_) => Some((self.silent[other].map_or(now, |(since, _)| since), now)),
                _ => None,
            };
            self.views[other] = Some(view);
        }
    }

    /// Waits until this process's service has read all arrived messages, and returns true; false after a time
    /// limit.
    ///
    /// While this process was stopped, the others may have sent it the news that they continued without it,
    /// and have ended since. The service answers connections in their order. So it has read the news before
    /// it answers a question of this process.
    fn read_news(&self) -> bool {
        let me = &self.site.processes[self.site.me];
        !matches!(ask_process(me, self.site.me, &self.site.key, self.site.processes.len()), View::Silent(_))
    }

    /// Forms a world as its first process. `None` if not all members come.
    fn lead_world(&self, members: &[usize]) -> Result<Option<Formed>, Error> {
        let members: Vec<u32> = members.iter().filter_map(|&member| u32::try_from(member).ok()).collect();
        let mut decision = Decision { formed: false, port: 0, key: new_key()?, members };
        let world = if decision.members.len() == 1 {
            single()
        } else {
            let config = self.meeting_config(self.site.me, &decision, 0);
            let listener = tcp::listen_on_port(&config)?;
            decision.port = listener.local_addr().map_or(0, |address| address.port());
            self.site.report_state(ProcessState::Decided(decision.clone()));
            match tcp::join_world(&config, &self.meeting_options(), Some(listener)) {
                Ok(world) => Arc::new(world),
                Err(error) => return Ok(self.not_formed(&error)),
            }
        };
        let next = self.settle_decision(decision.clone())?;
        self.tell_others(&decision);
        Ok(Some((Some(world), next)))
    }

    /// Informs the excluded processes: they must not continue once the members have ended.
    fn tell_others(&self, decision: &Decision) {
        let is_member = |other: usize| decision.members.iter().any(|&member| member as usize == other);
        let others: Vec<usize> = (0..self.views.len())
            .filter(|&other| !is_member(other) && self.views[other] != Some(View::Gone))
            .collect();
        let site = self.site;
        for_each(&others, |other| {
            tell_gone_on(&site.processes[other], other, &site.key, decision.members.len());
        });
    }

    /// Joins the world formed by `leader`. `None` if not all members come.
    fn join_world(&self, leader: usize, decision: &Decision) -> Option<Formed> {
        let rank = decision.members.iter().position(|&member| member as usize == self.site.me)?;
        match tcp::join_world(&self.meeting_config(leader, decision, rank), &self.meeting_options(), None) {
            Ok(world) => Some((Some(Arc::new(world)), self.settle_decision(decision.clone()).ok()?)),
            Err(error) => self.not_formed(&error),
        }
    }

    fn not_formed<T>(&self, error: &Error) -> Option<T> {
        log::debug(format_args!("the remaining ranks could not form a world: {error}"));
        self.site.report_state(ProcessState::Calling);
        None
    }

    /// Makes a decision final for this process.
    fn settle_decision(&self, decision: Decision) -> Result<Arc<Site>, Error> {
        let next = self.place_in(&decision)?;
        self.site.report_state(ProcessState::Decided(Decision { formed: true, ..decision }));
        Ok(next)
    }

    fn place_in(&self, decision: &Decision) -> Result<Arc<Site>, Error> {
        self.site.after(decision, self.ranks).ok_or_else(|| self.left_out(decision.members.len()))
    }

    fn meeting_config(&self, leader: usize, decision: &Decision, rank: usize) -> RendezvousConfig {
        RendezvousConfig {
            rank,
            size: decision.members.len(),
            hosts: self.site.processes[leader].addresses.iter().map(IpAddr::to_string).collect(),
            ports: vec![decision.port],
            key: decision.key.clone(),
            local: None,
        }
    }

    fn meeting_options(&self) -> Options {
        let timeout = (self.limit / 3).clamp(MEET_TIMEOUT.0, MEET_TIMEOUT.1);
        Options { timeout, ..self.site.options.clone() }
    }

    fn process_names(&self, processes: impl IntoIterator<Item = usize>) -> String {
        let processes = processes.into_iter().filter_map(|process| self.site.processes.get(process));
        processes.map(super::table::JobProcess::describe_process).collect::<Vec<_>>().join(", ")
    }

    fn left_out(&self, members: usize) -> Error {
        Error::LeftOut(format!(
            "{} called shrink too late or could not be reached: {members} of the {} processes continue \
             without it",
            self.process_names([self.site.me]),
            self.site.processes.len()
        ))
    }

    fn too_few(&self, left: &[usize], uncertain: &[usize]) -> Error {
        Error::TimedOut(format!(
            "{} cannot continue: {} may still run and continue without them ({}); end the processes that \
             may still run, or start the job again",
            self.process_names(left.iter().copied()),
            self.process_names(uncertain.iter().copied()),
            self.describe_states(),
        ))
    }

    fn timed_out(&self) -> Error {
        let limit = self.limit.saturating_mul(3).as_secs_f64();
        Error::TimedOut(format!(
            "the remaining ranks did not agree within {limit} s: {}",
            self.describe_states()
        ))
    }

    /// Returns the known states of the other processes, except ended ones.
    fn describe_states(&self) -> String {
        let texts = self.views.iter().enumerate().filter(|(other, _)| *other != self.site.me);
        let texts = texts.filter_map(|(other, view)| {
            let state = match view.as_ref()? {
                View::Gone | View::State(ProcessState::Left) => return None,
                View::Silent(reason) => format!("gave no answer ({reason})"),
                View::State(ProcessState::Idle) => "has not called shrink".to_owned(),
                View::State(ProcessState::Calling) => "has called shrink".to_owned(),
                View::State(ProcessState::Decided(decision)) => {
                    let members = decision.members.iter().map(|&member| member as usize);
                    format!("continues with {}", self.process_names(members))
                }
            };
            Some(format!("{} {state}", self.process_names([other])))
        });
        texts.collect::<Vec<_>>().join("; ")
    }
}

/// Calls `call` for each process, from several threads.
fn for_each(processes: &[usize], call: impl Fn(usize) + Sync) {
    let queue = Mutex::new(processes.iter());
    let work = || {
        loop {
            let Some(&process) = lock(&queue).next() else { return };
            call(process);
        }
    };
    thread::scope(|scope| {
        // This thread does all of the work if no other can be started.
        for _ in 1..processes.len().min(MAX_QUESTIONS) {
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}
