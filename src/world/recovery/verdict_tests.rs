use super::*;
use proptest::prelude::*;

fn decision(formed: bool, members: &[u32]) -> Decision {
    Decision { formed, port: 1, key: "k".to_owned(), members: members.to_vec() }
}

fn idle() -> Option<View> {
    Some(View::State(ProcessState::Idle))
}

fn calling() -> Option<View> {
    Some(View::State(ProcessState::Calling))
}

fn decided(formed: bool, members: &[u32]) -> Option<View> {
    Some(View::State(ProcessState::Decided(decision(formed, members))))
}

fn silent() -> Option<View> {
    Some(View::Silent("no answer".to_owned()))
}

const GONE: Option<View> = Some(View::Gone);

/// Next step of process `me`, `elapsed` of ten seconds after its call, with silent processes silent for as
/// long.
fn next(me: usize, views: &[Option<View>], elapsed: u64) -> NextStep {
    let (elapsed, limit) = (Duration::from_secs(elapsed), Duration::from_secs(10));
    Observer { me, views, elapsed, limit, silence: elapsed }.next_step()
}

#[test]
fn the_lowest_caller_leads_all_others_once_the_rest_is_gone() {
    assert_eq!(next(0, &[None, calling(), GONE, calling()], 0), NextStep::Lead(vec![0, 1, 3]));
    assert_eq!(next(1, &[GONE, None, calling(), calling()], 0), NextStep::Lead(vec![1, 2, 3]));
    assert_eq!(next(2, &[GONE, calling(), None, calling()], 9), NextStep::Wait);
    assert_eq!(next(3, &[GONE, GONE, GONE, None], 0), NextStep::Lead(vec![3]));
    // Not all have been asked.
    assert_eq!(next(0, &[None, calling(), None, calling()], 20), NextStep::Wait);
}

#[test]
fn live_processes_are_waited_for_until_the_limit() {
    let views = [None, calling(), idle(), calling()];
    assert_eq!(next(0, &views, 9), NextStep::Wait);
    assert_eq!(next(0, &views, 10), NextStep::Lead(vec![0, 1, 3]));
    // Silent ones for a third of it, if nobody else is waited for.
    let views = [None, calling(), silent(), calling()];
    assert_eq!(next(0, &views, 3), NextStep::Wait);
    assert_eq!(next(0, &views, 4), NextStep::Lead(vec![0, 1, 3]));
    assert_eq!(next(0, &[None, idle(), silent(), calling(), calling()], 4), NextStep::Wait);
}

#[test]
fn decisions_are_followed() {
    let of_one = |formed, members: &[u32]| [GONE, decided(formed, members), None, calling()];
    assert_eq!(next(2, &of_one(false, &[1, 2, 3]), 0), NextStep::Join(1, decision(false, &[1, 2, 3])));
    assert_eq!(next(2, &of_one(true, &[1, 2, 3]), 0), NextStep::Follow(decision(true, &[1, 2, 3])));
    assert_eq!(next(2, &of_one(true, &[1, 3]), 0), NextStep::LeftOut(decision(true, &[1, 3])));
    // Until it has formed, it may fail and be replaced.
    assert_eq!(next(2, &of_one(false, &[1, 3]), 20), NextStep::Wait);
    assert_eq!(next(0, &[None, decided(false, &[1, 2]), calling()], 20), NextStep::Wait);
    // Nobody decides for processes before it.
    assert_eq!(next(2, &of_one(false, &[0, 1, 2]), 0), NextStep::Wait);
    // An uninformed member knows of the world from another member.
    assert_eq!(
        next(1, &[GONE, None, decided(true, &[0, 1, 2])], 0),
        NextStep::Follow(decision(true, &[0, 1, 2]))
    );
}

#[test]
fn the_smaller_part_ends() {
    assert_eq!(next(0, &[None, silent(), silent()], 9), NextStep::Wait);
    assert_eq!(next(0, &[None, silent(), silent()], 10), NextStep::TooFew(vec![0], vec![1, 2]));
    assert_eq!(next(0, &[None, silent(), GONE], 10), NextStep::Lead(vec![0]));
    assert_eq!(next(1, &[silent(), None, GONE], 10), NextStep::TooFew(vec![1], vec![0]));
}

proptest! {
    /// At most one part continues, however the processes are divided, with any of them dead or not calling.
    #[test]
    fn only_one_part_continues(
        parts in prop::collection::vec((0..3_usize, any::<bool>(), any::<bool>()), 1..9),
    ) {
        let mut worlds = Vec::new();
        for me in 0..parts.len() {
            let view = |other: usize| match parts[other] {
                // A dead process of another part cannot be distinguished from a live one, or is known to be
                // dead.
                (_, false, known) if known => GONE,
                (part, ..) if part != parts[me].0 => silent(),
                (_, false, _) => GONE,
                (_, true, true) => calling(),
                (_, true, false) => idle(),
            };
            let (_, alive, calls) = parts[me];
            if !alive || !calls {
                continue;
            }
            let views: Vec<_> = (0..parts.len()).map(view).collect();
            if let NextStep::Lead(members) = next(me, &views, 10) {
                let is_one_part = members.iter().all(|&other| parts[other].0 == parts[me].0);
                prop_assert!(members.contains(&me) && is_one_part);
                worlds.push(members);
            }
        }
        prop_assert!(worlds.len() <= 1, "{worlds:?}");
    }
}
