//! Headlines: peaks, verification, incomplete runs, libraries.

use nccl_bench::command::plot::{self, Metric, Placements};
use record::{Algorithm, Placement, Run, RunOutcome};

use crate::drawing::*;
use crate::runs::*;

#[test]
fn the_headline_has_the_peak_the_machine_and_the_versions() {
    let run = all_reduce();
    let right = run.measurements.iter().map(|each| each.busbw_gbps).fold(0.0, f64::max);
    let peak = format!("{right:.2} GB/s");
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
    let document = parse(&page);
    let [headline] = all(document.root_element(), "headline")[..] else { panic!("one headline") };
    let headline = text_of(headline);
    let drawing = plot::render_svg(&named(&[("run", &run)]), &options()).unwrap();
    let drawn = text_of(parse(&drawing).root_element());
    for expected in
        [&*peak, "peak bus bandwidth: allreduce, 8 GiB", "8 x NVIDIA H200 on 1 host", "NCCL 2.28.9"]
    {
        assert!(headline.contains(expected), "{expected}: {headline}");
        assert!(drawn.contains(expected), "{expected}: {drawn}");
    }
    for expected in ["CUDA 13.0", "nccl-bench 0.1.0 (1a2b3c4d5e6f)", "2026-11-22 08:30 UTC", "none wrong"] {
        assert!(headline.contains(expected), "{expected}: {headline}");
    }
    let count = run.measurements.len();
    assert!(drawn.contains(&format!("Data verified in all {count} measurements: none wrong")));
    let mut partly = run.clone();
    partly.measurements[0].wrong = None;
    let drawing = plot::render_svg(&named(&[("run", &partly)]), &options()).unwrap();
    let expected = format!("Data verified in {} of {count} measurements: none wrong there", count - 1);
    assert!(text_of(parse(&drawing).root_element()).contains(&expected));
}

#[test]
fn wrong_data_is_no_peak_and_unverified_data_is_not_called_verified() {
    let mut run = all_reduce();
    let best = run.measurements.iter().map(|each| each.busbw_gbps).fold(0.0, f64::max);
    for each in run.measurements.iter_mut().filter(|each| each.busbw_gbps == best) {
        each.wrong = Some(1);
    }
    let text_of_both = |run: &Run| {
        let runs = named(&[("run", run)]);
        [plot::render_html(&runs, &options()).unwrap(), plot::render_svg(&runs, &options()).unwrap()]
            .map(|text| text_of(parse(&text).root_element()))
    };
    for text in text_of_both(&run) {
        let second = run.measurements.iter().filter(|each| each.wrong == Some(0)).map(|each| each.busbw_gbps);
        let peak = second.fold(0.0, f64::max);
        let (_, before) = text.split_once("Collectives: bandwidth and latency").unwrap();
        assert!(text.contains(&format!("{peak:.2} GB/s")) && text.contains("has wrong data in"), "{text}");
        assert!(!before.contains(&format!("{best:.2} GB/s\npeak")), "{text}");
        assert!(!text.contains("Data verified"), "{text}");
    }
    run.measurements.iter_mut().for_each(|each| each.wrong = None);
    for text in text_of_both(&run) {
        for expected in ["was not verified", "run (not verified)", "in-place, not verified"] {
            assert!(
                text.contains(expected) || text.contains(&expected.replace("in-place", "out-of-place")),
                "{text}"
            );
        }
        assert!(!text.contains("Data verified") && !text.contains("none wrong"), "{text}");
    }
}

#[test]
fn the_peak_is_that_of_a_large_size() {
    let row = |collective, bytes, busbw| measurement(collective, Placement::OutOfPlace, bytes, 10.0, busbw);
    let run = |measurements| Run { measurements, ..empty(8) };
    let in_cache = row("broadcast", 16 << 10, 900.0);
    let large = row("allreduce", 1 << 20, 300.0);
    let mut wrong = large.clone();
    wrong.wrong = Some(1);
    for (measurements, expected) in [
        (vec![in_cache.clone(), large], "300.00 GB/s peak bus bandwidth: allreduce, 1 MiB, out-of-place"),
        (
            vec![in_cache, wrong],
            "900.00 GB/s peak bus bandwidth below 1 MiB: broadcast, 16 KiB, out-of-place",
        ),
    ] {
        let drawing = plot::render_svg(&named(&[("run", &run(measurements))]), &options()).unwrap();
        let document = parse(&drawing);
        let headline = all(document.root_element(), "headline").into_iter().map(text_of).collect::<Vec<_>>();
        assert!(headline.join(" ").starts_with(expected), "{headline:?}");
    }
}

#[test]
fn drawings_say_that_a_run_is_not_complete() {
    for (outcome, expected) in [
        (
            RunOutcome::Interrupted { signal: "SIGINT".to_owned() },
            "run was interrupted by SIGINT. This is not a complete run",
        ),
        (
            RunOutcome::Failed { message: "rank 3 died".to_owned() },
            "run failed: rank 3 died. This is not a complete run",
        ),
        (
            RunOutcome::Running,
            "run had not ended when its file was written, or was killed. This is not a complete run",
        ),
    ] {
        let run = Run { outcome, ..all_reduce() };
        let both = plot::render_svg(&named(&[("run", &run)]), &options()).unwrap();
        let each = plot::svg_each(&named(&[("run", &run)]), &options()).unwrap();
        for text in each.iter().map(|(_, text)| text).chain([&both]) {
            let document = parse(text);
            let alarm = all(document.root_element(), "alarm").into_iter().map(text_of).collect::<Vec<_>>();
            assert!(alarm.join(" ").starts_with(expected), "{alarm:?}");
        }
    }
    let text = plot::render_svg(&named(&[("run", &all_reduce())]), &options()).unwrap();
    assert!(all(parse(&text).root_element(), "alarm").is_empty());
}

#[test]
fn algorithms_are_named_with_the_library_that_chose_them() {
    let nccl = with_everything();
    let mut host = with_everything();
    host.provenance.backend = "fabric".to_owned();
    for each in &mut host.measurements {
        let name = if each.bytes < 4096 { "board" } else { "rabenseifner" };
        each.algorithm = Some(Algorithm { algorithm: name.to_owned(), protocol: None, channels: None });
    }
    for (runs, heading) in [
        (named(&[("a", &host)]), "algorithm (libfabric):"),
        (named(&[("a", &nccl)]), "algorithm (NCCL):"),
        (named(&[("a", &nccl), ("b", &host)]), "algorithm (NCCL, libfabric):"),
        (named(&[("a", &all_reduce()), ("b", &host)]), "algorithm (libfabric):"),
    ] {
        let page = plot::render_html(&runs, &options()).unwrap();
        let found = entries(parse(&page).root_element());
        assert!(found.iter().any(|entry| entry == heading), "{found:?}");
    }
    // Each has a marker of its own.
    let text = one_chart(&host, Metric::Time, |options| options.placements = Placements::Out);
    let document = parse(&text);
    let mut outlines: Vec<&str> =
        all(document.root_element(), "mark").into_iter().map(|mark| mark.attribute("d").unwrap()).collect();
    outlines.sort_unstable();
    outlines.dedup();
    assert_eq!(outlines.len(), 2);
}
