//! The conclusion in sentences.

use judge::pairs::{Conclusion, Doubt, Pair, Part, Suspect, Verdict};
use record::RunOutcome;

use super::Unit;
use super::results::State;
use super::units::Units;

/// Pairs that a sentence lists.
const LISTED: usize = 4;

/// The conclusion in sentences, the most important first.
pub(super) fn list_sentences(
    state: &State,
    units: &Units,
    conclusion: &Conclusion,
    outcome: &RunOutcome,
) -> Vec<String> {
    let mut sentences = list_wrong_pairs(state, units);
    match outcome {
        RunOutcome::Interrupted { signal } => {
            sentences.push(format!("interrupted by {signal}: no conclusion"))
        }
        RunOutcome::Failed { message } => sentences.push(format!("no conclusion: {message}")),
        RunOutcome::Running | RunOutcome::Complete => {}
    }
    sentences.extend(describe_slow_hosts(units, &conclusion.slow));
    sentences.extend(conclusion.slow.iter().map(|suspect| describe_slow(units, suspect)));
    sentences.extend(conclusion.seen_once.iter().map(|suspect| describe_seen_once(units, suspect)));
    sentences.extend(conclusion.doubts.iter().map(|doubt| describe_doubt(units, doubt)));
    if *outcome == RunOutcome::Complete && matches!(conclusion.verdict, Verdict::Alike | Verdict::SeenOnce) {
        sentences.push(describe_alike(units, conclusion));
    }
    if conclusion.pairs_measured < conclusion.pairs_possible {
        sentences.push(format!(
            "measured {} of {} connections; more: --rounds",
            conclusion.pairs_measured, conclusion.pairs_possible
        ));
    }
    sentences
}

/// Name of a unit in a sentence.
fn name_unit(units: &Units, number: usize) -> String {
    let Some(unit) = units.units.get(number) else { return number.to_string() };
    match units.unit {
        Unit::Host => format!("host {}", unit.label),
        Unit::Rank => format!("rank {} on {}", unit.label, unit.host),
    }
}

fn name_pair(units: &Units, [one, other]: Pair) -> String {
    format!("{} and {}", name_unit(units, one), name_unit(units, other))
}

fn name_part(units: &Units, part: Part) -> String {
    match part {
        Part::Node(node) => name_unit(units, node),
        Part::Edge(edge) => format!("the connection of {}", name_pair(units, edge)),
    }
}

fn describe_slow(units: &Units, suspect: &Suspect) -> String {
    let (name, percent) = (name_part(units, suspect.part), suspect.shortfall * 100.0);
    let again = suspect
        .confirmation
        .as_ref()
        .map_or_else(String::new, |again| format!(", confirmed by {} of {}", again.slow_pairs, again.pairs));
    let ambiguous =
        if suspect.is_ambiguous { "; with three, both of its connections can be the cause" } else { "" };
    match suspect.part {
        Part::Node(_) => format!(
            "{name} is slow: {percent:.1} % below the others in {} of {} pairs{again}{ambiguous}",
            suspect.slow_pairs, suspect.pairs
        ),
        Part::Edge(_) => format!("{name} is slow: {percent:.1} % below their other pairs{again}"),
    }
}

/// Sentences about hosts all of whose ranks are slow.
fn describe_slow_hosts(units: &Units, slow: &[Suspect]) -> Vec<String> {
    let is_slow = |number: usize| slow.iter().any(|suspect| suspect.part == Part::Node(number));
    let mut hosts: Vec<usize> = units.units.iter().map(|unit| unit.host_number).collect();
    hosts.dedup();
    let of_host = |host: usize| -> Vec<usize> {
        (0..units.units.len()).filter(|&number| units.units[number].host_number == host).collect()
    };
    let is_slow_host = |&host: &usize| {
        let ranks = of_host(host);
        units.unit == Unit::Rank && ranks.len() > 1 && ranks.iter().all(|&rank| is_slow(rank))
    };
    let describe = |host: usize| {
        let ranks = of_host(host);
        format!("all {} ranks of host {} are slow", ranks.len(), units.units[ranks[0]].host)
    };
    hosts.into_iter().filter(is_slow_host).map(describe).collect()
}

fn describe_seen_once(units: &Units, suspect: &Suspect) -> String {
    let (name, percent) = (name_part(units, suspect.part), suspect.shortfall * 100.0);
    let again = match &suspect.confirmation {
        Some(again) => format!("and {:.1} % when it was measured again", again.shortfall.max(0.0) * 100.0),
        None => "and could not be measured again".to_owned(),
    };
    format!("warning: {name} was {percent:.1} % slow once, {again}: not named")
}

fn describe_doubt(units: &Units, doubt: &Doubt) -> String {
    let things = match units.unit {
        Unit::Host => "hosts",
        Unit::Rank => "ranks",
    };
    match doubt {
        Doubt::OnePair => format!("cannot tell: two {things} have one pair, and nothing to compare it with"),
        Doubt::Unfinished { surveyed, planned } => {
            format!("cannot tell: the search ended early, after {surveyed} of {planned} rounds")
        }
        Doubt::Unmeasured { pairs } => {
            format!("cannot tell: {} pairs have no result: {}", pairs.len(), list_pairs(units, pairs))
        }
        Doubt::WithoutPair { nodes } => {
            format!("cannot tell: {} {things} are in no pair of the rounds; more: --rounds", nodes.len())
        }
        Doubt::TooManySuspects { nodes, edges } => format!(
            "cannot tell: {nodes} {things} and {edges} connections differ from the rest, which are too many to \
             say what is normal"
        ),
        Doubt::TooNoisy { detectable } => format!(
            "cannot tell: the measurements scatter so much that only {things} slower by {:.1} % or more would be \
             seen; more --repeats and --seconds, and less other work, help",
            detectable * 100.0
        ),
        Doubt::FastPairs { pairs } => format!(
            "cannot tell: {} pairs are faster than most, so that more than half of the {things} may be slow: {}",
            pairs.len(),
            list_pairs(units, pairs)
        ),
    }
}

fn list_pairs(units: &Units, pairs: &[Pair]) -> String {
    let names: Vec<String> = pairs.iter().take(LISTED).map(|&pair| name_pair(units, pair)).collect();
    let more = pairs.len().saturating_sub(LISTED);
    names.join("; ") + &if more > 0 { format!("; and {more} more") } else { String::new() }
}

fn describe_alike(units: &Units, conclusion: &Conclusion) -> String {
    let (count, things) = match units.unit {
        Unit::Host => (units.units.len(), "hosts"),
        Unit::Rank => (units.units.len(), "ranks"),
    };
    let detectable = conclusion.detectable.unwrap_or(f64::NAN) * 100.0;
    let other = if conclusion.verdict == Verdict::SeenOnce { "no other" } else { "none" };
    format!("{count} {things}: {other} is slower than most by {detectable:.1} % or more")
}

fn list_wrong_pairs(state: &State, units: &Units) -> Vec<String> {
    let mut wrong: Vec<Pair> = state
        .rounds
        .iter()
        .flat_map(|round| &round.pairs)
        .filter(|measured| measured.wrong > 0)
        .map(|measured| measured.pair)
        .collect();
    wrong.sort_unstable();
    wrong.dedup();
    let mut sentences = Vec::new();
    if !wrong.is_empty() {
        sentences.push(format!("WRONG DATA between {}", list_pairs(units, &wrong)));
    } else if state.has_wrong_start {
        sentences.push("WRONG DATA in the exchange among all ranks before the first round".to_owned());
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::pairs::results::{MeasuredPair, MeasuredRound};
    use crate::command::pairs::units::ProcessHost;
    use judge::pairs::{Options, PairResult, Purpose, Search};

    fn units(unit: Unit, hosts: usize, ranks: usize) -> Units {
        let host = |rank: usize| format!("node{}", rank * hosts / ranks);
        let host = |rank| ProcessHost { name: host(rank), id: host(rank) };
        Units::new(Some(unit), &(0..ranks).map(host).collect::<Vec<_>>(), ranks).unwrap()
    }

    /// The sentences of a complete search, for the bandwidths of pairs.
    fn sentences(units: &Units, bandwidth: impl Fn(Pair) -> f64) -> Vec<String> {
        let options = Options { rounds: 100, hosts: units.shared_hosts(), ..Options::default() };
        let mut search = Search::new(units.units.len(), options).unwrap();
        while let Some(round) = search.next_round() {
            let result = |&pair: &Pair| PairResult { pair, bandwidths: vec![bandwidth(pair)] };
            search.record_round(&round.pairs.iter().map(result).collect::<Vec<_>>()).unwrap();
        }
        list_sentences(&State::default(), units, &search.conclude(), &RunOutcome::Complete)
    }

    #[test]
    fn a_slow_part_is_named_with_its_evidence() {
        let hosts = units(Unit::Host, 8, 8);
        let host = sentences(&hosts, |pair| if pair.contains(&7) { 23.75 } else { 25.0 });
        let expected = "host node7 is slow: 5.0 % below the others in 7 of 7 pairs, confirmed by 3 of 3";
        assert_eq!(host, [expected]);
        let edge = sentences(&hosts, |pair| if pair == [2, 5] { 20.0 } else { 25.0 });
        let expected = "the connection of host node2 and host node5 is slow: 20.0 % below their other pairs, \
                        confirmed by 3 of 3";
        assert_eq!(edge, [expected]);
        assert_eq!(sentences(&hosts, |_| 25.0), ["8 hosts: none is slower than most by 2.0 % or more"]);
    }

    #[test]
    fn a_host_with_slow_ranks_only_is_named_first() {
        let ranks = units(Unit::Rank, 8, 16);
        let slow = sentences(&ranks, |pair| if pair.contains(&6) || pair.contains(&7) { 20.0 } else { 25.0 });
        assert_eq!(slow[0], "all 2 ranks of host node3 are slow");
        assert!(slow[1].starts_with("rank 6 on node3 is slow: 20.0 % below the others"), "{slow:?}");
        let one = sentences(&ranks, |pair| if pair.contains(&6) { 20.0 } else { 25.0 });
        assert!(one.len() == 1 && one[0].starts_with("rank 6 on node3 is slow"), "{one:?}");
    }

    #[test]
    fn without_a_conclusion_nothing_is_said_to_be_alike() {
        let two = sentences(&units(Unit::Host, 2, 2), |_| 25.0);
        assert_eq!(two, ["cannot tell: two hosts have one pair, and nothing to compare it with"]);
        let hosts = units(Unit::Host, 8, 8);
        let search = Search::new(8, Options::default()).unwrap();
        let failed = RunOutcome::Failed { message: "rank 3 died".to_owned() };
        let early = list_sentences(&State::default(), &hosts, &search.conclude(), &failed);
        assert_eq!(early[0], "no conclusion: rank 3 died");
        assert!(!early.iter().any(|sentence| sentence.contains("none is slower")), "{early:?}");
    }

    #[test]
    fn pairs_with_wrong_data_come_first() {
        let pairs = vec![MeasuredPair { pair: [1, 4], gbps: vec![25.0], wrong: 3 }];
        let rounds = vec![MeasuredRound { purpose: Purpose::Survey, pairs }];
        let search = Search::new(8, Options::default()).unwrap();
        let state = State { rounds, ..State::default() };
        let hosts = units(Unit::Host, 8, 8);
        let wrong = list_sentences(&state, &hosts, &search.conclude(), &RunOutcome::Complete);
        assert_eq!(wrong[0], "WRONG DATA between host node1 and host node4");
    }
}
