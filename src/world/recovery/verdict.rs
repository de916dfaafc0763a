//! The next step of a process, from its knowledge of the others. Without sockets and clocks.

use super::question::View;
use super::service::{Decision, ProcessState};
use std::time::Duration;

/// Next step of a process after its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Wait,
    /// Form a world of these processes; this one is the first.
    Lead(Vec<usize>),
    /// Join the world formed by a process.
    Join(usize, Decision),
    /// The world has formed, and this process is a member although it did not take part: continue from there.
    Follow(Decision),
    /// A world has formed, and this process is not a member.
    LeftOut(Decision),
    /// Too few processes are left, compared with the processes that may live elsewhere: `(left, uncertain)`.
    TooFew(Vec<usize>, Vec<usize>),
}

/// A process after its call, and its knowledge.
pub(super) struct Observer<'a> {
    pub(super) me: usize,
    /// Views of all processes; `None` if not asked yet. The own is ignored.
    pub(super) views: &'a [Option<View>],
    /// Time since the call.
    pub(super) elapsed: Duration,
    pub(super) limit: Duration,
    /// Silence of all silent processes: the shortest of their silences.
    pub(super) silence: Duration,
}

impl Observer<'_> {
    pub(super) fn next_step(&self) -> NextStep {
        if let Some(decision) = self.views.iter().filter_map(decision_of).find(|decision| decision.formed) {
            let decision = decision.clone();
            return if self.is_member(&decision) {
                NextStep::Follow(decision)
            } else {
                NextStep::LeftOut(decision)
            };
        }
        let lower = self.views.iter().enumerate().take(self.me);
        match lower
            .filter(|(_, view)| has_called(view))
            .map(|(index, view)| (index, decision_of(view)))
            .next()
        {
            Some((leader, Some(decision)))
                if self.is_member(decision) && first_member(decision) == Some(leader) =>
            {
                NextStep::Join(leader, decision.clone())
            }
            Some(_) => NextStep::Wait,
            None => self.leader_step(),
        }
    }

    fn is_member(&self, decision: &Decision) -> bool {
        decision.members.iter().any(|&member| member as usize == self.me)
    }

    fn leader_step(&self) -> NextStep {
        let (mut left, mut uncertain) = (Vec::new(), Vec::new());
        let mut idle = false;
        for (index, view) in self.views.iter().enumerate() {
            match view {
                _ if index == self.me => left.push(index),
                Some(View::Gone | View::State(ProcessState::Left)) => {}
                Some(View::State(ProcessState::Calling)) => left.push(index),
                Some(View::Silent(_)) => uncertain.push(index),
                Some(View::State(ProcessState::Idle)) => {
                    idle = true;
                    uncertain.push(index);
                }
                // It forms a world without having seen this process, and notices later.
                None | Some(View::State(ProcessState::Decided(_))) => return NextStep::Wait,
            }
        }
        let over = self.elapsed >= self.limit;
        let waited = over || (!idle && self.silence >= self.limit / 3);
        if !uncertain.is_empty() && !waited {
            NextStep::Wait
        } else if is_quorum(&left, &uncertain) {
            NextStep::Lead(left)
        } else if over {
            NextStep::TooFew(left, uncertain)
        } else {
            NextStep::Wait
        }
    }
}

/// True if `left` may continue without `uncertain`: these may live and also continue. Of two sets that cannot
/// see each other, this holds for one at most: the larger, or of equal ones the set with the lowest process.
fn is_quorum(left: &[usize], uncertain: &[usize]) -> bool {
    left.len() > uncertain.len() || (left.len() == uncertain.len() && left.first() < uncertain.first())
}

fn first_member(decision: &Decision) -> Option<usize> {
    decision.members.first().map(|&member| member as usize)
}

fn decision_of(view: &Option<View>) -> Option<&Decision> {
    match view {
        Some(View::State(ProcessState::Decided(decision))) => Some(decision),
        _ => None,
    }
}

/// True for a process that waits for a decision or makes one.
pub(super) fn has_called(view: &Option<View>) -> bool {
    matches!(view, Some(View::State(ProcessState::Calling | ProcessState::Decided(_))))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
