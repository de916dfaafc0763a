//! Charts: points, lines, axes and colours.

use nccl_bench::command::plot::{self, Metric, NothingToDraw, Placements, PlotOptions, Scale, Spread};
use record::statistics::Statistics;
use record::{Placement, Run};
use roxmltree::Node;

use crate::drawing::*;
use crate::runs::*;

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
        if zeros == 1 { "1 value is skipped".to_owned() } else { format!("{zeros} values are skipped") };
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
        assert!(text_of(document.root_element()).contains("3 values are skipped"));
    }
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
    let document = parse(&page);
    let cells = document.descendants().filter(|node| node.tag_name().name() == "td");
    let cells: Vec<String> = cells.map(text_of).collect();
    assert!(cells.contains(&"NaN".to_owned()) && cells.contains(&"0".to_owned()), "{cells:?}");
}

#[test]
fn size_zero_is_only_in_the_table() {
    let run = all_gather();
    let zeros = run.measurements.iter().filter(|each| each.bytes == 0).count();
    assert!(zeros > 0);
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
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
        assert!(text_of(figure).contains("Size 0 is skipped"));
    }
    let [table] = all(root, "numbers")[..] else { panic!("one table") };
    let first = table.descendants().find(|node| node.tag_name().name() == "tbody").unwrap();
    assert!(text_of(first).trim_start().starts_with("0 B"));
    let only = Run {
        measurements: run.measurements.into_iter().filter(|each| each.bytes == 0).collect(),
        ..empty(8)
    };
    assert_eq!(
        plot::render_html(&named(&[("run", &only)]), &options()).unwrap_err(),
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
    let log = PlotOptions { metrics: vec![Metric::Busbw], scale: Scale::Log, ..options() };
    let error = plot::render_svg(&named(&[("run", &run)]), &log).unwrap_err();
    assert_eq!(error, NothingToDraw::NoValue);
    assert!(error.to_string().contains("--metric algbw"));
    // Where another chart has something, this one says that it has not.
    let text =
        plot::render_svg(&named(&[("run", &run)]), &PlotOptions { scale: Scale::Log, ..options() }).unwrap();
    assert!(text_of(parse(&text).root_element()).contains("nothing to draw"));
}

#[test]
fn nothing_to_draw_says_what_to_do() {
    let none = named(&[("run", &empty(2))]);
    assert_eq!(plot::render_html(&none, &options()).unwrap_err(), NothingToDraw::NoMeasurement);
    assert_eq!(plot::render_svg(&[], &options()).unwrap_err(), NothingToDraw::NoMeasurement);
    let mut run = all_reduce();
    run.measurements.retain(|each| each.placement == Placement::OutOfPlace);
    let options = PlotOptions { placements: Placements::In, ..options() };
    let error = plot::render_html(&named(&[("run", &run)]), &options).unwrap_err();
    assert!(error.to_string().contains("--placement both"), "{error}");
}

#[test]
fn ten_runs_have_ten_colours_and_a_legend() {
    let base = all_reduce();
    let runs: Vec<(String, Run)> =
        (0..10).map(|index| (format!("run {index}"), slower(&base, 1.0 + 0.15 * f64::from(index)))).collect();
    let text = plot::render_svg(&runs, &PlotOptions { metrics: vec![Metric::Time], ..options() }).unwrap();
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
fn lines_lie_in_their_bands() {
    let mut run = all_reduce();
    // The single operations were all slower than the mean of those that were timed together.
    for each in &mut run.measurements {
        let times = [1.5, 1.6, 1.7, 1.8, 2.9].map(|factor| factor * each.time_us);
        each.statistics = Statistics::from_times(&times);
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
        let options = PlotOptions { metrics: vec![Metric::Time], spread, ..options() };
        let text = plot::render_svg(&runs, &options).unwrap();
        let document = parse(&text);
        assert!(all(document.root_element(), "band").is_empty());
        assert!(entries(document.root_element()).contains(&"lines: mean of all operations".to_owned()));
        let plain = plot::render_svg(&named(&[("a", &all_reduce())]), &options).unwrap();
        let line = |text: &str| numbers(all(parse(text).root_element(), "line")[0].attribute("d").unwrap());
        assert_eq!(line(&text), line(&plain));
    }
}
