use record::Placement;
use record::matching::{Key, TableKey};

use super::*;

const CRITERIA: Criteria = Criteria { threshold: 0.02, is_complete: true };
const ROWS: u32 = 20;
const STARTS: usize = 8;
const TABLES: u64 = 1000;

/// A generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1, without either.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Returns a standard normal number (Box-Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

fn key(row: u32) -> Key {
    let table = TableKey {
        collective: "allreduce".to_owned(),
        data_type: "float".to_owned(),
        op: Some("sum".to_owned()),
        root: None,
        group: None,
        pair: None,
    };
    Key { table, placement: Placement::OutOfPlace, bytes: 8 << row }
}

/// Returns starts with these times in every row.
fn steady_starts(times: &[f64], rows: u32) -> Vec<Start> {
    times
        .iter()
        .map(|&time| Start { times_us: (0..rows).map(|row| (key(row), Some(time))).collect() })
        .collect()
}

/// Returns starts with noise in each row. A share of the starts is slow in all rows, by half.
fn random_starts(random: &mut Random, factor: f64, noise: f64, slow_share: f64) -> Vec<Start> {
    let start = |_| {
        let speed = if random.uniform() < slow_share { 1.5 } else { 1.0 };
        let time = |row: u32| {
            let time = f64::from(row + 1) * speed * factor * (noise * random.normal()).exp();
            (key(row), Some(time))
        };
        Start { times_us: (0..ROWS).map(time).collect() }
    };
    (0..STARTS).map(start).collect()
}

/// Returns the comparison of each simulated table.
fn simulate(factor: f64, noise: f64, slow_share: f64) -> impl Iterator<Item = SideComparison> {
    (0..TABLES).map(move |seed| {
        let mut random = Random(seed);
        let a = random_starts(&mut random, 1.0, noise, slow_share);
        let b = random_starts(&mut random, factor, noise, slow_share);
        compare_sides(&a, &b, &CRITERIA)
    })
}

fn has_difference(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Slower { .. } | Outcome::Faster { .. })
}

fn all_outcomes(comparison: &SideComparison) -> impl Iterator<Item = Outcome> {
    let rows = comparison.rows.iter().map(|row| row.difference.outcome);
    rows.chain(comparison.overall.as_ref().map(|overall| overall.outcome))
}

#[test]
fn equal_sides_have_no_difference_in_the_whole_table() {
    for (noise, slow_share) in [(0.03, 0.0), (0.01, 0.5)] {
        let wrong = simulate(1.0, noise, slow_share)
            .filter(|comparison| all_outcomes(comparison).any(has_difference))
            .count();
        assert!(wrong <= 10, "noise {noise}, slow {slow_share}: {wrong} of {TABLES} tables");
    }
}

#[test]
fn a_difference_above_the_noise_is_found_and_the_interval_covers_it() {
    let (mut found, mut covered, mut rows, mut overall) = (0, 0, 0, 0);
    for comparison in simulate(1.05, 0.01, 0.0) {
        for row in &comparison.rows {
            rows += 1;
            found += u32::from(matches!(row.difference.outcome, Outcome::Slower { .. }));
            let [lower, upper] = row.difference.estimate.interval.unwrap();
            covered += u32::from((lower..=upper).contains(&1.05));
        }
        let outcome = comparison.overall.unwrap().outcome;
        overall += u32::from(matches!(outcome, Outcome::Slower { by } if (by - 0.05).abs() < 0.01));
    }
    assert_eq!(rows, ROWS * TABLES as u32);
    assert_eq!(overall, TABLES as u32);
    assert!(f64::from(found) >= 0.99 * f64::from(rows), "{found} of {rows} found");
    assert!(f64::from(covered) >= 0.94 * f64::from(rows), "{covered} of {rows} covered");
}

#[test]
fn equal_sides_with_two_speeds_are_told_to_have_them() {
    let slow = |slow: usize| -> Vec<f64> {
        (0..STARTS).map(|start| if start < slow { 9.0 } else { 6.0 } + 0.01 * start as f64).collect()
    };
    let comparison = compare_sides(&steady_starts(&slow(3), 2), &steady_starts(&slow(5), 2), &CRITERIA);
    let row = &comparison.rows[0].difference;
    assert_eq!(row.outcome, Outcome::CannotTell { doubt: Doubt::StartsDiffer });
    assert_eq!(row.a.two_speeds.unwrap().slow.starts, 3);
    let shared = row.shared_speeds.unwrap();
    assert_eq!(shared.slow_starts, [3, 5]);
    assert!((shared.p - 0.619).abs() < 0.001, "{}", shared.p);
}

#[test]
fn rows_that_a_side_lacks_are_listed() {
    let mut a = steady_starts(&[1.0, 1.01, 1.02, 1.03, 1.04], 5);
    let mut b = a.clone();
    for start in &mut a {
        start.times_us.retain(|(key, _)| key.bytes != 8);
        start.times_us[3].1 = Some(f64::NAN);
    }
    for start in &mut b {
        start.times_us.retain(|(key, _)| key.bytes != 16);
        start.times_us[3].1 = None;
    }
    b[2].times_us[1].1 = Some(f64::INFINITY);
    let comparison = compare_sides(&a, &b, &CRITERIA);
    let sizes: Vec<u64> = comparison.rows.iter().map(|row| row.key.bytes).collect();
    assert_eq!(sizes, [64]);
    let left_out: Vec<_> = comparison.left_out.iter().map(|row| (row.key.bytes, row.reason)).collect();
    let expected = [
        (16, LeftOut::OnlyIn(Side::A)),
        (32, LeftOut::MissingInStarts),
        (128, LeftOut::NeverTimed),
        (8, LeftOut::OnlyIn(Side::B)),
    ];
    assert_eq!(left_out, expected);
}

#[test]
fn with_few_starts_only_the_overall_mean_is_tested() {
    let fast = [100.0, 100.1, 100.2, 100.3, 100.4];
    let slow = fast.map(|time| time * 1.05);
    let comparison = compare_sides(&steady_starts(&fast, 30), &steady_starts(&slow, 30), &CRITERIA);
    assert_eq!((comparison.rows_are_tested, comparison.needed_starts), (false, Some(8)));
    assert!(matches!(comparison.overall.unwrap().outcome, Outcome::Slower { .. }));
    let doubt = Outcome::CannotTell { doubt: Doubt::TooFewStarts };
    assert!(comparison.rows.iter().all(|row| row.difference.outcome == doubt));
    // A single row is the overall mean.
    let comparison = compare_sides(&steady_starts(&fast, 1), &steady_starts(&slow, 1), &CRITERIA);
    assert!(comparison.rows_are_tested);
    assert!(all_outcomes(&comparison).all(|outcome| matches!(outcome, Outcome::Slower { .. })));
}

#[test]
fn sides_without_starts_or_rows_have_no_result() {
    let some = steady_starts(&[1.0; 5], 2);
    for (a, b) in [(&some[..], &[][..]), (&[], &some), (&[], &[])] {
        let comparison = compare_sides(a, b, &CRITERIA);
        assert!(comparison.overall.is_none() && comparison.rows.is_empty(), "{comparison:?}");
    }
    let few = compare_sides(&some[..1], &some[..2], &CRITERIA);
    let doubt = Outcome::CannotTell { doubt: Doubt::TooFewStarts };
    assert!(all_outcomes(&few).all(|outcome| outcome == doubt), "{few:?}");
}

#[test]
fn a_summary_has_the_range_of_all_starts() {
    let mut starts = steady_starts(&[6.0, 9.0, 6.1, 9.1, 6.0, 9.0], 1);
    starts.push(Start::default());
    let rows = summarize_starts(&starts);
    let times = rows[0].times.as_ref().unwrap();
    assert_eq!((rows.len(), rows[0].missing), (1, 1));
    assert_eq!((times.median_us, times.min_us, times.max_us), (7.55, 6.0, 9.1));
    assert!((times.spread - 3.1 / 7.55).abs() < 1e-12 && times.two_speeds.is_some());
}

#[test]
fn starts_are_balanced_between_the_sides() {
    use Side::{A, B};
    assert_eq!(Side::order_starts(4), [A, B, B, A, A, B, B, A]);
    assert_eq!(Side::order_starts(5).iter().filter(|&&side| side == A).count(), 5);
}
