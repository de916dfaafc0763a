//! `nccl-bench plot` on real numbers of nccl-tests: what it writes is parsed as XML, and its values are looked up.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use nccl_bench::command::plot::{self, Metric, NothingToDraw, Options, Placements, Scale, Spread};
use record::statistics::Statistics;
use record::{Algorithm, BackendLibrary, Measurement, Mismatch, Outcome, Placement, Rank, Run, Versus};
use roxmltree::{Document, Node, ParsingOptions};

const ALL_REDUCE: &str = include_str!("data/all_reduce_g8.txt");
const ALL_GATHER: &str = include_str!("data/all_gather_mpi.txt");

/// The run that the tests of the files have, too.
fn sample() -> Run {
    serde_json::from_str(include_str!("../../crates/record/tests/data/run.json")).unwrap()
}

/// A run without measurements, on a host whose name must be escaped.
fn empty(ranks: usize) -> Run {
    let sample = sample();
    let rank =
        |rank| Rank { rank, device: Some(rank), host: "node<1>".to_owned(), ..sample.ranks[0].clone() };
    Run { ranks: (0..ranks).map(rank).collect(), measurements: Vec::new(), notes: Vec::new(), ..sample }
}

/// What every measurement has, and nothing else.
fn measurement(
    collective: &str,
    placement: Placement,
    bytes: u64,
    time_us: f64,
    busbw_gbps: f64,
) -> Measurement {
    let plain = sample().measurements.into_iter().find(|sample| sample.statistics.is_none()).unwrap();
    Measurement {
        collective: collective.to_owned(),
        op: (collective == "allreduce").then(|| "sum".to_owned()),
        placement,
        bytes,
        count: bytes / 4,
        time_us,
        algbw_gbps: bytes as f64 / 1e3 / time_us,
        busbw_gbps,
        wrong: Some(0),
        ..plain
    }
}

/// The rows of a table of nccl-tests.
fn measurements(table: &str, collective: &str) -> Vec<Measurement> {
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let found: Vec<Measurement> = rows
        .flat_map(|row| {
            let cells: Vec<&str> = row.split_whitespace().collect();
            let number = |index: usize| cells[index].parse::<f64>().unwrap();
            let bytes = cells[0].parse().unwrap();
            [(Placement::OutOfPlace, 5), (Placement::InPlace, 9)]
                .map(|(placement, at)| measurement(collective, placement, bytes, number(at), number(at + 2)))
        })
        .collect();
    assert!(found.len() > 50, "the table was not read");
    found
}

fn all_reduce() -> Run {
    Run { measurements: measurements(ALL_REDUCE, "allreduce"), ..empty(8) }
}

fn all_gather() -> Run {
    Run { measurements: measurements(ALL_GATHER, "allgather"), ..empty(8) }
}

/// A run like another one, slower by a factor that grows with the size.
fn slower(run: &Run, factor: f64) -> Run {
    let mut slower = run.clone();
    for each in &mut slower.measurements {
        let factor = 1.0 + (factor - 1.0) * (each.bytes as f64).log2().max(0.0) / 33.0;
        each.time_us *= factor;
        each.algbw_gbps /= factor;
        each.busbw_gbps /= factor;
    }
    slower
}

/// What a run with everything has: statistics, algorithms, wrong data.
fn with_everything() -> Run {
    let mut run = all_reduce();
    for each in &mut run.measurements {
        let times = [0.93, 0.97, 1.0, 1.0, 1.02, 1.2].map(|factor| factor * each.time_us);
        each.statistics = Statistics::of(&times);
        let (algorithm, protocol) = match each.bytes {
            ..=0x4000 => ("tree", Some("ll")),
            0x4001..=0x10_0000 => ("ring", Some("ll128")),
            0x10_0001..=0x100_0000 => ("ring", Some("simple")),
            _ => ("nvls", None),
        };
        each.algorithm = Some(Algorithm {
            algorithm: algorithm.to_owned(),
            protocol: protocol.map(str::to_owned),
            channels: Some(16),
        });
        if each.bytes == 1 << 20 && each.placement == Placement::InPlace {
            each.wrong = Some(3);
            let first = "element 3: expected 1.5 (0x3fc00000), found NaN (0x7fc00000)".to_owned();
            each.mismatches = vec![Mismatch { rank: 5, wrong: 3, first }];
        }
    }
    run
}

fn named(runs: &[(&str, &Run)]) -> Vec<(String, Run)> {
    runs.iter().map(|&(label, run)| (label.to_owned(), run.clone())).collect()
}

fn parse(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap()
}

fn has_class(node: Node, class: &str) -> bool {
    node.attribute("class").is_some_and(|classes| classes.split(' ').any(|each| each == class))
}

fn all<'a, 'i>(node: Node<'a, 'i>, class: &str) -> Vec<Node<'a, 'i>> {
    node.descendants().filter(|each| has_class(*each, class)).collect()
}

fn text_of(node: Node) -> String {
    node.descendants().filter(Node::is_text).filter_map(|each| each.text()).collect()
}

/// The legends' entries.
fn entries(node: Node) -> Vec<String> {
    all(node, "entry").into_iter().map(|entry| text_of(entry).trim().to_owned()).collect()
}

/// The numbers in an attribute.
fn numbers(text: &str) -> Vec<f64> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().unwrap())
        .collect()
}

fn place(point: Node) -> (f64, f64) {
    let found = numbers(point.attribute("transform").unwrap());
    (found[0], found[1])
}

/// What a drawing says of a point: the targets of pointing and focus are in the order of the points.
fn target<'a, 'i>(point: Node<'a, 'i>) -> Node<'a, 'i> {
    let root = point.document().root_element();
    let index = all(root, "point").into_iter().position(|each| each == point).unwrap();
    all(root, "target")[index]
}

fn tooltip(point: Node) -> String {
    let title = target(point).children().find(|child| child.tag_name().name() == "title");
    text_of(title.unwrap())
}

/// The ticks of an axis with a label, as label and position.
fn ticks(chart: Node, class: &str) -> Vec<(String, f64)> {
    let [axis] = all(chart, class)[..] else { panic!("one axis of {class}") };
    let attribute = if class == "sizes" { "x" } else { "y" };
    axis.children()
        .filter(Node::is_element)
        .map(|tick| (text_of(tick), tick.attribute(attribute).unwrap().parse::<f64>().unwrap()))
        .collect()
}

/// Where a value lies, by two ticks with their values.
fn between(value: f64, (from, at_from): (f64, f64), (to, at_to): (f64, f64)) -> f64 {
    at_from + (value - from) / (to - from) * (at_to - at_from)
}

/// Positions of all points in the plot area, and in each series from left to right.
fn assert_inside(chart: Node) {
    let [grid, ..] = all(chart, "grid")[..] else { panic!("a grid") };
    let found = numbers(grid.attribute("d").unwrap());
    assert!(!found.is_empty());
    let narrow = has_class(chart, "narrow");
    let (left, right, top, bottom) =
        if narrow { (60.0, 352.0, 26.0, 240.0) } else { (64.0, 628.0, 26.0, 306.0) };
    for series in all(chart, "series") {
        let places: Vec<_> = all(series, "point").into_iter().map(place).collect();
        assert!(places.windows(2).all(|pair| pair[0].0 < pair[1].0), "{places:?}");
        for (x, y) in places {
            assert!((left..=right).contains(&x) && (top..=bottom).contains(&y), "({x}, {y})");
        }
        for band in all(series, "band") {
            for pair in numbers(band.attribute("d").unwrap()).chunks(2) {
                assert!((left..=right).contains(&pair[0]) && (top..=bottom).contains(&pair[1]), "{pair:?}");
            }
        }
    }
    for class in ["sizes", "values"] {
        let places: Vec<f64> = ticks(chart, class).into_iter().map(|(_, at)| at).collect();
        let sign = if class == "sizes" { 1.0 } else { -1.0 };
        assert!(places.windows(2).all(|pair| (pair[1] - pair[0]) * sign > 13.0), "{class} {places:?}");
    }
}

fn one_chart(run: &Run, metric: Metric, change: impl FnOnce(&mut Options)) -> String {
    let mut options = Options { metrics: vec![metric], ..Options::default() };
    change(&mut options);
    plot::svg(&named(&[("run", run)]), &options).unwrap()
}

#[test]
fn each_measurement_is_a_point_at_its_computed_place() {
    let text = one_chart(&all_reduce(), Metric::Busbw, |_| ());
    let document = parse(&text);
    let chart = document.root_element();
    assert_inside(chart);
    let series = all(chart, "series");
    assert_eq!(series.len(), 2);
    assert!(has_class(series[0], "out-of-place") && has_class(series[1], "in-place"));
    let rows = measurements(ALL_REDUCE, "allreduce").len() / 2;
    for each in &series {
        assert_eq!(all(*each, "point").len(), rows);
        let [line] = all(*each, "line")[..] else { panic!("one line") };
        assert_eq!(numbers(line.attribute("d").unwrap()).len(), 2 * rows);
    }
    let sizes = ticks(chart, "sizes");
    let labels: Vec<&str> = sizes.iter().map(|(label, _)| &**label).collect();
    assert_eq!(labels[..4], ["32 B", "1 KiB", "32 KiB", "1 MiB"]);
    let values = ticks(chart, "values");
    assert_eq!((&*values[0].0, &*values[1].0, &*values[2].0), ("0", "100", "200"));
    // 2 MiB, out-of-place: as the table has it, between the ticks around it.
    let expected = measurements(ALL_REDUCE, "allreduce")
        .into_iter()
        .find(|each| each.bytes == 2 << 20 && each.placement == Placement::OutOfPlace)
        .unwrap();
    let point = all(series[0], "point")
        .into_iter()
        .find(|point| tooltip(*point).contains("2 MiB (2097152 B)"))
        .unwrap();
    let at = |wanted: &str| sizes.iter().find(|(label, _)| label == wanted).unwrap().1;
    let x = between(21.0, (15.0, at("32 KiB")), (25.0, at("32 MiB")));
    let y = between(expected.busbw_gbps, (0.0, values[0].1 - 4.0), (200.0, values[2].1 - 4.0));
    let found = place(point);
    assert!((found.0 - x).abs() < 0.02 && (found.1 - y).abs() < 0.02, "{found:?}, not ({x}, {y})");
    let text = tooltip(point);
    assert!(text.starts_with("run, out-of-place\n"), "{text}");
    assert!(text.contains(&format!("busbw {:.2} GB/s", expected.busbw_gbps)), "{text}");
    assert!(text.contains(&format!("time {:.2} µs", expected.time_us)), "{text}");
}

#[test]
fn times_go_by_powers_of_ten() {
    let text = one_chart(&all_reduce(), Metric::Time, |_| ());
    let document = parse(&text);
    let chart = document.root_element();
    assert_inside(chart);
    let values = ticks(chart, "values");
    let labels: Vec<&str> = values.iter().map(|(label, _)| &**label).collect();
    assert_eq!(
        labels,
        ["50 µs", "100 µs", "200 µs", "500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]
    );
    let last = all(all(chart, "series")[0], "point").pop().unwrap();
    let expected = measurements(ALL_REDUCE, "allreduce")
        .into_iter()
        .rfind(|each| each.placement == Placement::OutOfPlace)
        .unwrap();
    let y = between(expected.time_us.log10(), (2.0, values[1].1 - 4.0), (4.0, values[7].1 - 4.0));
    assert!((place(last).1 - y).abs() < 0.02, "{:?}, not {y}", place(last));
}

#[test]
fn bandwidths_go_by_powers_of_ten_when_asked_and_leave_zero_out() {
    let mut run = all_reduce();
    run.measurements[0].busbw_gbps = 0.0;
    let text = one_chart(&run, Metric::Busbw, |options| {
        options.scale = Scale::Log;
        options.placements = Placements::Out;
    });
    let document = parse(&text);
    assert_inside(document.root_element());
    // The table has 0.00 for some, which is a value that the axis has no place for.
    let zeros = run
        .measurements
        .iter()
        .filter(|each| each.placement == Placement::OutOfPlace && each.busbw_gbps == 0.0)
        .count();
    let points = all(document.root_element(), "point").len();
    assert_eq!(points + zeros, run.measurements.len() / 2);
    let note =
        if zeros == 1 { "1 value is left out".to_owned() } else { format!("{zeros} values are left out") };
    assert!(text_of(document.root_element()).contains(&note), "{note}");
    assert!(all(document.root_element(), "in-place").is_empty());
}

#[test]
fn a_single_point_stands_in_the_middle_and_has_no_line() {
    let run = Run {
        measurements: vec![measurement("allreduce", Placement::OutOfPlace, 4096, 100.0, 0.07)],
        ..empty(2)
    };
    for metric in [Metric::Busbw, Metric::Time] {
        let text = one_chart(&run, metric, |_| ());
        let document = parse(&text);
        assert_inside(document.root_element());
        let points = all(document.root_element(), "point");
        assert_eq!(points.len(), 1);
        assert!((place(points[0]).0 - 346.0).abs() < 1.0);
        assert!(all(document.root_element(), "line").is_empty());
        assert_eq!(ticks(document.root_element(), "sizes")[0].0, "4 KiB");
    }
}

#[test]
fn what_is_no_number_interrupts_the_line_and_is_said() {
    let mut run = all_reduce();
    run.measurements.retain(|each| each.placement == Placement::OutOfPlace);
    run.measurements[5].time_us = f64::NAN;
    run.measurements[6].time_us = 0.0;
    run.measurements[6].algbw_gbps = f64::INFINITY;
    run.measurements[6].busbw_gbps = f64::INFINITY;
    run.measurements[20].busbw_gbps = f64::NAN;
    run.measurements[20].time_us = 1e300;
    let count = run.measurements.len();
    for metric in [Metric::Busbw, Metric::Time] {
        let text = one_chart(&run, metric, |_| ());
        assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
        let document = parse(&text);
        assert_inside(document.root_element());
        assert_eq!(all(document.root_element(), "point").len(), count - 3);
        assert_eq!(all(document.root_element(), "line").len(), 3);
        assert!(text_of(document.root_element()).contains("3 values are left out"));
    }
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let cells: Vec<String> = all(document.root_element(), "first").into_iter().map(text_of).collect();
    assert!(cells.contains(&"NaN".to_owned()) && cells.contains(&"0".to_owned()), "{cells:?}");
}

#[test]
fn size_zero_is_only_in_the_table() {
    let run = all_gather();
    let zeros = run.measurements.iter().filter(|each| each.bytes == 0).count();
    assert!(zeros > 0);
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let figures: Vec<Node> = root.descendants().filter(|node| node.tag_name().name() == "figure").collect();
    assert_eq!(figures.len(), 2);
    for figure in figures {
        for class in ["wide", "narrow"] {
            let [chart] = all(figure, class)[..] else { panic!("one {class} chart") };
            assert_inside(chart);
            assert_eq!(all(chart, "point").len(), run.measurements.len() - zeros);
        }
        assert!(text_of(figure).contains("Size 0 is left out"));
    }
    let [table] = all(root, "numbers")[..] else { panic!("one table") };
    let first = table.descendants().find(|node| node.tag_name().name() == "tbody").unwrap();
    assert!(text_of(first).trim_start().starts_with("0 B"));
    let only = Run {
        measurements: run.measurements.into_iter().filter(|each| each.bytes == 0).collect(),
        ..empty(8)
    };
    assert_eq!(
        plot::html(&named(&[("run", &only)]), &Options::default()).unwrap_err(),
        NothingToDraw::OnlySizeZero
    );
}

#[test]
fn a_single_rank_has_no_bus_bandwidth() {
    let mut run = empty(1);
    run.measurements = (3..10)
        .map(|exponent| measurement("allreduce", Placement::OutOfPlace, 1 << exponent, 5.0, 0.0))
        .collect();
    let text = one_chart(&run, Metric::Busbw, |_| ());
    let document = parse(&text);
    assert_inside(document.root_element());
    assert!(all(document.root_element(), "point").into_iter().all(|point| place(point).1 == 306.0));
    assert!(text_of(document.root_element()).contains("--metric algbw"));
    let log = Options { metrics: vec![Metric::Busbw], scale: Scale::Log, ..Options::default() };
    let error = plot::svg(&named(&[("run", &run)]), &log).unwrap_err();
    assert_eq!(error, NothingToDraw::NoValue);
    assert!(error.to_string().contains("--metric algbw"));
    // Where another chart has something, this one says that it has not.
    let text =
        plot::svg(&named(&[("run", &run)]), &Options { scale: Scale::Log, ..Options::default() }).unwrap();
    assert!(text_of(parse(&text).root_element()).contains("nothing to draw"));
}

#[test]
fn nothing_to_draw_says_what_to_do() {
    let none = named(&[("run", &empty(2))]);
    assert_eq!(plot::html(&none, &Options::default()).unwrap_err(), NothingToDraw::NoMeasurement);
    assert_eq!(plot::svg(&[], &Options::default()).unwrap_err(), NothingToDraw::NoMeasurement);
    let mut run = all_reduce();
    run.measurements.retain(|each| each.placement == Placement::OutOfPlace);
    let options = Options { placements: Placements::In, ..Options::default() };
    let error = plot::html(&named(&[("run", &run)]), &options).unwrap_err();
    assert!(error.to_string().contains("--placement both"), "{error}");
    let options = Options { metrics: Vec::new(), ..Options::default() };
    assert_eq!(plot::html(&named(&[("run", &run)]), &options).unwrap_err(), NothingToDraw::NoMetric);
}

#[test]
fn ten_runs_have_ten_colours_and_a_legend() {
    let base = all_reduce();
    let runs: Vec<(String, Run)> =
        (0..10).map(|index| (format!("run {index}"), slower(&base, 1.0 + 0.15 * f64::from(index)))).collect();
    let text = plot::svg(&runs, &Options { metrics: vec![Metric::Time], ..Options::default() }).unwrap();
    let document = parse(&text);
    let root = document.root_element();
    assert_inside(root);
    assert_eq!(all(root, "series").len(), 20);
    let entries: Vec<String> = all(root, "entry").into_iter().map(text_of).collect();
    assert_eq!(entries.len(), 13);
    assert_eq!((&*entries[0], &*entries[9], &*entries[10]), ("run 0", "run 9", "out-of-place"));
    assert_eq!(entries[12], "lines: mean of all operations");
    for index in 0..10 {
        assert_eq!(all(root, &format!("run{index}")).len(), 3, "two series and a sample");
        assert!(text.contains(&format!(".run{index}{{stroke:#")));
    }
    // Entries of one row do not meet: each begins behind the place that the one before needs at least.
    let places: Vec<(f64, f64, usize)> = all(root, "entry")
        .into_iter()
        .map(|entry| {
            let at = |name| entry.attribute(name).unwrap().parse::<f64>().unwrap();
            (at("x"), at("y"), text_of(entry).chars().count())
        })
        .collect();
    for pair in places.windows(2).filter(|pair| pair[0].1 == pair[1].1) {
        assert!(pair[0].0 + 6.0 * pair[0].2 as f64 + 26.0 < pair[1].0, "{pair:?}");
    }
}

#[test]
fn extreme_values_stay_inside() {
    let mut run = empty(2);
    let times = [1e-11, 1.0, 9.9e14, 1e300, f64::MIN_POSITIVE];
    run.measurements = [1, 3, 1 << 40, 1 << 41, u64::MAX]
        .into_iter()
        .zip(times)
        .map(|(bytes, time)| measurement("allreduce", Placement::OutOfPlace, bytes, time, 1e3 / time))
        .collect();
    for (metric, points) in [(Metric::Time, 3), (Metric::Busbw, 3)] {
        for scale in [Scale::Linear, Scale::Log] {
            let text = one_chart(&run, metric, |options| options.scale = scale);
            let document = parse(&text);
            assert_inside(document.root_element());
            assert_eq!(all(document.root_element(), "point").len(), points, "{metric:?} {scale:?}");
        }
    }
}

#[test]
fn labels_and_hosts_are_escaped_and_told_apart() {
    let mut run = all_reduce();
    let label = "a<b>&\"c\" </svg><script>alert(1)</script>\u{1b}[0m";
    run.provenance.environment.insert("NCCL_<X>".to_owned(), "\"&'".to_owned());
    run.measurements[3].collective = "all<reduce>".to_owned();
    let runs = named(&[(label, &run), (label, &run), ("other", &run)]);
    let shown = label.replace('\u{1b}', "\u{fffd}");
    for text in [
        plot::svg(&runs, &Options::default()).unwrap(),
        plot::html(&runs, &Options { title: Some("<i>&".to_owned()), ..Options::default() }).unwrap(),
    ] {
        assert!(!text.contains("<script") && !text.contains("<i>"));
        let document = parse(&text);
        let entries = entries(document.root_element());
        assert!(entries.contains(&shown) && entries.contains(&format!("{shown} (2)")), "{entries:?}");
        assert!(text_of(document.root_element()).contains("all<reduce>"));
    }
    let page = plot::html(&runs, &Options::default()).unwrap();
    let text = text_of(parse(&page).root_element());
    assert!(text.contains("NCCL_<X>") && text.contains("node<1>"));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = plot::html(&named(&[("run", &with_everything())]), &Options::default()).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>\n<!-- made by nccl-bench plot -->\n<html"));
    let document = parse(&page);
    for node in document.root_element().descendants().filter(Node::is_element) {
        assert!(
            !["script", "link", "img", "iframe", "object", "image", "use"].contains(&node.tag_name().name())
        );
        for attribute in node.attributes() {
            let local = attribute.value().starts_with('#');
            assert!(!matches!(attribute.name(), "src" | "href" | "srcset") || local, "{attribute:?}");
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
        }
    }
    let styles: Vec<Node> = document.descendants().filter(|node| node.tag_name().name() == "style").collect();
    assert!(styles.len() == 1 && text_of(styles[0]).contains(".chart .run9{stroke:#"));
    assert!(!page.contains("url(") && !page.contains("@import") && !page.contains("@font-face"));
    assert!(page.contains("@media screen and (prefers-color-scheme:dark)") && page.contains("@media print"));
}

#[test]
fn sections_are_by_collective_type_operator_and_root() {
    let mut run = all_reduce();
    run.measurements.extend(all_gather().measurements);
    let mut half = all_reduce().measurements;
    half.iter_mut().for_each(|each| each.data_type = "half".to_owned());
    run.measurements.extend(half);
    let mut broadcast = all_reduce().measurements;
    for (index, each) in broadcast.iter_mut().enumerate() {
        each.collective = "broadcast".to_owned();
        each.op = None;
        each.root = Some(index / 2 % 2);
    }
    run.measurements.extend(broadcast);
    let runs = named(&[("run", &run)]);
    let page = plot::html(&runs, &Options::default()).unwrap();
    let document = parse(&page);
    let headings: Vec<String> = document
        .descendants()
        .filter(|node| node.tag_name().name() == "h2")
        .map(|node| text_of(node).trim().to_owned())
        .collect();
    assert_eq!(
        headings,
        [
            "Overview bus bandwidth against message size, each to its own scale",
            "allreduce float, sum",
            "allgather float",
            "allreduce half, sum",
            "broadcast float, root 0",
            "broadcast float, root 1",
            "Runs"
        ]
    );
    assert_eq!(all(document.root_element(), "wide").len(), 10);
    let names: Vec<String> =
        plot::svg_each(&runs, &Options { metrics: vec![Metric::Time; 2], ..Options::default() })
            .unwrap()
            .into_iter()
            .map(|(name, text)| {
                assert_eq!(all(parse(&text).root_element(), "grid").len(), 1);
                name
            })
            .collect();
    assert_eq!(
        names,
        [
            "allreduce-float-sum-time",
            "allgather-time",
            "allreduce-half-sum-time",
            "broadcast-float-root-0-time",
            "broadcast-float-root-1-time"
        ]
    );
    // In one file they stand in a row per section and do not overlap.
    let text = plot::svg(&runs, &Options::default()).unwrap();
    let document = parse(&text);
    let places: Vec<(f64, f64)> = document
        .root_element()
        .children()
        .filter(|node| node.has_attribute("transform"))
        .map(place)
        .collect();
    assert_eq!(places.len(), 10);
    assert!(places.chunks(2).all(|row| row[0].1 == row[1].1 && row[1].0 - row[0].0 >= 640.0));
    assert!(places.chunks(2).collect::<Vec<_>>().windows(2).all(|rows| rows[1][0].1 - rows[0][0].1 > 440.0));
}

#[test]
fn the_table_has_the_numbers_of_all_runs() {
    let (before, after) = (all_reduce(), slower(&all_reduce(), 1.5));
    let page = plot::html(&named(&[("before", &before), ("after", &after)]), &Options::default()).unwrap();
    let document = parse(&page);
    let [table] = all(document.root_element(), "numbers")[..] else { panic!("one table") };
    let sizes = all(table, "size");
    assert_eq!(sizes.len(), before.measurements.len() / 2);
    let cells = |size: usize, run: usize| -> Vec<String> {
        let row = sizes[size].children().filter(Node::is_element).nth(run).unwrap();
        row.children().filter(Node::is_element).map(|cell| text_of(cell).trim().to_owned()).collect()
    };
    let (out, inside) = (&before.measurements[2 * 17], &before.measurements[2 * 17 + 1]);
    let number = |value: f64| format!("{value:.2}");
    assert_eq!(
        cells(17, 0),
        [
            "1 MiB",
            "before",
            &number(out.time_us),
            &number(out.algbw_gbps),
            &number(out.busbw_gbps),
            "0",
            &number(inside.time_us),
            &number(inside.algbw_gbps),
            &number(inside.busbw_gbps),
            "0"
        ]
    );
    let slow = &after.measurements[2 * 17];
    assert_eq!(cells(17, 1)[..3], ["after".to_owned(), number(slow.time_us), number(slow.algbw_gbps)]);
    let rows = table.descendants().filter(|node| node.tag_name().name() == "tr").count();
    assert_eq!(rows, 2 + before.measurements.len());
}

#[test]
fn wrong_data_algorithms_and_statistics_are_shown() {
    let run = with_everything();
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let [problems] = all(root, "problems")[..] else { panic!("a list of problems") };
    assert!(text_of(problems).contains("has wrong data in 1 measurement."));
    let [table] = all(root, "numbers")[..] else { panic!("one table") };
    let [wrong] = all(table, "wrong")[..] else { panic!("one cell") };
    assert_eq!(
        (&*text_of(wrong), wrong.attribute("title").unwrap().starts_with("rank 5: element 3")),
        ("3", true)
    );
    let heads: Vec<String> = table
        .descendants()
        .filter(|node| node.tag_name().name() == "thead")
        .flat_map(|head| head.descendants().filter(|node| node.tag_name().name() == "th").map(text_of))
        .map(|text| text.trim().to_owned())
        .collect();
    let placement = ["time µs", "algbw GB/s", "busbw GB/s", "wrong", "min µs", "median µs", "p95 µs"];
    let expected: Vec<&str> = ["size", "out-of-place", "in-place", "algorithm (NCCL)"]
        .into_iter()
        .chain(placement)
        .chain(placement)
        .collect();
    assert_eq!(heads, expected);
    assert!(text_of(table).contains("ring, ll128, 16 channels"));
    assert_eq!(
        entries(root)[3..],
        [
            "lines: median of single operations, band: fastest to 95th percentile",
            "algorithm (NCCL):",
            "nvls",
            "ring, ll128",
            "ring, simple",
            "tree, ll",
            "wrong data"
        ]
    );
    for chart in all(root, "wide") {
        assert_inside(chart);
        let points = all(chart, "point");
        assert_eq!(points.into_iter().filter(|point| !all(*point, "wrong").is_empty()).count(), 1);
    }
    for metric in [Metric::Busbw, Metric::Time] {
        let text = one_chart(&run, metric, |_| ());
        let document = parse(&text);
        let chart = document.root_element();
        let marked: Vec<Node> =
            all(chart, "point").into_iter().filter(|point| !all(*point, "wrong").is_empty()).collect();
        assert_eq!(marked.len(), 1);
        assert!(
            tooltip(marked[0]).contains("1 MiB") && tooltip(marked[0]).contains("WRONG DATA: 3 elements")
        );
    }
    // The band of times: for 8 bytes from 0.93 to 1.2 of the time, around the line.
    let text = one_chart(&run, Metric::Time, |options| options.spread = Spread::Max);
    let document = parse(&text);
    let values = ticks(document.root_element(), "values");
    let [band, _] = all(document.root_element(), "band")[..2] else { panic!("two bands") };
    let outline = numbers(band.attribute("d").unwrap());
    assert_eq!(outline.len(), 2 * run.measurements.len());
    let time = run.measurements[0].time_us;
    let tick = |wanted: &str| values.iter().find(|(label, _)| label == wanted).unwrap().1 - 4.0;
    let at = |us: f64| between(us.log10(), (2.0, tick("100 µs")), (4.0, tick("10 ms")));
    assert!((outline[1] - at(1.2 * time)).abs() < 0.02, "{} {}", outline[1], at(1.2 * time));
    let last = outline[outline.len() - 1];
    assert!((last - at(0.93 * time)).abs() < 0.02, "{last} {}", at(0.93 * time));
    let text = one_chart(&run, Metric::Busbw, |options| options.spread = Spread::None);
    assert!(all(parse(&text).root_element(), "band").is_empty());
}

#[test]
fn runs_that_did_not_complete_say_so_and_differences_are_marked() {
    let mut other = slower(&all_reduce(), 1.1);
    other.outcome = Outcome::Interrupted { signal: "SIGINT".to_owned() };
    other.provenance.library_version = "2.27.7".to_owned();
    other.provenance.environment.clear();
    other.settings.iterations = 100;
    other.started_at = "2026-11-21T08:30:00.123Z".to_owned();
    let mut failed = all_reduce();
    failed.outcome = Outcome::Failed { message: "rank 3 on node<1> was killed".to_owned() };
    let running = Run { outcome: Outcome::Running, ..all_reduce() };
    let runs = named(&[("good", &all_reduce()), ("stopped", &other), ("broken", &failed), ("on", &running)]);
    let page = plot::html(&runs, &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let [problems] = all(root, "problems")[..] else { panic!("a list of problems") };
    let text = text_of(problems);
    for expected in [
        "stopped\n was interrupted by SIGINT. This is not a complete run",
        "broken\n failed: rank 3 on node<1> was killed.",
        "on\n had not ended when its file was written, or was killed.",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(!text.contains("good"));
    assert_eq!(entries(root)[..4], ["good", "stopped (interrupted)", "broken (failed)", "on (not finished)"]);
    let marked: Vec<String> = all(root, "differs")
        .into_iter()
        .map(|row| text_of(row.descendants().find(|node| node.tag_name().name() == "th").unwrap()))
        .collect();
    assert_eq!(marked, ["≠ outcome", "≠ library", "≠ iterations", "≠ NCCL_ALGO"]);
    let library = all(root, "differs")[1];
    let cells: Vec<String> =
        library.descendants().filter(|node| node.tag_name().name() == "td").map(text_of).collect();
    assert_eq!(cells, ["2.28.9", "2.27.7", "2.28.9", "2.28.9"]);
}

/// What a page's CSS gives a variable or property, as the last number before its unit.
fn pixels(style: &str, before: &str, unit: &str) -> f64 {
    let (_, after) = style.split_once(before).unwrap();
    after.split_once(unit).unwrap().0.parse().unwrap()
}

#[test]
fn text_can_be_read_on_a_phone() {
    let page = plot::html(&named(&[("run", &with_everything())]), &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let style = text_of(root.descendants().find(|node| node.tag_name().name() == "style").unwrap());
    let text = pixels(&style, "font-size:", "px;");
    let width = |class: &str| {
        let [chart, ..] = all(root, class)[..] else { panic!("a {class} chart") };
        numbers(chart.attribute("viewBox").unwrap())[2]
    };
    // A rem is 16 pixels; the narrow page has a margin of one on each side, the other of 1.25.
    let change = 16.0 * pixels(&style, "@media (max-width:", "rem)");
    assert!(change >= 430.0, "the largest phones have the narrow charts");
    assert!(style.contains(".plot .wide{display:none}.plot .narrow{display:block}"));
    for (screen, least) in [(390.0, 12.0), (320.0, 10.0)] {
        let shown = text * (screen - 32.0) / width("narrow");
        assert!(shown >= least, "{shown} pixels on {screen}");
    }
    let shown = text * (change - 40.0) / width("wide");
    assert!(shown >= 10.0, "{shown} pixels where wide charts begin");
    for chart in all(root, "narrow") {
        assert_inside(chart);
    }
}

#[test]
fn numbers_can_be_read_by_touch_and_keyboard() {
    let run = with_everything();
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let groups = all(root, "readings");
    assert_eq!(groups.len(), 2, "one for each chart");
    let mut names = Vec::new();
    for group in groups {
        assert_eq!(group.attribute("role"), Some("radiogroup"));
        assert!(group.attribute("aria-label").unwrap().starts_with("allreduce: "));
        let labels: Vec<Node> = group.children().filter(|node| node.tag_name().name() == "label").collect();
        assert_eq!(labels.len(), run.measurements.len() / 2, "one for each size");
        let inputs: Vec<Node> =
            group.descendants().filter(|node| node.tag_name().name() == "input").collect();
        assert!(inputs.iter().all(|input| input.attribute("type") == Some("radio")));
        let name = inputs[0].attribute("name").unwrap();
        assert!(
            inputs.len() == labels.len() && inputs.iter().all(|input| input.attribute("name") == Some(name))
        );
        names.push(name);
        let text = text_of(labels[17]);
        for expected in ["1 MiB (1048576 B)", "out-of-place", "in-place", "median time ", "busbw ", "p95 "] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(
            text.contains("ring, ll128, 16 channels") && text.contains("WRONG DATA: 3 elements"),
            "{text}"
        );
    }
    // In a drawing, which has no radio buttons, the focus shows what pointing shows.
    let drawing = one_chart(&run, Metric::Busbw, |_| ());
    assert!(drawing.contains(".chart .target:focus .tip{display:inline}"));
    for point in all(parse(&drawing).root_element(), "point") {
        let target = target(point);
        let [tip] = all(target, "tip")[..] else { panic!("one tip") };
        assert_eq!((target.attribute("tabindex"), tip.attribute("display")), (Some("0"), Some("none")));
        let lines: Vec<String> =
            tip.children().filter(|node| node.tag_name().name() == "text").map(text_of).collect();
        assert_eq!(lines.join("\n"), tooltip(point));
    }
    assert_ne!(names[0], names[1], "arrow keys stay in a chart");
    assert!(page.contains(".readings label:hover .reading,.readings input:focus+.reading{display:block}"));
}

#[test]
fn the_headline_has_the_peak_the_machine_and_the_versions() {
    let run = all_reduce();
    let right = run.measurements.iter().map(|each| each.busbw_gbps).fold(0.0, f64::max);
    let peak = format!("{right:.2} GB/s");
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let [headline] = all(document.root_element(), "headline")[..] else { panic!("one headline") };
    let headline = text_of(headline);
    let drawing = plot::svg(&named(&[("run", &run)]), &Options::default()).unwrap();
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
    let drawing = plot::svg(&named(&[("run", &partly)]), &Options::default()).unwrap();
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
        [plot::html(&runs, &Options::default()).unwrap(), plot::svg(&runs, &Options::default()).unwrap()]
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
fn drawings_say_that_a_run_is_not_complete() {
    for (outcome, expected) in [
        (
            Outcome::Interrupted { signal: "SIGINT".to_owned() },
            "run was interrupted by SIGINT. This is not a complete run",
        ),
        (
            Outcome::Failed { message: "rank 3 died".to_owned() },
            "run failed: rank 3 died. This is not a complete run",
        ),
        (
            Outcome::Running,
            "run had not ended when its file was written, or was killed. This is not a complete run",
        ),
    ] {
        let run = Run { outcome, ..all_reduce() };
        let both = plot::svg(&named(&[("run", &run)]), &Options::default()).unwrap();
        let each = plot::svg_each(&named(&[("run", &run)]), &Options::default()).unwrap();
        for text in each.iter().map(|(_, text)| text).chain([&both]) {
            let document = parse(text);
            let alarm = all(document.root_element(), "alarm").into_iter().map(text_of).collect::<Vec<_>>();
            assert!(alarm.join(" ").starts_with(expected), "{alarm:?}");
        }
    }
    let text = plot::svg(&named(&[("run", &all_reduce())]), &Options::default()).unwrap();
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
        (named(&[("a", &host)]), "algorithm (libfabric)"),
        (named(&[("a", &nccl)]), "algorithm (NCCL)"),
        (named(&[("a", &nccl), ("b", &host)]), "algorithm (NCCL, libfabric)"),
        (named(&[("a", &all_reduce()), ("b", &host)]), "algorithm (libfabric)"),
    ] {
        let page = plot::html(&runs, &Options::default()).unwrap();
        let document = parse(&page);
        let [table] = all(document.root_element(), "numbers")[..] else { panic!("one table") };
        let heads: Vec<String> =
            table.descendants().filter(|node| node.tag_name().name() == "th").map(text_of).collect();
        assert!(heads.iter().any(|head| head == heading), "{heads:?}");
        assert!(entries(document.root_element()).contains(&format!("{heading}:")));
        assert!(!page.contains("chosen by"));
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

#[test]
fn lines_lie_in_their_bands() {
    let mut run = all_reduce();
    // The single operations were all slower than the mean of those that were timed together.
    for each in &mut run.measurements {
        let times = [1.5, 1.6, 1.7, 1.8, 2.9].map(|factor| factor * each.time_us);
        each.statistics = Statistics::of(&times);
    }
    for (metric, spread) in
        [(Metric::Time, Spread::P95), (Metric::Busbw, Spread::Max), (Metric::Algbw, Spread::P95)]
    {
        let text = one_chart(&run, metric, |options| options.spread = spread);
        let document = parse(&text);
        for series in all(document.root_element(), "series") {
            let ([line], [band]) = (&all(series, "line")[..], &all(series, "band")[..]) else {
                panic!("one line and one band")
            };
            let (line, band) = (numbers(line.attribute("d").unwrap()), numbers(band.attribute("d").unwrap()));
            let count = line.len() / 2;
            assert_eq!(band.len(), 4 * count);
            for index in 0..count {
                let (x, y) = (line[2 * index], line[2 * index + 1]);
                let (upper, lower) = (&band[2 * index..], &band[2 * (2 * count - 1 - index)..]);
                assert_eq!((x, x), (upper[0], lower[0]));
                assert!(
                    upper[1] <= y && y <= lower[1],
                    "{metric:?}: {y} not from {} to {}",
                    upper[1],
                    lower[1]
                );
            }
        }
        // Of 8 GiB out-of-place the median, and the mean that the table has.
        let last = all(all(document.root_element(), "series")[0], "point").pop().unwrap();
        let found = &run.measurements[run.measurements.len() - 2];
        let text = tooltip(last);
        assert!(text.contains(&format!("median time {:.1} µs", 1.7 * found.time_us)), "{text}");
        assert!(text.contains(&format!("mean of all operations: time {:.1} µs", found.time_us)), "{text}");
    }
    // Beside a run without statistics, and without bands, all lines are means.
    let both = named(&[("a", &run), ("b", &all_reduce())]);
    let alone = named(&[("a", &run)]);
    for (runs, spread) in [(both, Spread::P95), (alone, Spread::None)] {
        let options = Options { metrics: vec![Metric::Time], spread, ..Options::default() };
        let text = plot::svg(&runs, &options).unwrap();
        let document = parse(&text);
        assert!(all(document.root_element(), "band").is_empty());
        assert!(entries(document.root_element()).contains(&"lines: mean of all operations".to_owned()));
        let plain = plot::svg(&named(&[("a", &all_reduce())]), &options).unwrap();
        let line = |text: &str| numbers(all(parse(text).root_element(), "line")[0].attribute("d").unwrap());
        assert_eq!(line(&text), line(&plain));
    }
}

#[test]
fn several_sections_have_an_overview_with_links() {
    let mut run = all_reduce();
    let alone = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    assert!(all(parse(&alone).root_element(), "overview").is_empty());
    run.measurements.extend(all_gather().measurements);
    let page = plot::html(&named(&[("run", &run)]), &Options::default()).unwrap();
    let document = parse(&page);
    let root = document.root_element();
    let [overview] = all(root, "overview")[..] else { panic!("one overview") };
    let links: Vec<Node> = overview.children().filter(Node::is_element).collect();
    assert_eq!(links.len(), 2);
    for (link, name) in links.iter().zip(["allreduce", "allgather"]) {
        let target = link.attribute("href").unwrap().trim_start_matches('#');
        let section = root.descendants().find(|node| node.attribute("id") == Some(target)).unwrap();
        assert!(text_of(section).trim().starts_with(name));
        let best = run.measurements.iter().filter(|each| each.collective == name);
        let best = best.map(|each| each.busbw_gbps).fold(0.0, f64::max);
        assert!(text_of(*link).contains(&format!("up to {best:.2} GB/s")), "{}", text_of(*link));
        assert_eq!(all(*link, "line").len(), 2);
    }
    let [links] = all(root, "links")[..] else { panic!("links") };
    let targets: Vec<&str> = links.children().filter_map(|link| link.attribute("href")).collect();
    assert_eq!(targets, ["#overview", "#section0", "#section1", "#runs"]);
}

#[test]
fn several_cycles_become_their_median() {
    let mut run = empty(2);
    for (cycle, time) in [100.0, 400.0, 200.0].into_iter().enumerate() {
        for exponent in [10, 12] {
            let mut one = measurement("allreduce", Placement::OutOfPlace, 1 << exponent, time, 10.0 / time);
            one.cycle = cycle;
            one.wrong = Some(cycle as u64);
            run.measurements.push(one);
        }
    }
    let text = one_chart(&run, Metric::Time, |_| ());
    let document = parse(&text);
    let root = document.root_element();
    let points = all(root, "point");
    assert_eq!(points.len(), 2);
    let text = tooltip(points[0]);
    assert!(text.contains("time 200.00 µs") && text.contains("median of 3 measurements"), "{text}");
    assert!(text.contains("WRONG DATA: 3 elements"), "{text}");
    assert!(text_of(root).contains("Medians of up to 3 measurements of a size."));
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: plot::Arguments,
}

/// As the command line is read, in a folder.
fn arguments(folder: &Path, line: &str) -> plot::Arguments {
    let mut arguments =
        Line::try_parse_from(["plot"].into_iter().chain(line.split_whitespace())).unwrap().arguments;
    arguments.files.iter_mut().chain([&mut arguments.output]).for_each(|path| *path = folder.join(&path));
    arguments
}

/// Reads what [`all_reduce`] and [`all_gather`] give.
fn read(path: &Path) -> anyhow::Result<Run> {
    match path.file_stem().unwrap().to_str().unwrap() {
        "missing" => anyhow::bail!("no such file"),
        "empty" => Ok(empty(2)),
        "gather" => Ok(all_gather()),
        "slow" => Ok(slower(&all_reduce(), 1.3)),
        _ => Ok(with_everything()),
    }
}

#[test]
fn the_command_writes_pages_and_drawings() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let written = plot::run(&arguments(folder.path(), "a.json slow.json"), read).unwrap();
    assert_eq!(written, [at("nccl-bench.html")]);
    let page = fs::read_to_string(at("nccl-bench.html")).unwrap();
    assert_eq!(entries(parse(&page).root_element())[..2], ["a", "slow"]);
    let line =
        "a.json slow.json --output x.svg --split --metric busbw,time --metric algbw --label one --label two";
    let written = plot::run(&arguments(folder.path(), line), read).unwrap();
    assert_eq!(written, ["busbw", "time", "algbw"].map(|metric| at(&format!("x-allreduce-{metric}.svg"))));
    let drawing = fs::read_to_string(&written[2]).unwrap();
    let document = parse(&drawing);
    assert!(text_of(document.root_element()).contains("allreduce: algorithm bandwidth"));
    assert!(all(document.root_element(), "entry").into_iter().map(text_of).any(|entry| entry == "two"));
    let line = "a.json sub/a.json --output y.SVG --title T&T --placement in --spread max --scale log";
    assert_eq!(plot::run(&arguments(folder.path(), line), read).unwrap(), [at("y.SVG")]);
    let drawing = fs::read_to_string(at("y.SVG")).unwrap();
    let text = text_of(parse(&drawing).root_element());
    assert!(text.contains("T&T") && text.contains("sub/a.json") && text.contains("in-place"), "{text}");
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 5, "nothing else is left behind");
}

#[test]
fn both_sides_of_a_run_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let two_sides = |_: &Path| {
        let mut run = all_reduce();
        run.provenance.backend = "fabric".to_owned();
        run.provenance.versus = Some(BackendLibrary {
            backend: "mpi".to_owned(),
            library_version: "Open MPI 4.1.4".to_owned(),
            library_path: String::new(),
        });
        for measurement in &mut run.measurements {
            measurement.versus = Some(Versus {
                time_us: 12_345.75,
                algbw_gbps: 1.0,
                busbw_gbps: 1.0,
                rounds_us: Vec::new(),
                wrong: None,
                mismatches: Vec::new(),
                ratio: measurement.time_us / 12_345.75,
                best_ratio: 1.0,
            });
        }
        Ok(run)
    };
    let drawn = |line: &str| {
        let written = plot::run(&arguments(folder.path(), line), two_sides).unwrap();
        text_of(parse(&fs::read_to_string(&written[0]).unwrap()).root_element())
    };
    // By name, and with a number that only the other side has.
    for (line, drawn_sides, left_out) in [
        ("a.json", &["a (fabric)", "a (mpi)", "12345.8"][..], &[][..]),
        ("a.json --side other --label x", &["x (mpi)", "12345.8"], &["(fabric)"]),
        ("a.json --side own", &["a"], &["(fabric)", "(mpi)", "12345.8"]),
    ] {
        let text = drawn(line);
        for part in drawn_sides {
            assert!(text.contains(part), "{line}: no '{part}' in {text}");
        }
        for part in left_out {
            assert!(!text.contains(part), "{line}: '{part}' in {text}");
        }
    }
    let line = arguments(folder.path(), "a.json --side other");
    let error = plot::run(&line, |_| Ok(all_reduce())).unwrap_err();
    assert!(format!("{error:#}").contains("a.json has no other side"), "{error:#}");
}

#[test]
fn only_an_earlier_plot_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.html");
    let refused = |line: &str| format!("{:#}", plot::run(&arguments(folder.path(), line), read).unwrap_err());
    fs::write(&target, "<html>mine</html>").unwrap();
    let message = refused("a.json --output out.html");
    assert!(message.contains("is no plot of nccl-bench") && message.contains("--force"), "{message}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "<html>mine</html>");
    plot::run(&arguments(folder.path(), "a.json --output out.html --force"), read).unwrap();
    let first = fs::read_to_string(&target).unwrap();
    plot::run(&arguments(folder.path(), "slow.json --output out.html"), read).unwrap();
    assert_ne!(fs::read_to_string(&target).unwrap(), first);
    fs::create_dir(folder.path().join("folder.svg")).unwrap();
    assert!(refused("a.json --output folder.svg --force").contains("is no file"));
    fs::write(folder.path().join("in.html"), "{}").unwrap();
    assert!(refused("in.html --output in.html --force").contains("holds results"));
    assert!(refused("a.json --output none/out.html").contains("cannot be written"));
    #[cfg(unix)]
    {
        let link: PathBuf = folder.path().join("link.html");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        plot::run(&arguments(folder.path(), "a.json --output link.html"), read).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), first);
    }
    // Of several files none is written when one is refused.
    fs::write(folder.path().join("s-allreduce-time.svg"), "mine").unwrap();
    assert!(refused("a.json --output s.svg --split").contains("s-allreduce-time.svg exists"));
    assert!(!folder.path().join("s-allreduce-busbw.svg").exists());
}

#[test]
fn bad_requests_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (line, expected) in [
        ("missing.json a.json x/missing.json", "2 files cannot be read"),
        ("missing.json", "missing.json: no such file"),
        ("empty.json", "measure first"),
        ("a.json --output out.png", "must end in .html (a page) or .svg (a drawing)"),
        ("a.json --output out.html --split", "name one, as in --output"),
        ("a.json slow.json --label one", "there are 1 label for 2 files; give one --label per file"),
    ] {
        let message = format!("{:#}", plot::run(&arguments(folder.path(), line), read).unwrap_err());
        assert!(message.contains(expected), "{line}: {message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(Line::try_parse_from(["plot"]).is_err());
    assert!(Line::try_parse_from(["plot", "a.json", "--metric", "speed"]).is_err());
}
