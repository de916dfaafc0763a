use record::{Measurement, Placement, Rank, Run, RunOutcome, sample};

use super::*;
use crate::expectation::{known_expectations, parse_expectations};

const GIB: u64 = 1 << 30;

/// A run of allreduce over H200 with NVLS off: sizes and bandwidths, in both placements.
fn run(hosts: usize, per_host: usize, rows: &[(u64, f64)]) -> Run {
    let mut run = sample::full_run();
    run.ranks = (0..hosts * per_host)
        .map(|rank| Rank {
            rank,
            host: format!("node{}", rank / per_host),
            device: Some(rank % per_host),
            pci: Some(format!("0000:{:02x}:00", rank % per_host)),
            device_name: "NVIDIA H200".to_owned(),
            ..Rank::default()
        })
        .collect();
    run.settings = record::Settings::of_collectives();
    run.provenance.links = None;
    run.provenance.environment = [("NCCL_NVLS_ENABLE".to_owned(), "0".to_owned())].into();
    run.measurements = rows
        .iter()
        .flat_map(|&(bytes, busbw)| {
            [Placement::OutOfPlace, Placement::InPlace].map(|placement| Measurement {
                collective: "allreduce".to_owned(),
                data_type: "float".to_owned(),
                op: Some("sum".to_owned()),
                placement,
                bytes,
                busbw_gbps: busbw,
                wrong: Some(0),
                ..Measurement::default()
            })
        })
        .collect();
    run
}

fn judge(run: &Run) -> Verdict {
    judge_run(run, Told::default(), &[known_expectations()])
}

/// The kinds of all reasons, in order.
fn kinds(verdict: &Verdict) -> Vec<String> {
    let of_collectives = verdict.collectives.iter().flat_map(|each| &each.reasons);
    let kind = |reason: &Reason| serde_json::to_value(reason).unwrap()["kind"].as_str().unwrap().to_owned();
    verdict.reasons.iter().chain(of_collectives).map(kind).collect()
}

const GOOD: [(u64, f64); 4] = [(8, 0.001), (64 << 20, 322.0), (GIB, 359.0), (4 * GIB, 365.0)];

#[test]
fn a_machine_that_reaches_what_equal_ones_reach_passes() {
    let verdict = judge(&run(1, 8, &GOOD));
    assert_eq!((verdict.grade, kinds(&verdict)), (Grade::Pass, vec![]));
    let compared = verdict.collectives[0].comparison.as_ref().unwrap();
    assert_eq!((compared.rows, compared.below, compared.row.key.bytes), (6, 0, 4 * GIB));
    assert_eq!(verdict.collectives[0].ceiling.as_ref().unwrap().busbw_gbps, 450.0);
}

#[test]
fn a_slow_machine_fails_and_its_variable_is_named() {
    let mut slow = run(1, 8, &[(64 << 20, 30.0), (GIB, 35.0), (4 * GIB, 36.0)]);
    slow.provenance.environment.insert("NCCL_P2P_DISABLE".to_owned(), "1".to_owned());
    let verdict = judge(&slow);
    assert_eq!(verdict.grade, Grade::Fail);
    assert_eq!(kinds(&verdict), ["not_over_nv_link", "below_expectation"]);
    let names: Vec<&str> = verdict.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names, ["NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE"]);
}

#[test]
fn wrong_cut_and_unverified_data_never_pass() {
    let mut wrong = run(1, 8, &GOOD);
    wrong.measurements[3].wrong = Some(1);
    assert_eq!((judge(&wrong).grade, kinds(&judge(&wrong))), (Grade::Fail, vec!["wrong_data".to_owned()]));
    let mut cut = run(1, 8, &GOOD);
    cut.outcome = RunOutcome::Running;
    assert_eq!((judge(&cut).grade, kinds(&judge(&cut))), (Grade::Warn, vec!["not_whole".to_owned()]));
    let mut unverified = run(1, 8, &GOOD);
    unverified.measurements.iter_mut().for_each(|measurement| measurement.wrong = None);
    assert_eq!(kinds(&judge(&unverified)), ["not_verified"]);
    assert_eq!(judge(&unverified).grade, Grade::Warn);
}

#[test]
fn a_bandwidth_above_the_links_is_a_fault_of_the_measurement() {
    let verdict = judge(&run(1, 8, &[(64 << 20, 322.0), (GIB, 455.0)]));
    assert_eq!((verdict.grade, kinds(&verdict)), (Grade::Fail, vec!["above_ceiling".to_owned()]));
    assert_eq!(judge(&run(1, 8, &[(64 << 20, 322.0), (GIB, 451.0)])).grade, Grade::Pass);
}

#[test]
fn an_unknown_machine_has_no_floor() {
    for (hosts, per_host, obstacle) in
        [(1, 6, Obstacle::NoExpectation), (2, 8, Obstacle::UnknownNics), (1, 1, Obstacle::SingleRank)]
    {
        let verdict = judge(&run(hosts, per_host, &[(GIB, 200.0)]));
        assert_eq!(verdict.grade, Grade::Unknown, "{hosts} x {per_host}");
        assert_eq!(verdict.collectives[0].reasons, [Reason::NotCompared { obstacle }]);
    }
    let mut other = run(1, 8, &[(GIB, 1.0)]);
    other.ranks.iter_mut().for_each(|rank| rank.device_name = "Another GPU".to_owned());
    assert_eq!(judge(&other).grade, Grade::Unknown);
    let mut symmetric = run(1, 8, &GOOD);
    symmetric.settings.registration = record::Registration::Symmetric;
    assert_eq!(judge(&symmetric).grade, Grade::Unknown);
    let small = judge(&run(1, 8, &[(8, 0.1), (1 << 20, 50.0)]));
    assert_eq!(small.collectives[0].reasons, [Reason::NotCompared { obstacle: Obstacle::SmallSizes }]);
}

#[test]
fn an_unknown_state_of_nvls_never_passes_for_the_better_one() {
    let mut unsure = run(1, 8, &GOOD);
    unsure.provenance.environment.clear();
    assert_eq!(
        (judge(&unsure).grade, kinds(&judge(&unsure))),
        (Grade::Warn, vec!["without_nvls".to_owned()])
    );
    let told =
        |nvls| judge_run(&unsure, Told { nvls: Some(nvls), nics: None }, &[known_expectations()]).grade;
    assert_eq!((told(false), told(true)), (Grade::Pass, Grade::Fail));
    let fast = Run {
        provenance: unsure.provenance.clone(),
        ..run(1, 8, &[(128 << 20, 412.0), (GIB, 468.0), (4 * GIB, 473.0)])
    };
    assert_eq!((judge(&fast).grade, kinds(&judge(&fast))), (Grade::Pass, vec![]));
}

#[test]
fn hosts_that_use_one_nic_fail() {
    let slow = run(2, 8, &[(64 << 20, 40.0), (GIB, 48.0)]);
    let told = |nics: &str| Told { nics: Some(nics.parse().unwrap()), nvls: None };
    let verdict = judge_run(&slow, told("8x400"), &[known_expectations()]);
    assert_eq!((verdict.grade, kinds(&verdict)[0].as_str()), (Grade::Fail, "one_nic"));
    let whole = judge_run(&slow, told("1x400"), &[known_expectations()]);
    assert_eq!((whole.grade, kinds(&whole)), (Grade::Unknown, vec!["not_compared".to_owned()]));
    // Without the NICs only a rate that no machine with NVLink is built for is suspicious.
    assert_eq!(judge(&slow).grade, Grade::Unknown);
    let slower = run(2, 8, &[(64 << 20, 2.0), (GIB, 3.0)]);
    assert_eq!((judge(&slower).grade, kinds(&judge(&slower))[0].as_str()), (Grade::Warn, "slow_network"));
}

#[test]
fn unknown_nics_are_no_excuse_for_less_than_half() {
    let h100 = |busbw| {
        let mut run = run(2, 8, &[(GIB, busbw), (16 * GIB, busbw)]);
        run.ranks.iter_mut().for_each(|rank| rank.device_name = "NVIDIA H100 80GB HBM3".to_owned());
        run.provenance.environment.clear();
        let verdict = judge(&run);
        (verdict.grade, kinds(&verdict))
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(h100(470.0), (Grade::Pass, vec![]));
    assert_eq!(h100(339.0), (Grade::Unknown, words(&["not_compared"])));
    assert_eq!(h100(196.0), (Grade::Warn, words(&["far_below_fastest", "not_compared"])));
}

#[test]
fn ranks_that_share_gpus_and_single_ranks_say_nothing_about_links() {
    let mut shared = run(1, 2, &GOOD);
    shared.ranks.iter_mut().for_each(|rank| rank.pci = Some("0000:18:00".to_owned()));
    let verdict = judge(&shared);
    assert_eq!(verdict.collectives[0].reasons, [Reason::NotCompared { obstacle: Obstacle::SharedGpus }]);
    assert_eq!((verdict.grade, &verdict.collectives[0].ceiling), (Grade::Warn, &None));
    // In place, a single rank does nothing, at any bandwidth.
    let alone = judge(&run(1, 1, &[(GIB, 5e6)]));
    assert_eq!((alone.grade, alone.collectives[0].best.is_none()), (Grade::Unknown, true));
}

#[test]
fn results_that_are_not_whole_stay_unknown_when_nothing_is_known() {
    let mut cut = run(1, 6, &[(GIB, 200.0)]);
    cut.outcome = RunOutcome::Running;
    assert_eq!(judge(&cut).grade, Grade::Unknown);
}

#[test]
fn values_of_a_run_are_compared_with_each_other() {
    let dip = run(1, 8, &[(64 << 20, 322.0), (128 << 20, 340.0), (GIB, 359.0), (4 * GIB, 320.0)]);
    assert!(kinds(&judge(&dip)).contains(&"dip".to_owned()), "{:?}", kinds(&judge(&dip)));
    let mut placed = run(1, 8, &GOOD);
    placed.measurements.iter_mut().filter(|each| each.placement == Placement::InPlace).for_each(|each| {
        each.busbw_gbps *= 1.2;
    });
    assert_eq!(kinds(&judge(&placed)), ["placements_differ"]);
    let mut late = run(1, 2, &[(GIB, 314.0)]);
    for measurement in &mut late.measurements {
        measurement.per_rank =
            [10.0, 13.0].map(|time_us| record::RankTimes { time_us, statistics: None }).to_vec();
    }
    assert!(kinds(&judge(&late)).contains(&"ranks_differ".to_owned()), "{:?}", kinds(&judge(&late)));
}

#[test]
fn a_single_slow_row_warns_and_the_largest_size_fails() {
    let middle = judge(&run(
        1,
        8,
        &[(64 << 20, 322.0), (256 << 20, 348.0), (512 << 20, 320.0), (GIB, 359.0), (4 * GIB, 365.0)],
    ));
    assert_eq!(middle.grade, Grade::Warn, "{:?}", kinds(&middle));
    let last = judge(&run(1, 8, &[(64 << 20, 322.0), (256 << 20, 345.0), (GIB, 359.0), (4 * GIB, 330.0)]));
    assert_eq!(last.grade, Grade::Fail);
}

#[test]
fn a_site_has_its_own_values() {
    let site = r#"
        [[expectation]]
        gpu = "H200"
        gpus_per_host = 6
        hosts = 1
        collective = "allreduce"
        points = [["1G", 300, 290]]
        source = "acceptance"
        date = "2026-11"
        trust = "high"
    "#;
    let site = parse_expectations(site).unwrap();
    let grade =
        |busbw| judge_run(&run(1, 6, &[(GIB, busbw)]), Told::default(), &[&site, known_expectations()]).grade;
    assert_eq!((grade(295.0), grade(285.0)), (Grade::Pass, Grade::Fail));
}

#[test]
fn a_source_of_low_trust_fails_nobody() {
    let site = r#"
        [[expectation]]
        gpu = "H200"
        gpus_per_host = 6
        hosts = 1
        collective = "allreduce"
        points = [["1G", 300]]
        source = "a report"
        date = "2022"
        trust = "low"
    "#;
    let verdict =
        judge_run(&run(1, 6, &[(GIB, 100.0)]), Told::default(), &[&parse_expectations(site).unwrap()]);
    assert_eq!((verdict.grade, kinds(&verdict)), (Grade::Warn, vec!["below_expectation".to_owned()]));
}

#[test]
fn numbers_that_are_none_are_no_rows() {
    let odd = run(1, 8, &[(GIB, f64::NAN), (GIB, f64::INFINITY), (GIB, -1.0), (GIB, 0.0)]);
    let verdict = judge(&odd);
    assert_eq!((verdict.grade, verdict.collectives[0].best.is_none()), (Grade::Unknown, true));
    assert_eq!(verdict.reasons, [Reason::UnusableValues { measurements: 6 }]);
    let one = judge(&run(1, 8, &[GOOD[1], GOOD[2], GOOD[3], (2 * GIB, f64::NAN)]));
    assert_eq!(one.grade, Grade::Warn);
    let nothing = run(1, 8, &[]);
    assert_ne!(judge(&nothing).grade, Grade::Pass);
}

#[test]
fn one_gpu_per_host_uses_one_nic_rightly() {
    let alone = run(2, 1, &[(GIB, 45.0)]);
    let told = Told { nics: Some("8x400".parse().unwrap()), nvls: None };
    let verdict = judge_run(&alone, told, &[known_expectations()]);
    assert_eq!((verdict.grade, kinds(&verdict)), (Grade::Unknown, vec!["not_compared".to_owned()]));
}

#[test]
fn groups_of_ranks_are_not_judged_as_one() {
    let mut groups = run(2, 8, &[(GIB, 360.0)]);
    groups.measurements.iter_mut().for_each(|measurement| measurement.group = Some(0));
    let told = Told { nics: Some("4x100".parse().unwrap()), nvls: None };
    let verdict = judge_run(&groups, told, &[known_expectations()]);
    assert_eq!(verdict.collectives[0].reasons, [Reason::NotCompared { obstacle: Obstacle::Groups }]);
    assert_eq!(verdict.collectives[0].ceiling, None);
}

#[test]
fn an_expectation_of_the_site_counts_before_a_faster_known_one() {
    let mut h100 = run(2, 8, &[(GIB, 339.0)]);
    h100.ranks.iter_mut().for_each(|rank| rank.device_name = "NVIDIA H100 80GB HBM3".to_owned());
    let site = r#"
        [[expectation]]
        gpu = "H100"
        gpus_per_host = 8
        hosts = 2
        collective = "allreduce"
        points = [["1G", 340, 330]]
        source = "acceptance"
        date = "2026-11"
        trust = "high"
    "#;
    let site = parse_expectations(site).unwrap();
    assert_eq!(judge_run(&h100, Told::default(), &[&site, known_expectations()]).grade, Grade::Pass);
}

#[test]
fn a_lost_nvlink_is_named() {
    let mut part = run(1, 8, &GOOD);
    let gpu = |number: usize, nvlinks| record::GpuLinks {
        pci: format!("0000:{number:02x}:00.0"),
        nvlinks: Some(nvlinks),
        pcie_gbps: Some(63.0),
    };
    let gpus = (0..8).map(|number| gpu(number, if number == 3 { 17 } else { 18 })).collect();
    part.provenance.links = Some(record::HostLinks { gpus, nics: Vec::new() });
    let verdict = judge(&part);
    assert_eq!(verdict.reasons, [Reason::FewNvLinks { active: 17, usual: 18 }]);
    assert_eq!(verdict.grade, Grade::Warn);
    assert_eq!(verdict.collectives[0].ceiling.as_ref().unwrap().busbw_gbps, 425.0);
    // A GPU alone needs none.
    let mut alone = run(1, 1, &GOOD);
    alone.provenance.links = Some(record::HostLinks { gpus: vec![gpu(0, 0)], nics: Vec::new() });
    assert_eq!((judge(&alone).grade, judge(&alone).reasons), (Grade::Unknown, vec![]));
}

#[test]
fn a_link_to_the_host_by_nvlink_is_no_sign_of_a_fault() {
    let mut gb200 = run(1, 4, &[(GIB, 200.0)]);
    gb200.ranks.iter_mut().for_each(|rank| rank.device_name = "NVIDIA GB200".to_owned());
    assert_eq!(kinds(&judge(&gb200)), ["not_compared"]);
}

#[test]
fn every_known_expectation_can_be_reached() {
    for (number, expectation) in known_expectations().iter().enumerate() {
        let machine = expectation.describe_machine();
        let first = known_expectations().iter().position(|other| {
            other.nvls() == expectation.nvls() && other.fits_machine(&machine, expectation.collective())
        });
        assert_eq!(first, Some(number), "{machine:?}");
        let ceiling = find_ceiling(&machine, expectation.collective());
        let highest = expectation.largest_size_gbps();
        assert!(ceiling.is_none_or(|ceiling| ceiling.busbw_gbps >= highest), "{machine:?}: {highest}");
    }
}
