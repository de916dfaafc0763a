//! Pages: sections, tables, and their use on a phone and by keyboard.

use nccl_bench::command::plot::{self, Metric, PlotOptions, Spread};
use record::{Measurement, Placement, Run, RunOutcome};
use roxmltree::Node;

use crate::drawing::*;
use crate::runs::*;

#[test]
fn labels_and_hosts_are_escaped_and_told_apart() {
    let mut run = all_reduce();
    let label = "a<b>&\"c\" </svg><script>alert(1)</script>\u{1b}[0m";
    run.provenance.environment.insert("NCCL_<X>".to_owned(), "\"&'".to_owned());
    run.measurements[3].collective = "all<reduce>".to_owned();
    let runs = named(&[(label, &run), (label, &run), ("other", &run)]);
    let shown = label.replace('\u{1b}', "\u{fffd}");
    for text in [
        plot::render_svg(&runs, &options()).unwrap(),
        plot::render_html(&runs, &PlotOptions { title: Some("<i>&".to_owned()), ..options() }).unwrap(),
    ] {
        assert!(!text.contains("<script") && !text.contains("<i>"));
        let document = parse(&text);
        let entries = entries(document.root_element());
        assert!(entries.contains(&shown) && entries.contains(&format!("{shown} (2)")), "{entries:?}");
        assert!(text_of(document.root_element()).contains("all<reduce>"));
    }
    let page = plot::render_html(&runs, &options()).unwrap();
    let text = text_of(parse(&page).root_element());
    assert!(text.contains("NCCL_<X>") && text.contains("node<1>"));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = plot::render_html(&named(&[("run", &with_everything())]), &options()).unwrap();
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
    let page = plot::render_html(&runs, &options()).unwrap();
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
        plot::svg_each(&runs, &PlotOptions { metrics: vec![Metric::Time; 2], ..options() })
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
    let text = plot::render_svg(&runs, &options()).unwrap();
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
    let page = plot::render_html(&named(&[("before", &before), ("after", &after)]), &options()).unwrap();
    let document = parse(&page);
    let [table] = all(document.root_element(), "numbers")[..] else { panic!("one table") };
    let sizes = all(table, "size");
    assert_eq!(sizes.len(), before.measurements.len() / 2);
    let cells = |size: usize, run: usize| -> Vec<String> {
        let row = sizes[size].children().filter(Node::is_element).nth(run).unwrap();
        row.children().filter(Node::is_element).map(|cell| text_of(cell).trim().to_owned()).collect()
    };
    let number = |value: f64| format!("{value:.2}");
    let numbers = |each: &Measurement| {
        [number(each.time_us), number(each.algbw_gbps), number(each.busbw_gbps), "0".to_owned()]
    };
    let row = |before: &[&str], each| {
        [before.iter().map(|&cell| cell.to_owned()).collect(), numbers(each).to_vec()].concat()
    };
    let at = 2 * 17;
    assert_eq!(cells(17, 0), row(&["1 MiB", "before", "out-of-place"], &before.measurements[at]));
    assert_eq!(cells(17, 1), row(&["before", "in-place"], &before.measurements[at + 1]));
    assert_eq!(cells(17, 2), row(&["after", "out-of-place"], &after.measurements[at]));
    let rows = table.descendants().filter(|node| node.tag_name().name() == "tr").count();
    assert_eq!(rows, 1 + 2 * before.measurements.len());
}

#[test]
fn wrong_data_algorithms_and_statistics_are_shown() {
    let run = with_everything();
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
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
    let columns = ["time µs", "algbw GB/s", "busbw GB/s", "wrong", "min µs", "median µs", "p95 µs"];
    let expected: Vec<&str> = ["size", "placement"].into_iter().chain(columns).chain(["algorithm"]).collect();
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
    other.outcome = RunOutcome::Interrupted { signal: "SIGINT".to_owned() };
    other.provenance.library_version = "2.27.7".to_owned();
    other.provenance.environment.clear();
    other.settings.iterations = 100;
    other.started_at = "2026-11-21T08:30:00.123Z".to_owned();
    let mut failed = all_reduce();
    failed.outcome = RunOutcome::Failed { message: "rank 3 on node<1> was killed".to_owned() };
    let running = Run { outcome: RunOutcome::Running, ..all_reduce() };
    let runs = named(&[("good", &all_reduce()), ("stopped", &other), ("broken", &failed), ("on", &running)]);
    let page = plot::render_html(&runs, &options()).unwrap();
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
    assert_eq!(marked, ["≠ outcome", "≠ library version", "≠ iterations", "≠ NCCL_ALGO"]);
    let library = all(root, "differs")[1];
    let cells: Vec<String> =
        library.descendants().filter(|node| node.tag_name().name() == "td").map(text_of).collect();
    assert_eq!(cells, ["2.28.9", "2.27.7", "2.28.9", "2.28.9"]);
}

/// The value of a variable or property in a page's CSS: the last number before its unit.
fn pixels(style: &str, before: &str, unit: &str) -> f64 {
    let (_, after) = style.split_once(before).unwrap();
    after.split_once(unit).unwrap().0.parse().unwrap()
}

#[test]
fn text_can_be_read_on_a_phone() {
    let page = plot::render_html(&named(&[("run", &with_everything())]), &options()).unwrap();
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
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
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
    assert_ne!(names[0], names[1], "arrow keys stay in a chart");
    assert!(page.contains(".readings label:hover .reading,.readings input:focus+.reading{display:block}"));
}

#[test]
fn several_sections_have_an_overview_with_links() {
    let mut run = all_reduce();
    let alone = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
    assert!(all(parse(&alone).root_element(), "overview").is_empty());
    run.measurements.extend(all_gather().measurements);
    let page = plot::render_html(&named(&[("run", &run)]), &options()).unwrap();
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
