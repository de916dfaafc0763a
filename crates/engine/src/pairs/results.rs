//! The record of pairs: settings, and a measurement from the results of both sides.

use record::statistics::find_median;
use record::{Average, Measurement, PairSettings, RankMismatch, Settings, provenance};

use super::parallel::{SideResult, count_transfers};
use super::request::{PairRequest, Test};
use crate::request::SizeStep;

/// The measurement of a size. `pair` are the numbers of both ranks in the record, each with its result.
pub(super) fn make_measurement(
    request: &PairRequest,
    bytes: u64,
    pair: [(usize, &SideResult); 2],
) -> Measurement {
    // There and back are two transfers.
    let transfers_each = if request.test == Test::PingPong { 2 } else { 1 };
    let transfers = count_transfers(request, bytes) * transfers_each;
    let [(_, measured), _] = pair;
    let of_round = |&nanoseconds: &u64| nanoseconds as f64 / 1e3 / transfers as f64;
    let rounds_us: Vec<f64> = measured.nanoseconds.iter().map(of_round).collect();
    let time_us = find_median(&rounds_us).unwrap_or(f64::NAN);
    // All that moves in one direction: the link of each rank carries it.
    let bandwidth = (bytes * request.endpoints as u64) as f64 / (time_us * 1e3);
    let mismatch = |(rank, side): (usize, &SideResult)| {
        let wrong = side.wrong.filter(|&wrong| wrong > 0)?;
        Some(RankMismatch { rank, wrong, first: side.first.clone() })
    };
    Measurement {
        collective: request.test.test_name().to_owned(),
        pair: Some(pair.map(|(rank, _)| rank)),
        data_type: "uint8".to_owned(),
        bytes,
        count: bytes,
        time_us,
        algbw_gbps: bandwidth,
        busbw_gbps: bandwidth,
        wrong: pair.iter().map(|(_, side)| side.wrong).sum(),
        operations: rounds_us.len() * request.endpoints * transfers as usize,
        rounds_us: if rounds_us.len() > 1 { rounds_us } else { Vec::new() },
        mismatches: pair.into_iter().filter_map(mismatch).collect(),
        measured_at: provenance::now_utc(),
        ..Measurement::default()
    }
}

/// The settings of a request. `inject_bytes` and `direct` are properties of the opened endpoints.
pub(super) fn describe_settings(
    request: &PairRequest,
    inject_bytes: Option<usize>,
    direct: Option<bool>,
) -> Settings {
    let test = request.test;
    let (step_factor, step_bytes) = match request.step {
        SizeStep::Factor(factor) => (Some(factor), None),
        SizeStep::Bytes(bytes) => (None, Some(bytes)),
    };
    Settings {
        threads: request.threads,
        gpus: 1,
        min_bytes: request.min_bytes,
        max_bytes: request.max_bytes,
        step_factor,
        step_bytes,
        iterations: request.transfers.unwrap_or(0) as usize,
        aggregated: 1,
        warm_up: request.warm_up as usize,
        cycles: 1,
        checks: usize::from(request.check),
        average: Average::Rank0,
        rounds: (request.rounds > 1).then_some(request.rounds as usize),
        pairs: Some(PairSettings {
            test: test.test_name().to_owned(),
            messages: (!test.is_remote()).then_some(request.messages),
            window: (test != Test::PingPong).then_some(request.window),
            both_ways: test == Test::PingPong || request.both_ways,
            until: test.is_remote().then_some(request.until),
            inject_bytes: inject_bytes.filter(|_| test != Test::Read),
            direct,
            completion: request.completion,
            pause_ns: request.pause.as_nanos() as u64,
            endpoints: request.endpoints,
            shared_domain: request.shared_domain,
        }),
        ..Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(nanoseconds: &[u64], wrong: Option<u64>, first: &str) -> SideResult {
        SideResult { nanoseconds: nanoseconds.to_vec(), wrong, first: first.to_owned() }
    }

    #[test]
    fn a_measurement_has_the_median_of_its_rounds_and_the_wrong_bytes_of_both_sides() {
        let request = PairRequest { transfers: Some(10), endpoints: 3, ..PairRequest::new(Test::Bandwidth) };
        let (one, other) =
            (side(&[40_000, 10_000, 20_000], Some(0), ""), side(&[], Some(2), "element 1: ..."));
        let found = make_measurement(&request, 1000, [(4, &one), (1, &other)]);
        assert_eq!((found.collective.as_str(), found.pair), ("bw", Some([4, 1])));
        assert_eq!((found.time_us, &found.rounds_us[..]), (2.0, &[4.0, 1.0, 2.0][..]));
        assert_eq!((found.algbw_gbps, found.busbw_gbps, found.operations), (1.5, 1.5, 90));
        assert_eq!((found.wrong, found.failed_checks()), (Some(2), 1));
        let mismatch = RankMismatch { rank: 1, wrong: 2, first: "element 1: ...".to_owned() };
        assert_eq!(found.mismatches, [mismatch]);
    }

    #[test]
    fn a_round_trip_is_two_transfers_and_a_single_round_has_no_list() {
        let request = PairRequest { transfers: Some(2), ..PairRequest::new(Test::PingPong) };
        let found = make_measurement(&request, 8, [(0, &side(&[8000], None, "")), (1, &side(&[], None, ""))]);
        assert_eq!((found.time_us, found.operations, found.wrong), (2.0, 4, None));
        assert!(found.rounds_us.is_empty() && found.mismatches.is_empty());
    }

    #[test]
    fn data_that_one_side_has_not_verified_is_not_verified() {
        let request = PairRequest::new(Test::Write);
        let sides = [side(&[8000], Some(0), ""), side(&[], None, "")];
        assert_eq!(make_measurement(&request, 8, [(0, &sides[0]), (1, &sides[1])]).wrong, None);
    }
}
